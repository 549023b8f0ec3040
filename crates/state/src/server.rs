//! A state server: lists, and the instances that use them.
//!
//! Theory of operation (RESCue: the state manager). Each instance has a [link](Link) of
//! its own. Its messages go to the list that they name, and messages of lists go into the
//! links. Instances begin passive operations: indexes, statistics. The server begins
//! active ones: questions about silent indexes, and requests to spare some. When
//! instances have died and their flows have been recovered, the server holds a *roll
//! call*: all living instances answer, by their own links, that they have claimed what
//! their flows hold. After all have answered, a second roll call follows: a flow may have
//! moved from an instance that had not answered to one that had, and its claim precedes
//! the second answer. Indexes of the dead that nobody has claimed then are released. If
//! another instance dies meanwhile, the roll call begins again when that one has been
//! recovered too, because others will claim its share.
//!
//! A server that remembers nothing ([`Server::unknown`]) takes all indexes for those of a
//! dead instance, the [past](PAST). Instances notice that its memory is another one, and
//! claim what their flows have.
//!
//! In: [inputs](Input), in one order. Out: messages, by link. Two servers with the same
//! inputs are equal.

use crate::control::{Form, Message, Opcode};
use crate::link::Link;
use crate::number_list::{Account, Limits, List, Output, QUESTIONS};
use crate::statistics::Statistics;
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{NodeId, Peer};
use std::collections::{BTreeMap, BTreeSet};

/// The kind of a list, with its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Indexes, each at most one flow's.
    Indexes(Limits),
    /// Numbers that only grow; how many.
    Counters(u32),
    /// Numbers that grow and shrink; how many.
    Gauge(u32),
}

#[derive(Debug, Clone)]
enum Content {
    Indexes(Box<List>),
    Statistics(Statistics),
}

/// An event that changes a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input {
    /// The instance exists. Must precede any flow, or copy of one, that goes to it.
    Joined(Peer),
    /// The instance is dead, and its messages do not count any more. An unknown instance
    /// may be named too: others may be about to get its flows.
    Dead(Peer),
    /// The instance is dead, and its recovery is complete: every flow that survives is
    /// elsewhere.
    Recovered(Peer),
    /// A session with the instance has begun; so many messages to it have arrived there.
    Begun {
        /// The instance.
        with: Peer,
        /// Messages that have arrived.
        arrived: u64,
    },
    /// The session is over.
    Over(Peer),
    /// The instance sends a message.
    Said {
        /// The sender.
        from: Peer,
        /// The message.
        message: Message,
    },
    /// The time, ns, by any clock. Time that goes back is ignored.
    Time(u64),
    /// All living instances have been named, and all dead ones that are not recovered.
    /// Given once to a server that remembers nothing.
    Complete,
}

/// Why an input changed nothing. After [`Refused::OutOfStep`] and [`Refused::Full`] the
/// session has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The instance is unknown: it has not joined, or it is dead.
    Unknown,
    /// The counts do not fit the link, or there is no session.
    OutOfStep,
    /// The instance's link is full.
    Full,
    /// The server has as many instances as it can have.
    Crowded,
}

/// The stand-in that holds everything that a server does not remember. No node has its
/// number.
pub const PAST: Peer = Peer { node: NodeId::new(u16::MAX), incarnation: 0 };

/// A roll call: all living instances are to say that they have claimed what their flows
/// hold.
#[derive(Debug, Clone)]
struct RollCall {
    /// Instances that have not answered yet.
    waiting: BTreeSet<Peer>,
    /// A second roll call follows.
    again: bool,
}

#[derive(Debug, Clone)]
struct Instance {
    link: Link,
    operand: u64,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Server {
    form: Form,
    waiting: usize,
    lists: Vec<Content>,
    instances: BTreeMap<Peer, Instance>,
    memory: u64,
    /// Not all instances have been named yet.
    is_incomplete: bool,
    /// Dead instances, and whether their recovery is complete.
    dead: BTreeMap<Peer, bool>,
    roll_call: Option<RollCall>,
    /// Counts roll calls.
    roll_calls: u64,
    /// By node, the latest incarnation that is dead, and the latest that was released
    /// with all before it.
    fenced: BTreeMap<NodeId, u32>,
    over: BTreeMap<NodeId, u32>,
    now: u64,
    failures: u64,
    out: Vec<Output>,
    /// Instances to which messages may have been sent since the last look.
    touched: BTreeSet<Peer>,
}

impl Server {
    /// A server with these lists, all indexes free. An instance that leaves more than
    /// `waiting` messages unacknowledged is not listened to; the limit is raised to what
    /// may be due at a time. `memory` identifies this server's memory and must differ
    /// from every earlier server's. `None` if there are too many lists, or one is too
    /// large.
    pub fn new(kinds: &[Kind], waiting: usize, memory: u64) -> Option<Server> {
        Server::with(kinds, waiting, memory, List::new)
    }

    /// The same where instances may have indexes of an earlier server that is forgotten.
    /// Statistics are 0.
    pub fn unknown(kinds: &[Kind], waiting: usize, memory: u64) -> Option<Server> {
        let mut server = Server::with(kinds, waiting, memory, |number, limits| {
            List::unknown(number, limits, PAST)
        })?;
        server.dead.insert(PAST, true);
        server.is_incomplete = true;
        Some(server)
    }

    fn with(
        kinds: &[Kind],
        waiting: usize,
        memory: u64,
        list: impl Fn(u32, Limits) -> List,
    ) -> Option<Server> {
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
        // Room for what a busy instance is asked and assigned between two
        // acknowledgements.
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
            instances: BTreeMap::new(),
            memory,
            is_incomplete: false,
            dead: BTreeMap::new(),
            roll_call: None,
            roll_calls: 0,
            fenced: BTreeMap::new(),
            over: BTreeMap::new(),
            now: 0,
            failures: 0,
            out: Vec::new(),
            touched: BTreeSet::new(),
        })
    }

    /// The number that identifies this server's memory: instances that remember another
    /// one begin anew.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// True if the instance is dead and its indexes are not released yet.
    pub fn is_mourning(&self, dead: Peer) -> bool {
        self.dead.contains_key(&dead)
    }

    /// Dead instances whose recovery is not known to be complete.
    pub fn unrecovered(&self) -> impl Iterator<Item = Peer> + '_ {
        self.dead.iter().filter(|(_, is_recovered)| !**is_recovered).map(|(peer, _)| *peer)
    }

    /// The form of all messages.
    pub fn form(&self) -> Form {
        self.form
    }

    /// A list's indexes by state. `None` if there is no such list of indexes.
    pub fn account(&self, list: u32) -> Option<Account> {
        match self.lists.get(list as usize)? {
            Content::Indexes(list) => Some(list.account()),
            Content::Statistics(_) => None,
        }
    }

    /// The list of indexes with this number.
    pub fn list(&self, list: u32) -> Option<&List> {
        match self.lists.get(list as usize)? {
            Content::Indexes(list) => Some(list),
            Content::Statistics(_) => None,
        }
    }

    /// The total of a statistic over all instances.
    pub fn statistic(&self, list: u32, index: u32) -> Option<i64> {
        self.statistics(list)?.totals().get(index as usize).copied()
    }

    /// The list of statistics with this number.
    pub fn statistics(&self, list: u32) -> Option<&Statistics> {
        match self.lists.get(list as usize)? {
            Content::Indexes(_) => None,
            Content::Statistics(statistics) => Some(statistics),
        }
    }

    /// The number of lists, of both kinds.
    pub fn lists(&self) -> u32 {
        self.lists.len() as u32
    }

    /// The latest time that it was given, ns.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Messages that were refused as mistakes, by [`Opcode::UpdateFailure`].
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// The link to an instance, for the transport.
    pub fn link(&mut self, peer: Peer) -> Option<&mut Link> {
        self.instances.get_mut(&peer).map(|instance| &mut instance.link)
    }

    /// Messages for this instance that it has not acknowledged.
    pub fn waiting(&self, peer: Peer) -> usize {
        self.instances.get(&peer).map_or(0, |instance| instance.link.waiting())
    }

    /// Living instances in order, from this one or the next one on.
    pub fn instances_from(&self, first: Peer) -> impl Iterator<Item = Peer> + '_ {
        self.instances.range(first..).map(|(peer, _)| *peer)
    }

    /// Living instances.
    pub fn instances(&self) -> impl Iterator<Item = Peer> + '_ {
        self.instances.keys().copied()
    }

    /// Applies an input. The resulting messages lie in the links.
    ///
    /// # Errors
    /// [`Refused`] says why; nothing has changed then.
    pub fn apply(&mut self, input: Input) -> Result<(), Refused> {
        let outcome = match input {
            Input::Joined(peer) => self.join(peer),
            Input::Dead(peer) => self.bury(peer),
            Input::Recovered(peer) => self.recovered(peer),
            Input::Begun { with, arrived } => self.begin(with, arrived),
            Input::Over(peer) => self
                .instances
                .get_mut(&peer)
                .map(|instance| instance.link.end())
                .ok_or(Refused::Unknown),
            Input::Said { from, message } => self.hear(from, message),
            Input::Complete => {
                self.is_incomplete = false;
                self.begin_roll_call();
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

    /// Instances to which messages may have been sent since the last call.
    pub fn take_touched(&mut self) -> BTreeSet<Peer> {
        core::mem::take(&mut self.touched)
    }

    fn send(&mut self) {
        for Output { to, message } in self.out.drain(..) {
            self.failures += u64::from(message.opcode == Opcode::UpdateFailure);
            let Some(instance) = self.instances.get_mut(&to) else { continue };
            // `Spare` needs no queue: it is sent again as long as an instance wants
            // indexes.
            if message.opcode != Opcode::Spare
                || instance.link.is_open() && instance.link.room() > 0
            {
                instance.link.push(message);
                self.touched.insert(to);
            }
        }
    }

    /// Tells instances the sums of others' parts of gauges, in at most half of each link:
    /// messages that an instance waits for, and questions, go first.
    fn tell_statistics(&mut self) {
        let Server { lists, instances, touched, .. } = self;
        for (list, content) in (0..).zip(lists) {
            let Some(statistics) =
                content.statistics().filter(|statistics| statistics.has_untold())
            else {
                continue;
            };
            for (peer, Instance { link, .. }) in
                instances.iter_mut().filter(|(_, instance)| instance.link.is_open())
            {
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
        if self.instances.contains_key(&peer) {
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
        self.lists
            .iter_mut()
            .filter_map(Content::statistics)
            .for_each(|statistics| statistics.join(peer));
        let mut link = Link::new(self.form, self.waiting);
        // Flows of the dead may move to it from instances that have got them.
        if let Some(roll_call) = &mut self.roll_call {
            roll_call.waiting.insert(peer);
            link.push_with(self.roll_calls, Message::new(Opcode::RollCall, 0, 0));
        }
        self.instances.insert(peer, Instance { link, operand: 0 });
        self.touched.insert(peer);
        Ok(())
    }

    fn bury(&mut self, peer: Peer) -> Result<(), Refused> {
        if self.dead.contains_key(&peer) {
            return Ok(());
        }
        let is_known = self.instances.remove(&peer).is_some();
        if !is_known && self.over.get(&peer.node).is_some_and(|over| peer.incarnation <= *over) {
            // All instances have answered for it already.
            return Ok(());
        }
        let mut has_room = true;
        self.lists
            .iter_mut()
            .for_each(|list| list.indexes(|list| has_room &= is_known || list.join(peer)));
        if !has_room {
            return Err(Refused::Crowded);
        }
        self.lists.iter_mut().for_each(|list| list.indexes(|list| list.fence(peer)));
        self.lists
            .iter_mut()
            .filter_map(Content::statistics)
            .for_each(|statistics| statistics.fence(peer));
        let fenced = self.fenced.entry(peer.node).or_default();
        *fenced = peer.incarnation.max(*fenced);
        self.touched.remove(&peer);
        self.dead.insert(peer, false);
        // Others will claim its share, once its flows are recovered.
        self.roll_call = None;
        Ok(())
    }

    fn recovered(&mut self, peer: Peer) -> Result<(), Refused> {
        self.bury(peer)?;
        if let Some(is_recovered) = self.dead.get_mut(&peer) {
            *is_recovered = true;
            self.begin_roll_call();
        }
        Ok(())
    }

    /// Begins the roll call if no recovery is under way.
    fn begin_roll_call(&mut self) {
        let is_ready = !self.is_incomplete
            && self.roll_call.is_none()
            && self.dead.values().all(|is_recovered| *is_recovered);
        if is_ready && !self.dead.is_empty() {
            self.call_roll(true);
        }
    }

    fn call_roll(&mut self, again: bool) {
        if self.instances.is_empty() {
            return self.release();
        }
        self.roll_calls += 1;
        for instance in self.instances.values_mut() {
            instance.link.push_with(self.roll_calls, Message::new(Opcode::RollCall, 0, 0));
        }
        self.touched.extend(self.instances.keys());
        self.roll_call =
            Some(RollCall { waiting: self.instances.keys().copied().collect(), again });
    }

    /// Releases the unclaimed indexes of the dead.
    fn release(&mut self) {
        self.roll_call = None;
        let dead: Vec<Peer> = core::mem::take(&mut self.dead).into_keys().collect();
        for peer in &dead {
            let over = self.over.entry(peer.node).or_default();
            *over = peer.incarnation.max(*over);
        }
        let out = &mut self.out;
        self.lists.iter_mut().for_each(|list| list.indexes(|list| list.release(&dead, out)));
        self.lists
            .iter_mut()
            .filter_map(Content::statistics)
            .for_each(|statistics| statistics.release(&dead));
    }

    fn begin(&mut self, with: Peer, arrived: u64) -> Result<(), Refused> {
        let instance = self.instances.get_mut(&with).ok_or(Refused::Unknown)?;
        self.touched.insert(with);
        instance.link.begin(arrived).map_err(|_| Refused::OutOfStep)
    }

    fn hear(&mut self, from: Peer, message: Message) -> Result<(), Refused> {
        let instance = self.instances.get_mut(&from).ok_or(Refused::Unknown)?;
        if !instance.link.is_open() {
            return Err(Refused::OutOfStep);
        }
        if instance.link.room() == 0 && message.opcode != Opcode::Acknowledge {
            return Err(Refused::Full);
        }
        self.touched.insert(from);
        let Some(message) = instance.link.accept(message).map_err(|_| Refused::OutOfStep)? else {
            return Ok(());
        };
        if message.opcode == Opcode::Operand {
            instance.operand = self.form.extend(instance.operand, message);
            return Ok(());
        }
        let operand = core::mem::take(&mut instance.operand);
        let refusal =
            Output { to: from, message: Message { opcode: Opcode::UpdateFailure, ..message } };
        match (message.opcode, self.lists.get_mut(message.list as usize)) {
            (Opcode::Claimed, _) => self.claimed(from, operand),
            (
                Opcode::UpdateStatistics | Opcode::LowerStatistics,
                Some(Content::Statistics(statistics)),
            ) => {
                let is_lower = message.opcode == Opcode::LowerStatistics;
                let amount = operand.max(1).cast_signed();
                let change = if is_lower { amount.wrapping_neg() } else { amount };
                if is_lower && !statistics.is_gauge()
                    || !statistics.change(from, message.index, change)
                {
                    self.out.push(refusal);
                }
            }
            (Opcode::ReadStatistics, Some(Content::Statistics(statistics))) => {
                match statistics.told_to(from, message.index) {
                    Some(value) => tell(&mut instance.link, message.list, message.index, value),
                    None => self.out.push(refusal),
                }
            }
            (_, Some(Content::Indexes(list))) => list.handle(from, message, &mut self.out),
            _ => self.out.push(refusal),
        }
        Ok(())
    }

    fn claimed(&mut self, by: Peer, number: u64) {
        let Some(roll_call) = self.roll_call.as_mut().filter(|_| number == self.roll_calls) else {
            return;
        };
        roll_call.waiting.remove(&by);
        if !roll_call.waiting.is_empty() && !is_planted(Fault::FreesAtFirstClaim) {
            return;
        }
        if roll_call.again {
            self.call_roll(false);
        } else {
            self.release();
        }
    }
}

/// Sends an instance a statistic's value.
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
