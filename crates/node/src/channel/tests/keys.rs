//! Sealed frames, and senders without a key.

use super::*;
use proptest::prelude::*;

/// Two endpoints with a key that have spoken, and a frame under way from the first to the
/// second.
fn under_way() -> (Fabric, Fabric, Vec<u8>) {
    let (mut a, mut b) = pair(FabricConfig::default(), Some(&ring(&[1])));
    a.send(B.node, 40, b"first").unwrap();
    settle(&mut a, &mut b, 1);
    assert_eq!(drain(&mut b), [b"first"]);
    a.send(B.node, 40, b"a secret record").unwrap();
    let frame = frames(&mut a, 2).remove(0);
    (a, b, frame)
}

/// Everything that an endpoint would do next and later: two endpoints that agree in it
/// are in the same state as far as can be seen.
fn state(fabric: &Fabric) -> String {
    let channels: Vec<_> = fabric
        .channels
        .iter()
        .map(|channel| {
            let flight: Vec<_> = channel
                .flight
                .iter()
                .map(|sent| (sent.sequence, sent.tries, sent.is_due, sent.arrived))
                .collect();
            (
                channel.destination(),
                channel.next_sequence,
                channel.expected,
                flight,
                channel.acknowledge,
                channel.backoff,
            )
        })
        .collect();
    format!(
        "{channels:?} {:?} {:?} {:?}",
        fabric.questions,
        fabric.inbox.len(),
        fabric.poll_timeout()
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A single bit of a sealed frame is flipped, anywhere after the Ethernet header: the
    /// frame is refused, and nothing has changed.
    #[test]
    fn a_frame_with_any_bit_flipped_changes_nothing(place: prop::sample::Index, bit in 0u8..8) {
        let (_, mut b, mut frame) = under_way();
        let before = state(&b);
        let at = ETHERNET_LEN + place.index(frame.len() - ETHERNET_LEN);
        frame[at] ^= 1 << bit;
        prop_assert!(b.handle_frame(&frame, 3).is_err(), "byte {} bit {}", at, bit);
        prop_assert_eq!(state(&b), before);
        prop_assert!(drain(&mut b).is_empty());
    }

    /// A frame is cut anywhere: it is refused, and nothing has changed.
    #[test]
    fn a_sealed_frame_cut_anywhere_changes_nothing(place: prop::sample::Index) {
        let (_, mut b, frame) = under_way();
        let before = state(&b);
        prop_assert!(b.handle_frame(&frame[..place.index(frame.len())], 3).is_err());
        prop_assert_eq!(state(&b), before);
    }
}

/// A listener reads a sealed frame: the record is not in it.
#[test]
fn a_sealed_frame_hides_its_records() {
    let (_, mut b, frame) = under_way();
    assert!(!frame.windows(6).any(|window| window == b"secret"));
    b.handle_frame(&frame, 3).unwrap();
    assert_eq!(drain(&mut b), [b"a secret record"]);
}

/// A frame is recorded and played back, at once and after thousands of others: it is
/// refused each time as a replay, also if it only acknowledges.
#[test]
fn a_frame_played_back_is_refused() {
    let (mut a, mut b, frame) = under_way();
    b.handle_frame(&frame, 3).unwrap();
    let acknowledgement = frames(&mut b, 3).remove(0);
    a.handle_frame(&acknowledgement, 3).unwrap();
    drain(&mut b);
    for round in 0..5000 {
        let before = (state(&a), state(&b));
        assert_eq!(b.handle_frame(&frame, 4), Err(DropReason::Replayed), "after {round} frames");
        assert_eq!(
            a.handle_frame(&acknowledgement, 4),
            Err(DropReason::Replayed),
            "after {round} frames"
        );
        assert_eq!((state(&a), state(&b)), before);
        a.send(B.node, 40, b"another").unwrap();
        settle(&mut a, &mut b, 4);
        drain(&mut b);
    }
}

/// A lost frame is repeated: it is sealed anew, so that no number is used for two frames.
#[test]
fn a_repeated_frame_is_sealed_anew() {
    let (mut a, mut b, lost) = under_way();
    let now = a.poll_timeout().unwrap();
    let again = frames(&mut a, now).remove(0);
    let counter =
        |frame: &[u8]| Header::ref_from_prefix(&frame[ETHERNET_LEN..]).unwrap().0.counter.get();
    assert!(counter(&again) > counter(&lost));
    assert_ne!(again[ETHERNET_LEN + HEADER_LEN..], lost[ETHERNET_LEN + HEADER_LEN..]);
    b.handle_frame(&again, now).unwrap();
    assert_eq!(drain(&mut b), [b"a secret record"]);
    // The lost one was only late: authentic and fresh, and known.
    assert_eq!(b.handle_frame(&lost, now), Ok(()));
    assert!(drain(&mut b).is_empty());
}

/// A side has a key and the other has none, or another one: neither hears the other.
#[test]
fn ends_of_different_mind_do_not_hear_each_other() {
    let config = FabricConfig::default();
    let other = KeyRing::new(vec![Key { number: 1, secret: [9; 32] }]).unwrap();
    let rings = [None, Some(ring(&[1])), Some(ring(&[2])), Some(other)];
    for (left, right) in (0..4)
        .flat_map(|left| (0..4).map(move |right| (left, right)))
        .filter(|(left, right)| left != right)
    {
        let (mut a, mut b) =
            (endpoint(A, config, rings[left].as_ref()), endpoint(B, config, rings[right].as_ref()));
        a.set_peer(B);
        b.set_peer(A);
        a.send(B.node, 40, b"hello?").unwrap();
        let before = state(&b);
        for frame in frames(&mut a, 1) {
            assert_eq!(
                b.handle_frame(&frame, 1),
                Err(DropReason::Unauthenticated),
                "{left} to {right}"
            );
        }
        assert_eq!(state(&b), before);
    }
}

/// Frames of the same cluster key, recorded in another run of the whole box with the same
/// incarnations: they are worth nothing, and the two runs have not sealed under the same
/// key.
#[test]
fn what_another_run_has_sealed_is_worth_nothing() {
    let keys = ring(&[1]);
    let live = |me: Peer, life: u64| {
        let mut fabric = Fabric::new(me, FabricConfig::default());
        fabric.authenticate(&keys, NonZeroU64::new(life).unwrap());
        fabric
    };
    let run = |first: u64| {
        let (mut a, mut b) = (live(A, first), live(B, first + 1));
        a.send(B.node, 40, b"order").unwrap();
        let mut recorded = Vec::new();
        for _ in 0..4 {
            for frame in frames(&mut a, 1) {
                b.handle_frame(&frame, 1).unwrap();
                recorded.push(frame);
            }
            frames(&mut b, 1).iter().for_each(|frame| a.handle_frame(frame, 1).unwrap());
        }
        assert_eq!(drain(&mut b), [b"order"]);
        (recorded, b)
    };
    let (recorded, _) = run(100);
    let (others, mut b) = run(200);
    for frame in &recorded {
        assert!(b.handle_frame(frame, 2).is_err());
    }
    // The recorded frames are worth nothing before anything was sent, either. A question
    // is answered to a dead incarnation, and that is all.
    let mut fresh = live(B, 300);
    for frame in &recorded {
        let _ = fresh.handle_frame(frame, 2);
    }
    assert!(drain(&mut fresh).is_empty());
    assert_eq!(fresh.peer(A.node), None);
    // The same records under the same counters.
    let sealed = |frames: &[Vec<u8>]| frames.last().unwrap()[ETHERNET_LEN + HEADER_LEN..].to_vec();
    assert_ne!(sealed(&recorded), sealed(&others));
}

/// A frame of a later incarnation, recorded in another run, names an incarnation that
/// does not exist: the present one is not given up.
#[test]
fn a_recorded_later_incarnation_does_not_replace_the_present_one() {
    let keys = ring(&[1]);
    let (mut a, mut b) = pair(FabricConfig::default(), Some(&keys));
    a.send(B.node, 40, b"first").unwrap();
    settle(&mut a, &mut b, 1);
    let mut later = Fabric::new(Peer { incarnation: 9, ..B }, FabricConfig::default());
    later.authenticate(&keys, NonZeroU64::new(77).unwrap());
    let mut then = Fabric::new(A, FabricConfig::default());
    then.authenticate(&keys, NonZeroU64::new(78).unwrap());
    later.send(A.node, 40, b"forget me not").unwrap();
    let mut recorded = Vec::new();
    for _ in 0..4 {
        for frame in frames(&mut later, 1) {
            then.handle_frame(&frame, 1).unwrap();
            recorded.push(frame);
        }
        frames(&mut then, 1).iter().for_each(|frame| later.handle_frame(frame, 1).unwrap());
    }
    assert_eq!(drain(&mut then), [b"forget me not"]);
    for frame in &recorded {
        let _ = a.handle_frame(frame, 2);
    }
    assert_eq!(a.peer(B.node), Some(B));
    assert!(a.inbox.restarted.is_empty());
}

/// The key is replaced at both ends, one after the other, with frames under way under the
/// old one. Frames under the old key are accepted while a ring has it; frames that could
/// not be opened are repeated.
#[test]
fn a_key_is_replaced_without_loss() {
    let (mut a, mut b, old) = under_way();
    b.set_keys(&ring(&[2, 1]));
    b.handle_frame(&old, 3).unwrap();
    assert_eq!(drain(&mut b), [b"a secret record"]);
    // Rings change without any overlap, which an operator should not do: records are
    // late, but none is lost.
    for number in 0..20u8 {
        a.send(B.node, 40, &[number; 500]).unwrap();
    }
    let sealed_before = frames(&mut a, 4);
    b.set_keys(&ring(&[2]));
    for frame in &sealed_before {
        assert_eq!(b.handle_frame(frame, 4), Err(DropReason::Unauthenticated));
    }
    a.set_keys(&ring(&[2]));
    let mut now = 5;
    while !a.is_settled(B.node) {
        now = a.poll_timeout().unwrap().max(now);
        for frame in frames(&mut a, now) {
            // A frame that was acknowledged under a key that the other did not have yet
            // comes once more.
            b.handle_frame(&frame, now).unwrap();
        }
        frames(&mut b, now).iter().for_each(|frame| a.handle_frame(frame, now).unwrap());
        assert!(now < 10_000 * MILLISECOND, "it never finished");
    }
    assert_eq!(drain(&mut b), (0..20u8).map(|number| vec![number; 500]).collect::<Vec<_>>());
}

/// Invalid rings, and one that is printed.
#[test]
fn a_ring_has_numbered_keys_and_tells_no_secret() {
    let keys = |numbers: &[u8]| {
        KeyRing::new(
            numbers.iter().map(|number| Key { number: *number, secret: [0xab; 32] }).collect(),
        )
    };
    assert_eq!(keys(&[]), Err(KeyRingError::Empty));
    assert_eq!(keys(&[1, 2, 1]), Err(KeyRingError::SameNumber(1)));
    assert_eq!(keys(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), Err(KeyRingError::TooMany));
    assert_eq!(format!("{:?}", keys(&[7, 3]).unwrap()), "[7, 3]");
}
