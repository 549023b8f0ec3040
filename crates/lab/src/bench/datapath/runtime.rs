//! A runtime, and the frames that a switch would send it.

use super::super::bench_box::{grant_all, room_for};
use super::super::churn::Churn;
use super::super::traffic::{self, Player};
use super::{BURST, PlaysOnce};
use holdfast_nf::Chain;
use holdfast_node::channel::FabricConfig;
use holdfast_node::runtime::{ChainSpec, Runtime, RuntimeConfig};
use holdfast_protection::{Peer, Plan as Preset, Protection};
use holdfast_wire::header::{ETHERTYPE_NSH, ETHERTYPE_VLAN};
use holdfast_wire::nsh::{self, ENCAPSULATION_LEN, Flags, Outer, index};
use holdfast_wire::{MemoryPool, NodeId, Packet, PacketPool};
use std::ops::Range;
use std::time::Instant;

pub(super) const ME: Peer = Peer { node: NodeId::FIRST_RUNTIME, incarnation: 1 };
pub(super) const OTHER: Peer = Peer { node: NodeId::runtime(1), incarnation: 1 };

/// Seed of the hash of flow keys.
pub(super) const SEED: u64 = 7;

pub(in crate::bench) fn runtime(
    me: Peer,
    flows: usize,
    chain: Chain,
    protection: Box<dyn Protection>,
) -> Runtime {
    let flows = room_for(flows);
    let config = RuntimeConfig {
        me,
        flows,
        seed: SEED,
        report_interval: 1_000_000_000,
        fabric: FabricConfig::default(),
    };
    let mut runtime = Runtime::new(
        config,
        vec![ChainSpec { name: "bench".to_owned(), switch: NodeId::SWITCH, chain, protection }],
    );
    runtime.visit_pools(|_, pool| grant_all(pool));
    runtime
}

/// The error message for packets that did not come out.
pub(in crate::bench) fn missing(count: u64, runtime: &Runtime) -> String {
    let drops: Vec<String> =
        runtime.drops().iter().map(|(reason, count)| format!("{reason}: {count}")).collect();
    format!("{count} packets did not come out; dropped were {drops:?}")
}

/// Offset of the stamp in the encapsulation.
const STAMP_AT: usize = 22;
/// Offset of the epoch there, bytes.
const EPOCH_AT: usize = 34;
/// Offset of the flow's epoch in a played frame: in the destination address.
const NOTED_AT: usize = 2;
/// Offset of a packet's due time: in the payload.
const DUE_AT: usize = 42;

/// Plays frames to a runtime as the switch sends them. The encapsulation is made
/// beforehand, because that is the switch's work: it differs only in stamp and epoch.
pub(in crate::bench) struct ToRuntime<const L: usize> {
    to: Peer,
    player: Player<L>,
    encapsulation: [u8; ENCAPSULATION_LEN],
    stamp: u64,
    /// Time at which the packets were due, ns; 0 if the packets carry no due time.
    pub(super) due: u64,
    by_clock: bool,
    /// Every `fresh_every`-th packet begins a flow, or none if this is 0; `fresh` are the
    /// flows that have not begun.
    fresh_every: usize,
    fresh: Range<usize>,
    count: usize,
    churn: Option<Churn<L>>,
}

impl<const L: usize> ToRuntime<L> {
    pub(super) fn new() -> ToRuntime<L> {
        ToRuntime::for_runtime(ME)
    }

    pub(in crate::bench) fn for_runtime(to: Peer) -> ToRuntime<L> {
        ToRuntime {
            to,
            player: Player::new(Vec::new()),
            encapsulation: [0; ENCAPSULATION_LEN],
            stamp: 1,
            due: 0,
            by_clock: false,
            fresh_every: 0,
            fresh: 0..0,
            count: 0,
            churn: None,
        }
    }

    /// Makes stamps follow the clock. Without it stamps only count, so no flow ends,
    /// however slow the machine is.
    pub(in crate::bench) fn go_by_clock(&mut self) {
        self.by_clock = true;
    }

    /// From now on one of `every` packets, 0 for none, begins one of these flows, until
    /// all have begun.
    pub(in crate::bench) fn begin_flows(&mut self, every: usize, flows: Range<usize>) {
        (self.fresh_every, self.fresh) = (every, flows);
    }

    /// From now on only these flows' packets are played.
    pub(in crate::bench) fn churn(&mut self, churn: Churn<L>) {
        self.churn = Some(churn);
    }

    /// Flows that the churn has begun; see [`Churn::begun`].
    pub(in crate::bench) fn begun(&self) -> usize {
        self.churn.as_ref().map_or(0, Churn::begun)
    }

    pub(super) fn set_time(&mut self, now: u64) {
        if self.by_clock {
            self.stamp = self.stamp.max(now);
        }
    }

    /// From now on these frames are played: two of each flow, in the flows' order.
    pub(super) fn play(&mut self, frames: &[[u8; L]], pool: &mut dyn PacketPool) {
        let mut frames = frames.to_vec();
        for (flow, both) in frames.chunks_mut(2).enumerate() {
            let noted = NOTED_AT..NOTED_AT + 4;
            both.iter_mut()
                .for_each(|frame| frame[noted.clone()].copy_from_slice(&epoch(flow).to_be_bytes()));
        }
        self.player = Player::new(frames);
        let Some(mut packet) = pool.take() else { return };
        encapsulate(&mut packet, self.to, 0, 0, 0);
        self.encapsulation.copy_from_slice(packet.bytes());
        pool.put(packet);
    }

    pub(in crate::bench) fn receive(
        &mut self,
        count: usize,
        pool: &mut dyn PacketPool,
        into: &mut Vec<Packet>,
    ) {
        let before = into.len();
        if let Some(churn) = &mut self.churn {
            for _ in 0..count {
                let Some(mut packet) = pool.take() else { break };
                let begins = churn.receive(&mut packet);
                self.stamp += churn.step;
                encapsulate(
                    &mut packet,
                    self.to,
                    self.stamp,
                    epoch(0),
                    if begins { Flags::NEW } else { 0 },
                );
                into.push(packet);
            }
        } else {
            self.player.receive(count, pool, into);
        }
        let played = if self.churn.is_some() { into.len() } else { before };
        for packet in &mut into[played..] {
            self.stamp += 1;
            self.count += 1;
            let begins = self.fresh_every > 0 && self.count.is_multiple_of(self.fresh_every);
            if begins && let Some(flow) = self.fresh.next() {
                let fits =
                    packet.copy_from(&traffic::udp::<L>(traffic::client(flow), traffic::VIRTUAL));
                debug_assert!(fits);
                encapsulate(packet, self.to, self.stamp, epoch(flow), Flags::NEW);
            } else if let Some(room) = packet.push_front(ENCAPSULATION_LEN) {
                room.copy_from_slice(&self.encapsulation);
                room[STAMP_AT..STAMP_AT + 8].copy_from_slice(&self.stamp.to_be_bytes());
                let noted = ENCAPSULATION_LEN + NOTED_AT;
                packet.bytes_mut().copy_within(noted..noted + 4, EPOCH_AT);
            }
        }
        for packet in into[before..].iter_mut().filter(|_| self.due > 0) {
            traffic::write(
                &mut packet.bytes_mut()[ENCAPSULATION_LEN..],
                DUE_AT,
                &self.due.to_be_bytes(),
            );
        }
    }

    /// Receives these frames, once: one of each flow from the flow numbered `first` on,
    /// or of any flows under one epoch.
    pub(in crate::bench) fn once(
        &mut self,
        first: Option<usize>,
        frames: &[[u8; L]],
        flags: u8,
        pool: &mut dyn PacketPool,
        into: &mut Vec<Packet>,
    ) -> Result<(), String> {
        for (at, frame) in frames.iter().enumerate() {
            let epoch = epoch(first.map_or(0, |first| first + at));
            let mut packet = pool.take().ok_or("no buffer left")?;
            if !packet.copy_from(frame) {
                return Err("the frame does not fit".to_owned());
            }
            self.stamp += 1;
            encapsulate(&mut packet, self.to, self.stamp, epoch, flags);
            into.push(packet);
        }
        Ok(())
    }
}

/// The epoch of a flow. Copies are found by a hash and the epoch, which no other flow
/// has.
fn epoch(flow: usize) -> u32 {
    flow as u32 + 1
}

#[inline]
fn encapsulate(packet: &mut Packet, to: Peer, stamp: u64, epoch: u32, flags: u8) {
    packet.meta.stamp = stamp;
    packet.meta.commit = epoch;
    packet.meta.flags = flags;
    let outer =
        Outer { destination: to.mac(), source: NodeId::SWITCH.mac(), index: index::TO_RUNTIME };
    let fits = nsh::encapsulate(packet, outer);
    debug_assert!(fits);
}

/// Takes released packets: counts them, and keeps them or their latencies on request.
pub(in crate::bench) struct Sink<const L: usize> {
    pub(in crate::bench) released: u64,
    /// Released frames, if they are kept, without a VLAN tag.
    pub(in crate::bench) kept: Option<Vec<[u8; L]>>,
    /// Latency of each packet, ns, if packets carry their due time.
    pub(in crate::bench) latencies: Option<Vec<u64>>,
    began: Instant,
}

impl<const L: usize> Sink<L> {
    pub(in crate::bench) fn new() -> Sink<L> {
        Sink { released: 0, kept: None, latencies: None, began: Instant::now() }
    }

    pub(in crate::bench) fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64 + 1
    }

    /// Takes a frame for the switch; ignores messages.
    #[inline]
    pub(in crate::bench) fn take(&mut self, packet: &Packet) {
        let bytes = packet.bytes();
        if bytes.len() < ENCAPSULATION_LEN + L
            || bytes[12..14] != ETHERTYPE_NSH.to_be_bytes()
            || bytes[21] != index::RELEASED
        {
            return;
        }
        self.note(&bytes[ENCAPSULATION_LEN..]);
    }

    /// Counts a frame that has left.
    #[inline]
    pub(super) fn note(&mut self, frame: &[u8]) {
        self.released += 1;
        if let Some(kept) = &mut self.kept {
            let mut frame = frame.to_vec();
            if frame[12..14] == ETHERTYPE_VLAN.to_be_bytes() {
                frame.drain(12..16);
            }
            kept.extend(<[u8; L]>::try_from(frame));
        }
        let now = self.now_if_timed();
        if let (Some(latencies), Some((due, _))) =
            (&mut self.latencies, frame[DUE_AT..].split_first_chunk::<8>())
        {
            latencies.push(now.saturating_sub(u64::from_be_bytes(*due)));
        }
    }

    #[inline]
    fn now_if_timed(&self) -> u64 {
        if self.latencies.is_some() { self.now() } else { 0 }
    }
}

/// A way of running the functions.
pub(in crate::bench) trait Runs<const L: usize> {
    /// Takes in at most `count` packets, and gives every node a turn. Returns the number
    /// taken.
    fn burst(&mut self, count: usize) -> usize;
    /// The source of the packets.
    fn input(&mut self) -> &mut ToRuntime<L>;
    /// The sink of the packets.
    fn sink(&mut self) -> &mut Sink<L>;
    /// From now on packets carry this due time.
    fn set_due(&mut self, due: u64);
    /// Waits until every packet that was taken has come out.
    fn drain(&mut self) -> Result<(), String>;
}

/// A runtime on its own.
pub(in crate::bench) struct Alone<const L: usize> {
    runtime: Runtime,
    pool: MemoryPool,
    input: ToRuntime<L>,
    sink: Sink<L>,
    rx: Vec<Packet>,
    tx: Vec<Packet>,
    clock: u64,
    taken: u64,
}

impl<const L: usize> Runs<L> for Alone<L> {
    fn burst(&mut self, count: usize) -> usize {
        self.input.set_time(self.sink.now());
        self.input.receive(count, &mut self.pool, &mut self.rx);
        let taken = self.rx.len();
        self.turn();
        taken
    }

    fn input(&mut self) -> &mut ToRuntime<L> {
        &mut self.input
    }

    fn sink(&mut self) -> &mut Sink<L> {
        &mut self.sink
    }

    fn set_due(&mut self, due: u64) {
        self.input.due = due;
    }

    fn drain(&mut self) -> Result<(), String> {
        let lost = self.taken - self.sink.released;
        if lost == 0 { Ok(()) } else { Err(missing(lost, &self.runtime)) }
    }
}

impl<const L: usize> PlaysOnce<L> for Alone<L> {
    fn play_once(&mut self, frames: &[[u8; L]], flags: u8) -> Result<Vec<[u8; L]>, String> {
        self.sink.kept = Some(Vec::with_capacity(frames.len()));
        for (first, chunk) in (0..).step_by(BURST).zip(frames.chunks(BURST)) {
            self.input.once(Some(first), chunk, flags, &mut self.pool, &mut self.rx)?;
            self.turn();
        }
        self.sink.kept.take().ok_or_else(|| "nothing was kept".to_owned())
    }
}

impl<const L: usize> Alone<L> {
    pub(in crate::bench) fn new(flows: usize, chain: Chain) -> Alone<L> {
        Alone {
            runtime: runtime(ME, flows, chain, Preset::NONE.build()),
            pool: MemoryPool::new(1024),
            input: ToRuntime::new(),
            sink: Sink::new(),
            rx: Vec::with_capacity(BURST),
            tx: Vec::with_capacity(BURST),
            clock: 1,
            taken: 0,
        }
    }

    pub(in crate::bench) fn bytes_per_flow(&self) -> usize {
        self.runtime.flows(0).map_or(0, |flows| flows.memory() / flows.len().max(1))
    }

    pub(in crate::bench) fn play(&mut self, frames: &[[u8; L]]) {
        self.input.play(frames, &mut self.pool);
    }

    fn turn(&mut self) {
        self.clock += 1000;
        self.taken += self.rx.len() as u64;
        self.runtime.turn(&mut self.rx, &mut self.tx, &mut self.pool, self.clock);
        for packet in self.tx.drain(..) {
            self.sink.take(&packet);
            self.pool.put(packet);
        }
    }
}
