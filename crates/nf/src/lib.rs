//! The interface for authors of network functions.
//!
//! A function is a value that holds configuration and nothing else. [`FlowState`] is its
//! memory of one connection; [`SharedState`] is shared by its connections. Time,
//! randomness and everything else that differs between two runs come from the
//! [`Context`]. The system can therefore copy, move, replay and recover a function's
//! state without any code of the author's.
//!
//! In: packets, one flow's state, shared state. Out: a [`Verdict`]. Never: a clock, a
//! socket, a thread, a global, or a reference kept from one packet to the next.
#![forbid(unsafe_code)]

pub mod bench;
mod chain;
mod context;
mod flow;
mod function;
mod held;
mod rate;
pub mod shared;

pub use chain::{Chain, ChainLayout, Outcome, Position};
pub use context::{Context, Direction, Expected, Opening, Standing};
pub use flow::{FlowState, StateField, layout_hash};
pub use function::{
    Alert, Bound, Built, ConfigError, Configured, Function, NetworkFunction, Open, SourceLimit,
    TextFile, Verdict,
};
pub use held::{Cached, Caches, Counted, Counts, FlowEvent, Holds, Leased, Lends};
pub use rate::{Budget, CountedPackets, Rate, RateLimit};
pub use shared::{
    Cache, CacheStep, Counters, Gauge, Lease, Log, Pool, ReadOnly, SharedField, SharedState, Store,
    Table,
};

/// Headers, checksums, and the rewriting of ends.
pub use holdfast_wire as wire;
pub use holdfast_wire::{DropReason, FlowKey, Packet};
pub use zerocopy;
