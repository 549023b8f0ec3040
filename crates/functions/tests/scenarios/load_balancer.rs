//! The load balancer: the choice of a backend, its permanence, and the virtual address,
//! which is all that clients see.

use crate::bench::Bench;
use holdfast_wire::DropReason::{NoBackend, StateInvalid};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;

const VIRTUAL: &str = "203.0.113.10:80";

fn config(policy: &str, backends: usize) -> Value {
    let backends: Vec<String> = (1..=backends).map(|at| format!("10.1.0.{at}:8080")).collect();
    json!({ "virtual": VIRTUAL, "backends": backends, "policy": policy })
}

fn balancer(policy: &str, backends: usize) -> Bench {
    Bench::new(&[("load_balancer", config(policy, backends))])
}

/// Opens connections from these client ports and counts them by backend.
fn spread(bench: &mut Bench, ports: std::ops::Range<u16>) -> BTreeMap<SocketAddr, usize> {
    let mut counts = BTreeMap::new();
    for port in ports {
        let (_, backend) =
            bench.passes(&format!("tcp 192.0.2.{}:{port} > {VIRTUAL} SYN seq 1", port % 250 + 1));
        *counts.entry(backend).or_insert(0) += 1;
    }
    counts
}

/// A connection goes to one backend and stays there; the client sees the virtual address
/// alone.
#[test]
fn a_connection_stays_with_its_backend() {
    for policy in ["least_load", "maglev"] {
        let mut bench = balancer(policy, 3);
        let (client, backend) = bench.passes(&format!("tcp 192.0.2.1:4000 > {VIRTUAL} SYN seq 1"));
        assert_eq!(client.to_string(), "192.0.2.1:4000");
        spread(&mut bench, 5000..5100);
        for len in [0, 1, 1000] {
            bench.becomes(
                &format!("tcp 192.0.2.1:4000 > {VIRTUAL} ACK seq 2 ack 8 len {len}"),
                &format!("tcp 192.0.2.1:4000 > {backend} ACK seq 2 ack 8 len {len}"),
            );
            bench.becomes(
                &format!("tcp {backend} > 192.0.2.1:4000 ACK seq 8 ack 2 len {len}"),
                &format!("tcp {VIRTUAL} > 192.0.2.1:4000 ACK seq 8 ack 2 len {len}"),
            );
        }
    }
}

/// Least load: live connections are spread evenly, and the backend that has lost most
/// gets the next ones.
#[test]
fn least_load_evens_out_live_connections() {
    let mut bench = balancer("least_load", 4);
    let counts = spread(&mut bench, 5000..5100);
    assert_eq!(counts.values().copied().collect::<Vec<_>>(), [25; 4]);
    assert_eq!(bench.gauge(), [25; 4]);
    bench.wait(301);
    assert_eq!(bench.gauge(), [0; 4], "ended connections count no more");
    let first = bench.passes(&format!("tcp 192.0.2.1:4000 > {VIRTUAL} SYN")).1;
    let second = bench.passes(&format!("tcp 192.0.2.1:4001 > {VIRTUAL} SYN")).1;
    assert_ne!(first, second);
    assert_eq!(bench.gauge().iter().sum::<i64>(), 2);
}

/// Only a SYN opens a connection to a backend; no other lone segment does, and none is
/// counted.
#[test]
pub(crate) fn only_a_syn_opens_a_connection() {
    for policy in ["least_load", "maglev"] {
        let mut bench = balancer(policy, 2);
        for flags in
            ["", "ACK", "FIN", "FIN ACK", "RST", "RST ACK", "PSH", "SYN ACK", "SYN FIN", "SYN RST"]
        {
            bench.drops(
                &format!("tcp 192.0.2.1:4000 > {VIRTUAL} {flags} seq 1 ack 1"),
                StateInvalid,
            );
        }
        assert_eq!((bench.flows(), bench.gauge()), (0, vec![0, 0]));
    }
}

/// A connection's state decides its lifetime: hours when established, minutes otherwise.
/// A reset with a wrong number passes and shortens nothing.
#[test]
fn connections_live_by_their_state() {
    let mut bench = balancer("least_load", 1);
    let backend = bench.passes(&format!("tcp 192.0.2.1:4000 > {VIRTUAL} SYN seq 100")).1;
    bench.wait(239);
    bench.passes(&format!("tcp {backend} > 192.0.2.1:4000 SYN ACK seq 500 ack 101"));
    bench.passes(&format!("tcp 192.0.2.1:4000 > {VIRTUAL} ACK seq 101 ack 501"));
    bench.passes(&format!("tcp 192.0.2.1:4000 > {VIRTUAL} RST seq 90000"));
    assert_eq!(bench.state(), "established");
    bench.wait(7400);
    bench.passes(&format!("tcp 192.0.2.1:4000 > {VIRTUAL} RST seq 101"));
    bench.wait(239);
    assert_eq!(bench.flows(), 1);
    bench.wait(2);
    assert_eq!((bench.flows(), bench.gauge()), (0, vec![0]));
    let timeouts =
        json!({ "virtual": VIRTUAL, "backends": ["10.1.0.1:80"], "timeouts": { "udp": 0 } });
    assert_eq!(
        holdfast_functions::catalog::build("load_balancer", &timeouts).err().expect("refused").path,
        "timeouts.udp"
    );
}

/// Maglev: shares are even within a few per cent over many connections, and two boxes
/// without shared state decide alike.
#[test]
fn maglev_spreads_evenly_and_alike_everywhere() {
    let mut bench = balancer("maglev", 5);
    let counts = spread(&mut bench, 10_000..12_000);
    assert_eq!(counts.len(), 5);
    assert!(counts.values().all(|count| (320..=480).contains(count)), "{counts:?}");
    let mut other = balancer("maglev", 5);
    spread(&mut other, 3000..3077);
    for port in 10_000..10_050u16 {
        let packet = format!("tcp 192.0.2.{}:{port} > {VIRTUAL} SYN seq 1", port % 250 + 1);
        assert_eq!(bench.passes(&packet).1, other.passes(&packet).1);
    }
}

/// Maglev needs no shared state, least load does: only the choice of least load would
/// differ elsewhere.
#[test]
fn only_least_load_depends_on_other_flows() {
    for (policy, depends) in [("least_load", true), ("maglev", false)] {
        let mut bench = balancer(policy, 3);
        bench.passes(&format!("tcp 192.0.2.1:4000 > {VIRTUAL} SYN seq 1"));
        assert_eq!(bench.nondeterministic, depends, "{policy}");
        bench.passes(&format!("tcp 192.0.2.1:4000 > {VIRTUAL} ACK seq 2"));
        assert!(!bench.nondeterministic);
    }
}

/// Maglev: one backend of ten is removed. Its connections move, and few of the others'
/// do.
#[test]
fn maglev_disturbs_few_when_a_backend_goes() {
    let (mut before, mut after) = (balancer("maglev", 10), balancer("maglev", 9));
    let (mut gone, mut moved) = (0, 0);
    for port in 10_000..12_000u16 {
        let packet = format!("tcp 192.0.2.1:{port} > {VIRTUAL} SYN seq 1");
        let (old, new) = (before.passes(&packet).1, after.passes(&packet).1);
        gone += usize::from(old.to_string() == "10.1.0.10:8080");
        moved += usize::from(old != new);
    }
    assert!(gone > 100, "{gone} were the tenth backend's");
    assert!(moved >= gone && moved - gone < 200, "{moved} moved, of which {gone} had to");
}

/// Other ports, other protocols and pings of the virtual address have no backend; packets
/// to other addresses pass.
#[test]
fn what_is_not_for_the_virtual_port_is_refused_or_passes() {
    let mut bench = balancer("least_load", 2);
    bench.drops("tcp 192.0.2.1:4000 > 203.0.113.10:81 SYN", NoBackend);
    bench.drops("udp 192.0.2.1:4000 > 203.0.113.10:80", NoBackend);
    bench.drops("icmp 192.0.2.1 > 203.0.113.10 echo id 3", NoBackend);
    bench.drops("gre 192.0.2.1 > 203.0.113.10", NoBackend);
    bench.unchanged("tcp 192.0.2.1:4000 > 203.0.113.11:80 SYN");
    bench.unchanged("tcp 203.0.113.11:80 > 192.0.2.1:4000 SYN ACK");
    bench.unchanged("tcp [2001:db8::1]:4000 > [2001:db8::2]:80 SYN");
    bench.wait(301);
    assert_eq!(bench.gauge(), [0, 0], "flows that only pass count nowhere");
}

/// UDP over IPv6, both ways, with and without a checksum (RFC 6935 lets tunnels omit it).
#[test]
fn udp_over_ipv6_is_balanced() {
    let config = json!({ "virtual": "[2001:db8::10]:443", "protocol": "udp", "backends": ["[2001:db8:1::1]:8443"] });
    let mut bench = Bench::new(&[("load_balancer", config)]);
    for rest in ["len 0", "len 1", "len 1200", "len 20 nosum"] {
        bench.becomes(
            &format!("udp [2001:db8:9::1]:5 > [2001:db8::10]:443 {rest}"),
            &format!("udp [2001:db8:9::1]:5 > [2001:db8:1::1]:8443 {rest}"),
        );
        bench.becomes(
            &format!("udp [2001:db8:1::1]:8443 > [2001:db8:9::1]:5 {rest}"),
            &format!("udp [2001:db8::10]:443 > [2001:db8:9::1]:5 {rest}"),
        );
    }
}

/// A router between box and backend, and the backend itself, send errors about a request:
/// the client finds its own request quoted. The router keeps its address, and the
/// backend's address becomes the virtual one.
#[test]
pub(crate) fn errors_towards_the_client_are_translated() {
    let mut bench = balancer("least_load", 1);
    bench.passes(&format!("tcp 192.0.2.1:4000 > {VIRTUAL} SYN seq 1"));
    for cut in ["cut 28", ""] {
        let as_seen =
            format!("too-big quoting {cut} tcp 192.0.2.1:4000 > 10.1.0.1:8080 ACK seq 2 len 60");
        let as_sent =
            format!("too-big quoting {cut} tcp 192.0.2.1:4000 > {VIRTUAL} ACK seq 2 len 60");
        bench.becomes(
            &format!("icmp 10.1.9.9 > 192.0.2.1 {as_seen}"),
            &format!("icmp 10.1.9.9 > 192.0.2.1 {as_sent}"),
        );
        bench.becomes(
            &format!("icmp 10.1.0.1 > 192.0.2.1 {as_seen}"),
            &format!("icmp 203.0.113.10 > 192.0.2.1 {as_sent}"),
        );
    }
}

/// A router on the client's side sends an error about a reply to the virtual address: the
/// backend gets it, with its own reply quoted.
#[test]
fn errors_towards_the_backend_are_translated() {
    let mut bench = balancer("least_load", 1);
    bench.passes(&format!("tcp 192.0.2.1:4000 > {VIRTUAL} SYN seq 1"));
    for cut in ["cut 28", ""] {
        bench.becomes(
            &format!("icmp 192.0.2.9 > 203.0.113.10 too-big quoting {cut} tcp {VIRTUAL} > 192.0.2.1:4000 ACK seq 8 len 61"),
            &format!("icmp 192.0.2.9 > 10.1.0.1 too-big quoting {cut} tcp 10.1.0.1:8080 > 192.0.2.1:4000 ACK seq 8 len 61"),
        );
    }
}

/// The same over IPv6, where the error's checksum covers the addresses too.
#[test]
fn ipv6_errors_are_translated_both_ways() {
    let config = json!({ "virtual": "[2001:db8::10]:80", "backends": ["[2001:db8:1::1]:8080"] });
    let mut bench = Bench::new(&[("load_balancer", config)]);
    let (client, seen, backend) =
        ("[2001:db8:9::1]:5", "[2001:db8::10]:80", "[2001:db8:1::1]:8080");
    bench.passes(&format!("tcp {client} > {seen} SYN seq 1"));
    for cut in ["cut 48", "cut 61", ""] {
        for kind in ["too-big", "unreachable", "exceeded"] {
            bench.becomes(
                &format!("icmp 2001:db8:7::7 > 2001:db8::10 {kind} quoting {cut} tcp {seen} > {client} ACK seq 8 len 61"),
                &format!("icmp 2001:db8:7::7 > 2001:db8:1::1 {kind} quoting {cut} tcp {backend} > {client} ACK seq 8 len 61"),
            );
            bench.becomes(
                &format!("icmp 2001:db8:1::1 > 2001:db8:9::1 {kind} quoting {cut} tcp {client} > {backend} ACK seq 2 len 60"),
                &format!("icmp 2001:db8::10 > 2001:db8:9::1 {kind} quoting {cut} tcp {client} > {seen} ACK seq 2 len 60"),
            );
            bench.becomes(
                &format!("icmp 2001:db8:7::7 > 2001:db8:9::1 {kind} quoting {cut} tcp {client} > {backend} ACK seq 2 len 60"),
                &format!("icmp 2001:db8:7::7 > 2001:db8:9::1 {kind} quoting {cut} tcp {client} > {seen} ACK seq 2 len 60"),
            );
        }
    }
}

/// No error makes a backend or a client send packets shorter than every link carries (RFC
/// 1191, section 3; RFC 8201, section 4).
#[test]
pub(crate) fn errors_ask_for_no_impossible_mtu() {
    let v6 = json!({ "virtual": "[2001:db8::10]:80", "backends": ["[2001:db8:1::1]:8080"] });
    for (config, least, client, seen, backend) in [
        (config("maglev", 1), 68, "192.0.2.1:4000", VIRTUAL, "10.1.0.1:8080"),
        (v6, 1280, "[2001:db8:9::1]:5", "[2001:db8::10]:80", "[2001:db8:1::1]:8080"),
    ] {
        let mut bench = Bench::new(&[("load_balancer", config)]);
        bench.passes(&format!("tcp {client} > {seen} SYN seq 1"));
        let ip = |end: &str| end.parse::<SocketAddr>().expect("an end").ip();
        for (mtu, passes) in
            [(0, least == 68), (1, false), (least - 1, false), (least, true), (1400, true)]
        {
            let errors = [
                format!(
                    "icmp {} > {} too-big mtu {mtu} quoting tcp {seen} > {client} ACK seq 8 len 61",
                    ip(client),
                    ip(seen)
                ),
                format!(
                    "icmp {} > {} too-big mtu {mtu} quoting tcp {client} > {backend} ACK seq 2 len 61",
                    ip(backend),
                    ip(client)
                ),
            ];
            for error in errors {
                match passes {
                    true => assert!(bench.send(&error).is_ok(), "{error}"),
                    false => bench.drops(&error, StateInvalid),
                }
            }
        }
    }
}

/// A backend that connects to the virtual address of its own service is never sent to
/// itself: its own address would come from outside.
#[test]
pub(crate) fn a_backend_is_not_its_own_client() {
    for policy in ["least_load", "maglev"] {
        let mut bench = balancer(policy, 2);
        for port in [8080, 4000, 4001, 4002, 4003, 4004, 4005] {
            match bench.send(&format!("tcp 10.1.0.1:{port} > {VIRTUAL} SYN seq 1")) {
                Ok(out) => assert_eq!(crate::reading::ends(&out).1.to_string(), "10.1.0.2:8080"),
                Err(reason) => assert_eq!(reason, NoBackend),
            }
        }
        assert_eq!(bench.gauge()[0], 0, "{policy}");
    }
}
