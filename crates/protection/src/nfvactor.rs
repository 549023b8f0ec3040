//! `nfvactor`: after every batch a flow's state goes to a replica flow actor on another runtime; packets leave behind it. And what `nfactor`'s
//! [snapshots](snapshots) have in common with that: links, numbers, refusals, departures, looks for flows without a copy.
//!
//! Theory of operation (NFVactor: flow replication).
//! - The owner picks a replica runtime per flow, round-robin. At the end of a batch it sends each changed flow's state once, numbered
//!   per pair of runtimes (the *commit*), over the reliable channel: the first time whole, then [what has changed](crate::delta).
//! - What has changed is found by comparing the block with what it was before the batch's first packet ([`Before`]), which the replica has, because
//!   every earlier change was sent and the channel keeps the order. Whatever makes that untrue for a flow (a refusal, another replica, another
//!   epoch, a change outside of its packets) is known here, and the next record carries the flow whole.
//! - [`Release::Replica`]: the batch's packets follow as data frames tagged with their flow's commit. The replica
//!   releases a packet when it has saved that commit. Nothing comes back; a packet lost on the way is a lost packet and nothing else.
//! - [`Release::Source`]: the packets wait in a latch here until the replica says which commits it has saved.
//! - [`Release::AtOnce`]: they do so only where a failure would undo more of their flow's packets than it [may](unsaved). A flow without a copy is
//!   as without a protection: its packets leave, counted.
//! - The owner fails: the replica asks the switch for the flow's route. With the route comes a new epoch; what the
//!   old owner still sends carries the old one and is refused. Nothing that was released can be missing here: it was saved before.
//! - Slowly, a flow after the other, the owner asks whether the copy is what it has ([`kind::CHECK`]). One that is not is thrown away, counted, and made
//!   anew; until that is saved nobody calls the flows safe.
//! - The replica fails: the latched packets follow their flows to the next replica; idle flows are sent again in the background.
//! - There is no other runtime: packets leave unprotected, counted, and `status` says so. The contract is one failure at a time.

mod before;
mod handed;
mod leaving;
mod link;
mod snapshots;
mod states;
#[cfg(test)]
mod tests;
mod unsaved;
mod way;

use crate::flows::{flag, role};
use crate::links::Links;
use crate::numbers::{Inbounds, key_of, only_u32, reached, split_refusal};
use crate::parting::{self, Parting};
use crate::plan::{Plan, Release};
use crate::{Admission, Detour, Epoch, Flows, NodeIndex, Outbox, Peer, Protection, Safety, Slot, copies, delta, kind};
use before::Before;
use handed::Handed;
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, FlowKey, Packet};
use leaving::Leaving;
use link::{Latched, Link};
use snapshots::Snapshots;
use std::collections::{BTreeSet, VecDeque};
use unsaved::Unsaved;
use way::Choice;

/// Packets that one link may hold back.
const HELD_LIMIT: usize = 8192;
/// Before a mark is sent again whose answer has not come, ns: it may be lost, as any frame.
const MARK_PATIENCE: u64 = 10_000_000;
/// Before a refused state is sent again, ns: a full table does not empty at once.
const REFUSED_PAUSE: u64 = 100_000_000;

/// See the module.
pub(crate) struct NfvActor {
    pub(crate) plan: Plan,
    peers: Vec<Peer>,
    next_peer: usize,
    pub(crate) links: Links<Link>,
    /// Links on which a re-synchronisation is not saved yet.
    filling: usize,
    unsaved: Unsaved,
    snapshots: Snapshots,
    inbound: Inbounds<Handed>,
    pub(crate) parting: Parting,
    leaving: Leaving,
    dirty: Vec<Slot>,
    before: Before,
    /// A change on its way into the outbox.
    encoded: Vec<u8>,
    pub(crate) pending: Vec<(Slot, Packet)>,
    resync: Option<Slot>,
    resync_again: bool,
    /// No re-synchronisation before this time, ns.
    resync_not_before: u64,
    /// Somebody is to be told in the next turn what has left in this one.
    has_passed: bool,
    /// Where asking about copies goes on, and not before which time, ns.
    ask_at: Slot,
    ask_not_before: u64,
    /// Between two times of asking about copies, ns.
    pub(crate) ask_pause: u64,
    /// Copies that were not as they should be.
    differed: u64,
    /// A channel is full: there is nothing to be done until something comes in.
    pub(crate) blocked: bool,
    /// The latest time known, ns.
    now: u64,
    /// What it costs a packet to go by others.
    detours: Detours,
    /// All copies go to one holder as long as that has room for them.
    pub(crate) is_pinned: bool,
    /// If there are any: each flow's copy goes to the one whose [share](crate::rescue::share_of) it is, as soon as that is known.
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
            parting: Parting::default(),
            leaving: Leaving::default(),
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

    /// A record that an owner sent is not taken; it will hear so.
    pub(crate) fn refuse(&mut self, from: Peer, number: u32, reason: DropReason) {
        self.inbound.from(from).refuse(number, reason);
    }

    /// Copies are to be looked at, all of them: some are missing, or of no use.
    pub(crate) fn resynchronise_all(&mut self) {
        self.begin_look();
    }

    /// Copies are on their way to holders that had none, or are about to be.
    pub(crate) fn is_filling(&self) -> bool {
        !self.peers.is_empty() && (self.resync.is_some() || self.filling > 0)
    }

    /// There is a flow without a copy of what it is now.
    pub(crate) fn resynchronise_again(&mut self) {
        self.resync_again = true;
    }

    /// The same, and nobody has refused it: a snapshot is sent at once.
    fn look_soon(&mut self) {
        self.resync_again = true;
        if self.has_snapshots() {
            self.resync_not_before = self.now;
        }
    }

    /// Takes the number of a record that an owner sent.
    pub(crate) fn take_commit(&mut self, from: Peer, commit: u32) -> Result<(), DropReason> {
        let inbound = self.inbound.take(from, commit, self.links.life(from.node))?;
        inbound.more.forget_refusals(commit);
        Ok(())
    }

    /// A packet has changed the flow.
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

    fn dispatch(&mut self, flows: &Flows, slot: Slot, packet: Packet, out: &mut Outbox) {
        let header = flows.header(slot);
        if self.has_snapshots() || is_planted(Fault::ReleasesBeforeCommit) {
            out.release(packet);
            return;
        }
        let (commit, generation) = (header.commit, header.generation);
        let latched = Latched { commit, slot, generation, packets: unsaved::packets(header), packet, is_for_holder: false };
        if header.peer == 0 {
            let latched = Latched { commit: 0, ..latched };
            if let Some(latched) = self.leaving.hold(Peer::default(), latched, out) {
                out.released_unprotected += 1;
                out.release(latched.packet);
            }
            return;
        }
        if header.commit == 0 {
            // The state could not be sent, so what it reveals must not leave; the sender will try again.
            out.dropped.push((latched.packet, DropReason::HeldOverflow));
            return;
        }
        let holder = Peer { node: header.peer, incarnation: header.peer_incarnation };
        match self.links.find(holder) {
            Some(link) => {
                link.choice.note_packet(latched.packet.len());
                if let Some(latched) = self.leaving.hold(holder, latched, out) {
                    link.hold(latched, &self.unsaved, out);
                }
            }
            None => out.dropped.push((latched.packet, DropReason::LostInFailure)),
        }
    }

    /// What waited for holders that were leaving goes on, before anything that came since.
    fn follow_leaving(&mut self, flows: &mut Flows, out: &mut Outbox) {
        self.leaving.ask(self.now, out);
        let mut before = Vec::new();
        let mut slots = BTreeSet::new();
        while let Some((holder, latched)) = self.leaving.poll() {
            let link = self.links.find(holder);
            // What came later goes behind what came before, whomever each was for.
            match link.filter(|_| !slots.contains(&latched.slot)) {
                Some(link) => {
                    link.hold(latched, &self.unsaved, out);
                    // What was saved while it waited is not said again.
                    link.open_latch(&self.unsaved, out);
                }
                None => {
                    // Who was to have it is gone too: it goes with its flow, if that is still here.
                    let header = flows.header(latched.slot);
                    if header.generation == latched.generation && header.role == role::OWNER {
                        self.mark_dirty(flows, latched.slot);
                        slots.insert(latched.slot);
                        before.push((latched.slot, latched.packet));
                    } else {
                        out.dropped.push((latched.packet, DropReason::LostInFailure));
                    }
                }
            }
        }
        if !before.is_empty() {
            self.pending.splice(0..0, before);
        }
    }

    /// The copies of a flow that is not owned here any more but, if anywhere, at `to`: what its holder has, and what those have that are leaving.
    fn end_copies(&mut self, slot: Slot, holder: Peer, to: Peer, epoch: Epoch, key: FlowKey) {
        self.parting.gone(slot);
        self.forget_copy(holder);
        if holder.node != 0 && holder != to {
            self.parting.end(holder, epoch, key);
        }
    }

    /// One copy fewer is with this one.
    fn forget_copy(&mut self, holder: Peer) {
        if let Some(link) = self.links.find(holder) {
            link.copies = link.copies.saturating_sub(1);
        }
    }

    /// The flow ends here, and nowhere else.
    fn end_flow(&mut self, flows: &Flows, slot: Slot) {
        self.parting.end_kept(slot);
        let header = flows.header(slot);
        let holder = Peer { node: header.peer, incarnation: header.peer_incarnation };
        self.end_copies(slot, holder, Peer::default(), header.epoch, header.key);
    }

    /// Nothing that it still sends is taken.
    pub(crate) fn close(&mut self, dead: Peer, out: &mut Outbox) {
        self.inbound.close(dead, |handed| {
            // Their state never came: it died with the owner, and so do they.
            out.dropped.extend(handed.packets.drain(..).map(|packet| (packet, DropReason::LostInFailure)));
            handed.marks.clear();
        });
    }

    fn handle_saved(&mut self, from: Peer, commit: u32, out: &mut Outbox) -> Result<(), DropReason> {
        if let Some(result) = self.parting.handle_saved(from, commit) {
            return result;
        }
        let link = self.links.find(from).ok_or(DropReason::Fenced)?;
        link.numbers.handle_saved(commit)?;
        while let Some(sent) = link.under_way.pop_front_if(|sent| reached(commit, sent.number)) {
            self.unsaved.note_saved(&sent);
        }
        if link.resync_mark.take_if(|mark| reached(commit, *mark)).is_some() {
            self.filling -= 1;
        }
        link.open_latch(&self.unsaved, out);
        self.finish_serving(from, commit);
        Ok(())
    }

    fn handle_refused(
        &mut self,
        flows: &mut Flows,
        from: Peer,
        commit: u32,
        reason: DropReason,
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        let is_pinned = self.is_pinned;
        let link = self.links.find(from).ok_or(DropReason::Fenced)?;
        link.numbers.handle_refused(commit)?;
        let sent = link.under_way.iter().find(|sent| sent.number == commit).copied();
        // What only inputs were said of since has no copy either that they could be added to.
        // And where packets leave at once a flow for which there is no room goes on as without a protection.
        let is_let_go = self.unsaved.is_counted() && reason == DropReason::FlowTableFull;
        let is_its = |latched: &Latched| {
            let is_of_flow = sent.is_some_and(|sent| (sent.slot, sent.generation) == (latched.slot, latched.generation));
            (is_pinned || is_let_go) && is_of_flow
        };
        let mut kept = VecDeque::with_capacity(link.latch.len());
        for latched in link.latch.drain(..) {
            if is_its(&latched) && is_let_go {
                out.released_unprotected += 1;
                out.release(latched.packet);
            } else if latched.commit == commit || is_its(&latched) {
                out.dropped.push((latched.packet, reason));
            } else {
                kept.push_back(latched);
            }
        }
        link.latch = kept;
        self.leaving.refuse(from, commit, reason, out);
        if self.has_snapshots() {
            self.handle_refused_snapshot(flows, from, sent, reason, out);
            return Ok(());
        }
        self.resync_again = true;
        let header = sent.map(|sent| flows.header_mut(sent.slot)).filter(|header| {
            let is_same = sent.is_some_and(|sent| sent.generation == header.generation);
            is_same && header.role == role::OWNER && (header.peer, header.peer_incarnation) == (from.node, from.incarnation)
        });
        if let Some(header) = header {
            // If the flow has changed since, what had changed was refused too, and comes here then; a change of that would not be taken either.
            header.flags |= flag::WHOLE;
            if reason == DropReason::ReplicaDiffers || sent.is_some_and(|sent| sent.is_question) {
                // There is no copy any more, and there is room for one.
                header.flags |= flag::UNPROTECTED;
                self.differed += u64::from(reason == DropReason::ReplicaDiffers);
                return Ok(());
            }
            if header.commit == commit || is_pinned {
                // The next one to be asked may have room.
                (header.peer, header.peer_incarnation, header.commit) = (0, 0, 0);
                header.flags |= flag::UNPROTECTED;
                if self.is_pinned && self.peers.get(self.next_peer) == Some(&from) {
                    self.next_peer = (self.next_peer + 1) % self.peers.len();
                }
            }
        }
        self.resync_not_before = self.now + REFUSED_PAUSE;
        Ok(())
    }
}

/// What it costs a packet to go by others.
#[derive(Default)]
struct Detours {
    list: Vec<(Peer, Detour)>,
    at: NodeIndex,
}

impl Detours {
    fn set(&mut self, detours: &[(Peer, Detour)]) {
        self.list.clear();
        self.list.extend_from_slice(detours);
        self.at.renew(detours.iter().map(|(peer, _)| peer.node));
    }

    fn of(&self, peer: Peer) -> Detour {
        let known = self.at.get(peer.node).map(|at| self.list[at]).filter(|(known, _)| *known == peer);
        known.map_or(Detour::None, |(_, detour)| detour)
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
    fn commit(&mut self, flows: &mut Flows, slot: Slot, packet: Packet, _nondeterministic: bool, out: &mut Outbox) {
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
        let is_sent = header.commit != 0 && header.flags & (flag::DIRTY | flag::UNPROTECTED | flag::WHOLE) == 0;
        let (commit, holder) = (header.commit, Peer { node: header.peer, incarnation: header.peer_incarnation });
        match self.links.find(holder).filter(|_| is_sent) {
            Some(link) if reached(link.numbers.saved, commit) => out.release(packet),
            Some(_) => self.pending.push((slot, packet)),
            None => self.commit(flows, slot, packet, false, out),
        }
    }

    fn ended(&mut self, flows: &mut Flows, slot: Slot, _out: &mut Outbox) {
        self.end_flow(flows, slot);
    }

    fn flush(&mut self, flows: &mut Flows, out: &mut Outbox) {
        self.now = self.now.max(out.now());
        self.follow_leaving(flows, out);
        self.blocked = !self.parting.tell(&mut self.links, out);
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
        self.parting.look(flows, |header| parting::is_saved(links, header));
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

    fn set_peers(&mut self, flows: &mut Flows, peers: &[Peer], leaving: &[Peer], _out: &mut Outbox) {
        let had_none = self.peers.is_empty();
        self.peers.clear();
        self.peers.extend_from_slice(peers);
        self.next_peer =
            if peers.is_empty() || self.is_pinned || self.has_snapshots() { 0 } else { self.next_peer % peers.len() };
        let (release, detours, parting) = (self.plan.release, &self.detours, &mut self.parting);
        let mut lost =
            self.links.renew(peers, |peer| Link::new(peer, parting.stays(peer), Choice::new(release, detours.of(peer))));
        self.count_filling();
        self.leaving.set(|peer| peers.contains(peer) || leaving.contains(peer), &lost);
        self.parting.set(leaving, &mut lost);
        if !lost.is_empty() || had_none {
            self.begin_look();
        }
        self.forget_absent(&lost.iter().map(|link| link.peer).collect::<Vec<_>>());
        // What waited for a runtime that is gone goes with its flow to the next replica, in order.
        for latched in lost.into_iter().flat_map(|link| link.latch) {
            let header = flows.header(latched.slot);
            if header.generation == latched.generation && header.role == role::OWNER {
                self.mark_dirty(flows, latched.slot);
            }
            self.pending.push((latched.slot, latched.packet));
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
            kind::DELTA | kind::CHECK | kind::PASSED if self.has_snapshots() => Err(DropReason::Malformed),
            kind::DELTA => self.handle_delta(flows, from, body),
            kind::CHECK => self.handle_check(flows, from, body),
            kind::SAVED => self.handle_saved(from, only_u32(body)?, out),
            kind::PASSED => {
                let commit = only_u32(body)?;
                self.leaving.handle_passed(from, commit);
                if self.parting.numbers(from).is_some() {
                    return Ok(());
                }
                let link = self.links.find(from).ok_or(DropReason::Fenced)?;
                if !reached(link.numbers.last, commit) {
                    return Err(DropReason::Malformed);
                }
                if link.passed == 0 || reached(commit, link.passed) {
                    link.passed = commit;
                    link.note_passed(&self.unsaved, out);
                }
                if link.marked.is_some_and(|(marked, _)| reached(commit, marked)) {
                    link.marked = None;
                }
                Ok(())
            }
            kind::END => {
                let (commit, epoch, key) = copies::split_end(body)?;
                self.take_commit(from, commit)?;
                if let Some(slot) = copies::end(flows, epoch, &key) {
                    self.parting.end_kept(slot);
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
        let is_dead = |node: u16, incarnation: u32| node == dead.node && reached(dead.incarnation, incarnation);
        for slot in 0..flows.reach() {
            let header = flows.header(slot);
            let is_copy = matches!(header.role, role::REPLICA | role::ARRIVING);
            if is_copy && is_dead(header.peer, header.peer_incarnation) {
                flows.set_role(slot, role::CLAIMING);
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
        flows.set_role(slot, role::OWNER);
        let has_snapshots = self.has_snapshots();
        let header = flows.header_mut(slot);
        self.parting.came_back(slot, header);
        let holder = Peer { node: header.peer, incarnation: header.peer_incarnation };
        match (has_snapshots, self.links.has(holder)) {
            // The runtime that gave the snapshot back has it still, and gets the next one with the new epoch.
            (true, true) => {}
            (true, false) => self.parting.replace(slot, header, holder),
            // It may have been owned here before: who held its copy then has it still.
            (false, true) => self.parting.came_from(slot, header, holder),
            (false, false) => {}
        }
        if !(has_snapshots && self.links.has(holder)) {
            (header.peer, header.peer_incarnation) = (0, 0);
        }
        header.commit = 0;
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
        if self.leaving.is_behind(slot, header.generation) {
            return false;
        }
        let now = self.now;
        let release = self.plan.release;
        let holder = Peer { node: header.peer, incarnation: header.peer_incarnation };
        let Some(link) = self.links.find(holder) else { return true };
        // A state that could not be sent has no packets behind it.
        if header.commit == 0 {
            return true;
        }
        match release {
            Release::Auto if !reached(link.numbers.saved, header.commit) || link.holds(slot) => return false,
            Release::Auto | Release::Replica => {}
            Release::AtOnce => return reached(link.numbers.saved, header.commit) && !link.holds(slot),
            _ => return reached(link.numbers.saved, header.commit),
        }
        if link.passed != 0 && reached(link.passed, header.commit) {
            return true;
        }
        if link.marked.is_none_or(|(_, at)| now.saturating_sub(at) > MARK_PATIENCE) {
            link.marked = Some((link.numbers.last, now));
            out.marks.push((link.peer, link.numbers.last));
        }
        false
    }

    fn handle_mark(&mut self, from: Peer, commit: u32) {
        let inbound = self.inbound.from(from);
        // More than one is under way only if an answer is late.
        if !inbound.closed && inbound.more.marks.len() < 16 {
            inbound.more.marks.push_back(commit);
        }
    }

    fn unclaimed(&mut self, flows: &mut Flows, slot: Slot) {
        self.end_flow(flows, slot);
    }

    fn needs_earlier(&self, slot: Slot) -> bool {
        self.parting.needs_earlier(slot)
    }

    fn departed(&mut self, flows: &mut Flows, slot: Slot, to: Peer, old_epoch: Epoch, _out: &mut Outbox) -> bool {
        let header = *flows.header(slot);
        let old = Peer { node: header.peer, incarnation: header.peer_incarnation };
        if self.links.has(to) {
            self.end_copies(slot, old, to, old_epoch, header.key);
        } else {
            // What is here would die with the target: copies elsewhere stay until the target has another one, and says so by ending this one.
            self.forget_copy(old);
            self.parting.keep(slot, to, old, old_epoch, header.key);
        }
        flows.set_role(slot, role::REPLICA);
        let header = flows.header_mut(slot);
        (header.peer, header.peer_incarnation, header.commit) = (to.node, to.incarnation, 0);
        header.flags &= !(flag::UNPROTECTED | flag::DIRTY);
        true
    }

    fn arrived(&mut self, flows: &mut Flows, slot: Slot, from: Peer) {
        let link = self.links.find(from);
        // It may have gone from here before, and back.
        let header = flows.header_mut(slot);
        self.parting.came_back(slot, header);
        header.commit = 0;
        if let Some(link) = link {
            // Where it was, it is the same: that is its replica.
            link.copies += 1;
            (header.peer, header.peer_incarnation) = (from.node, from.incarnation);
            header.flags &= !flag::UNPROTECTED;
        } else {
            (header.peer, header.peer_incarnation) = (0, 0);
            header.flags |= flag::UNPROTECTED;
            self.parting.came_from(slot, header, from);
            self.look_soon();
        }
    }

    fn is_busy(&self) -> bool {
        let may_resync = self.resync.is_some() || self.resync_again && self.now >= self.resync_not_before;
        let has_records = || self.parting.is_waiting() || self.has_restoring_to_do();
        !self.blocked && (may_resync && !self.peers.is_empty() || has_records()) || !self.pending.is_empty() || self.has_passed
    }

    fn safety(&self, flows: &Flows) -> Safety {
        let unprotected = if self.peers.is_empty() { flows.owned() as u64 } else { self.snapshots.homeless };
        let filling = self.resync.is_some() || self.resync_again || self.filling > 0 || self.is_late();
        let resynchronising = self.is_restoring() || filling && !self.peers.is_empty();
        Safety { unprotected, absent: 0, fetched: 0, resynchronising, differed: self.differed }
    }

    fn held(&self) -> usize {
        self.links.iter().map(|link| link.latch.len()).sum::<usize>()
            + self.leaving.held()
            + self.inbound.iter().map(|inbound| inbound.more.packets.len()).sum::<usize>()
    }

    fn abandon(&mut self, out: &mut Outbox) {
        let latched = self.links.iter_mut().flat_map(|link| link.latch.drain(..)).chain(self.leaving.drain());
        let latched = latched.map(|latched| latched.packet);
        out.dropped.extend(latched.map(|packet| (packet, DropReason::ShuttingDown)));
        let handed = self.inbound.iter_mut().flat_map(|inbound| inbound.more.packets.drain(..));
        out.dropped.extend(handed.map(|packet| (packet, DropReason::ShuttingDown)));
        out.dropped.extend(self.pending.drain(..).map(|(_, packet)| (packet, DropReason::ShuttingDown)));
    }
}
