//! Virtual clusters, and the rules that send flows to them.
//!
//! A virtual cluster is the runtimes that serve a set of chains. What one runtime knows of others, where replicas lie, who recovers whom and
//! who leases from a pool all stay inside it. The rules are the coordinator's: every switch gets them as messages, says which version it goes
//! by, and gets them again if that is not the newest.

use super::Coordinator;
use crate::address::NodeId;
use crate::rules::{Rule, RuleSet};
use holdfast_protection::Peer;

/// A virtual cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Runtimes to keep running.
    pub runtimes: u16,
    /// The chains that it serves, counted from 0.
    pub chains: Vec<u16>,
    /// The protection of one of them promises that flows survive.
    pub promises: bool,
}

impl ClusterConfig {
    /// The only cluster, with so many runtimes for so many chains.
    pub fn only(runtimes: u16, chains: u16, promises: bool) -> Vec<ClusterConfig> {
        vec![ClusterConfig { runtimes, chains: (0..chains).collect(), promises }]
    }
}

impl Coordinator {
    /// The cluster that serves a chain.
    pub(super) fn cluster_of(&self, chain: u16) -> Option<(u16, &ClusterConfig)> {
        let numbered = (0u16..).zip(&self.config.clusters);
        numbered.into_iter().find(|(_, cluster)| cluster.chains.contains(&chain))
    }

    pub(super) fn is_in(&self, peer: Peer, cluster: u16) -> bool {
        self.runtimes.iter().any(|runtime| runtime.member.peer() == peer && runtime.member.cluster == cluster)
    }

    /// The rules.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// New rules, for flows that begin from now on. Their version: they are in force everywhere when [`Coordinator::rules_in_force`] has reached it.
    pub fn set_rules(&mut self, rules: Vec<Rule>) -> u64 {
        self.renew_rules(self.rules.version().saturating_add(1), rules);
        self.rules.version()
    }

    /// The oldest version that a switch goes by; 0 while there is no switch that could.
    pub fn rules_in_force(&self) -> u64 {
        self.switches.iter().map(|(_, version)| *version).min().unwrap_or(0)
    }

    fn renew_rules(&mut self, version: u64, rules: Vec<Rule>) {
        self.rules = RuleSet::new(version, rules);
        let switches: Vec<NodeId> = self.switches.iter().map(|(switch, _)| switch.node).collect();
        for switch in switches {
            self.push_rules(switch);
        }
    }

    fn push_rules(&mut self, to: NodeId) {
        for message in self.rules.messages(self.fabric.max_record()) {
            self.fabric.send_control(to, &message);
        }
    }

    /// A switch says which rules it goes by. One that has just started has none.
    pub(super) fn handle_rules_in_force(&mut self, from: Peer, version: u64) {
        match self.switches.iter_mut().find(|(switch, _)| switch.node == from.node) {
            Some(known) => *known = (from, version),
            None => self.switches.push((from, version)),
        }
        let newest = self.rules.version();
        if version > newest {
            // Of an earlier life of this coordinator, which it does not remember: what it has now is what counts.
            self.renew_rules(version.saturating_add(1), self.rules.rules().to_vec());
        } else if version < newest {
            self.push_rules(from.node);
        }
    }
}
