//! The control API's schema of requests and answers, and one client.
//!
//! A box takes calls by gRPC, through its Unix socket or over mutual TLS, with the
//! messages of the .proto file ([`api`]). In: requests of commands, of the laboratory and
//! of tests. Out: the objects that `--json` prints, or a [`Failure`](exit::Failure) with
//! its exit code. Never: a part of the box. The daemon answers, and does not come with
//! this crate.
#![forbid(unsafe_code)]

pub mod assignment;
pub mod certify;
mod client;
mod connection;
mod endpoint;
pub mod exit;
pub mod flows;
pub mod secret;
pub mod status;
pub mod table;
pub mod tls;

/// The types of the .proto file, kept as a file: `tests/generated.rs` reports a stale
/// file, and makes it anew.
#[allow(missing_docs, unreachable_pub, clippy::all)]
#[rustfmt::skip]
pub mod api;

/// The fields of `status` and `flows` with the .proto file's comments, kept as [`api`]
/// is.
#[rustfmt::skip]
pub mod fields;

pub use client::{Client, Fetched, Work, fetch, is_inside};
pub use connection::{Target, TlsConnection, channel_over, connect_tls};
pub use endpoint::{CONTROL_PORT, Endpoint, control_address};

use exit::Failure;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Version of the protocol.
pub const VERSION: u32 = 1;
/// Longest configuration file, bytes.
pub const MAX_FILE: usize = 4 << 20;
/// Longest message of a client, bytes: a configuration and its name.
pub const MAX_REQUEST: usize = MAX_FILE + (64 << 10);
/// Longest answer, bytes.
pub const MAX_ANSWER: usize = 64 << 20;
/// Flows per call of [`Client::flows`], which calls again from the end of the answer.
pub const FLOWS_PER_ANSWER: u32 = 1_000;
/// Time-out of a client's request and of its reading an answer, and of the packet loop's
/// answer.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Time-out of a box that moves many flows and may be too busy to report.
pub const BUSY: Duration = Duration::from_secs(60);
/// Longest path of a Unix socket: `sun_path` without its final zero (unix(7)).
const MAX_PATH: usize = 107;

/// The default place of a cluster's socket.
pub fn default_path(cluster: &str) -> PathBuf {
    let base =
        std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !rustix::process::geteuid().is_root());
    base.map_or_else(|| PathBuf::from("/run"), PathBuf::from)
        .join("holdfast")
        .join(format!("{cluster}.sock"))
}

/// The socket of the only box on this machine, for commands without a target.
///
/// # Errors
/// If there is no box, or more than one.
pub fn find() -> Result<PathBuf, Failure> {
    let directory = default_path("x").parent().map(Path::to_owned).unwrap_or_default();
    find_in(&directory)
}

fn find_in(directory: &Path) -> Result<PathBuf, Failure> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(Failure::new(
                exit::PERMISSION,
                format!(
                    "{}: only the user who started the box may ask it: use sudo",
                    directory.display()
                ),
            ));
        }
        Err(_) => return Err(none_in(directory)),
    };
    let mut sockets: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .collect();
    // A killed box leaves its socket, which does not count as a running box's.
    if sockets.len() > 1 {
        sockets.retain(|path| std::os::unix::net::UnixStream::connect(path).is_ok());
    }
    match sockets.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(none_in(directory)),
        _ => {
            sockets.sort();
            let known: Vec<String> =
                sockets.iter().map(|path| path.display().to_string()).collect();
            let message = format!(
                "several boxes are running here: name one with --control PATH: {}",
                known.join(", ")
            );
            Err(Failure::new(exit::UNAVAILABLE, message))
        }
    }
}

fn none_in(directory: &Path) -> Failure {
    let message = format!(
        "no box is running here: no socket in {}; name one with --control PATH",
        directory.display()
    );
    Failure::new(exit::UNAVAILABLE, message)
}

/// Checks that a Unix socket can have this path.
///
/// # Errors
/// If the path is longer.
pub fn check_path(path: &Path) -> Result<(), Failure> {
    let len = path.as_os_str().len();
    if len > MAX_PATH {
        let message = format!(
            "{}: the path of a socket has at most {MAX_PATH} bytes, this one {len}",
            path.display()
        );
        return Err(Failure::new(exit::UNAVAILABLE, message));
    }
    Ok(())
}

/// Omits the contents, which are secret.
impl std::fmt::Debug for api::File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A message as an object with a version, as `--json` prints it.
pub fn object(message: &impl Serialize) -> serde_json::Value {
    let mut object = serde_json::to_value(message).unwrap_or_default();
    object["version"] = VERSION.into();
    object
}
