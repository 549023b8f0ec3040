//! Writes another end into a packet: an address and a port, with the checksums that cover
//! them.
//!
//! Checksums that cover a changed field are corrected by the difference (RFC 1624): a
//! wrong checksum stays wrong. Later fragments carry addresses only.

use crate::checksum::Delta;
use crate::header::proto;
use crate::packet::HEADERS;
use crate::{FlowKey, Layers, Network, Packet, unmap_v4};

/// Bytes of a transport header that may be written: up to TCP's checksum.
const TRANSPORT: usize = 18;

/// Either end of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The sender.
    Source,
    /// The receiver.
    Destination,
}

impl Side {
    /// The other side.
    pub fn other(self) -> Side {
        match self {
            Side::Source => Side::Destination,
            Side::Destination => Side::Source,
        }
    }
}

/// An address (IPv4 as IPv4-mapped) and a port, or an echo's identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// The address.
    pub address: [u8; 16],
    /// The port.
    pub port: u16,
}

/// The offsets of a side's address.
#[inline]
pub fn address_range(layers: &Layers, side: Side) -> Option<core::ops::Range<usize>> {
    let l3 = layers.l3 as usize;
    match (layers.network, side) {
        (Network::V4, Side::Source) => Some(l3 + 12..l3 + 16),
        (Network::V4, Side::Destination) => Some(l3 + 16..l3 + 20),
        (Network::V6, Side::Source) => Some(l3 + 8..l3 + 24),
        (Network::V6, Side::Destination) => Some(l3 + 24..l3 + 40),
        (Network::Other, _) => None,
    }
}

/// Writes a new address; `None` if the families differ. The IPv4 header checksum is
/// corrected.
#[inline]
pub fn set_address(
    bytes: &mut [u8],
    layers: &Layers,
    side: Side,
    address: &[u8; 16],
) -> Option<Delta> {
    let range = address_range(layers, side)?;
    let v4;
    let new: &[u8] = match layers.network {
        Network::V4 => {
            v4 = unmap_v4(address)?;
            &v4
        }
        // An IPv4-mapped address in an IPv6 header would pass for the IPv4 host (RFC
        // 4942, section 2.2).
        _ if unmap_v4(address).is_some() => return None,
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

#[inline]
fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

#[inline]
fn set_word(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// Corrects the checksum at this offset, if it is inside `bytes`.
#[inline]
pub fn adjust(bytes: &mut [u8], at: usize, delta: Delta) {
    if let Some(old) = word(bytes, at) {
        set_word(bytes, at, delta.apply(old));
    }
}

/// Writes a new port, or an echo's identifier.
#[inline]
pub fn set_port(bytes: &mut [u8], layers: &Layers, side: Side, port: u16) -> Delta {
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

/// Corrects the transport checksum, as far as it is there. `address`: the change of the
/// addresses; `port`: of the transport header.
#[inline]
pub fn adjust_transport(bytes: &mut [u8], layers: &Layers, address: Delta, port: Delta) {
    let l4 = layers.l4 as usize;
    match layers.protocol {
        proto::TCP => adjust(bytes, l4 + 16, address.and(port)),
        // 0 means no checksum; over IPv6 too, where tunnels may do without (RFC 6935).
        proto::UDP => {
            if let Some(old) = word(bytes, l4 + 6) {
                set_word(bytes, l4 + 6, address.and(port).apply_udp(old));
            }
        }
        // ICMP's checksum leaves the addresses out; ICMPv6's includes them.
        proto::ICMP => adjust(bytes, l4 + 2, port),
        proto::ICMPV6 => adjust(bytes, l4 + 2, address.and(port)),
        _ => {}
    }
}

/// Writes another end into a packet that is no ICMP error. Returns false, and changes
/// nothing, if the address is of another family.
#[inline]
#[must_use]
pub fn set_end(packet: &mut Packet, side: Side, to: End) -> bool {
    let layers = packet.layers;
    // Many extension headers may lie before the ports.
    let is_usual = usize::from(layers.l4) + TRANSPORT <= HEADERS;
    let bytes = if is_usual { packet.headers_mut() } else { packet.bytes_mut() };
    let Some(address) = set_address(bytes, &layers, side, &to.address) else { return false };
    if layers.fragment_offset == 0 {
        let port = set_port(bytes, &layers, side, to.port);
        adjust_transport(bytes, &layers, address, port);
    }
    true
}

impl FlowKey {
    /// Gives a packet its original addresses and ports back: it came in under this key,
    /// and functions have changed it since. False if it cannot be that packet, or is an
    /// ICMP message that is neither a request nor a reply: the key of an error is another
    /// packet's.
    #[must_use]
    pub fn restore(&self, packet: &mut Packet) -> bool {
        let is_icmp = matches!(packet.layers.protocol, proto::ICMP | proto::ICMPV6);
        let has_ports = !is_icmp || packet.layers.has_transport() && self.is_of_exchange();
        if u16::from(packet.layers.protocol) != self.protocol
            || !has_ports
            || packet.is_icmp_error()
        {
            return false;
        }
        let (source, destination) = self.ports();
        set_end(packet, Side::Source, End { address: self.source, port: source })
            && set_end(
                packet,
                Side::Destination,
                End { address: self.destination, port: destination },
            )
    }
}
