//! Routes: which runtime has which flow.

use super::limits::SwitchLimits;
use super::sources::Sources;
use crate::tombstones::Tombstones;
use holdfast_protection::flows::{Found, FreeSlots, KeyTable};
use holdfast_protection::{Epoch, Peer};
use holdfast_wire::header::{proto, tcp_flags};
use holdfast_wire::{DropReason, FlowKey, Packet};

/// Index of a route.
pub(crate) type RouteId = u32;

// There are as many routes as flows, so each takes two cache lines.
const _: () = assert!(size_of::<Option<Route>>() == 128);
/// Progress of a flow's opening, as the switch sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// No reply yet.
    Unanswered,
    /// TCP only: the initiator has been answered, and has not gone on.
    Answered,
    /// The flow is no longer half open.
    Over,
}

impl Opening {
    /// The state after a packet of the flow.
    #[inline(never)]
    fn after(self, packet: &Packet, is_reply: bool) -> Opening {
        if packet.layers.protocol != proto::TCP {
            return if is_reply && !packet.is_icmp_error() { Opening::Over } else { self };
        }
        let Some(flags) = packet.tcp().map(|header| header.flags) else { return self };
        match (self, is_reply) {
            (_, true) if flags & tcp_flags::RST != 0 => Opening::Over,
            (Opening::Unanswered, true) => Opening::Answered,
            (Opening::Answered, false) if flags & tcp_flags::SYN == 0 => Opening::Over,
            _ => self,
        }
    }
}

/// A route's doubt: replies under its reply key may be another flow's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The replies are the flow's: the owner has said so, or this incarnation of the
    /// switch saw the flow's first packet leave.
    None,
    /// The key comes from a claim, or a runtime has told it, and it is not known to be
    /// the flow's own. A flow of which that is known takes the key away.
    Unconfirmed,
    /// Another such flow wants the same key. The flow whose packet left first is not
    /// known, so replies to either may be on their way.
    Contested,
}

/// The destination of a flow's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The initiator's tuple as it comes in.
    pub key: FlowKey,
    /// The tuple of replies as they come in, once it is known.
    pub reply: Option<FlowKey>,
    /// The runtime that owns the flow.
    pub owner: Peer,
    /// The epoch of the present owner; a later one is newer.
    pub epoch: Epoch,
    /// The flow's chain.
    pub chain: u16,
    /// When a packet last took the route, ns.
    pub last_seen: u64,
    /// See [`Opening`].
    pub opening: Opening,
    /// The counts of the source that include the flow, a bit each: see `Sources`.
    pub(super) counted: u8,
    /// A packet of the flow has been released, or a replica knows the flow: the flow is
    /// real.
    pub is_real: bool,
    /// See [`Doubt`].
    pub doubt: Doubt,
    /// Packets sent to the owner, less those that could not be delivered; counted until
    /// the flow is real.
    pub sent: u32,
    /// The previous owner and its epoch, until the flow has arrived at the new owner.
    pub moved_from: Option<(Peer, Epoch)>,
}

impl Route {
    /// A route that no packet has taken yet.
    pub(crate) fn new(key: FlowKey, owner: Peer, epoch: Epoch, chain: u16, now: u64) -> Route {
        Route {
            key,
            reply: None,
            owner,
            epoch,
            chain,
            last_seen: now,
            opening: Opening::Unanswered,
            counted: 0,
            is_real: false,
            doubt: Doubt::None,
            sent: 0,
            moved_from: None,
        }
    }

    /// True if replies under the reply key may be another flow's.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubt != Doubt::None
    }
}

/// All routes of a switch. The table is bounded and allocated once.
pub(crate) struct Routes {
    /// Routes by id, up to the highest id ever given.
    slots: Vec<Option<Route>>,
    free: FreeSlots,
    table: KeyTable,
    /// Routes by epoch, to learn reply keys. The ring may forget, because only epochs
    /// under which a packet without a known reply key was sent lately are looked up.
    by_epoch: Vec<(Epoch, RouteId)>,
    /// Tombstones of flows that ended lately.
    ended: Tombstones,
    /// Counts of flows, by source.
    sources: Sources,
    /// Routes whose flows are half open.
    half_open: usize,
    seed: u64,
}

impl Routes {
    pub(crate) fn new(capacity: usize, limits: SwitchLimits, seed: u64) -> Routes {
        Routes {
            slots: Vec::with_capacity(capacity),
            free: FreeSlots::new(capacity),
            table: KeyTable::new(capacity * 2),
            by_epoch: vec![(Epoch::default(), 0); Routes::epochs(capacity)],
            ended: Tombstones::new(capacity),
            sources: Sources::new(limits, capacity, seed),
            half_open: 0,
            seed,
        }
    }

    /// Epochs that the ring remembers.
    fn epochs(capacity: usize) -> usize {
        (capacity * 2).max(1)
    }

    /// An epoch's place in the ring.
    fn place(&self, epoch: Epoch) -> usize {
        (epoch.get() % self.by_epoch.len() as u32) as usize
    }

    /// Bytes of memory for so many routes at once, if as many have ended before.
    pub(crate) fn memory_of(routes: usize, limits: &SwitchLimits) -> usize {
        Routes::memory_with(routes, KeyTable::memory_of(routes * 2), routes)
            + Sources::memory_of(limits, routes)
    }

    /// Bytes of memory in use, for as many routes as there ever were at once. Tombstones
    /// and noted epochs count at full size.
    pub(crate) fn memory(&self) -> usize {
        Routes::memory_with(self.slots.len(), self.table.memory(), self.capacity())
            + self.sources.memory()
    }

    fn memory_with(routes: usize, table: usize, capacity: usize) -> usize {
        let epochs = Routes::epochs(capacity) * size_of::<(Epoch, RouteId)>();
        routes * size_of::<Option<Route>>()
            + table
            + FreeSlots::memory_of(routes)
            + epochs
            + Tombstones::memory_of(capacity)
    }

    pub(crate) fn len(&self) -> usize {
        self.free.capacity() - self.free.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.free.capacity()
    }

    #[inline]
    pub(crate) fn hash(&self, key: &FlowKey) -> u64 {
        key.hash(self.seed)
    }

    #[inline]
    pub(crate) fn touch(&self, hashes: &[u64]) -> u64 {
        hashes.iter().fold(0, |sum, &hash| sum.wrapping_add(self.table.touch(hash)))
    }

    /// Prefetches keys that are about to be looked up: first their buckets, then their
    /// routes, so that the cache misses of a record's keys overlap. The value has no
    /// meaning; use it so that the loads stay.
    pub(crate) fn touch_routes(&self, hashes: &[u64]) -> u64 {
        let mut sum = self.touch(hashes);
        for found in hashes.iter().filter_map(|&hash| self.table.candidate(hash)) {
            if let Some(Some(route)) = self.slots.get(found.slot as usize) {
                sum = sum
                    .wrapping_add(u64::from(route.key.source[15]))
                    .wrapping_add(route.epoch.get().into());
            }
        }
        sum
    }

    #[inline]
    pub(crate) fn find(&self, key: &FlowKey, hash: u64) -> Option<Found> {
        self.table.find(hash, |found| match &self.slots[found.slot as usize] {
            Some(route) if found.is_reply => route.reply.as_ref() == Some(key),
            Some(route) => route.key == *key,
            None => false,
        })
    }

    #[inline]
    pub(crate) fn get(&self, id: RouteId) -> Option<&Route> {
        self.slots.get(id as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: RouteId) -> Option<&mut Route> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    /// Adds a route without a reply key. `None` if there is no room.
    pub(crate) fn insert(&mut self, hash: u64, route: Route) -> Option<RouteId> {
        let id = self.free.next()?;
        if !self.table.insert(hash, Found { slot: id, is_reply: false }) {
            return None;
        }
        self.free.take();
        let epoch = route.epoch;
        let counted = self.sources.add(&route.key, route.chain, route.opening);
        self.half_open += usize::from(route.opening != Opening::Over);
        let route = Some(Route { reply: None, counted, ..route });
        match self.slots.get_mut(id as usize) {
            Some(slot) => *slot = route,
            None => self.slots.push(route),
        }
        self.note_epoch(id, epoch);
        Some(id)
    }

    /// Checks if the source of this key may open another flow in this chain.
    pub(crate) fn admit(&self, key: &FlowKey, chain: u16) -> Result<(), DropReason> {
        self.sources.admit(key, chain)
    }

    /// Advances the opening of a half-open flow, by a packet that has come.
    #[cold]
    pub(crate) fn go_on_opening(&mut self, id: RouteId, packet: &Packet, is_reply: bool) {
        let Some(Some(route)) = self.slots.get_mut(id as usize) else { return };
        route.opening = route.opening.after(packet, is_reply);
        if route.opening == Opening::Over {
            route.counted = self.sources.settle(&route.key, route.chain, route.counted);
            self.half_open -= 1;
        }
    }

    /// Number of half-open flows.
    pub(crate) fn half_open(&self) -> usize {
        self.half_open
    }

    /// Fill of the route table, in 1/1000 of its capacity.
    pub(crate) fn fill(&self) -> u32 {
        (self.len() * 1000 / self.capacity().max(1)) as u32
    }

    /// Gives a route to another owner, under a new epoch.
    pub(crate) fn give(&mut self, id: RouteId, owner: Peer, epoch: Epoch) {
        if let Some(route) = self.get_mut(id) {
            route.owner = owner;
            route.epoch = epoch;
            route.moved_from = None;
            self.note_epoch(id, epoch);
        }
    }

    /// Notes that a packet under this epoch may leave soon.
    pub(crate) fn note_epoch(&mut self, id: RouteId, epoch: Epoch) {
        let at = self.place(epoch);
        self.by_epoch[at] = (epoch, id + 1);
    }

    /// The route with this epoch, if the epoch was noted recently and is still the
    /// route's.
    pub(crate) fn with_epoch(&self, epoch: Epoch) -> Option<RouteId> {
        let (noted, id) = self.by_epoch[self.place(epoch)];
        let id = id.checked_sub(1)?;
        (noted == epoch && self.get(id).is_some_and(|route| route.epoch == epoch)).then_some(id)
    }

    /// Gives a route its reply key. False if the table is full or another route has the
    /// key.
    pub(crate) fn set_reply(&mut self, id: RouteId, reply: FlowKey) -> bool {
        let Some(route) = self.get(id) else { return false };
        if route.reply == Some(reply) {
            return true;
        }
        let old = route.reply;
        let hash = self.hash(&reply);
        if self.find(&reply, hash).is_some()
            || !self.table.insert(hash, Found { slot: id, is_reply: true })
        {
            return false;
        }
        if let Some(old) = old {
            let hash = self.hash(&old);
            self.table.remove(hash, Found { slot: id, is_reply: true });
        }
        if let Some(route) = self.get_mut(id) {
            route.reply = Some(reply);
        }
        true
    }

    /// The route to which replies under this key go, unless it is that of the flow with
    /// this forward key.
    pub(crate) fn other_replied(&self, reply: &FlowKey, key: &FlowKey) -> Option<RouteId> {
        let found = self.find(reply, self.hash(reply)).filter(|found| found.is_reply)?;
        self.get(found.slot).is_some_and(|route| route.key != *key).then_some(found.slot)
    }

    /// True if replies under this key go to another flow than the one that has, or had
    /// lately, this epoch. A flow that has been moved or claimed meanwhile is still the
    /// same flow.
    pub(crate) fn is_anothers(&self, reply: &FlowKey, epoch: Epoch) -> bool {
        let Some(found) = self.find(reply, self.hash(reply)).filter(|found| found.is_reply) else {
            return false;
        };
        let noted = self.by_epoch[self.place(epoch)];
        noted != (epoch, found.slot + 1)
            && self.get(found.slot).is_some_and(|route| route.epoch != epoch)
    }

    /// True if the key is surely that of the flow with this epoch, whatever other
    /// runtimes tell. The flow has had replies under it, or it is the flow's own forward
    /// key.
    pub(crate) fn is_surely_of(&self, reply: &FlowKey, epoch: Epoch) -> bool {
        let Some(found) = self.find(reply, self.hash(reply)) else { return false };
        let is_sure =
            |route: &Route| route.epoch == epoch && !(found.is_reply && route.is_doubtful());
        self.get(found.slot).is_some_and(is_sure)
    }

    /// Takes a route's reply key away, because another flow has it. The flow lives, but
    /// none of its packets leaves.
    pub(crate) fn take_reply(&mut self, id: RouteId) {
        let Some(route) = self.get_mut(id) else { return };
        route.doubt = Doubt::None;
        if let Some(reply) = route.reply.take() {
            let epoch = route.epoch;
            let hash = self.hash(&reply);
            self.table.remove(hash, Found { slot: id, is_reply: true });
            self.note_epoch(id, epoch);
        }
    }

    pub(crate) fn remove(&mut self, id: RouteId) -> Option<Route> {
        let route = self.slots.get_mut(id as usize)?.take()?;
        self.sources.remove(&route.key, route.chain, route.counted);
        self.half_open -= usize::from(route.opening != Opening::Over);
        let hash = self.hash(&route.key);
        self.table.remove(hash, Found { slot: id, is_reply: false });
        if let Some(reply) = route.reply {
            let hash = self.hash(&reply);
            self.table.remove(hash, Found { slot: id, is_reply: true });
        }
        self.free.put(id);
        Some(route)
    }

    /// Removes the route of a flow that ended, and keeps a tombstone.
    pub(crate) fn end(&mut self, id: RouteId) -> Option<Route> {
        let route = self.remove(id)?;
        let hash = self.hash(&route.key);
        self.ended.note(hash, route.epoch);
        Some(route)
    }

    /// True if the flow of this hash, under this epoch or a later one, is known to have
    /// ended.
    pub(crate) fn has_ended(&self, hash: u64, epoch: Epoch) -> bool {
        self.ended.is_late(hash, epoch)
    }

    pub(crate) fn visit(&mut self, act: impl FnMut(&mut Route)) {
        self.slots.iter_mut().flatten().for_each(act);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RouteId, &Route)> + '_ {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(id, slot)| slot.as_ref().map(|route| (id as RouteId, route)))
    }
}
