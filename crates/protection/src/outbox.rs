//! What a protection asks of the world: collected during a batch, carried out by the runtime afterwards.

use crate::flows::Journal;
use crate::{NodeIndex, Peer, Released, Slot};
use holdfast_wire::{DropReason, Packet};

/// A record for the reliable channel to another runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// For whom.
    pub to: Peer,
    /// See [`crate::kind`].
    pub kind: u8,
    start: usize,
    len: usize,
}

/// Packets released in one batch for which there is room from the beginning.
const RELEASED: usize = 512;

/// See the module. Its vectors keep their capacity, so a batch does not allocate.
#[derive(Debug, Default)]
pub struct Outbox {
    /// May leave now.
    pub released: Vec<Released<Packet>>,
    /// To be released by a replica: the packet travels to that runtime, behind the records sent before.
    pub handed: Vec<(Peer, Packet)>,
    /// To follow everything handed over to that runtime so far: the highest commit of it.
    pub marks: Vec<(Peer, u32)>,
    /// Ended here.
    pub dropped: Vec<(Packet, DropReason)>,
    /// Flows whose route is to be asked for.
    pub claims: Vec<Slot>,
    /// As `claims`, but found later than the failure was known: with the node whose flow each was.
    pub late_claims: Vec<(u16, Slot)>,
    /// Flows that another runtime owns by a newer epoch.
    pub demoted: Vec<Slot>,
    /// Flows whose state was absent and has come.
    pub loaded: Vec<Slot>,
    /// Flows, with their slots' generations, whose state was absent and does not come any more: they are to end here.
    pub lost: Vec<(Slot, u32)>,
    /// The switch need not keep what it has stamped up to here for this chain: copies have it.
    pub cleared: Option<u64>,
    records: Vec<Record>,
    bytes: Vec<u8>,
    /// Bytes of records that each peer's channel takes.
    rooms: Vec<(Peer, usize)>,
    room_at: NodeIndex,
    chain: u16,
    now: u64,
    /// Packets released although no replica had their state, because there was none to have it.
    pub released_unprotected: u64,
}

impl Outbox {
    /// What is carried out in the turn in which it was asked for is no state: see [`Journal`].
    pub fn set_journal(&mut self, journal: Journal) {
        self.released.reserve_exact(RELEASED);
        journal.scratch(&self.released);
    }

    /// Starts a batch for a chain at a stamped time, ns.
    pub fn begin(&mut self, chain: u16, now: u64) {
        self.chain = chain;
        self.now = now;
    }

    /// To these records may be sent, and to nobody else: how many bytes of records each one's channel takes now. Each is another node.
    pub fn set_peers(&mut self, rooms: impl Iterator<Item = (Peer, usize)>) {
        self.rooms.clear();
        self.rooms.extend(rooms);
        self.room_at.renew(self.rooms.iter().map(|(peer, _)| peer.node));
    }

    /// The channel to one of the peers takes so many bytes now, if that life of it is the present one; else none. A node that is no peer is
    /// nothing to this chain.
    #[inline]
    pub fn set_room(&mut self, node: u16, room: impl FnOnce(Peer) -> usize) {
        if let Some((peer, known)) = self.room_at.get(node).and_then(|at| self.rooms.get_mut(at)) {
            *known = room(*peer);
        }
    }

    /// The batch's stamped time, ns.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Sends a record if the channel has room. False, and nothing sent, if it has not.
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
        self.records.push(Record { to, kind, start, len });
        true
    }

    /// The packet may leave: the protection's commit rule holds for it.
    #[inline]
    pub(crate) fn release(&mut self, packet: Packet) {
        self.released.push(Released::by_commit(packet));
    }

    /// Records sent in this batch, in order.
    pub fn records(&self) -> impl Iterator<Item = (Record, &[u8])> + '_ {
        self.records.iter().map(|record| (*record, &self.bytes[record.start..record.start + record.len]))
    }

    /// Forgets the records, after they went to their channels.
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
