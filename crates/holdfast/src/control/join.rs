//! What another host needs to run its part of the box, as a running host has it.

use super::service::{Problem, ProblemKind, Service};
use holdfast_control::remote::is_inside;
use std::path::Path;
use zeroize::Zeroizing;

/// Longest file that goes along, bytes.
const MAX_FILE: u64 = 1 << 20;

/// See [`join`].
pub(super) struct Joined {
    pub(super) cluster: String,
    pub(super) text: String,
    /// By their paths, as the configuration says them.
    pub(super) files: Vec<(String, Zeroizing<Vec<u8>>)>,
}

/// The configuration, with the files that it names by paths from its own directory. Those with a path from the root are each host's own, as are the
/// certificate and key of the control API.
pub(super) fn join(service: &Service, host: &str) -> Result<Joined, Problem> {
    let not_now = |text: String| Problem::new(ProblemKind::NotNow, text);
    let (plan, running) = service.running()?;
    let word = |key: &str| running[key].as_str().unwrap_or_default();
    let (file, text) = (word("file"), word("text"));
    if plan.hosts.is_empty() {
        return Err(not_now("the box is on one host: its configuration has no `hosts`, and nobody can join".to_owned()));
    }
    plan.host(Some(host)).map_err(not_now)?;
    let beside = Path::new(file).parent().unwrap_or(Path::new(""));
    let mut files: Vec<(String, Zeroizing<Vec<u8>>)> = Vec::new();
    for (key, path) in plan.named_files() {
        if Path::new(path).is_absolute() || files.iter().any(|(known, _)| known == path) {
            continue;
        }
        if !is_inside(path) {
            return Err(not_now(format!(
                "`{key}: {path}` is outside the configuration's directory: it cannot go along to the host that joins; put it inside, or say it from the root"
            )));
        }
        let path_here = beside.join(path);
        let failed = |error: std::io::Error| not_now(format!("`{key}: {path}` of the host that was asked: {error}"));
        let length = std::fs::metadata(&path_here).map_err(failed)?.len();
        if length > MAX_FILE {
            return Err(not_now(format!("`{key}: {path}` is longer than {} MiB", MAX_FILE >> 20)));
        }
        let bytes = std::fs::read(&path_here).map_err(failed)?;
        files.push((path.to_owned(), Zeroizing::new(bytes)));
    }
    Ok(Joined { cluster: plan.cluster.clone(), text: text.to_owned(), files })
}
