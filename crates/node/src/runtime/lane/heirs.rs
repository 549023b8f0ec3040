//! Heirs: flows whose owner has died, and whose routes this runtime got. Their packets
//! may come again, and their state goes on here.
//!
//! In: routes that were given to this runtime, packets that the dead owner was sent. Out:
//! flows that go on. Never: a packet that left before.

use super::{Lane, Step};
use crate::runtime::Shared;
use holdfast_nf::Position;
use holdfast_protection::flows::{Found, flag};
use holdfast_protection::{Epoch, Peer, Slot};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, FlowKey, Packet, PacketPool};
use std::panic::{AssertUnwindSafe, catch_unwind};

impl Lane {
    /// Runs a packet that the dead owner was sent and had not processed, as far as is
    /// known: it goes through like any other.
    pub(crate) fn run_late(
        &mut self,
        mut packet: Packet,
        found: Found,
        key: &FlowKey,
        shared: &mut Shared,
        pool: &mut dyn PacketPool,
    ) {
        match catch_unwind(AssertUnwindSafe(|| {
            self.run(&mut packet, found, key, Position::START, shared)
        })) {
            Ok(step) => self.settle(step, packet, key, shared, pool),
            Err(_) => self.contain_panic(Some(packet), shared, pool),
        }
    }

    /// Runs a packet that the dead owner had processed: no output of it leaves. True if
    /// the flow is as after that packet.
    pub(crate) fn run_again(
        &mut self,
        packet: &mut Packet,
        found: Found,
        key: &FlowKey,
        shared: &mut Shared,
    ) -> bool {
        let run = AssertUnwindSafe(|| self.run(packet, found, key, Position::START, shared));
        match catch_unwind(run) {
            // The packet went through before, so a wait now means a different outcome.
            Ok(Step::Park(..)) => {
                shared.drops.count(DropReason::InputMissing);
                false
            }
            Ok(_) => true,
            Err(_) => {
                self.roll_back(shared);
                false
            }
        }
    }

    /// Takes over a flow whose route was given to this runtime under `epoch`. The switch
    /// has `logged` packets of it that were sent to its owner `dead`. True if these have
    /// to be replayed first.
    pub(crate) fn claimed(&mut self, slot: Slot, epoch: Epoch, dead: Peer, logged: u32) -> bool {
        let inputs = self
            .protection
            .logged_mut()
            .map(|logged| logged.take_inputs(&self.flows, slot))
            .unwrap_or_default();
        let header = self.flows.header_mut(slot);
        header.epoch = epoch;
        self.protection.claimed(&mut self.flows, slot);
        self.gather_replies(slot);
        if !self.flows.is_present(slot) {
            // This runtime has no state of the flow, and no process asks for the route of
            // such a flow.
            self.outbox.lost.push(self.flows.reference(slot));
            self.retry = true;
            return false;
        }
        let (header, state) = self.flows.parts_mut(slot);
        header.flags |= flag::UNCONFIRMED;
        self.chain.adopt(state);
        let may_forget = self.plan.may_forget();
        if may_forget > 0 && !is_planted(Fault::KeepsOldWindows) {
            self.chain.outdated(state, may_forget);
        }
        self.gather_pool_requests(Some(epoch));
        self.wheel.remove(&mut self.flows, slot);
        self.wheel.file(&mut self.flows, slot);
        self.retry = true;
        self.begin_replay(slot, dead, logged, inputs)
    }
}
