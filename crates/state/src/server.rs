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
use crate::statistics::Statistics;
use holdfast_wire::Peer;
use holdfast_wire::fault::{Fault, is_planted};
use std::collections::{BTreeMap, BTreeSet};

/// What a list is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Indexes, each of one flow.
    Indexes(Limits),
    /// So many numbers that grow.
    Counters(u32),
    /// So many numbers that grow and become less.
    Gauge(u32),
}

#[derive(Debug, Clone)]
enum Content {
    Indexes(Box<List>),
    Statistics(Statistics),
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
            Kind::Counters(size) | Kind::Gauge(size) => *size,
        };
        let form = Form::for_lists(kinds.len(), kinds.iter().map(size).max().unwrap_or(0).into())?;
        let content = |(number, kind): (u32, &Kind)| match kind {
            Kind::Indexes(limits) => Content::Indexes(Box::new(list(number, *limits))),
            Kind::Counters(size) => Content::Statistics(Statistics::new(*size, false)),
            Kind::Gauge(size) => Content::Statistics(Statistics::new(*size, true)),
        };
        // Room for what a busy instance is asked and given between two acknowledgements.
        let of_list = |kind: &Kind| match kind {
            Kind::Indexes(limits) => QUESTIONS + limits.credit.min(limits.size) as usize + 8,
            Kind::Counters(_) | Kind::Gauge(_) => 8,
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
            now: 0,
            failures: 0,
            out: Vec::new(),
            touched: BTreeSet::new(),
        })
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

    /// What all instances have of a statistic.
    pub fn statistic(&self, list: u32, index: u32) -> Option<i64> {
        self.statistics(list)?.totals().get(index as usize).copied()
    }

    /// The list of statistics of this number.
    pub fn statistics(&self, list: u32) -> Option<&Statistics> {
        match self.lists.get(list as usize)? {
            Content::Indexes(_) => None,
            Content::Statistics(statistics) => Some(statistics),
        }
    }

    /// How many lists there are, of both kinds.
    pub fn lists(&self) -> u32 {
        self.lists.len() as u32
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

    /// Messages for this instance that it has not acknowledged.
    pub fn waiting(&self, peer: Peer) -> usize {
        self.seats.get(&peer).map_or(0, |seat| seat.link.waiting())
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
                self.tell_statistics();
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

    /// Tells everybody what others have of gauges, as far as half of the link has room: what an instance waits for, or is asked, goes first.
    fn tell_statistics(&mut self) {
        let Server { lists, seats, touched, .. } = self;
        for (list, content) in (0..).zip(lists) {
            let Some(statistics) = content.statistics().filter(|statistics| statistics.has_untold()) else { continue };
            for (peer, Seat { link, .. }) in seats.iter_mut().filter(|(_, seat)| seat.link.is_open()) {
                while link.has_spare_room()
                    && let Some((index, value)) = statistics.poll_untold(*peer)
                {
                    tell(link, list, index, value);
                    touched.insert(*peer);
                }
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
        self.lists.iter_mut().filter_map(Content::statistics).for_each(|statistics| statistics.join(peer));
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
        self.lists.iter_mut().filter_map(Content::statistics).for_each(|statistics| statistics.fence(peer));
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
        self.lists.iter_mut().filter_map(Content::statistics).for_each(|statistics| statistics.release(&dead));
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
            (Opcode::UpdateStatistics | Opcode::LowerStatistics, Some(Content::Statistics(statistics))) => {
                let is_lower = message.opcode == Opcode::LowerStatistics;
                let amount = operand.max(1).cast_signed();
                let change = if is_lower { amount.wrapping_neg() } else { amount };
                if is_lower && !statistics.is_gauge() || !statistics.change(from, message.index, change) {
                    self.out.push(refusal);
                }
            }
            (Opcode::ReadStatistics, Some(Content::Statistics(statistics))) => match statistics.told_to(from, message.index) {
                Some(value) => tell(&mut seat.link, message.list, message.index, value),
                None => self.out.push(refusal),
            },
            (_, Some(Content::Indexes(list))) => list.handle(from, message, &mut self.out),
            _ => self.out.push(refusal),
        }
        Ok(())
    }

    fn claimed(&mut self, by: Peer, number: u64) {
        let Some(muster) = self.muster.as_mut().filter(|_| number == self.musters) else { return };
        muster.waiting.remove(&by);
        if !muster.waiting.is_empty() && !is_planted(Fault::FreesAtFirstClaim) {
            return;
        }
        if muster.again {
            self.muster(false);
        } else {
            self.release();
        }
    }
}

/// Tells an instance what a statistic is.
fn tell(link: &mut Link, list: u32, index: u32, value: i64) {
    let opcode = if value < 0 { Opcode::LowerStatistics } else { Opcode::UpdateStatistics };
    link.push_with(value.unsigned_abs(), Message::new(opcode, list, index));
}

impl Content {
    fn statistics(&mut self) -> Option<&mut Statistics> {
        match self {
            Content::Indexes(_) => None,
            Content::Statistics(statistics) => Some(statistics),
        }
    }

    fn indexes(&mut self, act: impl FnOnce(&mut List)) {
        if let Content::Indexes(list) = self {
            act(list);
        }
    }
}

#[cfg(test)]
mod tests;
