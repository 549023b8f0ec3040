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

use crate::flows::{ActorHeader, flag, role};
use crate::{Flows, Outbox, Peer, Protection, Safety, Slot, kind};
use holdfast_wire::{DropReason, FlowKey, Packet};
use restore::{Fetching, Keeping, Serving};
use std::collections::VecDeque;
use zerocopy::{FromBytes, IntoBytes};

/// Packets between two snapshots of a flow, unless the operator says otherwise.
pub const SNAPSHOT_EVERY: u32 = 10;

/// Slots looked at, and snapshots sent, per flush while snapshots are placed anew: what fits between two bursts without being noticed.
const RESYNC_SCAN: u32 = 2048;
const RESYNC_SEND: usize = 64;
/// A holder that refused is not asked for room again before, ns: a full table does not empty at once.
const REFUSED_PAUSE: u64 = 100_000_000;
/// A snapshot that has been under way for longer, ns, is no snapshot yet: nobody calls its flow safe.
const LATE: u64 = 100_000_000;
/// Ends that wait for room in a channel. Beyond that a holder keeps the snapshot until its owner fails; the switch then refuses it.
const ENDS_LIMIT: usize = 65_536;

/// `a` is at or after `b` in a sequence that wraps.
#[inline]
fn reached(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 >= 0
}

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
    sent: u32,
    saved: u32,
    /// The last record that was refused, until a later one has been saved.
    refused: Option<u32>,
    /// Until this record is saved, flows have no snapshot that had one before.
    mark: Option<u32>,
    under_way: VecDeque<UnderWay>,
    /// Of our flows, snapshots there.
    snapshots: u64,
    /// It refused: not before this time it is asked to take more.
    full_until: u64,
}

impl Link {
    fn new(peer: Peer) -> Link {
        let under_way = VecDeque::with_capacity(256);
        Link { peer, sent: 0, saved: 0, refused: None, mark: None, under_way, snapshots: 0, full_until: 0 }
    }

    /// The number of the next record. 0 stands for "none", so the count leaves it out when it wraps.
    fn next(&self) -> u32 {
        self.sent.checked_add(1).unwrap_or(1)
    }

    fn note_sent(&mut self, number: u32, flows: &Flows, slot: Slot, now: u64) {
        self.sent = number;
        self.under_way.push_back(UnderWay { number, slot, generation: flows.header(slot).generation, since: now });
    }
}

/// From a runtime of whose flows snapshots are here.
struct Inbound {
    peer: Peer,
    saved: u32,
    acknowledge: bool,
    closed: bool,
    /// Refusals that the owner does not know of yet. No longer than what its channel has under way.
    untold: VecDeque<(u32, DropReason)>,
}

impl Inbound {
    /// Tells the owner what was refused, and then, because that covers everything before it, what was saved.
    fn answer(&mut self, out: &mut Outbox) {
        while let Some(&(number, reason)) = self.untold.front() {
            if !out.send(self.peer, kind::REFUSED, &[&number.to_be_bytes(), &[reason as u8]]) {
                return;
            }
            self.untold.pop_front();
        }
        if self.acknowledge {
            self.acknowledge = !out.send(self.peer, kind::SAVED, &[&self.saved.to_be_bytes()]);
        }
    }
}

/// A flow ended whose snapshot is to go.
struct Ended {
    holder: Peer,
    epoch: u32,
    key: FlowKey,
}

/// Faults that a checker must find. Nothing but tests of the checkers sets them.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Planted {
    /// After the first snapshot there is none.
    pub ignore_interval: bool,
    /// Late snapshots of an older owner are accepted.
    pub no_epoch_check: bool,
    /// The account of a recovery is closed before its snapshots have been fetched.
    pub report_early: bool,
}

/// See the module.
pub struct NfActor {
    every: u32,
    links: Vec<Link>,
    next_link: usize,
    inbound: Vec<Inbound>,
    dirty: Vec<Slot>,
    /// The batch's packets: they leave behind the snapshots.
    pending: Vec<Packet>,
    ends: VecDeque<Ended>,
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
    planted: Planted,
}

impl NfActor {
    /// A protection without a peer yet, with a snapshot after every `every` packets of a flow.
    pub fn new(every: u32) -> NfActor {
        NfActor {
            every: every.max(1),
            links: Vec::new(),
            next_link: 0,
            inbound: Vec::new(),
            dirty: Vec::with_capacity(256),
            pending: Vec::with_capacity(256),
            ends: VecDeque::new(),
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
            planted: Planted::default(),
        }
    }

    /// With faults, for tests of the checkers.
    #[doc(hidden)]
    pub fn plant(mut self, planted: Planted) -> NfActor {
        self.planted = planted;
        self
    }

    fn link(&mut self, peer: Peer) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.peer == peer)
    }

    fn inbound_from(&mut self, peer: Peer) -> &mut Inbound {
        let at = match self.inbound.iter().position(|inbound| inbound.peer == peer) {
            Some(at) => at,
            None => {
                // Of a node's lives the present one and the last are remembered: whatever is older is known to be.
                self.inbound.retain(|inbound| !(inbound.closed && inbound.peer.node == peer.node));
                self.inbound.push(Inbound { peer, saved: 0, acknowledge: false, closed: false, untold: VecDeque::new() });
                self.inbound.len() - 1
            }
        };
        &mut self.inbound[at]
    }

    /// Takes the number of a record: the living count upwards, and the dead have nothing to say.
    fn take_number(&mut self, from: Peer, number: u32) -> Result<(), DropReason> {
        let is_later = |peer: &Peer| {
            peer.node == from.node && peer.incarnation != from.incarnation && reached(peer.incarnation, from.incarnation)
        };
        let is_known = self.inbound.iter().any(|inbound| inbound.peer == from);
        let others = self.inbound.iter().map(|inbound| &inbound.peer).chain(self.links.iter().map(|link| &link.peer));
        if !is_known && others.into_iter().any(is_later) {
            return Err(DropReason::Fenced);
        }
        let inbound = self.inbound_from(from);
        if inbound.closed {
            return Err(DropReason::Fenced);
        }
        if number == inbound.saved || !reached(number, inbound.saved) {
            return Err(DropReason::StaleDuplicate);
        }
        inbound.saved = number;
        inbound.acknowledge = true;
        Ok(())
    }

    /// The state after this many packets goes out.
    #[inline]
    fn is_due(&self, version: u32) -> bool {
        if self.planted.ignore_interval {
            return version == 1;
        }
        if version < self.every { version.is_power_of_two() } else { version.is_multiple_of(self.every) }
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
        let known = self.links.iter().position(|link| link.peer == holder);
        let Some(at) = known.or_else(|| self.choose()) else {
            let header = flows.header_mut(slot);
            (header.peer, header.peer_incarnation) = (0, 0);
            header.flags |= flag::UNPROTECTED;
            self.resync_again = true;
            return true;
        };
        let link = &mut self.links[at];
        let number = link.next();
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
        let end = (from + RESYNC_SCAN).min(flows.capacity() as u32);
        let mut sent = 0;
        let mut at = from;
        while at < end && sent < RESYNC_SEND {
            let header = flows.header(at);
            if header.role == role::OWNER {
                let holder = Peer { node: header.peer, incarnation: header.peer_incarnation };
                let has_holder = self.links.iter().any(|link| link.peer == holder);
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
        self.resync = if at >= flows.capacity() as u32 { None } else { Some(at) };
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
        if let Err(reason) = self.save(flows, from, block, out) {
            self.inbound_from(from).untold.push_back((number, reason));
            return Err(reason);
        }
        Ok(())
    }

    fn save(&mut self, flows: &mut Flows, from: Peer, block: &[u8], out: &mut Outbox) -> Result<(), DropReason> {
        let (theirs, _) = ActorHeader::read_from_prefix(block).map_err(|_| DropReason::Malformed)?;
        let hash = flows.hash(&theirs.key);
        let slot = match flows.find(&theirs.key, hash) {
            None => flows.insert(theirs.key, hash, role::REPLICA).map_err(|_| DropReason::FlowTableFull)?,
            Some(found) if found.is_reply => return Err(DropReason::FlowTableFull),
            Some(found) => {
                let ours = *flows.header(found.slot);
                let is_arriving = ours.role == role::ARRIVING;
                let is_ours = matches!(ours.role, role::OWNER | role::OPENING);
                let acceptable = is_newer(&theirs, &ours) && !(is_ours && theirs.epoch == ours.epoch);
                if !acceptable && !self.planted.no_epoch_check {
                    return Err(DropReason::StaleEpoch);
                }
                if is_ours {
                    let holder = Peer { node: ours.peer, incarnation: ours.peer_incarnation };
                    self.forget_holder(holder);
                    out.demoted.push(found.slot);
                }
                if ours.role != role::REPLICA && !is_arriving {
                    // Also while its route is being asked for: who sends newer state has it.
                    flows.set_role(found.slot, role::REPLICA);
                }
                found.slot
            }
        };
        if flows.overwrite(slot, block).is_err() {
            // What is refused must not be found here later, older than what its owner has snapshotted elsewhere.
            match out.demoted.contains(&slot) {
                true => flows.header_mut(slot).peer = 0,
                false => flows.remove(slot),
            }
            return Err(DropReason::FlowTableFull);
        }
        let header = flows.header_mut(slot);
        (header.peer, header.peer_incarnation, header.commit) = (from.node, from.incarnation, 0);
        Ok(())
    }

    /// The holder of this flow's snapshot may forget it.
    fn end_snapshot(&mut self, holder: Peer, epoch: u32, key: FlowKey) -> bool {
        let is_there = self.forget_holder(holder);
        if is_there && self.ends.len() < ENDS_LIMIT {
            self.ends.push_back(Ended { holder, epoch, key });
        }
        is_there
    }

    fn forget_holder(&mut self, holder: Peer) -> bool {
        match self.link(holder) {
            Some(link) => {
                link.snapshots = link.snapshots.saturating_sub(1);
                true
            }
            None => false,
        }
    }

    fn handle_end(&mut self, flows: &mut Flows, from: Peer, body: &[u8]) -> Result<(), DropReason> {
        let (number, rest) = split_u32(body)?;
        let (epoch, rest) = split_u32(rest)?;
        let key = FlowKey::read_from_bytes(rest).map_err(|_| DropReason::Malformed)?;
        self.take_number(from, number)?;
        if let Some(found) = flows.find(&key, flows.hash(&key)) {
            let header = flows.header(found.slot);
            if header.role == role::REPLICA && header.epoch == epoch && !found.is_reply {
                flows.remove(found.slot);
            }
        }
        Ok(())
    }

    fn handle_saved(&mut self, from: Peer, number: u32) -> Result<(), DropReason> {
        let link = self.links.iter_mut().find(|link| link.peer == from).ok_or(DropReason::Fenced)?;
        if number == link.saved || !reached(number, link.saved) {
            return Err(DropReason::StaleDuplicate);
        }
        if !reached(link.sent, number) {
            return Err(DropReason::Malformed);
        }
        link.saved = number;
        while link.under_way.front().is_some_and(|sent| reached(number, sent.number)) {
            link.under_way.pop_front();
        }
        link.mark = link.mark.filter(|mark| !reached(number, *mark));
        link.refused = link.refused.filter(|refused| !reached(number, *refused));
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
        let link = self.links.iter_mut().find(|link| link.peer == from).ok_or(DropReason::Fenced)?;
        // A refusal comes before the word that everything up to it has been seen to.
        let is_late = number == link.saved || !reached(number, link.saved);
        if is_late || link.refused.is_some_and(|refused| reached(refused, number)) {
            return Err(DropReason::StaleDuplicate);
        }
        if !reached(link.sent, number) {
            return Err(DropReason::Malformed);
        }
        link.refused = Some(number);
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

/// Epoch, then version. Equal is as good.
fn is_newer(theirs: &ActorHeader, ours: &ActorHeader) -> bool {
    match theirs.epoch == ours.epoch {
        true => reached(theirs.version, ours.version),
        false => reached(theirs.epoch, ours.epoch),
    }
}

fn split_u32(body: &[u8]) -> Result<(u32, &[u8]), DropReason> {
    let (number, rest) = body.split_first_chunk::<4>().ok_or(DropReason::Malformed)?;
    Ok((u32::from_be_bytes(*number), rest))
}

/// The number and the block of a record that carries a flow of this layout.
fn split_block<'a>(flows: &Flows, body: &'a [u8]) -> Result<(u32, &'a [u8]), DropReason> {
    let (number, rest) = split_u32(body)?;
    let (layout, block) = rest.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
    if u64::from_be_bytes(*layout) != flows.layout() || block.len() != flows.block_len() {
        return Err(DropReason::Malformed);
    }
    Ok((number, block))
}

impl Protection for NfActor {
    fn name(&self) -> &'static str {
        "nfactor"
    }

    #[inline]
    fn commit(&mut self, flows: &mut Flows, slot: Slot, packet: Packet, _nondeterministic: bool, out: &mut Outbox) {
        let is_homeless = self.homeless > 0 && flows.header(slot).flags & flag::UNPROTECTED != 0 && flows.header(slot).peer == 0;
        out.released_unprotected += u64::from(self.links.is_empty() || is_homeless);
        self.count(flows, slot);
        self.pending.push(packet);
    }

    #[inline]
    fn changed(&mut self, flows: &mut Flows, slot: Slot) {
        self.count(flows, slot);
    }

    fn ended(&mut self, flows: &mut Flows, slot: Slot, _out: &mut Outbox) {
        let header = flows.header(slot);
        self.end_snapshot(Peer { node: header.peer, incarnation: header.peer_incarnation }, header.epoch, header.key);
    }

    fn unclaimed(&mut self, flows: &mut Flows, slot: Slot) {
        let header = flows.header(slot);
        self.end_snapshot(Peer { node: header.peer, incarnation: header.peer_incarnation }, header.epoch, header.key);
    }

    fn departed(&mut self, flows: &mut Flows, slot: Slot, to: Peer, old_epoch: u32, _out: &mut Outbox) -> bool {
        let header = *flows.header(slot);
        let holder = Peer { node: header.peer, incarnation: header.peer_incarnation };
        match holder == to {
            true => self.forget_holder(holder),
            false => self.end_snapshot(holder, old_epoch, header.key),
        };
        // What is left here is the flow as it went: that is its first snapshot.
        flows.set_role(slot, role::REPLICA);
        let header = flows.header_mut(slot);
        (header.peer, header.peer_incarnation, header.commit) = (to.node, to.incarnation, 0);
        header.flags &= !(flag::UNPROTECTED | flag::DIRTY);
        true
    }

    fn arrived(&mut self, flows: &mut Flows, slot: Slot, from: Peer) {
        let link = self.links.iter_mut().find(|link| link.peer == from);
        let header = flows.header_mut(slot);
        header.commit = 0;
        if let Some(link) = link {
            link.snapshots += 1;
            (header.peer, header.peer_incarnation) = (from.node, from.incarnation);
            header.flags &= !flag::UNPROTECTED;
        } else {
            (header.peer, header.peer_incarnation) = (0, 0);
            header.flags |= flag::UNPROTECTED;
            self.resync_again = true;
            self.resync_not_before = self.now;
        }
    }

    fn flush(&mut self, flows: &mut Flows, out: &mut Outbox) {
        self.now = self.now.max(out.now());
        self.blocked = false;
        // Before the snapshots: a key may live again.
        while let Some(Ended { holder, epoch, key }) = self.ends.front() {
            if let Some(link) = self.links.iter_mut().find(|link| link.peer == *holder) {
                let number = link.next();
                if !out.send(*holder, kind::END, &[&number.to_be_bytes(), &epoch.to_be_bytes(), key.as_bytes()]) {
                    self.blocked = true;
                    break;
                }
                link.sent = number;
            }
            self.ends.pop_front();
        }
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
        for inbound in self.inbound.iter_mut().filter(|inbound| !inbound.closed) {
            inbound.answer(out);
        }
    }

    fn set_peers(&mut self, _flows: &mut Flows, peers: &[Peer], _out: &mut Outbox) {
        let had_none = self.links.is_empty();
        let mut old = core::mem::take(&mut self.links);
        let take = |peer: &Peer| match old.iter().position(|link| link.peer == *peer) {
            Some(at) => old.swap_remove(at),
            None => Link::new(*peer),
        };
        self.links = peers.iter().map(take).collect();
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
            kind::SAVED => {
                let number = <[u8; 4]>::try_from(body).map_err(|_| DropReason::Malformed)?;
                self.handle_saved(from, u32::from_be_bytes(number))
            }
            kind::REFUSED => {
                let (number, rest) = split_u32(body)?;
                let &[reason] = rest else { return Err(DropReason::Malformed) };
                let reason = DropReason::from_index(reason as usize).ok_or(DropReason::Malformed)?;
                self.handle_refused(flows, from, number, reason, out)
            }
            kind::FETCH => self.handle_fetch(flows, from, body),
            kind::RESTORED => self.handle_restored(flows, from, body, out),
            kind::FETCHED => self.handle_fetched(from, body),
            _ => Err(DropReason::Malformed),
        }
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
        !self.planted.report_early && self.is_waiting_for(dead)
    }

    fn claimed(&mut self, flows: &mut Flows, slot: Slot) {
        flows.set_role(slot, role::OWNER);
        let header = flows.header_mut(slot);
        let holder = Peer { node: header.peer, incarnation: header.peer_incarnation };
        // Who gave the snapshot back has it still, and gets the next one: it carries the new epoch.
        if !self.links.iter().any(|link| link.peer == holder) {
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
            || !self.blocked && (may_resync && !self.links.is_empty() || !self.ends.is_empty() || self.has_restoring_to_do())
    }

    fn safety(&self, flows: &Flows) -> Safety {
        let unprotected = if self.links.is_empty() { flows.owned() as u64 } else { self.homeless };
        let is_late = |link: &Link| link.under_way.front().is_some_and(|sent| self.now.saturating_sub(sent.since) > LATE);
        let is_filling = |link: &Link| link.mark.is_some() || is_late(link);
        let filling = self.resync.is_some() || self.resync_again || self.links.iter().any(is_filling);
        Safety {
            promises: true,
            may_forget: self.every,
            unprotected,
            resynchronising: self.is_restoring() || filling && !self.links.is_empty(),
        }
    }

    fn abandon(&mut self, out: &mut Outbox) {
        out.dropped.extend(self.pending.drain(..).map(|packet| (packet, DropReason::ShuttingDown)));
    }
}
