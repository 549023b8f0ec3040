//! Holders that are leaving, and what was handed over to them.
//!
//! A flow whose holder leaves gets another one. What was handed over to the first may still wait there, and what the next one gets would overtake it. So the
//! flow's packets wait here until the first one has said that everything has left: a mark follows what it was handed last, as when a flow moves. Other flows
//! do not wait. If it dies first, what it had is lost, and nothing waits for it any longer.

use super::link::{Latched, Link};
use super::{HELD_LIMIT, MARK_PATIENCE};
use crate::flows::ActorHeader;
use crate::numbers::reached;
use crate::{Outbox, Peer, Slot};
use holdfast_wire::DropReason;
use std::collections::{BTreeMap, VecDeque};

/// A holder that is leaving.
struct Left {
    peer: Peer,
    /// The latest commit of which it was handed a packet.
    handed: u32,
    /// When it was last asked what has left, ns.
    asked: Option<u64>,
}

struct Waiting {
    behind: Peer,
    holder: Peer,
    latched: Latched,
}

/// See the module.
#[derive(Default)]
pub(super) struct Leaving {
    holders: Vec<Left>,
    /// Flows that had one of these, and have another holder since: by which generation of the slot, and whom they had.
    flows: BTreeMap<Slot, (u32, Peer)>,
    waiting: VecDeque<Waiting>,
}

impl Leaving {
    /// These links are not used any more; their holders that are still there may have something.
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

    /// A flow gets another holder than this one.
    pub(super) fn replace(&mut self, slot: Slot, header: &ActorHeader, holder: Peer) {
        // What waits for an earlier one has not been handed to this one.
        if header.commit != 0 && self.is_among(holder) && !self.is_behind(slot, header.generation) {
            self.flows.insert(slot, (header.generation, holder));
        }
    }

    /// Packets of this flow may still be with a holder that is leaving.
    pub(super) fn is_behind(&self, slot: Slot, generation: u32) -> bool {
        !self.holders.is_empty() && self.flows.get(&slot).is_some_and(|(of, _)| *of == generation)
    }

    /// A packet for a holder. It is given back if nothing is before it.
    pub(super) fn hold(&mut self, holder: Peer, latched: Latched, out: &mut Outbox) -> Option<Latched> {
        let behind = match self.flows.get(&latched.slot) {
            Some((generation, peer)) if *generation == latched.generation => *peer,
            _ => return Some(latched),
        };
        if self.waiting.len() == HELD_LIMIT {
            out.dropped.push((latched.packet, DropReason::HeldOverflow));
        } else {
            self.waiting.push_back(Waiting { behind, holder, latched });
        }
        None
    }

    /// The holder has refused what these show: they never leave.
    pub(super) fn refuse(&mut self, holder: Peer, commit: u32, reason: DropReason, out: &mut Outbox) {
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

    /// Asks those who have not answered.
    pub(super) fn ask(&mut self, now: u64, out: &mut Outbox) {
        for left in &mut self.holders {
            if left.asked.is_none_or(|at| now.saturating_sub(at) > MARK_PATIENCE) {
                left.asked = Some(now);
                out.marks.push((left.peer, left.handed));
            }
        }
    }

    /// One of them says that what it was handed up to this commit has left. False if nobody waited for that.
    pub(super) fn handle_passed(&mut self, from: Peer, commit: u32) -> bool {
        let before = self.holders.len();
        self.holders.retain(|left| left.peer != from || !reached(commit, left.handed));
        let is_over = self.holders.len() < before;
        if is_over {
            self.forget();
        }
        is_over
    }

    /// What need not wait any longer, in the order of each flow, with the holder that it is for.
    pub(super) fn poll(&mut self) -> Option<(Peer, Latched)> {
        let at = self.waiting.iter().position(|waiting| !self.is_among(waiting.behind))?;
        self.waiting.remove(at).map(|waiting| (waiting.holder, waiting.latched))
    }

    /// Gives everything that waits back.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Latched> + '_ {
        self.waiting.drain(..).map(|waiting| waiting.latched)
    }
}
