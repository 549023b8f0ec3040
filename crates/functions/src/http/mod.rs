//! `http`: reads HTTP/1 in both directions of a connection, counts requests and
//! responses, and refuses requests by host, method and path.
//!
//! Theory of operation. The function holds no packet: a segment passes or is dropped on
//! arrival. Each direction has a [`Reader`], a state machine that processes one byte at a
//! time, so the state between two segments is a few numbers and those parts of a request
//! that rules compare. A header section is never buffered, and fields that decide nothing
//! may be of any length. (The crate `httparse` parses whole blocks in one buffer; tests
//! compare the reader with it.)
//!
//! Order. Bytes are read once and in order ([`Segment::place`]). Retransmitted bytes pass
//! unread, even if they differ. A segment after a gap is dropped, and its retransmission
//! is read once the gap is filled; only segments inside a response body of known length
//! may arrive in any order. The server's SYN-ACK sets the first sequence number of each
//! direction: a client's SYN alone changes nothing, because the server may ignore it.
//! Segments that servers may discard or read differently are dropped: SYN-ACKs and
//! segments to read with a wrong checksum, fragments, urgent segments, SYNs with data,
//! and data without an acknowledgement or with one for bytes that the other end has not
//! sent. (Checksums of segments that are not read, such as retransmissions, do not
//! matter.) A server with SYN cookies may answer several SYNs, of which the client
//! chooses one. The last answer counts here: a segment with the numbers of another answer
//! is dropped.
//!
//! Verdicts. A request is judged when its header section is complete. If the request is
//! refused, the segment that completes the section is dropped, and so are all later bytes
//! of the direction; the server may have the section's beginning, but never sees its end.
//! Earlier requests in the same segment are dropped with it. Outstanding responses still
//! pass, unless both ends are reset (`reject`).
//!
//! Responses are read because they decide how later bytes are read: both directions
//! become an unread tunnel with a 101, and with a 2xx to a CONNECT (RFC 9110, sections
//! 9.3.6 and 15.2.2). Bytes between a CONNECT and its response could be tunnel data or a
//! request, and are refused.
//!
//! The outcome depends on the flow's own packets and state alone, so a replay gives the
//! same outcome. A flow that lost packets under a weak protection cannot be read any
//! more: the rest of it passes unread, and is counted.
//!
//! In: segments. Out: the same segments, or drops. Never: a changed byte, a held packet.

mod config;
mod connection;
mod count;
mod grammar;
mod head;
mod log;
mod message;
mod pipeline;
mod rule;
mod segment;
#[cfg(test)]
mod tests;

use crate::firewall::Action;
pub use config::{HttpConfig, HttpLog};
pub use connection::HttpFlow;
use connection::{DEFAULT, MEANT, NO_RULE_ASKED, REQUESTS, RESPONSES, TURNED};
use count::{Count, Hosts, class};
use holdfast_nf::{
    ConfigError, Context, Counters, Direction, DropReason, Log, NetworkFunction, Open, Opening,
    Packet, Verdict,
};
use holdfast_wire::FlowKey;
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::header::proto;
use holdfast_wire::header::tcp_flags::{ACK, FIN, RST, SYN, URG};
use log::Passing;
use message::{Reader, Stop, mark, step};
use pipeline::Kind;
use rule::Rule;
use segment::{Place, Segment};

holdfast_nf::shared_state! {
    /// Counters that all connections share.
    pub struct HttpCounts {
        /// Counts of messages that were read, refused or left unread.
        pub messages: Counters,
        /// Requests by the rule that decided, or by the default.
        pub rules: Counters,
        /// Requests and responses of each host.
        pub hosts: Counters,
        /// Requests and responses, for the operator.
        pub log: Log,
    }
}

impl HttpCounts {
    fn add(&mut self, count: Count) {
        self.messages.add(count as usize, 1);
    }
}

/// The function that reads HTTP; see the module.
#[derive(Debug)]
pub struct Http {
    ports: Vec<u16>,
    rules: Vec<Rule>,
    default: Action,
    oversized: Action,
    malformed: Action,
    header_bytes: u32,
    /// Requests are logged.
    is_logged: bool,
    hosts: Hosts,
    /// Marks of requests that rules cannot judge.
    undecidable: u16,
}

/// True for a byte of a token (RFC 9110, section 5.6.2).
fn is_token(byte: u8) -> bool {
    const TOKEN: [bool; 256] = {
        let (mut table, mut byte, others) = ([false; 256], 0, b"!#$%&'*+-.^_`|~");
        while byte < 256 {
            table[byte] = (byte as u8).is_ascii_alphanumeric();
            byte += 1;
        }
        let mut at = 0;
        while at < others.len() {
            table[others[at] as usize] = true;
            at += 1;
        }
        table
    };
    TOKEN[usize::from(byte)]
}

/// True for a byte that may be in a field's value or a reason phrase.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || byte >= b' ' && byte != 0x7f
}

impl Http {
    /// Refuses the direction from here on; `None` if the action is to allow.
    fn refuse(&self, action: Action, way: &mut Reader, shared: &mut HttpCounts) -> Option<Verdict> {
        let (step, verdict) = match action {
            Action::Allow => return None,
            Action::Deny => (step::REFUSED, Verdict::Drop(DropReason::PolicyDenied)),
            Action::Reject => (step::REJECTED, Verdict::Reject(DropReason::PolicyDenied)),
        };
        way.step = step;
        shared.add(Count::Refused);
        Some(verdict)
    }

    fn refuse_malformed(
        &self,
        flow: &mut HttpFlow,
        way: usize,
        shared: &mut HttpCounts,
    ) -> Option<Verdict> {
        shared.add(Count::Malformed);
        let refused = self.refuse(self.malformed, &mut flow.ways[way], shared);
        if refused.is_none() {
            flow.ways[way].step = step::OFF;
            // Responses cannot be assigned to requests that are not read.
            if way == REQUESTS && flow.ways[RESPONSES].is_reading() {
                flow.ways[RESPONSES].step = step::OFF;
            }
        }
        refused
    }

    /// Reads the segment's data, which begin with the direction's next byte; `None` if
    /// they pass.
    fn read(
        &self,
        mut data: &[u8],
        at: &Passing<'_>,
        flow: &mut HttpFlow,
        shared: &mut HttpCounts,
    ) -> Option<Verdict> {
        let way = at.cx.direction() as usize;
        let logged = shared.log.waiting();
        while flow.ways[way].is_reading() {
            let (read, stop) = flow.ways[way].read(&mut flow.head, data, self.header_bytes);
            data = data.get(read..).unwrap_or(&[]);
            let refused = match stop {
                Stop::Empty => return None,
                Stop::Head if way == REQUESTS => {
                    let (marks, requests) = (flow.ways[way].marks, flow.requests);
                    let refused = self.judge(flow, shared);
                    if refused.is_some() {
                        shared.log.append(logged, log::DROPPED);
                    }
                    if self.is_logged && flow.requests != requests {
                        flow.refused = refused.is_some().into();
                        at.request(flow, marks, &mut shared.log);
                    }
                    refused
                }
                Stop::Head => {
                    if self.is_logged && !flow.ways[way].is_ambiguous() {
                        let end = flow.ways[way].next.wrapping_sub(data.len() as u32);
                        at.response(flow, end, &mut shared.log);
                    }
                    self.take_response(flow, shared)
                }
                Stop::Malformed => self.refuse_malformed(flow, way, shared),
                Stop::Oversized => {
                    shared.add(Count::Oversized);
                    self.refuse(self.oversized, &mut flow.ways[way], shared)
                }
            };
            if refused.is_some() {
                if stop != Stop::Head || way == RESPONSES {
                    shared.log.append(logged, log::DROPPED);
                }
                return refused;
            }
        }
        None
    }

    /// Judges the request whose header section is complete.
    fn judge(&self, flow: &mut HttpFlow, shared: &mut HttpCounts) -> Option<Verdict> {
        let HttpFlow { ways: [way, responses], head, pipeline, decided, requests, .. } = &mut *flow;
        let is_connect = head.method() == b"CONNECT";
        // A request of HTTP/1.1 without a Host is malformed (RFC 9112, section 3.2).
        let lacks_host =
            !way.has(mark::HOST) && !way.has(mark::OLD) && !is_planted(Fault::NeedsNoHost);
        // Content of a CONNECT has no defined meaning (RFC 9110, section 9.3.6).
        let has_content = way.has(mark::CODING) || way.left > 0;
        let is_ambiguous = way.is_ambiguous() && !is_planted(Fault::AllowsTwoLengths);
        if lacks_host || is_ambiguous || is_connect && has_content {
            return self.refuse_malformed(flow, REQUESTS, shared);
        }
        let host = self.hosts.of(head);
        *requests = requests.wrapping_add(1);
        shared.add(Count::Requests);
        shared.hosts.add(Hosts::requests(host), 1);
        *decided = NO_RULE_ASKED;
        let action = if way.has(mark::LONG) {
            // The request was counted and allowed when its section became too long.
            Action::Allow
        } else if way.marks & self.undecidable != 0 {
            shared.add(Count::Oversized);
            self.oversized
        } else {
            let rule = rule::first(&self.rules, head, way.marks);
            shared.rules.add(rule.unwrap_or(self.rules.len()), 1);
            *decided = rule.map_or(DEFAULT, |rule| rule as u8);
            rule.and_then(|at| self.rules.get(at)).map_or(self.default, |rule| rule.action)
        };
        let refused = self.refuse(action, way, shared);
        if refused.is_some() {
            return refused;
        }
        let kind = match head.method() {
            b"HEAD" => Kind::Head,
            b"CONNECT" => Kind::Connect,
            _ => Kind::Other,
        };
        if responses.is_reading() && !pipeline.push(kind, host) {
            // Requests are still judged, but a tunnel is not recognized any more.
            responses.step = step::OFF;
            shared.add(Count::PipelineFull);
        }
        if is_connect {
            way.step = step::ANSWER
        } else {
            way.expect_body()
        }
        None
    }

    /// Handles the response whose header section is complete.
    fn take_response(&self, flow: &mut HttpFlow, shared: &mut HttpCounts) -> Option<Verdict> {
        let HttpFlow { ways: [requests, way], pipeline, .. } = &mut *flow;
        if way.is_ambiguous() {
            return self.refuse_malformed(flow, RESPONSES, shared);
        }
        // A server may time out (408) before it has received a request.
        let (kind, host) = pipeline.oldest().unwrap_or((Kind::Other, 0));
        let class = class(way.status);
        shared.messages.add(Count::Responses as usize + class, 1);
        shared.hosts.add(Hosts::responses(host, class), 1);
        let status = way.status;
        let is_tunnel = status == 101 || kind == Kind::Connect && class == 1;
        if is_tunnel && !is_planted(Fault::ReadsTunnels) {
            shared.add(Count::Upgraded);
            flow.become_tunnel();
            return None;
        }
        // These responses have no body, whatever their fields say (RFC 9112, section
        // 6.3).
        let is_head = kind == Kind::Head && !is_planted(Fault::ExpectsHeadBodies);
        let is_empty = is_head || class == 0 || matches!(status, 204 | 304);
        if class != 0 {
            pipeline.pop();
            if kind == Kind::Connect && requests.step == step::ANSWER {
                requests.begin();
            }
        }
        if is_empty {
            way.begin();
        } else if way.has(mark::LENGTH) || way.has(mark::CHUNKED) {
            way.expect_body();
        } else {
            way.step = step::UNTIL_CLOSE;
        }
        None
    }

    fn text_of(&self, flow: &HttpFlow) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let head = &flow.head;
        let request = match (head.host(), head.path()) {
            (host, b"") => format!("{} {}", text(head.method()), text(host)),
            (b"", path) => format!("{} {}", text(head.method()), text(path)),
            (host, path) => format!("{} {} at {}", text(head.method()), text(path), text(host)),
        };
        let why = match flow.decided {
            NO_RULE_ASKED => "no rule was asked".to_owned(),
            DEFAULT => "by default, because no rule means it".to_owned(),
            rule => self
                .rules
                .get(usize::from(rule))
                .map_or_else(String::new, |rule| format!("by its rule `{}`", rule.text)),
        };
        format!("latest request {request}, {why}")
    }
}

impl NetworkFunction for Http {
    const NAME: &'static str = "http";
    type Config = HttpConfig;
    type Flow = HttpFlow;
    type Shared = HttpCounts;

    fn new(config: HttpConfig) -> Result<Http, ConfigError> {
        config.check()?;
        let rules = config.rules.iter().enumerate().map(|(at, text)| Rule::read(at, text));
        let rules = rules.collect::<Result<Vec<_>, _>>()?;
        let undecidable = rules.iter().fold(0, |marks, rule| marks | rule.undecidable());
        Ok(Http {
            hosts: Hosts(config.hosts()?),
            ports: config.ports,
            rules,
            default: config.default,
            oversized: config.oversized,
            malformed: config.malformed,
            header_bytes: config.header_bytes,
            is_logged: config.log.is_some(),
            undecidable,
        })
    }

    fn shared(&self) -> HttpCounts {
        let rules = self.rules.iter().map(|rule| rule.text.as_str()).chain(["default"]);
        HttpCounts {
            messages: Counters::new(count::NAMES),
            rules: Counters::new(rules),
            hosts: self.hosts.counters(),
            log: if self.is_logged { Log::of_texts() } else { Log::new() },
        }
    }

    fn open(
        &self,
        packet: &Packet,
        shared: &mut HttpCounts,
        cx: &mut Opening<'_>,
    ) -> Open<HttpFlow> {
        // The key is that of the packet as earlier functions of the chain left it.
        let key = FlowKey::of(packet).unwrap_or(*cx.key());
        let opens = |segment: Segment<'_>| segment.flags & (SYN | ACK) == SYN;
        let opens = Segment::of(packet).is_some_and(opens);
        let mut flow = HttpFlow::opening(self.is_logged);
        if key.protocol != u16::from(proto::TCP) {
            return Open::Accept(HttpFlow::default());
        } else if !self.ports.contains(&key.destination_port) {
            // A client may have any port, and servers send no SYN.
            if opens || !self.ports.contains(&key.source_port) {
                return Open::Accept(HttpFlow::default());
            }
            flow.is_meant = TURNED;
        }
        if !opens {
            shared.add(Count::Midstream);
            flow.set_both(step::OFF);
        }
        Open::Accept(flow)
    }

    #[inline]
    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut HttpFlow,
        shared: &mut HttpCounts,
        cx: &mut Context,
    ) -> Verdict {
        if flow.is_meant != MEANT || packet.is_icmp_error() {
            return Verdict::Forward;
        }
        let way = cx.direction() as usize;
        if flow.ways.iter().any(|way| way.step == step::LOST) {
            shared.add(Count::Midstream);
            let lost = flow.ways.iter_mut().filter(|way| way.step == step::LOST);
            lost.for_each(|way| way.step = step::OFF);
        }
        let is_unread = matches!(flow.ways[way].step, step::OFF | step::TUNNEL | step::UNTIL_CLOSE);
        let segment = Segment::of(packet).filter(|_| !packet.layers.fragment);
        let Some(segment) = segment else {
            if is_unread {
                return Verdict::Forward;
            }
            shared.add(Count::Unreadable);
            return Verdict::Drop(DropReason::FunctionDenied);
        };
        let Segment { flags, data, .. } = segment;
        // Servers disagree on whether an urgent byte belongs to the stream (RFC 6093).
        // The pointer to it may arrive before it, or more than once.
        if flags & (URG | RST) == URG && !is_unread {
            shared.add(Count::Unreadable);
            return Verdict::Drop(DropReason::FunctionDenied);
        }
        if flags & SYN != 0 {
            // The server may accept the data of a SYN or not, unknown to this function.
            if !data.is_empty() {
                shared.add(Count::Unreadable);
                return Verdict::Drop(DropReason::FunctionDenied);
            }
            if flags & RST == 0 && flags & ACK != 0 && cx.direction() == Direction::Reverse {
                if packet.is_intact() == Some(false) {
                    return Verdict::Drop(DropReason::BadChecksum);
                }
                flow.answer(segment.acknowledgement, segment.sequence.wrapping_add(1));
            } else if cx.direction() == Direction::Forward {
                (flow.offered, flow.is_offered) = (segment.sequence.wrapping_add(1), 1);
                if is_planted(Fault::BelievesClientSyns) {
                    flow.ways[REQUESTS] = Reader::from(flow.offered, false);
                }
            }
            return Verdict::Forward;
        }
        if flags & RST != 0 || is_unread {
            return Verdict::Forward;
        }
        let has_ended = u8::from(flags & FIN != 0);
        if data.is_empty() {
            flow.ways[way].has_ended |= has_ended;
            return Verdict::Forward;
        }
        match flow.ways[way].step {
            step::REFUSED if !is_planted(Fault::ForgetsRefusals) => {
                return Verdict::Drop(DropReason::PolicyDenied);
            }
            step::REJECTED => return Verdict::Reject(DropReason::PolicyDenied),
            step::AWAITED => {
                shared.add(Count::OutOfOrder);
                return Verdict::Drop(DropReason::StateInvalid);
            }
            step::REFUSED => return Verdict::Forward,
            _ => {}
        }
        // Receivers drop such segments (RFC 9293, section 3.10.7.4): the bytes that they
        // read at these sequence numbers are still to come.
        if flags & ACK == 0 || !flow.ways[1 - way].may_have_sent(segment.acknowledgement) {
            shared.add(Count::Unreadable);
            return Verdict::Drop(DropReason::FunctionDenied);
        }
        let (skipped, data) = match segment.place(&flow.ways[way]) {
            Place::Passed => {
                flow.ways[way].has_ended |= has_ended;
                return Verdict::Forward;
            }
            Place::Ahead | Place::Before => {
                shared.add(Count::OutOfOrder);
                return Verdict::Drop(DropReason::StateInvalid);
            }
            Place::Next(skipped, data) => (skipped, data),
        };
        let reader = &mut flow.ways[way];
        let is_looked_at = skipped + data.len() as u64 > reader.opaque();
        if is_looked_at && packet.is_intact() == Some(false) {
            return Verdict::Drop(DropReason::BadChecksum);
        }
        if skipped > 0 {
            reader.skip(skipped);
        }
        reader.advance((skipped as u32).wrapping_add(data.len() as u32));
        reader.has_ended |= has_ended;
        flow.is_offered = 0;
        self.read(data, &Passing { packet, cx }, flow, shared).unwrap_or(Verdict::Forward)
    }

    fn outdated(&self, flow: &mut HttpFlow, _packets: u32) {
        let is_going_on = |way: &&mut Reader| way.is_reading() || way.step == step::AWAITED;
        flow.ways.iter_mut().filter(is_going_on).for_each(|way| way.step = step::LOST);
    }

    fn describe(&self, flow: &HttpFlow) -> &'static str {
        let [requests, responses] = flow.ways.each_ref().map(|way| way.step);
        match (requests, responses) {
            _ if flow.is_meant == 0 => "",
            (step::REFUSED | step::REJECTED, _) | (_, step::REFUSED | step::REJECTED) => "refused",
            (step::OFF | step::LOST, _) => "unread",
            (step::AWAITED, _) => "opening",
            (step::TUNNEL, _) => "tunnel",
            (_, step::UNTIL_CLOSE) => "body",
            (step::START, step::START) if flow.pipeline.is_empty() => "idle",
            (step::START | step::ANSWER, step::START) => "waiting",
            (step::START | step::ANSWER, step::BODY | step::CHUNK)
            | (step::BODY | step::CHUNK, _) => "body",
            (step::START | step::ANSWER, _) => "response",
            _ => "request",
        }
    }

    fn explain(&self, _packet: &Packet, flow: Option<&HttpFlow>) -> String {
        match flow {
            Some(flow) if flow.is_meant != 0 && flow.head.method_len > 0 => self.text_of(flow),
            _ => String::new(),
        }
    }
}
