//! `load_balancer`: connections to a virtual address go to one of several backends.
//!
//! Theory of operation. The balancer translates the destination of a new flow to a
//! backend, and the source of replies back to the virtual address. `least_load` picks the
//! backend with the fewest live flows: of this runtime alone (NFVactor: example NFs), or
//! with a state server, of all runtimes as they were a few milliseconds ago. `maglev`
//! picks by the flow's key from a table that every runtime computes alike (Eisenbud et
//! al.: Maglev, section 3.4), so no load needs to be known. Traffic to other destinations
//! passes. A connection lives as long as [`Tracked`] says. No segment is refused for its
//! state, except that TCP begins with a SYN.

use crate::rewrite::{End, Side, has_possible_mtu, translate};
use crate::tcp;
use crate::tracked::{BALANCER, Lifetimes, Timeouts, Tracked};
use holdfast_nf::{
    ConfigError, Context, Counted, Direction, DropReason, Expected, Gauge, NetworkFunction, Open,
    Opening, Packet, Verdict,
};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::header::proto;
use holdfast_wire::selector::Prefix;
use holdfast_wire::{FlowKey, ip_addr, ip_bytes};
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::SocketAddr;

/// How a backend is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The backend with the fewest live flows.
    #[default]
    LeastLoad,
    /// The flow's key decides, alike on every runtime.
    Maglev,
}

/// TCP or UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

/// The balancer's configuration.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadBalancerConfig {
    /// The address and port that clients connect to, as `203.0.113.10:80` or
    /// `[2001:db8::10]:80`.
    #[serde(rename = "virtual")]
    pub virtual_address: String,
    /// The protocol of the virtual address; `tcp` by default.
    #[serde(default)]
    pub protocol: Protocol,
    /// Addresses and ports of the backends, of the virtual address's family.
    pub backends: Vec<String>,
    /// How a backend is chosen; `least_load` by default.
    #[serde(default)]
    pub policy: Policy,
    /// How long connections live without a packet.
    #[serde(default)]
    pub timeouts: Timeouts,
}

holdfast_nf::flow_state! {
    /// A flow's backend.
    pub struct Balanced {
        /// The backend's address.
        pub address: [u8; 16],
        /// The backend's port.
        pub port: u16,
        /// The backend's index; none if the flow only passes because it is not for the
        /// virtual address.
        pub backend: Counted<Backends>,
        /// The part of the connection that decides its lifetime.
        pub tracked: Tracked,
    }
}

/// The gauge of the backends.
pub enum Backends {}

holdfast_nf::shared_state! {
    /// State that all flows of a balancer share.
    pub struct Load {
        /// Live flows per backend.
        pub flows: Gauge<Backends>,
    }
}

/// Entries of the Maglev table: a prime, a hundred times the usual number of backends.
const MAGLEV_SIZE: usize = 65_537;

/// An entry of the table that no backend has claimed yet.
const UNCLAIMED: u16 = u16::MAX;

/// A load balancer; see the module.
#[derive(Debug)]
pub struct LoadBalancer {
    virtual_end: End,
    protocol: u8,
    backends: Vec<End>,
    table: Vec<u16>,
    lifetimes: Lifetimes,
}

fn end(text: &str, path: String) -> Result<End, ConfigError> {
    let address: SocketAddr = text.parse().map_err(|_| {
        ConfigError::at(
            path,
            format!(
                "`{text}` is not an address with a port, like 192.0.2.1:80 or [2001:db8::1]:80"
            ),
        )
    })?;
    Ok(End { address: ip_bytes(address.ip()), port: address.port() })
}

/// Fills Maglev's table: backends take turns in claiming the next free entry of their own
/// permutation.
fn maglev(backends: &[End]) -> Vec<u16> {
    // Each backend's next entry, and its step to the one after.
    let mut permutations: Vec<(usize, usize)> = backends
        .iter()
        .map(|backend| {
            let key = FlowKey {
                source: backend.address,
                source_port: backend.port,
                ..FlowKey::default()
            };
            (key.hash(1) as usize % MAGLEV_SIZE, key.hash(2) as usize % (MAGLEV_SIZE - 1) + 1)
        })
        .collect();
    let mut table = vec![UNCLAIMED; MAGLEV_SIZE];
    for (backend, _) in (0..permutations.len()).cycle().zip(0..MAGLEV_SIZE) {
        let (next, skip) = &mut permutations[backend];
        let at = loop {
            let at = *next;
            *next += *skip;
            if *next >= MAGLEV_SIZE {
                *next -= MAGLEV_SIZE;
            }
            if table[at] == UNCLAIMED {
                break at;
            }
        };
        table[at] = backend as u16;
    }
    table
}

impl LoadBalancer {
    /// A backend for a client. Never the client itself: the edge would drop a packet from
    /// outside with the host's own address as source.
    fn choose(&self, client: &[u8; 16], load: &Gauge<Backends>, cx: &mut Context) -> Option<usize> {
        let is_other = |at: &usize| {
            self.backends[*at].address != *client || is_planted(Fault::BalancesToTheClient)
        };
        if !self.table.is_empty() {
            let at = cx.key().hash(3) as usize % MAGLEV_SIZE;
            return (at..at + MAGLEV_SIZE)
                .map(|entry| self.table[entry % MAGLEV_SIZE] as usize)
                .find(is_other);
        }
        (0..self.backends.len()).filter(is_other).min_by_key(|backend| load.read(*backend, cx))
    }
}

impl NetworkFunction for LoadBalancer {
    const NAME: &'static str = "load_balancer";
    type Config = LoadBalancerConfig;
    type Flow = Balanced;
    type Shared = Load;

    fn new(config: LoadBalancerConfig) -> Result<LoadBalancer, ConfigError> {
        let virtual_end = end(&config.virtual_address, "virtual".to_owned())?;
        let backends = config
            .backends
            .iter()
            .enumerate()
            .map(|(at, text)| end(text, format!("backends[{at}]")))
            .collect::<Result<Vec<End>, _>>()?;
        if backends.is_empty() {
            return Err(ConfigError::at("backends", "there must be at least one backend"));
        }
        if backends.len() >= usize::from(UNCLAIMED) {
            return Err(ConfigError::at(
                "backends",
                "there are more backends than a balancer can have",
            ));
        }
        let family = ip_addr(&virtual_end.address).is_ipv4();
        if let Some(at) =
            backends.iter().position(|backend| ip_addr(&backend.address).is_ipv4() != family)
        {
            return Err(ConfigError::at(
                format!("backends[{at}]"),
                "a backend must be of the virtual address's family",
            ));
        }
        let table = if config.policy == Policy::Maglev { maglev(&backends) } else { Vec::new() };
        let protocol = match config.protocol {
            Protocol::Tcp => proto::TCP,
            Protocol::Udp => proto::UDP,
        };
        let lifetimes = config.timeouts.within(&BALANCER)?;
        Ok(LoadBalancer { virtual_end, protocol, backends, table, lifetimes })
    }

    fn shared(&self) -> Load {
        Load { flows: Gauge::new(self.backends.len()) }
    }

    fn open(&self, packet: &Packet, shared: &mut Load, cx: &mut Opening<'_>) -> Open<Balanced> {
        let Some(key) = FlowKey::of(packet) else { return Open::Drop(DropReason::NotTranslatable) };
        if key.destination != self.virtual_end.address {
            return Open::Accept(Balanced::default());
        }
        if key.destination_port != self.virtual_end.port || key.protocol != u16::from(self.protocol)
        {
            return Open::Drop(DropReason::NoBackend);
        }
        // A lone RST, FIN, SYN-ACK or ACK belongs to no connection of a backend's.
        if self.protocol == proto::TCP && !tcp::opens(packet) {
            return tcp::unknown(packet, tcp::is_private(&key.source));
        }
        let Some(chosen) = self.choose(&key.source, &shared.flows, cx) else {
            return Open::Drop(DropReason::NoBackend);
        };
        let backend = self.backends[chosen];
        let (address, port) = (backend.address, backend.port);
        Open::Accept(Balanced {
            address,
            port,
            backend: shared.flows.count(chosen, cx),
            ..Balanced::default()
        })
    }

    fn explain(&self, _packet: &Packet, flow: Option<&Balanced>) -> String {
        match flow.and_then(|flow| Some((flow, flow.backend.item()?))) {
            Some((flow, backend)) => {
                let address = SocketAddr::new(ip_addr(&flow.address), flow.port);
                format!("backend {address}, number {} of {}", backend + 1, self.backends.len())
            }
            None => String::new(),
        }
    }

    #[inline]
    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Balanced,
        _shared: &mut Load,
        cx: &mut Context,
    ) -> Verdict {
        if flow.backend.item().is_none() {
            return Verdict::Forward;
        }
        let backend = End { address: flow.address, port: flow.port };
        let done = match cx.direction() {
            Direction::Forward => {
                translate(packet, Side::Destination, &self.virtual_end.address, backend, true)
            }
            // A router's error about a forward packet keeps the router's address; the
            // backend's own address becomes the virtual one.
            Direction::Reverse => {
                translate(packet, Side::Source, &backend.address, self.virtual_end, false)
            }
        };
        if !done {
            return Verdict::Drop(DropReason::NotTranslatable);
        }
        if packet.is_icmp_error() {
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

    fn outdated(&self, flow: &mut Balanced, packets: u32) {
        flow.tracked.tcp.set_back(packets);
    }

    fn expected(&self, flow: &Balanced, direction: Direction) -> Option<Expected> {
        if flow.backend.item().is_none() { None } else { flow.tracked.expected(direction) }
    }

    fn describe(&self, flow: &Balanced) -> &'static str {
        if flow.backend.item().is_none() { "" } else { flow.tracked.describe() }
    }

    fn owned_addresses(&self) -> Vec<Prefix> {
        vec![Prefix::host(ip_addr(&self.virtual_end.address))]
    }
}
