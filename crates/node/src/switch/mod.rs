//! The virtual switch: a runtime whose flow actors only forward.
//!
//! Theory of operation (NFVactor: virtual switch). A packet's key leads to a route, the route to the runtime that owns the flow. A key
//! without a route gets one: the service-chain rules name the chain, the least loaded runtime becomes the owner. The route's epoch
//! travels with every packet, so that a runtime knows whether it is still meant. The reply key is learned from the first packet that
//! the chain releases, before a reply can exist. When a runtime fails, packets of its flows wait here until a replica has
//! claimed the route (a new epoch, which fences the old owner) or the coordinator says that nobody will. A switch has nothing that would have to be
//! saved: a new life of it asks the runtimes ([`rebuild`]). Every packet is
//! stamped with a time that never repeats and never goes back.
//!
//! In: packets with their keys, messages, the time. Out: packets for runtimes, messages. Never: a look at a flow's state.

mod log;
mod ownership;
mod rebuild;
mod records;
mod routes;
mod sources;
mod suspects;
mod targets;
mod trace;

pub use routes::{Doubt, Opening, Route};
pub use sources::SourceLimits;
pub use suspects::SetAside;

use crate::address::{COORDINATOR, NodeId, mac_of_life};
use crate::channel::{Fabric, FabricConfig};
use crate::message::{Control, TraceStep, kind};
use crate::rules::{Assembly, RuleSet};
use holdfast_protection::{Epoch, Peer};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::nsh::{self, Flags, Outer, index};
use holdfast_wire::selector::Selector;
use holdfast_wire::{DropCounters, DropReason, FlowKey, Packet, PacketPool};
use log::Logs;
use ownership::Claims;
use rebuild::Rebuild;
use routes::Routes;
use std::collections::VecDeque;
use suspects::Suspects;
use targets::Targets;
use trace::Stage;

/// What a switch is told at its start.
#[derive(Debug, Clone)]
pub struct SwitchConfig {
    /// Who it is.
    pub me: Peer,
    /// Its number in packets' metadata.
    pub number: u8,
    /// Routes that it may have.
    pub flows: usize,
    /// How much of them one source may have.
    pub limits: SourceLimits,
    /// The cluster's hash seed.
    pub seed: u64,
    /// Between two ticks to each runtime, ns.
    pub tick_interval: u64,
    /// How long a packet may wait for its flow's recovery, ns.
    pub patience: u64,
    /// Its endpoint.
    pub fabric: FabricConfig,
    /// By chain: bytes of the log of what is sent to each runtime for it, 0 for none. Chains behind the list have none.
    pub logs: Vec<usize>,
    /// There was a life of this switch before: the runtimes are asked for its routes.
    pub succeeds: bool,
}

/// Packets that may wait for recoveries.
const HELD_LIMIT: usize = 16384;
/// Routes looked at per tick for being idle.
const SWEEP_PER_TICK: usize = 4096;
/// A route that no packet takes for so long is forgotten: longer than any flow's own deadline.
const IDLE: u64 = 3 * 3600 * 1_000_000_000;
/// A route over which nothing was ever released is forgotten when no packet has taken it for so long beyond the switch's patience: its
/// packets may wait here, and after that at the runtime.
const UNREAL_IDLE: u64 = 5 * 1_000_000_000;
/// Packets of a burst that a trace begins to follow: what is said of each is text, and the
/// others wait meanwhile.
const TRACED_AT_ONCE: u32 = 16;

/// Replies under a key that two flows want, neither of which is known to have it, go to neither for so
/// long: by then those that were on their way when the switch died have come.
const LATE_REPLIES: u64 = 5 * 1_000_000_000;

struct Held {
    since: u64,
    key: FlowKey,
    packet: Packet,
}

/// See the module.
pub struct Switch {
    config: SwitchConfig,
    fabric: Fabric,
    routes: Routes,
    targets: Targets,
    view: u64,
    rules: RuleSet,
    coming: Assembly,
    /// What a new life has still to learn.
    rebuild: Option<Rebuild>,
    claims: Claims,
    /// Replies of [`Doubt::Contested`] routes are dropped until then, ns.
    contested_until: u64,
    logs: Logs,
    suspects: Suspects,
    /// The runtimes live on several hosts.
    has_hosts: bool,
    last_stamp: u64,
    /// How far stamps are ahead of this host's clock, ns: they go on where those of the life before ended.
    clock_ahead: Option<i64>,
    /// The last stamp that was given without knowing the time.
    untimed: u64,
    next_epoch: Epoch,
    next_tick: u64,
    sweep_at: usize,
    work: Vec<(FlowKey, u64, Packet)>,
    hashes: Vec<u64>,
    /// Of the keys of one message, while it is acted upon.
    expected: Vec<u64>,
    held: VecDeque<Held>,
    /// Released packets, and by whom, that wait until all runtimes have told.
    untold: Vec<(Peer, Packet)>,
    trace: Option<(Selector, u32)>,
    /// Steps of traced packets.
    pub traces: Vec<TraceStep>,
    drops: DropCounters,
    packets: u64,
}

impl Switch {
    /// A switch without routes, which asks the coordinator for its rules.
    pub fn new(config: SwitchConfig) -> Switch {
        let mut fabric = Fabric::new(config.me, config.fabric);
        fabric.send_control(COORDINATOR, &Control::RulesInForce { version: 0 });
        let routes = Routes::new(config.flows, config.limits.clone(), config.seed);
        Switch {
            fabric,
            routes,
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
            untold: Vec::new(),
            trace: None,
            traces: Vec::new(),
            drops: DropCounters::default(),
            packets: 0,
            config,
        }
    }

    /// The life before was here too: what it had logged is not lost.
    pub(crate) fn keep_log_of(&mut self, before: &mut Switch) {
        self.logs = before.logs.take();
        self.suspects = core::mem::take(&mut before.suspects);
    }

    /// Who it is.
    pub fn me(&self) -> Peer {
        self.config.me
    }

    /// The endpoint, for the host that carries its frames.
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

    /// Routes now.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Bytes of memory that routes take, as many as there ever were at once.
    pub fn memory(&self) -> usize {
        self.routes.memory()
    }

    /// Bytes of memory of so many routes, as many of which have ended before.
    pub fn memory_of(routes: usize, limits: &SourceLimits) -> usize {
        Routes::memory_of(routes, limits)
    }

    /// Routes that there may be.
    pub fn capacity(&self) -> usize {
        self.routes.capacity()
    }

    /// Routes of flows that are half open.
    pub fn half_open(&self) -> usize {
        self.routes.half_open()
    }

    /// Routes that lead to this runtime.
    pub fn routes_to(&self, peer: Peer) -> usize {
        self.targets.routes(peer)
    }

    /// Flows that are lost with this runtime if nobody has copies: a route over which nothing has come back yet is none. `None` if this life of the switch has not been told of all.
    pub fn flows_of(&self, peer: Peer) -> Option<u64> {
        self.claims.knows(peer).then(|| self.targets.flows(peer) as u64)
    }

    /// True without a route.
    pub fn is_empty(&self) -> bool {
        self.routes.len() == 0
    }

    /// The rules that decide about new flows.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Packets waiting for a recovery, or for the first rules.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// All routes, to look at.
    pub fn routes(&self) -> impl Iterator<Item = &Route> + '_ {
        self.routes.iter().map(|(_, route)| route)
    }

    /// Traces the next `count` packets that the selector matches, at most 16 of a burst; a
    /// count of 0 ends it.
    pub fn set_trace(&mut self, selector: Selector, count: u32) {
        self.trace = (count > 0).then_some((selector, count));
    }

    /// Takes a packet for a chain; [`Switch::forward`] sends it on with the others of its burst.
    #[inline]
    pub fn handle_packet(&mut self, key: FlowKey, mut packet: Packet) {
        self.packets += 1;
        if packet.layers.fragment_offset != 0 {
            key.note(&mut packet);
        }
        let hash = self.routes.hash(&key);
        self.hashes.push(hash);
        self.work.push((key, hash, packet));
    }

    /// Sends the burst's packets to their runtimes, encapsulated.
    pub fn forward(&mut self, now: u64, out: &mut Vec<(Peer, Packet)>, pool: &mut dyn PacketPool) {
        core::hint::black_box(self.routes.touch(&self.hashes));
        self.hashes.clear();
        let mut work = core::mem::take(&mut self.work);
        let mut traced = TRACED_AT_ONCE;
        for (key, hash, mut packet) in work.drain(..) {
            self.stamp(now);
            packet.meta.stamp = self.last_stamp;
            packet.meta.switch = self.config.number;
            packet.meta.flags &= Flags::OWN;
            if self.trace.is_some() && traced > 0 {
                traced -= u32::from(self.start_trace(&key, &mut packet));
            }
            self.route(key, hash, packet, now, out, pool);
        }
        self.work = work;
    }

    /// The next stamp.
    #[inline]
    fn stamp(&mut self, now: u64) {
        if self.rebuild.is_some() && self.clock_ahead.is_none() && !is_planted(Fault::TellsTimeTooSoon) {
            // What time it is by the stamps of the life before nobody has told yet, and this host's clock may be days ahead.
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
        key: FlowKey,
        hash: u64,
        packet: Packet,
        now: u64,
        out: &mut Vec<(Peer, Packet)>,
        pool: &mut dyn PacketPool,
    ) {
        let (id, is_reply) = match self.routes.find(&key, hash) {
            Some(found) => (found.slot, found.is_reply),
            // Nobody can say where it belongs, or whether it is new: others have been asked.
            None if self.rules.version() == 0 || self.rebuild.is_some() => return self.hold(key, packet, now, pool),
            None => {
                if packet.meta.flags & Flags::TRACE != 0 {
                    self.trace_rule(&key, &packet);
                }
                match self.new_route(key, hash, packet.meta.ingress, now) {
                    Ok(id) => (id, false),
                    Err(reason) => return self.drop(packet, reason, pool),
                }
            }
        };
        let Some(route) = self.routes.get_mut(id) else { return };
        route.last_seen = now;
        let is_contested = route.doubt == Doubt::Contested && now < self.contested_until;
        if route.is_doubtful() && !is_contested && self.rebuild.is_none() {
            // A flow that had a reply before the switch died has been claimed by now, and late replies have come.
            route.doubt = if is_reply { Doubt::None } else { Doubt::Unconfirmed };
        }
        let route = *route;
        // While runtimes tell, the key may turn out to be another flow's.
        let is_unsure = is_reply && route.is_doubtful();
        if is_unsure && self.rebuild.is_none() {
            return self.drop(packet, DropReason::LostInFailure, pool);
        }
        let may_go_on = match route.opening {
            Opening::Unanswered => is_reply,
            Opening::Answered => true,
            Opening::Over => false,
        };
        if may_go_on {
            self.routes.go_on_opening(id, &packet, is_reply);
        }
        // An owner that is not (or no longer) running: the packet waits for what the coordinator makes of it.
        if is_unsure || self.claims.is_provisional(id) || self.logs.holds(id) || !self.targets.serves(route.owner) {
            return self.hold(key, packet, now, pool);
        }
        if !route.is_real
            && let Some(route) = self.routes.get_mut(id)
        {
            route.sent = route.sent.saturating_add(1);
        }
        if route.reply.is_none() {
            // A flow without a reply key is known by its epoch when its packets leave, and that may be an old one.
            self.routes.note_epoch(id, route.epoch);
        }
        self.send(&route, packet, out, pool);
    }

    fn hold(&mut self, key: FlowKey, packet: Packet, now: u64, pool: &mut dyn PacketPool) {
        if self.held.len() == HELD_LIMIT {
            self.drop(packet, DropReason::HeldOverflow, pool);
        } else {
            self.held.push_back(Held { since: now, key, packet });
        }
    }

    #[inline]
    fn send(&mut self, route: &Route, mut packet: Packet, out: &mut Vec<(Peer, Packet)>, pool: &mut dyn PacketPool) {
        packet.meta.chain = route.chain;
        packet.meta.commit = route.epoch.get();
        packet.meta.epoch = route.epoch.low();
        // A key that may be taken away is not shown to the flow's owner as its own.
        let is_unsure = route.doubt == Doubt::Contested || route.is_doubtful() && self.rebuild.is_some();
        if route.reply.is_none() || is_unsure {
            packet.meta.flags |= Flags::NEW;
        }
        if !self.logs.note(route.owner, route.chain, route.epoch, &packet) {
            return self.drop(packet, DropReason::LogFull, pool);
        }
        let outer =
            Outer { destination: mac_of_life(route.owner), source: mac_of_life(self.config.me), index: index::TO_RUNTIME };
        if nsh::encapsulate(&mut packet, outer) {
            out.push((route.owner, packet));
        } else {
            self.drop(packet, DropReason::FrameTooLarge, pool);
        }
    }

    fn new_route(&mut self, key: FlowKey, hash: u64, ingress: u8, now: u64) -> Result<routes::RouteId, DropReason> {
        if self.suspects.is_closed(&key, now) {
            return Err(DropReason::FlowClosed);
        }
        let rule = self.rules.find(&key, ingress).ok_or(DropReason::NoRule)?;
        self.routes.admit(&key, rule.chain)?;
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

    /// Removes the route of a flow that is no more: nobody may claim it.
    fn end_route(&mut self, id: routes::RouteId) {
        self.logs.give_up(id);
        if let Some(route) = self.routes.end(id) {
            self.count_removed(&route);
        }
    }

    /// Removes the route of a flow whose key is another's, and tells its owner: until its time-out it would be one that nothing can reach.
    fn end_rival(&mut self, id: routes::RouteId) {
        let Some(Route { key, owner, epoch, .. }) = self.routes.get(id).copied() else { return };
        self.end_route(id);
        // If the channel is full the flow lives there until its time-out.
        self.fabric.send_ended(owner.node, kind::ENDED, &[(key, epoch)]);
    }

    fn count_removed(&mut self, route: &Route) {
        self.targets.count(route.owner, -1);
        if !route.is_real {
            self.targets.count_opening(route.owner, -1);
        }
    }

    /// Something of the flow has been released, or is known to a replica.
    fn make_real(&mut self, id: routes::RouteId) {
        if let Some(route) = self.routes.get_mut(id)
            && !core::mem::replace(&mut route.is_real, true)
        {
            self.targets.count_opening(route.owner, -1);
        }
    }

    /// Gives a route to another owner, under a new epoch. The flow is one whatever has been released of it: somebody has it.
    fn give(&mut self, id: routes::RouteId, owner: Peer, epoch: Epoch) {
        self.make_real(id);
        self.routes.give(id, owner, epoch);
    }

    /// A frame for a runtime could not be delivered, and is to be dropped. If it is one of this switch's packets, and no packet that took its
    /// route was delivered, then there is no flow, and the route goes. Takes the encapsulation off.
    pub fn handle_undelivered(&mut self, frame: &mut Packet) {
        let Some(outer) = nsh::decapsulate(frame) else { return };
        let is_packet = outer.index == index::TO_RUNTIME && outer.source == mac_of_life(self.config.me);
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

    /// A released packet cannot leave before all runtimes have told of their flows: another may be about to tell of one
    /// that has had replies under this one's reply key. The packet is parsed.
    #[inline]
    #[must_use]
    pub fn must_wait(&self, packet: &Packet) -> bool {
        self.rebuild.is_some() && packet.meta.flags & Flags::LEARN != 0 && !self.is_surely_its_own(packet)
    }

    fn is_surely_its_own(&self, packet: &Packet) -> bool {
        let reply = FlowKey::noted(packet).map(|key| key.reverse());
        reply.is_none_or(|reply| self.routes.is_surely_of(&reply, Epoch::new(packet.meta.commit)))
            || is_planted(Fault::LetsOutUntold)
    }

    /// Keeps a released packet that must wait.
    pub fn wait_until_told(&mut self, from: Peer, packet: Packet, pool: &mut dyn PacketPool) {
        if self.untold.len() == HELD_LIMIT {
            self.drop(packet, DropReason::HeldOverflow, pool);
        } else {
            self.untold.push((from, packet));
        }
    }

    /// Released packets that need not wait any more, in their order. To be called as soon as runtimes have been
    /// heard: later packets of a flow leave at once when it has been told of.
    pub fn take_told(&mut self) -> Vec<(Peer, Packet)> {
        let (waiting, told) = core::mem::take(&mut self.untold).into_iter().partition(|(_, packet)| self.must_wait(packet));
        self.untold = waiting;
        told
    }

    /// A released packet passes on its way out: learns the flow's reply key from it if it says so. The packet is parsed. False if another flow has that key:
    /// the packet is not to leave, and counted here as dropped.
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
        let (reply, epoch) = (FlowKey::noted(packet).map(|key| key.reverse()), Epoch::new(packet.meta.commit));
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
        let found = self.routes.find(&reply, self.routes.hash(&reply)).filter(|found| !found.is_reply && found.slot != id);
        let Some(opened) = found else { return true };
        if self.routes.get(opened.slot).is_some_and(|route| route.reply.is_some()) {
            // From the other side a flow was opened under that key.
            self.drops.count(DropReason::ReplyKeyTaken);
            return false;
        }
        // A stray packet may have come before and made a route of its own under that key: it never was a flow, so it gives way.
        self.end_rival(opened.slot);
        self.routes.set_reply(id, reply);
        true
    }

    /// A runtime is gone, as its host knows before the coordinator has said so: new flows go elsewhere, and what is for it waits.
    pub fn handle_gone(&mut self, peer: Peer) {
        self.targets.set_gone(peer);
        self.logs.close(peer);
    }

    /// These runtimes of other hosts have ended, as those say, and these hosts (a bit each) are not heard: new flows go elsewhere. All else is the coordinator's to say.
    pub(crate) fn avoid(&mut self, ended: &[Peer], away: u16) {
        ended.iter().for_each(|peer| self.targets.set_gone(*peer));
        self.targets.set_away(away);
    }

    /// The version of the newest view that has come here.
    pub(crate) fn view(&self) -> u64 {
        self.view
    }

    /// That view says that this one is given up.
    pub(crate) fn has_failed(&self, peer: Peer) -> bool {
        self.targets.has_failed(peer)
    }

    /// Packets that have been set aside since this was asked last.
    pub fn take_set_aside(&mut self) -> Vec<SetAside> {
        self.suspects.take_set_aside()
    }

    /// Sends on what waited and need not wait any more.
    fn retry_held(&mut self, now: u64, out: &mut Vec<(Peer, Packet)>, pool: &mut dyn PacketPool) {
        let held = core::mem::take(&mut self.held);
        for Held { since, key, mut packet } in held {
            if packet.meta.stamp <= self.untimed {
                self.stamp(now);
                packet.meta.stamp = self.last_stamp;
            }
            let waiting = self.held.len();
            let hash = self.routes.hash(&key);
            self.route(key, hash, packet, now, out, pool);
            if self.held.len() > waiting
                && let Some(again) = self.held.back_mut()
            {
                again.since = since;
            }
        }
    }

    /// Ticks, timeouts, idle routes. `now` is the same clock that stamps packets.
    pub fn handle_timeout(&mut self, now: u64, out: &mut Vec<(Peer, Packet)>, pool: &mut dyn PacketPool) {
        while self.held.front().is_some_and(|held| now.saturating_sub(held.since) > self.config.patience) {
            if let Some(held) = self.held.pop_front() {
                self.drop(held.packet, DropReason::RecoveryTimeout, pool);
            }
        }
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + self.config.tick_interval;
        self.stamp(now);
        // Before anybody has told how late it is by the stamps of the life before, a tick could end every flow.
        let ticking = if self.rebuild.is_some() && self.clock_ahead.is_none() { 0 } else { self.targets.len() };
        for at in 0..ticking {
            let target = self.targets.get(at);
            if target.serves() {
                let peer = target.peer;
                let Some(mut tick) = pool.take() else { break };
                tick.meta.stamp = self.last_stamp;
                tick.meta.switch = self.config.number;
                tick.meta.flags = Flags::OAM;
                // Runtimes, which own the flows, end some before their time if the route
                // table is nearly full.
                tick.meta.commit = self.routes.fill();
                let outer =
                    Outer { destination: mac_of_life(peer), source: mac_of_life(self.config.me), index: index::TO_RUNTIME };
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
            let limit = |route: &Route| if route.is_real { IDLE } else { self.config.patience.saturating_add(UNREAL_IDLE) };
            if self.routes.get(id).is_some_and(|route| now.saturating_sub(route.last_seen) > limit(route)) {
                self.remove_route(id);
            }
        }
    }

    /// When [`Switch::handle_timeout`] is due next.
    pub fn poll_timeout(&self) -> u64 {
        if self.coming.has_work() {
            return 0;
        }
        let held = self.held.front().map_or(u64::MAX, |held| held.since + self.config.patience + 1);
        self.next_tick.min(held)
    }

    /// Gives back every packet that waits, as at the end of the process.
    pub fn abandon(&mut self, pool: &mut dyn PacketPool) {
        for held in core::mem::take(&mut self.held) {
            self.drop(held.packet, DropReason::ShuttingDown, pool);
        }
        for (_, _, packet) in core::mem::take(&mut self.work) {
            self.drop(packet, DropReason::ShuttingDown, pool);
        }
        for (_, packet) in core::mem::take(&mut self.untold) {
            self.drop(packet, DropReason::ShuttingDown, pool);
        }
    }

    /// Node id.
    pub fn node(&self) -> NodeId {
        self.config.me.node
    }
}
