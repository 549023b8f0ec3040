//! The state of a flow: per direction the place in the stream, the automata's states,
//! rules that have matched in part, and the automata's states at the beginnings of its
//! last segments.
//!
//! Any bytes are a valid value of every field. Numbers of states, rules and steps are
//! checked where they are used.

use holdfast_wire::fault::{Fault, is_planted};

/// Beginnings of segments that a direction remembers.
const BORDERS: usize = 16;
/// Places of rules that have matched in part, per direction.
const PARTIALS: usize = 12;
/// Regular expressions under way, per direction.
const ARMED: usize = 4;
/// [`Partial::next`] of a chain that has matched as a whole.
pub(super) const WHOLE: u8 = u8::MAX;
/// Distance of positions, bytes, beyond which all count as equal.
const FAR: u32 = 1 << 29;
/// The largest window of a receiver, bytes (RFC 7323): no more bytes can be in flight.
const MOST_WINDOW: u32 = 1 << 30;

/// States of the automata: of the case-sensitive contents, of those with `nocase`, and of
/// the expressions without `R`. 0 stands for a state that is not known.
pub(super) type States = [u32; 3];

/// Values of [`Inspected::mode`].
pub(super) mod mode {
    pub(crate) const INSPECTED: u8 = 0;
    /// A `pass` rule matched.
    pub(crate) const PASSED: u8 = 1;
    pub(crate) const DROPPED: u8 = 2;
    pub(crate) const REJECTED: u8 = 3;
}

holdfast_nf::flow_state! {
    /// A chain of a rule that has matched in part.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct Partial {
        /// The rule's index plus one; 0 for none.
        pub rule: u16,
        /// The chain in the rule.
        pub chain: u8,
        /// The step that comes next, or `WHOLE`.
        pub next: u8,
        /// The stream position of the end of the step matched last; the first of several
        /// such ends.
        pub first: u32,
        /// The last of several such ends. Ends between `first` and `last` lie so close
        /// that they need not be stored.
        pub last: u32,
    }
}

holdfast_nf::flow_state! {
    /// A regular expression under way.
    #[derive(Clone, Copy)]
    pub struct Armed {
        /// The rule's index plus one; 0 for none.
        pub rule: u16,
        /// The chain in the rule.
        pub chain: u8,
        /// The expression's step.
        pub step: u8,
        /// The state of its automaton.
        pub state: u32,
    }
}

holdfast_nf::flow_state! {
    /// The beginning of a segment.
    #[derive(Clone, Copy)]
    pub struct Border {
        /// The sequence number of its first byte.
        pub sequence: u32,
        /// The automata's states before that byte.
        pub states: [u32; 3],
    }
}

holdfast_nf::flow_state! {
    /// State of one direction.
    #[derive(Clone, Copy)]
    pub struct Side {
        /// Bytes since the stream began.
        pub position: u64,
        /// The sequence number of the next byte.
        pub expected: u32,
        /// The number up to which the other end has acknowledged.
        pub acknowledged: u32,
        /// The sequence number of the stream's first byte.
        pub begun: u32,
        /// The number behind the latest border that was forgotten in other states than
        /// the automata's start; no later than `acknowledged` if there is none.
        pub lost: u32,
        /// 1 once `begun` is known.
        pub is_started: u16,
        /// 1 if the stream's beginning was not seen.
        pub is_midstream: u16,
        /// The number of borders that are remembered, `BORDERS` at most.
        pub kept: u32,
        /// 1 once a rule that had matched in part was forgotten for want of room.
        pub has_forgotten: u32,
        /// The automata's states before the next byte, 0 at the start.
        pub states: [u32; 3],
        /// Beginnings of segments, in order.
        pub borders: [Border; 16],
        /// Rules that have matched in part.
        pub partials: [Partial; 12],
        /// Regular expressions under way.
        pub armed: [Armed; 4],
    }
}

holdfast_nf::flow_state! {
    /// State of one flow.
    pub struct Inspected {
        /// The digest of the rules to which the other fields belong.
        pub digest: u64,
        /// The forward and the reverse direction.
        pub sides: [Side; 2],
        /// Sequence number of a SYN inside of the connection that may begin a new one.
        pub offered: u32,
        /// The latest rule that matched: its counter's index plus one, or 0.
        pub rule: u16,
        /// The treatment of the flow's packets: inspected, passed, dropped, rejected
        /// (`mode`).
        pub mode: u8,
        /// Bits: 1 and 2, a packet of the forward or reverse direction was seen; 4 and 8,
        /// `offered` is of that direction.
        pub seen: u8,
    }
}

/// The place of a step: its rule, its chain and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) rule: u16,
    pub(super) chain: u8,
    pub(super) step: u8,
}

/// The distance from one position to another, negative if it lies before.
pub(super) fn distance(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from) as i32
}

impl Partial {
    pub(super) fn is(&self, place: Place) -> bool {
        (self.rule, self.chain, self.next)
            == (place.rule.saturating_add(1), place.chain, place.step)
    }
}

impl Side {
    /// Begins a stream.
    pub(super) fn begin(&mut self, sequence: u32) {
        *self = Side {
            expected: sequence,
            acknowledged: sequence,
            begun: sequence,
            lost: sequence,
            is_started: 1,
            ..Side::default()
        };
    }

    /// Notes an acknowledgement by the other end, if the acknowledged bytes have passed.
    pub(super) fn acknowledge(&mut self, number: u32) {
        if self.is_started != 0
            && distance(self.acknowledged, number) > 0
            && distance(self.expected, number) <= 0
        {
            self.be_acknowledged(number);
        }
    }

    /// Takes all bytes before `number` as acknowledged, and forgets state that only
    /// unacknowledged bytes need.
    fn be_acknowledged(&mut self, number: u32) {
        self.acknowledged = number;
        if distance(self.lost, number) > 0 {
            self.lost = number;
        }
        if number == self.expected {
            self.has_forgotten = 0;
        }
        let kept = self.borders().len();
        // A border is needed until the bytes up to the next one are acknowledged.
        let ends = self.borders().iter().skip(1).map(|border| border.sequence);
        let ends = ends.chain([self.expected]).take(kept);
        let free = ends.take_while(|end| distance(*end, number) >= 0).count();
        self.borders.copy_within(free..kept, 0);
        self.kept = (kept - free) as u32;
    }

    /// Moves the stream's place behind this many new bytes.
    pub(super) fn go_on(&mut self, bytes: usize) {
        self.position = self.position.wrapping_add(bytes as u64);
        self.expected = self.expected.wrapping_add(bytes as u32);
        let unacknowledged = self.expected.wrapping_sub(self.acknowledged);
        if (MOST_WINDOW..=i32::MAX as u32).contains(&unacknowledged) {
            // The other end's segments take another path: its acknowledgements are not
            // seen.
            self.be_acknowledged(self.expected.wrapping_sub(MOST_WINDOW));
        }
    }

    /// True if a segment that begins `behind` bytes before `expected` lies before the
    /// first byte of a stream whose beginning was seen.
    pub(super) fn is_before_beginning(&self, behind: u32) -> bool {
        self.is_midstream == 0 && u64::from(behind) > self.position
    }

    /// True if the other end has acknowledged all bytes before `end` of a segment that
    /// begins `behind` bytes before `expected`.
    pub(super) fn is_acknowledged(&self, end: u32, behind: u32) -> bool {
        // Acknowledged bytes of a midstream side are unknown until its first
        // acknowledgement.
        let is_unknown = self.is_midstream != 0 && self.acknowledged == self.begun;
        distance(self.acknowledged, end) <= 0 && !is_unknown && !self.is_before_beginning(behind)
    }

    /// The latest border up to which all bytes are acknowledged, if it lies behind
    /// `start` and `start` is no border.
    pub(super) fn border_to_begin_at(&self, start: u32) -> Option<u32> {
        let is_between = |border: &&Border| {
            distance(start, border.sequence) > 0
                && distance(border.sequence, self.acknowledged) >= 0
        };
        let is_none = self.states_at(start).is_none();
        let border = self.borders().iter().rev().find(is_between);
        border.filter(|_| is_none).map(|border| border.sequence)
    }

    /// True if the automata's states at `start`, or at the receiver's next byte if that
    /// lies behind it, may be forgotten ones other than the start states.
    pub(super) fn has_lost(&self, start: u32) -> bool {
        let is_behind = distance(start, self.acknowledged) > 0;
        let from = if is_behind { self.acknowledged } else { start };
        distance(from, self.lost) > 0
    }

    fn borders(&self) -> &[Border] {
        &self.borders[..(self.kept as usize).min(BORDERS)]
    }

    /// Remembers that a segment begins at `expected`. `is_start` tells whether states are
    /// the automata's start.
    pub(super) fn remember(&mut self, is_start: impl Fn(States) -> bool) {
        let mut kept = self.borders().len();
        if kept == BORDERS {
            // A receiver that misses bytes asks for the first segment, which lies between
            // the first two borders.
            let at = (1..BORDERS).find(|at| is_start(self.borders[*at].states));
            let at = at.unwrap_or_else(|| {
                self.lost = self.borders[2].sequence.wrapping_add(1);
                2
            });
            self.borders.copy_within(at + 1.., at);
            kept -= 1;
        }
        self.borders[kept] = Border { sequence: self.expected, states: self.states };
        self.kept = kept as u32 + 1;
    }

    /// The states before the byte with this number, if a segment began there.
    pub(super) fn states_at(&self, sequence: u32) -> Option<States> {
        if sequence == self.expected {
            return Some(self.states);
        }
        self.borders().iter().find(|border| border.sequence == sequence).map(|border| border.states)
    }

    /// The number of bytes that may be retransmitted, `FAR` at most.
    pub(super) fn unacknowledged(&self) -> u32 {
        self.expected.wrapping_sub(self.acknowledged).min(FAR)
    }

    /// True if a regular expression is under way.
    #[inline]
    pub(super) fn is_armed(&self) -> bool {
        self.armed.iter().any(|armed| armed.rule != 0)
    }

    /// Notes that `place` comes next behind a match that ended at `end`. Two ends, and
    /// all between them, count as one if they lie no more than `slack` apart; without
    /// `slack` the first stands for all. False if there is no room.
    #[must_use]
    pub(super) fn keep(&mut self, place: Place, end: u32, slack: Option<i32>) -> bool {
        // An end that is known already, because its bytes are retransmitted, changes
        // nothing.
        let is_known = |partial: &Partial| {
            partial.is(place)
                && distance(partial.first, end) >= 0
                && (slack.is_none() || distance(partial.last, end) <= 0)
        };
        if self.partials.iter().any(is_known) {
            return true;
        }
        for partial in self.partials.iter_mut().filter(|partial| partial.is(place)) {
            let (from_first, from_last) =
                (distance(partial.first, end), distance(partial.last, end));
            let is_close = slack
                .is_none_or(|slack| from_first >= slack.saturating_neg() && from_last <= slack);
            if is_close {
                if from_first < 0 {
                    partial.first = end;
                }
                if from_last > 0 {
                    partial.last = end;
                }
                return true;
            }
        }
        let Some(free) = self.partials.iter_mut().find(|partial| partial.rule == 0) else {
            return false;
        };
        *free = Partial {
            rule: place.rule.saturating_add(1),
            chain: place.chain,
            next: place.step,
            first: end,
            last: end,
        };
        true
    }

    /// Begins a regular expression. False if there is no room.
    #[must_use]
    pub(super) fn arm(&mut self, place: Place, state: u32, is_anchored: bool) -> bool {
        let rule = place.rule.saturating_add(1);
        let is_its = |armed: &Armed| {
            (armed.rule, armed.chain, armed.step) == (rule, place.chain, place.step)
        };
        // An expression that began earlier finds every match of one that begins here.
        if !is_anchored && self.armed.iter().any(is_its) {
            return true;
        }
        let Some(free) = self.armed.iter_mut().find(|armed| armed.rule == 0) else { return false };
        *free = Armed { rule, chain: place.chain, step: place.step, state };
        true
    }

    /// Moves ends of matches that lie more than `FAR` back to that distance, so that
    /// distances do not wrap.
    pub(super) fn bring_closer(&mut self) {
        let now = self.position as u32;
        for partial in &mut self.partials {
            for end in [&mut partial.first, &mut partial.last] {
                if now.wrapping_sub(*end) > FAR {
                    *end = now.wrapping_sub(FAR);
                }
            }
        }
    }
}

impl Inspected {
    /// Begins anew under other rules, in the middle of the streams.
    pub(super) fn renew(&mut self, digest: u64) {
        self.digest = digest;
        self.rule = 0;
        for side in &mut self.sides {
            *side = Side {
                states: [0; 3],
                kept: 0,
                has_forgotten: 0,
                partials: Default::default(),
                armed: Default::default(),
                ..*side
            };
        }
        if self.mode == mode::PASSED {
            self.mode = mode::INSPECTED;
            self.sides = [Side::default(); 2];
        }
    }

    /// Lets both streams go on where their next segments begin: the recovered place may
    /// be an old one.
    pub(super) fn lose_place(&mut self) {
        for side in &mut self.sides {
            *side = Side { position: side.position, ..Side::default() };
        }
    }

    /// True once both sides have spoken.
    pub(super) fn is_established(&self) -> bool {
        self.seen & 3 == 3
    }

    /// Begins a stream with a SYN. Inside of a connection a SYN begins a new one only if
    /// the other end answers it: a SYN that the other end refuses must change nothing.
    pub(super) fn synchronise(&mut self, way: usize, sequence: u32, acknowledged: Option<u32>) {
        let other = 1 - way;
        let first = sequence.wrapping_add(1);
        let offered_by = |way: usize| 4u8 << way;
        match acknowledged {
            Some(number)
                if self.seen & offered_by(other) != 0 && number == self.offered.wrapping_add(1) =>
            {
                self.sides[other].begin(number);
                self.sides[way].begin(first);
                self.seen &= !(offered_by(0) | offered_by(1));
                if self.mode == mode::PASSED {
                    (self.mode, self.rule) = (mode::INSPECTED, 0);
                }
            }
            _ if self.sides[way].is_started == 0 || is_planted(Fault::BelievesAnyBeginning) => {
                self.sides[way].begin(first)
            }
            None if self.sides[way].begun != first => {
                self.offered = sequence;
                self.seen = self.seen & !offered_by(other) | offered_by(way);
            }
            _ => {}
        }
    }
}

const _: () = assert!(BORDERS == 16 && PARTIALS == 12 && ARMED == 4);
const _: () = assert!(size_of::<Inspected>() == 976, "what protections copy");
