//! The fault schedule: what a seed does to its world. The schedule first draws which
//! kinds of things happen at all, because a world in which everything happens hides what
//! a few of them do together. All of it is recorded as [steps](super::steps), so that a
//! plan can do it again.

use super::hosts::{Site, WITNESS};
use super::{BEGIN, Event, MICROSECOND, MILLISECOND, World, draw, rules};
use crate::plan::{Clock, How, Plan, Step, Way, When, Whom};
use crate::random::Random;
use crate::scenario::Scenario;
use holdfast_wire::NodeId;

const SECOND: u64 = 1_000 * MILLISECOND;
/// Number of hosts in a world of several.
const HOSTS: u16 = 3;

/// Which kinds of failures a runtime may have in this world.
#[derive(Debug, Clone, Copy)]
struct Kinds {
    kill: bool,
    stop: bool,
    cut: bool,
}

/// The fault schedule, see the module.
pub(super) struct FaultSchedule {
    random: Random,
    kinds: Kinds,
    pub(super) faults_left: u64,
    moves_left: u64,
    /// Numbers of the faults of each kind.
    pub(super) coordinator_faults: u64,
    pub(super) hub_faults: u64,
    coordinator_cuts: u64,
    slownesses: u64,
    drains: bool,
}

/// A time between `low` and `high` ms, drawn in ns: no two things happen at the same
/// moment, so their order there does not matter.
fn some_time(random: &mut Random, low: u64, high: u64) -> u64 {
    random.range(low * MILLISECOND, high * MILLISECOND)
}

/// Whether a seed's world has several hosts. Only a strict protection promises what they
/// keep when one of them dies; no protection does if flows have their home at a server on
/// one of them.
fn hosts_of(scenario: &Scenario) -> bool {
    !scenario.quiet
        && scenario.preset.is_strict()
        && !scenario.preset.is_paged()
        && Random::new(scenario.seed ^ 0x686f_7374).chance(350)
}

/// Whether hosts seal their packets. A sequence of its own decides, so that a seed's
/// other draws do not depend on it.
fn is_sealed(scenario: &Scenario) -> bool {
    hosts_of(scenario) && Random::new(scenario.seed ^ 0x7365_616c).chance(500)
}

/// How often all machines are too busy at once in a seed's world; from a sequence of its
/// own, too.
fn starvations_of(scenario: &Scenario) -> u64 {
    let mut random = Random::new(scenario.seed ^ 0x7374_6172);
    if !scenario.quiet && random.chance(250) { random.range(1, 4) } else { 0 }
}

/// Damaged frames per thousand in a seed's world: some in a quarter of the worlds of
/// several hosts. From a sequence of its own, too.
fn damaged_of(scenario: &Scenario) -> u64 {
    let mut random = Random::new(scenario.seed ^ 0x6461_6d61);
    if hosts_of(scenario) && random.chance(250) { random.range(1, 30) } else { 0 }
}

/// Number of networks that join the hosts: two in some worlds that seal their packets.
/// From a sequence of its own, too.
fn networks_of(scenario: &Scenario) -> u8 {
    if is_sealed(scenario) && Random::new(scenario.seed ^ 0x7061_7468).chance(400) { 2 } else { 1 }
}

/// Number of switches: two in some worlds of several hosts, so that two hosts serve. From
/// a sequence of its own, too.
fn switches_of(scenario: &Scenario) -> u16 {
    if hosts_of(scenario) && Random::new(scenario.seed ^ 0x7377_6974).chance(400) { 2 } else { 1 }
}

/// Whether port links fail now and then in place of hosts, in some worlds of several
/// hosts. From a sequence of its own, too.
fn unplugs(scenario: &Scenario) -> bool {
    hosts_of(scenario) && Random::new(scenario.seed ^ 0x706c_7567).chance(300)
}

/// The world and the fault schedule that a scenario's seed stands for.
pub(super) fn draw(scenario: &Scenario) -> (Plan, FaultSchedule) {
    let mut random = Random::new(scenario.seed);
    let runtimes = 3;
    let mut kinds =
        Kinds { kill: random.chance(600), stop: random.chance(500), cut: random.chance(500) };
    if !(kinds.kill || kinds.stop || kinds.cut) {
        kinds.kill = true;
    }
    let mut some = |chance: u64, low: u64, high: u64| {
        let (is_wanted, count) = (random.chance(chance), random.range(low, high));
        if is_wanted && !scenario.quiet { count } else { 0 }
    };
    let faults_left = some(900, 1, 4);
    let (coordinator_faults, hub_faults) = (some(600, 1, 4), some(550, 1, 3));
    let (coordinator_cuts, slownesses) = (some(300, 1, 3), some(400, 1, 4));
    let moves_left = if random.chance(650) { random.range(0, 40) } else { 0 };
    let drains = random.chance(250);
    let mut habits = [draw::habits(&mut random), draw::habits(&mut random)];
    for habits in &mut habits {
        habits.stale = if random.chance(400) { random.range(1, 40) } else { 0 };
    }
    let mut clocks = Vec::new();
    if random.chance(500) {
        let nodes = [NodeId::COORDINATOR, NodeId::SWITCH]
            .into_iter()
            .chain((0..runtimes).map(NodeId::runtime));
        let managers = (0..HOSTS).map(NodeId::manager).filter(|_| hosts_of(scenario));
        clocks.extend(nodes.chain(managers).map(|node| {
            let magnitude = random.range(0, 47);
            let ahead = random.range(0, 1 << magnitude);
            (node, Clock { ahead, drift: random.range(0, 401) as i64 - 200 })
        }));
    }
    let hosts = if hosts_of(scenario) { HOSTS } else { 1 };
    let runtimes = if hosts > 1 { 4 } else { runtimes };
    let ring = if random.chance(300) { random.range(24, 200) as usize } else { 0 };
    let mut connections = draw::connections(&mut random);
    if scenario.published {
        draw::of_published(&mut Random::new(scenario.seed ^ 0x7075_626c), &mut connections);
    }
    if scenario.is_limited() {
        draw::of_limited(&mut Random::new(scenario.seed ^ 0x6c69_6d69), &mut connections);
    }
    let plan = Plan {
        connections,
        habits: Some(habits),
        hosts,
        switches: switches_of(scenario),
        sealed: is_sealed(scenario),
        damaged: damaged_of(scenario),
        networks: networks_of(scenario),
        runtimes,
        ring,
        clocks,
        rules: rules::drawn(scenario),
        live: true,
        lasts: 60 * SECOND,
        ..Plan::default()
    };
    let schedule = FaultSchedule {
        random,
        kinds,
        faults_left,
        moves_left,
        coordinator_faults,
        hub_faults,
        coordinator_cuts,
        slownesses,
        drains,
    };
    (plan, schedule)
}

impl World {
    /// Schedules everything that is to happen.
    pub(super) fn begin_schedule(&mut self, mut schedule: FaultSchedule) {
        let random = &mut schedule.random;
        let mut due: Vec<(u64, Event)> = Vec::new();
        let mut at_some_time = |random: &mut Random, count: u64, event: fn() -> Event| {
            due.extend((0..count).map(|_| (BEGIN + some_time(random, 0, 4000), event())));
        };
        at_some_time(random, schedule.coordinator_faults, || Event::CoordinatorFault);
        at_some_time(random, schedule.hub_faults, || Event::HubFault);
        at_some_time(random, schedule.coordinator_cuts, || Event::CoordinatorCut);
        at_some_time(random, schedule.slownesses, || Event::Slowness);
        let starvations = starvations_of(&self.scenario);
        at_some_time(&mut Random::new(self.scenario.seed ^ 0x6275_7379), starvations, || {
            Event::Starvation
        });
        let first_fault = BEGIN + some_time(random, 300, 1200);
        due.push((first_fault, if schedule.faults_left == 0 { Event::Heal } else { Event::Fault }));
        due.push((first_fault - some_time(random, 0, 200), Event::Move));
        if schedule.drains {
            let node = NodeId::runtime(random.range(0, self.plan.runtimes.into()) as u16);
            due.push((first_fault + some_time(random, 0, 1500), Event::Drain(node)));
        }
        self.schedule = Some(schedule);
        due.into_iter().for_each(|(time, event)| self.at(time, event));
    }

    fn schedule(&mut self) -> Option<&mut FaultSchedule> {
        self.schedule.as_mut()
    }

    fn now_as(&self, make: impl Fn(u64) -> When) -> When {
        make(self.now - BEGIN)
    }

    /// Lets a runtime fail, if the system is safe: the contract is one failure at a time.
    pub(super) fn fault(&mut self) {
        let may_fail = self.may_fail();
        let now = self.now;
        let Some(schedule) = self.schedule() else { return };
        if schedule.faults_left > 0 {
            if !may_fail {
                return self.at(now + 500 * MICROSECOND, Event::Fault);
            }
            self.strike();
        }
        // The contract is one failure at a time, with re-protection between. How soon the
        // next one follows is left to the seed.
        let Some(schedule) = self.schedule() else { return };
        let pause = some_time(&mut schedule.random, 0, 900) * schedule.random.range(0, 2);
        let next = if schedule.faults_left > 0 { Event::Fault } else { Event::Heal };
        self.at(now + pause, next);
    }

    /// Kills, stops or cuts off a runtime, or does something to a host.
    fn strike(&mut self) {
        let there: Vec<NodeId> = self.processes.keys().map(|peer| peer.node).collect();
        let when = self.now_as(When::Safe);
        let Some(FaultSchedule { random, kinds, faults_left, .. }) = self.schedule() else {
            return;
        };
        let node = there[random.range(0, there.len() as u64) as usize];
        let pause = random.range(100, 1500) * MILLISECOND;
        // Cuts of every length up to 2 s, by magnitude: some end before the node is given
        // up, some later.
        let magnitude = random.range(4, 12);
        let cut = random.range(1, 1 << magnitude) * MILLISECOND;
        let way = [Way::Out, Way::In, Way::Both][random.range(0, 3) as usize];
        let hows = [
            (kinds.kill, 2, How::Kill),
            (kinds.stop, 1, How::Pause(pause)),
            (kinds.cut, 1, How::Cut(way, cut)),
        ];
        let weighed = hows
            .iter()
            .filter(|(is_there, ..)| *is_there)
            .flat_map(|&(_, weight, how)| (0..weight).map(move |_| how));
        let hows: Vec<How> = weighed.collect();
        let how = hows[random.range(0, hows.len() as u64) as usize];
        *faults_left -= 1;
        let step = match self.host_strike() {
            Some(step) => step,
            None => Step { when, whom: Whom::Node(node), how },
        };
        self.carry_out(step);
    }

    /// Draws the failure of a host in place of a runtime's, in a world of several.
    fn host_strike(&mut self) -> Option<Step> {
        let (is_possible, when) =
            (self.hosts.are_several() && self.may_lose_host(), self.now_as(When::Safe));
        let random = &mut self.schedule.as_mut().filter(|_| is_possible)?.random;
        let (is_wanted, host) = (random.chance(600), random.range(0, HOSTS.into()) as u16);
        let magnitude = random.range(4, 12);
        let time = random.range(1, 1 << magnitude) * MILLISECOND;
        let way = [Way::Out, Way::In, Way::Both][random.range(0, 3) as usize];
        let how =
            [How::Away(time), How::Pause(time), How::Cut(way, time)][random.range(0, 3) as usize];
        let how =
            if unplugs(&self.scenario) && magnitude % 2 == 0 { How::Unplug(time) } else { how };
        is_wanted.then_some(Step { when, whom: Whom::Host(host), how })
    }

    /// Orders flows to move, whatever else goes on.
    pub(super) fn order_move(&mut self) {
        let (when, runtimes, now) = (self.now_as(When::Time), self.plan.runtimes, self.now);
        let Some(FaultSchedule { random, moves_left, .. }) = self.schedule() else { return };
        if *moves_left == 0 {
            return;
        }
        *moves_left -= 1;
        let some = |random: &mut Random| NodeId::runtime(random.range(0, runtimes.into()) as u16);
        let (from, to) = (some(random), some(random));
        let to = (!random.chance(300)).then_some(to);
        let limit = random.range(1, 64);
        let pause = some_time(random, 1, 40) * random.range(1, 10);
        self.carry_out(Step { when, whom: Whom::Node(from), how: How::Move(to, limit) });
        self.at(now + pause, Event::Move);
    }

    /// Brings a runtime that was taken out of service back after a while.
    pub(super) fn drained(&mut self, node: NodeId) {
        let now = self.now;
        if let Some(schedule) = self.schedule() {
            let pause = some_time(&mut schedule.random, 100, 4000);
            let when = self.now_as(When::Time);
            self.done.push(Step { when, whom: Whom::Node(node), how: How::Drain });
            self.at(now + pause, Event::Restore(node));
            // The runtime comes back at this time, or when its drain is over.
            let when = When::Time(now + pause - BEGIN);
            self.done.push(Step { when, whom: Whom::Node(node), how: How::Restore });
        }
    }

    /// Kills the coordinator: at once, or in the middle of writing.
    pub(super) fn coordinator_fault(&mut self) {
        if self.coordinator.is_away() || self.coordinator.is_dying() {
            return self.at(self.now + 20 * MILLISECOND, Event::CoordinatorFault);
        }
        let when = self.now_as(When::Time);
        let Some(schedule) = self.schedule() else { return };
        let how = if schedule.random.chance(500) { How::KillWriting } else { How::Kill };
        self.coordinator.faults_left -= 1;
        self.carry_out(Step { when, whom: Whom::Coordinator, how });
    }

    /// Everything else is over. If the coordinator was to die while writing and has
    /// nothing left to write, it dies now.
    pub(super) fn hurry_coordinator(&mut self) {
        if self.coordinator.is_dying() && self.coordinator.faults_left == 0 {
            let when = self.now_as(When::Time);
            self.carry_out(Step { when, whom: Whom::Coordinator, how: How::Kill });
        }
    }

    pub(super) fn coordinator_cut(&mut self) {
        let when = self.now_as(When::Time);
        let healed = self.healed;
        let Some(FaultSchedule { random, .. }) = self.schedule() else { return };
        let magnitude = random.range(4, 11);
        let time = random.range(1, 1 << magnitude) * MILLISECOND;
        let way = [Way::Out, Way::In, Way::Both][random.range(0, 3) as usize];
        if !healed {
            self.carry_out(Step { when, whom: Whom::Coordinator, how: How::Cut(way, time) });
        }
    }

    pub(super) fn slowness_begins(&mut self) {
        let (when, runtimes, healed) = (self.now_as(When::Time), self.plan.runtimes, self.healed);
        let Some(FaultSchedule { random, .. }) = self.schedule() else { return };
        let node = match random.range(0, u64::from(runtimes) + 1) as u16 {
            0 => NodeId::COORDINATOR,
            number => NodeId::runtime(number - 1),
        };
        let (factor, time) = (1 << random.range(2, 11), random.range(50, 2000) * MILLISECOND);
        if !healed {
            let whom =
                if node == NodeId::COORDINATOR { Whom::Coordinator } else { Whom::Node(node) };
            self.carry_out(Step { when, whom, how: How::Slow(factor, time) });
        }
    }

    pub(super) fn starvation_begins(&mut self) {
        let (when, healed) = (self.now_as(When::Time), self.healed);
        let mut random = Random::new(self.scenario.seed ^ self.now);
        // Pauses range from unnoticeable ones to some beyond the timeout of a silent
        // node.
        let (factor, time) = (1 << random.range(10, 17), random.range(200, 3_000) * MILLISECOND);
        if self.schedule.is_some() && !healed {
            self.carry_out(Step { when, whom: Whom::World, how: How::Slow(factor, time) });
        }
    }

    pub(super) fn hub_fault(&mut self) {
        // The hub's log is lost with it. If the protection needs the log, the hub's death
        // is a failure like others.
        let has_log = self.scenario.preset.has_log();
        let when = if has_log { self.now_as(When::Safe) } else { self.now_as(When::Time) };
        let may_fail = !has_log || self.may_fail();
        let count = self.hosts.sites().len() as u64;
        let Some(schedule) = self.schedule() else { return };
        let manager = if count > 1 { schedule.random.range(0, count) as Site } else { WITNESS };
        if !self.hosts[manager].runs() || !may_fail {
            return self.at(self.now + 20 * MILLISECOND, Event::HubFault);
        }
        self.hosts.faults_left -= 1;
        let whom = if count > 1 { Whom::Manager(manager as u16) } else { Whom::Hub };
        self.carry_out(Step { when, whom, how: How::Kill });
    }

    /// The coordinator has been killed: perhaps lets a runtime fail before it is back.
    pub(super) fn perhaps_meanwhile(&mut self, away: u64) {
        let (now, was_safe) = (self.now, self.coordinator.was_safe());
        let Some(schedule) = self.schedule() else { return };
        if schedule.faults_left > 0 && was_safe && schedule.random.chance(600) {
            let meanwhile = schedule.random.range(0, away);
            self.at(now + meanwhile, Event::FaultMeanwhile);
        }
    }

    /// Lets a runtime fail while there is no coordinator.
    pub(super) fn fault_meanwhile(&mut self) {
        let is_left = self.schedule.as_ref().is_some_and(|schedule| schedule.faults_left > 0);
        let is_whole = self.all_run() && !self.cuts.any(self.now);
        if self.coordinator.is_away() && self.may_fail_meanwhile() && is_whole && is_left {
            self.faults.meanwhile += 1;
            self.strike();
        }
    }

    /// Heals the world: everything that was to be done has been done.
    pub(super) fn schedule_is_over(&mut self) {
        let when = self.now_as(When::Time);
        self.carry_out(Step { when, whom: Whom::World, how: How::Heal });
        self.deadline = self.now + 40 * SECOND;
        self.plan.lasts = self.deadline - BEGIN;
    }
}
