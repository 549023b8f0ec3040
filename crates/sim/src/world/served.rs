//! The state servers of a world. The first assigns all numbers and sums the gauges; flows
//! are divided among all of them. Each is a process of its own on the coordinator's host.
//! A server may die at any time, and begins again with nothing.

use super::hosts::{self, WITNESS};
use super::probes::is_nat;
use super::streams::{Lane, Of};
use super::{BEGIN, Event, MICROSECOND, MILLISECOND, SECOND, World};
use crate::plan::{How, Step, Way, When, Whom};
use crate::random::Random;
use crate::scenario::NUMBERS_REST;
use holdfast_node::message::PoolId;
use holdfast_node::state::{StateServer, StateServerConfig};
use holdfast_protection::rescue::pages::PagesConfig;
use holdfast_protection::{Flows, Peer, Slot};
use holdfast_state::{Kind, Limits};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropCounters, FlowKey, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Time between two looks at what is due.
const TICK: u64 = 10 * MILLISECOND;
/// Time in which a number that no flow has is noticed (after a lease), asked for, and
/// rested.
const SETTLED: u64 = 5 * SECOND;

/// Limits of a world's numbers. Their rest is longer than it takes to notice a death and
/// to recover from it: no copy of an ended flow claims a number that is another flow's by
/// then.
fn limits(size: u32, is_tight: bool) -> Limits {
    Limits {
        size,
        credit: if is_tight { 4 } else { 64 },
        lease: 400 * MILLISECOND,
        rest: NUMBERS_REST,
        unknown_rest: SECOND / 2,
        timeout: 300 * MILLISECOND,
        step: 10 * MILLISECOND,
    }
}

/// Numbers of each list in a tight world: the pool's first ones.
const FEW: u32 = 16;

/// A list, and a number of it.
type Index = (u32, u32);

/// The incarnations of one state server, one after the other.
struct ServerProcess {
    config: StateServerConfig,
    /// The present incarnation, unless it is away.
    now: Option<StateServer>,
    turn_at: u64,
    busy_until: u64,
}

/// The state servers, see the module.
pub(super) struct Servers {
    /// All state servers; the first has the lists.
    all: Vec<ServerProcess>,
    /// The pool of each list of numbers.
    pools: Vec<PoolId>,
    pub(super) faults_left: u64,
    drops: DropCounters,
    /// Numbers that the server takes for some flow's and that no runtime has, and since
    /// when. Empty unless everything is quiet.
    unclaimed: BTreeMap<Index, u64>,
    /// A difference between the server's gauges and those of the living runtimes
    /// together, and since when.
    unequal: Option<(u64, String)>,
}

impl Servers {
    /// The scenario's state servers. The first gets the lists: those of numbers, then the
    /// gauges. All get the pages.
    pub(super) fn new(
        pools: Vec<(PoolId, u32)>,
        gauges: impl Iterator<Item = u32>,
        pages: Vec<PagesConfig>,
        scenario: &crate::Scenario,
    ) -> Servers {
        let indexes = pools.iter().map(|(_, size)| {
            Kind::Indexes(limits(if scenario.tight { FEW } else { *size }, scenario.tight))
        });
        let config = StateServerConfig {
            me: Peer { node: NodeId::STATE_SERVER, incarnation: 1 },
            fabric: hosts::fabric(),
            kinds: indexes.chain(gauges.map(Kind::Gauge)).collect(),
            pages,
            waiting: 1024,
            memory: 1,
            is_first: true,
            tick: TICK,
            listener: NodeId::manager(WITNESS as u16),
            report_interval: 50 * MILLISECOND,
            heartbeat: 20 * MILLISECOND,
        };
        let of_number = |number: u16| {
            let me = Peer { node: NodeId::state_server(number), ..config.me };
            let kinds = if number == 0 { config.kinds.clone() } else { Vec::new() };
            let config = StateServerConfig { me, kinds, ..config.clone() };
            ServerProcess { config, now: None, turn_at: u64::MAX, busy_until: 0 }
        };
        let mut servers = Servers {
            all: (0..scenario.servers).map(of_number).collect(),
            pools: pools.iter().map(|(id, _)| *id).collect(),
            faults_left: 0,
            drops: DropCounters::default(),
            unclaimed: BTreeMap::new(),
            unequal: None,
        };
        (0..servers.all.len()).for_each(|at| servers.begin(at));
        servers
    }

    fn begin(&mut self, at: usize) {
        let config = self.all[at].config.clone();
        self.all[at].now = StateServer::new(config);
    }

    /// Number of state servers, those that are away included.
    pub(super) fn count(&self) -> u16 {
        self.all.len() as u16
    }

    /// Each server's node and incarnation; `None` while it is away.
    pub(super) fn peers(&self) -> impl Iterator<Item = Option<Peer>> + '_ {
        self.all.iter().map(|process| process.now.is_some().then_some(process.config.me))
    }

    /// True if all servers run, and nothing more is going to be done to them.
    pub(super) fn is_spared(&self) -> bool {
        self.faults_left == 0 && self.all.iter().all(|process| process.now.is_some())
    }

    /// Finds a flow's written-back state, in a world that has state servers.
    pub(super) fn pages<'a>(
        servers: &'a Option<Servers>,
    ) -> impl Fn(usize, &FlowKey) -> Option<(&'a Flows, Slot)> + 'a {
        move |chain, key| servers.as_ref()?.find(chain, key)
    }

    /// A flow of this chain, as it was written back.
    fn find(&self, chain: usize, key: &FlowKey) -> Option<(&Flows, Slot)> {
        let pages = self.all.iter().filter_map(|process| process.now.as_ref()?.flows(chain));
        pages.filter_map(|flows| Some((flows, flows.find(key, flows.hash(key))?.slot))).next()
    }

    /// The state server that has the lists.
    fn first(&self) -> Option<&StateServer> {
        self.all.first()?.now.as_ref()
    }

    pub(super) fn drops(&self) -> DropCounters {
        let mut drops = self.drops.clone();
        self.all
            .iter()
            .filter_map(|process| process.now.as_ref())
            .for_each(|server| drops.add(server.drops()));
        drops
    }
}

impl World {
    pub(super) fn turn_servers_at(&mut self, time: u64) {
        let count = self.servers.as_ref().map_or(0, Servers::count);
        (0..count).for_each(|number| self.turn_server_at(number, time));
    }

    fn server_process(&mut self, number: u16) -> Option<&mut ServerProcess> {
        self.servers.as_mut()?.all.get_mut(usize::from(number))
    }

    fn turn_server_at(&mut self, number: u16, time: u64) {
        let Some(process) = self.server_process(number) else { return };
        let time = time.max(process.busy_until);
        if time < process.turn_at {
            process.turn_at = time;
            self.at(time, Event::TurnStateServer(number));
        }
    }

    pub(super) fn server_process_receives(&mut self, peer: Peer, frame: &[u8]) {
        let now = self.local(peer.node);
        let Some(number) = peer.node.state_server_number() else { return };
        let Some(process) = self.server_process(number).filter(|process| process.config.me == peer)
        else {
            return;
        };
        let Some(server) = &mut process.now else { return };
        server.handle_frame(frame, now);
        let delay = self.streams.of(Of::Waking, peer).range(1, 20) * MICROSECOND;
        self.turn_server_at(number, self.now + delay);
    }

    pub(super) fn turn_server(&mut self, number: u16) {
        let node = NodeId::state_server(number);
        let (time, now, slowness) = (self.now, self.local(node), self.slowness(node));
        let Some(process) = self.server_process(number).filter(|process| time >= process.turn_at)
        else {
            return;
        };
        process.turn_at = u64::MAX;
        if time < process.busy_until {
            return self.turn_server_at(number, time);
        }
        let busy_until = time + 10 * MICROSECOND * slowness;
        process.busy_until = busy_until;
        let me = process.config.me;
        let Some(server) = &mut process.now else { return };
        server.turn(now);
        let mut frames = Vec::new();
        server.fabric().poll_transmit(now, |frame| {
            frames.push(frame.to_vec());
            true
        });
        let due = server.poll_timeout();
        self.note_wait(busy_until);
        for frame in frames {
            self.carry(self.inside, Lane::FromStateServer, me, frame, |frame| {
                Event::ToHub(WITNESS, me, frame)
            });
        }
        let due = self.world_time(node, due);
        self.turn_server_at(number, due.max(self.now + 10 * MICROSECOND));
    }

    /// Kills a state server for `away` ns, or for as long as the seed says if that is 0.
    /// False if the server is away already, or does not exist.
    pub(super) fn kill_server(&mut self, number: u16, away: u64) -> bool {
        let Some(Servers { all, drops, .. }) = self.servers.as_mut() else { return false };
        let Some(process) = all.get_mut(usize::from(number)) else { return false };
        let (Some(server), me) = (process.now.take(), process.config.me) else { return false };
        drops.add(server.drops());
        self.faults.server_kills += 1;
        self.say(format_args!("kill state server {number}.{}", me.incarnation));
        if !self.hosts[WITNESS].is_away {
            self.hosts[WITNESS].hub.handle_state_server_ended(me);
        }
        let drawn = self.streams.of(Of::Away, me).range(1, 900) * MILLISECOND;
        self.at(self.now + if away == 0 { drawn } else { away }, Event::StateServerStarts(number));
        true
    }

    /// Kills all state servers with their host.
    pub(super) fn kill_servers(&mut self, away: u64) {
        let count = self.servers.as_ref().map_or(0, Servers::count);
        (0..count).for_each(|number| _ = self.kill_server(number, away));
    }

    /// Stops all state servers with their host, until then.
    pub(super) fn stop_servers(&mut self, until: u64) {
        let all = self.servers.iter_mut().flat_map(|servers| &mut servers.all);
        all.for_each(|process| process.busy_until = process.busy_until.max(until));
        self.turn_servers_at(until);
    }

    /// Starts a server's next incarnation, or waits until its host is there.
    pub(super) fn start_server(&mut self, number: u16) {
        if let Some(time) = self.hosts[WITNESS].not_there_until(self.now) {
            return self.at(time, Event::StateServerStarts(number));
        }
        let is_hub_there = !self.hosts[WITNESS].is_away;
        let Some(servers) = self.servers.as_mut() else { return };
        let at = usize::from(number);
        let config = &mut servers.all[at].config;
        config.me.incarnation += 1;
        config.memory += 1;
        config.is_first = is_planted(Fault::ServerForgets);
        servers.begin(at);
        let me = servers.all[at].config.me;
        self.say(format_args!("state server {number}.{} begins", me.incarnation));
        if is_hub_there {
            self.hosts[WITNESS].hub.handle_state_server(me);
        }
        self.turn_server_at(number, self.now);
    }

    /// Schedules the servers' faults. A sequence of their own decides, so that a seed's
    /// other draws do not depend on it.
    pub(super) fn begin_servers_schedule(&mut self) {
        let (seed, is_quiet) = (self.scenario.seed, self.scenario.quiet);
        let Some(servers) = self.servers.as_mut().filter(|_| !is_quiet) else { return };
        let mut random = Random::new(seed ^ 0x7365_7276);
        servers.faults_left = if random.chance(800) { random.range(1, 5) } else { 0 };
        let count = servers.faults_left;
        let times: Vec<u64> =
            (0..count).map(|_| BEGIN + random.range(0, 4_000 * MILLISECOND)).collect();
        times.into_iter().for_each(|time| self.at(time, Event::StateServerFault));
    }

    pub(super) fn server_fault(&mut self) {
        let (now, seed, is_healed) = (self.now, self.scenario.seed, self.healed);
        // A server that has the only copy of flows' states fails when it dies, and the
        // contract is one failure at a time.
        let is_failure = self.scenario.preset.is_paged();
        let may_fail = !is_failure || self.may_fail();
        let Some(servers) = self.servers.as_mut() else { return };
        let is_any_away = servers.all.iter().any(|process| process.now.is_none());
        if is_any_away || !may_fail && !is_healed {
            return self.at(now + 20 * MILLISECOND, Event::StateServerFault);
        }
        servers.faults_left -= 1;
        let count = servers.count();
        let mut random = Random::new(seed ^ 0x6d69_7368 ^ now);
        let magnitude = random.range(4, 11);
        let time = random.range(1, 1 << magnitude) * MILLISECOND;
        let way = [Way::Out, Way::In, Way::Both][random.range(0, 3) as usize];
        let how = match random.range(0, 4) {
            0 => How::Cut(way, time),
            1 => How::Slow(1 << magnitude, time),
            2 if self.scenario.preset.has_absent_flows() => How::Cut(way, time),
            _ if self.scenario.preset.has_absent_flows() => How::Slow(1 << magnitude, time),
            _ => How::Kill,
        };
        if !is_healed {
            let when = if is_failure { When::Safe } else { When::Time };
            let number = if count > 1 { random.range(0, count.into()) as u16 } else { 0 };
            self.carry_out(Step { when: when(now - BEGIN), whom: Whom::StateServer(number), how });
        }
    }

    /// Checks that no flow has a number that the server takes for free, and that every
    /// number is accounted for.
    pub(super) fn check_server(&mut self, held: &[(u16, u32)]) {
        self.check_gauges();
        let now = self.now;
        let is_quiet = self.quiet_since.is_some() && self.all_serve();
        let Some(Servers { all, pools, unclaimed, .. }) = &mut self.servers else { return };
        if !is_quiet {
            unclaimed.clear();
        }
        let Some(ServerProcess { now: Some(server), .. }) = all.first() else { return };
        let server = server.server();
        let mut wrong = Vec::new();
        // The flows of the NAT's numbers are known by their ports.
        let list_of = |chain| (0..).zip(&*pools).find(|(_, id)| is_nat(**id, chain));
        let of_nat = held.iter().filter_map(|(chain, number)| Some((list_of(*chain)?.0, *number)));
        let of_flows: BTreeSet<Index> = of_nat.collect();
        for (list, number) in &of_flows {
            if server.list(*list).is_some_and(|list| list.is_free(*number)) {
                wrong.push(format!(
                    "a flow has {number} of list {list}, which is nobody's for the state server"
                ));
            }
        }
        for (list, of_list) in (0..).zip(&*pools) {
            let Some((account, of)) = server.account(list).zip(server.list(list)) else { continue };
            if account.size() != of.size() {
                wrong.push(format!(
                    "of {} numbers of list {list} {account:?} are accounted for",
                    of.size()
                ));
            }
            for number in (0..of.size()).filter(|_| is_quiet) {
                let mut is_claimed = || {
                    let mut pools = self.processes.values_mut();
                    pools.any(|process| {
                        let mut is_held = false;
                        process.runtime.visit_pools(|id, pool| {
                            // A number that a NAT's pool takes for a flow's does not
                            // count unless a flow has it.
                            let is_flows = pool.backend().is_held(number)
                                && (!is_nat(id, id.chain) || of_flows.contains(&(list, number)));
                            is_held |=
                                id == *of_list && (is_flows || pool.backend().is_free(number))
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

    /// Compares the server's gauges with what the living runtimes have of them together.
    fn check_gauges(&mut self) {
        let is_quiet = self.quiet_since.is_some() && self.all_serve();
        let Some(Servers { all, unequal, .. }) = &mut self.servers else { return };
        let Some(ServerProcess { now: Some(server), .. }) = all.first() else { return };
        let (server, mut sums) = (server.server(), Vec::<Vec<i64>>::new());
        for (_, process) in
            self.processes.iter_mut().filter(|(peer, _)| !self.coordinator.has_given_up(**peer))
        {
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
            *unequal = Some((
                self.now,
                format!(
                    "gauges are {totals:?} at the state server, and {sums:?} at the runtimes that live"
                ),
            ));
        }
    }

    /// Checks at the world's end that a gauge equals what the living runtimes have of it
    /// together.
    pub(super) fn check_sums(&mut self) {
        let Some(servers) = self.servers.as_ref().filter(|servers| servers.first().is_some())
        else {
            return;
        };
        let Some((since, text)) = &servers.unequal else { return };
        if self.now.saturating_sub(*since) > SETTLED - SECOND {
            let text = text.clone();
            self.checkers.violate("statistics", text);
        }
    }

    /// Checks at the world's end that no number is taken for a flow's that no flow has.
    pub(super) fn check_leaks(&mut self) {
        let Some(servers) = self.servers.as_ref().filter(|servers| servers.first().is_some())
        else {
            return;
        };
        let unclaimed = &servers.unclaimed;
        let leaked =
            unclaimed.iter().find(|(_, since)| self.now.saturating_sub(**since) > SETTLED - SECOND);
        if let Some(((list, number), _)) = leaked {
            let text = format!(
                "{number} of list {list} is no flow's, and is not given to any; {} like it",
                unclaimed.len()
            );
            self.checkers.violate("leases", text);
        }
    }

    /// Silence before a world ends, ns. If the plan demands liveness, it is long enough
    /// to notice numbers that no flow has.
    pub(super) fn silence(&self) -> u64 {
        if self.servers.is_some() && self.plan.live { SETTLED + SECOND } else { SECOND }
    }
}
