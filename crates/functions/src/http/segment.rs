//! A TCP segment, and which of its bytes come next in their direction.

use super::message::Reader;
use holdfast_nf::Packet;
use holdfast_wire::fault::{Fault, is_planted};

/// A segment's header, as far as it matters, and its data.
pub(super) struct Segment<'a> {
    pub(super) flags: u8,
    pub(super) sequence: u32,
    pub(super) acknowledgement: u32,
    pub(super) data: &'a [u8],
}

/// The place of a segment in its direction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// Bytes that were read before, or are inside a body: nothing to read.
    Passed,
    /// Bytes before it are missing.
    Ahead,
    /// It begins before the connection's first byte: it belongs to another one.
    Before,
    /// These bytes are the next ones, after this many of a body that are passed over.
    Next(u64, &'a [u8]),
}

impl<'a> Segment<'a> {
    /// The packet's segment; `None` if it is no TCP or a later fragment.
    pub(super) fn of(packet: &'a Packet) -> Option<Segment<'a>> {
        let tcp = packet.tcp()?;
        let data = packet.l4().get(usize::from(tcp.data_offset >> 4) * 4..)?;
        Some(Segment {
            flags: tcp.flags,
            sequence: tcp.sequence.get(),
            acknowledgement: tcp.acknowledgement.get(),
            data,
        })
    }

    /// The segment's place; it has data. Inside a response's body of known length order
    /// does not matter: what is missing may come later, and nothing of it is read.
    pub(super) fn place(&self, reader: &Reader) -> Place<'a> {
        let offset = reader.offset(self.sequence);
        if reader.is_before_all(self.sequence) {
            // A keep-alive may have the byte before the first one (RFC 9293, section
            // 3.8.4).
            let is_probe = self.data.len() == 1 && self.sequence == reader.initial.wrapping_sub(1);
            return if is_probe { Place::Passed } else { Place::Before };
        }
        // What was read before is not read again. The receiver has it, or takes it from
        // this segment.
        let known = if offset < 0 { offset.unsigned_abs() as usize } else { 0 };
        let data = match self.data.get(known..) {
            _ if is_planted(Fault::ReadsTwice) => self.data,
            Some(data) if !data.is_empty() => data,
            _ => return Place::Passed,
        };
        let ahead = u64::from(offset.max(0).unsigned_abs());
        let opaque = u64::from(reader.unordered());
        if ahead > opaque {
            return if is_planted(Fault::PassesGaps) { Place::Passed } else { Place::Ahead };
        }
        // A state that does not change needs no replication.
        if ahead + (data.len() as u64) < opaque {
            return Place::Passed;
        }
        Place::Next(ahead, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::message::step;

    fn reader(next: u32, left: u64) -> Reader {
        let mut reader = Reader::from(next, true);
        (reader.left, reader.step) = (left, if left > 0 { step::BODY } else { step::START });
        reader.initial = next.wrapping_sub(100);
        reader
    }

    fn place(reader: &Reader, sequence: u32, data: &'static [u8]) -> Place<'static> {
        Segment { flags: 0, sequence, acknowledgement: 0, data }.place(reader)
    }

    /// Bytes that were read are cut, those ahead wait, and numbers wrap.
    #[test]
    fn bytes_are_read_in_order_and_once() {
        for next in [1000, u32::MAX - 1, 0, 1] {
            let reader = reader(next, 0);
            let at = |sequence: u32| next.wrapping_add(sequence);
            assert_eq!(place(&reader, at(0), b"abcd"), Place::Next(0, b"abcd"));
            assert_eq!(place(&reader, at(1), b"abcd"), Place::Ahead);
            assert_eq!(place(&reader, at(u32::MAX - 1), b"abcd"), Place::Next(0, b"cd"));
            assert_eq!(place(&reader, at(u32::MAX - 3), b"abcd"), Place::Passed);
            assert_eq!(place(&reader, at(u32::MAX - 9), b"abcd"), Place::Passed);
            assert_eq!(place(&reader, at(u32::MAX - 99), b"abcd"), Place::Passed);
            assert_eq!(place(&reader, at(u32::MAX - 100), b"abcd"), Place::Before);
            assert_eq!(place(&reader, at(u32::MAX - 100), b"a"), Place::Passed);
            assert_eq!(place(&reader, at(u32::MAX - 101), b"a"), Place::Before);
            assert_eq!(place(&reader, at(1 << 31), b"abcd"), Place::Before);
            assert_eq!(place(&reader, at((1 << 31) - 1), b"abcd"), Place::Ahead);
        }
    }

    /// A long connection has no numbers before its first one: they come again.
    #[test]
    fn numbers_of_long_connections_come_again() {
        let mut long = reader(1000, 0);
        long.advance((1 << 30) - 101);
        assert_eq!(place(&long, long.initial.wrapping_sub(2), b"a"), Place::Before);
        assert!(!long.may_have_sent(long.initial.wrapping_sub(1)));
        long.advance(1);
        assert_eq!(place(&long, long.initial.wrapping_sub(2), b"a"), Place::Passed);
        (0..3).for_each(|_| long.advance(1 << 30));
        assert_eq!(place(&long, long.initial.wrapping_sub(2), b"a"), Place::Passed);
        assert!(long.may_have_sent(long.initial.wrapping_sub(1)));
    }

    /// What may be acknowledged is what has been sent, as far as it is known.
    #[test]
    fn what_was_not_sent_is_not_acknowledged() {
        for next in [1000, u32::MAX - 1, 0, 1] {
            let mut reader = reader(next, 0);
            for (offset, may) in [(0, true), (-100, true), (1, false), (-101, false)] {
                assert_eq!(reader.may_have_sent(next.wrapping_add_signed(offset)), may, "{offset}");
            }
            reader.has_ended = 1;
            assert!(reader.may_have_sent(next.wrapping_add(1)));
            assert!(!reader.may_have_sent(next.wrapping_add(2)));
        }
        let body = reader(7, 50);
        assert!(body.may_have_sent(57) && !body.may_have_sent(58));
        let unread = Reader { step: step::OFF, ..reader(7, 0) };
        assert!(unread.may_have_sent(58));
    }

    /// Inside a response's body any order does, up to the byte behind it.
    #[test]
    fn a_body_has_no_order() {
        let ten = reader(u32::MAX - 3, 10);
        let at = |sequence: u32| (u32::MAX - 3).wrapping_add(sequence);
        assert_eq!(place(&ten, at(0), b"abcd"), Place::Passed);
        assert_eq!(place(&ten, at(5), b"abcd"), Place::Passed);
        assert_eq!(place(&ten, at(6), b"abcd"), Place::Next(6, b"abcd"));
        assert_eq!(place(&ten, at(8), b"abcd"), Place::Next(8, b"abcd"));
        assert_eq!(place(&ten, at(10), b"abcd"), Place::Next(10, b"abcd"));
        assert_eq!(place(&ten, at(11), b"abcd"), Place::Ahead);
        // The end of a longer one cannot be told by a number.
        let huge = reader(7, 1 << 31);
        assert_eq!(place(&huge, 7, b"abcd"), Place::Next(0, b"abcd"));
        assert_eq!(place(&huge, 8, b"abcd"), Place::Ahead);
        // Nor has a client any reason to leave gaps.
        let request = Reader { is_response: 0, ..reader(7, 100) };
        assert_eq!(place(&request, 7, b"abcd"), Place::Next(0, b"abcd"));
        assert_eq!(place(&request, 8, b"abcd"), Place::Ahead);
    }
}
