//! ARP (RFC 826) and neighbour discovery (RFC 4861): asking, answering, learning.

use super::neighbors::Evidence;
use super::{Edge, EdgeOut};
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
/// To all nodes of a link (RFC 4291, section 2.7.1).
const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];
/// Flags of a neighbour advertisement (RFC 4861, section 4.4).
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Addresses of one range that are announced. Of a larger one, the neighbours ask when they need one.
const ANNOUNCED: u64 = 256;

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
fn nd_frame(kind: u8, flags: u8, target: &[u8; 16], own: Mac, ends: (&[u8; 16], &[u8; 16]), to: Mac) -> [u8; 14 + 40 + 32] {
    let (source, destination) = ends;
    let mut message = [0u8; 32];
    message[0] = kind;
    message[4] = flags;
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

/// Who solicits a neighbour.
struct Asker {
    address: [u8; 16],
    /// What it says its MAC address is.
    link: Option<Mac>,
    /// Where it hears an answer.
    mac: Mac,
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

    /// Notes what a neighbour said, and sends what waited for it.
    fn learned(&mut self, port: u8, address: &[u8; 16], mac: Mac, evidence: Evidence, now: u64, out: &mut EdgeOut) {
        // Who is not on the link has no neighbour entry here, whatever it asks.
        let evidence = match evidence {
            Evidence::Question if !self.is_on_link(port, address) => Evidence::Claim,
            other => other,
        };
        for mut packet in self.neighbors.learn((port, *address), mac, evidence, now) {
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
        let is_sane = arp[..6] == ARP_PREFIX && matches!(operation, REQUEST | REPLY) && packet.bytes()[6..12] == mac;
        // Nobody else has our addresses.
        if !is_sane || self.owns(&map_v4(sender)) || !self.is_host_or_unset(&map_v4(sender)) {
            return self.drop(packet, DropReason::BadSource, pool);
        }
        let is_to_us = packet.bytes()[0] & 1 == 0;
        pool.put(packet);
        let is_for_us = self.answers_for(port, &map_v4(target));
        if sender != [0; 4] {
            let evidence = match operation {
                REPLY if is_to_us => Evidence::Answer,
                REQUEST if is_for_us => Evidence::Question,
                _ => Evidence::Claim,
            };
            self.learned(port, &map_v4(sender), mac, evidence, now, out);
        }
        if operation == REQUEST && is_for_us {
            let own = self.config.ports[port as usize].mac;
            self.emit(port, &arp_frame(REPLY, (own, target), (mac, sender), mac), out, pool);
        }
    }

    /// Router and neighbour discovery, whole or not.
    pub(super) fn is_neighbor_discovery(&self, packet: &Packet) -> bool {
        packet.layers.network == Network::V6
            && packet
                .icmp()
                .is_some_and(|header| (icmpv6::ROUTER_SOLICITATION..=icmpv6::NEIGHBOR_ADVERTISEMENT + 1).contains(&header.kind))
    }

    pub(super) fn handle_nd(&mut self, port: u8, packet: Packet, now: u64, out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        let Some(ip) = packet.ipv6().copied() else { return self.drop(packet, DropReason::Truncated, pool) };
        let message = packet.l4();
        // RFC 4861, section 7.1: it has crossed no router and is whole; RFC 6980: it was never in fragments.
        if ip.hop_limit != 255 || message[1] != 0 || packet.layers.v6_fragment != 0 {
            return self.drop(packet, DropReason::BadSource, pool);
        }
        if checksum::transport(&ip.source, &ip.destination, proto::ICMPV6, message) != 0 {
            return self.drop(packet, DropReason::BadChecksum, pool);
        }
        let kind = message[0];
        if kind != icmpv6::NEIGHBOR_SOLICITATION && kind != icmpv6::NEIGHBOR_ADVERTISEMENT {
            // The box advertises itself to nobody, and takes no advice about routes.
            return self.drop(packet, DropReason::Local, pool);
        }
        let Some((target, options)) = message.get(8..).and_then(|rest| rest.split_first_chunk::<16>()) else {
            return self.drop(packet, DropReason::Truncated, pool);
        };
        let (target, flags) = (*target, message[4]);
        let Some(link) = link_option(options, if kind == icmpv6::NEIGHBOR_SOLICITATION { 1 } else { 2 }) else {
            return self.drop(packet, DropReason::BadLength, pool);
        };
        let frame_source: Mac = packet.bytes()[6..12].try_into().unwrap_or(MAC_BROADCAST);
        let is_sane = target[0] != 0xff
            && unmap_v4(&target).is_none()
            && link.is_none_or(|mac| mac[0] & 1 == 0)
            && self.is_host_or_unset(&ip.source)
            && !self.owns(&ip.source);
        let is_sane = is_sane
            && if kind == icmpv6::NEIGHBOR_SOLICITATION {
                // Somebody without an address yet asks whether it is taken, and has nothing to teach.
                ip.source != [0; 16] || (link.is_none() && ip.destination == solicited_node(&target).0)
            } else {
                // Nobody else has our addresses; an answer to all is not an answer to a question.
                !self.owns(&target) && (ip.destination[0] != 0xff || flags & SOLICITED == 0)
            };
        if !is_sane {
            return self.drop(packet, DropReason::BadSource, pool);
        }
        pool.put(packet);
        if kind == icmpv6::NEIGHBOR_SOLICITATION {
            let asker = Asker { address: ip.source, link, mac: link.unwrap_or(frame_source) };
            self.handle_solicitation(port, &target, asker, now, out, pool);
        } else {
            self.handle_advertisement(port, &target, flags, link, now, out);
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
            self.learned(port, &asker.address, mac, Evidence::Question, now, out);
        }
        // The answer to a probe for duplicates goes to all nodes: who asks has no address yet.
        let (flags, to_ip, to_mac) = if asker.address == [0; 16] {
            (ROUTER | OVERRIDE, ALL_NODES, ALL_NODES_MAC)
        } else {
            (ROUTER | SOLICITED | OVERRIDE, asker.address, asker.mac)
        };
        let own = self.config.ports[port as usize].mac;
        let frame = nd_frame(icmpv6::NEIGHBOR_ADVERTISEMENT, flags, target, own, (target, &to_ip), to_mac);
        self.emit(port, &frame, out, pool);
    }

    /// RFC 4861, section 7.2.5.
    fn handle_advertisement(&mut self, port: u8, target: &[u8; 16], flags: u8, link: Option<Mac>, now: u64, out: &mut EdgeOut) {
        let known = self.neighbors.known(&(port, *target));
        let Some(mac) = link.or(known) else { return };
        if flags & OVERRIDE == 0 && known.is_some_and(|known| known != mac) {
            self.neighbors.doubt(&(port, *target));
            return;
        }
        let evidence = if flags & SOLICITED != 0 { Evidence::Answer } else { Evidence::Claim };
        self.learned(port, target, mac, evidence, now, out);
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
            (Some(_), None) | (None, Some(_)) => {}
            (None, None) => {
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
            let chains = self
                .config
                .owned
                .iter()
                .filter(|prefix| prefix.size() <= ANNOUNCED)
                .flat_map(|prefix| addresses_of(prefix.first(), prefix.size()));
            for address in own.chain(chains).collect::<Vec<IpAddr>>() {
                let bytes = ip_bytes(address);
                match unmap_v4(&bytes) {
                    Some(v4) => self.emit(port, &arp_frame(REQUEST, (mac, v4), ([0; 6], v4), MAC_BROADCAST), out, pool),
                    None => {
                        let (kind, flags) = (icmpv6::NEIGHBOR_ADVERTISEMENT, ROUTER | OVERRIDE);
                        let frame = nd_frame(kind, flags, &bytes, mac, (&bytes, &ALL_NODES), ALL_NODES_MAC);
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

/// The link-layer address in an option of this type, if there is one. `None` if the options are not as they should be.
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
