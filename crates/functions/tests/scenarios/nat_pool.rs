//! The translator's ports: none twice, an end when there are no more, back when flows end.

use crate::bench::Bench;
use holdfast_wire::DropReason::{PoolEmpty, QuotaExceeded};
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

/// As many flows as there are ports: each has a port of the configured range to itself, although all go to one place.
#[test]
fn every_flow_has_a_port_to_itself() {
    let mut bench = small();
    let mut seen = BTreeSet::new();
    for port in 0..256 {
        seen.insert(bench.passes(&format!("udp 10.0.0.2:{} > 203.0.113.10:53", 2000 + port)).0.port());
    }
    assert_eq!(seen, (5000..=5255).collect());
}

/// Ports that are drawn: each once, all of the range in the end, in no order; and such a flow's first packet would come out differently again.
#[test]
fn random_ports_are_in_no_order() {
    let mut bench = Bench::new(&[("nat", json!({ "pool": ["198.51.100.4/32"], "ports": "random 5000-6023" }))]);
    let mut seen = Vec::new();
    for port in 0..1024 {
        seen.push(bench.passes(&format!("udp 10.0.0.2:{} > 203.0.113.10:53", 2000 + port)).0.port());
        assert!(bench.nondeterministic);
        bench.passes(&format!("udp 10.0.0.2:{} > 203.0.113.10:53", 2000 + port));
        assert!(!bench.nondeterministic, "the mapping is there: nothing is drawn");
    }
    let rising = seen.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!((400..620).contains(&rising), "of 1,023 steps {rising} go up");
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), (5000..=6023).collect());
}

/// What is no range and not the word is refused, and says what would be taken.
#[test]
fn what_ports_may_say() {
    let build = |ports: &str| holdfast_functions::catalog::build("nat", &json!({ "pool": ["198.51.100.4/32"], "ports": ports }));
    for right in ["random", "random 1024-65535", "5000-5255"] {
        assert!(build(right).is_ok(), "{right}");
    }
    for wrong in ["", "randomly", "random5000-5255", "random 5000", "5000-5255 random", "0-255", "6000-5000", "random random"] {
        let error = build(wrong).err().unwrap_or_else(|| panic!("`{wrong}` is taken"));
        assert!(error.path == "ports" && error.message.contains("`random 1024-65535`"), "{error:?}");
    }
}

/// The pool runs dry: the next flow is refused for that reason, and those that live go on as before, in both directions.
#[test]
fn an_empty_pool_refuses_new_flows_and_harms_none() {
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
    bench.becomes("udp 10.0.0.2:1999 > 203.0.113.10:53 len 9", &format!("udp {first} > 203.0.113.10:53 len 9"));
    bench.becomes(&format!("udp 203.0.113.10:53 > {first} len 9"), "udp 203.0.113.10:53 > 10.0.0.2:1999 len 9");
}

/// Flows end, and all their ports can be leased again.
#[test]
fn ports_come_back_when_flows_end() {
    let mut bench = small();
    for _ in 0..3 {
        fill(&mut bench);
        assert_eq!(bench.free_ports(), 0);
        bench.wait(301);
        assert_eq!((bench.flows(), bench.free_ports()), (0, 256));
    }
}

/// A function behind the translator refuses the flow: there is no flow, and the port is free again.
#[test]
fn a_port_comes_back_when_a_later_function_refuses_the_flow() {
    let mut bench = Bench::new(&[
        ("nat", json!({ "pool": ["198.51.100.4/32"], "ports": "5000-5255" })),
        ("firewall", json!({ "rules": ["allow udp from any to any port 53"] })),
    ]);
    bench.passes("udp 10.0.0.2:1000 > 203.0.113.10:53");
    for port in 2000..2600 {
        bench.drops(&format!("udp 10.0.0.2:{port} > 203.0.113.10:54"), holdfast_wire::DropReason::PolicyDenied);
    }
    assert_eq!((bench.flows(), bench.free_ports()), (1, 255));
}

/// One inside host keeps one outside address while that has ports (RFC 4787, REQ-2), and gets another one after that.
#[test]
fn a_host_keeps_its_outside_address() {
    let mut bench = Bench::new(&[("nat", json!({ "pool": ["198.51.100.4/30"], "ports": "5000-5255" }))]);
    // All blocks are at hand only after enough flows have asked for them.
    for port in 0..1024 {
        bench.passes(&format!("udp 10.{}.0.3:{} > 203.0.113.10:53", port % 200, 2000 + port));
    }
    bench.wait(301);
    assert_eq!(bench.free_ports(), 1024);
    for host in ["10.0.0.2", "10.0.0.7", "172.16.3.4"] {
        let addresses: BTreeSet<_> =
            (0..80).map(|port| bench.passes(&format!("udp {host}:{} > 203.0.113.10:53", 2000 + port)).0.ip()).collect();
        assert_eq!(addresses.len(), 1, "{host} has {addresses:?}");
        bench.wait(301);
    }
    let mut address = |port: u16| bench.passes(&format!("udp 10.0.0.2:{port} > 203.0.113.10:53")).0.ip();
    let first = address(2000);
    assert!((2001..2256).all(|port| address(port) == first));
    assert!((2256..2300).all(|port| address(port) != first), "256 ports are on the first address");
}

/// A host may have as many flows as its limit says; ends make room, and another host is not affected.
#[test]
fn a_limit_per_host_holds() {
    let mut bench = Bench::new(&[("nat", json!({ "pool": ["198.51.100.4/32"], "limit_per_host": 2 }))]);
    for _ in 0..3 {
        bench.passes("udp 10.0.0.2:1 > 203.0.113.10:53");
        bench.passes("udp 10.0.0.2:2 > 203.0.113.10:53");
        bench.drops("udp 10.0.0.2:3 > 203.0.113.10:53", QuotaExceeded);
        bench.passes("udp 10.0.0.3:3 > 203.0.113.10:53");
        bench.passes("udp 10.0.0.2:1 > 203.0.113.10:53");
        bench.wait(301);
    }
    assert_eq!(bench.flows(), 0);
}

/// TCP mappings live for hours when established (RFC 5382, REQ-5), minutes before and after that.
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

/// The same inside port is used again while the old connection's mapping is closing: the mapping is the connection's again, for hours.
#[test]
fn a_closing_mapping_is_opened_again_by_a_syn() {
    let mut bench = small();
    let outside = bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 SYN seq 1").0;
    bench.passes(&format!("tcp 203.0.113.10:80 > {outside} FIN ACK seq 7 ack 2"));
    bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 FIN ACK seq 2 ack 8");
    bench.wait(100);
    assert_eq!(bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 SYN seq 90000").0, outside);
    bench.passes(&format!("tcp 203.0.113.10:80 > {outside} SYN ACK seq 7 ack 90001"));
    bench.wait(7000);
    assert_eq!(bench.flows(), 1);
}
