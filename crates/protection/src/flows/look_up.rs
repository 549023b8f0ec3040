//! Look-ups: one key, or a burst of keys in two halves, so that memory is fetched for
//! many packets at once.
//!
//! In: keys and their hashes. Out: slots. Never: a change.

use super::{ActorHeader, COLD_LINE, Flows, Found, Life, Slot};
use holdfast_wire::{Epoch, FlowKey};

impl Flows {
    /// The flow with this key, preferably as its forward key, otherwise as its reply key.
    /// If several flows have this reply key, one whose epoch is still to come is
    /// preferred.
    #[inline]
    pub fn find(&self, key: &FlowKey, hash: u64) -> Option<Found> {
        let mut replied = None;
        let is_it = |found: Found| {
            let is_key = self.is_key(found, key);
            if is_key
                && found.is_reply
                && (replied.is_none() || self.header(found.slot).life().is_awaited())
            {
                replied = Some(found);
            }
            is_key && !found.is_reply
        };
        self.table.find(hash, is_it).or(replied)
    }

    /// The flow of a packet with this key, under an epoch with these low bits. Several
    /// flows may have one reply key; a packet carries the epoch of the flow to which the
    /// switch has given the key.
    pub fn find_meant(&self, key: &FlowKey, hash: u64, epoch: u16) -> Option<Found> {
        let meant = self.table.find(hash, |found| {
            self.is_key(found, key) && self.header(found.slot).epoch.low() == epoch
        });
        meant.or_else(|| self.find(key, hash))
    }

    /// True if several flows here have this reply key.
    pub fn is_shared(&self, reply: &FlowKey) -> bool {
        let mut first = None;
        let is_second = |found: Found| {
            found.is_reply
                && self.is_key(found, reply)
                && *first.get_or_insert(found.slot) != found.slot
        };
        self.table.find(self.hash(reply), is_second).is_some()
    }

    /// The flow whose forward key has this hash, if `is_it` accepts its header.
    #[inline]
    pub(crate) fn find_hash(
        &self,
        hash: u64,
        is_it: impl Fn(&ActorHeader) -> bool,
    ) -> Option<Slot> {
        self.table
            .find(hash, |found| !found.is_reply && is_it(self.header(found.slot)))
            .map(|found| found.slot)
    }

    #[inline]
    pub(super) fn is_key(&self, found: Found, key: &FlowKey) -> bool {
        let header = self.header(found.slot);
        if found.is_reply { header.reply == *key } else { header.key == *key }
    }

    /// First half of a burst look-up: prefetches the keys' buckets.
    #[inline]
    pub fn touch_buckets(&self, hashes: impl Iterator<Item = u64>) -> u64 {
        hashes.fold(0, |sum, hash| sum.wrapping_add(self.table.touch(hash)))
    }

    /// Second half: looks the keys up without comparing them, and prefetches the slots'
    /// lines: the `whole` header, or the part that a packet touches. `into` gets one
    /// entry per hash, for [`Flows::find_likely`]. The returned value means nothing; use
    /// it so that the loads stay.
    #[inline]
    pub fn touch_slots(
        &self,
        hashes: impl Iterator<Item = u64>,
        whole: bool,
        into: &mut Vec<Option<Found>>,
    ) -> u64 {
        into.clear();
        into.extend(hashes.map(|hash| self.table.candidate(hash)));
        let mut sum = 0u64;
        for found in into.iter().flatten() {
            let lines = &self.lines[self.range(found.slot)];
            for line in &lines[..COLD_LINE] {
                sum = sum.wrapping_add(u64::from(line.0[0]));
            }
            for line in &lines[COLD_LINE + usize::from(!whole)..] {
                sum = sum.wrapping_add(u64::from(line.0[0]));
            }
        }
        sum
    }

    /// Prefetches the blocks of many slots. The returned value means nothing; use it so
    /// that the loads stay.
    #[inline]
    pub fn touch_blocks(&self, slots: impl Iterator<Item = Slot>) -> u64 {
        let lines = slots.flat_map(|slot| &self.lines[self.range(slot)]);
        lines.fold(0, |sum, line| sum.wrapping_add(u64::from(line.0[0])))
    }

    /// Like [`Flows::find_meant`], with the result of [`Flows::touch_slots`].
    #[inline]
    pub fn find_likely(
        &self,
        key: &FlowKey,
        hash: u64,
        epoch: Epoch,
        likely: Option<Found>,
    ) -> Option<Found> {
        let is_it = |found: &Found| {
            let header = self.header(found.slot);
            header.life() != Life::Free && header.epoch == epoch && self.is_key(*found, key)
        };
        // The likely slot is wrong if another key has the same tag, if an earlier packet
        // of the burst opened the flow, or if the flow has another epoch.
        likely.filter(is_it).or_else(|| self.find_meant(key, hash, epoch.low()))
    }
}
