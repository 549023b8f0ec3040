//! A runtime that stops answering is not dead: its flows move all the same, and when it
//! wakes it may release no packet.

use anyhow::{Result, ensure};
use holdfast_lab::process::signal_pid;
use holdfast_lab::requirements::*;
use holdfast_lab::running::Victim;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::TIMEOUT;
use holdfast_tests::network::{Chain, Network, Options, VIRTUAL};
use holdfast_tests::runner::{Test, light};
use rustix::process::Signal;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light(
            "a_stopped_runtime_loses_its_flows_to_others",
            3,
            &[NGINX],
            a_stopped_runtime_loses_its_flows_to_others,
        ),
        light("a_woken_runtime_releases_nothing", 4, &[], a_woken_runtime_releases_nothing),
    ]
}

/// With this time-out a stopped runtime is given up, and a runtime that only waits for a
/// core is not.
const SOON: &str = "detection: { hang_ms: 1500 }\n";

/// Stops the busiest runtime and waits until the box has replaced it.
fn stop_busiest(network: &Network) -> Result<Victim> {
    network.wait_protected()?;
    let victim = network.running.busiest(None)?;
    signal_pid(victim.pid, Signal::STOP)?;
    network.wait_recovered(&victim)?;
    Ok(victim)
}

fn wake(victim: &Victim) -> Result<()> {
    // The box may have killed it meanwhile, to get its buffers back; this is no error.
    signal_pid(victim.pid, Signal::CONT)
}

/// True if another process has the victim's place, or none.
fn is_deposed(network: &Network, victim: &Victim) -> Result<bool> {
    let status = network.running.status()?;
    let current = status.runtime(victim.id);
    Ok(current.is_none_or(|process| {
        process.incarnation > victim.incarnation && process.pid != victim.pid
    }))
}

fn a_stopped_runtime_loses_its_flows_to_others(interrupt: &Interrupt) -> Result<()> {
    let mut network =
        Network::start(&Options { more: SOON, ..Options::protected(Chain::Balanced) }, interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 60)?;
    let victim = stop_busiest(&network)?;
    let connections = held.verify(interrupt)?;
    ensure!(connections.broken == 0, "while it is stopped: {connections:?}");
    wake(&victim)?;
    let connections = held.verify(interrupt)?;
    ensure!(connections.broken == 0, "after it woke: {connections:?}");
    until("the woken runtime is deposed", TIMEOUT, interrupt, || {
        Ok(is_deposed(&network, &victim)?.then_some(()))
    })?;
    network.wait_protected()?;
    let connections = held.verify(interrupt)?;
    ensure!(connections.broken == 0, "protected again: {connections:?}");
    drop(held);
    network.stop()
}

/// Packets that were in the runtime's rings when it stopped could leave when it wakes.
/// Each datagram has a number, so a datagram that came twice would be seen.
fn a_woken_runtime_releases_nothing(interrupt: &Interrupt) -> Result<()> {
    let network =
        Network::start(&Options { more: SOON, ..Options::protected(Chain::Edge) }, interrupt)?;
    let (_echo, stream) = network.stream(30, 1000)?;
    let victim = stop_busiest(&network)?;
    let returned = stream.datagrams().returned;
    until("datagrams return", TIMEOUT, interrupt, || {
        Ok((stream.datagrams().returned > returned + 300).then_some(()))
    })?;
    let before = stream.datagrams();
    wake(&victim)?;
    until("the woken runtime is deposed", TIMEOUT, interrupt, || {
        Ok(is_deposed(&network, &victim)?.then_some(()))
    })?;
    until("datagrams return", TIMEOUT, interrupt, || {
        Ok((stream.datagrams().returned > before.returned + 300).then_some(()))
    })?;
    let datagrams = stream.finish();
    ensure!((datagrams.doubled, datagrams.changed) == (0, 0), "{datagrams:?}");
    // A number from before the failover that returns only after the waking must come from
    // the woken runtime.
    ensure!(datagrams.reordered == before.reordered, "before {before:?}, after {datagrams:?}");
    ensure!(datagrams.flows_alive == 30, "{datagrams:?}");
    network.stop()
}
