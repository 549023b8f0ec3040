//! Static mappings: outside ends under which ends of inside hosts can be reached.
//!
//! Theory of operation. A mapping gives the end of an inside host (address and port) an
//! outside end: one port of TCP or UDP, a range of ports, or a whole address with its
//! echo identifiers. A static mapping needs no lease, no state and no first packet from
//! inside. Packets that the inside end sends first leave from its outside end too: the
//! mapping does not depend on who begins (RFC 4787, section 4.1).

use holdfast_nf::ConfigError;
use holdfast_wire::header::proto;
use holdfast_wire::selector::Prefix;
use std::net::Ipv4Addr;

/// An address and a port, or an echo's identifier.
pub(crate) type End4 = ([u8; 4], u16);

/// Maximum number of mappings of one translator.
const MAX_MAPPINGS: usize = 4096;

/// [`Static::protocol`] of a whole address: TCP, UDP and ICMP.
const WHOLE: u8 = 0;

/// A mapping: ports `first` to `last` of the outside address stand for as many ports of
/// the inside address, from `inside_first` on.
#[derive(Debug, Clone, Copy)]
struct Static {
    protocol: u8,
    outside: [u8; 4],
    first: u16,
    last: u16,
    inside: [u8; 4],
    inside_first: u16,
}

impl Static {
    fn inside_last(&self) -> u16 {
        self.inside_first + (self.last - self.first)
    }

    fn overlaps(&self, other: &Static) -> bool {
        let is_both =
            self.protocol == other.protocol || self.protocol == WHOLE || other.protocol == WHOLE;
        is_both
            && self.outside == other.outside
            && self.first <= other.last
            && other.first <= self.last
    }
}

/// All static mappings of one translator.
#[derive(Debug)]
pub(crate) struct Published {
    /// Sorted by protocol, outside address, port.
    by_outside: Vec<Static>,
    /// Sorted by protocol, inside address; mappings of one inside end in the order
    /// written.
    by_inside: Vec<Static>,
}

impl Published {
    /// Reads the configured mappings. An inside address may not be in the pool or
    /// published itself.
    pub(crate) fn new(texts: &[String], pool: &[Prefix]) -> Result<Published, ConfigError> {
        let error = |at: usize, offset: usize, message: String| ConfigError {
            path: format!("publish[{at}]"),
            message,
            offset: Some(offset),
        };
        if texts.len() > MAX_MAPPINGS {
            let message = format!(
                "more than the {MAX_MAPPINGS} static mappings that one translator may have"
            );
            return Err(error(MAX_MAPPINGS, 0, message));
        }
        let mut all: Vec<Static> = Vec::with_capacity(texts.len());
        let mut inside_offsets = Vec::with_capacity(texts.len());
        for (at, text) in texts.iter().enumerate() {
            let (read, offsets) =
                parse(text).map_err(|(offset, message)| error(at, offset, message))?;
            if let Some(other) = all.iter().position(|other| other.overlaps(&read)) {
                return Err(error(at, offsets.outside, format!("overlaps `{}`", texts[other])));
            }
            all.push(read);
            inside_offsets.push(offsets.inside);
        }
        let is_outside = |address: &[u8; 4]| {
            pool.iter().any(|prefix| prefix.contains(&holdfast_wire::map_v4(*address)))
                || all.iter().any(|other| other.outside == *address)
        };
        if let Some(at) = all.iter().position(|read| is_outside(&read.inside)) {
            let address = Ipv4Addr::from(all[at].inside);
            return Err(error(
                at,
                inside_offsets[at],
                format!("{address} is an outside address: it has no host"),
            ));
        }
        let (mut by_outside, mut by_inside) = (all.clone(), all);
        by_outside.sort_by_key(|one| (one.protocol, one.outside, one.first));
        by_inside.sort_by_key(|one| (one.protocol, one.inside));
        Ok(Published { by_outside, by_inside })
    }

    /// The inside end that is published under this outside end.
    pub(crate) fn inside_of(&self, protocol: u8, (address, port): End4) -> Option<End4> {
        let find = |protocol: u8| {
            let after = self.by_outside.partition_point(|one| {
                (one.protocol, one.outside, one.first) <= (protocol, address, port)
            });
            let one = self.by_outside[..after].last()?;
            let is_it = one.protocol == protocol && one.outside == address && port <= one.last;
            is_it.then(|| (one.inside, one.inside_first + (port - one.first)))
        };
        find(protocol).or_else(|| find(WHOLE))
    }

    /// The outside end under which this inside end is published.
    pub(crate) fn outside_of(&self, protocol: u8, (address, port): End4) -> Option<End4> {
        let find = |protocol: u8| {
            let first = self
                .by_inside
                .partition_point(|one| (one.protocol, one.inside) < (protocol, address));
            let mut of_host = self.by_inside[first..]
                .iter()
                .take_while(|one| (one.protocol, one.inside) == (protocol, address));
            let one = of_host.find(|one| one.inside_first <= port && port <= one.inside_last())?;
            Some((one.outside, one.first + (port - one.inside_first)))
        };
        find(protocol).or_else(|| find(WHOLE))
    }

    /// True if the address has a mapping.
    pub(crate) fn has_outside(&self, address: [u8; 4]) -> bool {
        [WHOLE, proto::TCP, proto::UDP].into_iter().any(|protocol| {
            let at = self
                .by_outside
                .partition_point(|one| (one.protocol, one.outside) < (protocol, address));
            self.by_outside
                .get(at)
                .is_some_and(|one| (one.protocol, one.outside) == (protocol, address))
        })
    }

    /// The outside addresses, each once.
    pub(crate) fn addresses(&self) -> Vec<[u8; 4]> {
        let mut addresses: Vec<[u8; 4]> = self.by_outside.iter().map(|one| one.outside).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Ranges of ports from `first` to `last` that are published under the address by any
    /// protocol, in order and disjoint.
    pub(crate) fn taken(&self, address: [u8; 4], first: u16, last: u16) -> Vec<(u16, u16)> {
        let here = self
            .by_outside
            .iter()
            .filter(|one| one.outside == address && one.first <= last && first <= one.last);
        let mut ranges: Vec<(u16, u16)> =
            here.map(|one| (one.first.max(first), one.last.min(last))).collect();
        ranges.sort_unstable();
        let mut apart: Vec<(u16, u16)> = Vec::new();
        for (low, high) in ranges {
            match apart.last_mut() {
                Some((_, end)) if low <= *end => *end = high.max(*end),
                _ => apart.push((low, high)),
            }
        }
        apart
    }
}

/// Byte offsets of the ends in a mapping's text.
struct Offsets {
    outside: usize,
    inside: usize,
}

type Wrong = (usize, String);

fn parse(text: &str) -> Result<(Static, Offsets), Wrong> {
    let words: Vec<(usize, &str)> = text
        .split_whitespace()
        .map(|word| (word.as_ptr() as usize - text.as_ptr() as usize, word))
        .collect();
    match words.as_slice() {
        [outside, (_, "->"), inside] => {
            let whole = Static {
                protocol: WHOLE,
                outside: host(outside.0, outside.1)?,
                first: 0,
                last: u16::MAX,
                inside: host(inside.0, inside.1)?,
                inside_first: 0,
            };
            Ok((whole, Offsets { outside: outside.0, inside: inside.0 }))
        }
        [(at, protocol), outside, (_, "->"), inside] => {
            let protocol = match *protocol {
                "tcp" => proto::TCP,
                "udp" => proto::UDP,
                other => return Err((*at, format!("`{other}` is neither `tcp` nor `udp`"))),
            };
            let (outside_address, first, last) = end(outside.0, outside.1)?;
            let (inside_address, inside_first, inside_last) = end(inside.0, inside.1)?;
            if last - first != inside_last - inside_first {
                let count = |first: u16, last: u16| u32::from(last - first) + 1;
                let (outside_count, inside_count) =
                    (count(first, last), count(inside_first, inside_last));
                let message = format!(
                    "the outside ports are {outside_count} and the inside ports {inside_count}: as many are needed"
                );
                return Err((inside.0, message));
            }
            let mapping = Static {
                protocol,
                outside: outside_address,
                first,
                last,
                inside: inside_address,
                inside_first,
            };
            Ok((mapping, Offsets { outside: outside.0, inside: inside.0 }))
        }
        _ => Err((
            0,
            format!(
                "`{text}` is no static mapping like `tcp 198.51.100.4:2222 -> 10.0.0.9:22`, `udp 198.51.100.4:5000-5010 -> 10.0.0.9:5000-5010` or `198.51.100.7 -> 10.0.0.7`"
            ),
        )),
    }
}

/// Reads an address that a host may have.
fn host(at: usize, text: &str) -> Result<[u8; 4], Wrong> {
    let address: Ipv4Addr =
        text.parse().map_err(|_| (at, format!("`{text}` is not an IPv4 address")))?;
    // RFC 6890, section 2.2.2: 0.0.0.0/8 and 240.0.0.0/4 are no hosts'.
    let is_host = !(address.is_multicast()
        || address.is_loopback()
        || address.octets()[0] == 0
        || address.octets()[0] >= 240);
    if is_host {
        Ok(address.octets())
    } else {
        Err((at, format!("`{text}` is not the address of a host")))
    }
}

/// Reads `ADDRESS:PORT` or `ADDRESS:FIRST-LAST`.
fn end(at: usize, text: &str) -> Result<([u8; 4], u16, u16), Wrong> {
    let (address, ports) = text
        .rsplit_once(':')
        .ok_or_else(|| (at, format!("`{text}` is not an address with a port, like 198.51.100.4:2222, or a range of ports")))?;
    let ports_at = at + address.len() + 1;
    let port = |text: &str| match text.parse::<u16>() {
        Ok(port) if port != 0 => Ok(port),
        _ => Err((ports_at, format!("`{text}` is not a port from 1 to 65535"))),
    };
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let (first, last) = (port(first)?, port(last)?);
    if first > last {
        return Err((
            ports_at,
            format!("`{ports}` ends before it begins; did you mean `{last}-{first}`?"),
        ));
    }
    Ok((host(at, address)?, first, last))
}
