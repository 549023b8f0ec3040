//! Sleeping and waking without a lost wake-up.
//!
//! Theory of operation. A side that is about to sleep sets a word and then looks at the
//! ring once more; a side that has put something into the ring then looks at the word.
//! Each has a sequentially consistent fence between its write and its look, so that at
//! least one of the two sees the other's write: the sleeper sees the entry, or the other
//! side sees the word and rings.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// After putting something in: true if the other side sleeps and is to be woken. Returned
/// once.
#[inline]
pub fn must_ring(sleeps: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0
}

/// Before sleeping: true if there is nothing to do and the other side will ring.
#[inline]
pub fn may_sleep(sleeps: &AtomicU32, is_empty: impl FnOnce() -> bool) -> bool {
    sleeps.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    if is_empty() {
        return true;
    }
    sleeps.store(0, Ordering::Relaxed);
    false
}
