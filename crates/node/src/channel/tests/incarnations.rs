//! Endpoints that end and begin again.

use super::*;

fn both() -> [Option<KeyRing>; 2] {
    [None, Some(ring(&[1]))]
}

/// A peer's process is started again: it gets no record for its old incarnation, and the
/// old incarnation is not heard any more.
#[test]
fn a_peer_that_starts_again_gets_nothing_of_what_its_old_incarnation_was_sent() {
    for ring in both() {
        let config = FabricConfig::default();
        let (mut a, mut b) = pair(config, ring.as_ref());
        a.send(B.node, 40, b"first").unwrap();
        settle(&mut a, &mut b, 1);
        a.send(B.node, 40, b"for the first incarnation").unwrap();
        let late = frames(&mut a, 1);
        let mut again = endpoint(Peer { incarnation: 2, ..B }, config, ring.as_ref());
        assert_eq!(again.handle_frame(&late[0], 2), Err(DropReason::StaleEpoch));
        again.send(A.node, 40, b"hello").unwrap();
        settle(&mut again, &mut a, 3);
        assert_eq!(a.inbox.restarted, [Peer { incarnation: 2, ..B }]);
        assert_eq!(drain(&mut a), [b"hello"]);
        assert!(drain(&mut again).is_empty());
        b.send(A.node, 40, b"ghost").unwrap();
        let ghost = frames(&mut b, 4);
        assert_eq!(a.handle_frame(&ghost[0], 4), Err(DropReason::StaleEpoch));
    }
}

/// All probes of a new incarnation were lost, and it waits ever longer before the next. A
/// sender to the earlier incarnation finds the new one at once; a sender to a later one
/// gets no answer from a dead one.
#[test]
fn who_speaks_to_an_incarnation_before_is_told() {
    for ring in both() {
        let config = FabricConfig::default();
        let (mut a, mut b) = pair(config, ring.as_ref());
        a.send(B.node, 40, b"first").unwrap();
        settle(&mut a, &mut b, 1);
        let second = Peer { incarnation: 2, ..B };
        let mut again = endpoint(second, config, ring.as_ref());
        again.send(A.node, 40, b"hello").unwrap();
        let mut now = 2;
        for _ in 0..10 {
            assert!(!frames(&mut again, now).is_empty(), "it asks, in vain");
            now = again.poll_timeout().unwrap();
        }
        now -= 500 * MILLISECOND;
        a.send(B.node, 40, b"for the first incarnation").unwrap();
        for frame in frames(&mut a, now) {
            assert_eq!(again.handle_frame(&frame, now), Err(DropReason::StaleEpoch));
        }
        settle(&mut again, &mut a, now);
        assert_eq!((a.peer(B.node), drain(&mut a)), (Some(second), vec![b"hello".to_vec()]));
        assert!(drain(&mut again).is_empty());
        a.send(B.node, 40, b"for the second incarnation").unwrap();
        for frame in frames(&mut a, now) {
            assert_eq!(b.handle_frame(&frame, now), Err(DropReason::StaleEpoch));
        }
        assert!(frames(&mut b, now).is_empty());
    }
}

/// A sender asks for the incarnation at a node, and the first of many frames is delayed
/// until another incarnation is there. The new incarnation takes nothing of it, and
/// misses nothing that is meant for itself.
#[test]
fn a_late_frame_from_before_anybody_knew_anybody_is_not_taken_by_the_next_incarnation() {
    for ring in both() {
        let config = FabricConfig::default();
        let (mut a, mut b) =
            (endpoint(A, config, ring.as_ref()), endpoint(B, config, ring.as_ref()));
        a.send(B.node, 40, b"for whoever is there").unwrap();
        let delayed = frames(&mut a, 1);
        for frame in &delayed {
            b.handle_frame(frame, 1).unwrap();
        }
        settle(&mut a, &mut b, 2);
        assert_eq!(drain(&mut b), [b"for whoever is there"]);
        let second = Peer { incarnation: 2, ..B };
        let mut b = endpoint(second, config, ring.as_ref());
        for frame in &delayed {
            b.handle_frame(frame, 3).unwrap();
        }
        a.set_peer(second);
        a.send(B.node, 40, b"for the second incarnation").unwrap();
        settle(&mut a, &mut b, 4);
        assert_eq!(drain(&mut b), [b"for the second incarnation"]);
    }
}

/// The coordinator has said that an incarnation is gone, and one of its frames comes
/// late. The frame is not heard, and records for the node wait for the next incarnation.
#[test]
fn the_dead_do_not_speak() {
    for ring in both() {
        let config = FabricConfig::default();
        let (mut a, mut b) = pair(config, ring.as_ref());
        a.send(B.node, 40, b"first").unwrap();
        settle(&mut a, &mut b, 1);
        b.send(A.node, 40, b"ghost").unwrap();
        let ghost = frames(&mut b, 1);
        a.remove_peer(B);
        assert_eq!(a.handle_frame(&ghost[0], 2), Err(DropReason::StaleEpoch));
        assert_eq!((a.peer(B.node), a.room(B)), (None, 0));
        a.set_peer(B);
        assert_eq!(a.peer(B.node), None, "what is dead stays dead");
        a.send(B.node, 40, b"for the next").unwrap();
        let second = Peer { incarnation: 2, ..B };
        let mut b = endpoint(second, config, ring.as_ref());
        b.send(A.node, 40, b"hello").unwrap();
        settle(&mut a, &mut b, 3);
        assert_eq!(drain(&mut a), [b"hello"]);
        assert_eq!(drain(&mut b), [b"for the next"]);
    }
}

/// Two nodes that know nothing of each other speak at once.
#[test]
fn both_ask_at_once() {
    for ring in both() {
        let config = FabricConfig::default();
        let (mut a, mut b) =
            (endpoint(A, config, ring.as_ref()), endpoint(B, config, ring.as_ref()));
        a.send(B.node, 40, b"there").unwrap();
        b.send(A.node, 40, b"back").unwrap();
        settle(&mut a, &mut b, 1);
        assert_eq!(
            (drain(&mut b), drain(&mut a)),
            (vec![b"there".to_vec()], vec![b"back".to_vec()])
        );
        assert!(a.is_settled(B.node) && b.is_settled(A.node));
        assert_eq!((a.poll_timeout(), b.poll_timeout()), (None, None));
    }
}

/// A node does not exist: it is asked for now and then, and in between there is nothing
/// to do.
#[test]
fn a_node_that_is_not_there_keeps_nobody_awake() {
    let mut a = Fabric::new(A, FabricConfig::default());
    a.send(B.node, 40, b"anybody?").unwrap();
    let (mut now, mut wakes) = (1, 0);
    while now < 20_000 * MILLISECOND && wakes < 1000 {
        frames(&mut a, now);
        now = a.poll_timeout().unwrap().max(now + 1);
        wakes += 1;
    }
    assert!((10..60).contains(&wakes), "woken {wakes} times in twenty seconds");
}

/// A thousand new nodes send something to one, which knows them, or their incarnations,
/// or none; with keys and without. Each is told its incarnation at once; a node that is
/// not told asks again after a pause that doubles.
#[test]
fn everybody_who_asks_at_once_is_answered_at_once() {
    const ASKING: u16 = 1000;
    for ring in [None, Some(ring(&[1]))] {
        for is_known in [true, false] {
            let config = FabricConfig { buffer: 64 << 20, ..FabricConfig::default() };
            let mut one = endpoint(A, config, ring.as_ref());
            let mut others: Vec<Fabric> = (100..100 + ASKING)
                .map(|node| {
                    endpoint(
                        Peer { node: NodeId::new(node), incarnation: 1 },
                        FabricConfig::default(),
                        ring.as_ref(),
                    )
                })
                .collect();
            for other in &mut others {
                if is_known {
                    one.set_peer(other.me());
                }
                other.send(A.node, 40, b"here").unwrap();
            }
            for _ in 0..2 {
                for other in &mut others {
                    frames(other, MILLISECOND)
                        .iter()
                        .for_each(|frame| one.handle_frame(frame, MILLISECOND).unwrap());
                }
                for answer in frames(&mut one, MILLISECOND) {
                    let to = usize::from(u16::from_be_bytes([answer[4], answer[5]]) - 100);
                    others[to].handle_frame(&answer, MILLISECOND).unwrap();
                }
            }
            assert_eq!(
                drain(&mut one).len(),
                usize::from(ASKING),
                "sealed: {}, known: {is_known}",
                ring.is_some()
            );
        }
    }
}

/// Offsets of the sender's incarnation and of the counter in a frame.
const INCARNATION_AT: usize = ETHERNET_LEN + 12;
const COUNTER_AT: usize = ETHERNET_LEN + 44;

fn flip(frame: &[u8], at: usize, bit: usize) -> Vec<u8> {
    let mut damaged = frame.to_vec();
    damaged[at + bit / 8] ^= 1 << (bit % 8);
    damaged
}

/// A bit of a sender's incarnation flips in a frame whose checksum is right all the same,
/// or the frame is forged. No new incarnation begins by that, and the true peer is heard.
/// The same holds for the first frame that is heard at all.
#[test]
fn a_single_frame_begins_no_incarnation() {
    for bit in 0..32 {
        for is_known in [true, false] {
            let (mut a, mut b) = (
                endpoint(A, FabricConfig::default(), None),
                endpoint(B, FabricConfig::default(), None),
            );
            a.set_peer(B);
            if is_known {
                b.set_peer(A);
            }
            a.send(B.node, 40, b"first").unwrap();
            let sent = frames(&mut a, 1);
            let _ = b.handle_frame(&flip(&sent[0], INCARNATION_AT, bit), 1);
            assert_eq!(drain(&mut b), [[0; 0]; 0], "bit {bit}, known: {is_known}");
            // Answers to the false incarnation may be refused.
            frames(&mut b, 1).iter().for_each(|frame| _ = a.handle_frame(frame, 1));
            let mut now = 2;
            for _ in 0..4 {
                frames(&mut a, now).iter().for_each(|frame| _ = b.handle_frame(frame, now));
                frames(&mut b, now).iter().for_each(|frame| _ = a.handle_frame(frame, now));
                now += 25 * MILLISECOND;
            }
            assert_eq!(
                (b.peer(A.node), drain(&mut b)),
                (Some(A), vec![b"first".to_vec()]),
                "bit {bit}, known: {is_known}"
            );
            assert!(now < 200 * MILLISECOND && a.is_settled(B.node));
        }
    }
    // The test can fail.
    let _planting = holdfast_wire::fault::plant(Fault::BelievesAnyIncarnation.into());
    let (mut a, mut b) = pair(FabricConfig::default(), None);
    a.send(B.node, 40, b"first").unwrap();
    let sent = frames(&mut a, 1);
    b.handle_frame(&flip(&sent[0], INCARNATION_AT, 20), 1).unwrap();
    assert_eq!(b.handle_frame(&sent[0], 1), Err(DropReason::StaleEpoch));
}

/// Two nodes restart at once, each knows only the other's earlier incarnation, and frames
/// are lost: each hears the other when it has answered.
#[test]
fn two_that_begin_again_at_once_find_each_other() {
    for lost in 0..64u32 {
        let (mut a, mut b) = pair(FabricConfig::default(), None);
        a.send(B.node, 40, b"before").unwrap();
        settle(&mut a, &mut b, 1);
        let (second_a, second_b) = (Peer { incarnation: 2, ..A }, Peer { incarnation: 2, ..B });
        let (mut a, mut b) = (
            Fabric::new(second_a, FabricConfig::default()),
            Fabric::new(second_b, FabricConfig::default()),
        );
        for (fabric, before) in [(&mut a, B), (&mut b, A)] {
            fabric.learn_peer(before);
            fabric.send(before.node, 40, b"for the incarnation before").unwrap();
        }
        let (mut now, mut sent) = (2, 0);
        for _ in 0..120 {
            for _ in 0..4 {
                let (there, back) = (frames(&mut a, now), frames(&mut b, now));
                for (frames, to) in [(there, &mut b), (back, &mut a)] {
                    for frame in frames {
                        let is_lost = sent < 6 && lost >> sent & 1 != 0;
                        sent += 1;
                        if !is_lost {
                            let _ = to.handle_frame(&frame, now);
                        }
                    }
                }
            }
            now += 25 * MILLISECOND;
        }
        assert_eq!(
            (a.peer(B.node), b.peer(A.node)),
            (Some(second_b), Some(second_a)),
            "lost: {lost:b}"
        );
        a.inbox.clear();
        b.inbox.clear();
        a.send(B.node, 40, b"there").unwrap();
        settle(&mut a, &mut b, now);
        assert_eq!(drain(&mut b), [b"there"]);
    }
}

/// The only frame that names a node's incarnation is damaged unnoticed: that incarnation
/// does not exist. A sender to that incarnation gets no answer, asks again, and all its
/// records arrive.
#[test]
fn an_incarnation_that_is_not_there_is_asked_for_again() {
    for bit in 0..32 {
        let (mut a, mut b) =
            (Fabric::new(A, FabricConfig::default()), Fabric::new(B, FabricConfig::default()));
        a.send(B.node, 40, b"for whoever is there").unwrap();
        frames(&mut a, 1).iter().for_each(|frame| b.handle_frame(frame, 1).unwrap());
        for answer in frames(&mut b, 1) {
            let _ = a.handle_frame(&flip(&answer, INCARNATION_AT, bit), 1);
        }
        assert_ne!(a.peer(B.node), Some(B));
        a.send(B.node, 40, b"said to a false peer").unwrap();
        let mut now = 1;
        for _ in 0..100 {
            now += 20 * MILLISECOND;
            for _ in 0..4 {
                for frame in frames(&mut a, now) {
                    let _ = b.handle_frame(&frame, now);
                }
                for frame in frames(&mut b, now) {
                    let _ = a.handle_frame(&frame, now);
                }
            }
        }
        assert_eq!(a.peer(B.node), Some(B), "bit {bit}");
        assert_eq!(a.inbox.restarted, [], "nobody was there before");
        assert_eq!(drain(&mut b), [b"for whoever is there", b"said to a false peer"]);
        a.send(B.node, 40, b"for this incarnation").unwrap();
        settle(&mut a, &mut b, now);
        assert_eq!(drain(&mut b).last().map(Vec::as_slice), Some(&b"for this incarnation"[..]));
    }
}

/// A peer that is found behind a false incarnation gets all records that were sent to
/// that one: in frames under way, waiting for room, and long ones in their parts.
#[test]
fn what_was_said_to_an_incarnation_that_never_was_arrives_whole() {
    let (mut a, mut b) =
        (Fabric::new(A, FabricConfig::default()), Fabric::new(B, FabricConfig::default()));
    let said: Vec<Vec<u8>> =
        (0..100u8).map(|number| vec![number; if number % 10 == 0 { 5000 } else { 1000 }]).collect();
    a.send(B.node, 40, &said[0]).unwrap();
    frames(&mut a, 1).iter().for_each(|frame| b.handle_frame(frame, 1).unwrap());
    let answer = frames(&mut b, 1).pop().expect("it answers");
    a.handle_frame(&flip(&answer, INCARNATION_AT, 6), 1).unwrap();
    said[1..].iter().for_each(|record| a.send(B.node, 40, record).unwrap());
    assert!(frames(&mut a, 1).len() > 10, "they are under way");
    let (mut now, mut heard) = (1, Vec::new());
    for _ in 0..200 {
        now += 20 * MILLISECOND;
        for _ in 0..4 {
            frames(&mut a, now).iter().for_each(|frame| _ = b.handle_frame(frame, now));
            frames(&mut b, now).iter().for_each(|frame| _ = a.handle_frame(frame, now));
            heard.extend(drain(&mut b));
        }
    }
    assert_eq!((heard == said, a.inbox.restarted.len(), a.is_settled(B.node)), (true, 0, true));
}

/// An incarnation that has taken something existed, whatever is known of it: the next one
/// gets nothing that was meant for it.
#[test]
fn an_incarnation_that_has_taken_something_was_there() {
    let next = Peer { incarnation: 2, ..B };
    let (mut a, mut b) =
        (Fabric::new(A, FabricConfig::default()), Fabric::new(B, FabricConfig::default()));
    a.send(B.node, 40, b"first").unwrap();
    frames(&mut a, 1).iter().for_each(|frame| b.handle_frame(frame, 1).unwrap());
    // Later frames seem older than this one, and do not make the incarnation certain.
    let answer = frames(&mut b, 1).pop().expect("it answers");
    a.handle_frame(&flip(&answer, COUNTER_AT, 3), 1).unwrap();
    frames(&mut a, 1).iter().for_each(|frame| b.handle_frame(frame, 1).unwrap());
    frames(&mut b, 1).iter().for_each(|frame| a.handle_frame(frame, 1).unwrap());
    assert_eq!((drain(&mut b), a.is_settled(B.node)), (vec![b"first".to_vec()], true));
    a.send(B.node, 40, b"second").unwrap();
    drop(frames(&mut a, 1));
    let (mut b, mut now) = (Fabric::new(next, FabricConfig::default()), 1);
    b.set_peer(A);
    b.send(A.node, 40, b"here").unwrap();
    for _ in 0..100 {
        now += 20 * MILLISECOND;
        frames(&mut b, now).iter().for_each(|frame| _ = a.handle_frame(frame, now));
        frames(&mut a, now).iter().for_each(|frame| _ = b.handle_frame(frame, now));
    }
    assert_eq!(
        (a.peer(B.node), &a.inbox.restarted[..], drain(&mut b).len()),
        (Some(next), &[next][..], 0)
    );
}

/// An incarnation sends before it was announced, and old news names the one before: its
/// channel continues, because its own end does.
#[test]
fn old_news_does_not_end_the_channel_of_a_later_incarnation() {
    let (before, next) = (B, Peer { incarnation: 2, ..B });
    let (mut a, mut b) =
        (Fabric::new(A, FabricConfig::default()), Fabric::new(next, FabricConfig::default()));
    b.send(A.node, 40, b"first").unwrap();
    settle(&mut b, &mut a, 1);
    assert_eq!((a.peer(B.node), drain(&mut a)), (Some(next), vec![b"first".to_vec()]));
    a.set_peer(before);
    a.set_peer(next);
    b.send(A.node, 40, b"second").unwrap();
    a.send(B.node, 40, b"back").unwrap();
    settle(&mut b, &mut a, 2);
    assert_eq!((drain(&mut a), drain(&mut b)), (vec![b"second".to_vec()], vec![b"back".to_vec()]));
    assert_eq!(a.inbox.restarted, []);
}

/// A frame's counter is far too high. True frames soon update the peer's room again, and
/// its signs of life.
#[test]
fn a_counter_that_leapt_is_forgotten() {
    let (mut a, mut b) = pair(FabricConfig::default(), None);
    a.send(B.node, 40, b"first").unwrap();
    let sent = frames(&mut a, 1);
    b.handle_frame(&flip(&sent[0], COUNTER_AT, 3), 1).unwrap();
    let mut now = MILLISECOND;
    for _ in 0..10 {
        now += MILLISECOND;
        a.send(B.node, 40, b"more").unwrap();
        frames(&mut a, now).iter().for_each(|frame| b.handle_frame(frame, now).unwrap());
        frames(&mut b, now).iter().for_each(|frame| a.handle_frame(frame, now).unwrap());
    }
    assert_eq!(b.heard_at(A), Some(now));
}
