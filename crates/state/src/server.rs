//! A state server: lists, and the instances that use them.
//!
//! Theory of operation (RESCue: the state manager). Each instance has a [link](Link) of its own; what it says goes to the list that it names, and what the lists have to say
//! goes into the links. Passive operations are those that an instance asks for: indexes, statistics. Active ones begin here: questions about indexes of which nothing is heard, and the request to
//! spare some. When instances are dead, and whoever gets their flows has them, all that live are asked to say by their own links that they have claimed what they have. When all have, everybody is asked once more: a flow may have moved from
//! one that had not spoken yet to one that had, and its claim is ahead of the second answer. What was of the dead, and nobody has claimed then, is nobody's. If somebody else dies meanwhile it begins
//! again when that one is recovered from, too: what it had to claim others will.
//!
//! A server that remembers nothing ([`Server::unknown`]) takes all indexes for those of a dead instance, its own [past](PAST). Instances see that its memory is another one, and claim what their flows
//! have.
//!
//! In: [inputs](Input), in one order. Out: messages, by link. Two servers that are given the same inputs are the same.

use crate::control::{Form, Message, Opcode};
use crate::link::Link;
use crate::list::{Account, Limits, List, Output, QUESTIONS};
use holdfast_wire::Peer;
use std::collections::{BTreeMap, BTreeSet};

/// What a list is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Indexes, each of one flow.
    Indexes(Limits),
    /// So many numbers that grow.
    Statistics(u32),
}

#[derive(Debug, Clone)]
enum Content {
    Indexes(Box<List>),
    Statistics(Vec<u64>),
}

/// Something that happens to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input {
    /// This instance exists. To be said before any flow, or copy of one, may go to it.
    Joined(Peer),
    /// It is dead, and nothing that it says counts any more. Also of one that never joined as far as is known here: others may be about to get its flows.
    Dead(Peer),
    /// It is dead, and whoever gets a flow of it has got it.
    Recovered(Peer),
    /// A session with it has begun; so many of the messages to it have arrived there.
    Begun {
        /// With whom.
        with: Peer,
        /// How many.
        arrived: u64,
    },
    /// The session is over.
    Over(Peer),
    /// It says something.
    Said {
        /// Who.
        from: Peer,
        /// What.
        message: Message,
    },
    /// The time, ns, by any clock. If it goes back it stands still.
    Time(u64),
    /// Everybody has been named who lives, or is dead and not recovered from. To be said once to a server that remembers nothing.
    Complete,
}

/// Why an input changed nothing. After [`Refused::Stranger`] and [`Refused::Full`] a session is of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There is no such instance: it has not joined, or it is dead.
    Unknown,
    /// What it says does not go together with what it was told, or no session is under way.
    Stranger,
    /// It takes no messages any more.
    Full,
    /// There are as many instances as there can be.
    Crowded,
}

/// Whose everything is that a server does not remember. No node has its number.
pub const PAST: Peer = Peer { node: u16::MAX, incarnation: 0 };

/// All that live are to say that they have claimed what they have.
#[derive(Debug, Clone)]
struct Muster {
    /// Who has not said so yet.
    waiting: BTreeSet<Peer>,
    /// All are asked again after that.
    again: bool,
}

#[derive(Debug, Clone)]
struct Seat {
    link: Link,
    operand: u64,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Server {
    form: Form,
    waiting: usize,
    lists: Vec<Content>,
    seats: BTreeMap<Peer, Seat>,
    memory: u64,
    /// Not everybody has been named yet.
    is_incomplete: bool,
    /// Those that are dead, and whether whoever gets their flows has them.
    dead: BTreeMap<Peer, bool>,
    muster: Option<Muster>,
    /// How often all have been asked.
    musters: u64,
    /// The latest incarnation of each node that is dead, and that has been let go with all before it.
    fenced: BTreeMap<u16, u32>,
    over: BTreeMap<u16, u32>,
    planted: crate::list::Planted,
    now: u64,
    failures: u64,
    out: Vec<Output>,
    /// To whom something may have been said since this was looked at.
    touched: BTreeSet<Peer>,
}

impl Server {
    /// A server with these lists, of which no instance has anything. Who leaves more than `waiting` messages (at least as many as may be due at a time) unacknowledged is not listened to. `memory` is what
    /// it is known by, and no other server was. `None` if there are too many lists, or one is too large.
    pub fn new(kinds: &[Kind], waiting: usize, memory: u64) -> Option<Server> {
        Server::with(kinds, waiting, memory, List::new)
    }

    /// The same where instances may have something of an earlier server, and nobody remembers what. Statistics are 0.
    pub fn unknown(kinds: &[Kind], waiting: usize, memory: u64) -> Option<Server> {
        let mut server = Server::with(kinds, waiting, memory, |number, limits| List::unknown(number, limits, PAST))?;
        server.dead.insert(PAST, true);
        server.is_incomplete = true;
        Some(server)
    }

    fn with(kinds: &[Kind], waiting: usize, memory: u64, list: impl Fn(u32, Limits) -> List) -> Option<Server> {
        let size = |kind: &Kind| match kind {
            Kind::Indexes(limits) => limits.size,
            Kind::Statistics(size) => *size,
        };
        let form = Form::for_lists(kinds.len(), kinds.iter().map(size).max().unwrap_or(0).into())?;
        let content = |(number, kind): (u32, &Kind)| match kind {
            Kind::Indexes(limits) => Content::Indexes(Box::new(list(number, *limits))),
            Kind::Statistics(size) => Content::Statistics(vec![0; *size as usize]),
        };
        // Room for what a busy instance is asked and given between two acknowledgements.
        let of_list = |kind: &Kind| match kind {
            Kind::Indexes(limits) => QUESTIONS + limits.credit.min(limits.size) as usize + 8,
            Kind::Statistics(_) => 8,
        };
        let waiting = waiting.max(2 * QUESTIONS).max(kinds.iter().map(of_list).sum());
        let lists = (0..).zip(kinds).map(content).collect();
        Some(Server {
            form,
            waiting,
            lists,
            seats: BTreeMap::new(),
            memory,
            is_incomplete: false,
            dead: BTreeMap::new(),
            muster: None,
            musters: 0,
            fenced: BTreeMap::new(),
            over: BTreeMap::new(),
            planted: crate::list::Planted::default(),
            now: 0,
            failures: 0,
            out: Vec::new(),
            touched: BTreeSet::new(),
        })
    }

    /// With faults, for tests of the checkers.
    #[doc(hidden)]
    pub fn plant(mut self, planted: crate::list::Planted) -> Server {
        self.planted = planted;
        for content in &mut self.lists {
            if let Content::Indexes(list) = content {
                **list = list.as_ref().clone().plant(planted);
            }
        }
        self
    }

    /// What it is known by: instances that remember another one begin anew.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// This one is dead, and not everybody has claimed what may have been its.
    pub fn is_mourning(&self, dead: Peer) -> bool {
        self.dead.contains_key(&dead)
    }

    /// Those that are dead and may still be recovered from, as far as it was told.
    pub fn unrecovered(&self) -> impl Iterator<Item = Peer> + '_ {
        self.dead.iter().filter(|(_, is_recovered)| !**is_recovered).map(|(peer, _)| *peer)
    }

    /// The form of all messages.
    pub fn form(&self) -> Form {
        self.form
    }

    /// How many of a list's indexes are what. `None` if there is no such list of indexes.
    pub fn account(&self, list: u32) -> Option<Account> {
        match self.lists.get(list as usize)? {
            Content::Indexes(list) => Some(list.account()),
            Content::Statistics(_) => None,
        }
    }

    /// The list of indexes of this number.
    pub fn list(&self, list: u32) -> Option<&List> {
        match self.lists.get(list as usize)? {
            Content::Indexes(list) => Some(list),
            Content::Statistics(_) => None,
        }
    }

    /// A statistic's value.
    pub fn statistic(&self, list: u32, index: u32) -> Option<u64> {
        match self.lists.get(list as usize)? {
            Content::Indexes(_) => None,
            Content::Statistics(values) => values.get(index as usize).copied(),
        }
    }

    /// The latest time it was told, ns.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Messages whose sender was told that they are mistakes: [`Opcode::UpdateFailure`].
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// The link to an instance, for the transport.
    pub fn link(&mut self, peer: Peer) -> Option<&mut Link> {
        self.seats.get_mut(&peer).map(|seat| &mut seat.link)
    }

    /// Those that live, in order, beginning with this one or the next.
    pub fn instances_from(&self, first: Peer) -> impl Iterator<Item = Peer> + '_ {
        self.seats.range(first..).map(|(peer, _)| *peer)
    }

    /// Those that live.
    pub fn instances(&self) -> impl Iterator<Item = Peer> + '_ {
        self.seats.keys().copied()
    }

    /// Something happens. What there is to say is in the links then.
    ///
    /// # Errors
    /// See [`Refused`]: nothing has changed.
    pub fn apply(&mut self, input: Input) -> Result<(), Refused> {
        let outcome = match input {
            Input::Joined(peer) => self.join(peer),
            Input::Dead(peer) => self.bury(peer),
            Input::Recovered(peer) => self.recovered(peer),
            Input::Begun { with, arrived } => self.begin(with, arrived),
            Input::Over(peer) => self.seats.get_mut(&peer).map(|seat| seat.link.end()).ok_or(Refused::Unknown),
            Input::Said { from, message } => self.hear(from, message),
            Input::Complete => {
                self.is_incomplete = false;
                self.begin_muster();
                Ok(())
            }
            Input::Time(now) => {
                self.now = self.now.max(now);
                let out = &mut self.out;
                self.lists.iter_mut().for_each(|list| list.indexes(|list| list.advance(now, out)));
                Ok(())
            }
        };
        self.send();
        outcome
    }

    /// To whom something may have been said since this was called last.
    pub fn take_touched(&mut self) -> BTreeSet<Peer> {
        core::mem::take(&mut self.touched)
    }

    fn send(&mut self) {
        for Output { to, message } in self.out.drain(..) {
            self.failures += u64::from(message.opcode == Opcode::UpdateFailure);
            let Some(seat) = self.seats.get_mut(&to) else { continue };
            // That is said again as long as somebody wants something.
            if message.opcode != Opcode::Spare || seat.link.is_open() && seat.link.room() > 0 {
                seat.link.push(message);
                self.touched.insert(to);
            }
        }
    }

    fn join(&mut self, peer: Peer) -> Result<(), Refused> {
        if self.seats.contains_key(&peer) {
            return Ok(());
        }
        if self.fenced.get(&peer.node).is_some_and(|fenced| peer.incarnation <= *fenced) {
            return Err(Refused::Unknown);
        }
        let mut has_room = true;
        self.lists.iter_mut().for_each(|list| list.indexes(|list| has_room &= list.join(peer)));
        if !has_room {
            return Err(Refused::Crowded);
        }
        let mut link = Link::new(self.form, self.waiting);
        // It may get flows that the dead had from those who have got them.
        if let Some(muster) = &mut self.muster {
            muster.waiting.insert(peer);
            link.push_with(self.musters, Message::new(Opcode::Muster, 0, 0));
        }
        self.seats.insert(peer, Seat { link, operand: 0 });
        self.touched.insert(peer);
        Ok(())
    }

    fn bury(&mut self, peer: Peer) -> Result<(), Refused> {
        if self.dead.contains_key(&peer) {
            return Ok(());
        }
        let is_known = self.seats.remove(&peer).is_some();
        if !is_known && self.over.get(&peer.node).is_some_and(|over| peer.incarnation <= *over) {
            // All have spoken of it already.
            return Ok(());
        }
        let mut has_room = true;
        self.lists.iter_mut().for_each(|list| list.indexes(|list| has_room &= is_known || list.join(peer)));
        if !has_room {
            return Err(Refused::Crowded);
        }
        self.lists.iter_mut().for_each(|list| list.indexes(|list| list.fence(peer)));
        let fenced = self.fenced.entry(peer.node).or_default();
        *fenced = peer.incarnation.max(*fenced);
        self.touched.remove(&peer);
        self.dead.insert(peer, false);
        // What it had to claim others claim, when they have it.
        self.muster = None;
        Ok(())
    }

    fn recovered(&mut self, peer: Peer) -> Result<(), Refused> {
        self.bury(peer)?;
        if let Some(is_recovered) = self.dead.get_mut(&peer) {
            *is_recovered = true;
            self.begin_muster();
        }
        Ok(())
    }

    /// If nobody is about to get anything that was of the dead.
    fn begin_muster(&mut self) {
        let is_ready = !self.is_incomplete && self.muster.is_none() && self.dead.values().all(|is_recovered| *is_recovered);
        if is_ready && !self.dead.is_empty() {
            self.muster(true);
        }
    }

    fn muster(&mut self, again: bool) {
        if self.seats.is_empty() {
            return self.release();
        }
        self.musters += 1;
        for seat in self.seats.values_mut() {
            seat.link.push_with(self.musters, Message::new(Opcode::Muster, 0, 0));
        }
        self.touched.extend(self.seats.keys());
        self.muster = Some(Muster { waiting: self.seats.keys().copied().collect(), again });
    }

    /// All that was of the dead and has not been claimed is nobody's.
    fn release(&mut self) {
        self.muster = None;
        let dead: Vec<Peer> = core::mem::take(&mut self.dead).into_keys().collect();
        for peer in &dead {
            let over = self.over.entry(peer.node).or_default();
            *over = peer.incarnation.max(*over);
        }
        let out = &mut self.out;
        self.lists.iter_mut().for_each(|list| list.indexes(|list| list.release(&dead, out)));
    }

    fn begin(&mut self, with: Peer, arrived: u64) -> Result<(), Refused> {
        let seat = self.seats.get_mut(&with).ok_or(Refused::Unknown)?;
        self.touched.insert(with);
        seat.link.begin(arrived).map_err(|_| Refused::Stranger)
    }

    fn hear(&mut self, from: Peer, message: Message) -> Result<(), Refused> {
        let seat = self.seats.get_mut(&from).ok_or(Refused::Unknown)?;
        if !seat.link.is_open() {
            return Err(Refused::Stranger);
        }
        if seat.link.room() == 0 && message.opcode != Opcode::Acknowledge {
            return Err(Refused::Full);
        }
        self.touched.insert(from);
        let Some(message) = seat.link.accept(message).map_err(|_| Refused::Stranger)? else { return Ok(()) };
        if message.opcode == Opcode::Operand {
            seat.operand = self.form.extend(seat.operand, message);
            return Ok(());
        }
        let operand = core::mem::take(&mut seat.operand);
        let refusal = Output { to: from, message: Message { opcode: Opcode::UpdateFailure, ..message } };
        match (message.opcode, self.lists.get_mut(message.list as usize)) {
            (Opcode::Claimed, _) => self.claimed(from, operand),
            (Opcode::UpdateStatistics | Opcode::ReadStatistics, Some(Content::Statistics(values))) => {
                match values.get_mut(message.index as usize) {
                    Some(value) if message.opcode == Opcode::UpdateStatistics => *value = value.wrapping_add(operand.max(1)),
                    Some(value) => seat.link.push_with(*value, Message { opcode: Opcode::UpdateStatistics, ..message }),
                    None => self.out.push(refusal),
                }
            }
            (_, Some(Content::Indexes(list))) => list.handle(from, message, &mut self.out),
            _ => self.out.push(refusal),
        }
        Ok(())
    }

    fn claimed(&mut self, by: Peer, number: u64) {
        let Some(muster) = self.muster.as_mut().filter(|_| number == self.musters) else { return };
        muster.waiting.remove(&by);
        if !muster.waiting.is_empty() && !self.planted.release_at_first {
            return;
        }
        if muster.again {
            self.muster(false);
        } else {
            self.release();
        }
    }
}

impl Content {
    fn indexes(&mut self, act: impl FnOnce(&mut List)) {
        if let Content::Indexes(list) = self {
            act(list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Peer = Peer { node: 16, incarnation: 1 };
    const B: Peer = Peer { node: 17, incarnation: 2 };

    fn server() -> Server {
        let limits = Limits { size: 4, credit: 4, lease: 0, rest: 10, unknown_rest: 10, patience: 5, step: 1 };
        let mut server = Server::new(&[Kind::Indexes(limits), Kind::Statistics(2)], 0, 1).expect("it is small");
        for peer in [A, B] {
            server.apply(Input::Joined(peer)).expect("there is room");
            server.apply(Input::Begun { with: peer, arrived: 0 }).expect("nothing was said");
        }
        server
    }

    fn say(server: &mut Server, from: Peer, opcode: Opcode, list: u32, index: u32) -> Result<(), Refused> {
        server.apply(Input::Said { from, message: Message::new(opcode, list, index) })
    }

    fn told(server: &mut Server, peer: Peer) -> Vec<String> {
        let link = server.link(peer).expect("it lives");
        core::iter::from_fn(|| link.poll()).map(|message| message.to_string()).collect()
    }

    #[test]
    fn statistics_grow_and_are_read() {
        let mut server = server();
        for (peer, operand) in [(A, 0), (B, 1 << 40), (A, 5)] {
            for message in server.form().operands(operand).collect::<Vec<_>>() {
                server.apply(Input::Said { from: peer, message }).expect("it is heard");
            }
            say(&mut server, peer, Opcode::UpdateStatistics, 1, 1).expect("it is heard");
        }
        assert_eq!(
            (server.statistic(1, 0), server.statistic(1, 1), server.statistic(0, 0)),
            (Some(0), Some((1 << 40) + 6), None)
        );
        say(&mut server, B, Opcode::ReadStatistics, 1, 1).expect("it is heard");
        let link = server.link(B).expect("it lives");
        let words: Vec<Message> = core::iter::from_fn(|| link.poll()).collect();
        let (value, last) = words.split_at(words.len() - 1);
        assert_eq!(value.iter().fold(0, |value, word| Form::Narrow.extend(value, *word)), (1 << 40) + 6);
        assert_eq!(last, [Message::new(Opcode::UpdateStatistics, 1, 1)]);
    }

    /// What there is not, and what is not for this kind of list, is refused with a message; who does not exist, or takes nothing, is not listened to.
    #[test]
    fn mistakes_are_refused() {
        let mut server = server();
        for (opcode, list, index) in [
            (Opcode::IndexRequest, 7, 1),
            (Opcode::Rejuvenate, 0, 4),
            (Opcode::Rejuvenate, 0, 0),
            (Opcode::Expire, 1, 0),
            (Opcode::UpdateStatistics, 1, 2),
            (Opcode::NoMoreIndex, 0, 0),
        ] {
            say(&mut server, A, opcode, list, index).expect("it is heard");
            assert_eq!(told(&mut server, A), [format!("UpdateFailure {list}/{index}")], "{opcode:?}");
        }
        let nobody = Peer { node: 18, incarnation: 1 };
        assert_eq!(say(&mut server, nobody, Opcode::IndexRequest, 0, 1), Err(Refused::Unknown));
        assert_eq!(server.apply(Input::Begun { with: A, arrived: 77 }), Err(Refused::Stranger));
        assert_eq!(say(&mut server, A, Opcode::Acknowledge, 1, 77), Err(Refused::Stranger));
        assert_eq!(server.failures(), 6);
        let refusals = (0..600).filter(|_| say(&mut server, A, Opcode::IndexRequest, 7, 1) == Err(Refused::Full)).count();
        assert_eq!(refusals, 600 - (512 - 6), "six wait already");
        server.apply(Input::Over(A)).expect("it lives");
        assert_eq!(say(&mut server, A, Opcode::Acknowledge, 0, 1), Err(Refused::Stranger), "no session is under way");
        server.apply(Input::Dead(A)).expect("it lived");
        assert_eq!(server.apply(Input::Joined(A)), Err(Refused::Unknown));
    }

    /// A server that remembers nothing assigns nothing until everybody has spoken twice, and those that died before have been got over; what is claimed until then stays whose it is.
    #[test]
    fn what_is_not_remembered_is_nobodys_in_the_end() {
        let limits = Limits { size: 4, credit: 4, lease: 0, rest: 0, unknown_rest: 0, patience: 5, step: 1 };
        let mut server = Server::unknown(&[Kind::Indexes(limits)], 0, 7).expect("it is small");
        let dead = Peer { node: 18, incarnation: 9 };
        for peer in [A, B] {
            server.apply(Input::Joined(peer)).expect("there is room");
            server.apply(Input::Begun { with: peer, arrived: 0 }).expect("nothing was said");
        }
        server.apply(Input::Dead(dead)).expect("it is told");
        say(&mut server, A, Opcode::IndexRequest, 0, 1).expect("it is heard");
        let musters = |server: &mut Server| {
            [A, B].map(|peer| told(server, peer).iter().filter(|message| message.starts_with("Muster")).count())
        };
        let speak = |server: &mut Server, number: u64| {
            for by in [A, B] {
                for message in server.form().operands(number).collect::<Vec<_>>() {
                    server.apply(Input::Said { from: by, message }).expect("it is heard");
                }
                say(server, by, Opcode::Claimed, 0, 0).expect("it is heard");
            }
        };
        say(&mut server, B, Opcode::IndexAssignment, 0, 0).expect("it is heard");
        server.apply(Input::Complete).expect("it is told");
        assert_eq!(musters(&mut server), [0, 0], "somebody may be about to get what the dead had");
        server.apply(Input::Recovered(dead)).expect("it is dead");
        assert_eq!(musters(&mut server), [1, 1]);
        speak(&mut server, 1);
        assert_eq!(musters(&mut server), [1, 1]);
        speak(&mut server, 1);
        assert!(server.is_mourning(PAST), "that is the answer to the first question");
        say(&mut server, A, Opcode::IndexAssignment, 0, 1).expect("it is heard");
        assert_eq!(server.account(0), Some(Account { free: 0, credit: 0, held: 4, resting: 0 }));
        speak(&mut server, 2);
        assert!(!server.is_mourning(PAST) && !server.is_mourning(dead));
        assert_eq!(server.account(0), Some(Account { free: 1, credit: 1, held: 2, resting: 0 }));
        let holders = |index| server.list(0).map(|list| list.holders(index).collect::<Vec<_>>());
        assert_eq!([holders(0), holders(1), holders(2)], [Some(vec![B]), Some(vec![A]), Some(vec![])]);
    }

    /// Most of what is not remembered was nobody's: that nobody claims it is known soon. What an instance says to have been a flow's rests as always.
    #[test]
    fn what_nobody_claims_rests_for_a_short_time() {
        let limits = Limits { size: 3, credit: 0, lease: 0, rest: 1000, unknown_rest: 10, patience: 5000, step: 1 };
        let mut server = Server::unknown(&[Kind::Indexes(limits)], 0, 7).expect("it is small");
        server.apply(Input::Joined(A)).expect("there is room");
        server.apply(Input::Begun { with: A, arrived: 0 }).expect("nothing was said");
        say(&mut server, A, Opcode::IndexAssignment, 0, 0).expect("it is heard");
        say(&mut server, A, Opcode::Expire, 0, 0).expect("it is heard");
        server.apply(Input::Complete).expect("it is told");
        for number in [1, 2] {
            for message in server.form().operands(number).collect::<Vec<_>>() {
                server.apply(Input::Said { from: A, message }).expect("it is heard");
            }
            say(&mut server, A, Opcode::Claimed, 0, 0).expect("it is heard");
        }
        let free_at = |server: &mut Server, now: u64| {
            server.apply(Input::Time(now)).expect("it passes");
            server.account(0).map(|account| (account.free, account.resting))
        };
        say(&mut server, A, Opcode::IndexRequest, 0, 1).expect("it is heard");
        let none = |server: &mut Server| told(server, A).iter().filter(|message| message.starts_with("NoMoreIndex")).count();
        assert_eq!(none(&mut server), 0, "that is not known yet");
        assert_eq!(free_at(&mut server, 5), Some((0, 3)));
        assert_eq!(free_at(&mut server, 20), Some((2, 1)));
        assert_eq!(free_at(&mut server, 990), Some((2, 1)));
        say(&mut server, A, Opcode::IndexRequest, 0, 1).expect("it is heard");
        assert_eq!(none(&mut server), 1, "it may have no credit");
        assert_eq!(free_at(&mut server, 1010), Some((3, 0)));
    }

    /// More are due at a time than are asked about at a time: each answer makes room for the next question.
    #[test]
    fn whatever_is_due_is_asked_about() {
        const SIZE: u32 = 3 * QUESTIONS as u32 + 9;
        let limits = Limits { size: SIZE, credit: SIZE, lease: 100, rest: 0, unknown_rest: 0, patience: 1_000_000, step: 1 };
        let mut server = Server::new(&[Kind::Indexes(limits)], 0, 1).expect("it is small");
        server.apply(Input::Joined(A)).expect("there is room");
        server.apply(Input::Begun { with: A, arrived: 0 }).expect("nothing was said");
        let mut acknowledged = 0;
        let mut heard = |server: &mut Server| {
            let link = server.link(A).expect("it lives");
            let heard: Vec<Message> =
                core::iter::from_fn(|| link.poll()).filter(|message| message.opcode != Opcode::Acknowledge).collect();
            acknowledged += heard.len() as u64;
            let acknowledge = Form::Narrow.operands(acknowledged).last().expect("it is more than nothing");
            let message = Message { opcode: Opcode::Acknowledge, ..acknowledge };
            server.apply(Input::Said { from: A, message }).expect("it was said");
            heard
        };
        say(&mut server, A, Opcode::IndexRequest, 0, SIZE).expect("it is heard");
        for Message { index, .. } in heard(&mut server) {
            say(&mut server, A, Opcode::Rejuvenate, 0, index).expect("it is heard");
        }
        assert_eq!(server.account(0), Some(Account { free: 0, credit: 0, held: SIZE, resting: 0 }));
        server.apply(Input::Time(200)).expect("it passes");
        let mut asked = BTreeSet::new();
        for count in [QUESTIONS, QUESTIONS, QUESTIONS, 9] {
            let questions = heard(&mut server);
            assert_eq!(questions.len(), count);
            for Message { opcode, index, .. } in questions {
                assert_eq!((opcode, asked.insert(index)), (Opcode::Expire, true));
                say(&mut server, A, Opcode::Answered, 0, index).expect("it is heard");
            }
        }
        assert_eq!(server.account(0), Some(Account { free: SIZE, credit: 0, held: 0, resting: 0 }));
    }

    /// Somebody dies while all are asked: what he had to claim others will, and all are asked anew.
    #[test]
    fn a_death_meanwhile_begins_it_again() {
        let mut server = server();
        let c = Peer { node: 18, incarnation: 3 };
        server.apply(Input::Joined(c)).expect("there is room");
        server.apply(Input::Recovered(A)).expect("it is dead");
        server.apply(Input::Dead(c)).expect("it lived");
        for number in [1, 1] {
            for message in Form::Narrow.operands(number) {
                server.apply(Input::Said { from: B, message }).expect("it is heard");
            }
            say(&mut server, B, Opcode::Claimed, 0, 0).expect("it is heard");
        }
        assert!(server.is_mourning(A) && server.is_mourning(c));
        told(&mut server, B);
        server.apply(Input::Recovered(c)).expect("it is dead");
        assert_eq!(told(&mut server, B), ["Operand 0/2", "Muster 0/0"]);
    }

    /// Somebody has claimed what was a dead one's; then its flow moves on to one that has spoken twice already. That one's claim is late: what has moved from one that lives is not the dead one's any more.
    #[test]
    fn what_has_been_claimed_is_not_let_go() {
        let mut server = server();
        let (c, d) = (Peer { node: 18, incarnation: 3 }, Peer { node: 19, incarnation: 3 });
        for peer in [c, d] {
            server.apply(Input::Joined(peer)).expect("there is room");
            server.apply(Input::Begun { with: peer, arrived: 0 }).expect("nothing was said");
        }
        say(&mut server, A, Opcode::IndexRequest, 0, 1).expect("it is heard");
        server.apply(Input::Recovered(A)).expect("it lived");
        let speak = |server: &mut Server, by: Peer, number: u64| {
            for message in Form::Narrow.operands(number) {
                server.apply(Input::Said { from: by, message }).expect("it is heard");
            }
            say(server, by, Opcode::Claimed, 0, 0).expect("it is heard");
        };
        say(&mut server, B, Opcode::IndexAssignment, 0, 0).expect("it is heard");
        [B, c, d].into_iter().for_each(|peer| speak(&mut server, peer, 1));
        speak(&mut server, c, 2);
        say(&mut server, B, Opcode::Moved, 0, 0).expect("it is heard");
        [B, d].into_iter().for_each(|peer| speak(&mut server, peer, 2));
        assert!(!server.is_mourning(A));
        assert_eq!(server.account(0), Some(Account { free: 3, credit: 0, held: 1, resting: 0 }));
        say(&mut server, c, Opcode::IndexAssignment, 0, 0).expect("it is heard");
        assert_eq!(server.list(0).expect("it is one").holders(0).collect::<Vec<_>>(), [c]);
    }

    /// Of the dead everybody who lives speaks first.
    #[test]
    fn the_dead_let_go_when_all_have_claimed() {
        let mut server = server();
        say(&mut server, A, Opcode::IndexRequest, 0, 1).expect("it is heard");
        assert_eq!(told(&mut server, A), ["IndexAssignment 0/0"]);
        say(&mut server, A, Opcode::Rejuvenate, 0, 0).expect("it is heard");
        server.apply(Input::Dead(A)).expect("it lived");
        assert_eq!(server.apply(Input::Joined(A)), Err(Refused::Unknown));
        assert_eq!(told(&mut server, B), [""; 0], "its flows are not others' yet");
        server.apply(Input::Recovered(A)).expect("it is dead");
        let link = server.link(B).expect("it lives");
        let words: Vec<Message> = core::iter::from_fn(|| link.poll()).collect();
        let (last, operand) = words.split_last().expect("it is told something");
        assert_eq!((last.opcode, operand.len()), (Opcode::Muster, 1));
        assert_eq!(server.list(0).expect("it is one").holders(0).collect::<Vec<_>>(), [A]);
        say(&mut server, B, Opcode::IndexAssignment, 0, 0).expect("it is heard");
        assert!(server.is_mourning(A));
        for number in [1, 2] {
            for message in Form::Narrow.operands(number) {
                server.apply(Input::Said { from: B, message }).expect("it is heard");
            }
            say(&mut server, B, Opcode::Claimed, 0, 0).expect("it is heard");
            assert_eq!(server.is_mourning(A), number == 1);
        }
        server.apply(Input::Dead(A)).expect("it is known");
        server.apply(Input::Recovered(A)).expect("it is known");
        assert!(!server.is_mourning(A), "all have spoken of it already");
        assert_eq!(server.list(0).expect("it is one").holders(0).collect::<Vec<_>>(), [B]);
        assert_eq!(server.account(0), Some(Account { free: 3, credit: 0, held: 1, resting: 0 }));
    }
}
