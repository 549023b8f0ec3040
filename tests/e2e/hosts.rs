//! A box of three hosts: any host may die, or be cut off from the others, and no
//! connection breaks.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Protected, Status, UNIT_HOST};
use holdfast_lab::hosts::Cut;
use holdfast_lab::keepalive::KeepAlive;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::TIMEOUT;
use holdfast_tests::cluster::{Cluster, SERVING, WITNESS};
use holdfast_tests::network::{GIVE_UP, VIRTUAL, many};
use holdfast_tests::runner::{Test, cluster};
use holdfast_tests::transfer::LongDownload;
use holdfast_tests::verdict::{ensure_perfect, ensure_unbroken};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        cluster("each_host_dies_and_comes_back", 11, &[NGINX, NFT], each_host_dies_and_comes_back),
        cluster(
            "two_hosts_die_one_after_the_other",
            15,
            &[NGINX, NFT, CURL],
            two_hosts_die_one_after_the_other,
        ),
        cluster("the_serving_host_is_cut_off", 10, &[NGINX, NFT], the_serving_host_is_cut_off),
        cluster("a_host_is_drained_and_restored", 3, &[NGINX, NFT], a_host_is_drained_and_restored),
        cluster("service_moves_as_planned", 8, &[NGINX, NFT], service_moves_as_planned),
        cluster(
            "datagrams_through_the_death_of_a_host",
            6,
            &[NGINX, NFT],
            datagrams_through_the_death_of_a_host,
        ),
    ]
}

/// The serving host dies, then the other one, then the coordinator's; each when
/// everything is safe again.
fn each_host_dies_and_comes_back(interrupt: &Interrupt) -> Result<()> {
    let mut cluster = Cluster::start(interrupt)?;
    let held = cluster.hold(VIRTUAL, 100)?;
    cluster.wait_serving(SERVING[1], SERVING[0])?;
    for (dead, on, serving) in [
        (SERVING[0], SERVING[1], SERVING[1]),
        (SERVING[0], WITNESS, SERVING[1]),
        (SERVING[1], SERVING[0], SERVING[0]),
    ] {
        cluster.wait_safe()?;
        cluster.kill(dead)?;
        cluster.wait_serving(on, serving)?;
        ensure_unbroken(&held, interrupt).with_context(|| format!("{dead} is dead"))?;
        cluster.begin(dead)?;
    }
    cluster.wait_safe()?;
    cluster.kill(WITNESS)?;
    ensure_unbroken(&held, interrupt).context("the witness is dead")?;
    let new = cluster.hold(VIRTUAL, 20)?;
    ensure!(new.verify(interrupt)?.alive == 20, "new connections need no coordinator");
    drop((held, new));
    cluster.stop()
}

/// A thousand connections and a download. The serving host dies and comes back; when
/// everything is safe again the other one dies, which has all the flows.
fn two_hosts_die_one_after_the_other(interrupt: &Interrupt) -> Result<()> {
    let mut cluster = Cluster::start(interrupt)?;
    let held = KeepAlive::open(&cluster.hosts.client, &many(1000), interrupt)?;
    let (client, site) = (&cluster.hosts.client, &cluster.site);
    let mut download = LongDownload::start(client, site, VIRTUAL, 2_000_000, GIVE_UP, interrupt)?;
    for (dead, other) in [(0, 1), (1, 0)] {
        cluster.wait_safe()?;
        cluster.kill(SERVING[dead])?;
        cluster.wait_serving(SERVING[other], SERVING[other])?;
        ensure_unbroken(&held, interrupt).with_context(|| format!("{} is dead", SERVING[dead]))?;
        download.goes_on(interrupt)?;
        cluster.begin(SERVING[dead])?;
    }
    cluster.wait_safe()?;
    ensure_unbroken(&held, interrupt)?;
    download.finish(interrupt)?;
    drop(held);
    cluster.stop()
}

/// The serving host no longer hears the others, or they do not hear it, or both. The host
/// stops serving and another host serves; when the links are whole everything becomes
/// safe again.
fn the_serving_host_is_cut_off(interrupt: &Interrupt) -> Result<()> {
    let cluster = Cluster::start(interrupt)?;
    let held = cluster.hold(VIRTUAL, 60)?;
    let mut serving = 0;
    for cut in [Cut::From, Cut::To, Cut::Both] {
        cluster.wait_safe()?;
        cluster.hosts.cut(SERVING[serving], cut)?;
        let other = 1 - serving;
        cluster.wait_serving(WITNESS, SERVING[other])?;
        ensure_unbroken(&held, interrupt)?;
        cluster.hosts.heal()?;
        cluster.wait_safe()?;
        ensure_unbroken(&held, interrupt)?;
        serving = other;
    }
    drop(held);
    cluster.stop()
}

/// A host's runtimes are drained under load and restored: no datagram is lost or late.
fn a_host_is_drained_and_restored(interrupt: &Interrupt) -> Result<()> {
    let cluster = Cluster::start(interrupt)?;
    let held = cluster.hold(VIRTUAL, 60)?;
    let (_echo, stream) = cluster.stream(60, 600)?;
    cluster.wait_safe()?;
    let asking = cluster.on(SERVING[0])?;
    let nowhere = asking.command("drain nowhere").output()?;
    let said = String::from_utf8_lossy(&nowhere.stderr);
    ensure!(
        nowhere.status.code() == Some(1) && said.contains("hosts: witness, alpha, beta"),
        "{said}"
    );
    asking.ask(&format!("drain {}", SERVING[1]))?;
    let status = asking.status()?;
    let of_host = |state: &str| {
        status.runtimes().filter(|one| one.host == SERVING[1] && one.state == state).count()
    };
    ensure!(of_host("drained") == 2, "{status:?}");
    ensure_unbroken(&held, interrupt)?;
    asking.ask(&format!("restore {}", SERVING[1]))?;
    cluster.wait_safe()?;
    ensure_unbroken(&held, interrupt)?;
    ensure_perfect(&stream.finish(), 60, cluster.living())?;
    drop(held);
    cluster.stop()
}

/// A port's link of the serving host goes down: the other host serves. When the other
/// host is stopped as planned, the first serves again before the other has ended, and
/// hardly any datagram is lost.
fn service_moves_as_planned(interrupt: &Interrupt) -> Result<()> {
    let mut cluster = Cluster::start(interrupt)?;
    let held = cluster.hold(VIRTUAL, 60)?;
    cluster.wait_safe()?;
    let status = cluster.wait_serving(WITNESS, SERVING[0])?;
    ensure!(status.protected() == Protected::Yes, "{status:?}");
    let device = &cluster.on(SERVING[0])?.status()?.ports[0].device;
    let host = cluster.namespace(SERVING[0])?;
    host.ip(&format!("link set {device} down"))?;
    let is_unsafe =
        |status: &Status| status.protected() != Protected::Yes || status.survives != UNIT_HOST;
    cluster.wait_for(WITNESS, "the link that is down is seen", is_unsafe)?;
    cluster.wait_serving(WITNESS, SERVING[1])?;
    ensure_unbroken(&held, interrupt).context("a link is down")?;
    host.ip(&format!("link set {device} up"))?;
    cluster.wait_safe()?;
    let (_echo, stream) = cluster.stream(30, 300)?;
    let returned = stream.datagrams().returned;
    cluster.end(SERVING[1])?;
    cluster.wait_serving(WITNESS, SERVING[0])?;
    until("datagrams return", TIMEOUT, interrupt, || {
        Ok((stream.datagrams().returned > returned + 300).then_some(()))
    })?;
    let datagrams = stream.finish();
    ensure!(
        (datagrams.doubled, datagrams.changed, datagrams.flows_alive) == (0, 0, 30),
        "{datagrams:?}"
    );
    // A host's death is detected after 400 ms or more, which would lose 120 datagrams.
    ensure!(datagrams.lost < 90, "{datagrams:?}");
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    cluster.stop()
}

/// Numbered datagrams: only those that came while no host served are lost, none comes
/// twice, and every flow goes on.
fn datagrams_through_the_death_of_a_host(interrupt: &Interrupt) -> Result<()> {
    let mut cluster = Cluster::start(interrupt)?;
    let (_echo, stream) = cluster.stream(30, 300)?;
    cluster.wait_safe()?;
    cluster.kill(SERVING[0])?;
    cluster.wait_serving(SERVING[1], SERVING[1])?;
    let returned = stream.datagrams().returned;
    until("datagrams return", TIMEOUT, interrupt, || {
        Ok((stream.datagrams().returned > returned + 300).then_some(()))
    })?;
    let datagrams = stream.finish();
    ensure!((datagrams.doubled, datagrams.changed) == (0, 0), "{datagrams:?}");
    ensure!(datagrams.flows_alive == 30, "{datagrams:?}");
    // A host is given up after its time-out, and another starts when the first must have
    // stopped: a few seconds' worth at 300 a second.
    ensure!(datagrams.lost < 1_500, "{datagrams:?}");
    cluster.stop()
}
