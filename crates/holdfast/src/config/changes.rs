//! The difference of two plans: the changes that the second would make in a box that runs
//! the first.
//!
//! In: two plans. Out: a [`Difference`] for each key that differs, with its place in the
//! second file (for a missing key, the place where it would be), its kind, and its
//! meaning for flows; and the rules that come and go. Never: a difference between two
//! spellings of the same, except in functions, whose keys are compared as written. The
//! table ([`kinds`](super::kinds)) has the keys and their kinds, by which structs are
//! compared; this module compares values.

use super::clusters::{DEFAULT_CLUSTER, range};
use super::mistake::Mistake;
use super::plan::Plan;
use super::raw::{
    BfdConfig, BfdKeyConfig, BfdKeyType, Config, ControlConfig, EtcdConfig, FabricFileConfig,
    HostFabric, HostNetwork, OneOrMany, ProtectionConfig, ReversePathConfig, RouteConfig,
    RuleConfig, RuntimesConfig, RuntimesRange, ServerStandby, ServerTransport, StateServerSettings,
    TlsConfig, TlsFiles, VlanConfig, Word,
};
use super::source::Spot;
use super::{bfd, protection};
use holdfast_node::rules::Rule;
use std::collections::BTreeMap;

/// The way in which a key is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// While the box runs.
    Live,
    /// By a restart of the box, on all of its hosts.
    Restart,
}

impl Kind {
    /// The kind in a word.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Live => "live",
            Kind::Restart => "restart",
        }
    }
}

/// The table's row for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// How it is changed.
    pub kind: Kind,
    /// A key that differs between two plans.
    pub flows: &'static str,
}

/// A key that is not the same in two plans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The key from the top of the file: `ports.lan.mtu`.
    pub path: String,
    /// The table's row for the key.
    pub row: Row,
    /// The difference, with its place.
    pub mistake: Mistake,
}

/// A rule that comes or goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleChange {
    /// True for a new rule, false for a removed one.
    pub is_new: bool,
    /// The rule.
    pub rule: Rule,
}

/// The changes from one set of rules to the other, removals first. The rules' order has
/// no meaning.
pub fn rule_changes(running: &[Rule], new: &[Rule]) -> Vec<RuleChange> {
    let gone = running
        .iter()
        .filter(|rule| !new.contains(rule))
        .map(|rule| RuleChange { is_new: false, rule: rule.clone() });
    let come = new
        .iter()
        .filter(|rule| !running.contains(rule))
        .map(|rule| RuleChange { is_new: true, rule: rule.clone() });
    gone.chain(come).collect()
}

/// The differences of the new plan from the running one, except rules.
pub fn differences(running: &Plan, new: &Plan) -> Vec<Difference> {
    let (root, mut found) = (new.source.root(), Vec::new());
    // The whole file has no row of its own: every key below has one.
    let at = At {
        path: String::new(),
        parent: root,
        key: String::new(),
        spot: root,
        row: Row { kind: Kind::Restart, flows: "" },
    };
    said_in_full(running).compare(&said_in_full(new), &at, &mut found);
    found
}

/// The configuration with all defaults written out, in one of its spellings.
fn said_in_full(plan: &Plan) -> Config {
    let mut config = plan.raw.clone();
    let runtimes = |written: &mut Option<RuntimesConfig>| {
        let (min, max) = range(*written);
        *written = Some(RuntimesConfig::Range(RuntimesRange {
            count: None,
            min: Some(min),
            max: Some(max),
        }));
    };
    runtimes(&mut config.runtimes);
    config.clusters.values_mut().for_each(|cluster| runtimes(&mut cluster.runtimes));
    // The order of a zone's ports has no meaning.
    config.zones.values_mut().for_each(|ports| ports.sort());
    config.switches.values_mut().for_each(|switch| switch.ports.sort());
    config.ports.values_mut().flat_map(|port| &mut port.bfd).for_each(bfd::say_in_full);
    config.fabric.get_or_insert_default();
    config.state_server.get_or_insert_default().provider.clone_from(&plan.state_servers.provider);
    for (chain, planned) in config.chains.values_mut().zip(&plan.chains) {
        chain.cluster.get_or_insert_with(|| DEFAULT_CLUSTER.to_owned());
        chain.protection = Some(ProtectionConfig::Preset(protection::words(
            &planned.protection,
            chain.protection.as_ref(),
        )));
    }
    config
}

/// A key of the file: the place of its value, present or not, and the table's row.
#[derive(Clone)]
pub(super) struct At<'s> {
    path: String,
    /// The map or list that has the key.
    parent: Spot<'s>,
    key: String,
    spot: Spot<'s>,
    pub(super) row: Row,
}

impl<'s> At<'s> {
    /// A key below.
    pub(super) fn key(&self, key: &str, row: Row) -> At<'s> {
        let path =
            if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        At { path, parent: self.spot, key: key.to_owned(), spot: self.spot.key(key), row }
    }

    /// An item of a list.
    pub(super) fn index(&self, number: usize) -> At<'s> {
        let spot = self.spot.index(number);
        At {
            path: format!("{}[{number}]", self.path),
            parent: self.spot,
            key: String::new(),
            spot,
            row: self.row,
        }
    }

    fn difference(&self, spot: Spot<'_>, what: &str, verb: &str) -> Difference {
        let how = match self.row.kind {
            Kind::Live => format!("it is {verb} while the box runs, {}", self.row.flows),
            Kind::Restart => format!(
                "it is {verb} by a restart only, which ends all flows; afterwards {}",
                self.row.flows
            ),
        };
        Difference {
            path: self.path.clone(),
            row: self.row,
            mistake: spot.mistake(format!("{what}: {how}")),
        }
    }

    /// Reports that the key has another value, in words.
    pub(super) fn changed(&self, running: &str, new: &str) -> Difference {
        self.changed_at(self.spot, running, new)
    }

    /// As `changed`, from this item on; without an item the new value ends too early.
    pub(super) fn changed_from(
        &self,
        item: Option<At<'s>>,
        running: &str,
        new: &str,
    ) -> Difference {
        self.changed_at(
            item.map_or_else(|| self.parent.name(&self.key), |item| item.spot),
            running,
            new,
        )
    }

    fn changed_at(&self, spot: Spot<'_>, running: &str, new: &str) -> Difference {
        let words = |words: &str| {
            if words.is_empty() { "not set".to_owned() } else { format!("`{words}`") }
        };
        let what = format!(
            "`{}` is {} in the running box and {} here",
            self.path,
            words(running),
            words(new)
        );
        self.difference(spot, &what, "changed")
    }

    /// Reports a key that only the new file has.
    fn added(&self) -> Difference {
        let spot = if self.key.is_empty() { self.spot } else { self.parent.name(&self.key) };
        self.difference(spot, &format!("the running box has no `{}`", self.path), "added")
    }

    /// Reports a key that only the running box has, at the section that had it, if that
    /// is there.
    fn removed_from(&self, section: &At<'s>) -> Difference {
        let what = format!("`{}` of the running box is not here", self.path);
        self.difference(section.parent.name(&section.key), &what, "removed")
    }
}

/// A value that can be compared.
pub(super) trait Compare {
    /// Finds the differences of `new`.
    fn compare(&self, new: &Self, at: &At<'_>, found: &mut Vec<Difference>);
}

/// A value without keys of its own: equal if its words are equal. An unset value has
/// none.
trait Leaf {
    fn words(&self) -> String;
}

impl<T: Leaf> Leaf for Option<T> {
    fn words(&self) -> String {
        self.as_ref().map_or_else(String::new, Leaf::words)
    }
}

impl<T: Leaf> Compare for T {
    fn compare(&self, new: &T, at: &At<'_>, found: &mut Vec<Difference>) {
        let (running, new) = (self.words(), new.words());
        if running != new {
            found.push(at.changed(&running, &new));
        }
    }
}

macro_rules! leaves {
    ($($leaf:ty: |$value:ident| $words:expr;)*) => {
        $(impl Leaf for $leaf {
            fn words(&self) -> String {
                let $value = self;
                $words
            }
        })*
    };
}

fn listed_numbers(numbers: &[i64]) -> String {
    numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
}

leaves! {
    bool: |value| value.to_string();
    u8: |value| value.to_string();
    u16: |value| value.to_string();
    u32: |value| value.to_string();
    u64: |value| value.to_string();
    usize: |value| value.to_string();
    String: |text| text.clone();
    Vec<String>: |texts| texts.join(", ");
    Vec<i64>: |numbers| listed_numbers(numbers);
    VlanConfig: |vlan| listed_numbers(vlan.ids());
    Word: |word| word.0.clone();
    OneOrMany: |texts| texts.all().join(", ");
    ReversePathConfig: |check| format!("{check:?}").to_lowercase();
    BfdKeyType: |kind| kind.name().to_owned();
    ServerStandby: |standby| standby.to_string();
    ServerTransport: |transport| transport.to_string();
    ProtectionConfig: |protection| match protection {
        ProtectionConfig::Preset(words) => words.clone(),
        ProtectionConfig::Options(_) => unreachable!("what is said in full has one form"),
    };
    RuntimesConfig: |runtimes| match range(Some(*runtimes)) {
        (min, max) if min == max => min.to_string(),
        (min, max) => format!("{min} to {max}"),
    };
    HostFabric: |fabric| fabric.networks().iter().map(Leaf::words).collect::<Vec<_>>().join(", ");
    HostNetwork: |network| match network {
        HostNetwork::Device(device) => device.clone(),
        HostNetwork::Udp(fabric) => format!("udp: {}", fabric.udp),
    };
}

/// Compares optional sections, which differ from their defaults when left out.
macro_rules! optional {
    ($($section:ty),*) => {
        $(impl Compare for Option<$section> {
            fn compare(&self, new: &Self, at: &At<'_>, found: &mut Vec<Difference>) {
                match (self, new) {
                    (Some(running), Some(new)) => running.compare(new, at, found),
                    (None, Some(_)) => found.push(at.added()),
                    (Some(_), None) => found.push(at.removed_from(at)),
                    (None, None) => {}
                }
            }
        })*
    };
}

optional!(BfdKeyConfig, ControlConfig, EtcdConfig, FabricFileConfig, StateServerSettings);

/// Compares named entries by their names.
impl<T: Compare> Compare for BTreeMap<String, T> {
    fn compare(&self, new: &Self, at: &At<'_>, found: &mut Vec<Difference>) {
        for name in self.keys().filter(|name| !new.contains_key(*name)) {
            found.push(at.key(name, at.row).removed_from(at));
        }
        for (name, new) in new {
            let at = at.key(name, at.row);
            match self.get(name) {
                Some(running) => running.compare(new, &at, found),
                None => found.push(at.added()),
            }
        }
    }
}

/// Compares routes as a set: a route has no identity but its text.
impl Compare for Vec<RouteConfig> {
    fn compare(&self, new: &Self, at: &At<'_>, found: &mut Vec<Difference>) {
        let words = |route: &RouteConfig| {
            let on = route.on.as_ref().map_or(String::new(), |port| format!(" on {port}"));
            format!("{} via {}{on}", route.to, route.via)
        };
        let all = |routes: &Self| routes.iter().map(words).collect::<Vec<_>>();
        let (running, new) = (all(self), all(new));
        for (number, route) in new.iter().enumerate().filter(|(_, route)| !running.contains(route))
        {
            found.push(At { path: format!("{}: {route}", at.path), ..at.index(number) }.added());
        }
        for route in running.iter().filter(|route| !new.contains(route)) {
            found.push(At { path: format!("{}: {route}", at.path), ..at.clone() }.removed_from(at));
        }
    }
}

/// Compares watched routers by their addresses, and those with equal addresses key by
/// key.
impl Compare for Vec<BfdConfig> {
    fn compare(&self, new: &Self, at: &At<'_>, found: &mut Vec<Difference>) {
        let peers =
            |routers: &Self| routers.iter().map(|router| router.peer.clone()).collect::<Vec<_>>();
        let (running_peers, new_peers) = (peers(self), peers(new));
        if running_peers != new_peers {
            return running_peers.compare(&new_peers, at, found);
        }
        for (number, (running, new)) in self.iter().zip(new).enumerate() {
            running.compare(new, &at.index(number), found);
        }
    }
}

/// Leaves rules out: [`rule_changes`] compares them as resolved.
impl Compare for Vec<RuleConfig> {
    fn compare(&self, _: &Self, _: &At<'_>, _: &mut Vec<Difference>) {}
}

impl Compare for TlsConfig {
    fn compare(&self, new: &Self, at: &At<'_>, found: &mut Vec<Difference>) {
        let words = |tls: &TlsConfig| match tls {
            TlsConfig::Directory(directory) => directory.clone(),
            TlsConfig::Files(TlsFiles { ca, certificate, key }) => {
                format!("{ca}, {certificate}, {key}")
            }
        };
        match (self, new) {
            (TlsConfig::Files(running), TlsConfig::Files(new)) => running.compare(new, at, found),
            (running, new) => words(running).compare(&words(new), at, found),
        }
    }
}
