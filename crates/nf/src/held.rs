//! A flow's holdings of shared state, given by the types of its state's fields.
//!
//! Theory of operation. A [`Leased`] field has a number of a pool; a [`Counted`] field
//! counts the flow in an item of a gauge. Both name the pool or gauge by a type of the
//! author's, by which [`Holds::follow`] finds it. All else follows from four events
//! ([`FlowEvent`]): an accepted flow's holdings count from then on, a flow that ends
//! gives them back, a flow from elsewhere brings them along, and a flow that leaves takes
//! them away. Functions do nothing for any of these.
//!
//! Neither can be made except where a flow is opened ([`Opening`]). Neither can be copied
//! except by reading a state's bytes, and no call gives one back, so nothing is given
//! back twice. A state with a number that was not leased for it is refused: that panics.
//! Leases that `open` takes and does not put into the flow's state go back when it
//! returns.

use crate::Opening;
use crate::shared::{Gauge, Pool};
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
    note = "fields are integers, arrays, other structs of `flow_state!`, and `Leased` and `Counted` \
            of a pool or gauge that `{S}` has"
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
