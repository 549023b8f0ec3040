//! ARP (RFC 826) and neighbour discovery (RFC 4861): asking, answering, learning.

use super::neighbors::Evidence;
use super::{Edge, EdgeOut};
use holdfast_protection::Released;
use holdfast_wire::build::{
    ALL_NODES, Arp, ArpOperation, DoesNotFit, Ethernet, Ipv6, Neighbor, NeighborKind,
    multicast_mac, solicited_node,
};
use holdfast_wire::header::{ETHERTYPE_ARP, ETHERTYPE_IPV6, MAC_BROADCAST, Mac, icmpv6, proto};
use holdfast_wire::{DropReason, Network, Packet, PacketPool, ip_addr, ip_bytes, map_v4, unmap_v4};
use std::net::IpAddr;

const REQUEST: u16 = ArpOperation::Request as u16;
const REPLY: u16 = ArpOperation::Reply as u16;
/// Flags of a neighbour advertisement (RFC 4861, section 4.4).
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// Addresses of one range that are announced. Neighbours ask for the others of a larger
/// range when they need one.
const ANNOUNCED: u64 = 256;

/// The box's own advertisement.
fn advertisement(is_solicited: bool) -> NeighborKind {
    NeighborKind::Advertisement { is_router: true, is_solicited, is_override: true }
}

/// The station that solicits a neighbour.
struct Asker {
    address: [u8; 16],
    /// The MAC address in its message.
    link: Option<Mac>,
    /// The MAC address to which an answer goes.
    mac: Mac,
}

impl Edge {
    /// Sends a frame of the box's own, of `len` bytes.
    fn emit(
        &mut self,
        port: u8,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), DoesNotFit>,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        let Some(mut packet) = pool.take() else {
            self.originate(port);
            self.drops.count(DropReason::ArenaEmpty);
            return;
        };
        packet.clear();
        match packet.extend_back(len).map(write) {
            Some(Ok(())) => out.transmit.push((port, Released::stateless(packet))),
            _ => pool.put(packet),
        }
    }

    fn emit_arp(
        &mut self,
        port: u8,
        arp: Arp,
        to: Mac,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        let ethernet = Ethernet { destination: to, source: arp.sender.0, ethertype: ETHERTYPE_ARP };
        let write = |frame: &mut [u8]| {
            arp.write(&mut frame[Ethernet::LEN..])?;
            ethernet.write(frame)
        };
        self.emit(port, Ethernet::LEN + Arp::LEN, write, out, pool);
    }

    /// Sends neighbour discovery about `target` from `source` to `destination`, which has
    /// the MAC address `to`.
    fn emit_nd(
        &mut self,
        port: u8,
        (kind, target): (NeighborKind, &[u8; 16]),
        (source, destination): (&[u8; 16], &[u8; 16]),
        to: Mac,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        let own = self.config.ports[port as usize].mac;
        let ethernet = Ethernet { destination: to, source: own, ethertype: ETHERTYPE_IPV6 };
        let ip = Ipv6 { hop_limit: 255, ..Ipv6::new(*source, *destination, proto::ICMPV6) };
        let write = |frame: &mut [u8]| {
            let message = &mut frame[Ethernet::LEN + Ipv6::LEN..];
            Neighbor { kind, target: *target, link: Some(own) }.write(
                message,
                source,
                destination,
            )?;
            ip.write(&mut frame[Ethernet::LEN..])?;
            ethernet.write(frame)
        };
        self.emit(port, Ethernet::LEN + Ipv6::LEN + Neighbor::LEN_WITH_LINK, write, out, pool);
    }

    /// Notes a neighbour's MAC address, and sends the packets that waited for it.
    fn learned(
        &mut self,
        (port, address): (u8, &[u8; 16]),
        mac: Mac,
        evidence: Evidence,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        // A station that is not on the link gets no neighbour entry here, whatever it
        // asks.
        let evidence = match evidence {
            Evidence::Question if !self.is_on_link(port, address) => Evidence::Claim,
            other => other,
        };
        for packet in self.neighbors.learn((port, *address), mac, evidence, now) {
            self.transmit(port, mac, packet, now, out, pool);
        }
    }

    /// True if the box must announce one of its addresses because another station claims
    /// it. Ports of the box on one link hear each other: such frames are no claim.
    fn must_defend(&mut self, port: u8, address: &[u8; 16], claimant: Mac, now: u64) -> bool {
        self.config.ports.iter().all(|port| port.mac != claimant)
            && self.answers_for(port, address)
            && self.defences[usize::from(port)].admit(now)
    }

    pub(super) fn handle_arp(
        &mut self,
        port: u8,
        packet: Packet,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        let Some(arp) = packet
            .bytes()
            .get(14..14 + Arp::LEN)
            .and_then(|bytes| <[u8; Arp::LEN]>::try_from(bytes).ok())
        else {
            return self.drop(packet, DropReason::Truncated, pool);
        };
        let field = |at: usize| [arp[at], arp[at + 1], arp[at + 2], arp[at + 3]];
        let mac: Mac = [arp[8], arp[9], arp[10], arp[11], arp[12], arp[13]];
        let (sender, target) = (field(14), field(24));
        let operation = u16::from_be_bytes([arp[6], arp[7]]);
        // The frame's own source says nothing: a virtual router answers from its physical
        // address (RFC 5798, section 8.1.2).
        let is_sane = arp[..6] == Arp::PREFIX
            && matches!(operation, REQUEST | REPLY)
            && mac[0] & 1 == 0
            && mac != [0; 6];
        if !is_sane || !self.is_host_or_unset(&map_v4(sender)) {
            return self.drop(packet, DropReason::BadSource, pool);
        }
        if self.owns(port, &map_v4(sender)) {
            if self.must_defend(port, &map_v4(sender), mac, now) {
                let own = self.config.ports[port as usize].mac;
                self.emit_arp(port, Arp::request((own, sender), sender), MAC_BROADCAST, out, pool);
            }
            return self.drop(packet, DropReason::AddressConflict, pool);
        }
        let is_to_us = packet.bytes()[0] & 1 == 0;
        self.consume(port, 1);
        pool.put(packet);
        let is_for_us = self.answers_for(port, &map_v4(target));
        if sender != [0; 4] {
            let evidence = match operation {
                REPLY if is_to_us => Evidence::Answer,
                REQUEST if is_for_us => Evidence::Question,
                _ => Evidence::Claim,
            };
            self.learned((port, &map_v4(sender)), mac, evidence, now, out, pool);
        }
        if operation == REQUEST && is_for_us {
            let own = self.config.ports[port as usize].mac;
            self.emit_arp(port, Arp::reply((own, target), (mac, sender)), mac, out, pool);
        }
    }

    /// True for router and neighbour discovery, whole or not.
    pub(super) fn is_neighbor_discovery(&self, packet: &Packet) -> bool {
        packet.layers.network == Network::V6
            && packet.icmp().is_some_and(|header| {
                (icmpv6::ROUTER_SOLICITATION..=icmpv6::NEIGHBOR_ADVERTISEMENT + 1)
                    .contains(&header.kind)
            })
    }

    pub(super) fn handle_nd(
        &mut self,
        port: u8,
        packet: Packet,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        let Some(ip) = packet.ipv6().copied() else {
            return self.drop(packet, DropReason::Truncated, pool);
        };
        let message = packet.l4();
        // The message has crossed no router and is whole (RFC 4861, section 7.1), and was
        // never in fragments (RFC 6980).
        if ip.hop_limit != 255 || message[1] != 0 || packet.layers.v6_fragment != 0 {
            return self.drop(packet, DropReason::BadSource, pool);
        }
        if packet.is_intact() != Some(true) {
            return self.drop(packet, DropReason::BadChecksum, pool);
        }
        let kind = message[0];
        if kind != icmpv6::NEIGHBOR_SOLICITATION && kind != icmpv6::NEIGHBOR_ADVERTISEMENT {
            // The box advertises itself to nobody, and takes no advice about routes.
            return self.drop(packet, DropReason::Local, pool);
        }
        let Some((target, options)) =
            message.get(8..).and_then(|rest| rest.split_first_chunk::<16>())
        else {
            return self.drop(packet, DropReason::Truncated, pool);
        };
        let (target, flags) = (*target, message[4]);
        let Some(link) =
            link_option(options, if kind == icmpv6::NEIGHBOR_SOLICITATION { 1 } else { 2 })
        else {
            return self.drop(packet, DropReason::BadLength, pool);
        };
        let frame_source: Mac = packet.bytes()[6..12].try_into().unwrap_or(MAC_BROADCAST);
        let is_sane = target[0] != 0xff
            && unmap_v4(&target).is_none()
            && link.is_none_or(|mac| mac[0] & 1 == 0)
            && self.is_host_or_unset(&ip.source);
        let is_sane = is_sane
            && if kind == icmpv6::NEIGHBOR_SOLICITATION {
                // A station without an address yet asks whether it is taken, and has
                // nothing to teach.
                ip.source != [0; 16]
                    || (link.is_none() && ip.destination == solicited_node(&target))
            } else {
                // An answer to all is not an answer to a question.
                ip.destination[0] != 0xff || flags & SOLICITED == 0
            };
        if !is_sane {
            return self.drop(packet, DropReason::BadSource, pool);
        }
        let claimed = if kind == icmpv6::NEIGHBOR_ADVERTISEMENT && self.owns(port, &target) {
            target
        } else {
            ip.source
        };
        if self.owns(port, &claimed) {
            if self.must_defend(port, &claimed, link.unwrap_or(frame_source), now) {
                let to = multicast_mac(&ALL_NODES);
                self.emit_nd(
                    port,
                    (advertisement(false), &claimed),
                    (&claimed, &ALL_NODES),
                    to,
                    out,
                    pool,
                );
            }
            return self.drop(packet, DropReason::AddressConflict, pool);
        }
        self.consume(port, 1);
        pool.put(packet);
        if kind == icmpv6::NEIGHBOR_SOLICITATION {
            let asker = Asker { address: ip.source, link, mac: link.unwrap_or(frame_source) };
            self.handle_solicitation(port, &target, asker, now, out, pool);
        } else {
            self.handle_advertisement((port, &target), flags, link, now, out, pool);
        }
    }

    fn handle_solicitation(
        &mut self,
        port: u8,
        target: &[u8; 16],
        asker: Asker,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        if !self.answers_for(port, target) {
            return;
        }
        if let Some(mac) = asker.link {
            self.learned((port, &asker.address), mac, Evidence::Question, now, out, pool);
        }
        // The answer to a probe for duplicates goes to all nodes: the asker has no
        // address yet.
        let (is_solicited, to_ip, to) = if asker.address == [0; 16] {
            (false, ALL_NODES, multicast_mac(&ALL_NODES))
        } else {
            (true, asker.address, asker.mac)
        };
        self.emit_nd(port, (advertisement(is_solicited), target), (target, &to_ip), to, out, pool);
    }

    /// Handles a neighbour advertisement (RFC 4861, section 7.2.5).
    fn handle_advertisement(
        &mut self,
        (port, target): (u8, &[u8; 16]),
        flags: u8,
        link: Option<Mac>,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        let known = self.neighbors.known(&(port, *target));
        let Some(mac) = link.or(known) else { return };
        if flags & OVERRIDE == 0 && known.is_some_and(|known| known != mac) {
            self.neighbors.doubt(&(port, *target));
            return;
        }
        let evidence = if flags & SOLICITED != 0 { Evidence::Answer } else { Evidence::Claim };
        self.learned((port, target), mac, evidence, now, out, pool);
    }

    /// Asks for a neighbour's address; by unicast if it is known already.
    pub(super) fn ask_for(
        &mut self,
        port: u8,
        address: &[u8; 16],
        known: Option<Mac>,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        let Some(own) = self.own_address(port, address) else { return };
        let mac = self.config.ports[port as usize].mac;
        match (unmap_v4(&own), unmap_v4(address)) {
            (Some(own), Some(target)) => {
                let to = known.unwrap_or(MAC_BROADCAST);
                self.emit_arp(port, Arp::request((mac, own), target), to, out, pool);
            }
            (Some(_), None) | (None, Some(_)) => {}
            (None, None) => {
                let group = solicited_node(address);
                let (to_ip, to) =
                    known.map_or((group, multicast_mac(&group)), |mac| (*address, mac));
                self.emit_nd(
                    port,
                    (NeighborKind::Solicitation, address),
                    (&own, &to_ip),
                    to,
                    out,
                    pool,
                );
            }
        }
    }

    /// Announces the box's addresses to the neighbours of every port (gratuitous ARP,
    /// unsolicited advertisement).
    pub fn announce(&mut self, out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        for port in 0..self.config.ports.len() as u8 {
            let mac = self.config.ports[port as usize].mac;
            let own =
                self.own.iter().filter(|own| own.port == port).map(|own| ip_addr(&own.address));
            let chains = self
                .config
                .owned
                .iter()
                .filter(|prefix| prefix.size() <= ANNOUNCED)
                .flat_map(|prefix| addresses_of(prefix.first(), prefix.size()));
            for address in own.chain(chains).collect::<Vec<IpAddr>>() {
                let bytes = ip_bytes(address);
                match unmap_v4(&bytes) {
                    Some(v4) => {
                        self.emit_arp(port, Arp::request((mac, v4), v4), MAC_BROADCAST, out, pool)
                    }
                    None => {
                        let to = multicast_mac(&ALL_NODES);
                        self.emit_nd(
                            port,
                            (advertisement(false), &bytes),
                            (&bytes, &ALL_NODES),
                            to,
                            out,
                            pool,
                        );
                    }
                }
            }
        }
    }
}

fn addresses_of(first: IpAddr, count: u64) -> Vec<IpAddr> {
    match first {
        IpAddr::V4(first) => {
            (0..count as u32).map(|at| IpAddr::V4((u32::from(first) + at).into())).collect()
        }
        IpAddr::V6(first) => {
            (0..u128::from(count)).map(|at| IpAddr::V6((u128::from(first) + at).into())).collect()
        }
    }
}

/// The link-layer address in an option of this type, if there is one. `None` if the
/// options are malformed.
fn link_option(mut options: &[u8], wanted: u8) -> Option<Option<Mac>> {
    let mut found = None;
    while !options.is_empty() {
        let len = *options.get(1)? as usize * 8;
        if len == 0 {
            return None;
        }
        let option = options.get(..len)?;
        if option[0] == wanted {
            found = option[2..8].try_into().ok();
        }
        options = &options[len..];
    }
    Some(found)
}
