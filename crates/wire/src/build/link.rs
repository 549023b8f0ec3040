//! Ethernet, its tags, and ARP.

use super::{DoesNotFit, fits, put};
use crate::header::{self, Mac};
use zerocopy::IntoBytes;

/// An Ethernet II header (IEEE 802.3, clause 3.2; RFC 894). The device adds the frame
/// check sequence and the padding of short frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ethernet {
    /// Destination.
    pub destination: Mac,
    /// Source.
    pub source: Mac,
    /// The next header: a protocol, or [`ETHERTYPE_VLAN`](header::ETHERTYPE_VLAN) or
    /// [`ETHERTYPE_QINQ`](header::ETHERTYPE_QINQ) before a [`Vlan`].
    pub ethertype: u16,
}

impl Ethernet {
    /// Bytes of the header.
    pub const LEN: usize = 14;

    /// Writes the header at the front of `frame`.
    ///
    /// # Errors
    /// If `frame` is shorter.
    pub fn write(&self, frame: &mut [u8]) -> Result<(), DoesNotFit> {
        let header = header::Ethernet {
            destination: self.destination,
            source: self.source,
            ethertype: self.ethertype.into(),
        };
        put(frame, header.as_bytes())
    }
}

/// A tag behind its EtherType: tag control information and the next EtherType (IEEE
/// 802.1Q, clause 9.6). Two in a row, the outer one announced by
/// [`ETHERTYPE_QINQ`](header::ETHERTYPE_QINQ), are a service tag and a customer tag
/// (QinQ).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vlan {
    /// Priority code point, 3 bits.
    pub priority: u8,
    /// Drop eligible indicator.
    pub is_drop_eligible: bool,
    /// VLAN identifier, 12 bits.
    pub id: u16,
    /// The next EtherType.
    pub ethertype: u16,
}

impl Vlan {
    /// Bytes of the tag.
    pub const LEN: usize = 4;

    /// Writes the tag at the front of `tagged`, which begins behind the EtherType that
    /// announces it.
    ///
    /// # Errors
    /// If `tagged` is shorter, or a value wider than its field.
    pub fn write(&self, tagged: &mut [u8]) -> Result<(), DoesNotFit> {
        fits(self.priority < 8 && self.id < 4096)?;
        let control =
            u16::from(self.priority) << 13 | u16::from(self.is_drop_eligible) << 12 | self.id;
        let [high, low] = control.to_be_bytes();
        let [next_high, next_low] = self.ethertype.to_be_bytes();
        put(tagged, &[high, low, next_high, next_low])
    }
}

/// The operation of an ARP packet (RFC 826, `ar$op`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum ArpOperation {
    /// A request for the owner of an address.
    Request = 1,
    /// An answer from the owner.
    Reply = 2,
}

/// An ARP packet for IPv4 over Ethernet (RFC 826, "Packet format").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arp {
    /// Request or reply.
    pub operation: ArpOperation,
    /// The sender's addresses.
    pub sender: (Mac, [u8; 4]),
    /// The target's addresses: in a request the address in question, with a MAC address
    /// of zero; in a reply the receiver.
    pub target: (Mac, [u8; 4]),
}

impl Arp {
    /// Bytes of the packet.
    pub const LEN: usize = 28;
    /// Its first six bytes: hardware Ethernet, protocol IPv4, addresses of 6 and 4 bytes.
    pub const PREFIX: [u8; 6] = [0, 1, 8, 0, 6, 4];

    /// A request for the owner of `target`. With the sender's own address as target it is
    /// an announcement (RFC 5227, section 3).
    pub fn request(sender: (Mac, [u8; 4]), target: [u8; 4]) -> Arp {
        Arp { operation: ArpOperation::Request, sender, target: ([0; 6], target) }
    }

    /// The answer to `target`, the sender of the request.
    pub fn reply(sender: (Mac, [u8; 4]), target: (Mac, [u8; 4])) -> Arp {
        Arp { operation: ArpOperation::Reply, sender, target }
    }

    /// Writes the packet at the front of `into`.
    ///
    /// # Errors
    /// If `into` is shorter.
    pub fn write(&self, into: &mut [u8]) -> Result<(), DoesNotFit> {
        let mut bytes = [0; Arp::LEN];
        bytes[..6].copy_from_slice(&Arp::PREFIX);
        bytes[6..8].copy_from_slice(&(self.operation as u16).to_be_bytes());
        bytes[8..14].copy_from_slice(&self.sender.0);
        bytes[14..18].copy_from_slice(&self.sender.1);
        bytes[18..24].copy_from_slice(&self.target.0);
        bytes[24..28].copy_from_slice(&self.target.1);
        put(into, &bytes)
    }
}
