//! Several hosts that make one box.

use super::file::{Config, HostSettings};
use super::mistake::{Mistake, listed, suggestion};
use super::network;
use super::source::Spot;
use holdfast_node::address::MAX_HOSTS;
use holdfast_node::coordinator::{HostConfig, HostsConfig};
use std::collections::BTreeMap;

/// A host, in the order of their numbers: the coordinator's is the first, if it has a host of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEntry {
    /// Its name.
    pub name: String,
    /// The device of the network that joins the hosts.
    pub fabric: String,
    /// It serves the ports when it is its turn.
    pub has_ports: bool,
    /// Runtimes are started there.
    pub has_runtimes: bool,
    /// The devices of its ports, in the order of the ports' numbers.
    pub devices: Vec<String>,
    /// Where its control API listens, if it says so itself.
    pub control: Option<std::net::SocketAddr>,
}

/// The hosts of a configuration; none if there is only one, which needs no name.
pub(super) fn read(config: &Config, root: Spot<'_>) -> Result<Vec<HostEntry>, Mistake> {
    let hosts = &config.hosts;
    let spot = root.key("hosts");
    if hosts.is_empty() {
        return Ok(Vec::new());
    }
    if hosts.len() < 2 || hosts.len() > usize::from(MAX_HOSTS) {
        let count = hosts.len();
        return Err(spot.mistake(format!("`hosts` names 2 to {MAX_HOSTS} hosts, not {count}: a box on one host needs none")));
    }
    if config.state.is_none() {
        return Err(spot.mistake(
            "`hosts` needs `state`, a directory: each host keeps there what it must know when it is switched on again",
        ));
    }
    let coordinators: Vec<&String> = hosts.iter().filter(|(_, host)| host.coordinator).map(|(name, _)| name).collect();
    if let [first, second, ..] = coordinators.as_slice() {
        let message = format!("the coordinator lives on one host, and `{first}` has it already");
        return Err(spot.key(second).key("coordinator").mistake(message));
    }
    if let Some(name) = coordinators.first().filter(|_| config.etcd.is_some()) {
        return Err(spot.key(name).name("coordinator").mistake(
            "with `etcd` the coordinator is elected, and lives on any of the hosts: `coordinator` is for a box without `etcd`",
        ));
    }
    for (what, is_there) in
        [("serves", hosts.values().any(|host| host.serves)), ("runtimes", hosts.values().any(|host| host.runtimes))]
    {
        if !is_there {
            return Err(spot.mistake(format!("`{what}` is false for every host: somebody has to")));
        }
    }
    let entry = |(name, host): (&String, &HostSettings)| -> Result<HostEntry, Mistake> {
        let (named, spot) = (spot.name(name), spot.key(name));
        super::clusters::name(name).map_err(|_| {
            named.mistake("a host's name is 1 to 48 letters, digits, `-`, `_` or `.`, and does not begin with `.`")
        })?;
        for port in host.devices.keys() {
            if !config.ports.contains_key(port) {
                let (near, known) =
                    (suggestion(port, config.ports.keys().map(String::as_str)), listed(config.ports.keys().map(String::as_str)));
                return Err(spot.key("devices").name(port).mistake(format!("there is no port `{port}`: {known}{near}")));
            }
        }
        let devices: Vec<String> =
            config.ports.iter().map(|(port, settings)| host.devices.get(port).unwrap_or(&settings.device).clone()).collect();
        let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
        for (device, port) in devices.iter().zip(config.ports.keys()).filter(|_| host.serves) {
            network::device(device).map_err(|message| spot.key("devices").key(port).mistake(message))?;
            if let Some(other) = taken.insert(network::plain(device), port) {
                return Err(spot.key("devices").mistake(format!("ports `{other}` and `{port}` have one device, `{device}`")));
            }
        }
        network::device(&host.fabric).map_err(|message| spot.key("fabric").mistake(message))?;
        if let Some(port) = taken.get(network::plain(&host.fabric)) {
            return Err(spot
                .key("fabric")
                .mistake(format!("port `{port}` has this device: the hosts' network is one of its own")));
        }
        Ok(HostEntry {
            name: name.clone(),
            fabric: host.fabric.clone(),
            has_ports: host.serves,
            has_runtimes: host.runtimes,
            devices,
            control: super::control::own_address(host, spot)?,
        })
    };
    let mut entries = hosts.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    // The others keep their order.
    if let Some(at) = coordinators.first().and_then(|name| entries.iter().position(|entry| entry.name == **name)) {
        let first = entries.remove(at);
        entries.insert(0, first);
    }
    Ok(entries)
}

/// What the coordinator is told of the hosts.
pub(super) fn for_coordinator(hosts: &[HostEntry], patience: u64) -> HostsConfig {
    if hosts.is_empty() {
        return HostsConfig::one();
    }
    let host = |entry: &HostEntry| HostConfig { has_ports: entry.has_ports, has_runtimes: entry.has_runtimes };
    HostsConfig { hosts: hosts.iter().map(host).collect(), patience }
}

/// Which host is meant, counted from 0; the only one needs no name.
///
/// # Errors
/// What to write instead.
pub(super) fn find(hosts: &[HostEntry], wanted: Option<&str>) -> Result<u16, String> {
    let names = || hosts.iter().map(|host| host.name.as_str());
    match wanted {
        None if hosts.is_empty() => Ok(0),
        None => Err(format!("the box has several hosts: say which this one is, `--host NAME`; {}", listed(names()))),
        Some(wanted) if hosts.is_empty() => Err(format!("`--host {wanted}`: the configuration has no `hosts`")),
        Some(wanted) => names()
            .position(|name| name == wanted)
            .map(|at| at as u16)
            .ok_or_else(|| format!("there is no host `{wanted}`: {}{}", listed(names()), suggestion(wanted, names()))),
    }
}
