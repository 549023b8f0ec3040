//! `holdfast bench migration`: what it costs to move flows between two runtimes under load.
//!
//! Switch and both runtimes take turns in one thread, so every part's work is in the time. Each flow carries numbered datagrams at its pace; a ledger by flow
//! says whether one was lost or reordered. The plan of NFVactor's figure on migration (section VI-B), and a check before the time counts: every flow
//! must be where it was sent, and the ledger clean.

use super::datapath::MakeChain;
use super::traffic::{self, FRAME_LEN};
use holdfast_node::address::{COORDINATOR, FIRST_RUNTIME, SWITCH, mac_of};
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::{Control, Member, MemberState, kind};
use holdfast_node::rules::{Rule, RuleSet};
use holdfast_node::runtime::{ChainSpec, Runtime, RuntimeConfig};
use holdfast_node::switch::{Switch, SwitchConfig};
use holdfast_protection::{NfvActor, Peer, Protection, ReleaseAt, Unprotected};
use holdfast_wire::header::{ETHERTYPE_NSH, Mac};
use holdfast_wire::selector::Selector;
use holdfast_wire::{FlowKey, MemoryPool, Packet, PacketPool, nsh};
use serde::Serialize;
use std::time::{Duration, Instant};

/// One row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// The protection.
    pub case: &'static str,
    /// Flows moved.
    pub flows: usize,
    /// Packets per second that they carried meanwhile, all together.
    pub packets_per_second: u64,
    /// From the order until the source had forgotten the last flow, ms.
    pub milliseconds: f64,
    /// The same by flow, µs.
    pub microseconds_per_flow: f64,
    /// Time in the box of the packets that came meanwhile, µs: median.
    pub pause_p50_us: f64,
    /// The same, 99th percentile.
    pub pause_p99_us: f64,
    /// Packets lost.
    pub lost: u64,
    /// Packets that left after a later one of their flow.
    pub reordered: u64,
}

/// Packets a second of one flow.
const PACE: u64 = 10;
/// Packets a second altogether that one thread can make, carry and check beside the work.
const MOST: u64 = 200_000;
/// Where the flow's number and the packet's are in a frame: the payload.
const NUMBER_AT: usize = 42;

const SOURCE: Peer = Peer { node: FIRST_RUNTIME, incarnation: 1 };
const TARGET: Peer = Peer { node: FIRST_RUNTIME + 1, incarnation: 1 };

type MakeProtection = fn() -> Box<dyn Protection>;

/// Moves `flows` flows, for each protection, and says what it took.
///
/// # Errors
/// What went wrong: then there is no result.
pub fn run(flows: usize, make: MakeChain<'_>) -> Result<Vec<Row>, String> {
    let protections: [(&'static str, MakeProtection); 2] =
        [("none", || Box::new(Unprotected)), ("nfvactor", || Box::new(NfvActor::new(ReleaseAt::Replica)))];
    protections.into_iter().map(|(case, protection)| Bench::new(flows, make, protection)?.measure(case)).collect()
}

struct Bench {
    switch: Switch,
    runtimes: [Runtime; 2],
    rx: [Vec<Packet>; 2],
    coordinator: Fabric,
    pool: MemoryPool,
    began: Instant,
    frames: Vec<[u8; FRAME_LEN]>,
    /// Per flow: the next number to send, and the next that is due.
    sent: Vec<u32>,
    due: Vec<u32>,
    next: usize,
    /// When each packet under way went in, by flow; one at a time, because a flow's pace is slow.
    since: Vec<u64>,
    pauses: Vec<u64>,
    reordered: u64,
    released: u64,
    moved: Option<u64>,
}

impl Bench {
    fn new(flows: usize, make: MakeChain<'_>, protection: MakeProtection) -> Result<Bench, String> {
        let fabric = FabricConfig::default();
        let runtime = |me: Peer| -> Result<Runtime, String> {
            let config = RuntimeConfig { me, flows, seed: 7, report_interval: 100_000_000, fabric };
            let spec = ChainSpec { name: "bench".to_owned(), chain: make()?, protection: protection() };
            let mut runtime = Runtime::new(config, vec![spec]);
            // The source leases every number; the target needs none for flows that come.
            if me == SOURCE {
                runtime.visit_pools(|_, pool| {
                    for block in 0..pool.size().div_ceil(holdfast_nf::shared::BLOCK_LEN) {
                        pool.backend().grant_block(block, &[0; 4]);
                    }
                });
            }
            Ok(runtime)
        };
        let switch = Switch::new(SwitchConfig {
            me: Peer { node: SWITCH, incarnation: 1 },
            number: 0,
            flows,
            seed: 7,
            tick_interval: 10_000_000,
            patience: 3_000_000_000,
            fabric,
            succeeds: false,
        });
        let mut coordinator = Fabric::new(Peer { node: COORDINATOR, incarnation: 1 }, fabric);
        for peer in [SOURCE, TARGET, Peer { node: SWITCH, incarnation: 1 }] {
            coordinator.set_peer(peer);
        }
        let rules = RuleSet::new(1, vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }]);
        for message in rules.messages(coordinator.max_record()) {
            coordinator.send_control(SWITCH, &message);
        }
        let mut bench = Bench {
            switch,
            runtimes: [runtime(SOURCE)?, runtime(TARGET)?],
            rx: [Vec::new(), Vec::new()],
            coordinator,
            pool: MemoryPool::new(32_768),
            began: Instant::now(),
            frames: (0..flows).map(|flow| traffic::udp(traffic::client(flow), traffic::VIRTUAL)).collect(),
            sent: vec![0; flows],
            due: vec![0; flows],
            next: 0,
            since: vec![0; flows],
            pauses: Vec::new(),
            reordered: 0,
            released: 0,
            moved: None,
        };
        // New flows begin at the source.
        bench.show(MemberState::Running, MemberState::Starting, 1);
        bench.settle(Duration::from_millis(20));
        let mut opened = 0;
        while opened < flows {
            for _ in 0..64.min(flows - opened) {
                bench.send_next();
                opened += 1;
            }
            bench.turn();
        }
        bench.show(MemberState::Running, MemberState::Running, 2);
        let deadline = Instant::now() + Duration::from_secs(60);
        while bench.released < flows as u64 && Instant::now() < deadline {
            bench.turn();
        }
        bench.settle(Duration::from_millis(300));
        if bench.released != flows as u64 || bench.owned(0) != flows {
            return Err(format!("of {flows} flows {} were opened, {} packets came out", bench.owned(0), bench.released));
        }
        Ok(bench)
    }

    fn owned(&self, runtime: usize) -> usize {
        self.runtimes[runtime].flows(0).map_or(0, |flows| flows.owned())
    }

    fn show(&mut self, source: MemberState, target: MemberState, version: u64) {
        let member = |peer: Peer, state| Member { node: peer.node, incarnation: peer.incarnation, state, cluster: 0, host: 0 };
        let view = Control::View { version, members: vec![member(SOURCE, source), member(TARGET, target)] };
        for node in [SWITCH, SOURCE.node, TARGET.node] {
            self.coordinator.send_control(node, &view);
        }
        let everything = vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }];
        for message in RuleSet::new(version, everything).messages(self.coordinator.max_record()) {
            self.coordinator.send_control(SWITCH, &message);
        }
    }

    fn settle(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.turn();
        }
    }

    /// The next flow's next datagram.
    fn send_next(&mut self) {
        let flow = self.next;
        self.next = (self.next + 1) % self.frames.len();
        let Some(mut packet) = self.pool.take() else { return };
        let mut frame = self.frames[flow];
        frame[NUMBER_AT..NUMBER_AT + 4].copy_from_slice(&(flow as u32).to_be_bytes());
        frame[NUMBER_AT + 4..NUMBER_AT + 8].copy_from_slice(&self.sent[flow].to_be_bytes());
        // Nobody checks the payload's sum on the way: the functions change it by what they change.
        let fits = packet.copy_from(&frame);
        match fits.then(|| packet.parse().ok()).flatten().and_then(|()| FlowKey::of(&packet)) {
            Some(key) => {
                self.sent[flow] += 1;
                self.since[flow] = self.began.elapsed().as_nanos() as u64;
                self.switch.handle_packet(key, packet);
            }
            None => self.pool.put(packet),
        }
    }

    fn turn(&mut self) {
        let now = self.began.elapsed().as_nanos() as u64 + 1;
        let mut out: Vec<(Peer, Packet)> = Vec::with_capacity(256);
        self.switch.handle_records(now, &mut out, &mut self.pool);
        self.switch.handle_timeout(now, &mut out, &mut self.pool);
        self.switch.forward(now, &mut out, &mut self.pool);
        for (peer, packet) in out {
            self.rx[usize::from(peer == TARGET)].push(packet);
        }
        self.carry(now);
        for at in 0..2 {
            let mut tx = Vec::with_capacity(256);
            let mut rx = core::mem::take(&mut self.rx[at]);
            self.runtimes[at].turn(&mut rx, &mut tx, &mut self.pool, now);
            rx.append(&mut self.rx[at]);
            self.rx[at] = rx;
            for packet in tx {
                self.deliver(packet, now);
            }
        }
        self.hear();
    }

    /// Frames of switch and coordinator.
    fn carry(&mut self, now: u64) {
        let mut frames: Vec<Vec<u8>> = Vec::new();
        for fabric in [self.switch.fabric(), &mut self.coordinator] {
            fabric.poll_transmit(now, |frame| {
                frames.push(frame.to_vec());
                true
            });
        }
        for frame in frames {
            let Some(mut packet) = self.pool.take() else { return };
            if packet.copy_from(&frame) {
                self.deliver(packet, now);
            } else {
                self.pool.put(packet);
            }
        }
    }

    fn deliver(&mut self, mut packet: Packet, now: u64) {
        let bytes = packet.bytes();
        let to: Mac = [bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]];
        let is_data = u16::from_be_bytes([bytes[12], bytes[13]]) == ETHERTYPE_NSH;
        if let Some(at) = [SOURCE, TARGET].iter().position(|peer| to == mac_of(peer.node)) {
            self.rx[at].push(packet);
            return;
        }
        if is_data {
            if nsh::decapsulate(&mut packet).is_some() && packet.parse().is_ok() {
                self.switch.handle_released(&packet);
                self.check(packet.bytes());
            }
        } else {
            let fabric = if to == mac_of(SWITCH) { self.switch.fabric() } else { &mut self.coordinator };
            let _ = fabric.handle_frame(packet.bytes(), now);
        }
        self.pool.put(packet);
    }

    fn check(&mut self, frame: &[u8]) {
        let now = self.began.elapsed().as_nanos() as u64;
        let number = |at: usize| u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
        let (flow, datagram) = (number(NUMBER_AT) as usize, number(NUMBER_AT + 4));
        self.released += 1;
        self.reordered += u64::from(datagram != self.due[flow]);
        self.due[flow] = datagram + 1;
        self.pauses.push(now.saturating_sub(self.since[flow]));
    }

    /// What the coordinator hears.
    fn hear(&mut self) {
        for (record, body) in self.coordinator.inbox.records() {
            if record.kind == kind::CONTROL
                && let Ok(Control::Migrated { moved, refused: 0, last: true, .. }) = Control::decode(body)
            {
                self.moved = Some(moved);
            }
        }
        self.coordinator.inbox.clear();
    }

    fn measure(mut self, case: &'static str) -> Result<Row, String> {
        let flows = self.frames.len();
        let packets_per_second = (flows as u64 * PACE).min(MOST);
        let before = (self.released, self.sent.iter().map(|&sent| u64::from(sent)).sum::<u64>());
        self.pauses.clear();
        let targets = vec![(TARGET.node, TARGET.incarnation)];
        let order = Control::Migrate { request: 1, targets, limit: u64::MAX, selector: "any".to_owned() };
        self.coordinator.send_control(SOURCE.node, &order);
        let started = Instant::now();
        let mut made = 0;
        while self.moved.is_none() {
            let elapsed = started.elapsed();
            if elapsed > Duration::from_secs(60) {
                return Err(format!("after a minute {} of {flows} flows were at the target", self.owned(1)));
            }
            let wanted = elapsed.as_micros() as u64 * packets_per_second / 1_000_000;
            for _ in 0..wanted.saturating_sub(made).min(64) {
                self.send_next();
                made += 1;
            }
            self.turn();
        }
        let took = started.elapsed();
        self.settle(Duration::from_millis(50));
        if self.moved != Some(flows as u64) || self.owned(0) != 0 || self.owned(1) != flows {
            return Err(format!("{} flows are at the source and {} at the target", self.owned(0), self.owned(1)));
        }
        let sent = self.sent.iter().map(|&sent| u64::from(sent)).sum::<u64>() - before.1;
        let lost = sent - (self.released - before.0);
        if lost + self.reordered > 0 {
            return Err(format!("{lost} packets were lost and {} reordered", self.reordered));
        }
        self.pauses.sort_unstable();
        let pause = |percent: usize| {
            let at = self.pauses.len() * percent / 100;
            self.pauses.get(at.min(self.pauses.len().saturating_sub(1))).map_or(0.0, |&pause| pause as f64 / 1000.0)
        };
        Ok(Row {
            version: 1,
            case,
            flows,
            packets_per_second,
            milliseconds: took.as_secs_f64() * 1e3,
            microseconds_per_flow: took.as_secs_f64() * 1e6 / flows as f64,
            pause_p50_us: pause(50),
            pause_p99_us: pause(99),
            lost,
            reordered: self.reordered,
        })
    }
}
