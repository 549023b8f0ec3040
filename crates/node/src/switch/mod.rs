//! The virtual switch: a runtime whose flow actors only forward.
//!
//! Theory of operation (NFVactor: virtual switch). A packet's key leads to a route, and
//! the route to the runtime that owns the flow. A key without a route gets one: the
//! service-chain rules name the chain, and the least loaded runtime becomes the owner.
//! The route's epoch travels with every packet, so a runtime knows whether it still owns
//! the flow. The reply key is learned from the first packet that the chain releases,
//! before a reply can exist. When a runtime fails, packets of its flows wait here. The
//! waiting packets go on once a replica has claimed the route (under a new epoch, which
//! fences the old owner), or the coordinator says that no replica will. A switch has
//! nothing that would have to be saved: its next incarnation asks the runtimes
//! ([`rebuild`]). Every packet is stamped with a time that never repeats and never goes
//! back.
//!
//! In: packets with their keys, messages, the time. Out: packets for runtimes, messages.
//! Never: a look at a flow's state.

mod limits;
mod log;
mod ownership;
mod rates;
mod rebuild;
mod records;
mod routes;
mod sources;
mod suspects;
mod targets;
mod trace;

pub use limits::SwitchLimits;
pub use routes::{Doubt, Opening, Route};
pub use suspects::SetAside;

use crate::channel::{Fabric, FabricConfig};
use crate::message::{Control, TraceStep, kind};
use crate::rules::{Assembly, RuleSet};
use holdfast_protection::{Epoch, Peer};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::nsh::{self, Flags, Outer, index};
use holdfast_wire::selector::Selector;
use holdfast_wire::{DropCounters, DropReason, FlowKey, NodeId, Packet, PacketPool};
use log::Logs;
use ownership::Claims;
use rates::Rates;
use rebuild::Rebuild;
use routes::Routes;
use std::collections::VecDeque;
use suspects::Suspects;
use targets::Targets;
use trace::Stage;

/// A switch's configuration.
#[derive(Debug, Clone)]
pub struct SwitchConfig {
    /// The switch's node and incarnation.
    pub me: Peer,
    /// The switch's number in packets' metadata.
    pub number: u8,
    /// Routes that the switch may have.
    pub flows: usize,
    /// Limits of flows and rates, by source and by chain.
    pub limits: SwitchLimits,
    /// The cluster's hash seed.
    pub seed: u64,
    /// Interval between two ticks to each runtime, ns.
    pub tick_interval: u64,
    /// How long a packet may wait for its flow's recovery, or for the switch's own, ns.
    pub timeout: u64,
    /// The fabric endpoint's configuration.
    pub fabric: FabricConfig,
    /// By chain: bytes of each runtime's log of packets that were sent for the chain. 0
    /// is no log, and chains behind the list have none.
    pub logs: Vec<usize>,
    /// The switch had an earlier incarnation: the runtimes are asked for its routes.
    pub succeeds: bool,
}

/// Packets that may wait for recoveries.
const HELD_LIMIT: usize = 16384;
/// Routes checked for idleness per tick.
const SWEEP_PER_TICK: usize = 4096;
/// A route that no packet has taken for so long is removed, ns: longer than any flow's
/// own deadline.
const IDLE: u64 = 3 * 3600 * 1_000_000_000;
/// A route over which no packet was ever released is removed when no packet has taken it
/// for so long beyond the switch's time-out, ns. Its packets may wait here, and after
/// that at the runtime.
const UNREAL_IDLE: u64 = 5 * 1_000_000_000;
/// Packets of a burst that a trace begins to follow. Each step is formatted as text, and
/// the other packets wait meanwhile.
const TRACED_AT_ONCE: u32 = 16;

/// If two flows want one reply key, and neither is known to have it, replies under it go
/// to neither for so long, ns. By then the replies that were on their way when the switch
/// died have arrived.
const LATE_REPLIES: u64 = 5 * 1_000_000_000;

/// A packet to be routed.
struct Arrival {
    key: FlowKey,
    hash: u64,
    packet: Packet,
    /// The time of its arrival, ns.
    since: u64,
    /// True once it has been counted at the rates of its chain.
    is_counted: bool,
}

/// A released packet that waits until all runtimes have told their flows.
struct Untold {
    since: u64,
    from: Peer,
    packet: Packet,
}

/// See the module.
pub struct Switch {
    config: SwitchConfig,
    fabric: Fabric,
    routes: Routes,
    rates: Rates,
    targets: Targets,
    view: u64,
    rules: RuleSet,
    coming: Assembly,
    /// Set while a new incarnation has routes to learn.
    rebuild: Option<Rebuild>,
    claims: Claims,
    /// Replies of [`Doubt::Contested`] routes are dropped until this time, ns.
    contested_until: u64,
    logs: Logs,
    suspects: Suspects,
    /// True if the runtimes live on several hosts.
    has_hosts: bool,
    last_stamp: u64,
    /// Lead of the stamps over this host's clock, ns: stamps continue where those of the
    /// previous incarnation ended.
    clock_ahead: Option<i64>,
    /// The last stamp that was given before the time was known.
    untimed: u64,
    next_epoch: Epoch,
    next_tick: u64,
    sweep_at: usize,
    work: Vec<Arrival>,
    hashes: Vec<u64>,
    /// Hashes of one message's keys, while the message is handled.
    expected: Vec<u64>,
    held: VecDeque<Arrival>,
    /// Released packets that wait until all runtimes have told their flows.
    untold: VecDeque<Untold>,
    /// The time of the latest turn, ns.
    turned_at: u64,
    trace: Option<(Selector, u32)>,
    /// Steps of traced packets.
    pub traces: Vec<TraceStep>,
    drops: DropCounters,
    packets: u64,
}

impl Switch {
    /// A switch without routes. The constructor asks the coordinator for the rules.
    pub fn new(config: SwitchConfig) -> Switch {
        let mut fabric = Fabric::new(config.me, config.fabric);
        fabric.send_control(NodeId::COORDINATOR, &Control::RulesInForce { version: 0 });
        let routes = Routes::new(config.flows, config.limits.clone(), config.seed);
        Switch {
            fabric,
            routes,
            rates: Rates::new(&config.limits, config.seed),
            targets: Targets::default(),
            view: 0,
            rules: RuleSet::default(),
            coming: Assembly::default(),
            rebuild: config.succeeds.then(Rebuild::default),
            claims: Claims::default(),
            contested_until: 0,
            logs: Logs::new(config.logs.clone()),
            suspects: Suspects::default(),
            has_hosts: false,
            last_stamp: 0,
            clock_ahead: None,
            untimed: 0,
            next_epoch: Epoch::FIRST,
            next_tick: 0,
            sweep_at: 0,
            work: Vec::with_capacity(256),
            hashes: Vec::with_capacity(256),
            expected: Vec::with_capacity(64),
            held: VecDeque::with_capacity(256),
            untold: VecDeque::new(),
            turned_at: 0,
            trace: None,
            traces: Vec::new(),
            drops: DropCounters::default(),
            packets: 0,
            config,
        }
    }

    /// Takes over the packet log and the suspects of the previous incarnation, which was
    /// on this host too.
    pub(crate) fn keep_log_of(&mut self, before: &mut Switch) {
        self.logs = before.logs.take();
        self.suspects = core::mem::take(&mut before.suspects);
    }

    /// The switch's node and incarnation.
    pub fn me(&self) -> Peer {
        self.config.me
    }

    /// The endpoint, for the driver that carries its frames.
    pub fn fabric(&mut self) -> &mut Fabric {
        &mut self.fabric
    }

    /// Drops by reason.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// Packets that came in for chains.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Number of routes.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Bytes of memory that routes and budgets of rates take: as many as there ever were
    /// at once.
    pub fn memory(&self) -> usize {
        self.routes.memory() + self.rates.memory()
    }

    /// Bytes of memory for so many routes, if as many have ended before.
    pub fn memory_of(routes: usize, limits: &SwitchLimits) -> usize {
        Routes::memory_of(routes, limits) + Rates::memory_of(limits)
    }

    /// The most routes that there may be.
    pub fn capacity(&self) -> usize {
        self.routes.capacity()
    }

    /// Routes of flows that are half open.
    pub fn half_open(&self) -> usize {
        self.routes.half_open()
    }

    /// Number of routes that lead to this runtime.
    pub fn routes_to(&self, peer: Peer) -> usize {
        self.targets.routes(peer)
    }

    /// The flows that are lost with this runtime if no other process has copies. A route
    /// over which no packet has been released does not count. `None` if the runtime has
    /// not told this incarnation of the switch all its flows.
    pub fn flows_of(&self, peer: Peer) -> Option<u64> {
        self.claims.knows(peer).then(|| self.targets.flows(peer) as u64)
    }

    /// True if there is no route.
    pub fn is_empty(&self) -> bool {
        self.routes.len() == 0
    }

    /// The service-chain rules in force.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Packets that wait for a recovery, or for the first rules.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// All routes, for inspection.
    pub fn routes(&self) -> impl Iterator<Item = &Route> + '_ {
        self.routes.iter().map(|(_, route)| route)
    }

    /// Traces the next `count` packets that the selector matches, at most 16 of a burst;
    /// a count of 0 ends it.
    pub fn set_trace(&mut self, selector: Selector, count: u32) {
        self.trace = (count > 0).then_some((selector, count));
    }

    /// Takes a packet for a chain. [`Switch::forward`] sends it on with the others of its
    /// burst.
    #[inline]
    pub fn handle_packet(&mut self, key: FlowKey, mut packet: Packet) {
        self.packets += 1;
        if packet.layers.fragment_offset != 0 {
            key.note(&mut packet);
        }
        let hash = self.routes.hash(&key);
        self.hashes.push(hash);
        self.work.push(Arrival { key, hash, packet, since: 0, is_counted: false });
    }

    /// Sends the burst's packets to their runtimes, encapsulated.
    pub fn forward(&mut self, now: u64, out: &mut Vec<(Peer, Packet)>, pool: &mut dyn PacketPool) {
        core::hint::black_box(self.routes.touch(&self.hashes));
        self.hashes.clear();
        let mut work = core::mem::take(&mut self.work);
        let mut traced = TRACED_AT_ONCE;
        for mut arrival in work.drain(..) {
            arrival.since = now;
            let packet = &mut arrival.packet;
            self.stamp(now);
            packet.meta.stamp = self.last_stamp;
            packet.meta.switch = self.config.number;
            packet.meta.flags &= Flags::OWN;
            if self.trace.is_some() && traced > 0 {
                traced -= u32::from(self.start_trace(&arrival.key, packet));
            }
            self.route(arrival, now, out, pool);
        }
        self.work = work;
    }

    /// Advances to the next stamp.
    #[inline]
    fn stamp(&mut self, now: u64) {
        if self.rebuild.is_some()
            && self.clock_ahead.is_none()
            && !is_planted(Fault::TellsTimeTooSoon)
        {
            // No runtime has told yet which time it was by the previous incarnation's
            // stamps, and this host's clock may be days ahead.
            self.last_stamp += 1;
            self.untimed = self.last_stamp;
            return;
        }
        let time = now.saturating_add_signed(self.clock_ahead.unwrap_or(0));
        self.last_stamp = time.max(self.last_stamp + 1);
    }

    fn drop(&mut self, packet: Packet, reason: DropReason, pool: &mut dyn PacketPool) {
        self.drops.count(reason);
        if packet.meta.flags & Flags::TRACE != 0 {
            self.trace(&packet, Stage::In, format!("dropped by the switch: {reason}"));
        }
        pool.put(packet);
    }

    #[inline]
    fn route(
        &mut self,
        mut arrival: Arrival,
        now: u64,
        out: &mut Vec<(Peer, Packet)>,
        pool: &mut dyn PacketPool,
    ) {
        let (id, is_reply) = match self.routes.find(&arrival.key, arrival.hash) {
            Some(found) => (found.slot, found.is_reply),
            // A key without a route may be a new flow's or a known one's while rules or
            // routes are missing. The coordinator and the runtimes have been asked.
            None if self.rules.version() == 0 || self.rebuild.is_some() => {
                return self.hold(arrival, pool);
            }
            None => {
                if arrival.packet.meta.flags & Flags::TRACE != 0 {
                    self.trace_rule(&arrival.key, &arrival.packet);
                }
                match self.new_route(&mut arrival, now) {
                    Ok(id) => (id, false),
                    Err(reason) => return self.drop(arrival.packet, reason, pool),
                }
            }
        };
        let Some(route) = self.routes.get_mut(id) else { return };
        route.last_seen = now;
        if !arrival.is_counted {
            let bytes = arrival.packet.ip_len();
            let Arrival { since, .. } = arrival;
            if !self.rates.conforms(route.chain, &route.key, is_reply, bytes, since) {
                return self.drop(arrival.packet, DropReason::RateExceeded, pool);
            }
            arrival.is_counted = true;
        }
        let is_contested = route.doubt == Doubt::Contested && now < self.contested_until;
        if route.is_doubtful() && !is_contested && self.rebuild.is_none() {
            // All runtimes have told, and late replies have come: a flow that had a reply
            // before the switch died has been claimed by now.
            route.doubt = if is_reply { Doubt::None } else { Doubt::Unconfirmed };
        }
        let route = *route;
        // While runtimes tell their flows, the key may turn out to be another flow's.
        let is_unsure = is_reply && route.is_doubtful();
        if is_unsure && self.rebuild.is_none() {
            return self.drop(arrival.packet, DropReason::LostInFailure, pool);
        }
        let may_go_on = match route.opening {
            Opening::Unanswered => is_reply,
            Opening::Answered => true,
            Opening::Over => false,
        };
        if may_go_on {
            self.routes.go_on_opening(id, &arrival.packet, is_reply);
        }
        // If the owner is not running, or not any more, the packet waits for the
        // coordinator's decision.
        if is_unsure
            || self.claims.is_provisional(id)
            || self.logs.holds(id)
            || !self.targets.serves(route.owner)
        {
            return self.hold(arrival, pool);
        }
        if !route.is_real
            && let Some(route) = self.routes.get_mut(id)
        {
            route.sent = route.sent.saturating_add(1);
        }
        if route.reply.is_none() {
            // A flow without a reply key is found by the epoch of its released packets,
            // which may be an old one.
            self.routes.note_epoch(id, route.epoch);
        }
        self.send(&route, arrival.packet, out, pool);
    }

    fn hold(&mut self, held: Arrival, pool: &mut dyn PacketPool) {
        if self.held.len() == HELD_LIMIT {
            self.drop(held.packet, DropReason::HeldOverflow, pool);
        } else {
            self.held.push_back(held);
        }
    }

    #[inline]
    fn send(
        &mut self,
        route: &Route,
        mut packet: Packet,
        out: &mut Vec<(Peer, Packet)>,
        pool: &mut dyn PacketPool,
    ) {
        packet.meta.chain = route.chain;
        packet.meta.commit = route.epoch.get();
        packet.meta.epoch = route.epoch.low();
        // A reply key that may be taken away is not shown to the owner as the flow's own.
        let is_unsure =
            route.doubt == Doubt::Contested || route.is_doubtful() && self.rebuild.is_some();
        if route.reply.is_none() || is_unsure {
            packet.meta.flags |= Flags::NEW;
        }
        if !self.logs.note(route.owner, route.chain, route.epoch, &packet) {
            return self.drop(packet, DropReason::LogFull, pool);
        }
        let outer = Outer {
            destination: route.owner.mac(),
            source: self.config.me.mac(),
            index: index::TO_RUNTIME,
        };
        if nsh::encapsulate(&mut packet, outer) {
            out.push((route.owner, packet));
        } else {
            self.drop(packet, DropReason::FrameTooLarge, pool);
        }
    }

    fn new_route(
        &mut self,
        arrival: &mut Arrival,
        now: u64,
    ) -> Result<routes::RouteId, DropReason> {
        let Arrival { key, hash, since, ref packet, .. } = *arrival;
        if self.suspects.is_closed(&key, now) {
            return Err(DropReason::FlowClosed);
        }
        let rule = self.rules.find(&key, packet.meta.ingress).ok_or(DropReason::NoRule)?;
        self.routes.admit(&key, rule.chain)?;
        if !arrival.is_counted
            && !self.rates.conforms(rule.chain, &key, false, packet.ip_len(), since)
        {
            return Err(DropReason::RateExceeded);
        }
        arrival.is_counted = true;
        let owner = self.targets.least(rule.cluster, now).ok_or(DropReason::NoRuntime)?;
        let route = Route::new(key, owner, self.next_epoch, rule.chain, now);
        let id = self.routes.insert(hash, route).ok_or(DropReason::RouteTableFull)?;
        self.targets.count(owner, 1);
        self.targets.count_opening(owner, 1);
        self.next_epoch = self.next_epoch.next();
        Ok(id)
    }

    fn remove_route(&mut self, id: routes::RouteId) {
        self.logs.give_up(id);
        if let Some(route) = self.routes.remove(id) {
            self.count_removed(&route);
        }
    }

    /// Removes the route of a flow that has ended: no replica may claim it any more.
    fn end_route(&mut self, id: routes::RouteId) {
        self.logs.give_up(id);
        if let Some(route) = self.routes.end(id) {
            self.count_removed(&route);
        }
    }

    /// Removes the route of a flow whose key belongs to another flow, and tells the
    /// owner. An owner that is not told keeps a flow that no packet reaches, until its
    /// time-out.
    fn end_rival(&mut self, id: routes::RouteId) {
        let Some(Route { key, owner, epoch, .. }) = self.routes.get(id).copied() else { return };
        self.end_route(id);
        // If the channel is full, the owner keeps the flow until its time-out.
        self.fabric.send_ended(owner.node, kind::ENDED, &[(key, epoch)]);
    }

    fn count_removed(&mut self, route: &Route) {
        self.targets.count(route.owner, -1);
        if !route.is_real {
            self.targets.count_opening(route.owner, -1);
        }
    }

    /// Notes that a packet of the flow has been released, or that a replica knows the
    /// flow.
    fn make_real(&mut self, id: routes::RouteId) {
        if let Some(route) = self.routes.get_mut(id)
            && !core::mem::replace(&mut route.is_real, true)
        {
            self.targets.count_opening(route.owner, -1);
        }
    }

    /// Gives a route to another owner, under a new epoch. The flow is real even if no
    /// packet was released, because a runtime has it.
    fn give(&mut self, id: routes::RouteId, owner: Peer, epoch: Epoch) {
        self.make_real(id);
        self.routes.give(id, owner, epoch);
    }

    /// Removes the encapsulation of a frame that could not be delivered to its runtime
    /// and is to be dropped. If no packet of this switch that took the same route was
    /// delivered, no flow exists, and the route is removed.
    pub fn handle_undelivered(&mut self, frame: &mut Packet) {
        let Some(outer) = nsh::decapsulate(frame) else { return };
        let is_packet = outer.index == index::TO_RUNTIME && outer.source == self.config.me.mac();
        if !is_packet || frame.meta.flags & Flags::OAM != 0 || frame.meta.flags & Flags::NEW == 0 {
            return;
        }
        let Some(id) = self.routes.with_epoch(Epoch::new(frame.meta.commit)) else { return };
        let Some(route) = self.routes.get_mut(id).filter(|route| !route.is_real) else { return };
        route.sent = route.sent.saturating_sub(1);
        if route.sent == 0 {
            self.remove_route(id);
        }
    }

    /// True if a released packet has to wait until all runtimes have told their flows. A
    /// runtime may be about to tell a flow that has had replies under this packet's reply
    /// key. The packet is parsed.
    #[inline]
    #[must_use]
    pub fn must_wait(&self, packet: &Packet) -> bool {
        self.rebuild.is_some()
            && packet.meta.flags & Flags::LEARN != 0
            && !self.is_surely_its_own(packet)
    }

    fn is_surely_its_own(&self, packet: &Packet) -> bool {
        let reply = FlowKey::noted(packet).map(|key| key.reverse());
        reply.is_none_or(|reply| self.routes.is_surely_of(&reply, Epoch::new(packet.meta.commit)))
            || is_planted(Fault::LetsOutUntold)
    }

    /// Keeps a released packet that must wait (`must_wait`).
    pub fn wait_until_told(&mut self, from: Peer, packet: Packet, pool: &mut dyn PacketPool) {
        if self.untold.len() == HELD_LIMIT {
            self.drop(packet, DropReason::HeldOverflow, pool);
        } else {
            self.untold.push_back(Untold { since: self.turned_at, from, packet });
        }
    }

    /// Released packets that need not wait any more, in their order. Call it as soon as
    /// runtimes' messages have been handled: once a flow has been told, its later packets
    /// leave at once.
    pub fn take_told(&mut self) -> Vec<(Peer, Packet)> {
        let (waiting, told): (_, VecDeque<Untold>) = core::mem::take(&mut self.untold)
            .into_iter()
            .partition(|untold| self.must_wait(&untold.packet));
        self.untold = waiting;
        told.into_iter().map(|untold| (untold.from, untold.packet)).collect()
    }

    /// Handles a released packet on its way out, and learns the flow's reply key from it
    /// if the packet asks for that. The packet is parsed. False if another flow has the
    /// key: the packet must not leave, and is counted here as dropped.
    #[inline]
    #[must_use]
    pub fn handle_released(&mut self, packet: &Packet) -> bool {
        if packet.meta.flags & Flags::TRACE != 0 {
            let key = FlowKey::of(packet).map_or(String::new(), |key| key.to_string());
            self.trace(packet, Stage::Out, format!("released: {key}"));
        }
        packet.meta.flags & Flags::LEARN == 0 || self.learn_reply(packet)
    }

    fn learn_reply(&mut self, packet: &Packet) -> bool {
        let (reply, epoch) =
            (FlowKey::noted(packet).map(|key| key.reverse()), Epoch::new(packet.meta.commit));
        if reply.is_some_and(|reply| self.routes.is_anothers(&reply, epoch)) {
            self.drops.count(DropReason::ReplyKeyTaken);
            return false;
        }
        let Some(id) = self.routes.with_epoch(epoch) else { return true };
        self.make_real(id);
        let Some(reply) = reply else { return true };
        if self.routes.set_reply(id, reply) {
            return true;
        }
        let found = self
            .routes
            .find(&reply, self.routes.hash(&reply))
            .filter(|found| !found.is_reply && found.slot != id);
        let Some(opened) = found else { return true };
        if self.routes.get(opened.slot).is_some_and(|route| route.reply.is_some()) {
            // A flow was opened from the other side under that key.
            self.drops.count(DropReason::ReplyKeyTaken);
            return false;
        }
        // A stray packet may have come first and made a route under that key. No flow
        // came of it, so that route gives way.
        self.end_rival(opened.slot);
        self.routes.set_reply(id, reply);
        true
    }

    /// A runtime has ended, as its host says before the coordinator does. New flows go
    /// elsewhere, and packets for the runtime wait.
    pub fn handle_gone(&mut self, peer: Peer) {
        self.targets.set_gone(peer);
        self.logs.close(peer);
    }

    /// Runtimes on other hosts have ended (`ended`), as those hosts say, and some hosts
    /// (`away`, a bit each) are not heard. New flows go elsewhere. Everything else is the
    /// coordinator's decision.
    pub(crate) fn avoid(&mut self, ended: &[Peer], away: u16) {
        ended.iter().for_each(|peer| self.targets.set_gone(*peer));
        self.targets.set_away(away);
    }

    /// The version of the newest view that has arrived.
    pub(crate) fn view(&self) -> u64 {
        self.view
    }

    /// True if that view has given up this runtime.
    pub(crate) fn has_failed(&self, peer: Peer) -> bool {
        self.targets.has_failed(peer)
    }

    /// Packets that have been set aside since the last call.
    pub fn take_set_aside(&mut self) -> Vec<SetAside> {
        self.suspects.take_set_aside()
    }

    /// Routes all held packets again: some need not wait any more.
    fn retry_held(&mut self, now: u64, out: &mut Vec<(Peer, Packet)>, pool: &mut dyn PacketPool) {
        let held = core::mem::take(&mut self.held);
        for mut arrival in held {
            if arrival.packet.meta.stamp <= self.untimed {
                self.stamp(now);
                arrival.packet.meta.stamp = self.last_stamp;
            }
            self.route(arrival, now, out, pool);
        }
    }

    /// Sends ticks, drops held packets that are too old, removes idle routes. `now` is of
    /// the clock that stamps packets.
    pub fn handle_timeout(
        &mut self,
        now: u64,
        out: &mut Vec<(Peer, Packet)>,
        pool: &mut dyn PacketPool,
    ) {
        self.turned_at = now;
        let timeout = self.config.timeout;
        let is_late = |since: u64| now.saturating_sub(since) > timeout;
        while let Some(held) = self.held.pop_front_if(|held| is_late(held.since)) {
            self.drop(held.packet, DropReason::RecoveryTimeout, pool);
        }
        // Without a time-out they could take all buffers, and no message of the runtimes
        // that are to tell would come in any more.
        while let Some(untold) = self.untold.pop_front_if(|untold| is_late(untold.since)) {
            self.drop(untold.packet, DropReason::RecoveryTimeout, pool);
        }
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + self.config.tick_interval;
        self.stamp(now);
        // Before a runtime has told the time by the previous incarnation's stamps, a tick
        // could end every flow.
        let ticking = if self.rebuild.is_some() && self.clock_ahead.is_none() {
            0
        } else {
            self.targets.len()
        };
        for at in 0..ticking {
            let target = self.targets.get(at);
            if target.serves() {
                let peer = target.peer;
                let Some(mut tick) = pool.take() else { break };
                tick.meta.stamp = self.last_stamp;
                tick.meta.switch = self.config.number;
                tick.meta.flags = Flags::OAM;
                // If the route table is nearly full, the runtimes, which own the flows,
                // end some early.
                tick.meta.commit = self.routes.fill();
                let outer = Outer {
                    destination: peer.mac(),
                    source: self.config.me.mac(),
                    index: index::TO_RUNTIME,
                };
                if nsh::encapsulate(&mut tick, outer) {
                    out.push((peer, tick));
                } else {
                    pool.put(tick);
                }
            }
        }
        for _ in 0..SWEEP_PER_TICK.min(self.routes.capacity()) {
            self.sweep_at = (self.sweep_at + 1) % self.routes.capacity();
            let id = self.sweep_at as routes::RouteId;
            let limit = |route: &Route| {
                if route.is_real { IDLE } else { self.config.timeout.saturating_add(UNREAL_IDLE) }
            };
            if self
                .routes
                .get(id)
                .is_some_and(|route| now.saturating_sub(route.last_seen) > limit(route))
            {
                self.remove_route(id);
            }
        }
    }

    /// The time at which [`Switch::handle_timeout`] is due next.
    pub fn poll_timeout(&self) -> u64 {
        if self.coming.has_work() {
            return 0;
        }
        let waiting = [
            self.held.front().map(|held| held.since),
            self.untold.front().map(|untold| untold.since),
        ];
        let late = waiting
            .into_iter()
            .flatten()
            .min()
            .map_or(u64::MAX, |since| since + self.config.timeout + 1);
        self.next_tick.min(late)
    }

    /// Gives back every packet that waits, for the end of the process.
    pub fn abandon(&mut self, pool: &mut dyn PacketPool) {
        for held in core::mem::take(&mut self.held) {
            self.drop(held.packet, DropReason::ShuttingDown, pool);
        }
        for arrival in core::mem::take(&mut self.work) {
            self.drop(arrival.packet, DropReason::ShuttingDown, pool);
        }
        for untold in core::mem::take(&mut self.untold) {
            self.drop(untold.packet, DropReason::ShuttingDown, pool);
        }
    }

    /// The switch's node.
    pub fn node(&self) -> NodeId {
        self.config.me.node
    }
}
