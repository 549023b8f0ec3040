//! A box of three hosts whose network damages frames, with a key and without. No host or
//! runtime is given up, no flow breaks, and the box is safe again afterwards.

use anyhow::{Result, ensure};
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::cluster::Cluster;
use holdfast_tests::network::VIRTUAL;
use holdfast_tests::runner::{Test, cluster};
use holdfast_tests::verdict::{ensure_same, ensure_unbroken};
use holdfast_tests::{TIMEOUT, soak};
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        cluster("a_network_that_damages_frames_without_a_key", 15, &[NGINX, NFT], |interrupt| {
            through_damage(Cluster::start_without_key(interrupt)?, &["damaged"], interrupt)
        }),
        cluster("a_network_that_damages_frames_with_a_key", 15, &[NGINX, NFT], |interrupt| {
            through_damage(
                Cluster::start(interrupt)?,
                &["unauthenticated", "malformed_fabric", "unknown_key"],
                interrupt,
            )
        }),
    ]
}

/// Frames, on average, of which one is damaged.
const ONE_IN: usize = 1_000;
const FLOWS: usize = 60;

/// Damages frames under connections and datagrams. `reasons` are the drop reasons that
/// count damaged frames.
fn through_damage(cluster: Cluster, reasons: &[&str], interrupt: &Interrupt) -> Result<()> {
    let held = cluster.hold(VIRTUAL, FLOWS)?;
    let (_echo, stream) = cluster.stream(FLOWS, 2_000)?;
    cluster.wait_safe()?;
    let all = || cluster.living().map(|running| running.status()).collect::<Result<Vec<_>>>();
    let before = all()?;
    cluster.hosts.damage(ONE_IN)?;
    let (began_at, lasts) = (Instant::now(), Duration::from_secs(if soak() { 60 } else { 4 }));
    until("frames were damaged for a while", lasts + TIMEOUT, interrupt, || {
        let now = all()?;
        let damaged = now
            .iter()
            .flat_map(|status| reasons.iter().filter_map(|reason| status.drops.get(*reason)));
        Ok((damaged.sum::<u64>() >= 4 && began_at.elapsed() >= lasts).then_some(()))
    })?;
    ensure_unbroken(&held, interrupt)?;
    let (frames, damaged) = cluster.hosts.damaged()?;
    cluster.hosts.heal()?;
    let healed_at = Instant::now();
    cluster.wait_safe()?;
    let took = healed_at.elapsed();
    ensure!(took < Duration::from_secs(if soak() { 1 } else { 5 }), "healed after {took:?}");
    let expected = frames / ONE_IN as u64;
    let most = expected + expected / 2 + 10;
    ensure!(
        (expected.max(3) / 3..=most).contains(&damaged),
        "of {frames} frames between hosts {damaged} were damaged"
    );
    // Each host knows its own processes.
    for (before, after) in before.iter().zip(all()?) {
        ensure!(after.failovers.is_empty(), "{:?}", after.failovers);
        ensure_same(before.processes.iter(), &after)?;
    }
    ensure_unbroken(&held, interrupt)?;
    let datagrams = stream.finish();
    ensure!(
        datagrams.flows_alive == FLOWS && (datagrams.doubled, datagrams.changed) == (0, 0),
        "{datagrams:?}"
    );
    drop(held);
    cluster.stop()
}
