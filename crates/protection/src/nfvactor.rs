//! `nfvactor`: after every batch a flow's state goes to a replica flow actor on another runtime; packets leave behind it.
//!
//! Theory of operation (NFVactor, section V-B; DESIGN, section 5).
//! - The owner picks a replica runtime per flow, round-robin. At the end of a batch it sends each changed flow's state once, numbered
//!   per pair of runtimes (the *commit*), over the reliable channel.
//! - [`ReleaseAt::Replica`]: the batch's packets follow as data frames tagged with their flow's commit. The replica
//!   releases a packet when it has saved that commit. Nothing comes back; a packet lost on the way is a lost packet and nothing else.
//! - [`ReleaseAt::Source`]: the packets wait in a latch here until the replica says which commits it has saved.
//! - The owner fails: the replica asks the switch for the flow's route. With the route comes a new epoch; what the
//!   old owner still sends carries the old one and is refused. Nothing that was released can be missing here: it was saved before.
//! - The replica fails: the latched packets follow their flows to the next replica; idle flows are sent again in the background.
//! - There is no other runtime: packets leave unprotected, counted, and `status` says so. The contract is one failure at a time.

use crate::flows::{ActorHeader, flag, role};
use crate::{Flows, Outbox, Peer, Protection, Safety, Slot, kind};
use holdfast_wire::{DropReason, FlowKey, Packet};
use std::collections::VecDeque;
use zerocopy::{FromBytes, IntoBytes};

/// Who releases a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReleaseAt {
    /// The replica, once it has saved the state: one way, but the packet travels.
    #[default]
    Replica,
    /// The owner, once the replica has acknowledged the state: there and back, but only the state travels.
    Source,
}

/// Packets that one link may hold back.
const HELD_LIMIT: usize = 8192;
/// Slots looked at, and states sent, per flush while re-synchronising: what fits between two bursts without being noticed.
const RESYNC_SCAN: u32 = 2048;
const RESYNC_SEND: usize = 64;
/// Refused commits remembered one by one; older ones refuse everything before them.
const REFUSED_LIMIT: usize = 256;
/// A refusal is forgotten when so many commits have been saved since: no packet is under way for so long.
const REFUSED_MEMORY: u32 = 1 << 20;
/// Before a mark is sent again whose answer has not come, ns: it may be lost, as any frame.
const MARK_PATIENCE: u64 = 10_000_000;
/// Before a refused state is sent again, ns: a full table does not empty at once.
const REFUSED_PAUSE: u64 = 100_000_000;

/// `a` is at or after `b` in a sequence that wraps.
#[inline]
fn reached(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 >= 0
}

struct Latched {
    commit: u32,
    slot: Slot,
    generation: u32,
    packet: Packet,
}

/// To a runtime that holds replicas of ours.
struct Link {
    peer: Peer,
    sent: u32,
    saved: u32,
    /// The last commit that was refused, until a later one has been saved.
    refused: Option<u32>,
    /// Commits up to here belong to a re-synchronisation that is not saved yet.
    resync_mark: Option<u32>,
    /// What was handed over up to this commit has left.
    passed: u32,
    /// The commit and the time of a mark that is not answered yet.
    marked: Option<(u32, u64)>,
    /// Commits that are not saved yet, with the flow whose state each carries.
    under_way: VecDeque<(u32, Slot)>,
    latch: VecDeque<Latched>,
}

impl Link {
    fn new(peer: Peer) -> Link {
        Link {
            peer,
            sent: 0,
            saved: 0,
            refused: None,
            resync_mark: None,
            passed: 0,
            marked: None,
            under_way: VecDeque::with_capacity(1024),
            latch: VecDeque::with_capacity(256),
        }
    }

    /// The number of the next commit. 0 stands for "not sent", so the count leaves it out when it wraps.
    fn next(&self) -> u32 {
        self.sent.checked_add(1).unwrap_or(1)
    }

    fn note_sent(&mut self, commit: u32, slot: Slot) {
        self.sent = commit;
        self.under_way.push_back((commit, slot));
    }
}

/// From a runtime of whose flows replicas are here.
struct Inbound {
    peer: Peer,
    saved: u32,
    /// What waited for commits up to here has been released.
    released_to: u32,
    acknowledge: bool,
    closed: bool,
    handed: VecDeque<Packet>,
    /// Marks whose commits are not saved yet.
    marks: VecDeque<u32>,
    /// The owner is to be told in the next turn: what was released in this one goes out behind the messages.
    passed: Option<u32>,
    refused: VecDeque<(u32, DropReason)>,
    refused_up_to: Option<u32>,
    /// Refusals that the owner does not know of yet. No longer than what its channel has under way: it hears of nothing else meanwhile.
    untold: VecDeque<(u32, DropReason)>,
}

impl Inbound {
    fn refusal(&self, commit: u32) -> Option<DropReason> {
        if self.refused.is_empty() && self.refused_up_to.is_none() {
            return None;
        }
        if self.refused_up_to.is_some_and(|limit| reached(limit, commit)) {
            return Some(DropReason::StaleEpoch);
        }
        self.refused.iter().find(|(refused, _)| *refused == commit).map(|&(_, reason)| reason)
    }

    /// Tells the owner what was refused, and then, because that covers everything before it, what was saved.
    /// What it handed over up to `passed` had left before this turn.
    fn answer(&mut self, passed: Option<u32>, out: &mut Outbox) {
        while let Some(&(commit, reason)) = self.untold.front() {
            if !out.send(self.peer, kind::REFUSED, &[&commit.to_be_bytes(), &[reason as u8]]) {
                return;
            }
            self.untold.pop_front();
        }
        if let Some(commit) = passed
            && !out.send(self.peer, kind::PASSED, &[&commit.to_be_bytes()])
        {
            self.passed = passed;
        }
        while self.marks.front().is_some_and(|&commit| reached(self.saved, commit)) {
            self.passed = self.marks.pop_front();
        }
        if self.acknowledge {
            self.acknowledge = !out.send(self.peer, kind::SAVED, &[&self.saved.to_be_bytes()]);
        }
    }

    fn refuse(&mut self, commit: u32, reason: DropReason) {
        self.untold.push_back((commit, reason));
        if self.refused.len() == REFUSED_LIMIT {
            self.refused_up_to = self.refused.pop_front().map(|(commit, _)| commit);
        }
        self.refused.push_back((commit, reason));
    }

    /// Forgets refusals that no packet can ask for any more.
    fn forget_refusals(&mut self) {
        let is_old = |commit: u32| reached(self.saved.wrapping_sub(REFUSED_MEMORY), commit);
        while self.refused.front().is_some_and(|&(commit, _)| is_old(commit)) {
            self.refused.pop_front();
        }
        if self.refused_up_to.is_some_and(is_old) {
            self.refused_up_to = None;
        }
    }
}

/// Faults that a checker must find. Nothing but tests of the checkers sets them.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Planted {
    /// Packets leave before their state is saved.
    pub release_before_commit: bool,
    /// Late state of an older owner is accepted.
    pub no_epoch_check: bool,
}

/// See the module.
pub struct NfvActor {
    release_at: ReleaseAt,
    peers: Vec<Peer>,
    next_peer: usize,
    links: Vec<Link>,
    inbound: Vec<Inbound>,
    dirty: Vec<Slot>,
    pending: Vec<(Slot, Packet)>,
    resync: Option<Slot>,
    resync_again: bool,
    /// No re-synchronisation before this time, ns.
    resync_not_before: u64,
    /// Somebody is to be told in the next turn what has left in this one.
    has_passed: bool,
    /// A channel is full: there is nothing to be done until something comes in.
    blocked: bool,
    /// The latest time known, ns.
    now: u64,
    planted: Planted,
}

impl NfvActor {
    /// A protection without a peer yet.
    pub fn new(release_at: ReleaseAt) -> NfvActor {
        NfvActor {
            release_at,
            peers: Vec::new(),
            next_peer: 0,
            links: Vec::new(),
            inbound: Vec::new(),
            dirty: Vec::with_capacity(256),
            pending: Vec::with_capacity(256),
            resync: None,
            resync_again: false,
            resync_not_before: 0,
            has_passed: false,
            blocked: false,
            now: 0,
            planted: Planted::default(),
        }
    }

    /// With faults, for tests of the checkers.
    #[doc(hidden)]
    pub fn plant(mut self, planted: Planted) -> NfvActor {
        self.planted = planted;
        self
    }

    fn link(&mut self, node: u16, incarnation: u32) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.peer == Peer { node, incarnation })
    }

    fn inbound_from(&mut self, peer: Peer) -> &mut Inbound {
        let at = match self.inbound.iter().position(|inbound| inbound.peer == peer) {
            Some(at) => at,
            None => {
                // Of a node's lives the present one and the last are remembered: whatever is older is known to be.
                self.inbound.retain(|inbound| !(inbound.closed && inbound.peer.node == peer.node));
                self.inbound.push(Inbound {
                    peer,
                    saved: 0,
                    released_to: 0,
                    acknowledge: false,
                    closed: false,
                    handed: VecDeque::with_capacity(256),
                    marks: VecDeque::new(),
                    passed: None,
                    refused: VecDeque::new(),
                    refused_up_to: None,
                    untold: VecDeque::new(),
                });
                self.inbound.len() - 1
            }
        };
        &mut self.inbound[at]
    }

    /// Takes the number of a record that an owner sent: the living count upwards, and the dead have nothing to say.
    fn take_commit(&mut self, from: Peer, commit: u32) -> Result<(), DropReason> {
        let is_newer = |peer: &Peer| {
            peer.node == from.node && peer.incarnation != from.incarnation && reached(peer.incarnation, from.incarnation)
        };
        let is_known = self.inbound.iter().any(|inbound| inbound.peer == from);
        if !is_known && self.inbound.iter().map(|inbound| &inbound.peer).chain(&self.peers).any(is_newer) {
            return Err(DropReason::Fenced);
        }
        let inbound = self.inbound_from(from);
        if inbound.closed {
            return Err(DropReason::Fenced);
        }
        if commit == inbound.saved || !reached(commit, inbound.saved) {
            return Err(DropReason::StaleDuplicate);
        }
        inbound.saved = commit;
        inbound.acknowledge = true;
        if !inbound.refused.is_empty() || inbound.refused_up_to.is_some() {
            inbound.forget_refusals();
        }
        Ok(())
    }

    fn mark_dirty(&mut self, flows: &mut Flows, slot: Slot) {
        let header = flows.header_mut(slot);
        if header.flags & flag::DIRTY == 0 {
            header.flags |= flag::DIRTY;
            self.dirty.push(slot);
        }
    }

    /// Sends the flow's state to its replica, choosing one if it has none. False if there is none, or its channel is full.
    fn send_state(&mut self, flows: &mut Flows, slot: Slot, out: &mut Outbox) -> bool {
        let header = *flows.header(slot);
        let mut peer = Peer { node: header.peer, incarnation: header.peer_incarnation };
        if self.link(peer.node, peer.incarnation).is_none() {
            let Some(&next) = self.peers.get(self.next_peer) else {
                let header = flows.header_mut(slot);
                (header.peer, header.peer_incarnation) = (0, 0);
                header.flags |= flag::UNPROTECTED;
                return false;
            };
            self.next_peer = (self.next_peer + 1) % self.peers.len();
            peer = next;
            let header = flows.header_mut(slot);
            (header.peer, header.peer_incarnation) = (peer.node, peer.incarnation);
        }
        let Some(link) = self.links.iter_mut().find(|link| link.peer == peer) else { return false };
        let commit = link.next();
        let header = flows.header_mut(slot);
        let before = *header;
        header.version = header.version.wrapping_add(1);
        header.commit = commit;
        header.flags &= !flag::UNPROTECTED;
        let sent = out.send(peer, kind::STATE, &[&commit.to_be_bytes(), &flows.layout().to_be_bytes(), flows.block(slot)]);
        if sent {
            link.note_sent(commit, slot);
        } else {
            let header = flows.header_mut(slot);
            header.version = before.version;
            header.commit = 0;
            header.flags |= flag::UNPROTECTED;
            self.resync_again = true;
            self.blocked = true;
        }
        sent
    }

    fn dispatch(&mut self, flows: &Flows, slot: Slot, mut packet: Packet, out: &mut Outbox) {
        let header = flows.header(slot);
        if self.planted.release_before_commit {
            out.release(packet);
            return;
        }
        if header.peer == 0 {
            out.released_unprotected += 1;
            out.release(packet);
            return;
        }
        let peer = Peer { node: header.peer, incarnation: header.peer_incarnation };
        if header.commit == 0 {
            // The state could not be sent, so what it reveals must not leave; the sender will try again.
            out.dropped.push((packet, DropReason::HeldOverflow));
            return;
        }
        match self.release_at {
            ReleaseAt::Replica => {
                packet.meta.commit = header.commit;
                out.handed.push((peer, packet));
            }
            ReleaseAt::Source => {
                let (commit, generation) = (header.commit, header.generation);
                let Some(link) = self.links.iter_mut().find(|link| link.peer == peer) else {
                    out.dropped.push((packet, DropReason::LostInFailure));
                    return;
                };
                if reached(link.saved, commit) {
                    out.release(packet);
                } else if link.latch.len() == HELD_LIMIT {
                    out.dropped.push((packet, DropReason::HeldOverflow));
                } else {
                    link.latch.push_back(Latched { commit, slot, generation, packet });
                }
            }
        }
    }

    /// Sends states of flows without a replica, a few at a time.
    fn resynchronise(&mut self, flows: &mut Flows, out: &mut Outbox) {
        let Some(from) = self.resync else {
            if self.resync_again && !self.peers.is_empty() && self.now >= self.resync_not_before {
                self.resync_again = false;
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
                let has_replica = self
                    .links
                    .iter()
                    .any(|link| link.peer.node == header.peer && link.peer.incarnation == header.peer_incarnation);
                if !has_replica || header.flags & flag::UNPROTECTED != 0 {
                    if !self.send_state(flows, at, out) {
                        break;
                    }
                    sent += 1;
                }
            }
            at += 1;
        }
        self.resync = if at >= flows.capacity() as u32 { None } else { Some(at) };
        if self.resync.is_none() {
            for link in &mut self.links {
                link.resync_mark = (link.sent != link.saved).then_some(link.sent);
            }
        }
    }

    fn handle_state(&mut self, flows: &mut Flows, from: Peer, body: &[u8], out: &mut Outbox) -> Result<(), DropReason> {
        let (commit, rest) = split_u32(body)?;
        let (layout, block) = rest.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
        if u64::from_be_bytes(*layout) != flows.layout() || block.len() != flows.block_len() {
            return Err(DropReason::Malformed);
        }
        // First the number: what came late or twice must not write over what is newer, or bring back a flow that has ended since.
        self.take_commit(from, commit)?;
        if let Err(reason) = self.save(flows, from, block, out) {
            self.inbound_from(from).refuse(commit, reason);
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
                let ours = flows.header(found.slot);
                let is_ours = matches!(ours.role, role::OWNER | role::OPENING);
                let is_arriving = ours.role == role::ARRIVING;
                let newer = ours.epoch != theirs.epoch && reached(theirs.epoch, ours.epoch);
                let same = ours.epoch == theirs.epoch;
                let acceptable =
                    newer || same && !is_ours && reached(theirs.version, ours.version) || self.planted.no_epoch_check;
                if !acceptable {
                    return Err(DropReason::StaleEpoch);
                }
                let role = ours.role;
                if is_ours {
                    out.demoted.push(found.slot);
                }
                if role != role::REPLICA && !is_arriving {
                    // Also while its route is being asked for: who sends newer state has it.
                    flows.set_role(found.slot, role::REPLICA);
                }
                found.slot
            }
        };
        if flows.overwrite(slot, block).is_err() {
            // What is refused must not be found here later, older than what its owner has revealed.
            match out.demoted.contains(&slot) {
                true => flows.header_mut(slot).peer = 0,
                false => flows.remove(slot),
            }
            return Err(DropReason::FlowTableFull);
        }
        let header = flows.header_mut(slot);
        (header.peer, header.peer_incarnation) = (from.node, from.incarnation);
        Ok(())
    }

    fn handle_saved(&mut self, from: Peer, commit: u32, out: &mut Outbox) -> Result<(), DropReason> {
        let link = self.links.iter_mut().find(|link| link.peer == from).ok_or(DropReason::Fenced)?;
        if commit == link.saved || !reached(commit, link.saved) {
            return Err(DropReason::StaleDuplicate);
        }
        if !reached(link.sent, commit) {
            return Err(DropReason::Malformed);
        }
        link.saved = commit;
        while link.under_way.front().is_some_and(|&(sent, _)| reached(commit, sent)) {
            link.under_way.pop_front();
        }
        if link.resync_mark.is_some_and(|mark| reached(commit, mark)) {
            link.resync_mark = None;
        }
        if link.refused.is_some_and(|refused| reached(commit, refused)) {
            link.refused = None;
        }
        while link.latch.front().is_some_and(|latched| reached(commit, latched.commit)) {
            if let Some(latched) = link.latch.pop_front() {
                out.release(latched.packet);
            }
        }
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
        let link = self.links.iter_mut().find(|link| link.peer == from).ok_or(DropReason::Fenced)?;
        // A refusal comes before the word that everything up to it has been seen to.
        let is_late = commit == link.saved || !reached(commit, link.saved);
        if is_late || link.refused.is_some_and(|refused| reached(refused, commit)) {
            return Err(DropReason::StaleDuplicate);
        }
        if !reached(link.sent, commit) {
            return Err(DropReason::Malformed);
        }
        link.refused = Some(commit);
        let mut kept = VecDeque::with_capacity(link.latch.len());
        for latched in link.latch.drain(..) {
            if latched.commit == commit {
                out.dropped.push((latched.packet, reason));
            } else {
                kept.push_back(latched);
            }
        }
        link.latch = kept;
        if let Some(&(_, slot)) = link.under_way.iter().find(|&&(sent, _)| sent == commit) {
            let header = flows.header_mut(slot);
            // If the flow has changed since, its newer state was refused too, and comes here then.
            if header.role == role::OWNER && header.commit == commit && header.peer == from.node {
                // The next one to be asked may have room.
                (header.peer, header.peer_incarnation, header.commit) = (0, 0, 0);
                header.flags |= flag::UNPROTECTED;
            }
        }
        self.resync_not_before = self.now + REFUSED_PAUSE;
        self.resync_again = true;
        Ok(())
    }

    /// Releases what waited for states that were saved since. One pass over what waits, however many states came.
    fn release_handed(inbound: &mut Inbound, out: &mut Outbox) {
        if inbound.released_to == inbound.saved {
            return;
        }
        inbound.released_to = inbound.saved;
        for _ in 0..inbound.handed.len() {
            let Some(packet) = inbound.handed.pop_front() else { return };
            if reached(inbound.saved, packet.meta.commit) {
                NfvActor::settle_handed(inbound, packet, out);
            } else {
                inbound.handed.push_back(packet);
            }
        }
    }

    /// The state behind the packet has been seen to: saved, or refused.
    fn settle_handed(inbound: &Inbound, packet: Packet, out: &mut Outbox) {
        match inbound.refusal(packet.meta.commit) {
            Some(reason) => out.dropped.push((packet, reason)),
            None => out.release(packet),
        }
    }
}

fn split_u32(body: &[u8]) -> Result<(u32, &[u8]), DropReason> {
    let (number, rest) = body.split_first_chunk::<4>().ok_or(DropReason::Malformed)?;
    Ok((u32::from_be_bytes(*number), rest))
}

impl Protection for NfvActor {
    fn name(&self) -> &'static str {
        "nfvactor"
    }

    #[inline]
    fn commit(&mut self, flows: &mut Flows, slot: Slot, packet: Packet, _nondeterministic: bool, _out: &mut Outbox) {
        self.mark_dirty(flows, slot);
        self.pending.push((slot, packet));
    }

    #[inline]
    fn changed(&mut self, flows: &mut Flows, slot: Slot) {
        self.mark_dirty(flows, slot);
    }

    fn ended(&mut self, flows: &mut Flows, slot: Slot, out: &mut Outbox) {
        let header = *flows.header(slot);
        let peer = Peer { node: header.peer, incarnation: header.peer_incarnation };
        if let Some(link) = self.links.iter_mut().find(|link| link.peer == peer) {
            let commit = link.next();
            // Without room the replica keeps a flow that has ended until its own owner is recovered from; the switch then refuses it.
            if out.send(peer, kind::END, &[&commit.to_be_bytes(), &header.epoch.to_be_bytes(), header.key.as_bytes()]) {
                link.note_sent(commit, slot);
            }
        }
    }

    fn flush(&mut self, flows: &mut Flows, out: &mut Outbox) {
        self.now = self.now.max(out.now());
        self.blocked = false;
        let mut dirty = core::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            let header = flows.header_mut(slot);
            header.flags &= !flag::DIRTY;
            if header.role == role::OWNER {
                self.send_state(flows, slot, out);
            }
        }
        self.dirty = dirty;
        let mut pending = core::mem::take(&mut self.pending);
        for (slot, packet) in pending.drain(..) {
            self.dispatch(flows, slot, packet, out);
        }
        self.pending = pending;
        if self.resync.is_some() || self.resync_again {
            self.resynchronise(flows, out);
        }
        self.has_passed = false;
        for inbound in &mut self.inbound {
            if !inbound.closed {
                NfvActor::release_handed(inbound, out);
                let before = inbound.passed.take();
                inbound.answer(before, out);
                self.has_passed |= inbound.passed.is_some() && inbound.passed != before;
            }
        }
    }

    fn set_peers(&mut self, flows: &mut Flows, peers: &[Peer], _out: &mut Outbox) {
        let had_none = self.peers.is_empty();
        self.peers.clear();
        self.peers.extend_from_slice(peers);
        self.next_peer = if peers.is_empty() { 0 } else { self.next_peer % peers.len() };
        let (kept, lost): (Vec<Link>, Vec<Link>) = self.links.drain(..).partition(|link| peers.contains(&link.peer));
        self.links = kept;
        for peer in peers {
            if !self.links.iter().any(|link| link.peer == *peer) {
                self.links.push(Link::new(*peer));
            }
        }
        if !lost.is_empty() || had_none {
            self.resync = Some(0);
            self.resync_again = false;
        }
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
            kind::SAVED => {
                let commit = <[u8; 4]>::try_from(body).map_err(|_| DropReason::Malformed)?;
                self.handle_saved(from, u32::from_be_bytes(commit), out)
            }
            kind::PASSED => {
                let commit = u32::from_be_bytes(<[u8; 4]>::try_from(body).map_err(|_| DropReason::Malformed)?);
                let link = self.links.iter_mut().find(|link| link.peer == from).ok_or(DropReason::Fenced)?;
                if !reached(link.sent, commit) {
                    return Err(DropReason::Malformed);
                }
                if link.passed == 0 || reached(commit, link.passed) {
                    link.passed = commit;
                }
                if link.marked.is_some_and(|(marked, _)| reached(commit, marked)) {
                    link.marked = None;
                }
                Ok(())
            }
            kind::END => {
                let (commit, rest) = split_u32(body)?;
                let (epoch, rest) = split_u32(rest)?;
                let key = FlowKey::read_from_bytes(rest).map_err(|_| DropReason::Malformed)?;
                self.take_commit(from, commit)?;
                if let Some(found) = flows.find(&key, flows.hash(&key)) {
                    let header = flows.header(found.slot);
                    if header.role == role::REPLICA && header.epoch == epoch && !found.is_reply {
                        flows.remove(found.slot);
                    }
                }
                Ok(())
            }
            kind::REFUSED => {
                let (commit, rest) = split_u32(body)?;
                let &[number] = rest else { return Err(DropReason::Malformed) };
                let reason = DropReason::from_index(number as usize).ok_or(DropReason::Malformed)?;
                self.handle_refused(flows, from, commit, reason, out)
            }
            _ => Err(DropReason::Malformed),
        }
    }

    fn handle_handed(&mut self, _flows: &mut Flows, from: Peer, packet: Packet, out: &mut Outbox) {
        let inbound = self.inbound_from(from);
        if inbound.closed {
            out.dropped.push((packet, DropReason::Fenced));
        } else if inbound.released_to == inbound.saved && reached(inbound.saved, packet.meta.commit) {
            // Nothing of its flow waits: that would be older, and has been released.
            NfvActor::settle_handed(inbound, packet, out);
        } else if inbound.handed.len() == HELD_LIMIT {
            out.dropped.push((packet, DropReason::HeldOverflow));
        } else {
            inbound.handed.push_back(packet);
        }
    }

    fn recover(&mut self, flows: &mut Flows, dead: Peer, out: &mut Outbox) {
        let is_dead = |node: u16, incarnation: u32| node == dead.node && reached(dead.incarnation, incarnation);
        for slot in 0..flows.capacity() as u32 {
            let header = flows.header(slot);
            let is_copy = matches!(header.role, role::REPLICA | role::ARRIVING);
            if is_copy && is_dead(header.peer, header.peer_incarnation) {
                flows.set_role(slot, role::CLAIMING);
                out.claims.push(slot);
            }
        }
        // Also if nothing has come from it yet: it may be on its way.
        self.inbound_from(dead);
        for inbound in &mut self.inbound {
            if is_dead(inbound.peer.node, inbound.peer.incarnation) {
                inbound.closed = true;
                // Their state never came: it died with the owner, and so do they.
                out.dropped.extend(inbound.handed.drain(..).map(|packet| (packet, DropReason::LostInFailure)));
                inbound.marks.clear();
            }
        }
    }

    fn claimed(&mut self, flows: &mut Flows, slot: Slot) {
        flows.set_role(slot, role::OWNER);
        let header = flows.header_mut(slot);
        (header.peer, header.peer_incarnation, header.commit) = (0, 0, 0);
        header.flags |= flag::UNPROTECTED;
        self.resync_again = true;
    }

    fn has_drained(&mut self, flows: &Flows, slot: Slot, out: &mut Outbox) -> bool {
        let header = flows.header(slot);
        if header.flags & flag::DIRTY != 0 {
            return false;
        }
        let now = self.now;
        let release_at = self.release_at;
        let Some(link) = self.link(header.peer, header.peer_incarnation) else { return true };
        // A state that could not be sent has no packets behind it.
        if header.commit == 0 {
            return true;
        }
        if release_at == ReleaseAt::Source {
            return reached(link.saved, header.commit);
        }
        if link.passed != 0 && reached(link.passed, header.commit) {
            return true;
        }
        if link.marked.is_none_or(|(_, at)| now.saturating_sub(at) > MARK_PATIENCE) {
            link.marked = Some((link.sent, now));
            out.marks.push((link.peer, link.sent));
        }
        false
    }

    fn handle_mark(&mut self, from: Peer, commit: u32) {
        let inbound = self.inbound_from(from);
        // More than one is under way only if an answer is late.
        if !inbound.closed && inbound.marks.len() < 16 {
            inbound.marks.push_back(commit);
        }
    }

    fn departed(&mut self, flows: &mut Flows, slot: Slot, to: Peer, old_epoch: u32, out: &mut Outbox) -> bool {
        let header = *flows.header(slot);
        let old = Peer { node: header.peer, incarnation: header.peer_incarnation };
        if old != to
            && let Some(link) = self.links.iter_mut().find(|link| link.peer == old)
        {
            let commit = link.next();
            // Without room the replica keeps it until its owner is recovered from; the switch then refuses it.
            if out.send(old, kind::END, &[&commit.to_be_bytes(), &old_epoch.to_be_bytes(), header.key.as_bytes()]) {
                link.note_sent(commit, slot);
            }
        }
        flows.set_role(slot, role::REPLICA);
        let header = flows.header_mut(slot);
        (header.peer, header.peer_incarnation, header.commit) = (to.node, to.incarnation, 0);
        header.flags &= !(flag::UNPROTECTED | flag::DIRTY);
        true
    }

    fn arrived(&mut self, flows: &mut Flows, slot: Slot, from: Peer) {
        let is_lasting = self.link(from.node, from.incarnation).is_some();
        let header = flows.header_mut(slot);
        header.commit = 0;
        if is_lasting {
            // Where it was, it is the same: that is its replica.
            (header.peer, header.peer_incarnation) = (from.node, from.incarnation);
            header.flags &= !flag::UNPROTECTED;
        } else {
            (header.peer, header.peer_incarnation) = (0, 0);
            header.flags |= flag::UNPROTECTED;
            self.resync_again = true;
        }
    }

    fn is_busy(&self) -> bool {
        let may_resync = self.resync.is_some() || self.resync_again && self.now >= self.resync_not_before;
        may_resync && !self.blocked && !self.peers.is_empty() || !self.pending.is_empty() || self.has_passed
    }

    fn safety(&self, flows: &Flows) -> Safety {
        let unprotected = if self.peers.is_empty() { flows.owned() as u64 } else { 0 };
        let filling = self.resync.is_some() || self.resync_again || self.links.iter().any(|link| link.resync_mark.is_some());
        Safety { promises: true, may_forget: 0, unprotected, resynchronising: filling && !self.peers.is_empty() }
    }

    fn held(&self) -> usize {
        self.links.iter().map(|link| link.latch.len()).sum::<usize>()
            + self.inbound.iter().map(|inbound| inbound.handed.len()).sum::<usize>()
    }

    fn abandon(&mut self, out: &mut Outbox) {
        let latched = self.links.iter_mut().flat_map(|link| link.latch.drain(..)).map(|latched| latched.packet);
        out.dropped.extend(latched.map(|packet| (packet, DropReason::ShuttingDown)));
        let handed = self.inbound.iter_mut().flat_map(|inbound| inbound.handed.drain(..));
        out.dropped.extend(handed.map(|packet| (packet, DropReason::ShuttingDown)));
        out.dropped.extend(self.pending.drain(..).map(|(_, packet)| (packet, DropReason::ShuttingDown)));
    }
}
