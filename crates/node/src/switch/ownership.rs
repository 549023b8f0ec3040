//! Ownership of flows: claims of replicas, moves between runtimes, ends of flows.
//!
//! A route's owner changes only here, each time under a new epoch.

use super::rebuild::behind;
use super::routes::{Doubt, RouteId};
use super::{LATE_REPLIES, Opening, Route, Switch};
use crate::channel::Fabric;
use crate::message::{Claim, ClaimFlag, Control, Ended, Grant, KeyBytes, MemberState, kind};
use holdfast_protection::{Epoch, Peer};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::nsh::{self, Flags, Outer, index};
use holdfast_wire::{DropReason, FlowKey, NodeId, Packet, PacketPool};
use std::collections::{BTreeMap, VecDeque};
use zerocopy::FromBytes;

/// Dead owners, and claims that wait until no other runtime can have a newer copy.
#[derive(Default)]
pub(super) struct Claims {
    /// Owners that have not been swept, each with the time at which its death became
    /// known, ns.
    dead: Vec<(Peer, u64)>,
    /// By route: its epoch, the claimant whose earlier epoch is the latest, and that
    /// epoch.
    waiting: BTreeMap<RouteId, (Epoch, Peer, Epoch)>,
    /// Routes that go to their claimant unless another one with newer state asks, each
    /// with its virtual cluster.
    provisional: BTreeMap<RouteId, u16>,
    /// Runtimes that have told this incarnation of the switch all their flows, or began
    /// during it. A runtime stays listed until it is dead and swept.
    known: Vec<Peer>,
    /// The latest owners that were swept.
    pub(super) lost: VecDeque<Lost>,
}

/// The number of flows that were lost with an owner. This incarnation of the switch has
/// seen the owner's whole recovery.
pub(super) struct Lost {
    dead: Peer,
    flows: u64,
    /// The owner is not swept again.
    pub(super) is_over: bool,
}

impl Lost {
    /// Tells the coordinator, whose log outlives this incarnation of the switch.
    pub(super) fn tell(&self, fabric: &mut Fabric) {
        let Peer { node, incarnation } = self.dead;
        fabric.send_control(
            NodeId::COORDINATOR,
            &Control::Unclaimed { node, incarnation, flows: self.flows },
        );
    }
}

/// If a sweep has not come so long after a death, it will not come, ns. Holders of
/// snapshots wait for seconds, one group after the other, and a coordinator may be away
/// for seconds.
const OVERDUE: u64 = 30_000_000_000;

/// Dead owners that are remembered. If there are more, the coordinator has forgotten
/// some.
const DEAD: usize = 256;

/// Swept owners that are remembered.
const SWEPT: usize = 64;

impl Claims {
    /// Adds flows of a swept owner of which no process had a copy. The owner may be swept
    /// twice.
    fn note_lost(&mut self, dead: Peer, flows: u64) {
        match self.lost.iter_mut().find(|lost| lost.dead == dead) {
            Some(lost) => lost.flows += flows,
            None => {
                if self.lost.len() == SWEPT {
                    self.lost.pop_front();
                }
                self.lost.push_back(Lost { dead, flows, is_over: false });
            }
        }
    }

    /// Notes that every flow of this runtime has a route here.
    pub(super) fn know(&mut self, peer: Peer) {
        if !self.knows(peer) {
            self.known.push(peer);
        }
    }

    pub(super) fn knows(&self, peer: Peer) -> bool {
        self.known.contains(&peer)
    }

    /// Reports the losses of a dead owner that has been swept for the last time.
    pub(super) fn settle_lost(&mut self, dead: Peer, fabric: &mut Fabric) {
        self.known.retain(|known| *known != dead);
        if let Some(lost) = self.lost.iter_mut().find(|lost| lost.dead == dead) {
            lost.is_over = true;
            lost.tell(fabric);
        }
    }

    pub(super) fn given_up(&mut self, dead: Peer, now: u64) {
        if !self.dead.iter().any(|(known, _)| *known == dead) {
            if self.dead.len() == DEAD {
                self.dead.remove(0);
            }
            self.dead.push((dead, now));
        }
    }

    fn swept(&mut self, dead: Peer) {
        self.dead.retain(|(known, _)| *known != dead);
    }

    /// True if the owner should have been swept long ago: no sweep of it will come any
    /// more.
    fn is_overdue(&self, owner: Peer, now: u64) -> bool {
        self.dead.iter().any(|(dead, since)| *dead == owner && now.saturating_sub(*since) > OVERDUE)
    }

    /// Settles the provisional routes of this virtual cluster for their present
    /// claimants: every runtime has asked.
    pub(super) fn decide(&mut self, cluster: u16) {
        self.provisional.retain(|_, of| *of != cluster);
    }

    /// True if the route's claimant is provisional.
    #[inline]
    pub(super) fn is_provisional(&self, route: RouteId) -> bool {
        !self.provisional.is_empty() && self.provisional.contains_key(&route)
    }

    fn wait(&mut self, route: RouteId, of: Epoch, claimant: Peer, epoch: Epoch) {
        let known = self.waiting.get(&route).filter(|(known, ..)| *known == of);
        if known.is_none_or(|(.., before)| epoch.is_later(*before)) {
            self.waiting.insert(route, (of, claimant, epoch));
        }
    }

    /// The claimant that gets the route when its owner, of epoch `of`, is swept.
    fn next(&mut self, route: RouteId, of: Epoch) -> Option<(Peer, Epoch)> {
        let (known, claimant, epoch) = self.waiting.remove(&route)?;
        (known == of).then_some((claimant, epoch))
    }
}

/// The progress of a flow's opening, as its owner states it in a claim.
pub(super) fn opening(claim: &Claim) -> Opening {
    if claim.has(ClaimFlag::HalfOpen) { Opening::Unanswered } else { Opening::Over }
}

impl Switch {
    /// Hashes of the keys of a message's flows. Their routes are prefetched together, so
    /// that the cache misses overlap. The list goes back to [`Switch::expected`].
    fn expect(&mut self, keys: impl Iterator<Item = KeyBytes>) -> Vec<u64> {
        let mut hashes = core::mem::take(&mut self.expected);
        hashes.clear();
        hashes.extend(keys.map(|key| self.routes.hash(&FlowKey::from(key))));
        core::hint::black_box(self.routes.touch_routes(&hashes));
        hashes
    }

    /// Answers replicas that ask for their flows' routes. A claim gets its route, under a
    /// new epoch, if no other runtime has got it since and the flow has not ended. A flow
    /// without a route may live all the same: the route may have been forgotten or swept.
    pub(super) fn handle_claims(
        &mut self,
        from: Peer,
        body: &[u8],
        now: u64,
    ) -> Result<(), DropReason> {
        let (number, claims) = body.split_first_chunk::<4>().ok_or(DropReason::Malformed)?;
        let claims = <[Claim]>::ref_from_bytes(claims).map_err(|_| DropReason::Malformed)?;
        let mut answer = Vec::with_capacity(4 + claims.len() * Grant::LEN);
        answer.extend_from_slice(number);
        let hashes = self.expect(claims.iter().map(|claim| claim.key));
        for (claim, hash) in claims.iter().zip(&hashes) {
            // While runtimes tell which epochs were given, no new one can be.
            let grant = if self.knows_epochs() {
                self.grant(from, claim, *hash, now)
            } else {
                Grant::Retry
            };
            answer.extend_from_slice(&grant.encode());
        }
        self.expected = hashes;
        // The claimant waits for every answer. If its channel is full, it has stopped
        // reading, and will be declared failed itself.
        let _ = self.fabric.send(from.node, kind::CLAIMED, &answer);
        Ok(())
    }

    fn grant(&mut self, to: Peer, claim: &Claim, hash: u64, now: u64) -> Grant {
        let cluster = match self.targets.of_node(to.node) {
            Some(target) if target.peer == to && target.state != MemberState::Failed => {
                target.cluster
            }
            Some(target) if target.peer.incarnation >= to.incarnation => return Grant::Refused,
            // The view that names the claimant is still on its way here.
            _ => return Grant::Retry,
        };
        let key = FlowKey::from(claim.key);
        // If flows have their home at a state server, no living runtime may have told how
        // far the dead one's epochs had come.
        if !self.next_epoch.is_later(claim.epoch()) && !is_planted(Fault::ForgetsEpochsOfTheDead) {
            self.next_epoch = behind(claim.epoch());
        }
        let epoch = self.next_epoch;
        let is_renounced = claim.has(ClaimFlag::Renounced);
        // The copy was taken before it was known that another flow was first.
        let rival = self.routes.other_replied(&FlowKey::from(claim.reply), &key);
        if let Some(rival) = rival.filter(|rival| !is_renounced && !self.gives_way(*rival, claim)) {
            let is_late = self.routes.has_ended(hash, claim.epoch());
            if !is_late && self.routes.get(rival).is_some_and(Route::is_doubtful) {
                self.contest(rival, now);
            }
            return Grant::Refused;
        }
        let id = match self.routes.find(&key, hash) {
            Some(found) if found.is_reply => return Grant::Refused,
            Some(found) => {
                let Some(route) = self.routes.get(found.slot) else { return Grant::Refused };
                let (owner, of, asked) = (route.owner, route.epoch, claim.epoch());
                if self.claims.is_provisional(found.slot) && !is_renounced && !of.is_later(asked) {
                    // The claimant with the newest copy is to have the route.
                    if asked.is_later(of) {
                        self.give(found.slot, to, asked);
                        self.targets.count(owner, -1);
                        self.targets.count(to, 1);
                        self.give_claimed(found.slot, claim, rival, now);
                    }
                    return Grant::AfterSweep;
                }
                let came_from = route.moved_from.filter(|(_, old)| *old == asked);
                if is_renounced {
                    // The flow counts as never moved, so a replica of its old owner may
                    // have it.
                    if let Some((before, old)) = came_from
                        && owner == to
                    {
                        self.give(found.slot, before, old);
                        self.targets.count(to, -1);
                        self.targets.count(before, 1);
                    }
                    return Grant::Refused;
                }
                if of != asked && !is_planted(Fault::IgnoresEpochs) {
                    let is_older = of.is_later(asked);
                    let may_wait = !self.claims.is_overdue(owner, now);
                    match came_from {
                        // The old owner is gone. The move may have been complete: the new
                        // owner knows, and will say.
                        Some(_) if owner != to && self.is_alive(owner) => {
                            return if may_wait { Grant::Retry } else { Grant::Refused };
                        }
                        // The claimant was the replica and the target of the move at
                        // once.
                        Some(_) if owner == to => {}
                        // The owner is gone too, and a replica may have the flow as it
                        // was there. If no replica asks before its routes are swept, no
                        // newer copy exists.
                        _ if is_older && may_wait && !self.is_alive(owner) => {
                            return self.wait(found.slot, of, to, asked);
                        }
                        _ => return Grant::Refused,
                    }
                }
                // The route is another claimant's that is about to ask again; or that one
                // is dead, and the view that says so is on its way.
                if of == asked
                    && owner != to
                    && self.is_alive(owner)
                    && !is_planted(Fault::IgnoresEpochs)
                {
                    return self.wait(found.slot, of, to, asked);
                }
                self.give(found.slot, to, epoch);
                self.targets.count(owner, -1);
                // The previous owner is dead, even if the view that says so has not come
                // yet.
                let before =
                    if owner == to { came_from.map(|(before, _)| before) } else { Some(owner) };
                before.into_iter().for_each(|dead| self.logs.close(dead));
                found.slot
            }
            None if is_renounced => return Grant::Refused,
            None if self.routes.has_ended(hash, claim.epoch())
                && !is_planted(Fault::IgnoresEpochs) =>
            {
                return Grant::Refused;
            }
            None if self.is_collecting(cluster) => {
                let route = Route {
                    is_real: true,
                    opening: opening(claim),
                    ..Route::new(key, to, claim.epoch(), claim.chain(), now)
                };
                let Some(id) = self.routes.insert(hash, route) else { return Grant::Refused };
                self.claims.provisional.insert(id, cluster);
                self.targets.count(to, 1);
                // Until the route is settled, no other flow gets its reply key either.
                self.give_claimed(id, claim, rival, now);
                return Grant::AfterSweep;
            }
            None => {
                let route = Route {
                    is_real: true,
                    opening: opening(claim),
                    ..Route::new(key, to, epoch, claim.chain(), now)
                };
                let Some(id) = self.routes.insert(hash, route) else { return Grant::Refused };
                id
            }
        };
        self.targets.count(to, 1);
        self.next_epoch = self.next_epoch.next();
        self.give_claimed(id, claim, rival, now);
        self.logs.give_up(id);
        let logged = self.logs.begin(id, claim.chain(), claim.epoch(), to, epoch);
        Grant::Given { epoch, logged }
    }

    /// Gives a claimed route the claim's reply key, which this rival gives up.
    fn give_claimed(&mut self, id: RouteId, claim: &Claim, rival: Option<RouteId>, now: u64) {
        if let Some(rival) = rival {
            // The rival keeps its route: without it the flow's next packet would open the
            // flow a second time.
            self.routes.take_reply(rival);
        }
        if let Some(rebuild) = &mut self.rebuild {
            rebuild.note_opened(id, claim);
        }
        let reply = FlowKey::from(claim.reply);
        if reply != FlowKey::default() {
            self.give_reply(id, claim, reply);
        }
        if rival.is_some() && self.routes.get(id).is_some_and(Route::is_doubtful) {
            self.contest(id, now);
        }
    }

    /// True if the rival route may never have had a reply under the key, and the key is
    /// known to be the claimed flow's, or that flow is the older one.
    fn gives_way(&self, rival: RouteId, claim: &Claim) -> bool {
        if is_planted(Fault::GivesAwayReplyKeys) {
            return true;
        }
        let is_older =
            || self.rebuild.as_ref().is_some_and(|rebuild| rebuild.is_older(claim, rival));
        (claim.has(ClaimFlag::Keyed) || is_older())
            && self.routes.get(rival).is_some_and(Route::is_doubtful)
    }

    /// Marks the doubt as contested. This route keeps its reply key, though another flow
    /// that may have been the first wants it.
    pub(super) fn contest(&mut self, id: RouteId, now: u64) {
        if let Some(route) = self.routes.get_mut(id) {
            route.doubt = Doubt::Contested;
            self.contested_until = now + LATE_REPLIES;
        }
    }

    /// Gives a route the claim's reply key. False if another route has that key.
    pub(super) fn give_reply(&mut self, id: RouteId, claim: &Claim, reply: FlowKey) -> bool {
        let is_keyed = claim.has(ClaimFlag::Keyed);
        if let Some(route) = self.routes.get_mut(id)
            && (is_keyed || route.reply != Some(reply))
        {
            route.doubt = if is_keyed { Doubt::None } else { Doubt::Unconfirmed };
        }
        self.routes.set_reply(id, reply)
    }

    pub(super) fn is_alive(&self, peer: Peer) -> bool {
        self.targets.is_alive(peer)
    }

    /// Remembers a claim for the sweep, because the claimant cannot have the route with
    /// epoch `of` now. The claim replaces one whose claimant is dead.
    fn wait(&mut self, route: RouteId, of: Epoch, claimant: Peer, epoch: Epoch) -> Grant {
        let known = self.claims.waiting.get(&route).map(|(_, known, _)| *known);
        if known.is_some_and(|known| !self.is_alive(known)) {
            self.claims.waiting.remove(&route);
        }
        if is_planted(Fault::RefusesOlderClaims) {
            return Grant::Refused;
        }
        self.claims.wait(route, of, claimant, epoch);
        Grant::AfterSweep
    }

    /// Ends the routes of a dead owner, which no replica will claim any more. A flow may
    /// have been on its way there from another dead runtime that is not swept yet. The
    /// flow then counts as never moved: a replica of that old owner asks for it.
    pub(super) fn sweep(&mut self, dead: Peer) {
        let lost: Vec<_> = self
            .routes
            .iter()
            .filter(|(_, route)| route.owner == dead)
            .map(|(id, route)| (id, route.epoch, route.moved_from))
            .collect();
        self.claims.swept(dead);
        let mut flows = 0;
        for (id, epoch, moved_from) in lost {
            let before = moved_from.filter(|(before, _)| !self.is_alive(*before));
            let asks = self.claims.next(id, epoch).filter(|(claimant, _)| self.is_alive(*claimant));
            match (asks, before) {
                // Packets that wait for the flow follow it.
                (Some((claimant, asked)), _) if before.is_none_or(|(_, old)| asked == old) => {
                    self.logs.give_up(id);
                    self.give(id, claimant, asked);
                    self.targets.count(claimant, 1);
                }
                (asks, Some((before, old))) => {
                    self.logs.give_up(id);
                    self.give(id, before, old);
                    if let Some((claimant, asked)) = asks {
                        self.claims.wait(id, old, claimant, asked);
                    }
                }
                (_, None) => {
                    flows += u64::from(self.routes.get(id).is_some_and(|route| route.is_real));
                    self.remove_route(id);
                }
            }
        }
        // An incarnation of the switch cannot count flows that it was not told.
        if self.claims.knows(dead) {
            self.claims.note_lost(dead, flows);
        }
        self.routes.visit(|route| {
            route.moved_from = route.moved_from.filter(|(before, _)| *before != dead)
        });
    }

    /// The flows that were lost with a runtime, once it was swept: routes over which
    /// packets had been released, and that no replica has claimed. `None` if this
    /// incarnation of the switch has not seen the runtime's whole recovery.
    pub fn lost_of(&self, dead: Peer) -> Option<u64> {
        self.claims.lost.iter().find(|lost| lost.dead == dead).map(|lost| lost.flows)
    }

    /// Gives routes of a runtime's flows to another one, as the owner asks. The new
    /// routes hold for all packets behind the mark, which goes in band.
    pub(super) fn handle_move(
        &mut self,
        from: Peer,
        body: &[u8],
        out: &mut Vec<(Peer, Packet)>,
        pool: &mut dyn PacketPool,
    ) -> Result<(), DropReason> {
        let (number, rest) = body.split_first_chunk::<4>().ok_or(DropReason::Malformed)?;
        let (node, rest) = rest.split_first_chunk::<2>().ok_or(DropReason::Malformed)?;
        let (incarnation, claims) = rest.split_first_chunk::<4>().ok_or(DropReason::Malformed)?;
        let to = Peer {
            node: NodeId::from_be_bytes(*node),
            incarnation: u32::from_be_bytes(*incarnation),
        };
        let claims = <[Claim]>::ref_from_bytes(claims).map_err(|_| DropReason::Malformed)?;
        let is_possible = self.knows_epochs()
            && to != from
            && self.targets.serves(from)
            && self.targets.serves(to);
        let mut answer = Vec::with_capacity(4 + claims.len() * 4);
        answer.extend_from_slice(number);
        let hashes = self.expect(claims.iter().map(|claim| claim.key));
        for (claim, hash) in claims.iter().zip(&hashes) {
            let epoch = if is_possible { self.move_route(from, to, claim, *hash) } else { None };
            answer.extend_from_slice(&epoch.map_or(0, Epoch::get).to_be_bytes());
        }
        self.expected = hashes;
        let _ = self.fabric.send(from.node, kind::MOVED, &answer);
        self.mark(from, u32::from_be_bytes(*number), out, pool);
        Ok(())
    }

    fn move_route(&mut self, from: Peer, to: Peer, claim: &Claim, hash: u64) -> Option<Epoch> {
        let key = FlowKey::from(claim.key);
        let found = self.routes.find(&key, hash).filter(|found| !found.is_reply)?;
        let route = self.routes.get(found.slot)?;
        let old = route.epoch;
        if route.owner != from || old != claim.epoch() || route.moved_from.is_some() {
            return None;
        }
        let epoch = self.next_epoch;
        self.next_epoch = self.next_epoch.next();
        self.logs.give_up(found.slot);
        self.give(found.slot, to, epoch);
        if let Some(route) = self.routes.get_mut(found.slot) {
            route.moved_from = Some((from, old));
        }
        self.targets.count(from, -1);
        self.targets.count(to, 1);
        let reply = FlowKey::from(claim.reply);
        if reply != FlowKey::default() {
            // A released packet on its way out cannot teach this key any more: its epoch
            // is over.
            self.routes.set_reply(found.slot, reply);
        }
        Some(epoch)
    }

    /// Sends a mark behind all packets that were sent to this runtime before. Without a
    /// buffer no mark is sent, and the runtime asks again.
    pub(super) fn mark(
        &mut self,
        to: Peer,
        number: u32,
        out: &mut Vec<(Peer, Packet)>,
        pool: &mut dyn PacketPool,
    ) {
        let Some(mut mark) = pool.take() else { return };
        mark.meta.stamp = self.last_stamp;
        mark.meta.switch = self.config.number;
        mark.meta.flags = Flags::OAM;
        mark.meta.commit = number;
        let outer =
            Outer { destination: to.mac(), source: self.config.me.mac(), index: index::MARK };
        if nsh::encapsulate(&mut mark, outer) {
            out.push((to, mark));
        } else {
            pool.put(mark);
        }
    }

    /// Notes that flows have arrived at the owners of their routes.
    pub(super) fn handle_settled(&mut self, from: Peer, body: &[u8]) -> Result<(), DropReason> {
        let settled = <[Ended]>::ref_from_bytes(body).map_err(|_| DropReason::Malformed)?;
        let hashes = self.expect(settled.iter().map(|settled| settled.key));
        for (settled, hash) in settled.iter().zip(&hashes) {
            let key = FlowKey::from(settled.key);
            if let Some(found) = self.routes.find(&key, *hash)
                && let Some(route) = self.routes.get_mut(found.slot)
                && route.owner == from
                && route.epoch.get() == settled.epoch.get()
            {
                route.moved_from = None;
            }
        }
        self.expected = hashes;
        Ok(())
    }

    pub(super) fn handle_ended(&mut self, from: Peer, body: &[u8]) -> Result<(), DropReason> {
        let ended = <[Ended]>::ref_from_bytes(body).map_err(|_| DropReason::Malformed)?;
        let hashes = self.expect(ended.iter().map(|ended| ended.key));
        for (ended, hash) in ended.iter().zip(&hashes) {
            let key = FlowKey::from(ended.key);
            if let Some(found) = self.routes.find(&key, *hash)
                && self.routes.get(found.slot).is_some_and(|route| {
                    route.epoch.get() == ended.epoch.get() && route.owner == from
                })
            {
                self.end_route(found.slot);
            }
        }
        self.expected = hashes;
        Ok(())
    }
}
