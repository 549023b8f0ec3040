//! A cluster that grows and shrinks: a coordinator, and a model of runtimes whose load
//! follows their flows.

use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::coordinator::{
    ClusterConfig, Coordinator, CoordinatorConfig, HostsConfig, Scaling,
};
use holdfast_node::message::{
    Control, Member, MemberState, Notice, Order, Ordered, Report, kind, numbered,
};
use holdfast_protection::Peer;
use holdfast_wire::{DropReason, NodeId};

const MILLISECOND: u64 = 1_000_000;
/// Capacity of a model runtime, packets per second.
const CAPACITY: u64 = 100_000;

/// A runtime of the model.
struct Model {
    peer: Peer,
    fabric: Fabric,
    ordered: Ordered,
    flows: u64,
    view: u64,
    drops: u64,
    /// Requests to move flows: number, target, how many.
    requests: Vec<(u32, u16, u64)>,
}

/// The model: every flow has the same rate.
struct World {
    coordinator: Coordinator,
    manager: Fabric,
    models: Vec<Model>,
    now: u64,
    /// Packets per second and flow.
    rate: u64,
    /// Flows moved per request.
    moves: Vec<u64>,
    started: usize,
    stopped: usize,
    begins: u64,
}

impl World {
    fn new(min: u16, max: u16, scaling: Scaling) -> World {
        let cluster = ClusterConfig {
            runtimes: min,
            spare: max - min,
            scaling: (max > min).then_some(scaling),
            chains: vec![0],
            promises: false,
        };
        let config = CoordinatorConfig {
            me: Peer { node: NodeId::COORDINATOR, incarnation: 1 },
            hosts: HostsConfig::one(),
            names: Vec::new(),
            clusters: vec![cluster],
            rules: Vec::new(),
            hang_timeout: 1000 * MILLISECOND,
            start_timeout: 5000 * MILLISECOND,
            first_incarnation: 1,
            pools: Vec::new(),
            state_servers: 0,
            layouts: vec![],
            fabric: FabricConfig::default(),
        };
        let mut manager =
            Fabric::new(Peer { node: NodeId::MANAGER, incarnation: 1 }, FabricConfig::default());
        manager.set_peer(config.me);
        let now = 1000 * MILLISECOND;
        let mut coordinator = Coordinator::new(config, now);
        coordinator.fabric().set_peer(Peer { node: NodeId::SWITCH, incarnation: 1 });
        World {
            coordinator,
            manager,
            models: Vec::new(),
            now,
            rate: 10,
            moves: Vec::new(),
            started: 0,
            stopped: 0,
            begins: 20 * MILLISECOND,
        }
    }

    /// Lets ten milliseconds pass.
    fn step(&mut self) {
        self.now += 10 * MILLISECOND;
        self.coordinator.handle_timeout(self.now);
        self.coordinator.forget_log();
        let mut frames = Vec::new();
        self.coordinator.fabric().poll_transmit(self.now, |frame| {
            frames.push(frame.to_vec());
            true
        });
        for frame in &frames {
            let _ = self.manager.handle_frame(frame, self.now);
            for model in &mut self.models {
                let _ = model.fabric.handle_frame(frame, self.now);
            }
        }
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
                    let peer = Peer { node, incarnation };
                    let mut fabric = Fabric::new(peer, FabricConfig::default());
                    fabric.set_peer(Peer { node: NodeId::COORDINATOR, incarnation: 1 });
                    fabric.send_control(NodeId::COORDINATOR, &Control::Hello { layouts: vec![] });
                    let model = Model {
                        peer,
                        fabric,
                        ordered: Ordered::default(),
                        flows: 0,
                        view: 0,
                        drops: 0,
                        requests: Vec::new(),
                    };
                    self.models.push(model);
                    self.started += 1;
                }
                Control::Stop { node, incarnation } => self.end(Peer { node, incarnation }),
                _ => {}
            }
        }
        self.turn_models();
        let World { models, manager, coordinator, now, .. } = self;
        for fabric in models.iter_mut().map(|model| &mut model.fabric).chain([manager]) {
            let mut frames = Vec::new();
            fabric.poll_transmit(*now, |frame| {
                frames.push(frame.to_vec());
                true
            });
            for frame in frames {
                let _ = coordinator.fabric().handle_frame(&frame, *now);
            }
        }
        self.coordinator.handle_records(self.now);
    }

    fn end(&mut self, peer: Peer) {
        let Some(at) = self.models.iter().position(|model| model.peer == peer) else { return };
        let model = self.models.remove(at);
        self.stopped += 1;
        // Another runtime recovers its remaining flows.
        if let Some(other) = self.models.first_mut() {
            other.flows += model.flows;
        }
        let Peer { node, incarnation } = peer;
        self.manager.send_control(
            NodeId::COORDINATOR,
            &Control::Ended {
                node,
                incarnation,
                flows: Some(model.flows),
                last: None,
                notice: Notice::default(),
            },
        );
    }

    fn turn_models(&mut self) {
        let mut arrivals: Vec<(u16, u64)> = Vec::new();
        for model in &mut self.models {
            for (record, body) in model.fabric.inbox.records() {
                let message = match record.kind {
                    kind::NUMBERED => {
                        numbered(body).map(|(number, message)| (Some(number), message))
                    }
                    _ => Control::decode(body).map(|message| (None, message)),
                };
                let Ok((number, message)) = message else { continue };
                match message {
                    Control::View { version, .. } => model.view = version,
                    Control::Settled { handled } => model.ordered.settle(handled),
                    Control::Recover { node, incarnation } => {
                        model.ordered.push(Control::Recovered {
                            node,
                            incarnation,
                            flows: 0,
                            broken: 0,
                        });
                    }
                    Control::Migrate { request, targets, limit, .. } => {
                        model.requests.push((request, targets[0].0.get(), limit))
                    }
                    _ => {}
                }
                if let Some(number) = number {
                    // The order is acknowledged below; the channel to the coordinator is
                    // in order.
                    model.requests.push((0, 0, number));
                }
            }
            model.fabric.inbox.clear();
            model.ordered.send(NodeId::COORDINATOR, &mut model.fabric);
            for (request, to, limit) in core::mem::take(&mut model.requests) {
                if request == 0 {
                    model
                        .fabric
                        .send_control(NodeId::COORDINATOR, &Control::Settled { handled: limit });
                    continue;
                }
                let moved = model.flows.min(limit);
                model.flows -= moved;
                arrivals.push((to, moved));
                self.moves.push(moved);
                model.fabric.send_control(
                    NodeId::COORDINATOR,
                    &Control::Migrated { request, moved, refused: 0, last: true },
                );
            }
        }
        for (to, moved) in arrivals {
            if let Some(model) =
                self.models.iter_mut().find(|model| model.peer.node == NodeId::new(to))
            {
                model.flows += moved;
            }
        }
        for model in &mut self.models {
            let wanted = model.flows * self.rate;
            model.drops += wanted.saturating_sub(CAPACITY) / 100;
            let report = Report {
                flows: model.flows,
                view: model.view,
                busy_permille: (wanted.min(CAPACITY) * 1000 / CAPACITY) as u16,
                drops: vec![(DropReason::QueueFull as u8, model.drops)],
                ..Report::default()
            };
            model.fabric.send_control(NodeId::COORDINATOR, &Control::Report(report));
        }
    }

    fn pass(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds / 10 {
            self.step();
        }
    }

    /// Lets all runtimes start.
    fn ready(mut self) -> World {
        let begins = self.begins;
        self.pass(begins / MILLISECOND + 100);
        self
    }

    fn running(&self) -> usize {
        self.coordinator
            .status()
            .filter(|status| status.member.state == MemberState::Running)
            .count()
    }

    fn flows(&self) -> Vec<u64> {
        self.models.iter().map(|model| model.flows).collect()
    }

    fn give(&mut self, flows: &[u64]) {
        for (model, flows) in self.models.iter_mut().zip(flows) {
            model.flows = *flows;
        }
    }
}

fn scaling() -> Scaling {
    Scaling { period: 100 * MILLISECOND, calm_periods: 10, ..Scaling::default() }
}

/// Two runtimes have enough to do, and a third may be started. The second gets twice its
/// capacity: a third is started, and gets half of its flows, never more than 500 at a
/// time. After that no runtime drops anything.
#[test]
fn a_runtime_that_drops_gets_help() {
    let mut world = World::new(2, 3, scaling()).ready();
    assert_eq!((world.running(), world.started), (2, 2));
    world.give(&[4_000, 14_000]);
    world.pass(3_000);
    assert_eq!(world.running(), 3);
    assert_eq!(world.flows(), [4_000, 7_000, 7_000]);
    assert!(
        world.moves.iter().all(|moved| *moved <= 500) && world.moves.len() == 14,
        "{:?}",
        world.moves
    );
    let drops: Vec<u64> = world.models.iter().map(|model| model.drops).collect();
    world.pass(1_000);
    assert_eq!(drops, world.models.iter().map(|model| model.drops).collect::<Vec<_>>());
}

/// A load that is too much for one runtime, but only for an instant, starts no other:
/// nothing is dropped, and the load is gone after two looks.
#[test]
fn being_busy_for_a_moment_is_no_reason() {
    let mut world = World::new(1, 2, scaling()).ready();
    world.give(&[9_500]);
    world.pass(200);
    world.give(&[2_000]);
    world.pass(2_000);
    assert_eq!((world.running(), world.started), (1, 1));
    // A lasting load is a reason.
    world.give(&[9_500]);
    world.pass(1_000);
    assert_eq!(world.running(), 2);
}

/// Without a spare place a runtime that has little to do helps. If none can help, nothing
/// is done, and that is counted.
#[test]
fn the_most_is_respected() {
    let mut world = World::new(2, 3, scaling()).ready();
    world.give(&[30_000, 30_000]);
    world.pass(10_000);
    assert_eq!((world.running(), world.started), (3, 3));
    assert!(world.coordinator.helpless() > 0, "nobody was left who could help");
    let flows = world.flows();
    assert_eq!(flows.iter().sum::<u64>(), 60_000);
    assert!(flows.iter().all(|flows| *flows >= 15_000), "{flows:?}");
}

/// The load goes away. The runtime with the fewest flows leaves, then the next one, down
/// to the least number, and no flow is lost.
#[test]
fn it_shrinks_to_the_least_and_loses_nothing() {
    let mut world = World::new(2, 4, scaling()).ready();
    world.give(&[19_000, 19_000]);
    world.pass(10_000);
    assert_eq!(world.running(), 4);
    world.rate = 1;
    world.pass(20_000);
    assert_eq!((world.running(), world.stopped), (2, 2));
    assert_eq!(world.flows().iter().sum::<u64>(), 38_000);
    // The places are spare again.
    world.rate = 10;
    world.pass(10_000);
    assert_eq!(world.running(), 4);
}

/// A load is too much for one runtime and very little for two: the cluster does not grow
/// and shrink in turn for ever.
#[test]
fn a_steady_load_is_left_alone() {
    let mut world = World::new(1, 2, Scaling { idle_permille: 800, ..scaling() }).ready();
    // Without a second runtime it would be busy for 79 % of its time on average, but
    // drops bursts that the average does not show.
    world.give(&[7_900]);
    let mut after_a_minute = 0;
    for second in 0..120 {
        if second == 60 {
            after_a_minute = world.started;
        }
        if world.running() == 1 {
            world.models[0].drops += 1_000;
        }
        world.pass(1_000);
    }
    // A second runtime is tried again after one second, two, four and so on.
    assert!(
        (2..=8).contains(&after_a_minute) && world.started - after_a_minute <= 2,
        "{after_a_minute}, {}",
        world.started
    );
    let flows: u64 = world.flows().iter().sum();
    assert_eq!(flows, 7_900);
}

/// A runtime that an operator has drained stays out of service, however much there is to
/// do.
#[test]
fn what_was_drained_by_hand_stays_so() {
    let mut world = World::new(3, 4, scaling()).ready();
    world.give(&[2_000, 2_000, 2_000]);
    world
        .coordinator
        .order(&Order::Drain { node: NodeId::new(18), force: false }, world.now)
        .expect("others are there");
    world.pass(2_000);
    assert_eq!(world.running(), 2);
    world.give(&[40_000, 40_000]);
    world.pass(5_000);
    let out: Vec<Member> = world
        .coordinator
        .status()
        .map(|status| status.member)
        .filter(|member| member.state == MemberState::Failed)
        .collect();
    assert_eq!(out.iter().map(|member| member.node.get()).collect::<Vec<_>>(), [18]);
}

/// The helper dies before it has got any flow, and again. The helper is started again
/// like any runtime, and gets flows when it serves.
#[test]
fn a_helper_may_die() {
    let mut world = World::new(2, 3, scaling()).ready();
    world.give(&[4_000, 14_000]);
    for _ in 0..2 {
        while world.models.len() < 3 {
            world.step();
        }
        let peer = world.models[2].peer;
        world.end(peer);
        world.step();
    }
    world.pass(5_000);
    assert_eq!((world.running(), world.flows().iter().sum::<u64>()), (3, 18_000));
    assert!(world.flows().iter().all(|flows| *flows < 10_000), "{:?}", world.flows());
}

/// A runtime fails, and another one gets all of its flows. The runtime that begins in its
/// place gets half of them, some at a time, once the cluster has been idle enough for a
/// while. A cluster that cannot grow does the same. Flows that are moved after that stay
/// where they are.
#[test]
fn who_begins_in_the_place_of_the_dead_gets_flows_when_there_is_time() {
    for max in [2, 3] {
        let mut world =
            World::new(2, max, Scaling { period: 1_000 * MILLISECOND, ..Scaling::default() })
                .ready();
        world.give(&[1_000, 1_000]);
        world.pass(500);
        let victim = world.models[1].peer;
        world.end(victim);
        world.pass(1_000);
        assert_eq!((world.running(), world.flows()), (2, vec![2_000, 0]));
        world.rate = 25;
        world.pass(15_000);
        assert_eq!(world.flows(), [2_000, 0], "it is busy for half of its time");
        world.rate = 10;
        world.pass(30_000);
        assert_eq!((world.flows(), world.moves.clone()), (vec![1_000, 1_000], vec![500, 500]));
        world.give(&[1_900, 100]);
        world.pass(30_000);
        assert_eq!(world.flows(), [1_900, 100]);
    }
}
