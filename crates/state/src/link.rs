//! A link delivers messages exactly once and in order, however often the connection is
//! lost.
//!
//! Theory of operation. Both sides count the messages that they have sent and received
//! since the link began. A transport carries messages in order while a session lasts.
//! When a session begins, each side says how many messages have arrived, and the other
//! sends the rest again. Acknowledged messages are forgotten. The counts and the
//! unacknowledged messages are the whole state, so a standby that has a copy of them can
//! continue a dead side's link.
//!
//! In: messages to be sent, messages that have arrived. Out: the same. Never: a message
//! of a session that is over.

use crate::control::{Form, Message, Opcode};
use std::collections::VecDeque;

/// An acknowledgement goes between other messages when so many are due.
const ACKNOWLEDGED: u64 = 64;
/// A queue this short delays nobody.
const FEW: usize = 16;

/// A side of a link. See the module.
#[derive(Debug, Clone)]
pub struct Link {
    form: Form,
    /// Messages that are not acknowledged. `first` is the number of the first, counted
    /// from 0.
    queue: VecDeque<Message>,
    first: u64,
    /// The number of the message to be sent next in this session.
    next: u64,
    is_open: bool,
    /// Messages that have arrived, and how many of them this session has acknowledged.
    received: u64,
    told: u64,
    limit: usize,
    /// Limits: messages from number `.0` on are not sent, and at most `.1` are
    /// acknowledged.
    allowed: (u64, u64),
}

/// The other side's counts do not fit this link: it remembers another link, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfStep;

impl Link {
    /// A new link, on which nothing was said. At most `limit` messages wait for their
    /// acknowledgement. The limit is kept below half of the range that an acknowledgement
    /// can tell apart.
    pub fn new(form: Form, limit: usize) -> Link {
        let limit = limit.clamp(1, 1 << (form.operand_bits().min(31) - 2));
        Link {
            form,
            queue: VecDeque::new(),
            first: 0,
            next: 0,
            is_open: false,
            received: 0,
            told: 0,
            limit,
            allowed: (u64::MAX, u64::MAX),
        }
    }

    /// The form of messages.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Messages that have arrived. A side says this number when a session begins.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// True if all that has arrived may be acknowledged.
    pub fn is_allowed(&self) -> bool {
        self.received <= self.allowed.1
    }

    /// Messages for the other side since the link began, arrived or not.
    pub fn sent(&self) -> u64 {
        self.first + self.queue.len() as u64
    }

    /// Messages that wait to be sent or acknowledged.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// How many more messages fit.
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.queue.len())
    }

    /// True if half of the link, or all but a few messages, is free: then messages that
    /// can wait longest may be sent.
    pub fn has_spare_room(&self) -> bool {
        self.room() > 0 && self.waiting() <= self.room().max(FEW)
    }

    /// Sends a message behind all others. Messages beyond the limit are kept too: a
    /// caller that can wait asks for [`Link::room`] first.
    pub fn push(&mut self, message: Message) {
        self.queue.push_back(message);
    }

    /// Sends a message with a number, which goes in front of it.
    pub fn push_with(&mut self, operand: u64, message: Message) {
        self.queue.extend(self.form.operands(operand));
        self.queue.push_back(message);
    }

    /// From now on only the first `sent` messages of all may leave, and at most
    /// `received` may be acknowledged: the standby does not have the rest yet. `u64::MAX`
    /// is no limit.
    pub fn allow(&mut self, sent: u64, received: u64) {
        self.allowed = (sent, received);
    }

    /// A session has begun, and the other side says that so many messages have arrived
    /// there.
    ///
    /// # Errors
    /// [`OutOfStep`], without a change, if the count cannot be right.
    pub fn begin(&mut self, arrived: u64) -> Result<(), OutOfStep> {
        if arrived < self.first || arrived > self.sent() {
            return Err(OutOfStep);
        }
        self.forget(arrived);
        self.next = arrived;
        self.told = self.received;
        self.is_open = true;
        Ok(())
    }

    /// The session is over. Messages on their way may have arrived or not.
    pub fn end(&mut self) {
        self.is_open = false;
    }

    /// True while a session lasts.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    fn forget(&mut self, arrived: u64) {
        self.queue.drain(..(arrived - self.first) as usize);
        self.first = arrived;
        self.next = self.next.max(arrived);
    }

    /// The next message for the transport; none while there is no session.
    pub fn poll(&mut self) -> Option<Message> {
        if !self.is_open {
            return None;
        }
        // Acknowledge first: the other side may wait for it before it answers.
        if self.tellable() >= self.told + ACKNOWLEDGED {
            return self.acknowledge();
        }
        let message = (self.next < self.allowed.0)
            .then(|| self.queue.get((self.next - self.first) as usize).copied())??;
        self.next += 1;
        Some(message)
    }

    fn tellable(&self) -> u64 {
        self.received.min(self.allowed.1)
    }

    /// An acknowledgement of all that has arrived since the last one, if anything has:
    /// for a side that has had nothing else to send for a while.
    pub fn acknowledge(&mut self) -> Option<Message> {
        if !self.is_open || self.told >= self.tellable() {
            return None;
        }
        self.told = self.tellable();
        let bits = self.form.operand_bits();
        let count = self.told & ((1u64 << bits) - 1);
        // Coded like an operand.
        let operand = self.form.operands(count).last();
        Some(operand.map_or(Message::new(Opcode::Acknowledge, 0, 0), |operand| Message {
            opcode: Opcode::Acknowledge,
            ..operand
        }))
    }

    /// Takes a message that has arrived in this session. Returns it unless it was for the
    /// link itself.
    ///
    /// # Errors
    /// [`OutOfStep`] if it acknowledges messages that were never sent. The session has to
    /// begin anew.
    pub fn accept(&mut self, message: Message) -> Result<Option<Message>, OutOfStep> {
        if message.opcode != Opcode::Acknowledge {
            self.received += 1;
            return Ok(Some(message));
        }
        let mask = (1u64 << self.form.operand_bits()) - 1;
        let ahead = self.form.extend(0, message).wrapping_sub(self.first) & mask;
        if ahead > self.queue.len() as u64 {
            return Err(OutOfStep);
        }
        self.forget(self.first + ahead);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Push(bool),
        Carry(bool, usize),
        Acknowledge(bool),
        Cut,
        Join,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => any::<bool>().prop_map(Step::Push),
            6 => (any::<bool>(), 1usize..100).prop_map(|(side, count)| Step::Carry(side, count)),
            2 => any::<bool>().prop_map(Step::Acknowledge),
            1 => Just(Step::Cut),
            3 => Just(Step::Join),
        ]
    }

    /// Two sides, and the messages on their way between them.
    struct Pair {
        links: [Link; 2],
        under_way: [VecDeque<Message>; 2],
        sent: [u32; 2],
        arrived: [u32; 2],
    }

    impl Pair {
        fn carry(&mut self, from: usize, count: usize) {
            while let Some(message) = self.links[from].poll() {
                self.under_way[from].push_back(message);
            }
            for message in self.under_way[from]
                .drain(..count.min(self.under_way[from].len()))
                .collect::<Vec<_>>()
            {
                if let Some(message) =
                    self.links[1 - from].accept(message).expect("they know each other")
                {
                    assert_eq!(message.index, self.arrived[from], "each once and in order");
                    self.arrived[from] += 1;
                }
            }
        }

        fn join(&mut self) {
            if !self.links[0].is_open() {
                let received = [self.links[0].received(), self.links[1].received()];
                self.links[0].begin(received[1]).expect("they know each other");
                self.links[1].begin(received[0]).expect("they know each other");
            }
        }

        fn cut(&mut self) {
            self.links.iter_mut().for_each(Link::end);
            self.under_way.iter_mut().for_each(VecDeque::clear);
        }
    }

    proptest! {
        #[test]
        fn each_message_arrives_once(form in prop_oneof![Just(Form::Narrow), Just(Form::Wide)], steps in prop::collection::vec(step(), 1..400)) {
            let mut pair = Pair { links: [Link::new(form, 1000), Link::new(form, 1000)], under_way: Default::default(), sent: [0; 2], arrived: [0; 2] };
            for step in steps {
                match step {
                    Step::Push(side) => {
                        for _ in 0..20 {
                            pair.links[usize::from(side)].push(Message::new(Opcode::Rejuvenate, 1, pair.sent[usize::from(side)]));
                            pair.sent[usize::from(side)] += 1;
                        }
                    }
                    Step::Carry(side, count) => pair.carry(usize::from(side), count),
                    Step::Acknowledge(side) => {
                        let side = usize::from(side);
                        pair.carry(side, 0);
                        if let Some(message) = pair.links[side].acknowledge() {
                            pair.under_way[side].push_back(message);
                        }
                    }
                    Step::Cut => pair.cut(),
                    Step::Join => pair.join(),
                }
            }
            pair.join();
            for side in [0, 1, 0, 1] {
                pair.carry(side, usize::MAX);
            }
            prop_assert_eq!(pair.sent, pair.arrived);
            pair.cut();
            pair.join();
            prop_assert_eq!([pair.links[0].waiting(), pair.links[1].waiting()], [0, 0], "a session's beginning acknowledges everything");
        }
    }

    /// Counts beyond the range of an acknowledgement are told apart, and an
    /// acknowledgement of messages that were never sent is refused.
    #[test]
    fn counts_may_be_larger_than_messages() {
        let mut link = Link::new(Form::Narrow, 1000);
        let mut other = link.clone();
        link.begin(0).expect("nothing was said");
        other.begin(0).expect("nothing was said");
        let number = |number: u32| Message::new(Opcode::Expire, 0, number % 1000);
        for at in 0..(1 << 25) + 1000 {
            link.push(number(at));
            let message = link.poll().expect("it is to be sent");
            assert_eq!(other.accept(message), Ok(Some(number(at))));
            if let Some(message) = other.poll() {
                assert_eq!(link.accept(message), Ok(None));
            }
            assert!(link.waiting() <= ACKNOWLEDGED as usize);
        }
        assert_eq!(link.accept(Message::new(Opcode::Acknowledge, 1, 7)), Err(OutOfStep));
        assert_eq!(link.begin(3), Err(OutOfStep));
    }
}
