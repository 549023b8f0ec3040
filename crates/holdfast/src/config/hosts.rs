//! Several hosts that make one box.

use super::mistake::{Mistake, listed, suggestion};
use super::network::Port;
use super::raw::{Config, HostFabric, HostNetwork, HostSettings};
use super::source::Spot;
use super::switches::SwitchEntry;
use super::{control, devices, names};
use holdfast_wire::NodeId;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Least packet size of every network between hosts, bytes (RFC 8200, section 5).
const MIN_MTU: u16 = 1280;

/// A network between hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fabric {
    /// The device of an Ethernet network.
    Device(String),
    /// UDP, at this host's own address.
    Udp(SocketAddr),
}

/// A host. Hosts are in the order of their numbers: the coordinator's host, if it has
/// one, is the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEntry {
    /// Its name.
    pub name: String,
    /// The networks to the other hosts: one or two.
    pub fabric: Vec<Fabric>,
    /// True if the host can serve ports.
    pub has_ports: bool,
    /// True if runtimes are started there.
    pub has_runtimes: bool,
    /// The devices of its ports, in the order of the ports' numbers.
    pub devices: Vec<String>,
    /// The listening address of its control API, if it has one of its own.
    pub control: Option<std::net::SocketAddr>,
}

/// Reads the hosts; none if there is only one, which needs no name.
pub(super) fn read(
    config: &Config,
    ports: &[Port],
    root: Spot<'_>,
) -> Result<Vec<HostEntry>, Mistake> {
    let hosts = &config.hosts;
    let spot = root.key("hosts");
    if hosts.is_empty() {
        return Ok(Vec::new());
    }
    if hosts.len() < 2 || hosts.len() > usize::from(NodeId::MAX_HOSTS) {
        let count = hosts.len();
        return Err(spot.mistake(format!(
            "`hosts` names 2 to {} hosts, not {count}: a box on one host needs none",
            NodeId::MAX_HOSTS
        )));
    }
    if config.state.is_none() {
        return Err(spot.mistake(
            "`hosts` needs `state`, a directory: each host keeps there what it must know when it is switched on again",
        ));
    }
    let coordinators: Vec<&String> =
        hosts.iter().filter(|(_, host)| host.coordinator).map(|(name, _)| name).collect();
    if let [first, second, ..] = coordinators.as_slice() {
        let message = format!("the coordinator lives on one host, and `{first}` has it already");
        return Err(spot.key(second).key("coordinator").mistake(message));
    }
    if let Some(name) = coordinators.first().filter(|_| config.etcd.is_some()) {
        return Err(spot.key(name).name("coordinator").mistake(
            "with `etcd` the coordinator is elected, and lives on any of the hosts: `coordinator` is for a box without `etcd`",
        ));
    }
    if let Some(mtu) =
        config.fabric.as_ref().and_then(|fabric| fabric.mtu).filter(|mtu| *mtu < MIN_MTU)
    {
        let spot = root.key("fabric").key("mtu");
        return Err(
            spot.mistake(format!("an MTU of {mtu} is too small for the network between hosts: at least {MIN_MTU} is needed"))
        );
    }
    for (what, is_there) in [
        ("serves", hosts.values().any(|host| host.serves)),
        ("runtimes", hosts.values().any(|host| host.runtimes)),
    ] {
        if !is_there {
            return Err(spot.mistake(format!("`{what}` is false for every host: somebody has to")));
        }
    }
    let entry = |(name, host): (&String, &HostSettings)| -> Result<HostEntry, Mistake> {
        let (named, spot) = (spot.name(name), spot.key(name));
        names::check(name, "a host's", named)?;
        for port in host.devices.keys() {
            if !config.ports.contains_key(port) {
                let (near, known) = (
                    suggestion(port, config.ports.keys().map(String::as_str)),
                    listed(config.ports.keys().map(String::as_str)),
                );
                return Err(spot
                    .key("devices")
                    .name(port)
                    .mistake(format!("there is no port `{port}`: {known}{near}")));
            }
        }
        let devices: Vec<String> = config
            .ports
            .iter()
            .map(|(port, settings)| host.devices.get(port).unwrap_or(&settings.device).clone())
            .collect();
        let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
        let own = || ports.iter().zip(devices.iter().map(String::as_str));
        for (at, (port, device)) in own().enumerate().filter(|_| host.serves) {
            let name = &port.name;
            devices::name(device)
                .map_err(|message| spot.key("devices").key(name).mistake(message))?;
            let others = own().take(at).map(|(other, theirs)| other.on(theirs));
            devices::share(&port.on(device), others).map_err(|message| {
                spot.key("devices").mistake(format!("port `{name}` is on `{device}`: {message}"))
            })?;
            taken.entry(devices::plain(device)).or_insert(name);
        }
        let fabric: Vec<Fabric> = (0..)
            .zip(host.fabric.networks())
            .map(|(number, network)| {
                let place = network_spot(&host.fabric, spot, number);
                match network {
                    HostNetwork::Device(device) => {
                        devices::name(device).map_err(|message| place.mistake(message))?;
                        if let Some(port) = taken.get(devices::plain(device)) {
                            return Err(
                                place.mistake(format!("port `{port}` has this device: the hosts' network is one of its own"))
                            );
                        }
                        Ok(Fabric::Device(device.clone()))
                    }
                    HostNetwork::Udp(settings) => {
                        Ok(Fabric::Udp(address(&settings.udp).map_err(|message| place.key("udp").mistake(message))?))
                    }
                }
            })
            .collect::<Result<_, Mistake>>()?;
        if let [Fabric::Device(first), Fabric::Device(second)] = &fabric[..]
            && devices::plain(first) == devices::plain(second)
        {
            return Err(network_spot(&host.fabric, spot, 1)
                .mistake("the first network has this device: two networks are two"));
        }
        Ok(HostEntry {
            name: name.clone(),
            fabric,
            has_ports: host.serves,
            has_runtimes: host.runtimes,
            devices,
            control: control::own_address(host, spot)?,
        })
    };
    let mut entries = hosts.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    joined(config, &entries, spot)?;
    // The others keep their order.
    if let Some(at) =
        coordinators.first().and_then(|name| entries.iter().position(|entry| entry.name == **name))
    {
        let first = entries.remove(at);
        entries.insert(0, first);
    }
    Ok(entries)
}

/// Reads an address of a host, with a port.
fn address(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| {
        format!("`{text}` is no address with a port, like 10.9.0.1:7000 or [2001:db8::1]:7000")
    })?;
    let ip = address.ip();
    if ip.is_unspecified()
        || ip.is_multicast()
        || ip == std::net::IpAddr::V4(std::net::Ipv4Addr::BROADCAST)
    {
        return Err(format!(
            "`{ip}` is no address of a host: the others send there, and know by it who has sent"
        ));
    }
    if address.port() == 0 {
        return Err("the port is 0: the others could not send there".to_owned());
    }
    Ok(address)
}

/// The place of a host's network in the file.
fn network_spot<'s>(fabric: &HostFabric, host: Spot<'s>, number: usize) -> Spot<'s> {
    match fabric {
        HostFabric::One(_) => host.key("fabric"),
        HostFabric::Two(_) => host.key("fabric").index(number),
    }
}

/// Checks that all hosts have the same kind of network, which is closed to others or
/// keyed.
fn joined(config: &Config, entries: &[HostEntry], spot: Spot<'_>) -> Result<(), Mistake> {
    let mut taken: BTreeMap<SocketAddr, &str> = BTreeMap::new();
    let first = &entries[0];
    let has_key = config.fabric.as_ref().is_some_and(|fabric| fabric.key.is_some());
    for entry in entries {
        let host = spot.key(&entry.name);
        let count = |entry: &HostEntry| {
            if entry.fabric.len() == 1 { "one network" } else { "two networks" }
        };
        if entry.fabric.len() != first.fabric.len() {
            let (its, firsts) = (count(entry), count(first));
            let message = format!(
                "{firsts} join host `{}` with the others, and {its} this one: all are joined alike",
                first.name
            );
            return Err(host
                .key("fabric")
                .mistake(message.replace("one network join ", "one network joins ")));
        }
        if entry.fabric.len() > 1 && !has_key {
            return Err(host.key("fabric").mistake(
                "two networks need `fabric: { key: FILE }`: without a key anybody could say which of them leads somewhere; `holdfast keygen FILE` makes one",
            ));
        }
        for (number, (network, other)) in entry.fabric.iter().zip(&first.fabric).enumerate() {
            let place = network_spot(&config.hosts[&entry.name].fabric, host, number);
            match (network, other) {
                (Fabric::Device(_), Fabric::Device(_)) => continue,
                (Fabric::Device(_), Fabric::Udp(_)) => {
                    return Err(place.mistake(format!(
                        "host `{}` is joined by UDP, and this one by a device: all are joined alike",
                        first.name
                    )));
                }
                (Fabric::Udp(_), Fabric::Device(_)) => {
                    return Err(place.mistake(format!(
                        "host `{}` is joined by a device, and this one by UDP: all are joined alike",
                        first.name
                    )));
                }
                (Fabric::Udp(address), Fabric::Udp(other))
                    if other.is_ipv4() != address.is_ipv4() =>
                {
                    let message = format!(
                        "{address} and {other}, of host `{}`, are of different address families",
                        first.name
                    );
                    return Err(place.key("udp").mistake(message));
                }
                (Fabric::Udp(address), Fabric::Udp(_)) => {
                    if let Some(other) = taken.insert(*address, &entry.name) {
                        return Err(place
                            .key("udp")
                            .mistake(format!("host `{other}` has this address and port already")));
                    }
                }
            }
            if !has_key {
                return Err(place.key("udp").mistake(
                    "`udp` needs `fabric: { key: FILE }`: without a key the box would believe whoever can send datagrams; `holdfast keygen FILE` makes one",
                ));
            }
        }
    }
    Ok(())
}

/// Finds the hosts that are to serve the switches.
pub(super) fn place(
    config: &Config,
    hosts: &[HostEntry],
    switches: &mut [SwitchEntry],
    root: Spot<'_>,
) -> Result<(), Mistake> {
    for (entry, (name, switch)) in switches.iter_mut().zip(&config.switches) {
        let spot = root.key("switches").key(name).key("host");
        let names = || hosts.iter().filter(|host| host.has_ports).map(|host| host.name.as_str());
        entry.host = hosts
            .iter()
            .position(|host| host.name == switch.host && host.has_ports)
            .map(|at| at as u16);
        if entry.host.is_none() {
            let near = suggestion(&switch.host, names());
            let what = match config.hosts.contains_key(&switch.host) {
                true => {
                    format!("host `{}` does not serve ports: {} do", switch.host, listed(names()))
                }
                false => format!("there is no host `{}`: {}{near}", switch.host, listed(names())),
            };
            return Err(spot.mistake(what));
        }
    }
    Ok(())
}

/// The number of the named host, from 0; a single host needs no name.
///
/// # Errors
/// The text says what to write instead.
pub(super) fn find(hosts: &[HostEntry], wanted: Option<&str>) -> Result<u16, String> {
    let names = || hosts.iter().map(|host| host.name.as_str());
    match wanted {
        None if hosts.is_empty() => Ok(0),
        None => Err(format!(
            "the box has several hosts: say which this one is, `--host NAME`; {}",
            listed(names())
        )),
        Some(wanted) if hosts.is_empty() => {
            Err(format!("`--host {wanted}`: the configuration has no `hosts`"))
        }
        Some(wanted) => {
            names().position(|name| name == wanted).map(|at| at as u16).ok_or_else(|| {
                format!(
                    "there is no host `{wanted}`: {}{}",
                    listed(names()),
                    suggestion(wanted, names())
                )
            })
        }
    }
}
