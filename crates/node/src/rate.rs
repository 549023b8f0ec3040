//! Limits of packets that the box sends by itself (RFC 1812, section 4.3.2.8; RFC 4443,
//! section 2.4).

use core::num::NonZeroU64;
use holdfast_nf::Rate;

/// A token bucket with its rate.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    rate: Rate,
    bucket: u64,
}

impl TokenBucket {
    /// A full bucket that gives `per_second`, also all at once.
    pub(crate) fn per_second(per_second: NonZeroU64) -> TokenBucket {
        TokenBucket::of(Rate::packets(per_second, per_second.get()))
    }

    /// A bucket that gives one token, and then one per `interval`, ns.
    pub(crate) fn every(interval: u64) -> TokenBucket {
        TokenBucket::of(Rate::every(interval))
    }

    fn of(rate: Rate) -> TokenBucket {
        TokenBucket { rate, bucket: rate.full(0) }
    }

    /// Takes a token. False if there is none.
    pub(crate) fn admit(&mut self, now: u64) -> bool {
        self.rate.take(&mut self.bucket, now, 0)
    }
}
