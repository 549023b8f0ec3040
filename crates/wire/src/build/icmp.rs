//! ICMP and ICMPv6: echo, and errors that quote a packet.

use super::{DoesNotFit, Ends, fits, length, put};
use crate::checksum;
use crate::header::{icmp, icmpv6, proto};

/// Writes the first 8 bytes, with a checksum of zero.
fn start(message: &mut [u8], kind: u8, code: u8, rest: [u8; 4]) -> Result<(), DoesNotFit> {
    length(message.len())?;
    put(message, &[kind, code, 0, 0, rest[0], rest[1], rest[2], rest[3]])
}

fn finish_v4(message: &mut [u8]) {
    let sum = checksum::checksum(message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

/// Writes the checksum, which includes a pseudo-header (RFC 4443, section 2.3).
pub(super) fn finish_v6(message: &mut [u8], source: &[u8; 16], destination: &[u8; 16]) {
    let sum = Ends::V6(*source, *destination).checksum(proto::ICMPV6, message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

fn echo(id: u16, sequence: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (id.to_be_bytes(), sequence.to_be_bytes());
    [a, b, c, d]
}

/// An ICMP echo request or reply (RFC 792, "Echo or Echo Reply Message").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpEcho {
    /// True for a reply.
    pub is_reply: bool,
    /// Identifier.
    pub id: u16,
    /// Sequence number.
    pub sequence: u16,
}

impl IcmpEcho {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// Writes the header, with its checksum over header and data, at the front of
    /// `message`.
    ///
    /// # Errors
    /// If `message` is shorter, or longer than 65,535 bytes.
    pub fn write(&self, message: &mut [u8]) -> Result<(), DoesNotFit> {
        let kind = if self.is_reply { icmp::ECHO_REPLY } else { icmp::ECHO };
        start(message, kind, 0, echo(self.id, self.sequence))?;
        finish_v4(message);
        Ok(())
    }
}

/// An ICMP error (RFC 792; RFC 1812, section 4.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpError {
    /// Type, one of those for which [`icmp::is_error`] holds.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// The second word: the next hop's MTU (RFC 1191, section 4), a pointer in its upper
    /// byte, a gateway, or 0.
    pub rest: u32,
}

impl IcmpError {
    /// Bytes of the header.
    pub const LEN: usize = 8;
    /// Bytes of a packet that may be quoted: as many as keep the whole within 576 (RFC
    /// 1812, section 4.3.2.3).
    pub const MAX_QUOTE: usize = 576 - 20 - IcmpError::LEN;

    /// Writes the header, with its checksum, at the front of `message`. The quoted packet
    /// lies behind it, from its IP header on.
    ///
    /// # Errors
    /// If `message` is shorter than the header, the quote longer than
    /// [`IcmpError::MAX_QUOTE`], or the type not an error's.
    pub fn write(&self, message: &mut [u8]) -> Result<(), DoesNotFit> {
        fits(icmp::is_error(self.kind) && message.len() <= IcmpError::LEN + IcmpError::MAX_QUOTE)?;
        start(message, self.kind, self.code, self.rest.to_be_bytes())?;
        finish_v4(message);
        Ok(())
    }
}

/// An ICMPv6 echo request or reply (RFC 4443, sections 4.1 and 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Icmpv6Echo {
    /// True for a reply.
    pub is_reply: bool,
    /// Identifier.
    pub id: u16,
    /// Sequence number.
    pub sequence: u16,
}

impl Icmpv6Echo {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// Writes the header, with its checksum over header, data and pseudo-header, at the
    /// front of `message`.
    ///
    /// # Errors
    /// If `message` is shorter, or longer than 65,535 bytes.
    pub fn write(
        &self,
        message: &mut [u8],
        source: &[u8; 16],
        destination: &[u8; 16],
    ) -> Result<(), DoesNotFit> {
        let kind = if self.is_reply { icmpv6::ECHO_REPLY } else { icmpv6::ECHO };
        start(message, kind, 0, echo(self.id, self.sequence))?;
        finish_v6(message, source, destination);
        Ok(())
    }
}

/// An ICMPv6 error (RFC 4443, section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Icmpv6Error {
    /// Type, one of those for which [`icmpv6::is_error`] holds.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// The second word: the MTU of "packet too big", the pointer of "parameter problem",
    /// or 0.
    pub rest: u32,
}

impl Icmpv6Error {
    /// Bytes of the header.
    pub const LEN: usize = 8;
    /// Bytes of a packet that may be quoted: as many as keep the whole within the minimum
    /// MTU, 1280 (RFC 4443, section 2.4 (c)).
    pub const MAX_QUOTE: usize = 1280 - 40 - Icmpv6Error::LEN;

    /// Writes the header, with its checksum including the pseudo-header, at the front of
    /// `message`. The quoted packet lies behind it, from its IP header on.
    ///
    /// # Errors
    /// If `message` is shorter than the header, the quote longer than
    /// [`Icmpv6Error::MAX_QUOTE`], or the type not an error's.
    pub fn write(
        &self,
        message: &mut [u8],
        source: &[u8; 16],
        destination: &[u8; 16],
    ) -> Result<(), DoesNotFit> {
        fits(
            icmpv6::is_error(self.kind)
                && message.len() <= Icmpv6Error::LEN + Icmpv6Error::MAX_QUOTE,
        )?;
        start(message, self.kind, self.code, self.rest.to_be_bytes())?;
        finish_v6(message, source, destination);
        Ok(())
    }
}
