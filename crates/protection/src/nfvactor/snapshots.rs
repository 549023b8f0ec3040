//! `nfactor`: every few packets a flow's state goes to another runtime as a snapshot,
//! whole.
//!
//! Theory of operation (NFActor; docs/papers/nfactor.md). This module has the differences
//! between snapshots and replicas; everything else is the same. A snapshot is sent after
//! a flow's first packet, then each time its packets have doubled, and from the N-th on
//! after every N. The last snapshot is therefore at most N packets old. Snapshots are
//! sent at the end of the batch, before its packets leave. Packets do not wait
//! ([`Release::AtOnce`]): the loss by a failure is bounded, not excluded.
//!
//! Holders. The holder is the runtime with the fewest snapshots of this one. If it has no
//! room it refuses, and another is asked. If no runtime takes the flow, it is counted as
//! unprotected and tried again later. A snapshot carries the flow's epoch and version,
//! which counts packets: an older snapshot never replaces a newer one.
//!
//! Failures.
//! - The owner fails: the holders keep its snapshots for its next incarnation, which
//!   [fetches](restore) them from all holders in parallel and asks the switch for the
//!   routes. If no incarnation comes, the holders claim the routes themselves.
//! - The holder fails: its flows' snapshots are sent to others at once.

mod restore;
#[cfg(test)]
mod tests;

use super::link::{Link, UnderWay};
use super::{NfvActor, REFUSED_PAUSE};
use crate::flows::{ActorHeader, Life, flag};
use crate::plan::{Flow, Release};
use crate::{Commit, Flows, Outbox, Peer};
use holdfast_wire::DropReason;
use holdfast_wire::fault::{Fault, is_planted};
use restore::Restoring;

/// Time under way, ns, beyond which a state that no packet waits for does not count as a
/// copy. Its flow is not called safe.
const LATE: u64 = 100_000_000;

/// Flows without a snapshot, and snapshots on their way back.
#[derive(Default)]
pub(super) struct Snapshots {
    /// Flows that no runtime took: found by the last scan, and so far in the present one.
    pub(super) homeless: u64,
    homeless_so_far: u64,
    restoring: Restoring,
}

/// True if the state after this many packets is to be sent.
#[inline]
fn is_due(version: u32, every: u32) -> bool {
    if is_planted(Fault::IgnoresInterval) {
        return version == 1;
    }
    if version < every { version.is_power_of_two() } else { version.is_multiple_of(every) }
}

impl NfvActor {
    /// True if copies are snapshots: no packet waits for one.
    #[inline]
    pub(super) fn has_snapshots(&self) -> bool {
        self.plan.flow == Flow::Snapshot
    }

    /// Counts a packet that has changed the flow. True if the flow's snapshot is due.
    #[inline]
    pub(super) fn count(&self, header: &mut ActorHeader) -> bool {
        header.version = header.version.wrapping_add(1);
        is_due(header.version, self.plan.copied_after())
    }

    /// True if a packet leaves although no runtime took a snapshot of its flow.
    #[inline]
    pub(super) fn is_homeless(&self, header: &ActorHeader) -> bool {
        let is_homeless = self.snapshots.homeless > 0
            && header.flags & flag::UNPROTECTED != 0
            && header.holder() == Peer::default();
        self.links.is_empty() || is_homeless
    }

    /// The runtime with the fewest snapshots of this one, among those that have not just
    /// refused one.
    pub(super) fn choose(&mut self) -> Option<Peer> {
        let count = self.links.len();
        let in_turn = (0..count).map(|at| (self.next_peer + at) % count);
        let at = in_turn
            .filter(|&at| self.links[at].full_until <= self.now)
            .min_by_key(|&at| self.links[at].copies)?;
        self.next_peer = (at + 1) % count;
        Some(self.links[at].peer)
    }

    /// Begins a scan for flows without a snapshot.
    pub(super) fn begin_look(&mut self) {
        self.resync = Some(0);
        self.resync_again = false;
        self.snapshots.homeless_so_far = 0;
    }

    /// Counts a flow that no runtime takes.
    pub(super) fn note_homeless(&mut self) {
        self.snapshots.homeless_so_far += 1;
    }

    /// Ends the scan.
    pub(super) fn end_look(&mut self) {
        self.snapshots.homeless = core::mem::take(&mut self.snapshots.homeless_so_far);
        if self.snapshots.homeless > 0 {
            self.resync_not_before = self.now + REFUSED_PAUSE;
            self.resync_again = true;
        }
    }

    /// True if a state that no packet waits for has been under way for too long.
    pub(super) fn is_late(&self) -> bool {
        let is_late = |link: &Link| {
            link.under_way.front().is_some_and(|sent| self.now.saturating_sub(sent.since) > LATE)
        };
        self.plan.release == Release::AtOnce && self.links.iter().any(is_late)
    }

    /// A snapshot was refused.
    pub(super) fn handle_refused_snapshot(
        &mut self,
        flows: &mut Flows,
        from: Peer,
        sent: Option<UnderWay>,
        reason: DropReason,
        out: &mut Outbox,
    ) {
        let Some(UnderWay { number, flow, .. }) = sent else { return };
        let Some(header) = flows.get_mut(flow) else { return };
        if header.holder() != from {
            return;
        }
        match header.life() {
            // If a newer snapshot is under way, that was refused too, and its refusal
            // comes later.
            life if life.is_owned() && header.commit == number => {
                header.set_holder(Peer::default());
                header.commit = Commit::NONE;
                header.flags |= flag::UNPROTECTED;
                if let Some(link) = self.links.find(from) {
                    link.copies = link.copies.saturating_sub(1);
                    link.full_until = self.now + REFUSED_PAUSE;
                }
                // Another holder is asked at once.
                self.resync_again = true;
                self.resync_not_before = self.now;
            }
            // This runtime gave the snapshot back, and has received nothing newer since.
            Life::Copy if header.commit == number => {
                restore::take_back(flows, flow.slot, from.node, reason, out)
            }
            _ => {}
        }
    }
}
