//! Replay protection: a sliding bitmap of a sender's counters.

/// Counters behind the highest that are told apart. A channel has at most 1024 frames in
/// flight, with bare acknowledgements and repetitions between them; a frame overtaken by
/// so many is repeated anyway. A packet between hosts may be overtaken by as many.
pub(crate) const SPAN: u64 = 4096;

/// See the module. Counters begin at 1; 0 is never fresh.
#[derive(Clone)]
pub(crate) struct Replays {
    highest: u64,
    /// A bit per counter of the span, at its position modulo the span.
    seen: [u64; SPAN as usize / 64],
}

impl Default for Replays {
    fn default() -> Replays {
        Replays { highest: 0, seen: [0; SPAN as usize / 64] }
    }
}

fn place(counter: u64) -> (usize, u64) {
    ((counter % SPAN / 64) as usize, 1 << (counter % 64))
}

impl Replays {
    /// True if this counter was not seen and is not too old to tell.
    pub(crate) fn is_fresh(&self, counter: u64) -> bool {
        if counter > self.highest {
            return true;
        }
        let (word, bit) = place(counter);
        counter != 0 && self.highest - counter < SPAN && self.seen[word] & bit == 0
    }

    /// Notes a fresh counter.
    pub(crate) fn note(&mut self, counter: u64) {
        if counter > self.highest {
            if counter - self.highest >= SPAN {
                self.seen = [0; SPAN as usize / 64];
            } else {
                for skipped in self.highest + 1..=counter {
                    let (word, bit) = place(skipped);
                    self.seen[word] &= !bit;
                }
            }
            self.highest = counter;
        }
        let (word, bit) = place(counter);
        self.seen[word] |= bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        /// Counters come in any order, with jumps of any size: none is fresh twice, and
        /// every counter that is not too old is fresh once.
        #[test]
        fn a_counter_is_fresh_once(steps in proptest::collection::vec((0u64..3, 0u64..6000), 1..600)) {
            let (mut replays, mut seen, mut highest) = (Replays::default(), HashSet::new(), 0u64);
            for (kind, size) in steps {
                let counter = match kind {
                    0 => highest + size % 8,
                    1 => highest + size,
                    _ => highest.saturating_sub(size),
                };
                let expected = counter != 0 && !seen.contains(&counter) && counter + SPAN > highest;
                prop_assert_eq!(replays.is_fresh(counter), expected, "{} after {}", counter, highest);
                if expected {
                    replays.note(counter);
                    seen.insert(counter);
                    highest = highest.max(counter);
                }
            }
        }
    }

    /// The last counters before the overflow.
    #[test]
    fn the_end_of_the_numbers_is_no_overflow() {
        let mut replays = Replays::default();
        for counter in [u64::MAX - 1, u64::MAX] {
            assert!(replays.is_fresh(counter));
            replays.note(counter);
            assert!(!replays.is_fresh(counter));
        }
        assert!(!replays.is_fresh(1));
    }
}
