//! The part of the demo with three hosts, under `reinforce` with both standbys. A host is
//! drained and restored under load, and the serving host is killed with all its
//! processes.

use super::progress::Progress;
use super::report::{account, breaches};
use super::scenario::{HELD_BODY, RECOVERY_LIMIT, addresses, backends, held_plan};
use crate::hosts::Hosts;
use crate::keepalive::KeepAlive;
use crate::nginx::{self, Site};
use crate::process::signal_pid;
use crate::running::RunningBox;
use crate::udp::{self, Datagrams};
use crate::{Interrupt, Lab, until};
use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Protected, Status, UNIT_HOST};
use rustix::process::Signal;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// The hosts; the last one has the coordinator and no ports.
const NAMES: [&str; 3] = ["left", "right", "witness"];
/// Protection of the box of one host, and of this box: each runtime has a standby beside
/// it and one on the other host.
const NFVACTOR: &str = "protection: nfvactor";
const REINFORCE: &str = "protection: { preset: reinforce, level: local+remote }";
/// The processes of a host end within this time.
const END: Duration = Duration::from_secs(10);

/// An action on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HostAction {
    /// `holdfast drain` of a host.
    Drain,
    /// `holdfast restore` of the drained host.
    Restore,
    /// SIGKILL to every process of the host that serves the ports.
    Kill,
}

/// A step of this part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostStep {
    /// The action.
    pub action: HostAction,
    /// The host that it was applied to.
    pub host: String,
    /// Time until the step was over, ms. A drain is over when the host is drained, a
    /// restore when it is restored and as safe as before, a kill when another host
    /// serves.
    pub done_ms: u64,
    /// Keep-alive connections that answered one more request at the step's end.
    pub connections_alive: usize,
    /// Keep-alive connections opened at the start.
    pub connections_opened: usize,
    /// Flows of numbered datagrams that ran during this step.
    pub datagram_flows: usize,
    /// The fate of the datagrams.
    pub datagrams: Datagrams,
}

impl HostStep {
    /// The broken promises, for people; empty if the step kept all.
    pub(super) fn failures(&self) -> Vec<String> {
        let may_lose = self.action == HostAction::Kill;
        let connections = (self.connections_alive, self.connections_opened);
        let breaches = breaches(connections, &self.datagrams, self.datagram_flows, may_lose);
        breaches
            .into_iter()
            .map(|text| format!("three hosts, {:?} of {}: {text}", self.action, self.host))
            .collect()
    }

    /// The action and its duration, and the clients' view of it.
    pub(super) fn sentences(&self) -> [String; 2] {
        let HostStep { host, done_ms, .. } = self;
        let done = match self.action {
            HostAction::Drain => {
                format!("drain of host {host}: its runtimes have ended after {done_ms} ms")
            }
            HostAction::Restore => format!(
                "restore of host {host}: everything is as safe as before after {done_ms} ms"
            ),
            HostAction::Kill => {
                format!(
                    "kill -9 of everything on host {host}, which served: the other serves after {done_ms} ms"
                )
            }
        };
        [done, account((self.connections_alive, self.connections_opened), &self.datagrams)]
    }
}

struct Stage<'a> {
    boxes: Vec<RunningBox>,
    held: KeepAlive,
    hosts: &'a Hosts,
    plan: udp::Plan,
    interrupt: &'a Interrupt,
}

/// Plays all steps.
pub(super) fn run(
    binary: &Path,
    connections: usize,
    plan: udp::Plan,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<Vec<HostStep>> {
    progress.step("a box of three hosts under reinforce: two that serve and run, and a witness with the coordinator");
    let mut lab = Lab::new(interrupt.clone())?;
    let hosts = Hosts::build(&mut lab, &NAMES, &addresses())?;
    let site = Site::new(&lab, "site")?;
    site.add("held", HELD_BODY)?;
    let servers = nginx::start_all(&lab, &hosts.server, &backends(), &site)?;
    let state = lab.scratch().join("state").display().to_string();
    let chains = super::PROTECTED
        .replace("{ min: 3, max: 3 }", "{ min: 4, max: 4 }")
        .replace(NFVACTOR, REINFORCE);
    let configuration = chains + &super::HOSTS.replace("STATE", &state);
    let launch =
        |(host, namespace)| RunningBox::launch_host(&lab, namespace, binary, &configuration, host);
    let mut boxes = NAMES.into_iter().zip(&hosts.hosts).map(launch).collect::<Result<Vec<_>>>()?;
    for running in &mut boxes {
        running.wait_ready(interrupt)?;
    }
    let echo = udp::Echo::start(&hosts.server, plan.server)?;
    let held = KeepAlive::open(&hosts.client, &held_plan(connections), interrupt)?;
    let mut stage = Stage { boxes, held, hosts: &hosts, plan, interrupt };
    let mut steps = Vec::new();
    for (action, host) in [(HostAction::Drain, 1), (HostAction::Restore, 1), (HostAction::Kill, 0)]
    {
        progress.advance(|| format!("{action:?} of host {}", NAMES[host]));
        let step = stage
            .play(action, host)
            .with_context(|| format!("{action:?} of host {}", NAMES[host]))?;
        progress.step(&step.sentences().join("; "));
        steps.push(step);
    }
    let Stage { mut boxes, held, .. } = stage;
    drop(held);
    for running in boxes.iter_mut().skip(1) {
        let status = running.stop(END, interrupt)?;
        ensure!(status.success(), "SIGTERM ended a host with {status}");
    }
    drop((echo, servers));
    Ok(steps)
}

impl Stage<'_> {
    /// Waits until the box would survive a host, as the witness sees it.
    fn wait_safe(&self) -> Result<()> {
        let is_safe =
            |status: &Status| status.protected() == Protected::Yes && status.survives == UNIT_HOST;
        self.boxes[2]
            .wait_for("every flow would survive a host", RECOVERY_LIMIT, self.interrupt, is_safe)
            .map(drop)
    }

    fn play(&mut self, action: HostAction, at: usize) -> Result<HostStep> {
        if action != HostAction::Restore {
            self.wait_safe()?;
        }
        let stream = udp::Stream::start(&self.hosts.client, self.plan)?;
        until("every flow of datagrams is under way", RECOVERY_LIMIT, self.interrupt, || {
            Ok((stream.datagrams().flows_alive == self.plan.flows).then_some(()))
        })?;
        let begun = Instant::now();
        match action {
            HostAction::Drain => drop(self.boxes[2].ask(&format!("drain {}", NAMES[at]))?),
            HostAction::Restore => {
                self.boxes[2].ask(&format!("restore {}", NAMES[at]))?;
                self.wait_safe()?;
            }
            HostAction::Kill => {
                for pid in self.hosts.hosts[at].pids()? {
                    // The process may have followed another one already.
                    let _ = signal_pid(pid, Signal::KILL);
                }
                let other = 1 - at;
                // A host that serves has rules.
                let serves = |status: &Status| status.rules.is_some();
                self.boxes[other].wait_for(
                    "the other host serves",
                    RECOVERY_LIMIT,
                    self.interrupt,
                    serves,
                )?;
            }
        }
        let done_ms = begun.elapsed().as_millis() as u64;
        let connections = self.held.verify(self.interrupt)?;
        let returned = stream.datagrams().returned;
        let some = self.plan.per_second / 4;
        until("datagrams return", RECOVERY_LIMIT, self.interrupt, || {
            Ok((stream.datagrams().returned > returned + some).then_some(()))
        })?;
        Ok(HostStep {
            action,
            host: NAMES[at].to_owned(),
            done_ms,
            connections_alive: connections.alive,
            connections_opened: connections.opened,
            datagram_flows: self.plan.flows,
            datagrams: stream.finish(),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A step that kept every promise.
    pub(in super::super) fn good(action: HostAction) -> HostStep {
        HostStep {
            action,
            host: "left".into(),
            done_ms: 500,
            connections_alive: 100,
            connections_opened: 100,
            datagram_flows: 5,
            datagrams: Datagrams {
                sent: 400,
                returned: 400,
                flows_alive: 5,
                longest_silence_us: 9_000,
                ..Datagrams::default()
            },
        }
    }

    /// Only a host that was killed may lose datagrams. No step may double datagrams or
    /// break a connection.
    #[test]
    fn a_step_passes_only_if_nobody_noticed() {
        for action in [HostAction::Drain, HostAction::Restore, HostAction::Kill] {
            let failures = |change: &dyn Fn(&mut HostStep)| {
                let mut step = good(action);
                change(&mut step);
                step.failures().len()
            };
            let lossless = usize::from(action != HostAction::Kill);
            assert_eq!(failures(&|_| ()), 0, "{action:?}");
            assert_eq!(failures(&|step| step.datagrams.lost = 1), lossless, "{action:?}");
            assert_eq!(failures(&|step| step.datagrams.doubled = 1), 1, "{action:?}");
            assert_eq!(failures(&|step| step.datagrams.flows_alive = 4), 1, "{action:?}");
            assert_eq!(failures(&|step| step.connections_alive = 99), 1, "{action:?}");
        }
    }
}
