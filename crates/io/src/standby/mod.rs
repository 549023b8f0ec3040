//! A worker that outlives its process: a second process shares the memory of its state,
//! and goes on where the first one was killed.
//!
//! Theory of operation. A process, the *keeper*, builds the state in a heap of its own
//! ([`heap`]). From then on it only starts the other processes and learns of their ends:
//! the *worker*, which takes turns, and the *standby*, which sleeps. Both are forked from
//! the keeper, so that everything lies at the same addresses; neither ever forks. The
//! worker holds a lock in shared memory for as long as it lives. When it ends, for
//! whatever reason, the kernel passes the lock on before any other cleanup. The standby
//! wakes up (`takeover`), undoes the unfinished turn ([`log`]), and goes on with the
//! next one. Other processes notice nothing: rings move only when a turn has been
//! committed ([`crate::VportGuest::publish`]), so the packets that came in come once
//! more, and the output of the undone turn was never visible. The keeper then forks
//! another standby. The keeper's own death ends no other process ([`keeper`]).
//!
//! If worker and standby die together, the keeper forks another process, which finds
//! everything as the standby would have. Two kinds of turns cannot be recovered: one that
//! changed more than the log holds, and one that successive workers do not finish. The
//! keeper then ends as the worker did.
//!
//! REINFORCE, local standby: the paper copies the state at the end of each batch, and the
//! manager wakes the standby.

mod heap;
mod keeper;
mod log;
mod preparation;
mod takeover;
#[cfg(test)]
mod tests;

pub use heap::enter;
pub(crate) use heap::{allocate, allocate_zeroed, free, is_inside, outside, owns};
pub use keeper::{Watch, supervise};
pub(crate) use log::note_crash;

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

const AT_LOCK: usize = log::AT_OTHERS;
const LOCK_LEN: usize = 64;
const AT_STRIKES: usize = AT_LOCK + LOCK_LEN;
const AT_FINISHED: usize = AT_STRIKES + 4;
const AT_SUSPECT: usize = AT_STRIKES + 8;

/// Process ids of worker, standby, keeper and deputy, and the number of takeovers, in
/// memory that other processes may read.
#[derive(Clone, Copy)]
pub struct Pair {
    /// The worker's process, 0 before there is one.
    pub worker: &'static AtomicU32,
    /// The process of a standby that can take over, 0 for none.
    pub standby: &'static AtomicU32,
    /// Standbys that have become the worker.
    pub takeovers: &'static AtomicU32,
    /// The keeper, which starts the others; 0 before it has begun to.
    pub keeper: &'static AtomicU32,
    /// The deputy, which becomes the keeper when the keeper has ended; 0 for none.
    pub deputy: &'static AtomicU32,
}

/// Words that the processes share besides the state.
struct Shared {
    lock: *mut libc::pthread_mutex_t,
    pair: Pair,
    /// Workers that have begun since a turn was last finished.
    strikes: &'static AtomicU32,
    /// The exit code plus one of a worker whose work is done.
    finished: &'static AtomicU32,
    /// Set while a careful turn is under way.
    suspect: &'static AtomicU32,
}

// SAFETY: the pointer is to a lock in shared memory, made for several processes.
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
        // SAFETY: the lock lies in the mapping, aligned and unused so far; attributes
        // live on this stack until they are destroyed.
        unsafe {
            let mut attributes = core::mem::zeroed::<libc::pthread_mutexattr_t>();
            check(libc::pthread_mutexattr_init(&mut attributes))?;
            check(libc::pthread_mutexattr_setpshared(
                &mut attributes,
                libc::PTHREAD_PROCESS_SHARED,
            ))?;
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

    /// Waits until there is no worker. True if there was one that died.
    fn wait(&self) -> io::Result<bool> {
        // SAFETY: the lock was made before the fork, and is never destroyed. The process
        // holds it until it ends.
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
    /// Turns that begin before this process gives its priority up: see
    /// [`preparation::go_first`].
    hasty: u8,
    careful: u32,
    is_poisoned: bool,
}

impl Turns {
    /// True if the former worker has died; the state is that at the end of its last turn.
    /// Returned once.
    pub fn takes_over(&mut self) -> bool {
        core::mem::take(&mut self.takes_over)
    }

    /// True if there is, or may be, a standby: turns then have a cost at their beginnings
    /// and ends.
    pub fn are_logged(&self) -> bool {
        SHARED.get().is_some()
    }

    /// Begins a turn of at most `burst` packets. Returns how many it should take: one,
    /// after a worker that crashed, until the packet at fault is known.
    #[inline]
    pub fn begin(&mut self, burst: usize) -> usize {
        let Some(shared) = SHARED.get() else { return burst };
        if self.hasty > 0 {
            self.hasty -= 1;
            if self.hasty == 0 {
                preparation::stand_back();
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

    /// Ends the turn: its changes are valid, and its output may be shown.
    #[inline]
    pub fn commit(&mut self) {
        let Some(shared) = SHARED.get() else { return };
        log::commit();
        if shared.strikes.load(Ordering::Relaxed) != 0
            || shared.suspect.load(Ordering::Relaxed) != 0
        {
            shared.strikes.store(0, Ordering::Relaxed);
            shared.suspect.store(0, Ordering::Relaxed);
        }
    }

    /// True if the next packet has ended two workers, each of which processed no other.
    /// Returned once; the packet must not be processed.
    pub fn is_poisoned(&mut self) -> bool {
        core::mem::take(&mut self.is_poisoned)
    }
}

/// Exempts these bytes of the heap: every write to them will be announced to [`before`].
pub fn exempt(bytes: &[u8]) {
    log::exempt(bytes);
}

/// Exempts `len` bytes of the heap whose content between two turns is meaningless: they
/// may be anything after an undo. The range stays exempt: a freed block of a page or more
/// is not used again.
pub fn scratch(address: usize, len: usize) {
    log::scratch(address, len);
}

/// The number of the turn, after [`create`]. The number changes when a turn begins, and
/// continues after a takeover.
pub fn turn() -> Option<&'static AtomicU32> {
    log::turn()
}

/// Announces that these bytes, in the heap or in a packet's buffer, are about to change.
#[inline]
pub fn before(bytes: &[u8]) {
    log::before(bytes);
}

/// Makes the shared memory and lock. Call it once, before [`enter`] makes the state,
/// while this process has one thread.
///
/// # Errors
/// The kernel's error.
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

/// Makes the log handle writes to read-only pages; other faults end the process, after
/// the log has noted them.
fn watch_faults() -> io::Result<()> {
    extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel gives a handler with SA_SIGINFO valid information, and for
        // this signal an address.
        if signal == libc::SIGSEGV && log::handle_fault(unsafe { (*info).si_addr() } as usize) {
            return;
        }
        log::note_crash();
        // SAFETY: the same fault happens again when the handler returns, and then ends
        // the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT, libc::SIGILL, libc::SIGFPE] {
        // SAFETY: the handler only does what a handler may: it reads and writes words and
        // memory of its own, and makes system calls.
        unsafe {
            let mut action = core::mem::zeroed::<libc::sigaction>();
            action.sa_sigaction =
                on_fault as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            if libc::sigaction(signal, &action, core::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}
