//! Leases and counts under every function of the catalog: each belongs to its flow from
//! beginning to end, wherever the flow is.
//!
//! The check is the same for every function ([`check`]): flows open, move to another
//! instance, come to a third one because theirs has failed, and end. At each place
//! exactly their holdings are held, and in the end none. A new function in the catalog
//! needs a row in [`rows`].

use crate::bench::{Bench, holds};
use holdfast_functions::catalog;
use holdfast_nf::shared::PoolEffect;
use holdfast_nf::{
    Bound, Chain, ConfigError, Context, Counted, DropReason, Function, Gauge, Lease, Leased,
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

/// Checks that a flow's holdings under this function are held exactly once while the flow
/// lives. `is_something` says whether flows have any.
fn check(build: &dyn Fn() -> Box<dyn Function>, is_something: bool) {
    let instance = || Bench::of(Chain::new(vec![build()]));
    let (mut first, mut second, mut third) = (instance(), instance(), instance());
    let nothing = first.books();
    let say = |bench: &mut Bench, count: usize| {
        for packet in packets().iter().cycle().take(count) {
            // Some packets are refused: by the function, or because the reply key is
            // taken.
            let _ = bench.send(packet);
        }
    };
    let all = packets().len();
    say(&mut first, all);
    let (held, flows) = (first.books(), first.flows());
    assert!(flows > 0, "nothing opens a flow");
    assert_eq!(held != nothing, is_something, "{flows} flows hold {held:?}");
    say(&mut first, 2 * all);
    assert_eq!(first.books(), held, "packets of flows that live change nothing");

    second.takes_over(&mut first, true);
    assert_eq!(
        (first.books(), second.books()),
        (nothing.clone(), held.clone()),
        "the flows have moved"
    );
    say(&mut second, all);
    assert_eq!(second.books(), held, "packets of flows that came change nothing");

    second.effects();
    third.takes_over(&mut second, false);
    assert_eq!(third.books(), held, "the flows have been recovered");
    let adopted = third.effects();
    third.wait(1_000_000);
    assert_eq!((third.flows(), third.books()), (0, nothing.clone()), "all flows have ended");
    // Each number is reported exactly as often as it was leased.
    let numbers = |effects: &[PoolEffect], of: fn(&PoolEffect) -> Option<u32>| {
        let mut numbers: Vec<u32> = effects.iter().filter_map(of).collect();
        numbers.sort_unstable();
        numbers
    };
    let adopted = numbers(&adopted, |effect| {
        if let PoolEffect::Adopted(number) = effect { Some(*number) } else { None }
    });
    let returned = numbers(&third.effects(), |effect| {
        if let PoolEffect::Return(number) = effect { Some(*number) } else { None }
    });
    assert_eq!(adopted, returned, "what came is returned, each number once");

    // The recount follows the loss of a flow: the others name their holdings.
    let (mut one, mut all_but_one) = (instance(), instance());
    say(&mut one, all);
    one.loses_one();
    let left = one.books();
    all_but_one.takes_over(&mut one, true);
    assert_eq!((one.books(), all_but_one.books()), (nothing.clone(), left), "a flow was lost");

    // Pools are empty: refused flows hold nothing.
    let mut poor = instance();
    poor.is_poor = true;
    say(&mut poor, all);
    poor.wait(1_000_000);
    assert_eq!((poor.flows(), poor.books()), (0, nothing), "all flows have ended, or never were");
}

#[test]
fn what_flows_hold_is_theirs_from_beginning_to_end() {
    for (name, config, is_something) in rows() {
        check(
            &|| catalog::build(name, &config).unwrap_or_else(|error| panic!("{name}: {error}")),
            is_something,
        );
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

fn keeper<const CARELESS: bool>() {
    check(&|| Box::new(Bound::<Keeper<CARELESS>>::new(()).expect("nothing to refuse")), true);
}

/// The check finds a function that loses its flows' holdings, and accepts one that does
/// not.
#[test]
fn what_is_overwritten_is_missed() {
    assert_eq!(holds(keeper::<false>), Ok(()));
    let said = holds(keeper::<true>).expect_err("two numbers of each flow are lost");
    assert!(said.contains("the flows have moved"), "{said}");
}
