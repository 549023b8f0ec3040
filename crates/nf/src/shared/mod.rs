//! State that many flows share, declared by type.
//!
//! A function names what it needs: a [`Pool`] of numbers to lease, [`Counters`] that only
//! grow, a [`Gauge`] of flows per item, a [`Table`], a [`Log`], a [`Cache`] of a
//! library's objects, or a [`ReadOnly`] value. The chain's protection decides where each
//! lives (in this runtime's own partition, or at a state server) by the backend that it
//! attaches; the function cannot tell.

mod cache;
mod log;
mod pool;
mod statistics;
mod table;

pub use cache::{Cache, CacheStep, Store};
pub use log::{Log, Note};
pub use pool::{
    BLOCK_LEN, BlockMask, Lease, Numbers, PartitionPool, Pool, PoolBackend, PoolEffect, RequestPool,
};
pub use statistics::{Counters, Gauge, Part, ReadOnly};
pub use table::Table;

/// A field of a function's shared state, as the runtime sees it.
pub enum SharedField<'a> {
    /// See [`Pool`].
    Pool(&'a mut Numbers),
    /// See [`Counters`].
    Counters(&'a mut Counters),
    /// See [`Gauge`].
    Gauge(&'a mut Part),
    /// See [`Log`].
    Log(&'a mut Log),
    /// A [`Table`] or a [`Cache`], of which only the number of entries is seen: the
    /// runtime neither connects nor reports it.
    Table(usize),
    /// A field that the runtime neither connects nor reports.
    Opaque,
}

impl SharedField<'_> {
    /// This runtime's part of the field's numbers, if the field is a statistic.
    pub fn part(&mut self) -> Option<&mut Part> {
        match self {
            SharedField::Counters(counters) => Some(counters.part()),
            SharedField::Gauge(part) => Some(part),
            SharedField::Pool(_)
            | SharedField::Log(_)
            | SharedField::Table(_)
            | SharedField::Opaque => None,
        }
    }
}

/// A type that can be a field of shared state. Sealed by the list of [`SharedField`].
pub trait Shareable {
    /// The field, for the runtime.
    fn field(&mut self) -> SharedField<'_>;

    /// Begins a recount, because flows were lost with their state. All living flows are
    /// about to be adopted again; numbers that none of them names are free.
    fn begin_recount(&mut self) {}

    /// Ends a recount: all living flows have been adopted.
    fn end_recount(&mut self) {}

    /// Gives back leases that no flow has, after a function has tried to open a flow.
    fn settle(&mut self) {}
}

/// A function's shared state: a struct of shared-state types, declared with
/// [`shared_state!`](crate::shared_state).
pub trait SharedState: Send + 'static {
    /// Calls `visit` with each field's name and the field, in order of declaration.
    fn visit(&mut self, visit: &mut dyn FnMut(&'static str, SharedField<'_>));
    /// See [`Shareable::begin_recount`].
    fn begin_recount(&mut self);
    /// See [`Shareable::end_recount`].
    fn end_recount(&mut self);
    /// See [`Shareable::settle`].
    fn settle(&mut self);
}

impl SharedState for () {
    fn visit(&mut self, _visit: &mut dyn FnMut(&'static str, SharedField<'_>)) {}
    fn begin_recount(&mut self) {}
    fn end_recount(&mut self) {}
    fn settle(&mut self) {}
}

/// Declares a [`SharedState`](crate::SharedState): a struct of [`Pool`], [`Counters`],
/// [`Gauge`], [`Table`], [`Log`], [`Cache`], [`ReadOnly`], written by these names.
#[macro_export]
macro_rules! shared_state {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$field_meta:meta])* $field_vis:vis $field:ident : $type:ident $(<$($of:ty),+>)?),* $(,)? }) => {
        $(#[$meta])*
        $vis struct $name { $($(#[$field_meta])* $field_vis $field: $type $(<$($of),+>)?),* }

        impl $crate::SharedState for $name {
            fn visit(&mut self, visit: &mut dyn FnMut(&'static str, $crate::SharedField<'_>)) {
                $(visit(stringify!($field), $crate::shared::Shareable::field(&mut self.$field));)*
            }

            fn begin_recount(&mut self) {
                $($crate::shared::Shareable::begin_recount(&mut self.$field);)*
            }

            fn end_recount(&mut self) {
                $($crate::shared::Shareable::end_recount(&mut self.$field);)*
            }

            #[inline]
            fn settle(&mut self) {
                $($crate::shared::Shareable::settle(&mut self.$field);)*
            }
        }

        $($crate::held_field!($name $field $type $(<$($of),+>)?);)*
    };
}

/// Implements [`Lends`](crate::Lends), [`Counts`](crate::Counts) or
/// [`Caches`](crate::Caches) for a field of that type.
#[doc(hidden)]
#[macro_export]
macro_rules! held_field {
    ($name:ident $field:ident Pool<$of:ty>) => {
        impl $crate::Lends<$of> for $name {
            #[inline]
            fn pool(&mut self) -> &mut $crate::Pool<$of> {
                &mut self.$field
            }
        }
    };
    ($name:ident $field:ident Gauge<$of:ty>) => {
        impl $crate::Counts<$of> for $name {
            #[inline]
            fn gauge(&mut self) -> &mut $crate::Gauge<$of> {
                &mut self.$field
            }
        }
    };
    ($name:ident $field:ident Cache<$of:ty>) => {
        impl $crate::Caches<$of> for $name {
            #[inline]
            fn cache(&mut self) -> &mut $crate::Cache<$of> {
                &mut self.$field
            }
        }
    };
    ($($other:tt)*) => {};
}
