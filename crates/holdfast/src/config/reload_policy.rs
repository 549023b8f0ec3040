//! The table: the kind of change of each key in a running box, and its meaning for flows.
//!
//! The table has a row for each key of each struct of the file, the functions' own
//! included. Structs are compared by their rows, so a key without one does not compile.
//! Changes "by a restart" are described for flows that begin after it.

use super::attached;
use super::changes::{At, Compare, Difference, Kind, Row};
use super::raw::{
    BfdConfig, BfdKeyConfig, ChainConfig, ClusterSettings, Config, ControlConfig, DetectionConfig,
    EtcdConfig, FabricFileConfig, FunctionConfig, HostSettings, LimitsConfig, PortConfig,
    ProtectionOptions, RouteConfig, RuleConfig, RuntimesRange, ScalingConfig, StateServerSettings,
    SwitchSettings, TlsFiles, UdpFabric,
};
use holdfast_functions::catalog;
use holdfast_functions::{
    ClassConfig, DemoteConfig, DpiConfig, FirewallConfig, ForwardConfig, HttpConfig, IpsConfig,
    LimitConfig, LoadBalancerConfig, MarkConfig, MonitorConfig, NatConfig, PacketLimitConfig,
    QosMarkerConfig, RateLimiterConfig, TagConfig, Timeouts, VlanClassConfig, VlanFunctionConfig,
};
use serde_json::Value;

const fn restart(flows: &'static str) -> Row {
    Row { kind: Kind::Restart, flows }
}

/// Rules apply to flows that begin from now on; others keep their chain.
pub const RULES: Row = Row { kind: Kind::Live, flows: "for flows that begin from now on" };
const ALIKE: Row = restart("flows are served as before");
const WAYS: Row = restart("packets come and go another way");
const CHAINS: Row = restart("flows meet other functions");
const SURVIVAL: Row = restart("flows survive failures in another way");
const PLACES: Row = restart("flows live elsewhere");
const ROOM: Row = restart("there is room for another number of flows");
const NOTICE: Row = restart("failures are noticed after another time");
const PASSING: Row = restart("other flows pass");
const LIFETIMES: Row = restart("flows live for another time without a packet");
const TRANSLATED: Row = restart("flows have other addresses or ports outside");
const BALANCED: Row = restart("flows go to other backends");
const MARKED: Row = restart("packets are marked in another way");
const COUNTED: Row = restart("flows are served as before, and counted in another way");
const LOGGED: Row = restart("flows are served as before, and logged in another way");
/// The row of a function that does not ship with Holdfast.
const UNKNOWN: Row = restart("flows meet the function as it is configured then");

/// A key, as written, and its row.
pub type Key = (&'static str, Row);

/// Compares structs by their rows. A field named unlike its key has the key behind `=`.
macro_rules! keys {
    ($($struct:ident { $($field:ident $(= $key:literal)? : $row:expr,)* })*) => {
        $(impl Compare for $struct {
            fn compare(&self, new: &Self, at: &At<'_>, found: &mut Vec<Difference>) {
                let $struct { $($field),* } = self;
                $($field.compare(&new.$field, &at.key(key!($field $($key)?), $row), found);)*
            }
        })*
        /// The rows, by struct.
        pub const KEYS: &[(&str, &[Key])] = &[$((stringify!($struct), &[$((key!($field $($key)?), $row)),*])),*];
    };
}

/// As `keys`, for the functions' configurations, which are compared as written.
macro_rules! function_keys {
    ($($function:literal $struct:ident { $($field:ident $(= $key:literal)? : $row:expr,)* })*) => {
        $(const _: fn($struct) = |config| {
            let $struct { $($field: _),* } = config;
        };)*
        /// The rows of functions, by function, or by struct within one.
        pub const FUNCTION_KEYS: &[(&str, &[Key])] = &[$(($function, &[$((key!($field $($key)?), $row)),*])),*];
    };
}

macro_rules! key {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $key:literal) => {
        $key
    };
}

keys! {
    Config {
        cluster: ALIKE,
        ports: WAYS,
        zones: PASSING,
        routes: WAYS,
        chains: CHAINS,
        rules: RULES,
        runtimes: PLACES,
        scaling: PLACES,
        clusters: PLACES,
        hosts: PLACES,
        switches: WAYS,
        limits: ROOM,
        detection: NOTICE,
        state_server: SURVIVAL,
        fabric: ALIKE,
        state: ALIKE,
        etcd: ALIKE,
        control: ALIKE,
        seccomp: ALIKE,
    }
    PortConfig {
        device: WAYS,
        vlan: WAYS,
        flow_vlans: WAYS,
        address: WAYS,
        gateway: WAYS,
        mtu: WAYS,
        reverse_path: PASSING,
        bfd: WAYS,
    }
    BfdConfig {
        peer: WAYS,
        interval: NOTICE,
        multiplier: NOTICE,
        key: ALIKE,
    }
    BfdKeyConfig {
        kind = "type": ALIKE,
        id: ALIKE,
        file: ALIKE,
    }
    RouteConfig {
        to: WAYS,
        via: WAYS,
        on: WAYS,
    }
    ChainConfig {
        functions: CHAINS,
        protection: SURVIVAL,
        cluster: PLACES,
        answers_ping: ALIKE,
        switch: WAYS,
    }
    ProtectionOptions {
        preset: SURVIVAL,
        flow: SURVIVAL,
        shared: SURVIVAL,
        release: SURVIVAL,
        rebuild: SURVIVAL,
        snapshot_every: SURVIVAL,
        unsaved_packets: SURVIVAL,
        hold_s: TRANSLATED,
        write_back_ms: SURVIVAL,
        write_back_packets: SURVIVAL,
        resident_flows: ROOM,
        checkpoint_ms: SURVIVAL,
        log_mib: SURVIVAL,
        level: SURVIVAL,
    }
    RuleConfig {
        on: RULES,
        from: RULES,
        to: RULES,
        proto: RULES,
        ports: RULES,
        chain: RULES,
    }
    RuntimesRange {
        count: PLACES,
        min: PLACES,
        max: PLACES,
    }
    ScalingConfig {
        period_ms: PLACES,
        drops: PLACES,
        busy_percent: PLACES,
        idle_percent: PLACES,
        move_flows: PLACES,
        calm_periods: PLACES,
    }
    ClusterSettings {
        runtimes: PLACES,
    }
    HostSettings {
        fabric: ALIKE,
        devices: WAYS,
        serves: WAYS,
        runtimes: PLACES,
        coordinator: ALIKE,
        control: ALIKE,
    }
    UdpFabric {
        udp: ALIKE,
    }
    SwitchSettings {
        ports: WAYS,
        host: WAYS,
    }
    LimitsConfig {
        flows: ROOM,
        half_open_per_source: PASSING,
        flows_per_source: PASSING,
        buffers: ROOM,
    }
    DetectionConfig {
        heartbeat_ms: NOTICE,
        hang_ms: NOTICE,
        host_ms: NOTICE,
    }
    StateServerSettings {
        servers: PLACES,
        standby: SURVIVAL,
        transport: ALIKE,
        provider: ALIKE,
    }
    FabricFileConfig {
        key: ALIKE,
        mtu: ALIKE,
    }
    EtcdConfig {
        endpoints: ALIKE,
        prefix: ALIKE,
        ca: ALIKE,
        certificate: ALIKE,
        key: ALIKE,
        lease_ms: NOTICE,
    }
    ControlConfig {
        listen: ALIKE,
        tls: ALIKE,
    }
    TlsFiles {
        ca: ALIKE,
        certificate: ALIKE,
        key: ALIKE,
    }
}

function_keys! {
    "firewall" FirewallConfig {
        rules: PASSING,
        default: PASSING,
        timeouts: LIFETIMES,
    }
    "nat" NatConfig {
        pool: TRANSLATED,
        inside: TRANSLATED,
        publish: TRANSLATED,
        ports: TRANSLATED,
        limit_per_host: PASSING,
        timeouts: LIFETIMES,
    }
    "load_balancer" LoadBalancerConfig {
        virtual_address = "virtual": BALANCED,
        protocol: BALANCED,
        backends: BALANCED,
        policy: BALANCED,
        timeouts: LIFETIMES,
    }
    "Timeouts" Timeouts {
        tcp_established: LIFETIMES,
        tcp_opening: LIFETIMES,
        tcp_closing: LIFETIMES,
        udp: LIFETIMES,
        udp_unanswered: LIFETIMES,
        icmp: LIFETIMES,
        other: LIFETIMES,
    }
    "monitor" MonitorConfig {}
    "forward" ForwardConfig {}
    "packet_limit" PacketLimitConfig {
        packets: PASSING,
    }
    "qos_marker" QosMarkerConfig {
        classes: MARKED,
        rules: MARKED,
        default: MARKED,
    }
    "vlan" VlanFunctionConfig {
        classes: MARKED,
        rules: MARKED,
        default: MARKED,
    }
    "VlanClassConfig" VlanClassConfig {
        forward: MARKED,
        reverse: MARKED,
    }
    "TagConfig" TagConfig {
        id: MARKED,
        pcp: MARKED,
        dei: MARKED,
        keep: MARKED,
        pop: MARKED,
    }
    "rate_limiter" RateLimiterConfig {
        limits: PASSING,
    }
    "LimitConfig" LimitConfig {
        per: PASSING,
        rate: PASSING,
        burst: PASSING,
        flows: PASSING,
        direction: PASSING,
        prefix_v4: PASSING,
        prefix_v6: PASSING,
        mark: MARKED,
    }
    "http" HttpConfig {
        ports: PASSING,
        rules: PASSING,
        default: PASSING,
        oversized: PASSING,
        malformed: PASSING,
        header_bytes: PASSING,
        log: LOGGED,
        hosts: COUNTED,
    }
    "ips" IpsConfig {
        rules: PASSING,
        rule_files: PASSING,
        eve: ALIKE,
        variables: PASSING,
        unsupported: PASSING,
        uninspected: PASSING,
        retransmissions: PASSING,
    }
    "dpi" DpiConfig {
        rules: PASSING,
        tcp_packets: PASSING,
        other_packets: PASSING,
        undecided_flows: PASSING,
        memory_mib: PASSING,
    }
    "ClassConfig" ClassConfig {
        dscp: MARKED,
        pcp: MARKED,
        forward: MARKED,
        reverse: MARKED,
        demote: MARKED,
    }
    "MarkConfig" MarkConfig {
        dscp: MARKED,
        pcp: MARKED,
    }
    "DemoteConfig" DemoteConfig {
        to: MARKED,
        after_packets: MARKED,
        after_bytes: MARKED,
    }
}

/// The row of a key of this struct or function, if it has one.
pub fn row(of: &str, key: &str) -> Option<Row> {
    let (_, keys) = KEYS.iter().chain(FUNCTION_KEYS).find(|(name, _)| *name == of)?;
    keys.iter().find(|(name, _)| *name == key).map(|(_, row)| *row)
}

/// Compares functions by their names, and those with equal names key by key.
impl Compare for Vec<FunctionConfig> {
    fn compare(&self, new: &Self, at: &At<'_>, found: &mut Vec<Difference>) {
        let named = |functions: &Self| -> Vec<(String, Value)> {
            functions.iter().filter_map(|function| function.entries.first().cloned()).collect()
        };
        let (running, new) = (named(self), named(new));
        let name = |functions: &[(String, Value)], at: usize| {
            functions.get(at).map(|(name, _)| name.clone())
        };
        let longest = running.len().max(new.len());
        if let Some(first) = (0..longest).find(|at| name(&running, *at) != name(&new, *at)) {
            let names = |functions: &[(String, Value)]| {
                (0..functions.len()).filter_map(|at| name(functions, at)).collect::<Vec<_>>()
            };
            let place = (first < new.len()).then(|| at.index(first));
            found.push(at.changed_from(
                place,
                &names(&running).join(", "),
                &names(&new).join(", "),
            ));
            return;
        }
        for (number, ((name, running), (_, new))) in running.iter().zip(&new).enumerate() {
            let at = at.index(number).key(name, at.row);
            let keys = |value: &Value| {
                value
                    .as_object()
                    .map(|map| map.keys().cloned().collect::<Vec<_>>())
                    .unwrap_or_default()
            };
            let mut all = keys(running);
            all.extend(keys(new).into_iter().filter(|key| running.get(key).is_none()));
            // A bare name stands for an empty configuration.
            for key in all.iter().filter(|key| running.get(key) != new.get(key)) {
                let text =
                    |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let is_files = catalog::files(name).contains(&key.as_str());
                let text =
                    |value: &Value| if is_files { attached::words(value) } else { text(value) };
                let words = |value: &Value| value.get(key).map_or_else(String::new, text);
                words(running).compare(
                    &words(new),
                    &at.key(key, row(name, key).unwrap_or(UNKNOWN)),
                    found,
                );
            }
        }
    }
}
