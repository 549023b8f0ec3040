//! The side of a pool whose numbers a server assigns.

use super::{BlockMask, Lease, PoolBackend, PoolEffect};
use core::ops::Range;
use std::collections::VecDeque;

/// The pause after a denial before the server is asked again for a later flow, ns.
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

    /// Returns false if nothing changes, or the number does not exist.
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
        (0..).zip(&self.0).flat_map(|(word, bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 64 + bit)
        })
    }
}

/// A pool of which a server assigns every number. This side holds a credit of numbers
/// fetched in advance, and knows which numbers flows here have.
pub struct RequestPool {
    size: u32,
    credit: VecDeque<u32>,
    target: usize,
    /// Numbers requested and not assigned yet.
    owed: usize,
    /// True if the server was asked and has not denied since.
    is_open: bool,
    /// Time of the latest denial; none if others may have numbers again.
    denied_at: Option<u64>,
    /// True if the credit is wanted elsewhere: it goes back once flows that waited here
    /// have had their turn.
    is_sparing: bool,
    /// Numbers that flows here have.
    held: Bits,
    held_count: u32,
    /// Numbers in `held` whose flow has left and may not have arrived. `left` has them in
    /// order, and also numbers whose flow has come back.
    leaving: Bits,
    leaving_count: u32,
    left: Vec<u32>,
    /// Numbers that flows here gave back, with the time. Each rests for `rest` ns, even
    /// if the server is replaced.
    rested: VecDeque<(u64, u32)>,
    rest: u64,
    now: u64,
    effects: VecDeque<PoolEffect>,
}

impl RequestPool {
    /// A pool of the numbers `0..size` that keeps `credit` of them at hand (at least
    /// one).
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

    /// Sets how long a flow's number rests, ns. A server that does not know of it is
    /// told.
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

    /// Notes that flows here have the number, or do not. False if nothing changes, or the
    /// number does not exist.
    fn hold(&mut self, number: u32, is_held: bool) -> bool {
        let is_new = self.held.set(number, is_held);
        if is_new {
            self.held_count = if is_held { self.held_count + 1 } else { self.held_count - 1 };
        }
        is_new
    }

    /// Notes that the number's flow is leaving, or is not. False if nothing changes.
    fn leave(&mut self, number: u32, is_leaving: bool) -> bool {
        let is_new = self.leaving.set(number, is_leaving);
        if is_new {
            self.leaving_count =
                if is_leaving { self.leaving_count + 1 } else { self.leaving_count - 1 };
        }
        is_new
    }
}

impl PoolBackend for RequestPool {
    fn lease(&mut self, preferred: &Range<u32>, random: Option<u64>) -> Lease {
        let count = self.credit.len();
        let first =
            random.map_or(0, |random| (((random & 0xffff_ffff) * count as u64) >> 32) as usize);
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
            None if self.denied_at.is_some_and(|at| self.now < at.saturating_add(AGAIN)) => {
                Lease::Exhausted
            }
            None => {
                // A number is owed already. The request is repeated because other
                // runtimes give up numbers only for a runtime that needs them.
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

    /// Keeps it at hand: a flow that needs a number of another pool, too, tries again,
    /// and would use up this one meanwhile.
    fn put_back(&mut self, number: u32) {
        if self.hold(number, false) {
            self.credit.push_front(number);
        }
    }

    fn adopt(&mut self, number: u32) {
        // A flow that had left may be back.
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
            // This check keeps two flows here from having one number, whatever the server
            // says.
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

    /// Spares the credit, which is filled again only when a flow needs a number.
    fn spare(&mut self) {
        self.is_sparing = true;
    }

    /// Tells a new server everything: unheard requests to the one before are void. Credit
    /// is claimed like held numbers, because no other runtime has it, and flows need it
    /// most while the server does not know yet which numbers are free.
    fn announce(&mut self) {
        self.effects.clear();
        (self.owed, self.is_open, self.denied_at, self.is_sparing) = (0, false, None, false);
        self.effects.extend(self.held.iter().map(PoolEffect::Adopted));
        self.effects.extend(self.credit.iter().copied().map(PoolEffect::Adopted));
        // New flows do not wait until everything has been told.
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
            // The denial is void: the server is asked again.
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
