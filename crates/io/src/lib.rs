//! Everything that touches the machine: ports, shared memory, processes, waiting.
//!
//! In: state machines' effects. Out: the machine's events. All unsafe code of the project
//! is here, each block with the reason why it is sound. Never: a decision that belongs to
//! a protocol.

// Only `ring` and `doorbell`, shared between threads and processes, are built for loom,
// which explores their interleavings.
#[cfg(not(loom))]
mod allocation;
#[cfg(not(loom))]
mod arena;
#[cfg(not(loom))]
mod bell;
#[cfg(not(loom))]
pub mod capture;
#[cfg(not(loom))]
pub mod control_transport;
mod death;
pub mod doorbell;
#[cfg(not(loom))]
mod heartbeat;
#[cfg(not(loom))]
#[cfg(not(loom))]
mod mailbox;
#[cfg(not(loom))]
mod notes;
#[cfg(not(loom))]
pub mod port;
#[cfg(not(loom))]
pub mod process;
pub mod ring;
#[cfg(not(loom))]
mod shared_memory;
#[cfg(not(loom))]
pub mod standby;
#[cfg(not(loom))]
mod system_calls;
#[cfg(not(loom))]
mod vport;
#[cfg(not(loom))]
pub mod wait;

#[cfg(not(loom))]
pub use allocation::{CountingAllocator, allocations};
#[cfg(not(loom))]
pub use arena::Arena;
#[cfg(not(loom))]
pub use heartbeat::Heartbeat;
#[cfg(not(loom))]
pub use mailbox::{MAX_MESSAGE, Mailbox};
#[cfg(not(loom))]
pub use notes::Notes;
#[cfg(not(loom))]
pub use system_calls::restrict;
#[cfg(not(loom))]
pub use vport::{VportCounters, VportGuest, VportHost};
