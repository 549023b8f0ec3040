//! The table from keys to slots: bounded, and growing bucket by bucket in memory that was
//! set aside for all buckets.
//!
//! Theory of operation. Buckets of one cache line hold eight entries of 8 bytes: 37 bits
//! of the key's hash, one bit for which of the two keys of a flow this is, and the slot.
//! A key has two buckets to choose from. The key goes to the first, which a look-up reads
//! first, until that has become crowded, then to the emptier one. If both are full, an
//! entry of one of them goes to its own other bucket (Pagh and Rodler, "Cuckoo Hashing",
//! 2004). A single step is enough, since the table is kept at most a quarter full. If all
//! these buckets are full too, the keys were chosen by an attacker who knows the seed;
//! the caller counts this error. The key itself lies in the slot, which the caller will
//! touch anyway, so the table compares through a closure.
//!
//! Growth is linear hashing (Litwin, "Linear Hashing: A New Tool for File and Table
//! Addressing", 1980): only as many buckets are in use as the keys need. When the table
//! becomes too full, one more bucket comes into use and takes from one other bucket the
//! entries that now belong to it. Both buckets of a key follow from the hash bits in its
//! entry, so growth reads no slot. Memory is spent only on buckets in use: they lie
//! together, whatever the hashes are.

/// A slot, and which of its keys was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Index of the slot.
    pub slot: u32,
    /// True if the reply key was found.
    pub is_reply: bool,
}

use super::{Journal, untouched};
use zerocopy::{FromZeros, Immutable, IntoBytes};

const ENTRIES: usize = 8;
/// Entries in the first bucket from which on the second one may be the better.
const CROWDED: usize = 6;
/// Keys per bucket in use, at most.
const LOAD: usize = 2;
/// Buckets in use from the beginning: one page.
const FIRST: usize = 64;
/// Bits of an entry, from the lowest: the slot's number plus one, the kind of key, the
/// highest bits of the hash.
pub(super) const SLOT_BITS: u32 = 26;
const REPLY: u64 = 1 << SLOT_BITS;
const TAG: u32 = SLOT_BITS + 1;
/// An empty entry is zero, as fresh memory is. Entries therefore hold the slot's number
/// plus one.
const EMPTY: u64 = 0;

#[derive(Clone, Copy, FromZeros, IntoBytes, Immutable)]
#[repr(C, align(64))]
struct Bucket([u64; ENTRIES]);

/// See the module.
pub struct KeyTable {
    /// All buckets, in use or not.
    buckets: Vec<Bucket>,
    /// Buckets in use, from the first one on.
    count: usize,
    /// The least power of two that is not less than `count`, less one.
    mask: usize,
    len: usize,
    journal: Option<Journal>,
}

impl KeyTable {
    /// A table for `keys` keys (two per flow).
    pub fn new(keys: usize) -> KeyTable {
        let most = KeyTable::buckets_of(keys);
        let count = most.min(FIRST);
        KeyTable {
            buckets: untouched(most),
            count,
            mask: count.next_power_of_two() - 1,
            len: 0,
            journal: None,
        }
    }

    fn buckets_of(keys: usize) -> usize {
        keys.div_ceil(LOAD).max(2)
    }

    /// Bytes of memory of a table that has had so many keys at once.
    pub fn memory_of(keys: usize) -> usize {
        KeyTable::buckets_of(keys).max(FIRST) * size_of::<Bucket>()
    }

    /// Sets the journal, which is told before a bucket changes.
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

    /// True if the table has no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory in use.
    pub fn memory(&self) -> usize {
        self.count * size_of::<Bucket>()
    }

    /// The bucket in use that hash bits lead to. If that bucket is not in use yet, its
    /// keys are still in the bucket that will be divided to fill it.
    #[inline]
    fn place(&self, word: u64) -> usize {
        let at = word as usize & self.mask;
        if at < self.count { at } else { at & (self.mask >> 1) }
    }

    #[inline]
    fn first(&self, tag: u64) -> usize {
        self.place(tag)
    }

    #[inline]
    fn second(&self, tag: u64) -> usize {
        // The multiplication mixes all bits, so that the two buckets are independent.
        self.place(tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 37)
    }

    /// The hash bits that an entry keeps.
    #[inline]
    fn tag(hash: u64) -> u64 {
        hash >> TAG
    }

    #[inline]
    fn entry(tag: u64, found: Found) -> u64 {
        tag << TAG | if found.is_reply { REPLY } else { 0 } | u64::from(found.slot + 1)
    }

    /// Slot and kind of key of an entry that is not [`EMPTY`].
    #[inline]
    fn found(entry: u64) -> Found {
        Found { slot: (entry & (REPLY - 1)) as u32 - 1, is_reply: entry & REPLY != 0 }
    }

    /// Puts one more bucket into use, which takes its entries from the one that had them
    /// so far.
    fn grow(&mut self) {
        let new = self.count;
        self.count += 1;
        self.mask = self.count.next_power_of_two() - 1;
        let from = new & (self.mask >> 1);
        self.note(from);
        self.note(new);
        let mut moved = 0;
        for at in 0..ENTRIES {
            let entry = self.buckets[from].0[at];
            let tag = entry >> TAG;
            if entry != EMPTY && self.first(tag) != from && self.second(tag) != from {
                self.buckets[new].0[moved] = entry;
                self.buckets[from].0[at] = EMPTY;
                moved += 1;
            }
        }
    }

    /// Prefetches the key's first bucket. The value means nothing; a caller adds the
    /// values of a burst up so that the loads are independent and overlap.
    #[inline]
    pub fn touch(&self, hash: u64) -> u64 {
        self.buckets[self.first(KeyTable::tag(hash))].0[0]
    }

    /// The first slot in the key's buckets whose tag fits, for prefetching. Its key has
    /// not been compared.
    #[inline]
    pub fn candidate(&self, hash: u64) -> Option<Found> {
        let tag = KeyTable::tag(hash);
        for bucket in [self.first(tag), self.second(tag)] {
            for &entry in &self.buckets[bucket].0 {
                if entry >> TAG == tag && entry != EMPTY {
                    return Some(KeyTable::found(entry));
                }
            }
        }
        None
    }

    /// The slot for which `is_it` returns true.
    #[inline]
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(Found) -> bool) -> Option<Found> {
        let tag = KeyTable::tag(hash);
        for bucket in [self.first(tag), self.second(tag)] {
            for &entry in &self.buckets[bucket].0 {
                if entry >> TAG == tag && entry != EMPTY {
                    let found = KeyTable::found(entry);
                    if is_it(found) {
                        return Some(found);
                    }
                }
            }
        }
        None
    }

    /// Moves an entry of this full bucket to its other bucket. False if these are all
    /// full.
    #[cold]
    fn displace(&mut self, from: usize) -> bool {
        for at in 0..ENTRIES {
            let entry = self.buckets[from].0[at];
            let tag = entry >> TAG;
            let (first, second) = (self.first(tag), self.second(tag));
            let to = if first == from { second } else { first };
            if let Some(place) = self.buckets[to].0.iter().position(|&entry| entry == EMPTY) {
                self.note(from);
                self.note(to);
                self.buckets[to].0[place] = entry;
                self.buckets[from].0[at] = EMPTY;
                return true;
            }
        }
        false
    }

    /// Adds an entry. The caller makes sure that the key is not in the table. False if
    /// there is no place for the entry.
    #[must_use]
    pub fn insert(&mut self, hash: u64, found: Found) -> bool {
        if self.len >= self.count * LOAD && self.count < self.buckets.len() {
            self.grow();
        }
        let tag = KeyTable::tag(hash);
        let (first, second) = (self.first(tag), self.second(tag));
        let used = |table: &KeyTable, bucket: usize| {
            table.buckets[bucket].0.iter().filter(|&&entry| entry != EMPTY).count()
        };
        let in_first = used(self, first);
        let bucket =
            if in_first < CROWDED || in_first <= used(self, second) { first } else { second };
        let bucket = match used(self, bucket) {
            ENTRIES if self.displace(first) => first,
            ENTRIES if self.displace(second) => second,
            _ => bucket,
        };
        let Some(place) = self.buckets[bucket].0.iter().position(|&entry| entry == EMPTY) else {
            return false;
        };
        self.note(bucket);
        self.buckets[bucket].0[place] = KeyTable::entry(tag, found);
        self.len += 1;
        true
    }

    /// Removes an entry. False if it is not there.
    pub fn remove(&mut self, hash: u64, found: Found) -> bool {
        let tag = KeyTable::tag(hash);
        let entry = KeyTable::entry(tag, found);
        for bucket in [self.first(tag), self.second(tag)] {
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

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::RefCell;
    use holdfast_wire::FlowKey;
    use std::collections::BTreeSet;

    const CONNECTION: FlowKey = FlowKey {
        source: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 2],
        destination: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 100, 64, 0, 80],
        source_port: 0,
        destination_port: 80,
        protocol: 6,
        scope: 0,
    };

    /// Numbers that look random, the same in every run.
    fn hash(n: u64) -> u64 {
        let mixed = (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ mixed >> 32
    }

    fn found(slot: u32) -> Found {
        Found { slot, is_reply: slot % 2 == 1 }
    }

    fn insert(table: &mut KeyTable, n: u32) {
        assert!(table.insert(hash(n.into()), found(n)), "{n}");
    }

    fn has(table: &KeyTable, n: u32) -> bool {
        table.find(hash(n.into()), |place| place == found(n)) == Some(found(n))
    }

    /// A table for a million keys, of which a thousand come. Memory is in use for a
    /// thousand. At every number of keys all of them are found, and no other key is.
    #[test]
    fn memory_follows_the_keys() {
        let mut table = KeyTable::new(1 << 20);
        for n in 0..1000 {
            insert(&mut table, n);
            assert!((0..=n).all(|n| has(&table, n)) && !has(&table, n + 1), "{n}");
        }
        assert_eq!(table.memory(), KeyTable::memory_of(1000));
        assert_eq!(KeyTable::memory_of(1000), 500 * 64);
        (1000..1 << 20).for_each(|n| insert(&mut table, n));
        assert!((0..1 << 20).all(|n| has(&table, n)));
        assert_eq!(table.memory(), KeyTable::memory_of(1 << 20));
    }

    /// At most four in a hundred look-ups read a second bucket, whatever the number of
    /// keys.
    #[test]
    fn nearly_every_key_is_where_it_is_looked_for_first() {
        let mut table = KeyTable::new(1 << 18);
        let mut at = 0;
        for step in (10..=18).flat_map(|bits| [4, 5, 6, 7].map(|quarters| (quarters << bits) / 8)) {
            (at..step).for_each(|n| insert(&mut table, n));
            at = step;
            let is_second = |n: &u32| {
                let first = table.first(KeyTable::tag(hash((*n).into())));
                !table.buckets[first]
                    .0
                    .iter()
                    .any(|entry| *entry != EMPTY && KeyTable::found(*entry) == found(*n))
            };
            let second = (0..at).filter(is_second).count();
            assert!(second * 100 <= at as usize * 4, "{second} of {at}");
        }
    }

    /// Keys come and go, fewer and more than before, in a table that is full again and
    /// again.
    #[test]
    fn keys_come_and_go() {
        let mut table = KeyTable::new(5000);
        let mut model = BTreeSet::new();
        for step in 0..200_000u64 {
            let n = (hash(step) % 8000) as u32;
            if model.remove(&n) {
                assert!(table.remove(hash(n.into()), found(n)));
                assert!(!table.remove(hash(n.into()), found(n)));
            } else if model.len() < 5000 {
                insert(&mut table, n);
                model.insert(n);
            }
            assert_eq!(table.len(), model.len());
        }
        assert!((0..8000).all(|n| has(&table, n) == model.contains(&n)));
    }

    /// Both buckets of a key are full of keys that have another bucket. The new key moves
    /// one of those, and all are found.
    #[test]
    fn a_key_whose_buckets_are_full_makes_room() {
        let mut table = KeyTable::new(2 * FIRST);
        let new = 1 << 20;
        let tag = |n: u32| KeyTable::tag(hash(n.into()));
        let buckets = [table.first(tag(new)), table.second(tag(new))];
        assert_ne!(buckets[0], buckets[1]);
        let first_at = |bucket: usize| {
            (1..new).filter(|&n| table.first(tag(n)) == bucket).take(ENTRIES).collect::<Vec<u32>>()
        };
        let others = buckets.map(first_at);
        for (bucket, others) in buckets.iter().zip(&others) {
            table.buckets[*bucket]
                .0
                .iter_mut()
                .zip(others)
                .for_each(|(entry, &n)| *entry = KeyTable::entry(tag(n), found(n)));
            table.len += ENTRIES;
        }
        insert(&mut table, new);
        assert!(others.iter().flatten().chain(&[new]).all(|&n| has(&table, n)));
        assert_eq!(table.len(), 2 * ENTRIES + 1);
    }

    /// Clients take ports that follow one another. Each connection has its place,
    /// whatever the seed.
    #[test]
    fn ports_that_follow_one_another_have_room() {
        for seed in (0..2000).map(hash) {
            let mut table = KeyTable::new(1 << 13);
            for n in 0..1000u32 {
                let key = FlowKey { source_port: 32768 + 2 * n as u16, ..CONNECTION };
                for (key, slot) in [(key, 2 * n), (key.reverse(), 2 * n + 1)] {
                    assert!(table.insert(key.hash(seed), found(slot)), "{n} under {seed}");
                }
            }
        }
    }

    /// The largest slot is distinguished from its neighbours and from the other key.
    #[test]
    fn an_entry_has_room_for_every_slot() {
        let last = (1 << SLOT_BITS) - 2;
        for place in [
            Found { slot: 0, is_reply: true },
            Found { slot: last, is_reply: false },
            Found { slot: last, is_reply: true },
        ] {
            let entry = KeyTable::entry(KeyTable::tag(u64::MAX), place);
            assert_eq!((KeyTable::found(entry), entry >> TAG), (place, KeyTable::tag(u64::MAX)));
        }
    }

    thread_local! {
        static BEFORE: RefCell<Vec<(usize, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
    }

    /// The journal is told enough to undo an insertion, even one that brings a bucket
    /// into use.
    #[test]
    fn what_changes_is_told_before() {
        let mut table = KeyTable::new(4000);
        table.set_journal(Journal {
            exempt: |_| {},
            before: |bytes| {
                BEFORE.with_borrow_mut(|before| {
                    before.push((bytes.as_ptr() as usize, bytes.to_vec()))
                })
            },
            scratch: |_, _| {},
        });
        for n in 0..2000 {
            let (was, begin) = (table.buckets.as_bytes().to_vec(), table.buckets.as_ptr() as usize);
            insert(&mut table, n);
            let mut undone = table.buckets.as_bytes().to_vec();
            for (address, bytes) in BEFORE.take().into_iter().rev() {
                undone[address - begin..address - begin + bytes.len()].copy_from_slice(&bytes);
            }
            assert!(undone == was, "{n}");
        }
    }
}
