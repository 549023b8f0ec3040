//! Tombstones: flows that have just ended here or left.
//!
//! Theory of operation. At a runtime, a packet that may open a flow opens one if there is
//! none. The packet may be late: overtaken by the end of its flow, or by the flow's move
//! to another runtime. The flow that it opened would be served under an old epoch, beside
//! the true one. At a switch, a late claim may ask for the route of a flow that has
//! ended. The table remembers the latest flows that ended or left by hash and epoch, and
//! packets and claims that are not newer are ignored. Flows that a runtime refused are
//! remembered too: more of their packets may be on their way. The table is
//! set-associative. An entry is displaced after about as many other flows have gone as
//! the table has room for, and a packet that is later than that is not recognised.

use holdfast_protection::Epoch;
use holdfast_protection::flows::untouched;
use zerocopy::FromZeros;

/// Flows that share a set, newest first.
const WAYS: usize = 4;

#[derive(Debug, Clone, Copy, FromZeros)]
struct Tombstone {
    hash: u64,
    /// The default if the entry is empty.
    epoch: Epoch,
}

/// See the module.
pub(crate) struct Tombstones {
    sets: Vec<[Tombstone; WAYS]>,
}

impl Tombstones {
    /// A table with room for about so many flows.
    pub(crate) fn new(room: usize) -> Tombstones {
        Tombstones { sets: untouched(room.div_ceil(WAYS).max(1)) }
    }

    /// Bytes of memory of a full table with room for about so many flows.
    pub(crate) fn memory_of(room: usize) -> usize {
        room.div_ceil(WAYS).max(1) * size_of::<[Tombstone; WAYS]>()
    }

    fn set(&self, hash: u64) -> usize {
        // The highest bits, as a fraction of all sets.
        (((hash >> 32) * self.sets.len() as u64) >> 32) as usize
    }

    /// The flow of this hash, known here under this epoch, has ended or left.
    pub(crate) fn note(&mut self, hash: u64, epoch: Epoch) {
        let at = self.set(hash);
        let set = &mut self.sets[at];
        let at = set.iter().position(|gone| gone.hash == hash).unwrap_or(WAYS - 1);
        set[..=at].rotate_right(1);
        set[0] = Tombstone { hash, epoch };
    }

    /// True if a packet or claim of this hash and epoch is about a flow that is known to
    /// be gone.
    pub(crate) fn is_late(&self, hash: u64, epoch: Epoch) -> bool {
        let is_it = |gone: &&Tombstone| gone.hash == hash && gone.epoch != Epoch::default();
        self.sets[self.set(hash)].iter().filter(is_it).any(|gone| !epoch.is_later(gone.epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash in this one of 4096 sets.
    fn hash(set: u64, number: u64) -> u64 {
        set << 52 | number
    }

    #[test]
    fn what_is_not_newer_is_late() {
        let mut gone = Tombstones::new(16384);
        assert!(!gone.is_late(0, Epoch::new(0)) && !gone.is_late(0, Epoch::new(u32::MAX)));
        gone.note(hash(7, 1), Epoch::new(10));
        assert!(
            gone.is_late(hash(7, 1), Epoch::new(9)) && gone.is_late(hash(7, 1), Epoch::new(10))
        );
        assert!(!gone.is_late(hash(7, 1), Epoch::new(11)), "it lives again");
        assert!(!gone.is_late(hash(7, 2), Epoch::new(10)), "another flow");
        gone.note(hash(7, 1), Epoch::new(12));
        assert!(gone.is_late(hash(7, 1), Epoch::new(11)));
        gone.note(hash(8, 1), Epoch::new(u32::MAX));
        assert!(
            gone.is_late(hash(8, 1), Epoch::new(u32::MAX - 3))
                && !gone.is_late(hash(8, 1), Epoch::new(1)),
            "epochs go on behind the highest"
        );
    }

    #[test]
    fn the_oldest_of_a_set_gives_way() {
        let mut gone = Tombstones::new(16384);
        (1..=4).for_each(|number| gone.note(hash(7, number), Epoch::new(5)));
        // A flow that is noted again is the newest.
        gone.note(hash(7, 1), Epoch::new(6));
        gone.note(hash(7, 5), Epoch::new(5));
        let late: Vec<bool> =
            (1..=5).map(|number| gone.is_late(hash(7, number), Epoch::new(5))).collect();
        assert_eq!(late, [true, false, true, true, true]);
        assert!(gone.is_late(hash(7, 1), Epoch::new(6)));
    }
}
