//! The coordinator: decides which runtimes live, which have failed, and which may lease
//! what.
//!
//! Theory of operation (NFVactor: coordinator, fault tolerance). Runtimes report with
//! every heartbeat. A runtime fails when its process ends (the host's manager tells at
//! once) or when it is not heard for too long. The recovery has this order: the manager
//! lets nothing more out of it; everyone gets the view without it; the others are asked
//! to recover their copies of its flows; when all have reported, the switch sweeps the
//! unclaimed routes, and the dead runtime's part of every pool is free again. A new
//! incarnation is started at once, or after a pause that doubles if it keeps dying. While
//! its predecessor is being recovered, it is asked to recover too: others may have kept
//! flows for it. The coordinator takes no part in moving or replicating a flow.
//!
//! The coordinator may die at any instruction, and its next incarnation continues from
//! the [log](LogRecord): every decision is logged before it takes effect. The driver asks
//! for records ([`Coordinator::poll_log`]), keeps them, and says so
//! ([`Coordinator::logged`]); only then do messages go to the channel. A runtime numbers
//! the messages that must take effect exactly once, and keeps them until the coordinator
//! has them in its log. The coordinator numbers such orders too, and keeps them in the
//! log until they have taken effect ([`Ordered`]). A restored
//! coordinator therefore differs from a slow one only in its first question: everyone's
//! [account](Control::Account).
//!
//! In: messages, the time. Out: records, messages. Never: a packet.

mod clusters;
mod failing;
mod hosts;
mod identities;
mod ledger;
mod log;
mod managers;
mod memory;
mod moves;
mod pending;
mod pools;
mod scaling;
mod status;

pub use clusters::ClusterConfig;
pub use hosts::{HostConfig, HostsConfig, SwitchPlace};
pub use identities::{IdentityKind, Name};
pub use ledger::{Account, Ledger};
pub use log::{LogError, LogRecord, Misfit, describe};
pub use scaling::Scaling;
pub use status::RuntimeStatus;

use crate::channel::{Fabric, FabricConfig};
use crate::message::{
    Cause, Control, Drain, Failover, Member, MemberState, Notice, Ordered, PoolId, Report,
    Standing, is_later_view, kind, numbered,
};
use crate::rules::{Assembly, Rule, RuleSet};
use holdfast_protection::Peer;
use holdfast_wire::{DropCounters, DropReason, NodeId};
use hosts::Known;
use identities::Identities;
use log::Log;
use memory::{Decision, Memory, RuntimeSlot};
use moves::Draining;
use pending::Pending;
use pools::Demand;
use scaling::Workload;

const SECOND: u64 = 1_000_000_000;

/// A coordinator's configuration.
#[derive(Debug, Clone)]
pub struct CoordinatorConfig {
    /// The coordinator's own node and incarnation.
    pub me: Peer,
    /// Virtual clusters, the default one first, with the runtimes to keep running in
    /// each.
    pub clusters: Vec<ClusterConfig>,
    /// The hosts that make the box.
    pub hosts: HostsConfig,
    /// The names of chains, ports, clusters and runtimes; those of a kind in the order of
    /// their numbers.
    pub names: Vec<Name>,
    /// Initial service-chain rules.
    pub rules: Vec<Rule>,
    /// A runtime that is silent for so long has failed, ns.
    pub hang_timeout: u64,
    /// A process that is silent for so long after its start has failed, ns.
    pub start_timeout: u64,
    /// The first incarnation; every later one is higher.
    pub first_incarnation: u32,
    /// Pools of the chains, with their sizes.
    pub pools: Vec<(PoolId, u32)>,
    /// The number of state servers. The first one assigns the numbers of all pools that
    /// are not among `pools`.
    pub state_servers: u16,
    /// Layout hash of each chain: a runtime with others cannot join.
    pub layouts: Vec<u64>,
    /// The fabric endpoint's configuration.
    pub fabric: FabricConfig,
}

/// A sweep that an observer was told: a switch ends this dead runtime's routes, a state
/// server releases its indexes.
struct Swept {
    observer: NodeId,
    dead: Peer,
    is_over: bool,
}

/// The coordinator's knowledge of a runtime that need not be remembered.
struct Hearing {
    last_heard: u64,
    report: Report,
    /// The runtime has told which orders have taken effect: the others can be sent.
    is_accounted: bool,
    /// Numbered messages have arrived whose sender waits for their acknowledgement.
    owes_word: bool,
    /// The host was asked whether the runtime stands still.
    is_doubted: bool,
    /// The runtime may be silent until then: its host has said that it does not stand
    /// still.
    spared_until: u64,
    /// The managers were asked to fence the runtime.
    suspected: Option<Cause>,
    suspected_at: u64,
    /// How the runtime ended, as told by the manager that started it.
    notice: Notice,
    /// Hosts that have fenced the runtime, each with the flows that its switches sent
    /// there, if it knows.
    fenced: Vec<(u16, Option<u64>)>,
    /// Flows that the runtime had at its end, as far as a manager knows.
    last: Option<u64>,
    /// Frames that found the runtime's ring full.
    refused: u64,
    /// Other runtimes had flows already when this one began, and it has got none of them
    /// since.
    came_late: bool,
}

impl Hearing {
    fn new(now: u64, is_accounted: bool) -> Hearing {
        Hearing {
            last_heard: now,
            report: Report::default(),
            is_accounted,
            owes_word: false,
            is_doubted: false,
            spared_until: 0,
            suspected: None,
            suspected_at: 0,
            notice: Notice::default(),
            fenced: Vec::new(),
            last: None,
            refused: 0,
            came_late: false,
        }
    }
}

/// See the module.
pub struct Coordinator {
    config: CoordinatorConfig,
    fabric: Fabric,
    memory: Memory,
    log: Log,
    /// By place.
    hearings: Vec<Hearing>,
    /// By ledger.
    demands: Vec<Demand>,
    /// By cluster.
    workloads: Vec<Workload>,
    /// Messages that wait until the log is kept.
    pending: Pending,
    /// Answers to operators, sent after the messages that their order caused.
    answers: Vec<(NodeId, Control)>,
    /// The state of the box that the manager was told last.
    standing: Option<Standing>,
    told_failovers: Vec<Failover>,
    told_drains: Vec<Drain>,
    draining: Vec<Draining>,
    /// Sweeps that were sent in recoveries that are not over.
    swept: Vec<Swept>,
    next_request: u32,
    /// By host.
    hosts: Vec<Known>,
    /// The host of this coordinator.
    own_host: u16,
    /// By state server: the incarnation that has reported last, the view that it knew,
    /// and the time.
    servers_heard: Vec<Option<(Peer, u64, u64)>>,
    /// See [`Coordinator::has_quorum`].
    had_quorum: bool,
    /// The time since which that holds, in this incarnation.
    quorum_at: u64,
    /// The time at which a host was last cut off from this one, or not known to be
    /// connected.
    unsteady_at: u64,
    /// With several hosts: the box has been ready once. A host that serves later does so
    /// although others are missing.
    was_ready: bool,
    began_at: u64,
    /// By switch, the time at which its service was last given to a host.
    given_at: Vec<u64>,
    /// By switch, the time since which another host has had more links to serve it by.
    worse_since: Vec<Option<u64>>,
    /// The time at which all managers were last told of the services.
    refreshed_at: u64,
    drops: DropCounters,
    last_turn: u64,
    /// Switches that have spoken, with the version of the rules that each uses.
    switches: Vec<(Peer, u64)>,
    /// Rules whose parts are arriving from the manager.
    coming: Assembly,
}

/// Hang timeouts after which a runtime is given up although no other one could take over.
const HOPELESS: u64 = 20;

impl Coordinator {
    /// A coordinator that wants its runtimes started.
    pub fn new(mut config: CoordinatorConfig, now: u64) -> Coordinator {
        let ledgers: Vec<Ledger> =
            config.pools.iter().map(|(id, size)| Ledger::new(*id, *size)).collect();
        let rules = RuleSet::new(1, core::mem::take(&mut config.rules));
        let clusters = config.clusters.iter().zip(0u16..);
        let of_cluster = |(cluster, number): (&ClusterConfig, u16)| {
            let spare =
                (0..cluster.runtimes + cluster.spare).map(|at| scaling::is_spare(cluster, at));
            spare.map(move |is_spare| (number, is_spare)).collect::<Vec<_>>()
        };
        let numbers = clusters.flat_map(of_cluster).zip((0..).map(NodeId::runtime));
        let place =
            |(((cluster, is_spare), node), host): (((u16, bool), NodeId), u16)| RuntimeSlot {
                member: Member { node, incarnation: 0, state: MemberState::Failed, cluster, host },
                started_at: now,
                failures: 0,
                start_at: (!is_spare).then_some(now),
                handled: 0,
                orders: Ordered::default(),
                is_drained: is_spare,
                is_spare,
            };
        let mut identities = Identities::default();
        let change = identities.change(&config.names, now);
        identities.apply(&change.expect("a plan has no more names than there are numbers"));
        let memory = Memory {
            view: 0,
            next_incarnation: config.first_incarnation.max(1),
            places: numbers.zip(config.hosts.places()).map(place).collect(),
            wanting: vec![Vec::new(); ledgers.len()],
            ledgers,
            recoveries: Vec::new(),
            drains: Vec::new(),
            rules,
            services: config.hosts.services(),
            chains: config.clusters.iter().map(|cluster| cluster.chains.clone()).collect(),
            identities,
        };
        let mut coordinator = Coordinator::of(config, now, Log::default(), memory);
        coordinator.place_services();
        // With a single manager it is known from the first moment that no process runs
        // yet.
        coordinator.hosts[0].is_known = !coordinator.is_joined();
        coordinator.ask_managers();
        coordinator
    }

    /// The coordinator's next incarnation, from the log of the earlier ones. The new
    /// incarnation starts and gives up no runtime before the manager has told which live.
    ///
    /// # Errors
    /// If the log cannot be read, or was written for another configuration.
    pub fn restore<'a>(
        config: CoordinatorConfig,
        now: u64,
        records: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Coordinator, LogError> {
        let (log, memory) = Log::read(records)?;
        let change = log::compare(&memory, &config, now).map_err(LogError::OtherConfiguration)?;
        let mut coordinator = Coordinator::of(config, now, log, memory);
        coordinator.record(Decision::Began { at: now });
        if let Some(change) = change {
            coordinator.record(Decision::Identified { change });
        }
        coordinator.ask_managers();
        for place in &coordinator.memory.places {
            if place.member.state != MemberState::Failed {
                coordinator.fabric.set_peer(place.member.peer());
                coordinator
                    .pending
                    .push((place.member.node, Control::Account { handled: place.handled }));
            }
        }
        // Switches must hear of a death before they hear that its recovery is over:
        // otherwise they would wait for good.
        coordinator.push_view();
        // The switch may not have heard of the end. A second message does no harm: the
        // dead have no routes any more.
        for recovery in coordinator.memory.recoveries.iter().filter(|recovery| !recovery.is_open())
        {
            let Peer { node, incarnation } = recovery.failover.dead;
            let sweep = Control::Sweep { node, incarnation, is_over: true };
            coordinator.pending.extend(
                (0..coordinator.memory.services.len() as u16)
                    .map(|at| (NodeId::switch(at), sweep.clone())),
            );
        }
        coordinator.tell_sweeps();
        coordinator.servers().for_each(|server| coordinator.begin_with_state_server(server));
        coordinator.stop_again();
        Ok(coordinator)
    }

    /// The first incarnation that a coordinator may give if it shares nothing with the
    /// log but its peers' memories.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn next_incarnation<'a>(records: impl Iterator<Item = &'a [u8]>) -> Result<u32, LogError> {
        Log::read(records).map(|(_, memory)| memory.next_incarnation)
    }

    fn of(config: CoordinatorConfig, now: u64, log: Log, memory: Memory) -> Coordinator {
        Coordinator {
            fabric: Fabric::new(config.me, config.fabric),
            hearings: memory.places.iter().map(|_| Hearing::new(now, false)).collect(),
            demands: memory.ledgers.iter().map(|_| Demand::default()).collect(),
            workloads: config.clusters.iter().map(|_| Workload::default()).collect(),
            was_ready: memory.services.iter().all(|service| service.term > 0),
            memory,
            log,
            pending: Pending::default(),
            answers: Vec::new(),
            standing: None,
            told_failovers: Vec::new(),
            told_drains: Vec::new(),
            draining: Vec::new(),
            swept: Vec::new(),
            // Requests of different incarnations have different numbers, so answers
            // cannot be confused.
            next_request: (config.me.incarnation << 16) + 1,
            hosts: vec![Known::default(); config.hosts.hosts.len()],
            own_host: 0,
            servers_heard: vec![None; config.state_servers.into()],
            had_quorum: false,
            quorum_at: now,
            unsteady_at: now,
            began_at: now,
            given_at: vec![now; config.hosts.switches.len()],
            worse_since: vec![None; config.hosts.switches.len()],
            refreshed_at: now,
            drops: DropCounters::default(),
            last_turn: now,
            switches: Vec::new(),
            coming: Assembly::default(),
            config,
        }
    }

    /// The endpoint, for the driver that carries its frames.
    pub fn fabric(&mut self) -> &mut Fabric {
        &mut self.fabric
    }

    /// Takes a frame in.
    pub fn handle_frame(&mut self, frame: &[u8], now: u64) {
        if let Err(reason) = self.fabric.handle_frame(frame, now) {
            self.drops.count(reason);
        }
    }

    /// Drops by reason.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// The records to be kept before [`Coordinator::logged`] is called.
    pub fn poll_log(&mut self) -> Vec<LogRecord> {
        self.log.take(&self.memory)
    }

    /// The records of [`Coordinator::poll_log`] are kept: messages that depend on them
    /// may leave.
    pub fn logged(&mut self) {
        // Later decisions have not been fetched: no message leaves.
        if self.log.is_fresh() {
            return;
        }
        self.tell_manager();
        self.pending.extend(self.answers.drain(..));
        for at in 0..self.hearings.len() {
            if core::mem::take(&mut self.hearings[at].owes_word) {
                let place = &self.memory.places[at];
                self.pending.push((place.member.node, Control::Settled { handled: place.handled }));
            }
        }
        let (full, too_many) = self.pending.send(&self.memory, &mut self.fabric);
        self.drops.add_count(DropReason::QueueFull, too_many);
        for (place, hearing) in self.memory.places.iter_mut().zip(&self.hearings) {
            if hearing.is_accounted && !full.contains(place.member.node) {
                place.orders.send(place.member.node, &mut self.fabric);
            }
        }
    }

    /// Drops the log: for tests and worlds in which a coordinator never dies.
    pub fn forget_log(&mut self) {
        self.poll_log();
        self.logged();
    }

    /// Takes a decision: it holds in this incarnation and the next.
    fn record(&mut self, entry: Decision) {
        self.memory.apply(&entry);
        self.log.append(&entry);
    }

    fn at(&self, peer: Peer) -> Option<usize> {
        self.memory.at(peer)
    }

    /// True if the runtime was drained and has nothing left.
    fn has_drained(&self, peer: Peer) -> bool {
        self.memory.drains.iter().any(|drain| drain.peer == peer && drain.ended_at.is_some())
    }

    /// Sends the newest view to all serving runtimes and observers.
    fn push_view(&mut self) {
        let observers = self.observers();
        let Coordinator { memory, pending, .. } = self;
        memory.serving().for_each(|peer| pending.push_view(peer.node));
        observers.for_each(|node| pending.push_view(node));
    }

    /// A node reports a later view than the newest: its message was damaged or forged.
    /// The node would ignore the next views as older than its own, so their numbers
    /// continue after that one.
    fn outdo(&mut self, view: u64) {
        if is_later_view(self.memory.view, view) {
            self.memory.view = view.saturating_add(1);
            self.push_view();
        }
    }

    /// Observers of all starts and deaths of runtimes: the switches, and the state
    /// servers.
    fn observers(&self) -> impl Iterator<Item = NodeId> + use<> {
        let switches = (0..self.memory.services.len() as u16).map(NodeId::switch);
        switches.chain(self.servers())
    }

    /// The nodes of the configured state servers.
    fn servers(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.config.state_servers).map(NodeId::state_server)
    }

    /// A state server, or this coordinator, has begun a new incarnation: sends the dead
    /// that are still being recovered, and the members behind them. All other dead are
    /// recovered.
    fn begin_with_state_server(&mut self, server: NodeId) {
        self.pending.forget(server);
        self.pending.push_beginning(server);
        self.swept.retain(|swept| swept.observer != server);
        self.tell_sweeps();
    }

    /// Acts on the messages that have arrived.
    pub fn handle_records(&mut self, now: u64) {
        let inbox = core::mem::take(&mut self.fabric.inbox);
        for peer in &inbox.restarted {
            if let Some(host) = peer.node.host() {
                self.begin_with_manager(host, now);
            }
        }
        for (record, body) in inbox.records() {
            let result = match record.kind {
                kind::CONTROL => Control::decode(body)
                    .map(|message| self.handle_control(record.from, message, now)),
                kind::NUMBERED => numbered(body).map(|(number, request)| {
                    self.handle_request(record.from, number, request, now)
                }),
                _ => Err(DropReason::Malformed),
            };
            if let Err(reason) = result {
                self.drops.count(reason);
            }
        }
        self.fabric.inbox = inbox;
        self.fabric.inbox.clear();
    }

    /// The sender's place, if it is a runtime that may speak.
    fn hear(&mut self, from: Peer, now: u64) -> Option<usize> {
        let Some(at) = self.at(from) else {
            self.drops.count(DropReason::StaleEpoch);
            return None;
        };
        self.end_silence(at, now);
        (self.hearings[at].last_heard, self.hearings[at].is_doubted) = (now, false);
        if self.memory.places[at].member.state == MemberState::Failed {
            // The runtime was given up and has not noticed yet.
            self.drops.count(DropReason::Fenced);
            return None;
        }
        Some(at)
    }

    /// Any frame of a runtime counts as a sign of life: its messages may be stuck behind
    /// a lost one, and it may not know of the loss.
    fn hear_frames(&mut self, now: u64) {
        for at in 0..self.memory.places.len() {
            let heard = self.fabric.heard_at(self.memory.places[at].member.peer()).unwrap_or(0);
            if heard > self.hearings[at].last_heard {
                self.end_silence(at, now);
                self.hearings[at].last_heard = heard.max(self.hearings[at].last_heard);
            }
        }
    }

    fn handle_request(&mut self, from: Peer, number: u64, request: Control, now: u64) {
        let Some(at) = self.hear(from, now) else { return };
        self.hearings[at].owes_word = true;
        let handled = self.memory.places[at].handled;
        // A runtime that has heard of this incarnation by another frame than the question
        // for its account continues its numbers. The messages in between follow the
        // account; a gap that is left then is due to a lost log.
        if number <= handled || number > handled + 1 && !self.hearings[at].is_accounted {
            return;
        }
        let spared = if let Control::Spared { pool, last: true, .. } = &request {
            Some(*pool)
        } else {
            None
        };
        let wanted = if let Control::WantBlock { pool } = &request { Some(*pool) } else { None };
        let recovered = matches!(request, Control::Recovered { .. } | Control::Waits { .. });
        let is_of_pool = matches!(
            request,
            Control::WantBlock { .. }
                | Control::Spared { .. }
                | Control::Adopted { .. }
                | Control::Returned { .. }
        );
        if !recovered && !is_of_pool {
            self.drops.count(DropReason::Malformed);
            return;
        }
        self.record(Decision::CoordinatorRequest { from, number, request });
        match (wanted, spared) {
            (Some(pool), _) => self.want(from, pool, 2, now),
            (None, Some(pool)) => self.spared(from, pool),
            _ if recovered => self.finish_recoveries(now),
            _ => self.serve_all(),
        }
    }

    fn handle_control(&mut self, from: Peer, message: Control, now: u64) {
        if let Some(host) = from.node.host().filter(|host| usize::from(*host) < self.hosts.len()) {
            return self.handle_manager(from, host, message, now);
        }
        let switch = from
            .node
            .switch_number()
            .filter(|switch| usize::from(*switch) < self.memory.services.len());
        if let (Control::RulesInForce { version }, Some(switch)) = (&message, switch) {
            return self.handle_rules_in_force(from, switch, *version);
        }
        if let (Control::Unclaimed { node, incarnation, flows }, Some(_)) = (&message, switch) {
            return self.note_unclaimed(
                Peer { node: *node, incarnation: *incarnation },
                from.node,
                *flows,
            );
        }
        let server = from
            .node
            .state_server_number()
            .and_then(|server| self.servers_heard.get_mut(usize::from(server)));
        if let Some(heard) = server {
            return match message {
                Control::Hello { .. } => {
                    // The new incarnation has no flow written back to it yet.
                    *heard = None;
                    self.begin_with_state_server(from.node);
                }
                Control::Report(report) => *heard = Some((from, report.view, now)),
                _ => self.drops.count(DropReason::Malformed),
            };
        }
        let Some(at) = self.hear(from, now) else { return };
        match message {
            Control::Hello { layouts } => {
                if layouts != self.config.layouts {
                    self.suspect(at, Cause::NeverStarted);
                } else if self.memory.places[at].member.state == MemberState::Starting {
                    self.hearings[at].came_late =
                        self.hearings.iter().any(|hearing| hearing.report.flows > 0);
                    self.record(Decision::Joined { peer: from });
                    self.tell_managers();
                    self.push_view();
                    self.grant_first_blocks(from, now);
                }
            }
            Control::Report(report) => {
                let view = report.view;
                self.hearings[at].report = report;
                self.handle_report(from);
                self.outdo(view);
            }
            Control::Holds { pool, blocks } => self.held(from, pool, &blocks),
            Control::Accounted { handled } => {
                // A gap is no loss: settled orders have taken effect at the runtime
                // itself.
                self.memory.places[at].orders.resume(handled);
                self.hearings[at].is_accounted = true;
            }
            Control::Settled { handled } => self.memory.places[at].orders.settle(handled),
            Control::Migrated { request, moved, last, .. } => {
                self.handle_migrated(from, request, moved, last)
            }
            _ => self.drops.count(DropReason::Malformed),
        }
    }

    /// Suspects silent runtimes, and starts those that are due.
    pub fn handle_timeout(&mut self, now: u64) {
        // If this process stood still, silence says nothing about the others: it is
        // measured by a clock that stood still too.
        let since = now.saturating_sub(self.last_turn);
        let unwatched = since.saturating_sub(self.config.hang_timeout / 4);
        self.hearings
            .iter_mut()
            .for_each(|hearing| hearing.last_heard = now.min(hearing.last_heard + unwatched));
        self.stand_still(since.saturating_sub(self.config.hosts.timeout / 4), now);
        self.last_turn = now;
        self.look_after_hosts(now);
        if self.is_waiting_for_manager() {
            return;
        }
        self.settle_ends(now);
        self.ask_again(now);
        self.go_on_draining(now);
        self.scale(now);
        self.hear_frames(now);
        let has_quorum = self.has_quorum();
        for at in 0..self.memory.places.len() {
            let silent = now.saturating_sub(self.hearings[at].last_heard);
            match self.memory.places[at].member.state {
                MemberState::Running | MemberState::Leaving
                    if has_quorum && self.has_failed(at, silent, now) =>
                {
                    self.doubt(at, silent);
                }
                MemberState::Starting if silent > self.config.start_timeout => {
                    self.suspect(at, Cause::NeverStarted)
                }
                _ => {}
            }
            let place = &self.memory.places[at];
            let host = place.member.host;
            let may_start = place.member.state == MemberState::Failed
                && self.is_there(host)
                && !self.is_leaving(host);
            if may_start && place.start_at.is_some_and(|due| due <= now) {
                let peer =
                    Peer { node: place.member.node, incarnation: self.memory.next_incarnation };
                self.record(Decision::Started { peer, at: now });
                self.hearings[at] = Hearing::new(now, true);
                self.fabric.set_peer(peer);
                self.admit();
                let start = Control::Start { node: peer.node, incarnation: peer.incarnation };
                self.pending.push((self.manager_for(peer.node), start));
                self.push_view();
            }
        }
    }

    /// The time at which [`Coordinator::handle_timeout`] is due next.
    pub fn poll_timeout(&self) -> u64 {
        let due = |(place, hearing): (&RuntimeSlot, &Hearing)| match place.member.state {
            MemberState::Running | MemberState::Leaving => {
                let due = hearing.last_heard + self.config.hang_timeout + 1;
                // Overdue and not given up: the next regular turn looks again.
                if due <= self.last_turn { u64::MAX } else { due }
            }
            MemberState::Starting if hearing.suspected.is_some() => u64::MAX,
            MemberState::Starting => hearing.last_heard + self.config.start_timeout + 1,
            MemberState::Failed if !self.is_there(place.member.host) => u64::MAX,
            MemberState::Failed => place.start_at.unwrap_or(u64::MAX),
        };
        let soonest =
            self.memory.places.iter().zip(&self.hearings).map(due).min().unwrap_or(u64::MAX);
        let soonest = if self.is_waiting_for_manager() { u64::MAX } else { soonest }
            .min(self.next_host_look());
        let is_unsent = self
            .memory
            .places
            .iter()
            .zip(&self.hearings)
            .any(|(place, hearing)| hearing.is_accounted && !place.orders.is_sent());
        let retry = if is_unsent || !self.pending.is_empty() {
            self.last_turn + SECOND / 1000
        } else {
            u64::MAX
        };
        soonest
            .min(retry)
            .min(self.next_look().max(self.last_turn + SECOND / 1000))
            .min(self.last_turn + self.config.hang_timeout / 4)
    }
}
