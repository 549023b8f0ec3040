//! Service-chain rules: selectors in a table's form, each with its chain.

use super::clusters::Cluster;
use super::mistake::{Mistake, listed, suggestion, with_suggestion};
use super::raw::{Config, RuleConfig, Word};
use super::source::Spot;
use super::switches::{SwitchEntry, of_chain};
use holdfast_node::rules::{MAX_RANGES, MAX_RULES, Rule};
use holdfast_wire::selector::{Selector, SelectorError};
use holdfast_wire::zone::Zones;

/// Reads the rules. A rule applies at the switch of its chain only: rules of two switches
/// are independent.
pub(super) fn read(
    config: &Config,
    clusters: &[Cluster],
    switches: &[SwitchEntry],
    root: Spot<'_>,
) -> Result<Vec<Rule>, Mistake> {
    if config.rules.is_empty() {
        return Err(root
            .name("rules")
            .mistake("without a rule no packet has a chain: `- { chain: NAME }` catches all"));
    }
    if config.rules.len() > MAX_RULES {
        let count = config.rules.len();
        return Err(root
            .key("rules")
            .index(MAX_RULES)
            .mistake(format!("there are {count} rules, and {MAX_RULES} are possible")));
    }
    let mut rules: Vec<Rule> = Vec::new();
    for (at, rule) in config.rules.iter().enumerate() {
        let spot = root.key("rules").index(at);
        let names = || config.chains.keys().map(String::as_str);
        let Some(chain) = names().position(|name| name == rule.chain) else {
            let near = suggestion(&rule.chain, names());
            return Err(spot.key("chain").mistake(format!(
                "there is no chain `{}`: {}{near}",
                rule.chain,
                listed(names())
            )));
        };
        let chain = chain as u16;
        let zones = &switches[of_chain(switches, chain)].zones;
        let selector = selector(rule, zones, spot)?;
        let is_beside = |other: &Rule| of_chain(switches, other.chain) == of_chain(switches, chain);
        if let Some(first) =
            rules.iter().position(|other| is_beside(other) && other.selector == selector)
        {
            return Err(spot.mistake(format!(
                "rule {} matches exactly the same packets ({}): this one never would",
                first + 1,
                selector.display(zones)
            )));
        }
        // Neither rule is more specific, and packets that match both would go different
        // ways.
        let ties = |other: &Rule| {
            is_beside(other)
                && other.chain != chain
                && other.selector.specificity() == selector.specificity()
                && other.selector.overlaps(&selector)
        };
        if let Some(other) = rules.iter().position(ties) {
            return Err(spot.mistake(format!(
                "rule {} ({}) is as specific as this one ({}), and some packets match both: say more in one of them, or add a rule for what they have in common",
                other + 1,
                rules[other].selector.display(zones),
                selector.display(zones)
            )));
        }
        let cluster =
            clusters.iter().position(|cluster| cluster.chains.contains(&chain)).unwrap_or(0);
        rules.push(Rule { selector, chain, cluster: cluster as u16 });
    }
    let is_idle =
        |switch: &&SwitchEntry| !rules.iter().any(|rule| switch.chains.contains(&rule.chain));
    if let Some(name) = switches.iter().find(is_idle).and_then(|switch| switch.name.as_ref()) {
        let text = format!(
            "no rule names a chain of switch `{name}`: nothing that comes by its ports would go anywhere"
        );
        return Err(root.name("rules").mistake(text));
    }
    Ok(rules)
}

fn selector(rule: &RuleConfig, zones: &Zones, spot: Spot<'_>) -> Result<Selector, Mistake> {
    let wrong =
        |key: &str, error: SelectorError| spot.key(key).mistake_at(error.offset, error.message);
    let mut selector = Selector::any();
    if let Some(Word(text)) = &rule.proto {
        let near = || suggestion(text, ["any", "tcp", "udp", "icmp"]);
        selector.protocol = text.parse().map_err(|error: SelectorError| {
            spot.key("proto").mistake(format!("{}{}", error.message, near()))
        })?;
    }
    if let Some(text) = &rule.on {
        let near = |error: SelectorError| SelectorError {
            message: with_suggestion(&error.message),
            ..error
        };
        selector.on = zones.read(text).map_err(|error| wrong("on", near(error)))?;
    }
    if let Some(text) = &rule.from {
        selector.from = Some(text.parse().map_err(|error| wrong("from", error))?);
    }
    if let Some(text) = &rule.to {
        selector.to = Some(text.parse().map_err(|error| wrong("to", error))?);
    }
    if let Some(Word(text)) = &rule.ports {
        // Both spellings are valid; the mistake is shown at the one that is used.
        let written = spot.key("ports").key("port");
        selector.to_ports = text
            .parse()
            .map_err(|error: SelectorError| written.mistake_at(error.offset, error.message))?;
        if selector.to_ports.ranges().len() > MAX_RANGES {
            return Err(written.mistake(format!(
                "a rule names at most {MAX_RANGES} ports or ranges of ports: make it several rules"
            )));
        }
        // The selector's parser knows which protocols have no ports, and reports it.
        let whole = format!("{} from any to any port {}", selector.protocol, selector.to_ports);
        whole.parse::<Selector>().map_err(|error| written.mistake(error.message))?;
    }
    if let (Some(from), Some(to)) = (&selector.from, &selector.to)
        && from.is_ipv4() != to.is_ipv4()
    {
        return Err(spot.key("to").mistake(format!(
            "{from} and {to} are of different address families: nothing would match"
        )));
    }
    Ok(selector)
}
