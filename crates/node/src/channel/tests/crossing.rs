//! Records across a network that loses, doubles, reorders and delays.

use super::*;
use proptest::prelude::*;

/// A network between two endpoints, ruled by a seed.
struct Network {
    random: u64,
    wire: Vec<(bool, Vec<u8>)>,
    now: u64,
}

impl Network {
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// A millisecond: half of what is under way arrives, some of it twice, some never.
    fn pass(&mut self, a: &mut Fabric, b: &mut Fabric) {
        self.now += MILLISECOND;
        let now = self.now;
        self.wire.extend(frames(a, now).into_iter().map(|frame| (true, frame)));
        self.wire.extend(frames(b, now).into_iter().map(|frame| (false, frame)));
        for _ in 0..self.wire.len().div_ceil(2) {
            let at = (self.next() % self.wire.len() as u64) as usize;
            let (to_b, frame) = self.wire.swap_remove(at);
            let copies = [0, 1, 1, 1, 2][(self.next() % 5) as usize];
            for _ in 0..copies {
                let _ =
                    if to_b { b.handle_frame(&frame, now) } else { a.handle_frame(&frame, now) };
            }
            if self.wire.is_empty() {
                break;
            }
        }
    }
}

/// The parameters of a crossing.
#[derive(Debug, Clone)]
struct Crossing {
    seed: u64,
    /// Both ends number their frames from here.
    first: u32,
    /// Rings that the ends go through meanwhile, each at its own times: empty without
    /// keys.
    rings: Vec<KeyRing>,
    buffer: usize,
    /// Each end looks into its inbox once in so many milliseconds.
    pace: u64,
}

impl Crossing {
    fn of_seed(seed: u64) -> Crossing {
        Crossing {
            seed,
            first: 1,
            rings: Vec::new(),
            buffer: FabricConfig::default().buffer,
            pace: 1,
        }
    }

    /// Sends 300 records there, and back the same way.
    fn run(&self) -> (Fabric, Fabric) {
        let config = FabricConfig { buffer: self.buffer, ..FabricConfig::default() };
        let (mut a, mut b) = pair(config, self.rings.first());
        for channel in [a.channel(B.node), b.channel(A.node)] {
            channel.start_at(self.first);
        }
        let random = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut network = Network { random, wire: Vec::new(), now: 1 };
        let (mut sent, mut got, mut back) = (0u32, 0u32, 0u32);
        let mut rings = [1, 1];
        while back < 300 {
            for _ in 0..network.next() % 20 {
                if sent < 300 {
                    let filling = vec![7; (network.next() % 900) as usize];
                    a.send(B.node, 40, &[sent.to_be_bytes().as_slice(), &filling].concat())
                        .unwrap();
                    sent += 1;
                }
            }
            network.pass(&mut a, &mut b);
            // An end may have the next ring a while before the other, but both have a key
            // in common.
            for at in 0..2 {
                if network.next().is_multiple_of(40)
                    && rings[at] < self.rings.len()
                    && rings[at] <= rings[1 - at]
                {
                    [&mut a, &mut b][at].set_keys(&self.rings[rings[at]]);
                    rings[at] += 1;
                }
            }
            assert!(
                a.inbox.len().max(b.inbox.len()) <= self.buffer * 3 / 2,
                "{self:?}: more than there is room for"
            );
            if (network.now / MILLISECOND).is_multiple_of(self.pace) {
                for record in drain(&mut b) {
                    assert_eq!(record[..4], got.to_be_bytes(), "{self:?}");
                    b.send(A.node, 40, &record).unwrap();
                    got += 1;
                }
                for record in drain(&mut a) {
                    assert_eq!(record[..4], back.to_be_bytes(), "{self:?}");
                    back += 1;
                }
            }
            assert!(
                network.now < 100_000 * MILLISECOND,
                "{self:?}: it never finished, {got} arrived and {back} came back"
            );
        }
        if !self.rings.is_empty() {
            assert!(a.is_authenticated() && b.is_authenticated());
        }
        (a, b)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Hundreds of records cross a network that loses, doubles and reorders, with keys or
    /// without, with much room or little, between ends that are quick or slow. All
    /// records arrive once, in order, and no more wait than there is room for.
    #[test]
    fn records_arrive_once_and_in_order_whatever_the_network_does(
        seed: u64, is_sealed: bool, buffer in 12_000usize..200_000, pace in 1u64..30,
    ) {
        let rings = if is_sealed { vec![ring(&[1])] } else { Vec::new() };
        Crossing { rings, buffer, pace, ..Crossing::of_seed(seed) }.run();
    }
}

/// The key is changed twice amid losses, by rings that share a key, and without any
/// delay: all records arrive.
#[test]
fn keys_change_while_records_cross() {
    for seed in 0..20 {
        let rings = [&[1][..], &[1, 2], &[2, 1], &[2], &[2, 3], &[3, 2], &[3]].map(ring).to_vec();
        Crossing { rings, ..Crossing::of_seed(seed) }.run();
    }
}

/// After four thousand million frames the numbers begin anew, at some point amid losses:
/// no end notices.
#[test]
fn a_channel_outlives_its_numbers() {
    for seed in 0..50 {
        let rings = if seed % 2 == 0 { vec![ring(&[1])] } else { Vec::new() };
        let (mut a, mut b) =
            Crossing { first: u32::MAX - seed as u32, rings, ..Crossing::of_seed(seed) }.run();
        for channel in [a.channel(B.node), b.channel(A.node)] {
            assert!(
                channel.next_sequence < 1000,
                "the numbers went on to {}",
                channel.next_sequence
            );
        }
    }
}
