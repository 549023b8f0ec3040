//! The role of the coordinator: a process of its own, started by the manager.
//!
//! In: frames from its virtual port. Out: the same, after what they depend on lies in the log. Never: a packet of a flow.

use super::MILLISECOND;
use super::runtime::{Keys, NewKeys};
use super::store::{Store, StoreError};
use crate::config;
use crate::exit::{self, Failure};
use holdfast_io::VportGuest;
use holdfast_io::process::{Clock, die_with_parent, inherited};
use holdfast_io::wait::sleep;
use holdfast_node::address::COORDINATOR;
use holdfast_node::channel::FabricConfig;
use holdfast_node::coordinator::{ClusterConfig, Coordinator, CoordinatorConfig, Scaling};
use holdfast_protection::{Flows, Peer};
use holdfast_wire::PacketPool;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What the manager writes to the coordinator's standard input, as a line. Later lines are [`Keys`].
#[derive(Serialize, Deserialize)]
pub(super) struct Assignment {
    pub(super) incarnation: u32,
    /// Nothing has been heard of a coordinator in this box: what the log says is of another.
    pub(super) begins_anew: bool,
    pub(super) cluster: u32,
    pub(super) parent: u32,
    pub(super) log: PathBuf,
    /// The log outlives the box, and the machine.
    pub(super) is_kept: bool,
    pub(super) file: String,
    pub(super) text: String,
    pub(super) keys: Option<Keys>,
    /// Tells this life from every other one.
    pub(super) life: NonZeroU64,
}

/// Frames per turn.
const BURST: usize = 64;
/// Longest sleep, ns: the manager sees that the loop turns.
const MAX_SLEEP: u64 = 100 * MILLISECOND;

/// Runs until it is killed.
///
/// # Errors
/// If it was not started by a manager, or its log cannot be read or written.
pub fn main() -> Result<(), Failure> {
    let refused = |error: std::io::Error| Failure::new(exit::UNAVAILABLE, error.to_string());
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::new(AtomicBool::new(false))).map_err(refused)?;
    let mut fds = inherited(4).map_err(refused)?.into_iter();
    let mut text = String::new();
    let mut lines = BufReader::new(std::io::stdin());
    lines.read_line(&mut text).map_err(refused)?;
    let mut assignment: Assignment = serde_json::from_str(&text)
        .map_err(|error| Failure::new(exit::UNAVAILABLE, format!("the manager's assignment: {error}")))?;
    die_with_parent(assignment.parent).map_err(refused)?;
    let (Some(arena), Some(port), Some(wake_host), Some(wake_guest)) = (fds.next(), fds.next(), fds.next(), fds.next()) else {
        return Err(Failure::new(exit::UNAVAILABLE, "descriptors are missing"));
    };
    let mut guest = VportGuest::attach(arena, port, wake_host, wake_guest).map_err(refused)?;
    let unkept = |error: StoreError| {
        Failure::new(exit::UNAVAILABLE, format!("the coordinator's log {}: {error}", assignment.log.display()))
    };
    let mut store = Store::open(&assignment.log, assignment.is_kept).map_err(unkept)?;
    let clock = Clock::new();
    let keys = assignment.keys.take();
    let mut coordinator = begin(&assignment, &store, clock.now())?;
    let new_keys = match keys {
        Some(keys) => {
            let ring = keys.ring().map_err(|error| Failure::new(exit::UNAVAILABLE, format!("the manager's keys: {error}")))?;
            coordinator.fabric().authenticate(&ring, assignment.life);
            Some(NewKeys::listen(lines))
        }
        None => None,
    };
    let (mut rx, mut tx) = (Vec::with_capacity(BURST), Vec::with_capacity(BURST));
    loop {
        guest.beat();
        if let Some(ring) = new_keys.as_ref().and_then(NewKeys::take) {
            coordinator.fabric().set_keys(&ring);
        }
        guest.receive(BURST, &mut rx);
        let is_idle = rx.is_empty();
        let now = clock.now();
        for packet in rx.drain(..) {
            coordinator.handle_frame(packet.bytes(), now);
            guest.put(packet);
        }
        coordinator.handle_records(now);
        coordinator.handle_timeout(now);
        let records = coordinator.poll_log();
        if !records.is_empty() {
            store.keep(&records).map_err(unkept)?;
        }
        coordinator.logged();
        coordinator.fabric().poll_transmit(now, |frame| {
            let Some(mut packet) = guest.take() else { return false };
            let fits = packet.copy_from(frame);
            if fits {
                tx.push(packet)
            } else {
                guest.put(packet)
            }
            true
        });
        guest.transmit(&mut tx);
        let due = coordinator.poll_timeout().min(coordinator.fabric().poll_timeout().unwrap_or(u64::MAX));
        let due = due.saturating_sub(clock.now()).min(MAX_SLEEP);
        if is_idle && due > 1_000 && guest.prepare_sleep() {
            sleep(&[guest.wait_fd()], due);
        }
        guest.awake();
    }
}

/// The next life, or the first one. Of a box that is gone only the numbers count that must not be used again: whoever remembers
/// an incarnation of that box must never take one of this box for it.
fn begin(assignment: &Assignment, store: &Store, now: u64) -> Result<Coordinator, Failure> {
    let mistake = |mistake: config::Mistake| Failure::new(exit::CONFIGURATION, mistake.to_string());
    let checked = config::read(&assignment.file, &assignment.text).map_err(mistake)?;
    let mut chains = config::chains(&assignment.file, &assignment.text, &checked.config).map_err(mistake)?;
    let empty = Flows::new(0, 0, 0, 0);
    let promises = |chain: &u16| chains[usize::from(*chain)].protection.safety(&empty).promises;
    let scaling = &checked.config.scaling;
    let scaling = Scaling {
        period: scaling.period_ms * MILLISECOND,
        drops: scaling.drops,
        busy_permille: scaling.busy_percent * 10,
        idle_permille: scaling.idle_percent * 10,
        move_flows: scaling.move_flows,
        calm_periods: scaling.calm_periods,
    };
    let clusters = checked.clusters.iter().map(|cluster| ClusterConfig {
        runtimes: cluster.runtimes,
        spare: cluster.max - cluster.runtimes,
        scaling: (cluster.max > cluster.runtimes).then_some(scaling),
        chains: cluster.chains.clone(),
        promises: cluster.chains.iter().any(promises),
    });
    let clusters = clusters.collect();
    let unreadable = |error: &dyn std::fmt::Display| {
        Failure::new(exit::UNAVAILABLE, format!("the coordinator's log {}: {error}", assignment.log.display()))
    };
    let records = store.records().map_err(|error| unreadable(&error))?;
    let mut config = CoordinatorConfig {
        me: Peer { node: COORDINATOR, incarnation: assignment.incarnation },
        clusters,
        rules: checked.rules,
        hang_timeout: checked.config.detection.hang_ms * MILLISECOND,
        start_timeout: 10_000 * MILLISECOND,
        first_incarnation: 1,
        layouts: chains.iter().map(|built| built.chain.layout().hash).collect(),
        pools: config::pools(&mut chains),
        fabric: FabricConfig { cluster: assignment.cluster, ..FabricConfig::default() },
    };
    let bytes = || records.iter().map(Vec::as_slice);
    if records.is_empty() && !assignment.begins_anew {
        // A coordinator that knows of nobody would start runtimes beside those that are there, and lease their numbers a second time.
        return Err(unreadable(&"it is empty, and a life before this one has written it"));
    }
    if records.is_empty() {
        return Ok(Coordinator::new(config, now));
    }
    if assignment.begins_anew {
        config.first_incarnation = Coordinator::next_incarnation(bytes()).map_err(|error| unreadable(&error))?;
        return Ok(Coordinator::new(config, now));
    }
    Coordinator::restore(config, now, bytes()).map_err(|error| unreadable(&error))
}
