//! Packets that wait: for room in the table, for their flow, or for a function's request.
//!
//! In: packets that cannot go on, turns. Out: packets that go on at their position.
//! Never: a packet before an earlier one of its flow.

use super::{Arrival, Lane, Step};
use crate::runtime::Shared;
use crate::runtime::parking::{Parked, Visitor};
use holdfast_nf::Position;
use holdfast_protection::flows::{Found, Life};
use holdfast_protection::{Epoch, Slot};
use holdfast_wire::nsh::Flags;
use holdfast_wire::{DropReason, FlowKey, Packet, PacketPool};
use std::panic::{AssertUnwindSafe, catch_unwind};

impl Lane {
    /// Puts packets from the lobby ahead of this turn's, as far as there is room for
    /// their flows.
    #[cold]
    pub(super) fn let_in(&mut self, shared: &mut Shared, pool: &mut dyn PacketPool) {
        let room = self.make_room_for_new();
        let incarnation = shared.sides[self.side].incarnation;
        // A packet from an earlier incarnation of the switch opens no flow, because the
        // present one would not know it.
        let is_late = |visitor: &mut Visitor| {
            incarnation.is_some_and(|now| now != visitor.packet.meta.switch)
        };
        let mut coming = if room > 0 { self.parking.come_in(room) } else { Vec::new() };
        for Visitor { packet, .. } in coming.extract_if(.., is_late) {
            shared.drop(packet, DropReason::LostInFailure, pool);
        }
        let arrival = |Visitor { key, hash, packet }| Arrival { packet: Some(packet), key, hash };
        self.work.splice(0..0, coming.into_iter().map(arrival));
    }

    #[cold]
    pub(super) fn wait_outside(
        &mut self,
        packet: Packet,
        key: &FlowKey,
        shared: &mut Shared,
        pool: &mut dyn PacketPool,
    ) {
        let visitor = Visitor { key: *key, hash: self.flows.hash(key), packet };
        if let Err(Visitor { key, packet, .. }) = self.parking.wait_outside(visitor) {
            shared.sides[self.side].is_full = true;
            self.end(key, Epoch::new(packet.meta.commit), shared);
            shared.drop(packet, DropReason::FlowTableFull, pool);
        }
    }

    #[inline(never)]
    pub(super) fn park(
        &mut self,
        slot: Slot,
        position: Position,
        packet: Packet,
        key: &FlowKey,
        shared: &mut Shared,
        pool: &mut dyn PacketPool,
    ) {
        if shared.follows(&packet) {
            shared.trace(&packet, format!("chain {}: {key} waits", self.name));
        }
        let parked = Parked {
            flow: self.flows.reference(slot),
            key: *key,
            position,
            since: shared.sides[self.side].now,
            packet,
        };
        let header = self.flows.header_mut(slot);
        match self.parking.push(parked, header.parked) {
            Ok(()) => header.parked += 1,
            Err(packet) => {
                if header.life() == Life::Opening && position.opening {
                    // The flow would never be opened or ended without this packet.
                    self.abandon_opening(slot, position, shared);
                }
                shared.drop(packet, DropReason::ParkedOverflow, pool);
            }
        }
    }

    /// Tries the parked packets again, each flow's in order.
    pub(crate) fn unpark(&mut self, shared: &mut Shared, pool: &mut dyn PacketPool) {
        self.retry = false;
        let mut blocked: Vec<Slot> = Vec::new();
        for _ in 0..self.parking.len() {
            let Some(parked) = self.parking.pop() else { break };
            let slot = parked.flow.slot;
            let Some(header) = self.flows.get(parked.flow) else {
                shared.drop(parked.packet, DropReason::NoFlow, pool);
                continue;
            };
            let life = header.life();
            let (is_owned, is_replaying) = (life.is_owned(), life == Life::Replaying);
            let is_opening_itself = life == Life::Opening && parked.position.opening;
            if is_owned && self.is_anothers(&parked) {
                self.put_off(parked, shared, pool);
                continue;
            }
            let may_run = (is_owned || is_opening_itself) && !blocked.contains(&slot);
            // If the flow's state is paged out, only request it.
            let may_run = may_run && (self.flows.is_present(slot) || self.fetch(slot));
            if !may_run || is_replaying {
                let header = self.flows.header_mut(slot);
                if header.life() == Life::Copy {
                    header.parked -= 1;
                    shared.drop(parked.packet, DropReason::StaleEpoch, pool);
                } else {
                    self.parking.put_back(parked);
                }
                continue;
            }
            let header = self.flows.header_mut(slot);
            header.parked -= 1;
            // The packet may have been forwarded under the epoch before the flow came
            // here.
            let is_reply = header.is_reply(&parked.key);
            let (key, mut packet) = (parked.key, parked.packet);
            // Or the flow got a new epoch with the packet, which had to wait.
            let epoch = Epoch::new(packet.meta.commit);
            let is_new = packet.meta.flags & Flags::NEW != 0;
            if is_owned && is_new && epoch.is_later(header.epoch) {
                super::renew_route(header, epoch, is_reply);
            }
            let step = catch_unwind(AssertUnwindSafe(|| {
                self.run(&mut packet, Found { slot, is_reply }, &key, parked.position, shared)
            }));
            let Ok(step) = step else {
                self.contain_panic(Some(packet), shared, pool);
                continue;
            };
            if let Step::Park(slot, position) = step {
                blocked.push(slot);
                let header = self.flows.header_mut(slot);
                header.parked += 1;
                self.parking.put_back(Parked {
                    flow: parked.flow,
                    position,
                    packet,
                    key,
                    since: parked.since,
                });
            } else {
                self.settle(step, packet, &key, shared, pool);
            }
        }
    }
}
