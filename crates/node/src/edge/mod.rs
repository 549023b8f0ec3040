//! The edge: the router between the ports and the switch.
//!
//! Theory of operation. What comes in by a port is checked (who sent it, to whom, is it whole), answered if it is for the box itself (ARP,
//! neighbour discovery, ping), and otherwise goes to a chain. What a chain has released is routed by its destination as it is then, loses a hop,
//! gets its neighbour's address and leaves. Errors about packets are ICMP messages: about one that came in, they go back by its port;
//! about one that a chain has changed, they come in again at the port where it should have left, so that the chain translates them back.
//!
//! In: frames from ports, released packets, the time. Out: [`EdgeOut`]. Never: a flow's state; an answer to broadcast; a frame that is not
//! accounted for.

mod icmp;
mod neighbors;
mod resolution;

use crate::fragments::FragmentKeys;
use holdfast_protection::Released;
use holdfast_wire::header::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Mac, icmp as icmp_kind, icmpv6 as icmpv6_kind};
use holdfast_wire::selector::Prefix;
use holdfast_wire::{DropCounters, DropReason, FlowKey, Network, Packet, PacketPool, checksum, ip_bytes, map_v4};
use icmp::Problem;
use neighbors::{Lookup, Neighbors};
use std::net::IpAddr;

/// A port as the edge knows it.
#[derive(Debug, Clone)]
pub struct EdgePort {
    /// Its MAC address.
    pub mac: Mac,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Addresses of the box there, with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// A route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EdgeRoute {
    /// For these destinations.
    pub prefix: Prefix,
    /// By this port.
    pub port: u8,
    /// Through this router; without it, directly.
    pub gateway: Option<IpAddr>,
}

/// What the edge is told at its start.
#[derive(Debug, Clone)]
pub struct EdgeConfig {
    /// The ports, in order of their numbers.
    pub ports: Vec<EdgePort>,
    /// Routes besides those to the ports' own networks.
    pub routes: Vec<EdgeRoute>,
    /// Addresses that the box answers for on every port because its chains use them: NAT pools, virtual addresses.
    pub owned: Vec<Prefix>,
}

/// What the edge wants done.
#[derive(Debug, Default)]
pub struct EdgeOut {
    /// Frames to send, by port.
    pub transmit: Vec<(u8, Released<Packet>)>,
    /// Packets that come in again by a port.
    pub reinject: Vec<(u8, Packet)>,
}

/// ICMP errors and echo replies per second that the box makes by itself (RFC 1812, section 4.3.2.8).
const ICMP_PER_SECOND: u64 = 1000;
const SECOND: u64 = 1_000_000_000;

/// See the module.
pub struct Edge {
    config: EdgeConfig,
    /// Longest first.
    routes: Vec<EdgeRoute>,
    neighbors: Neighbors,
    fragments: FragmentKeys,
    drops: DropCounters,
    tokens: u64,
    tokens_at: u64,
}

impl Edge {
    /// An edge that knows no neighbour yet.
    pub fn new(config: EdgeConfig) -> Edge {
        let mut routes: Vec<EdgeRoute> = config.routes.clone();
        for (port, at) in config.ports.iter().zip(0u8..) {
            let networks = port.addresses.iter().filter_map(|(address, len)| Prefix::network_of(*address, *len));
            routes.extend(networks.map(|prefix| EdgeRoute { prefix, port: at, gateway: None }));
        }
        routes.sort_by_key(|route| core::cmp::Reverse(route.prefix.specificity()));
        Edge {
            config,
            routes,
            neighbors: Neighbors::new(),
            fragments: FragmentKeys::new(),
            drops: DropCounters::default(),
            tokens: ICMP_PER_SECOND,
            tokens_at: 0,
        }
    }

    /// Drops by reason.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// Packets waiting for a neighbour's address.
    pub fn held(&self) -> usize {
        self.neighbors.held()
    }

    fn drop(&mut self, packet: Packet, reason: DropReason, pool: &mut dyn PacketPool) {
        self.drops.count(reason);
        pool.put(packet);
    }

    fn owns(&self, address: &[u8; 16]) -> bool {
        self.is_own(address) || self.config.owned.iter().any(|prefix| prefix.contains(address))
    }

    fn is_own(&self, address: &[u8; 16]) -> bool {
        self.config.ports.iter().any(|port| port.addresses.iter().any(|(own, _)| ip_bytes(*own) == *address))
    }

    /// The box's address on a port, of the family of `like`.
    fn own_address(&self, port: u8, like: &[u8; 16]) -> Option<[u8; 16]> {
        let is_v4 = holdfast_wire::unmap_v4(like).is_some();
        let addresses = &self.config.ports.get(port as usize)?.addresses;
        addresses.iter().find(|(address, _)| address.is_ipv4() == is_v4).map(|(address, _)| ip_bytes(*address))
    }

    fn may_send_icmp(&mut self, now: u64) -> bool {
        let earned = now.saturating_sub(self.tokens_at) * ICMP_PER_SECOND / SECOND;
        if earned > 0 {
            self.tokens = (self.tokens + earned).min(ICMP_PER_SECOND);
            self.tokens_at = now;
        }
        if self.tokens == 0 {
            return false;
        }
        self.tokens -= 1;
        true
    }

    /// A frame from a port. Gives it back with its flow's key if it is for a chain; otherwise it was answered, queued or dropped.
    pub fn handle_ingress(
        &mut self,
        port: u8,
        mut packet: Packet,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) -> Option<(FlowKey, Packet)> {
        packet.meta = Default::default();
        packet.meta.ingress = port;
        if let Err(malformed) = packet.parse() {
            self.drop(packet, malformed.into(), pool);
            return None;
        }
        let own_mac = self.config.ports.get(port as usize)?.mac;
        let is_unicast = packet.bytes()[0] & 1 == 0;
        if is_unicast && packet.bytes()[..6] != own_mac {
            self.drop(packet, DropReason::NotForUs, pool);
            return None;
        }
        if packet.layers.vlan_tags > 0 {
            self.drop(packet, DropReason::UnknownEthertype, pool);
            return None;
        }
        match packet.layers.ethertype {
            ETHERTYPE_ARP => {
                self.handle_arp(port, packet, now, out, pool);
                None
            }
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => self.handle_ip(port, packet, is_unicast, now, out, pool),
            _ => {
                self.drop(packet, DropReason::UnknownEthertype, pool);
                None
            }
        }
    }

    fn handle_ip(
        &mut self,
        port: u8,
        packet: Packet,
        is_unicast: bool,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) -> Option<(FlowKey, Packet)> {
        let (source, destination) = addresses(&packet)?;
        if self.is_neighbor_discovery(&packet) {
            self.handle_nd(port, packet, now, out, pool);
            return None;
        }
        if let Some(reason) = self.refusal(&packet, &source, &destination, is_unicast) {
            self.drop(packet, reason, pool);
            return None;
        }
        if self.is_own(&destination) {
            self.handle_local(port, packet, now, out, pool);
            return None;
        }
        if packet.ttl().is_some_and(|ttl| ttl <= 1) {
            self.drops.count(DropReason::TtlExceeded);
            self.answer_problem(port, packet, Problem::TimeExceeded, now, out, pool);
            return None;
        }
        let key = if packet.layers.fragment { self.fragments.identify(&packet, now) } else { FlowKey::of(&packet) };
        match key {
            Some(key) => Some((key, packet)),
            None => {
                let reason = if packet.layers.fragment { DropReason::FragmentUnknown } else { DropReason::StateInvalid };
                self.drop(packet, reason, pool);
                None
            }
        }
    }

    /// Why a packet is not forwarded whatever the chains say.
    fn refusal(&self, packet: &Packet, source: &[u8; 16], destination: &[u8; 16], is_unicast: bool) -> Option<DropReason> {
        if let Some(header) = packet.ipv4() {
            let len = (header.version_ihl & 0x0f) as usize * 4;
            let l3 = packet.layers.l3 as usize;
            if checksum::checksum(&packet.bytes()[l3..l3 + len]) != 0 {
                return Some(DropReason::BadChecksum);
            }
        }
        if packet.layers.source_route {
            return Some(DropReason::SourceRoute);
        }
        if !is_unicast || is_multicast(destination) {
            return Some(DropReason::Multicast);
        }
        if is_multicast(source) || is_nowhere(source) || is_nowhere(destination) || source == destination || self.is_own(source) {
            return Some(DropReason::BadSource);
        }
        if is_link_local(source) || is_link_local(destination) {
            return Some(DropReason::LinkLocal);
        }
        None
    }

    /// For the box itself: only ping is answered.
    fn handle_local(&mut self, port: u8, packet: Packet, now: u64, out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        let is_echo = packet.icmp().is_some_and(|header| match packet.layers.network {
            Network::V6 => header.kind == icmpv6_kind::ECHO,
            _ => header.kind == icmp_kind::ECHO,
        });
        if !is_echo || packet.layers.fragment || !self.may_send_icmp(now) {
            self.drop(packet, DropReason::Local, pool);
            return;
        }
        let mut packet = packet;
        icmp::turn_echo(&mut packet);
        self.send_own(port, packet, now, out, pool);
    }

    /// Tells the sender of a packet that came in by `port` what is wrong with it. Consumes the packet.
    fn answer_problem(
        &mut self,
        port: u8,
        mut packet: Packet,
        problem: Problem,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        let from = addresses(&packet).and_then(|(source, _)| self.own_address(port, &source));
        if let Some(from) = from
            && icmp::may_report(&packet)
            && self.may_send_icmp(now)
            && icmp::report(&mut packet, problem, &from)
        {
            self.send_own(port, packet, now, out, pool);
        } else {
            pool.put(packet);
        }
    }

    /// Sends a packet of the box's own, back by the port that its cause came from. Its destination MAC address is known: the frame's source.
    fn send_own(&mut self, port: u8, mut packet: Packet, _now: u64, out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        let Some(mac) = self.config.ports.get(port as usize).map(|port| port.mac) else {
            pool.put(packet);
            return;
        };
        let bytes = packet.bytes_mut();
        bytes.copy_within(6..12, 0);
        bytes[6..12].copy_from_slice(&mac);
        out.transmit.push((port, Released::stateless(packet)));
    }

    fn route(&self, destination: &[u8; 16]) -> Option<EdgeRoute> {
        self.routes.iter().find(|route| route.prefix.contains(destination)).copied()
    }

    /// A packet that a chain has released, parsed: routes it and sends it.
    pub fn handle_egress(&mut self, released: Released<Packet>, now: u64, out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        let Some((_, destination)) = addresses(released.get()) else {
            return self.drop(released.into_inner(), DropReason::UnknownEthertype, pool);
        };
        let Some(route) = self.route(&destination) else {
            self.drops.count(DropReason::NoRouteToHost);
            let ingress = released.get().meta.ingress;
            return self.report_back(ingress, released.into_inner(), Problem::NoRoute, now, out, pool);
        };
        let mtu = self.config.ports[route.port as usize].mtu;
        let len = released.get().layers.end.saturating_sub(released.get().layers.l3);
        if len > mtu {
            self.drops.count(DropReason::FrameTooLarge);
            return self.report_back(route.port, released.into_inner(), Problem::TooBig(mtu), now, out, pool);
        }
        let mut packet = released;
        decrement_ttl(&mut packet);
        let next_hop = route.gateway.map_or(destination, ip_bytes);
        match self.neighbors.lookup(route.port, &next_hop, now) {
            Lookup::Known(mac) => {
                self.address_frame(route.port, mac, &mut packet);
                out.transmit.push((route.port, packet));
            }
            Lookup::Unknown { ask } => {
                if let Err(packet) = self.neighbors.hold(route.port, &next_hop, packet) {
                    self.drop(packet.into_inner(), DropReason::NeighborUnresolved, pool);
                }
                if ask {
                    self.ask_for(route.port, &next_hop, None, out, pool);
                }
            }
            Lookup::Stale(mac) => {
                self.address_frame(route.port, mac, &mut packet);
                out.transmit.push((route.port, packet));
                self.ask_for(route.port, &next_hop, Some(mac), out, pool);
            }
        }
    }

    fn address_frame(&self, port: u8, to: Mac, packet: &mut Released<Packet>) {
        let from = self.config.ports[port as usize].mac;
        packet.set_macs(to, from);
    }

    /// An error about a packet that a chain may have changed: it comes in again by the port that it concerns, and the chain translates it back.
    fn report_back(
        &mut self,
        port: u8,
        mut packet: Packet,
        problem: Problem,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        let from = addresses(&packet).and_then(|(source, _)| self.own_address(port, &source));
        if let Some(from) = from
            && icmp::may_report(&packet)
            && self.may_send_icmp(now)
            && icmp::report(&mut packet, problem, &from)
        {
            out.reinject.push((port, packet));
        } else {
            pool.put(packet);
        }
    }

    /// A packet of [`EdgeOut::reinject`]: goes to its chain without the checks that a stranger's packet gets.
    pub fn handle_reinjected(&mut self, port: u8, mut packet: Packet, pool: &mut dyn PacketPool) -> Option<(FlowKey, Packet)> {
        packet.meta = Default::default();
        packet.meta.ingress = port;
        let key = packet.parse().ok().and_then(|()| FlowKey::of(&packet));
        match key {
            Some(key) => Some((key, packet)),
            None => {
                self.drop(packet, DropReason::StateInvalid, pool);
                None
            }
        }
    }

    /// Timeouts of neighbours.
    pub fn handle_timeout(&mut self, now: u64, out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        for (port, address) in self.neighbors.due(now) {
            self.ask_for(port, &address, None, out, pool);
        }
        for packet in self.neighbors.given_up(now) {
            self.drop(packet.into_inner(), DropReason::NeighborUnresolved, pool);
        }
    }

    /// When [`Edge::handle_timeout`] is due next.
    pub fn poll_timeout(&self) -> u64 {
        self.neighbors.poll_timeout()
    }
}

/// Source and destination of an IP packet, IPv4 as IPv4-mapped.
fn addresses(packet: &Packet) -> Option<([u8; 16], [u8; 16])> {
    if let Some(header) = packet.ipv4() {
        return Some((map_v4(header.source), map_v4(header.destination)));
    }
    packet.ipv6().map(|header| (header.source, header.destination))
}

fn is_multicast(address: &[u8; 16]) -> bool {
    match holdfast_wire::unmap_v4(address) {
        Some(v4) => v4[0] >= 224,
        None => address[0] == 0xff,
    }
}

/// Addresses that nobody on a network has: unspecified, loopback, "this network".
fn is_nowhere(address: &[u8; 16]) -> bool {
    match holdfast_wire::unmap_v4(address) {
        Some(v4) => v4[0] == 0 || v4[0] == 127,
        None => address[..15] == [0; 15] && address[15] <= 1,
    }
}

fn is_link_local(address: &[u8; 16]) -> bool {
    match holdfast_wire::unmap_v4(address) {
        Some(v4) => v4[0] == 169 && v4[1] == 254,
        None => address[0] == 0xfe && address[1] & 0xc0 == 0x80,
    }
}

fn decrement_ttl(packet: &mut Released<Packet>) {
    packet.decrement_ttl();
}
