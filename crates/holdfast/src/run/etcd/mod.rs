//! etcd: elects the coordinator and keeps the leader's log.
//!
//! Theory of operation. All keys are below the configured prefix. `leader` names the
//! leader and hangs on its lease. The revision that made it guards every write: once
//! another leads, or none, an old leader's write is refused. `incarnation` is the highest
//! of any leader so far, `written` the last position in the log, and `log/` the log.
//! Threads of their own talk to etcd: the coordinator's loop never waits for it.
//!
//! In: the configuration, this process's identity, records. Out: the beginning of its
//! lead, the log, the records that are kept, the end of its lead. Never: a decision.
//!
//! The types of etcd's API are generated from `proto/etcd.proto`, and kept as a file:
//! `tests/generated.rs` of the crate `control` reports a stale file, and makes it anew.

/// The types of the .proto file.
#[allow(missing_docs, unreachable_pub, clippy::all)]
#[rustfmt::skip]
mod api;
mod client;
mod election;
mod log;
#[cfg(test)]
mod tests;

pub(super) use election::{Candidacy, Leader, Leadership};

use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A clock that also counts while the machine is suspended, as the server's does, ns.
fn boot_time() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// etcd's failure to do a request, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble(pub(super) String);

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The threads' knowledge, for the coordinator's loop.
pub(super) struct Contact {
    began_at: u64,
    /// Time of etcd's last answer; 0 before the first.
    answered_at: AtomicU64,
    /// Time until which this process leads for certain; 0 while it does not.
    leads_until: AtomicU64,
    /// Time until which it may try to lead, and true if others are to try first.
    wanted_until: AtomicU64,
    is_modest: AtomicBool,
    words: Mutex<Words>,
    wake: OwnedFd,
}

#[derive(Default)]
struct Words {
    /// The trouble of each client.
    troubles: [Option<String>; CLIENTS],
    leader: Option<Leader>,
    /// The reason why it leads no more.
    end: Option<String>,
}

impl Contact {
    fn new() -> io::Result<Contact> {
        Ok(Contact {
            began_at: boot_time(),
            answered_at: AtomicU64::new(0),
            leads_until: AtomicU64::new(0),
            wanted_until: AtomicU64::new(0),
            is_modest: AtomicBool::new(false),
            words: Mutex::default(),
            wake: rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        })
    }

    fn words(&self) -> std::sync::MutexGuard<'_, Words> {
        // The words are consistent at every moment.
        self.words.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Readable after a change, until [`Contact::calm`].
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Clears [`Contact::fd`], before the changes are read.
    pub(super) fn calm(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
    }

    fn answered(&self, client: usize) {
        self.answered_at.store(boot_time(), Ordering::Relaxed);
        self.words().troubles[client] = None;
    }

    fn trouble(&self, client: usize, trouble: &Trouble) {
        self.words().troubles[client] = Some(trouble.0.clone());
    }

    /// True once it leads no more, with a known reason.
    pub(super) fn is_over(&self) -> bool {
        self.words().end.is_some()
    }

    /// True if this process leads for certain.
    pub(super) fn leads(&self) -> bool {
        boot_time() < self.leads_until.load(Ordering::Relaxed)
    }

    /// True if it may try to lead.
    fn is_wanted(&self) -> bool {
        boot_time() < self.wanted_until.load(Ordering::Relaxed)
    }

    /// Ends the leadership, with the reason.
    fn end(&self, why: &str) {
        self.words().end.get_or_insert_with(|| why.to_owned());
        self.leads_until.store(0, Ordering::Relaxed);
        self.wake();
    }

    /// The reason why it leads no more.
    pub(super) fn why(&self) -> String {
        let silence = self.silence().as_millis();
        let words = self.words();
        let silent = || format!("etcd has not answered for {silence} ms");
        let why = words.end.clone().unwrap_or_else(silent);
        match words.troubles.iter().flatten().next() {
            Some(trouble) => format!("{why} ({trouble})"),
            None => why,
        }
    }

    /// The leader, as far as known.
    pub(super) fn leader(&self) -> Option<Leader> {
        self.words().leader.clone()
    }

    /// The present trouble with etcd, if any.
    pub(super) fn current_trouble(&self) -> Option<String> {
        self.words().troubles.iter().flatten().next().cloned()
    }

    /// True if etcd has ever answered.
    pub(super) fn has_heard(&self) -> bool {
        self.answered_at.load(Ordering::Relaxed) > 0
    }

    /// Time since etcd's last answer, or since this process began to ask.
    pub(super) fn silence(&self) -> Duration {
        let last = self.answered_at.load(Ordering::Relaxed).max(self.began_at);
        Duration::from_nanos(boot_time().saturating_sub(last))
    }
}

/// The clients: for campaigning and writing; for the lease; for giving it up.
const CLIENTS: usize = 3;
const CAMPAIGN: usize = 0;
const KEEPER: usize = 1;
const END: usize = 2;
