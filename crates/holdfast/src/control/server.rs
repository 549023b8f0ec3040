//! The box's half of the control socket.
//!
//! One thread accepts; each client has a thread of its own for as long as one request takes, and there is a limit to both. A client that sends
//! garbage, too much, nothing, or does not read its answer costs that thread for some seconds and nothing else.

use super::apply;
use super::lock::{Lock, Refusal};
use super::remote::{self, Limits};
use super::service::{Act, Follower, Problem, ProblemKind, Service};
use super::{Asked, MAX_CLIENTS, MAX_LONG_REQUEST, stand_back};
use crate::config::ControlEntry;
use holdfast_control::exit::{self, Failure};
use holdfast_control::{Call, Line, MAX_REQUEST, PATIENCE, VERSION, check_path};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::fs::{DirBuilder, Metadata};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After a failed accept, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The listening socket. When it is dropped nobody listens any more, and the socket is gone.
pub struct Server {
    path: PathBuf,
    // Removed in this order: whoever takes the lock next finds no socket, and the directory is empty.
    listening: Option<Listening>,
    lock: Option<Lock>,
    made_directory: Option<PathBuf>,
    shared: Arc<Shared>,
    /// The other door, if there is one.
    remote: Option<remote::Server>,
    /// It is meant to be there, and could not be opened.
    wanted: Option<(ControlEntry, Limits)>,
    /// What is wrong with it, as it was last said.
    wrong: Option<String>,
}

impl Server {
    /// Opens the other door too: the control API at an address, for clients with a certificate.
    ///
    /// # Errors
    /// If its files cannot be used, or the address cannot be listened at; [`Server::look`] tries again.
    pub fn serve_remote(&mut self, entry: &ControlEntry, limits: Limits) -> Result<(), Failure> {
        self.wanted = Some((entry.clone(), limits));
        let server = remote::Server::start(entry, self.shared.service.clone(), limits)?;
        let report = server.report();
        // It opens once in a process's life.
        let _ = self.shared.service.remote.set(Box::new(report));
        (self.remote, self.wanted) = (Some(server), None);
        Ok(())
    }

    /// Where the control API listens.
    pub fn remote_address(&self) -> Option<std::net::SocketAddr> {
        self.remote.as_ref().map(remote::Server::address)
    }

    /// A function that reads the control API's certificates again, on any thread, for connections
    /// that begin from then on, and returns a message for the operator. `None` if there is no such
    /// API.
    pub fn reload(&self) -> Option<impl FnOnce() -> String + Send + use<>> {
        self.remote.as_ref().map(remote::Server::reload)
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
            self.made_directory = self.made_directory.take().or(made);
            self.lock = Some(Lock::take(&self.path, self.shared.service.pid).map_err(|refusal| match refusal {
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
                let listening = Listening::begin(&self.path, &self.shared)
                    .map_err(|failure| format!("the control socket was removed and cannot be made again: {failure}"))?;
                self.listening = Some(listening);
                Ok(Some(format!("the control socket {path} was removed: it is there again")))
            }
            // What cannot be found out has not changed.
            Err(_) => Ok(None),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.remote.take());
        drop(self.listening.take());
        drop(self.lock.take());
        if let Some(directory) = &self.made_directory {
            // Not if another box's socket is there.
            let _ = std::fs::remove_dir(directory);
        }
    }
}

/// A socket at the path, and the thread that accepts from it.
struct Listening {
    path: PathBuf,
    /// Of the socket: another box may have taken the path.
    id: (u64, u64),
    listener: Arc<UnixListener>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    fn begin(path: &Path, shared: &Arc<Shared>) -> Result<Listening, Failure> {
        let failed = |error| failed(path, &error);
        // Nobody but the owner may connect, not even in the moment between making a socket and giving it its mode: it is made under a name that nobody
        // knows, and moved.
        let temporary = temporary(path, std::process::id());
        check_path(&temporary)?;
        let listener = Arc::new(UnixListener::bind(&temporary).map_err(failed)?);
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
        let end = Arc::new(AtomicBool::new(false));
        let mut listening = Listening { path: path.to_owned(), id, listener: listener.clone(), end: end.clone(), thread: None };
        let shared = shared.clone();
        let accepting = move || accept(&listener, &shared, &end);
        listening.thread = Some(std::thread::Builder::new().name("control".to_owned()).spawn(accepting).map_err(failed)?);
        Ok(listening)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        // The thread sleeps in accept, which ends with this.
        let woken = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
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

/// What the clients' threads have.
struct Shared {
    service: Arc<Service>,
    clients: AtomicUsize,
    /// Who sends a long request.
    long: Mutex<()>,
}

/// Listens at `path` for the box whose process is `pid`; every request goes to `requests`, then `wake` is called. [`Call::Stop`] sends SIGTERM to this
/// process.
///
/// # Errors
/// If somebody listens there already, or the path cannot be used.
pub fn listen(path: &Path, pid: u32, requests: Sender<Asked>, wake: Arc<dyn Fn() + Send + Sync>) -> Result<Server, Failure> {
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

/// As [`listen`], for a box of this process alone, with what [`Call::Stop`] does.
///
/// # Errors
/// As [`listen`].
pub fn listen_and_stop(
    path: &Path,
    requests: Sender<Asked>,
    wake: Arc<dyn Fn() + Send + Sync>,
    stop: Arc<dyn Fn() + Send + Sync>,
) -> Result<Server, Failure> {
    listen_as(path, std::process::id(), requests, wake, stop)
}

fn listen_as(path: &Path, pid: u32, requests: Sender<Asked>, wake: Act, stop: Act) -> Result<Server, Failure> {
    check_path(path)?;
    let failed = |error| failed(path, &error);
    let made_directory = make_directory(path).map_err(failed)?;
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
    let shared = Arc::new(Shared { service, clients: AtomicUsize::new(0), long: Mutex::new(()) });
    let mut server = Server {
        path: path.to_owned(),
        listening: None,
        lock: Some(lock),
        made_directory,
        shared: shared.clone(),
        remote: None,
        wanted: None,
        wrong: None,
    };
    if std::fs::symlink_metadata(path).is_ok() {
        clear(path)?;
    }
    server.listening = Some(Listening::begin(path, &shared)?);
    Ok(server)
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

/// One place of [`MAX_CLIENTS`], free again when this is dropped.
struct Seat(Arc<Shared>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::AcqRel);
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>, is_over: &AtomicBool) {
    stand_back();
    for stream in listener.incoming() {
        if is_over.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else {
            std::thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        let seat = Seat(shared.clone());
        if shared.clients.fetch_add(1, Ordering::AcqRel) >= MAX_CLIENTS {
            // A full socket buffer must not stop others from being accepted.
            let _ = stream.set_nonblocking(true);
            let _ = respond(&stream, &problem("too many clients at a time: try again"));
            continue;
        }
        let serving = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            let _ = serve(&stream, &seat.0);
        });
        // Without a thread the client sees its connection closed, and the seat is free.
        drop(serving);
    }
}

fn problem(text: &str) -> Value {
    Problem::new(ProblemKind::Wrong, text).object()
}

/// Writes a line within [`PATIENCE`], however slowly it is read.
fn respond(mut stream: &UnixStream, answer: &Value) -> std::io::Result<()> {
    let mut line = answer.to_string();
    line.push('\n');
    let (mut rest, started) = (line.as_bytes(), Instant::now());
    while !rest.is_empty() {
        let left = PATIENCE.checked_sub(started.elapsed()).filter(|left| !left.is_zero()).ok_or(ErrorKind::TimedOut)?;
        stream.set_write_timeout(Some(left))?;
        match stream.write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A line of at most [`MAX_REQUEST`] bytes, or [`MAX_LONG_REQUEST`] if nobody else sends one, within [`PATIENCE`], however slowly its bytes come.
fn read_line(mut stream: &UnixStream, long: &Mutex<()>) -> std::io::Result<Vec<u8>> {
    let started = Instant::now();
    let mut line = Vec::new();
    let mut alone = None;
    let mut piece = [0u8; 4096];
    loop {
        let left = PATIENCE.checked_sub(started.elapsed()).filter(|left| !left.is_zero()).ok_or(ErrorKind::TimedOut)?;
        stream.set_read_timeout(Some(left))?;
        let count = match stream.read(&mut piece) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = piece[..count].iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&piece[..end.unwrap_or(count)]);
        if line.len() > MAX_REQUEST && alone.is_none() {
            alone = Some(long.try_lock().map_err(|_| ErrorKind::ResourceBusy)?);
        }
        if line.len() > MAX_LONG_REQUEST {
            return Err(ErrorKind::FileTooLarge.into());
        }
        if end.is_some() || count == 0 {
            return Ok(line);
        }
    }
}

fn serve(stream: &UnixStream, shared: &Shared) -> std::io::Result<()> {
    let line = match read_line(stream, &shared.long) {
        Ok(line) => line,
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            return respond(stream, &problem(&format!("a request has at most {MAX_LONG_REQUEST} bytes")));
        }
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            return respond(stream, &problem("another long request is being read: try again"));
        }
        Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
            return respond(stream, &problem("no request came in time"));
        }
        Err(error) => return Err(error),
    };
    let service = &shared.service;
    match parse(&line) {
        Ok(Call::Trace { selector, count, wait_ms }) => {
            let mut follower = Watcher { stream, lost: None };
            let seen = service.trace(&selector, count, Duration::from_millis(wait_ms), &mut follower);
            match (follower.lost, seen) {
                (Some(error), _) => Err(error),
                (None, Ok(packets)) => respond(stream, &json!({ "version": VERSION, "done": true, "packets": packets })),
                (None, Err(problem)) => respond(stream, &problem.object()),
            }
        }
        Ok(Call::Stop) => {
            let answered = respond(stream, &json!({ "version": VERSION, "stopping": true, "pid": service.pid }));
            service.stop();
            answered
        }
        Ok(Call::Apply { file, text, dry_run }) => {
            let answer = apply::apply(service, file, text, dry_run);
            respond(stream, &answer.unwrap_or_else(|problem| problem.object()))
        }
        Ok(call) => respond(stream, &service.answer(&call).unwrap_or_else(|problem| problem.object())),
        Err(text) => respond(stream, &problem(&text)),
    }
}

/// A client that follows a trace.
struct Watcher<'a> {
    stream: &'a UnixStream,
    /// Why it follows no more.
    lost: Option<std::io::Error>,
}

impl Follower for Watcher<'_> {
    fn step(&mut self, step: &Value) -> bool {
        self.lost = respond(self.stream, &json!({ "version": VERSION, "step": step })).err();
        self.lost.is_none()
    }

    fn has_gone(&mut self, wait: Duration) -> bool {
        let has_gone = has_gone(self.stream, wait);
        if has_gone {
            self.lost = Some(ErrorKind::BrokenPipe.into());
        }
        has_gone
    }
}

/// True if the client closes its connection within this time.
fn has_gone(stream: &UnixStream, wait: Duration) -> bool {
    // Hanging up is always reported. A client that only has nothing more to say (a pipe into a socket tool) is still there.
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    poll(&mut fds, Some(&timeout)).is_ok_and(|count| count > 0) && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

fn parse(line: &[u8]) -> Result<Call, String> {
    // The version first: what another version asks may not be understood at all.
    let value: Value = serde_json::from_slice(line).map_err(|error| format!("not a request: {error}"))?;
    match value.get("version").and_then(Value::as_u64) {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => return Err(format!("version {version} is not understood, {VERSION} is")),
        None => return Err("not a request: it has no `version`".to_owned()),
    }
    serde_json::from_value::<Line>(value).map(|line| line.request).map_err(|error| format!("not a request: {error}"))
}
