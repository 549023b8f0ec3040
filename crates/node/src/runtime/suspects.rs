//! Packets that a runtime had in hand when it ended. They may have nothing to do with that; or they end whoever processes them.
//!
//! Theory of operation (docs/protocols/replay.md, "A packet that ends its process"). Of the flows that a failed runtime had, one that takes them over is the only one that has them as they are, until copies have been saved
//! elsewhere. Would it end then too, they would be lost with it. So a suspect is not processed with the packets before and behind it: it waits here until everything that this runtime has would survive
//! its end, and only then goes through the functions. If that ends the process, the switch hears of the packet a second time, and gives it to nobody any more.
//! A suspect that is known to have been processed is another thing: without it the flow is not what it was, so it goes through in its turn.

use super::lane::Lane;
use super::{Runtime, Shared};
use holdfast_protection::flows::{Found, role};
use holdfast_protection::{Epoch, Slot};
use holdfast_wire::{DropReason, FlowKey, Packet, PacketPool};

/// As many wait at a time.
const MOST: usize = 64;
/// After so long without a safe moment they are given up, worker's time, ns.
const PATIENCE: u64 = 3_000_000_000;
/// Between two looks at whether it is safe, ns.
pub(super) const LOOK_EVERY: u64 = 10_000_000;

pub(crate) struct Suspect {
    slot: Slot,
    generation: u32,
    epoch: Epoch,
    key: FlowKey,
    is_reply: bool,
    packet: Packet,
    /// When it was first looked at.
    since: Option<u64>,
}

impl Runtime {
    /// Suspects may be tried: there are some, and this process may end.
    pub(super) fn may_try_suspects(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.suspects.is_empty()) && self.recoveries.is_idle() && self.is_settled()
    }
}

impl Lane {
    pub(crate) fn suspect(&mut self, found: Found, key: FlowKey, packet: Packet, shared: &mut Shared, pool: &mut dyn PacketPool) {
        if self.suspects.len() == MOST {
            return shared.drop(packet, DropReason::Suspect, pool);
        }
        let header = self.flows.header(found.slot);
        let (generation, epoch) = (header.generation, header.epoch);
        self.suspects.push(Suspect { slot: found.slot, generation, epoch, key, is_reply: found.is_reply, packet, since: None });
    }

    /// Tries one, if it is safe; gives up what has waited too long, and what is of flows that are not here any more.
    pub(crate) fn try_suspects(&mut self, is_safe: bool, shared: &mut Shared, pool: &mut dyn PacketPool, clock: u64) {
        let mut tried = !is_safe;
        for mut suspect in core::mem::take(&mut self.suspects) {
            let header = self.flows.header(suspect.slot);
            let is_here = (header.generation, header.epoch, header.role) == (suspect.generation, suspect.epoch, role::OWNER);
            let since = *suspect.since.get_or_insert(clock);
            if !is_here {
                shared.drop(suspect.packet, DropReason::StaleEpoch, pool);
            } else if !core::mem::replace(&mut tried, true) {
                let found = Found { slot: suspect.slot, is_reply: suspect.is_reply };
                self.run_late(suspect.packet, found, &suspect.key, shared, pool);
            } else if clock.saturating_sub(since) > PATIENCE {
                shared.drop(suspect.packet, DropReason::Suspect, pool);
            } else {
                self.suspects.push(suspect);
            }
        }
    }

    pub(crate) fn abandon_suspects(&mut self, shared: &mut Shared, pool: &mut dyn PacketPool) {
        for suspect in core::mem::take(&mut self.suspects) {
            shared.drop(suspect.packet, DropReason::ShuttingDown, pool);
        }
    }
}
