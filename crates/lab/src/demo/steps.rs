//! The further steps of the protected half, after runtimes were killed: the rest of the
//! box fails too, and an operator drains and restores a runtime.
//!
//! Every step has numbered datagrams of its own, on flows that begin before it and end
//! after it. Its account of them (lost, reordered, longest silence) is therefore the
//! step's alone.

use super::progress::Progress;
use super::report::{account, breaches};
use super::scenario::{Load, RECOVERY_LIMIT, Script, count_under_way};
use crate::process::signal_pid;
use crate::running::RunningBox;
use crate::topology::Topology;
use crate::udp::{self, Datagrams};
use crate::{Interrupt, until};
use anyhow::{Context, Result};
use holdfast_control::api::Progress as Account;
use holdfast_control::status::{
    Process, Protected, ROLE_COORDINATOR, ROLE_SWITCH, STATE_DRAINED, STATE_RUNNING, Status,
};
use rustix::process::Signal;
use serde::Serialize;
use std::fmt;
use std::time::{Duration, Instant};

/// An action on the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// SIGKILL to the process that is manager and switch.
    KillManager,
    /// SIGKILL to the coordinator.
    KillCoordinator,
    /// `holdfast drain` of the busiest runtime.
    Drain,
    /// `holdfast restore` of the drained runtime.
    Restore,
}

impl Action {
    /// The actions in the order in which they are played.
    pub(super) const ALL: [Action; 4] =
        [Action::KillManager, Action::KillCoordinator, Action::Drain, Action::Restore];

    /// True if datagrams may be lost. Packets inside the switch die with it; no other
    /// action touches packets on their way.
    fn may_lose(self) -> bool {
        self == Action::KillManager
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::KillManager => "kill -9 of the manager and switch",
            Action::KillCoordinator => "kill -9 of the coordinator",
            Action::Drain => "drain of a runtime",
            Action::Restore => "restore of the runtime",
        })
    }
}

/// A step of this part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// The action.
    pub action: Action,
    /// Node number of the target.
    pub node: u32,
    /// Process id of the target; for a restore, of the runtime that was drained.
    pub pid: u32,
    /// Time until the action was over, ms, polled from outside: the next incarnation
    /// serves, or the drained runtime has ended.
    pub done_ms: u64,
    /// Time until the box was protected again, ms, polled from outside.
    pub protected_ms: u64,
    /// Flows that a drain moved to other runtimes.
    pub moved: Option<u64>,
    /// Flows that a drain could not move.
    pub refused: Option<u64>,
    /// Downloads that were under way at the start of the step.
    pub downloads_under_way: usize,
    /// Keep-alive connections that answered one more request at the step's end.
    pub connections_alive: usize,
    /// Keep-alive connections opened at the start.
    pub connections_opened: usize,
    /// Flows of numbered datagrams that ran during this step.
    pub datagram_flows: usize,
    /// The fate of the datagrams.
    pub datagrams: Datagrams,
    /// Other runtimes whose process or incarnation changed.
    pub disturbed: Vec<u32>,
    /// Runtimes that the box declared failed meanwhile, and why.
    pub failovers: Vec<String>,
}

impl Step {
    /// The broken promises, for people; empty if the step kept all.
    pub(super) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let mut fail = |text: String| failures.push(format!("{}: {text}", self.action));
        if self.downloads_under_way == 0 {
            fail("nothing was under way, which shows nothing".into());
        }
        let connections = (self.connections_alive, self.connections_opened);
        let breaches =
            breaches(connections, &self.datagrams, self.datagram_flows, self.action.may_lose());
        breaches.into_iter().for_each(&mut fail);
        if self.action == Action::Drain
            && (self.moved.unwrap_or(0) == 0 || self.refused.unwrap_or(0) > 0)
        {
            fail(format!(
                "{} flows moved, {} refused",
                self.moved.unwrap_or(0),
                self.refused.unwrap_or(0)
            ));
        }
        if !self.disturbed.is_empty() {
            fail(format!("runtimes {:?} were started anew", self.disturbed));
        }
        if !self.failovers.is_empty() {
            fail(format!("the box saw failures: {}", self.failovers.join(", ")));
        }
        failures
    }

    /// The action, its duration and its result, for people.
    pub(super) fn sentence(&self) -> String {
        let Step { action, node, done_ms, .. } = self;
        let begin = match action {
            Action::KillManager | Action::KillCoordinator => {
                format!("{action} (pid {}): the next one serves after {done_ms} ms", self.pid)
            }
            Action::Drain => {
                let moved = self.moved.unwrap_or(0);
                format!(
                    "drain of runtime {node}: {moved} flows moved, it has ended after {done_ms} ms"
                )
            }
            Action::Restore => format!("restore of runtime {node}: it serves after {done_ms} ms"),
        };
        format!(
            "{begin}; {}",
            account((self.connections_alive, self.connections_opened), &self.datagrams)
        )
    }
}

/// Duration and result of an action.
struct Done {
    took: Duration,
    account: Option<Account>,
}

/// Plays all steps.
pub(super) fn play(
    script: &Script<'_>,
    topology: &Topology,
    running: &RunningBox,
    load: &mut Load,
    progress: &mut Progress,
) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    for action in Action::ALL {
        progress.advance(|| format!("{action}"));
        let drained = steps
            .iter()
            .find(|step| step.action == Action::Drain)
            .map(|step| (step.node, step.pid));
        let step = Stage { script, topology, running, load }
            .play(action, drained)
            .with_context(|| action.to_string())?;
        progress.step(&step.sentence());
        steps.push(step);
    }
    Ok(steps)
}

struct Stage<'a> {
    script: &'a Script<'a>,
    topology: &'a Topology,
    running: &'a RunningBox,
    load: &'a mut Load,
}

impl Stage<'_> {
    fn play(&mut self, action: Action, drained: Option<(u32, u32)>) -> Result<Step> {
        let interrupt = self.script.interrupt;
        let plan = self.script.scale.step_datagrams();
        let stream = udp::Stream::start(&self.topology.client, plan)?;
        until("every flow of datagrams is under way", RECOVERY_LIMIT, interrupt, || {
            Ok((stream.datagrams().flows_alive == plan.flows).then_some(()))
        })?;
        let before = self.wait_protected()?;
        let (node, pid) = match action {
            Action::KillManager => identity(role(&before, ROLE_SWITCH)?),
            Action::KillCoordinator => identity(role(&before, ROLE_COORDINATOR)?),
            Action::Drain => identity(before.busiest_runtime(None).context("no runtime serves")?),
            Action::Restore => drained.context("nothing was drained")?,
        };
        let downloads_under_way = count_under_way(self.load)?;
        let begun = Instant::now();
        let done = match action {
            Action::KillManager => kill(self.running, role(&before, ROLE_SWITCH)?, interrupt)?,
            Action::KillCoordinator => {
                kill(self.running, role(&before, ROLE_COORDINATOR)?, interrupt)?
            }
            Action::Drain => drain(self.running, node, interrupt)?,
            Action::Restore => restore(self.running, node, interrupt)?,
        };
        let after = self.wait_protected()?;
        let protected = begun.elapsed();
        let connections = self.load.held.verify(interrupt)?;
        let (moved, refused) = done.account.map(|account| (account.moved, account.refused)).unzip();
        Ok(Step {
            action,
            node,
            pid,
            done_ms: done.took.as_millis() as u64,
            protected_ms: protected.as_millis() as u64,
            moved,
            refused,
            downloads_under_way,
            connections_alive: connections.alive,
            connections_opened: connections.opened,
            datagram_flows: plan.flows,
            datagrams: stream.finish(),
            disturbed: disturbed(&before, &after, node),
            failovers: failovers(&before, &after),
        })
    }

    fn wait_protected(&self) -> Result<Status> {
        let is_so = |status: &Status| status.protected() == Protected::Yes;
        self.running.wait_for(
            "everything is protected",
            RECOVERY_LIMIT,
            self.script.interrupt,
            is_so,
        )
    }
}

fn role<'a>(status: &'a Status, role: &str) -> Result<&'a Process> {
    let found = status.processes.iter().find(|process| process.role == role);
    found.with_context(|| format!("no {role} in {status:?}"))
}

fn identity(process: &Process) -> (u32, u32) {
    (process.id, process.pid)
}

/// Runtimes other than `node` whose process or incarnation changed.
fn disturbed(before: &Status, after: &Status, node: u32) -> Vec<u32> {
    let others = before.runtimes().filter(|old| old.id != node);
    let is_same = |old: &Process| {
        after
            .runtime(old.id)
            .is_some_and(|new| (new.pid, new.incarnation) == (old.pid, old.incarnation))
    };
    others.filter(|old| !is_same(old)).map(|old| old.id).collect()
}

/// The failures in `after` that are not in `before`.
fn failovers(before: &Status, after: &Status) -> Vec<String> {
    let new = after
        .failovers
        .iter()
        .filter(|failover| before.failover(failover.runtime, failover.incarnation).is_none());
    new.map(|failover| format!("runtime {}: {}", failover.runtime, failover.cause)).collect()
}

/// Kills a process and waits until a later incarnation serves. While there is no manager,
/// status queries fail.
fn kill(running: &RunningBox, victim: &Process, interrupt: &Interrupt) -> Result<Done> {
    let begun = Instant::now();
    signal_pid(victim.pid, Signal::KILL)?;
    until("its next incarnation serves", RECOVERY_LIMIT, interrupt, || {
        let Ok(status) = running.status() else { return Ok(None) };
        let next =
            status.processes.iter().find(|process| process.role == victim.role).filter(|next| {
                next.incarnation > victim.incarnation
                    && next.pid != victim.pid
                    && next.state == STATE_RUNNING
            });
        Ok(next.map(|_| ()))
    })?;
    Ok(Done { took: begun.elapsed(), account: None })
}

fn drain(running: &RunningBox, node: u32, interrupt: &Interrupt) -> Result<Done> {
    let begun = Instant::now();
    let text = running.ask(&format!("drain {node}"))?;
    let account: Account =
        serde_json::from_str(&text).with_context(|| format!("reading the account {text}"))?;
    wait_for_state(running, node, STATE_DRAINED, interrupt)?;
    Ok(Done { took: begun.elapsed(), account: Some(account) })
}

fn restore(running: &RunningBox, node: u32, interrupt: &Interrupt) -> Result<Done> {
    let begun = Instant::now();
    running.ask(&format!("restore {node}"))?;
    wait_for_state(running, node, STATE_RUNNING, interrupt)?;
    Ok(Done { took: begun.elapsed(), account: None })
}

fn wait_for_state(
    running: &RunningBox,
    node: u32,
    state: &str,
    interrupt: &Interrupt,
) -> Result<()> {
    let is_so =
        |status: &Status| status.runtime(node).is_some_and(|process| process.state == state);
    running
        .wait_for(&format!("runtime {node} is {state}"), RECOVERY_LIMIT, interrupt, is_so)
        .map(drop)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A step that kept every promise.
    pub(in super::super) fn good(action: Action) -> Step {
        Step {
            action,
            node: 16,
            pid: 7,
            done_ms: 120,
            protected_ms: 150,
            moved: (action == Action::Drain).then_some(80),
            refused: (action == Action::Drain).then_some(0),
            downloads_under_way: 2,
            connections_alive: 3,
            connections_opened: 3,
            datagram_flows: 5,
            datagrams: Datagrams {
                sent: 400,
                returned: 400,
                flows_alive: 5,
                longest_silence_us: 9_000,
                ..Datagrams::default()
            },
            disturbed: Vec::new(),
            failovers: Vec::new(),
        }
    }

    /// Only a switch that was killed may lose datagrams. No step may double them, break a
    /// connection or disturb the other runtimes.
    #[test]
    fn a_step_passes_only_if_it_kept_what_it_promises() {
        for action in Action::ALL {
            let failures = |change: &dyn Fn(&mut Step)| {
                let mut step = good(action);
                change(&mut step);
                step.failures().len()
            };
            let lossless = usize::from(action != Action::KillManager);
            assert_eq!(failures(&|_| ()), 0, "{action}");
            assert_eq!(failures(&|step| step.datagrams.lost = 1), lossless, "{action}");
            assert_eq!(failures(&|step| step.datagrams.reordered = 1), lossless, "{action}");
            assert_eq!(failures(&|step| step.datagrams.doubled = 1), 1, "{action}");
            assert_eq!(failures(&|step| step.datagrams.changed = 1), 1, "{action}");
            assert_eq!(failures(&|step| step.datagrams.flows_alive = 4), 1, "{action}");
            assert_eq!(failures(&|step| step.connections_alive = 2), 1, "{action}");
            assert_eq!(failures(&|step| step.downloads_under_way = 0), 1, "{action}");
            assert_eq!(failures(&|step| step.disturbed = vec![17]), 1, "{action}");
            assert_eq!(
                failures(&|step| step.failovers = vec!["runtime 17: no heartbeat".into()]),
                1,
                "{action}"
            );
            let drained = usize::from(action == Action::Drain);
            assert_eq!(failures(&|step| step.moved = None), drained, "{action}");
            assert_eq!(failures(&|step| step.refused = Some(1)), drained, "{action}");
        }
    }

    #[test]
    fn a_sentence_has_the_time_and_the_account() {
        let drained = good(Action::Drain).sentence();
        for part in [
            "drain of runtime 16: 80 flows moved",
            "120 ms",
            "3 of 3 connections alive",
            "of 400 datagrams 0 lost, 0 reordered",
        ] {
            assert!(drained.contains(part), "{part:?} is not in {drained:?}");
        }
        assert!(
            good(Action::KillCoordinator)
                .sentence()
                .starts_with("kill -9 of the coordinator (pid 7)")
        );
    }
}
