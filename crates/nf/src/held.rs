//! What a flow holds of what flows share: said by the types of its state's fields.
//!
//! Theory of operation. A [`Leased`] field has a number of a pool, a [`Counted`] field counts the
//! flow in an item of a gauge. Both say by a type of the author's which pool or gauge that is, so
//! [`Holds::visit`] finds it. All else follows from that one visit ([`Held`]): what an accepted
//! flow holds counts from then on, a flow that ends gives it back, one that comes from elsewhere
//! brings it along, one that leaves takes it away. No function has a word about any of these.
//!
//! Neither can be made or copied except where a flow is opened ([`Opening`]), and no call gives
//! one back, so nothing is given back twice. What `open` leases and does not put into the flow's
//! state goes back when it returns.

use crate::Opening;
use crate::shared::{Gauge, Numbers, Part, Pool};
use core::fmt;
use core::marker::PhantomData;
use holdfast_wire::fault::{Fault, is_planted};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A number of the [`Pool`](crate::Pool) that `P` names, or none: 4 bytes of a flow's state.
///
/// It is the flow's from the moment that the flow is accepted until it ends, wherever the flow is.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Leased<P> {
    /// The number and one more; 0 without one, as in state that is all zero.
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

/// An item of the [`Gauge`](crate::Gauge) that `G` names, or none: 2 bytes of a flow's state.
///
/// The flow counts there from the moment that it is accepted until it ends, wherever it is.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Counted<G> {
    /// The item and one more; 0 without one.
    word: u16,
    gauge: PhantomData<fn() -> G>,
}

impl<G> Counted<G> {
    /// In no item if there is no such one.
    pub(crate) fn new(item: usize, _opening: &Opening<'_>) -> Counted<G> {
        let word = item.checked_add(1).and_then(|word| u16::try_from(word).ok()).unwrap_or(0);
        Counted { word, gauge: PhantomData }
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

/// Something that a flow holds, and where it is counted.
#[derive(Debug)]
pub enum Held<'a> {
    /// A number of a pool.
    Number(&'a mut Numbers, u32),
    /// An item of a gauge.
    Item(&'a mut Part, usize),
}

impl Held<'_> {
    /// The flow was accepted.
    #[inline]
    pub(crate) fn begin(self) {
        match self {
            Held::Number(numbers, number) => numbers.keep(number),
            Held::Item(part, item) => part.add(item, 1),
        }
    }

    /// The flow has ended.
    pub(crate) fn end(self) {
        match self {
            Held::Number(numbers, number) => numbers.give_back(number),
            Held::Item(part, item) => part.add(item, -1),
        }
    }

    /// The flow has come here.
    pub(crate) fn adopt(self) {
        match self {
            Held::Number(numbers, number) => numbers.adopt(number),
            Held::Item(part, item) => part.add(item, 1),
        }
    }

    /// The flow has left.
    pub(crate) fn forget(self) {
        match self {
            Held::Number(numbers, number) => numbers.forget(number),
            Held::Item(part, item) => part.add(item, -1),
        }
    }
}

/// A type whose values may hold something of the shared state `S`: a field of a flow's state, or
/// the whole. [`flow_state!`](crate::flow_state) implements it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a flow's state beside `{S}`",
    note = "fields are integers, arrays, other structs of `flow_state!`, and `Leased` and `Counted` \
            of a pool or gauge that `{S}` has"
)]
pub trait Holds<S> {
    /// Calls `visit` with all that is held.
    fn visit<V: FnMut(Held<'_>)>(&self, shared: &mut S, visit: &mut V);
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
    fn visit<V: FnMut(Held<'_>)>(&self, shared: &mut S, visit: &mut V) {
        match self.number() {
            Some(number) => visit(Held::Number(shared.pool().numbers(), number)),
            None if is_planted(Fault::GivesBackUnleased) => visit(Held::Number(shared.pool().numbers(), 0)),
            None => {}
        }
    }
}

impl<S: Counts<G>, G> Holds<S> for Counted<G> {
    #[inline]
    fn visit<V: FnMut(Held<'_>)>(&self, shared: &mut S, visit: &mut V) {
        if let Some(item) = self.item() {
            visit(Held::Item(shared.gauge().part(), item));
        }
    }
}

impl<S, T: Holds<S>, const N: usize> Holds<S> for [T; N] {
    #[inline]
    fn visit<V: FnMut(Held<'_>)>(&self, shared: &mut S, visit: &mut V) {
        self.iter().for_each(|one| one.visit(shared, visit));
    }
}

macro_rules! hold_nothing {
    ($($plain:ty),*) => {$(
        impl<S> Holds<S> for $plain {
            #[inline]
            fn visit<V: FnMut(Held<'_>)>(&self, _shared: &mut S, _visit: &mut V) {}
        }
    )*};
}

hold_nothing!((), u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);
