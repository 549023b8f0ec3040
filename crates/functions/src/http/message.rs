//! The reader of one direction: start lines, fields and bodies, byte by byte.
//!
//! Theory of operation. [`Reader::read`] is a state machine that processes one byte at a
//! time and never looks back, so its state does not depend on segment boundaries. The
//! machine keeps only those parts of a header section that decide: method, host and path
//! of a request ([`Head`](super::head::Head)), status, framing. Fields of other names are
//! skipped, however long they are. Body bytes are counted, but not interpreted.
//!
//! A message whose framing is ambiguous (RFC 9112, sections 6.1 and 6.3) is malformed, as
//! is one that the [grammar](super::grammar) refuses.

use super::head::Head;

holdfast_nf::flow_state! {
    /// State of one direction.
    pub struct Reader {
        /// Remaining bytes of the body or of its chunk. The value is the Content-Length
        /// while a header section is read, and the size while a chunk line is read.
        pub left: u64,
        /// Sequence number of the connection's first byte.
        pub initial: u32,
        /// Sequence number of the next byte to read.
        pub next: u32,
        /// Bytes of the header section, or of the chunk line, that were read.
        pub seen: u32,
        /// Facts about the message: see [`mark`].
        pub marks: u16,
        /// The response's status code.
        pub status: u16,
        /// The parser's state: see [`step`].
        pub step: u8,
        /// Bytes of the current word that were read.
        pub at: u8,
        /// Interpreted fields that this one may still be, a bit each in the grammar's
        /// order.
        pub field: u8,
        /// The place inside a host with a port: see [`part`](super::head::part).
        pub part: u8,
        /// Bytes of a Host field that were compared with the target's host.
        pub compared: u8,
        /// 1 for responses.
        pub is_response: u8,
        /// 1 after a FIN, which has a sequence number of its own.
        pub has_ended: u8,
        /// 1 after 2^30 bytes: sequence numbers before `initial` cannot be told from
        /// later ones.
        pub is_long: u8,
    }
}

/// Values of [`Reader::step`]. A reader below [`step::BODY`] does not read.
pub(super) mod step {
    /// The direction is not read: its segments pass.
    pub(in crate::http) const OFF: u8 = 0;
    /// A weak protection lost packets: the flow's next packet makes this `OFF`.
    pub(in crate::http) const LOST: u8 = 1;
    /// The server's SYN-ACK is outstanding.
    pub(in crate::http) const AWAITED: u8 = 2;
    /// The direction is refused: its data are dropped.
    pub(in crate::http) const REFUSED: u8 = 3;
    /// The direction is refused: its data are dropped, and both ends are reset.
    pub(in crate::http) const REJECTED: u8 = 4;
    /// The direction carries another protocol, after an upgrade or CONNECT.
    pub(in crate::http) const TUNNEL: u8 = 5;
    /// A body that ends with the connection.
    pub(in crate::http) const UNTIL_CLOSE: u8 = 6;
    /// A body of known length.
    pub(in crate::http) const BODY: u8 = 7;
    /// The data of a chunk.
    pub(in crate::http) const CHUNK: u8 = 8;
    /// The response to a CONNECT is outstanding.
    pub(in crate::http) const ANSWER: u8 = 9;
    /// The next message may begin.
    pub(in crate::http) const START: u8 = 10;
    pub(in crate::http) const START_LF: u8 = 11;
    pub(in crate::http) const METHOD: u8 = 12;
    pub(in crate::http) const TARGET: u8 = 13;
    pub(in crate::http) const ASTERISK: u8 = 14;
    pub(in crate::http) const SCHEME: u8 = 15;
    pub(in crate::http) const SLASHES: u8 = 16;
    pub(in crate::http) const AUTHORITY: u8 = 17;
    pub(in crate::http) const PATH: u8 = 18;
    pub(in crate::http) const QUERY: u8 = 19;
    pub(in crate::http) const PROTOCOL: u8 = 20;
    pub(in crate::http) const MINOR: u8 = 21;
    pub(in crate::http) const LINE_CR: u8 = 22;
    pub(in crate::http) const LINE_LF: u8 = 23;
    pub(in crate::http) const STATUS_SPACE: u8 = 24;
    pub(in crate::http) const STATUS: u8 = 25;
    pub(in crate::http) const REASON_SPACE: u8 = 26;
    pub(in crate::http) const REASON: u8 = 27;
    pub(in crate::http) const FIELD: u8 = 28;
    pub(in crate::http) const NAME: u8 = 29;
    pub(in crate::http) const VALUE: u8 = 30;
    pub(in crate::http) const END_LF: u8 = 31;
    /// The header section is complete: the caller selects the next step.
    pub(in crate::http) const HEAD: u8 = 32;
    pub(in crate::http) const SIZE: u8 = 33;
    pub(in crate::http) const SIZE_SPACE: u8 = 34;
    pub(in crate::http) const EXTENSION: u8 = 35;
    pub(in crate::http) const SIZE_LF: u8 = 36;
    pub(in crate::http) const CHUNK_CR: u8 = 37;
    pub(in crate::http) const CHUNK_LF: u8 = 38;
}

/// Bits of [`Reader::marks`].
pub(super) mod mark {
    /// The message has a Content-Length.
    pub(in crate::http) const LENGTH: u16 = 1;
    /// The message has a Transfer-Encoding.
    pub(in crate::http) const CODING: u16 = 2;
    /// The last transfer coding so far is `chunked`.
    pub(in crate::http) const CHUNKED: u16 = 4;
    /// The message has a Host field.
    pub(in crate::http) const HOST: u16 = 8;
    /// The target names the host.
    pub(in crate::http) const AUTHORITY: u16 = 16;
    /// The message has an Upgrade field.
    pub(in crate::http) const UPGRADE: u16 = 32;
    /// The version is HTTP/1.0.
    pub(in crate::http) const OLD: u16 = 64;
    /// The fields are those of a trailer section.
    pub(in crate::http) const TRAILER: u16 = 128;
    /// The method is too long.
    pub(in crate::http) const LONG_METHOD: u16 = 256;
    /// The host is too long.
    pub(in crate::http) const LONG_HOST: u16 = 512;
    /// The path is too long.
    pub(in crate::http) const LONG_PATH: u16 = 1024;
    /// The header section is too long.
    pub(in crate::http) const LONG: u16 = 2048;
}

/// The reason why [`Reader::read`] has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// All bytes have been read.
    Empty,
    /// A header section is complete. The caller selects the next step, with
    /// [`Reader::expect_body`], [`Reader::begin`] or directly.
    Head,
    /// The next byte would make the header section or chunk line longer than the limit.
    /// The caller may read on.
    Oversized,
    /// The next byte is not allowed there.
    Malformed,
}

/// Bytes after which a connection is a long one: see [`Reader::is_long`]. A single step
/// of `next` is less than three times as long, even inside an unordered body, so `next`
/// cannot wrap past `initial` unnoticed.
const LONG: u32 = 1 << 30;

impl Reader {
    /// A reader of a direction whose first byte has sequence number `initial`.
    pub(super) fn from(initial: u32, is_response: bool) -> Reader {
        Reader {
            initial,
            next: initial,
            step: step::START,
            is_response: is_response.into(),
            ..Reader::default()
        }
    }

    /// Prepares for the next message.
    pub(super) fn begin(&mut self) {
        (self.left, self.seen, self.marks, self.step) = (0, 0, 0, step::START);
    }

    /// Prepares for the body that the fields announce (RFC 9112, section 6.3), or for the
    /// next message if there is no body.
    pub(super) fn expect_body(&mut self) {
        self.seen = 0;
        if self.has(mark::CHUNKED) {
            self.expect_size();
        } else if self.left > 0 {
            self.step = step::BODY;
        } else {
            self.begin();
        }
    }

    pub(super) fn expect_size(&mut self) {
        (self.left, self.at, self.seen, self.step) = (0, 0, 0, step::SIZE);
    }

    /// True if the message has all of these marks.
    pub(super) fn has(&self, marks: u16) -> bool {
        self.marks & marks == marks
    }

    /// True if the direction's bytes are read.
    pub(super) fn is_reading(&self) -> bool {
        self.step >= step::BODY
    }

    /// Number of bytes from the next one on that belong to a body and are not
    /// interpreted.
    pub(super) fn opaque(&self) -> u64 {
        if matches!(self.step, step::BODY | step::CHUNK) { self.left } else { 0 }
    }

    /// Number of bytes from the next one on that may arrive in any order. Requests must
    /// arrive in order: if two segments overlap ahead of a gap, servers may take the
    /// later one, and a client could send two that differ. Sequence numbers are ambiguous
    /// beyond half of their space, so a longer body must arrive in order until its rest
    /// is shorter.
    pub(super) fn unordered(&self) -> u32 {
        let opaque = if self.is_response == 0 { 0 } else { self.opaque() };
        u32::try_from(opaque).ok().filter(|bytes| *bytes <= i32::MAX as u32).unwrap_or(0)
    }

    /// Offset of a sequence number from the next byte.
    pub(super) fn offset(&self, number: u32) -> i32 {
        number.wrapping_sub(self.next) as i32
    }

    /// Advances `next`.
    pub(super) fn advance(&mut self, bytes: u32) {
        self.next = self.next.wrapping_add(bytes);
        if self.next.wrapping_sub(self.initial) >= LONG {
            self.is_long = 1;
        }
    }

    /// True if a sequence number is before the connection's first byte.
    pub(super) fn is_before_all(&self, number: u32) -> bool {
        let offset = self.offset(number);
        let read = self.next.wrapping_sub(self.initial);
        self.is_long == 0 && offset < 0 && offset.unsigned_abs() > read
    }

    /// True if this direction's sender may have sent all bytes that the other end
    /// acknowledges. A sender whose direction is not read may have sent any.
    pub(super) fn may_have_sent(&self, acknowledged: u32) -> bool {
        let offset = self.offset(acknowledged);
        let most = self.unordered() + u32::from(self.has_ended);
        !self.is_reading()
            || !self.is_before_all(acknowledged) && (offset < 0 || offset as u32 <= most)
    }

    /// Skips bytes of a body.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
        if self.left == 0 {
            match self.step {
                step::BODY => self.begin(),
                _ => self.step = step::CHUNK_CR,
            }
        }
    }

    /// True if the message's framing contradicts itself or RFC 9112.
    pub(super) fn is_ambiguous(&self) -> bool {
        // The framing is faulty with both fields, or with a coding in HTTP/1.0 (section
        // 6.1).
        self.has(mark::CODING) && (self.has(mark::LENGTH) || self.has(mark::OLD))
            // The end of such a request is undefined (section 6.3).
            || self.is_response == 0 && self.has(mark::CODING) && !self.has(mark::CHUNKED)
    }

    /// Reads until the bytes end, or the caller must decide. Returns the number of bytes
    /// read. `limit`: maximum length of a header section or chunk line, bytes.
    pub(super) fn read(&mut self, head: &mut Head, data: &[u8], limit: u32) -> (usize, Stop) {
        let mut at = 0;
        while let Some(byte) = data.get(at) {
            let opaque = self.opaque();
            if opaque > 0 {
                let here = opaque.min((data.len() - at) as u64);
                self.skip(here);
                at += here as usize;
                continue;
            }
            if self.seen >= limit && !self.has(mark::LONG) {
                self.marks |= mark::LONG;
                return (at, Stop::Oversized);
            }
            self.seen = self.seen.saturating_add(1);
            if !self.take(head, *byte) {
                return (at, Stop::Malformed);
            }
            at += 1;
            if self.step == step::HEAD {
                return (at, Stop::Head);
            }
        }
        (at, Stop::Empty)
    }
}
