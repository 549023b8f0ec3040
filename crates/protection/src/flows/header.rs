//! What every flow actor begins with, whatever its chain.

use holdfast_wire::FlowKey;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a slot of the slab is, as one byte of [`ActorHeader`].
pub mod role {
    /// Nothing.
    pub const FREE: u8 = 0;
    /// A flow that this runtime owns and serves.
    pub const OWNER: u8 = 1;
    /// The copy of a flow that another runtime owns.
    pub const REPLICA: u8 = 2;
    /// A replica that has asked for the flow's route and waits for the answer.
    pub const CLAIMING: u8 = 3;
    /// A flow whose first packet waits in the middle of the chain: no other packet has passed yet.
    pub const OPENING: u8 = 4;
}

/// Bits of [`ActorHeader::flags`].
pub mod flag {
    /// The switch has not shown yet that it knows the reply key.
    pub const UNCONFIRMED: u8 = 1;
    /// Packets of the flow wait in the parking lot.
    pub const PARKED: u8 = 2;
    /// The flow's state changed in this batch.
    pub const DIRTY: u8 = 4;
    /// The flow's latest state was never sent to a replica.
    pub const UNPROTECTED: u8 = 8;
}

/// The first three cache lines of a flow actor; the chain's state follows. Plain old data: it travels in messages as it is.
///
/// The first line is what a forward packet touches, the second what a reply touches, the third is rarely touched at all.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ActorHeader {
    /// The initiator's tuple, as its packets come in.
    pub key: FlowKey,
    /// Epoch of the present owner, given by the switch.
    pub epoch: u32,
    /// Counts the states of this flow; a replica never goes back.
    pub version: u32,
    /// When the flow ends without a further packet: stamped time, ns.
    pub expires_at: u64,
    /// See [`role`].
    pub role: u8,
    /// See [`flag`].
    pub flags: u8,
    /// The chain.
    pub chain: u16,
    /// An owner's replica, or a replica's owner: node id; 0 is none.
    pub peer: u16,
    /// The switch that has the route.
    pub switch: u8,
    /// Port by which the first packet came in.
    pub ingress: u8,
    /// The tuple of replies, as they come in.
    pub reply: FlowKey,
    /// Stamp of the latest packet, ns: time never goes back within a flow.
    pub last_stamp: u64,
    /// Bytes of frames, forward and reverse.
    pub bytes: [u64; 2],
    /// Stamp of the first packet, ns.
    pub opened_at: u64,
    /// Packets, forward and reverse.
    pub packets: [u64; 2],
    /// Where the switch keeps the route.
    pub route: u32,
    /// Incarnation of `peer`.
    pub peer_incarnation: u32,
    /// Number of the commit that carried the latest state.
    pub commit: u32,
    /// Next in the timer wheel's list; [`NO_SLOT`] ends it. Local to the runtime.
    pub timer_next: u32,
    /// Packets of the flow in the parking lot. Local to the runtime.
    pub parked: u32,
    /// Counts the uses of the slot. Local to the runtime.
    pub generation: u32,
    /// Zero.
    pub spare: [u64; 2],
}

/// No slot.
pub const NO_SLOT: u32 = u32::MAX;

const _: () = assert!(size_of::<ActorHeader>() == 192);
const _: () = assert!(core::mem::offset_of!(ActorHeader, reply) == 64);
const _: () = assert!(core::mem::offset_of!(ActorHeader, opened_at) == 128);
