//! A bounded map that flows share.

use super::{Shareable, SharedField};
use crate::Context;
use std::collections::HashMap;
use std::hash::Hash;

/// A map with a limit. The map is always a local partition, with the entries of this
/// runtime's flows: no state server has it, because its keys are not indexes. Its entries
/// may be forgotten: a flow from another runtime brings none along, and when flows are
/// lost it is emptied, because its entries do not name their flows.
///
/// Reads mark the packet non-deterministic: other flows may have changed the value.
#[derive(Debug)]
pub struct Table<K, V> {
    /// Hashed with keys that nobody outside knows, because senders may choose a `K`. The
    /// order of entries is never seen, so runs stay the same.
    entries: HashMap<K, V>,
    limit: usize,
}

impl<K: Eq + Hash + Copy, V: Copy> Table<K, V> {
    /// An empty table for at most `limit` entries; allocates room for them now.
    pub fn new(limit: usize) -> Table<K, V> {
        Table { entries: HashMap::with_capacity(limit), limit }
    }

    /// The value, if there is one.
    pub fn get(&self, key: &K, cx: &mut Context) -> Option<V> {
        cx.mark_nondeterministic();
        self.entries.get(key).copied()
    }

    /// Changes the value under `key`, starting from `initial` if there is none. Returns
    /// false, and changes nothing, if the table is full.
    #[must_use]
    pub fn update(&mut self, key: K, initial: V, change: impl FnOnce(&mut V)) -> bool {
        if self.entries.len() >= self.limit && !self.entries.contains_key(&key) {
            return false;
        }
        change(self.entries.entry(key).or_insert(initial));
        true
    }

    /// Changes the value under `key` if there is one, and removes it when `change`
    /// returns false.
    pub fn update_or_remove(&mut self, key: &K, change: impl FnOnce(&mut V) -> bool) {
        if let Some(value) = self.entries.get_mut(key)
            && !change(value)
        {
            self.entries.remove(key);
        }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without an entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl<K, V> Shareable for Table<K, V> {
    fn field(&mut self) -> SharedField<'_> {
        SharedField::Table(self.entries.len())
    }

    fn begin_recount(&mut self) {
        self.entries.clear();
    }
}
