//! Numbers that flows share.

use super::{Shareable, SharedField};
use crate::Context;

/// Named numbers that only grow. Increments commute, so their order, and a replay's, does not matter; a function cannot read them.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    names: &'static [&'static str],
    values: Vec<u64>,
}

impl Counters {
    /// Counters with these names, at 0.
    pub fn new(names: &'static [&'static str]) -> Counters {
        Counters { names, values: vec![0; names.len()] }
    }

    /// Adds to the counter with this index. An index without a name changes nothing.
    #[inline]
    pub fn add(&mut self, index: usize, amount: u64) {
        if let Some(value) = self.values.get_mut(index) {
            *value += amount;
        }
    }

    /// Names and values, for reports.
    pub fn report(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.names.iter().copied().zip(self.values.iter().copied())
    }
}

impl Shareable for Counters {
    fn field(&mut self) -> SharedField<'_> {
        SharedField::Counters(self)
    }
}

/// A number per item that goes up and down: live connections per backend, say. As a local partition it counts this runtime's flows.
#[derive(Debug, Clone, Default)]
pub struct Gauge {
    values: Vec<i64>,
}

impl Gauge {
    /// A gauge of `items` items, at 0.
    pub fn new(items: usize) -> Gauge {
        Gauge { values: vec![0; items] }
    }

    /// Changes an item's value.
    #[inline]
    pub fn add(&mut self, item: usize, change: i64) {
        if let Some(value) = self.values.get_mut(item) {
            *value += change;
        }
    }

    /// An item's value; 0 for an item that is not there. The outcome then depends on other flows, so this marks the packet non-deterministic.
    #[inline]
    pub fn read(&self, item: usize, cx: &mut Context) -> i64 {
        cx.mark_nondeterministic();
        self.values.get(item).copied().unwrap_or(0)
    }

    /// All values, for reports.
    pub fn report(&self) -> &[i64] {
        &self.values
    }
}

impl Shareable for Gauge {
    fn field(&mut self) -> SharedField<'_> {
        SharedField::Gauge(self)
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
