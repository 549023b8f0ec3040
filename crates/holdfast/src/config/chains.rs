//! Chains: functions by name, each with a configuration that the function itself checks, and a protection.

use super::BuiltChain;
use super::file::{Config, FunctionConfig, OneOrMany};
use super::mistake::{Mistake, listed, suggestion, with_suggestion};
use super::network::Networks;
use super::protection;
use super::source::Spot;
use super::switches::{self, SwitchEntry};
use super::zones;
use holdfast_functions::catalog;
use holdfast_nf::{Chain, ConfigError, Function, SharedField};
use holdfast_node::address::switch_node;
use holdfast_protection::Plan;
use holdfast_protection::plan::Shared;
use holdfast_state::SERVER_CREDIT;
use holdfast_wire::selector::{Prefix, SelectorError};
use holdfast_wire::zone::Zones;
use serde_json::Value;

/// Chains that a box may have.
const MAX_CHAINS: usize = 256;
/// Functions that a chain may have.
const MAX_FUNCTIONS: usize = 32;

/// Builds the chains of a configuration, in the order of their numbers.
pub(super) fn build(config: &Config, switches: &[SwitchEntry], root: Spot<'_>) -> Result<Vec<BuiltChain>, Mistake> {
    if config.chains.is_empty() || config.chains.len() > MAX_CHAINS {
        return Err(root.name("chains").mistake(format!("between 1 and {MAX_CHAINS} chains are needed")));
    }
    let mut built = Vec::new();
    for (name, chain) in &config.chains {
        let spot = root.key("chains").key(name);
        if chain.functions.is_empty() {
            return Err(spot
                .name("functions")
                .mistake(format!("chain `{name}` has no function: `forward` lets everything pass")));
        }
        if chain.functions.len() > MAX_FUNCTIONS {
            return Err(spot.name("functions").mistake(format!("chain `{name}` has more than {MAX_FUNCTIONS} functions")));
        }
        let switch = chain.switch.as_ref().and_then(|switch| config.switches.keys().position(|name| name == switch));
        let zones = zones::of_switch(config, &switches[switch.unwrap_or(0)]);
        let functions = chain.functions.iter().enumerate();
        let functions = functions.map(|(at, function)| function_of(function, &zones, spot.key("functions").index(at)));
        let functions = functions.collect::<Result<Vec<_>, _>>()?;
        one_source_limit(&functions, spot.key("functions"))?;
        let mut plan = plan(config, name, root)?;
        let mut functions = Chain::new(functions);
        if let Some(rest) = plan.server_rest() {
            let has_pools = functions.ask_server(SERVER_CREDIT, rest);
            if !functions.share_statistics() && !has_pools {
                // A preset asks for a state server only if there is something for it to do.
                if let Some(key) = protection::says_server(chain.protection.as_ref()) {
                    let message = format!(
                        "no function of chain `{name}` has anything that a state server could assign or add up: leave `{key}` out"
                    );
                    return Err(spot.key("protection").key(key).mistake(message));
                }
                plan.shared = Shared::Partitioned;
            }
        }
        built.push(BuiltChain { name: name.clone(), switch: switch_node(switch.unwrap_or(0) as u16), chain: functions, plan });
    }
    if config.state_server.is_some() && !super::has_state_server(&built) {
        let message = "no chain has a state server (`protection: rescue`, or `shared: state-server`): leave `state_server` out";
        return Err(root.name("state_server").mistake(message));
    }
    if config.servers() > 1 && built.iter().all(|built| !built.plan.is_paged()) {
        let message = "several state servers divide the flows among them whose home is there, and no chain has such (`protection: rescue`); numbers of pools are assigned by one: leave `servers` out";
        return Err(root.key("state_server").name("servers").mistake(message));
    }
    Ok(built)
}

/// Only one function may limit how many flows a source has, and none of its kind stands before it. The switch counts
/// a source's flows as they enter the chain; a `nat` behind another one has other sources.
fn one_source_limit(functions: &[Box<dyn Function>], spot: Spot<'_>) -> Result<(), Mistake> {
    for (at, function) in functions.iter().enumerate().filter(|(_, function)| function.source_limit().is_some()) {
        let name = function.name();
        let mut before = functions[..at].iter();
        if let Some(first) = before.find(|other| other.name() == name || other.source_limit().is_some()) {
            let first = first.name();
            return Err(spot.index(at).name(name).mistake(format!(
                "{name}: the switch counts a source's flows as they enter the chain: only its first `{first}` can limit them"
            )));
        }
    }
    Ok(())
}

/// How the flows of a chain survive.
pub(super) fn plan(config: &Config, chain: &str, root: Spot<'_>) -> Result<Plan, Mistake> {
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

fn function_of(config: &FunctionConfig, zones: &Zones, spot: Spot<'_>) -> Result<Box<dyn Function>, Mistake> {
    let known = catalog::names();
    let (name, value) = match config.entries.as_slice() {
        [(name, value)] => (name, value),
        [] => return Err(spot.mistake("a function has a name")),
        [(first, Value::Null), (second, _), ..] if known.contains(&first.as_str()) && !known.contains(&second.as_str()) => {
            return Err(spot.name(second).mistake(format!(
                "`{second}` stands beside `{first}`, not below it: indent it further, or write `{first}: {{ … }}`"
            )));
        }
        [(first, _), (second, _), ..] => {
            return Err(spot
                .name(second)
                .mistake(format!("`{second}` stands in the same item as `{first}`: begin it with `- `")));
        }
    };
    let here = spot.name(name);
    if !known.contains(&name.as_str()) {
        let near = suggestion(name, known.iter().copied());
        return Err(here.mistake(format!("there is no function `{name}`: {}{near}", listed(known.iter().copied()))));
    }
    catalog::build_at(name, value, zones).map_err(|error| of_function(name, &error, here, spot.key(name)))
}

/// A function's mistake in its own configuration: `here` is its name, `below` what is written below that.
fn of_function(name: &str, error: &ConfigError, here: Spot<'_>, below: Spot<'_>) -> Mistake {
    let message = format!("{name}: {}", with_suggestion(&error.message));
    if !error.path.is_empty() {
        let spot = below.path(&error.path);
        return match error.offset {
            Some(offset) => spot.mistake_at(offset, message),
            None => spot.mistake(message),
        };
    }
    // serde names the word, not its place; it stands somewhere below.
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

/// Which of them the prefix meets, and what that is.
fn not_unicast(prefix: &Prefix) -> Option<(&'static str, &'static str)> {
    NOT_UNICAST.into_iter().find(|(range, _)| range.parse().is_ok_and(|range: Prefix| range.overlaps(prefix)))
}

/// What several functions must not have in common, and what the box itself has already. The addresses that chains own are their switches'.
pub(super) fn owned(
    config: &Config,
    built: &mut [BuiltChain],
    networks: &Networks,
    switches: &mut [SwitchEntry],
    root: Spot<'_>,
) -> Result<(), Mistake> {
    let mut pools: Vec<(Prefix, String, String)> = Vec::new();
    for (chain, number) in built.iter_mut().zip(0u16..) {
        let switch = switches::of_chain(switches, number);
        let own = switches[switch].owned.len();
        for (at, function) in chain.chain.functions_mut().iter_mut().enumerate() {
            let name = function.name().to_owned();
            let spot = root.key("chains").key(&chain.name).key("functions").index(at);
            let written =
                config.chains.get(&chain.name).and_then(|chain| chain.functions.get(at)).and_then(|f| f.entries.first());
            let addresses = function.owned_addresses();
            let place = |prefix: &Prefix| match written {
                Some((key, _)) => {
                    let below = spot.key(key);
                    let as_address = || below.find(&prefix.first().to_string());
                    below.find(&prefix.to_string()).or_else(as_address).unwrap_or(spot.name(key))
                }
                None => spot,
            };
            let mut has_pool = false;
            function.shared().visit(&mut |_, field| has_pool |= matches!(field, SharedField::Pool(_)));
            for prefix in addresses {
                if let Some((range, what)) = not_unicast(&prefix) {
                    return Err(place(&prefix)
                        .mistake(format!("{name}: {prefix} is no range of addresses that hosts may have: {range} is {what}")));
                }
                if let Some((address, port, whose)) = networks.own_address_in(&prefix) {
                    let wrong = if whose != switch {
                        Some("which is another switch's: what is sent there never reaches this chain".to_owned())
                    } else if prefix != Prefix::host(address) {
                        Some(format!("with others: name {address} alone, if the chain and the box are to share it"))
                    } else {
                        None
                    };
                    if let Some(wrong) = wrong {
                        let text =
                            format!("{name}: {prefix} contains {address}, the box's own address on port `{port}`, {wrong}");
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
                // Two pools know nothing of each other: both would give the same address and port to different flows.
                if has_pool {
                    if let Some((other, function, whose)) = pools.iter().find(|(other, ..)| other.overlaps(&prefix)) {
                        return Err(place(&prefix)
                            .mistake(format!("{name}: {prefix} overlaps {other} of `{function}` in chain `{whose}`")));
                    }
                    pools.push((prefix, name.clone(), chain.name.clone()));
                }
                switches[switch].owned.push(prefix);
            }
        }
        let pinged = answers_ping(config, &chain.name, &switches[switch].owned[own..], root)?;
        switches[switch].answers_ping.extend(pinged);
    }
    Ok(())
}

/// Prefixes at which the box answers ping in the chain's place: among the addresses that the chain owns.
fn answers_ping(config: &Config, chain: &str, owned: &[Prefix], root: Spot<'_>) -> Result<Vec<Prefix>, Mistake> {
    let written = config.chains.get(chain).and_then(|chain| chain.answers_ping.as_ref());
    let spot = root.key("chains").key(chain).key("answers_ping");
    let read = |(at, text): (usize, &str)| {
        let spot = spot.index(at);
        let prefix: Prefix = text.parse().map_err(|error: SelectorError| spot.mistake_at(error.offset, error.message))?;
        if owned.iter().any(|own| own.covers(&prefix)) {
            return Ok(prefix);
        }
        let own = listed(owned.iter().map(Prefix::to_string).collect::<Vec<_>>().iter().map(String::as_str));
        let own = if own.is_empty() { "it has none".to_owned() } else { own };
        Err(spot.mistake(format!("no pool or service of chain `{chain}` has {prefix}: {own}")))
    };
    written.map(OneOrMany::all).unwrap_or_default().into_iter().enumerate().map(read).collect()
}
