//! `rescue`: what a runtime has in memory is a cache of what the state server has.
//!
//! Theory of operation (RESCue, sections III and IV; DESIGN, sections 5 and 9).
//! - A page is a flow's block. Which pages are dirty the runtime knows itself, from the packets that it has processed.
//! - [`Release::WriteBack`]: at the end of a batch what has [changed](crate::delta) goes to the server, and packets wait in a latch until that has what they reveal.
//! - [`Release::AtOnce`], as in the paper: they do not, and flows are written back after so many packets, or so often, a few at a time, whole: of a flow that many packets have changed that is less than
//!   every change. What is dirty when a runtime dies is lost; it is no more than that.
//! - The owner fails: others [recall](kind::RECALL) what there is of it. The server deals its flows out among those that ask, and each claims the routes of what it was dealt.
//!   A recovery is not over before the server has said that there are no more.
//! - A flow moves: the server learns where to before it is sent ([`kind::PASS`]). Whoever of the two dies, the server has the page, and knows of whom it is.
//! - There may be [room](paging) for the state of some flows only: that of the others is the server's alone, and is fetched when a packet comes for them.
//! - There may be [several](Share) servers: each has the flows whose keys' hashes are its share, and is written to, asked and recalled from by itself. A recovery is over when all have dealt.
//! - A server fails: every runtime has all its flows, and writes them to the next life. Who is being recovered from then is asked for again. If a runtime dies before that is done,
//!   what of its flows had not come is lost: that is the second failure. So are flows whose state was the server's alone.

pub mod pages;
mod paging;
#[cfg(test)]
mod tests;

use crate::flows::{ActorHeader, flag, role};
use crate::numbers::{reached, split_u32};
use crate::{Admission, Flows, Home, NfvActor, Outbox, Peer, Protection, ReleaseAt, Safety, Slot, copies, kind, nfvactor};
use holdfast_wire::{DropReason, FlowKey, Packet};
use paging::Paging;
use std::collections::{BTreeSet, VecDeque};
use zerocopy::{FromBytes, IntoBytes};

/// Between two write-backs, ns, unless the operator says otherwise.
pub const WRITE_BACK_EVERY: u64 = 100_000_000;
/// Packets of a flow after which it is written back, unless the operator says otherwise.
pub const WRITE_BACK_PACKETS: u32 = 32;

/// Flows that one flush writes back because of their age.
const WRITTEN: usize = 64;
/// What has been under way for longer, ns, is not written back yet: nobody calls its flows safe.
const LATE: u64 = 100_000_000;
/// So finely is known since when something has been under way.
const MARKS: usize = 16;

/// When a packet leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// When the server has what it reveals.
    WriteBack,
    /// At once. A flow is written back when it begins, when it has `packets` that are not, and every `every` ns.
    AtOnce {
        /// What a failure may undo of a flow.
        packets: u32,
        /// Stamped time, ns.
        every: u64,
    },
}

/// Faults that a checker must find. Nothing but tests of the checkers sets them.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Planted {
    /// Packets leave before their state is saved, in spite of what is promised.
    pub release_before_commit: bool,
    /// Late state of an older owner is accepted.
    pub no_epoch_check: bool,
    /// Pages are damaged now and then.
    pub corrupts_copies: bool,
    /// Flows are written back when they begin, and then never.
    pub ignore_interval: bool,
    /// The account of a recovery is closed before the server has dealt everything.
    pub report_early: bool,
    /// States go that the server has not got.
    pub evicts_unsaved: bool,
}

impl Planted {
    fn of_copies(self) -> nfvactor::Planted {
        let Planted { release_before_commit, no_epoch_check, corrupts_copies, .. } = self;
        nfvactor::Planted { release_before_commit, no_epoch_check, corrupts_copies }
    }
}

/// What is asked for of one that has died.
struct Recall {
    dead: Peer,
    /// By share: the life of the server that has been asked, until it has dealt all that it has.
    asked: Vec<Asked>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Nobody.
    Not,
    Of(Peer),
    /// It has no more.
    Over,
}

impl Recall {
    /// Whether this share's server, in this life of it, is still to be asked.
    fn has_to_ask(&self, at: usize, server: Peer) -> bool {
        match self.asked.get(at) {
            None | Some(Asked::Not) => true,
            Some(Asked::Of(life)) => *life != server,
            Some(Asked::Over) => false,
        }
    }

    fn note(&mut self, at: usize, asked: Asked) {
        if at >= self.asked.len() {
            self.asked.resize(at + 1, Asked::Not);
        }
        self.asked[at] = asked;
    }
}

/// One of the servers, and what it has of the flows that are its share.
#[derive(Default)]
struct Share {
    /// Its life, as soon as that is known.
    server: Option<Peer>,
    /// The last record that was sent to it, and the one up to which it has seen to everything, as they were [looked up](Rescue::look_up) last.
    last: u32,
    saved: u32,
    /// Records that were the last ones sent, of those that the server has not got, and since when they have been under way, or a little before; in order.
    under_way: VecDeque<(u32, u64)>,
    /// Deals that are not answered: their numbers, and 0 or why not.
    answers: VecDeque<(u32, u8)>,
    /// Its channel took no more, in this batch.
    is_full: bool,
}

/// Which of so many servers a flow's share is, by the hash of its key.
pub fn share_of(hash: u64, servers: usize) -> usize {
    // Not by the bits that say where in a table it is.
    let mixed = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(mixed) * servers as u128) >> 64) as usize
}

/// A runtime's side. See the module.
pub struct Rescue {
    release: Release,
    /// The servers are the only ones that have any.
    copies: NfvActor,
    /// None before anybody has been heard of.
    shares: Vec<Share>,
    /// There is no server yet for some flows, or for all.
    is_any_unknown: bool,
    /// Where packets leave at once, by slot: packets since the flow was written back.
    unsaved: Vec<u32>,
    /// Flows that have as many as they may have, or must be written back for another reason.
    due: Vec<(Slot, u32)>,
    /// Dirty flows, those first that have been so for longest; and how many of them this round is about.
    behind: VecDeque<(Slot, u32)>,
    round: usize,
    write_back_at: u64,
    /// See [`LATE`].
    late: u64,
    now: u64,
    recalls: Vec<Recall>,
    /// Flows that are others', as they are about to be removed.
    displaced: Vec<(Slot, u32)>,
    /// Flows that were on their way to another runtime when the server began anew.
    adrift: Vec<(Slot, u32)>,
    /// Flows that are about to leave, and have to be written back first.
    departing: Vec<(Slot, u32)>,
    /// Where there is not room for the state of all flows.
    paging: Option<Paging>,
    planted: Planted,
}

impl Rescue {
    /// A protection without a server yet.
    pub fn new(release: Release) -> Rescue {
        Rescue {
            release,
            copies: NfvActor::new(ReleaseAt::Source),
            shares: Vec::new(),
            is_any_unknown: true,
            unsaved: Vec::new(),
            due: Vec::new(),
            behind: VecDeque::new(),
            round: 0,
            write_back_at: 0,
            late: LATE,
            now: 0,
            recalls: Vec::new(),
            displaced: Vec::new(),
            adrift: Vec::new(),
            departing: Vec::new(),
            paging: None,
            planted: Planted::default(),
        }
    }

    /// With room for the state of so many flows: what has found none is fetched from the server when it is needed.
    #[must_use]
    pub fn with_room_for(mut self, flows: usize) -> Rescue {
        self.paging = Some(Paging::new(flows.max(1)));
        self
    }

    /// For benchmarks whose stamps hurry, `times` as quickly as time: what is done every so often is done as often as it would be.
    #[doc(hidden)]
    #[must_use]
    pub fn with_stamps_hurrying(mut self, times: u64) -> Rescue {
        if let Release::AtOnce { every, .. } = &mut self.release {
            *every = every.saturating_mul(times);
        }
        self.copies.ask_pause = self.copies.ask_pause.saturating_mul(times);
        self.late = self.late.saturating_mul(times);
        self
    }

    /// With faults, for tests of the checkers.
    #[doc(hidden)]
    pub fn plant(mut self, planted: Planted) -> Rescue {
        self.copies = self.copies.plant(planted.of_copies());
        self.planted = planted;
        if let Some(paging) = &mut self.paging {
            paging.is_careless = planted.evicts_unsaved;
        }
        self
    }

    /// A packet has been processed.
    #[inline]
    fn note(&mut self, flows: &mut Flows, slot: Slot) {
        let Release::AtOnce { packets, .. } = self.release else { return self.copies.mark_dirty(flows, slot) };
        let at = slot as usize;
        if at >= self.unsaved.len() {
            self.unsaved.resize(flows.capacity().max(at + 1), 0);
        }
        let header = flows.header_mut(slot);
        if header.flags & flag::DIRTY == 0 {
            header.flags |= flag::DIRTY;
            self.behind.push_back((slot, header.generation));
            self.unsaved[at] = 0;
        }
        self.unsaved[at] += 1;
        // Of what begins the server is to know at once: all that is lost of it else would be that it was there.
        let unsaved = self.unsaved[at];
        if unsaved == packets || unsaved == 1 && header.commit == 0 {
            self.due.push((slot, header.generation));
        }
    }

    /// Writes a flow back, if it is dirty. False if the channel is full.
    fn write_back(&mut self, flows: &mut Flows, (slot, generation): (Slot, u32), out: &mut Outbox) -> bool {
        let header = flows.header_mut(slot);
        if header.generation != generation || header.role != role::OWNER || header.flags & flag::DIRTY == 0 {
            return true;
        }
        header.flags &= !flag::DIRTY;
        self.copies.send_state(flows, slot, None, out) || self.is_any_unknown && self.server_of(flows, slot).is_none()
    }

    /// Where packets leave at once: what is due, and some of what has been dirty for long.
    fn write_some_back(&mut self, flows: &mut Flows, every: u64, out: &mut Outbox) {
        // What has ended is told first: a key may live again.
        let NfvActor { parting, links, .. } = &mut self.copies;
        parting.tell(links, out);
        let is_put_off = self.planted.ignore_interval && self.write_back_at > 0;
        let mut due = core::mem::take(&mut self.due);
        for flow in due.drain(..) {
            // What finds no room is unprotected from here on, and sent anew like all that is.
            if !is_put_off || flows.header(flow.0).commit == 0 {
                self.write_back(flows, flow, out);
            }
        }
        self.due = due;
        let now = out.now();
        if self.round == 0 && now >= self.write_back_at && !is_put_off {
            self.round = self.behind.len();
            self.write_back_at = now.saturating_add(every);
        }
        if !self.copies.blocked {
            // Most of them have not been touched since long ago.
            let next = self.behind.iter().take(self.round.min(WRITTEN)).map(|(slot, _)| *slot);
            core::hint::black_box(flows.touch_blocks(next));
        }
        let mut written = 0;
        while self.round > 0
            && written < WRITTEN
            && let Some(flow) = self.behind.pop_front()
        {
            self.round -= 1;
            let header = flows.header(flow.0);
            if header.generation != flow.1 || header.flags & flag::DIRTY == 0 {
                // It was due before, or has ended.
                continue;
            }
            written += 1;
            if !self.write_back(flows, flow, out) {
                break;
            }
        }
    }

    /// The server of this flow's share, if there is one.
    fn server_of(&self, flows: &Flows, slot: Slot) -> Option<Peer> {
        let server = match self.shares.len() {
            0 => None,
            1 => self.shares.first(),
            servers => self.shares.get(share_of(flows.hash(&flows.header(slot).key), servers)),
        };
        server.and_then(|share| share.server)
    }

    /// Which share's server this is.
    fn share(&self, server: Peer) -> Option<usize> {
        self.shares.iter().position(|share| share.server == Some(server))
    }

    /// How far each server is.
    fn look_up(&mut self) {
        for share in &mut self.shares {
            if let Some(link) = share.server.and_then(|server| self.copies.links.find(server)) {
                (share.last, share.saved) = (link.numbers.last, link.numbers.saved);
            }
        }
    }

    /// Notes since when something has been under way. What was sent last has not been so for as long as what was sent before; nor is it new when that has come.
    fn look_at_servers(&mut self) {
        self.look_up();
        for Share { last, saved, under_way, .. } in &mut self.shares {
            let has_come = |number: u32| *saved != 0 && reached(*saved, number);
            while under_way.front().is_some_and(|(number, _)| has_come(*number)) {
                under_way.pop_front();
            }
            if *last == 0 || has_come(*last) {
                continue;
            }
            let is_full = under_way.len() == MARKS;
            match under_way.back_mut() {
                // As if it had been sent with the one before: what is late is so a little sooner, and not too late.
                Some((number, since)) if is_full || self.now.saturating_sub(*since) < self.late / MARKS as u64 => *number = *last,
                _ => under_way.push_back((*last, self.now)),
            }
        }
    }

    /// The server has this flow as it was when it was written back last.
    fn is_at_server(&self, header: &ActorHeader) -> bool {
        let holder = Peer { node: header.peer, incarnation: header.peer_incarnation };
        self.share(holder).is_some() && header.commit != 0 && header.flags & flag::UNPROTECTED == 0
    }

    /// The flow is owned here from now on, and the server has it at best as it was elsewhere.
    fn own(&mut self, flows: &mut Flows, slot: Slot) {
        let server = self.server_of(flows, slot).unwrap_or_default();
        let header = flows.header_mut(slot);
        self.copies.parting.came_back(slot, header);
        // If it ends before it has been written back, the server is to hear so.
        (header.peer, header.peer_incarnation, header.commit) = (server.node, server.incarnation, 0);
        header.flags = header.flags & !flag::DIRTY | flag::UNPROTECTED;
        self.copies.resynchronise_again();
    }

    fn recall(&mut self, dead: Peer, out: &mut Outbox) {
        self.copies.close(dead, out);
        if self.recalls.iter().all(|recall| recall.dead != dead) {
            self.recalls.push(Recall { dead, asked: Vec::new() });
        }
    }

    /// Makes a place for a flow that was dealt: its route is to be claimed, unless it is already.
    fn place(&mut self, flows: &mut Flows, server: Peer, layout: u64, block: &[u8]) -> Result<Option<Slot>, DropReason> {
        if layout != flows.layout() || block.len() != flows.block_len() {
            return Err(DropReason::Malformed);
        }
        let (theirs, _) = ActorHeader::read_from_prefix(block).map_err(|_| DropReason::Malformed)?;
        let hash = flows.hash(&theirs.key);
        let found = flows.find(&theirs.key, hash);
        if flows.room() == 0 {
            self.make_room(flows);
        }
        if flows.is_paged() && flows.room() <= self.reserved(flows.room()) {
            // There will be, soon.
            return Err(DropReason::QueueFull);
        }
        let slot = match found {
            None => flows.insert(theirs.key, hash, role::CLAIMING).map_err(|_| DropReason::FlowTableFull)?,
            // What was left of it here is being claimed, and this is newer.
            Some(found) if !found.is_reply && is_claimed_older(flows.header(found.slot), &theirs) => {
                flows.make_present(found.slot).map_err(|_| DropReason::QueueFull)?;
                found.slot
            }
            // It is about to come here by another way, or to leave.
            Some(_) => return Err(DropReason::StaleEpoch),
        };
        if flows.overwrite(slot, block).is_err() {
            if found.is_none() {
                flows.remove(slot);
            }
            return Err(DropReason::FlowTableFull);
        }
        let header = flows.header_mut(slot);
        (header.peer, header.peer_incarnation, header.commit) = (server.node, server.incarnation, 0);
        Ok(found.is_none().then_some(slot))
    }

    fn handle_deal(&mut self, flows: &mut Flows, from: Peer, body: &[u8], out: &mut Outbox) -> Result<(), DropReason> {
        let (number, rest) = split_u32(body)?;
        let (dead, rest) = split_peer(rest)?;
        let (layout, block) = rest.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
        let placed = self.place(flows, from, u64::from_be_bytes(*layout), block);
        let answer = (number, placed.map_or_else(|reason| reason as u8 + 1, |_| 0));
        let share = self.share(from).map(|at| &mut self.shares[at]);
        share.into_iter().for_each(|share| share.answers.push_back(answer));
        match placed {
            Ok(None) => {}
            Ok(Some(slot)) => out.late_claims.push((dead.node, slot)),
            Err(DropReason::Malformed) => return Err(DropReason::Malformed),
            // The next one to be asked has room, or it is asked for again.
            Err(_) => {}
        }
        Ok(())
    }

    /// Another runtime has a flow that is served here under an older epoch.
    fn handle_displaced(&mut self, flows: &mut Flows, from: Peer, body: &[u8], out: &mut Outbox) -> Result<(), DropReason> {
        let (layout, block) = body.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
        if u64::from_be_bytes(*layout) != flows.layout() || block.len() != flows.block_len() {
            return Err(DropReason::Malformed);
        }
        let (theirs, _) = ActorHeader::read_from_prefix(block).map_err(|_| DropReason::Malformed)?;
        let Some(found) = flows.find(&theirs.key, flows.hash(&theirs.key)) else { return Ok(()) };
        let ours = flows.header(found.slot);
        let is_ours = !found.is_reply && matches!(ours.role, role::OWNER | role::OPENING);
        if !is_ours || theirs.epoch == ours.epoch || !copies::is_newer(&theirs, ours) {
            return Ok(());
        }
        let (slot, generation) = (found.slot, ours.generation);
        let is_same = ours.opened_at == theirs.opened_at;
        // What the server has is the other one's: nothing of it is to be ended from here.
        let outcome = copies::save(flows, from, block, false, &mut None, out);
        if is_same && !flows.is_present(slot) {
            // Whatever it leased it has there, too.
            flows.know_demoted(slot, &block[size_of::<ActorHeader>()..]);
        }
        self.displaced.push((slot, generation));
        outcome
    }

    /// The state of a flow has come for which a packet waits.
    fn handle_page(&mut self, flows: &mut Flows, body: &[u8], out: &mut Outbox) -> Result<(), DropReason> {
        let (layout, block) = body.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
        if u64::from_be_bytes(*layout) != flows.layout() || block.len() != flows.block_len() {
            return Err(DropReason::Malformed);
        }
        let (theirs, state) = ActorHeader::read_from_prefix(block).map_err(|_| DropReason::Malformed)?;
        let Some((slot, generation)) = self.take_answer(flows, &theirs.key)? else { return Ok(()) };
        let ours = flows.header(slot);
        if (theirs.version, theirs.opened_at) != (ours.version, ours.opened_at) {
            // It is not what went from here: there is no other.
            out.lost.push((slot, generation));
            return Err(DropReason::ReplicaDiffers);
        }
        match flows.load(slot, state) {
            Ok(()) => {
                out.loaded.push(slot);
                self.paging.iter_mut().for_each(|paging| paging.fetched += 1);
                // It is here for somebody, who is to find it.
                flows.set_used(slot, true);
            }
            // Others have come meanwhile. It is asked for again.
            Err(_) => self.paging.iter_mut().for_each(|paging| paging.want(flows, slot)),
        }
        Ok(())
    }

    fn handle_no_page(&mut self, flows: &Flows, body: &[u8], out: &mut Outbox) -> Result<(), DropReason> {
        let key = FlowKey::read_from_bytes(body).map_err(|_| DropReason::Malformed)?;
        out.lost.extend(self.take_answer(flows, &key)?);
        Ok(())
    }

    /// Where the flow is that this answer is about, if its state is still wanted.
    fn take_answer(&mut self, flows: &Flows, key: &FlowKey) -> Result<Option<(Slot, u32)>, DropReason> {
        let paging = self.paging.as_mut().ok_or(DropReason::Malformed)?;
        let (slot, generation) = paging.answered(key).ok_or(DropReason::StaleDuplicate)?;
        let header = flows.header(slot);
        let is_wanted = header.generation == generation && header.role == role::OWNER && !flows.is_present(slot);
        Ok(is_wanted.then_some((slot, generation)))
    }

    /// Asks for what there is of the dead, and answers deals.
    fn speak(&mut self, flows: &Flows, out: &mut Outbox) {
        let Rescue { paging, shares, recalls, copies, .. } = self;
        shares.iter_mut().for_each(|share| share.is_full = false);
        if let Some(paging) = paging {
            paging.ask(flows, shares, out);
        }
        for (at, share) in shares.iter_mut().enumerate() {
            let Some(server) = share.server else { continue };
            while !share.is_full
                && let Some((number, outcome)) = share.answers.front()
            {
                share.is_full = !out.send(server, kind::DEALT, &[&number.to_be_bytes(), &[*outcome]]);
                if !share.is_full {
                    share.answers.pop_front();
                }
            }
            for recall in recalls.iter_mut().filter(|recall| recall.has_to_ask(at, server)) {
                share.is_full = share.is_full || !out.send(server, kind::RECALL, &[&peer_bytes(recall.dead)]);
                if !share.is_full {
                    recall.note(at, Asked::Of(server));
                }
            }
            copies.blocked |= share.is_full;
        }
    }

    /// The server of a share has begun another life: what it alone had is lost.
    fn forget_server(&mut self, flows: &mut Flows, at: usize, out: &mut Outbox) {
        let servers = self.shares.len();
        let is_its = |flows: &Flows, slot: Slot| share_of(flows.hash(&flows.header(slot).key), servers) == at;
        // What is on its way to another runtime nobody writes to the new one.
        let is_sent = |slot: &Slot| flows.header(*slot).role == role::DEPARTED && is_its(flows, *slot);
        self.adrift.retain(|(slot, _)| !is_its(flows, *slot));
        self.adrift.extend((0..flows.reach()).filter(is_sent).map(|slot| (slot, flows.header(slot).generation)));
        let aside =
            self.paging.iter_mut().flat_map(|paging| paging.states_aside().map(|(slot, generation, _)| (slot, generation)));
        let aside: BTreeSet<(Slot, u32)> = aside.collect();
        let is_absent = |slot: &Slot| {
            let header = flows.header(*slot);
            let is_away = header.role == role::OWNER && !flows.is_present(*slot);
            is_away && !aside.contains(&(*slot, header.generation)) && is_its(flows, *slot)
        };
        let absent = (0..flows.reach()).filter(is_absent);
        out.lost.extend(absent.map(|slot| (slot, flows.header(slot).generation)));
        if let Some(paging) = &mut self.paging {
            paging.forget_server(flows, |flows, slot| is_its(flows, slot));
        }
    }
}

/// This one asks for the route of a flow as it was before.
fn is_claimed_older(ours: &ActorHeader, theirs: &ActorHeader) -> bool {
    ours.role == role::CLAIMING && ours.epoch != theirs.epoch && copies::is_newer(theirs, ours)
}

/// Bytes of a node and its incarnation.
const PEER: usize = 6;

/// Node and incarnation, as they travel.
fn peer_bytes(peer: Peer) -> [u8; PEER] {
    let ([a, b], [c, d, e, f]) = (peer.node.to_be_bytes(), peer.incarnation.to_be_bytes());
    [a, b, c, d, e, f]
}

/// Node and incarnation, and what follows them.
fn split_peer(body: &[u8]) -> Result<(Peer, &[u8]), DropReason> {
    let (node, rest) = body.split_first_chunk::<2>().ok_or(DropReason::Malformed)?;
    let (incarnation, rest) = split_u32(rest)?;
    Ok((Peer { node: u16::from_be_bytes(*node), incarnation }, rest))
}

fn only_peer(body: &[u8]) -> Result<Peer, DropReason> {
    split_peer(body).and_then(|(peer, rest)| if rest.is_empty() { Ok(peer) } else { Err(DropReason::Malformed) })
}

impl Protection for Rescue {
    fn name(&self) -> &'static str {
        "rescue"
    }

    fn home(&self) -> Home {
        Home::StateServer
    }

    fn present_flows(&self) -> usize {
        self.paging.as_ref().map_or(usize::MAX, |paging| paging.room)
    }

    fn keep_aside(&mut self, flows: &Flows, slot: Slot, state: &[u8]) {
        self.paging.iter_mut().for_each(|paging| paging.keep_aside(flows, slot, state));
    }

    fn aside(&self) -> usize {
        self.paging.as_ref().map_or(0, Paging::aside)
    }

    fn visit_aside(&mut self, visit: &mut dyn FnMut(Slot, u32, &mut [u8])) {
        let states = self.paging.iter_mut().flat_map(Paging::states_aside);
        states.for_each(|(slot, generation, state)| visit(slot, generation, state));
    }

    fn reserved(&self, room: usize) -> usize {
        self.paging.as_ref().map_or(0, |paging| paging.reserved(room))
    }

    fn fetch(&mut self, flows: &Flows, slot: Slot) -> bool {
        self.paging.as_mut().is_none_or(|paging| paging.has(flows, slot))
    }

    fn make_room(&mut self, flows: &mut Flows) {
        if self.paging.is_none() || !flows.is_paged() {
            return;
        }
        self.look_up();
        let Rescue { paging: Some(paging), shares, .. } = self else { return };
        if shares.iter().any(|share| share.server.is_some()) {
            paging.make_room(flows, shares);
        }
    }

    #[inline]
    fn admit(&mut self, flows: &mut Flows, slot: Slot) -> Admission {
        if let Some(paging) = &mut self.paging
            && !paging.use_of(flows, slot)
        {
            return Admission::Park;
        }
        match self.release {
            Release::WriteBack => self.copies.admit(flows, slot),
            Release::AtOnce { .. } => Admission::Ready,
        }
    }

    #[inline]
    fn commit(&mut self, flows: &mut Flows, slot: Slot, packet: Packet, _nondeterministic: bool, out: &mut Outbox) {
        self.note(flows, slot);
        match self.release {
            Release::WriteBack => self.copies.pending.push((slot, packet)),
            Release::AtOnce { .. } => {
                out.released_unprotected += u64::from(self.is_any_unknown && self.server_of(flows, slot).is_none());
                out.release(packet);
            }
        }
    }

    #[inline]
    fn changed(&mut self, flows: &mut Flows, slot: Slot, _stamp: u64, _nondeterministic: bool) {
        self.note(flows, slot);
    }

    fn ended(&mut self, flows: &mut Flows, slot: Slot, out: &mut Outbox) {
        self.copies.ended(flows, slot, out);
    }

    fn flush(&mut self, flows: &mut Flows, out: &mut Outbox) {
        for (slot, generation) in self.displaced.drain(..) {
            let header = flows.header(slot);
            if header.generation == generation && header.role == role::REPLICA {
                flows.remove(slot);
            }
        }
        let mut departing = core::mem::take(&mut self.departing);
        for (slot, generation) in departing.drain(..) {
            let header = flows.header_mut(slot);
            if header.generation != generation || header.role != role::OWNER {
                continue;
            }
            match self.release {
                Release::WriteBack => self.copies.mark_dirty(flows, slot),
                Release::AtOnce { .. } => {
                    header.flags |= flag::DIRTY;
                    self.due.push((slot, generation));
                }
            }
        }
        self.departing = departing;
        if let Release::AtOnce { every, .. } = self.release {
            self.write_some_back(flows, every, out);
        }
        self.copies.flush(flows, out);
        self.now = self.now.max(out.now());
        self.look_at_servers();
        self.make_room(flows);
        if let Some(paging) = &mut self.paging
            && paging.let_in(flows, &mut out.loaded)
        {
            // Nobody else has it as it is.
            self.copies.resynchronise_again();
        }
        // Behind what was written back, and passed on: the server knows of it before it is asked.
        self.speak(flows, out);
    }

    /// The servers, by share; [`Peer::default`] for one that has not been heard of.
    fn set_peers(&mut self, flows: &mut Flows, peers: &[Peer], _leaving: &[Peer], out: &mut Outbox) {
        self.shares.resize_with(peers.len().max(self.shares.len()), Share::default);
        let mut is_any_new = false;
        for at in 0..self.shares.len() {
            let server = peers.get(at).copied().filter(|peer| *peer != Peer::default());
            let share = &mut self.shares[at];
            let before = share.server;
            if server != before {
                *share = Share { server, ..Share::default() };
                is_any_new = true;
                if before.is_some() {
                    self.forget_server(flows, at, out);
                }
            }
        }
        self.is_any_unknown = self.shares.is_empty() || self.shares.iter().any(|share| share.server.is_none());
        let known: Vec<Peer> = self.shares.iter().filter_map(|share| share.server).collect();
        self.copies.shares.clear();
        self.copies.shares.extend(self.shares.iter().map(|share| share.server));
        self.copies.set_peers(flows, &known, &[], out);
        if is_any_new && !known.is_empty() {
            // Those who had none have one now.
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
        let Some(share) = self.share(from) else {
            // Nobody else has copies, or an earlier life of the server is late.
            return Err(DropReason::Fenced);
        };
        match record {
            kind::SAVED | kind::REFUSED => {
                self.paging.iter_mut().for_each(Paging::look_again);
                self.copies.handle_record(flows, from, record, body, out)
            }
            kind::PAGE_IN => self.handle_page(flows, body, out),
            kind::NO_PAGE => self.handle_no_page(flows, body, out),
            kind::DEAL => self.handle_deal(flows, from, body, out),
            kind::DISPLACED => self.handle_displaced(flows, from, body, out),
            kind::RECALLED => {
                let dead = only_peer(body)?;
                let shares = self.shares.len();
                self.recalls.iter_mut().filter(|recall| recall.dead == dead).for_each(|recall| recall.note(share, Asked::Over));
                self.recalls.retain(|recall| {
                    recall.dead != dead || recall.asked.len() < shares || recall.asked.iter().any(|asked| *asked != Asked::Over)
                });
                Ok(())
            }
            _ => Err(DropReason::Malformed),
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
        !self.planted.report_early && self.recalls.iter().any(|recall| recall.dead == dead)
    }

    fn claimed(&mut self, flows: &mut Flows, slot: Slot) {
        flows.set_role(slot, role::OWNER);
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
        // Or was, at an earlier life.
        let is_held_there = self.shares.iter().any(|share| share.server.is_some_and(|server| server.node == header.peer));
        let is_behind = is_held_there && !self.is_at_server(header);
        if is_behind || header.flags & flag::DIRTY != 0 {
            self.departing.push((slot, header.generation));
            return false;
        }
        self.copies.has_drained(flows, slot, out)
    }

    fn departs(&mut self, flows: &Flows, slot: Slot, to: Peer, epoch: u32, out: &mut Outbox) -> bool {
        let header = flows.header(slot);
        if !self.is_at_server(header) {
            return true;
        }
        let server = Peer { node: header.peer, incarnation: header.peer_incarnation };
        let Some(link) = self.copies.links.find(server) else { return true };
        let number = link.numbers.next();
        let (epochs, to) = ([header.epoch, epoch].map(u32::to_be_bytes), peer_bytes(to));
        let is_sent = out.send(server, kind::PASS, &[&number.to_be_bytes(), &epochs[0], &to, &epochs[1], header.key.as_bytes()]);
        if is_sent {
            link.numbers.last = number;
        }
        is_sent
    }

    fn keeps_sent(&self, flows: &Flows, slot: Slot) -> bool {
        !self.is_at_server(flows.header(slot))
    }

    fn departed(&mut self, _flows: &mut Flows, slot: Slot, _to: Peer, _old_epoch: u32, _out: &mut Outbox) -> bool {
        self.copies.parting.gone(slot);
        false
    }

    fn arrived(&mut self, flows: &mut Flows, slot: Slot, _from: Peer) {
        self.own(flows, slot);
    }

    fn is_busy(&self) -> bool {
        let has_to_say = |(at, share): (usize, &Share)| {
            let has_to_ask = |server: Peer| self.recalls.iter().any(|recall| recall.has_to_ask(at, server));
            share.server.is_some_and(|server| has_to_ask(server) || !share.answers.is_empty())
        };
        let is_anything_to_say = || self.shares.iter().enumerate().any(has_to_say);
        let is_any_known = || self.shares.iter().any(|share| share.server.is_some());
        let is_paging = self.paging.as_ref().is_some_and(Paging::is_busy);
        self.copies.is_busy()
            || !self.displaced.is_empty()
            || !self.departing.is_empty()
            || self.round > 0 && !self.copies.blocked
            || !self.copies.blocked && (is_anything_to_say() || is_paging && is_any_known())
    }

    fn safety(&self, flows: &Flows) -> Safety {
        let may_forget = match self.release {
            Release::WriteBack => 0,
            Release::AtOnce { packets, .. } => packets,
        };
        let is_old = |(_, since): &(u32, u64)| self.now.saturating_sub(*since) > self.late;
        let is_late = self.shares.iter().any(|share| share.under_way.front().is_some_and(is_old));
        let safety = self.copies.safety(flows);
        let unprotected = if self.is_any_unknown { flows.owned() as u64 } else { safety.unprotected };
        let is_adrift = |(slot, generation): &(Slot, u32)| {
            let header = flows.header(*slot);
            header.generation == *generation && header.role == role::DEPARTED
        };
        // What waits for room is with nobody else.
        let is_filling = safety.resynchronising || self.adrift.iter().any(is_adrift) || self.aside() > 0;
        let absent = flows.absent() as u64;
        let fetched = self.paging.as_ref().map_or(0, |paging| paging.fetched);
        Safety { may_forget, unprotected, absent, fetched, resynchronising: is_filling || may_forget > 0 && is_late, ..safety }
    }

    fn held(&self) -> usize {
        self.copies.held()
    }

    fn abandon(&mut self, out: &mut Outbox) {
        self.copies.abandon(out);
    }
}
