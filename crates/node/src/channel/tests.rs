use super::*;

const A: Peer = Peer { node: 16, incarnation: 1 };
const B: Peer = Peer { node: 17, incarnation: 1 };

fn frames(fabric: &mut Fabric, now: u64) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    fabric.poll_transmit(now, |frame| {
        frames.push(frame.to_vec());
        true
    });
    frames
}

fn drain(fabric: &mut Fabric) -> Vec<Vec<u8>> {
    let records = fabric.inbox.records().map(|(_, body)| body.to_vec()).collect();
    fabric.inbox.clear();
    records
}

/// Records cross a network that loses, doubles and reorders, and come back the same way; both ends number their frames from `first`.
fn cross(seed: u64, first: u32) -> (Fabric, Fabric) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let (mut a, mut b) = (Fabric::new(A, FabricConfig::default()), Fabric::new(B, FabricConfig::default()));
    for channel in [a.channel(B.node), b.channel(A.node)] {
        (channel.next_sequence, channel.expected) = (first, first);
    }
    let mut wire: Vec<(bool, Vec<u8>)> = Vec::new();
    let (mut sent, mut got, mut back, mut now) = (0u32, 0u32, 0u32, 1u64);
    while back < 500 {
        now += MILLISECOND;
        for _ in 0..next() % 20 {
            if sent < 500 {
                a.send(B.node, 40, &[sent.to_be_bytes().as_slice(), &vec![7; (next() % 900) as usize]].concat()).unwrap();
                sent += 1;
            }
        }
        wire.extend(frames(&mut a, now).into_iter().map(|frame| (true, frame)));
        wire.extend(frames(&mut b, now).into_iter().map(|frame| (false, frame)));
        for _ in 0..wire.len().div_ceil(2) {
            let at = (next() % wire.len() as u64) as usize;
            let (to_b, frame) = wire.swap_remove(at);
            let copies = [0, 1, 1, 1, 2][(next() % 5) as usize];
            for _ in 0..copies {
                let _ = if to_b { b.handle_frame(&frame, now) } else { a.handle_frame(&frame, now) };
            }
            if wire.is_empty() {
                break;
            }
        }
        for record in drain(&mut b) {
            assert_eq!(record[..4], got.to_be_bytes(), "seed {seed}");
            b.send(A.node, 40, &record).unwrap();
            got += 1;
        }
        for record in drain(&mut a) {
            assert_eq!(record[..4], back.to_be_bytes(), "seed {seed}");
            back += 1;
        }
        assert!(now < 100_000 * MILLISECOND, "seed {seed}: it never finished, {got} arrived and {back} came back");
    }
    (a, b)
}

/// Ten thousand records cross a network that loses, doubles and reorders, and arrive once each, in order.
#[test]
fn records_arrive_once_and_in_order_whatever_the_network_does() {
    for seed in 0..20 {
        cross(seed, 1);
    }
}

/// After four thousand million frames the numbers begin anew, at some point amid losses: nobody notices.
#[test]
fn a_channel_outlives_its_numbers() {
    for seed in 0..50 {
        let (mut a, mut b) = cross(seed, u32::MAX - seed as u32);
        for channel in [a.channel(B.node), b.channel(A.node)] {
            assert!(channel.next_sequence < 1000, "the numbers went on to {}", channel.next_sequence);
        }
    }
}

/// A frame is overtaken, and acknowledged before it was repeated: what was measured of others still says how far away the peer is.
#[test]
fn a_frame_that_was_only_late_does_not_spoil_the_estimate() {
    let (mut a, mut b) = (Fabric::new(A, FabricConfig::default()), Fabric::new(B, FabricConfig::default()));
    let mut now = 5_000_000 * MILLISECOND;
    let mut sent = Vec::new();
    for _ in 0..2 {
        a.send(B.node, 40, &[0; 2000]).unwrap();
        sent.extend(frames(&mut a, now));
    }
    now += MILLISECOND;
    // The second comes first. Both answers are there before the sender gets to repeat anything.
    for at in [1, 0] {
        b.handle_frame(&sent[at], now).unwrap();
        for answer in frames(&mut b, now) {
            a.handle_frame(&answer, now).unwrap();
        }
    }
    assert!(a.is_settled(B.node));
    a.send(B.node, 40, b"another").unwrap();
    frames(&mut a, now);
    assert_eq!(a.poll_timeout(), Some(now + 20 * MILLISECOND));
}

/// A frame is lost, and it takes a while until the peer has it again: those behind it were not under way for so long.
#[test]
fn a_loss_does_not_spoil_the_estimate_of_those_that_arrived() {
    let (mut a, mut b) = (Fabric::new(A, FabricConfig::default()), Fabric::new(B, FabricConfig::default()));
    let mut now = 5_000_000 * MILLISECOND;
    let mut sent = Vec::new();
    for _ in 0..3 {
        a.send(B.node, 40, &[0; 2000]).unwrap();
        sent.extend(frames(&mut a, now));
    }
    now += MILLISECOND;
    for frame in &sent[1..] {
        b.handle_frame(frame, now).unwrap();
    }
    for answer in frames(&mut b, now) {
        a.handle_frame(&answer, now).unwrap();
    }
    let repeated = frames(&mut a, now);
    assert_eq!(repeated.len(), 1);
    now += 300 * MILLISECOND;
    b.handle_frame(&repeated[0], now).unwrap();
    for answer in frames(&mut b, now) {
        a.handle_frame(&answer, now).unwrap();
    }
    assert!(a.is_settled(B.node));
    a.send(B.node, 40, b"another").unwrap();
    frames(&mut a, now);
    assert_eq!(a.poll_timeout(), Some(now + 20 * MILLISECOND));
}

/// The first of many frames is lost, and each of the others is acknowledged by itself: the lost one is repeated once, then only when it is overdue.
#[test]
fn a_gap_is_filled_once_however_many_answers_tell_of_it() {
    let (mut a, mut b) = (Fabric::new(A, FabricConfig::default()), Fabric::new(B, FabricConfig::default()));
    let mut now = 5_000_000 * MILLISECOND;
    let mut sent = Vec::new();
    for _ in 0..10 {
        a.send(B.node, 40, &[0; 2000]).unwrap();
        sent.extend(frames(&mut a, now));
    }
    let mut repeated = Vec::new();
    for frame in &sent[1..] {
        now += MILLISECOND;
        b.handle_frame(frame, now).unwrap();
        for answer in frames(&mut b, now) {
            a.handle_frame(&answer, now).unwrap();
        }
        repeated.extend(frames(&mut a, now));
    }
    assert_eq!(repeated.len(), 1);
    // The repeated one is lost as well.
    now = a.poll_timeout().unwrap();
    assert_eq!(frames(&mut a, now).len(), 1);
    // The next answer tells of the gap again: that one may have been lost too.
    a.send(B.node, 40, &[0; 2000]).unwrap();
    for frame in frames(&mut a, now) {
        b.handle_frame(&frame, now).unwrap();
    }
    for answer in frames(&mut b, now) {
        a.handle_frame(&answer, now).unwrap();
    }
    assert_eq!(frames(&mut a, now).len(), 1);
}

/// More frames than are repeated together are missing, and the first of them are under way again: there is nothing to do until an answer comes.
#[test]
fn a_gap_longer_than_what_is_repeated_together_keeps_nobody_awake() {
    let (mut a, mut b) = (Fabric::new(A, FabricConfig::default()), Fabric::new(B, FabricConfig::default()));
    let now = 5_000_000 * MILLISECOND;
    let mut sent = Vec::new();
    for _ in 0..40 {
        a.send(B.node, 40, &[0; 2000]).unwrap();
        sent.extend(frames(&mut a, now));
    }
    b.handle_frame(&sent[39], now).unwrap();
    for answer in frames(&mut b, now) {
        a.handle_frame(&answer, now).unwrap();
    }
    assert_eq!(frames(&mut a, now).len(), OVERDUE_AT_ONCE);
    assert!(frames(&mut a, now).is_empty());
    assert_eq!(a.poll_timeout(), Some(now + 20 * MILLISECOND));
}

/// The way out is blocked: nothing is lost, and nothing counts as under way.
#[test]
fn what_the_network_does_not_take_is_offered_again() {
    let (mut a, mut b) = (Fabric::new(A, FabricConfig::default()), Fabric::new(B, FabricConfig::default()));
    a.send(B.node, 40, b"record").unwrap();
    a.poll_transmit(1, |_| false);
    assert_eq!(a.poll_timeout(), Some(0));
    for frame in frames(&mut a, 2) {
        b.handle_frame(&frame, 3).unwrap();
    }
    assert_eq!(drain(&mut b), [b"record"]);
}

#[test]
fn a_peer_that_starts_again_gets_nothing_of_what_its_old_life_was_sent() {
    let (mut a, mut b) = (Fabric::new(A, FabricConfig::default()), Fabric::new(B, FabricConfig::default()));
    a.set_peer(B);
    a.send(B.node, 40, b"for the first life").unwrap();
    let late = frames(&mut a, 1);
    let mut again = Fabric::new(Peer { incarnation: 2, ..B }, FabricConfig::default());
    assert_eq!(again.handle_frame(&late[0], 2), Err(DropReason::StaleEpoch));
    again.send(A.node, 40, b"hello").unwrap();
    for frame in frames(&mut again, 3) {
        a.handle_frame(&frame, 3).unwrap();
    }
    assert_eq!(a.inbox.restarted, [Peer { incarnation: 2, ..B }]);
    assert_eq!(drain(&mut a), [b"hello"]);
    // And the old life is not heard any more.
    b.send(A.node, 40, b"ghost").unwrap();
    let ghost = frames(&mut b, 4);
    assert_eq!(a.handle_frame(&ghost[0], 4), Err(DropReason::StaleEpoch));
}

#[test]
fn frames_cut_anywhere_are_refused() {
    let (mut a, mut b) = (Fabric::new(A, FabricConfig::default()), Fabric::new(B, FabricConfig::default()));
    a.send(B.node, 40, b"record").unwrap();
    let frame = frames(&mut a, 1).remove(0);
    for len in 0..frame.len() {
        assert!(b.handle_frame(&frame[..len], 1).is_err(), "{len} bytes");
    }
    assert!(b.handle_frame(&frame, 1).is_ok());
}

/// A peer falls silent with many frames under way: what is overdue is repeated now and then, and in between there is nothing to do.
#[test]
fn a_silent_peer_keeps_nobody_awake() {
    let mut a = Fabric::new(A, FabricConfig::default());
    for _ in 0..5 {
        a.send(B.node, 40, &[0; 1000]).unwrap();
    }
    let (mut now, mut wakes) = (1, 0);
    while now < 2_000 * MILLISECOND && wakes < 1000 {
        frames(&mut a, now);
        now = a.poll_timeout().unwrap().max(now + 1);
        wakes += 1;
    }
    assert!((5..100).contains(&wakes), "woken {wakes} times in two seconds");
}

#[test]
fn a_full_queue_refuses_and_a_record_that_fits_no_frame_too() {
    let mut a = Fabric::new(A, FabricConfig::default());
    assert_eq!(a.send(B.node, 40, &vec![0; 5000]), Err(SendError::TooLong));
    let mut taken = 0;
    while a.send(B.node, 40, &[0; 1000]).is_ok() {
        taken += 1;
    }
    assert!((4000..4300).contains(&taken), "{taken}");
}
