//! Flows have their home at the state server: runtimes and the server are killed, and no
//! connection breaks.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Protected, Status};
use holdfast_lab::Interrupt;
use holdfast_lab::requirements::*;
use holdfast_lab::running::Victim;
use holdfast_tests::network::{Chain, GIVE_UP, Network, Options, PATIENT, RECOVERY_LIMIT, VIRTUAL};
use holdfast_tests::runner::{Test, alone, light};
use holdfast_tests::soak;
use holdfast_tests::standby::{
    Half, kill_half_of_nth_server, kill_half_of_server, nth_state_server,
};
use holdfast_tests::transfer::LongDownload;
use holdfast_tests::verdict::{ensure_perfect, ensure_served, ensure_unbroken};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light(
            "connections_outlive_instances_and_the_server",
            4,
            &[NGINX],
            connections_outlive_instances_and_the_server,
        ),
        light(
            "connections_outlive_instances_where_packets_leave_at_once",
            4,
            &[NGINX],
            connections_at_once,
        ),
        light("with_partitioned_pools", 4, &[NGINX], with_partitioned_pools),
        light("two_instances_die_together", 2, &[NGINX], two_instances_die_together),
        alone(
            "how long packets stay away is measured, in packets",
            "datagrams_are_lost_at_most_in_the_failure",
            2,
            &[],
            datagrams,
        ),
        light("flows_move_and_their_new_instance_dies", 2, &[NGINX], flows_move),
        light(
            "most_flows_have_their_state_at_the_server_alone",
            9,
            &[NGINX],
            most_states_are_absent,
        ),
        light("flows_are_divided_among_three_servers", 8, &[NGINX], three_servers),
        light("nobody_notices_when_half_of_the_server_dies", 3, &[NGINX], half_of_the_server),
    ]
}

fn paged(chain: Chain, protection: &'static str) -> Options {
    Options { protection, ..Options::protected(chain) }
}

/// A download and a hundred connections survive the death of each instance, and of the
/// server after each.
fn outlive(protection: &'static str, interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&paged(Chain::Balanced, protection), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 100)?;
    let mut download = LongDownload::start_in(&network, VIRTUAL, 4_000_000)?;
    network.kill_each_runtime(|| {
        network.wait_protected()?;
        network.strike_server(Signal::KILL)?;
        download.goes_on(interrupt)?;
        ensure_unbroken(&held, interrupt)
    })?;
    let new = network.hold(VIRTUAL, 60)?;
    ensure_unbroken(&new, interrupt)?;
    download.finish(interrupt)?;
    drop((held, new));
    network.stop()
}

fn connections_outlive_instances_and_the_server(interrupt: &Interrupt) -> Result<()> {
    outlive("rescue", interrupt)
}

fn connections_at_once(interrupt: &Interrupt) -> Result<()> {
    outlive("{ preset: rescue, release: at-once }", interrupt)
}

fn with_partitioned_pools(interrupt: &Interrupt) -> Result<()> {
    outlive("{ preset: rescue, shared: partitioned }", interrupt)
}

/// Two instances that die together cannot undo state at the server.
fn two_instances_die_together(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&paged(Chain::Balanced, "rescue"), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 100)?;
    network.wait_protected()?;
    let status = network.running.status()?;
    let pids: Vec<u32> = status.runtimes().take(2).map(|process| process.pid).collect();
    ensure!(pids.len() == 2, "{status:?}");
    for pid in pids {
        let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process has a number");
        rustix::process::kill_process(pid, Signal::KILL)?;
    }
    ensure_unbroken(&held, interrupt)?;
    network.wait_protected()?;
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}

fn datagrams(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&paged(Chain::Edge, "rescue"), interrupt)?;
    let (_echo, stream) = network.stream(30, 500)?;
    network.kill_each_runtime(|| Ok(()))?;
    let datagrams = stream.finish();
    // Three failures: a second of silence in each, of a third of the flows, would cost
    // that much.
    ensure_served(&datagrams, 30, 500)?;
    network.stop()
}

/// Flows are moved from one instance to another, which dies right after: every moved flow
/// goes on.
fn flows_move(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&paged(Chain::Balanced, "rescue"), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 200)?;
    network.wait_protected()?;
    for _ in 0..3 {
        network.wait_protected()?;
        let all = |status: &Status| status.runtimes().map(|one| one.flows).sum::<u64>() >= 200;
        network.running.wait_for("all flows are served", GIVE_UP, interrupt, all)?;
        let from = network.running.busiest(None)?;
        let to = network
            .running
            .status()?
            .runtimes()
            .find(|one| one.id != from.id)
            .map(Victim::of)
            .context("there are three")?;
        network.running.ask(&format!("migrate --from {} --to {}", from.id, to.id))?;
        let has_all = |status: &Status| {
            status.runtime(to.id).is_some_and(|one| one.flows >= from.flows + to.flows)
        };
        network.running.wait_for("the flows are there", GIVE_UP, interrupt, has_all)?;
        let victim = Victim { flows: from.flows + to.flows, ..to };
        network.running.kill(&victim, false, RECOVERY_LIMIT, interrupt)?;
        ensure_unbroken(&held, interrupt)?;
    }
    drop(held);
    network.stop()
}

/// Runtimes have memory for the state of a few flows, and there are many: the state of a
/// flow that gets a packet is fetched. The flows survive the death of either of the
/// server's processes, a move, and the death of each instance.
fn most_states_are_absent(interrupt: &Interrupt) -> Result<()> {
    let protection = "{ preset: rescue, resident_flows: 16 }";
    let mut network = Network::start(
        &Options { more: PATIENT, ..paged(Chain::Balanced, protection) },
        interrupt,
    )?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 300)?;
    let (_echo, stream) = network.stream(60, 300)?;
    let is_short = |status: &Status| status.absent_flows >= 300 - 3 * 16;
    network.running.wait_for("most states are at the server alone", LIMIT, interrupt, is_short)?;
    for round in 0..4 {
        let before = network.running.status()?.fetched_states;
        ensure_unbroken(&held, interrupt)?;
        let is_fetched = |status: &Status| status.fetched_states >= before + 200;
        network.running.wait_for("states were fetched", LIMIT, interrupt, is_fetched)?;
        kill_half_of_server(
            &network,
            if round % 2 == 1 { Half::Standby } else { Half::Worker },
            interrupt,
        )?;
    }
    network.wait_protected()?;
    let from = network.running.busiest(None)?;
    let to = network
        .running
        .status()?
        .runtimes()
        .find(|one| one.id != from.id)
        .map(Victim::of)
        .context("there are three")?;
    network.running.ask(&format!("migrate --from {} --to {}", from.id, to.id))?;
    let datagrams = stream.finish();
    ensure_perfect(&datagrams, 60, std::iter::once(&network.running))?;
    ensure_unbroken(&held, interrupt)?;
    network.kill_each_runtime(|| {
        network.wait_protected()?;
        ensure_unbroken(&held, interrupt)
    })?;
    network.running.ask("check --live")?;
    drop(held);
    network.stop()
}

/// Three servers have some of the flows each. Each in turn loses its worker, then
/// all its processes, and then an instance dies: its flows are collected from all
/// servers.
fn three_servers(interrupt: &Interrupt) -> Result<()> {
    let more = "state_server: { servers: 3 }\n";
    let mut network =
        Network::start(&Options { more, ..paged(Chain::Balanced, "rescue") }, interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 200)?;
    let mut download = LongDownload::start_in(&network, VIRTUAL, 4_000_000)?;
    network.wait_protected()?;
    let status = network.running.status()?;
    let of_servers = (0..3)
        .map(|number| Ok(nth_state_server(&status, number)?.pid))
        .collect::<Result<BTreeSet<u32>>>()?;
    ensure!(of_servers.len() == 3 && nth_state_server(&status, 3).is_err(), "{status:?}");
    let mut number = 0;
    network.kill_each_runtime(|| {
        ensure_unbroken(&held, interrupt)?;
        network.wait_protected()?;
        kill_half_of_nth_server(&network, number, Half::Worker, interrupt)?;
        network.wait_protected()?;
        network.strike_nth_server(number, Signal::KILL)?;
        download.goes_on(interrupt)?;
        number += 1;
        ensure_unbroken(&held, interrupt)
    })?;
    network.wait_protected()?;
    let victim = network.running.busiest(None)?;
    network.running.kill(&victim, network.promised, RECOVERY_LIMIT, interrupt)?;
    ensure_unbroken(&held, interrupt)?;
    network.running.ask("check --live")?;
    download.finish(interrupt)?;
    drop(held);
    network.stop()
}

/// The server's worker and its standby are killed in turn, under a download and new
/// flows. Runtimes go on with the same server, and it has lost no state, as an instance's
/// death shows.
fn half_of_the_server(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&paged(Chain::Balanced, "rescue"), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 100)?;
    network.wait_protected()?;
    let mut download = LongDownload::start_in(&network, VIRTUAL, 4_000_000)?;
    for round in 0..if soak() { 20 } else { 8 } {
        kill_half_of_server(
            &network,
            if round % 4 == 3 { Half::Standby } else { Half::Worker },
            interrupt,
        )?;
        download.goes_on(interrupt)?;
    }
    let status = network.running.status()?;
    ensure!(
        status.protected() == Protected::Yes,
        "nothing has to be told to a server that goes on: {status:?}"
    );
    let victim = network.running.busiest(None)?;
    network.running.kill(&victim, network.promised, RECOVERY_LIMIT, interrupt)?;
    ensure_unbroken(&held, interrupt)?;
    download.finish(interrupt)?;
    drop(held);
    network.stop()
}
