//! `nfvactor`: after every batch a flow's state goes to a replica flow actor on another
//! runtime, and packets leave behind it. The [snapshots](snapshots) of `nfactor` share
//! this module's links, numbers, refusals, departures, and scans for flows without a
//! copy.
//!
//! Theory of operation (NFVactor: flow replication). The owner picks a replica runtime
//! per flow, round-robin. At the end of a batch it sends each changed flow's state once,
//! over the reliable channel. Records are numbered per pair of runtimes; the number is
//! the *commit*. A packet leaves once the replica has saved its flow's commit, or sooner
//! under [`Release::AtOnce`]. If the owner fails, the replica claims the flow's route,
//! and a new epoch comes with the route. Records that the old owner still sends carry the
//! old epoch and are refused. No state that was released can be missing at the replica,
//! because it was saved before. The contract is one failure at a time.
//!
//! Deltas. A flow's first record carries its state whole, later ones the
//! [delta](crate::delta). The owner compares the block with the block before the batch's
//! first packet ([`Before`]). The replica has that one, since every earlier change was
//! sent and the channel keeps the order. A refusal, another replica, another epoch, or a
//! change outside of the flow's packets makes that untrue. All of these are known here,
//! and the next record then carries the flow whole.
//!
//! Release modes.
//! - [`Release::Replica`]: the batch's packets follow the records as data frames tagged
//!   with their flow's commit. The replica releases a packet when it has saved that
//!   commit; the packet does not come back. A packet lost on the way is a lost packet and
//!   nothing else.
//! - [`Release::Source`]: packets wait in a latch here until the replica acknowledges
//!   their commits.
//! - [`Release::AtOnce`]: packets wait in the latch only if a failure would undo more of
//!   their flow's packets than it [may](unsaved). Packets of a flow without a copy leave,
//!   counted, as without a protection.
//!
//! Failures.
//! - The replica fails: the latched packets follow their flows to the next replica. Idle
//!   flows are sent again in the background.
//! - There is no other runtime: packets leave unprotected, counted, and `status` says so.
//! - A copy differs: the owner asks slowly, flow after flow, whether each copy equals its
//!   own state ([`kind::CHECK`]). A copy that differs is removed, counted, and made anew.
//!   Flows do not count as safe until the new one is saved.

mod answers;
mod before;
mod dispatch;
mod handed;
mod link;
mod release_mode;
mod replaced_holders;
mod snapshots;
mod states;
#[cfg(test)]
mod tests;
mod unsaved;

use crate::flows::{Event, flag};
use crate::links::Links;
use crate::numbers::{Inbounds, key_of, only_commit, split_refusal};
use crate::plan::{Plan, Release};
use crate::retirement::{self, Retirement};
use crate::{
    Admission, Commit, Detour, Epoch, Flows, Outbox, Peer, Protection, Safety, Slot, copies, delta,
    kind,
};
use before::Before;
use handed::Handed;
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, FlowKey, NodeId, Packet};
use link::{Latched, Link};
use release_mode::{Choice, Detours};
use replaced_holders::ReplacedHolders;
use snapshots::Snapshots;
use unsaved::Unsaved;

/// Packets that one link may hold back.
const HELD_LIMIT: usize = 8192;
/// Time before an unanswered mark is sent again, ns: like any frame it may be lost.
const MARK_TIMEOUT: u64 = 10_000_000;
/// Time before a refused state is sent again, ns: a full table does not empty at once.
const REFUSED_PAUSE: u64 = 100_000_000;

/// See the module.
pub(crate) struct NfvActor {
    pub(crate) plan: Plan,
    peers: Vec<Peer>,
    next_peer: usize,
    pub(crate) links: Links<Link>,
    /// Links on which a resynchronisation is not saved yet.
    filling: usize,
    unsaved: Unsaved,
    snapshots: Snapshots,
    inbound: Inbounds<Handed>,
    pub(crate) retirement: Retirement,
    replaced: ReplacedHolders,
    dirty: Vec<Slot>,
    before: Before,
    /// Scratch space for the delta that is being sent.
    encoded: Vec<u8>,
    pub(crate) pending: Vec<(Slot, Packet)>,
    resync: Option<Slot>,
    resync_again: bool,
    /// The time before which no resynchronisation begins, ns.
    resync_not_before: u64,
    /// Set if an owner must be told in the next turn which packets have left in this one.
    has_passed: bool,
    /// The slot at which the questions about copies continue, and the time before which
    /// none is asked, ns.
    ask_at: Slot,
    ask_not_before: u64,
    /// Time between two rounds of questions about copies, ns.
    pub(crate) ask_pause: u64,
    /// Copies that were found to differ.
    differed: u64,
    /// A channel is full: there is nothing to do before input comes.
    pub(crate) blocked: bool,
    /// The latest known time, ns.
    now: u64,
    /// The cost for a packet to leave by other runtimes.
    detours: Detours,
    /// All copies go to one holder while it has room for them.
    pub(crate) is_pinned: bool,
    /// If not empty: each flow's copy goes to the holder of its
    /// [share](crate::rescue::share_of), as soon as that holder is known.
    pub(crate) shares: Vec<Option<Peer>>,
}

impl NfvActor {
    /// A protection without a peer yet.
    pub(crate) fn new(plan: Plan) -> NfvActor {
        NfvActor {
            plan,
            peers: Vec::new(),
            next_peer: 0,
            links: Links::default(),
            filling: 0,
            unsaved: Unsaved::new(&plan),
            snapshots: Snapshots::default(),
            inbound: Inbounds::default(),
            retirement: Retirement::default(),
            replaced: ReplacedHolders::default(),
            dirty: Vec::with_capacity(256),
            before: Before::default(),
            encoded: Vec::with_capacity(512),
            pending: Vec::with_capacity(256),
            resync: None,
            resync_again: false,
            resync_not_before: 0,
            has_passed: false,
            ask_at: 0,
            ask_not_before: 0,
            ask_pause: states::ASK_PAUSE,
            differed: 0,
            blocked: false,
            now: 0,
            detours: Detours::default(),
            is_pinned: false,
            shares: Vec::new(),
        }
    }

    fn count_filling(&mut self) {
        self.filling = self.links.iter().filter(|link| link.resync_mark.is_some()).count();
    }

    /// Refuses a record of an owner, and notes that the owner must be told.
    pub(crate) fn refuse(&mut self, from: Peer, number: Commit, reason: DropReason) {
        self.inbound.from(from).refuse(number, reason);
    }

    /// Begins a scan of all flows, because copies are missing or of no use.
    pub(crate) fn resynchronise_all(&mut self) {
        self.begin_look();
    }

    /// True if copies are on their way to holders that had none, or are about to be.
    pub(crate) fn is_filling(&self) -> bool {
        !self.peers.is_empty() && (self.resync.is_some() || self.filling > 0)
    }

    /// Requests a scan: there is a flow without a copy of its present state.
    pub(crate) fn resynchronise_again(&mut self) {
        self.resync_again = true;
    }

    /// Requests a scan for a flow whose copy nobody has refused. A snapshot is sent at
    /// once.
    fn look_soon(&mut self) {
        self.resync_again = true;
        if self.has_snapshots() {
            self.resync_not_before = self.now;
        }
    }

    /// Takes the number of a record that an owner sent.
    pub(crate) fn take_commit(&mut self, from: Peer, commit: Commit) -> Result<(), DropReason> {
        let inbound = self.inbound.take(from, commit, self.links.present(from.node))?;
        inbound.more.forget_refusals(commit);
        Ok(())
    }

    /// Notes that a packet has changed the flow.
    #[inline]
    fn note_change(&mut self, flows: &mut Flows, slot: Slot) {
        if !self.has_snapshots() || self.count(flows.header_mut(slot)) {
            self.mark_dirty(flows, slot);
        }
    }

    pub(crate) fn mark_dirty(&mut self, flows: &mut Flows, slot: Slot) {
        let header = flows.header_mut(slot);
        if header.flags & flag::DIRTY == 0 {
            header.flags |= flag::DIRTY;
            self.dirty.push(slot);
        }
    }

    /// Ends the copies of a flow that is not owned here any more, at its holder and at
    /// leaving holders. The flow is now at `to`, if anywhere.
    fn end_copies(&mut self, slot: Slot, holder: Peer, to: Peer, epoch: Epoch, key: FlowKey) {
        self.retirement.gone(slot);
        self.forget_copy(holder);
        if holder.node != NodeId::NONE && holder != to {
            self.retirement.end(holder, epoch, key);
        }
    }

    /// Subtracts one copy at this holder.
    fn forget_copy(&mut self, holder: Peer) {
        if let Some(link) = self.links.find(holder) {
            link.copies = link.copies.saturating_sub(1);
        }
    }

    /// The flow ends here, and has not moved: ends its copies.
    fn end_flow(&mut self, flows: &Flows, slot: Slot) {
        self.retirement.end_kept(slot);
        let header = flows.header(slot);
        let holder = header.holder();
        self.end_copies(slot, holder, Peer::default(), header.epoch, header.key);
    }

    /// Takes no further record from this runtime.
    pub(crate) fn close(&mut self, dead: Peer, out: &mut Outbox) {
        self.inbound.close(dead, |handed| {
            // The packets' state never came: it died with the owner, and so do the
            // packets.
            out.dropped
                .extend(handed.packets.drain(..).map(|packet| (packet, DropReason::LostInFailure)));
            handed.marks.clear();
        });
    }
}

impl Protection for NfvActor {
    fn plan(&self) -> Plan {
        self.plan
    }

    #[inline]
    fn admit(&mut self, flows: &mut Flows, slot: Slot) -> Admission {
        if !self.has_snapshots() {
            self.before.note(flows, slot);
        }
        Admission::Ready
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
        self.note_change(flows, slot);
        if self.has_snapshots() {
            out.released_unprotected += u64::from(self.is_homeless(flows.header(slot)));
        }
        self.pending.push((slot, packet));
    }

    #[inline]
    fn changed(&mut self, flows: &mut Flows, slot: Slot, _stamp: u64, _nondeterministic: bool) {
        self.note_change(flows, slot);
    }

    fn follow(&mut self, flows: &mut Flows, slot: Slot, packet: Packet, out: &mut Outbox) {
        let header = flows.header(slot);
        if self.has_snapshots() {
            out.released_unprotected += u64::from(self.is_homeless(header));
            return self.pending.push((slot, packet));
        }
        let is_sent = header.commit != Commit::NONE
            && header.flags & (flag::DIRTY | flag::UNPROTECTED | flag::WHOLE) == 0;
        let (commit, holder) = (header.commit, header.holder());
        match self.links.find(holder).filter(|_| is_sent) {
            Some(link) if link.numbers.has_saved(commit) => out.release(packet),
            Some(_) => self.pending.push((slot, packet)),
            None => self.commit(flows, slot, packet, false, out),
        }
    }

    fn ended(&mut self, flows: &mut Flows, slot: Slot, _out: &mut Outbox) {
        self.end_flow(flows, slot);
    }

    fn flush(&mut self, flows: &mut Flows, out: &mut Outbox) {
        self.now = self.now.max(out.now());
        self.follow_replaced(flows, out);
        self.blocked = !self.retirement.tell(&mut self.links, out);
        self.send_changed(flows, out);
        if self.plan.release == Release::Auto {
            for link in self.links.iter_mut() {
                link.reconsider(self.now, self.plan.fickle_every, out);
            }
        }
        let mut pending = core::mem::take(&mut self.pending);
        for (slot, packet) in pending.drain(..) {
            self.dispatch(flows, slot, packet, out);
        }
        self.pending = pending;
        if self.has_snapshots() {
            self.restore_some(flows, out);
        }
        if self.resync.is_some() || self.resync_again {
            self.resynchronise(flows, out);
        }
        self.ask(flows, out);
        let links = &mut self.links;
        self.retirement.look(flows, |header| retirement::is_saved(links, header));
        self.has_passed = false;
        let has_passed = &mut self.has_passed;
        self.inbound.flush(|inbound| {
            inbound.more.release(inbound.saved, out);
            *has_passed |= handed::answer(inbound, out);
            inbound.has_untold() || inbound.more.has_untold()
        });
    }

    fn set_detours(&mut self, detours: &[(Peer, Detour)]) {
        self.detours.set(detours);
        for link in self.links.iter_mut() {
            link.choice.detour = self.detours.of(link.peer);
        }
    }

    fn set_peers(&mut self, flows: &mut Flows, peers: &[Peer], leaving: &[Peer], out: &mut Outbox) {
        let had_none = self.peers.is_empty();
        self.peers.clear();
        self.peers.extend_from_slice(peers);
        self.next_peer = if peers.is_empty() || self.is_pinned || self.has_snapshots() {
            0
        } else {
            self.next_peer % peers.len()
        };
        let (release, detours, retirement) =
            (self.plan.release, &self.detours, &mut self.retirement);
        let mut lost = self.links.renew(peers, |peer| {
            Link::new(peer, retirement.stays(peer), Choice::new(release, detours.of(peer)))
        });
        self.count_filling();
        self.replaced.set(|peer| peers.contains(peer) || leaving.contains(peer), &lost);
        self.retirement.set(leaving, &mut lost);
        if !lost.is_empty() || had_none {
            self.begin_look();
        }
        self.forget_absent(&lost.iter().map(|link| link.peer).collect::<Vec<_>>());
        // Packets that waited for a runtime that is gone follow their flows to the next
        // replica, in order.
        for latched in lost.into_iter().flat_map(|link| link.latch) {
            if flows.get_owned(latched.flow).is_some() {
                self.mark_dirty(flows, latched.flow.slot);
                self.pending.push((latched.flow.slot, latched.packet));
            } else {
                out.dropped.push((latched.packet, DropReason::LostInFailure));
            }
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
        match record {
            kind::STATE => self.handle_state(flows, from, body, out),
            kind::FETCH if self.has_snapshots() => self.handle_fetch(flows, from, body, out),
            kind::RESTORED if self.has_snapshots() => self.handle_restored(flows, from, body, out),
            kind::FETCHED if self.has_snapshots() => self.handle_fetched(from, body),
            kind::DELTA | kind::CHECK | kind::PASSED if self.has_snapshots() => {
                Err(DropReason::Malformed)
            }
            kind::DELTA => self.handle_delta(flows, from, body),
            kind::CHECK => self.handle_check(flows, from, body),
            kind::SAVED => self.handle_saved(from, only_commit(body)?, out),
            kind::PASSED => {
                let commit = only_commit(body)?;
                self.replaced.handle_passed(from, commit);
                if self.retirement.numbers(from).is_some() {
                    return Ok(());
                }
                let link = self.links.find(from).ok_or(DropReason::Fenced)?;
                if !link.numbers.last.has_reached(commit) {
                    return Err(DropReason::Malformed);
                }
                if link.passed == Commit::NONE || commit.has_reached(link.passed) {
                    link.passed = commit;
                    link.note_passed(&self.unsaved, out);
                }
                if link.marked.is_some_and(|(marked, _)| commit.has_reached(marked)) {
                    link.marked = None;
                }
                Ok(())
            }
            kind::END => {
                let (commit, epoch, key) = copies::split_end(body)?;
                self.take_commit(from, commit)?;
                if let Some(slot) = copies::end(flows, epoch, &key) {
                    self.retirement.end_kept(slot);
                }
                Ok(())
            }
            kind::REFUSED => {
                let (commit, reason) = split_refusal(body)?;
                self.handle_refused(flows, from, commit, reason, out)
            }
            _ => Err(DropReason::Malformed),
        }
    }

    fn flow_of(&self, flows: &Flows, record: u8, body: &[u8]) -> Option<u64> {
        match record {
            kind::STATE => key_of(body).map(|key| flows.hash(&key)),
            kind::DELTA | kind::CHECK => delta::hash_of(body),
            kind::END => copies::split_end(body).ok().map(|(_, _, key)| flows.hash(&key)),
            _ => None,
        }
    }

    fn handle_handed(&mut self, _flows: &mut Flows, from: Peer, packet: Packet, out: &mut Outbox) {
        let inbound = self.inbound.from(from);
        if inbound.closed {
            out.dropped.push((packet, DropReason::Fenced));
        } else {
            inbound.more.take(packet, inbound.saved, out);
        }
    }

    fn recover(&mut self, flows: &mut Flows, dead: Peer, out: &mut Outbox) {
        if self.has_snapshots() {
            self.keep(flows, dead, out);
            self.forget_dead(dead);
            return;
        }
        for slot in 0..flows.reach() {
            let header = flows.header(slot);
            let owner = header.holder();
            if header.life().may_be_copy() && dead.has_reached(owner) {
                flows.step(slot, Event::Claim);
                out.claims.push(slot);
            }
        }
        self.close(dead, out);
    }

    fn restore(&mut self, _flows: &mut Flows, dead: Peer, _out: &mut Outbox) {
        if self.has_snapshots() {
            self.begin_fetching(dead);
        }
    }

    fn is_recovering(&self, dead: Peer) -> bool {
        !is_planted(Fault::ReportsEarly) && self.is_waiting_for(dead)
    }

    fn claimed(&mut self, flows: &mut Flows, slot: Slot) {
        flows.step(slot, Event::Grant);
        let has_snapshots = self.has_snapshots();
        let header = flows.header_mut(slot);
        self.retirement.came_back(slot, header);
        let holder = header.holder();
        match (has_snapshots, self.links.has(holder)) {
            // The runtime that gave the snapshot back still has it, and gets the next one
            // with the new epoch.
            (true, true) => {}
            (true, false) => self.retirement.replace(slot, header, holder),
            // The flow may have been owned here before: its holder of that time still has
            // a copy.
            (false, true) => self.retirement.came_from(slot, header, holder),
            (false, false) => {}
        }
        if !(has_snapshots && self.links.has(holder)) {
            header.set_holder(Peer::default());
        }
        header.commit = Commit::NONE;
        header.flags |= flag::UNPROTECTED;
        self.look_soon();
    }

    fn has_drained(&mut self, flows: &Flows, slot: Slot, out: &mut Outbox) -> bool {
        let header = flows.header(slot);
        if self.has_snapshots() {
            return true;
        }
        if header.flags & flag::DIRTY != 0 {
            return false;
        }
        if self.replaced.is_behind(header.reference(slot)) {
            return false;
        }
        let now = self.now;
        let release = self.plan.release;
        let holder = header.holder();
        let Some(link) = self.links.find(holder) else { return true };
        // No packets wait behind a state that could not be sent.
        if header.commit == Commit::NONE {
            return true;
        }
        match release {
            Release::Auto if !link.numbers.has_saved(header.commit) || link.holds(slot) => {
                return false;
            }
            Release::Auto | Release::Replica => {}
            Release::AtOnce => {
                return link.numbers.has_saved(header.commit) && !link.holds(slot);
            }
            _ => return link.numbers.has_saved(header.commit),
        }
        if link.has_passed(header.commit) {
            return true;
        }
        if link.marked.is_none_or(|(_, at)| now.saturating_sub(at) > MARK_TIMEOUT) {
            link.marked = Some((link.numbers.last, now));
            out.marks.push((link.peer, link.numbers.last));
        }
        false
    }

    fn handle_mark(&mut self, from: Peer, commit: Commit) {
        let inbound = self.inbound.from(from);
        // More than one mark is under way only if an answer is late.
        if !inbound.closed && inbound.more.marks.len() < 16 {
            inbound.more.marks.push_back(commit);
        }
    }

    fn unclaimed(&mut self, flows: &mut Flows, slot: Slot) {
        self.end_flow(flows, slot);
    }

    fn needs_earlier(&self, slot: Slot) -> bool {
        self.retirement.needs_earlier(slot)
    }

    fn departed(
        &mut self,
        flows: &mut Flows,
        slot: Slot,
        to: Peer,
        old_epoch: Epoch,
        _out: &mut Outbox,
    ) -> bool {
        let header = *flows.header(slot);
        let old = header.holder();
        if self.links.has(to) {
            self.end_copies(slot, old, to, old_epoch, header.key);
        } else {
            // The copy here would die with the target. Copies elsewhere stay until the
            // target has another one, and says so by ending this one.
            self.forget_copy(old);
            self.retirement.keep(slot, to, old, old_epoch, header.key);
        }
        flows.step(slot, Event::Keep);
        let header = flows.header_mut(slot);
        header.set_holder(to);
        header.commit = Commit::NONE;
        header.flags &= !(flag::UNPROTECTED | flag::DIRTY);
        true
    }

    fn arrived(&mut self, flows: &mut Flows, slot: Slot, from: Peer) {
        let link = self.links.find(from);
        // The flow may have moved away from here before, and back.
        let header = flows.header_mut(slot);
        self.retirement.came_back(slot, header);
        header.commit = Commit::NONE;
        if let Some(link) = link {
            // The previous owner has the same state: it is the replica now.
            link.copies += 1;
            header.set_holder(from);
            header.flags &= !flag::UNPROTECTED;
        } else {
            header.set_holder(Peer::default());
            header.flags |= flag::UNPROTECTED;
            self.retirement.came_from(slot, header, from);
            self.look_soon();
        }
    }

    fn is_busy(&self) -> bool {
        let may_resync =
            self.resync.is_some() || self.resync_again && self.now >= self.resync_not_before;
        let has_records = || self.retirement.is_waiting() || self.has_restoring_to_do();
        !self.blocked && (may_resync && !self.peers.is_empty() || has_records())
            || !self.pending.is_empty()
            || self.has_passed
    }

    fn safety(&self, flows: &Flows) -> Safety {
        let unprotected =
            if self.peers.is_empty() { flows.owned() as u64 } else { self.snapshots.homeless };
        let filling =
            self.resync.is_some() || self.resync_again || self.filling > 0 || self.is_late();
        let resynchronising = self.is_restoring() || filling && !self.peers.is_empty();
        Safety { unprotected, absent: 0, fetched: 0, resynchronising, differed: self.differed }
    }

    fn held(&self) -> usize {
        self.links.iter().map(|link| link.latch.len()).sum::<usize>()
            + self.replaced.held()
            + self.inbound.iter().map(|inbound| inbound.more.packets.len()).sum::<usize>()
    }

    fn abandon(&mut self, out: &mut Outbox) {
        let latched = self
            .links
            .iter_mut()
            .flat_map(|link| link.latch.drain(..))
            .chain(self.replaced.drain());
        let latched = latched.map(|latched| latched.packet);
        out.dropped.extend(latched.map(|packet| (packet, DropReason::ShuttingDown)));
        let handed = self.inbound.iter_mut().flat_map(|inbound| inbound.more.packets.drain(..));
        out.dropped.extend(handed.map(|packet| (packet, DropReason::ShuttingDown)));
        out.dropped
            .extend(self.pending.drain(..).map(|(_, packet)| (packet, DropReason::ShuttingDown)));
    }
}
