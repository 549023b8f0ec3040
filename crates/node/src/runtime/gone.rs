//! Flows that were here lately, and are not any more.
//!
//! Theory of operation. A packet that says that its flow may be new opens one where there is none. It may be late: overtaken by the end of its flow, or by the flow's
//! move to another runtime. What it opened then would be served here under an epoch that is over, beside the one that is. So the latest flows that ended or left
//! are remembered by hash and epoch, and what is not newer opens nothing. So are those that were not let in: more packets of
//! them may be on their way. The memory is a set-associative table: whatever is in it for longer than some thousand
//! other flows took to go gives way, and a packet that is later than that is not recognised.

/// Flows that share a set, newest first.
const WAYS: usize = 4;
const SETS: usize = 4096;

#[derive(Debug, Clone, Copy, Default)]
struct Gone {
    hash: u64,
    /// 0 where there is nothing.
    epoch: u32,
}

/// See the module.
pub(super) struct GoneFlows {
    sets: Vec<[Gone; WAYS]>,
}

impl GoneFlows {
    pub(super) fn new() -> GoneFlows {
        GoneFlows { sets: vec![[Gone::default(); WAYS]; SETS] }
    }

    fn set(hash: u64) -> usize {
        // The lowest bits lead to the flow's bucket; these are as good.
        (hash >> 32) as usize % SETS
    }

    /// The flow of this hash, served here under this epoch, has ended or left.
    pub(super) fn note(&mut self, hash: u64, epoch: u32) {
        let set = &mut self.sets[GoneFlows::set(hash)];
        let at = set.iter().position(|gone| gone.hash == hash).unwrap_or(WAYS - 1);
        set[..=at].rotate_right(1);
        set[0] = Gone { hash, epoch };
    }

    /// A packet of this hash and epoch was sent for a flow that is known to be gone.
    pub(super) fn is_late(&self, hash: u64, epoch: u32) -> bool {
        let set = &self.sets[GoneFlows::set(hash)];
        set.iter().any(|gone| gone.hash == hash && gone.epoch != 0 && epoch.wrapping_sub(gone.epoch) as i32 <= 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash of this set.
    fn hash(set: u64, number: u64) -> u64 {
        set << 32 | number
    }

    #[test]
    fn what_is_not_newer_is_late() {
        let mut gone = GoneFlows::new();
        assert!(!gone.is_late(0, 0) && !gone.is_late(0, u32::MAX));
        gone.note(hash(7, 1), 10);
        assert!(gone.is_late(hash(7, 1), 9) && gone.is_late(hash(7, 1), 10));
        assert!(!gone.is_late(hash(7, 1), 11), "it lives again");
        assert!(!gone.is_late(hash(7, 2), 10), "another flow");
        gone.note(hash(7, 1), 12);
        assert!(gone.is_late(hash(7, 1), 11));
        gone.note(hash(8, 1), u32::MAX);
        assert!(gone.is_late(hash(8, 1), u32::MAX - 3) && !gone.is_late(hash(8, 1), 1), "epochs go on behind the highest");
    }

    #[test]
    fn the_oldest_of_a_set_gives_way() {
        let mut gone = GoneFlows::new();
        (1..=4).for_each(|number| gone.note(hash(7, number), 5));
        // One that is noted again is the newest.
        gone.note(hash(7, 1), 6);
        gone.note(hash(7, 5), 5);
        let late: Vec<bool> = (1..=5).map(|number| gone.is_late(hash(7, number), 5)).collect();
        assert_eq!(late, [true, false, true, true, true]);
        assert!(gone.is_late(hash(7, 1), 6));
    }
}
