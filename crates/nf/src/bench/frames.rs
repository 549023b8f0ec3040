//! Ethernet frames with a packet of IPv4, as a host sends them: checksums are right, and
//! nothing may be fragmented.

use holdfast_wire::checksum;
use holdfast_wire::header::{Ipv4, Tcp, Udp, proto};
use zerocopy::IntoBytes;

/// An end of a connection: address and port.
pub type End = ([u8; 4], u16);

/// A packet of this protocol, with these bytes behind its IPv4 header.
pub fn ipv4(source: [u8; 4], destination: [u8; 4], protocol: u8, segment: &[u8]) -> Vec<u8> {
    let mut header = Ipv4 {
        version_ihl: 0x45,
        tos: 0,
        total_len: ((20 + segment.len()) as u16).into(),
        id: 0.into(),
        flags_fragment: 0x4000.into(),
        ttl: 64,
        protocol,
        checksum: 0.into(),
        source,
        destination,
    };
    header.checksum = checksum::checksum(header.as_bytes()).into();
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend_from_slice(header.as_bytes());
    frame.extend_from_slice(segment);
    frame
}

/// A UDP datagram.
pub fn udp(source: End, destination: End, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let header = Udp {
        source: source.1.into(),
        destination: destination.1.into(),
        len: len.into(),
        checksum: 0.into(),
    };
    let mut segment = header.as_bytes().to_vec();
    segment.extend_from_slice(payload);
    let sum = match checksum::transport(&source.0, &destination.0, proto::UDP, &segment) {
        0 => 0xffff,
        sum => sum,
    };
    segment[6..8].copy_from_slice(&sum.to_be_bytes());
    ipv4(source.0, destination.0, proto::UDP, &segment)
}

/// A TCP segment with these flags ([`tcp_flags`](holdfast_wire::header::tcp_flags)).
pub fn tcp(
    source: End,
    destination: End,
    flags: u8,
    sequence: u32,
    acknowledgement: u32,
    payload: &[u8],
) -> Vec<u8> {
    let header = Tcp {
        source: source.1.into(),
        destination: destination.1.into(),
        sequence: sequence.into(),
        acknowledgement: acknowledgement.into(),
        data_offset: 0x50,
        flags,
        window: 0xffff.into(),
        checksum: 0.into(),
        urgent: 0.into(),
    };
    let mut segment = header.as_bytes().to_vec();
    segment.extend_from_slice(payload);
    let sum = checksum::transport(&source.0, &destination.0, proto::TCP, &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    ipv4(source.0, destination.0, proto::TCP, &segment)
}
