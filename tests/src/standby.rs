//! Local standbys: whether there are any, and killing who has one.

use crate::network::{GIVE_UP, Network};
use anyhow::{Context, Result, ensure};
use holdfast::lab::Interrupt;
use holdfast::lab::process::signal_pid;
use holdfast::status::{LocalStandby, Process, Protected, Status};
use rustix::process::Signal;

/// The level whose flows survive a process, and nothing else.
pub const LOCAL: &str = "{ preset: reinforce, level: local }";
/// The one whose flows survive a host too.
pub const BOTH: &str = "{ preset: reinforce, level: local+remote }";

/// Every runtime has a standby, and what is promised besides holds.
pub fn is_ready(status: &Status) -> bool {
    let has_standby = |runtime: &Process| runtime.local_standby.is_some_and(|standby| standby.pid != 0);
    status.protected == Protected::Yes && status.runtimes().all(has_standby)
}

/// The runtime that has most flows, with its standby.
///
/// # Errors
/// There is none.
pub fn busiest(status: &Status) -> Result<(Process, LocalStandby)> {
    let runtime = status.busiest_runtime(None).context("there is a runtime")?;
    Ok((runtime.clone(), runtime.local_standby.context("it has a standby")?))
}

/// Kills the worker of the runtime `which` chooses and waits until its standby serves in its place, under the same incarnation.
///
/// # Errors
/// It does not.
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
