//! The manager, which is switch and router too, is killed under traffic: the guard begins its next life, and no flow is lost.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Process, Protected, Status};
use holdfast_lab::process::signal_pid;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::PATIENCE;
use holdfast_tests::network::{Chain, Network, Options, RECOVERY_LIMIT, VIRTUAL};
use holdfast_tests::runner::{Test, alone, light};
use holdfast_tests::transfer::LongDownload;
use holdfast_tests::verdict::{ensure_same, ensure_served, ensure_unbroken};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// The next life answers, as seen by polling.
const BACK: Duration = Duration::from_secs(2);

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light("a_download_goes_on", 2, &[NGINX, CURL], a_download_goes_on),
        alone("how soon it is back is measured", "connections_and_datagrams_go_on", 3, &[NGINX], connections_and_datagrams_go_on),
        light("runtimes_still_fail_over_afterwards", 1, &[NGINX], runtimes_still_fail_over_afterwards),
        light("a_manager_that_hangs_is_ended", 5, &[NGINX], a_manager_that_hangs_is_ended),
        light("it_is_never_given_up", 6, &[NGINX], it_is_never_given_up),
        light("the_coordinator_dies_with_it", 1, &[NGINX], the_coordinator_dies_with_it),
    ]
}

fn role(status: &Status, role: &str) -> Result<Process> {
    let found = status.processes.iter().find(|process| process.role == role);
    found.cloned().with_context(|| format!("no {role} in {status:?}"))
}

/// Waits until a life after this one answers. While there is none nobody does.
fn wait_for_next(network: &Network, last: &Process, limit: Duration, interrupt: &Interrupt) -> Result<Process> {
    until("the manager is back", limit, interrupt, || {
        let Ok(status) = network.running.status() else { return Ok(None) };
        let now = role(&status, "manager")?;
        Ok((now.incarnation > last.incarnation && now.pid != last.pid).then_some(now))
    })
}

/// Kills the manager, waits for its next life and until everything is protected, and checks that nobody else has changed. When it was back.
fn kill_manager(network: &Network, interrupt: &Interrupt) -> Result<Duration> {
    network.wait_protected()?;
    let before = network.running.status()?;
    let last = role(&before, "manager")?;
    ensure!(last.pid == role(&before, "switch")?.pid && last.pid != role(&before, "guard")?.pid, "{before:?}");
    let killed = Instant::now();
    signal_pid(last.pid, Signal::KILL)?;
    wait_for_next(network, &last, RECOVERY_LIMIT, interrupt)?;
    let back = killed.elapsed();
    network.wait_protected()?;
    ensure_nobody_else_changed(&before, &network.running.status()?)?;
    Ok(back)
}

/// The guard, the coordinator and the runtimes are the processes that they were.
fn ensure_nobody_else_changed(before: &Status, after: &Status) -> Result<()> {
    let others = |process: &&Process| !["manager", "switch"].contains(&process.role.as_str());
    ensure_same(before.processes.iter().filter(others), after)?;
    ensure!(after.failovers.is_empty(), "no runtime has failed: {:?}", after.failovers);
    Ok(())
}

fn a_download_goes_on(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let mut download = LongDownload::start_in(&network, VIRTUAL, 8_000_000)?;
    for _ in 0..3 {
        kill_manager(&network, interrupt)?;
        download.goes_on(interrupt)?;
    }
    download.finish(interrupt)?;
    network.stop()
}

/// Connections that are kept alive and numbered datagrams through three failures: nothing breaks, nothing comes twice, and what is lost is what came while
/// nobody listened at the ports, or was in the manager's hands.
fn connections_and_datagrams_go_on(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 100)?;
    let (_echo, stream) = network.stream(30, 1000)?;
    for _ in 0..3 {
        let back = kill_manager(&network, interrupt)?;
        ensure!(back < BACK, "it was back after {back:?}");
        ensure_unbroken(&held, interrupt)?;
    }
    let datagrams = stream.finish();
    // Three failures under 1,000 a second: a second of silence in each would cost three times that much.
    ensure_served(&datagrams, 30, 1_000)?;
    // And new connections are taken.
    let again = network.hold(VIRTUAL, 10)?;
    ensure!(again.verify(interrupt)?.alive == 10);
    drop((held, again));
    network.stop()
}

/// What the next life has put together is all that a failure of a runtime needs: flows are recovered as ever.
fn runtimes_still_fail_over_afterwards(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 60)?;
    kill_manager(&network, interrupt)?;
    network.kill_each_runtime(|| ensure_unbroken(&held, interrupt))?;
    drop(held);
    network.stop()
}

/// It stands still and nothing goes through; the guard ends it, and its next life goes on with every connection.
fn a_manager_that_hangs_is_ended(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 40)?;
    network.wait_protected()?;
    let before = network.running.status()?;
    let last = role(&before, "manager")?;
    signal_pid(last.pid, Signal::STOP)?;
    // Nobody can be asked until the guard has ended it: what shows is that the process is gone.
    until("the guard ends it", PATIENCE, interrupt, || Ok((!network.topology.router.pids()?.contains(&last.pid)).then_some(())))?;
    wait_for_next(&network, &last, PATIENCE, interrupt)?;
    network.wait_protected()?;
    ensure_nobody_else_changed(&before, &network.running.status()?)?;
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}

/// Seven incarnations of the manager are killed as soon as they run. The next ones start after
/// pauses; runtimes and their flows wait.
fn it_is_never_given_up(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 40)?;
    network.wait_protected()?;
    let before = network.running.status()?;
    let mut last = role(&before, "manager")?.pid;
    let is_manager = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == *b"holdfast\0manager\0");
    for _ in 0..7 {
        signal_pid(last, Signal::KILL)?;
        last = until("the next life begins", PATIENCE, interrupt, || {
            Ok(network.topology.router.pids()?.into_iter().find(|pid| *pid != last && is_manager(pid)))
        })?;
    }
    let status = until("it serves", RECOVERY_LIMIT, interrupt, || {
        let is_back = |status: &Status| role(status, "manager").is_ok_and(|manager| manager.pid == last);
        Ok(network.running.status().ok().filter(|status| status.protected() == Protected::Yes && is_back(status)))
    })?;
    ensure_same(before.runtimes(), &status)?;
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}

/// Both are killed at once: what the coordinator knew is in its log, what the manager knew the runtimes tell.
fn the_coordinator_dies_with_it(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 40)?;
    network.wait_protected()?;
    let before = network.running.status()?;
    let last = role(&before, "manager")?;
    signal_pid(role(&before, "coordinator")?.pid, Signal::KILL)?;
    signal_pid(last.pid, Signal::KILL)?;
    wait_for_next(&network, &last, RECOVERY_LIMIT, interrupt)?;
    network.wait_protected()?;
    let after = network.running.status()?;
    ensure_same(before.runtimes(), &after)?;
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}
