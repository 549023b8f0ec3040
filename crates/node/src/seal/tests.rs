//! Hosts that have announced their seals to each other, and attacks of a network on their
//! packets.

use super::*;
use crate::channel::Key;
use holdfast_wire::nsh::{self, Outer, index};
use holdfast_wire::{HEADROOM, MemoryPool, PacketPool};
use proptest::prelude::*;

const TIMEOUT: u64 = 600;
const SIZES: [usize; 4] = [0, 1, 64, 1400];

fn ring(numbers: &[u8]) -> KeyRing {
    KeyRing::new(
        numbers.iter().map(|number| Key { number: *number, secret: [*number; 32] }).collect(),
    )
    .unwrap()
}

fn config(host: u16, incarnation: u32) -> SealConfig {
    let life = NonZeroU64::new(u64::from(incarnation) << 32 | u64::from(host) << 8 | 1).unwrap();
    SealConfig { cluster: 7, host, hosts: 3, incarnation, life, timeout: TIMEOUT }
}

fn seal(host: u16, incarnation: u32, numbers: &[u8]) -> HostSeal {
    HostSeal::new(config(host, incarnation), &ring(numbers))
}

/// Delivers an announcement to another host.
fn announce(from: &HostSeal, to: &mut HostSeal, now: u64) {
    to.handle_announced(from.config.host, from.config.incarnation, from.announcement(), now);
}

/// Two hosts that have announced their seals to each other.
fn pair() -> (HostSeal, HostSeal) {
    let (mut a, mut b) = (seal(0, 1, &[1]), seal(1, 1, &[1]));
    announce(&a, &mut b, 0);
    announce(&b, &mut a, 0);
    (a, b)
}

struct Bench {
    pool: MemoryPool,
}

impl Bench {
    fn new() -> Bench {
        Bench { pool: MemoryPool::new(4) }
    }

    fn packet(&mut self, frame: &[u8]) -> Packet {
        let mut packet = self.pool.take().unwrap();
        assert!(packet.copy_from(frame));
        packet
    }

    /// A packet as a runtime hands it on.
    fn plain(&mut self, len: usize) -> Vec<u8> {
        let mut packet = self.packet(&(0..len).map(|at| at as u8).collect::<Vec<_>>());
        let outer = Outer {
            destination: [2, 0x48, 0x46, 0, 0, 2],
            source: [2, 0x48, 0x46, 1, 0, 16],
            index: index::RELEASED,
        };
        assert!(nsh::encapsulate(&mut packet, outer));
        self.end(packet)
    }

    fn end(&mut self, packet: Packet) -> Vec<u8> {
        let bytes = packet.bytes().to_vec();
        self.pool.put(packet);
        bytes
    }

    fn seal(&mut self, from: &mut HostSeal, plain: &[u8]) -> Vec<u8> {
        let mut packet = self.packet(plain);
        assert!(from.seal(&mut packet));
        self.end(packet)
    }

    fn open(&mut self, at: &mut HostSeal, sealed: &[u8]) -> Result<Vec<u8>, DropReason> {
        let mut packet = self.packet(sealed);
        let opened = at.open(&mut packet);
        let bytes = self.end(packet);
        opened.map(|()| bytes)
    }
}

/// A packet arrives as it was sent, byte for byte, and cannot be read on the way.
#[test]
fn what_was_sealed_opens() {
    let (mut a, mut b) = pair();
    let mut bench = Bench::new();
    for len in SIZES {
        let plain = bench.plain(len);
        let sealed = bench.seal(&mut a, &plain);
        assert_eq!(sealed.len(), plain.len() + SEAL_LEN);
        assert!(is_sealed(&sealed) && !is_sealed(&plain));
        assert_eq!(sealed[..MACS_LEN], plain[..MACS_LEN], "the network delivers by the addresses");
        assert!(
            len < 64 || !sealed.windows(16).any(|part| part == &plain[plain.len() - 16..]),
            "{len} bytes can be read"
        );
        assert_eq!(bench.open(&mut b, &sealed), Ok(plain));
    }
}

/// Two equal packets are sealed differently.
#[test]
fn no_two_are_sealed_alike() {
    let (mut a, _) = pair();
    let mut bench = Bench::new();
    let plain = bench.plain(64);
    let (first, second) = (bench.seal(&mut a, &plain), bench.seal(&mut a, &plain));
    assert_ne!(first[BODY..], second[BODY..]);
}

/// A single bit is flipped: in each field, in the addresses, in the tag and in the sealed
/// bytes.
#[test]
fn a_flipped_bit_is_found_wherever_it_is() {
    let (mut a, mut b) = pair();
    let mut bench = Bench::new();
    let plain = bench.plain(40);
    let sealed = bench.seal(&mut a, &plain);
    // Offsets: addresses 0, EtherType 12, magic 14, version 16, key 17, host 18, cluster
    // 20, incarnation 24, life 28, counter 36, tag 44, body 60.
    for byte in 0..sealed.len() {
        for bit in 0..8 {
            let mut flipped = sealed.clone();
            flipped[byte] ^= 1 << bit;
            let reason = bench.open(&mut b, &flipped).expect_err("it was not sealed so");
            let expected: &[DropReason] = match byte {
                12..=16 => &[DropReason::Malformed],
                17 => &[DropReason::UnknownKey],
                // The receiver itself, a host that does not exist, and one that was not
                // heard.
                18..=19 => &[DropReason::UnknownHost, DropReason::Unannounced],
                20..=23 => &[DropReason::WrongCluster],
                24..=35 => &[DropReason::Unannounced, DropReason::OldLife],
                36..=43 => &[DropReason::Unauthenticated, DropReason::Replayed],
                _ => &[DropReason::Unauthenticated],
            };
            assert!(expected.contains(&reason), "byte {byte}, bit {bit}: {reason}");
        }
    }
    assert_eq!(
        bench.open(&mut b, &sealed),
        Ok(plain),
        "nothing of that counts against the packet itself"
    );
}

/// The packet ends too early, at every byte, or is too long.
#[test]
fn a_packet_of_another_length_is_refused() {
    let (mut a, mut b) = pair();
    let mut bench = Bench::new();
    let plain = bench.plain(40);
    let sealed = bench.seal(&mut a, &plain);
    for len in 0..sealed.len() {
        let expected =
            if len < BODY + 2 { DropReason::Truncated } else { DropReason::Unauthenticated };
        assert_eq!(bench.open(&mut b, &sealed[..len]), Err(expected), "{len} bytes");
    }
    let longer = [&sealed[..], &[0]].concat();
    assert_eq!(bench.open(&mut b, &longer), Err(DropReason::Unauthenticated));
    assert_eq!(bench.open(&mut b, &sealed), Ok(plain));
}

/// Senders with another key under the same number, a key under another number, or of
/// another cluster.
#[test]
fn who_does_not_belong_here_is_not_heard() {
    let mut bench = Bench::new();
    let plain = bench.plain(64);
    let mut b = seal(1, 1, &[1]);
    let forger = KeyRing::new(vec![Key { number: 1, secret: [9; 32] }]).unwrap();
    let other = SealConfig { cluster: 8, ..config(0, 1) };
    let strange = SealConfig { host: 3, hosts: 4, ..config(0, 1) };
    announce(&seal(0, 1, &[1]), &mut b, 0);
    for (mut from, reason) in [
        (HostSeal::new(config(0, 1), &forger), DropReason::Unauthenticated),
        (seal(0, 1, &[2]), DropReason::UnknownKey),
        (HostSeal::new(other, &ring(&[1])), DropReason::WrongCluster),
        (HostSeal::new(strange, &ring(&[1])), DropReason::UnknownHost),
        (seal(2, 1, &[1]), DropReason::Unannounced),
        (seal(0, 2, &[1]), DropReason::Unannounced),
    ] {
        let sealed = bench.seal(&mut from, &plain);
        assert_eq!(bench.open(&mut b, &sealed), Err(reason));
    }
    // The host's own packets, sent back to it.
    let reflected = bench.seal(&mut b, &plain);
    assert_eq!(bench.open(&mut b, &reflected), Err(DropReason::UnknownHost));
}

/// A frame that is no packet between hosts was sealed. Messages have a seal of their own,
/// and other frames are for no host here.
#[test]
fn only_packets_are_sealed() {
    let (mut a, mut b) = pair();
    let mut bench = Bench::new();
    let mut plain = bench.plain(64);
    plain[12..14].copy_from_slice(&ETHERTYPE_FABRIC.to_be_bytes());
    let sealed = bench.seal(&mut a, &plain);
    assert_eq!(bench.open(&mut b, &sealed), Err(DropReason::Malformed));
}

/// Packets come in any order within the window: each is taken once, however often it is
/// replayed.
#[test]
fn a_packet_counts_once_whatever_the_order() {
    let (mut a, mut b) = pair();
    let mut bench = Bench::new();
    let plain = bench.plain(64);
    let mut sealed: Vec<_> = (0..100).map(|_| bench.seal(&mut a, &plain)).collect();
    sealed.reverse();
    sealed.swap(3, 70);
    for frame in &sealed {
        assert_eq!(bench.open(&mut b, frame).as_ref(), Ok(&plain));
        assert_eq!(bench.open(&mut b, frame), Err(DropReason::Replayed));
    }
    assert!(sealed.iter().all(|frame| bench.open(&mut b, frame) == Err(DropReason::Replayed)));
}

/// Keys change as the ring says: the next behind the current one everywhere, then in
/// front, then alone. A packet is opened between any two steps.
#[test]
fn keys_change_and_no_packet_is_lost() {
    let (mut a, mut b) = pair();
    let mut bench = Bench::new();
    let plain = bench.plain(64);
    let mut late = None;
    for (for_a, for_b) in [
        (&[1, 2][..], &[1][..]),
        (&[1, 2], &[1, 2]),
        (&[2, 1], &[1, 2]),
        (&[2, 1], &[2, 1]),
        (&[2], &[2, 1]),
        (&[2], &[2]),
    ] {
        a.set_keys(&ring(for_a));
        b.set_keys(&ring(for_b));
        for _ in 0..3 {
            let (there, back) = (bench.seal(&mut a, &plain), bench.seal(&mut b, &plain));
            assert_eq!(bench.open(&mut b, &there).as_ref(), Ok(&plain), "{for_a:?} {for_b:?}");
            assert_eq!(bench.open(&mut a, &back).as_ref(), Ok(&plain), "{for_a:?} {for_b:?}");
            assert_eq!(
                bench.open(&mut b, &there),
                Err(DropReason::Replayed),
                "a change of keys forgets nothing"
            );
        }
        late.get_or_insert_with(|| bench.seal(&mut a, &plain));
    }
    assert_eq!(bench.open(&mut b, &late.unwrap()), Err(DropReason::UnknownKey));
}

/// Keys go to and fro: the count goes on, and no nonce comes twice under a key.
#[test]
fn a_change_of_keys_does_not_set_the_count_back() {
    let (mut a, _) = pair();
    let mut bench = Bench::new();
    let plain = bench.plain(64);
    let mut seen = std::collections::HashSet::new();
    for numbers in [[1, 2], [2, 1], [1, 2], [2, 1]] {
        a.set_keys(&ring(&numbers));
        for _ in 0..5 {
            let sealed = bench.seal(&mut a, &plain);
            assert!(seen.insert(sealed[36..44].to_vec()));
        }
    }
}

/// The sender is started again: its new incarnation is not heard before it is announced,
/// and the old one is not afterwards, whichever of its packets are replayed.
#[test]
fn an_old_incarnation_is_not_heard_again() {
    let (mut a, mut b) = pair();
    let mut bench = Bench::new();
    let plain = bench.plain(64);
    let recorded: Vec<_> = (0..5).map(|_| bench.seal(&mut a, &plain)).collect();
    assert!(bench.open(&mut b, &recorded[0]).is_ok());
    let mut next = seal(0, 2, &[1]);
    let first = bench.seal(&mut next, &plain);
    assert_eq!(bench.open(&mut b, &first), Err(DropReason::Unannounced));
    announce(&next, &mut b, 10);
    assert!(recorded.iter().all(|frame| bench.open(&mut b, frame) == Err(DropReason::OldLife)));
    assert_eq!(
        bench.open(&mut b, &first),
        Err(DropReason::Replayed),
        "it was sealed before the announcement"
    );
    let second = bench.seal(&mut next, &plain);
    assert_eq!(bench.open(&mut b, &second), Ok(plain));
    // A late announcement of the old incarnation changes nothing.
    announce(&a, &mut b, 20);
    assert!(recorded.iter().all(|frame| bench.open(&mut b, frame) == Err(DropReason::OldLife)));
}

/// Two incarnations of one host seal under different keys although they count alike, also
/// where their number is the same because a state directory was lost.
#[test]
fn incarnations_of_a_host_have_keys_of_their_own() {
    let mut bench = Bench::new();
    let plain = bench.plain(64);
    let mut first = seal(0, 1, &[1]);
    let mut again = HostSeal::new(
        SealConfig { life: NonZeroU64::new(99).unwrap(), ..config(0, 1) },
        &ring(&[1]),
    );
    let (one, other) = (bench.seal(&mut first, &plain), bench.seal(&mut again, &plain));
    assert_eq!(one[36..44], other[36..44]);
    assert_ne!(one[BODY..], other[BODY..]);
    // The last announcement says which of them is there now.
    let mut b = seal(1, 1, &[1]);
    announce(&first, &mut b, 0);
    announce(&again, &mut b, 0);
    let late = bench.seal(&mut first, &plain);
    assert_eq!(bench.open(&mut b, &late), Err(DropReason::OldLife));
}

/// The receiver is started again and knows nothing. Packets recorded before its
/// announcement are refused, packets sent from then on are taken.
#[test]
fn a_new_receiver_begins_behind_what_was_sent() {
    let (mut a, mut b) = pair();
    let mut bench = Bench::new();
    let plain = bench.plain(64);
    let recorded: Vec<_> = (0..5).map(|_| bench.seal(&mut a, &plain)).collect();
    assert!(recorded.iter().take(3).all(|frame| bench.open(&mut b, frame).is_ok()));
    let mut next = seal(1, 2, &[1]);
    assert!(
        recorded.iter().all(|frame| bench.open(&mut next, frame) == Err(DropReason::Unannounced))
    );
    announce(&a, &mut next, 0);
    assert!(recorded.iter().all(|frame| bench.open(&mut next, frame) == Err(DropReason::Replayed)));
    let fresh = bench.seal(&mut a, &plain);
    assert_eq!(bench.open(&mut next, &fresh), Ok(plain));
}

/// An attacker keeps a packet back. Soon it is only late; after an announcement that is a
/// time-out old it is refused. The receiver's clock alone counts.
#[test]
fn what_was_kept_back_for_long_is_refused() {
    let mut bench = Bench::new();
    let plain = bench.plain(64);
    let (mut a, mut b) = pair();
    let kept: Vec<_> = (0..2).map(|_| bench.seal(&mut a, &plain)).collect();
    announce(&a, &mut b, TIMEOUT);
    announce(&a, &mut b, 2 * TIMEOUT - 1);
    assert_eq!(bench.open(&mut b, &kept[0]).as_ref(), Ok(&plain));
    announce(&a, &mut b, 2 * TIMEOUT);
    assert_eq!(bench.open(&mut b, &kept[1]), Err(DropReason::Replayed));
    // A host that was cut off for long continues with its count.
    let fresh = bench.seal(&mut a, &plain);
    announce(&a, &mut b, 900 * TIMEOUT);
    assert_eq!(bench.open(&mut b, &fresh), Ok(plain));
}

/// A packet without room in front of it cannot be sealed, and stays as it is.
#[test]
fn no_room_is_no_seal() {
    let (mut a, _) = pair();
    let mut bench = Bench::new();
    let plain = bench.plain(64);
    let mut packet = bench.packet(&plain);
    assert!(packet.push_front(HEADROOM - SEAL_LEN + 1).is_some());
    let before = packet.bytes().to_vec();
    assert!(!a.seal(&mut packet));
    assert_eq!((packet.bytes(), a.announcement().1), (&before[..], 0));
    bench.pool.put(packet);
}

/// A host refuses announcements of itself, and of a host that does not exist.
#[test]
fn nobody_announces_this_host_or_one_that_is_not_there() {
    let (mut a, _) = pair();
    for host in [0, 3, u16::MAX] {
        a.handle_announced(host, 9, (9, 9), 9);
    }
    assert!(a.senders[0].is_none());
}

proptest! {
    /// Any bytes, and any bytes behind a right header, are refused.
    #[test]
    fn nothing_made_up_opens(bytes in proptest::collection::vec(any::<u8>(), 0..200), keep in 0usize..BODY) {
        let (mut a, mut b) = pair();
        let mut bench = Bench::new();
        prop_assert!(bench.open(&mut b, &bytes).is_err());
        let plain = bench.plain(64);
        let mut forged = bench.seal(&mut a, &plain);
        forged.truncate(keep);
        forged.extend_from_slice(&bytes);
        prop_assert!(bench.open(&mut b, &forged).is_err());
    }
}
