//! The state of one connection: its handshake, its two readers, and decisions that
//! concern both directions.

use super::head::Head;
use super::message::{Reader, step};
use super::pipeline::Pipeline;

/// Value of [`HttpFlow::decided`] before the first request, and for a request that the
/// rules did not judge.
pub(super) const NO_RULE_ASKED: u8 = u8::MAX;
/// Value of [`HttpFlow::decided`] if no rule matched.
pub(super) const DEFAULT: u8 = NO_RULE_ASKED - 1;

/// Value of [`HttpFlow::is_meant`] for a connection to a configured port.
pub(super) const MEANT: u8 = 1;
/// Value of [`HttpFlow::is_meant`] for a connection that began before and whose first
/// packet came from a configured port: the server sent it, so the flow's directions are
/// reversed. The connection is not read, and neither is a later one of the same addresses
/// and ports while the flow lives.
pub(super) const TURNED: u8 = 2;

holdfast_nf::flow_state! {
    /// State of one connection.
    pub struct HttpFlow {
        /// The readers of requests and of responses.
        pub ways: [Reader; 2],
        /// Requests so far: the number of the latest one.
        pub requests: u32,
        /// The number behind the client's latest SYN.
        pub offered: u32,
        /// The request whose header section is being read, or was read last.
        pub head: Head,
        /// Outstanding requests.
        pub pipeline: Pipeline,
        /// The index of the rule that decided about `head`, `DEFAULT` or `NO_RULE_ASKED`.
        pub decided: u8,
        /// `MEANT`, `TURNED`, or 0 for a flow of other ports.
        pub is_meant: u8,
        /// 1 if the latest request was refused.
        pub refused: u8,
        /// 1 if a SYN of the client has come since the latest data that were read.
        pub is_offered: u8,
        /// Zero.
        pub spare: [u8; 2],
    }
}

const _: () = assert!(size_of::<HttpFlow>() == 656);

pub(super) const REQUESTS: usize = 0;
pub(super) const RESPONSES: usize = 1;

impl HttpFlow {
    /// A connection whose SYN has no answer yet.
    pub(super) fn opening(is_logged: bool) -> HttpFlow {
        let mut flow = HttpFlow { is_meant: MEANT, decided: NO_RULE_ASKED, ..HttpFlow::default() };
        if is_logged {
            flow.head.keep_targets();
        }
        flow.set_both(step::AWAITED);
        flow
    }

    /// The number of the request that the next response answers; 0 if it answers none.
    pub(super) fn answered(&self) -> u32 {
        // A refused request is counted, and has no response.
        match self.pipeline.len {
            0 => 0,
            len => self
                .requests
                .wrapping_sub(self.refused.into())
                .wrapping_sub(len.into())
                .wrapping_add(1),
        }
    }

    pub(super) fn set_both(&mut self, step: u8) {
        self.ways.iter_mut().for_each(|way| way.step = step);
    }

    /// Handles a SYN-ACK of the server. `requests`, `responses`: sequence numbers of the
    /// first byte of each direction. The client keeps its connection if a SYN-ACK
    /// answers no SYN of its own (RFC 9293, section 3.10.7.4).
    pub(super) fn answer(&mut self, requests: u32, responses: u32) {
        let [ours, theirs] = &self.ways;
        let is_first = ours.step == step::AWAITED;
        let is_begun = !is_first && ours.initial == requests;
        if is_begun && theirs.initial == responses {
            return;
        }
        if !is_first && !is_begun && self.offered != requests {
            return;
        }
        // A server with SYN cookies may answer one SYN twice with different numbers, and
        // only the client knows which answer counts, until data have been read.
        let is_untouched = |way: &Reader| way.next == way.initial;
        let may_be_off = matches!(theirs.step, step::START | step::OFF);
        let is_open = ours.step == step::START && may_be_off;
        if is_begun && is_open && is_untouched(ours) && is_untouched(theirs) {
            self.ways[RESPONSES].step = step::OFF;
            return;
        }
        if is_begun && self.is_offered == 0 {
            return;
        }
        let offered = self.offered;
        *self = HttpFlow { offered, ..HttpFlow::opening(self.head.keeps_targets()) };
        self.ways = [Reader::from(requests, false), Reader::from(responses, true)];
    }

    /// Makes both directions a tunnel, unless they are refused or unread already.
    pub(super) fn become_tunnel(&mut self) {
        let ways = self.ways.iter_mut();
        ways.filter(|way| way.is_reading()).for_each(|way| way.step = step::TUNNEL);
    }
}
