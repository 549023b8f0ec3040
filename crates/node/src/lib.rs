//! Switch, runtime, coordinator and the host that joins them, as state machines.
//!
//! In: packets, messages, ends of processes, the time. Out: frames and orders. Never:
//! I/O, a clock, randomness, a thread. The same code runs in a worker on a machine and,
//! unchanged, in the deterministic simulator.
#![forbid(unsafe_code)]

pub mod bfd;
pub mod channel;
pub mod coordinator;
pub mod edge;
pub mod fcs;
pub mod host;
pub mod hub;
pub mod manager;
pub mod message;
pub mod pools;
mod prefetch;
pub mod quorum;
pub mod ranks;
mod rate;
pub mod reset;
pub mod rules;
pub mod runtime;
pub mod seal;
pub mod state;
pub mod switch;
mod tombstones;
mod totals;
