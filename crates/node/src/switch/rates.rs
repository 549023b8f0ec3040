//! Rates that the flows of a whole chain or of one source share.
//!
//! Theory of operation. All packets of a chain pass its switch, whichever runtimes serve
//! the flows, so a budget is kept exactly here, and no runtime spends work on a packet
//! beyond it. A source's bucket is created by its first packet. A full bucket is equal to
//! none, so each packet of a new source checks the next few buckets, and removes full
//! ones. Sources without room for a bucket share one. A new incarnation of the switch
//! begins with full buckets, and each of several switches has its own.
//!
//! In: packets with their chain and their flow's first key, the time. Out: whether a
//! packet conforms. Never: more memory than the maximum of sources needs.

use super::limits::SwitchLimits;
use holdfast_nf::{Budget, RateLimit};
use holdfast_protection::flows::{Found, FreeSlots, KeyTable};
use holdfast_wire::{FlowKey, unmap_v4};

/// Maximum number of sources of one limit with buckets of their own.
const SOURCES: usize = 1 << 16;
/// Number of buckets that a new source's packet checks, to remove full ones.
const LOOKS: usize = 4;

#[derive(Debug, Clone, Copy)]
struct Bucket {
    source: [u8; 16],
    value: u64,
}

/// The buckets of sources.
struct Buckets {
    /// Buckets by slot, up to the highest slot ever used.
    slots: Vec<Option<Bucket>>,
    free: FreeSlots,
    table: KeyTable,
    /// The slot that was checked last.
    looked_at: usize,
}

/// A limit of a chain.
struct Meter {
    limit: RateLimit,
    /// The bucket of the chain, or of all sources without room for one.
    common: u64,
    /// The buckets of sources; `None` if all flows have the common bucket.
    buckets: Option<Buckets>,
}

/// The shared rates of a switch; see the module.
pub(super) struct Rates {
    /// Meters by chain.
    chains: Vec<Vec<Meter>>,
    seed: u64,
}

/// The prefix of a flow's source that identifies its budget.
fn source_of(key: &FlowKey, v4: u8, v6: u8) -> [u8; 16] {
    let bits = match unmap_v4(&key.source) {
        Some(_) => 96 + u32::from(v4),
        None => v6.into(),
    };
    let mask = u128::MAX.checked_shl(128u32.saturating_sub(bits)).unwrap_or(0);
    (u128::from_be_bytes(key.source) & mask).to_be_bytes()
}

impl Buckets {
    fn new() -> Buckets {
        Buckets {
            slots: Vec::with_capacity(SOURCES),
            free: FreeSlots::new(SOURCES),
            table: KeyTable::new(SOURCES),
            looked_at: 0,
        }
    }

    /// Bytes of memory for the buckets of `sources`, with a table of `table` bytes.
    fn memory_with(sources: usize, table: usize) -> usize {
        sources * size_of::<Option<Bucket>>() + table + FreeSlots::memory_of(sources)
    }

    fn memory(&self) -> usize {
        Buckets::memory_with(self.slots.len(), self.table.memory())
    }

    fn hash(source: &[u8; 16], seed: u64) -> u64 {
        FlowKey { source: *source, ..FlowKey::default() }.hash(seed)
    }

    /// The source's bucket: an existing one, or a new one that is full. `None` if there
    /// is no room.
    fn of(&mut self, source: [u8; 16], limit: &RateLimit, now: u64, seed: u64) -> Option<&mut u64> {
        let hash = Buckets::hash(&source, seed);
        let Buckets { slots, table, .. } = self;
        let is_its = |found: Found| {
            slots[found.slot as usize].as_ref().is_some_and(|bucket| bucket.source == source)
        };
        let slot = match table.find(hash, is_its) {
            Some(found) => found.slot,
            None => {
                self.remove_full(limit, now, seed);
                let Buckets { slots, free, table, .. } = self;
                let slot = free.next()?;
                if !table.insert(hash, Found { slot, is_reply: false }) {
                    return None;
                }
                free.take();
                let bucket = Some(Bucket { source, value: limit.rate.full(now) });
                match slots.get_mut(slot as usize) {
                    Some(place) => *place = bucket,
                    None => slots.push(bucket),
                }
                slot
            }
        };
        self.slots[slot as usize].as_mut().map(|bucket| &mut bucket.value)
    }

    fn remove_full(&mut self, limit: &RateLimit, now: u64, seed: u64) {
        for _ in 0..LOOKS.min(self.slots.len()) {
            self.looked_at = (self.looked_at + 1) % self.slots.len();
            let slot = self.looked_at as u32;
            let is_full = |bucket: &mut Bucket| limit.rate.is_full(bucket.value, now);
            if let Some(bucket) = self.slots[self.looked_at].take_if(is_full) {
                let hash = Buckets::hash(&bucket.source, seed);
                self.table.remove(hash, Found { slot, is_reply: false });
                self.free.put(slot);
            }
        }
    }
}

impl Meter {
    fn new(limit: RateLimit) -> Meter {
        let is_by_source = matches!(limit.budget, Budget::Source { .. });
        // The common bucket is full for the first packet: no clock is before zero.
        let common = limit.rate.full(0);
        Meter { limit, common, buckets: is_by_source.then(Buckets::new) }
    }

    fn take(&mut self, key: &FlowKey, bytes: u64, now: u64, seed: u64) -> bool {
        let bucket = match (&mut self.buckets, self.limit.budget) {
            (Some(buckets), Budget::Source { v4, v6 }) => {
                buckets.of(source_of(key, v4, v6), &self.limit, now, seed)
            }
            _ => None,
        };
        self.limit.rate.take(bucket.unwrap_or(&mut self.common), now, bytes)
    }
}

impl Rates {
    pub(super) fn new(limits: &SwitchLimits, seed: u64) -> Rates {
        let meters = |limits: &Vec<RateLimit>| limits.iter().cloned().map(Meter::new).collect();
        Rates { chains: limits.rates.iter().map(meters).collect(), seed }
    }

    /// Bytes of memory with the maximum number of sources.
    pub(super) fn memory_of(limits: &SwitchLimits) -> usize {
        let by_source = limits.rates.iter().flatten();
        let by_source = by_source.filter(|limit| matches!(limit.budget, Budget::Source { .. }));
        by_source.count() * Buckets::memory_with(SOURCES, KeyTable::memory_of(SOURCES))
    }

    /// Bytes of memory in use.
    pub(super) fn memory(&self) -> usize {
        let buckets = self.chains.iter().flatten().filter_map(|meter| meter.buckets.as_ref());
        buckets.map(Buckets::memory).sum()
    }

    /// True if a packet of this chain conforms to all its limits. The packet takes no
    /// tokens from a limit that it exceeds, but has taken tokens from the limits before.
    ///
    /// `key`: key of the flow's first packet; `bytes`: length of the IP packet; `now`:
    /// time of arrival, ns.
    #[inline]
    #[must_use]
    pub(super) fn conforms(
        &mut self,
        chain: u16,
        key: &FlowKey,
        is_reply: bool,
        bytes: u64,
        now: u64,
    ) -> bool {
        let Some(meters) = self.chains.get_mut(usize::from(chain)) else { return true };
        meters.iter_mut().all(|meter| {
            !(meter.limit.counts)(key, is_reply) || meter.take(key, bytes, now, self.seed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::num::NonZeroU64;
    use holdfast_nf::Rate;
    use holdfast_wire::map_v4;
    use std::sync::Arc;

    const MILLISECOND: u64 = 1_000_000;

    fn key(source: [u8; 4], port: u16) -> FlowKey {
        FlowKey { source: map_v4(source), source_port: port, protocol: 17, ..FlowKey::default() }
    }

    fn rates(budget: Budget, burst: u64) -> Rates {
        let per_second = NonZeroU64::new(1000).expect("not zero");
        let counts = Arc::new(|key: &FlowKey, is_reply: bool| key.source_port != 53 && !is_reply);
        let limit = RateLimit { rate: Rate::packets(per_second, burst), budget, counts };
        let limits = SwitchLimits { rates: vec![Vec::new(), vec![limit]], ..Default::default() };
        Rates::new(&limits, 7)
    }

    /// Each network of 256 addresses has one budget for all its flows. Packets that do
    /// not count, replies and other chains pass.
    #[test]
    fn each_network_has_its_budget() {
        let mut rates = rates(Budget::Source { v4: 24, v6: 64 }, 3);
        // Ten packets come from ten ports, or all from port 53.
        let mut passed = |chain: u16, source: [u8; 4], port: u16, is_reply: bool, now: u64| {
            let ports = (0..10).map(|more| if port == 53 { 53 } else { port + more });
            ports
                .filter(|port| rates.conforms(chain, &key(source, *port), is_reply, 60, now))
                .count()
        };
        let now = 1_000 * MILLISECOND;
        assert_eq!(passed(1, [10, 0, 0, 1], 1000, false, now), 3);
        assert_eq!(passed(1, [10, 0, 0, 200], 1000, false, now), 0, "of the same network");
        assert_eq!(passed(1, [10, 0, 1, 1], 1000, false, now), 3);
        assert_eq!(passed(1, [10, 0, 0, 1], 53, false, now), 10);
        assert_eq!(passed(1, [10, 0, 0, 1], 1000, true, now), 10);
        assert_eq!(passed(0, [10, 0, 0, 1], 1000, false, now), 10);
        assert_eq!(passed(1, [10, 0, 0, 1], 1000, false, now + 2 * MILLISECOND), 2);
    }

    /// All sources of a chain share its budget.
    #[test]
    fn a_chain_has_one_budget() {
        let mut rates = rates(Budget::Chain, 5);
        let now = 1_000 * MILLISECOND;
        let passed =
            (0..100).filter(|host| rates.conforms(1, &key([10, 0, 0, *host], 1), false, 60, now));
        assert_eq!(passed.count(), 5);
    }

    /// Idle sources take no room: a series of more sources than there are slots leaves
    /// few buckets behind, and each source has its budget. Sources beyond the maximum
    /// share one bucket if all send at once, and memory stays bounded.
    #[test]
    fn sources_come_and_go() {
        let mut rates = rates(Budget::Source { v4: 32, v6: 128 }, 2);
        let source = |number: u32| key(number.to_be_bytes(), 1);
        let mut send = |number: u32, now: u64| rates.conforms(1, &source(number), false, 60, now);
        for number in 0..2 * SOURCES as u32 {
            let now = u64::from(number) * 10_000;
            assert!(send(number, now) && send(number, now) && !send(number, now), "{number}");
        }
        let slots = rates.chains[1][0].buckets.as_ref().expect("by source").slots.len();
        assert!(slots < 1000, "{slots}: two packets are 2 ms, in which 200 sources come");
        let now = 1_000_000 * MILLISECOND;
        let mut send = |number: u32| rates.conforms(1, &source(number), false, 60, now);
        let passed = (0..SOURCES as u32 + 500).filter(|number| send(*number)).count();
        assert_eq!(passed, SOURCES + 2, "the last 500 share a bucket of two");
        assert!(send(5) && !send(5), "who has a bucket has its budget");
        let whole = Buckets::memory_with(SOURCES, KeyTable::memory_of(SOURCES));
        assert!(rates.memory() <= whole, "{} of {whole}", rates.memory());
    }

    /// A mask applies to the last four bytes of an IPv4 address.
    #[test]
    fn masks_are_of_the_addresss_family() {
        let v6 = FlowKey { source: [0x20; 16], ..FlowKey::default() };
        assert_eq!(source_of(&key([10, 1, 2, 3], 1), 16, 0), map_v4([10, 1, 0, 0]));
        assert_eq!(source_of(&key([10, 1, 2, 3], 1), 0, 128), map_v4([0, 0, 0, 0]));
        assert_eq!(source_of(&key([10, 1, 2, 3], 1), 32, 0), map_v4([10, 1, 2, 3]));
        assert_eq!(source_of(&v6, 32, 0), [0; 16]);
        assert_eq!(source_of(&v6, 32, 12)[..3], [0x20, 0x20, 0]);
        assert_eq!(source_of(&v6, 32, 128), [0x20; 16]);
    }
}
