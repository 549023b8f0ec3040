//! The coordinator is killed, stopped, and loses its log: traffic goes on, and a failure
//! in the meantime is recovered when the coordinator is back.

use anyhow::{Context, Result, bail, ensure};
use holdfast_control::status::{Process, Protected, STATE_AWAY, STATE_RUNNING};
use holdfast_lab::process::signal_pid;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::TIMEOUT;
use holdfast_tests::network::{Chain, Network, Options, RECOVERY_LIMIT, SERVER, VIRTUAL};
use holdfast_tests::runner::{Test, alone, light};
use holdfast_tests::verdict::{ensure_same, ensure_unbroken};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// The guard's own limit for a coordinator that has only ended.
const BACK: Duration = Duration::from_secs(1);

pub(crate) fn tests() -> Vec<Test> {
    vec![
        alone(
            "how soon it is back is measured",
            "a_killed_coordinator_is_back_within_a_second",
            1,
            &[NGINX],
            a_killed_coordinator_is_back_within_a_second,
        ),
        light(
            "connections_come_and_go_while_it_stands_still",
            3,
            &[NGINX],
            connections_come_and_go_while_it_stands_still,
        ),
        light(
            "a_runtime_that_dies_meanwhile_is_recovered",
            2,
            &[NGINX],
            a_runtime_that_dies_meanwhile_is_recovered,
        ),
        light("rules_and_orders_outlive_it", 1, &[NGINX], rules_and_orders_outlive_it),
        light("a_lost_log_does_not_end_the_box", 2, &[NGINX], a_lost_log_does_not_end_the_box),
        light(
            "incarnations_go_on_in_a_state_directory",
            2,
            &[],
            incarnations_go_on_in_a_state_directory,
        ),
    ]
}

fn coordinator(network: &Network) -> Result<Process> {
    let status = network.running.status()?;
    let found = status.processes.iter().find(|process| process.role == "coordinator");
    found.cloned().with_context(|| format!("no coordinator in {status:?}"))
}

/// Waits for an incarnation later than this one.
fn wait_for_next(
    network: &Network,
    last: &Process,
    limit: Duration,
    interrupt: &Interrupt,
) -> Result<Process> {
    until("the coordinator is back", limit, interrupt, || {
        let now = coordinator(network)?;
        Ok((now.incarnation > last.incarnation
            && now.state == STATE_RUNNING
            && now.pid != last.pid)
            .then_some(now))
    })
}

/// The coordinator is killed three times under connections and numbered datagrams. No
/// connection breaks, no datagram is lost, and the box reports its runtimes correctly all
/// the time.
fn a_killed_coordinator_is_back_within_a_second(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 40)?;
    let (_echo, stream) = network.stream(20, 500)?;
    network.wait_protected()?;
    let before = network.running.status()?;
    for _ in 0..3 {
        let last = coordinator(&network)?;
        ensure!(
            last.pid != network.running.process().pid(),
            "it is a process of its own: {last:?}"
        );
        let killed = Instant::now();
        signal_pid(last.pid, Signal::KILL)?;
        wait_for_next(&network, &last, RECOVERY_LIMIT, interrupt)?;
        ensure!(killed.elapsed() < BACK, "it was back after {:?}", killed.elapsed());
        network.wait_protected()?;
        ensure_unbroken(&held, interrupt)?;
    }
    let after = network.running.status()?;
    ensure_same(before.runtimes(), &after)?;
    ensure!(after.failovers.is_empty(), "nobody has failed: {:?}", after.failovers);
    let datagrams = stream.finish();
    ensure!((datagrams.lost, datagrams.doubled, datagrams.changed) == (0, 0, 0), "{datagrams:?}");
    drop(held);
    network.stop()
}

/// The coordinator is stopped; meanwhile new connections are opened and old ones go on.
/// The guard then kills it, and its next incarnation knows every runtime.
fn connections_come_and_go_while_it_stands_still(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let old = network.hold(VIRTUAL, 20)?;
    network.wait_protected()?;
    for _ in 0..5 {
        let last = coordinator(&network)?;
        signal_pid(last.pid, Signal::STOP)?;
        let new = network.hold(VIRTUAL, 20)?;
        let connections = [old.verify(interrupt)?, new.verify(interrupt)?];
        ensure!(connections.iter().all(|connections| connections.broken == 0), "{connections:?}");
        let was_meanwhile = coordinator(&network)?.incarnation == last.incarnation;
        wait_for_next(&network, &last, TIMEOUT, interrupt)?;
        network.wait_protected()?;
        let connections = [old.verify(interrupt)?, new.verify(interrupt)?];
        ensure!(
            connections.iter().all(|connections| connections.broken == 0),
            "afterwards: {connections:?}"
        );
        if was_meanwhile {
            ensure!(network.running.status()?.failovers.is_empty());
            drop((old, new));
            return network.stop();
        }
        // On a machine this busy the guard was faster than the connections: try again.
    }
    bail!("the guard was faster than the connections five times")
}

/// The busiest runtime dies while the coordinator is stopped: its flows wait, no runtime
/// is told, and the status reports an unsafe box. The coordinator's next incarnation
/// hears of the death from the manager and orders the recovery.
fn a_runtime_that_dies_meanwhile_is_recovered(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 60)?;
    network.wait_protected()?;
    let last = coordinator(&network)?;
    let victim = network.running.busiest(None)?;
    signal_pid(last.pid, Signal::STOP)?;
    signal_pid(victim.pid, Signal::KILL)?;
    network.running.wait_for(
        "the box knows that it is not safe",
        TIMEOUT,
        interrupt,
        |status| status.protected() != Protected::Yes,
    )?;
    signal_pid(last.pid, Signal::KILL)?;
    let failover = network.wait_recovered(&victim)?;
    ensure!(failover.flows > 0 && failover.lost == 0, "{failover:?}");
    network.wait_protected()?;
    ensure_unbroken(&held, interrupt)?;
    let after = network.running.status()?;
    let successor = after.runtime(victim.id).context("its place is taken")?;
    ensure!(successor.incarnation > victim.incarnation, "{successor:?}");
    drop(held);
    network.stop()
}

/// Rules are applied, and the coordinator is killed: the new rules stay in force, not the
/// initial ones. Its next incarnation takes orders: flows move, other rules are applied,
/// and a drained runtime stays out of service although the coordinator is killed again.
fn rules_and_orders_outlive_it(interrupt: &Interrupt) -> Result<()> {
    let options = Options::protected(Chain::Edge);
    let text = options.configuration();
    let mut network = Network::start(&options, interrupt)?;
    network.serve_web()?;
    let held = network.hold(&format!("{SERVER}:80"), 30)?;
    network.wait_protected()?;
    let apply = |network: &Network, port: u16| -> Result<()> {
        let rules = format!(
            "rules:\n  - {{ proto: tcp, ports: {port}, chain: office }}\n  - {{ chain: office }}"
        );
        let file =
            network.lab.write("new.yaml", text.replace("rules:\n  - { chain: office }", &rules))?;
        network.running.ask(&format!("apply {}", file.display())).map(|_| ())
    };
    let rules = |network: &Network| -> Result<(u64, bool)> {
        let rules = network.running.status()?.rules.context("the status has no rules")?;
        Ok((rules.version, rules.in_force))
    };
    let kill = |network: &Network| -> Result<()> {
        let last = coordinator(network)?;
        signal_pid(last.pid, Signal::KILL)?;
        wait_for_next(network, &last, RECOVERY_LIMIT, interrupt)?;
        Ok(())
    };
    apply(&network, 81)?;
    ensure!(rules(&network)? == (2, true));
    kill(&network)?;
    network.wait_protected()?;
    ensure!(rules(&network)? == (2, true), "{:?}", rules(&network)?);
    let source = network.running.busiest(None)?;
    network.running.ask(&format!("migrate --from {}", source.id))?;
    let left = network.running.status()?.runtime(source.id).map_or(0, |process| process.flows);
    ensure!(left == 0, "{left} flows are still at runtime {}", source.id);
    apply(&network, 82)?;
    ensure!(rules(&network)? == (3, true), "{:?}", rules(&network)?);
    network.running.ask(&format!("drain {}", source.id))?;
    kill(&network)?;
    network.wait_protected()?;
    let status = network.running.status()?;
    let drained = status.runtime(source.id).context("it is listed")?;
    ensure!(
        drained.pid == 0 && drained.incarnation == source.incarnation,
        "it is not started again: {drained:?}"
    );
    let connections = held.verify(interrupt)?;
    ensure!(
        connections.broken == 0 && status.failovers.is_empty(),
        "{connections:?} {:?}",
        status.failovers
    );
    drop(held);
    network.stop()
}

/// The coordinator's log is overwritten, and the coordinator is killed. Its next
/// incarnations report the error and are started more and more rarely, and the box
/// forwards without a coordinator.
fn a_lost_log_does_not_end_the_box(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 20)?;
    network.wait_protected()?;
    let mut log = network.running.control().as_os_str().to_owned();
    log.push(".coordinator");
    let last = coordinator(&network)?;
    signal_pid(last.pid, Signal::KILL)?;
    // The next incarnation finds this log when it starts, unless it has read the log
    // before.
    std::fs::write(&log, [0x5a; 5000])?;
    let mut seen = (0, Instant::now());
    until("the coordinator is away for good", TIMEOUT, interrupt, || {
        let now = coordinator(&network)?;
        if now.incarnation != seen.0 {
            seen = (now.incarnation, Instant::now());
        }
        if now.state == STATE_RUNNING && seen.1.elapsed() > Duration::from_secs(1) {
            // The incarnation has read the log before it was overwritten, or it would
            // have ended.
            let _ = signal_pid(now.pid, Signal::KILL);
        }
        Ok((now.state == STATE_AWAY && now.incarnation > last.incarnation + 2).then_some(()))
    })?;
    let said = network.running.process().stderr();
    ensure!(
        said.contains("the coordinator's log") && said.contains("traffic goes on meanwhile"),
        "{said}"
    );
    let more = network.hold(VIRTUAL, 10)?;
    let connections = [held.verify(interrupt)?, more.verify(interrupt)?];
    ensure!(connections.iter().all(|connections| connections.broken == 0), "{connections:?}");
    let status = network.running.status()?;
    ensure!(status.protected() != Protected::Yes && status.runtimes().count() == 3, "{status:?}");
    drop((held, more));
    network.stop()
}

/// A box is stopped and started again with the same state directory: no incarnation is
/// used twice.
fn incarnations_go_on_in_a_state_directory(interrupt: &Interrupt) -> Result<()> {
    let directory = std::env::temp_dir().join(format!("hf-state-{}", std::process::id()));
    let more: &'static str =
        Box::leak(format!("state: {}\n", directory.display()).into_boxed_str());
    let mut highest = 0;
    for _ in 0..2 {
        let network =
            Network::start(&Options { more, ..Options::protected(Chain::Edge) }, interrupt)?;
        let status = network.running.status()?;
        let incarnations: Vec<u64> = status.runtimes().map(|process| process.incarnation).collect();
        ensure!(
            incarnations.iter().all(|incarnation| *incarnation > highest),
            "{incarnations:?} after {highest}"
        );
        highest = incarnations.into_iter().max().unwrap_or(0);
        network.stop()?;
    }
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}
