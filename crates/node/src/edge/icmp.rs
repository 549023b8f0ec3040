//! ICMP that the box makes: echo replies and errors (RFC 792, RFC 4443, RFC 1812 section 4.3).

use holdfast_wire::header::{Icmp, Ipv4, Ipv6, icmp, icmpv6, proto};
use holdfast_wire::{Network, Packet, checksum, unmap_v4};
use zerocopy::{FromBytes, IntoBytes};

/// What is wrong with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Problem {
    /// TTL or hop limit.
    TimeExceeded,
    /// No route.
    NoRoute,
    /// The next hop does not answer.
    HostUnreachable,
    /// Nobody listens at this port.
    PortUnreachable,
    /// Longer than this MTU, and not to be fragmented.
    TooBig(u16),
}

/// Bytes of the quoted packet: IPv4 errors carry at most 576 bytes altogether (RFC 1812, section 4.3.2.3).
const QUOTE_V4: usize = 576 - 28;
/// IPv6 errors fit into the minimum MTU (RFC 4443, section 3.1).
const QUOTE_V6: usize = 1280 - 48;

/// True if an error about this packet may be sent: not about errors, later fragments, or packets to many (RFC 1122, section 3.2.2).
pub(crate) fn may_report(packet: &Packet) -> bool {
    if packet.layers.fragment_offset != 0 || packet.bytes()[0] & 1 != 0 {
        return false;
    }
    match packet.icmp() {
        None => true,
        Some(header) if packet.layers.network == Network::V6 => header.kind >= icmpv6::ECHO,
        Some(header) => matches!(header.kind, icmp::ECHO | icmp::ECHO_REPLY),
    }
}

/// Whether a local packet is ping's question, whole.
pub(crate) fn is_echo_request(packet: &Packet) -> bool {
    let wanted = if packet.layers.network == Network::V6 { icmpv6::ECHO } else { icmp::ECHO };
    !packet.layers.fragment && packet.icmp().is_some_and(|header| header.kind == wanted)
}

/// Whether an ICMP message's own checksum is right.
pub(crate) fn is_intact(packet: &Packet) -> bool {
    match packet.ipv6() {
        Some(ip) => checksum::transport(&ip.source, &ip.destination, proto::ICMPV6, packet.l4()) == 0,
        None => checksum::checksum(packet.l4()) == 0,
    }
}

/// Makes an echo request the reply to itself.
pub(crate) fn turn_echo(packet: &mut Packet) {
    let is_v6 = packet.layers.network == Network::V6;
    if let Some(ip) = packet.ipv4_mut() {
        (ip.source, ip.destination) = (ip.destination, ip.source);
        let delta = checksum::Delta::new().word(u16::from(ip.ttl) << 8, 64 << 8);
        ip.ttl = 64;
        ip.checksum = delta.apply(ip.checksum.get()).into();
    }
    if let Some(ip) = packet.ipv6_mut() {
        (ip.source, ip.destination) = (ip.destination, ip.source);
        ip.hop_limit = 64;
    }
    if let Ok((header, _)) = Icmp::mut_from_prefix(packet.l4_mut()) {
        let (old, new) = (header.kind, if is_v6 { icmpv6::ECHO_REPLY } else { icmp::ECHO_REPLY });
        header.kind = new;
        header.checksum =
            checksum::Delta::new().word(u16::from(old) << 8, u16::from(new) << 8).apply(header.checksum.get()).into();
    }
}

/// Makes the packet into an error about itself, from `from` to its source. False, and the packet spoiled, if that is not possible.
pub(crate) fn report(packet: &mut Packet, problem: Problem, from: &[u8; 16]) -> bool {
    let (l3, end) = (packet.layers.l3 as usize, packet.layers.end as usize);
    let Some(frame_header) = packet.bytes().get(..14).and_then(|bytes| <[u8; 14]>::try_from(bytes).ok()) else { return false };
    packet.truncate(end);
    match packet.layers.network {
        Network::V4 => {
            let (Some(from), Some(to)) = (unmap_v4(from), packet.ipv4().map(|ip| ip.source)) else { return false };
            if !packet.pull_front(l3) {
                return false;
            }
            packet.truncate(QUOTE_V4);
            let quoted = packet.len();
            let (kind, code, rest) = match problem {
                Problem::TimeExceeded => (icmp::TIME_EXCEEDED, 0, 0),
                Problem::NoRoute => (icmp::UNREACHABLE, 0, 0),
                Problem::HostUnreachable => (icmp::UNREACHABLE, 1, 0),
                Problem::PortUnreachable => (icmp::UNREACHABLE, 3, 0),
                Problem::TooBig(mtu) => (icmp::UNREACHABLE, 4, mtu),
            };
            let header = Icmp { kind, code, checksum: 0.into(), id: 0.into(), sequence: rest.into() };
            if !put_front(packet, header.as_bytes()) {
                return false;
            }
            let sum = checksum::checksum(packet.bytes());
            packet.bytes_mut()[2..4].copy_from_slice(&sum.to_be_bytes());
            let mut ip = Ipv4 {
                version_ihl: 0x45,
                tos: 0xc0,
                total_len: ((28 + quoted) as u16).into(),
                id: 0.into(),
                flags_fragment: 0.into(),
                ttl: 64,
                protocol: proto::ICMP,
                checksum: 0.into(),
                source: from,
                destination: to,
            };
            ip.checksum = checksum::checksum(ip.as_bytes()).into();
            put_front(packet, ip.as_bytes()) && put_front(packet, &frame_header)
        }
        Network::V6 => {
            let Some(to) = packet.ipv6().map(|ip| ip.source) else { return false };
            if !packet.pull_front(l3) {
                return false;
            }
            packet.truncate(QUOTE_V6);
            let (kind, code, mtu) = match problem {
                Problem::TimeExceeded => (icmpv6::TIME_EXCEEDED, 0, 0),
                Problem::NoRoute => (icmpv6::UNREACHABLE, 0, 0),
                Problem::HostUnreachable => (icmpv6::UNREACHABLE, 3, 0),
                Problem::PortUnreachable => (icmpv6::UNREACHABLE, 4, 0),
                Problem::TooBig(mtu) => (icmpv6::PACKET_TOO_BIG, 0, mtu),
            };
            let header = Icmp { kind, code, checksum: 0.into(), id: 0.into(), sequence: mtu.into() };
            if !put_front(packet, header.as_bytes()) {
                return false;
            }
            let sum = checksum::transport(from, &to, proto::ICMPV6, packet.bytes());
            packet.bytes_mut()[2..4].copy_from_slice(&sum.to_be_bytes());
            let ip = Ipv6 {
                version_class_flow: 0x6000_0000.into(),
                payload_len: (packet.len() as u16).into(),
                next_header: proto::ICMPV6,
                hop_limit: 64,
                source: *from,
                destination: to,
            };
            put_front(packet, ip.as_bytes()) && put_front(packet, &frame_header)
        }
        Network::Other => false,
    }
}

fn put_front(packet: &mut Packet, bytes: &[u8]) -> bool {
    match packet.push_front(bytes.len()) {
        Some(place) => {
            place.copy_from_slice(bytes);
            true
        }
        None => false,
    }
}
