//! The control socket: one line of JSON in, one line of JSON out.
//!
//! In: clients' lines. Out: requests for the packet loop, which answers when it comes to it. A client that sends garbage, too much, or
//! nothing at all costs a thread for a few seconds and nothing else.

use crate::exit::{self, Failure};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Version of the protocol.
pub const VERSION: u32 = 1;
/// Longest request, bytes.
const MAX_REQUEST: u64 = 64 * 1024;
/// Clients at a time.
const MAX_CLIENTS: usize = 32;
/// How long a client may take to ask, and the loop to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What can be asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// [`crate::status::Status`].
    Status,
    /// The flows.
    Flows {
        /// At most so many per runtime.
        limit: u32,
    },
    /// Trace the next packets that match.
    Trace {
        /// Which.
        selector: String,
        /// How many.
        count: u32,
    },
    /// The steps traced since the last such request.
    Traces,
}

/// A line of a client.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    version: u32,
    request: Request,
}

/// A request with the place for its answer.
pub struct Asked {
    /// What is asked.
    pub request: Request,
    /// Where the answer goes: a JSON object.
    pub answer: Sender<serde_json::Value>,
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
    let sockets: Vec<PathBuf> = std::fs::read_dir(&directory)
        .map(|entries| {
            entries
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
                .collect()
        })
        .unwrap_or_default();
    match sockets.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(Failure::new(
            exit::UNAVAILABLE,
            format!("no box is running here: no socket in {}; name it with --control PATH", directory.display()),
        )),
        _ => Err(Failure::new(
            exit::UNAVAILABLE,
            format!("several boxes are running here; name one of {} with --control PATH", directory.display()),
        )),
    }
}

/// The listening socket; removed when it is dropped.
pub struct Server {
    path: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Listens at `path`; every request goes to `requests`, then `wake` is called.
///
/// # Errors
/// If somebody listens there already, or the path cannot be used.
pub fn listen(path: &Path, requests: Sender<Asked>, wake: Arc<dyn Fn() + Send + Sync>) -> Result<Server, Failure> {
    let failed =
        |error: std::io::Error| Failure::new(exit::UNAVAILABLE, format!("the control socket {}: {error}", path.display()));
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    if path.exists() {
        if UnixStream::connect(path).is_ok() {
            return Err(Failure::new(
                exit::UNAVAILABLE,
                format!("a box is running already with the control socket {}", path.display()),
            ));
        }
        // Nobody listens: it was left by a box that was killed.
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let clients = Arc::new(AtomicUsize::new(0));
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            for stream in listener.incoming().flatten() {
                if clients.load(Ordering::Relaxed) >= MAX_CLIENTS {
                    continue;
                }
                clients.fetch_add(1, Ordering::Relaxed);
                let (requests, wake, clients) = (requests.clone(), wake.clone(), clients.clone());
                let served = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
                    let _ = serve(&stream, &requests, &*wake);
                    clients.fetch_sub(1, Ordering::Relaxed);
                });
                drop(served);
            }
        })
        .map_err(failed)?;
    Ok(Server { path: path.to_owned() })
}

fn serve(stream: &UnixStream, requests: &Sender<Asked>, wake: &dyn Fn()) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_REQUEST)).read_line(&mut line)?;
    let answer = match serde_json::from_str::<Line>(&line) {
        Ok(Line { version: VERSION, request }) => {
            let (answer, answered) = channel();
            let asked = requests.send(Asked { request, answer });
            wake();
            let late = || serde_json::json!({ "version": VERSION, "error": "the box did not answer in time" });
            asked.ok().and_then(|()| answered.recv_timeout(PATIENCE).ok()).unwrap_or_else(late)
        }
        Ok(Line { version, .. }) => {
            serde_json::json!({ "version": VERSION, "error": format!("version {version} is not understood, {VERSION} is") })
        }
        Err(error) => serde_json::json!({ "version": VERSION, "error": format!("not a request: {error}") }),
    };
    let mut writer = stream;
    writeln!(writer, "{answer}")
}

/// Asks the box that listens at `path`.
///
/// # Errors
/// If there is none, or it does not answer.
pub fn ask(path: &Path, request: Request) -> Result<serde_json::Value, Failure> {
    let unavailable = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            Failure::new(exit::PERMISSION, format!("{}: only the user who started the box may ask it; use sudo", path.display()))
        }
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            Failure::new(exit::TIMEOUT, format!("{}: the box does not answer", path.display()))
        }
        _ => Failure::new(exit::UNAVAILABLE, format!("no box answers at {}: {error}", path.display())),
    };
    let mut stream = UnixStream::connect(path).map_err(unavailable)?;
    stream.set_read_timeout(Some(PATIENCE * 2)).map_err(unavailable)?;
    let line = serde_json::to_string(&Line { version: VERSION, request })
        .map_err(|error| Failure::new(exit::NEGATIVE, error.to_string()))?;
    writeln!(stream, "{line}").map_err(unavailable)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).map_err(unavailable)?;
    let answer: serde_json::Value =
        serde_json::from_str(&answer).map_err(|_| Failure::new(exit::UNAVAILABLE, "the box's answer is no JSON"))?;
    match answer.get("error").and_then(|error| error.as_str()) {
        Some(error) => Err(Failure::new(exit::NEGATIVE, error.to_owned())),
        None => Ok(answer),
    }
}
