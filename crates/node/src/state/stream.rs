//! A session's messages as words without frames.
//!
//! Theory of operation. Each side begins with a [marker](Opcode::Begin) that has the
//! session's number; words before the marker are ignored. The server begins when it has
//! heard the instance, so no word of it arrives before the welcome, which goes over the
//! fabric. Each burst begins with a [count](Opcode::Count) of the messages before it. A
//! transport may lose all words from one on until the next burst, and the count shows the
//! loss before anything behind it takes effect. The session ends then, and the links send
//! again what did not arrive. A side that waits long for an acknowledgement
//! [asks](Opcode::Ask) for the count. The question shows a silent side what it has lost,
//! and ends the session if no answer comes.
//!
//! A message of four bytes is a word. A message of eight bytes is three words of 22 bits
//! each, which say which of the three they are: a loss in the middle of a message is
//! noticed too.
//!
//! In: words that have arrived, messages to be sent, the time. Out: the same. Never: a
//! message of another session, out of order, or twice.

use super::transport::{ControlTransport, Lost};
use holdfast_state::{Form, Message, Opcode};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, NodeId};

/// Words that are carried at a time.
const BURST: usize = 256;
/// Bursts that are taken in per turn.
const BURSTS: usize = 16;
/// Messages that may follow the last polled one in a burst: a requested count, a marker,
/// a question.
const BEHIND: usize = 3;
/// Interval between questions of a side that waits, ns.
const ASK_INTERVAL: u64 = 50_000_000;
/// Unanswered questions after which the session is given up.
const QUESTIONS: u32 = 20;
/// Bits of a long message in each of its words.
const PART_BITS: u32 = 22;
const PARTS: u32 = 3;

/// A side's stream of a session.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    form: Form,
    session: u32,
    /// The other side's marker has arrived.
    is_heard: bool,
    /// Messages received since, and messages sent.
    heard: u64,
    said: u64,
    /// Bits of a long message that has arrived in part, and the number of its words so
    /// far.
    parts: (u64, u32),
    has_begun: bool,
    /// This side begins.
    is_first: bool,
    owes_count: bool,
    /// The time of the last arrival, or the time from which the first question counts;
    /// then the time of the last question, and questions since.
    heard_at: u64,
    asked_at: u64,
    questions: u32,
}

impl Stream {
    /// A stream for a session's messages in this form. The instance begins (`is_first`).
    pub(super) fn new(form: Form, session: u32, is_first: bool, now: u64) -> Stream {
        Stream {
            form,
            session,
            is_heard: is_planted(Fault::BelievesAnyWords),
            heard: 0,
            said: 0,
            parts: (0, 0),
            has_begun: false,
            is_first,
            owes_count: false,
            heard_at: now,
            asked_at: now,
            questions: 0,
        }
    }

    /// True if the other side has been heard in this session.
    pub(super) fn is_heard(&self) -> bool {
        self.is_heard
    }

    /// Takes in words that have arrived, and calls `hear` for each message. True if there
    /// were words.
    ///
    /// # Errors
    /// The session is over. [`DropReason::LostInFailure`] if words were lost on the way,
    /// [`DropReason::Malformed`] for words that no side sends, or the error of `hear`.
    pub(super) fn receive(
        &mut self,
        words: &mut dyn ControlTransport,
        node: NodeId,
        now: u64,
        mut hear: impl FnMut(Message) -> Result<(), DropReason>,
    ) -> Result<bool, DropReason> {
        let mut some = [0; BURST];
        let mut is_any = false;
        // A flood waits for the next turn.
        for _ in 0..BURSTS {
            let count = words.receive(node, &mut some).map_err(|Lost| DropReason::LostInFailure)?;
            if count == 0 {
                break;
            }
            is_any = true;
            (self.heard_at, self.questions) = (now, 0);
            for word in &some[..count.min(BURST)] {
                if let Some(message) = self.take(*word)? {
                    hear(message)?;
                }
            }
        }
        Ok(is_any)
    }

    /// Takes in a word; returns the message that it completes.
    fn take(&mut self, word: u32) -> Result<Option<Message>, DropReason> {
        let Some(number) = self.assemble(word)? else { return Ok(None) };
        let message = match self.form.unpack(number) {
            Ok(message) => message,
            // Possibly a word of an earlier session.
            Err(_) if !self.is_heard => return Ok(None),
            Err(reason) => return Err(reason),
        };
        let is_right = |number: u64| self.form.has_number(message, number);
        match message.opcode {
            Opcode::Begin if is_planted(Fault::BelievesAnyWords) => Ok(None),
            // A repeated marker: its sender has not heard this side. If this side has
            // sent messages, they are lost.
            Opcode::Begin if self.is_heard && is_right(self.session.into()) && self.heard == 0 => {
                self.has_begun = false;
                if self.said == 0 { Ok(None) } else { Err(DropReason::LostInFailure) }
            }
            Opcode::Begin if self.is_heard => Err(DropReason::Malformed),
            Opcode::Begin => {
                self.is_heard = is_right(self.session.into());
                Ok(None)
            }
            _ if !self.is_heard => Ok(None),
            Opcode::Count | Opcode::Ask
                if is_right(self.heard) || is_planted(Fault::BelievesAnyWords) =>
            {
                self.owes_count |= message.opcode == Opcode::Ask;
                Ok(None)
            }
            Opcode::Count | Opcode::Ask => Err(DropReason::LostInFailure),
            _ => {
                self.heard += 1;
                Ok(Some(message))
            }
        }
    }

    fn assemble(&mut self, word: u32) -> Result<Option<u64>, DropReason> {
        if self.form == Form::Narrow {
            return Ok(Some(word.into()));
        }
        let (mut number, mut count) = self.parts;
        let (part, bits) = (word >> PART_BITS, word & ((1 << PART_BITS) - 1));
        if part != count {
            if self.is_heard && !is_planted(Fault::BelievesAnyWords) {
                return Err(DropReason::LostInFailure);
            }
            // The rest of a message before the marker.
            (number, count) = (0, 0);
            if part != 0 {
                self.parts = (0, 0);
                return Ok(None);
            }
        }
        number = number << PART_BITS | u64::from(bits);
        count += 1;
        if count < PARTS {
            self.parts = (number, count);
            return Ok(None);
        }
        self.parts = (0, 0);
        Ok(Some(number))
    }

    /// Sends what is due, as far as there is room. `is_waiting`: a message is
    /// unacknowledged. True if anything was sent.
    ///
    /// # Errors
    /// The session is over: this form cannot name a message's list, or the other side
    /// does not answer.
    pub(super) fn send(
        &mut self,
        words: &mut dyn ControlTransport,
        node: NodeId,
        now: u64,
        is_waiting: bool,
        mut poll: impl FnMut() -> Option<Message>,
    ) -> Result<bool, DropReason> {
        if !self.is_heard && !self.is_first {
            return Ok(false);
        }
        let mut burst = Burst { form: self.form, words: [0; BURST], len: 0 };
        let size = if self.form == Form::Narrow { 1 } else { PARTS as usize };
        // Room is kept for marker and count: a polled message has to be sent.
        let room = words.room(node).min(BURST);
        if room < (BEHIND + 3) * size {
            return if self.is_patient(now, true) {
                Ok(false)
            } else {
                Err(DropReason::LostInFailure)
            };
        }
        if !self.has_begun {
            burst.push(self.form.with_number(Opcode::Begin, self.session.into()));
            self.has_begun = true;
        }
        // The first side sends only the marker until it has heard the other.
        let mut is_counted = burst.len > 0;
        let may_speak = self.is_heard || !self.is_first || is_planted(Fault::BelievesAnyWords);
        while may_speak && burst.len + (BEHIND + 2) * size <= room {
            let Some(message) = poll() else { break };
            if !is_counted {
                burst.push(self.form.with_number(Opcode::Count, self.said));
                is_counted = true;
            }
            if !burst.push(message) {
                return Err(DropReason::Malformed);
            }
            self.said += 1;
        }
        if self.owes_count {
            self.owes_count = false;
            burst.push(self.form.with_number(Opcode::Count, self.said));
        }
        if !self.is_patient(now, is_waiting) {
            return Err(DropReason::LostInFailure);
        }
        if (is_waiting || !self.is_heard)
            && now.saturating_sub(self.asked_at.max(self.heard_at)) >= ASK_INTERVAL
        {
            // The marker itself may have been lost.
            if !self.is_heard {
                burst.push(self.form.with_number(Opcode::Begin, self.session.into()));
            }
            burst.push(self.form.with_number(Opcode::Ask, self.said));
            (self.asked_at, self.questions) = (now, self.questions + 1);
        }
        words.send(node, &burst.words[..burst.len]);
        Ok(burst.len > 0)
    }

    /// False if the other side has been asked often enough.
    fn is_patient(&mut self, now: u64, is_waiting: bool) -> bool {
        if !is_waiting && self.is_heard {
            // The wait begins now.
            (self.heard_at, self.questions) = (now, 0);
        }
        self.questions < QUESTIONS
            && now.saturating_sub(self.heard_at) < ASK_INTERVAL * u64::from(QUESTIONS + 1)
    }

    /// The time of the next question, ns.
    pub(super) fn poll_timeout(&self, is_waiting: bool) -> u64 {
        if is_waiting || !self.is_heard {
            self.asked_at.max(self.heard_at).saturating_add(ASK_INTERVAL)
        } else {
            u64::MAX
        }
    }
}

/// Words that leave together.
struct Burst {
    form: Form,
    words: [u32; BURST],
    len: usize,
}

impl Burst {
    /// Appends a message. False if this form cannot name its list.
    fn push(&mut self, message: Message) -> bool {
        let Some(number) = self.form.pack(message) else { return false };
        if self.form == Form::Narrow {
            self.words[self.len] = number as u32;
            self.len += 1;
            return true;
        }
        for part in 0..PARTS {
            let bits = number >> (PART_BITS * (PARTS - 1 - part)) & ((1 << PART_BITS) - 1);
            self.words[self.len] = part << PART_BITS | bits as u32;
            self.len += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::transport::{Address, Transport};
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const NODE: NodeId = NodeId::new(16);

    /// Both directions at once: sent words arrive here.
    #[derive(Default)]
    struct Loop(VecDeque<u32>);

    impl ControlTransport for Loop {
        fn transport(&self) -> Transport {
            Transport::SharedMemory
        }

        fn open(&mut self, _: NodeId) -> Result<Address, Lost> {
            Err(Lost)
        }

        fn connect(&mut self, _: NodeId, _: &Address) -> Result<(), Lost> {
            Err(Lost)
        }

        fn close(&mut self, _: NodeId) {}

        fn receive(&mut self, _: NodeId, into: &mut [u32]) -> Result<usize, Lost> {
            let count = into.len().min(self.0.len());
            into.iter_mut().zip(self.0.drain(..count)).for_each(|(place, word)| *place = word);
            Ok(count)
        }

        fn room(&mut self, _: NodeId) -> usize {
            usize::MAX
        }

        fn send(&mut self, _: NodeId, words: &[u32]) {
            self.0.extend(words);
        }
    }

    /// Two sides that have heard each other, and the transport that both use in turn.
    fn pair(form: Form) -> (Stream, Stream, Loop) {
        let (mut one, mut other, mut carrier) =
            (Stream::new(form, 9, true, 0), Stream::new(form, 9, false, 0), Loop::default());
        carry(&mut one, &mut other, &mut carrier, &[]).expect("it begins");
        carry(&mut other, &mut one, &mut carrier, &[]).expect("it begins");
        assert!(one.is_heard() && other.is_heard());
        (one, other, carrier)
    }

    fn carry(
        from: &mut Stream,
        to: &mut Stream,
        carrier: &mut Loop,
        messages: &[Message],
    ) -> Result<Vec<Message>, DropReason> {
        let mut left = messages.iter().copied();
        from.send(carrier, NODE, 0, false, || left.next())?;
        heard(to, carrier)
    }

    fn heard(by: &mut Stream, carrier: &mut Loop) -> Result<Vec<Message>, DropReason> {
        let mut heard = Vec::new();
        by.receive(carrier, NODE, 0, |message| {
            heard.push(message);
            Ok(())
        })?;
        Ok(heard)
    }

    const SAID: [Message; 3] = [
        Message::new(Opcode::Rejuvenate, 3, 77),
        Message::new(Opcode::Expire, 31, (1 << 20) - 1),
        Message::new(Opcode::Operand, 0, 0),
    ];

    #[test]
    fn messages_come_as_they_were_said_and_not_before_the_other_side_is_there() {
        for form in [Form::Narrow, Form::Wide] {
            let (mut one, mut other, mut carrier) = pair(form);
            for _ in 0..3 {
                assert_eq!(carry(&mut one, &mut other, &mut carrier, &SAID), Ok(SAID.to_vec()));
                assert_eq!(carry(&mut other, &mut one, &mut carrier, &SAID), Ok(SAID.to_vec()));
            }
            let mut early = Stream::new(form, 10, true, 0);
            assert_eq!(
                carry(&mut early, &mut Stream::new(form, 10, false, 0), &mut carrier, &SAID),
                Ok(Vec::new())
            );
        }
    }

    /// A loss at the end of one call is noticed before anything of the next call takes
    /// effect.
    #[test]
    fn what_was_lost_is_known_before_what_follows() {
        for form in [Form::Narrow, Form::Wide] {
            let words = {
                let (mut one, _, mut carrier) = pair(form);
                let mut left = SAID.iter().copied();
                one.send(&mut carrier, NODE, 0, false, || left.next()).expect("it is sent");
                carrier.0.len()
            };
            for kept in 0..words {
                let (mut one, mut other, mut carrier) = pair(form);
                let mut left = SAID.iter().copied();
                one.send(&mut carrier, NODE, 0, false, || left.next()).expect("it is sent");
                carrier.0.truncate(kept);
                let heard = heard(&mut other, &mut carrier).expect("nothing is known yet");
                assert!(heard.len() < SAID.len() && SAID.starts_with(&heard));
                assert_eq!(
                    carry(&mut one, &mut other, &mut carrier, &SAID),
                    Err(DropReason::LostInFailure),
                    "{kept} words"
                );
            }
        }
    }

    /// A side that waits asks, and gives up in the end.
    #[test]
    fn who_waits_asks_and_gives_up() {
        let (mut one, mut other, mut carrier) = pair(Form::Narrow);
        let at = |times: u32| ASK_INTERVAL * u64::from(times);
        one.send(&mut carrier, NODE, at(1), true, || None).expect("it asks");
        assert_eq!(carrier.0.len(), 1);
        assert_eq!(heard(&mut other, &mut carrier), Ok(Vec::new()));
        other.send(&mut carrier, NODE, at(1), false, || None).expect("it answers");
        assert_eq!((carrier.0.len(), heard(&mut one, &mut carrier)), (1, Ok(Vec::new())));
        let outcomes: Vec<_> =
            (2..40).map(|times| one.send(&mut carrier, NODE, at(times), true, || None)).collect();
        assert!(
            outcomes[0].is_ok() && outcomes[37] == Err(DropReason::LostInFailure),
            "{outcomes:?}"
        );
        let calm = (2..400)
            .all(|times| other.send(&mut carrier, NODE, at(times), false, || None) == Ok(false));
        assert!(calm, "who waits for nothing says nothing");
    }

    proptest! {
        /// Any words are messages or an error; words of another session are ignored.
        #[test]
        fn any_words_are_messages_or_an_error(words in prop::collection::vec(any::<u32>(), 0..64), is_wide in any::<bool>()) {
            let form = if is_wide { Form::Wide } else { Form::Narrow };
            let (_, mut other, mut carrier) = pair(form);
            carrier.0.extend(&words);
            let _ = heard(&mut other, &mut carrier);
            let (mut of_another, mut carrier) = (Stream::new(form, 77, false, 0), Loop::default());
            carrier.0.extend(words.iter().filter(|word| **word >> 25 != Opcode::Begin as u32));
            if !is_wide {
                prop_assert_eq!(heard(&mut of_another, &mut carrier), Ok(Vec::new()));
            }
        }
    }
}
