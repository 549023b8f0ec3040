//! A state server's control messages go through shared memory, or as remote writes by
//! libfabric. The server, its worker and runtimes are killed, and no connection breaks.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Process, Status};
use holdfast_lab::Interrupt;
use holdfast_lab::requirements::*;
use holdfast_lab::wait::until;
use holdfast_tests::network::{Chain, Network, Options, RECOVERY_LIMIT, VIRTUAL};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::standby::{Half, kill_half_of_server};
use holdfast_tests::verdict::ensure_unbroken;
use rustix::process::Signal;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light(
            "connections_outlive_server_and_runtimes_by_shared_memory",
            5,
            &[NGINX],
            by_shared_memory,
        ),
        light("connections_outlive_server_and_runtimes_by_libfabric", 7, &[NGINX], by_libfabric),
        light(
            "a_server_of_one_process_and_flows_at_home_by_shared_memory",
            5,
            &[NGINX],
            at_home_by_shared_memory,
        ),
        light(
            "a_server_of_one_process_and_flows_at_home_by_libfabric",
            15,
            &[NGINX],
            at_home_by_libfabric,
        ),
        light(
            "runtimes_with_standbys_of_their_own_by_shared_memory",
            4,
            &[NGINX],
            with_standbys_by_shared_memory,
        ),
        light(
            "runtimes_with_standbys_of_their_own_by_libfabric",
            6,
            &[NGINX],
            with_standbys_by_libfabric,
        ),
    ]
}

const REPLICATED: &str = "{ preset: nfvactor, shared: state-server }";
const BESIDE: &str = "{ preset: reinforce, level: local, shared: state-server }";
const PAGED: &str = "rescue";

fn by_shared_memory(interrupt: &Interrupt) -> Result<()> {
    connections_outlive(
        REPLICATED,
        "state_server: { transport: shared-memory }\n",
        is_in_shared_memory,
        interrupt,
    )
}

fn by_libfabric(interrupt: &Interrupt) -> Result<()> {
    connections_outlive(
        REPLICATED,
        "state_server: { transport: libfabric }\n",
        is_connected,
        interrupt,
    )
}

fn at_home_by_shared_memory(interrupt: &Interrupt) -> Result<()> {
    connections_outlive(
        PAGED,
        "state_server: { standby: none, transport: shared-memory }\n",
        is_in_shared_memory,
        interrupt,
    )
}

fn at_home_by_libfabric(interrupt: &Interrupt) -> Result<()> {
    let more = "state_server: { standby: none, transport: libfabric, provider: net }\n";
    connections_outlive(PAGED, more, is_connected, interrupt)
}

fn with_standbys_by_shared_memory(interrupt: &Interrupt) -> Result<()> {
    connections_outlive(
        BESIDE,
        "state_server: { transport: shared-memory }\n",
        is_in_shared_memory,
        interrupt,
    )
}

fn with_standbys_by_libfabric(interrupt: &Interrupt) -> Result<()> {
    connections_outlive(BESIDE, "state_server: { transport: libfabric }\n", is_connected, interrupt)
}

/// True if the process has mapped a session's shared memory.
fn is_in_shared_memory(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/maps"))
        .is_ok_and(|maps| maps.contains("holdfast-words"))
}

/// True if the process has a connection to another one of this host.
fn is_connected(pid: u32) -> bool {
    // ESTABLISHED, from 127.0.0.1.
    let is_local = |fields: &[&str]| {
        fields.get(1).is_some_and(|local| local.starts_with("0100007F"))
            && fields.get(3) == Some(&"01")
    };
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let inodes: Vec<String> = lines
        .filter(|fields| is_local(fields))
        .filter_map(|fields| Some(format!("socket:[{}]", fields.get(9)?)))
        .collect();
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    fds.filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .any(|link| inodes.iter().any(|inode| link.as_os_str() == inode.as_str()))
}

/// All messages use the intended transport: every running runtime has it, and the server.
fn ensure_way(network: &Network, is_that_way: fn(u32) -> bool) -> Result<()> {
    let mut seen = Vec::new();
    let outcome = until(
        "every process has the way that is meant",
        RECOVERY_LIMIT,
        network.lab.interrupt(),
        || {
            let status = network.running.status()?;
            let is_one = |process: &&Process| {
                process.role == "state-server" || status.runtimes().any(|one| one.id == process.id)
            };
            let processes: Vec<&Process> = status.processes.iter().filter(is_one).collect();
            seen = processes
                .iter()
                .map(|process| (process.role.clone(), process.pid, is_that_way(process.pid)))
                .collect();
            Ok((seen.len() >= 4 && seen.iter().all(|(.., is_that_way)| *is_that_way)).then_some(()))
        },
    );
    outcome.with_context(|| format!("{seen:?}"))
}

/// Connections from before, between and after the deaths of the server, of its worker if
/// it has a standby, and of every runtime: all live, and pools are whole.
fn connections_outlive(
    protection: &'static str,
    more: &'static str,
    is_that_way: fn(u32) -> bool,
    interrupt: &Interrupt,
) -> Result<()> {
    let options = Options { protection, more, ..Options::protected(Chain::Balanced) };
    let mut network = Network::start(&options, interrupt)?;
    network.serve_web()?;
    let first = network.hold(VIRTUAL, 60)?;
    network.wait_protected()?;
    ensure_way(&network, is_that_way)?;
    if !more.contains("standby: none") {
        for half in [Half::Worker, Half::Standby, Half::Worker] {
            kill_half_of_server(&network, half, interrupt)?;
        }
        ensure_way(&network, is_that_way)?;
    }
    let second = network.hold(VIRTUAL, 60)?;
    network.wait_protected()?;
    network.strike_server(Signal::KILL)?;
    let third = network.hold(VIRTUAL, 60)?;
    let all = [&first, &second, &third];
    network.wait_protected()?;
    ensure_way(&network, is_that_way)?;
    if protection == BESIDE {
        kill_workers(&network)?;
    } else {
        network.kill_each_runtime(|| {
            all.into_iter().try_for_each(|held| ensure_unbroken(held, interrupt))
        })?;
    }
    network.wait_protected()?;
    ensure_way(&network, is_that_way)?;
    let last = network.hold(VIRTUAL, 60)?;
    for held in all.into_iter().chain([&last]) {
        ensure_unbroken(held, interrupt)
            .with_context(|| format!("{:?}", network.running.status()))?;
    }
    ensure_whole(&network)?;
    drop((first, second, third, last));
    network.stop()
}

/// Kills the worker of every runtime, whose standby takes over.
fn kill_workers(network: &Network) -> Result<()> {
    let ids: Vec<u32> = network.running.status()?.runtimes().map(|process| process.id).collect();
    for id in ids {
        let takeovers = |status: &Status| {
            status
                .runtime(id)
                .and_then(|process| Some((process.pid, process.local_standby.as_ref()?.takeovers)))
        };
        let is_ready = |status: &Status| {
            let standby = status.runtime(id).and_then(|process| process.local_standby.as_ref());
            standby.is_some_and(|standby| standby.pid != 0)
        };
        let status = network.running.wait_for(
            "the runtime has a standby",
            RECOVERY_LIMIT,
            network.lab.interrupt(),
            is_ready,
        )?;
        let (pid, before) = takeovers(&status).context("it was there a moment ago")?;
        let pid = rustix::process::Pid::from_raw(pid as i32).context("it has a worker")?;
        rustix::process::kill_process(pid, Signal::KILL)?;
        let has_gone_on = |status: &Status| takeovers(status).is_some_and(|(_, now)| now > before);
        network.running.wait_for(
            "its standby goes on",
            RECOVERY_LIMIT,
            network.lab.interrupt(),
            has_gone_on,
        )?;
    }
    Ok(())
}

/// In the running box every pool is whole, and runtimes and server agree.
fn ensure_whole(network: &Network) -> Result<()> {
    until("nothing is to be warned of", RECOVERY_LIMIT, network.lab.interrupt(), || {
        let found = network.running.ask("--json check --live --for 2")?;
        let found: serde_json::Value = serde_json::from_str(&found)?;
        let checks = found["checks"].as_array().context("there are checks")?;
        ensure!(!checks.is_empty(), "{found}");
        Ok(checks.iter().all(|check| check["outcome"] == "ok").then_some(()))
    })
}
