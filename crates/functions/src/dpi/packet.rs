//! What the library gets of a packet.

use holdfast_nf::wire::header::{proto, tcp_flags};
use holdfast_nf::Packet;

/// What the library may make of a packet.
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
    if packet.layers.fragment || packet.is_intact() == Some(false) {
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
        Some(ip) if has_data => Kind::Whole(ip),
        _ => Kind::Empty,
    }
}
