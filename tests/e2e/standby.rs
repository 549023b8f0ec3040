//! With a local standby a runtime's process may be killed at any instruction: the one beside it goes on with its rings, and nobody notices, neither those who talk through the box nor
//! its coordinator.

use anyhow::{Context, Result, ensure};
use holdfast::lab::download::{Download, Plan};
use holdfast::lab::process::signal_pid;
use holdfast::lab::requirements::*;
use holdfast::lab::{Interrupt, until};
use holdfast::status::{LocalStandby, Process, Protected, Status};
use holdfast_tests::network::{Chain, GIVE_UP, Network, Options, VIRTUAL};
use holdfast_tests::runner::{main as run, test};
use holdfast_tests::verdict::{ensure_perfect, ensure_unbroken};
use rustix::process::Signal;
use std::process::ExitCode;
use std::time::Duration;

/// Longest time for a download and some kills.
const LIMIT: Duration = Duration::from_secs(120);
/// In each level.
const KILLS: usize = 100;
const LOCAL: &str = "{ preset: reinforce, level: local }";
const BOTH: &str = "{ preset: reinforce, level: local+remote }";

fn main() -> ExitCode {
    run(vec![
        test("datagrams_do_not_notice_a_hundred_kills", &[], datagrams_do_not_notice_a_hundred_kills),
        test("a_download_goes_on", &[NGINX, CURL], a_download_goes_on),
    ])
}

fn under(protection: &'static str, chain: Chain) -> Options {
    Options { protection, ..Options::protected(chain) }
}

/// The runtime that has most flows, with its standby.
fn busiest(status: &Status) -> Result<(Process, LocalStandby)> {
    let runtime = status.busiest_runtime(None).context("there is a runtime")?;
    Ok((runtime.clone(), runtime.local_standby.context("it has a standby")?))
}

/// Kills the worker of the runtime that has most flows and waits until it has a worker and a standby again.
fn kill(network: &Network, interrupt: &Interrupt) -> Result<()> {
    network.running.wait_for("every runtime has a standby", GIVE_UP, interrupt, |status| {
        status.runtimes().all(|runtime| runtime.local_standby.is_some_and(|standby| standby.pid != 0))
    })?;
    let (victim, standby) = busiest(&network.running.status()?)?;
    signal_pid(victim.pid, Signal::KILL)?;
    network.running.wait_for("the standby has taken over", GIVE_UP, interrupt, |status| {
        let now = status.runtime(victim.id);
        now.is_some_and(|now| now.pid == standby.pid && now.incarnation == victim.incarnation)
    })?;
    let now = network.running.status()?.runtime(victim.id).cloned().context("it is there")?;
    ensure!(now.local_standby.is_some_and(|now| now.takeovers == standby.takeovers + 1), "{now:?}");
    Ok(())
}

fn datagrams_do_not_notice_a_hundred_kills(interrupt: &Interrupt) -> Result<()> {
    for protection in [LOCAL, BOTH] {
        let network = Network::start(&under(protection, Chain::Edge), interrupt)?;
        let (_echo, stream) = network.stream(30, 1000)?;
        for _ in 0..KILLS {
            kill(&network, interrupt)?;
        }
        network.running.wait_for("it is safe again", GIVE_UP, interrupt, |status| status.protected == Protected::Yes)?;
        ensure_perfect(&stream.finish(), 30, std::iter::once(&network.running))?;
        let status = network.running.status()?;
        ensure!(status.failovers.is_empty(), "the coordinator has noticed: {:?}", status.failovers);
        network.stop()?;
    }
    Ok(())
}

/// A hundred megabytes through a firewall, a NAT and a load balancer.
fn a_download_goes_on(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&under(LOCAL, Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let sum = network.site.add_random("big", 100_000_000)?;
    let held = network.hold(VIRTUAL, 100)?;
    let plan = Plan { url: format!("http://{VIRTUAL}/big"), bytes_per_second: Some(8_000_000), stalled_after: GIVE_UP };
    let mut download = Download::start(&network.topology.client, &plan)?;
    until("the download is under way", LIMIT, interrupt, || Ok((download.received() > 1_000_000).then_some(())))?;
    for _ in 0..20 {
        let seen = download.received();
        kill(&network, interrupt)?;
        until("the download goes on", GIVE_UP, interrupt, || Ok((download.received() > seen).then_some(())))?;
    }
    ensure_unbroken(&held, interrupt)?;
    ensure!(!download.is_over()?, "the download was over before the last kill: nothing was shown");
    let outcome = download.finish(LIMIT, interrupt)?;
    ensure!(outcome.error.is_none() && outcome.bytes == 100_000_000 && outcome.sum == sum, "{outcome:?}");
    drop(held);
    network.stop()
}
