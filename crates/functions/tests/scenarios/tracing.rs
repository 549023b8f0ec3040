//! The functions' explanations of a traced packet: the rule that decided, and the backend
//! of a connection.

use crate::bench::Bench;
use serde_json::json;

/// The explanations of a flow's first packet by the functions that it passes, and by the
/// one that refuses it.
fn said(packet: &str) -> Vec<String> {
    let mut bench = Bench::new(&[
        (
            "firewall",
            json!({ "rules": ["deny tcp from any to any port 23", "allow tcp from 10.0.0.0/8 to any"] }),
        ),
        (
            "load_balancer",
            json!({ "virtual": "203.0.113.10:80", "backends": ["198.51.100.11:80", "198.51.100.12:8080"], "policy": "maglev" }),
        ),
    ]);
    let _ = bench.send(packet);
    core::mem::take(&mut bench.explained)
}

#[test]
fn a_trace_names_the_rule_and_the_backend() {
    let opened = said("tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN");
    assert_eq!(opened[0], "by its rule `allow tcp from 10.0.0.0/8 to any`");
    let backends =
        ["backend 198.51.100.11:80, number 1 of 2", "backend 198.51.100.12:8080, number 2 of 2"];
    assert!(opened.len() == 2 && backends.contains(&opened[1].as_str()), "{opened:?}");
    assert_eq!(
        said("tcp 10.0.0.2:1000 > 203.0.113.10:23 SYN"),
        ["by its rule `deny tcp from any to any port 23`"]
    );
    assert_eq!(
        said("udp 10.0.0.2:1000 > 203.0.113.10:80"),
        ["by default, because no rule means it"]
    );
    assert_eq!(
        said("tcp 10.0.0.2:1000 > 192.0.2.1:80 SYN").len(),
        1,
        "what only passes has no backend"
    );
}

/// Segments of an unknown connection: an inside host is told, so that it opens another at
/// once. An outside host is not told, and a reset is never answered.
#[test]
fn hosts_inside_hear_that_their_connection_is_lost() {
    use holdfast_wire::DropReason::{NoMapping, StateInvalid};
    let rules = json!({ "rules": ["allow tcp from any to any"] });
    let mut bench = Bench::new(&[("firewall", rules)]);
    for flags in ["ACK", "SYN ACK", "FIN ACK", "PSH ACK"] {
        bench.rejects(&format!("tcp 10.0.0.2:1000 > 203.0.113.10:80 {flags}"), StateInvalid);
        bench.rejects(&format!("tcp [fd00::2]:1000 > [2001:db8::1]:80 {flags}"), StateInvalid);
        bench.drops(&format!("tcp 203.0.113.10:80 > 10.0.0.2:1000 {flags}"), StateInvalid);
        bench.drops(&format!("tcp [2001:db8::1]:80 > [fd00::2]:1000 {flags}"), StateInvalid);
    }
    bench.drops("tcp 10.0.0.2:1000 > 203.0.113.10:80 RST ACK", StateInvalid);
    let mut bench = Bench::new(&[(
        "nat",
        json!({ "pool": ["198.51.100.4/32"], "inside": ["203.0.113.0/24"] }),
    )]);
    bench.rejects("tcp 203.0.113.10:1000 > 192.0.2.1:80 ACK", StateInvalid);
    bench.drops("tcp 192.0.2.1:80 > 198.51.100.4:1000 ACK", NoMapping);
}
