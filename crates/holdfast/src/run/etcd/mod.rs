//! etcd: where coordinators elect one, and where the one that leads keeps its log.
//!
//! Theory of operation. Everything lies below the configured prefix. `leader` says who leads; it hangs on the leader's lease, and the revision that made
//! it is the guard of every write: once another leads, or nobody, a write of the old leader is refused. `incarnation` is the highest that a leader
//! ever had, `written` the last position in the log, and `log/` the log. etcd is spoken to by threads of
//! their own: the coordinator's loop waits for none of it.
//!
//! In: the configuration, who this is, records. Out: that it leads, the log, that records are kept, that it leads no more. Never: a decision.
//!
//! The types of etcd's API are generated from `proto/etcd.proto`, and kept as a file: `tests/generated.rs` of
//! the crate `control` says when it is not what that gives, and makes it anew.

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

/// A time that goes on while the machine is suspended, as the server's does, ns.
fn boot_time() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Why etcd does not do what was asked: in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble(pub(super) String);

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the threads know and the coordinator's loop wants to.
pub(super) struct Contact {
    began_at: u64,
    /// When etcd answered last; 0 before it ever did.
    answered_at: AtomicU64,
    /// Until when this process leads for certain; 0 while it does not.
    leads_until: AtomicU64,
    /// Until when it may try to, and whether others are to try first.
    wanted_until: AtomicU64,
    is_modest: AtomicBool,
    words: Mutex<Words>,
    wake: OwnedFd,
}

#[derive(Default)]
struct Words {
    /// Of each client.
    troubles: [Option<String>; CLIENTS],
    leader: Option<Leader>,
    /// Why it leads no more.
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
        // Words are whole at every moment.
        self.words.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Readable when something has changed, until [`Contact::calm`].
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// What has changed is going to be looked at.
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

    /// It leads no more, and why is known.
    pub(super) fn is_over(&self) -> bool {
        self.words().end.is_some()
    }

    /// Whether this process leads, for certain.
    pub(super) fn leads(&self) -> bool {
        boot_time() < self.leads_until.load(Ordering::Relaxed)
    }

    /// It may try to lead.
    fn is_wanted(&self) -> bool {
        boot_time() < self.wanted_until.load(Ordering::Relaxed)
    }

    /// It leads no more.
    fn end(&self, why: &str) {
        self.words().end.get_or_insert_with(|| why.to_owned());
        self.leads_until.store(0, Ordering::Relaxed);
        self.wake();
    }

    /// Why it leads no more.
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

    /// Who leads, as far as is known.
    pub(super) fn leader(&self) -> Option<Leader> {
        self.words().leader.clone()
    }

    /// What is wrong with etcd, if anything is.
    pub(super) fn current_trouble(&self) -> Option<String> {
        self.words().troubles.iter().flatten().next().cloned()
    }

    /// Whether etcd has ever answered.
    pub(super) fn has_heard(&self) -> bool {
        self.answered_at.load(Ordering::Relaxed) > 0
    }

    /// How long ago etcd answered last, or this process began to ask.
    pub(super) fn silence(&self) -> Duration {
        let last = self.answered_at.load(Ordering::Relaxed).max(self.began_at);
        Duration::from_nanos(boot_time().saturating_sub(last))
    }
}

/// Who campaigns and then writes; who keeps the lease; who gives it up.
const CLIENTS: usize = 3;
const CAMPAIGN: usize = 0;
const KEEPER: usize = 1;
const END: usize = 2;
