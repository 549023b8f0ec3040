//! Everything that touches the machine: ports, shared memory, processes, waiting.
//!
//! In: state machines' effects. Out: what the machine says. All unsafe code of the project is here, each block with the reason why it is
//! sound. Never: a decision that belongs to a protocol.

mod allocation;
mod arena;
pub mod port;
pub mod process;
pub mod ring;
mod shared_memory;
mod vport;
pub mod wait;

pub use allocation::{CountingAllocator, allocations};
pub use arena::Arena;
pub use vport::{VportCounters, VportGuest, VportHost};
