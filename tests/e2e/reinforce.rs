//! Under `reinforce` packets leave when a standby knows that they were processed.
//! Runtimes, the manager and hosts are killed with SIGKILL, and packets since the last
//! checkpoint of a dead runtime are processed again.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Process as ProcessStatus, Status};
use holdfast_lab::process::signal_pid;
use holdfast_lab::programs;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, Process, until};
use holdfast_tests::cluster::{Cluster, SERVING, WITNESS};
use holdfast_tests::network::{Chain, GIVE_UP, Network, Options, SERVER, VIRTUAL};
use holdfast_tests::runner::{Test, alone, cluster, light};
use holdfast_tests::transfer::LongDownload;
use holdfast_tests::verdict::{ensure_served, ensure_unbroken};
use rustix::process::Signal;
use std::time::Duration;

/// Longest time for a hundred pings and some failovers.
const LIMIT: Duration = Duration::from_secs(120);
/// Packets that the chain `Limited` lets a flow have.
const PACKETS: u32 = 100;
/// Checkpoints are so rare that most packets must be processed again after a failure.
const RARELY: &str = "{ preset: reinforce, checkpoint_ms: 10000 }";

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light("a_download_goes_on", 2, &[NGINX, CURL], a_download_goes_on),
        light("keep_alive_connections_live", 4, &[NGINX], keep_alive_connections_live),
        alone(
            "how long packets stay away is measured, in packets",
            "datagrams_are_lost_at_most_in_the_failure",
            2,
            &[],
            datagrams_are_lost_at_most_in_the_failure,
        ),
        light(
            "a_count_is_made_again_from_the_log",
            16,
            &[PING],
            a_count_is_made_again_from_the_log,
        ),
        light("a_runtime_dies_after_its_log", 2, &[NGINX], a_runtime_dies_after_its_log),
        cluster("each_host_dies", 10, &[NGINX, NFT], each_host_dies),
    ]
}

fn under(protection: &'static str, chain: Chain) -> Options {
    Options { protection, ..Options::protected(chain) }
}

fn replayed(status: &Status) -> u64 {
    status.drops.get("released_before").copied().unwrap_or(0)
}

fn manager(status: &Status) -> Result<ProcessStatus> {
    let manager = status.processes.iter().find(|process| process.role == "manager");
    manager.cloned().context("there is a manager")
}

/// A download through a firewall, a NAT and a load balancer, while each runtime dies.
fn a_download_goes_on(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&under("reinforce", Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let mut download = LongDownload::start_in(&network, VIRTUAL, 8_000_000)?;
    network.kill_each_runtime(|| download.goes_on(interrupt))?;
    download.finish(interrupt)?;
    network.stop()
}

fn keep_alive_connections_live(interrupt: &Interrupt) -> Result<()> {
    for protection in ["reinforce", RARELY] {
        let mut network = Network::start(&under(protection, Chain::Balanced), interrupt)?;
        network.serve_web()?;
        let held = network.hold(VIRTUAL, 100)?;
        network.kill_each_runtime(|| ensure_unbroken(&held, interrupt))?;
        ensure!(network.running.status()?.may_forget == 0);
        drop(held);
        network.stop()?;
    }
    Ok(())
}

fn datagrams_are_lost_at_most_in_the_failure(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&under("reinforce", Chain::Edge), interrupt)?;
    let (_echo, stream) = network.stream(30, 1000)?;
    network.kill_each_runtime(|| Ok(()))?;
    let datagrams = stream.finish();
    // Three failures, a third of 1,000 a second each: a second of silence in each would
    // cost 1,000.
    ensure_served(&datagrams, 30, 1_000)?;
    network.stop()
}

/// The guide's function lets a flow have 100 packets, so 50 pings are answered, and not
/// one more: the standby's copy is of the flow's first packets, and the others have been
/// counted again.
fn a_count_is_made_again_from_the_log(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&under(RARELY, Chain::Limited), interrupt)?;
    let mut command = network.topology.client.command("ping");
    command.args(["-n", "-q", "-c", "150", "-i", "0.1", "-W", "1", SERVER]);
    let mut process = Process::start(command, "ping", network.lab.scratch())?;
    let packets = |status: &Status| status.runtimes().map(|one| one.packets).sum::<u64>();
    network
        .running
        .wait_for("forty packets are gone", GIVE_UP, interrupt, |status| packets(status) >= 40)?;
    network.wait_protected()?;
    let gone = packets(&network.running.status()?);
    ensure!(gone < u64::from(PACKETS) - 20, "too late to show anything: {gone} packets are gone");
    let victim = network.running.busiest(None)?;
    network.running.kill(&victim, network.promised, GIVE_UP, interrupt)?;
    let what = format!("most of {gone} packets are processed again");
    network.running.wait_for(&what, GIVE_UP, interrupt, |status| replayed(status) >= 30)?;
    let text = process.finish(LIMIT, interrupt)?;
    let pings = programs::read_pings(&text)?;
    // The packet or two inside the dying runtime may be missing.
    let expected = PACKETS / 2 - 2..=PACKETS / 2;
    ensure!(pings.sent == 150 && expected.contains(&pings.received), "{pings:?}");
    network.stop()
}

/// The manager dies, and the log with it. As soon as everything is protected again a
/// runtime may die.
fn a_runtime_dies_after_its_log(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&under(RARELY, Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 100)?;
    for _ in 0..2 {
        network.wait_protected()?;
        let last = manager(&network.running.status()?)?;
        signal_pid(last.pid, Signal::KILL)?;
        until("the manager's next incarnation", GIVE_UP, interrupt, || {
            let now = network.running.status().ok().map(|status| manager(&status)).transpose()?;
            Ok(now.filter(|now| now.incarnation > last.incarnation && now.pid != last.pid))
        })?;
        ensure_unbroken(&held, interrupt)?;
        network.wait_protected()?;
        let victim = network.running.busiest(None)?;
        network.running.kill(&victim, true, GIVE_UP, interrupt)?;
        ensure_unbroken(&held, interrupt)?;
    }
    drop(held);
    network.stop()
}

/// In a box of three hosts the serving host dies, with the log of runtimes on other
/// hosts; then the other one, then the coordinator's.
fn each_host_dies(interrupt: &Interrupt) -> Result<()> {
    let mut cluster = Cluster::start_under(RARELY, interrupt)?;
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
        ensure_unbroken(&held, interrupt)?;
        cluster.begin(dead)?;
    }
    drop(held);
    cluster.stop()
}
