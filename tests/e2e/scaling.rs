//! A cluster grows under load and shrinks after it, by itself, and no flow notices:
//! scaling in is a planned move, not a failure.

use anyhow::{Result, ensure};
use holdfast_control::status::{STATE_RUNNING, Status};
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, keepalive, udp};
use holdfast_tests::TIMEOUT;
use holdfast_tests::network::{Chain, Network, Options, SERVER, many, socket};
use holdfast_tests::runner::{Test, alone};
use holdfast_tests::verdict::ensure_unbroken;
use std::time::Duration;

/// Two or three runtimes. The load that makes a runtime busy depends on the machine, so
/// the test adds load until it is enough. The calm must last for fifteen seconds, so that
/// the numbered datagrams run long before the cluster shrinks. A runtime that gets no
/// processor for a while is no failure here.
const ELASTIC: &str = "scaling: { period_ms: 200, busy_percent: 20, idle_percent: 15, calm_periods: 75 }\ndetection: { hang_ms: 10000 }\n";
/// Time limit for growing or shrinking.
const LIMIT: Duration = Duration::from_secs(90);
/// The time that one step of the load has to make the cluster grow.
const STEP: Duration = Duration::from_secs(2);
/// Datagrams per second of one step of the load, and the largest number of steps.
const LOAD: u64 = 5_000;
const STEPS: usize = 40;

pub(crate) fn tests() -> Vec<Test> {
    vec![alone(
        "how busy the runtimes are is its subject",
        "a_cluster_grows_and_shrinks_and_no_flow_notices",
        39,
        &[NGINX],
        a_cluster_grows_and_shrinks_and_no_flow_notices,
    )]
}

fn count(status: &Status, state: &str) -> usize {
    status.runtimes().filter(|process| process.state == state).count()
}

/// Adds load until a third runtime serves; the load goes on until the result is dropped.
fn load_until_it_grows(network: &Network, interrupt: &Interrupt) -> Result<Vec<udp::Stream>> {
    let mut load = Vec::new();
    for step in 1..=STEPS {
        let plan =
            udp::Plan { server: socket(&format!("{SERVER}:7007")), flows: 20, per_second: LOAD };
        load.push(udp::Stream::start(&network.topology.client, plan)?);
        let has_grown = |status: &Status| count(status, STATE_RUNNING) == 3;
        match network.running.wait_for("the cluster has grown", STEP, interrupt, has_grown) {
            Ok(_) => break,
            Err(error) if step == STEPS => return Err(error),
            Err(_) => {}
        }
    }
    Ok(load)
}

/// Two runtimes serve 300 connections. Datagrams overload them: a third runtime starts
/// and gets flows. The datagrams stop: one runtime leaves, no connection breaks, and no
/// numbered datagram is lost, doubled or reordered. The runtime's slot is spare, and
/// leaving was no failure.
fn a_cluster_grows_and_shrinks_and_no_flow_notices(interrupt: &Interrupt) -> Result<()> {
    let options = Options { more: ELASTIC, ..Options::protected(Chain::Balanced) };
    let configuration = options.configuration().replace("{ min: 3, max: 3 }", "{ min: 2, max: 3 }");
    let mut network = Network::start_with(&options, &configuration, interrupt)?;
    network.serve_web()?;
    let status = network.running.status()?;
    ensure!(
        (count(&status, STATE_RUNNING), count(&status, "spare")) == (2, 1),
        "at first: {status:?}"
    );
    let held = keepalive::KeepAlive::open(&network.topology.client, &many(300), interrupt)?;

    let (_echo, first) = network.stream(1, 10)?;
    drop(first);
    let load = load_until_it_grows(&network, interrupt)?;
    let has_flows = |status: &Status| status.runtimes().all(|process| process.flows > 0);
    network.running.wait_for(
        "flows have moved to the third runtime",
        LIMIT,
        interrupt,
        has_flows,
    )?;
    drop(load);

    let numbered = || {
        let server = socket(&format!("{SERVER}:7007"));
        udp::Stream::start(
            &network.topology.client,
            udp::Plan { server, flows: 60, per_second: 600 },
        )
    };
    // The load may still cost datagrams that wait in its queues or behind them: the count
    // begins when no more are lost.
    holdfast_lab::until("the load's queues are empty", LIMIT, interrupt, || {
        let probe = numbered()?;
        holdfast_lab::until("the probe is sent", LIMIT, interrupt, || {
            Ok((probe.datagrams().sent >= 600).then_some(()))
        })?;
        let datagrams = probe.finish();
        Ok(((datagrams.lost, datagrams.changed) == (0, 0)).then_some(()))
    })?;
    let ledger = numbered()?;
    holdfast_lab::until("numbered datagrams return", TIMEOUT, interrupt, || {
        Ok((ledger.datagrams().returned > 0).then_some(()))
    })?;
    let status = network.running.status()?;
    let failures = status.failovers.len();
    ensure!(
        count(&status, STATE_RUNNING) == 3,
        "it has shrunk before the datagrams were counted: {status:?}"
    );
    network.running.wait_for("the cluster has shrunk", LIMIT, interrupt, |status| {
        (count(status, STATE_RUNNING), count(status, "spare")) == (2, 1)
    })?;
    let midway = ledger.datagrams();
    network.wait_protected()?;
    ensure_unbroken(&held, interrupt)?;
    let datagrams = ledger.finish();
    let (before, after) = (&status.drops, network.running.status()?.drops);
    ensure!(
        (datagrams.lost, datagrams.reordered, datagrams.doubled, datagrams.changed) == (0, 0, 0, 0),
        "{datagrams:?}, under way {midway:?}; drops before {before:?}, after {after:?}"
    );
    ensure!(datagrams.flows_alive == 60, "{datagrams:?}");
    let status = network.running.status()?;
    ensure!(status.failovers.len() == failures, "to leave is no failure: {:?}", status.failovers);
    drop(held);
    network.stop()
}
