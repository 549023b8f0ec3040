//! Leases and counts under every function of the catalog: each belongs to its flow from
//! beginning to end, wherever the flow is.
//!
//! The check is the same for every function ([`check_holdings`]): `nf test` makes it,
//! too. A new function in the catalog needs a row in [`rows`].

use crate::words;
use holdfast_functions::catalog;
use holdfast_nf::bench::check_holdings;
use holdfast_nf::{
    Bound, ConfigError, Context, Counted, DropReason, Function, Gauge, Lease, Leased,
    NetworkFunction, Open, Opening, Packet, Pool, Verdict,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A function, a configuration of it, and whether flows have holdings then.
fn rows() -> Vec<(&'static str, Value, bool)> {
    let pool =
        json!({ "pool": ["198.51.100.4"], "publish": ["udp 198.51.100.4:5000 -> 10.0.0.9:53"] });
    let backends = ["198.51.100.11:80", "198.51.100.12:80"];
    vec![
        ("firewall", json!({ "default": "allow" }), false),
        ("nat", pool, true),
        ("load_balancer", json!({ "virtual": "203.0.113.10:80", "backends": backends }), true),
        (
            "load_balancer",
            json!({ "virtual": "203.0.113.10:80", "backends": backends, "policy": "maglev" }),
            true,
        ),
        ("monitor", json!({}), false),
        ("forward", json!({}), false),
        ("packet_limit", json!({ "packets": 3 }), false),
        ("http", json!({}), false),
        ("qos_marker", json!({ "classes": { "one": { "dscp": "ef" } }, "default": "one" }), false),
        (
            "vlan",
            json!({ "classes": { "one": { "forward": { "pcp": 5 } } }, "default": "one" }),
            false,
        ),
        ("rate_limiter", json!({ "limits": [{ "per": "flow", "rate": "1 MB/s" }] }), false),
        ("dpi", json!({}), false),
        ("ips", json!({ "rules": ["alert ip any any -> any any (content:\"[\"; sid:1;)"] }), false),
    ]
}

/// First packets of all kinds of flows that the functions distinguish; some open no flow.
fn packets() -> Vec<String> {
    let fixed = [
        "icmp 10.0.0.3 > 203.0.113.10 echo id 4",
        "udp 203.0.113.10:4000 > 198.51.100.4:5000",
        "udp 10.0.0.2:7 > 198.51.100.4:5000",
        "tcp 203.0.113.9:4000 > 198.51.100.4:2222 SYN seq 1",
        "tcp 10.0.0.2:8 > 203.0.113.10:80 ACK seq 1",
        "udp [2001:db8::1]:5 > [2001:db8::2]:53",
        "gre 10.0.0.2 > 203.0.113.10",
    ];
    let web =
        (0..5).map(|host| format!("tcp 10.0.0.{}:1000 > 203.0.113.10:80 SYN seq 1", 2 + host));
    let names = (0..5).map(|port| format!("udp 10.0.0.2:{} > 203.0.113.20:53", 2000 + port));
    fixed.into_iter().map(str::to_owned).chain(web).chain(names).collect()
}

/// Checks a function ([`check_holdings`]). `is_something` says whether flows have
/// holdings.
fn check(build: &dyn Fn() -> Box<dyn Function>, is_something: bool) -> Result<(), String> {
    let packets: Vec<Vec<u8>> = packets().iter().map(|packet| words::frame(packet)).collect();
    let has_held = check_holdings(build, &packets)?;
    if has_held == is_something { Ok(()) } else { Err(format!("flows held: {has_held}")) }
}

#[test]
fn what_flows_hold_is_theirs_from_beginning_to_end() {
    for (name, config, is_something) in rows() {
        let build =
            || catalog::build(name, &config).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(check(&build, is_something), Ok(()), "{name}");
    }
}

/// Every function of the catalog is checked.
#[test]
fn every_function_has_a_row() {
    let checked: BTreeSet<&str> = rows().iter().map(|(name, ..)| *name).collect();
    assert_eq!(checked, catalog::names().into_iter().collect());
}

/// The pool of [`Keeper`], and its gauge.
enum Kept {}

holdfast_nf::shared_state! {
    struct Store {
        pool: Pool<Kept>,
        gauge: Gauge<Kept>,
    }
}

holdfast_nf::flow_state! {
    struct Keeping {
        packets: u32,
        leased: [Leased<Kept>; 2],
        counted: Counted<Kept>,
        spare: u16,
    }
}

/// Leases two numbers for every flow, and a third one that it does not keep; counts
/// flows, even and odd. If `CARELESS`, a flow's second packet overwrites all its state.
struct Keeper<const CARELESS: bool>;

impl<const CARELESS: bool> NetworkFunction for Keeper<CARELESS> {
    const NAME: &'static str = "keeper";
    type Config = ();
    type Flow = Keeping;
    type Shared = Store;

    fn new((): ()) -> Result<Self, ConfigError> {
        Ok(Keeper)
    }

    fn shared(&self) -> Store {
        Store { pool: Pool::new(256), gauge: Gauge::new(2) }
    }

    fn open(&self, _packet: &Packet, shared: &mut Store, cx: &mut Opening<'_>) -> Open<Keeping> {
        match [(); 3].map(|()| shared.pool.lease(cx)) {
            [Lease::Granted(one), Lease::Granted(two), Lease::Granted(_)] => {
                let counted = shared.gauge.count(usize::from(cx.key().source_port % 2), cx);
                Open::Accept(Keeping { leased: [one, two], counted, ..Keeping::default() })
            }
            [.., Lease::Wait] => Open::Wait,
            _ => Open::Drop(DropReason::PoolEmpty),
        }
    }

    fn process(
        &self,
        _packet: &mut Packet,
        flow: &mut Keeping,
        _shared: &mut Store,
        _cx: &mut Context,
    ) -> Verdict {
        flow.packets += 1;
        if CARELESS && flow.packets == 2 {
            *flow = Keeping::default();
        }
        Verdict::Forward
    }
}

fn keeper<const CARELESS: bool>() -> Result<(), String> {
    check(&|| Box::new(Bound::<Keeper<CARELESS>>::new(()).expect("nothing to refuse")), true)
}

/// The check finds a function that loses its flows' holdings, and accepts one that does
/// not.
#[test]
fn what_is_overwritten_is_missed() {
    assert_eq!(keeper::<false>(), Ok(()));
    let said = keeper::<true>().expect_err("two numbers of each flow are lost");
    assert!(said.contains("the flows have moved"), "{said}");
}
