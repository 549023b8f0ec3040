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
