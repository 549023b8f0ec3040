//! What wakes a process that sleeps on a descriptor: an eventfd. Who needs waking says so in a word that both sides see ([`doorbell`]).

use crate::doorbell;
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::sync::atomic::AtomicU32;

/// A bell that has not been rung.
///
/// # Errors
/// What the kernel says.
pub(crate) fn make() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

/// Rings it.
pub(crate) fn ring(bell: &OwnedFd) {
    // A full counter means that it is being woken already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Wakes the other side if it sleeps.
pub(crate) fn wake(sleeps: &AtomicU32, bell: &OwnedFd) {
    if doorbell::must_ring(sleeps) {
        ring(bell);
    }
}

/// It has been heard.
pub(crate) fn drain(bell: impl AsFd) {
    let mut count = [0u8; 8];
    let _ = rustix::io::read(bell, &mut count);
}
