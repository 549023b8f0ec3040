//! Automata of all contents (Aho and Corasick 1975): one for case-sensitive contents, one
//! for contents with `nocase`.
//!
//! Automata are configuration: built once, never changed, shared by all flows. A flow has
//! the number of one state of each. A number that comes with a flow is looked up before
//! it is used, so that no bytes of a flow's state lead outside of the automaton.

use aho_corasick::automaton::{Automaton as Stepped, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, BuildError, MatchKind, dfa::DFA};
use std::collections::BTreeMap;

/// Maximum bytes of contents for which an automaton is a table with a row per state,
/// which is faster and takes up to a KiB per byte of content.
const MOST_DENSE: usize = 8192;

/// The set of states that an automaton may be in.
#[derive(Debug, Default)]
pub(super) struct Known {
    bits: Vec<u64>,
    digest: u64,
}

impl Known {
    /// The set of all states that `next` reaches from these.
    pub(super) fn reach(starts: &[u32], next: impl Fn(u32, u8) -> u32) -> Known {
        let mut known = Known::default();
        starts.iter().for_each(|start| known.add(*start));
        let mut todo = starts.to_vec();
        while let Some(state) = todo.pop() {
            for byte in 0..=u8::MAX {
                let to = next(state, byte);
                if !known.has(to) {
                    known.add(to);
                    todo.push(to);
                }
            }
        }
        known
    }

    fn add(&mut self, state: u32) {
        let at = state as usize / 64;
        if at >= self.bits.len() {
            self.bits.resize(at + 1, 0);
        }
        self.bits[at] |= 1 << (state % 64);
        self.digest = (self.digest ^ u64::from(state)).wrapping_mul(0x0000_0100_0000_01b3);
    }

    /// True if `state` is one of the set.
    #[inline]
    pub(super) fn has(&self, state: u32) -> bool {
        self.bits.get(state as usize / 64).is_some_and(|bits| bits >> (state % 64) & 1 != 0)
    }

    /// A number that depends on every state and on the order in which they were added.
    pub(super) fn digest(&self) -> u64 {
        self.digest
    }
}

/// The place of a content: rule, chain, step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) rule: u16,
    pub(super) chain: u8,
    pub(super) step: u8,
}

enum Kind {
    Dense(DFA),
    Compact(NFA),
}

/// An automaton.
pub(super) struct Automaton {
    kind: Kind,
    start: u32,
    known: Known,
    /// Uses of each pattern, in the order of the rules.
    uses: Vec<Vec<Use>>,
}

impl Automaton {
    /// The automaton of these contents; none without contents.
    ///
    /// # Errors
    /// The contents are too many.
    pub(super) fn new(
        contents: BTreeMap<Vec<u8>, Vec<Use>>,
        is_nocase: bool,
    ) -> Result<Option<Automaton>, BuildError> {
        if contents.is_empty() {
            return Ok(None);
        }
        let bytes: usize = contents.keys().map(Vec::len).sum();
        let patterns = contents.keys();
        let kind = if bytes <= MOST_DENSE {
            let mut builder = DFA::builder();
            builder.match_kind(MatchKind::Standard).ascii_case_insensitive(is_nocase);
            Kind::Dense(builder.prefilter(false).build(patterns)?)
        } else {
            let mut builder = NFA::builder();
            builder.match_kind(MatchKind::Standard).ascii_case_insensitive(is_nocase);
            Kind::Compact(builder.prefilter(false).build(patterns)?)
        };
        let start = match &kind {
            Kind::Dense(dfa) => dfa.start_state(Anchored::No),
            Kind::Compact(nfa) => nfa.start_state(Anchored::No),
        };
        let start = start.map(|start| start.as_u32()).unwrap_or_default();
        let mut automaton = Automaton { kind, start, known: Known::default(), uses: Vec::new() };
        // Every state but the start stands for a prefix of a content.
        automaton.known.add(start);
        for content in contents.keys() {
            let mut state = start;
            for &byte in content {
                state = automaton.next(state, byte);
                automaton.known.add(state);
            }
        }
        automaton.uses = contents.into_values().collect();
        Ok(Some(automaton))
    }

    /// [`Known::digest`] of its states.
    pub(super) fn digest(&self) -> u64 {
        self.known.digest()
    }

    /// The state of this number, or the start state if no state has it.
    #[inline]
    pub(super) fn resume(&self, state: u32) -> u32 {
        if self.known.has(state) { state } else { self.start }
    }

    /// The state after a byte. `state` must be one of the automaton's.
    #[inline]
    pub(super) fn next(&self, state: u32, byte: u8) -> u32 {
        let id = StateID::new_unchecked(state as usize);
        match &self.kind {
            Kind::Dense(dfa) => dfa.next_state(Anchored::No, id, byte).as_u32(),
            Kind::Compact(nfa) => nfa.next_state(Anchored::No, id, byte).as_u32(),
        }
    }

    /// The state after these bytes; `None` if a content ends among them. `state` must be
    /// one of the automaton's.
    #[inline]
    pub(super) fn pass(&self, state: u32, bytes: &[u8]) -> Option<u32> {
        match &self.kind {
            Kind::Dense(dfa) => pass(dfa, state, bytes),
            Kind::Compact(nfa) => pass(nfa, state, bytes),
        }
    }

    /// The number of contents that end in this state.
    #[inline]
    pub(super) fn matches(&self, state: u32) -> usize {
        let id = StateID::new_unchecked(state as usize);
        match &self.kind {
            Kind::Dense(dfa) if dfa.is_special(id) && dfa.is_match(id) => dfa.match_len(id),
            Kind::Compact(nfa) if nfa.is_special(id) && nfa.is_match(id) => nfa.match_len(id),
            _ => 0,
        }
    }

    /// The uses of the content with index `at` among those that end in this state.
    #[inline]
    pub(super) fn uses(&self, state: u32, at: usize) -> &[Use] {
        let id = StateID::new_unchecked(state as usize);
        let pattern = match &self.kind {
            Kind::Dense(dfa) => dfa.match_pattern(id, at),
            Kind::Compact(nfa) => nfa.match_pattern(id, at),
        };
        self.uses.get(pattern.as_usize()).map_or(&[], Vec::as_slice)
    }
}

/// See [`Automaton::pass`].
#[inline]
fn pass(automaton: &impl Stepped, state: u32, bytes: &[u8]) -> Option<u32> {
    let mut state = StateID::new_unchecked(state as usize);
    for &byte in bytes {
        state = automaton.next_state(Anchored::No, state, byte);
        if automaton.is_special(state) && automaton.is_match(state) {
            return None;
        }
    }
    Some(state.as_u32())
}

impl core::fmt::Debug for Automaton {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Automaton").field("contents", &self.uses.len()).finish_non_exhaustive()
    }
}
