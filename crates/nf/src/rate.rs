//! Rates with a burst, kept by token buckets.
//!
//! Theory of operation. A bucket is one number: the time at which it will be full again
//! (the theoretical arrival time of the generic cell rate algorithm, ITU-T I.371, annex
//! A). A packet moves that time by its cost at the rate, and conforms if the bucket is
//! then at most a burst from full. A packet that does not conform leaves the bucket
//! unchanged. The outcome depends on the number and the packet's timestamp alone, so a
//! bucket may be part of a flow's state: a replay gives the same outcome.

use core::num::NonZeroU64;
use holdfast_wire::FlowKey;
use std::sync::Arc;

/// Ticks per nanosecond; buckets count in ticks.
const TICKS: u64 = 16;
/// Fractional bits of a unit's cost in ticks.
const PLACES: u32 = 16;

/// The quantity that a rate limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Metered {
    /// Bytes of IP packets, without the link's headers, as meters count (RFC 2697,
    /// section 2).
    Bytes,
    /// Packets, of any length.
    Packets,
}

/// A rate and its burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    metered: Metered,
    /// Cost of a unit in ticks, times 2^`PLACES`.
    unit: u64,
    /// Ticks from empty to full.
    burst: u64,
}

impl Rate {
    /// A rate of `per_second` bits, with a burst of `burst` bytes.
    pub fn bits(per_second: NonZeroU64, burst: u64) -> Rate {
        Rate::new(Metered::Bytes, 8, per_second, burst)
    }

    /// A rate of `per_second` packets, with a burst of `burst` packets.
    pub fn packets(per_second: NonZeroU64, burst: u64) -> Rate {
        Rate::new(Metered::Packets, 1, per_second, burst)
    }

    /// A rate of one packet per `interval`, ns; at most 2^44 (about five hours).
    pub fn every(interval: u64) -> Rate {
        let most = u64::MAX >> PLACES >> TICKS.ilog2();
        let unit = (interval.min(most) * TICKS) << PLACES;
        Rate { metered: Metered::Packets, unit, burst: cost(unit, 1) }
    }

    /// A rate of `per_second` parts; a unit has `parts` of them.
    fn new(metered: Metered, parts: u64, per_second: NonZeroU64, burst: u64) -> Rate {
        let second = u128::from(parts * 1_000_000_000 * TICKS) << PLACES;
        let unit = second.div_ceil(u128::from(per_second.get()));
        let unit = u64::try_from(unit).unwrap_or(u64::MAX);
        Rate { metered, unit, burst: cost(unit, burst) }
    }

    /// A full bucket.
    #[inline]
    pub fn full(&self, now: u64) -> u64 {
        now.wrapping_mul(TICKS)
    }

    /// True if the bucket is full, and so equal to a new one.
    #[inline]
    pub fn is_full(&self, bucket: u64, now: u64) -> bool {
        self.missing(bucket, now) == 0
    }

    /// Ticks until the bucket is full.
    #[inline]
    fn missing(&self, bucket: u64, now: u64) -> u64 {
        let missing = bucket.wrapping_sub(self.full(now));
        // A difference above the burst means that the bucket's time is past, or that the
        // clock has gone back.
        if missing > self.burst { 0 } else { missing }
    }

    /// Takes a packet's cost out of the bucket. False if the packet does not conform; the
    /// bucket is then unchanged.
    ///
    /// `now`: the packet's timestamp, ns; `bytes`: length of the IP packet.
    #[inline]
    #[must_use]
    pub fn take(&self, bucket: &mut u64, now: u64, bytes: u64) -> bool {
        let amount = if self.metered == Metered::Bytes { bytes } else { 1 };
        let missing = self.missing(*bucket, now).saturating_add(cost(self.unit, amount));
        let conforms = missing <= self.burst;
        if conforms {
            *bucket = self.full(now).wrapping_add(missing);
        }
        conforms
    }
}

/// Cost of `amount` units in ticks, at most a quarter of the range, so that sums and
/// differences of two fit.
#[inline]
fn cost(unit: u64, amount: u64) -> u64 {
    let ticks = (u128::from(unit) * u128::from(amount)) >> PLACES;
    u64::try_from(ticks).unwrap_or(u64::MAX).min(u64::MAX / 4)
}

/// The flows that share a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// All flows of the chain.
    Chain,
    /// Flows that were opened from addresses with a common prefix.
    Source {
        /// Prefix length of IPv4 addresses, at most 32.
        v4: u8,
        /// Prefix length of IPv6 addresses, at most 128.
        v6: u8,
    },
}

/// True if a packet counts. The arguments are the key with which its flow's first packet
/// came in, and true for the reverse direction. The result must depend on the arguments
/// alone.
pub type CountedPackets = dyn Fn(&FlowKey, bool) -> bool + Send + Sync;

/// A rate that many flows share. The switch enforces it, because all their packets pass
/// there, whichever runtimes serve the flows.
#[derive(Clone)]
pub struct RateLimit {
    /// The rate of all flows that share a bucket, together.
    pub rate: Rate,
    /// The flows that share a bucket.
    pub budget: Budget,
    /// The packets that count.
    pub counts: Arc<CountedPackets>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn per_second(number: u64) -> NonZeroU64 {
        NonZeroU64::new(number).expect("not zero")
    }

    /// Number of packets of `bytes` that pass in `millis` ms, if one arrives every `gap`
    /// ns.
    fn passed(rate: Rate, bytes: u64, millis: u64, gap: usize, start: u64) -> u64 {
        let mut bucket = rate.full(start);
        let stamps = (start..start + millis * SECOND / 1000).step_by(gap);
        stamps.filter(|now| rate.take(&mut bucket, *now, bytes)).count() as u64
    }

    /// A burst and then the rate pass, within a thousandth, at slow and fast rates, from
    /// any start.
    #[test]
    fn a_burst_and_then_the_rate_pass() {
        for start in [0, 1_764_000_000 * SECOND, u64::MAX / TICKS - SECOND] {
            for (bits, bytes, millis, gap) in [
                (8_000, 100, 20_000, 1_000_000),
                (10_000_000, 1500, 3000, 10_000),
                (10_000_000_000, 64, 10, 20),
                (100_000_000_000, 1500, 10, 50),
            ] {
                let rate = Rate::bits(per_second(bits), 10 * bytes);
                let meant = 10 + bits / 8 * millis / 1000 / bytes;
                let passed = passed(rate, bytes, millis, gap, start);
                assert!(passed.abs_diff(meant) <= 1 + meant / 1000, "{bits}: {passed} of {meant}");
            }
            let rate = Rate::packets(per_second(1000), 50);
            assert!(passed(rate, 1500, 2000, 100_000, start).abs_diff(2050) <= 1);
        }
    }

    /// A first packet passes, and then one per interval, however long the interval is.
    #[test]
    fn one_passes_per_interval() {
        for interval in [1, 1000, 10 * SECOND] {
            let rate = Rate::every(interval);
            let mut bucket = rate.full(0);
            for start in [7 * SECOND, 7 * SECOND + interval, 9000 * SECOND] {
                assert!(rate.take(&mut bucket, start, 60));
                assert!(!rate.take(&mut bucket, start + interval - 1, 60), "{interval}");
            }
        }
        assert!(Rate::every(u64::MAX).take(&mut 0, SECOND, 60), "the slowest one");
    }

    /// A packet that does not conform leaves the bucket unchanged: a smaller one after it
    /// may conform.
    #[test]
    fn what_does_not_pass_costs_nothing() {
        let rate = Rate::bits(per_second(8), 100);
        let mut bucket = rate.full(5);
        assert!(rate.take(&mut bucket, 5, 60));
        assert!((0..1000).all(|_| !rate.take(&mut bucket, 5, 41)));
        assert!(rate.take(&mut bucket, 5, 40) && !rate.take(&mut bucket, 5, 1));
        assert!(!rate.is_full(bucket, 99 * SECOND) && rate.is_full(bucket, 101 * SECOND));
        assert!(rate.take(&mut bucket, 5 + SECOND, 1), "one byte per second");
    }

    /// An idle bucket holds no more than its burst, and is full if the clock goes back.
    #[test]
    fn a_bucket_holds_a_burst_and_no_more() {
        let rate = Rate::packets(per_second(10), 3);
        let mut bucket = rate.full(0);
        for now in [0, SECOND, 1_000_000 * SECOND, 7, 5 * SECOND] {
            let passed = (0..100).filter(|_| rate.take(&mut bucket, now, 60)).count();
            assert_eq!(passed, 3, "at {now}");
        }
    }

    /// The slowest rate and the largest burst do not overflow.
    #[test]
    fn extremes_are_harmless() {
        for rate in [Rate::bits(per_second(1), u64::MAX), Rate::packets(per_second(1), u64::MAX)] {
            let mut bucket = rate.full(u64::MAX - 1);
            assert!(rate.take(&mut bucket, u64::MAX - 1, 65_535));
        }
        let fast = Rate::bits(per_second(u64::MAX), 1);
        let mut bucket = fast.full(0);
        assert!(fast.take(&mut bucket, 0, 1));
    }
}
