//! `holdfast bench datapath`: what the machinery costs per packet.
//!
//! Three ways to run the same functions over the same frames on one core: `bare`, a loop with a plain hash table; `none`, the runtime
//! without protection; `nfvactor`, the runtime with its replica in a second thread. Every case first plays each flow once in each direction and
//! compares what comes out; only then is time taken. The cases take turns, so that a noisy machine disturbs all alike.

use super::traffic::{self, FRAME_LEN, Player};
use holdfast_nf::{Chain, Context, Direction, Outcome, Position};
use holdfast_node::address::{COORDINATOR, FIRST_RUNTIME, SWITCH, mac_of};
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::{Control, Member, MemberState};
use holdfast_node::runtime::{ChainSpec, Runtime, RuntimeConfig};
use holdfast_protection::flows::{Found, KeyTable};
use holdfast_protection::{NfvActor, Peer, Protection, ReleaseAt, Unprotected};
use holdfast_wire::nsh::{self, ENCAPSULATION_LEN, Flags, Outer, index};
use holdfast_wire::{FlowKey, MemoryPool, Packet, PacketPool};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

/// Packets in one burst: as many as a runtime's process takes.
const BURST: usize = 64;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Flows, each played in both directions.
    pub flows: usize,
    /// How long each case is timed per round.
    pub time: Duration,
    /// Rounds; the median counts.
    pub rounds: usize,
}

/// One row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// `bare`, `none` or `nfvactor`.
    pub case: &'static str,
    /// Flows.
    pub flows: usize,
    /// Median over the rounds.
    pub ns_per_packet: f64,
    /// Median of the ratios taken round by round.
    pub ratio_to_bare: f64,
    /// Allocations while time was taken, by packet.
    pub allocations_per_packet: f64,
    /// Memory that one flow takes, its share of the table included.
    pub bytes_per_flow: usize,
    /// Packets per second, millions.
    pub mpps: f64,
}

/// Makes the chain under test; every case gets a fresh one.
pub type MakeChain<'a> = &'a dyn Fn() -> Result<Chain, String>;

/// Runs the plan. `allocations` reads the process's count of allocations.
///
/// # Errors
/// What came out wrong: then no time was taken.
pub fn run(plan: &Plan, make: MakeChain<'_>, allocations: &dyn Fn() -> u64) -> Result<Vec<Row>, String> {
    let forward: Vec<[u8; FRAME_LEN]> =
        (0..plan.flows).map(|flow| traffic::udp(traffic::client(flow), traffic::VIRTUAL)).collect();
    let mut bare = Bare::new(plan.flows, make()?);
    let out_bare = bare.open(&forward)?;
    let reverse: Vec<[u8; FRAME_LEN]> = out_bare.iter().map(|frame| traffic::reply_to(frame)).collect();
    bare.check(&forward, &reverse, &out_bare)?;

    let mut none = Alone::new(plan.flows, make()?);
    let out_none = none.open(&forward)?;
    if out_none != out_bare {
        return Err("the runtime translates other than the bare loop".to_owned());
    }
    none.check(&forward, &reverse, &out_bare)?;

    let mut pair = Pair::new(plan.flows, make()?, make()?);
    let out_pair = pair.open(&forward)?;
    if out_pair != out_bare {
        return Err("the replicated runtime translates other than the bare loop".to_owned());
    }

    let both: Vec<[u8; FRAME_LEN]> = forward.iter().zip(&reverse).flat_map(|(forward, reverse)| [*forward, *reverse]).collect();
    bare.player = Player::new(both.clone());
    none.play(&both);
    pair.play(&both);

    let mut times: [Vec<f64>; 3] = [Vec::new(), Vec::new(), Vec::new()];
    let mut allocated = [0u64; 3];
    let mut packets = [0u64; 3];
    for round in 0..plan.rounds + 1 {
        for (case, times) in times.iter_mut().enumerate() {
            let before = allocations();
            let started = Instant::now();
            let mut count = 0u64;
            while started.elapsed() < plan.time {
                for _ in 0..64 {
                    count += match case {
                        0 => bare.burst(),
                        1 => none.burst(),
                        _ => pair.burst(),
                    };
                }
            }
            let took = started.elapsed();
            // The first round warms caches and queues up and is not counted.
            if round > 0 {
                times.push(took.as_nanos() as f64 / count.max(1) as f64);
                allocated[case] += allocations() - before;
                packets[case] += count;
            }
        }
    }
    pair.stop();
    let sizes = [bare.bytes_per_flow(), none.bytes_per_flow(), none.bytes_per_flow()];
    let rows = ["bare", "none", "nfvactor"].into_iter().enumerate().map(|(at, case)| {
        let ratios: Vec<f64> = times[at].iter().zip(&times[0]).map(|(time, bare)| time / bare).collect();
        let ns_per_packet = median(&times[at]);
        Row {
            version: 1,
            case,
            flows: plan.flows,
            ns_per_packet,
            ratio_to_bare: median(&ratios),
            allocations_per_packet: allocated[at] as f64 / packets[at].max(1) as f64,
            bytes_per_flow: sizes[at],
            mpps: 1000.0 / ns_per_packet,
        }
    });
    Ok(rows.collect())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Grants every block of every pool: one runtime may lease them all.
fn grant_all(pool: &mut holdfast_nf::Pool) {
    for block in 0..pool.size().div_ceil(holdfast_nf::shared::BLOCK_LEN) {
        pool.backend().grant_block(block, &[0; 4]);
    }
}

/// A cache line.
#[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Where a flow's state begins, behind its two keys.
const STATE_AT: usize = 2 * size_of::<FlowKey>();

/// A plain hash table from both keys to the flow's state, and a loop: each key is hashed once, and a burst's look-ups are done in stages, so that their cache
/// misses overlap.
struct Bare {
    chain: Chain,
    table: KeyTable,
    flows: Vec<Line>,
    stride: usize,
    used: usize,
    cx: Context,
    pool: MemoryPool,
    player: Player,
    packets: Vec<Packet>,
    keys: Vec<(FlowKey, u64)>,
    found: Vec<Option<Found>>,
    now: u64,
}

impl Bare {
    fn new(flows: usize, mut chain: Chain) -> Bare {
        for function in chain.functions_mut() {
            function.shared().visit(&mut |_, field| {
                if let holdfast_nf::SharedField::Pool(pool) = field {
                    grant_all(pool);
                }
            });
        }
        let stride = (STATE_AT + chain.layout().size).div_ceil(size_of::<Line>());
        Bare {
            table: KeyTable::new(flows * 2),
            flows: vec![Line([0; 64]); flows * stride],
            stride,
            used: 0,
            cx: Context::new(7),
            pool: MemoryPool::new(1024),
            player: Player::new(Vec::new()),
            packets: Vec::with_capacity(BURST),
            keys: Vec::with_capacity(BURST),
            found: Vec::with_capacity(BURST),
            now: 1,
            chain,
        }
    }

    fn bytes_per_flow(&self) -> usize {
        self.stride * size_of::<Line>() + self.table.memory() / self.used.max(1)
    }

    fn flow(&self, slot: u32) -> &[u8] {
        let start = slot as usize * self.stride;
        zerocopy::IntoBytes::as_bytes(&self.flows[start..start + self.stride])
    }

    fn flow_mut(&mut self, slot: u32) -> &mut [u8] {
        let start = slot as usize * self.stride;
        zerocopy::IntoBytes::as_mut_bytes(&mut self.flows[start..start + self.stride])
    }

    #[inline]
    fn is_key(&self, found: Found, key: &FlowKey) -> bool {
        let at = if found.is_reply { size_of::<FlowKey>() } else { 0 };
        let stored =
            self.flow(found.slot).get(at..).and_then(|bytes| <FlowKey as zerocopy::FromBytes>::ref_from_prefix(bytes).ok());
        stored.is_some_and(|(stored, _)| stored == key)
    }

    fn look_up(&mut self, packets: &mut [Packet]) {
        self.keys.clear();
        for packet in packets {
            let key = if packet.parse().is_ok() { FlowKey::of(packet) } else { None };
            let key = key.unwrap_or_default();
            self.keys.push((key, key.hash(7)));
        }
        let mut sum = 0u64;
        for (_, hash) in &self.keys {
            sum = sum.wrapping_add(self.table.touch(*hash));
        }
        self.found.clear();
        self.found.extend(self.keys.iter().map(|(_, hash)| self.table.candidate(*hash)));
        for found in self.found.iter().flatten() {
            let start = found.slot as usize * self.stride;
            for line in &self.flows[start..start + self.stride] {
                sum = sum.wrapping_add(line.0[0].into());
            }
        }
        core::hint::black_box(sum);
    }

    fn burst(&mut self) -> u64 {
        let mut packets = core::mem::take(&mut self.packets);
        self.player.receive(BURST, &mut self.pool, &mut packets);
        let count = packets.len() as u64;
        self.process(&mut packets, |_, _| {});
        self.packets = packets;
        count
    }

    fn process(&mut self, packets: &mut Vec<Packet>, mut out: impl FnMut(&Packet, bool)) {
        self.look_up(packets);
        let len = self.chain.layout().size;
        for (at, mut packet) in packets.drain(..).enumerate() {
            self.now += 1;
            let (key, hash) = self.keys[at];
            let likely = self.found[at].filter(|found| self.is_key(*found, &key));
            let passed = match likely.or_else(|| self.table.find(hash, |found| self.is_key(found, &key))) {
                Some(found) => {
                    let direction = if found.is_reply { Direction::Reverse } else { Direction::Forward };
                    self.cx.begin(self.now, key, direction);
                    let start = found.slot as usize * self.stride;
                    let flow = zerocopy::IntoBytes::as_mut_bytes(&mut self.flows[start..start + self.stride]);
                    let state = &mut flow[STATE_AT..STATE_AT + len];
                    self.chain.run(&mut packet, state, Position::START, &mut self.cx) == Outcome::Forward
                }
                None => self.open_flow(&mut packet, key, hash),
            };
            out(&packet, passed);
            self.pool.put(packet);
        }
    }

    fn open_flow(&mut self, packet: &mut Packet, key: FlowKey, hash: u64) -> bool {
        let slot = self.used as u32;
        if (self.used + 1) * self.stride > self.flows.len() {
            return false;
        }
        let len = self.chain.layout().size;
        self.cx.begin(self.now, key, Direction::Forward);
        let start = self.used * self.stride;
        let flow = zerocopy::IntoBytes::as_mut_bytes(&mut self.flows[start..start + self.stride]);
        let state = &mut flow[STATE_AT..STATE_AT + len];
        if self.chain.run(packet, state, Position::OPENING, &mut self.cx) != Outcome::Forward {
            return false;
        }
        let Some(reply) = FlowKey::of(packet).map(|key| key.reverse()) else { return false };
        let keys = &mut self.flow_mut(slot)[..STATE_AT];
        keys[..STATE_AT / 2].copy_from_slice(zerocopy::IntoBytes::as_bytes(&key));
        keys[STATE_AT / 2..].copy_from_slice(zerocopy::IntoBytes::as_bytes(&reply));
        self.used += 1;
        self.table.insert(hash, Found { slot, is_reply: false })
            && self.table.insert(reply.hash(7), Found { slot, is_reply: true })
    }

    /// Plays frames once, in order, and returns what came out.
    fn play_once(&mut self, frames: &[[u8; FRAME_LEN]]) -> Result<Vec<[u8; FRAME_LEN]>, String> {
        let mut out = Vec::with_capacity(frames.len());
        for chunk in frames.chunks(BURST) {
            let mut packets = Vec::with_capacity(BURST);
            for frame in chunk {
                let mut packet = self.pool.take().ok_or("no buffer left")?;
                if !packet.copy_from(frame) {
                    return Err("the frame does not fit".to_owned());
                }
                packets.push(packet);
            }
            self.process(&mut packets, |packet, passed| {
                if passed && let Ok(frame) = packet.bytes().try_into() {
                    out.push(frame);
                }
            });
        }
        Ok(out)
    }

    fn open(&mut self, forward: &[[u8; FRAME_LEN]]) -> Result<Vec<[u8; FRAME_LEN]>, String> {
        let out = self.play_once(forward)?;
        check_forward(forward, &out)?;
        Ok(out)
    }

    fn check(
        &mut self,
        forward: &[[u8; FRAME_LEN]],
        reverse: &[[u8; FRAME_LEN]],
        expected: &[[u8; FRAME_LEN]],
    ) -> Result<(), String> {
        let again = self.play_once(forward)?;
        let back = self.play_once(reverse)?;
        check_both(forward, &again, &back, expected)
    }
}

fn check_forward(forward: &[[u8; FRAME_LEN]], out: &[[u8; FRAME_LEN]]) -> Result<(), String> {
    if out.len() != forward.len() {
        return Err(format!("{} of {} first packets came out", out.len(), forward.len()));
    }
    if let Some(at) = out.iter().position(|frame| !traffic::is_sound(frame)) {
        return Err(format!("frame {at} came out with a wrong checksum"));
    }
    let mut sources: Vec<&[u8]> = out.iter().map(|frame| &frame[26..36]).collect();
    sources.sort_unstable();
    sources.dedup();
    if sources.len() != out.len() {
        return Err("two flows came out alike".to_owned());
    }
    Ok(())
}

fn check_both(
    forward: &[[u8; FRAME_LEN]],
    again: &[[u8; FRAME_LEN]],
    back: &[[u8; FRAME_LEN]],
    expected: &[[u8; FRAME_LEN]],
) -> Result<(), String> {
    if again != expected {
        return Err("a flow's second packet came out other than its first".to_owned());
    }
    let wanted: Vec<[u8; FRAME_LEN]> = forward.iter().map(|frame| traffic::reply_to(frame)).collect();
    if back.len() != wanted.len() {
        return Err(format!("{} of {} replies came out", back.len(), wanted.len()));
    }
    match back.iter().zip(&wanted).position(|(back, wanted)| back[26..] != wanted[26..] || !traffic::is_sound(back)) {
        Some(at) => Err(format!("the reply of flow {at} came out wrong")),
        None => Ok(()),
    }
}

const ME: Peer = Peer { node: FIRST_RUNTIME, incarnation: 1 };
const OTHER: Peer = Peer { node: FIRST_RUNTIME + 1, incarnation: 1 };

fn runtime(me: Peer, flows: usize, chain: Chain, protection: Box<dyn Protection>) -> Runtime {
    let config = RuntimeConfig { me, flows, seed: 7, report_interval: 1_000_000_000, fabric: FabricConfig::default() };
    let mut runtime = Runtime::new(config, vec![ChainSpec { name: "bench".to_owned(), chain, protection }]);
    runtime.visit_pools(|_, pool| grant_all(pool));
    runtime
}

/// Where the stamp is in the encapsulation.
const STAMP_AT: usize = 22;

/// Plays frames to a runtime as the switch sends them. All flows have one epoch, so all have one encapsulation but for the stamp: it is made beforehand,
/// because that is the switch's work.
struct ToRuntime {
    player: Player,
    encapsulation: [u8; ENCAPSULATION_LEN],
    stamp: u64,
    epoch: u32,
}

impl ToRuntime {
    fn new() -> ToRuntime {
        ToRuntime { player: Player::new(Vec::new()), encapsulation: [0; ENCAPSULATION_LEN], stamp: 1, epoch: 1 }
    }

    fn play(&mut self, frames: &[[u8; FRAME_LEN]], pool: &mut dyn PacketPool) {
        self.player = Player::new(frames.to_vec());
        let Some(mut packet) = pool.take() else { return };
        encapsulate(&mut packet, 0, self.epoch, 0);
        self.encapsulation.copy_from_slice(packet.bytes());
        pool.put(packet);
    }

    fn receive(&mut self, count: usize, pool: &mut dyn PacketPool, into: &mut Vec<Packet>) {
        let before = into.len();
        self.player.receive(count, pool, into);
        for packet in &mut into[before..] {
            self.stamp += 1;
            if let Some(room) = packet.push_front(ENCAPSULATION_LEN) {
                room.copy_from_slice(&self.encapsulation);
                room[STAMP_AT..STAMP_AT + 8].copy_from_slice(&self.stamp.to_be_bytes());
            }
        }
    }
}

#[inline]
fn encapsulate(packet: &mut Packet, stamp: u64, epoch: u32, flags: u8) {
    packet.meta.stamp = stamp;
    packet.meta.commit = epoch;
    packet.meta.flags = flags;
    let outer = Outer { destination: mac_of(ME.node), source: mac_of(SWITCH), index: index::TO_RUNTIME };
    let fits = nsh::encapsulate(packet, outer);
    debug_assert!(fits);
}

/// What a runtime released, as the switch gets it. `None` for a message.
fn released(packet: &Packet) -> Option<[u8; FRAME_LEN]> {
    let bytes = packet.bytes();
    (bytes.len() == ENCAPSULATION_LEN + FRAME_LEN && bytes[12..14] == [0x89, 0x4f] && bytes[21] == index::RELEASED)
        .then(|| bytes[ENCAPSULATION_LEN..].try_into().ok())?
}

/// A runtime on its own.
struct Alone {
    runtime: Runtime,
    pool: MemoryPool,
    input: ToRuntime,
    rx: Vec<Packet>,
    tx: Vec<Packet>,
    clock: u64,
}

impl Alone {
    fn new(flows: usize, chain: Chain) -> Alone {
        Alone {
            runtime: runtime(ME, flows, chain, Box::new(Unprotected)),
            pool: MemoryPool::new(1024),
            input: ToRuntime::new(),
            rx: Vec::with_capacity(BURST),
            tx: Vec::with_capacity(BURST),
            clock: 1,
        }
    }

    fn bytes_per_flow(&self) -> usize {
        self.runtime.flows(0).map_or(0, |flows| flows.memory_per_flow())
    }

    fn play(&mut self, frames: &[[u8; FRAME_LEN]]) {
        self.input.play(frames, &mut self.pool);
    }

    fn burst(&mut self) -> u64 {
        self.input.receive(BURST, &mut self.pool, &mut self.rx);
        let count = self.rx.len() as u64;
        self.clock += 1000;
        self.runtime.turn(&mut self.rx, &mut self.tx, &mut self.pool, self.clock);
        for packet in self.tx.drain(..) {
            self.pool.put(packet);
        }
        count
    }

    fn play_once(&mut self, frames: &[[u8; FRAME_LEN]], flags: u8) -> Result<Vec<[u8; FRAME_LEN]>, String> {
        let mut out = Vec::with_capacity(frames.len());
        for chunk in frames.chunks(BURST) {
            for frame in chunk {
                let mut packet = self.pool.take().ok_or("no buffer left")?;
                if !packet.copy_from(frame) {
                    return Err("the frame does not fit".to_owned());
                }
                self.input.stamp += 1;
                encapsulate(&mut packet, self.input.stamp, self.input.epoch, flags);
                self.rx.push(packet);
            }
            self.runtime.turn(&mut self.rx, &mut self.tx, &mut self.pool, self.clock);
            for packet in self.tx.drain(..) {
                out.extend(released(&packet));
                self.pool.put(packet);
            }
        }
        Ok(out)
    }

    fn open(&mut self, forward: &[[u8; FRAME_LEN]]) -> Result<Vec<[u8; FRAME_LEN]>, String> {
        let out = self.play_once(forward, Flags::NEW)?;
        check_forward(forward, &out)?;
        Ok(out)
    }

    fn check(
        &mut self,
        forward: &[[u8; FRAME_LEN]],
        reverse: &[[u8; FRAME_LEN]],
        expected: &[[u8; FRAME_LEN]],
    ) -> Result<(), String> {
        let again = self.play_once(forward, 0)?;
        let back = self.play_once(reverse, 0)?;
        check_both(forward, &again, &back, expected)
    }
}

/// A runtime and, in another thread, the one that holds its replicas.
struct Pair {
    primary: Runtime,
    pool: MemoryPool,
    input: ToRuntime,
    rx: Vec<Packet>,
    tx: Vec<Packet>,
    clock: u64,
    to_replica: SyncSender<Vec<Packet>>,
    from_replica: Receiver<Vec<Packet>>,
    spare: Vec<Vec<Packet>>,
    opened: Vec<[u8; FRAME_LEN]>,
    keep: bool,
    in_flight: usize,
    stop: std::sync::Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Packets that may be on their way to the replica and back.
const IN_FLIGHT: usize = 4096;

impl Pair {
    fn new(flows: usize, chain: Chain, replica_chain: Chain) -> Pair {
        let (to_replica, inbox) = sync_channel::<Vec<Packet>>(256);
        let (outbox, from_replica) = sync_channel::<Vec<Packet>>(256);
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let mut pool = MemoryPool::new(IN_FLIGHT * 4);
        let mut primary = runtime(ME, flows, chain, Box::new(NfvActor::new(ReleaseAt::Replica)));
        introduce(&mut primary, &mut pool);
        let thread = std::thread::spawn(move || {
            let mut pool = MemoryPool::new(IN_FLIGHT);
            let mut replica = runtime(OTHER, flows, replica_chain, Box::new(NfvActor::new(ReleaseAt::Replica)));
            introduce(&mut replica, &mut pool);
            serve_replica(&mut replica, &mut pool, &inbox, &outbox, &stopped);
        });
        Pair {
            primary,
            pool,
            input: ToRuntime::new(),
            rx: Vec::with_capacity(BURST),
            tx: Vec::with_capacity(BURST * 4),
            clock: 1,
            to_replica,
            from_replica,
            spare: Vec::new(),
            opened: Vec::new(),
            keep: false,
            in_flight: 0,
            stop,
            thread: Some(thread),
        }
    }

    fn play(&mut self, frames: &[[u8; FRAME_LEN]]) {
        self.input.play(frames, &mut self.pool);
    }

    /// One burst in; what the replica released since comes back. Waits while too much is under way.
    fn burst(&mut self) -> u64 {
        self.input.receive(BURST, &mut self.pool, &mut self.rx);
        let count = self.rx.len() as u64;
        self.turn();
        count
    }

    fn turn(&mut self) {
        self.clock += 1000;
        self.primary.turn(&mut self.rx, &mut self.tx, &mut self.pool, self.clock);
        self.exchange();
    }

    fn exchange(&mut self) {
        let mut bundle = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(BURST * 4));
        for packet in self.tx.drain(..) {
            if packet.bytes()[..6] == mac_of(OTHER.node) {
                bundle.push(packet);
            } else {
                self.pool.put(packet);
            }
        }
        self.in_flight += bundle.len();
        if bundle.is_empty() {
            self.spare.push(bundle);
        } else if let Err(lost) = self.to_replica.send(bundle) {
            for packet in lost.0 {
                self.pool.put(packet);
            }
        }
        loop {
            let next = if self.in_flight >= IN_FLIGHT {
                self.from_replica.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.from_replica.try_recv()
            };
            let Ok(mut back) = next else { break };
            for packet in back.drain(..) {
                let is_for_us = packet.bytes()[..6] == mac_of(ME.node);
                self.in_flight = self.in_flight.saturating_sub(1);
                if is_for_us {
                    self.rx.push(packet);
                } else {
                    if self.keep {
                        self.opened.extend(released(&packet));
                    }
                    self.pool.put(packet);
                }
            }
            self.spare.push(back);
        }
    }

    fn open(&mut self, forward: &[[u8; FRAME_LEN]]) -> Result<Vec<[u8; FRAME_LEN]>, String> {
        self.keep = true;
        for chunk in forward.chunks(BURST) {
            for frame in chunk {
                let mut packet = self.pool.take().ok_or("no buffer left")?;
                if !packet.copy_from(frame) {
                    return Err("the frame does not fit".to_owned());
                }
                self.input.stamp += 1;
                encapsulate(&mut packet, self.input.stamp, self.input.epoch, Flags::NEW);
                self.rx.push(packet);
            }
            self.turn();
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.opened.len() < forward.len() && Instant::now() < deadline {
            self.turn();
        }
        self.keep = false;
        check_forward(forward, &self.opened)?;
        Ok(core::mem::take(&mut self.opened))
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The replica may wait for room in the channel back.
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            let _ = self.from_replica.try_recv();
            std::thread::yield_now();
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Tells a runtime that both are there.
fn introduce(runtime: &mut Runtime, pool: &mut MemoryPool) {
    let me = runtime.me();
    let mut coordinator = Fabric::new(Peer { node: COORDINATOR, incarnation: 1 }, FabricConfig::default());
    coordinator.set_peer(me);
    let members = [ME, OTHER].map(|peer| Member {
        node: peer.node,
        incarnation: peer.incarnation,
        state: MemberState::Running,
        cluster: 0,
        host: 0,
    });
    coordinator.send_control(me.node, &Control::View { version: 1, members: members.to_vec() });
    let mut rx = Vec::new();
    coordinator.poll_transmit(1, |frame| {
        let Some(mut packet) = pool.take() else { return false };
        let fits = packet.copy_from(frame);
        rx.push(packet);
        fits
    });
    let mut tx = Vec::new();
    runtime.turn(&mut rx, &mut tx, pool, 1);
    for packet in tx {
        pool.put(packet);
    }
}

/// The replica's thread: saves states, releases packets, acknowledges. Buffers go back where they came from.
fn serve_replica(
    replica: &mut Runtime,
    pool: &mut MemoryPool,
    inbox: &Receiver<Vec<Packet>>,
    outbox: &SyncSender<Vec<Packet>>,
    stop: &AtomicBool,
) {
    let mut borrowed = Borrowed { pool, theirs: Vec::with_capacity(IN_FLIGHT) };
    let (mut rx, mut tx) = (Vec::with_capacity(BURST * 4), Vec::with_capacity(BURST * 4));
    let mut clock = 1u64;
    let mut idle = 0u32;
    while !stop.load(Ordering::Relaxed) {
        // Spins while its owner works, and sleeps while another case is timed.
        let next = if idle < 1000 {
            inbox.try_recv()
        } else {
            inbox.recv_timeout(Duration::from_millis(10)).map_err(|error| match error {
                RecvTimeoutError::Timeout => TryRecvError::Empty,
                RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
            })
        };
        let mut bundle = match next {
            Ok(bundle) => bundle,
            Err(TryRecvError::Empty) => {
                idle = idle.saturating_add(1);
                std::thread::yield_now();
                continue;
            }
            Err(TryRecvError::Disconnected) => return,
        };
        idle = 0;
        rx.append(&mut bundle);
        clock += 1000;
        replica.turn(&mut rx, &mut tx, &mut borrowed, clock);
        bundle.append(&mut tx);
        bundle.append(&mut borrowed.theirs);
        if outbox.send(bundle).is_err() {
            return;
        }
    }
}

/// The replica's pool: packets that the owner sent go back to the owner, whatever became of them.
struct Borrowed<'a> {
    pool: &'a mut MemoryPool,
    theirs: Vec<Packet>,
}

impl PacketPool for Borrowed<'_> {
    fn take(&mut self) -> Option<Packet> {
        self.theirs
            .pop()
            .map(|mut packet| {
                packet.clear();
                packet
            })
            .or_else(|| self.pool.take())
    }

    fn put(&mut self, packet: Packet) {
        self.theirs.push(packet);
    }

    fn free(&self) -> usize {
        self.pool.free() + self.theirs.len()
    }
}
