//! Two endpoints that know each other, and a network between their frames.

use super::link::OVERDUE_AT_ONCE;
use super::*;

mod credit;
mod crossing;
mod incarnations;
mod keys;
mod long;

const A: Peer = Peer { node: NodeId::new(16), incarnation: 1 };
const B: Peer = Peer { node: NodeId::new(17), incarnation: 1 };

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

/// Two endpoints, with keys or without, that know each other's incarnations.
fn pair(config: FabricConfig, ring: Option<&KeyRing>) -> (Fabric, Fabric) {
    let (mut a, mut b) = (endpoint(A, config, ring), endpoint(B, config, ring));
    a.set_peer(B);
    b.set_peer(A);
    (a, b)
}

/// An endpoint with a life number of its own.
fn endpoint(me: Peer, config: FabricConfig, ring: Option<&KeyRing>) -> Fabric {
    let mut fabric = Fabric::new(me, config);
    if let Some(ring) = ring {
        fabric.authenticate(
            ring,
            NonZeroU64::new(u64::from(me.incarnation) << 16 | u64::from(me.node.get())).unwrap(),
        );
    }
    fabric
}

fn ring(numbers: &[u8]) -> KeyRing {
    KeyRing::new(
        numbers.iter().map(|number| Key { number: *number, secret: [*number; 32] }).collect(),
    )
    .unwrap()
}

/// Passes frames to and fro, without losses, until neither side has anything to send.
fn settle(a: &mut Fabric, b: &mut Fabric, now: u64) {
    loop {
        let (there, back) = (frames(a, now), frames(b, now));
        if there.is_empty() && back.is_empty() {
            return;
        }
        there.iter().for_each(|frame| b.handle_frame(frame, now).unwrap());
        back.iter().for_each(|frame| a.handle_frame(frame, now).unwrap());
    }
}

/// A frame is heard although it cannot be delivered yet. When it, or an earlier one,
/// comes again long after, it is no sign of life: its sender may be dead.
#[test]
fn what_comes_again_says_nothing_of_now() {
    let (mut a, mut b) = pair(FabricConfig::default(), None);
    let mut sent = Vec::new();
    for _ in 0..2 {
        a.send(B.node, 40, &[0; 2000]).unwrap();
        sent.extend(frames(&mut a, MILLISECOND));
    }
    assert_eq!(b.heard_at(A), None);
    b.handle_frame(&sent[1], 2 * MILLISECOND).unwrap();
    assert!(drain(&mut b).is_empty());
    assert_eq!(b.heard_at(A), Some(2 * MILLISECOND));
    b.handle_frame(&sent[0], 3 * MILLISECOND).unwrap();
    assert_eq!(drain(&mut b).len(), 2);
    for frame in &sent {
        assert_eq!(b.handle_frame(frame, 900 * MILLISECOND), Ok(()), "it is no loss");
        assert!(drain(&mut b).is_empty());
    }
    assert_eq!(b.heard_at(A), Some(2 * MILLISECOND));
    assert_eq!(b.heard_at(Peer { incarnation: 2, ..A }), None);
}

/// A frame is overtaken, and acknowledged before it was repeated. The round trips
/// measured with other frames stay valid.
#[test]
fn a_frame_that_was_only_late_does_not_spoil_the_estimate() {
    let (mut a, mut b) = pair(FabricConfig::default(), None);
    let mut now = 5_000_000 * MILLISECOND;
    let mut sent = Vec::new();
    for _ in 0..2 {
        a.send(B.node, 40, &[0; 2000]).unwrap();
        sent.extend(frames(&mut a, now));
    }
    now += MILLISECOND;
    // The second comes first. Both answers are there before the sender gets to repeat
    // anything.
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

/// A frame is lost, and it takes a while until the peer has it again: the frames behind
/// it were not under way for so long.
#[test]
fn a_loss_does_not_spoil_the_estimate_of_those_that_arrived() {
    let (mut a, mut b) = pair(FabricConfig::default(), None);
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

/// The first of many frames is lost, and each of the others is acknowledged by itself:
/// the lost one is repeated once, then only when it is overdue.
#[test]
fn a_gap_is_filled_once_however_many_answers_tell_of_it() {
    let (mut a, mut b) = pair(FabricConfig::default(), None);
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

/// A peer was not heard for long, and then has a later frame but not the first. The peer
/// hears again, so missing frames are repeated without the long time-out of the silence.
#[test]
fn a_peer_that_hears_again_is_not_treated_as_silent() {
    let (mut a, mut b) = pair(FabricConfig::default(), None);
    let mut now = 5_000_000 * MILLISECOND;
    let mut sent = Vec::new();
    for _ in 0..2 {
        a.send(B.node, 40, &[0; 2000]).unwrap();
        sent.extend(frames(&mut a, now));
    }
    for _ in 0..8 {
        now = a.poll_timeout().unwrap();
        frames(&mut a, now);
    }
    b.handle_frame(&sent[1], now).unwrap();
    for answer in frames(&mut b, now) {
        a.handle_frame(&answer, now).unwrap();
    }
    // The first is repeated at once, and lost again.
    assert_eq!(frames(&mut a, now).len(), 1);
    let timeout = a.poll_timeout().unwrap() - now;
    assert!(timeout < 1000 * MILLISECOND, "{timeout} ns");
}

/// More frames than are repeated together are missing, and the first of them are under
/// way again: there is nothing to do until an answer comes.
#[test]
fn a_gap_longer_than_what_is_repeated_together_keeps_nobody_awake() {
    let (mut a, mut b) = pair(FabricConfig::default(), None);
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
    let (mut a, mut b) = pair(FabricConfig::default(), None);
    a.send(B.node, 40, b"record").unwrap();
    a.poll_transmit(1, |_| false);
    assert_eq!(a.poll_timeout(), Some(0));
    for frame in frames(&mut a, 2) {
        b.handle_frame(&frame, 3).unwrap();
    }
    assert_eq!(drain(&mut b), [b"record"]);
}

#[test]
fn frames_cut_anywhere_are_refused() {
    let (mut a, mut b) = pair(FabricConfig::default(), None);
    a.send(B.node, 40, b"record").unwrap();
    let frame = frames(&mut a, 1).remove(0);
    for len in 0..frame.len() {
        assert!(b.handle_frame(&frame[..len], 1).is_err(), "{len} bytes");
    }
    assert!(b.handle_frame(&frame, 1).is_ok());
}

/// A peer falls silent with many frames under way. Overdue frames are repeated now and
/// then, and in between there is nothing to do.
#[test]
fn a_silent_peer_keeps_nobody_awake() {
    let (mut a, _) = pair(FabricConfig::default(), None);
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
fn a_full_queue_refuses() {
    let (mut a, _) = pair(FabricConfig::default(), None);
    let mut taken = 0;
    while a.send(B.node, 40, &[0; 1000]).is_ok() {
        taken += 1;
    }
    assert!((4000..4300).contains(&taken), "{taken}");
}
