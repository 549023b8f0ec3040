//! Arrivals: slots for flows that come, their batches, and the messages about them.

use super::super::recovery::Recoveries;
use super::super::{Lane, Shared};
use super::{BATCH, Parts};
use crate::channel::Fabric;
use crate::message::{Claim, ClaimFlag, kind};
use crate::prefetch::OfChain;
use holdfast_protection::flows::{ActorHeader, Event, Life, flag};
use holdfast_protection::{Epoch, FlowRef, Peer, Slot};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, FlowKey};
use zerocopy::FromBytes;

/// While the states of so many flows wait for room, no more flows are welcome.
const ASIDE: usize = 1024;

/// A batch on its way here.
struct Batch {
    from: Peer,
    number: u32,
    lane: usize,
    flows: Vec<Option<FlowRef>>,
    /// Flows that have arrived and of which the source has not been told, a bit each.
    arrived: u32,
    /// True if a switch incarnation that has died led the routes here.
    is_of_dead_switch: bool,
}

/// Batches on their way here.
#[derive(Default)]
pub(crate) struct Arrivals {
    batches: Vec<Batch>,
    /// The position of the batch that was found last, because a batch's flows come one
    /// after the other.
    last: usize,
    /// Flows that have arrived, of which the switch has not been told: switch peer, key,
    /// epoch.
    settled: Vec<(usize, FlowKey, Epoch)>,
    /// Flows that have arrived after the switch that led their routes here died, so that
    /// its next incarnation must be told: lane and slot.
    late: Vec<(usize, Slot)>,
}

impl Arrivals {
    /// True if no flow is on its way and everything has been told.
    pub(super) fn is_idle(&self) -> bool {
        self.batches.is_empty() && self.settled.is_empty()
    }

    fn batch(&mut self, from: Peer, number: u32) -> Result<&mut Batch, DropReason> {
        let is_it = |batch: &Batch| batch.from == from && batch.number == number;
        if !self.batches.get(self.last).is_some_and(is_it) {
            self.last = self.batches.iter().position(is_it).ok_or(DropReason::StaleDuplicate)?;
        }
        Ok(&mut self.batches[self.last])
    }

    /// Answers a runtime that announces flows, by a bit for each that is welcome.
    pub(super) fn handle_prepare(
        &mut self,
        from: Peer,
        number: u32,
        body: &[u8],
        parts: &mut Parts<'_>,
    ) -> Result<(), DropReason> {
        let (layout, claims) = body.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
        let claims = <[Claim]>::ref_from_bytes(claims).map_err(|_| DropReason::Malformed)?;
        let chain = usize::from(claims.first().ok_or(DropReason::Malformed)?.chain());
        let lane = parts.lanes.get_mut(chain).ok_or(DropReason::Malformed)?;
        if parts.fabric.peer(from.node) != Some(from) && !is_planted(Fault::TakesFromTheDead) {
            // The sender's death was heard first: copies of its flows here are kept for
            // its recovery.
            return Err(DropReason::Fenced);
        }
        if claims.len() > BATCH
            || self.batches.iter().any(|batch| batch.from == from && batch.number == number)
        {
            return Err(DropReason::Malformed);
        }
        let is_alike = u64::from_be_bytes(*layout) == lane.flows.layout();
        // Expected flows are counted one by one only if the count matters.
        let most = self.batches.len() * BATCH;
        let expected = match lane.flows.owned() + most + claims.len() <= lane.owned_limit {
            true => most,
            false => self.batches.iter().map(|batch| batch.flows.iter().flatten().count()).sum(),
        };
        let mut room = lane.owned_limit.saturating_sub(lane.flows.owned() + expected);
        let mut flows = Vec::with_capacity(claims.len());
        // The look-ups are done in stages, so that the keys' cache misses overlap.
        let mut hashes = [0; BATCH];
        hashes
            .iter_mut()
            .zip(claims)
            .for_each(|(hash, claim)| *hash = lane.flows.hash(&claim.key.into()));
        core::hint::black_box(lane.touch(&hashes[..claims.len()]));
        let replies = claims.iter().map(|claim| lane.flows.hash(&claim.reply.into()));
        core::hint::black_box(lane.flows.touch_buckets(replies));
        for (claim, hash) in claims.iter().zip(hashes) {
            let slot = if is_alike && room > 0 { welcome(lane, from, claim, hash) } else { None };
            room -= usize::from(slot.is_some());
            flows.push(slot.map(|slot| lane.flows.reference(slot)));
        }
        let welcome = flows
            .iter()
            .enumerate()
            .fold(0u32, |bits, (at, slot)| bits | u32::from(slot.is_some()) << at);
        let mut answer = [0; 8];
        answer[..4].copy_from_slice(&number.to_be_bytes());
        answer[4..].copy_from_slice(&welcome.to_be_bytes());
        let batch =
            Batch { from, number, lane: chain, flows, arrived: 0, is_of_dead_switch: false };
        if parts.fabric.send(from.node, kind::PREPARED, &answer).is_err() {
            // The source will not hear that the flows are welcome.
            batch.flows.iter().flatten().for_each(|flow| unwelcome(lane, flow.slot));
        } else if welcome != 0 {
            self.batches.push(batch);
        }
        Ok(())
    }

    /// Takes in a flow that has arrived.
    pub(super) fn handle_flow(
        &mut self,
        from: Peer,
        number: u32,
        body: &[u8],
        parts: &mut Parts<'_>,
    ) -> Result<(), DropReason> {
        let (at, block) = body.split_first().ok_or(DropReason::Malformed)?;
        let batch = self.batch(from, number)?;
        let lane = &mut parts.lanes[batch.lane];
        let place = batch.flows.get_mut(*at as usize).ok_or(DropReason::Malformed)?;
        let flow = place.ok_or(DropReason::StaleDuplicate)?;
        let ours = lane.flows.get(flow).filter(|ours| ours.life() == Life::Arriving);
        let (ours, slot) = (ours.ok_or(DropReason::StaleEpoch)?, flow.slot);
        let is_its =
            ActorHeader::read_from_prefix(block).is_ok_and(|(theirs, _)| theirs.key == ours.key);
        if block.len() != lane.flows.block_len() || !is_its {
            return Err(DropReason::Malformed);
        }
        *place = None;
        batch.arrived |= 1 << at;
        if batch.is_of_dead_switch {
            let lane = batch.lane;
            self.late.push((lane, slot));
        }
        lane.arrive_flow(slot, block, from, parts.shared);
        let header = lane.flows.header(slot);
        self.settled.push((lane.side, header.key, header.epoch));
        Ok(())
    }

    /// Handles a cancellation: some flows stay at the source.
    pub(super) fn handle_cancel(
        &mut self,
        from: Peer,
        number: u32,
        bits: u32,
        lanes: &mut [Lane],
    ) -> Result<(), DropReason> {
        let batch = self.batch(from, number)?;
        let lane = &mut lanes[batch.lane];
        for (at, place) in batch.flows.iter_mut().enumerate() {
            if bits & 1 << at != 0
                && let Some(flow) = place.take()
                && lane.flows.get(flow).is_some()
            {
                unwelcome(lane, flow.slot);
            }
        }
        Ok(())
    }

    /// Gives back the routes of flows on their way from these dead runtimes. Other
    /// runtimes are asked for the dead ones' flows before this one, and wait for that.
    pub(crate) fn give_back(
        &mut self,
        is_asked_later: impl Fn(Peer) -> bool,
        lanes: &mut [Lane],
        recoveries: &mut Recoveries,
    ) {
        for batch in self.batches.extract_if(.., |batch| is_asked_later(batch.from)) {
            let lane = &mut lanes[batch.lane];
            for flow in batch.flows.into_iter().flatten() {
                if is_arriving(lane, flow) {
                    lane.flows.step(flow.slot, Event::Claim);
                    recoveries.give_back(batch.from, lane, flow.slot);
                }
            }
        }
    }

    /// Flows that have arrived since the last call, and of which the present switch must
    /// be told: lane and slot.
    pub(crate) fn take_late(&mut self) -> Vec<(usize, Slot)> {
        core::mem::take(&mut self.late)
    }

    /// True while flows may still arrive whose routes only the dead incarnation of this
    /// switch knew.
    pub(crate) fn expects_late(&self, side: usize, lanes: &[Lane]) -> bool {
        let is_meant = |batch: &&Batch| batch.is_of_dead_switch && lanes[batch.lane].side == side;
        self.batches.iter().filter(is_meant).any(|batch| batch.flows.iter().any(Option::is_some))
    }

    /// Tells the sources and the switches which flows have arrived.
    pub(super) fn tell(&mut self, fabric: &mut Fabric, shared: &Shared) {
        for batch in &mut self.batches {
            let mut body = [0; 8];
            body[..4].copy_from_slice(&batch.number.to_be_bytes());
            body[4..].copy_from_slice(&batch.arrived.to_be_bytes());
            if batch.arrived != 0 && fabric.send(batch.from.node, kind::ARRIVED, &body).is_ok() {
                batch.arrived = 0;
            }
        }
        self.batches.retain(|batch| batch.arrived != 0 || batch.flows.iter().any(Option::is_some));
        for (at, side) in shared.sides.iter().enumerate() {
            let flows: Vec<(FlowKey, Epoch)> = self
                .settled
                .extract_if(.., |(of, ..)| *of == at)
                .map(|(_, key, epoch)| (key, epoch))
                .collect();
            let told = fabric.send_ended(side.switch, kind::SETTLED, &flows);
            self.settled.extend(flows[told..].iter().map(|(key, epoch)| (at, *key, *epoch)));
        }
    }

    /// Handles the death of a source. Flows that have not arrived are claimed, because
    /// there may be copies of them.
    pub(super) fn handle_dead(&mut self, dead: Peer, parts: &mut Parts<'_>) {
        for batch in self.batches.extract_if(.., |batch| batch.from == dead) {
            let lane = &mut parts.lanes[batch.lane];
            for flow in batch.flows.into_iter().flatten() {
                if is_arriving(lane, flow) {
                    // Flows of which there was a replica here are claimed already.
                    lane.flows.step(flow.slot, Event::Claim);
                    parts.recoveries.add(dead, lane, flow.slot);
                }
            }
        }
    }

    /// Marks the batches of this switch peer, because its switch has died.
    pub(super) fn handle_new_switch(&mut self, side: usize, lanes: &[Lane]) {
        let of_side = self.batches.iter_mut().filter(|batch| lanes[batch.lane].side == side);
        of_side.for_each(|batch| batch.is_of_dead_switch = true);
    }
}

/// Makes a slot for a flow that is about to arrive. `None` if the flow is not welcome.
fn welcome(lane: &mut Lane, from: Peer, claim: &Claim, hash: u64) -> Option<Slot> {
    let (key, reply) = (FlowKey::from(claim.key), FlowKey::from(claim.reply));
    if let Some(found) = lane.flows.find(&key, hash) {
        let ours = lane.flows.header(found.slot);
        if found.is_reply || ours.life() != Life::Copy {
            return None;
        }
        let is_its = ours.holder() == from;
        if ours.epoch == claim.epoch() && is_its && ours.reply == reply {
            lane.flows.step(found.slot, Event::Announce);
            return Some(found.slot);
        }
        let is_earlier = claim.epoch().is_later(ours.epoch);
        // If the owner dies before the flow has arrived, this copy may be the only one.
        let is_needed =
            claim.has(ClaimFlag::NeedsEarlier) && !is_planted(Fault::GivesUpNeededCopies);
        if !is_earlier || is_needed {
            return None;
        }
        // The copy is of no use any more, and its owner has not said so yet.
        lane.flows.remove(found.slot);
    }
    if lane.aside() >= ASIDE {
        return None;
    }
    // Room for the flow's state is looked for when the state arrives.
    let slot = lane.flows.insert_header(key, hash, Event::Announce).ok()?;
    if reply != FlowKey::default() && lane.flows.place_reply(slot, reply).is_err() {
        lane.flows.remove(slot);
        return None;
    }
    let header = lane.flows.header_mut(slot);
    header.epoch = claim.epoch();
    header.chain = lane.index;
    header.flags = flag::EMPTY;
    Some(slot)
}

/// True if the flow is still on its way here.
fn is_arriving(lane: &Lane, flow: FlowRef) -> bool {
    lane.flows.get(flow).is_some_and(|header| header.life() == Life::Arriving)
}

/// Gives up the slot of a flow that will not arrive.
fn unwelcome(lane: &mut Lane, slot: Slot) {
    let header = lane.flows.header(slot);
    if header.life() != Life::Arriving {
        return;
    }
    if header.flags & flag::EMPTY == 0 {
        lane.flows.step(slot, Event::CallOff);
    } else {
        lane.flows.remove(slot);
    }
    lane.retry = true;
}

impl Lane {
    /// Takes in a whole flow, which is owned here from now on.
    fn arrive_flow(&mut self, slot: Slot, block: &[u8], from: Peer, shared: &mut Shared) {
        if !self.flows.is_present(slot) {
            self.make_room();
            // Without room the state waits for it.
            let _ = self.flows.make_present(slot);
        }
        // The reply key was placed when the flow was announced.
        let _ = self.flows.overwrite(slot, block);
        let header = self.flows.header_mut(slot);
        // The switch may not have learned the reply key from a packet that left before.
        header.flags = flag::UNCONFIRMED;
        let epoch = header.epoch;
        shared.sides[self.side].note_epoch(epoch);
        self.flows.step(slot, Event::Arrive);
        self.protection.arrived(&mut self.flows, slot, from);
        if self.flows.is_present(slot) {
            let (_, state) = self.flows.parts_mut(slot);
            self.chain.adopt(state);
        } else {
            let mut state = block[size_of::<ActorHeader>()..].to_vec();
            self.chain.adopt(&mut state);
            if let Some(paged) = self.protection.paged_mut() {
                paged.keep_aside(&self.flows, slot, &state);
            }
        }
        self.gather_replies(slot);
        self.gather_pool_requests(Some(epoch));
        self.wheel.file(&mut self.flows, slot);
        self.retry = true;
    }
}
