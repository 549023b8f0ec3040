//! Numbers leased while a flow is opened become the flow's, or go back, in every outcome.

use holdfast_nf::shared::{PoolEffect, RequestPool, SharedField};
use holdfast_nf::zerocopy::FromBytes;
use holdfast_nf::{
    Bound, Chain, ConfigError, Context, Counted, DropReason, Function, Gauge, Lease, Leased,
    NetworkFunction, Open, Opening, Outcome, Packet, Pool, Position, Verdict,
};
use holdfast_wire::{MemoryPool, PacketPool};
use std::panic::{AssertUnwindSafe, catch_unwind};

enum Inside {}
enum Outside {}

holdfast_nf::shared_state! {
    struct Two {
        inside: Pool<Inside>,
        outside: Pool<Outside>,
        flows: Gauge<Inside>,
    }
}

holdfast_nf::flow_state! {
    struct Both {
        inside: Leased<Inside>,
        outside: Leased<Outside>,
        counted: Counted<Inside>,
        spare: [u8; 2],
    }
}

/// Needs a number of each of two pools for every flow. Panics at the end of `open` if the
/// packet comes by port 1, and in `expire` if it came by port 2. For a packet by port 3
/// it makes a number out of bytes.
struct Careful;

impl NetworkFunction for Careful {
    const NAME: &'static str = "careful";
    type Config = ();
    type Flow = Both;
    type Shared = Two;

    fn new((): ()) -> Result<Careful, ConfigError> {
        Ok(Careful)
    }

    fn shared(&self) -> Two {
        Two { inside: Pool::new(256), outside: Pool::new(256), flows: Gauge::new(3) }
    }

    fn open(&self, packet: &Packet, shared: &mut Two, cx: &mut Opening<'_>) -> Open<Both> {
        let Lease::Granted(inside) = shared.inside.lease(cx) else { return Open::Wait };
        let outside = match shared.outside.lease(cx) {
            Lease::Granted(outside) => outside,
            Lease::Wait => return Open::Wait,
            Lease::Exhausted => return Open::Drop(DropReason::PoolEmpty),
        };
        let port = packet.meta.ingress;
        assert_ne!(port, 1, "boom");
        let forged = || Leased::read_from_bytes(&7_u32.to_ne_bytes()).expect("four bytes");
        let inside = if port == 3 { forged() } else { inside };
        Open::Accept(Both {
            inside,
            outside,
            counted: shared.flows.count(port.into(), cx),
            spare: [port, 0],
        })
    }

    fn process(&self, _: &mut Packet, _: &mut Both, _: &mut Two, _: &mut Context) -> Verdict {
        Verdict::Forward
    }

    fn expire(&self, flow: &Both, _: &mut Two) {
        assert_ne!(flow.spare[0], 2, "boom");
    }
}

#[repr(align(16))]
struct Block([u8; 16]);

struct Bench {
    chain: Chain,
    cx: Context,
    packet: Packet,
    block: Block,
}

impl Bench {
    fn new() -> Bench {
        let function: Box<dyn Function> =
            Box::new(Bound::<Careful>::new(()).expect("nothing to refuse"));
        let packet = MemoryPool::new(1).take().expect("a buffer");
        let bench = Bench {
            chain: Chain::new(vec![function]),
            cx: Context::new(1),
            packet,
            block: Block([0; 16]),
        };
        assert_eq!(bench.chain.layout().size, 16);
        bench
    }

    /// Acts on the pool in a field.
    fn pool(&mut self, field: &str, act: impl Fn(&mut holdfast_nf::shared::Numbers)) {
        self.chain.functions_mut()[0].shared().visit(&mut |name, shared| {
            if let (true, SharedField::Pool(pool)) = (name == field, shared) {
                act(pool);
            }
        });
    }

    /// The number of leases that flows hold of each pool, and the number of flows that
    /// came by each port.
    fn held(&mut self) -> (Vec<u32>, Vec<i64>) {
        let (mut held, mut counted) = (Vec::new(), Vec::new());
        self.chain.functions_mut()[0].shared().visit(&mut |_, shared| match shared {
            SharedField::Pool(pool) => held.push(pool.backend().held()),
            SharedField::Gauge(part) => counted = part.own().to_vec(),
            _ => {}
        });
        (held, counted)
    }

    /// Opens a flow with a first packet at this port; `None` after a panic.
    fn open(&mut self, port: u8) -> Option<Outcome> {
        self.packet.meta.ingress = port;
        let Bench { chain, cx, packet, block } = self;
        catch_unwind(AssertUnwindSafe(|| chain.run(packet, &mut block.0, Position::OPENING, cx)))
            .ok()
    }
}

fn nothing() -> (Vec<u32>, Vec<i64>) {
    (vec![0, 0], vec![0, 0, 0])
}

/// The second pool has no number yet, or is empty, or the function panics: the first pool
/// has all its numbers again.
#[test]
fn what_no_flow_has_goes_back() {
    let mut bench = Bench::new();
    bench.pool("inside", |pool| pool.backend().grant_block(0, &[0; 4]));
    assert!(matches!(bench.open(0), Some(Outcome::Wait(_))));
    assert_eq!(bench.held(), nothing());
    bench.pool("outside", |pool| pool.backend().deny());
    assert!(matches!(bench.open(0), Some(Outcome::Drop(DropReason::PoolEmpty, 0))));
    assert_eq!(bench.held(), nothing());
    bench.pool("outside", |pool| pool.backend().grant_block(0, &[0; 4]));
    assert_eq!(bench.open(1), None, "it panics");
    assert_eq!(bench.held(), nothing());
    assert_eq!(bench.open(0), Some(Outcome::Forward));
    assert_eq!(bench.held(), (vec![1, 1], vec![1, 0, 0]));
}

/// The second pool's number is on its way from a server: however often the flow tries,
/// the first pool keeps the number at hand.
#[test]
fn who_waits_for_one_pool_uses_up_no_other() {
    let mut bench = Bench::new();
    ["inside", "outside"].into_iter().for_each(|field| {
        bench.pool(field, |pool| pool.attach(Box::new(RequestPool::new(256, 1))))
    });
    bench.pool("inside", |pool| pool.backend().assign(5));
    for _ in 0..3 {
        assert!(matches!(bench.open(0), Some(Outcome::Wait(_))));
        assert_eq!(bench.held(), nothing());
    }
    bench.pool("inside", |pool| {
        let effects: Vec<_> = core::iter::from_fn(|| pool.backend().poll_effect()).collect();
        let given_back =
            |effect: &PoolEffect| matches!(effect, PoolEffect::Return(_) | PoolEffect::Unused(_));
        assert_eq!(
            (effects.iter().any(given_back), pool.backend().available()),
            (false, 1),
            "{effects:?}"
        );
    });
    bench.pool("outside", |pool| pool.backend().assign(9));
    assert_eq!(bench.open(0), Some(Outcome::Forward));
    assert_eq!(bench.held(), (vec![1, 1], vec![1, 0, 0]));
}

/// A number that was not leased for a flow is not accepted with it, and an item that does
/// not exist does not count.
#[test]
fn what_was_not_given_for_a_flow_is_not_accepted() {
    let mut bench = Bench::new();
    ["inside", "outside"]
        .into_iter()
        .for_each(|field| bench.pool(field, |pool| pool.backend().grant_block(0, &[0; 4])));
    assert_eq!(bench.open(3), None, "it panics");
    assert_eq!(bench.held(), nothing());
    assert_eq!(bench.open(9), Some(Outcome::Forward));
    let counted =
        Both::ref_from_bytes(&bench.block.0[..size_of::<Both>()]).expect("a state").counted.item();
    assert_eq!((counted, bench.held()), (None, (vec![1, 1], vec![0, 0, 0])));
}

/// A function that panics at a flow's end keeps none of its holdings.
#[test]
fn a_panic_at_the_end_keeps_nothing() {
    let mut bench = Bench::new();
    ["inside", "outside"]
        .into_iter()
        .for_each(|field| bench.pool(field, |pool| pool.backend().grant_block(0, &[0; 4])));
    assert_eq!(bench.open(2), Some(Outcome::Forward));
    assert_eq!(bench.held(), (vec![1, 1], vec![0, 0, 1]));
    let Bench { chain, block, .. } = &mut bench;
    assert!(catch_unwind(AssertUnwindSafe(|| chain.expire(&mut block.0))).is_err());
    chain.close_rest(&mut block.0);
    assert_eq!(bench.held(), nothing());
}
