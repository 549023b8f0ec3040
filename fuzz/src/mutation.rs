//! Random changes to an input, the same ones for the same seed on every machine.

/// Inputs grow no longer than this, which is libFuzzer's own default.
pub const MAX_LEN: usize = 4096;

/// Bytes at the limits of arithmetic and comparisons, and bytes that text is made of.
const BYTES: &[u8] =
    b"\x00\x01\x02\x0f\x10\x20\x40\x7e\x7f\x80\x81\xc0\xf0\xfe\xff \n\t-:,.[]{}\"'#/%&*0159az";
const WORDS: &[u32] = &[
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    u32::MAX,
];
const NUMBERS: &[i128] = &[
    -1,
    0,
    1,
    31,
    32,
    33,
    128,
    129,
    255,
    256,
    1500,
    65535,
    65536,
    1 << 31,
    1 << 32,
    1 << 63,
    1 << 64,
];

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The draws of mutation `number` of a target. No draw depends on the mutations
    /// before it, so a mutation can be made again alone.
    pub fn new(seed: u64, target: &str, number: u64) -> Random {
        let start = target
            .bytes()
            .fold(Random(seed).draw(), |state, byte| Random(state ^ u64::from(byte)).draw());
        Random(Random(start ^ number).draw())
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, or 0 if the limit is 0.
    fn below(&mut self, limit: usize) -> usize {
        (self.draw() % (limit as u64).max(1)) as usize
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// The bounds of a piece, mostly a short one, of an input of `len` bytes.
    fn piece(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.below(len);
        let most = 1 << self.below(9);
        start..len.min(start + 1 + self.below(most))
    }
}

/// A way to change an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A bit of a byte is flipped.
    Flip,
    /// A byte becomes another one.
    Byte,
    /// Two or four bytes become a big-endian number from a limit.
    Word,
    /// A number in text becomes another one.
    Number,
    /// Bytes are inserted.
    Insert,
    /// A piece is deleted.
    Delete,
    /// A piece is copied to another place.
    Duplicate,
    /// A piece is replaced by a piece of another input.
    Splice,
    /// The end is cut off.
    Truncate,
}

impl Kind {
    /// Every kind. Kinds that keep an input's structure are drawn more often than kinds
    /// that break it.
    const DRAWN: [Kind; 12] = [
        Kind::Flip,
        Kind::Byte,
        Kind::Byte,
        Kind::Word,
        Kind::Number,
        Kind::Insert,
        Kind::Delete,
        Kind::Duplicate,
        Kind::Duplicate,
        Kind::Splice,
        Kind::Splice,
        Kind::Truncate,
    ];

    fn apply(self, data: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        let len = data.len();
        let at = random.below(len);
        match self {
            Kind::Flip => {
                data.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8))
            }
            Kind::Byte => {
                let value =
                    if random.below(2) == 0 { *random.pick(BYTES) } else { random.draw() as u8 };
                data.iter_mut().skip(at).take(1).for_each(|byte| *byte = value);
            }
            Kind::Word => {
                let bytes = random.pick(WORDS).to_be_bytes();
                let word = &bytes[2 * random.below(2)..];
                data.iter_mut().skip(at).zip(word).for_each(|(byte, value)| *byte = *value);
            }
            Kind::Number => {
                // The first number after a random place.
                let Some(start) = (at..len).find(|&at| data[at].is_ascii_digit()) else { return };
                let end = (start..len).find(|&at| !data[at].is_ascii_digit()).unwrap_or(len);
                data.splice(start..end, random.pick(NUMBERS).to_string().into_bytes());
            }
            Kind::Insert => {
                let (count, same) = (random.piece(len.max(1)).len(), random.below(2) == 0);
                let first = *random.pick(BYTES);
                let new: Vec<u8> =
                    (0..count).map(|_| if same { first } else { random.draw() as u8 }).collect();
                data.splice(at..at, new);
            }
            Kind::Delete => drop(data.drain(random.piece(len))),
            Kind::Duplicate => {
                let piece = data[random.piece(len)].to_vec();
                data.splice(at..at, piece);
            }
            Kind::Splice => {
                let goes = random.piece(len);
                // Half of the new pieces are as long as what they replace, so that what
                // follows keeps its place. The others have any length.
                let mut comes = random.piece(other.len());
                if random.below(2) == 0 {
                    comes.end = other.len().min(comes.start + goes.len());
                }
                data.splice(goes, other[comes].iter().copied());
            }
            Kind::Truncate => data.truncate(at),
        }
    }
}

/// An input of the corpus with one to four changes. The corpus is not empty.
pub fn mutate(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut data = random.pick(corpus).clone();
    for _ in 0..1 + random.below(4) {
        let other = random.pick(corpus);
        random.pick(&Kind::DRAWN).apply(&mut data, other, random);
        data.truncate(MAX_LEN);
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const INPUT: &[u8] = b"ports: 1024-1535, hold 50 packets";
    const OTHER: &[u8] = b"\xd1\xd2\xd3\xd4\xd5\xd6\xd7\xd8";

    /// True if this kind, and no other, could have made `after` of the input.
    fn is_the_work_of(kind: Kind, after: &[u8]) -> bool {
        let before = INPUT.iter().zip(after).take_while(|(a, b)| a == b).count();
        let behind = INPUT[before..].iter().rev().zip(after[before..].iter().rev());
        let behind = behind.take_while(|(a, b)| a == b).count();
        let gone = &INPUT[before..INPUT.len() - behind];
        let came = &after[before..after.len() - behind];
        let is_new = |byte: &u8| !INPUT.contains(byte) && !OTHER.contains(byte);
        match (kind, gone, came) {
            (Kind::Flip, [old], [new]) => (old ^ new).count_ones() == 1,
            (Kind::Byte, [old], [new]) => (old ^ new).count_ones() > 1,
            (Kind::Word, old, new) => {
                old.len() == new.len() && new.len() > 1 && new.contains(&0xff)
            }
            (Kind::Number, [b'0'..=b'9', ..], new) => {
                new.len() > 3
                    && NUMBERS.iter().any(|number| number.to_string().as_bytes().ends_with(new))
            }
            (Kind::Insert, [], new) => new.iter().any(is_new),
            (Kind::Delete, old, []) => !old.is_empty() && behind > 0,
            (Kind::Duplicate, [], new) => {
                new.len() > 1 && new.iter().all(|byte| INPUT.contains(byte))
            }
            (Kind::Splice, _, new) => OTHER.windows(2).any(|piece| new.ends_with(piece)),
            (Kind::Truncate, old, []) => old.len() > 1 && behind == 0,
            _ => false,
        }
    }

    #[test]
    fn every_kind_does_what_it_says() {
        for kind in Kind::DRAWN {
            let seen = (0..200).any(|number| {
                let mut data = INPUT.to_vec();
                kind.apply(&mut data, OTHER, &mut Random::new(1, "test", number));
                is_the_work_of(kind, &data)
            });
            assert!(seen, "{kind:?}");
        }
    }

    /// Seen from outside: `mutate` draws every kind, and each also alone.
    #[test]
    fn every_kind_is_reached() {
        let kinds: BTreeSet<Kind> = Kind::DRAWN.into_iter().collect();
        assert_eq!(kinds.len(), Kind::Truncate as usize + 1, "a kind is never drawn");
        let corpus = [INPUT.to_vec(), OTHER.to_vec()];
        let made: Vec<Vec<u8>> =
            (0..5000).map(|number| mutate(&corpus, &mut Random::new(1, "test", number))).collect();
        for kind in kinds {
            assert!(made.iter().any(|data| is_the_work_of(kind, data)), "{kind:?}");
        }
    }

    #[test]
    fn nothing_is_too_short_or_too_long() {
        let corpora =
            [vec![vec![]], vec![vec![7]], vec![vec![], vec![0; MAX_LEN]], vec![vec![0; MAX_LEN]]];
        for (corpus, number) in
            corpora.iter().flat_map(|corpus| (0..2000).map(move |number| (corpus, number)))
        {
            assert!(mutate(corpus, &mut Random::new(1, "test", number)).len() <= MAX_LEN);
        }
    }

    #[test]
    fn a_seed_says_it_all() {
        let corpus = [INPUT.to_vec(), OTHER.to_vec()];
        let made = |seed, target: &str| -> Vec<_> {
            (0..50).map(|number| mutate(&corpus, &mut Random::new(seed, target, number))).collect()
        };
        assert_eq!(made(1, "one"), made(1, "one"));
        assert_ne!(made(1, "one"), made(2, "one"), "another seed");
        assert_ne!(made(1, "one"), made(1, "two"), "another target");
        assert!(made(1, "one").iter().collect::<BTreeSet<_>>().len() > 40, "the numbers differ");
    }
}
