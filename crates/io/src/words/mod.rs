//! Ways for the control messages between runtimes and a state server, beside the fabric: [shared memory](shared_memory) on one host, and [remote writes](libfabric) that carry nothing but their
//! immediate data, as RESCue has them.
//!
//! A driver belongs to one process. Where that has a local standby, the process that takes over makes a driver of its own, finds none of the ends, and its sessions begin anew: the links know what was not
//! heard. So nothing here lies in the heap that the two share, and what a turn sends is shown only when the turn holds ([`Driver::publish`]).

pub mod libfabric;
pub mod shared_memory;
#[cfg(test)]
mod tests;

pub use holdfast_node::state::transport::{Address, Lost, Transport, Words};
use rustix::fd::BorrowedFd;

/// What a worker's loop needs of a driver besides the words.
pub trait Driver: Words {
    /// The turn holds: what it has sent may leave, and what it has taken needs no place any more.
    fn publish(&mut self);

    /// True if something has come that nobody has taken.
    fn has_input(&mut self) -> bool;

    /// The worker is about to sleep. False if something has come meanwhile: then it must not.
    fn prepare_sleep(&mut self) -> bool;

    /// Readable when something has come for a worker that sleeps.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// No sleep may be longer, ns: what nobody is woken for has to be looked at.
    fn longest_sleep(&self) -> u64;

    /// The worker is awake again.
    fn awake(&mut self);
}
