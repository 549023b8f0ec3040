//! Chains: functions by name, each with a configuration that the function checks, and a
//! protection.

use super::mistake::{Mistake, listed, suggestion, with_suggestion};
use super::names;
use super::network::Networks;
use super::protection;
use super::raw::{Config, FunctionConfig, OneOrMany};
use super::shared::{Named, NamedPool};
use super::source::Spot;
use super::switches::{self, SwitchEntry};
use holdfast_functions::catalog;
use holdfast_nf::{Chain, ChainLayout, ConfigError, Configured, RateLimit, SourceLimit};
use holdfast_protection::Plan;
use holdfast_protection::plan::Shared;
use holdfast_state::SERVER_CREDIT;
use holdfast_wire::NodeId;
use holdfast_wire::selector::{Prefix, SelectorError};
use holdfast_wire::zone::Zones;
use serde_json::Value;
use std::sync::Arc;

/// Maximum number of chains of a box.
const MAX_CHAINS: usize = 256;
const _: () = assert!(MAX_CHAINS <= holdfast_wire::nsh::MAX_CHAINS as usize);
/// Maximum number of functions of a chain.
const MAX_FUNCTIONS: usize = 32;

/// A chain with its functions, without shared state.
pub struct ChainPlan {
    /// The chain's name.
    pub name: String,
    /// The chain's switch.
    pub switch: NodeId,
    /// The chain's functions, in order.
    pub functions: Vec<Arc<dyn Configured>>,
    /// The layout of a flow's state.
    pub layout: ChainLayout,
    /// The protection of its flows. Shared state is at a state server only if a function
    /// has some.
    pub protection: Plan,
}

impl ChainPlan {
    /// The chain for one runtime, with shared state of its own.
    pub fn bind(&self) -> Chain {
        let mut chain = Chain::new(self.functions.iter().map(|function| function.bind()).collect());
        if let Some(rest) = self.protection.server_rest() {
            chain.ask_server(SERVER_CREDIT, rest);
            chain.share_statistics();
        }
        chain
    }

    /// The limit of flows per source, from the first function that has one.
    pub fn source_limit(&self) -> Option<SourceLimit> {
        self.functions.iter().find_map(|function| function.source_limit())
    }

    /// Rates that flows of the chain share, in the order of its functions.
    pub fn rate_limits(&self) -> Vec<RateLimit> {
        self.functions.iter().flat_map(|function| function.rate_limits()).collect()
    }

    /// Warnings of the functions about their own configuration. `spot` is their list.
    pub(super) fn warnings(&self, spot: Spot<'_>) -> Vec<Mistake> {
        let of_one = |(at, function): (usize, &Arc<dyn Configured>)| {
            let (name, spot) = (function.name(), spot.index(at));
            let warnings = function.warnings();
            warnings
                .iter()
                .map(|warning| of_function(name, warning, spot.name(name), spot.key(name)))
                .collect::<Vec<_>>()
        };
        self.functions.iter().enumerate().flat_map(of_one).collect()
    }

    /// True if `status` ranks the chain's flows.
    pub fn ranks(&self) -> bool {
        self.functions.iter().any(|function| function.ranks())
    }

    /// Bytes by which a frame may grow in the chain.
    pub fn added_bytes(&self) -> usize {
        self.functions.iter().map(|function| function.added_bytes()).sum()
    }
}

/// Reads the chains, in the order of their numbers, and the shared state of their flows.
pub(super) fn read(
    config: &Config,
    switches: &[SwitchEntry],
    root: Spot<'_>,
) -> Result<(Vec<ChainPlan>, Named), Mistake> {
    if config.chains.is_empty() || config.chains.len() > MAX_CHAINS {
        return Err(root
            .name("chains")
            .mistake(format!("between 1 and {MAX_CHAINS} chains are needed")));
    }
    let mut chains = Vec::new();
    let mut shared = Named { pools: Vec::new(), statistics: Vec::new() };
    for (number, (name, chain)) in (0u16..).zip(&config.chains) {
        let spot = root.key("chains").key(name);
        names::check_length(name, "a chain's", root.key("chains").name(name))?;
        if chain.functions.is_empty() {
            return Err(spot.name("functions").mistake(format!(
                "chain `{name}` has no function: `forward` lets everything pass"
            )));
        }
        if chain.functions.len() > MAX_FUNCTIONS {
            return Err(spot
                .name("functions")
                .mistake(format!("chain `{name}` has more than {MAX_FUNCTIONS} functions")));
        }
        let switch = chain
            .switch
            .as_ref()
            .and_then(|switch| config.switches.keys().position(|name| name == switch));
        let zones = &switches[switch.unwrap_or(0)].zones;
        let functions = chain.functions.iter().enumerate();
        let functions = functions
            .map(|(at, function)| function_of(function, zones, spot.key("functions").index(at)));
        let functions = functions.collect::<Result<Vec<_>, _>>()?;
        one_source_limit(&functions, spot.key("functions"))?;
        let mut protection = protection_of(config, name, root)?;
        let named = Named::of(number, name, &functions);
        if protection.server_rest().is_some() && named.is_empty() {
            // A preset asks for a state server only if there is shared state for it.
            if let Some(key) = protection::says_server(chain.protection.as_ref()) {
                let message = format!(
                    "no function of chain `{name}` has anything that a state server could assign or add up: leave `{key}` out"
                );
                return Err(spot.key("protection").key(key).mistake(message));
            }
            protection.shared = Shared::Partitioned;
        }
        let named = named.at_server(protection.server_rest());
        shared.pools.extend(named.pools);
        shared.statistics.extend(named.statistics);
        let layout =
            ChainLayout::of(functions.iter().map(|function| (function.name(), function.layout())));
        let switch = NodeId::switch(switch.unwrap_or(0) as u16);
        chains.push(ChainPlan { name: name.clone(), switch, functions, layout, protection });
    }
    if config.state_server.is_some()
        && !chains.iter().any(|chain| chain.protection.needs_state_server())
    {
        let message = "no chain has a state server (`protection: rescue`, or `shared: state-server`): leave `state_server` out";
        return Err(root.name("state_server").mistake(message));
    }
    let has_several = config.state_server.as_ref().is_some_and(|settings| settings.servers > 1);
    if has_several && chains.iter().all(|chain| !chain.protection.is_paged()) {
        let message = "several state servers divide the flows among them whose home is there, and no chain has such (`protection: rescue`); numbers of pools are assigned by one: leave `servers` out";
        return Err(root.key("state_server").name("servers").mistake(message));
    }
    Ok((chains, shared))
}

/// Checks that functions put packets only into VLANs that a port of their switch has.
pub(super) fn vlans(
    config: &Config,
    chains: &[ChainPlan],
    switches: &[SwitchEntry],
    networks: &Networks,
    root: Spot<'_>,
) -> Result<(), Mistake> {
    for ((name, number), chain) in config.chains.keys().zip(0u16..).zip(chains) {
        let switch = &switches[switches::of_chain(switches, number)];
        let has = |id: &u16| {
            let mut own = switch.ports.iter().filter_map(|at| networks.ports.get(usize::from(*at)));
            own.any(|port| port.flow_vlans.contains(id))
        };
        for (at, function) in chain.functions.iter().enumerate() {
            if let Some(id) = function.vlans().iter().find(|id| !has(id)) {
                let spot = root.key("chains").key(name).key("functions").index(at);
                let function = function.name();
                return Err(spot.name(function).mistake(format!(
                    "{function}: no port has VLAN {id} among its `flow_vlans`, so packets in it could not leave"
                )));
            }
        }
    }
    Ok(())
}

/// Checks that one function at most limits flows per source, and that no other of its
/// kind stands before it. The switch counts a source's flows as they enter the chain; a
/// `nat` behind another one sees other sources.
fn one_source_limit(functions: &[Arc<dyn Configured>], spot: Spot<'_>) -> Result<(), Mistake> {
    for (at, function) in
        functions.iter().enumerate().filter(|(_, function)| function.source_limit().is_some())
    {
        let name = function.name();
        let mut before = functions[..at].iter();
        if let Some(first) =
            before.find(|other| other.name() == name || other.source_limit().is_some())
        {
            let first = first.name();
            return Err(spot.index(at).name(name).mistake(format!(
                "{name}: the switch counts a source's flows as they enter the chain: only its first `{first}` can limit them"
            )));
        }
    }
    Ok(())
}

/// Reads the protection of a chain's flows.
fn protection_of(config: &Config, chain: &str, root: Spot<'_>) -> Result<Plan, Mistake> {
    let written = config.chains.get(chain).and_then(|chain| chain.protection.as_ref());
    let spot = root.key("chains").key(chain).key("protection");
    let plan = protection::read(written, spot)?;
    if !config.hosts.is_empty() && plan.needs_state_server() {
        return Err(match protection::says_server(written) {
            Some("shared") => spot
                .key("shared")
                .mistake("a state server beside `hosts` is not available in this version: `shared: partitioned`"),
            _ => spot.mistake(
                "flows whose home is a state server are not available beside `hosts` in this version: `nfvactor` or `reinforce`",
            ),
        });
    }
    let most = config.limits.flows;
    if plan.has_absent_flows() && plan.present_flows() >= most {
        let message = format!(
            "a runtime has no more than {most} flows (`limits.flows`), so all have their state in memory: leave `resident_flows` out"
        );
        return Err(spot.key("resident_flows").mistake(message));
    }
    Ok(plan)
}

fn function_of(
    config: &FunctionConfig,
    zones: &Zones,
    spot: Spot<'_>,
) -> Result<Arc<dyn Configured>, Mistake> {
    let known = catalog::names();
    let (name, value) = match config.entries.as_slice() {
        [(name, value)] => (name, value),
        [] => return Err(spot.mistake("a function has a name")),
        [(first, Value::Null), (second, _), ..]
            if known.contains(&first.as_str()) && !known.contains(&second.as_str()) =>
        {
            return Err(spot.name(second).mistake(format!(
                "`{second}` stands beside `{first}`, not below it: indent it further, or write `{first}: {{ … }}`"
            )));
        }
        [(first, _), (second, _), ..] => {
            return Err(spot.name(second).mistake(format!(
                "`{second}` stands in the same item as `{first}`: begin it with `- `"
            )));
        }
    };
    let here = spot.name(name);
    if !known.contains(&name.as_str()) {
        let near = suggestion(name, known.iter().copied());
        return Err(here.mistake(format!(
            "there is no function `{name}`: {}{near}",
            listed(known.iter().copied())
        )));
    }
    catalog::configured(name, value, zones)
        .map_err(|error| of_function(name, &error, here, spot.key(name)))
}

/// A function's mistake in its configuration: `here` is its name, `below` the
/// configuration.
fn of_function(name: &str, error: &ConfigError, here: Spot<'_>, below: Spot<'_>) -> Mistake {
    let message = format!("{name}: {}", with_suggestion(&error.message));
    if !error.path.is_empty() {
        let spot = below.path(&error.path);
        let is_file = catalog::files(name).iter().any(|key| error.path.starts_with(key));
        return match error.offset {
            Some(offset) if is_file => spot.mistake_in_file(offset, message),
            Some(offset) => spot.mistake_at(offset, message),
            None => spot.mistake(message),
        };
    }
    // serde names the word, not its place, which is somewhere below.
    let is_missing = error.message.starts_with("missing field");
    let word = error.message.split(['`', '"']).nth(1).filter(|_| !is_missing);
    word.and_then(|word| below.find(word)).unwrap_or(here).mistake(message)
}

/// Ranges of addresses that no host has, or none behind a router (RFC 6890, RFC 4291).
const NOT_UNICAST: [(&str, &str); 9] = [
    ("0.0.0.0/8", "\"this network\""),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("fe80::/10", "link-local"),
    ("ff00::/8", "multicast"),
];

/// The first of these ranges that the prefix overlaps, and its meaning.
fn not_unicast(prefix: &Prefix) -> Option<(&'static str, &'static str)> {
    NOT_UNICAST
        .into_iter()
        .find(|(range, _)| range.parse().is_ok_and(|range: Prefix| range.overlaps(prefix)))
}

/// Checks that functions and the box itself do not claim the same addresses. The
/// addresses that chains own belong to their switches.
pub(super) fn owned(
    config: &Config,
    chains: &[ChainPlan],
    pools: &[NamedPool],
    networks: &Networks,
    switches: &mut [SwitchEntry],
    root: Spot<'_>,
) -> Result<(), Mistake> {
    let mut taken: Vec<(Prefix, &str, &str)> = Vec::new();
    for (chain, number) in chains.iter().zip(0u16..) {
        let switch = switches::of_chain(switches, number);
        let own = switches[switch].owned.len();
        for (at, function) in chain.functions.iter().enumerate() {
            let name = function.name();
            let spot = root.key("chains").key(&chain.name).key("functions").index(at);
            let written = config
                .chains
                .get(&chain.name)
                .and_then(|chain| chain.functions.get(at))
                .and_then(|f| f.entries.first());
            let addresses = function.owned_addresses();
            let place = |prefix: &Prefix| match written {
                Some((key, _)) => {
                    let below = spot.key(key);
                    let as_address = || below.find(&prefix.first().to_string());
                    below.find(&prefix.to_string()).or_else(as_address).unwrap_or(spot.name(key))
                }
                None => spot,
            };
            let has_pool = pools
                .iter()
                .any(|pool| (pool.id.chain, usize::from(pool.id.function)) == (number, at));
            for prefix in addresses {
                if let Some((range, what)) = not_unicast(&prefix) {
                    return Err(place(&prefix)
                        .mistake(format!("{name}: {prefix} is no range of addresses that hosts may have: {range} is {what}")));
                }
                if let Some((address, port, whose)) = networks.own_address_in(&prefix) {
                    let wrong = if whose != switch {
                        Some("which is another switch's: what is sent there never reaches this chain".to_owned())
                    } else if prefix != Prefix::host(address) {
                        Some(format!(
                            "with others: name {address} alone, if the chain and the box are to share it"
                        ))
                    } else {
                        None
                    };
                    if let Some(wrong) = wrong {
                        let text = format!(
                            "{name}: {prefix} contains {address}, the box's own address on port `{port}`, {wrong}"
                        );
                        return Err(place(&prefix).mistake(text));
                    }
                }
                if let Some((port, router)) = networks.router_in(&prefix) {
                    return Err(place(&prefix).mistake(format!(
                        "{name}: {prefix} contains {router}, a router on port `{port}`: the box would take that address for its own and never reach the router"
                    )));
                }
                if let Some((port, address)) = networks.broadcast_in(&prefix) {
                    return Err(place(&prefix).mistake(format!(
                        "{name}: {prefix} contains {address}, which belongs to all on the network of port `{port}`"
                    )));
                }
                // Two pools cannot coordinate: both would give the same address and port
                // to different flows.
                if has_pool {
                    if let Some((other, function, whose)) =
                        taken.iter().find(|(other, ..)| other.overlaps(&prefix))
                    {
                        return Err(place(&prefix).mistake(format!(
                            "{name}: {prefix} overlaps {other} of `{function}` in chain `{whose}`"
                        )));
                    }
                    taken.push((prefix, name, &chain.name));
                }
                switches[switch].owned.push(prefix);
            }
        }
        let pinged = answers_ping(config, &chain.name, &switches[switch].owned[own..], root)?;
        switches[switch].answers_ping.extend(pinged);
    }
    Ok(())
}

/// Reads the prefixes for which the box answers ping, among the addresses that the chain
/// owns.
fn answers_ping(
    config: &Config,
    chain: &str,
    owned: &[Prefix],
    root: Spot<'_>,
) -> Result<Vec<Prefix>, Mistake> {
    let written = config.chains.get(chain).and_then(|chain| chain.answers_ping.as_ref());
    let spot = root.key("chains").key(chain).key("answers_ping");
    let read = |(at, text): (usize, &str)| {
        let spot = spot.index(at);
        let prefix: Prefix = text
            .parse()
            .map_err(|error: SelectorError| spot.mistake_at(error.offset, error.message))?;
        if owned.iter().any(|own| own.covers(&prefix)) {
            return Ok(prefix);
        }
        let own = listed(
            owned.iter().map(Prefix::to_string).collect::<Vec<_>>().iter().map(String::as_str),
        );
        let own = if own.is_empty() { "it has none".to_owned() } else { own };
        Err(spot.mistake(format!("no pool or service of chain `{chain}` has {prefix}: {own}")))
    };
    written.map(OneOrMany::all).unwrap_or_default().into_iter().enumerate().map(read).collect()
}
