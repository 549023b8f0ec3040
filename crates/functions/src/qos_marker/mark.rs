//! Writing marks into a packet, and nothing else: the rest of it, ECN's bits and a tag's VLAN included, stays as it is.

use holdfast_nf::Packet;
use holdfast_wire::checksum::Delta;
use holdfast_wire::header::ETHERTYPE_VLAN;

/// The two bits beside the DSCP (RFC 3168, section 5).
const ECN: u8 = 0x03;
/// Of IPv6's first word, the upper six bits of the traffic class (RFC 8200, sections 3 and 7).
const V6_DSCP: u32 = 0x0fc0_0000;
const V6_SHIFT: u32 = 22;
/// In the first byte of a tag's control information: all but the priority (IEEE 802.1Q, clause 9.6).
const NOT_PRIORITY: u8 = 0x1f;

/// What is written into a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// Six bits; without it the packet's own stays.
    pub(super) dscp: Option<u8>,
    /// Three bits; without it there is no tag, or the tag that is there stays.
    pub(super) pcp: Option<u8>,
}

impl Mark {
    /// Marks a parsed packet. False if it has no room for a tag.
    #[inline]
    #[must_use]
    pub(super) fn write(self, packet: &mut Packet) -> bool {
        if let Some(dscp) = self.dscp {
            set_dscp(packet, dscp);
        }
        self.pcp.is_none_or(|pcp| set_priority(packet, pcp))
    }
}

/// The DSCP field of RFC 2474, section 3. IPv4's header checksum is corrected by the difference (RFC 1624), so one that was wrong stays wrong; no
/// transport checksum covers the field.
fn set_dscp(packet: &mut Packet, dscp: u8) {
    if let Some(ip) = packet.ipv4_mut() {
        let (old, new) = (ip.tos, dscp << 2 | ip.tos & ECN);
        if old != new {
            ip.tos = new;
            ip.checksum = Delta::new().word(old.into(), new.into()).apply(ip.checksum.get()).into();
        }
    } else if let Some(ip) = packet.ipv6_mut() {
        ip.version_class_flow = (ip.version_class_flow.get() & !V6_DSCP | u32::from(dscp) << V6_SHIFT).into();
    }
}

/// Sets the priority of the outermost tag. A frame without one gets a priority tag: VLAN 0, which is none (IEEE 802.1Q, clause 9.6, table 9-2).
fn set_priority(packet: &mut Packet, pcp: u8) -> bool {
    if packet.layers.vlan_tags == 0 && !(packet.push_tag(ETHERTYPE_VLAN, 0) && packet.parse().is_ok()) {
        return false;
    }
    match packet.headers_mut().get_mut(14) {
        Some(control) => *control = pcp << 5 | *control & NOT_PRIORITY,
        None => return false,
    }
    true
}
