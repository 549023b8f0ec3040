//! The rate limiter: packets of one flow up to a rate, and mistakes in the configuration.
//! Shared limits belong to the switch, and are tested there.

use crate::bench::Bench;
use holdfast_functions::catalog;
use holdfast_nf::ConfigError;
use holdfast_wire::DropReason::RateExceeded;
use holdfast_wire::zone::{Zone, Zones};
use serde_json::{Value, json};

const MILLISECOND: u64 = 1_000_000;
const THERE: &str = "udp 10.0.0.2:5 > 203.0.113.10:53 len 972";
const BACK: &str = "udp 203.0.113.10:53 > 10.0.0.2:5 len 972";

fn limiter(limits: Value) -> Bench {
    Bench::new(&[("rate_limiter", json!({ "limits": limits }))])
}

fn zones() -> Zones {
    Zones::new([("lan", 0), ("wan", 1)].map(|(name, port)| (name.to_owned(), Zone::of([port]))))
}

/// Number of packets that pass, of `count` sent at once.
fn passed(bench: &mut Bench, packet: &str, count: usize) -> usize {
    (0..count).filter(|_| bench.send(packet).is_ok()).count()
}

/// A flow has a burst and then its rate; another flow has its own. Bytes are those of IP
/// packets, both directions together.
#[test]
fn a_flow_has_a_burst_and_then_its_rate() {
    let mut bench = limiter(json!([{ "per": "flow", "rate": "8 Mbit/s", "burst": "10 kB" }]));
    assert_eq!(passed(&mut bench, THERE, 8), 8);
    assert_eq!(passed(&mut bench, BACK, 8), 2, "ten packets of 1,000 bytes");
    assert_eq!(bench.state(), "exceeded");
    bench.drops(THERE, RateExceeded);
    let other = "udp [2001:db8::1]:5 > [2001:db8::2]:53 len 952";
    assert_eq!(passed(&mut bench, other, 20), 10);
    // The rate is a megabyte per second, so a packet per millisecond.
    let mut later = 0;
    for _ in 0..50 {
        bench.now += MILLISECOND;
        later += passed(&mut bench, THERE, 3);
    }
    assert_eq!(later, 50);
    bench.now += 60_000 * MILLISECOND;
    assert_eq!(passed(&mut bench, THERE, 20), 10, "an idle flow saves no more than a burst");
    assert_eq!(passed(&mut bench, "udp 10.0.0.2:5 > 203.0.113.10:53 len 10", 1), 0);
}

/// A limit may apply to one direction, and may count packets instead of bytes. A flow
/// without a limit passes at any rate.
#[test]
fn limits_mean_flows_and_directions() {
    let mut bench = limiter(json!([
        { "per": "flow", "rate": "10 packets/s", "burst": "3 packets", "direction": "forward",
          "flows": "udp from any to any port 53" },
        { "per": "flow", "rate": "10 packets/s", "burst": "5 packets", "direction": "reverse",
          "flows": "udp from any to any port 53" },
    ]));
    assert_eq!((passed(&mut bench, THERE, 20), passed(&mut bench, BACK, 20)), (3, 5));
    let (there, back) =
        ("tcp 10.0.0.2:5 > 203.0.113.10:53 SYN", "tcp 203.0.113.10:53 > 10.0.0.2:5 SYN ACK");
    assert_eq!((passed(&mut bench, there, 20), passed(&mut bench, back, 20)), (20, 20));
    assert_eq!(bench.state(), "");
}

/// Packets beyond a limit that marks pass with its mark; packets beyond the next limit
/// are dropped.
#[test]
fn packets_beyond_a_rate_are_marked() {
    let mut bench = limiter(json!([
        { "per": "flow", "rate": "10 packets/s", "burst": "2 packets", "mark": "le" },
        { "per": "flow", "rate": "10 packets/s", "burst": "4 packets" },
    ]));
    let packet = "udp 10.0.0.2:5 > 203.0.113.10:53 tos 187";
    bench.unchanged(packet);
    bench.unchanged(packet);
    // The DSCP becomes 1, and ECN stays.
    bench.becomes(packet, "udp 10.0.0.2:5 > 203.0.113.10:53 tos 7");
    bench.becomes(packet, "udp 10.0.0.2:5 > 203.0.113.10:53 tos 7");
    bench.drops(packet, RateExceeded);
}

/// A limit on a port of the box applies to the flows whose first packet came in there.
#[test]
fn a_limit_per_flow_may_name_ports() {
    let zones = zones();
    let limits = json!({ "limits": [
        { "per": "flow", "rate": "1 packet/s", "burst": "1 packet", "flows": "on wan" },
    ] });
    let mut bench = Bench::on(&zones, &[("rate_limiter", limits)]);
    assert_eq!(passed(&mut bench, THERE, 9), 9);
    bench.ingress = 1;
    assert_eq!(passed(&mut bench, BACK, 9), 9, "a reply, of a flow from the other side");
    assert_eq!(passed(&mut bench, "udp 203.0.113.10:5 > 10.0.0.2:5", 9), 1);
}

/// The bucket moves with its flow, so earlier packets still count.
#[test]
fn the_bucket_moves_with_its_flow() {
    let limits = json!([{ "per": "flow", "rate": "10 packets/s", "burst": "6 packets" }]);
    let (mut first, mut second) = (limiter(limits.clone()), limiter(limits));
    assert_eq!(passed(&mut first, THERE, 4), 4);
    second.takes_over(&mut first, true);
    assert_eq!(passed(&mut second, THERE, 9), 2);
}

/// The outcome depends on the flow's state and the packets' timestamps alone, so a replay
/// from an older state gives the same outcome.
#[test]
fn a_replay_gives_the_same() {
    let limits = json!([
        { "per": "flow", "rate": "10 packets/s", "burst": "2 packets", "mark": "le" },
        { "per": "flow", "rate": "10 packets/s", "burst": "4 packets" },
    ]);
    let mut bench = limiter(limits);
    bench.unchanged(THERE);
    let (before, begin) = (bench.remember(), bench.now);
    let play = |bench: &mut Bench| -> Vec<_> {
        let mut send = |at: u64| {
            bench.now = begin + at * 30 * MILLISECOND;
            (bench.send(if at.is_multiple_of(3) { BACK } else { THERE }), bench.nondeterministic)
        };
        (0..20).map(&mut send).collect()
    };
    let first = play(&mut bench);
    bench.set_back(before, 20);
    assert_eq!(play(&mut bench), first);
    assert!(first.iter().any(|(out, _)| out.is_err()) && first.iter().all(|(_, is)| !is));
}

/// A mistake is reported with its place.
#[test]
fn mistakes_are_told_where_they_are() {
    let limit = |more: Value| {
        let mut limit = json!({ "per": "flow", "rate": "10 Mbit/s" });
        let (Value::Object(limit), Value::Object(more)) = (&mut limit, more) else {
            panic!("maps")
        };
        limit.extend(more);
        json!({ "limits": [limit.clone()] })
    };
    let five: Vec<Value> = (0..5).map(|_| json!({ "per": "flow", "rate": "1 MB/s" })).collect();
    for (config, path) in [
        (json!({ "limits": [] }), "limits"),
        (json!({ "limits": five }), "limits[4]"),
        (limit(json!({ "rate": "fast" })), "limits[0].rate"),
        (limit(json!({ "burst": "10 packets" })), "limits[0].burst"),
        (limit(json!({ "flows": "udp frm any" })), "limits[0].flows"),
        (limit(json!({ "mark": "cs9" })), "limits[0].mark"),
        (limit(json!({ "per": "chain", "mark": "le" })), "limits[0].mark"),
        (limit(json!({ "prefix_v4": 24 })), "limits[0].prefix_v4"),
        (limit(json!({ "per": "chain", "prefix_v6": 64 })), "limits[0].prefix_v6"),
        (limit(json!({ "per": "source", "prefix_v4": 33 })), "limits[0].prefix_v4"),
        (limit(json!({ "per": "source", "prefix_v6": 129 })), "limits[0].prefix_v6"),
        (limit(json!({ "per": "source", "flows": "on wan" })), "limits[0].flows"),
    ] {
        let error = catalog::configured("rate_limiter", &config, &zones()).err();
        let ConfigError { path: at, message, .. } = error.unwrap_or_else(|| panic!("{config}"));
        assert_eq!(at, path, "{message}");
    }
}
