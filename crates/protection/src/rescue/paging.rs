//! Paging: decides whose state is in memory if there is not room for that of all flows.
//!
//! Theory of operation (RESCue, section IV; docs/protocols/state-server.md). Memory has
//! frames for the state of some flows, and a header for every flow. The runtime therefore
//! knows without a fault whether a flow's state is resident. A hand goes round the
//! frames, as in the clock algorithm. If no packet has touched a state since the hand's
//! last pass, and the server has it as it is, the flow is *nominated*. Its state is
//! evicted when the server has answered everything that was sent before. A packet for a
//! flow whose state is absent waits. The state is requested, and other flows go on. No
//! more states are requested than there is room for.
//!
//! In: flows for which packets come, the server's acknowledgements. Out: flows to evict,
//! requests. Never: a flow that is in the middle of anything.

use super::shares::{Share, share_of_key};
use crate::flows::{ActorHeader, Life, flag};
use crate::{Commit, FlowRef, Flows, Outbox, Slot, kind};
use holdfast_wire::FlowKey;
use holdfast_wire::fault::{Fault, is_planted};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// Frames that the hand passes at a time.
const PASSED: usize = 1024;
/// States that may be requested at a time.
pub(super) const ASKED: usize = 64;
/// Room is made ahead for so many flows, or for an eighth of all room if that is less.
const SPARE: usize = 256;

/// A nominated flow: its state may go when the server has processed everything up to
/// `number`.
struct Candidate {
    flow: FlowRef,
    version: u32,
    /// The share whose server has the flow, and counts the records.
    share: usize,
    number: Commit,
}

struct Question {
    key: FlowKey,
    flow: FlowRef,
}

/// See the module.
pub(super) struct Paging {
    /// Flows whose state there is room for.
    pub(super) room: usize,
    /// States that have come from the server.
    pub(super) fetched: u64,
    hand: usize,
    /// Frames passed since the last change that might help. After two rounds no flow can
    /// be nominated.
    passed: usize,
    /// As of the end of the last batch: room that was left, and frames in all.
    seen: (usize, usize),
    candidates: VecDeque<Candidate>,
    /// By slot: the generation of the flow whose state is requested or wanted, plus 1; 0
    /// for none.
    pending: Vec<u64>,
    wanted: VecDeque<FlowRef>,
    asked: Vec<Question>,
    /// States that have come from other runtimes and found no room, in order. There may
    /// be no other copy of them.
    aside: VecDeque<(FlowRef, Box<[u8]>)>,
}

impl Paging {
    pub(super) fn new(room: usize) -> Paging {
        Paging {
            room,
            fetched: 0,
            hand: 0,
            passed: 0,
            seen: (usize::MAX, 0),
            candidates: VecDeque::new(),
            pending: Vec::new(),
            wanted: VecDeque::new(),
            asked: Vec::new(),
            aside: VecDeque::new(),
        }
    }

    /// Notes that a packet has come for this flow. True if its state is here; if not, it
    /// is requested.
    #[inline]
    pub(super) fn use_of(&mut self, flows: &mut Flows, slot: Slot) -> bool {
        if flows.set_used(slot, true) {
            self.passed = 0;
        }
        self.has(flows, slot)
    }

    /// True if the flow's state is here; if not, it is requested.
    #[inline]
    pub(super) fn has(&mut self, flows: &Flows, slot: Slot) -> bool {
        let is_here = flows.is_present(slot);
        if !is_here {
            self.want(flows, slot);
        }
        is_here
    }

    /// Requests the state as soon as there is room for it.
    pub(super) fn want(&mut self, flows: &Flows, slot: Slot) {
        if self.expect(flows, slot) {
            self.wanted.push_back(flows.reference(slot));
            self.passed = 0;
        }
    }

    /// Notes that the state of the flow in this slot is expected. True if it was not
    /// before.
    fn expect(&mut self, flows: &Flows, slot: Slot) -> bool {
        let (at, mark) = (slot as usize, u64::from(flows.header(slot).generation) + 1);
        if at >= self.pending.len() {
            self.pending.resize(flows.capacity().max(at + 1), 0);
        }
        core::mem::replace(&mut self.pending[at], mark) != mark
    }

    /// The state has come, or does not come any more.
    fn expect_no_more(&mut self, flow: FlowRef) {
        let mark = self.pending.get_mut(flow.slot as usize);
        if let Some(mark) = mark.filter(|mark| **mark == u64::from(flow.generation) + 1) {
            *mark = 0;
        }
    }

    /// The part of this room that earlier flows are about to need: for the states on
    /// their way, and up to half of the rest for the flows that wait.
    pub(super) fn reserved(&self, room: usize) -> usize {
        let waiting = self.wanted.len() + self.aside.len();
        self.asked.len() + waiting.min(room.saturating_sub(self.asked.len())) / 2
    }

    /// Keeps a state from another runtime until there is room.
    pub(super) fn keep_aside(&mut self, flows: &Flows, slot: Slot, state: &[u8]) {
        // Marks the state as expected, so that it is not requested.
        self.expect(flows, slot);
        self.aside.push_back((flows.reference(slot), state.into()));
        self.passed = 0;
    }

    /// States that wait for room.
    pub(super) fn aside(&self) -> usize {
        self.aside.len()
    }

    /// The states that wait for room, with their flows.
    pub(super) fn states_aside(&mut self) -> impl Iterator<Item = (FlowRef, &mut [u8])> + '_ {
        self.aside.iter_mut().map(|(flow, state)| (*flow, &mut **state))
    }

    /// Loads waiting states as far as there is room. True if one was loaded.
    pub(super) fn let_in(&mut self, flows: &mut Flows, loaded: &mut Vec<Slot>) -> bool {
        let before = loaded.len();
        while flows.room() > 0
            && let Some((flow, state)) = self.aside.pop_front()
        {
            self.expect_no_more(flow);
            let slot = flow.slot;
            let is_meant = flows.get_owned(flow).is_some() && !flows.is_present(slot);
            if is_meant && flows.load(slot, &state).is_ok() {
                flows.set_used(slot, true);
                loaded.push(slot);
            }
        }
        loaded.len() > before
    }

    /// The server has answered something, or has been replaced: the hand may find flows
    /// again.
    pub(super) fn look_again(&mut self) {
        self.passed = 0;
    }

    /// Forgets the requests to a server that is lost. `is_its` tells whether a key's flow
    /// was that server's.
    pub(super) fn forget_server(
        &mut self,
        flows: &mut Flows,
        is_its: impl Fn(&Flows, &FlowKey) -> bool,
    ) {
        // Flows of the other servers are nominated again.
        self.candidates.drain(..).for_each(|candidate| flows.set_going(candidate.flow.slot, false));
        let asked = self.asked.extract_if(.., |question| is_its(flows, &question.key));
        let mut lost: Vec<FlowRef> = asked.map(|question| question.flow).collect();
        self.wanted.retain(|flow| {
            let is_lost = is_its(flows, &flows.header(flow.slot).key);
            lost.extend(is_lost.then_some(*flow));
            !is_lost
        });
        lost.into_iter().for_each(|flow| self.expect_no_more(flow));
        self.passed = 0;
    }

    /// Takes the request that an answer with this key belongs to. Returns its flow.
    pub(super) fn answered(&mut self, key: &FlowKey) -> Option<FlowRef> {
        let at = self.asked.iter().position(|question| question.key == *key)?;
        let Question { flow, .. } = self.asked.remove(at);
        self.expect_no_more(flow);
        Some(flow)
    }

    /// Makes room, if there is little. Called at the end of a batch.
    pub(super) fn make_room(&mut self, flows: &mut Flows, shares: &[Share]) {
        self.let_go(flows, shares);
        self.nominate(flows, shares);
        // Nominated states whose records have been answered already need not wait.
        self.let_go(flows, shares);
    }

    /// Evicts nominated flows, unless they have been used or changed since.
    fn let_go(&mut self, flows: &mut Flows, shares: &[Share]) {
        let is_careless = is_planted(Fault::EvictsUnsaved);
        let has_seen = |first: &Candidate| {
            shares.get(first.share).is_some_and(|share| share.saved.has_reached(first.number))
        };
        let may_go_now = |first: &&Candidate| has_seen(first) || is_careless;
        while let Some(candidate) = self.candidates.front().filter(may_go_now) {
            let Candidate { flow, version, .. } = *candidate;
            self.candidates.pop_front();
            flows.set_going(flow.slot, false);
            let is_free_to_go = flows.get(flow).is_some_and(|header| {
                header.version == version
                    && flows.is_present(flow.slot)
                    && self.share_that_has(header, shares).is_some()
            });
            if is_free_to_go && !flows.is_used(flow.slot) {
                flows.evict(flow.slot);
                self.passed = 0;
            }
        }
    }

    fn nominate(&mut self, flows: &mut Flows, shares: &[Share]) {
        let places = flows.places();
        let spare = self.spare();
        let mut left = PASSED.min(2 * places);
        while left > 0
            && flows.room() + self.candidates.len() < spare + self.aside.len().min(self.room)
            && self.passed < 2 * places
        {
            left -= 1;
            self.passed += 1;
            let place = if self.hand < places { self.hand } else { 0 };
            self.hand = place + 1;
            let Some(slot) = flows.slot_at(place) else { continue };
            let header = flows.header(slot);
            let (flow, version) = (header.reference(slot), header.version);
            let share = self.share_that_has(header, shares).filter(|_| !flows.is_going(slot));
            let Some(share) = share.filter(|_| !flows.set_used(slot, false)) else { continue };
            flows.set_going(slot, true);
            let number = shares[share].last;
            self.candidates.push_back(Candidate { flow, version, share, number });
        }
    }

    /// The share whose server has this flow as it is, if nothing of it is under way.
    fn share_that_has(&self, header: &ActorHeader, shares: &[Share]) -> Option<usize> {
        const IN_HAND: u8 = flag::TOUCHED | flag::DIRTY | flag::EMPTY;
        const UNKNOWN: u8 = flag::UNPROTECTED | flag::WHOLE | flag::BEHIND;
        let is_idle =
            header.life() == Life::Owned && header.flags & IN_HAND == 0 && header.parked == 0;
        let holder = header.holder();
        let share = shares.iter().position(|share| share.server == Some(holder));
        let share = share.filter(|_| header.commit != Commit::NONE && header.flags & UNKNOWN == 0);
        share.or(is_planted(Fault::EvictsUnsaved).then_some(0)).filter(|_| is_idle)
    }

    fn spare(&self) -> usize {
        SPARE.min(self.room / 8).max(1)
    }

    /// Requests wanted states as far as there is room for them and the channels allow.
    /// Notes which servers' channels are full.
    pub(super) fn ask(&mut self, flows: &Flows, shares: &mut [Share], out: &mut Outbox) {
        if !flows.is_paged() || shares.is_empty() {
            return;
        }
        self.seen = (flows.room(), flows.places());
        // A flow whose server's channel is full is passed over, so that it holds up no
        // other.
        let mut at = 0;
        while self.asked.len() < ASKED.min(flows.room())
            && at < ASKED
            && let Some(&flow) = self.wanted.get(at)
        {
            let header = flows.get_owned(flow).filter(|_| !flows.is_present(flow.slot));
            let Some(header) = header else {
                self.expect_no_more(flow);
                self.wanted.remove(at);
                continue;
            };
            let key = header.key;
            let Some(share) =
                share_of_key(flows, &key, shares.len()).map(|share| &mut shares[share])
            else {
                return;
            };
            let is_sent = !share.is_full
                && share
                    .server
                    .is_some_and(|server| out.send(server, kind::PAGE, &[key.as_bytes()]));
            share.is_full = !is_sent;
            if is_sent {
                self.wanted.remove(at);
                self.asked.push(Question { key, flow });
            } else if shares.iter().all(|share| share.is_full) {
                return;
            } else {
                at += 1;
            }
        }
    }

    /// True if there is work that waits for no input, as of the end of the last batch.
    pub(super) fn is_busy(&self) -> bool {
        let (room, places) = self.seen;
        let is_short =
            room.saturating_add(self.candidates.len()) < self.spare() && self.passed < 2 * places;
        is_short
            || !self.aside.is_empty() && room > 0
            || !self.wanted.is_empty() && self.asked.len() < ASKED.min(room)
    }
}
