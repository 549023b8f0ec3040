//! Keys to slots: a bounded table that is made once and never grows.
//!
//! Buckets of one cache line hold eight entries of 8 bytes: 32 bits of the key's hash, one bit for which of the two keys of
//! a flow this is, and the slot. A key has two buckets to choose from. It goes to the first, which a look-up reads first, until that has
//! become crowded, then to the emptier one; at the load for which the table is made (half full) both being full is rarer than one in
//! millions, and is an error that the caller counts.
//! The key itself lies in the slot, which the caller will touch anyway, so the table compares through a closure.

/// A slot, and which of its keys was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Index of the slot.
    pub slot: u32,
    /// It was the reply key.
    pub is_reply: bool,
}

use super::{Journal, untouched};
use zerocopy::{FromZeros, Immutable, IntoBytes};

const ENTRIES: usize = 8;
/// Entries in a bucket from which on the other one may be the better.
const CROWDED: usize = 6;
const REPLY: u32 = 1 << 31;
/// An empty entry is zero, as fresh memory is: entries hold the slot's number plus one.
const EMPTY: u64 = 0;

#[derive(Clone, Copy, FromZeros, IntoBytes, Immutable)]
#[repr(C, align(64))]
struct Bucket([u64; ENTRIES]);

/// See the module.
pub struct KeyTable {
    buckets: Vec<Bucket>,
    mask: usize,
    len: usize,
    journal: Option<Journal>,
}

impl KeyTable {
    /// A table for `keys` keys (two per flow).
    pub fn new(keys: usize) -> KeyTable {
        let count = (keys * 2).div_ceil(ENTRIES).next_power_of_two().max(2);
        KeyTable { buckets: untouched(count), mask: count - 1, len: 0, journal: None }
    }

    /// From now on the journal is told before a bucket changes.
    pub(super) fn set_journal(&mut self, journal: Journal) {
        (journal.exempt)(self.buckets.as_bytes());
        self.journal = Some(journal);
    }

    #[inline]
    fn note(&self, bucket: usize) {
        if let Some(journal) = &self.journal {
            (journal.before)(self.buckets[bucket].as_bytes());
        }
    }

    /// Keys in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without a key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    #[inline]
    fn first(&self, hash: u64) -> usize {
        hash as usize & self.mask
    }

    #[inline]
    fn second(&self, hash: u64) -> usize {
        // Other bits of the same hash, through a multiplication so that both buckets are independent.
        (hash.rotate_left(24).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize & self.mask
    }

    #[inline]
    fn tag(hash: u64) -> u32 {
        (hash >> 32) as u32
    }

    #[inline]
    fn entry(hash: u64, found: Found) -> u64 {
        u64::from(KeyTable::tag(hash)) << 32 | u64::from(found.slot + 1) | if found.is_reply { u64::from(REPLY) } else { 0 }
    }

    /// Slot and kind of key of an entry that is not [`EMPTY`].
    #[inline]
    fn found(entry: u64) -> Found {
        Found { slot: (entry as u32 & !REPLY) - 1, is_reply: entry as u32 & REPLY != 0 }
    }

    /// Brings the key's first bucket into the cache. The value means nothing; a caller adds the values of a burst up so
    /// that the loads are independent and overlap.
    #[inline]
    pub fn touch(&self, hash: u64) -> u64 {
        self.buckets[self.first(hash)].0[0]
    }

    /// The first slot in the key's buckets whose tag fits, not compared: to fetch it early.
    #[inline]
    pub fn candidate(&self, hash: u64) -> Option<Found> {
        let tag = KeyTable::tag(hash);
        for bucket in [self.first(hash), self.second(hash)] {
            for &entry in &self.buckets[bucket].0 {
                if (entry >> 32) as u32 == tag && entry != EMPTY {
                    return Some(KeyTable::found(entry));
                }
            }
        }
        None
    }

    /// The slot for which `is_it` says yes.
    #[inline]
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(Found) -> bool) -> Option<Found> {
        let tag = KeyTable::tag(hash);
        for bucket in [self.first(hash), self.second(hash)] {
            for &entry in &self.buckets[bucket].0 {
                if (entry >> 32) as u32 == tag && entry != EMPTY {
                    let found = KeyTable::found(entry);
                    if is_it(found) {
                        return Some(found);
                    }
                }
            }
        }
        None
    }

    /// Adds an entry; the caller made sure that the key is not there. False if both buckets are full.
    #[must_use]
    pub fn insert(&mut self, hash: u64, found: Found) -> bool {
        let (first, second) = (self.first(hash), self.second(hash));
        let used = |table: &KeyTable, bucket: usize| table.buckets[bucket].0.iter().filter(|&&entry| entry != EMPTY).count();
        let in_first = used(self, first);
        let bucket = if in_first < CROWDED || in_first <= used(self, second) { first } else { second };
        let entry = KeyTable::entry(hash, found);
        self.note(bucket);
        match self.buckets[bucket].0.iter_mut().find(|entry| **entry == EMPTY) {
            Some(place) => {
                *place = entry;
                self.len += 1;
                true
            }
            None => false,
        }
    }

    /// Removes an entry. False if it is not there.
    pub fn remove(&mut self, hash: u64, found: Found) -> bool {
        let entry = KeyTable::entry(hash, found);
        for bucket in [self.first(hash), self.second(hash)] {
            if self.buckets[bucket].0.contains(&entry) {
                self.note(bucket);
            }
            if let Some(place) = self.buckets[bucket].0.iter_mut().find(|place| **place == entry) {
                *place = EMPTY;
                self.len -= 1;
                return true;
            }
        }
        false
    }
}
