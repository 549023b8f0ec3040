//! Virtual clusters, and the rules that send flows to them.
//!
//! A virtual cluster is the runtimes that serve a set of chains. Members, replicas,
//! recoveries and leases all stay inside it. The rules are the coordinator's. Every
//! switch gets those of its chains as messages and says which version it uses; if that is
//! not the newest, it gets the rules again.

use super::memory::Decision;
use super::{Coordinator, Scaling};
use crate::rules::{Rule, RuleSet};
use holdfast_protection::Peer;
use holdfast_wire::NodeId;

/// A virtual cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Runtimes to keep running.
    pub runtimes: u16,
    /// Runtimes that may be started beyond that under load.
    pub spare: u16,
    /// The conditions of scaling; without them the cluster never scales.
    pub scaling: Option<Scaling>,
    /// The chains that the cluster serves, counted from 0.
    pub chains: Vec<u16>,
    /// True if the protection of one of the chains promises that flows survive.
    pub promises: bool,
}

impl ClusterConfig {
    /// The only cluster: so many runtimes for so many chains.
    pub fn only(runtimes: u16, chains: u16, promises: bool) -> Vec<ClusterConfig> {
        vec![ClusterConfig {
            runtimes,
            spare: 0,
            scaling: None,
            chains: (0..chains).collect(),
            promises,
        }]
    }
}

impl Coordinator {
    /// The rules.
    pub fn rules(&self) -> &RuleSet {
        &self.memory.rules
    }

    /// Sets rules for flows that begin from now on. Returns their version: they are in
    /// force everywhere when [`Coordinator::rules_in_force`] has reached it.
    pub fn set_rules(&mut self, rules: Vec<Rule>) -> u64 {
        self.renew_rules(RuleSet::new(self.memory.rules.version().saturating_add(1), rules));
        self.memory.rules.version()
    }

    /// The oldest version that a switch uses; 0 while a switch is missing.
    pub fn rules_in_force(&self) -> u64 {
        let are_all_there = self.switches.len() == self.memory.services.len();
        self.switches
            .iter()
            .map(|(_, version)| *version)
            .min()
            .filter(|_| are_all_there)
            .unwrap_or(0)
    }

    fn renew_rules(&mut self, rules: RuleSet) {
        self.record(Decision::Rules { rules });
        let switches: Vec<NodeId> = self.switches.iter().map(|(switch, _)| switch.node).collect();
        for switch in switches {
            self.push_rules(switch);
        }
    }

    fn push_rules(&mut self, to: NodeId) {
        // Each switch gets the rules of its chains.
        let memory = &self.memory;
        let rules =
            memory.rules.of_chains(|chain| to.switch_number() == Some(memory.switch_of(chain)));
        let messages = rules.messages(self.fabric.max_record());
        self.pending.extend(messages.into_iter().map(|message| (to, message)));
    }

    /// Takes a part of the rules that an operator wants. Rules that are known already
    /// were sent twice.
    pub(super) fn handle_rules(&mut self, version: u64, part: u16, parts: u16, rules: Vec<Rule>) {
        match self.coming.take(version, part, parts, rules) {
            Ok(Some(rules)) if rules.version() > self.memory.rules.version() => {
                self.renew_rules(rules)
            }
            Ok(_) => {}
            Err(reason) => self.drops.count(reason),
        }
        // Free a superseded set at once: no packet waits here.
        while self.coming.has_work() {
            self.coming.free();
        }
    }

    /// A switch says which rules it uses. A switch that has just started has none.
    pub(super) fn handle_rules_in_force(&mut self, from: Peer, switch: u16, version: u64) {
        if self.memory.services[usize::from(switch)].switch_incarnation != from.incarnation {
            self.record(Decision::Switch { switch, incarnation: from.incarnation });
        }
        match self.switches.iter_mut().find(|(switch, _)| switch.node == from.node) {
            Some(known) => *known = (from, version),
            None => self.switches.push((from, version)),
        }
        if version == 0 {
            // The switch has just started: it gets the list of the dead, and the members
            // behind it.
            self.pending.push_beginning(from.node);
            // Sweeps that were sent to its earlier incarnations are sent again.
            self.swept.retain(|swept| swept.observer != from.node);
            self.tell_sweeps();
        }
        let newest = self.memory.rules.version();
        if version > newest {
            // The version is from an earlier incarnation of this coordinator whose log is
            // lost: the present rules count.
            self.renew_rules(RuleSet::new(
                version.saturating_add(1),
                self.memory.rules.rules().to_vec(),
            ));
        } else if version < newest {
            self.push_rules(from.node);
        }
    }
}
