//! Rate limits of packets that the box sends by itself (RFC 1812, section 4.3.2.8; RFC
//! 4443, section 2.4).

const SECOND: u64 = 1_000_000_000;

/// A token bucket, kept as the time up to which its tokens are spent: no rounding adds
/// up, and no time is too large.
#[derive(Debug)]
pub(crate) struct RateLimit {
    /// Time between two tokens, ns.
    interval: u64,
    /// Value of a full bucket, ns.
    depth: u64,
    spent: u64,
}

impl RateLimit {
    /// A bucket that gives `per_second` (not 0) in the long run, `burst` at once. The
    /// bucket starts full.
    pub(crate) fn new(per_second: u64, burst: u64) -> RateLimit {
        let interval = SECOND / per_second;
        RateLimit { interval, depth: interval * burst, spent: 0 }
    }

    /// A bucket that gives one token, and then one per `interval`, ns.
    pub(crate) fn every(interval: u64) -> RateLimit {
        RateLimit { interval, depth: interval, spent: 0 }
    }

    /// Takes a token. False if there is none.
    pub(crate) fn admit(&mut self, now: u64) -> bool {
        self.spent = self.spent.max(now);
        // `spent` runs ahead of `now` by what is missing from a full bucket.
        if self.spent - now + self.interval > self.depth {
            return false;
        }
        self.spent += self.interval;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_the_rate() {
        let mut limit = RateLimit::new(1000, 50);
        let start = 1_700_000_000 * SECOND;
        assert_eq!((0..500).filter(|_| limit.admit(start)).count(), 50);
        // Asked every 0.3 ms for a second: the remainders are not lost.
        assert_eq!((1..=3333).filter(|turn| limit.admit(start + turn * 300_000)).count(), 999);
        // A long rest earns one bucket, not more; a clock that steps back earns nothing.
        assert_eq!((0..500).filter(|_| limit.admit(start + 3600 * SECOND)).count(), 50);
        assert!(!limit.admit(start));
    }
}
