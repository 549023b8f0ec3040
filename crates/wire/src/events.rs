//! Counted events, declared once: name, meaning, and what to do about each.
//!
//! A kind of events is a closed list ([`events!`](crate::events!)). Code that counts an
//! event names its row, so that there is no counter without one. The names are the keys
//! in `status`, and `holdfast explain` reads the rows.

/// An event, as `status` and `explain` have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The name in the output.
    pub name: &'static str,
    /// The kind of event.
    pub kind: &'static str,
    /// The unit of its counter.
    pub unit: &'static str,
    /// Its meaning, and what to do about it.
    pub meaning: &'static str,
}

/// Declares a kind of events: an enumeration of them, and a row for each.
#[macro_export]
macro_rules! events {
    ($(#[$doc:meta])* $vis:vis enum $Type:ident, $kind:literal, $unit:literal { $($name:ident $text:literal $meaning:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        $vis enum $Type {
            $(#[doc = $meaning] $name,)+
        }

        impl $Type {
            /// All events, in the order of their numbers.
            pub const ALL: &'static [$Type] = &[$($Type::$name,)+];
            /// Rows of the events, in the same order.
            pub const EVENTS: &'static [$crate::events::Event] =
                &[$($crate::events::Event { name: $text, kind: $kind, unit: $unit, meaning: $meaning },)+];

            /// The name, as in `status` and `holdfast explain NAME`.
            pub fn name(self) -> &'static str {
                $Type::EVENTS[self as usize].name
            }
        }

        impl core::fmt::Display for $Type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
