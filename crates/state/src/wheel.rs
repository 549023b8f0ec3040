//! A timing wheel over millions of indexes: finds those that are due.
//!
//! Theory of operation (Varghese and Lauck, "Hashed and Hierarchical Timing Wheels",
//! 1987, scheme 7). Four wheels of 64 slots, each of which turns 64 times slower than the
//! one before; a slot is a list linked through the indexes themselves. A deadline that
//! moves away, the usual case, is only written: the index stays where it is filed, and is
//! filed again when that slot comes. News of an index therefore costs one store, and
//! finding due indexes touches no others.

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
const WHEELS: usize = 4;
/// An index that is due farther away than this many steps is looked at on the way.
const REACH: u64 = 1 << (BITS * WHEELS as u32);

/// Deadlines are at most this many steps away.
const FARTHEST: u64 = 1 << 30;

const NONE: u32 = u32::MAX;
const NOT_FILED: u8 = u8::MAX;

/// The position of an index in the wheels.
#[derive(Debug, Clone, Copy)]
struct Timer {
    next: u32,
    before: u32,
    /// The step at which it is due, the lower half.
    due: u32,
    wheel: u8,
    slot: u8,
}

const UNFILED: Timer = Timer { next: NONE, before: NONE, due: 0, wheel: NOT_FILED, slot: 0 };

/// See the module. Steps are the caller's unit of time; a deadline that is more than 2^30
/// of them away is brought closer.
#[derive(Debug, Clone)]
pub struct Wheel {
    entries: Vec<Timer>,
    slots: [[u32; SLOTS]; WHEELS],
    /// Indexes filed in each wheel.
    filed: [usize; WHEELS],
    now: u64,
}

impl Wheel {
    /// A wheel of so many indexes, none of which is due.
    pub fn new(size: u32) -> Wheel {
        Wheel {
            entries: vec![UNFILED; size as usize],
            slots: [[NONE; SLOTS]; WHEELS],
            filed: [0; WHEELS],
            now: 0,
        }
    }

    /// The step that the wheel has reached.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Sets the index due at this step, or at the next one if this step is over. An
    /// earlier deadline is replaced.
    #[inline]
    pub fn set(&mut self, index: u32, due: u64) {
        let due = due.clamp(self.now + 1, self.now + FARTHEST);
        let entry = &mut self.entries[index as usize];
        let is_later = entry.wheel != NOT_FILED && (due as u32).wrapping_sub(entry.due) as i32 >= 0;
        entry.due = due as u32;
        // The present slot comes no later than the earlier deadline, so a later one needs
        // no filing.
        if !is_later {
            self.unlink(index);
            self.file(index, due);
        }
    }

    /// Makes the index not due any more.
    pub fn cancel(&mut self, index: u32) {
        self.unlink(index);
    }

    /// The step at which the index is due, if it is.
    pub fn due(&self, index: u32) -> Option<u64> {
        let entry = &self.entries[index as usize];
        (entry.wheel != NOT_FILED).then(|| {
            self.now.wrapping_add_signed(i64::from(entry.due.wrapping_sub(self.now as u32) as i32))
        })
    }

    fn unlink(&mut self, index: u32) {
        let Timer { next, before, wheel, slot, .. } = self.entries[index as usize];
        if wheel == NOT_FILED {
            return;
        }
        match before {
            NONE => self.slots[usize::from(wheel)][usize::from(slot)] = next,
            before => self.entries[before as usize].next = next,
        }
        if next != NONE {
            self.entries[next as usize].before = before;
        }
        self.entries[index as usize].wheel = NOT_FILED;
        self.filed[usize::from(wheel)] -= 1;
    }

    fn file(&mut self, index: u32, due: u64) {
        let due = due.min(self.now + REACH - 1);
        // The highest bit in which the step differs from now names the wheel that reaches
        // it.
        let differing = 63 - (due ^ self.now).max(1).leading_zeros();
        let wheel = ((differing / BITS) as usize).min(WHEELS - 1);
        let slot = (due >> (wheel as u32 * BITS)) as usize % SLOTS;
        let next = core::mem::replace(&mut self.slots[wheel][slot], index);
        if next != NONE {
            self.entries[next as usize].before = index;
        }
        let entry = &mut self.entries[index as usize];
        (entry.next, entry.before, entry.wheel, entry.slot) = (next, NONE, wheel as u8, slot as u8);
        self.filed[wheel] += 1;
    }

    /// As [`Wheel::advance`], over more than a turn of the slowest wheel: each index is
    /// looked at once.
    fn jump(&mut self, now: u64, expired: &mut dyn FnMut(u32) -> Option<u64>) {
        let filed: Vec<(u32, u64)> = (0..self.entries.len() as u32)
            .filter_map(|index| Some((index, self.due(index)?)))
            .collect();
        filed.iter().for_each(|(index, _)| self.unlink(*index));
        self.now = now;
        for (index, due) in filed {
            if due > now {
                self.set(index, due);
            } else if let Some(due) = expired(index) {
                self.set(index, due);
            }
        }
    }

    /// Advances to `now` and calls `expired` for each index that is due by then. A
    /// returned step sets the index again.
    pub fn advance(&mut self, now: u64, mut expired: impl FnMut(u32) -> Option<u64>) {
        if now.saturating_sub(self.now) >= REACH {
            return self.jump(now, &mut expired);
        }
        while self.now < now {
            // Skip to the next turn of the first wheel that is not empty: nothing is due
            // before.
            let Some(first) = self.filed.iter().position(|filed| *filed > 0) else {
                self.now = now;
                return;
            };
            self.now |= (1 << (first as u32 * BITS)) - 1;
            if self.now >= now {
                self.now = now;
                return;
            }
            self.now += 1;
            // Slower wheels first: an index that leaves them may be due at this very
            // step.
            for wheel in (0..WHEELS).rev() {
                let shift = wheel as u32 * BITS;
                if self.now & ((1 << shift) - 1) != 0 {
                    continue;
                }
                let slot = (self.now >> shift) as usize % SLOTS;
                let mut index = core::mem::replace(&mut self.slots[wheel][slot], NONE);
                while index != NONE {
                    let Timer { next, due, .. } = self.entries[index as usize];
                    self.entries[index as usize].wheel = NOT_FILED;
                    self.filed[wheel] -= 1;
                    let ahead = due.wrapping_sub(self.now as u32) as i32;
                    if ahead > 0 {
                        self.file(index, self.now + ahead as u64);
                    } else if let Some(due) = expired(index) {
                        self.set(index, due);
                    }
                    index = next;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Debug, Clone)]
    enum Step {
        Set(u32, u64),
        Cancel(u32),
        Advance(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let far = prop_oneof![0u64..4, 0u64..200, 0u64..10_000, 0u64..(REACH + 100)];
        let index = 0u32..16;
        prop_oneof![
            4 => (index.clone(), far).prop_map(|(index, far)| Step::Set(index, far)),
            1 => index.prop_map(Step::Cancel),
            4 => prop_oneof![0u64..3, 0u64..300, 0u64..20_000].prop_map(Step::Advance),
        ]
    }

    proptest! {
        /// Each index is called once, at exactly the step at which it is due, whatever
        /// was set before.
        #[test]
        fn everything_comes_when_it_is_due(start in prop_oneof![Just(0u64), 0u64..100_000, Just((1u64 << 32) - 50)], steps in prop::collection::vec(step(), 1..60)) {
            let mut wheel = Wheel::new(16);
            wheel.advance(start, |_| None);
            let mut due: BTreeMap<u32, u64> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Set(index, ahead) => {
                        wheel.set(index, wheel.now() + ahead);
                        due.insert(index, wheel.now() + ahead.max(1));
                    }
                    Step::Cancel(index) => {
                        wheel.cancel(index);
                        due.remove(&index);
                    }
                    Step::Advance(ahead) => {
                        for _ in 0..ahead {
                            let now = wheel.now() + 1;
                            let mut called = Vec::new();
                            wheel.advance(now, |index| { called.push(index); None });
                            called.sort_unstable();
                            let expected: Vec<u32> = due.iter().filter(|(_, at)| **at == now).map(|(index, _)| *index).collect();
                            prop_assert_eq!(called, expected, "at {}", now);
                            due.retain(|_, at| *at != now);
                        }
                    }
                }
                for index in 0..16 {
                    prop_assert_eq!(wheel.due(index), due.get(&index).copied());
                }
            }
        }
    }

    /// A clock that begins at the machine's age, or stood still for days, is caught up
    /// with at once.
    #[test]
    fn a_long_pause_is_no_long_walk() {
        let mut wheel = Wheel::new(3);
        wheel.set(0, 5);
        wheel.set(1, u64::MAX);
        let now = 1 << 29;
        wheel.set(2, now + 3);
        let mut called = Vec::new();
        wheel.advance(now, |index| {
            called.push(index);
            (called.len() == 1).then_some(now + 2)
        });
        assert_eq!(
            (&called[..], wheel.due(0), wheel.due(1), wheel.due(2)),
            (&[0][..], Some(now + 2), Some(FARTHEST), Some(now + 3))
        );
        wheel.advance(now + 3, |index| {
            called.push(index);
            None
        });
        assert_eq!(called, [0, 0, 2]);
        wheel.advance(u64::MAX - (1 << 40), |index| {
            called.push(index);
            None
        });
        assert_eq!(called, [0, 0, 2, 1]);
    }

    /// The returned step counts, and one call may go over many steps.
    #[test]
    fn an_index_may_come_again() {
        let mut wheel = Wheel::new(2);
        wheel.set(0, 10);
        wheel.set(1, 5000);
        let (mut calls, mut other) = (0, 0);
        wheel.advance(5000, |index| {
            if index == 1 {
                other += 1;
                return None;
            }
            calls += 1;
            Some(calls * 100)
        });
        // At 10, and then at each hundred.
        assert_eq!((calls, other), (51, 1));
    }
}
