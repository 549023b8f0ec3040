//! A runtime alone: functions that panic, functions that must wait, tables that are full.

use crate::spot::{
    Nothing, PerPacket, SECOND, Spot, accepting, bound, datagram, frames_of, is_released, view_of,
};
use holdfast_nf::shared::{Lease, Pool, RequestPool};
use holdfast_nf::{
    ConfigError, Context, Counters, DropReason, Function, Leased, NetworkFunction, Open, Opening,
    Verdict,
};
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::{Control, PoolId};
use holdfast_protection::{Peer, Plan, Protection};
use holdfast_wire::nsh::{self, Flags};
use holdfast_wire::{MemoryPool, NodeId, Packet, PacketPool};
use std::collections::BTreeSet;

const NOTHING: [u8; 0] = [];
pub(crate) const ME: Peer = Peer { node: NodeId::new(16), incarnation: 1 };

/// A runtime, the coordinator and the manager to which it speaks, and a clock that only
/// moves when told.
pub(crate) struct Bench {
    pub(crate) spot: Spot,
    pub(crate) stamp: u64,
    coordinator: Fabric,
    pub(crate) manager: Fabric,
}

impl Bench {
    pub(crate) fn new(functions: Vec<Box<dyn Function>>, flows: usize) -> Bench {
        Bench::with(functions, Plan::NONE.build(), flows)
    }

    pub(crate) fn with(
        functions: Vec<Box<dyn Function>>,
        protection: Box<dyn Protection>,
        flows: usize,
    ) -> Bench {
        let spot = Spot::new(ME, functions, protection, flows, 256);
        let mut coordinator = Fabric::new(
            Peer { node: NodeId::COORDINATOR, incarnation: 1 },
            FabricConfig::default(),
        );
        let manager =
            Fabric::new(Peer { node: NodeId::MANAGER, incarnation: 1 }, FabricConfig::default());
        coordinator.set_peer(ME);
        let mut bench = Bench { spot, stamp: SECOND, coordinator, manager };
        // The runtime asks for their incarnations, and is told.
        bench.hear();
        bench.hear();
        bench
    }

    fn packet(&mut self, frame: &[u8], epoch: u32, flags: u8) -> Vec<u8> {
        self.stamp += 1;
        self.spot.packet(frame, (self.stamp, epoch, flags))
    }

    /// Sends frames in one burst; returns the payload bytes of the released packets, in
    /// order.
    pub(crate) fn send(&mut self, frames: &[Vec<u8>]) -> Vec<u8> {
        let frames: Vec<_> = frames.iter().map(|frame| self.packet(frame, 1, Flags::NEW)).collect();
        self.turn(&frames)
    }

    pub(crate) fn turn(&mut self, frames: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        for frame in self.spot.turn(frames, self.stamp) {
            if is_released(&frame) {
                out.extend(frame.last());
            } else if frame[..6] == NodeId::COORDINATOR.mac() {
                let _ = self.coordinator.handle_frame(&frame, self.stamp);
            } else if frame[..6] == NodeId::MANAGER.mac() {
                let _ = self.manager.handle_frame(&frame, self.stamp);
            }
        }
        out
    }

    fn tell(&mut self, message: &Control) -> Vec<u8> {
        self.coordinator.send_control(ME.node, message);
        self.hear()
    }

    /// Delivers the coordinator's and the manager's frames.
    pub(crate) fn hear(&mut self) -> Vec<u8> {
        let mut frames = frames_of(&mut self.coordinator, self.stamp);
        frames.append(&mut frames_of(&mut self.manager, self.stamp));
        self.turn(&frames)
    }

    pub(crate) fn advance(&mut self, nanoseconds: u64) {
        self.advance_with(nanoseconds, 0);
    }

    /// As `Bench::advance`, with the fill of the switch's table, in 1/1000.
    pub(crate) fn advance_with(&mut self, nanoseconds: u64, fill: u32) {
        self.stamp += nanoseconds;
        let tick = self.spot.tick(self.stamp, fill);
        self.turn(&[tick]);
        self.turn(&[]);
    }

    pub(crate) fn flows(&self) -> usize {
        self.spot.flows()
    }

    /// The ports of all flows.
    pub(crate) fn ports(&self) -> BTreeSet<u16> {
        let flows = self.spot.runtime.flows(0).into_iter().flat_map(|flows| flows.iter());
        flows.map(|(_, header)| header.key.source_port).collect()
    }

    pub(crate) fn assert_no_buffer_lost(&self) {
        self.spot.assert_no_buffer_lost();
    }
}

/// Flows live for two hours from each packet on, or for ten seconds after the order 1.
pub(crate) struct Closing;

impl PerPacket for Closing {
    const NAME: &'static str = "closing";
    type Flow = Nothing;

    fn process(packet: &mut Packet, _: &mut Nothing, cx: &mut Context) -> Verdict {
        if packet.bytes().last() == Some(&1) {
            cx.ending();
            cx.keep(10 * SECOND);
        } else {
            cx.keep(7200 * SECOND);
        }
        Verdict::Forward
    }
}

/// A flow that is closing ends after its time-out, to one step of the wheel, although its
/// deadline was hours away. Other flows stay, and so does one that goes on after all.
#[test]
fn a_deadline_that_comes_closer_counts_at_once() {
    const STEP: u64 = 1 << 27;
    for before in [0, 1, 100, 540, 560, 3000] {
        let mut bench = Bench::new(vec![accepting::<Closing>()], 16);
        assert_eq!(bench.send(&[datagram(1, 0), datagram(2, 0), datagram(3, 0)]), [0, 0, 0]);
        bench.advance(before * SECOND);
        assert_eq!(bench.send(&[datagram(3, 1), datagram(1, 1)]), [1, 1]);
        let due = bench.stamp + 10 * SECOND;
        bench.advance(5 * SECOND);
        assert_eq!(bench.send(&[datagram(3, 0)]), [0]);
        bench.advance(due - 1 - bench.stamp);
        assert_eq!(bench.flows(), 3, "after {before} s");
        bench.advance(STEP + 1);
        assert_eq!(bench.flows(), 2, "after {before} s");
        for _ in 0..7100 / 500 {
            bench.advance(500 * SECOND);
        }
        assert_eq!(bench.flows(), if before < 170 { 2 } else { 1 }, "after {before} s");
        bench.advance(300 * SECOND);
        bench.assert_no_buffer_lost();
    }
}

holdfast_nf::flow_state! {
    struct Count {
        packets: u64,
    }
}

/// Counts packets, and panics on the order 0xff, after having counted.
struct Bomb;

impl PerPacket for Bomb {
    const NAME: &'static str = "bomb";
    type Flow = Count;

    fn process(packet: &mut Packet, flow: &mut Count, _: &mut Context) -> Verdict {
        flow.packets += 1;
        let payload = packet.l4_mut();
        assert_ne!(payload[8], 0xff, "boom");
        payload[8] = flow.packets as u8;
        Verdict::Forward
    }
}

fn bomb() -> Box<dyn Function> {
    accepting::<Bomb>()
}

/// The function panics on one packet of five. The packet is dropped with its reason, the
/// flow's state is as before it, the others pass, and no buffer is lost.
#[test]
fn a_panicking_function_costs_one_packet() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut bench = Bench::new(vec![bomb()], 16);
    let out = bench.send(&[
        datagram(1, 0),
        datagram(1, 0),
        datagram(1, 0xff),
        datagram(1, 0),
        datagram(2, 0),
    ]);
    assert_eq!(out, [1, 2, 3, 1], "the third packet's count was rolled back");
    assert_eq!(bench.spot.runtime.counts().panics, 1);
    assert_eq!(bench.spot.runtime.drops().get(DropReason::FunctionPanicked), 1);
    assert_eq!(bench.spot.runtime.drops().total(), 1);
    // A flow whose very first packet panics does not exist.
    assert_eq!(bench.send(&[datagram(3, 0xff)]), NOTHING);
    assert_eq!(bench.flows(), 2);
    bench.assert_no_buffer_lost();
}

/// The table is full: new flows are refused with a reason, and existing ones go on.
#[test]
fn a_full_table_refuses_new_flows_and_serves_the_others() {
    let mut bench = Bench::new(vec![bomb()], 4);
    let first: Vec<Vec<u8>> = (1..=4).map(|flow| datagram(flow, 0)).collect();
    assert_eq!(bench.send(&first), [1, 1, 1, 1]);
    assert_eq!(bench.send(&[datagram(5, 0), datagram(1, 0)]), [2]);
    assert_eq!(bench.spot.runtime.drops().get(DropReason::FlowTableFull), 1);
    bench.assert_no_buffer_lost();
}

/// Flows end by stamped time, and their room is free again.
#[test]
fn flows_end_by_stamped_time() {
    let mut bench = Bench::new(vec![bomb()], 4);
    bench.send(&[datagram(1, 0)]);
    bench.advance(299_000_000_000);
    assert_eq!(bench.flows(), 1);
    for _ in 0..40 {
        bench.advance(1_000_000_000);
    }
    assert_eq!(bench.flows(), 0);
    assert_eq!(bench.spot.runtime.counts().expired, 1);
}

/// A flow has ended. Packets that the switch had sent for it before open no flow; packets
/// of a new route for the key do.
#[test]
fn a_packet_that_its_flows_end_has_overtaken_opens_none() {
    let mut bench = Bench::new(vec![bomb()], 4);
    bench.send(&[datagram(1, 0)]);
    let late = bench.packet(&datagram(1, 0), 1, Flags::NEW);
    for _ in 0..340 {
        bench.advance(1_000_000_000);
    }
    assert_eq!(bench.flows(), 0);
    assert_eq!(bench.turn(&[late]), NOTHING);
    assert_eq!((bench.flows(), bench.spot.runtime.drops().get(DropReason::NoFlow)), (0, 1));
    let anew = bench.packet(&datagram(1, 0), 2, Flags::NEW);
    assert_eq!(bench.turn(&[anew]), [1]);
    // Another flow with the same epoch never was here.
    assert_eq!(bench.send(&[datagram(2, 0)]), [1]);
    bench.assert_no_buffer_lost();
}

/// A flow has had replies. Its switch begins anew without the reply key, which another
/// flow may have. Released packets carry the key again, until the switch shows that it
/// has learned it.
#[test]
fn what_leaves_says_the_reply_key_when_the_switch_does_not_know_it() {
    let mut bench = Bench::new(vec![bomb()], 4);
    let mut reply = datagram(1, 0);
    reply[26..34].rotate_left(4);
    reply[34..38].rotate_left(2);
    let mut says_key = |frame: &[u8], flags| {
        let packet = bench.packet(frame, 1, flags);
        let sent = bench.spot.turn(&[packet], bench.stamp);
        let released: Vec<_> = sent.iter().filter(|frame| is_released(frame)).collect();
        assert_eq!(released.len(), 1);
        let mut packet = bench.spot.pool.take().expect("the pool is large enough");
        assert!(packet.copy_from(released[0]));
        assert!(nsh::decapsulate(&mut packet).is_some());
        let says_key = packet.meta.flags & Flags::LEARN != 0;
        bench.spot.pool.put(packet);
        says_key
    };
    assert!(says_key(&datagram(1, 0), Flags::NEW));
    assert!(!says_key(&reply, 0) && !says_key(&datagram(1, 0), 0));
    assert!(says_key(&datagram(1, 0), Flags::NEW) && says_key(&datagram(1, 0), Flags::NEW));
    assert!(!says_key(&datagram(1, 0), 0) && !says_key(&reply, 0));
}

/// Packets to an earlier incarnation of this node, or from a switch that is not its
/// chain's, open no flow and do not set the clock.
#[test]
fn packets_of_others_open_nothing() {
    let mut bench = Bench::new(vec![bomb()], 4);
    let earlier = Peer { incarnation: ME.incarnation - 1, ..ME };
    for (to, from, reason) in [
        (earlier, NodeId::SWITCH, DropReason::Fenced),
        (ME, NodeId::switch(1), DropReason::Malformed),
    ] {
        let mut packet =
            bench.spot.packet(&datagram(1, 0), (bench.stamp + 1000 * SECOND, 1, Flags::NEW));
        packet[..6].copy_from_slice(&to.mac());
        packet[6..12].copy_from_slice(&from.mac());
        assert_eq!(bench.turn(&[packet]), NOTHING);
        assert_eq!((bench.flows(), bench.spot.runtime.drops().get(reason)), (0, 1));
    }
    assert_eq!(bench.send(&[datagram(1, 0)]), [1]);
    bench.advance(1_000_000_000);
    assert_eq!(bench.flows(), 1, "its time is not over");
    bench.assert_no_buffer_lost();
}

/// The pool that flows lease from.
enum Pooled {}

holdfast_nf::flow_state! {
    struct Borrower {
        number: Leased<Pooled>,
        opened: u32,
    }
}

holdfast_nf::shared_state! {
    struct Numbers {
        pool: Pool<Pooled>,
    }
}

/// Needs a number for every flow, and writes it into the packets.
struct Leaser;

impl NetworkFunction for Leaser {
    const NAME: &'static str = "leaser";
    type Config = ();
    type Flow = Borrower;
    type Shared = Numbers;

    fn new((): ()) -> Result<Leaser, ConfigError> {
        Ok(Leaser)
    }

    fn shared(&self) -> Numbers {
        Numbers { pool: Pool::new(200) }
    }

    fn open(&self, _: &Packet, shared: &mut Numbers, cx: &mut Opening<'_>) -> Open<Borrower> {
        match shared.pool.lease(cx) {
            Lease::Granted(number) => Open::Accept(Borrower { number, opened: 1 }),
            Lease::Wait => Open::Wait,
            Lease::Exhausted => Open::Drop(DropReason::PoolEmpty),
        }
    }

    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Borrower,
        _: &mut Numbers,
        _: &mut Context,
    ) -> Verdict {
        packet.l4_mut()[8] += flow.number.number().expect("it has one") as u8;
        Verdict::Forward
    }
}

fn leaser() -> Box<dyn Function> {
    bound::<Leaser>()
}

const POOL: PoolId = PoolId { chain: 0, function: 1, field: 0 };

/// The second function of a chain waits for a number. The first does not run again, and
/// later packets of the flow wait behind. When the grant comes, all leave in order.
#[test]
fn a_flow_that_waits_for_a_lease_goes_on_where_it_stopped() {
    let mut bench = Bench::new(vec![bomb(), leaser()], 16);
    assert_eq!(bench.send(&[datagram(1, 0), datagram(1, 0), datagram(2, 0)]), NOTHING);
    assert_eq!(bench.spot.runtime.held(), 3);
    bench.assert_no_buffer_lost();
    let out = bench.tell(&Control::Grant { pool: POOL, blocks: vec![(0, [0; 4])] });
    // Flow 1 counts 1 and 2 with number 0; flow 2 counts 1 with number 1.
    assert_eq!(out, [1, 2, 1 + 1]);
    assert_eq!(bench.spot.runtime.held(), 0);
    bench.assert_no_buffer_lost();
}

/// The pool is empty everywhere: the flow is refused with a reason, and the first
/// function's opening of it is undone.
#[test]
fn a_denied_lease_ends_the_flow() {
    let mut bench = Bench::new(vec![bomb(), leaser()], 16);
    bench.send(&[datagram(1, 0)]);
    bench.tell(&Control::Deny { pool: POOL });
    assert_eq!(bench.spot.runtime.drops().get(DropReason::PoolEmpty), 1);
    assert_eq!(bench.flows(), 0);
    bench.assert_no_buffer_lost();
}

/// The parking lot is full of other flows' packets. A flow whose first packet finds no
/// place there does not exist, and the functions that have it open close it.
#[test]
fn a_flow_that_finds_no_place_to_wait_does_not_exist() {
    let mut bench = Bench::new(vec![bomb(), leaser()], 200);
    bench.spot.pool = MemoryPool::new(9000);
    for flow in 1..=128 {
        bench.send(&vec![datagram(flow, 0); 64]);
    }
    assert_eq!((bench.spot.runtime.held(), bench.flows()), (8192, 128));
    bench.send(&[datagram(199, 0)]);
    assert_eq!(
        (bench.spot.runtime.drops().get(DropReason::ParkedOverflow), bench.flows()),
        (1, 128)
    );
    bench.assert_no_buffer_lost();
}

/// No answer comes at all: the packets are dropped with a reason after a while.
#[test]
fn a_lease_that_never_comes_times_out() {
    let mut bench = Bench::new(vec![bomb(), leaser()], 16);
    bench.send(&[datagram(1, 0), datagram(1, 0)]);
    bench.advance(5_000_000_000);
    assert_eq!(bench.spot.runtime.drops().get(DropReason::ParkedTooLong), 2);
    assert_eq!(bench.flows(), 0);
    bench.assert_no_buffer_lost();
}

/// The same function runs with every number assigned by a server: it cannot tell the
/// difference.
#[test]
fn the_same_function_runs_on_a_pool_that_asks_a_server() {
    let mut bench = Bench::new(vec![bomb(), leaser()], 16);
    bench.spot.runtime.visit_pools(|_, pool| pool.attach(Box::new(RequestPool::new(1024, 1))));
    assert_eq!(bench.send(&[datagram(1, 0)]), NOTHING, "nothing was prefetched yet");
    bench.spot.runtime.visit_pools(|_, pool| pool.backend().assign(7));
    // Any message about the pool makes the runtime look again.
    let out = bench.tell(&Control::Returned { pool: POOL, numbers: vec![] });
    assert_eq!(out, [1 + 7]);
    bench.assert_no_buffer_lost();
}

/// Panics when it opens a flow to port 1, when it processes a packet to port 2 or 3, and
/// when a flow to port 3 or 4 ends.
struct Tripwire;

impl NetworkFunction for Tripwire {
    const NAME: &'static str = "tripwire";
    type Config = ();
    type Flow = Count;
    type Shared = ();

    fn new((): ()) -> Result<Tripwire, ConfigError> {
        Ok(Tripwire)
    }

    fn shared(&self) {}

    fn open(&self, packet: &Packet, _: &mut (), _: &mut Opening<'_>) -> Open<Count> {
        let port = packet.l4()[3];
        assert_ne!(port, 1, "boom");
        Open::Accept(Count { packets: u64::from(port) })
    }

    fn process(&self, packet: &mut Packet, _: &mut Count, _: &mut (), _: &mut Context) -> Verdict {
        assert!(!matches!(packet.l4()[3], 2 | 3), "boom");
        Verdict::Forward
    }

    fn expire(&self, flow: &Count, _: &mut ()) {
        assert!(!matches!(flow.packets, 3 | 4), "boom");
    }
}

fn tripwire() -> Box<dyn Function> {
    bound::<Tripwire>()
}

fn datagram_to(flow: u16, port: u8, order: u8) -> Vec<u8> {
    let mut frame = datagram(flow, order);
    frame[37] = port;
    frame
}

/// A function behind the leasing one panics on the packet that opens a flow: while it
/// opens, while it processes, and then again while the flow is closed. The flows do not
/// exist, and their numbers are free again.
#[test]
fn a_panic_while_a_flow_opens_loses_no_lease() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut bench = Bench::new(vec![bomb(), leaser(), tripwire()], 16);
    bench.tell(&Control::Grant { pool: POOL, blocks: vec![(0, [0; 4])] });
    for (flow, (port, panics)) in [(1, 1), (2, 2), (3, 4)].into_iter().enumerate() {
        assert_eq!(bench.send(&[datagram_to(flow as u16, port, 0)]), NOTHING);
        assert_eq!(
            (bench.spot.available(), bench.flows(), bench.spot.runtime.counts().panics),
            (200, 0, panics),
            "port {port}"
        );
    }
    assert_eq!(bench.spot.runtime.drops().get(DropReason::FunctionPanicked), 3);
    bench.assert_no_buffer_lost();
}

/// A function in front panics when its flows end, because a later function panicked, or
/// because their time has come. Each time the functions behind it are told too.
#[test]
fn a_panic_while_a_flow_ends_loses_no_lease() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut bench = Bench::new(vec![tripwire(), leaser(), bomb()], 16);
    bench.tell(&Control::Grant { pool: POOL, blocks: vec![(0, [0; 4])] });
    assert_eq!(bench.send(&[datagram_to(1, 4, 0xff)]), NOTHING);
    assert_eq!((bench.spot.available(), bench.flows()), (200, 0));
    assert_eq!(bench.send(&[datagram_to(2, 4, 0)]), [1]);
    assert_eq!(bench.spot.available(), 199);
    for _ in 0..400 {
        bench.advance(1_000_000_000);
    }
    assert_eq!(
        (bench.spot.available(), bench.flows(), bench.spot.runtime.counts().panics),
        (200, 0, 3)
    );
    bench.assert_no_buffer_lost();
}

/// Any garbage that arrives is a counted drop, never a panic, never a lost buffer.
#[test]
fn garbage_is_counted() {
    let mut bench = Bench::new(vec![bomb()], 16);
    let good = bench.packet(&datagram(1, 0), 1, Flags::NEW);
    for len in 0..good.len() {
        bench.turn(&[good[..len].to_vec()]);
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0xa5;
        bench.turn(&[bad]);
    }
    assert!(bench.spot.runtime.drops().total() >= good.len() as u64);
    bench.assert_no_buffer_lost();
}

/// A runtime that was just started gets a peer's state before the view that names this
/// peer. Packets wait at their owner until the runtime can answer, and later ones are
/// handed over. No packet is dropped anywhere.
#[test]
fn nothing_is_lost_before_the_first_view() {
    let peers = [
        Peer { node: NodeId::new(16), incarnation: 1 },
        Peer { node: NodeId::new(17), incarnation: 2 },
    ];
    let [mut owner, mut fresh] = peers.map(|me| {
        let protection = Plan::NFVACTOR.build();
        Spot::new(me, vec![bomb()], protection, 8, 64)
    });
    let mut coordinator =
        Fabric::new(Peer { node: NodeId::COORDINATOR, incarnation: 1 }, FabricConfig::default());
    [&mut owner, &mut fresh].into_iter().for_each(|spot| spot.meet(coordinator.me(), 1));
    let mut view = |to: Peer| {
        coordinator.set_peer(to);
        coordinator.send_control(to.node, &view_of(peers));
        frames_of(&mut coordinator, 1)
    };
    let (mut at_owner, mut at_fresh) = (view(peers[0]), Vec::new());
    for (stamp, released) in [(1, (0, 0)), (2, (2, 0)), (3, (2, 1))] {
        if stamp == 2 {
            at_fresh.extend(view(peers[1]));
        }
        at_owner.push(owner.packet(&datagram(5, 0), (stamp, 1, Flags::NEW)));
        // Frames go to and fro until no more are sent.
        for _ in 0..6 {
            let to = |node| {
                move |frame: &Vec<u8>| frame.first_chunk().and_then(NodeId::of_mac) == Some(node)
            };
            let sent = owner.turn(&std::mem::take(&mut at_owner), 1);
            at_fresh.extend(sent.into_iter().filter(to(NodeId::new(17))));
            let sent = fresh.turn(&std::mem::take(&mut at_fresh), 1);
            at_owner.extend(sent.into_iter().filter(to(NodeId::new(16))));
        }
        assert_eq!(
            (owner.runtime.counts().released, fresh.runtime.counts().released),
            released,
            "packet {stamp}"
        );
    }
    assert_eq!((owner.runtime.drops().total(), fresh.runtime.drops().total()), (0, 0));
}

/// A traced packet reports every function that it passes, and where it was dropped; other
/// packets report nothing.
#[test]
fn a_traced_packet_tells_its_way() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut bench = Bench::new(vec![bomb(), bomb()], 4);
    // The runtime asks for the coordinator's and the manager's incarnations, and is told.
    bench.turn(&[]);
    bench.hear();
    let opening = bench.packet(&datagram(1, 0), 1, Flags::NEW);
    let [traced, dropped] =
        [0, 0xff].map(|order| bench.packet(&datagram(1, order), 1, Flags::TRACE));
    bench.turn(&[opening, traced, dropped]);
    // Traces leave with the report.
    bench.stamp += 2_000_000_000;
    bench.turn(&[]);
    let mut told = Vec::new();
    for (record, body) in bench.manager.inbox.records() {
        if let Ok(Control::Trace(steps)) = Control::decode(body) {
            assert_eq!(record.from, ME);
            told.extend(steps.into_iter().map(|step| (step.stamp, step.text)));
        }
    }
    let key = "udp 10.0.0.2:1 > 192.0.2.1:53";
    let expected = [
        (1_000_000_002, format!("bomb passes it as {key}")),
        (1_000_000_002, format!("bomb passes it as {key}")),
        (1_000_000_002, format!("chain test: {key} leaves as {key}")),
        (1_000_000_003, "dropped: function_panicked".to_owned()),
    ];
    assert_eq!(told, expected);
}

holdfast_nf::shared_state! {
    struct Votes {
        before: Counters,
        by_flow: Counters,
    }
}

/// Counts each packet at its flow's port.
struct Voter;

const VOTES: usize = 3000;

impl NetworkFunction for Voter {
    const NAME: &'static str = "voter";
    type Config = ();
    type Flow = Nothing;
    type Shared = Votes;

    fn new((): ()) -> Result<Voter, ConfigError> {
        Ok(Voter)
    }

    fn shared(&self) -> Votes {
        Votes { before: Counters::new(["all"]), by_flow: Counters::new(0..VOTES) }
    }

    fn open(&self, _: &Packet, _: &mut Votes, _: &mut Opening<'_>) -> Open<Nothing> {
        Open::Accept(Nothing::default())
    }

    fn process(
        &self,
        _: &mut Packet,
        _: &mut Nothing,
        shared: &mut Votes,
        cx: &mut Context,
    ) -> Verdict {
        shared.before.add(0, 1);
        shared.by_flow.add(usize::from(cx.key().source_port), 1);
        Verdict::Forward
    }
}

/// A function has thousands of counters. Each is told to the manager, in messages of a
/// bounded length, and again when it has changed.
#[test]
fn every_counter_is_told() {
    let mut bench = Bench::new(vec![bound::<Voter>()], 64);
    bench.turn(&[]);
    bench.hear();
    let told = |bench: &mut Bench| {
        let mut numbers = [vec![None; 1], vec![None; VOTES]];
        for _ in 0..20 {
            bench.stamp += 2_000_000_000;
            bench.turn(&[]);
            for (_, body) in bench.manager.inbox.records() {
                if let Ok(Control::Totals { statistic, first, values }) = Control::decode(body) {
                    assert!(body.len() < 1000, "{} bytes", body.len());
                    let known = &mut numbers[statistic as usize][first as usize..][..values.len()];
                    known.iter_mut().zip(values).for_each(|(known, value)| *known = Some(value));
                }
            }
            bench.manager.inbox.clear();
            bench.hear();
        }
        numbers.map(|numbers| {
            numbers.into_iter().map(|number| number.expect("all are told")).collect::<Vec<i64>>()
        })
    };
    for round in 1..=2 {
        bench.send(&[1, 300, 2999].map(|port| datagram(port, 0)));
        let [all, by_flow] = told(&mut bench);
        assert_eq!(
            (all[0], by_flow[1], by_flow[300], by_flow[2999], by_flow.iter().sum::<i64>()),
            (3 * round, round, round, round, 3 * round)
        );
    }
}
