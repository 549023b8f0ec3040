//! With a local standby a runtime's process may be killed at any instruction: the one beside it goes on with its rings, and nobody notices, neither those who talk through the box nor
//! its coordinator.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Process, Protected, Status};
use holdfast_lab::download::{Download, Plan};
use holdfast_lab::process::signal_pid;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::network::{Chain, GIVE_UP, Network, Options, SERVER, VIRTUAL};
use holdfast_tests::runner::{main as run, test};
use holdfast_tests::standby::{BOTH, LOCAL, busiest, is_ready, keeper, kill_worker};
use holdfast_tests::verdict::{ensure_perfect, ensure_unbroken};
use rustix::process::Signal;
use std::process::ExitCode;
use std::time::Duration;

/// Longest time for a download and some kills.
const LIMIT: Duration = Duration::from_secs(120);
/// In each level.
const KILLS: usize = 100;

fn main() -> ExitCode {
    run(vec![
        test("datagrams_do_not_notice_a_hundred_kills", &[], datagrams_do_not_notice_a_hundred_kills),
        test("a_worker_that_stands_still_is_replaced", &[], a_worker_that_stands_still_is_replaced),
        test("worker_and_standby_die_together", &[NGINX], worker_and_standby_die_together),
        test("a_runtime_ends_with_its_keeper", &[NGINX], a_runtime_ends_with_its_keeper),
        test("a_download_goes_on", &[NGINX, CURL], a_download_goes_on),
        test("two_levels_keep_apart", &[NGINX], two_levels_keep_apart),
    ])
}

fn under(protection: &'static str, chain: Chain) -> Options {
    Options { protection, ..Options::protected(chain) }
}

fn datagrams_do_not_notice_a_hundred_kills(interrupt: &Interrupt) -> Result<()> {
    for protection in [LOCAL, BOTH] {
        let network = Network::start(&under(protection, Chain::Edge), interrupt)?;
        let (_echo, stream) = network.stream(30, 1000)?;
        for _ in 0..KILLS {
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

/// Who stands still for longer than a third of the time after which a runtime is taken for dead is ended by its keeper, and the coordinator does not notice.
fn a_worker_that_stands_still_is_replaced(interrupt: &Interrupt) -> Result<()> {
    let options = Options { more: "detection: { hang_ms: 4000 }\n", ..under(BOTH, Chain::Edge) };
    let network = Network::start(&options, interrupt)?;
    let (_echo, stream) = network.stream(30, 300)?;
    network.running.wait_for("it is safe", GIVE_UP, interrupt, is_ready)?;
    let (victim, standby) = busiest(&network.running.status()?)?;
    signal_pid(victim.pid, Signal::STOP)?;
    network.running.wait_for("the standby has taken over", GIVE_UP, interrupt, |status| {
        status.runtime(victim.id).is_some_and(|now| now.pid == standby.pid && now.incarnation == victim.incarnation)
    })?;
    network.running.wait_for("it is safe again", GIVE_UP, interrupt, is_ready)?;
    ensure_perfect(&stream.finish(), 30, std::iter::once(&network.running))?;
    let status = network.running.status()?;
    ensure!(status.failovers.is_empty(), "the coordinator has noticed: {:?}", status.failovers);
    network.stop()
}

/// Of both at once only their keeper learns, which makes another process; the state has outlived them.
fn worker_and_standby_die_together(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&under(LOCAL, Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 100)?;
    network.running.wait_for("it is safe", GIVE_UP, interrupt, is_ready)?;
    let (victim, standby) = busiest(&network.running.status()?)?;
    // Before it has made another standby.
    let keeper = keeper(victim.pid)?;
    signal_pid(keeper, Signal::STOP)?;
    signal_pid(standby.pid, Signal::KILL)?;
    signal_pid(victim.pid, Signal::KILL)?;
    signal_pid(keeper, Signal::CONT)?;
    let status = network.running.wait_for("another worker serves", GIVE_UP, interrupt, |status| {
        is_ready(status) && status.runtime(victim.id).is_some_and(|now| ![victim.pid, standby.pid].contains(&now.pid))
    })?;
    ensure!(status.runtime(victim.id).is_some_and(|now| now.incarnation == victim.incarnation), "{status:?}");
    ensure!(status.failovers.is_empty(), "the coordinator has noticed: {:?}", status.failovers);
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}

/// The flows have their remote standbys, and another runtime takes the place, with a standby of its own.
fn a_runtime_ends_with_its_keeper(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&under(BOTH, Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 100)?;
    network.running.wait_for("it is safe", GIVE_UP, interrupt, is_ready)?;
    let (victim, _) = busiest(&network.running.status()?)?;
    signal_pid(keeper(victim.pid)?, Signal::KILL)?;
    network.running.wait_for("another incarnation serves", GIVE_UP, interrupt, |status| {
        is_ready(status) && status.runtime(victim.id).is_some_and(|now| now.incarnation > victim.incarnation)
    })?;
    let status = network.running.status()?;
    let failover = status.failover(victim.id, victim.incarnation).context("the coordinator has noticed")?;
    ensure!(failover.cause == "killed by signal 9" && failover.lost == 0, "{failover:?}");
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}

/// A hundred megabytes through a firewall, a NAT and a load balancer.
fn a_download_goes_on(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&under(LOCAL, Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let sum = network.site.add_random("big", 100_000_000)?;
    let held = network.hold(VIRTUAL, 100)?;
    let plan = Plan { url: format!("http://{VIRTUAL}/big"), bytes_per_second: Some(8_000_000), stalled_after: GIVE_UP };
    let mut download = Download::start(&network.topology.client, &plan)?;
    until("the download is under way", LIMIT, interrupt, || Ok((download.received() > 1_000_000).then_some(())))?;
    for _ in 0..20 {
        let seen = download.received();
        kill_worker(&network, busiest, interrupt)?;
        until("the download goes on", GIVE_UP, interrupt, || Ok((download.received() > seen).then_some(())))?;
    }
    ensure_unbroken(&held, interrupt)?;
    ensure!(!download.is_over()?, "the download was over before the last kill: nothing was shown");
    let outcome = download.finish(LIMIT, interrupt)?;
    ensure!(outcome.error.is_none() && outcome.bytes == 100_000_000 && outcome.sum == sum, "{outcome:?}");
    drop(held);
    network.stop()
}

/// Two chains, each with runtimes of its own: those of the first have processes beside them, those of the second one another. What dies in one is not noticed in the other, and each is what its level says.
fn two_levels_keep_apart(interrupt: &Interrupt) -> Result<()> {
    const WEB: &str = "  web:\n    functions:\n      - firewall: { default: allow }\n      - nat: { pool: [192.0.2.48/29], inside: [172.20.5.0/24] }\n\
                       \x20   protection: reinforce\n    cluster: gold\n";
    let options = under(LOCAL, Chain::Edge);
    let text = options
        .configuration()
        .replace(
            "rules:\n  - { chain: office }",
            &format!("{WEB}rules:\n  - {{ proto: tcp, ports: 80, chain: web }}\n  - {{ chain: office }}"),
        )
        .replace("runtimes: { min: 3, max: 3 }\n", "runtimes: 2\nclusters: { gold: { runtimes: 2 } }\n");
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
        status.protected == Protected::Yes && status.runtimes().all(is_right)
    };
    let wait_safe = || network.running.wait_for("each level is what it is", GIVE_UP, interrupt, is_safe);
    for _ in 0..3 {
        for runtime in wait_safe()?.runtimes().filter(|runtime| !is_gold(runtime)) {
            signal_pid(runtime.pid, Signal::KILL)?;
            let takeovers = |status: &Status| status.runtime(runtime.id)?.local_standby.map(|standby| standby.takeovers);
            let before = runtime.local_standby.map(|standby| standby.takeovers);
            network.running.wait_for("the standby has taken over", GIVE_UP, interrupt, |status| takeovers(status) > before)?;
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
    let failed: Vec<u16> = status.failovers.iter().map(|failover| failover.runtime).collect();
    ensure!(failed.len() == 2 && status.failovers.iter().all(|failover| failover.lost == 0), "{:?}", status.failovers);
    drop(held);
    network.stop()
}
