//! Warnings about valid but doubtful configurations: rules without effect, unreachable
//! networks, private sources on their way to the Internet.
//!
//! In: a plan. Out: warnings with their places. Never: a refusal; the configuration may
//! be meant.

use super::mistake::Mistake;
use super::plan::Plan;
use super::raw::ChainConfig;
use super::source::Spot;
use super::switches::SwitchEntry;
use holdfast_functions::take_log;
use holdfast_node::edge::ReversePath;
use holdfast_wire::selector::{PacketSelector, Prefix, Selector};
use holdfast_wire::zone::{Zone, Zones};
use serde_json::Value;

/// Functions whose `rules` are selectors behind a word, of which the first match decides.
const LISTS: [&str; 3] = ["firewall", "qos_marker", "vlan"];
/// Functions that leave a packet's addresses unchanged.
const PLAIN: [&str; 10] = [
    "firewall",
    "qos_marker",
    "vlan",
    "rate_limiter",
    "monitor",
    "forward",
    "packet_limit",
    "http",
    "ips",
    "dpi",
];

impl Plan {
    /// All warnings.
    pub fn warnings(&self) -> Vec<Mistake> {
        let root = self.source.root();
        let mut found = Vec::new();
        for switch in &self.switches {
            let side = Side::new(self, switch);
            for (number, (name, chain)) in (0u16..).zip(&self.raw.chains) {
                if switch.chains.contains(&number) {
                    let spot = root.key("chains").key(name).key("functions");
                    side.functions(chain, spot, &mut found);
                    found.extend(self.chains[usize::from(number)].warnings(spot));
                }
            }
            for (at, rule) in self
                .rules
                .iter()
                .enumerate()
                .filter(|(_, rule)| switch.chains.contains(&rule.chain))
            {
                let spot = root.key("rules").index(at);
                if let Some(message) = side.unreachable(&rule.selector) {
                    found.push(spot.key("from").mistake(message));
                } else if let Some(message) = side.leak(at) {
                    found.push(spot.mistake(message));
                }
            }
        }
        found
    }
}

fn is_private(prefix: &Prefix) -> bool {
    Prefix::private().iter().any(|private| private.covers(prefix))
}

/// A port of a switch.
struct Port<'a> {
    /// The port's number at the switch.
    number: u8,
    name: &'a str,
    /// Networks to which routes lead by the port, its own first.
    networks: Vec<Prefix>,
    /// True if packets from any source may come in by the port.
    is_open: bool,
    /// True for each family, IPv4 and IPv6, of which the port has a private address.
    is_private: [bool; 2],
}

impl Port<'_> {
    fn is_private(&self, network: &Prefix) -> bool {
        self.is_private[usize::from(!network.is_ipv4())]
    }

    /// True if the port leads to the Internet, for the family of this network.
    fn is_upstream(&self, network: &Prefix) -> bool {
        let is_default = |other: &Prefix| other.is_empty() && other.is_ipv4() == network.is_ipv4();
        self.networks.iter().any(is_default) && !self.is_private(network)
    }
}

/// A switch with its ports and the names known to its chains.
struct Side<'a> {
    plan: &'a Plan,
    switch: &'a SwitchEntry,
    ports: Vec<Port<'a>>,
}

impl<'a> Side<'a> {
    fn new(plan: &'a Plan, switch: &'a SwitchEntry) -> Side<'a> {
        let port = |(number, at): (u8, &u8)| {
            let port = plan.ports.get(usize::from(*at))?;
            let addresses = &port.addresses;
            let connected =
                addresses.iter().filter_map(|(address, len)| Prefix::network_of(*address, *len));
            let routed =
                plan.routes.iter().filter(|route| route.port == *at).map(|route| route.prefix);
            let has_private = |is_v4: bool| {
                let mut own = addresses.iter().filter(|(address, _)| address.is_ipv4() == is_v4);
                own.any(|(address, _)| is_private(&Prefix::host(*address)))
            };
            Some(Port {
                number,
                name: &port.name,
                networks: connected.chain(routed).collect(),
                is_open: port.reverse_path == ReversePath::Off,
                is_private: [has_private(true), has_private(false)],
            })
        };
        let ports = (0u8..).zip(&switch.ports).filter_map(port).collect();
        Side { plan, switch, ports }
    }

    /// True if packets from a source in `from` may come in by the port.
    fn may_come(&self, from: &Prefix, port: &Port<'_>) -> bool {
        let leads = |network: &&Prefix| {
            let narrow = if network.covers(from) { *from } else { **network };
            let is_nearer = |other: &Prefix| {
                other.specificity() > network.specificity() && other.covers(&narrow)
            };
            // A port with a nearer route to all of it takes it from this one.
            let taken = |other: &Port<'_>| {
                other.networks.iter().any(|near| is_nearer(near) && !port.networks.contains(near))
            };
            let is_stray = network.is_empty() && is_private(from) && !port.is_private(from);
            network.overlaps(from) && !is_stray && !self.ports.iter().any(taken)
        };
        port.is_open || port.networks.iter().any(|network| leads(&network))
    }

    /// The reason why no packet that the selector matches ever comes in.
    fn unreachable(&self, selector: &Selector) -> Option<String> {
        let from = selector.from.as_ref()?;
        let ports = || self.ports.iter().filter(|port| selector.on.contains(port.number));
        if ports().any(|port| self.may_come(from, port)) {
            return None;
        }
        let whose = match selector.on.is_any() {
            true => "any port".to_owned(),
            false => format!("`{}`", self.switch.zones.name(selector.on)),
        };
        Some(format!(
            "nobody in {from} comes in by {whose}, because no route to them leads there: this matches nothing"
        ))
    }

    fn functions(&self, chain: &ChainConfig, spot: Spot<'_>, found: &mut Vec<Mistake>) {
        let mut is_plain = true;
        for (at, function) in chain.functions.iter().enumerate() {
            let Some((name, value)) = function.entries.first() else { continue };
            let below = spot.index(at).key(name);
            if LISTS.contains(&name.as_str()) {
                self.list(value, is_plain, below.key("rules"), found);
            }
            if name == "nat" {
                for (at, text) in texts(value, "inside").enumerate() {
                    let Ok(inside) = text.parse::<Prefix>() else { continue };
                    let is_near =
                        |network: &Prefix| !network.is_empty() && network.overlaps(&inside);
                    if !self
                        .ports
                        .iter()
                        .any(|port| port.is_open || port.networks.iter().any(is_near))
                    {
                        let message = format!(
                            "no port's network and no route meets {inside}: nobody there is translated"
                        );
                        found.push(below.key("inside").index(at).mistake(message));
                    }
                }
            }
            is_plain &= PLAIN.contains(&name.as_str());
        }
    }

    /// Checks rules of which the first match decides. `is_plain`: they see addresses as
    /// they come in.
    fn list(&self, value: &Value, is_plain: bool, spot: Spot<'_>, found: &mut Vec<Mistake>) {
        let selectors: Vec<Option<PacketSelector>> = rules(value, &self.switch.zones)
            .map(|rule| rule.map(|(_, selector)| selector))
            .collect();
        for (at, selector) in selectors.iter().enumerate() {
            let Some(selector) = selector else { continue };
            let covers = |earlier: &Option<PacketSelector>| {
                earlier.as_ref().is_some_and(|earlier| earlier.covers(selector))
            };
            if let Some(first) = selectors[..at].iter().position(covers) {
                let message = format!(
                    "rule {} comes first and matches all that this one does: this one never decides",
                    first + 1
                );
                found.push(spot.index(at).mistake(message));
            } else if let Some(message) = self.unreachable(&selector.flow).filter(|_| is_plain) {
                found.push(spot.index(at).mistake(message));
            }
        }
    }

    /// Private sources that leave for the Internet untranslated by this rule's chain.
    fn leak(&self, at: usize) -> Option<String> {
        let rule = &self.plan.rules[at];
        let (name, chain) = self.plan.raw.chains.iter().nth(usize::from(rule.chain))?;
        let has = |wanted: &str| {
            chain
                .functions
                .iter()
                .any(|function| function.entries.iter().any(|(name, _)| name == wanted))
        };
        // The chain translates, or drops.
        if has("nat") || !self.leads_out(rule.selector.to.as_ref()) {
            return None;
        }
        for port in self.ports.iter().filter(|port| rule.selector.on.contains(port.number)) {
            for network in port.networks.iter().filter(|network| is_private(network)) {
                let from = match rule.selector.from {
                    Some(from) if network.covers(&from) => from,
                    Some(from) if !from.covers(network) => continue,
                    _ => *network,
                };
                let Some(out) = self
                    .ports
                    .iter()
                    .find(|out| out.number != port.number && out.is_upstream(network))
                else {
                    continue;
                };
                let leaving = Selector {
                    from: Some(from),
                    on: Zone::of([port.number]),
                    ..rule.selector.clone()
                };
                let is_taken = self.plan.rules.iter().any(|other| {
                    self.switch.chains.contains(&other.chain)
                        && other.selector.specificity() > rule.selector.specificity()
                        && other.selector.covers(&leaving)
                });
                if !is_taken && self.pass(chain, &leaving) {
                    return Some(format!(
                        "sources in {from}, of port `{}`, leave untranslated by port `{}`: chain `{name}` has no `nat`, and no `firewall` that denies them",
                        port.name, out.name
                    ));
                }
            }
        }
        None
    }

    /// True if a default route leads to some of the destinations.
    fn leads_out(&self, to: Option<&Prefix>) -> bool {
        let is_near = |to: &Prefix| {
            let mut networks = self.ports.iter().flat_map(|port| &port.networks);
            networks.any(|network| !network.is_empty() && network.covers(to))
        };
        to.is_none_or(|to| !is_near(to))
    }

    /// True if the firewalls of a chain let some of these flows out.
    fn pass(&self, chain: &ChainConfig, leaving: &Selector) -> bool {
        let functions = chain.functions.iter().filter_map(|function| function.entries.first());
        functions.filter(|(name, _)| name == "firewall").all(|(_, value)| {
            for (word, selector) in rules(value, &self.switch.zones).flatten() {
                if word == "allow"
                    && selector.flow.overlaps(leaving)
                    && self.leads_out(selector.flow.to.as_ref())
                {
                    return true;
                }
                if word != "allow" && !selector.has_types() && selector.flow.covers(leaving) {
                    return false;
                }
            }
            value["default"] == "allow"
        })
    }
}

/// The texts of a list in a function's configuration.
fn texts<'v>(value: &'v Value, key: &str) -> impl Iterator<Item = &'v str> {
    value[key]
        .as_array()
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .map(|text| text.as_str().unwrap_or_default())
}

/// The rules of a function: each a word and a selector.
fn rules<'v>(
    value: &'v Value,
    zones: &Zones,
) -> impl Iterator<Item = Option<(&'v str, PacketSelector)>> {
    texts(value, "rules").map(|text| {
        let text = text.trim_start();
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        Some((word, PacketSelector::read(take_log(rest).1, zones).ok()?))
    })
}
