//! The instance's side: carries requests of pools to the server, and its messages to
//! pools.
//!
//! Theory of operation. A pool knows which numbers flows here have
//! ([`PoolBackend::is_held`]) and keeps what happens to them as effects, in order; the
//! client sends these as messages. A question of the server is answered behind everything
//! that the pool had to say before, so an answer never overtakes the claim that it relies
//! on. Changes of this instance's [part](Part) of statistics are sent now and then, each
//! number once for all its changes, in at most half of the link.
//!
//! In: effects of pools, changes of parts, messages, sessions that begin and end. Out:
//! messages, and calls of pools.

use crate::control::{Form, Message, Opcode, QUESTIONS_AT_MOST};
use crate::link::{Link, OutOfStep};
use holdfast_nf::shared::{Part, PoolBackend, PoolEffect};
use std::collections::BTreeMap;

/// The content of a message, for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// For the pool of this message's list: the caller has [`Client::carry_out`] apply
    /// it.
    Pool(Message),
    /// The roll call: the caller answers by [`Client::claimed`] when all indexes of flows
    /// here are claimed.
    RollCall,
    /// The value of a statistic: the total of a counter that was asked for, or the sum of
    /// all others' parts of a gauge.
    Statistic {
        /// The list.
        list: u32,
        /// The index in the list.
        index: u32,
        /// The value.
        value: i64,
    },
    /// The server refuses a message about this index: the instance does not hold it, or
    /// it does not exist.
    Refused(Message),
}

/// The client of one state server. See the module.
#[derive(Debug, Clone)]
pub struct Client {
    link: Link,
    operand: u64,
    waiting: usize,
    /// The number that identifies the server's memory.
    memory: Option<u64>,
    /// The number of the latest roll call that has not been answered.
    roll_call: Option<u64>,
    refused: u64,
    /// Requests that were sent, by list.
    requests: BTreeMap<u32, u32>,
}

impl Client {
    /// A client that has met no server. While more than `waiting` messages are
    /// unacknowledged, messages that can wait stay in the pools.
    pub fn new(waiting: usize) -> Client {
        let link = Link::new(Form::Narrow, waiting);
        Client {
            link,
            operand: 0,
            waiting,
            memory: None,
            roll_call: None,
            refused: 0,
            requests: BTreeMap::new(),
        }
    }

    /// The number that identifies the server's memory, if a server has been met.
    pub fn memory(&self) -> Option<u64> {
        self.memory
    }

    /// A session is about to begin with the server of this memory, in this form. Returns
    /// true if that is another memory than before: the server remembers nothing of this
    /// instance, and the link begins anew. In that case, before the session begins, each
    /// pool is to [announce](PoolBackend::announce) what its flows have, and each part
    /// [all of it](Part::announce).
    #[must_use]
    pub fn meet(&mut self, memory: u64, form: Form) -> bool {
        if self.memory == Some(memory) && self.link.form() == form {
            return false;
        }
        self.memory = Some(memory);
        self.link = Link::new(form, self.waiting);
        self.operand = 0;
        self.roll_call = None;
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

    /// Messages by which the server has refused something, ever.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// All effects of pools have been [gathered](Client::gather), so all indexes of flows
    /// here are claimed: answers the roll call, if there is one.
    pub fn claimed(&mut self) {
        if let Some(number) = self.roll_call.take() {
            self.link.push_with(number, Message::new(Opcode::Claimed, 0, 0));
        }
    }

    /// Sends the effects of this list's pool, as far as there is room. True if none is
    /// left.
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

    /// Sends the changes of this instance's part of this list's statistics, as far as
    /// half of the link has room, because pools cannot wait as long. True if none is
    /// left.
    pub fn gather_statistics(&mut self, list: u32, part: &mut Part) -> bool {
        while self.link.has_spare_room() {
            let Some((index, change)) = part.poll_change() else { return true };
            let opcode =
                if change < 0 { Opcode::LowerStatistics } else { Opcode::UpdateStatistics };
            let message = Message::new(opcode, list, index);
            match change.unsigned_abs() {
                1 => self.link.push(message),
                amount => self.link.push_with(amount, message),
            }
        }
        false
    }

    /// True if a roll call waits for its answer: statistics that flows brought along are
    /// to be sent before [`Client::claimed`].
    pub fn is_roll_called(&self) -> bool {
        self.roll_call.is_some()
    }

    /// Asks for a statistic's value.
    pub fn read(&mut self, list: u32, index: u32) {
        self.link.push(Message::new(Opcode::ReadStatistics, list, index));
    }

    /// Takes a message that has arrived in this session.
    ///
    /// # Errors
    /// [`OutOfStep`] if no server would send this message. The session has to end.
    pub fn accept(&mut self, message: Message) -> Result<Option<Heard>, OutOfStep> {
        let Some(message) = self.link.accept(message)? else { return Ok(None) };
        if message.opcode == Opcode::Operand {
            self.operand = self.link.form().extend(self.operand, message);
            return Ok(None);
        }
        let operand = core::mem::take(&mut self.operand);
        match message.opcode {
            Opcode::IndexAssignment | Opcode::NoMoreIndex | Opcode::Expire | Opcode::Spare => {
                Ok(Some(Heard::Pool(message)))
            }
            Opcode::RollCall => {
                self.roll_call = Some(operand);
                Ok(Some(Heard::RollCall))
            }
            Opcode::UpdateStatistics | Opcode::LowerStatistics => {
                let amount = operand.cast_signed();
                let value = if message.opcode == Opcode::LowerStatistics {
                    amount.wrapping_neg()
                } else {
                    amount
                };
                Ok(Some(Heard::Statistic { list: message.list, index: message.index, value }))
            }
            Opcode::UpdateFailure => {
                self.refused += 1;
                Ok(Some(Heard::Refused(message)))
            }
            _ => Err(OutOfStep),
        }
    }

    /// Applies a message to the pool of its list. `None` means that this instance has no
    /// such list, and so no flow with an index of it.
    pub fn carry_out(&mut self, message: Message, pool: Option<&mut dyn PoolBackend>) {
        let Message { opcode, list, index } = message;
        let Some(pool) = pool else {
            match opcode {
                Opcode::IndexAssignment => {
                    self.link.push(Message { opcode: Opcode::Return, ..message })
                }
                Opcode::Expire => self.link.push(Message { opcode: Opcode::Answered, ..message }),
                _ => {}
            }
            return;
        };
        match opcode {
            Opcode::IndexAssignment => pool.assign(index),
            // An answer to an earlier request says nothing about the latest one.
            Opcode::NoMoreIndex
                if self.requests.get(&list).is_some_and(|requests| *requests == index) =>
            {
                pool.deny()
            }
            Opcode::Spare => pool.spare(),
            Opcode::Expire => {
                // The answer goes behind all that the pool has to say.
                self.gather_some(list, pool, usize::MAX);
                // Credit counts too: this instance may have claimed it from a server that
                // knew nothing.
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

    /// A number is asked for, assigned, used by a flow, asked about, and over.
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
        assert_eq!(
            said(&mut client),
            ["Rejuvenate 2/4", "IndexRequest 2/1", "Rejuvenate 2/4", "Answered 2/4"]
        );
        hear(&mut client, &mut pool, Opcode::Expire, 77);
        pool.adopt(90);
        pool.forget(90);
        pool.settle();
        pool.give_back(4);
        client.gather(LIST, &mut pool);
        assert_eq!(
            said(&mut client),
            ["Answered 2/77", "IndexAssignment 2/90", "Moved 2/90", "Expire 2/4"]
        );
        spare(&mut client, &mut pool);
        assert_eq!(said(&mut client), ["Return 2/5", "Return 2/6"]);
    }

    /// An exhausted list refuses flows until it has an index again; spared indexes are
    /// asked for again when a flow needs one.
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

    /// While the server acknowledges nothing, pools keep their effects, except those that
    /// an answer relies on.
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
        assert_eq!(
            (said.len(), said[10].as_str(), said[11].as_str()),
            (4 + 8 + 1, "IndexAssignment 2/19", "Rejuvenate 2/19")
        );
    }

    #[test]
    fn roll_calls_and_statistics_have_operands() {
        let mut client = client();
        client.claimed();
        assert_eq!(said(&mut client), [""; 0], "nobody has asked");
        for number in [3, 4] {
            assert_eq!(client.accept(Message::new(Opcode::Operand, 0, number)), Ok(None));
            assert_eq!(
                client.accept(Message::new(Opcode::RollCall, 0, 0)),
                Ok(Some(Heard::RollCall))
            );
        }
        client.claimed();
        client.claimed();
        assert_eq!(
            said(&mut client),
            ["Operand 0/4", "Claimed 0/0"],
            "the latest one counts, once"
        );
        let mut gauge = holdfast_nf::shared::Part::new(7);
        gauge.share();
        for (item, change) in [(5, 1), (6, 700), (5, 0), (6, 24), (0, 8), (0, -8), (1, -1), (2, -2)]
        {
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
        assert_eq!(
            client.accept(Message::new(Opcode::UpdateStatistics, 3, 6)),
            Ok(Some(statistic))
        );
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
        assert_eq!(
            said(&mut client)[5..],
            ["Operand 0/2", "UpdateStatistics 0/38", "UpdateStatistics 0/39"]
        );
    }

    /// Another server has heard nothing of the messages to the one before.
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
        assert_eq!(
            said(&mut client),
            ["IndexAssignment 2/6", "IndexAssignment 2/9"],
            "also what is at hand"
        );
        hear(&mut client, &mut pool, Opcode::Expire, 9);
        assert_eq!(said(&mut client), ["Rejuvenate 2/9", "Answered 2/9"]);
    }

    /// A message that no server sends ends the session, and changes nothing else.
    #[test]
    fn what_no_server_says_is_not_listened_to() {
        for opcode in [
            Opcode::IndexRequest,
            Opcode::Rejuvenate,
            Opcode::Moved,
            Opcode::Claimed,
            Opcode::Answered,
            Opcode::Return,
        ] {
            assert_eq!(
                client().accept(Message::new(opcode, LIST, 1)),
                Err(OutOfStep),
                "{opcode:?}"
            );
        }
    }
}
