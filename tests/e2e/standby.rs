//! With a local standby a runtime's process may be killed at any instruction: the standby
//! beside it continues with its rings. Neither the box's clients nor its coordinator
//! notice.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Process, Protected, Status};
use holdfast_lab::Interrupt;
use holdfast_lab::process::signal_pid;
use holdfast_lab::requirements::*;
use holdfast_tests::network::{Chain, GIVE_UP, Network, Options, SERVER, VIRTUAL};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::soak;
use holdfast_tests::standby::{
    BOTH, Half, LOCAL, busiest, is_ready, keeper, kill_half_of_server, kill_worker, state_server,
};
use holdfast_tests::transfer::LongDownload;
use holdfast_tests::verdict::{ensure_perfect, ensure_unbroken};
use rustix::process::Signal;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light("datagrams_do_not_notice_kills", 4, &[], datagrams_do_not_notice_kills),
        light(
            "a_worker_that_stands_still_is_replaced",
            4,
            &[],
            a_worker_that_stands_still_is_replaced,
        ),
        light("worker_and_standby_die_together", 2, &[NGINX], worker_and_standby_die_together),
        light("a_keeper_takes_nobody_along", 4, &[NGINX], a_keeper_takes_nobody_along),
        light(
            "a_state_server_outlives_its_keeper",
            4,
            &[NGINX],
            a_state_server_outlives_its_keeper,
        ),
        light("a_download_goes_on", 2, &[NGINX, CURL], a_download_goes_on),
        light("two_levels_keep_apart", 2, &[NGINX], two_levels_keep_apart),
    ]
}

fn under(protection: &'static str, chain: Chain) -> Options {
    Options { protection, ..Options::protected(chain) }
}

fn datagrams_do_not_notice_kills(interrupt: &Interrupt) -> Result<()> {
    for protection in [LOCAL, BOTH] {
        let network = Network::start(&under(protection, Chain::Edge), interrupt)?;
        let (_echo, stream) = network.stream(30, 1000)?;
        for _ in 0..if soak() { 200 } else { 10 } {
            kill_worker(&network, busiest, interrupt)?;
        }
        network.running.wait_for("it is safe again", GIVE_UP, interrupt, is_ready)?;
        ensure_perfect(&stream.finish(), 30, std::iter::once(&network.running))?;
        let status = network.running.status()?;
        ensure!(status.failovers.is_empty(), "the coordinator has noticed: {:?}", status.failovers);
        network.stop()?;
    }
    Ok(())
}

/// A worker that hangs for longer than a third of the runtime time-out is killed by its
/// keeper, and the coordinator does not notice.
fn a_worker_that_stands_still_is_replaced(interrupt: &Interrupt) -> Result<()> {
    let options = Options { more: "detection: { hang_ms: 4000 }\n", ..under(BOTH, Chain::Edge) };
    let network = Network::start(&options, interrupt)?;
    let (_echo, stream) = network.stream(30, 300)?;
    network.running.wait_for("it is safe", GIVE_UP, interrupt, is_ready)?;
    let (victim, standby) = busiest(&network.running.status()?)?;
    signal_pid(victim.pid, Signal::STOP)?;
    network.running.wait_for("the standby has taken over", GIVE_UP, interrupt, |status| {
        status
            .runtime(victim.id)
            .is_some_and(|now| now.pid == standby.pid && now.incarnation == victim.incarnation)
    })?;
    network.running.wait_for("it is safe again", GIVE_UP, interrupt, is_ready)?;
    ensure_perfect(&stream.finish(), 30, std::iter::once(&network.running))?;
    let status = network.running.status()?;
    ensure!(status.failovers.is_empty(), "the coordinator has noticed: {:?}", status.failovers);
    network.stop()
}

/// Only the keeper learns of the death of both at once, and starts another process; the
/// state has outlived them.
fn worker_and_standby_die_together(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&under(LOCAL, Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 100)?;
    network.running.wait_for("it is safe", GIVE_UP, interrupt, is_ready)?;
    let (victim, standby) = busiest(&network.running.status()?)?;
    // The keeper is stopped so that it does not start another standby first.
    let keeper = keeper(victim.pid)?;
    signal_pid(keeper, Signal::STOP)?;
    signal_pid(standby.pid, Signal::KILL)?;
    signal_pid(victim.pid, Signal::KILL)?;
    signal_pid(keeper, Signal::CONT)?;
    let status =
        network.running.wait_for("another worker serves", GIVE_UP, interrupt, |status| {
            is_ready(status)
                && status
                    .runtime(victim.id)
                    .is_some_and(|now| ![victim.pid, standby.pid].contains(&now.pid))
        })?;
    ensure!(
        status.runtime(victim.id).is_some_and(|now| now.incarnation == victim.incarnation),
        "{status:?}"
    );
    ensure!(status.failovers.is_empty(), "the coordinator has noticed: {:?}", status.failovers);
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}

/// The keeper of the busiest runtime is killed, and then its worker, three times: by then
/// the keeper's deputy has taken over.
fn a_keeper_takes_nobody_along(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&under(LOCAL, Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 100)?;
    let is_safe = |what: &str| network.running.wait_for(what, GIVE_UP, interrupt, is_ready);
    let guard = guard(&is_safe("it is safe")?)?;
    for _ in 0..3 {
        let (victim, standby) = busiest(&is_safe("it is safe")?)?;
        // The guard may have adopted one of the two, but not both: a killed worker's
        // standby is forked anew.
        let keepers = [keeper(victim.pid)?, keeper(standby.pid)?];
        let keeper =
            keepers.into_iter().find(|keeper| *keeper != guard).context("somebody keeps them")?;
        signal_pid(keeper, Signal::KILL)?;
        network.running.wait_for("somebody else keeps them", GIVE_UP, interrupt, |status| {
            is_ready(status)
                && !network.topology.router.pids().is_ok_and(|pids| pids.contains(&keeper))
        })?;
        let now = network.running.status()?;
        let (now, beside) = (now.runtime(victim.id).cloned().context("it is there")?, standby.pid);
        ensure!((now.pid, now.incarnation) == (victim.pid, victim.incarnation), "{now:?}");
        ensure!(now.local_standby.is_some_and(|now| now.pid == beside), "{now:?}");
        kill_worker(
            &network,
            |status| {
                let runtime = status.runtime(victim.id).context("it is there")?;
                Ok((runtime.clone(), runtime.local_standby.context("it has a standby")?))
            },
            interrupt,
        )?;
        ensure_unbroken(&held, interrupt)?;
    }
    let status = is_safe("it is safe again")?;
    ensure!(status.failovers.is_empty(), "the coordinator has noticed: {:?}", status.failovers);
    drop(held);
    network.stop()
}

fn guard(status: &Status) -> Result<u32> {
    status.guard().map(|guard| guard.pid).context("there is a guard")
}

/// The same for a state server: it keeps its incarnation when its keeper is killed.
fn a_state_server_outlives_its_keeper(interrupt: &Interrupt) -> Result<()> {
    let options = under("rescue", Chain::Balanced);
    let mut network = Network::start(&options, interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 60)?;
    let has_standby = |status: &Status| {
        state_server(status)
            .is_ok_and(|server| server.local_standby.is_some_and(|standby| standby.pid != 0))
    };
    let before = state_server(&network.running.wait_for(
        "it has a standby",
        GIVE_UP,
        interrupt,
        has_standby,
    )?)?;
    let keeper = keeper(before.pid)?;
    signal_pid(keeper, Signal::KILL)?;
    network.running.wait_for("the keeper is no more", GIVE_UP, interrupt, |_| {
        !network.topology.router.pids().is_ok_and(|pids| pids.contains(&keeper))
    })?;
    for half in [Half::Worker, Half::Standby, Half::Worker] {
        kill_half_of_server(&network, half, interrupt)?;
    }
    let after = state_server(&network.running.status()?)?;
    ensure!(after.incarnation == before.incarnation, "{after:?}");
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}

/// A download through a firewall, a NAT and a load balancer.
fn a_download_goes_on(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&under(LOCAL, Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 100)?;
    let mut download = LongDownload::start_in(&network, VIRTUAL, 8_000_000)?;
    for _ in 0..if soak() { 20 } else { 4 } {
        kill_worker(&network, busiest, interrupt)?;
        download.goes_on(interrupt)?;
    }
    ensure_unbroken(&held, interrupt)?;
    download.finish(interrupt)?;
    drop(held);
    network.stop()
}

/// Two chains, each with runtimes of its own: those of the first have local standbys,
/// those of the second protect one another. A death in one is not noticed in the other,
/// and each keeps the promise of its level.
fn two_levels_keep_apart(interrupt: &Interrupt) -> Result<()> {
    const WEB: &str = "  web:\n    functions:\n      - firewall: { default: allow }\n      - nat: { pool: [192.0.2.48/29], inside: [172.20.5.0/24] }\n\
                       \x20   protection: reinforce\n    cluster: gold\n";
    let options = under(LOCAL, Chain::Edge);
    let text = options
        .configuration()
        .replace(
            "rules:\n  - { chain: office }",
            &format!(
                "{WEB}rules:\n  - {{ proto: tcp, ports: 80, chain: web }}\n  - {{ chain: office }}"
            ),
        )
        .replace(
            "runtimes: { min: 3, max: 3 }\n",
            "runtimes: 2\nclusters: { gold: { runtimes: 2 } }\n",
        );
    let mut network = Network::start_with(&options, &text, interrupt)?;
    network.serve_web()?;
    let (_echo, stream) = network.stream(20, 300)?;
    let held = network.hold(&format!("{SERVER}:80"), 20)?;
    let is_gold = |runtime: &Process| runtime.cluster.as_deref() == Some("gold");
    let is_safe = |status: &Status| {
        let is_right = |runtime: &Process| match runtime.local_standby {
            None => is_gold(runtime),
            Some(standby) => !is_gold(runtime) && standby.pid != 0,
        };
        status.protected() == Protected::Yes && status.runtimes().all(is_right)
    };
    let wait_safe =
        || network.running.wait_for("each level is what it is", GIVE_UP, interrupt, is_safe);
    for _ in 0..3 {
        for runtime in wait_safe()?.runtimes().filter(|runtime| !is_gold(runtime)) {
            signal_pid(runtime.pid, Signal::KILL)?;
            let takeovers = |status: &Status| {
                status.runtime(runtime.id)?.local_standby.map(|standby| standby.takeovers)
            };
            let before = runtime.local_standby.map(|standby| standby.takeovers);
            network.running.wait_for(
                "the standby has taken over",
                GIVE_UP,
                interrupt,
                |status| takeovers(status) > before,
            )?;
            wait_safe()?;
        }
    }
    let status = wait_safe()?;
    ensure!(status.failovers.is_empty(), "the coordinator has noticed: {:?}", status.failovers);
    for runtime in status.runtimes().filter(|runtime| is_gold(runtime)) {
        wait_safe()?;
        signal_pid(runtime.pid, Signal::KILL)?;
        network.running.wait_for("another incarnation serves", GIVE_UP, interrupt, |status| {
            status.runtime(runtime.id).is_some_and(|now| now.incarnation > runtime.incarnation)
        })?;
        wait_safe()?;
        ensure_unbroken(&held, interrupt)?;
    }
    ensure_perfect(&stream.finish(), 20, std::iter::once(&network.running))?;
    let status = network.running.status()?;
    let failed: Vec<u32> = status.failovers.iter().map(|failover| failover.runtime).collect();
    ensure!(
        failed.len() == 2 && status.failovers.iter().all(|failover| failover.lost == 0),
        "{:?}",
        status.failovers
    );
    drop(held);
    network.stop()
}
