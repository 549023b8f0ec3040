//! A list of indexes, at the server: which instance holds which.
//!
//! Theory of operation. An index is *free*, an instance's *credit* (assigned, and not
//! known to be used), *held* by one instance or more, *lost sight of*, or *resting*.
//! Instances say by themselves when they begin and cease to hold an index, and messages
//! of one instance arrive in order. An index therefore has no holder when every instance
//! that began has ceased. A flow may move from one instance to another without any order
//! between the messages of the two. The source says [`Moved`](Opcode::Moved), the target
//! claims ([`IndexAssignment`](Opcode::IndexAssignment)). If `Moved` arrives first, the
//! index is lost sight of until the claim arrives, which is not free.
//!
//! A dead instance keeps what it held until every instance with copies of its flows has
//! claimed their indexes. Its credit stays too, because it may have used an index and
//! died before its message arrived. The server asks about an index that has been silent
//! for long (RESCue: expiration). The index is over only if every instance that could
//! have it says that it does not, and no other message about it arrives meanwhile. A late
//! message may therefore keep an index from being used, but never gives it to two flows.
//!
//! An index that was used rests before it is free (RFC 6888, section 4: a port is not
//! used again for 120 seconds).
//!
//! In: messages of instances, instances that join or die, time. Out: messages to
//! instances. The same inputs give the same outputs.

mod questions;
mod requests;

use crate::control::{Message, Opcode};
use crate::wheel::Wheel;
use holdfast_wire::Peer;
use holdfast_wire::fault::{Fault, is_planted};
pub(crate) use questions::QUESTIONS;
use questions::Question;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Credit of a runtime in each pool of a state server: new flows open at once while it
/// lasts. Small pools give a sixteenth of their size.
pub const SERVER_CREDIT: usize = 64;

/// Parameters of a list. Times in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Number of indexes; they are counted from 0.
    pub size: u32,
    /// Indexes that an instance may have without using them.
    pub credit: u32,
    /// The server asks about an index that has been silent for so long. 0: never.
    pub lease: u64,
    /// An index rests for so long after its flow's end.
    pub rest: u64,
    /// The same, if shorter, for an index that nobody has claimed from a list that
    /// remembers nothing: most of these were free all the time.
    pub unknown_rest: u64,
    /// The server asks about an index so long after it was lost sight of, and again at
    /// this interval. Instances that were asked to spare indexes have as long to do so.
    pub timeout: u64,
    /// Accuracy of all these times: at least 1, and at least a 2^29th of the longest.
    pub step: u64,
}

/// Indexes by state; the sum is the list's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Account {
    /// Free, and to be assigned.
    pub free: u32,
    /// Assigned to an instance and not known to be used.
    pub credit: u32,
    /// Held by flows, as far as was last heard.
    pub held: u32,
    /// At rest after use.
    pub resting: u32,
}

impl Account {
    /// The sum: the list's size.
    pub fn size(&self) -> u32 {
        self.free + self.credit + self.held + self.resting
    }
}

/// A message to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// The receiver.
    pub to: Peer,
    /// The message.
    pub message: Message,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Credit,
    Held,
    /// No instance has said that it holds the index, and the last holder has said that
    /// another one does.
    Lost,
    Resting,
}

/// The position of an instance's entry.
type Slot = u16;

#[derive(Debug, Clone, Copy)]
struct Entry {
    state: State,
    /// The holder, or the instance that has it as credit. If there are several holders,
    /// one of them.
    holder: Slot,
    /// A flow that had the index has ended: another holder will say that its flow has
    /// moved.
    is_over: bool,
}

const NOBODY: Slot = Slot::MAX;
const FREE: Entry = Entry { state: State::Free, holder: NOBODY, is_over: false };

#[derive(Debug, Clone)]
struct Instance {
    peer: Peer,
    is_dead: bool,
    credit: u32,
    wanted: u32,
    /// Requests that this instance has sent.
    requests: u32,
    /// The time of a request that was not served in full, while others may have indexes
    /// to spare.
    unanswered: Option<u64>,
    /// The time at which this instance was asked to spare indexes; `None` once it has
    /// been assigned one since.
    asked_at: Option<u64>,
    /// True if the instance claimed indexes while nothing was known: some of these may be
    /// unused.
    may_have_more: bool,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct List {
    number: u32,
    limits: Limits,
    entries: Vec<Entry>,
    /// Further holders of an index, while its flow moves.
    others: BTreeMap<u32, Vec<Slot>>,
    /// Free indexes, the longest free first. Some may not be free any more.
    free: VecDeque<u32>,
    wheel: Wheel,
    questions: BTreeMap<u32, Question>,
    /// Indexes that are due to be asked about while too many questions are open. The
    /// longest waiting comes first; some may have been heard of since.
    unasked: VecDeque<u32>,
    /// Instances by slot. An empty slot is taken again.
    instances: Vec<Option<Instance>>,
    slots: BTreeMap<Peer, Slot>,
    /// The stand-in that holds all that this list does not remember.
    past: Option<Peer>,
    /// The time at which the unclaimed indexes of the past have rested.
    settles_at: Option<u64>,
    /// How many instances are dead.
    dead: usize,
    /// Instances that want more indexes than there were.
    wanting: VecDeque<Slot>,
    /// An upper bound of how many of them have not been answered yet.
    unanswered: usize,
    account: Account,
    now: u64,
}

impl List {
    /// A list whose indexes are all free. `number` is the list's number in messages.
    pub fn new(number: u32, limits: Limits) -> List {
        // The wheel reaches every time below this step.
        let longest = limits.lease.max(limits.rest).max(limits.timeout);
        let limits = Limits { step: limits.step.max(longest >> 29).max(1), ..limits };
        List {
            number,
            limits,
            entries: vec![FREE; limits.size as usize],
            others: BTreeMap::new(),
            free: (0..limits.size).collect(),
            wheel: Wheel::new(limits.size),
            questions: BTreeMap::new(),
            unasked: VecDeque::new(),
            instances: Vec::new(),
            slots: BTreeMap::new(),
            past: None,
            settles_at: None,
            dead: 0,
            wanting: VecDeque::new(),
            unanswered: 0,
            account: Account { free: limits.size, ..Account::default() },
            now: 0,
        }
    }

    /// A list of which nothing is known: any index may be a flow's. The stand-in `past`,
    /// which counts as dead, holds them all.
    pub fn unknown(number: u32, limits: Limits, past: Peer) -> List {
        let mut list = List::new(number, limits);
        list.join(past);
        list.fence(past);
        list.past = Some(past);
        list.free.clear();
        list.account = Account { held: limits.size, ..Account::default() };
        let holder = list.slots[&past];
        list.entries.fill(Entry { state: State::Held, holder, is_over: false });
        list
    }

    /// Indexes by state.
    pub fn account(&self) -> Account {
        self.account
    }

    /// The number of indexes.
    pub fn size(&self) -> u32 {
        self.entries.len() as u32
    }

    /// True if the index is free and may be assigned. An index that does not exist is not
    /// free.
    pub fn is_free(&self, index: u32) -> bool {
        self.entries.get(index as usize).is_some_and(|entry| entry.state == State::Free)
    }

    /// True if the index is assigned, or held by a flow as far as was last heard.
    pub fn is_taken(&self, index: u32) -> bool {
        self.entries
            .get(index as usize)
            .is_some_and(|entry| matches!(entry.state, State::Credit | State::Held | State::Lost))
    }

    /// The holders of this index as far as is known, the dead included.
    pub fn holders(&self, index: u32) -> impl Iterator<Item = Peer> + '_ {
        let first = self
            .entries
            .get(index as usize)
            .filter(|entry| entry.state == State::Held)
            .map(|entry| entry.holder);
        let others = self.others.get(&index).into_iter().flatten().copied();
        first
            .into_iter()
            .chain(others)
            .filter_map(|slot| Some(self.instances.get(usize::from(slot))?.as_ref()?.peer))
    }

    fn slot(&self, peer: Peer) -> Option<Slot> {
        self.slots.get(&peer).copied()
    }

    fn slot_of_living(&self, peer: Peer) -> Option<Slot> {
        self.slot(peer).filter(|slot| !self.is_dead(*slot))
    }

    fn is_dead(&self, slot: Slot) -> bool {
        matches!(self.instances.get(usize::from(slot)), Some(Some(Instance { is_dead: true, .. })))
    }

    fn instance(&mut self, slot: Slot) -> Option<&mut Instance> {
        self.instances.get_mut(usize::from(slot))?.as_mut()
    }

    fn living(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..)
            .zip(&self.instances)
            .filter(|(_, instance)| instance.as_ref().is_some_and(|instance| !instance.is_dead))
            .map(|(slot, _)| slot)
    }

    fn say(&self, slot: Slot, opcode: Opcode, index: u32, out: &mut Vec<Output>) {
        if let Some(Some(instance)) = self.instances.get(usize::from(slot)) {
            out.push(Output {
                to: instance.peer,
                message: Message::new(opcode, self.number, index),
            });
        }
    }

    /// Adds an instance. False if the list has as many as it can have.
    pub fn join(&mut self, peer: Peer) -> bool {
        if self.slot(peer).is_some() {
            return true;
        }
        let instance = Some(Instance {
            peer,
            is_dead: false,
            credit: 0,
            wanted: 0,
            requests: 0,
            unanswered: None,
            asked_at: None,
            may_have_more: false,
        });
        let slot = match self.instances.iter().position(Option::is_none) {
            Some(slot) => {
                self.instances[slot] = instance;
                slot
            }
            None if self.instances.len() < usize::from(NOBODY) - 1 => {
                self.instances.push(instance);
                self.instances.len() - 1
            }
            None => return false,
        };
        self.slots.insert(peer, slot as Slot);
        // A flow may move to it at once.
        self.questions.values_mut().for_each(|question| question.is_quiet = false);
        true
    }

    /// Marks the instance as dead: none of its messages counts any more. Its indexes stay
    /// its own until [`List::release`].
    pub fn fence(&mut self, peer: Peer) {
        let Some(slot) = self.slot_of_living(peer) else { return };
        if let Some(instance) = self.instance(slot) {
            instance.is_dead = true;
            (instance.wanted, instance.unanswered) = (0, None);
        }
        self.dead += 1;
        self.wanting.retain(|wanting| *wanting != slot);
        // Another instance may have its flows and not know it yet.
        self.questions.values_mut().for_each(|question| question.is_quiet = false);
        let asked: Vec<u32> = self.questions.keys().copied().collect();
        asked.into_iter().for_each(|index| self.answered(slot, index));
        if is_planted(Fault::FreesAtDeath) {
            self.let_go(&BTreeSet::from([slot]));
        }
    }

    /// Frees the unclaimed rest of these dead instances' indexes. Every living instance
    /// has answered the roll call twice, the second time after all had answered once.
    pub fn release(&mut self, dead: &[Peer], out: &mut Vec<Output>) {
        let slots = dead
            .iter()
            .filter_map(|dead| self.slot(*dead))
            .filter(|slot| self.is_dead(*slot))
            .collect();
        self.let_go(&slots);
        for slot in slots {
            if let Some(instance) = self.instances[usize::from(slot)].take() {
                self.slots.remove(&instance.peer);
                self.dead -= 1;
            }
        }
        self.ask_more(out);
        self.serve(out);
        self.answer(out);
    }

    fn let_go(&mut self, slots: &BTreeSet<Slot>) {
        let first = (0..).zip(&self.entries).filter(|(_, entry)| slots.contains(&entry.holder));
        let first = first.map(|(index, entry)| (entry.holder, index));
        let others = self
            .others
            .iter()
            .flat_map(|(index, others)| others.iter().map(move |other| (*other, *index)));
        let held: Vec<(Slot, u32)> =
            first.chain(others.filter(|(other, _)| slots.contains(other))).collect();
        let past = self.past.and_then(|past| self.slot(past));
        let is_past = |slot: Slot| past == Some(slot);
        if past.is_some_and(|past| slots.contains(&past)) {
            let rest =
                self.limits.unknown_rest.min(self.limits.rest).saturating_add(2 * self.limits.step);
            self.settles_at = Some(self.now.saturating_add(rest));
        }
        for (slot, index) in held {
            // Indexes with other holders are not over.
            let (is_over, was_over) =
                (!self.others.contains_key(&index), self.entries[index as usize].is_over);
            self.cease(slot, index, is_over);
            if is_past(slot) && !was_over && self.entries[index as usize].state == State::Resting {
                self.rest_shortly(index);
            }
        }
    }

    /// Takes a message of an instance. The server believes it about what the instance
    /// holds itself, and about nothing else. An instance that claims another one's index,
    /// and says that it is over, may take it from that one.
    pub fn handle(&mut self, from: Peer, message: Message, out: &mut Vec<Output>) {
        let Some(slot) = self.slot_of_living(from) else { return };
        let index = message.index;
        if message.opcode == Opcode::IndexRequest {
            return self.request(slot, index, out);
        }
        if index >= self.limits.size {
            return self.say(slot, Opcode::UpdateFailure, index, out);
        }
        let is_holder = self.is_holder(slot, index);
        match message.opcode {
            Opcode::IndexAssignment => {
                let is_unknown = self.past.is_some_and(|past| self.slots.contains_key(&past));
                if let Some(instance) = self.instance(slot).filter(|_| is_unknown) {
                    instance.may_have_more = true;
                }
                self.claim(slot, index);
            }
            Opcode::Rejuvenate if is_holder => self.used(slot, index),
            Opcode::Moved if is_holder => self.cease(slot, index, false),
            Opcode::Expire if is_holder => self.cease(slot, index, true),
            Opcode::Return if is_holder => self.give_back(slot, index),
            Opcode::Answered => {
                self.answered(slot, index);
                self.ask_more(out);
            }
            _ => self.say(slot, Opcode::UpdateFailure, index, out),
        }
        self.serve(out);
        self.answer(out);
    }

    /// Advances the time.
    pub fn advance(&mut self, now: u64, out: &mut Vec<Output>) {
        self.now = self.now.max(now);
        let mut due = Vec::new();
        self.wheel.advance(self.now / self.limits.step, |index| {
            due.push(index);
            None
        });
        due.into_iter().for_each(|index| self.due(index, out));
        self.ask_more(out);
        self.serve(out);
        self.settle_past();
        self.answer(out);
    }

    fn wake(&mut self, index: u32, after: u64) {
        self.wheel.set(index, self.now.saturating_add(after).div_ceil(self.limits.step));
    }

    fn count(&mut self, state: State) -> &mut u32 {
        match state {
            State::Free => &mut self.account.free,
            State::Credit => &mut self.account.credit,
            State::Held | State::Lost => &mut self.account.held,
            State::Resting => &mut self.account.resting,
        }
    }

    fn turn(&mut self, index: u32, state: State, holder: Slot) {
        let before = self.entries[index as usize];
        *self.count(before.state) -= 1;
        *self.count(state) += 1;
        if before.state == State::Credit
            && let Some(instance) = self.instance(before.holder)
        {
            instance.credit -= 1;
        }
        if state == State::Credit
            && let Some(instance) = self.instance(holder)
        {
            instance.credit += 1;
        }
        let is_over = before.is_over && matches!(state, State::Credit | State::Held);
        self.entries[index as usize] = Entry { state, holder, is_over };
        if let Some(question) = self.questions.get_mut(&index) {
            question.is_quiet = false;
        }
        match state {
            State::Held if self.limits.lease > 0 => self.wake(index, self.limits.lease),
            State::Held | State::Credit | State::Free => self.wheel.cancel(index),
            State::Lost => self.wake(index, self.limits.timeout),
            State::Resting => self.wake(index, self.limits.rest),
        }
        if state == State::Free {
            if self.free.len() >= 2 * self.entries.len() {
                let entries = &self.entries;
                let mut seen = vec![false; entries.len()];
                self.free.retain(|index| {
                    entries[*index as usize].state == State::Free
                        && !core::mem::replace(&mut seen[*index as usize], true)
                });
            }
            self.free.push_back(index);
        }
    }

    fn is_holder(&self, slot: Slot, index: u32) -> bool {
        let entry = self.entries[index as usize];
        entry.holder == slot || self.others.get(&index).is_some_and(|others| others.contains(&slot))
    }

    /// A flow with this index has come to the instance. Dead holders of the index are
    /// dropped: the living have their flows, and speak for them.
    fn claim(&mut self, slot: Slot, index: u32) {
        self.forget_the_dead(index, slot);
        let Entry { state, holder, .. } = self.entries[index as usize];
        let is_known = self.is_holder(slot, index);
        match state {
            // The claimed flow came from the instance that has the credit and has not
            // been heard yet. Or the claim is late and the flow over, and then the
            // claimant may even be the instance that has the credit now. The index stays
            // credit until that instance says that it uses it.
            State::Credit => {
                let others = self.others.entry(index).or_default();
                if !others.contains(&slot) {
                    others.push(slot);
                }
            }
            State::Held => {
                if !is_known {
                    self.others.entry(index).or_default().push(slot);
                }
                // Earlier news of an end concerned another flow.
                self.entries[index as usize].is_over = false;
                self.turn(index, State::Held, holder);
            }
            State::Free | State::Lost | State::Resting => self.turn(index, State::Held, slot),
        }
    }

    /// Drops dead holders of this index, which the instance at `slot` has claimed.
    fn forget_the_dead(&mut self, index: u32, slot: Slot) {
        if let Some(mut others) = self.others.remove(&index) {
            others.retain(|other| !self.is_dead(*other));
            if !others.is_empty() {
                self.others.insert(index, others);
            }
        }
        if self.is_dead(self.entries[index as usize].holder) {
            if let Some(others) = self.others.get_mut(&index) {
                others.retain(|other| *other != slot);
            }
            if self.others.get(&index).is_some_and(Vec::is_empty) {
                self.others.remove(&index);
            }
            self.turn(index, State::Held, slot);
        }
    }

    fn used(&mut self, slot: Slot, index: u32) {
        let entry = self.entries[index as usize];
        if entry.state == State::Credit {
            if entry.holder == slot
                && !self.others.get(&index).is_some_and(|others| others.contains(&slot))
            {
                self.turn(index, State::Held, slot);
            }
            return;
        }
        self.entries[index as usize].is_over = false;
        if let Some(question) = self.questions.get_mut(&index) {
            question.is_quiet = false;
        }
        if self.limits.lease > 0 {
            self.wake(index, self.limits.lease);
        }
    }

    /// The instance ceases to hold the index, because the flow is over or has moved.
    fn cease(&mut self, slot: Slot, index: u32, is_over: bool) {
        let entry = &mut self.entries[index as usize];
        entry.is_over |= is_over;
        let Entry { state, holder, is_over } = *entry;
        let next = self.others.get_mut(&index).and_then(|others| {
            // Messages arrive in order, so a further holder's own message ends its own
            // part first.
            let Some(at) = others.iter().position(|other| *other == slot) else {
                return others.pop();
            };
            others.swap_remove(at);
            Some(holder)
        });
        if self.others.get(&index).is_some_and(Vec::is_empty) {
            self.others.remove(&index);
        }
        match next {
            Some(next) if next == holder => self.turn(index, state, holder),
            Some(next) => self.turn(index, State::Held, next),
            None if !is_over && !is_planted(Fault::TakesMovedForOver) => {
                self.turn(index, State::Lost, NOBODY)
            }
            None => self.rest(index),
        }
    }

    fn rest(&mut self, index: u32) {
        let state = if self.limits.rest > 0 { State::Resting } else { State::Free };
        self.turn(index, state, NOBODY);
    }

    /// Shortens the rest of an index that nobody is known to have used.
    fn rest_shortly(&mut self, index: u32) {
        match self.limits.unknown_rest {
            0 => self.turn(index, State::Free, NOBODY),
            rest => self.wake(index, rest.min(self.limits.rest)),
        }
    }

    fn give_back(&mut self, slot: Slot, index: u32) {
        match self.entries[index as usize].state {
            State::Credit if !self.others.contains_key(&index) => {
                self.turn(index, State::Free, NOBODY)
            }
            _ => self.cease(slot, index, true),
        }
    }
}
