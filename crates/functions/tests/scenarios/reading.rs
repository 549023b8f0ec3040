//! A receiver's view of a frame, read by etherparse: its sender, its destination, and
//! whether every checksum in it is right.

use etherparse::{
    Icmpv4Header, InternetSlice, Ipv4Header, Ipv6Header, SlicedPacket, TcpSlice, TransportSlice,
    UdpSlice, icmpv4, icmpv6,
};
use std::net::{IpAddr, SocketAddr};

fn sliced(frame: &[u8]) -> SlicedPacket<'_> {
    SlicedPacket::from_ethernet(frame)
        .unwrap_or_else(|error| panic!("a receiver could not read the frame: {error:?}"))
}

/// Source and destination. For ICMP the identifier stands for both ports.
pub(crate) fn ends(frame: &[u8]) -> (SocketAddr, SocketAddr) {
    let sliced = sliced(frame);
    let (source, destination): (IpAddr, IpAddr) =
        match sliced.net.as_ref().expect("a network layer") {
            InternetSlice::Ipv4(ip) => {
                (ip.header().source_addr().into(), ip.header().destination_addr().into())
            }
            InternetSlice::Ipv6(ip) => {
                (ip.header().source_addr().into(), ip.header().destination_addr().into())
            }
            InternetSlice::Arp(_) => panic!("ARP has no ends"),
        };
    let ports = match sliced.transport.as_ref() {
        Some(TransportSlice::Tcp(tcp)) => (tcp.source_port(), tcp.destination_port()),
        Some(TransportSlice::Udp(udp)) => (udp.source_port(), udp.destination_port()),
        Some(TransportSlice::Icmpv4(icmp)) => {
            let id = u16::from_be_bytes([icmp.bytes5to8()[0], icmp.bytes5to8()[1]]);
            (id, id)
        }
        _ => (0, 0),
    };
    (SocketAddr::new(source, ports.0), SocketAddr::new(destination, ports.1))
}

/// The UDP checksum that the frame carries.
pub(crate) fn udp_checksum(frame: &[u8]) -> u16 {
    match sliced(frame).transport {
        Some(TransportSlice::Udp(udp)) => udp.checksum(),
        other => panic!("not UDP: {other:?}"),
    }
}

fn compare(what: &str, carried: u16, computed: u16) -> Result<(), String> {
    if carried == computed {
        Ok(())
    } else {
        Err(format!("{what} checksum {carried:04x} should be {computed:04x}"))
    }
}

fn transport_v4(
    tcp: Option<&TcpSlice<'_>>,
    udp: Option<&UdpSlice<'_>>,
    ends: ([u8; 4], [u8; 4]),
) -> Result<(), String> {
    if let Some(tcp) = tcp {
        compare(
            "TCP",
            tcp.checksum(),
            tcp.calc_checksum_ipv4(ends.0, ends.1).map_err(|error| error.to_string())?,
        )?;
    }
    match udp {
        Some(udp) if udp.checksum() != 0 => {
            let computed = udp.to_header().calc_checksum_ipv4_raw(ends.0, ends.1, udp.payload());
            compare("UDP", udp.checksum(), computed.map_err(|error| error.to_string())?)
        }
        _ => Ok(()),
    }
}

fn transport_v6(
    tcp: Option<&TcpSlice<'_>>,
    udp: Option<&UdpSlice<'_>>,
    ends: ([u8; 16], [u8; 16]),
) -> Result<(), String> {
    if let Some(tcp) = tcp {
        compare(
            "TCP",
            tcp.checksum(),
            tcp.calc_checksum_ipv6(ends.0, ends.1).map_err(|error| error.to_string())?,
        )?;
    }
    match udp {
        // RFC 6935: tunnels may omit it.
        Some(udp) if udp.checksum() != 0 => {
            let computed = udp.to_header().calc_checksum_ipv6_raw(ends.0, ends.1, udp.payload());
            compare("UDP", udp.checksum(), computed.map_err(|error| error.to_string())?)
        }
        _ => Ok(()),
    }
}

/// Checks the packet that an ICMP error quotes: the header's checksum, and the
/// transport's if it is there whole.
fn quoted(packet: &[u8]) -> Result<(), String> {
    if packet.first().map(|byte| byte >> 4) == Some(4) {
        let Ok((header, rest)) = Ipv4Header::from_slice(packet) else { return Ok(()) };
        compare("quoted IPv4 header", header.header_checksum, header.calc_header_checksum())?;
        let Some(segment) =
            rest.get(..header.payload_len().map_err(|error| error.to_string())? as usize)
        else {
            return Ok(());
        };
        let tcp = (header.protocol.0 == 6).then(|| TcpSlice::from_slice(segment).ok()).flatten();
        let udp = (header.protocol.0 == 17).then(|| UdpSlice::from_slice(segment).ok()).flatten();
        return transport_v4(tcp.as_ref(), udp.as_ref(), (header.source, header.destination));
    }
    let Ok((header, rest)) = Ipv6Header::from_slice(packet) else { return Ok(()) };
    let Some(segment) = rest.get(..header.payload_length as usize) else { return Ok(()) };
    let tcp = (header.next_header.0 == 6).then(|| TcpSlice::from_slice(segment).ok()).flatten();
    let udp = (header.next_header.0 == 17).then(|| UdpSlice::from_slice(segment).ok()).flatten();
    transport_v6(tcp.as_ref(), udp.as_ref(), (header.source, header.destination))
}

/// Checks every checksum of the frame that can be computed from it.
pub(crate) fn check(frame: &[u8]) -> Result<(), String> {
    let sliced = sliced(frame);
    if let Some(InternetSlice::Ipv4(ip)) = &sliced.net {
        let header = ip.header().to_header();
        compare("IPv4 header", header.header_checksum, header.calc_header_checksum())?;
    }
    if sliced.is_ip_payload_fragmented() {
        return Ok(());
    }
    let (tcp, udp) = match &sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => (Some(tcp), None),
        Some(TransportSlice::Udp(udp)) => (None, Some(udp)),
        _ => (None, None),
    };
    match &sliced.net {
        Some(InternetSlice::Ipv4(ip)) => {
            transport_v4(tcp, udp, (ip.header().source(), ip.header().destination()))?
        }
        Some(InternetSlice::Ipv6(ip)) => {
            transport_v6(tcp, udp, (ip.header().source(), ip.header().destination()))?
        }
        _ => {}
    }
    match (&sliced.transport, &sliced.net) {
        (Some(TransportSlice::Icmpv4(icmp)), _) => {
            compare(
                "ICMP",
                icmp.checksum(),
                Icmpv4Header::with_checksum(icmp.icmp_type(), icmp.payload()).checksum,
            )?;
            match icmp.type_u8() {
                icmpv4::TYPE_DEST_UNREACH | icmpv4::TYPE_TIME_EXCEEDED => quoted(icmp.payload()),
                _ => Ok(()),
            }
        }
        (Some(TransportSlice::Icmpv6(icmp)), Some(InternetSlice::Ipv6(ip))) => {
            if !icmp.is_checksum_valid(ip.header().source(), ip.header().destination()) {
                return Err(format!("ICMPv6 checksum {:04x} is wrong", icmp.checksum()));
            }
            match icmp.type_u8() {
                icmpv6::TYPE_DST_UNREACH
                | icmpv6::TYPE_PACKET_TOO_BIG
                | icmpv6::TYPE_TIME_EXCEEDED => quoted(icmp.payload()),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}
