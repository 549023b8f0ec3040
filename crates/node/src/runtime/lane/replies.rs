//! Replies that arrive before their flow, if several flows want replies under one key.
//!
//! The switch gives a reply key to one flow, and a packet's epoch says which flow it is
//! for. A flow that moves here, or is claimed, learns its epoch only when packets under
//! it may be here already.

use super::{DropReason, Epoch, Lane, PacketPool, Position, Shared, Slot};
use crate::runtime::parking::Parked;

impl Lane {
    /// Moves replies to a flow whose epoch has just become known: those that came under
    /// this epoch and wait with another flow that wants the same reply key.
    pub(crate) fn gather_replies(&mut self, slot: Slot) {
        let header = self.flows.header(slot);
        let (reply, epoch, flow) = (header.reply, header.epoch, header.reference(slot));
        if self.parking.len() == 0 || !self.flows.is_shared(&reply) {
            return;
        }
        for other in self.parking.readdress(&reply, epoch, flow) {
            let header = self.flows.header_mut(other.slot);
            if header.reference(other.slot) == other {
                header.parked -= 1;
            }
            self.flows.header_mut(slot).parked += 1;
        }
    }

    /// True if a reply came under another epoch than that of the flow with which it
    /// waits, and another flow wants the same reply key.
    pub(super) fn is_anothers(&self, parked: &Parked) -> bool {
        let header = self.flows.header(parked.flow.slot);
        let (epoch, is_reply) =
            (Epoch::given(parked.packet.meta.commit), header.is_reply(&parked.key));
        let is_under_another = is_reply && epoch.is_some_and(|epoch| epoch != header.epoch);
        is_under_another && parked.position == Position::START && self.flows.is_shared(&parked.key)
    }

    /// Keeps such a reply while there is a flow whose epoch is still to come; otherwise
    /// drops it.
    pub(super) fn put_off(
        &mut self,
        parked: Parked,
        shared: &mut Shared,
        pool: &mut dyn PacketPool,
    ) {
        match self.flows.find(&parked.key, self.flows.hash(&parked.key)) {
            Some(found) if self.flows.header(found.slot).life().is_awaited() => {
                self.parking.put_back(parked)
            }
            _ => {
                self.flows.header_mut(parked.flow.slot).parked -= 1;
                shared.drop(parked.packet, DropReason::StaleEpoch, pool);
            }
        }
    }
}
