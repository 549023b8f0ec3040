//! A runtime's part of numbers of which other runtimes have parts too.
//!
//! Theory of operation (RESCue, section III: statistics). A number is the sum of the
//! runtimes' parts. A flow's change is applied to the part here, at once, without asking
//! another process. If a state server adds the parts up ([`Part::share`]), it is told the
//! changes since the last report from time to time. A changed number is entered once in a
//! list that has room for all numbers, so a packet costs a look at a flag, and a report
//! reads only what has changed. The server tells the sum of all others' parts of a
//! gauge's item.
//!
//! A server without memory is told everything ([`Part::announce`]). The server decides
//! what becomes of the part of a dead runtime.
//!
//! In: changes by flows, the others' sums. Out: changes since the last report. Never: an
//! allocation after [`Part::share`].

use std::collections::VecDeque;

/// A runtime's part; see the module.
#[derive(Debug, Clone, Default)]
pub struct Part {
    own: Vec<i64>,
    /// The sum of all others' parts, as last heard.
    others: Vec<i64>,
    shared: Option<Box<Told>>,
}

/// The values last reported to the server.
#[derive(Debug, Clone)]
struct Told {
    values: Vec<i64>,
    /// Indexes that may have changed since, in order, each once.
    changed: VecDeque<u32>,
    is_changed: Vec<bool>,
}

impl Told {
    #[inline]
    fn note(&mut self, index: usize) {
        if let Some(is_changed) = self.is_changed.get_mut(index).filter(|is_changed| !**is_changed)
        {
            *is_changed = true;
            self.changed.push_back(index as u32);
        }
    }
}

impl Part {
    /// A part with `len` numbers, all 0, of which no other runtime has a part.
    pub fn new(len: usize) -> Part {
        Part { own: vec![0; len], others: vec![0; len], shared: None }
    }

    /// Begins to note changes for a server that adds the parts up. Call it before the
    /// first change.
    pub fn share(&mut self) {
        let len = self.own.len();
        self.shared = Some(Box::new(Told {
            values: vec![0; len],
            changed: VecDeque::with_capacity(len),
            is_changed: vec![false; len],
        }));
    }

    /// True if a server adds the parts up.
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Adds to a number. The number stops at the ends of 64 bits.
    #[inline]
    pub fn add(&mut self, index: usize, change: i64) {
        let Some(value) = self.own.get_mut(index) else { return };
        *value = value.saturating_add(change);
        if let Some(told) = &mut self.shared {
            told.note(index);
        }
    }

    /// Sets all numbers of this runtime to 0.
    pub(super) fn clear(&mut self) {
        (0..self.own.len()).for_each(|index| self.add(index, self.own[index].saturating_neg()));
    }

    /// The number: this runtime's part exactly, and the others' as last heard.
    #[inline]
    pub fn sum(&self, index: usize) -> i64 {
        let of = |values: &[i64]| values.get(index).copied().unwrap_or(0);
        of(&self.own).saturating_add(of(&self.others))
    }

    /// This runtime's part.
    pub fn own(&self) -> &[i64] {
        &self.own
    }

    /// The sum of all others' parts, as last heard.
    pub fn others(&self) -> &[i64] {
        &self.others
    }

    /// A number that has changed since its last report, and by how much. `None` if none
    /// has.
    pub fn poll_change(&mut self) -> Option<(u32, i64)> {
        let Part { own, shared, .. } = self;
        let told = shared.as_mut()?;
        while let Some(index) = told.changed.pop_front() {
            let at = index as usize;
            let (Some(own), Some(value)) = (own.get(at), told.values.get_mut(at)) else { continue };
            told.is_changed[at] = false;
            let change = own.saturating_sub(*value);
            *value = value.saturating_add(change);
            if *value != *own {
                // A change across more than 64 bits takes two steps.
                told.note(at);
            }
            if change != 0 {
                return Some((index, change));
            }
        }
        None
    }

    /// Forgets the reports and the others' sums, for a new server: every number that is
    /// not 0 counts as changed.
    pub fn announce(&mut self) {
        self.others.fill(0);
        let Some(told) = &mut self.shared else { return };
        told.values.fill(0);
        (0..self.own.len())
            .filter(|index| self.own[*index] != 0)
            .for_each(|index| told.note(index));
    }

    /// Sets the sum of all others' parts. An unknown number is ignored.
    pub fn hear(&mut self, index: u32, others: i64) {
        if let Some(value) = self.others.get_mut(index as usize) {
            *value = others;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(part: &mut Part) -> Vec<(u32, i64)> {
        core::iter::from_fn(|| part.poll_change()).collect()
    }

    /// Changes are reported once, together, and not at all without a server.
    #[test]
    fn a_change_is_said_once() {
        let mut part = Part::new(3);
        part.add(0, 5);
        assert_eq!(changes(&mut part), []);
        part.share();
        let room = part.shared.as_ref().map(|told| told.changed.capacity());
        for (index, change) in [(2, 4), (1, -1), (2, 3), (9, 1), (1, 1)] {
            part.add(index, change);
        }
        assert_eq!(changes(&mut part), [(2, 7)], "what is as it was is not said");
        assert_eq!(changes(&mut part), []);
        (0..1000).for_each(|at| part.add(at % 3, -1));
        assert_eq!(
            room,
            part.shared.as_ref().map(|told| told.changed.capacity()),
            "there was room for all"
        );
        assert_eq!(
            changes(&mut part),
            [(0, -329), (1, -333), (2, -333)],
            "of what was here before, too"
        );
        part.hear(1, 1000);
        part.hear(7, 1);
        assert_eq!([0, 1, 2, 7].map(|index| part.sum(index)), [-329, 667, -326, 0]);
    }

    /// A new adder of the parts is told the whole part, and the previous adder's values
    /// of other parts are forgotten.
    #[test]
    fn who_remembers_nothing_is_told_everything() {
        let mut part = Part::new(3);
        part.share();
        part.add(0, 5);
        part.add(2, -2);
        part.poll_change();
        part.hear(0, 100);
        part.announce();
        part.announce();
        assert_eq!(changes(&mut part), [(2, -2), (0, 5)]);
        assert_eq!(part.sum(0), 5);
    }

    #[test]
    fn ends_of_numbers_are_stayed_at() {
        let mut part = Part::new(1);
        part.share();
        part.add(0, i64::MIN);
        part.add(0, -1);
        assert_eq!(changes(&mut part), [(0, i64::MIN)]);
        part.add(0, i64::MAX);
        part.add(0, i64::MAX);
        part.add(0, i64::MAX);
        assert_eq!(changes(&mut part), [(0, i64::MAX), (0, i64::MAX), (0, 1)]);
        part.hear(0, i64::MAX);
        assert_eq!(part.sum(0), i64::MAX);
    }
}
