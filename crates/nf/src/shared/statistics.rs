//! Numbers that flows share.

mod part;

pub use part::Part;

use super::{Shareable, SharedField};
use crate::Context;

/// Named numbers that only grow. Increments commute, so their order, and a replay's, does not matter; a function cannot read them.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    names: Vec<String>,
    part: Part,
}

impl Counters {
    /// Counters with these names, at 0.
    pub fn new(names: impl IntoIterator<Item = impl ToString>) -> Counters {
        let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
        Counters { part: Part::new(names.len()), names }
    }

    /// Adds to the counter with this index, which stays at 2^63 - 1 when it has got there. An index without a name changes nothing.
    #[inline]
    pub fn add(&mut self, index: usize, amount: u64) {
        self.part.add(index, i64::try_from(amount).unwrap_or(i64::MAX));
    }

    /// The names, in the order of the indexes.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Names and values, for reports: what flows of this runtime have counted.
    pub fn report(&self) -> impl Iterator<Item = (&str, u64)> + '_ {
        self.names.iter().map(String::as_str).zip(self.part.own().iter().map(|value| value.unsigned_abs()))
    }

    /// This runtime's part, for whoever brings those of all together.
    pub fn part(&mut self) -> &mut Part {
        &mut self.part
    }
}

impl Shareable for Counters {
    fn field(&mut self) -> SharedField<'_> {
        SharedField::Counters(self)
    }
}

/// A number per item that goes up and down: live connections per backend, say. As a local partition it counts this runtime's flows; with a state server, those of all.
#[derive(Debug, Clone, Default)]
pub struct Gauge {
    part: Part,
}

impl Gauge {
    /// A gauge of `items` items, at 0.
    pub fn new(items: usize) -> Gauge {
        Gauge { part: Part::new(items) }
    }

    /// Changes an item's value. An item that is not there changes nothing.
    #[inline]
    pub fn add(&mut self, item: usize, change: i64) {
        self.part.add(item, change);
    }

    /// An item's value; 0 for an item that is not there. Where a state server has it that is this runtime's part, exactly, and what all others had when they were heard of last. The outcome
    /// depends on other flows in any case, so this marks the packet non-deterministic.
    #[inline]
    pub fn read(&self, item: usize, cx: &mut Context) -> i64 {
        cx.mark_nondeterministic();
        self.part.sum(item)
    }

    /// This runtime's part of all values, for reports.
    pub fn report(&self) -> &[i64] {
        self.part.own()
    }

    /// The same, for whoever brings those of all together.
    pub fn part(&mut self) -> &mut Part {
        &mut self.part
    }
}

impl Shareable for Gauge {
    fn field(&mut self) -> SharedField<'_> {
        SharedField::Gauge(self)
    }

    fn begin_recount(&mut self) {
        for (item, value) in self.report().to_vec().into_iter().enumerate() {
            self.add(item, value.saturating_neg());
        }
    }
}

/// What is the same everywhere and never changes while the function lives.
#[derive(Debug, Clone)]
pub struct ReadOnly<T>(T);

impl<T> ReadOnly<T> {
    /// Wraps it.
    pub fn new(value: T) -> ReadOnly<T> {
        ReadOnly(value)
    }

    /// The value.
    pub fn get(&self) -> &T {
        &self.0
    }
}

impl<T> Shareable for ReadOnly<T> {
    fn field(&mut self) -> SharedField<'_> {
        SharedField::Opaque
    }
}
