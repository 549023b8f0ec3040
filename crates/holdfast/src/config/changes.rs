//! What differs between the configuration of a running box and another one: what can be changed while it runs, and what cannot.
//!
//! Two ways of writing the same are the same. Every difference has its place in the new file; of what is missing there, the place where it
//! would stand.

use super::clusters::{DEFAULT_CLUSTER, range};
use super::mistake::Mistake;
use super::plan::Plan;
use super::raw::{
    ChainConfig, Config, EtcdConfig, FunctionConfig, HostNetwork, HostSettings, LimitsConfig, OneOrMany, PortConfig, RouteConfig,
    SwitchSettings,
};
use super::source::Spot;
use super::state_server::StateServers;
use super::{bfd, control};
use holdfast_node::rules::Rule;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A rule that comes or goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleChange {
    /// It comes.
    pub is_new: bool,
    /// It.
    pub rule: Rule,
}

/// What makes one set of rules the other, those that go first. Their order means nothing.
pub fn rule_changes(running: &[Rule], new: &[Rule]) -> Vec<RuleChange> {
    let gone = running.iter().filter(|rule| !new.contains(rule)).map(|rule| RuleChange { is_new: false, rule: rule.clone() });
    let come = new.iter().filter(|rule| !running.contains(rule)).map(|rule| RuleChange { is_new: true, rule: rule.clone() });
    gone.chain(come).collect()
}

/// What the new plan would change and a running box cannot: everything but the rules.
pub fn differences(running: &Plan, new: &Plan) -> Vec<Mistake> {
    let mut comparison = Comparison { found: Vec::new() };
    comparison.compare(running, new);
    comparison.found
}

struct Comparison {
    found: Vec<Mistake>,
}

fn texts(written: Option<&OneOrMany>) -> String {
    written.map(OneOrMany::all).unwrap_or_default().join(", ")
}

impl Comparison {
    /// `spot` is where the new value stands, or would.
    fn value<T: PartialEq>(&mut self, what: &str, running: &T, new: &T, spot: Spot<'_>, show: impl Fn(&T) -> String) {
        if running != new {
            self.found.push(spot.mistake(format!(
                "{what} is {} in the running box and {} here: it is changed by a restart only",
                show(running),
                show(new)
            )));
        }
    }

    fn text(&mut self, what: &str, running: String, new: String, spot: Spot<'_>) {
        self.value(what, &running, &new, spot, |text| if text.is_empty() { "not set".to_owned() } else { format!("`{text}`") });
    }

    /// What is in one of two maps only; `section` is the new map's key.
    fn names<T, U>(
        &mut self,
        what: &str,
        running: &BTreeMap<String, T>,
        new: &BTreeMap<String, U>,
        root: Spot<'_>,
        section: &str,
    ) {
        for name in running.keys().filter(|name| !new.contains_key(*name)) {
            let text = format!("{what} `{name}` of the running box is not here: it is removed by a restart only");
            self.found.push(root.name(section).mistake(text));
        }
        for name in new.keys().filter(|name| !running.contains_key(*name)) {
            let text = format!("the running box has no {what} `{name}`: it is added by a restart only");
            self.found.push(root.key(section).name(name).mistake(text));
        }
    }

    fn compare(&mut self, running_plan: &Plan, new_plan: &Plan) {
        let (running, new, root) = (&running_plan.raw, &new_plan.raw, new_plan.source.root());
        self.text("the cluster's name", running.cluster.clone(), new.cluster.clone(), root.key("cluster"));
        self.names("port", &running.ports, &new.ports, root, "ports");
        for (name, port) in &new.ports {
            if let Some(running) = running.ports.get(name) {
                self.port(name, running, port, root.key("ports").key(name));
            }
        }
        self.names("zone", &running.zones, &new.zones, root, "zones");
        for (name, ports) in &new.zones {
            // Their order means nothing.
            let set = |ports: &Vec<String>| ports.iter().cloned().collect::<BTreeSet<_>>();
            let show = |ports: &BTreeSet<String>| ports.iter().map(|port| format!("`{port}`")).collect::<Vec<_>>().join(", ");
            if let Some(running) = running.zones.get(name) {
                self.value(&format!("zone `{name}`"), &set(running), &set(ports), root.key("zones").key(name), show);
            }
        }
        let route = |route: &RouteConfig| {
            let on = route.on.as_ref().map_or(String::new(), |port| format!(" on {port}"));
            format!("{} via {}{on}", route.to, route.via)
        };
        let routes = |config: &Config| config.routes.iter().map(route).collect::<Vec<_>>();
        let (running_routes, new_routes) = (routes(running), routes(new));
        for (at, route) in new_routes.iter().enumerate().filter(|(_, route)| !running_routes.contains(route)) {
            let text = format!("the running box has no route to {route}: it is added by a restart only");
            self.found.push(root.key("routes").index(at).mistake(text));
        }
        for route in running_routes.iter().filter(|route| !new_routes.contains(route)) {
            let text = format!("the running box's route to {route} is not here: it is removed by a restart only");
            self.found.push(root.name("routes").mistake(text));
        }
        self.chains(running_plan, new_plan, root);
        self.names("cluster", &running.clusters, &new.clusters, root, "clusters");
        let show = |(least, most): &(u16, u16)| if least == most { least.to_string() } else { format!("{least} to {most}") };
        let whole = (range(running.runtimes), range(new.runtimes));
        self.value("the number of runtimes", &whole.0, &whole.1, root.key("runtimes"), show);
        for (name, settings) in &new.clusters {
            if let Some(running) = running.clusters.get(name) {
                let spot = root.key("clusters").key(name).key("runtimes");
                let what = format!("the number of runtimes of cluster `{name}`");
                self.value(&what, &range(running.runtimes), &range(settings.runtimes), spot, show);
            }
        }
        let key = |config: &Config| config.fabric.as_ref().and_then(|fabric| fabric.key.clone()).unwrap_or_default();
        self.text("`fabric.key`", key(running), key(new), root.key("fabric").key("key"));
        let mtu =
            |config: &Config| config.fabric.as_ref().and_then(|fabric| fabric.mtu).map_or(String::new(), |mtu| mtu.to_string());
        self.text("`fabric.mtu`", mtu(running), mtu(new), root.key("fabric").key("mtu"));
        self.text("`state`", running.state.clone().unwrap_or_default(), new.state.clone().unwrap_or_default(), root.key("state"));
        let (running_servers, new_servers) = (&running_plan.state_servers, &new_plan.state_servers);
        let spot = root.key("state_server").key("standby");
        self.text("`state_server.standby`", running_servers.standby.to_string(), new_servers.standby.to_string(), spot);
        let spot = root.key("state_server").key("servers");
        self.value("the number of state servers", &running_servers.count, &new_servers.count, spot, u16::to_string);
        let spot = root.key("state_server").key("transport");
        self.text("`state_server.transport`", running_servers.transport.to_string(), new_servers.transport.to_string(), spot);
        let provider = |servers: &StateServers| servers.provider.clone().unwrap_or_default();
        if running_servers.transport == new_servers.transport {
            let spot = root.key("state_server").key("provider");
            self.text("`state_server.provider`", provider(running_servers), provider(new_servers), spot);
        }
        self.value("`seccomp`", &running.seccomp, &new.seccomp, root.key("seccomp"), bool::to_string);
        self.etcd(running, new, root);
        self.control(running, new, root);
        self.hosts(running, new, root);
        self.switches(running, new, root);
        type Limit = fn(&LimitsConfig) -> Option<u32>;
        let limits: [(&str, Limit); 2] = [
            ("half_open_per_source", |limits| limits.half_open_per_source),
            ("flows_per_source", |limits| limits.flows_per_source),
        ];
        for (key, of) in limits {
            let most = |config: &Config| of(&config.limits).map_or_else(String::new, |most| most.to_string());
            self.text(&format!("`limits.{key}`"), most(running), most(new), root.key("limits").key(key));
        }
        let number = |number: &u64| number.to_string();
        for (section, key, running, new) in [
            ("limits", "flows", running.limits.flows as u64, new.limits.flows as u64),
            ("limits", "buffers", running.limits.buffers.into(), new.limits.buffers.into()),
            ("detection", "heartbeat_ms", running.detection.heartbeat_ms, new.detection.heartbeat_ms),
            ("detection", "hang_ms", running.detection.hang_ms, new.detection.hang_ms),
            ("detection", "host_ms", running.detection.host_ms, new.detection.host_ms),
            ("scaling", "period_ms", running.scaling.period_ms, new.scaling.period_ms),
            ("scaling", "drops", running.scaling.drops, new.scaling.drops),
            ("scaling", "busy_percent", running.scaling.busy_percent.into(), new.scaling.busy_percent.into()),
            ("scaling", "idle_percent", running.scaling.idle_percent.into(), new.scaling.idle_percent.into()),
            ("scaling", "move_flows", running.scaling.move_flows, new.scaling.move_flows),
            ("scaling", "calm_periods", running.scaling.calm_periods.into(), new.scaling.calm_periods.into()),
        ] {
            self.value(&format!("`{section}.{key}`"), &running, &new, root.key(section).key(key), number);
        }
    }

    fn etcd(&mut self, running: &Config, new: &Config, root: Spot<'_>) {
        type Read = fn(&EtcdConfig) -> Option<String>;
        let spot = root.key("etcd");
        let of = |config: &Config, key: Read| config.etcd.as_ref().and_then(key).unwrap_or_default();
        let keys: [(&str, Read); 6] = [
            ("endpoints", |etcd| Some(etcd.endpoints.join(", "))),
            ("prefix", |etcd| etcd.prefix.clone()),
            ("ca", |etcd| etcd.ca.clone()),
            ("certificate", |etcd| etcd.certificate.clone()),
            ("key", |etcd| etcd.key.clone()),
            ("lease_ms", |etcd| Some(etcd.lease_ms.to_string())),
        ];
        for (key, value) in keys {
            self.text(&format!("`etcd.{key}`"), of(running, value), of(new, value), spot.key(key));
        }
    }

    fn control(&mut self, running: &Config, new: &Config, root: Spot<'_>) {
        let spot = root.key("control");
        let listen = |config: &Config| config.control.as_ref().and_then(|control| control.listen.clone()).unwrap_or_default();
        self.text("`control.listen`", listen(running), listen(new), spot.key("listen"));
        let tls = |config: &Config| config.control.as_ref().map(|control| control::words(&control.tls)).unwrap_or_default();
        self.text("`control.tls`", tls(running), tls(new), spot.key("tls"));
    }

    /// Which hosts there are, in their order, gives them their numbers: a host that began with another list would take another's.
    fn hosts(&mut self, running: &Config, new: &Config, root: Spot<'_>) {
        self.names("host", &running.hosts, &new.hosts, root, "hosts");
        type Read = fn(&HostSettings) -> String;
        let keys: [(&str, Read); 6] = [
            ("fabric", |host| {
                let network = |network: &HostNetwork| match network {
                    HostNetwork::Device(device) => device.clone(),
                    HostNetwork::Udp(fabric) => format!("udp: {}", fabric.udp),
                };
                host.fabric.networks().iter().map(network).collect::<Vec<_>>().join(", ")
            }),
            ("devices", |host| {
                host.devices.iter().map(|(port, device)| format!("{port}: {device}")).collect::<Vec<_>>().join(", ")
            }),
            ("serves", |host| host.serves.to_string()),
            ("runtimes", |host| host.runtimes.to_string()),
            ("coordinator", |host| host.coordinator.to_string()),
            ("control", |host| host.control.clone().unwrap_or_default()),
        ];
        for (name, host) in &new.hosts {
            let Some(running) = running.hosts.get(name) else { continue };
            for (key, value) in keys {
                let spot = root.key("hosts").key(name).key(key);
                self.text(&format!("`{key}` of host `{name}`"), value(running), value(host), spot);
            }
        }
    }

    fn switches(&mut self, running: &Config, new: &Config, root: Spot<'_>) {
        self.names("switch", &running.switches, &new.switches, root, "switches");
        for (name, switch) in &new.switches {
            let Some(running) = running.switches.get(name) else { continue };
            let spot = root.key("switches").key(name);
            // Their order means nothing.
            let ports = |switch: &SwitchSettings| switch.ports.iter().cloned().collect::<BTreeSet<_>>();
            let show = |ports: &BTreeSet<String>| ports.iter().map(|port| format!("`{port}`")).collect::<Vec<_>>().join(", ");
            self.value(&format!("`ports` of switch `{name}`"), &ports(running), &ports(switch), spot.key("ports"), show);
            self.text(&format!("`host` of switch `{name}`"), running.host.clone(), switch.host.clone(), spot.key("host"));
        }
    }

    fn port(&mut self, name: &str, running: &PortConfig, new: &PortConfig, spot: Spot<'_>) {
        let what = |key: &str| format!("`{key}` of port `{name}`");
        self.text(&what("device"), running.device.clone(), new.device.clone(), spot.key("device"));
        self.text(&what("address"), texts(Some(&running.address)), texts(Some(&new.address)), spot.key("address"));
        self.text(&what("gateway"), texts(running.gateway.as_ref()), texts(new.gateway.as_ref()), spot.key("gateway"));
        let mtu = |port: &PortConfig| port.mtu.map(|mtu| mtu.to_string()).unwrap_or_default();
        self.text(&what("mtu"), mtu(running), mtu(new), spot.key("mtu"));
        let reverse_path = |port: &PortConfig| format!("{:?}", port.reverse_path).to_lowercase();
        self.text(&what("reverse_path"), reverse_path(running), reverse_path(new), spot.key("reverse_path"));
        let bfd = |port: &PortConfig| port.bfd.iter().map(bfd::words).collect::<Vec<_>>().join(", ");
        self.text(&what("bfd"), bfd(running), bfd(new), spot.key("bfd"));
    }

    fn chains(&mut self, running_plan: &Plan, new_plan: &Plan, root: Spot<'_>) {
        let (running, new) = (&running_plan.raw, &new_plan.raw);
        self.names("chain", &running.chains, &new.chains, root, "chains");
        for (name, chain) in &new.chains {
            let Some(old) = running.chains.get(name) else { continue };
            let spot = root.key("chains").key(name);
            let is_same = |at: usize| {
                old.functions.get(at).zip(chain.functions.get(at)).is_some_and(|(old, new)| is_same_function(old, new))
            };
            let functions = old.functions.len().max(chain.functions.len());
            if let Some(at) = (0..functions).find(|at| !is_same(*at)) {
                let place = if at < chain.functions.len() { spot.key("functions").index(at) } else { spot.name("functions") };
                self.found.push(place.mistake(format!(
                    "from function {} on, chain `{name}` is another one than in the running box: it is changed by a restart only",
                    at + 1
                )));
            }
            let protection = |plan: &Plan| plan.chains.iter().find(|chain| chain.name == *name).map(|chain| chain.protection);
            if protection(running_plan) != protection(new_plan) {
                let text = format!(
                    "the protection of chain `{name}` is another one in the running box: it is changed by a restart only"
                );
                self.found.push(spot.key("protection").mistake(text));
            }
            let pinged = |chain: &ChainConfig| texts(chain.answers_ping.as_ref());
            self.text(&format!("`answers_ping` of chain `{name}`"), pinged(old), pinged(chain), spot.key("answers_ping"));
            let cluster = |cluster: &Option<String>| cluster.clone().unwrap_or_else(|| DEFAULT_CLUSTER.to_owned());
            let what = format!("the cluster of chain `{name}`");
            self.text(&what, cluster(&old.cluster), cluster(&chain.cluster), spot.key("cluster"));
            let (before, now) = (old.switch.clone().unwrap_or_default(), chain.switch.clone().unwrap_or_default());
            self.text(&format!("the switch of chain `{name}`"), before, now, spot.key("switch"));
        }
    }
}

/// A name alone is the name with an empty configuration below it.
fn is_same_function(running: &FunctionConfig, new: &FunctionConfig) -> bool {
    let is_nothing = |value: &Value| value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
    let is_same_value = |old: &Value, new: &Value| old == new || is_nothing(old) && is_nothing(new);
    let mut pairs = running.entries.iter().zip(&new.entries);
    running.entries.len() == new.entries.len() && pairs.all(|(old, new)| old.0 == new.0 && is_same_value(&old.1, &new.1))
}
