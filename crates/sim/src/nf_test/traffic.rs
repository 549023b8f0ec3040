//! Packets for a function on a bench: connections of several kinds from inside, with the
//! replies that their servers give to what comes out, time between them, and now and then
//! something odd.
//!
//! In: a seed, and what came out of each packet. Out: the next packet. A packet that is
//! dropped comes again a few times, as a client's would; then its connection is over.

use crate::frames::{self, End};
use crate::random::Random;
use holdfast_wire::checksum;
use holdfast_wire::header::tcp_flags::{ACK, FIN, PSH, RST, SYN, URG};
use holdfast_wire::header::{Ipv6, Udp, proto};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
/// Connections at a time.
const MOST: usize = 48;
/// A connection is over when so many packets of it have been dropped in a row.
const MAX_DROPS: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tcp,
    Udp,
    /// UDP, in fragments.
    Large,
    Echo,
    /// UDP over IPv6.
    Six,
}

#[derive(Debug, Clone)]
struct Talk {
    kind: Kind,
    client: End,
    server: End,
    /// The first packet as it came out, and its ends.
    outside: Option<(Vec<u8>, End, End)>,
    /// Number of the next packet, and of the last.
    turn: u32,
    last: u32,
    /// Next sequence numbers of client and server.
    sequence: [u32; 2],
    dropped: u32,
}

/// The packets, see the module.
pub(super) struct Traffic {
    random: Random,
    talks: Vec<Talk>,
    opened: u32,
    /// The connection of the packet that was sent last; `None` for an odd one.
    spoke: Option<usize>,
    /// Fragments to be sent before anything else.
    queue: VecDeque<Vec<u8>>,
}

impl Traffic {
    pub(super) fn new(seed: u64) -> Traffic {
        Traffic {
            random: Random::new(seed),
            talks: Vec::new(),
            opened: 0,
            spoke: None,
            queue: VecDeque::new(),
        }
    }

    /// The first packets of `count` flows.
    pub(super) fn openings(seed: u64, count: usize) -> Vec<Vec<u8>> {
        let mut traffic = Traffic::new(seed);
        let opening = |_| {
            let mut talk = traffic.open();
            // A flow is opened by its first fragment.
            if talk.kind == Kind::Large {
                talk.kind = Kind::Udp;
            }
            talk.next(&mut traffic.random)
        };
        (0..count).map(opening).collect()
    }

    /// Time until the next packet, ns, and the packet.
    pub(super) fn poll(&mut self) -> (u64, Vec<u8>) {
        let pause = match self.random.range(0, 400) {
            0 => self.random.range(20, 500) * SECOND,
            _ => self.random.range(0, 40) * MILLISECOND,
        };
        if let Some(fragment) = self.queue.pop_front() {
            self.spoke = None;
            return (pause, fragment);
        }
        if self.random.chance(15) {
            self.spoke = None;
            return (pause, self.odd());
        }
        let is_full = self.talks.len() >= MOST;
        if !is_full && (self.talks.len() < 4 || self.random.chance(120)) {
            let talk = self.open();
            self.talks.push(talk);
        }
        let at = self.random.range(0, self.talks.len() as u64) as usize;
        self.spoke = Some(at);
        let frame = self.talks[at].next(&mut self.random);
        if self.talks[at].kind != Kind::Large {
            return (pause, frame);
        }
        let id = self.opened as u16 ^ self.talks[at].turn as u16;
        self.queue.extend(frames::split(&frame, id, 24, 2));
        (pause, self.queue.pop_front().unwrap_or(frame))
    }

    /// Takes what came out of the last packet; `None` if it was dropped.
    pub(super) fn handle_sent(&mut self, out: Option<&[u8]>) {
        let Some(at) = self.spoke else { return };
        let talk = &mut self.talks[at];
        match out {
            Some(frame) => talk.handle_sent(frame),
            None => talk.dropped += 1,
        }
        if talk.dropped == MAX_DROPS || talk.turn > talk.last {
            self.talks.swap_remove(at);
        }
    }

    /// A packet in words.
    pub(super) fn described(&self, frame: &[u8]) -> String {
        match frame.get(12..14) {
            Some([0x86, 0xdd]) => format!("UDP over IPv6, {} bytes", frame.len()),
            _ => frames::describe(frame),
        }
    }

    fn open(&mut self) -> Talk {
        self.opened += 1;
        let random = &mut self.random;
        let kinds = [
            Kind::Tcp,
            Kind::Tcp,
            Kind::Tcp,
            Kind::Udp,
            Kind::Udp,
            Kind::Large,
            Kind::Echo,
            Kind::Six,
        ];
        let kind = kinds[random.range(0, kinds.len() as u64) as usize];
        let port = 1024 + (self.opened % 60_000) as u16;
        let client = ([10, 0, random.range(0, 2) as u8, random.range(2, 30) as u8], port);
        let server = match kind {
            Kind::Tcp => ([203, 0, 113, 10], 80),
            Kind::Echo => ([203, 0, 113, 10], frames::echo_port(port)),
            _ => ([203, 0, 113, 20], 53),
        };
        let last = random.range(1, 24) as u32;
        let last = if kind == Kind::Tcp { last + 5 } else { last };
        let sequence = [random.draw() as u32, random.draw() as u32];
        Talk { kind, client, server, outside: None, turn: 0, last, sequence, dropped: 0 }
    }

    /// A packet that no ordinary client sends.
    fn odd(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        let client = ([10, 0, 0, random.range(2, 30) as u8], random.range(0, 1 << 16) as u16);
        let server = ([203, 0, 113, random.range(9, 12) as u8], random.range(0, 1024) as u16);
        let flags =
            [0, SYN | FIN, SYN | ACK, RST, ACK, URG | PSH | FIN][random.range(0, 6) as usize];
        let numbers = [random.draw() as u32, random.draw() as u32];
        match random.range(0, 4) {
            0 => frames::udp(client, server, &[]),
            1 => frames::udp(server, client, b"nobody has asked"),
            2 => frames::tcp(server, client, flags, numbers[0], numbers[1], &[]),
            _ => frames::tcp(client, server, flags, numbers[0], numbers[1], b"?"),
        }
    }
}

impl Talk {
    /// True if the server sends the next packet.
    fn is_reply(&self) -> bool {
        self.turn % 2 == 1
    }

    /// The next packet of the connection.
    fn next(&self, random: &mut Random) -> Vec<u8> {
        let (from, to) = match &self.outside {
            Some((_, source, destination)) if self.is_reply() => (*destination, *source),
            _ => (self.client, self.server),
        };
        let payload = [self.turn as u8, random.draw() as u8, random.draw() as u8, b'\n'];
        match self.kind {
            Kind::Tcp => self.segment(from, to),
            Kind::Udp => frames::udp(from, to, &payload),
            Kind::Large => frames::udp(from, to, &[self.turn as u8; 120]),
            Kind::Echo => frames::echo(from, to, &payload),
            Kind::Six => match &self.outside {
                Some((frame, ..)) if self.is_reply() => mirrored(frame),
                _ => six(self.client, self.server, &payload),
            },
        }
    }

    fn segment(&self, from: End, to: End) -> Vec<u8> {
        let way = usize::from(self.is_reply());
        let [sequence, acknowledged] = [self.sequence[way], self.sequence[1 - way]];
        let (flags, data) = self.content();
        let acknowledged = if flags & ACK == 0 { 0 } else { acknowledged };
        frames::tcp(from, to, flags, sequence, acknowledged, &data)
    }

    /// The flags and data of the next segment: a handshake, requests and responses, and
    /// an end.
    fn content(&self) -> (u8, Vec<u8>) {
        let left = self.last - self.turn;
        match (self.turn, left) {
            (0, _) => (SYN, Vec::new()),
            (1, _) => (SYN | ACK, Vec::new()),
            (2, _) | (_, 0) => (ACK, Vec::new()),
            (_, 1 | 2) => (FIN | ACK, Vec::new()),
            _ if self.is_reply() => {
                (PSH | ACK, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec())
            }
            (turn, _) => {
                let request = format!("GET /{turn} HTTP/1.1\r\nHost: example.org\r\n\r\n");
                (PSH | ACK, request.into_bytes())
            }
        }
    }

    fn handle_sent(&mut self, frame: &[u8]) {
        if self.outside.is_none() {
            let ends = frames::look(frame).map(|seen| (seen.source, seen.destination));
            let (source, destination) = ends.unwrap_or((self.client, self.server));
            self.outside = Some((frame.to_vec(), source, destination));
        }
        if self.kind == Kind::Tcp {
            let (flags, data) = self.content();
            let way = usize::from(self.is_reply());
            let counted = data.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
            self.sequence[way] = self.sequence[way].wrapping_add(counted);
        }
        (self.turn, self.dropped) = (self.turn + 1, 0);
    }
}

/// An address of IPv6 that stands for one of IPv4.
fn in_six([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
}

fn six(source: End, destination: End, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let header = Ipv6 {
        version_class_flow: (6 << 28).into(),
        payload_len: len.into(),
        next_header: proto::UDP,
        hop_limit: 64,
        source: in_six(source.0),
        destination: in_six(destination.0),
    };
    let udp = Udp {
        source: source.1.into(),
        destination: destination.1.into(),
        len: len.into(),
        checksum: 0.into(),
    };
    let mut segment = udp.as_bytes().to_vec();
    segment.extend_from_slice(payload);
    let sum = checksum::transport(&header.source, &header.destination, proto::UDP, &segment);
    let sum = if sum == 0 { 0xffff } else { sum };
    segment[6..8].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
    frame.extend_from_slice(header.as_bytes());
    frame.extend_from_slice(&segment);
    frame
}

/// A UDP packet over IPv6, sent back: no checksum changes when both ends do.
fn mirrored(frame: &[u8]) -> Vec<u8> {
    let mut back = frame.to_vec();
    let pairs = [(22..38, 38..54), (54..56, 56..58)];
    for (one, two) in pairs {
        if let (Some(one_was), Some(two_was)) = (frame.get(one.clone()), frame.get(two.clone())) {
            back[one].copy_from_slice(two_was);
            back[two].copy_from_slice(one_was);
        }
    }
    back
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_nf::Chain;
    use holdfast_nf::bench::Bench;
    use serde_json::json;

    /// Connections of every kind go through a chain that translates them, from the first
    /// packet to the last, and few packets are dropped.
    #[test]
    fn connections_go_on_until_their_end() {
        let nat = json!({ "pool": ["198.51.100.4"], "inside": ["10.0.0.0/8"] });
        let nat = holdfast_functions::catalog::build("nat", &nat).expect("it is right");
        let mut bench = Bench::new(Chain::new(vec![nat]));
        let mut traffic = Traffic::new(5);
        let (mut passed, mut fragments, mut six) = (0, 0, 0);
        for _ in 0..4000 {
            let (pause, frame) = traffic.poll();
            bench.wait(pause);
            let sent = bench.send(&frame);
            passed += u32::from(sent.is_ok());
            fragments += u32::from(frames::look(&frame).is_some_and(|seen| seen.is_later));
            six += u32::from(frame[12] == 0x86);
            traffic.handle_sent(sent.as_deref().ok());
        }
        assert!(passed > 3000, "only {passed} pass");
        assert!(
            traffic.opened > 200 && fragments > 200 && six > 20,
            "{} {fragments} {six}",
            traffic.opened
        );
    }
}
