//! What a world is made of: the seed, the protection, the chain, and faults planted to test the checkers.

use crate::stamper::Stamper;
use holdfast_nf::{Bound, Chain, Function};
use holdfast_node::channel::FabricConfig;
use holdfast_node::runtime::{ChainSpec, RuntimeConfig};
use holdfast_protection::{NfvActor, Peer, Protection, ReleaseAt, Unprotected};

/// Which protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// `none`.
    None,
    /// `nfvactor`, released by the replica.
    Replica,
    /// `nfvactor`, released at the source.
    Source,
}

/// Bugs that the checkers must find. Only tests of the checkers plant any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Planted {
    /// Packets leave before their state is saved.
    pub release_before_commit: bool,
    /// Neither fence nor switch nor replica looks at incarnations and epochs.
    pub no_epoch_check: bool,
    /// The NAT gives a port that a live flow has.
    pub reuse_live_port: bool,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// Everything that is drawn is drawn from it.
    pub seed: u64,
    /// The protection.
    pub preset: Preset,
    /// Bugs.
    pub planted: Planted,
    /// Neither kills nor stops.
    pub quiet: bool,
}

impl Scenario {
    /// The scenario that a seed stands for in a run of many.
    pub fn of_seed(seed: u64) -> Scenario {
        let preset = if seed.is_multiple_of(2) { Preset::Replica } else { Preset::Source };
        Scenario { seed, preset, planted: Planted::default(), quiet: false }
    }

    /// True if the chain changes source addresses.
    pub(crate) fn translates(&self) -> bool {
        false
    }

    /// A fresh chain with its protection.
    pub(crate) fn chain(&self) -> ChainSpec {
        let stamper = Bound::<Stamper>::new(()).expect("the stamper has no configuration to refuse");
        let functions: Vec<Box<dyn Function>> = vec![Box::new(stamper)];
        let nfvactor = |release_at| {
            let planted = holdfast_protection::nfvactor::Planted {
                release_before_commit: self.planted.release_before_commit,
                no_epoch_check: self.planted.no_epoch_check,
            };
            Box::new(NfvActor::new(release_at).plant(planted))
        };
        let protection: Box<dyn Protection> = match self.preset {
            Preset::None => Box::new(Unprotected),
            Preset::Replica => nfvactor(ReleaseAt::Replica),
            Preset::Source => nfvactor(ReleaseAt::Source),
        };
        ChainSpec { name: "simulated".to_owned(), chain: Chain::new(functions), protection }
    }

    pub(crate) fn runtime_config(&self, me: Peer, fabric: FabricConfig) -> RuntimeConfig {
        RuntimeConfig { me, flows: 64, seed: self.seed, report_interval: 20_000_000, fabric }
    }
}
