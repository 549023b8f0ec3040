//! SYNs: which ones begin a connection.
//!
//! Theory of operation. The first SYN of a direction is measured as it comes. Inside a
//! connection a SYN may be a late one or a stranger's, which the other end answers with
//! an acknowledgement at most (RFC 9293, section 3.10.7.4). It is therefore kept as
//! offered. A SYN-ACK that acknowledges it makes both ends' numbers those of a new
//! connection, and is the answer by which the SYN is timed. A SYN-ACK that acknowledges
//! no SYN is not of the connection.

use super::Observed;
use super::way::{Seen, Segment};
use holdfast_wire::header::tcp_flags::{ACK, SYN};

holdfast_nf::flow_state! {
    /// The latest SYN that came inside a connection.
    #[derive(Clone, Copy)]
    pub struct Offer {
        /// Its stamp, ns.
        pub at: u64,
        /// Its sequence number.
        pub sequence: u32,
        /// Its bytes of data.
        pub data: u16,
        /// The direction that it came from, plus 1; 0 if there is no offer.
        pub by: u8,
        /// 1 if it came more than once.
        pub is_repeated: u8,
    }
}

impl Offer {
    /// True if a SYN-ACK answers it. `by`: the direction of the SYN, plus 1.
    fn is_answered(&self, by: usize, segment: &Segment) -> bool {
        let beyond = segment.acknowledgement.wrapping_sub(self.sequence.wrapping_add(1));
        usize::from(self.by) == by && beyond <= u32::from(self.data)
    }
}

impl Observed {
    /// Handles the SYN of a segment, if it has one. If the segment is not of the
    /// connection, or not yet, returns what it counts as.
    pub(super) fn admit(&mut self, from: usize, segment: &Segment, now: u64) -> Option<Seen> {
        if !segment.has(SYN) {
            None
        } else if segment.has(ACK) {
            self.admit_answer(from, segment)
        } else {
            self.admit_offer(from, segment, now)
        }
    }

    fn admit_offer(&mut self, from: usize, segment: &Segment, now: u64) -> Option<Seen> {
        let (way, offer, by) = (&self.ways[from], &self.offer, from as u8 + 1);
        if !way.is_tcp() {
            return None;
        }
        let is_own = way.initial == segment.sequence;
        let is_known = offer.by == by && offer.sequence == segment.sequence;
        self.offer = Offer {
            at: now,
            sequence: segment.sequence,
            data: segment.data as u16,
            by,
            is_repeated: (is_own || is_known).into(),
        };
        match (is_own, is_known) {
            (true, _) => None,
            (_, true) => Some(Seen::Retransmitted),
            _ => Some(Seen::Nothing),
        }
    }

    fn admit_answer(&mut self, from: usize, segment: &Segment) -> Option<Seen> {
        let to = 1 - from;
        let offer = self.offer;
        let [us, them] = [&self.ways[from], &self.ways[to]];
        let is_own = us.is_tcp() && us.initial == segment.sequence;
        let answers_offer = offer.is_answered(to + 1, segment);
        if answers_offer || them.awaits(segment) {
            // The client may offer its old number again, and the server a new one.
            let is_other = us.is_tcp() && !is_own || offer.sequence != them.initial;
            if answers_offer && is_other {
                self.ways[to].begin(&offer, segment);
            }
            if !is_own || answers_offer && is_other {
                self.ways[from].forget();
            }
            self.offer = Offer::default();
        } else if !is_own && (us.is_tcp() || them.is_tcp()) {
            return Some(Seen::Nothing);
        }
        None
    }
}
