//! State that many flows share, declared by type.
//!
//! A function names what it needs: a [`Pool`] of resources to lease, [`Counters`] that only grow, a [`Gauge`] per item, a
//! [`Table`], or something [`ReadOnly`]. Where each lives (a partition of this runtime's own, the DAL, a state server) is decided by
//! the chain's protection through the backend that it attaches; the function cannot tell.

mod pool;
mod statistics;
mod table;

pub use pool::{BLOCK_LEN, BlockMask, Lease, PartitionPool, Pool, PoolBackend, PoolEffect, RequestPool};
pub use statistics::{Counters, Gauge, ReadOnly};
pub use table::Table;

/// One field of a function's shared state, as the runtime sees it.
pub enum SharedField<'a> {
    /// See [`Pool`].
    Pool(&'a mut Pool),
    /// See [`Counters`].
    Counters(&'a mut Counters),
    /// See [`Gauge`].
    Gauge(&'a mut Gauge),
    /// Nothing that the runtime connects or reports.
    Opaque,
}

/// A type that can be a field of shared state. Sealed by the list of [`SharedField`].
pub trait Shareable {
    /// The field, for the runtime.
    fn field(&mut self) -> SharedField<'_>;
}

/// A function's shared state: a struct of shared-state types, declared with [`shared_state!`](crate::shared_state).
pub trait SharedState: Send + 'static {
    /// Calls `visit` with each field's name and the field, in order of declaration.
    fn visit(&mut self, visit: &mut dyn FnMut(&'static str, SharedField<'_>));
}

impl SharedState for () {
    fn visit(&mut self, _visit: &mut dyn FnMut(&'static str, SharedField<'_>)) {}
}

/// Declares a [`SharedState`](crate::SharedState): a struct of [`Pool`], [`Counters`], [`Gauge`], [`Table`], [`ReadOnly`].
#[macro_export]
macro_rules! shared_state {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$field_meta:meta])* $field_vis:vis $field:ident : $type:ty),* $(,)? }) => {
        $(#[$meta])*
        $vis struct $name { $($(#[$field_meta])* $field_vis $field: $type),* }

        impl $crate::SharedState for $name {
            fn visit(&mut self, visit: &mut dyn FnMut(&'static str, $crate::SharedField<'_>)) {
                $(visit(stringify!($field), $crate::shared::Shareable::field(&mut self.$field));)*
            }
        }
    };
}
