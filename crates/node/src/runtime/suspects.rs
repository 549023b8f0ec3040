//! Quarantine at a runtime: packets that were in flight when another runtime ended. A
//! suspect may have nothing to do with that end, or may end every process that processes
//! it.
//!
//! Theory of operation (docs/protocols/replay.md, "A packet that ends its process"). A
//! runtime that takes over a failed one's flows has their only state until copies have
//! been saved elsewhere. If it ended then too, the flows would be lost. A suspect is
//! therefore not processed with the packets before and behind it. The suspect waits here
//! until everything that this runtime has would survive its end, and only then goes
//! through the functions. If that ends the process, the switch hears of the packet a
//! second time, and sends it to no runtime any more. A suspect that is known to have been
//! processed goes through in its turn, because without it the flow's state would differ.

use super::lane::Lane;
use super::{Runtime, Shared};
use holdfast_protection::flows::Found;
use holdfast_protection::{Epoch, FlowRef};
use holdfast_wire::{DropReason, FlowKey, Packet, PacketPool};

/// Suspects that wait at a time.
const MOST: usize = 64;
/// A suspect is given up after so long without a safe moment, worker's time, ns.
const TIMEOUT: u64 = 3_000_000_000;
/// Interval between two checks for a safe moment, ns.
pub(super) const LOOK_EVERY: u64 = 10_000_000;

pub(crate) struct Suspect {
    flow: FlowRef,
    epoch: Epoch,
    key: FlowKey,
    is_reply: bool,
    packet: Packet,
    /// The time of the first check.
    since: Option<u64>,
}

impl Runtime {
    /// True if suspects may be tried: there are some, and this process may end without
    /// loss.
    pub(super) fn may_try_suspects(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.suspects.is_empty())
            && self.recoveries.is_idle()
            && self.is_settled()
    }
}

impl Lane {
    pub(crate) fn suspect(
        &mut self,
        found: Found,
        key: FlowKey,
        packet: Packet,
        shared: &mut Shared,
        pool: &mut dyn PacketPool,
    ) {
        if self.suspects.len() == MOST {
            return shared.drop(packet, DropReason::Suspect, pool);
        }
        let header = self.flows.header(found.slot);
        self.suspects.push(Suspect {
            flow: header.reference(found.slot),
            epoch: header.epoch,
            key,
            is_reply: found.is_reply,
            packet,
            since: None,
        });
    }

    /// Tries one suspect if it is safe. Gives up those that have waited too long, and
    /// those whose flows are not here any more.
    pub(crate) fn try_suspects(
        &mut self,
        is_safe: bool,
        shared: &mut Shared,
        pool: &mut dyn PacketPool,
        clock: u64,
    ) {
        let mut tried = !is_safe;
        for mut suspect in core::mem::take(&mut self.suspects) {
            let header = self.flows.get_owned(suspect.flow);
            let is_here = header.is_some_and(|header| header.epoch == suspect.epoch);
            let since = *suspect.since.get_or_insert(clock);
            if !is_here {
                shared.drop(suspect.packet, DropReason::StaleEpoch, pool);
            } else if !core::mem::replace(&mut tried, true) {
                let found = Found { slot: suspect.flow.slot, is_reply: suspect.is_reply };
                self.run_late(suspect.packet, found, &suspect.key, shared, pool);
            } else if clock.saturating_sub(since) > TIMEOUT {
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
