//! An instance's side: what its pools ask for goes to the server, what the server says comes to them.
//!
//! Theory of operation. A pool knows which numbers flows here have ([`PoolBackend::is_held`]) and keeps what happens to them as effects, in order; these become messages. So
//! a question is answered only behind everything that the pool had to say before: a claim is never overtaken by the answer that relies on it. Of statistics it is said now and then how this instance's [part](Part)
//! has changed, each number once for all that has happened to it, and in no more than half of the link.
//!
//! In: effects of pools, changes of parts, messages, sessions that begin and end. Out: messages, and calls of pools.

use crate::control::{Form, Message, Opcode, QUESTIONS_AT_MOST};
use crate::link::{Link, Stranger};
use holdfast_nf::shared::{Part, PoolBackend, PoolEffect};
use std::collections::BTreeMap;

/// What a message was about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// For the pool of this message's list: to be [carried out](Client::carry_out).
    Pool(Message),
    /// The server wants to know when all is claimed that flows here have: [`Client::claimed`].
    Mustered,
    /// A statistic has this value: a counter that was asked for, or what all others have of a gauge.
    Statistic {
        /// Which list.
        list: u32,
        /// Which of its statistics.
        index: u32,
        /// What it is.
        value: i64,
    },
    /// The server refuses what was said of this index: it is not ours, or there is no such.
    Refused(Message),
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Client {
    link: Link,
    operand: u64,
    waiting: usize,
    /// What the server is known by.
    memory: Option<u64>,
    /// The number of the latest roll call that has not been answered.
    mustered: Option<u64>,
    refused: u64,
    /// Requests that were said, by list.
    requests: BTreeMap<u32, u32>,
}

impl Client {
    /// One that has met nobody. While more than `waiting` messages are not acknowledged what can wait stays in the pools.
    pub fn new(waiting: usize) -> Client {
        let link = Link::new(Form::Narrow, waiting);
        Client { link, operand: 0, waiting, memory: None, mustered: None, refused: 0, requests: BTreeMap::new() }
    }

    /// What the server is known by, if one has been met.
    pub fn memory(&self) -> Option<u64> {
        self.memory
    }

    /// A session is about to begin with a server that is known by this, and whose messages have this form. True if it is not the one that was known, and remembers nothing: what had been said to that one is forgotten here too, and before the session
    /// begins each pool is to [announce](PoolBackend::announce) what its flows have, and each part [all there is](Part::announce) of it.
    #[must_use]
    pub fn meet(&mut self, memory: u64, form: Form) -> bool {
        if self.memory == Some(memory) && self.link.form() == form {
            return false;
        }
        self.memory = Some(memory);
        self.link = Link::new(form, self.waiting);
        self.operand = 0;
        self.mustered = None;
        self.requests.clear();
        true
    }

    /// The link to the server, for the transport.
    pub fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    /// Messages that the server has not acknowledged.
    pub fn waiting(&self) -> usize {
        self.link.waiting()
    }

    /// Messages in which the server has refused something, ever.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// All that pools have to say has been [gathered](Client::gather): whatever flows here have is claimed. Nothing happens if the server has not asked.
    pub fn claimed(&mut self) {
        if let Some(number) = self.mustered.take() {
            self.link.push_with(number, Message::new(Opcode::Claimed, 0, 0));
        }
    }

    /// Says what the pool of this list has to say, as far as there is room. True if that is all.
    pub fn gather(&mut self, list: u32, pool: &mut dyn PoolBackend) -> bool {
        self.gather_some(list, pool, self.link.room())
    }

    fn gather_some(&mut self, list: u32, pool: &mut dyn PoolBackend, room: usize) -> bool {
        let (mut wanted, mut left) = (0, room);
        let is_all = loop {
            if left == 0 {
                break false;
            }
            let Some(effect) = pool.poll_effect() else { break true };
            let (opcode, index) = match effect {
                PoolEffect::Request => {
                    wanted += 1;
                    continue;
                }
                PoolEffect::Used(number) => (Opcode::Rejuvenate, number),
                PoolEffect::Unused(number) => (Opcode::Return, number),
                PoolEffect::Return(number) => (Opcode::Expire, number),
                PoolEffect::Adopted(number) => (Opcode::IndexAssignment, number),
                PoolEffect::Left(number) => (Opcode::Moved, number),
                // Blocks are for partitions.
                PoolEffect::WantBlock | PoolEffect::Spare(_) | PoolEffect::SparedAll => continue,
            };
            left -= 1;
            self.link.push(Message::new(opcode, list, index));
        };
        if wanted > 0 {
            let requests = self.requests.entry(list).or_default();
            *requests = (*requests + 1) & QUESTIONS_AT_MOST;
            self.link.push(Message::new(Opcode::IndexRequest, list, wanted));
        }
        is_all
    }

    /// Says how this instance's part of the statistics of this list has changed, as far as half of the link has room: pools cannot wait as long. True if that is all.
    pub fn gather_statistics(&mut self, list: u32, part: &mut Part) -> bool {
        while self.link.has_spare_room() {
            let Some((index, change)) = part.poll_change() else { return true };
            let opcode = if change < 0 { Opcode::LowerStatistics } else { Opcode::UpdateStatistics };
            let message = Message::new(opcode, list, index);
            match change.unsigned_abs() {
                1 => self.link.push(message),
                amount => self.link.push_with(amount, message),
            }
        }
        false
    }

    /// The server has asked when all is claimed: what flows that came here have added to statistics is to be said before [`Client::claimed`].
    pub fn is_mustered(&self) -> bool {
        self.mustered.is_some()
    }

    /// Asks for a statistic's value.
    pub fn read(&mut self, list: u32, index: u32) {
        self.link.push(Message::new(Opcode::ReadStatistics, list, index));
    }

    /// A message has come by the session that is under way.
    ///
    /// # Errors
    /// The session is of no use any more: what was said there is nothing that this server could say.
    pub fn accept(&mut self, message: Message) -> Result<Option<Heard>, Stranger> {
        let Some(message) = self.link.accept(message)? else { return Ok(None) };
        if message.opcode == Opcode::Operand {
            self.operand = self.link.form().extend(self.operand, message);
            return Ok(None);
        }
        let operand = core::mem::take(&mut self.operand);
        match message.opcode {
            Opcode::IndexAssignment | Opcode::NoMoreIndex | Opcode::Expire | Opcode::Spare => Ok(Some(Heard::Pool(message))),
            Opcode::Muster => {
                self.mustered = Some(operand);
                Ok(Some(Heard::Mustered))
            }
            Opcode::UpdateStatistics | Opcode::LowerStatistics => {
                let amount = operand.cast_signed();
                let value = if message.opcode == Opcode::LowerStatistics { amount.wrapping_neg() } else { amount };
                Ok(Some(Heard::Statistic { list: message.list, index: message.index, value }))
            }
            Opcode::UpdateFailure => {
                self.refused += 1;
                Ok(Some(Heard::Refused(message)))
            }
            _ => Err(Stranger),
        }
    }

    /// Tells the pool of the message's list, which is this one. `None` is a list that there is not here: no flow of it is, either.
    pub fn carry_out(&mut self, message: Message, pool: Option<&mut dyn PoolBackend>) {
        let Message { opcode, list, index } = message;
        let Some(pool) = pool else {
            match opcode {
                Opcode::IndexAssignment => self.link.push(Message { opcode: Opcode::Return, ..message }),
                Opcode::Expire => self.link.push(Message { opcode: Opcode::Answered, ..message }),
                _ => {}
            }
            return;
        };
        match opcode {
            Opcode::IndexAssignment => pool.assign(index),
            // Of what has been asked since it is not known yet.
            Opcode::NoMoreIndex if self.requests.get(&list).is_some_and(|requests| *requests == index) => pool.deny(),
            Opcode::Spare => pool.spare(),
            Opcode::Expire => {
                // Behind what there is to say of it.
                self.gather_some(list, pool, usize::MAX);
                // What is claimed from a server that knew nothing may have been credit.
                if pool.is_held(index) || pool.is_free(index) {
                    self.link.push(Message { opcode: Opcode::Rejuvenate, ..message });
                }
                self.link.push(Message { opcode: Opcode::Answered, ..message });
            }
            _ => {}
        }
        self.gather(list, pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_nf::shared::{Lease, RequestPool};

    const LIST: u32 = 2;

    fn client() -> Client {
        let mut client = Client::new(512);
        client.link().begin(0).expect("nothing was said");
        client
    }

    fn said(client: &mut Client) -> Vec<String> {
        core::iter::from_fn(|| client.link.poll()).map(|message| message.to_string()).collect()
    }

    fn hear(client: &mut Client, pool: &mut RequestPool, opcode: Opcode, index: u32) {
        match client.accept(Message::new(opcode, LIST, index)) {
            Ok(Some(Heard::Pool(message))) => client.carry_out(message, Some(pool)),
            other => panic!("{opcode:?} is {other:?}"),
        }
    }

    fn spare(client: &mut Client, pool: &mut RequestPool) {
        hear(client, pool, Opcode::Spare, 0);
        pool.advance(0);
        client.gather(LIST, pool);
    }

    /// A number's way: asked for, assigned, used by a flow, asked about, over.
    #[test]
    fn what_pools_do_is_said_in_order() {
        let (mut client, mut pool) = (client(), RequestPool::new(100, 3));
        client.gather(LIST, &mut pool);
        assert_eq!(said(&mut client), ["IndexRequest 2/3"]);
        for index in [4, 5, 6] {
            hear(&mut client, &mut pool, Opcode::IndexAssignment, index);
        }
        assert_eq!(pool.lease(&(0..100), None), Lease::Granted(4));
        hear(&mut client, &mut pool, Opcode::Expire, 4);
        assert_eq!(said(&mut client), ["Rejuvenate 2/4", "IndexRequest 2/1", "Rejuvenate 2/4", "Answered 2/4"]);
        hear(&mut client, &mut pool, Opcode::Expire, 77);
        pool.adopt(90);
        pool.forget(90);
        pool.settle();
        pool.give_back(4);
        client.gather(LIST, &mut pool);
        assert_eq!(said(&mut client), ["Answered 2/77", "IndexAssignment 2/90", "Moved 2/90", "Expire 2/4"]);
        spare(&mut client, &mut pool);
        assert_eq!(said(&mut client), ["Return 2/5", "Return 2/6"]);
    }

    /// Where there is nothing flows are refused, until there is something; what is spared is asked for again when a flow needs it.
    #[test]
    fn a_pool_is_empty_until_it_is_not() {
        let (mut client, mut pool) = (client(), RequestPool::new(100, 2));
        client.gather(LIST, &mut pool);
        assert_eq!(pool.lease(&(0..100), None), Lease::Wait);
        hear(&mut client, &mut pool, Opcode::NoMoreIndex, 0);
        assert_eq!(pool.lease(&(0..100), None), Lease::Wait, "that was before it asked");
        hear(&mut client, &mut pool, Opcode::NoMoreIndex, 1);
        assert_eq!(pool.lease(&(0..100), None), Lease::Exhausted);
        hear(&mut client, &mut pool, Opcode::IndexAssignment, 8);
        spare(&mut client, &mut pool);
        assert_eq!(said(&mut client), ["IndexRequest 2/2", "Return 2/8"]);
        assert_eq!(pool.lease(&(0..100), None), Lease::Wait);
        client.gather(LIST, &mut pool);
        assert_eq!(said(&mut client), ["IndexRequest 2/1"], "one is still owed");
        client.accept(Message::new(Opcode::Expire, 7, 1)).expect("it is a question");
        client.carry_out(Message::new(Opcode::Expire, 7, 1), None);
        client.carry_out(Message::new(Opcode::IndexAssignment, 7, 1), None);
        assert_eq!(said(&mut client), ["Answered 7/1", "Return 7/1"], "a list that there is not");
    }

    /// While the server acknowledges nothing pools keep what they have to say, but for what an answer relies on.
    #[test]
    fn what_can_wait_waits_in_the_pool() {
        let (mut client, mut pool) = (Client::new(3), RequestPool::new(100, 1));
        client.link().begin(0).expect("nothing was said");
        (10..20).for_each(|number| pool.adopt(number));
        client.gather(LIST, &mut pool);
        assert_eq!(client.link().waiting(), 4, "the request is said in any case");
        client.gather(LIST, &mut pool);
        assert_eq!(client.link().waiting(), 4);
        hear(&mut client, &mut pool, Opcode::Expire, 19);
        let said = said(&mut client);
        assert_eq!((said.len(), said[10].as_str(), said[11].as_str()), (4 + 8 + 1, "IndexAssignment 2/19", "Rejuvenate 2/19"));
    }

    #[test]
    fn roll_calls_and_statistics_have_operands() {
        let mut client = client();
        client.claimed();
        assert_eq!(said(&mut client), [""; 0], "nobody has asked");
        for number in [3, 4] {
            assert_eq!(client.accept(Message::new(Opcode::Operand, 0, number)), Ok(None));
            assert_eq!(client.accept(Message::new(Opcode::Muster, 0, 0)), Ok(Some(Heard::Mustered)));
        }
        client.claimed();
        client.claimed();
        assert_eq!(said(&mut client), ["Operand 0/4", "Claimed 0/0"], "the latest one counts, once");
        let mut gauge = holdfast_nf::shared::Part::new(7);
        gauge.share();
        for (item, change) in [(5, 1), (6, 700), (5, 0), (6, 24), (0, 8), (0, -8), (1, -1), (2, -2)] {
            gauge.add(item, change);
        }
        client.read(3, 6);
        assert!(client.gather_statistics(3, &mut gauge));
        let words = [
            "UpdateStatistics 3/5",
            "Operand 0/724",
            "UpdateStatistics 3/6",
            "LowerStatistics 3/1",
            "Operand 0/2",
            "LowerStatistics 3/2",
        ];
        assert_eq!(said(&mut client), [&["ReadStatistics 3/6"], &words[..]].concat());
        assert!(client.gather_statistics(3, &mut gauge));
        assert_eq!(said(&mut client), [""; 0]);
        client.accept(Message::new(Opcode::Operand, 0, 9)).expect("it is a number");
        let less = Heard::Statistic { list: 3, index: 6, value: -9 };
        assert_eq!(client.accept(Message::new(Opcode::LowerStatistics, 3, 6)), Ok(Some(less)));
        client.accept(Message::new(Opcode::Operand, 0, 9)).expect("it is a number");
        let statistic = Heard::Statistic { list: 3, index: 6, value: 9 };
        assert_eq!(client.accept(Message::new(Opcode::UpdateStatistics, 3, 6)), Ok(Some(statistic)));
        let refused = Message::new(Opcode::UpdateFailure, 3, 99);
        assert_eq!(client.accept(refused), Ok(Some(Heard::Refused(refused))));
        assert_eq!(client.refused(), 1);
    }

    /// Statistics leave half of the link to pools, and wait in order.
    #[test]
    fn statistics_wait_for_room() {
        let mut client = Client::new(64);
        client.link().begin(0).expect("nothing was said");
        let mut gauge = holdfast_nf::shared::Part::new(40);
        gauge.share();
        (0..40).for_each(|item| gauge.add(item, 1));
        assert!(!client.gather_statistics(0, &mut gauge));
        assert!(!client.gather_statistics(0, &mut gauge));
        gauge.add(38, 1);
        assert_eq!(said(&mut client).len(), 33, "and thirty-one may follow");
        client.link().accept(Message::new(Opcode::Acknowledge, 0, 33)).expect("it was said");
        assert!(client.gather_statistics(0, &mut gauge));
        assert_eq!(said(&mut client)[5..], ["Operand 0/2", "UpdateStatistics 0/38", "UpdateStatistics 0/39"]);
    }

    /// Another server has heard nothing of what was said to the one before.
    #[test]
    fn to_another_server_nothing_has_been_said() {
        let (mut client, mut pool) = (Client::new(512), RequestPool::new(100, 1));
        assert!(client.meet(1, Form::Narrow));
        pool.announce();
        client.gather(LIST, &mut pool);
        client.link().begin(0).expect("nothing was said");
        assert_eq!(said(&mut client), ["IndexRequest 2/1"]);
        hear(&mut client, &mut pool, Opcode::IndexAssignment, 6);
        assert_eq!(pool.lease(&(0..100), None), Lease::Granted(6));
        client.gather(LIST, &mut pool);
        client.link().end();
        assert!(!client.meet(1, Form::Narrow));
        assert_eq!(client.link().begin(3), Ok(()), "it knows how much has arrived");
        assert!(client.meet(2, Form::Narrow));
        pool.announce();
        client.gather(LIST, &mut pool);
        client.link().begin(0).expect("nothing was said to this one");
        assert_eq!(said(&mut client), ["IndexAssignment 2/6", "IndexRequest 2/1"]);
        hear(&mut client, &mut pool, Opcode::IndexAssignment, 9);
        client.link().end();
        assert!(client.meet(3, Form::Narrow));
        pool.announce();
        client.gather(LIST, &mut pool);
        client.link().begin(0).expect("nothing was said to this one");
        assert_eq!(said(&mut client), ["IndexAssignment 2/6", "IndexAssignment 2/9"], "also what is at hand");
        hear(&mut client, &mut pool, Opcode::Expire, 9);
        assert_eq!(said(&mut client), ["Rejuvenate 2/9", "Answered 2/9"]);
    }

    /// What no server says ends the session, and nothing else.
    #[test]
    fn what_no_server_says_is_not_listened_to() {
        for opcode in [Opcode::IndexRequest, Opcode::Rejuvenate, Opcode::Moved, Opcode::Claimed, Opcode::Answered, Opcode::Return]
        {
            assert_eq!(client().accept(Message::new(opcode, LIST, 1)), Err(Stranger), "{opcode:?}");
        }
    }
}
