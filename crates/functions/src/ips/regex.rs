//! Regular expressions that follow a content: automata that are stepped byte by byte, so
//! that a flow has the state of one in four bytes.

use super::automaton::Known;
use super::rules::quoted;
use super::text::{Piece, Wrong, unsupported, wrong};
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::look::Look;
use regex_automata::util::primitives::StateID;
use regex_automata::util::{start, syntax};
use regex_automata::{Anchored, MatchKind};
use std::sync::Arc;

/// Limits of one expression, bytes: its program, its automaton, and the memory to build
/// the automaton.
const MOST_PROGRAM: usize = 1 << 18;
const MOST_AUTOMATON: usize = 1 << 19;
const MOST_EFFORT: usize = 1 << 21;
/// Maximum nesting of groups and repetitions.
const MOST_NESTED: u32 = 50;

/// A regular expression.
#[derive(Debug, Clone)]
pub(super) struct Expression {
    automaton: Arc<dense::DFA<Vec<u32>>>,
    start: u32,
    known: Arc<Known>,
    /// True if a match depends on the place where the expression begins: one under way
    /// from an earlier place does not stand for it.
    pub(super) is_anchored: bool,
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

impl Expression {
    /// Reads `"/…/flags"`.
    pub(super) fn read(value: Piece<'_>) -> Result<Expression, Wrong> {
        let text = quoted(value, "pcre")?;
        let end = text.text.rfind('/').filter(|end| *end > 0 && text.text.starts_with('/'));
        let Some(end) = end else {
            return Err(wrong(text.at, "an expression is written as `/…/R`"));
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
        if !is_relative {
            return Err(unsupported(
                value.at,
                "a `pcre` without the flag `R` is not supported: bytes before the content's match have passed",
            ));
        }
        Expression::compile(pattern, &how, is_anchored)
    }

    fn compile(
        pattern: Piece<'_>,
        how: &syntax::Config,
        is_anchored: bool,
    ) -> Result<Expression, Wrong> {
        let refuse = |what: &str| unsupported(pattern.at, what.to_owned());
        let tree = syntax::parse_with(pattern.text, how).map_err(|error| {
            let said = error.to_string();
            let said = said.lines().last().unwrap_or_default().trim_start_matches("error: ");
            refuse(&format!("the expression is not supported: {said}"))
        })?;
        let too_large = || {
            refuse("the expression is too large: repetitions of wide classes take the most room")
        };
        let config =
            thompson::Config::new().utf8(false).nfa_size_limit(Some(MOST_PROGRAM)).shrink(false);
        let program = thompson::Compiler::new()
            .configure(config)
            .build_from_hir(&tree)
            .map_err(|_| too_large())?;
        let behind = [Look::Start, Look::StartLF];
        if program.look_set_any().iter().any(|look| !behind.contains(&look)) {
            return Err(refuse(
                "`$`, `\\b` and other looks ahead are not supported: the bytes there may still be to come",
            ));
        }
        let (kind, anchored) = match is_anchored {
            true => (StartKind::Anchored, Anchored::Yes),
            false => (StartKind::Unanchored, Anchored::No),
        };
        let config = dense::Config::new()
            .match_kind(MatchKind::All)
            .start_kind(kind)
            .dfa_size_limit(Some(MOST_AUTOMATON))
            .determinize_size_limit(Some(MOST_EFFORT));
        let automaton = dense::Builder::new()
            .configure(config)
            .build_from_nfa(&program)
            .map_err(|_| too_large())?;
        let start = automaton
            .start_state(&start::Config::new().anchored(anchored))
            .map_err(|_| refuse("the expression has no beginning"))?;
        if automaton.is_match_state(automaton.next_eoi_state(start)) {
            return Err(wrong(
                pattern.at,
                "the expression matches nothing at all, so it always matches: leave it out",
            ));
        }
        let id = |state: u32| StateID::new_unchecked(state as usize);
        let known = Known::reach(start.as_u32(), |state, byte| {
            automaton.next_state(id(state), byte).as_u32()
        });
        let begins = !program.look_set_any().is_empty();
        Ok(Expression {
            automaton: Arc::new(automaton),
            start: start.as_u32(),
            known: Arc::new(known),
            is_anchored: is_anchored || begins,
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
