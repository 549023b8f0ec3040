//! The requests of a protection: collected during a batch, carried out by the runtime
//! afterwards.

use crate::flows::Journal;
use crate::{Commit, FlowRef, NodeIndex, Peer, Released, Slot};
use holdfast_wire::{DropReason, NodeId, Packet};

/// A record for the reliable channel to another runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelRecord {
    /// The addressee.
    pub to: Peer,
    /// See [`crate::kind`].
    pub kind: u8,
    start: usize,
    len: usize,
}

/// Released packets for which a batch has room from the beginning.
const RELEASED: usize = 512;

/// See the module. The vectors keep their capacity, so a batch does not allocate.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Packets that may leave now.
    pub released: Vec<Released<Packet>>,
    /// Packets for a replica to release. Each travels to that runtime, behind the records
    /// sent before.
    pub handed: Vec<(Peer, Packet)>,
    /// Marks, each to follow all packets handed over to that runtime so far, with the
    /// highest commit among them.
    pub marks: Vec<(Peer, Commit)>,
    /// Packets that end here.
    pub dropped: Vec<(Packet, DropReason)>,
    /// Flows whose route is to be asked for.
    pub claims: Vec<Slot>,
    /// Like `claims`, but found after the failure was known. Each with the node that had
    /// the flow.
    pub late_claims: Vec<(NodeId, Slot)>,
    /// Flows that another runtime owns under a newer epoch.
    pub demoted: Vec<Slot>,
    /// Flows whose state was absent and has come.
    pub loaded: Vec<Slot>,
    /// Flows whose absent state will not come any more. The runtime ends them.
    pub lost: Vec<FlowRef>,
    /// The stamp up to which the switch may forget packets of this chain, because copies
    /// contain them.
    pub cleared: Option<u64>,
    records: Vec<ChannelRecord>,
    bytes: Vec<u8>,
    /// Bytes of records that each peer's channel takes.
    rooms: Vec<(Peer, usize)>,
    room_at: NodeIndex,
    chain: u16,
    now: u64,
    /// Packets released although no replica had their state, because there was none to
    /// have it.
    pub released_unprotected: u64,
}

impl Outbox {
    /// Declares the released packets scratch: each turn carries out its own requests, so
    /// they are no state. See [`Journal`].
    pub fn set_journal(&mut self, journal: Journal) {
        self.released.reserve_exact(RELEASED);
        journal.scratch(&self.released);
    }

    /// Starts a batch for a chain at a stamped time, ns.
    pub fn begin(&mut self, chain: u16, now: u64) {
        self.chain = chain;
        self.now = now;
    }

    /// Sets the only peers that records may go to, each on a node of its own, and the
    /// bytes of records that each channel takes now.
    pub fn set_peers(&mut self, rooms: impl Iterator<Item = (Peer, usize)>) {
        self.rooms.clear();
        self.rooms.extend(rooms);
        self.room_at.renew(self.rooms.iter().map(|(peer, _)| peer.node));
    }

    /// Sets the bytes of records that the channel to one peer takes now. `room` gets the
    /// incarnation that is known here, and returns 0 if that is not the present one.
    /// Ignored for a node that is no peer of this chain.
    #[inline]
    pub fn set_room(&mut self, node: NodeId, room: impl FnOnce(Peer) -> usize) {
        if let Some((peer, known)) = self.room_at.get(node).and_then(|at| self.rooms.get_mut(at)) {
            *known = room(*peer);
        }
    }

    /// The batch's stamped time, ns.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Sends a record if the channel has room. Returns false, and sends nothing, if there
    /// is none.
    #[must_use]
    pub fn send(&mut self, to: Peer, kind: u8, parts: &[&[u8]]) -> bool {
        // The chain's number goes in front of every record.
        let len = 2 + parts.iter().map(|part| part.len()).sum::<usize>();
        match self.room_at.get(to.node).and_then(|at| self.rooms.get_mut(at)) {
            Some((peer, room)) if *peer == to && *room >= len => *room -= len,
            _ => return false,
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&self.chain.to_be_bytes());
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.records.push(ChannelRecord { to, kind, start, len });
        true
    }

    /// Releases the packet: the protection's commit rule holds for it.
    #[inline]
    pub(crate) fn release(&mut self, packet: Packet) {
        self.released.push(Released::by_commit(packet));
    }

    /// Records sent in this batch, in order.
    pub fn records(&self) -> impl Iterator<Item = (ChannelRecord, &[u8])> + '_ {
        self.records
            .iter()
            .map(|record| (*record, &self.bytes[record.start..record.start + record.len]))
    }

    /// Forgets the records after they went to their channels.
    pub fn clear_records(&mut self) {
        self.records.clear();
        self.bytes.clear();
    }

    /// True if nothing waits to be carried out.
    pub fn is_empty(&self) -> bool {
        self.released.is_empty()
            && self.handed.is_empty()
            && self.marks.is_empty()
            && self.dropped.is_empty()
            && self.claims.is_empty()
            && self.late_claims.is_empty()
            && self.demoted.is_empty()
            && self.loaded.is_empty()
            && self.lost.is_empty()
            && self.records.is_empty()
    }
}
