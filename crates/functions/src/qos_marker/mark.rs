//! Writes marks into a packet, and changes nothing else: ECN's bits and a tag's VLAN
//! stay.

use crate::tag::Tag;
use holdfast_nf::Packet;
use holdfast_wire::checksum::Delta;

/// The two bits beside the DSCP (RFC 3168, section 5).
const ECN: u8 = 0x03;
/// The upper six bits of the traffic class, in IPv6's first word (RFC 8200, sections 3
/// and 7).
const V6_DSCP: u32 = 0x0fc0_0000;
const V6_SHIFT: u32 = 22;

/// The marks to write into a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Six bits; if none, the packet keeps its own.
    pub(crate) dscp: Option<u8>,
    /// Three bits; if none, no tag is added or changed.
    pub(crate) pcp: Option<u8>,
}

impl Mark {
    /// Marks a parsed packet. Returns false if it has no room for a tag.
    #[inline]
    #[must_use]
    pub(crate) fn write(self, packet: &mut Packet) -> bool {
        if let Some(dscp) = self.dscp {
            set_dscp(packet, dscp);
        }
        self.pcp.is_none_or(|pcp| Tag { pcp: Some(pcp), ..Tag::default() }.write(packet))
    }
}

/// Sets the DSCP field (RFC 2474, section 3). IPv4's header checksum is corrected by the
/// difference (RFC 1624), so a wrong one stays wrong; no transport checksum covers the
/// field.
fn set_dscp(packet: &mut Packet, dscp: u8) {
    if let Some(ip) = packet.ipv4_mut() {
        let (old, new) = (ip.tos, dscp << 2 | ip.tos & ECN);
        if old != new {
            ip.tos = new;
            ip.checksum = Delta::new().word(old.into(), new.into()).apply(ip.checksum.get()).into();
        }
    } else if let Some(ip) = packet.ipv6_mut() {
        ip.version_class_flow =
            (ip.version_class_flow.get() & !V6_DSCP | u32::from(dscp) << V6_SHIFT).into();
    }
}
