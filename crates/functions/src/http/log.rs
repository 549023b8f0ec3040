//! The log of requests and responses, each a line.
//!
//! Theory of operation. A request is logged when it has been judged, and a response when
//! its header section is complete. The two lines are not put together here, because many
//! pipelined requests may be outstanding, and their texts are not kept: the line of a
//! response has the number of its request on the connection. A line's own number is made
//! of the connection's first sequence number and the request's number, so that a segment
//! that is processed again after a failure gives the same line. A response that answers
//! no request has the sequence number of its header section's end instead.

use super::connection::{HttpFlow, REQUESTS, RESPONSES};
use super::message::mark;
use holdfast_nf::{Context, Direction, Log, Packet};
use holdfast_wire::FlowKey;
use std::io::Write;

/// Kinds of lines.
const REQUEST: u32 = 0;
const RESPONSE: u32 = 1;
/// A response that answers no request.
const LONE_RESPONSE: u32 = 2;

/// Marks of requests of which a part was not kept.
const CUT: u16 = mark::LONG_METHOD | mark::LONG_HOST | mark::LONG_PATH;

/// The end of lines whose message ended in a segment that was dropped because of a later
/// message.
pub(super) const DROPPED: &str = ", dropped";

/// The segment that is being read.
pub(super) struct Passing<'a> {
    pub(super) packet: &'a Packet,
    pub(super) cx: &'a Context,
}

impl Passing<'_> {
    /// Client and server, as the function sees them.
    fn key(&self) -> FlowKey {
        let key = FlowKey::of(self.packet).unwrap_or(*self.cx.key());
        if self.cx.direction() == Direction::Forward { key } else { key.reverse() }
    }

    fn say(
        &self,
        kind: u32,
        flow: &HttpFlow,
        number: u32,
        log: &mut Log,
        text: impl FnOnce(&mut Vec<u8>),
    ) {
        let id = u64::from(flow.ways[REQUESTS].initial) << 32 | u64::from(number);
        log.say((kind, id), &self.key(), self.packet.meta.ingress, self.cx, text);
    }

    /// Logs the request that was judged last, which had these marks.
    pub(super) fn request(&self, flow: &HttpFlow, marks: u16, log: &mut Log) {
        let (head, number) = (&flow.head, flow.requests);
        self.say(REQUEST, flow, number, log, |text| {
            let minor = u8::from(marks & mark::OLD == 0);
            // Writing into a vector does not fail.
            let _ = write!(text, "request {number}: ");
            text.extend_from_slice(head.method());
            text.push(b' ');
            head.write_target(text);
            let _ = write!(text, " HTTP/1.{minor}");
            if !head.host().is_empty() {
                text.extend_from_slice(b", host ");
                text.extend_from_slice(head.host());
            }
            if marks & CUT != 0 || head.is_cut() {
                text.extend_from_slice(b", cut");
            }
            if flow.refused != 0 {
                text.extend_from_slice(b", refused");
            }
        });
    }

    /// Logs the response whose header section is complete, unless another one follows it
    /// (RFC 9110, section 15.2). It is not assigned to its request yet. `end`: the number
    /// behind the section's last byte.
    pub(super) fn response(&self, flow: &HttpFlow, end: u32, log: &mut Log) {
        let status = flow.ways[RESPONSES].status;
        if (100..200).contains(&status) && status != 101 {
            return;
        }
        let number = flow.answered();
        let (kind, id) = if number == 0 { (LONE_RESPONSE, end) } else { (RESPONSE, number) };
        self.say(kind, flow, id, log, |text| {
            // Writing into a vector does not fail.
            let _ = write!(text, "response {number}: {status}");
        });
    }
}
