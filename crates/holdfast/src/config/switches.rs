//! Several switches, which divide the ports among them.

use super::mistake::{Mistake, listed, suggestion};
use super::raw::Config;
use super::source::Spot;
use super::{names, zones};
use holdfast_wire::NodeId;
use holdfast_wire::selector::Prefix;
use holdfast_wire::zone::Zones;

/// A switch. Switches are in the order of their numbers.
#[derive(Debug, Clone)]
pub struct SwitchEntry {
    /// The switch's name; none for a single switch.
    pub name: Option<String>,
    /// The numbers of its ports.
    pub ports: Vec<u8>,
    /// Names of its ports and of zones, as selectors of its chains use them.
    pub zones: Zones,
    /// The numbers of its chains.
    pub chains: Vec<u16>,
    /// The number of the host that serves it if it can.
    pub host: Option<u16>,
    /// Addresses that its chains own.
    pub owned: Vec<Prefix>,
    /// Addresses among `owned` for which the box answers ping.
    pub answers_ping: Vec<Prefix>,
}

/// Reads the switches: their ports and chains. Without `switches` there is one, with
/// everything.
pub(super) fn read(config: &Config, root: Spot<'_>) -> Result<Vec<SwitchEntry>, Mistake> {
    let switches = &config.switches;
    let spot = root.key("switches");
    let named = config
        .chains
        .iter()
        .filter_map(|(name, chain)| chain.switch.as_ref().map(|switch| (name, switch)));
    if switches.is_empty() {
        if let Some((chain, _)) = named.clone().next() {
            return Err(root
                .key("chains")
                .key(chain)
                .name("switch")
                .mistake("`switch` says which of several `switches` a chain belongs to, and there are none: leave it out"));
        }
        let ports: Vec<u8> = (0..config.ports.len().min(usize::from(u8::MAX)) as u8).collect();
        return Ok(vec![SwitchEntry {
            name: None,
            zones: zones::of_ports(config, &ports),
            ports,
            chains: (0..config.chains.len() as u16).collect(),
            host: None,
            owned: Vec::new(),
            answers_ping: Vec::new(),
        }]);
    }
    if config.hosts.is_empty() {
        return Err(root
            .name("switches")
            .mistake("`switches` are for several `hosts`, each of which serves some: a box on one host has one switch"));
    }
    if switches.len() < 2 || switches.len() > usize::from(NodeId::MAX_SWITCHES) {
        let count = switches.len();
        return Err(root.name("switches").mistake(format!(
            "`switches` names 2 to {} switches, not {count}: without it one has all ports",
            NodeId::MAX_SWITCHES
        )));
    }
    let mut whose: Vec<Option<&String>> = vec![None; config.ports.len()];
    for (name, switch) in switches {
        let spot = spot.key(name);
        names::check(name, "a switch's", root.key("switches").name(name))?;
        if switch.ports.is_empty() {
            return Err(root
                .key("switches")
                .name(name)
                .mistake(format!("switch `{name}` needs ports, like `ports: [lan, wan]`")));
        }
        for (at, port) in switch.ports.iter().enumerate() {
            let place = spot.key("ports").index(at);
            let names = || config.ports.keys().map(String::as_str);
            let Some(number) = names().position(|known| known == port) else {
                let near = suggestion(port, names());
                return Err(
                    place.mistake(format!("there is no port `{port}`: {}{near}", listed(names())))
                );
            };
            if let Some(other) = whose[number].replace(name) {
                return Err(place.mistake(format!(
                    "port `{port}` belongs to switch `{other}` already: each belongs to one"
                )));
            }
        }
    }
    if let Some((port, _)) = config.ports.keys().zip(&whose).find(|(_, whose)| whose.is_none()) {
        let text = format!(
            "port `{port}` belongs to no switch: each of `switches` says which `ports` are its"
        );
        return Err(root.key("ports").name(port).mistake(text));
    }
    let names = || switches.keys().map(String::as_str);
    for (name, chain) in &config.chains {
        let place = root.key("chains").key(name);
        match &chain.switch {
            None => {
                let text = format!(
                    "chain `{name}` says no switch, like `switch: {}`: its flows come and go by that one's ports",
                    names().next().unwrap_or_default()
                );
                return Err(root.key("chains").name(name).mistake(text));
            }
            Some(switch) if !switches.contains_key(switch) => {
                let near = suggestion(switch, names());
                return Err(place
                    .key("switch")
                    .mistake(format!("there is no switch `{switch}`: {}{near}", listed(names()))));
            }
            Some(_) => {}
        }
    }
    let entry = |name: &String| -> Result<SwitchEntry, Mistake> {
        let chains = config
            .chains
            .values()
            .zip(0u16..)
            .filter(|(chain, _)| chain.switch.as_ref() == Some(name));
        let chains: Vec<u16> = chains.map(|(_, number)| number).collect();
        if chains.is_empty() {
            let text = format!(
                "no chain says `switch: {name}`: nothing that comes by its ports would go anywhere"
            );
            return Err(root.key("switches").name(name).mistake(text));
        }
        let ports = whose
            .iter()
            .zip(0u8..)
            .filter(|(whose, _)| **whose == Some(name))
            .map(|(_, number)| number);
        let (ports, name): (Vec<u8>, _) = (ports.collect(), Some(name.clone()));
        let zones = zones::of_ports(config, &ports);
        Ok(SwitchEntry {
            name,
            zones,
            ports,
            chains,
            host: None,
            owned: Vec::new(),
            answers_ping: Vec::new(),
        })
    };
    switches.keys().map(entry).collect()
}

/// The switch of a chain.
pub(super) fn of_chain(switches: &[SwitchEntry], chain: u16) -> usize {
    switches.iter().position(|switch| switch.chains.contains(&chain)).unwrap_or(0)
}
