//! Service-chain rules: which chain a new flow takes.
//!
//! Theory of operation. Rules are a version and a set. Of the rules that match a flow's first packet the most specific decides, whatever
//! their order (see [`Specificity`](holdfast_wire::selector::Specificity)). The coordinator has them and sends them to every switch, in as
//! many records as they need, to each those of the chains on its ports; a switch puts them together and changes over when it has all of them, so that no packet ever meets a part of
//! a set. What a flow took stays with its route: rules are for flows that begin.
//!
//! In: rules, records. Out: the rule of a key, records. Never: a look at an existing flow.

use crate::message::Control;
use holdfast_wire::selector::Selector;
use holdfast_wire::{DropReason, FlowKey};
use serde::{Deserialize, Serialize};

/// Rules that a set may have.
pub const MAX_RULES: usize = 4096;
/// Port ranges that one rule may name: a rule is never longer than a record.
pub const MAX_RANGES: usize = 100;

/// Which chain a new flow takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// What it matches.
    pub selector: Selector,
    /// The chain, counted from 0.
    pub chain: u16,
    /// The virtual cluster whose runtimes serve the chain, counted from 0.
    pub cluster: u16,
}

/// The rules in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleSet {
    version: u64,
    /// The most specific first.
    rules: Vec<Rule>,
}

impl RuleSet {
    /// A set. Versions count from 1; 0 is for nothing at all.
    pub fn new(version: u64, mut rules: Vec<Rule>) -> RuleSet {
        rules.sort_by_key(|rule| core::cmp::Reverse(rule.selector.specificity()));
        RuleSet { version, rules }
    }

    /// Which one it is.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The rules, the most specific first.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The most specific rule that means a packet with this key that came in by this port of the switch.
    pub fn find(&self, key: &FlowKey, ingress: u8) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.selector.matches(key, ingress))
    }

    /// Those of its rules whose chains are meant, as the same version.
    pub fn of_chains(&self, is_meant: impl Fn(u16) -> bool) -> RuleSet {
        RuleSet { version: self.version, rules: self.rules.iter().filter(|rule| is_meant(rule.chain)).cloned().collect() }
    }

    /// The set as messages of at most `limit` bytes each.
    pub fn messages(&self, limit: usize) -> Vec<Control> {
        // What surrounds the rules in a message: its kind, version, two counts and a length, each in a variable-length encoding.
        const AROUND: usize = 1 + 10 + 3 + 3 + 3;
        let mut parts: Vec<Vec<Rule>> = vec![Vec::new()];
        let mut room = limit.saturating_sub(AROUND);
        for rule in &self.rules {
            // Two numbers and the text with its length.
            let len = 3 + 3 + 3 + rule.selector.to_string().len();
            if len > room && parts.last().is_some_and(|part| !part.is_empty()) {
                parts.push(Vec::new());
                room = limit.saturating_sub(AROUND);
            }
            room = room.saturating_sub(len);
            if let Some(part) = parts.last_mut() {
                part.push(rule.clone());
            }
        }
        let (version, count) = (self.version, parts.len() as u16);
        let message = |(part, rules)| Control::Rules { version, part: part as u16, parts: count, rules };
        parts.into_iter().enumerate().map(message).collect()
    }
}

/// A set of which not all parts have come.
#[derive(Debug, Default)]
pub struct Assembly {
    version: u64,
    parts: u16,
    next: u16,
    rules: Vec<Rule>,
}

impl Assembly {
    /// Takes a part. Parts come in order; the first one of a set begins anew. The set, once it is whole.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] for a part that no set has at this place; what had been put together is forgotten.
    pub fn take(&mut self, version: u64, part: u16, parts: u16, rules: Vec<Rule>) -> Result<Option<RuleSet>, DropReason> {
        if part == 0 {
            *self = Assembly { version, parts, ..Assembly::default() };
        }
        let belongs = version != 0 && (version, part, parts) == (self.version, self.next, self.parts) && part < parts;
        if !belongs || self.rules.len() + rules.len() > MAX_RULES {
            *self = Assembly::default();
            return Err(DropReason::Malformed);
        }
        self.rules.extend(rules);
        self.next += 1;
        if self.next < self.parts {
            return Ok(None);
        }
        let Assembly { version, rules, .. } = core::mem::take(self);
        Ok(Some(RuleSet::new(version, rules)))
    }
}
