//! Shared parts of the end-to-end tests: the runner, the box under test, a network with
//! other addresses than the demo's, and a sender of raw frames.
//!
//! Each test makes namespaces of its own. No other program of this project loads the
//! machine meanwhile; tests run beside each other as far as each allows it ([`runner`]).
//! Without root the tests are not run and count as ignored, with the reason.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod conversation;
pub mod crowd;
pub mod flood;
pub mod frames;
pub mod kills;
pub mod ledger;
pub mod network;
pub mod ping;
pub mod routers;
pub mod runner;
pub mod sockets;
pub mod standby;
pub mod tagger;
pub mod torrent;
pub mod traffic;
pub mod transfer;
pub mod verdict;

pub use holdfast_lab::daemon::binary;

use anyhow::{Context, Result, ensure};
use std::process::Command;
use std::time::Duration;

/// Time limit for steps that should take a moment on a busy machine of two cores.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// True if tests run in their full form, with `HOLDFAST_SOAK` set: kills by the hundred,
/// and numbers that rest for the default time. The short form runs on every change.
pub fn soak() -> bool {
    std::env::var_os("HOLDFAST_SOAK").is_some_and(|value| !value.is_empty())
}

/// The output of a command that must succeed.
pub fn said(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("{command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, complained) = (text(&out.stdout), text(&out.stderr));
    ensure!(out.status.success(), "{command:?}: {}\n{said}\n{complained}", out.status);
    Ok(said)
}
