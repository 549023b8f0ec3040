//! The values in a selector: prefixes, ports, protocols.
//!
//! In: text, as an operator writes it. Out: the value, or the error with its place.
//! Never: a packet.

use super::{SelectorError, wrong};
use crate::header::proto;
use crate::key::{ip_addr, ip_bytes, map_v4, unmap_v4};
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// An address prefix, IPv4 or IPv6. Bits beyond its length are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    /// IPv4 as IPv4-mapped IPv6.
    address: [u8; 16],
    /// Length in those 128 bits.
    len: u8,
}

impl Prefix {
    /// A prefix of `len` bits of the address's own family. `None` if it is longer than an
    /// address, or has bits set beyond its length.
    pub fn new(address: IpAddr, len: u8) -> Option<Prefix> {
        let (max, offset) = if address.is_ipv4() { (32, 96) } else { (128, 0) };
        let prefix = Prefix { address: ip_bytes(address), len: len.checked_add(offset)? };
        (len <= max && prefix.masked() == prefix.address).then_some(prefix)
    }

    /// Addresses valid within one site only: private ones (RFC 1918, section 3; RFC 4193,
    /// section 3.1), and those that a provider shares with its customers (RFC 6598,
    /// section 7).
    pub fn private() -> [Prefix; 5] {
        const V4: [([u8; 4], u8); 4] = [
            ([10, 0, 0, 0], 8),
            ([172, 16, 0, 0], 12),
            ([192, 168, 0, 0], 16),
            ([100, 64, 0, 0], 10),
        ];
        let v4 = |at: usize| Prefix { address: map_v4(V4[at].0), len: 96 + V4[at].1 };
        let mut unique_local = [0; 16];
        unique_local[0] = 0xfc;
        [v4(0), v4(1), v4(2), v4(3), Prefix { address: unique_local, len: 7 }]
    }

    /// The prefix of exactly this address.
    pub fn host(address: IpAddr) -> Prefix {
        Prefix { address: ip_bytes(address), len: 128 }
    }

    /// The network of an interface with this address and length.
    pub fn network_of(address: IpAddr, len: u8) -> Option<Prefix> {
        let (max, offset) = if address.is_ipv4() { (32, 96) } else { (128, 0) };
        if len > max {
            return None;
        }
        let prefix = Prefix { address: ip_bytes(address), len: len + offset };
        Some(Prefix { address: prefix.masked(), ..prefix })
    }

    fn masked(&self) -> [u8; 16] {
        let (address, mask) = self.bits();
        (address & mask).to_be_bytes()
    }

    /// The address, and the mask of the bits that the prefix fixes.
    pub(super) fn bits(&self) -> (u128, u128) {
        let mask = if self.len == 0 { 0 } else { u128::MAX << (128 - u32::from(self.len)) };
        (u128::from_be_bytes(self.address), mask)
    }

    /// True if the address (IPv4 as IPv4-mapped) is in the prefix. No IPv4 address is in
    /// an IPv6 prefix, however short.
    #[inline]
    pub fn contains(&self, address: &[u8; 16]) -> bool {
        let differs = u128::from_be_bytes(self.address) ^ u128::from_be_bytes(*address);
        match self.len {
            // From 96 bits on, the prefix's own bits tell the families apart.
            96.. => differs >> (128 - u32::from(self.len)) == 0,
            len => {
                differs.checked_shr(128 - u32::from(len)).unwrap_or(0) == 0
                    && unmap_v4(address).is_none()
            }
        }
    }

    /// The first address.
    pub fn first(&self) -> IpAddr {
        ip_addr(&self.address)
    }

    /// Length in bits of its own family.
    pub fn len(&self) -> u8 {
        if self.is_ipv4() { self.len - 96 } else { self.len }
    }

    /// True for a prefix of length 0 in 128 bits, which covers every address.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True for IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.len >= 96 && self.first().is_ipv4()
    }

    /// Length in 128 bits, comparable between families.
    pub fn specificity(&self) -> u8 {
        self.len
    }

    /// The number of addresses, at most `u64::MAX`.
    pub fn size(&self) -> u64 {
        1u64.checked_shl(128 - u32::from(self.len)).unwrap_or(u64::MAX)
    }

    /// True if every address of the other prefix is in this one.
    pub fn covers(&self, other: &Prefix) -> bool {
        self.len <= other.len && self.contains(&other.address)
    }

    /// True if some address is in both.
    pub fn overlaps(&self, other: &Prefix) -> bool {
        if self.len <= other.len {
            self.contains(&other.address)
        } else {
            other.contains(&self.address)
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first(), self.len())
    }
}

impl FromStr for Prefix {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Prefix, SelectorError> {
        let (address_text, len_text) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address_text
            .parse()
            .map_err(|_| wrong(0, format!("`{address_text}` is not an IP address")))?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let at = address_text.len() + 1;
        let len: u8 = match len_text {
            None => max,
            Some(len) => len.parse().ok().filter(|len| *len <= max).ok_or_else(|| {
                wrong(at, format!("`{len}` is not a prefix length from 0 to {max}"))
            })?,
        };
        Prefix::new(address, len).ok_or_else(|| {
            let network = Prefix::network_of(address, len)
                .map_or(String::new(), |network| format!("; did you mean `{network}`?"));
            wrong(0, format!("`{text}` has bits set beyond its length{network}"))
        })
    }
}

impl TryFrom<String> for Prefix {
    type Error = SelectorError;

    fn try_from(text: String) -> Result<Prefix, SelectorError> {
        text.parse()
    }
}

impl Serialize for Prefix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Prefix, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Ports and ranges of ports; empty for all ports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ports(Vec<(u16, u16)>);

impl Ports {
    /// All ports.
    pub fn any() -> Ports {
        Ports::default()
    }

    /// True if the port is included.
    #[inline]
    pub fn contains(&self, port: u16) -> bool {
        self.0.is_empty() || self.0.iter().any(|&(low, high)| low <= port && port <= high)
    }

    /// True for all ports.
    pub fn is_any(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges, ends included.
    pub fn ranges(&self) -> &[(u16, u16)] {
        &self.0
    }

    /// The number of ports, each counted once. If all ports include packets without
    /// ports, they count one more.
    pub(super) fn count(&self, includes_portless: bool) -> u64 {
        if self.is_any() {
            return (1 << 16) + u64::from(includes_portless);
        }
        let mut ranges = self.0.clone();
        ranges.sort_unstable();
        let mut next = 0u64;
        let mut count = 0;
        for (low, high) in ranges {
            let (low, end) = (u64::from(low).max(next), u64::from(high) + 1);
            count += end.saturating_sub(low);
            next = next.max(end);
        }
        count
    }

    /// True if each of the other's ranges lies within one range of this one.
    pub(super) fn covers(&self, other: &Ports) -> bool {
        let has =
            |(low, high): &(u16, u16)| self.0.iter().any(|(from, to)| from <= low && high <= to);
        self.is_any() || (!other.is_any() && other.0.iter().all(has))
    }

    pub(super) fn overlaps(&self, other: &Ports) -> bool {
        let meets =
            |&(low, high): &(u16, u16)| other.0.iter().any(|&(from, to)| low <= to && from <= high);
        self.is_any() || other.is_any() || self.0.iter().any(meets)
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (low, high)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            if low == high {
                write!(f, "{comma}{low}")?;
            } else {
                write!(f, "{comma}{low}-{high}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Ports {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Ports, SelectorError> {
        let mut ranges = Vec::new();
        let mut offset = 0;
        for part in text.split(',') {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| {
                text.parse::<u16>()
                    .map_err(|_| wrong(offset, format!("`{text}` is not a port from 0 to 65535")))
            };
            let (low, high) = (number(low)?, number(high)?);
            if low > high {
                return Err(wrong(
                    offset,
                    format!("`{part}` ends before it begins; did you mean `{high}-{low}`?"),
                ));
            }
            ranges.push((low, high));
            offset += part.len() + 1;
        }
        Ok(Ports(ranges))
    }
}

impl Serialize for Ports {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Ports, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A transport protocol. `icmp` is ICMP over IPv4 and ICMPv6 over IPv6: an operator who
/// allows ping means both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// All protocols.
    #[default]
    Any,
    /// ICMP and ICMPv6.
    Icmp,
    /// The protocol with this number.
    Number(u8),
}

/// Words for protocols, for suggestions.
const PROTOCOLS: &[&str] = &["any", "ip", "tcp", "udp", "icmp"];

impl Protocol {
    /// True if this protocol is included.
    #[inline]
    pub fn matches(&self, protocol: u16) -> bool {
        match self {
            Protocol::Any => true,
            Protocol::Icmp => {
                protocol == u16::from(proto::ICMP) || protocol == u16::from(proto::ICMPV6)
            }
            Protocol::Number(number) => protocol == u16::from(*number),
        }
    }

    pub(super) fn covers(&self, other: &Protocol) -> bool {
        match (self, other) {
            (Protocol::Any, _) => true,
            (_, Protocol::Number(number)) => self.matches(u16::from(*number)),
            (own, other) => own == other,
        }
    }

    pub(super) fn is_icmp(&self) -> bool {
        matches!(self, Protocol::Icmp | Protocol::Number(proto::ICMP | proto::ICMPV6))
    }

    pub(super) fn has_ports(&self) -> bool {
        matches!(self, Protocol::Any | Protocol::Number(proto::TCP | proto::UDP))
    }

    /// A measure of how many protocols match.
    pub(super) fn width(&self) -> u8 {
        match self {
            Protocol::Any => 2,
            Protocol::Icmp => 1,
            Protocol::Number(_) => 0,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protocol::Any => f.write_str("any"),
            Protocol::Icmp => f.write_str("icmp"),
            Protocol::Number(proto::TCP) => f.write_str("tcp"),
            Protocol::Number(proto::UDP) => f.write_str("udp"),
            Protocol::Number(number) => write!(f, "proto-{number}"),
        }
    }
}

impl FromStr for Protocol {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Protocol, SelectorError> {
        match text {
            "any" | "ip" => Ok(Protocol::Any),
            "tcp" => Ok(Protocol::Number(proto::TCP)),
            "udp" => Ok(Protocol::Number(proto::UDP)),
            "icmp" | "icmp6" => Ok(Protocol::Icmp),
            _ => {
                let number = text.strip_prefix("proto-").unwrap_or(text);
                let unknown = || {
                    wrong(
                        0,
                        format!(
                            "`{text}` is not a protocol: one of {}, or a number",
                            PROTOCOLS.join(", ")
                        ),
                    )
                };
                number.parse().map(Protocol::Number).map_err(|_| unknown())
            }
        }
    }
}
