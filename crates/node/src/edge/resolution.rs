//! ARP (RFC 826) and neighbour discovery (RFC 4861): asking, answering, learning.

use super::{Edge, EdgeOut, is_multicast};
use holdfast_protection::Released;
use holdfast_wire::header::{ETHERTYPE_ARP, ETHERTYPE_IPV6, Ipv6, MAC_BROADCAST, Mac, icmpv6, proto};
use holdfast_wire::{DropReason, Network, Packet, PacketPool, checksum, ip_bytes, map_v4, unmap_v4};
use std::net::IpAddr;
use zerocopy::IntoBytes;

const REQUEST: u16 = 1;
const REPLY: u16 = 2;
/// Ethernet and IPv4, lengths 6 and 4.
const ARP_PREFIX: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_LEN: usize = 28;

fn arp_frame(operation: u16, sender: (Mac, [u8; 4]), target: (Mac, [u8; 4]), to: Mac) -> [u8; 14 + ARP_LEN] {
    let mut frame = [0; 14 + ARP_LEN];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&sender.0);
    frame[12..14].copy_from_slice(&ETHERTYPE_ARP.to_be_bytes());
    frame[14..20].copy_from_slice(&ARP_PREFIX);
    frame[20..22].copy_from_slice(&operation.to_be_bytes());
    frame[22..28].copy_from_slice(&sender.0);
    frame[28..32].copy_from_slice(&sender.1);
    frame[32..38].copy_from_slice(&target.0);
    frame[38..42].copy_from_slice(&target.1);
    frame
}

/// The multicast address that a neighbour with this address listens to (RFC 4291, section 2.7.1), and its MAC address.
fn solicited_node(address: &[u8; 16]) -> ([u8; 16], Mac) {
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    group[13..].copy_from_slice(&address[13..]);
    (group, [0x33, 0x33, 0xff, address[13], address[14], address[15]])
}

/// A neighbour solicitation or advertisement with its link-layer address option.
fn nd_frame(kind: u8, flags: u32, target: &[u8; 16], own: Mac, ends: (&[u8; 16], &[u8; 16]), to: Mac) -> [u8; 14 + 40 + 32] {
    let (source, destination) = ends;
    let mut message = [0u8; 32];
    message[0] = kind;
    message[4..8].copy_from_slice(&flags.to_be_bytes());
    message[8..24].copy_from_slice(target);
    message[24] = if kind == icmpv6::NEIGHBOR_SOLICITATION { 1 } else { 2 };
    message[25] = 1;
    message[26..32].copy_from_slice(&own);
    let sum = checksum::transport(source, destination, proto::ICMPV6, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let ip = Ipv6 {
        version_class_flow: 0x6000_0000.into(),
        payload_len: 32.into(),
        next_header: proto::ICMPV6,
        hop_limit: 255,
        source: *source,
        destination: *destination,
    };
    let mut frame = [0; 14 + 40 + 32];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&own);
    frame[12..14].copy_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
    frame[14..54].copy_from_slice(ip.as_bytes());
    frame[54..].copy_from_slice(&message);
    frame
}

impl Edge {
    fn emit(&mut self, port: u8, frame: &[u8], out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        let Some(mut packet) = pool.take() else {
            self.drops.count(DropReason::ArenaEmpty);
            return;
        };
        packet.clear();
        if packet.copy_from(frame) {
            out.transmit.push((port, Released::stateless(packet)));
        } else {
            pool.put(packet);
        }
    }

    /// Sends what waited for a neighbour that is known now.
    fn learned(&mut self, port: u8, address: &[u8; 16], mac: Mac, now: u64, create: bool, out: &mut EdgeOut) {
        for mut packet in self.neighbors.learn(port, address, mac, now, create) {
            self.address_frame(port, mac, &mut packet);
            out.transmit.push((port, packet));
        }
    }

    pub(super) fn handle_arp(&mut self, port: u8, packet: Packet, now: u64, out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        let Some(arp) = packet.bytes().get(14..14 + ARP_LEN).and_then(|bytes| <[u8; ARP_LEN]>::try_from(bytes).ok()) else {
            return self.drop(packet, DropReason::Truncated, pool);
        };
        let field = |at: usize| [arp[at], arp[at + 1], arp[at + 2], arp[at + 3]];
        let mac: Mac = [arp[8], arp[9], arp[10], arp[11], arp[12], arp[13]];
        let (sender, target) = (field(14), field(24));
        let operation = u16::from_be_bytes([arp[6], arp[7]]);
        let is_sane = arp[..6] == ARP_PREFIX && mac[0] & 1 == 0 && packet.bytes()[6..12] == mac;
        // Nobody else has our addresses.
        if !is_sane || self.owns(&map_v4(sender)) {
            return self.drop(packet, DropReason::BadSource, pool);
        }
        pool.put(packet);
        let is_for_us = self.owns(&map_v4(target));
        if sender != [0; 4] && !is_multicast(&map_v4(sender)) {
            self.learned(port, &map_v4(sender), mac, now, is_for_us, out);
        }
        if operation == REQUEST && is_for_us {
            let own = self.config.ports[port as usize].mac;
            self.emit(port, &arp_frame(REPLY, (own, target), (mac, sender), mac), out, pool);
        }
    }

    pub(super) fn is_neighbor_discovery(&self, packet: &Packet) -> bool {
        packet.layers.network == Network::V6
            && packet
                .icmp()
                .is_some_and(|header| (icmpv6::ROUTER_SOLICITATION..=icmpv6::NEIGHBOR_ADVERTISEMENT + 1).contains(&header.kind))
    }

    pub(super) fn handle_nd(&mut self, port: u8, packet: Packet, now: u64, out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        let Some(ip) = packet.ipv6().copied() else { return self.drop(packet, DropReason::Truncated, pool) };
        let message = packet.l4();
        // RFC 4861, section 7.1: it has crossed no router, is whole, and its checksum is right.
        if ip.hop_limit != 255
            || message.len() < 24
            || message[1] != 0
            || checksum::transport(&ip.source, &ip.destination, proto::ICMPV6, message) != 0
        {
            return self.drop(packet, DropReason::BadSource, pool);
        }
        let kind = message[0];
        let mut target = [0; 16];
        target.copy_from_slice(&message[8..24]);
        let wanted = if kind == icmpv6::NEIGHBOR_SOLICITATION { 1 } else { 2 };
        let link = link_option(&message[24..], wanted);
        pool.put(packet);
        match kind {
            icmpv6::NEIGHBOR_SOLICITATION if self.owns(&target) => {
                let own = self.config.ports[port as usize].mac;
                let is_probe = ip.source == [0; 16];
                if let (Some(mac), false) = (link, is_probe || self.owns(&ip.source)) {
                    self.learned(port, &ip.source, mac, now, true, out);
                }
                // Router, override, and solicited unless it was a probe for duplicates, whose answer goes to all nodes.
                let all_nodes = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
                let (flags, to_ip, to_mac) = if is_probe {
                    (0xa000_0000, all_nodes, [0x33, 0x33, 0, 0, 0, 1])
                } else {
                    (0xe000_0000, ip.source, link.unwrap_or(MAC_BROADCAST))
                };
                self.emit(
                    port,
                    &nd_frame(icmpv6::NEIGHBOR_ADVERTISEMENT, flags, &target, own, (&target, &to_ip), to_mac),
                    out,
                    pool,
                );
            }
            icmpv6::NEIGHBOR_ADVERTISEMENT if !self.owns(&target) => {
                if let Some(mac) = link {
                    self.learned(port, &target, mac, now, false, out);
                }
            }
            _ => {}
        }
    }

    /// Asks for a neighbour's address; of one that is known already, by unicast.
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
                self.emit(port, &arp_frame(REQUEST, (mac, own), ([0; 6], target), to), out, pool);
            }
            _ => {
                let (group, group_mac) = solicited_node(address);
                let (to_ip, to) = known.map_or((group, group_mac), |mac| (*address, mac));
                self.emit(port, &nd_frame(icmpv6::NEIGHBOR_SOLICITATION, 0, address, mac, (&own, &to_ip), to), out, pool);
            }
        }
    }

    /// Tells the neighbours of every port where the box's addresses are (gratuitous ARP, unsolicited advertisement).
    pub fn announce(&mut self, out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        for port in 0..self.config.ports.len() as u8 {
            let mac = self.config.ports[port as usize].mac;
            let own = self.config.ports[port as usize].addresses.iter().map(|(address, _)| *address);
            // A pool may be large; its neighbours ask when they need it. Single addresses are announced.
            let single = self
                .config
                .owned
                .iter()
                .filter(|prefix| prefix.size() <= 16)
                .flat_map(|prefix| addresses_of(prefix.first(), prefix.size()));
            for address in own.chain(single).collect::<Vec<IpAddr>>() {
                let bytes = ip_bytes(address);
                match unmap_v4(&bytes) {
                    Some(v4) => self.emit(port, &arp_frame(REQUEST, (mac, v4), ([0; 6], v4), MAC_BROADCAST), out, pool),
                    None => {
                        let all_nodes = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
                        let frame = nd_frame(
                            icmpv6::NEIGHBOR_ADVERTISEMENT,
                            0xa000_0000,
                            &bytes,
                            mac,
                            (&bytes, &all_nodes),
                            [0x33, 0x33, 0, 0, 0, 1],
                        );
                        self.emit(port, &frame, out, pool);
                    }
                }
            }
        }
    }
}

fn addresses_of(first: IpAddr, count: u64) -> Vec<IpAddr> {
    match first {
        IpAddr::V4(first) => (0..count as u32).map(|at| IpAddr::V4((u32::from(first) + at).into())).collect(),
        IpAddr::V6(first) => (0..u128::from(count)).map(|at| IpAddr::V6((u128::from(first) + at).into())).collect(),
    }
}

/// The link-layer address in an option of this type.
fn link_option(mut options: &[u8], wanted: u8) -> Option<Mac> {
    while options.len() >= 8 {
        let len = options[1] as usize * 8;
        if len == 0 || len > options.len() {
            return None;
        }
        if options[0] == wanted {
            return options[2..8].try_into().ok();
        }
        options = &options[len..];
    }
    None
}
