//! Service-chain rules: which chain a new flow takes.
//!
//! Theory of operation. Rules are a version and a set. The most specific of the rules
//! that match a flow's first packet decides, whatever their order (see
//! [`Specificity`](holdfast_wire::selector::Specificity)). The coordinator sends each
//! switch the rules of the chains on its ports, in as many records as they need. A switch
//! puts them together and changes over when it has all of them, so that no packet ever
//! meets a part of a set. A flow's chain stays with its route: rules are for flows that
//! begin.
//!
//! A set may have thousands of rules, and packets wait for each turn of a switch or a
//! manager. A switch reads one record per turn ([`Assembly`]), and frees the rules that
//! are no longer in force a few at a time. A manager passes on records that were encoded
//! on another thread ([`RuleRecords`]).
//!
//! In: rules, records. Out: the rule of a key, records. Never: a look at an existing
//! flow.

use crate::message::Control;
use holdfast_wire::selector::{Selector, Specificity};
use holdfast_wire::{DropReason, FlowKey};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Largest number of rules in a set.
pub const MAX_RULES: usize = 4096;
/// Largest number of port ranges in one rule: a rule is never longer than a record.
pub const MAX_RANGES: usize = 100;
/// Rules that a switch frees in one turn.
const FREED: usize = 256;

/// A rule: the chain that a new flow takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The packets that it matches.
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
    /// The rules, the most specific first.
    rules: Vec<Rule>,
}

impl RuleSet {
    /// A set. Versions count from 1; 0 is for nothing at all.
    pub fn new(version: u64, mut rules: Vec<Rule>) -> RuleSet {
        rules.sort_by_key(|rule| core::cmp::Reverse(rule.selector.specificity()));
        RuleSet { version, rules }
    }

    /// The set's version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The rules, the most specific first.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The most specific rule that matches a packet with this key that came in by this
    /// port of the switch.
    pub fn find(&self, key: &FlowKey, ingress: u8) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.selector.matches(key, ingress))
    }

    /// The rules whose chains are meant, as the same version.
    pub fn of_chains(&self, is_meant: impl Fn(u16) -> bool) -> RuleSet {
        RuleSet {
            version: self.version,
            rules: self.rules.iter().filter(|rule| is_meant(rule.chain)).cloned().collect(),
        }
    }

    /// The set as messages of at most `limit` bytes each.
    pub fn messages(&self, limit: usize) -> Vec<Control> {
        // Length of a message without its rules: kind, version, two counts and a length,
        // each in a variable-length encoding.
        const AROUND: usize = 1 + 10 + 3 + 3 + 3;
        let mut parts: Vec<Vec<Rule>> = vec![Vec::new()];
        let mut room = limit.saturating_sub(AROUND);
        for rule in &self.rules {
            // A rule is two numbers and the text with its length.
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
        let message =
            |(part, rules)| Control::Rules { version, part: part as u16, parts: count, rules };
        parts.into_iter().enumerate().map(message).collect()
    }

    /// The set as encoded records of at most `limit` bytes each.
    pub fn records(&self, limit: usize) -> RuleRecords {
        let encode = |message: &Control| {
            let mut record = Vec::new();
            message.encode(&mut record);
            record
        };
        RuleRecords {
            version: self.version,
            records: self.messages(limit).iter().map(encode).collect(),
        }
    }
}

/// The version of the set that follows the one in force. The set that a box begins with
/// has the version 1.
pub fn version_after(in_force: u64) -> u64 {
    in_force.max(1) + 1
}

/// A set as its encoded records, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleRecords {
    version: u64,
    records: Vec<Vec<u8>>,
}

impl RuleRecords {
    /// The set's version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The records.
    pub fn records(&self) -> &[Vec<u8>] {
        &self.records
    }
}

/// A set that is being put together, and a switch's remaining work on sets.
#[derive(Debug, Default)]
pub struct Assembly {
    coming: Coming,
    /// Records that have come and are not read yet.
    unread: VecDeque<Vec<u8>>,
    /// Rules that are no longer needed and not freed yet.
    old: Vec<Rule>,
}

#[derive(Debug, Default)]
struct Coming {
    version: u64,
    parts: u16,
    next: u16,
    /// The rules so far, the most specific first.
    rules: Vec<Rule>,
    /// Specificity of the last of these rules.
    least: Option<Specificity>,
}

impl Coming {
    /// Puts a rule into its place. Parts of a set come in order, and so do their rules; a
    /// rule out of order is moved to its place.
    fn put(&mut self, rule: Rule) {
        let specificity = rule.selector.specificity();
        if self.least.is_none_or(|least| specificity <= least) {
            self.least = Some(specificity);
            self.rules.push(rule);
        } else {
            let at =
                self.rules.partition_point(|known| known.selector.specificity() >= specificity);
            self.rules.insert(at, rule);
        }
    }
}

impl Assembly {
    /// Keeps a record, which is this part of a set, until [`Assembly::poll_record`]. The
    /// first part begins a new set: unread parts of an earlier one are dropped.
    pub fn keep(&mut self, part: u16, record: &[u8]) {
        if part == 0 {
            self.unread.clear();
        }
        // The sender has at most one part per rule.
        if self.unread.len() < MAX_RULES {
            self.unread.push_back(record.to_vec());
        }
    }

    /// The next record to read.
    pub fn poll_record(&mut self) -> Option<Vec<u8>> {
        self.unread.pop_front()
    }

    /// Takes a part. Parts come in order; the first one of a set begins anew. Returns the
    /// set, once it is whole.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] for a part that no set has at this place; the parts so
    /// far are forgotten.
    pub fn take(
        &mut self,
        version: u64,
        part: u16,
        parts: u16,
        rules: Vec<Rule>,
    ) -> Result<Option<RuleSet>, DropReason> {
        if part == 0 {
            self.begin(Coming { version, parts, ..Coming::default() });
        }
        let coming = &mut self.coming;
        let belongs = version != 0
            && (version, part, parts) == (coming.version, coming.next, coming.parts)
            && part < parts;
        if !belongs || coming.rules.len() + rules.len() > MAX_RULES {
            self.begin(Coming::default());
            return Err(DropReason::Malformed);
        }
        rules.into_iter().for_each(|rule| coming.put(rule));
        coming.next += 1;
        if coming.next < coming.parts {
            return Ok(None);
        }
        let Coming { version, rules, .. } = core::mem::take(coming);
        Ok(Some(RuleSet { version, rules }))
    }

    fn begin(&mut self, coming: Coming) {
        let Coming { rules, .. } = core::mem::replace(&mut self.coming, coming);
        self.put_off(rules);
    }

    /// A set that is no longer in force: [`Assembly::free`] frees it.
    pub fn retire(&mut self, set: RuleSet) {
        self.put_off(set.rules);
    }

    fn put_off(&mut self, mut rules: Vec<Rule>) {
        // An empty list takes them over whole: copying thousands is no work for one turn.
        if self.old.is_empty() {
            self.old = rules;
        } else {
            self.old.append(&mut rules);
        }
    }

    /// Frees some of the rules that are no longer needed.
    pub fn free(&mut self) {
        let left = self.old.len().saturating_sub(FREED);
        self.old.truncate(left);
        if left == 0 {
            self.old = Vec::new();
        }
    }

    /// True while [`Assembly::poll_record`] or [`Assembly::free`] has something to do.
    pub fn has_work(&self) -> bool {
        !self.unread.is_empty() || !self.old.is_empty()
    }
}
