//! `nfactor`: packets leave at once; every few packets a flow's state goes to another runtime as a snapshot.
//!
//! Theory of operation (NFActor; DESIGN, sections 1 and 5). Weak consistency: what a failure may undo is bounded, not excluded.
//! - A flow's first snapshot is sent after its first packet, then when its packets have doubled, and from the N-th on after every N: whatever
//!   happens, what is sent is at most N packets old. Snapshots are sent at the end of the batch, before its packets leave.
//! - Its holder is the runtime that has the fewest snapshots of this one. A holder without room refuses and another is asked; if none takes it,
//!   the flow is counted as unprotected and asked for again later.
//! - The owner fails: the holders keep what they have for its next incarnation, which [fetches](restore) it from all of them in parallel and
//!   asks the switch for the routes. If it does not come, the holders claim the routes themselves.
//! - The holder fails: its flows' snapshots are sent to others at once.
//! - A snapshot carries the flow's epoch and version: an older one never writes over a newer one.

mod restore;
#[cfg(test)]
mod tests;

use crate::copies::Demoted;
use crate::flows::{flag, role};
use crate::links::{Holder, Links};
use crate::numbers::{Inbound, Inbounds, Sent, key_of, only_u32, reached, split_block, split_refusal};
use crate::parting::{self, Parting};
use crate::{Flows, Outbox, Peer, Plan, Protection, Safety, Slot, copies, kind};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, FlowKey, Packet};
use restore::{Fetching, Keeping, Serving};
use std::collections::VecDeque;

/// Slots looked at, and snapshots sent, per flush while snapshots are placed anew: what fits between two bursts without being noticed.
const RESYNC_SCAN: u32 = 2048;
const RESYNC_SEND: usize = 64;
/// A holder that refused is not asked for room again before, ns: a full table does not empty at once.
const REFUSED_PAUSE: u64 = 100_000_000;
/// A snapshot that has been under way for longer, ns, is no snapshot yet: nobody calls its flow safe.
const LATE: u64 = 100_000_000;

/// A record under way, with the flow that it is about.
struct UnderWay {
    number: u32,
    slot: Slot,
    generation: u32,
    since: u64,
}

/// To a runtime that may hold snapshots of ours.
struct Link {
    peer: Peer,
    numbers: Sent,
    /// Until this record is saved, flows have no snapshot that had one before.
    mark: Option<u32>,
    under_way: VecDeque<UnderWay>,
    /// Of our flows, snapshots there.
    snapshots: u64,
    /// It refused: not before this time it is asked to take more.
    full_until: u64,
}

impl Link {
    fn new(peer: Peer, numbers: Sent) -> Link {
        Link { peer, numbers, mark: None, under_way: VecDeque::new(), snapshots: 0, full_until: 0 }
    }

    fn note_sent(&mut self, number: u32, flows: &Flows, slot: Slot, now: u64) {
        self.numbers.last = number;
        self.under_way.push_back(UnderWay { number, slot, generation: flows.header(slot).generation, since: now });
    }
}

impl Holder for Link {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn numbers(&mut self) -> &mut Sent {
        &mut self.numbers
    }
}

/// See the module.
pub(crate) struct NfActor {
    plan: Plan,
    links: Links<Link>,
    next_link: usize,
    inbound: Inbounds<()>,
    dirty: Vec<Slot>,
    /// The batch's packets: they leave behind the snapshots.
    pending: Vec<Packet>,
    parting: Parting,
    resync: Option<Slot>,
    resync_again: bool,
    /// No further look for flows without a snapshot before this time, ns.
    resync_not_before: u64,
    /// Flows that nobody took: as the last look found, and so far in the present one.
    homeless: u64,
    homeless_so_far: u64,
    keeping: Vec<Keeping>,
    serving: Vec<Serving>,
    fetching: Vec<Fetching>,
    /// A channel is full: there is nothing to be done until something comes in.
    blocked: bool,
    /// The latest time known, ns.
    now: u64,
}

impl NfActor {
    /// A protection without a peer yet.
    pub(crate) fn new(plan: Plan) -> NfActor {
        NfActor {
            plan,
            links: Links::default(),
            next_link: 0,
            inbound: Inbounds::default(),
            dirty: Vec::with_capacity(256),
            pending: Vec::with_capacity(256),
            parting: Parting::default(),
            resync: None,
            resync_again: false,
            resync_not_before: 0,
            homeless: 0,
            homeless_so_far: 0,
            keeping: Vec::new(),
            serving: Vec::new(),
            fetching: Vec::new(),
            blocked: false,
            now: 0,
        }
    }

    fn link(&mut self, peer: Peer) -> Option<&mut Link> {
        self.links.find(peer)
    }

    fn take_number(&mut self, from: Peer, number: u32) -> Result<&mut Inbound<()>, DropReason> {
        self.inbound.take(from, number, self.links.life(from.node))
    }

    /// The state after this many packets goes out.
    #[inline]
    fn is_due(&self, version: u32) -> bool {
        if is_planted(Fault::IgnoresInterval) {
            return version == 1;
        }
        let every = self.plan.snapshot_every;
        if version < every { version.is_power_of_two() } else { version.is_multiple_of(every) }
    }

    /// A packet has changed the flow's state.
    #[inline]
    fn count(&mut self, flows: &mut Flows, slot: Slot) {
        let header = flows.header_mut(slot);
        header.version = header.version.wrapping_add(1);
        if self.is_due(header.version) && header.flags & flag::DIRTY == 0 {
            header.flags |= flag::DIRTY;
            self.dirty.push(slot);
        }
    }

    /// The runtime with the fewest snapshots of ours among those that have not just refused one.
    fn choose(&mut self) -> Option<usize> {
        let count = self.links.len();
        let in_turn = (0..count).map(|at| (self.next_link + at) % count);
        let at = in_turn.filter(|&at| self.links[at].full_until <= self.now).min_by_key(|&at| self.links[at].snapshots)?;
        self.next_link = (at + 1) % count;
        Some(at)
    }

    /// Sends a snapshot to the flow's holder, choosing one if it has none. False if its channel is full.
    fn send_snapshot(&mut self, flows: &mut Flows, slot: Slot, out: &mut Outbox) -> bool {
        let header = *flows.header(slot);
        let holder = Peer { node: header.peer, incarnation: header.peer_incarnation };
        let known = self.links.position(holder);
        if known.is_none() {
            self.parting.replace(slot, &header, holder);
        }
        let Some(at) = known.or_else(|| self.choose()) else {
            let header = flows.header_mut(slot);
            (header.peer, header.peer_incarnation) = (0, 0);
            header.flags |= flag::UNPROTECTED;
            self.resync_again = true;
            return true;
        };
        let link = &mut self.links[at];
        let number = link.numbers.next();
        if !out.send(link.peer, kind::STATE, &[&number.to_be_bytes(), &flows.layout().to_be_bytes(), flows.block(slot)]) {
            flows.header_mut(slot).flags |= flag::UNPROTECTED;
            self.resync_again = true;
            self.blocked = true;
            return false;
        }
        link.note_sent(number, flows, slot, self.now);
        if known.is_none() {
            link.snapshots += 1;
        }
        if header.flags & flag::UNPROTECTED != 0 || known.is_none() && header.peer != 0 {
            link.mark = Some(number);
        }
        let header = flows.header_mut(slot);
        (header.peer, header.peer_incarnation, header.commit) = (link.peer.node, link.peer.incarnation, number);
        header.flags &= !flag::UNPROTECTED;
        true
    }

    /// Sends snapshots of flows that have none, a few at a time.
    fn resynchronise(&mut self, flows: &mut Flows, out: &mut Outbox) {
        let Some(from) = self.resync else {
            if self.resync_again && !self.links.is_empty() && self.now >= self.resync_not_before {
                self.resync_again = false;
                self.homeless_so_far = 0;
                self.resync = Some(0);
            }
            return;
        };
        let end = (from + RESYNC_SCAN).min(flows.reach());
        let mut sent = 0;
        let mut at = from;
        while at < end && sent < RESYNC_SEND {
            let header = flows.header(at);
            if header.role == role::OWNER {
                let holder = Peer { node: header.peer, incarnation: header.peer_incarnation };
                let has_holder = self.links.has(holder);
                if !has_holder || header.flags & flag::UNPROTECTED != 0 {
                    if !self.send_snapshot(flows, at, out) {
                        break;
                    }
                    sent += 1;
                    self.homeless_so_far += u64::from(flows.header(at).peer == 0);
                }
            }
            at += 1;
        }
        self.resync = if at >= flows.reach() { None } else { Some(at) };
        if self.resync.is_none() {
            self.homeless = core::mem::take(&mut self.homeless_so_far);
            if self.homeless > 0 {
                self.resync_not_before = self.now + REFUSED_PAUSE;
                self.resync_again = true;
            }
        }
    }

    fn handle_state(&mut self, flows: &mut Flows, from: Peer, body: &[u8], out: &mut Outbox) -> Result<(), DropReason> {
        let (number, block) = split_block(flows, body)?;
        // First the number: what came late or twice must not bring back a flow that has ended since.
        self.take_number(from, number)?;
        let mut demoted = None;
        let saved = copies::save(flows, from, block, &mut demoted, out);
        if let Some(Demoted { slot, key, holder, epoch }) = demoted {
            self.leave_snapshots(slot, holder, from, epoch, key);
        }
        saved.inspect_err(|reason| self.inbound.from(from).refuse(number, *reason))
    }

    /// The snapshots of a flow that is not owned here any more may go: its holder's, and those of holders that are leaving.
    fn end_snapshots(&mut self, slot: Slot, holder: Peer, epoch: u32, key: FlowKey) {
        self.parting.gone(slot);
        forget_holder(&mut self.links, holder);
        if holder.node != 0 {
            self.parting.end(holder, epoch, key);
        }
    }

    /// The flow has gone to `to`: what that one has is no snapshot any more.
    fn leave_snapshots(&mut self, slot: Slot, holder: Peer, to: Peer, epoch: u32, key: FlowKey) {
        if holder == to {
            forget_holder(&mut self.links, holder);
            self.parting.gone(slot);
        } else {
            self.end_snapshots(slot, holder, epoch, key);
        }
    }

    fn handle_end(&mut self, flows: &mut Flows, from: Peer, body: &[u8]) -> Result<(), DropReason> {
        let (number, epoch, key) = copies::split_end(body)?;
        self.take_number(from, number)?;
        if let Some(slot) = copies::end(flows, epoch, &key) {
            self.parting.end_kept(slot);
        }
        Ok(())
    }

    fn handle_saved(&mut self, from: Peer, number: u32) -> Result<(), DropReason> {
        if let Some(result) = self.parting.handle_saved(from, number) {
            return result;
        }
        let link = self.links.find(from).ok_or(DropReason::Fenced)?;
        link.numbers.handle_saved(number)?;
        while link.under_way.front().is_some_and(|sent| reached(number, sent.number)) {
            link.under_way.pop_front();
        }
        link.mark = link.mark.filter(|mark| !reached(number, *mark));
        self.finish_serving(from, number);
        Ok(())
    }

    fn handle_refused(
        &mut self,
        flows: &mut Flows,
        from: Peer,
        number: u32,
        reason: DropReason,
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        let now = self.now;
        let link = self.links.find(from).ok_or(DropReason::Fenced)?;
        link.numbers.handle_refused(number)?;
        let Some(sent) = link.under_way.iter().find(|sent| sent.number == number) else { return Ok(()) };
        let slot = sent.slot;
        let header = flows.header(slot);
        if header.generation != sent.generation || (header.peer, header.peer_incarnation) != (from.node, from.incarnation) {
            return Ok(());
        }
        match header.role {
            // If a newer snapshot is under way, that was refused too, and its refusal comes.
            role::OWNER if header.commit == number => {
                let header = flows.header_mut(slot);
                (header.peer, header.peer_incarnation, header.commit) = (0, 0, 0);
                header.flags |= flag::UNPROTECTED;
                link.snapshots = link.snapshots.saturating_sub(1);
                link.full_until = now + REFUSED_PAUSE;
                // Another one is asked at once.
                self.resync_again = true;
                self.resync_not_before = now;
            }
            // It was given back, and nothing has come for it since.
            role::REPLICA if header.commit == number => restore::take_back(flows, slot, from.node, reason, out),
            _ => {}
        }
        Ok(())
    }
}

/// One snapshot fewer is with this one. False if it is not known.
fn forget_holder(links: &mut Links<Link>, holder: Peer) -> bool {
    links.find(holder).map(|link| link.snapshots = link.snapshots.saturating_sub(1)).is_some()
}

impl Protection for NfActor {
    fn plan(&self) -> Plan {
        self.plan
    }

    #[inline]
    fn commit(&mut self, flows: &mut Flows, slot: Slot, packet: Packet, _nondeterministic: bool, out: &mut Outbox) {
        self.count(flows, slot);
        self.follow(flows, slot, packet, out);
    }

    #[inline]
    fn follow(&mut self, flows: &mut Flows, slot: Slot, packet: Packet, out: &mut Outbox) {
        let is_homeless = self.homeless > 0 && flows.header(slot).flags & flag::UNPROTECTED != 0 && flows.header(slot).peer == 0;
        out.released_unprotected += u64::from(self.links.is_empty() || is_homeless);
        self.pending.push(packet);
    }

    #[inline]
    fn changed(&mut self, flows: &mut Flows, slot: Slot, _stamp: u64, _nondeterministic: bool) {
        self.count(flows, slot);
    }

    fn ended(&mut self, flows: &mut Flows, slot: Slot, _out: &mut Outbox) {
        self.parting.end_kept(slot);
        let header = flows.header(slot);
        self.end_snapshots(slot, Peer { node: header.peer, incarnation: header.peer_incarnation }, header.epoch, header.key);
    }

    fn unclaimed(&mut self, flows: &mut Flows, slot: Slot) {
        self.parting.end_kept(slot);
        let header = flows.header(slot);
        self.end_snapshots(slot, Peer { node: header.peer, incarnation: header.peer_incarnation }, header.epoch, header.key);
    }

    fn needs_earlier(&self, slot: Slot) -> bool {
        self.parting.needs_earlier(slot)
    }

    fn departed(&mut self, flows: &mut Flows, slot: Slot, to: Peer, old_epoch: u32, _out: &mut Outbox) -> bool {
        let header = *flows.header(slot);
        let holder = Peer { node: header.peer, incarnation: header.peer_incarnation };
        if self.links.has(to) {
            self.leave_snapshots(slot, holder, to, old_epoch, header.key);
        } else {
            // What is here would die with the target: snapshots elsewhere stay until the target has another one, and says so by ending this one.
            forget_holder(&mut self.links, holder);
            self.parting.keep(slot, to, holder, old_epoch, header.key);
        }
        // What is left here is the flow as it went: that is its first snapshot.
        flows.set_role(slot, role::REPLICA);
        let header = flows.header_mut(slot);
        (header.peer, header.peer_incarnation, header.commit) = (to.node, to.incarnation, 0);
        header.flags &= !(flag::UNPROTECTED | flag::DIRTY);
        true
    }

    fn arrived(&mut self, flows: &mut Flows, slot: Slot, from: Peer) {
        let link = self.links.find(from);
        let header = flows.header_mut(slot);
        self.parting.came_back(slot, header);
        header.commit = 0;
        if let Some(link) = link {
            link.snapshots += 1;
            (header.peer, header.peer_incarnation) = (from.node, from.incarnation);
            header.flags &= !flag::UNPROTECTED;
        } else {
            (header.peer, header.peer_incarnation) = (0, 0);
            header.flags |= flag::UNPROTECTED;
            self.parting.came_from(slot, header, from);
            self.resync_again = true;
            self.resync_not_before = self.now;
        }
    }

    fn flush(&mut self, flows: &mut Flows, out: &mut Outbox) {
        self.now = self.now.max(out.now());
        // Before the snapshots: a key may live again.
        self.blocked = !self.parting.tell(&mut self.links, out);
        let mut dirty = core::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            let header = flows.header_mut(slot);
            header.flags &= !flag::DIRTY;
            if header.role == role::OWNER {
                self.send_snapshot(flows, slot, out);
            }
        }
        self.dirty = dirty;
        self.pending.drain(..).for_each(|packet| out.release(packet));
        self.fetch(out);
        self.serve(flows, out);
        self.give_up_waiting(flows, out);
        self.give_up_fetching();
        if self.resync.is_some() || self.resync_again {
            self.resynchronise(flows, out);
        }
        let links = &mut self.links;
        self.parting.look(flows, |header| parting::is_saved(links, header));
        self.inbound.flush(|inbound| {
            if inbound.tell_refusals(out) {
                inbound.tell_saved(out);
            }
            inbound.has_untold()
        });
    }

    fn set_peers(&mut self, _flows: &mut Flows, peers: &[Peer], leaving: &[Peer], _out: &mut Outbox) {
        let had_none = self.links.is_empty();
        let parting = &mut self.parting;
        let mut old = self.links.renew(peers, |peer| Link::new(peer, parting.stays(peer)));
        parting.set(leaving, &mut old);
        self.next_link = 0;
        if !old.is_empty() || had_none {
            self.resync = Some(0);
            self.resync_again = false;
            self.homeless_so_far = 0;
        }
        self.forget_absent(&old.iter().map(|link| link.peer).collect::<Vec<_>>());
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
            kind::END => self.handle_end(flows, from, body),
            kind::SAVED => self.handle_saved(from, only_u32(body)?),
            kind::REFUSED => {
                let (number, reason) = split_refusal(body)?;
                self.handle_refused(flows, from, number, reason, out)
            }
            kind::FETCH => self.handle_fetch(flows, from, body),
            kind::RESTORED => self.handle_restored(flows, from, body, out),
            kind::FETCHED => self.handle_fetched(from, body),
            _ => Err(DropReason::Malformed),
        }
    }

    fn flow_of(&self, flows: &Flows, record: u8, body: &[u8]) -> Option<u64> {
        let key = match record {
            kind::STATE => key_of(body),
            kind::END => copies::split_end(body).ok().map(|(_, _, key)| key),
            _ => None,
        };
        key.map(|key| flows.hash(&key))
    }

    fn handle_handed(&mut self, _flows: &mut Flows, _from: Peer, packet: Packet, out: &mut Outbox) {
        out.dropped.push((packet, DropReason::Malformed));
    }

    fn recover(&mut self, flows: &mut Flows, dead: Peer, _out: &mut Outbox) {
        self.keep(flows, dead);
        self.forget_dead(dead);
    }

    fn restore(&mut self, _flows: &mut Flows, dead: Peer, _out: &mut Outbox) {
        self.begin_fetching(dead);
    }

    fn is_recovering(&self, dead: Peer) -> bool {
        !is_planted(Fault::ReportsEarly) && self.is_waiting_for(dead)
    }

    fn claimed(&mut self, flows: &mut Flows, slot: Slot) {
        flows.set_role(slot, role::OWNER);
        let header = flows.header_mut(slot);
        let holder = Peer { node: header.peer, incarnation: header.peer_incarnation };
        self.parting.came_back(slot, header);
        // Who gave the snapshot back has it still, and gets the next one: it carries the new epoch.
        if !self.links.has(holder) {
            self.parting.replace(slot, header, holder);
            (header.peer, header.peer_incarnation) = (0, 0);
        }
        header.commit = 0;
        header.flags |= flag::UNPROTECTED;
        self.resync_again = true;
        self.resync_not_before = self.now;
    }

    fn is_busy(&self) -> bool {
        let may_resync = self.resync.is_some() || self.resync_again && self.now >= self.resync_not_before;
        !self.pending.is_empty()
            || !self.blocked && (may_resync && !self.links.is_empty() || self.parting.is_waiting() || self.has_restoring_to_do())
    }

    fn safety(&self, flows: &Flows) -> Safety {
        let unprotected = if self.links.is_empty() { flows.owned() as u64 } else { self.homeless };
        let is_late = |link: &Link| link.under_way.front().is_some_and(|sent| self.now.saturating_sub(sent.since) > LATE);
        let is_filling = |link: &Link| link.mark.is_some() || is_late(link);
        let filling = self.resync.is_some() || self.resync_again || self.links.iter().any(is_filling);
        Safety {
            unprotected,
            absent: 0,
            fetched: 0,
            resynchronising: self.is_restoring() || filling && !self.links.is_empty(),
            differed: 0,
        }
    }

    fn abandon(&mut self, out: &mut Outbox) {
        out.dropped.extend(self.pending.drain(..).map(|packet| (packet, DropReason::ShuttingDown)));
    }
}
