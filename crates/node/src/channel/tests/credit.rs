//! A receiver that does not keep up.

use super::*;

/// Room for ten frames.
fn little() -> FabricConfig {
    FabricConfig { buffer: 2 * 10 * 2400, ..FabricConfig::default() }
}

/// How many frames of a thousand records go out before the receiver has looked into its
/// inbox.
fn fill(a: &mut Fabric, b: &mut Fabric, now: &mut u64) -> usize {
    for number in 0..1000u32 {
        a.send(B.node, 40, &[number.to_be_bytes().as_slice(), &[0; 996]].concat()).unwrap();
    }
    let mut count = 0;
    for _ in 0..100 {
        for frame in frames(a, *now) {
            let _ = b.handle_frame(&frame, *now);
            count += 1;
        }
        frames(b, *now).iter().for_each(|frame| a.handle_frame(frame, *now).unwrap());
        *now += MILLISECOND;
    }
    count
}

/// A receiver does not look into its inbox: the sender stops, tries again now and then,
/// and never more waits than there is room for.
#[test]
fn a_sender_stops_where_there_is_no_room() {
    let (mut a, mut b) = pair(little(), None);
    let mut now = 5_000_000 * MILLISECOND;
    let count = fill(&mut a, &mut b, &mut now);
    // The first credit is given before anybody has said anything.
    assert!((10..100).contains(&count), "{count} frames went out in a tenth of a second");
    assert!(b.inbox.len() <= little().buffer, "{} bytes wait", b.inbox.len());
    // The sender does not spin meanwhile.
    let mut wakes = 0;
    let end = now + 5_000 * MILLISECOND;
    while now < end {
        for frame in frames(&mut a, now) {
            let _ = b.handle_frame(&frame, now);
        }
        frames(&mut b, now).iter().for_each(|frame| a.handle_frame(frame, now).unwrap());
        now = a.poll_timeout().expect("records wait").max(now + 1);
        wakes += 1;
    }
    assert!((3..200).contains(&wakes), "woken {wakes} times in five seconds");
}

/// The receiver looks at last, and its news of room is lost, except in answers to the
/// sender's own tries: the rest arrives all the same.
#[test]
fn lost_news_of_room_does_not_stop_a_channel() {
    let (mut a, mut b) = pair(little(), None);
    let mut now = 5_000_000 * MILLISECOND;
    fill(&mut a, &mut b, &mut now);
    let mut got = 0u32;
    while got < 1000 {
        for record in drain(&mut b) {
            assert_eq!(record[..4], got.to_be_bytes());
            got += 1;
        }
        // The news of room is lost.
        frames(&mut b, now);
        now = a.poll_timeout().map_or(now + MILLISECOND, |at| at.max(now));
        for frame in frames(&mut a, now) {
            let _ = b.handle_frame(&frame, now);
        }
        frames(&mut b, now).iter().for_each(|frame| a.handle_frame(frame, now).unwrap());
        assert!(now < 6_000_000 * MILLISECOND, "it never finished, {got} arrived");
    }
}

/// The receiver looks at last: the sender is told at once, and continues without having
/// to try.
#[test]
fn room_is_told_when_there_is_some() {
    let (mut a, mut b) = pair(little(), None);
    let mut now = 5_000_000 * MILLISECOND;
    fill(&mut a, &mut b, &mut now);
    let before = drain(&mut b).len();
    assert!((10..100).contains(&before));
    assert_eq!(b.poll_timeout(), Some(0), "there is news");
    let news = frames(&mut b, now);
    assert_eq!(news.len(), 1);
    a.handle_frame(&news[0], now).unwrap();
    let more = frames(&mut a, now);
    assert!(more.len() >= 5, "{} frames", more.len());
    for frame in more {
        b.handle_frame(&frame, now).unwrap();
    }
    assert!(drain(&mut b).len() >= 10);
}

/// The frames that came early fill all the room that they may, and the missing one comes:
/// there is room for it.
#[test]
fn what_came_early_does_not_lock_out_what_is_missing() {
    let (mut a, mut b) = pair(little(), None);
    for _ in 0..40 {
        a.send(B.node, 40, &[0; 2000]).unwrap();
    }
    let now = 5_000_000 * MILLISECOND;
    let sent = frames(&mut a, now);
    assert_eq!(sent.len(), 40);
    let results: Vec<_> = sent[1..].iter().map(|frame| b.handle_frame(frame, now)).collect();
    assert!(results.contains(&Err(DropReason::QueueFull)));
    assert_eq!(b.handle_frame(&sent[0], now), Ok(()));
    let early = results.iter().filter(|result| result.is_ok()).count();
    assert!(
        b.inbox.len() <= little().buffer / 2 + 2400,
        "half of the room is for what comes early, and {} bytes wait",
        b.inbox.len()
    );
    assert_eq!(drain(&mut b).len(), 1 + early);
}

/// An older frame with another credit comes after a newer one: the newer one counts.
#[test]
fn the_newest_word_on_room_counts() {
    let (mut a, mut b) = pair(little(), None);
    let mut now = 5_000_000 * MILLISECOND;
    for number in 0..2u8 {
        a.send(B.node, 40, &[number; 2000]).unwrap();
        frames(&mut a, now).iter().for_each(|frame| b.handle_frame(frame, now).unwrap());
        now += MILLISECOND;
    }
    let newer = {
        let older = frames(&mut b, now);
        drain(&mut b);
        a.send(B.node, 40, &[2; 2000]).unwrap();
        frames(&mut a, now).iter().for_each(|frame| b.handle_frame(frame, now).unwrap());
        drain(&mut b);
        let newer = frames(&mut b, now);
        a.handle_frame(&newer[0], now).unwrap();
        a.handle_frame(&older[0], now).unwrap();
        newer
    };
    assert_eq!(newer.len(), 1);
    for _ in 0..40 {
        a.send(B.node, 40, &[0; 2000]).unwrap();
    }
    assert_eq!(frames(&mut a, now).len(), 10, "the older word was of eight");
}

/// A peer has many records, and the network takes one frame at a time: the other peer is
/// heard too.
#[test]
fn a_talkative_channel_does_not_silence_the_others() {
    let mut a = Fabric::new(A, FabricConfig::default());
    let quiet = Peer { node: NodeId::new(18), incarnation: 1 };
    a.set_peer(B);
    a.set_peer(quiet);
    for _ in 0..20 {
        a.send(B.node, 40, &[0; 2000]).unwrap();
    }
    a.send(quiet.node, 40, b"me too").unwrap();
    let mut heard = Vec::new();
    for _ in 0..4 {
        let mut is_free = true;
        a.poll_transmit(1, |frame| {
            let taken = core::mem::replace(&mut is_free, false);
            if taken {
                heard.push(frame[5]);
            }
            taken
        });
    }
    assert!(heard.contains(&18), "heard {heard:?}");
}
