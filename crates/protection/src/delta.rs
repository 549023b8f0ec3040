//! Deltas: the changes of a flow actor's block from one state to the next, and their
//! encoding.
//!
//! A block is a sequence of words of eight bytes. A map begins the delta, with one bit
//! per word, the lowest first: set if the word has changed. For each changed word a byte
//! follows, whose bits say which of the word's bytes have changed, and then these bytes
//! with their new values. The length follows from the contents. A delta that is cut, too
//! long, or changes bytes that no packet can change is therefore recognised before
//! anything is written.

use crate::flows::{ActorHeader, FIXED, VARIABLE};
use crate::numbers::{split_commit, split_epoch, split_u32};
use crate::{Commit, Epoch};
use holdfast_wire::DropReason;

const WORD: usize = 8;
const HEADER_WORDS: usize = size_of::<ActorHeader>() / WORD;

/// The first word of these bytes. Bytes beyond the end of the block are 0.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// A mask with a bit for each byte of the word that is not 0.
#[inline]
fn mask_of(word: u64) -> u8 {
    // The highest bit of every byte that is not 0; the multiplication puts these bits
    // side by side.
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let high = (((word & LOW) + LOW) | word) & !LOW;
    ((high >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// A word in which all bits of the bytes in the mask are set.
#[inline]
fn bytes_of(mask: u8) -> u64 {
    let bits = u64::from(mask).wrapping_mul(0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    // First one bit in each byte of the mask. A carry takes it to the highest bit of the
    // byte, and the multiplication spreads it over the whole byte.
    let high = ((bits.wrapping_add(0x7f7f_7f7f_7f7f_7f7f)) | bits) & 0x8080_8080_8080_8080;
    (high >> 7).wrapping_mul(0xff)
}

/// The bits of this word that a packet may change and that travel.
#[inline]
fn variable(at: usize) -> u64 {
    if at < HEADER_WORDS { VARIABLE[at] } else { u64::MAX }
}

/// Encodes the delta from `before` to `after`, two blocks of one length, in `room`.
/// `None` if the delta would not be shorter than `limit`, or if a field has changed that
/// only a whole block carries.
pub(crate) fn encode<'a>(
    before: &[u8],
    after: &[u8],
    limit: usize,
    room: &'a mut Vec<u8>,
) -> Option<&'a [u8]> {
    let words = after.len().div_ceil(WORD);
    let map_len = words.div_ceil(8);
    // Room for every word with its mask, so that a whole word can be written whichever of
    // its bytes have changed.
    room.resize(map_len + words * (1 + WORD), 0);
    let room = room.as_mut_slice();
    room[..map_len].fill(0);
    let mut len = map_len;
    let mut put = |at: usize, changed: u64, is: u64| {
        room[at / 8] |= 1 << (at % 8);
        let mask = mask_of(changed);
        room[len] = mask;
        len += 1;
        let first = mask.trailing_zeros();
        let run = mask >> first;
        if run & run.wrapping_add(1) == 0 {
            // The common case: the changed bytes are side by side.
            room[len..len + WORD].copy_from_slice(&(is >> (8 * first)).to_le_bytes());
            len += run.count_ones() as usize;
            return;
        }
        let mut rest = mask;
        while rest != 0 {
            room[len] = (is >> (8 * rest.trailing_zeros())) as u8;
            len += 1;
            rest &= rest - 1;
        }
    };
    let (before, before_end) = before.as_chunks::<WORD>();
    let (after, after_end) = after.as_chunks::<WORD>();
    for (at, (before, after)) in before.iter().zip(after).enumerate() {
        let (was, is) = (u64::from_le_bytes(*before), u64::from_le_bytes(*after));
        let mut changed = was ^ is;
        if at < HEADER_WORDS {
            if changed & FIXED[at] != 0 {
                return None;
            }
            changed &= VARIABLE[at];
        }
        if changed != 0 {
            put(at, changed, is);
        }
    }
    let (was, is) = (word(before_end), word(after_end));
    if was != is {
        put(after.len(), was ^ is, is);
    }
    Some(&room[..len]).filter(|encoded| encoded.len() < limit)
}

/// True if a bit differs that travels or that never changes.
pub(crate) fn differ(before: &[u8], after: &[u8]) -> bool {
    let pairs = before.chunks(WORD).zip(after.chunks(WORD)).enumerate();
    pairs.into_iter().any(|(at, (before, after))| {
        let counts = if at < HEADER_WORDS { FIXED[at] | VARIABLE[at] } else { u64::MAX };
        (word(before) ^ word(after)) & counts != 0
    })
}

/// A digest of exactly the bits of a block that travel, against accidents, not attacks.
pub(crate) fn digest(block: &[u8]) -> u64 {
    const VERSION: usize = core::mem::offset_of!(ActorHeader, version);
    let mut digest = 0x9e37_79b9_7f4a_7c15u64;
    for (at, bytes) in block.chunks(WORD).enumerate() {
        let mut counts = u64::MAX;
        if at < HEADER_WORDS {
            counts = FIXED[at] | VARIABLE[at];
        }
        if at == VERSION / WORD {
            counts |= u64::from(u32::MAX) << (8 * (VERSION % WORD));
        }
        // Every word, and its position, affects all that follows.
        digest = (digest ^ word(bytes) & counts).wrapping_mul(0xff51_afd7_ed55_8ccd);
        digest ^= digest >> 32;
    }
    digest
}

/// A checked delta: it fits a block of the length for which it was read.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    map: &'a [u8],
    words: &'a [u8],
}

impl<'a> Change<'a> {
    /// Reads a delta for a block of this length.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] if the body is not one.
    pub(crate) fn read(body: &'a [u8], block_len: usize) -> Result<Change<'a>, DropReason> {
        let words = block_len.div_ceil(WORD);
        let (map, list) = body.split_at_checked(words.div_ceil(8)).ok_or(DropReason::Malformed)?;
        let mut rest = list;
        for at in changed_words(map) {
            let (mask, after) = rest.split_first().ok_or(DropReason::Malformed)?;
            let room = block_len.saturating_sub(at * WORD);
            // No bytes beyond the block, and none that no packet may change.
            let is_allowed = *mask != 0
                && (room >= WORD || *mask >> room == 0)
                && mask_of(variable(at)) & mask == *mask;
            rest = after
                .get(mask.count_ones() as usize..)
                .filter(|_| is_allowed)
                .ok_or(DropReason::Malformed)?;
        }
        if rest.is_empty() { Ok(Change { map, words: list }) } else { Err(DropReason::Malformed) }
    }

    /// Writes the delta into a block of the length for which it was read.
    pub(crate) fn apply(&self, block: &mut [u8]) {
        let mut rest = self.words;
        for at in changed_words(self.map) {
            let Some((&mask, after)) = rest.split_first() else { return };
            let Some((bytes, after)) = after.split_at_checked(mask.count_ones() as usize) else {
                return;
            };
            rest = after;
            let mut now = 0;
            let mut left = mask;
            for byte in bytes {
                now |= u64::from(*byte) << (8 * left.trailing_zeros());
                left &= left.wrapping_sub(1);
            }
            let written = bytes_of(mask) & variable(at);
            let end = block.len().min((at + 1) * WORD);
            let Some(place) = block.get_mut(at * WORD..end) else { return };
            let word = word(place) & !written | now & written;
            place.copy_from_slice(&word.to_le_bytes()[..place.len()]);
        }
    }
}

fn changed_words(map: &[u8]) -> impl Iterator<Item = usize> + '_ {
    map.iter().enumerate().flat_map(|(at, &bits)| {
        let mut rest = bits;
        core::iter::from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(at * 8 + bit)
        })
    })
}

/// A record that carries a delta of a flow.
#[derive(Debug)]
pub(crate) struct DeltaRecord<'a> {
    /// The commit number.
    pub(crate) commit: Commit,
    /// The hash of the flow's forward key under the cluster's seed, by which the flow is
    /// found.
    pub(crate) hash: u64,
    /// The flow's epoch, which identifies the flow: no other owner has a route of the
    /// same epoch.
    pub(crate) epoch: Epoch,
    /// The version of the state that the delta applies to.
    pub(crate) version: u32,
    pub(crate) change: Change<'a>,
}

/// Bytes of this record before the delta.
pub(crate) const HEAD_LEN: usize = 20;

/// Encodes these bytes.
pub(crate) fn head(commit: Commit, hash: u64, epoch: Epoch, version: u32) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    head[..4].copy_from_slice(&commit.to_be_bytes());
    head[4..12].copy_from_slice(&hash.to_be_bytes());
    head[12..16].copy_from_slice(&epoch.to_be_bytes());
    head[16..].copy_from_slice(&version.to_be_bytes());
    head
}

/// The key hash of such a record, which is otherwise unchecked.
pub(crate) fn hash_of(body: &[u8]) -> Option<u64> {
    body.get(4..12)?.try_into().ok().map(u64::from_be_bytes)
}

/// Parses such a record. `block_len`: the length of a flow's block here.
///
/// # Errors
/// [`DropReason::Malformed`] if the body is not one.
pub(crate) fn split(body: &[u8], block_len: usize) -> Result<DeltaRecord<'_>, DropReason> {
    let hash = hash_of(body).ok_or(DropReason::Malformed)?;
    let (commit, _) = split_commit(body)?;
    let (epoch, rest) = split_epoch(&body[12..])?;
    let (version, rest) = split_u32(rest)?;
    Ok(DeltaRecord { commit, hash, epoch, version, change: Change::read(rest, block_len)? })
}

/// A question about a copy.
#[derive(Debug)]
pub(crate) struct Check {
    /// The question's number.
    pub(crate) number: Commit,
    /// The flow's key hash: see [`DeltaRecord`].
    pub(crate) hash: u64,
    /// The flow's epoch.
    pub(crate) epoch: Epoch,
    /// The version that the copy should have.
    pub(crate) version: u32,
    /// See [`digest`].
    pub(crate) digest: u64,
}

/// Parses a question.
///
/// # Errors
/// [`DropReason::Malformed`] if the body is not one.
pub(crate) fn split_check(body: &[u8]) -> Result<Check, DropReason> {
    let (head, digest) = body.split_at_checked(HEAD_LEN).ok_or(DropReason::Malformed)?;
    let digest = u64::from_be_bytes(digest.try_into().map_err(|_| DropReason::Malformed)?);
    let hash = hash_of(head).ok_or(DropReason::Malformed)?;
    let (number, _) = split_commit(head)?;
    let (epoch, rest) = split_epoch(&head[12..])?;
    let (version, _) = split_u32(rest)?;
    Ok(Check { number, hash, epoch, version, digest })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::{Flows, flag};
    use holdfast_wire::{FlowKey, NodeId};
    use zerocopy::IntoBytes;

    const STATE_LEN: usize = 43;

    fn flows() -> (Flows, u32) {
        let mut flows = Flows::new(4, STATE_LEN, 7, 99);
        let key = FlowKey { source_port: 7, protocol: 17, ..FlowKey::default() };
        let slot = flows.insert_owned(key, flows.hash(&key)).unwrap();
        (flows, slot)
    }

    /// Words from a generator, the same in every run.
    fn next(seed: &mut u64) -> u64 {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *seed >> 29
    }

    /// Packet after packet changes some of a flow's state, sometimes its last byte, its
    /// times and its counts. The encoded delta is shorter than the block and, written
    /// over the copy, always makes it equal to the owner's block.
    #[test]
    fn a_copy_follows_through_changes() {
        let (mut flows, slot) = flows();
        let mut copy = flows.block(slot).to_vec();
        let mut seed = 1;
        let mut encoded = Vec::new();
        for round in 0..500u64 {
            let before = flows.block(slot).to_vec();
            let (header, state) = flows.parts_mut(slot);
            header.last_stamp += next(&mut seed) % 70_000;
            header.expires_at = header.last_stamp + 1_000_000_000;
            header.count((round % 2) as usize, 60);
            header.flags ^= if round % 9 == 0 { flag::UNCONFIRMED } else { 0 };
            for _ in 0..next(&mut seed) % 4 {
                state[(next(&mut seed) % STATE_LEN as u64) as usize] = next(&mut seed) as u8;
            }
            state[STATE_LEN - 1] ^= u8::from(round % 5 == 0);
            let change = encode(&before, flows.block(slot), before.len(), &mut encoded)
                .unwrap_or_else(|| panic!("round {round}"));
            Change::read(change, copy.len()).unwrap().apply(&mut copy);
            assert!(!differ(flows.block(slot), &copy), "round {round}");
        }
    }

    /// Fields that are local to each runtime change at the owner. These fields do not
    /// travel, and the copy does not count as different.
    #[test]
    fn what_is_local_stays() {
        let (mut flows, slot) = flows();
        let before = flows.block(slot).to_vec();
        let header = flows.header_mut(slot);
        header.set_holder(crate::Peer { node: NodeId::new(17), incarnation: 3 });
        (header.commit, header.parked) = (Commit::new(99), 4);
        header.flags = flag::DIRTY | flag::UNPROTECTED;
        (header.timer_next, header.timer_before, header.timer_list, header.generation) =
            (1, 2, 3, 4);
        let mut room = Vec::new();
        assert!(!differ(&before, flows.block(slot)));
        let encoded = encode(&before, flows.block(slot), before.len(), &mut room).unwrap();
        assert!(encoded.iter().all(|byte| *byte == 0), "{encoded:?}");
    }

    /// Each single bit of a block is flipped. Bits that travel change the digest, and
    /// local bits do not.
    #[test]
    fn a_digest_is_of_what_travels() {
        let (flows, slot) = flows();
        let block = flows.block(slot).to_vec();
        let (mut same, mut other) = (0, 0);
        for bit in 0..block.len() * 8 {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let is_version = (44..48).contains(&(bit / 8));
            let travels = is_version || differ(&block, &damaged);
            assert_eq!(digest(&damaged) != digest(&block), travels, "bit {bit}");
            same += usize::from(!travels);
            other += usize::from(travels);
        }
        // Local are life, the other flags, the holder, parked, commit,
        // timers, generation.
        assert_eq!(
            (same, other),
            ((1 + 2 + 4 + 4 + 4 + 16) * 8 + 7, block.len() * 8 - (1 + 2 + 4 + 4 + 4 + 16) * 8 - 7)
        );
    }

    /// The flow gets another epoch, or another reply key. Neither is a change by a
    /// packet, so the block goes whole.
    #[test]
    fn what_no_packet_changes_goes_whole() {
        let (mut flows, slot) = flows();
        let before = flows.block(slot).to_vec();
        let mut encoded = Vec::new();
        let epoch = flows.header(slot).epoch;
        flows.header_mut(slot).epoch = epoch.next();
        assert_eq!(encode(&before, flows.block(slot), before.len(), &mut encoded), None);
        flows.header_mut(slot).epoch = epoch;
        flows.set_reply(slot, FlowKey { source_port: 9, ..FlowKey::default() }).unwrap();
        assert_eq!(encode(&before, flows.block(slot), before.len(), &mut encoded), None);
        assert!(differ(&before, flows.block(slot)));
    }

    /// Every byte of the state gets another value. The delta would be longer than the
    /// block, and is not used.
    #[test]
    fn a_change_of_everything_is_no_shorter() {
        let (mut flows, slot) = flows();
        let before = flows.block(slot).to_vec();
        flows.parts_mut(slot).1.fill(0xee);
        let mut encoded = Vec::new();
        assert_eq!(encode(&before, flows.block(slot), STATE_LEN, &mut encoded), None);
    }

    /// A delta is cut at every length, made longer, and every byte of it gets every
    /// value. A forged delta is refused, or changes only bits that a packet may change.
    #[test]
    fn what_is_malformed_is_refused() {
        let (mut flows, slot) = flows();
        let before = flows.block(slot).to_vec();
        let (header, state) = flows.parts_mut(slot);
        (header.last_stamp, header.expires_at) = (12_345_678, 87_654_321);
        (state[0], state[STATE_LEN - 1]) = (1, 2);
        let mut room = Vec::new();
        let encoded = encode(&before, flows.block(slot), before.len(), &mut room).unwrap().to_vec();
        for len in 0..encoded.len() {
            assert!(Change::read(&encoded[..len], before.len()).is_err(), "{len} bytes");
        }
        assert!(Change::read(&[&encoded[..], &[0]].concat(), before.len()).is_err());
        let mut refused = 0;
        for at in 0..encoded.len() {
            for value in 0..=255 {
                let mut forged = encoded.clone();
                forged[at] = value;
                let Ok(change) = Change::read(&forged, before.len()) else {
                    refused += 1;
                    continue;
                };
                let mut block = before.clone();
                change.apply(&mut block);
                let fixed = [0..48, 56..57, 60..62, 64..104, 112..116, 168..192];
                assert!(
                    fixed.into_iter().all(|range| block[range.clone()] == before[range]),
                    "byte {at} is {value}"
                );
            }
        }
        assert!(refused > 1000, "only {refused} were refused");
    }

    /// The bit tricks give the same as a loop, for every mask and word.
    #[test]
    fn masks_are_exact() {
        for mask in 0..=255u8 {
            let bytes: Vec<u8> =
                (0..8).map(|bit| if mask >> bit & 1 == 1 { 0xff } else { 0 }).collect();
            assert_eq!(bytes_of(mask).as_bytes(), bytes);
            for shift in [0, 3, 7] {
                let one = bytes_of(mask) & 0x0101_0101_0101_0101 << shift;
                assert_eq!(mask_of(one), mask);
            }
        }
    }
}
