//! Ports, addresses, gateways and routes, checked against each other.

use super::devices;
use super::mistake::{Mistake, listed, suggestion};
use super::names;
use super::raw::{Config, OneOrMany, PortConfig, ReversePathConfig, RouteConfig};
use super::source::Spot;
use super::switches::SwitchEntry;
use holdfast_node::edge::{EdgeRoute, ReversePath};
use holdfast_wire::ip_bytes;
use holdfast_wire::selector::{Prefix, SelectorError};
use holdfast_wire::vlan::Tags;
use std::net::IpAddr;

/// Maximum number of ports of a box.
const MAX_PORTS: usize = holdfast_wire::zone::MAX_PORTS as usize;
/// Least MTU of IPv4 (RFC 791) and IPv6 (RFC 8200, section 5).
const MIN_MTU: [u16; 2] = [68, 1280];

/// A port. Ports are in the order of their numbers.
#[derive(Debug, Clone)]
pub struct Port {
    /// The port's name.
    pub name: String,
    /// The port's device, with a driver before a colon if one is named.
    pub device: String,
    /// The tags of its frames.
    pub tags: Tags,
    /// VLANs besides the port's own into which functions may put packets that leave.
    pub flow_vlans: Vec<u16>,
    /// Addresses with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Largest IP packet, bytes, if less than the device's.
    pub mtu: Option<u16>,
    /// The sources that the port accepts.
    pub reverse_path: ReversePath,
}

impl Port {
    /// The port's place on a device, on this host or another one.
    pub(super) fn on<'a>(&'a self, device: &'a str) -> devices::Place<'a> {
        let Port { name, tags, flow_vlans, .. } = self;
        devices::Place { port: name, device, tags: *tags, flow_vlans }
    }
}

/// The networks that ports and routes form.
pub(super) struct Networks {
    /// In the order of their numbers.
    pub(super) ports: Vec<Port>,
    /// Gateways and routes.
    pub(super) routes: Vec<EdgeRoute>,
    connected: Vec<(Prefix, u8)>,
    /// Watched routers, with their ports.
    watched: Vec<(u8, IpAddr)>,
    /// The switch of each port.
    switches: Vec<usize>,
}

impl Networks {
    /// The box's own address in `prefix`, and the name and switch of its port.
    pub(super) fn own_address_in(&self, prefix: &Prefix) -> Option<(IpAddr, &str, usize)> {
        let own = self.ports.iter().zip(&self.switches);
        let mut all = own.flat_map(|(port, switch)| {
            port.addresses.iter().map(move |(address, _)| (*address, port.name.as_str(), *switch))
        });
        all.find(|(address, ..)| prefix.contains(&ip_bytes(*address)))
    }

    /// A network's own or broadcast address (RFC 1812, section 5.3.5) in `prefix`, with
    /// the name of the network's port.
    pub(super) fn broadcast_in(&self, prefix: &Prefix) -> Option<(&str, IpAddr)> {
        let ends = |network: &Prefix| {
            let IpAddr::V4(first) = network.first() else { return None };
            let last = u32::from(first) | (u32::MAX >> network.len());
            (1..=30).contains(&network.len()).then(|| [IpAddr::V4(first), IpAddr::V4(last.into())])
        };
        let mut all = self
            .connected
            .iter()
            .flat_map(|(network, port)| ends(network).into_iter().flatten().zip([*port; 2]));
        let (address, port) = all.find(|(address, _)| prefix.contains(&ip_bytes(*address)))?;
        Some((self.port_name(port), address))
    }

    /// A router in `prefix` that a gateway or route names, or that is watched, with the
    /// name of its port.
    pub(super) fn router_in(&self, prefix: &Prefix) -> Option<(&str, IpAddr)> {
        let named = self.routes.iter().filter_map(|route| Some((route.port, route.gateway?)));
        let mut all = named
            .chain(self.watched.iter().copied())
            .map(|(port, router)| (self.port_name(port), router));
        all.find(|(_, router)| prefix.contains(&ip_bytes(*router)))
    }

    /// Adds a watched router on the link of this port.
    pub(super) fn watch(
        &mut self,
        text: &str,
        port: u8,
        spot: Spot<'_>,
    ) -> Result<IpAddr, Mistake> {
        let address = router(text, spot, self)?;
        let is_gateway =
            self.routes.iter().any(|route| route.port == port && route.gateway == Some(address));
        let ports = if is_gateway || is_link_local(address) {
            on_link(address, port, spot, self)?;
            vec![port]
        } else {
            in_networks(address, spot, self, "")?
        };
        if ports.contains(&port) {
            if self.watched.contains(&(port, address)) {
                return Err(spot.mistake(format!(
                    "port `{}` watches {address} already",
                    self.port_name(port)
                )));
            }
            self.watched.push((port, address));
            return Ok(address);
        }
        let (mine, theirs) = (self.port_name(port), self.port_name(ports[0]));
        Err(spot
            .mistake(format!("{address} is in a network of port `{theirs}`, not of port `{mine}`")))
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.ports.iter().flat_map(|port| &port.addresses).any(|(own, _)| *own == address)
    }

    fn is_ports(&self, port: u8, address: IpAddr) -> bool {
        self.ports[usize::from(port)].addresses.iter().any(|(own, _)| *own == address)
    }

    /// True if both ports belong to one switch: a packet that comes by one may leave by
    /// the other.
    fn are_together(&self, one: u8, other: u8) -> bool {
        self.switches[usize::from(one)] == self.switches[usize::from(other)]
    }

    fn port_name(&self, port: u8) -> &str {
        &self.ports[port as usize].name
    }
}

pub(super) fn read(
    config: &Config,
    switches: &[SwitchEntry],
    root: Spot<'_>,
) -> Result<Networks, Mistake> {
    if config.ports.is_empty() || config.ports.len() > MAX_PORTS {
        return Err(root
            .name("ports")
            .mistake(format!("between 1 and {MAX_PORTS} ports are needed")));
    }
    let switch_of = |port: usize| {
        switches.iter().position(|switch| switch.ports.contains(&(port as u8))).unwrap_or(0)
    };
    let switches = (0..config.ports.len()).map(switch_of).collect();
    let mut networks = Networks {
        ports: Vec::new(),
        routes: Vec::new(),
        connected: Vec::new(),
        watched: Vec::new(),
        switches,
    };
    for (name, port) in &config.ports {
        let spot = root.key("ports").key(name);
        names::check_length(name, "a port's", root.key("ports").name(name))?;
        let device =
            devices::name(&port.device).map_err(|message| spot.key("device").mistake(message))?;
        let (tags, flow_vlans) = devices::vlan(port, spot)?;
        let read = Port {
            name: name.clone(),
            device: device.to_owned(),
            tags,
            flow_vlans,
            addresses: Vec::new(),
            mtu: port.mtu,
            reverse_path: match port.reverse_path {
                ReversePathConfig::Feasible => ReversePath::Feasible,
                ReversePathConfig::Off => ReversePath::Off,
            },
        };
        let others = networks.ports.iter().map(|other| other.on(&other.device));
        devices::share(&read.on(device), others).map_err(|message| {
            spot.key(if port.vlan.is_some() { "vlan" } else { "device" }).mistake(message)
        })?;
        networks.ports.push(read);
        addresses(port, root.key("ports"), name, &mut networks)?;
    }
    for (number, (name, port)) in config.ports.iter().enumerate() {
        for (at, text) in port.gateway.iter().flat_map(OneOrMany::all).enumerate() {
            gateway(
                text,
                number as u8,
                root.key("ports").key(name).key("gateway").index(at),
                &mut networks,
            )?;
        }
    }
    for (at, route) in config.routes.iter().enumerate() {
        let spot = root.key("routes").index(at);
        let to: Prefix = route.to.parse().map_err(|error: SelectorError| {
            spot.key("to").mistake_at(error.offset, error.message)
        })?;
        let (via, ports) = next_hop(route, spot, &networks)?;
        if via.is_ipv4() != to.is_ipv4() {
            return Err(spot.key("via").mistake(format!(
                "{to} and its next router {via} are of different address families"
            )));
        }
        let is_beside = |port: u8| ports.iter().any(|own| networks.are_together(*own, port));
        if let Some((network, port)) =
            networks.connected.iter().find(|(network, port)| *network == to && is_beside(*port))
        {
            let name = networks.port_name(*port);
            return Err(spot.key("to").mistake(format!(
                "{network} is connected to port `{name}` itself: it needs no route"
            )));
        }
        // A watched router that is not heard is replaced by the next one.
        let is_watched = |other: &EdgeRoute| {
            let watched =
                config.ports.values().nth(other.port.into()).map_or(&[][..], |port| &port.bfd);
            watched
                .iter()
                .any(|bfd| bfd.peer.parse().is_ok_and(|peer: IpAddr| other.gateway == Some(peer)))
        };
        let in_the_way = |other: &&EdgeRoute| {
            let is_same = other.gateway == Some(via) && ports.contains(&other.port);
            other.prefix == to && is_beside(other.port) && (is_same || !is_watched(other))
        };
        if let Some(other) = networks.routes.iter().find(in_the_way) {
            let what = if to.is_empty() {
                "there is a default route or gateway already"
            } else {
                "there is a route already"
            };
            let remedy = match other
                .gateway
                .filter(|gateway| *gateway != via || !ports.contains(&other.port))
            {
                Some(gateway) => {
                    format!(
                        "; a second one is used while the first one's router is dead, if `bfd` watches {gateway}"
                    )
                }
                None => String::new(),
            };
            return Err(spot.key("to").mistake(format!("{what} to {to}{remedy}")));
        }
        networks.routes.extend(ports.into_iter().map(|port| EdgeRoute {
            prefix: to,
            port,
            gateway: Some(via),
        }));
    }
    for ((name, port), number) in config.ports.iter().zip(0u8..) {
        let mut gateways = networks
            .routes
            .iter()
            .filter(|route| route.port == number)
            .filter_map(|route| route.gateway);
        let has_v6 = networks.ports[usize::from(number)]
            .addresses
            .iter()
            .any(|(address, _)| address.is_ipv6());
        mtu(
            port,
            has_v6 || gateways.any(|gateway| gateway.is_ipv6()),
            root.key("ports").key(name),
        )?;
    }
    Ok(networks)
}

fn addresses(
    port: &PortConfig,
    ports: Spot<'_>,
    name: &str,
    networks: &mut Networks,
) -> Result<(), Mistake> {
    let number = (networks.ports.len() - 1) as u8;
    let written = port.address.all();
    if written.is_empty() {
        return Err(ports
            .name(name)
            .mistake(format!("port `{name}` needs an address, like `address: 10.0.0.1/24`")));
    }
    for (at, text) in written.into_iter().enumerate() {
        let spot = ports.key(name).key("address").index(at);
        let (address, len) = interface_address(text)
            .map_err(|(offset, message)| spot.mistake_at(offset, message))?;
        let Some(network) = Prefix::network_of(address, len) else {
            return Err(spot.mistake("this is no network"));
        };
        let is_taken = if is_link_local(address) {
            networks.is_ports(number, address)
        } else {
            networks.is_own(address)
        };
        if is_taken {
            return Err(spot.mistake(format!("the box has the address {address} already")));
        }
        // The link-local network is on every link: it does not say by which port a
        // neighbour is reached.
        if is_link_local(address) {
            networks.ports[number as usize].addresses.push((address, len));
            continue;
        }
        // A port may have several addresses in one network; any other overlap leaves a
        // packet's way open.
        let other = networks.connected.iter().find(|(other, at)| {
            networks.are_together(*at, number)
                && other.overlaps(&network)
                && (*other != network || *at != number)
        });
        if let Some((other, at)) = other {
            let whose = networks.port_name(*at);
            return Err(
                spot.mistake(format!("the network of {text} overlaps {other} of port `{whose}`"))
            );
        }
        networks.connected.push((network, number));
        networks.ports[number as usize].addresses.push((address, len));
    }
    Ok(())
}

/// Reads an address with its prefix length, as an interface has it. An error has its
/// offset.
fn interface_address(text: &str) -> Result<(IpAddr, u8), (usize, String)> {
    let whole = |message: String| (0, message);
    let Some((address_text, len_text)) = text.split_once('/') else {
        let like = if text.contains(':') { "2001:db8::1/64" } else { "10.0.0.1/24" };
        return Err(whole(format!(
            "`{text}` has no prefix length: an address is written like {like}"
        )));
    };
    let address: IpAddr = address_text.parse().map_err(|_| {
        whole(format!("`{address_text}` is not an IP address: one is written like 10.0.0.1/24"))
    })?;
    let max = if address.is_ipv4() { 32 } else { 128 };
    let len: u8 = len_text.parse().ok().filter(|len| *len <= max).ok_or_else(|| {
        (
            address_text.len() + 1,
            format!("the prefix length of `{text}` is not between 0 and {max}"),
        )
    })?;
    is_host(address, len)
        .map_err(|why| whole(format!("`{text}` cannot be a port's address: {why}")))?;
    Ok((address, len))
}

/// Checks that one station can have this address in a network of this prefix length. An
/// error says why not.
fn is_host(address: IpAddr, len: u8) -> Result<(), &'static str> {
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
        return Err("it is unspecified, loopback or multicast");
    }
    let IpAddr::V4(v4) = address else { return Ok(()) };
    if v4.is_broadcast() || v4.octets()[0] == 0 {
        return Err("it is broadcast or nowhere");
    }
    // In a network of two addresses both are stations (RFC 3021).
    if (1..=30).contains(&len) {
        let host_bits = u32::MAX >> len;
        match u32::from(v4) & host_bits {
            0 => return Err("it is the network's own address"),
            bits if bits == host_bits => return Err("it is the network's broadcast address"),
            _ => {}
        }
    }
    Ok(())
}

fn mtu(port: &PortConfig, has_v6: bool, spot: Spot<'_>) -> Result<(), Mistake> {
    let least = MIN_MTU[usize::from(has_v6)];
    match port.mtu {
        Some(mtu) if mtu < least => {
            let why = if has_v6 { " with an IPv6 address or gateway" } else { "" };
            Err(spot
                .key("mtu")
                .mistake(format!("an MTU of {mtu} is too small: at least {least} is needed{why}")))
        }
        _ => Ok(()),
    }
}

/// True for an IPv6 address that is valid on its link only (RFC 4291, section 2.5.6).
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Reads the address of another router.
fn router(text: &str, spot: Spot<'_>, networks: &Networks) -> Result<IpAddr, Mistake> {
    let address: IpAddr =
        text.parse().map_err(|_| spot.mistake(format!("`{text}` is not an IP address")))?;
    if networks.is_own(address) && !is_link_local(address) {
        return Err(
            spot.mistake(format!("{address} is the box's own address, not another router's"))
        );
    }
    Ok(address)
}

/// The ports whose networks contain a router, one per switch. `remedy` is the advice if
/// none does.
fn in_networks(
    address: IpAddr,
    spot: Spot<'_>,
    networks: &Networks,
    remedy: &str,
) -> Result<Vec<u8>, Mistake> {
    let bytes = ip_bytes(address);
    let there: Vec<&(Prefix, u8)> =
        networks.connected.iter().filter(|(network, _)| network.contains(&bytes)).collect();
    let Some((network, _)) = there.first() else {
        let known = listed(
            networks
                .connected
                .iter()
                .map(|(network, _)| network.to_string())
                .collect::<Vec<_>>()
                .iter()
                .map(String::as_str),
        );
        return Err(spot.mistake(format!("no port's network contains {address}: {known}{remedy}")));
    };
    is_host(address, network.len())
        .map_err(|why| spot.mistake(format!("{address} cannot be a router: {why}")))?;
    let mut ports: Vec<u8> = Vec::new();
    for (_, port) in there {
        if !ports.iter().any(|other| networks.are_together(*other, *port)) {
            ports.push(*port);
        }
    }
    Ok(ports)
}

/// Checks a router that is declared to be on the link of this port.
fn on_link(address: IpAddr, port: u8, spot: Spot<'_>, networks: &Networks) -> Result<(), Mistake> {
    let name = networks.port_name(port);
    if networks.is_ports(port, address) {
        return Err(
            spot.mistake(format!("{address} is the box's own address, not another router's"))
        );
    }
    let bytes = ip_bytes(address);
    let there = || {
        networks
            .connected
            .iter()
            .filter(|(network, at)| network.contains(&bytes) && networks.are_together(*at, port))
    };
    let len = there().next().map_or(0, |(network, _)| network.len());
    is_host(address, len)
        .map_err(|why| spot.mistake(format!("{address} cannot be a router: {why}")))?;
    match there().next() {
        Some((_, theirs)) if there().all(|(_, at)| *at != port) => {
            let theirs = networks.port_name(*theirs);
            Err(spot.mistake(format!(
                "{address} is in a network of port `{theirs}`, not of port `{name}`"
            )))
        }
        // Over IPv6 the port has a link-local address.
        _ if address.is_ipv4()
            && !networks.ports[usize::from(port)]
                .addresses
                .iter()
                .any(|(own, _)| own.is_ipv4()) =>
        {
            Err(spot.mistake(format!(
                "port `{name}` has no IPv4 address from which it could ask for {address}"
            )))
        }
        _ => Ok(()),
    }
}

/// The next router of a route, with its port; or the ports, if several switches have its
/// network: each gets the route.
fn next_hop(
    route: &RouteConfig,
    spot: Spot<'_>,
    networks: &Networks,
) -> Result<(IpAddr, Vec<u8>), Mistake> {
    let via = spot.key("via");
    let address = router(&route.via, via, networks)?;
    let names = || networks.ports.iter().map(|port| port.name.as_str());
    if let Some(on) = &route.on {
        let Some(port) = names().position(|name| name == on) else {
            let near = suggestion(on, names());
            return Err(spot
                .key("on")
                .mistake(format!("there is no port `{on}`: {}{near}", listed(names()))));
        };
        on_link(address, port as u8, via, networks)?;
        return Ok((address, vec![port as u8]));
    }
    if is_link_local(address) {
        if networks.ports.len() > 1 {
            let text = format!(
                "{address} may be on any link: say with `on` on which port's, {}",
                listed(names())
            );
            return Err(via.mistake(text));
        }
        on_link(address, 0, via, networks)?;
        return Ok((address, vec![0]));
    }
    let remedy =
        "; if it is on the link of one of them all the same, say with `on` on which port's";
    Ok((address, in_networks(address, via, networks, remedy)?))
}

fn gateway(text: &str, port: u8, spot: Spot<'_>, networks: &mut Networks) -> Result<(), Mistake> {
    let gateway = router(text, spot, networks)?;
    if is_link_local(gateway) {
        on_link(gateway, port, spot, networks)?;
    } else {
        let any = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
        let mine = networks.port_name(port);
        let remedy = format!(
            "; if it is on the link of `{mine}` all the same, write a route in its place: `{{ to: \"{any}\", via: \"{gateway}\", on: {mine} }}`"
        );
        let ports = in_networks(gateway, spot, networks, &remedy)?;
        if !ports.contains(&port) {
            let theirs = networks.port_name(ports[0]);
            let text = format!(
                "the gateway {gateway} is in a network of port `{theirs}`, not of port `{mine}`"
            );
            return Err(spot.mistake(text));
        }
    }
    let any: IpAddr = if gateway.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let Some(prefix) = Prefix::new(any, 0) else { return Err(spot.mistake("no default route")) };
    if let Some(other) = networks
        .routes
        .iter()
        .find(|route| route.prefix == prefix && networks.are_together(route.port, port))
    {
        let family = if gateway.is_ipv4() { "IPv4" } else { "IPv6" };
        let whose = networks.port_name(other.port);
        return Err(spot.mistake(format!(
            "port `{whose}` has an {family} gateway already: use `routes` for all but one"
        )));
    }
    networks.routes.push(EdgeRoute { prefix, port, gateway: Some(gateway) });
    Ok(())
}
