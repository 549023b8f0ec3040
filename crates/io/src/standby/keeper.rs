//! The keeper of a worker and its standby, and the keeper's deputy.
//!
//! Theory of operation. The keeper starts processes, learns of their ends, and kills a
//! worker that hangs; no process waits for it. To survive its own death it forks a
//! *deputy*, which sleeps until the keeper ends. At the keeper's end its children are
//! adopted by the *starter*, the process that had started it
//! ([`crate::process::adopt_orphans`]). The deputy becomes the keeper, finds worker and
//! standby in the shared words, and forks a deputy of its own. If another process adopts
//! the children, the starter and everything that they work for are dead: they end.

use super::{Pair, SHARED, Shared, Turns, log, takeover};
use crate::process::{self, Stall};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Exit code of a standby that cannot take over, and of a process whose starter is dead.
pub(super) const NO_WAY_BACK: i32 = 3;
/// Signal by which the kernel reports the parent's end.
const PARENT_ENDED: Signal = Signal::USR2;

/// The process that started the first keeper. The starter adopts the children of a keeper
/// that ends.
static STARTER: AtomicU32 = AtomicU32::new(0);

/// The detection of a worker that hangs.
#[derive(Clone, Copy)]
pub struct Watch {
    /// The worker's turns, also those without work.
    pub beats: &'static AtomicU64,
    /// Time-out of a turn. A worker that has not turned for so long is killed if it was
    /// stopped, sleeps, or has had a processor for half of that time. A worker that waits
    /// for a processor does not hang.
    pub timeout: Duration,
}

/// The last observation of the worker.
struct Seen {
    beats: u64,
    since: Instant,
    stall: Stall,
}

impl Seen {
    fn now(beats: u64) -> Seen {
        Seen { beats, since: Instant::now(), stall: Stall::default() }
    }
}

impl Watch {
    /// Waits until a child may have ended; meanwhile kills a worker that hangs.
    fn wait(&self, pair: Pair, seen: &mut Seen) {
        let look = (self.timeout / 8).clamp(Duration::from_millis(5), Duration::from_millis(100));
        // SAFETY: a set of signals on this stack, and a time; the signal is blocked, so
        // that it stays until it is waited for.
        unsafe {
            let mut signals = core::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&mut signals);
            libc::sigaddset(&mut signals, libc::SIGCHLD);
            let timeout = libc::timespec { tv_sec: 0, tv_nsec: look.as_nanos() as i64 };
            libc::sigtimedwait(&signals, core::ptr::null_mut(), &timeout);
        }
        let beats = self.beats.load(Ordering::Relaxed);
        if beats != seen.beats {
            *seen = Seen::now(beats);
            return;
        }
        let Some(worker) = Pid::from_raw(pair.worker.load(Ordering::Relaxed) as i32) else {
            return;
        };
        let enough = self.timeout.as_nanos() as u64 / 2;
        let Some(waits) = seen.stall.waits(number(worker), beats, enough) else { return };
        if !waits && seen.since.elapsed() >= self.timeout {
            // The in-flight packet may be why it hangs: the next worker takes packets one
            // by one.
            log::note_crash();
            let _ = rustix::process::kill_process(worker, Signal::KILL);
            *seen = Seen::now(beats);
        }
    }
}

/// Blocks SIGCHLD: the end of a child stays pending until [`Watch::wait`] waits for it.
fn block_child_signal() {
    // SAFETY: a set of signals on this stack.
    unsafe {
        let mut signals = core::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut signals);
        libc::sigaddset(&mut signals, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, core::ptr::null_mut());
    }
}

pub(super) fn parent() -> u32 {
    rustix::process::getppid().map_or(0, number)
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get() as u32
}

/// Makes sure that a process that outlives the keeper is adopted by the starter and ends
/// with it, or else ends at once.
fn watch_parent() -> io::Result<()> {
    extern "C" fn on_end(_: i32) {
        let is_adopted = || parent() == STARTER.load(Ordering::Relaxed);
        let follow =
            || rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
        if !is_adopted() || !follow() || !is_adopted() {
            // SAFETY: ends the process, as a handler may.
            unsafe { libc::_exit(NO_WAY_BACK) }
        }
    }
    STARTER.store(parent(), Ordering::Relaxed);
    // SAFETY: the handler only makes system calls that a handler may make, and reads a
    // word.
    unsafe {
        let mut action = core::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = on_end as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        match libc::sigaction(PARENT_ENDED.as_raw(), &action, core::ptr::null_mut()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// A process under a keeper, this one or the one before it.
#[derive(Clone, Copy)]
struct Member {
    pid: Pid,
    /// True for a child of this very keeper, which can read its exit status.
    is_child: bool,
}

impl Member {
    fn child(pid: Pid) -> Member {
        Member { pid, is_child: true }
    }

    /// A process that the previous keeper started, from the shared word for its id.
    fn found(word: &AtomicU32) -> Option<Member> {
        Pid::from_raw(word.load(Ordering::SeqCst) as i32).map(|pid| Member { pid, is_child: false })
    }

    /// `Some` if the process has ended, with its exit status if known. A child's status
    /// can be read only once.
    fn ended(self) -> Option<Option<WaitStatus>> {
        if !self.is_child {
            return (!process::lives(number(self.pid))).then_some(None);
        }
        match rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => Some(Some(status)),
            Ok(None) | Err(rustix::io::Errno::INTR) => None,
            Err(_) => Some(None),
        }
    }

    fn end(self) {
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
        if self.is_child {
            let _ = rustix::process::waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}

/// Forgets a process that has ended, and clears the shared word for its id.
fn forget_ended(member: &mut Option<Member>, word: &AtomicU32) {
    if let Some(Member { pid, .. }) = member.take_if(|member| member.ended().is_some()) {
        let _ = word.compare_exchange(number(pid), 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}

/// Runs `work` in a process with a standby until it returns; this process, which must
/// have one thread, then returns its result. If the worker ends in another way and no
/// standby can go on, this process ends as the worker did. If this process is killed, its
/// deputy goes on, and returns from here in its place. Call it once, after
/// [`create`](super::create).
///
/// # Errors
/// The kernel's error, if it refuses the first process.
pub fn supervise(pair: Pair, watch: Watch, mut work: impl FnMut(Turns) -> i32) -> io::Result<i32> {
    let shared = Shared::create(pair)?;
    let shared = SHARED.get_or_init(|| shared);
    block_child_signal();
    watch_parent()?;
    let worker = Member::child(start(shared, &mut work)?);
    let mut keeper = Keeper { shared, watch, worker, standby: None, deputy: None };
    let result = keeper.keep(&mut work);
    keeper.end_all();
    result
}

/// A keeper; see the module.
struct Keeper {
    shared: &'static Shared,
    watch: Watch,
    worker: Member,
    standby: Option<Member>,
    deputy: Option<Member>,
}

impl Keeper {
    fn keep(&mut self, work: &mut impl FnMut(Turns) -> i32) -> io::Result<i32> {
        let pair = self.shared.pair;
        pair.keeper.store(std::process::id(), Ordering::SeqCst);
        let mut seen = Seen::now(0);
        loop {
            if pair.worker.load(Ordering::Acquire) != 0 {
                // If a fork fails the worker goes on, and the loop tries again a little
                // later.
                if self.standby.is_none() {
                    self.standby = start(self.shared, work).ok().map(Member::child);
                }
                if self.deputy.is_none() && self.deputise() {
                    seen = Seen::now(0);
                    continue;
                }
            }
            if let Some(status) = self.worker_ended() {
                if let Some(code) =
                    status.and_then(WaitStatus::exit_status).or_else(|| self.shared.code())
                {
                    return Ok(code);
                }
                self.follow(status, work)?;
                continue;
            }
            forget_ended(&mut self.standby, pair.standby);
            forget_ended(&mut self.deputy, pair.deputy);
            if pair.worker.load(Ordering::Acquire) == 0 {
                crate::wait::sleep(&[], 100_000);
            } else {
                self.watch.wait(pair, &mut seen);
            }
        }
    }

    /// `Some` if the worker has ended, with its status if known.
    fn worker_ended(&self) -> Option<Option<WaitStatus>> {
        let is_replaced = self.shared.pair.worker.load(Ordering::SeqCst) != number(self.worker.pid);
        if !self.worker.is_child && is_replaced { Some(None) } else { self.worker.ended() }
    }

    /// Follows the end of the worker. Its heir is the standby, or a new process without
    /// one. Waits until the heir works. If the heir refuses because it cannot take over,
    /// this process ends as the worker did.
    fn follow(
        &mut self,
        status: Option<WaitStatus>,
        work: &mut impl FnMut(Turns) -> i32,
    ) -> io::Result<()> {
        let last = core::mem::replace(
            &mut self.worker,
            match self.standby.take() {
                Some(standby) => standby,
                None => Member::child(start(self.shared, work)?),
            },
        );
        loop {
            match self.shared.pair.worker.load(Ordering::Acquire) {
                now if now == number(self.worker.pid) => return Ok(()),
                // A standby that the previous keeper started became the worker: the heir
                // is the standby now.
                now if now != number(last.pid) && process::lives(now) => {
                    let other = Member::found(self.shared.pair.worker).unwrap_or(last);
                    self.standby = Some(core::mem::replace(&mut self.worker, other));
                    return Ok(());
                }
                _ => {}
            }
            match self.worker.has_refused() {
                Some(true) => {
                    self.end_all();
                    end_as(status)
                }
                // The heir has ended in another way: the keeper's loop finds that.
                Some(false) => return Ok(()),
                None => crate::wait::sleep(&[], 50_000),
            }
        }
    }

    /// Forks a deputy. Returns true in the deputy, once it has become the keeper.
    fn deputise(&mut self) -> bool {
        let keeper = rustix::process::getpid();
        // SAFETY: this process has one thread, so the child has all that there is.
        match unsafe { libc::fork() } {
            0 => {
                self.succeed(keeper);
                true
            }
            // The kernel has no room for another process.
            ..0 => false,
            pid => {
                self.shared.pair.deputy.store(pid as u32, Ordering::SeqCst);
                self.deputy = Pid::from_raw(pid).map(Member::child);
                false
            }
        }
    }

    /// Waits for the end of this keeper, and takes its place.
    fn succeed(&mut self, keeper: Pid) {
        let pair = self.shared.pair;
        let pidfd = rustix::process::pidfd_open(keeper, PidfdFlags::empty()).ok();
        while parent() == number(keeper) {
            match &pidfd {
                Some(pidfd) => crate::wait::sleep(&[rustix::fd::AsFd::as_fd(pidfd)], u64::MAX),
                None => crate::wait::sleep(&[], 10_000_000),
            }
        }
        // Reads the standby's word first: a standby that becomes the worker stores the
        // worker's word before it clears its own.
        self.standby = Member::found(pair.standby);
        if let Some(worker) = Member::found(pair.worker) {
            self.worker = worker;
        }
        self.standby = self.standby.filter(|standby| standby.pid != self.worker.pid);
        self.deputy = None;
        if process::die_with_parent(STARTER.load(Ordering::Relaxed)).is_err() {
            // A stopped process does not handle the signal for its parent's end: kill it.
            self.end_all();
            self.worker.end();
            // SAFETY: ends the process, and leaves alone what was the keeper's.
            unsafe { libc::_exit(NO_WAY_BACK) }
        }
        pair.deputy.store(0, Ordering::SeqCst);
        pair.keeper.store(std::process::id(), Ordering::SeqCst);
    }

    /// Ends every process but the worker. The deputy comes first, because it would take
    /// this process's place.
    fn end_all(&mut self) {
        [self.deputy.take(), self.standby.take()].into_iter().flatten().for_each(Member::end);
    }
}

impl Member {
    /// `Some` if the process has ended, with true if it could not take over. Its exit
    /// status can be read once more.
    fn has_refused(self) -> Option<bool> {
        if !self.is_child {
            return (!process::lives(number(self.pid))).then_some(false);
        }
        let ended = rustix::process::waitid(
            rustix::process::WaitId::Pid(self.pid),
            rustix::process::WaitIdOptions::EXITED
                | rustix::process::WaitIdOptions::NOHANG
                | rustix::process::WaitIdOptions::NOWAIT,
        );
        match ended {
            Ok(Some(end)) => Some(end.exit_status() == Some(NO_WAY_BACK)),
            Ok(None) => None,
            Err(_) => Some(false),
        }
    }
}

impl Shared {
    /// The worker's exit code, if its work is done.
    fn code(&self) -> Option<i32> {
        self.finished.load(Ordering::SeqCst).checked_sub(1).map(|code| code as i32)
    }
}

/// Ends this process in the same way as another one, as far as known.
fn end_as(status: Option<WaitStatus>) -> ! {
    if let Some(signal) = status.and_then(WaitStatus::terminating_signal) {
        // SAFETY: the signal's default action, and the signal itself, which ends this
        // process without running anything more of it.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
    std::process::exit(status.and_then(WaitStatus::exit_status).unwrap_or(1))
}

/// Forks a process that becomes the worker when there is none.
fn start(shared: &'static Shared, work: &mut impl FnMut(Turns) -> i32) -> io::Result<Pid> {
    let keeper = std::process::id();
    // SAFETY: this process has one thread, so the child has all that there is.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let follows =
                rustix::process::set_parent_process_death_signal(Some(PARENT_ENDED)).is_ok();
            let code = if follows && parent() == keeper {
                takeover::stand_by_and_work(shared, keeper, work)
            } else {
                NO_WAY_BACK
            };
            // SAFETY: ends the process, and leaves alone what belongs to the keeper.
            unsafe { libc::_exit(code) }
        }
        pid => Pid::from_raw(pid).ok_or_else(|| io::ErrorKind::Other.into()),
    }
}
