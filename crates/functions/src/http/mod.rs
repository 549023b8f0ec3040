//! `http`: reads HTTP/1 in both directions of a connection, counts requests and
//! responses, and refuses requests by host, method and path.
//!
//! Theory of operation. The function stands between the ends and holds no packet: a
//! segment passes or is dropped as it comes. Each direction has a [`Reader`], a machine
//! that takes one byte at a time, so the state between two segments is a few numbers and
//! those parts of a request that rules look at. A header block is never buffered, and
//! fields that decide nothing may be of any length. (The crate `httparse` reads whole
//! blocks from one buffer; it is what tests compare the machine with.)
//!
//! Order. Bytes are read once and in order ([`Segment::place`]). Repeated bytes pass
//! unread, also if they differ; a segment with a gap before it is dropped, and comes
//! again when the gap has been filled. Only inside of a response's body of known length
//! any order does. A direction's first number is what the server's SYN-ACK says: a
//! client's SYN alone changes nothing, because it may be one that the server ignores. For
//! the same reason a segment that would be read, or a SYN-ACK, is dropped if its checksum
//! is wrong, as are fragments, urgent segments, SYNs with data, and data that acknowledge
//! nothing, or what the other end has not sent. (Checksums of what is not looked at, like
//! repeated bytes, do not matter.) A server without state may answer several SYNs, of
//! which the client chooses one. The last answer counts here: a segment with numbers of
//! another one is dropped.
//!
//! Verdicts. A request is judged when its header section is complete. The segment in
//! which it ends is dropped if the request is refused, and so are all later bytes of the
//! direction; the server, which may have the section's beginning, never sees its end.
//! Earlier requests in the same segment do not get there either. Responses that are on
//! their way still pass, unless the ends are told (`reject`).
//!
//! Responses are read because they decide what requests mean: after CONNECT and a 2xx,
//! and after 101, both directions are a tunnel and are not read (RFC 9110, sections 9.3.6
//! and 15.2.2). Bytes behind a CONNECT that come before its response could be either, and
//! are refused.
//!
//! The outcome depends on the flow's own packets and state alone, so a replay gives the
//! same. A flow of which a weak protection has forgotten packets cannot be read on: it
//! passes unread from there, and is counted.
//!
//! In: segments. Out: the same segments, or drops. Never: a changed byte, a held packet.

mod config;
mod connection;
mod count;
mod grammar;
mod head;
mod message;
mod pipeline;
mod rule;
mod segment;
#[cfg(test)]
mod tests;

use crate::firewall::Action;
pub use config::HttpConfig;
pub use connection::HttpFlow;
use connection::{DEFAULT, MEANT, NO_RULE_ASKED, REQUESTS, RESPONSES, TURNED};
use count::{Count, Hosts, class};
use holdfast_nf::{
    ConfigError, Context, Counters, Direction, DropReason, NetworkFunction, Open, Opening, Packet,
    Verdict,
};
use holdfast_wire::FlowKey;
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::header::proto;
use holdfast_wire::header::tcp_flags::{ACK, FIN, RST, SYN, URG};
use message::{Reader, Stop, mark, step};
use pipeline::Kind;
use rule::Rule;
use segment::{Place, Segment};

holdfast_nf::shared_state! {
    /// Counters that all connections share.
    pub struct HttpCounts {
        /// What has been read, refused and left unread.
        pub messages: Counters,
        /// Requests decided by each rule, and by none.
        pub rules: Counters,
        /// Requests and responses of each host.
        pub hosts: Counters,
    }
}

impl HttpCounts {
    fn add(&mut self, count: Count) {
        self.messages.add(count as usize, 1);
    }
}

/// Reads HTTP; see the module.
#[derive(Debug)]
pub struct Http {
    ports: Vec<u16>,
    rules: Vec<Rule>,
    default: Action,
    oversized: Action,
    malformed: Action,
    header_bytes: u32,
    hosts: Hosts,
    /// Marks of requests that rules cannot judge.
    undecidable: u16,
}

/// True for a byte of a token (RFC 9110, section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// True for a byte that may be in a field's value or a reason phrase.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || byte >= b' ' && byte != 0x7f
}

impl Http {
    /// Refuses the direction from here on, or passes what comes (`None`).
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
            // Without requests nobody knows what responses belong to.
            if way == REQUESTS && flow.ways[RESPONSES].is_reading() {
                flow.ways[RESPONSES].step = step::OFF;
            }
        }
        refused
    }

    /// Reads the segment's data, which come next. `None` if they pass.
    fn read(
        &self,
        mut data: &[u8],
        way: usize,
        flow: &mut HttpFlow,
        shared: &mut HttpCounts,
    ) -> Option<Verdict> {
        while flow.ways[way].is_reading() {
            let (read, stop) = flow.ways[way].read(&mut flow.head, data, self.header_bytes);
            data = data.get(read..).unwrap_or(&[]);
            let refused = match stop {
                Stop::Empty => return None,
                Stop::Head if way == REQUESTS => self.judge(flow, shared),
                Stop::Head => self.take_response(flow, shared),
                Stop::Malformed => self.refuse_malformed(flow, way, shared),
                Stop::Oversized => {
                    shared.add(Count::Oversized);
                    self.refuse(self.oversized, &mut flow.ways[way], shared)
                }
            };
            if refused.is_some() {
                return refused;
            }
        }
        None
    }

    /// Judges the request whose header section is complete.
    fn judge(&self, flow: &mut HttpFlow, shared: &mut HttpCounts) -> Option<Verdict> {
        let HttpFlow { ways: [way, responses], head, pipeline, decided, .. } = &mut *flow;
        let is_connect = head.method() == b"CONNECT";
        // RFC 9112, section 3.2: a request of HTTP/1.1 without a Host is refused.
        let lacks_host =
            !way.has(mark::HOST) && !way.has(mark::OLD) && !is_planted(Fault::NeedsNoHost);
        // RFC 9110, section 9.3.6: content of a CONNECT means nothing.
        let has_content = way.has(mark::CODING) || way.left > 0;
        let is_ambiguous = way.is_ambiguous() && !is_planted(Fault::AllowsTwoLengths);
        if lacks_host || is_ambiguous || is_connect && has_content {
            return self.refuse_malformed(flow, REQUESTS, shared);
        }
        let host = self.hosts.of(head);
        shared.add(Count::Requests);
        shared.hosts.add(Hosts::requests(host), 1);
        *decided = NO_RULE_ASKED;
        let action = if way.has(mark::LONG) {
            // Counted, and allowed, when it became too long.
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
            // Requests are judged all the same; a tunnel is not seen any more.
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

    /// Takes the response whose header section is complete.
    fn take_response(&self, flow: &mut HttpFlow, shared: &mut HttpCounts) -> Option<Verdict> {
        let HttpFlow { ways: [requests, way], pipeline, .. } = &mut *flow;
        if way.is_ambiguous() {
            return self.refuse_malformed(flow, RESPONSES, shared);
        }
        // A server may give up before it has got a request (408).
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
        // RFC 9112, section 6.3: messages without a body, whatever their fields say.
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
            undecidable,
        })
    }

    fn shared(&self) -> HttpCounts {
        let rules = self.rules.iter().map(|rule| rule.text.as_str()).chain(["default"]);
        HttpCounts {
            messages: Counters::new(count::NAMES),
            rules: Counters::new(rules),
            hosts: self.hosts.counters(),
        }
    }

    fn open(
        &self,
        packet: &Packet,
        shared: &mut HttpCounts,
        cx: &mut Opening<'_>,
    ) -> Open<HttpFlow> {
        // The packet as the functions before this one left it.
        let key = FlowKey::of(packet).unwrap_or(*cx.key());
        let opens = |segment: Segment<'_>| segment.flags & (SYN | ACK) == SYN;
        let opens = Segment::of(packet).is_some_and(opens);
        let mut flow = HttpFlow::opening();
        if key.protocol != u16::from(proto::TCP) {
            return Open::Accept(HttpFlow::default());
        } else if !self.ports.contains(&key.destination_port) {
            // A client may have any port; no server sends a SYN.
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
        // Servers disagree on whether an urgent byte is one of the stream (RFC 6093), and
        // the pointer to it may come before it, or again.
        if flags & (URG | RST) == URG && !is_unread {
            shared.add(Count::Unreadable);
            return Verdict::Drop(DropReason::FunctionDenied);
        }
        if flags & SYN != 0 {
            // The server may take the data of a SYN or not, and nobody here knows.
            if !data.is_empty() {
                shared.add(Count::Unreadable);
                return Verdict::Drop(DropReason::FunctionDenied);
            }
            if flags & RST == 0 && flags & ACK != 0 && cx.direction() == Direction::Reverse {
                if packet.is_intact() == Some(false) {
                    return Verdict::Drop(DropReason::BadChecksum);
                }
                flow.answer(segment.acknowledgement, segment.sequence.wrapping_add(1));
            } else if is_planted(Fault::BelievesClientSyns) && cx.direction() == Direction::Forward
            {
                flow.ways[REQUESTS] = Reader::from(segment.sequence.wrapping_add(1), false);
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
        // Receivers drop such segments (RFC 9293, section 3.10.7.4): what they read at
        // these numbers is still to come.
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
        self.read(data, way, flow, shared).unwrap_or(Verdict::Forward)
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
