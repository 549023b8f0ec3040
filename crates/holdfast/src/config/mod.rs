//! The configuration file: what an operator writes, and what is made of it.
//!
//! YAML or JSON, read by serde-saphyr, which keeps the place of every value and refuses the traps of YAML (duplicate keys, `no` as a
//! boolean where text is meant). A mistake is an error with file, line, column, the line itself, and what would be right.

mod place;

pub use place::Mistake;

use holdfast_nf::Chain;
use holdfast_node::edge::{EdgeConfig, EdgePort, EdgeRoute};
use holdfast_node::message::PoolId;
use holdfast_node::switch::Rule;
use holdfast_protection::{NfvActor, Protection, ReleaseAt, Unprotected};
use holdfast_wire::selector::{Prefix, Selector};
use place::Place;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// One or several.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl OneOrMany {
    fn all(&self) -> Vec<&str> {
        match self {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) => texts.iter().map(String::as_str).collect(),
        }
    }
}

/// A port of the box.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// A Linux interface without kernel addresses.
    pub device: String,
    /// The box's addresses there with their prefix lengths, like 10.0.0.1/24.
    pub address: OneOrMany,
    /// Where everything goes that no other route leads to: one per address family.
    #[serde(default)]
    pub gateway: Option<OneOrMany>,
    /// Largest IP packet, bytes; the device's own without it.
    #[serde(default)]
    pub mtu: Option<u16>,
}

/// A route besides those to the ports' own networks.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// Destinations.
    pub to: String,
    /// The next router, in a port's network.
    pub via: String,
}

/// How the flows of a chain survive.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ProtectionConfig {
    /// A preset: `none` or `nfvactor`.
    Preset(String),
    /// A preset with options.
    Options(ProtectionOptions),
}

/// A preset with options.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProtectionOptions {
    /// `none` or `nfvactor`.
    pub preset: String,
    /// Who releases packets: `replica` or `source`.
    #[serde(default)]
    pub release: Option<String>,
}

/// A service chain.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainConfig {
    /// Functions in the order in which a flow's first packet meets them: a name, or a name with a configuration.
    pub functions: Vec<Value>,
    /// How its flows survive; `none` without it.
    #[serde(default)]
    pub protection: Option<ProtectionConfig>,
}

/// A service-chain rule; the most specific match wins.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleConfig {
    /// Source prefix.
    #[serde(default)]
    pub from: Option<String>,
    /// Destination prefix.
    #[serde(default)]
    pub to: Option<String>,
    /// `tcp`, `udp`, `icmp`, or a number.
    #[serde(default)]
    pub proto: Option<String>,
    /// Destination ports, like 80,443 or 1000-2000.
    #[serde(default)]
    pub port: Option<Value>,
    /// The chain.
    pub chain: String,
}

/// How many runtimes.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuntimesConfig {
    /// At least; so many are started.
    pub min: u16,
    /// At most.
    #[serde(default)]
    pub max: Option<u16>,
}

/// Limits.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Flows that the switch has routes for, and that one runtime may own per chain.
    pub flows: usize,
    /// Packet buffers of the host.
    pub buffers: u32,
}

impl Default for LimitsConfig {
    fn default() -> LimitsConfig {
        LimitsConfig { flows: 65_536, buffers: 32_768 }
    }
}

/// How failures are noticed.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DetectionConfig {
    /// Between two heartbeats of a runtime, milliseconds.
    pub heartbeat_ms: u64,
    /// A runtime that is not heard for so long has failed, milliseconds. Processes that end are noticed at once.
    pub hang_ms: u64,
}

impl Default for DetectionConfig {
    fn default() -> DetectionConfig {
        DetectionConfig { heartbeat_ms: 20, hang_ms: 500 }
    }
}

/// The whole file.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The cluster's name.
    pub cluster: String,
    /// Ports by name.
    pub ports: BTreeMap<String, PortConfig>,
    /// Routes.
    #[serde(default)]
    pub routes: Vec<RouteConfig>,
    /// Chains by name.
    pub chains: BTreeMap<String, ChainConfig>,
    /// Rules.
    pub rules: Vec<RuleConfig>,
    /// Runtimes; three without it.
    #[serde(default)]
    pub runtimes: Option<RuntimesConfig>,
    /// Limits.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// Failure detection.
    #[serde(default)]
    pub detection: DetectionConfig,
}

/// What is made of a chain.
pub struct BuiltChain {
    /// Its name.
    pub name: String,
    /// Its functions.
    pub chain: Chain,
    /// Its protection.
    pub protection: Box<dyn Protection>,
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
    /// Service-chain rules.
    pub rules: Vec<Rule>,
    /// Runtimes to start.
    pub runtimes: u16,
    /// Addresses that the chains own.
    pub owned: Vec<Prefix>,
}

/// Reads and checks a configuration. `file` is its name, for messages.
///
/// # Errors
/// The first mistake.
pub fn read(file: &str, text: &str) -> Result<Checked, Mistake> {
    let place = Place::new(file, text);
    let config: Config = serde_saphyr::from_str(text).map_err(|error| place.of_parser(&error))?;
    check(config, &place)
}

/// The JSON Schema of the file, the functions' configurations included.
pub fn schema() -> Value {
    let mut schema = serde_json::to_value(schemars::schema_for!(Config)).unwrap_or_default();
    let functions = holdfast_functions::catalog::names().into_iter().map(|name| {
        let schema = holdfast_functions::catalog::schema(name).map(|schema| serde_json::to_value(schema).unwrap_or_default());
        (name.to_owned(), schema.unwrap_or_default())
    });
    schema["x-functions"] = Value::Object(functions.collect());
    schema
}

fn check(config: Config, place: &Place<'_>) -> Result<Checked, Mistake> {
    let mut ports = Vec::new();
    let mut addresses = Vec::new();
    let mut networks: Vec<(Prefix, u8, String)> = Vec::new();
    if config.ports.is_empty() || config.ports.len() > 64 {
        return Err(place.of_word("ports", "between 1 and 64 ports are needed"));
    }
    for (number, (name, port)) in config.ports.iter().enumerate() {
        if let Some((other, _)) = ports.iter().find(|(_, device): &&(String, String)| *device == port.device) {
            return Err(place.of_word(name, format!("port `{name}` uses the device of port `{other}`")));
        }
        ports.push((name.clone(), port.device.clone()));
        let mut own = Vec::new();
        for text in port.address.all() {
            let (address, len) = interface_address(text).map_err(|message| place.of_word(text, message))?;
            let Some(network) = Prefix::network_of(address, len) else { return Err(place.of_word(text, "this is no network")) };
            if let Some((other, _, owner)) = networks.iter().find(|(other, _, _)| other.overlaps(&network)) {
                return Err(place.of_word(text, format!("`{text}` overlaps {other} of port `{owner}`")));
            }
            networks.push((network, number as u8, name.clone()));
            own.push((address, len));
        }
        if own.is_empty() {
            return Err(place.of_word(name, format!("port `{name}` needs an address")));
        }
        addresses.push(own);
    }
    let via = |text: &str| -> Result<(IpAddr, u8), Mistake> {
        let address: IpAddr = text.parse().map_err(|_| place.of_word(text, format!("`{text}` is not an IP address")))?;
        let bytes = holdfast_wire::ip_bytes(address);
        let network = networks.iter().find(|(network, _, _)| network.contains(&bytes));
        network
            .map(|(_, port, _)| (address, *port))
            .ok_or_else(|| place.of_word(text, format!("no port's network contains the router {text}")))
    };
    let mut routes = Vec::new();
    for (number, (name, port)) in config.ports.iter().enumerate() {
        for text in port.gateway.iter().flat_map(OneOrMany::all) {
            let (gateway, at) = via(text)?;
            if at as usize != number {
                return Err(place.of_word(text, format!("the gateway {text} is not in a network of port `{name}`")));
            }
            let everything = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            let prefix: Prefix = everything.parse().map_err(|_| place.of_word(text, "no default route"))?;
            if routes.iter().any(|route: &EdgeRoute| route.prefix == prefix) {
                return Err(place.of_word(text, "there is another gateway of this address family; use `routes` for all but one"));
            }
            routes.push(EdgeRoute { prefix, port: at, gateway: Some(gateway) });
        }
    }
    for route in &config.routes {
        let prefix: Prefix =
            route.to.parse().map_err(|error: holdfast_wire::selector::SelectorError| place.of_word(&route.to, error.message))?;
        let (gateway, port) = via(&route.via)?;
        routes.push(EdgeRoute { prefix, port, gateway: Some(gateway) });
    }
    if config.chains.is_empty() || config.chains.len() > 256 {
        return Err(place.of_word("chains", "between 1 and 256 chains are needed"));
    }
    let chains = build_chains(&config, place)?;
    let owned = chains.iter().flat_map(|built| built.chain.owned_addresses()).collect();
    let names: Vec<&str> = config.chains.keys().map(String::as_str).collect();
    let mut rules = Vec::new();
    for rule in &config.rules {
        rules.push(build_rule(rule, &names, place)?);
    }
    if rules.is_empty() {
        return Err(place.of_word("rules", "without a rule no packet has a chain; `- { chain: NAME }` catches all"));
    }
    let runtimes = match config.runtimes {
        None => 3,
        Some(RuntimesConfig { min, max }) => {
            if min == 0 || min > 64 {
                return Err(place.of_word("min", "between 1 and 64 runtimes are possible"));
            }
            if max.is_some_and(|max| max < min) {
                return Err(place.of_word("max", "`max` is less than `min`"));
            }
            min
        }
    };
    if config.limits.flows == 0 || config.limits.flows > 16_000_000 {
        return Err(place.of_word("flows", "between 1 and 16000000 flows are possible"));
    }
    if config.limits.buffers < 8192 || config.limits.buffers > 1 << 20 {
        return Err(place.of_word("buffers", "between 8192 and 1048576 buffers are possible"));
    }
    if config.detection.heartbeat_ms == 0 || config.detection.hang_ms < 4 * config.detection.heartbeat_ms {
        return Err(place.of_word("hang_ms", "a runtime must have at least four heartbeats' time to be heard"));
    }
    Ok(Checked { config, ports, addresses, routes, rules, runtimes, owned })
}

fn interface_address(text: &str) -> Result<(IpAddr, u8), String> {
    let (address, len) = text.split_once('/').ok_or_else(|| format!("`{text}` has no prefix length, like 10.0.0.1/24"))?;
    let address: IpAddr =
        address.parse().map_err(|_| format!("`{text}` is not an address with a prefix length, like 10.0.0.1/24"))?;
    let max = if address.is_ipv4() { 32 } else { 128 };
    let len: u8 = len
        .parse()
        .ok()
        .filter(|len| *len <= max)
        .ok_or_else(|| format!("`{text}`: the prefix length is not between 0 and {max}"))?;
    Ok((address, len))
}

fn suggestion<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let near = candidates.into_iter().map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate)).min();
    match near {
        Some((distance, candidate)) if distance <= 1 + word.len() / 3 => format!("; did you mean `{candidate}`?"),
        _ => String::new(),
    }
}

fn build_rule(rule: &RuleConfig, chains: &[&str], place: &Place<'_>) -> Result<Rule, Mistake> {
    let chain = chains.iter().position(|name| *name == rule.chain).ok_or_else(|| {
        let known = chains.join("`, `");
        place.of_word(
            &rule.chain,
            format!("there is no chain `{}`: `{known}`{}", rule.chain, suggestion(&rule.chain, chains.iter().copied())),
        )
    })?;
    let mut selector = Selector::any();
    let wrong = |text: &str, error: holdfast_wire::selector::SelectorError| place.of_word(text, error.message);
    if let Some(text) = &rule.proto {
        selector.protocol = text.parse().map_err(|error| wrong(text, error))?;
    }
    if let Some(text) = &rule.from {
        selector.from = Some(text.parse().map_err(|error| wrong(text, error))?);
    }
    if let Some(text) = &rule.to {
        selector.to = Some(text.parse().map_err(|error| wrong(text, error))?);
    }
    if let Some(value) = &rule.port {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        selector.to_ports = text.parse().map_err(|error| wrong(&text, error))?;
    }
    Ok(Rule { selector, chain: chain as u16 })
}

/// Builds the chains of a configuration, in the order of their numbers.
///
/// # Errors
/// The first mistake.
pub fn chains(file: &str, text: &str, config: &Config) -> Result<Vec<BuiltChain>, Mistake> {
    build_chains(config, &Place::new(file, text))
}

fn build_chains(config: &Config, place: &Place<'_>) -> Result<Vec<BuiltChain>, Mistake> {
    config
        .chains
        .iter()
        .map(|(name, chain)| {
            let functions = chain.functions.iter().map(|value| named(value, place)).collect::<Result<Vec<_>, _>>()?;
            if functions.is_empty() {
                return Err(place.of_word(name, format!("chain `{name}` has no function; `forward` lets everything pass")));
            }
            for (function, _) in &functions {
                let known = holdfast_functions::catalog::names();
                if !known.contains(&function.as_str()) {
                    let message = format!(
                        "there is no function `{function}`: `{}`{}",
                        known.join("`, `"),
                        suggestion(function, known.iter().copied())
                    );
                    return Err(place.of_word(function, message));
                }
            }
            let built = holdfast_functions::catalog::chain(&functions)
                .map_err(|(at, error)| place.of_function(&functions[at].0, &functions[at].1, &error))?;
            Ok(BuiltChain { name: name.clone(), chain: built, protection: protection(chain.protection.as_ref(), place)? })
        })
        .collect()
}

fn named(value: &Value, place: &Place<'_>) -> Result<(String, Value), Mistake> {
    match value {
        Value::String(name) => Ok((name.clone(), Value::Null)),
        Value::Object(map) if map.len() == 1 => match map.iter().next() {
            Some((name, config)) => Ok((name.clone(), config.clone())),
            None => Err(place.of_word("functions", "a function has a name")),
        },
        _ => Err(place.of_word("functions", "a function is written as its name, or as its name with its configuration below it")),
    }
}

const PRESETS: &[&str] = &["none", "nfvactor"];
const LATER: &[&str] = &["nfactor", "reinforce", "dal", "rescue"];

fn protection(config: Option<&ProtectionConfig>, place: &Place<'_>) -> Result<Box<dyn Protection>, Mistake> {
    let (preset, release) = match config {
        None => ("none", None),
        Some(ProtectionConfig::Preset(preset)) => (preset.as_str(), None),
        Some(ProtectionConfig::Options(options)) => (options.preset.as_str(), options.release.as_deref()),
    };
    match (preset, release) {
        ("none", None) => Ok(Box::new(Unprotected)),
        ("none", Some(_)) => Err(place.of_word("release", "`none` has nothing to wait for: leave `release` out")),
        ("nfvactor", None | Some("replica")) => Ok(Box::new(NfvActor::new(ReleaseAt::Replica))),
        ("nfvactor", Some("source")) => Ok(Box::new(NfvActor::new(ReleaseAt::Source))),
        ("nfvactor", Some(other)) => {
            Err(place.of_word(other, format!("`{other}` is not who can release packets: `replica` or `source`")))
        }
        (later, _) if LATER.contains(&later) => {
            Err(place.of_word(later, format!("the protection `{later}` is not in this version: `none` or `nfvactor`")))
        }
        (unknown, _) => Err(place.of_word(
            unknown,
            format!("there is no protection `{unknown}`: `none` or `nfvactor`{}", suggestion(unknown, PRESETS.iter().copied())),
        )),
    }
}

/// The pools of chains, with their sizes: for the coordinator.
pub fn pools(chains: &mut [BuiltChain]) -> Vec<(PoolId, u32)> {
    let mut pools = Vec::new();
    for (number, built) in chains.iter_mut().enumerate() {
        for (function, holder) in built.chain.functions_mut().iter_mut().enumerate() {
            let mut field = 0;
            holder.shared().visit(&mut |_, shared| {
                if let holdfast_nf::SharedField::Pool(pool) = shared {
                    pools.push((PoolId { chain: number as u16, function: function as u8, field }, pool.size()));
                }
                field += 1;
            });
        }
    }
    pools
}

impl Checked {
    /// The edge's configuration, once the ports' MAC addresses and MTUs are known.
    pub fn edge(&self, ports: &[(holdfast_wire::header::Mac, u16)]) -> EdgeConfig {
        let ports = ports.iter().zip(&self.addresses).zip(self.config.ports.values()).map(|(((mac, mtu), addresses), port)| {
            EdgePort { mac: *mac, mtu: port.mtu.unwrap_or(*mtu).min(*mtu), addresses: addresses.clone() }
        });
        EdgeConfig { ports: ports.collect(), routes: self.routes.clone(), owned: self.owned.clone() }
    }
}
