//! The manager, which is also switch and router, is killed under traffic: the guard
//! starts its next incarnation, and no flow is lost.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Process, Protected, Status};
use holdfast_lab::process::signal_pid;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::TIMEOUT;
use holdfast_tests::network::{Chain, Network, Options, RECOVERY_LIMIT, VIRTUAL};
use holdfast_tests::runner::{Test, alone, light};
use holdfast_tests::transfer::LongDownload;
use holdfast_tests::verdict::{ensure_same, ensure_served, ensure_unbroken};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Time limit for the next incarnation to answer, as seen by polling.
const BACK: Duration = Duration::from_secs(2);

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light("a_download_goes_on", 2, &[NGINX, CURL], a_download_goes_on),
        alone(
            "how soon it is back is measured",
            "connections_and_datagrams_go_on",
            3,
            &[NGINX],
            connections_and_datagrams_go_on,
        ),
        light(
            "runtimes_still_fail_over_afterwards",
            1,
            &[NGINX],
            runtimes_still_fail_over_afterwards,
        ),
        light("a_manager_that_hangs_is_ended", 5, &[NGINX], a_manager_that_hangs_is_ended),
        light("it_is_never_given_up", 6, &[NGINX], it_is_never_given_up),
        light("it_does_not_wait_for_a_runtime", 8, &[NGINX], it_does_not_wait_for_a_runtime),
        light("the_coordinator_dies_with_it", 1, &[NGINX], the_coordinator_dies_with_it),
    ]
}

fn role(status: &Status, role: &str) -> Result<Process> {
    let found = status.processes.iter().find(|process| process.role == role);
    found.cloned().with_context(|| format!("no {role} in {status:?}"))
}

/// Waits until a later incarnation answers. While there is no manager, status queries
/// fail.
fn wait_for_next(
    network: &Network,
    last: &Process,
    limit: Duration,
    interrupt: &Interrupt,
) -> Result<Process> {
    until("the manager is back", limit, interrupt, || {
        let Ok(status) = network.running.status() else { return Ok(None) };
        let now = role(&status, "manager")?;
        Ok((now.incarnation > last.incarnation && now.pid != last.pid).then_some(now))
    })
}

/// Kills the manager, waits for its next incarnation and until everything is protected,
/// and checks that no other process has changed. Returns the time until the manager was
/// back.
pub(crate) fn kill_manager(network: &Network, interrupt: &Interrupt) -> Result<Duration> {
    network.wait_protected()?;
    let before = network.running.status()?;
    let last = role(&before, "manager")?;
    ensure!(
        last.pid == role(&before, "switch")?.pid && last.pid != role(&before, "guard")?.pid,
        "{before:?}"
    );
    let killed = Instant::now();
    signal_pid(last.pid, Signal::KILL)?;
    wait_for_next(network, &last, RECOVERY_LIMIT, interrupt)?;
    let back = killed.elapsed();
    network.wait_protected()?;
    ensure_nobody_else_changed(&before, &network.running.status()?)?;
    Ok(back)
}

/// The guard, the coordinator and the runtimes are unchanged processes.
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

/// Keep-alive connections and numbered datagrams through three failures. No connection
/// breaks, and no datagram comes twice. Only datagrams are lost that came while no
/// process read the ports, or that were inside the manager.
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
    // Three failures under 1,000 a second: a second of silence in each would cost three
    // times that much.
    ensure_served(&datagrams, 30, 1_000)?;
    // New connections are taken.
    let again = network.hold(VIRTUAL, 10)?;
    ensure!(again.verify(interrupt)?.alive == 10);
    drop((held, again));
    network.stop()
}

/// The state that the next incarnation has collected is enough for a failure of a
/// runtime: flows are recovered as before.
fn runtimes_still_fail_over_afterwards(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 60)?;
    kill_manager(&network, interrupt)?;
    network.kill_each_runtime(|| ensure_unbroken(&held, interrupt))?;
    drop(held);
    network.stop()
}

/// The manager is stopped and no packet goes through; the guard kills it, and its next
/// incarnation continues every connection.
fn a_manager_that_hangs_is_ended(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 40)?;
    network.wait_protected()?;
    let before = network.running.status()?;
    let last = role(&before, "manager")?;
    signal_pid(last.pid, Signal::STOP)?;
    // No status query is answered until the guard has killed the manager: the end of its
    // process shows it.
    until("the guard ends it", TIMEOUT, interrupt, || {
        Ok((!network.topology.router.pids()?.contains(&last.pid)).then_some(()))
    })?;
    wait_for_next(&network, &last, TIMEOUT, interrupt)?;
    network.wait_protected()?;
    ensure_nobody_else_changed(&before, &network.running.status()?)?;
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}

/// Seven incarnations of the manager are killed as soon as they run. The next ones start
/// after pauses; runtimes and their flows wait.
fn it_is_never_given_up(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 40)?;
    network.wait_protected()?;
    let before = network.running.status()?;
    let mut last = role(&before, "manager")?.pid;
    let is_manager = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line == *b"holdfast\0manager\0")
    };
    for _ in 0..7 {
        signal_pid(last, Signal::KILL)?;
        last = until("the next incarnation begins", TIMEOUT, interrupt, || {
            Ok(network
                .topology
                .router
                .pids()?
                .into_iter()
                .find(|pid| *pid != last && is_manager(pid)))
        })?;
    }
    let status = until("it serves", RECOVERY_LIMIT, interrupt, || {
        let is_back =
            |status: &Status| role(status, "manager").is_ok_and(|manager| manager.pid == last);
        Ok(network
            .running
            .status()
            .ok()
            .filter(|status| status.protected() == Protected::Yes && is_back(status)))
    })?;
    ensure_same(before.runtimes(), &status)?;
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}

/// A runtime ends after each start, and there is a pause of seconds before the next one.
/// Without the manager nothing goes through; its next incarnation serves the flows of the
/// other runtimes at once.
fn it_does_not_wait_for_a_runtime(interrupt: &Interrupt) -> Result<()> {
    const STARTS: usize = 9;
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 40)?;
    network.wait_protected()?;
    let ending = network.running.status()?.runtimes().next().context("no runtime")?.id;
    let is_it = |process: &&Process| process.role == "runtime" && process.id == ending;
    let find = |status: &Status| status.processes.iter().find(is_it).cloned();
    let mut last = 0;
    for _ in 0..STARTS {
        last = until("the runtime starts", TIMEOUT, interrupt, || {
            let now = network.running.status().ok().as_ref().and_then(find);
            Ok(now.map(|now| now.pid).filter(|pid| ![0, last].contains(pid)))
        })?;
        signal_pid(last, Signal::KILL)?;
    }
    let is_away = |status: &Status| find(status).is_some_and(|now| now.state == "failed");
    network.running.wait_for("its end is known", TIMEOUT, interrupt, is_away)?;
    let manager = role(&network.running.status()?, "manager")?;
    signal_pid(manager.pid, Signal::KILL)?;
    wait_for_next(&network, &manager, RECOVERY_LIMIT, interrupt)?;
    ensure_unbroken(&held, interrupt)?;
    let after = network.running.status()?;
    ensure!(is_away(&after), "the runtime is back already: {:?}", find(&after));
    drop(held);
    network.stop()
}

/// Both are killed at once: the coordinator's knowledge is in its log, the manager's
/// comes from the runtimes.
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
