//! Worlds of instances whose flows hold indexes of a list at a server: flows begin, end
//! and move, instances die and others get their flows, connections are cut, everything is
//! late. Two flows never have one index, and none is lost in the end. The server dies
//! too, and its standby goes on. In the end its counter has counted all flows that began,
//! and its gauge all that are there.

use crate::random::Random;
use holdfast_nf::shared::{Counters, Lease, Part, PoolBackend, RequestPool};
use holdfast_state::{Client, Heard, Input, Kind, Limits, Message, Primary, Server};
use holdfast_wire::fault::{Fault, Planted, is_planted, plant};
use holdfast_wire::{NodeId, Peer};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const LIST: u32 = 0;
/// How many flows there have been.
const BEGUN: u32 = 1;
/// How many there are now: with an even index, with an odd one.
const FLOWS: u32 = 2;

/// Faults around the server.
#[derive(Debug, Clone, Copy, Default)]
struct Errs {
    /// A server that remembers nothing takes everything for free.
    forgets: bool,
    /// A recovery is reported as complete before all flows have arrived.
    is_hasty: bool,
    /// A server that remembers nothing is not told of statistics what had been said.
    is_silent: bool,
}

/// Messages that an instance may leave unacknowledged.
const WAITING: usize = 1 << 16;

fn kinds(limits: Limits) -> [Kind; 3] {
    [Kind::Indexes(limits), Kind::Counters(1), Kind::Gauge(2)]
}

/// A unit of the world's time, for pools.
const MILLISECOND: u64 = 1_000_000;

/// An instance, and what lies between it and the server.
struct Instance {
    client: Client,
    pool: RequestPool,
    to_server: VecDeque<Message>,
    to_instance: VecDeque<Message>,
    flows: BTreeSet<u32>,
    is_alive: bool,
    /// Flows that began here.
    begun: u64,
    counter: Counters,
    gauge: Part,
}

impl Instance {
    /// Says how its part of statistics has changed. True if that is all.
    fn gather_statistics(&mut self) -> bool {
        let Instance { client, counter, gauge, .. } = self;
        client.gather_statistics(BEGUN, counter.part()) & client.gather_statistics(FLOWS, gauge)
    }

    fn count(&mut self, index: u32, change: i64) {
        self.gauge.add(index as usize % 2, change);
    }

    fn credit(&self, size: u32) -> impl Iterator<Item = u32> + '_ {
        (0..size).filter(|index| self.pool.is_free(*index))
    }
}

/// An instance that died, and what its flows had. Others claim the indexes, one after the
/// other.
struct Mourned {
    peer: Peer,
    /// The index of each flow, and the instance that has a copy of the flow.
    flows: Vec<(u32, Peer)>,
    is_fenced: bool,
    is_recovered: bool,
}

macro_rules! note {
    ($world:expr, $($what:tt)+) => {
        if let Some(trace) = &mut $world.trace {
            trace.push(format!($($what)+));
        }
    };
}

struct World {
    random: Random,
    limits: Limits,
    primary: Primary,
    /// The standby, the first input that it has not applied, the first that it has not
    /// confirmed, and its attachment.
    standby: Option<(Server, u64, u64, u32)>,
    deaths: u64,
    /// Servers that died with all that they had.
    losses: u64,
    /// Flows that have begun at instances that are dead.
    begun_before: u64,
    instances: BTreeMap<Peer, Instance>,
    mourned: Vec<Mourned>,
    errs: Errs,
    now: u64,
    incarnation: u32,
    refused: Option<String>,
    /// Flows move more often than anything else happens.
    moves_much: bool,
    /// A log of events, for a failed test.
    trace: Option<Vec<String>>,
}

impl World {
    fn new(seed: u64, errs: Errs, is_traced: bool) -> World {
        let mut random = Random(seed);
        let limits = Limits {
            size: 1 + random.below(12) as u32,
            credit: 1 + random.below(4) as u32,
            lease: if random.one_in(3) { 0 } else { 50 + random.next() % 100 },
            rest: if random.one_in(2) { 0 } else { random.next() % 100 },
            unknown_rest: u64::MAX,
            timeout: 5 + random.next() % 40,
            step: 1 + random.next() % 5,
        };
        let server = Server::new(&kinds(limits), WAITING, 0).expect("it is small");
        let mut world = World {
            random,
            limits,
            primary: Primary::new(server),
            errs,
            standby: None,
            deaths: 0,
            losses: 0,
            begun_before: 0,
            instances: BTreeMap::new(),
            mourned: Vec::new(),
            now: 0,
            incarnation: 0,
            refused: None,
            moves_much: seed.is_multiple_of(2),
            trace: is_traced.then(Vec::new),
        };
        (0..2 + world.random.below(3)).for_each(|node| world.begin(NodeId::new(node as u16)));
        world
    }

    fn begin(&mut self, node: NodeId) {
        self.incarnation += 1;
        let peer = Peer { node, incarnation: self.incarnation };
        self.apply(Input::Joined(peer));
        let waiting = if self.random.one_in(3) { 2 } else { 1 << 16 };
        let instance = Instance {
            client: Client::new(waiting),
            pool: RequestPool::new(
                self.limits.size,
                1 + self.random.below(self.limits.credit as usize),
            ),
            to_server: VecDeque::new(),
            to_instance: VecDeque::new(),
            flows: BTreeSet::new(),
            is_alive: true,
            begun: 0,
            counter: Counters::new(["begun"]),
            gauge: Part::new(2),
        };
        let Instance { counter, gauge, .. } = self.instances.entry(peer).or_insert(instance);
        [counter.part(), gauge].into_iter().for_each(Part::share);
        self.join(peer);
    }

    fn living(&self) -> Vec<Peer> {
        self.instances
            .iter()
            .filter(|(_, instance)| instance.is_alive)
            .map(|(peer, _)| *peer)
            .collect()
    }

    fn anybody(&mut self) -> Peer {
        let living = self.living();
        living[self.random.below(living.len())]
    }

    fn at(&mut self, peer: Peer) -> &mut Instance {
        self.instances.get_mut(&peer).expect("it has not been forgotten")
    }

    /// The instance says what it has to say, or some of it.
    fn gather(&mut self, peer: Peer) {
        let now = self.now.saturating_mul(MILLISECOND);
        let instance = self.at(peer);
        instance.pool.advance(now);
        instance.client.gather(LIST, &mut instance.pool);
        instance.gather_statistics();
    }

    fn apply(&mut self, input: Input) {
        note!(self, "server: {input:?}");
        self.primary.apply(input).expect("nobody makes mistakes here");
    }

    fn join(&mut self, peer: Peer) {
        let instance = self.instances.get_mut(&peer).expect("it has not been forgotten");
        if instance.client.link().is_open() || !instance.is_alive {
            return;
        }
        let server = self.primary.server();
        if instance.client.meet(server.memory(), server.form()) {
            instance.pool.announce();
            if !self.errs.is_silent {
                [instance.counter.part(), &mut instance.gauge].into_iter().for_each(Part::announce);
            }
        }
        let link = instance.client.link();
        if let Some(theirs) = self.primary.received(peer) {
            link.begin(theirs).expect("they know each other");
            let arrived = link.received();
            self.apply(Input::Begun { with: peer, arrived });
        }
    }

    fn cut(&mut self, peer: Peer) {
        let instance = self.at(peer);
        instance.client.link().end();
        instance.to_server.clear();
        instance.to_instance.clear();
        self.apply(Input::Over(peer));
    }

    /// Some of what is under way arrives.
    fn carry(&mut self, peer: Peer, count: usize) {
        let instance = self.instances.get_mut(&peer).expect("it has not been forgotten");
        while let Some(message) = instance.client.link().poll() {
            instance.to_server.push_back(message);
        }
        while let Some(message) = self.primary.poll(peer) {
            instance.to_instance.push_back(message);
        }
        if self.random.one_in(2) {
            instance.to_server.extend(instance.client.link().acknowledge());
            instance.to_instance.extend(self.primary.acknowledge(peer));
        }
        for _ in 0..count {
            if let Some(message) = self.at(peer).to_server.pop_front() {
                self.apply(Input::Said { from: peer, message });
            }
            let instance = self.at(peer);
            if instance.is_alive
                && let Some(message) = instance.to_instance.pop_front()
            {
                note!(self, "{peer:?} hears {message}");
                self.hear(peer, message);
            }
        }
    }

    /// The standby hears of some inputs, and the server hears which of them the standby
    /// has.
    fn replicate(&mut self, count: usize) {
        let Some((standby, applied, said, attachment)) = &mut self.standby else {
            let (server, next, attachment) = self.primary.attach();
            self.standby = Some((server, next, next, attachment));
            return;
        };
        self.primary.saved(*attachment, *said);
        *said = *applied;
        for input in self.primary.inputs(*applied).expect("it is kept").take(count) {
            standby.apply(input).expect("the server has taken it");
            *applied += 1;
        }
        if self.primary.inputs(*applied).is_some_and(|mut rest| rest.next().is_none()) {
            let of = |server: &Server| {
                let list = server.list(LIST).expect("it is one");
                let holders: Vec<Vec<Peer>> =
                    (0..self.limits.size).map(|index| list.holders(index).collect()).collect();
                let statistics = [BEGUN, FLOWS].map(|list| {
                    let statistics = server.statistics(list).expect("it is one");
                    format!(
                        "{:?} {:?}",
                        statistics.totals(),
                        statistics.parts().collect::<Vec<_>>()
                    )
                });
                (holders, list.account(), statistics, server.instances().collect::<Vec<_>>())
            };
            assert_eq!(of(self.primary.server()), of(standby));
            for peer in self.instances.keys() {
                let of = |server: &mut Server| {
                    server
                        .link(*peer)
                        .map(|link| (link.sent(), link.received(), link.waiting(), link.is_open()))
                };
                assert_eq!(of(&mut self.primary.server().clone()), of(standby));
            }
        }
    }

    /// The server dies, and its standby goes on.
    fn fail_over(&mut self) {
        let Some((standby, ..)) = self.standby.take_if(|_| self.primary.is_safe()) else { return };
        note!(self, "the server dies");
        self.deaths += 1;
        self.primary = Primary::new(standby);
        let all: Vec<Peer> = self.instances.keys().copied().collect();
        for peer in all {
            self.apply(Input::Joined(peer));
            self.cut(peer);
        }
        // The new server is told again which instances live and which are mourned; it
        // learns that the others are dead, too.
        let is_gone = |peer: &Peer| !self.instances.contains_key(peer);
        let mourned =
            self.mourned.iter().filter(|mourned| mourned.is_fenced).map(|mourned| mourned.peer);
        let gone: Vec<Peer> =
            self.primary.server().instances().filter(is_gone).chain(mourned).collect();
        gone.into_iter().for_each(|peer| self.apply(Input::Dead(peer)));
        self.say_who_is_recovered();
    }

    fn say_who_is_recovered(&mut self) {
        let recovered = self.mourned.iter().filter(|mourned| mourned.is_recovered);
        let recovered: Vec<Peer> = recovered.map(|mourned| mourned.peer).collect();
        recovered.into_iter().for_each(|peer| self.apply(Input::Recovered(peer)));
    }

    /// Server and standby die: nobody remembers who has what.
    fn lose_all(&mut self) {
        note!(self, "the server and all that it has is lost");
        self.losses += 1;
        self.standby = None;
        let begin = if self.errs.forgets { Server::new } else { Server::unknown };
        let server = begin(&kinds(self.limits), WAITING, self.losses).expect("it is small");
        self.primary = Primary::new(server);
        let all: Vec<Peer> = self.instances.keys().copied().collect();
        for peer in all {
            self.apply(Input::Joined(peer));
            self.cut(peer);
        }
        let mourned: Vec<Peer> = self
            .mourned
            .iter()
            .filter(|mourned| mourned.is_fenced)
            .map(|mourned| mourned.peer)
            .collect();
        mourned.into_iter().for_each(|peer| self.apply(Input::Dead(peer)));
        self.say_who_is_recovered();
        self.apply(Input::Complete);
    }

    fn hear(&mut self, peer: Peer, message: Message) {
        let instance = self.at(peer);
        match instance.client.accept(message).expect("it is right") {
            Some(Heard::Pool(message)) => {
                instance.client.carry_out(message, Some(&mut instance.pool))
            }
            Some(Heard::Refused(message)) => {
                self.refused = Some(format!("{peer:?} is refused {message}"))
            }
            Some(Heard::RollCall) | None => {}
            Some(Heard::Statistic { list: FLOWS, index, value }) => {
                instance.gauge.hear(index, value)
            }
            Some(Heard::Statistic { .. }) => panic!("nobody has asked"),
        }
    }

    fn open(&mut self, peer: Peer) {
        let (size, random) = (self.limits.size, self.random.next());
        let instance = self.at(peer);
        if let Lease::Granted(index) =
            instance.pool.lease(&(0..size), Some(random).filter(|random| random % 2 == 0))
        {
            instance.flows.insert(index);
            instance.begun += 1;
            instance.counter.add(0, 1);
            instance.count(index, 1);
            note!(self, "{peer:?} opens a flow with {index}");
        }
    }

    fn some_flow(&mut self, peer: Peer) -> Option<u32> {
        let flows: Vec<u32> = self.at(peer).flows.iter().copied().collect();
        (!flows.is_empty()).then(|| flows[self.random.below(flows.len())])
    }

    fn end_flow(&mut self, peer: Peer) {
        if let Some(index) = self.some_flow(peer) {
            note!(self, "{peer:?} ends the flow with {index}");
            let instance = self.at(peer);
            instance.flows.remove(&index);
            instance.count(index, -1);
            instance.pool.give_back(index);
        }
    }

    /// The new owner has the flow before the old one lets it go.
    fn move_flow(&mut self, from: Peer, to: Peer) {
        if let Some(index) = self.some_flow(from).filter(|_| from != to) {
            note!(self, "{from:?} moves the flow with {index} to {to:?}");
            self.adopt(to, index);
            let source = self.at(from);
            source.flows.remove(&index);
            source.count(index, -1);
            source.pool.forget(index);
            source.pool.settle();
        }
    }

    fn adopt(&mut self, peer: Peer, index: u32) {
        let instance = self.at(peer);
        instance.flows.insert(index);
        instance.count(index, 1);
        instance.pool.adopt(index);
    }

    fn kill(&mut self, peer: Peer) {
        // No incarnation of a node ends before the one before it is known to have ended.
        if self.mourned.iter().any(|mourned| mourned.peer.node == peer.node && !mourned.is_fenced) {
            return;
        }
        note!(self, "{peer:?} dies");
        // Messages that were sent may still arrive; nothing is sent again.
        let instance = self.at(peer);
        instance.is_alive = false;
        let flows = core::mem::take(&mut instance.flows);
        if self.random.one_in(2) {
            self.begin(peer.node);
        }
        if self.living().is_empty() {
            self.begin(peer.node);
        }
        let flows = flows.into_iter().map(|index| (index, self.anybody())).collect();
        self.mourned.push(Mourned { peer, flows, is_fenced: false, is_recovered: false });
    }

    /// A step of the recovery from an instance's death.
    fn mourn(&mut self, at: usize) {
        let dead = &mut self.mourned[at];
        let peer = dead.peer;
        if !dead.is_fenced {
            dead.is_fenced = true;
            self.cut(peer);
            self.apply(Input::Dead(peer));
            self.begun_before += self.instances.remove(&peer).map_or(0, |instance| instance.begun);
            if !self.instances.keys().any(|other| other.node == peer.node) {
                self.begin(peer.node);
            }
        } else if self.errs.is_hasty && !dead.is_recovered {
            dead.is_recovered = true;
            self.apply(Input::Recovered(peer));
        } else if let Some((index, heir)) = dead.flows.pop() {
            // With its copy the flow is lost: that is two failures.
            if self.instances.get(&heir).is_some_and(|heir| heir.is_alive) {
                note!(self, "{heir:?} gets the flow with {index}");
                self.adopt(heir, index);
            }
        } else if !dead.is_recovered {
            dead.is_recovered = true;
            self.apply(Input::Recovered(peer));
        } else if !self.primary.server().is_mourning(peer) {
            self.mourned.remove(at);
        }
    }

    fn pass(&mut self, time: u64) {
        self.now += time;
        self.apply(Input::Time(self.now));
    }

    /// An instance that has claimed all that it has says so.
    fn speak_of_the_dead(&mut self, peer: Peer) {
        let instance = self.at(peer);
        if instance.client.gather(LIST, &mut instance.pool) && instance.gather_statistics() {
            instance.client.claimed();
        }
    }

    fn step(&mut self) {
        let peer = self.anybody();
        if self.random.one_in(4) {
            self.speak_of_the_dead(peer);
        }
        if self.random.one_in(2) {
            self.gather(peer);
        }
        match self.random.below(24) {
            0..4 => self.open(peer),
            4..6 => self.end_flow(peer),
            6..8 => {
                let to = self.anybody();
                self.move_flow(peer, to);
            }
            8 if self.random.one_in(3) && self.mourned.len() < 2 => self.kill(peer),
            9 => self.cut(peer),
            10..12 => self.join(peer),
            12 if !self.mourned.is_empty() => {
                let at = self.random.below(self.mourned.len());
                self.mourn(at);
            }
            13 => {
                let time = self.random.next() % 30;
                self.pass(time);
            }
            20..22 if self.moves_much => {
                let to = self.anybody();
                self.move_flow(peer, to);
            }
            20..23 => {
                let count = self.random.below(20);
                self.replicate(count);
            }
            23 if self.random.one_in(4) => self.fail_over(),
            23 if self.random.one_in(6) => self.lose_all(),
            23 if self.random.one_in(4) => (0..4).for_each(|_| self.lull()),
            14 => {
                let all: Vec<Peer> = self.instances.keys().copied().collect();
                let peer = all[self.random.below(all.len())];
                self.carry(peer, 1);
            }
            _ => {
                let count = 1 + self.random.below(6);
                self.carry(peer, count);
            }
        }
    }

    /// Checks the invariants.
    fn check(&mut self) -> Result<(), String> {
        if let Some(refused) = self.refused.take() {
            return Err(refused);
        }
        let account = self.primary.server().account(LIST).expect("it is one");
        if account.size() != self.limits.size {
            return Err(format!("{account:?} is not {}", self.limits.size));
        }
        let gauge = self.primary.server().statistics(FLOWS).expect("it is one");
        let sum = |index: usize| gauge.parts().map(|(_, part)| part[index]).sum::<i64>();
        if gauge.totals() != [sum(0), sum(1)] && !is_planted(Fault::KeepsPartsOfTheDead) {
            return Err(format!(
                "{:?} is not the sum of {:?}",
                gauge.totals(),
                gauge.parts().collect::<Vec<_>>()
            ));
        }
        let living = self.instances.values().filter(|instance| instance.is_alive);
        let of_living = living.flat_map(|instance| {
            instance.flows.iter().copied().chain(instance.credit(self.limits.size))
        });
        // A flow without a copy is lost.
        let has_copy = |heir: &Peer| self.instances.get(heir).is_some_and(|heir| heir.is_alive);
        let of_dead = self
            .mourned
            .iter()
            .flat_map(|dead| &dead.flows)
            .filter(|(_, heir)| has_copy(heir))
            .map(|(index, _)| *index);
        let mut seen = BTreeSet::new();
        if let Some(index) = of_living.chain(of_dead).find(|index| !seen.insert(*index)) {
            return Err(format!("two have index {index}"));
        }
        for instance in self.instances.values().filter(|instance| instance.is_alive) {
            let held: BTreeSet<u32> =
                (0..self.limits.size).filter(|index| instance.pool.is_held(*index)).collect();
            if held != instance.flows {
                return Err(format!(
                    "the pool knows of {held:?}, and the flows are {:?}",
                    instance.flows
                ));
            }
        }
        Ok(())
    }

    /// Everything arrives, and time passes.
    fn lull(&mut self) {
        for peer in self.living() {
            self.gather(peer);
            self.speak_of_the_dead(peer);
            self.join(peer);
            self.carry(peer, usize::from(u8::MAX));
        }
        self.replicate(usize::MAX);
        let time = self.limits.timeout.max(self.limits.step);
        self.pass(time);
    }

    /// Ends all activity: everything under way arrives.
    fn settle(&mut self) {
        for _ in 0..150 {
            if !self.mourned.is_empty() {
                let at = self.random.below(self.mourned.len());
                self.mourn(at);
            }
            self.lull();
        }
        // While time stands still nobody is asked anything, and what can wait has room.
        // But for the last look: everybody is to be told.
        for round in 0..40 {
            for peer in self.living() {
                self.gather(peer);
                self.carry(peer, usize::from(u8::MAX));
            }
            self.replicate(usize::MAX);
            self.pass(u64::from(round == 20));
        }
    }

    /// When all has arrived the server's gauge says how many flows there are, and so does
    /// everybody's.
    fn check_gauge(&self) -> Result<(), String> {
        let gauge = self.primary.server().statistics(FLOWS).expect("it is one");
        for odd in 0..2 {
            let flows = self
                .instances
                .values()
                .flat_map(|instance| &instance.flows)
                .filter(|index| **index as usize % 2 == odd)
                .count();
            if gauge.totals()[odd] != flows as i64 {
                let parts: Vec<_> = gauge.parts().collect();
                return Err(format!("there are {flows} flows, and the gauge says {parts:?}"));
            }
            for (peer, Instance { gauge, .. }) in &self.instances {
                let read = gauge.sum(odd);
                if read != flows as i64 {
                    return Err(format!(
                        "there are {flows} flows, and the gauge of {peer:?} says {read}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// A flow that finds no number where it begins gets one that another instance has at
    /// hand, and is not refused meanwhile.
    fn share(&mut self) -> Result<(), String> {
        for peer in self.living() {
            let at_hand = |world: &World| {
                world.instances.values().map(|instance| instance.pool.available()).sum::<u32>()
            };
            let is_needed = self.at(peer).pool.available() == 0 && at_hand(self) > 0;
            // Indexes that were claimed from a server that knew nothing rest first.
            if !is_needed || self.losses > 0 {
                continue;
            }
            let (size, begun) = (self.limits.size, self.at(peer).begun);
            let is_refused =
                |world: &mut World| world.at(peer).pool.lease(&(0..size), None) == Lease::Exhausted;
            if is_refused(self) {
                return Err(format!("{peer:?} is refused a number before anybody was asked"));
            }
            for _ in 0..30 {
                for other in self.living() {
                    self.gather(other);
                    self.carry(other, usize::from(u8::MAX));
                    // Flows that wait are tried again in the turn in which anything was
                    // heard.
                    if other == peer
                        && self.at(peer).begun == begun
                        && self.at(peer).pool.available() > 0
                    {
                        self.open(peer);
                    }
                }
                self.replicate(usize::MAX);
            }
            if self.at(peer).begun == begun {
                return Err(format!(
                    "{peer:?} has got no number, and others have {} at hand",
                    at_hand(self)
                ));
            }
        }
        Ok(())
    }

    fn live(&mut self) -> Result<[u64; 3], String> {
        for _ in 0..50 + self.random.below(300) {
            self.step();
            self.check()?;
        }
        self.settle();
        self.check()?;
        if !self.mourned.is_empty() {
            return Err("somebody is mourned for ever".to_owned());
        }
        let flows: usize = self.instances.values().map(|instance| instance.flows.len()).sum();
        let credit: usize =
            self.instances.values().map(|instance| instance.credit(self.limits.size).count()).sum();
        let account = self.primary.server().account(LIST).expect("it is one");
        // Credit that was claimed from a server that knew nothing is held, for all that
        // it knows.
        let claimed = account.held.saturating_sub(flows as u32);
        let is_claimed = claimed == 0 || self.losses > 0;
        if !is_claimed
            || (account.held, account.credit + claimed) != (flows as u32 + claimed, credit as u32)
        {
            return Err(format!(
                "{flows} flows and {credit} more are there, and the server has {account:?}"
            ));
        }
        let list = self.primary.server().list(LIST).expect("it is one");
        for (peer, instance) in &self.instances {
            if let Some(index) = instance
                .flows
                .iter()
                .find(|index| list.holders(**index).collect::<Vec<_>>() != [*peer])
            {
                return Err(format!(
                    "{index} is {peer:?}'s, and the server says {:?}",
                    list.holders(*index).collect::<Vec<_>>()
                ));
            }
        }
        self.check_gauge()?;
        self.share()?;
        for peer in self.living() {
            while self.some_flow(peer).is_some() {
                self.end_flow(peer);
            }
        }
        self.settle();
        let (account, credit) = (
            self.primary.server().account(LIST).expect("it is one"),
            self.instances.values().map(|instance| instance.pool.available()).sum::<u32>(),
        );
        let claimed = if self.losses > 0 { account.held } else { 0 };
        if (account.free, account.credit + claimed) != (self.limits.size - credit, credit) {
            return Err(format!("all is over, and the server has {account:?}"));
        }
        self.check_gauge()?;
        let begun: u64 = self.instances.values().map(|instance| instance.begun).sum();
        let counted = self.primary.server().statistic(BEGUN, 0).expect("it is one").unsigned_abs();
        // Counts of dead instances alone may be lost with them, and with a server.
        if !(begun..=begun + self.begun_before).contains(&counted) {
            return Err(format!(
                "{begun} flows have begun, {} at instances that are dead, and {counted} were counted",
                self.begun_before
            ));
        }
        Ok([flows as u64, self.deaths, self.losses])
    }
}

fn show(seed: u64, error: &str) -> ! {
    let mut again = World::new(seed, Errs::default(), true);
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| again.live()));
    panic!("seed {seed}: {error}\n{}", again.trace.unwrap_or_default().join("\n"));
}

/// Worlds in which something was wrong once.
const FOUND: [u64; 2] = [1876, 11_543];

#[test]
fn no_two_flows_have_one_index_and_none_is_lost() {
    let lived = |seed| {
        World::new(seed, Errs::default(), false).live().unwrap_or_else(|error| show(seed, &error))
    };
    let [flows, deaths, losses] = (0..2000)
        .chain(FOUND)
        .map(lived)
        .fold([0; 3], |all, one| core::array::from_fn(|at| all[at] + one[at]));
    assert!(
        flows > 1000 && deaths > 1000 && losses > 1000,
        "{flows} flows lived to the end, {deaths} servers died, {losses} were lost: these worlds show little"
    );
}

/// Each fault is found.
#[test]
fn planted_faults_are_found() {
    let faults = [
        Fault::ExpiresUnasked,
        Fault::TakesMovedForOver,
        Fault::FreesAtDeath,
        Fault::HeedsLateAnswers,
        Fault::FreesAtFirstClaim,
        Fault::KeepsPartsOfTheDead,
        Fault::SpeaksBeforeStandby,
    ];
    let errs = [
        Errs { forgets: true, ..Errs::default() },
        Errs { is_hasty: true, ..Errs::default() },
        Errs { is_silent: true, ..Errs::default() },
    ];
    let around = errs.map(|errs| (Planted::default(), errs));
    for (planted, errs) in
        faults.map(|fault| (fault.into(), Errs::default())).into_iter().chain(around)
    {
        let _planting = plant(planted);
        let is_noticed = |seed| {
            let live = std::panic::AssertUnwindSafe(|| World::new(seed, errs, false).live());
            !matches!(std::panic::catch_unwind(live), Ok(Ok(_)))
        };
        assert!((0..2000).any(is_noticed), "nobody noticed {planted:?}, {errs:?}");
    }
}
