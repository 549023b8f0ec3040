//! A simulated world: one host or several, with hubs and runtimes, clients and servers,
//! and a network that does what the seed says.
//!
//! Theory of operation. Everything that happens is an event at a simulated time; events
//! at one time happen in the order in which they were made. Nodes are the production
//! state machines. The world carries their frames, with delay, loss, duplication and
//! reordering. The world stops and kills their processes, and reports deaths as a host's
//! manager would. After the faults it heals: from then on every connection that the
//! protection promises to save has to finish. Two runs of one seed give one hash.

mod clocks;
mod coordinator;
mod draw;
mod end;
mod fault_schedule;
mod fragments;
mod hosts;
mod links;
mod probes;
mod report;
mod rules;
mod sending;
mod served;
mod steps;
mod stranger;
mod streams;

pub use report::{Faults, Report};

use self::coordinator::Incarnations;
use self::fault_schedule::FaultSchedule;
use self::hosts::{Hosts, Site, WITNESS};
use self::links::Cuts;
use self::sending::rivals;
use self::served::Servers;
use self::streams::{Lane, Of, Streams};
use crate::checkers::Checkers;
use crate::conversation::Conversation;
use crate::frames::{self, Reassembly};
use crate::loss::Loss;
use crate::peers::{Client, Progress, Server};
use crate::plan::{Exit, Habits, How, Outcome, Plan, Reset, Step};
use crate::random::Random;
use crate::scenario::Scenario;
use holdfast_node::coordinator::{ClusterConfig, CoordinatorConfig};
use holdfast_node::message::{LastWord, PoolId};
use holdfast_node::runtime::Runtime;
use holdfast_protection::Peer;
use holdfast_wire::fault::plant;
use holdfast_wire::{DropCounters, MemoryPool, NodeId, Packet, PacketPool};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BinaryHeap};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
/// Begin of simulated time: stamps are never zero.
const BEGIN: u64 = 1000 * SECOND;
const BUFFERS: usize = 1024;
/// In a restless network no packet overtakes one that was sent this much earlier, ns.
const LONGEST_WAY: u64 = 200 * MILLISECOND;

enum Event {
    ToHub(Site, Peer, Vec<u8>),
    /// To a host, from another host.
    FromHost(Site, Vec<u8>),
    /// To a host, from a stranger on the network.
    FromStranger(Site, Vec<u8>),
    ToRuntime(Peer, Vec<u8>),
    ToCoordinator(Peer, Vec<u8>),
    ToStateServer(Peer, Vec<u8>),
    /// At the ports of a switch, from a client or a server.
    FromClient(u16, Vec<u8>),
    FromServer(u16, Vec<u8>),
    /// A late fragment, sent from inside (true) or outside by way of this switch.
    Sent(bool, u16, Vec<u8>),
    ToServer(u16, Vec<u8>),
    ToClient(u16, Vec<u8>),
    TurnHub(Site),
    TurnRuntime(Peer),
    TurnCoordinator,
    TurnStateServer(u16),
    ClientTimer(usize),
    /// Keep-alive timer of a reset client's server, which may not have heard of the
    /// reset.
    KeepAlive(usize),
    Started(Site, Peer),
    ExitNoticed(Site, Peer),
    Resume(Peer),
    HostResumes(Site),
    /// The links of this host's ports are up again.
    Plugged(Site),
    /// A frame that was under way for long.
    Stale(Lane, Peer, Vec<u8>),
    /// A plan's step is due.
    Step,
    Fault,
    Move,
    Drain(NodeId),
    Restore(NodeId),
    CoordinatorFault,
    CoordinatorCut,
    CoordinatorStarts,
    StateServerFault,
    StateServerStarts(u16),
    Slowness,
    Starvation,
    HubFault,
    HubStarts(Site),
    FaultMeanwhile,
    Heal,
    Check,
    Rules(u16),
}

struct Process {
    host: Site,
    runtime: Runtime,
    pool: MemoryPool,
    rx: Vec<Packet>,
    paused: bool,
    turn_at: u64,
    /// End of a slow process's pause: no turn before.
    busy_until: u64,
}

/// A world, see the module.
pub struct World {
    scenario: Scenario,
    /// Number of chains of every runtime.
    chains: u16,
    /// The plan; in a drawn world, what the world begins with.
    plan: Plan,
    schedule: Option<FaultSchedule>,
    /// For packets to a runtime whose ring is small, by switch and stamp: whether the
    /// first copy found room.
    fits: BTreeMap<(Peer, (NodeId, u64)), bool>,
    /// The packet that a runtime had in hand when it was killed: its switch and its
    /// stamp.
    in_hand: BTreeMap<Peer, (NodeId, u64)>,
    /// Last words of runtimes, which outlive all processes of their hosts.
    last_words: BTreeMap<Peer, (Site, LastWord)>,
    streams: Streams,
    now: u64,
    next_number: u64,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    bodies: Vec<Option<Event>>,
    free_bodies: Vec<usize>,
    hosts: Hosts,
    coordinator: Incarnations,
    servers: Option<Servers>,
    processes: BTreeMap<Peer, Process>,
    clients: Vec<Client>,
    server: Server,
    /// Reassembly at the hosts outside, and at those inside.
    reassembly: [Reassembly; 2],
    inside: Habits,
    outside: Habits,
    cuts: Cuts,
    /// Per node that is slow: its pause after each turn, in turns, and until when.
    slow: BTreeMap<NodeId, (u64, u64)>,
    /// While the machine is busy: mean pause after each turn, in turns, and until when.
    starved: (u64, u64),
    /// When the machine became busy.
    starved_since: u64,
    /// End of the last wait that began while the machine was busy.
    waiting_until: u64,
    /// Runtimes that were fenced although they ran and their links were up.
    fenced_alive: Vec<Peer>,
    healed: bool,
    faults: Faults,
    checkers: Checkers,
    /// Set if the protection is a weak one.
    loss: Option<Loss>,
    hash: u64,
    count: u64,
    last_arrival: BTreeMap<(Lane, Peer), u64>,
    trace: bool,
    /// Messages between nodes, if they are recorded.
    conversation: Option<RefCell<Conversation>>,
    deadline: u64,
    quiet_since: Option<u64>,
    quiet_from: Option<u64>,
    /// Steps that were taken.
    done: Vec<Step>,
    /// The message that the next step waits for was seen.
    was_seen: bool,
    /// For a plan's steps: runtimes that were killed or stopped, and event boundaries
    /// since the last step at which the system called itself safe.
    runtime_failures: usize,
    settled_since: u64,
    settled: u64,
    released: Vec<Exit>,
    /// Connections and datagrams whose sender was told that they were refused.
    refused: Vec<(u32, u32)>,
    /// See [`Outcome::resets`].
    resets: Vec<(u32, bool, Reset)>,
    drops: DropCounters,
    unprotected: u64,
}

impl World {
    /// A world drawn from the scenario's seed.
    pub fn new(scenario: Scenario, trace: bool) -> World {
        let (plan, schedule) = fault_schedule::draw(&scenario);
        let mut world = World::of(scenario, plan, trace);
        world.coordinator.faults_left = schedule.coordinator_faults;
        world.hosts.faults_left = schedule.hub_faults;
        world.begin_schedule(schedule);
        world.begin_servers_schedule();
        world
    }

    /// A world in which happens what the plan says, with the scenario's protection, chain
    /// and network.
    pub fn planned(scenario: Scenario, plan: Plan, trace: bool) -> World {
        let mut world = World::of(Scenario { quiet: true, ..scenario }, plan, trace);
        let times: Vec<u64> = world.plan.steps.iter().filter_map(Step::time).collect();
        times.into_iter().for_each(|time| world.at(BEGIN + time, Event::Step));
        if !world.plan.steps.iter().any(|step| step.how == How::Heal) {
            let end = Random::new(scenario.seed).range(300, 1200) * MILLISECOND;
            world.at(if world.plan.calm { BEGIN } else { BEGIN + end }, Event::Heal);
        }
        world
    }

    fn of(scenario: Scenario, plan: Plan, trace: bool) -> World {
        let _planting = plant(scenario.planted);
        let of_each = if plan.rules.is_empty() { 1 } else { 2 };
        let chains = of_each * plan.switches;
        let layout = scenario.chains(1, 1)[0].chain.layout().clone();
        let promises = scenario.preset.promises();
        let fabric = hosts::fabric();
        let mut pools = Vec::new();
        let mut probe = Runtime::new(
            scenario.runtime_config(Peer { node: NodeId::new(99), incarnation: 1 }, 64, fabric),
            scenario.chains(plan.switches, of_each),
        );
        probe.visit_pools(|id: PoolId, pool| pools.push((id, pool.size())));
        let pages = scenario.pages(chains, plan.flows * usize::from(plan.runtimes));
        let has_server = scenario.served || !pages.is_empty();
        // The coordinator assigns the numbers that no state server assigns.
        let lists = if scenario.served { core::mem::take(&mut pools) } else { Vec::new() };
        let mut statistics = Vec::new();
        probe.visit_parts(|_, part| {
            statistics.extend(part.is_shared().then_some(part.own().len() as u32))
        });
        let servers =
            has_server.then(|| Servers::new(lists, statistics.into_iter(), pages, &scenario));
        let coordinator = CoordinatorConfig {
            me: Peer { node: NodeId::COORDINATOR, incarnation: 1 },
            hosts: hosts::config(plan.hosts, plan.switches, of_each),
            names: Vec::new(),
            clusters: ClusterConfig::only(plan.runtimes, chains, promises),
            rules: rules::all_to(0, plan.switches, of_each),
            hang_timeout: 300 * MILLISECOND,
            start_timeout: 5 * SECOND,
            first_incarnation: 1,
            pools,
            state_servers: servers.as_ref().map_or(0, Servers::count),
            layouts: vec![layout.hash; chains.into()],
            fabric,
        };
        let flows = plan.connections.len().max(64) * 2;
        let mut hosts = Hosts::new(
            &scenario,
            (plan.hosts, plan.switches),
            (plan.sealed, plan.networks),
            flows,
            scenario.logs(chains),
        );
        if plan.connections.iter().any(|connection| connection.large) {
            hosts.expect_fragments();
        }
        for at in 0..plan.hosts {
            hosts.add(plan.hosts, clocks::of_host_at_beginning(&plan, at.into()));
        }
        hosts[WITNESS].hub.handle_coordinator(coordinator.me);
        let present = servers.iter().flat_map(Servers::peers).flatten();
        present.for_each(|server| hosts[WITNESS].hub.handle_state_server(server));
        let [inside, outside] = plan.habits.unwrap_or_else(|| match plan.calm {
            true => [Habits::CALM; 2],
            false => {
                let mut random = Random::new(scenario.seed);
                [draw::habits(&mut random), draw::habits(&mut random)]
            }
        });
        let mut checkers = Checkers::new(
            layout,
            scenario,
            promises || plan.strict,
            scenario.preset.is_strict() || plan.strict,
        );
        let clients = draw::clients(&plan.connections);
        checkers.rivals = rivals(&clients, plan.switches).collect();
        checkers.overtaking = if plan.calm { 0 } else { LONGEST_WAY };
        // Frames behind a cut are under way until it is over, and a little longer.
        let is_cut = plan.steps.iter().any(|step| matches!(step.how, How::Cut(..)));
        let on_the_way = if plan.calm && !is_cut { 2 * MILLISECOND } else { LONGEST_WAY };
        let loss =
            (scenario.preset.may_forget() > 0).then(|| Loss::new(scenario.preset, on_the_way));
        let mut world = World {
            chains,
            schedule: None,
            fits: BTreeMap::new(),
            in_hand: BTreeMap::new(),
            last_words: BTreeMap::new(),
            streams: Streams::new(scenario.seed),
            now: BEGIN,
            next_number: 0,
            events: BinaryHeap::new(),
            bodies: Vec::new(),
            free_bodies: Vec::new(),
            hosts,
            coordinator: Incarnations::new(
                coordinator,
                clocks::at_beginning(&plan, NodeId::COORDINATOR),
            ),
            servers,
            processes: BTreeMap::new(),
            clients,
            server: Server::default(),
            reassembly: [Reassembly::default(), Reassembly::default()],
            inside,
            outside,
            cuts: Cuts::default(),
            slow: BTreeMap::new(),
            starved: (0, 0),
            starved_since: 0,
            waiting_until: 0,
            fenced_alive: Vec::new(),
            healed: false,
            faults: Faults { skewed: u64::from(!plan.clocks.is_empty()), ..Faults::default() },
            checkers,
            loss,
            hash: 0xcbf2_9ce4_8422_2325,
            count: 0,
            last_arrival: BTreeMap::new(),
            trace,
            conversation: None,
            deadline: BEGIN + plan.lasts,
            quiet_since: None,
            quiet_from: None,
            done: Vec::new(),
            was_seen: false,
            runtime_failures: 0,
            settled_since: 0,
            settled: 0,
            released: Vec::new(),
            refused: Vec::new(),
            resets: Vec::new(),
            drops: DropCounters::default(),
            unprotected: 0,
            plan,
            scenario,
        };
        world.hosts.sites().for_each(|at| world.turn_hub_at(at, BEGIN));
        world.turn_coordinator_at(BEGIN);
        world.turn_servers_at(BEGIN);
        for at in 0..world.clients.len() {
            let due = world.clients[at].due();
            world.at(due, Event::ClientTimer(at));
        }
        world.at(BEGIN + 50 * MILLISECOND, Event::Check);
        for (time, chain) in world.plan.rules.clone() {
            world.at(BEGIN + time, Event::Rules(chain));
        }
        world
    }

    /// The same world, with the messages between nodes in its outcome.
    #[must_use]
    pub fn listening(mut self) -> World {
        let ends = self.clients.iter().map(Client::ends);
        self.conversation = Some(RefCell::new(Conversation::new(ends)));
        self
    }

    /// Runs the world to its end.
    pub fn run(self) -> Report {
        self.play().report
    }

    /// Runs the world to its end, and returns everything about it.
    pub fn play(mut self) -> Outcome {
        let _planting = plant(self.scenario.planted);
        while let Some(Reverse((time, number, body))) = self.events.pop() {
            let Some(event) = self.bodies[body].take() else { continue };
            self.free_bodies.push(body);
            if time > self.deadline || self.is_over(time) {
                break;
            }
            self.now = time;
            self.count += 1;
            self.note(number, &event);
            self.listen(&event);
            self.handle(event);
            self.checkers.check_ended(
                &self.clients,
                self.processes.values().map(|process| &process.runtime),
            );
            self.follow_plan();
            // A drawn world has shown enough by now; a planned one is wanted whole.
            if self.schedule.is_some() && self.checkers.violations.len() > 8 {
                break;
            }
        }
        self.finish()
    }

    fn is_over(&mut self, time: u64) -> bool {
        if !self.healed {
            return false;
        }
        let is_over =
            |at: usize| self.clients[at].progress() != Progress::Running && !self.is_half_reset(at);
        if !(0..self.clients.len()).all(|at| is_over(at) || self.has_lost(at)) {
            return false;
        }
        self.quiet_from.get_or_insert(self.count);
        // Silence follows the last wait for a processor, so that everything under way
        // arrives and every buffer is back.
        let since = *self.quiet_since.get_or_insert(time);
        time > since.max(self.waiting_until) + self.silence()
    }

    fn at(&mut self, time: u64, event: Event) {
        let number = self.next_number;
        self.next_number += 1;
        let body = match self.free_bodies.pop() {
            Some(body) => {
                self.bodies[body] = Some(event);
                body
            }
            None => {
                self.bodies.push(Some(event));
                self.bodies.len() - 1
            }
        };
        self.events.push(Reverse((time.max(self.now), number, body)));
    }

    fn note(&mut self, number: u64, event: &Event) {
        let mut mix = |value: u64| {
            self.hash = (self.hash ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5)
        };
        mix(self.now);
        mix(number);
        let (name, peer, frame): (&str, Option<Peer>, &[u8]) = match event {
            Event::ToHub(_, peer, frame) => ("frame to hub from", Some(*peer), frame),
            Event::FromHost(_, frame) => ("frame from another host", None, frame),
            Event::FromStranger(_, frame) => ("forged frame", None, frame),
            Event::ToRuntime(peer, frame) => ("frame to runtime", Some(*peer), frame),
            Event::ToCoordinator(peer, frame) => ("frame to coordinator", Some(*peer), frame),
            Event::ToStateServer(peer, frame) => ("frame to state server", Some(*peer), frame),
            Event::FromClient(_, frame) => ("packet from client", None, frame),
            Event::FromServer(_, frame) => ("packet from server", None, frame),
            Event::Sent(_, _, frame) => ("late fragment", None, frame),
            Event::ToServer(_, frame) => ("packet to server", None, frame),
            Event::ToClient(_, frame) => ("packet to client", None, frame),
            Event::TurnHub(_) => ("hub turns", None, &[]),
            Event::TurnRuntime(peer) => ("runtime turns", Some(*peer), &[]),
            Event::TurnCoordinator => ("coordinator turns", None, &[]),
            Event::TurnStateServer(_) => ("state server turns", None, &[]),
            Event::ClientTimer(_) => ("client's timer", None, &[]),
            Event::KeepAlive(_) => ("server's timer", None, &[]),
            Event::Started(_, peer) => ("process started", Some(*peer), &[]),
            Event::ExitNoticed(_, peer) => ("exit noticed", Some(*peer), &[]),
            Event::Resume(peer) => ("process continues", Some(*peer), &[]),
            Event::HostResumes(_) => ("host continues", None, &[]),
            Event::Plugged(_) => ("links are up", None, &[]),
            Event::Stale(_, peer, frame) => ("stale frame", Some(*peer), frame),
            Event::Step => ("step", None, &[]),
            Event::Fault => ("fault", None, &[]),
            Event::Move => ("order to move", None, &[]),
            Event::Drain(_) => ("order to drain", None, &[]),
            Event::Restore(_) => ("back into service", None, &[]),
            Event::CoordinatorFault => ("coordinator's fault", None, &[]),
            Event::CoordinatorCut => ("coordinator's cut", None, &[]),
            Event::CoordinatorStarts => ("coordinator starts", None, &[]),
            Event::StateServerFault => ("state server's fault", None, &[]),
            Event::StateServerStarts(_) => ("state server starts", None, &[]),
            Event::Slowness => ("slowness", None, &[]),
            Event::Starvation => ("busy machine", None, &[]),
            Event::HubFault => ("hub's fault", None, &[]),
            Event::HubStarts(_) => ("hub starts", None, &[]),
            Event::FaultMeanwhile => ("fault meanwhile", None, &[]),
            Event::Heal => ("healing", None, &[]),
            Event::Check => ("check", None, &[]),
            Event::Rules(_) => ("new rules", None, &[]),
        };
        mix(name.len() as u64);
        for part in frame.chunks(8) {
            mix(part.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)));
        }
        let is_turn = matches!(
            event,
            Event::TurnHub(_)
                | Event::TurnRuntime(_)
                | Event::TurnCoordinator
                | Event::TurnStateServer(_)
                | Event::Check
        );
        if self.trace && !is_turn {
            let at = match event {
                Event::FromHost(at, _) => format!(" at {at}"),
                _ => String::new(),
            };
            let who = peer.map_or(String::new(), |peer| format!(" {peer}"));
            let what = frames::describe(frame);
            crate::print_trace(format_args!(
                "{:>12.6} ms  {name}{at}{who}  {what}",
                (self.now - BEGIN) as f64 / 1e6
            ));
        }
    }

    /// Records a frame that reaches a runtime, the coordinator or a state server.
    fn listen(&self, event: &Event) {
        match event {
            Event::ToRuntime(peer, frame) if self.processes.contains_key(peer) => self.hear(frame),
            Event::ToCoordinator(peer, frame) if self.coordinator.peer() == Some(*peer) => {
                self.hear(frame)
            }
            Event::ToStateServer(_, frame) => self.hear(frame),
            _ => {}
        }
    }

    /// Records a frame that a hub reads, if it is for a switch or a manager there.
    fn listen_at(&self, site: Site, frame: &[u8]) {
        let to = frames::destination(frame).unwrap_or(NodeId::NONE);
        let is_served = to.switch_number().is_some_and(|to| self.hosts.serving(to) == Some(site));
        if is_served || to.host() == Some(site as u16) {
            self.hear(frame);
        }
    }

    fn hear(&self, frame: &[u8]) {
        if let Some(conversation) = &self.conversation {
            conversation.borrow_mut().hear(self.now - BEGIN, frame);
        }
    }

    fn say(&self, text: core::fmt::Arguments<'_>) {
        if let Some(conversation) = &self.conversation {
            conversation.borrow_mut().note(self.now - BEGIN, text.to_string());
        }
        if self.trace {
            crate::print_trace(format_args!(
                "{:>12.6} ms  ** {text}",
                (self.now - BEGIN) as f64 / 1e6
            ));
        }
    }

    fn turn_runtime_at(&mut self, peer: Peer, time: u64) {
        let Some(process) = self.processes.get_mut(&peer) else { return };
        let time = time.max(process.busy_until);
        if time < process.turn_at {
            process.turn_at = time;
            self.at(time, Event::TurnRuntime(peer));
        }
    }

    fn handle(&mut self, event: Event) {
        match &event {
            Event::ToHub(_, _, frame) => self.watch(false, Lane::ToHub, frame),
            Event::FromHost(_, frame) => self.watch(false, Lane::Between, frame),
            Event::ToRuntime(_, frame) => self.watch(false, Lane::ToRuntime, frame),
            Event::ToCoordinator(_, frame) => self.watch(false, Lane::ToCoordinator, frame),
            Event::ToStateServer(_, frame) => self.watch(false, Lane::ToStateServer, frame),
            _ => {}
        }
        match event {
            Event::ToHub(at, peer, frame) => self.hub_receives(at, Some(peer), frame),
            Event::FromHost(at, frame) => self.hub_receives(at, None, frame),
            Event::FromStranger(at, frame) => self.hub_refuses(at, frame),
            Event::ToRuntime(peer, frame) => self.runtime_receives(peer, &frame),
            Event::ToCoordinator(peer, frame) => self.coordinator_receives(peer, &frame),
            Event::ToStateServer(peer, frame) => self.server_process_receives(peer, &frame),
            Event::FromClient(switch, frame) => self.ingress(switch, &frame, 0),
            Event::FromServer(switch, frame) => self.ingress(switch, &frame, 1),
            Event::Sent(is_inside, switch, frame) => self.put_on_line(is_inside, switch, frame),
            Event::ToServer(switch, frame) => self.peers_receive(false, switch, &frame),
            Event::ToClient(switch, frame) => self.peers_receive(true, switch, &frame),
            Event::TurnHub(at) => self.hub_turns(at),
            Event::TurnRuntime(peer) => self.turn_runtime(peer),
            Event::TurnCoordinator => self.turn_coordinator(),
            Event::TurnStateServer(number) => self.turn_server(number),
            Event::ClientTimer(at) => self.client_timer(at),
            Event::KeepAlive(at) => self.keep_alive(at),
            Event::Started(at, peer) => self.started(at, peer),
            Event::ExitNoticed(at, _) if self.hosts[at].is_away => {}
            Event::ExitNoticed(at, peer) => match self.hosts[at].stopped_until {
                Some(until) => self.at(until, Event::ExitNoticed(at, peer)),
                None => {
                    self.given_up(peer);
                    if let Some((switch, stamp)) = self.in_hand.remove(&peer) {
                        self.hosts[at].hub.handle_suspect(switch, stamp, self.now);
                    }
                    self.hosts[at].hub.handle_ended(peer);
                    self.turn_hub(at);
                }
            },
            Event::HostResumes(at) => self.resume_host(at),
            Event::Plugged(at) => self.tell_links(at),
            Event::Resume(peer) => {
                if let Some(process) = self.processes.get_mut(&peer) {
                    process.paused = false;
                    process.turn_at = u64::MAX;
                }
                self.turn_runtime_at(peer, self.now);
            }
            Event::Stale(lane, peer, frame) => self.stale_arrives(lane, peer, frame),
            Event::Step => {}
            Event::Fault => self.fault(),
            Event::Move => self.order_move(),
            Event::Drain(node) => self.order_drain(node),
            Event::Restore(node) => self.restore(node),
            Event::CoordinatorFault => self.coordinator_fault(),
            Event::CoordinatorCut => self.coordinator_cut(),
            Event::CoordinatorStarts => self.start_coordinator(),
            Event::StateServerFault => self.server_fault(),
            Event::StateServerStarts(number) => self.start_server(number),
            Event::Slowness => self.slowness_begins(),
            Event::Starvation => self.starvation_begins(),
            Event::HubFault => self.hub_fault(),
            Event::HubStarts(at) => self.start_hub(at),
            Event::FaultMeanwhile => self.fault_meanwhile(),
            Event::Heal
                if !self.coordinator.is_spared()
                    || !self.hosts.are_spared()
                    || !self.servers.as_ref().is_none_or(Servers::is_spared) =>
            {
                self.hurry_coordinator();
                self.at(self.now + 10 * MILLISECOND, Event::Heal);
            }
            Event::Heal if self.schedule.is_some() => self.schedule_is_over(),
            Event::Heal => self.heal(),
            Event::Check => {
                self.check_owners();
                self.check_given_up();
                self.at(self.now + 50 * MILLISECOND, Event::Check);
            }
            Event::Rules(chain) => self.change_rules(chain),
        }
    }

    fn started(&mut self, at: Site, peer: Peer) {
        if self.hosts[at].is_away || !self.hosts[at].hub.manager.present().contains(&peer) {
            return;
        }
        if let Some(until) = self.hosts[at].stopped_until {
            return self.at(until, Event::Started(at, peer));
        }
        let config = self.scenario.runtime_config(peer, self.plan.flows, hosts::fabric());
        let chains = self.scenario.chains(self.plan.switches, self.of_each());
        let mut runtime = Runtime::new(config, chains).with_state_servers(self.scenario.servers);
        let word = LastWord::new(Box::leak(Box::default()));
        runtime.show_last_word(word);
        self.last_words.insert(peer, (at, word));
        let process = Process {
            host: at,
            runtime,
            pool: MemoryPool::new(BUFFERS),
            rx: Vec::new(),
            paused: false,
            turn_at: u64::MAX,
            busy_until: 0,
        };
        self.processes.insert(peer, process);
        self.hosts[at].hub.manager.hear_last_word(peer, word);
        self.hosts[at].hub.handle_started(peer);
        self.turn_runtime_at(peer, self.now);
    }

    fn runtime_receives(&mut self, peer: Peer, frame: &[u8]) {
        let Some(process) = self.processes.get_mut(&peer) else { return };
        // A stopped process's ring fills up, and what does not fit is lost. As on a
        // machine, packets leave some of the process's buffers to messages.
        let kept = if frames::is_messages(frame) { BUFFERS / 16 } else { BUFFERS / 4 };
        if process.pool.free() < kept {
            return;
        }
        let ring = self.plan.ring;
        let room = ring - if frames::is_messages(frame) { 0 } else { ring / 8 };
        if ring > 0 {
            // A ring duplicates nothing: all copies of a packet fare like the first.
            let is_full = process.rx.len() >= room;
            let known =
                frames::in_hand(frame).and_then(|packet| match self.fits.entry((peer, packet)) {
                    Entry::Occupied(known) => Some(*known.get()),
                    Entry::Vacant(first) => {
                        first.insert(!is_full);
                        None
                    }
                });
            match known {
                None if is_full => {
                    self.faults.overflowed += 1;
                    let host = process.host;
                    return self.undelivered(host, frame);
                }
                Some(true) if is_full => return,
                Some(false) => return,
                _ => {}
            }
        }
        let Some(mut packet) = process.pool.take() else { return };
        if packet.copy_from(frame) {
            process.rx.push(packet);
        } else {
            process.pool.put(packet);
        }
        if !process.paused {
            let delay = self.streams.of(Of::Waking, peer).range(1, 20) * MICROSECOND;
            self.turn_runtime_at(peer, self.now + delay);
        }
    }

    /// Tells the hub of a frame that the manager could not put into a runtime's ring.
    fn undelivered(&mut self, at: Site, frame: &[u8]) {
        let host = &mut self.hosts[at];
        if !host.runs() {
            return;
        }
        let Some(mut packet) = host.pool.take() else { return };
        if packet.copy_from(frame) {
            host.hub.handle_undelivered(&mut packet);
        }
        host.pool.put(packet);
    }

    fn turn_runtime(&mut self, peer: Peer) {
        let (clock, slowness) = (self.local(peer.node), self.slowness(peer.node));
        let Some(process) = self.processes.get_mut(&peer) else { return };
        if process.paused || self.now < process.turn_at {
            return;
        }
        let host = process.host;
        process.turn_at = u64::MAX;
        let busy_until = self.now + 10 * MICROSECOND * slowness;
        process.busy_until = busy_until;
        let mut tx = Vec::new();
        process.runtime.turn(&mut process.rx, &mut tx, &mut process.pool, clock);
        let due = process.runtime.poll_timeout().unwrap_or(u64::MAX);
        let frames: Vec<Vec<u8>> = tx
            .into_iter()
            .map(|packet| {
                let frame = packet.bytes().to_vec();
                process.pool.put(packet);
                frame
            })
            .collect();
        let is_fenced = process.runtime.is_fenced();
        self.note_wait(busy_until);
        for frame in frames {
            self.carry(self.inside, Lane::ToHub, peer, frame, |frame| {
                Event::ToHub(host, peer, frame)
            });
        }
        if is_fenced {
            self.end_process(peer);
            return;
        }
        let due = self.world_time(peer.node, due).max(self.now + 10 * MICROSECOND);
        self.turn_runtime_at(peer, due);
    }

    fn client_timer(&mut self, at: usize) {
        if self.now < self.clients[at].due() || self.has_lost(at) {
            return;
        }
        if let Some(frame) = self.clients[at].on_timer(self.now) {
            self.client_sends(at, frame);
        }
        let due = self.clients[at].due();
        if due != u64::MAX {
            self.at(due, Event::ClientTimer(at));
        }
    }

    /// Whether the other connection with this one's reply key has finished, so that this
    /// one cannot.
    fn has_lost(&self, at: usize) -> bool {
        let rival = self.checkers.rivals.get(&self.clients[at].id());
        let is_done = |rival: &u32| {
            self.clients.iter().any(|one| one.id() == *rival && one.progress() == Progress::Done)
        };
        self.clients[at].progress() == Progress::Running && rival.is_some_and(is_done)
    }

    fn switch_of_client(&self, at: usize) -> u16 {
        (at % usize::from(self.plan.switches)) as u16
    }

    /// Number of chains of each switch.
    fn of_each(&self) -> u16 {
        self.chains / self.plan.switches
    }
}
