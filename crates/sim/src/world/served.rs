//! The state server of a world whose numbers one assigns, and whose gauges it adds up: a process of its own on the coordinator's host, which may die at any time and begins again with nothing.

use super::hosts::{self, WITNESS};
use super::streams::{Lane, Of};
use super::{BEGIN, Event, MICROSECOND, MILLISECOND, SECOND, World};
use crate::plan::{How, Step, Way, When, Whom};
use crate::random::Random;
use crate::scenario::NUMBERS_REST;
use holdfast_node::address::{STATE_SERVER, manager_of};
use holdfast_node::state::{StateServer, StateServerConfig};
use holdfast_protection::rescue::pages::PagesConfig;
use holdfast_protection::{Flows, Peer};
use holdfast_state::{Kind, Limits};
use holdfast_wire::DropCounters;
use std::collections::{BTreeMap, BTreeSet};

/// Between two looks at what is due.
const TICK: u64 = 10 * MILLISECOND;
/// A number that no flow has is noticed after a lease, is asked for a while later, and rests.
const SETTLED: u64 = 5 * SECOND;

/// What a world's server does with its numbers. It rests them for longer than it takes to notice and to get over a death: no copy of a flow that has ended claims one that is another's by then.
fn limits(size: u32, is_tight: bool) -> Limits {
    Limits {
        size,
        credit: if is_tight { 4 } else { 64 },
        lease: 400 * MILLISECOND,
        rest: NUMBERS_REST,
        unknown_rest: SECOND / 2,
        patience: 300 * MILLISECOND,
        step: 10 * MILLISECOND,
    }
}

/// So many numbers of each list there are where they are tight: the pool's first ones.
const FEW: u32 = 16;

/// A list, and a number of it.
type Index = (u32, u32);

/// Its lives, one after the other.
pub(super) struct Servers {
    config: StateServerConfig,
    /// The present one, unless it is away.
    now: Option<StateServer>,
    turn_at: u64,
    busy_until: u64,
    forgets: bool,
    expires_live: bool,
    keeps_the_dead: bool,
    pub(super) faults_left: u64,
    drops: DropCounters,
    /// Numbers that it takes for some flow's, and that no runtime says is its, and since when.
    unclaimed: BTreeMap<Index, u64>,
    /// What a gauge is there and at the runtimes that live, and since when that is not the same.
    unequal: Option<(u64, String)>,
}

impl Servers {
    /// The first, of these lists of numbers, and behind them of gauges, and pages.
    pub(super) fn new(
        sizes: impl Iterator<Item = u32>,
        gauges: impl Iterator<Item = u32>,
        pages: Vec<PagesConfig>,
        scenario: &crate::Scenario,
    ) -> Servers {
        let indexes = sizes.map(|size| Kind::Indexes(limits(if scenario.tight { FEW } else { size }, scenario.tight)));
        let config = StateServerConfig {
            me: Peer { node: STATE_SERVER, incarnation: 1 },
            fabric: hosts::fabric(),
            kinds: indexes.chain(gauges.map(Kind::Gauge)).collect(),
            pages,
            waiting: 1024,
            memory: 1,
            is_first: true,
            tick: TICK,
            listener: manager_of(WITNESS as u16),
            report_interval: 50 * MILLISECOND,
            heartbeat: 20 * MILLISECOND,
        };
        let mut servers = Servers {
            config,
            now: None,
            turn_at: u64::MAX,
            busy_until: 0,
            forgets: scenario.planted.server_forgets,
            expires_live: scenario.planted.server_expires_live,
            keeps_the_dead: scenario.planted.server_keeps_the_dead,
            faults_left: 0,
            drops: DropCounters::default(),
            unclaimed: BTreeMap::new(),
            unequal: None,
        };
        servers.begin();
        servers
    }

    fn begin(&mut self) {
        let config = self.config.clone();
        self.now = StateServer::new(config).map(|server| match (self.expires_live, self.keeps_the_dead) {
            (true, _) => server.plant_expiry(),
            (false, true) => server.plant_keeping(),
            (false, false) => server,
        });
    }

    /// Who it is, if it is there.
    pub(super) fn peer(&self) -> Option<Peer> {
        self.now.is_some().then_some(self.config.me)
    }

    /// It is there, and nothing more is going to be done to it.
    pub(super) fn is_spared(&self) -> bool {
        self.faults_left == 0 && self.now.is_some()
    }

    /// The flows of this chain, as they were written back to it.
    pub(super) fn flows(&self, chain: usize) -> Option<&Flows> {
        self.now.as_ref()?.flows(chain)
    }

    pub(super) fn drops(&self) -> DropCounters {
        let mut drops = self.drops.clone();
        if let Some(server) = &self.now {
            drops.add(server.drops());
        }
        drops
    }
}

impl World {
    pub(super) fn turn_server_at(&mut self, time: u64) {
        let Some(servers) = &mut self.servers else { return };
        let time = time.max(servers.busy_until);
        if time < servers.turn_at {
            servers.turn_at = time;
            self.at(time, Event::TurnStateServer);
        }
    }

    pub(super) fn server_process_receives(&mut self, peer: Peer, frame: &[u8]) {
        let now = self.local(STATE_SERVER);
        let Some(servers) = self.servers.as_mut().filter(|servers| servers.config.me == peer) else { return };
        let Some(server) = &mut servers.now else { return };
        server.handle_frame(frame, now);
        let delay = self.streams.of(Of::Waking, peer).range(1, 20) * MICROSECOND;
        self.turn_server_at(self.now + delay);
    }

    pub(super) fn turn_server(&mut self) {
        let (time, now, slowness) = (self.now, self.local(STATE_SERVER), self.slowness(STATE_SERVER));
        let Some(servers) = self.servers.as_mut().filter(|servers| time >= servers.turn_at) else { return };
        servers.turn_at = u64::MAX;
        if time < servers.busy_until {
            return self.turn_server_at(time);
        }
        servers.busy_until = time + 10 * MICROSECOND * slowness;
        let me = servers.config.me;
        let Some(server) = &mut servers.now else { return };
        server.turn(now);
        let mut frames = Vec::new();
        server.fabric().poll_transmit(now, |frame| {
            frames.push(frame.to_vec());
            true
        });
        let due = server.poll_timeout();
        for frame in frames {
            self.carry(self.inside, Lane::FromStateServer, me, frame, |frame| Event::ToHub(WITNESS, me, frame));
        }
        let due = self.world_time(STATE_SERVER, due);
        self.turn_server_at(due.max(self.now + 10 * MICROSECOND));
    }

    /// It is away for so long, or for as long as the seed says. False if it is away already, or there is none.
    pub(super) fn kill_server(&mut self, away: u64) -> bool {
        let Some(servers) = self.servers.as_mut() else { return false };
        let (Some(server), me) = (servers.now.take(), servers.config.me) else { return false };
        servers.drops.add(server.drops());
        self.faults.server_kills += 1;
        self.say(format_args!("kill state server {}", me.incarnation));
        if !self.hosts[WITNESS].is_away {
            self.hosts[WITNESS].hub.handle_state_server_ended(me);
        }
        let drawn = self.streams.of(Of::Away, me).range(1, 900) * MILLISECOND;
        self.at(self.now + if away == 0 { drawn } else { away }, Event::StateServerStarts);
        true
    }

    /// With its host, until then.
    pub(super) fn stop_server(&mut self, until: u64) {
        if let Some(servers) = self.servers.as_mut() {
            servers.busy_until = servers.busy_until.max(until);
            self.turn_server_at(until);
        }
    }

    /// Its host must be there.
    pub(super) fn start_server(&mut self) {
        if let Some(time) = self.hosts[WITNESS].not_there_until(self.now) {
            return self.at(time, Event::StateServerStarts);
        }
        let is_hub_there = !self.hosts[WITNESS].is_away;
        let Some(servers) = self.servers.as_mut() else { return };
        servers.config.me.incarnation += 1;
        servers.config.memory += 1;
        servers.config.is_first = servers.forgets;
        servers.begin();
        let me = servers.config.me;
        self.say(format_args!("state server {} begins", me.incarnation));
        if is_hub_there {
            self.hosts[WITNESS].hub.handle_state_server(me);
        }
        self.turn_server_at(self.now);
    }

    /// Something happens to the server, as a seed of its own decides: seeds mean otherwise what they would mean without one.
    pub(super) fn begin_servers_fate(&mut self) {
        let (seed, is_quiet) = (self.scenario.seed, self.scenario.quiet);
        let Some(servers) = self.servers.as_mut().filter(|_| !is_quiet) else { return };
        let mut random = Random::new(seed ^ 0x7365_7276);
        servers.faults_left = if random.chance(800) { random.range(1, 5) } else { 0 };
        let count = servers.faults_left;
        let times: Vec<u64> = (0..count).map(|_| BEGIN + random.range(0, 4_000 * MILLISECOND)).collect();
        times.into_iter().for_each(|time| self.at(time, Event::StateServerFault));
    }

    pub(super) fn server_fault(&mut self) {
        let (now, seed, is_healed) = (self.now, self.scenario.seed, self.healed);
        // What flows have there alone makes its death a failure, and the contract is one at a time.
        let is_failure = self.scenario.preset.is_paged();
        let may_fail = !is_failure || self.may_fail();
        let Some(servers) = self.servers.as_mut() else { return };
        if servers.now.is_none() || !may_fail && !is_healed {
            return self.at(now + 20 * MILLISECOND, Event::StateServerFault);
        }
        servers.faults_left -= 1;
        let mut random = Random::new(seed ^ 0x6d69_7368 ^ now);
        let magnitude = random.range(4, 11);
        let time = random.range(1, 1 << magnitude) * MILLISECOND;
        let way = [Way::Out, Way::In, Way::Both][random.range(0, 3) as usize];
        let how = match random.range(0, 4) {
            0 => How::Cut(way, time),
            1 => How::Slow(1 << magnitude, time),
            2 if self.scenario.preset.needs_server() => How::Cut(way, time),
            _ if self.scenario.preset.needs_server() => How::Slow(1 << magnitude, time),
            _ => How::Kill,
        };
        if !is_healed {
            let when = if is_failure { When::Safe } else { When::Time };
            self.carry_out(Step { when: when(now - BEGIN), whom: Whom::StateServer, how });
        }
    }

    /// What the server takes for nobody's no flow has, and everything is something.
    pub(super) fn check_server(&mut self, held: &[(u16, u32)]) {
        self.check_gauges();
        let now = self.now;
        let is_quiet = self.quiet_since.is_some() && self.all_run();
        let Some(Servers { now: Some(server), unclaimed, .. }) = &mut self.servers else { return };
        let server = server.server();
        let mut wrong = Vec::new();
        let of_flows: BTreeSet<(u32, u32)> = held.iter().map(|(chain, number)| (u32::from(*chain), *number)).collect();
        // Each chain's NAT has the only pool, and the list of the chain's number.
        for (chain, number) in held {
            if server.list(u32::from(*chain)).is_some_and(|list| list.is_free(*number)) {
                wrong.push(format!("a flow has {number} of list {chain}, which is nobody's for the state server"));
            }
        }
        for list in 0..u32::from(self.chains) {
            let Some((account, of)) = server.account(list).zip(server.list(list)) else { continue };
            if account.size() != of.size() {
                wrong.push(format!("of {} numbers of list {list} {account:?} are accounted for", of.size()));
            }
            for number in (0..of.size()).filter(|_| is_quiet) {
                let mut is_claimed = || {
                    let mut pools = self.processes.values_mut();
                    pools.any(|process| {
                        let mut is_held = false;
                        process.runtime.visit_pools(|id, pool| {
                            // That a pool takes it for a flow's is not enough.
                            let is_flows = pool.backend().is_held(number) && of_flows.contains(&(list, number));
                            is_held |= u32::from(id.chain) == list && (is_flows || pool.backend().is_free(number))
                        });
                        is_held
                    })
                };
                if of.is_taken(number) && !is_claimed() {
                    unclaimed.entry((list, number)).or_insert(now);
                } else {
                    unclaimed.remove(&(list, number));
                }
            }
        }
        for text in wrong {
            self.checkers.violate("leases", text);
        }
    }

    /// What the server's gauges are, and what those that live have of them together.
    fn check_gauges(&mut self) {
        let is_quiet = self.quiet_since.is_some() && self.all_run();
        let Some(Servers { now: Some(server), unequal, .. }) = &mut self.servers else { return };
        let (server, mut sums) = (server.server(), Vec::<Vec<i64>>::new());
        for (_, process) in self.processes.iter_mut().filter(|(peer, _)| !self.coordinator.has_given_up(**peer)) {
            let mut at = 0;
            process.runtime.visit_parts(|_, part| {
                if part.is_shared() {
                    sums.resize(sums.len().max(at + 1), vec![0; part.own().len()]);
                    sums[at].iter_mut().zip(part.own()).for_each(|(sum, own)| *sum += own);
                    at += 1;
                }
            });
        }
        let totals = (0..server.lists()).filter_map(|list| server.statistics(list));
        let totals: Vec<Vec<i64>> = totals.map(|statistics| statistics.totals().to_vec()).collect();
        if totals == sums || sums.is_empty() || !is_quiet {
            *unequal = None;
        } else if unequal.is_none() {
            *unequal =
                Some((self.now, format!("gauges are {totals:?} at the state server, and {sums:?} at the runtimes that live")));
        }
    }

    /// In the end a gauge is what those that live have of it together.
    pub(super) fn check_sums(&mut self) {
        let Some(Servers { unequal: Some((since, text)), now: Some(_), .. }) = &self.servers else { return };
        if self.now.saturating_sub(*since) > SETTLED - SECOND {
            let text = text.clone();
            self.checkers.violate("statistics", text);
        }
    }

    /// In the end no number is taken for a flow's that none has.
    pub(super) fn check_leaks(&mut self) {
        let Some(Servers { unclaimed, now: Some(_), .. }) = &self.servers else { return };
        let leaked = unclaimed.iter().find(|(_, since)| self.now.saturating_sub(**since) > SETTLED - SECOND);
        if let Some(((list, number), _)) = leaked {
            let text = format!("{number} of list {list} is no flow's, and is not given to any; {} like it", unclaimed.len());
            self.checkers.violate("leases", text);
        }
    }

    /// So long it is quiet before a world ends: numbers that no flow has are noticed by then, if that is looked at.
    pub(super) fn silence(&self) -> u64 {
        if self.servers.is_some() && self.plan.live { SETTLED + SECOND } else { SECOND }
    }
}
