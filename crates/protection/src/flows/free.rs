//! The free numbers of a slab that is made once. The number returned last is given first;
//! then come numbers that were never given.
//!
//! Making the slab touches no memory. A slab costs memory for the flows that it holds,
//! not for those that it may hold: pages come when flows come.

use super::table::SLOT_BITS;

/// See the module.
#[derive(Debug)]
pub struct FreeSlots {
    returned: Vec<u32>,
    /// Numbers from here on were never given.
    reach: u32,
    capacity: u32,
}

impl FreeSlots {
    /// Free numbers below `capacity`.
    ///
    /// # Panics
    /// If the numbers need more than 26 bits, the width of a slot in the table of keys.
    pub fn new(capacity: usize) -> FreeSlots {
        assert!(capacity < (1 << SLOT_BITS), "slots have {SLOT_BITS} bits");
        FreeSlots { returned: Vec::with_capacity(capacity), reach: 0, capacity: capacity as u32 }
    }

    /// The number that [`FreeSlots::take`] would give.
    #[inline]
    pub fn next(&self) -> Option<u32> {
        self.returned.last().copied().or((self.reach < self.capacity).then_some(self.reach))
    }

    /// Gives a number.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        self.returned.pop().or_else(|| {
            let number = (self.reach < self.capacity).then_some(self.reach)?;
            self.reach += 1;
            Some(number)
        })
    }

    /// Takes a number back that was given.
    #[inline]
    pub fn put(&mut self, number: u32) {
        debug_assert!(number < self.reach && self.returned.len() < self.reach as usize);
        self.returned.push(number);
    }

    /// Free numbers.
    #[inline]
    pub fn len(&self) -> usize {
        (self.capacity - self.reach) as usize + self.returned.len()
    }

    /// True if no number is free.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Numbers from here on were never given.
    #[inline]
    pub fn reach(&self) -> u32 {
        self.reach
    }

    /// Bytes of memory for a list of so many numbers, once they have been given.
    pub fn memory_of(numbers: usize) -> usize {
        numbers * size_of::<u32>()
    }

    /// All numbers, free or given.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_given_once() {
        let mut free = FreeSlots::new(4);
        assert_eq!((free.len(), free.next(), free.reach()), (4, Some(0), 0));
        assert_eq!((free.take(), free.take(), free.take()), (Some(0), Some(1), Some(2)));
        free.put(0);
        free.put(2);
        assert_eq!(
            (free.len(), free.next(), free.reach()),
            (3, Some(2), 3),
            "the latest first: it is in the cache"
        );
        assert_eq!(
            (free.take(), free.take(), free.take(), free.take()),
            (Some(2), Some(0), Some(3), None)
        );
        assert!(free.is_empty() && free.next().is_none() && free.capacity() == 4);
    }
}
