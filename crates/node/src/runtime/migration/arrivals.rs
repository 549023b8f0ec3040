//! Flows that come: places for them, their batch, and who must hear of it.

use super::super::recovery::Recoveries;
use super::super::{Lane, Shared};
use super::{BATCH, Parts};
use crate::ahead::OfChain;
use crate::channel::Fabric;
use crate::message::{Claim, ClaimFlag, kind};
use holdfast_protection::flows::{ActorHeader, flag, role};
use holdfast_protection::{Epoch, Peer, Slot};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, FlowKey};
use zerocopy::FromBytes;

/// No more flows are welcome while the states of so many wait for room.
const ASIDE: usize = 1024;

/// A batch on its way here.
struct Batch {
    from: Peer,
    number: u32,
    lane: usize,
    flows: Vec<Option<(Slot, u32)>>,
    /// Those that have come, to be told to the source.
    arrived: u32,
    /// Its routes were led here by a life of the switch that has died.
    is_of_dead_switch: bool,
}

/// Batches on their way here.
#[derive(Default)]
pub(crate) struct Arrivals {
    batches: Vec<Batch>,
    /// The one that was found last: a batch's flows come one after the other.
    last: usize,
    /// Flows that have come, of which the switch of this side has not been told.
    settled: Vec<(usize, FlowKey, Epoch)>,
    /// Flows that have come, and whose routes the switch that led them here cannot tell any more: lane and slot.
    late: Vec<(usize, Slot)>,
}

impl Arrivals {
    /// True if nothing is on its way and everything has been told.
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

    /// A runtime has flows that shall come here: says which are welcome.
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
            // It has died since, which was heard first: what is here of its flows is kept for who recovers them.
            return Err(DropReason::Fenced);
        }
        if claims.len() > BATCH || self.batches.iter().any(|batch| batch.from == from && batch.number == number) {
            return Err(DropReason::Malformed);
        }
        let is_alike = u64::from_be_bytes(*layout) == lane.flows.layout();
        // Counted one by one only where it matters.
        let most = self.batches.len() * BATCH;
        let expected = match lane.flows.owned() + most + claims.len() <= lane.owned_limit {
            true => most,
            false => self.batches.iter().map(|batch| batch.flows.iter().flatten().count()).sum(),
        };
        let mut room = lane.owned_limit.saturating_sub(lane.flows.owned() + expected);
        let mut flows = Vec::with_capacity(claims.len());
        // In stages, so that the keys' cache misses overlap.
        let mut hashes = [0; BATCH];
        hashes.iter_mut().zip(claims).for_each(|(hash, claim)| *hash = lane.flows.hash(&claim.key.into()));
        core::hint::black_box(lane.touch(&hashes[..claims.len()]));
        let replies = claims.iter().map(|claim| lane.flows.hash(&claim.reply.into()));
        core::hint::black_box(lane.flows.touch_buckets(replies));
        for (claim, hash) in claims.iter().zip(hashes) {
            let slot = if is_alike && room > 0 { welcome(lane, from, claim, hash) } else { None };
            room -= usize::from(slot.is_some());
            flows.push(slot.map(|slot| (slot, lane.flows.header(slot).generation)));
        }
        let welcome = flows.iter().enumerate().fold(0u32, |bits, (at, slot)| bits | u32::from(slot.is_some()) << at);
        let mut answer = [0; 8];
        answer[..4].copy_from_slice(&number.to_be_bytes());
        answer[4..].copy_from_slice(&welcome.to_be_bytes());
        let batch = Batch { from, number, lane: chain, flows, arrived: 0, is_of_dead_switch: false };
        if parts.fabric.send(from.node, kind::PREPARED, &answer).is_err() {
            // It will not hear that they are welcome.
            batch.flows.iter().flatten().for_each(|(slot, _)| unwelcome(lane, *slot));
        } else if welcome != 0 {
            self.batches.push(batch);
        }
        Ok(())
    }

    /// One of them has come.
    pub(super) fn handle_flow(&mut self, from: Peer, number: u32, body: &[u8], parts: &mut Parts<'_>) -> Result<(), DropReason> {
        let (at, block) = body.split_first().ok_or(DropReason::Malformed)?;
        let batch = self.batch(from, number)?;
        let lane = &mut parts.lanes[batch.lane];
        let place = batch.flows.get_mut(*at as usize).ok_or(DropReason::Malformed)?;
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

    /// Some of them stay where they are.
    pub(super) fn handle_cancel(&mut self, from: Peer, number: u32, bits: u32, lanes: &mut [Lane]) -> Result<(), DropReason> {
        let batch = self.batch(from, number)?;
        let lane = &mut lanes[batch.lane];
        for (at, place) in batch.flows.iter_mut().enumerate() {
            if bits & 1 << at != 0
                && let Some((slot, generation)) = place.take()
                && lane.flows.header(slot).generation == generation
            {
                unwelcome(lane, slot);
            }
        }
        Ok(())
    }

    /// Of these dead others are asked what they have before this runtime is, and wait for what was on its way here: its routes go back.
    pub(crate) fn give_back(&mut self, is_asked_later: impl Fn(Peer) -> bool, lanes: &mut [Lane], recoveries: &mut Recoveries) {
        for batch in self.batches.extract_if(.., |batch| is_asked_later(batch.from)) {
            let lane = &mut lanes[batch.lane];
            for (slot, generation) in batch.flows.into_iter().flatten() {
                let header = lane.flows.header(slot);
                if header.generation == generation && header.role == role::ARRIVING {
                    lane.flows.set_role(slot, role::CLAIMING);
                    recoveries.give_back(batch.from, lane, slot);
                }
            }
        }
    }

    /// Flows that came since this was asked last, and of which the present switch must be told: lane and slot.
    pub(crate) fn take_late(&mut self) -> Vec<(usize, Slot)> {
        core::mem::take(&mut self.late)
    }

    /// True while flows may come of which only the life of this side's switch that has died knew that they do.
    pub(crate) fn expects_late(&self, side: usize, lanes: &[Lane]) -> bool {
        let is_meant = |batch: &&Batch| batch.is_of_dead_switch && lanes[batch.lane].side == side;
        self.batches.iter().filter(is_meant).any(|batch| batch.flows.iter().any(Option::is_some))
    }

    /// Tells the sources and the switches what has come.
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
            let flows: Vec<(FlowKey, Epoch)> =
                self.settled.extract_if(.., |(of, ..)| *of == at).map(|(_, key, epoch)| (key, epoch)).collect();
            let told = fabric.send_ended(side.switch, kind::SETTLED, &flows);
            self.settled.extend(flows[told..].iter().map(|(key, epoch)| (at, *key, *epoch)));
        }
    }

    /// Who was sending flows has died. Of those that have not come there may be a copy: they are claimed.
    pub(super) fn handle_dead(&mut self, dead: Peer, parts: &mut Parts<'_>) {
        for batch in self.batches.extract_if(.., |batch| batch.from == dead) {
            let lane = &mut parts.lanes[batch.lane];
            for (slot, generation) in batch.flows.into_iter().flatten() {
                let header = lane.flows.header(slot);
                if header.generation == generation && header.role == role::ARRIVING {
                    // Of what there was a replica here that is claimed already.
                    lane.flows.set_role(slot, role::CLAIMING);
                    parts.recoveries.add(dead, lane, slot);
                }
            }
        }
    }

    /// The switch of this side has died.
    pub(super) fn handle_new_switch(&mut self, side: usize, lanes: &[Lane]) {
        let of_side = self.batches.iter_mut().filter(|batch| lanes[batch.lane].side == side);
        of_side.for_each(|batch| batch.is_of_dead_switch = true);
    }
}

/// Makes a place for a flow that is about to come.
fn welcome(lane: &mut Lane, from: Peer, claim: &Claim, hash: u64) -> Option<Slot> {
    let (key, reply) = (FlowKey::from(claim.key), FlowKey::from(claim.reply));
    if let Some(found) = lane.flows.find(&key, hash) {
        let ours = lane.flows.header(found.slot);
        if found.is_reply || ours.role != role::REPLICA {
            return None;
        }
        let is_its = (ours.peer, ours.peer_incarnation) == (from.node, from.incarnation);
        if ours.epoch == claim.epoch() && is_its && ours.reply == reply {
            lane.flows.set_role(found.slot, role::ARRIVING);
            return Some(found.slot);
        }
        let is_earlier = claim.epoch().is_later(ours.epoch);
        // If its owner dies before it has come, this may be all that there is of it.
        let is_needed = claim.has(ClaimFlag::NeedsEarlier) && !is_planted(Fault::GivesUpNeededCopies);
        if !is_earlier || is_needed {
            return None;
        }
        // Nobody has said yet that it is of no use any more.
        lane.flows.remove(found.slot);
    }
    if lane.aside() >= ASIDE {
        return None;
    }
    // Whether there is room for its state is seen when that comes.
    let slot = lane.flows.insert_header(key, hash, role::ARRIVING).ok()?;
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
    /// A flow came, whole, and is owned here from now on.
    fn arrive_flow(&mut self, slot: Slot, block: &[u8], from: Peer, shared: &mut Shared) {
        if !self.flows.is_present(slot) {
            self.make_room();
            // If there is none the state waits for it.
            let _ = self.flows.make_present(slot);
        }
        // Its reply key was placed when it was announced.
        let _ = self.flows.overwrite(slot, block);
        let header = self.flows.header_mut(slot);
        // The switch may not have learnt the reply key from a packet that left before.
        header.flags = flag::UNCONFIRMED;
        let epoch = header.epoch;
        shared.sides[self.side].note_epoch(epoch);
        self.flows.set_role(slot, role::OWNER);
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
        self.gather_wishes(Some(epoch));
        self.wheel.file(&mut self.flows, slot);
        self.retry = true;
    }
}
