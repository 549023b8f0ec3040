//! What is asked of a box, and who asks: the schema of questions and answers, and one client for both doors of a box.
//!
//! The control socket speaks lines of JSON, each `{"version":1,"request":…}` with a [`Call`]; the control API ([`remote`]) speaks gRPC over mutual TLS,
//! and its messages have the same fields. In: questions of commands, of the laboratory and of tests. Out: the objects that `--json` prints, or a
//! [`Failure`](exit::Failure) with its exit code. Never: a part of the box. What answers is the daemon's, and does not come with this crate.
#![forbid(unsafe_code)]

pub mod certify;
mod client;
pub mod exit;
pub mod flows;
pub mod moves;
pub mod remote;
pub mod secret;
pub mod status;
pub mod table;
pub mod tls;

pub use client::{Client, Target, Work, agreed};

use exit::Failure;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Version of the protocol.
pub const VERSION: u32 = 1;
/// Longest configuration file, bytes.
pub const MAX_FILE: usize = 4 << 20;
/// Longest request, bytes; one client at a time may ask for more, with a configuration in it.
pub const MAX_REQUEST: usize = 64 * 1024;
/// Longest answer, bytes.
pub const MAX_ANSWER: usize = 64 << 20;
/// Flows in one answer at most: whoever wants more asks again from where it ends ([`Client::flows`] does).
pub const FLOWS_PER_ANSWER: u32 = 1_000;
/// How long a client may take to ask or to take an answer, and the loop to give it.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How long a box that moves many flows may be too busy to say how far it is.
pub const BUSY: Duration = Duration::from_secs(60);
/// Longest path of a Unix socket: `sun_path` without its final zero (unix(7)).
const MAX_PATH: usize = 107;

/// What a client can ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Call {
    /// Is the packet loop alive?
    Ping,
    /// [`crate::status::Status`].
    Status,
    /// [`crate::flows::Flows`]: no more than [`FLOWS_PER_ANSWER`] of them, and where the rest begins.
    Flows {
        /// A selector that the tuple before or after NAT must match; empty for all.
        #[serde(default)]
        filter: String,
        /// At most so many.
        limit: u32,
        /// Cursor to continue from: the `next` of the previous answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<flows::Place>,
    },
    /// The steps of the next packets.
    Trace {
        /// Which packets; empty for all.
        #[serde(default)]
        selector: String,
        /// How many.
        count: u32,
        /// For how long at most, milliseconds.
        wait_ms: u64,
    },
    /// Move flows from one runtime to another: answered with the number of the order, for [`Call::Moving`].
    Move {
        /// Whose.
        from: u16,
        /// To which; without it, to all others by turns.
        #[serde(default)]
        to: Option<u16>,
        /// At most so many.
        limit: u64,
        /// A selector that the tuple before or after NAT must match; empty for all.
        #[serde(default)]
        filter: String,
    },
    /// How far an order is: [`crate::moves::Progress`].
    Moving {
        /// Its number.
        order: u32,
    },
    /// Take a runtime out of service: its flows move, and it ends.
    Drain {
        /// Which.
        runtime: u16,
        /// Also if flows would not survive a failure without it.
        #[serde(default)]
        force: bool,
    },
    /// How far that is: [`crate::moves::Progress`].
    Draining {
        /// Which.
        runtime: u16,
    },
    /// Bring a drained runtime back.
    Restore {
        /// Which.
        runtime: u16,
    },
    /// Go by another configuration, all of it or nothing.
    Apply {
        /// Its name, for messages.
        file: String,
        /// All of it.
        text: String,
        /// Only say what would change.
        dry_run: bool,
    },
    /// End as on SIGTERM.
    Stop,
}

/// A line of a client, as it goes through the control socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// [`VERSION`].
    pub version: u32,
    /// What is asked.
    pub request: Call,
}

/// The default place of a cluster's socket.
pub fn default_path(cluster: &str) -> PathBuf {
    let base = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !rustix::process::geteuid().is_root());
    base.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join("holdfast").join(format!("{cluster}.sock"))
}

/// The socket of the only box on this machine, for commands that are not told which.
///
/// # Errors
/// If there is none, or more than one.
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
                format!("{}: only the user who started the box may ask it: use sudo", directory.display()),
            ));
        }
        Err(_) => return Err(none_in(directory)),
    };
    let mut sockets: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .collect();
    // A box that was killed leaves its socket; it is not one of several boxes that are running.
    if sockets.len() > 1 {
        sockets.retain(|path| std::os::unix::net::UnixStream::connect(path).is_ok());
    }
    match sockets.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(none_in(directory)),
        _ => {
            sockets.sort();
            let known: Vec<String> = sockets.iter().map(|path| path.display().to_string()).collect();
            let message = format!("several boxes are running here: name one with --control PATH: {}", known.join(", "));
            Err(Failure::new(exit::UNAVAILABLE, message))
        }
    }
}

fn none_in(directory: &Path) -> Failure {
    let message = format!("no box is running here: no socket in {}; name one with --control PATH", directory.display());
    Failure::new(exit::UNAVAILABLE, message)
}

/// Is this a path that a Unix socket can have?
///
/// # Errors
/// If it is longer.
pub fn check_path(path: &Path) -> Result<(), Failure> {
    let len = path.as_os_str().len();
    if len > MAX_PATH {
        let message = format!("{}: the path of a socket has at most {MAX_PATH} bytes, this one {len}", path.display());
        return Err(Failure::new(exit::UNAVAILABLE, message));
    }
    Ok(())
}
