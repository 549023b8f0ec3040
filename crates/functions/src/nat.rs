//! `nat`: network address and port translation, IPv4 to IPv4 (NAPT44).
//!
//! Theory of operation (RFC 4787, RFC 5382, RFC 5508). The source of a flow from inside
//! becomes an address and port of the pool. The flow leases the number of that pair from
//! the shared pool until it ends, so no two live flows share a pair (RFC 4787, REQ-3; RFC
//! 5382, REQ-7). An inside host keeps one outside address as long as that address has
//! free ports (RFC 4787, REQ-2). ICMP echo translates its identifier; ICMP errors are
//! translated with the packet that they quote. Packets that cannot be translated are
//! dropped.
//!
//! The number is drawn at random among those at hand (RFC 6056, section 3.3.1; RFC 7857,
//! section 9). An observer of some of a host's ports cannot tell the next one, and a
//! restarted box does not give peers the same ports in the same order. A returned number
//! rests first: the pool sees to that. A mapping lives as long as [`Tracked`] says. No
//! segment is refused for its state, except that a TCP mapping begins with a SYN.
//!
//! Inside hosts open mappings, and so does any packet to a published end ([`Published`]).
//! The destination of such a flow is translated, and its source as well if it is inside,
//! so that replies come back through the box. A static mapping holds no lease: the flow's
//! state says which ends are translated and which one is leased.
//!
//! A mapping belongs to one flow: mapping and filtering are address and port dependent.
//! RFC 4787, REQ-1 asks for a mapping that does not depend on the destination. This needs
//! state shared by an endpoint's flows, which different runtimes may serve, and is not
//! offered yet. Requirement by requirement: docs/correctness-nat.md.

use crate::publish::{End4, Published};
use crate::rewrite::{End, Side, has_possible_mtu, translate};
use crate::tcp;
use crate::tracked::{Lifetimes, TRANSLATOR, Timeouts, Tracked};
use holdfast_nf::shared::BLOCK_LEN;
use holdfast_nf::{
    ConfigError, Context, Direction, DropReason, Expected, Lease, Leased, NetworkFunction, Open,
    Opening, Packet, Pool, SourceLimit, Verdict,
};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::header::{icmp, proto};
use holdfast_wire::selector::Prefix;
use holdfast_wire::{FlowKey, Network, map_v4, unmap_v4};
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::IpAddr;
use std::sync::Arc;

/// The translator's configuration.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NatConfig {
    /// Outside addresses: prefixes, of which every address is used.
    #[schemars(with = "Vec<String>")]
    pub pool: Vec<String>,
    /// Sources that are translated; private and shared addresses (RFC 1918, RFC 6598) by
    /// default. An outside address is never inside.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub inside: Vec<String>,
    /// Static mappings that make inside hosts reachable from outside. A port: `tcp
    /// 198.51.100.4:2222 -> 10.0.0.9:22`. A range of as many ports on both sides: `udp
    /// 198.51.100.4:5000-5010 -> 10.0.0.9:5000-5010`. A whole address with its pings:
    /// `198.51.100.7 -> 10.0.0.7`. Inside hosts can use the outside end too. The box
    /// answers for these outside addresses, in the pool or not. No flow leases a
    /// published end.
    #[serde(default)]
    pub publish: Vec<String>,
    /// Ports used on every address, such as `1024-65535` (the default); rounded down to a
    /// multiple of 256. `random`, alone or in front of the range, is the default: a flow
    /// gets any of the ports at hand (RFC 6056). `sequential` gives them in rising order,
    /// so that they can be predicted.
    #[serde(default)]
    pub ports: Option<String>,
    /// Maximum number of flows with a port of the pool that one inside host may have at a
    /// time, on all runtimes together. The switch counts them by the source address with
    /// which they enter the chain. If a chain has several `nat`, only the first may have
    /// a limit.
    #[serde(default)]
    pub limit_per_host: Option<u32>,
    /// Lifetimes of mappings without a packet.
    #[serde(default)]
    pub timeouts: Timeouts,
}

holdfast_nf::flow_state! {
    /// A flow's mapping.
    pub struct Mapping {
        /// Inside address.
        pub inside: [u8; 4],
        /// Outside address.
        pub outside: [u8; 4],
        /// Inside port or echo identifier.
        pub inside_port: u16,
        /// Outside port or echo identifier.
        pub outside_port: u16,
        /// The number of the outside end, if it is leased.
        pub leased: Leased<Ports>,
        /// Bits of [`kind`].
        pub kind: u8,
        /// Zero.
        pub spare: [u8; 3],
        /// The address that the client sent to, if it is published.
        pub published: [u8; 4],
        /// The inside host published there.
        pub server: [u8; 4],
        /// The port that the client sent to, or the inside identifier of an echo.
        pub published_port: u16,
        /// The inside host's port, or the outside identifier of an echo.
        pub server_port: u16,
        /// The part of the connection that decides its lifetime.
        pub tracked: Tracked,
    }
}

/// Bits of [`Mapping::kind`].
mod kind {
    /// The source is translated: `inside` is `outside`.
    pub(super) const SOURCE: u8 = 1;
    /// The destination is translated: `published` is `server`.
    pub(super) const DESTINATION: u8 = 2;
}

/// The pool of address and port pairs.
pub enum Ports {}

holdfast_nf::shared_state! {
    /// State that all flows of a translator share.
    pub struct NatShared {
        /// Address and port pairs.
        pub ports: Pool<Ports>,
    }
}

/// A translator; see the module.
#[derive(Debug)]
pub struct Nat {
    /// The pool's addresses that have ports to lease.
    addresses: Vec<Outside>,
    ends: Arc<Ends>,
    first_port: u16,
    is_random: bool,
    limit: Option<u32>,
    lifetimes: Lifetimes,
}

/// Inside and outside addresses.
#[derive(Debug)]
struct Ends {
    pool: Vec<Prefix>,
    inside: Vec<Prefix>,
    published: Published,
}

impl Ends {
    fn is_inside(&self, address: [u8; 4]) -> bool {
        self.inside.iter().any(|prefix| prefix.contains(&map_v4(address)))
            && !self.is_outside(address)
    }

    /// True if inside hosts use the address outside.
    fn is_outside(&self, address: [u8; 4]) -> bool {
        self.pool.iter().any(|prefix| prefix.contains(&map_v4(address)))
            || self.published.has_outside(address)
    }

    /// True if a flow with this key leases an outside end: its source is inside and not
    /// published.
    fn leases(&self, key: &FlowKey) -> bool {
        unmap_v4(&key.source).is_some_and(|source| {
            self.is_inside(source)
                && self
                    .published
                    .outside_of(key.protocol as u8, (source, key.source_port))
                    .is_none()
        })
    }
}

/// An address of the pool, and the numbers that stand for its ports.
#[derive(Debug)]
struct Outside {
    address: [u8; 4],
    /// Numbers of its ports; a multiple of a block's.
    numbers: core::ops::Range<u32>,
    /// Published ranges of ports, in order; these ports have no number.
    published: Vec<(u16, u16)>,
}

/// Maximum number of addresses of one pool.
const MAX_ADDRESSES: u64 = 4096;

fn prefixes(texts: &[String], name: &str) -> Result<Vec<Prefix>, ConfigError> {
    let parse = |(at, text): (usize, &String)| {
        let error = |message: String, offset: usize| ConfigError {
            path: format!("{name}[{at}]"),
            message,
            offset: Some(offset),
        };
        let prefix: Prefix =
            text.parse().map_err(|wrong: holdfast_wire::selector::SelectorError| {
                error(wrong.message, wrong.offset)
            })?;
        if prefix.is_ipv4() {
            Ok(prefix)
        } else {
            Err(error(format!("`{text}` is not IPv4; this function translates IPv4 only"), 0))
        }
    };
    texts.iter().enumerate().map(parse).collect()
}

/// Reads `ports`: true if ports are drawn at random (the default), the first port, the
/// last port.
fn ports(text: &str) -> Result<(bool, u16, u16), ConfigError> {
    let wrong = || {
        ConfigError::at(
            "ports",
            format!(
                "`{text}` is not a range of ports like 1024-65535, nor `random` or `sequential`, nor both: `random 1024-65535`"
            ),
        )
    };
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let (is_random, range) = match word {
        "random" => (true, rest.trim()),
        "sequential" => (false, rest.trim()),
        _ => (true, text),
    };
    if range.is_empty() && !text.is_empty() {
        return Ok((is_random, 1024, 65_535));
    }
    let (low, high) = range.split_once('-').ok_or_else(wrong)?;
    let (low, high): (u16, u16) =
        (low.parse().map_err(|_| wrong())?, high.parse().map_err(|_| wrong())?);
    if low > high || low == 0 { Err(wrong()) } else { Ok((is_random, low, high)) }
}

/// The ports of TCP and UDP; the identifier of an echo request, twice.
fn ports_of(packet: &Packet) -> Option<(u16, u16)> {
    let word = |at: usize| Some(u16::from_be_bytes(*packet.l4().get(at..)?.first_chunk()?));
    match packet.layers.protocol {
        proto::TCP | proto::UDP => Some((word(0)?, word(2)?)),
        proto::ICMP if packet.icmp().is_some_and(|header| header.kind == icmp::ECHO) => {
            Some((word(4)?, word(4)?))
        }
        _ => None,
    }
}

impl Nat {
    /// The numbers of the outside address that this inside host prefers.
    fn preferred(&self, host: [u8; 4]) -> core::ops::Range<u32> {
        if is_planted(Fault::PairsNoAddresses) {
            return 0..u32::MAX;
        }
        let mixed = u32::from_be_bytes(host).wrapping_mul(0x9e37_79b1);
        let address = ((u64::from(mixed) * self.addresses.len() as u64) >> 32) as usize;
        self.addresses[address].numbers.clone()
    }

    /// The address and port that a number of the pool stands for.
    fn end_of(&self, number: u32) -> End4 {
        let outside = &self.addresses
            [self.addresses.partition_point(|outside| outside.numbers.end <= number)];
        let mut port = self.first_port + (number - outside.numbers.start) as u16;
        for (low, high) in &outside.published {
            if port >= *low && !is_planted(Fault::LeasesWhatIsPublished) {
                port += high - low + 1;
            }
        }
        (outside.address, port)
    }

    /// Leases an outside end for a host's flow. If there is none, the flow is refused; no
    /// other flow is evicted for it (RFC 6888, REQ-11 A and D).
    fn lease(
        &self,
        host: [u8; 4],
        shared: &mut NatShared,
        cx: &mut Opening<'_>,
    ) -> Result<(Leased<Ports>, End4), Open<Mapping>> {
        let preferred = self.preferred(host);
        let lease = match self.is_random && !is_planted(Fault::DealsPortsInOrder) {
            true => shared.ports.lease_random(preferred, cx),
            false => shared.ports.lease_within(preferred, cx),
        };
        let leased = match lease {
            Lease::Granted(leased) => leased,
            Lease::Wait => return Err(Open::Wait),
            Lease::Exhausted if is_planted(Fault::EmptyPoolsLend) => Leased::default(),
            Lease::Exhausted => return Err(Open::Drop(DropReason::PoolEmpty)),
        };
        // A granted lease has a number.
        let number = leased.number().unwrap_or(0);
        let end =
            self.end_of(if is_planted(Fault::ReusesLivePort) { number / 4 * 4 } else { number });
        Ok((leased, end))
    }

    /// Translates a published destination, and the source if that is inside: "a NAT
    /// Hairpinning behavior MUST be 'External source IP address and port'" (RFC 4787,
    /// REQ-9a; RFC 5382, REQ-8a). ICMP errors about such a flow are translated in the
    /// same way (RFC 5508, REQ-7).
    #[inline(never)]
    fn translate_published(packet: &mut Packet, flow: &Mapping, direction: Direction) -> bool {
        let [inside, outside, published, server] = [
            (flow.inside, flow.inside_port),
            (flow.outside, flow.outside_port),
            (flow.published, flow.published_port),
            (flow.server, flow.server_port),
        ]
        .map(|(address, port)| End { address: map_v4(address), port });
        let has_source =
            flow.kind & kind::SOURCE != 0 && !is_planted(Fault::HairpinsWithInsideSource);
        match direction {
            Direction::Forward => {
                (!has_source || translate(packet, Side::Source, &inside.address, outside, true))
                    && translate(packet, Side::Destination, &published.address, server, true)
            }
            Direction::Reverse => {
                translate(packet, Side::Source, &server.address, published, true)
                    && (!has_source
                        || translate(packet, Side::Destination, &outside.address, inside, true))
            }
        }
    }
}

impl NetworkFunction for Nat {
    const NAME: &'static str = "nat";
    type Config = NatConfig;
    type Flow = Mapping;
    type Shared = NatShared;

    fn new(config: NatConfig) -> Result<Nat, ConfigError> {
        let pool = prefixes(&config.pool, "pool")?;
        let mut inside = prefixes(&config.inside, "inside")?;
        if inside.is_empty() {
            inside.extend(Prefix::private().into_iter().filter(Prefix::is_ipv4));
        }
        if pool.is_empty() {
            return Err(ConfigError::at(
                "pool",
                "the pool needs at least one address, like [198.51.100.4/31]",
            ));
        }
        for (at, prefix) in pool.iter().enumerate() {
            if let Some(other) = pool[..at].iter().find(|other| other.overlaps(prefix)) {
                return Err(ConfigError::at(
                    format!("pool[{at}]"),
                    format!("{prefix} overlaps {other}"),
                ));
            }
        }
        let count: u64 = pool.iter().map(Prefix::size).sum();
        if count > MAX_ADDRESSES {
            return Err(ConfigError::at(
                "pool",
                format!(
                    "{count} addresses are more than the {MAX_ADDRESSES} that one pool may have"
                ),
            ));
        }
        let published = Published::new(&config.publish, &pool)?;
        let (is_random, low, high) =
            config.ports.as_deref().map_or(Ok((true, 1024, 65_535)), ports)?;
        let mut addresses = Vec::new();
        let mut next = 0;
        for prefix in &pool {
            let IpAddr::V4(first) = prefix.first() else { continue };
            for address in (0..prefix.size() as u32).map(|at| (u32::from(first) + at).to_be_bytes())
            {
                let taken = published.taken(address, low, high);
                let count: u32 = taken.iter().map(|(low, high)| u32::from(high - low) + 1).sum();
                let ports = (u32::from(high) - u32::from(low) + 1 - count) / BLOCK_LEN * BLOCK_LEN;
                if ports > 0 && (next == 0 || !is_planted(Fault::UsesOneAddress)) {
                    addresses.push(Outside {
                        address,
                        numbers: next..next + ports,
                        published: taken,
                    });
                    next += ports;
                }
            }
        }
        if next == 0 && u32::from(high) - u32::from(low) + 1 < BLOCK_LEN {
            return Err(ConfigError::at(
                "ports",
                "fewer than 256 ports cannot be shared between runtimes",
            ));
        }
        if next == 0 {
            let message = "leaves no address of the pool the 256 ports that runtimes share: the pool needs another address, or more ports";
            return Err(ConfigError::at("publish", message));
        }
        let limit = config.limit_per_host;
        let lifetimes = config.timeouts.within(&TRANSLATOR)?;
        let ends = Arc::new(Ends { pool, inside, published });
        Ok(Nat { addresses, ends, first_port: low, is_random, limit, lifetimes })
    }

    fn shared(&self) -> NatShared {
        NatShared {
            ports: Pool::new(self.addresses.last().map_or(0, |outside| outside.numbers.end)),
        }
    }

    fn open(&self, packet: &Packet, shared: &mut NatShared, cx: &mut Opening<'_>) -> Open<Mapping> {
        // A later fragment has no ports: the bytes in their place are data.
        if packet.layers.network != Network::V4
            || packet.layers.fragment_offset != 0 && !is_planted(Fault::LaterFragmentsOpen)
        {
            return Open::Drop(DropReason::NotTranslatable);
        }
        let Some(header) = packet.ipv4() else { return Open::Drop(DropReason::NotTranslatable) };
        let (source, destination, protocol) =
            (header.source, header.destination, packet.layers.protocol);
        let ports = ports_of(packet);
        let server = ports
            .and_then(|(_, port)| self.ends.published.inside_of(protocol, (destination, port)));
        let own =
            ports.and_then(|(port, _)| self.ends.published.outside_of(protocol, (source, port)));
        let is_inside = own.is_some()
            || self.ends.is_inside(source)
            || is_planted(Fault::OutsidersOpenMappings);
        // From outside, only a packet to a published end opens a mapping, and an
        // unsolicited SYN gets no answer (RFC 5382, REQ-4a). Another outside address of
        // ours has no host behind it, also for inside hosts.
        if server.is_none() && (!is_inside || self.ends.is_outside(destination)) {
            return Open::Drop(DropReason::NoMapping);
        }
        let Some((source_port, destination_port)) = ports else {
            return Open::Drop(DropReason::NotTranslatable);
        };
        // A TCP mapping begins with a SYN: a lone RST, FIN, SYN-ACK or ACK belongs to no
        // connection that this mapping could carry.
        if protocol == proto::TCP && !tcp::opens(packet) {
            return tcp::unknown(packet, is_inside);
        }
        let mut mapping = Mapping::default();
        if is_inside {
            let (outside, outside_port) = match own {
                Some(own) => own,
                None => match self.lease(source, shared, cx) {
                    Ok((leased, outside)) => {
                        mapping.leased = leased;
                        outside
                    }
                    Err(refusal) => return refusal,
                },
            };
            mapping.kind |= kind::SOURCE;
            (mapping.inside, mapping.inside_port) = (source, source_port);
            (mapping.outside, mapping.outside_port) = (outside, outside_port);
        }
        if let Some((server, server_port)) = server {
            mapping.kind |= kind::DESTINATION;
            (mapping.published, mapping.published_port) = (destination, destination_port);
            // An echo has one identifier for both ends: the one that the source's
            // translation gives it.
            let is_echo = protocol == proto::ICMP && is_inside;
            (mapping.server, mapping.server_port) =
                (server, if is_echo { mapping.outside_port } else { server_port });
        }
        Open::Accept(mapping)
    }

    #[inline]
    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Mapping,
        _shared: &mut NatShared,
        cx: &mut Context,
    ) -> Verdict {
        let inside = End { address: map_v4(flow.inside), port: flow.inside_port };
        let outside = End { address: map_v4(flow.outside), port: flow.outside_port };
        let done = match cx.direction() {
            direction if flow.kind & kind::DESTINATION != 0 => {
                Nat::translate_published(packet, flow, direction)
            }
            Direction::Forward => translate(packet, Side::Source, &inside.address, outside, true),
            Direction::Reverse => {
                translate(packet, Side::Destination, &outside.address, inside, true)
            }
        };
        if !done {
            return Verdict::Drop(DropReason::NotTranslatable);
        }
        // "Receipt of any sort of ICMP message MUST NOT terminate the NAT mapping" (RFC
        // 4787, REQ-12; RFC 5382, REQ-10), and an error "MUST NOT refresh or delete the
        // NAT Session" (RFC 5508, REQ-6).
        if packet.is_icmp_error() && !is_planted(Fault::ErrorsKeepMappings) {
            if is_planted(Fault::ErrorsEndMappings) {
                cx.ending();
                cx.keep(1);
            }
            return if has_possible_mtu(packet) {
                Verdict::Forward
            } else {
                Verdict::Drop(DropReason::StateInvalid)
            };
        }
        // A later fragment has no header to look at.
        if packet.layers.fragment_offset == 0 {
            flow.tracked.follow(packet, &self.lifetimes, cx);
        }
        Verdict::Forward
    }

    fn outdated(&self, flow: &mut Mapping, packets: u32) {
        flow.tracked.tcp.set_back(packets);
    }

    fn expected(&self, flow: &Mapping, direction: Direction) -> Option<Expected> {
        flow.tracked.expected(direction)
    }

    fn describe(&self, flow: &Mapping) -> &'static str {
        flow.tracked.describe()
    }

    fn source_limit(&self) -> Option<SourceLimit> {
        let ends = self.ends.clone();
        Some(SourceLimit { flows: self.limit?, counts: Arc::new(move |key| ends.leases(key)) })
    }

    fn owned_addresses(&self) -> Vec<Prefix> {
        let published = self
            .ends
            .published
            .addresses()
            .into_iter()
            .map(|address| Prefix::host(IpAddr::from(address)));
        let beside =
            published.filter(|one| !self.ends.pool.iter().any(|prefix| prefix.overlaps(one)));
        self.ends.pool.iter().copied().chain(beside).collect()
    }
}
