//! `nat`: network address and port translation, IPv4 to IPv4 (NAPT44).
//!
//! Theory of operation (RFC 4787, RFC 5382, RFC 5508). The source of a flow from inside becomes an address and port of the pool; the number
//! of that pair is leased from the shared pool when the flow opens and given back when it ends, so that no two live flows share one (RFC 4787, REQ-3; RFC 5382, REQ-7).
//! An inside host keeps one outside address as long as there are ports on it (RFC 4787, REQ-2). ICMP echo translates its
//! identifier, ICMP errors are translated with the packet that they quote. What cannot be translated is dropped.
//! The number is drawn among those at hand (RFC 6056, section 3.3.1; RFC 7857, section 9): who sees some of a host's ports cannot tell the next one, and a box that
//! was started anew does not give the peers of its last life the same ports in the same order. What was given back rests first: the pool sees to that.
//! A mapping lives as long as [`Tracked`] says; nothing is refused for it, except that a TCP mapping begins with a SYN.
//! Only inside hosts open mappings, and whoever asks for what is published ([`Published`]): such a flow's destination is translated, and its source as well if
//! that is inside, so that replies come back this way. A static mapping holds no lease: the flow's state says what is translated and what is leased.
//! A mapping belongs to one flow: mapping and filtering are address and port dependent. RFC 4787, REQ-1 asks that a mapping not depend on the
//! destination; that needs state shared by an endpoint's flows, which may be served by different runtimes, and is not offered yet. Requirement by requirement: docs/correctness-nat.md.

use crate::publish::{End4, Published};
use crate::rewrite::{End, Side, has_possible_mtu, translate};
use crate::tcp;
use crate::tracked::{Lifetimes, TRANSLATOR, Timeouts, Tracked};
use holdfast_nf::shared::BLOCK_LEN;
use holdfast_nf::{
    ConfigError, Context, Direction, DropReason, Expected, Lease, NetworkFunction, Open, Packet, Pool, SourceLimit, Verdict,
};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::header::{icmp, proto};
use holdfast_wire::selector::Prefix;
use holdfast_wire::{FlowKey, Network, map_v4, unmap_v4};
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::IpAddr;
use std::sync::Arc;

/// What the operator writes.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NatConfig {
    /// Outside addresses: prefixes, every address of which is used.
    #[schemars(with = "Vec<String>")]
    pub pool: Vec<String>,
    /// Sources that are translated; without it, private and shared addresses (RFC 1918, RFC 6598). An outside address is never inside.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub inside: Vec<String>,
    /// Static mappings, by which inside hosts are reached from outside: `tcp 198.51.100.4:2222 -> 10.0.0.9:22`, a range of as many ports on both sides as
    /// `udp 198.51.100.4:5000-5010 -> 10.0.0.9:5000-5010`, or a whole address with its pings, `198.51.100.7 -> 10.0.0.7`. Inside hosts reach it there too. The box
    /// answers for these outside addresses, in the pool or not; no flow leases what is published.
    #[serde(default)]
    pub publish: Vec<String>,
    /// Ports used on every address, as `1024-65535`, which they are without it; rounded down to a multiple of 256. `random` in front of the range, or alone, is what is done
    /// without a word: a flow gets any of those at hand, as RFC 6056 asks. `sequential`: in rising order, for who must predict them.
    #[serde(default)]
    pub ports: Option<String>,
    /// Flows with a port of the pool that one inside host may have at a time, on all runtimes together: the switch
    /// counts them, by the source with which they enter the chain. Only the first of several `nat` in a chain
    /// may have a limit.
    #[serde(default)]
    pub limit_per_host: Option<u32>,
    /// How long mappings live without a packet.
    #[serde(default)]
    pub timeouts: Timeouts,
}

holdfast_nf::flow_state! {
    /// One mapping.
    pub struct Mapping {
        /// Inside address.
        pub inside: [u8; 4],
        /// Outside address.
        pub outside: [u8; 4],
        /// Inside port or echo identifier.
        pub inside_port: u16,
        /// Outside port or echo identifier.
        pub outside_port: u16,
        /// The leased number, if there is one.
        pub number: u32,
        /// Bits of [`kind`].
        pub kind: u8,
        /// Zero.
        pub spare: [u8; 3],
        /// Address that was asked for, if it is published.
        pub published: [u8; 4],
        /// The inside host that is reached there.
        pub server: [u8; 4],
        /// Port that was asked for, or the inside identifier of an echo.
        pub published_port: u16,
        /// The inside host's port, or the outside identifier of an echo.
        pub server_port: u16,
        /// The connection as far as its lifetime depends on it.
        pub tracked: Tracked,
    }
}

/// Bits of [`Mapping::kind`].
mod kind {
    /// The source is translated: `inside` is `outside`.
    pub(super) const SOURCE: u8 = 1;
    /// The outside end is leased.
    pub(super) const LEASED: u8 = 2;
    /// The destination is translated: `published` is `server`.
    pub(super) const DESTINATION: u8 = 4;
}

holdfast_nf::shared_state! {
    /// What flows share.
    pub struct NatShared {
        /// Address and port pairs.
        pub ports: Pool,
    }
}

/// See the module.
#[derive(Debug)]
pub struct Nat {
    /// Those of the pool's addresses that have ports to lease.
    addresses: Vec<Outside>,
    ends: Arc<Ends>,
    first_port: u16,
    is_random: bool,
    limit: Option<u32>,
    lifetimes: Lifetimes,
}

/// Which ends are inside, and which are outside.
#[derive(Debug)]
struct Ends {
    pool: Vec<Prefix>,
    inside: Vec<Prefix>,
    published: Published,
}

impl Ends {
    fn is_inside(&self, address: [u8; 4]) -> bool {
        self.inside.iter().any(|prefix| prefix.contains(&map_v4(address))) && !self.is_outside(address)
    }

    /// True for the addresses that inside hosts have outside.
    fn is_outside(&self, address: [u8; 4]) -> bool {
        self.pool.iter().any(|prefix| prefix.contains(&map_v4(address))) || self.published.has_outside(address)
    }

    /// A flow with this key leases an outside end: its source is inside, and not published.
    fn leases(&self, key: &FlowKey) -> bool {
        unmap_v4(&key.source).is_some_and(|source| {
            self.is_inside(source) && self.published.outside_of(key.protocol as u8, (source, key.source_port)).is_none()
        })
    }
}

/// An address of the pool, and the numbers that stand for its ports.
#[derive(Debug)]
struct Outside {
    address: [u8; 4],
    /// As many as a multiple of a block's.
    numbers: core::ops::Range<u32>,
    /// Ranges of ports that have no number because they are published, in order.
    published: Vec<(u16, u16)>,
}

/// Addresses that one pool may have.
const MAX_ADDRESSES: u64 = 4096;

fn prefixes(texts: &[String], name: &str) -> Result<Vec<Prefix>, ConfigError> {
    let parse = |(at, text): (usize, &String)| {
        let error = |message: String, offset: usize| ConfigError { path: format!("{name}[{at}]"), message, offset: Some(offset) };
        let prefix: Prefix =
            text.parse().map_err(|wrong: holdfast_wire::selector::SelectorError| error(wrong.message, wrong.offset))?;
        if prefix.is_ipv4() {
            Ok(prefix)
        } else {
            Err(error(format!("`{text}` is not IPv4; this function translates IPv4 only"), 0))
        }
    };
    texts.iter().enumerate().map(parse).collect()
}

/// Reads `ports`: whether ports are drawn at random (the default), the first and the last.
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
    let (low, high): (u16, u16) = (low.parse().map_err(|_| wrong())?, high.parse().map_err(|_| wrong())?);
    if low > high || low == 0 { Err(wrong()) } else { Ok((is_random, low, high)) }
}

/// The ports of TCP and UDP; twice the identifier of an echo request.
fn ports_of(packet: &Packet) -> Option<(u16, u16)> {
    let word = |at: usize| Some(u16::from_be_bytes(*packet.l4().get(at..)?.first_chunk()?));
    match packet.layers.protocol {
        proto::TCP | proto::UDP => Some((word(0)?, word(2)?)),
        proto::ICMP if packet.icmp().is_some_and(|header| header.kind == icmp::ECHO) => Some((word(4)?, word(4)?)),
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
        let outside = &self.addresses[self.addresses.partition_point(|outside| outside.numbers.end <= number)];
        let mut port = self.first_port + (number - outside.numbers.start) as u16;
        for (low, high) in &outside.published {
            if port >= *low && !is_planted(Fault::LeasesWhatIsPublished) {
                port += high - low + 1;
            }
        }
        (outside.address, port)
    }

    /// Leases an outside end for a host's flow. Without one the flow is refused, and none makes room for it (RFC 6888, REQ-11 A and D).
    fn lease(&self, host: [u8; 4], shared: &mut NatShared, cx: &mut Context) -> Result<u32, Open<Mapping>> {
        let preferred = self.preferred(host);
        let lease = match self.is_random && !is_planted(Fault::DealsPortsInOrder) {
            true => shared.ports.lease_random(preferred, cx),
            false => shared.ports.lease_within(preferred, cx),
        };
        match lease {
            Lease::Granted(number) if is_planted(Fault::ReusesLivePort) => Ok(number / 4 * 4),
            Lease::Granted(number) => Ok(number),
            Lease::Wait => Err(Open::Wait),
            Lease::Exhausted if is_planted(Fault::EmptyPoolsLend) => Ok(0),
            Lease::Exhausted => Err(Open::Drop(DropReason::PoolEmpty)),
        }
    }

    /// Translates what is published at its destination, and its source if that is inside: "a NAT Hairpinning behavior MUST be 'External source IP address and
    /// port'" (RFC 4787, REQ-9a; RFC 5382, REQ-8a). So do the errors about it (RFC 5508, REQ-7).
    #[inline(never)]
    fn translate_published(packet: &mut Packet, flow: &Mapping, direction: Direction) -> bool {
        let [inside, outside, published, server] = [
            (flow.inside, flow.inside_port),
            (flow.outside, flow.outside_port),
            (flow.published, flow.published_port),
            (flow.server, flow.server_port),
        ]
        .map(|(address, port)| End { address: map_v4(address), port });
        let has_source = flow.kind & kind::SOURCE != 0 && !is_planted(Fault::HairpinsWithInsideSource);
        match direction {
            Direction::Forward => {
                (!has_source || translate(packet, Side::Source, &inside.address, outside, true))
                    && translate(packet, Side::Destination, &published.address, server, true)
            }
            Direction::Reverse => {
                translate(packet, Side::Source, &server.address, published, true)
                    && (!has_source || translate(packet, Side::Destination, &outside.address, inside, true))
            }
        }
    }
}

impl NetworkFunction for Nat {
    const NAME: &'static str = "nat";
    type Config = NatConfig;
    type Flow = Mapping;
    type Shared = NatShared;

    fn new(config: NatConfig) -> Result<(Nat, NatShared), ConfigError> {
        let pool = prefixes(&config.pool, "pool")?;
        let mut inside = prefixes(&config.inside, "inside")?;
        if inside.is_empty() {
            inside.extend(Prefix::private().into_iter().filter(Prefix::is_ipv4));
        }
        if pool.is_empty() {
            return Err(ConfigError::at("pool", "the pool needs at least one address, like [198.51.100.4/31]"));
        }
        for (at, prefix) in pool.iter().enumerate() {
            if let Some(other) = pool[..at].iter().find(|other| other.overlaps(prefix)) {
                return Err(ConfigError::at(format!("pool[{at}]"), format!("{prefix} overlaps {other}")));
            }
        }
        let count: u64 = pool.iter().map(Prefix::size).sum();
        if count > MAX_ADDRESSES {
            return Err(ConfigError::at(
                "pool",
                format!("{count} addresses are more than the {MAX_ADDRESSES} that one pool may have"),
            ));
        }
        let published = Published::new(&config.publish, &pool)?;
        let (is_random, low, high) = config.ports.as_deref().map_or(Ok((true, 1024, 65_535)), ports)?;
        let mut addresses = Vec::new();
        let mut next = 0;
        for prefix in &pool {
            let IpAddr::V4(first) = prefix.first() else { continue };
            for address in (0..prefix.size() as u32).map(|at| (u32::from(first) + at).to_be_bytes()) {
                let taken = published.taken(address, low, high);
                let count: u32 = taken.iter().map(|(low, high)| u32::from(high - low) + 1).sum();
                let ports = (u32::from(high) - u32::from(low) + 1 - count) / BLOCK_LEN * BLOCK_LEN;
                if ports > 0 && (next == 0 || !is_planted(Fault::UsesOneAddress)) {
                    addresses.push(Outside { address, numbers: next..next + ports, published: taken });
                    next += ports;
                }
            }
        }
        if next == 0 && u32::from(high) - u32::from(low) + 1 < BLOCK_LEN {
            return Err(ConfigError::at("ports", "fewer than 256 ports cannot be shared between runtimes"));
        }
        if next == 0 {
            let message =
                "leaves no address of the pool the 256 ports that runtimes share: the pool needs another address, or more ports";
            return Err(ConfigError::at("publish", message));
        }
        let limit = config.limit_per_host;
        let lifetimes = config.timeouts.within(&TRANSLATOR)?;
        let ends = Arc::new(Ends { pool, inside, published });
        let nat = Nat { addresses, ends, first_port: low, is_random, limit, lifetimes };
        Ok((nat, NatShared { ports: Pool::new(next) }))
    }

    fn open(&self, packet: &Packet, shared: &mut NatShared, cx: &mut Context) -> Open<Mapping> {
        // A later fragment has no ports: what lies in their place is data.
        if packet.layers.network != Network::V4 || packet.layers.fragment_offset != 0 && !is_planted(Fault::LaterFragmentsOpen) {
            return Open::Drop(DropReason::NotTranslatable);
        }
        let Some(header) = packet.ipv4() else { return Open::Drop(DropReason::NotTranslatable) };
        let (source, destination, protocol) = (header.source, header.destination, packet.layers.protocol);
        let ports = ports_of(packet);
        let server = ports.and_then(|(_, port)| self.ends.published.inside_of(protocol, (destination, port)));
        let own = ports.and_then(|(port, _)| self.ends.published.outside_of(protocol, (source, port)));
        let is_inside = own.is_some() || self.ends.is_inside(source) || is_planted(Fault::OutsidersOpenMappings);
        // Nobody outside opens a mapping but to what is published, nor is a SYN answered that nobody asked for (RFC 5382, REQ-4a). At another outside address of
        // ours nobody would answer, from inside either.
        if server.is_none() && (!is_inside || self.ends.is_outside(destination)) {
            return Open::Drop(DropReason::NoMapping);
        }
        let Some((source_port, destination_port)) = ports else { return Open::Drop(DropReason::NotTranslatable) };
        // A lone RST, FIN, SYN-ACK or ACK belongs to no connection that this mapping could carry.
        if protocol == proto::TCP && !tcp::opens(packet) {
            return tcp::unknown(packet, is_inside);
        }
        let mut mapping = Mapping::default();
        if is_inside {
            let (outside, outside_port) = match own {
                Some(own) => own,
                None => {
                    mapping.number = match self.lease(source, shared, cx) {
                        Ok(number) => number,
                        Err(refusal) => return refusal,
                    };
                    mapping.kind |= kind::LEASED;
                    self.end_of(mapping.number)
                }
            };
            mapping.kind |= kind::SOURCE;
            (mapping.inside, mapping.inside_port) = (source, source_port);
            (mapping.outside, mapping.outside_port) = (outside, outside_port);
        }
        if let Some((server, server_port)) = server {
            mapping.kind |= kind::DESTINATION;
            (mapping.published, mapping.published_port) = (destination, destination_port);
            // An echo has one identifier for both ends: what the source's translation makes of it.
            let is_echo = protocol == proto::ICMP && is_inside;
            (mapping.server, mapping.server_port) = (server, if is_echo { mapping.outside_port } else { server_port });
        }
        Open::Accept(mapping)
    }

    #[inline]
    fn process(&self, packet: &mut Packet, flow: &mut Mapping, _shared: &mut NatShared, cx: &mut Context) -> Verdict {
        let inside = End { address: map_v4(flow.inside), port: flow.inside_port };
        let outside = End { address: map_v4(flow.outside), port: flow.outside_port };
        let done = match cx.direction() {
            direction if flow.kind & kind::DESTINATION != 0 => Nat::translate_published(packet, flow, direction),
            Direction::Forward => translate(packet, Side::Source, &inside.address, outside, true),
            Direction::Reverse => translate(packet, Side::Destination, &outside.address, inside, true),
        };
        if !done {
            return Verdict::Drop(DropReason::NotTranslatable);
        }
        // "Receipt of any sort of ICMP message MUST NOT terminate the NAT mapping" (RFC 4787, REQ-12; RFC 5382, REQ-10), and an error "MUST NOT
        // refresh or delete the NAT Session" (RFC 5508, REQ-6).
        if packet.is_icmp_error() && !is_planted(Fault::ErrorsKeepMappings) {
            if is_planted(Fault::ErrorsEndMappings) {
                cx.ending();
                cx.keep(1);
            }
            return if has_possible_mtu(packet) { Verdict::Forward } else { Verdict::Drop(DropReason::StateInvalid) };
        }
        // A later fragment has no header to look at.
        if packet.layers.fragment_offset == 0 {
            flow.tracked.follow(packet, &self.lifetimes, cx);
        }
        Verdict::Forward
    }

    fn expire(&self, flow: &mut Mapping, shared: &mut NatShared) {
        if flow.kind & kind::LEASED != 0 || is_planted(Fault::GivesBackUnleased) {
            shared.ports.give_back(flow.number);
        }
    }

    fn recover(&self, flow: &mut Mapping, shared: &mut NatShared) {
        if flow.kind & kind::LEASED != 0 {
            shared.ports.adopt(flow.number);
        }
    }

    fn migrate_out(&self, flow: &mut Mapping, shared: &mut NatShared) {
        if flow.kind & kind::LEASED != 0 {
            shared.ports.forget(flow.number);
        }
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
        let published = self.ends.published.addresses().into_iter().map(|address| Prefix::host(IpAddr::from(address)));
        let beside = published.filter(|one| !self.ends.pool.iter().any(|prefix| prefix.overlaps(one)));
        self.ends.pool.iter().copied().chain(beside).collect()
    }
}
