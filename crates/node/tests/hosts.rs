//! Three hosts that make one box: what becomes of flows, and of who serves the ports, when one of them dies or is cut off.

use holdfast_functions::Forward;
use holdfast_nf::{Bound, Chain};
use holdfast_node::address::{COORDINATOR, SWITCH, manager_of};
use holdfast_node::channel::FabricConfig;
use holdfast_node::coordinator::{ClusterConfig, Coordinator, CoordinatorConfig, HostConfig, HostsConfig};
use holdfast_node::hub::{Hub, HubOut};
use holdfast_node::manager::{Manager, Wish};
use holdfast_node::message::{MemberState, Protected};
use holdfast_node::rules::Rule;
use holdfast_node::runtime::{ChainSpec, Runtime, RuntimeConfig};
use holdfast_node::switch::{Switch, SwitchConfig};
use holdfast_protection::{NfvActor, Peer, ReleaseAt};
use holdfast_wire::{FlowKey, MemoryPool, Packet, PacketPool};
use std::collections::BTreeMap;

const MILLISECOND: u64 = 1_000_000;
const HOSTS: usize = 3;
/// Where the coordinator lives, and no port is.
const WITNESS: usize = 2;
const PATIENCE: u64 = 120 * MILLISECOND;

/// A host, with a clock of its own.
struct Host {
    hub: Hub,
    out: HubOut,
    runtimes: BTreeMap<Peer, (Runtime, Vec<Packet>)>,
    clock: u64,
    incarnation: u32,
    /// Of a host that is stopped nothing moves.
    is_stopped: bool,
    released: Vec<(u64, u64)>,
}

/// All of them.
struct World {
    hosts: Vec<Host>,
    coordinator: Coordinator,
    pool: MemoryPool,
    /// From whom to whom nothing arrives.
    cut: Vec<(usize, usize)>,
    now: u64,
}

fn switch(incarnation: u32, succeeds: bool) -> Switch {
    Switch::new(SwitchConfig {
        me: Peer { node: SWITCH, incarnation },
        number: incarnation as u8,
        flows: 256,
        seed: 1,
        tick_interval: 20 * MILLISECOND,
        patience: 3000 * MILLISECOND,
        fabric: FabricConfig::default(),
        succeeds,
    })
}

fn runtime(me: Peer) -> Runtime {
    let config = RuntimeConfig { me, flows: 256, seed: 1, report_interval: 10 * MILLISECOND, fabric: FabricConfig::default() };
    let chain = Chain::new(vec![Box::new(Bound::<Forward>::new(Default::default()).expect("nothing to refuse"))]);
    let protection = Box::new(NfvActor::new(ReleaseAt::Replica));
    Runtime::new(config, vec![ChainSpec { name: "chain".to_owned(), chain, protection }])
}

impl Host {
    fn new(number: usize, incarnation: u32, clock: u64, now: u64) -> Host {
        let me = Peer { node: manager_of(number as u16), incarnation };
        let mut hub = Hub::new(switch(0, false), Manager::new(me, FabricConfig::default()));
        hub.join(HOSTS as u16, PATIENCE, clock + now);
        Host {
            hub,
            out: HubOut::default(),
            runtimes: BTreeMap::new(),
            clock,
            incarnation,
            is_stopped: false,
            released: Vec::new(),
        }
    }
}

impl World {
    fn new() -> World {
        let coordinator = CoordinatorConfig {
            me: Peer { node: COORDINATOR, incarnation: 1 },
            clusters: ClusterConfig::only(4, 1, true),
            hosts: HostsConfig {
                hosts: (0..HOSTS).map(|at| HostConfig { has_ports: at != WITNESS, has_runtimes: at != WITNESS }).collect(),
                patience: PATIENCE,
            },
            rules: vec![Rule { selector: "any".parse().expect("a selector"), chain: 0, cluster: 0 }],
            hang_timeout: 200 * MILLISECOND,
            start_timeout: 1000 * MILLISECOND,
            first_incarnation: 1,
            pools: Vec::new(),
            layouts: vec![runtime(Peer { node: 99, incarnation: 1 }).flows(0).expect("a chain").layout()],
            fabric: FabricConfig::default(),
        };
        let now = 1000 * MILLISECOND;
        // Days lie between their clocks.
        let hosts: Vec<Host> =
            (0..HOSTS).map(|at| Host::new(at, 1, [900_000, 5, 400_000][at] * 1000 * MILLISECOND, now)).collect();
        let began_at = now + hosts[WITNESS].clock;
        let mut world = World {
            hosts,
            coordinator: Coordinator::new(coordinator, began_at),
            pool: MemoryPool::new(4096),
            cut: Vec::new(),
            now,
        };
        let coordinator = world.coordinator.fabric().me();
        world.hosts[WITNESS].hub.handle_coordinator(coordinator);
        world.pass(400);
        assert!(world.coordinator.is_ready());
        assert_eq!(world.serving(), [0]);
        assert_eq!(world.coordinator.protected(), Protected::Yes);
        assert!(world.coordinator.survives_host());
        world
    }

    fn serving(&self) -> Vec<usize> {
        (0..HOSTS).filter(|at| self.hosts[*at].hub.is_serving() && !self.hosts[*at].is_stopped).collect()
    }

    fn pass(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds / 2 {
            self.now += 2 * MILLISECOND;
            for _ in 0..6 {
                self.turn();
            }
            assert!(self.serving().len() < 2, "{:?} serve", self.serving());
        }
    }

    fn turn(&mut self) {
        self.turn_coordinator();
        for at in 0..HOSTS {
            if self.hosts[at].is_stopped {
                continue;
            }
            let now = self.now + self.hosts[at].clock;
            let Host { hub, out, runtimes, .. } = &mut self.hosts[at];
            hub.turn(now, out, &mut self.pool);
            for (peer, (runtime, rx)) in runtimes.iter_mut() {
                let mut frames = Vec::new();
                runtime.turn(rx, &mut frames, &mut self.pool, now);
                hub.handle_frames(*peer, &mut frames, now, out, &mut self.pool);
            }
            self.carry(at);
        }
    }

    /// What a hub has put out arrives.
    fn carry(&mut self, at: usize) {
        let now = self.now;
        let clocks: Vec<u64> = self.hosts.iter().map(|host| host.clock).collect();
        let mut fabric = Vec::new();
        let mut told = Vec::new();
        {
            let Host { out, runtimes, released, hub, .. } = &mut self.hosts[at];
            for (peer, packet) in out.to_runtime.drain(..) {
                match runtimes.get_mut(&peer) {
                    Some((_, rx)) => rx.push(packet),
                    None => {
                        if peer.node == COORDINATOR {
                            told.push(packet.bytes().to_vec());
                        }
                        self.pool.put(packet);
                    }
                }
            }
            for packet in out.released.drain(..) {
                released.push((packet.get().meta.stamp, now));
                self.pool.put(packet.into_inner());
            }
            for wish in std::mem::take(&mut out.wishes) {
                match wish {
                    Wish::Start(peer) => {
                        runtimes.insert(peer, (runtime(peer), Vec::new()));
                        hub.handle_started(peer);
                    }
                    Wish::Stop(peer) | Wish::Fence(peer) => {
                        runtimes.remove(&peer);
                        hub.handle_ended(peer);
                        hub.handle_buried(peer);
                    }
                    Wish::Serve(term) => hub.begin(switch(term, true)),
                    Wish::Retire => {}
                }
            }
            fabric.append(&mut out.to_fabric);
        }
        for frame in told {
            self.coordinator.handle_frame(&frame, now + clocks[WITNESS]);
        }
        // The network shows a frame to every host.
        for frame in fabric {
            for to in (0..HOSTS).filter(|to| *to != at) {
                if self.cut.contains(&(at, to)) || self.hosts[to].is_stopped {
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

    fn turn_coordinator(&mut self) {
        if self.hosts[WITNESS].is_stopped {
            return;
        }
        let now = self.now + self.hosts[WITNESS].clock;
        self.coordinator.handle_records(now);
        self.coordinator.handle_timeout(now);
        self.coordinator.forget_log();
        let (mut frames, pool) = (Vec::new(), &mut self.pool);
        self.coordinator.fabric().poll_transmit(now, |frame| {
            let Some(mut packet) = pool.take() else { return false };
            assert!(packet.copy_from(frame));
            frames.push(packet);
            true
        });
        let me = self.coordinator.fabric().me();
        let Host { hub, out, .. } = &mut self.hosts[WITNESS];
        hub.handle_frames(me, &mut frames, now, out, &mut self.pool);
        self.carry(WITNESS);
    }

    /// A packet of every flow comes to a host's ports. How many leave there within a moment.
    fn send(&mut self, at: usize, flows: u8) -> usize {
        let before = self.hosts[at].released.len();
        for flow in 0..flows {
            let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
            frame.extend_from_slice(&[0x45, 0, 0, 29, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, flow, 192, 0, 2, 1]);
            frame.extend_from_slice(&[0, 9, 0, 53, 0, 9, 0, 0, 0]);
            let mut packet = self.pool.take().expect("the pool is large enough");
            assert!(packet.copy_from(&frame));
            packet.parse().expect("a packet");
            let key = FlowKey::of(&packet).expect("a key");
            let now = self.now + self.hosts[at].clock;
            let Host { hub, out, .. } = &mut self.hosts[at];
            hub.handle_packet(key, packet);
            hub.forward(now, out, &mut self.pool);
        }
        self.pass(20);
        self.hosts[at].released.len() - before
    }

    /// Flows that runtimes on these hosts own, and how many packets each has seen.
    fn flows(&self, hosts: &[usize]) -> BTreeMap<FlowKey, u64> {
        let runtimes = hosts.iter().flat_map(|at| self.hosts[*at].runtimes.values());
        let flows = runtimes.filter_map(|(runtime, _)| runtime.flows(0)).flat_map(|flows| flows.iter());
        let owned = flows.filter(|(_, header)| header.role == holdfast_protection::flows::role::OWNER);
        owned.map(|(_, header)| (header.key, header.packets().iter().sum())).collect()
    }

    fn kill(&mut self, at: usize) {
        self.hosts[at].is_stopped = true;
        self.hosts[at].runtimes.clear();
    }

    /// A host that died begins again, empty.
    fn revive(&mut self, at: usize) {
        let (incarnation, clock) = (self.hosts[at].incarnation, self.hosts[at].clock);
        self.hosts[at] = Host::new(at, incarnation + 1, clock, self.now);
        if at == WITNESS {
            let me = self.coordinator.fabric().me();
            self.hosts[at].hub.handle_coordinator(me);
        }
    }
}

/// The host that serves dies with everything on it. The other begins to serve, and every flow goes on there where it was.
#[test]
fn the_host_that_serves_dies() {
    let mut world = World::new();
    assert_eq!(world.send(0, 40), 40);
    assert_eq!(world.send(0, 40), 40);
    world.kill(0);
    world.pass(1000);
    assert_eq!(world.serving(), [1]);
    assert_eq!(world.send(1, 40), 40);
    let flows = world.flows(&[1]);
    assert_eq!(flows.len(), 40, "no flow ends because the other host's clock shows another day");
    assert!(flows.values().all(|packets| *packets == 3), "{flows:?}");
    assert!(!world.coordinator.survives_host());
    // It comes back, and everything is safe again.
    world.revive(0);
    world.pass(1500);
    assert_eq!((world.serving(), world.coordinator.protected()), (vec![1], Protected::Yes));
    assert!(world.coordinator.survives_host());
    assert_eq!(world.send(1, 40), 40);
    assert!(world.flows(&[0, 1]).values().all(|packets| *packets == 4));
}

/// A host that does not serve dies: its flows go on at the other.
#[test]
fn a_host_of_runtimes_dies() {
    let mut world = World::new();
    assert_eq!(world.send(0, 40), 40);
    assert!(world.flows(&[1]).len() > 5, "flows are on both hosts");
    world.kill(1);
    world.pass(600);
    assert_eq!((world.serving(), world.send(0, 40)), (vec![0], 40));
    assert!(world.flows(&[0]).values().all(|packets| *packets == 2));
    assert_eq!(world.flows(&[0]).len(), 40);
}

/// The coordinator's host dies: traffic goes on, and when it is back it is the same as before.
#[test]
fn the_witness_dies() {
    let mut world = World::new();
    assert_eq!(world.send(0, 40), 40);
    world.hosts[WITNESS].is_stopped = true;
    world.pass(2000);
    assert_eq!((world.serving(), world.send(0, 60)), (vec![0], 60));
    world.revive(WITNESS);
    world.pass(1000);
    assert_eq!((world.serving(), world.send(0, 60)), (vec![0], 60));
    assert!(world.coordinator.failovers().next().is_none());
}

/// The host that serves is cut off from the others, in one direction or in both, while clients still reach it. It stops before another begins; when the
/// links are whole again its runtimes are strangers, and new ones take their places.
#[test]
fn the_host_that_serves_is_cut_off() {
    let (out, back) = ([(0, 1), (0, 2)], [(1, 0), (2, 0)]);
    for cut in [out.to_vec(), back.to_vec(), [out, back].concat()] {
        let mut world = World::new();
        assert_eq!(world.send(0, 40), 40);
        world.cut = cut.clone();
        for _ in 0..60 {
            // What it takes in is released by whoever is meant, or by nobody.
            world.send(0, 40);
        }
        assert_eq!(world.serving(), [1], "{cut:?}");
        assert_eq!(world.send(1, 40), 40, "{cut:?}");
        assert_eq!(world.send(0, 40), 0, "{cut:?}");
        world.cut.clear();
        world.pass(1500);
        assert_eq!((world.serving(), world.coordinator.protected()), (vec![1], Protected::Yes), "{cut:?}");
        assert!(world.coordinator.survives_host(), "{cut:?}");
        assert_eq!(world.send(1, 40), 40, "{cut:?}");
        assert!(world.coordinator.status().all(|runtime| runtime.member.state == MemberState::Running));
    }
}

/// Replicas lie on the other host; when there is none they lie beside their flows, and move as soon as there is one again.
#[test]
fn replicas_lie_on_the_other_host() {
    let mut world = World::new();
    assert_eq!(world.send(0, 40), 40);
    let hosts_of = |world: &World| -> Vec<(u16, u16)> {
        let status: Vec<_> = world.coordinator.status().map(|runtime| runtime.member).collect();
        let host = |node: u16| status.iter().find(|member| member.node == node).map_or(99, |member| member.host);
        let mut pairs = Vec::new();
        for at in [0, 1] {
            for (peer, (runtime, _)) in &world.hosts[at].runtimes {
                let flows = runtime.flows(0).expect("a chain");
                let owned = flows.iter().filter(|(_, header)| header.role == holdfast_protection::flows::role::OWNER);
                pairs.extend(owned.map(|(_, header)| (host(peer.node), host(header.peer))));
            }
        }
        pairs
    };
    assert!(hosts_of(&world).iter().all(|(owner, replica)| owner != replica && *replica < 2));
    world.kill(1);
    world.pass(1000);
    assert_eq!(hosts_of(&world).len(), 40);
    assert!(hosts_of(&world).iter().all(|pair| *pair == (0, 0)));
    world.revive(1);
    world.pass(1500);
    assert!(hosts_of(&world).iter().all(|(owner, replica)| owner != replica && *replica < 2));
}

/// What the managers that are there say when somebody asks whether the box is ready.
fn is_ready(world: &World) -> Vec<bool> {
    let there = world.hosts.iter().filter(|host| !host.is_stopped);
    there.map(|host| host.hub.manager.is_ready()).collect()
}

/// A box that has been ready loses the host that serves. The places there stay empty, and all the same the box is as ready as before: the host that
/// serves next, and a manager that begins only then, open their ports.
#[test]
fn a_box_that_was_ready_is_ready_whoever_is_missing() {
    let mut world = World::new();
    assert_eq!(is_ready(&world), [true; HOSTS]);
    world.kill(0);
    // Before the start's patience is over nobody could know that the host does not come.
    for _ in 0..20 {
        world.pass(10);
        assert_eq!(is_ready(&world), [true; HOSTS - 1]);
    }
    world.pass(200);
    assert_eq!(world.serving(), [1]);
    assert!(!world.coordinator.is_ready(), "two places are empty, and not long enough");
    world.revive(WITNESS);
    world.pass(100);
    assert_eq!(is_ready(&world), [true; HOSTS - 1], "also a manager that has just begun");
}
