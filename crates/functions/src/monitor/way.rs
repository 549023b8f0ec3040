//! A direction of a flow: its bytes, retransmissions, and the time until answers.
//!
//! Theory of operation. The monitor stands between the ends, and sees a segment once for
//! each time that it was sent and not lost on the way here. Each direction keeps the
//! number behind the highest byte that has passed, and up to [`HOLES`] ranges below it
//! that have not. A segment below that number has passed before, in whole or in part, or
//! it fills such a hole: then it was overtaken, or its first copy was lost on the way to
//! the monitor. The time since the hole opened tells these apart, because a sender needs
//! a round trip to learn of a loss (Jaiswal et al.: Measurement and Classification of
//! Out-of-Sequence Packets in a Tier-1 IP Backbone, IEEE/ACM ToN 2007, section III).
//!
//! A direction times one segment at once, until its answer comes: first the SYN,
//! then one with a timestamp that has not been seen before (RFC 7323, section 4.1). A SYN
//! that was sent again is not timed, because its answer may be for either (RFC 6298,
//! section 3). Timestamps have no such doubt.

use super::offer::Offer;
use crate::tcp::{after, option};
use holdfast_nf::Packet;
use holdfast_wire::header::tcp_flags::{ACK, FIN, RST, SYN};

/// Holes of a direction. If there are more, the oldest is forgotten: its bytes count as
/// passed.
const HOLES: usize = 4;

/// The farthest that a segment of this connection may be from the next one: the largest
/// window (RFC 7323, section 2.3).
const FARTHEST: u32 = 1 << 30;

/// Longest round-trip time that is kept, µs.
const LONGEST: u64 = 1 << 28;

/// Values of [`Way::timing`].
mod timing {
    pub(super) const NONE: u8 = 0;
    pub(super) const SYN: u8 = 1;
    pub(super) const TIMESTAMP: u8 = 2;
}

/// Bits of [`Way::known`].
mod known {
    /// `initial` and `next`.
    pub(super) const NEXT: u8 = 1;
    /// `timestamp`.
    pub(super) const TIMESTAMP: u8 = 2;
    /// `handshake_us`.
    pub(super) const HANDSHAKE: u8 = 4;
    /// `srtt` and `rttvar`.
    pub(super) const RTT: u8 = 8;
}

holdfast_nf::flow_state! {
    /// Bytes that have not passed, although later ones have.
    #[derive(Clone, Copy)]
    pub struct Hole {
        /// Stamp of the segment that left it open, ns.
        pub opened_at: u64,
        /// Sequence number of its first byte.
        pub start: u32,
        /// The number behind its last byte.
        pub end: u32,
    }
}

holdfast_nf::flow_state! {
    /// A direction; see the module.
    #[derive(Clone, Copy)]
    pub struct Way {
        /// Packets.
        pub packets: u64,
        /// Bytes of frames.
        pub bytes: u64,
        /// Stamp of the timed segment, ns.
        pub timed_at: u64,
        /// The first `hole_count` count, older ones first.
        pub holes: [Hole; HOLES],
        /// Sequence number of the connection's SYN, or of the first segment.
        pub initial: u32,
        /// The number behind the highest byte that has passed.
        pub next: u32,
        /// The number that answers the timed segment.
        pub timed: u32,
        /// The latest timestamp of the sender's clock (TSval).
        pub timestamp: u32,
        /// Segments with bytes that had passed, or were lost before.
        pub retransmitted: u32,
        /// Segments that later ones overtook.
        pub out_of_order: u32,
        /// From the SYN to its answer, µs.
        pub handshake_us: u32,
        /// Smoothed round-trip time, in eighths of a µs.
        pub srtt: u32,
        /// Variation of the round-trip time, in quarters of a µs.
        pub rttvar: u32,
        /// Number of holes.
        pub hole_count: u8,
        /// The timed segment: see [`timing`].
        pub timing: u8,
        /// Which fields have a value: see [`known`].
        pub known: u8,
        /// Zero.
        pub spare: u8,
    }
}

const _: () = assert!(size_of::<Way>() == 128);

/// A TCP segment. A later fragment has none, and of a first one the length is unknown.
pub(super) struct Segment {
    flags: u8,
    pub(super) sequence: u32,
    pub(super) acknowledgement: u32,
    /// Bytes of data.
    pub(super) data: u32,
    /// Timestamps of the sender's clock and of the other end's (TSval, TSecr).
    timestamps: Option<(u32, u32)>,
}

/// A segment's place among those of its direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// No bytes, or none of this connection.
    Nothing,
    /// Bytes that come next, or are ahead of a hole.
    New,
    /// Bytes that had passed, or that were lost before the monitor and sent again.
    Retransmitted,
    /// Bytes that later ones overtook.
    OutOfOrder,
    /// A keep-alive, without bytes or with the last one again
    /// (RFC 9293, section 3.8.4).
    KeepAlive,
}

impl Segment {
    /// The packet's segment, if it is a whole one and no reset.
    pub(super) fn of(packet: &Packet) -> Option<Segment> {
        let (tcp, data) = packet.tcp_segment()?;
        if packet.layers.fragment || tcp.flags & RST != 0 {
            return None;
        }
        let l4 = packet.l4();
        let options = l4.get(20..l4.len() - data.len()).unwrap_or(&[]);
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_be_bytes);
        Some(Segment {
            flags: tcp.flags,
            sequence: tcp.sequence.get(),
            acknowledgement: tcp.acknowledgement.get(),
            data: data.len() as u32,
            timestamps: option::<8>(options, 8).map(|value| (word(&value[..4]), word(&value[4..]))),
        })
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Sequence numbers that the segment takes (SEG.LEN of RFC 9293, section 3.3.1).
    fn len(&self) -> u32 {
        self.data + u32::from(self.has(SYN)) + u32::from(self.has(FIN))
    }
}

impl Way {
    /// True if segments have passed.
    pub(super) fn is_tcp(&self) -> bool {
        self.known & known::NEXT != 0
    }

    /// From the SYN to its answer, µs.
    pub(super) fn handshake(&self) -> Option<u64> {
        (self.known & known::HANDSHAKE != 0).then_some(self.handshake_us.into())
    }

    /// Smoothed round-trip time and its variation, µs.
    pub(super) fn rtt(&self) -> Option<(u64, u64)> {
        let is_known = self.known & known::RTT != 0;
        is_known.then(|| (u64::from(self.srtt / 8), u64::from(self.rttvar / 4)))
    }

    /// Takes a segment of the other direction, which may answer the timed one.
    pub(super) fn answer(&mut self, segment: &Segment, now: u64) {
        if self.timing == timing::NONE || !segment.has(ACK) {
            return;
        }
        let took = (now.saturating_sub(self.timed_at) / 1_000).min(LONGEST) as u32;
        if self.timing == timing::SYN {
            if self.awaits(segment) {
                self.timing = timing::NONE;
                (self.handshake_us, self.known) = (took, self.known | known::HANDSHAKE);
            }
            return;
        }
        let Some((_, echo)) = segment.timestamps else { return };
        if echo == self.timed {
            self.sample(took);
        }
        // The echo of a later one: there will be none of this one.
        if echo == self.timed || after(echo, self.timed) {
            self.timing = timing::NONE;
        }
    }

    /// True if the segment answers the timed SYN. It may acknowledge data of the SYN, too
    /// (RFC 7413).
    pub(super) fn awaits(&self, segment: &Segment) -> bool {
        let beyond = segment.acknowledgement.wrapping_sub(self.timed);
        self.timing == timing::SYN && beyond <= self.next.wrapping_sub(self.timed)
    }

    /// Smooths the round-trip time (RFC 6298, sections 2.2 and 2.3).
    fn sample(&mut self, took: u32) {
        if self.known & known::RTT == 0 {
            self.known |= known::RTT;
            (self.srtt, self.rttvar) = (took * 8, took * 2);
            return;
        }
        let differs_by = (self.srtt / 8).abs_diff(took);
        self.rttvar = (self.rttvar - self.rttvar / 4).saturating_add(differs_by);
        self.srtt = (self.srtt - self.srtt / 8).saturating_add(took);
    }

    /// Takes a segment of this direction. `reordering`: the longest time for which a
    /// segment is out of order, and not sent again, ns.
    pub(super) fn pass(&mut self, segment: &Segment, now: u64, reordering: u64) -> Seen {
        if segment.has(SYN) {
            self.pass_syn(segment, now);
        }
        let seen = self.place(segment, now, reordering);
        self.count(seen);
        if let Some((timestamp, _)) = segment.timestamps {
            let is_known = self.known & known::TIMESTAMP != 0;
            if !is_known || after(timestamp, self.timestamp) {
                (self.timestamp, self.known) = (timestamp, self.known | known::TIMESTAMP);
                // A segment without data need not be answered.
                let may_time = seen == Seen::New && !segment.has(SYN);
                if may_time && self.timing != timing::TIMESTAMP {
                    (self.timing, self.timed, self.timed_at) = (timing::TIMESTAMP, timestamp, now);
                }
            }
        }
        seen
    }

    pub(super) fn count(&mut self, seen: Seen) {
        match seen {
            Seen::Retransmitted => self.retransmitted = self.retransmitted.saturating_add(1),
            Seen::OutOfOrder => self.out_of_order = self.out_of_order.saturating_add(1),
            Seen::Nothing | Seen::New | Seen::KeepAlive => {}
        }
    }

    /// Takes a SYN: the direction's first, or its own again.
    fn pass_syn(&mut self, segment: &Segment, now: u64) {
        if self.is_tcp() {
            if self.timing == timing::SYN {
                self.timing = timing::NONE;
            }
            return;
        }
        self.forget();
        self.initial = segment.sequence;
        (self.timing, self.timed_at) = (timing::SYN, now);
        self.timed = segment.sequence.wrapping_add(1);
    }

    /// Forgets the connection. Counts go on.
    pub(super) fn forget(&mut self) {
        *self = Way {
            packets: self.packets,
            bytes: self.bytes,
            retransmitted: self.retransmitted,
            out_of_order: self.out_of_order,
            ..Way::default()
        };
    }

    /// Begins the connection of an offered SYN. `answer`: the SYN-ACK, which echoes the
    /// SYN's timestamp.
    pub(super) fn begin(&mut self, offer: &Offer, answer: &Segment) {
        self.forget();
        self.initial = offer.sequence;
        self.timed = offer.sequence.wrapping_add(1);
        self.next = self.timed.wrapping_add(offer.data.into());
        self.known = known::NEXT;
        if offer.is_repeated == 0 {
            (self.timing, self.timed_at) = (timing::SYN, offer.at);
        }
        if let Some((_, echo)) = answer.timestamps {
            (self.timestamp, self.known) = (echo, self.known | known::TIMESTAMP);
        }
    }

    fn place(&mut self, segment: &Segment, now: u64, reordering: u64) -> Seen {
        let (start, len) = (segment.sequence, segment.len());
        let end = start.wrapping_add(len);
        let is_probe = len == segment.data && len <= 1;
        if self.is_tcp() && is_probe && start.wrapping_add(1) == self.next {
            return Seen::KeepAlive;
        }
        if len == 0 {
            return Seen::Nothing;
        }
        if !self.is_tcp() {
            (self.initial, self.next) = (start, end);
            self.known |= known::NEXT;
            return Seen::New;
        }
        let offset = start.wrapping_sub(self.next) as i32;
        if offset.unsigned_abs() > FARTHEST {
            return Seen::Nothing;
        }
        if offset >= 0 {
            if offset > 0 {
                self.open(Hole { opened_at: now, start: self.next, end: start });
            }
            self.advance(end);
            return Seen::New;
        }
        let goes_beyond = after(end, self.next);
        let opened_at = self.fill(start, if goes_beyond { self.next } else { end });
        if goes_beyond {
            self.advance(end);
        }
        match opened_at {
            Some(opened_at) if now.saturating_sub(opened_at) < reordering => Seen::OutOfOrder,
            _ => Seen::Retransmitted,
        }
    }

    fn advance(&mut self, next: u32) {
        self.next = next;
        // Numbers come again: a hole that nobody has filled must not be taken for one of
        // these.
        while self.hole_count > 0 && next.wrapping_sub(self.holes[0].start) > FARTHEST {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        self.holes.copy_within(1.., 0);
        self.hole_count -= 1;
    }

    fn open(&mut self, hole: Hole) {
        if usize::from(self.hole_count) >= HOLES {
            self.hole_count = HOLES as u8;
            self.forget_oldest();
        }
        self.holes[usize::from(self.hole_count)] = hole;
        self.hole_count += 1;
    }

    /// Fills holes with these bytes. If all of them were in one, returns when it opened.
    fn fill(&mut self, start: u32, end: u32) -> Option<u64> {
        let mut opened_at = None;
        let (holes, count) = (self.holes, core::mem::take(&mut self.hole_count));
        for hole in &holes[..usize::from(count).min(HOLES)] {
            if !after(hole.start, start) && !after(end, hole.end) {
                opened_at = Some(hole.opened_at);
            }
            let before =
                Hole { end: if after(hole.end, start) { start } else { hole.end }, ..*hole };
            let behind =
                Hole { start: if after(end, hole.start) { end } else { hole.start }, ..*hole };
            for rest in [before, behind] {
                if after(rest.end, rest.start) {
                    self.open(rest);
                }
            }
        }
        opened_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hole that nobody fills is forgotten before its numbers come again.
    #[test]
    fn numbers_that_come_again_are_new() {
        let mut way = Way::default();
        let mut pass = |sequence: u32, data: u32| {
            let segment =
                Segment { flags: ACK, sequence, acknowledgement: 0, data, timestamps: None };
            way.pass(&segment, 5, 1_000)
        };
        assert_eq!([pass(0, 10), pass(20, 10)], [Seen::New; 2]);
        for eighth in 0..8 {
            assert_eq!(pass(30_u32.wrapping_add(eighth << 29), 1 << 29), Seen::New);
        }
        assert_eq!(pass(10, 5), Seen::Retransmitted);
        assert_eq!(way.hole_count, 0);
    }

    /// No state makes a packet end the process, whoever made the state.
    #[test]
    fn any_state_is_survived() {
        for byte in [0x7f, 0xff] {
            let mut way = Way::default();
            zerocopy::IntoBytes::as_mut_bytes(&mut way).fill(byte);
            for sequence in [0, 1 << 30, u32::MAX - 5, 0x7f7f_7f00, 0x7f7f_7f70] {
                let timestamps = Some((sequence, sequence));
                let (flags, acknowledgement) = (ACK, sequence);
                let segment = Segment { flags, sequence, acknowledgement, data: 9, timestamps };
                way.answer(&segment, u64::MAX);
                way.pass(&segment, 0, 1_000);
                way.rtt();
            }
        }
    }
}
