//! Segments with which a sender could hide a pattern from the IPS: behind gaps, outside
//! of the stream, with wrong checksums, with SYNs, or retransmitted with other bytes or
//! other borders.

use crate::bench::Bench;
use crate::ips::{
    CLIENT, FIRST, NO_SHELL, SERVER, SHELL, acknowledges, connect, connected, hex, ips, is_dropped,
    rule, says, segment,
};
use holdfast_wire::DropReason::{self, FunctionDenied, PolicyDenied, StateInvalid};
use serde_json::json;

/// Sends the client's segment `at` bytes behind the first one. The segment must pass, or
/// be dropped because of its retransmitted bytes.
#[track_caller]
fn passes_if(bench: &mut Bench, at: u32, bytes: &[u8], passes: bool) {
    match passes {
        true => says(bench, at, bytes),
        false => is_dropped(bench, at, bytes, FunctionDenied),
    }
}

/// Retransmits bytes with others that begin a match of the rule, which drops. Both
/// readings go on if no byte has passed behind them: the rest of the match is dropped. If
/// the rest has passed, the retransmission is dropped. Returns the bench of this second
/// connection.
#[track_caller]
fn retransmits_a_beginning(rule: &str, beginning: &[u8], rest: &[u8]) -> Bench {
    let len = beginning.len();
    let harmless = &b"harmless"[..len];
    let mut bench = connected(&[rule], json!({}));
    says(&mut bench, 0, harmless);
    says(&mut bench, 0, beginning);
    is_dropped(&mut bench, len as u32, rest, PolicyDenied);
    let mut bench = connected(&[rule], json!({}));
    says(&mut bench, 0, harmless);
    says(&mut bench, len as u32, rest);
    is_dropped(&mut bench, 0, beginning, FunctionDenied);
    bench
}

/// A segment behind a gap is dropped, and retransmitted behind the missing bytes: the
/// pattern over all three segments is found.
#[test]
pub(crate) fn a_segment_behind_a_gap_comes_again() {
    let mut bench = connected(&[NO_SHELL], json!({}));
    says(&mut bench, 0, b"x/b");
    is_dropped(&mut bench, 6, b"sh", StateInvalid);
    assert_eq!(bench.counter("out_of_order"), 1);
    // A segment without bytes waits for none.
    bench.unchanged(&segment(0, FIRST[0] + 8, FIRST[1], &[]));
    says(&mut bench, 3, b"in/");
    is_dropped(&mut bench, 6, b"sh", PolicyDenied);
    assert_eq!((bench.counter("1"), bench.state()), (1, "dropped"));
}

/// The receiver may not have had a segment's first copy: other bytes in its place are
/// inspected, too.
#[test]
pub(crate) fn bytes_that_come_again_are_inspected_again() {
    let mut bench = connected(&[NO_SHELL], json!({}));
    says(&mut bench, 0, b"x/bi");
    says(&mut bench, 4, b"n-ok!");
    // Identical bytes pass, in one segment or in several.
    says(&mut bench, 4, b"n-ok!");
    says(&mut bench, 0, b"x/bin-ok!");
    assert_eq!((bench.counter("again"), bench.counter("again_other_bytes")), (2, 0));
    is_dropped(&mut bench, 4, b"n/sh!", PolicyDenied);
}

/// Retransmitted bytes that differ could be the first half of a pattern whose second half
/// has passed.
#[test]
pub(crate) fn bytes_that_come_again_as_others_are_noticed() {
    for (uninspected, passes, logged) in [("drop", false, 0), ("pass", true, 0), ("alert", true, 1)]
    {
        let mut bench = connected(&[NO_SHELL], json!({ "uninspected": uninspected }));
        says(&mut bench, 0, b"harmless");
        says(&mut bench, 8, b"n/sh");
        passes_if(&mut bench, 0, b"xxxxx/bi", passes);
        assert_eq!(bench.counter("again_other_bytes"), 1);
        assert_eq!(bench.logged().len(), logged);
        says(&mut bench, 12, b"the flow goes on");
    }
}

/// Retransmitted bytes that differ could hold the first content of a rule whose second
/// one has passed.
#[test]
pub(crate) fn half_of_a_rule_that_comes_again_is_noticed() {
    let key = rule("drop", "content:\"key\"; content:\"B\"; distance:0; sid:1;");
    retransmits_a_beginning(&key, b"a key is", b"AB");
}

/// Overlapping bytes are inspected in both readings, and new bytes behind them continue
/// the stream.
#[test]
fn overlaps_are_read_both_ways() {
    let mut bench = connected(&[SHELL], json!({}));
    says(&mut bench, 0, b"x/bi");
    says(&mut bench, 4, b"n/");
    says(&mut bench, 4, b"n/sh/b");
    assert_eq!(bench.counter("1"), 1);
    // States inside of a segment are unknown: the old byte `b` is inspected alone.
    is_dropped(&mut bench, 9, b"bin/sh", FunctionDenied);
    assert_eq!((bench.counter("1"), bench.counter("again_alone")), (1, 1));
    says(&mut bench, 10, b"in/sh");
    assert_eq!(bench.counter("1"), 2);
}

/// Retransmitted bytes that the receiver has acknowledged pass, whatever they are: the
/// receiver ignores them.
#[test]
fn what_is_acknowledged_is_not_inspected() {
    let mut bench = connected(&[NO_SHELL], json!({ "retransmissions": "drop" }));
    says(&mut bench, 0, b"harmless");
    acknowledges(&mut bench, 8);
    says(&mut bench, 7, b"s");
    says(&mut bench, 0, b"/bin/sh!");
    assert_eq!((bench.counter("again"), bench.counter("1")), (0, 0));
    // An acknowledgement of bytes that were never sent is ignored.
    says(&mut bench, 8, b"harmless");
    acknowledges(&mut bench, 17);
    is_dropped(&mut bench, 8, b"/bin/sh!", PolicyDenied);
}

/// Retransmitted bytes without remembered borders, across which no pattern can lie, pass
/// or are dropped, as configured.
#[test]
fn bytes_whose_beginning_is_not_remembered() {
    for (retransmissions, passes) in [("inspect", true), ("pass", true), ("drop", false)] {
        let mut bench = connected(&[NO_SHELL], json!({ "retransmissions": retransmissions }));
        for at in 0..17 {
            says(&mut bench, at * 8, b"harmless");
        }
        says(&mut bench, 16, b"harmless");
        assert_eq!(bench.counter("again_alone"), 0);
        for at in [8, 20] {
            passes_if(&mut bench, at, b"harmless", passes);
        }
        assert_eq!((bench.counter("again_alone"), bench.counter("again_uncertain")), (2, 0));
        is_dropped(&mut bench, 0, b"/bin/sh!", PolicyDenied);
    }
}

/// The first half of a pattern replaces bytes of a segment that the receiver never had,
/// and ends inside of it.
#[test]
pub(crate) fn half_of_a_pattern_that_ends_inside_of_a_segment_is_noticed() {
    for (more, passes, logged) in [
        (json!({}), false, 0),
        (json!({ "uninspected": "alert" }), true, 1),
        (json!({ "uninspected": "pass" }), true, 0),
        (json!({ "retransmissions": "pass" }), true, 0),
        (json!({ "retransmissions": "drop" }), false, 0),
    ] {
        let mut bench = connected(&[NO_SHELL], more);
        says(&mut bench, 0, b"xxxxxxxx");
        passes_if(&mut bench, 0, b"/bi", passes);
        assert_eq!((bench.counter("again_alone"), bench.counter("again_uncertain")), (1, 1));
        assert_eq!(bench.logged().len(), logged);
    }
}

/// A segment with a wrong checksum is dropped and leaves no trace.
#[test]
fn damaged_segments_are_dropped() {
    let mut bench = ips(&[NO_SHELL], json!({}));
    let damaged = |packet: &str| {
        let mut frame = crate::words::frame(packet);
        // Offset of the checksum of a TCP header behind an IPv4 header without options.
        frame[14 + 20 + 16] ^= 1;
        frame
    };
    let syn = format!("tcp {CLIENT} > {SERVER} SYN seq 77");
    assert_eq!(bench.send_unchecked(&damaged(&syn)), Err(DropReason::BadChecksum));
    connect(&mut bench, FIRST);
    let decoy = damaged(&segment(0, FIRST[0], FIRST[1], b"xxxxxxxx"));
    assert_eq!(bench.send_unchecked(&decoy), Err(DropReason::BadChecksum));
    says(&mut bench, 0, b"/bi");
    is_dropped(&mut bench, 3, b"n/sh!", PolicyDenied);
    assert_eq!(bench.counter("again"), 0);
}

/// Acknowledged segments take no room: the last sixteen others are remembered.
#[test]
fn sixteen_unacknowledged_segments_are_remembered() {
    let mut bench = connected(&[NO_SHELL], json!({ "retransmissions": "drop" }));
    for at in 0..10 {
        says(&mut bench, at * 8, b"harmles/");
    }
    acknowledges(&mut bench, 80);
    for at in 10..26 {
        says(&mut bench, at * 8, b"harmles/");
    }
    for at in 10..26 {
        says(&mut bench, at * 8, b"harmles/");
    }
    assert_eq!((bench.counter("again"), bench.counter("again_alone")), (16, 0));
    // The acknowledged bytes of a segment with a new beginning need not be read.
    acknowledges(&mut bench, 88);
    says(&mut bench, 84, b"les/harmles/");
    assert_eq!((bench.counter("again"), bench.counter("again_alone")), (17, 0));
}

/// Borders in the automata's start states are forgotten first: any number of segments may
/// be retransmitted. The first two and the last of the other borders are kept, and a
/// segment that could continue a forgotten pattern is dropped.
#[test]
pub(crate) fn what_is_forgotten_hides_nothing() {
    let mut bench = connected(&[NO_SHELL], json!({}));
    for at in 0..100 {
        says(&mut bench, at * 8, if at % 9 == 4 { b"harmles/" } else { b"harmless" });
    }
    for at in 0..100 {
        says(&mut bench, at * 8, if at % 9 == 4 { b"harmles/" } else { b"harmless" });
    }
    assert_eq!((bench.counter("again"), bench.counter("again_uncertain")), (100, 0));

    let mut bench = connected(&[NO_SHELL], json!({}));
    for at in 0..40 {
        says(&mut bench, at * 8, b"harmles/");
    }
    for at in [0, 39] {
        says(&mut bench, at * 8, b"harmles/");
    }
    assert_eq!(bench.counter("again_alone"), 0);
    is_dropped(&mut bench, 40, b"bin/sh!!", FunctionDenied);
    acknowledges(&mut bench, 304);
    says(&mut bench, 304, b"harmles/");
}

/// A refused segment does not move the stream.
#[test]
fn a_refused_segment_changes_nothing() {
    let mut bench = connected(&[SHELL], json!({ "retransmissions": "drop" }));
    says(&mut bench, 0, b"harmless");
    says(&mut bench, 8, b"harmless");
    is_dropped(&mut bench, 4, b"lessharmless/bin", FunctionDenied);
    says(&mut bench, 16, b"/sh harmless");
    assert_eq!((bench.counter("1"), bench.counter("again")), (0, 1));
    says(&mut bench, 28, b"/bin/sh");
    assert_eq!((bench.counter("1"), bench.counter("again")), (1, 1));
}

/// An expression that begins in retransmitted bytes sees the bytes that follow, or the
/// retransmitted ones are dropped.
#[test]
fn expressions_in_bytes_that_come_again() {
    let anywhere = rule("drop", "pcre:\"/k[a-z]/\"; content:\"23\"; distance:0; sid:1;");
    let mut bench = retransmits_a_beginning(&anywhere, b"key-", b"23");
    assert_eq!(bench.counter("again_other_bytes"), 1);
    let number = rule("drop", "content:\"k\"; pcre:\"/^[0-9]*;/R\"; sid:1;");
    let mut bench = retransmits_a_beginning(&number, b"xk11", b"2;");
    assert_eq!((bench.counter("again_alone"), bench.counter("again_uncertain")), (1, 1));
}

/// Bytes before a stream's beginning are dropped, except the one byte of a keep-alive
/// probe.
#[test]
pub(crate) fn bytes_before_the_beginning_are_dropped() {
    let mut bench = connected(&[NO_SHELL], json!({}));
    says(&mut bench, u32::MAX, b"/");
    assert_eq!(bench.counter("again_uncertain"), 0);
    for at in [u32::MAX, 0u32.wrapping_sub(1 << 30)] {
        is_dropped(&mut bench, at, b"harmless", FunctionDenied);
    }
    assert_eq!(bench.counter("again_uncertain"), 2);
    says(&mut bench, 0, b"harmless");
    acknowledges(&mut bench, 8);
    is_dropped(&mut bench, 0u32.wrapping_sub(100), b"harmless", FunctionDenied);
}

/// Segments before the first one seen of a midstream flow may be retransmissions: they
/// are inspected by themselves.
#[test]
fn bytes_before_the_middle_are_inspected() {
    let mut bench = ips(&[NO_SHELL], json!({}));
    says(&mut bench, 1000, b"harmless");
    says(&mut bench, 8, b"harmless");
    assert_eq!((bench.counter("midstream"), bench.counter("again_alone")), (1, 1));
    is_dropped(&mut bench, 16, b"x/bi", FunctionDenied);
    is_dropped(&mut bench, 16, b"/bin/sh", PolicyDenied);
}

/// A SYN inside of a connection hides no bytes if the other end refuses it; an answered
/// one begins a new stream.
#[test]
pub(crate) fn a_syn_begins_anew_only_if_it_is_answered() {
    let mut bench = connected(&[NO_SHELL], json!({}));
    says(&mut bench, 0, b"x/bin");
    bench.unchanged(&format!("tcp {CLIENT} > {SERVER} SYN seq {}", FIRST[0] + 4));
    bench.unchanged(&format!("tcp {CLIENT} > {SERVER} SYN seq {}", FIRST[0] - 1));
    is_dropped(&mut bench, 5, b"/sh", PolicyDenied);

    let mut bench = connected(&[NO_SHELL], json!({}));
    says(&mut bench, 0, b"x/bin");
    connect(&mut bench, [90_000, 100]);
    bench.unchanged(&segment(0, 90_000, 100, b"/sh and /bi"));
    bench.drops(&segment(0, 90_011, 100, b"n/sh"), PolicyDenied);
}

/// Data with a SYN are dropped, because the receiver may take them or not; the sender
/// retransmits them without the SYN.
#[test]
fn data_with_a_syn_are_dropped() {
    let mut bench = ips(&[SHELL], json!({}));
    let first = hex(b"/bin");
    let syn = format!("tcp {CLIENT} > {SERVER} SYN seq {}", FIRST[0] - 1);
    bench.drops(&format!("{syn} {first}"), FunctionDenied);
    assert_eq!(bench.counter("syn_with_data"), 1);
    connect(&mut bench, FIRST);
    says(&mut bench, 0, b"/bin");
    says(&mut bench, 4, b"/sh");
    assert_eq!(bench.counter("1"), 1);
}
