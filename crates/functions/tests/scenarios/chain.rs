//! Functions together: a firewall, a translator and a balancer, and replies through them
//! in reverse order.

use crate::bench::Bench;
use holdfast_wire::DropReason::{NoMapping, PolicyDenied, StateInvalid};
use serde_json::json;

/// Hosts in 10.0.0.0/8 reach a balanced service behind one outside address.
fn chain() -> Bench {
    Bench::new(&[
        (
            "firewall",
            json!({ "rules": ["allow tcp from 10.0.0.0/8 to 203.0.113.0/24 port 80", "allow icmp from 10.0.0.0/8 to any"] }),
        ),
        ("nat", json!({ "pool": ["198.51.100.4/32"], "ports": "5000-5255" })),
        (
            "load_balancer",
            json!({ "virtual": "203.0.113.10:80", "backends": ["192.0.2.1:8080", "192.0.2.2:8080"] }),
        ),
    ])
}

/// A whole conversation in both directions: the backend talks to the outside address, the
/// client to the virtual one, and neither sees the other's address. At the end the port
/// and the backend's load are given back.
#[test]
fn a_conversation_through_firewall_translator_and_balancer() {
    let mut bench = chain();
    let (inside, service) = ("10.0.0.2:1000", "203.0.113.10:80");
    let (outside, backend) = bench.passes(&format!("tcp {inside} > {service} SYN seq 100 scale 7"));
    assert_eq!((outside.ip().to_string(), backend.port()), ("198.51.100.4".to_owned(), 8080));
    let segments = [
        ("<", "SYN ACK seq 500 ack 101 scale 7"),
        (">", "ACK seq 101 ack 501"),
        (">", "ACK PSH seq 101 ack 501 len 517"),
        ("<", "ACK seq 501 ack 618 len 1460"),
        ("<", "ACK PSH seq 1961 ack 618 len 1337"),
        (">", "ACK seq 618 ack 3298"),
        (">", "FIN ACK seq 618 ack 3298"),
        ("<", "ACK seq 3298 ack 619 len 1"),
        ("<", "FIN ACK seq 3299 ack 619"),
        (">", "ACK seq 619 ack 3300"),
    ];
    for (way, segment) in segments {
        match way {
            ">" => bench.becomes(
                &format!("tcp {inside} > {service} {segment}"),
                &format!("tcp {outside} > {backend} {segment}"),
            ),
            _ => bench.becomes(
                &format!("tcp {backend} > {outside} {segment}"),
                &format!("tcp {service} > {inside} {segment}"),
            ),
        }
    }
    assert_eq!(bench.state(), "closed");
    assert_eq!((bench.free_numbers(), bench.gauge().iter().sum::<i64>()), (255, 1));
    bench.wait(241);
    assert_eq!((bench.flows(), bench.free_numbers(), bench.gauge()), (0, 256, vec![0, 0]));
    bench.drops(&format!("tcp {backend} > {outside} ACK seq 3300 ack 619"), PolicyDenied);
}

/// A reply segment that the firewall refuses has been translated already; it is dropped,
/// and the connection goes on.
#[test]
fn the_firewall_sees_replies_last() {
    let mut bench = chain();
    let (outside, backend) = bench.passes("tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN seq 100");
    bench.passes(&format!("tcp {backend} > {outside} SYN ACK seq 500 ack 101"));
    bench.passes("tcp 10.0.0.2:1000 > 203.0.113.10:80 ACK seq 101 ack 501");
    bench.drops(&format!("tcp {backend} > {outside} RST seq 90000"), StateInvalid);
    bench.drops(&format!("tcp {backend} > {outside} SYN FIN seq 501"), StateInvalid);
    bench.becomes(
        &format!("tcp {backend} > {outside} ACK seq 501 ack 101 len 10"),
        "tcp 203.0.113.10:80 > 10.0.0.2:1000 ACK seq 501 ack 101 len 10",
    );
}

/// An error from beyond the balancer comes back through all three; its quoted packet is
/// the one that the client sent.
#[test]
fn errors_come_back_through_the_whole_chain() {
    let mut bench = chain();
    let (outside, backend) = bench.passes("tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN seq 100");
    bench.passes(&format!("tcp {backend} > {outside} SYN ACK ack 101"));
    for cut in ["cut 28", "cut 39", ""] {
        bench.becomes(
            &format!("icmp 192.0.2.99 > {} too-big quoting {cut} tcp {outside} > {backend} SYN seq 100", outside.ip()),
            &format!("icmp 192.0.2.99 > 10.0.0.2 too-big quoting {cut} tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN seq 100"),
        );
        bench.becomes(
            &format!("icmp {} > {} unreachable quoting {cut} tcp {outside} > {backend} SYN seq 100", backend.ip(), outside.ip()),
            &format!("icmp 203.0.113.10 > 10.0.0.2 unreachable quoting {cut} tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN seq 100"),
        );
        bench.becomes(
            &format!("icmp 10.0.0.2 > 203.0.113.10 unreachable quoting {cut} tcp 203.0.113.10:80 > 10.0.0.2:1000 SYN ACK"),
            &format!("icmp {} > {} unreachable quoting {cut} tcp {backend} > {outside} SYN ACK", outside.ip(), backend.ip()),
        );
    }
}

/// Ping through firewall and translator passes the balancer unchanged.
#[test]
fn ping_passes_the_whole_chain() {
    let mut bench = chain();
    let id = bench.passes("icmp 10.0.0.2 > 192.0.2.50 echo id 7 seq 1 len 56").0.port();
    bench.becomes(
        &format!("icmp 192.0.2.50 > 198.51.100.4 reply id {id} seq 1 len 56"),
        "icmp 192.0.2.50 > 10.0.0.2 reply id 7 seq 1 len 56",
    );
}

/// A flow that the balancer refuses leaves no port leased at the translator.
#[test]
fn a_refusal_at_the_end_leaves_nothing_behind() {
    let mut bench = chain();
    for id in 0..300 {
        bench.drops(
            &format!("icmp 10.0.0.2 > 203.0.113.10 echo id {id}"),
            holdfast_wire::DropReason::NoBackend,
        );
    }
    assert_eq!((bench.flows(), bench.free_numbers()), (0, 256));
}

/// A firewall behind the translator sees translated packets: its rules name outside
/// addresses.
#[test]
fn rules_mean_what_the_firewall_sees() {
    let mut bench = Bench::new(&[
        ("nat", json!({ "pool": ["198.51.100.4/32"] })),
        (
            "firewall",
            json!({ "rules": ["allow udp from 198.51.100.4 to any", "allow udp from 10.0.0.3 to any"] }),
        ),
    ]);
    let outside = bench.passes("udp 10.0.0.2:1000 > 203.0.113.10:53").0;
    bench.becomes(
        &format!("udp 203.0.113.10:53 > {outside} len 2"),
        "udp 203.0.113.10:53 > 10.0.0.2:1000 len 2",
    );
    bench.drops("udp 198.51.100.4:9 > 203.0.113.10:53", NoMapping);
}

/// The chain's word for a flow is the first one that a function has for it.
#[test]
fn the_first_word_names_the_flow() {
    let mut bench = Bench::new(&[
        ("monitor", json!({})),
        ("firewall", json!({ "default": "allow" })),
        ("forward", json!({})),
    ]);
    bench.unchanged("tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN");
    assert_eq!(bench.state(), "opening");
}

/// A firewall behind a translator rejects: the flow that was being opened gives its port
/// back, and its sender is still told.
#[test]
fn a_rejection_at_the_end_leaves_nothing_behind() {
    let rules = ["reject tcp to any port 25", "allow any"];
    let mut bench = Bench::new(&[
        ("nat", json!({ "pool": ["198.51.100.4/32"], "ports": "5000-5255" })),
        ("firewall", json!({ "rules": rules })),
    ]);
    bench.passes("tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN seq 100");
    for port in 1..=300 {
        bench.rejects(&format!("tcp 10.0.0.2:{port} > 203.0.113.10:25 SYN seq 100"), PolicyDenied);
    }
    assert_eq!((bench.flows(), bench.free_numbers()), (1, 255));
}
