//! The coordinator is elected through etcd: the coordinator dies, and etcd dies. Traffic
//! goes on, and the coordinator's decisions are there when it is back.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Process, STATE_CANDIDATE, STATE_RUNNING};
use holdfast_lab::etcd::Etcd;
use holdfast_lab::process::signal_pid;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::TIMEOUT;
use holdfast_tests::network::{Chain, Network, Options, RECOVERY_LIMIT, VIRTUAL};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::verdict::{ensure_same, ensure_unbroken};
use rustix::process::Signal;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light(
            "a_killed_coordinator_finds_its_log_in_etcd",
            2,
            &[NGINX, ETCD],
            a_killed_coordinator_finds_its_log_in_etcd,
        ),
        light(
            "connections_come_and_go_while_etcd_is_away",
            7,
            &[NGINX, ETCD],
            connections_come_and_go_while_etcd_is_away,
        ),
    ]
}

/// The office with an etcd in the box's own namespace.
fn start(interrupt: &Interrupt) -> Result<(Network, Etcd)> {
    let options = Options::protected(Chain::Balanced);
    // The port is chosen in the namespace, which is made with the box's network.
    let mut etcd = None;
    let network = Network::start_after(&options, interrupt, |lab, topology| {
        let home = lab.scratch().join("etcd");
        std::fs::create_dir(&home)?;
        let server = Etcd::start(&home, Some(&topology.router), None, interrupt)?;
        let text = format!(
            "{}etcd: {{ endpoints: [\"{}\"] }}\n",
            options.configuration(),
            server.endpoint()
        );
        etcd = Some(server);
        Ok(text)
    })?;
    Ok((network, etcd.context("it was started with the network")?))
}

fn coordinator(network: &Network) -> Result<Process> {
    let status = network.running.status()?;
    let found = status.processes.iter().find(|process| process.role == "coordinator");
    found.cloned().with_context(|| format!("no coordinator in {status:?}"))
}

/// Waits for a coordinator that was elected after this one.
fn wait_for_next(network: &Network, last: &Process, interrupt: &Interrupt) -> Result<Process> {
    until("another coordinator leads", RECOVERY_LIMIT, interrupt, || {
        let now = coordinator(network)?;
        Ok((now.incarnation > last.incarnation && now.state == STATE_RUNNING).then_some(now))
    })
}

/// The coordinator is killed together with the busiest runtime, under connections. Its
/// next incarnation has the log and recovers the runtime, and no connection breaks.
fn a_killed_coordinator_finds_its_log_in_etcd(interrupt: &Interrupt) -> Result<()> {
    let (mut network, _etcd) = start(interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 40)?;
    network.wait_protected()?;
    let before = network.running.status()?;
    let last = coordinator(&network)?;
    let victim = network.running.busiest(None)?;
    signal_pid(last.pid, Signal::KILL)?;
    signal_pid(victim.pid, Signal::KILL)?;
    wait_for_next(&network, &last, interrupt)?;
    let failover = network.wait_recovered(&victim)?;
    ensure!(failover.flows > 0 && failover.lost == 0, "{failover:?}");
    network.wait_protected()?;
    ensure_unbroken(&held, interrupt)?;
    ensure_same(before.runtimes().filter(|old| old.id != victim.id), &network.running.status()?)?;
    drop(held);
    network.stop()
}

/// etcd is stopped, and then killed: no coordinator leads, existing connections go on,
/// and new ones are opened. With etcd back a coordinator is elected that knows every
/// runtime, and a runtime is drained without a broken connection.
fn connections_come_and_go_while_etcd_is_away(interrupt: &Interrupt) -> Result<()> {
    let (mut network, mut etcd) = start(interrupt)?;
    network.serve_web()?;
    let old = network.hold(VIRTUAL, 20)?;
    network.wait_protected()?;
    for is_killed in [false, true] {
        let last = coordinator(&network)?;
        match is_killed {
            false => etcd.signal(Signal::STOP)?,
            true => etcd.kill(interrupt)?,
        }
        let status = network.running.wait_for(
            "the box says that etcd is away",
            TIMEOUT,
            interrupt,
            |status| {
                let is_candidate = status
                    .processes
                    .iter()
                    .any(|role| role.role == "coordinator" && role.state == STATE_CANDIDATE);
                is_candidate
                    && status.election.as_ref().is_some_and(|election| election.silent_ms.is_some())
            },
        )?;
        ensure!(status.runtimes().all(|runtime| runtime.state == STATE_RUNNING), "{status:?}");
        let new = network.hold(VIRTUAL, 20)?;
        ensure_unbroken(&old, interrupt)?;
        ensure_unbroken(&new, interrupt)?;
        match is_killed {
            false => etcd.signal(Signal::CONT)?,
            true => etcd.start_again(interrupt)?,
        }
        wait_for_next(&network, &last, interrupt)?;
        network.wait_protected()?;
        ensure_unbroken(&old, interrupt)?;
        ensure_unbroken(&new, interrupt)?;
    }
    ensure!(network.running.status()?.failovers.is_empty(), "nobody has failed");
    let source = network.running.busiest(None)?;
    network.running.ask(&format!("drain {}", source.id))?;
    ensure_unbroken(&old, interrupt)?;
    drop(old);
    network.stop()
}
