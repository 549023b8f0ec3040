//! A coordinator that dies and is restored from its log, at any record: it has forgotten
//! nothing that was seen of it.

use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::coordinator::{
    ClusterConfig, Coordinator, CoordinatorConfig, HostsConfig, LogError, LogRecord, Misfit,
};
use holdfast_node::message::{
    Control, MemberState, Notice, Order, Ordered, PoolId, Report, kind, numbered,
};
use holdfast_node::rules::Rule;
use holdfast_protection::Peer;
use holdfast_wire::NodeId;
use holdfast_wire::selector::Selector;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const POOL: PoolId = PoolId { chain: 0, function: 0, field: 0 };
const MILLISECOND: u64 = 1_000_000;
const BLOCKS: u32 = 12;

pub(crate) fn config(incarnation: u32) -> CoordinatorConfig {
    CoordinatorConfig {
        me: Peer { node: NodeId::COORDINATOR, incarnation },
        hosts: HostsConfig::one(),
        names: Vec::new(),
        clusters: ClusterConfig::only(3, 1, true),
        rules: vec![],
        hang_timeout: 1000 * MILLISECOND,
        start_timeout: 1000 * MILLISECOND,
        first_incarnation: 1,
        pools: vec![(POOL, BLOCKS * 256)],
        state_servers: 0,
        layouts: vec![],
        fabric: FabricConfig::default(),
    }
}

/// A runtime that handles its blocks, and nothing else.
struct Runtime {
    peer: Peer,
    fabric: Fabric,
    requests: Ordered,
    handled: u64,
    blocks: BTreeSet<u32>,
    /// The dead runtimes whose flows it has been asked to recover.
    recovered: BTreeSet<Peer>,
    members: Vec<Peer>,
    view: u64,
    /// Requests to move its flows.
    moves: Vec<u32>,
}

impl Runtime {
    fn act(&mut self, message: Control, granted: &mut Vec<(Peer, u32)>) {
        match message {
            Control::Grant { blocks, .. } => {
                for (block, _) in blocks {
                    granted.push((self.peer, block));
                    self.blocks.insert(block);
                }
            }
            Control::Recover { node, incarnation } => {
                assert!(
                    self.recovered.insert(Peer { node, incarnation }),
                    "asked twice to recover {node}.{incarnation}"
                );
                self.requests.push(Control::Recovered { node, incarnation, flows: 1, broken: 0 });
            }
            Control::SpareBlocks { pool } => {
                let spare: Vec<u32> = self.blocks.iter().copied().skip(1).collect();
                spare.iter().for_each(|block| {
                    self.blocks.remove(block);
                });
                self.requests.push(Control::Spared { pool, blocks: spare, last: true });
            }
            Control::Account { handled } => {
                assert!(
                    self.requests.resume(handled),
                    "the coordinator has forgotten what it had promised to remember"
                );
                self.fabric.send_control(NodeId::COORDINATOR, &Control::Hello { layouts: vec![] });
                let blocks = self.blocks.iter().copied().collect();
                self.fabric
                    .send_control(NodeId::COORDINATOR, &Control::Holds { pool: POOL, blocks });
                self.fabric.send_control(
                    NodeId::COORDINATOR,
                    &Control::Accounted { handled: self.handled },
                );
            }
            Control::Settled { handled } => self.requests.settle(handled),
            Control::Migrate { request, .. } => self.moves.push(request),
            Control::View { version, members } => {
                self.view = version;
                let running = members.iter().filter(|member| member.state == MemberState::Running);
                self.members = running.map(|member| member.peer()).collect();
            }
            _ => {}
        }
    }

    fn turn(&mut self, granted: &mut Vec<(Peer, u32)>) {
        let inbox = core::mem::take(&mut self.fabric.inbox);
        for (record, body) in inbox.records() {
            if record.kind == kind::NUMBERED {
                let (number, message) = numbered(body).expect("it is well-formed");
                if number > self.handled {
                    assert_eq!(number, self.handled + 1, "an order is missing");
                    self.handled = number;
                    self.act(message, granted);
                }
                self.fabric
                    .send_control(NodeId::COORDINATOR, &Control::Settled { handled: self.handled });
            } else {
                self.act(Control::decode(body).expect("it is well-formed"), granted);
            }
        }
        self.requests.send(NodeId::COORDINATOR, &mut self.fabric);
    }
}

/// A coordinator with a disk, and a host that does as it is asked.
struct Host {
    now: u64,
    incarnation: u32,
    coordinator: Option<Coordinator>,
    disk: Vec<LogRecord>,
    manager: Fabric,
    runtimes: Vec<Runtime>,
    ended: Vec<Peer>,
    started: BTreeSet<u32>,
    /// The owner of each block, as far as runtimes were told.
    owners: BTreeMap<u32, Peer>,
    /// By dead runtime, the runtimes that may have replicas of its flows: they knew it as
    /// running.
    heirs: BTreeMap<Peer, Vec<Peer>>,
    reports: u64,
}

impl Host {
    fn new() -> Host {
        let manager =
            Fabric::new(Peer { node: NodeId::MANAGER, incarnation: 1 }, FabricConfig::default());
        Host {
            now: 1,
            incarnation: 1,
            coordinator: Some(Coordinator::new(config(1), 1)),
            disk: Vec::new(),
            manager,
            runtimes: Vec::new(),
            ended: Vec::new(),
            started: BTreeSet::new(),
            owners: BTreeMap::new(),
            heirs: BTreeMap::new(),
            reports: 0,
        }
    }

    /// A turn of the coordinator. If it is to die, so many of its records are kept, and
    /// nothing leaves.
    fn turn_coordinator(&mut self, dies_after: Option<usize>) {
        let Some(coordinator) = &mut self.coordinator else { return };
        coordinator.handle_records(self.now);
        coordinator.handle_timeout(self.now);
        let mut records = coordinator.poll_log();
        if let Some(kept) = dies_after {
            records.truncate(kept);
        }
        for record in records {
            if record.replaces {
                self.disk.clear();
            }
            self.disk.push(record);
        }
        if dies_after.is_some() {
            self.coordinator = None;
            return;
        }
        coordinator.logged();
        let mut frames = Vec::new();
        coordinator.fabric().poll_transmit(self.now, |frame| {
            frames.push(frame.to_vec());
            true
        });
        for frame in frames {
            let _ = self.manager.handle_frame(&frame, self.now);
            for runtime in &mut self.runtimes {
                let _ = runtime.fabric.handle_frame(&frame, self.now);
            }
        }
    }

    fn begin_again(&mut self) {
        if self.coordinator.is_some() {
            return;
        }
        self.incarnation += 1;
        let bytes = self.disk.iter().map(|record| record.bytes.as_slice());
        self.coordinator = Some(match self.disk.is_empty() {
            true => Coordinator::new(config(self.incarnation), self.now),
            false => Coordinator::restore(config(self.incarnation), self.now, bytes)
                .expect("its own log can be read"),
        });
        self.manager.set_peer(Peer { node: NodeId::COORDINATOR, incarnation: self.incarnation });
    }

    /// The coordinator dies after its decisions are logged, and before any message
    /// leaves.
    fn die_after_writing(&mut self) {
        self.turn_coordinator(Some(usize::MAX));
        self.begin_again();
    }

    fn member(&self, node: NodeId) -> (MemberState, bool) {
        let mut status = self.coordinator.as_ref().into_iter().flat_map(Coordinator::status);
        let found = status.find(|status| status.member.node == node).expect("it has a place");
        (found.member.state, found.is_drained)
    }

    fn turn_manager(&mut self) {
        let asked: Vec<Control> = self
            .manager
            .inbox
            .records()
            .filter_map(|(_, body)| Control::decode(body).ok())
            .collect();
        self.manager.inbox.clear();
        for message in asked {
            match message {
                Control::Start { node, incarnation } => {
                    assert!(
                        self.started.insert(incarnation),
                        "incarnation {incarnation} was used twice"
                    );
                    let peer = Peer { node, incarnation };
                    let mut fabric = Fabric::new(peer, FabricConfig::default());
                    fabric.send_control(NodeId::COORDINATOR, &Control::Hello { layouts: vec![] });
                    self.runtimes.push(Runtime {
                        peer,
                        fabric,
                        requests: Ordered::default(),
                        handled: 0,
                        blocks: BTreeSet::new(),
                        recovered: BTreeSet::new(),
                        members: Vec::new(),
                        view: 0,
                        moves: Vec::new(),
                    });
                }
                Control::Fence { node, incarnation }
                | Control::Silent { node, incarnation }
                | Control::Stop { node, incarnation } => self.end(Peer { node, incarnation }),
                Control::Account { .. } => {
                    for Peer { node, incarnation } in self.ended.clone() {
                        self.manager.send_control(
                            NodeId::COORDINATOR,
                            &Control::Ended {
                                node,
                                incarnation,
                                flows: Some(0),
                                last: None,
                                notice: Notice::default(),
                            },
                        );
                    }
                    let peers = self.runtimes.iter().map(|runtime| runtime.peer).collect();
                    self.manager.send_control(NodeId::COORDINATOR, &Control::Present { peers });
                }
                _ => {}
            }
        }
    }

    /// True if all runtimes run, and every failure is over.
    fn is_well(&self) -> bool {
        let is_over = |coordinator: &Coordinator| {
            coordinator.failovers().all(|failover| failover.recovered_at.is_some())
        };
        self.runtimes.len() == 3 && self.coordinator.as_ref().is_some_and(is_over)
    }

    fn end(&mut self, peer: Peer) {
        self.end_by(peer, Notice::default());
    }

    fn end_by(&mut self, peer: Peer, notice: Notice) {
        self.runtimes.retain(|runtime| runtime.peer != peer);
        self.ended.push(peer);
        let heirs = self
            .runtimes
            .iter()
            .filter(|runtime| runtime.members.contains(&peer))
            .map(|runtime| runtime.peer)
            .collect();
        self.heirs.insert(peer, heirs);
        let Peer { node, incarnation } = peer;
        self.manager.send_control(
            NodeId::COORDINATOR,
            &Control::Ended { node, incarnation, flows: Some(0), last: None, notice },
        );
    }

    /// Every process takes one turn; its messages arrive.
    fn turn(&mut self) {
        self.now += 10 * MILLISECOND;
        self.turn_coordinator(None);
        self.turn_manager();
        self.turn_runtimes();
    }

    fn turn_runtimes(&mut self) {
        let mut granted = Vec::new();
        for runtime in &mut self.runtimes {
            runtime.turn(&mut granted);
        }
        for (to, block) in granted {
            let has = |runtime: &&Runtime| runtime.peer != to && runtime.blocks.contains(&block);
            assert!(
                !self.runtimes.iter().any(|runtime| has(&runtime)),
                "block {block} was granted to {to:?} and is another's"
            );
            let Some(before) = self.owners.insert(block, to).filter(|before| *before != to) else {
                continue;
            };
            let Some(heirs) = self.heirs.get(&before) else { continue };
            // The dead runtime's block rests until every runtime that was there has
            // reported.
            for heir in self.runtimes.iter().filter(|runtime| heirs.contains(&runtime.peer)) {
                assert!(
                    heir.recovered.contains(&before),
                    "block {block} is granted before {:?} has recovered",
                    heir.peer
                );
            }
        }
        self.owners.retain(|block, owner| {
            // A living runtime may have given the block back.
            self.runtimes
                .iter()
                .all(|runtime| runtime.peer != *owner || runtime.blocks.contains(block))
        });
        let reports: Vec<usize> = (0..self.runtimes.len()).collect();
        for at in reports {
            self.reports += 1;
            let runtime = &mut self.runtimes[at];
            let report = Report { packets: self.reports, view: runtime.view, ..Report::default() };
            runtime.fabric.send_control(NodeId::COORDINATOR, &Control::Report(report));
        }
        let Some(coordinator) = &mut self.coordinator else { return };
        let now = self.now;
        let fabrics =
            self.runtimes.iter_mut().map(|runtime| &mut runtime.fabric).chain([&mut self.manager]);
        for fabric in fabrics {
            fabric.poll_transmit(now, |frame| {
                coordinator.handle_frame(frame, now);
                true
            });
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Turn,
    Kill(usize),
    Want(usize),
    Return(usize),
    Adopt(usize, u32),
    Die(usize),
    DieAtOnce,
    BeginAgain,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => Just(Event::Turn),
        2 => (0usize..3).prop_map(Event::Kill),
        4 => (0usize..3).prop_map(Event::Want),
        1 => (0usize..3).prop_map(Event::Return),
        1 => (0usize..3, 0..BLOCKS * 256).prop_map(|(at, number)| Event::Adopt(at, number)),
        2 => (0usize..6).prop_map(Event::Die),
        1 => Just(Event::DieAtOnce),
        3 => Just(Event::BeginAgain),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Runtimes come and go and want blocks, while the coordinator dies between any two
    /// of its records. No incarnation is used twice, no block is granted while another
    /// runtime has it, and no order is lost or carried out twice. Once the coordinator
    /// may live, all runtimes run and every failure is over.
    #[test]
    fn what_was_seen_of_a_coordinator_is_never_taken_back(events in prop::collection::vec(event(), 1..120)) {
        let mut host = Host::new();
        for event in events {
            let count = host.runtimes.len();
            match event {
                Event::Turn => host.turn(),
                Event::Kill(at) if count > 0 => host.end(host.runtimes[at % count].peer),
                Event::Want(at) if count > 0 => host.runtimes[at % count].requests.push(Control::WantBlock { pool: POOL }),
                Event::Return(at) if count > 0 => {
                    host.runtimes[at % count].requests.push(Control::Returned { pool: POOL, numbers: vec![3] });
                }
                Event::Adopt(at, number) if count > 0 => {
                    host.runtimes[at % count].requests.push(Control::Adopted { pool: POOL, numbers: vec![(number, 1)] });
                }
                Event::Die(kept) => {
                    host.now += MILLISECOND;
                    host.turn_coordinator(Some(kept));
                }
                Event::DieAtOnce => host.coordinator = None,
                Event::BeginAgain => host.begin_again(),
                _ => {}
            }
        }
        host.begin_again();
        // Runtimes that died often are given time.
        let mut well_for = 0;
        for _ in 0..3000 {
            host.turn();
            well_for = if host.is_well() { well_for + 1 } else { 0 };
            if well_for > 20 {
                break;
            }
        }
        let coordinator = host.coordinator.as_ref().expect("it lives");
        prop_assert_eq!(host.runtimes.len(), 3);
        prop_assert!(coordinator.failovers().all(|failover| failover.recovered_at.is_some()));
        let account = coordinator.ledgers()[0].account();
        prop_assert_eq!(account.quarantined, 0);
        let held: usize = host.runtimes.iter().map(|runtime| runtime.blocks.len()).sum();
        prop_assert_eq!(account.granted, held, "who has what is known");
    }
}

/// A log with any error is refused, with the place: a damaged byte, a missing record,
/// another version, other pools.
#[test]
fn a_log_that_cannot_be_right_is_refused() {
    let mut host = Host::new();
    for _ in 0..50 {
        host.turn();
    }
    let log: Vec<Vec<u8>> = host.disk.iter().map(|record| record.bytes.clone()).collect();
    assert!(log.len() > 6, "there is something to damage");
    let restore = |log: &[Vec<u8>], config: CoordinatorConfig| {
        Coordinator::restore(config, 1, log.iter().map(Vec::as_slice)).err()
    };
    assert_eq!(restore(&log, config(2)), None);
    for at in 0..log.len() {
        for byte in 0..log[at].len() {
            let mut damaged = log.clone();
            damaged[at][byte] ^= 0x20;
            assert_eq!(restore(&damaged, config(2)), Some(LogError::Damaged(at)));
        }
        let mut short = log.clone();
        short[at].pop();
        assert_eq!(restore(&short, config(2)), Some(LogError::Damaged(at)));
    }
    let mut gap = log.clone();
    gap.remove(3);
    assert_eq!(restore(&gap, config(2)), Some(LogError::Missing(3)));
    assert_eq!(restore(&log[1..], config(2)), Some(LogError::Missing(0)));
    assert_eq!(restore(&[], config(2)), Some(LogError::Missing(0)));
    let other = CoordinatorConfig { pools: vec![(POOL, 5 * 256)], ..config(2) };
    assert_eq!(restore(&log, other), Some(LogError::OtherConfiguration(Misfit::Pools)));
    let next = Coordinator::next_incarnation(log.iter().map(Vec::as_slice));
    assert_eq!(
        next,
        Ok(host.started.last().map_or(0, |last| last + 1)),
        "none that was used is used by a box that begins anew"
    );
}

/// Ten thousand requests arrive, and the log has not grown with them.
#[test]
fn the_log_is_bounded() {
    let mut host = Host::new();
    let mut longest = 0;
    for number in 0..10_000 {
        host.turn();
        if let Some(runtime) = host.runtimes.first_mut() {
            runtime.requests.push(Control::Adopted {
                pool: POOL,
                numbers: (0..100).map(|step| ((number * 7 + step) % 3000, number + 1)).collect(),
            });
        }
        longest = longest.max(host.disk.iter().map(|record| record.bytes.len()).sum::<usize>());
    }
    assert!((70_000..400_000).contains(&longest), "{longest} bytes");
    host.coordinator = None;
    host.begin_again();
    host.turn();
    assert_eq!(host.runtimes.len(), 3);
}

/// A runtime hears of the coordinator's next incarnation before it is asked for its
/// account, because the frame with the question is late, and sends a new request.
/// Requests that it had sent to the previous incarnation are not skipped, but taken when
/// they come.
#[test]
fn a_request_that_overtakes_the_account_hides_none_before_it() {
    let mut host = Host::new();
    while host.owners.len() < 3 {
        host.turn();
    }
    let free = (0..BLOCKS).find(|block| !host.owners.contains_key(block)).expect("a block is left");
    host.coordinator = None;
    host.runtimes[0]
        .requests
        .push(Control::Adopted { pool: POOL, numbers: vec![(free * 256 + 7, 1)] });
    host.turn();
    host.begin_again();
    let coordinator = Peer { node: NodeId::COORDINATOR, incarnation: host.incarnation };
    host.runtimes[0].fabric.set_peer(coordinator);
    host.runtimes[0]
        .requests
        .push(Control::Adopted { pool: POOL, numbers: vec![(free * 256 + 8, 2)] });
    host.turn_runtimes();
    for _ in 0..50 {
        host.turn();
    }
    let account = host.coordinator.as_ref().map(|coordinator| coordinator.ledgers()[0].account());
    assert_eq!(account.map(|account| account.foreign), Some(2), "{account:?}");
}

/// An operator is told that flows move, and the coordinator dies just before the runtime
/// hears of it, or just after. The next incarnation makes sure that the runtime is asked
/// once.
#[test]
fn a_move_that_was_promised_is_asked_for_once() {
    for is_heard in [false, true] {
        let mut host = Host::new();
        while host.owners.len() < 3 {
            host.turn();
        }
        host.turn();
        let from = host.runtimes[0].peer.node;
        let order = Order::Move { from, to: None, limit: 5, selector: "any".to_owned() };
        let coordinator = host.coordinator.as_mut().expect("it lives");
        let request = coordinator.order(&order, host.now).expect("another could have the flows");
        let before = if is_heard { Vec::new() } else { std::mem::take(&mut host.runtimes) };
        host.turn_coordinator(None);
        host.coordinator = None;
        host.runtimes.extend(before);
        host.turn_runtimes();
        host.begin_again();
        for _ in 0..50 {
            host.turn();
        }
        assert_eq!(host.runtimes[0].moves, [request], "the runtime heard of it before: {is_heard}");
        assert!(host.runtimes[1].moves.is_empty());
    }
}

/// A drain is ordered, and the coordinator dies at every step of it. First the
/// coordinator has logged that the runtime leaves, and told no one. Later it has logged
/// that the runtime is to end, and not asked for it. The runtime has ended, and comes
/// back only when it is ordered back.
#[test]
fn a_drain_goes_on_in_the_next_incarnation() {
    let mut host = Host::new();
    while host.owners.len() < 3 {
        host.turn();
    }
    let peer = host.runtimes[1].peer;
    let now = host.now;
    let order =
        |host: &mut Host, order| host.coordinator.as_mut().expect("it lives").order(&order, now);
    assert_eq!(order(&mut host, Order::Drain { node: peer.node, force: false }), Ok(0));
    host.die_after_writing();
    assert_eq!(host.member(peer.node), (MemberState::Leaving, true));
    let is_to_end = |host: &Host| {
        let drains = host.coordinator.as_ref().map_or(&[][..], Coordinator::drains);
        drains.iter().any(|drain| drain.peer == peer && drain.ended_at.is_some())
    };
    for _ in 0..100 {
        let mut probe = host.coordinator.take();
        if let Some(coordinator) = &mut probe {
            coordinator.handle_records(host.now + 10 * MILLISECOND);
            coordinator.handle_timeout(host.now + 10 * MILLISECOND);
        }
        host.coordinator = probe;
        if is_to_end(&host) {
            break;
        }
        host.turn();
    }
    assert!(
        is_to_end(&host) && host.runtimes.iter().any(|runtime| runtime.peer == peer),
        "decided, and not asked for"
    );
    host.die_after_writing();
    for _ in 0..50 {
        host.turn();
    }
    assert!(
        host.runtimes.iter().all(|runtime| runtime.peer != peer),
        "the new incarnation has it ended"
    );
    for _ in 0..3 {
        host.die_after_writing();
        for _ in 0..200 {
            host.turn();
        }
        assert_eq!(
            (host.member(peer.node), host.runtimes.len()),
            ((MemberState::Failed, true), 2),
            "it stays out of service"
        );
    }
    assert_eq!(order(&mut host, Order::Restore(peer.node)), Ok(0));
    host.die_after_writing();
    for _ in 0..200 {
        host.turn();
    }
    assert_eq!((host.member(peer.node), host.runtimes.len()), ((MemberState::Running, false), 3));
}

/// The rules of the configuration have been replaced twice when the coordinator dies. Its
/// next incarnation uses the last ones under their version, and sends them to a switch
/// that has older ones.
#[test]
fn the_rules_in_force_outlive_it() {
    let rules = |chains: &[u16]| -> Vec<Rule> {
        chains
            .iter()
            .map(|chain| Rule { selector: Selector::any(), chain: *chain, cluster: 0 })
            .collect()
    };
    let initial = |incarnation| CoordinatorConfig { rules: rules(&[0]), ..config(incarnation) };
    let mut coordinator = Coordinator::new(initial(1), 1);
    let mut log = coordinator.poll_log();
    for set in [&[1, 2][..], &[3]] {
        coordinator.set_rules(rules(set));
        log.extend(coordinator.poll_log());
    }
    drop(coordinator);
    let bytes = log.iter().map(|record| record.bytes.as_slice());
    let mut coordinator =
        Coordinator::restore(initial(2), 2, bytes).expect("its own log can be read");
    assert_eq!((coordinator.rules().version(), coordinator.rules().rules()), (3, &rules(&[3])[..]));
    let mut switch =
        Fabric::new(Peer { node: NodeId::SWITCH, incarnation: 1 }, FabricConfig::default());
    switch.set_peer(Peer { node: NodeId::COORDINATOR, incarnation: 2 });
    coordinator.fabric().set_peer(Peer { node: NodeId::SWITCH, incarnation: 1 });
    switch.send_control(NodeId::COORDINATOR, &Control::RulesInForce { version: 2 });
    switch.poll_transmit(3, |frame| {
        coordinator.handle_frame(frame, 3);
        true
    });
    coordinator.handle_records(3);
    coordinator.forget_log();
    coordinator.fabric().poll_transmit(3, |frame| {
        let _ = switch.handle_frame(frame, 3);
        true
    });
    let told = switch.inbox.records().filter_map(|(_, body)| Control::decode(body).ok());
    let told: Vec<Control> =
        told.filter(|message| matches!(message, Control::Rules { .. })).collect();
    assert_eq!(told, [Control::Rules { version: 3, part: 0, parts: 1, rules: rules(&[3]) }]);
}

/// The log says how a failure was seen. The next coordinator says the same of it,
/// although it is not told again.
#[test]
fn how_a_failure_was_seen_is_remembered() {
    let mut host = Host::new();
    let settle = |host: &mut Host| {
        for _ in 0..1000 {
            if host.is_well() {
                break;
            }
            host.turn();
        }
        assert!(host.is_well());
        let coordinator = host.coordinator.as_ref().expect("it lives");
        coordinator.failovers().cloned().collect::<Vec<_>>()
    };
    // The runtimes run, and have reported so.
    (0..50).for_each(|_| host.turn());
    settle(&mut host);
    let dead = host.runtimes[0].peer;
    host.end_by(dead, Notice::new("killed by signal 9", 7));
    host.turn();
    let before = settle(&mut host);
    assert_eq!(
        before.iter().map(|failover| failover.notice.cause.as_str()).collect::<Vec<_>>(),
        ["killed by signal 9"]
    );
    host.ended.clear();
    host.coordinator = None;
    host.begin_again();
    host.turn();
    assert_eq!(settle(&mut host), before);
}

/// A coordinator dies after it has logged that a runtime has failed and that its recovery
/// is over, and before the switch has heard of either. The next incarnation tells the
/// switch of the death before it tells it that the dead one's flows will not be claimed
/// any more. A switch that hears it the other way round waits for good.
#[test]
fn who_is_gone_is_said_before_that_it_is_over() {
    let mut host = Host::new();
    let settle = |host: &mut Host| {
        for _ in 0..1000 {
            host.turn();
            if host.is_well() {
                break;
            }
        }
        assert!(host.is_well());
    };
    (0..50).for_each(|_| host.turn());
    settle(&mut host);
    let dead = host.runtimes[0].peer;
    host.end(dead);
    host.turn();
    settle(&mut host);
    let records = host.disk.iter().map(|record| record.bytes.as_slice());
    let mut coordinator =
        Coordinator::restore(config(9), host.now, records).expect("its own log can be read");
    let (switch, now) = (Peer { node: NodeId::SWITCH, incarnation: 1 }, host.now);
    let mut heard = Fabric::new(switch, FabricConfig::default());
    heard.set_peer(Peer { node: NodeId::COORDINATOR, incarnation: 9 });
    coordinator.fabric().set_peer(switch);
    coordinator.forget_log();
    coordinator.fabric().poll_transmit(now, |frame| {
        // Frames for other nodes are refused here.
        let _ = heard.handle_frame(frame, now);
        true
    });
    let told: Vec<Control> =
        heard.inbox.records().filter_map(|(_, body)| Control::decode(body).ok()).collect();
    let is_gone = |message: &Control| match message {
        Control::View { members, .. } => members.iter().all(|member| member.peer() != dead),
        _ => false,
    };
    let is_over = |message: &Control| {
        *message == Control::Sweep { node: dead.node, incarnation: dead.incarnation, is_over: true }
    };
    let (gone, over) = (told.iter().position(is_gone), told.iter().position(is_over));
    assert!(gone.is_some() && gone < over, "{told:?}");
}
