//! A box in one thread: hub and runtimes take turns, and a stand-in for the coordinator
//! sends the messages that it is told to. The time includes every part's work, but no
//! gain from two cores that work at once.

use super::traffic::{self, FRAME_LEN};
use holdfast_nf::Chain;
use holdfast_nf::shared::Numbers;
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::hub::{Hub, HubOut};
use holdfast_node::manager::Manager;
use holdfast_node::message::{Control, Member, MemberState, kind, numbered};
use holdfast_node::rules::{Rule, RuleSet};
use holdfast_node::runtime::{ChainSpec, Runtime, RuntimeConfig};
use holdfast_node::switch::{Switch, SwitchConfig, SwitchLimits};
use holdfast_protection::{Peer, Protection};
use holdfast_wire::selector::Selector;
use holdfast_wire::{FlowKey, MemoryPool, NodeId, Packet, PacketPool};
use std::time::{Duration, Instant};

/// Makes the chain under test; every runtime gets a fresh one.
pub type MakeChain<'a> = &'a dyn Fn() -> Result<Chain, String>;

/// The runtime at which flows begin.
pub(super) const FIRST: Peer = Peer { node: NodeId::FIRST_RUNTIME, incarnation: 1 };
/// The other runtime.
pub(super) const SECOND: Peer = Peer { node: NodeId::runtime(1), incarnation: 1 };
const SPEAKER: Peer = Peer { node: NodeId::COORDINATOR, incarnation: 1 };
/// Buffers of the box.
const BUFFERS: usize = 32_768;
/// First packets of flows that come in one turn.
const OPENED_AT_ONCE: usize = 64;

/// A box in one thread, as the module's head says.
pub(super) struct BenchBox {
    pub(super) hub: Hub,
    /// The first runtime, until it dies, and the second.
    pub(super) runtimes: [Option<Runtime>; 2],
    rx: [Vec<Packet>; 2],
    tx: Vec<Packet>,
    out: HubOut,
    pub(super) coordinator: Fabric,
    /// The runtimes' messages to the coordinator, except reports.
    pub(super) heard: Vec<Control>,
    pool: MemoryPool,
    began: Instant,
    /// The longest turn of a runtime.
    pub(super) longest_turn: Duration,
}

/// Table size for a number of flows: a nearly full table evicts flows, and none may be
/// evicted here.
pub(super) fn room_for(flows: usize) -> usize {
    flows + flows / 2
}

impl BenchBox {
    /// A box whose switch sends new flows to the first runtime, and none to the second.
    pub(super) fn new(
        flows: usize,
        make: MakeChain<'_>,
        protection: &dyn Fn() -> Box<dyn Protection>,
    ) -> Result<BenchBox, String> {
        let (fabric, flows) = (FabricConfig::default(), room_for(flows));
        let runtime = |me: Peer| -> Result<Runtime, String> {
            let config = RuntimeConfig { me, flows, seed: 7, report_interval: 100_000_000, fabric };
            let spec = ChainSpec {
                name: "bench".to_owned(),
                switch: NodeId::SWITCH,
                chain: make()?,
                protection: protection(),
            };
            let mut runtime = Runtime::new(config, vec![spec]);
            // The first runtime leases every number; flows that move to the second bring
            // theirs.
            if me == FIRST {
                runtime.visit_pools(|_, pool| grant_all(pool));
            }
            Ok(runtime)
        };
        let switch = Switch::new(SwitchConfig {
            me: Peer { node: NodeId::SWITCH, incarnation: 1 },
            number: 0,
            flows,
            limits: SwitchLimits::default(),
            seed: 7,
            tick_interval: 10_000_000,
            timeout: 3_000_000_000,
            fabric,
            logs: Vec::new(),
            succeeds: false,
        });
        let mut hub = Hub::new(
            vec![switch],
            Manager::new(Peer { node: NodeId::MANAGER, incarnation: 1 }, fabric),
        );
        hub.handle_coordinator(SPEAKER);
        hub.fence().open(FIRST);
        hub.fence().open(SECOND);
        let mut coordinator = Fabric::new(SPEAKER, fabric);
        for peer in [
            FIRST,
            SECOND,
            Peer { node: NodeId::SWITCH, incarnation: 1 },
            Peer { node: NodeId::MANAGER, incarnation: 1 },
        ] {
            coordinator.set_peer(peer);
        }
        let rules = RuleSet::new(1, vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }]);
        for message in rules.messages(coordinator.max_record()) {
            coordinator.send_control(NodeId::SWITCH, &message);
        }
        let mut world = BenchBox {
            hub,
            runtimes: [Some(runtime(FIRST)?), Some(runtime(SECOND)?)],
            rx: [Vec::new(), Vec::new()],
            tx: Vec::new(),
            out: HubOut::default(),
            coordinator,
            heard: Vec::new(),
            pool: MemoryPool::new(BUFFERS),
            began: Instant::now(),
            longest_turn: Duration::ZERO,
        };
        world.show(&[NodeId::SWITCH], [MemberState::Running, MemberState::Starting], 1);
        world.show(&[FIRST.node, SECOND.node], [MemberState::Running; 2], 1);
        Ok(world)
    }

    /// Time since the start, ns; never 0.
    pub(super) fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64 + 1
    }

    /// Tells these nodes the states of both runtimes.
    pub(super) fn show(&mut self, nodes: &[NodeId], states: [MemberState; 2], version: u64) {
        let member = |(peer, state): (Peer, MemberState)| Member {
            node: peer.node,
            incarnation: peer.incarnation,
            state,
            cluster: 0,
            host: 0,
        };
        let members: Vec<Member> = [FIRST, SECOND].into_iter().zip(states).map(member).collect();
        for node in nodes {
            self.coordinator
                .send_control(*node, &Control::View { version, members: members.clone() });
        }
    }

    /// Flows that a runtime owns.
    pub(super) fn owned(&self, at: usize) -> usize {
        self.runtimes[at]
            .as_ref()
            .and_then(|runtime| runtime.flows(0))
            .map_or(0, |flows| flows.owned())
    }

    /// Other runtimes' flows of which a runtime has a copy.
    pub(super) fn copies(&self, at: usize) -> usize {
        self.runtimes[at]
            .as_ref()
            .and_then(|runtime| runtime.flows(0))
            .map_or(0, |flows| flows.len() - flows.owned())
    }

    /// Opens `flows` flows with the first packets that `first` makes, and gives
    /// `released` the output.
    pub(super) fn open(
        &mut self,
        flows: usize,
        first: impl Fn(usize) -> [u8; FRAME_LEN],
        mut released: impl FnMut(&[u8]),
    ) -> Result<(), String> {
        self.settle(Duration::from_millis(20), |_, _| {});
        let mut count = 0;
        for flow in 0..flows {
            self.send(&first(flow));
            if flow % OPENED_AT_ONCE == OPENED_AT_ONCE - 1 {
                self.turn(&mut |_, frame| {
                    count += 1;
                    released(frame);
                });
            }
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while count < flows && Instant::now() < deadline {
            self.turn(&mut |_, frame| {
                count += 1;
                released(frame);
            });
        }
        if count != flows || self.owned(0) != flows || self.hub.switch().routes_to(FIRST) != flows {
            return Err(format!(
                "of {flows} flows {} were opened, {count} packets came out",
                self.owned(0)
            ));
        }
        Ok(())
    }

    /// Lets this much time pass.
    pub(super) fn settle(&mut self, time: Duration, mut released: impl FnMut(u64, &[u8])) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.turn(&mut released);
        }
    }

    /// Takes in a frame at a port. False if the frame was refused.
    pub(super) fn send(&mut self, frame: &[u8]) -> bool {
        let Some(mut packet) = self.pool.take() else { return false };
        let fits = packet.copy_from(frame);
        match fits.then(|| packet.parse().ok()).flatten().and_then(|()| FlowKey::of(&packet)) {
            Some(key) => {
                self.hub.handle_packet(0, key, packet);
                true
            }
            None => {
                self.pool.put(packet);
                false
            }
        }
    }

    /// Gives every part a turn. `released` gets the frames that leave the box, with the
    /// time.
    pub(super) fn turn(&mut self, released: &mut dyn FnMut(u64, &[u8])) {
        let now = self.now();
        self.hub.turn(now, &mut self.out, &mut self.pool);
        self.speak(now);
        self.deliver(now, released);
        for (at, peer) in [FIRST, SECOND].into_iter().enumerate() {
            let Some(runtime) = &mut self.runtimes[at] else { continue };
            let began = Instant::now();
            runtime.turn(&mut self.rx[at], &mut self.tx, &mut self.pool, now);
            self.longest_turn = self.longest_turn.max(began.elapsed());
            self.hub.handle_frames(peer, &mut self.tx, now, &mut self.out, &mut self.pool);
            self.deliver(now, released);
        }
        self.hear();
    }

    /// Sends the coordinator's frames.
    fn speak(&mut self, now: u64) {
        let BenchBox { coordinator, pool, tx, .. } = self;
        coordinator.poll_transmit(now, |frame| {
            let Some(mut packet) = pool.take() else { return false };
            let fits = packet.copy_from(frame);
            tx.push(packet);
            fits
        });
        self.hub.handle_frames(SPEAKER, &mut self.tx, now, &mut self.out, &mut self.pool);
    }

    /// Delivers the hub's output.
    fn deliver(&mut self, now: u64, released: &mut dyn FnMut(u64, &[u8])) {
        for (peer, packet) in self.out.to_runtime.drain(..) {
            match [FIRST, SECOND].iter().position(|known| *known == peer) {
                Some(at) if self.runtimes[at].is_some() => self.rx[at].push(packet),
                Some(_) => self.pool.put(packet),
                None => {
                    debug_assert_eq!(packet.bytes()[..6], NodeId::COORDINATOR.mac());
                    let _ = self.coordinator.handle_frame(packet.bytes(), now);
                    self.pool.put(packet);
                }
            }
        }
        for (_, packet) in self.out.released.drain(..) {
            released(self.began.elapsed().as_nanos() as u64 + 1, packet.get().bytes());
            self.pool.put(packet.into_inner());
        }
        self.out.orders.clear();
    }

    /// Reads the coordinator's messages. Numbered messages are acknowledged at once.
    fn hear(&mut self) {
        let mut settled: Vec<(NodeId, u64)> = Vec::new();
        for (record, body) in self.coordinator.inbox.records() {
            match record.kind {
                kind::CONTROL => match Control::decode(body) {
                    Ok(Control::Report(_)) | Err(_) => {}
                    Ok(message) => self.heard.push(message),
                },
                kind::NUMBERED => {
                    let Ok((number, message)) = numbered(body) else { continue };
                    match settled.iter_mut().find(|(node, _)| *node == record.from.node) {
                        Some((_, last)) => *last = number,
                        None => settled.push((record.from.node, number)),
                    }
                    if !matches!(message, Control::Adopted { .. } | Control::Returned { .. }) {
                        self.heard.push(message);
                    }
                }
                _ => {}
            }
        }
        self.coordinator.inbox.clear();
        for (node, handled) in settled {
            self.coordinator.send_control(node, &Control::Settled { handled });
        }
    }

    /// Kills the first runtime: no message of it arrives any more.
    pub(super) fn kill_first(&mut self) {
        self.runtimes[0] = None;
        for packet in core::mem::take(&mut self.rx[0]) {
            self.pool.put(packet);
        }
        self.hub.handle_ended(FIRST);
    }
}

/// Grants every block of a pool: one runtime may lease them all.
pub(super) fn grant_all(pool: &mut Numbers) {
    for block in 0..pool.size().div_ceil(holdfast_nf::shared::BLOCK_LEN) {
        pool.backend().grant_block(block, &[0; 4]);
    }
}

/// The first packet of a flow.
pub(super) fn first_packet(flow: usize) -> [u8; FRAME_LEN] {
    traffic::udp(traffic::client(flow), traffic::VIRTUAL)
}
