//! A whole box in one process: edge, switch, manager, coordinator and two runtimes, with
//! a counted pool, without an operating system.

use holdfast::config::{self, Plan};
use holdfast_node::channel::FabricConfig;
use holdfast_node::coordinator::{ClusterConfig, Coordinator, CoordinatorConfig, HostsConfig};
use holdfast_node::edge::Edge;
use holdfast_node::host::{Host, HostOut};
use holdfast_node::hub::Hub;
use holdfast_node::manager::{HostOrder, Manager};
use holdfast_node::runtime::{ChainSpec, Runtime, RuntimeConfig};
use holdfast_node::switch::{Switch, SwitchConfig, SwitchLimits};
use holdfast_protection::Peer;
use holdfast_wire::{MemoryPool, NodeId, Packet, PacketPool};

/// The box's configuration: every function, with small tables, so that they fill.
pub(crate) const CONFIGURATION: &str = r#"
cluster: fuzz
ports:
  inside:  { device: a, address: [10.0.0.1/24, "2001:db8:a::1/64"] }
  outside: { device: b, address: 198.51.100.1/24, flow_vlans: [300], gateway: 198.51.100.254, bfd: [{ peer: 198.51.100.254 }], reverse_path: off }
chains:
  web:
    functions:
      - firewall: { rules: ["allow tcp from 10.0.0.0/8", "allow udp from any", "allow icmp from any"], default: deny }
      - nat: { pool: [198.51.100.4/32], ports: 1024-1535 }
      - load_balancer: { virtual: "203.0.113.10:80", backends: ["198.51.100.11:80", "198.51.100.12:80"] }
      - monitor
      - packet_limit: { packets: 50 }
      - qos_marker: { classes: { new: { dscp: ef, pcp: 5, demote: { to: long, after_packets: 3, after_bytes: 400 } }, long: { dscp: le, reverse: { pcp: 1 } } }, rules: [new udp], default: long }
      - vlan: { classes: { apart: { forward: { id: 300, keep: true } }, back: { forward: { pop: true }, reverse: { dei: true } } }, rules: [apart udp], default: back }
      - http: { rules: ["deny path /admin*", "reject method CONNECT host *.example"], hosts: [a.example] }
      - ips: { rules: ['alert ip any any -> any any (content:"a"; nocase; content:"|42|"; distance:0; within:9; pcre:"/c+/R"; sid:1;)'], uninspected: pass }
    protection: nfvactor
  plain: { functions: [forward], protection: { preset: reinforce, log_mib: 1 } }
rules:
  - { from: 10.0.0.0/24, chain: web }
  - { to: 198.51.100.4/32, chain: web }
  - { chain: plain }
limits: { flows: 64 }
"#;

const MILLISECOND: u64 = 1_000_000;
/// The number of the box's buffers.
const BUFFERS: usize = 192;

struct Process {
    runtime: Runtime,
    rx: Vec<Packet>,
}

/// The box of this module.
pub(crate) struct WholeBox {
    plan: Plan,
    host: Host,
    out: HostOut,
    coordinator: Coordinator,
    runtimes: Vec<Process>,
    pool: MemoryPool,
    now: u64,
}

impl WholeBox {
    /// A box whose runtimes have started.
    pub(crate) fn new() -> WholeBox {
        let plan =
            config::read("fuzz.yaml", CONFIGURATION).unwrap_or_else(|mistake| panic!("{mistake}"));
        let now = 1_000_000 * MILLISECOND;
        let fabric = FabricConfig::default();
        let switch = Switch::new(SwitchConfig {
            me: Peer { node: NodeId::SWITCH, incarnation: 1 },
            number: 0,
            flows: 64,
            limits: SwitchLimits::default(),
            seed: 1,
            tick_interval: 50 * MILLISECOND,
            timeout: 3000 * MILLISECOND,
            fabric,
            logs: plan.logs(),
            succeeds: false,
        });
        let coordinator = CoordinatorConfig {
            hosts: HostsConfig::one(),
            names: Vec::new(),
            me: Peer { node: NodeId::COORDINATOR, incarnation: 1 },
            clusters: ClusterConfig::only(2, plan.chains.len() as u16, true),
            rules: plan.rules.clone(),
            hang_timeout: u64::MAX / 4,
            start_timeout: u64::MAX / 4,
            first_incarnation: 1,
            state_servers: 0,
            layouts: plan.chains.iter().map(|chain| chain.layout.hash).collect(),
            pools: plan.partitioned_pools(),
            fabric,
        };
        let macs = [([2, 0, 0, 0, 0, 0xb0], 1500), ([2, 0, 0, 0, 0, 0xb1], 1400)];
        let edges = plan.edges(&macs, &vec![None; plan.bfd.len()], || 1);
        let edges = edges.into_iter().map(|(config, ports)| (Edge::new(config), ports)).collect();
        let mut host = Host::new(
            edges,
            Hub::new(
                vec![switch],
                Manager::new(Peer { node: NodeId::MANAGER, incarnation: 1 }, fabric),
            ),
        );
        host.hub.handle_coordinator(coordinator.me);
        let coordinator = Coordinator::new(coordinator, now);
        let pool = MemoryPool::new(BUFFERS);
        let mut whole = WholeBox {
            plan,
            host,
            out: HostOut::default(),
            coordinator,
            runtimes: Vec::new(),
            pool,
            now,
        };
        for _ in 0..4 {
            whole.wait(25);
        }
        assert!(whole.coordinator.is_ready(), "the box starts");
        whole
    }

    /// A frame arrives by a port.
    pub(crate) fn arrives(&mut self, port: u8, frame: &[u8]) {
        if let Some(packet) = self.packet(frame) {
            self.host.handle_port(
                port % 2,
                &mut vec![packet],
                self.now,
                &mut self.out,
                &mut self.pool,
            );
        }
        self.carry();
    }

    /// A runtime sends a frame that its code never made.
    pub(crate) fn forged_by_runtime(&mut self, number: u8, frame: &[u8]) {
        let at = usize::from(number) % self.runtimes.len();
        let from = self.runtimes[at].runtime.me();
        if let Some(packet) = self.packet(frame) {
            self.host.handle_runtime(
                from,
                &mut vec![packet],
                self.now,
                &mut self.out,
                &mut self.pool,
            );
        }
        self.carry();
    }

    /// A frame that nobody sent arrives at a runtime.
    pub(crate) fn forged_for_runtime(&mut self, number: u8, frame: &[u8]) {
        let at = usize::from(number) % self.runtimes.len();
        let packet = self.packet(frame);
        self.runtimes[at].rx.extend(packet);
    }

    /// Time passes.
    pub(crate) fn wait(&mut self, milliseconds: u64) {
        self.now += milliseconds * MILLISECOND;
        self.settle();
    }

    /// Turns until nothing moves, a bounded number of times.
    pub(crate) fn settle(&mut self) {
        for _ in 0..24 {
            self.host.turn(self.now, &mut self.out, &mut self.pool);
            let mut moved = self.carry();
            moved |= self.turn_coordinator();
            for at in 0..self.runtimes.len() {
                let process = &mut self.runtimes[at];
                let mut frames = Vec::new();
                moved |=
                    process.runtime.turn(&mut process.rx, &mut frames, &mut self.pool, self.now);
                let from = process.runtime.me();
                self.host.handle_runtime(
                    from,
                    &mut frames,
                    self.now,
                    &mut self.out,
                    &mut self.pool,
                );
                moved |= self.carry();
            }
            if !moved {
                break;
            }
        }
    }

    /// Ends the box: no function panicked, and every buffer is where it was.
    pub(crate) fn finish(mut self) {
        self.settle();
        for process in &mut self.runtimes {
            assert_eq!(process.runtime.counts().panics, 0, "a function panicked");
            process.rx.drain(..).for_each(|packet| self.pool.put(packet));
            process.runtime.abandon(&mut self.pool);
        }
        self.host.abandon(&mut self.pool);
        assert_eq!(self.pool.free(), BUFFERS, "buffers were lost");
    }

    fn packet(&mut self, frame: &[u8]) -> Option<Packet> {
        let mut packet = self.pool.take()?;
        packet.clear();
        if packet.copy_from(frame) {
            return Some(packet);
        }
        self.pool.put(packet);
        None
    }

    /// Lets the coordinator act, discards its log, and delivers its frames.
    fn turn_coordinator(&mut self) -> bool {
        self.coordinator.handle_records(self.now);
        self.coordinator.handle_timeout(self.now);
        self.coordinator.forget_log();
        let mut frames = Vec::new();
        let pool = &mut self.pool;
        self.coordinator.fabric().poll_transmit(self.now, |frame| {
            let Some(mut packet) = pool.take() else { return false };
            packet.clear();
            if packet.copy_from(frame) {
                frames.push(packet)
            } else {
                pool.put(packet)
            }
            true
        });
        let moved = !frames.is_empty();
        let from = self.coordinator.fabric().me();
        self.host.handle_runtime(from, &mut frames, self.now, &mut self.out, &mut self.pool);
        self.carry() || moved
    }

    fn carry(&mut self) -> bool {
        let mut moved = false;
        for (peer, packet) in self.out.hub.to_runtime.drain(..) {
            match self.runtimes.iter_mut().find(|process| process.runtime.me() == peer) {
                None if peer.node == NodeId::COORDINATOR => {
                    self.coordinator.handle_frame(packet.bytes(), self.now);
                    self.pool.put(packet);
                }
                Some(process) => process.rx.push(packet),
                None => self.pool.put(packet),
            }
            moved = true;
        }
        for (_, released) in self.out.transmit.drain(..) {
            self.pool.put(released.into_inner());
        }
        for order in std::mem::take(&mut self.out.hub.orders) {
            if let HostOrder::Start(peer) = order {
                assert!(peer.node >= NodeId::FIRST_RUNTIME);
                self.start(peer);
                moved = true;
            }
        }
        moved
    }

    fn start(&mut self, peer: Peer) {
        let spec = |chain: &config::ChainPlan| ChainSpec {
            name: chain.name.clone(),
            switch: NodeId::SWITCH,
            chain: chain.bind(),
            protection: chain.protection.build(),
        };
        let specs = self.plan.chains.iter().map(spec).collect();
        let config = RuntimeConfig {
            me: peer,
            flows: 64,
            seed: 1,
            report_interval: 20 * MILLISECOND,
            fabric: FabricConfig::default(),
        };
        self.runtimes.push(Process { runtime: Runtime::new(config, specs), rx: Vec::new() });
        self.host.hub.handle_started(peer);
    }
}
