//! The part of the demo in which load comes and goes: two runtimes become three, and two
//! again, and no client notices.
//!
//! The load is HTTP: connections that ask again as soon as they are answered. On a
//! machine that leaves the box little time the answers come slowly, and HTTP alone keeps
//! no runtime busy. Datagrams are then added, which wait for no answer. Load is added
//! until a third runtime is started, and none after that: every flow that the third one
//! serves has moved there.

use super::progress::Progress;
use super::report::{account, breaches};
use super::scenario::{HELD_BODY, RECOVERY_LIMIT, addresses, backends, held_plan};
use crate::keepalive::{Connections, KeepAlive, Plan};
use crate::nginx::{self, Site};
use crate::running::RunningBox;
use crate::topology::Topology;
use crate::udp::{self, Datagrams};
use crate::{Interrupt, Lab, until};
use anyhow::{Context, Result, ensure};
use holdfast_control::Client;
use holdfast_control::api::get_progress_request::What;
use holdfast_control::status::{Protected, STATE_RUNNING, STATE_SPARE, Status};
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// The load grows by steps: connections in each of the first steps, then flows of
/// datagrams, with their rate per second, in the others; and the time that a step has to
/// make the cluster grow.
const STEP: usize = 10;
const STEPS: usize = 2;
const STEP_DATAGRAMS: u64 = 4_000;
const STEP_FLOWS: usize = 10;
const STEPS_DATAGRAMS: usize = 8;
const STEP_TIME: Duration = Duration::from_millis(1_800);
/// The new runtime's flows have arrived when no more arrive for this long.
const SETTLED: Duration = Duration::from_millis(300);
/// Time limit; generous, because a loaded machine takes this long for what usually takes
/// a moment.
const LIMIT: Duration = Duration::from_secs(45);
/// The processes of the box end within this time.
const END: Duration = Duration::from_secs(10);

/// The change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleAction {
    /// Load came: a runtime was started and got flows.
    Grow,
    /// The load ended: a runtime's flows moved away, and it left.
    Shrink,
}

/// A step of this part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScaleStep {
    /// The change.
    pub action: ScaleAction,
    /// The runtime that came or went.
    pub runtime: u32,
    /// Runtimes that served before the step.
    pub before: usize,
    /// Runtimes that served after the step.
    pub after: usize,
    /// Flows that moved to the new runtime, or away from the leaving one.
    pub moved: u64,
    /// Time until the step was done, ms, polled from outside: from the first connection
    /// of the load, or from the end of the load.
    pub done_ms: u64,
    /// Connections of the load, and their answers per second.
    pub load_connections: usize,
    /// See `load_connections`.
    pub requests_per_second: u64,
    /// Datagrams per second of the load.
    pub load_datagrams_per_second: u64,
    /// Connections that were whole and answered one more request, the load's included.
    pub connections_alive: usize,
    /// Connections opened.
    pub connections_opened: usize,
    /// Flows of numbered datagrams that ran during this step.
    pub datagram_flows: usize,
    /// The fate of the datagrams.
    pub datagrams: Datagrams,
    /// Runtimes that the box declared failed meanwhile, and why.
    pub failovers: Vec<String>,
}

impl ScaleStep {
    /// The broken promises, for people; empty if the step kept all.
    pub(super) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let mut fail = |text: String| {
            failures.push(format!("{:?} under load that comes and goes: {text}", self.action))
        };
        if self.moved == 0 {
            fail("no flow moved, which shows nothing".into());
        }
        // A box drops load that is too much for the machine; after the load's end no load
        // is too much.
        let may_lose = self.action != ScaleAction::Shrink;
        let connections = (self.connections_alive, self.connections_opened);
        breaches(connections, &self.datagrams, self.datagram_flows, may_lose)
            .into_iter()
            .for_each(&mut fail);
        if !self.failovers.is_empty() {
            fail(format!("the box saw failures: {}", self.failovers.join(", ")));
        }
        failures
    }

    /// The change and its duration, and the clients' view of it.
    pub(super) fn sentences(&self) -> [String; 2] {
        let ScaleStep { runtime, before, after, moved, done_ms, .. } = self;
        let datagrams = match self.load_datagrams_per_second {
            0 => String::new(),
            some => format!(" and {some} datagrams a second"),
        };
        let done = match self.action {
            ScaleAction::Grow => format!(
                "load of {} requests a second on {} connections{datagrams}: {after} runtimes instead of {before}, {moved} flows moved to \
                 runtime {runtime}, after {done_ms} ms",
                self.requests_per_second, self.load_connections
            ),
            ScaleAction::Shrink => {
                format!(
                    "the load has ended: {after} runtimes instead of {before}, {moved} flows moved from runtime {runtime}, after {done_ms} ms"
                )
            }
        };
        [done, account((self.connections_alive, self.connections_opened), &self.datagrams)]
    }
}

/// Plays both steps.
pub(super) fn run(
    binary: &Path,
    connections: usize,
    plan: udp::Plan,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<Vec<ScaleStep>> {
    progress.step("a box of two runtimes that may become three");
    let mut lab = Lab::new(interrupt.clone())?;
    let topology = Topology::build(&mut lab, &addresses())?;
    let site = Site::new(&lab, "site")?;
    site.add("held", HELD_BODY)?;
    let servers = nginx::start_all(&lab, &topology.server, &backends(), &site)?;
    let configuration =
        super::PROTECTED.replace("{ min: 3, max: 3 }", "{ min: 2, max: 3 }") + super::ELASTIC;
    let mut running = RunningBox::start(&lab, &topology.router, binary, &configuration)?;
    let echo = udp::Echo::start(&topology.server, plan.server)?;
    // Calm enough to keep no runtime busy.
    let plan = udp::Plan { per_second: plan.per_second / 4, ..plan };
    let calm = Plan { interval: Duration::from_secs(2), ..held_plan(connections) };
    let held = KeepAlive::open(&topology.client, &calm, interrupt)?;
    let mut stage = Stage {
        running: &running,
        topology: &topology,
        held,
        load: Vec::new(),
        load_datagrams: Vec::new(),
        plan,
        interrupt,
    };
    let mut steps = Vec::new();
    for action in [ScaleAction::Grow, ScaleAction::Shrink] {
        let step = stage.play(action, progress).with_context(|| format!("{action:?}"))?;
        progress.step(&step.sentences().join("; "));
        steps.push(step);
    }
    drop(stage);
    let status = running.stop(END, interrupt)?;
    ensure!(status.success(), "SIGTERM ended the box with {status}");
    drop((echo, servers));
    Ok(steps)
}

struct Stage<'a> {
    running: &'a RunningBox,
    topology: &'a Topology,
    held: KeepAlive,
    load: Vec<KeepAlive>,
    load_datagrams: Vec<udp::Stream>,
    plan: udp::Plan,
    interrupt: &'a Interrupt,
}

/// The runtime that came or went, and how many flows moved.
struct Done {
    runtime: u32,
    moved: u64,
    /// The part of the load that was datagrams, per second.
    datagrams_per_second: u64,
}

fn count(status: &Status, state: &str) -> usize {
    status.runtimes().filter(|process| process.state == state).count()
}

/// The busiest runtime's share of time with something to handle, between two of its
/// reports, in 1/1000.
fn busy_permille(status: &Status) -> u32 {
    status.runtimes().filter_map(|process| process.busy_permille).max().unwrap_or(0)
}

impl Stage<'_> {
    fn play(&mut self, action: ScaleAction, progress: &mut Progress) -> Result<ScaleStep> {
        let mut begun = Instant::now();
        // The load's connections are counted before they end.
        let mut load = self.load_connections();
        if action == ScaleAction::Shrink {
            self.load.clear();
        }
        let stream = udp::Stream::start(&self.topology.client, self.plan)?;
        until("every flow of datagrams is under way", RECOVERY_LIMIT, self.interrupt, || {
            Ok((stream.datagrams().flows_alive == self.plan.flows).then_some(()))
        })?;
        let before = self.running.status()?;
        let (done, requests_per_second) = match action {
            ScaleAction::Grow => {
                begun = Instant::now();
                let done = self.grow(&before, progress)?;
                load = self.load_connections();
                (done, load.answers * 1000 / (begun.elapsed().as_millis() as u64).max(1))
            }
            ScaleAction::Shrink => (self.shrink(&before, progress)?, 0),
        };
        let done_ms = begun.elapsed().as_millis() as u64;
        let held = self.held.verify(self.interrupt)?;
        let after = self.running.status()?;
        let new = after.failovers.iter().skip(before.failovers.len());
        Ok(ScaleStep {
            action,
            runtime: done.runtime,
            before: count(&before, STATE_RUNNING),
            after: count(&after, STATE_RUNNING),
            moved: done.moved,
            done_ms,
            load_connections: load.opened,
            requests_per_second,
            load_datagrams_per_second: done.datagrams_per_second,
            connections_alive: held.alive + load.alive,
            connections_opened: held.opened + load.opened,
            datagram_flows: self.plan.flows,
            datagrams: stream.finish(),
            failovers: new
                .map(|failover| format!("runtime {}: {}", failover.runtime, failover.cause))
                .collect(),
        })
    }

    /// Counts of all connections of the load together.
    fn load_connections(&self) -> Connections {
        self.load.iter().map(KeepAlive::connections).fold(Connections::default(), |sum, load| {
            Connections {
                opened: sum.opened + load.opened,
                alive: sum.alive + load.alive,
                answers: sum.answers + load.answers,
                ..sum
            }
        })
    }

    /// Adds load until a spare runtime is called; done when its flows have arrived.
    fn grow(&mut self, before: &Status, progress: &mut Progress) -> Result<Done> {
        let spare = before
            .runtimes()
            .find(|process| process.state == STATE_SPARE)
            .context("there is no spare place")?
            .id;
        let mut is_called = false;
        let mut busiest = 0;
        for step in 0..STEPS + STEPS_DATAGRAMS {
            if is_called {
                break;
            }
            if step < STEPS {
                let plan = Plan { interval: Duration::ZERO, ..held_plan(STEP) };
                self.load.push(KeepAlive::open(&self.topology.client, &plan, self.interrupt)?);
            } else {
                let plan = udp::Plan { flows: STEP_FLOWS, per_second: STEP_DATAGRAMS, ..self.plan };
                self.load_datagrams.push(udp::Stream::start(&self.topology.client, plan)?);
            }
            progress.advance(|| {
                let datagrams = self.load_datagrams.len() as u64 * STEP_DATAGRAMS;
                format!(
                    "load: {} connections that ask without pause, {datagrams} datagrams a second",
                    self.load.len() * STEP
                )
            });
            let added = Instant::now();
            is_called = until("the cluster grows", RECOVERY_LIMIT, self.interrupt, || {
                let status = self.running.status()?;
                busiest = busiest.max(busy_permille(&status));
                let is_called =
                    status.runtime(spare).is_some_and(|process| process.state != STATE_SPARE);
                Ok((is_called || added.elapsed() > STEP_TIME).then_some(is_called))
            })?;
        }
        ensure!(
            is_called,
            "the load could not make the cluster grow: no runtime was busier than {busiest}/1000, and {}/1000 before it came: {:?}",
            busy_permille(before),
            self.running.status()?
        );
        // The coordinator has decided to grow. Datagrams do not wait for answers and
        // would only hinder the moving flows.
        let datagrams_per_second = self.load_datagrams.len() as u64 * STEP_DATAGRAMS;
        self.load_datagrams.clear();
        let mut seen = (0, Instant::now());
        let moved = until("the newcomer has its flows", LIMIT, self.interrupt, || {
            let status = self.running.status()?;
            let flows = status
                .runtime(spare)
                .filter(|process| process.state == STATE_RUNNING)
                .map_or(0, |process| process.flows);
            if flows != seen.0 {
                seen = (flows, Instant::now());
            }
            Ok((flows > 0 && seen.1.elapsed() > SETTLED).then_some(flows))
        })?;
        Ok(Done { runtime: spare, moved, datagrams_per_second })
    }

    /// Waits until a runtime is spare again.
    fn shrink(&self, before: &Status, progress: &mut Progress) -> Result<Done> {
        let serving = count(before, STATE_RUNNING);
        progress.advance(|| "the load has ended".to_owned());
        let has_shrunk = |status: &Status| {
            (count(status, STATE_RUNNING), count(status, STATE_SPARE)) == (serving - 1, 1)
                && status.protected() == Protected::Yes
        };
        let after =
            self.running.wait_for("the cluster shrinks", LIMIT, self.interrupt, has_shrunk)?;
        let runtime = after
            .runtimes()
            .find(|process| process.state == STATE_SPARE)
            .context("nobody has left")?
            .id;
        let account =
            Client::new(Some(self.running.control()))?.progress_of(What::Drained(runtime))?;
        Ok(Done { runtime, moved: account.moved, datagrams_per_second: 0 })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A step that kept every promise.
    pub(in super::super) fn good(action: ScaleAction) -> ScaleStep {
        let (before, after) = if action == ScaleAction::Grow { (2, 3) } else { (3, 2) };
        ScaleStep {
            action,
            runtime: 18,
            before,
            after,
            moved: 40,
            done_ms: 900,
            load_connections: 20,
            requests_per_second: 4_000,
            load_datagrams_per_second: 0,
            connections_alive: 120,
            connections_opened: 120,
            datagram_flows: 5,
            datagrams: Datagrams {
                sent: 400,
                returned: 400,
                flows_alive: 5,
                longest_silence_us: 9_000,
                ..Datagrams::default()
            },
            failovers: Vec::new(),
        }
    }

    /// Load may cost datagrams while it lasts, and nothing else. After the load's end no
    /// datagram may be lost.
    #[test]
    fn a_step_passes_only_if_flows_moved_and_nobody_noticed() {
        for action in [ScaleAction::Grow, ScaleAction::Shrink] {
            let failures = |change: &dyn Fn(&mut ScaleStep)| {
                let mut step = good(action);
                change(&mut step);
                step.failures().len()
            };
            let lossless = usize::from(action == ScaleAction::Shrink);
            assert_eq!(failures(&|_| ()), 0, "{action:?}");
            assert_eq!(failures(&|step| step.datagrams.lost = 1), lossless, "{action:?}");
            assert_eq!(failures(&|step| step.datagrams.reordered = 1), lossless, "{action:?}");
            assert_eq!(failures(&|step| step.datagrams.doubled = 1), 1, "{action:?}");
            assert_eq!(failures(&|step| step.datagrams.flows_alive = 4), 1, "{action:?}");
            assert_eq!(failures(&|step| step.connections_alive = 119), 1, "{action:?}");
            assert_eq!(failures(&|step| step.moved = 0), 1, "{action:?}");
            assert_eq!(
                failures(&|step| step.failovers = vec!["runtime 17: no heartbeat".into()]),
                1,
                "{action:?}"
            );
        }
    }

    #[test]
    fn a_sentence_says_how_many_runtimes_there_were_and_how_many_flows_moved() {
        let [grown, noticed] = good(ScaleAction::Grow).sentences();
        for part in
            ["4000 requests a second", "3 runtimes instead of 2", "40 flows moved to runtime 18"]
        {
            assert!(grown.contains(part), "{part:?} is not in {grown:?}");
        }
        assert!(noticed.starts_with("120 of 120 connections alive"), "{noticed}");
        assert!(!grown.contains("datagrams a second"), "there were none");
        let starved = ScaleStep { load_datagrams_per_second: 6_000, ..good(ScaleAction::Grow) };
        assert!(
            starved.sentences()[0]
                .contains("on 20 connections and 6000 datagrams a second: 3 runtimes")
        );
        assert!(
            good(ScaleAction::Shrink).sentences()[0]
                .contains("2 runtimes instead of 3, 40 flows moved from runtime 18")
        );
    }
}
