//! Eviction from tables that are nearly full.

use crate::runtime::Bench;
use crate::spot::{Nothing, PerPacket, SECOND, accepting, datagram};
use holdfast_nf::{Context, DropReason, Packet, Standing, Verdict};
use holdfast_protection::{
    Epoch, FlowRef, Flows, Outbox, Paged, Peer, Plan, Protection, Safety, Slot,
};
use holdfast_wire::fault::{Fault, plant};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flow's standing follows its latest packet, by number. The flow lives for a hundred
/// seconds, or ten ([`BRIEF`]), or as many as the upper four bits say.
struct Told;

/// Added to the number: the flow lives for ten seconds.
const BRIEF: u8 = 8;

impl PerPacket for Told {
    const NAME: &'static str = "told";
    type Flow = Nothing;

    fn process(packet: &mut Packet, _: &mut Nothing, cx: &mut Context) -> Verdict {
        let order = *packet.bytes().last().expect("an order");
        cx.keep(match (order >> 4, order & BRIEF) {
            (0, 0) => 100 * SECOND,
            (0, _) => 10 * SECOND,
            (seconds, _) => u64::from(seconds) * SECOND,
        });
        cx.stand(Standing::ALL[usize::from(order & !BRIEF & 0xf)]);
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

/// Five times as many half-open flows come as there is room for. Established and answered
/// flows stay, the latest half-open ones are there, and none was refused. Eviction does
/// that: without it the first flows keep the table full, and in the wrong order
/// established flows go.
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

/// Ten flows of every standing are idle for a second, and new ones come, which are
/// established at once. Closing flows make room first, then half-open and unreplied ones,
/// and then answered ones that have been idle for a sixteenth of their time. When only
/// established flows are left, the table is full.
#[test]
fn those_go_first_that_stand_for_least() {
    let mut bench = bench(100);
    open(&mut bench, 1..41, Standing::Established);
    for (at, standing) in
        (0..4).zip([Standing::Answered, Standing::Closing, Standing::Unreplied, Standing::HalfOpen])
    {
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
    assert_eq!(
        (all(&bench), bench.flows()),
        ([10, 0, 0, 0], 100),
        "packets of the answered ones have come lately"
    );
    bench.advance(7 * SECOND);
    assert_eq!((all(&bench), bench.flows()), ([0, 0, 0, 0], 90));
    open(&mut bench, 3000..3020, Standing::Established);
    assert_eq!(
        (bench.flows(), bench.spot.runtime.drops().get(DropReason::FlowTableFull)),
        (100, 10)
    );
    assert_eq!((there(&bench, 1..41), bench.spot.runtime.counts().forgotten), (40, 40));
}

/// Flows of one standing flood a table, so quickly that none of them gets a second old.
/// Flows that begin meanwhile, half open or unreplied, are still there a while later.
/// Flows that have been idle for longer are not.
#[test]
fn what_has_only_just_begun_stays() {
    const LATELY: u16 = 10;
    for (flood, other) in
        [(Standing::Unreplied, Standing::HalfOpen), (Standing::HalfOpen, Standing::Unreplied)]
    {
        let mut bench = bench(400);
        open(&mut bench, 1..11, other);
        bench.advance(SECOND);
        for round in 0..40_u16 {
            let flooded =
                (1000 + 20 * round..1020 + 20 * round).map(|flow| datagram(flow, flood as u8));
            let frames: Vec<_> =
                [datagram(100 + round, other as u8)].into_iter().chain(flooded).collect();
            bench.send(&frames);
            bench.advance(SECOND / 50);
            let lately = 100 + round.saturating_sub(LATELY)..101 + round;
            assert_eq!(there(&bench, lately.clone()), lately.len(), "{flood:?}, round {round}");
        }
        assert_eq!((there(&bench, 1..11), there(&bench, 100..110)), (0, 0), "{flood:?}");
        assert_eq!(bench.spot.runtime.drops().get(DropReason::FlowTableFull), 0);
    }
}

/// A table is full of unreplied flows with a long lifetime, and a flood of others with a
/// short one comes. The former have been idle for longer, although their deadlines come
/// later, and make room. Connections that are being opened stay. Flows of other lifetimes
/// that have ended do not matter.
#[test]
fn a_flood_of_flows_that_live_for_less_leaves_what_has_just_begun() {
    let mut bench = bench(400);
    let ended: Vec<_> = (1..4u8)
        .map(|seconds| {
            datagram(2000 + u16::from(seconds), Standing::Unreplied as u8 | seconds << 4)
        })
        .collect();
    bench.send(&ended);
    bench.advance(5 * SECOND);
    assert_eq!(bench.flows(), 0);
    let flows: Vec<u16> = (1..361).collect();
    flows.chunks(50).for_each(|burst| {
        let frames: Vec<_> =
            burst.iter().map(|flow| datagram(*flow, Standing::Unreplied as u8)).collect();
        bench.send(&frames);
    });
    bench.advance(SECOND);
    for round in 0..40_u16 {
        bench.send(&[datagram(500 + round, Standing::HalfOpen as u8)]);
        bench.advance(SECOND / 50);
        let flooded = (1000 + 20 * round..1020 + 20 * round)
            .map(|flow| datagram(flow, Standing::Unreplied as u8 | BRIEF));
        bench.send(&flooded.collect::<Vec<_>>());
        bench.advance(SECOND / 50);
        let lately = 500 + round.saturating_sub(10)..501 + round;
        assert_eq!(there(&bench, lately.clone()), lately.len(), "round {round}");
    }
    assert!(there(&bench, 1..361) < 72, "they were idle for longest: {}", there(&bench, 1..361));
    assert_eq!(bench.spot.runtime.drops().get(DropReason::FlowTableFull), 0);
}

/// Half-open flows with the first deadline end first. A flow that has had a packet since
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

/// More flows are filed wrongly, because they have had another packet, than a search
/// looks at. The search finds no flow that has been idle for longer than the connection
/// that is just being opened, so that connection stays.
#[test]
fn a_search_that_sees_too_little_ends_nothing_new() {
    let mut bench = bench(3000);
    let send = |bench: &mut Bench, flows: core::ops::Range<u16>, standing: Standing| {
        let frames: Vec<_> = flows.map(|flow| datagram(flow, standing as u8)).collect();
        frames.chunks(50).for_each(|burst| drop(bench.send(burst)));
    };
    for flows in [1..2700, 1..2700] {
        send(&mut bench, flows, Standing::Unreplied);
        bench.advance(SECOND);
    }
    send(&mut bench, 5000..5020, Standing::HalfOpen);
    for _ in 0..5 {
        bench.advance(SECOND / 50);
        assert_eq!(there(&bench, 5000..5020), 20);
    }
    assert_eq!(there(&bench, 1..2700), 2680, "others have made room");
}

/// Four fifths of the table are in use, most of it by established flows. A half-open flow
/// then lives two thirds of its time, and the whole of it in a table that has room.
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

/// More flows without a handshake have had packets lately than a turn looks at, and their
/// deadlines come before those of the idle ones. All the same idle flows make room, and
/// none of the active ones does.
#[test]
fn flows_that_may_not_go_hide_no_others() {
    let mut bench = bench(3000);
    let open_at_once = |bench: &mut Bench, flows: core::ops::Range<u16>, order: u8| {
        let flows: Vec<u16> = flows.collect();
        for burst in flows.chunks(50) {
            bench.send(&burst.iter().map(|flow| datagram(*flow, order)).collect::<Vec<_>>());
        }
    };
    open_at_once(&mut bench, 1..1401, Standing::Answered as u8);
    bench.advance(7 * SECOND);
    open_at_once(&mut bench, 2001..3351, Standing::Answered as u8 | BRIEF);
    for _ in 0..3 {
        bench.advance(SECOND / 100);
    }
    assert_eq!((bench.flows(), there(&bench, 2001..3351)), (2700, 1350));
    assert_eq!(bench.spot.runtime.drops().get(DropReason::FlowTableFull), 0);
}

/// A protection whose states are paged out until the test says that they have come.
struct Away {
    base: Box<dyn Protection>,
    have_come: Arc<AtomicBool>,
    wanted: Vec<Slot>,
}

impl Paged for Away {
    fn fetch(&mut self, _: &Flows, slot: Slot) -> bool {
        let is_here = self.have_come.load(Ordering::Relaxed);
        self.wanted.extend((!is_here).then_some(slot));
        is_here
    }

    fn make_room(&mut self, _: &mut Flows) {}

    fn reserved(&self, _: usize) -> usize {
        0
    }

    fn keep_aside(&mut self, _: &Flows, _: Slot, _: &[u8]) {}

    fn aside(&self) -> usize {
        0
    }

    fn visit_aside(&mut self, _: &mut dyn FnMut(FlowRef, &mut [u8])) {}

    fn departs(&mut self, _: &Flows, _: Slot, _: Peer, _: Epoch, _: &mut Outbox) -> bool {
        true
    }

    fn keeps_sent(&self, _: &Flows, _: Slot) -> bool {
        true
    }
}

impl Protection for Away {
    fn plan(&self) -> Plan {
        self.base.plan()
    }

    fn paged_mut(&mut self) -> Option<&mut dyn Paged> {
        Some(self)
    }

    fn commit(
        &mut self,
        flows: &mut Flows,
        slot: Slot,
        packet: Packet,
        nondeterministic: bool,
        out: &mut Outbox,
    ) {
        self.base.commit(flows, slot, packet, nondeterministic, out);
    }

    fn changed(&mut self, _: &mut Flows, _: Slot, _: u64, _: bool) {}

    fn ended(&mut self, _: &mut Flows, _: Slot, _: &mut Outbox) {}

    fn flush(&mut self, _: &mut Flows, out: &mut Outbox) {
        if self.have_come.load(Ordering::Relaxed) {
            out.loaded.append(&mut self.wanted);
        }
    }

    fn set_peers(&mut self, _: &mut Flows, _: &[Peer], _: &[Peer], _: &mut Outbox) {}

    fn handle_record(
        &mut self,
        _: &mut Flows,
        _: Peer,
        _: u8,
        _: &[u8],
        _: &mut Outbox,
    ) -> Result<(), DropReason> {
        Err(DropReason::Malformed)
    }

    fn handle_handed(&mut self, flows: &mut Flows, from: Peer, packet: Packet, out: &mut Outbox) {
        self.base.handle_handed(flows, from, packet, out);
    }

    fn recover(&mut self, _: &mut Flows, _: Peer, _: &mut Outbox) {}

    fn claimed(&mut self, _: &mut Flows, _: Slot) {}

    fn is_busy(&self) -> bool {
        true
    }

    fn safety(&self, flows: &Flows) -> Safety {
        self.base.safety(flows)
    }

    fn abandon(&mut self, _: &mut Outbox) {}
}

/// There are five flows too many, and the states of those that are to make room are paged
/// out. Meanwhile no others are chosen in their place. The chosen flows end when their
/// states have come.
#[test]
fn flows_whose_states_are_away_are_chosen_once() {
    let have_come = Arc::new(AtomicBool::new(false));
    let protection =
        Away { base: Plan::NONE.build(), have_come: have_come.clone(), wanted: Vec::new() };
    let mut bench = Bench::with(vec![accepting::<Told>()], Box::new(protection), 100);
    open(&mut bench, 1..96, Standing::HalfOpen);
    for _ in 0..20 {
        bench.advance(SECOND / 10);
    }
    assert_eq!((bench.flows(), bench.spot.runtime.counts().forgotten), (95, 0));
    have_come.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        bench.advance(SECOND / 10);
    }
    assert_eq!(
        (bench.flows(), there(&bench, 1..6), bench.spot.runtime.counts().forgotten),
        (90, 0, 5)
    );
    // Room is made as ever.
    open(&mut bench, 1000..1010, Standing::HalfOpen);
    bench.advance(SECOND / 10);
    assert_eq!(
        (bench.flows(), there(&bench, 6..16), bench.spot.runtime.counts().forgotten),
        (90, 0, 15)
    );
    bench.assert_no_buffer_lost();
}

/// A full switch is relieved of its excess once: flows that wait for their states are
/// counted.
#[test]
fn a_full_switch_is_not_given_others_for_those_that_wait() {
    let have_come = Arc::new(AtomicBool::new(false));
    let protection =
        Away { base: Plan::NONE.build(), have_come: have_come.clone(), wanted: Vec::new() };
    let mut bench = Bench::with(vec![accepting::<Told>()], Box::new(protection), 10_000);
    open(&mut bench, 1..201, Standing::HalfOpen);
    for _ in 0..5 {
        bench.advance_with(SECOND / 100, 1000);
    }
    have_come.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        bench.advance_with(SECOND / 100, 899);
    }
    assert_eq!((bench.flows(), there(&bench, 1..21)), (180, 0));
}

/// The switch's table is nearly full, and this runtime's is not. The runtime ends its
/// part of the excess among its own flows, once for each tick that says so.
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
