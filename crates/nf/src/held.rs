//! A flow's holdings of shared state, given by the types of its state's fields.
//!
//! Theory of operation. A [`Leased`] field has a number of a pool; a [`Counted`] field
//! counts the flow in an item of a gauge; a [`Cached`] field names an object of a cache.
//! All name the pool, gauge or cache by a type of the author's, by which
//! [`Holds::follow`] finds it. All else follows from four events ([`FlowEvent`]): an
//! accepted flow's holdings count from then on, a flow that ends gives them back, a flow
//! from elsewhere brings them along, and a flow that leaves takes them away. Functions do
//! nothing for any of these.
//!
//! Leases and counts cannot be made except where a flow is opened ([`Opening`]). Neither
//! can be copied except by reading a state's bytes, and no call gives one back, so
//! nothing is given back twice. A state with a number that was not leased for it is
//! refused: that panics. Leases that `open` takes and does not put into the flow's state
//! go back when it returns.

use crate::shared::{Cache, CacheStep, Gauge, Pool, Store};
use crate::{Context, Opening};
use core::fmt;
use core::marker::PhantomData;
use holdfast_wire::fault::{Fault, is_planted};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A number of the [`Pool`](crate::Pool) that `P` names, or none: 4 bytes of a flow's
/// state.
///
/// The number is the flow's from its acceptance until it ends, wherever the flow is.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Leased<P> {
    /// The number plus one; 0 without a number, as in state that is all zero.
    word: u32,
    pool: PhantomData<fn() -> P>,
}

impl<P> Leased<P> {
    pub(crate) fn new(number: u32) -> Leased<P> {
        Leased { word: number.wrapping_add(1), pool: PhantomData }
    }

    /// The number, if there is one.
    #[inline]
    pub fn number(&self) -> Option<u32> {
        self.word.checked_sub(1)
    }
}

impl<P> Default for Leased<P> {
    fn default() -> Leased<P> {
        Leased { word: 0, pool: PhantomData }
    }
}

impl<P> fmt::Debug for Leased<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leased").field(&self.number()).finish()
    }
}

/// An item of the [`Gauge`](crate::Gauge) that `G` names, or none: 2 bytes of a flow's
/// state.
///
/// The flow counts there from its acceptance until it ends, wherever it is.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Counted<G> {
    /// The item plus one; 0 without an item.
    word: u16,
    gauge: PhantomData<fn() -> G>,
}

impl<G> Counted<G> {
    /// In this item, which there is.
    pub(crate) fn new(item: usize, _opening: &Opening<'_>) -> Counted<G> {
        Counted { word: item as u16 + 1, gauge: PhantomData }
    }

    /// The item, if there is one.
    #[inline]
    pub fn item(&self) -> Option<usize> {
        self.word.checked_sub(1).map(usize::from)
    }
}

impl<G> Default for Counted<G> {
    fn default() -> Counted<G> {
        Counted { word: 0, gauge: PhantomData }
    }
}

impl<G> fmt::Debug for Counted<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Counted").field(&self.item()).finish()
    }
}

/// The name of an object in the [`Cache`](crate::Cache) of `S`, and the number of its
/// steps: 16 bytes of a flow's state.
///
/// The object itself is where it was made, and only as long as the flow is there.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Cached<S> {
    /// The flow's number and the steps; zero before the first step.
    words: [u64; 2],
    store: PhantomData<fn() -> S>,
}

impl<S> Cached<S> {
    /// The number of steps so far.
    #[inline]
    pub fn steps(&self) -> u32 {
        self.words[1] as u32
    }

    /// Takes the number away. The steps remain.
    pub(crate) fn clear(&mut self) {
        self.words[0] = 0;
    }

    /// The flow's number, if it may have an object.
    pub(crate) fn number(&self) -> Option<u64> {
        (self.words[0] != 0).then_some(self.words[0])
    }

    /// Counts a step. The number is made of the flow's first stamp and key: of a switch's
    /// flows no two have both.
    pub(crate) fn step(&mut self, cx: &Context) -> CacheStep {
        if self.words[0] == 0 {
            let key = holdfast_wire::fnv1a(cx.key().as_bytes());
            let mixed = (cx.now() ^ key.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.words[0] = (mixed ^ mixed >> 29) | 1;
        }
        let step = CacheStep { flow: self.words[0], before: self.steps() };
        self.words[1] = u64::from(step.before.saturating_add(1));
        step
    }
}

impl<S> Default for Cached<S> {
    fn default() -> Cached<S> {
        Cached { words: [0; 2], store: PhantomData }
    }
}

impl<S> Clone for Cached<S> {
    fn clone(&self) -> Cached<S> {
        *self
    }
}

impl<S> Copy for Cached<S> {}

impl<S> fmt::Debug for Cached<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cached").field(&self.steps()).finish()
    }
}

/// An event of a flow, which its holdings follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowEvent {
    /// The flow was opened here, and accepted.
    Accepted,
    /// The flow has ended here.
    Ended,
    /// The flow has come from another runtime, failed or alive.
    Arrived,
    /// The flow has left for another runtime.
    Departed,
}

/// A type whose values may hold something of the shared state `S`: a field of a flow's
/// state, or the whole. [`flow_state!`](crate::flow_state) implements it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a flow's state beside `{S}`",
    note = "fields are integers, arrays, other structs of `flow_state!`, and `Leased`, `Counted` and \
            `Cached` of a pool, gauge or cache that `{S}` has"
)]
pub trait Holds<S> {
    /// Applies an event of the flow to all its holdings.
    fn follow(&self, shared: &mut S, event: FlowEvent);
}

/// Shared state with a [`Pool`](crate::Pool) that `P` names.
/// [`shared_state!`](crate::shared_state) implements it.
#[diagnostic::on_unimplemented(message = "`{Self}` has no field of the type `Pool<{P}>`")]
pub trait Lends<P> {
    /// The pool.
    fn pool(&mut self) -> &mut Pool<P>;
}

/// Shared state with a [`Gauge`](crate::Gauge) that `G` names.
/// [`shared_state!`](crate::shared_state) implements it.
#[diagnostic::on_unimplemented(message = "`{Self}` has no field of the type `Gauge<{G}>`")]
pub trait Counts<G> {
    /// The gauge.
    fn gauge(&mut self) -> &mut Gauge<G>;
}

/// Shared state with a [`Cache`](crate::Cache) of `T`.
/// [`shared_state!`](crate::shared_state) implements it.
#[diagnostic::on_unimplemented(message = "`{Self}` has no field of the type `Cache<{T}>`")]
pub trait Caches<T> {
    /// The cache.
    fn cache(&mut self) -> &mut Cache<T>;
}

impl<S: Caches<T>, T: Store> Holds<S> for Cached<T> {
    #[inline]
    fn follow(&self, shared: &mut S, event: FlowEvent) {
        if matches!(event, FlowEvent::Ended | FlowEvent::Departed) {
            shared.cache().end(self);
        }
    }
}

impl<S: Lends<P>, P> Holds<S> for Leased<P> {
    #[inline]
    fn follow(&self, shared: &mut S, event: FlowEvent) {
        let number = self.number().or(is_planted(Fault::GivesBackUnleased).then_some(0));
        if let Some(number) = number {
            shared.pool().numbers().follow(number, event);
        }
    }
}

impl<S: Counts<G>, G> Holds<S> for Counted<G> {
    #[inline]
    fn follow(&self, shared: &mut S, event: FlowEvent) {
        if let Some(item) = self.item() {
            let change = match event {
                FlowEvent::Accepted | FlowEvent::Arrived => 1,
                FlowEvent::Ended | FlowEvent::Departed => -1,
            };
            shared.gauge().part().add(item, change);
        }
    }
}

impl<S, T: Holds<S>, const N: usize> Holds<S> for [T; N] {
    #[inline]
    fn follow(&self, shared: &mut S, event: FlowEvent) {
        self.iter().for_each(|one| one.follow(shared, event));
    }
}

macro_rules! hold_nothing {
    ($($plain:ty),*) => {$(
        impl<S> Holds<S> for $plain {
            #[inline]
            fn follow(&self, _shared: &mut S, _event: FlowEvent) {}
        }
    )*};
}

hold_nothing!((), u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);
