//! The IPS over flows: patterns across borders of segments, actions of matches, room for
//! rules in part, flows that move, and a comparison with a search of the whole stream.
//!
//! [`connected`] opens a scenario's connection; [`says`] sends its client's segments.

use crate::bench::Bench;
use holdfast_wire::DropReason::{self, FunctionDenied, PolicyDenied, StateInvalid};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

pub(crate) const CLIENT: &str = "10.0.0.2:1000";
pub(crate) const SERVER: &str = "203.0.113.10:80";

/// The sequence numbers of the first bytes, forward and reverse.
pub(crate) const FIRST: [u32; 2] = [1000, 5000];

/// An IPS with these rules and further options.
pub(crate) fn ips(rules: &[impl AsRef<str>], more: Value) -> Bench {
    let rules: Vec<&str> = rules.iter().map(AsRef::as_ref).collect();
    let mut config = json!({ "rules": rules });
    let map = config.as_object_mut().expect("a map");
    map.extend(more.as_object().cloned().unwrap_or_default());
    Bench::new(&[("ips", config)])
}

/// Like [`ips`], with a connection opened at the sequence numbers [`FIRST`].
pub(crate) fn connected(rules: &[impl AsRef<str>], more: Value) -> Bench {
    let mut bench = ips(rules, more);
    connect(&mut bench, FIRST);
    bench
}

/// A rule for packets of any protocol, with these options.
pub(crate) fn rule(action: &str, options: &str) -> String {
    format!("{action} ip any any -> any any ({options})")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "len 0".to_owned();
    }
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("hex {digits}")
}

/// A segment of this direction, in words.
pub(crate) fn segment(way: usize, sequence: u32, acknowledged: u32, bytes: &[u8]) -> String {
    let (from, to) = if way == 0 { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
    format!("tcp {from} > {to} PSH ACK seq {sequence} ack {acknowledged} {}", hex(bytes))
}

/// Opens a connection by its handshake.
pub(crate) fn connect(bench: &mut Bench, first: [u32; 2]) {
    let [client, server] = first.map(|first| first.wrapping_sub(1));
    bench.unchanged(&format!("tcp {CLIENT} > {SERVER} SYN seq {client}"));
    bench.unchanged(&format!("tcp {SERVER} > {CLIENT} SYN ACK seq {server} ack {}", first[0]));
    bench.unchanged(&format!("tcp {CLIENT} > {SERVER} ACK seq {} ack {}", first[0], first[1]));
}

/// Sends the client's segment `at` bytes behind the first one, nothing acknowledged. The
/// segment must pass.
#[track_caller]
pub(crate) fn says(bench: &mut Bench, at: u32, bytes: &[u8]) {
    bench.unchanged(&segment(0, FIRST[0].wrapping_add(at), FIRST[1], bytes));
}

#[track_caller]
pub(crate) fn is_dropped(bench: &mut Bench, at: u32, bytes: &[u8], reason: DropReason) {
    bench.drops(&segment(0, FIRST[0].wrapping_add(at), FIRST[1], bytes), reason);
}

/// Lets the server acknowledge the client's bytes up to `at`.
pub(crate) fn acknowledges(bench: &mut Bench, at: u32) {
    bench.unchanged(&segment(1, FIRST[1], FIRST[0].wrapping_add(at), &[]));
}

pub(crate) const SHELL: &str = "alert tcp any any -> any any (content:\"/bin/sh\"; sid:1;)";
pub(crate) const NO_SHELL: &str = "drop tcp any any -> any any (content:\"/bin/sh\"; sid:1;)";

/// Sends the pieces in order, and returns how often rule 1 matched.
fn matches(rule: &str, pieces: &[&[u8]]) -> u64 {
    let mut bench = connected(&[rule], json!({}));
    let mut at = 0;
    for piece in pieces {
        says(&mut bench, at, piece);
        at += piece.len() as u32;
    }
    bench.counter("1")
}

/// A pattern is found once, however the stream is cut into two or three segments.
#[test]
pub(crate) fn a_pattern_is_found_across_every_border() {
    let stream = b"xx/bin//bin/sh/y";
    for first in 1..stream.len() {
        for second in first + 1..=stream.len() {
            let pieces = [&stream[..first], &stream[first..second], &stream[second..]];
            assert_eq!(matches(SHELL, &pieces), 1, "{first} {second}");
        }
    }
    let bytes: Vec<&[u8]> = stream.chunks(1).collect();
    assert_eq!(matches(SHELL, &bytes), 1, "one byte at a time");
    assert_eq!(matches(SHELL, &[b"/bin", b"/bash"]), 0);
}

/// Sequence numbers may wrap anywhere in a pattern.
#[test]
fn sequence_numbers_wrap() {
    for wrap in 0..9u32 {
        let mut bench = ips(&[SHELL], json!({}));
        let first = [0u32.wrapping_sub(wrap), u32::MAX];
        connect(&mut bench, first);
        for (at, byte) in b"/bin/sh".iter().enumerate() {
            let sequence = first[0].wrapping_add(at as u32);
            bench.unchanged(&segment(0, sequence, first[1], &[*byte]));
        }
        assert_eq!(bench.counter("1"), 1, "{wrap}");
    }
}

/// Each direction is a stream of its own.
#[test]
fn each_direction_is_a_stream() {
    let mut bench = connected(&[SHELL], json!({}));
    says(&mut bench, 0, b"/bin");
    bench.unchanged(&segment(1, FIRST[1], FIRST[0], b"/sh"));
    assert_eq!(bench.counter("1"), 0);
    bench.unchanged(&segment(1, FIRST[1] + 3, FIRST[0], b"/bin/"));
    says(&mut bench, 4, b"/sh");
    assert_eq!(bench.counter("1"), 1);
    bench.unchanged(&segment(1, FIRST[1] + 8, FIRST[0], b"sh"));
    assert_eq!(bench.counter("1"), 2);
}

/// A flow whose beginning was not seen is inspected from where it is first seen.
#[test]
fn a_flow_in_its_middle_is_inspected_from_there() {
    let mut bench = ips(&[NO_SHELL], json!({}));
    says(&mut bench, 77, b"x/bin");
    bench.unchanged(&segment(1, 99, FIRST[0], b"y"));
    assert_eq!(bench.counter("midstream"), 2);
    is_dropped(&mut bench, 82, b"/sh", PolicyDenied);
}

/// The action of a matching rule, for the packet and for later ones of both directions.
#[test]
fn what_a_match_leads_to() {
    let evil = |action: &str| rule(action, "msg:\"evil\"; content:\"evil\"; sid:5; rev:2;");
    let talk = |action: &str| {
        let mut bench = ips(&[&evil(action)], json!({}));
        bench.ingress = 3;
        connect(&mut bench, FIRST);
        bench
    };
    let (client, server) = (segment(0, FIRST[0], FIRST[1], b"evil"), segment(1, FIRST[1], 0, b"a"));
    let name = "5 rev 2 \"evil\"";

    let mut bench = talk("alert");
    bench.unchanged(&client);
    bench.unchanged(&server);
    assert_eq!((bench.counter(name), bench.state()), (1, "alerted"));
    assert_eq!(bench.logged(), [format!("0 3 tcp {CLIENT} > {SERVER}")]);

    let mut bench = talk("drop");
    bench.drops(&client, PolicyDenied);
    bench.drops(&server, PolicyDenied);
    assert_eq!((bench.counter(name), bench.state()), (1, "dropped"));
    assert_eq!(bench.logged().len(), 1);

    let mut bench = talk("reject");
    bench.rejects(&client, PolicyDenied);
    bench.rejects(&server, PolicyDenied);
    assert_eq!((bench.counter(name), bench.state()), (1, "rejected"));

    let drop = rule("drop", "content:\"ev\"; sid:6;");
    let mut bench = connected(&[&drop, &evil("pass")], json!({}));
    bench.unchanged(&client);
    // Neither order nor contents matter after a `pass` rule.
    bench.unchanged(&segment(0, FIRST[0] + 9, FIRST[1], b"evil"));
    assert_eq!((bench.counter(name), bench.counter("6"), bench.state()), (1, 0, "passed"));
    assert_eq!(bench.logged().len(), 0);
    assert_eq!(bench.explained, [format!("not inspected, by its rule {name}")]);
    // The next connection of these ports is another one.
    connect(&mut bench, [90_000, 100]);
    bench.drops(&segment(0, 90_000, 100, b"ev"), PolicyDenied);
}

/// A rule that matches several times in a packet counts once; a silent one is not logged.
#[test]
fn a_rule_counts_once_per_packet() {
    let (loud, silent) =
        (rule("alert", "content:\"a\"; sid:1;"), rule("alert", "content:\"b\"; noalert; sid:2;"));
    let mut bench = connected(&[&loud, &silent], json!({}));
    says(&mut bench, 0, b"aabbaab");
    says(&mut bench, 7, b"a");
    assert_eq!((bench.counter("1"), bench.counter("2"), bench.logged().len()), (2, 1, 2));
}

/// Each datagram is inspected by itself, in both address families and all protocols but
/// TCP.
#[test]
fn datagrams_are_inspected_by_themselves() {
    let evil = rule("alert", "content:\"evil\"; sid:1;");
    let mut bench = ips(&[&evil], json!({}));
    let evil = hex(b"an evil one");
    for (at, packet) in (1u64..).zip([
        format!("udp 10.0.0.2:5 > 203.0.113.10:53 {evil}"),
        format!("udp 203.0.113.10:53 > 10.0.0.2:5 {evil}"),
        format!("udp [2001:db8::1]:5 > [2001:db8::2]:53 {evil}"),
        format!("icmp 10.0.0.2 > 203.0.113.10 echo id 4 {evil}"),
        format!("icmp 2001:db8::1 > 2001:db8::2 echo id 4 {evil}"),
        format!("tcp [2001:db8::1]:9 > [2001:db8::2]:80 ACK seq 7 {evil}"),
    ]) {
        bench.unchanged(&packet);
        assert_eq!(bench.counter("1"), at, "{packet}");
    }
    bench.unchanged(&format!("udp 10.0.0.2:5 > 203.0.113.10:53 {}", hex(b"ev")));
    bench.unchanged(&format!("udp 10.0.0.2:5 > 203.0.113.10:53 {}", hex(b"il")));
    bench.unchanged(
        "icmp 203.0.113.10 > 10.0.0.2 unreachable quoting udp 10.0.0.2:5 > 203.0.113.10:53",
    );
    assert_eq!(bench.counter("1"), 6);
}

/// Fragments, which are not reassembled, are dropped or pass, as configured: a pattern
/// may lie across them.
#[test]
fn fragments_are_not_inspected_together() {
    let evil = rule("alert", "content:\"evil\"; sid:1;");
    let udp = "udp 10.0.0.2:5 > 203.0.113.10:53 len 16 more";
    let later = "fragment 10.0.0.2 > 203.0.113.10 udp offset 24 len 8";
    let mut bench = ips(&[&evil], json!({}));
    bench.unchanged("udp 10.0.0.2:5 > 203.0.113.10:53");
    bench.drops(udp, FunctionDenied);
    bench.drops(later, FunctionDenied);
    let mut bench = ips(&[&evil], json!({ "uninspected": "pass" }));
    bench.unchanged(udp);
    bench.unchanged(later);
    bench.unchanged("tcp 10.0.0.2:5 > 203.0.113.10:53 ACK len 12 more");
    assert_eq!(bench.counter("fragment"), 3);
}

/// A flow has room for twelve rules that have matched in part. A flow with more is
/// dropped, or goes on with those twelve, as configured.
#[test]
fn a_full_table_is_counted_and_fails_as_configured() {
    let rules: Vec<String> = (1..=13)
        .map(|at| {
            let place = format!("depth:{}; content:\"{at}.\"; distance:0", 100 + at);
            rule("alert", &format!("content:\"key\"; {place}; sid:{at};"))
        })
        .collect();
    for (uninspected, logged) in [("pass", 0), ("alert", 1), ("drop", 0)] {
        let mut bench = connected(&rules, json!({ "uninspected": uninspected }));
        if uninspected == "drop" {
            is_dropped(&mut bench, 0, b"a key", FunctionDenied);
            assert_eq!((bench.counter("table_full"), bench.state()), (1, "dropped"));
            is_dropped(&mut bench, 5, b"", FunctionDenied);
            continue;
        }
        says(&mut bench, 0, b"a key");
        assert_eq!((bench.counter("table_full"), bench.logged().len()), (1, logged));
        says(&mut bench, 5, b"12.");
        assert_eq!(bench.counter("12"), 1);
    }
}

/// Rules that begin alike share a place, whether their next content is relative or not.
#[test]
fn rules_that_begin_alike_take_one_place() {
    for place in ["", "distance:0;"] {
        let options = |at: u32| {
            format!("content:\"GET \"; content:\"/{at}.\"; {place} content:\"!\"; sid:{at};")
        };
        let server = rule("alert", "flow:to_client; content:\"GET \"; content:\"/10.\"; sid:1;");
        let mut rules = vec![server];
        rules.extend((10..60).map(|at| rule("alert", &options(at))));
        let mut bench = connected(&rules, json!({}));
        says(&mut bench, 0, b"GET ");
        says(&mut bench, 4, b"/10. and /59.");
        assert_eq!((bench.counter("10"), bench.counter("table_full")), (0, 0));
        says(&mut bench, 17, b"!");
        let counters = ["10", "11", "59", "1"].map(|name| bench.counter(name));
        assert_eq!((counters, bench.counter("table_full")), ([1, 0, 1, 0], 0));
    }
}

/// A match of a first content frees its place once the next content can no longer follow:
/// any number of them may follow each other.
#[test]
fn matches_that_lead_nowhere_take_no_room() {
    let near = rule("drop", "content:\"a\"; content:\"b\"; distance:0; within:1; sid:1;");
    let mut bench = connected(&[&near], json!({}));
    for at in 0..4 {
        says(&mut bench, at * 100, "a...".repeat(25).as_bytes());
    }
    says(&mut bench, 200, "a...".repeat(50).as_bytes());
    assert_eq!((bench.counter("table_full"), bench.counter("again_other_bytes")), (0, 0));
    is_dropped(&mut bench, 400, b"ab", PolicyDenied);
}

/// A live flow is inspected under new rules from its next byte on, and keeps its place in
/// the stream.
#[test]
pub(crate) fn rules_change_while_flows_live() {
    let mut before = connected(&[SHELL], json!({}));
    says(&mut before, 0, b"some text and /bin");
    let other = rule("drop", "content:\"/binary\"; sid:1;");
    let places = rule("alert", "content:\"ary\"; offset:18; depth:3; sid:2;");
    let mut after = ips(&[&other, &places], json!({}));
    after.takes_over(&mut before, true);
    is_dropped(&mut after, 30, b"x", StateInvalid);
    says(&mut after, 18, b"ary");
    assert_eq!((after.counter("rules_changed"), after.counter("2")), (1, 1));
    says(&mut after, 21, b" /bin");
    is_dropped(&mut after, 26, b"ary", PolicyDenied);
    assert_eq!(after.counter("rules_changed"), 1);
    // Identical rules make identical automata: the flow keeps its states.
    let mut again = ips(&[&other, &places], json!({}));
    again.takes_over(&mut after, true);
    is_dropped(&mut again, 29, b"", PolicyDenied);
    assert_eq!(again.counter("rules_changed"), 0);
}

/// A flow's state moves with the flow in the middle of a pattern.
#[test]
fn a_pattern_is_found_across_a_failure() {
    let mut first = connected(&[NO_SHELL], json!({}));
    says(&mut first, 0, b"x/bin");
    let mut second = ips(&[NO_SHELL], json!({}));
    second.takes_over(&mut first, false);
    is_dropped(&mut second, 5, b"/sh", PolicyDenied);
    assert!(!second.nondeterministic);
}

/// A flow that a weak protection recovers in an older state goes on where its next
/// segment begins: bytes that have passed meanwhile are not retransmitted.
#[test]
fn a_flow_that_was_set_back_goes_on() {
    let depth = rule("drop", "content:\"new\"; depth:3; sid:2;");
    let mut bench = connected(&[NO_SHELL, &depth], json!({}));
    says(&mut bench, 0, b"harmless");
    let then = bench.remember();
    says(&mut bench, 8, b"harmless");
    bench.set_back(then, 1);
    says(&mut bench, 16, b"new and /bin");
    assert_eq!((bench.counter("midstream"), bench.counter("out_of_order")), (1, 0));
    is_dropped(&mut bench, 28, b"/sh", PolicyDenied);
}

/// An expression without `R` is found across borders of segments and a failure, in
/// retransmitted bytes too, once per packet in which a match ends.
#[test]
fn an_expression_is_searched_from_the_beginning() {
    let key = rule("drop", "content:\"!\"; pcre:\"/key=[0-9]+;/\"; sid:1;");
    let word = rule("alert", "pcre:\"/(?i)word/\"; sid:2;");
    let first = rule("alert", "pcre:\"/^x?key/\"; sid:3;");
    let rules = [&key, &word, &first];
    let mut before = connected(&rules, json!({}));
    says(&mut before, 0, b"xkey=1");
    says(&mut before, 0, b"xkey=1");
    says(&mut before, 6, b" key=23");
    assert_eq!((before.counter("3"), before.counter("again")), (2, 1));
    let mut after = ips(&rules, json!({}));
    after.takes_over(&mut before, false);
    says(&mut after, 13, b"4; WoRd");
    assert_eq!(after.counter("2"), 1, "a match ends with the segment");
    says(&mut after, 20, b" xkey");
    assert_eq!((after.counter("2"), after.counter("3")), (1, 0), "it ended once, and `^` is past");
    // The second copy would begin a match that the first one did not begin.
    is_dropped(&mut after, 13, b"5; key=", FunctionDenied);
    assert_eq!(after.counter("again_other_bytes"), 1);
    is_dropped(&mut after, 25, b"!", PolicyDenied);
}

/// An expression over three segments is found, the one in the middle late, and with an
/// `^` that is the beginning of the stream only.
#[test]
fn an_expression_waits_for_a_segment_that_is_late() {
    let rules = [rule("drop", "pcre:\"/^GET \\/[a-z]+\\.sh/\"; sid:1;")];
    let mut before = connected(&rules, json!({}));
    says(&mut before, 0, b"GET /ab");
    is_dropped(&mut before, 10, b".sh", StateInvalid);
    let mut after = ips(&rules, json!({}));
    after.takes_over(&mut before, false);
    says(&mut after, 7, b"cde");
    is_dropped(&mut after, 10, b".sh", PolicyDenied);
    assert_eq!(after.counter("1"), 1);
}

/// A flow has room for four expressions with `R` under way.
#[test]
fn more_expressions_under_way_than_there_is_room() {
    let rules: Vec<String> = (1..=5)
        .map(|at| rule("alert", &format!("content:\"key\"; pcre:\"/.*{at}!/R\"; sid:{at};")))
        .collect();
    let mut bench = connected(&rules, json!({ "uninspected": "pass" }));
    says(&mut bench, 0, b"a key ");
    says(&mut bench, 6, b"4! 5!");
    assert_eq!(["4", "5", "table_full"].map(|name| bench.counter(name)), [1, 0, 1]);
    let mut bench = connected(&rules, json!({}));
    is_dropped(&mut bench, 0, b"a key ", FunctionDenied);
    assert_eq!((bench.counter("table_full"), bench.state()), (1, "dropped"));
}

/// A border that is not remembered is one at which no pattern is under way. An expression
/// that never ends, once begun, makes bytes uncertain there, and no others.
#[test]
fn an_expression_under_way_keeps_borders() {
    let never_ends = rule("alert", "pcre:\"/begin.*end/s\"; sid:1;");
    let mut bench = connected(&[&never_ends], json!({}));
    for at in 0..40 {
        says(&mut bench, at, b"x");
    }
    says(&mut bench, 10, b"xxx");
    assert_eq!(bench.counter("again_uncertain"), 0);
    says(&mut bench, 40, b"begin");
    for at in 45..85 {
        says(&mut bench, at, b"x");
    }
    // The latest of sixteen beginnings is known, an earlier one is not.
    says(&mut bench, 84, b"x");
    assert_eq!(bench.counter("again_uncertain"), 0);
    is_dropped(&mut bench, 60, b"x", FunctionDenied);
    assert_eq!(bench.counter("again_uncertain"), 1);
}

/// Thousands of patterns, too many for a table with a row per state, are found.
#[test]
fn thousands_of_patterns() {
    let text: String = (1..=3000)
        .map(|at| {
            format!("alert tcp any any -> any any (content:\"pattern-{at}.\"; nocase; sid:{at};)\n")
        })
        .collect();
    let mut bench = connected(&[&text], json!({}));
    says(&mut bench, 0, b"PATTERN-2");
    says(&mut bench, 9, b"999. pattern-");
    says(&mut bench, 22, b"1. pattern-3001.");
    assert_eq!((bench.counter("2999"), bench.counter("1"), bench.counter("3000")), (1, 1, 0));
}

/// A content of a random rule.
#[derive(Debug, Clone)]
struct Piece {
    bytes: String,
    is_nocase: bool,
    is_relative: bool,
    least: Option<i32>,
    most: Option<i32>,
    /// True if it is written as an expression.
    is_expression: bool,
}

fn piece() -> impl Strategy<Value = Piece> {
    let place = (any::<bool>(), proptest::option::of(0i32..6), proptest::option::of(0i32..8));
    ("[abAB]{1,3}", any::<bool>(), place, any::<bool>()).prop_map(
        |(bytes, is_nocase, (is_relative, least, most), is_expression)| {
            let len = bytes.len() as i32;
            let least = match is_relative && least.is_none() && most.is_none() {
                true => Some(0),
                // A relative place may begin before the end of the match before.
                false => least.map(|least| if is_relative { least - len + 1 } else { least }),
            };
            let is_expression = is_expression && least.is_none() && most.is_none();
            let most = most.map(|most| len + most);
            Piece { bytes, is_nocase, is_relative, least, most, is_expression }
        },
    )
}

/// The pieces of a rule. A content behind an expression has no `within`.
fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    proptest::collection::vec(piece(), 1..4).prop_map(|mut pieces| {
        for at in 1..pieces.len() {
            if pieces[at - 1].is_expression && pieces[at].is_relative {
                pieces[at].most = None;
                pieces[at].least.get_or_insert(0);
            }
        }
        pieces
    })
}

impl Piece {
    fn options(&self, is_first: bool) -> String {
        if self.is_expression {
            return format!("pcre:\"/{}/{}\";", self.bytes, if self.is_nocase { "i" } else { "" });
        }
        let [least, most] = if self.is_relative && !is_first {
            ["distance", "within"]
        } else {
            ["offset", "depth"]
        };
        let mut options = format!("content:\"{}\";", self.bytes);
        if self.is_nocase {
            options += " nocase;";
        }
        if let Some(from) = self.least {
            let from = if is_first { from.max(0) } else { from };
            options += &format!(" {least}:{from};");
        }
        if let Some(number) = self.most {
            options += &format!(" {most}:{number};");
        }
        options
    }
}

/// Searches the whole stream for the pieces, trying every place for each.
fn is_there(stream: &[u8], pieces: &[Piece], base: Option<usize>) -> bool {
    let Some((piece, rest)) = pieces.split_first() else { return true };
    let is_relative = piece.is_relative && base.is_some();
    let from = if is_relative { base.unwrap_or(0) as i32 } else { 0 };
    let mut least = piece.least.unwrap_or(0);
    if base.is_none() {
        least = least.max(0);
    }
    let len = piece.bytes.len();
    (0..=stream.len().saturating_sub(len)).any(|at| {
        let Some(here) = stream.get(at..at + len) else { return false };
        let is_equal = match piece.is_nocase {
            true => here.eq_ignore_ascii_case(piece.bytes.as_bytes()),
            false => here == piece.bytes.as_bytes(),
        };
        let end = (at + len) as i32;
        is_equal
            && at as i32 >= from + least
            && piece.most.is_none_or(|most| end <= from + least + most)
            && is_there(stream, rest, Some(at + len))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Rules match exactly if a search of the whole stream finds them, wherever segments
    /// begin and end, and whichever are retransmitted.
    #[test]
    fn what_matches_is_what_is_in_the_stream(
        rules in proptest::collection::vec(pieces(), 1..4),
        stream in "[abAB]{1,40}",
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
        again in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let stream = stream.into_bytes();
        let texts: Vec<String> = rules.iter().enumerate().map(|(at, pieces)| {
            let options: Vec<String> = pieces
                .iter()
                .enumerate()
                .map(|(at, piece)| piece.options(at == 0))
                .collect();
            rule("alert", &format!("{} sid:{};", options.join(" "), at + 1))
        }).collect();
        let mut bench = connected(&texts, json!({ "uninspected": "pass" }));
        let mut borders: BTreeSet<usize> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
        borders.extend([0, stream.len()]);
        let borders: Vec<usize> = borders.into_iter().collect();
        let again: BTreeSet<usize> =
            again.iter().map(|again| again.index(borders.len() - 1)).collect();
        for (number, range) in borders.windows(2).enumerate() {
            says(&mut bench, range[0] as u32, &stream[range[0]..range[1]]);
            if again.contains(&number) {
                // The segment before is retransmitted, alone and with this one.
                let from = borders[number.saturating_sub(1)];
                says(&mut bench, from as u32, &stream[from..range[0]]);
                says(&mut bench, from as u32, &stream[from..range[1]]);
            }
        }
        if bench.counter("table_full") == 0 {
            prop_assert_eq!(bench.counter("again_other_bytes"), 0);
            for (at, pieces) in rules.iter().enumerate() {
                prop_assert_eq!(
                    bench.counter(&format!("{}", at + 1)) > 0,
                    is_there(&stream, pieces, None),
                    "{} in {:?}", texts[at], String::from_utf8_lossy(&stream)
                );
            }
        }
    }

    /// Any bytes as a flow's state cause no panic and change no packet.
    #[test]
    fn rubbish_in_a_flows_state_does_no_harm(
        rubbish in proptest::collection::vec(any::<u8>(), 976),
        at in 0usize..976,
        len in 0usize..=976,
        is_small in any::<bool>(),
        digest in any::<bool>(),
    ) {
        let rules = [
            rule("alert", "content:\"a\"; content:\"b\"; distance:0; within:3; content:\"c\"; sid:1;"),
            rule("alert", "content:\"A\"; nocase; pcre:\"/b+c/R\"; content:\"d\"; distance:1; sid:2;"),
            rule("alert", "content:\"x\"; pcre:\"/^yz/Ri\"; sid:3;"),
            rule("alert", "pcre:\"/^a.*x/\"; pcre:\"/y?z/i\"; content:\"a\"; distance:0; sid:4;"),
        ];
        let mut bench = connected(&rules, json!({}));
        says(&mut bench, 0, b"abcAbbcdxyz");
        // Small numbers are more often those of rules, chains and steps.
        let rubbish: Vec<u8> =
            rubbish.iter().take(len).map(|byte| if is_small { byte % 4 } else { *byte }).collect();
        bench.overwrite(if digest { at } else { at.max(8) }, &rubbish);
        for at in [11, 0, 3, 11, 14, 500] {
            for way in 0..2 {
                let packet = segment(way, FIRST[way].wrapping_add(at), FIRST[1 - way], b"abcAbbcdxyza");
                if let Ok(out) = bench.send(&packet) {
                    prop_assert_eq!(out, crate::words::frame(&packet));
                }
            }
        }
    }
}
