//! Flows move between living runtimes under load: no packet is lost or reordered, and no
//! connection notices, even when one of the two runtimes dies meanwhile.

use anyhow::{Context, Result, ensure};
use holdfast_control::api::Progress;
use holdfast_control::status::{STATE_DRAINED, STATE_RUNNING, Status};
use holdfast_lab::keepalive::KeepAlive;
use holdfast_lab::process::signal_pid;
use holdfast_lab::programs;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::TIMEOUT;
use holdfast_tests::network::{
    Chain, Network, Options, PATIENT, RECOVERY_LIMIT, SERVER, VIRTUAL, many,
};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::transfer::{LongDownload, LongIperf3};
use holdfast_tests::verdict::{ensure_perfect, ensure_unbroken};
use rustix::process::Signal;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Time limit for a transfer.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light("flows_move_and_nothing_is_lost", 3, &[NGINX], flows_move_and_nothing_is_lost),
        light("flows_move_without_a_protection", 1, &[], flows_move_without_a_protection),
        light(
            "a_download_goes_round_all_runtimes",
            2,
            &[NGINX, CURL],
            a_download_goes_round_all_runtimes,
        ),
        light(
            "a_drained_runtime_ends_and_comes_back",
            2,
            &[NGINX],
            a_drained_runtime_ends_and_comes_back,
        ),
        light(
            "iperf3_goes_on_while_runtimes_are_drained",
            14,
            &[IPERF3],
            iperf3_goes_on_while_runtimes_are_drained,
        ),
        light("the_target_dies_meanwhile", 3, &[NGINX], the_target_dies_meanwhile),
        light("the_source_dies_meanwhile", 2, &[NGINX], the_source_dies_meanwhile),
        light(
            "a_datagram_in_fragments_is_on_its_way_meanwhile",
            2,
            &[],
            a_datagram_in_fragments_is_on_its_way_meanwhile,
        ),
        light("what_cannot_be_moved_is_said", 1, &[], what_cannot_be_moved_is_said),
    ]
}

fn ids(status: &Status) -> Vec<u32> {
    status.runtimes().map(|process| process.id).collect()
}

/// Waits until no flow is missing: a later flow would begin at a runtime whose flows have
/// just left.
fn wait_for_flows(network: &Network, count: u64) -> Result<()> {
    network.running.wait_for("all flows are there", LIMIT, network.lab.interrupt(), |status| {
        status.runtimes().map(|process| process.flows).sum::<u64>() >= count
    })?;
    Ok(())
}

/// Moves every flow twice round. Returns the number of flows moved.
fn go_round(network: &Network) -> Result<u64> {
    let is_left = |id: u32| {
        let what = format!("no flow is at runtime {id}, where new ones do not begin");
        let is_empty = |status: &Status| status.runtime(id).is_none_or(|one| one.flows == 0);
        network.running.wait_for(&what, LIMIT, network.lab.interrupt(), is_empty)?;
        Ok(())
    };
    Ok(network.go_round(is_left)? + network.go_round(is_left)?)
}

/// Options for tests without failures: no process is declared dead because the machine is
/// busy.
fn planned(chain: Chain) -> Options {
    Options { more: PATIENT, ..Options::protected(chain) }
}

fn flows_move_and_nothing_is_lost(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&planned(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = KeepAlive::open(&network.topology.client, &many(1000), interrupt)?;
    let (_echo, stream) = network.stream(100, 1000)?;
    wait_for_flows(&network, 1100)?;
    network.wait_protected()?;
    let moved = go_round(&network)?;
    ensure!(moved >= 2 * 1100, "of 1,100 flows that went round twice only {moved} moved");
    ensure_unbroken(&held, interrupt)?;
    let datagrams = stream.finish();
    ensure_perfect(&datagrams, 100, std::iter::once(&network.running))?;
    network.wait_protected()?;
    drop(held);
    network.stop()
}

fn flows_move_without_a_protection(interrupt: &Interrupt) -> Result<()> {
    let network =
        Network::start(&Options { protection: "none", ..planned(Chain::Edge) }, interrupt)?;
    let (_echo, stream) = network.stream(100, 1000)?;
    wait_for_flows(&network, 100)?;
    let moved = go_round(&network)?;
    ensure!(moved >= 200, "{moved}");
    let datagrams = stream.finish();
    ensure!((datagrams.lost, datagrams.reordered, datagrams.doubled) == (0, 0, 0), "{datagrams:?}");
    network.stop()
}

fn a_download_goes_round_all_runtimes(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&planned(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let download = LongDownload::start_in(&network, VIRTUAL, 8_000_000)?;
    go_round(&network)?;
    download.finish(interrupt)?;
    network.stop()
}

fn a_drained_runtime_ends_and_comes_back(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&planned(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = KeepAlive::open(&network.topology.client, &many(300), interrupt)?;
    let (_echo, stream) = network.stream(60, 600)?;
    network.wait_protected()?;
    let victim = network.running.busiest(None)?;
    let text = network.running.ask(&format!("drain {}", victim.id))?;
    let progress: Progress = serde_json::from_str(&text)?;
    ensure!(
        progress.done && !progress.failed && progress.moved >= victim.flows,
        "{progress:?}, it had {}",
        victim.flows
    );
    let is_drained = |status: &Status| {
        status.runtime(victim.id).is_some_and(|process| process.state == "drained")
    };
    network.running.wait_for("it is drained", TIMEOUT, interrupt, is_drained)?;
    let status = network.running.status()?;
    ensure!(status.failovers.is_empty(), "to be drained is no failure: {:?}", status.failovers);
    network.wait_protected()?;
    ensure_unbroken(&held, interrupt)?;
    let datagrams = stream.finish();
    ensure!((datagrams.lost, datagrams.reordered, datagrams.doubled) == (0, 0, 0), "{datagrams:?}");
    network.running.ask(&format!("restore {}", victim.id))?;
    network.running.wait_for("it is back", RECOVERY_LIMIT, interrupt, |status| {
        status.runtime(victim.id).is_some_and(|process| process.state == "running")
    })?;
    network.wait_protected()?;
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}

/// Every runtime is drained and restored, one after the other, so that the flow moves
/// from any owner. TCP and UDP, in both directions: no datagram is lost.
fn iperf3_goes_on_while_runtimes_are_drained(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&planned(Chain::Edge), interrupt)?;
    let ids = ids(&network.running.status()?);
    // Slow enough that the receiver's buffer holds the packets while this machine has no
    // core for it.
    for (is_udp, bits_per_second) in [(false, 20_000_000), (true, 1_000_000)] {
        for reverse in [false, true] {
            let mut running = LongIperf3::start(&network, is_udp, bits_per_second, reverse)?;
            let mut moved = 0;
            for id in &ids {
                network.wait_protected()?;
                let text = network.running.ask(&format!("drain {id}"))?;
                let progress: Progress = serde_json::from_str(&text)?;
                ensure!(progress.done && !progress.failed, "{progress:?}");
                moved += progress.moved;
                wait_for_state(&network, *id, STATE_DRAINED)?;
                network.running.ask(&format!("restore {id}"))?;
                wait_for_state(&network, *id, STATE_RUNNING)?;
                running.goes_on(&network)?;
            }
            ensure!(moved >= 2, "{moved} flows moved");
            let transfer = running.finish(&network)?;
            let is_alive = if is_udp {
                transfer.datagrams > 200 && transfer.lost == 0
            } else {
                transfer.bytes > 1_000_000
            };
            ensure!(is_alive, "by UDP {is_udp}, reverse {reverse}: {transfer:?}");
        }
    }
    network.stop()
}

fn wait_for_state(network: &Network, id: u32, state: &str) -> Result<()> {
    let is_so = |status: &Status| status.runtime(id).is_some_and(|process| process.state == state);
    network
        .running
        .wait_for(
            &format!("runtime {id} is {state}"),
            RECOVERY_LIMIT,
            network.lab.interrupt(),
            is_so,
        )
        .map(drop)
}

/// Many orders; `victim` dies in the middle of one.
fn dies_meanwhile(interrupt: &Interrupt, is_target: bool) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 500)?;
    for round in 0..3 {
        network.wait_protected()?;
        let source = network.running.busiest(None)?;
        let status = network.running.status()?;
        let target =
            status.busiest_runtime(Some(source.id)).context("there is another runtime")?.clone();
        let victim = if is_target { target.pid } else { source.pid };
        let mut command =
            network.running.command(&format!("migrate --from {} --to {}", source.id, target.id));
        let mut order = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        // A different moment each time: the simulator tests the moments themselves.
        std::thread::yield_now();
        if round > 0 {
            let from = |status: &Status| {
                status.runtime(source.id).is_none_or(|process| process.flows < source.flows)
            };
            network.running.wait_for("the first flows have moved", LIMIT, interrupt, from)?;
        }
        signal_pid(victim, Signal::KILL)?;
        order.wait()?;
        network.running.wait_for(
            "the failure is seen to",
            RECOVERY_LIMIT,
            interrupt,
            |status| {
                status.failovers.len() > round
                    && status
                        .failovers
                        .iter()
                        .all(|failover| failover.recovered_us.is_some() || failover.flows == 0)
            },
        )?;
        let connections = held.verify(interrupt)?;
        ensure!(connections.broken == 0, "round {round}: {connections:?}");
    }
    network.wait_protected()?;
    drop(held);
    network.stop()
}

fn the_target_dies_meanwhile(interrupt: &Interrupt) -> Result<()> {
    dies_meanwhile(interrupt, true)
}

fn the_source_dies_meanwhile(interrupt: &Interrupt) -> Result<()> {
    dies_meanwhile(interrupt, false)
}

/// A datagram's first fragment passed at the flow's old place, and the others come to its
/// new one.
fn a_datagram_in_fragments_is_on_its_way_meanwhile(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&planned(Chain::Edge), interrupt)?;
    // A kernel that resolves its next hop keeps at most five of these datagrams, and
    // drops others.
    let (client, server) = (&network.topology.client, SERVER.parse()?);
    until("all neighbours are known", LIMIT, interrupt, || {
        let pings = programs::ping(client, server, 1, 56, Duration::from_millis(10))?;
        Ok((pings.received == 1).then_some(()))
    })?;
    let before = network.running.status()?.runtimes().map(|process| process.flows).sum::<u64>();
    let mut command = client.command("ping");
    command.args(["-n", "-i", "0.002", "-s", "20000", SERVER]);
    let mut process = holdfast_lab::Process::start(command, "ping", network.lab.scratch())?;
    let began = Instant::now();
    wait_for_flows(&network, before + 1)?;
    network.wait_protected()?;
    for _ in 0..5 {
        go_round(&network)?;
    }
    // Datagrams sent meanwhile have smaller numbers. When a later one is back, none of
    // them is under way any more.
    let sent = (began.elapsed().as_millis() / 2) as u32 + 1;
    let replies = until("datagrams from after the migrations are back", LIMIT, interrupt, || {
        let replies = programs::read_replies(&process.stdout());
        Ok(replies.iter().any(|reply| *reply > sent).then_some(replies))
    })?;
    process.signal(Signal::INT)?;
    process.finish(LIMIT, interrupt)?;
    let status = network.running.status()?;
    let lost: Vec<_> = status.ports.iter().map(|port| &port.lost).collect();
    let is_complete = replies.iter().zip(1..).all(|(reply, number)| *reply == number);
    ensure!(replies.len() > 20 && is_complete, "{replies:?}, {:?}, {lost:?}", status.drops);
    network.stop()
}

fn what_cannot_be_moved_is_said(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&Options::protected(Chain::Edge), interrupt)?;
    for (words, remedy) in [
        ("migrate --from 99", "`holdfast status` lists"),
        ("migrate --from 16 --to 16", "name two runtimes"),
        ("migrate --from 16 tcp form 10.0.0.0/8", "character"),
        ("drain 99", "`holdfast status` lists"),
        ("restore 16", "is not drained"),
    ] {
        let output = network.running.command(words).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && said.contains(remedy), "{words}: {said}");
    }
    network.stop()
}
