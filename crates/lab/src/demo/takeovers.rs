//! The part of the demo with a local standby beside each runtime. Under HTTP load the
//! runtimes' processes are killed a hundred times, and neither clients nor the
//! coordinator notice. REINFORCE, table III: requests per second before, during and
//! after.

use super::progress::Progress;
use super::report::{account, breaches};
use super::scenario::{HELD_BODY, RECOVERY_LIMIT, addresses, backends, held_plan};
use crate::keepalive::{KeepAlive, Plan};
use crate::nginx::{self, Site};
use crate::process::signal_pid;
use crate::running::RunningBox;
use crate::topology::Topology;
use crate::udp::{self, Datagrams};
use crate::{Interrupt, Lab, until};
use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Protected, Status};
use rustix::process::Signal;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// The processes of the box end within this time.
const END: Duration = Duration::from_secs(10);

/// Minimal time from one kill to the next: killing and looking take processor time too.
const PACE: Duration = Duration::from_millis(100);

/// The amount of kills and load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plans {
    /// Number of processes to kill.
    pub(super) kills: usize,
    /// Connections that ask again as soon as they are answered.
    pub(super) connections: usize,
    /// Time for which requests are counted before and after the kills.
    pub(super) time: Duration,
    /// Numbered datagrams that run beside.
    pub(super) datagrams: udp::Plan,
}

/// The result of the kills.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Takeovers {
    /// Processes that were killed, and takeovers by standbys.
    pub kills: usize,
    /// See `kills`.
    pub takeovers: u64,
    /// Requests answered per second: before the first kill, from the first kill to the
    /// last, and after the last.
    pub requests_per_second: [u64; 3],
    /// Milliseconds from the first kill to the last.
    pub killing_ms: u64,
    /// Connections that were still whole at the end and answered one more request.
    pub connections_alive: usize,
    /// Connections opened.
    pub connections_opened: usize,
    /// The slowest answer, microseconds.
    pub slowest_answer_us: u64,
    /// Flows of numbered datagrams that ran during the kills.
    pub datagram_flows: usize,
    /// The fate of the datagrams.
    pub datagrams: Datagrams,
    /// Runtimes that the box declared failed, and why.
    pub failovers: Vec<String>,
}

impl Takeovers {
    /// The broken promises, for people; empty if all were kept.
    pub(super) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let mut fail = |text: String| failures.push(format!("local standbys: {text}"));
        if self.takeovers < self.kills as u64 {
            fail(format!(
                "{} processes were killed, and standbys took over {} times",
                self.kills, self.takeovers
            ));
        }
        if self.requests_per_second.contains(&0) {
            fail("nothing was answered for a while, which shows nothing".into());
        }
        let connections = (self.connections_alive, self.connections_opened);
        breaches(connections, &self.datagrams, self.datagram_flows, false)
            .into_iter()
            .for_each(&mut fail);
        if !self.failovers.is_empty() {
            fail(format!("the box saw failures: {}", self.failovers.join(", ")));
        }
        failures
    }

    /// The kills and their duration, and the clients' view of them.
    pub(super) fn sentences(&self) -> [String; 2] {
        let [before, during, after] = self.requests_per_second;
        let change = (during as f64 / before.max(1) as f64 - 1.0) * 100.0;
        let done = format!(
            "{} kills in {:.1} s: {before} requests a second before, {during} ({change:+.0} %) meanwhile, {after} after; slowest answer {}",
            self.kills,
            self.killing_ms as f64 / 1e3,
            super::report::micros(self.slowest_answer_us)
        );
        [done, account((self.connections_alive, self.connections_opened), &self.datagrams)]
    }
}

/// True if every runtime has a standby that is ready.
fn is_ready(status: &Status) -> bool {
    let has_standby = |runtime: &holdfast_control::status::Process| {
        runtime.local_standby.is_some_and(|standby| standby.pid != 0)
    };
    status.protected() == Protected::Yes && status.runtimes().all(has_standby)
}

/// Number of takeovers by standbys.
fn takeovers(status: &Status) -> u64 {
    status
        .runtimes()
        .filter_map(|runtime| runtime.local_standby)
        .map(|standby| standby.takeovers)
        .sum()
}

/// Plays this part.
pub(super) fn run(
    binary: &Path,
    plans: &Plans,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<Takeovers> {
    progress.step("a box whose runtimes have standbys beside them");
    let mut lab = Lab::new(interrupt.clone())?;
    let topology = Topology::build(&mut lab, &addresses())?;
    let site = Site::new(&lab, "site")?;
    site.add("held", HELD_BODY)?;
    let servers = nginx::start_all(&lab, &topology.server, &backends(), &site)?;
    let configuration = super::PROTECTED
        .replace("protection: nfvactor", "protection: { preset: reinforce, level: local }")
        .replace("{ min: 3, max: 3 }", "{ min: 2, max: 2 }");
    let mut running = RunningBox::start(&lab, &topology.router, binary, &configuration)?;
    let echo = udp::Echo::start(&topology.server, plans.datagrams.server)?;
    let load = Plan { interval: Duration::ZERO, ..held_plan(plans.connections) };
    let load = KeepAlive::open(&topology.client, &load, interrupt)?;
    let stream = udp::Stream::start(&topology.client, plans.datagrams)?;
    until("every flow of datagrams is under way", RECOVERY_LIMIT, interrupt, || {
        Ok((stream.datagrams().flows_alive == plans.datagrams.flows).then_some(()))
    })?;
    running.wait_for("every runtime has a standby", RECOVERY_LIMIT, interrupt, is_ready)?;
    let counted = |act: &mut dyn FnMut() -> Result<()>| -> Result<(u64, u64)> {
        let (begun, answers) = (Instant::now(), load.connections().answers);
        act()?;
        let elapsed = (begun.elapsed().as_millis() as u64).max(1);
        Ok(((load.connections().answers - answers) * 1000 / elapsed, elapsed))
    };
    let wait = || {
        let begun = Instant::now();
        until("requests are counted", RECOVERY_LIMIT, interrupt, || {
            Ok((begun.elapsed() >= plans.time).then_some(()))
        })
    };
    let (before, _) = counted(&mut || wait())?;
    let (during, killing_ms) = counted(&mut || {
        for number in 0..plans.kills {
            let begun = Instant::now();
            let status = running.wait_for(
                "every runtime has a standby",
                RECOVERY_LIMIT,
                interrupt,
                is_ready,
            )?;
            let runtimes: Vec<_> = status.runtimes().collect();
            let victim = runtimes[number % runtimes.len()];
            let had = takeovers(&status);
            signal_pid(victim.pid, Signal::KILL)?;
            running.wait_for(
                "the standby has taken over",
                RECOVERY_LIMIT,
                interrupt,
                |status| takeovers(status) > had,
            )?;
            progress.advance(|| format!("{} of {} processes killed", number + 1, plans.kills));
            until("it is time for the next", RECOVERY_LIMIT, interrupt, || {
                Ok((begun.elapsed() >= PACE).then_some(()))
            })?;
        }
        Ok(())
    })?;
    let (after, _) = counted(&mut || wait())?;
    let connections = load.verify(interrupt)?;
    let status =
        running.wait_for("every runtime has a standby", RECOVERY_LIMIT, interrupt, is_ready)?;
    let done = Takeovers {
        kills: plans.kills,
        takeovers: takeovers(&status),
        requests_per_second: [before, during, after],
        killing_ms,
        connections_alive: connections.alive,
        connections_opened: connections.opened,
        slowest_answer_us: connections.slowest_answer_us,
        datagram_flows: plans.datagrams.flows,
        datagrams: stream.finish(),
        failovers: status
            .failovers
            .iter()
            .map(|one| format!("runtime {}: {}", one.runtime, one.cause))
            .collect(),
    };
    progress.step(&done.sentences().join("; "));
    drop(load);
    let status = running.stop(END, interrupt).context("stopping the box")?;
    ensure!(status.success(), "SIGTERM ended the box with {status}");
    drop((echo, servers));
    Ok(done)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A result that kept every promise.
    pub(in super::super) fn good() -> Takeovers {
        Takeovers {
            kills: 100,
            takeovers: 100,
            requests_per_second: [10_000, 9_700, 10_100],
            killing_ms: 4_000,
            connections_alive: 20,
            connections_opened: 20,
            slowest_answer_us: 3_000,
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

    #[test]
    fn it_passes_only_if_nobody_noticed() {
        let failures = |change: &dyn Fn(&mut Takeovers)| {
            let mut done = good();
            change(&mut done);
            done.failures().len()
        };
        assert_eq!(failures(&|_| ()), 0);
        assert_eq!(failures(&|done| done.takeovers = 99), 1);
        assert_eq!(failures(&|done| done.requests_per_second[1] = 0), 1);
        assert_eq!(failures(&|done| done.datagrams.lost = 1), 1);
        assert_eq!(failures(&|done| done.datagrams.doubled = 1), 1);
        assert_eq!(failures(&|done| done.connections_alive = 19), 1);
        assert_eq!(failures(&|done| done.failovers = vec!["runtime 17: no heartbeat".into()]), 1);
    }

    #[test]
    fn a_sentence_says_what_it_cost() {
        let text = good().sentences().join("; ");
        for part in [
            "100 kills in 4.0 s",
            "10000 requests a second before, 9700 (-3 %) meanwhile, 10100 after",
            "20 of 20 connections",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }
}
