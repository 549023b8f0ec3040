//! The file as it is written: types for serde and for the JSON Schema.
//!
//! Texts are kept as texts here. Whether they are addresses, prefixes or known names is found out afterwards, where the places are known.

use super::bfd::BfdConfig;
use super::control::ControlConfig;
use super::etcd::EtcdConfig;
use super::state_server::StateServerSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, de};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// The whole file.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Holdfast configuration")]
pub struct Config {
    /// The cluster's name.
    pub cluster: String,
    /// Ports by name.
    pub ports: BTreeMap<String, PortConfig>,
    /// Zones by name: groups of ports, which selectors name behind `on` as they name ports. A port's own name is that of a zone with this port alone.
    #[serde(default)]
    pub zones: BTreeMap<String, Vec<String>>,
    /// Routes besides those to the ports' own networks and the gateways.
    #[serde(default)]
    pub routes: Vec<RouteConfig>,
    /// Chains by name.
    pub chains: BTreeMap<String, ChainConfig>,
    /// Which packets go to which chain: the longest prefixes win, source and destination together, then the fewer ports, then the protocol, then the fewer ports of the box. Can be
    /// changed while the box runs: `holdfast apply`.
    pub rules: Vec<RuleConfig>,
    /// Runtimes of the chains that ask for no cluster of their own; three without it.
    #[serde(default)]
    pub runtimes: Option<RuntimesConfig>,
    /// When a cluster with fewer runtimes than its `max` starts another, and stops one again.
    #[serde(default)]
    pub scaling: ScalingConfig,
    /// Virtual clusters by name: runtimes that serve only the chains that ask for them.
    #[serde(default)]
    pub clusters: BTreeMap<String, ClusterSettings>,
    /// Hosts by name, if several make the box: each runs `holdfast run FILE --host NAME` with the same file. One of them serves the ports at a
    /// time, or those of each switch. Three or more, so that any one of them may die.
    #[serde(default)]
    pub hosts: BTreeMap<String, HostSettings>,
    /// Switches by name, if several hosts are to serve ports at the same time: they divide the ports among them, each served by one host. Without it one has all
    /// ports.
    #[serde(default)]
    pub switches: BTreeMap<String, SwitchSettings>,
    /// Limits.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// Failure detection.
    #[serde(default)]
    pub detection: DetectionConfig,
    /// The state server, where a chain has one.
    #[serde(default)]
    pub state_server: Option<StateServerSettings>,
    /// Messages between the processes. Without it they are not authenticated: on one machine they go through memory that only the box's own
    /// processes have.
    #[serde(default)]
    pub fabric: Option<FabricFileConfig>,
    /// The directory that outlives the box: numbers that must never be used again are kept there. Without it they are kept as long as the box runs.
    /// Those that `etcd` keeps are kept there.
    #[serde(default)]
    pub state: Option<String>,
    /// Several coordinators, one of which leads: the etcd through which they elect it, and share what it decides. Without it the box has one of its own.
    #[serde(default)]
    pub etcd: Option<EtcdConfig>,
    /// The control API, for other hosts and other languages: gRPC with certificates on both sides. Without it the box is asked through its local socket only.
    #[serde(default)]
    pub control: Option<ControlConfig>,
    /// Runtimes and state servers make only the system calls of their work (seccomp): another one ends the process. `false` where somebody has to look into them with a tool that makes others.
    #[serde(default = "yes")]
    pub seccomp: bool,
}

/// Messages between the processes, and of several hosts everything that they send each other.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FabricFileConfig {
    /// File with the cluster's keys, from the configuration's directory: `holdfast keygen` makes one. Messages are encrypted and authenticated
    /// with it, and packets between hosts. One `NUMBER:KEY` per line, the current one first; only its owner may read it. SIGHUP reads it again.
    pub key: Option<String>,
    /// The largest packet that the network between the hosts takes, bytes, its IP header included, where that is less than the MTU of the hosts' own devices: with `udp`, a tunnel on the way.
    pub mtu: Option<u16>,
}

/// A port of the box.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// A Linux interface without kernel addresses.
    pub device: String,
    /// The box's addresses there with their prefix lengths, like 10.0.0.1/24. With an IPv6 address or gateway the port has a link-local address, too: the one that is written here, like
    /// fe80::1/64, or without one that of its MAC address (modified EUI-64), which is another one on each host.
    pub address: OneOrMany,
    /// Where everything goes that no other route leads to: one per address family, in a network of the port or link-local.
    #[serde(default)]
    pub gateway: Option<OneOrMany>,
    /// Largest IP packet, bytes; the device's own without it.
    #[serde(default)]
    pub mtu: Option<u16>,
    /// The reverse-path check of the port, which source addresses it accepts: `feasible`, those to which a route leads by this port, or `off`, all. Without it `feasible`; `off` where
    /// packets come by another port than those to their senders leave by.
    #[serde(default)]
    pub reverse_path: ReversePathConfig,
    /// Routers there that are watched (BFD): what goes through one that is not heard any more takes another route, if there is one.
    #[serde(default)]
    pub bfd: Vec<BfdConfig>,
}

/// The reverse-path check of a port: which source addresses it accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReversePathConfig {
    /// Those to which a route leads by this port, in use or standing by (RFC 3704, section 2.3).
    #[default]
    Feasible,
    /// All. Only the box's own addresses and those of its pools and services are refused still.
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
    /// The port of the box on whose link the next router is. Needed where its address does not say it: a link-local one, or one outside of all ports' networks.
    #[serde(default)]
    pub on: Option<String>,
}

/// A service chain.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainConfig {
    /// Functions in the order in which a flow's first packet meets them.
    pub functions: Vec<FunctionConfig>,
    /// How its flows survive; `none` without it.
    #[serde(default)]
    pub protection: Option<ProtectionConfig>,
    /// The virtual cluster whose runtimes serve it; without it, those that serve all chains that ask for none.
    #[serde(default)]
    pub cluster: Option<String>,
    /// Addresses of its pools and services, like 198.51.100.4 or 198.51.100.4/31, at which the box answers ping itself; without it none. What is published whole is not asked there then.
    #[serde(default)]
    pub answers_ping: Option<OneOrMany>,
    /// With `switches`: on whose ports its flows come and go. Its addresses are answered for there, and its rules count there.
    #[serde(default)]
    pub switch: Option<String>,
}

/// A switch of the box.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchSettings {
    /// Its ports. Each port belongs to one switch.
    pub ports: Vec<String>,
    /// The host that serves it at first; another that serves takes over when it cannot.
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
    /// The network that joins it with the other hosts, or two of them: the second is used where the first does not lead.
    pub fabric: HostFabric,
    /// The devices of ports that have another name there than the port's `device`.
    #[serde(default)]
    pub devices: BTreeMap<String, String>,
    /// It has the ports' devices, and serves them when it is its turn.
    #[serde(default = "yes")]
    pub serves: bool,
    /// Runtimes are started there.
    #[serde(default = "yes")]
    pub runtimes: bool,
    /// The coordinator lives there; without any, on the first host by name. Not with `etcd`, where it is elected.
    #[serde(default)]
    pub coordinator: bool,
    /// Where its control API listens, if not at the section's `listen`: like 10.9.0.1:7443.
    #[serde(default)]
    pub control: Option<String>,
}

/// What joins a host with the others: one network, or a list of two.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub enum HostFabric {
    /// One network.
    One(HostNetwork),
    /// Two, of which the second is used where the first does not lead. Only with `fabric: { key: FILE }`.
    Two([HostNetwork; 2]),
}

impl HostFabric {
    /// The networks, one or two.
    pub fn networks(&self) -> &[HostNetwork] {
        match self {
            HostFabric::One(network) => std::slice::from_ref(network),
            HostFabric::Two(networks) => networks,
        }
    }
}

/// A network that joins a host with the others: a device, or `{ udp: ADDRESS:PORT }`.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub enum HostNetwork {
    /// The interface of the Ethernet network that joins the hosts, and that nobody else uses.
    Device(String),
    /// Where there is no such network.
    Udp(UdpFabric),
}

/// UDP between the hosts: of all of them or of none, and only with `fabric: { key: FILE }`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UdpFabric {
    /// An address that the host's kernel has, with a port, like 10.9.0.1:7000 or [2001:db8::1]:7000. Nobody else's datagrams to it are taken.
    pub udp: String,
}

impl<'de> Deserialize<'de> for HostNetwork {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HostNetwork, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = HostNetwork;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a device's name, or `{ udp: ADDRESS:PORT }`,")
            }
            fn visit_str<E: Error>(self, device: &str) -> Result<HostNetwork, E> {
                Ok(HostNetwork::Device(device.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HostNetwork, A::Error> {
                UdpFabric::deserialize(MapAccessDeserializer::new(map)).map(HostNetwork::Udp)
            }
        }
        deserializer.deserialize_any(Form)
    }
}

impl<'de> Deserialize<'de> for HostFabric {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HostFabric, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = HostFabric;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a device's name, or `{ udp: ADDRESS:PORT }`, or a list of two of these,")
            }
            fn visit_str<E: Error>(self, device: &str) -> Result<HostFabric, E> {
                Ok(HostFabric::One(HostNetwork::Device(device.to_owned())))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HostFabric, A::Error> {
                UdpFabric::deserialize(MapAccessDeserializer::new(map)).map(|udp| HostFabric::One(HostNetwork::Udp(udp)))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<HostFabric, A::Error> {
                let mut networks = Vec::new();
                while let Some(network) = list.next_element()? {
                    networks.push(network);
                }
                let count = networks.len();
                let two =
                    networks.try_into().map_err(|_| A::Error::custom(format!("one network or two join the hosts, not {count}")));
                two.map(HostFabric::Two)
            }
        }
        deserializer.deserialize_any(Form)
    }
}

fn yes() -> bool {
    true
}

/// A service-chain rule.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleConfig {
    /// The port of the box by which the flow's first packet comes in, or a zone; several with commas between them.
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
    /// Flows that the switch has routes for, and that one runtime may own per chain. From three quarters on flows that nobody answers, or that are over, live shorter; at nine tenths those go first that
    /// stand for least, and never a TCP connection that is established.
    pub flows: usize,
    /// Flows that nobody has answered, or of TCP whose opener has not gone on after the answer, which one source may have at a time: an IPv4 address, or an IPv6 /64. A tenth of `flows` without it. Of several
    /// switches each counts its own.
    pub half_open_per_source: Option<u32>,
    /// All flows that one source may have at a time; without it as many as there is room for. Of several switches each counts its own.
    pub flows_per_source: Option<u32>,
    /// Packet buffers of the host.
    pub buffers: u32,
}

impl Default for LimitsConfig {
    fn default() -> LimitsConfig {
        LimitsConfig { flows: 65_536, half_open_per_source: None, flows_per_source: None, buffers: 32_768 }
    }
}

impl LimitsConfig {
    /// Half-open flows that one source may have.
    pub fn half_open(&self) -> u32 {
        self.half_open_per_source.unwrap_or((self.flows / 10).max(1) as u32)
    }
}

/// How failures are noticed.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DetectionConfig {
    /// Between two heartbeats of a runtime, milliseconds.
    pub heartbeat_ms: u64,
    /// A runtime that is not heard for so long has failed, milliseconds. Processes that end are noticed at once.
    pub hang_ms: u64,
    /// A host that is not heard for so long is cut off, milliseconds, 10 or more: it stops serving by then, and another begins soon after, at most as long.
    pub host_ms: u64,
}

impl Default for DetectionConfig {
    fn default() -> DetectionConfig {
        DetectionConfig { heartbeat_ms: 20, hang_ms: 500, host_ms: 400 }
    }
}

/// One text, or a list of texts.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl OneOrMany {
    /// All of them, in order.
    pub fn all(&self) -> Vec<&str> {
        match self {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) => texts.iter().map(String::as_str).collect(),
        }
    }
}

// Written out instead of `untagged`, which would say of every mistake only that no variant matched.
impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OneOrMany, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = OneOrMany;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address, or a list of addresses")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany::One(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<OneOrMany, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = list.next_element()? {
                    texts.push(text);
                }
                Ok(OneOrMany::Many(texts))
            }
        }
        deserializer.deserialize_any(Form)
    }
}

/// A text that may look like a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word(pub String);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
        struct Form;
        impl Visitor<'_> for Form {
            type Value = Word;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a word or a number")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Word, E> {
                Ok(Word(text.to_owned()))
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Word, E> {
                Ok(Word(number.to_string()))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Word, E> {
                Ok(Word(number.to_string()))
            }
        }
        deserializer.deserialize_any(Form)
    }
}

impl JsonSchema for Word {
    fn schema_name() -> Cow<'static, str> {
        "Word".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": ["string", "integer"] })
    }
}

/// A function of a chain: a name, or a name with its configuration.
#[derive(Debug, Clone)]
pub struct FunctionConfig {
    /// What was written; exactly one entry if it is right.
    pub entries: Vec<(String, Value)>,
}

impl<'de> Deserialize<'de> for FunctionConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FunctionConfig, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = FunctionConfig;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a function's name, or its name with its configuration below it")
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<FunctionConfig, E> {
                Ok(FunctionConfig { entries: vec![(name.to_owned(), Value::Null)] })
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FunctionConfig, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(FunctionConfig { entries })
            }
        }
        deserializer.deserialize_any(Form)
    }
}

impl JsonSchema for FunctionConfig {
    fn schema_name() -> Cow<'static, str> {
        "FunctionConfig".into()
    }

    // The functions' own schemas are put in by `config::schema`.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": ["string", "object"] })
    }
}

/// How the flows of a chain survive.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub enum ProtectionConfig {
    /// A preset.
    Preset(String),
    /// A preset with options, or an answer to each question.
    Options(Box<ProtectionOptions>),
}

impl<'de> Deserialize<'de> for ProtectionConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ProtectionConfig, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = ProtectionConfig;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a protection's name, or a map with `preset`")
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<ProtectionConfig, E> {
                Ok(ProtectionConfig::Preset(name.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ProtectionConfig, A::Error> {
                ProtectionOptions::deserialize(MapAccessDeserializer::new(map))
                    .map(|options| ProtectionConfig::Options(Box::new(options)))
            }
        }
        deserializer.deserialize_any(Form)
    }
}

/// A preset with options, or an answer to each of the three questions: where state lives, when a packet may leave, how what was lost is rebuilt.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProtectionOptions {
    /// `none`, `nfactor`, `nfvactor`, `reinforce` or `rescue`.
    pub preset: Option<String>,
    /// Where a flow's state lives: `memory`, or also on a `replica`, in a `snapshot` elsewhere now and then, on a `standby` that knows what has been processed since its copy, or
    /// `paged`: at a state server, and in memory while it is used.
    pub flow: Option<String>,
    /// Where shared state lives: `memory`, `partitioned` among the runtimes, or at a `state-server`, which assigns numbers one by one and adds up what is counted. The last goes with every preset, too, and with
    /// `rescue` and `flow: paged` unless `partitioned` is said.
    pub shared: Option<String>,
    /// When a packet leaves: `at-once`, from the `replica` or from the `source` once the replica has saved the state, once the `standby` knows of it, or when the
    /// state server has what it reveals (`write-back`).
    pub release: Option<String>,
    /// Where lost state comes back from: `nothing`, the `replica`, the `snapshots`, a `replay` of what the switch has logged, or the `pages` at the state server.
    pub rebuild: Option<String>,
    /// With `nfactor`: packets of a flow between two snapshots (10). So many of its latest packets a failure may undo.
    #[schemars(range(min = 1))]
    pub snapshot_every: Option<u32>,
    /// With `nfvactor` and `release: at-once`: packets of a flow that may leave before its replica
    /// has said that it knows of them (128); more wait for that. So many a failure may undo.
    #[schemars(range(min = 1))]
    pub unsaved_packets: Option<u32>,
    /// With `shared: state-server`: seconds for which a number rests that a flow had, such as a NAT's port, before another flow gets it (120, as RFC 6888 has it); twice `detection.hang_ms` at least.
    #[schemars(range(min = 0, max = 3600))]
    pub hold_s: Option<u64>,
    /// With `rescue` and `release: at-once`: milliseconds between two write-backs (100).
    #[schemars(range(min = 1, max = 10_000))]
    pub write_back_ms: Option<u64>,
    /// With `rescue` and `release: at-once`: a flow with so many packets since it was written back is written back at once (32). So many of its latest packets a failure may undo.
    #[schemars(range(min = 1))]
    pub write_back_packets: Option<u32>,
    /// With `rescue`: flows of which a runtime has the state in memory (all, if nothing is said). Of others it has a header of 192 bytes, and fetches the state from the state server when a packet comes for
    /// them; if worker and standby of that end together, these flows are lost.
    #[schemars(range(min = 16))]
    pub resident_flows: Option<u32>,
    /// With `reinforce`: milliseconds between two rounds of checkpoints (10). The longer, the less is sent, and the more is processed again after a failure.
    #[schemars(range(min = 1, max = 10_000))]
    pub checkpoint_ms: Option<u64>,
    /// With `reinforce`: MiB of the log that the switch keeps for each runtime (64).
    #[schemars(range(min = 1, max = 1024))]
    pub log_mib: Option<u64>,
    /// With `reinforce`: where the standby is: `remote`, in another runtime (the default); `local`, a process beside each runtime, which shares its memory and goes on when it is
    /// killed; or both, `local+remote`.
    pub level: Option<String>,
}

impl ProtectionOptions {
    /// The number with this key, if it is given.
    pub(super) fn number(&self, key: &str) -> Option<u64> {
        match key {
            "snapshot_every" => self.snapshot_every.map(u64::from),
            "unsaved_packets" => self.unsaved_packets.map(u64::from),
            "hold_s" => self.hold_s,
            "write_back_ms" => self.write_back_ms,
            "write_back_packets" => self.write_back_packets.map(u64::from),
            "resident_flows" => self.resident_flows.map(u64::from),
            "checkpoint_ms" => self.checkpoint_ms,
            "log_mib" => self.log_mib,
            _ => unreachable!("`{key}` is a number of a plan, and nobody can write it"),
        }
    }
}

/// When clusters grow and shrink.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScalingConfig {
    /// Between two looks at the load, milliseconds.
    #[schemars(range(min = 10, max = 3_600_000))]
    pub period_ms: u64,
    /// Packets that a runtime may drop per period, for want of room, before it gets help.
    pub drops: u64,
    /// A runtime that is busy for more than so many percent of its time, three periods in succession, gets help.
    #[schemars(range(min = 1, max = 100))]
    pub busy_percent: u16,
    /// A runtime is stopped if the others would be busy for at most so many percent of their time without it.
    #[schemars(range(min = 0, max = 99))]
    pub idle_percent: u16,
    /// Flows that are moved at a time.
    #[schemars(range(min = 1))]
    pub move_flows: u64,
    /// Periods in succession that must be so calm before one is stopped. Longer each time this turns out to have been too soon.
    #[schemars(range(min = 1, max = 100_000))]
    pub calm_periods: u32,
}

impl Default for ScalingConfig {
    fn default() -> ScalingConfig {
        ScalingConfig { period_ms: 1000, drops: 100, busy_percent: 90, idle_percent: 40, move_flows: 500, calm_periods: 30 }
    }
}

/// How many runtimes: a number, `{ count: 3 }` or `{ min: 2, max: 4 }`.
#[derive(Debug, Clone, Copy, JsonSchema)]
#[schemars(untagged)]
pub enum RuntimesConfig {
    /// Exactly so many.
    Count(u16),
    /// A number, or a range.
    Range(RuntimesRange),
}

/// How many runtimes, in words.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RuntimesRange {
    /// Exactly so many.
    pub count: Option<u16>,
    /// At least; so many are started at first.
    pub min: Option<u16>,
    /// At most: more are started when there is much to do, and stopped again. As many as `min` without it.
    pub max: Option<u16>,
}

impl RuntimesConfig {
    /// As `count`, `min`, `max`.
    pub fn range(&self) -> RuntimesRange {
        match *self {
            RuntimesConfig::Count(count) => RuntimesRange { count: Some(count), ..RuntimesRange::default() },
            RuntimesConfig::Range(range) => range,
        }
    }
}

impl<'de> Deserialize<'de> for RuntimesConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RuntimesConfig, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = RuntimesConfig;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of runtimes, or a map with `min` and `max`")
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<RuntimesConfig, E> {
                let count = u16::try_from(number).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))?;
                Ok(RuntimesConfig::Count(count))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<RuntimesConfig, E> {
                let count = u16::try_from(number).map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))?;
                Ok(RuntimesConfig::Count(count))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RuntimesConfig, A::Error> {
                RuntimesRange::deserialize(MapAccessDeserializer::new(map)).map(RuntimesConfig::Range)
            }
        }
        deserializer.deserialize_any(Form)
    }
}
