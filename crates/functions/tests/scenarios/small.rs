//! The small functions: the monitor, the packet limit, the one that only forwards.

use crate::bench::Bench;
use crate::words;
use holdfast_nf::{Function, SharedField, Standing};
use holdfast_wire::DropReason::QuotaExceeded;
use holdfast_wire::zone::Zones;
use serde_json::json;

/// The monitor changes nothing and counts every packet, byte and flow of any kind.
#[test]
fn the_monitor_counts_and_changes_nothing() {
    let mut bench = Bench::new(&[("monitor", json!({}))]);
    let packets = [
        "tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN FIN RST",
        "tcp 203.0.113.10:80 > 10.0.0.2:1000",
        "udp [2001:db8::1]:5 > [2001:db8::2]:53 len 0",
        "icmp 10.0.0.2 > 203.0.113.10 reply id 4",
        "icmp 192.0.2.9 > 10.0.0.2 unreachable quoting cut 28 tcp 10.0.0.2:1000 > 203.0.113.10:80",
        "gre 10.0.0.2 > 203.0.113.10",
    ];
    let mut bytes = 0;
    for packet in packets {
        bench.unchanged(packet);
        bytes += words::frame(packet).len() as u64;
    }
    assert_eq!(
        (bench.counter("flows"), bench.counter("packets"), bench.counter("bytes")),
        (4, 6, bytes)
    );
}

/// A flow may have this many packets, both directions together. The sender of the next
/// one is told, at either end, and other flows are not affected.
#[test]
fn a_flow_has_its_packets_and_no_more() {
    let mut bench = Bench::new(&[("packet_limit", json!({ "packets": 3 }))]);
    bench.unchanged("udp 10.0.0.2:1 > 203.0.113.10:53");
    bench.unchanged("udp 203.0.113.10:53 > 10.0.0.2:1");
    bench.unchanged("udp 10.0.0.2:1 > 203.0.113.10:53");
    bench.rejects("udp 10.0.0.2:1 > 203.0.113.10:53", QuotaExceeded);
    bench.rejects("udp 203.0.113.10:53 > 10.0.0.2:1", QuotaExceeded);
    bench.unchanged("udp 10.0.0.2:2 > 203.0.113.10:53");
}

/// A limit of zero packets is an error that says so.
#[test]
fn a_limit_of_nothing_is_refused() {
    let error = holdfast_functions::catalog::build("packet_limit", &json!({ "packets": 0 }))
        .err()
        .expect("refused");
    assert_eq!(error.path, "packets");
}

/// `forward` lets packets pass that every other function would refuse.
#[test]
fn forward_forwards() {
    let mut bench = Bench::new(&[("forward", json!({}))]);
    bench.unchanged("tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN FIN RST ACK PSH URG");
    bench.unchanged("gre 10.0.0.2 > 203.0.113.10");
}

/// A configured function is made once; each chain that binds it gets new shared state.
#[test]
fn a_function_is_bound_to_shared_state_of_its_own() {
    let monitor = holdfast_functions::catalog::configured("monitor", &json!({}), &Zones::default())
        .expect("right");
    let count = |function: &mut Box<dyn Function>, more: u64| {
        let mut first = None;
        function.shared().visit(&mut |_, field| {
            if let SharedField::Counters(counters) = field {
                counters.add(0, more);
                first = Some(counters.part().own()[0]);
            }
        });
        first
    };
    let (mut one, mut other) = (monitor.bind(), monitor.bind());
    assert_eq!(
        (count(&mut one, 5), count(&mut one, 2), count(&mut other, 1)),
        (Some(5), Some(7), Some(1))
    );
    assert_eq!(one.layout(), monitor.layout());
}

/// Every function has a name and a schema; the error for an unknown name lists the known
/// ones.
#[test]
fn the_catalog_knows_its_functions() {
    for name in holdfast_functions::catalog::names() {
        assert!(holdfast_functions::catalog::schema(name).is_some(), "{name}");
    }
    let error =
        holdfast_functions::catalog::build("firewal", &json!({})).err().expect("no such function");
    assert!(
        error.message.contains("firewall") && error.message.contains("nat"),
        "{}",
        error.message
    );
}

/// The standing of flows, in all functions that follow a connection: a router's error, or
/// a packet that does not fit, does not change it.
#[test]
fn functions_say_how_flows_stand() {
    let balancer = json!({ "virtual": "203.0.113.10:80", "backends": ["198.51.100.11:80"] });
    let chains = [
        vec![("firewall", json!({ "default": "allow" }))],
        vec![("load_balancer", balancer)],
        vec![("nat", json!({ "pool": ["198.51.100.4"] }))],
    ];
    for chain in chains {
        let mut bench = Bench::new(&chain);
        let say = |bench: &mut Bench, packet: &str| {
            bench.send(packet).unwrap_or_else(|reason| panic!("{packet}: {reason}"));
            bench.standing()
        };
        let (client, server) = bench.passes("tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN seq 100");
        assert_eq!(bench.standing(), Some(Standing::HalfOpen));
        let back = format!("tcp {server} > {client}");
        let segments = [
            (format!("{back} SYN ACK seq 500 ack 101"), Standing::HalfOpen),
            (
                "tcp 10.0.0.2:1000 > 203.0.113.10:80 ACK seq 101 ack 501".to_owned(),
                Standing::Established,
            ),
            (format!("{back} FIN ACK seq 501 ack 101"), Standing::Established),
            (
                "tcp 10.0.0.2:1000 > 203.0.113.10:80 FIN ACK seq 101 ack 502".to_owned(),
                Standing::Closing,
            ),
        ];
        for (segment, standing) in segments {
            assert_eq!(say(&mut bench, &segment), Some(standing), "{}: {segment}", chain[0].0);
        }
        if chain[0].0 == "load_balancer" {
            continue;
        }
        let (client, server) = bench.passes("udp 10.0.0.2:1001 > 203.0.113.10:53");
        assert_eq!(bench.standing(), Some(Standing::Unreplied));
        assert_eq!(say(&mut bench, &format!("udp {server} > {client}")), Some(Standing::Answered));
    }
}
