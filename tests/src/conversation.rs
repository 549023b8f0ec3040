//! Random TCP conversations between two ends, as a box in the middle sees them. A number
//! determines the conversation.
//!
//! Theory of operation. Each end is a small TCP (RFC 9293, RFC 5961) that is driven by a
//! list of events; the box lets every segment pass and records it. On both sides of the
//! box segments are lost, doubled and reordered. A script makes the ends close, reset or
//! crash, come again from the same port with a higher or lower sequence number, or find
//! no listener. A server may keep no state before its answer is acknowledged (SYN
//! cookies). A blind attacker sends segments in either end's name. The output is the
//! sequence of segments that passed the box: input for a connection tracker.

use std::collections::BTreeMap;

/// TCP flags.
pub mod flags {
    /// FIN.
    pub const FIN: u8 = 1;
    /// SYN.
    pub const SYN: u8 = 2;
    /// RST.
    pub const RST: u8 = 4;
    /// ACK.
    pub const ACK: u8 = 16;
}

use flags::{ACK, FIN, RST, SYN};

/// A segment on its way through the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The segment comes from the client's side.
    pub is_forward: bool,
    /// Neither end has sent the segment.
    pub is_spoofed: bool,
    /// The receiving end made use of the segment, and its sender had not gone on to
    /// another connection when the segment passed.
    pub is_useful: bool,
    /// The number of its sender's connection.
    connection: u32,
    /// See [`flags`].
    pub flags: u8,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number; 0 without the ACK flag.
    pub acknowledgement: u32,
    /// Window, not scaled.
    pub window: u16,
    /// The window scale option, in a SYN.
    pub scale: Option<u8>,
    /// Bytes of data.
    pub len: u16,
}

impl Segment {
    fn end(&self) -> u32 {
        let controls = u32::from(self.flags & SYN != 0) + u32::from(self.flags & FIN != 0);
        self.sequence.wrapping_add(u32::from(self.len)).wrapping_add(controls)
    }
}

/// SplitMix64 (Steele, Lea, Flood).
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True with this probability, in percent.
    fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }
}

fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Listening,
    SynSent,
    SynReceived,
    Open,
    TimeWait,
}

/// Bytes of data in one segment.
const CHUNK: u32 = 600;

/// An end of the conversation.
#[derive(Debug, Clone)]
struct End {
    is_client: bool,
    state: State,
    /// Counts the end's connections, and its times without a connection.
    connection: u32,
    /// The end keeps no state before its answer is acknowledged.
    has_cookies: bool,
    cookies: Vec<u32>,
    initial: u32,
    unacknowledged: u32,
    next: u32,
    expected: u32,
    /// Segments ahead of the expected one: from, to, with a FIN.
    ahead: Vec<(u32, u32, bool)>,
    window: u16,
    scale: Option<u8>,
    scales: bool,
    their_window: u32,
    their_scale: u8,
    /// Bytes that are still to be sent, before a FIN.
    left: u32,
    closes: bool,
    finished: Option<u32>,
    they_finished: bool,
    retries: u32,
}

impl End {
    fn new(is_client: bool, random: &mut Random) -> End {
        End {
            is_client,
            state: if is_client { State::Closed } else { State::Listening },
            connection: 1,
            has_cookies: false,
            cookies: Vec::new(),
            initial: 0,
            unacknowledged: 0,
            next: 0,
            expected: 0,
            ahead: Vec::new(),
            window: [1200, 5000, 29_200, 65_535][random.below(4) as usize],
            scale: [None, Some(0), Some(2), Some(7)][random.below(4) as usize],
            scales: false,
            their_window: 0,
            their_scale: 0,
            left: 0,
            closes: false,
            finished: None,
            they_finished: false,
            retries: 0,
        }
    }

    /// The state that changes with every useful segment.
    fn progress(&self) -> (State, u32, u32, usize, usize) {
        (self.state, self.unacknowledged, self.expected, self.ahead.len(), self.cookies.len())
    }

    /// Forgets the connection, as after a crash.
    fn forget(&mut self, state: State) {
        (self.state, self.finished, self.they_finished, self.closes) = (state, None, false, false);
        self.connection += 1;
        (self.left, self.retries) = (0, 0);
        self.ahead.clear();
        self.cookies.clear();
    }

    fn segment(&self, flags: u8, sequence: u32, acknowledgement: u32, len: u32) -> Segment {
        let has_options = flags & SYN != 0;
        Segment {
            is_forward: self.is_client,
            is_spoofed: false,
            is_useful: false,
            connection: self.connection,
            flags,
            sequence,
            acknowledgement: if flags & ACK != 0 { acknowledgement } else { 0 },
            window: if flags & RST != 0 { 0 } else { self.window },
            scale: self.scale.filter(|_| has_options),
            len: len as u16,
        }
    }

    fn connect(&mut self, initial: u32, bytes: u32, out: &mut Vec<Segment>) {
        self.forget(State::SynSent);
        (self.initial, self.unacknowledged, self.next) =
            (initial, initial, initial.wrapping_add(1));
        self.left = bytes;
        out.push(self.segment(SYN, initial, 0, 0));
    }

    fn acknowledge(&self, out: &mut Vec<Segment>) {
        out.push(self.segment(ACK, self.next, self.expected, 0));
    }

    fn abort(&mut self, out: &mut Vec<Segment>) {
        if matches!(self.state, State::Open | State::SynReceived) {
            let with_ack = if self.next & 1 == 0 { ACK } else { 0 };
            out.push(self.segment(RST | with_ack, self.next, self.expected, 0));
        }
        self.forget(State::Closed);
    }

    fn take_window(&mut self, segment: &Segment) {
        let scale = if segment.flags & SYN != 0 || !self.scales { 0 } else { self.their_scale };
        self.their_window = u32::from(segment.window) << scale;
    }

    fn take_options(&mut self, segment: &Segment) {
        self.scales = self.scale.is_some() && segment.scale.is_some();
        self.their_scale = segment.scale.unwrap_or(0);
    }

    /// Sends as much as the window allows.
    fn pump(&mut self, out: &mut Vec<Segment>) {
        if self.state != State::Open {
            return;
        }
        while self.left > 0 {
            let in_flight = self.next.wrapping_sub(self.unacknowledged);
            let len = self.left.min(CHUNK);
            if in_flight + len > self.their_window.min(8 * CHUNK) {
                return;
            }
            out.push(self.segment(ACK, self.next, self.expected, len));
            self.next = self.next.wrapping_add(len);
            self.left -= len;
        }
        let has_room = self.next.wrapping_sub(self.unacknowledged) < self.their_window;
        if self.closes && self.finished.is_none() && has_room {
            out.push(self.segment(FIN | ACK, self.next, self.expected, 0));
            self.next = self.next.wrapping_add(1);
            self.finished = Some(self.next);
        }
    }

    /// Retransmits after silence.
    fn repeat(&mut self, out: &mut Vec<Segment>) {
        let is_waiting = match self.state {
            State::SynSent | State::SynReceived => true,
            State::Open => self.next != self.unacknowledged,
            _ => false,
        };
        if !is_waiting {
            return;
        }
        self.retries += 1;
        if self.retries > 6 {
            return self.forget(if self.is_client { State::Closed } else { State::Listening });
        }
        match self.state {
            State::SynSent => out.push(self.segment(SYN, self.initial, 0, 0)),
            State::SynReceived => out.push(self.segment(SYN | ACK, self.initial, self.expected, 0)),
            _ => {
                let is_fin = self.finished == Some(self.unacknowledged.wrapping_add(1));
                let end = self.finished.map_or(self.next, |finished| finished.wrapping_sub(1));
                let len = end.wrapping_sub(self.unacknowledged).min(CHUNK);
                let flags = if is_fin { FIN | ACK } else { ACK };
                out.push(self.segment(
                    flags,
                    self.unacknowledged,
                    self.expected,
                    if is_fin { 0 } else { len },
                ));
            }
        }
    }

    fn refuse(&self, segment: &Segment, out: &mut Vec<Segment>) {
        if segment.flags & RST != 0 {
            return;
        }
        out.push(if segment.flags & ACK != 0 {
            self.segment(RST, segment.acknowledgement, 0, 0)
        } else {
            self.segment(RST | ACK, 0, segment.end(), 0)
        });
    }

    /// RFC 9293, section 3.10.7, with RFC 5961.
    fn handle(&mut self, segment: &Segment, random: &mut Random, out: &mut Vec<Segment>) {
        let Segment { flags, sequence, acknowledgement, .. } = *segment;
        match self.state {
            State::Closed => self.refuse(segment, out),
            State::Listening => self.listen(segment, random, out),
            State::SynSent => {
                let is_ours = flags & ACK != 0 && acknowledgement == self.next;
                if flags & ACK != 0 && !is_ours {
                    return self.refuse(segment, out);
                }
                if flags & RST != 0 {
                    if is_ours {
                        self.forget(State::Closed);
                    }
                } else if flags & SYN != 0 {
                    self.expected = sequence.wrapping_add(1);
                    self.take_options(segment);
                    self.take_window(segment);
                    self.retries = 0;
                    if is_ours {
                        (self.state, self.unacknowledged) = (State::Open, acknowledgement);
                        self.acknowledge(out);
                        self.pump(out);
                    } else {
                        self.state = State::SynReceived;
                        out.push(self.segment(SYN | ACK, self.initial, self.expected, 0));
                    }
                }
            }
            State::TimeWait
                if flags & (SYN | ACK | RST) == SYN
                    && (after(sequence, self.expected) || random.percent(50)) =>
            {
                // A newer sequence number, or a newer time stamp (RFC 6191).
                self.forget(State::Listening);
                self.listen(segment, random, out);
            }
            _ => self.handle_open(segment, out),
        }
    }

    fn listen(&mut self, segment: &Segment, random: &mut Random, out: &mut Vec<Segment>) {
        let Segment { flags, sequence, acknowledgement, .. } = *segment;
        let is_answer = flags & (SYN | ACK | RST) == ACK && self.cookies.contains(&acknowledgement);
        if flags & RST != 0 {
            return;
        }
        if flags & ACK != 0 && !is_answer {
            return self.refuse(segment, out);
        }
        if is_answer {
            (self.next, self.unacknowledged) = (acknowledgement, acknowledgement);
            self.expected = sequence;
            self.state = State::Open;
            self.cookies.clear();
            (self.scales, self.their_scale) = (false, 0);
            self.left = CHUNK * random.below(6) as u32;
            return self.handle_open(segment, out);
        }
        if flags & SYN == 0 {
            return;
        }
        let initial = random.next() as u32;
        if self.has_cookies {
            // SYN cookies do not scale windows: the scale would have to be remembered.
            self.scale = None;
            self.cookies.push(initial.wrapping_add(1));
            return out.push(self.segment(SYN | ACK, initial, sequence.wrapping_add(1), 0));
        }
        self.forget(State::SynReceived);
        (self.initial, self.unacknowledged, self.next) =
            (initial, initial, initial.wrapping_add(1));
        self.expected = sequence.wrapping_add(1);
        self.take_options(segment);
        self.take_window(segment);
        self.left = CHUNK * random.below(6) as u32;
        out.push(self.segment(SYN | ACK, initial, self.expected, 0));
    }

    fn handle_open(&mut self, segment: &Segment, out: &mut Vec<Segment>) {
        let Segment { flags, sequence, acknowledgement, .. } = *segment;
        let own = u32::from(self.window) << self.scale.filter(|_| self.scales).unwrap_or(0);
        let (end, limit) = (segment.end(), self.expected.wrapping_add(own));
        let is_inside = !after(self.expected, sequence) && after(limit, sequence)
            || after(end, self.expected) && !after(end, limit);
        if flags & RST != 0 {
            if sequence == self.expected {
                self.forget(if self.is_client { State::Closed } else { State::Listening });
            } else if is_inside {
                self.acknowledge(out);
            }
            return;
        }
        if flags & SYN != 0 {
            return match self.state {
                // A repeated segment of the handshake.
                State::SynReceived
                    if sequence.wrapping_add(1) == self.expected && flags & ACK == 0 =>
                {
                    out.push(self.segment(SYN | ACK, self.initial, self.expected, 0));
                }
                State::SynReceived
                    if sequence.wrapping_add(1) == self.expected
                        && acknowledgement == self.next =>
                {
                    (self.state, self.unacknowledged) = (State::Open, acknowledgement);
                    self.acknowledge(out);
                    self.pump(out);
                }
                _ => self.acknowledge(out),
            };
        }
        if !is_inside {
            return self.acknowledge(out);
        }
        if flags & ACK == 0 {
            return;
        }
        if self.state == State::SynReceived {
            if acknowledgement != self.next {
                return self.refuse(segment, out);
            }
            (self.state, self.retries) = (State::Open, 0);
        }
        if after(acknowledgement, self.next) {
            return self.acknowledge(out);
        }
        if after(acknowledgement, self.unacknowledged) {
            (self.unacknowledged, self.retries) = (acknowledgement, 0);
        }
        self.take_window(segment);
        if segment.len > 0 || flags & FIN != 0 {
            let to = sequence.wrapping_add(u32::from(segment.len));
            self.ahead.push((sequence, to, flags & FIN != 0));
            while let Some(at) = self.ahead.iter().position(|(from, to, fin)| {
                !after(*from, self.expected) && (after(*to, self.expected) || *fin)
            }) {
                let (_, to, fin) = self.ahead.swap_remove(at);
                self.expected = if after(to, self.expected) { to } else { self.expected };
                if fin && to == self.expected && !self.they_finished {
                    self.expected = self.expected.wrapping_add(1);
                    (self.they_finished, self.closes) = (true, true);
                }
            }
            self.acknowledge(out);
        }
        self.pump(out);
        if self.they_finished && self.finished == Some(self.unacknowledged) {
            self.state = State::TimeWait;
        }
    }
}

/// An event in a conversation.
#[derive(Debug, Clone)]
enum Event {
    /// A segment reaches the box.
    Pass(Segment),
    /// A segment that has passed the box reaches its end; the index is that of `passed`.
    Arrive(usize),
    /// An end's retransmission timer.
    Timer(bool),
    /// The client connects.
    Connect,
    /// An end closes; true for the client.
    Close(bool),
    /// An end resets.
    Abort(bool),
    /// An end forgets everything, silently.
    Crash(bool),
    /// A spoofed segment, from an attacker who knows addresses and ports, but no sequence
    /// numbers.
    Spoof,
}

struct World {
    random: Random,
    events: BTreeMap<(u64, u64), Event>,
    count: u64,
    now: u64,
    /// Loss in percent of segments, on each side of the box.
    loss: u64,
    doubled: u64,
    jitter: u64,
    ends: [End; 2],
    passed: Vec<Segment>,
}

/// Number of segments after which a conversation is cut.
const LONGEST: usize = 120;

impl World {
    fn at(&mut self, after: u64, event: Event) {
        self.count += 1;
        self.events.insert((self.now + after, self.count), event);
    }

    fn way(&mut self, event: &Event) {
        let copies = if self.random.percent(self.loss) {
            0
        } else {
            1 + u64::from(self.random.percent(self.doubled))
        };
        for _ in 0..copies {
            let delay = 10 + self.random.below(self.jitter);
            self.at(delay, event.clone());
        }
    }

    fn send(&mut self, out: Vec<Segment>) {
        out.into_iter().for_each(|segment| self.way(&Event::Pass(segment)));
    }

    fn connect(&mut self, out: &mut Vec<Segment>) {
        let before = self.ends[0].next;
        let initial = match self.random.below(4) {
            0 => before.wrapping_add(self.random.below(1 << 30) as u32),
            1 => before.wrapping_sub(self.random.below(1 << 30) as u32),
            2 => before.wrapping_sub(self.random.below(4000) as u32),
            _ => self.random.next() as u32,
        };
        let bytes = CHUNK * self.random.below(8) as u32;
        self.ends[0].connect(initial, bytes, out);
    }

    fn spoof(&mut self) -> Segment {
        let choices = [SYN, SYN | ACK, ACK, ACK, FIN | ACK, RST, RST, RST | ACK, FIN, SYN | FIN, 0];
        let flags = choices[self.random.below(choices.len() as u64) as usize];
        Segment {
            is_forward: self.random.percent(50),
            is_spoofed: true,
            is_useful: false,
            connection: 0,
            flags,
            sequence: self.random.next() as u32,
            acknowledgement: if flags & ACK != 0 { self.random.next() as u32 } else { 0 },
            window: 4000,
            scale: None,
            len: if flags & ACK != 0 && flags & (SYN | RST) == 0 {
                self.random.below(3) as u16 * 100
            } else {
                0
            },
        }
    }

    fn step(&mut self, event: Event) {
        let mut out = Vec::new();
        match event {
            Event::Pass(mut segment) => {
                let is_late =
                    segment.connection != self.ends[usize::from(!segment.is_forward)].connection;
                segment.connection = if is_late { 0 } else { segment.connection };
                self.passed.push(segment);
                // A segment that should not pass the box has no effect.
                if !segment.is_spoofed || segment.is_forward && segment.flags == SYN {
                    self.way(&Event::Arrive(self.passed.len() - 1));
                }
            }
            Event::Arrive(at) => {
                let segment = self.passed[at];
                let end = &mut self.ends[usize::from(segment.is_forward)];
                let before = end.progress();
                end.handle(&segment, &mut self.random, &mut out);
                let is_of_use = end.progress() != before;
                self.passed[at].is_useful |= is_of_use && segment.connection != 0;
            }
            Event::Timer(is_client) => {
                self.ends[usize::from(!is_client)].repeat(&mut out);
                self.at(400, Event::Timer(is_client));
            }
            Event::Connect => self.connect(&mut out),
            Event::Close(is_client) => {
                let end = &mut self.ends[usize::from(!is_client)];
                end.closes = true;
                end.pump(&mut out);
            }
            Event::Abort(is_client) => self.ends[usize::from(!is_client)].abort(&mut out),
            Event::Crash(is_client) => {
                self.ends[usize::from(!is_client)].forget(if is_client {
                    State::Closed
                } else {
                    State::Listening
                });
            }
            Event::Spoof => {
                let segment = self.spoof();
                self.step(Event::Pass(segment));
            }
        }
        self.send(out);
    }
}

/// The segments of this conversation that reach the box, in order.
pub fn conversation(number: u64) -> Vec<Segment> {
    let mut random = Random(number.wrapping_mul(0xd134_2543_de82_ef95));
    let ends = [End::new(true, &mut random), End::new(false, &mut random)];
    let (loss, doubled) =
        ([0, 0, 3, 15, 40][random.below(5) as usize], [0, 0, 3, 20][random.below(4) as usize]);
    let jitter = [1, 30, 300, 900][random.below(4) as usize];
    let passed = Vec::new();
    let mut world = World {
        random,
        events: BTreeMap::new(),
        count: 0,
        now: 0,
        loss,
        doubled,
        jitter,
        ends,
        passed,
    };
    world.ends[1].has_cookies = world.random.percent(15);
    if world.random.percent(8) {
        world.ends[1].state = State::Closed;
    }
    world.at(0, Event::Connect);
    for is_client in [true, false] {
        world.at(400, Event::Timer(is_client));
    }
    // As if the box had slept: only one end still has an earlier connection.
    if world.random.percent(8) {
        let old = world.random.next() as u32;
        let server = &mut world.ends[1];
        (server.state, server.next, server.unacknowledged) = (State::Open, old, old);
        server.expected = old.rotate_left(16);
    }
    for _ in 0..1 + world.random.below(4) {
        let is_client = world.random.percent(50);
        let event = match world.random.below(10) {
            0..4 => Event::Close(is_client),
            4..6 => Event::Abort(is_client),
            6..8 => Event::Crash(is_client),
            _ => Event::Connect,
        };
        let when = 50 + world.random.below(2500);
        let again = matches!(event, Event::Crash(true) | Event::Abort(_) | Event::Close(_))
            && world.random.percent(70);
        world.at(when, event);
        if again {
            let pause = 20 + world.random.below(2000);
            world.at(when + pause, Event::Connect);
        }
    }
    if world.random.percent(30) {
        for _ in 0..world.random.below(6) {
            let when = world.random.below(3000);
            world.at(when, Event::Spoof);
        }
    }
    while let Some(((at, _), event)) = world.events.pop_first() {
        world.now = at;
        if at > 8000 || world.passed.len() >= LONGEST {
            break;
        }
        world.step(event);
    }
    world.passed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number always gives the same conversation, and a thousand conversations contain
    /// every kind of segment that the box must know.
    #[test]
    fn conversations_are_of_every_kind() {
        let mut kinds = BTreeMap::new();
        for number in 0..1000 {
            let segments = conversation(number);
            assert_eq!(segments, conversation(number));
            for segment in segments {
                *kinds
                    .entry((segment.is_forward, segment.flags, segment.is_spoofed))
                    .or_insert(0) += 1;
            }
        }
        for is_forward in [true, false] {
            for flags in [ACK, FIN | ACK, RST, RST | ACK] {
                assert!(
                    kinds.get(&(is_forward, flags, false)).is_some_and(|count| *count > 20),
                    "{is_forward} {flags}: {kinds:?}"
                );
            }
        }
        assert!(
            kinds[&(true, SYN, false)] > 1000 && kinds[&(false, SYN | ACK, false)] > 1000,
            "{kinds:?}"
        );
    }
}
