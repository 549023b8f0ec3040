//! The state of one connection: its handshake, and what both directions decide together.

use super::head::Head;
use super::message::{Reader, step};
use super::pipeline::Pipeline;

/// [`HttpFlow::decided`] without a request, or with one that no rule was asked about.
pub(super) const NO_RULE_ASKED: u8 = u8::MAX;
/// [`HttpFlow::decided`] if no rule matched.
pub(super) const DEFAULT: u8 = NO_RULE_ASKED - 1;

/// [`HttpFlow::is_meant`] of a connection to one of the ports.
pub(super) const MEANT: u8 = 1;
/// [`HttpFlow::is_meant`] of a connection from one of the ports that had begun before:
/// its server has spoken first, so the flow's directions are the wrong way round. It is
/// not read, nor is a later connection of the same ends while the flow lives.
pub(super) const TURNED: u8 = 2;

holdfast_nf::flow_state! {
    /// State of one connection.
    pub struct HttpFlow {
        /// Requests and responses.
        pub ways: [Reader; 2],
        /// The request whose header section is being read, or was read last.
        pub head: Head,
        /// Requests without a response.
        pub pipeline: Pipeline,
        /// The index of the rule that decided about `head`, `DEFAULT` or `NO_RULE_ASKED`.
        pub decided: u8,
        /// `MEANT`, `TURNED`, or 0 for a flow of other ports.
        pub is_meant: u8,
    }
}

const _: () = assert!(size_of::<HttpFlow>() == 640);

pub(super) const REQUESTS: usize = 0;
pub(super) const RESPONSES: usize = 1;

impl HttpFlow {
    /// A connection before its handshake has been answered.
    pub(super) fn opening() -> HttpFlow {
        let mut flow = HttpFlow { is_meant: MEANT, decided: NO_RULE_ASKED, ..HttpFlow::default() };
        flow.set_both(step::AWAITED);
        flow
    }

    pub(super) fn set_both(&mut self, step: u8) {
        self.ways.iter_mut().for_each(|way| way.step = step);
    }

    /// Takes a SYN-ACK of the server: these are the first bytes' numbers.
    pub(super) fn answer(&mut self, requests: u32, responses: u32) {
        let [ours, theirs] = &self.ways;
        let is_begun = ours.step != step::AWAITED && ours.initial == requests;
        if is_begun && theirs.initial == responses {
            return;
        }
        // A server that keeps no state may have answered a SYN twice, and only the client
        // knows which answer counts.
        let is_untouched = |way: &Reader| way.step == step::START && way.next == way.initial;
        if is_begun && is_untouched(ours) && is_untouched(theirs) {
            self.ways[RESPONSES].step = step::OFF;
            return;
        }
        *self = HttpFlow::opening();
        self.ways = [Reader::from(requests, false), Reader::from(responses, true)];
    }

    /// Both directions are another protocol from here on.
    pub(super) fn become_tunnel(&mut self) {
        let ways = self.ways.iter_mut();
        ways.filter(|way| way.is_reading()).for_each(|way| way.step = step::TUNNEL);
    }
}
