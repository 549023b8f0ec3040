//! Prefetch: brings the flows of the next records into the cache, many at a time, so that
//! their cache misses overlap instead of following one another.

use crate::channel::Arrived;
use holdfast_protection::kind;
use holdfast_protection::rescue::pages::Pages;

/// Records at a time: their flows fit the nearest caches.
pub(crate) const AHEAD: usize = 32;

/// A table of a chain's flows.
pub(crate) trait OfChain {
    /// The hash of the flow that a record is about, if the record shows it.
    fn flow_of(&self, record: u8, body: &[u8]) -> Option<u64>;
    /// Brings the flows of these hashes into the cache. The value means nothing; use it
    /// so that the loads stay.
    fn touch(&mut self, hashes: &[u64]) -> u64;
}

impl OfChain for Pages {
    fn flow_of(&self, record: u8, body: &[u8]) -> Option<u64> {
        Pages::flow_of(self, record, body)
    }

    fn touch(&mut self, hashes: &[u64]) -> u64 {
        Pages::touch(self, hashes)
    }
}

/// Prefetches for the next records. `of` gives the position of the chain with a number.
/// Only records of the first record's chain count: with several chains the gain is
/// smaller.
pub(crate) fn look<'a, T: OfChain>(
    chains: &mut [T],
    of: impl Fn(&[T], u16) -> Option<usize>,
    records: impl Iterator<Item = (Arrived, &'a [u8])>,
) {
    let (mut hashes, mut count, mut first) = ([0; AHEAD], 0, None);
    for (record, body) in records.take(AHEAD) {
        if !(1..=kind::LAST).contains(&record.kind) {
            continue;
        }
        let Some((number, body)) = body.split_first_chunk::<2>() else { continue };
        let number = u16::from_be_bytes(*number);
        let Some((_, at)) = first
            .or_else(|| Some((number, of(chains, number)?)))
            .filter(|(known, _)| *known == number)
        else {
            continue;
        };
        first = Some((number, at));
        if let Some(hash) = chains[at].flow_of(record.kind, body) {
            hashes[count] = hash;
            count += 1;
        }
    }
    if let Some((_, at)) = first.filter(|_| count > 0) {
        core::hint::black_box(chains[at].touch(&hashes[..count]));
    }
}
