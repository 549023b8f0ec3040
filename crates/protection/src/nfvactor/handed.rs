//! Packets that owners handed over to be released here, behind the state that they
//! reveal.

use super::HELD_LIMIT;
use crate::numbers::Inbound;
use crate::{Commit, Outbox, kind};
use holdfast_wire::{DropReason, Packet};
use std::collections::VecDeque;

/// Refused commits that are remembered one by one. Beyond that, all commits up to the
/// oldest forgotten one count as refused.
const REFUSED_LIMIT: usize = 256;
/// Saved commits after which a refusal is forgotten: no packet is under way for so long.
const REFUSED_MEMORY: u32 = 1 << 20;

/// The packets that wait for one owner's states.
#[derive(Debug, Default)]
pub(super) struct Handed {
    /// Packets that waited for commits up to this one have been released.
    released_to: Commit,
    pub(super) packets: VecDeque<Packet>,
    /// Marks whose commits are not saved yet.
    pub(super) marks: VecDeque<Commit>,
    /// The commit to report in the next turn. Packets released in this turn go out behind
    /// its messages.
    passed: Option<Commit>,
    refused: VecDeque<(Commit, DropReason)>,
    refused_up_to: Option<Commit>,
}

impl Handed {
    /// True if there is something to tell the owner.
    pub(super) fn has_untold(&self) -> bool {
        self.passed.is_some()
    }

    /// Notes that the state of this commit is not here, and will not be.
    pub(super) fn refuse(&mut self, commit: Commit, reason: DropReason) {
        if self.refused.len() == REFUSED_LIMIT {
            self.refused_up_to = self.refused.pop_front().map(|(commit, _)| commit);
        }
        self.refused.push_back((commit, reason));
    }

    fn refusal(&self, commit: Commit) -> Option<DropReason> {
        if self.refused.is_empty() && self.refused_up_to.is_none() {
            return None;
        }
        if self.refused_up_to.is_some_and(|limit| limit.has_reached(commit)) {
            return Some(DropReason::StaleEpoch);
        }
        self.refused.iter().find(|(refused, _)| *refused == commit).map(|&(_, reason)| reason)
    }

    /// Forgets refusals that no packet can meet any more, now that `saved` has been
    /// saved.
    #[inline]
    pub(super) fn forget_refusals(&mut self, saved: Commit) {
        if self.refused.is_empty() && self.refused_up_to.is_none() {
            return;
        }
        let is_old = |commit: Commit| saved.behind(REFUSED_MEMORY).has_reached(commit);
        while self.refused.front().is_some_and(|&(commit, _)| is_old(commit)) {
            self.refused.pop_front();
        }
        if self.refused_up_to.is_some_and(is_old) {
            self.refused_up_to = None;
        }
    }

    /// Takes a packet that was handed over. The packet leaves at once if its commit has
    /// been processed; if not, it waits.
    pub(super) fn take(&mut self, packet: Packet, saved: Commit, out: &mut Outbox) {
        if self.released_to == saved && saved.has_reached(Commit::new(packet.meta.commit)) {
            // No packet of its flow waits: that packet would be older, and has been
            // released.
            self.settle(packet, out);
        } else if self.packets.len() == HELD_LIMIT {
            out.dropped.push((packet, DropReason::HeldOverflow));
        } else {
            self.packets.push_back(packet);
        }
    }

    /// Releases the packets whose states were saved since. Makes a single pass over the
    /// waiting packets, however many states came.
    pub(super) fn release(&mut self, saved: Commit, out: &mut Outbox) {
        if self.released_to == saved {
            return;
        }
        self.released_to = saved;
        for _ in 0..self.packets.len() {
            let Some(packet) = self.packets.pop_front() else { return };
            if saved.has_reached(Commit::new(packet.meta.commit)) {
                self.settle(packet, out);
            } else {
                self.packets.push_back(packet);
            }
        }
    }

    /// Releases or drops a packet whose commit has been saved or refused.
    fn settle(&self, packet: Packet, out: &mut Outbox) {
        match self.refusal(Commit::new(packet.meta.commit)) {
            Some(reason) => out.dropped.push((packet, reason)),
            None => out.release(packet),
        }
    }
}

/// Tells the owner which commits were refused, which packets have left, and which commits
/// were saved. Packets up to a reported mark had left before this turn. True if something
/// must be told in the next turn.
pub(super) fn answer(inbound: &mut Inbound<Handed>, out: &mut Outbox) -> bool {
    let before = inbound.more.passed.take();
    if !inbound.tell_refusals(out) {
        inbound.more.passed = before;
        return false;
    }
    if let Some(commit) = before
        && !out.send(inbound.peer, kind::PASSED, &[&commit.to_be_bytes()])
    {
        inbound.more.passed = before;
    }
    let saved = inbound.saved;
    while inbound.more.marks.front().is_some_and(|&commit| saved.has_reached(commit)) {
        inbound.more.passed = inbound.more.marks.pop_front();
    }
    inbound.tell_saved(out);
    inbound.more.passed.is_some() && inbound.more.passed != before
}
