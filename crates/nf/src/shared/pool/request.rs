//! The side of a pool whose numbers are a server's.

use super::{BlockMask, Lease, PoolBackend, PoolEffect};
use core::ops::Range;
use std::collections::VecDeque;

/// Who has been told that there is none asks again, ns, for a flow that comes later than this.
pub(super) const AGAIN: u64 = 10_000_000;

/// A bit per number.
struct Bits(Vec<u64>);

impl Bits {
    fn new(size: u32) -> Bits {
        Bits(vec![0; size.div_ceil(64) as usize])
    }

    fn has(&self, number: u32) -> bool {
        self.0.get((number / 64) as usize).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// False if that is nothing new, or there is no such number.
    fn set(&mut self, number: u32, value: bool) -> bool {
        let Some(word) = self.0.get_mut((number / 64) as usize) else { return false };
        let bit = 1 << (number % 64);
        let is_new = (*word & bit != 0) != value;
        if is_new {
            *word ^= bit;
        }
        is_new
    }

    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..)
            .zip(&self.0)
            .flat_map(|(word, bits)| (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 64 + bit))
    }
}

/// A pool whose every number is assigned by a server; this side holds a credit of numbers fetched in advance, and knows which ones flows here have.
pub struct RequestPool {
    size: u32,
    credit: VecDeque<u32>,
    target: usize,
    /// Asked for, and not assigned yet.
    owed: usize,
    /// The server has been asked, and has not said that there is nothing since.
    is_open: bool,
    /// When it said so; none if others may have something again.
    denied_at: Option<u64>,
    /// What is at hand is wanted elsewhere: it goes when flows that waited here have had their turn.
    is_sparing: bool,
    /// Flows here have it.
    held: Bits,
    held_count: u32,
    /// Of those: the flow has left, and may not have come where it went. And these in order; one that has come back is among them still.
    leaving: Bits,
    leaving_count: u32,
    left: Vec<u32>,
    /// What flows here had lately and gave back, and when: for so long it rests, ns, whichever server there is.
    rested: VecDeque<(u64, u32)>,
    rest: u64,
    now: u64,
    effects: VecDeque<PoolEffect>,
}

impl RequestPool {
    /// A pool of the numbers `0..size` that keeps `credit` of them at hand (at least one).
    pub fn new(size: u32, credit: usize) -> RequestPool {
        let target = credit.max(1);
        let mut pool = RequestPool {
            size,
            credit: VecDeque::with_capacity(target),
            target,
            owed: 0,
            is_open: false,
            denied_at: None,
            is_sparing: false,
            held: Bits::new(size),
            held_count: 0,
            leaving: Bits::new(size),
            leaving_count: 0,
            left: Vec::with_capacity(64),
            rested: VecDeque::new(),
            rest: 0,
            now: 0,
            effects: VecDeque::with_capacity(64),
        };
        pool.refill();
        pool
    }

    /// A number that a flow had rests for so long, ns: a server that does not know it is told.
    #[must_use]
    pub fn resting(mut self, rest: u64) -> RequestPool {
        self.rest = rest;
        self
    }

    fn refill(&mut self) {
        while self.credit.len() + self.owed < self.target {
            self.owed += 1;
            self.ask();
        }
    }

    fn ask(&mut self) {
        self.is_open = true;
        self.effects.push_back(PoolEffect::Request);
    }

    /// Flows here have it from now on, or have it no more. False if that is nothing new, or there is no such number.
    fn hold(&mut self, number: u32, is_held: bool) -> bool {
        let is_new = self.held.set(number, is_held);
        if is_new {
            self.held_count = if is_held { self.held_count + 1 } else { self.held_count - 1 };
        }
        is_new
    }

    /// A flow with it is leaving, or is not. False if that is nothing new.
    fn leave(&mut self, number: u32, is_leaving: bool) -> bool {
        let is_new = self.leaving.set(number, is_leaving);
        if is_new {
            self.leaving_count = if is_leaving { self.leaving_count + 1 } else { self.leaving_count - 1 };
        }
        is_new
    }
}

impl PoolBackend for RequestPool {
    fn lease(&mut self, preferred: &Range<u32>, random: Option<u64>) -> Lease {
        let count = self.credit.len();
        let first = random.map_or(0, |random| (((random & 0xffff_ffff) * count as u64) >> 32) as usize);
        let mut from_first = (0..count).map(|step| (first + step) % count);
        let wish = from_first.find(|at| preferred.contains(&self.credit[*at])).unwrap_or(first);
        let number = self.credit.remove(wish);
        if let Some(number) = number {
            self.hold(number, true);
            self.effects.push_back(PoolEffect::Used(number));
        }
        self.refill();
        match number {
            Some(number) => Lease::Granted(number),
            None if self.is_open => Lease::Wait,
            None if self.denied_at.is_some_and(|at| self.now < at.saturating_add(AGAIN)) => Lease::Exhausted,
            None => {
                // It is owed already. But nobody else gives something up for somebody who does not need it.
                self.ask();
                Lease::Wait
            }
        }
    }

    fn give_back(&mut self, number: u32) {
        self.leave(number, false);
        if self.hold(number, false) {
            self.effects.push_back(PoolEffect::Return(number));
            if self.rest > 0 {
                self.rested.push_back((self.now, number));
            }
        }
    }

    fn adopt(&mut self, number: u32) {
        // One that had left may be back.
        self.leave(number, false);
        self.hold(number, true);
        self.effects.push_back(PoolEffect::Adopted(number));
    }

    fn forget(&mut self, number: u32) {
        if self.is_held(number) && self.leave(number, true) {
            self.left.push(number);
        }
    }

    fn grant_block(&mut self, _block: u32, _used: &BlockMask) {}

    fn assign(&mut self, number: u32) {
        self.owed = self.owed.saturating_sub(1);
        if number >= self.size {
            // The server's list is larger than this pool.
            self.effects.push_back(PoolEffect::Unused(number));
        } else if !self.is_held(number) && !self.credit.contains(&number) {
            // Nothing else that a server may say makes two flows here have one number.
            self.credit.push_back(number);
        }
    }

    fn deny(&mut self) {
        self.is_open = false;
        self.denied_at = Some(self.now);
    }

    fn returned(&mut self, _number: u32) -> bool {
        false
    }

    fn taken(&mut self, _number: u32) {}

    /// It is filled up again when a flow needs a number: until then there is nobody here who does.
    fn spare(&mut self) {
        self.is_sparing = true;
    }

    /// The server is another one: what was asked of the one before, and not heard by it, was never said. Credit is claimed like what flows have: nobody else has it, and flows need it most while
    /// the server does not know yet what it may assign.
    fn announce(&mut self) {
        self.effects.clear();
        (self.owed, self.is_open, self.denied_at, self.is_sparing) = (0, false, None, false);
        self.effects.extend(self.held.iter().map(PoolEffect::Adopted));
        self.effects.extend(self.credit.iter().copied().map(PoolEffect::Adopted));
        // New flows are not to wait until everything is said.
        self.refill();
        let mut is_known = Bits::new(self.size);
        self.credit.iter().for_each(|number| _ = is_known.set(*number, true));
        for (_, number) in &self.rested {
            if !self.held.has(*number) && is_known.set(*number, true) {
                self.effects.extend([PoolEffect::Adopted(*number), PoolEffect::Return(*number)]);
            }
        }
    }

    fn asks_server(&self) -> bool {
        true
    }

    fn advance(&mut self, now: u64) {
        self.now = now;
        if core::mem::take(&mut self.is_sparing) && !self.credit.is_empty() {
            // Whether there is none is known when it has been asked for again.
            self.denied_at = None;
            self.effects.extend(self.credit.drain(..).map(PoolEffect::Unused));
            self.effects.push_back(PoolEffect::SparedAll);
        }
        while self.rested.front().is_some_and(|(at, _)| now.saturating_sub(*at) > self.rest) {
            self.rested.pop_front();
        }
    }

    fn settle(&mut self) {
        for at in 0..self.left.len() {
            let number = self.left[at];
            if self.leave(number, false) && self.hold(number, false) {
                self.effects.push_back(PoolEffect::Left(number));
            }
        }
        self.left.clear();
    }

    fn poll_effect(&mut self) -> Option<PoolEffect> {
        self.effects.pop_front()
    }

    fn available(&self) -> u32 {
        self.credit.len() as u32
    }

    fn is_free(&self, number: u32) -> bool {
        self.credit.contains(&number)
    }

    fn is_held(&self, number: u32) -> bool {
        self.held.has(number)
    }

    fn is_leaving(&self, number: u32) -> bool {
        self.leaving.has(number)
    }

    fn held(&self) -> u32 {
        self.held_count - self.leaving_count
    }

    fn granted(&self) -> u32 {
        self.credit.len() as u32 + self.held_count
    }
}
