//! The translator's ports: each is leased once, the pool can run empty, and ports come
//! back when flows end.

use crate::bench::Bench;
use holdfast_wire::DropReason::{PoolEmpty, StateInvalid};
use serde_json::json;
use std::collections::BTreeSet;

/// 256 ports on one address.
fn small() -> Bench {
    Bench::new(&[("nat", json!({ "pool": ["198.51.100.4/32"], "ports": "5000-5255" }))])
}

fn fill(bench: &mut Bench) {
    for port in 0..256 {
        bench.passes(&format!("udp 10.0.0.2:{} > 203.0.113.10:53", 2000 + port));
    }
}

/// As many flows as there are ports: each has a port of the configured range to itself,
/// although all have one destination.
#[test]
pub(crate) fn every_flow_has_a_port_to_itself() {
    let mut bench = small();
    let mut seen = BTreeSet::new();
    for port in 0..256 {
        seen.insert(
            bench.passes(&format!("udp 10.0.0.2:{} > 203.0.113.10:53", 2000 + port)).0.port(),
        );
    }
    assert_eq!(seen, (5000..=5255).collect());
}

/// Random ports: each is leased once, and the whole range in the end, in no order. The
/// first packet of such a flow is non-deterministic.
#[test]
pub(crate) fn random_ports_are_in_no_order() {
    let mut bench =
        Bench::new(&[("nat", json!({ "pool": ["198.51.100.4/32"], "ports": "random 5000-6023" }))]);
    let mut seen = Vec::new();
    for port in 0..1024 {
        seen.push(
            bench.passes(&format!("udp 10.0.0.2:{} > 203.0.113.10:53", 2000 + port)).0.port(),
        );
        assert!(bench.nondeterministic);
        bench.passes(&format!("udp 10.0.0.2:{} > 203.0.113.10:53", 2000 + port));
        assert!(!bench.nondeterministic, "the mapping is there: nothing is drawn");
    }
    let rising = seen.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!((400..620).contains(&rising), "of 1,023 steps {rising} go up");
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), (5000..=6023).collect());
}

/// Text that is neither a range nor a keyword is refused, and the error says what is
/// accepted.
#[test]
fn what_ports_may_say() {
    let build = |ports: &str| {
        holdfast_functions::catalog::build(
            "nat",
            &json!({ "pool": ["198.51.100.4/32"], "ports": ports }),
        )
    };
    for right in ["random", "random 1024-65535", "5000-5255", "sequential", "sequential 5000-5255"]
    {
        assert!(build(right).is_ok(), "{right}");
    }
    for wrong in [
        "",
        "randomly",
        "random5000-5255",
        "random 5000",
        "5000-5255 random",
        "0-255",
        "6000-5000",
        "random random",
        "sequential random",
    ] {
        let error = build(wrong).err().unwrap_or_else(|| panic!("`{wrong}` is taken"));
        assert!(
            error.path == "ports" && error.message.contains("`random 1024-65535`"),
            "{error:?}"
        );
    }
}

/// The pool runs empty: the next flow is refused for that reason, and live ones go on in
/// both directions.
#[test]
pub(crate) fn an_empty_pool_refuses_new_flows_and_harms_none() {
    let mut bench = small();
    let first = bench.passes("udp 10.0.0.2:1999 > 203.0.113.10:53").0;
    for port in 0..255 {
        bench.passes(&format!("udp 10.0.0.2:{} > 203.0.113.10:53", 2000 + port));
    }
    for packet in [
        "udp 10.0.0.9:1000 > 203.0.113.10:53",
        "tcp 10.0.0.9:1000 > 203.0.113.10:80 SYN",
        "icmp 10.0.0.9 > 203.0.113.10 echo id 1",
    ] {
        bench.drops(packet, PoolEmpty);
    }
    assert_eq!(bench.flows(), 256);
    bench.becomes(
        "udp 10.0.0.2:1999 > 203.0.113.10:53 len 9",
        &format!("udp {first} > 203.0.113.10:53 len 9"),
    );
    bench.becomes(
        &format!("udp 203.0.113.10:53 > {first} len 9"),
        "udp 203.0.113.10:53 > 10.0.0.2:1999 len 9",
    );
}

/// Flows end, and all their ports can be leased again.
#[test]
fn ports_come_back_when_flows_end() {
    let mut bench = small();
    for _ in 0..3 {
        fill(&mut bench);
        assert_eq!(bench.free_numbers(), 0);
        bench.wait(301);
        assert_eq!((bench.flows(), bench.free_numbers()), (0, 256));
    }
}

/// A function behind the translator refuses the flow: there is no flow, and the port is
/// free again.
#[test]
fn a_port_comes_back_when_a_later_function_refuses_the_flow() {
    let mut bench = Bench::new(&[
        ("nat", json!({ "pool": ["198.51.100.4/32"], "ports": "5000-5255" })),
        ("firewall", json!({ "rules": ["allow udp from any to any port 53"] })),
    ]);
    bench.passes("udp 10.0.0.2:1000 > 203.0.113.10:53");
    for port in 2000..2600 {
        bench.drops(
            &format!("udp 10.0.0.2:{port} > 203.0.113.10:54"),
            holdfast_wire::DropReason::PolicyDenied,
        );
    }
    assert_eq!((bench.flows(), bench.free_numbers()), (1, 255));
}

/// An inside host keeps one outside address while that has ports (RFC 4787, REQ-2), and
/// gets another one after that.
#[test]
pub(crate) fn a_host_keeps_its_outside_address() {
    let mut bench =
        Bench::new(&[("nat", json!({ "pool": ["198.51.100.4/30"], "ports": "5000-5255" }))]);
    // All blocks are at hand only after enough flows have asked for them.
    for port in 0..1024 {
        bench.passes(&format!("udp 10.{}.0.3:{} > 203.0.113.10:53", port % 200, 2000 + port));
    }
    bench.wait(301);
    assert_eq!(bench.free_numbers(), 1024);
    for host in ["10.0.0.2", "10.0.0.7", "172.16.3.4"] {
        let addresses: BTreeSet<_> = (0..80)
            .map(|port| {
                bench.passes(&format!("udp {host}:{} > 203.0.113.10:53", 2000 + port)).0.ip()
            })
            .collect();
        assert_eq!(addresses.len(), 1, "{host} has {addresses:?}");
        bench.wait(301);
    }
    let mut address =
        |port: u16| bench.passes(&format!("udp 10.0.0.2:{port} > 203.0.113.10:53")).0.ip();
    let first = address(2000);
    assert!((2001..2256).all(|port| address(port) == first));
    assert!((2256..2300).all(|port| address(port) != first), "256 ports are on the first address");
}

/// The addresses of a pool need not be adjacent (RFC 6888, REQ-3): all get flows.
#[test]
pub(crate) fn a_pool_may_be_scattered() {
    let pool = ["198.51.100.4/31", "203.0.113.200/32", "192.0.2.64/32"];
    let mut bench = Bench::new(&[("nat", json!({ "pool": pool, "ports": "5000-5255" }))]);
    let mut outside = BTreeSet::new();
    for port in 0..1024 {
        let source =
            bench.passes(&format!("udp 10.{}.0.3:{} > 203.0.113.10:53", port % 200, 2000 + port)).0;
        assert!(outside.insert(source), "{source} is somebody else's");
    }
    let addresses: BTreeSet<String> =
        outside.into_iter().map(|source| source.ip().to_string()).collect();
    assert_eq!(
        addresses.into_iter().collect::<Vec<_>>(),
        ["192.0.2.64", "198.51.100.4", "198.51.100.5", "203.0.113.200"]
    );
}

/// TCP mappings live for hours when established (RFC 5382, REQ-5), and minutes before and
/// after that.
#[test]
fn mappings_live_as_long_as_the_rfcs_ask() {
    let mut bench = small();
    let outside = bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 SYN seq 1").0;
    bench.wait(239);
    bench.passes(&format!("tcp 203.0.113.10:80 > {outside} SYN ACK seq 7 ack 2"));
    bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 ACK seq 2 ack 8");
    bench.wait(2 * 3600 + 239);
    bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 FIN ACK seq 2 ack 8");
    bench.wait(2 * 3600 + 239);
    bench.passes(&format!("tcp 203.0.113.10:80 > {outside} FIN ACK seq 8 ack 3"));
    bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 ACK seq 3 ack 9");
    bench.wait(239);
    assert_eq!(bench.flows(), 1);
    bench.wait(2);
    assert_eq!(bench.flows(), 0);
    let outside = bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 SYN seq 1").0;
    bench.wait(200);
    bench.passes(&format!("tcp 203.0.113.10:80 > {outside} RST ACK seq 0 ack 2"));
    bench.wait(241);
    assert_eq!(bench.flows(), 0, "nothing came after the reset");
}

/// When a connection closes or is reset, its mapping's remaining hours become minutes
/// (RFC 5382, REQ-5; RFC 7857, section 2.2).
#[test]
pub(crate) fn a_closed_connection_has_minutes_left() {
    let mut bench = small();
    for is_reset in [false, true] {
        let outside = bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 SYN seq 1").0;
        bench.passes(&format!("tcp 203.0.113.10:80 > {outside} SYN ACK seq 7 ack 2"));
        bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 ACK seq 2 ack 8");
        bench.wait(60);
        if is_reset {
            bench.passes(&format!("tcp 203.0.113.10:80 > {outside} RST seq 8"));
        } else {
            bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 FIN ACK seq 2 ack 8");
            bench.passes(&format!("tcp 203.0.113.10:80 > {outside} FIN ACK seq 8 ack 3"));
        }
        bench.wait(239);
        assert_eq!(bench.flows(), 1);
        bench.wait(2);
        assert_eq!(bench.flows(), 0);
    }
}

/// The same inside port is reused while the old connection's mapping is closing: the
/// mapping becomes the new connection's, for hours.
#[test]
fn a_closing_mapping_is_opened_again_by_a_syn() {
    let mut bench = small();
    let outside = bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 SYN seq 1").0;
    bench.passes(&format!("tcp 203.0.113.10:80 > {outside} FIN ACK seq 7 ack 2"));
    bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 FIN ACK seq 2 ack 8");
    bench.wait(100);
    assert_eq!(bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 SYN seq 90000").0, outside);
    bench.passes(&format!("tcp 203.0.113.10:80 > {outside} SYN ACK seq 7 ack 90001"));
    bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 ACK seq 90001 ack 8");
    bench.wait(7000);
    assert_eq!(bench.flows(), 1);
}

/// A mapping is established when the handshake is complete. A SYN-ACK alone does not
/// establish it, however often it comes (RFC 5382, REQ-5).
#[test]
pub(crate) fn an_answer_alone_establishes_nothing() {
    let mut bench = small();
    let outside = bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 SYN seq 1").0;
    for _ in 0..3 {
        bench.passes(&format!("tcp 203.0.113.10:80 > {outside} SYN ACK seq 7 ack 2"));
        bench.passes(&format!("tcp 203.0.113.10:80 > {outside} ACK seq 8 ack 2 len 10"));
    }
    assert_eq!(bench.state(), "answered");
    bench.wait(239);
    assert_eq!(bench.flows(), 1);
    bench.wait(2);
    assert_eq!(bench.flows(), 0);
}

/// Resets outside the window pass, as every segment does, but shorten no mapping. The
/// resets do not keep a mapping either that the inside host has left (RFC 7857, section
/// 2.2; RFC 4787, REQ-6).
#[test]
pub(crate) fn a_reset_with_a_wrong_number_shortens_nothing() {
    let mut bench = small();
    let outside = bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 SYN seq 100").0;
    bench.passes(&format!("tcp 203.0.113.10:80 > {outside} SYN ACK seq 500 ack 101"));
    bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 ACK seq 101 ack 501");
    for wrong in [
        "RST seq 500",
        "RST seq 0",
        "RST seq 90000",
        "RST ACK seq 4000000000 ack 101",
        "RST seq 30000",
    ] {
        bench.passes(&format!("tcp 203.0.113.10:80 > {outside} {wrong}"));
        bench.passes(&format!(
            "tcp 10.0.0.2:1 > 203.0.113.10:80 {}",
            wrong.replace("seq 500", "seq 100")
        ));
    }
    assert_eq!(bench.state(), "established");
    bench.wait(7000);
    bench.passes(&format!("tcp 203.0.113.10:80 > {outside} RST seq 90000"));
    bench.wait(441);
    assert_eq!(bench.flows(), 0);
}

/// Resets with which an inside host answers an attacker's segments do not keep a mapping
/// that its connection has left (RFC 7857, section 7.1), nor does any other reset that
/// changes nothing.
#[test]
pub(crate) fn resets_that_change_nothing_keep_no_mapping() {
    let mut bench = small();
    for (from, wait, state) in
        [("inside", 7439, "established"), ("outside", 7439, "established"), ("both", 239, "reset")]
    {
        let outside = bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 SYN seq 100").0;
        bench.passes(&format!("tcp 203.0.113.10:80 > {outside} SYN ACK seq 500 ack 101"));
        bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 ACK seq 101 ack 501");
        if state == "reset" {
            bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 RST seq 101");
        }
        bench.wait(wait);
        // Outside the window, inside it, and at the next expected byte of a connection
        // that is over.
        for reset in ["RST seq 90000", "RST seq 30000", "RST ACK seq 30000 ack 501", "RST seq 101"]
        {
            let is_end = reset.ends_with("101") && state != "reset";
            if from != "outside" && !is_end {
                bench.passes(&format!("tcp 10.0.0.2:1 > 203.0.113.10:80 {reset}"));
            }
            if from != "inside" && !is_end {
                bench.passes(&format!("tcp 203.0.113.10:80 > {outside} {reset}"));
            }
        }
        assert_eq!((bench.flows(), bench.state()), (1, state));
        bench.wait(2);
        assert_eq!(bench.flows(), 0, "{from}");
    }
}

/// Only a SYN opens a mapping and takes a port. The sender of any other segment but a
/// reset is told that it belongs to nothing.
#[test]
pub(crate) fn only_a_syn_opens_a_mapping() {
    let mut bench = small();
    for flags in [
        "",
        "ACK",
        "FIN",
        "FIN ACK",
        "RST",
        "RST ACK",
        "PSH",
        "URG",
        "SYN ACK",
        "SYN FIN",
        "SYN RST",
        "FIN PSH URG",
    ] {
        let segment = format!("tcp 10.0.0.2:1 > 203.0.113.10:80 {flags} seq 1 ack 1");
        match flags.contains("RST") {
            true => bench.drops(&segment, StateInvalid),
            false => bench.rejects(&segment, StateInvalid),
        }
    }
    assert_eq!(bench.flows(), 0);
    bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 SYN PSH seq 1");
    assert_eq!(bench.flows(), 1);
}

/// Bounds of a translator's time-outs: as long as the RFCs ask, and not absurd. Each
/// error is named with its place and the right range.
#[test]
pub(crate) fn time_outs_are_options_with_bounds() {
    let pool = json!(["198.51.100.4/32"]);
    let build = |name: &str, seconds: u64| {
        let config = json!({ "pool": pool, "timeouts": { name: seconds } });
        holdfast_functions::catalog::build("nat", &config).err()
    };
    for (name, least, source) in [
        ("tcp_established", 7440, "RFC 5382, REQ-5"),
        ("tcp_opening", 240, "RFC 5382, REQ-5"),
        ("tcp_closing", 240, "RFC 5382, REQ-5"),
        ("udp", 120, "RFC 4787, REQ-5"),
        ("udp_unanswered", 120, "RFC 4787, REQ-5"),
        ("icmp", 60, "RFC 5508, REQ-2"),
    ] {
        for wrong in [0, least - 1] {
            let error = build(name, wrong).unwrap_or_else(|| panic!("`{name}: {wrong}` is taken"));
            assert_eq!(error.path, format!("timeouts.{name}"));
            assert!(error.message.contains(&format!("at least {least} s ({source})")), "{error}");
        }
        let error =
            build(name, 30 * 86_400 + 1).unwrap_or_else(|| panic!("an absurd `{name}` is taken"));
        assert!(error.message.contains("at most 2592000 s"), "{error}");
        assert!(build(name, least).is_none() && build(name, 30 * 86_400).is_none());
    }
    let timeouts = json!({ "tcp_opening": 300, "tcp_established": 8000, "tcp_closing": 250, "udp": 130, "udp_unanswered": 120, "icmp": 70 });
    let mut bench = Bench::new(&[("nat", json!({ "pool": pool, "timeouts": timeouts }))]);
    let lives = |bench: &mut Bench, seconds: u64| {
        bench.wait(seconds - 1);
        assert_eq!(bench.flows(), 1, "{seconds} s are not over");
        bench.wait(2);
        assert_eq!(bench.flows(), 0, "{seconds} s are over");
    };
    bench.passes("icmp 10.0.0.2 > 203.0.113.10 echo id 7");
    lives(&mut bench, 70);
    let outside = bench.passes("udp 10.0.0.2:1 > 203.0.113.10:53").0;
    lives(&mut bench, 120);
    assert!(outside.port() >= 1024);
    let outside = bench.passes("udp 10.0.0.2:1 > 203.0.113.10:53").0;
    bench.passes(&format!("udp 203.0.113.10:53 > {outside}"));
    lives(&mut bench, 130);
    bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 SYN seq 1");
    lives(&mut bench, 300);
    let outside = bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 SYN seq 1").0;
    bench.passes(&format!("tcp 203.0.113.10:80 > {outside} SYN ACK seq 7 ack 2"));
    bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 ACK seq 2 ack 8");
    bench.wait(7999);
    bench.passes(&format!("tcp 203.0.113.10:80 > {outside} RST seq 8"));
    lives(&mut bench, 250);
}

/// Ports are drawn at random by default, and in order only on request.
#[test]
pub(crate) fn ports_are_random_unless_sequential() {
    let opened = |ports: Option<&str>| {
        let mut config = json!({ "pool": ["198.51.100.4/32"] });
        if let Some(ports) = ports {
            config["ports"] = json!(ports);
        }
        let mut bench = Bench::new(&[("nat", config)]);
        let port = |at: u16| {
            bench.passes(&format!("udp 10.0.0.2:{} > 203.0.113.10:53", 2000 + at)).0.port()
        };
        (0..64).map(port).collect::<Vec<u16>>()
    };
    let rises = |ports: &[u16]| ports.windows(2).all(|pair| pair[0] < pair[1]);
    for drawn in [None, Some("random"), Some("2000-9999"), Some("random 2000-9999")] {
        assert!(!rises(&opened(drawn)), "{drawn:?}");
    }
    assert_eq!(opened(Some("sequential")), (1024..1088).collect::<Vec<u16>>());
    assert_eq!(opened(Some("sequential 5000-5255")), (5000..5064).collect::<Vec<u16>>());
}

/// A host connects to one peer again and again through a nearly full pool: no port
/// comes again soon, so the peer has long forgotten its old connection.
#[test]
pub(crate) fn a_busy_small_pool_lets_ports_rest() {
    for ports in ["5000-5255", "sequential 5000-5255"] {
        let mut bench =
            Bench::new(&[("nat", json!({ "pool": ["198.51.100.4/32"], "ports": ports }))]);
        let keep_alive = |bench: &mut Bench| {
            for port in 0..236 {
                bench.passes(&format!("udp 10.0.0.2:{} > 203.0.113.10:53", 2000 + port));
            }
        };
        keep_alive(&mut bench);
        let mut latest: Vec<u16> = Vec::new();
        for _ in 0..200 {
            let port = bench.passes("tcp 10.0.0.9:7 > 203.0.113.10:80 SYN seq 1").0.port();
            assert!(
                !latest.iter().rev().take(10).any(|other| *other == port),
                "{ports}: {port} after {latest:?}"
            );
            latest.push(port);
            keep_alive(&mut bench);
            bench.wait(241);
            assert_eq!(bench.flows(), 236);
        }
    }
}
