//! The part of a packet that nDPI gets.

use holdfast_nf::Packet;
use holdfast_nf::wire::Network;
use holdfast_nf::wire::header::{proto, tcp_flags};

/// The use of a packet to nDPI.
pub(super) enum Kind<'p> {
    /// The whole IP packet: its headers are there, its lengths are right, and it carries
    /// data.
    Whole(&'p [u8]),
    /// There is nothing to see in it.
    Empty,
    /// A fragment, or a packet that its receiver drops.
    Unfit,
}

/// Headers and lengths were checked when the packet was parsed.
pub(super) fn kind(packet: &Packet) -> Kind<'_> {
    if packet.layers.fragment {
        return Kind::Unfit;
    }
    let has_data = match packet.layers.protocol {
        proto::TCP => packet
            .tcp_segment()
            .is_some_and(|(tcp, data)| !data.is_empty() && tcp.flags & tcp_flags::RST == 0),
        proto::UDP => packet.udp().is_some() && packet.l4().len() > 8,
        // A message about another packet.
        proto::ICMP | proto::ICMPV6 => packet.icmp().is_some() && !packet.is_icmp_error(),
        _ => !packet.l4().is_empty(),
    };
    let (start, end) = (usize::from(packet.layers.l3), usize::from(packet.layers.end));
    match packet.bytes().get(start..end) {
        Some(_) if has_data && packet.is_intact() == Some(false) => Kind::Unfit,
        Some(ip) if has_data => Kind::Whole(ip),
        _ => Kind::Empty,
    }
}

/// The first packet of a connection, as far as the library cares: a SYN from the side
/// that opened it.
pub(super) struct Syn {
    bytes: [u8; 60],
    len: usize,
}

impl Syn {
    /// The SYN of this segment's connection. It tells nDPI which side is the client, also
    /// where the server speaks first.
    pub(super) fn of(packet: &Packet, is_from_client: bool) -> Option<Syn> {
        let (tcp, ip) = (packet.tcp()?, packet.bytes().get(usize::from(packet.layers.l3)..)?);
        let (mut bytes, header, addresses) = match packet.layers.network {
            Network::V4 => {
                let mut bytes = [0; 60];
                // A header of five words; 40 bytes; don't fragment; TTL 64.
                bytes[..10].copy_from_slice(&[0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, proto::TCP]);
                (bytes, 20, ip.get(12..20)?)
            }
            Network::V6 => {
                let mut bytes = [0; 60];
                // 20 bytes behind the header; hop limit 64.
                bytes[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 20, proto::TCP, 64]);
                (bytes, 40, ip.get(8..40)?)
            }
            Network::Other => return None,
        };
        let (source, destination) = addresses.split_at(addresses.len() / 2);
        let ports = [tcp.source.get(), tcp.destination.get()];
        let (from, to, [from_port, to_port], next) = if is_from_client {
            (source, destination, ports, tcp.sequence.get())
        } else {
            (destination, source, [ports[1], ports[0]], tcp.acknowledgement.get())
        };
        let at = header - addresses.len();
        bytes[at..at + from.len()].copy_from_slice(from);
        bytes[at + from.len()..header].copy_from_slice(to);
        let segment = &mut bytes[header..];
        segment[..2].copy_from_slice(&from_port.to_be_bytes());
        segment[2..4].copy_from_slice(&to_port.to_be_bytes());
        segment[4..8].copy_from_slice(&next.wrapping_sub(1).to_be_bytes());
        // A header of five words; the widest window.
        segment[12..16].copy_from_slice(&[0x50, tcp_flags::SYN, 0xff, 0xff]);
        Some(Syn { bytes, len: header + 20 })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
