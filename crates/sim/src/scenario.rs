//! A world's ingredients: the seed, the protection, the chain, and faults planted to test
//! the checkers.

use crate::published;
use crate::refuser::Refuser;
use crate::stamper::Stamper;
use holdfast_functions::{
    Firewall, FirewallConfig, LoadBalancer, LoadBalancerConfig, Nat, NatConfig, catalog,
};
use holdfast_nf::{Bound, Chain, ConfigError, Function};
use holdfast_node::channel::FabricConfig;
use holdfast_node::runtime::{ChainSpec, RuntimeConfig};
use holdfast_protection::plan::{Flow, Release, Shared};
use holdfast_protection::rescue::pages::PagesConfig;
use holdfast_protection::{Peer, Plan as Preset};
use holdfast_wire::NodeId;
use holdfast_wire::fault::Planted;
use serde_json::{Value, json};

/// Time between two changes of the release mode under `release: auto`, ns of stamped
/// time: shorter than any measurements would make it.
const FICKLE: u64 = 3_000_000;

/// Indexes of the NAT and of the refuser among a chain's functions.
pub(crate) const NAT: usize = 2;
pub(crate) const REFUSER: usize = 3;

/// Seeds from here on stand for worlds with `reinforce`.
const REINFORCE_FROM: u64 = 1_000_000;
/// Seeds from here on stand for worlds with a state server, under every protection.
const SERVED_FROM: u64 = 10_000_000;
/// Seeds from here on stand for worlds whose flows have their home at a state server.
const PAGED_FROM: u64 = 20_000_000;
/// Seeds from here on stand for worlds with several state servers.
const DIVIDED_FROM: u64 = 30_000_000;
/// Seeds from here on stand for worlds with published hosts, under every protection.
pub const PUBLISHED_FROM: u64 = 40_000_000;
/// Seeds from here on stand for worlds with TCP connections that are refused in their
/// middle.
pub const LIMITED_FROM: u64 = 50_000_000;
/// Presets of published and of limited worlds. Their number is fixed, so that a seed
/// stands for the same world whatever presets are added.
const PUBLISHED_PRESETS: u64 = 9;
/// Seeds from here on stand for worlds under the presets behind those. Every second world
/// has published hosts.
pub const COMBINED_FROM: u64 = 60_000_000;
/// Number of these presets.
const COMBINED_PRESETS: u64 = 1;
/// Seeds from here on stand for worlds in whose chains are functions that look into
/// packets and streams, under every preset but `none`. Every second world has published
/// hosts.
pub const INSPECTED_FROM: u64 = 70_000_000;
/// Number of presets of these worlds.
const INSPECTED_PRESETS: u64 = 9;
/// Time for which a state server lets a number rest that a flow had, ns.
pub(crate) const NUMBERS_REST: u64 = 1_000_000_000;

/// A plan with the numbers of a world, where everything is smaller and happens more
/// often. With `reinforce` the log is small and checkpoints are rare: most flows are
/// behind when something happens. With `rescue` flows stay dirty for a while. If flows
/// may be paged out, a runtime has room for fewer than a world has. If packets leave at
/// once, few do so ahead of their replica.
pub const fn in_worlds(plan: Preset) -> Preset {
    match plan.flow {
        Flow::Replica => {
            let fickle_every =
                if matches!(plan.release, Release::Auto) { Some(FICKLE) } else { None };
            Preset { fickle_every, unsaved_packets: 3, ..plan }
        }
        Flow::Standby => Preset { checkpoint_every: 400_000_000, log_bytes: 1 << 18, ..plan },
        Flow::Paged => {
            let resident_flows = if plan.has_absent_flows() { Some(2) } else { None };
            Preset { write_back_packets: 10, write_back_every: 20_000_000, resident_flows, ..plan }
        }
        Flow::Memory | Flow::Snapshot => plan,
    }
}

/// All protections, with the numbers of a world. Scenarios decide where shared state
/// lives.
pub fn presets() -> [Preset; Preset::ALL.len()] {
    Preset::ALL.map(|(_, plan)| in_worlds(plan))
}

/// A scenario, see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// The seed of everything that is drawn.
    pub seed: u64,
    /// The protection.
    pub preset: Preset,
    /// Faults that are planted while the world runs.
    pub planted: Planted,
    /// No process is killed, stopped, cut off or slowed by the seed.
    pub quiet: bool,
    /// The NAT pool has only four blocks: numbers of a dead runtime are soon another's.
    pub tight: bool,
    /// A state server assigns the NAT's numbers, one by one. In a tight world it has
    /// hardly more numbers than there are flows.
    pub served: bool,
    /// The balancer picks by the flow's key. Which backend has the least load is a matter
    /// of time if a state server tells runtimes of each other's load.
    pub by_key: bool,
    /// Number of state servers in a world that has any. Flows that have their home there
    /// are divided among them.
    pub servers: u16,
    /// Hosts inside are published, and two services have one backend. Drawn worlds then
    /// also have connections from outside and datagrams in fragments.
    pub published: bool,
    /// The chain has the functions that look into packets and streams, too.
    pub inspected: bool,
    /// The chain has these functions of the catalog, too.
    pub inserted: &'static [Inserted],
}

/// A function of the catalog, with its configuration, that a scenario's chains have
/// besides their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inserted {
    /// Its name.
    pub name: String,
    /// Its configuration.
    pub config: Value,
}

/// First outside address and port of the first chain's NAT, then its last port in a wide
/// and in a tight world. Each NAT has two addresses.
const OUTSIDE: ([u8; 4], u16) = ([198, 51, 100, 4], 1024);
const LAST_PORT: [u16; 2] = [3071, 1535];
/// Credit of an instance at the state server, in a wide and in a tight world.
const CREDIT: [usize; 2] = [8, 2];

/// First outside address of a chain's NAT. From the third chain on, addresses lie beyond
/// the servers'.
fn outside(chain: u16) -> u32 {
    let far = if chain < 2 { 0 } else { 64 };
    u32::from_be_bytes(OUTSIDE.0) + far + 2 * u32::from(chain)
}

impl Scenario {
    /// The scenario that a seed stands for in a run of many.
    pub fn of_seed(seed: u64) -> Scenario {
        if seed >= PUBLISHED_FROM {
            let first = [INSPECTED_FROM, COMBINED_FROM, LIMITED_FROM, PUBLISHED_FROM]
                .into_iter()
                .find(|first| seed >= *first);
            let inspected = seed >= INSPECTED_FROM;
            let is_combined = seed >= COMBINED_FROM && !inspected;
            let mut rest = seed - first.unwrap_or(PUBLISHED_FROM);
            let mut digit = |count: u64| {
                let digit = rest % count;
                rest /= count;
                digit
            };
            let preset = match (is_combined, inspected) {
                (true, _) => PUBLISHED_PRESETS + digit(COMBINED_PRESETS),
                (_, true) => 1 + digit(INSPECTED_PRESETS),
                _ => digit(PUBLISHED_PRESETS),
            };
            let preset = presets()[preset as usize];
            let (tight, served, servers) = (digit(2) == 1, digit(2) == 1, 1 + digit(3) as u16);
            let published = if seed >= COMBINED_FROM { digit(2) == 1 } else { seed < LIMITED_FROM };
            let planted = Planted::default();
            return Scenario {
                seed,
                preset,
                planted,
                quiet: false,
                tight,
                served,
                by_key: false,
                servers,
                published,
                inspected,
                inserted: &[],
            };
        }
        let presets = [
            Preset::NFVACTOR,
            Preset::NFVACTOR_AT_SOURCE,
            Preset::NFACTOR,
            Preset::NFVACTOR,
            Preset::NFVACTOR_AT_SOURCE,
        ];
        let served = (SERVED_FROM..PAGED_FROM).contains(&seed)
            || seed >= PAGED_FROM && seed.is_multiple_of(2);
        let preset = match seed {
            PAGED_FROM.. => {
                [Preset::RESCUE, Preset::RESCUE_PAGED, Preset::RESCUE_AT_ONCE][(seed % 3) as usize]
            }
            REINFORCE_FROM..SERVED_FROM => Preset::REINFORCE,
            SERVED_FROM.. if seed % 5 == 3 => Preset::REINFORCE,
            _ => presets[(seed % presets.len() as u64) as usize],
        };
        let servers = if seed >= DIVIDED_FROM { 2 + (seed / 6 % 2) as u16 } else { 1 };
        Scenario {
            seed,
            preset: in_worlds(preset),
            planted: Planted::default(),
            quiet: false,
            tight: seed / 5 % 2 == 1,
            served,
            by_key: false,
            servers,
            published: false,
            inspected: false,
            inserted: &[],
        }
    }

    /// True if connections that are refused in their middle are drawn, too.
    pub(crate) fn is_limited(&self) -> bool {
        (LIMITED_FROM..COMBINED_FROM).contains(&self.seed)
    }

    fn ports(&self) -> (u16, u16) {
        // The range is wider by the published ports, so that as many can be leased as
        // without them.
        (
            OUTSIDE.1,
            LAST_PORT[usize::from(self.tight)] + if self.published { published::COUNT } else { 0 },
        )
    }

    /// The number that an outside address and port have in this chain's NAT pool; `None`
    /// if they are not in it.
    pub(crate) fn number(&self, chain: u16, (address, port): ([u8; 4], u16)) -> Option<u32> {
        let (below, is_taken) =
            if self.published { published::taken(address, port) } else { (0, false) };
        let (first, of_each) =
            (OUTSIDE.1, u32::from(LAST_PORT[usize::from(self.tight)] - OUTSIDE.1) + 1);
        let address = u32::from_be_bytes(address).wrapping_sub(outside(chain));
        let port = u32::from(port.wrapping_sub(first + below));
        (address < 2 && port < of_each && !is_taken).then(|| address * of_each + port)
    }

    /// Fresh chains with their protection, `of_each` for each switch. Only the addresses
    /// of their NATs differ.
    pub(crate) fn chains(&self, switches: u16, of_each: u16) -> Vec<ChainSpec> {
        (0..switches * of_each).map(|number| self.chain(number, number / of_each)).collect()
    }

    /// Configurations of the pages of so many chains, with room for so many flows of
    /// each. Empty if no flow has its home at a state server.
    pub(crate) fn pages(&self, chains: u16, flows: usize) -> Vec<PagesConfig> {
        let layout = self.chain(0, 0).chain.layout().clone();
        let of_chain = |chain| PagesConfig {
            chain,
            flows,
            state_len: layout.size,
            layout: layout.hash,
            seed: self.seed,
        };
        (0..if self.preset.is_paged() { chains } else { 0 }).map(of_chain).collect()
    }

    fn chain(&self, number: u16, switch: u16) -> ChainSpec {
        let functions = self.functions(number).expect("the scenario's own configuration is right");
        let shared = if self.served { Shared::StateServer } else { Shared::Partitioned };
        let protection = Preset { shared, ..self.preset }.build();
        let mut chain = Chain::new(functions);
        if self.served {
            chain.ask_server(CREDIT[usize::from(self.tight)], NUMBERS_REST);
            chain.share_statistics();
        }
        ChainSpec {
            name: "simulated".to_owned(),
            switch: NodeId::switch(switch),
            chain,
            protection,
        }
    }

    /// Stamper, firewall, NAT, refuser, what inspects, what is inserted, balancers.
    /// Checkers look for the stamper's state in the first place and for the balancer's in
    /// the last.
    fn functions(&self, chain: u16) -> Result<Vec<Box<dyn Function>>, ConfigError> {
        let read = |error: serde_json::Error| ConfigError::at("", error.to_string());
        let mut rules = vec!["allow any from 10.0.0.0/8".to_owned()];
        let (mut mappings, mut services) = (Vec::new(), Vec::new());
        if self.published {
            rules.extend(published::allowed());
            mappings = published::mappings();
            services.extend(published::configurations());
        }
        let firewall: FirewallConfig =
            serde_json::from_value(json!({ "rules": rules })).map_err(read)?;
        let (first, last) = self.ports();
        let [a, b, c, d] = outside(chain).to_be_bytes();
        let pool = [format!("{a}.{b}.{c}.{d}/31")];
        let nat: NatConfig = serde_json::from_value(
            json!({ "pool": pool, "ports": format!("{first}-{last}"), "publish": mappings }),
        )
        .map_err(read)?;
        let backends = ["198.51.100.11:80", "198.51.100.12:80"];
        let policy = if self.by_key { "maglev" } else { "least_load" };
        let balancer: LoadBalancerConfig = serde_json::from_value(
            json!({ "virtual": "203.0.113.10:80", "backends": backends, "policy": policy }),
        )
        .map_err(read)?;
        let mut functions: Vec<Box<dyn Function>> = vec![
            Box::new(Bound::<Stamper>::new(())?),
            Box::new(Bound::<Firewall>::new(firewall)?),
            Box::new(Bound::<Nat>::new(nat)?),
            Box::new(Bound::<Refuser>::new(())?),
        ];
        if self.inspected {
            functions.extend(self.inspecting()?);
        }
        for Inserted { name, config } in self.inserted {
            functions.push(catalog::build(name, config)?);
        }
        for service in services {
            functions.push(Box::new(Bound::<LoadBalancer>::new(
                serde_json::from_value(service).map_err(read)?,
            )?));
        }
        functions.push(Box::new(Bound::<LoadBalancer>::new(balancer)?));
        Ok(functions)
    }

    /// Functions that look into packets and streams, and let all of this world pass: each
    /// finds or measures something, and refuses nothing. A datagram in fragments cannot
    /// be inspected.
    fn inspecting(&self) -> Result<Vec<Box<dyn Function>>, ConfigError> {
        let limits = json!([
            { "per": "flow", "rate": "100 packets/s", "burst": "3 packets", "mark": "le" },
        ]);
        let rule = "alert ip any any -> any any (content:\"|1f|\"; content:\"|3e|\"; distance:0; within:9; sid:1;)";
        let expression = "alert ip any any -> any any (pcre:\"/\\x1f.{0,8}\\x3e/s\"; sid:2;)";
        let uninspected = if self.published { "pass" } else { "drop" };
        let configurations = [
            ("monitor", json!({})),
            ("rate_limiter", json!({ "limits": limits })),
            ("ips", json!({ "rules": [rule, expression], "uninspected": uninspected })),
            ("http", json!({ "ports": [80], "malformed": "allow" })),
        ];
        let build = |(name, config): &(&str, Value)| catalog::build(name, config);
        configurations.iter().map(build).collect()
    }

    /// Bytes of the switches' logs, by chain.
    pub(crate) fn logs(&self, chains: u16) -> Vec<usize> {
        vec![self.preset.log_size(); usize::from(chains)]
    }

    pub(crate) fn runtime_config(
        &self,
        me: Peer,
        flows: usize,
        fabric: FabricConfig,
    ) -> RuntimeConfig {
        RuntimeConfig { me, flows, seed: self.seed, report_interval: 20_000_000, fabric }
    }
}
