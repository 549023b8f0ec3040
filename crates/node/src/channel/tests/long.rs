//! Records that do not fit into a frame.

use super::*;
use crate::channel::format::{PART, PART_HEADER_LEN};

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Records that have arrived, with their kinds.
fn drain_kinds(fabric: &mut Fabric) -> Vec<(u8, Vec<u8>)> {
    let records =
        fabric.inbox.records().map(|(record, body)| (record.kind, body.to_vec())).collect();
    fabric.inbox.clear();
    records
}

/// Long and short records arrive whole and in their order, also those that fill their
/// last part, and the longest, whatever happens to the frames.
#[test]
fn long_records_arrive_whole_and_in_order() {
    for keys in [None, Some(ring(&[1]))] {
        let (mut a, mut b) = pair(FabricConfig::default(), keys.as_ref());
        let fits = a.max_record();
        let lens = [10, fits, fits + 1, 2 * (fits - PART_HEADER_LEN), 20_000, 0, MAX_LONG_RECORD];
        for (kind, len) in lens.iter().enumerate() {
            a.send_parts(B.node, kind as u8, &[&bytes(*len)[..len / 3], &bytes(*len)[len / 3..]])
                .unwrap();
        }
        let (mut now, mut got) = (1, Vec::new());
        while got.len() < lens.len() {
            let mut there = frames(&mut a, now);
            // Every third frame is lost, and the others come in a wrong order.
            let mut at = 0;
            there.retain(|_| (at += 1, at % 3 != 0 || now % 2 == 0).1);
            there.iter().rev().for_each(|frame| _ = b.handle_frame(frame, now));
            got.extend(drain_kinds(&mut b));
            frames(&mut b, now).iter().for_each(|frame| _ = a.handle_frame(frame, now));
            now += 31 * MILLISECOND;
            assert!(now < 60_000 * MILLISECOND, "{} records have come", got.len());
        }
        let sent = lens.iter().enumerate().map(|(kind, len)| (kind as u8, bytes(*len)));
        assert!(sent.eq(got));
    }
}

#[test]
fn a_record_that_is_too_long_is_refused_whole() {
    let (mut a, mut b) = pair(FabricConfig::default(), None);
    assert_eq!(a.send(B.node, 40, &vec![0; MAX_LONG_RECORD + 1]), Err(SendError::TooLong));
    while a.send(B.node, 40, &[0; 2000]).is_ok() {}
    let room = a.channels[0].room();
    assert_eq!(a.send(B.node, 41, &bytes(MAX_LONG_RECORD)), Err(SendError::Full));
    assert_eq!(a.channels[0].room(), room, "nothing of it was queued");
    let mut now = 1;
    while !a.is_settled(B.node) {
        frames(&mut a, now).iter().for_each(|frame| _ = b.handle_frame(frame, now));
        assert!(drain_kinds(&mut b).iter().all(|(kind, _)| *kind == 40));
        frames(&mut b, now).iter().for_each(|frame| _ = a.handle_frame(frame, now));
        now += MILLISECOND;
    }
}

/// Invalid parts: without a beginning, of two records at once, without a kind, without an
/// end. These parts are given up, and later records are not disturbed.
#[test]
fn parts_that_do_not_fit_are_given_up() {
    let (mut a, mut b) = pair(FabricConfig::default(), None);
    let parts: [&[u8]; 7] =
        [&[40, 0, 1], &[40, 1, 1], &[40, 2, 1], &[41, 1, 2], &[40], &[], &[42, 2, 3]];
    for part in parts {
        a.send(B.node, PART, part).unwrap();
    }
    let chunk = vec![0; 2000];
    for _ in 0..=MAX_LONG_RECORD / chunk.len() {
        a.send_parts(B.node, PART, &[&[42, 0], &chunk]).unwrap();
    }
    a.send(B.node, PART, &[42, 1]).unwrap();
    a.send(B.node, 43, &bytes(5000)).unwrap();
    let (mut now, mut got) = (1, Vec::new());
    while !a.is_settled(B.node) {
        settle(&mut a, &mut b, now);
        got.extend(drain_kinds(&mut b));
        now += MILLISECOND;
    }
    assert_eq!(got, [(43, bytes(5000))]);
}

/// A sender dies in the middle of a record: the first record of its next incarnation is
/// whole.
#[test]
fn half_a_record_dies_with_its_sender() {
    let (mut a, mut b) = pair(FabricConfig::default(), None);
    a.send(B.node, 40, &bytes(5000)).unwrap();
    b.handle_frame(&frames(&mut a, 1)[0], 1).unwrap();
    let again = Peer { incarnation: A.incarnation + 1, ..A };
    let mut next = endpoint(again, FabricConfig::default(), None);
    next.set_peer(B);
    next.send(B.node, PART, &[40, 1, 7]).unwrap();
    next.send(B.node, 40, &bytes(3000)).unwrap();
    for now in (1..100).map(|step| step * MILLISECOND) {
        frames(&mut next, now).iter().for_each(|frame| _ = b.handle_frame(frame, now));
        frames(&mut b, now).iter().for_each(|frame| _ = next.handle_frame(frame, now));
    }
    assert_eq!(drain_kinds(&mut b), [(40, bytes(3000))]);
}
