//! What an author of a network function depends on.
//!
//! A function is a value that holds configuration and nothing else. What it remembers of one connection is its
//! [`FlowState`]; what its connections share is its [`SharedState`]; time, randomness and everything else
//! that differs between two runs comes from the [`Context`]. Because of that, the system can copy, move, replay and recover what the function knows without a line of the
//! author's.
//!
//! In: packets, one flow's state, shared state. Out: a [`Verdict`]. Never: a clock, a socket, a thread, a global, or
//! a reference kept from one packet to the next.
#![forbid(unsafe_code)]

mod chain;
mod context;
mod flow;
mod function;
pub mod shared;

pub use chain::{Chain, ChainLayout, Outcome, Position};
pub use context::{Context, Direction, Expected, Standing};
pub use flow::{FlowState, layout_hash};
pub use function::{Bound, ConfigError, Function, NetworkFunction, Open, SourceLimit, Verdict};
pub use shared::{Counters, Gauge, Lease, Log, Pool, ReadOnly, SharedField, SharedState, Table};

pub use holdfast_wire::{DropReason, FlowKey, Packet};
pub use zerocopy;
