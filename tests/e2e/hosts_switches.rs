//! A box of three hosts, two of which serve ports at the same time, each with a switch of
//! its own. A host dies, and the other serves both switches' ports.

use anyhow::{Context, Result, ensure};
use holdfast_lab::Interrupt;
use holdfast_lab::requirements::*;
use holdfast_tests::cluster::{Cluster, SERVING, WITNESS};
use holdfast_tests::network::VIRTUAL;
use holdfast_tests::runner::{Test, cluster};
use holdfast_tests::verdict::ensure_unbroken;

pub(crate) fn tests() -> Vec<Test> {
    vec![cluster(
        "hosts_of_two_switches_die_one_after_the_other",
        9,
        &[NGINX, NFT],
        hosts_of_two_switches_die_one_after_the_other,
    )]
}

/// Frames that a host has taken from a port.
fn received(cluster: &Cluster, host: &str, port: &str) -> Result<u64> {
    let status = cluster.on(host)?.status()?;
    status
        .ports
        .iter()
        .find(|known| known.name == port)
        .map(|known| known.received)
        .context("a port of the box")
}

/// The office's connections go by one host, the depot's by the other. A host dies with
/// its runtimes: all connections of both live on, and the other host serves both. The
/// dead host comes back; when everything is safe again the other one dies, which has all
/// the flows.
fn hosts_of_two_switches_die_one_after_the_other(interrupt: &Interrupt) -> Result<()> {
    let mut cluster = Cluster::start_switches(interrupt)?;
    cluster.wait_switches(WITNESS, [("east", SERVING[0]), ("west", SERVING[1])])?;
    let (office, depot) = (cluster.hold(VIRTUAL, 60)?, cluster.hold_depot(60)?);
    ensure_unbroken(&office, interrupt)?;
    ensure_unbroken(&depot, interrupt)?;
    for (own, other, at) in [("lan", "lan2", 0), ("lan2", "lan", 1)] {
        let (mine, theirs) =
            (received(&cluster, SERVING[at], own)?, received(&cluster, SERVING[at], other)?);
        ensure!(
            mine > 100 && theirs == 0,
            "{} has taken {mine} frames from {own} and {theirs} from {other}",
            SERVING[at]
        );
    }
    for (dead, living) in [(0, 1), (1, 0)] {
        cluster.wait_safe()?;
        cluster.kill(SERVING[dead])?;
        cluster.wait_switches(WITNESS, [("east", SERVING[living]), ("west", SERVING[living])])?;
        ensure_unbroken(&office, interrupt)
            .with_context(|| format!("the office, {} is dead", SERVING[dead]))?;
        ensure_unbroken(&depot, interrupt)
            .with_context(|| format!("the depot, {} is dead", SERVING[dead]))?;
        let new = (cluster.hold(VIRTUAL, 20)?, cluster.hold_depot(20)?);
        ensure!(
            new.0.verify(interrupt)?.alive == 20 && new.1.verify(interrupt)?.alive == 20,
            "new connections begin at both"
        );
        cluster.begin(SERVING[dead])?;
    }
    cluster.wait_safe()?;
    ensure_unbroken(&office, interrupt)?;
    ensure_unbroken(&depot, interrupt)?;
    drop((office, depot));
    cluster.stop()
}
