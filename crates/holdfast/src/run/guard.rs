//! `holdfast run`: the guard of a box. The guard is the parent of all its processes, and
//! keeps their state that would be lost with the manager.
//!
//! In: the configuration, signals, the manager's requests, ends of processes. Out:
//! processes, and the manager's next incarnation after its death. Never: a packet, nor a
//! decision of a protocol.
//!
//! The guard does so little that nothing should bring it down. If it is killed all the
//! same, the kernel ends every process of the box.

use super::guard_link::{Assignment, Buried, FromGuard, Stored, ToGuard, read_memory};
use super::restarts::{LONG_INCARNATION_OF_MANAGER, Restarts};
use super::role::{BfdKey, Keys};
use super::{MILLISECOND, ManagerNotes, devices, join, privileges, random_seed, reports};
use crate::config;
use crate::control;
use crate::files;
use holdfast_control::Endpoint;
use holdfast_control::default_path;
use holdfast_control::exit::{self, Failure};
use holdfast_control::tls::{Identity, TlsPaths};
use holdfast_io::process::{self, Clock, Watched};
use holdfast_io::{Heartbeat, Mailbox, wait};
use holdfast_node::channel::KeyRing;
use holdfast_node::manager::ENDS_KEPT;
use holdfast_wire::NodeId;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zeroize::Zeroizing;

/// Time-out of a manager whose loop does not turn, ns.
const TIMEOUT: u64 = 2_000 * MILLISECOND;
/// Time-out before the manager's first turn, in which devices are opened, ns.
const START_TIMEOUT: u64 = 60_000 * MILLISECOND;
/// Time-out of a manager that is ending, ns: it waits for its runtimes, and for the
/// kernel, which takes ports down one after the other on the whole machine.
const END_TIMEOUT: u64 = 20_000 * MILLISECOND;
/// The pause between two looks at the manager's heartbeat, ns.
const LOOK_INTERVAL: u64 = 250 * MILLISECOND;
/// The exit code of a panic.
const PANICKED: i32 = 101;

/// A process that the manager requested, with the data that the next manager needs of it.
struct Child {
    id: u16,
    node: NodeId,
    incarnation: u32,
    process: Watched,
    stdin: Option<OwnedFd>,
    /// Rings and both bells.
    port: Vec<OwnedFd>,
    cause: Option<String>,
}

/// The manager's present incarnation.
struct Present {
    process: Watched,
    mailbox: Mailbox,
    /// The manager has closed its end of the mailbox: its process is ending.
    is_silent: bool,
    heartbeat: Heartbeat,
    beats: u64,
    alive_at: u64,
}

/// The state that outlives the manager.
struct HostGuard {
    clock: Clock,
    incarnation: u32,
    seed: u64,
    host: u16,
    file: String,
    text: String,
    keys: Option<KeyRing>,
    bfd_keys: Vec<Option<holdfast_node::bfd::Key>>,
    control: PathBuf,
    tls: Option<TlsPaths>,
    state: Option<PathBuf>,
    arena: Vec<OwnedFd>,
    /// The manager's notes.
    notes: ManagerNotes,
    base: u32,
    coordinators: u32,
    children: Vec<Child>,
    buried: VecDeque<Buried>,
    has_served: bool,
    /// The manager's incarnations.
    restarts: Restarts,
    /// The end of the manager's last incarnation.
    cause: String,
}

/// The end of the box.
enum End {
    /// The manager ended by itself.
    Exited(u8),
    /// SIGTERM ended the manager before it handled signals, or no manager was running.
    Terminated,
    /// The manager was killed while it stopped.
    Killed(String),
    /// The manager ends soon after every start, and the box has never served.
    Hopeless(String),
}

/// Options of `holdfast run`.
#[derive(Debug, Default)]
pub struct Options {
    /// The configuration; if `None`, it is fetched from the host to join.
    pub file: Option<PathBuf>,
    /// The host to join.
    pub join: Option<Endpoint>,
    /// The path of the control socket.
    pub control: Option<PathBuf>,
    /// The files of the control API that override the configuration's.
    pub tls: Option<TlsPaths>,
    /// The directory that outlives the box; overrides the configuration's.
    pub state: Option<PathBuf>,
    /// The name of this host in the configuration.
    pub host: Option<String>,
}

/// Runs a box until SIGTERM or SIGINT.
///
/// # Errors
/// The reason why it cannot start.
pub fn main(options: Options) -> Result<(), Failure> {
    let Options { file, join: joined, control, tls, state, host } = options;
    let keep_in = |directory: &PathBuf| {
        files::keep_in(directory).map_err(|error| {
            Failure::new(
                exit::of_system(&error),
                format!("the state directory {}: {error}", directory.display()),
            )
        })
    };
    state.iter().try_for_each(keep_in)?;
    let file = match (file, &joined, &tls, &host) {
        (Some(file), ..) => file,
        (None, Some(endpoint), Some(tls), Some(host)) => {
            join::join(endpoint, tls, host, state.as_deref())?
        }
        _ => {
            return Err(Failure::new(
                exit::USAGE,
                "a configuration file, or `--join ADDRESS --host NAME --tls DIR`",
            ));
        }
    };
    let text = files::open(&file).and_then(io::read_to_string).map_err(|error| {
        Failure::new(exit::CONFIGURATION, format!("{}: {error}", file.display()))
    })?;
    let name = file.display().to_string();
    let mistake = |mistake: config::Mistake| Failure::new(exit::CONFIGURATION, mistake.to_string());
    let text = config::attach(&name, &text).map_err(mistake)?;
    let plan = config::read(&name, &text).map_err(mistake)?;
    let host = plan
        .host(host.as_deref())
        .map_err(|message| Failure::new(exit::CONFIGURATION, format!("{name}: {message}")))?;
    let keys = plan.read_keys().map_err(mistake)?;
    let has_ports = plan.hosts.get(usize::from(host)).is_none_or(|host| host.has_ports);
    let bfd_keys = if has_ports { plan.read_bfd_keys().map_err(mistake)? } else { Vec::new() };
    match (&tls, &plan.control) {
        (Some(tls), Some(_)) => {
            let wrong =
                |message: String| Failure::new(exit::CONFIGURATION, format!("--tls: {message}"));
            Identity::load(tls).map(drop).map_err(wrong)?;
        }
        (None, Some(_)) => plan.read_identity().map(drop).map_err(mistake)?,
        (Some(_), None) if joined.is_none() => {
            let text = format!(
                "{name}: `--tls` is for the control API, and there is no section `control`"
            );
            return Err(Failure::new(exit::CONFIGURATION, text));
        }
        (_, None) => {}
    }
    let state = state.or_else(|| plan.state.clone());
    state.iter().try_for_each(keep_in)?;
    let base = match (plan.hosts.get(usize::from(host)), &state) {
        (Some(entry), Some(directory)) => {
            base(directory, &plan.cluster, &entry.name).map_err(|error| {
                Failure::new(
                    exit::UNAVAILABLE,
                    format!("the state directory {}: {error}", directory.display()),
                )
            })?
        }
        _ => 0,
    };
    let signals = Signals::watch()
        .map_err(|error| Failure::new(exit::UNAVAILABLE, format!("signals: {error}")))?;
    process::adopt_orphans()
        .map_err(|error| Failure::new(exit::UNAVAILABLE, format!("orphans: {error}")))?;
    let control = control.unwrap_or_else(|| default_path(&plan.cluster));
    let notes = ManagerNotes::create(plan.switches.len() + plan.bfd.len()).map_err(|error| {
        Failure::new(exit::UNAVAILABLE, format!("memory for the manager's notes: {error}"))
    })?;
    let directory = control
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty() && !directory.exists());
    let made_directory = directory.map(Path::to_owned);
    let place = format!("{}: ", control.display());
    let refused =
        |error: io::Error| Failure::new(exit::of_system(&error), format!("{place}{error}"));
    // The manager reports a directory that cannot be made.
    let _ = control::make_directory(&control);
    if let Some(directory) = control.parent().filter(|directory| directory.is_dir()) {
        files::reach(directory).map_err(refused)?;
    }
    let lock = match control::Lock::take_for_all(&control, || signals.stop.load(Ordering::Relaxed))
    {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(refused(error)),
        taken => taken.ok().flatten(),
    };
    let mut guard = HostGuard {
        clock: Clock::new(),
        incarnation: 0,
        seed: random_seed(),
        host,
        file: name,
        text,
        keys,
        bfd_keys,
        state,
        control,
        tls,
        arena: Vec::new(),
        notes,
        base,
        coordinators: base,
        children: Vec::new(),
        buried: VecDeque::new(),
        has_served: false,
        restarts: Restarts::new(LONG_INCARNATION_OF_MANAGER),
        cause: String::new(),
    };
    let has_dpdk = plan.ports.iter().any(|port| port.device.starts_with("dpdk:"));
    privileges::keep_for_ports(has_dpdk).map_err(|error| {
        Failure::new(
            exit::of_system(&error),
            format!("giving up privileges that a box does not need: {error}"),
        )
    })?;
    let end = guard.run(&signals);
    for child in guard.children.drain(..) {
        child.process.finish();
    }
    // A killed manager could not remove its socket, nor know that an earlier one made the
    // directory.
    if !matches!(end, Ok(End::Exited(_))) {
        control::tidy(&guard.control);
        if guard.state.is_none() {
            let _ = std::fs::remove_file(super::coordinator_guard::temporary_log(&guard.control));
        }
    }
    drop(lock);
    if let Some(directory) = made_directory {
        let _ = std::fs::remove_dir(directory);
    }
    match end {
        Ok(End::Exited(0) | End::Terminated) => Ok(()),
        Ok(End::Exited(code)) => Err(Failure::said(code)),
        Ok(End::Killed(cause)) => Err(Failure::new(
            exit::SOFTWARE,
            format!("the manager was ended while it stopped ({cause}); nothing is left of the box"),
        )),
        Ok(End::Hopeless(cause)) => Err(Failure::new(
            exit::SOFTWARE,
            format!("the manager ends as soon as it starts ({cause}): the box cannot begin"),
        )),
        Err(error) => {
            Err(Failure::new(exit::UNAVAILABLE, format!("starting the manager: {error}")))
        }
    }
}

/// The offset of a host's incarnations, among several hosts: others remember those of its
/// earlier runs, and this is higher. The offset is the wall clock's second, and higher
/// than the one in the state directory, in case the clock went back or the host was
/// quick. After the first few, incarnations follow each other no faster than seconds
/// ([`LONG_INCARNATION_OF_MANAGER`]).
fn base(directory: &Path, cluster: &str, host: &str) -> io::Result<u32> {
    const STEP: u32 = 16;
    let path = directory.join(format!("{cluster}.{host}.incarnation"));
    let last = match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: not a number", path.display()))
        })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let base = since.map_or(0, |since| since.as_secs() as u32).max(u32::saturating_add(last, STEP));
    let new = path.with_extension("new");
    let mut file = std::fs::File::create(&new)?;
    writeln!(file, "{base}")?;
    file.sync_all()?;
    std::fs::rename(&new, &path)?;
    Ok(base)
}

/// Signals that have come, with a descriptor that they make readable.
struct Signals {
    stop: Arc<AtomicBool>,
    hangup: Arc<AtomicBool>,
    woken: UnixStream,
}

impl Signals {
    fn watch() -> io::Result<Signals> {
        let (stop, hangup) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (woken, waker) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        for (signal, flag) in [(SIGTERM, &stop), (SIGINT, &stop), (SIGHUP, &hangup)] {
            signal_hook::flag::register(signal, flag.clone())?;
            signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
        }
        Ok(Signals { stop, hangup, woken })
    }

    fn drain(&self) {
        let mut bytes = [0; 64];
        while rustix::io::read(&self.woken, &mut bytes).is_ok_and(|count| count > 0) {}
    }
}

/// Writes a line to a new process, on a thread of its own: a pipe takes only so much
/// before it is read.
fn write_line(stdin: OwnedFd, line: Zeroizing<Vec<u8>>) -> io::Result<()> {
    let writing = move || {
        let mut stdin = std::fs::File::from(stdin);
        let mut rest = line.as_slice();
        // The death of a process shows in its descriptor; an unread line is no further
        // news.
        while !rest.is_empty() {
            match stdin.write(rest) {
                Ok(count) => rest = &rest[count..],
                // The manager has made the pipe non-blocking, for later lines.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let _ = rustix::event::poll(&mut [PollFd::new(&stdin, PollFlags::OUT)], None);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    };
    std::thread::Builder::new().name("line".to_owned()).spawn(writing).map(drop)
}

impl HostGuard {
    fn run(&mut self, signals: &Signals) -> io::Result<End> {
        loop {
            self.restarts.begun(self.clock.now());
            let cause = match self.begin() {
                Ok(mut present) => {
                    let status = self.watch(&mut present, signals)?;
                    let is_stopping = signals.stop.load(Ordering::Relaxed);
                    // Requests that the manager sent before it died are still valid.
                    self.hear(&mut present);
                    let cause = reports::cause(status);
                    control::tidy_after(&self.control, present.process.pid());
                    match status.code() {
                        Some(0) => return Ok(End::Exited(0)),
                        // The manager's error ends a box that has not served yet or is
                        // stopping. A box that serves has flows to lose, so its manager
                        // is restarted instead.
                        Some(code)
                            if (is_stopping || !self.has_served)
                                && code != PANICKED
                                && code != i32::from(exit::SOFTWARE) =>
                        {
                            return Ok(End::Exited(code as u8));
                        }
                        // SIGTERM arrived before the manager handled it: the box ends as
                        // requested.
                        _ if is_stopping && status.signal() == Some(SIGTERM) => {
                            return Ok(End::Terminated);
                        }
                        _ if is_stopping => return Ok(End::Killed(cause)),
                        _ => cause,
                    }
                }
                // The box fails if its first manager cannot be started. Later there are
                // flows to lose, and a shortage of some resource may pass: the guard
                // tries again.
                Err(error) if self.incarnation == 1 => return Err(error),
                Err(error) => format!("cannot be started: {error}"),
            };
            let when = self.restarts.ended(self.clock.now());
            self.cause.clone_from(&cause);
            if !self.has_served && self.restarts.is_hopeless() {
                return Ok(End::Hopeless(cause));
            }
            devices::say(&format!(
                "the manager has ended ({cause}): it is started again {when}; runtimes and flows live on"
            ));
            if self.rest(signals) {
                return Ok(End::Terminated);
            }
        }
    }

    /// Waits until the manager's next incarnation is due. True if the box is to end
    /// before.
    fn rest(&mut self, signals: &Signals) -> bool {
        loop {
            if signals.stop.load(Ordering::Relaxed) {
                reports::notify_systemd("STOPPING=1");
                return true;
            }
            let pause = self.restarts.pause(self.clock.now());
            if pause == 0 {
                return false;
            }
            let mut fds: Vec<BorrowedFd<'_>> = vec![signals.woken.as_fd()];
            fds.extend(
                self.children
                    .iter()
                    .filter(|child| child.cause.is_none())
                    .map(|child| child.process.wait_fd()),
            );
            wait::sleep(&fds, pause);
            signals.drain();
            // The next manager learns of ended processes.
            self.look_after_children(None);
        }
    }

    /// Starts the manager's next incarnation.
    fn begin(&mut self) -> io::Result<Present> {
        self.incarnation += 1;
        let (ours, theirs) = Mailbox::pair()?;
        let heartbeat = Heartbeat::create()?;
        let assignment = Assignment {
            incarnation: self.incarnation,
            parent: std::process::id(),
            seed: self.seed,
            host: self.host,
            has_served: self.has_served,
            failures: self.restarts.failures(),
            cause: self.cause.clone(),
            file: self.file.clone(),
            text: self.text.clone(),
            keys: self.keys.as_ref().map(Keys::from),
            bfd_keys: self.bfd_keys.iter().map(|key| key.as_ref().map(BfdKey::from)).collect(),
            control: self.control.clone(),
            tls: self.tls.clone(),
            state: self.state.clone(),
            has_arena: !self.arena.is_empty(),
            base: self.base,
            coordinators: self.coordinators,
            processes: self.children.iter().map(Child::stored).collect(),
            buried: self.buried.iter().copied().collect(),
        };
        let mut fds = vec![theirs.fd(), heartbeat.fd(), self.notes.fd()];
        fds.extend(self.arena.iter().map(AsFd::as_fd));
        for child in &self.children {
            fds.extend(child.port.iter().map(AsFd::as_fd));
            fds.push(child.process.wait_fd());
            fds.extend(child.stdin.as_ref().map(AsFd::as_fd));
        }
        let mut command = process::role("manager");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut process = Watched::start(&mut command, &fds)?;
        let mut line = Zeroizing::new(serde_json::to_vec(&assignment)?);
        line.push(b'\n');
        if let Some(stdin) = process.take_stdin() {
            write_line(stdin.into(), line)?;
        }
        Ok(Present {
            process,
            mailbox: ours,
            is_silent: false,
            heartbeat,
            beats: 0,
            alive_at: self.clock.now(),
        })
    }

    /// Serves an incarnation of the manager until it has ended.
    fn watch(&mut self, present: &mut Present, signals: &Signals) -> io::Result<ExitStatus> {
        let mut was_stopped = false;
        let mut last_look = self.clock.now();
        loop {
            if let Some(status) = present.process.ended() {
                return Ok(status);
            }
            let mut fds: Vec<BorrowedFd<'_>> =
                vec![signals.woken.as_fd(), present.process.wait_fd()];
            fds.extend((!present.is_silent).then(|| present.mailbox.fd()));
            fds.extend(
                self.children
                    .iter()
                    .filter(|child| child.cause.is_none())
                    .map(|child| child.process.wait_fd()),
            );
            wait::sleep(&fds, LOOK_INTERVAL);
            signals.drain();
            if signals.stop.load(Ordering::Relaxed) && !was_stopped {
                was_stopped = true;
                reports::notify_systemd("STOPPING=1");
                present.process.terminate();
            }
            if signals.hangup.swap(false, Ordering::Relaxed) {
                present.process.signal(Signal::HUP);
            }
            self.hear(present);
            self.look_after_children(Some(present));
            let now = self.clock.now();
            // A process that stood still itself could not hear any other.
            if now.saturating_sub(last_look) > TIMEOUT / 2 {
                present.alive_at = now;
            }
            last_look = now;
            let beats = present.heartbeat.count();
            if beats != present.beats {
                (present.beats, present.alive_at) = (beats, now);
            }
            let timeout = match (beats, was_stopped) {
                (0, _) => START_TIMEOUT,
                (_, true) => END_TIMEOUT,
                (_, false) => TIMEOUT,
            };
            if now.saturating_sub(present.alive_at) > timeout {
                present.alive_at = now;
                present.process.kill();
            }
        }
    }

    /// Handles the manager's requests.
    fn hear(&mut self, present: &mut Present) {
        loop {
            let (bytes, fds) = match present.mailbox.receive() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(_) => {
                    present.is_silent = true;
                    break;
                }
            };
            let Ok(message) = serde_json::from_slice(&bytes) else { continue };
            match message {
                ToGuard::Arena => self.arena = fds,
                ToGuard::Start { id, role, node, incarnation, keeps_stdin } => {
                    if node == NodeId::COORDINATOR {
                        self.coordinators = self.coordinators.max(incarnation);
                    }
                    match self.start(id, &role, node, incarnation, keeps_stdin, fds) {
                        Ok(child) => {
                            let mut passed = vec![child.process.wait_fd()];
                            passed.extend(child.stdin.as_ref().map(AsFd::as_fd));
                            present.tell(
                                &FromGuard::Started { id, pid: child.process.pid() },
                                &passed,
                            );
                            self.children.push(child);
                        }
                        Err(error) => {
                            present.tell(&FromGuard::Refused { id, error: error.to_string() }, &[])
                        }
                    }
                }
                ToGuard::Leads { id, incarnation } => {
                    self.coordinators = self.coordinators.max(incarnation);
                    if let Some(child) = self.children.iter_mut().find(|child| child.id == id) {
                        child.incarnation = incarnation;
                    }
                }
                ToGuard::Passed { id, pid } => {
                    if let Some(child) = self.children.iter_mut().find(|child| child.id == id)
                        && let Some(pidfd) = fds.into_iter().next()
                    {
                        child.process.pass_to(pid, pidfd);
                        child.cause = None;
                    }
                }
                ToGuard::Buried { id, last } => self.bury(id, last),
                ToGuard::Ready { line } => {
                    if !core::mem::replace(&mut self.has_served, true) {
                        let mut stdout = io::stdout();
                        let _ = writeln!(stdout, "{line}");
                        let _ = stdout.flush();
                        reports::notify_systemd("READY=1");
                    }
                }
                ToGuard::Text => {
                    let text = fds.into_iter().next().and_then(|fd| read_memory(fd).ok());
                    if let Some(text) = text.and_then(|text| String::from_utf8(text.to_vec()).ok())
                    {
                        self.text = text;
                    }
                }
                ToGuard::Keys => {
                    let keys = fds.into_iter().next().and_then(|fd| read_memory(fd).ok());
                    if let Some(keys) =
                        keys.and_then(|keys| serde_json::from_slice::<Keys>(&keys).ok())
                    {
                        self.keys = keys.ring().ok();
                    }
                }
                ToGuard::BfdKeys => {
                    let keys = fds.into_iter().next().and_then(|fd| read_memory(fd).ok());
                    if let Some(keys) = keys
                        .and_then(|keys| serde_json::from_slice::<Vec<Option<BfdKey>>>(&keys).ok())
                    {
                        self.bfd_keys =
                            keys.iter().map(|key| key.as_ref().and_then(BfdKey::key)).collect();
                    }
                }
            }
        }
        present.mailbox.flush();
    }

    /// Notes a buried runtime with its last message. The manager has told the
    /// coordinator, but both may die before the coordinator keeps it.
    fn bury(&mut self, id: u16, last: Option<u64>) {
        for Child { node, incarnation, .. } in self.children.extract_if(.., |child| child.id == id)
        {
            if node.is_runtime() {
                self.buried.push_back(Buried { node, incarnation, last });
            }
        }
        while self.buried.len() > ENDS_KEPT {
            self.buried.pop_front();
        }
    }

    fn start(
        &self,
        id: u16,
        role: &str,
        node: NodeId,
        incarnation: u32,
        keeps_stdin: bool,
        fds: Vec<OwnedFd>,
    ) -> io::Result<Child> {
        let missing = || io::Error::new(io::ErrorKind::InvalidData, "descriptors are missing");
        let mut fds = fds.into_iter();
        let line = read_memory(fds.next().ok_or_else(missing)?)?;
        let port: Vec<OwnedFd> = fds.collect();
        let (Some(arena), [rings, wake_host, wake_guest]) = (self.arena.first(), port.as_slice())
        else {
            return Err(missing());
        };
        let mut command = process::role(role);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let passed = [arena.as_fd(), rings.as_fd(), wake_host.as_fd(), wake_guest.as_fd()];
        let mut process = Watched::start(&mut command, &passed)?;
        let stdin: Option<ChildStdin> = process.take_stdin();
        let stdin = stdin.map(OwnedFd::from);
        let kept = stdin.as_ref().filter(|_| keeps_stdin).and_then(|stdin| stdin.try_clone().ok());
        if let Some(stdin) = stdin
            && let Err(error) = write_line(stdin, line)
        {
            process.finish();
            return Err(error);
        }
        Ok(Child { id, node, incarnation, process, stdin: kept, port, cause: None })
    }

    /// Reports to the manager, if it runs, which processes have ended and why. The entry
    /// of an ended process is kept until a manager, this one or the next, has buried it.
    fn look_after_children(&mut self, mut present: Option<&mut Present>) {
        for child in &mut self.children {
            if child.cause.is_none()
                && let Some(status) = child.process.ended()
            {
                let cause = reports::cause(status);
                child.cause = Some(cause.clone());
                if let Some(present) = &mut present {
                    present.tell(
                        &FromGuard::Ended { id: child.id, pid: child.process.pid(), cause },
                        &[],
                    );
                }
            }
        }
        let manager = present.map(|present| present.process.pid());
        process::bury_orphans(|pid| {
            manager == Some(pid) || self.children.iter().any(|child| child.process.pid() == pid)
        });
    }
}

impl Child {
    fn stored(&self) -> Stored {
        Stored {
            id: self.id,
            node: self.node,
            incarnation: self.incarnation,
            pid: self.process.pid(),
            group: self.process.group(),
            keeps_stdin: self.stdin.is_some(),
            cause: self.cause.clone(),
        }
    }
}

impl Present {
    fn tell(&mut self, message: &FromGuard, fds: &[BorrowedFd<'_>]) {
        // Without free descriptors this manager does not learn of it; the next one does.
        let _ = serde_json::to_vec(message).map(|bytes| self.mailbox.send(&bytes, fds));
    }
}
