//! ICMP that the box makes: echo replies and errors (RFC 792, RFC 4443, RFC 1812 section
//! 4.3).

use holdfast_wire::build::{self, Ethernet, IcmpError, Icmpv6Error};
use holdfast_wire::header::{Icmp, icmp, icmpv6, proto};
use holdfast_wire::{Network, Packet, checksum, unmap_v4};
use zerocopy::FromBytes;

/// The problem that an error reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Problem {
    /// The TTL or hop limit is spent.
    TimeExceeded,
    /// Other fragments did not come in time.
    NotReassembled,
    /// No route.
    NoRoute,
    /// The next hop does not answer.
    HostUnreachable,
    /// The box does not speak the protocol; IPv4 only.
    ProtocolUnreachable,
    /// No process listens at this port.
    PortUnreachable,
    /// Parameter problem: a header field or option that the box does not know; IPv6 only.
    Parameter {
        /// Code of the parameter problem (RFC 4443, section 3.4).
        code: u8,
        /// Offset of the field, bytes from the packet's beginning.
        at: u32,
    },
    /// A chain refuses the packet.
    Prohibited,
    /// The packet is longer than this MTU, and may not be fragmented.
    TooBig(u16),
}

/// True if an error about this packet may be sent: not about errors, later fragments, or
/// packets to many (RFC 1122, section 3.2.2).
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

/// True if a local packet is a whole echo request.
pub(crate) fn is_echo_request(packet: &Packet) -> bool {
    let wanted = if packet.layers.network == Network::V6 { icmpv6::ECHO } else { icmp::ECHO };
    !packet.layers.fragment && packet.icmp().is_some_and(|header| header.kind == wanted)
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
        header.checksum = checksum::Delta::new()
            .word(u16::from(old) << 8, u16::from(new) << 8)
            .apply(header.checksum.get())
            .into();
    }
    if is_v6 {
        take_off_extensions(packet);
    }
}

/// Removes the extension headers of an echo request: the reply has none.
fn take_off_extensions(packet: &mut Packet) {
    let (front, l4) =
        (usize::from(packet.layers.l3) + build::Ipv6::LEN, usize::from(packet.layers.l4));
    let len = packet.l4().len() as u16;
    if let Some(ip) = packet.ipv6_mut()
        && l4 > front
    {
        (ip.next_header, ip.payload_len) = (proto::ICMPV6, len.into());
        packet.bytes_mut().copy_within(..front, l4 - front);
        // The frame is longer than that.
        let _ = packet.pull_front(l4 - front);
    }
}

/// Makes the packet into an error about itself, from `from` to its source, short enough
/// for the MTU of its port. False, with the packet spoiled, if that is not possible.
pub(crate) fn report(packet: &mut Packet, problem: Problem, from: &[u8; 16], mtu: u16) -> bool {
    let Some(mut ethernet) = packet.bytes().first_chunk::<{ Ethernet::LEN }>().copied() else {
        return false;
    };
    // The error does not get the tag that a function has put on.
    ethernet[12..].copy_from_slice(&packet.layers.ethertype.to_be_bytes());
    match packet.layers.network {
        Network::V4 => {
            let (Some(from), Some(to)) = (unmap_v4(from), packet.ipv4().map(|ip| ip.source)) else {
                return false;
            };
            let (kind, code, rest) = match problem {
                Problem::TimeExceeded => (icmp::TIME_EXCEEDED, 0, 0),
                Problem::NotReassembled => (icmp::TIME_EXCEEDED, 1, 0),
                Problem::NoRoute => (icmp::UNREACHABLE, 0, 0),
                Problem::HostUnreachable => (icmp::UNREACHABLE, 1, 0),
                Problem::ProtocolUnreachable => (icmp::UNREACHABLE, 2, 0),
                Problem::PortUnreachable => (icmp::UNREACHABLE, 3, 0),
                // RFC 1812, section 5.2.7.1: communication administratively prohibited.
                Problem::Prohibited => (icmp::UNREACHABLE, 13, 0),
                Problem::TooBig(mtu) => (icmp::UNREACHABLE, 4, mtu.into()),
                Problem::Parameter { .. } => return false,
            };
            // RFC 1812, section 4.3.2.5: errors have precedence 6 or 7.
            let ip = build::Ipv4 { tos: 0xc0, ..build::Ipv4::new(from, to, proto::ICMP) };
            const IP: usize = Ethernet::LEN;
            const MESSAGE: usize = IP + build::Ipv4::LEN;
            // RFC 792: at least the header and 8 bytes. IPv6 has no links that are too
            // small for its errors.
            let room = usize::from(mtu).saturating_sub(build::Ipv4::LEN + IcmpError::LEN).max(28);
            let quote = IcmpError::MAX_QUOTE.min(room);
            let Some(frame) = around_quote(packet, MESSAGE + IcmpError::LEN, quote) else {
                return false;
            };
            frame[..IP].copy_from_slice(&ethernet);
            let written = IcmpError { kind, code, rest }.write(&mut frame[MESSAGE..]);
            written.and_then(|()| ip.write(&mut frame[IP..])).is_ok()
        }
        Network::V6 => {
            let Some(to) = packet.ipv6().map(|ip| ip.source) else { return false };
            let (kind, code, rest) = match problem {
                Problem::TimeExceeded => (icmpv6::TIME_EXCEEDED, 0, 0),
                Problem::NotReassembled => (icmpv6::TIME_EXCEEDED, 1, 0),
                Problem::NoRoute => (icmpv6::UNREACHABLE, 0, 0),
                Problem::HostUnreachable => (icmpv6::UNREACHABLE, 3, 0),
                Problem::PortUnreachable => (icmpv6::UNREACHABLE, 4, 0),
                // RFC 4443, section 3.1: communication with destination administratively
                // prohibited.
                Problem::Prohibited => (icmpv6::UNREACHABLE, 1, 0),
                Problem::TooBig(mtu) => (icmpv6::PACKET_TOO_BIG, 0, mtu.into()),
                Problem::Parameter { code, at } => (icmpv6::PARAMETER_PROBLEM, code, at),
                Problem::ProtocolUnreachable => return false,
            };
            let ip = build::Ipv6::new(*from, to, proto::ICMPV6);
            const IP: usize = Ethernet::LEN;
            const MESSAGE: usize = IP + build::Ipv6::LEN;
            let Some(frame) =
                around_quote(packet, MESSAGE + Icmpv6Error::LEN, Icmpv6Error::MAX_QUOTE)
            else {
                return false;
            };
            frame[..IP].copy_from_slice(&ethernet);
            let written = Icmpv6Error { kind, code, rest }.write(&mut frame[MESSAGE..], from, &to);
            written.and_then(|()| ip.write(&mut frame[IP..])).is_ok()
        }
        Network::Other => false,
    }
}

/// Cuts the frame to its IP packet, and that to `quote` bytes, with `headers` bytes to be
/// written in front.
fn around_quote(packet: &mut Packet, headers: usize, quote: usize) -> Option<&mut [u8]> {
    let (l3, end) = (packet.layers.l3 as usize, packet.layers.end as usize);
    packet.truncate(end.min(l3 + quote));
    if !packet.pull_front(l3) {
        return None;
    }
    packet.push_front(headers)?;
    Some(packet.bytes_mut())
}
