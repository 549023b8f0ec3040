//! IPv6 neighbour discovery.

use super::icmp::finish_v6;
use super::{DoesNotFit, length, put};
use crate::header::{Mac, icmpv6};

/// The multicast address of all nodes of a link (RFC 4291, section 2.7.1).
pub const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// The MAC address of an IPv6 multicast address (RFC 2464, section 7).
pub fn multicast_mac(group: &[u8; 16]) -> Mac {
    [0x33, 0x33, group[12], group[13], group[14], group[15]]
}

/// The solicited-node multicast address of an address (RFC 4291, section 2.7.1).
pub fn solicited_node(address: &[u8; 16]) -> [u8; 16] {
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    group[13..].copy_from_slice(&address[13..]);
    group
}

/// The link-local address of a station with this MAC address: its modified EUI-64 behind
/// fe80::/64 (RFC 4291, section 2.5.6 and appendix A; RFC 2464, section 5).
pub fn link_local(mac: &Mac) -> [u8; 16] {
    let [a, b, c, d, e, f] = *mac;
    // The "universal" bit is inverted.
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

/// Solicitation or advertisement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighborKind {
    /// A request for the address's owner (RFC 4861, section 4.3).
    Solicitation,
    /// An answer from the owner (RFC 4861, section 4.4).
    Advertisement {
        /// The sender is a router.
        is_router: bool,
        /// The advertisement answers a solicitation.
        is_solicited: bool,
        /// The receiver replaces its cached entry.
        is_override: bool,
    },
}

/// A neighbour solicitation or advertisement (RFC 4861, sections 4.3 and 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbor {
    /// Solicitation or advertisement.
    pub kind: NeighborKind,
    /// The address in question.
    pub target: [u8; 16],
    /// The sender's MAC address, in an option (RFC 4861, section 4.6.1). `None` from a
    /// sender without an IP address, in duplicate address detection (RFC 4862, section
    /// 5.4.2).
    pub link: Option<Mac>,
}

impl Neighbor {
    /// Bytes without the option.
    pub const LEN: usize = 24;
    /// Bytes with the option.
    pub const LEN_WITH_LINK: usize = 32;

    /// Writes the message, with its checksum including the pseudo-header, at the front of
    /// `message`; further options may lie behind it. The IPv6 hop limit must be 255: it
    /// proves that no router has forwarded the message (RFC 4861, section 7.1).
    ///
    /// # Errors
    /// If `message` is shorter, or longer than 65,535 bytes.
    pub fn write(
        &self,
        message: &mut [u8],
        source: &[u8; 16],
        destination: &[u8; 16],
    ) -> Result<(), DoesNotFit> {
        length(message.len())?;
        let (kind, flags, option) = match self.kind {
            NeighborKind::Solicitation => (icmpv6::NEIGHBOR_SOLICITATION, 0, 1),
            NeighborKind::Advertisement { is_router, is_solicited, is_override } => {
                let flags = u8::from(is_router) << 7
                    | u8::from(is_solicited) << 6
                    | u8::from(is_override) << 5;
                (icmpv6::NEIGHBOR_ADVERTISEMENT, flags, 2)
            }
        };
        let mut bytes = [0; Neighbor::LEN_WITH_LINK];
        bytes[0] = kind;
        bytes[4] = flags;
        bytes[8..24].copy_from_slice(&self.target);
        let mut len = Neighbor::LEN;
        if let Some(link) = self.link {
            len = Neighbor::LEN_WITH_LINK;
            bytes[24] = option;
            bytes[25] = 1;
            bytes[26..].copy_from_slice(&link);
        }
        put(message, &bytes[..len])?;
        finish_v6(message, source, destination);
        Ok(())
    }
}
