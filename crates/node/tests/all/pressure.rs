//! Tables that are nearly full: who ends so that others find room.

use crate::runtime::Bench;
use crate::spot::{Nothing, PerPacket, SECOND, accepting, datagram};
use holdfast_nf::{Context, DropReason, Packet, Standing, Verdict};
use holdfast_wire::fault::{Fault, plant};

/// A flow stands as its latest packet says, by number, and lives for a hundred seconds.
struct Told;

impl PerPacket for Told {
    const NAME: &'static str = "told";
    type Flow = Nothing;

    fn process(packet: &mut Packet, _: &mut Nothing, cx: &mut Context) -> Verdict {
        cx.keep(100 * SECOND);
        cx.stand(Standing::ALL[usize::from(*packet.bytes().last().expect("an order"))]);
        Verdict::Forward
    }
}

/// A runtime with room for so many flows.
fn bench(flows: usize) -> Bench {
    Bench::new(vec![accepting::<Told>()], flows)
}

/// Opens flows, a tenth of a second between every ten of them.
fn open(bench: &mut Bench, flows: core::ops::Range<u16>, standing: Standing) {
    let flows: Vec<u16> = flows.collect();
    for burst in flows.chunks(10) {
        let frames: Vec<_> = burst.iter().map(|flow| datagram(*flow, standing as u8)).collect();
        bench.send(&frames);
        bench.advance(SECOND / 10);
    }
}

/// How many of these flows there are.
fn there(bench: &Bench, flows: core::ops::Range<u16>) -> usize {
    let ports = bench.ports();
    flows.filter(|flow| ports.contains(flow)).count()
}

/// Five times as many half-open flows come as there is room for. Flows that are
/// established or answered stay, the latest half-open ones are there, and none was
/// refused. The rule does that: without it the first flows keep the table full, and with
/// the wrong one established flows go.
#[test]
fn a_flood_of_openings_leaves_what_stands_for_more() {
    let flood = |fault: Option<Fault>| {
        let _planted = fault.map(|fault| plant(fault.into()));
        let mut bench = bench(200);
        open(&mut bench, 1..61, Standing::Established);
        open(&mut bench, 101..131, Standing::Answered);
        open(&mut bench, 1000..2000, Standing::HalfOpen);
        let kept = (there(&bench, 1..61), there(&bench, 101..131), there(&bench, 1950..2000));
        let counts = bench.spot.runtime.counts();
        bench.assert_no_buffer_lost();
        (kept, bench.spot.runtime.drops().get(DropReason::FlowTableFull), counts.forgotten)
    };
    assert_eq!(flood(None), ((60, 30, 50), 0, 1090 - 180));
    let (kept, refused, forgotten) = flood(Some(Fault::ForgetsNothing));
    assert_eq!((kept, refused, forgotten), ((60, 30, 0), 890, 0));
    let ((established, ..), ..) = flood(Some(Fault::ForgetsEstablished));
    assert!(established < 60);
}

/// Flows of every standing, ten of each, idle for a second, and then new ones, which are established at once: closing flows make room first, then half-open ones, unreplied ones, and answered ones when they have been idle for a sixteenth of their time. When there
/// are only established ones left the table is full.
#[test]
fn those_go_first_that_stand_for_least() {
    let mut bench = bench(100);
    open(&mut bench, 1..41, Standing::Established);
    for (at, standing) in (0..4).zip([Standing::Answered, Standing::Closing, Standing::Unreplied, Standing::HalfOpen]) {
        open(&mut bench, 100 * (at + 1)..100 * (at + 1) + 10, standing);
    }
    bench.advance(SECOND);
    let all = |bench: &Bench| [1, 2, 3, 4].map(|at| there(bench, 100 * at..100 * at + 10));
    open(&mut bench, 1000..1010, Standing::Established);
    assert_eq!(all(&bench), [10, 10, 10, 10], "nine tenths are not too much");
    for (at, left) in (1..).zip([[10, 0, 10, 10], [10, 0, 10, 0], [10, 0, 0, 0]]) {
        open(&mut bench, 1000 + 10 * at..1010 + 10 * at, Standing::Established);
        assert_eq!(all(&bench), left);
    }
    open(&mut bench, 2000..2010, Standing::Established);
    assert_eq!((all(&bench), bench.flows()), ([10, 0, 0, 0], 100), "packets of the answered ones have come lately");
    bench.advance(7 * SECOND);
    assert_eq!((all(&bench), bench.flows()), ([0, 0, 0, 0], 90));
    open(&mut bench, 3000..3020, Standing::Established);
    assert_eq!((bench.flows(), bench.spot.runtime.drops().get(DropReason::FlowTableFull)), (100, 10));
    assert_eq!((there(&bench, 1..41), bench.spot.runtime.counts().forgotten), (40, 40));
}

/// Flows of one standing flood a table, so quickly that none of them gets a second old. Whatever begins meanwhile, half open or unreplied, is there a while later; what has been idle for longer is not.
#[test]
fn what_has_only_just_begun_stays() {
    const LATELY: u16 = 10;
    for (flood, other) in [(Standing::Unreplied, Standing::HalfOpen), (Standing::HalfOpen, Standing::Unreplied)] {
        let mut bench = bench(400);
        open(&mut bench, 1..11, other);
        bench.advance(SECOND);
        for round in 0..40_u16 {
            let flooded = (1000 + 20 * round..1020 + 20 * round).map(|flow| datagram(flow, flood as u8));
            let frames: Vec<_> = [datagram(100 + round, other as u8)].into_iter().chain(flooded).collect();
            bench.send(&frames);
            bench.advance(SECOND / 50);
            let lately = 100 + round.saturating_sub(LATELY)..101 + round;
            assert_eq!(there(&bench, lately.clone()), lately.len(), "{flood:?}, round {round}");
        }
        assert_eq!((there(&bench, 1..11), there(&bench, 100..110)), (0, 0), "{flood:?}");
        assert_eq!(bench.spot.runtime.drops().get(DropReason::FlowTableFull), 0);
    }
}

/// Half-open flows whose time is over first end first. A flow that has had a packet since
/// stays, and so does one that is established by now, whatever they were when they came.
#[test]
fn a_flow_that_goes_on_is_not_the_first_to_go() {
    let mut bench = bench(100);
    open(&mut bench, 1..91, Standing::HalfOpen);
    bench.send(&[datagram(3, Standing::HalfOpen as u8), datagram(5, Standing::Established as u8)]);
    bench.advance(SECOND / 10);
    open(&mut bench, 1000..1010, Standing::HalfOpen);
    assert_eq!((there(&bench, 1..11), there(&bench, 11..91), bench.flows()), (2, 78, 90));
    assert!(bench.ports().contains(&3) && bench.ports().contains(&5));
}

/// Four fifths of the table are in use, most of it by established flows. A half-open flow lives two thirds of its time then, and the whole of it in a table that has room.
#[test]
fn times_become_shorter_as_the_table_fills() {
    for (established, lives) in [(40, true), (70, false)] {
        let mut bench = bench(100);
        open(&mut bench, 1..established + 1, Standing::Established);
        open(&mut bench, 1000..1010, Standing::HalfOpen);
        for _ in 0..60 {
            bench.advance(SECOND);
        }
        assert_eq!(there(&bench, 1000..1010), 10);
        for _ in 0..15 {
            bench.advance(SECOND);
        }
        assert_eq!(there(&bench, 1000..1010), if lives { 10 } else { 0 });
        assert_eq!(there(&bench, 1..established + 1), usize::from(established));
    }
}

/// The switch's table is nearly full, this runtime's is not: of its flows it ends its part of what is too much, once for each time that it is told.
#[test]
fn a_full_switch_is_heeded() {
    let mut bench = bench(10_000);
    open(&mut bench, 1..101, Standing::Established);
    open(&mut bench, 1000..1100, Standing::HalfOpen);
    bench.advance_with(SECOND / 10, 900);
    assert_eq!(bench.flows(), 200);
    bench.advance_with(SECOND / 10, 1000);
    assert_eq!((bench.flows(), there(&bench, 1000..1020), there(&bench, 1..101)), (180, 0, 100));
    bench.advance_with(SECOND / 10, 899);
    assert_eq!(bench.flows(), 180);
}
