//! Looking ahead: what records are about is brought into the cache before they are acted upon, many at a time, so that their cache misses overlap
//! instead of following one another.

use super::Lane;
use crate::channel::Arrived;
use holdfast_protection::kind;

/// Records at a time: what they lead to fits the nearest caches.
pub(super) const AHEAD: usize = 32;

/// Looks at records that are acted upon next. Of several chains it is the first one's that counts: with more the gain is smaller, and nothing else.
pub(super) fn look<'a>(lanes: &mut [Lane], records: impl Iterator<Item = (Arrived, &'a [u8])>) {
    let (mut hashes, mut count, mut chain) = ([0; AHEAD], 0, None);
    for (record, body) in records.take(AHEAD) {
        if !(1..=kind::LAST).contains(&record.kind) {
            continue;
        }
        let Some((number, body)) = body.split_first_chunk::<2>() else { continue };
        let number = u16::from_be_bytes(*number) as usize;
        let Some(lane) = lanes.get(number).filter(|_| *chain.get_or_insert(number) == number) else { continue };
        if let Some(hash) = lane.protection.flow_of(&lane.flows, record.kind, body) {
            hashes[count] = hash;
            count += 1;
        }
    }
    if let Some(lane) = chain.and_then(|chain| lanes.get_mut(chain)).filter(|_| count > 0) {
        core::hint::black_box(lane.touch(&hashes[..count]));
    }
}
