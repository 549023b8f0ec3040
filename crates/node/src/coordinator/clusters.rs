//! Virtual clusters, and the rules that send flows to them.
//!
//! A virtual cluster is the runtimes that serve a set of chains. What one runtime knows of others, where replicas lie, who recovers whom and
//! who leases from a pool all stay inside it. The rules are the coordinator's: every switch gets those of its chains as messages, says which version it goes
//! by, and gets them again if that is not the newest.

use super::memory::Entry;
use super::{Coordinator, Scaling};
use crate::address::{NodeId, switch_number};
use crate::rules::{Rule, RuleSet};
use holdfast_protection::Peer;

/// A virtual cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Runtimes to keep running.
    pub runtimes: u16,
    /// As many more may be started when there is much to do.
    pub spare: u16,
    /// When; never without it.
    pub scaling: Option<Scaling>,
    /// The chains that it serves, counted from 0.
    pub chains: Vec<u16>,
    /// The protection of one of them promises that flows survive.
    pub promises: bool,
}

impl ClusterConfig {
    /// The only cluster, with so many runtimes for so many chains.
    pub fn only(runtimes: u16, chains: u16, promises: bool) -> Vec<ClusterConfig> {
        vec![ClusterConfig { runtimes, spare: 0, scaling: None, chains: (0..chains).collect(), promises }]
    }
}

impl Coordinator {
    /// The rules.
    pub fn rules(&self) -> &RuleSet {
        &self.memory.rules
    }

    /// New rules, for flows that begin from now on. Their version: they are in force everywhere when [`Coordinator::rules_in_force`] has reached it.
    pub fn set_rules(&mut self, rules: Vec<Rule>) -> u64 {
        self.renew_rules(RuleSet::new(self.memory.rules.version().saturating_add(1), rules));
        self.memory.rules.version()
    }

    /// The oldest version that a switch goes by; 0 while one is missing.
    pub fn rules_in_force(&self) -> u64 {
        let are_all_there = self.switches.len() == self.memory.services.len();
        self.switches.iter().map(|(_, version)| *version).min().filter(|_| are_all_there).unwrap_or(0)
    }

    fn renew_rules(&mut self, rules: RuleSet) {
        self.record(Entry::Rules { rules });
        let switches: Vec<NodeId> = self.switches.iter().map(|(switch, _)| switch.node).collect();
        for switch in switches {
            self.push_rules(switch);
        }
    }

    fn push_rules(&mut self, to: NodeId) {
        // A rule counts at the switch of its chain.
        let memory = &self.memory;
        let rules = memory.rules.of_chains(|chain| switch_number(to) == Some(memory.switch_of(chain)));
        let messages = rules.messages(self.fabric.max_record());
        self.pending.extend(messages.into_iter().map(|message| (to, message)));
    }

    /// A part of the rules that an operator wants. Those that are known already were told a second time.
    pub(super) fn handle_rules(&mut self, version: u64, part: u16, parts: u16, rules: Vec<Rule>) {
        match self.coming.take(version, part, parts, rules) {
            Ok(Some(rules)) if rules.version() > self.memory.rules.version() => self.renew_rules(rules),
            Ok(_) => {}
            Err(reason) => self.drops.count(reason),
        }
        // A superseded set is freed at once: no packet waits here.
        while self.coming.has_work() {
            self.coming.free();
        }
    }

    /// A switch says which rules it goes by. One that has just started has none.
    pub(super) fn handle_rules_in_force(&mut self, from: Peer, switch: u16, version: u64) {
        if self.memory.services[usize::from(switch)].switch_life != from.incarnation {
            self.record(Entry::Switch { switch, life: from.incarnation });
        }
        match self.switches.iter_mut().find(|(switch, _)| switch.node == from.node) {
            Some(known) => *known = (from, version),
            None => self.switches.push((from, version)),
        }
        if version == 0 {
            // It has just started. Who is there now it learns behind who was.
            self.pending.push_beginning(from.node);
            // What its earlier lives were told it has not heard.
            self.swept.retain(|swept| swept.observer != from.node);
            self.tell_sweeps();
        }
        let newest = self.memory.rules.version();
        if version > newest {
            // Of an earlier life of this coordinator, which it does not remember: what it has now is what counts.
            self.renew_rules(RuleSet::new(version.saturating_add(1), self.memory.rules.rules().to_vec()));
        } else if version < newest {
            self.push_rules(from.node);
        }
    }
}
