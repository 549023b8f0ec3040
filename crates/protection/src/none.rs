//! `none`: the baseline of every paper. State is in this runtime's memory, packets leave
//! at once, and lost state stays lost.

use crate::{Flows, Outbox, Peer, Plan, Protection, Safety, Slot};
use holdfast_wire::{DropReason, Packet};

/// See the module.
#[derive(Debug)]
pub(crate) struct Unprotected {
    plan: Plan,
}

impl Unprotected {
    pub(crate) fn new(plan: Plan) -> Unprotected {
        Unprotected { plan }
    }
}

impl Protection for Unprotected {
    fn plan(&self) -> Plan {
        self.plan
    }

    #[inline]
    fn commit(
        &mut self,
        _flows: &mut Flows,
        _slot: Slot,
        packet: Packet,
        _nondeterministic: bool,
        out: &mut Outbox,
    ) {
        out.release(packet);
    }

    fn changed(&mut self, _flows: &mut Flows, _slot: Slot, _stamp: u64, _nondeterministic: bool) {}

    fn ended(&mut self, _flows: &mut Flows, _slot: Slot, _out: &mut Outbox) {}

    fn flush(&mut self, _flows: &mut Flows, _out: &mut Outbox) {}

    fn set_peers(
        &mut self,
        _flows: &mut Flows,
        _peers: &[Peer],
        _leaving: &[Peer],
        _out: &mut Outbox,
    ) {
    }

    fn handle_record(
        &mut self,
        _: &mut Flows,
        _: Peer,
        _: u8,
        _: &[u8],
        _: &mut Outbox,
    ) -> Result<(), DropReason> {
        Err(DropReason::Malformed)
    }

    fn handle_handed(&mut self, _flows: &mut Flows, _from: Peer, packet: Packet, out: &mut Outbox) {
        out.dropped.push((packet, DropReason::Malformed));
    }

    fn recover(&mut self, _flows: &mut Flows, _dead: Peer, _out: &mut Outbox) {}

    fn claimed(&mut self, _flows: &mut Flows, _slot: Slot) {}

    fn safety(&self, flows: &Flows) -> Safety {
        Safety { unprotected: flows.owned() as u64, ..Safety::default() }
    }

    fn abandon(&mut self, _out: &mut Outbox) {}
}
