//! The identity table: the numbers of what a configuration names.
//!
//! Theory of operation. Messages, records and NSH paths carry numbers, and a
//! configuration has names. The table is part of the coordinator's memory. A name keeps
//! its number for as long as it is configured. A number whose name is gone rests for
//! [`REST`]: nothing under way may be taken for another's. Nobody has a resting number,
//! not even its former name. New names get the lowest free numbers in their order, so an
//! empty table gives the numbers of that order.
//!
//! In: names. Out: a [`Change`] to be logged. Never: a number beyond those of its kind,
//! which bounds the table.

use super::SECOND;
use super::log::Misfit;
use holdfast_wire::{nsh, zone};
use serde::{Deserialize, Serialize};

/// The rest of a number that was given up, ns.
const REST: u64 = 60 * SECOND;

/// A kind of names. Each has numbers of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum IdentityKind {
    /// A service chain.
    Chain,
    /// A port.
    Port,
    /// A virtual cluster.
    Cluster,
    /// A runtime's place in its cluster.
    Runtime,
}

impl IdentityKind {
    /// How many numbers the kind has.
    fn numbers(self) -> u16 {
        match self {
            // A cluster has a chain at least.
            IdentityKind::Chain | IdentityKind::Cluster => nsh::MAX_CHAINS,
            IdentityKind::Port => zone::MAX_PORTS.into(),
            IdentityKind::Runtime => 1024,
        }
    }
}

impl core::fmt::Display for IdentityKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            IdentityKind::Chain => "chain",
            IdentityKind::Port => "port",
            IdentityKind::Cluster => "cluster",
            IdentityKind::Runtime => "runtime",
        })
    }
}

/// A configured name.
pub type Name = (IdentityKind, String);

/// A name with its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) kind: IdentityKind,
    pub(super) name: String,
    pub(super) number: u16,
}

impl Identity {
    fn is_of(&self, name: &Name) -> bool {
        (self.kind, &self.name) == (name.0, &name.1)
    }
}

/// A number that was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Resting {
    kind: IdentityKind,
    number: u16,
    since: u64,
}

/// A step from one configuration's names to another's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Change {
    pub(super) given: Vec<Identity>,
    pub(super) given_up: Vec<Identity>,
    at: u64,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Identities {
    held: Vec<Identity>,
    resting: Vec<Resting>,
}

impl Identities {
    /// The number of a name.
    pub(super) fn number(&self, name: &Name) -> Option<u16> {
        self.held.iter().find(|held| held.is_of(name)).map(|held| held.number)
    }

    /// The change that leaves exactly these names with numbers.
    ///
    /// # Errors
    /// If a kind has no free number.
    pub(super) fn change(&self, names: &[Name], at: u64) -> Result<Change, Misfit> {
        let is_gone = |held: &&Identity| !names.iter().any(|name| held.is_of(name));
        let given_up = self.held.iter().filter(is_gone).cloned().collect();
        let mut given: Vec<Identity> = Vec::new();
        for name in names {
            let mut present = self.held.iter().chain(&given);
            if present.any(|identity| identity.is_of(name)) {
                continue;
            }
            let kind = name.0;
            let is_free = |number: &u16| {
                let is_it = |other: IdentityKind, taken: u16| (other, taken) == (kind, *number);
                let mut present = self.held.iter().chain(&given);
                let mut resting = self.resting.iter().filter(|resting| resting.rests(at));
                !present.any(|identity| is_it(identity.kind, identity.number))
                    && !resting.any(|resting| is_it(resting.kind, resting.number))
            };
            let number = (0..kind.numbers()).find(is_free).ok_or(Misfit::Full(kind))?;
            given.push(Identity { kind, name: name.1.clone(), number });
        }
        Ok(Change { given, given_up, at })
    }

    /// Takes a change.
    pub(super) fn apply(&mut self, change: &Change) {
        let Change { given, given_up, at } = change;
        self.resting.retain(|resting| resting.rests(*at));
        let rest = |identity: &Identity| Resting {
            kind: identity.kind,
            number: identity.number,
            since: *at,
        };
        self.resting.extend(given_up.iter().map(rest));
        self.held.retain(|held| !given_up.contains(held));
        self.held.extend_from_slice(given);
    }

    /// The coordinator begins, by a clock that may be another: all rests begin anew.
    pub(super) fn began(&mut self, at: u64) {
        self.resting.iter_mut().for_each(|resting| resting.since = at);
    }
}

impl Resting {
    fn rests(&self, at: u64) -> bool {
        at < self.since.saturating_add(REST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn chains(names: &[&str]) -> Vec<Name> {
        names.iter().map(|name| (IdentityKind::Chain, (*name).to_owned())).collect()
    }

    fn configure(table: &mut Identities, names: &[Name], at: u64) -> Result<(), Misfit> {
        let change = table.change(names, at)?;
        table.apply(&change);
        Ok(())
    }

    fn numbers(table: &Identities, names: &[&str]) -> Vec<Option<u16>> {
        chains(names).iter().map(|name| table.number(name)).collect()
    }

    /// A chain is put in front of two others, one of these is removed, and comes back.
    #[test]
    fn a_name_keeps_its_number_and_a_number_rests() {
        let mut table = Identities::default();
        configure(&mut table, &chains(&["lan", "wan"]), 0).unwrap();
        assert_eq!(numbers(&table, &["lan", "wan"]), [Some(0), Some(1)], "those of their order");
        configure(&mut table, &chains(&["aaa", "lan", "wan"]), 1).unwrap();
        assert_eq!(numbers(&table, &["aaa", "lan", "wan"]), [Some(2), Some(0), Some(1)]);
        configure(&mut table, &chains(&["aaa", "wan"]), 10).unwrap();
        assert_eq!(numbers(&table, &["aaa", "lan", "wan"]), [Some(2), None, Some(1)]);
        configure(&mut table, &chains(&["aaa", "lan", "wan"]), 9 + REST).unwrap();
        assert_eq!(numbers(&table, &["lan"]), [Some(3)], "its former number rests");
        configure(&mut table, &chains(&["aaa", "bbb", "lan", "wan"]), 10 + REST).unwrap();
        assert_eq!(numbers(&table, &["bbb"]), [Some(0)], "it has rested");
    }

    /// All ports are replaced at once: there are no numbers for the new ones until the
    /// former have rested. Other kinds have numbers of their own.
    #[test]
    fn a_kind_without_free_numbers_gives_none() {
        let ports = |prefix: &str| -> Vec<Name> {
            let all = 0..zone::MAX_PORTS;
            all.map(|at| (IdentityKind::Port, format!("{prefix}{at}"))).collect()
        };
        let mut table = Identities::default();
        configure(&mut table, &ports("a"), 0).unwrap();
        let full = Err(Misfit::Full(IdentityKind::Port));
        assert_eq!(configure(&mut table, &ports("b"), 1), full);
        configure(&mut table, &chains(&["lan"]), 1).unwrap();
        assert_eq!(configure(&mut table, &ports("b"), REST), full);
        assert_eq!(configure(&mut table, &ports("b"), 1 + REST), Ok(()));
    }

    /// A coordinator begins whose clock is ahead: nothing has rested for longer.
    #[test]
    fn another_clock_ends_no_rest() {
        let mut table = Identities::default();
        configure(&mut table, &chains(&["lan"]), 0).unwrap();
        configure(&mut table, &[], 1).unwrap();
        table.began(100 * REST);
        configure(&mut table, &chains(&["wan"]), 101 * REST - 1).unwrap();
        assert_eq!(numbers(&table, &["wan"]), [Some(1)]);
    }

    proptest! {
        /// Any sequence of configurations: no two names of a kind have the same number,
        /// a name that stays keeps its own, and a resting number is nobody's.
        #[test]
        fn numbers_are_injective_and_stable_and_rest(
            steps in prop::collection::vec(
                (prop::collection::btree_set((0u8..2, 0u8..12), 0..12), 0..REST),
                1..40,
            ),
        ) {
            let (mut table, mut now) = (Identities::default(), 0);
            let mut before: BTreeMap<(u8, u8), u16> = BTreeMap::new();
            let mut given_up: BTreeMap<(u8, u16), u64> = BTreeMap::new();
            for (wanted, pause) in steps {
                now += pause;
                let kind = |kind| [IdentityKind::Chain, IdentityKind::Port][usize::from(kind)];
                let name = |(of, name): &(u8, u8)| (kind(*of), name.to_string());
                let names: Vec<Name> = wanted.iter().map(name).collect();
                configure(&mut table, &names, now).expect("there are enough");
                let number = |key: &(u8, u8)| (*key, table.number(&name(key)).expect("it is configured"));
                let after: BTreeMap<(u8, u8), u16> = wanted.iter().map(number).collect();
                prop_assert_eq!(table.held.len(), after.len(), "no other name has a number");
                let distinct: BTreeSet<(u8, u16)> =
                    after.iter().map(|((kind, _), number)| (*kind, *number)).collect();
                prop_assert_eq!(distinct.len(), after.len());
                for (key, number) in &after {
                    prop_assert!(before.get(key).is_none_or(|before| before == number));
                    let since = given_up.get(&(key.0, *number));
                    prop_assert!(since.is_none_or(|since| now >= since + REST));
                }
                for (key, number) in before.iter().filter(|(key, _)| !after.contains_key(key)) {
                    given_up.insert((key.0, *number), now);
                }
                before = after;
            }
        }
    }
}
