//! A bell: an eventfd that wakes a process sleeping on it. A side that sleeps says so in
//! a word that both see ([`doorbell`]).

use crate::doorbell;
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::sync::atomic::AtomicU32;

/// Makes a bell.
///
/// # Errors
/// The kernel's error.
pub(crate) fn make() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

/// Rings it.
pub(crate) fn ring(bell: &OwnedFd) {
    // A full counter means that the other side is being woken already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Wakes the other side if it sleeps.
pub(crate) fn wake(sleeps: &AtomicU32, bell: &OwnedFd) {
    if doorbell::must_ring(sleeps) {
        ring(bell);
    }
}

/// Clears the bell.
pub(crate) fn drain(bell: impl AsFd) {
    let mut count = [0u8; 8];
    let _ = rustix::io::read(bell, &mut count);
}
