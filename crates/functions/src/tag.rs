//! The 802.1Q tag with which a packet is to leave. The edge and the port heed it: see
//! `holdfast_wire::vlan`.

use holdfast_nf::Packet;
use holdfast_wire::header::ETHERTYPE_VLAN;
use holdfast_wire::vlan::ID;

/// Changes of the outermost tag's control information (IEEE 802.1Q, clause 9.6). What is
/// `None` stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tag {
    /// VLAN identifier, 12 bits; 0 for the port's own VLAN.
    pub(crate) id: Option<u16>,
    /// Priority, three bits.
    pub(crate) pcp: Option<u8>,
    /// Drop eligibility.
    pub(crate) dei: Option<bool>,
}

impl Tag {
    /// Changes a parsed packet's tag. A frame without a tag gets a priority tag first:
    /// VLAN 0, which means none (IEEE 802.1Q, clause 9.6, table 9-2). Returns false if
    /// there is no room for it.
    #[inline]
    #[must_use]
    pub(crate) fn write(self, packet: &mut Packet) -> bool {
        if packet.layers.vlan_tags == 0
            && !(packet.push_tag(ETHERTYPE_VLAN, 0) && packet.parse().is_ok())
        {
            return false;
        }
        let Some(bytes) = packet.headers_mut().get_mut(14..16) else { return false };
        let control = u16::from_be_bytes([bytes[0], bytes[1]]);
        let mut new = control;
        if let Some(pcp) = self.pcp {
            new = u16::from(pcp) << 13 | new & !(7 << 13);
        }
        if let Some(dei) = self.dei {
            new = u16::from(dei) << 12 | new & !(1 << 12);
        }
        if let Some(id) = self.id {
            new = id | new & !ID;
        }
        bytes.copy_from_slice(&new.to_be_bytes());
        true
    }
}
