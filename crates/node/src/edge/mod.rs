//! The edge: the router between the ports and the switch.
//!
//! Theory of operation. A frame from a port is checked: sender, receiver, wholeness, and
//! whether its source is behind that port. A packet for the box itself is answered (ARP,
//! neighbour discovery, ping, BFD; other senders are told that no process listens). All
//! others go to a chain. A packet that a chain has released is routed by its present
//! destination, loses a hop, gets its neighbour's address and leaves; in fragments if it
//! is longer than the port allows and IPv4 lets it be cut. Errors about packets are ICMP
//! messages. An error about a packet that came in goes back by its port. An error about a
//! packet that a chain has changed comes in again at the port where the packet should
//! have left, so that the chain translates it back; it gets the address of the port by
//! which it leaves.
//!
//! In: frames from ports, released packets, the time. Out: [`EdgeOut`]. Never: a flow's
//! state; an answer to broadcast; a frame that is not accounted for.

mod addresses;
mod egress;
mod extension;
pub mod fragment;
mod icmp;
mod liveness;
mod local;
mod neighbors;
mod reassembly;
mod refused;
mod resolution;
mod routes;
#[cfg(test)]
mod tests;

use crate::bfd;
use crate::rate::TokenBucket;
use addresses::{is_link_local, is_multicast, is_nowhere};
use core::num::NonZeroU64;
use fragment::{FragmentLimits, Fragmented, Fragments};
use holdfast_protection::Released;
use holdfast_wire::build::link_local;
use holdfast_wire::header::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, Mac};
use holdfast_wire::selector::Prefix;
use holdfast_wire::{
    DropCounters, DropReason, FlowKey, Network, Packet, PacketPool, checksum, ip_bytes, map_v4,
    unmap_v4,
};
use icmp::Problem;
use liveness::Watch;
use neighbors::Neighbors;
use reassembly::Reassembly;
use routes::Routes;
use std::net::IpAddr;

pub use liveness::Liveness;

/// A port as the edge knows it.
#[derive(Debug, Clone)]
pub struct EdgePort {
    /// Its MAC address.
    pub mac: Mac,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Addresses of the box there, with prefix lengths. A port that speaks IPv6 and has
    /// no link-local address among them gets one that is made of `mac`.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The reverse-path check: packets are forwarded and answered only if a route to
    /// their source leads by this port. See [`ReversePath`].
    pub reverse_path: ReversePath,
    /// VLANs besides the port's own into which functions may put packets that leave.
    pub flow_vlans: Vec<u16>,
}

/// The reverse-path check of a port: which source addresses it accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReversePath {
    /// Sources to which a route leads by this port: the routes that the box would take to
    /// the source, with all others to the same prefix, in use or standing by (feasible
    /// path reverse path forwarding, RFC 3704, section 2.3).
    #[default]
    Feasible,
    /// All sources that a host may have, besides the box's own and those that its chains
    /// use.
    Off,
}

/// A route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EdgeRoute {
    /// Destinations of the route.
    pub prefix: Prefix,
    /// The port by which they are reached.
    pub port: u8,
    /// The next router, on the port's link whether in one of its networks or not. `None`
    /// if destinations are reached directly.
    pub gateway: Option<IpAddr>,
}

/// Counters of a port's packets here, besides those that were dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortCounts {
    /// Frames that came in for the box itself and that it has used: ARP, neighbour
    /// discovery, ping, BFD.
    pub consumed: u64,
    /// Packets that went out to a neighbour: those of chains, and those that were
    /// originated. A packet that was cut into fragments counts once.
    pub forwarded: u64,
    /// Packets of the box itself that were forwarded, or dropped: errors about packets of
    /// chains, BFD, and answers that could not be sent.
    pub originated: u64,
}

/// Configuration of an edge.
#[derive(Debug, Clone)]
pub struct EdgeConfig {
    /// The ports, in order of their numbers.
    pub ports: Vec<EdgePort>,
    /// Routes besides those to the ports' own networks.
    pub routes: Vec<EdgeRoute>,
    /// Addresses that the box answers for on every port because its chains use them: NAT
    /// pools, virtual addresses.
    pub owned: Vec<Prefix>,
    /// Addresses among `owned` at which the box answers ping itself.
    pub answers_ping: Vec<Prefix>,
    /// Routers to have BFD sessions with, each in a network of its port; at most
    /// [`bfd::MAX_SESSIONS`].
    pub bfd: Vec<bfd::Peer>,
    /// A random number: another one at every start, and known to nobody else.
    pub seed: u64,
}

/// Output of the edge.
#[derive(Debug, Default)]
pub struct EdgeOut {
    /// Frames to send, by port.
    pub transmit: Vec<(u8, Released<Packet>)>,
    /// Packets that come in again by a port, through [`Edge::handle_reinjected`]: errors
    /// about packets that a chain has changed, and fragments that waited for the first
    /// one.
    pub reinject: Vec<(u8, Packet)>,
    /// Changes of sessions with routers.
    pub liveness: Vec<Liveness>,
    /// Notes for the next incarnation of this host, each with its session's place, to be
    /// kept in order before anything is sent.
    pub notes: Vec<(u16, bfd::Memory)>,
}

/// Rate of ICMP errors, echo replies, resets, and answers about packets that chains have
/// refused: so many of each per second, and so many at once.
pub(crate) const ICMP_PER_SECOND: NonZeroU64 = NonZeroU64::new(1000).unwrap();

/// Shortest time between two announcements of an address that another station claims, ns
/// (RFC 5227, sections 1.1 and 2.4).
const DEFEND_INTERVAL: u64 = 10_000_000_000;

/// An address of the box.
struct Own {
    port: u8,
    address: [u8; 16],
    network: Prefix,
    /// The network's first and last addresses, which belong to all (RFC 1812, section
    /// 5.3.5). `None` for IPv6 and for links of two.
    broadcast: Option<[[u8; 16]; 2]>,
}

impl Own {
    fn new(port: u8, address: IpAddr, len: u8) -> Option<Own> {
        let network = Prefix::network_of(address, len)?;
        let broadcast = match network.first() {
            IpAddr::V4(first) if len < 31 => {
                let last = u32::from(first) | (u32::MAX >> len);
                Some([map_v4(first.octets()), map_v4(last.to_be_bytes())])
            }
            _ => None,
        };
        Some(Own { port, address: ip_bytes(address), network, broadcast })
    }

    /// All addresses of a port, with the link-local one (RFC 4862, section 5.3) last.
    fn of_port(at: u8, port: &EdgePort, routes: &[EdgeRoute]) -> Vec<Own> {
        let mut own: Vec<Own> = port
            .addresses
            .iter()
            .filter_map(|&(address, len)| Own::new(at, address, len))
            .collect();
        let is_v6 = |address: &[u8; 16]| unmap_v4(address).is_none();
        let mut gateways =
            routes.iter().filter(|route| route.port == at).filter_map(|route| route.gateway);
        let speaks_v6 =
            own.iter().any(|own| is_v6(&own.address)) || gateways.any(|gateway| gateway.is_ipv6());
        if speaks_v6 && !own.iter().any(|own| is_v6(&own.address) && is_link_local(&own.address)) {
            own.extend(Own::new(at, link_local(&port.mac).into(), 64));
        }
        own
    }
}

/// See the module.
pub struct Edge {
    config: EdgeConfig,
    own: Vec<Own>,
    routes: Routes,
    neighbors: Neighbors,
    fragments: Fragments,
    reassembly: Reassembly,
    watch: Watch,
    drops: DropCounters,
    counts: Vec<PortCounts>,
    errors: TokenBucket,
    echoes: TokenBucket,
    resets: TokenBucket,
    refusals: TokenBucket,
    /// When an own address was last defended against another station, by port.
    defences: Vec<TokenBucket>,
}

impl Edge {
    /// An edge that knows no neighbour yet.
    ///
    /// # Panics
    /// If a route leads to a port that does not exist, or there are too many routers to
    /// watch.
    pub fn new(mut config: EdgeConfig) -> Edge {
        assert!(
            config.ports.len() <= usize::from(u8::MAX)
                && config.bfd.len() <= bfd::MAX_SESSIONS
                && config.routes.iter().all(|route| usize::from(route.port) < config.ports.len())
        );
        let own: Vec<Own> = (0u8..)
            .zip(&config.ports)
            .flat_map(|(port, entry)| Own::of_port(port, entry, &config.routes))
            .collect();
        // No route leads to a link-local address: each link has its own.
        let networks = own
            .iter()
            .filter(|own| !is_link_local(&own.address))
            .map(|own| (own.network, own.port));
        let beside = config.routes.iter().filter_map(|route| {
            let gateway = ip_bytes(route.gateway?);
            let is_known =
                own.iter().any(|own| own.port == route.port && own.network.contains(&gateway));
            (!is_known && !is_link_local(&gateway))
                .then_some((Prefix::host(route.gateway?), route.port))
        });
        let connected =
            networks.chain(beside).map(|(prefix, port)| EdgeRoute { prefix, port, gateway: None });
        let routes: Vec<EdgeRoute> = config.routes.iter().copied().chain(connected).collect();
        // Another seed on every box, the same one on every start.
        let macs: Vec<u8> = config.ports.iter().flat_map(|port| port.mac).collect();
        let seed = holdfast_wire::fnv1a(&macs);
        Edge {
            own,
            routes: Routes::new(&routes),
            neighbors: Neighbors::new(),
            fragments: Fragments::new(FragmentLimits::default(), seed),
            reassembly: Reassembly::new(),
            watch: Watch::new(core::mem::take(&mut config.bfd), config.seed),
            drops: DropCounters::default(),
            counts: vec![PortCounts::default(); config.ports.len()],
            errors: TokenBucket::per_second(ICMP_PER_SECOND),
            echoes: TokenBucket::per_second(ICMP_PER_SECOND),
            resets: TokenBucket::per_second(ICMP_PER_SECOND),
            refusals: TokenBucket::per_second(ICMP_PER_SECOND),
            defences: config.ports.iter().map(|_| TokenBucket::every(DEFEND_INTERVAL)).collect(),
            config,
        }
    }

    /// Drops by reason.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// Counters of a port's packets; zero for a port that does not exist.
    pub fn counts(&self, port: u8) -> PortCounts {
        self.counts.get(usize::from(port)).copied().unwrap_or_default()
    }

    /// Counts a packet that the box itself has made.
    fn originate(&mut self, port: u8) {
        if let Some(counts) = self.counts.get_mut(usize::from(port)) {
            counts.originated += 1;
        }
    }

    /// Counts frames of a port that the box has used for itself.
    fn consume(&mut self, port: u8, frames: u64) {
        if let Some(counts) = self.counts.get_mut(usize::from(port)) {
            counts.consumed += frames;
        }
    }

    /// Sets a port's MTU, in bytes of an IP packet. The MTU holds for packets that wait
    /// inside, too. A port that does not exist is ignored.
    pub fn set_mtu(&mut self, port: u8, mtu: u16) {
        if let Some(port) = self.config.ports.get_mut(usize::from(port)) {
            port.mtu = mtu;
        }
    }

    /// Packets inside: waiting for a neighbour's address, or for other fragments.
    pub fn held(&self) -> usize {
        self.neighbors.held() + self.fragments.held() + self.reassembly.held()
    }

    fn drop(&mut self, packet: Packet, reason: DropReason, pool: &mut dyn PacketPool) {
        self.drops.count(reason);
        pool.put(packet);
    }

    /// True for an address that the chains use.
    fn is_owned(&self, address: &[u8; 16]) -> bool {
        self.config.owned.iter().any(|prefix| prefix.contains(address))
    }

    /// True for an address of the box itself, as seen from this port: a link-local one is
    /// another station's on another link.
    fn is_own(&self, port: u8, address: &[u8; 16]) -> bool {
        self.own
            .iter()
            .any(|own| own.address == *address && (own.port == port || !is_link_local(address)))
    }

    /// True for an address of this very port.
    fn is_ports(&self, port: u8, address: &[u8; 16]) -> bool {
        self.own.iter().any(|own| own.port == port && own.address == *address)
    }

    fn owns(&self, port: u8, address: &[u8; 16]) -> bool {
        self.is_own(port, address) || self.is_owned(address)
    }

    /// True if a neighbour at this port that asks for the address is told that it is
    /// here.
    fn answers_for(&self, port: u8, address: &[u8; 16]) -> bool {
        self.is_ports(port, address) || self.is_owned(address)
    }

    fn is_broadcast(&self, address: &[u8; 16]) -> bool {
        self.own.iter().any(|own| own.broadcast.is_some_and(|both| both.contains(address)))
    }

    /// True if a host may have the address, or it is the unspecified one.
    fn is_host_or_unset(&self, address: &[u8; 16]) -> bool {
        let is_unset = *address == [0; 16] || unmap_v4(address) == Some([0; 4]);
        is_unset || !(is_multicast(address) || is_nowhere(address) || self.is_broadcast(address))
    }

    /// True if the address belongs on the port's link: in a network of the port,
    /// link-local, or a router that a route names.
    fn is_on_link(&self, port: u8, address: &[u8; 16]) -> bool {
        is_link_local(address)
            || self.own.iter().any(|own| own.port == port && own.network.contains(address))
            || self.config.routes.iter().any(|route| {
                route.port == port && route.gateway.is_some_and(|ip| ip_bytes(ip) == *address)
            })
    }

    /// The box's address on a port towards another address: in the same network if there
    /// is one, in any case of the same family.
    fn own_address(&self, port: u8, towards: &[u8; 16]) -> Option<[u8; 16]> {
        let is_v4 = unmap_v4(towards).is_some();
        let candidates = self
            .own
            .iter()
            .filter(|own| own.port == port && unmap_v4(&own.address).is_some() == is_v4);
        let best = candidates
            .min_by_key(|own| (!own.network.contains(towards), is_link_local(&own.address)))?;
        Some(best.address)
    }

    /// The source address of an ICMP error that leaves by this port. The address that the
    /// packet was for is taken if it is one of the box (RFC 4443, section 2.2 (a)), over
    /// IPv4 one of this port; otherwise an address of the port.
    fn error_source(
        &self,
        port: u8,
        (source, destination): (&[u8; 16], &[u8; 16]),
    ) -> Option<[u8; 16]> {
        let is_asked = self.is_ports(port, destination)
            || (unmap_v4(source).is_none() && self.is_own(port, destination));
        if is_asked { Some(*destination) } else { self.leaving_address(port, source) }
    }

    /// The address of the port by which an error leaves (RFC 1812, section 4.3.2.4). If
    /// the receiver could know none of that port's, another one of the box.
    fn leaving_address(&self, port: u8, towards: &[u8; 16]) -> Option<[u8; 16]> {
        let is_v4 = unmap_v4(towards).is_some();
        let is_known =
            |address: &[u8; 16]| is_v4 || !is_link_local(address) || is_link_local(towards);
        let mut others = self
            .own
            .iter()
            .map(|own| own.address)
            .filter(|address| unmap_v4(address).is_some() == is_v4);
        let here = self.own_address(port, towards).filter(is_known);
        here.or_else(|| others.find(|address| !is_link_local(address)))
    }

    /// Handles a frame from a port. Gives a frame that is for a chain back with its
    /// flow's key; all others are answered, held or dropped.
    pub fn handle_ingress(
        &mut self,
        port: u8,
        mut packet: Packet,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) -> Option<(FlowKey, Packet)> {
        let Some(own_mac) = self.config.ports.get(port as usize).map(|port| port.mac) else {
            self.drop(packet, DropReason::PortDown, pool);
            return None;
        };
        packet.meta = Default::default();
        packet.meta.ingress = port;
        take_off_priority_tag(&mut packet);
        if let Err(malformed) = packet.parse() {
            self.drop(packet, malformed.into(), pool);
            return None;
        }
        let bytes = packet.bytes();
        let is_unicast = bytes[0] & 1 == 0;
        let reason = if is_unicast && bytes[..6] != own_mac {
            Some(DropReason::NotForUs)
        } else if bytes[6] & 1 != 0 || bytes[6..12] == own_mac {
            // The source is a group, or this port's own.
            Some(DropReason::BadSource)
        } else if packet.layers.vlan_tags > 0 {
            Some(DropReason::UnknownVlan)
        } else {
            None
        };
        if let Some(reason) = reason {
            self.drop(packet, reason, pool);
            return None;
        }
        match packet.layers.ethertype {
            ETHERTYPE_ARP => {
                self.handle_arp(port, packet, now, out, pool);
                None
            }
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => {
                self.handle_ip(port, packet, is_unicast, now, out, pool)
            }
            _ => {
                self.drop(packet, DropReason::UnknownEthertype, pool);
                None
            }
        }
    }

    fn handle_ip(
        &mut self,
        port: u8,
        packet: Packet,
        is_unicast: bool,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) -> Option<(FlowKey, Packet)> {
        let Some((source, destination)) = addresses(&packet) else {
            self.drop(packet, DropReason::Truncated, pool);
            return None;
        };
        // An IPv4-mapped address in an IPv6 header would pass for the IPv4 host (RFC
        // 4942, section 2.2).
        if packet.layers.network == Network::V6
            && (unmap_v4(&source).is_some() || unmap_v4(&destination).is_some())
        {
            self.drop(packet, DropReason::BadSource, pool);
            return None;
        }
        if self.is_neighbor_discovery(&packet) {
            self.handle_nd(port, packet, now, out, pool);
            return None;
        }
        if let Some(reason) = self.refusal(port, &packet, (&source, &destination), is_unicast) {
            self.drop(packet, reason, pool);
            return None;
        }
        if self.is_bfd(port, &packet, &source, &destination) {
            self.handle_bfd(port, packet, now, out, pool);
            return None;
        }
        if self.is_local(port, &packet, &destination) {
            self.handle_local(port, packet, now, out, pool);
            return None;
        }
        if is_link_local(&source) {
            self.drop(packet, DropReason::LinkLocal, pool);
            return None;
        }
        if packet.ttl().is_some_and(|ttl| ttl <= 1) {
            self.drops.count(DropReason::TtlExceeded);
            self.answer_problem(port, packet, Problem::TimeExceeded, now, out, pool);
            return None;
        }
        if packet.layers.fragment {
            return self.handle_fragment(port, packet, now, out, pool);
        }
        match FlowKey::of(&packet) {
            Some(key) => Some((key, packet)),
            None => {
                self.drop(packet, DropReason::StateInvalid, pool);
                None
            }
        }
    }

    /// Finds a fragment's flow. The fragments that waited for it come in again behind it.
    fn handle_fragment(
        &mut self,
        port: u8,
        packet: Packet,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) -> Option<(FlowKey, Packet)> {
        let fragmented = self.fragments.handle(packet, now);
        while let Some((_, waited)) = self.fragments.poll_ready() {
            out.reinject.push((port, waited));
        }
        self.drop_fragments(pool);
        match fragmented {
            Fragmented::Ready(key, packet) => Some((key, packet)),
            Fragmented::Held => None,
            Fragmented::Dropped(packet, reason) => {
                self.drop(packet, reason, pool);
                None
            }
        }
    }

    fn drop_fragments(&mut self, pool: &mut dyn PacketPool) {
        while let Some((packet, reason)) =
            self.fragments.poll_dropped().or_else(|| self.reassembly.poll_dropped())
        {
            self.drop(packet, reason, pool);
        }
    }

    /// The reason not to forward a packet, whatever the chains say.
    fn refusal(
        &self,
        port: u8,
        packet: &Packet,
        (source, destination): (&[u8; 16], &[u8; 16]),
        is_unicast: bool,
    ) -> Option<DropReason> {
        if let Some(header) = packet.ipv4() {
            let len = (header.version_ihl & 0x0f) as usize * 4;
            let l3 = packet.layers.l3 as usize;
            if checksum::checksum(&packet.bytes()[l3..l3 + len]) != 0 {
                return Some(DropReason::BadChecksum);
            }
        }
        // A routing header to the box itself is answered by a parameter problem (RFC
        // 5095, section 3).
        if packet.layers.source_route
            && !(packet.layers.network == Network::V6 && self.is_local(port, packet, destination))
        {
            return Some(DropReason::SourceRoute);
        }
        if !is_unicast || is_multicast(destination) || self.is_broadcast(destination) {
            return Some(DropReason::Multicast);
        }
        let is_nobodys = is_multicast(source) || is_nowhere(source) || self.is_broadcast(source);
        if is_nobodys || source == destination || self.is_own(port, source) {
            return Some(DropReason::BadSource);
        }
        if is_nowhere(destination) {
            return Some(DropReason::NoRouteToHost);
        }
        // RFC 4291, section 2.5.6: neither is forwarded. The box itself may be asked on
        // the link.
        if (is_link_local(destination) || is_link_local(source)) && !self.is_own(port, destination)
        {
            return Some(DropReason::LinkLocal);
        }
        self.is_spoofed(port, source).then_some(DropReason::SpoofedSource)
    }

    /// True if no station behind this port has the address.
    fn is_spoofed(&self, port: u8, source: &[u8; 16]) -> bool {
        if self.is_owned(source) {
            return true;
        }
        let is_checked = self.config.ports[usize::from(port)].reverse_path == ReversePath::Feasible;
        // A link-local address is on every link.
        is_checked
            && !is_link_local(source)
            && !self.routes.lead_by(source, port, |route| self.watch.may_use(route))
    }

    /// Makes the packet an error about itself, as far as that is allowed; otherwise frees
    /// its buffer.
    fn make_error(
        &mut self,
        port: u8,
        mut packet: Packet,
        problem: Problem,
        now: u64,
        pool: &mut dyn PacketPool,
    ) -> Option<Packet> {
        let from = addresses(&packet)
            .and_then(|(source, destination)| self.error_source(port, (&source, &destination)));
        if let (Some(from), Some(mtu)) =
            (from, self.config.ports.get(usize::from(port)).map(|port| port.mtu))
            && icmp::may_report(&packet)
            && self.errors.admit(now)
            && icmp::report(&mut packet, problem, &from, mtu)
        {
            return Some(packet);
        }
        pool.put(packet);
        None
    }

    /// Tells the sender of a packet that came in by `port` what is wrong with it.
    /// Consumes the packet.
    fn answer_problem(
        &mut self,
        port: u8,
        packet: Packet,
        problem: Problem,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        if let Some(packet) = self.make_error(port, packet, problem, now, pool) {
            self.send_back(port, Released::stateless(packet), out, pool);
        }
    }

    /// Sends a packet of the box's own by the port that its cause came from, to the
    /// station that sent the cause.
    fn send_back(
        &mut self,
        port: u8,
        packet: Released<Packet>,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        let before = out.transmit.len();
        self.address_back(port, packet, out, pool);
        // A dropped packet is in a drop counter, but did not come by a port: it counts as
        // originated.
        if out.transmit.len() == before {
            self.originate(port);
        }
    }

    fn address_back(
        &mut self,
        port: u8,
        packet: Released<Packet>,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        let Some(mac) = self.config.ports.get(port as usize).map(|port| port.mac) else {
            return self.drop(packet.into_inner(), DropReason::PortDown, pool);
        };
        let addressed = packet.remade(|packet| {
            let bytes = packet.bytes_mut();
            bytes.copy_within(6..12, 0);
            bytes[6..12].copy_from_slice(&mac);
            // An error has other layers than the packet that it was made of.
            packet.parse().is_ok()
        });
        match addressed {
            Ok(packet) => {
                if let Err(packet) = self.push_cut(port, packet, out, pool) {
                    self.drop(packet.into_inner(), DropReason::FrameTooLarge, pool);
                }
            }
            Err(packet) => self.drop(packet, DropReason::Malformed, pool),
        }
    }
}

/// A frame with an 802.1Q tag of VLAN 0 has a priority and belongs to no VLAN (IEEE
/// 802.1Q, section 6.9): every station takes it. Routing loses the tag as it loses the
/// rest of the link's header; functions can read the priority that it had.
fn take_off_priority_tag(packet: &mut Packet) {
    let Some(&[first, second, control, id]) = packet.bytes().get(12..16) else { return };
    if u16::from_be_bytes([first, second]) != ETHERTYPE_VLAN
        || u16::from_be_bytes([control & 0x0f, id]) != 0
    {
        return;
    }
    packet.meta.priority = control >> 4;
    // A frame that ends inside its tag is found when it is parsed.
    let _ = packet.pull_tag();
}

/// Source and destination of an IP packet, IPv4 as IPv4-mapped.
fn addresses(packet: &Packet) -> Option<([u8; 16], [u8; 16])> {
    if let Some(header) = packet.ipv4() {
        return Some((map_v4(header.source), map_v4(header.destination)));
    }
    packet.ipv6().map(|header| (header.source, header.destination))
}
