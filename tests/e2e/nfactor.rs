//! Under `nfactor`, runtimes are killed with SIGKILL: connections go on, and a flow's
//! state is at most as many packets old as `status` says.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::Status;
use holdfast_lab::programs;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, Process};
use holdfast_tests::network::{Chain, GIVE_UP, Network, Options, SERVER, VIRTUAL};
use holdfast_tests::runner::{Test, alone, light};
use holdfast_tests::verdict::{ensure_served, ensure_unbroken};
use std::time::Duration;

/// Longest time for a hundred pings and a failover.
const LIMIT: Duration = Duration::from_secs(120);
/// Packets that the chain `Limited` lets a flow have.
const PACKETS: u32 = 100;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light("keep_alive_connections_live", 1, &[NGINX], keep_alive_connections_live),
        light(
            "the_next_incarnation_gets_the_flows_back",
            1,
            &[],
            the_next_incarnation_gets_the_flows_back,
        ),
        alone(
            "how long packets stay away is measured, in packets",
            "datagrams_are_lost_at_most_in_the_failure",
            2,
            &[],
            datagrams_are_lost_at_most_in_the_failure,
        ),
        light(
            "a_count_is_set_back_by_no_more_than_the_status_says",
            33,
            &[PING],
            a_count_is_set_back_by_no_more_than_the_status_says,
        ),
        light("a_count_begins_anew_under_none", 17, &[PING], a_count_begins_anew_under_none),
    ]
}

fn weak(chain: Chain) -> Options {
    Options { protection: "nfactor", ..Options::protected(chain) }
}

/// A hundred connections of a firewall, a NAT and a load balancer; their translations and
/// their TCP states come from snapshots.
fn keep_alive_connections_live(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&weak(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 100)?;
    network.kill_each_runtime(|| ensure_unbroken(&held, interrupt))?;
    let status = network.running.status()?;
    ensure!(
        status.may_forget == 10,
        "ten packets is what the configuration leaves it at: {status:?}"
    );
    drop(held);
    network.stop()
}

/// The dead runtime's next incarnation serves all its flows; the holders of the snapshots
/// do not.
fn the_next_incarnation_gets_the_flows_back(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&weak(Chain::Edge), interrupt)?;
    let (_echo, stream) = network.stream(12, 200)?;
    let owned = |status: &Status| status.runtimes().map(|one| one.flows).sum::<u64>();
    network
        .running
        .wait_for("twelve flows are there", GIVE_UP, interrupt, |status| owned(status) == 12)?;
    network.wait_protected()?;
    let before = network.running.status()?;
    let victim = network.running.busiest(None)?;
    let recovery = network.running.kill(&victim, true, GIVE_UP, interrupt)?;
    let failover = recovery.failover.context("the failure is not in the status")?;
    ensure!(
        failover.flows == victim.flows
            && (failover.recovered, failover.lost) == (failover.flows, 0),
        "{failover:?}"
    );
    let what = "every runtime has as many flows as before";
    let flows =
        |status: &Status| status.runtimes().map(|one| (one.id, one.flows)).collect::<Vec<_>>();
    network.running.wait_for(what, GIVE_UP, interrupt, |status| flows(status) == flows(&before))?;
    drop(stream);
    network.stop()
}

fn datagrams_are_lost_at_most_in_the_failure(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&weak(Chain::Edge), interrupt)?;
    let (_echo, stream) = network.stream(30, 1000)?;
    network.kill_each_runtime(|| Ok(()))?;
    let datagrams = stream.finish();
    // Three failures, a third of 1,000 a second each: a second of silence in each would
    // cost 1,000.
    ensure_served(&datagrams, 30, 1_000)?;
    network.stop()
}

/// Uses up a flow's packets with pings, and kills its runtime after 40 of them. Returns
/// the bound that the status gave, and the number of answered pings.
fn pings_across_a_failure(protection: &'static str, interrupt: &Interrupt) -> Result<(u32, u32)> {
    let network =
        Network::start(&Options { protection, ..Options::protected(Chain::Limited) }, interrupt)?;
    let mut command = network.topology.client.command("ping");
    command.args(["-n", "-q", "-c", "150", "-i", "0.1", "-W", "1", SERVER]);
    let mut process = Process::start(command, "ping", network.lab.scratch())?;
    let packets = |status: &Status| status.runtimes().map(|one| one.packets).sum::<u64>();
    let what = "forty packets are gone";
    let status =
        network.running.wait_for(what, GIVE_UP, interrupt, |status| packets(status) >= 40)?;
    network.wait_protected()?;
    let gone = packets(&network.running.status()?);
    ensure!(gone < u64::from(PACKETS) - 20, "too late to show anything: {gone} packets are gone");
    let victim = network.running.busiest(None)?;
    network.running.kill(&victim, network.promised, GIVE_UP, interrupt)?;
    let text = process.finish(LIMIT, interrupt)?;
    let pings = programs::read_pings(&text)?;
    ensure!(pings.sent == 150, "{pings:?}");
    network.stop()?;
    Ok((status.may_forget, pings.received))
}

/// The guide's function lets a flow have 100 packets, so 50 pings are answered, and half
/// a ping more for every packet whose count the failure undid. The packet or two inside
/// the dying runtime may be missing.
fn a_count_is_set_back_by_no_more_than_the_status_says(interrupt: &Interrupt) -> Result<()> {
    for (protection, every) in [("nfactor", 10), ("{ preset: nfactor, snapshot_every: 4 }", 4)] {
        let (may_forget, answered) = pings_across_a_failure(protection, interrupt)?;
        ensure!(may_forget == every, "the status says {may_forget} under {protection}");
        let expected = PACKETS / 2 - 2..=(PACKETS + may_forget) / 2;
        ensure!(expected.contains(&answered), "{answered} pings were answered under {protection}");
    }
    Ok(())
}

/// The contrast: if the count were about as good without snapshots, the test above would
/// show nothing.
fn a_count_begins_anew_under_none(interrupt: &Interrupt) -> Result<()> {
    let (may_forget, answered) = pings_across_a_failure("none", interrupt)?;
    ensure!(may_forget == 0 && answered > (PACKETS + 10) / 2 + 5, "{answered} pings were answered");
    Ok(())
}
