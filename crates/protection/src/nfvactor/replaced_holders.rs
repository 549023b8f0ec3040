//! Holders that are leaving, and the packets that were handed over to them.
//!
//! A flow whose holder leaves gets another one. Packets handed over to the first holder
//! may still wait there, and packets handed to the next one would overtake them. The
//! flow's packets therefore wait here until the first holder has said that all its
//! packets have left: a mark follows the last packet, as in a migration. Other flows do
//! not wait. If the first holder dies before, its packets are lost, and no packet waits
//! for them any longer.

use super::link::{Latched, Link};
use super::{HELD_LIMIT, MARK_TIMEOUT};
use crate::flows::ActorHeader;
use crate::{Commit, FlowRef, Outbox, Peer, Slot};
use holdfast_wire::DropReason;
use std::collections::{BTreeMap, VecDeque};

/// A holder that is leaving.
struct Left {
    peer: Peer,
    /// The latest commit of which the holder was handed a packet.
    handed: Commit,
    /// When the last mark was sent, ns.
    asked: Option<u64>,
}

struct Waiting {
    behind: Peer,
    holder: Peer,
    latched: Latched,
}

/// See the module.
#[derive(Default)]
pub(super) struct ReplacedHolders {
    holders: Vec<Left>,
    /// Flows that had one of these holders and have another one since, by slot, with the
    /// former holder.
    flows: BTreeMap<Slot, (FlowRef, Peer)>,
    waiting: VecDeque<Waiting>,
}

impl ReplacedHolders {
    /// Sets the links that are not used any more. A holder that is still there may have
    /// packets.
    pub(super) fn set(&mut self, is_there: impl Fn(&Peer) -> bool, lost: &[Link]) {
        self.holders.retain(|left| is_there(&left.peer));
        for link in lost.iter().filter(|link| is_there(&link.peer)) {
            let Some(handed) = link.handed_and_not_left() else { continue };
            self.holders.retain(|left| left.peer != link.peer);
            self.holders.push(Left { peer: link.peer, handed, asked: None });
        }
        self.forget();
    }

    fn forget(&mut self) {
        let holders = &self.holders;
        self.flows.retain(|_, (_, peer)| holders.iter().any(|left| left.peer == *peer));
    }

    fn is_among(&self, peer: Peer) -> bool {
        self.holders.iter().any(|left| left.peer == peer)
    }

    /// The flow gets another holder than this one.
    pub(super) fn replace(&mut self, slot: Slot, header: &ActorHeader, holder: Peer) {
        // Packets of a flow that still waits for an earlier holder have not been handed
        // to this one.
        let flow = header.reference(slot);
        if header.commit != Commit::NONE && self.is_among(holder) && !self.is_behind(flow) {
            self.flows.insert(slot, (flow, holder));
        }
    }

    /// True if packets of this flow may still be with a leaving holder.
    pub(super) fn is_behind(&self, flow: FlowRef) -> bool {
        !self.holders.is_empty()
            && self.flows.get(&flow.slot).is_some_and(|(known, _)| *known == flow)
    }

    /// Keeps a packet that must wait for a leaving holder. Returns the packet if it need
    /// not wait.
    pub(super) fn hold(
        &mut self,
        holder: Peer,
        latched: Latched,
        out: &mut Outbox,
    ) -> Option<Latched> {
        let behind = match self.flows.get(&latched.flow.slot) {
            Some((flow, peer)) if *flow == latched.flow => *peer,
            _ => return Some(latched),
        };
        if self.waiting.len() == HELD_LIMIT {
            out.dropped.push((latched.packet, DropReason::HeldOverflow));
        } else {
            self.waiting.push_back(Waiting { behind, holder, latched });
        }
        None
    }

    /// The holder has refused the commit that these packets reveal: they never leave.
    pub(super) fn refuse(
        &mut self,
        holder: Peer,
        commit: Commit,
        reason: DropReason,
        out: &mut Outbox,
    ) {
        for waiting in core::mem::take(&mut self.waiting) {
            match waiting.holder == holder && waiting.latched.commit == commit {
                true => out.dropped.push((waiting.latched.packet, reason)),
                false => self.waiting.push_back(waiting),
            }
        }
    }

    /// Packets that wait.
    pub(super) fn held(&self) -> usize {
        self.waiting.len()
    }

    /// Sends marks to the holders that have not answered.
    pub(super) fn ask(&mut self, now: u64, out: &mut Outbox) {
        for left in &mut self.holders {
            if left.asked.is_none_or(|at| now.saturating_sub(at) > MARK_TIMEOUT) {
                left.asked = Some(now);
                out.marks.push((left.peer, left.handed));
            }
        }
    }

    /// A leaving holder reports that its packets up to this commit have left. False if
    /// this report was not waited for.
    pub(super) fn handle_passed(&mut self, from: Peer, commit: Commit) -> bool {
        let before = self.holders.len();
        self.holders.retain(|left| left.peer != from || !commit.has_reached(left.handed));
        let is_over = self.holders.len() < before;
        if is_over {
            self.forget();
        }
        is_over
    }

    /// A packet that need not wait any longer, with its next holder. Each flow's packets
    /// come in order.
    pub(super) fn poll(&mut self) -> Option<(Peer, Latched)> {
        let at = self.waiting.iter().position(|waiting| !self.is_among(waiting.behind))?;
        self.waiting.remove(at).map(|waiting| (waiting.holder, waiting.latched))
    }

    /// Returns all waiting packets.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Latched> + '_ {
        self.waiting.drain(..).map(|waiting| waiting.latched)
    }
}
