//! Flows that move to another living runtime.
//!
//! Theory of operation (NFVactor, section VI-B; NFActor, section 5; DESIGN, section 5). Once told where flows shall go, the runtimes and the switch do it
//! among themselves, a batch of flows per message:
//! 1. *Prepare.* The target makes an empty actor under both keys of each flow, and says which are welcome. The source goes on processing.
//! 2. *Move.* The switch leads the routes to the target, under new epochs. Behind the last packet of the old routes it sends the source a mark, in band.
//!    What comes to the target meanwhile waits there.
//! 3. *Flow.* The source has processed what came before the mark, and all of it has left: also what a replica was to release, and what waited for a
//!    lease. Only now does it send the flow, and stops to own it. The target serves its packets in order, and says so; then the source forgets
//!    the flow, or keeps it as the target's replica.
//!
//! Records are delivered; a mark may be lost, and is asked for again. At every moment one of the two has the flow whole, and each knows from the coordinator
//! when the other dies. The source then claims the routes back, under the epochs that they got. The target claims what it had a replica of; what
//! it has nothing of it renounces at the switch, so that the route is as before and the replica elsewhere may claim it. One that is leaving renounces
//! everything, at once: whoever is asked before it waits for that.
//!
//! In: orders, records, marks, deaths, the worker's time. Out: records, flows that come and go. Never: a packet.

use super::recovery::Recoveries;
use super::{Lane, Shared, lane, telling};
use crate::address::{COORDINATOR, MANAGER, SWITCH};
use crate::channel::Fabric;
use crate::message::{Claim, Control, RouteInfo, kind};
use holdfast_nf::Chain;
use holdfast_protection::flows::{ActorHeader, flag, role};
use holdfast_protection::{Peer, Slot};
use holdfast_wire::selector::Selector;
use holdfast_wire::{DropReason, FlowKey};
use zerocopy::{FromBytes, IntoBytes};

/// Flows in one batch: their claims fit one record.
const BATCH: usize = 20;
/// Batches under way at a time.
const BATCHES: usize = 32;
/// Slots looked at per turn in search of flows that shall go.
const SCAN: u32 = 4096;
/// A target that has not answered so long does not want the flows, worker's time, ns.
const PATIENCE: u64 = 300_000_000;
/// Before a mark is asked for again, ns.
const MARK_PATIENCE: u64 = 5_000_000;
/// Between two words to the coordinator on how far an order is, ns.
const PROGRESS: u64 = 100_000_000;
/// Orders at a time.
const ORDERS: usize = 8;

/// The parts of the runtime that a migration works on.
pub(crate) struct Parts<'a> {
    pub(crate) lanes: &'a mut [Lane],
    pub(crate) shared: &'a mut Shared,
    pub(crate) fabric: &'a mut Fabric,
    pub(crate) recoveries: &'a mut Recoveries,
}

/// What the coordinator asked for.
struct Order {
    request: u32,
    targets: Vec<Peer>,
    next_target: usize,
    left: u64,
    selector: Selector,
    /// Where the search for flows goes on: lane and slot.
    at: (usize, u32),
    /// Flows that a target refused, with how many have.
    again: Vec<(usize, Slot, u32, u8)>,
    moved: u64,
    refused: u64,
    told_at: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The target has not said whether it is welcome.
    Asked,
    /// It is.
    Welcome,
    /// The route leads to the target.
    Moved,
    /// The target has the flow, as far as is known here.
    Sent,
    /// Nothing is left to do.
    Over,
}

struct Departing {
    slot: Slot,
    generation: u32,
    old_epoch: u32,
    new_epoch: u32,
    stage: Stage,
    tries: u8,
}

/// A batch on its way to another runtime.
struct Departure {
    number: u32,
    request: u32,
    lane: usize,
    to: Peer,
    flows: Vec<Departing>,
    /// The switch has been asked; since when something is waited for.
    asked_switch: bool,
    since: u64,
    answered: bool,
    marked: bool,
    /// The target died before the switch answered.
    is_target_dead: bool,
}

impl Departure {
    fn is_over(&self) -> bool {
        self.flows.iter().all(|flow| flow.stage == Stage::Over)
    }
}

/// A batch on its way here.
struct Arrival {
    from: Peer,
    number: u32,
    lane: usize,
    flows: Vec<Option<(Slot, u32)>>,
    /// To be told to the source.
    arrived: u32,
    /// Its routes were led here by a life of the switch that has died.
    is_of_dead_switch: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Migrations {
    orders: Vec<Order>,
    departures: Vec<Departure>,
    arrivals: Vec<Arrival>,
    settled: Vec<(FlowKey, u32)>,
    /// Flows that have come, and whose routes the switch that led them here cannot tell any more: lane and slot.
    late: Vec<(usize, Slot)>,
    /// Of which targets, and of which batches, flows will not come, and have not been told.
    cancelled: Vec<(Peer, u32, u32)>,
    next_number: u32,
    /// A batch has just become ready: the next turn is due at once.
    is_urgent: bool,
    pub(crate) moved: u64,
    pub(crate) arrived: u64,
}

/// The same flow as when it was chosen, still owned here.
fn is_here(lane: &Lane, flow: &Departing) -> bool {
    let header = lane.flows.header(flow.slot);
    header.role == role::OWNER && header.generation == flow.generation && header.epoch == flow.old_epoch
}

fn stay(lane: &mut Lane, flow: &mut Departing) {
    flow.stage = Stage::Over;
    // Also if its route was given anew meanwhile, to this same runtime.
    let header = lane.flows.header_mut(flow.slot);
    if header.generation == flow.generation && header.role == role::OWNER {
        header.flags &= !flag::MOVING;
    }
}

impl Migrations {
    /// True if nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let is_told = self.settled.is_empty() && self.cancelled.is_empty();
        self.orders.is_empty() && self.departures.is_empty() && self.arrivals.is_empty() && is_told
    }

    /// When a turn is due without input, after now, ns; `None` for never.
    pub(crate) fn patience(&self) -> Option<u64> {
        match self {
            _ if self.is_idle() => None,
            _ if self.is_urgent => Some(0),
            _ => Some(1_000_000),
        }
    }

    /// The coordinator wants flows moved. An order that cannot be understood or is one too many is answered: nothing moved.
    pub(crate) fn order(&mut self, request: u32, targets: Vec<Peer>, limit: u64, selector: &str, fabric: &mut Fabric) {
        match selector.parse::<Selector>() {
            Ok(selector) if self.orders.len() < ORDERS && !targets.is_empty() => {
                let next_target = request as usize % targets.len();
                self.orders.push(Order {
                    request,
                    targets,
                    next_target,
                    left: limit,
                    selector,
                    at: (0, 0),
                    again: Vec::new(),
                    moved: 0,
                    refused: 0,
                    told_at: 0,
                });
                self.is_urgent = true;
            }
            _ => {
                tell(fabric, &Control::Migrated { request, moved: 0, refused: 0, last: true });
            }
        }
    }

    /// At the beginning of a turn, when everything that was released before has gone out: sends the flows that have nothing left to do here.
    pub(crate) fn depart(&mut self, lanes: &mut [Lane], shared: &mut Shared, fabric: &mut Fabric) {
        self.is_urgent = false;
        for departure in &mut self.departures {
            if !departure.answered || !departure.marked || departure.is_target_dead {
                continue;
            }
            let lane = &mut lanes[departure.lane];
            let record_len = 5 + lane.flows.block_len();
            for (at, flow) in departure.flows.iter_mut().enumerate() {
                if flow.stage != Stage::Moved {
                    continue;
                }
                if !is_here(lane, flow) {
                    flow.stage = Stage::Over;
                    continue;
                }
                let has_drained = lane.flows.header(flow.slot).parked == 0
                    && lane.protection.has_drained(&lane.flows, flow.slot, &mut lane.outbox);
                if !has_drained || fabric.room(departure.to) < record_len + 64 {
                    continue;
                }
                lane.leave(flow.slot, flow.new_epoch, role::DEPARTED, shared);
                let mut body = Vec::with_capacity(record_len);
                body.extend_from_slice(&departure.number.to_be_bytes());
                body.push(at as u8);
                body.extend_from_slice(lane.flows.block(flow.slot));
                let sent = fabric.send(departure.to.node, kind::FLOW, &body);
                debug_assert!(sent.is_ok(), "there was room");
                flow.stage = Stage::Sent;
            }
        }
    }

    /// In band: nothing more follows on the old routes of this batch.
    pub(crate) fn handle_mark(&mut self, number: u32) {
        if let Some(departure) = self.departures.iter_mut().find(|departure| departure.number == number) {
            departure.marked = true;
            self.is_urgent |= departure.answered;
        }
    }

    /// A record of this protocol.
    ///
    /// # Errors
    /// The reason to count if it is not acceptable.
    pub(crate) fn handle_record(&mut self, from: Peer, record: u8, body: &[u8], parts: &mut Parts<'_>) -> Result<(), DropReason> {
        let (number, rest) = body.split_first_chunk::<4>().ok_or(DropReason::Malformed)?;
        let number = u32::from_be_bytes(*number);
        let bits = || <[u8; 4]>::try_from(rest).map(u32::from_be_bytes).map_err(|_| DropReason::Malformed);
        match record {
            kind::PREPARE => self.handle_prepare(from, number, rest, parts),
            kind::PREPARED => self.handle_prepared(from, number, bits()?, parts.lanes),
            kind::MOVED if from.node == SWITCH => self.handle_moved(number, rest, parts),
            kind::FLOW => self.handle_flow(from, number, rest, parts),
            kind::ARRIVED => self.handle_arrived(from, number, bits()?, parts.lanes),
            kind::CANCEL => self.handle_cancel(from, number, bits()?, parts.lanes),
            _ => Err(DropReason::Malformed),
        }
    }

    fn departure(&mut self, number: u32, to: Option<Peer>) -> Result<&mut Departure, DropReason> {
        let found = self.departures.iter_mut().find(|departure| departure.number == number);
        found.filter(|departure| to.is_none_or(|to| departure.to == to)).ok_or(DropReason::StaleDuplicate)
    }

    fn handle_prepare(&mut self, from: Peer, number: u32, body: &[u8], parts: &mut Parts<'_>) -> Result<(), DropReason> {
        let (layout, claims) = body.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
        let claims = <[Claim]>::ref_from_bytes(claims).map_err(|_| DropReason::Malformed)?;
        let chain = claims.first().ok_or(DropReason::Malformed)?.chain.get() as usize;
        let lane = parts.lanes.get_mut(chain).ok_or(DropReason::Malformed)?;
        if claims.len() > BATCH || self.arrivals.iter().any(|arrival| arrival.from == from && arrival.number == number) {
            return Err(DropReason::Malformed);
        }
        let is_alike = u64::from_be_bytes(*layout) == lane.flows.layout();
        let expected: usize = self.arrivals.iter().map(|arrival| arrival.flows.iter().flatten().count()).sum();
        let mut room = lane.owned_limit.saturating_sub(lane.flows.owned() + expected);
        let mut flows = Vec::with_capacity(claims.len());
        for claim in claims {
            let slot = if is_alike && room > 0 { welcome(lane, from, claim) } else { None };
            room -= usize::from(slot.is_some());
            flows.push(slot.map(|slot| (slot, lane.flows.header(slot).generation)));
        }
        let welcome = flows.iter().enumerate().fold(0u32, |bits, (at, slot)| bits | u32::from(slot.is_some()) << at);
        let mut answer = [0; 8];
        answer[..4].copy_from_slice(&number.to_be_bytes());
        answer[4..].copy_from_slice(&welcome.to_be_bytes());
        let arrival = Arrival { from, number, lane: chain, flows, arrived: 0, is_of_dead_switch: false };
        if parts.fabric.send(from.node, kind::PREPARED, &answer).is_err() {
            // It will not hear that they are welcome.
            arrival.flows.iter().flatten().for_each(|(slot, _)| unwelcome(lane, *slot));
        } else if welcome != 0 {
            self.arrivals.push(arrival);
        }
        Ok(())
    }

    fn handle_prepared(&mut self, from: Peer, number: u32, bits: u32, lanes: &mut [Lane]) -> Result<(), DropReason> {
        let departure = self.departure(number, Some(from))?;
        let lane = &mut lanes[departure.lane];
        let mut refused = Vec::new();
        for (at, flow) in departure.flows.iter_mut().enumerate().filter(|(_, flow)| flow.stage == Stage::Asked) {
            if bits & 1 << at != 0 && is_here(lane, flow) {
                flow.stage = Stage::Welcome;
            } else {
                stay(lane, flow);
                refused.push((departure.lane, flow.slot, flow.generation, flow.tries + 1));
            }
        }
        let request = departure.request;
        self.try_again(request, refused);
        Ok(())
    }

    /// These stayed here: another target may have them.
    fn try_again(&mut self, request: u32, flows: Vec<(usize, Slot, u32, u8)>) {
        if let Some(order) = self.orders.iter_mut().find(|order| order.request == request) {
            for flow in flows {
                if usize::from(flow.3) < order.targets.len() {
                    order.again.push(flow);
                } else {
                    order.refused += 1;
                }
            }
        }
    }

    fn handle_moved(&mut self, number: u32, epochs: &[u8], parts: &mut Parts<'_>) -> Result<(), DropReason> {
        let departure = self.departure(number, None)?;
        if departure.answered || !departure.asked_switch {
            return Err(DropReason::StaleDuplicate);
        }
        departure.answered = true;
        let lane = &mut parts.lanes[departure.lane];
        let mut epochs = epochs.chunks_exact(4).map(|bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        let (mut stayed, mut cancelled) = (Vec::new(), 0u32);
        for (at, flow) in departure.flows.iter_mut().enumerate().filter(|(_, flow)| flow.stage == Stage::Welcome) {
            match epochs.next().unwrap_or(0) {
                0 => {
                    stay(lane, flow);
                    cancelled |= 1 << at;
                    stayed.push((departure.lane, flow.slot, flow.generation, flow.tries + 1));
                }
                epoch => {
                    flow.new_epoch = epoch;
                    flow.stage = Stage::Moved;
                }
            }
        }
        let (request, to, is_target_dead) = (departure.request, departure.to, departure.is_target_dead);
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

    fn handle_flow(&mut self, from: Peer, number: u32, body: &[u8], parts: &mut Parts<'_>) -> Result<(), DropReason> {
        let (at, block) = body.split_first().ok_or(DropReason::Malformed)?;
        let arrival = self
            .arrivals
            .iter_mut()
            .find(|arrival| arrival.from == from && arrival.number == number)
            .ok_or(DropReason::StaleDuplicate)?;
        let lane = &mut parts.lanes[arrival.lane];
        let place = arrival.flows.get_mut(*at as usize).ok_or(DropReason::Malformed)?;
        let (slot, generation) = place.ok_or(DropReason::StaleDuplicate)?;
        let ours = lane.flows.header(slot);
        if ours.role != role::ARRIVING || ours.generation != generation {
            return Err(DropReason::StaleEpoch);
        }
        let is_its = ActorHeader::read_from_prefix(block).is_ok_and(|(theirs, _)| theirs.key == ours.key);
        if block.len() != lane.flows.block_len() || !is_its {
            return Err(DropReason::Malformed);
        }
        *place = None;
        arrival.arrived |= 1 << at;
        if arrival.is_of_dead_switch {
            self.late.push((arrival.lane, slot));
        }
        lane.arrive_flow(slot, block, from, parts.shared);
        let header = lane.flows.header(slot);
        self.settled.push((header.key, header.epoch));
        self.arrived += 1;
        Ok(())
    }

    fn handle_arrived(&mut self, from: Peer, number: u32, bits: u32, lanes: &mut [Lane]) -> Result<(), DropReason> {
        let departure = self.departure(number, Some(from))?;
        let lane = &mut lanes[departure.lane];
        let mut moved = 0;
        for (at, flow) in departure.flows.iter_mut().enumerate() {
            if bits & 1 << at == 0 || flow.stage != Stage::Sent {
                continue;
            }
            flow.stage = Stage::Over;
            moved += 1;
            let header = lane.flows.header(flow.slot);
            if header.role == role::DEPARTED && header.generation == flow.generation {
                let Lane { protection, flows, outbox, .. } = lane;
                if !protection.departed(flows, flow.slot, from, flow.old_epoch, outbox) {
                    flows.remove(flow.slot);
                }
            }
        }
        let request = departure.request;
        self.moved += moved;
        if let Some(order) = self.orders.iter_mut().find(|order| order.request == request) {
            order.moved += moved;
        }
        Ok(())
    }

    fn handle_cancel(&mut self, from: Peer, number: u32, bits: u32, lanes: &mut [Lane]) -> Result<(), DropReason> {
        let arrival = self
            .arrivals
            .iter_mut()
            .find(|arrival| arrival.from == from && arrival.number == number)
            .ok_or(DropReason::StaleDuplicate)?;
        let lane = &mut lanes[arrival.lane];
        for (at, place) in arrival.flows.iter_mut().enumerate() {
            if bits & 1 << at != 0
                && let Some((slot, generation)) = place.take()
                && lane.flows.header(slot).generation == generation
            {
                unwelcome(lane, slot);
            }
        }
        Ok(())
    }

    /// A runtime has died. Flows on their way there or from there have one owner again: who has them whole.
    pub(crate) fn handle_dead(&mut self, dead: Peer, parts: &mut Parts<'_>) {
        let mut again = Vec::new();
        for departure in self.departures.iter_mut().filter(|departure| departure.to == dead && !departure.is_target_dead) {
            departure.is_target_dead = true;
            if departure.asked_switch && !departure.answered {
                // Where the routes lead is not known yet.
                parts.recoveries.hold(dead);
            } else if !departure.asked_switch {
                let lane = &mut parts.lanes[departure.lane];
                for flow in departure.flows.iter_mut().filter(|flow| flow.stage != Stage::Over) {
                    stay(lane, flow);
                    again.push((departure.request, (departure.lane, flow.slot, flow.generation, flow.tries)));
                }
            }
        }
        for order in &mut self.orders {
            order.targets.retain(|target| *target != dead);
        }
        for (request, flow) in again {
            self.try_again(request, vec![flow]);
        }
        self.reclaim(dead, parts);
        for arrival in self.arrivals.extract_if(.., |arrival| arrival.from == dead) {
            let lane = &mut parts.lanes[arrival.lane];
            for (slot, generation) in arrival.flows.into_iter().flatten() {
                let header = lane.flows.header(slot);
                if header.generation == generation && header.role == role::ARRIVING {
                    // Of what there was a replica here that is claimed already.
                    lane.flows.set_role(slot, role::CLAIMING);
                    parts.recoveries.add(dead, arrival.lane as u16, slot);
                }
            }
        }
    }

    /// This runtime is leaving, and asked last what it has of the dead. Who is asked before waits for what was on its way here: its routes go back.
    pub(crate) fn give_back(&mut self, has_failed: impl Fn(Peer) -> bool, lanes: &mut [Lane], recoveries: &mut Recoveries) {
        for arrival in self.arrivals.extract_if(.., |arrival| has_failed(arrival.from)) {
            let lane = &mut lanes[arrival.lane];
            for (slot, generation) in arrival.flows.into_iter().flatten() {
                let header = lane.flows.header(slot);
                if header.generation == generation && header.role == role::ARRIVING {
                    lane.flows.set_role(slot, role::CLAIMING);
                    recoveries.give_back(arrival.from, arrival.lane as u16, slot);
                }
            }
        }
    }

    /// Flows that came since this was asked last, and of which the present switch must be told: lane and slot.
    pub(crate) fn take_late(&mut self) -> Vec<(usize, Slot)> {
        core::mem::take(&mut self.late)
    }

    /// True while flows may come of which only the switch that has died knew that they do.
    pub(crate) fn expects_late(&self) -> bool {
        self.arrivals.iter().any(|arrival| arrival.is_of_dead_switch && arrival.flows.iter().any(Option::is_some))
    }

    /// The switch has died. What it had answered or not answered is void: flows that have not been sent stay, and go when the order comes back to them.
    /// The routes of those that have, as the next life must know them.
    pub(crate) fn handle_new_switch(&mut self, parts: &mut Parts<'_>) -> Vec<RouteInfo> {
        self.arrivals.iter_mut().for_each(|arrival| arrival.is_of_dead_switch = true);
        let mut departed = Vec::new();
        let mut again = Vec::new();
        for departure in &mut self.departures {
            let lane = &mut parts.lanes[departure.lane];
            let mut cancelled = 0;
            for (at, flow) in departure.flows.iter_mut().enumerate() {
                match flow.stage {
                    Stage::Over => {}
                    Stage::Sent if is_departed(lane, flow) => {
                        departed.push(telling::info(lane.flows.header(flow.slot), lane.index, departure.to, flow.old_epoch));
                    }
                    Stage::Sent => flow.stage = Stage::Over,
                    Stage::Asked | Stage::Welcome | Stage::Moved => {
                        stay(lane, flow);
                        cancelled |= 1 << at;
                        again.push((departure.request, (departure.lane, flow.slot, flow.generation, flow.tries)));
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
            self.try_again(request, vec![flow]);
        }
        self.departures.retain(|departure| !departure.is_over());
        departed
    }

    /// The routes that were led to a runtime that died come back.
    fn reclaim(&mut self, dead: Peer, parts: &mut Parts<'_>) {
        for departure in self.departures.iter_mut().filter(|departure| departure.to == dead && departure.answered) {
            let lane = &mut parts.lanes[departure.lane];
            for flow in &mut departure.flows {
                match flow.stage {
                    Stage::Moved if is_here(lane, flow) => {
                        lane.leave(flow.slot, flow.new_epoch, role::CLAIMING, parts.shared);
                    }
                    Stage::Sent if is_departed(lane, flow) => lane.flows.set_role(flow.slot, role::CLAIMING),
                    _ => {
                        flow.stage = Stage::Over;
                        continue;
                    }
                }
                flow.stage = Stage::Over;
                parts.recoveries.add(dead, departure.lane as u16, flow.slot);
            }
        }
    }

    /// Sends what the channels take: requests, answers, news of flows that have come; starts new batches.
    pub(crate) fn advance(&mut self, lanes: &mut [Lane], fabric: &mut Fabric, members: &[Peer], clock: u64) {
        if self.is_idle() {
            return;
        }
        self.cancelled.retain(|(to, number, bits)| members.contains(to) && !cancel(fabric, *to, *number, *bits));
        self.tell_arrivals(fabric);
        self.ask_switch(lanes, fabric, clock);
        self.departures.retain(|departure| !departure.is_over());
        self.start(lanes, fabric, members, clock);
        self.report(fabric, clock);
    }

    fn tell_arrivals(&mut self, fabric: &mut Fabric) {
        for arrival in &mut self.arrivals {
            let mut body = [0; 8];
            body[..4].copy_from_slice(&arrival.number.to_be_bytes());
            body[4..].copy_from_slice(&arrival.arrived.to_be_bytes());
            if arrival.arrived != 0 && fabric.send(arrival.from.node, kind::ARRIVED, &body).is_ok() {
                arrival.arrived = 0;
            }
        }
        self.arrivals.retain(|arrival| arrival.arrived != 0 || arrival.flows.iter().any(Option::is_some));
        let told = lane::send_ended(fabric, kind::SETTLED, &self.settled);
        self.settled.drain(..told);
    }

    fn ask_switch(&mut self, lanes: &mut [Lane], fabric: &mut Fabric, clock: u64) {
        let mut again = Vec::new();
        for departure in &mut self.departures {
            let is_late = |patience| clock.saturating_sub(departure.since) > patience;
            let is_asked = departure.flows.iter().any(|flow| flow.stage == Stage::Asked);
            if departure.asked_switch {
                if departure.answered && !departure.marked && is_late(MARK_PATIENCE) {
                    departure.since = clock;
                    let _ = fabric.send(SWITCH, kind::MARK, &departure.number.to_be_bytes());
                }
            } else if is_asked && is_late(PATIENCE) {
                let lane = &mut lanes[departure.lane];
                let mut bits = 0;
                for (at, flow) in departure.flows.iter_mut().enumerate() {
                    bits |= 1 << at;
                    stay(lane, flow);
                    again.push((departure.request, (departure.lane, flow.slot, flow.generation, flow.tries + 1)));
                }
                self.cancelled.push((departure.to, departure.number, bits));
            } else if !is_asked && departure.flows.iter().any(|flow| flow.stage == Stage::Welcome) {
                let lane = &lanes[departure.lane];
                let welcome = departure.flows.iter().filter(|flow| flow.stage == Stage::Welcome);
                let mut body = Vec::with_capacity(10 + departure.flows.len() * size_of::<Claim>());
                body.extend_from_slice(&departure.number.to_be_bytes());
                body.extend_from_slice(&departure.to.node.to_be_bytes());
                body.extend_from_slice(&departure.to.incarnation.to_be_bytes());
                for flow in welcome {
                    body.extend_from_slice(claim_of(lane, flow.slot, departure.lane).as_bytes());
                }
                if fabric.send(SWITCH, kind::MOVE, &body).is_ok() {
                    departure.asked_switch = true;
                    departure.since = clock;
                }
            }
        }
        for (request, flow) in again {
            self.try_again(request, vec![flow]);
        }
    }

    fn start(&mut self, lanes: &mut [Lane], fabric: &mut Fabric, members: &[Peer], clock: u64) {
        for at in 0..self.orders.len() {
            let mut budget = SCAN;
            self.orders[at].targets.retain(|target| members.contains(target));
            while self.departures.len() < BATCHES && budget > 0 {
                let order = &mut self.orders[at];
                if order.targets.is_empty() {
                    order.refused += order.again.len() as u64;
                    order.again.clear();
                    order.left = 0;
                    break;
                }
                let to = order.targets[order.next_target % order.targets.len()];
                let (lane, flows) = order.choose(lanes, &mut budget);
                if flows.is_empty() {
                    if order.left == 0 || order.at.0 >= lanes.len() {
                        break;
                    }
                    continue;
                }
                order.next_target = order.next_target.wrapping_add(1);
                let mut body = Vec::with_capacity(12 + flows.len() * size_of::<Claim>());
                body.extend_from_slice(&self.next_number.to_be_bytes());
                body.extend_from_slice(&lanes[lane].flows.layout().to_be_bytes());
                for flow in &flows {
                    body.extend_from_slice(claim_of(&lanes[lane], flow.slot, lane).as_bytes());
                }
                let is_sent = fabric.send(to.node, kind::PREPARE, &body).is_ok();
                for flow in &flows {
                    let flags = &mut lanes[lane].flows.header_mut(flow.slot).flags;
                    *flags = if is_sent { *flags | flag::MOVING } else { *flags & !flag::MOVING };
                }
                let order = &mut self.orders[at];
                if !is_sent {
                    // Its channel is full: later.
                    order.again.extend(flows.iter().map(|flow| (lane, flow.slot, flow.generation, flow.tries)));
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
    }

    fn report(&mut self, fabric: &mut Fabric, clock: u64) {
        let Migrations { orders, departures, .. } = self;
        orders.retain_mut(|order| {
            let is_under_way = departures.iter().any(|departure| departure.request == order.request);
            let has_more = order.left > 0 && order.at.0 != usize::MAX || !order.again.is_empty();
            let last = !is_under_way && !has_more;
            if !last && clock.saturating_sub(order.told_at) < PROGRESS {
                return true;
            }
            order.told_at = clock;
            let message = Control::Migrated { request: order.request, moved: order.moved, refused: order.refused, last };
            !(tell(fabric, &message) && last)
        });
    }
}

/// Tells those who want to know how far a request is. False if one of them must be told again.
fn tell(fabric: &mut Fabric, message: &Control) -> bool {
    let told = [COORDINATOR, MANAGER].map(|node| fabric.send_control(node, message));
    told == [true; 2]
}

impl Order {
    /// The next flows that shall go, of one lane.
    fn choose(&mut self, lanes: &[Lane], budget: &mut u32) -> (usize, Vec<Departing>) {
        let mut chosen: Vec<Departing> = Vec::with_capacity(BATCH);
        let departing = |lane: &Lane, slot: Slot, tries: u8| {
            let header = lane.flows.header(slot);
            Departing { slot, generation: header.generation, old_epoch: header.epoch, new_epoch: 0, stage: Stage::Asked, tries }
        };
        if let Some(&(first, ..)) = self.again.first() {
            let mut rest = Vec::with_capacity(self.again.len());
            for (at, slot, generation, tries) in self.again.drain(..) {
                let header = lanes[at].flows.header(slot);
                let may_go = header.role == role::OWNER && header.generation == generation && header.flags & flag::MOVING == 0;
                if at != first || chosen.len() == BATCH {
                    rest.push((at, slot, generation, tries));
                } else if may_go {
                    chosen.push(departing(&lanes[at], slot, tries));
                }
            }
            self.again = rest;
            *budget = budget.saturating_sub(1);
            return (first, chosen);
        }
        while self.left > 0 && *budget > 0 && chosen.len() < BATCH {
            let Some(lane) = lanes.get(self.at.0) else {
                // Everything has been looked at.
                self.at.0 = usize::MAX;
                break;
            };
            if self.at.1 as usize >= lane.flows.capacity() {
                if !chosen.is_empty() {
                    break;
                }
                self.at = (self.at.0 + 1, 0);
                continue;
            }
            let slot = self.at.1;
            self.at.1 += 1;
            *budget -= 1;
            let header = lane.flows.header(slot);
            if header.role == role::OWNER
                && header.flags & flag::MOVING == 0
                && (self.selector.matches(&header.key) || self.selector.matches(&header.reply.reverse()))
            {
                chosen.push(departing(lane, slot, 0));
                self.left -= 1;
            }
        }
        let lane = if self.at.0 == usize::MAX { 0 } else { self.at.0 };
        (lane, chosen)
    }
}

fn is_departed(lane: &Lane, flow: &Departing) -> bool {
    let header = lane.flows.header(flow.slot);
    header.role == role::DEPARTED && header.generation == flow.generation
}

fn claim_of(lane: &Lane, slot: Slot, chain: usize) -> Claim {
    let header = lane.flows.header(slot);
    Claim { key: header.key.into(), reply: header.reply.into(), epoch: header.epoch.into(), chain: (chain as u32).into() }
}

/// False if its channel is full.
fn cancel(fabric: &mut Fabric, to: Peer, number: u32, bits: u32) -> bool {
    let mut body = [0; 8];
    body[..4].copy_from_slice(&number.to_be_bytes());
    body[4..].copy_from_slice(&bits.to_be_bytes());
    fabric.send(to.node, kind::CANCEL, &body).is_ok()
}

/// Makes a place for a flow that is about to come.
fn welcome(lane: &mut Lane, from: Peer, claim: &Claim) -> Option<Slot> {
    let (key, reply) = (FlowKey::from(claim.key), FlowKey::from(claim.reply));
    let hash = lane.flows.hash(&key);
    if let Some(found) = lane.flows.find(&key, hash) {
        let ours = lane.flows.header(found.slot);
        if found.is_reply || ours.role != role::REPLICA {
            return None;
        }
        let is_its = (ours.peer, ours.peer_incarnation) == (from.node, from.incarnation);
        if ours.epoch == claim.epoch.get() && is_its && ours.reply == reply {
            lane.flows.set_role(found.slot, role::ARRIVING);
            return Some(found.slot);
        }
        if (ours.epoch.wrapping_sub(claim.epoch.get()) as i32) >= 0 {
            return None;
        }
        // An earlier flow under this key, of which nobody said that it ended.
        lane.flows.remove(found.slot);
    }
    let slot = lane.flows.insert(key, hash, role::ARRIVING).ok()?;
    if reply != FlowKey::default() && lane.flows.set_reply(slot, reply).is_err() {
        lane.flows.remove(slot);
        return None;
    }
    let header = lane.flows.header_mut(slot);
    header.epoch = claim.epoch.get();
    header.chain = lane.index;
    header.flags = flag::EMPTY;
    Some(slot)
}

/// It will not come after all.
fn unwelcome(lane: &mut Lane, slot: Slot) {
    let header = lane.flows.header(slot);
    if header.role != role::ARRIVING {
        return;
    }
    if header.flags & flag::EMPTY == 0 {
        lane.flows.set_role(slot, role::REPLICA);
    } else {
        lane.flows.remove(slot);
    }
    lane.retry = true;
}

impl Lane {
    /// The flow is no longer owned here: its functions let go of it.
    fn leave(&mut self, slot: Slot, epoch: u32, role: u8, shared: &mut Shared) {
        self.wheel.remove(&mut self.flows, slot);
        let (header, state) = self.flows.parts_mut(slot);
        header.epoch = epoch;
        header.flags &= !flag::MOVING;
        lane::contain(&mut self.chain, state, shared, Chain::migrate_out);
        self.flows.set_role(slot, role);
    }

    /// A flow came, whole, and is owned here from now on.
    fn arrive_flow(&mut self, slot: Slot, block: &[u8], from: Peer, shared: &mut Shared) {
        // Its reply key was placed when it was announced.
        let _ = self.flows.overwrite(slot, block);
        let header = self.flows.header_mut(slot);
        // The switch may not have learnt the reply key from a packet that left before.
        header.flags = flag::UNCONFIRMED;
        self.flows.set_role(slot, role::OWNER);
        self.protection.arrived(&mut self.flows, slot, from);
        let (_, state) = self.flows.parts_mut(slot);
        lane::contain(&mut self.chain, state, shared, Chain::migrate_in);
        self.wheel.file(&mut self.flows, slot);
        self.retry = true;
    }
}
