//! The header of every flow actor, the same for every chain.

use super::{FlowRef, Life, Slot};
use core::mem::offset_of;
use holdfast_nf::Standing;
use holdfast_wire::{Commit, Epoch, FlowKey, NodeId, Peer};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of [`ActorHeader::flags`].
pub mod flag {
    /// The switch has not shown yet that it knows the reply key.
    pub const UNCONFIRMED: u8 = 1;
    /// The block before this batch is kept: see the protection. Local to the runtime.
    pub const TOUCHED: u8 = 2;
    /// The flow's state changed in this batch.
    pub const DIRTY: u8 = 4;
    /// The flow's latest state was never sent to a replica.
    pub const UNPROTECTED: u8 = 8;
    /// The state behind this key is missing, or is not yet as the dead owner left it. No
    /// copy of it is made. Local to the runtime.
    pub const EMPTY: u8 = 32;
    /// The changes since the last record to the replica are not known, so the next one
    /// carries the whole block. Local to the runtime.
    pub const WHOLE: u8 = 64;
    /// Packets of the flow have been processed since its copy was sent, and its holder
    /// knows which. Local to the runtime.
    pub const BEHIND: u8 = 128;
}

/// The first three cache lines of a flow actor; the chain's state follows. Plain old
/// data: it travels in messages as it is.
///
/// Every packet touches the first two lines. The third is for rare uses: opening,
/// replicating, listing.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ActorHeader {
    /// The initiator's tuple, as its packets come in.
    pub key: FlowKey,
    /// Epoch of the present owner, given by the switch.
    pub epoch: Epoch,
    /// Counts the states of this flow. A replica's version never goes back.
    pub version: u32,
    /// Stamped time at which the flow ends without a further packet, ns, in multiples of
    /// eight. The lowest three bits are [`ActorHeader::standing`].
    pub expires_at: u64,
    /// The number of its [`Life`].
    pub(super) life: u8,
    /// See [`flag`].
    pub flags: u8,
    /// The chain.
    pub chain: u16,
    /// See [`ActorHeader::holder`].
    holder: NodeId,
    /// The switch that has the route.
    pub switch: u8,
    /// Port by which the first packet came in.
    pub ingress: u8,
    /// The tuple of replies, as they come in.
    pub reply: FlowKey,
    /// Stamp of the latest packet, ns. Time never goes back within a flow.
    pub last_stamp: u64,
    /// Packets of the flow in the parking lot. Local to the runtime.
    pub parked: u32,
    /// Bytes not yet in `old_bytes`: see [`ActorHeader::count`].
    fresh_bytes: [u32; 2],
    /// Packets not yet in `old_packets`.
    fresh_packets: [u16; 2],
    /// Stamp of the first packet, ns.
    pub opened_at: u64,
    old_packets: [u64; 2],
    old_bytes: [u64; 2],
    /// Incarnation of `holder`.
    holder_incarnation: u32,
    /// The commit that carried the latest state.
    pub commit: Commit,
    /// Next in the timer wheel's list; [`NO_SLOT`] ends it. Local to the runtime.
    pub timer_next: u32,
    /// The one before in that list; [`NO_SLOT`] for the first. Local to the runtime.
    pub timer_before: u32,
    /// The wheel's list, [`NO_SLOT`] for none. Local to the runtime.
    pub timer_list: u32,
    /// Counts the uses of the slot. Local to the runtime.
    pub(crate) generation: u32,
}

/// The bits of [`ActorHeader::expires_at`] that hold the flow's standing.
const STANDING: u64 = 7;

impl ActorHeader {
    /// True if the packet with this key is a reply of the flow.
    #[inline]
    #[must_use]
    pub fn is_reply(&self, key: &FlowKey) -> bool {
        self.reply == *key && self.key != *key
    }

    /// An owner's replica, or a replica's owner; [`Peer::default`] is none.
    #[inline]
    pub fn holder(&self) -> Peer {
        Peer { node: self.holder, incarnation: self.holder_incarnation }
    }

    /// Sets the owner's replica, or the replica's owner.
    #[inline]
    pub fn set_holder(&mut self, holder: Peer) {
        (self.holder, self.holder_incarnation) = (holder.node, holder.incarnation);
    }

    /// The flow with this header, which is in this slot.
    #[inline]
    pub fn reference(&self, slot: Slot) -> FlowRef {
        FlowRef { slot, generation: self.generation }
    }

    /// The flow's standing.
    #[inline]
    pub fn standing(&self) -> Standing {
        Standing::ALL.get((self.expires_at & STANDING) as usize).copied().unwrap_or_default()
    }

    /// Sets the flow's standing.
    #[inline]
    pub fn set_standing(&mut self, standing: Standing) {
        self.expires_at = self.expires_at & !STANDING | standing as u64;
    }

    /// True unless the flow is to end at its runtime's next tick.
    #[inline]
    pub fn has_deadline(&self) -> bool {
        self.expires_at & !STANDING != 0
    }

    /// Sets the time at which the flow ends without a further packet. Rounded up, so that
    /// it ends no sooner.
    #[inline]
    pub fn set_deadline(&mut self, at: u64) {
        self.expires_at = at.saturating_add(STANDING) & !STANDING | self.expires_at & STANDING;
    }

    /// Counts a packet of `len` bytes, forward (0) or reverse (1).
    ///
    /// A packet should touch the first two lines only. Counts therefore begin in small
    /// fields there, and are added to the large ones in the third line now and then.
    #[inline]
    pub fn count(&mut self, way: usize, len: u16) {
        let way = way & 1;
        self.fresh_packets[way] += 1;
        self.fresh_bytes[way] += u32::from(len);
        // No overflow: 65,535 packets of 65,535 bytes are still less than four gigabytes.
        if self.fresh_packets[way] == u16::MAX {
            self.old_packets[way] += u64::from(core::mem::take(&mut self.fresh_packets[way]));
            self.old_bytes[way] += u64::from(core::mem::take(&mut self.fresh_bytes[way]));
        }
    }

    /// The flow's life at this runtime. Only [`Flows::step`](super::Flows::step) changes
    /// it.
    #[inline]
    pub fn life(&self) -> Life {
        Life::of(self.life)
    }

    /// Packets, forward and reverse.
    pub fn packets(&self) -> [u64; 2] {
        [0, 1].map(|way| self.old_packets[way] + u64::from(self.fresh_packets[way]))
    }

    /// Bytes of frames, forward and reverse.
    pub fn bytes(&self) -> [u64; 2] {
        [0, 1].map(|way| self.old_bytes[way] + u64::from(self.fresh_bytes[way]))
    }
}

/// Bits of the header, by words of eight bytes, that a packet may change and a replica
/// must know.
pub(crate) const VARIABLE: [u64; WORDS] = words(&[
    (offset_of!(ActorHeader, expires_at), 8, 0xff),
    (offset_of!(ActorHeader, flags), 1, flag::UNCONFIRMED),
    (offset_of!(ActorHeader, chain), 2, 0xff),
    (offset_of!(ActorHeader, switch), 2, 0xff),
    (offset_of!(ActorHeader, last_stamp), 8, 0xff),
    (offset_of!(ActorHeader, fresh_bytes), 8 + 4, 0xff),
    (offset_of!(ActorHeader, opened_at), 8 + 16 + 16, 0xff),
]);

/// Bits of the header that identify the flow and its owner. These, [`VARIABLE`] and
/// `version` travel; all other bits are local to each runtime.
pub(crate) const FIXED: [u64; WORDS] = words(&[
    (offset_of!(ActorHeader, key), size_of::<FlowKey>(), 0xff),
    (offset_of!(ActorHeader, epoch), 4, 0xff),
    (offset_of!(ActorHeader, reply), size_of::<FlowKey>(), 0xff),
]);

const WORDS: usize = size_of::<ActorHeader>() / 8;

/// A mask of the header in words of eight bytes. Each field: offset, length, and the bits
/// of each byte.
const fn words(fields: &[(usize, usize, u8)]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let mut field = 0;
    while field < fields.len() {
        let (offset, len, bits) = fields[field];
        let mut at = offset;
        while at < offset + len {
            words[at / 8] |= (bits as u64) << (8 * (at % 8));
            at += 1;
        }
        field += 1;
    }
    words
}

/// No slot.
pub const NO_SLOT: u32 = u32::MAX;

const _: () = assert!(size_of::<ActorHeader>() == 192);
const _: () = assert!(offset_of!(ActorHeader, reply) == 64);
const _: () = assert!(offset_of!(ActorHeader, opened_at) == 128);

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    /// Small counts run over into the large ones again and again. No packet is lost, and
    /// neither direction disturbs the other.
    #[test]
    fn counts_are_exact() {
        let mut header = ActorHeader::new_zeroed();
        for _ in 0..200_000 {
            header.count(0, u16::MAX);
            header.count(0, 1);
            header.count(1, 60);
        }
        assert_eq!(header.packets(), [400_000, 200_000]);
        assert_eq!(header.bytes(), [200_000 * 65_536, 12_000_000]);
    }
}
