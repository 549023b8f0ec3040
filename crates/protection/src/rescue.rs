//! `rescue`: a runtime's memory is a cache of the pages that the state server has.
//!
//! Theory of operation (RESCue, sections III and IV; docs/protocols/state-server.md). A
//! page is a flow's block. The runtime knows which pages are dirty from the packets that
//! it has processed. Under [`Release::WriteBack`] the [deltas](crate::delta) of a batch
//! go to the server at its end, and packets wait in a latch until the server has the
//! state that they reveal. Under [`Release::AtOnce`], as in the paper, packets do not
//! wait. Flows are then written back after a number of packets or after an interval, a
//! few at a time. A flow is written back whole: after many packets that is less than
//! every delta. A failing runtime loses what is dirty, and no more.
//!
//! Failures and movement.
//! - The owner fails: others [recall](kind::RECALL) its flows. The server deals these out
//!   among the runtimes that ask, and each claims the routes of the flows it was dealt. A
//!   recovery ends only when the server has said that there are no more flows.
//! - A flow moves: the server learns its next owner before it is sent ([`kind::PASS`]).
//!   If either of the two runtimes dies, the server has the page, and knows its owner.
//! - A server fails: every runtime writes all its flows to the next incarnation, and
//!   repeats its open recalls. If a runtime dies before that is done, its flows that had
//!   not been written are lost: that is the second failure. Flows whose state only the
//!   server had are lost too.
//!
//! Extent.
//! - There may be [room](paging) for the state of some flows only. The state of the
//!   others is at the server alone, and is fetched when a packet comes for them.
//! - There may be [several](shares) servers. Each has a share of the flows, by the hashes
//!   of their keys, and has its own write-backs, requests and recalls. A recovery ends
//!   when all servers have dealt.

pub mod pages;
mod paging;
mod recalls;
mod records;
mod shares;
#[cfg(test)]
mod tests;

use crate::flows::{ActorHeader, Event, Life, flag};
use crate::plan::{Plan, Release};
use crate::{
    Admission, Commit, Epoch, FlowRef, Flows, NfvActor, Outbox, Paged, Peer, Protection, Safety,
    Slot, kind,
};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, FlowKey, Packet};
use paging::Paging;
use recalls::Recalls;
use records::peer_bytes;
use shares::Shares;
pub(crate) use shares::share_of_key;
pub use shares::{room_for_share, share_of};
use std::collections::{BTreeSet, VecDeque};
use zerocopy::IntoBytes;

/// Flows that one flush writes back because of their age.
const WRITTEN: usize = 64;
/// Time under way, ns, beyond which a record does not count as written back. Its flows
/// are not called safe.
const LATE: u64 = 100_000_000;

/// A runtime's side. See the module.
pub struct Rescue {
    plan: Plan,
    /// Copies at the servers, which are the only holders.
    copies: NfvActor,
    shares: Shares,
    /// If packets leave at once, by slot: packets since the flow was written back.
    unsaved: Vec<u32>,
    /// Flows that have reached the limit of packets, or must be written back for another
    /// reason.
    due: Vec<FlowRef>,
    /// Dirty flows, the longest dirty first; and how many of them the present round still
    /// writes.
    behind: VecDeque<FlowRef>,
    round: usize,
    write_back_at: u64,
    /// See [`LATE`].
    late: u64,
    now: u64,
    recalls: Recalls,
    /// Flows that other runtimes own, to be removed at the next flush.
    displaced: Vec<FlowRef>,
    /// Flows that were on their way to another runtime when the server was replaced.
    adrift: Vec<FlowRef>,
    /// Flows that are about to leave, and have to be written back first.
    departing: Vec<FlowRef>,
    /// Set if there is not room for the state of all flows.
    paging: Option<Paging>,
}

impl Rescue {
    /// A protection without a server yet.
    pub fn new(plan: Plan) -> Rescue {
        Rescue {
            plan,
            copies: NfvActor::new(Plan::NFVACTOR_AT_SOURCE),
            shares: Shares::default(),
            unsaved: Vec::new(),
            due: Vec::new(),
            behind: VecDeque::new(),
            round: 0,
            write_back_at: 0,
            late: LATE,
            now: 0,
            recalls: Recalls::default(),
            displaced: Vec::new(),
            adrift: Vec::new(),
            departing: Vec::new(),
            paging: plan.resident_flows.map(|flows| Paging::new(flows as usize)),
        }
    }

    /// For benchmarks whose stamps run `times` as fast as time: periodic work is done as
    /// often as it would be in real time.
    #[doc(hidden)]
    #[must_use]
    pub fn with_stamps_hurrying(mut self, times: u64) -> Rescue {
        self.plan.write_back_every = self.plan.write_back_every.saturating_mul(times);
        self.copies.ask_pause = self.copies.ask_pause.saturating_mul(times);
        self.late = self.late.saturating_mul(times);
        self
    }

    /// True if packets wait until the server has the state that they reveal.
    #[inline]
    fn waits(&self) -> bool {
        self.plan.release == Release::WriteBack
    }

    /// Notes that a packet of the flow has been processed.
    #[inline]
    fn note(&mut self, flows: &mut Flows, slot: Slot) {
        if self.waits() {
            return self.copies.mark_dirty(flows, slot);
        }
        let at = slot as usize;
        if at >= self.unsaved.len() {
            self.unsaved.resize(flows.capacity().max(at + 1), 0);
        }
        let header = flows.header_mut(slot);
        if header.flags & flag::DIRTY == 0 {
            header.flags |= flag::DIRTY;
            self.behind.push_back(header.reference(slot));
            self.unsaved[at] = 0;
        }
        self.unsaved[at] += 1;
        // A new flow is written back at once, so that a failure does not lose even the
        // fact that it existed.
        let unsaved = self.unsaved[at];
        if unsaved == self.plan.write_back_packets || unsaved == 1 && header.commit == Commit::NONE
        {
            self.due.push(header.reference(slot));
        }
    }

    /// Writes a flow back, if it is dirty. False if the channel is full.
    fn write_back(&mut self, flows: &mut Flows, flow: FlowRef, out: &mut Outbox) -> bool {
        let is_meant =
            |header: &&mut ActorHeader| header.life().is_owned() && header.flags & flag::DIRTY != 0;
        let Some(header) = flows.get_mut(flow).filter(is_meant) else { return true };
        header.flags &= !flag::DIRTY;
        self.copies.send_state(flows, flow.slot, None, out).is_ok()
            || self.shares.server_of(flows, flow.slot).is_none()
    }

    /// Writes back, if packets leave at once: flows that are due, and some that have been
    /// dirty for long.
    fn write_some_back(&mut self, flows: &mut Flows, out: &mut Outbox) {
        // Ends are told first, because a new flow may have the key of one that has ended.
        let NfvActor { retirement, links, .. } = &mut self.copies;
        retirement.tell(links, out);
        let is_put_off = is_planted(Fault::IgnoresInterval) && self.write_back_at > 0;
        let mut due = core::mem::take(&mut self.due);
        for flow in due.drain(..) {
            // A flow that finds no room is unprotected from here on, and is sent again
            // like every unprotected flow.
            if !is_put_off || flows.header(flow.slot).commit == Commit::NONE {
                self.write_back(flows, flow, out);
            }
        }
        self.due = due;
        let now = out.now();
        if self.round == 0 && now >= self.write_back_at && !is_put_off {
            self.round = self.behind.len();
            self.write_back_at = now.saturating_add(self.plan.write_back_every);
        }
        if !self.copies.blocked {
            // Most of these flows have not been touched for long: prefetch them.
            let next = self.behind.iter().take(self.round.min(WRITTEN)).map(|flow| flow.slot);
            core::hint::black_box(flows.touch_blocks(next));
        }
        let mut written = 0;
        while self.round > 0
            && written < WRITTEN
            && let Some(flow) = self.behind.pop_front()
        {
            self.round -= 1;
            let header = flows.header(flow.slot);
            if header.reference(flow.slot) != flow || header.flags & flag::DIRTY == 0 {
                // The flow was due before, or has ended.
                continue;
            }
            written += 1;
            if !self.write_back(flows, flow, out) {
                break;
            }
        }
    }

    /// True if the server has this flow as it was when it was written back last.
    fn is_at_server(&self, header: &ActorHeader) -> bool {
        let holder = header.holder();
        self.shares.position(holder).is_some()
            && header.commit != Commit::NONE
            && header.flags & flag::UNPROTECTED == 0
    }

    /// The flow is owned here from now on. The server has at best its state at the
    /// previous owner.
    fn own(&mut self, flows: &mut Flows, slot: Slot) {
        let server = self.shares.server_of(flows, slot).unwrap_or_default();
        let header = flows.header_mut(slot);
        self.copies.retirement.came_back(slot, header);
        // The holder is set although nothing was sent, so that the server is told if the
        // flow ends before it is written back.
        header.set_holder(server);
        header.commit = Commit::NONE;
        header.flags = header.flags & !flag::DIRTY | flag::UNPROTECTED;
        self.copies.resynchronise_again();
    }

    fn recall(&mut self, dead: Peer, out: &mut Outbox) {
        self.copies.close(dead, out);
        self.recalls.begin(dead);
    }

    /// The server of a share has a new incarnation: state that only the server had is
    /// lost.
    fn forget_server(&mut self, flows: &mut Flows, at: usize, out: &mut Outbox) {
        let servers = self.shares.len();
        let is_its_key =
            |flows: &Flows, key: &FlowKey| share_of_key(flows, key, servers) == Some(at);
        let is_its = |flows: &Flows, slot: Slot| is_its_key(flows, &flows.header(slot).key);
        // While a flow is on its way to another runtime, neither of the two writes it to
        // the new server.
        let is_sent =
            |slot: &Slot| flows.header(*slot).life() == Life::Departed && is_its(flows, *slot);
        self.adrift.retain(|flow| !is_its(flows, flow.slot));
        let sent = (0..flows.reach()).filter(is_sent);
        self.adrift.extend(sent.map(|slot| flows.reference(slot)));
        let aside = self.paging.iter_mut().flat_map(Paging::states_aside);
        let aside: BTreeSet<FlowRef> = aside.map(|(flow, _)| flow).collect();
        let is_absent = |slot: &Slot| {
            let header = flows.header(*slot);
            let is_away = header.life().is_owned() && !flows.is_present(*slot);
            is_away && !aside.contains(&header.reference(*slot)) && is_its(flows, *slot)
        };
        let absent = (0..flows.reach()).filter(is_absent);
        out.lost.extend(absent.map(|slot| flows.reference(slot)));
        if let Some(paging) = &mut self.paging {
            paging.forget_server(flows, is_its_key);
        }
    }
}

impl Paged for Rescue {
    fn fetch(&mut self, flows: &Flows, slot: Slot) -> bool {
        self.paging.as_mut().is_none_or(|paging| paging.has(flows, slot))
    }

    fn make_room(&mut self, flows: &mut Flows) {
        if self.paging.is_none() || !flows.is_paged() {
            return;
        }
        self.shares.look_up(&mut self.copies.links);
        if let Rescue { paging: Some(paging), shares, .. } = self
            && shares.known().next().is_some()
        {
            paging.make_room(flows, shares);
        }
    }

    fn reserved(&self, room: usize) -> usize {
        self.paging.as_ref().map_or(0, |paging| paging.reserved(room))
    }

    fn keep_aside(&mut self, flows: &Flows, slot: Slot, state: &[u8]) {
        self.paging.iter_mut().for_each(|paging| paging.keep_aside(flows, slot, state));
    }

    fn aside(&self) -> usize {
        self.paging.as_ref().map_or(0, Paging::aside)
    }

    fn visit_aside(&mut self, visit: &mut dyn FnMut(FlowRef, &mut [u8])) {
        let states = self.paging.iter_mut().flat_map(Paging::states_aside);
        states.for_each(|(flow, state)| visit(flow, state));
    }

    fn departs(
        &mut self,
        flows: &Flows,
        slot: Slot,
        to: Peer,
        epoch: Epoch,
        out: &mut Outbox,
    ) -> bool {
        let header = flows.header(slot);
        if !self.is_at_server(header) {
            return true;
        }
        let server = header.holder();
        let Some(link) = self.copies.links.find(server) else { return true };
        let number = link.numbers.next();
        let (epochs, to) = ([header.epoch, epoch].map(Epoch::to_be_bytes), peer_bytes(to));
        let is_sent = out.send(
            server,
            kind::PASS,
            &[&number.to_be_bytes(), &epochs[0], &to, &epochs[1], header.key.as_bytes()],
        );
        if is_sent {
            link.numbers.last = number;
        }
        is_sent
    }

    fn keeps_sent(&self, flows: &Flows, slot: Slot) -> bool {
        !self.is_at_server(flows.header(slot))
    }
}

impl Protection for Rescue {
    fn plan(&self) -> Plan {
        self.plan
    }

    fn paged(&self) -> Option<&dyn Paged> {
        Some(self)
    }

    fn paged_mut(&mut self) -> Option<&mut dyn Paged> {
        Some(self)
    }

    #[inline]
    fn admit(&mut self, flows: &mut Flows, slot: Slot) -> Admission {
        if let Some(paging) = &mut self.paging
            && !paging.use_of(flows, slot)
        {
            return Admission::Park;
        }
        if self.waits() { self.copies.admit(flows, slot) } else { Admission::Ready }
    }

    #[inline]
    fn commit(
        &mut self,
        flows: &mut Flows,
        slot: Slot,
        packet: Packet,
        _nondeterministic: bool,
        out: &mut Outbox,
    ) {
        self.note(flows, slot);
        match self.waits() {
            true => self.copies.pending.push((slot, packet)),
            false => self.follow(flows, slot, packet, out),
        }
    }

    fn follow(&mut self, flows: &mut Flows, slot: Slot, packet: Packet, out: &mut Outbox) {
        if self.waits() {
            return self.copies.follow(flows, slot, packet, out);
        }
        let is_alone = !self.shares.are_all_known() && self.shares.server_of(flows, slot).is_none();
        out.released_unprotected += u64::from(is_alone);
        out.release(packet);
    }

    #[inline]
    fn changed(&mut self, flows: &mut Flows, slot: Slot, _stamp: u64, _nondeterministic: bool) {
        self.note(flows, slot);
    }

    fn ended(&mut self, flows: &mut Flows, slot: Slot, out: &mut Outbox) {
        self.copies.ended(flows, slot, out);
    }

    fn flush(&mut self, flows: &mut Flows, out: &mut Outbox) {
        for flow in self.displaced.drain(..) {
            if flows.get(flow).is_some_and(|header| header.life() == Life::Copy) {
                flows.remove(flow.slot);
            }
        }
        let mut departing = core::mem::take(&mut self.departing);
        for flow in departing.drain(..) {
            let header = flows.get_mut(flow).filter(|header| header.life().is_owned());
            let Some(header) = header else { continue };
            if self.waits() {
                self.copies.mark_dirty(flows, flow.slot);
            } else {
                header.flags |= flag::DIRTY;
                self.due.push(flow);
            }
        }
        self.departing = departing;
        if !self.waits() {
            self.write_some_back(flows, out);
        }
        self.copies.flush(flows, out);
        self.now = self.now.max(out.now());
        self.shares.look_up(&mut self.copies.links);
        self.shares.note_under_way(self.now, self.late);
        self.make_room(flows);
        if let Some(paging) = &mut self.paging
            && paging.let_in(flows, &mut out.loaded)
        {
            // No server has these states as they are.
            self.copies.resynchronise_again();
        }
        // Sent behind write-backs and passes, so that the server knows of these before it
        // is asked.
        self.speak(flows, out);
    }

    /// Sets the servers, by share; [`Peer::default`] for one that has not been heard of.
    fn set_peers(
        &mut self,
        flows: &mut Flows,
        peers: &[Peer],
        _leaving: &[Peer],
        out: &mut Outbox,
    ) {
        let changed = self.shares.renew(peers);
        for (at, _) in changed.iter().filter(|(_, had_server)| *had_server) {
            self.forget_server(flows, *at, out);
        }
        let known: Vec<Peer> = self.shares.known().collect();
        self.copies.shares.clear();
        self.copies.shares.extend(self.shares.iter().map(|share| share.server));
        self.copies.set_peers(flows, &known, &[], out);
        if !changed.is_empty() && !known.is_empty() {
            // Flows that had no server have one now.
            self.copies.resynchronise_all();
        }
    }

    fn handle_record(
        &mut self,
        flows: &mut Flows,
        from: Peer,
        record: u8,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        let Some(share) = self.shares.position(from) else {
            // Only servers have copies. The sender is none, or is an earlier incarnation
            // of one.
            return Err(DropReason::Fenced);
        };
        match record {
            kind::SAVED | kind::REFUSED => {
                self.paging.iter_mut().for_each(Paging::look_again);
                self.copies.handle_record(flows, from, record, body, out)
            }
            _ => self.hear(flows, (share, from), record, body, out),
        }
    }

    fn handle_handed(&mut self, _flows: &mut Flows, _from: Peer, packet: Packet, out: &mut Outbox) {
        out.dropped.push((packet, DropReason::Malformed));
    }

    fn recover(&mut self, _flows: &mut Flows, dead: Peer, out: &mut Outbox) {
        self.recall(dead, out);
    }

    fn restore(&mut self, _flows: &mut Flows, dead: Peer, out: &mut Outbox) {
        self.recall(dead, out);
    }

    fn is_recovering(&self, dead: Peer) -> bool {
        !is_planted(Fault::ReportsEarly) && self.recalls.is_open(dead)
    }

    fn claimed(&mut self, flows: &mut Flows, slot: Slot) {
        flows.step(slot, Event::Grant);
        self.own(flows, slot);
    }

    fn unclaimed(&mut self, flows: &mut Flows, slot: Slot) {
        self.copies.unclaimed(flows, slot);
    }

    fn has_drained(&mut self, flows: &Flows, slot: Slot, out: &mut Outbox) -> bool {
        if !self.fetch(flows, slot) {
            return false;
        }
        let header = flows.header(slot);
        // True for an earlier incarnation of a server, too.
        let is_held_there = self.shares.has_node(header.holder().node);
        let is_behind = is_held_there && !self.is_at_server(header);
        if is_behind || header.flags & flag::DIRTY != 0 {
            self.departing.push(header.reference(slot));
            return false;
        }
        self.copies.has_drained(flows, slot, out)
    }

    fn departed(
        &mut self,
        _flows: &mut Flows,
        slot: Slot,
        _to: Peer,
        _old_epoch: Epoch,
        _out: &mut Outbox,
    ) -> bool {
        self.copies.retirement.gone(slot);
        false
    }

    fn arrived(&mut self, flows: &mut Flows, slot: Slot, _from: Peer) {
        self.own(flows, slot);
    }

    fn is_busy(&self) -> bool {
        let is_paging = self.paging.as_ref().is_some_and(Paging::is_busy);
        self.copies.is_busy()
            || !self.displaced.is_empty()
            || !self.departing.is_empty()
            || self.round > 0 && !self.copies.blocked
            || !self.copies.blocked
                && (self.has_to_say() || is_paging && self.shares.known().next().is_some())
    }

    fn safety(&self, flows: &Flows) -> Safety {
        let is_late = !self.waits() && self.shares.is_late(self.now, self.late);
        let safety = self.copies.safety(flows);
        let unprotected =
            if self.shares.are_all_known() { safety.unprotected } else { flows.owned() as u64 };
        let is_adrift =
            |flow: &FlowRef| flows.get(*flow).is_some_and(|header| header.life() == Life::Departed);
        // A state that waits for room has no other copy.
        let is_filling =
            safety.resynchronising || self.adrift.iter().any(is_adrift) || self.aside() > 0;
        let absent = flows.absent() as u64;
        let fetched = self.paging.as_ref().map_or(0, |paging| paging.fetched);
        Safety { unprotected, absent, fetched, resynchronising: is_filling || is_late, ..safety }
    }

    fn held(&self) -> usize {
        self.copies.held()
    }

    fn abandon(&mut self, out: &mut Outbox) {
        self.copies.abandon(out);
    }
}
