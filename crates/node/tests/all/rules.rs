//! Service-chain rules and virtual clusters: the longest match, rules on their way to a
//! switch, and whole hubs whose rules change.

use crate::spot::{datagram_from, forwarding};
use holdfast_node::channel::FabricConfig;
use holdfast_node::coordinator::{ClusterConfig, Coordinator, CoordinatorConfig, HostsConfig};
use holdfast_node::hub::{Hub, HubOut};
use holdfast_node::manager::{HostOrder, Manager};
use holdfast_node::message::{Control, Order, Protected, Refusal};
use holdfast_node::rules::{Assembly, MAX_RULES, Rule, RuleSet};
use holdfast_node::runtime::Runtime;
use holdfast_node::switch::{Switch, SwitchConfig, SwitchLimits};
use holdfast_protection::flows::Life;
use holdfast_protection::{Peer, Plan};
use holdfast_wire::selector::Selector;
use holdfast_wire::{DropReason, FlowKey, MemoryPool, NodeId, Packet, PacketPool, ip_bytes};
use proptest::prelude::*;
use std::collections::BTreeMap;

const MILLISECOND: u64 = 1_000_000;

fn rule(selector: &str, chain: u16, cluster: u16) -> Rule {
    Rule { selector: selector.parse().expect("a selector"), chain, cluster }
}

fn key(protocol: u16, source: [u8; 4], destination: [u8; 4], port: u16) -> FlowKey {
    FlowKey {
        source: ip_bytes(source.into()),
        destination: ip_bytes(destination.into()),
        source_port: 4000,
        destination_port: port,
        protocol,
        scope: 0,
    }
}

/// A rule in parts, for a matcher that knows nothing of selectors.
#[derive(Debug, Clone)]
struct Naive {
    protocol: Option<u16>,
    sides: [Option<([u8; 4], u8)>; 2],
    ports: Option<(u16, u16)>,
}

impl Naive {
    fn text(&self) -> String {
        let side = |side: &Option<([u8; 4], u8)>| match side {
            Some(([a, b, c, d], len)) => format!("{a}.{b}.{c}.{d}/{len}"),
            None => "any".to_owned(),
        };
        let protocol = self.protocol.map_or("any".to_owned(), |number| number.to_string());
        let ports = self.ports.map_or(String::new(), |(low, high)| format!(" port {low}-{high}"));
        format!("{protocol} from {} to {}{ports}", side(&self.sides[0]), side(&self.sides[1]))
    }

    fn matches(&self, protocol: u16, addresses: [[u8; 4]; 2], port: u16) -> bool {
        let bits = |address: [u8; 4], len: u8| -> Vec<bool> {
            (0..len).map(|bit| address[usize::from(bit / 8)] >> (7 - bit % 8) & 1 == 1).collect()
        };
        let in_side = |side: &Option<([u8; 4], u8)>, address| {
            side.is_none_or(|(first, len)| bits(first, len) == bits(address, len))
        };
        self.protocol.is_none_or(|number| number == protocol)
            && in_side(&self.sides[0], addresses[0])
            && in_side(&self.sides[1], addresses[1])
            && self.ports.is_none_or(|(low, high)| {
                matches!(protocol, 6 | 17) && (low..=high).contains(&port)
            })
    }

    /// The rule's rank: bits that are fixed, whether there is any side, ports that are
    /// excluded, whether the protocol is fixed.
    fn rank(&self) -> (u32, bool, u64, bool) {
        let len = |side: &Option<([u8; 4], u8)>| side.map_or(0, |(_, len)| u32::from(len));
        let all = if matches!(self.protocol, Some(6 | 17)) { 65_536u64 } else { 65_537 };
        let ports = self.ports.map_or(all, |(low, high)| u64::from(high - low) + 1);
        let has_side = self.sides.iter().any(Option::is_some);
        (
            len(&self.sides[0]) + len(&self.sides[1]),
            has_side,
            u64::MAX - ports * all,
            self.protocol.is_some(),
        )
    }
}

fn naive() -> impl Strategy<Value = Naive> {
    let side = || {
        prop::option::of((0u8..4, prop::sample::select(vec![0u8, 8, 30, 31, 32])).prop_map(
            |(last, len)| {
                let address = u32::from_be_bytes([10, 0, 0, last])
                    & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                (address.to_be_bytes(), len)
            },
        ))
    };
    let protocol = prop::option::of(prop::sample::select(vec![6u16, 17, 47]));
    let ports = prop::option::of((0u16..4, 0u16..3).prop_map(|(low, more)| (low, low + more)));
    (protocol, side(), side(), ports).prop_map(|(protocol, from, to, ports)| Naive {
        protocol,
        sides: [from, to],
        ports: ports.filter(|_| protocol != Some(47)),
    })
}

proptest! {
    /// Rules come in any order, and flows from all around them. The rule that decides
    /// matches, and no other rule that matches is more specific.
    #[test]
    fn the_most_specific_rule_decides_whatever_the_order(
        rules in prop::collection::vec(naive(), 1..12),
        protocol in prop::sample::select(vec![1u16, 6, 17, 47]),
        last in (0u8..5, 0u8..5),
        port in 0u16..6,
    ) {
        let written = rules.iter().enumerate().map(|(at, naive)| rule(&naive.text(), at as u16, 0));
        let set = RuleSet::new(1, written.collect());
        let addresses = [[10, 0, 0, last.0], [10, 0, 0, last.1]];
        let found = set.find(&key(protocol, addresses[0], addresses[1], port), 0).map(|rule| &rules[usize::from(rule.chain)]);
        let matching = rules.iter().filter(|rule| rule.matches(protocol, addresses, port));
        let best = matching.map(Naive::rank).max();
        prop_assert_eq!(found.map(Naive::rank), best, "of {:?}", rules);
        prop_assert!(found.is_none_or(|rule| rule.matches(protocol, addresses, port)));
    }

    /// A set of any size goes through records and comes back unchanged; no message is
    /// longer than a record.
    #[test]
    fn a_set_in_parts_is_the_set(rules in prop::collection::vec(naive(), 0..80), limit in 200usize..2400, version in 1u64..) {
        let set = RuleSet::new(version, rules.iter().map(|naive| rule(&naive.text(), 7, 3)).collect());
        let mut assembly = Assembly::default();
        let messages = set.messages(limit);
        for (at, message) in messages.iter().enumerate() {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            prop_assert!(bytes.len() <= limit, "{} bytes of {limit}", bytes.len());
            let Ok(Control::Rules { version, part, parts, rules }) = Control::decode(&bytes) else { panic!("{message:?}") };
            let whole = assembly.take(version, part, parts, rules).expect("a part in its place");
            prop_assert_eq!(whole.is_some(), at + 1 == messages.len());
            if let Some(whole) = whole {
                prop_assert_eq!((whole.version(), whole.rules()), (set.version(), set.rules()));
            }
        }
    }
}

/// Rules may be for ports of the box: packets with one flow key take the chain of the
/// port by which they came in.
#[test]
fn a_rule_may_be_for_some_ports_only() {
    let set = RuleSet::new(
        1,
        vec![
            rule("any", 0, 0),
            rule("any on #1-2", 1, 0),
            rule("udp on #2", 2, 0),
            rule("from 10.0.0.2", 3, 0),
        ],
    );
    let chain = |protocol, source, ingress| {
        set.find(&key(protocol, source, [192, 0, 2, 1], 53), ingress).map(|rule| rule.chain)
    };
    assert_eq!(
        [0, 1, 2, 3].map(|ingress| chain(17, [10, 0, 0, 9], ingress)),
        [Some(0), Some(1), Some(2), Some(0)]
    );
    assert_eq!(chain(6, [10, 0, 0, 9], 2), Some(1));
    assert_eq!(chain(17, [10, 0, 0, 2], 2), Some(3), "addresses come first");
    // The set goes to the switch in parts.
    let mut assembly = Assembly::default();
    let mut whole = None;
    for message in set.messages(60) {
        let Control::Rules { version, part, parts, rules } = message else { panic!("{message:?}") };
        whole = assembly.take(version, part, parts, rules).expect("a part in its place");
    }
    assert_eq!(whole, Some(set));
}

/// Parts that do not belong together make no set, and a set that begins anew is whole in
/// the end.
#[test]
fn parts_that_do_not_belong_together_make_no_set() {
    let some = || vec![rule("any", 0, 0)];
    let mut assembly = Assembly::default();
    assert!(
        matches!(assembly.take(1, 1, 2, some()), Err(DropReason::Malformed)),
        "it has no beginning"
    );
    assert!(matches!(assembly.take(1, 0, 2, some()), Ok(None)));
    assert!(assembly.take(2, 1, 2, some()).is_err(), "another set's");
    assert!(assembly.take(1, 1, 2, some()).is_err(), "what had come is forgotten");
    assert!(assembly.take(0, 0, 1, some()).is_err(), "0 is no version");
    assert!(assembly.take(1, 0, 0, some()).is_err(), "a set has a part");
    assert!(matches!(assembly.take(1, 0, 2, some()), Ok(None)));
    assert!(matches!(assembly.take(1, 0, 2, some()), Ok(None)), "it begins anew");
    let whole = assembly.take(1, 1, 2, some()).expect("in its place").expect("the last");
    assert_eq!(whole.rules().len(), 2);
    let late = vec![rule("from 10.0.0.0/8", 1, 0), rule("from 10.0.0.1", 2, 0)];
    assert!(matches!(assembly.take(2, 0, 2, some()), Ok(None)));
    let whole = assembly.take(2, 1, 2, late).expect("in its place").expect("the last");
    assert_eq!(
        whole.rules().iter().map(|rule| rule.chain).collect::<Vec<_>>(),
        [2, 1, 0],
        "rules out of order are put in order"
    );
    let too_many = (0..=MAX_RULES).map(|_| rule("any", 0, 0)).collect();
    assert!(assembly.take(3, 0, 1, too_many).is_err());
}

/// A hub with a coordinator and real runtimes, all chains forwarding under `nfvactor`.
/// Frames are delivered at once.
struct World {
    hub: Hub,
    coordinator: Coordinator,
    out: HubOut,
    pool: MemoryPool,
    runtimes: BTreeMap<Peer, (Runtime, Vec<Packet>)>,
    chains: u16,
    now: u64,
    released: usize,
    /// Records of the coordinator's log.
    written: usize,
}

impl World {
    fn new(clusters: Vec<ClusterConfig>, rules: Vec<Rule>) -> World {
        let chains = clusters.iter().map(|cluster| cluster.chains.len() as u16).sum();
        let mut probe = World::runtime(Peer { node: NodeId::new(99), incarnation: 1 }, chains);
        let mut pools = Vec::new();
        probe.visit_pools(|id, pool| pools.push((id, pool.size())));
        let layouts = (0..usize::from(chains))
            .filter_map(|at| probe.flows(at).map(|flows| flows.layout()))
            .collect();
        let coordinator = CoordinatorConfig {
            me: Peer { node: NodeId::COORDINATOR, incarnation: 1 },
            hosts: HostsConfig::one(),
            names: Vec::new(),
            clusters,
            rules,
            hang_timeout: 1000 * MILLISECOND,
            start_timeout: 1000 * MILLISECOND,
            first_incarnation: 1,
            pools,
            state_servers: 0,
            layouts,
            fabric: FabricConfig::default(),
        };
        let now = 1_000_000 * MILLISECOND;
        let manager =
            Manager::new(Peer { node: NodeId::MANAGER, incarnation: 1 }, FabricConfig::default());
        let mut hub = Hub::new(vec![World::switch(1)], manager);
        hub.handle_coordinator(coordinator.me);
        let coordinator = Coordinator::new(coordinator, now);
        let pool = MemoryPool::new(1024);
        let mut world = World {
            hub,
            coordinator,
            out: HubOut::default(),
            pool,
            runtimes: BTreeMap::new(),
            chains,
            now,
            released: 0,
            written: 0,
        };
        world.pass(200);
        assert!(world.coordinator.is_ready());
        world
    }

    fn switch(incarnation: u32) -> Switch {
        Switch::new(SwitchConfig {
            me: Peer { node: NodeId::SWITCH, incarnation },
            number: 0,
            flows: 256,
            limits: SwitchLimits::default(),
            seed: 1,
            tick_interval: 50 * MILLISECOND,
            timeout: 3000 * MILLISECOND,
            fabric: FabricConfig::default(),
            logs: Vec::new(),
            succeeds: false,
        })
    }

    fn runtime(me: Peer, chains: u16) -> Runtime {
        forwarding(
            me,
            20 * MILLISECOND,
            Plan::NFVACTOR_AT_SOURCE,
            (0..chains).map(|_| NodeId::SWITCH),
        )
    }

    fn pass(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds / 5 {
            self.now += 5 * MILLISECOND;
            self.settle();
        }
    }

    fn settle(&mut self) {
        for _ in 0..16 {
            self.hub.turn(self.now, &mut self.out, &mut self.pool);
            self.carry();
            self.turn_coordinator();
            for peer in self.runtimes.keys().copied().collect::<Vec<_>>() {
                let Some((runtime, rx)) = self.runtimes.get_mut(&peer) else { continue };
                let mut frames = Vec::new();
                runtime.turn(rx, &mut frames, &mut self.pool, self.now);
                self.hub.handle_frames(peer, &mut frames, self.now, &mut self.out, &mut self.pool);
                self.carry();
            }
        }
    }

    fn turn_coordinator(&mut self) {
        self.coordinator.handle_records(self.now);
        self.coordinator.handle_timeout(self.now);
        self.written += self.coordinator.poll_log().len();
        self.coordinator.logged();
        let (mut frames, pool) = (Vec::new(), &mut self.pool);
        self.coordinator.fabric().poll_transmit(self.now, |frame| {
            let Some(mut packet) = pool.take() else { return false };
            packet.clear();
            assert!(packet.copy_from(frame));
            frames.push(packet);
            true
        });
        let me = self.coordinator.fabric().me();
        self.hub.handle_frames(me, &mut frames, self.now, &mut self.out, &mut self.pool);
        self.carry();
    }

    fn carry(&mut self) {
        for (peer, packet) in self.out.to_runtime.drain(..) {
            match self.runtimes.get_mut(&peer) {
                None if peer.node == NodeId::COORDINATOR => {
                    self.coordinator.handle_frame(packet.bytes(), self.now);
                    self.pool.put(packet);
                }
                Some((_, rx)) => rx.push(packet),
                None => self.pool.put(packet),
            }
        }
        for (_, released) in self.out.released.drain(..) {
            self.released += 1;
            self.pool.put(released.into_inner());
        }
        for order in std::mem::take(&mut self.out.orders) {
            match order {
                HostOrder::Start(peer) => {
                    self.runtimes.insert(peer, (World::runtime(peer, self.chains), Vec::new()));
                    self.hub.handle_started(peer);
                }
                HostOrder::Stop(peer) => self.end(peer),
                HostOrder::Fence(_) | HostOrder::Serve(..) | HostOrder::Retire(_) => {}
            }
        }
    }

    /// As by `kill -9`.
    fn kill(&mut self, peer: Peer) {
        self.end(peer);
        self.settle();
    }

    fn end(&mut self, peer: Peer) {
        let (mut runtime, rx) = self.runtimes.remove(&peer).expect("it is there");
        runtime.abandon(&mut self.pool);
        rx.into_iter().for_each(|packet| self.pool.put(packet));
        self.hub.handle_ended(peer);
    }

    /// Sends a UDP datagram of a flow, from this host and port.
    fn send(&mut self, host: u8, port: u16) {
        let mut packet = self.pool.take().expect("the pool is large enough");
        assert!(packet.copy_from(&datagram_from(host, port, 0)) && packet.parse().is_ok());
        let key = FlowKey::of(&packet).expect("a datagram has a key");
        self.hub.handle_packet(0, key, packet);
        self.settle();
    }

    /// The flow from this source host and port: its chain in the switch, and the chain,
    /// role and node of every actor and copy of it.
    fn flow(&self, flow: (u8, u16)) -> (Option<u16>, Vec<(u16, Life, u16)>) {
        let is_it = |key: &FlowKey| (key.source[15], key.source_port) == flow;
        let routed =
            self.hub.switch().routes().find(|route| is_it(&route.key)).map(|route| route.chain);
        let mut held = Vec::new();
        for (peer, (runtime, _)) in &self.runtimes {
            for chain in 0..self.chains {
                let flows = runtime.flows(chain.into()).expect("every runtime builds every chain");
                let here = flows.iter().filter(|(_, header)| is_it(&header.key));
                held.extend(here.map(|(_, header)| (chain, header.life(), peer.node.get())));
            }
        }
        (routed, held)
    }

    /// Checks that the flow, with all its copies, is in this chain, at these runtimes.
    fn assert_in(&self, flow: (u8, u16), chain: u16, nodes: &[u16]) {
        let (routed, held) = self.flow(flow);
        assert_eq!(routed, Some(chain), "{flow:?}");
        assert_eq!(
            held.iter().filter(|(_, held_as, _)| *held_as == Life::Owned).count(),
            1,
            "{flow:?}: {held:?}"
        );
        assert!(held.len() > 1, "{flow:?} has no replica: {held:?}");
        assert!(
            held.iter().all(|(at, _, node)| *at == chain && nodes.contains(node)),
            "{flow:?}: {held:?}"
        );
    }
}

/// Flows are under way when the rules change. Existing flows keep their chain, even when
/// their runtime dies, and flows that begin later take the new one.
#[test]
fn flows_keep_their_chain_and_new_ones_take_the_new_rule() {
    let mut world = World::new(ClusterConfig::only(3, 2, true), vec![rule("any", 0, 0)]);
    (1..=6).for_each(|port| world.send(2, port));
    world.pass(100);
    assert_eq!(
        world.coordinator.set_rules(vec![rule("from 10.0.0.2", 1, 0), rule("any", 0, 0)]),
        2
    );
    world.settle();
    assert_eq!((world.coordinator.rules_in_force(), world.hub.switch().rules().version()), (2, 2));
    (1..=12).for_each(|port| world.send(2, port));
    world.send(3, 1);
    world.pass(100);
    let check = |world: &World| {
        (1..=6).for_each(|port| world.assert_in((2, port), 0, &[16, 17, 18]));
        (7..=12).for_each(|port| world.assert_in((2, port), 1, &[16, 17, 18]));
        world.assert_in((3, 1), 0, &[16, 17, 18]);
    };
    check(&world);
    for node in 16..19 {
        let victim = world
            .runtimes
            .keys()
            .copied()
            .find(|peer| peer.node == NodeId::new(node))
            .expect("it runs");
        world.kill(victim);
        (1..=12).for_each(|port| world.send(2, port));
        world.pass(400);
        assert_eq!(world.coordinator.protected(), Protected::Yes);
        (1..=12).for_each(|port| world.send(2, port));
        world.pass(100);
        check(&world);
    }
    assert_eq!(world.hub.switch().drops().total(), 0);
}

/// More rules come than a record holds, and take effect together. After that no rule
/// matches, and new flows are dropped for want of a rule.
#[test]
fn many_rules_come_in_parts_and_a_flow_without_a_rule_is_dropped() {
    let mut world = World::new(ClusterConfig::only(2, 2, true), vec![rule("any", 0, 0)]);
    let mut rules: Vec<Rule> = (0..MAX_RULES as u32 - 2)
        .map(|number| {
            rule(
                &format!(
                    "tcp from 10.{}.{}.0/24 to any port 80,443",
                    1 + number / 256,
                    number % 256
                ),
                0,
                0,
            )
        })
        .collect();
    rules.push(rule("any", 0, 0));
    rules.push(rule("udp from 10.0.0.7", 1, 0));
    assert!(RuleSet::new(2, rules.clone()).messages(2300).len() > 50);
    world.coordinator.set_rules(rules);
    world.pass(50);
    assert_eq!(
        (world.coordinator.rules_in_force(), world.hub.switch().rules().rules().len()),
        (2, MAX_RULES)
    );
    world.send(7, 1);
    world.pass(50);
    world.assert_in((7, 1), 1, &[16, 17]);
    world.coordinator.set_rules(vec![rule("udp from 10.0.0.8", 0, 0)]);
    world.settle();
    let before = world.released;
    world.send(7, 1);
    world.send(7, 2);
    world.pass(50);
    assert_eq!(world.released, before + 1, "the flow that is there goes on");
    assert_eq!(world.hub.switch().drops().get(DropReason::NoRule), 1);
}

/// More rules than a record holds come to a hub, and a burst of packets is forwarded
/// between any two turns. No turn reads more than one record. While the first set is
/// freed and the second read, the first decides about new flows.
#[test]
fn a_turn_reads_one_record_of_rules() {
    let mut world = World::new(ClusterConfig::only(2, 2, true), vec![rule("any", 0, 0)]);
    let many = |chain: u16| {
        (0..MAX_RULES as u32)
            .map(move |at| rule(&format!("from 10.0.{}.{}", at / 256, at % 256), chain, 0))
    };
    let records = RuleSet::new(2, many(0).collect()).messages(2300).len();
    for (version, chain) in [(2, 0), (3, 1)] {
        let began = world.hub.switch().rules().version();
        world.coordinator.set_rules(many(chain).collect());
        let (mut turns, mut read) = (0, 0);
        while world.hub.switch().rules().version() != version {
            // All frames that the coordinator has to send have arrived.
            world.turn_coordinator();
            if world.coordinator.fabric().is_settled(NodeId::SWITCH) {
                read += 1;
            }
            assert_eq!(world.hub.switch().rules().version(), began, "in part");
            assert!(
                world.hub.poll_timeout() <= world.now || read == 0,
                "the next turn is due at once"
            );
            world.hub.turn(world.now, &mut world.out, &mut world.pool);
            world.carry();
            turns += 1;
            assert!(turns < 10 * records, "it ends");
        }
        assert!(turns >= records, "{turns} turns for {records} records");
        world.send(7, chain);
        world.pass(50);
        world.assert_in((7, chain), chain, &[16, 17]);
    }
    assert_eq!(world.hub.switch().drops().total(), 0);
}

/// A switch starts again. The switch asks for the rules, packets wait meanwhile, and it
/// gets the present rules, not the initial ones.
#[test]
fn a_switch_that_starts_again_gets_the_rules_again() {
    let mut world = World::new(ClusterConfig::only(2, 2, true), vec![rule("any", 0, 0)]);
    world.coordinator.set_rules(vec![rule("any", 1, 0)]);
    world.settle();
    *world.hub.switch_mut() = World::switch(2);
    world.hub.switch_mut().fabric().set_peer(Peer { node: NodeId::COORDINATOR, incarnation: 1 });
    // The packet is there before the first rules are, and is not dropped for want of one.
    // All else that a switch needs comes with the view.
    let mut packet = world.pool.take().expect("the pool is large enough");
    packet.clear();
    world.hub.handle_packet(0, key(17, [10, 0, 0, 2], [192, 0, 2, 1], 53), packet);
    world.hub.forward(world.now, &mut world.out, &mut world.pool);
    assert_eq!((world.hub.switch().held(), world.hub.switch().drops().total()), (1, 0));
    assert_eq!(world.hub.switch().rules().version(), 0);
    world.settle();
    assert_eq!((world.hub.switch().rules().version(), world.hub.switch().held()), (2, 0));
    assert_eq!(world.hub.switch().rules().rules(), [rule("any", 1, 0)]);
    assert_eq!(world.coordinator.rules_in_force(), 2);
}

/// A coordinator starts again without its memory. The switch knows newer rules, but the
/// coordinator's rules count all the same.
#[test]
fn a_coordinator_that_forgot_is_still_the_one_that_says() {
    let mut world = World::new(ClusterConfig::only(2, 2, true), vec![rule("any", 0, 0)]);
    for chain in [1, 0, 1] {
        world.coordinator.set_rules(vec![rule("any", chain, 0)]);
    }
    world.settle();
    assert_eq!(world.hub.switch().rules().version(), 4);
    let config = CoordinatorConfig {
        me: Peer { node: NodeId::COORDINATOR, incarnation: 2 },
        hosts: HostsConfig::one(),
        names: Vec::new(),
        clusters: ClusterConfig::only(2, 2, true),
        rules: vec![rule("udp", 0, 0)],
        hang_timeout: 1000 * MILLISECOND,
        start_timeout: 1000 * MILLISECOND,
        first_incarnation: 50,
        pools: Vec::new(),
        state_servers: 0,
        layouts: Vec::new(),
        fabric: FabricConfig::default(),
    };
    world.coordinator = Coordinator::new(config, world.now);
    let me = world.coordinator.fabric().me();
    world.hub.handle_coordinator(me);
    world.settle();
    assert_eq!(world.hub.switch().rules().rules(), [rule("udp", 0, 0)]);
    assert!(world.hub.switch().rules().version() > 4);
    assert_eq!(world.coordinator.rules_in_force(), world.hub.switch().rules().version());
}

/// Two tenants have runtimes of their own. Flows, replicas, recoveries and restarts of
/// one never touch the other's runtimes, whichever runtime dies.
#[test]
fn virtual_clusters_never_mix_also_when_runtimes_die() {
    let cluster = |chain, runtimes| ClusterConfig {
        runtimes,
        spare: 0,
        scaling: None,
        chains: vec![chain],
        promises: true,
    };
    let mut world = World::new(
        vec![cluster(0, 2), cluster(1, 3)],
        vec![rule("from 10.0.0.2", 0, 0), rule("from 10.0.0.3", 1, 1)],
    );
    let send_all = |world: &mut World| {
        (1..=9).for_each(|port| world.send(2, port));
        (1..=9).for_each(|port| world.send(3, port));
    };
    let check = |world: &World| {
        for port in 1..=9 {
            world.assert_in((2, port), 0, &[16, 17]);
            world.assert_in((3, port), 1, &[18, 19, 20]);
        }
    };
    send_all(&mut world);
    world.pass(100);
    check(&world);
    for node in [16, 18, 17, 20] {
        let victim = world
            .runtimes
            .keys()
            .copied()
            .find(|peer| peer.node == NodeId::new(node))
            .expect("it runs");
        world.kill(victim);
        send_all(&mut world);
        world.pass(400);
        let there: Vec<(u16, u16)> = world
            .coordinator
            .status()
            .map(|status| (status.member.node.get(), status.member.cluster))
            .collect();
        assert_eq!(there, [(16, 0), (17, 0), (18, 1), (19, 1), (20, 1)]);
        assert_eq!(world.coordinator.protected(), Protected::Yes);
        send_all(&mut world);
        world.pass(100);
        check(&world);
    }
    assert_eq!(world.hub.switch().drops().total(), 0);
}

/// A tenant's flows are to move. An order to move them to the other tenant's runtime is
/// refused, and a drain leaves them inside. The last runtimes that could hold a tenant's
/// flows are not drained, however many the other tenant has.
#[test]
fn flows_move_inside_their_cluster_only() {
    let cluster = |chain, runtimes| ClusterConfig {
        runtimes,
        spare: 0,
        scaling: None,
        chains: vec![chain],
        promises: true,
    };
    let mut world = World::new(
        vec![cluster(0, 1), cluster(1, 3)],
        vec![rule("from 10.0.0.2", 0, 0), rule("from 10.0.0.3", 1, 1)],
    );
    (1..=9).for_each(|port| world.send(3, port));
    world.pass(100);
    let now = world.now;
    let order = |from, to| Order::Move { from, to, limit: 9, selector: "any".to_owned() };
    assert_eq!(
        world.coordinator.order(&order(NodeId::new(17), Some(NodeId::new(16))), now),
        Err(Refusal::OtherCluster(NodeId::new(16)))
    );
    assert_eq!(
        world.coordinator.order(&order(NodeId::new(16), None), now),
        Err(Refusal::NobodyElse)
    );
    assert_eq!(
        world.coordinator.order(&Order::Drain { node: NodeId::new(16), force: true }, now),
        Err(Refusal::NobodyElse)
    );
    assert_eq!(
        world.coordinator.order(&Order::Drain { node: NodeId::new(17), force: true }, now),
        Ok(0)
    );
    let written = world.written;
    world.pass(2000);
    // The log says that the runtime leaves, is asked, is rid of its flows, and has ended.
    // The runtime is not asked again before it has reported. Records of the result come
    // on top.
    let written = world.written - written;
    assert!((4..20).contains(&written), "{written} records for a drain");
    assert!(world.coordinator.drains()[0].ended_at.is_some(), "{:?}", world.coordinator.drains());
    (1..=9).for_each(|port| world.assert_in((3, port), 1, &[18, 19]));
    assert!(world.runtimes.keys().all(|peer| peer.node != NodeId::new(17)));
}

/// All runtimes of a tenant are dead. Its new flows are dropped although the other tenant
/// has runtimes, and nothing is called protected.
#[test]
fn a_cluster_without_runtimes_borrows_none() {
    let cluster = |chain| ClusterConfig {
        runtimes: 2,
        spare: 0,
        scaling: None,
        chains: vec![chain],
        promises: true,
    };
    let mut world = World::new(
        vec![cluster(0), cluster(1)],
        vec![rule("from 10.0.0.2", 0, 0), rule("any", 1, 1)],
    );
    for node in [16, 17] {
        let victim = world
            .runtimes
            .keys()
            .copied()
            .find(|peer| peer.node == NodeId::new(node))
            .expect("it runs");
        let (mut runtime, _) = world.runtimes.remove(&victim).expect("it is there");
        runtime.abandon(&mut world.pool);
        world.hub.handle_ended(victim);
    }
    // The coordinator hears of it, and its view goes out; the new processes have not
    // spoken yet.
    for _ in 0..2 {
        world.hub.turn(world.now, &mut world.out, &mut world.pool);
        world.carry();
        world.turn_coordinator();
    }
    assert_eq!(world.coordinator.protected(), Protected::No);
    let lonely: Selector = "from 10.0.0.2".parse().expect("a selector");
    let mut packet = world.pool.take().expect("the pool is large enough");
    packet.clear();
    let key = key(17, [10, 0, 0, 2], [192, 0, 2, 1], 53);
    assert!(lonely.matches(&key, 0));
    world.hub.handle_packet(0, key, packet);
    world.hub.forward(world.now, &mut world.out, &mut world.pool);
    assert_eq!(world.hub.switch().drops().get(DropReason::NoRuntime), 1);
}
