//! A flow's state: plain old data with a named layout.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// State of one flow in one function: bytes that mean the same wherever they are copied.
///
/// Declare it with [`flow_state!`](crate::flow_state). State that cannot be replicated
/// does not compile: the `zerocopy` derives refuse a `Box`, a reference, a `Vec`, a
/// `bool` (not every byte is one) and padding. Holdings of shared state are typed fields
/// ([`Leased`](crate::Leased), [`Counted`](crate::Counted)), and such state is not
/// copied: the chain alone moves its bytes.
pub trait FlowState: FromBytes + IntoBytes + KnownLayout + Immutable + Send + 'static {
    /// Hash of the declaration. Two runtimes exchange a flow only if their hashes agree.
    const LAYOUT: u64;
    /// Its fields, in order, for people.
    const FIELDS: &'static [StateField] = &[];
}

/// A field of a flow's state: its name and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateField {
    /// The name in the declaration.
    pub name: &'static str,
    /// Offset of its first byte.
    pub start: usize,
    /// Offset behind its last byte.
    pub end: usize,
}

impl FlowState for () {
    const LAYOUT: u64 = layout_hash("()");
}

/// The hash of a declaration's text.
pub const fn layout_hash(declaration: &str) -> u64 {
    holdfast_wire::fnv1a(declaration.as_bytes())
}

/// Declares a [`FlowState`](crate::FlowState): the struct, its derives, its layout hash,
/// and its [holdings](crate::Holds). A state without holdings may be `Copy`: derive that
/// too.
///
/// The crate that uses it needs `zerocopy` (with `derive`) among its dependencies.
///
/// ```
/// holdfast_nf::flow_state! {
///     /// Packets seen of one flow.
///     pub struct Seen {
///         /// In both directions together.
///         pub packets: u64,
///     }
/// }
/// ```
#[macro_export]
macro_rules! flow_state {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$field_meta:meta])* $field_vis:vis $field:ident : $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, $crate::zerocopy::FromBytes, $crate::zerocopy::IntoBytes, $crate::zerocopy::KnownLayout, $crate::zerocopy::Immutable)]
        #[repr(C)]
        $vis struct $name { $($(#[$field_meta])* $field_vis $field: $type),* }

        impl $crate::FlowState for $name {
            const LAYOUT: u64 = $crate::layout_hash(stringify!($name { $($field: $type),* }));
            const FIELDS: &'static [$crate::StateField] = &[$({
                let start = ::core::mem::offset_of!($name, $field);
                let end = start + ::core::mem::size_of::<$type>();
                $crate::StateField { name: stringify!($field), start, end }
            }),*];
        }

        impl<S> $crate::Holds<S> for $name
        where
            $($type: $crate::Holds<S>),*
        {
            #[inline]
            fn follow(&self, shared: &mut S, event: $crate::FlowEvent) {
                $($crate::Holds::<S>::follow(&self.$field, shared, event);)*
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $crate::zerocopy::FromZeros::new_zeroed()
            }
        }
    };
}
