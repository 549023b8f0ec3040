//! Epochs: the number of an ownership of a flow.

use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The number of a flow's ownership. A switch that gives a flow a new owner gives it an
/// epoch that no flow has had.
///
/// Epochs begin anew behind the highest, and therefore have no order as numbers have: of
/// two epochs the later one is ahead by less than half of all there are. No owner gets
/// epoch 0.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(transparent)]
pub struct Epoch(u32);

impl Epoch {
    /// The first epoch that a switch gives.
    pub const FIRST: Epoch = Epoch(1);

    /// The epoch with this number.
    #[inline]
    pub const fn new(number: u32) -> Epoch {
        Epoch(number)
    }

    /// The epoch with this number; `None` if it is 0, which means "none" in messages and
    /// tables.
    #[inline]
    pub fn given(number: u32) -> Option<Epoch> {
        (number != 0).then_some(Epoch(number))
    }

    /// The epoch's number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The lowest bits of the epoch's number: a packet on its way to a port has room for
    /// no more.
    #[inline]
    pub fn low(self) -> u16 {
        self.0 as u16
    }

    /// The epoch with these lowest bits that is nearest to this one.
    #[inline]
    #[must_use]
    pub fn nearest(self, low: u16) -> Epoch {
        Epoch(self.0.wrapping_add_signed(i32::from(low.wrapping_sub(self.low()) as i16)))
    }

    /// True if this epoch was given after the other.
    #[inline]
    pub fn is_later(self, other: Epoch) -> bool {
        self.0.wrapping_sub(other.0) as i32 > 0
    }

    /// True if this epoch is the other, or was given after it.
    #[inline]
    pub fn has_reached(self, other: Epoch) -> bool {
        self.0.wrapping_sub(other.0) as i32 >= 0
    }

    /// The later of two epochs, either of which may be missing.
    #[inline]
    pub fn later(one: Option<Epoch>, other: Option<Epoch>) -> Option<Epoch> {
        match (one, other) {
            (Some(known), Some(epoch)) if !epoch.is_later(known) => one,
            (_, Some(_)) => other,
            (_, None) => one,
        }
    }

    /// The epoch that is so many steps ahead, or the first one if that is 0.
    #[inline]
    #[must_use]
    pub fn ahead(self, steps: u32) -> Epoch {
        Epoch(self.0.wrapping_add(steps).max(1))
    }

    /// The epoch that is given next.
    #[inline]
    #[must_use]
    pub fn next(self) -> Epoch {
        self.ahead(1)
    }

    /// The number before this epoch's, which stands for every earlier epoch; 0 before the
    /// first.
    #[inline]
    #[must_use]
    pub fn before(self) -> Epoch {
        Epoch(self.0.wrapping_sub(1))
    }

    /// The epoch as in messages.
    #[inline]
    pub fn to_be_bytes(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Epochs continue behind the highest, without 0.
    #[test]
    fn epochs_begin_anew() {
        let last = Epoch::new(u32::MAX);
        assert_eq!((last.next(), last.before().next()), (Epoch::FIRST, last));
        assert!(last.next().is_later(last) && !last.is_later(last.next()));
        assert!(
            last.has_reached(last)
                && last.next().has_reached(last)
                && !last.has_reached(last.next())
        );
        assert_eq!((Epoch::given(0), Epoch::given(7)), (None, Some(Epoch::new(7))));
        let of = |one: u32, other: u32| {
            Epoch::later(Epoch::given(one), Epoch::given(other)).map_or(0, Epoch::get)
        };
        assert_eq!(
            (of(0, 0), of(7, 0), of(0, 1 << 31), of(9, 7), of(u32::MAX, 7)),
            (0, 7, 1 << 31, 9, 7)
        );
    }

    /// The lowest bits are enough for near epochs, on either side, also where they begin
    /// anew.
    #[test]
    fn the_nearest_is_meant() {
        for near in [5, 0x1_0003, 0x1_fffe, u32::MAX - 1].map(Epoch::new) {
            for meant in [near.ahead(9), near.before(), near] {
                assert_eq!(near.nearest(meant.low()), meant);
            }
        }
    }
}
