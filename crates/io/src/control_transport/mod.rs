//! Transports of control messages between runtimes and a state server, beside the fabric:
//! [shared memory](shared_memory) on one host, and [remote writes](libfabric) that carry
//! only their immediate data, as in RESCue. Control messages are sent as words.
//!
//! A driver belongs to one process. If there is a local standby, the process that takes
//! over makes a driver of its own, without ends, and its sessions begin anew: the links
//! know which words were not acknowledged. No part of a driver lies in the heap that the
//! two share, and a turn's words are shown only after its commit ([`Driver::publish`]).

pub mod libfabric;
pub mod shared_memory;
#[cfg(test)]
mod tests;

pub use holdfast_node::state::transport::{Address, ControlTransport, Lost, Transport};
use rustix::fd::BorrowedFd;

/// The driver's functions for a worker's loop, besides the words.
pub trait Driver: ControlTransport {
    /// The turn is committed: its words may leave, and the room of words that it took is
    /// free.
    fn publish(&mut self);

    /// True if unread words have come.
    fn has_input(&mut self) -> bool;

    /// Prepares for the worker's sleep. False if something has come meanwhile: it must
    /// not sleep then.
    fn prepare_sleep(&mut self) -> bool;

    /// Readable when something has come for a worker that sleeps.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// The longest sleep, ns: some inputs wake no worker and must be polled.
    fn longest_sleep(&self) -> u64;

    /// Ends the worker's sleep.
    fn awake(&mut self);
}
