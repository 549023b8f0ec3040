//! Flow keys: the two ends of a flow, as one direction of a packet names them.

use crate::fault::{Fault, is_planted};
use crate::header::{icmp, icmpv6, proto};
use crate::layers::{Layers, Network};
use crate::packet::Packet;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A 5-tuple in one direction, 40 bytes without padding; IPv4 as IPv4-mapped IPv6 (RFC
/// 4291, section 2.5.5.2).
///
/// ICMP has no ports. An ICMP key's ports name the exchange and the direction, so that
/// the reverse of a request's key is its reply's key and no other message's. The asker's
/// port is the identifier; the other port is higher by the request's type
/// ([`FlowKey::ports`] gives the identifier alone). Messages that are neither requests
/// nor replies form one flow per type, in one direction. `scope` separates flows with
/// equal 5-tuples (0 unless a deployment uses it).
#[allow(clippy::derived_hash_with_manual_eq, reason = "equal by words is equal by fields")]
#[derive(
    Clone,
    Copy,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Serialize,
    Deserialize,
)]
#[repr(C)]
pub struct FlowKey {
    /// Source address.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
    /// Source port, host order.
    pub source_port: u16,
    /// Destination port, host order.
    pub destination_port: u16,
    /// IP protocol.
    pub protocol: u16,
    /// The scope; see the type.
    pub scope: u16,
}

/// The bytes of a key while it is made.
#[derive(IntoBytes)]
#[repr(C)]
struct Halves {
    source: [u8; 16],
    destination: [u8; 16],
    tail: u64,
}

/// Compares five words at once: on the hot path, field by field would become calls.
impl PartialEq for FlowKey {
    #[inline]
    fn eq(&self, other: &FlowKey) -> bool {
        let a: [u64; 5] = zerocopy::transmute!(*self);
        let b: [u64; 5] = zerocopy::transmute!(*other);
        (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) | (a[4] ^ b[4]) == 0
    }
}

/// An IPv4 address as IPv4-mapped IPv6.
#[inline]
pub fn map_v4(address: [u8; 4]) -> [u8; 16] {
    (0xffff_0000_0000 | u128::from(u32::from_be_bytes(address))).to_be_bytes()
}

/// The IPv4 address in an IPv4-mapped one.
#[inline]
pub fn unmap_v4(address: &[u8; 16]) -> Option<[u8; 4]> {
    let is_mapped = address[..10] == [0; 10] && address[10] == 0xff && address[11] == 0xff;
    is_mapped.then(|| [address[12], address[13], address[14], address[15]])
}

/// The part of an address that its host cannot choose: an IPv4 address, or an IPv6 /64.
pub fn source_of(address: &[u8; 16]) -> [u8; 16] {
    let mut source = *address;
    if unmap_v4(address).is_none() {
        source[8..].fill(0);
    }
    source
}

/// Any address as 16 bytes.
pub fn ip_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => map_v4(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The address in 16 bytes.
pub fn ip_addr(bytes: &[u8; 16]) -> IpAddr {
    match unmap_v4(bytes) {
        Some(v4) => IpAddr::V4(Ipv4Addr::from(v4)),
        None => IpAddr::V6(Ipv6Addr::from(*bytes)),
    }
}

/// The difference between the two ports in the key of an ICMP message without an
/// exchange: larger than any type, and its own negative.
const NO_EXCHANGE: u16 = 0x8000;

/// The exchange of an ICMP message's key, with its identifier.
enum Exchange {
    Request(u16),
    Reply(u16),
    None,
}

/// The ports of an ICMP message, as [`FlowKey`] has them. `rest` is its second word.
fn icmp_ports(exchange: Option<(u8, bool)>, kind: u8, rest: [u8; 4]) -> (u16, u16) {
    let id = u16::from_be_bytes([rest[0], rest[1]]);
    match exchange {
        _ if is_planted(Fault::RequestsPassAsReplies) => (id, id),
        Some((request, false)) => (id, id.wrapping_add(request.into())),
        Some((request, true)) => (id.wrapping_add(request.into()), id),
        None => (kind.into(), u16::from(kind) + NO_EXCHANGE),
    }
}

impl FlowKey {
    /// The tuple of a reply.
    #[inline]
    pub fn reverse(&self) -> FlowKey {
        FlowKey {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..*self
        }
    }

    /// The hash under a cluster's seed. Not symmetric: a flow is found by either of its
    /// two keys.
    #[inline]
    pub fn hash(&self, seed: u64) -> u64 {
        // Wyhash's folded multiplication over five words, and its final step. A single
        // such multiplication would give successive keys successive values, and bits of
        // these choose a table's bucket. Both factors of an address contain the seed: an
        // attacker who chooses half of an address cannot make a factor zero.
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or([0; 8]));
        let multiply = |a: u64, b: u64| {
            let wide = u128::from(a) * u128::from(b);
            (wide as u64, (wide >> 64) as u64)
        };
        let fold = |a: u64, b: u64| {
            let (low, high) = multiply(a, b);
            low ^ high
        };
        let turned = seed.rotate_left(32);
        let ports = u64::from(self.source_port)
            | u64::from(self.destination_port) << 16
            | u64::from(self.protocol) << 32
            | u64::from(self.scope) << 48;
        let source = fold(
            word(&self.source[..8]) ^ seed ^ 0xa076_1d64_78bd_642f,
            word(&self.source[8..]) ^ turned ^ 0xe703_7ed1_a0b4_28db,
        );
        let destination = fold(
            word(&self.destination[..8]) ^ seed ^ 0x8ebc_6af0_9c88_c6e3,
            word(&self.destination[8..]) ^ turned ^ 0x5899_65cc_7537_4cc3,
        );
        let (low, high) = multiply(
            source ^ ports ^ 0x1d8e_4e27_c47d_124f,
            destination.rotate_left(32) ^ 0xeb44_acca_b455_d165 ^ seed,
        );
        fold(low ^ 0xa076_1d64_78bd_642f, high ^ 0xe703_7ed1_a0b4_28db ^ seed)
    }

    /// The key of a packet that [`Packet::parse`] understood. `None` for packets without
    /// a flow of their own: not IP, or a fragment after the first. ICMP errors give the
    /// reversed key of the packet that they quote: they travel with the replies.
    #[inline(always)]
    pub fn of(packet: &Packet) -> Option<FlowKey> {
        let layers = &packet.layers;
        // Most packets take this path, without a call: a key that is hashed at once
        // should stay in registers.
        if matches!(layers.protocol, proto::TCP | proto::UDP) && layers.has_transport() {
            let bytes = packet.bytes().get(..layers.end as usize)?;
            let header = bytes.get(layers.l3 as usize..)?;
            let (source, destination) = match layers.network {
                Network::V4 => {
                    let addresses: &[[u8; 4]; 2] =
                        zerocopy::transmute_ref!(header.get(12..20)?.first_chunk::<8>()?);
                    (map_v4(addresses[0]), map_v4(addresses[1]))
                }
                Network::V6 => {
                    let addresses: &[[u8; 16]; 2] =
                        zerocopy::transmute_ref!(header.get(8..40)?.first_chunk::<32>()?);
                    (addresses[0], addresses[1])
                }
                Network::Other => return None,
            };
            let ports: &[u8; 4] = bytes.get(layers.l4 as usize..)?.first_chunk()?;
            let source_port = u64::from(u16::from_be_bytes([ports[0], ports[1]]));
            let destination_port = u64::from(u16::from_be_bytes([ports[2], ports[3]]));
            let protocol = u64::from(layers.protocol);
            // A single word, written as one: four fields written and then read together
            // would stall.
            let tail = if cfg!(target_endian = "little") {
                source_port | destination_port << 16 | protocol << 32
            } else {
                source_port << 48 | destination_port << 32 | protocol << 16
            };
            return Some(zerocopy::transmute!(Halves { source, destination, tail }));
        }
        FlowKey::of_bytes(packet.bytes(), layers, true)
    }

    fn of_bytes(bytes: &[u8], layers: &Layers, follow_errors: bool) -> Option<FlowKey> {
        if !layers.has_transport() {
            return None;
        }
        let l3 = layers.l3 as usize;
        let l4 = layers.l4 as usize;
        // Padding and an ICMP error's extensions lie behind the packet's end; they are no
        // ports.
        let bytes = bytes.get(..layers.end as usize)?;
        let (source, destination) = match layers.network {
            Network::V4 => {
                let header: &[u8; 20] = bytes.get(l3..l3 + 20)?.try_into().ok()?;
                (
                    map_v4([header[12], header[13], header[14], header[15]]),
                    map_v4([header[16], header[17], header[18], header[19]]),
                )
            }
            Network::V6 => {
                let header: &[u8; 40] = bytes.get(l3..l3 + 40)?.try_into().ok()?;
                (header[8..24].try_into().ok()?, header[24..40].try_into().ok()?)
            }
            Network::Other => return None,
        };
        let mut key = FlowKey {
            source,
            destination,
            source_port: 0,
            destination_port: 0,
            protocol: u16::from(layers.protocol),
            scope: 0,
        };
        match layers.protocol {
            proto::TCP | proto::UDP => {
                let ports: &[u8; 4] = bytes.get(l4..l4 + 4)?.try_into().ok()?;
                key.source_port = u16::from_be_bytes([ports[0], ports[1]]);
                key.destination_port = u16::from_be_bytes([ports[2], ports[3]]);
            }
            proto::ICMP if layers.network == Network::V4 => {
                let header: &[u8; 8] = bytes.get(l4..l4 + 8)?.try_into().ok()?;
                let [kind, _, _, _, rest @ ..] = *header;
                if icmp::is_error(kind) {
                    let is_followed = follow_errors && icmp::is_about_a_flow(kind);
                    return if is_followed {
                        FlowKey::of_error(&key, bytes.get(l4 + 8..)?)
                    } else {
                        None
                    };
                }
                (key.source_port, key.destination_port) =
                    icmp_ports(icmp::exchange(kind), kind, rest);
            }
            proto::ICMPV6 if layers.network == Network::V6 => {
                let header: &[u8; 8] = bytes.get(l4..l4 + 8)?.try_into().ok()?;
                let [kind, _, _, _, rest @ ..] = *header;
                if icmpv6::is_error(kind) {
                    return if follow_errors {
                        FlowKey::of_error(&key, bytes.get(l4 + 8..)?)
                    } else {
                        None
                    };
                }
                (key.source_port, key.destination_port) =
                    icmp_ports(icmpv6::exchange(kind), kind, rest);
            }
            _ => {}
        }
        Some(key)
    }

    /// The reversed key of a quoted packet (carried by an ICMP error): the direction in
    /// which the error travels.
    pub fn quoted(packet: &[u8]) -> Option<FlowKey> {
        let layers = Layers::parse_quoted(packet).ok()?;
        FlowKey::of_bytes(packet, &layers, false).map(|key| key.reverse())
    }

    /// Notes the flow of a later fragment in it: ports and protocol, which the fragment
    /// lacks, replace the frame's destination, which means nothing inside the box. The
    /// addresses are the key's. [`FlowKey::noted`] reads the note.
    pub fn note(&self, fragment: &mut Packet) {
        if is_planted(Fault::FollowsFrames) {
            return;
        }
        if let Some(place) = fragment.headers_mut().first_chunk_mut::<5>() {
            let ([a, b], [c, d]) =
                (self.source_port.to_be_bytes(), self.destination_port.to_be_bytes());
            *place = [a, b, c, d, self.protocol as u8];
        }
    }

    /// The key of a parsed packet inside the box: its own, or the note that
    /// [`FlowKey::note`] wrote on a later fragment. `None` if the packet is not IP.
    #[inline]
    pub fn noted(packet: &Packet) -> Option<FlowKey> {
        if packet.layers.fragment_offset == 0 {
            return FlowKey::of(packet);
        }
        let (source, destination) = match packet.layers.network {
            Network::V4 => {
                packet.ipv4().map(|header| (map_v4(header.source), map_v4(header.destination)))?
            }
            Network::V6 => packet.ipv6().map(|header| (header.source, header.destination))?,
            Network::Other => return None,
        };
        let &[a, b, c, d, protocol] = packet.bytes().first_chunk()?;
        let (source_port, destination_port) =
            (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Some(FlowKey {
            source,
            destination,
            source_port,
            destination_port,
            protocol: protocol.into(),
            scope: 0,
        })
    }

    /// The key of an ICMP error between the addresses of `outer`. An error goes to the
    /// sender of the packet that it quotes (RFC 792: "the source network and address from
    /// the original datagram's data"; RFC 4443, sections 3.1 to 3.4); an error to another
    /// host belongs to no flow.
    fn of_error(outer: &FlowKey, quoted: &[u8]) -> Option<FlowKey> {
        let is_sender = |key: &FlowKey| {
            key.destination == outer.destination || is_planted(Fault::ErrorsGoAnywhere)
        };
        FlowKey::quoted(quoted).filter(is_sender)
    }

    fn exchange(&self) -> Option<Exchange> {
        if self.protocol != u16::from(proto::ICMP) && self.protocol != u16::from(proto::ICMPV6) {
            return None;
        }
        Some(match self.destination_port.wrapping_sub(self.source_port) {
            NO_EXCHANGE => Exchange::None,
            ..NO_EXCHANGE => Exchange::Request(self.source_port),
            _ => Exchange::Reply(self.destination_port),
        })
    }

    /// True for an ICMP request or reply.
    pub(crate) fn is_of_exchange(&self) -> bool {
        matches!(self.exchange(), Some(Exchange::Request(_) | Exchange::Reply(_)))
    }

    /// Source and destination port as people know them: for an ICMP exchange both are the
    /// identifier, for other ICMP messages 0.
    pub fn ports(&self) -> (u16, u16) {
        match self.exchange() {
            None => (self.source_port, self.destination_port),
            Some(Exchange::Request(id) | Exchange::Reply(id)) => (id, id),
            Some(Exchange::None) => (0, 0),
        }
    }

    /// Source address.
    pub fn source_ip(&self) -> IpAddr {
        ip_addr(&self.source)
    }

    /// Destination address.
    pub fn destination_ip(&self) -> IpAddr {
        ip_addr(&self.destination)
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match u8::try_from(self.protocol) {
            Ok(proto::TCP) => "tcp",
            Ok(proto::UDP) => "udp",
            Ok(proto::ICMP) => "icmp",
            Ok(proto::ICMPV6) => "icmp6",
            _ => "",
        };
        if name.is_empty() {
            write!(f, "proto-{} ", self.protocol)?;
        } else {
            write!(f, "{name} ")?;
        }
        let end = |f: &mut fmt::Formatter<'_>, ip: IpAddr, port: Option<u16>| match (ip, port) {
            (ip, None) => write!(f, "{ip}"),
            (IpAddr::V4(ip), Some(port)) => write!(f, "{ip}:{port}"),
            (IpAddr::V6(ip), Some(port)) => write!(f, "[{ip}]:{port}"),
        };
        let (from, to) = match self.exchange() {
            None => (Some(self.source_port), Some(self.destination_port)),
            // The identifier is the asker's.
            Some(Exchange::Request(id)) => (Some(id), None),
            Some(Exchange::Reply(id)) => (None, Some(id)),
            Some(Exchange::None) => (None, None),
        };
        end(f, self.source_ip(), from)?;
        f.write_str(" > ")?;
        end(f, self.destination_ip(), to)?;
        match self.exchange() {
            Some(Exchange::None) if self.source_port < NO_EXCHANGE => {
                write!(f, " type {}", self.source_port)
            }
            Some(Exchange::None) => write!(f, " against type {}", self.destination_port),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
