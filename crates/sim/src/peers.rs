//! Clients and servers: scripts that behave as a kernel's TCP and UDP would.
//!
//! A connection to an end with a limit is to be reset in its middle. Its client and its
//! server take resets as RFC 9293, section 3.10.7, and RFC 5961, section 3.2, say. On
//! every other connection any reset is an error.

use crate::frames::{self, End, Seen};
use crate::plan::Reset;
use crate::refuser::{SHUT, limit};
use holdfast_wire::header::{proto, tcp_flags};
use std::collections::BTreeMap;

const MILLISECOND: u64 = 1_000_000;

/// Server address that never answers.
pub const SILENT: End = ([192, 0, 2, 7], 9);

/// Bytes in one segment or datagram.
const CHUNK: usize = 200;

/// The byte that a connection carries at an offset of its stream.
fn content(connection: u32, offset: u32) -> u8 {
    (offset.wrapping_mul(31) ^ connection.wrapping_mul(131)) as u8
}

fn chunk(connection: u32, offset: u32) -> Vec<u8> {
    (0..CHUNK as u32).map(|at| content(connection, offset + at)).collect()
}

/// The window that every TCP of this world announces, bytes.
const WINDOW: u32 = 0xffff;

/// Judges a reset with this sequence number at a synchronised end that expects `expected`
/// (RFC 5961, section 3.2).
fn judge(sequence: u32, expected: u32) -> Reset {
    match sequence.wrapping_sub(expected) {
        0 => Reset::Exact,
        ahead if ahead < WINDOW => Reset::Challenged,
        _ => Reset::Ignored,
    }
}

/// Progress of a client's script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The script is under way.
    Running,
    /// Everything was sent and answered.
    Done,
    /// The connection was reset, or got bytes that were never sent.
    Broken(&'static str),
}

/// A connection between one client and the server.
pub(crate) enum Client {
    Tcp(TcpClient),
    Udp(UdpClient),
}

/// Opens a connection, sends `chunks` chunks one at a time, each echoed by the server,
/// then closes.
pub(crate) struct TcpClient {
    pub(crate) id: u32,
    pub(crate) local: End,
    pub(crate) remote: End,
    chunks: u32,
    initial: u32,
    sent: u32,
    their_next: u32,
    established: bool,
    echoed: u32,
    pause: u64,
    pub(crate) due: u64,
    retries: u32,
    /// The connection has a limit, and was reset.
    was_reset: bool,
    pub(crate) progress: Progress,
}

impl TcpClient {
    pub(crate) fn new(
        id: u32,
        local: End,
        remote: End,
        chunks: u32,
        initial: u32,
        start: u64,
        pause: u64,
    ) -> TcpClient {
        TcpClient {
            id,
            local,
            remote,
            chunks,
            initial,
            sent: 0,
            their_next: 0,
            established: false,
            echoed: 0,
            pause,
            due: start,
            retries: 0,
            was_reset: false,
            progress: Progress::Running,
        }
    }

    /// The client's judgement of a reset. `None` for any other segment, and if no reset
    /// is expected.
    fn judges(&self, seen: &Seen<'_>) -> Option<Reset> {
        let is_expected = limit(self.remote).is_some() && self.progress == Progress::Running;
        if !is_expected || seen.flags & tcp_flags::RST == 0 {
            return None;
        }
        Some(match self.established {
            true => judge(seen.sequence, self.their_next),
            // Before the client is synchronised, a reset has to acknowledge its SYN.
            false
                if seen.flags & tcp_flags::ACK != 0
                    && seen.acknowledgement == self.initial.wrapping_add(1) =>
            {
                Reset::Exact
            }
            false => Reset::Ignored,
        })
    }

    fn on_reset(&mut self, how: Reset) -> Option<Vec<u8>> {
        match how {
            Reset::Exact => {
                (self.was_reset, self.progress) = (true, Progress::Done);
                None
            }
            Reset::Challenged => {
                let next = self.initial.wrapping_add(1).wrapping_add(self.sent * CHUNK as u32);
                Some(self.segment(tcp_flags::ACK, next, &[]))
            }
            Reset::Ignored => None,
        }
    }

    fn segment(&self, flags: u8, sequence: u32, payload: &[u8]) -> Vec<u8> {
        frames::tcp(self.local, self.remote, flags, sequence, self.their_next, payload)
    }

    /// The segment to send when the timer is due. Sets the timer again.
    fn on_timer(&mut self, now: u64) -> Option<Vec<u8>> {
        if self.progress != Progress::Running {
            self.due = u64::MAX;
            return None;
        }
        self.due = now + ((200 * MILLISECOND) << self.retries.min(3));
        self.retries += 1;
        if !self.established {
            return Some(self.segment(tcp_flags::SYN, self.initial, &[]));
        }
        self.sent = self.sent.max(self.echoed + 1).min(self.chunks);
        let offset = (self.sent - 1) * CHUNK as u32;
        let sequence = self.initial.wrapping_add(1).wrapping_add(offset);
        Some(self.segment(tcp_flags::ACK | tcp_flags::PSH, sequence, &chunk(self.id, offset)))
    }

    /// Whether this sequence number is one that the client has sent.
    fn has_sent(&self, sequence: u32) -> bool {
        sequence.wrapping_sub(self.initial) <= (self.chunks + 1) * CHUNK as u32
    }

    /// Whether the client has acknowledged everything before this sequence number.
    fn has_asked_for(&self, sequence: u32) -> bool {
        self.established
            && self.their_next.wrapping_sub(sequence) <= (self.chunks + 1) * CHUNK as u32
    }

    fn on_frame(&mut self, seen: Seen<'_>, now: u64) -> Option<Vec<u8>> {
        if self.was_reset && seen.flags & tcp_flags::RST == 0 {
            // The client has no connection any more.
            return Some(frames::tcp(
                self.local,
                self.remote,
                tcp_flags::RST,
                seen.acknowledgement,
                0,
                &[],
            ));
        }
        if self.progress != Progress::Running {
            return None;
        }
        if let Some(how) = self.judges(&seen) {
            return self.on_reset(how);
        }
        if seen.flags & tcp_flags::RST != 0 {
            self.progress = Progress::Broken("reset");
            return None;
        }
        if seen.flags & tcp_flags::SYN != 0 {
            if !self.established {
                self.established = true;
                self.their_next = seen.sequence.wrapping_add(1);
                self.retries = 0;
                self.due = now + self.pause;
            }
            return Some(self.segment(tcp_flags::ACK, self.initial.wrapping_add(1), &[]));
        }
        if seen.payload.is_empty() || seen.sequence != self.their_next {
            return None;
        }
        if seen.payload != chunk(self.id, self.echoed * CHUNK as u32) {
            self.progress = Progress::Broken("wrong bytes");
            return None;
        }
        self.echoed += 1;
        self.their_next = self.their_next.wrapping_add(seen.payload.len() as u32);
        self.retries = 0;
        self.due = now + self.pause;
        let sequence = self.initial.wrapping_add(1).wrapping_add(self.echoed * CHUNK as u32);
        if self.echoed == self.chunks {
            self.progress = Progress::Done;
        }
        Some(self.segment(tcp_flags::ACK, sequence, &[]))
    }
}

/// Bytes of a datagram's payload in which a chain may write.
pub(crate) const WRITTEN: usize = 24;
/// The longest payload, bytes.
const LONGEST: usize = WRITTEN + 12 * 8;

/// The payload of a connection's datagram: connection and number, then room for what the
/// chain writes. A large one repeats connection and number, so that every fragment shows
/// its datagram.
fn payload(id: u32, number: u32, is_large: bool) -> Vec<u8> {
    let mut name = id.to_be_bytes().to_vec();
    name.extend_from_slice(&number.to_be_bytes());
    let len =
        if is_large { WRITTEN + 8 * (4 + (id.wrapping_add(number) % 9) as usize) } else { WRITTEN };
    let mut payload = name.repeat(LONGEST / 8);
    payload.truncate(len);
    payload[8..WRITTEN].fill(0);
    payload
}

/// Whether all of this payload belongs to one datagram.
pub(crate) fn is_one(payload: &[u8]) -> bool {
    let Some((name, rest)) = payload.split_first_chunk::<8>() else { return false };
    rest.get(WRITTEN - 8..).is_some_and(|rest| rest.chunks(8).all(|chunk| chunk == name))
}

/// Sends numbered datagrams, or echo requests, and collects what comes back.
pub(crate) struct UdpClient {
    pub(crate) id: u32,
    pub(crate) local: End,
    pub(crate) remote: End,
    protocol: u8,
    is_large: bool,
    datagrams: u32,
    sent: u32,
    answered: u32,
    pause: u64,
    pub(crate) due: u64,
    pub(crate) progress: Progress,
}

impl UdpClient {
    pub(crate) fn new(
        id: u32,
        (local, remote, protocol): (End, End, u8),
        is_large: bool,
        datagrams: u32,
        start: u64,
        pause: u64,
    ) -> UdpClient {
        let (progress, due) = (Progress::Running, start);
        UdpClient {
            id,
            local,
            remote,
            protocol,
            is_large,
            datagrams,
            sent: 0,
            answered: 0,
            pause,
            due,
            progress,
        }
    }

    fn on_timer(&mut self, now: u64) -> Option<Vec<u8>> {
        if self.progress != Progress::Running {
            self.due = u64::MAX;
            return None;
        }
        self.due = now + self.pause;
        self.sent += 1;
        let payload = payload(self.id, self.sent, self.is_large);
        Some(frames::datagram(self.protocol, self.local, self.remote, &payload))
    }

    /// A client whose datagrams are all rejected is done once it has sent all and one is
    /// rejected.
    fn on_refusal(&mut self) {
        if self.remote == SHUT && self.sent >= self.datagrams && self.progress == Progress::Running
        {
            self.progress = Progress::Done;
        }
    }

    fn on_frame(&mut self, seen: Seen<'_>) {
        if seen.payload.get(..4) != Some(&self.id.to_be_bytes()) {
            self.progress = Progress::Broken("another client's datagram");
            return;
        }
        if !is_one(seen.payload) {
            self.progress = Progress::Broken("a datagram made of two");
            return;
        }
        self.answered += 1;
        // Datagrams may be lost. The flow lives if answers still come after all were sent
        // once.
        if self.sent >= self.datagrams && self.progress == Progress::Running {
            self.progress = Progress::Done;
        }
    }
}

impl Client {
    pub(crate) fn due(&self) -> u64 {
        match self {
            Client::Tcp(client) => client.due,
            Client::Udp(client) => client.due,
        }
    }

    pub(crate) fn progress(&self) -> Progress {
        match self {
            Client::Tcp(client) => client.progress,
            Client::Udp(client) => client.progress,
        }
    }

    pub(crate) fn ends(&self) -> (End, End, u8) {
        match self {
            Client::Tcp(client) => (client.local, client.remote, proto::TCP),
            Client::Udp(client) => (client.local, client.remote, client.protocol),
        }
    }

    /// Whether the client's host is inside, behind the chains.
    pub(crate) fn is_inside(&self) -> bool {
        is_inside(self.ends().0)
    }

    pub(crate) fn id(&self) -> u32 {
        match self {
            Client::Tcp(client) => client.id,
            Client::Udp(client) => client.id,
        }
    }

    pub(crate) fn on_timer(&mut self, now: u64) -> Option<Vec<u8>> {
        match self {
            Client::Tcp(client) => client.on_timer(now),
            Client::Udp(client) => client.on_timer(now),
        }
    }

    /// Whether this is a segment that the client may have sent.
    pub(crate) fn has_sent(&self, seen: &Seen<'_>) -> bool {
        let Client::Tcp(client) = self else { return false };
        (client.local, client.remote) == (seen.source, seen.destination)
            && client.has_sent(seen.sequence)
    }

    /// Packet limit of the client's connection, if it has one.
    pub(crate) fn limit(&self) -> Option<u64> {
        let Client::Tcp(client) = self else { return None };
        limit(client.remote)
    }

    /// True if the connection has a limit, and was reset.
    pub(crate) fn was_reset(&self) -> bool {
        matches!(self, Client::Tcp(client) if client.was_reset)
    }

    /// The client's judgement of a reset that may come. `None` for any other segment.
    pub(crate) fn judges(&self, seen: &Seen<'_>) -> Option<Reset> {
        let Client::Tcp(client) = self else { return None };
        client.judges(seen)
    }

    /// Whether this segment belongs to the client's connection, which has a limit. Either
    /// end may have sent it, with the ends as that one knows them.
    pub(crate) fn is_limited_one(&self, seen: &Seen<'_>) -> bool {
        let Client::Tcp(client) = self else { return false };
        let is_own = (client.local, client.remote) == (seen.source, seen.destination);
        // A reset without an acknowledgement has the number that its receiver had asked
        // for.
        let is_answer = match seen.flags & (tcp_flags::RST | tcp_flags::ACK) {
            tcp_flags::RST => client.has_asked_for(seen.sequence),
            _ => client.has_sent(seen.acknowledgement),
        };
        limit(client.remote).is_some() && (is_own || seen.source == client.remote && is_answer)
    }

    /// A packet of the client was refused.
    pub(crate) fn on_refusal(&mut self) {
        if let Client::Udp(client) = self {
            client.on_refusal();
        }
    }

    pub(crate) fn on_frame(&mut self, seen: Seen<'_>, now: u64) -> Option<Vec<u8>> {
        match self {
            Client::Tcp(client) => client.on_frame(seen, now),
            Client::Udp(client) => {
                client.on_frame(seen);
                None
            }
        }
    }
}

/// Whether this end's host is inside, behind the chains.
pub(crate) fn is_inside((address, _): End) -> bool {
    address[0] == 10
}

/// The client of a packet that has passed a chain, and its direction: from the client (0)
/// or to it (1).
pub(crate) fn whose<'a>(clients: &'a [Client], seen: &Seen<'_>) -> Option<(&'a Client, usize)> {
    let client = match seen.protocol {
        proto::TCP => clients.iter().find(|client| match client {
            Client::Tcp(tcp) => {
                (tcp.local, tcp.remote) == (seen.destination, seen.source)
                    || tcp.has_sent(seen.sequence)
            }
            Client::Udp(_) => false,
        })?,
        _ => {
            let id = u32::from_be_bytes(*seen.payload.first_chunk()?);
            clients.iter().find(|client| client.id() == id && client.ends().2 == seen.protocol)?
        }
    };
    Some((client, usize::from(client.ends().0.0 == seen.destination.0)))
}

struct Served {
    initial: u32,
    next: u32,
    their_next: u32,
    /// The connection has a limit, and was reset.
    was_reset: bool,
}

impl Served {
    fn new(initial: u32) -> Served {
        Served { initial, next: initial.wrapping_add(1), their_next: 0, was_reset: false }
    }
}

/// All servers at once. Echoes per switch and per connection, with its ends as a server
/// sees them after translation.
#[derive(Default)]
pub(crate) struct Server {
    connections: BTreeMap<(u16, End, End), Served>,
}

impl Server {
    /// Whether a server has sent this segment by this switch. Always false for a reset.
    pub(crate) fn has_sent(&self, switch: u16, seen: &Seen<'_>) -> bool {
        let served = self.connections.get(&(switch, seen.destination, seen.source));
        served.is_some_and(|served| {
            let [from, until] =
                [seen.sequence, served.next].map(|sequence| sequence.wrapping_sub(served.initial));
            from.saturating_add(seen.payload.len() as u32) <= until
                && seen.flags & tcp_flags::RST == 0
        })
    }

    /// The connection of a client, if that has a limit, with its ends as the server knows
    /// them.
    fn limited(&self, switch: u16, client: &Client) -> Option<(&(u16, End, End), &Served)> {
        let Client::Tcp(client) = client else { return None };
        let is_it = |(ends, served): &(&(u16, End, End), &Served)| {
            (ends.0, ends.2) == (switch, client.remote) && client.has_sent(served.their_next)
        };
        self.connections.iter().find(is_it).filter(|_| limit(client.remote).is_some())
    }

    /// Whether the server has had a segment of the client's connection, which has a
    /// limit.
    pub(crate) fn has_heard_of(&self, switch: u16, client: &Client) -> bool {
        self.limited(switch, client).is_some()
    }

    /// The server's keep-alive for a connection with a limit that has been silent for
    /// long (RFC 9293, section 3.8.4). `None` if the server has no such connection.
    pub(crate) fn keep_alive(&self, switch: u16, client: &Client) -> Option<Vec<u8>> {
        let ((_, source, destination), served) = self.limited(switch, client)?;
        let probe = || {
            frames::tcp(
                *destination,
                *source,
                tcp_flags::ACK,
                served.next.wrapping_sub(1),
                served.their_next,
                &[],
            )
        };
        (!served.was_reset).then(probe)
    }

    /// The server's judgement of a reset that may come. `None` for any other segment.
    pub(crate) fn judges(&self, switch: u16, seen: &Seen<'_>) -> Option<Reset> {
        let served = self
            .connections
            .get(&(switch, seen.source, seen.destination))
            .filter(|served| !served.was_reset)?;
        let may_come = seen.flags & tcp_flags::RST != 0 && limit(seen.destination).is_some();
        may_come.then(|| judge(seen.sequence, served.their_next))
    }

    pub(crate) fn on_frame(&mut self, switch: u16, seen: Seen<'_>, random: u32) -> Option<Vec<u8>> {
        if seen.destination == SILENT {
            return None;
        }
        if seen.protocol != proto::TCP {
            let is_asked = seen.protocol == proto::UDP
                || seen.destination.1 == frames::echo_port(seen.source.1);
            return is_asked.then(|| {
                frames::datagram(seen.protocol, seen.destination, seen.source, seen.payload)
            });
        }
        let ends = (switch, seen.source, seen.destination);
        let reply = |served: &Served, flags: u8, sequence: u32, payload: &[u8]| {
            Some(frames::tcp(ends.2, ends.1, flags, sequence, served.their_next, payload))
        };
        if seen.flags & tcp_flags::RST != 0 && limit(seen.destination).is_some() {
            let how = self.judges(switch, &seen)?;
            let served = self.connections.get_mut(&ends)?;
            served.was_reset = how == Reset::Exact;
            return if how == Reset::Challenged {
                reply(served, tcp_flags::ACK, served.next, &[])
            } else {
                None
            };
        }
        if seen.flags & tcp_flags::SYN != 0 {
            let served = self.connections.entry(ends).or_insert_with(|| Served::new(random));
            if served.was_reset {
                *served = Served::new(random);
            }
            // A SYN with another sequence number begins the connection anew.
            if served.their_next != seen.sequence.wrapping_add(1)
                && served.next == served.initial.wrapping_add(1)
            {
                served.their_next = seen.sequence.wrapping_add(1);
            }
            let initial = served.initial;
            return reply(served, tcp_flags::SYN | tcp_flags::ACK, initial, &[]);
        }
        let Some(served) = self.connections.get_mut(&ends).filter(|served| !served.was_reset)
        else {
            return Some(frames::tcp(ends.2, ends.1, tcp_flags::RST, seen.acknowledgement, 0, &[]));
        };
        if seen.payload.is_empty() {
            return None;
        }
        if seen.sequence == served.their_next {
            served.their_next = served.their_next.wrapping_add(seen.payload.len() as u32);
            let sequence = served.next;
            served.next = served.next.wrapping_add(seen.payload.len() as u32);
            return reply(served, tcp_flags::ACK | tcp_flags::PSH, sequence, seen.payload);
        }
        // The server has that chunk already: the echo was lost, so it is sent again.
        let is_last = seen.sequence.wrapping_add(seen.payload.len() as u32) == served.their_next;
        let sequence = served.next.wrapping_sub(seen.payload.len() as u32);
        if is_last {
            reply(served, tcp_flags::ACK | tcp_flags::PSH, sequence, seen.payload)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_sent_what_it_has_said() {
        const CLIENT: End = ([192, 0, 2, 50], 2006);
        const HOST: End = ([10, 0, 0, 40], 22);
        let mut server = Server::default();
        // The sequence numbers go through zero.
        let initial = u32::MAX - 1;
        let mut said = |flags, sequence, payload: &[u8]| {
            let asked = frames::tcp(CLIENT, HOST, flags, sequence, 0, payload);
            let frame = server
                .on_frame(1, frames::read(&asked).expect("a segment"), initial)
                .expect("an answer");
            let seen = frames::read(&frame).expect("a segment");
            assert!(server.has_sent(1, &seen) && !server.has_sent(0, &seen), "it came by switch 1");
            for (wrong, what) in [
                (
                    Seen { source: ([198, 51, 100, 4], 1030), ..seen },
                    "the end under which it is published",
                ),
                (Seen { destination: ([192, 0, 2, 50], 2007), ..seen }, "another client"),
                (Seen { sequence: initial.wrapping_sub(1), ..seen }, "before the first number"),
                (
                    Seen {
                        sequence: seen.sequence.wrapping_add(1 + u32::from(payload.is_empty())),
                        ..seen
                    },
                    "not yet",
                ),
                (Seen { flags: tcp_flags::RST, ..seen }, "a reset"),
            ] {
                assert!(!server.has_sent(1, &wrong), "{what}");
            }
        };
        said(tcp_flags::SYN, 70, &[]);
        said(tcp_flags::ACK | tcp_flags::PSH, 71, &[5; 200]);
        said(tcp_flags::ACK | tcp_flags::PSH, 271, &[6; 200]);
    }
}
