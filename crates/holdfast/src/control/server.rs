//! The control socket: its place, and who has that.

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

/// The listening socket. When it is dropped nobody listens any more, and the socket is gone.
pub struct Server {
    path: PathBuf,
    service: Arc<Service>,
    // Dropped in this order: whoever takes the lock next finds no socket, and the directory is empty.
    /// The control API at an address, if there is one.
    remote: Option<api::Server>,
    listening: Option<Listening>,
    serving: Serving,
    lock: Option<Lock>,
    made: Option<Made>,
    /// The control API is meant to be there, and could not be opened.
    wanted: Option<(ControlEntry, Limits)>,
    /// What is wrong with it, as it was last said.
    wrong: Option<String>,
}

/// A directory that goes with the socket for which it was made, unless another box's is there.
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
    /// If its files cannot be used, or the address cannot be listened at; [`Server::look`] tries again.
    pub fn serve_remote(&mut self, entry: &ControlEntry, limits: Limits) -> Result<(), Failure> {
        self.wanted = Some((entry.clone(), limits));
        let server = api::Server::start(entry, &self.serving, limits)?;
        let report = server.report();
        // It opens once in a process's life.
        let _ = self.service.remote.set(Box::new(report));
        (self.remote, self.wanted) = (Some(server), None);
        Ok(())
    }

    /// Where the control API listens.
    pub fn remote_address(&self) -> Option<std::net::SocketAddr> {
        self.remote.as_ref().map(api::Server::address)
    }

    /// A function that reads the control API's certificates again, on any thread, for connections
    /// that begin from then on, and returns a message for the operator. `None` if there is no such
    /// API.
    pub fn reload(&self) -> Option<impl FnOnce() -> String + Send + use<>> {
        self.remote.as_ref().map(api::Server::reload)
    }

    /// Looks whether the socket is still where clients look for it, and makes it again if it was removed. What there is to say to the operator: what
    /// happened whenever it did, what is wrong once.
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

    /// What happened, or what is wrong.
    fn keep(&mut self) -> Result<Option<String>, String> {
        let path = self.path.display();
        if !self.lock.as_ref().is_some_and(Lock::is_held) {
            // Removed with its directory, perhaps.
            let made = make_directory(&self.path)
                .map_err(|error| format!("the control socket {path} was removed and cannot be made again: {error}"))?;
            // A second `Made` of the same directory would remove it when it is dropped.
            self.made = self.made.take().or_else(|| made.map(Made));
            self.lock = Some(Lock::take(&self.path, self.service.pid).map_err(|refusal| match refusal {
                Refusal::Held(Some(pid)) => format!("the control socket {path} was taken by another box, process {pid}"),
                Refusal::Held(None) => format!("the control socket {path} was taken by another box"),
                Refusal::Failed(error) => format!("the lock of the control socket {path}: {error}"),
            })?);
        }
        match std::fs::symlink_metadata(&self.path) {
            Ok(there) if self.listening.as_ref().is_some_and(|listening| listening.id == id(&there)) => Ok(None),
            Ok(_) => Err(format!(
                "the control socket {path} was replaced by another file: nobody can ask this box until that is removed"
            )),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // What listened at the removed socket ends first.
                self.listening = None;
                let listening = Listening::begin(&self.path, &self.serving)
                    .map_err(|failure| format!("the control socket was removed and cannot be made again: {failure}"))?;
                self.listening = Some(listening);
                Ok(Some(format!("the control socket {path} was removed: it is there again")))
            }
            // What cannot be found out has not changed.
            Err(_) => Ok(None),
        }
    }
}

/// A socket at the path, from which connections are accepted.
struct Listening {
    path: PathBuf,
    /// Of the socket: another box may have taken the path.
    id: (u64, u64),
    _accepting: Accepting,
}

impl Listening {
    fn begin(path: &Path, serving: &Serving) -> Result<Listening, Failure> {
        let failed = |error| failed(path, &error);
        // Nobody but the owner may connect, not even in the moment between making a socket and giving it its mode: it is made under a name that nobody
        // knows, and moved.
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

/// Where a process makes its socket before it is moved to its place.
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

/// Listens at `path` for the box whose process is `pid`; every request goes to `requests`, then `wake` is called. Stopping sends SIGTERM to this process.
///
/// # Errors
/// If somebody listens there already, or the path cannot be used.
pub fn listen(path: &Path, pid: u32, requests: Sender<Request>, wake: Arc<dyn Fn() + Send + Sync>) -> Result<Server, Failure> {
    let stop = || {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
    };
    listen_as(path, pid, requests, wake, Arc::new(stop))
}

/// Removes what a process that was killed has left beside `path`: it may have died before its socket was in its place.
pub fn tidy_after(path: &Path, pid: u32) {
    let _ = std::fs::remove_file(temporary(path, pid));
}

/// Removes what a box that was killed has left at `path`, unless another box is there by now.
pub fn tidy(path: &Path) {
    if let Ok(lock) = Lock::take(path, std::process::id()) {
        let _ = clear(path);
        drop(lock);
    }
}

/// As [`listen`], for a box of this process alone, with what stopping does.
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

fn listen_as(path: &Path, pid: u32, requests: Sender<Request>, wake: Act, stop: Act) -> Result<Server, Failure> {
    check_path(path)?;
    let failed = |error| failed(path, &error);
    let made = make_directory(path).map_err(failed)?.map(Made);
    let lock = match Lock::take(path, pid) {
        Ok(lock) => lock,
        Err(Refusal::Held(pid)) => {
            let holder = pid.map_or_else(String::new, |pid| format!(": process {pid}"));
            let message = format!("{}: a box is running already with this control socket{holder}", path.display());
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
    Ok(Server { path, service, remote: None, listening, serving, lock: Some(lock), made, wanted: None, wrong: None })
}

/// The directory of the socket, for its owner only, if it had to be made.
pub(crate) fn make_directory(path: &Path) -> std::io::Result<Option<PathBuf>> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && !parent.exists() => {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            Ok(Some(parent.to_owned()))
        }
        _ => Ok(None),
    }
}

/// Removes a socket that nobody listens at, and nothing else.
fn clear(path: &Path) -> Result<(), Failure> {
    let unavailable = |what: &str| Failure::new(exit::UNAVAILABLE, format!("{}: {what}", path.display()));
    match UnixStream::connect(path) {
        Ok(_) => Err(unavailable("a box is running already with this control socket")),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            use std::os::unix::fs::FileTypeExt;
            let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
            if !is_socket {
                return Err(unavailable("this is not a socket; --control PATH puts the control socket elsewhere"));
            }
            std::fs::remove_file(path).map_err(|error| unavailable(&format!("left by a box that was killed, and {error}")))
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err(Failure::new(exit::PERMISSION, format!("{}: another user's box has this control socket", path.display())))
        }
        Err(error) => Err(unavailable(&error.to_string())),
    }
}
