//! The parking lot: packets that wait for shared state on its way, for a route, or for
//! the packet before them.

use holdfast_nf::Position;
use holdfast_protection::{Epoch, FlowRef};
use holdfast_wire::{FlowKey, Packet};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Packets that may wait in one chain, and for one flow.
const LIMIT: usize = 8192;
const LIMIT_PER_FLOW: u32 = 64;
/// Packets that may wait in the lobby, for room for their flows.
const LOBBY: usize = 1024;
/// The longest that a packet may wait, stamped time, ns.
const TIMEOUT: u64 = 2_000_000_000;

/// A packet with its position in the chain, from which it goes on.
pub(crate) struct Parked {
    pub(crate) flow: FlowRef,
    pub(crate) key: FlowKey,
    pub(crate) position: Position,
    pub(crate) since: u64,
    pub(crate) packet: Packet,
}

/// A packet that would open a flow, while there is no room for the flow's state.
pub(crate) struct Visitor {
    pub(crate) key: FlowKey,
    pub(crate) hash: u64,
    pub(crate) packet: Packet,
}

/// See the module. Packets are kept in order of arrival.
pub(crate) struct Parking {
    packets: VecDeque<Parked>,
    /// Packets of flows that do not exist yet.
    lobby: VecDeque<Visitor>,
    /// Number of packets in the lobby, by the hash of their flow's key.
    outside: BTreeMap<u64, u32>,
}

impl Parking {
    pub(crate) fn new() -> Parking {
        Parking {
            packets: VecDeque::with_capacity(256),
            lobby: VecDeque::new(),
            outside: BTreeMap::new(),
        }
    }

    /// Puts a packet into the lobby until there is room for its flow. Gives the packet
    /// back if the lobby is full.
    pub(crate) fn wait_outside(&mut self, visitor: Visitor) -> Result<(), Visitor> {
        if self.lobby.len() == LOBBY {
            return Err(visitor);
        }
        *self.outside.entry(visitor.hash).or_default() += 1;
        self.lobby.push_back(visitor);
        Ok(())
    }

    /// Number of packets in the lobby.
    pub(crate) fn outside(&self) -> usize {
        self.lobby.len()
    }

    /// True if a packet with this key hash waits in the lobby: later ones go behind it.
    #[inline]
    pub(crate) fn is_outside(&self, hash: u64) -> bool {
        !self.outside.is_empty() && self.outside.contains_key(&hash)
    }

    /// Takes all packets of the first so many flows out of the lobby, in order.
    pub(crate) fn come_in(&mut self, flows: usize) -> Vec<Visitor> {
        let mut first = BTreeSet::new();
        for visitor in &self.lobby {
            if first.len() == flows && !first.contains(&visitor.hash) {
                continue;
            }
            first.insert(visitor.hash);
        }
        let (coming, staying): (VecDeque<Visitor>, VecDeque<Visitor>) =
            core::mem::take(&mut self.lobby)
                .into_iter()
                .partition(|visitor| first.contains(&visitor.hash));
        self.lobby = staying;
        first.iter().for_each(|hash| _ = self.outside.remove(hash));
        coming.into()
    }

    /// The first packet of the lobby, if it has waited too long since the switch stamped
    /// it.
    pub(crate) fn pop_outside_older_than(&mut self, now: u64) -> Option<Visitor> {
        let is_late = |visitor: &Visitor| now.saturating_sub(visitor.packet.meta.stamp) > TIMEOUT;
        let visitor =
            if self.lobby.front().is_some_and(is_late) { self.lobby.pop_front() } else { None }?;
        if let Some(count) = self.outside.get_mut(&visitor.hash) {
            *count -= 1;
            if *count == 0 {
                self.outside.remove(&visitor.hash);
            }
        }
        Some(visitor)
    }

    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Parks a packet of a flow that has `waiting` packets parked already. Gives the
    /// packet back if there is no room.
    pub(crate) fn push(&mut self, parked: Parked, waiting: u32) -> Result<(), Packet> {
        if self.packets.len() >= LIMIT || waiting >= LIMIT_PER_FLOW {
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

    /// The number of functions that have a flow open whose first packet waits in the
    /// middle of the chain.
    pub(crate) fn opened(&self, flow: FlowRef) -> usize {
        let is_its = |parked: &&Parked| parked.flow == flow && parked.position.opening;
        let position = self.packets.iter().find(is_its).map(|parked| parked.position);
        position.map_or(0, |position| usize::from(position.passed) + usize::from(position.opened))
    }

    /// Moves packets to this flow that came under its key and epoch, have not begun, and
    /// wait with another flow. Returns the flows with which they waited.
    pub(crate) fn readdress(&mut self, key: &FlowKey, epoch: Epoch, flow: FlowRef) -> Vec<FlowRef> {
        let is_its = |parked: &&mut Parked| {
            parked.flow.slot != flow.slot
                && parked.position == Position::START
                && parked.key == *key
                && parked.packet.meta.commit == epoch.get()
        };
        let others = self.packets.iter_mut().filter(is_its);
        others.map(|parked| core::mem::replace(&mut parked.flow, flow)).collect()
    }

    /// Takes the packets of one flow, in order.
    pub(crate) fn take_all(&mut self, flow: FlowRef) -> Vec<Parked> {
        let is_its = |parked: &Parked| parked.flow == flow;
        let (taken, kept) = core::mem::take(&mut self.packets).into_iter().partition(is_its);
        self.packets = kept;
        Vec::from(taken)
    }

    /// The first packet, if it has waited too long.
    pub(crate) fn pop_older_than(&mut self, now: u64) -> Option<Parked> {
        let is_late = |parked: &Parked| now.saturating_sub(parked.since) > TIMEOUT;
        if self.packets.front().is_some_and(is_late) { self.packets.pop_front() } else { None }
    }
}
