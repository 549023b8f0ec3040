//! Checksums against a naive sum, and incremental ones against whole ones.

use holdfast_wire::build::{self, Ends};
use holdfast_wire::checksum::{self, Delta};
use holdfast_wire::header::proto;
use proptest::prelude::*;

/// The sum of RFC 1071, section 1, word by word.
fn naive(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Pseudo-header of IPv4 and segment in one piece.
fn with_pseudo_header(
    source: [u8; 4],
    destination: [u8; 4],
    protocol: u8,
    segment: &[u8],
) -> Vec<u8> {
    let len = (segment.len() as u16).to_be_bytes();
    [&source[..], &destination, &[0, protocol], &len, segment].concat()
}

/// A change of a segment: where, and the new bytes; one 16-bit word, or a field of 4 or
/// 16 bytes.
#[derive(Debug, Clone)]
struct Edit {
    at: prop::sample::Index,
    new: Vec<u8>,
}

fn edit() -> impl Strategy<Value = Edit> {
    let extreme = |len: usize| prop::sample::select(vec![vec![0u8; len], vec![0xff; len]]);
    let new = prop_oneof![
        any::<[u8; 2]>().prop_map(Vec::from),
        any::<[u8; 4]>().prop_map(Vec::from),
        any::<[u8; 16]>().prop_map(Vec::from),
        extreme(2),
        extreme(4),
    ];
    (any::<prop::sample::Index>(), new).prop_map(|(at, new)| Edit { at, new })
}

/// Does the edit at an even offset, and notes it.
fn apply(segment: &mut [u8], edit: &Edit, delta: Delta) -> Delta {
    let len = edit.new.len();
    if segment.len() < len {
        return delta;
    }
    let at = edit.at.index((segment.len() - len) / 2 + 1) * 2;
    let place = &mut segment[at..at + len];
    let delta = match (&*place, &edit.new[..]) {
        (&[a, b], &[c, d]) => delta.word(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])),
        (old, new) => delta.bytes(old, new),
    };
    place.copy_from_slice(&edit.new);
    delta
}

fn whole_udp(segment: &[u8]) -> u16 {
    match checksum::transport(&[10, 0, 0, 1], &[10, 0, 0, 2], proto::UDP, segment) {
        0 => 0xffff,
        sum => sum,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Scenario: bytes of any number, odd ones too. Four at a time the sum comes out as
    /// word by word.
    #[test]
    fn the_sum_is_the_naive_one(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0xff)], 0..2000)) {
        prop_assert_eq!(checksum::checksum(&bytes), naive(&bytes));
    }

    /// Scenario: any segment between any ends. Its checksum covers what RFC 9293 says,
    /// and in place it verifies.
    #[test]
    fn the_pseudo_header_is_covered(source: [u8; 4], destination: [u8; 4], protocol: u8, mut segment in prop::collection::vec(any::<u8>(), 2..300)) {
        segment[..2].fill(0);
        let sum = checksum::transport(&source, &destination, protocol, &segment);
        prop_assert_eq!(sum, naive(&with_pseudo_header(source, destination, protocol, &segment)));
        segment[..2].copy_from_slice(&sum.to_be_bytes());
        prop_assert_eq!(checksum::transport(&source, &destination, protocol, &segment), 0);
        // Any single changed bit is noticed.
        segment[1] ^= 1;
        prop_assert_ne!(checksum::transport(&source, &destination, protocol, &segment), 0);
    }

    /// Scenario: a segment is edited any number of times, at any even offsets,
    /// overlapping or not. A single delta gives the checksum of a whole recomputation.
    #[test]
    fn a_delta_is_a_whole_recomputation(mut segment in prop::collection::vec(any::<u8>(), 2..200), edits in prop::collection::vec(edit(), 0..8)) {
        let sum = |segment: &[u8]| checksum::transport(&[10, 0, 0, 1], &[10, 0, 0, 2], proto::TCP, segment);
        let before = sum(&segment);
        let delta = edits.iter().fold(Delta::new(), |delta, edit| apply(&mut segment, edit, delta));
        prop_assert_eq!(delta.apply(before), sum(&segment));
    }

    /// Scenario: two deltas, one for addresses and one for ports. Together they are both,
    /// in either order.
    #[test]
    fn deltas_add_up(mut segment in prop::collection::vec(any::<u8>(), 16..64), a in edit(), b in edit()) {
        let before = checksum::transport(&[10, 0, 0, 1], &[10, 0, 0, 2], proto::TCP, &segment);
        let first = apply(&mut segment, &a, Delta::new());
        let second = apply(&mut segment, &b, Delta::new());
        let whole = checksum::transport(&[10, 0, 0, 1], &[10, 0, 0, 2], proto::TCP, &segment);
        prop_assert_eq!(first.and(second).apply(before), whole);
        prop_assert_eq!(second.and(first).apply(before), whole);
    }

    /// Scenario: a UDP datagram is edited, and the last edit is such that its sum comes
    /// to zero or not. A checksum that is there stays there, right, and is never zero;
    /// none stays none.
    #[test]
    fn udp_has_no_checksum_or_a_right_one(
        mut segment in prop::collection::vec(any::<u8>(), 8..100), edits in prop::collection::vec(edit(), 0..4), (from_zero, to_zero) in any::<(bool, bool)>(),
    ) {
        if segment.len() % 2 == 1 {
            segment.pop();
        }
        // A last word that makes the checksum come to zero.
        let balance = |segment: &mut [u8]| {
            let at = segment.len() - 2;
            let old = u16::from_be_bytes([segment[at], segment[at + 1]]);
            segment[at..].fill(0);
            let word = checksum::transport(&[10, 0, 0, 1], &[10, 0, 0, 2], proto::UDP, segment);
            segment[at..].copy_from_slice(&word.to_be_bytes());
            Delta::new().word(old, word)
        };
        if from_zero {
            balance(&mut segment);
        }
        let before = whole_udp(&segment);
        let mut delta = edits.iter().fold(Delta::new(), |delta, edit| apply(&mut segment, edit, delta));
        if to_zero {
            delta = delta.and(balance(&mut segment));
            prop_assert_eq!(whole_udp(&segment), 0xffff);
        }
        prop_assert_eq!(delta.apply_udp(before), whole_udp(&segment));
        prop_assert_eq!(delta.apply_udp(0), 0);
    }
}

#[test]
fn a_datagram_whose_sum_is_zero_is_built_with_all_ones() {
    // Scenario: of all datagrams with one data word, the one whose checksum comes to zero
    // is sent with 0xffff, over IPv4 and IPv6.
    for ends in [Ends::V4([10, 0, 0, 1], [10, 0, 0, 2]), Ends::V6([1; 16], [2; 16])] {
        let build = |word: u16| {
            let mut datagram = [0; 10];
            datagram[8..].copy_from_slice(&word.to_be_bytes());
            build::Udp { source: 1, destination: 2 }.write(&mut datagram, &ends).expect("it fits");
            u16::from_be_bytes([datagram[6], datagram[7]])
        };
        // With no data the checksum is what the word has to be.
        let word = build(0);
        assert_eq!(build(word), 0xffff);
        assert_eq!(build(word - 1), 1);
        assert!((0..=u16::MAX).all(|word| build(word) != 0));
    }
}
