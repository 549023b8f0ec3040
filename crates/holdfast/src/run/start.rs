//! The start of a manager from its guard's assignment: the first makes ports, arena and
//! switches, a later one takes over those that exist.
//!
//! In: the guard's assignment and descriptors. Out: a [`ManagerProcess`] that serves
//! until it is told to stop.

use super::alerts::AlertFiles;
use super::answers::Waiting;
use super::coordinator_guard::CoordinatorGuard;
use super::devices::DeviceLook;
use super::guard_link::{Assignment, GuardLink, ToGuard};
use super::levels::Levels;
use super::network::HostsNetwork;
use super::role::{BfdKey, Keys};
use super::state_server::ServerGuard;
use super::{
    BURST, MILLISECOND, ManagerNotes, ManagerProcess, Signals, devices, keys, lines, privileges,
    random_seed, switch_config,
};
use crate::config::{self, ControlEntry, Plan};
use crate::control;
use crate::control::Limits;
use holdfast_control::exit::{self, Failure};
use holdfast_io::control_transport::libfabric;
use holdfast_io::port::Losses;
use holdfast_io::process::{Clock, die_with_parent, inherited_all};
use holdfast_io::{Arena, Heartbeat, Mailbox};
use holdfast_node::channel::{FabricConfig, KeyRing};
use holdfast_node::edge::Edge;
use holdfast_node::host::{Host, HostOut};
use holdfast_node::hub::Hub;
use holdfast_node::seal::SealConfig;
use holdfast_node::switch::Switch;
use holdfast_protection::Peer;
use holdfast_wire::{DropCounters, NodeId, fnv1a};
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use zeroize::Zeroizing;

/// Runs as the manager, in its first incarnation or a later one, until SIGTERM or SIGINT.
///
/// # Errors
/// The reason why it cannot start; also if a guard has not started it.
pub fn manager_main() -> Result<(), Failure> {
    let refused = |error: std::io::Error| Failure::new(exit::UNAVAILABLE, error.to_string());
    let mut line = Zeroizing::new(String::new());
    let mut fds = inherited_all().map_err(refused)?.into_iter();
    std::io::stdin().read_line(&mut line).map_err(refused)?;
    let mut assignment: Assignment = serde_json::from_str(&line).map_err(|error| {
        Failure::new(exit::UNAVAILABLE, format!("the guard's assignment: {error}"))
    })?;
    die_with_parent(assignment.parent).map_err(refused)?;
    privileges::hide().map_err(refused)?;
    let (Some(mailbox), Some(heartbeat), Some(notes)) = (fds.next(), fds.next(), fds.next()) else {
        return Err(Failure::new(exit::UNAVAILABLE, "descriptors are missing"));
    };
    let notes = ManagerNotes::open(notes).map_err(refused)?;
    let link = GuardLink::new(Mailbox::of(mailbox), Heartbeat::open(heartbeat).map_err(refused)?);
    let mistake = |mistake: config::Mistake| Failure::new(exit::CONFIGURATION, mistake.to_string());
    let plan = Arc::new(
        config::read(&assignment.file, &assignment.text).map_err(mistake)?.on_host(assignment.host),
    );
    let ring = |keys: Keys| {
        keys.ring()
            .map_err(|error| Failure::new(exit::UNAVAILABLE, format!("the guard's keys: {error}")))
    };
    let keys = assignment.keys.take().map(ring).transpose()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, stop.clone())
            .map_err(|error| Failure::new(exit::UNAVAILABLE, format!("signals: {error}")))?;
    }
    let hangup = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGHUP, hangup.clone())
        .map_err(|error| Failure::new(exit::UNAVAILABLE, format!("signals: {error}")))?;
    // The warnings describe the machine before the box opens its ports.
    let warnings = if assignment.incarnation == 1 { devices::warnings(&plan) } else { Vec::new() };
    let (requests, asked) = channel();
    let eventfd = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
    let eventfd = Arc::new(
        eventfd.map_err(|error| Failure::new(exit::UNAVAILABLE, format!("eventfd: {error}")))?,
    );
    let waker = eventfd.clone();
    let wake = Arc::new(move || {
        let _ = rustix::io::write(&*waker, &1u64.to_ne_bytes());
    });
    let path = assignment.control.clone();
    // The lock comes before the devices: an operator who starts a box twice is told of
    // the first one, not of its devices.
    let mut server = control::listen(&path, assignment.parent, requests, wake)?;
    let entry = plan.control_of(assignment.host);
    if let Some(entry) = entry
        .map(|entry| ControlEntry { tls: assignment.tls.clone().unwrap_or(entry.tls), ..entry })
        && let Err(failure) = server.serve_remote(&entry, Limits::default())
    {
        match assignment.incarnation {
            1 => return Err(failure),
            // Flows come first; clients have to wait.
            _ => devices::say(&format!("{failure}; it is tried again and again")),
        }
    }
    let mut manager = ManagerProcess::new(assignment, plan, keys, (link, notes), fds)?;
    warnings.iter().for_each(|warning| devices::say(warning));
    lines::begin().map_err(refused)?;
    let served = manager.serve(
        &Signals { stop: &stop, hangup: &hangup },
        &asked,
        eventfd.as_fd(),
        &path,
        &mut server,
    );
    manager.finish();
    drop(server);
    lines::finish();
    served
}

impl ManagerProcess {
    pub(super) fn new(
        assignment: Assignment,
        plan: Arc<Plan>,
        keys: Option<KeyRing>,
        (mut link, notes): (GuardLink, ManagerNotes),
        mut fds: impl Iterator<Item = OwnedFd>,
    ) -> Result<ManagerProcess, Failure> {
        let Assignment { incarnation, file, text, processes, buried, ref bfd_keys, .. } =
            assignment;
        let clock = Clock::new();
        let now = clock.now();
        let (control, state) = (&assignment.control, assignment.state.as_deref());
        let coordinators = assignment.coordinators;
        // Without an earlier coordinator there is nothing to remember.
        let succeeds = if plan.hosts.is_empty() { coordinators > 0 } else { incarnation > 1 };
        let etcd = plan.etcd.as_ref();
        let guard =
            CoordinatorGuard::new(&plan.cluster, control, state, etcd, incarnation, coordinators);
        let ports = devices::open(&plan.ports, incarnation, &link).map_err(devices::refused)?;
        for (at, port) in plan.ports.iter().enumerate() {
            devices::has_mtu(port, ports.name(at), ports.mtu(at))?;
        }
        let numbers = || 0..ports.len();
        let macs: Vec<_> = numbers().map(|at| (ports.mac(at), ports.mtu(at))).collect();
        let bfd_keys: Vec<_> =
            bfd_keys.iter().map(|key| key.as_ref().and_then(BfdKey::key)).collect();
        let edges = plan.edges(&macs, &bfd_keys, random_seed);
        let edges = edges.into_iter().map(|(config, ports)| (Edge::new(config), ports)).collect();
        let device_states = numbers().map(|at| (ports.is_up(at), ports.mtu(at))).collect();
        let unavailable = |error: std::io::Error| {
            let what =
                format!("{} packet buffers: {error}; lower limits.buffers", plan.limits.buffers);
            Failure::new(exit::UNAVAILABLE, what)
        };
        let mut passed = || if assignment.has_arena { fds.next() } else { None };
        let arena = match (passed(), passed()) {
            (Some(memory), Some(record)) => Arena::adopt(memory, record).map_err(unavailable)?,
            _ => {
                let arena = Arena::create(plan.limits.buffers).map_err(unavailable)?;
                link.send(&ToGuard::Arena, &arena.fds()).map_err(unavailable)?;
                arena
            }
        };
        if let Some(why) = plan.state_servers.provider.as_ref().and_then(|_| libfabric::absent()) {
            return Err(Failure::new(
                exit::UNAVAILABLE,
                format!("`state_server.transport` is `libfabric`: {why}"),
            ));
        }
        let server_guard = ServerGuard::new(plan.state_server_count(), incarnation);
        let (number, hosts) = (assignment.host, &plan.hosts);
        let mut fabric = FabricConfig {
            cluster: fnv1a(plan.cluster.as_bytes()) as u32,
            ..FabricConfig::default()
        };
        let path = plan.fabric_mtu;
        let opened = devices::open_fabric(hosts, number, path, incarnation, &link)
            .map_err(devices::refused)?;
        let hosts_network = HostsNetwork::new(opened);
        for port in &hosts_network.ports {
            let largest = plan.chains.iter().map(|chain| chain.layout.size).max().unwrap_or(0);
            let mtus = numbers().map(|at| usize::from(ports.mtu(at))).max().unwrap_or(1500);
            let added = plan.chains.iter().map(|chain| chain.added_bytes()).max().unwrap_or(0);
            fabric.mtu = devices::fabric_mtu(
                port.as_ref(),
                path,
                mtus,
                added,
                largest,
                fabric.mtu,
                keys.is_some(),
            )?;
        }
        let detection = &plan.detection;
        let switch = |number| {
            Switch::new(switch_config(
                &plan,
                number,
                assignment.seed,
                incarnation,
                fabric,
                succeeds,
            ))
        };
        let mut switches: Vec<Switch> = (0..plan.switches.len() as u16).map(switch).collect();
        let mut manager = holdfast_node::manager::Manager::new(
            Peer { node: NodeId::manager(number), incarnation: assignment.base + incarnation },
            fabric,
        );
        let life = || {
            keys::new_life().map_err(|error| {
                Failure::new(exit::UNAVAILABLE, format!("random numbers: {error}"))
            })
        };
        if let Some(ring) = &keys {
            for switch in &mut switches {
                switch.fabric().authenticate(ring, life()?);
            }
            manager.fabric().authenticate(ring, life()?);
        }
        let mut hub = Hub::new(switches, manager);
        if !hosts.is_empty() {
            let (hosts, timeout) = (hosts.len() as u16, detection.host_ms * MILLISECOND);
            hub.join(hosts, timeout, now);
            for switch in 0..plan.switches.len() {
                if let Some([term, ..]) = notes.read(switch) {
                    hub.manager.remember_term(switch as u16, term as u32);
                }
            }
            if let Some(ring) = &keys {
                let (cluster, incarnation, life) =
                    (fabric.cluster, assignment.base + incarnation, life()?);
                hub.authenticate(
                    SealConfig { cluster, host: number, hosts, incarnation, life, timeout },
                    ring,
                );
                if hosts_network.ports.len() > 1 {
                    hub.use_two_paths();
                }
            }
        }
        let mut quarantine = assignment.control.clone().into_os_string();
        quarantine.push(".quarantine.pcapng");
        let mut manager = ManagerProcess {
            file,
            text: text.into(),
            applied: None,
            quarantine: quarantine.into(),
            alerts: AlertFiles::begin(&plan).map_err(unavailable)?,
            keys,
            incarnation,
            parent: assignment.parent,
            link,
            notes,
            fabric_config: fabric,
            hosts_network,
            number,
            paths_said: Vec::new(),
            announce_at: Vec::new(),
            seed: assignment.seed,
            flow_seed: if plan.hosts.is_empty() {
                assignment.seed
            } else {
                fnv1a(plan.cluster.as_bytes())
            },
            guard,
            server_guard,
            clock,
            arena,
            outgoing: numbers().map(|_| Vec::with_capacity(BURST)).collect(),
            ports,
            workers: Vec::new(),
            next_id: 1,
            host: Host::new(edges, hub),
            out: HostOut::default(),
            rx: Vec::with_capacity(BURST),
            drops: DropCounters::default(),
            trace_delay: detection.heartbeat_ms * 3 * MILLISECOND,
            waiting: Waiting::default(),
            last_look: 0,
            last_death_look: 0,
            device_look: DeviceLook::done(now),
            reread: None,
            failed_starts: 0,
            last_cause: String::new(),
            causes: BTreeMap::new(),
            retried: (assignment.failures, assignment.cause, now),
            is_ready: false,
            has_served: assignment.has_served,
            device_states,
            levels: Levels::of(&plan),
            traffic: vec![(0, 0); plan.ports.len()],
            losses: vec![Losses::new(); plan.ports.len()],
            plan: plan.clone(),
        };
        manager.tell_links();
        if incarnation > 1 {
            manager.adopt(processes, &buried, fds, succeeds, now).map_err(unavailable)?;
        }
        Ok(manager)
    }
}
