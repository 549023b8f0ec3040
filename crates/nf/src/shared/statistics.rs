//! Statistics that flows share.

mod part;

pub use part::Part;

use super::{Shareable, SharedField};
use crate::{Context, Counted, Opening};
use core::marker::PhantomData;

/// Named numbers that only grow. Increments commute, so their order does not matter, nor
/// does a replay's. A function cannot read them.
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

    /// Adds to the counter with this index, which stops at 2^63 - 1. An index without a
    /// name changes nothing.
    #[inline]
    pub fn add(&mut self, index: usize, amount: u64) {
        self.part.add(index, i64::try_from(amount).unwrap_or(i64::MAX));
    }

    /// The names, in the order of the indexes.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Names and values, for reports: the counts of this runtime's flows.
    pub fn report(&self) -> impl Iterator<Item = (&str, u64)> + '_ {
        self.names
            .iter()
            .map(String::as_str)
            .zip(self.part.own().iter().map(|value| value.unsigned_abs()))
    }

    /// This runtime's part, for the sum over all runtimes.
    pub fn part(&mut self) -> &mut Part {
        &mut self.part
    }
}

impl Shareable for Counters {
    fn field(&mut self) -> SharedField<'_> {
        SharedField::Counters(self)
    }
}

/// The number of flows [`Counted`] in each item, such as live connections per backend.
/// `G` is a type of the function's that names the gauge. As a local partition it counts
/// this runtime's flows; with a state server, the flows of all.
pub struct Gauge<G> {
    part: Part,
    name: PhantomData<fn() -> G>,
}

impl<G> Gauge<G> {
    /// A gauge of `items` items, at 0.
    ///
    /// # Panics
    /// If there are more than 65,535 items: a flow has 2 bytes for its item.
    pub fn new(items: usize) -> Gauge<G> {
        assert!(items <= usize::from(u16::MAX), "a gauge has at most 65,535 items");
        Gauge { part: Part::new(items), name: PhantomData }
    }

    /// Counts the flow in this item from its acceptance with this value in its state
    /// until it ends. An unknown item counts nothing.
    #[inline]
    pub fn count(&self, item: usize, cx: &Opening<'_>) -> Counted<G> {
        let is_there = item < self.part.own().len();
        if is_there { Counted::new(item, cx) } else { Counted::default() }
    }

    /// An item's value; 0 for an unknown item. With a state server: this runtime's part
    /// exactly, and the others' as last heard. The outcome depends on other flows, so
    /// this marks the packet non-deterministic.
    #[inline]
    pub fn read(&self, item: usize, cx: &mut Context) -> i64 {
        cx.mark_nondeterministic();
        self.part.sum(item)
    }

    /// The values, for callers that find them by the gauge's name.
    pub(crate) fn part(&mut self) -> &mut Part {
        &mut self.part
    }
}

impl<G> core::fmt::Debug for Gauge<G> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Gauge").field(&self.part).finish()
    }
}

impl<G> Shareable for Gauge<G> {
    fn field(&mut self) -> SharedField<'_> {
        SharedField::Gauge(&mut self.part)
    }

    fn begin_recount(&mut self) {
        self.part.clear();
    }
}

/// A value that is the same everywhere and never changes while the function lives.
#[derive(Debug, Clone)]
pub struct ReadOnly<T>(T);

impl<T> ReadOnly<T> {
    /// Wraps a value.
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
