//! Objects that a function keeps beside flows' states: they end with their flows, and are
//! of use only with the state that has counted all of their steps.

use holdfast_nf::bench::{Bench, frames};
use holdfast_nf::{
    Bound, Cache, Cached, Chain, ConfigError, Context, Counters, NetworkFunction, Open, Opening,
    Packet, Store, Verdict,
};
use std::collections::BTreeMap;

/// An object is the number of its steps.
#[derive(Default)]
struct Steps(BTreeMap<u64, u32>);

impl Store for Steps {
    fn forget(&mut self, flow: u64) {
        self.0.remove(&flow);
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

holdfast_nf::shared_state! {
    struct Both {
        counts: Counters,
        objects: Cache<Steps>,
    }
}

holdfast_nf::flow_state! {
    struct Seen {
        object: Cached<Steps>,
    }
}

/// Steps with every packet, and counts those without an object.
struct Stepping;

impl NetworkFunction for Stepping {
    const NAME: &'static str = "stepping";
    type Config = ();
    type Flow = Seen;
    type Shared = Both;

    fn new(_config: ()) -> Result<Stepping, ConfigError> {
        Ok(Stepping)
    }

    fn shared(&self) -> Both {
        Both { counts: Counters::new(["missing"]), objects: Cache::new(Steps::default()) }
    }

    fn open(&self, _packet: &Packet, _shared: &mut Both, _cx: &mut Opening<'_>) -> Open<Seen> {
        Open::Accept(Seen::default())
    }

    fn process(
        &self,
        _packet: &mut Packet,
        flow: &mut Seen,
        shared: &mut Both,
        cx: &mut Context,
    ) -> Verdict {
        let (Steps(objects), step) = shared.objects.step(&mut flow.object, cx);
        if step.before == 0 {
            objects.insert(step.flow, 0);
        }
        match objects.get_mut(&step.flow).filter(|steps| **steps == step.before) {
            Some(steps) => *steps += 1,
            None => shared.counts.add(0, 1),
        }
        Verdict::Forward
    }
}

fn bench() -> Bench {
    let function = Bound::<Stepping>::new(()).expect("a right configuration");
    Bench::new(Chain::new(vec![Box::new(function)]))
}

fn send(bench: &mut Bench, port: u16) {
    let frame = frames::udp(([10, 0, 0, 2], port), ([203, 0, 113, 20], 53), b"a question");
    assert!(bench.send(&frame).is_ok());
    assert!(bench.nondeterministic, "a replay would not have the object");
}

fn objects(bench: &mut Bench) -> i64 {
    bench.tables()[0].values[0]
}

/// Flows have objects of their own, which end when the flows do, or leave.
#[test]
fn objects_go_with_their_flows() {
    let (mut bench, mut heir) = (bench(), bench());
    for _ in 0..3 {
        (1..=5).for_each(|port| send(&mut bench, port));
    }
    assert_eq!((objects(&mut bench), bench.counter("missing")), (5, 0));
    heir.takes_over(&mut bench, true);
    assert_eq!((objects(&mut bench), objects(&mut heir)), (0, 0));
    send(&mut bench, 6);
    bench.wait(1_000_000_000_000);
    assert_eq!((bench.flows(), objects(&mut bench)), (0, 0));
}

/// A flow that comes from elsewhere, comes back, or is set back, has no object.
#[test]
fn an_object_is_of_no_other_state() {
    let (mut home, mut away) = (bench(), bench());
    send(&mut home, 1);
    away.takes_over(&mut home, false);
    send(&mut away, 1);
    assert_eq!(away.counter("missing"), 1);
    // The old object is still there, and has missed a packet.
    home.takes_over(&mut away, true);
    assert_eq!(objects(&mut home), 1);
    send(&mut home, 1);
    assert_eq!(home.counter("missing"), 1);
    let mut other = bench();
    send(&mut other, 1);
    send(&mut other, 1);
    let before = other.remember();
    send(&mut other, 1);
    other.set_back(before, 1);
    send(&mut other, 1);
    assert_eq!(other.counter("missing"), 1);
}
