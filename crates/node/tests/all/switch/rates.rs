//! Rates that flows share.

use super::*;
use holdfast_wire::zone::Zones;
use serde_json::json;

impl Bench {
    /// A switch whose only chain has these limits.
    fn with_rates(incarnation: u32, limits: serde_json::Value) -> Bench {
        let mut bench = Bench::before_rules(incarnation, limits);
        bench.rules(1, vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }]);
        bench
    }

    /// The same before the coordinator has told it the rules.
    fn before_rules(incarnation: u32, limits: serde_json::Value) -> Bench {
        let config = json!({ "limits": limits });
        let zones = Zones::default();
        let limiter = holdfast_functions::catalog::configured("rate_limiter", &config, &zones);
        let rates = vec![limiter.expect("right").rate_limits()];
        let limits = SwitchLimits { rates, ..SwitchLimits::default() };
        let mut bench = Bench::with_limits(incarnation, Vec::new(), limits);
        bench.view(&[X, Y], 1);
        bench
    }

    fn exceeding(&self) -> u64 {
        self.switch.drops().get(DropReason::RateExceeded)
    }
}

/// A source has one budget for all its flows, whichever runtimes have them. Packets
/// beyond it are counted, and open no flow. Replies do not count if only the way there
/// does.
#[test]
fn a_source_has_one_budget_at_all_runtimes() {
    let limits = json!([
        { "per": "source", "rate": "10 packets/s", "burst": "20 packets", "direction": "forward" },
    ]);
    let mut bench = Bench::with_rates(1, limits);
    let passed = (1..30).filter(|from| bench.passes(&datagram(*from, false))).count();
    assert_eq!((passed, bench.exceeding(), bench.switch.len()), (20, 9, 20));
    assert!(bench.switch.routes_to(X) > 0 && bench.switch.routes_to(Y) > 0);
    assert!(!bench.passes(&datagram(3, false)), "a flow that there is has no other budget");
    bench.release(3);
    assert!((0..40).all(|_| bench.passes(&datagram(3, true))), "replies are not limited");
    bench.now += SECOND / 2;
    let passed = (0..30).filter(|_| bench.passes(&datagram(3, false))).count();
    assert_eq!(passed, 5, "ten per second");
}

/// A reply is its initiator's, and counts by bytes of IP packets.
#[test]
fn a_reply_counts_for_the_source_that_opened_the_flow() {
    // A datagram without data has 28 bytes.
    let limits = json!([
        { "per": "source", "rate": "1 B/s", "burst": "2800 B", "direction": "reverse" },
    ]);
    let mut bench = Bench::with_rates(1, limits);
    assert!((0..300).all(|_| bench.passes(&datagram(1, false))));
    bench.release(1);
    let passed = (0..300).filter(|_| bench.passes(&datagram(1, true))).count();
    assert_eq!((passed, bench.exceeding()), (100, 200));
}

/// A packet that waits for its flow's recovery is counted once: when the flow is claimed,
/// all that waited go on, although they do so at once.
#[test]
fn packets_that_waited_are_counted_once() {
    let limits = json!([{ "per": "chain", "rate": "1 packet/s", "burst": "10 packets" }]);
    let mut bench = Bench::with_rates(1, limits);
    bench.send(1);
    bench.deliver();
    bench.release(1);
    let Route { owner, epoch, .. } = bench.route(1).expect("a route");
    let heir = if owner == X { Y } else { X };
    bench.view(&[heir], 2);
    (0..12).for_each(|_| bench.send(1));
    assert_eq!((bench.switch.held(), bench.exceeding()), (9, 3));
    bench.take(heir, 1, epoch.get());
    assert_eq!(bench.sent_to(), vec![heir; 9]);
    assert_eq!((bench.switch.held(), bench.exceeding()), (0, 3));
}

/// Packets that wait for the first rules are counted when their chain is known, at the
/// rate at which they came.
#[test]
fn packets_that_waited_for_rules_are_counted() {
    let limits = json!([{ "per": "chain", "rate": "10 packets/s", "burst": "5 packets" }]);
    let mut bench = Bench::before_rules(1, limits);
    (0..8).for_each(|_| bench.send(1));
    bench.now += SECOND;
    (0..8).for_each(|_| bench.send(1));
    assert_eq!((bench.switch.held(), bench.exceeding()), (16, 0));
    bench.now += SECOND / 10;
    bench.rules(1, vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }]);
    assert_eq!((bench.sent_to().len(), bench.exceeding()), (10, 6));
    assert!(bench.passes(&datagram(1, false)) && !bench.passes(&datagram(1, false)));
}
