//! Every byte that leaves a process: packets and their headers, flow keys, checksums, the
//! fabric's encapsulation, messages. In: bytes from anywhere. Out: typed views, or a
//! closed reason why not; and headers, built in place. This crate allocates nothing per
//! packet, never panics on foreign bytes, and knows neither a clock nor a protocol's
//! state.
#![forbid(unsafe_code)]

pub mod bfd;
pub mod build;
pub mod checksum;
mod commit;
mod epoch;
pub mod events;
pub mod fault;
pub mod fragmentation;
mod hash;
pub mod header;
mod key;
mod layers;
mod node;
pub mod nsh;
mod packet;
mod peer;
mod reason;
pub mod rewrite;
pub mod selector;
pub mod vlan;
pub mod zone;

pub use commit::Commit;
pub use epoch::Epoch;
pub use hash::fnv1a;
pub use key::{FlowKey, ip_addr, ip_bytes, map_v4, source_of, unmap_v4};
pub use layers::{Layers, MAX_EXTENSION_HEADERS, Malformed, Network};
pub use node::NodeId;
pub use packet::{
    BUFFER_LEN, Buffer, HEADERS, HEADROOM, Handle, Handles, MAX_MTU, MemoryPool, Meta, Packet,
    PacketPool, Parts, announce_writes,
};
pub use peer::Peer;
pub use reason::{DropCounters, DropReason};
