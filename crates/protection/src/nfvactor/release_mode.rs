//! Release modes of a link: packets wait for their state at the replica, which is
//! hand-over, or in the latch here. A link changes its mode without a packet overtaking
//! an earlier one of its flow.
//!
//! - From latch to hand-over: a new packet waits in the same queue behind the latched
//!   ones, and goes on when all of those have left.
//! - From hand-over to latch: a mark follows the last packet that was handed over.
//!   Latched packets leave when their state is saved, but not before the holder answers
//!   that everything before the mark has left.
//!
//! A link changes again only when the previous change is over. In either mode, packets
//! wait here until the other side has acknowledged a record.

use super::link::{Latched, Link};
use super::unsaved::Unsaved;
use super::{HELD_LIMIT, MARK_TIMEOUT};
use crate::plan::Release;
use crate::{Commit, Detour, NodeIndex, Outbox, Peer};
use holdfast_wire::DropReason;
use holdfast_wire::nsh::ENCAPSULATION_LEN;

/// How long a link is watched before its mode is decided again, ns.
pub(super) const WATCHED: u64 = 100_000_000;

/// The place where a packet waits for its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReleaseMode {
    /// At the replica.
    HandOver,
    /// Here.
    Latch,
}

/// The release mode of a link, and the counts by which [`Release::Auto`] chooses it.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) mode: ReleaseMode,
    pub(super) detour: Detour,
    /// Latched packets wait until every packet handed over up to this commit has left.
    behind: Option<Commit>,
    /// The latest commit of which a packet was handed over.
    handed: Option<Commit>,
    /// When the mode is decided again, ns.
    decided_next: u64,
    /// Bytes since the last decision: of packets, which hand-over costs or would cost,
    /// and of states, which are sent in either mode.
    packets: u64,
    states: u64,
}

impl Choice {
    pub(super) fn new(release: Release, detour: Detour) -> Choice {
        let mode = match (release, detour) {
            (Release::Replica, _) | (Release::Auto, Detour::None) => ReleaseMode::HandOver,
            _ => ReleaseMode::Latch,
        };
        Choice { mode, detour, behind: None, handed: None, decided_next: 0, packets: 0, states: 0 }
    }

    #[inline]
    pub(super) fn note_state(&mut self, len: usize) {
        self.states += len as u64;
    }

    #[inline]
    pub(super) fn note_packet(&mut self, len: usize) {
        self.packets += (len + ENCAPSULATION_LEN) as u64;
    }

    /// The cheaper mode. Without a detour packets are handed over: one way is shorter
    /// than there and back. If the packet would return to this host, it waits here, since
    /// the acknowledgement returns sooner. In between, hand-over saves one way but costs
    /// the packet's bytes. Hand-over goes on while packets take no more bytes than the
    /// states, and begins only below half of that, so that the mode does not oscillate.
    fn cheaper(&self) -> ReleaseMode {
        let limit = if self.mode == ReleaseMode::HandOver { self.states } else { self.states / 2 };
        match self.detour {
            Detour::None => ReleaseMode::HandOver,
            Detour::Longer if self.packets <= limit => ReleaseMode::HandOver,
            Detour::Longer | Detour::ThereAndBack => ReleaseMode::Latch,
        }
    }
}

/// The cost for a packet to leave by other runtimes.
#[derive(Default)]
pub(super) struct Detours {
    list: Vec<(Peer, Detour)>,
    at: NodeIndex,
}

impl Detours {
    pub(super) fn set(&mut self, detours: &[(Peer, Detour)]) {
        self.list.clear();
        self.list.extend_from_slice(detours);
        self.at.renew(detours.iter().map(|(peer, _)| peer.node));
    }

    pub(super) fn of(&self, peer: Peer) -> Detour {
        let known =
            self.at.get(peer.node).map(|at| self.list[at]).filter(|(known, _)| *known == peer);
        known.map_or(Detour::None, |(_, detour)| detour)
    }
}

impl Link {
    /// Decides the mode again, if it is time. `fickle`: changes it, whatever the cost.
    pub(super) fn reconsider(&mut self, now: u64, fickle: Option<u64>, out: &mut Outbox) {
        if self.choice.behind.is_some() {
            self.ask_what_has_left(now, out);
        }
        if now < self.choice.decided_next {
            return;
        }
        self.choice.decided_next = now + fickle.unwrap_or(WATCHED);
        let wanted = match (fickle, self.choice.mode) {
            (Some(_), ReleaseMode::HandOver) => ReleaseMode::Latch,
            (Some(_), ReleaseMode::Latch) => ReleaseMode::HandOver,
            (None, mode) if self.choice.packets == 0 => mode,
            (None, _) => self.choice.cheaper(),
        };
        (self.choice.packets, self.choice.states) = (0, 0);
        let is_changing = self.choice.behind.is_some()
            || self.choice.mode == ReleaseMode::HandOver && !self.latch.is_empty();
        if wanted != self.choice.mode && !is_changing {
            self.change(wanted, now, out);
        }
    }

    /// Changes the mode.
    pub(super) fn change(&mut self, wanted: ReleaseMode, now: u64, out: &mut Outbox) {
        self.choice.mode = wanted;
        if wanted == ReleaseMode::Latch
            && self.choice.handed.is_some_and(|handed| !self.has_passed(handed))
        {
            self.choice.behind = self.choice.handed;
            self.marked = None;
            self.ask_what_has_left(now, out);
        }
    }

    fn ask_what_has_left(&mut self, now: u64, out: &mut Outbox) {
        let Some(behind) = self.choice.behind else { return };
        if self.marked.is_none_or(|(_, at)| now.saturating_sub(at) > MARK_TIMEOUT) {
            self.marked = Some((behind, now));
            out.marks.push((self.peer, behind));
        }
    }

    /// The latest commit of which a packet was handed over, if that packet may not have
    /// left yet.
    pub(super) fn handed_and_not_left(&self) -> Option<Commit> {
        self.choice.handed.filter(|handed| !self.has_passed(*handed))
    }

    /// The holder has reported that every packet handed over up to `passed` has left.
    pub(super) fn note_passed(&mut self, unsaved: &Unsaved, out: &mut Outbox) {
        if self.choice.behind.is_some_and(|behind| self.passed.has_reached(behind)) {
            self.choice.behind = None;
            self.open_latch(unsaved, out);
        }
    }

    /// Takes a packet whose state has been sent: hands it over, releases it, or latches
    /// it.
    pub(super) fn hold(&mut self, mut latched: Latched, unsaved: &Unsaved, out: &mut Outbox) {
        latched.is_for_holder =
            self.choice.mode == ReleaseMode::HandOver && self.numbers.has_answered();
        if latched.is_for_holder && self.latch.is_empty() {
            self.hand_over(latched, out);
        } else if self.latch.is_empty() && unsaved.may_leave(&latched) {
            out.release(latched.packet);
        } else if self.latch.len() == HELD_LIMIT {
            out.dropped.push((latched.packet, DropReason::HeldOverflow));
        } else {
            self.latch.push_back(latched);
        }
    }

    fn hand_over(&mut self, mut latched: Latched, out: &mut Outbox) {
        latched.packet.meta.commit = latched.commit.get();
        let newest = self.choice.handed.filter(|handed| handed.has_reached(latched.commit));
        self.choice.handed = newest.or(Some(latched.commit));
        out.handed.push((self.peer, latched.packet));
    }

    /// Lets packets go that need not wait here any longer.
    pub(super) fn open_latch(&mut self, unsaved: &Unsaved, out: &mut Outbox) {
        let (saved, is_behind) = (self.numbers.saved, self.choice.behind.is_some());
        let may_leave = |latched: &mut Latched| {
            latched.is_for_holder
                || !is_behind && (saved.has_reached(latched.commit) || unsaved.may_leave(latched))
        };
        while let Some(latched) = self.latch.pop_front_if(may_leave) {
            if latched.is_for_holder {
                self.hand_over(latched, out);
            } else {
                out.release(latched.packet);
            }
        }
    }

    /// True if a packet of this flow waits here, or if packets may leave only behind
    /// packets that were handed over.
    pub(super) fn holds(&self, slot: crate::Slot) -> bool {
        self.choice.behind.is_some() || self.latch.iter().any(|latched| latched.flow.slot == slot)
    }
}
