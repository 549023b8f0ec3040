//! `holdfast run`: one box. The started process is the guard ([`guard`]), the parent
//! of the others: the manager, which is also switch and router, the coordinator, and
//! every runtime.
//!
//! This module is the manager. In: frames from ports and virtual ports, ends of
//! processes, requests from the control socket, signals. Out: frames, processes, answers.
//! A single thread runs the state machines; others listen at the control socket and serve
//! the control API. Never: a decision of a protocol.

mod alerts;
mod answers;
mod changes;
mod control_transport;
mod coordinator;
mod coordinator_guard;
mod devices;
mod election;
mod etcd;
mod guard;
mod guard_link;
mod join;
mod keys;
mod leave;
mod levels;
mod lines;
mod network;
mod privileges;
mod reports;
mod restarts;
mod role;
mod runtime;
mod start;
mod state_server;
mod store;
mod workers;

pub use coordinator::main as coordinator_main;
pub use guard::{Options, main};
pub use runtime::main as runtime_main;
pub use start::manager_main;
pub use state_server::main as state_server_main;

use crate::config::Plan;
use crate::control::{Request, Server};
use alerts::AlertFiles;
use answers::Waiting;
use coordinator_guard::CoordinatorGuard;
use devices::DeviceLook;
use guard_link::{GuardLink, ToGuard};
use holdfast_control::exit::{self, Failure};
use holdfast_io::port::{Losses, Ports};
use holdfast_io::process::Clock;
use holdfast_io::wait::{SpinLimit, sleep};
use holdfast_io::{Arena, Notes};
use holdfast_node::bfd::Memory;
use holdfast_node::channel::{FabricConfig, KeyRing};
use holdfast_node::host::{Host, HostOut};
use holdfast_node::manager::HostOrder;
use holdfast_node::switch::{Switch, SwitchConfig};
use holdfast_protection::{Peer, Released};
use holdfast_wire::header::ETHERTYPE_FABRIC;
use holdfast_wire::{DropCounters, DropReason, NodeId, Packet, PacketPool};
use keys::Reread;
use levels::Levels;
use network::HostsNetwork;
use rustix::fd::{BorrowedFd, OwnedFd};
use state_server::ServerGuard;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use workers::Worker;

/// Frames per port and turn.
const BURST: usize = 64;
/// Times of announcements after service has changed hosts, ns. Announcements are
/// repeated, because any may be lost, and a neighbour that has just had an answer ignores
/// another for as long as a second (Linux: `locktime`).
const ANNOUNCE_AFTER: [u64; 7] = [
    0,
    100 * MILLISECOND,
    300 * MILLISECOND,
    600 * MILLISECOND,
    1_050 * MILLISECOND,
    1_500 * MILLISECOND,
    3_000 * MILLISECOND,
];
/// Maximum number of old frames that a device may have kept.
const MOST_STALE: usize = 65_536;
/// Turns without work before the manager sleeps.
const SPINS: u32 = 50;
/// Longest sleep, ns.
const MAX_SLEEP: u64 = 50_000_000;
/// The pause between two looks for ended processes, while there is no time to sleep, ns.
const LOOK_INTERVAL: u64 = 100_000;
/// The pause between two looks at devices and the control socket, ns.
const SURROUNDINGS_INTERVAL: u64 = 1_000 * MILLISECOND;
const MILLISECOND: u64 = 1_000_000;

/// Notes that outlive a manager: per switch the latest term of its service, and its
/// sessions with routers.
type ManagerNotes = Notes<{ Memory::WORDS }>;

/// The manager of a host.
struct ManagerProcess {
    file: String,
    text: Arc<str>,
    /// The text in a memory file, for the guard, until its rules are in force.
    applied: Option<OwnedFd>,
    /// The file for quarantined packets, each of which ended two runtimes.
    quarantine: PathBuf,
    alerts: AlertFiles,
    /// The plan of the box, as this host has it, with the rules that it began with.
    plan: Arc<Plan>,
    keys: Option<KeyRing>,
    incarnation: u32,
    /// The guard's process id, parent of all.
    parent: u32,
    link: GuardLink,
    notes: ManagerNotes,
    fabric_config: FabricConfig,
    /// The networks to other hosts, if there are several.
    hosts_network: HostsNetwork,
    number: u16,
    /// The last reported network to each host.
    paths_said: Vec<u8>,
    /// Times at which a switch's addresses are to be announced.
    announce_at: Vec<(u16, u64)>,
    seed: u64,
    /// The seed of runtimes' hashes of flow keys. Runtimes exchange hashes, so all hosts
    /// have the same.
    flow_seed: u64,
    guard: CoordinatorGuard,
    server_guard: ServerGuard,
    clock: Clock,
    arena: Arena,
    ports: Ports,
    workers: Vec<Worker>,
    next_id: u16,
    host: Host,
    out: HostOut,
    outgoing: Vec<Vec<Released<Packet>>>,
    rx: Vec<Packet>,
    drops: DropCounters,
    /// Time-out of a runtime's part of a trace, ns.
    trace_delay: u64,
    waiting: Waiting,
    last_look: u64,
    last_death_look: u64,
    device_look: DeviceLook,
    /// Files that are being read again.
    reread: Option<Receiver<Reread>>,
    /// Runtimes that ended before the box was ready, and the end of the last one.
    failed_starts: u32,
    last_cause: String,
    /// The latest end of each runtime of this host, by node.
    causes: BTreeMap<NodeId, String>,
    /// Short incarnations before this one, the end of the last one, and the start of this
    /// one.
    retried: (u32, String, u64),
    is_ready: bool,
    /// True if this incarnation or an earlier one has served.
    has_served: bool,
    /// State of each port when last looked at: true if it is up, and its MTU.
    device_states: Vec<(bool, u16)>,
    levels: Levels,
    /// Frames in and out by each port.
    traffic: Vec<(u64, u64)>,
    /// Frames lost outside each port while this host served it.
    losses: Vec<Losses>,
}

/// Signals that have come.
struct Signals<'a> {
    stop: &'a AtomicBool,
    hangup: &'a AtomicBool,
}

fn random_seed() -> u64 {
    let mut bytes = [0u8; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => std::process::id().into(),
    }
}

/// The configuration of a switch's incarnation: the manager's, or with several hosts, the
/// term.
fn switch_config(
    plan: &Plan,
    number: u16,
    seed: u64,
    incarnation: u32,
    fabric: FabricConfig,
    succeeds: bool,
) -> SwitchConfig {
    SwitchConfig {
        me: Peer { node: NodeId::switch(number), incarnation },
        // Tells this incarnation's packets from the former one's.
        number: incarnation as u8,
        flows: plan.limits.flows,
        limits: plan.switch_limits(),
        seed,
        tick_interval: 50 * MILLISECOND,
        timeout: 3000 * MILLISECOND,
        fabric,
        logs: plan.logs(),
        succeeds,
    }
}

impl ManagerProcess {
    fn serve(
        &mut self,
        signals: &Signals<'_>,
        asked: &Receiver<Request>,
        wake: BorrowedFd<'_>,
        control: &Path,
        server: &mut Server,
    ) -> Result<(), Failure> {
        let mut timeout = SpinLimit::new(SPINS);
        let mut was_hangup_answered = false;
        let mut last_server_look = self.clock.now();
        while !signals.stop.load(Ordering::Relaxed) {
            let mut had_work = self.turn();
            let now = self.clock.now();
            if now.saturating_sub(last_server_look) > SURROUNDINGS_INTERVAL {
                last_server_look = now;
                if let Some(news) = server.look() {
                    devices::say(&news);
                }
                if self.reread.is_none() && signals.hangup.swap(false, Ordering::Relaxed) {
                    self.read_again(server.reload());
                }
            }
            if let Some(reread) = self.take_reread()
                && !self.handle_reread(reread)
                && !core::mem::replace(&mut was_hangup_answered, true)
            {
                devices::say(
                    "SIGHUP: a running box does not read its file again by itself: `holdfast apply FILE` applies what can be changed",
                );
            }
            // At most one request per turn: packets are forwarded between two requests.
            if let Ok(asked) = asked.try_recv() {
                self.handle_asked(asked);
                had_work = true;
            }
            had_work |= self.is_answer_due();
            self.measured(|manager| {
                manager.pass_answers_on();
                manager.answer_rules();
            });
            if !self.has_served && self.guard.is_hopeless() {
                return Err(Failure::new(exit::UNAVAILABLE, self.guard.complaint()));
            }
            if let Some(cause) = self.hopeless_start() {
                return Err(Failure::new(
                    exit::UNAVAILABLE,
                    format!(
                        "runtimes end as soon as they start ({cause}): if memory is short, lower limits.flows and limits.buffers"
                    ),
                ));
            }
            // If the box has served, living runtimes have flows, and the switch keeps
            // other packets until it knows rules and routes. A runtime may take long to
            // start.
            if !self.is_ready && (self.has_served || self.host.hub.manager.is_ready()) {
                self.is_ready = true;
                self.host.watch_routers(|at| {
                    self.notes.read(self.plan.switches.len() + usize::from(at)).map(Memory)
                });
                let now = self.clock.now();
                for switch in self.served() {
                    self.host.announce(switch, now, &mut self.out, &mut self.arena);
                    self.carry_out(now);
                }
                self.has_served = true;
                let runtimes = self
                    .workers
                    .iter()
                    .filter(|worker| worker.peer.node != NodeId::COORDINATOR)
                    .count();
                let line = format!(
                    "ready: {} ports, {runtimes} runtimes, control socket {}",
                    self.ports.len(),
                    control.display()
                );
                let _ = self.link.send(&ToGuard::Ready { line }, &[]);
            }
            if timeout.is_over(had_work) {
                self.wait(wake);
            }
        }
        self.leave(wake);
        Ok(())
    }

    /// Runs a turn. True if there was work.
    fn turn(&mut self) -> bool {
        let now = self.clock.now();
        let mut had_work = false;
        self.link.beat();
        // Frames that come earlier wait in the devices.
        let open = if self.is_ready { self.ports.devices() } else { 0 };
        for device in 0..open {
            had_work |= self.take_burst(device, now);
        }
        for at in 0..self.hosts_network.ports.len() {
            self.hosts_network.ports[at].receive(BURST, &mut self.arena, &mut self.rx);
            if !self.rx.is_empty() {
                had_work = true;
                self.host.handle_fabric(&mut self.rx, now, &mut self.out, &mut self.arena);
                self.carry_out(now);
            }
        }
        for at in 0..self.workers.len() {
            let worker = &mut self.workers[at];
            // The frames of a process that may not be heard wait in its rings.
            if !self.host.hub.may_hear(worker.peer) {
                continue;
            }
            worker.port.receive(BURST, &mut self.rx, &mut self.arena);
            let beats = worker.port.heartbeat();
            if beats != worker.beats {
                (worker.beats, worker.alive_at) = (beats, now);
            }
            self.hear_election(at, now);
            if !self.rx.is_empty() {
                had_work = true;
                let peer = self.workers[at].peer;
                self.host.handle_runtime(peer, &mut self.rx, now, &mut self.out, &mut self.arena);
                self.carry_out(now);
            }
        }
        if now.saturating_sub(self.last_look) > LOOK_INTERVAL {
            self.last_look = now;
            self.look_after_processes(now);
            // The coordinator runs on the first host; candidates run on each.
            if self.number == 0 || self.guard.election.is_some() {
                self.look_after_coordinator(now);
            }
            self.look_after_state_servers(now);
        }
        if self.device_look.is_older(now, SURROUNDINGS_INTERVAL) {
            self.device_look.begin(now);
        }
        if !self.device_look.is_over() {
            had_work = true;
            self.measured(|manager| manager.look_at_devices(now));
        }
        self.announce_again(now);
        self.say_paths();
        if had_work || self.host.poll_timeout() <= now {
            self.measured(|manager| {
                manager.host.turn(now, &mut manager.out, &mut manager.arena);
                manager.carry_out(now);
            });
        }
        had_work
    }

    /// Takes a burst from a device. True if there were frames for ports that are served
    /// here.
    fn take_burst(&mut self, device: usize, now: u64) -> bool {
        if !self.ports.on(device).iter().any(|at| self.host.serves(*at)) {
            return false;
        }
        self.ports.receive(device, BURST, &mut self.arena);
        let mut had_work = false;
        for nth in 0..self.ports.on(device).len() {
            let at = self.ports.on(device)[nth];
            let frames = self.ports.received(at.into());
            if frames.is_empty() {
                continue;
            }
            // The host that serves the port has these frames, too.
            if !self.host.serves(at) {
                frames.drain(..).for_each(|frame| self.arena.put(frame));
                continue;
            }
            had_work = true;
            self.traffic[usize::from(at)].0 += frames.len() as u64;
            self.host.handle_port(at, frames, now, &mut self.out, &mut self.arena);
            self.carry_out(now);
        }
        had_work
    }

    fn carry_out(&mut self, now: u64) {
        for (at, memory) in self.out.notes.drain(..) {
            self.notes.write(self.plan.switches.len() + usize::from(at), &memory.0);
        }
        for (switch, term) in self.host.hub.manager.take_terms().into_iter().flatten().enumerate() {
            let mut note = [0; Memory::WORDS];
            note[0] = term.into();
            self.notes.write(switch, &note);
        }
        for (peer, packet) in self.out.hub.to_runtime.drain(..) {
            let refused = match self
                .workers
                .iter_mut()
                .find(|worker| worker.peer == peer && worker.cause.is_none())
            {
                Some(worker) => {
                    let is_message =
                        packet.bytes().get(12..14) == Some(&ETHERTYPE_FABRIC.to_be_bytes());
                    let sent = match is_message {
                        true => worker.port.send(packet, &mut self.arena),
                        false => worker.port.send_data(packet, &mut self.arena),
                    };
                    sent.err().map(|packet| (packet, DropReason::QueueFull))
                }
                None => Some((packet, DropReason::LostInFailure)),
            };
            if let Some((mut packet, reason)) = refused {
                self.drops.count(reason);
                if reason == DropReason::QueueFull {
                    self.host.hub.manager.count_refused(peer);
                }
                self.host.handle_undelivered(&mut packet);
                self.arena.put(packet);
            }
        }
        for worker in &mut self.workers {
            worker.port.flush();
        }
        self.hosts_network.transmit(&mut self.host.hub, &mut self.out.hub, &mut self.arena);
        for (port, packet) in self.out.transmit.drain(..) {
            self.outgoing[port as usize].push(packet);
        }
        for (at, frames) in self.outgoing.iter_mut().enumerate() {
            if !frames.is_empty() {
                self.traffic[at].1 += self.ports.transmit(at, frames, &mut self.arena);
            }
        }
        for liveness in core::mem::take(&mut self.out.liveness) {
            self.say_liveness(&liveness);
        }
        self.say_logged();
        let orders: Vec<HostOrder> = self.out.hub.orders.drain(..).collect();
        for order in orders {
            match order {
                HostOrder::Start(peer) => self.start(peer, now),
                HostOrder::Fence(peer) => self.note_fenced(peer, now),
                HostOrder::Stop(peer) => self.stop(peer),
                HostOrder::Serve(switch, term) => self.begin_to_serve(switch, term, now),
                HostOrder::Retire(switch) => devices::say(&format!(
                    "another host serves {} now, or the others cannot be heard: this one has stopped to",
                    self.ports_of(switch)
                )),
            }
        }
    }

    /// The ports of a switch, as text.
    fn ports_of(&self, switch: u16) -> String {
        match self.plan.switches.get(usize::from(switch)).and_then(|switch| switch.name.as_ref()) {
            Some(name) => format!("the ports of switch {name}"),
            None => "the ports".to_owned(),
        }
    }

    /// The numbers of the switches that run here.
    fn served(&self) -> Vec<u16> {
        (0..self.plan.switches.len() as u16)
            .filter(|switch| self.host.hub.serves(*switch))
            .collect()
    }

    /// Begins a switch's service on this host: its next incarnation, and its ports'
    /// addresses.
    fn begin_to_serve(&mut self, number: u16, term: u32, now: u64) {
        let config = switch_config(&self.plan, number, self.seed, term, self.fabric_config, true);
        let mut switch = Switch::new(config);
        if let Some(ring) = &self.keys {
            match keys::new_life() {
                Ok(life) => switch.fabric().authenticate(ring, life),
                // Runtimes would refuse the switch without it; the next manager tries
                // again.
                Err(error) => {
                    return devices::say(&format!(
                        "this host is to serve {} and cannot: {error}",
                        self.ports_of(number)
                    ));
                }
            }
        }
        // Frames that the devices kept meanwhile were for another host.
        for device in 0..self.ports.devices() {
            let on = self.ports.on(device).to_vec();
            let is_meant = on.iter().any(|at| self.host.switch_of(*at) == Some(number));
            // A device of which another port is served here has kept none.
            if !is_meant || on.iter().any(|at| self.host.serves(*at)) {
                continue;
            }
            // A device has more than it keeps only if frames arrive during this loop.
            for _ in 0..MOST_STALE / BURST {
                if self.ports.receive(device, BURST, &mut self.arena) == 0 {
                    break;
                }
                for at in &on {
                    let frames = self.ports.received((*at).into());
                    frames.drain(..).for_each(|frame| self.arena.put(frame));
                }
            }
            on.iter().for_each(|at| self.ports.take_losses((*at).into(), &mut Losses::new()));
        }
        self.host.hub.begin(switch);
        devices::say(&format!("this host serves {} now, in term {term}", self.ports_of(number)));
        self.announce_at.retain(|(switch, _)| *switch != number);
        self.announce_at.extend(ANNOUNCE_AFTER.iter().map(|after| (number, now + after)));
    }

    /// Announces the addresses to the neighbours, repeatedly.
    fn announce_again(&mut self, now: u64) {
        if !self.is_ready {
            return;
        }
        if self.announce_at.is_empty() {
            return;
        }
        let due =
            |switch: &u16| self.announce_at.iter().any(|(of, due)| of == switch && *due <= now);
        let due: Vec<u16> = self.served().into_iter().filter(due).collect();
        self.announce_at.retain(|(_, due)| *due > now);
        for switch in due {
            self.host.announce(switch, now, &mut self.out, &mut self.arena);
            self.carry_out(now);
        }
    }

    fn wait(&mut self, wake: BorrowedFd<'_>) {
        let longest = self.ports.poll_interval().unwrap_or(MAX_SLEEP).min(MAX_SLEEP);
        let due = self.host.poll_timeout().saturating_sub(self.clock.now()).min(longest);
        if due < 1_000 {
            return;
        }
        let may_sleep = self.workers.iter_mut().all(|worker| worker.port.prepare_sleep());
        if may_sleep {
            let mut fds: Vec<BorrowedFd<'_>> = vec![wake];
            fds.extend(self.hosts_network.ports.iter().filter_map(|port| port.wait_fd()));
            if self.is_ready {
                let served = (0..self.ports.len()).filter(|at| self.host.serves(*at as u8));
                fds.extend(served.filter_map(|at| self.ports.wait_fd(at)));
            }
            fds.push(self.link.fd());
            fds.extend(self.workers.iter().map(|worker| worker.port.wait_fd()));
            sleep(&fds, due);
            let mut count = [0u8; 8];
            let _ = rustix::io::read(wake, &mut count);
            self.last_look = 0;
        }
        for worker in &mut self.workers {
            worker.port.awake();
        }
    }
}
