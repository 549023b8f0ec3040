//! The configuration file's types for serde and for the JSON Schema, and nothing else.
//!
//! Texts stay texts here. The next steps, which know their places, check whether they are
//! addresses, prefixes or known names. [`forms`] has the values that can be written in
//! several ways.

mod forms;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// The configuration file.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Holdfast configuration")]
pub struct Config {
    /// The cluster's name.
    pub cluster: String,
    /// Ports by name.
    pub ports: BTreeMap<String, PortConfig>,
    /// Zones by name: groups of ports, which selectors name behind `on` as they name
    /// ports. A port's own name is the zone of this port alone.
    #[serde(default)]
    pub zones: BTreeMap<String, Vec<String>>,
    /// Routes besides those to the ports' own networks and the gateways.
    #[serde(default)]
    pub routes: Vec<RouteConfig>,
    /// Chains by name.
    pub chains: BTreeMap<String, ChainConfig>,
    /// The rules that choose a packet's chain. The longest prefixes win, source and
    /// destination together, then fewer ports, then fewer protocols, then fewer ports of
    /// the box. `holdfast apply` changes them while the box runs.
    pub rules: Vec<RuleConfig>,
    /// Runtimes of the chains that name no cluster; three without it.
    #[serde(default)]
    pub runtimes: Option<RuntimesConfig>,
    /// Scaling: a cluster with fewer runtimes than its `max` starts another under load,
    /// and stops it again.
    #[serde(default)]
    pub scaling: ScalingConfig,
    /// Virtual clusters by name: runtimes that serve only the chains that name the
    /// cluster.
    #[serde(default)]
    pub clusters: BTreeMap<String, ClusterSettings>,
    /// Hosts by name, if the box has several: each runs `holdfast run FILE --host NAME`
    /// with the same file. A single host at a time serves the ports, or those of each
    /// switch. Three hosts or more survive the death of any one.
    #[serde(default)]
    pub hosts: BTreeMap<String, HostSettings>,
    /// Switches by name, if several hosts serve ports at the same time: each switch has
    /// its own ports and is served by one host. Without it one switch has all ports.
    #[serde(default)]
    pub switches: BTreeMap<String, SwitchSettings>,
    /// Limits.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// Failure detection.
    #[serde(default)]
    pub detection: DetectionConfig,
    /// The state server, if a chain uses one.
    #[serde(default)]
    pub state_server: Option<StateServerSettings>,
    /// Security of messages between the processes. Without it they are not authenticated:
    /// on one machine they go through memory that only the box's own processes have.
    #[serde(default)]
    pub fabric: Option<FabricFileConfig>,
    /// The directory that outlives the box, for numbers that must never be used again.
    /// Without it they last as long as the box runs. Numbers that `etcd` keeps are kept
    /// there instead.
    #[serde(default)]
    pub state: Option<String>,
    /// The etcd through which several coordinators elect a leader, and share its
    /// decisions. Without it the box has one coordinator of its own.
    #[serde(default)]
    pub etcd: Option<EtcdConfig>,
    /// The control API, for other hosts and other languages: gRPC with certificates on
    /// both sides. Without it the box has its local socket only.
    #[serde(default)]
    pub control: Option<ControlConfig>,
    /// Restricts runtimes and state servers to the system calls of their work (seccomp):
    /// any other call ends the process. `false` for inspecting them with a tool that
    /// makes other calls.
    #[serde(default = "yes")]
    pub seccomp: bool,
}

/// Security of messages between the processes, and of all traffic between hosts.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FabricFileConfig {
    /// File with the cluster's keys, relative to the configuration's directory; `holdfast
    /// keygen` makes one. The keys encrypt and authenticate messages, and packets between
    /// hosts. Each line is `NUMBER:KEY`, the current one first; only its owner may read
    /// it. SIGHUP reads it again.
    pub key: Option<String>,
    /// Largest packet of the network between the hosts, bytes, IP header included, if
    /// that is less than the MTU of the hosts' own devices: with `udp`, a tunnel on the
    /// way.
    pub mtu: Option<u16>,
}

/// A port of the box.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// A Linux interface without kernel addresses. Several ports may share it if each has
    /// another `vlan`.
    pub device: String,
    /// The VLAN of its frames on the device, 1 to 4094: one identifier (an 802.1Q tag),
    /// or two, outer and inner (QinQ: an 802.1ad service tag around an 802.1Q tag).
    /// Without it the port has the device's untagged frames.
    #[serde(default)]
    pub vlan: Option<VlanConfig>,
    /// VLANs into which functions (`vlan`) may put packets that leave, in place of
    /// `vlan`, or of the inner of two. Frames that come in them are the port's, too.
    #[serde(default)]
    pub flow_vlans: Vec<i64>,
    /// The box's addresses there with their prefix lengths, like 10.0.0.1/24. With an
    /// IPv6 address or gateway the port has a link-local address too: one written here,
    /// like fe80::1/64, or else one made of its MAC address (modified EUI-64), which
    /// differs between hosts.
    pub address: OneOrMany,
    /// The default gateways: one per address family, in a network of the port or
    /// link-local.
    #[serde(default)]
    pub gateway: Option<OneOrMany>,
    /// Largest IP packet, bytes; the device's own without it.
    #[serde(default)]
    pub mtu: Option<u16>,
    /// The reverse-path check of the port: `feasible` accepts source addresses to which a
    /// route leads by this port, `off` accepts all. `feasible` without it; `off` is for
    /// routing where packets come by another port than replies leave by.
    #[serde(default)]
    pub reverse_path: ReversePathConfig,
    /// Watched routers there (BFD). A packet whose router is not heard takes another
    /// route, if there is one.
    #[serde(default)]
    pub bfd: Vec<BfdConfig>,
}

/// The source addresses that a port accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReversePathConfig {
    /// Addresses to which a route leads by this port, in use or standing by (RFC 3704,
    /// section 2.3).
    #[default]
    Feasible,
    /// All addresses, except the box's own and those of its pools and services.
    Off,
}

/// A route.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// Destinations: a prefix like 192.0.2.0/24.
    pub to: String,
    /// The next router: in a port's network, or on the link of the port that `on` names.
    pub via: String,
    /// The port of the box on whose link the next router is. Needed if the address does
    /// not tell: a link-local one, or one outside all ports' networks.
    #[serde(default)]
    pub on: Option<String>,
}

/// A service chain.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainConfig {
    /// Functions in the order in which a flow's first packet meets them.
    pub functions: Vec<FunctionConfig>,
    /// The protection of its flows; `none` without it.
    #[serde(default)]
    pub protection: Option<ProtectionConfig>,
    /// The virtual cluster whose runtimes serve it; without it, the runtimes of all
    /// chains that name none.
    #[serde(default)]
    pub cluster: Option<String>,
    /// Addresses of its pools and services, like 198.51.100.4 or 198.51.100.4/31, for
    /// which the box itself answers ping; none without it. A host whose whole address is
    /// published then gets no pings from outside.
    #[serde(default)]
    pub answers_ping: Option<OneOrMany>,
    /// With `switches`: the switch by whose ports its flows come and go. The switch
    /// answers for its addresses, and its rules apply there.
    #[serde(default)]
    pub switch: Option<String>,
}

/// A switch of the box.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchSettings {
    /// Its ports. Each port belongs to one switch.
    pub ports: Vec<String>,
    /// The first host to serve it. Another host that serves ports takes over if it fails.
    pub host: String,
}

/// A virtual cluster.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterSettings {
    /// Its runtimes; three without it.
    #[serde(default)]
    pub runtimes: Option<RuntimesConfig>,
}

/// A host of the box.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostSettings {
    /// The network to the other hosts, or two of them: the second is used if the first
    /// fails.
    pub fabric: HostFabric,
    /// Devices of ports that are not called as in the port's `device` on this host.
    #[serde(default)]
    pub devices: BTreeMap<String, String>,
    /// The host has the ports' devices and can serve them.
    #[serde(default = "yes")]
    pub serves: bool,
    /// The host runs runtimes.
    #[serde(default = "yes")]
    pub runtimes: bool,
    /// The coordinator runs on this host; without any, on the first host by name. Not
    /// with `etcd`, which elects it.
    #[serde(default)]
    pub coordinator: bool,
    /// Listening address of its control API, like 10.9.0.1:7443, if not the section's
    /// `listen`.
    #[serde(default)]
    pub control: Option<String>,
}

/// The networks of a host: one network, or a list of two.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub enum HostFabric {
    /// A single network.
    One(HostNetwork),
    /// Two networks: the second is used if the first fails. Only with `fabric: { key:
    /// FILE }`.
    Two([HostNetwork; 2]),
}

/// A network between hosts: a device, or `{ udp: ADDRESS:PORT }`.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub enum HostNetwork {
    /// The interface of an Ethernet network of the hosts alone.
    Device(String),
    /// UDP, without such a network.
    Udp(UdpFabric),
}

/// UDP between the hosts: for all of them or none, and only with `fabric: { key: FILE }`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UdpFabric {
    /// An address of the host's kernel, with a port, like 10.9.0.1:7000 or
    /// [2001:db8::1]:7000. Only datagrams from the other hosts are accepted there.
    pub udp: String,
}

fn yes() -> bool {
    true
}

/// A service-chain rule.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleConfig {
    /// The port of the box, or zone, by which the flow's first packet comes in; several
    /// with commas.
    #[serde(default)]
    pub on: Option<String>,
    /// Source prefix.
    #[serde(default)]
    pub from: Option<String>,
    /// Destination prefix.
    #[serde(default)]
    pub to: Option<String>,
    /// `tcp`, `udp`, `icmp`, `any`, or a number.
    #[serde(default)]
    pub proto: Option<Word>,
    /// Destination ports, like 80,443 or 1000-2000.
    #[serde(default, alias = "port")]
    pub ports: Option<Word>,
    /// The chain.
    pub chain: String,
}

/// Limits.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Maximum number of flows with a route at the switch, and of flows that one runtime
    /// may own per chain. From three quarters on, unanswered and ended flows live
    /// shorter; from nine tenths on, the flows of lowest standing are evicted, but never
    /// an established TCP connection.
    pub flows: usize,
    /// Maximum number of half-open flows of one source (an IPv4 address or an IPv6 /64):
    /// unanswered flows, and TCP connections whose opener has not gone on after the
    /// answer. A tenth of `flows` without it. Each switch counts its own.
    pub half_open_per_source: Option<u32>,
    /// Maximum number of flows of one source; without it only `flows` limits them. Each
    /// switch counts its own.
    pub flows_per_source: Option<u32>,
    /// Packet buffers of the host.
    pub buffers: u32,
}

impl Default for LimitsConfig {
    fn default() -> LimitsConfig {
        LimitsConfig {
            flows: 65_536,
            half_open_per_source: None,
            flows_per_source: None,
            buffers: 32_768,
        }
    }
}

/// Failure detection.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DetectionConfig {
    /// Time between two heartbeats of a runtime, milliseconds.
    pub heartbeat_ms: u64,
    /// Silence after which a runtime has failed, milliseconds. The end of a process is
    /// noticed at once.
    pub hang_ms: u64,
    /// Silence after which a host is cut off, milliseconds, 10 or more. The host stops
    /// serving by then, and another begins within the same time again.
    pub host_ms: u64,
}

impl Default for DetectionConfig {
    fn default() -> DetectionConfig {
        DetectionConfig { heartbeat_ms: 20, hang_ms: 500, host_ms: 400 }
    }
}

/// A text, or a list of texts.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub enum OneOrMany {
    /// A single text.
    One(String),
    /// Several texts.
    Many(Vec<String>),
}

/// The VLAN of a port: an identifier, or two, outer and inner.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub enum VlanConfig {
    /// A single tag.
    One(i64),
    /// Several tags.
    Many(Vec<i64>),
}

/// A text that may look like a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word(pub String);

/// A function of a chain: a name, or a name with its configuration.
#[derive(Debug, Clone)]
pub struct FunctionConfig {
    /// The entries as written; a valid function has exactly one.
    pub entries: Vec<(String, Value)>,
}

/// The protection of a chain's flows.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub enum ProtectionConfig {
    /// A preset.
    Preset(String),
    /// A preset with options, or the three parts of a protection.
    Options(Box<ProtectionOptions>),
}

/// A preset with options, or the three parts of a protection: where state lives, when a
/// packet may leave, how lost state is rebuilt.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProtectionOptions {
    /// `none`, `nfactor`, `nfvactor`, `reinforce` or `rescue`.
    pub preset: Option<String>,
    /// Place of a flow's state: `memory`, or also a `replica`, a `snapshot` taken now and
    /// then, a `standby` that has the packets processed since its copy, or `paged`: at a
    /// state server, and in memory while in use.
    pub flow: Option<String>,
    /// Place of shared state: `memory`, `partitioned` among the runtimes, or at a
    /// `state-server`, which assigns single numbers and adds up statistics.
    /// `state-server` goes with every preset, and is the default of `rescue` and `flow:
    /// paged`.
    pub shared: Option<String>,
    /// Time of a packet's release: `at-once`, from the `replica` or from the `source`
    /// once the replica has saved the state, once the `standby` has the packet, or once
    /// the state server has the state that it reveals (`write-back`).
    pub release: Option<String>,
    /// Source of lost state: `nothing`, the `replica`, the `snapshots`, a `replay` of the
    /// packets that the switch has logged, or the `pages` at the state server.
    pub rebuild: Option<String>,
    /// With `nfactor`: packets of a flow between two snapshots (10). A failure can lose
    /// as many of its latest packets.
    #[schemars(range(min = 1))]
    pub snapshot_every: Option<u32>,
    /// With `nfvactor` and `release: at-once`: packets of a flow that may leave before
    /// its replica has acknowledged them (128); more wait for that. A failure can lose as
    /// many.
    #[schemars(range(min = 1))]
    pub unsaved_packets: Option<u32>,
    /// With `shared: state-server`: seconds for which a used number, such as a NAT's
    /// port, rests before another flow gets it (120, as in RFC 6888); at least twice
    /// `detection.hang_ms`.
    #[schemars(range(min = 0, max = 3600))]
    pub hold_s: Option<u64>,
    /// With `rescue` and `release: at-once`: milliseconds between two write-backs (100).
    #[schemars(range(min = 1, max = 10_000))]
    pub write_back_ms: Option<u64>,
    /// With `rescue` and `release: at-once`: packets after which a flow is written back
    /// at once (32). A failure can lose as many of its latest packets.
    #[schemars(range(min = 1))]
    pub write_back_packets: Option<u32>,
    /// With `rescue`: flows whose state a runtime keeps in memory (all without it). The
    /// state of others is fetched from the state server when a packet comes; they keep a
    /// header of 192 bytes. If worker and standby of the state server end together, these
    /// flows are lost.
    #[schemars(range(min = 16))]
    pub resident_flows: Option<u32>,
    /// With `reinforce`: milliseconds between two rounds of checkpoints (10). A longer
    /// time sends less, and replays more after a failure.
    #[schemars(range(min = 1, max = 10_000))]
    pub checkpoint_ms: Option<u64>,
    /// With `reinforce`: MiB of the log that the switch keeps for each runtime (64).
    #[schemars(range(min = 1, max = 1024))]
    pub log_mib: Option<u64>,
    /// With `reinforce`: place of the standby: `remote`, in another runtime (the
    /// default); `local`, a process beside each runtime that shares its memory and takes
    /// over when it is killed; or both, `local+remote`.
    pub level: Option<String>,
}

/// Growth and shrinkage of clusters.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScalingConfig {
    /// Time between two checks of the load, milliseconds.
    #[schemars(range(min = 10, max = 3_600_000))]
    pub period_ms: u64,
    /// Packets that a runtime may drop for want of room per period; after more, another
    /// runtime starts.
    pub drops: u64,
    /// Load above which another runtime starts: percent of its time that a runtime is
    /// busy, three periods in succession.
    #[schemars(range(min = 1, max = 100))]
    pub busy_percent: u16,
    /// Load at which a runtime stops: percent of their time that the others would then be
    /// busy, at most.
    #[schemars(range(min = 0, max = 99))]
    pub idle_percent: u16,
    /// Flows that move at a time.
    #[schemars(range(min = 1))]
    pub move_flows: u64,
    /// Successive periods of low load before a runtime stops. The number grows each time
    /// a runtime stopped too soon.
    #[schemars(range(min = 1, max = 100_000))]
    pub calm_periods: u32,
}

impl Default for ScalingConfig {
    fn default() -> ScalingConfig {
        ScalingConfig {
            period_ms: 1000,
            drops: 100,
            busy_percent: 90,
            idle_percent: 40,
            move_flows: 500,
            calm_periods: 30,
        }
    }
}

/// The number of runtimes: a number, `{ count: 3 }` or `{ min: 2, max: 4 }`.
#[derive(Debug, Clone, Copy, JsonSchema)]
#[schemars(untagged)]
pub enum RuntimesConfig {
    /// Exactly this many.
    Count(u16),
    /// A number, or a range.
    Range(RuntimesRange),
}

/// The number of runtimes, fixed or a range.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RuntimesRange {
    /// Exactly this many.
    pub count: Option<u16>,
    /// The smallest number, and the number at the start.
    pub min: Option<u16>,
    /// The largest number: under load more are started, and stopped again. As many as
    /// `min` without it.
    pub max: Option<u16>,
}

/// A watched router: while it is not heard, no packet is routed through it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BfdConfig {
    /// The router's address, in a network of the port.
    pub peer: String,
    /// Time between packets in each direction, like 50ms or 3300us; 50ms without it. The
    /// router may ask for a longer one.
    #[serde(default)]
    pub interval: Option<Word>,
    /// Missing packets after which the other side counts as dead; 3 without it.
    #[serde(default)]
    pub multiplier: Option<u8>,
    /// The key that signs packets; unsigned packets are refused.
    #[serde(default)]
    pub key: Option<BfdKeyConfig>,
}

/// The key that signs packets.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BfdKeyConfig {
    /// The kind of signature.
    #[serde(rename = "type")]
    pub kind: BfdKeyType,
    /// The key's number, the same at the router.
    pub id: u8,
    /// The file with the key, relative to the configuration's directory: up to 20 bytes,
    /// for a password up to 16. Only its owner may read it. SIGHUP reads it again.
    pub file: String,
}

/// Signatures (RFC 5880, section 6.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BfdKeyType {
    /// SHA1 over packet and key.
    #[serde(rename = "keyed-sha1")]
    KeyedSha1,
    /// SHA1, and no packet counts twice.
    #[serde(rename = "meticulous-keyed-sha1")]
    MeticulousKeyedSha1,
    /// A password that every station on the link can read.
    Password,
}

/// The control API: clients with a certificate can query and command the box from other
/// hosts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ControlConfig {
    /// Address of this machine, like 10.9.0.1:7443, on a network other than the box's
    /// own; port 7443 without one. With several hosts, for those without a `control` of
    /// their own.
    #[serde(default)]
    pub listen: Option<String>,
    /// The certificate of this host, its key, and the authority of all hosts and
    /// operators; `holdfast certify` makes them. SIGHUP reads them again.
    pub tls: TlsConfig,
}

/// Files for mutual TLS: their directory, with the names that `holdfast certify` gives
/// them, or each by its path, relative to the configuration's directory.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(untagged)]
pub enum TlsConfig {
    /// The directory with `ca.pem`, `certificate.pem` and `key.pem`.
    Directory(String),
    /// Each file.
    Files(TlsFiles),
}

/// Files for mutual TLS (PEM).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificates of the authorities that sign the certificates of hosts and
    /// operators.
    pub ca: String,
    /// This host's certificate, with the chain to its authority.
    pub certificate: String,
    /// The certificate's key; only its owner may read it.
    pub key: String,
}

/// The etcd for the coordinators' election and decisions. With `hosts` each host has a
/// candidate.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EtcdConfig {
    /// Addresses of etcd's members, like https://10.0.0.1:2379; each is tried in turn.
    /// All are `https`, or all are `http` without files: anyone who reaches etcd can then
    /// change its data.
    #[schemars(length(min = 1, max = 16))]
    pub endpoints: Vec<String>,
    /// Prefix of all keys in etcd, like /holdfast/edge; boxes with the same prefix elect
    /// one coordinator. `/holdfast/` and the cluster's name without it.
    #[serde(default)]
    pub prefix: Option<String>,
    /// File with the certificates of the authorities that sign etcd's certificates (PEM),
    /// relative to the configuration's directory. Needed with `https`.
    #[serde(default)]
    pub ca: Option<String>,
    /// File with this box's certificate for etcd, with the chain to its authority (PEM).
    #[serde(default)]
    pub certificate: Option<String>,
    /// File with the certificate's key (PEM).
    #[serde(default)]
    pub key: Option<String>,
    /// Time after which a coordinator that etcd has not heard no longer leads,
    /// milliseconds. etcd counts whole seconds, at least two by its defaults.
    #[serde(default = "default_lease")]
    #[schemars(range(min = 1000, max = 60_000))]
    pub lease_ms: u64,
}

fn default_lease() -> u64 {
    2000
}

/// The process that assigns shared numbers and, if a chain asks for it, is the home of
/// its flows.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StateServerSettings {
    /// Processes that divide the flows among them, 1 to 8, if one core is not enough. The
    /// first alone assigns numbers and adds up statistics.
    #[schemars(range(min = 1, max = 8))]
    pub servers: u16,
    /// The standby of each process, which goes on when the process is killed.
    pub standby: ServerStandby,
    /// Transport of control messages, which assign numbers of pools, to and from the
    /// runtimes. Flows and greetings always use the fabric.
    pub transport: ServerTransport,
    /// With `transport: libfabric`: its provider, `tcp;ofi_rxm` without it;
    /// `verbs;ofi_rxm` with a card for remote writes.
    pub provider: Option<String>,
}

impl Default for StateServerSettings {
    fn default() -> StateServerSettings {
        StateServerSettings {
            servers: 1,
            standby: ServerStandby::default(),
            transport: ServerTransport::default(),
            provider: None,
        }
    }
}

/// The standby of a state server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ServerStandby {
    /// A process beside it with its memory: runtimes notice nothing. The default.
    #[default]
    Local,
    /// No standby: the next process begins empty, and runtimes tell it what they have.
    None,
}

/// The transport of control messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ServerTransport {
    /// The fabric, as for all other messages. The default.
    #[default]
    Fabric,
    /// Rings in memory that the server and each runtime share.
    SharedMemory,
    /// Remote writes by one of libfabric's providers, which carry only their immediate
    /// data.
    Libfabric,
}
