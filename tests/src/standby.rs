//! Local standbys: whether a runtime has one, and kills of workers and standbys.

use crate::network::{GIVE_UP, Network};
use anyhow::{Context, Result, ensure};
use holdfast_control::status::{self, LocalStandby, Process, Protected, Status};
use holdfast_lab::Interrupt;
use holdfast_lab::process::signal_pid;
use rustix::process::Signal;

/// The level at which flows survive the death of a process, and no other failure.
pub const LOCAL: &str = "{ preset: reinforce, level: local }";
/// The level at which flows survive a host too.
pub const BOTH: &str = "{ preset: reinforce, level: local+remote }";

/// True if every runtime has a standby and everything else that is promised holds.
pub fn is_ready(status: &Status) -> bool {
    let has_standby =
        |runtime: &Process| runtime.local_standby.is_some_and(|standby| standby.pid != 0);
    status.protected() == Protected::Yes && status.runtimes().all(has_standby)
}

/// The runtime that has most flows, with its standby.
///
/// # Errors
/// There is no such runtime.
pub fn busiest(status: &Status) -> Result<(Process, LocalStandby)> {
    let runtime = status.busiest_runtime(None).context("there is a runtime")?;
    Ok((runtime.clone(), runtime.local_standby.context("it has a standby")?))
}

/// Kills the worker of the runtime that `which` chooses and waits until its standby
/// serves in its place, under the same incarnation.
///
/// # Errors
/// The standby does not take over.
pub fn kill_worker(
    network: &Network,
    which: impl Fn(&Status) -> Result<(Process, LocalStandby)>,
    interrupt: &Interrupt,
) -> Result<()> {
    network.running.wait_for("every runtime has a standby", GIVE_UP, interrupt, is_ready)?;
    let (victim, standby) = which(&network.running.status()?)?;
    signal_pid(victim.pid, Signal::KILL)?;
    network.running.wait_for("the standby has taken over", GIVE_UP, interrupt, |status| {
        let now = status.runtime(victim.id);
        now.is_some_and(|now| now.pid == standby.pid && now.incarnation == victim.incarnation)
    })?;
    let now = network.running.status()?.runtime(victim.id).cloned().context("it is there")?;
    ensure!(now.local_standby.is_some_and(|now| now.takeovers == standby.takeovers + 1), "{now:?}");
    Ok(())
}

/// The number in /proc/PID/stat (proc_pid_stat(5)) that is `words` fields after the
/// state.
fn number(pid: u32, words: usize) -> Result<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = text.rsplit_once(')').context("a name in parentheses")?.1;
    Ok(rest.split_whitespace().nth(words).context("so many words")?.parse()?)
}

/// The parent of this worker or standby: its keeper, or the guard once that keeper has
/// ended.
///
/// # Errors
/// There is no such process.
pub fn keeper(member: u32) -> Result<u32> {
    number(member, 1)
}

/// The process group of a worker, its standby, its keeper and the keeper's deputy.
///
/// # Errors
/// There is no such process.
pub fn group(member: u32) -> Result<u32> {
    number(member, 2)
}

/// The state server, or the first of several.
///
/// # Errors
/// There is no state server.
pub fn state_server(status: &Status) -> Result<Process> {
    nth_state_server(status, 0)
}

/// The state server with this number, from 0.
///
/// # Errors
/// There are fewer state servers.
pub fn nth_state_server(status: &Status, number: usize) -> Result<Process> {
    let found = status
        .processes
        .iter()
        .filter(|process| process.role == status::ROLE_STATE_SERVER)
        .nth(number)
        .cloned();
    found.with_context(|| format!("there is a state server {number}: {status:?}"))
}

/// Kills the state server's worker, or its standby, and waits until the server has both
/// again, in the same incarnation.
///
/// # Errors
/// The server does not have both again in time.
pub fn kill_half_of_server(network: &Network, half: Half, interrupt: &Interrupt) -> Result<()> {
    kill_half_of_nth_server(network, 0, half, interrupt)
}

/// Like `kill_half_of_server`, for one of several state servers.
///
/// # Errors
/// The server does not have both again in time.
pub fn kill_half_of_nth_server(
    network: &Network,
    number: usize,
    half: Half,
    interrupt: &Interrupt,
) -> Result<()> {
    let state_server = |status: &Status| nth_state_server(status, number);
    let is_ready = |status: &Status| {
        state_server(status)
            .is_ok_and(|server| server.local_standby.is_some_and(|standby| standby.pid != 0))
    };
    let status =
        network.running.wait_for("the state server has a standby", GIVE_UP, interrupt, is_ready)?;
    let before = state_server(&status)?;
    let standby = before.local_standby.context("it was there a moment ago")?;
    let (victim, takeovers) = match half {
        Half::Worker => (before.pid, standby.takeovers + 1),
        Half::Standby => (standby.pid, standby.takeovers),
    };
    signal_pid(victim, Signal::KILL)?;
    let is_whole = |status: &Status| {
        let Ok(Process { pid, incarnation, local_standby: Some(now), .. }) = state_server(status)
        else {
            return false;
        };
        let worker = if half == Half::Worker { standby.pid } else { before.pid };
        pid == worker
            && incarnation == before.incarnation
            && now.takeovers == takeovers
            && ![0, victim].contains(&now.pid)
    };
    network.running.wait_for(
        "the server has a worker and a standby",
        GIVE_UP,
        interrupt,
        is_whole,
    )?;
    Ok(())
}

/// A process of the state server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// The process that works.
    Worker,
    /// The process that takes over.
    Standby,
}
