//! What one runtime has of numbers that others have parts of, too.
//!
//! Theory of operation (RESCue, section III: statistics). A number is the sum of what each runtime has of it, so whatever a flow changes is changed here, at once, and nobody is asked. Where a state
//! server adds the parts up ([`Part::share`]) it is told how each has changed since it was told last, now and then: a number that has changed is put down, once, in a list that has room for all of them, so
//! that a packet costs a look at a flag, and who asks what has changed sees nothing else. The server says what all others have of a gauge's item.
//!
//! A server that remembers nothing is told everything ([`Part::announce`]). A runtime's part ends with it: what becomes of it the server decides.
//!
//! In: changes by flows, what others have. Out: changes since they were asked for last. Never: an allocation after [`Part::share`].

use std::collections::VecDeque;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Part {
    own: Vec<i64>,
    /// What all others have, as far as is known.
    others: Vec<i64>,
    shared: Option<Box<Told>>,
}

/// What whoever adds the parts up has been told.
#[derive(Debug, Clone)]
struct Told {
    values: Vec<i64>,
    /// Those that may have changed since, in order, each once.
    changed: VecDeque<u32>,
    is_changed: Vec<bool>,
}

impl Told {
    #[inline]
    fn note(&mut self, index: usize) {
        if let Some(is_changed) = self.is_changed.get_mut(index).filter(|is_changed| !**is_changed) {
            *is_changed = true;
            self.changed.push_back(index as u32);
        }
    }
}

impl Part {
    /// So many numbers, all 0, of which nobody else has a part.
    pub fn new(len: usize) -> Part {
        Part { own: vec![0; len], others: vec![0; len], shared: None }
    }

    /// From now on somebody adds the parts up. Before the first change.
    pub fn share(&mut self) {
        let len = self.own.len();
        self.shared =
            Some(Box::new(Told { values: vec![0; len], changed: VecDeque::with_capacity(len), is_changed: vec![false; len] }));
    }

    /// Somebody does.
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The number changes by so much. What would be beyond the ends of 64 bits stays there.
    #[inline]
    pub fn add(&mut self, index: usize, change: i64) {
        let Some(value) = self.own.get_mut(index) else { return };
        *value = value.saturating_add(change);
        if let Some(told) = &mut self.shared {
            told.note(index);
        }
    }

    /// All numbers of this runtime's are 0 again.
    pub(super) fn clear(&mut self) {
        (0..self.own.len()).for_each(|index| self.add(index, self.own[index].saturating_neg()));
    }

    /// What this runtime has, exactly, and what all others had last.
    #[inline]
    pub fn sum(&self, index: usize) -> i64 {
        let of = |values: &[i64]| values.get(index).copied().unwrap_or(0);
        of(&self.own).saturating_add(of(&self.others))
    }

    /// What this runtime has.
    pub fn own(&self) -> &[i64] {
        &self.own
    }

    /// What all others have, as far as is known.
    pub fn others(&self) -> &[i64] {
        &self.others
    }

    /// A number that has changed, and by how much, since that was asked last. `None` if none has.
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
                // From one end of 64 bits to the other, in two steps.
                told.note(at);
            }
            if change != 0 {
                return Some((index, change));
            }
        }
        None
    }

    /// Whoever adds the parts up has been told nothing, and nothing is known of the others: all there is has changed.
    pub fn announce(&mut self) {
        self.others.fill(0);
        let Some(told) = &mut self.shared else { return };
        told.values.fill(0);
        (0..self.own.len()).filter(|index| self.own[*index] != 0).for_each(|index| told.note(index));
    }

    /// All others together have this. A number that is not there is not listened to.
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

    /// What has changed is said once, together, and nothing where nobody adds up.
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
        assert_eq!(room, part.shared.as_ref().map(|told| told.changed.capacity()), "there was room for all");
        assert_eq!(changes(&mut part), [(0, -329), (1, -333), (2, -333)], "of what was here before, too");
        part.hear(1, 1000);
        part.hear(7, 1);
        assert_eq!([0, 1, 2, 7].map(|index| part.sum(index)), [-329, 667, -326, 0]);
    }

    /// Another one that adds up is told all there is, and what the one before has said of others is forgotten.
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
