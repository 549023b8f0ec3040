//! `dpi`: protocols, rules about them, and what is left of an undecided flow that moves.

use crate::bench::Bench;
use crate::http_conversation::End::{Client, Server};
use crate::http_conversation::{Conversation, get, ok};
use crate::words;
use holdfast_functions::catalog;
use holdfast_wire::DropReason::FunctionDenied;
use serde_json::{Value, json};

const BANNER: &[u8] = b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u7\r\n";
const NOISE: &[u8] = b"\x01\x02\x03 no protocol begins so";
/// DSCP 46 and 1, in the byte that they share with ECN.
const EF: u8 = 46 << 2;
const LE: u8 = 1 << 2;

fn config(rules: &[&str]) -> Value {
    json!({ "rules": rules })
}

/// A connection whose handshake has passed.
fn talk(config: &Value) -> Conversation {
    let mut talk = Conversation::through("dpi", config);
    talk.shake();
    talk
}

/// A question for an address (RFC 1035, section 4.1).
fn question() -> Vec<u8> {
    let mut bytes = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0".to_vec();
    bytes.extend(b"\x03www\x07example\x03org\0\0\x01\0\x01");
    bytes
}

fn datagram(port: u16, data: &[u8]) -> Vec<u8> {
    words::carrying(&format!("udp 10.0.0.2:{port} > 203.0.113.10:53"), data)
}

/// The byte of DSCP and ECN of a frame that came out.
fn tos(frame: &[u8]) -> u8 {
    frame[15]
}

fn wrong(rules: &[&str]) -> (String, Option<usize>, String) {
    let error = catalog::build("dpi", &config(rules)).map(|_| ()).expect_err("it is wrong");
    (error.path, error.offset, error.message)
}

/// A connection is named by its first words, and counted once.
#[test]
fn a_protocol_is_known_by_its_first_words() {
    let mut talk = talk(&config(&[]));
    assert_eq!(talk.bench.state(), "", "a handshake says nothing");
    talk.asks(get("/", "a.example"));
    assert_eq!(talk.bench.state(), "HTTP");
    talk.answers(ok("body"));
    for number in 0..40 {
        talk.asks(get(&format!("/{number}"), "a.example"));
        talk.answers(ok("body"));
    }
    assert_eq!((talk.count("HTTP"), talk.count("decided")), (1, 1));
    let inspected = talk.count("inspected");
    assert!((2..20).contains(&inspected), "{inspected} packets were inspected");
    assert!(talk.bench.explained[0].starts_with("HTTP (category Web), decided after"));
}

/// A flow is refused from the packet on that says what it is; others pass.
#[test]
fn a_protocol_is_refused() {
    let mut shell = talk(&config(&["deny protocol SSH|Telnet"]));
    assert_eq!(shell.says(Server, BANNER), Err(FunctionDenied));
    assert_eq!(shell.says(Client, BANNER), Err(FunctionDenied));
    assert!(!shell.bench.has_told());
    assert_eq!((shell.count("deny protocol SSH|Telnet"), shell.count("SSH")), (1, 1));
    let mut page = talk(&config(&["deny protocol SSH|Telnet"]));
    page.asks(get("/", "a.example"));
    page.answers(ok("body"));
    let mut told = talk(&config(&["reject category remoteaccess"]));
    assert_eq!(told.says(Client, BANNER), Err(FunctionDenied));
    assert!(told.bench.has_told());
}

/// The first rule that matches decides. A rule that counts leaves the decision to the
/// others.
#[test]
fn the_first_rule_decides() {
    let rules = ["count category Network", "allow protocol dns", "deny category Network"];
    let mut bench = Bench::new(&[("dpi", config(&rules))]);
    assert!(bench.send_frame(&datagram(1000, &question())).is_ok());
    bench.wait(1000);
    let counts = bench.counters();
    let of = |name: &str| counts.iter().find(|(known, _)| known == name).map(|(_, count)| *count);
    assert_eq!(of(rules[0]), Some(1));
    assert_eq!(of(rules[1]), Some(1));
    assert_eq!(of(rules[2]), None);
    let mut other = Bench::new(&[("dpi", config(&rules[2..]))]);
    assert_eq!(other.send_frame(&datagram(1000, &question())), Err(FunctionDenied));
}

/// Packets of a marked protocol have its DSCP, in both directions, from the packet on
/// that says what it is; ECN stays.
#[test]
fn a_protocol_is_marked() {
    let mut bench =
        Bench::new(&[("dpi", config(&["mark ef protocol DNS", "mark 1 protocol ICMP"]))]);
    let question = words::carrying("udp 10.0.0.2:1000 > 203.0.113.10:53 tos 3", &question());
    let out = bench.send_frame(&question).expect("it passes");
    assert_eq!(tos(&out), EF | 3);
    let back = bench.send("udp 203.0.113.10:53 > 10.0.0.2:1000 len 30").expect("it passes");
    assert_eq!(tos(&back), EF);
    let echo = bench.send("icmp 10.0.0.2 > 203.0.113.10 echo id 7").expect("it passes");
    assert_eq!(tos(&echo), LE);
    let noise = bench.send_frame(&datagram(1001, NOISE)).expect("it passes");
    assert_eq!(tos(&noise), 0);
}

/// After as many packets as the library gets, the protocol is unknown, which a rule may
/// name.
#[test]
fn a_flow_is_given_up() {
    let config = json!({ "rules": ["deny protocol Unknown"], "other_packets": 4 });
    let mut bench = Bench::new(&[("dpi", config)]);
    for _ in 0..3 {
        assert!(bench.send_frame(&datagram(1000, NOISE)).is_ok());
    }
    assert_eq!(bench.send_frame(&datagram(1000, NOISE)), Err(FunctionDenied));
    assert_eq!((bench.counter("given_up"), bench.counter("Unknown")), (1, 1));
    assert_eq!(bench.state(), "Unknown");
}

/// A decided flow keeps its protocol wherever it goes, and the library never sees it
/// again.
#[test]
fn a_decided_flow_keeps_its_protocol() {
    for is_alive in [true, false] {
        let rules = config(&["deny protocol SSH"]);
        let mut talk = talk(&rules);
        assert_eq!(talk.says(Server, BANNER), Err(FunctionDenied));
        let mut heir = Bench::new(&[("dpi", rules)]);
        heir.takes_over(&mut talk.bench, is_alive);
        talk.bench = heir;
        assert_eq!(talk.says(Client, NOISE), Err(FunctionDenied));
        assert!(!talk.bench.nondeterministic);
        assert_eq!(talk.bench.counter("inspected"), 0);
    }
}

/// A flow that moves before its first data is recognised as if it had not moved.
#[test]
fn a_handshake_may_move() {
    for is_alive in [true, false] {
        let mut talk = talk(&config(&[]));
        let mut heir = Bench::new(&[("dpi", config(&[]))]);
        heir.takes_over(&mut talk.bench, is_alive);
        talk.bench = heir;
        talk.answers(BANNER);
        talk.asks(BANNER);
        assert_eq!((talk.bench.state(), talk.bench.counter("cut_short")), ("SSH", 0));
    }
}

/// An undecided flow that moves is decided by what is known of it: nothing. It is
/// counted.
#[test]
fn an_undecided_flow_that_moves_is_unknown() {
    let mut talk = talk(&config(&["mark ef protocol Unknown"]));
    talk.asks(NOISE);
    let mut heir = Bench::new(&[("dpi", config(&["deny protocol Unknown"]))]);
    heir.takes_over(&mut talk.bench, true);
    core::mem::swap(&mut talk.bench, &mut heir);
    assert_eq!(talk.says(Client, NOISE), Err(FunctionDenied));
    assert_eq!((talk.bench.counter("cut_short"), talk.bench.counter("Unknown")), (1, 1));
    assert!(heir.counters().iter().all(|(name, _)| name != "Unknown"), "it was counted once");
}

/// A weak protection sets an undecided flow back: the library would miss packets, so the
/// flow is unknown. A decided one keeps its protocol.
#[test]
fn a_flow_that_is_set_back_is_decided() {
    let mut early = talk(&config(&[]));
    let before = early.bench.remember();
    early.asks(NOISE);
    early.bench.set_back(before, 1);
    early.answers(BANNER);
    assert_eq!((early.bench.state(), early.bench.counter("cut_short")), ("Unknown", 1));
    let mut late = talk(&config(&["deny protocol SSH"]));
    assert_eq!(late.says(Server, BANNER), Err(FunctionDenied));
    let before = late.bench.remember();
    late.bench.set_back(before, 1);
    assert_eq!(late.says(Client, NOISE), Err(FunctionDenied));
}

/// Inspected packets are marked as such that no protection processes again.
#[test]
fn inspected_packets_are_not_replayed() {
    let mut talk = talk(&config(&[]));
    assert!(!talk.bench.nondeterministic, "a handshake is not inspected");
    talk.asks(NOISE);
    assert!(talk.bench.nondeterministic);
}

/// Objects end with their flows, and there are never more than configured.
#[test]
fn objects_end_with_their_flows() {
    let mut bench = Bench::new(&[("dpi", json!({ "undecided_flows": 8 }))]);
    for port in 1..=100 {
        assert!(bench.send_frame(&datagram(port, NOISE)).is_ok());
    }
    let objects = |bench: &mut Bench| -> usize {
        bench.tables().iter().map(|table| table.values[0] as usize).sum()
    };
    assert_eq!(objects(&mut bench), 8);
    assert!(bench.send_frame(&datagram(1, NOISE)).is_ok());
    assert_eq!(bench.counter("cut_short"), 1);
    bench.wait(1000);
    assert_eq!((bench.flows(), objects(&mut bench)), (0, 0));
    assert_eq!(bench.counter("Unknown"), 100);
}

/// The library gets neither fragments nor packets that their receiver drops.
#[test]
fn unfit_packets_are_not_inspected() {
    let mut bench = Bench::new(&[("dpi", config(&[]))]);
    let mut frame = datagram(1000, &question());
    *frame.last_mut().expect("it has bytes") ^= 1;
    assert!(bench.send_unchecked(&frame).is_ok());
    assert!(bench.send("udp 10.0.0.2:1001 > 203.0.113.10:53 len 16 more").is_ok());
    assert_eq!((bench.counter("not_inspected"), bench.counter("inspected")), (2, 0));
}

/// A mistake has its place and the remedy.
#[test]
fn mistakes_have_their_places() {
    let (path, offset, message) = wrong(&["deny protocol DNS", "deny protocol DNS|SHH"]);
    assert_eq!((path.as_str(), offset), ("rules[1]", Some(18)));
    assert_eq!(message, "nDPI knows no protocol `SHH`; `ndpiReader -a 0` lists them");
    let (_, offset, message) = wrong(&["deny category network-things"]);
    assert_eq!(offset, Some(14));
    assert_eq!(message, "nDPI knows no category `network-things`; similar are `Network`");
    for (rule, offset, part) in [
        ("forbid protocol DNS", 0, "is not an action"),
        ("mark 64 protocol DNS", 5, "64 is not a DSCP"),
        ("mark", 4, "needs a DSCP"),
        ("deny", 4, "expected `protocol` or `category`"),
        ("deny protocols DNS", 5, "unknown word `protocols`"),
        ("deny protocol", 13, "needs a name"),
        ("deny protocol DNS SSH", 18, "several names are written `A|B`"),
    ] {
        let (_, at, message) = wrong(&[rule]);
        assert!(message.contains(part) && at == Some(offset), "{rule}: {message} at {at:?}");
    }
    let error = catalog::build("dpi", &json!({ "tcp_packets": 0 })).map(|_| ()).expect_err("none");
    assert_eq!(error.path, "tcp_packets");
}
