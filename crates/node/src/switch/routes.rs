//! Routes: which runtime has which flow.

use super::sources::{SourceLimits, Sources};
use crate::gone::GoneFlows;
use holdfast_protection::flows::{Found, FreeSlots, KeyTable};
use holdfast_protection::{Epoch, Peer};
use holdfast_wire::header::{proto, tcp_flags};
use holdfast_wire::{DropReason, FlowKey, Packet};

/// Index of a route.
pub(crate) type RouteId = u32;

// There are as many as flows: two cache lines each.
const _: () = assert!(size_of::<Option<Route>>() == 128);
/// How far a flow's opening has come, as the switch sees it.
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
    /// The opening's state after a packet of the flow.
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

/// Whether replies under a route's reply key may be another flow's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The replies are the flow's: its owner has said so, or this life of the switch saw its first packet
    /// leave.
    None,
    /// The key comes from a claim or a telling of a flow of which that is not known: one of which
    /// it is takes the key away.
    Unconfirmed,
    /// Another such flow wants the same key. The flow whose first packet left is not known, so replies
    /// to either may be on their way.
    Contested,
}

/// Where a flow's packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The initiator's tuple as it comes in.
    pub key: FlowKey,
    /// The tuple of replies as they come in, once it is known.
    pub reply: Option<FlowKey>,
    /// The runtime that owns the flow.
    pub owner: Peer,
    /// Given with the route; later is newer.
    pub epoch: Epoch,
    /// The flow's chain.
    pub chain: u16,
    /// When a packet last took the route, ns.
    pub last_seen: u64,
    /// See [`Opening`].
    pub opening: Opening,
    /// As what it is counted of its source: see `Sources`.
    pub(super) counted: u8,
    /// Something of the flow has been released, or is known to a replica: it is a flow.
    pub is_real: bool,
    /// See [`Doubt`].
    pub doubt: Doubt,
    /// Until it is real: packets sent to the owner, without those that could not be delivered.
    pub sent: u32,
    /// Who had it before, under which epoch, until the flow has arrived at its new owner.
    pub moved_from: Option<(Peer, Epoch)>,
}

impl Route {
    /// A route over which nothing has gone yet.
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

    /// Replies under the reply key may be another flow's.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubt != Doubt::None
    }
}

/// All routes of a switch: bounded, made once.
pub(crate) struct Routes {
    /// Routes by id, up to the highest id ever given.
    slots: Vec<Option<Route>>,
    free: FreeSlots,
    table: KeyTable,
    /// Epoch to route, for replies that are learned. A ring: only epochs under which a packet without a known reply key was sent lately are asked for.
    by_epoch: Vec<(Epoch, RouteId)>,
    /// Flows that ended lately.
    ended: GoneFlows,
    /// Counts of flows, by source.
    sources: Sources,
    /// Routes whose flows are half open.
    half_open: usize,
    seed: u64,
}

impl Routes {
    pub(crate) fn new(capacity: usize, limits: SourceLimits, seed: u64) -> Routes {
        Routes {
            slots: Vec::with_capacity(capacity),
            free: FreeSlots::new(capacity),
            table: KeyTable::new(capacity * 2),
            by_epoch: vec![(Epoch::default(), 0); Routes::epochs(capacity)],
            ended: GoneFlows::new(capacity),
            sources: Sources::new(limits, capacity, seed),
            half_open: 0,
            seed,
        }
    }

    /// Epochs that are remembered.
    fn epochs(capacity: usize) -> usize {
        (capacity * 2).max(1)
    }

    /// The place of an epoch in the ring.
    fn place(&self, epoch: Epoch) -> usize {
        (epoch.get() % self.by_epoch.len() as u32) as usize
    }

    /// Bytes of memory of so many routes at once, as many of which have ended before.
    pub(crate) fn memory_of(routes: usize, limits: &SourceLimits) -> usize {
        Routes::memory_with(routes, KeyTable::memory_of(routes * 2), routes) + Sources::memory_of(limits, routes)
    }

    /// Bytes of memory in use, for as many routes as there ever were at once; what is remembered of former ones is counted as if there was no more room for it.
    pub(crate) fn memory(&self) -> usize {
        Routes::memory_with(self.slots.len(), self.table.memory(), self.capacity()) + self.sources.memory()
    }

    fn memory_with(routes: usize, table: usize, capacity: usize) -> usize {
        let epochs = Routes::epochs(capacity) * size_of::<(Epoch, RouteId)>();
        routes * size_of::<Option<Route>>() + table + FreeSlots::memory_of(routes) + epochs + GoneFlows::memory_of(capacity)
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

    /// For keys that are about to be found: brings their buckets into the cache, then their routes, so that the misses of a record's keys overlap instead
    /// of following one another. The value means nothing; use it so that the loads stay.
    pub(crate) fn touch_routes(&self, hashes: &[u64]) -> u64 {
        let mut sum = self.touch(hashes);
        for found in hashes.iter().filter_map(|&hash| self.table.candidate(hash)) {
            if let Some(Some(route)) = self.slots.get(found.slot as usize) {
                sum = sum.wrapping_add(u64::from(route.key.source[15])).wrapping_add(route.epoch.get().into());
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

    /// Whether the source of this key may open another flow in this chain.
    pub(crate) fn admit(&self, key: &FlowKey, chain: u16) -> Result<(), DropReason> {
        self.sources.admit(key, chain)
    }

    /// A packet of a flow that is half open has come.
    #[cold]
    pub(crate) fn go_on_opening(&mut self, id: RouteId, packet: &Packet, is_reply: bool) {
        let Some(Some(route)) = self.slots.get_mut(id as usize) else { return };
        route.opening = route.opening.after(packet, is_reply);
        if route.opening == Opening::Over {
            route.counted = self.sources.settle(&route.key, route.chain, route.counted);
            self.half_open -= 1;
        }
    }

    /// Flows that are half open.
    pub(crate) fn half_open(&self) -> usize {
        self.half_open
    }

    /// How many of them there are, in 1/1000 of those that there may be.
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

    /// A packet under this epoch may leave soon.
    pub(crate) fn note_epoch(&mut self, id: RouteId, epoch: Epoch) {
        let at = self.place(epoch);
        self.by_epoch[at] = (epoch, id + 1);
    }

    /// The route with this epoch, if it was given recently and still has it.
    pub(crate) fn with_epoch(&self, epoch: Epoch) -> Option<RouteId> {
        let (noted, id) = self.by_epoch[self.place(epoch)];
        let id = id.checked_sub(1)?;
        (noted == epoch && self.get(id).is_some_and(|route| route.epoch == epoch)).then_some(id)
    }

    /// Gives a route its reply key. False if the table is full or another route has it.
    pub(crate) fn set_reply(&mut self, id: RouteId, reply: FlowKey) -> bool {
        let Some(route) = self.get(id) else { return false };
        if route.reply == Some(reply) {
            return true;
        }
        let old = route.reply;
        let hash = self.hash(&reply);
        if self.find(&reply, hash).is_some() || !self.table.insert(hash, Found { slot: id, is_reply: true }) {
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

    /// The route to which replies under this key go, if it is another one than that of the flow with this forward key.
    pub(crate) fn other_replied(&self, reply: &FlowKey, key: &FlowKey) -> Option<RouteId> {
        let found = self.find(reply, self.hash(reply)).filter(|found| found.is_reply)?;
        self.get(found.slot).is_some_and(|route| route.key != *key).then_some(found.slot)
    }

    /// Replies under this key go to another flow than the one that has, or had lately, this epoch: a flow that has been moved or claimed meanwhile is still the same.
    pub(crate) fn is_anothers(&self, reply: &FlowKey, epoch: Epoch) -> bool {
        let Some(found) = self.find(reply, self.hash(reply)).filter(|found| found.is_reply) else { return false };
        let noted = self.by_epoch[self.place(epoch)];
        noted != (epoch, found.slot + 1) && self.get(found.slot).is_some_and(|route| route.epoch != epoch)
    }

    /// The flow with this epoch has had replies under this key, or it is the flow's own, on the way back: whatever others tell, it is theirs.
    pub(crate) fn is_surely_of(&self, reply: &FlowKey, epoch: Epoch) -> bool {
        let Some(found) = self.find(reply, self.hash(reply)) else { return false };
        let is_sure = |route: &Route| route.epoch == epoch && !(found.is_reply && route.is_doubtful());
        self.get(found.slot).is_some_and(is_sure)
    }

    /// Takes a route's reply key away: another flow has it. The flow lives, and nothing of it leaves.
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

    /// Removes the route of a flow that ended, and remembers that it did.
    pub(crate) fn end(&mut self, id: RouteId) -> Option<Route> {
        let route = self.remove(id)?;
        let hash = self.hash(&route.key);
        self.ended.note(hash, route.epoch);
        Some(route)
    }

    /// True if the flow that had this key under this epoch is known to have ended, or a later one is.
    pub(crate) fn has_ended(&self, hash: u64, epoch: Epoch) -> bool {
        self.ended.is_late(hash, epoch)
    }

    pub(crate) fn visit(&mut self, act: impl FnMut(&mut Route)) {
        self.slots.iter_mut().flatten().for_each(act);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RouteId, &Route)> + '_ {
        self.slots.iter().enumerate().filter_map(|(id, slot)| slot.as_ref().map(|route| (id as RouteId, route)))
    }
}
