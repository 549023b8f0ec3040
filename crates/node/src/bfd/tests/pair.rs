//! Two sessions against each other, on virtual time, over a link that loses, is cut, and
//! is listened to.

use super::super::*;
use holdfast_wire::bfd::{Control, Diagnostic, MAX_LEN, State};
use std::collections::VecDeque;

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1000 * MS;
/// Delay from side to side, ns.
pub(super) const DELAY: u64 = MS;

pub(super) fn settings(interval_ms: u32, multiplier: u8) -> Settings {
    Settings {
        min_transmit: interval_ms * 1000,
        min_receive: interval_ms * 1000,
        multiplier,
        key: None,
    }
}

pub(super) fn with_key(kind: KeyKind, id: u8, secret: &[u8]) -> Settings {
    Settings { key: Key::new(kind, id, secret), ..settings(50, 3) }
}

/// SplitMix64: chance from a seed.
pub(super) fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The packets on the link.
pub(super) struct Sent {
    pub(super) at: u64,
    pub(super) from: usize,
    pub(super) bytes: Vec<u8>,
}

impl Sent {
    pub(super) fn packet(&self) -> Control<'_> {
        Control::parse(&self.bytes).expect("a session writes control packets")
    }
}

pub(super) struct Pair {
    pub(super) sides: [Session; 2],
    pub(super) now: u64,
    pub(super) flying: VecDeque<(u64, usize, Vec<u8>)>,
    /// All packets of this side are lost.
    pub(super) cut: [bool; 2],
    /// Lost packets of a thousand.
    pub(super) lost: u64,
    pub(super) random: Box<dyn FnMut() -> u64>,
    pub(super) sent: Vec<Sent>,
    pub(super) changes: Vec<(u64, usize, Change)>,
    pub(super) discards: Vec<(usize, Discard)>,
}

impl Pair {
    pub(super) fn new(first: Settings, second: Settings) -> Pair {
        Pair {
            sides: [Session::new(first, 11, 1000, 0), Session::new(second, 22, u32::MAX - 3, 0)],
            now: 0,
            flying: VecDeque::new(),
            cut: [false; 2],
            lost: 0,
            random: Box::new(random(7)),
            sent: Vec::new(),
            changes: Vec::new(),
            discards: Vec::new(),
        }
    }

    /// A pair with both sides up, whose earlier events are forgotten.
    pub(super) fn up(first: Settings, second: Settings) -> Pair {
        let mut pair = Pair::new(first, second);
        pair.run(10 * SECOND);
        assert_eq!(pair.states(), [State::Up; 2], "{:?} {:?}", pair.changes, pair.discards);
        pair.forget();
        pair
    }

    pub(super) fn forget(&mut self) {
        self.sent.clear();
        self.changes.clear();
        self.discards.clear();
    }

    pub(super) fn states(&self) -> [State; 2] {
        [self.sides[0].state(), self.sides[1].state()]
    }

    pub(super) fn deliver(&mut self, to: usize, bytes: &[u8]) {
        let packet = Control::parse(bytes).expect("a session writes control packets");
        match self.sides[to].handle(&packet, bytes, self.now) {
            Ok(change) => self.changes.extend(change.map(|change| (self.now, to, change))),
            Err(discard) => self.discards.push((to, discard)),
        }
    }

    /// Runs for so many ns.
    pub(super) fn run(&mut self, time: u64) {
        let end = self.now + time;
        loop {
            let arrival = self.flying.front().map_or(u64::MAX, |(at, ..)| *at);
            let next =
                self.sides.iter().map(Session::poll_timeout).min().unwrap_or(u64::MAX).min(arrival);
            if next > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            while self.flying.front().is_some_and(|(at, ..)| *at <= self.now) {
                let Some((_, to, bytes)) = self.flying.pop_front() else { break };
                self.deliver(to, &bytes);
            }
            for side in 0..2 {
                let change = self.sides[side].handle_timeout(self.now);
                self.changes.extend(change.map(|change| (self.now, side, change)));
                let mut into = [0; MAX_LEN];
                while let Some(len) =
                    self.sides[side].poll_transmit(self.now, &mut self.random, &mut into)
                {
                    let bytes = into[..len].to_vec();
                    self.sent.push(Sent { at: self.now, from: side, bytes: bytes.clone() });
                    if !self.cut[side] && (self.random)() % 1000 >= self.lost {
                        self.flying.push_back((self.now + DELAY, 1 - side, bytes));
                    }
                }
            }
        }
    }

    pub(super) fn run_until(&mut self, what: &str, mut is_so: impl FnMut(&Pair) -> bool) {
        let end = self.now + 60 * SECOND;
        while !is_so(self) {
            assert!(self.now < end, "it never was so that {what}: {:?}", self.changes);
            self.run(MS / 10);
        }
    }

    /// Times at which a side sent a packet that was no answer to a poll.
    pub(super) fn times(&self, side: usize) -> Vec<u64> {
        let periodic = self.sent.iter().filter(|sent| sent.from == side && !sent.packet().is_final);
        periodic.map(|sent| sent.at).collect()
    }

    pub(super) fn gaps(&self, side: usize) -> Vec<u64> {
        self.times(side).windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    pub(super) fn to_states(&self, side: usize) -> Vec<(State, Diagnostic)> {
        let of_side = self.changes.iter().filter(|(_, at, _)| *at == side);
        of_side.map(|(_, _, change)| (change.to, change.diagnostic)).collect()
    }
}

pub(super) const NONE: Diagnostic = Diagnostic::NONE;
