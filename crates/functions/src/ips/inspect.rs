//! Rules applied to bytes: runs the automata, follows rules that have matched in part,
//! and collects the rules that have matched.

use super::automaton::{Automaton, Use};
use super::regex::{Led, Pattern, Standing};
use super::rules::{Action, Content, Rule, Step};
use super::state::{Armed, Partial, Place, Side, States, WHOLE, distance};
use holdfast_nf::FlowKey;
use std::collections::BTreeMap;

/// Maximum number of rules that are counted for one packet.
const MOST_HITS: usize = 16;

/// Bytes that are inspected again, one by one, if anything matches among them.
const BLOCK: usize = 64;

/// Rules and their automata.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) rules: Vec<Rule>,
    /// The automaton of case-sensitive contents.
    exact: Option<Automaton>,
    /// The automaton of contents with `nocase`.
    nocase: Option<Automaton>,
    /// The automaton of expressions without `R`.
    standing: Option<Standing>,
    /// The rule and chain that stand for each chain in the flows' tables, by rule, chain
    /// and number of matched steps: chains that begin alike share one.
    names: Vec<Vec<Vec<(u16, u8)>>>,
    /// The digest of rules and automata, to which flows' states belong.
    pub(super) digest: u64,
}

/// Results of one packet's inspection, and the facts about the packet that rules ask for.
pub(super) struct Scan<'a> {
    /// The packet's addresses and ports.
    key: &'a FlowKey,
    /// True if the packet comes from the side that opened the flow.
    is_to_server: bool,
    is_established: bool,
    hits: [u16; MOST_HITS],
    count: usize,
    /// Hits that had no room in `hits`.
    pub(super) missed: u64,
    /// The strongest action of the rules that matched, and the first rule that has it.
    pub(super) strongest: Option<(Action, u16)>,
    /// True if a rule could not be followed for want of room.
    pub(super) is_overfull: bool,
}

impl<'a> Scan<'a> {
    pub(super) fn new(key: &'a FlowKey, is_to_server: bool, is_established: bool) -> Scan<'a> {
        Scan {
            key,
            is_to_server,
            is_established,
            hits: [0; MOST_HITS],
            count: 0,
            missed: 0,
            strongest: None,
            is_overfull: false,
        }
    }

    /// The rules that have matched, each once, up to `MOST_HITS`.
    pub(super) fn hits(&self) -> &[u16] {
        &self.hits[..self.count]
    }

    fn hit(&mut self, rule: u16, action: Action) {
        if self.strongest.is_none_or(|(strongest, _)| action > strongest) {
            self.strongest = Some((action, rule));
        }
        if self.hits().contains(&rule) {
            return;
        }
        match self.hits.get_mut(self.count) {
            Some(place) => {
                *place = rule;
                self.count += 1;
            }
            None => self.missed += 1,
        }
    }
}

impl Content {
    /// True if a match may end this far behind the first and the last base.
    fn fits(&self, from_first: i32, from_last: i32) -> bool {
        from_first.saturating_sub(self.len()) >= self.least
            && self.reach().is_none_or(|reach| from_last <= reach)
    }

    /// The distance up to which two bases leave no gap between the places that they
    /// allow.
    fn slack(&self) -> Option<i32> {
        self.most.map(|most| most - self.len() + 1)
    }
}

/// Computes [`Engine::names`]. Two chains share a place after a number of steps if their
/// rules have the same header and `flow`, all their steps so far are equal contents, and
/// the next content, if there is one, may lie anywhere behind them.
fn names(rules: &[Rule]) -> Vec<Vec<Vec<(u16, u8)>>> {
    let mut known = BTreeMap::new();
    let mut named = |at: u16, rule: &Rule, chain: u8, steps: &[Step]| {
        let own = (at, chain);
        let mut is_equal = true;
        let mut so_far = format!("{:?} {:?}", rule.header, rule.flow);
        let mut names = Vec::with_capacity(steps.len() + 1);
        for step in steps.iter().map(Some).chain([None]) {
            let is_free = match step {
                Some(Step::Content(content)) => content.most.is_none(),
                Some(_) => false,
                None => true,
            };
            // A whole chain shares no place with a chain that goes on.
            let key = || (so_far.clone(), step.is_none());
            names.push(if is_equal && is_free { *known.entry(key()).or_insert(own) } else { own });
            match step {
                Some(Step::Content(content)) => so_far += &format!(" {content:?}"),
                _ => is_equal = false,
            }
        }
        names
    };
    let rules = (0u16..).zip(rules);
    rules
        .map(|(at, rule)| {
            let chains = (0u8..).zip(&rule.chains);
            chains.map(|(chain, steps)| named(at, rule, chain, steps)).collect()
        })
        .collect()
}

/// The automaton of the rules' expressions without `R`.
///
/// # Errors
/// The automaton is too large.
pub(super) fn standing(rules: &[Rule]) -> Result<Option<Standing>, ()> {
    let mut all: Vec<(Use, &Pattern)> = Vec::new();
    for (rule, its) in (0u16..).zip(rules) {
        all.extend(its.standing().map(|(chain, pattern)| (Use { rule, chain, step: 0 }, pattern)));
    }
    Standing::new(&all)
}

impl Engine {
    /// Builds the automata of the contents. `standing` is that of the expressions without
    /// `R`.
    ///
    /// # Errors
    /// The contents are too many; the text says so.
    pub(super) fn new(
        rules: Vec<Rule>,
        standing: Option<Standing>,
        digest: u64,
    ) -> Result<Engine, String> {
        let mut contents = [BTreeMap::new(), BTreeMap::new()];
        let mut digests = Vec::new();
        for (at, rule) in (0u16..).zip(&rules) {
            for (chain, steps) in (0u8..).zip(&rule.chains) {
                for (number, step) in (0u8..).zip(steps) {
                    let of = Use { rule: at, chain, step: number };
                    match step {
                        Step::Expression(expression) => digests.push(expression.digest()),
                        Step::Standing(_) => {}
                        Step::Content(content) => {
                            let bytes = match content.is_nocase {
                                true => content.bytes.to_ascii_lowercase(),
                                false => content.bytes.clone(),
                            };
                            let of_kind: &mut BTreeMap<Vec<u8>, Vec<Use>> =
                                &mut contents[usize::from(content.is_nocase)];
                            of_kind.entry(bytes).or_default().push(of);
                        }
                    }
                }
            }
        }
        let [exact, nocase] = contents;
        let too_many = |error| format!("the contents of all rules are too many: {error}");
        let exact = Automaton::new(exact, false).map_err(too_many)?;
        let nocase = Automaton::new(nocase, true).map_err(too_many)?;
        digests.extend(standing.iter().map(Standing::digest));
        // The automata's digests are part of it: another build may number states
        // differently.
        digests.extend([&exact, &nocase].into_iter().flatten().map(Automaton::digest));
        let digest = digests.iter().fold(digest, |digest, part| {
            (digest ^ part).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
        });
        let names = names(&rules);
        Ok(Engine { rules, exact, nocase, standing, names, digest })
    }

    /// The states with these numbers at this position of the stream; the states in which
    /// no pattern is under way for numbers that no state has.
    pub(super) fn resume(&self, states: States, position: u64) -> States {
        let resume = |automaton: &Option<Automaton>, state: u32| {
            automaton.as_ref().map_or(0, |automaton| automaton.resume(state))
        };
        let standing = self.standing.as_ref();
        [
            resume(&self.exact, states[0]),
            resume(&self.nocase, states[1]),
            standing.map_or(0, |automaton| automaton.resume(states[2], position)),
        ]
    }

    /// True if no pattern is under way in these states, somewhere in a stream.
    pub(super) fn is_rest(&self, states: States) -> bool {
        self.resume(states, 1) == self.resume([0; 3], 1)
    }

    /// The place that stands for this one in flows' tables ([`Engine::names`]).
    fn named(&self, place: Place) -> Place {
        let chains = self.names.get(usize::from(place.rule));
        let name = chains.and_then(|chains| {
            let names = chains.get(usize::from(place.chain))?;
            let is_whole = place.step == WHOLE;
            if is_whole { names.last() } else { names.get(usize::from(place.step)) }
        });
        name.map_or(place, |&(rule, chain)| Place { rule, chain, ..place })
    }

    fn step(&self, place: Place) -> Option<&Step> {
        let rule = self.rules.get(usize::from(place.rule))?;
        rule.chains.get(usize::from(place.chain))?.get(usize::from(place.step))
    }

    /// Forgets rules in part and expressions that can no longer match, and states that
    /// are none of these rules'.
    pub(super) fn tidy(&self, side: &mut Side) {
        side.bring_closer();
        // A retransmitted segment is inspected at its own position in the stream.
        self.expire(side, side.position as u32, side.unacknowledged());
        for armed in side.armed.iter_mut().filter(|armed| armed.rule != 0) {
            let place = Place { rule: armed.rule - 1, chain: armed.chain, step: armed.step };
            let is_known = matches!(self.step(place), Some(Step::Expression(expression)) if expression.knows(armed.state));
            if !is_known {
                *armed = Armed::default();
            }
        }
    }

    /// Forgets rules that have matched in part and can match neither at `now` nor from
    /// `behind` bytes before it on.
    fn expire(&self, side: &mut Side, now: u32, behind: u32) {
        for partial in side.partials.iter_mut().filter(|partial| partial.rule != 0) {
            let place = Place { rule: partial.rule - 1, chain: partial.chain, step: partial.next };
            let is_over = match self.step(place) {
                Some(Step::Content(content)) => content.reach().is_some_and(|reach| {
                    i64::from(distance(partial.last, now)) >= i64::from(reach) + i64::from(behind)
                }),
                Some(_) => true,
                None => partial.next != WHOLE,
            };
            if is_over {
                *partial = Partial::default();
            }
        }
    }

    /// Inspects bytes from a position of the stream on, with the automata in these
    /// states. Returns the states after them. `side` must be [tidy](Engine::tidy).
    pub(super) fn run(
        &self,
        side: &mut Side,
        position: u64,
        states: States,
        bytes: &[u8],
        scan: &mut Scan<'_>,
    ) -> States {
        let [mut exact, mut nocase, mut standing] = self.resume(states, position);
        let mut is_armed = side.is_armed();
        let mut end = position;
        for block in bytes.chunks(BLOCK) {
            if !is_armed && let Some(states) = self.pass([exact, nocase, standing], block) {
                [exact, nocase, standing] = states;
                end = end.wrapping_add(block.len() as u64);
                continue;
            }
            for &byte in block {
                if let Some(automaton) = &self.standing {
                    standing = automaton.next(standing, byte);
                    // Matches up to the first byte were found with the bytes before it.
                    if end != position && automaton.matches(standing) > 0 {
                        self.find_standing(side, automaton, standing, end, scan);
                    }
                }
                if is_armed {
                    self.step_expressions(side, byte, end, scan);
                    is_armed = side.is_armed();
                }
                end = end.wrapping_add(1);
                if let Some(automaton) = &self.exact {
                    exact = automaton.next(exact, byte);
                    for at in 0..automaton.matches(exact) {
                        self.find(side, automaton.uses(exact, at), end, scan);
                        is_armed = side.is_armed();
                    }
                }
                if let Some(automaton) = &self.nocase {
                    nocase = automaton.next(nocase, byte);
                    for at in 0..automaton.matches(nocase) {
                        self.find(side, automaton.uses(nocase, at), end, scan);
                        is_armed = side.is_armed();
                    }
                }
            }
        }
        if is_armed {
            self.end_expressions(side, end, scan);
        }
        if let Some(automaton) = self.standing.as_ref().filter(|_| end != position) {
            self.find_standing(side, automaton, automaton.ended(standing), end, scan);
        }
        [exact, nocase, standing]
    }

    /// The states after these bytes; `None` if anything matches among them. Nearly all
    /// bytes match nothing, and the loops that find that out have nothing else to do.
    fn pass(&self, states: States, bytes: &[u8]) -> Option<States> {
        let pass = |automaton: &Option<Automaton>, state| match automaton {
            Some(automaton) => automaton.pass(state, bytes),
            None => Some(state),
        };
        let standing = match &self.standing {
            Some(automaton) => automaton.pass(states[2], bytes)?,
            None => states[2],
        };
        Some([pass(&self.exact, states[0])?, pass(&self.nocase, states[1])?, standing])
    }

    /// Handles the matches of expressions without `R` that this state reports.
    fn find_standing(
        &self,
        side: &mut Side,
        automaton: &Standing,
        state: u32,
        end: u64,
        scan: &mut Scan<'_>,
    ) {
        for at in 0..automaton.matches(state) {
            let Some(Use { rule, chain, step }) = automaton.used(state, at) else { continue };
            if self.is_meant(rule, scan) {
                self.advance(side, Place { rule, chain, step }, end, scan);
            }
        }
    }

    /// Handles a content that was found: takes the step of each rule that it fits.
    fn find(&self, side: &mut Side, uses: &[Use], end: u64, scan: &mut Scan<'_>) {
        for &Use { rule, chain, step } in uses {
            let place = Place { rule, chain, step };
            let Some(Step::Content(content)) = self.step(place) else { continue };
            let fits = if step == 0 {
                let from_start = i32::try_from(end).unwrap_or(i32::MAX);
                content.fits(from_start, from_start) && self.is_meant(rule, scan)
            } else {
                let place = self.named(place);
                side.partials.iter().any(|partial| {
                    let from = |base: u32| distance(base, end as u32);
                    partial.is(place) && content.fits(from(partial.first), from(partial.last))
                })
            };
            if fits {
                self.advance(side, place, end, scan);
            }
        }
    }

    /// True if the rule applies to this packet.
    fn is_meant(&self, rule: u16, scan: &Scan<'_>) -> bool {
        self.rules.get(usize::from(rule)).is_some_and(|rule| {
            rule.flow.to_server.is_none_or(|to_server| to_server == scan.is_to_server)
                && rule.flow.is_established.is_none_or(|is| is == scan.is_established)
                && rule.header.matches(scan.key)
        })
    }

    /// Handles a step that has matched up to `end`: notes that the chain's next one is
    /// due.
    fn advance(&self, side: &mut Side, place: Place, end: u64, scan: &mut Scan<'_>) {
        let next = Place { step: place.step.saturating_add(1), ..place };
        let has_room = match self.step(next) {
            Some(Step::Content(content)) => {
                let (next, slack) = (self.named(next), content.slack());
                side.keep(next, end as u32, slack) || {
                    // Rules in part that only retransmitted bytes could complete make
                    // room.
                    side.has_forgotten = 1;
                    self.expire(side, end as u32, 0);
                    side.keep(next, end as u32, slack)
                }
            }
            Some(Step::Expression(expression)) => {
                side.arm(next, expression.start(), expression.is_anchored)
            }
            // An expression without `R` follows nothing.
            Some(Step::Standing(_)) => true,
            None => return self.complete(side, place, end, scan),
        };
        scan.is_overfull |= !has_room;
    }

    /// Handles a chain that has matched as a whole.
    fn complete(&self, side: &mut Side, place: Place, end: u64, scan: &mut Scan<'_>) {
        let Some(rule) = self.rules.get(usize::from(place.rule)) else { return };
        let whole = |chain: u8| self.named(Place { chain, step: WHOLE, ..place });
        let is_whole = |side: &Side, chain: u8| {
            chain == place.chain || side.partials.iter().any(|partial| partial.is(whole(chain)))
        };
        if (0..rule.chains.len() as u8).all(|chain| is_whole(side, chain)) {
            // The table keeps the rule's chains: retransmission of the same bytes must
            // lead to the same state.
            scan.hit(place.rule, rule.action);
        } else {
            scan.is_overfull |= !side.keep(whole(place.chain), end as u32, None);
        }
    }

    /// Steps expressions by a byte. `end` is the position before it.
    fn step_expressions(&self, side: &mut Side, byte: u8, end: u64, scan: &mut Scan<'_>) {
        for at in 0..side.armed.len() {
            let Armed { rule, chain, step, state } = side.armed[at];
            let Some(rule) = rule.checked_sub(1) else { continue };
            let place = Place { rule, chain, step };
            let Some(Step::Expression(expression)) = self.step(place) else { continue };
            match expression.step(state, byte) {
                Led::On(state) => side.armed[at].state = state,
                Led::Dead => side.armed[at] = Armed::default(),
                Led::Matched => {
                    side.armed[at] = Armed::default();
                    self.advance(side, place, end, scan);
                }
            }
        }
    }

    /// Finds matches of expressions that end with the latest byte.
    fn end_expressions(&self, side: &mut Side, end: u64, scan: &mut Scan<'_>) {
        for at in 0..side.armed.len() {
            let Armed { rule, chain, step, state } = side.armed[at];
            let Some(rule) = rule.checked_sub(1) else { continue };
            let place = Place { rule, chain, step };
            let Some(Step::Expression(expression)) = self.step(place) else { continue };
            if expression.is_matched(state) {
                side.armed[at] = Armed::default();
                self.advance(side, place, end, scan);
            }
        }
    }
}
