//! One list of indexes, at the server: who has which.
//!
//! Theory of operation. An index is *free*, an instance's *credit* (assigned, and not known to be used), *held* by one instance or more, *lost sight of*, or *resting*. An instance says by itself when it
//! begins and when it ceases to hold an index, and messages of one instance come in order, so an index is nobody's when everybody who began has ceased. That a flow moves from one
//! instance to another needs no order between the messages of the two: the one says [`Moved`](Opcode::Moved), the other claims ([`IndexAssignment`](Opcode::IndexAssignment)),
//! and if the first is heard first the index is lost sight of meanwhile, which is not free.
//!
//! What the dead held stays theirs until everybody who has copies of their flows has claimed what those hold; credit as well, because a dead instance may have used it and
//! said so in vain. An index of which nothing was heard for long is asked for (RESCue: expiration). Only if all that could have it have said that they do not,
//! and nothing else has been heard of it meanwhile, is it over. So a message that is late keeps an index from being used; it never lets two flows have it.
//!
//! Before an index that was used is free it rests (RFC 6888, section 4: a port is not used again for 120 seconds).
//!
//! In: messages of instances, which instances there are, which are dead, time. Out: messages to instances. The same inputs give the same outputs.

use crate::control::{Message, Opcode, QUESTIONS_AT_MOST};
use crate::wheel::Wheel;
use holdfast_wire::Peer;
use holdfast_wire::fault::{Fault, is_planted};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Numbers that a runtime has at hand of each pool that is a state server's: new flows open at once while these last. Of small pools, a sixteenth.
pub const SERVER_CREDIT: usize = 64;

/// What a list is like. Times in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Indexes, counted from 0.
    pub size: u32,
    /// Indexes that an instance may have without using them.
    pub credit: u32,
    /// An index of which nothing was heard for so long is asked for. 0: never.
    pub lease: u64,
    /// After its flow's end an index is nobody's for so long.
    pub rest: u64,
    /// The same, if that is less, of an index that nobody has claimed from a list that remembers nothing: most were nobody's all the time.
    pub unknown_rest: u64,
    /// So long after it was lost sight of an index is asked for, and so long after that again; and for so long those are waited for who have been asked for what they can spare.
    pub patience: u64,
    /// Accuracy of all of these, at least 1, and at least a 2^29th of the longest.
    pub step: u64,
}

/// How many indexes are what; together they are all there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Account {
    /// Nobody's.
    pub free: u32,
    /// Assigned to an instance and not known to be used.
    pub credit: u32,
    /// Flows have them, or had when they were last heard of.
    pub held: u32,
    /// Nobody's for a while.
    pub resting: u32,
}

impl Account {
    /// All of them.
    pub fn size(&self) -> u32 {
        self.free + self.credit + self.held + self.resting
    }
}

/// A message to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// To whom.
    pub to: Peer,
    /// What.
    pub message: Message,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Credit,
    Held,
    /// Nobody has said that he holds it, and whoever was the last one has said that another one does.
    Lost,
    Resting,
}

/// Where an instance's entry lies.
type Seat = u16;

#[derive(Debug, Clone, Copy)]
struct Entry {
    state: State,
    /// Who holds it, or has it as credit. If several do, one of them.
    holder: Seat,
    /// A flow that had it has ended: whoever still holds it will say that it has moved.
    is_over: bool,
}

/// Questions that may be open at a time: a million flows may have ended with one instance.
pub(crate) const QUESTIONS: usize = 256;

const NOBODY: Seat = Seat::MAX;
const FREE: Entry = Entry { state: State::Free, holder: NOBODY, is_over: false };

#[derive(Debug, Clone)]
struct Instance {
    peer: Peer,
    is_dead: bool,
    credit: u32,
    wanted: u32,
    /// Requests that were heard of it.
    requests: u32,
    /// It has asked, at this time, and has got less than it asked for; others may have some at hand.
    unanswered: Option<u64>,
    /// When it was asked for what it can spare; not since it has got the latest of it.
    asked_at: Option<u64>,
    /// Of what it claimed when nothing was known it may not use all.
    may_have_more: bool,
}

/// A question that has been asked, and who has not answered yet.
#[derive(Debug, Clone)]
struct Question {
    asked: Vec<Seat>,
    /// Nothing was heard of the index since.
    is_quiet: bool,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct List {
    number: u32,
    limits: Limits,
    entries: Vec<Entry>,
    /// Others who hold an index: flows that move, for a moment.
    others: BTreeMap<u32, Vec<Seat>>,
    /// The one that has been free for longest comes first. Some may not be free any more.
    free: VecDeque<u32>,
    wheel: Wheel,
    questions: BTreeMap<u32, Question>,
    /// Indexes that are due to be asked for, and found no place among these. The one that has waited for longest comes first; some may have been heard of since.
    unasked: VecDeque<u32>,
    /// Seats are taken again when they are empty.
    instances: Vec<Option<Instance>>,
    seats: BTreeMap<Peer, Seat>,
    /// Whose everything was that this list does not remember.
    past: Option<Peer>,
    /// When what was nobody's of that has rested.
    settles_at: Option<u64>,
    /// How many of them are dead.
    dead: usize,
    /// Who wants more than there was.
    wanting: VecDeque<Seat>,
    /// How many of them, or more, have not been answered yet.
    unanswered: usize,
    account: Account,
    now: u64,
}

impl List {
    /// A list in which everything is free. `number` is what messages call it.
    pub fn new(number: u32, limits: Limits) -> List {
        // No time is longer than the wheel reaches.
        let longest = limits.lease.max(limits.rest).max(limits.patience);
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
            seats: BTreeMap::new(),
            past: None,
            settles_at: None,
            dead: 0,
            wanting: VecDeque::new(),
            unanswered: 0,
            account: Account { free: limits.size, ..Account::default() },
            now: 0,
        }
    }

    /// A list of which nothing is known: any index may be a flow's. As if this one, who is dead, had them all.
    pub fn unknown(number: u32, limits: Limits, past: Peer) -> List {
        let mut list = List::new(number, limits);
        list.join(past);
        list.fence(past);
        list.past = Some(past);
        list.free.clear();
        list.account = Account { held: limits.size, ..Account::default() };
        let holder = list.seats[&past];
        list.entries.fill(Entry { state: State::Held, holder, is_over: false });
        list
    }

    /// How many indexes are what.
    pub fn account(&self) -> Account {
        self.account
    }

    /// Its indexes, from 0.
    pub fn size(&self) -> u32 {
        self.entries.len() as u32
    }

    /// It is nobody's, and may be assigned. Nobody has one that there is not.
    pub fn is_free(&self, index: u32) -> bool {
        self.entries.get(index as usize).is_some_and(|entry| entry.state == State::Free)
    }

    /// It is assigned, or a flow has it, or had it when it was last heard of.
    pub fn is_taken(&self, index: u32) -> bool {
        self.entries.get(index as usize).is_some_and(|entry| matches!(entry.state, State::Credit | State::Held | State::Lost))
    }

    /// Who holds this index, as far as is known, the dead included.
    pub fn holders(&self, index: u32) -> impl Iterator<Item = Peer> + '_ {
        let first = self.entries.get(index as usize).filter(|entry| entry.state == State::Held).map(|entry| entry.holder);
        let others = self.others.get(&index).into_iter().flatten().copied();
        first.into_iter().chain(others).filter_map(|seat| Some(self.instances.get(usize::from(seat))?.as_ref()?.peer))
    }

    fn seat(&self, peer: Peer) -> Option<Seat> {
        self.seats.get(&peer).copied()
    }

    fn seat_of_living(&self, peer: Peer) -> Option<Seat> {
        self.seat(peer).filter(|seat| !self.is_dead(*seat))
    }

    fn is_dead(&self, seat: Seat) -> bool {
        matches!(self.instances.get(usize::from(seat)), Some(Some(Instance { is_dead: true, .. })))
    }

    fn instance(&mut self, seat: Seat) -> Option<&mut Instance> {
        self.instances.get_mut(usize::from(seat))?.as_mut()
    }

    fn living(&self) -> impl Iterator<Item = Seat> + '_ {
        (0..)
            .zip(&self.instances)
            .filter(|(_, instance)| instance.as_ref().is_some_and(|instance| !instance.is_dead))
            .map(|(seat, _)| seat)
    }

    fn say(&self, seat: Seat, opcode: Opcode, index: u32, out: &mut Vec<Output>) {
        if let Some(Some(instance)) = self.instances.get(usize::from(seat)) {
            out.push(Output { to: instance.peer, message: Message::new(opcode, self.number, index) });
        }
    }

    /// This instance exists from now on. False if there are as many as there can be.
    pub fn join(&mut self, peer: Peer) -> bool {
        if self.seat(peer).is_some() {
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
        let seat = match self.instances.iter().position(Option::is_none) {
            Some(seat) => {
                self.instances[seat] = instance;
                seat
            }
            None if self.instances.len() < usize::from(NOBODY) - 1 => {
                self.instances.push(instance);
                self.instances.len() - 1
            }
            None => return false,
        };
        self.seats.insert(peer, seat as Seat);
        // It may be given a flow at once.
        self.questions.values_mut().for_each(|question| question.is_quiet = false);
        true
    }

    /// This instance is dead: it says nothing any more, and nothing that it says counts. What it holds stays its own until [`List::release`].
    pub fn fence(&mut self, peer: Peer) {
        let Some(seat) = self.seat_of_living(peer) else { return };
        if let Some(instance) = self.instance(seat) {
            instance.is_dead = true;
            (instance.wanted, instance.unanswered) = (0, None);
        }
        self.dead += 1;
        self.wanting.retain(|wanting| *wanting != seat);
        // Somebody may have its flows and not know it yet.
        self.questions.values_mut().for_each(|question| question.is_quiet = false);
        let asked: Vec<u32> = self.questions.keys().copied().collect();
        asked.into_iter().for_each(|index| self.answered(seat, index));
        if is_planted(Fault::FreesAtDeath) {
            self.let_go(&BTreeSet::from([seat]));
        }
    }

    /// Everybody has claimed what flows hold that were these dead instances', and has said so twice, the second time when all had said so once. The rest is nobody's.
    pub fn release(&mut self, dead: &[Peer], out: &mut Vec<Output>) {
        let seats = dead.iter().filter_map(|dead| self.seat(*dead)).filter(|seat| self.is_dead(*seat)).collect();
        self.let_go(&seats);
        for seat in seats {
            if let Some(instance) = self.instances[usize::from(seat)].take() {
                self.seats.remove(&instance.peer);
                self.dead -= 1;
            }
        }
        self.ask_more(out);
        self.serve(out);
        self.answer(out);
    }

    fn let_go(&mut self, seats: &BTreeSet<Seat>) {
        let first = (0..).zip(&self.entries).filter(|(_, entry)| seats.contains(&entry.holder));
        let first = first.map(|(index, entry)| (entry.holder, index));
        let others = self.others.iter().flat_map(|(index, others)| others.iter().map(move |other| (*other, *index)));
        let held: Vec<(Seat, u32)> = first.chain(others.filter(|(other, _)| seats.contains(other))).collect();
        let past = self.past.and_then(|past| self.seat(past));
        let is_past = |seat: Seat| past == Some(seat);
        if past.is_some_and(|past| seats.contains(&past)) {
            let rest = self.limits.unknown_rest.min(self.limits.rest).saturating_add(2 * self.limits.step);
            self.settles_at = Some(self.now.saturating_add(rest));
        }
        for (seat, index) in held {
            // Of what others have nothing is over.
            let (is_over, was_over) = (!self.others.contains_key(&index), self.entries[index as usize].is_over);
            self.cease(seat, index, is_over);
            if is_past(seat) && !was_over && self.entries[index as usize].state == State::Resting {
                self.rest_shortly(index);
            }
        }
    }

    /// What an instance says. It is believed about what it holds itself, and about nothing else; who claims what is another's, and says that it is over, may take it from that one.
    pub fn handle(&mut self, from: Peer, message: Message, out: &mut Vec<Output>) {
        let Some(seat) = self.seat_of_living(from) else { return };
        let index = message.index;
        if message.opcode == Opcode::IndexRequest {
            return self.request(seat, index, out);
        }
        if index >= self.limits.size {
            return self.say(seat, Opcode::UpdateFailure, index, out);
        }
        let is_holder = self.is_holder(seat, index);
        match message.opcode {
            Opcode::IndexAssignment => {
                let is_unknown = self.past.is_some_and(|past| self.seats.contains_key(&past));
                if let Some(instance) = self.instance(seat).filter(|_| is_unknown) {
                    instance.may_have_more = true;
                }
                self.claim(seat, index);
            }
            Opcode::Rejuvenate if is_holder => self.used(seat, index),
            Opcode::Moved if is_holder => self.cease(seat, index, false),
            Opcode::Expire if is_holder => self.cease(seat, index, true),
            Opcode::Return if is_holder => self.give_back(seat, index),
            Opcode::Answered => {
                self.answered(seat, index);
                self.ask_more(out);
            }
            _ => self.say(seat, Opcode::UpdateFailure, index, out),
        }
        self.serve(out);
        self.answer(out);
    }

    /// Goes on to this time.
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

    fn turn(&mut self, index: u32, state: State, holder: Seat) {
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
            State::Lost => self.wake(index, self.limits.patience),
            State::Resting => self.wake(index, self.limits.rest),
        }
        if state == State::Free {
            if self.free.len() >= 2 * self.entries.len() {
                let entries = &self.entries;
                let mut seen = vec![false; entries.len()];
                self.free.retain(|index| {
                    entries[*index as usize].state == State::Free && !core::mem::replace(&mut seen[*index as usize], true)
                });
            }
            self.free.push_back(index);
        }
    }

    fn is_holder(&self, seat: Seat, index: u32) -> bool {
        let entry = self.entries[index as usize];
        entry.holder == seat || self.others.get(&index).is_some_and(|others| others.contains(&seat))
    }

    /// A flow has come there that holds it. The dead do so no more then: whoever lives has got what was theirs, and what becomes of the flow now the living say.
    fn claim(&mut self, seat: Seat, index: u32) {
        self.forget_the_dead(index, seat);
        let Entry { state, holder, .. } = self.entries[index as usize];
        let is_known = self.is_holder(seat, index);
        match state {
            // Of a flow that came from the one who has the credit and has not been heard yet; or of one that is over, and this is late: then it may be of the very one who has the
            // credit now. Credit it stays until that one says that it uses it.
            State::Credit => {
                let others = self.others.entry(index).or_default();
                if !others.contains(&seat) {
                    others.push(seat);
                }
            }
            State::Held => {
                if !is_known {
                    self.others.entry(index).or_default().push(seat);
                }
                // Whatever was said of its end was said of another flow.
                self.entries[index as usize].is_over = false;
                self.turn(index, State::Held, holder);
            }
            State::Free | State::Lost | State::Resting => self.turn(index, State::Held, seat),
        }
    }

    /// Of this index, which that one has claimed.
    fn forget_the_dead(&mut self, index: u32, seat: Seat) {
        if let Some(mut others) = self.others.remove(&index) {
            others.retain(|other| !self.is_dead(*other));
            if !others.is_empty() {
                self.others.insert(index, others);
            }
        }
        if self.is_dead(self.entries[index as usize].holder) {
            if let Some(others) = self.others.get_mut(&index) {
                others.retain(|other| *other != seat);
            }
            if self.others.get(&index).is_some_and(Vec::is_empty) {
                self.others.remove(&index);
            }
            self.turn(index, State::Held, seat);
        }
    }

    fn used(&mut self, seat: Seat, index: u32) {
        let entry = self.entries[index as usize];
        if entry.state == State::Credit {
            if entry.holder == seat && !self.others.get(&index).is_some_and(|others| others.contains(&seat)) {
                self.turn(index, State::Held, seat);
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

    /// It holds the index no more, because the flow is over or because another one has it.
    fn cease(&mut self, seat: Seat, index: u32, is_over: bool) {
        let entry = &mut self.entries[index as usize];
        entry.is_over |= is_over;
        let Entry { state, holder, is_over } = *entry;
        let next = self.others.get_mut(&index).and_then(|others| {
            // What it has said as one of several was said first.
            let Some(at) = others.iter().position(|other| *other == seat) else { return others.pop() };
            others.swap_remove(at);
            Some(holder)
        });
        if self.others.get(&index).is_some_and(Vec::is_empty) {
            self.others.remove(&index);
        }
        match next {
            Some(next) if next == holder => self.turn(index, state, holder),
            Some(next) => self.turn(index, State::Held, next),
            None if !is_over && !is_planted(Fault::TakesMovedForOver) => self.turn(index, State::Lost, NOBODY),
            None => self.rest(index),
        }
    }

    fn rest(&mut self, index: u32) {
        let state = if self.limits.rest > 0 { State::Resting } else { State::Free };
        self.turn(index, state, NOBODY);
    }

    /// Nobody is known to have had it.
    fn rest_shortly(&mut self, index: u32) {
        match self.limits.unknown_rest {
            0 => self.turn(index, State::Free, NOBODY),
            rest => self.wake(index, rest.min(self.limits.rest)),
        }
    }

    fn give_back(&mut self, seat: Seat, index: u32) {
        match self.entries[index as usize].state {
            State::Credit if !self.others.contains_key(&index) => self.turn(index, State::Free, NOBODY),
            _ => self.cease(seat, index, true),
        }
    }

    fn request(&mut self, seat: Seat, count: u32, out: &mut Vec<Output>) {
        let limit = self.limits.credit;
        let Some(instance) = self.instance(seat) else { return };
        instance.requests = (instance.requests + 1) & QUESTIONS_AT_MOST;
        let (before, credit, requests) = (instance.wanted, instance.credit, instance.requests);
        instance.wanted = before.saturating_add(count).min(limit.saturating_sub(instance.credit));
        if before == 0 && instance.wanted > 0 {
            self.wanting.push_back(seat);
        }
        self.serve(out);
        // Also who has as many as it may is told that there are no more for it.
        let now = self.now;
        if !self.may_be_none()
            && let Some(instance) = self.instance(seat)
            && instance.credit.saturating_sub(credit) < count
        {
            if instance.wanted == 0 {
                return self.say(seat, Opcode::NoMoreIndex, requests, out);
            }
            instance.unanswered.get_or_insert(now);
            self.unanswered += 1;
            self.answer(out);
        }
    }

    /// What there is is not known yet.
    fn may_be_none(&self) -> bool {
        self.past.is_some_and(|past| self.seats.contains_key(&past)) || self.settles_at.is_some()
    }

    /// What nobody had has rested: what is still wanted is not there.
    fn settle_past(&mut self) {
        if self.settles_at.is_some_and(|at| at <= self.now) {
            self.settles_at = None;
            let now = self.now;
            for instance in self.instances.iter_mut().flatten().filter(|instance| instance.wanted > 0) {
                instance.unanswered = Some(now);
                self.unanswered += 1;
            }
        }
    }

    /// Assigns what is free to those who want some, in turn: first to those for whom others are asked.
    fn serve(&mut self, out: &mut Vec<Output>) {
        while !self.wanting.is_empty() {
            let Some(index) = self.free.pop_front() else { return };
            if self.entries[index as usize].state != State::Free {
                continue;
            }
            let is_first =
                |seat: &Seat| matches!(&self.instances[usize::from(*seat)], Some(Instance { unanswered: Some(_), .. }));
            let at = if self.unanswered == 0 { 0 } else { self.wanting.iter().position(is_first).unwrap_or(0) };
            let Some(seat) = self.wanting.remove(at) else { return };
            self.turn(index, State::Credit, seat);
            self.say(seat, Opcode::IndexAssignment, index, out);
            let is_served = self.instance(seat).is_none_or(|instance| {
                instance.wanted -= 1;
                instance.asked_at = None;
                instance.wanted == 0
            });
            if !is_served {
                self.wanting.push_back(seat);
            }
        }
    }

    /// Who has asked and not got enough hears so when nobody else can be expected to spare something any more. Who could be is asked: whoever has some at hand, and has not asked himself.
    fn answer(&mut self, out: &mut Vec<Output>) {
        if self.unanswered == 0 {
            return;
        }
        let (now, patience, number) = (self.now, self.limits.patience, self.number);
        let is_over = |at: u64| now >= at.saturating_add(patience);
        self.refuse(is_over, out);
        let mut may_come = false;
        let others = self.instances.iter_mut().flatten().filter(|instance| !instance.is_dead && instance.unanswered.is_none());
        for instance in others.filter(|_| self.unanswered > 0) {
            let may_spare = match instance.asked_at {
                None => instance.credit > 0 || instance.may_have_more,
                Some(at) => is_over(at) && instance.credit > 0,
            };
            if may_spare {
                instance.asked_at = Some(now);
                out.push(Output { to: instance.peer, message: Message::new(Opcode::Spare, number, 0) });
            }
            may_come |= (instance.credit > 0 || instance.may_have_more) && instance.asked_at.is_some_and(|at| !is_over(at));
        }
        if !may_come {
            self.refuse(|_| true, out);
        }
    }

    /// Whoever has asked and not got enough, and has waited long enough, hears that there is no more.
    fn refuse(&mut self, is_enough: impl Fn(u64) -> bool, out: &mut Vec<Output>) {
        self.unanswered = 0;
        for instance in self.instances.iter_mut().flatten() {
            let Some(since) = instance.unanswered else { continue };
            if instance.wanted > 0 && !is_enough(since) {
                self.unanswered += 1;
                continue;
            }
            instance.unanswered = None;
            if instance.wanted > 0 {
                out.push(Output {
                    to: instance.peer,
                    message: Message::new(Opcode::NoMoreIndex, self.number, instance.requests),
                });
            }
        }
    }

    fn due(&mut self, index: u32, out: &mut Vec<Output>) {
        match self.entries[index as usize].state {
            // Whoever gets what the dead had may have a copy of a flow that had it.
            State::Resting if self.dead > 0 => self.wake(index, self.limits.patience),
            State::Resting => self.turn(index, State::Free, NOBODY),
            State::Held | State::Lost if is_planted(Fault::ExpiresUnasked) => {
                self.others.remove(&index);
                self.rest(index);
            }
            State::Held | State::Lost => self.ask(index, out),
            State::Free | State::Credit => {}
        }
    }

    /// Asks whoever may know of a flow with this index.
    fn ask(&mut self, index: u32, out: &mut Vec<Output>) {
        if self.questions.len() >= QUESTIONS && self.dead == 0 && self.unasked.len() < self.entries.len() {
            return self.unasked.push_back(index);
        }
        self.wake(index, self.limits.patience);
        // One at a time: an answer says nothing of a later question. And somebody may be about to find out what the dead held.
        if self.questions.contains_key(&index) || self.questions.len() >= QUESTIONS || self.dead > 0 {
            return;
        }
        let is_lost = self.entries[index as usize].state == State::Lost;
        let asked: Vec<Seat> = self.living().filter(|seat| is_lost || self.is_holder(*seat, index)).collect();
        for seat in &asked {
            self.say(*seat, Opcode::Expire, index, out);
        }
        self.questions.insert(index, Question { asked, is_quiet: true });
        self.conclude(index);
    }

    /// Places have become free.
    fn ask_more(&mut self, out: &mut Vec<Output>) {
        while self.dead == 0
            && self.questions.len() < QUESTIONS
            && let Some(index) = self.unasked.pop_front()
        {
            if matches!(self.entries[index as usize].state, State::Held | State::Lost) {
                self.ask(index, out);
            }
        }
    }

    /// One of those who were asked has said what it had to say.
    fn answered(&mut self, seat: Seat, index: u32) {
        if let Some(question) = self.questions.get_mut(&index) {
            question.asked.retain(|asked| *asked != seat);
            self.conclude(index);
        }
    }

    fn conclude(&mut self, index: u32) {
        if self.questions.get(&index).is_none_or(|question| !question.asked.is_empty()) {
            return;
        }
        let is_quiet = self.questions.remove(&index).is_some_and(|question| question.is_quiet);
        if is_quiet || is_planted(Fault::HeedsLateAnswers) {
            self.others.remove(&index);
            self.rest(index);
        }
    }
}
