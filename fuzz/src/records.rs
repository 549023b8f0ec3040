//! Any records from a peer whose frames are in order, as from a runtime that errs or a
//! coordinator of another version. A runtime, a switch and a coordinator count the
//! records that make no sense.

use crate::assembly::CONFIGURATION;
use arbitrary::Arbitrary;
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::coordinator::{ClusterConfig, Coordinator, CoordinatorConfig, HostsConfig};
use holdfast_node::message::{Control, Member, MemberState};
use holdfast_node::rules::MAX_RULES;
use holdfast_node::runtime::{ChainSpec, Runtime, RuntimeConfig};
use holdfast_node::switch::{Switch, SwitchConfig, SwitchLimits};
use holdfast_protection::Peer;
use holdfast_wire::{FlowKey, MemoryPool, NodeId, PacketPool};

const ME: Peer = Peer { node: NodeId::new(16), incarnation: 2 };
const BUFFERS: usize = 128;

#[derive(Debug, Arbitrary)]
struct Step {
    from: u8,
    kind: u8,
    body: Vec<u8>,
}

/// Sends the same records to a switch and to a coordinator, from each other and from
/// runtimes.
fn switch_and_coordinator(steps: &[Step]) {
    let fabric = FabricConfig::default();
    let [switch_peer, coordinator_peer] =
        [NodeId::SWITCH, NodeId::COORDINATOR].map(|node| Peer { node, incarnation: 1 });
    let mut switch = Switch::new(SwitchConfig {
        me: switch_peer,
        number: 0,
        flows: 64,
        limits: SwitchLimits::default(),
        seed: 1,
        tick_interval: 50_000_000,
        timeout: 3_000_000_000,
        fabric,
        logs: vec![1 << 16],
        succeeds: false,
    });
    let config = CoordinatorConfig {
        hosts: HostsConfig::one(),
        names: Vec::new(),
        me: coordinator_peer,
        clusters: ClusterConfig::only(3, 2, true),
        rules: Vec::new(),
        hang_timeout: u64::MAX / 4,
        start_timeout: u64::MAX / 4,
        first_incarnation: 1,
        pools: Vec::new(),
        state_servers: 0,
        layouts: Vec::new(),
        fabric,
    };
    let mut now = 1_000_000_000;
    let mut coordinator = Coordinator::new(config, now);
    coordinator.handle_timeout(now);
    let mut pool = MemoryPool::new(BUFFERS);
    let mut out = Vec::new();
    let mut peers: Vec<Fabric> =
        [NodeId::COORDINATOR, NodeId::SWITCH, NodeId::new(16), NodeId::new(17)]
            .map(|node| Fabric::new(Peer { node, incarnation: 1 }, fabric))
            .into_iter()
            .map(|mut peer| {
                peer.set_peer(switch_peer);
                peer.set_peer(coordinator_peer);
                peer
            })
            .collect();
    for step in steps.iter().take(64) {
        let at = usize::from(step.from) % peers.len();
        for to in [NodeId::SWITCH, NodeId::COORDINATOR] {
            let _ = peers[at].send(to, step.kind, &step.body);
        }
        now += 100_000;
        for peer in &mut peers {
            peer.poll_transmit(now, |frame| {
                // A peer never writes to itself. Each frame goes to both; the node that
                // it is not for refuses it.
                let _ = switch.fabric().handle_frame(frame, now);
                let _ = coordinator.fabric().handle_frame(frame, now);
                true
            });
        }
        switch.handle_records(now, &mut out, &mut pool);
        coordinator.handle_records(now);
        coordinator.forget_log();
        switch.handle_packet(
            FlowKey::default(),
            pool.take().expect("every packet is dropped, held or sent on"),
        );
        switch.forward(now, &mut out, &mut pool);
        out.drain(..).for_each(|(_, packet)| pool.put(packet));
        for fabric in [switch.fabric(), coordinator.fabric()] {
            fabric.poll_transmit(now, |frame| {
                for peer in &mut peers {
                    let _ = peer.handle_frame(frame, now);
                }
                true
            });
        }
        peers.iter_mut().for_each(|peer| peer.inbox.clear());
    }
    assert!(switch.rules().rules().len() <= MAX_RULES);
    switch.abandon(&mut pool);
    assert_eq!(pool.free(), BUFFERS, "buffers were lost");
}

pub(crate) fn run(data: &[u8]) {
    let Some(steps) = crate::structured::<Vec<Step>>(data) else { return };
    switch_and_coordinator(&steps);
    let plan =
        holdfast::config::read("fuzz", CONFIGURATION).unwrap_or_else(|mistake| panic!("{mistake}"));
    let specs = plan
        .chains
        .iter()
        .map(|chain| ChainSpec {
            name: chain.name.clone(),
            switch: NodeId::SWITCH,
            chain: chain.bind(),
            protection: chain.protection.build(),
        })
        .collect();
    let fabric = FabricConfig::default();
    let config = RuntimeConfig { me: ME, flows: 64, seed: 1, report_interval: 1_000_000, fabric };
    let mut runtime = Runtime::new(config, specs);
    let mut pool = MemoryPool::new(BUFFERS);
    let mut peers: Vec<Fabric> =
        [NodeId::COORDINATOR, NodeId::SWITCH, NodeId::new(17), NodeId::new(18)]
            .map(|node| Fabric::new(Peer { node, incarnation: 1 }, fabric))
            .into_iter()
            .map(|mut peer| {
                peer.set_peer(ME);
                peer
            })
            .collect();
    let member = |node, incarnation| Member {
        node,
        incarnation,
        state: MemberState::Running,
        cluster: 0,
        host: 0,
    };
    peers[0].send_control(
        ME.node,
        &Control::View {
            version: 1,
            members: vec![
                member(NodeId::new(16), 2),
                member(NodeId::new(17), 1),
                member(NodeId::new(18), 1),
            ],
        },
    );
    let mut now = 1_000_000_000;
    for step in steps.iter().take(64) {
        let at = usize::from(step.from) % peers.len();
        let _ = peers[at].send(ME.node, step.kind, &step.body);
        now += 100_000;
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for peer in &mut peers {
            peer.poll_transmit(now, |frame| {
                let Some(mut packet) = pool.take() else { return false };
                packet.clear();
                let fits = packet.copy_from(frame);
                assert!(fits, "a fabric frame fits a buffer");
                rx.push(packet);
                true
            });
        }
        runtime.turn(&mut rx, &mut tx, &mut pool, now);
        for packet in tx {
            for peer in &mut peers {
                let _ = peer.handle_frame(packet.bytes(), now);
            }
            pool.put(packet);
        }
        for peer in &mut peers {
            peer.inbox.clear();
        }
        if runtime.is_fenced() {
            break;
        }
    }
    runtime.abandon(&mut pool);
    assert_eq!(runtime.counts().panics, 0);
    assert_eq!(pool.free(), BUFFERS, "buffers were lost");
}
