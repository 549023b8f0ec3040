//! The Internet checksum: whole (RFC 1071) and incremental (RFC 1624).

use crate::fault::{Fault, is_planted};

/// Sum of 16-bit words, not folded: add parts of even length, then [`fold`].
#[inline]
pub fn sum(bytes: &[u8]) -> u64 {
    let mut total = 0u64;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        total += u32::from_be_bytes([word[0], word[1], word[2], word[3]]) as u64;
    }
    let rest = words.remainder();
    let mut last = [0u8; 4];
    last[..rest.len()].copy_from_slice(rest);
    total + u32::from_be_bytes(last) as u64
}

/// Folds a sum into 16 bits, with end-around carry.
#[inline]
pub fn fold(mut total: u64) -> u16 {
    total = (total & 0xffff_ffff) + (total >> 32);
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    total as u16
}

/// Checksum of one piece of bytes, as an IPv4 header or an ICMP message carries it.
pub fn checksum(bytes: &[u8]) -> u16 {
    !fold(sum(bytes))
}

/// Checksum of a transport segment with its pseudo-header (RFC 9293, section 3.1; RFC
/// 8200, section 8.1). `source` and `destination` are both 4 or both 16 bytes long; the
/// checksum field in `segment` must be zero to compute, or in place to verify (the result
/// is then 0).
pub fn transport(source: &[u8], destination: &[u8], protocol: u8, segment: &[u8]) -> u16 {
    !fold(sum(source) + sum(destination) + protocol as u64 + segment.len() as u64 + sum(segment))
}

/// Collects changes of header fields, to be applied to any number of checksums that cover
/// them.
///
/// RFC 1624, equation 3: `HC' = ~(~HC + ~m + m')`, which is right also when the result is
/// zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct Delta(u64);

impl Delta {
    /// No change.
    pub fn new() -> Delta {
        Delta(0)
    }

    /// A 16-bit field, at an even offset, changed.
    #[inline]
    pub fn word(mut self, old: u16, new: u16) -> Delta {
        self.0 += (!old) as u64 + new as u64;
        self
    }

    /// A field of a multiple of 4 bytes, at an even offset, changed (an address).
    #[inline]
    pub fn bytes(mut self, old: &[u8], new: &[u8]) -> Delta {
        for (old, new) in old.chunks_exact(4).zip(new.chunks_exact(4)) {
            let old = u32::from_be_bytes([old[0], old[1], old[2], old[3]]);
            let new = u32::from_be_bytes([new[0], new[1], new[2], new[3]]);
            self.0 += (!old) as u64 + new as u64;
        }
        self
    }

    /// Both changes.
    #[inline]
    pub fn and(mut self, other: Delta) -> Delta {
        self.0 += other.0;
        self
    }

    /// The checksum after the changes.
    #[inline]
    pub fn apply(self, checksum: u16) -> u16 {
        !fold(self.0 + (!checksum) as u64)
    }

    /// The UDP checksum after the changes: 0 (none) stays 0, and a computed 0 becomes
    /// 0xffff.
    #[inline]
    pub fn apply_udp(self, checksum: u16) -> u16 {
        match checksum {
            0 => 0,
            present => match self.apply(present) {
                0 if is_planted(Fault::LosesUdpChecksums) => 0,
                0 => 0xffff,
                computed => computed,
            },
        }
    }
}
