//! The role of the coordinator: a process of its own, started by the manager.
//!
//! Each decision is logged before the next is taken. While the log is written the fabric
//! continues, and inputs wait to be decided about together.
//!
//! In: frames from its virtual port. Out: frames, after the decisions behind them are in
//! the log. Never: a packet of a flow.

use super::MILLISECOND;
use super::election::{Elected, Mandate, Place};
use super::role::{self, Beginning, NewKeys};
use super::store::{LogStore, Store, StoreError};
use crate::config::Plan;
use holdfast_control::exit::{self, Failure};
use holdfast_io::process::Clock;
use holdfast_io::wait::sleep;
use holdfast_node::coordinator::{ClusterConfig, Coordinator, CoordinatorConfig, Scaling};
use holdfast_protection::Peer;
use holdfast_wire::{NodeId, PacketPool};
use rustix::fd::BorrowedFd;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The coordinator's part of its assignment.
#[derive(Serialize, Deserialize)]
pub(super) struct Memory {
    /// The host's name, and its number if there are several.
    pub(super) host: String,
    pub(super) host_number: u16,
    /// The box's random number.
    pub(super) life_of_box: u64,
    /// True if no coordinator has been heard of in this box: the log is another box's.
    pub(super) begins_anew: bool,
    pub(super) log: PathBuf,
    /// True if the log outlives the box and the machine.
    pub(super) is_kept: bool,
}

type Assignment = role::Assignment<Memory>;

/// Frames per turn.
const BURST: usize = 64;
/// Longest sleep, ns: the manager watches the loop's turns.
const MAX_SLEEP: u64 = 100 * MILLISECOND;

/// Runs until it is killed.
///
/// # Errors
/// If a manager has not started it, its log cannot be read or written, or it was elected
/// and another leads now.
pub fn main() -> Result<(), Failure> {
    let Beginning { mut assignment, mut guest, keys } = role::begin::<Memory>()?;
    let plan = role::plan_of(&assignment)?;
    let clock = Clock::new();
    let stop = Arc::new(AtomicBool::new(false));
    let (log, mut elected, records, mut store): (Log, Option<Elected>, _, Box<dyn LogStore>) =
        match &plan.etcd {
            Some(etcd) => {
                // An elected coordinator resigns when it is told to end.
                signal_hook::flag::register(signal_hook::consts::SIGTERM, stop.clone()).map_err(
                    |error| Failure::new(exit::UNAVAILABLE, format!("signals: {error}")),
                )?;
                let host_timeout =
                    (!plan.hosts.is_empty()).then_some(plan.detection.host_ms * MILLISECOND);
                let place = Place {
                    etcd,
                    host: &assignment.role.host,
                    life_of_box: assignment.role.life_of_box,
                    host_timeout,
                };
                let mandate = Elected::campaign(&place, &mut guest, &clock, &stop)?;
                let Some(Mandate { elected, leadership, begins_anew }) = mandate else {
                    return Ok(());
                };
                (assignment.incarnation, assignment.role.begins_anew) =
                    (leadership.incarnation, begins_anew);
                let log = Log { place: etcd.place(), is_in_etcd: true };
                (
                    log,
                    Some(elected),
                    leadership.records.map_err(StoreError::new),
                    Box::new(leadership.store),
                )
            }
            None => {
                let log =
                    Log { place: assignment.role.log.display().to_string(), is_in_etcd: false };
                let store = Store::open(&assignment.role.log, assignment.role.is_kept);
                let store = store.map_err(|error| log.unusable(&error))?;
                (log, None, store.records(), Box::new(store))
            }
        };
    let unkept = |error: StoreError| log.unusable(&error);
    let records = records.map_err(unkept)?;
    let mut coordinator = begin(&assignment, plan, &log, &records, clock.now())?;
    drop(records);
    coordinator.live_on(assignment.role.host_number);
    let new_keys = keys.map(|(ring, new)| {
        coordinator.fabric().authenticate(&ring, assignment.life);
        new
    });
    let (mut rx, mut tx) = (Vec::with_capacity(BURST), Vec::with_capacity(BURST));
    // True while a decision is not yet kept.
    let mut is_keeping = false;
    while !stop.load(Ordering::Relaxed) {
        guest.beat();
        store.calm();
        if let Some(ring) = new_keys.as_ref().and_then(NewKeys::take) {
            coordinator.fabric().set_keys(&ring);
        }
        guest.receive(BURST, &mut rx);
        let is_idle = rx.is_empty();
        let now = clock.now();
        for packet in rx.drain(..) {
            if elected.as_mut().and_then(|elected| elected.hear(&packet, now)).is_none() {
                coordinator.handle_frame(packet.bytes(), now);
            }
            guest.put(packet);
        }
        if let Some(elected) = &mut elected {
            elected.check_reach(now)?;
        }
        if is_keeping && store.is_kept().map_err(unkept)? {
            is_keeping = false;
            coordinator.logged();
        }
        if !is_keeping {
            coordinator.handle_records(now);
            coordinator.handle_timeout(now);
            let records = coordinator.poll_log();
            if !records.is_empty() {
                store.keep(records).map_err(unkept)?;
                is_keeping = !store.is_kept().map_err(unkept)?;
            }
            if !is_keeping {
                coordinator.logged();
            }
        }
        // A coordinator that must not act sends nothing either.
        store.is_kept().map_err(unkept)?;
        role::poll_transmit(coordinator.fabric(), now, &mut guest, &mut tx);
        if let Some(elected) = &mut elected {
            elected.report(&mut guest, &mut tx, now);
        }
        guest.transmit(&mut tx);
        guest.publish();
        let due = if is_keeping { u64::MAX } else { coordinator.poll_timeout() };
        let due = due.min(coordinator.fabric().poll_timeout().unwrap_or(u64::MAX));
        let due = due.saturating_sub(clock.now()).min(MAX_SLEEP);
        if is_idle && due > 1_000 && guest.prepare_sleep() {
            let fds: Vec<BorrowedFd<'_>> =
                store.wait_fd().into_iter().chain([guest.wait_fd()]).collect();
            sleep(&fds, due);
        }
        guest.awake();
    }
    Ok(())
}

/// The coordinator's log of decisions.
struct Log {
    place: String,
    is_in_etcd: bool,
}

impl Log {
    /// The failure to report if the log cannot be restored, with its remedy.
    fn unusable(&self, error: &dyn std::fmt::Display) -> Failure {
        // A box needs the log only for what its running hosts remember. Once all of them
        // have stopped, the log can be deleted.
        let remedy = match self.is_in_etcd {
            true => "delete everything below the prefix but `incarnation`",
            false => "move it away or delete it",
        };
        let place = &self.place;
        let text = format!(
            "the coordinator's log {place}: {error}; if it is damaged or of another version or configuration, stop the box on all of its hosts, {remedy}, and start it again (never while one of its hosts runs: flows there would be lost)"
        );
        Failure::new(exit::UNAVAILABLE, text)
    }
}

/// Makes the next incarnation, or the first one. From a former box's log only the numbers
/// count that must not be used again: its incarnations must not be taken for this box's.
fn begin(
    assignment: &Assignment,
    plan: Plan,
    log: &Log,
    records: &[Vec<u8>],
    now: u64,
) -> Result<Coordinator, Failure> {
    let promises = |chain: &u16| plan.chains[usize::from(*chain)].protection.promises();
    let scaling = &plan.scaling;
    let scaling = Scaling {
        period: scaling.period_ms * MILLISECOND,
        drops: scaling.drops,
        busy_permille: scaling.busy_percent * 10,
        idle_permille: scaling.idle_percent * 10,
        move_flows: scaling.move_flows,
        calm_periods: scaling.calm_periods,
    };
    let clusters = plan.clusters.iter().map(|cluster| ClusterConfig {
        runtimes: cluster.runtimes,
        spare: cluster.max - cluster.runtimes,
        scaling: (cluster.max > cluster.runtimes).then_some(scaling),
        chains: cluster.chains.clone(),
        promises: cluster.chains.iter().any(promises),
    });
    let clusters = clusters.collect();
    let unreadable = |error: &dyn std::fmt::Display| log.unusable(error);
    let mut config = CoordinatorConfig {
        me: Peer { node: NodeId::COORDINATOR, incarnation: assignment.incarnation },
        hosts: plan.hosts_config(),
        names: plan.names(),
        clusters,
        rules: plan.rules.clone(),
        hang_timeout: plan.detection.hang_ms * MILLISECOND,
        start_timeout: 10_000 * MILLISECOND,
        first_incarnation: 1,
        state_servers: plan.state_server_count(),
        layouts: plan.chains.iter().map(|chain| chain.layout.hash).collect(),
        pools: plan.partitioned_pools(),
        fabric: role::fabric_of(assignment),
    };
    let bytes = || records.iter().map(Vec::as_slice);
    // This one of several hosts may have begun anew alone: the log's runtimes may live.
    let has_hosts = !plan.hosts.is_empty();
    if records.is_empty() && !assignment.role.begins_anew && !has_hosts {
        // A coordinator without memory would start runtimes beside living ones, and lease
        // their numbers a second time.
        return Err(unreadable(&"it is empty, and an earlier incarnation has written it"));
    }
    if records.is_empty() {
        return Ok(Coordinator::new(config, now));
    }
    if assignment.role.begins_anew && !has_hosts {
        config.first_incarnation =
            Coordinator::next_incarnation(bytes()).map_err(|error| unreadable(&error))?;
        return Ok(Coordinator::new(config, now));
    }
    Coordinator::restore(config, now, bytes()).map_err(|error| unreadable(&error))
}
