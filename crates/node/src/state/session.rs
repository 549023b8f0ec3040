//! An instance's session with the state server.
//!
//! In: records and words of the server, restarts of the server, effects of pools, changes
//! of statistics. Out: records, words, calls of pools and of parts of statistics.

use super::stream::Stream;
use super::transport::{Address, ControlTransport};
use super::{End, Greeting, carry, of_session, unframed};
use crate::channel::Fabric;
use crate::message::kind;
use core::ops::Range;
use holdfast_nf::shared::{Part, PoolBackend};
use holdfast_protection::Peer;
use holdfast_state::{Client, Heard, Message};
use holdfast_wire::{DropReason, NodeId};
use std::collections::VecDeque;

/// Answers that are kept for the caller.
const HEARD: usize = 64;
/// Successive sessions without a word from the server, after which a session goes over
/// the fabric.
const SILENT_SESSIONS: u32 = 3;

/// The transport of a session's messages.
#[derive(Debug)]
enum Path {
    Fabric,
    /// The control transport, to the end with this address, before this side's end is
    /// tied to it.
    Beginning(Address),
    Words(Stream),
}

/// An instance's pools and statistics. Each is a list of the server's.
pub trait Pools {
    /// The number of pools.
    fn lists(&self) -> u32;
    /// Calls `act` with the pool of this list. False if there is none.
    fn with(&mut self, list: u32, act: &mut dyn FnMut(&mut dyn PoolBackend)) -> bool;
    /// The lists of statistics, which follow those of pools.
    fn statistics(&self) -> Range<u32> {
        self.lists()..self.lists()
    }
    /// Calls `act` with this instance's part of this list's statistics. False if there is
    /// none.
    fn with_part(&mut self, list: u32, act: &mut dyn FnMut(&mut Part)) -> bool {
        let _ = (list, act);
        false
    }
}

/// See the module.
#[derive(Debug)]
pub struct StateSession {
    /// The state server's node; a cluster may have several.
    node: NodeId,
    client: Client,
    /// The number of the latest session, and its server once that has welcomed us.
    number: u32,
    server: Option<Peer>,
    /// A hello is due: at the beginning, to every new incarnation of the server, and
    /// after the server has ended a session.
    is_new: bool,
    /// True once a server has welcomed us.
    has_joined: bool,
    /// The server's incarnation that the hello went to, once it is known.
    told: Option<Peer>,
    /// Changes of statistics are due.
    is_time: bool,
    heard: VecDeque<Heard>,
    /// The transport of the latest session. Unknown before the welcome.
    path: Path,
    /// This side's end for the next session.
    mine: Option<End>,
    /// The latest hello offered an end.
    has_offered: bool,
    silent_sessions: u32,
}

impl StateSession {
    /// A session with the state server at this node. While more than `waiting` messages
    /// are unacknowledged, messages that can wait stay in the pools.
    pub fn new(node: NodeId, waiting: usize) -> StateSession {
        StateSession {
            node,
            client: Client::new(waiting),
            number: 0,
            server: None,
            is_new: true,
            has_joined: false,
            told: None,
            is_time: true,
            heard: VecDeque::new(),
            path: Path::Fabric,
            mine: None,
            has_offered: false,
            silent_sessions: 0,
        }
    }

    /// True if the server knows this instance: it may be given flows.
    pub fn has_joined(&self) -> bool {
        self.has_joined
    }

    /// The server of the session, once it has welcomed us.
    pub fn server(&self) -> Option<Peer> {
        self.server
    }

    /// Messages of the server that are not for pools: values of statistics, and refusals.
    /// Only the latest are kept.
    pub fn take_heard(&mut self) -> impl Iterator<Item = Heard> + '_ {
        self.heard.drain(..)
    }

    /// Has the next turn send the changes of statistics. To be called every few
    /// milliseconds: changes in between share a message, and no reader needs them sooner.
    pub fn say_statistics(&mut self) {
        self.is_time = true;
    }

    /// A node has begun a new incarnation.
    pub fn handle_restart(&mut self, peer: Peer) {
        if peer.node == self.node {
            self.end();
        }
    }

    fn end(&mut self) {
        self.client.link().end();
        (self.server, self.is_new) = (None, true);
        self.path = Path::Fabric;
    }

    /// Ends the session because its words do not get through.
    fn give_up(&mut self) {
        self.silent_sessions = match &self.path {
            Path::Words(stream) if stream.is_heard() => 0,
            Path::Words(_) | Path::Beginning(_) => self.silent_sessions + 1,
            Path::Fabric => self.silent_sessions,
        };
        self.end();
    }

    /// Takes in a record of the server.
    ///
    /// # Errors
    /// The reason to count. The session has ended, and another one begins.
    pub fn handle_record(
        &mut self,
        from: Peer,
        kind: u8,
        body: &[u8],
        pools: &mut dyn Pools,
    ) -> Result<(), DropReason> {
        if from.node != self.node {
            return Err(DropReason::Malformed);
        }
        let outcome = match kind {
            kind::STATE_WELCOME => self.begin(from, body, pools),
            kind::STATE | kind::STATE_OVER => of_session(body).and_then(|(session, messages)| {
                if session != self.number || self.is_new {
                    // The session has ended here, and the server does not know it yet.
                } else if kind == kind::STATE_OVER {
                    self.end();
                } else if self.server == Some(from) && matches!(self.path, Path::Fabric) {
                    return self.hear(messages, pools);
                }
                Ok(())
            }),
            _ => Err(DropReason::Malformed),
        };
        if outcome.is_err() {
            self.end();
        }
        outcome
    }

    fn begin(
        &mut self,
        server: Peer,
        body: &[u8],
        pools: &mut dyn Pools,
    ) -> Result<(), DropReason> {
        let (greeting, form, end) = Greeting::read(body)?;
        if greeting.session.get() != self.number || self.is_new {
            return Ok(());
        }
        if end.is_some() && !self.has_offered {
            return Err(DropReason::Malformed);
        }
        if self.client.meet(greeting.memory.get(), form) {
            for list in 0..pools.lists() {
                pools.with(list, &mut |pool| pool.announce());
            }
            for list in pools.statistics() {
                pools.with_part(list, &mut Part::announce);
            }
        }
        self.client.link().begin(greeting.received.get()).map_err(|_| DropReason::Malformed)?;
        (self.server, self.has_joined) = (Some(server), true);
        self.path = end.map_or(Path::Fabric, |(_, address)| Path::Beginning(address));
        Ok(())
    }

    /// Takes in words that have arrived by the control transport, if the session uses
    /// one. True if there were any.
    ///
    /// # Errors
    /// The reason to count. The session has ended, and another one begins.
    pub fn hear_words(
        &mut self,
        words: &mut dyn ControlTransport,
        pools: &mut dyn Pools,
        now: u64,
    ) -> Result<bool, DropReason> {
        if let Path::Beginning(address) = &self.path {
            if words.connect(self.node, address).is_err() {
                self.give_up();
                return Err(DropReason::LostInFailure);
            }
            let stream = Stream::new(self.client.link().form(), self.number, true, now);
            self.path = Path::Words(stream);
        }
        let Path::Words(mut stream) = core::mem::replace(&mut self.path, Path::Fabric) else {
            return Ok(false);
        };
        let outcome =
            stream.receive(words, self.node, now, |message| self.hear_message(message, pools));
        self.path = Path::Words(stream);
        if outcome.is_err() {
            self.give_up();
        }
        outcome
    }

    fn hear(&mut self, body: &[u8], pools: &mut dyn Pools) -> Result<(), DropReason> {
        let form = self.client.link().form();
        form.read(body).try_for_each(|message| self.hear_message(unframed(message)?, pools))
    }

    fn hear_message(&mut self, message: Message, pools: &mut dyn Pools) -> Result<(), DropReason> {
        match self.client.accept(message).map_err(|_| DropReason::Malformed)? {
            Some(Heard::Pool(message)) => {
                let client = &mut self.client;
                if !pools.with(message.list, &mut |pool| client.carry_out(message, Some(pool))) {
                    self.client.carry_out(message, None);
                }
            }
            Some(Heard::Statistic { list, index, value })
                if pools.with_part(list, &mut |part| part.hear(index, value)) => {}
            Some(heard @ (Heard::Statistic { .. } | Heard::Refused(_))) => {
                if self.heard.len() >= HEARD {
                    self.heard.pop_front();
                }
                self.heard.push_back(heard);
            }
            Some(Heard::RollCall) | None => {}
        }
        Ok(())
    }

    /// The time of the next turn without input, ns: a session on a control transport asks
    /// for missing acknowledgements.
    pub fn poll_timeout(&self) -> u64 {
        match &self.path {
            Path::Fabric => u64::MAX,
            Path::Beginning(_) => 0,
            Path::Words(stream) => stream.poll_timeout(self.client.waiting() > 0),
        }
    }

    /// Sends the effects of pools. Once per turn.
    pub fn advance(&mut self, fabric: &mut Fabric, pools: &mut dyn Pools) {
        self.advance_with(fabric, None, pools, 0);
    }

    /// As [`StateSession::advance`], where messages may go over the control transport
    /// `words`. Call it after [`StateSession::hear_words`]. True if some have gone that
    /// way.
    pub fn advance_with(
        &mut self,
        fabric: &mut Fabric,
        mut words: Option<&mut (dyn ControlTransport + '_)>,
        pools: &mut dyn Pools,
        now: u64,
    ) -> bool {
        // The server's restart may be known from the fabric alone.
        let node = self.node;
        let present = fabric.peer(node);
        if self.told.is_some() && present.is_some() && present != self.told {
            self.end();
        }
        if self.is_new {
            let (memory, form) = (self.client.memory(), self.client.link().form());
            let greeting = Greeting {
                is_known: u8::from(memory.is_some()),
                size: form.size() as u8,
                session: self.number.wrapping_add(1).into(),
                memory: memory.unwrap_or(0).into(),
                received: self.client.link().received().into(),
            };
            if self.silent_sessions >= SILENT_SESSIONS {
                // The transport keeps failing; the fabric works without it.
                words = None;
            }
            if self.mine.is_none()
                && let Some(words) = &mut words
            {
                self.mine = words.open(node).ok().map(|address| (words.transport(), address));
            }
            let end = self.mine.filter(|_| words.is_some());
            if greeting
                .write(end.as_ref(), |body| fabric.send(node, kind::STATE_HELLO, body))
                .is_ok()
            {
                (self.number, self.is_new, self.told) = (greeting.session.get(), false, None);
                (self.has_offered, self.mine) = (end.is_some(), None);
                if words.is_none() {
                    self.silent_sessions = 0;
                }
            }
        }
        self.told = self.told.or(present);
        let Some(server) = self.server else { return false };
        let mut is_all = true;
        for list in 0..pools.lists() {
            let client = &mut self.client;
            pools.with(list, &mut |pool| is_all &= client.gather(list, pool));
        }
        // Statistics of flows that came here go before the answer to the roll call: that
        // answer releases the dead instance's part.
        if self.is_time || self.client.is_roll_called() {
            let mut is_said = true;
            for list in pools.statistics() {
                let client = &mut self.client;
                pools.with_part(list, &mut |part| is_said &= client.gather_statistics(list, part));
            }
            self.is_time &= !is_said;
            is_all &= is_said;
        }
        if is_all {
            self.client.claimed();
        }
        let link = self.client.link();
        let form = link.form();
        let (is_waiting, mut next) =
            (link.waiting() > 0, || link.poll().or_else(|| link.acknowledge()));
        let outcome = match &mut self.path {
            Path::Fabric => {
                let room = fabric.room(server);
                let send = |record: &[u8]| fabric.send(node, kind::STATE, record).is_ok();
                carry(form, self.number, room, next, send).then_some(false)
            }
            Path::Beginning(_) => Some(false),
            Path::Words(stream) => {
                words.and_then(|words| stream.send(words, node, now, is_waiting, &mut next).ok())
            }
        };
        outcome.unwrap_or_else(|| {
            self.give_up();
            false
        })
    }
}
