//! TCP and UDP headers.

use super::{DoesNotFit, Ends, fits, length, put};
use crate::header::{self, proto};
use zerocopy::IntoBytes;

/// A TCP header (RFC 9293, section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tcp<'a> {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// Flags, see [`tcp_flags`](header::tcp_flags).
    pub flags: u8,
    /// Window, unscaled.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options, padded to a multiple of 4 bytes, at most 40.
    pub options: &'a [u8],
}

impl Tcp<'_> {
    /// Bytes of the header without options.
    pub const LEN: usize = 20;

    /// A segment with these flags, a full window and zeros for the rest.
    pub fn new(source: u16, destination: u16, flags: u8) -> Tcp<'static> {
        Tcp {
            source,
            destination,
            sequence: 0,
            acknowledgement: 0,
            flags,
            window: 0xffff,
            urgent: 0,
            options: &[],
        }
    }

    /// Writes the header, with its checksum over header and data, at the front of
    /// `segment`.
    ///
    /// # Errors
    /// If `segment` is shorter, or longer than 65,535 bytes; if the header cannot hold
    /// the options.
    pub fn write(&self, segment: &mut [u8], ends: &Ends) -> Result<(), DoesNotFit> {
        let header_len = Tcp::LEN + self.options.len();
        length(segment.len())?;
        fits(self.options.len() <= 40 && self.options.len().is_multiple_of(4))?;
        let header = segment.get_mut(..header_len).ok_or(DoesNotFit)?;
        let fields = header::Tcp {
            source: self.source.into(),
            destination: self.destination.into(),
            sequence: self.sequence.into(),
            acknowledgement: self.acknowledgement.into(),
            // Words of 4 bytes, in the upper 4 bits.
            data_offset: (header_len * 4) as u8,
            flags: self.flags,
            window: self.window.into(),
            checksum: 0.into(),
            urgent: self.urgent.into(),
        };
        header[..Tcp::LEN].copy_from_slice(fields.as_bytes());
        header[Tcp::LEN..].copy_from_slice(self.options);
        let sum = ends.checksum(proto::TCP, segment);
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        Ok(())
    }
}

/// A UDP header (RFC 768; over IPv6: RFC 8200, section 8.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Udp {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
}

impl Udp {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// Writes the header, with its checksum over header and data, at the front of
    /// `datagram`. A checksum of zero is sent as 0xffff, because zero means no checksum.
    ///
    /// # Errors
    /// If `datagram` is shorter, or longer than 65,535 bytes.
    pub fn write(&self, datagram: &mut [u8], ends: &Ends) -> Result<(), DoesNotFit> {
        let len = length(datagram.len())?;
        let header = header::Udp {
            source: self.source.into(),
            destination: self.destination.into(),
            len: len.into(),
            checksum: 0.into(),
        };
        put(datagram, header.as_bytes())?;
        let sum = match ends.checksum(proto::UDP, datagram) {
            0 => 0xffff,
            sum => sum,
        };
        datagram[6..8].copy_from_slice(&sum.to_be_bytes());
        Ok(())
    }
}
