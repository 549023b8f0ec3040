//! Starting and watching processes, and the clock.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::Instant;

/// This program in another of its roles, from the very file that this process was started
/// from. A new build installed at the same path while the box runs is not used.
pub fn role(name: &str) -> Command {
    // In the child, a copy of this process, this path leads to the same file, even if it
    // has no name any more.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("holdfast").arg(name);
    command
}

/// Names the process in lists of processes; after [`role`] its name would be the last
/// part of that path.
pub fn call_itself(name: &std::ffi::CStr) {
    // A failure costs only the name.
    let _ = rustix::thread::set_name(name);
}

/// A process with a descriptor that becomes readable when it ends. Ending it also ends
/// the processes that it started, by their process group.
pub struct Watched {
    pid: u32,
    /// The group of all processes that it makes: its own number, or that of the process
    /// that it replaced.
    group: u32,
    pidfd: OwnedFd,
    /// Set for a process that this one started, not for an adopted one.
    child: Option<Child>,
}

impl Watched {
    /// Another's child, by its descriptor: it can be watched and ended, but only its
    /// parent learns its status.
    pub fn of(pid: u32, group: u32, pidfd: OwnedFd) -> Watched {
        Watched { pid, group, pidfd, child: None }
    }

    /// Goes over to another process of the group that has taken the ended one's place.
    pub fn pass_to(&mut self, pid: u32, pidfd: OwnedFd) {
        // The end was reported: the status is not needed any more.
        self.child = None;
        (self.pid, self.pidfd) = (pid, pidfd);
    }

    /// Starts `command` in a group of its own. The child inherits `fds`, in order; the
    /// environment variable `HOLDFAST_FDS` has their numbers, separated by commas.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn start(command: &mut Command, fds: &[BorrowedFd<'_>]) -> io::Result<Watched> {
        // Copies without close-on-exec live from here to the end of this function: only
        // this child inherits them.
        let mut copies = Vec::with_capacity(fds.len());
        for fd in fds {
            copies.push(rustix::io::dup(fd)?);
        }
        let numbers: Vec<String> = copies.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
        command.env("HOLDFAST_FDS", numbers.join(",")).process_group(0);
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error.into());
            }
        };
        Ok(Watched { pid: child.id(), group: child.id(), pidfd, child: Some(child) })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The number of its group.
    pub fn group(&self) -> u32 {
        self.group
    }

    /// Readable once the process has ended.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// True if it has ended.
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
            .is_ok_and(|count| count > 0)
    }

    /// The exit status, if it has ended and is this process's child, or became it
    /// ([`adopt_orphans`]).
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if let Some(child) = &mut self.child {
            return child.try_wait().ok().flatten();
        }
        if !self.has_ended() {
            return None;
        }
        let pid = Pid::from_raw(self.pid as i32);
        match rustix::process::waitpid(pid, WaitOptions::NOHANG) {
            Ok(Some((_, status))) => Some(ExitStatus::from_raw(status.as_raw())),
            Ok(None) => None,
            // The process is no child of this one, or its status was taken already:
            // report exit code 1.
            Err(_) => Some(ExitStatus::from_raw(1 << 8)),
        }
    }

    /// Its standard input, if it was started with a pipe; once.
    pub fn take_stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.as_mut()?.stdin.take()
    }

    /// Sends a signal; a process that has ended gets none, even if its number was reused.
    pub fn signal(&self, signal: Signal) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, signal);
    }

    /// Ends it at once, with all processes that it has made.
    pub fn kill(&self) {
        self.signal_all(Signal::KILL);
    }

    /// Asks the whole group to end.
    pub fn terminate(&self) {
        self.signal_all(Signal::TERM);
    }

    fn signal_all(&self, signal: Signal) {
        // The group's number is not reused while the process lives.
        if !self.has_ended() {
            self.signal_group(signal);
        }
    }

    /// Ends processes that it has made and that have outlived it. Some must exist: an
    /// empty group's number may be another's.
    pub fn kill_rest(&self) {
        self.signal_group(Signal::KILL);
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(group) = Pid::from_raw(self.group as i32) {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    /// Ends it and waits until it has.
    pub fn finish(mut self) {
        self.kill();
        match &mut self.child {
            Some(child) => drop(child.wait()),
            None => {
                let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
                while rustix::event::poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
            }
        }
    }
}

/// Makes children of this process's children its own when their parents end, for as long
/// as it lives.
///
/// # Errors
/// The kernel's error.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Reaps adopted processes ([`adopt_orphans`]) that have ended. An ended child of its own
/// whose status was not read holds it up.
pub fn bury_orphans(is_own: impl Fn(u32) -> bool) {
    loop {
        // SAFETY: the information, on this stack, is zero before, and its content is read
        // only if the kernel has written it.
        let ended = unsafe {
            let mut information = core::mem::zeroed::<libc::siginfo_t>();
            let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            if libc::waitid(libc::P_ALL, 0, &mut information, options) < 0 {
                0
            } else {
                information.si_pid()
            }
        };
        let Some(pid) = Pid::from_raw(ended).filter(|_| !is_own(ended as u32)) else { return };
        if rustix::process::waitpid(Some(pid), WaitOptions::NOHANG).is_err() {
            return;
        }
    }
}

/// A descriptor of an existing process.
///
/// # Errors
/// The kernel's error.
pub fn open(pid: u32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid as i32).ok_or(io::ErrorKind::NotFound)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// The state of a process in the words of proc_pid_stat(5): `R` is running or waiting for
/// a processor.
fn state(proc: &str, pid: u32) -> Option<char> {
    let text = std::fs::read_to_string(format!("{proc}/{pid}/stat")).ok()?;
    // The state follows the process's name, which may contain any character.
    text.rsplit_once(')')?.1.trim_start().chars().next()
}

/// True if a process with this id exists and has not ended; a zombie has ended. The call
/// uses no `/proc`, which may be mounted so that it hides other users' processes and
/// those that are not dumpable.
pub fn lives(pid: u32) -> bool {
    let Some(pid) = Pid::from_raw(pid as i32) else { return false };
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => {
            let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            !rustix::event::poll(&mut fds, Some(&at_once)).is_ok_and(|count| count > 0)
        }
        // Without free descriptors, for example: it is not known to be gone.
        Err(error) => !matches!(
            error,
            rustix::io::Errno::SRCH | rustix::io::Errno::INVAL | rustix::io::Errno::NOENT
        ),
    }
}

/// The processor time of a process with one thread, ns.
fn processor_time(proc: &str, pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("{proc}/{pid}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Tells a hanging process of one thread from one that only waits, while its loop does
/// not turn. A process hangs if it is stopped, sleeps, or gets a processor and does not
/// turn. A process that gets no processor, or waits for a page of its memory, does not
/// hang. A process that only waits counts as hanging, too, where /proc hides other users'
/// processes and those that are not dumpable (`hidepid`).
#[derive(Debug, Clone, Copy, Default)]
pub struct Stall {
    /// The process's id, and the turns of its loop.
    of: (u32, u64),
    /// Processor time at the first look with this count of turns, ns.
    used: u64,
}

impl Stall {
    /// Looks at a process whose loop has turned `beats` times. Returns true if it only
    /// waits: it has used less than `enough` ns of a processor since the first look with
    /// this count. Returns `None` if the process does not exist.
    pub fn waits(&mut self, pid: u32, beats: u64, enough: u64) -> Option<bool> {
        self.waits_by("/proc", pid, beats, enough)
    }

    fn waits_by(&mut self, proc: &str, pid: u32, beats: u64, enough: u64) -> Option<bool> {
        let (Some(used), Some(state)) = (processor_time(proc, pid), state(proc, pid)) else {
            return lives(pid).then_some(false);
        };
        if self.of != (pid, beats) {
            *self = Stall { of: (pid, beats), used };
        }
        Some(matches!(state, 'R' | 'D') && used.saturating_sub(self.used) < enough)
    }
}

fn by_hand() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "this role is started by `holdfast run`, not by hand",
    )
}

/// The descriptors that [`Watched::start`] passed, taken out of the environment. Call it
/// once, at the start.
///
/// # Errors
/// `InvalidData` if there are not exactly `count`.
pub fn inherited(count: usize) -> io::Result<Vec<OwnedFd>> {
    let fds = inherited_all()?;
    if fds.len() == count { Ok(fds) } else { Err(by_hand()) }
}

/// As [`inherited`], for any number of descriptors.
///
/// # Errors
/// `InvalidData` if there are none.
pub fn inherited_all() -> io::Result<Vec<OwnedFd>> {
    let text = std::env::var("HOLDFAST_FDS").map_err(|_| by_hand())?;
    let numbers: Vec<i32> = text.split(',').map(|number| number.parse().unwrap_or(-1)).collect();
    if numbers.iter().enumerate().any(|(at, number)| *number < 3 || numbers[..at].contains(number))
    {
        return Err(by_hand());
    }
    let mut fds = Vec::with_capacity(numbers.len());
    for number in numbers {
        // SAFETY: fcntl on a number tells whether it is open, without touching memory.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
            return Err(by_hand());
        }
        // SAFETY: the descriptor is open, was passed to this process for this purpose,
        // and is taken once: the variable names each once (see above), and this is called
        // once, at the start.
        fds.push(unsafe { <OwnedFd as rustix::fd::FromRawFd>::from_raw_fd(number) });
    }
    Ok(fds)
}

/// Makes the kernel end this process when its parent ends, and checks that the parent has
/// not ended already.
///
/// # Errors
/// The kernel's error; `NotConnected` if the parent is gone.
pub fn die_with_parent(parent: u32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    match rustix::process::getppid() {
        Some(pid) if pid.as_raw_nonzero().get() as u32 == parent => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::NotConnected, "the parent has ended")),
    }
}

/// Monotonic time, ns; never 0.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    offset: u64,
}

impl Clock {
    /// A clock common to all processes of this host: CLOCK_MONOTONIC.
    pub fn new() -> Clock {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Clock {
            start: Instant::now(),
            offset: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 + 1,
        }
    }

    /// The time now, ns.
    #[inline]
    pub fn now(&self) -> u64 {
        self.offset + self.start.elapsed().as_nanos() as u64
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

/// This thread's processor time, ns. A system call: not for every packet.
pub fn thread_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: &str = "HOLDFAST_PROCESS_TEST";

    /// The file is replaced while a process runs: the process starts its own build, not
    /// the new file.
    #[test]
    fn another_build_at_the_same_path_is_not_started() {
        match std::env::var(ROLE).as_deref() {
            Ok("parent") => {
                let own = std::env::current_exe().unwrap();
                let other = own.with_extension("other");
                std::fs::copy("/bin/false", &other).unwrap();
                std::fs::rename(&other, &own).unwrap();
                assert!(
                    !Command::new(&own).status().unwrap().success(),
                    "another build lies there"
                );
                let arguments = [
                    "process::tests::another_build_at_the_same_path_is_not_started",
                    "--exact",
                    "--nocapture",
                ];
                let mut child = role("--test-threads=1");
                let status = child.args(arguments).env(ROLE, "child").status().unwrap();
                std::process::exit(status.code().unwrap_or(1));
            }
            Ok(_) => {
                assert!(std::fs::read_link("/proc/self/exe").unwrap().ends_with("first (deleted)"));
                std::process::exit(0);
            }
            Err(_) => {}
        }
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("first");
        std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        let arguments = [
            "process::tests::another_build_at_the_same_path_is_not_started",
            "--exact",
            "--nocapture",
        ];
        let output = Command::new(&copy).args(arguments).env(ROLE, "parent").output().unwrap();
        assert!(
            output.status.success(),
            "{}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn start(program: &str, arguments: &[&str]) -> Child {
        Command::new(program).args(arguments).spawn().expect("the program is there")
    }

    fn wait_for(mut is_so: impl FnMut() -> bool) {
        while !is_so() {
            crate::wait::sleep(&[], 1_000_000);
        }
    }

    /// A process that loops without a turn counts as waiting for a processor until it has
    /// used enough of one. A process that sleeps or is stopped hangs.
    #[test]
    fn who_gets_no_processor_does_not_hang() {
        const ENOUGH: u64 = 50_000_000;
        let [mut looping, mut sleeping] =
            [start("sh", &["-c", "while :; do :; done"]), start("sleep", &["1000"])];
        let (mut stall, mut other) = (Stall::default(), Stall::default());
        wait_for(|| state("/proc", looping.id()) == Some('R'));
        assert_eq!(
            stall.waits(looping.id(), 7, ENOUGH),
            Some(true),
            "it has had none since it turned"
        );
        wait_for(|| stall.waits(looping.id(), 7, ENOUGH) == Some(false));
        assert_eq!(stall.waits(looping.id(), 7, u64::MAX), Some(true));
        assert_eq!(
            stall.waits(looping.id(), 8, ENOUGH),
            Some(true),
            "it has turned, and begins anew"
        );
        wait_for(|| other.waits(sleeping.id(), 0, ENOUGH) == Some(false));
        rustix::process::kill_process(Pid::from_child(&looping), Signal::STOP)
            .expect("it is there");
        wait_for(|| stall.waits(looping.id(), 8, u64::MAX) == Some(false));
        for process in [&mut looping, &mut sleeping] {
            process.kill().and_then(|()| process.wait()).expect("it is there");
        }
        assert_eq!(stall.waits(looping.id(), 8, ENOUGH), None);
    }

    /// A process that does not turn counts as hanging if /proc shows nothing of it:
    /// otherwise it would never be ended.
    #[test]
    fn a_process_that_is_hidden_does_not_hang_unnoticed() {
        let hidden = tempfile::tempdir().unwrap();
        let proc = hidden.path().to_str().expect("a path of the test's");
        let mut sleeping = start("sleep", &["1000"]);
        let mut stall = Stall::default();
        assert_eq!(stall.waits_by(proc, sleeping.id(), 0, 1), Some(false));
        sleeping.kill().and_then(|()| sleeping.wait()).expect("it is there");
        assert_eq!(stall.waits_by(proc, sleeping.id(), 0, 1), None);
    }
}
