//! A worker that outlives its process: its state lies in memory that a second process has too, and that one goes on where the first one was killed.
//!
//! Theory of operation. One process, the *keeper*, makes the state in a heap of its own ([`heap`]) and then only starts the others and learns of their ends: the *worker*, which takes turns,
//! and the *standby*, which sleeps. Both are made of the keeper, so that everything lies at the same addresses; neither ever makes a process. The worker holds a lock in
//! shared memory for as long as it lives. When it ends, however it does, the kernel passes the lock on, before it does anything else for the dead: the standby wakes up,
//! undoes the turn that was not finished ([`log`]), and goes on with the next. To everybody else nothing has happened: rings are moved when a turn has been
//! committed ([`crate::VportGuest::publish`]), so what came in comes once more, and nothing that the undone turn made was ever seen. Then the keeper makes another standby.
//!
//! If worker and standby die together, the keeper makes another process, which finds everything as the standby would have. What has no way back ends with its worker, and then the
//! keeper ends as the worker did: a turn that changed more than the log holds, and a turn that one worker after the other does not finish.
//!
//! REINFORCE, sections III-C and IV-D: there the state is copied at the end of each batch, and the manager wakes the standby.

mod heap;
mod log;
#[cfg(test)]
mod tests;
mod warm;

pub use heap::enter;
pub(crate) use heap::{allocate, allocate_zeroed, free, is_inside, outside, owns};

use crate::process::Stall;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const AT_LOCK: usize = log::AT_OTHERS;
const LOCK_LEN: usize = 64;
const AT_STRIKES: usize = AT_LOCK + LOCK_LEN;
const AT_FINISHED: usize = AT_STRIKES + 4;
const AT_SUSPECT: usize = AT_STRIKES + 8;

/// Workers that may end one after the other without finishing a turn.
const MAX_STRIKES: u32 = 8;
/// Exit code of a standby that cannot take over.
const NO_WAY_BACK: i32 = 3;

/// Who works, who stands by, and how often a standby has become the worker. In memory that others may look at.
#[derive(Clone, Copy)]
pub struct Pair {
    /// The process that works, 0 before there is one.
    pub worker: &'static AtomicU32,
    /// The process of a standby that can take over, 0 for none.
    pub standby: &'static AtomicU32,
    /// Standbys that have become the worker.
    pub takeovers: &'static AtomicU32,
}

/// What the three processes share besides the state.
struct Shared {
    lock: *mut libc::pthread_mutex_t,
    pair: Pair,
    /// Workers that have ended since a turn was finished.
    strikes: &'static AtomicU32,
    /// The worker has ended because its work was done.
    finished: &'static AtomicU32,
    /// A careful turn is under way.
    suspect: &'static AtomicU32,
}

// SAFETY: the pointer is to a lock in shared memory, which is made to be used by several processes.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

static SHARED: OnceLock<Shared> = OnceLock::new();

fn check(code: i32) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

impl Shared {
    fn create(pair: Pair) -> io::Result<Shared> {
        let memory = log::memory().ok_or(io::ErrorKind::NotFound)?;
        let lock = (memory.address() + AT_LOCK) as *mut libc::pthread_mutex_t;
        const { assert!(size_of::<libc::pthread_mutex_t>() <= LOCK_LEN) };
        // SAFETY: the lock lies in the mapping, aligned, and nobody uses it yet; attributes live on this stack until they are destroyed.
        unsafe {
            let mut attributes = core::mem::zeroed::<libc::pthread_mutexattr_t>();
            check(libc::pthread_mutexattr_init(&mut attributes))?;
            check(libc::pthread_mutexattr_setpshared(&mut attributes, libc::PTHREAD_PROCESS_SHARED))?;
            check(libc::pthread_mutexattr_setrobust(&mut attributes, libc::PTHREAD_MUTEX_ROBUST))?;
            check(libc::pthread_mutex_init(lock, &attributes))?;
            check(libc::pthread_mutexattr_destroy(&mut attributes))?;
        }
        Ok(Shared {
            lock,
            pair,
            strikes: memory.word32(AT_STRIKES),
            finished: memory.word32(AT_FINISHED),
            suspect: memory.word32(AT_SUSPECT),
        })
    }

    /// Waits until the worker is no more, or for nobody if there was none yet. True if there was one that died.
    fn wait(&self) -> io::Result<bool> {
        // SAFETY: the lock was made before the processes parted, and nobody destroys it. It is held until the process ends.
        unsafe {
            match libc::pthread_mutex_lock(self.lock) {
                0 => Ok(false),
                libc::EOWNERDEAD => check(libc::pthread_mutex_consistent(self.lock)).map(|()| true),
                code => Err(io::Error::from_raw_os_error(code)),
            }
        }
    }
}

/// The worker's turns: see [`supervise`].
#[derive(Default)]
pub struct Turns {
    takes_over: bool,
    /// Turns that begin before this process stands back: see [`warm::go_first`].
    hasty: u8,
    careful: u32,
    is_poisoned: bool,
}

impl Turns {
    /// The worker before this one has died, and its state is as at the end of its last turn. Told once.
    pub fn takes_over(&mut self) -> bool {
        core::mem::take(&mut self.takes_over)
    }

    /// There is, or may be, somebody to take over: beginnings and ends of turns cost something.
    pub fn are_logged(&self) -> bool {
        SHARED.get().is_some()
    }

    /// A turn begins, which takes at most `burst` packets. Returns how many it should take: one, after a worker that ended by what it did itself, until it is
    /// known which packet that was.
    #[inline]
    pub fn begin(&mut self, burst: usize) -> usize {
        let Some(shared) = SHARED.get() else { return burst };
        if self.hasty > 0 {
            self.hasty -= 1;
            if self.hasty == 0 {
                warm::stand_back();
            }
        }
        if !log::is_tracking() {
            log::track();
        }
        log::begin();
        if self.careful == 0 {
            return burst;
        }
        self.careful -= 1;
        shared.suspect.store(1, Ordering::Release);
        1
    }

    /// The turn has ended: what it did holds, and may be shown.
    #[inline]
    pub fn commit(&mut self) {
        let Some(shared) = SHARED.get() else { return };
        log::commit();
        if shared.strikes.load(Ordering::Relaxed) != 0 || shared.suspect.load(Ordering::Relaxed) != 0 {
            shared.strikes.store(0, Ordering::Relaxed);
            shared.suspect.store(0, Ordering::Relaxed);
        }
    }

    /// The next packet has ended two workers, each of which had no other in hand. Told once; nobody should process it.
    pub fn is_poisoned(&mut self) -> bool {
        core::mem::take(&mut self.is_poisoned)
    }
}

/// These bytes of the heap will be announced to [`before`] whenever they change, all of them.
pub fn exempt(bytes: &[u8]) {
    log::exempt(bytes);
}

/// What lies at this address of the heap, so many bytes, means nothing between two turns: it may be anything when one is undone. It stays what it is: a block of a page or more that is given
/// back is not used again.
pub fn scratch(address: usize, len: usize) {
    log::scratch(address, len);
}

/// The number of the turn, after [`create`]. It changes when one begins, and goes on counting when a standby takes over.
pub fn turn() -> Option<&'static AtomicU32> {
    log::turn()
}

/// These bytes, in the heap or in a packet's buffer, are about to change.
#[inline]
pub fn before(bytes: &[u8]) {
    log::before(bytes);
}

/// Makes what the processes share. Once, before [`enter`] makes the state, while this process has one thread.
///
/// # Errors
/// What the kernel says.
pub fn create() -> io::Result<()> {
    heap::create()?;
    log::create()?;
    let probe = enter(|| Box::new(0u64));
    if !heap::contains(core::ptr::from_ref(&*probe) as usize) {
        let text = "this program does not allocate through `holdfast_io::CountingAllocator`, so nobody can share its state";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    watch_faults()
}

/// How it is known that a worker hangs.
#[derive(Clone, Copy)]
pub struct Watch {
    /// Counts the worker's turns, also those without anything to do.
    pub beats: &'static AtomicU64,
    /// A worker that has not taken a turn for so long is killed, if it was stopped, sleeps, or has had the processor for half of that time. One that waits for a
    /// processor does not hang.
    pub patience: Duration,
}

/// What was seen of a worker last.
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
        let look = (self.patience / 8).clamp(Duration::from_millis(5), Duration::from_millis(100));
        // SAFETY: a set of signals on this stack, and a time; the signal is blocked, so that it stays until it is waited for.
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
        let Some(worker) = Pid::from_raw(pair.worker.load(Ordering::Relaxed) as i32) else { return };
        let enough = self.patience.as_nanos() as u64 / 2;
        let Some(waits) = seen.stall.waits(worker.as_raw_nonzero().get() as u32, beats, enough) else { return };
        if !waits && seen.since.elapsed() >= self.patience {
            // Whatever it had in hand may be why.
            log::note_crash();
            let _ = rustix::process::kill_process(worker, Signal::KILL);
            *seen = Seen::now(beats);
        }
    }
}

/// Until it is waited for, the end of a child only waits.
fn block_child_signal() {
    // SAFETY: a set of signals on this stack.
    unsafe {
        let mut signals = core::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut signals);
        libc::sigaddset(&mut signals, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, core::ptr::null_mut());
    }
}

/// Runs `work` in a process that has a standby, until it returns; then this process, which has one thread, returns its result. If the worker ends in another way and
/// no standby can go on, this process ends as the worker did. Once, after [`create`].
///
/// # Errors
/// What the kernel says when it refuses the first process.
pub fn supervise(pair: Pair, watch: Watch, mut work: impl FnMut(Turns) -> i32) -> io::Result<i32> {
    let shared = Shared::create(pair)?;
    let shared = SHARED.get_or_init(|| shared);
    block_child_signal();
    let mut seen = Seen::now(0);
    let mut worker = start(shared, &mut work)?;
    let mut standby = None;
    loop {
        if standby.is_none() && shared.pair.worker.load(Ordering::Acquire) != 0 {
            // Without one the worker goes on alone, and this is tried again a little later.
            standby = start(shared, &mut work).ok();
        }
        let (pid, status) = match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(ended)) => ended,
            Ok(None) if shared.pair.worker.load(Ordering::Acquire) == 0 => {
                crate::wait::sleep(&[], 100_000);
                continue;
            }
            Ok(None) => {
                watch.wait(shared.pair, &mut seen);
                continue;
            }
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if pid == worker {
            match (status.exit_status(), standby.take()) {
                (Some(code), heir) => {
                    heir.into_iter().for_each(end);
                    return Ok(code);
                }
                // It has taken over by now, or it ends because it cannot.
                (None, heir) => {
                    worker = heir.map_or_else(|| start(shared, &mut work), Ok)?;
                    if let Some(status) = refuses(worker, status) {
                        end_as(status);
                    }
                }
            }
        } else if Some(pid) == standby {
            standby = None;
            let number = pid.as_raw_nonzero().get() as u32;
            let _ = shared.pair.standby.compare_exchange(number, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }
}

/// Waits until the heir has begun or has refused to; then how its predecessor ended.
fn refuses(heir: Pid, status: WaitStatus) -> Option<WaitStatus> {
    let shared = SHARED.get()?;
    let number = heir.as_raw_nonzero().get() as u32;
    while shared.pair.worker.load(Ordering::Acquire) != number {
        // Not reaped here: whether it is there, its end is told by the next wait.
        let ended = rustix::process::waitid(
            rustix::process::WaitId::Pid(heir),
            rustix::process::WaitIdOptions::EXITED
                | rustix::process::WaitIdOptions::NOHANG
                | rustix::process::WaitIdOptions::NOWAIT,
        );
        match ended {
            Ok(Some(end)) if end.exit_status() == Some(NO_WAY_BACK) => return Some(status),
            Ok(Some(_)) | Err(_) => return None,
            Ok(None) => crate::wait::sleep(&[], 50_000),
        }
    }
    None
}

fn end(process: Pid) {
    let _ = rustix::process::kill_process(process, Signal::KILL);
    let _ = rustix::process::waitpid(Some(process), WaitOptions::empty());
}

/// Ends this process as another one ended.
fn end_as(status: WaitStatus) -> ! {
    if let Some(signal) = status.terminating_signal() {
        // SAFETY: the signal's default action, and the signal itself, which ends this process without running anything more of it.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
    std::process::exit(status.exit_status().unwrap_or(1))
}

/// Makes a process that becomes the worker when there is none.
fn start(shared: &'static Shared, work: &mut impl FnMut(Turns) -> i32) -> io::Result<Pid> {
    let keeper = rustix::process::getpid();
    // SAFETY: this process has one thread, so the child has all that there is.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = if crate::process::die_with_parent(keeper.as_raw_nonzero().get() as u32).is_ok() {
                live(shared, work)
            } else {
                NO_WAY_BACK
            };
            // SAFETY: ends the process, and leaves alone what belongs to the keeper.
            unsafe { libc::_exit(code) }
        }
        pid => Pid::from_raw(pid).ok_or_else(|| io::ErrorKind::Other.into()),
    }
}

fn live(shared: &Shared, work: &mut impl FnMut(Turns) -> i32) -> i32 {
    let me = std::process::id();
    let mut hasty = 0;
    if shared.pair.worker.load(Ordering::Acquire) != 0 {
        warm::populate();
        log::prepare();
        // What the kernel keeps for clocks is mapped when it is first looked at.
        crate::process::Clock::new();
        warm::go_first();
        hasty = 2;
        shared.pair.standby.store(me, Ordering::SeqCst);
    }
    let Ok(takes_over) = shared.wait() else { return NO_WAY_BACK };
    let mut turns = Turns { takes_over, hasty, ..Turns::default() };
    if takes_over {
        let has_crashed = log::take_crash();
        if shared.finished.load(Ordering::SeqCst) != 0 {
            return 0;
        }
        let Some(was_in_turn) = log::undo() else { return NO_WAY_BACK };
        if was_in_turn && shared.strikes.fetch_add(1, Ordering::SeqCst) >= MAX_STRIKES {
            return NO_WAY_BACK;
        }
        if has_crashed && was_in_turn {
            turns.is_poisoned = shared.suspect.load(Ordering::SeqCst) != 0;
            turns.careful = CAREFUL;
        }
        shared.suspect.store(0, Ordering::SeqCst);
        let _ = shared.pair.standby.compare_exchange(me, 0, Ordering::SeqCst, Ordering::Relaxed);
        shared.pair.takeovers.fetch_add(1, Ordering::Relaxed);
    }
    shared.pair.worker.store(me, Ordering::SeqCst);
    let code = work(turns);
    shared.finished.store(1, Ordering::SeqCst);
    code
}

/// Packets that are processed one by one after a worker has ended by what it did itself.
const CAREFUL: u32 = 128;

/// Writes to read-only pages are told to the log; other faults end the process as ever, after the log has heard of it.
fn watch_faults() -> io::Result<()> {
    extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel gives a handler with SA_SIGINFO valid information, and for this signal an address.
        if signal == libc::SIGSEGV && log::handle_fault(unsafe { (*info).si_addr() } as usize) {
            return;
        }
        log::note_crash();
        // SAFETY: what has happened happens again when the handler returns, and then ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT, libc::SIGILL, libc::SIGFPE] {
        // SAFETY: the handler only does what a handler may: it reads and writes words and memory of its own, and makes system calls.
        unsafe {
            let mut action = core::mem::zeroed::<libc::sigaction>();
            action.sa_sigaction = on_fault as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            if libc::sigaction(signal, &action, core::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}
