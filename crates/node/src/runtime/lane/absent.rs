//! Flows whose state is paged out, and room for the state of new ones.
//!
//! In: states that have come, or do not come any more; packets that would open flows.
//! Out: flows that go on, end, or wait. Never: a look at a state that is not here.

use super::ending::contain;
use super::{Chain, DropReason, Lane, PacketPool, Shared, Slot};
use holdfast_protection::flows::Life;

impl Lane {
    /// Number of new flows for whose state there is room, less the room that earlier
    /// flows need.
    fn room_for_new(&self) -> usize {
        let room = self.flows.room();
        room.saturating_sub(self.protection.paged().map_or(0, |paged| paged.reserved(room)))
    }

    /// As `room_for_new`, after an attempt to make some room if there was none.
    pub(super) fn make_room_for_new(&mut self) -> usize {
        self.make_room();
        self.room_for_new()
    }

    /// Pages out the state of another flow if there is no room for one more.
    pub(crate) fn make_room(&mut self) {
        if self.flows.room() == 0
            && let Some(paged) = self.protection.paged_mut()
        {
            paged.make_room(&mut self.flows);
        }
    }

    /// True if this flow's state is here. A state that is paged out is requested, and
    /// reported when it has come.
    pub(crate) fn fetch(&mut self, slot: Slot) -> bool {
        self.protection.paged_mut().is_none_or(|paged| paged.fetch(&self.flows, slot))
    }

    /// Number of states of flows owned here for which there is no room.
    pub(crate) fn aside(&self) -> usize {
        self.protection.paged().map_or(0, |paged| paged.aside())
    }

    /// True if a packet in the lobby could come in.
    pub(crate) fn may_let_in(&self) -> bool {
        self.parking.outside() > 0 && self.room_for_new() > 0
    }

    /// Handles paged-out states that have come, or do not come any more.
    #[inline]
    pub(crate) fn settle_pages(&mut self, shared: &mut Shared, pool: &mut dyn PacketPool) {
        if !self.outbox.loaded.is_empty() || !self.outbox.lost.is_empty() {
            self.settle_answers(shared, pool);
        }
    }

    #[inline(never)]
    fn settle_answers(&mut self, shared: &mut Shared, pool: &mut dyn PacketPool) {
        for slot in core::mem::take(&mut self.outbox.loaded) {
            self.retry = true;
            let header = self.flows.header(slot);
            let is_forgotten = self.wheel.awaits_state(header);
            if self.wheel.holds(header) || !header.life().is_owned() {
                continue;
            }
            // The flow's deadline had come, and no packet has.
            let is_over = header.expires_at <= shared.sides[self.side].now || is_forgotten;
            let is_over = is_over && header.life() == Life::Owned;
            if is_over && header.parked == 0 && self.fetch(slot) {
                shared.forgotten += u64::from(is_forgotten);
                self.expire_flow(slot, shared);
            } else if !self.flows.is_present(slot) {
                // The state was paged out again, for want of room: it will be fetched
                // again.
                continue;
            } else {
                self.wheel.file(&mut self.flows, slot);
            }
        }
        let mut is_miscounted = false;
        for flow in core::mem::take(&mut self.outbox.lost) {
            if self.flows.get_owned(flow).is_some() && !self.flows.is_present(flow.slot) {
                self.lose(flow.slot, shared, pool);
                is_miscounted = true;
            }
        }
        // Leases are unknown for flows whose state is paged out. States that wait here
        // for room count as known.
        let is_away = |slot: &Slot| {
            self.flows.header(*slot).life().is_owned() && !self.flows.is_present(*slot)
        };
        if is_miscounted && (0..self.flows.reach()).filter(is_away).count() <= self.aside() {
            self.recount();
        }
    }

    /// Ends a flow whose state is lost, although its packets have revealed it.
    pub(crate) fn lose(&mut self, slot: Slot, shared: &mut Shared, pool: &mut dyn PacketPool) {
        let header = *self.flows.header(slot);
        for parked in self.parking.take_all(header.reference(slot)) {
            shared.drop(parked.packet, DropReason::LostInFailure, pool);
        }
        self.wheel.remove(&mut self.flows, slot);
        self.protection.ended(&mut self.flows, slot, &mut self.outbox);
        self.end(header.key, header.epoch, shared);
        if self.flows.is_present(slot) {
            contain(&mut self.chain, self.flows.parts_mut(slot).1, shared, Chain::expire);
        }
        self.flows.remove(slot);
        shared.lost += 1;
    }

    /// Recounts leases after flows were lost whose state alone named theirs: all other
    /// flows say what they have.
    fn recount(&mut self) {
        let Lane { flows, chain, parking, protection, .. } = self;
        chain.recount(|adopt| {
            if let Some(paged) = protection.paged_mut() {
                paged.visit_aside(&mut |flow, state| {
                    if flows.get_owned(flow).is_some() && !flows.is_present(flow.slot) {
                        adopt(state, None);
                    }
                });
            }
            for slot in 0..flows.reach() {
                let opened = match flows.header(slot).life() {
                    life if life.is_owned() && flows.is_present(slot) => None,
                    // The flow's first packet waits in the middle of the chain: the
                    // functions before that have the flow open.
                    Life::Opening => Some(parking.opened(flows.reference(slot))),
                    _ => continue,
                };
                adopt(flows.parts_mut(slot).1, opened);
            }
        });
        self.retry = true;
    }
}
