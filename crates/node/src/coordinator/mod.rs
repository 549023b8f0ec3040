//! The coordinator: who is there, who has failed, who may lease what.
//!
//! Theory of operation (NFVactor, sections IV-D and V-C). Runtimes report with every heartbeat. A runtime fails when its process ends
//! (told by the host's manager, at once) or when it is not heard for too long. Then, in this order: it is fenced; everyone gets the
//! view without it; the others are asked to recover what they have of it; when all have reported, the switch forgets the routes
//! that nobody claimed and the dead runtime's part of every pool is free again. A new incarnation is started at once, or after a
//! pause that doubles if it keeps dying; while its predecessor is being recovered from, it is asked to recover too: others may have kept
//! flows for it. The coordinator takes no part in moving or replicating a flow.
//!
//! In: messages, ends of processes, the time. Out: messages, wishes to start, fence and kill. Never: a packet.

mod clusters;
mod ledger;
mod moves;
mod pools;

pub use clusters::ClusterConfig;
pub use ledger::{Account, Ledger};
pub use moves::{Drain, Move, Refusal};

use crate::address::{FIRST_RUNTIME, NodeId, SWITCH};
use crate::channel::{Fabric, FabricConfig};
use crate::message::{Control, FlowInfo, Member, MemberState, PoolId, Report, TraceStep, kind};
use crate::rules::{Rule, RuleSet};
use holdfast_protection::Peer;
use holdfast_wire::{DropCounters, DropReason};
use pools::Demand;

const SECOND: u64 = 1_000_000_000;

/// What a coordinator is told at its start.
#[derive(Debug, Clone)]
pub struct CoordinatorConfig {
    /// Who it is.
    pub me: Peer,
    /// Virtual clusters, the default one first, with the runtimes to keep running in each.
    pub clusters: Vec<ClusterConfig>,
    /// Service-chain rules to begin with.
    pub rules: Vec<Rule>,
    /// A runtime that is not heard for so long has failed, ns.
    pub hang_timeout: u64,
    /// A process that has not spoken so long after its start has failed, ns.
    pub start_timeout: u64,
    /// The first incarnation; every later one is higher.
    pub first_incarnation: u32,
    /// Pools of the chains, with their sizes.
    pub pools: Vec<(PoolId, u32)>,
    /// Layout hash of each chain: a runtime with others cannot join.
    pub layouts: Vec<u64>,
    /// Its endpoint.
    pub fabric: FabricConfig,
}

/// Why a runtime was declared failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Its process ended.
    Exited,
    /// It was not heard.
    Hung,
    /// It never spoke.
    NeverStarted,
    /// It was drained: it had nothing left.
    Drained,
}

/// What the host is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Start a runtime's process.
    Start(Peer),
    /// Accept nothing more from this incarnation.
    Fence(Peer),
    /// It may release again: it was started.
    Admit(Peer),
    /// It has nothing left to do: end its process.
    Stop(Peer),
}

/// One failure and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failover {
    /// Who failed.
    pub dead: Peer,
    /// Why.
    pub cause: Cause,
    /// When it was known, ns.
    pub detected_at: u64,
    /// When every runtime had reported.
    pub recovered_at: Option<u64>,
    /// Flows that it had: what the switch sent there, or by its last report.
    pub had: u64,
    /// Flows recovered.
    pub flows: u64,
    waiting: Vec<Peer>,
    /// Those that are leaving are asked when the others have reported: what they have may be older.
    later: Vec<Peer>,
    /// Those that died before they reported: what they had recovered is known when they have been recovered from.
    after: Vec<Peer>,
}

/// A runtime as `status` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// Node, incarnation, state.
    pub member: Member,
    /// Its last report.
    pub report: Report,
    /// It is out of service, or about to be.
    pub is_drained: bool,
}

/// Whether flows would survive a failure at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protected {
    /// Every flow whose chain promises it.
    Yes,
    /// Not yet, or not yet again.
    Resynchronising,
    /// No: there is nowhere to put replicas, or no chain promises it.
    No,
}

struct Runtime {
    member: Member,
    last_heard: u64,
    started_at: u64,
    failures: u32,
    start_at: Option<u64>,
    report: Report,
    /// It was drained: it is not started again.
    is_drained: bool,
}

/// See the module.
pub struct Coordinator {
    config: CoordinatorConfig,
    fabric: Fabric,
    runtimes: Vec<Runtime>,
    view: u64,
    ledgers: Vec<Ledger>,
    /// Per ledger.
    demands: Vec<Demand>,
    next_incarnation: u32,
    failovers: Vec<Failover>,
    wishes: Vec<Wish>,
    drops: DropCounters,
    last_turn: u64,
    rules: RuleSet,
    /// Switches that have spoken, with the version of the rules that each goes by.
    switches: Vec<(Peer, u64)>,
    flow_lists: Vec<(u32, Vec<FlowInfo>, usize)>,
    next_request: u32,
    moves: Vec<Move>,
    drains: Vec<Drain>,
    /// Steps of traced packets.
    pub traces: Vec<TraceStep>,
}

/// Hang timeouts after which a runtime is given up although nobody could take over.
const HOPELESS: u64 = 20;
/// Failovers that are remembered for `status`.
const FAILOVERS_KEPT: usize = 64;

impl Coordinator {
    /// A coordinator that wants its runtimes started.
    pub fn new(mut config: CoordinatorConfig, now: u64) -> Coordinator {
        let ledgers: Vec<Ledger> = config.pools.iter().map(|(id, size)| Ledger::new(*id, *size)).collect();
        let rules = RuleSet::new(1, core::mem::take(&mut config.rules));
        let clusters = config.clusters.iter().zip(0u16..);
        let runtimes = clusters
            .flat_map(|(cluster, number)| (0..cluster.runtimes).map(move |_| number))
            .zip(FIRST_RUNTIME..)
            .map(|(cluster, node)| Runtime {
                member: Member { node, incarnation: 0, state: MemberState::Failed, cluster },
                last_heard: now,
                started_at: now,
                failures: 0,
                start_at: Some(now),
                report: Report::default(),
                is_drained: false,
            })
            .collect();
        Coordinator {
            fabric: Fabric::new(config.me, config.fabric),
            runtimes,
            view: 0,
            demands: Coordinator::demands(&ledgers),
            ledgers,
            next_incarnation: config.first_incarnation.max(1),
            failovers: Vec::new(),
            wishes: Vec::new(),
            drops: DropCounters::default(),
            last_turn: now,
            rules,
            switches: Vec::new(),
            flow_lists: Vec::new(),
            next_request: 1,
            moves: Vec::new(),
            drains: Vec::new(),
            traces: Vec::new(),
            config,
        }
    }

    /// The endpoint, for the host that carries its frames.
    pub fn fabric(&mut self) -> &mut Fabric {
        &mut self.fabric
    }

    /// Drops by reason.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// What the host is to do, in order.
    pub fn poll_wishes(&mut self) -> impl Iterator<Item = Wish> + '_ {
        self.wishes.drain(..)
    }

    /// Who is there.
    pub fn status(&self) -> impl Iterator<Item = RuntimeStatus> + '_ {
        self.runtimes.iter().map(|runtime| RuntimeStatus {
            member: runtime.member,
            report: runtime.report.clone(),
            is_drained: runtime.is_drained,
        })
    }

    /// Failures so far, latest last.
    pub fn failovers(&self) -> &[Failover] {
        &self.failovers
    }

    /// How many flows a failed runtime had, from who knows better than its last report.
    pub fn set_flows_lost(&mut self, dead: Peer, flows: u64) {
        if let Some(failover) = self.failovers.iter_mut().rev().find(|failover| failover.dead == dead) {
            failover.had = flows;
        }
    }

    /// The accounts of the pools.
    pub fn ledgers(&self) -> &[Ledger] {
        &self.ledgers
    }

    /// The latest view's version.
    pub fn view(&self) -> u64 {
        self.view
    }

    /// True once every runtime has started and knows the others, and the switches know the rules.
    pub fn is_ready(&self) -> bool {
        let is_there = |runtime: &Runtime| runtime.member.state == MemberState::Running && runtime.report.view == self.view;
        self.rules_in_force() == self.rules.version()
            && self
                .runtimes
                .iter()
                .all(|runtime| is_there(runtime) || runtime.is_drained || runtime.member.state == MemberState::Leaving)
    }

    /// Whether flows would survive a failure.
    pub fn protected(&self) -> Protected {
        let promising = |cluster: u16| self.config.clusters.get(usize::from(cluster)).is_some_and(|cluster| cluster.promises);
        // Also those that are leaving: what they have still is theirs.
        let serving = self.runtimes.iter().filter(|runtime| {
            matches!(runtime.member.state, MemberState::Running | MemberState::Leaving) && promising(runtime.member.cluster)
        });
        let running = serving.clone().filter(|runtime| runtime.member.state == MemberState::Running);
        let count = |cluster: u16| running.clone().filter(|runtime| runtime.member.cluster == cluster).count();
        let mut clusters = (0..self.config.clusters.len() as u16).filter(|cluster| promising(*cluster)).peekable();
        if clusters.peek().is_none() || clusters.any(|cluster| count(cluster) < 2) {
            return Protected::No;
        }
        // One that has been silent for a while may have failed already: another failure now would be the second.
        let settled = |runtime: &Runtime| {
            runtime.report.view == self.view
                && !runtime.report.resynchronising
                && runtime.report.unprotected == 0
                && self.last_turn.saturating_sub(runtime.last_heard) <= self.config.hang_timeout / 2
        };
        let recovering = self.failovers.iter().any(|failover| failover.recovered_at.is_none());
        if recovering || !serving.clone().all(settled) { Protected::Resynchronising } else { Protected::Yes }
    }

    /// Asks every runtime for its flows, or those that a selector means; [`Coordinator::take_flows`] gives them when all have answered.
    pub fn request_flows(&mut self, limit: u32, selector: &str) -> u32 {
        let request = self.next_request;
        self.next_request += 1;
        let running: Vec<NodeId> = self.running().map(|peer| peer.node).collect();
        for node in &running {
            self.fabric.send_control(*node, &Control::ListFlows { request, limit, selector: selector.to_owned() });
        }
        self.flow_lists.push((request, Vec::new(), running.len()));
        // Requests whose asker went away are not kept for ever.
        if self.flow_lists.len() > 16 {
            self.flow_lists.remove(0);
        }
        request
    }

    /// The answer to a request, once it is whole.
    pub fn take_flows(&mut self, request: u32) -> Option<Vec<FlowInfo>> {
        let at = self.flow_lists.iter().position(|(number, _, open)| *number == request && *open == 0)?;
        Some(self.flow_lists.remove(at).1)
    }

    fn running(&self) -> impl Iterator<Item = Peer> + '_ {
        self.runtimes.iter().filter(|runtime| runtime.member.state == MemberState::Running).map(|runtime| runtime.member.peer())
    }

    /// Those of them that are of this virtual cluster.
    fn running_in(&self, cluster: u16) -> impl Iterator<Item = Peer> + '_ {
        let there = self.runtimes.iter().filter(move |runtime| runtime.member.cluster == cluster);
        there.filter(|runtime| runtime.member.state == MemberState::Running).map(|runtime| runtime.member.peer())
    }

    fn at(&mut self, peer: Peer) -> Option<&mut Runtime> {
        self.runtimes.iter_mut().find(|runtime| runtime.member.peer() == peer)
    }

    /// The host started the process.
    pub fn handle_started(&mut self, peer: Peer, now: u64) {
        if let Some(runtime) = self.at(peer) {
            runtime.started_at = now;
            runtime.last_heard = now;
        }
    }

    /// The process has ended, or could not be started.
    pub fn handle_exited(&mut self, peer: Peer, now: u64) {
        self.fail(peer, Cause::Exited, now);
    }

    fn fail(&mut self, peer: Peer, cause: Cause, now: u64) {
        let Some(runtime) = self.at(peer) else { return };
        if runtime.member.state == MemberState::Failed {
            return;
        }
        let cause =
            if self.drains.iter().any(|drain| drain.peer == peer && drain.ended_at.is_some()) { Cause::Drained } else { cause };
        let Some(runtime) = self.at(peer) else { return };
        let was_running = runtime.member.state == MemberState::Running || runtime.member.state == MemberState::Leaving;
        let had = runtime.report.flows;
        let cluster = runtime.member.cluster;
        runtime.member.state = MemberState::Failed;
        // A process that lives for a while is started again at once; one that keeps dying is given time.
        let lived = now.saturating_sub(runtime.started_at);
        runtime.failures = if lived > 10 * SECOND { 0 } else { runtime.failures + 1 };
        let pause = if runtime.failures <= 2 { 0 } else { (SECOND / 10) << (runtime.failures - 3).min(7) };
        let serves = |runtime: &Runtime| matches!(runtime.member.state, MemberState::Running | MemberState::Leaving);
        let is_anybody_left = self.runtimes.iter().any(|runtime| runtime.member.cluster == cluster && serves(runtime));
        if let Some(runtime) = self.at(peer) {
            runtime.start_at = if runtime.is_drained { None } else { Some(now + pause) };
        }
        if !is_anybody_left {
            // Patience is for who can be done without.
            let of_cluster = self.runtimes.iter_mut().filter(|runtime| runtime.member.cluster == cluster);
            for start_at in of_cluster.filter_map(|runtime| runtime.start_at.as_mut()) {
                *start_at = (*start_at).min(now + SECOND / 10);
            }
        }
        self.wishes.push(Wish::Fence(peer));
        self.quarantine(peer);
        self.forget_moves(peer, now);
        for failover in &mut self.failovers {
            if failover.waiting.contains(&peer) {
                failover.waiting.retain(|waiting| *waiting != peer);
                failover.after.push(peer);
            }
            failover.later.retain(|later| *later != peer);
        }
        self.push_view();
        if was_running {
            let waiting: Vec<Peer> = self.running_in(cluster).collect();
            for other in &waiting {
                self.fabric.send_control(other.node, &Control::Recover { node: peer.node, incarnation: peer.incarnation });
            }
            if self.failovers.len() >= FAILOVERS_KEPT
                && let Some(done) = self.failovers.iter().position(|failover| failover.recovered_at.is_some())
            {
                self.failovers.remove(done);
            }
            let of_cluster = self.runtimes.iter().filter(|runtime| runtime.member.cluster == cluster);
            let leaving = of_cluster.filter(|runtime| runtime.member.state == MemberState::Leaving);
            let later = leaving.map(|runtime| runtime.member.peer()).collect();
            let failover = Failover {
                dead: peer,
                cause,
                detected_at: now,
                recovered_at: None,
                had,
                flows: 0,
                waiting,
                later,
                after: Vec::new(),
            };
            self.failovers.push(failover);
        } else {
            self.release(peer);
        }
        self.finish_recoveries(now);
    }

    fn push_view(&mut self) {
        self.view += 1;
        let members: Vec<Member> = self.runtimes.iter().map(|runtime| runtime.member).collect();
        let is_there = |state| matches!(state, MemberState::Running | MemberState::Leaving);
        // Each runtime knows those of its own virtual cluster: it puts its replicas, and moves its flows, nowhere else.
        for cluster in 0..self.config.clusters.len() as u16 {
            let members: Vec<Member> = members.iter().filter(|member| member.cluster == cluster).copied().collect();
            let there = members.iter().filter(|member| is_there(member.state)).map(|member| member.node).collect::<Vec<_>>();
            let view = Control::View { version: self.view, members };
            for node in there {
                self.fabric.send_control(node, &view);
            }
        }
        self.fabric.send_control(SWITCH, &Control::View { version: self.view, members });
    }

    /// Acts on the messages that have arrived.
    pub fn handle_records(&mut self, now: u64) {
        let inbox = core::mem::take(&mut self.fabric.inbox);
        for (record, body) in inbox.records() {
            if record.kind != kind::CONTROL {
                self.drops.count(DropReason::Malformed);
                continue;
            }
            match Control::decode(body) {
                Ok(message) => self.handle_control(record.from, message, now),
                Err(reason) => self.drops.count(reason),
            }
        }
        self.fabric.inbox = inbox;
        self.fabric.inbox.clear();
    }

    fn handle_control(&mut self, from: Peer, message: Control, now: u64) {
        if let Control::RulesInForce { version } = message
            && from.node == SWITCH
        {
            return self.handle_rules_in_force(from, version);
        }
        let expected_layouts = self.config.layouts.clone();
        let Some(runtime) = self.at(from) else {
            self.drops.count(DropReason::StaleEpoch);
            return;
        };
        runtime.last_heard = now;
        if runtime.member.state == MemberState::Failed {
            // It was given up and has not noticed yet.
            self.drops.count(DropReason::Fenced);
            return;
        }
        match message {
            Control::Hello { layouts } => {
                if layouts != expected_layouts {
                    self.fail(from, Cause::NeverStarted, now);
                    return;
                }
                if runtime.member.state == MemberState::Starting {
                    runtime.member.state = MemberState::Running;
                    self.push_view();
                    self.grant_first_blocks(from, now);
                    self.ask_successor(from);
                }
            }
            Control::Report(report) => runtime.report = report,
            Control::WantBlock { pool } => self.want(from, pool, 2, now),
            Control::Spared { pool, blocks, last } => self.spared(from, pool, &blocks, last),
            Control::Adopted { pool, numbers } => self.adopted(from, pool, &numbers),
            Control::Returned { pool, numbers } => self.returned(from, pool, &numbers),
            Control::Recovered { node, incarnation, flows } => {
                let dead = Peer { node, incarnation };
                if let Some(failover) = self.failovers.iter_mut().find(|failover| failover.dead == dead) {
                    failover.waiting.retain(|waiting| *waiting != from);
                    failover.flows += flows;
                }
                self.finish_recoveries(now);
            }
            Control::Flows { request, flows, last } => {
                if let Some((_, all, open)) = self.flow_lists.iter_mut().find(|(number, _, _)| *number == request) {
                    all.extend(flows);
                    *open = open.saturating_sub(usize::from(last));
                }
            }
            Control::Migrated { request, moved, refused, last } => {
                self.handle_migrated(from, request, [moved, refused], last, now)
            }
            Control::Trace(steps) => self.traces.extend(steps),
            _ => self.drops.count(DropReason::Malformed),
        }
    }

    /// A runtime has come to where one was that is still being recovered from: others may have kept flows for it.
    fn ask_successor(&mut self, successor: Peer) {
        let open = self.failovers.iter_mut().filter(|failover| failover.recovered_at.is_none());
        for failover in open.filter(|failover| failover.dead.node == successor.node) {
            let Peer { node, incarnation } = failover.dead;
            failover.waiting.push(successor);
            self.fabric.send_control(successor.node, &Control::Recover { node, incarnation });
        }
    }

    /// Ends the failovers of which everything is known. If one that should have reported died, that includes its own: what it had recovered
    /// is with its replicas, and they report it.
    fn finish_recoveries(&mut self, now: u64) {
        for failover in &mut self.failovers {
            if failover.recovered_at.is_none() && failover.waiting.is_empty() {
                failover.waiting.append(&mut failover.later);
                for peer in &failover.waiting {
                    let Peer { node, incarnation } = failover.dead;
                    self.fabric.send_control(peer.node, &Control::Recover { node, incarnation });
                }
            }
        }
        loop {
            let is_open = |peer: &Peer| self.failovers.iter().any(|other| other.dead == *peer && other.recovered_at.is_none());
            let done = self.failovers.iter().position(|failover| {
                failover.recovered_at.is_none() && failover.waiting.is_empty() && !failover.after.iter().any(is_open)
            });
            let Some(done) = done else { break };
            self.failovers[done].recovered_at = Some(now);
            let dead = self.failovers[done].dead;
            self.fabric.send_control(SWITCH, &Control::Sweep { node: dead.node, incarnation: dead.incarnation });
            self.release(dead);
        }
        self.serve_all();
    }

    /// Looks for runtimes that are silent, and starts those that are due.
    pub fn handle_timeout(&mut self, now: u64) {
        // If this process itself was stopped, nobody could be heard: that says nothing about the others.
        if now.saturating_sub(self.last_turn) > self.config.hang_timeout / 2 {
            for runtime in &mut self.runtimes {
                runtime.last_heard = now;
            }
        }
        self.last_turn = now;
        self.ask_again(now);
        self.go_on_draining(now);
        for at in 0..self.runtimes.len() {
            let runtime = &self.runtimes[at];
            let silent = now.saturating_sub(runtime.last_heard);
            let peer = runtime.member.peer();
            match runtime.member.state {
                MemberState::Running | MemberState::Leaving if self.has_failed(at, silent, now) => {
                    self.fail(peer, Cause::Hung, now)
                }
                MemberState::Starting if silent > self.config.start_timeout => self.fail(peer, Cause::NeverStarted, now),
                _ => {}
            }
            let runtime = &mut self.runtimes[at];
            if runtime.member.state == MemberState::Failed && runtime.start_at.is_some_and(|due| due <= now) {
                runtime.start_at = None;
                runtime.member.incarnation = self.next_incarnation;
                self.next_incarnation += 1;
                runtime.member.state = MemberState::Starting;
                runtime.report = Report::default();
                runtime.started_at = now;
                runtime.last_heard = now;
                let peer = runtime.member.peer();
                self.fabric.set_peer(peer);
                self.wishes.push(Wish::Admit(peer));
                self.wishes.push(Wish::Start(peer));
                self.push_view();
            }
        }
    }

    /// Silence is a failure while somebody else could take over. When nobody is heard it is the machine that stands still: to give up the last ones
    /// would lose every flow for nothing. Only who stays silent for long is given up all the same, so that a new one may serve.
    fn has_failed(&self, at: usize, silent: u64, now: u64) -> bool {
        let timeout = self.config.hang_timeout;
        let cluster = self.runtimes[at].member.cluster;
        let is_other = |other: usize, runtime: &Runtime| other != at && runtime.member.cluster == cluster;
        let mut others = self.runtimes.iter().enumerate().filter(|(other, runtime)| is_other(*other, runtime));
        let is_heard =
            |runtime: &Runtime| runtime.member.state == MemberState::Running && now.saturating_sub(runtime.last_heard) <= timeout;
        silent > timeout && (others.any(|(_, other)| is_heard(other)) || silent > timeout.saturating_mul(HOPELESS))
    }

    /// When [`Coordinator::handle_timeout`] is due next.
    pub fn poll_timeout(&self) -> u64 {
        let due = |runtime: &Runtime| match runtime.member.state {
            MemberState::Running | MemberState::Leaving => {
                let due = runtime.last_heard + self.config.hang_timeout + 1;
                // Overdue already, and not given up: whether that changes is seen at the next regular look.
                if due <= self.last_turn { u64::MAX } else { due }
            }
            MemberState::Starting => runtime.last_heard + self.config.start_timeout + 1,
            MemberState::Failed => runtime.start_at.unwrap_or(u64::MAX),
        };
        let soonest = self.runtimes.iter().map(due).min().unwrap_or(u64::MAX);
        soonest.min(self.last_turn + self.config.hang_timeout / 4)
    }
}
