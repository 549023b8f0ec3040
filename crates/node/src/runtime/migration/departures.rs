//! Departures: flows that leave, from the question whether they are welcome to the report
//! that they are served.

use super::super::recovery::Recoveries;
use super::super::{Lane, Shared, resync};
use super::orders::{Order, Stayed};
use super::{Migrations, Parts};
use crate::channel::Fabric;
use crate::message::{Claim, ClaimFlag, RouteInfo, kind};
use holdfast_protection::flows::{ActorHeader, Event, Life};
use holdfast_protection::{Epoch, FlowRef, Peer, Slot};
use holdfast_wire::{DropReason, NodeId};
use zerocopy::IntoBytes;

/// Batches under way at a time.
const BATCHES: usize = 32;
/// Slots scanned per turn for flows to move, for all orders together.
const SCAN: u32 = 1024;
/// Flows sent per turn: packets wait meanwhile.
const SENT_AT_ONCE: usize = 64;
/// A target that has not answered for so long loses the flows to another one, if there is
/// one; worker's time, ns.
const TIMEOUT: u64 = 300_000_000;
/// Time before a mark is asked for again, ns.
const MARK_TIMEOUT: u64 = 5_000_000;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The target has not said whether the flow is welcome.
    Asked,
    /// The flow is welcome.
    Welcome,
    /// The route leads to the target.
    Moved,
    /// The target has the flow, as far as is known here.
    Sent,
    /// The flow's move is over.
    Over,
}

pub(super) struct Departing {
    /// The flow here.
    pub(super) here: FlowRef,
    pub(super) old_epoch: Epoch,
    /// The epoch under which the flow goes, once its route does; the old one before that.
    pub(super) new_epoch: Epoch,
    pub(super) stage: Stage,
    pub(super) tries: u8,
    /// The recovery of the target, which has died, waits for this flow.
    pub(super) is_held: bool,
}

/// A batch on its way to another runtime.
pub(super) struct Departure {
    pub(super) number: u32,
    pub(super) request: u32,
    pub(super) lane: usize,
    to: Peer,
    flows: Vec<Departing>,
    /// The switch has been asked; and the time since which an answer is due.
    asked_switch: bool,
    since: u64,
    pub(super) answered: bool,
    pub(super) marked: bool,
    /// The target died before the switch answered.
    is_target_dead: bool,
}

impl Departure {
    pub(super) fn is_over(&self) -> bool {
        self.flows.iter().all(|flow| flow.stage == Stage::Over)
    }

    /// Takes back flows that were about to go to a dead target and whose state was paged
    /// out: those whose state has come are claimed.
    fn take_back(&mut self, lane: &mut Lane, shared: &mut Shared, recoveries: &mut Recoveries) {
        for flow in self.flows.iter_mut().filter(|flow| flow.stage == Stage::Moved) {
            if !is_here(lane, flow) {
                stay(lane, flow);
            } else if lane.fetch(flow.slot()) {
                lane.leave(flow.slot(), flow.new_epoch, Event::Claim, shared);
                flow.stage = Stage::Over;
                recoveries.add(self.to, lane, flow.slot());
            } else {
                continue;
            }
            flow.let_go(self.to, recoveries);
        }
    }

    /// True if a flow of it has been sent and is not known to have arrived.
    pub(super) fn is_leaving(&self) -> bool {
        self.flows.iter().any(|flow| flow.stage == Stage::Sent)
    }

    /// Number of flows that exist only in the record on its way and in the copy here.
    pub(super) fn departed(&self, lane: &Lane) -> u64 {
        self.flows
            .iter()
            .filter(|flow| flow.stage == Stage::Sent && is_departed(lane, flow))
            .count() as u64
    }
}

impl Departing {
    fn slot(&self) -> Slot {
        self.here.slot
    }

    /// Ends the wait of the target's recovery for this flow.
    fn let_go(&mut self, target: Peer, recoveries: &mut Recoveries) {
        if core::mem::take(&mut self.is_held) {
            recoveries.unhold(target);
        }
    }
}

/// True if this is the same flow as when it was chosen, still owned here.
fn is_here(lane: &Lane, flow: &Departing) -> bool {
    let is_it =
        |header: &ActorHeader| header.life() == Life::Leaving && header.epoch == flow.old_epoch;
    lane.flows.get(flow.here).is_some_and(is_it)
}

fn stay(lane: &mut Lane, flow: &mut Departing) {
    flow.stage = Stage::Over;
    // The route may have been given anew meanwhile, to this same runtime: the flow
    // stays then too.
    if lane.flows.get(flow.here).is_some_and(|header| header.life() == Life::Leaving) {
        lane.flows.step(flow.slot(), Event::Stay);
    }
}

impl Migrations {
    /// Sends the flows that are ready to go, at the beginning of a turn, when all
    /// released packets have left.
    pub(crate) fn depart(&mut self, parts: &mut Parts<'_>) {
        self.is_urgent = false;
        let mut left = SENT_AT_ONCE;
        let mut stayed = Vec::new();
        let Parts { lanes, shared, fabric, recoveries } = parts;
        for departure in &mut self.departures {
            if departure.answered && departure.is_target_dead {
                departure.take_back(&mut lanes[departure.lane], shared, recoveries);
            }
            if !departure.answered || !departure.marked || departure.is_target_dead {
                continue;
            }
            let lane = &mut lanes[departure.lane];
            let record_len = 5 + lane.flows.block_len();
            let mut cancelled = 0u32;
            for (at, flow) in departure.flows.iter_mut().enumerate() {
                if flow.stage != Stage::Moved {
                    continue;
                }
                if left == 0 {
                    self.is_urgent = true;
                    break;
                }
                if !is_here(lane, flow) {
                    stay(lane, flow);
                    cancelled |= 1 << at;
                    if lane.flows.get_owned(flow.here).is_some() {
                        let again = (departure.lane, flow.here, flow.tries);
                        stayed.push((departure.request, again));
                    }
                    continue;
                }
                let has_drained = lane.flows.header(flow.slot()).parked == 0
                    && lane.protection.has_drained(&lane.flows, flow.slot(), &mut lane.outbox);
                if !has_drained || fabric.room(departure.to) < record_len + 64 {
                    continue;
                }
                let Lane { protection, flows, outbox, .. } = lane;
                let (slot, to, epoch) = (flow.slot(), departure.to, flow.new_epoch);
                if protection
                    .paged_mut()
                    .is_some_and(|paged| !paged.departs(flows, slot, to, epoch, outbox))
                {
                    continue;
                }
                lane.leave(flow.slot(), flow.new_epoch, Event::Send, shared);
                let parts: [&[u8]; 3] =
                    [&departure.number.to_be_bytes(), &[at as u8], lane.flows.block(flow.slot())];
                let sent = fabric.send_parts(departure.to.node, kind::FLOW, &parts);
                debug_assert!(sent.is_ok(), "there was room");
                flow.stage = Stage::Sent;
                left -= 1;
            }
            if cancelled != 0 {
                self.cancelled.push((departure.to, departure.number, cancelled));
            }
        }
        for (request, flow) in stayed {
            self.try_again(request, [flow]);
        }
    }

    fn departure(&mut self, number: u32, to: Option<Peer>) -> Result<&mut Departure, DropReason> {
        let found = self.departures.iter_mut().find(|departure| departure.number == number);
        found
            .filter(|departure| to.is_none_or(|to| departure.to == to))
            .ok_or(DropReason::StaleDuplicate)
    }

    pub(super) fn handle_prepared(
        &mut self,
        from: Peer,
        number: u32,
        bits: u32,
        lanes: &mut [Lane],
    ) -> Result<(), DropReason> {
        let departure = self.departure(number, Some(from))?;
        let lane = &mut lanes[departure.lane];
        let mut refused = Vec::new();
        for (at, flow) in
            departure.flows.iter_mut().enumerate().filter(|(_, flow)| flow.stage == Stage::Asked)
        {
            if bits & 1 << at != 0 && is_here(lane, flow) {
                flow.stage = Stage::Welcome;
            } else {
                stay(lane, flow);
                refused.push((departure.lane, flow.here, flow.tries + 1));
            }
        }
        let request = departure.request;
        self.try_again(request, refused);
        Ok(())
    }

    /// Offers flows that stayed here to another target.
    fn try_again(&mut self, request: u32, flows: impl IntoIterator<Item = Stayed>) {
        if let Some(order) = self.orders.iter_mut().find(|order| order.request == request) {
            order.try_again(flows);
        }
    }

    pub(super) fn handle_moved(
        &mut self,
        switch: NodeId,
        number: u32,
        epochs: &[u8],
        parts: &mut Parts<'_>,
    ) -> Result<(), DropReason> {
        let departure = self.departure(number, None)?;
        if parts.shared.sides[parts.lanes[departure.lane].side].switch != switch {
            return Err(DropReason::Malformed);
        }
        if departure.answered || !departure.asked_switch {
            return Err(DropReason::StaleDuplicate);
        }
        departure.answered = true;
        let lane = &mut parts.lanes[departure.lane];
        let mut epochs = epochs
            .chunks_exact(4)
            .map(|bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        let (mut stayed, mut cancelled) = (Vec::new(), 0u32);
        for (at, flow) in
            departure.flows.iter_mut().enumerate().filter(|(_, flow)| flow.stage == Stage::Welcome)
        {
            match epochs.next().and_then(Epoch::given) {
                None => {
                    // A flow with a new route was not refused: the old one was.
                    let tries = flow.tries + u8::from(is_here(lane, flow));
                    stay(lane, flow);
                    cancelled |= 1 << at;
                    stayed.push((departure.lane, flow.here, tries));
                }
                Some(epoch) => {
                    flow.new_epoch = epoch;
                    flow.stage = Stage::Moved;
                }
            }
        }
        let (request, to, is_target_dead) =
            (departure.request, departure.to, departure.is_target_dead);
        self.is_urgent |= departure.marked;
        if cancelled != 0 && !is_target_dead {
            self.cancelled.push((to, number, cancelled));
        }
        self.try_again(request, stayed);
        if is_target_dead {
            self.reclaim(to, parts);
            parts.recoveries.unhold(to);
        }
        Ok(())
    }

    pub(super) fn handle_arrived(
        &mut self,
        from: Peer,
        number: u32,
        bits: u32,
        lanes: &mut [Lane],
    ) -> Result<(), DropReason> {
        let departure = self.departure(number, Some(from))?;
        let lane = &mut lanes[departure.lane];
        let mut moved = 0;
        lane.expect_departures(departure.flows.iter().map(|flow| flow.slot()));
        for (at, flow) in departure.flows.iter_mut().enumerate() {
            if bits & 1 << at == 0 || flow.stage != Stage::Sent {
                continue;
            }
            flow.stage = Stage::Over;
            moved += 1;
            if is_departed(lane, flow) {
                let Lane { protection, flows, outbox, .. } = lane;
                if !protection.departed(flows, flow.slot(), from, flow.old_epoch, outbox) {
                    flows.remove(flow.slot());
                }
            }
        }
        let request = departure.request;
        if let Some(order) = self.orders.iter_mut().find(|order| order.request == request) {
            order.moved += moved;
        }
        Ok(())
    }

    /// Handles a runtime's death. Flows on their way to or from it have one owner again:
    /// the runtime that has them whole.
    pub(crate) fn handle_dead(&mut self, dead: Peer, parts: &mut Parts<'_>) {
        let mut again = Vec::new();
        for departure in self
            .departures
            .iter_mut()
            .filter(|departure| departure.to == dead && !departure.is_target_dead)
        {
            departure.is_target_dead = true;
            if departure.asked_switch && !departure.answered {
                // The routes' present owner is not known yet.
                parts.recoveries.hold(dead);
            } else if !departure.asked_switch {
                let lane = &mut parts.lanes[departure.lane];
                for flow in departure.flows.iter_mut().filter(|flow| flow.stage != Stage::Over) {
                    stay(lane, flow);
                    again.push((departure.request, (departure.lane, flow.here, flow.tries)));
                }
            }
        }
        for order in &mut self.orders {
            order.targets.retain(|target| *target != dead);
        }
        for (request, flow) in again {
            self.try_again(request, [flow]);
        }
        self.reclaim(dead, parts);
        self.arrivals.handle_dead(dead, parts);
    }

    /// Handles the death of a switch. Its answers are void, and so are open requests.
    /// Flows that have not been sent stay, and go when their order comes back to them.
    /// Returns the routes of flows that have been sent, as the next incarnation must know
    /// them.
    pub(crate) fn handle_new_switch(
        &mut self,
        side: usize,
        parts: &mut Parts<'_>,
    ) -> Vec<RouteInfo> {
        self.arrivals.handle_new_switch(side, parts.lanes);
        let mut departed = Vec::new();
        let mut again = Vec::new();
        for departure in &mut self.departures {
            let lane = &mut parts.lanes[departure.lane];
            if lane.side != side {
                continue;
            }
            let mut cancelled = 0;
            for (at, flow) in departure.flows.iter_mut().enumerate() {
                match flow.stage {
                    Stage::Over => {}
                    Stage::Sent if is_departed(lane, flow) => {
                        departed.push(resync::info(
                            lane.flows.header(flow.slot()),
                            lane.index,
                            departure.to,
                            Some(flow.old_epoch),
                        ));
                    }
                    Stage::Sent => flow.stage = Stage::Over,
                    Stage::Asked | Stage::Welcome | Stage::Moved => {
                        flow.let_go(departure.to, parts.recoveries);
                        stay(lane, flow);
                        cancelled |= 1 << at;
                        again.push((departure.request, (departure.lane, flow.here, flow.tries)));
                    }
                }
            }
            if departure.is_target_dead {
                if departure.asked_switch && !departure.answered {
                    parts.recoveries.unhold(departure.to);
                }
            } else if cancelled != 0 {
                self.cancelled.push((departure.to, departure.number, cancelled));
            }
        }
        for (request, flow) in again {
            self.try_again(request, [flow]);
        }
        self.departures.retain(|departure| !departure.is_over());
        departed
    }

    /// Claims back the routes that lead to a runtime that died.
    fn reclaim(&mut self, dead: Peer, parts: &mut Parts<'_>) {
        for departure in self
            .departures
            .iter_mut()
            .filter(|departure| departure.to == dead && departure.answered)
        {
            let lane = &mut parts.lanes[departure.lane];
            for flow in &mut departure.flows {
                match flow.stage {
                    Stage::Moved if is_here(lane, flow) && !lane.fetch(flow.slot()) => {
                        // The functions give up the flow's leases when its state is here.
                        if !core::mem::replace(&mut flow.is_held, true) {
                            parts.recoveries.hold(dead);
                        }
                        continue;
                    }
                    Stage::Moved if is_here(lane, flow) => {
                        flow.let_go(dead, parts.recoveries);
                        lane.leave(flow.slot(), flow.new_epoch, Event::Claim, parts.shared);
                    }
                    Stage::Sent if is_departed(lane, flow) && !keeps_sent(lane, flow) => {
                        // The holder of its later state claims the flow.
                        lane.flows.remove(flow.slot());
                        lane.retry = true;
                        flow.stage = Stage::Over;
                        continue;
                    }
                    Stage::Sent if is_departed(lane, flow) => {
                        if lane.plan.is_paged() {
                            // Newer state may exist there, under the epoch that the flow
                            // got, and has precedence over this copy.
                            lane.flows.header_mut(flow.slot()).epoch = flow.old_epoch;
                        }
                        lane.flows.step(flow.slot(), Event::Claim);
                    }
                    _ => {
                        flow.let_go(dead, parts.recoveries);
                        if flow.stage == Stage::Moved {
                            stay(lane, flow);
                        }
                        flow.stage = Stage::Over;
                        continue;
                    }
                }
                flow.stage = Stage::Over;
                parts.recoveries.add(dead, lane, flow.slot());
            }
        }
    }

    pub(super) fn ask_switch(
        &mut self,
        lanes: &mut [Lane],
        fabric: &mut Fabric,
        shared: &Shared,
        clock: u64,
    ) {
        let mut again = Vec::new();
        let mut body = Vec::new();
        for departure in &mut self.departures {
            let switch = shared.sides[lanes[departure.lane].side].switch;
            let is_late = |timeout| clock.saturating_sub(departure.since) > timeout;
            if departure.asked_switch {
                if departure.answered && !departure.marked && is_late(MARK_TIMEOUT) {
                    departure.since = clock;
                    let _ = fabric.send(switch, kind::MARK, &departure.number.to_be_bytes());
                }
                continue;
            }
            let is_asked = departure.flows.iter().any(|flow| flow.stage == Stage::Asked);
            let has_another =
                |order: &Order| order.request == departure.request && order.targets.len() > 1;
            if is_asked && is_late(TIMEOUT) && self.orders.iter().any(has_another) {
                let lane = &mut lanes[departure.lane];
                let mut bits = 0;
                for (at, flow) in departure.flows.iter_mut().enumerate() {
                    bits |= 1 << at;
                    stay(lane, flow);
                    // A silent target has refused no flow. If it has failed, that will be
                    // found out.
                    again.push((departure.request, (departure.lane, flow.here, flow.tries)));
                }
                self.cancelled.push((departure.to, departure.number, bits));
            } else if !is_asked && departure.flows.iter().any(|flow| flow.stage == Stage::Welcome) {
                let lane = &lanes[departure.lane];
                let welcome = departure.flows.iter().filter(|flow| flow.stage == Stage::Welcome);
                body.clear();
                body.extend_from_slice(&departure.number.to_be_bytes());
                body.extend_from_slice(&departure.to.node.to_be_bytes());
                body.extend_from_slice(&departure.to.incarnation.to_be_bytes());
                for flow in welcome {
                    body.extend_from_slice(claim_of(lane, flow, departure.lane).as_bytes());
                }
                if fabric.send(switch, kind::MOVE, &body).is_ok() {
                    departure.asked_switch = true;
                    departure.since = clock;
                }
            }
        }
        for (request, flow) in again {
            self.try_again(request, [flow]);
        }
    }

    pub(super) fn start(
        &mut self,
        lanes: &mut [Lane],
        fabric: &mut Fabric,
        members: &[Peer],
        clock: u64,
    ) {
        let mut body = Vec::new();
        let mut budget = SCAN;
        for at in 0..self.orders.len() {
            self.orders[at].targets.retain(|target| members.contains(target));
            while self.departures.len() < BATCHES && budget > 0 {
                let order = &mut self.orders[at];
                let Some(to) = order.target() else { break };
                let (lane, flows) = order.choose(lanes, &mut budget);
                if flows.is_empty() {
                    if order.is_exhausted(lanes.len()) {
                        break;
                    }
                    continue;
                }
                order.next_target = order.next_target.wrapping_add(1);
                body.clear();
                body.extend_from_slice(&self.next_number.to_be_bytes());
                body.extend_from_slice(&lanes[lane].flows.layout().to_be_bytes());
                for flow in &flows {
                    let needs_earlier = lanes[lane].protection.needs_earlier(flow.slot());
                    let claim = claim_of(&lanes[lane], flow, lane)
                        .with(ClaimFlag::NeedsEarlier, needs_earlier);
                    body.extend_from_slice(claim.as_bytes());
                }
                let is_sent = fabric.send(to.node, kind::PREPARE, &body).is_ok();
                if is_sent {
                    flows
                        .iter()
                        .for_each(|flow| lanes[lane].flows.step(flow.slot(), Event::Choose));
                }
                let order = &mut self.orders[at];
                if !is_sent {
                    // The target's channel is full, so the flows wait.
                    order.again.extend(flows.iter().map(|flow| (lane, flow.here, flow.tries)));
                    break;
                }
                let number = self.next_number;
                self.next_number = self.next_number.wrapping_add(1);
                self.departures.push(Departure {
                    number,
                    request: order.request,
                    lane,
                    to,
                    flows,
                    asked_switch: false,
                    since: clock,
                    answered: false,
                    marked: false,
                    is_target_dead: false,
                });
            }
        }
        self.is_urgent |= budget == 0;
    }
}

fn is_departed(lane: &Lane, flow: &Departing) -> bool {
    lane.flows.get(flow.here).is_some_and(|header| header.life() == Life::Departed)
}

/// True if the copy of a sent flow that is left here is as good as any.
fn keeps_sent(lane: &Lane, flow: &Departing) -> bool {
    lane.protection.paged().is_none_or(|paged| paged.keeps_sent(&lane.flows, flow.slot()))
}

/// The claim of a flow as it was when it was chosen. If the flow has ended since, or has
/// got its route anew, the switch refuses it.
fn claim_of(lane: &Lane, flow: &Departing, chain: usize) -> Claim {
    Claim::of(lane.flows.header(flow.slot()), chain as u16).under(flow.old_epoch)
}

impl Lane {
    /// Ends the ownership of a flow here: its functions let go of it.
    fn leave(&mut self, slot: Slot, epoch: Epoch, event: Event, shared: &mut Shared) {
        self.wheel.remove(&mut self.flows, slot);
        let hash = self.flows.hash(&self.flows.header(slot).key);
        let (header, state) = self.flows.parts_mut(slot);
        self.gone.note(hash, header.epoch);
        shared.sides[self.side].note_epoch(epoch);
        header.epoch = epoch;
        self.chain.forget(state);
        self.flows.step(slot, event);
    }
}
