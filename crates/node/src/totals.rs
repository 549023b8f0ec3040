//! Numbers of statistics for operators: runtimes tell managers what their flows have
//! counted, the state server tells them the totals.
//!
//! In: the numbers, the time. Out: messages with some numbers each, of those that have
//! changed since they were told. All are told again now and then, because a new
//! incarnation of a manager knows nothing and may not have spoken yet. At the manager:
//! the last numbers told. Never: a message that grows with the configuration.

use crate::message::Control;

/// Numbers in one message.
const CHUNK: usize = 64;
/// Messages at a time. Numbers that do not fit go out the next time.
const MOST: usize = 16;
/// Interval after which all numbers are told again, ns.
const AGAIN: u64 = 1_000_000_000;
/// Limits of statistics, and of numbers, that are remembered of one sender: no
/// configuration has as many.
const MOST_STATISTICS: usize = 1 << 14;
const MOST_NUMBERS: usize = 1 << 17;

/// The numbers of one message.
#[derive(Debug)]
struct Chunk {
    /// The statistic, and the number in it with which the chunk begins.
    statistic: usize,
    first: usize,
    /// The numbers as they were told last.
    told: Option<Vec<i64>>,
}

/// The sender's side: which numbers have to be told.
#[derive(Debug, Default)]
pub(crate) struct StatisticsReport {
    chunks: Vec<Chunk>,
    /// The chunk to continue with.
    next: usize,
    again_at: u64,
}

impl StatisticsReport {
    /// Statistics with so many numbers each, none told yet.
    pub(crate) fn new(sizes: impl IntoIterator<Item = usize>) -> StatisticsReport {
        let chunks = sizes.into_iter().enumerate().flat_map(|(statistic, size)| {
            // An empty statistic is told, too: without it the next ones would have no
            // place.
            (0..size.max(1)).step_by(CHUNK).map(move |first| Chunk { statistic, first, told: None })
        });
        StatisticsReport { chunks: chunks.collect(), next: 0, again_at: 0 }
    }

    /// Calls `send` with messages of changed numbers, until none is left or it returns
    /// false. `look` calls its second argument with all numbers of a statistic.
    pub(crate) fn tell(
        &mut self,
        now: u64,
        mut look: impl FnMut(usize, &mut dyn FnMut(&[i64])),
        mut send: impl FnMut(&Control) -> bool,
    ) {
        if now >= self.again_at {
            self.again_at = now.saturating_add(AGAIN);
            self.chunks.iter_mut().for_each(|chunk| chunk.told = None);
        }
        let count = self.chunks.len();
        let mut said = 0;
        for at in (self.next..count).chain(0..self.next) {
            let Chunk { statistic, first, told } = &mut self.chunks[at];
            let mut news = None;
            look(*statistic, &mut |numbers| {
                let numbers = numbers.get(*first..).unwrap_or_default();
                let numbers = &numbers[..numbers.len().min(CHUNK)];
                news = (told.as_deref() != Some(numbers)).then(|| numbers.to_vec());
            });
            let Some(values) = news else { continue };
            let message =
                Control::Totals { statistic: *statistic as u32, first: *first as u32, values };
            if said == MOST || !send(&message) {
                self.next = at;
                return;
            }
            said += 1;
            if let Control::Totals { values, .. } = message {
                *told = Some(values);
            }
        }
    }
}

/// The numbers that a node has told, by statistic, from the first to the last one told.
#[derive(Debug, Default)]
pub(crate) struct Totals(Vec<Vec<i64>>);

impl Totals {
    /// All numbers of a statistic, counted from 0. Just after an incarnation begins only
    /// the first ones may be known.
    pub(crate) fn of(&self, statistic: usize) -> &[i64] {
        self.0.get(statistic).map_or(&[], Vec::as_slice)
    }

    /// Takes numbers in order: numbers beyond a gap, as after the beginning of an
    /// incarnation, are ignored and come again.
    pub(crate) fn take(&mut self, statistic: usize, first: usize, values: &[i64]) {
        if statistic == self.0.len() && statistic < MOST_STATISTICS {
            self.0.push(Vec::new());
        }
        let Some(known) = self.0.get_mut(statistic) else { return };
        if first > known.len() || first + values.len() > MOST_NUMBERS {
            return;
        }
        let over = values.len().min(known.len() - first);
        known[first..first + over].copy_from_slice(&values[..over]);
        known.extend_from_slice(&values[over..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A statistic without numbers takes no place from those behind it.
    #[test]
    fn what_is_empty_is_told() {
        let numbers = [vec![], vec![7; CHUNK + 1]];
        let mut report = StatisticsReport::new(numbers.iter().map(Vec::len));
        let mut known = Totals::default();
        report.tell(
            1,
            |statistic, look| look(&numbers[statistic]),
            |message| {
                let Control::Totals { statistic, first, values } = message else { return false };
                known.take(*statistic as usize, *first as usize, values);
                true
            },
        );
        assert_eq!([0, 1].map(|statistic| known.of(statistic)), [&numbers[0][..], &numbers[1]]);
    }

    /// Changed numbers are told, a bounded part of them at a time; after a second all
    /// are.
    #[test]
    fn what_has_changed_is_told() {
        let mut numbers = [vec![0; 3], vec![0; 40 * CHUNK]];
        let mut report = StatisticsReport::new(numbers.iter().map(Vec::len));
        let mut told = |numbers: &[Vec<i64>], now: u64| {
            let mut all = Vec::new();
            report.tell(
                now,
                |statistic, look| look(&numbers[statistic]),
                |message| match message {
                    Control::Totals { statistic, first, values } => {
                        all.push((*statistic, *first, values.clone()));
                        true
                    }
                    other => panic!("{other:?}"),
                },
            );
            all
        };
        let first = told(&numbers, 1);
        assert_eq!((first.len(), &first[0]), (MOST, &(0, 0, vec![0; 3])));
        assert_eq!(
            (0..9).map(|_| told(&numbers, 2).len()).collect::<Vec<_>>(),
            [MOST, 9, 0, 0, 0, 0, 0, 0, 0]
        );
        (numbers[1][2], numbers[1][70]) = (2, 1);
        let changed = told(&numbers, 3);
        let of = |at: usize| (changed[at].0, changed[at].1, changed[at].2.iter().sum::<i64>());
        assert_eq!((changed.len(), of(0), of(1)), (2, (1, 0, 2), (1, 64, 1)));
        assert_eq!(told(&numbers, AGAIN + 1).len(), MOST);
    }

    /// Numbers that are told become known. Numbers that would leave a gap, or be more
    /// than any configuration has, are ignored.
    #[test]
    fn totals_are_what_was_said_last() {
        let mut totals = Totals::default();
        for (statistic, first, values) in [
            (0, 0, vec![1, 2]),
            (1, 1, vec![7]),
            (0, 1, vec![5, 6]),
            (2, 0, vec![3]),
            (1, 0, vec![-1]),
            (1, 1, vec![9]),
            (0, 9, vec![1]),
        ] {
            totals.take(statistic, first, &values);
        }
        assert_eq!(
            [0, 1, 2].map(|statistic| totals.of(statistic)),
            [&[1, 5, 6][..], &[-1, 9], &[3]]
        );
        totals.take(0, 3, &[0; MOST_NUMBERS]);
        assert_eq!(totals.of(0).len(), 3, "no statistic has so many");
    }
}
