//! IPv4 and IPv6 headers.

use super::{DoesNotFit, fits, length, put};
use crate::{checksum, header};
use zerocopy::IntoBytes;

/// An IPv4 header (RFC 791, section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4<'a> {
    /// Source.
    pub source: [u8; 4],
    /// Destination.
    pub destination: [u8; 4],
    /// Protocol of the payload.
    pub protocol: u8,
    /// Time to live.
    pub ttl: u8,
    /// DSCP and ECN (RFC 2474, section 3; RFC 3168, section 5).
    pub tos: u8,
    /// Identification; has a meaning in fragments only (RFC 6864, section 4).
    pub id: u16,
    /// Don't fragment.
    pub dont_fragment: bool,
    /// More fragments follow.
    pub more_fragments: bool,
    /// Fragment offset in bytes, a multiple of 8.
    pub fragment_offset: u16,
    /// Options, padded to a multiple of 4 bytes, at most 40.
    pub options: &'a [u8],
}

impl Ipv4<'_> {
    /// Bytes of the header without options.
    pub const LEN: usize = 20;

    /// A whole packet that may be fragmented, with TTL 64 (RFC 1700, "IP time to live
    /// parameter").
    pub fn new(source: [u8; 4], destination: [u8; 4], protocol: u8) -> Ipv4<'static> {
        Ipv4 {
            source,
            destination,
            protocol,
            ttl: 64,
            tos: 0,
            id: 0,
            dont_fragment: false,
            more_fragments: false,
            fragment_offset: 0,
            options: &[],
        }
    }

    /// Writes the header, with its checksum, at the front of `packet`, whose length
    /// becomes the total length.
    ///
    /// # Errors
    /// If `packet` is shorter, or longer than 65,535 bytes; if the header cannot hold the
    /// options or the offset.
    pub fn write(&self, packet: &mut [u8]) -> Result<(), DoesNotFit> {
        let header_len = Ipv4::LEN + self.options.len();
        let total_len = length(packet.len())?;
        fits(
            self.options.len() <= 40
                && self.options.len().is_multiple_of(4)
                && self.fragment_offset.is_multiple_of(8),
        )?;
        let header = packet.get_mut(..header_len).ok_or(DoesNotFit)?;
        let flags = u16::from(self.dont_fragment) << 14 | u16::from(self.more_fragments) << 13;
        let fields = header::Ipv4 {
            version_ihl: 0x40 | (header_len / 4) as u8,
            tos: self.tos,
            total_len: total_len.into(),
            id: self.id.into(),
            flags_fragment: (flags | self.fragment_offset >> 3).into(),
            ttl: self.ttl,
            protocol: self.protocol,
            checksum: 0.into(),
            source: self.source,
            destination: self.destination,
        };
        header[..Ipv4::LEN].copy_from_slice(fields.as_bytes());
        header[Ipv4::LEN..].copy_from_slice(self.options);
        let sum = checksum::checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        Ok(())
    }
}

/// An IPv6 header (RFC 8200, section 3). Extension headers are payload to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6 {
    /// Source.
    pub source: [u8; 16],
    /// Destination.
    pub destination: [u8; 16],
    /// The next header: a protocol, or an extension header.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits (RFC 6437, section 2).
    pub flow_label: u32,
}

impl Ipv6 {
    /// Bytes of the header.
    pub const LEN: usize = 40;

    /// A packet with hop limit 64 and without a flow label.
    pub fn new(source: [u8; 16], destination: [u8; 16], next_header: u8) -> Ipv6 {
        Ipv6 { source, destination, next_header, hop_limit: 64, traffic_class: 0, flow_label: 0 }
    }

    /// Writes the header at the front of `packet`, whose length less 40 becomes the
    /// payload length.
    ///
    /// # Errors
    /// If `packet` is shorter, or its payload longer than 65,535 bytes; if the flow label
    /// is wider than 20 bits.
    pub fn write(&self, packet: &mut [u8]) -> Result<(), DoesNotFit> {
        fits(self.flow_label < 1 << 20)?;
        let payload_len = length(packet.len().checked_sub(Ipv6::LEN).ok_or(DoesNotFit)?)?;
        let header = header::Ipv6 {
            version_class_flow: (6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label)
                .into(),
            payload_len: payload_len.into(),
            next_header: self.next_header,
            hop_limit: self.hop_limit,
            source: self.source,
            destination: self.destination,
        };
        put(packet, header.as_bytes())
    }
}
