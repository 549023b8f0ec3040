//! A migration stands still at one of its steps, because a process that it waits for is
//! stopped. At that step one of its parties is killed: source, target or switch. No
//! connection notices.
//!
//! The step is certain. *Prepare*: the target is stopped before the order, so no flow can
//! be prepared there. *Move*: the third runtime is stopped, which has the replicas of
//! half of the flows or more. Their routes lead to the target already, and the flows
//! cannot follow before the replica's runtime has released their packets. *Flow*: after
//! that the target is stopped and the third runtime continues, so the source's messages
//! arrive nowhere.

use anyhow::{Context, Result, ensure};
use holdfast_control::Client;
use holdfast_control::api::get_progress_request::What;
use holdfast_control::api::{MigrateRequest, Progress};
use holdfast_control::status::{Process, ROLE_SWITCH, Status};
use holdfast_lab::process::signal_pid;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, keepalive, until};
use holdfast_tests::network::{Chain, Network, Options, PATIENT, RECOVERY_LIMIT, VIRTUAL, many};
use holdfast_tests::runner::{Test, alone};
use holdfast_tests::transfer::LongDownload;
use holdfast_tests::verdict::{ensure_served, ensure_unbroken};
use rustix::process::Signal;
use std::time::Duration;

/// Connections, and flows of numbered datagrams beside them.
const CONNECTIONS: usize = 1000;
const FLOWS: usize = 60;
/// The most flows that move.
const MOST: u64 = 600;
/// Pace of a download meanwhile.
const BYTES_PER_SECOND: u64 = 800_000;
/// Time after the order at which the source has asked the target and has not run into its
/// time-out yet (300 ms), µs.
const ASKED: std::ops::Range<u64> = 60_000..200_000;
/// No more flows have moved for this time, µs: the source reports its progress every 100
/// ms.
const STANDS_US: u64 = 350_000;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        alone(
            "somebody dies within another one's time-out, in 100 ms",
            "the_source_dies_at_each_step",
            6,
            &[NGINX, CURL],
            |interrupt| at_each_step(Victim::Source, interrupt),
        ),
        alone(
            "somebody dies within another one's time-out, in 100 ms",
            "the_target_dies_at_each_step",
            6,
            &[NGINX, CURL],
            |interrupt| at_each_step(Victim::Target, interrupt),
        ),
        alone(
            "somebody dies within another one's time-out, in 100 ms",
            "the_switch_dies_at_each_step",
            6,
            &[NGINX, CURL],
            |interrupt| at_each_step(Victim::Switch, interrupt),
        ),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Prepare,
    Move,
    Flow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Source,
    Target,
    Switch,
}

/// The parties of one migration, as they were before it, and its order.
struct Migration<'a> {
    network: &'a Network,
    client: Client,
    interrupt: &'a Interrupt,
    source: Process,
    target: Process,
    third: Process,
    /// The number of flows to move: no more than may be under way at a time.
    wanted: u64,
    /// The number of moving flows whose replicas the third runtime has, estimated by its
    /// share of the source's flows.
    replicas: u64,
    order: u32,
    stopped: Vec<u32>,
}

impl<'a> Migration<'a> {
    fn new(network: &'a Network, interrupt: &'a Interrupt) -> Result<Migration<'a>> {
        let status = network.running.status()?;
        let source = status.busiest_runtime(None).context("a runtime serves")?.clone();
        let client = Client::new(Some(network.running.control()))?;
        let flows = client.list("", 10_000)?;
        let replicas_at = |process: &Process| {
            flows
                .flows
                .iter()
                .filter(|flow| flow.owner == source.id && flow.replica == Some(process.id))
                .count() as u64
        };
        let others = || status.runtimes().filter(|process| process.id != source.id);
        let third =
            others().max_by_key(|process| replicas_at(process)).context("there are three")?.clone();
        let target =
            others().find(|process| process.id != third.id).context("there are three")?.clone();
        ensure!(source.flows > 100, "hardly anything could move: {status:?}");
        // Some flows stay.
        let wanted = (source.flows * 9 / 10).min(MOST);
        let replicas = replicas_at(&third) * wanted / source.flows;
        Ok(Migration {
            network,
            client,
            interrupt,
            source,
            target,
            third,
            wanted,
            replicas,
            order: 0,
            stopped: Vec::new(),
        })
    }

    fn begin(&mut self) -> Result<()> {
        let (from, to, limit) = (self.source.id, Some(self.target.id), Some(self.wanted));
        let order = MigrateRequest { from, to, limit, filter: String::new() };
        let progress = self.client.migrate(order)?.progress()?;
        self.order = progress.order.with_context(|| format!("no number in {progress:?}"))?;
        Ok(())
    }

    fn progress(&self) -> Result<Progress> {
        Ok(self.client.progress_of(What::Order(self.order))?)
    }

    fn stop(&mut self, pid: u32) -> Result<()> {
        self.stopped.push(pid);
        signal_pid(pid, Signal::STOP)
    }

    fn go_on(&mut self) -> Result<()> {
        self.stopped.drain(..).try_for_each(|pid| signal_pid(pid, Signal::CONT))
    }

    fn wait_for(&self, what: &str, wanted: impl FnMut(&Status) -> bool) -> Result<Status> {
        self.network.running.wait_for(what, RECOVERY_LIMIT, self.interrupt, wanted)
    }

    /// The number of routes that have left the source, according to the switch, whose
    /// flows the target does not have yet, and the order's progress.
    fn standing(&self) -> Result<(u64, Progress)> {
        let left = self.left()?;
        let progress = self.progress()?;
        Ok((self.source.flows.saturating_sub(left + progress.moved), progress))
    }

    /// Flows whose routes lead to the source.
    fn left(&self) -> Result<u64> {
        Ok(self
            .network
            .running
            .status()?
            .runtime(self.source.id)
            .map_or(0, |process| process.flows))
    }

    /// True if this is most of the flows whose replicas the third runtime has.
    fn are_most(&self, standing: u64) -> bool {
        standing > 50 && standing * 2 > self.replicas
    }

    fn ensure_standing(&self, step: &str) -> Result<()> {
        let (standing, progress) = self.standing()?;
        ensure!(!progress.done, "it is over: {progress:?}");
        let (wanted, replicas) = (self.wanted, self.replicas);
        ensure!(
            self.are_most(standing),
            "{standing} of {wanted} flows stand at {step}, the third runtime has replicas of {replicas}"
        );
        Ok(())
    }

    /// Brings the migration to its step, at which it stands still.
    fn stand_at(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Prepare => {
                self.stop(self.target.pid)?;
                // An order that was looked at too late is over, without an effect.
                until("it stands at Prepare", RECOVERY_LIMIT, self.interrupt, || {
                    self.begin()?;
                    let progress =
                        until("the target has been asked", RECOVERY_LIMIT, self.interrupt, || {
                            let progress = self.progress()?;
                            Ok((progress.took_us >= ASKED.start || progress.done)
                                .then_some(progress))
                        })?;
                    ensure!(progress.moved == 0, "with the target stopped: {progress:?}");
                    let stands = !progress.done
                        && progress.refused == 0
                        && ASKED.contains(&progress.took_us);
                    Ok(stands.then_some(()))
                })
            }
            Step::Move | Step::Flow => {
                // Packets of every flow now wait for its replica.
                self.stop(self.third.pid)?;
                self.begin()?;
                // The number of moved flows, and the time at which it was first reported,
                // by the order's own clock.
                let mut last = (0, 0);
                let mut seen = None;
                let what = "routes lead to the target, and their flows do not follow";
                let stands = until(what, RECOVERY_LIMIT, self.interrupt, || {
                    let (standing, progress) = self.standing()?;
                    seen = Some((standing, progress));
                    if progress.moved != last.0 {
                        last = (progress.moved, progress.took_us);
                    }
                    ensure!(!progress.done, "nothing stood: {progress:?}");
                    // Flows that can follow have followed.
                    Ok((self.are_most(standing) && progress.took_us > last.1 + STANDS_US)
                        .then_some(()))
                });
                let Migration { source, target, third, replicas, .. } = self;
                stands.with_context(|| {
                    format!("{seen:?} at {source:?}, with target {target:?} and {replicas} replicas at {third:?}")
                })?;
                self.ensure_standing("Move")?;
                if step == Step::Flow {
                    self.send_flows()?;
                }
                Ok(())
            }
        }
    }

    /// Continues from Move to Flow.
    fn send_flows(&mut self) -> Result<()> {
        let pid = self.target.pid;
        self.go_on_after(|migration| migration.stop(pid))?;
        // The third runtime has released its packets, and the source has heard it and
        // sent the flows, when both have reported again. Some flows stay, so packets keep
        // coming, and every report shows more of them.
        self.wait_reports(&[self.source.id, self.third.id])?;
        self.ensure_standing("Flow")
    }

    /// Waits until no part of the order is under way: the next order would count it.
    fn wait_over(&self, victim: Victim) -> Result<()> {
        if victim != Victim::Switch {
            return until("the order is over", RECOVERY_LIMIT, self.interrupt, || {
                Ok(self.progress()?.done.then_some(()))
            });
        }
        // The manager's next incarnation does not know the order. The source continues
        // it, except for the flows that the switch's next incarnation refuses because it
        // does not know them yet.
        until("nothing leaves the source", RECOVERY_LIMIT, self.interrupt, || {
            let before = self.left()?;
            self.wait_reports(&[self.source.id])?;
            Ok((self.left()? == before).then_some(()))
        })
    }

    /// Waits until these runtimes have reported three times: packets keep coming to one
    /// of them.
    fn wait_reports(&self, ids: &[u32]) -> Result<()> {
        let packets = |status: &Status| -> u64 {
            ids.iter().filter_map(|id| status.runtime(*id)).map(|one| one.packets).sum()
        };
        for _ in 0..3 {
            let before = packets(&self.network.running.status()?);
            self.wait_for("a runtime reports", |status| packets(status) > before)?;
        }
        Ok(())
    }

    /// Continues the processes that are stopped now, after `act`.
    fn go_on_after(&mut self, act: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let waiting = std::mem::take(&mut self.stopped);
        act(self)?;
        waiting.into_iter().try_for_each(|pid| signal_pid(pid, Signal::CONT))
    }

    /// Kills the victim, and waits until its death is noticed.
    fn kill(&mut self, victim: Victim) -> Result<()> {
        let runtime = match victim {
            Victim::Source => &self.source,
            Victim::Target => &self.target,
            Victim::Switch => return self.kill_switch(),
        };
        let (id, incarnation) = (runtime.id, runtime.incarnation);
        signal_pid(runtime.pid, Signal::KILL)?;
        self.wait_for("its death is noticed", |status| status.failover(id, incarnation).is_some())?;
        if victim == Victim::Source {
            let progress = self.progress()?;
            ensure!(progress.failed, "the order was over when its source died: {progress:?}");
        }
        Ok(())
    }

    fn kill_switch(&self) -> Result<()> {
        let switch = |status: &Status| {
            let found =
                status.processes.iter().find(|process| process.role == ROLE_SWITCH).cloned();
            found.with_context(|| format!("no switch in {status:?}"))
        };
        let last = switch(&self.network.running.status()?)?;
        signal_pid(last.pid, Signal::KILL)?;
        until("its next incarnation answers", RECOVERY_LIMIT, self.interrupt, || {
            let Ok(status) = self.network.running.status() else { return Ok(None) };
            Ok((switch(&status)?.incarnation > last.incarnation).then_some(()))
        })
    }
}

/// Plays one step after the other, each when everything is protected again.
fn at_each_step(victim: Victim, interrupt: &Interrupt) -> Result<()> {
    let options = Options { more: PATIENT, ..Options::protected(Chain::Balanced) };
    let mut network = Network::start(&options, interrupt)?;
    network.serve_web()?;
    let held = keepalive::KeepAlive::open(&network.topology.client, &many(CONNECTIONS), interrupt)?;
    let (_echo, stream) = network.stream(FLOWS, 300)?;
    for step in [Step::Prepare, Step::Move, Step::Flow] {
        dies_at(step, victim, &network, &held, interrupt)
            .with_context(|| format!("{victim:?} dies at {step:?}"))?;
    }
    // Datagrams that came while a process was stopped or dead may be missing.
    ensure_served(&stream.finish(), FLOWS, u64::MAX)?;
    drop(held);
    network.stop()
}

fn dies_at(
    step: Step,
    victim: Victim,
    network: &Network,
    held: &keepalive::KeepAlive,
    interrupt: &Interrupt,
) -> Result<()> {
    network.wait_protected()?;
    let (client, stalled_after) = (&network.topology.client, Duration::from_secs(30));
    let download = LongDownload::start(
        client,
        &network.site,
        VIRTUAL,
        BYTES_PER_SECOND,
        stalled_after,
        interrupt,
    )?;
    let failed = network.running.status()?.failovers.len();
    let mut migration = Migration::new(network, interrupt)?;
    migration.stand_at(step)?;
    migration.kill(victim)?;
    migration.go_on()?;
    migration.wait_over(victim)?;
    network.wait_protected()?;
    ensure_unbroken(held, interrupt)?;
    let status = network.running.status()?;
    let expected = failed + usize::from(victim != Victim::Switch);
    ensure!(status.failovers.len() == expected, "only one may have failed: {:?}", status.failovers);
    download.finish(interrupt)
}
