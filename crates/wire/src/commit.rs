//! Commits: the numbers of records between an owner and a holder.

use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The number of a record from an owner of flows to a holder of their copies. An owner
/// counts the records to each holder for themselves.
///
/// Commits begin anew behind the highest, and therefore have no order as numbers have: of
/// two commits the later one is ahead by less than half of all there are. No record has
/// number 0.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(transparent)]
pub struct Commit(u32);

impl Commit {
    /// The number before the first record's, in messages and tables: no record.
    pub const NONE: Commit = Commit(0);

    /// The commit with this number.
    #[inline]
    pub const fn new(number: u32) -> Commit {
        Commit(number)
    }

    /// The commit's number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// True if this commit was counted after the other.
    #[inline]
    pub fn is_later(self, other: Commit) -> bool {
        self != other && self.has_reached(other)
    }

    /// True if this commit is the other, or was counted after it.
    #[inline]
    pub fn has_reached(self, other: Commit) -> bool {
        self.0.wrapping_sub(other.0) as i32 >= 0
    }

    /// The commit that is counted next.
    #[inline]
    #[must_use]
    pub fn next(self) -> Commit {
        Commit(self.0.checked_add(1).unwrap_or(1))
    }

    /// The number that is so many steps behind.
    #[inline]
    #[must_use]
    pub fn behind(self, steps: u32) -> Commit {
        Commit(self.0.wrapping_sub(steps))
    }

    /// The commit as in messages.
    #[inline]
    pub fn to_be_bytes(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "commit {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commits continue behind the highest, without 0.
    #[test]
    fn commits_begin_anew() {
        let (first, last) = (Commit::new(1), Commit::new(u32::MAX));
        assert_eq!((Commit::NONE.next(), last.next()), (first, first));
        assert!(first.is_later(last) && !last.is_later(first) && !last.is_later(last));
        assert!(first.has_reached(last) && last.has_reached(last) && !last.has_reached(first));
        assert!(first.has_reached(Commit::NONE) && !Commit::NONE.has_reached(first));
        assert_eq!((first.behind(2), first.next().behind(1)), (last, first));
    }
}
