//! Packets that owners handed over to be released here, behind the state that they reveal.

use super::HELD_LIMIT;
use crate::numbers::{Inbound, reached};
use crate::{Outbox, kind};
use holdfast_wire::{DropReason, Packet};
use std::collections::VecDeque;

/// Refused commits remembered one by one; older ones refuse everything before them.
const REFUSED_LIMIT: usize = 256;
/// A refusal is forgotten when so many commits have been saved since: no packet is under way for so long.
const REFUSED_MEMORY: u32 = 1 << 20;

/// What waits for one owner's states.
#[derive(Debug, Default)]
pub(super) struct Handed {
    /// What waited for commits up to here has been released.
    released_to: u32,
    pub(super) packets: VecDeque<Packet>,
    /// Marks whose commits are not saved yet.
    pub(super) marks: VecDeque<u32>,
    /// The owner is to be told in the next turn: what was released in this one goes out behind the messages.
    passed: Option<u32>,
    refused: VecDeque<(u32, DropReason)>,
    refused_up_to: Option<u32>,
}

impl Handed {
    /// The owner is to be told something that is known already.
    pub(super) fn has_untold(&self) -> bool {
        self.passed.is_some()
    }

    /// The state of this commit is not here, and will not be.
    pub(super) fn refuse(&mut self, commit: u32, reason: DropReason) {
        if self.refused.len() == REFUSED_LIMIT {
            self.refused_up_to = self.refused.pop_front().map(|(commit, _)| commit);
        }
        self.refused.push_back((commit, reason));
    }

    fn refusal(&self, commit: u32) -> Option<DropReason> {
        if self.refused.is_empty() && self.refused_up_to.is_none() {
            return None;
        }
        if self.refused_up_to.is_some_and(|limit| reached(limit, commit)) {
            return Some(DropReason::StaleEpoch);
        }
        self.refused.iter().find(|(refused, _)| *refused == commit).map(|&(_, reason)| reason)
    }

    /// Forgets refusals that no packet can ask for any more, now that this has been saved.
    #[inline]
    pub(super) fn forget_refusals(&mut self, saved: u32) {
        if self.refused.is_empty() && self.refused_up_to.is_none() {
            return;
        }
        let is_old = |commit: u32| reached(saved.wrapping_sub(REFUSED_MEMORY), commit);
        while self.refused.front().is_some_and(|&(commit, _)| is_old(commit)) {
            self.refused.pop_front();
        }
        if self.refused_up_to.is_some_and(is_old) {
            self.refused_up_to = None;
        }
    }

    /// A packet was handed over: it leaves at once if its state has been seen to, else it waits.
    pub(super) fn take(&mut self, packet: Packet, saved: u32, out: &mut Outbox) {
        if self.released_to == saved && reached(saved, packet.meta.commit) {
            // Nothing of its flow waits: that would be older, and has been released.
            self.settle(packet, out);
        } else if self.packets.len() == HELD_LIMIT {
            out.dropped.push((packet, DropReason::HeldOverflow));
        } else {
            self.packets.push_back(packet);
        }
    }

    /// Releases what waited for states that were saved since. One pass over what waits, however many states came.
    pub(super) fn release(&mut self, saved: u32, out: &mut Outbox) {
        if self.released_to == saved {
            return;
        }
        self.released_to = saved;
        for _ in 0..self.packets.len() {
            let Some(packet) = self.packets.pop_front() else { return };
            if reached(saved, packet.meta.commit) {
                self.settle(packet, out);
            } else {
                self.packets.push_back(packet);
            }
        }
    }

    /// The state behind the packet has been seen to: saved, or refused.
    fn settle(&self, packet: Packet, out: &mut Outbox) {
        match self.refusal(packet.meta.commit) {
            Some(reason) => out.dropped.push((packet, reason)),
            None => out.release(packet),
        }
    }
}

/// Tells the owner what was refused, what has left, and what was saved. What it handed over up to a mark that is told had left before this turn.
/// True if there is something to be told in the next turn.
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
    while inbound.more.marks.front().is_some_and(|&commit| reached(saved, commit)) {
        inbound.more.passed = inbound.more.marks.pop_front();
    }
    inbound.tell_saved(out);
    inbound.more.passed.is_some() && inbound.more.passed != before
}
