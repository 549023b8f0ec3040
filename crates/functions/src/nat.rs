//! `nat`: network address and port translation, IPv4 to IPv4 (NAPT44).
//!
//! Theory of operation (RFC 4787, RFC 5382, RFC 5508). The source of a flow from inside becomes an address and port of the pool; the number
//! of that pair is leased from the shared pool when the flow opens and given back when it ends, so that no two live flows share one.
//! An inside host keeps one outside address as long as there are ports on it (RFC 4787, REQ-2). ICMP echo translates its
//! identifier, ICMP errors are translated with the packet that they quote. What cannot be translated is dropped.
//! The number is drawn among those at hand (RFC 6056, section 3.3.1; RFC 7857, section 9): who sees some of a host's ports cannot tell the next one, and a box that
//! was started anew does not give the peers of its last life the same ports in the same order. What was given back rests first: the pool sees to that.
//! A mapping lives as long as [`Tracked`] says; nothing is refused for it, except that a TCP mapping begins with a SYN.
//! A mapping belongs to one flow: mapping and filtering are address and port dependent. RFC 4787, REQ-1 asks that a mapping not depend on the
//! destination; that needs state shared by an endpoint's flows, which may be served by different runtimes, and is not offered yet.

use crate::rewrite::{End, Side, is_error, translate};
use crate::tcp;
use crate::tracked::{Lifetimes, TRANSLATOR, Timeouts, Tracked};
use holdfast_nf::{ConfigError, Context, Direction, DropReason, Lease, NetworkFunction, Open, Packet, Pool, Table, Verdict};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::header::{icmp, proto};
use holdfast_wire::selector::Prefix;
use holdfast_wire::{Network, map_v4};
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::IpAddr;

/// What the operator writes.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NatConfig {
    /// Outside addresses: prefixes, every address of which is used.
    #[schemars(with = "Vec<String>")]
    pub pool: Vec<String>,
    /// Sources that are translated; without it, all that are not in the pool.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub inside: Vec<String>,
    /// Ports used on every address, as `1024-65535`, which they are without it; rounded down to a multiple of 256. `random` in front of the range, or alone, is what is done
    /// without a word: a flow gets any of those at hand, as RFC 6056 asks. `sequential`: in rising order, for who must predict them.
    #[serde(default)]
    pub ports: Option<String>,
    /// Flows that one inside host may have at a time, per runtime.
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
        /// The leased number.
        pub number: u32,
        /// How long it lives.
        pub tracked: Tracked,
    }
}

holdfast_nf::shared_state! {
    /// What flows share.
    pub struct NatShared {
        /// Address and port pairs.
        pub ports: Pool,
        /// Live flows per inside host, if they are limited.
        pub hosts: Table<[u8; 4], u32>,
    }
}

/// See the module.
#[derive(Debug)]
pub struct Nat {
    addresses: Vec<[u8; 4]>,
    pool: Vec<Prefix>,
    inside: Vec<Prefix>,
    first_port: u16,
    ports: u32,
    is_random: bool,
    limit: Option<u32>,
    lifetimes: Lifetimes,
}

/// Inside hosts that are counted, when flows per host are limited.
const HOSTS: usize = 65_536;
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

/// What `ports` says: whether they are drawn, as they are unless it says otherwise, the first and the last.
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

impl Nat {
    fn is_inside(&self, address: &[u8; 16]) -> bool {
        if self.inside.is_empty() {
            !self.pool.iter().any(|prefix| prefix.contains(address))
        } else {
            self.inside.iter().any(|prefix| prefix.contains(address))
        }
    }

    /// The numbers of the outside address that this inside host prefers.
    fn preferred(&self, host: [u8; 4]) -> core::ops::Range<u32> {
        let mixed = u32::from_be_bytes(host).wrapping_mul(0x9e37_79b1);
        let address = ((u64::from(mixed) * self.addresses.len() as u64) >> 32) as u32;
        address * self.ports..(address + 1) * self.ports
    }
}

impl NetworkFunction for Nat {
    const NAME: &'static str = "nat";
    type Config = NatConfig;
    type Flow = Mapping;
    type Shared = NatShared;

    fn new(config: NatConfig) -> Result<(Nat, NatShared), ConfigError> {
        let pool = prefixes(&config.pool, "pool")?;
        let inside = prefixes(&config.inside, "inside")?;
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
        let mut addresses = Vec::new();
        for prefix in &pool {
            if let IpAddr::V4(first) = prefix.first() {
                let first = u32::from(first);
                addresses.extend((0..prefix.size() as u32).map(|at| (first + at).to_be_bytes()));
            }
        }
        let (is_random, low, high) = config.ports.as_deref().map_or(Ok((true, 1024, 65_535)), ports)?;
        let ports = (u32::from(high) - u32::from(low) + 1) / 256 * 256;
        if ports == 0 {
            return Err(ConfigError::at("ports", "fewer than 256 ports cannot be shared between runtimes"));
        }
        let size = ports * addresses.len() as u32;
        let hosts = if config.limit_per_host.is_some() { HOSTS } else { 0 };
        let limit = config.limit_per_host;
        let lifetimes = config.timeouts.within(&TRANSLATOR)?;
        let nat = Nat { addresses, pool, inside, first_port: low, ports, is_random, limit, lifetimes };
        Ok((nat, NatShared { ports: Pool::new(size), hosts: Table::new(hosts) }))
    }

    fn open(&self, packet: &Packet, shared: &mut NatShared, cx: &mut Context) -> Open<Mapping> {
        // A later fragment has no ports: what lies in their place is data.
        if packet.layers.network != Network::V4 || packet.layers.fragment_offset != 0 {
            return Open::Drop(DropReason::NotTranslatable);
        }
        let Some(header) = packet.ipv4() else { return Open::Drop(DropReason::NotTranslatable) };
        let source = header.source;
        if !self.is_inside(&map_v4(source)) {
            return Open::Drop(DropReason::NoMapping);
        }
        // A host inside that asks for an outside address of ours would need another flow's mapping to answer.
        if self.pool.iter().any(|prefix| prefix.contains(&map_v4(header.destination))) {
            return Open::Drop(DropReason::NoMapping);
        }
        // A lone RST, FIN, SYN-ACK or ACK belongs to no connection that this mapping could carry.
        if packet.layers.protocol == proto::TCP && !tcp::opens(packet) {
            return Open::Drop(DropReason::StateInvalid);
        }
        let inside_port = match packet.layers.protocol {
            proto::TCP | proto::UDP => u16::from_be_bytes([packet.l4()[0], packet.l4()[1]]),
            proto::ICMP if packet.icmp().is_some_and(|header| header.kind == icmp::ECHO) => {
                u16::from_be_bytes([packet.l4()[4], packet.l4()[5]])
            }
            _ => return Open::Drop(DropReason::NotTranslatable),
        };
        if let Some(limit) = self.limit
            && shared.hosts.get(&source, cx).unwrap_or(0) >= limit
        {
            return Open::Drop(DropReason::QuotaExceeded);
        }
        let preferred = self.preferred(source);
        let lease = match self.is_random {
            true => shared.ports.lease_random(preferred, cx),
            false => shared.ports.lease_within(preferred, cx),
        };
        let number = match lease {
            Lease::Granted(number) if is_planted(Fault::ReusesLivePort) => number / 4 * 4,
            Lease::Granted(number) => number,
            Lease::Wait => return Open::Wait,
            Lease::Exhausted => return Open::Drop(DropReason::PoolEmpty),
        };
        if self.limit.is_some() && !shared.hosts.update(source, 0, |flows| *flows += 1) {
            shared.ports.give_back(number);
            return Open::Drop(DropReason::QuotaExceeded);
        }
        Open::Accept(Mapping {
            inside: source,
            outside: self.addresses[(number / self.ports) as usize],
            inside_port,
            outside_port: self.first_port + (number % self.ports) as u16,
            number,
            ..Mapping::default()
        })
    }

    #[inline]
    fn process(&self, packet: &mut Packet, flow: &mut Mapping, _shared: &mut NatShared, cx: &mut Context) -> Verdict {
        let inside = End { address: map_v4(flow.inside), port: flow.inside_port };
        let outside = End { address: map_v4(flow.outside), port: flow.outside_port };
        let done = match cx.direction() {
            Direction::Forward => translate(packet, Side::Source, &inside.address, outside, true),
            Direction::Reverse => translate(packet, Side::Destination, &outside.address, inside, true),
        };
        if !done {
            return Verdict::Drop(DropReason::NotTranslatable);
        }
        // A later fragment has no header to look at.
        if packet.layers.fragment_offset == 0 && !is_error(packet) {
            flow.tracked.follow(packet, &self.lifetimes, cx);
        }
        Verdict::Forward
    }

    fn expire(&self, flow: &mut Mapping, shared: &mut NatShared) {
        shared.ports.give_back(flow.number);
        if self.limit.is_some() {
            shared.hosts.update_or_remove(&flow.inside, |flows| {
                *flows -= 1;
                *flows > 0
            });
        }
    }

    fn recover(&self, flow: &mut Mapping, shared: &mut NatShared) {
        shared.ports.adopt(flow.number);
        if self.limit.is_some() {
            // A full table only means that this host is not limited here.
            let _ = shared.hosts.update(flow.inside, 0, |flows| *flows += 1);
        }
    }

    fn migrate_out(&self, flow: &mut Mapping, shared: &mut NatShared) {
        shared.ports.forget(flow.number);
        if self.limit.is_some() {
            shared.hosts.update_or_remove(&flow.inside, |flows| {
                *flows -= 1;
                *flows > 0
            });
        }
    }

    fn outdated(&self, flow: &mut Mapping, packets: u32) {
        flow.tracked.tcp.set_back(packets);
    }

    fn describe(&self, flow: &Mapping) -> &'static str {
        flow.tracked.describe()
    }

    fn owned_addresses(&self) -> Vec<Prefix> {
        self.pool.clone()
    }
}
