//! An instance's session with the state server.
//!
//! In: records of the server, that it has begun a new life, what pools want. Out: records, calls of pools.

use super::{Greeting, carry, of_session};
use crate::address::STATE_SERVER;
use crate::channel::Fabric;
use crate::message::kind;
use holdfast_nf::shared::PoolBackend;
use holdfast_protection::Peer;
use holdfast_state::{Client, Heard};
use holdfast_wire::DropReason;
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// As many answers wait for whoever asked.
const HEARD: usize = 64;

/// An instance's pools, each a list of the server's.
pub trait Pools {
    /// How many lists there are.
    fn lists(&self) -> u32;
    /// Has `act` look at the pool of this list. False if there is none.
    fn with(&mut self, list: u32, act: &mut dyn FnMut(&mut dyn PoolBackend)) -> bool;
}

/// See the module.
#[derive(Debug)]
pub struct StateSession {
    client: Client,
    /// The number of the latest session, and with whom it is once welcomed.
    number: u32,
    server: Option<Peer>,
    /// Hello is to be said: at the beginning, to every new life of the server, and when it has ended a session.
    is_new: bool,
    /// It has been welcomed, ever.
    has_joined: bool,
    /// To which life of the server hello was said, once that is known.
    told: Option<Peer>,
    heard: VecDeque<Heard>,
}

impl StateSession {
    /// A session with whoever is the server. While more than `waiting` messages are not acknowledged what can wait stays in the pools.
    pub fn new(waiting: usize) -> StateSession {
        StateSession {
            client: Client::new(waiting),
            number: 0,
            server: None,
            is_new: true,
            has_joined: false,
            told: None,
            heard: VecDeque::new(),
        }
    }

    /// The server knows this instance: it may be given flows.
    pub fn has_joined(&self) -> bool {
        self.has_joined
    }

    /// With whom the session is, once it has been welcomed.
    pub fn server(&self) -> Option<Peer> {
        self.server
    }

    /// What the server has said that is not for pools: values of statistics, and what it refuses. Only the latest are kept.
    pub fn take_heard(&mut self) -> impl Iterator<Item = Heard> + '_ {
        self.heard.drain(..)
    }

    /// The client, for statistics.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Somebody has begun a new life.
    pub fn handle_restart(&mut self, peer: Peer) {
        if peer.node == STATE_SERVER {
            self.end();
        }
    }

    fn end(&mut self) {
        self.client.link().end();
        (self.server, self.is_new) = (None, true);
    }

    /// Takes a record of the server in.
    ///
    /// # Errors
    /// The reason to count. What was wrong has ended the session; it begins again.
    pub fn handle_record(&mut self, from: Peer, kind: u8, body: &[u8], pools: &mut dyn Pools) -> Result<(), DropReason> {
        if from.node != STATE_SERVER {
            return Err(DropReason::Malformed);
        }
        let outcome = match kind {
            kind::STATE_WELCOME => self.begin(from, body, pools),
            kind::STATE | kind::STATE_OVER => of_session(body).and_then(|(session, messages)| {
                if session != self.number || self.is_new {
                    // It had ended here, and not there yet.
                } else if kind == kind::STATE_OVER {
                    self.end();
                } else if self.server == Some(from) {
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

    fn begin(&mut self, server: Peer, body: &[u8], pools: &mut dyn Pools) -> Result<(), DropReason> {
        let (greeting, form) = Greeting::read(body)?;
        if greeting.session.get() != self.number || self.is_new {
            return Ok(());
        }
        if self.client.meet(greeting.memory.get(), form) {
            for list in 0..pools.lists() {
                pools.with(list, &mut |pool| pool.announce());
            }
        }
        self.client.link().begin(greeting.received.get()).map_err(|_| DropReason::Malformed)?;
        (self.server, self.has_joined) = (Some(server), true);
        Ok(())
    }

    fn hear(&mut self, body: &[u8], pools: &mut dyn Pools) -> Result<(), DropReason> {
        let form = self.client.link().form();
        for message in form.read(body) {
            match self.client.accept(message?).map_err(|_| DropReason::Malformed)? {
                Some(Heard::Pool(message)) => {
                    let client = &mut self.client;
                    if !pools.with(message.list, &mut |pool| client.carry_out(message, Some(pool))) {
                        self.client.carry_out(message, None);
                    }
                }
                Some(heard @ (Heard::Statistic { .. } | Heard::Refused(_))) => {
                    if self.heard.len() >= HEARD {
                        self.heard.pop_front();
                    }
                    self.heard.push_back(heard);
                }
                Some(Heard::Mustered) | None => {}
            }
        }
        Ok(())
    }

    /// Says what the pools have to say. Once per turn.
    pub fn advance(&mut self, fabric: &mut Fabric, pools: &mut dyn Pools) {
        // Also where nobody says that the server has begun a new life.
        let life = fabric.peer(STATE_SERVER);
        if self.told.is_some() && life.is_some() && life != self.told {
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
            if fabric.send(STATE_SERVER, kind::STATE_HELLO, greeting.as_bytes()).is_ok() {
                (self.number, self.is_new, self.told) = (greeting.session.get(), false, None);
            }
        }
        self.told = self.told.or(life);
        let Some(server) = self.server else { return };
        let mut is_all = true;
        for list in 0..pools.lists() {
            let client = &mut self.client;
            pools.with(list, &mut |pool| is_all &= client.gather(list, pool));
        }
        if is_all {
            self.client.claimed();
        }
        self.client.flush();
        let (link, room) = (self.client.link(), fabric.room(server));
        let form = link.form();
        let next = || link.poll().or_else(|| link.acknowledge());
        let send = |record: &[u8]| fabric.send(STATE_SERVER, kind::STATE, record).is_ok();
        if !carry(form, self.number, room, next, send) {
            self.end();
        }
    }
}
