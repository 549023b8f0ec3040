//! A running host's answer to a host that joins: everything that it needs to run its part
//! of the box.

use super::Request;
use super::service::Service;
use holdfast_control::api::{File, JoinReply};
use holdfast_control::is_inside;
use std::path::Path;
use tonic::Status as Refusal;

/// Longest file to send, bytes.
const MAX_FILE: u64 = 1 << 20;

/// The configuration, with the files that it names by relative paths. Files with absolute
/// paths are each host's own, as are the certificate and key of the control API.
pub(super) fn join(service: &Service, host: &str) -> Result<JoinReply, Refusal> {
    let not_now = |text: String| Refusal::failed_precondition(text);
    let running = service.ask(Request::Configuration)?;
    let plan = &running.plan;
    if plan.hosts.is_empty() {
        return Err(not_now(
            "the box is on one host: its configuration has no `hosts`, and nobody can join"
                .to_owned(),
        ));
    }
    plan.host(Some(host)).map_err(not_now)?;
    let beside = Path::new(&running.file).parent().unwrap_or(Path::new(""));
    let mut files: Vec<File> = Vec::new();
    for (key, path) in plan.named_files() {
        if Path::new(path).is_absolute() || files.iter().any(|known| known.path == path) {
            continue;
        }
        if !is_inside(path) {
            return Err(not_now(format!(
                "`{key}: {path}` is outside the configuration's directory: it cannot go along to the host that joins; put it inside, or say it from the root"
            )));
        }
        let path_here = beside.join(path);
        let failed = |error: std::io::Error| {
            not_now(format!("`{key}: {path}` of the host that was asked: {error}"))
        };
        let length = std::fs::metadata(&path_here).map_err(failed)?.len();
        if length > MAX_FILE {
            return Err(not_now(format!("`{key}: {path}` is longer than {} MiB", MAX_FILE >> 20)));
        }
        files.push(File {
            path: path.to_owned(),
            contents: std::fs::read(&path_here).map_err(failed)?,
        });
    }
    Ok(JoinReply { cluster: plan.cluster.clone(), text: running.text.to_string(), files })
}
