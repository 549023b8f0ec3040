//! The bound on the loss by a failure: how many packets of a flow may have left unsaved.
//!
//! A packet may leave as soon as the replica has saved all but a limited number of its
//! flow's latest packets. If not, it waits here as under
//! [`Release::Source`](crate::plan::Release::Source), which is the same with a limit of
//! zero. The flow's header counts the packets, so the next owner goes on with the count
//! of the last.

use super::link::{Latched, UnderWay};
use crate::flows::ActorHeader;
use crate::plan::Plan;
use holdfast_wire::fault::{Fault, is_planted};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Unsaved {
    limit: u32,
    /// By slot: its generation, and the packets of the flow that its replica knows of.
    known: Vec<(u32, u32)>,
}

/// The flow's packets so far. The count wraps.
pub(super) fn packets(header: &ActorHeader) -> u32 {
    header.packets().iter().fold(0, |sum: u32, packets| sum.wrapping_add(*packets as u32))
}

impl Unsaved {
    pub(super) fn new(plan: &Plan) -> Unsaved {
        let limit = if plan.forgets_by_count() { plan.unsaved_packets } else { 0 };
        Unsaved { limit, known: Vec::new() }
    }

    /// True if packets leave at once, up to the limit.
    pub(super) fn is_counted(&self) -> bool {
        self.limit > 0
    }

    /// The replica has saved a state.
    #[inline]
    pub(super) fn note_saved(&mut self, sent: &UnderWay) {
        if !self.is_counted() || sent.is_question {
            return;
        }
        let at = sent.flow.slot as usize;
        if at >= self.known.len() {
            self.known.resize((at + 1).next_power_of_two(), (0, 0));
        }
        self.known[at] = (sent.flow.generation, sent.packets);
    }

    /// True if a failure now, with this packet gone, would undo no more packets than the
    /// limit.
    #[inline]
    pub(super) fn may_leave(&self, packet: &Latched) -> bool {
        if !self.is_counted() {
            return false;
        }
        let known = self
            .known
            .get(packet.flow.slot as usize)
            .filter(|(generation, _)| *generation == packet.flow.generation);
        let unsaved = packet.packets.wrapping_sub(known.map_or(0, |(_, packets)| *packets));
        unsaved <= self.limit || is_planted(Fault::IgnoresInterval)
    }
}
