//! The only source of chance in a simulated world.

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators): one
/// seed, one sequence, on every machine.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A sequence that starts from `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `low..high`; `low` if the range is empty.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        if high <= low { low } else { low + self.draw() % (high - low) }
    }

    /// True with a probability of `permille` in a thousand.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.draw() % 1000 < permille
    }
}
