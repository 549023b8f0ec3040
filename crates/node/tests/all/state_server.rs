//! Worlds of a state server and instances on a network that loses, doubles and reorders.
//! Flows begin, end and move; instances die and others get their flows; the server dies,
//! and another one begins that remembers nothing. No two flows have one index of a list,
//! and no index is lost in the end. By then a gauge gives the number of flows, and a
//! counter at least the sum of what living instances have counted. In every other world
//! messages use the control transport, on ways that are cut at any word, with notice or
//! without.

mod ways;

use crate::random::Random;
use core::ops::Range;
use holdfast_nf::shared::{Counters, Lease, Part, PoolBackend, RequestPool};
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::{Control, Member, MemberState, kind};
use holdfast_node::state::{ControlTransport, Pools, StateServer, StateServerConfig, StateSession};
use holdfast_protection::Peer;
use holdfast_state::{Kind, Limits};
use holdfast_wire::fault::{Fault, Planted, plant};
use holdfast_wire::{DropReason, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use ways::Ways;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SIZES: [u32; 2] = [6, 40];
/// A number that a flow had rests for so long.
const REST: u64 = 30 * MILLISECOND;

/// Lists behind those of pools: flows that have begun, and the number of flows by pool.
const BEGUN: u32 = 2;
const FLOWS: u32 = 3;

struct Lists([RequestPool; 2], Counters, Part);

impl Lists {
    fn new(pools: [RequestPool; 2]) -> Lists {
        let mut lists = Lists(pools, Counters::new(["begun"]), Part::new(2));
        [BEGUN, FLOWS].into_iter().for_each(|list| _ = lists.with_part(list, &mut Part::share));
        lists
    }
}

impl Pools for Lists {
    fn lists(&self) -> u32 {
        2
    }

    fn statistics(&self) -> Range<u32> {
        2..4
    }

    fn with_part(&mut self, list: u32, act: &mut dyn FnMut(&mut Part)) -> bool {
        match list {
            BEGUN => act(self.1.part()),
            FLOWS => act(&mut self.2),
            _ => return false,
        }
        true
    }

    fn with(&mut self, list: u32, act: &mut dyn FnMut(&mut dyn PoolBackend)) -> bool {
        self.0.get_mut(list as usize).map(|pool| act(pool)).is_some()
    }
}

/// A list and an index of it.
type Index = (u32, u32);

struct Instance {
    peer: Peer,
    fabric: Fabric,
    session: StateSession,
    pools: Lists,
    flows: BTreeSet<Index>,
    next_statistics: u64,
    ways: Option<Ways>,
}

impl Instance {
    fn pool(&mut self, list: u32) -> &mut RequestPool {
        &mut self.pools.0[list as usize]
    }

    fn count(&mut self, list: u32, change: i64) {
        self.pools.2.add(list as usize, change);
    }

    fn turn(&mut self, now: u64, drops: &mut usize) {
        self.pools.0.iter_mut().for_each(|pool| pool.advance(now));
        let inbox = core::mem::take(&mut self.fabric.inbox);
        inbox.restarted.iter().for_each(|peer| self.session.handle_restart(*peer));
        for (record, body) in inbox.records() {
            *drops += usize::from(
                self.session
                    .handle_record(record.from, record.kind, body, &mut self.pools)
                    .is_err(),
            );
        }
        self.fabric.inbox = inbox;
        self.fabric.inbox.clear();
        if now >= self.next_statistics {
            self.next_statistics = now + 2 * MILLISECOND;
            self.session.say_statistics();
        }
        let Some(ways) = &mut self.ways else {
            return self.session.advance(&mut self.fabric, &mut self.pools);
        };
        // Words lost on the way end the session, which is no drop.
        match self.session.hear_words(ways, &mut self.pools, now) {
            Ok(_) | Err(DropReason::LostInFailure) => {}
            Err(_) => *drops += 1,
        }
        self.session.advance_with(&mut self.fabric, Some(ways), &mut self.pools, now);
    }
}

/// A dead instance: flows of which others have copies, each with the holder.
struct Dead {
    peer: Peer,
    left: Vec<(Peer, Index)>,
    is_recovered: bool,
}

/// Faults around the server, which must be found.
#[derive(Debug, Clone, Copy, Default)]
struct Errs {
    /// A new server takes all indexes for free.
    forgets: bool,
    /// A recovery is called over before others have got all flows.
    is_hasty: bool,
    /// Instances do not remember which numbers their flows had.
    is_rest_forgotten: bool,
}

struct World {
    random: Random,
    now: u64,
    errs: Errs,
    is_wide: bool,
    coordinator: Fabric,
    view: u64,
    members: BTreeMap<NodeId, Member>,
    server: Option<StateServer>,
    server_incarnation: u32,
    instances: BTreeMap<NodeId, Instance>,
    dead: Vec<Dead>,
    under_way: BTreeMap<(u64, u64), (NodeId, Vec<u8>)>,
    sent: u64,
    is_calm: bool,
    refused: usize,
    /// The time and the instance at which a flow with this index ended.
    ended: BTreeMap<Index, (u64, Peer)>,
    /// Indexes that were given to flows too soon after that.
    hurried: Vec<Index>,
    /// The server's side of the control transport, and its middle, in worlds that use it.
    ways: Option<Ways>,
}

impl World {
    fn new(seed: u64, errs: Errs) -> World {
        let mut random = Random(seed);
        let nodes = 2 + random.below(3) as u16;
        let mut world = World {
            random,
            now: MILLISECOND,
            errs,
            is_wide: seed.is_multiple_of(5),
            coordinator: Fabric::new(
                Peer { node: NodeId::COORDINATOR, incarnation: 1 },
                FabricConfig::default(),
            ),
            view: 0,
            members: BTreeMap::new(),
            server: None,
            server_incarnation: 0,
            instances: BTreeMap::new(),
            dead: Vec::new(),
            under_way: BTreeMap::new(),
            sent: 0,
            is_calm: false,
            refused: 0,
            ended: BTreeMap::new(),
            hurried: Vec::new(),
            ways: (seed % 2 == 1).then(|| Ways::new(seed)),
        };
        world.begin_server();
        (0..nodes).for_each(|at| world.begin(NodeId::runtime(at)));
        world
    }

    fn begin_server(&mut self) {
        self.server_incarnation += 1;
        let limits = |size| Limits {
            size,
            credit: 4,
            lease: 20 * MILLISECOND,
            rest: REST,
            unknown_rest: 5 * MILLISECOND,
            timeout: 8 * MILLISECOND,
            step: MILLISECOND,
        };
        let me = Peer { node: NodeId::STATE_SERVER, incarnation: self.server_incarnation };
        // There are so many lists that messages have eight bytes.
        let others = vec![Kind::Counters(1); if self.is_wide { 38 } else { 0 }];
        let config = StateServerConfig {
            listener: NodeId::MANAGER,
            report_interval: 20 * MILLISECOND,
            heartbeat: 20 * MILLISECOND,
            me,
            fabric: FabricConfig::default(),
            kinds: SIZES
                .map(|size| Kind::Indexes(limits(size)))
                .into_iter()
                .chain([Kind::Counters(1), Kind::Gauge(2)])
                .chain(others)
                .collect(),
            pages: Vec::new(),
            waiting: 512,
            memory: self.server_incarnation.into(),
            is_first: self.server_incarnation == 1 || self.errs.forgets,
            tick: MILLISECOND,
        };
        self.server = StateServer::new(config);
        if let Some(ways) = &mut self.ways {
            ways.begin(NodeId::STATE_SERVER);
        }
        self.coordinator.set_peer(me);
        let dead =
            self.dead.iter().filter(|dead| !dead.is_recovered).map(|dead| dead.peer).collect();
        self.coordinator
            .send_control(NodeId::STATE_SERVER, &Control::Recovering { dead, epoch: 0 });
        self.tell();
    }

    /// Tells the server the members.
    fn tell(&mut self) {
        self.view += 1;
        let view =
            Control::View { version: self.view, members: self.members.values().copied().collect() };
        self.coordinator.send_control(NodeId::STATE_SERVER, &view);
    }

    fn begin(&mut self, node: NodeId) {
        let incarnation = self.members.get(&node).map_or(0, |member| member.incarnation) + 1;
        let peer = Peer { node, incarnation };
        let credit = 1 + self.random.below(4);
        let rest = if self.errs.is_rest_forgotten { 0 } else { REST };
        let instance = Instance {
            peer,
            fabric: Fabric::new(peer, FabricConfig::default()),
            session: StateSession::new(NodeId::STATE_SERVER, 64),
            ways: self.ways.as_ref().map(|ways| ways.side_of(node)),
            pools: Lists::new(SIZES.map(|size| RequestPool::new(size, credit).resting(rest))),
            flows: BTreeSet::new(),
            next_statistics: 0,
        };
        self.instances.insert(node, instance);
        self.members.insert(
            node,
            Member { node, incarnation, state: MemberState::Running, cluster: 0, host: 0 },
        );
        self.tell();
    }

    fn anybody(&mut self) -> NodeId {
        let nodes: Vec<NodeId> = self.instances.keys().copied().collect();
        nodes[self.random.below(nodes.len())]
    }

    /// An instance that the server knows.
    fn anybody_joined(&mut self) -> Option<NodeId> {
        let joined = self.instances.values().filter(|instance| instance.session.has_joined());
        let nodes: Vec<NodeId> = joined.map(|instance| instance.peer.node).collect();
        (!nodes.is_empty()).then(|| nodes[self.random.below(nodes.len())])
    }

    fn at(&mut self, node: NodeId) -> &mut Instance {
        self.instances.get_mut(&node).expect("it lives")
    }

    fn some_flow(&mut self, node: NodeId) -> Option<Index> {
        let flows: Vec<Index> = self.at(node).flows.iter().copied().collect();
        (!flows.is_empty()).then(|| flows[self.random.below(flows.len())])
    }

    fn open(&mut self, node: NodeId) {
        let list = self.random.below(2) as u32;
        let instance = self.at(node);
        if instance.session.has_joined()
            && let Lease::Granted(index) =
                instance.pool(list).lease(&(0..SIZES[list as usize]), None)
        {
            instance.flows.insert((list, index));
            instance.count(list, 1);
            instance.pools.1.add(0, 1);
            // The instance that knew of the end may be dead, and the server after it.
            let is_alive = |peer: &Peer| {
                self.instances.get(&peer.node).is_some_and(|there| there.peer == *peer)
            };
            if self
                .ended
                .get(&(list, index))
                .is_some_and(|(at, by)| self.now - at < REST && is_alive(by))
            {
                self.hurried.push((list, index));
            }
        }
    }

    fn end_flow(&mut self, node: NodeId) {
        if let Some((list, index)) = self.some_flow(node) {
            self.at(node).flows.remove(&(list, index));
            self.at(node).count(list, -1);
            self.at(node).pool(list).give_back(index);
            let by = self.at(node).peer;
            self.ended.insert((list, index), (self.now, by));
        }
    }

    fn adopt(&mut self, node: NodeId, (list, index): Index) {
        let instance = self.at(node);
        instance.flows.insert((list, index));
        instance.count(list, 1);
        instance.pool(list).adopt(index);
    }

    fn move_flow(&mut self, from: NodeId) {
        let Some(to) = self.anybody_joined().filter(|to| *to != from) else { return };
        if let Some((list, index)) = self.some_flow(from) {
            self.adopt(to, (list, index));
            self.at(from).flows.remove(&(list, index));
            self.at(from).count(list, -1);
            self.at(from).pool(list).forget(index);
            self.at(from).pool(list).settle();
        }
    }

    fn kill(&mut self, node: NodeId) {
        if self.dead.iter().any(|dead| dead.peer.node == node) {
            return;
        }
        let Instance { peer, flows, .. } = self.instances.remove(&node).expect("it lives");
        let mut left = Vec::new();
        for index in flows {
            // A flow without a copy is lost.
            left.extend(self.anybody_joined().map(|heir| (self.instances[&heir].peer, index)));
        }
        self.dead.push(Dead { peer, left, is_recovered: false });
        self.coordinator.send_control(
            NodeId::STATE_SERVER,
            &Control::Recover { node, incarnation: peer.incarnation },
        );
        if self.errs.is_hasty {
            self.recovered(peer);
        }
        if let Some(member) = self.members.get_mut(&node) {
            member.state = MemberState::Failed;
        }
        self.tell();
        if self.instances.is_empty() {
            self.begin(node);
        }
    }

    fn recovered(&mut self, Peer { node, incarnation }: Peer) {
        self.coordinator.send_control(
            NodeId::STATE_SERVER,
            &Control::Sweep { node, incarnation, is_over: true },
        );
    }

    /// Takes one step of the recovery from a death.
    fn mourn(&mut self) {
        if self.dead.is_empty() {
            return;
        }
        let at = self.random.below(self.dead.len());
        let node = self.dead[at].peer.node;
        if let Some((heir, index)) = self.dead[at].left.pop() {
            if self.instances.get(&heir.node).is_some_and(|there| there.peer == heir) {
                self.adopt(heir.node, index);
            }
        } else if !self.dead[at].is_recovered {
            self.dead[at].is_recovered = true;
            self.recovered(self.dead[at].peer);
        } else if !self.instances.contains_key(&node) {
            self.begin(node);
        } else if self
            .server
            .as_ref()
            .is_some_and(|server| !server.server().is_mourning(self.dead[at].peer))
        {
            self.dead.remove(at);
        }
    }

    /// All processes take a turn, and frames that are due arrive.
    fn pass(&mut self, time: u64) {
        self.now += time;
        while let Some(((at, number), (node, frame))) = self.under_way.pop_first() {
            if at > self.now {
                self.under_way.insert((at, number), (node, frame));
                break;
            }
            // Refused frames are counted by the receiver, and repeated.
            match (node, &mut self.server) {
                (NodeId::STATE_SERVER, Some(server)) => server.handle_frame(&frame, self.now),
                (NodeId::COORDINATOR, _) => _ = self.coordinator.handle_frame(&frame, self.now),
                _ => {
                    _ = self
                        .instances
                        .get_mut(&node)
                        .map(|instance| instance.fabric.handle_frame(&frame, self.now))
                }
            }
        }
        self.coordinator.inbox.clear();
        let mut frames = Vec::new();
        let mut transmit = |frame: &[u8]| {
            frames.push(frame.to_vec());
            true
        };
        if let Some(server) = &mut self.server {
            server.turn_with(
                self.ways.as_mut().map(|ways| ways as &mut dyn ControlTransport),
                self.now,
            );
            server.fabric().poll_transmit(self.now, &mut transmit);
        }
        for instance in self.instances.values_mut() {
            instance.turn(self.now, &mut self.refused);
            instance.fabric.poll_transmit(self.now, &mut transmit);
        }
        self.coordinator.poll_transmit(self.now, &mut transmit);
        for frame in frames {
            self.send(frame);
        }
    }

    fn send(&mut self, frame: Vec<u8>) {
        let to = frame.first_chunk().and_then(NodeId::of_mac).expect("frames are for nodes");
        let copies = match self.random.below(20) {
            0 if !self.is_calm => 0,
            1 if !self.is_calm => 2,
            _ => 1,
        };
        for _ in 0..copies {
            self.sent += 1;
            let stray = if self.random.one_in(30) && !self.is_calm { 20 } else { 1 };
            let delay = (20 + self.random.next() % 80) * MICROSECOND * stray;
            self.under_way.insert((self.now + delay, self.sent), (to, frame.clone()));
        }
    }

    fn step(&mut self) {
        let node = self.anybody();
        match self.random.below(24) {
            0..6 => self.open(node),
            6..9 => self.end_flow(node),
            9..12 => self.move_flow(node),
            12 if self.random.one_in(4) && self.dead.len() < 2 => self.kill(node),
            13 if self.random.one_in(8) => self.server = None,
            16 | 17 => {
                if let Some(ways) = &mut self.ways {
                    ways.cut();
                }
            }
            14 if self.server.is_none() => self.begin_server(),
            15 | 18 => self.mourn(),
            20 if self.random.one_in(4) => (0..30).for_each(|_| self.pass(MILLISECOND)),
            _ => {}
        }
        let time = self.random.next() % (400 * MICROSECOND);
        self.pass(time);
    }

    /// Checks the invariants of any time.
    fn check(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        let is_alive =
            |heir: &Peer| self.instances.get(&heir.node).is_some_and(|there| there.peer == *heir);
        let of_dead = self
            .dead
            .iter()
            .flat_map(|dead| &dead.left)
            .filter(|(heir, _)| is_alive(heir))
            .map(|(_, index)| *index);
        let of_living = self.instances.values().flat_map(|instance| instance.flows.iter().copied());
        if let Some(index) = of_living.chain(of_dead).find(|index| !seen.insert(*index)) {
            return Err(format!("two flows have {index:?}"));
        }
        for instance in self.instances.values() {
            let held = (0..).zip(&instance.pools.0).flat_map(|(list, pool)| {
                (0..SIZES[list as usize])
                    .filter(|index| pool.is_held(*index))
                    .map(move |index| (list, index))
            });
            let held: BTreeSet<Index> = held.collect();
            if held != instance.flows {
                return Err(format!(
                    "pools know of {held:?}, and the flows are {:?}",
                    instance.flows
                ));
            }
        }
        match self.server.as_ref().map(|server| server.server().failures()) {
            None | Some(0) => Ok(()),
            Some(failures) => Err(format!("the server has refused {failures} messages")),
        }
    }

    /// Lets all frames arrive, while nothing new happens.
    fn settle(&mut self) {
        self.is_calm = true;
        if let Some(ways) = &mut self.ways {
            ways.heal();
        }
        if self.server.is_none() {
            self.begin_server();
        }
        // The time is longer than a session lasts that hears nothing.
        for _ in 0..if self.ways.is_some() { 2400 } else { 400 } {
            self.mourn();
            self.pass(MILLISECOND);
        }
    }

    /// Returns the flows in the end, the servers that have died, and the words that have
    /// arrived.
    fn live(&mut self) -> Result<[usize; 3], String> {
        for _ in 0..100 + self.random.below(400) {
            self.step();
            self.check()?;
        }
        self.settle();
        self.check()?;
        if !self.dead.is_empty() {
            return Err("somebody is mourned for ever".to_owned());
        }
        if let Some((list, index)) = self.hurried.first() {
            return Err(format!("{index} of {list} was a flow's too soon after it was another's"));
        }
        if self.refused > 0 {
            return Err(format!("instances did not understand {} records", self.refused));
        }
        let server = self.server.as_ref().expect("there is one").server();
        let flows: usize = self.instances.values().map(|instance| instance.flows.len()).sum();
        for instance in self.instances.values() {
            for (list, index) in &instance.flows {
                let holders: Vec<Peer> =
                    server.list(*list).expect("it is one").holders(*index).collect();
                if holders != [instance.peer] {
                    return Err(format!(
                        "{index} of {list} is {:?}'s, and the server says {holders:?}",
                        instance.peer
                    ));
                }
            }
        }
        let counted: u64 = self
            .instances
            .values()
            .flat_map(|instance| instance.pools.1.report())
            .map(|(_, begun)| begun)
            .sum();
        if server.statistic(BEGUN, 0).is_none_or(|begun| begun.unsigned_abs() < counted) {
            return Err(format!(
                "{counted} flows have begun, and the server has counted {:?}",
                server.statistic(BEGUN, 0)
            ));
        }
        for list in 0..2 {
            let flows = self
                .instances
                .values()
                .flat_map(|instance| &instance.flows)
                .filter(|(of, _)| *of == list)
                .count() as i64;
            let total = server.statistic(FLOWS, list);
            let read = self.instances.values().map(|instance| instance.pools.2.sum(list as usize));
            let read: Vec<i64> = read.collect();
            if total != Some(flows) || read.iter().any(|read| *read != flows) {
                return Err(format!(
                    "{flows} flows have numbers of {list}, the gauge says {total:?}, and to instances {read:?}"
                ));
            }
        }
        let held: u32 =
            (0..2).filter_map(|list| server.account(list)).map(|account| account.held).sum();
        // Credit that was claimed from a server that knew nothing counts as held, as far
        // as the server knows.
        let credit: u32 = self
            .instances
            .values()
            .flat_map(|instance| &instance.pools.0)
            .map(|pool| pool.available())
            .sum();
        let claimed = if self.server_incarnation > 1 { credit as usize } else { 0 };
        if !(flows..=flows + claimed).contains(&(held as usize)) {
            return Err(format!(
                "there are {flows} flows and {credit} numbers at hand, and the server knows of {held}"
            ));
        }
        Ok([
            flows,
            self.server_incarnation as usize - 1,
            self.ways.as_ref().map_or(0, Ways::carried),
        ])
    }
}

#[test]
fn no_two_flows_have_one_index_whoever_dies() {
    let lived = |seed| {
        World::new(seed, Errs::default())
            .live()
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"))
    };
    let [flows, deaths, words] =
        (0..1000).map(lived).fold([0; 3], |all, one| core::array::from_fn(|at| all[at] + one[at]));
    let is_much = flows > 1000 && deaths > 1000 && words > 100_000;
    assert!(
        is_much,
        "{flows} flows lived to the end, {deaths} servers died, {words} words arrived: these worlds show little"
    );
}

#[test]
fn planted_faults_are_found() {
    let errs = [
        Errs { forgets: true, ..Errs::default() },
        Errs { is_hasty: true, ..Errs::default() },
        Errs { is_rest_forgotten: true, ..Errs::default() },
    ];
    let around = errs.map(|errs| (Planted::default(), errs));
    let faults = [Fault::KeepsPartsOfTheDead, Fault::BelievesAnyWords]
        .map(|fault| (fault.into(), Errs::default()));
    for (planted, errs) in around.into_iter().chain(faults) {
        let _planting = plant(planted);
        let is_noticed = |seed| World::new(seed, errs).live().is_err();
        assert!((0..400).any(is_noticed), "nobody noticed {planted:?}, {errs:?}");
    }
}

/// Any record from a stranger is counted, and all others go on.
#[test]
fn records_from_strangers_are_counted() {
    let mut world = World::new(1, Errs::default());
    world.settle();
    let node = world.anybody();
    let before: u64 = world.server.as_ref().expect("there is one").drops().total();
    let bodies: [&[u8]; 7] = [&[], &[1], &[0; 4], &[0xff; 22], &[4; 23], &[0; 300], &[4; 300]];
    for kind in
        [kind::STATE_HELLO, kind::STATE_WELCOME, kind::STATE, kind::STATE_OVER, kind::CONTROL, 200]
    {
        for body in bodies {
            world.at(node).fabric.send(NodeId::STATE_SERVER, kind, body).expect("there is room");
            world.settle();
        }
    }
    let drops = world.server.as_ref().expect("there is one").drops().total() - before;
    assert!(drops >= 20, "only {drops} of 42 records were counted");
    world.open(node);
    world.settle();
    world.check().expect("nothing has happened");
    let strangers = world.at(node);
    for (record, body) in [
        (kind::STATE, &[0u8; 3][..]),
        (kind::STATE_WELCOME, &[9; 22]),
        (kind::STATE_OVER, &[]),
        (99, &[]),
    ] {
        let from = Peer { node: NodeId::STATE_SERVER, incarnation: 1 };
        assert!(
            strangers.session.handle_record(from, record, body, &mut strangers.pools).is_err(),
            "{record}"
        );
        let other = Peer { node: NodeId::COORDINATOR, incarnation: 1 };
        assert!(
            strangers.session.handle_record(other, record, body, &mut strangers.pools).is_err(),
            "{record}"
        );
    }
    world.settle();
    world.check().expect("it begins again");
}
