//! Builders that write headers into a slice, in front of their payload.
//!
//! A builder's `write` takes the place of the header and its payload as one slice. The
//! payload stays in place behind the header; lengths are taken from the slice, and
//! checksums from its bytes. A frame is therefore built from the inside out, in the
//! buffer that it leaves from: payload, transport, network, link. A header that does not
//! fit changes nothing.
//!
//! ```
//! use holdfast_wire::build::{self, Ends};
//! use holdfast_wire::header::{ETHERTYPE_IPV4, proto};
//!
//! let (source, destination) = ([192, 0, 2, 1], [192, 0, 2, 2]);
//! let mut frame = [0; 14 + 20 + 8 + 5];
//! frame[42..].copy_from_slice(b"hello");
//! build::Udp { source: 1000, destination: 7 }.write(&mut frame[34..], &Ends::V4(source, destination))?;
//! build::Ipv4::new(source, destination, proto::UDP).write(&mut frame[14..])?;
//! build::Ethernet { destination: [2; 6], source: [4; 6], ethertype: ETHERTYPE_IPV4 }.write(&mut frame)?;
//! assert_eq!(holdfast_wire::Layers::parse(&frame).map(|layers| layers.l4), Ok(34));
//! # Ok::<(), build::DoesNotFit>(())
//! ```

mod icmp;
mod ip;
mod link;
mod neighbor;
mod transport;

pub use icmp::{IcmpEcho, IcmpError, Icmpv6Echo, Icmpv6Error};
pub use ip::{Ipv4, Ipv6};
pub use link::{Arp, ArpOperation, Ethernet, Vlan};
pub use neighbor::{ALL_NODES, Neighbor, NeighborKind, link_local, multicast_mac, solicited_node};
pub use transport::{Tcp, Udp};

/// The slice is shorter than the header, longer than a length field or a limit can say,
/// or a value is wider than its field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoesNotFit;

impl core::fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the header does not fit into its place, or a value into its field")
    }
}

impl std::error::Error for DoesNotFit {}

/// Source and destination of the IP packet around a segment: its pseudo-header (RFC 9293,
/// section 3.1; RFC 8200, section 8.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// IPv4.
    V4([u8; 4], [u8; 4]),
    /// IPv6.
    V6([u8; 16], [u8; 16]),
}

impl Ends {
    /// The checksum of a segment between these ends, whose own checksum field is zero.
    fn checksum(&self, protocol: u8, segment: &[u8]) -> u16 {
        match self {
            Ends::V4(source, destination) => {
                crate::checksum::transport(source, destination, protocol, segment)
            }
            Ends::V6(source, destination) => {
                crate::checksum::transport(source, destination, protocol, segment)
            }
        }
    }
}

/// Writes `header` at the front of `into`.
fn put(into: &mut [u8], header: &[u8]) -> Result<(), DoesNotFit> {
    into.get_mut(..header.len()).ok_or(DoesNotFit)?.copy_from_slice(header);
    Ok(())
}

/// The value of a length field.
fn length(len: usize) -> Result<u16, DoesNotFit> {
    u16::try_from(len).map_err(|_| DoesNotFit)
}

/// Checks a condition on fields.
fn fits(condition: bool) -> Result<(), DoesNotFit> {
    if condition { Ok(()) } else { Err(DoesNotFit) }
}
