//! A box of three hosts whose serving host dies: the times until it is missed, and until
//! another one serves.

use anyhow::{Result, ensure};
use holdfast_io::process::Clock;
use holdfast_lab::Interrupt;
use holdfast_lab::requirements::*;
use holdfast_lab::udp::Datagrams;
use holdfast_lab::until;
use holdfast_tests::TIMEOUT;
use holdfast_tests::cluster::{Cluster, SERVING, WITNESS};
use holdfast_tests::runner::{Test, alone, cluster};
use std::time::Duration;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        alone(
            "when a host is missed is measured",
            "service_passes_before_two_timeouts_have_passed",
            14,
            &[NGINX, NFT],
            service_passes_before_two_timeouts_have_passed,
        ),
        cluster(
            "planned_ends_wait_for_no_detection",
            20,
            &[NGINX, NFT],
            planned_ends_wait_for_no_detection,
        ),
    ]
}

/// The host time-out, ms: long enough that the machine's other load matters little.
const HOST_MS: u64 = 1_500;

/// Datagrams per second.
const PER_SECOND: u64 = 500;

/// The serving host is killed under traffic. Its runtimes are given up when it has been
/// silent for the time-out, and not before. The other host does not wait for a second
/// time-out, because every host has missed the dead one for that long.
fn service_passes_before_two_timeouts_have_passed(interrupt: &Interrupt) -> Result<()> {
    let timeout = Duration::from_millis(HOST_MS);
    let mut cluster = Cluster::start_missing_after(HOST_MS, interrupt)?;
    let [first, second] = cluster.serving()?;
    let (_echo, stream) = cluster.stream(20, PER_SECOND)?;
    cluster.wait_safe()?;
    // A coordinator that has just started first gives every host time to be heard.
    let enough = 1_000 + PER_SECOND * 4 * HOST_MS / 1_000;
    until("datagrams return for a while", TIMEOUT, interrupt, || {
        Ok((stream.datagrams().returned > enough).then_some(()))
    })?;
    let dead: Vec<u32> = cluster
        .on(second)?
        .status()?
        .runtimes()
        .filter(|one| one.host == first)
        .map(|one| one.id)
        .collect();
    let killed_at = Clock::new().now();
    cluster.kill(first)?;
    let status = cluster.wait_for(
        second,
        "the dead host's runtimes are given up, and their flows recovered",
        |status| {
            dead.iter().all(|id| {
                status
                    .failovers
                    .iter()
                    .any(|failover| failover.runtime == *id && failover.recovered_us.is_some())
            })
        },
    )?;
    let returned = stream.datagrams().returned;
    until("datagrams return", TIMEOUT, interrupt, || {
        Ok((stream.datagrams().returned > returned + 300).then_some(()))
    })?;
    let datagrams = stream.finish();
    let silence = Duration::from_micros(datagrams.longest_silence_us);
    let detected = |failover: &holdfast_control::status::Failover| {
        Duration::from_nanos(failover.detected_at_ns.saturating_sub(killed_at))
    };
    let detected: Vec<Duration> = status.failovers.iter().map(detected).collect();
    // A beat may be on its way when the host dies.
    let least = timeout.mul_f64(0.75);
    ensure!(
        detected.len() == dead.len()
            && detected.iter().all(|detected| *detected > least && *detected < timeout * 2),
        "{detected:?}"
    );
    ensure!(silence > timeout && silence < timeout * 2, "{silence:?}, detected after {detected:?}");
    ensure!(
        datagrams.flows_alive == 20 && (datagrams.doubled, datagrams.changed) == (0, 0),
        "{datagrams:?}"
    );
    cluster.stop()
}

/// Flows, and datagrams per second of all of them: each flow has a datagram every few
/// milliseconds.
const PLANNED: (usize, u64) = (8, 2_000);

/// The serving host is drained, and restored; then the host that serves meanwhile is
/// ended by SIGTERM. The host time-out is seconds here, and each time another host serves
/// long before: no host waits for a silence.
fn planned_ends_wait_for_no_detection(interrupt: &Interrupt) -> Result<()> {
    let mut cluster = Cluster::start_missing_after(2 * HOST_MS, interrupt)?;
    cluster.wait_serving(WITNESS, SERVING[0])?;
    let drained = through(&mut cluster, interrupt, |cluster| {
        cluster.on(WITNESS)?.ask(&format!("drain {}", SERVING[0]))?;
        cluster.wait_serving(WITNESS, SERVING[1]).map(drop)
    })?;
    cluster.on(WITNESS)?.ask(&format!("restore {}", SERVING[0]))?;
    let ended = through(&mut cluster, interrupt, |cluster| {
        cluster.end(SERVING[1])?;
        cluster.wait_serving(WITNESS, SERVING[0]).map(drop)
    })?;
    // A quarter of the host time-out.
    let bound = Duration::from_millis(HOST_MS / 2);
    for (what, datagrams) in [("drained", drained), ("ended", ended)] {
        let silence = Duration::from_micros(datagrams.longest_silence_us);
        ensure!(silence < bound, "{what}: {silence:?}, {datagrams:?}");
        ensure!(
            (datagrams.doubled, datagrams.changed, datagrams.flows_alive) == (0, 0, PLANNED.0),
            "{what}: {datagrams:?}"
        );
    }
    cluster.stop()
}

/// Returns the datagrams sent and returned while service moved.
fn through(
    cluster: &mut Cluster,
    interrupt: &Interrupt,
    act: impl FnOnce(&mut Cluster) -> Result<()>,
) -> Result<Datagrams> {
    let (_echo, stream) = cluster.stream(PLANNED.0, PLANNED.1)?;
    cluster.wait_safe()?;
    let go_on = || {
        let returned = stream.datagrams().returned;
        until("datagrams return", TIMEOUT, interrupt, || {
            Ok((stream.datagrams().returned > returned + PLANNED.1 / 2).then_some(()))
        })
    };
    go_on()?;
    act(cluster)?;
    go_on()?;
    Ok(stream.finish())
}
