//! What an instance and a state server say to each other: an operation, a list, an index.
//!
//! Four bytes (RESCue, Table III): 7 bits of operation, 5 of list, 20 of index, most significant bit first and in network byte order, so that a message fits the immediate data
//! of a remote write that carries nothing else. Where that is too small for the lists there are, both sides agree on eight: 7, 25 and 32 bits.
//!
//! The seven operations of the paper's Table III keep their names. What had to be added has numbers from 64 on.

use core::fmt;
use holdfast_wire::DropReason;

/// What a message is about. "The instance" is a runtime, "the server" the state server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Opcode {
    /// To the server: so many more indexes, any of the list's (`index` is the count). What would be more than the list's credit is left out.
    IndexRequest = 1,
    /// To the instance: this index is yours. To the server: a flow that has this index has come here, from an instance that moved it or that is dead.
    IndexAssignment = 2,
    /// To the instance: the list has nothing left for now, and so have others. What was asked for comes as soon as there is some. The index is how many [requests](Opcode::IndexRequest) had been heard,
    /// [`QUESTIONS_AT_MOST`] at most: who has asked again since hears of that yet.
    NoMoreIndex = 3,
    /// To the server: the instance's part of this statistic has grown by one, or by the [operand](Opcode::Operand). To the instance: what all others have of it, as operands; of a counter, what all have.
    UpdateStatistics = 4,
    /// To the instance: what you said of this index is refused, because you do not have it, or there is no such.
    UpdateFailure = 5,
    /// To the instance: is there a flow that has this index? It says [`Opcode::Rejuvenate`] if so, and [`Opcode::Answered`] in any case. To the server: the flow that had
    /// it is over.
    Expire = 6,
    /// To the server: a flow has this index, and lives.
    Rejuvenate = 7,
    /// To the server: the index was never used. It need not rest.
    Return = 64,
    /// To the instance: others need what you have not used. Whoever can spare some returns it.
    Spare = 65,
    /// To the server: the flow that has this index has been moved to another instance, which has said so or will.
    Moved = 66,
    /// To the server: the statistic's value is wanted, as [`Opcode::UpdateStatistics`] tells it.
    ReadStatistics = 67,
    /// Either way: a number for the message behind it, as high bits first as there are of these.
    Operand = 68,
    /// Either way: so many messages have arrived, modulo 2 to the number of bits that there are.
    Acknowledge = 69,
    /// To the server: whatever there was to say of this index has been said, behind the question of [`Opcode::Expire`].
    Answered = 70,
    /// To the instance: say when all is claimed that flows hold which have come. The [operand](Opcode::Operand) counts how often that has been asked.
    Muster = 71,
    /// To the server, the answer, with the same operand: all is claimed that flows here hold.
    Claimed = 72,
    /// Either way, of transports whose words have no frame around them: the session of which this is the number, as an operand has it, begins here. What came before it is nothing.
    Begin = 73,
    /// Either way, as above: there have been so many messages of this session before this one, as an operand has it. What had been lost ahead of it ends the session.
    Count = 74,
    /// The same, and the other side is to say how many there have been from it.
    Ask = 75,
    /// To the server: the instance's part of this gauge has become less by one, or by the [operand](Opcode::Operand). To the instance: what all others have of it is less than nothing by the operand.
    LowerStatistics = 76,
}

/// Requests are counted up to this, and then from 0 again.
pub const QUESTIONS_AT_MOST: u32 = 0xffff;

impl Opcode {
    /// It is about the words of a session, and no message of it.
    pub fn is_framing(self) -> bool {
        matches!(self, Opcode::Begin | Opcode::Count | Opcode::Ask)
    }

    fn from_number(number: u8) -> Option<Opcode> {
        Some(match number {
            1 => Opcode::IndexRequest,
            2 => Opcode::IndexAssignment,
            3 => Opcode::NoMoreIndex,
            4 => Opcode::UpdateStatistics,
            5 => Opcode::UpdateFailure,
            6 => Opcode::Expire,
            7 => Opcode::Rejuvenate,
            64 => Opcode::Return,
            65 => Opcode::Spare,
            66 => Opcode::Moved,
            67 => Opcode::ReadStatistics,
            68 => Opcode::Operand,
            69 => Opcode::Acknowledge,
            70 => Opcode::Answered,
            71 => Opcode::Muster,
            72 => Opcode::Claimed,
            73 => Opcode::Begin,
            74 => Opcode::Count,
            75 => Opcode::Ask,
            76 => Opcode::LowerStatistics,
            _ => return None,
        })
    }
}

/// One message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Message {
    /// What about.
    pub opcode: Opcode,
    /// Which list, counted from 0.
    pub list: u32,
    /// Which of its indexes, counted from 0.
    pub index: u32,
}

impl Message {
    /// A message.
    pub const fn new(opcode: Opcode, list: u32, index: u32) -> Message {
        Message { opcode, list, index }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}/{}", self.opcode, self.list, self.index)
    }
}

/// How many bits there are for what. Both sides of a session use the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// Four bytes: at most 32 lists of 2^20 indexes.
    Narrow,
    /// Eight bytes: at most 2^25 lists of 2^32 indexes.
    Wide,
}

impl Form {
    /// The smaller one that is large enough for so many lists with at most so many indexes each. `None` if neither is.
    pub fn for_lists(lists: usize, indexes: u64) -> Option<Form> {
        [Form::Narrow, Form::Wide]
            .into_iter()
            .find(|form| lists as u64 <= 1 << form.list_bits() && indexes <= 1 << form.index_bits())
    }

    /// Bytes of a message.
    pub const fn size(self) -> usize {
        match self {
            Form::Narrow => 4,
            Form::Wide => 8,
        }
    }

    const fn list_bits(self) -> u32 {
        match self {
            Form::Narrow => 5,
            Form::Wide => 25,
        }
    }

    const fn index_bits(self) -> u32 {
        match self {
            Form::Narrow => 20,
            Form::Wide => 32,
        }
    }

    /// Bits of list and index together, which an [operand](Opcode::Operand) has.
    pub const fn operand_bits(self) -> u32 {
        self.list_bits() + self.index_bits()
    }

    /// The message as a number of [`Form::size`] bytes. `None` if list or index do not fit.
    pub fn pack(self, message: Message) -> Option<u64> {
        let (list, index) = (u64::from(message.list), u64::from(message.index));
        let fits = list >> self.list_bits() == 0 && index >> self.index_bits() == 0;
        fits.then(|| (message.opcode as u64) << self.operand_bits() | list << self.index_bits() | index)
    }

    /// The message that this number is.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] if there is no such operation, or the number is longer than it may be.
    pub fn unpack(self, number: u64) -> Result<Message, DropReason> {
        let mask = |bits: u32| (1u64 << bits) - 1;
        let opcode = number >> self.operand_bits();
        let opcode = u8::try_from(opcode).ok().and_then(Opcode::from_number).ok_or(DropReason::Malformed)?;
        let list = (number >> self.index_bits() & mask(self.list_bits())) as u32;
        Ok(Message { opcode, list, index: (number & mask(self.index_bits())) as u32 })
    }

    /// Writes the message to the beginning of `into`, and returns how many bytes that takes: none if list or index do not fit, or there is no room.
    pub fn put(self, message: Message, into: &mut [u8]) -> usize {
        let size = self.size();
        let (Some(number), Some(into)) = (self.pack(message), into.get_mut(..size)) else { return 0 };
        into.copy_from_slice(&number.to_be_bytes()[8 - size..]);
        size
    }

    /// The messages that these bytes are, one after the other.
    ///
    /// # Errors
    /// The iterator yields [`DropReason::Malformed`] for each that is no message, and for what is left over at the end.
    pub fn read(self, bytes: &[u8]) -> impl Iterator<Item = Result<Message, DropReason>> + '_ {
        bytes.chunks(self.size()).map(move |chunk| {
            let mut number = [0; 8];
            number
                .get_mut(8 - self.size()..)
                .filter(|_| chunk.len() == self.size())
                .ok_or(DropReason::Malformed)?
                .copy_from_slice(chunk);
            self.unpack(u64::from_be_bytes(number))
        })
    }

    /// The messages that say this operand: none for 0.
    pub fn operands(self, number: u64) -> impl Iterator<Item = Message> {
        let bits = self.operand_bits();
        let words = (64 - number.leading_zeros()).div_ceil(bits);
        (0..words).rev().map(move |word| {
            let part = number >> (word * bits) & ((1 << bits) - 1);
            Message::new(Opcode::Operand, (part >> self.index_bits()) as u32, (part & ((1 << self.index_bits()) - 1)) as u32)
        })
    }

    /// A message of this operation that has as much of a number as one message can: its lowest bits.
    pub fn with_number(self, opcode: Opcode, number: u64) -> Message {
        let index = number & ((1 << self.index_bits()) - 1);
        let list = number >> self.index_bits() & ((1 << self.list_bits()) - 1);
        Message::new(opcode, list as u32, index as u32)
    }

    /// True if the message has this number, as far as one message can.
    pub fn has_number(self, message: Message, number: u64) -> bool {
        self.with_number(message.opcode, number) == message
    }

    /// What an operand has become with this message behind it.
    pub fn extend(self, operand: u64, message: Message) -> u64 {
        operand << self.operand_bits() | u64::from(message.list) << self.index_bits() | u64::from(message.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn four_bytes_are_seven_five_and_twenty_bits() {
        let message = Message::new(Opcode::Rejuvenate, 0b10101, 0xabcde);
        let mut bytes = [0; 9];
        assert_eq!(Form::Narrow.put(message, &mut bytes), 4);
        assert_eq!(bytes[..5], [0b0000_1111, 0b0101_1010, 0xbc, 0xde, 0]);
        for wrong in [Message { list: 32, ..message }, Message { index: 1 << 20, ..message }] {
            assert_eq!(Form::Narrow.put(wrong, &mut bytes[4..]), 0, "what does not fit is not written");
        }
        assert_eq!(Form::Wide.put(message, &mut bytes[4..]), 0, "there is no room");
        assert_eq!(bytes[4..], [0; 5]);
        assert_eq!(Form::for_lists(32, 1 << 20), Some(Form::Narrow));
        assert_eq!(Form::for_lists(33, 1), Some(Form::Wide));
        assert_eq!(Form::for_lists(1, (1 << 20) + 1), Some(Form::Wide));
        assert_eq!(Form::for_lists(1, (1 << 32) + 1), None);
    }

    fn form() -> impl Strategy<Value = Form> {
        prop_oneof![Just(Form::Narrow), Just(Form::Wide)]
    }

    proptest! {
        /// Bytes that are messages come out as those, and whatever bytes there are, what is read is what would be written.
        #[test]
        fn messages_are_what_they_were(form in form(), bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            for (read, chunk) in form.read(&bytes).zip(bytes.chunks(form.size())) {
                if let Ok(message) = read {
                    let mut again = [0; 8];
                    let len = form.put(message, &mut again);
                    prop_assert_eq!(&again[..len], chunk);
                }
            }
            prop_assert_eq!(form.read(&bytes).count(), bytes.len().div_ceil(form.size()));
        }

        #[test]
        fn a_message_has_the_lowest_bits_of_a_number(form in form(), number in any::<u64>()) {
            let message = form.with_number(Opcode::Count, number);
            let packed = form.pack(message).expect("it fits");
            prop_assert_eq!(packed & ((1 << form.operand_bits()) - 1), number & ((1 << form.operand_bits()) - 1));
            prop_assert!(form.has_number(message, number) && !form.has_number(message, number ^ 1));
        }

        #[test]
        fn operands_are_put_together(form in form(), number in any::<u64>(), shift in 0u32..64) {
            let number = number >> shift;
            let together = form.operands(number).fold(0, |operand, message| form.extend(operand, message));
            prop_assert_eq!(together, number);
        }
    }
}
