//! The ends of flows here: by time-out, by a first packet that cannot go on, or by
//! another owner.
//!
//! In: the stamped time, newer owners that a protection names. Out: messages to the
//! switch and the protection; returns of the flow's leases. Never: an end that a function
//! does not hear of.

use super::{
    Chain, DropReason, EXPIRE_BUDGET, Epoch, FlowKey, Lane, PacketPool, Position, Shared, Slot,
};
use crate::prefetch::AHEAD;
use crate::runtime::parking::Visitor;
use holdfast_protection::flows::Life;
use std::panic::{AssertUnwindSafe, catch_unwind};

impl Lane {
    /// Drops packets that were parked too long.
    pub(crate) fn expire_parked(&mut self, shared: &mut Shared, pool: &mut dyn PacketPool) {
        while let Some(Visitor { key, packet, .. }) =
            self.parking.pop_outside_older_than(shared.sides[self.side].now)
        {
            self.end(key, Epoch::new(packet.meta.commit), shared);
            shared.drop(packet, DropReason::FlowTableFull, pool);
        }
        while let Some(parked) = self.parking.pop_older_than(shared.sides[self.side].now) {
            if let Some(header) = self.flows.get_mut(parked.flow) {
                header.parked = header.parked.saturating_sub(1);
                if header.life() == Life::Opening && parked.position.opening {
                    self.abandon_opening(parked.flow.slot, parked.position, shared);
                }
            }
            shared.drop(parked.packet, DropReason::ParkedTooLong, pool);
        }
    }

    /// Abandons the opening of a flow.
    pub(super) fn abandon_opening(&mut self, slot: Slot, position: Position, shared: &mut Shared) {
        let (key, epoch) = (self.flows.header(slot).key, self.flows.header(slot).epoch);
        self.end(key, epoch, shared);
        let state = self.flows.parts_mut(slot).1;
        contain(&mut self.chain, state, shared, |chain, state| chain.abandon(state, position));
        self.flows.remove(slot);
    }

    /// Ends flows whose deadline has come, by stamped time.
    pub(crate) fn expire_flows(&mut self, shared: &mut Shared) {
        let now = shared.sides[self.side].now;
        let mut due = core::mem::take(&mut self.due);
        self.wheel.advance(&mut self.flows, now, EXPIRE_BUDGET, |slot| due.push(slot));
        for slots in due.chunks(AHEAD) {
            // No packet has touched these states and keys for long.
            core::hint::black_box(self.flows.touch_blocks(slots.iter().copied()));
            self.expect_removals(slots.iter().copied());
            for &slot in slots {
                // Only the flow's state says what the flow has leased: it ends when the
                // state has come.
                if self.fetch(slot) {
                    self.expire_flow(slot, shared);
                }
            }
        }
        due.clear();
        self.due = due;
    }

    /// Ends a flow whose key the switch has given to another one: no packet of it arrives
    /// or leaves any more.
    pub(crate) fn end_unrouted(
        &mut self,
        key: &FlowKey,
        epoch: Epoch,
        shared: &mut Shared,
        pool: &mut dyn PacketPool,
    ) {
        let found = self.flows.find(key, self.flows.hash(key)).filter(|found| !found.is_reply);
        let Some(slot) =
            found.map(|found| found.slot).filter(|slot| self.flows.header(*slot).epoch == epoch)
        else {
            return;
        };
        let header = self.flows.header_mut(slot);
        match header.life() {
            Life::Owned | Life::Leaving | Life::Replaying => {
                header.set_deadline(0);
                self.wheel.bring_forward(&mut self.flows, slot);
            }
            Life::Opening => {
                let waiting = self.parking.take_all(header.reference(slot));
                let opening =
                    waiting.iter().map(|parked| parked.position).find(|position| position.opening);
                self.abandon_opening(slot, opening.unwrap_or_default(), shared);
                waiting
                    .into_iter()
                    .for_each(|parked| shared.drop(parked.packet, DropReason::StaleEpoch, pool));
            }
            _ => {}
        }
    }

    pub(super) fn expire_flow(&mut self, slot: Slot, shared: &mut Shared) {
        self.protection.ended(&mut self.flows, slot, &mut self.outbox);
        let (key, epoch) = (self.flows.header(slot).key, self.flows.header(slot).epoch);
        self.end(key, epoch, shared);
        contain(&mut self.chain, self.flows.parts_mut(slot).1, shared, Chain::expire);
        self.flows.remove(slot);
        shared.expired += 1;
    }

    /// Ends the flows that another runtime owns by a newer epoch, at once: their slots
    /// may be used again.
    pub(crate) fn demote(&mut self, shared: &mut Shared, pool: &mut dyn PacketPool) {
        if self.outbox.demoted.is_empty() {
            return;
        }
        self.outbox.demoted.clear();
        let mut demoted = self.flows.take_demoted();
        for left in &mut demoted {
            let slot = left.slot;
            let (was, state) = left.parts_mut();
            let waiting = self.parking.take_all(was.reference(slot));
            let now = self.flows.header_mut(slot);
            now.parked = 0;
            let is_same = now.opened_at == was.opened_at;
            let hash = self.flows.hash(&was.key);
            self.gone.note(hash, was.epoch);
            shared.sides[self.side].note_epoch(was.epoch);
            if was.life() == Life::Opening {
                let opening =
                    waiting.iter().map(|parked| parked.position).find(|position| position.opening);
                if let Some(state) = state {
                    contain(&mut self.chain, state, shared, |chain, state| {
                        chain.abandon(state, opening.unwrap_or_default())
                    });
                }
            } else {
                self.wheel.remove(&mut self.flows, slot);
                // A flow that moved keeps its leases. A flow whose key was opened again
                // elsewhere, as another flow, has ended.
                match state {
                    Some(state) if is_same => self.chain.forget(state),
                    Some(state) => contain(&mut self.chain, state, shared, Chain::expire),
                    None => {}
                }
            }
            for parked in waiting {
                shared.drop(parked.packet, DropReason::StaleEpoch, pool);
            }
        }
    }
}

/// Ends a flow in its functions. If one panics, the others still end it.
pub(crate) fn contain(
    chain: &mut Chain,
    state: &mut [u8],
    shared: &mut Shared,
    end: impl FnOnce(&mut Chain, &mut [u8]),
) {
    let mut result = catch_unwind(AssertUnwindSafe(|| end(chain, state)));
    while result.is_err() {
        shared.panics += 1;
        result = catch_unwind(AssertUnwindSafe(|| chain.close_rest(state)));
    }
}
