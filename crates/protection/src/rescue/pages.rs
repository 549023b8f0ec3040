//! The state server's side: the pages of all flows of a chain, and their distribution
//! after a failure.
//!
//! In: records from runtimes, who lives, who has died. Out: records. Never: a packet, a
//! flow that is served.
//!
//! Theory of operation. Pages are [NFVactor's replicas](crate::nfvactor), and arrive as
//! these do. The server serves no flow. When an owner dies, its pages are *dealt*, a few
//! at a time, to the runtimes that have asked for them. Each runtime answers whether it
//! took a flow. A flow that it did not take goes to the next one. All runtimes that have
//! asked are told when there are no more pages.

use super::paging::ASKED;
use super::records::{only_peer, peer_bytes, split_peer};
use crate::flows::{ActorHeader, Found, Journal, Life};
use crate::numbers::{key_of, split_commit, split_epoch, split_u32};
use crate::{Epoch, FlowRef, Flows, NfvActor, Outbox, Peer, Plan, Protection, Slot, kind};
use holdfast_wire::{DropReason, FlowKey, NodeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use zerocopy::{FromBytes, IntoBytes};

/// Flows that may be dealt to one runtime without an answer. The limit leaves as many for
/// a runtime that asks a moment later.
const UNANSWERED: usize = 64;
/// Time before a flow is dealt again that a runtime has not taken, ns.
const PAUSE: u64 = 1_000_000;
/// Time before a runtime that had no room is dealt a flow again, ns: a full table does
/// not empty at once.
const FULL_PAUSE: u64 = 100_000_000;
/// Time after the first refusal at which a flow that no runtime takes is given up, ns. By
/// then any obstacle is over, and every runtime that was to come has come.
const TIMEOUT: u64 = 10_000_000_000;

/// The parameters of a chain's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagesConfig {
    /// The chain.
    pub chain: u16,
    /// Flows of all runtimes.
    pub flows: usize,
    /// Bytes of the chain's state of one flow.
    pub state_len: usize,
    /// The chain's layout hash.
    pub layout: u64,
    /// The cluster's hash seed.
    pub seed: u64,
}

/// A flow on its way to a runtime that has not written it back yet.
struct Passed {
    flow: FlowRef,
    to: Peer,
    epoch: Epoch,
}

#[derive(Clone, Copy)]
struct Candidate {
    flow: FlowRef,
    /// Time at which the flow is given up, ns; [`u64::MAX`] before the first refusal.
    give_up_at: u64,
}

/// The flows of a dead runtime that are to be dealt.
struct Recall {
    dead: Peer,
    /// Set if the death is known here.
    is_buried: bool,
    queue: VecDeque<Candidate>,
    /// Flows that no runtime has taken so far, and the time from which they are dealt
    /// again, ns.
    again: Vec<Candidate>,
    again_at: u64,
    askers: Vec<Peer>,
    next_asker: usize,
    /// Askers that had no room, and the time until which they are passed over, ns.
    full: Vec<(Peer, u64)>,
}

struct Dealt {
    dead: Peer,
    to: Peer,
    candidate: Candidate,
}

/// A runtime serves a flow that another one has under a newer epoch.
struct Displaced {
    owner: Peer,
    flow: FlowRef,
}

/// See the module.
pub struct Pages {
    chain: u16,
    flows: Flows,
    copies: NfvActor,
    outbox: Outbox,
    passed: BTreeMap<Slot, Passed>,
    recalls: Vec<Recall>,
    dealt: BTreeMap<u32, Dealt>,
    next_number: u32,
    displaced: Vec<Displaced>,
    /// Requests for pages that wait for room in the runtimes' channels, in order.
    questions: VecDeque<(Peer, FlowKey)>,
    /// Runtimes that may be given flows.
    able: Vec<Peer>,
    /// By node: the latest incarnation that has died.
    buried: BTreeMap<NodeId, Peer>,
    now: u64,
    /// Scratch space.
    likely: Vec<Option<Found>>,
    /// Flows that no runtime took.
    lost: u64,
}

impl Pages {
    /// An empty set of pages.
    pub fn new(config: PagesConfig) -> Pages {
        Pages {
            chain: config.chain,
            flows: Flows::new(config.flows, config.state_len, config.layout, config.seed),
            copies: NfvActor::new(Plan::NFVACTOR_AT_SOURCE),
            outbox: Outbox::default(),
            passed: BTreeMap::new(),
            recalls: Vec::new(),
            dealt: BTreeMap::new(),
            next_number: 0,
            displaced: Vec::new(),
            questions: VecDeque::new(),
            able: Vec::new(),
            buried: BTreeMap::new(),
            now: 0,
            likely: Vec::with_capacity(1024),
            lost: 0,
        }
    }

    /// Sets the journal, which is told before a page, or the table that finds it,
    /// changes.
    pub fn set_journal(&mut self, journal: Journal) {
        self.flows.set_journal(journal);
        self.outbox.set_journal(journal);
        journal.scratch(&self.likely);
    }

    /// The pages, read-only.
    pub fn flows(&self) -> &Flows {
        &self.flows
    }

    /// The chain.
    pub fn chain(&self) -> u16 {
        self.chain
    }

    /// Flows that no runtime took after their owner had died, since the last call.
    pub fn take_lost(&mut self) -> u64 {
        core::mem::take(&mut self.lost)
    }

    /// Begins a batch of records. `rooms`: the runtimes to which records may be sent, and
    /// how many bytes of records each channel takes now. `able`: the runtimes among them
    /// that may be given flows.
    pub fn begin(&mut self, now: u64, rooms: impl Iterator<Item = (Peer, usize)>, able: &[Peer]) {
        self.now = now;
        self.flows.begin_turn();
        self.outbox.begin(self.chain, now);
        self.outbox.set_peers(rooms);
        self.able.clear();
        self.able.extend_from_slice(able);
    }

    /// Handles a record from a runtime, in order, without the chain's number.
    ///
    /// # Errors
    /// The reason to count if the record is not acceptable.
    pub fn handle_record(&mut self, from: Peer, record: u8, body: &[u8]) -> Result<(), DropReason> {
        let Pages { flows, copies, outbox, .. } = self;
        match record {
            kind::STATE => self.handle_state(from, body),
            kind::DELTA | kind::CHECK | kind::END => {
                copies.handle_record(flows, from, record, body, outbox)
            }
            kind::PASS => self.handle_pass(from, body),
            // A dead runtime could not be answered.
            kind::RECALL | kind::DEALT | kind::PAGE if self.is_buried(from) => {
                Err(DropReason::Fenced)
            }
            kind::PAGE => self.handle_question(from, body),
            kind::RECALL => only_peer(body).map(|dead| self.ask(from, dead)),
            kind::DEALT => self.handle_dealt(from, body),
            _ => Err(DropReason::Malformed),
        }
    }

    /// Like [`Protection::flow_of`].
    pub fn flow_of(&self, record: u8, body: &[u8]) -> Option<u64> {
        self.copies.flow_of(&self.flows, record, body)
    }

    /// Prefetches the pages of these flows. The value means nothing; use it so that the
    /// loads stay.
    pub fn touch(&mut self, hashes: &[u64]) -> u64 {
        let buckets = self.flows.touch_buckets(hashes.iter().copied());
        let slots = self.flows.touch_slots(hashes.iter().copied(), true, &mut self.likely);
        self.likely.clear();
        buckets.wrapping_add(slots)
    }

    fn handle_state(&mut self, from: Peer, body: &[u8]) -> Result<(), DropReason> {
        let Pages { flows, copies, outbox, .. } = self;
        let of_key = |flows: &Flows| {
            let key = key_of(body)?;
            flows
                .find(&key, flows.hash(&key))
                .filter(|found| !found.is_reply)
                .map(|found| found.slot)
        };
        let before = of_key(flows).map(|slot| *flows.header(slot));
        let outcome = copies.handle_record(flows, from, kind::STATE, body, outbox);
        let slot = of_key(flows);
        if let (Err(DropReason::StaleEpoch), Some(slot)) = (outcome, slot) {
            self.displace(from, slot);
        }
        let Some(slot) = outcome.map(|()| slot)? else { return Ok(()) };
        let flow = self.flows.reference(slot);
        let passed = self.passed.remove(&slot).filter(|passed| passed.flow == flow);
        if let Some(before) = before.filter(|before| before.reference(slot) == flow) {
            let owner = before.holder();
            let is_expected = passed.is_some_and(|passed| passed.to == from);
            if owner != from && !is_expected && !self.is_buried(owner) {
                self.displace(owner, slot);
            }
        }
        Ok(())
    }

    /// A runtime requests the state of a flow that it owns.
    fn handle_question(&mut self, from: Peer, body: &[u8]) -> Result<(), DropReason> {
        let key = FlowKey::read_from_bytes(body).map_err(|_| DropReason::Malformed)?;
        // An honest runtime has no more requests open at a time.
        if self.questions.iter().filter(|(asker, _)| *asker == from).count() >= ASKED {
            return Err(DropReason::QueueFull);
        }
        self.questions.push_back((from, key));
        Ok(())
    }

    /// Answers requests for pages, as far as the channels have room.
    fn answer(&mut self) {
        let mut questions = core::mem::take(&mut self.questions);
        questions.retain(|(from, key)| {
            let found = self.flows.find(key, self.flows.hash(key)).filter(|found| !found.is_reply);
            match found.map(|found| (found.slot, owner_of(self.flows.header(found.slot)))) {
                Some((slot, owner)) if owner == *from => {
                    let parts: [&[u8]; 2] =
                        [&self.flows.layout().to_be_bytes(), self.flows.block(slot)];
                    !self.outbox.send(*from, kind::PAGE_IN, &parts)
                }
                // Another runtime has the flow. The asker is told so first: the numbers
                // that the flow has leased are now the other runtime's.
                Some((slot, _)) => {
                    let parts: [&[u8]; 2] =
                        [&self.flows.layout().to_be_bytes(), self.flows.block(slot)];
                    !self.outbox.send(*from, kind::DISPLACED, &parts)
                        || !self.outbox.send(*from, kind::NO_PAGE, &[key.as_bytes()])
                }
                None => !self.outbox.send(*from, kind::NO_PAGE, &[key.as_bytes()]),
            }
        });
        self.questions = questions;
    }

    /// Notes that another runtime has this flow under a newer epoch, to tell `owner`.
    fn displace(&mut self, owner: Peer, slot: Slot) {
        let header = self.flows.header(slot);
        let is_known =
            self.displaced.iter().any(|known| (known.owner, known.flow.slot) == (owner, slot));
        if owner_of(header) != owner && !is_known {
            self.displaced.push(Displaced { owner, flow: header.reference(slot) });
        }
    }

    /// A flow is on its way to another runtime. If either of the two dies, the page here
    /// belongs to the other.
    fn handle_pass(&mut self, from: Peer, body: &[u8]) -> Result<(), DropReason> {
        let (number, rest) = split_commit(body)?;
        let (old, rest) = split_epoch(rest)?;
        let (to, rest) = split_peer(rest)?;
        let (epoch, rest) = split_epoch(rest)?;
        let key = FlowKey::read_from_bytes(rest).map_err(|_| DropReason::Malformed)?;
        self.copies.take_commit(from, number)?;
        let Some(found) =
            self.flows.find(&key, self.flows.hash(&key)).filter(|found| !found.is_reply)
        else {
            return Ok(());
        };
        let header = self.flows.header(found.slot);
        if header.holder() != from || !old.has_reached(header.epoch) {
            return Ok(());
        }
        let flow = header.reference(found.slot);
        self.passed.insert(found.slot, Passed { flow, to, epoch });
        if self.is_buried(to) {
            // The runtime that passed the flow on asks for it, behind this record.
            self.inherit(found.slot);
            let candidate = Candidate { flow, give_up_at: u64::MAX };
            let recall = self.recall_of(to);
            if recall.queue.iter().all(|known| known.flow.slot != flow.slot) {
                recall.queue.push_back(candidate);
            }
        }
        Ok(())
    }

    fn is_buried(&self, peer: Peer) -> bool {
        self.buried.get(&peer.node).is_some_and(|last| last.has_reached(peer))
    }

    /// Gives the page to the flow's next owner.
    fn inherit(&mut self, slot: Slot) {
        if let Some(Passed { flow, to, epoch }) = self.passed.remove(&slot) {
            let header = self.flows.header_mut(slot);
            if header.reference(slot) == flow {
                header.set_holder(to);
                header.epoch = epoch;
            }
        }
    }

    /// The recall of this runtime, whether its death is known here or not.
    fn recall_of(&mut self, dead: Peer) -> &mut Recall {
        let at = self.recalls.iter().position(|recall| recall.dead == dead).unwrap_or_else(|| {
            let (queue, again, askers) = (VecDeque::new(), Vec::new(), Vec::new());
            self.recalls.push(Recall {
                dead,
                is_buried: false,
                queue,
                again,
                again_at: 0,
                askers,
                next_asker: 0,
                full: Vec::new(),
            });
            self.recalls.len() - 1
        });
        if !self.recalls[at].is_buried && self.is_buried(dead) {
            // Queues of other recalls may contain the same flows. A recall skips a flow
            // whose owner is another one now.
            let dealt = self.dealt.values().filter(|dealt| dealt.dead == dead);
            let known: BTreeSet<Slot> = dealt.map(|dealt| dealt.candidate.flow.slot).collect();
            let is_meant = |(slot, header): &(Slot, &ActorHeader)| {
                owner_of(header) == dead && !known.contains(slot)
            };
            let meant = self.flows.iter().filter(is_meant);
            let candidates = meant.map(|(slot, header)| Candidate {
                flow: header.reference(slot),
                give_up_at: u64::MAX,
            });
            self.recalls[at].queue = candidates.collect();
            self.recalls[at].is_buried = true;
        }
        &mut self.recalls[at]
    }

    fn ask(&mut self, from: Peer, dead: Peer) {
        let recall = self.recall_of(dead);
        if !recall.askers.contains(&from) {
            recall.askers.push(from);
        }
    }

    /// Runtimes that are asked about and not known here to be dead. The caller may ask
    /// again whenever more deaths are known.
    pub fn unknown(&self) -> impl Iterator<Item = Peer> + '_ {
        self.recalls.iter().filter(|recall| !recall.is_buried).map(|recall| recall.dead)
    }

    /// Notes the death of a runtime and of all its earlier incarnations.
    pub fn bury(&mut self, dead: Peer) {
        self.copies.close(dead, &mut self.outbox);
        let is_dead = |peer: Peer| dead.has_reached(peer);
        let last = self.buried.entry(dead.node).or_insert(dead);
        if dead.has_reached(*last) {
            *last = dead;
        }
        for recall in &mut self.recalls {
            recall.askers.retain(|asker| !is_dead(*asker));
        }
        self.questions.retain(|(asker, _)| !is_dead(*asker));
        let unanswered: Vec<Dealt> = self
            .dealt
            .extract_if(.., |_, dealt| is_dead(dealt.to))
            .map(|(_, dealt)| dealt)
            .collect();
        for Dealt { dead, candidate, .. } in unanswered {
            self.recall_of(dead).queue.push_back(candidate);
        }
        let on_their_way: Vec<Slot> = self
            .passed
            .iter()
            .filter(|(_, passed)| is_dead(passed.to))
            .map(|(slot, _)| *slot)
            .collect();
        on_their_way.into_iter().for_each(|slot| self.inherit(slot));
        let known = self.recalls.iter().map(|recall| recall.dead).filter(|peer| is_dead(*peer));
        for dead in known.chain([dead]).collect::<BTreeSet<Peer>>() {
            self.recall_of(dead);
        }
    }

    /// The recovery of `dead` is complete: forgets the pages that are left.
    pub fn recovered(&mut self, dead: Peer) {
        for recall in self.recalls.iter_mut().filter(|recall| recall.dead == dead) {
            recall.queue.clear();
            recall.again.clear();
        }
        self.dealt.retain(|_, dealt| dealt.dead != dead);
        let left: Vec<Slot> = self
            .flows
            .iter()
            .filter(|(_, header)| owner_of(header) == dead)
            .map(|(slot, _)| slot)
            .collect();
        for slot in left {
            self.passed.remove(&slot);
            self.flows.remove(slot);
        }
    }

    fn handle_dealt(&mut self, from: Peer, body: &[u8]) -> Result<(), DropReason> {
        let (number, rest) = split_u32(body)?;
        let &[outcome] = rest else { return Err(DropReason::Malformed) };
        if self.dealt.get(&number).is_none_or(|dealt| dealt.to != from) {
            return Err(DropReason::StaleDuplicate);
        }
        let Some(Dealt { dead, candidate, .. }) = self.dealt.remove(&number) else { return Ok(()) };
        let flow = candidate.flow;
        let is_its = self.flows.get(flow).is_some_and(|header| owner_of(header) == dead);
        if outcome == 0 {
            // The runtime is the owner here even before it writes the flow back: if it
            // dies too, others get the flow.
            if is_its {
                let header = self.flows.header_mut(flow.slot);
                header.set_holder(from);
            }
        } else if outcome == DropReason::QueueFull as u8 + 1 {
            // The runtime has a slot for the flow, and will have room as soon as another
            // flow's state is evicted. This is no refusal.
            let now = self.now;
            let recall = self.recall_of(dead);
            recall.queue.push_back(candidate);
            recall.full.push((from, now.saturating_add(PAUSE)));
        } else if self.now < candidate.give_up_at {
            let now = self.now;
            let recall = self.recall_of(dead);
            recall.again.push(Candidate {
                give_up_at: candidate.give_up_at.min(now.saturating_add(TIMEOUT)),
                ..candidate
            });
            recall.again_at = now.saturating_add(PAUSE);
            if outcome == DropReason::FlowTableFull as u8 + 1 {
                recall.full.push((from, now.saturating_add(FULL_PAUSE)));
            }
        } else if is_its {
            self.flows.remove(flow.slot);
            self.lost += 1;
        }
        Ok(())
    }

    /// The batch is over.
    pub fn flush(&mut self) {
        self.deal();
        self.tell_displaced();
        self.answer();
        let Pages { flows, copies, outbox, .. } = self;
        copies.flush(flows, outbox);
    }

    /// The time at which there is work even without input, ns.
    pub fn poll_timeout(&self) -> u64 {
        let due = self.recalls.iter().filter_map(|recall| {
            let again =
                (!recall.again.is_empty() && recall.queue.is_empty()).then_some(recall.again_at);
            let full = recall
                .full
                .iter()
                .map(|(_, until)| *until)
                .min()
                .filter(|_| !recall.queue.is_empty());
            again.into_iter().chain(full).min()
        });
        due.min().unwrap_or(u64::MAX)
    }

    fn deal(&mut self) {
        for at in 0..self.recalls.len() {
            let recall = &mut self.recalls[at];
            if self.now >= recall.again_at && recall.queue.is_empty() {
                recall.queue.extend(recall.again.drain(..));
            }
            recall.full.retain(|(_, until)| self.now < *until);
            // A leaving runtime gets flows only if no other runtime asks.
            let is_any_able = recall.askers.iter().any(|asker| self.able.contains(asker));
            let is_meant = |asker: &Peer| {
                let has_room = recall.full.iter().all(|(full, _)| full != asker);
                has_room && (!is_any_able || self.able.contains(asker))
            };
            let heirs: Vec<Peer> = recall.askers.iter().copied().filter(is_meant).collect();
            let unanswered_of =
                |heir: &Peer| self.dealt.values().filter(|dealt| dealt.to == *heir).count();
            let mut unanswered: Vec<usize> = heirs.iter().map(unanswered_of).collect();
            let mut refused = 0;
            while recall.is_buried
                && refused < heirs.len()
                && let Some(candidate) = recall.queue.front().copied()
            {
                let flow = candidate.flow;
                let header = self.flows.get(flow).filter(|header| owner_of(header) == recall.dead);
                let Some(header) = header else {
                    recall.queue.pop_front();
                    continue;
                };
                let turn = recall.next_asker % heirs.len();
                let heir = heirs[turn];
                recall.next_asker = turn + 1;
                let number = self.next_number;
                let of = peer_bytes(owner_of(header));
                let parts: [&[u8]; 4] = [
                    &number.to_be_bytes(),
                    &of,
                    &self.flows.layout().to_be_bytes(),
                    self.flows.block(flow.slot),
                ];
                if unanswered[turn] >= UNANSWERED || !self.outbox.send(heir, kind::DEAL, &parts) {
                    refused += 1;
                    continue;
                }
                refused = 0;
                unanswered[turn] += 1;
                self.next_number = self.next_number.wrapping_add(1);
                self.dealt.insert(number, Dealt { dead: recall.dead, to: heir, candidate });
                recall.queue.pop_front();
            }
        }
        let Pages { recalls, dealt, outbox, .. } = self;
        recalls.retain_mut(|recall| {
            let is_open = |dealt: &Dealt| dealt.dead == recall.dead;
            if !recall.is_buried
                || !recall.queue.is_empty()
                || !recall.again.is_empty()
                || dealt.values().any(is_open)
            {
                return true;
            }
            let dead = peer_bytes(recall.dead);
            recall.askers.retain(|asker| !outbox.send(*asker, kind::RECALLED, &[&dead]));
            !recall.askers.is_empty()
        });
    }

    fn tell_displaced(&mut self) {
        let mut displaced = core::mem::take(&mut self.displaced);
        displaced.retain(|Displaced { owner, flow }| {
            let is_there = self.flows.reference(flow.slot) == *flow && !self.is_buried(*owner);
            let parts: [&[u8]; 2] =
                [&self.flows.layout().to_be_bytes(), self.flows.block(flow.slot)];
            is_there && !self.outbox.send(*owner, kind::DISPLACED, &parts)
        });
        self.displaced = displaced;
    }

    /// The records to send, in order.
    pub fn records(&self) -> impl Iterator<Item = (crate::ChannelRecord, &[u8])> + '_ {
        self.outbox.records()
    }

    /// Forgets the records after they were sent.
    pub fn clear_records(&mut self) {
        self.outbox.clear_records();
        self.outbox.demoted.clear();
    }
}

fn owner_of(header: &ActorHeader) -> Peer {
    if header.life() == Life::Copy { header.holder() } else { Peer::default() }
}
