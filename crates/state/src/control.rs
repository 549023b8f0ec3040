//! Control messages between an instance and the state server: operation, list, index.
//!
//! A message has four bytes (RESCue, Table III): 7 bits of operation, 5 of list, 20 of
//! index, most significant bit first, in network byte order. Four bytes fit the immediate
//! data of a remote write that carries nothing else. If the lists are too many or too
//! long for that, both sides use eight bytes: 7, 25 and 32 bits.
//!
//! The seven operations of Table III keep their names. Operations that we added have
//! numbers from 64 on.

use core::fmt;
use holdfast_wire::DropReason;

/// The operation of a message. "The instance" is a runtime, "the server" the state
/// server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Opcode {
    /// To the server: assign `index` more indexes of the list, any of them. The server
    /// leaves out the indexes that would exceed the list's credit.
    IndexRequest = 1,
    /// To the instance: this index is yours. To the server: a flow that has this index
    /// has come here, from an instance that moved it or that is dead.
    IndexAssignment = 2,
    /// To the instance: the list is used up for now, and other instances have none to
    /// spare. Requested indexes follow as soon as there are any. `index` counts the
    /// [requests](Opcode::IndexRequest) heard from this instance, up to
    /// [`QUESTIONS_AT_MOST`], so that an instance that has asked again does not take this
    /// for the later answer.
    NoMoreIndex = 3,
    /// To the server: the instance's part of this statistic has grown by one, or by the
    /// [operand](Opcode::Operand). To the instance, as operands: of a gauge, the sum of
    /// all others' parts; of a counter, the total.
    UpdateStatistics = 4,
    /// To the instance: the server refuses your message about this index, because you do
    /// not hold it or it does not exist.
    UpdateFailure = 5,
    /// To the instance: does a flow here have this index? The instance answers
    /// [`Opcode::Rejuvenate`] if so, and [`Opcode::Answered`] in any case. To the server:
    /// the flow that had the index is over.
    Expire = 6,
    /// To the server: a flow that lives has this index.
    Rejuvenate = 7,
    /// To the server: the index was never used, and need not rest.
    Return = 64,
    /// To the instance: others need indexes that you have not used. An instance that can
    /// spare some returns them.
    Spare = 65,
    /// To the server: the flow that has this index has moved to another instance, which
    /// has claimed the index or will.
    Moved = 66,
    /// To the server: send the statistic's value, as [`Opcode::UpdateStatistics`] does.
    ReadStatistics = 67,
    /// Either way: a number for the next message. Several operands are one number, high
    /// bits first.
    Operand = 68,
    /// Either way: so many messages have arrived, modulo 2 to the power of the operand's
    /// bits.
    Acknowledge = 69,
    /// To the server: all that there was to say about this index has been said. The
    /// answer to [`Opcode::Expire`] ends with it.
    Answered = 70,
    /// To the instance, the roll call: answer when you have claimed all indexes of flows
    /// that have come. The [operand](Opcode::Operand) counts the roll calls.
    RollCall = 71,
    /// To the server, the answer to [`Opcode::RollCall`], with the same operand: all
    /// indexes of flows here are claimed.
    Claimed = 72,
    /// Either way, on a transport without frames: the session with this number begins
    /// here. Words before it are ignored. The number is coded like an operand.
    Begin = 73,
    /// Either way, on a transport without frames: so many messages of this session
    /// precede this one. If the receiver has fewer, some were lost, and the session ends.
    /// The number is coded like an operand.
    Count = 74,
    /// As [`Opcode::Count`]; and the other side is to send its own count.
    Ask = 75,
    /// To the server: the instance's part of this gauge has shrunk by one, or by the
    /// [operand](Opcode::Operand). To the instance: the sum of all others' parts is
    /// negative, and the operand is its magnitude.
    LowerStatistics = 76,
}

/// Requests are counted up to this number, and then from 0 again.
pub const QUESTIONS_AT_MOST: u32 = 0xffff;

impl Opcode {
    /// True for words that delimit a session and are no message in it.
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
            71 => Opcode::RollCall,
            72 => Opcode::Claimed,
            73 => Opcode::Begin,
            74 => Opcode::Count,
            75 => Opcode::Ask,
            76 => Opcode::LowerStatistics,
            _ => return None,
        })
    }
}

/// A control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Message {
    /// The operation.
    pub opcode: Opcode,
    /// The list, counted from 0.
    pub list: u32,
    /// The index in the list, counted from 0.
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

/// The layout of a message. Both sides of a session use the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// Four bytes: at most 32 lists of 2^20 indexes.
    Narrow,
    /// Eight bytes: at most 2^25 lists of 2^32 indexes.
    Wide,
}

impl Form {
    /// The smaller form that can name so many lists with at most so many indexes each.
    /// `None` if neither can.
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

    /// Bits of list and index together: the bits of an [operand](Opcode::Operand).
    pub const fn operand_bits(self) -> u32 {
        self.list_bits() + self.index_bits()
    }

    /// The message as a number of [`Form::size`] bytes. `None` if list or index do not
    /// fit.
    pub fn pack(self, message: Message) -> Option<u64> {
        let (list, index) = (u64::from(message.list), u64::from(message.index));
        let fits = list >> self.list_bits() == 0 && index >> self.index_bits() == 0;
        fits.then(|| {
            (message.opcode as u64) << self.operand_bits() | list << self.index_bits() | index
        })
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] if the operation is unknown, or the number too long.
    pub fn unpack(self, number: u64) -> Result<Message, DropReason> {
        let mask = |bits: u32| (1u64 << bits) - 1;
        let opcode = number >> self.operand_bits();
        let opcode =
            u8::try_from(opcode).ok().and_then(Opcode::from_number).ok_or(DropReason::Malformed)?;
        let list = (number >> self.index_bits() & mask(self.list_bits())) as u32;
        Ok(Message { opcode, list, index: (number & mask(self.index_bits())) as u32 })
    }

    /// Writes the message to the beginning of `into` and returns its length in bytes: 0
    /// if list or index do not fit, or `into` is too short.
    pub fn put(self, message: Message, into: &mut [u8]) -> usize {
        let size = self.size();
        let (Some(number), Some(into)) = (self.pack(message), into.get_mut(..size)) else {
            return 0;
        };
        into.copy_from_slice(&number.to_be_bytes()[8 - size..]);
        size
    }

    /// Decodes messages that lie one behind the other.
    ///
    /// # Errors
    /// The iterator yields [`DropReason::Malformed`] for each chunk that is no message,
    /// and for a remainder at the end.
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

    /// The messages that encode this operand: none for 0.
    pub fn operands(self, number: u64) -> impl Iterator<Item = Message> {
        let bits = self.operand_bits();
        let words = (64 - number.leading_zeros()).div_ceil(bits);
        (0..words).rev().map(move |word| {
            let part = number >> (word * bits) & ((1 << bits) - 1);
            Message::new(
                Opcode::Operand,
                (part >> self.index_bits()) as u32,
                (part & ((1 << self.index_bits()) - 1)) as u32,
            )
        })
    }

    /// A message of this operation with the lowest bits of a number, as many as one
    /// message holds.
    pub fn with_number(self, opcode: Opcode, number: u64) -> Message {
        let index = number & ((1 << self.index_bits()) - 1);
        let list = number >> self.index_bits() & ((1 << self.list_bits()) - 1);
        Message::new(opcode, list as u32, index as u32)
    }

    /// True if the message has this number's lowest bits.
    pub fn has_number(self, message: Message, number: u64) -> bool {
        self.with_number(message.opcode, number) == message
    }

    /// Appends the bits of this message to an operand.
    pub fn extend(self, operand: u64, message: Message) -> u64 {
        operand << self.operand_bits()
            | u64::from(message.list) << self.index_bits()
            | u64::from(message.index)
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
            assert_eq!(
                Form::Narrow.put(wrong, &mut bytes[4..]),
                0,
                "what does not fit is not written"
            );
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
        /// Messages survive encoding and decoding, and any bytes that decode encode to
        /// themselves.
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
