//! Packets that clients and servers send and receive, inside and outside: whole, or in
//! fragments.

use super::streams::{Lane, Of};
use super::{Event, MILLISECOND, World, hosts};
use crate::frames;
use crate::peers::{self, Client, Progress};
use crate::plan::{End, Reset};
use crate::published;
use holdfast_protection::Peer;
use holdfast_wire::header::{proto, tcp_flags};

/// Bytes of the first fragment behind its IPv4 header: the transport header, and
/// everything that a chain writes.
const FIRST: usize = 8 + peers::WRITTEN;
/// Time between two probes of a server whose client may be gone, ns.
const KEEP_ALIVE: u64 = 300 * MILLISECOND;

/// Pairs of connections with one reply key, each in both orders: from one end to two
/// services with one backend, by one switch.
pub(super) fn rivals(clients: &[Client], switches: u16) -> impl Iterator<Item = (u32, u32)> {
    let of = move |(at, client): (usize, &Client)| {
        let (local, remote, protocol) = client.ends();
        let is_rival = |(other, rival): &(usize, &Client)| {
            let (theirs, other_remote, of) = rival.ends();
            (theirs, of) == (local, protocol)
                && remote != other_remote
                && at % usize::from(switches) == other % usize::from(switches)
        };
        let rival = clients
            .iter()
            .enumerate()
            .find(is_rival)
            .filter(|(_, rival)| published::is_service(rival.ends().1));
        rival.filter(|_| published::is_service(remote)).map(|(_, rival)| (client.id(), rival.id()))
    };
    clients.iter().enumerate().filter_map(of).collect::<Vec<_>>().into_iter()
}

impl World {
    /// Sends a client's frame. Clients take turns among the switches.
    pub(super) fn client_sends(&mut self, at: usize, frame: Vec<u8>) {
        let (switch, is_inside, is_large) = (
            self.switch_of_client(at),
            self.clients[at].is_inside(),
            self.plan.connections[at].large,
        );
        self.sends(is_inside, switch, frame, is_large);
    }

    fn sends(&mut self, is_inside: bool, switch: u16, frame: Vec<u8>, in_fragments: bool) {
        if !in_fragments {
            return self.put_on_line(is_inside, switch, frame);
        }
        for (delay, piece) in self.pieces(switch, &frame) {
            match delay {
                0 => self.put_on_line(is_inside, switch, piece),
                _ => self.at(self.now + delay, Event::Sent(is_inside, switch, piece)),
            }
        }
    }

    pub(super) fn put_on_line(&mut self, is_inside: bool, switch: u16, frame: Vec<u8>) {
        let (outside, habits) = (hosts::outside(switch), self.outside);
        match is_inside {
            true => self.carry(habits, Lane::FromClient, outside, frame, |frame| {
                Event::FromClient(switch, frame)
            }),
            false => self.carry(habits, Lane::FromServer, outside, frame, |frame| {
                Event::FromServer(switch, frame)
            }),
        }
    }

    /// A datagram's fragments with their delays, ns, in the order in which they are sent.
    /// A fragment may be doubled, and now and then one is missing.
    fn pieces(&mut self, switch: u16, frame: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let is_ill = !self.healed && !self.plan.calm;
        let random = self.streams.of(Of::Fragments, hosts::outside(switch));
        let (rest, order, late) =
            (random.range(1, 5) as usize, random.range(0, 3), random.range(1, 120) * MILLISECOND);
        let (is_doubled, is_alone, is_late) =
            (random.chance(150), random.chance(50), random.chance(250));
        // Connection and number make the identification, so no two datagrams under way
        // share one.
        let name = frame
            .get(42..50)
            .and_then(|name| name.first_chunk::<8>())
            .map_or(0, |name| u64::from_be_bytes(*name));
        let id = ((name >> 32) << 12 | name & 0xfff) as u16;
        let mut pieces = frames::split(frame, id, FIRST, rest);
        let some = random.range(0, pieces.len() as u64) as usize;
        match order {
            0 => {}
            1 => pieces.reverse(),
            _ => pieces.rotate_left(some),
        }
        if is_doubled {
            pieces.insert(some, pieces[some].clone());
        }
        if is_alone && is_ill {
            self.faults.incomplete += 1;
            pieces.remove(some);
        }
        let delay = |at: usize| if is_late && at >= some { late } else { 0 };
        pieces.into_iter().enumerate().map(|(at, piece)| (delay(at), piece)).collect()
    }

    /// A frame comes to the hosts inside, or to those outside.
    pub(super) fn peers_receive(&mut self, is_inside: bool, switch: u16, frame: &[u8]) {
        let whole = self.reassembly[usize::from(is_inside)].take(frame, self.now);
        let Some((frame, was_in_fragments)) = whole else { return };
        let Some(seen) = frames::read(&frame) else {
            let who = if is_inside { "a client" } else { "a server" };
            self.checkers.violate("integrity", format!("{who} got a packet with a wrong checksum"));
            return;
        };
        if !is_inside && peers::is_inside(seen.source) {
            self.checkers
                .violate("fail closed", format!("an untranslated packet left: {:?}", seen.source));
        }
        if was_in_fragments && !peers::is_one(seen.payload) {
            let text = format!("a datagram from {:?} was put together of two", seen.source);
            self.checkers.violate("fragments", text);
        }
        let is_client = |client: &Client| {
            client.is_inside() == is_inside
                && client.ends() == (seen.destination, seen.source, seen.protocol)
        };
        match self.clients.iter().position(is_client) {
            Some(at) => self.client_receives(at, switch, seen),
            // The flow was lost, and a late reply to it came in as a packet for a
            // published host, which has asked nobody. If the host answered, the two would
            // answer each other for ever.
            None if is_inside && self.is_server(seen.source) => {}
            None if !is_inside
                || published::outside_of(seen.protocol, seen.destination).is_some() =>
            {
                self.server_receives(is_inside, switch, seen, was_in_fragments);
            }
            None => {
                let text = format!(
                    "nobody's packet reached the clients: {:?} to {:?}",
                    seen.source, seen.destination
                );
                self.checkers.violate("fail closed", text);
            }
        }
    }

    /// Whether a server that clients inside ask has this end.
    fn is_server(&self, end: End) -> bool {
        let is_asked = |client: &Client| client.is_inside() && client.ends().1 == end;
        end == published::BACKEND || self.clients.iter().any(is_asked)
    }

    fn client_receives(&mut self, at: usize, switch: u16, seen: frames::Seen<'_>) {
        if self.switch_of_client(at) != switch {
            let text =
                format!("a packet of connection {} came by switch {switch}", self.clients[at].id());
            self.checkers.violate("one switch", text);
        }
        self.note_reset(self.clients[at].id(), true, self.clients[at].judges(&seen), &seen);
        let (before, was_reset) = (self.clients[at].due(), self.clients[at].was_reset());
        if let Some(reply) = self.clients[at].on_frame(seen, self.now) {
            self.client_sends(at, reply);
        }
        let due = self.clients[at].due();
        if due != before && due != u64::MAX {
            self.at(due, Event::ClientTimer(at));
        }
        if self.clients[at].was_reset() && !was_reset {
            self.at(self.now + KEEP_ALIVE, Event::KeepAlive(at));
        }
    }

    /// Notes how an end took a reset. A reset in place of a segment is never dropped,
    /// because the flow is as it was. A reset that answers a segment may be: its receiver
    /// may have got more since and asked for what follows, and that is answered with a
    /// reset, too.
    fn note_reset(
        &mut self,
        id: u32,
        is_client: bool,
        how: Option<Reset>,
        seen: &frames::Seen<'_>,
    ) {
        let Some(how) = how else { return };
        self.resets.push((id, is_client, how));
        // Answers have no acknowledgement, except to a repeated SYN, which is answered
        // like a SYN of no connection.
        let is_answer = seen.flags & tcp_flags::ACK == 0 || is_client && seen.sequence == 0;
        if how == Reset::Ignored && !is_answer && self.scenario.preset.is_strict() {
            let who = if is_client { "client" } else { "server" };
            self.checkers.violate(
                "resets",
                format!("the {who} of connection {id} drops a reset with number {}", seen.sequence),
            );
        }
    }

    /// A server asks whether the client that was reset is still there, until the server
    /// is reset itself.
    pub(super) fn keep_alive(&mut self, at: usize) {
        let switch = self.switch_of_client(at);
        if let Some(probe) = self.server.keep_alive(switch, &self.clients[at]) {
            self.sends(false, switch, probe, false);
            self.at(self.now + KEEP_ALIVE, Event::KeepAlive(at));
        }
    }

    /// Whether a client was reset, and its server was not.
    pub(super) fn is_half_reset(&self, at: usize) -> bool {
        let client = &self.clients[at];
        client.was_reset() && self.server.keep_alive(self.switch_of_client(at), client).is_some()
    }

    fn server_receives(
        &mut self,
        is_inside: bool,
        switch: u16,
        seen: frames::Seen<'_>,
        in_fragments: bool,
    ) {
        let drawn = self.streams.of(Of::Sequence, Peer::default()).draw() as u32;
        // In a calm world two runs may differ only by what the chain does: initial
        // sequence numbers are fixed.
        let random = if self.plan.calm { 7 } else { drawn };
        if let Some(how) = self.server.judges(switch, &seen) {
            let client = peers::whose(&self.clients, &seen).map_or(0, |(client, _)| client.id());
            self.note_reset(client, false, Some(how), &seen);
        }
        if let Some(reply) = self.server.on_frame(switch, seen, random) {
            self.sends(is_inside, switch, reply, in_fragments && seen.protocol != proto::TCP);
        }
    }

    /// Whether a connection has finished, or the other connection with its reply key has.
    pub(super) fn is_done(&self, at: usize) -> bool {
        self.clients[at].progress() == Progress::Done && !self.is_half_reset(at)
            || self.has_lost(at)
    }
}
