//! Two nodes in two threads: a runtime owns the flows; another runtime holds their
//! replicas, or a state server is their home.

use super::runtime::{ME, OTHER, Runs, SEED, Sink, ToRuntime, missing, runtime};
use super::{BURST, PlaysOnce};
use holdfast_nf::{Chain, SharedField};
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::{Control, Member, MemberState};
use holdfast_node::runtime::Runtime;
use holdfast_node::state::{StateServer, StateServerConfig};
use holdfast_protection::flows::ActorHeader;
use holdfast_protection::rescue::pages::PagesConfig;
use holdfast_protection::{Peer, Protection};
use holdfast_state::{Kind, Limits, SERVER_CREDIT};
use holdfast_wire::{MemoryPool, NodeId, Packet, PacketPool};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Limit of packets under way through both nodes.
const UNDER_WAY: usize = 4096;
/// Limit of the bytes of states that they may carry: the channel takes some MiB.
const STATES: usize = 2 << 20;
/// Buffers of each side.
const BUFFERS: usize = UNDER_WAY * 4;
pub(in crate::bench) const SERVER: Peer = Peer { node: NodeId::STATE_SERVER, incarnation: 1 };

/// Time between two ticks of the server, ns.
const TICK: u64 = 1_000_000;
/// The lease time of a box's server, ns.
pub(in crate::bench) const LEASE: u64 = 60_000_000_000;

/// The node that has the flows besides their owner.
pub(in crate::bench) trait Beside {
    /// See [`Runtime::turn`].
    fn turn(
        &mut self,
        rx: &mut Vec<Packet>,
        tx: &mut Vec<Packet>,
        pool: &mut dyn PacketPool,
        clock: u64,
    );
}

impl Beside for Runtime {
    fn turn(
        &mut self,
        rx: &mut Vec<Packet>,
        tx: &mut Vec<Packet>,
        pool: &mut dyn PacketPool,
        clock: u64,
    ) {
        Runtime::turn(self, rx, tx, pool, clock);
    }
}

impl Beside for StateServer {
    fn turn(
        &mut self,
        rx: &mut Vec<Packet>,
        tx: &mut Vec<Packet>,
        pool: &mut dyn PacketPool,
        clock: u64,
    ) {
        for packet in rx.drain(..) {
            self.handle_frame(packet.bytes(), clock);
            pool.put(packet);
        }
        StateServer::turn(self, clock);
        self.fabric().poll_transmit(clock, |frame| {
            let Some(mut packet) = pool.take() else { return false };
            let fits = packet.copy_from(frame);
            tx.push(packet);
            fits
        });
    }
}

/// A state server that is the home of this chain's flows, and assigns the numbers of the
/// pools that ask a server. Numbers do not rest: flows begin and end much more quickly
/// than anywhere else. The server asks for a number of which it hears nothing for `lease`
/// ns; 0: never. Only the first of several servers, which is [`SERVER`], assigns numbers.
pub(in crate::bench) fn server(
    me: Peer,
    flows: usize,
    chain: &mut Chain,
    lease: u64,
) -> Result<StateServer, String> {
    let mut kinds = Vec::new();
    let has_lists = me.node == SERVER.node;
    for function in chain.functions_mut().iter_mut().filter(|_| has_lists) {
        function.shared().visit(&mut |_, field| {
            if let SharedField::Pool(pool) = field
                && pool.backend().asks_server()
            {
                let limits = Limits {
                    size: pool.size(),
                    credit: SERVER_CREDIT as u32,
                    lease,
                    rest: 0,
                    unknown_rest: 0,
                    timeout: 1_000_000_000,
                    step: TICK,
                };
                kinds.push(Kind::Indexes(limits));
            }
        });
    }
    let layout = chain.layout();
    let pages =
        PagesConfig { chain: 0, flows, state_len: layout.size, layout: layout.hash, seed: SEED };
    let server = StateServer::new(StateServerConfig {
        me,
        fabric: FabricConfig::default(),
        kinds,
        pages: vec![pages],
        waiting: 4096,
        memory: 1,
        is_first: true,
        tick: TICK,
        listener: NodeId::MANAGER,
        report_interval: 1_000_000_000,
        heartbeat: 1_000_000_000,
    });
    server.ok_or_else(|| "there is no such state server".to_owned())
}

/// A runtime and the node that has its flows besides. The owner, and the stand-in for the
/// switch, run in the caller's thread.
pub(in crate::bench) struct Pair<const L: usize> {
    primary: Runtime,
    pool: MemoryPool,
    input: ToRuntime<L>,
    sink: Sink<L>,
    rx: Vec<Packet>,
    tx: Vec<Packet>,
    /// The node that has the flows besides.
    other: Peer,
    to_replica: SyncSender<Vec<Packet>>,
    from_replica: Receiver<Vec<Packet>>,
    spare: Vec<Vec<Packet>>,
    /// Bundles that the replica has, or that are on their way back.
    bundles: usize,
    /// Packets taken so far.
    taken: u64,
    /// Limit of packets under way.
    most: usize,
    /// Bytes of frames between the two nodes.
    pub(in crate::bench) exchanged: u64,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<const L: usize> Runs<L> for Pair<L> {
    /// Waits while too many packets are under way.
    fn burst(&mut self, count: usize) -> usize {
        let mut taken = 0;
        if self.under_way() < self.most {
            self.input.set_time(self.sink.now());
            let before = self.rx.len();
            self.input.receive(count, &mut self.pool, &mut self.rx);
            taken = self.rx.len() - before;
            self.taken += taken as u64;
        }
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
        self.wait(1)
    }
}

impl<const L: usize> PlaysOnce<L> for Pair<L> {
    fn play_once(&mut self, frames: &[[u8; L]], flags: u8) -> Result<Vec<[u8; L]>, String> {
        self.sink.kept = Some(Vec::with_capacity(frames.len()));
        for (first, chunk) in (0..).step_by(BURST).zip(frames.chunks(BURST)) {
            self.wait(self.most)?;
            self.input.once(Some(first), chunk, flags, &mut self.pool, &mut self.rx)?;
            self.taken += chunk.len() as u64;
            self.turn();
        }
        self.drain()?;
        self.sink.kept.take().ok_or_else(|| "nothing was kept".to_owned())
    }
}

impl<const L: usize> Pair<L> {
    pub(in crate::bench) fn new(
        flows: usize,
        chain: Chain,
        replica_chain: Chain,
        protection: impl Fn() -> Box<dyn Protection> + Send + 'static,
    ) -> Result<Pair<L>, String> {
        Pair::with_lease(flows, chain, replica_chain, protection, LEASE)
    }

    /// Like `new`, with another lease time of the state server: see [`server`].
    pub(in crate::bench) fn with_lease(
        flows: usize,
        chain: Chain,
        mut replica_chain: Chain,
        protection: impl Fn() -> Box<dyn Protection> + Send + 'static,
        lease: u64,
    ) -> Result<Pair<L>, String> {
        let (to_replica, inbox) = sync_channel::<Vec<Packet>>(256);
        let (outbox, from_replica) = sync_channel::<Vec<Packet>>(256);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let mut pool = MemoryPool::new(BUFFERS);
        let is_paged = protection().plan().is_paged();
        let block_len = size_of::<ActorHeader>() + chain.layout().size;
        let most = UNDER_WAY.min(STATES / block_len);
        let mut primary = runtime(ME, flows, chain, protection());
        let said = introduce(&mut primary, ME, &[ME, OTHER], &mut pool);
        let server =
            if is_paged { Some(server(SERVER, flows, &mut replica_chain, lease)?) } else { None };
        let thread = std::thread::spawn(move || {
            let mut pool = MemoryPool::new(BUFFERS);
            if let Some(mut server) = server {
                introduce(&mut server, SERVER, &[ME, OTHER], &mut pool)
                    .into_iter()
                    .for_each(|packet| pool.put(packet));
                serve_replica(&mut server, &mut pool, &inbox, &outbox, &stopped, true);
                return;
            }
            let mut replica = runtime(OTHER, flows, replica_chain, protection());
            introduce(&mut replica, OTHER, &[ME, OTHER], &mut pool)
                .into_iter()
                .for_each(|packet| pool.put(packet));
            serve_replica(&mut replica, &mut pool, &inbox, &outbox, &stopped, false);
        });
        let mut pair = Pair {
            primary,
            pool,
            input: ToRuntime::new(),
            sink: Sink::new(),
            rx: Vec::with_capacity(BURST),
            tx: said,
            other: if is_paged { SERVER } else { OTHER },
            to_replica,
            from_replica,
            spare: Vec::new(),
            bundles: 0,
            taken: 0,
            most,
            exchanged: 0,
            stop,
            thread: Some(thread),
        };
        pair.exchange();
        let deadline = Instant::now() + Duration::from_secs(20);
        while is_paged && !pair.primary.knows_state_servers() {
            if Instant::now() > deadline {
                return Err("the state server never spoke".to_owned());
            }
            pair.turn();
        }
        Ok(pair)
    }

    pub(in crate::bench) fn play(&mut self, frames: &[[u8; L]]) {
        self.input.play(frames, &mut self.pool);
    }

    /// Packets taken that have not come out yet.
    pub(in crate::bench) fn under_way(&self) -> usize {
        (self.taken - self.sink.released) as usize
    }

    fn turn(&mut self) {
        let now = self.sink.now();
        self.primary.turn(&mut self.rx, &mut self.tx, &mut self.pool, now);
        self.exchange();
    }

    fn exchange(&mut self) {
        let mut bundle = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(BURST * 4));
        for packet in self.tx.drain(..) {
            if packet.bytes().first_chunk().and_then(NodeId::of_mac) == Some(self.other.node) {
                self.exchanged += packet.len() as u64;
                bundle.push(packet);
            } else {
                self.sink.take(&packet);
                self.pool.put(packet);
            }
        }
        if bundle.is_empty() {
            self.spare.push(bundle);
        } else {
            match self.to_replica.send(bundle) {
                Ok(()) => self.bundles += 1,
                Err(lost) => lost.0.into_iter().for_each(|packet| self.pool.put(packet)),
            }
        }
        loop {
            let next = if self.under_way() >= self.most && self.bundles > 0 && self.rx.is_empty() {
                self.from_replica.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.from_replica.try_recv()
            };
            let Ok(mut back) = next else { break };
            self.bundles -= 1;
            for packet in back.drain(..) {
                if packet.bytes().first_chunk().and_then(NodeId::of_mac) == Some(ME.node) {
                    self.exchanged += packet.len() as u64;
                    self.rx.push(packet);
                } else {
                    self.sink.take(&packet);
                    self.pool.put(packet);
                }
            }
            self.spare.push(back);
        }
    }

    /// Waits until fewer than `limit` packets are under way.
    fn wait(&mut self, limit: usize) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.under_way() >= limit {
            if Instant::now() > deadline {
                let held = self.primary.held();
                return Err(format!(
                    "{}; {held} are held",
                    missing(self.under_way() as u64, &self.primary)
                ));
            }
            self.turn();
        }
        Ok(())
    }

    pub(in crate::bench) fn stop(&mut self) {
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

/// Tells a node which runtimes there are. Returns the node's answers.
pub(in crate::bench) fn introduce(
    node: &mut dyn Beside,
    me: Peer,
    runtimes: &[Peer],
    pool: &mut MemoryPool,
) -> Vec<Packet> {
    let mut coordinator =
        Fabric::new(Peer { node: NodeId::COORDINATOR, incarnation: 1 }, FabricConfig::default());
    coordinator.set_peer(me);
    let member = |peer: &Peer| Member {
        node: peer.node,
        incarnation: peer.incarnation,
        state: MemberState::Running,
        cluster: 0,
        host: 0,
    };
    coordinator.send_control(me.node, &Control::Recovering { dead: Vec::new(), epoch: 0 });
    coordinator.send_control(
        me.node,
        &Control::View { version: 1, members: runtimes.iter().map(member).collect() },
    );
    let (mut rx, mut tx, mut said) = (Vec::new(), Vec::new(), Vec::new());
    // Both must learn each other's incarnation first.
    loop {
        coordinator.poll_transmit(1, |frame| {
            let Some(mut packet) = pool.take() else { return false };
            let fits = packet.copy_from(frame);
            rx.push(packet);
            fits
        });
        if rx.is_empty() {
            return said;
        }
        node.turn(&mut rx, &mut tx, pool, 1);
        for packet in tx.drain(..) {
            if packet.bytes().starts_with(&NodeId::COORDINATOR.mac()) {
                let _ = coordinator.handle_frame(packet.bytes(), 1);
                pool.put(packet);
            } else {
                said.push(packet);
            }
        }
    }
}

/// The replica's thread: saves states, releases packets, acknowledges. Buffers go back to
/// their owner. Unless it is `timed`, its clock hardly advances, and no periodic work is
/// due.
fn serve_replica(
    replica: &mut dyn Beside,
    pool: &mut MemoryPool,
    inbox: &Receiver<Vec<Packet>>,
    outbox: &SyncSender<Vec<Packet>>,
    stop: &AtomicBool,
    timed: bool,
) {
    let mut borrowed = Borrowed { pool, theirs: Vec::with_capacity(UNDER_WAY) };
    let (mut rx, mut tx) = (Vec::with_capacity(BURST * 4), Vec::with_capacity(BURST * 4));
    let (mut clock, began) = (1u64, Instant::now());
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
        clock = if timed { began.elapsed().as_nanos() as u64 + 1 } else { clock + 1000 };
        replica.turn(&mut rx, &mut tx, &mut borrowed, clock);
        bundle.append(&mut tx);
        bundle.append(&mut borrowed.theirs);
        if outbox.send(bundle).is_err() {
            return;
        }
    }
}

/// The replica's pool: a packet that the owner sent always goes back to the owner.
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
