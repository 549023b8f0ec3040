//! Translating one end of a packet, with everything that says who it is: addresses, ports, checksums, and the packet that an ICMP error quotes.
//!
//! Theory of operation. A translator changes one end of a flow. In an ordinary packet that end is the source in one direction and the
//! destination in the other. An ICMP error travels against the packet that it quotes, so the same end is on the other side of
//! the quoted packet. All checksums that cover a changed field are corrected by the difference (RFC 1624): a packet that was
//! wrong stays wrong. Later fragments carry addresses only.

use holdfast_wire::HEADERS;
use holdfast_wire::checksum::{self, Delta, checksum, fold, sum};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::header::{icmp, icmpv6, proto};
use holdfast_wire::{Layers, Network, Packet, unmap_v4};

/// As much of a transport header as is translated, bytes: up to TCP's checksum.
const TRANSPORT: usize = 18;

/// Which end of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Destination,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Source => Side::Destination,
            Side::Destination => Side::Source,
        }
    }
}

/// An address (IPv4 as IPv4-mapped) and a port, or an echo's identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) address: [u8; 16],
    pub(crate) port: u16,
}

/// True for an ICMP or ICMPv6 message that quotes a packet.
#[inline]
pub(crate) fn is_error(packet: &Packet) -> bool {
    packet.icmp().is_some_and(|header| match packet.layers.network {
        Network::V6 => icmpv6::is_error(header.kind),
        _ => icmp::is_error(header.kind),
    })
}

/// False for an ICMP error after which its receiver would send packets that are shorter than any link must carry: 68 bytes over IPv4 (RFC 1191, section 3; RFC
/// 791, section 3.2), 1280 over IPv6 (RFC 8201, section 4).
pub(crate) fn has_possible_mtu(packet: &Packet) -> bool {
    let Some(header) = packet.icmp() else { return true };
    let low = u32::from(header.sequence.get());
    match packet.layers.network {
        _ if is_planted(Fault::AllowsTinyMtus) => true,
        Network::V6 if header.kind == icmpv6::PACKET_TOO_BIG => u32::from(header.id.get()) << 16 | low >= 1280,
        Network::V4 if (header.kind, header.code) == (icmp::UNREACHABLE, icmp::FRAGMENTATION_NEEDED) => low >= 68,
        _ => true,
    }
}

/// The sequence number in the TCP header that an ICMP error quotes: RFC 792 asks for as much of it. `None` also if it quotes no TCP.
pub(crate) fn quoted_sequence(packet: &Packet) -> Option<u32> {
    let quoted = packet.l4().get(8..)?;
    let inner = Layers::parse_quoted(quoted).ok()?;
    let is_tcp = inner.protocol == proto::TCP && inner.fragment_offset == 0;
    let sequence = quoted.get(..inner.end as usize)?.get(inner.l4 as usize + 4..)?.first_chunk()?;
    is_tcp.then(|| u32::from_be_bytes(*sequence))
}

/// False for an ICMP message whose own checksum is wrong. Of one in fragments nobody can tell.
fn is_intact(packet: &Packet) -> bool {
    let sum = match packet.ipv6() {
        Some(ip) => checksum::transport(&ip.source, &ip.destination, proto::ICMPV6, packet.l4()),
        None => checksum(packet.l4()),
    };
    sum == 0 || packet.layers.fragment
}

/// Where the address of a side is, and how long it is.
fn address_range(layers: &Layers, side: Side) -> Option<core::ops::Range<usize>> {
    let l3 = layers.l3 as usize;
    match (layers.network, side) {
        (Network::V4, Side::Source) => Some(l3 + 12..l3 + 16),
        (Network::V4, Side::Destination) => Some(l3 + 16..l3 + 20),
        (Network::V6, Side::Source) => Some(l3 + 8..l3 + 24),
        (Network::V6, Side::Destination) => Some(l3 + 24..l3 + 40),
        (Network::Other, _) => None,
    }
}

/// Writes a new address; `None` if the families differ. The IPv4 header checksum is corrected.
fn set_address(bytes: &mut [u8], layers: &Layers, side: Side, address: &[u8; 16]) -> Option<Delta> {
    let range = address_range(layers, side)?;
    let v4;
    let new: &[u8] = match layers.network {
        Network::V4 => {
            v4 = unmap_v4(address)?;
            &v4
        }
        _ => address,
    };
    let place = bytes.get_mut(range)?;
    let delta = Delta::new().bytes(place, new);
    place.copy_from_slice(new);
    if layers.network == Network::V4 {
        adjust(bytes, layers.l3 as usize + 10, delta);
    }
    Some(delta)
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn set_word(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

fn adjust(bytes: &mut [u8], at: usize, delta: Delta) {
    if let Some(old) = word(bytes, at) {
        set_word(bytes, at, delta.apply(old));
    }
}

/// Writes a new port, or an echo's identifier.
fn set_port(bytes: &mut [u8], layers: &Layers, side: Side, port: u16) -> Delta {
    let l4 = layers.l4 as usize;
    let at = match (layers.protocol, side) {
        (proto::TCP | proto::UDP, Side::Source) => l4,
        (proto::TCP | proto::UDP, Side::Destination) => l4 + 2,
        (proto::ICMP | proto::ICMPV6, _) => l4 + 4,
        _ => return Delta::new(),
    };
    let Some(old) = word(bytes, at) else { return Delta::new() };
    set_word(bytes, at, port);
    Delta::new().word(old, port)
}

/// Corrects the transport checksum, as far as it is there. `address`: what changed in the addresses; `port`: in the transport header.
fn adjust_transport(bytes: &mut [u8], layers: &Layers, address: Delta, port: Delta) {
    let l4 = layers.l4 as usize;
    match layers.protocol {
        proto::TCP => adjust(bytes, l4 + 16, address.and(port)),
        // 0 is no checksum: over IPv6, too, where tunnels may go without (RFC 6935).
        proto::UDP => {
            if let Some(old) = word(bytes, l4 + 6) {
                set_word(bytes, l4 + 6, address.and(port).apply_udp(old));
            }
        }
        // ICMP's checksum leaves the addresses out, ICMPv6's does not.
        proto::ICMP => adjust(bytes, l4 + 2, port),
        proto::ICMPV6 => adjust(bytes, l4 + 2, address.and(port)),
        _ => {}
    }
}

/// Translates the end on `side` of the packet to `to`; of an ICMP error the same end of the flow, on the other side of the quoted packet. The error's
/// own source is changed if it is the flow's end `from`, or if `hide` asks for it whatever it is (RFC 5508, REQ-5c); its destination is that end. False if the packet cannot be translated.
#[inline]
#[must_use]
pub(crate) fn translate(packet: &mut Packet, side: Side, from: &[u8; 16], to: End, hide: bool) -> bool {
    let layers = packet.layers;
    if is_error(packet) {
        return translate_error(packet, side, from, to, hide).is_some();
    }
    // A long way of extension headers may lie before the ports.
    let is_usual = usize::from(layers.l4) + TRANSPORT <= HEADERS;
    let bytes = if is_usual { packet.headers_mut() } else { packet.bytes_mut() };
    let Some(address) = set_address(bytes, &layers, side, &to.address) else { return false };
    if layers.fragment_offset == 0 {
        let port = set_port(bytes, &layers, side, to.port);
        adjust_transport(bytes, &layers, address, port);
    }
    true
}

fn translate_error(packet: &mut Packet, side: Side, from: &[u8; 16], to: End, hide: bool) -> Option<()> {
    let layers = packet.layers;
    let (l4, end) = (layers.l4 as usize, layers.end as usize);
    let own = address_range(&layers, side)?;
    let is_intact = is_intact(packet);
    let bytes = packet.bytes_mut();
    let is_end = match layers.network {
        Network::V4 => unmap_v4(from).is_some_and(|from| bytes.get(own.clone()) == Some(&from[..])),
        _ => bytes.get(own) == Some(&from[..]),
    };
    // To whoever else it goes, it does not tell the sender of the quoted packet: its destination has to become that one's address (RFC 5508, REQ-4c and REQ-7a).
    if side == Side::Destination && !is_end {
        return None;
    }
    let is_hidden = hide && !is_planted(Fault::ShowsInsideRouters);
    let outer = if is_end || is_hidden { set_address(bytes, &layers, side, &to.address)? } else { Delta::new() };
    let quoted = bytes.get_mut(l4 + 8..end)?;
    let inner = Layers::parse_quoted(quoted).ok()?;
    // "If the ICMP checksum fails to validate, the NAT SHOULD silently drop the ICMP Error packet", and so if "the IP checksum of the embedded packet fails
    // to validate" (RFC 5508, REQ-3 and REQ-3a). The transport's checksum is not looked at (REQ-3c), nor what lies behind the packet (REQ-3d).
    let is_header_intact = inner.network != Network::V4 || checksum(quoted.get(..inner.l4 as usize)?) == 0;
    if !(is_intact && is_header_intact || is_planted(Fault::TranslatesDamagedErrors)) {
        return None;
    }
    // No NAT "SHOULD [...] forward outbound ICMP messages that contain the source route option in the outer or inner IP header" (RFC 5508, section 7.3), whose
    // addresses are of the other side; and nothing that has one passes the box.
    if inner.source_route && !is_planted(Fault::PassesQuotedRoutes) {
        return None;
    }
    if is_planted(Fault::LeavesQuotesAlone) {
        return Some(());
    }
    // "Revert the IP and transport headers of the embedded IP packet to their original form [...] Leave the ICMP Error type and code unchanged" (RFC 5508, REQ-4 and
    // REQ-5). What is quoted of the transport header is corrected as far as it goes; the error's own checksum covers all of it.
    let before = fold(sum(quoted));
    let address = set_address(quoted, &inner, side.other(), &to.address)?;
    if inner.fragment_offset == 0 {
        let port = set_port(quoted, &inner, side.other(), to.port);
        adjust_transport(quoted, &inner, address, port);
    }
    let after = fold(sum(quoted));
    let mut delta = Delta::new().word(before, after);
    if layers.network == Network::V6 {
        delta = delta.and(outer);
    }
    adjust(bytes, l4 + 2, delta);
    Some(())
}
