//! A TCP segment, and its place in the byte stream of its direction.

use super::message::Reader;
use holdfast_nf::Packet;
use holdfast_wire::fault::{Fault, is_planted};

/// Header fields and data of a segment.
pub(super) struct Segment<'a> {
    pub(super) flags: u8,
    pub(super) sequence: u32,
    pub(super) acknowledgement: u32,
    pub(super) data: &'a [u8],
}

/// The place of a segment in its direction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// The bytes were read before, or are inside a body: none is to be read.
    Passed,
    /// Earlier bytes are missing.
    Ahead,
    /// The segment begins before the connection's first byte, so it belongs to another
    /// one.
    Before,
    /// The next bytes to read, after this many bytes of a body to skip.
    Next(u64, &'a [u8]),
}

impl<'a> Segment<'a> {
    /// The packet's segment; `None` if the packet is not TCP, or is a later fragment.
    pub(super) fn of(packet: &'a Packet) -> Option<Segment<'a>> {
        let (tcp, data) = packet.tcp_segment()?;
        Some(Segment {
            flags: tcp.flags,
            sequence: tcp.sequence.get(),
            acknowledgement: tcp.acknowledgement.get(),
            data,
        })
    }

    /// The place of a segment with data. Segments inside a response body of known length
    /// may arrive in any order: missing bytes may come later, and are not interpreted.
    pub(super) fn place(&self, reader: &Reader) -> Place<'a> {
        let offset = reader.offset(self.sequence);
        if reader.is_before_all(self.sequence) {
            // A keep-alive may carry the byte before the first one (RFC 9293, section
            // 3.8.4).
            let is_probe = self.data.len() == 1 && self.sequence == reader.initial.wrapping_sub(1);
            return if is_probe { Place::Passed } else { Place::Before };
        }
        // Bytes that were read are not read again. The receiver has them, or takes them
        // from this segment.
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
        // An unchanged state needs no replication.
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

    /// Bytes that were read are cut off, segments after a gap are not read, and sequence
    /// numbers wrap.
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

    /// A long connection reuses the sequence numbers before its first one.
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

    /// An acknowledgement may cover bytes that were sent, as far as the reader knows
    /// them.
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

    /// Segments inside a response body may arrive in any order, up to the byte after the
    /// body.
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
        // The end of a longer body cannot be told by a sequence number.
        let huge = reader(7, 1 << 31);
        assert_eq!(place(&huge, 7, b"abcd"), Place::Next(0, b"abcd"));
        assert_eq!(place(&huge, 8, b"abcd"), Place::Ahead);
        // A request's body must arrive in order.
        let request = Reader { is_response: 0, ..reader(7, 100) };
        assert_eq!(place(&request, 7, b"abcd"), Place::Next(0, b"abcd"));
        assert_eq!(place(&request, 8, b"abcd"), Place::Ahead);
    }
}
