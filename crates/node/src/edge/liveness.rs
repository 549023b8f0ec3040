//! Liveness of next routers: BFD at the edge's ports (RFC 5881), and its effect on
//! routes.
//!
//! Theory of operation. While this host serves the ports, there is a session with each
//! router that the configuration names. A router whose session was up and is down is
//! dead: nothing is routed through it until the session is up again. A router whose
//! session was never up may not speak BFD at all, so it loses no route. A router that
//! says that it has been switched off on purpose (AdminDown) loses none either, because
//! that says nothing about the way (RFC 5882, section 3.2). Every change of a session,
//! and each packet of it, is noted ([`EdgeOut::notes`]), so that the next incarnation of
//! this host continues the session ([`Edge::remember`]).

use super::{Edge, EdgeOut, EdgeRoute};
use crate::bfd::{Change, Discard, Key, Memory, Peer, Session, Sessions};
use holdfast_protection::Released;
use holdfast_wire::bfd::{self, MAX_LEN, State};
use holdfast_wire::build::{self, DoesNotFit, Ends, Ethernet};
use holdfast_wire::header::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, proto};
use holdfast_wire::{DropReason, Packet, PacketPool, checksum, ip_bytes, unmap_v4};

/// DSCP CS6, as other routers' own packets have it (RFC 4594, section 3.1).
const TRAFFIC_CLASS: u8 = 0xc0;

/// A change of the session with a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Liveness {
    /// The router's port.
    pub port: u8,
    /// The router, IPv4 as IPv4-mapped.
    pub peer: [u8; 16],
    /// How its session changed.
    pub change: Change,
}

/// See the module.
pub(super) struct Watch {
    peers: Vec<Peer>,
    /// Set while the ports are served here, if there are routers to watch.
    sessions: Option<Sessions>,
    /// Port and address of routers that are known to be dead.
    dead: Vec<(u8, [u8; 16])>,
    /// Sessions of an earlier incarnation, for the first time that the ports are served.
    memories: Vec<Option<Memory>>,
    random: u64,
}

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators).
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Watch {
    /// No router is watched before the ports are served.
    pub(super) fn new(peers: Vec<Peer>, seed: u64) -> Watch {
        Watch { peers, sessions: None, dead: Vec::new(), memories: Vec::new(), random: seed }
    }

    /// See [`Edge::poll_timeout`].
    pub(super) fn poll_timeout(&self) -> u64 {
        self.sessions.as_ref().map_or(u64::MAX, Sessions::poll_timeout)
    }

    /// True if no router is known to be dead.
    #[inline]
    pub(super) fn is_calm(&self) -> bool {
        self.dead.is_empty()
    }

    /// True if a route's next router is not known to be dead.
    pub(super) fn may_use(&self, route: &EdgeRoute) -> bool {
        !route.gateway.is_some_and(|gateway| self.dead.contains(&(route.port, ip_bytes(gateway))))
    }

    /// The state of a session that must be noted.
    fn memory(&self, at: usize) -> Option<Memory> {
        let sessions = self.sessions.as_ref()?;
        let mut memory = sessions.memory(at)?;
        // Most often the list is empty.
        if !self.dead.is_empty() {
            memory.mark(
                sessions
                    .iter()
                    .nth(at)
                    .is_some_and(|(port, peer, _)| self.dead.contains(&(port, *peer))),
            );
        }
        Some(memory)
    }

    /// Updates the dead routers after a change, or the other side's word.
    fn judge(&mut self, at: usize, change: Option<Change>) -> Option<Liveness> {
        let (port, peer, session) = self.sessions.as_ref()?.iter().nth(at)?;
        let peer = *peer;
        let is_switched_off = session.remote().0 == State::AdminDown;
        let is_lost = change
            .is_some_and(|change| change.from == State::Up && change.to == State::Down)
            && !session.was_away();
        if session.state() == State::Up || is_switched_off {
            self.dead.retain(|dead| *dead != (port, peer));
        } else if is_lost {
            self.dead.push((port, peer));
        }
        change.map(|change| Liveness { port, peer, change })
    }
}

impl Edge {
    /// Starts or stops serving the ports on this host. Sessions begin anew with it. While
    /// others serve, nothing is sent, and no route is out of use.
    pub fn set_serving(&mut self, serves: bool, now: u64) {
        let watch = &mut self.watch;
        if serves == watch.sessions.is_some() || watch.peers.is_empty() {
            return;
        }
        watch.dead.clear();
        let (random, memories) = (&mut watch.random, core::mem::take(&mut watch.memories));
        watch.sessions = serves
            .then(|| Sessions::resume(watch.peers.clone(), &memories, &mut || draw(random), now));
        let sessions = watch.sessions.iter().flat_map(Sessions::iter).zip(&memories);
        let was_dead = |session: &Session, memory: &Option<Memory>| {
            session.state() != State::Up && memory.as_ref().is_some_and(Memory::is_marked)
        };
        let dead = sessions.filter(|((.., session), memory)| was_dead(session, memory));
        watch.dead.extend(dead.map(|((port, peer, _), _)| (port, *peer)));
    }

    /// Sets another key for the session with a router: see [`Session::set_key`]. False if
    /// the key is the same, or there is no such router.
    pub fn set_bfd_key(&mut self, port: u8, peer: &[u8; 16], key: &Key, now: u64) -> bool {
        let Watch { peers, sessions, .. } = &mut self.watch;
        let Some(at) = peers.iter().position(|known| known.port == port && known.address == *peer)
        else {
            return false;
        };
        let own = &mut peers[at].settings.key;
        if own.as_ref().is_some_and(|own| own.is_same(key)) {
            return false;
        }
        *own = Some(key.clone());
        if let Some(session) = sessions.as_mut().and_then(|sessions| sessions.get_mut(at)) {
            session.set_key(key.clone(), now);
        }
        true
    }

    /// Number of routers that are watched.
    pub fn watched(&self) -> usize {
        self.watch.peers.len()
    }

    /// Takes an earlier incarnation's notes of the sessions, in their order, before the
    /// ports are served.
    pub fn remember(&mut self, memories: Vec<Option<Memory>>) {
        self.watch.memories = memories;
    }

    fn note(&self, at: usize, out: &mut EdgeOut) {
        out.notes.extend(self.watch.memory(at).map(|memory| (at as u16, memory)));
    }

    /// Tells routers that the box is about to end, so that they do not take it for a
    /// failure (RFC 5880, section 6.8.16).
    pub fn take_leave(&mut self, now: u64) {
        if let Some(sessions) = &mut self.watch.sessions {
            sessions.take_leave(now);
        }
    }

    /// True if a router was told of the end and has not confirmed it yet; at most as long
    /// as that router is heard.
    pub fn is_taking_leave(&self) -> bool {
        self.watch.sessions.as_ref().is_some_and(Sessions::is_taking_leave)
    }

    /// The sessions with routers, while the ports are served here: each with its port,
    /// the router, and whether the router is known to be dead.
    pub fn liveness(&self) -> impl Iterator<Item = (u8, &[u8; 16], &Session, bool)> {
        let all = self.watch.sessions.iter().flat_map(Sessions::iter);
        all.map(|(port, peer, session)| {
            (port, peer, session, self.watch.dead.contains(&(port, *peer)))
        })
    }

    /// True for a control packet of a watched router, to the box's own address, from this
    /// very link (RFC 5881, sections 4 and 5). All other packets to that UDP port are
    /// treated as without BFD.
    #[inline]
    pub(super) fn is_bfd(
        &self,
        port: u8,
        packet: &Packet,
        source: &[u8; 16],
        destination: &[u8; 16],
    ) -> bool {
        let Some(sessions) = &self.watch.sessions else { return false };
        packet.ttl() == Some(bfd::TTL)
            && !packet.layers.fragment
            && !packet.layers.source_route
            && packet.udp().is_some_and(|udp| udp.destination.get() == bfd::PORT)
            && self.is_ports(port, destination)
            && sessions.find(port, source).is_some()
    }

    pub(super) fn handle_bfd(
        &mut self,
        port: u8,
        packet: Packet,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        let result = self.hear(port, &packet, now);
        match result {
            Ok(None) => {}
            Ok(Some((at, changed))) => {
                out.liveness.extend(changed);
                self.note(at, out);
            }
            Err(reason) => return self.drop(packet, reason, pool),
        }
        self.consume(port, 1);
        pool.put(packet);
        self.send_bfd(now, out, pool);
    }

    /// Handles a packet of a router's session. Returns the session's place and the
    /// change, if the packet belongs to a session.
    fn hear(
        &mut self,
        port: u8,
        packet: &Packet,
        now: u64,
    ) -> Result<Option<(usize, Option<Liveness>)>, DropReason> {
        let Some((source, destination)) = super::addresses(packet) else {
            return Err(DropReason::Truncated);
        };
        // The length was checked when the packet was parsed.
        let len = packet.udp().map_or(0, |udp| usize::from(udp.len.get()));
        let Some(datagram) =
            packet.l4().get(..len).filter(|datagram| datagram.len() >= build::Udp::LEN)
        else {
            return Err(DropReason::Truncated);
        };
        let has_checksum = datagram[6..8] != [0; 2];
        let sum = match (unmap_v4(&source), unmap_v4(&destination)) {
            (Some(_), Some(_)) if !has_checksum => 0,
            (Some(source), Some(destination)) => {
                checksum::transport(&source, &destination, proto::UDP, datagram)
            }
            // Over IPv6 a checksum is required (RFC 8200, section 8.1).
            _ if !has_checksum => 1,
            _ => checksum::transport(&source, &destination, proto::UDP, datagram),
        };
        if sum != 0 {
            return Err(DropReason::BadChecksum);
        }
        let Some(sessions) = &mut self.watch.sessions else { return Ok(None) };
        let changed = sessions.handle(port, &source, &datagram[build::Udp::LEN..], now).map_err(
            |discard| match discard {
                Discard::Malformed(_) => DropReason::BfdMalformed,
                Discard::NoSession => DropReason::BfdNoSession,
                Discard::Unauthenticated => DropReason::BfdUnauthenticated,
                Discard::Replayed => DropReason::BfdReplayed,
            },
        )?;
        let Some(at) = sessions.find(port, &source) else { return Ok(None) };
        Ok(Some((at, self.watch.judge(at, changed.map(|(_, change)| change)))))
    }

    /// Ends sessions that have heard nothing for too long, and sends packets that are
    /// due.
    pub(super) fn turn_bfd(&mut self, now: u64, out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        let Some(sessions) = &mut self.watch.sessions else { return };
        let mut changed = Vec::new();
        sessions.handle_timeout(now, |at, change| changed.push((at, change)));
        for (at, change) in changed {
            out.liveness.extend(self.watch.judge(at, Some(change)));
            self.note(at, out);
        }
        self.send_bfd(now, out, pool);
    }

    fn send_bfd(&mut self, now: u64, out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        let mut payload = [0; MAX_LEN];
        while let Some(outgoing) = {
            let Watch { sessions, random, .. } = &mut self.watch;
            sessions.as_mut().and_then(|sessions| {
                sessions.poll_transmit(now, &mut || draw(random), &mut payload)
            })
        } {
            // The note comes before the packet leaves, so that no sequence number goes
            // out twice.
            self.note(outgoing.at, out);
            let Some(source) = self.own_address(outgoing.port, &outgoing.peer) else { continue };
            let Some(mut packet) = pool.take() else {
                self.originate(outgoing.port);
                self.drops.count(DropReason::ArenaEmpty);
                continue;
            };
            packet.clear();
            let written = write(
                &mut packet,
                (&source, &outgoing.peer),
                outgoing.source_port,
                &payload[..outgoing.len],
            );
            if written.is_err() || packet.parse().is_err() {
                // The packet is shorter than any buffer.
                pool.put(packet);
                continue;
            }
            self.originate(outgoing.port);
            self.send_by(
                outgoing.port,
                &outgoing.peer,
                Released::stateless(packet),
                now,
                out,
                pool,
            );
        }
    }
}

/// Writes a frame around a payload, without MAC addresses.
pub(super) fn write(
    packet: &mut Packet,
    (from, to): (&[u8; 16], &[u8; 16]),
    port: u16,
    payload: &[u8],
) -> Result<(), DoesNotFit> {
    let udp = build::Udp { source: port, destination: bfd::PORT };
    let segment = build::Udp::LEN + payload.len();
    let ethernet = |ethertype| Ethernet { destination: [0; 6], source: [0; 6], ethertype };
    match (unmap_v4(from), unmap_v4(to)) {
        (Some(from), Some(to)) => {
            let frame =
                packet.extend_back(Ethernet::LEN + build::Ipv4::LEN + segment).ok_or(DoesNotFit)?;
            let ip = build::Ipv4 {
                ttl: bfd::TTL,
                tos: TRAFFIC_CLASS,
                ..build::Ipv4::new(from, to, proto::UDP)
            };
            let datagram = &mut frame[Ethernet::LEN + build::Ipv4::LEN..];
            datagram[build::Udp::LEN..].copy_from_slice(payload);
            udp.write(datagram, &Ends::V4(from, to))?;
            ip.write(&mut frame[Ethernet::LEN..])?;
            ethernet(ETHERTYPE_IPV4).write(frame)
        }
        _ => {
            let frame =
                packet.extend_back(Ethernet::LEN + build::Ipv6::LEN + segment).ok_or(DoesNotFit)?;
            let base = build::Ipv6::new(*from, *to, proto::UDP);
            let ip = build::Ipv6 { hop_limit: bfd::TTL, traffic_class: TRAFFIC_CLASS, ..base };
            let datagram = &mut frame[Ethernet::LEN + build::Ipv6::LEN..];
            datagram[build::Udp::LEN..].copy_from_slice(payload);
            udp.write(datagram, &Ends::V6(*from, *to))?;
            ip.write(&mut frame[Ethernet::LEN..])?;
            ethernet(ETHERTYPE_IPV6).write(frame)
        }
    }
}
