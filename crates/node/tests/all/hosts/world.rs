//! Three hosts that make one box, each with its own clock, and a coordinator on one of
//! them.

use crate::spot::{datagram_from, forwarding};
use holdfast_node::channel::{FabricConfig, Overheard};
use holdfast_node::coordinator::{
    ClusterConfig, Coordinator, CoordinatorConfig, HostConfig, HostsConfig, LogRecord, SwitchPlace,
};
use holdfast_node::hub::{Hub, HubOut};
use holdfast_node::manager::{HostOrder, Manager};
use holdfast_node::message::{MemberState, Protected};
use holdfast_node::rules::Rule;
use holdfast_node::runtime::Runtime;
use holdfast_node::switch::{Switch, SwitchConfig, SwitchLimits};
use holdfast_protection::{Peer, Plan};
use holdfast_wire::header::ETHERTYPE_NSH;
use holdfast_wire::nsh::index;
use holdfast_wire::{FlowKey, MemoryPool, NodeId, Packet, PacketPool};
use std::collections::BTreeMap;

pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const HOSTS: usize = 3;
/// The host of the coordinator, without ports, in worlds without an election.
pub(crate) const WITNESS: usize = 2;
const TIMEOUT: u64 = 120 * MILLISECOND;

/// A host, with its own clock.
pub(crate) struct Host {
    pub(crate) hub: Hub,
    out: HubOut,
    pub(crate) runtimes: BTreeMap<Peer, (Runtime, Vec<Packet>)>,
    clock: u64,
    incarnation: u32,
    /// A stopped host does not move at all.
    pub(crate) is_stopped: bool,
    /// The switches of released packets, in order.
    released: Vec<u16>,
    /// Frames for a coordinator here.
    told: Vec<(Peer, Vec<u8>)>,
}

/// All hosts, and the network between them.
pub(crate) struct World {
    pub(crate) hosts: Vec<Host>,
    /// Coordinators with their hosts; the leading one is the last. The others have not
    /// been told that they do not lead any more.
    coordinators: Vec<(usize, Coordinator)>,
    config: CoordinatorConfig,
    /// Log of the leading coordinator.
    log: Vec<LogRecord>,
    pool: MemoryPool,
    /// Links, from one host to another, on which no frame arrives.
    pub(crate) cut: Vec<(usize, usize)>,
    /// Links, from one host to another, on which the first message of an incarnation is
    /// lost, and later ones arrive.
    pub(crate) first_lost: Vec<(usize, usize)>,
    now: u64,
    /// The coordinator waits so long for a processor before each of its turns, ns.
    pub(crate) coordinator_waits: u64,
    coordinator_turned: u64,
    plan: Plan,
    switches: u16,
    /// Packets that runtimes of each host have handed over to another host.
    pub(crate) handed: [usize; HOSTS],
}

fn switch(number: u16, incarnation: u32, succeeds: bool) -> Switch {
    Switch::new(SwitchConfig {
        me: Peer { node: NodeId::switch(number), incarnation },
        number: incarnation as u8,
        flows: 256,
        limits: SwitchLimits::default(),
        seed: 1,
        tick_interval: 20 * MILLISECOND,
        timeout: 3000 * MILLISECOND,
        fabric: FabricConfig::default(),
        logs: Vec::new(),
        succeeds,
    })
}

/// A runtime with one chain per switch.
fn runtime(me: Peer, plan: Plan, switches: u16) -> Runtime {
    forwarding(me, 10 * MILLISECOND, plan, (0..switches).map(NodeId::switch))
}

impl Host {
    fn new(number: usize, switches: u16, incarnation: u32, clock: u64, now: u64) -> Host {
        let me = Peer { node: NodeId::manager(number as u16), incarnation };
        let mut hub = Hub::new(
            (0..switches).map(|number| switch(number, 0, false)).collect(),
            Manager::new(me, FabricConfig::default()),
        );
        hub.join(HOSTS as u16, TIMEOUT, clock + now);
        Host {
            hub,
            out: HubOut::default(),
            runtimes: BTreeMap::new(),
            clock,
            incarnation,
            is_stopped: false,
            released: Vec::new(),
            told: Vec::new(),
        }
    }
}

impl World {
    /// Two hosts that serve, and a witness.
    pub(crate) fn new() -> World {
        World::of([0, 1], WITNESS, Plan::NFVACTOR, 1)
    }

    /// As `World::new`, under a plan with another release mode.
    pub(crate) fn with(plan: Plan) -> World {
        World::of([0, 1], WITNESS, plan, 1)
    }

    /// Three equal hosts, with the coordinator elected on this one.
    pub(crate) fn of_equals(leader: usize) -> World {
        World::of([0, 1, 2], leader, Plan::NFVACTOR, 1)
    }

    /// Three equal hosts, the last of which leads, with a switch for each of the others.
    pub(crate) fn of_two_switches(plan: Plan) -> World {
        World::of([0, 1, 2], 2, plan, 2)
    }

    fn of<const N: usize>(serving: [usize; N], leader: usize, plan: Plan, switches: u16) -> World {
        let serves = |at: usize| serving.contains(&at);
        let config = CoordinatorConfig {
            names: Vec::new(),
            me: Peer { node: NodeId::COORDINATOR, incarnation: 1 },
            clusters: ClusterConfig::only(2 * N as u16, switches, true),
            hosts: HostsConfig {
                hosts: (0..HOSTS)
                    .map(|at| HostConfig { has_ports: serves(at), has_runtimes: serves(at) })
                    .collect(),
                // Several switches are each on their own host.
                switches: (0..switches)
                    .map(|at| SwitchPlace { chains: vec![at], host: (switches > 1).then_some(at) })
                    .collect(),
                timeout: TIMEOUT,
            },
            rules: (0..switches)
                .map(|chain| Rule {
                    selector: "any".parse().expect("a selector"),
                    chain,
                    cluster: 0,
                })
                .collect(),
            hang_timeout: 200 * MILLISECOND,
            start_timeout: 1000 * MILLISECOND,
            first_incarnation: 1,
            pools: Vec::new(),
            state_servers: 0,
            layouts: vec![
                runtime(Peer { node: NodeId::new(99), incarnation: 1 }, plan, 1)
                    .flows(0)
                    .expect("a chain")
                    .layout();
                switches.into()
            ],
            fabric: FabricConfig::default(),
        };
        let now = 1000 * MILLISECOND;
        // The hosts' clocks are days apart.
        let hosts: Vec<Host> = (0..HOSTS)
            .map(|at| {
                Host::new(at, switches, 1, [900_000, 5, 400_000][at] * 1000 * MILLISECOND, now)
            })
            .collect();
        let mut coordinator = Coordinator::new(config.clone(), now + hosts[leader].clock);
        coordinator.live_on(leader as u16);
        let mut world = World {
            hosts,
            coordinators: vec![(leader, coordinator)],
            config,
            log: Vec::new(),
            pool: MemoryPool::new(4096),
            cut: Vec::new(),
            first_lost: Vec::new(),
            now,
            coordinator_waits: 0,
            coordinator_turned: 0,
            plan,
            switches,
            handed: [0; HOSTS],
        };
        let me = world.coordinator().fabric().me();
        world.hosts[leader].hub.handle_coordinator(me);
        world.pass(400);
        assert!(world.coordinator().is_ready());
        assert_eq!(
            world.serving(),
            [if leader == 0 { 1 } else { 0 }],
            "who leads does not serve if another can"
        );
        assert!((1..switches).all(|switch| world.serving_switch(switch) == [usize::from(switch)]));
        world.check_safe("at the beginning");
        world
    }

    /// The leading coordinator.
    pub(crate) fn coordinator(&mut self) -> &mut Coordinator {
        &mut self.coordinators.last_mut().expect("there is one").1
    }

    /// Checks that every runtime runs, and that any host may die.
    pub(crate) fn check_safe(&mut self, when: &str) {
        assert_eq!(self.coordinator().protected(), Protected::Yes, "{when}");
        assert!(self.coordinator().survives_host(), "{when}");
        assert!(
            self.coordinator().status().all(|runtime| runtime.member.state == MemberState::Running),
            "{when}"
        );
    }

    /// A candidate becomes the coordinator, with the log of its predecessors.
    pub(crate) fn elect(&mut self, at: usize) {
        self.config.me.incarnation += 1;
        let now = self.now + self.hosts[at].clock;
        let records = self.log.iter().map(|record| record.bytes.as_slice());
        let mut coordinator =
            Coordinator::restore(self.config.clone(), now, records).expect("a log");
        coordinator.live_on(at as u16);
        self.coordinators.push((at, coordinator));
        self.hosts[at].hub.handle_coordinator(self.config.me);
    }

    /// The coordinator of a host ends, by itself or because it has to.
    pub(crate) fn end_coordinator(&mut self, at: usize) {
        let number =
            self.coordinators.iter().position(|(host, _)| *host == at).expect("there is one");
        let (_, mut coordinator) = self.coordinators.remove(number);
        self.hosts[at].hub.handle_coordinator_ended(coordinator.fabric().me());
    }

    /// The hosts that serve the first switch.
    pub(crate) fn serving(&self) -> Vec<usize> {
        self.serving_switch(0)
    }

    pub(crate) fn serving_switch(&self, switch: u16) -> Vec<usize> {
        (0..HOSTS)
            .filter(|at| self.hosts[*at].hub.serves(switch) && !self.hosts[*at].is_stopped)
            .collect()
    }

    pub(crate) fn pass(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds / 2 {
            self.now += 2 * MILLISECOND;
            for _ in 0..6 {
                self.turn();
            }
            for switch in 0..self.switches {
                let serving = self.serving_switch(switch);
                assert!(serving.len() < 2, "{serving:?} serve switch {switch}");
            }
        }
    }

    fn turn(&mut self) {
        if self.now >= self.coordinator_turned + self.coordinator_waits {
            self.coordinator_turned = self.now;
            let mut coordinators = std::mem::take(&mut self.coordinators);
            let last = coordinators.len();
            for (number, (at, coordinator)) in coordinators.iter_mut().enumerate() {
                self.turn_coordinator(*at, coordinator, number + 1 == last);
            }
            self.coordinators = coordinators;
        }
        for at in 0..HOSTS {
            if self.hosts[at].is_stopped {
                continue;
            }
            let now = self.now + self.hosts[at].clock;
            let Host { hub, out, runtimes, .. } = &mut self.hosts[at];
            hub.turn(now, out, &mut self.pool);
            for (peer, (runtime, rx)) in runtimes.iter_mut() {
                if !hub.may_hear(*peer) {
                    continue;
                }
                let mut frames = Vec::new();
                runtime.turn(rx, &mut frames, &mut self.pool, now);
                hub.handle_frames(*peer, &mut frames, now, out, &mut self.pool);
            }
            self.carry(at);
        }
    }

    /// Delivers the frames that a hub has put out.
    fn carry(&mut self, at: usize) {
        let now = self.now;
        let clocks: Vec<u64> = self.hosts.iter().map(|host| host.clock).collect();
        let mut fabric = Vec::new();
        {
            let Host { out, runtimes, released, hub, told, .. } = &mut self.hosts[at];
            for (peer, packet) in out.to_runtime.drain(..) {
                match runtimes.get_mut(&peer) {
                    Some((_, rx)) => rx.push(packet),
                    None => {
                        if peer.node == NodeId::COORDINATOR {
                            told.push((peer, packet.bytes().to_vec()));
                        }
                        self.pool.put(packet);
                    }
                }
            }
            for (switch, packet) in out.released.drain(..) {
                assert_eq!(
                    packet.get().meta.chain,
                    switch,
                    "a chain's packets leave at its switch"
                );
                released.push(switch);
                self.pool.put(packet.into_inner());
            }
            for order in std::mem::take(&mut out.orders) {
                match order {
                    HostOrder::Start(peer) => {
                        runtimes
                            .insert(peer, (runtime(peer, self.plan, self.switches), Vec::new()));
                        hub.handle_started(peer);
                    }
                    HostOrder::Stop(peer) | HostOrder::Fence(peer) => {
                        runtimes.remove(&peer);
                        hub.handle_ended(peer);
                        hub.handle_buried(peer);
                    }
                    HostOrder::Serve(number, term) => hub.begin(switch(number, term, true)),
                    HostOrder::Retire(_) => {}
                }
            }
            fabric.append(&mut out.to_fabric);
        }
        // The network shows a frame to every host.
        for frame in fabric {
            // The index is the last byte of the NSH service path header.
            let is_handed = frame.bytes()[12..14] == ETHERTYPE_NSH.to_be_bytes()
                && frame.bytes()[21] == index::TO_REPLICA;
            self.handed[at] += usize::from(is_handed);
            let is_first =
                Overheard::read(frame.bytes()).is_some_and(|messages| messages.sequence == 1);
            for to in (0..HOSTS).filter(|to| *to != at) {
                let is_lost =
                    self.cut.contains(&(at, to)) || is_first && self.first_lost.contains(&(at, to));
                if is_lost || self.hosts[to].is_stopped {
                    continue;
                }
                let mut copy = self.pool.take().expect("the pool is large enough");
                assert!(copy.copy_from(frame.bytes()));
                let Host { hub, out, .. } = &mut self.hosts[to];
                hub.handle_fabric(&mut vec![copy], now + clocks[to], out, &mut self.pool);
            }
            self.pool.put(frame);
        }
    }

    fn turn_coordinator(&mut self, at: usize, coordinator: &mut Coordinator, leads: bool) {
        if self.hosts[at].is_stopped {
            return;
        }
        let now = self.now + self.hosts[at].clock;
        let me = coordinator.fabric().me();
        for (_, frame) in self.hosts[at].told.extract_if(.., |(peer, _)| *peer == me) {
            coordinator.handle_frame(&frame, now);
        }
        coordinator.handle_records(now);
        coordinator.handle_timeout(now);
        let records = coordinator.poll_log();
        // A coordinator that does not lead any more logs nothing, and does not know it
        // yet.
        for record in records.into_iter().filter(|_| leads) {
            if record.replaces {
                self.log.clear();
            }
            self.log.push(record);
        }
        coordinator.logged();
        let (mut frames, pool) = (Vec::new(), &mut self.pool);
        coordinator.fabric().poll_transmit(now, |frame| {
            let Some(mut packet) = pool.take() else { return false };
            assert!(packet.copy_from(frame));
            frames.push(packet);
            true
        });
        let Host { hub, out, .. } = &mut self.hosts[at];
        hub.handle_frames(me, &mut frames, now, out, &mut self.pool);
        self.carry(at);
    }

    /// A packet of every flow comes to a host's ports. Returns how many leave there
    /// within a moment.
    pub(crate) fn send(&mut self, at: usize, flows: u8) -> usize {
        self.send_to(0, at, flows)
    }

    /// As `World::send`, at the ports of a switch. The flows of all switches have the
    /// same keys.
    pub(crate) fn send_to(&mut self, switch: u16, at: usize, flows: u8) -> usize {
        let before = self.released(switch, at);
        self.offer(switch, at, flows);
        self.pass(20);
        self.released(switch, at) - before
    }

    /// Packets of a switch that have left at a host so far.
    pub(crate) fn released(&self, switch: u16, at: usize) -> usize {
        self.hosts[at].released.iter().filter(|of| **of == switch).count()
    }

    /// A packet of every flow comes to a host's ports for a switch.
    pub(crate) fn offer(&mut self, switch: u16, at: usize, flows: u8) {
        for flow in 0..flows {
            let mut packet = self.pool.take().expect("the pool is large enough");
            assert!(packet.copy_from(&datagram_from(flow, 9, 0)));
            packet.parse().expect("a packet");
            let key = FlowKey::of(&packet).expect("a key");
            let now = self.now + self.hosts[at].clock;
            let Host { hub, out, .. } = &mut self.hosts[at];
            hub.handle_packet(switch, key, packet);
            hub.forward(now, out, &mut self.pool);
        }
    }

    /// Flows that runtimes on these hosts own, and how many packets each has seen.
    pub(crate) fn flows(&self, hosts: &[usize]) -> BTreeMap<FlowKey, u64> {
        self.flows_of(0, hosts)
    }

    /// As `World::flows`, for a switch.
    pub(crate) fn flows_of(&self, switch: usize, hosts: &[usize]) -> BTreeMap<FlowKey, u64> {
        let runtimes = hosts.iter().flat_map(|at| self.hosts[*at].runtimes.values());
        let flows = runtimes
            .filter_map(|(runtime, _)| runtime.flows(switch))
            .flat_map(|flows| flows.iter());
        let owned =
            flows.filter(|(_, header)| header.life() == holdfast_protection::flows::Life::Owned);
        owned.map(|(_, header)| (header.key, header.packets().iter().sum())).collect()
    }

    pub(crate) fn kill(&mut self, at: usize) {
        self.hosts[at].is_stopped = true;
        self.hosts[at].runtimes.clear();
        self.coordinators.retain(|(host, _)| *host != at);
    }

    /// A runtime of a host ends, and its manager sees it.
    pub(crate) fn end(&mut self, at: usize, peer: Peer) {
        let Host { hub, runtimes, .. } = &mut self.hosts[at];
        runtimes.remove(&peer);
        hub.handle_ended(peer);
        hub.handle_buried(peer);
    }

    /// The manager of a host dies, and its next incarnation finds the runtimes.
    pub(crate) fn succeed(&mut self, at: usize) {
        let runtimes = std::mem::take(&mut self.hosts[at].runtimes);
        let found: Vec<Peer> = runtimes.keys().copied().collect();
        self.revive(at);
        self.hosts[at].runtimes = runtimes;
        self.hosts[at].hub.succeed(&found, &[]);
    }

    /// A host that died, or its manager alone, begins again, empty.
    pub(crate) fn revive(&mut self, at: usize) {
        let (incarnation, clock) = (self.hosts[at].incarnation, self.hosts[at].clock);
        self.hosts[at] = Host::new(at, self.switches, incarnation + 1, clock, self.now);
        // The manager alone died.
        if let Some((_, coordinator)) = self.coordinators.iter_mut().find(|(host, _)| *host == at) {
            self.hosts[at].hub.handle_coordinator(coordinator.fabric().me());
        }
    }
}
