//! Packets that wait for their flow: for shared state on its way, for a route, for the packet before them.

use holdfast_nf::Position;
use holdfast_protection::Slot;
use holdfast_wire::{FlowKey, Packet};
use std::collections::VecDeque;

/// Packets that may wait in one chain, and for one flow.
const LIMIT: usize = 8192;
const LIMIT_PER_FLOW: u32 = 64;
/// How long a packet may wait, stamped time, ns.
const PATIENCE: u64 = 2_000_000_000;

/// A packet with its place in the chain: it goes on where it stopped.
pub(crate) struct Parked {
    pub(crate) slot: Slot,
    pub(crate) generation: u32,
    pub(crate) key: FlowKey,
    pub(crate) position: Position,
    pub(crate) since: u64,
    pub(crate) packet: Packet,
}

/// See the module. In order of arrival.
pub(crate) struct Parking {
    packets: VecDeque<Parked>,
}

impl Parking {
    pub(crate) fn new() -> Parking {
        Parking { packets: VecDeque::with_capacity(256) }
    }

    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Parks a packet of a flow of which `waiting` are parked already. Gives the packet back if there is no room.
    pub(crate) fn push(&mut self, parked: Parked, waiting: u32) -> Result<(), Packet> {
        if self.packets.len() == LIMIT || waiting == LIMIT_PER_FLOW {
            return Err(parked.packet);
        }
        self.packets.push_back(parked);
        Ok(())
    }

    pub(crate) fn pop(&mut self) -> Option<Parked> {
        self.packets.pop_front()
    }

    pub(crate) fn put_back(&mut self, parked: Parked) {
        self.packets.push_back(parked);
    }

    /// The packets of one flow, in order.
    pub(crate) fn take_all(&mut self, slot: Slot, generation: u32) -> Vec<Parked> {
        let is_its = |parked: &Parked| parked.slot == slot && parked.generation == generation;
        let (taken, kept) = core::mem::take(&mut self.packets).into_iter().partition(is_its);
        self.packets = kept;
        Vec::from(taken)
    }

    /// The first packet, if it has waited too long.
    pub(crate) fn pop_older_than(&mut self, now: u64) -> Option<Parked> {
        let is_late = |parked: &Parked| now.saturating_sub(parked.since) > PATIENCE;
        if self.packets.front().is_some_and(is_late) { self.packets.pop_front() } else { None }
    }
}
