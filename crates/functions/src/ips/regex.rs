//! Regular expressions: automata that are stepped byte by byte, so that a flow has the
//! state of one in four bytes.
//!
//! An expression with the flag `R` follows a content, and a flow has few of them under
//! way. All expressions without it ([`Standing`]) are one automaton that reads every byte
//! from the stream's beginning, like those of the contents.

use super::automaton::{Known, Use};
use super::rules::{Step, quoted};
use super::text::{Piece, Wrong, unsupported, wrong};
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::look::Look;
use regex_automata::util::primitives::StateID;
use regex_automata::util::{start, syntax};
use regex_automata::{Anchored, MatchKind};
use regex_syntax::hir::{self, Hir};
use std::sync::Arc;

/// Limits of one expression, bytes: its program, its automaton, and the memory to build
/// the automaton.
const MOST_PROGRAM: usize = 1 << 18;
const MOST_AUTOMATON: usize = 1 << 19;
const MOST_EFFORT: usize = 1 << 21;
/// Limits of the automaton of all expressions without `R`, bytes: its program, the
/// automaton, and the memory to build it. Every process builds it when it starts, and the
/// time for that grows with the memory.
const MOST_STANDING_PROGRAM: usize = 1 << 20;
const MOST_STANDING: usize = 1 << 21;
const MOST_STANDING_EFFORT: usize = 1 << 21;
/// Maximum nesting of groups and repetitions.
const MOST_NESTED: u32 = 50;

/// A regular expression with the flag `R`.
#[derive(Debug, Clone)]
pub(super) struct Expression {
    automaton: Arc<dense::DFA<Vec<u32>>>,
    start: u32,
    known: Arc<Known>,
    /// True if a match depends on the place where the expression begins: one under way
    /// from an earlier place does not stand for it.
    pub(super) is_anchored: bool,
}

/// A regular expression without the flag `R`, for [`Standing`].
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    tree: Hir,
    /// Offset of the expression in the whole text, bytes.
    pub(super) at: usize,
}

/// The result of a step by one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Led {
    /// The expression goes on in this state.
    On(u32),
    /// A match had ended before this byte.
    Matched,
    /// The expression can no longer match.
    Dead,
}

/// Reads `"/…/flags"`.
pub(super) fn read(value: Piece<'_>) -> Result<Step, Wrong> {
    let text = quoted(value, "pcre")?;
    let end = text.text.rfind('/').filter(|end| *end > 0 && text.text.starts_with('/'));
    let Some(end) = end else {
        return Err(wrong(text.at, "an expression is written as `/…/` with flags behind it"));
    };
    let pattern = text.part(1, end);
    let flags = text.part(end + 1, text.text.len());
    let mut how = syntax::Config::new().unicode(false).utf8(false).nest_limit(MOST_NESTED);
    let (mut is_relative, mut is_anchored) = (false, false);
    for (at, flag) in flags.text.char_indices() {
        match flag {
            'i' => how = how.case_insensitive(true),
            's' => how = how.dot_matches_new_line(true),
            'm' => how = how.multi_line(true),
            'x' => how = how.ignore_whitespace(true),
            'A' => is_anchored = true,
            'R' => is_relative = true,
            // Greed changes the extent of a match, not whether there is one.
            'G' => {}
            other => {
                return Err(unsupported(
                    flags.at + at,
                    format!("flag `{other}` of a `pcre` is not supported: i, s, m, x, A, R, G"),
                ));
            }
        }
    }
    let mut tree = syntax::parse_with(pattern.text, &how).map_err(|error| {
        let said = error.to_string();
        let said = said.lines().last().unwrap_or_default().trim_start_matches("error: ");
        unsupported(pattern.at, format!("the expression is not supported: {said}"))
    })?;
    if is_anchored {
        tree = Hir::concat(vec![Hir::look(hir::Look::Start), tree]);
    }
    let expression = Expression::new(&tree, pattern.at)?;
    Ok(match is_relative {
        true => Step::Expression(expression),
        false => Step::Standing(Pattern { tree, at: pattern.at }),
    })
}

impl Expression {
    /// The expression at this offset of the whole text.
    fn new(tree: &Hir, at: usize) -> Result<Expression, Wrong> {
        let refuse = |what: &str| unsupported(at, what);
        let too_large = || {
            refuse("the expression is too large: repetitions of wide classes take the most room")
        };
        let config =
            thompson::Config::new().utf8(false).nfa_size_limit(Some(MOST_PROGRAM)).shrink(false);
        let program = thompson::Compiler::new()
            .configure(config)
            .build_from_hir(tree)
            .map_err(|_| too_large())?;
        let behind = [Look::Start, Look::StartLF];
        if program.look_set_any().iter().any(|look| !behind.contains(&look)) {
            return Err(refuse(
                "`$`, `\\b` and other looks ahead are not supported: the bytes there may still be to come",
            ));
        }
        let config = dense::Config::new()
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Unanchored)
            .dfa_size_limit(Some(MOST_AUTOMATON))
            .determinize_size_limit(Some(MOST_EFFORT));
        let automaton = dense::Builder::new()
            .configure(config)
            .build_from_nfa(&program)
            .map_err(|_| too_large())?;
        let start = automaton
            .start_state(&start::Config::new().anchored(Anchored::No))
            .map_err(|_| refuse("the expression has no beginning"))?;
        if automaton.is_match_state(automaton.next_eoi_state(start)) {
            return Err(wrong(
                at,
                "the expression matches nothing at all, so it always matches: leave it out",
            ));
        }
        let id = |state: u32| StateID::new_unchecked(state as usize);
        let known = Known::reach(&[start.as_u32()], |state, byte| {
            automaton.next_state(id(state), byte).as_u32()
        });
        Ok(Expression {
            automaton: Arc::new(automaton),
            start: start.as_u32(),
            known: Arc::new(known),
            is_anchored: !program.look_set_any().is_empty(),
        })
    }

    /// The state before the first byte.
    pub(super) fn start(&self) -> u32 {
        self.start
    }

    /// True if this is one of the automaton's states.
    pub(super) fn knows(&self, state: u32) -> bool {
        self.known.has(state)
    }

    /// [`Known::digest`] of the automaton's states.
    pub(super) fn digest(&self) -> u64 {
        self.known.digest()
    }

    /// The size of the automaton, bytes.
    pub(super) fn size(&self) -> usize {
        self.automaton.memory_usage()
    }

    /// Steps from `state`, which must be [known](Expression::knows), by a byte.
    #[inline]
    pub(super) fn step(&self, state: u32, byte: u8) -> Led {
        let state = self.automaton.next_state(StateID::new_unchecked(state as usize), byte);
        if self.automaton.is_special_state(state) {
            if self.automaton.is_match_state(state) {
                return Led::Matched;
            }
            if self.automaton.is_dead_state(state) || self.automaton.is_quit_state(state) {
                return Led::Dead;
            }
        }
        Led::On(state.as_u32())
    }

    /// True if a match ends with the latest byte. The automaton itself reports it one
    /// byte late, and no expression looks ahead, so the next byte cannot change it.
    #[inline]
    pub(super) fn is_matched(&self, state: u32) -> bool {
        let state = StateID::new_unchecked(state as usize);
        self.automaton.is_match_state(self.automaton.next_eoi_state(state))
    }
}

/// All expressions without `R`, as one automaton.
pub(super) struct Standing {
    automaton: dense::DFA<Vec<u32>>,
    /// The state before a stream's first byte.
    start: u32,
    /// The state behind bytes that begin no match.
    rest: u32,
    known: Known,
    /// The use of each expression.
    uses: Vec<Use>,
}

/// The number that stands for a state that a flow does not know.
const UNKNOWN: u32 = 0;

impl Standing {
    /// The automaton of these expressions; none without one.
    ///
    /// # Errors
    /// The automaton is too large.
    pub(super) fn new(expressions: &[(Use, &Pattern)]) -> Result<Option<Standing>, ()> {
        if expressions.is_empty() {
            return Ok(None);
        }
        let trees: Vec<&Hir> = expressions.iter().map(|(_, pattern)| &pattern.tree).collect();
        let config = thompson::Config::new()
            .utf8(false)
            .nfa_size_limit(Some(MOST_STANDING_PROGRAM))
            .shrink(false);
        let program = thompson::Compiler::new()
            .configure(config)
            .build_many_from_hir(&trees)
            .map_err(drop)?;
        let config = dense::Config::new()
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Unanchored)
            .dfa_size_limit(Some(MOST_STANDING))
            .determinize_size_limit(Some(MOST_STANDING_EFFORT));
        let automaton =
            dense::Builder::new().configure(config).build_from_nfa(&program).map_err(drop)?;
        let begin = |before: Option<u8>| {
            let config = start::Config::new().anchored(Anchored::No).look_behind(before);
            automaton.start_state(&config).map(|state| state.as_u32()).map_err(drop)
        };
        // An expression looks back only for the stream's beginning or a line's end.
        let (start, rest) = (begin(None)?, begin(Some(0))?);
        let uses = expressions.iter().map(|(of, _)| *of).collect();
        let mut standing = Standing { automaton, start, rest, known: Known::default(), uses };
        standing.known = Known::reach(&[start, rest], |state, byte| standing.next(state, byte));
        Ok(Some(standing))
    }

    /// [`Known::digest`] of its states.
    pub(super) fn digest(&self) -> u64 {
        self.known.digest()
    }

    /// The state of this number at this position of the stream; that before a first byte
    /// or behind uninteresting bytes if no state has the number.
    #[inline]
    pub(super) fn resume(&self, state: u32, position: u64) -> u32 {
        match state {
            UNKNOWN if position == 0 => self.start,
            state if state != UNKNOWN && self.known.has(state) => state,
            _ => self.rest,
        }
    }

    /// The state after a byte. `state` must be one of the automaton's.
    #[inline]
    pub(super) fn next(&self, state: u32, byte: u8) -> u32 {
        let next = self.automaton.next_state(StateID::new_unchecked(state as usize), byte);
        // A dead state: whatever was under way cannot match any more.
        if next.as_usize() == UNKNOWN as usize { self.rest } else { next.as_u32() }
    }

    /// The state after these bytes; `None` if an expression may match among them.
    pub(super) fn pass(&self, mut state: u32, bytes: &[u8]) -> Option<u32> {
        for &byte in bytes {
            state = self.next(state, byte);
            if self.matches(state) > 0 {
                return None;
            }
        }
        Some(state)
    }

    /// The state with the matches that end with the latest byte. The automaton itself
    /// reports them one byte late.
    #[inline]
    pub(super) fn ended(&self, state: u32) -> u32 {
        self.automaton.next_eoi_state(StateID::new_unchecked(state as usize)).as_u32()
    }

    /// The number of expressions whose matches this state reports.
    #[inline]
    pub(super) fn matches(&self, state: u32) -> usize {
        let state = StateID::new_unchecked(state as usize);
        if self.automaton.is_special_state(state) && self.automaton.is_match_state(state) {
            return self.automaton.match_len(state);
        }
        0
    }

    /// The use of the expression with index `at` among those.
    #[inline]
    pub(super) fn used(&self, state: u32, at: usize) -> Option<Use> {
        let state = StateID::new_unchecked(state as usize);
        self.uses.get(self.automaton.match_pattern(state, at).as_usize()).copied()
    }
}

impl core::fmt::Debug for Standing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Standing").field("expressions", &self.uses.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that begin no match lead to one state, that of a place about which nothing
    /// is known; only at the stream's beginning an expression can ask for it.
    #[test]
    fn uninteresting_bytes_lead_to_one_state() {
        let patterns = ["abc", "^x+y", "\\d{3}"].map(|text| {
            let tree = syntax::parse_with(text, &syntax::Config::new().unicode(false).utf8(false));
            Pattern { tree: tree.unwrap(), at: 0 }
        });
        let of = Use { rule: 0, chain: 0, step: 0 };
        let expressions: Vec<_> = patterns.iter().map(|pattern| (of, pattern)).collect();
        let standing = Standing::new(&expressions).unwrap().unwrap();
        let after = |state: u32, bytes: &[u8]| {
            bytes.iter().fold(state, |state, byte| standing.next(state, *byte))
        };
        let rest = standing.resume(UNKNOWN, 1);
        for bytes in ["q", "\n", "qx", "zzz\nzz"] {
            assert_eq!(after(rest, bytes.as_bytes()), rest, "{bytes:?}");
            assert_eq!(after(standing.resume(UNKNOWN, 0), bytes.as_bytes()), rest, "{bytes:?}");
        }
        let ends = |state: u32| standing.matches(standing.ended(state));
        assert_eq!((ends(after(rest, b"ab")), ends(after(rest, b"abc"))), (0, 1));
        assert_eq!((ends(after(rest, b"xy")), ends(after(standing.start, b"xy"))), (0, 1));
        assert_eq!(standing.resume(u32::MAX, 5), rest);
    }
}
