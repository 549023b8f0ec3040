//! Headers as laid out in a frame: fixed layouts, network byte order, no alignment.
//!
//! Each is a `zerocopy` view: `Ipv4::ref_from_prefix(bytes)` costs a length check and
//! nothing else.

use crate::checksum;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP (RFC 826).
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of an 802.1ad service tag.
pub const ETHERTYPE_QINQ: u16 = 0x88a8;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherType of NSH (RFC 8300, section 11.1).
pub const ETHERTYPE_NSH: u16 = 0x894f;
/// EtherType of fabric messages: IEEE 802 local experimental 2.
pub const ETHERTYPE_FABRIC: u16 = 0x88b6;

/// IP protocol numbers used here.
pub mod proto {
    /// IPv6 hop-by-hop options (RFC 8200, section 4.3).
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP (RFC 792).
    pub const ICMP: u8 = 1;
    /// TCP (RFC 9293).
    pub const TCP: u8 = 6;
    /// UDP (RFC 768).
    pub const UDP: u8 = 17;
    /// IPv6 routing header (RFC 8200, section 4.4).
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header (RFC 8200, section 4.5).
    pub const FRAGMENT: u8 = 44;
    /// ICMPv6 (RFC 4443).
    pub const ICMPV6: u8 = 58;
    /// IPv6 destination options (RFC 8200, section 4.6).
    pub const DESTINATION_OPTIONS: u8 = 60;
}

/// A MAC address.
pub type Mac = [u8; 6];

/// The broadcast MAC address.
pub const MAC_BROADCAST: Mac = [0xff; 6];

/// Ethernet II header, 14 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ethernet {
    /// Destination.
    pub destination: Mac,
    /// Source.
    pub source: Mac,
    /// EtherType.
    pub ethertype: U16,
}

/// IPv4 header without options, 20 bytes (RFC 791).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv4 {
    /// Version (4) and header length in 32-bit words.
    pub version_ihl: u8,
    /// DSCP and ECN.
    pub tos: u8,
    /// Header and payload, bytes.
    pub total_len: U16,
    /// Identification.
    pub id: U16,
    /// Flags and fragment offset in 8-byte units.
    pub flags_fragment: U16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol.
    pub protocol: u8,
    /// Header checksum.
    pub checksum: U16,
    /// Source.
    pub source: [u8; 4],
    /// Destination.
    pub destination: [u8; 4],
}

/// IPv6 header, 40 bytes (RFC 8200, section 3).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv6 {
    /// Version, traffic class, flow label.
    pub version_class_flow: U32,
    /// Bytes after this header.
    pub payload_len: U16,
    /// Protocol of the next header.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source.
    pub source: [u8; 16],
    /// Destination.
    pub destination: [u8; 16],
}

/// TCP header without options, 20 bytes (RFC 9293, section 3.1).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Tcp {
    /// Source port.
    pub source: U16,
    /// Destination port.
    pub destination: U16,
    /// Sequence number.
    pub sequence: U32,
    /// Acknowledgement number.
    pub acknowledgement: U32,
    /// Header length in 32-bit words, upper 4 bits.
    pub data_offset: u8,
    /// Flags, see [`tcp_flags`].
    pub flags: u8,
    /// Window, unscaled.
    pub window: U16,
    /// Checksum.
    pub checksum: U16,
    /// Urgent pointer.
    pub urgent: U16,
}

/// Bits of [`Tcp::flags`].
pub mod tcp_flags {
    /// No more data from the sender.
    pub const FIN: u8 = 1;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 2;
    /// Reset.
    pub const RST: u8 = 4;
    /// Push.
    pub const PSH: u8 = 8;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 16;
    /// The urgent pointer is valid.
    pub const URG: u8 = 32;
}

/// UDP header, 8 bytes (RFC 768).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Udp {
    /// Source port.
    pub source: U16,
    /// Destination port.
    pub destination: U16,
    /// Header and data, bytes.
    pub len: U16,
    /// Checksum; 0 over IPv4 means none.
    pub checksum: U16,
}

/// ICMP and ICMPv6 header, 8 bytes (RFC 792, RFC 4443).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Icmp {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// Checksum.
    pub checksum: U16,
    /// Identifier of an echo; unused, or part of the next word, in errors.
    pub id: U16,
    /// Sequence number of an echo; next-hop MTU of IPv4 "fragmentation needed".
    pub sequence: U16,
}

/// ICMP types.
pub mod icmp {
    use crate::fault::{Fault, is_planted};

    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Code of a destination unreachable: fragmentation needed, and not allowed.
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Source quench, deprecated by RFC 6633.
    pub const SOURCE_QUENCH: u8 = 4;
    /// Redirect.
    pub const REDIRECT: u8 = 5;
    /// Echo request.
    pub const ECHO: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 12;
    /// Timestamp request.
    pub const TIMESTAMP: u8 = 13;
    /// Timestamp reply.
    pub const TIMESTAMP_REPLY: u8 = 14;

    /// True for the types that quote a packet.
    pub fn is_error(kind: u8) -> bool {
        matches!(kind, UNREACHABLE | SOURCE_QUENCH | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM)
    }

    /// True for errors that tell a packet's sender about the packet. A redirect is for a
    /// router's own neighbours (RFC 1122, section 3.2.2.2), and hosts ignore a source
    /// quench (RFC 6633, section 3): neither goes farther.
    pub fn is_about_a_flow(kind: u8) -> bool {
        matches!(kind, UNREACHABLE | TIME_EXCEEDED | PARAMETER_PROBLEM)
            || is_planted(Fault::RedirectsPass) && is_error(kind)
    }

    /// For a request, or a reply under the identifier of a request: the request's type,
    /// and true for the reply. `None` for all others, including the deprecated ones (RFC
    /// 6918).
    pub fn exchange(kind: u8) -> Option<(u8, bool)> {
        match kind {
            ECHO => Some((ECHO, false)),
            ECHO_REPLY => Some((ECHO, true)),
            TIMESTAMP => Some((TIMESTAMP, false)),
            TIMESTAMP_REPLY => Some((TIMESTAMP, true)),
            _ => None,
        }
    }
}

/// ICMPv6 types.
pub mod icmpv6 {
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Packet too big.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// Echo request.
    pub const ECHO: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Router solicitation (RFC 4861).
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// Router advertisement (RFC 4861).
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    /// Neighbour solicitation (RFC 4861).
    pub const NEIGHBOR_SOLICITATION: u8 = 135;
    /// Neighbour advertisement (RFC 4861).
    pub const NEIGHBOR_ADVERTISEMENT: u8 = 136;

    /// True for the types that quote a packet (RFC 4443, section 2.1: below 128).
    pub fn is_error(kind: u8) -> bool {
        matches!(kind, UNREACHABLE | PACKET_TOO_BIG | TIME_EXCEEDED | PARAMETER_PROBLEM)
    }

    /// As [`super::icmp::exchange`].
    pub fn exchange(kind: u8) -> Option<(u8, bool)> {
        match kind {
            ECHO => Some((ECHO, false)),
            ECHO_REPLY => Some((ECHO, true)),
            _ => None,
        }
    }
}

/// Typed views into a parsed packet. `None` if the packet has no such header.
impl crate::Packet {
    /// The Ethernet header.
    pub fn ethernet_mut(&mut self) -> Option<&mut Ethernet> {
        Ethernet::mut_from_prefix(self.headers_mut()).ok().map(|(header, _)| header)
    }

    /// The IPv4 header.
    #[inline]
    pub fn ipv4(&self) -> Option<&Ipv4> {
        (self.layers.network == crate::Network::V4).then_some(())?;
        Ipv4::ref_from_prefix(self.bytes().get(self.layers.l3 as usize..)?)
            .ok()
            .map(|(header, _)| header)
    }

    /// The IPv4 header, mutable.
    #[inline]
    pub fn ipv4_mut(&mut self) -> Option<&mut Ipv4> {
        (self.layers.network == crate::Network::V4).then_some(())?;
        let at = self.layers.l3 as usize;
        Ipv4::mut_from_prefix(self.headers_mut().get_mut(at..)?).ok().map(|(header, _)| header)
    }

    /// The IPv6 header.
    #[inline]
    pub fn ipv6(&self) -> Option<&Ipv6> {
        (self.layers.network == crate::Network::V6).then_some(())?;
        Ipv6::ref_from_prefix(self.bytes().get(self.layers.l3 as usize..)?)
            .ok()
            .map(|(header, _)| header)
    }

    /// The IPv6 header, mutable.
    #[inline]
    pub fn ipv6_mut(&mut self) -> Option<&mut Ipv6> {
        (self.layers.network == crate::Network::V6).then_some(())?;
        let at = self.layers.l3 as usize;
        Ipv6::mut_from_prefix(self.headers_mut().get_mut(at..)?).ok().map(|(header, _)| header)
    }

    /// Transport header and payload, to the end of the IP packet. Empty if the packet is
    /// not IP.
    #[inline]
    pub fn l4(&self) -> &[u8] {
        if self.layers.network == crate::Network::Other {
            return &[];
        }
        self.bytes().get(self.layers.l4 as usize..self.layers.end as usize).unwrap_or(&[])
    }

    /// As [`Packet::l4`](crate::Packet::l4), mutable.
    #[inline]
    pub fn l4_mut(&mut self) -> &mut [u8] {
        if self.layers.network == crate::Network::Other {
            return &mut [];
        }
        let range = self.layers.l4 as usize..self.layers.end as usize;
        self.bytes_mut().get_mut(range).unwrap_or(&mut [])
    }

    /// The TCP header of an unfragmented packet or a first fragment.
    #[inline]
    pub fn tcp(&self) -> Option<&Tcp> {
        (self.layers.protocol == proto::TCP && self.layers.has_transport()).then_some(())?;
        Tcp::ref_from_prefix(self.l4()).ok().map(|(header, _)| header)
    }

    /// The TCP header of an unfragmented packet or a first fragment, and the data behind
    /// it.
    #[inline]
    pub fn tcp_segment(&self) -> Option<(&Tcp, &[u8])> {
        let tcp = self.tcp()?;
        let data = self.l4().get(usize::from(tcp.data_offset >> 4) * 4..);
        Some((tcp, data.unwrap_or(&[])))
    }

    /// The UDP header of an unfragmented packet or a first fragment.
    #[inline]
    pub fn udp(&self) -> Option<&Udp> {
        (self.layers.protocol == proto::UDP && self.layers.has_transport()).then_some(())?;
        Udp::ref_from_prefix(self.l4()).ok().map(|(header, _)| header)
    }

    /// The ICMP (over IPv4) or ICMPv6 (over IPv6) header of an unfragmented packet or a
    /// first fragment.
    #[inline]
    pub fn icmp(&self) -> Option<&Icmp> {
        let is_icmp = match self.layers.network {
            crate::Network::V4 => self.layers.protocol == proto::ICMP,
            crate::Network::V6 => self.layers.protocol == proto::ICMPV6,
            crate::Network::Other => false,
        };
        (is_icmp && self.layers.has_transport()).then_some(())?;
        Icmp::ref_from_prefix(self.l4()).ok().map(|(header, _)| header)
    }

    /// True for an ICMP or ICMPv6 message that quotes a packet.
    #[inline]
    pub fn is_icmp_error(&self) -> bool {
        self.icmp().is_some_and(|header| match self.layers.network {
            crate::Network::V6 => icmpv6::is_error(header.kind),
            _ => icmp::is_error(header.kind),
        })
    }

    /// True if the checksum over the IP payload is right, or need not exist (RFC 792; RFC
    /// 4443, section 2.3; RFC 9293, section 3.1; RFC 768; RFC 8200, section 8.1). `None`
    /// if it cannot be checked: a fragment, or an unknown protocol.
    pub fn is_intact(&self) -> Option<bool> {
        if self.layers.fragment {
            return None;
        }
        // UDP has a length of its own, which parsing has checked.
        let len = self.udp().map(|udp| usize::from(udp.len.get()));
        let segment = self.l4();
        let segment = len.and_then(|len| segment.get(..len)).unwrap_or(segment);
        let is_unsummed = self.udp().is_some_and(|udp| udp.checksum.get() == 0);
        match (self.layers.protocol, self.ipv4(), self.ipv6()) {
            (proto::UDP, Some(_), _) if is_unsummed => Some(true),
            (proto::UDP, _, Some(_)) if is_unsummed => Some(false),
            (protocol @ (proto::TCP | proto::UDP), Some(ip), _) => {
                Some(checksum::transport(&ip.source, &ip.destination, protocol, segment) == 0)
            }
            (protocol @ (proto::TCP | proto::UDP | proto::ICMPV6), _, Some(ip)) => {
                Some(checksum::transport(&ip.source, &ip.destination, protocol, segment) == 0)
            }
            (proto::ICMP, Some(_), _) => Some(checksum::checksum(segment) == 0),
            _ => None,
        }
    }

    /// TTL or hop limit. `None` if the packet is not IP.
    #[inline]
    pub fn ttl(&self) -> Option<u8> {
        self.ipv4().map(|ip| ip.ttl).or_else(|| self.ipv6().map(|ip| ip.hop_limit))
    }
}
