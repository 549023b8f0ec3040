//! The control socket, and the lock of its path.

use super::api;
use super::connection::accept_local;
use super::lock::{Lock, Refusal};
use super::service::{Act, Service};
use super::serving::{Accepting, Serving};
use super::{Limits, Request};
use crate::config::ControlEntry;
use holdfast_control::check_path;
use holdfast_control::exit::{self, Failure};
use std::fs::{DirBuilder, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// The listening socket. Dropping it closes and removes the socket.
pub struct Server {
    path: PathBuf,
    service: Arc<Service>,
    // Dropped in this order: the next holder of the lock finds no socket, and an empty
    // directory.
    remote: Option<api::Server>,
    listening: Option<Listening>,
    serving: Serving,
    lock: Option<Lock>,
    made: Option<Made>,
    /// The configured control API, while it could not be opened.
    wanted: Option<(ControlEntry, Limits)>,
    /// The latest reported error of the control API.
    wrong: Option<String>,
}

/// A directory made for the socket, and removed with it, unless another box's socket is
/// there.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

impl Server {
    /// Opens the control API at an address too, for clients with a certificate.
    ///
    /// # Errors
    /// If its files cannot be used, or it cannot listen at the address; [`Server::look`]
    /// tries again.
    pub fn serve_remote(&mut self, entry: &ControlEntry, limits: Limits) -> Result<(), Failure> {
        self.wanted = Some((entry.clone(), limits));
        let server = api::Server::start(entry, &self.serving, limits)?;
        let report = server.report();
        // The control API opens once in a process's run.
        let _ = self.service.remote.set(Box::new(report));
        (self.remote, self.wanted) = (Some(server), None);
        Ok(())
    }

    /// The listening address of the control API.
    pub fn remote_address(&self) -> Option<std::net::SocketAddr> {
        self.remote.as_ref().map(api::Server::address)
    }

    /// A function that reads the control API's certificates again, on any thread, for
    /// connections that begin from then on, and returns a message for the operator.
    /// `None` if there is no such API.
    pub fn reload(&self) -> Option<impl FnOnce() -> String + Send + use<>> {
        self.remote.as_ref().map(api::Server::reload)
    }

    /// Checks that the socket is still in its place, and makes it again if it was
    /// removed. Returns a message for the operator: events each time, an error once.
    pub fn look(&mut self) -> Option<String> {
        if let Some((entry, limits)) = self.wanted.clone()
            && self.serve_remote(&entry, limits).is_ok()
        {
            return Some(format!("the control API listens at {} now", entry.listen));
        }
        match self.keep() {
            Ok(news) => {
                self.wrong = None;
                news
            }
            Err(wrong) => {
                let is_new = self.wrong.as_ref() != Some(&wrong);
                self.wrong = Some(wrong.clone());
                is_new.then_some(wrong)
            }
        }
    }

    /// An event, or an error.
    fn keep(&mut self) -> Result<Option<String>, String> {
        let path = self.path.display();
        if !self.lock.as_ref().is_some_and(Lock::is_held) {
            // The socket may have been removed with its directory.
            let made = make_directory(&self.path).map_err(|error| {
                format!("the control socket {path} was removed and cannot be made again: {error}")
            })?;
            // A second `Made` of the same directory would remove it when it is dropped.
            self.made = self.made.take().or_else(|| made.map(Made));
            self.lock =
                Some(Lock::take(&self.path, self.service.pid).map_err(
                    |refusal| match refusal {
                        Refusal::Held(Some(pid)) => format!(
                            "the control socket {path} was taken by another box, process {pid}"
                        ),
                        Refusal::Held(None) => {
                            format!("the control socket {path} was taken by another box")
                        }
                        Refusal::Failed(error) => {
                            format!("the lock of the control socket {path}: {error}")
                        }
                    },
                )?);
        }
        match std::fs::symlink_metadata(&self.path) {
            Ok(there)
                if self.listening.as_ref().is_some_and(|listening| listening.id == id(&there)) =>
            {
                Ok(None)
            }
            Ok(_) => Err(format!(
                "the control socket {path} was replaced by another file: nobody can ask this box until that is removed"
            )),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // The listener at the removed socket ends first.
                self.listening = None;
                let listening = Listening::begin(&self.path, &self.serving).map_err(|failure| {
                    format!("the control socket was removed and cannot be made again: {failure}")
                })?;
                self.listening = Some(listening);
                Ok(Some(format!("the control socket {path} was removed: it is there again")))
            }
            // An unknown state counts as unchanged.
            Err(_) => Ok(None),
        }
    }
}

/// A socket at the path, with its accept loop.
struct Listening {
    path: PathBuf,
    /// Device and inode of the socket: another box may have taken the path.
    id: (u64, u64),
    _accepting: Accepting,
}

impl Listening {
    fn begin(path: &Path, serving: &Serving) -> Result<Listening, Failure> {
        let failed = |error| failed(path, &error);
        // Only the owner may connect, also in the moment between making a socket and
        // setting its mode: the socket is made under a secret name, and moved.
        let temporary = temporary(path, std::process::id());
        check_path(&temporary)?;
        let listener = UnixListener::bind(&temporary).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let placed = std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o600))
            .and_then(|()| std::fs::rename(&temporary, path))
            .and_then(|()| std::fs::symlink_metadata(path));
        let id = match placed {
            Ok(metadata) => id(&metadata),
            Err(error) => {
                let _ = std::fs::remove_file(&temporary);
                return Err(failed(error));
            }
        };
        let accepting = serving.accept(|ready| async move {
            if let Ok(listener) = tokio::net::UnixListener::from_std(listener) {
                accept_local(listener, ready).await;
            }
        });
        Ok(Listening { path: path.to_owned(), id, _accepting: accepting })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|there| id(&there) == self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The temporary path of a process's socket.
fn temporary(path: &Path, pid: u32) -> PathBuf {
    path.with_extension(format!("{pid}"))
}

fn id(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(
        exit::of_system(error),
        format!("the control socket {}: {error}; --control PATH puts it elsewhere", path.display()),
    )
}

/// Listens at `path` for the box whose process is `pid`. Requests go to `requests`, then
/// `wake` is called. Stopping sends SIGTERM to this process.
///
/// # Errors
/// If another process listens at the path already, or the path cannot be used.
pub fn listen(
    path: &Path,
    pid: u32,
    requests: Sender<Request>,
    wake: Arc<dyn Fn() + Send + Sync>,
) -> Result<Server, Failure> {
    let stop = || {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
    };
    listen_as(path, pid, requests, wake, Arc::new(stop))
}

/// Removes the temporary files of a killed process beside `path`: it may have died before
/// its socket was in place.
pub fn tidy_after(path: &Path, pid: u32) {
    let _ = std::fs::remove_file(temporary(path, pid));
}

/// Removes the socket of a killed box at `path`, unless another box listens there by now.
pub fn tidy(path: &Path) {
    if let Ok(lock) = Lock::take(path, std::process::id()) {
        let _ = clear(path);
        drop(lock);
    }
}

/// As [`listen`], for a box in this process alone, with its own action on stopping.
///
/// # Errors
/// As [`listen`].
pub fn listen_and_stop(
    path: &Path,
    requests: Sender<Request>,
    wake: Arc<dyn Fn() + Send + Sync>,
    stop: Arc<dyn Fn() + Send + Sync>,
) -> Result<Server, Failure> {
    listen_as(path, std::process::id(), requests, wake, stop)
}

fn listen_as(
    path: &Path,
    pid: u32,
    requests: Sender<Request>,
    wake: Act,
    stop: Act,
) -> Result<Server, Failure> {
    check_path(path)?;
    let failed = |error| failed(path, &error);
    let made = make_directory(path).map_err(failed)?.map(Made);
    let lock = match Lock::take(path, pid) {
        Ok(lock) => lock,
        Err(Refusal::Held(pid)) => {
            let holder = pid.map_or_else(String::new, |pid| format!(": process {pid}"));
            let message = format!(
                "{}: a box is running already with this control socket{holder}",
                path.display()
            );
            return Err(Failure::new(exit::UNAVAILABLE, message));
        }
        Err(Refusal::Failed(error)) => return Err(failed(error)),
    };
    let service = Arc::new(Service::new(pid, requests, wake, stop));
    let serving = Serving::start(service.clone()).map_err(failed)?;
    if std::fs::symlink_metadata(path).is_ok() {
        clear(path)?;
    }
    let listening = Some(Listening::begin(path, &serving)?);
    let path = path.to_owned();
    Ok(Server {
        path,
        service,
        remote: None,
        listening,
        serving,
        lock: Some(lock),
        made,
        wanted: None,
        wrong: None,
    })
}

/// Makes the socket's directory, for its owner only, if there is none.
pub(crate) fn make_directory(path: &Path) -> std::io::Result<Option<PathBuf>> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && !parent.exists() => {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            Ok(Some(parent.to_owned()))
        }
        _ => Ok(None),
    }
}

/// Removes a socket without a listener, and no other file.
fn clear(path: &Path) -> Result<(), Failure> {
    let unavailable =
        |what: &str| Failure::new(exit::UNAVAILABLE, format!("{}: {what}", path.display()));
    match UnixStream::connect(path) {
        Ok(_) => Err(unavailable("a box is running already with this control socket")),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            use std::os::unix::fs::FileTypeExt;
            let is_socket = std::fs::symlink_metadata(path)
                .is_ok_and(|metadata| metadata.file_type().is_socket());
            if !is_socket {
                return Err(unavailable(
                    "this is not a socket; --control PATH puts the control socket elsewhere",
                ));
            }
            std::fs::remove_file(path).map_err(|error| {
                unavailable(&format!("left by a box that was killed, and {error}"))
            })
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(Failure::new(
            exit::PERMISSION,
            format!("{}: another user's box has this control socket", path.display()),
        )),
        Err(error) => Err(unavailable(&error.to_string())),
    }
}
