//! A coordinator alone: leases while runtimes fail, and recoveries that wait for one
//! another.

use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::coordinator::{
    Account, ClusterConfig, Coordinator, CoordinatorConfig, HostsConfig,
};
use holdfast_node::message::{
    Control, MemberState, Notice, Order, Ordered, PoolId, Protected, Report, Retried, kind,
    numbered,
};
use holdfast_protection::Peer;
use holdfast_wire::NodeId;

const POOL: PoolId = PoolId { chain: 0, function: 0, field: 0 };
const MILLISECOND: u64 = 1_000_000;

/// A coordinator, endpoints that speak for its runtimes with their requests, and its
/// manager, which fences every runtime that it is asked to.
struct Bench {
    coordinator: Coordinator,
    runtimes: Vec<(Peer, Fabric, Ordered)>,
    manager: Fabric,
    switch: Fabric,
    now: u64,
}

impl Bench {
    /// All of the runtimes 16, 17 and so on are started, and there is one pool of so many
    /// blocks.
    fn new(runtimes: u16, blocks: u32) -> Bench {
        let config = CoordinatorConfig {
            me: Peer { node: NodeId::COORDINATOR, incarnation: 1 },
            hosts: HostsConfig::one(),
            names: Vec::new(),
            clusters: ClusterConfig::only(runtimes, 1, true),
            rules: Vec::new(),
            hang_timeout: 1000 * MILLISECOND,
            start_timeout: 1000 * MILLISECOND,
            first_incarnation: 1,
            pools: vec![(POOL, blocks * 256)],
            state_servers: 0,
            layouts: vec![],
            fabric: FabricConfig::default(),
        };
        let mut manager =
            Fabric::new(Peer { node: NodeId::MANAGER, incarnation: 1 }, FabricConfig::default());
        manager.set_peer(config.me);
        let mut switch =
            Fabric::new(Peer { node: NodeId::SWITCH, incarnation: 1 }, FabricConfig::default());
        switch.set_peer(config.me);
        let mut bench = Bench {
            coordinator: Coordinator::new(config, 1),
            runtimes: Vec::new(),
            manager,
            switch,
            now: 1,
        };
        bench.coordinator.fabric().set_peer(Peer { node: NodeId::SWITCH, incarnation: 1 });
        bench.coordinator.fabric().set_peer(Peer { node: NodeId::MANAGER, incarnation: 1 });
        bench.start();
        bench
    }

    /// Delivers the coordinator's frames.
    fn carry(&mut self) {
        self.coordinator.forget_log();
        let mut frames = Vec::new();
        self.coordinator.fabric().poll_transmit(self.now, |frame| {
            frames.push(frame.to_vec());
            true
        });
        for frame in frames {
            // Frames for other nodes are refused.
            let _ = self.manager.handle_frame(&frame, self.now);
            let _ = self.switch.handle_frame(&frame, self.now);
            for (_, fabric, _) in &mut self.runtimes {
                let _ = fabric.handle_frame(&frame, self.now);
            }
        }
        // The manager answers peers that ask for it.
        let Bench { manager, coordinator, now, .. } = self;
        manager.poll_transmit(*now, |frame| coordinator.fabric().handle_frame(frame, *now).is_ok());
        let asked: Vec<Control> = self
            .manager
            .inbox
            .records()
            .filter_map(|(_, body)| Control::decode(body).ok())
            .collect();
        self.manager.inbox.clear();
        for message in asked {
            if let Control::Fence { node, incarnation } | Control::Silent { node, incarnation } =
                message
            {
                self.tell_end(Peer { node, incarnation });
            }
        }
    }

    /// The manager tells that it lets nothing more out of a runtime.
    fn tell_end(&mut self, Peer { node, incarnation }: Peer) {
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
        let Bench { manager, coordinator, now, .. } = self;
        manager.poll_transmit(*now, |frame| coordinator.fabric().handle_frame(frame, *now).is_ok());
        self.coordinator.handle_records(self.now);
    }

    /// Runtimes that are to be started say hello.
    fn start(&mut self) {
        self.coordinator.handle_timeout(self.now);
        let starting: Vec<Peer> =
            self.coordinator.status().map(|status| status.member.peer()).collect();
        for peer in starting {
            if !self.runtimes.iter().any(|(there, _, _)| *there == peer) {
                let mut fabric = Fabric::new(peer, FabricConfig::default());
                fabric.set_peer(Peer { node: NodeId::COORDINATOR, incarnation: 1 });
                self.runtimes.push((peer, fabric, Ordered::default()));
                self.tell(peer, &Control::Hello { layouts: vec![] });
            }
        }
    }

    fn peer(&self, node: u16) -> Peer {
        self.runtimes
            .iter()
            .map(|(peer, _, _)| *peer)
            .find(|peer| peer.node.get() == node)
            .expect("it was started")
    }

    fn tell(&mut self, from: Peer, message: &Control) {
        let (_, fabric, requests) =
            self.runtimes.iter_mut().find(|(peer, _, _)| *peer == from).expect("it was started");
        if matches!(message, Control::Hello { .. } | Control::Report(_)) {
            fabric.send_control(NodeId::COORDINATOR, message);
        } else {
            requests.push(message.clone());
            requests.send(NodeId::COORDINATOR, fabric);
        }
        let mut frames = Vec::new();
        fabric.poll_transmit(self.now, |frame| {
            frames.push(frame.to_vec());
            true
        });
        for frame in frames {
            self.coordinator
                .fabric()
                .handle_frame(&frame, self.now)
                .expect("nothing is wrong with the frame");
        }
        self.coordinator.handle_records(self.now);
    }

    /// The coordinator's messages to a runtime about the pool since the last call.
    fn told(&mut self, to: Peer) -> Vec<Control> {
        self.carry();
        let Some((_, fabric, _)) = self.runtimes.iter_mut().find(|(peer, _, _)| *peer == to) else {
            return Vec::new();
        };
        let messages = fabric.inbox.records().filter_map(|(record, body)| match record.kind {
            kind::NUMBERED => numbered(body).ok().map(|(_, message)| message),
            _ => Control::decode(body).ok(),
        });
        let is_about_pool = |message: &Control| {
            !matches!(
                message,
                Control::View { .. } | Control::Recover { .. } | Control::Settled { .. }
            )
        };
        let about_pool = messages.filter(is_about_pool).collect();
        fabric.inbox.clear();
        about_pool
    }

    /// The process ends, and is not started again before the clock moves on.
    fn kill(&mut self, peer: Peer) {
        self.runtimes.retain(|(there, _, _)| *there != peer);
        self.tell_end(peer);
    }

    fn recovered(&mut self, by: Peer, dead: Peer) {
        self.tell(
            by,
            &Control::Recovered {
                node: dead.node,
                incarnation: dead.incarnation,
                flows: 0,
                broken: 0,
            },
        );
    }

    fn waits(&mut self, by: Peer, dead: Peer) {
        let switch = self.switch.me().incarnation;
        self.tell(
            by,
            &Control::Waits {
                node: dead.node,
                incarnation: dead.incarnation,
                switches: vec![Peer { node: NodeId::SWITCH, incarnation: switch }],
            },
        );
    }

    /// The switch, in this incarnation, says that it has no rules.
    fn begin_switch(&mut self, incarnation: u32) {
        if incarnation != self.switch.me().incarnation {
            self.switch =
                Fabric::new(Peer { node: NodeId::SWITCH, incarnation }, FabricConfig::default());
            self.switch.set_peer(Peer { node: NodeId::COORDINATOR, incarnation: 1 });
        }
        self.switch.send_control(NodeId::COORDINATOR, &Control::RulesInForce { version: 0 });
        // A new incarnation has to show that it is there.
        for _ in 0..3 {
            let Bench { switch, coordinator, now, .. } = self;
            switch.poll_transmit(*now, |frame| {
                coordinator.fabric().handle_frame(frame, *now).is_ok()
            });
            self.carry();
        }
        self.coordinator.handle_records(self.now);
        self.carry();
    }

    /// The runtimes that the switch has just been told to sweep, each with `is_over`.
    fn swept(&mut self) -> Vec<(Peer, bool)> {
        self.carry();
        let told = self.switch.inbox.records().filter_map(|(_, body)| Control::decode(body).ok());
        let swept = told.filter_map(|message| match message {
            Control::Sweep { node, incarnation, is_over } => {
                Some((Peer { node, incarnation }, is_over))
            }
            _ => None,
        });
        let swept = swept.collect();
        self.switch.inbox.clear();
        swept
    }

    fn account(&self) -> Account {
        self.coordinator.ledgers()[0].account()
    }

    /// Answers the question for spare blocks.
    fn spare(&mut self, from: Peer, blocks: &[u32]) {
        self.tell(from, &Control::Spared { pool: POOL, blocks: blocks.to_vec(), last: true });
    }
}

fn granted(messages: &[Control]) -> Vec<(u32, [u64; 4])> {
    let blocks = messages.iter().filter_map(|message| {
        if let Control::Grant { blocks, .. } = message { Some(blocks) } else { None }
    });
    blocks.flatten().copied().collect()
}

/// A dies. B has recovered a flow of A's, and dies before it has said so; C has the
/// flow's replica. A's blocks rest until C has reported its recoveries of B, and are then
/// granted without the flow's number.
#[test]
fn a_second_failure_during_recovery_does_not_free_what_is_held() {
    let mut bench = Bench::new(3, 4);
    let [a, b, c] = [16, 17, 18].map(|node| bench.peer(node));
    let block = granted(&bench.told(a))[0].0;
    bench.kill(a);
    bench.recovered(c, a);
    bench.kill(b);
    assert_eq!(bench.account().quarantined, 2, "B may have had A's flows");
    bench.tell(c, &Control::Adopted { pool: POOL, numbers: vec![(block * 256 + 3, 1)] });
    bench.recovered(c, b);
    assert_eq!(bench.account(), Account { free: 3, granted: 1, quarantined: 0, foreign: 1 });
    for _ in 0..2 {
        bench.tell(c, &Control::WantBlock { pool: POOL });
    }
    // C owns the number, and so has it in its block without the coordinator's account.
    let blocks = granted(&bench.told(c));
    assert!(blocks.contains(&(block, [8, 0, 0, 0])), "{blocks:?}");
    assert!(bench.coordinator.failovers().all(|failover| failover.recovered_at.is_some()));
}

/// A flow was on its way from A to B when B died, and A dies before it has reported on
/// that. C has a copy of A's flows. C gets the flow's route when no runtime claims
/// anything of B any more. B's blocks are free only when C has reported on A too.
#[test]
fn routes_are_swept_of_one_before_another_is_heard_of() {
    let mut bench = Bench::new(3, 3);
    bench.begin_switch(1);
    let [a, b, c] = [16, 17, 18].map(|node| bench.peer(node));
    bench.kill(b);
    bench.recovered(c, b);
    assert_eq!(bench.swept(), [], "A has not reported");
    bench.kill(a);
    assert_eq!(bench.swept(), [(b, true)], "who is left has");
    bench.waits(c, a);
    assert_eq!((bench.swept(), bench.account().quarantined), (vec![(a, false)], 2));
    bench.recovered(c, a);
    assert_eq!((bench.swept(), bench.account().quarantined), (vec![(a, true)], 0));
}

/// A flow was on its way from A to B, and another from B to A, when both died. C's claims
/// on either wait until the other's routes have been swept. Both are swept as soon as C
/// says that nothing else is open. The blocks of A and B are free when C is done with
/// both.
#[test]
fn those_who_wait_for_one_another_are_swept() {
    let mut bench = Bench::new(3, 3);
    bench.begin_switch(1);
    let [a, b, c] = [16, 17, 18].map(|node| bench.peer(node));
    bench.kill(a);
    bench.kill(b);
    bench.waits(c, a);
    assert_eq!(bench.swept(), [], "C may have what came there from B");
    bench.waits(c, b);
    bench.waits(c, b);
    assert_eq!((bench.swept(), bench.account().quarantined), (vec![(a, false), (b, false)], 2));
    assert!(bench.coordinator.failovers().all(|failover| failover.recovered_at.is_none()));
    bench.recovered(c, a);
    assert_eq!(
        (bench.swept(), bench.account().quarantined),
        (vec![(a, true)], 2),
        "a new incarnation of the switch may wait for that word"
    );
    bench.recovered(c, b);
    assert_eq!((bench.swept(), bench.account().quarantined), (vec![(b, true)], 0));
}

/// C's report that all its claims wait concerns one incarnation of the switch. The next
/// incarnation has heard no claim, and is told to sweep when all have claimed from it.
#[test]
fn a_new_incarnation_of_the_switch_is_asked_before_it_sweeps() {
    let mut bench = Bench::new(3, 3);
    bench.begin_switch(1);
    let [a, b, c] = [16, 17, 18].map(|node| bench.peer(node));
    bench.kill(a);
    bench.kill(b);
    bench.waits(c, a);
    bench.begin_switch(2);
    bench.waits(c, b);
    assert_eq!(bench.swept(), [], "what C said of A it said of the incarnation before");
    bench.waits(c, a);
    assert_eq!(bench.swept(), [(a, false), (b, false)]);
    bench.begin_switch(3);
    assert_eq!(bench.swept(), []);
}

/// B recovers a flow whose number lies in a block that C was granted. C is told before it
/// can lease the number.
#[test]
fn an_owner_hears_of_numbers_that_others_hold_after_all() {
    let mut bench = Bench::new(3, 4);
    let [b, c] = [17, 18].map(|node| bench.peer(node));
    let number = granted(&bench.told(c))[0].0 * 256 + 9;
    bench.tell(b, &Control::Adopted { pool: POOL, numbers: vec![(number, 1)] });
    assert_eq!(bench.told(c), [Control::Taken { pool: POOL, numbers: vec![number] }]);
    bench.tell(b, &Control::Returned { pool: POOL, numbers: vec![number] });
    assert_eq!(bench.told(c), [Control::Returned { pool: POOL, numbers: vec![number] }]);
}

/// No block is free. The other runtimes are asked for spare ones, and the runtime that
/// wanted one waits for their answers. The first block that comes is its own.
#[test]
fn who_finds_no_block_gets_one_that_another_can_spare() {
    let mut bench = Bench::new(2, 4);
    let [a, b] = [16, 17].map(|node| bench.peer(node));
    bench.tell(a, &Control::WantBlock { pool: POOL });
    let first = granted(&bench.told(a));
    assert_eq!(first.len(), 3);
    bench.told(b);
    bench.tell(b, &Control::WantBlock { pool: POOL });
    assert_eq!(bench.told(b), [], "it waits");
    assert_eq!(bench.told(a), [Control::SpareBlocks { pool: POOL }]);
    bench.spare(a, &[first[1].0]);
    assert_eq!(granted(&bench.told(b)), [first[1]]);
}

/// No runtime can spare a block: the one that wanted it is told, and remembered. The
/// others are asked again later, not with every request. A block that becomes free comes
/// unasked.
#[test]
fn who_was_told_that_there_is_no_block_gets_the_next_that_is_free() {
    let mut bench = Bench::new(2, 2);
    let [a, b] = [16, 17].map(|node| bench.peer(node));
    let [had, _] = [a, b].map(|peer| granted(&bench.told(peer))[0]);
    bench.tell(b, &Control::WantBlock { pool: POOL });
    assert_eq!(bench.told(a), [Control::SpareBlocks { pool: POOL }]);
    bench.spare(a, &[]);
    assert_eq!(bench.told(b), [Control::Deny { pool: POOL }]);
    bench.tell(b, &Control::WantBlock { pool: POOL });
    assert_eq!(bench.told(b), [Control::Deny { pool: POOL }]);
    assert_eq!(bench.told(a), [], "it has only just answered");
    bench.now += 600 * MILLISECOND;
    bench.coordinator.handle_timeout(bench.now);
    assert_eq!(bench.told(a), [Control::SpareBlocks { pool: POOL }]);
    // A dies instead of answering. Its block rests until B has reported, and is then B's.
    bench.kill(a);
    assert_eq!(bench.told(b), []);
    bench.recovered(b, a);
    assert_eq!(granted(&bench.told(b)), [had]);
}

impl Bench {
    /// Lets time pass in small steps, while the runtimes `heard` report. Returns the
    /// members at the end.
    fn pass(&mut self, milliseconds: u64, heard: &[u16]) -> Vec<(u16, MemberState)> {
        for _ in 0..milliseconds / 10 {
            self.now += 10 * MILLISECOND;
            for node in heard {
                let peer = self.peer(*node);
                self.tell(peer, &Control::Report(Report::default()));
                // The runtime hears that the report has arrived.
                self.told(peer);
            }
            self.coordinator.handle_timeout(self.now);
            self.carry();
        }
        self.coordinator
            .status()
            .map(|status| (status.member.node.get(), status.member.state))
            .collect()
    }
}

/// All runtimes are silent, as if the machine or the manager stood still: none is given
/// up, because no other could take over. If one is heard again before the other, the
/// other is given up only if it stays silent. The last one is given up when it has been
/// silent for very long.
#[test]
fn silence_is_a_failure_only_while_somebody_is_heard() {
    let both = vec![(16, MemberState::Running), (17, MemberState::Running)];
    let mut bench = Bench::new(2, 4);
    assert_eq!(bench.pass(500, &[16, 17]), both);
    assert_eq!(bench.pass(5_000, &[]), both, "nobody is heard, and nobody is given up");
    assert!(
        bench.coordinator.poll_timeout() > bench.now,
        "and nobody is kept awake by what is overdue"
    );
    assert_eq!(bench.pass(200, &[17]), both, "16 comes a little later");
    assert_eq!(bench.pass(600, &[16, 17]), both);
    assert_eq!(bench.pass(5_000, &[]), both);
    let after = bench.pass(1_200, &[17]);
    assert_eq!(after[1], (17, MemberState::Running));
    assert_ne!(after[0], (16, MemberState::Running), "17 could take over");
    let mut alone = Bench::new(1, 4);
    assert_eq!(alone.pass(15_000, &[]), vec![(16, MemberState::Running)]);
    assert_ne!(
        alone.pass(10_000, &[]),
        vec![(16, MemberState::Running)],
        "somebody must serve in the end"
    );
}

/// A runtime that keeps dying is given time while another one serves, but not when none
/// does. The status says how often it died, and when it is started again.
#[test]
fn nobody_is_waited_for_while_nobody_serves() {
    let mut bench = Bench::new(2, 4);
    let mut deaths = 0;
    while deaths < 7 {
        bench.pass(10, &[17]);
        let first = bench.coordinator.status().next().expect("it is listed").member;
        if first.state != MemberState::Failed {
            bench.tell_end(first.peer());
            deaths += 1;
        }
    }
    assert_eq!(bench.pass(200, &[17])[0], (16, MemberState::Failed), "it is given time");
    let retried =
        |bench: &Bench| bench.coordinator.status().map(|status| status.retried).collect::<Vec<_>>();
    let due = retried(&bench)[0].and_then(|first| first.start_at);
    assert_eq!(
        retried(&bench),
        [Some(Retried { node: NodeId::new(16), failures: 7, start_at: due }), None]
    );
    assert!(due.is_some_and(|due| due > bench.now));
    let last = bench.peer(17);
    bench.tell_end(last);
    let after = bench.pass(200, &[]);
    assert!(
        after.iter().any(|(node, state)| *node == 16 && *state == MemberState::Starting),
        "{after:?}"
    );
    assert_eq!(
        retried(&bench)[0],
        Some(Retried { node: NodeId::new(16), failures: 7, start_at: None })
    );
}

/// A runtime dies, and another keeps its flows for the next incarnation. The next
/// incarnation is asked to recover too, and the recovery is not over before it has said
/// that it is done.
#[test]
fn a_next_incarnation_is_asked_for_what_others_keep() {
    let mut bench = Bench::new(3, 4);
    let (dead, keeping, done) = (bench.peer(16), bench.peer(17), bench.peer(18));
    bench.kill(dead);
    bench.recovered(done, dead);
    bench.now += MILLISECOND;
    bench.start();
    let successor = bench.peer(16);
    assert!(successor.incarnation > dead.incarnation);
    bench.carry();
    let (_, fabric, _) =
        bench.runtimes.iter().find(|(peer, ..)| *peer == successor).expect("it was started");
    let told = fabric.inbox.records().filter_map(|(record, body)| match record.kind {
        kind::NUMBERED => numbered(body).ok().map(|(_, message)| message),
        _ => None,
    });
    let recover = Control::Recover { node: dead.node, incarnation: dead.incarnation };
    assert!(told.into_iter().any(|message| message == recover));
    let is_over = |bench: &Bench| {
        bench.coordinator.failovers().all(|failover| failover.recovered_at.is_some())
    };
    bench.recovered(keeping, dead);
    assert!(!is_over(&bench), "the next incarnation has not got its flows");
    bench.recovered(successor, dead);
    assert!(is_over(&bench));
}

/// A runtime that is leaving has taken flows over, and has no new replicas for them yet:
/// the flows do not count as safe.
#[test]
fn what_a_leaving_runtime_has_must_be_safe_too() {
    let mut bench = Bench::new(3, 4);
    let report = |bench: &Bench, resynchronising| {
        Control::Report(Report {
            view: bench.coordinator.view(),
            resynchronising,
            ..Report::default()
        })
    };
    for node in 16..19 {
        let message = report(&bench, false);
        bench.tell(bench.peer(node), &message);
    }
    assert_eq!(bench.coordinator.protected(), Protected::Yes);
    bench
        .coordinator
        .order(&Order::Drain { node: NodeId::new(16), force: false }, bench.now)
        .expect("it may leave");
    for node in 16..19 {
        let message = report(&bench, node == 16);
        bench.tell(bench.peer(node), &message);
    }
    assert_eq!(bench.coordinator.protected(), Protected::Resynchronising);
    let message = report(&bench, false);
    bench.tell(bench.peer(16), &message);
    assert_eq!(bench.coordinator.protected(), Protected::Yes);
}

/// A runtime reports a view that the coordinator has not made: its message was damaged or
/// forged. All the same the runtime hears of the views that are made from then on.
#[test]
fn views_follow_upon_the_latest_that_anybody_has() {
    let mut bench = Bench::new(2, 4);
    let peer = bench.peer(16);
    for view in [1 << 20, u64::MAX] {
        let before = bench.coordinator.view();
        bench.tell(peer, &Control::Report(Report { view, ..Report::default() }));
        let now = bench.coordinator.view();
        assert!(if view == u64::MAX { now == before } else { now > view }, "{view}: {now}");
    }
    assert_eq!(bench.coordinator.protected(), Protected::Resynchronising);
    let (_, fabric, _) =
        bench.runtimes.iter_mut().find(|(there, ..)| *there == peer).expect("it was started");
    fabric.inbox.clear();
    bench.carry();
    let (_, fabric, _) =
        bench.runtimes.iter().find(|(there, ..)| *there == peer).expect("it was started");
    let mut told = fabric.inbox.records().filter_map(|(_, body)| Control::decode(body).ok());
    assert!(
        told.any(|message| matches!(message, Control::View { version, .. } if version > 1 << 20))
    );
}

/// A runtime that is leaving has flows on their way to another one. The drain has not
/// requested that: an operator had, or an earlier incarnation of the coordinator. The
/// leaving runtime owns no flow, and does not end before they have arrived.
#[test]
fn a_drain_waits_for_flows_that_have_not_arrived() {
    let mut bench = Bench::new(3, 4);
    bench
        .coordinator
        .order(&Order::Drain { node: NodeId::new(16), force: false }, bench.now)
        .expect("it may leave");
    let mut pass = |departed: u64, milliseconds: u64| {
        for _ in 0..milliseconds / 10 {
            bench.now += 10 * MILLISECOND;
            for node in 16..19 {
                let departed = if node == 16 { departed } else { 0 };
                let report =
                    Report { view: bench.coordinator.view(), departed, ..Report::default() };
                bench.tell(bench.peer(node), &Control::Report(report));
            }
            bench.coordinator.handle_timeout(bench.now);
            bench.carry();
        }
        bench.coordinator.drains().iter().any(|drain| drain.ended_at.is_some())
    };
    assert!(!pass(0, 100), "it has just become empty");
    assert!(!pass(3, 1000));
    assert!(!pass(0, 190), "they have just arrived");
    assert!(pass(0, 20));
}

/// The last message of a manager's incarnation and the first of the next one are handled
/// together. A runtime that had ended for the earlier one is there for the next. No
/// runtime may take its flows before the next incarnation has said so too.
#[test]
fn what_an_earlier_incarnation_of_the_manager_said_is_void() {
    let mut bench = Bench::new(2, 4);
    let victim = bench.peer(16);
    let present = bench.runtimes.iter().map(|(peer, ..)| *peer).collect();
    let Peer { node, incarnation } = victim;
    bench.manager.send_control(
        NodeId::COORDINATOR,
        &Control::Ended {
            node,
            incarnation,
            flows: Some(0),
            last: None,
            notice: Notice::default(),
        },
    );
    let Bench { manager, coordinator, now, .. } = &mut bench;
    manager.poll_transmit(*now, |frame| coordinator.fabric().handle_frame(frame, *now).is_ok());
    let mut next =
        Fabric::new(Peer { node: NodeId::MANAGER, incarnation: 2 }, FabricConfig::default());
    next.set_peer(Peer { node: NodeId::COORDINATOR, incarnation: 1 });
    next.send_control(NodeId::COORDINATOR, &Control::Present { peers: present });
    // The manager's new incarnation has to show that it is there.
    for _ in 0..3 {
        next.poll_transmit(*now, |frame| coordinator.fabric().handle_frame(frame, *now).is_ok());
        coordinator
            .fabric()
            .poll_transmit(*now, |frame| next.handle_frame(frame, *now).map_or(true, |()| true));
    }
    coordinator.handle_records(*now);
    assert_eq!(coordinator.fabric().peer(NodeId::MANAGER).map(|peer| peer.incarnation), Some(2));
    assert_eq!(coordinator.failovers().count(), 0);
    let state = |bench: &Bench| {
        bench
            .coordinator
            .status()
            .find(|status| status.member.peer() == victim)
            .map(|status| status.member.state)
    };
    assert_eq!(state(&bench), Some(MemberState::Running));
    // The new incarnation's own message counts.
    bench.manager = next;
    bench.tell_end(victim);
    assert_eq!(state(&bench), Some(MemberState::Failed));
}

/// A runtime ends whose switch has a new incarnation. Its last word counts or, without
/// one, its last report. Both count only if the switch does not know the number: a switch
/// leaves out flows that have shown nothing.
#[test]
fn what_a_runtime_said_last_counts_where_no_switch_knows() {
    for (flows, last, had) in
        [(None, Some(9), 9), (None, None, 5), (Some(7), Some(9), 7), (None, Some(0), 0)]
    {
        let mut bench = Bench::new(2, 2);
        let dead = bench.peer(16);
        bench.tell(dead, &Control::Report(Report { flows: 5, ..Report::default() }));
        let Peer { node, incarnation } = dead;
        bench.manager.send_control(
            NodeId::COORDINATOR,
            &Control::Ended { node, incarnation, flows, last, notice: Notice::default() },
        );
        let Bench { manager, coordinator, now, .. } = &mut bench;
        manager.poll_transmit(*now, |frame| coordinator.fabric().handle_frame(frame, *now).is_ok());
        bench.coordinator.handle_records(bench.now);
        assert_eq!(
            bench.coordinator.failovers().map(|failover| failover.had).collect::<Vec<_>>(),
            [had],
            "{flows:?} {last:?}"
        );
    }
}

/// A switch reports how many flows of a dead runtime had no copy. The report is
/// remembered, and counts even if the switch dies afterwards. Without it, lost flows are
/// the runtime's flows less the recovered ones. An heir reports flows that cannot be
/// restored.
#[test]
fn lost_flows_are_counted_as_the_switch_knew_them() {
    let mut bench = Bench::new(3, 3);
    bench.begin_switch(1);
    let [a, b, c] = [16, 17, 18].map(|node| bench.peer(node));
    bench.runtimes.retain(|(there, _, _)| *there != a);
    let Peer { node, incarnation } = a;
    let ended = Control::Ended {
        node,
        incarnation,
        flows: Some(20),
        last: None,
        notice: Notice::default(),
    };
    bench.manager.send_control(NodeId::COORDINATOR, &ended);
    let Bench { manager, coordinator, now, .. } = &mut bench;
    manager.poll_transmit(*now, |frame| coordinator.fabric().handle_frame(frame, *now).is_ok());
    bench.coordinator.handle_records(bench.now);
    for (by, flows, broken) in [(b, 9, 2), (c, 6, 0)] {
        bench.tell(by, &Control::Recovered { node, incarnation, flows, broken });
    }
    let failover = |bench: &Bench| {
        bench
            .coordinator
            .failovers()
            .find(|failover| failover.dead == a)
            .cloned()
            .expect("it failed")
    };
    assert_eq!((failover(&bench).flows, failover(&bench).lost(1)), (15, 5));
    for flows in [4, 9] {
        bench
            .switch
            .send_control(NodeId::COORDINATOR, &Control::Unclaimed { node, incarnation, flows });
        let Bench { switch, coordinator, now, .. } = &mut bench;
        switch.poll_transmit(*now, |frame| coordinator.fabric().handle_frame(frame, *now).is_ok());
        bench.coordinator.handle_records(bench.now);
        assert_eq!((failover(&bench).lost(1), failover(&bench).lost(2)), (6, 5));
    }
    bench.begin_switch(2);
    assert_eq!(failover(&bench).lost(1), 6);
}
