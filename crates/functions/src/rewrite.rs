//! Translates one end of a packet wherever it appears: addresses, ports, checksums, and
//! the packet that an ICMP error quotes.
//!
//! Theory of operation. A translator changes one end of a flow. In an ordinary packet
//! this end is the source in one direction and the destination in the other. An ICMP
//! error travels against the packet that it quotes, so the end is on the other side of
//! the quoted packet. Checksums that cover a changed field are corrected by the
//! difference (RFC 1624): a wrong checksum stays wrong. Later fragments carry addresses
//! only.

use holdfast_wire::checksum::{Delta, checksum, fold, sum};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::header::{icmp, icmpv6, proto};
use holdfast_wire::rewrite::{
    address_range, adjust, adjust_transport, set_address, set_end, set_port,
};
use holdfast_wire::{Layers, Network, Packet, unmap_v4};

pub(crate) use holdfast_wire::rewrite::{End, Side};

/// False for an ICMP error after which its receiver would send packets shorter than any
/// link must carry: 68 bytes over IPv4 (RFC 1191, section 3; RFC 791, section 3.2), 1280
/// over IPv6 (RFC 8201, section 4). An IPv4 router without path MTU discovery says 0,
/// which hosts must understand (RFC 1191, sections 3 and 5).
pub(crate) fn has_possible_mtu(packet: &Packet) -> bool {
    let Some(header) = packet.icmp() else { return true };
    let low = u32::from(header.sequence.get());
    match packet.layers.network {
        _ if is_planted(Fault::AllowsTinyMtus) => true,
        Network::V6 if header.kind == icmpv6::PACKET_TOO_BIG => {
            u32::from(header.id.get()) << 16 | low >= 1280
        }
        Network::V4
            if (header.kind, header.code) == (icmp::UNREACHABLE, icmp::FRAGMENTATION_NEEDED) =>
        {
            low == 0 || low >= 68
        }
        _ => true,
    }
}

/// The sequence number of the TCP header that an ICMP error quotes: RFC 792 asks for as
/// much of it. `None` also if the error quotes no TCP.
pub(crate) fn quoted_sequence(packet: &Packet) -> Option<u32> {
    let quoted = packet.l4().get(8..)?;
    let inner = Layers::parse_quoted(quoted).ok()?;
    let is_tcp = inner.protocol == proto::TCP && inner.fragment_offset == 0;
    let sequence = quoted.get(..inner.end as usize)?.get(inner.l4 as usize + 4..)?.first_chunk()?;
    is_tcp.then(|| u32::from_be_bytes(*sequence))
}

/// Translates the end on `side` of the packet to `to`; of an ICMP error, the same end of
/// the flow, on the other side of the quoted packet. The error's own source is changed if
/// it is the flow's end `from`, or always if `hide` (RFC 5508, REQ-5c); its destination
/// is that end. False if the packet cannot be translated.
#[inline]
#[must_use]
pub(crate) fn translate(
    packet: &mut Packet,
    side: Side,
    from: &[u8; 16],
    to: End,
    hide: bool,
) -> bool {
    match packet.is_icmp_error() {
        true => translate_error(packet, side, from, to, hide).is_some(),
        false => set_end(packet, side, to),
    }
}

/// True if the address is that of the end on this side of the quoted packet.
fn is_from_peer(quoted: &[u8], address: &[u8], side: Side) -> bool {
    let inner = Layers::parse_quoted(quoted).ok();
    inner
        .and_then(|inner| quoted.get(address_range(&inner, side)?))
        .is_some_and(|peer| peer == address)
}

fn translate_error(
    packet: &mut Packet,
    side: Side,
    from: &[u8; 16],
    to: End,
    hide: bool,
) -> Option<()> {
    let layers = packet.layers;
    let (l4, end) = (layers.l4 as usize, layers.end as usize);
    let own = address_range(&layers, side)?;
    // The checksum of a fragmented error cannot be checked.
    let is_intact = packet.is_intact() != Some(false);
    let bytes = packet.bytes_mut();
    let is_end = match layers.network {
        Network::V4 => unmap_v4(from).is_some_and(|from| bytes.get(own.clone()) == Some(&from[..])),
        _ => bytes.get(own) == Some(&from[..]),
    };
    // An error to another host does not reach the sender of the quoted packet: its
    // destination must become that sender's address (RFC 5508, REQ-4c and REQ-7a).
    if side == Side::Destination && !is_end {
        return None;
    }
    let is_hidden = hide && !is_planted(Fault::ShowsInsideRouters);
    let outer = if is_end || is_hidden {
        set_address(bytes, &layers, side, &to.address)?
    } else {
        Delta::new()
    };
    if is_planted(Fault::BelievesPeersOnly)
        && !is_from_peer(
            bytes.get(l4 + 8..end)?,
            bytes.get(address_range(&layers, side.other())?)?,
            side,
        )
    {
        return None;
    }
    let quoted = bytes.get_mut(l4 + 8..end)?;
    let mut inner = Layers::parse_quoted(quoted).ok()?;
    if is_planted(Fault::ReadsNoQuotedOptions) {
        inner.l4 = inner.l4.min(20);
    }
    // "If the ICMP checksum fails to validate, the NAT SHOULD silently drop the ICMP
    // Error packet", and the same if "the IP checksum of the embedded packet fails to
    // validate" (RFC 5508, REQ-3 and REQ-3a). The transport's checksum (REQ-3c) and bytes
    // behind the packet (REQ-3d) are not checked.
    let is_header_intact =
        inner.network != Network::V4 || checksum(quoted.get(..inner.l4 as usize)?) == 0;
    if !(is_intact && is_header_intact || is_planted(Fault::TranslatesDamagedErrors)) {
        return None;
    }
    // No NAT "SHOULD [...] forward outbound ICMP messages that contain the source route
    // option in the outer or inner IP header" (RFC 5508, section 7.3), whose addresses
    // are of the other side. The box lets no packet with one pass.
    if inner.source_route && !is_planted(Fault::PassesQuotedRoutes) {
        return None;
    }
    if is_planted(Fault::LeavesQuotesAlone) {
        return Some(());
    }
    // "Revert the IP and transport headers of the embedded IP packet to their original
    // form [...] Leave the ICMP Error type and code unchanged" (RFC 5508, REQ-4 and
    // REQ-5). The quoted transport header is corrected as far as it goes; the error's own
    // checksum covers all of it.
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
