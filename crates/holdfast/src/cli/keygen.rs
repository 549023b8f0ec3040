//! `holdfast keygen`: a new key for the fabric.

use crate::config;
use holdfast_control::exit::{self, Failure};
use holdfast_control::table::print;
use holdfast_node::channel::{Key, MAX_KEYS};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const VERSION: u32 = 1;

/// Writes a new key into a new file that only its owner can read; with `add`, behind the
/// keys of an existing file.
pub(super) fn keygen(file: &Path, add: bool, json: bool) -> Result<(), Failure> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Failure::new(
            exit::NEGATIVE,
            format!(
                "`{}` is there already, and who has its keys would be locked out: `--add` puts one behind them",
                file.display()
            ),
        ),
        std::io::ErrorKind::PermissionDenied => {
            Failure::new(exit::PERMISSION, format!("{}: {error}", file.display()))
        }
        _ => Failure::new(exit::UNAVAILABLE, format!("{}: {error}", file.display())),
    };
    let used: Vec<u8> = match add {
        true => {
            let ring = config::read_keys(file)
                .map_err(|message| Failure::new(exit::CONFIGURATION, message))?;
            ring.keys().iter().map(|key| key.number).collect()
        }
        false => Vec::new(),
    };
    if used.len() == MAX_KEYS {
        return Err(Failure::new(
            exit::NEGATIVE,
            format!("`{}` has {MAX_KEYS} keys: take an old one out", file.display()),
        ));
    }
    // The number after the last, or at the end of the numbers the first free one.
    let newest = used.iter().copied().max().unwrap_or(0);
    let number = newest
        .checked_add(1)
        .or_else(|| (0..=u8::MAX).find(|number| !used.contains(number)))
        .unwrap_or(0);
    let mut key = Key { number, secret: [0; 32] };
    match getrandom(&mut key.secret[..], GetRandomFlags::empty()) {
        Ok(32) => {}
        _ => return Err(Failure::new(exit::UNAVAILABLE, "the system gives no random numbers")),
    }
    let line = config::key_line(&key);
    match add {
        true => append(file, &line).map_err(failed)?,
        false => {
            let mut created = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(file)
                .map_err(failed)?;
            created.write_all(line.as_bytes()).and_then(|()| created.sync_all()).map_err(failed)?;
        }
    }
    match json {
        true => print(&format!("{}\n", json!({ "version": VERSION, "file": file, "key": number }))),
        false => print(&format!("key {number} is in {}\n", file.display())),
    }
}

/// Adds a key to a file. A reader finds the old file or the new one, never a part.
fn append(file: &Path, line: &str) -> std::io::Result<()> {
    let old = zeroize::Zeroizing::new(std::fs::read(file)?);
    // A file of 32 raw bytes has no lines: its owner has to write it anew.
    if old.len() == 32 {
        return Err(std::io::Error::other(
            "it is one key of 32 bytes without a number, and takes no other; write it as `0:KEY`",
        ));
    }
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let path = file.with_file_name(name);
    let mut created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let gap: &[u8] = if old.ends_with(b"\n") { b"" } else { b"\n" };
    let written = [old.as_slice(), gap, line.as_bytes()]
        .into_iter()
        .try_for_each(|part| created.write_all(part));
    let replaced =
        written.and_then(|()| created.sync_all()).and_then(|()| std::fs::rename(&path, file));
    if replaced.is_err() {
        // An unfinished file is removed.
        let _ = std::fs::remove_file(&path);
    }
    replaced
}
