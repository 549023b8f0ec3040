//! The plan of a box: its configuration, resolved once. A plan never changes; another
//! configuration is another plan.
//!
//! In: the raw file ([`raw`](super::raw)), with the places of its values. Out: one value
//! with everything that `run`, `check` and `status` need: addresses instead of texts,
//! numbers instead of names, functions, and all defaults. Never: shared state; each
//! process with flows makes its own ([`ChainPlan::bind`]).

use super::bfd::{self, BfdPeer};
use super::chains::{self, ChainPlan};
use super::clusters::{self, Cluster};
use super::control::{self, Control, ControlEntry};
use super::etcd::{self, Etcd};
use super::hosts::{self, HostEntry};
use super::limits::{self, Limits};
use super::mistake::Mistake;
use super::names;
use super::network::{self, Port};
use super::raw::{Config, DetectionConfig, ScalingConfig};
use super::rules;
use super::shared::{Named, NamedPool, NamedStatistic};
use super::source::Source;
use super::state_server::{self, StateServers};
use super::switches::{self, SwitchEntry};
use super::zones;
use holdfast_node::bfd::{Key, Peer, Settings};
use holdfast_node::coordinator::{HostConfig, HostsConfig, IdentityKind, Name, SwitchPlace};
use holdfast_node::edge::{EdgeConfig, EdgePort, EdgeRoute};
use holdfast_node::message::PoolId;
use holdfast_node::rules::Rule;
use holdfast_node::switch::SwitchLimits;
use holdfast_protection::rescue::pages::PagesConfig;
use holdfast_wire::NodeId;
use holdfast_wire::zone::Zones;
use std::fmt;
use std::path::PathBuf;

/// A plan; see the module.
pub struct Plan {
    /// The file's name, its text, and the places of its values.
    pub(super) source: Source,
    /// The raw file.
    pub(super) raw: Config,
    /// The cluster's name.
    pub cluster: String,
    /// Ports in the order of their numbers.
    pub ports: Vec<Port>,
    /// Gateways and routes.
    pub routes: Vec<EdgeRoute>,
    /// Watched routers.
    pub bfd: Vec<BfdPeer>,
    /// Chains in the order of their numbers.
    pub chains: Vec<ChainPlan>,
    /// Pools of numbers, by chain, function and field.
    pub pools: Vec<NamedPool>,
    /// Statistics, by chain, function and field.
    pub statistics: Vec<NamedStatistic>,
    /// Service-chain rules.
    pub rules: Vec<Rule>,
    /// Virtual clusters.
    pub clusters: Vec<Cluster>,
    /// The limits at which clusters grow and shrink.
    pub scaling: ScalingConfig,
    /// The switches; usually one.
    pub switches: Vec<SwitchEntry>,
    /// The hosts, if there are several.
    pub hosts: Vec<HostEntry>,
    /// Limits.
    pub limits: Limits,
    /// Failure detection.
    pub detection: DetectionConfig,
    /// The state servers, if a chain uses them.
    pub state_servers: StateServers,
    /// The file with the cluster's keys.
    pub key: Option<PathBuf>,
    /// Largest packet of the network between the hosts, bytes, if given.
    pub fabric_mtu: Option<u16>,
    /// The directory that outlives the box.
    pub state: Option<PathBuf>,
    /// The etcd that elects the coordinator, if any.
    pub etcd: Option<Etcd>,
    /// The control API, if there is one.
    pub control: Option<Control>,
    /// True if runtimes and state servers are restricted to the system calls of their
    /// work.
    pub seccomp: bool,
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl Plan {
    /// Resolves the raw file, or finds the first mistake.
    pub(super) fn resolve(source: Source, raw: Config) -> Result<Plan, Mistake> {
        let root = source.root();
        names::check(&raw.cluster, "a cluster's", root.key("cluster"))?;
        let mut switches = switches::read(&raw, root)?;
        let mut networks = network::read(&raw, &switches, root)?;
        zones::check(&raw, root)?;
        let bfd = bfd::read(&raw, &mut networks, root)?;
        let (chains, Named { pools, statistics }) = chains::read(&raw, &switches, root)?;
        chains::vlans(&raw, &chains, &switches, &networks, root)?;
        let state_servers = state_server::read(&raw, root)?;
        chains::owned(&raw, &chains, &pools, &networks, &mut switches, root)?;
        let clusters = clusters::read(&raw, &chains, root)?;
        let rules = rules::read(&raw, &clusters, &switches, root)?;
        let hosts = hosts::read(&raw, &networks.ports, root)?;
        hosts::place(&raw, &hosts, &mut switches, root)?;
        let limits = limits::read(&raw, root)?;
        if raw.state.as_ref().is_some_and(|state| !state.starts_with('/')) {
            return Err(root.key("state").mistake(
                "`state` is a directory's path from the root, like /var/lib/holdfast".to_owned(),
            ));
        }
        let etcd = etcd::read(&raw, root)?;
        let control = control::read(&raw, root)?;
        let key =
            raw.fabric.as_ref().and_then(|fabric| fabric.key.as_ref()).map(|key| root.beside(key));
        let network::Networks { ports, routes, .. } = networks;
        Ok(Plan {
            cluster: raw.cluster.clone(),
            ports,
            routes,
            bfd,
            chains,
            pools,
            statistics,
            rules,
            clusters,
            scaling: raw.scaling,
            switches,
            hosts,
            limits,
            detection: raw.detection,
            state_servers,
            key,
            fabric_mtu: raw.fabric.as_ref().and_then(|fabric| fabric.mtu),
            state: raw.state.as_ref().map(PathBuf::from),
            etcd,
            control,
            seccomp: raw.seccomp,
            source,
            raw,
        })
    }

    /// The plan for one of the hosts, with its own ports; a host that serves none has
    /// none.
    pub fn on_host(mut self, host: u16) -> Plan {
        let Some(entry) = self.hosts.get(usize::from(host)) else { return self };
        if !entry.has_ports {
            (self.ports, self.routes, self.bfd) = (Vec::new(), Vec::new(), Vec::new());
            self.switches
                .iter_mut()
                .for_each(|switch| (switch.ports, switch.zones) = (Vec::new(), Zones::default()));
        }
        for (port, own) in self.ports.iter_mut().zip(&entry.devices) {
            port.device.clone_from(own);
        }
        self
    }

    /// The number of the named host, from 0; a single host needs no name.
    ///
    /// # Errors
    /// The text says what to write instead.
    pub fn host(&self, wanted: Option<&str>) -> Result<u16, String> {
        hosts::find(&self.hosts, wanted)
    }

    /// Runtimes to start, in all clusters.
    pub fn runtimes(&self) -> u16 {
        self.clusters.iter().map(|cluster| cluster.runtimes).sum()
    }

    /// The runtimes that serve a chain with this property.
    pub fn runtimes_of(&self, is_meant: impl Fn(&ChainPlan) -> bool) -> Vec<NodeId> {
        let clusters =
            self.clusters.iter().flat_map(|cluster| (0..cluster.max).map(move |_| cluster));
        let numbered = (0..).map(NodeId::runtime).zip(clusters);
        let meant = numbered.filter(|(_, cluster)| {
            cluster.chains.iter().any(|chain| is_meant(&self.chains[usize::from(*chain)]))
        });
        meant.map(|(node, _)| node).collect()
    }

    /// The names that have numbers, those of a kind in the order of these: for the
    /// coordinator. A runtime is named after its cluster.
    pub fn names(&self) -> Vec<Name> {
        let chains = self.chains.iter().map(|chain| (IdentityKind::Chain, chain.name.clone()));
        let ports = self.ports.iter().map(|port| (IdentityKind::Port, port.name.clone()));
        let clusters =
            self.clusters.iter().map(|cluster| (IdentityKind::Cluster, cluster.name.clone()));
        let of_cluster = |cluster: &Cluster| {
            let runtime = |at| (IdentityKind::Runtime, format!("{}/{at}", cluster.name));
            (0..cluster.max).map(runtime).collect::<Vec<_>>()
        };
        let runtimes = self.clusters.iter().flat_map(of_cluster);
        chains.chain(ports).chain(clusters).chain(runtimes).collect()
    }

    /// The name of a port.
    pub fn port_name(&self, port: u8) -> &str {
        self.ports.get(usize::from(port)).map_or("", |port| port.name.as_str())
    }

    /// The name of a chain.
    pub fn chain_name(&self, chain: u16) -> &str {
        self.chains.get(usize::from(chain)).map_or("", |chain| chain.name.as_str())
    }

    /// Names of ports and zones in selectors of this chain.
    pub fn zones_of(&self, chain: u16) -> &Zones {
        &self.switches[switches::of_chain(&self.switches, chain)].zones
    }

    /// The number of state servers.
    pub fn state_server_count(&self) -> u16 {
        let is_needed = self.chains.iter().any(|chain| chain.protection.needs_state_server());
        if is_needed { self.state_servers.count } else { 0 }
    }

    /// The pools that are partitioned among runtimes, with their sizes: for the
    /// coordinator.
    pub fn partitioned_pools(&self) -> Vec<(PoolId, u32)> {
        self.pools
            .iter()
            .filter(|pool| pool.rest.is_none())
            .map(|pool| (pool.id, pool.size))
            .collect()
    }

    /// The pages of chains whose flows have their home at a state server: room for
    /// `flows` of each, hashed under this seed.
    pub fn pages(&self, flows: usize, seed: u64) -> Vec<PagesConfig> {
        let paged = self.chains.iter().zip(0..).filter(|(chain, _)| chain.protection.is_paged());
        let of_chain = |(built, chain): (&ChainPlan, u16)| PagesConfig {
            chain,
            flows,
            state_len: built.layout.size,
            layout: built.layout.hash,
            seed,
        };
        paged.map(of_chain).collect()
    }

    /// Bytes of the switch's log, by chain.
    pub fn logs(&self) -> Vec<usize> {
        self.chains.iter().map(|chain| chain.protection.log_size()).collect()
    }

    /// The limits of flows per source at a switch.
    pub fn switch_limits(&self) -> SwitchLimits {
        SwitchLimits {
            half_open: Some(self.limits.half_open_per_source),
            flows: self.limits.flows_per_source,
            chains: self.chains.iter().map(ChainPlan::source_limit).collect(),
            rates: self.chains.iter().map(ChainPlan::rate_limits).collect(),
        }
    }

    /// The control API of this host, if it has one.
    pub fn control_of(&self, host: u16) -> Option<ControlEntry> {
        let own = self.hosts.get(usize::from(host)).and_then(|host| host.control);
        self.control.as_ref().and_then(|control| control.of(own))
    }

    /// The hosts, for the coordinator. A single switch has all chains, and names none.
    pub fn hosts_config(&self) -> HostsConfig {
        if self.hosts.is_empty() {
            return HostsConfig::one();
        }
        let host = |entry: &HostEntry| HostConfig {
            has_ports: entry.has_ports,
            has_runtimes: entry.has_runtimes,
        };
        let chains = |switch: &SwitchEntry| {
            if self.switches.len() > 1 { switch.chains.clone() } else { Vec::new() }
        };
        HostsConfig {
            hosts: self.hosts.iter().map(host).collect(),
            switches: self
                .switches
                .iter()
                .map(|switch| SwitchPlace { chains: chains(switch), host: switch.host })
                .collect(),
            timeout: self.detection.host_ms * 1_000_000,
        }
    }

    /// The configuration of each switch's edge, with the ports that it has, in order.
    /// Needs the ports' MAC addresses and MTUs; `keys` are those of
    /// [`Plan::read_bfd_keys`]; `random` gives random numbers.
    pub fn edges(
        &self,
        ports: &[(holdfast_wire::header::Mac, u16)],
        keys: &[Option<Key>],
        random: impl Fn() -> u64,
    ) -> Vec<(EdgeConfig, Vec<u8>)> {
        let edge = |switch: &SwitchEntry| {
            let port = |number: &u8| {
                let at = usize::from(*number);
                let ((mac, mtu), port) = (ports[at], &self.ports[at]);
                EdgePort {
                    mac,
                    mtu: port.mtu.unwrap_or(mtu).min(mtu),
                    addresses: port.addresses.clone(),
                    reverse_path: port.reverse_path,
                    flow_vlans: port.flow_vlans.clone(),
                }
            };
            // An edge numbers its own ports only.
            let route = |route: &EdgeRoute| {
                let at = switch.ports.iter().position(|port| *port == route.port)?;
                Some(EdgeRoute { port: at as u8, ..*route })
            };
            let peer = |(peer, key): (&BfdPeer, &Option<Key>)| {
                let at = switch.ports.iter().position(|port| *port == peer.port)?;
                let settings = Settings {
                    min_transmit: peer.interval,
                    min_receive: peer.interval,
                    multiplier: peer.multiplier,
                    key: key.clone(),
                };
                Some(Peer {
                    port: at as u8,
                    address: holdfast_wire::ip_bytes(peer.address),
                    settings,
                })
            };
            let (ports, routes) = (
                switch.ports.iter().map(port).collect(),
                self.routes.iter().filter_map(route).collect(),
            );
            let bfd = self.bfd.iter().zip(keys).filter_map(peer).collect();
            let (owned, answers_ping) = (switch.owned.clone(), switch.answers_ping.clone());
            let config = EdgeConfig { ports, routes, owned, answers_ping, bfd, seed: random() };
            (config, switch.ports.clone())
        };
        self.switches.iter().map(edge).collect()
    }
}
