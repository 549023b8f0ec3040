//! The configuration file: what an operator writes, and what is made of it.
//!
//! YAML or JSON. In: text. Out: a [`Checked`] configuration and its [`BuiltChain`]s, or the first [`Mistake`] with line, column, the line
//! itself, and what would be right. Never: a look at the machine (that is `host_check`'s; only [`keys`], [`bfd_keys`] and [`identity`] open the files that are named), a panic, or a value that was guessed.
//!
//! The parser is serde-saphyr. serde_yaml and serde_yml are no longer maintained and tell a line only for some mistakes; the marked trees of
//! saphyr and marked-yaml keep places but leave typing to their user; serde-saphyr is maintained, has places in every error, limits the
//! depth and size of what it expands (a "billion laughs" is an error), refuses duplicate keys, and reads YAML 1.2, where `no` is a word.
//! What its `Spanned` cannot do is look inside the configuration of a function, which is any value at all: so places come from a second pass
//! over the events of its parser (`source.rs`), for typed values and functions alike.

mod bfd;
mod chains;
mod changes;
mod clusters;
mod control;
mod etcd;
mod file;
mod hosts;
mod keys;
mod memory;
mod mistake;
mod network;
mod parser;
mod protection;
mod rules;
mod source;
mod state_server;
mod statistics;
mod switches;
mod warnings;
pub(crate) mod zones;

pub use bfd::{BfdConfig, BfdKeyConfig, BfdKeyType, BfdPeer, bfd_keys};
pub use changes::{RuleChange, differences, rule_changes};
pub use clusters::{Cluster, DEFAULT_CLUSTER};
pub use control::{Control, ControlConfig, ControlEntry, TlsConfig, TlsFiles, identity};
pub use etcd::{Endpoint, Etcd, EtcdConfig};
pub use file::{
    ChainConfig, ClusterSettings, Config, DetectionConfig, FabricFileConfig, FunctionConfig, HostSettings, LimitsConfig,
    OneOrMany, PortConfig, ProtectionConfig, ProtectionOptions, ReversePathConfig, RouteConfig, RuleConfig, RuntimesConfig,
    RuntimesRange, SwitchSettings, Word,
};
pub use hosts::{Fabric, HostEntry};
pub use keys::{keys, line as key_line, read as read_keys};
pub use memory::Memory;
pub use mistake::Mistake;
pub(crate) use mistake::with_suggestion;
pub use state_server::{ServerStandby, ServerTransport, StateServerSettings};
pub use statistics::{NamedStatistic, named_statistics};
pub use switches::SwitchEntry;
pub use warnings::warnings;

use holdfast_control::MAX_FILE;
use holdfast_nf::Chain;
use holdfast_node::address::NodeId;
use holdfast_node::bfd::{Key, Peer, Settings};
use holdfast_node::edge::{EdgeConfig, EdgePort, EdgeRoute, ReversePath};
use holdfast_node::message::PoolId;
use holdfast_node::pools;
use holdfast_node::rules::Rule;
use holdfast_node::switch::SourceLimits;
use holdfast_protection::Plan;
use holdfast_protection::rescue::pages::PagesConfig;
use holdfast_wire::zone::Zones;
use serde_json::{Value, json};
use source::{Source, Spot};
use std::net::IpAddr;

/// A hung runtime must have had so many chances to be heard.
const LEAST_HEARTBEATS: u64 = 4;

/// What is made of a chain.
pub struct BuiltChain {
    /// Its name.
    pub name: String,
    /// Its switch.
    pub switch: NodeId,
    /// Its functions.
    pub chain: Chain,
    /// How its flows survive. Shared state is not a state server's if no function has any that could be.
    pub plan: Plan,
}

/// A pool whose numbers a state server assigns.
pub struct ServedPool {
    /// Its numbers, from 0.
    pub size: u32,
    /// So long a number rests that a flow had, ns.
    pub hold: u64,
}

/// A pool, as people know it.
pub struct NamedPool {
    /// Which one.
    pub id: PoolId,
    /// Of this chain,
    pub chain: String,
    /// this function,
    pub function: &'static str,
    /// this field of what its flows share.
    pub field: &'static str,
    /// Its numbers, from 0.
    pub size: u32,
    /// A state server assigns them.
    pub is_served: bool,
}

/// A configuration that holds together.
pub struct Checked {
    /// As it was written.
    pub config: Config,
    /// Ports in the order of their numbers: name and device.
    pub ports: Vec<(String, String)>,
    /// Addresses of each port.
    pub addresses: Vec<Vec<(IpAddr, u8)>>,
    /// Routes.
    pub routes: Vec<EdgeRoute>,
    /// Routers that are watched.
    pub bfd: Vec<BfdPeer>,
    /// Service-chain rules.
    pub rules: Vec<Rule>,
    /// Virtual clusters.
    pub clusters: Vec<Cluster>,
    /// The switches; most often one.
    pub switches: Vec<SwitchEntry>,
    /// The hosts, if there are several.
    pub hosts: Vec<HostEntry>,
    /// Where coordinators elect one.
    pub etcd: Option<Etcd>,
    /// The control API, if there is one.
    pub control: Option<Control>,
}

/// Reads and checks a configuration. `file` is its name, for messages.
///
/// # Errors
/// The first mistake.
pub fn read(file: &str, text: &str) -> Result<Checked, Mistake> {
    if text.len() > MAX_FILE {
        return Err(Mistake::of_file(file, format!("longer than {} MiB: this is no configuration", MAX_FILE >> 20)));
    }
    // Editors on other systems begin a file with it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let source = Source::new(file, text);
    let config: Config = serde_saphyr::from_str(text).map_err(|error| parser::mistake(&error, &source))?;
    check(file, config, source.root())
}

/// Builds the chains of a configuration that has been read from this text, in the order of their numbers.
///
/// # Errors
/// The first mistake.
pub fn chains(file: &str, text: &str, config: &Config) -> Result<Vec<BuiltChain>, Mistake> {
    let source = Source::new(file, text);
    chains::build(config, &switches::read(config, source.root())?, source.root())
}

/// Bytes in, no panic out: the entry for fuzzing.
pub fn fuzz(bytes: &[u8]) {
    let _ = keys::parse(bytes);
    let text = String::from_utf8_lossy(bytes);
    let mistakes = match read("fuzz", &text) {
        Ok(checked) => warnings("fuzz", &text, &checked),
        Err(mistake) => vec![mistake],
    };
    for mistake in mistakes {
        assert!(!mistake.message.is_empty(), "a mistake says what it is");
        let _ = mistake.to_string();
    }
}

fn check(file: &str, config: Config, root: Spot<'_>) -> Result<Checked, Mistake> {
    clusters::name(&config.cluster).map_err(|message| root.key("cluster").mistake(message))?;
    let mut switches = switches::read(&config, root)?;
    let mut networks = network::check(&config, &switches, root)?;
    zones::check(&config, root)?;
    let bfd = bfd::read(&config, &mut networks, root)?;
    let mut built = chains::build(&config, &switches, root)?;
    state_server::check(&config, root)?;
    chains::owned(&config, &mut built, &networks, &mut switches, root)?;
    let clusters = clusters::read(&config, root)?;
    let rules = rules::read(&config, &clusters, &switches, root)?;
    let hosts = hosts::read(&config, root)?;
    switches::place(&config, &hosts, &mut switches, root)?;
    limits(&config, root)?;
    if config.state.as_ref().is_some_and(|state| !state.starts_with('/')) {
        return Err(root.key("state").mistake("`state` is a directory's path from the root, like /var/lib/holdfast".to_owned()));
    }
    let etcd = etcd::read(file, &config, root)?;
    let control = control::read(file, &config, root)?;
    let network::Networks { ports, addresses, routes, .. } = networks;
    Ok(Checked { config, ports, addresses, routes, bfd, rules, clusters, switches, hosts, etcd, control })
}

fn limits(config: &Config, root: Spot<'_>) -> Result<(), Mistake> {
    let between = |section: &str, key: &str, value: u64, least: u64, most: u64| {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(root.key(section).key(key).mistake(format!("`{key}` is between {least} and {most}, not {value}")))
    };
    between("limits", "flows", config.limits.flows as u64, 1, 16_000_000)?;
    for (key, limit) in
        [("half_open_per_source", config.limits.half_open_per_source), ("flows_per_source", config.limits.flows_per_source)]
    {
        if let Some(limit) = limit {
            between("limits", key, limit.into(), 1, config.limits.flows as u64)?;
        }
    }
    between("limits", "buffers", config.limits.buffers.into(), 8192, 1 << 20)?;
    let detection = &config.detection;
    between("detection", "heartbeat_ms", detection.heartbeat_ms, 1, 60_000)?;
    between("detection", "hang_ms", detection.hang_ms, LEAST_HEARTBEATS, 600_000)?;
    between("detection", "host_ms", detection.host_ms, 10, 600_000)?;
    let least = LEAST_HEARTBEATS * detection.heartbeat_ms;
    if detection.hang_ms < least {
        return Err(root.key("detection").key("hang_ms").mistake(format!(
            "a runtime must have {LEAST_HEARTBEATS} heartbeats' time to be heard: `hang_ms` is at least {least} with `heartbeat_ms` {}, not {}",
            detection.heartbeat_ms, detection.hang_ms
        )));
    }
    Ok(())
}

/// The pools of chains, with their sizes: for the coordinator.
pub fn pools(chains: &mut [BuiltChain]) -> Vec<(PoolId, u32)> {
    let partitioned = chains.iter_mut().enumerate().filter(|(_, built)| built.plan.server_rest().is_none());
    partitioned.flat_map(|(number, built)| pools::of_chain(number as u16, &mut built.chain)).collect()
}

/// Those whose numbers a state server assigns, in the order of its lists.
pub fn served_pools(chains: &mut [BuiltChain]) -> Vec<ServedPool> {
    let served = chains.iter_mut().filter_map(|built| Some((built.plan.server_rest()?, &mut built.chain)));
    served
        .flat_map(|(hold, chain)| pools::of_chain(0, chain).into_iter().map(move |(_, size)| ServedPool { size, hold }))
        .collect()
}

/// The pages of the chains whose flows have their home at a state server: room for so many flows of each, found by hashes under this seed.
pub fn pages(chains: &[BuiltChain], flows: usize, seed: u64) -> Vec<PagesConfig> {
    let paged = chains.iter().zip(0..).filter(|(built, _)| built.plan.is_paged());
    let of_chain = |(built, chain): (&BuiltChain, u16)| {
        let layout = built.chain.layout();
        PagesConfig { chain, flows, state_len: layout.size, layout: layout.hash, seed }
    };
    paged.map(of_chain).collect()
}

/// There is to be a state server.
pub fn has_state_server(chains: &[BuiltChain]) -> bool {
    chains.iter().any(|built| built.plan.needs_state_server())
}

/// How many flows each source may have at a switch.
pub fn source_limits(config: &Config, chains: &[BuiltChain]) -> SourceLimits {
    SourceLimits {
        half_open: Some(config.limits.half_open()),
        flows: config.limits.flows_per_source,
        chains: chains.iter().map(|built| built.chain.source_limit()).collect(),
    }
}

/// How many state servers there are to be.
pub fn state_servers(config: &Config, chains: &[BuiltChain]) -> u16 {
    if has_state_server(chains) { config.servers() } else { 0 }
}

/// All of them with their names, by chain, function and field.
pub fn named_pools(chains: &mut [BuiltChain]) -> Vec<NamedPool> {
    let mut pools = Vec::new();
    for (number, built) in chains.iter_mut().enumerate() {
        let BuiltChain { name, chain, plan, .. } = built;
        pools::visit(number as u16, chain, |id, function, field, size| {
            pools.push(NamedPool { id, chain: name.clone(), function, field, size, is_served: plan.server_rest().is_some() });
        });
    }
    pools
}

impl Checked {
    /// Runtimes to start, in all clusters.
    pub fn runtimes(&self) -> u16 {
        self.clusters.iter().map(|cluster| cluster.runtimes).sum()
    }

    /// Which host is meant, counted from 0; the only one needs no name.
    ///
    /// # Errors
    /// What to write instead.
    pub fn host(&self, wanted: Option<&str>) -> Result<u16, String> {
        hosts::find(&self.hosts, wanted)
    }

    /// Names of a switch's ports and zones, as selectors of its chains use them. None on a host that serves no ports.
    pub fn zones(&self, switch: usize) -> Zones {
        self.switches.get(switch).map_or_else(Zones::default, |switch| zones::of_switch(&self.config, switch))
    }

    /// Names of ports and zones in selectors of this chain.
    pub fn zones_of(&self, chain: u16) -> Zones {
        self.zones(switches::of_chain(&self.switches, chain))
    }

    /// From here on ports are those of this host. One that serves none has none.
    pub fn on_host(&mut self, host: u16) {
        let Some(entry) = self.hosts.get(usize::from(host)) else { return };
        if !entry.has_ports {
            (self.ports, self.addresses, self.routes) = (Vec::new(), Vec::new(), Vec::new());
            self.bfd.clear();
            self.switches.iter_mut().for_each(|switch| switch.ports.clear());
        }
        for ((_, device), own) in self.ports.iter_mut().zip(&entry.devices) {
            device.clone_from(own);
        }
    }

    /// The control API of this host, if it has one.
    pub fn control_of(&self, host: u16) -> Option<ControlEntry> {
        let own = self.hosts.get(usize::from(host)).and_then(|host| host.control);
        self.control.as_ref().and_then(|control| control.of(own))
    }

    /// What the coordinator is told of the hosts.
    pub fn hosts_config(&self) -> holdfast_node::coordinator::HostsConfig {
        hosts::for_coordinator(&self.hosts, &self.switches, self.config.detection.host_ms * 1_000_000)
    }

    /// Per switch the configuration of its edge, once the ports' MAC addresses and MTUs are known, and which ports are its, in order. `keys` are those of
    /// [`bfd_keys`]; `random` gives random numbers.
    pub fn edges(
        &self,
        ports: &[(holdfast_wire::header::Mac, u16)],
        keys: &[Option<Key>],
        random: impl Fn() -> u64,
    ) -> Vec<(EdgeConfig, Vec<u8>)> {
        let configs: Vec<&PortConfig> = self.config.ports.values().collect();
        let edge = |switch: &SwitchEntry| {
            let port = |number: &u8| {
                let at = usize::from(*number);
                let ((mac, mtu), config) = (ports[at], configs[at]);
                EdgePort {
                    mac,
                    mtu: config.mtu.unwrap_or(mtu).min(mtu),
                    addresses: self.addresses[at].clone(),
                    reverse_path: match config.reverse_path {
                        ReversePathConfig::Feasible => ReversePath::Feasible,
                        ReversePathConfig::Off => ReversePath::Off,
                    },
                }
            };
            // An edge counts its own ports only.
            let route = |route: &EdgeRoute| {
                let at = switch.ports.iter().position(|port| *port == route.port)?;
                Some(EdgeRoute { port: at as u8, ..*route })
            };
            let peer = |(peer, key): (&BfdPeer, &Option<Key>)| {
                let at = switch.ports.iter().position(|port| *port == peer.port)?;
                let settings = Settings {
                    min_transmit: peer.interval,
                    min_receive: peer.interval,
                    multiplier: peer.multiplier,
                    key: key.clone(),
                };
                Some(Peer { port: at as u8, address: holdfast_wire::ip_bytes(peer.address), settings })
            };
            let (ports, routes) = (switch.ports.iter().map(port).collect(), self.routes.iter().filter_map(route).collect());
            let bfd = self.bfd.iter().zip(keys).filter_map(peer).collect();
            let (owned, answers_ping) = (switch.owned.clone(), switch.answers_ping.clone());
            let config = EdgeConfig { ports, routes, owned, answers_ping, bfd, seed: random() };
            (config, switch.ports.clone())
        };
        self.switches.iter().map(edge).collect()
    }
}

/// The JSON Schema of the file, the functions' own configurations included.
pub fn schema() -> Value {
    let mut schema = serde_json::to_value(schemars::schema_for!(Config)).unwrap_or_default();
    let names = holdfast_functions::catalog::names();
    let mut below = serde_json::Map::new();
    for name in &names {
        let function = holdfast_functions::catalog::schema(name).and_then(|schema| serde_json::to_value(schema).ok());
        let Some(mut function) = function else { continue };
        // Each function's definitions move to the file's, under names that cannot meet.
        let definitions = function.as_object_mut().and_then(|map| map.remove("$defs"));
        function.as_object_mut().and_then(|map| map.remove("$schema"));
        rename_references(&mut function, name);
        schema["$defs"][*name] = function;
        for (key, mut definition) in definitions.as_ref().and_then(Value::as_object).cloned().unwrap_or_default() {
            rename_references(&mut definition, name);
            schema["$defs"][format!("{name}.{key}")] = definition;
        }
        below.insert((*name).to_owned(), json!({ "anyOf": [{ "$ref": format!("#/$defs/{name}") }, { "type": "null" }] }));
    }
    schema["$defs"]["FunctionConfig"] = json!({
        "description": "A function: its name, or its name with its configuration below it.",
        "anyOf": [
            { "enum": names },
            { "type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": false, "properties": below },
        ],
    });
    schema
}

fn rename_references(value: &mut Value, function: &str) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match value {
                    Value::String(target) if key == "$ref" => {
                        *target = target.replace("#/$defs/", &format!("#/$defs/{function}."))
                    }
                    _ => rename_references(value, function),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename_references(item, function)),
        _ => {}
    }
}
