//! Privileges that a box needs and those that it drops; and no process survives a killed
//! guard.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{ROLE_STATE_SERVER, Status};
use holdfast_lab::process::{Process, signal_pid};
use holdfast_lab::requirements::*;
use holdfast_lab::running::RunningBox;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::binary;
use holdfast_tests::network::{self, Chain, GIVE_UP, Network, Options, PATIENT, RECOVERY_LIMIT};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::standby::{BOTH, is_ready};
use rustix::process::Signal;
use std::os::unix::fs::{PermissionsExt, chown};

const SETPRIV: Program = ("setpriv", "util-linux");
/// Bits of capabilities (capabilities(7)): NET_BIND_SERVICE, NET_ADMIN, NET_RAW,
/// IPC_LOCK, SYS_NICE, BPF.
const FOR_PORTS: u64 = 1 << 10 | 1 << 12 | 1 << 13 | FOR_SPEED | 1 << 39;
const FOR_SPEED: u64 = 1 << 14 | 1 << 23;
/// nobody, as Debian numbers it.
const USER: u32 = 65534;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light("each_process_has_what_its_work_takes", 4, &[], each_process_has_what_its_work_takes),
        light("an_ordinary_user_runs_a_box", 3, &[SETPRIV], an_ordinary_user_runs_a_box),
        light(
            "a_killed_guard_leaves_nobody_to_the_next",
            4,
            &[],
            a_killed_guard_leaves_nobody_to_the_next,
        ),
    ]
}

/// A line of proc_pid_status(5).
fn of_process(pid: u32, field: &str) -> Result<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .with_context(|| format!("{field} of {pid}"))?;
    Ok(line.trim_start_matches(':').trim().to_owned())
}

/// The filters of system calls that a process has, a container's among them.
fn filters(pid: u32) -> Result<u32> {
    Ok(of_process(pid, "Seccomp_filters")?.parse()?)
}

fn ensure_small(status: &Status) -> Result<()> {
    let guard = status.guard().context("there is a guard")?.pid;
    for process in status.processes.iter().filter(|process| process.pid != 0) {
        let standby = process.local_standby.map(|standby| standby.pid).filter(|pid| *pid != 0);
        for pid in [process.pid].into_iter().chain(standby) {
            let is_for_ports = ["guard", "manager", "switch"].contains(&process.role.as_str());
            let most = if is_for_ports { FOR_PORTS } else { FOR_SPEED };
            for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
                let has = u64::from_str_radix(&of_process(pid, set)?, 16)?;
                ensure!(has & !most == 0, "{} {pid} has {has:x} in {set}", process.role);
            }
            ensure!(of_process(pid, "NoNewPrivs")? == "1", "{} {pid}", process.role);
            if ["runtime", "state-server"].contains(&process.role.as_str()) {
                ensure!(
                    of_process(pid, "Seccomp")? == "2",
                    "{} {pid} has no filter of system calls",
                    process.role
                );
                ensure!(
                    filters(pid)? > filters(guard)?,
                    "{} {pid} has only its parent's filters",
                    process.role
                );
            }
        }
    }
    Ok(())
}

fn each_process_has_what_its_work_takes(interrupt: &Interrupt) -> Result<()> {
    let options = Options { protection: BOTH, ..Options::protected(Chain::Edge) };
    let network = Network::start(&options, interrupt)?;
    let status = network.running.wait_for("it is safe", GIVE_UP, interrupt, is_ready)?;
    ensure_small(&status)?;
    // The bounding set is reduced for root, too, so that no process regains a dropped
    // capability.
    for process in status.processes.iter().filter(|process| process.pid != 0) {
        let bounding = u64::from_str_radix(&of_process(process.pid, "CapBnd")?, 16)?;
        ensure!(bounding & !FOR_PORTS == 0, "{} may get {bounding:x}", process.role);
    }
    network.stop()?;

    let options = Options { protection: "rescue", ..Options::protected(Chain::Edge) };
    let network = Network::start(&options, interrupt)?;
    network.wait_protected()?;
    let status = network.running.status()?;
    ensure!(
        status
            .processes
            .iter()
            .any(|process| process.role == ROLE_STATE_SERVER && process.pid != 0),
        "{status:?}"
    );
    ensure_small(&status)?;
    network.stop()?;

    let network = Network::start(
        &Options { more: "seccomp: false\n", ..Options::protected(Chain::Edge) },
        interrupt,
    )?;
    let status = network.running.status()?;
    let guard = filters(status.guard().context("there is a guard")?.pid)?;
    for runtime in status.runtimes() {
        ensure!(filters(runtime.pid)? == guard, "{runtime:?} has a filter that nobody wants");
    }
    network.stop()
}

/// Run as user nobody with three capabilities, a box serves, and starts the next
/// incarnation of a killed runtime.
fn an_ordinary_user_runs_a_box(interrupt: &Interrupt) -> Result<()> {
    let (lab, topology) = network::cables(&Options::protected(Chain::Edge), interrupt)?;
    // A home directory for user nobody, with a binary that it may start.
    let home = lab.scratch().join("home");
    std::fs::create_dir(&home)?;
    std::fs::set_permissions(lab.scratch(), std::fs::Permissions::from_mode(0o711))?;
    let program = home.join("holdfast");
    std::fs::copy(binary()?, &program)?;
    let file = home.join("holdfast.yaml");
    std::fs::write(&file, Options::protected(Chain::Edge).configuration())?;
    for path in [&home, &program, &file] {
        chown(path, Some(USER), Some(USER))?;
    }
    let control = home.join("control.sock");
    let mut command = topology.router.command("setpriv");
    const CAPABILITIES: &str = "-all,+net_admin,+net_raw,+bpf";
    command.args(["--reuid", &USER.to_string(), "--regid", &USER.to_string(), "--clear-groups"]);
    command.args([format!("--inh-caps={CAPABILITIES}"), format!("--ambient-caps={CAPABILITIES}")]);
    command.arg(&program).arg("run").arg(&file).arg("--control").arg(&control);
    let mut process = Process::start(command, "holdfast", lab.scratch())?;
    let said_ready = |process: &Process| {
        Ok(process.stdout().lines().any(|line| line.starts_with("ready")).then_some(()))
    };
    process.wait_while_running("it is ready", GIVE_UP, interrupt, said_ready)?;
    let status = || -> Result<Status> {
        let client = holdfast_control::Client::new(Some(&control))?;
        Ok(client.status()?)
    };
    let before = status()?;
    ensure_small(&before)?;
    for process in before.processes.iter().filter(|process| process.pid != 0) {
        ensure!(
            of_process(process.pid, "Uid")?.split_whitespace().all(|uid| uid == USER.to_string()),
            "{process:?}"
        );
    }
    let victim = before.runtimes().next().context("there is a runtime")?.clone();
    signal_pid(victim.pid, Signal::KILL)?;
    until("another incarnation serves", RECOVERY_LIMIT, interrupt, || {
        let next = status()?.runtime(victim.id).cloned();
        Ok(next
            .is_some_and(|next| next.incarnation > victim.incarnation && next.state == "running")
            .then_some(()))
    })?;
    process.signal(Signal::TERM)?;
    let ended = process.wait(GIVE_UP, interrupt)?;
    ensure!(ended.success(), "{ended}: {}", process.stderr());
    Ok(())
}

/// The guard is killed, and a supervisor starts the box again at once. When the next box
/// serves, no process of the previous one is left, not even a stopped one.
fn a_killed_guard_leaves_nobody_to_the_next(interrupt: &Interrupt) -> Result<()> {
    let options = Options { protection: BOTH, more: PATIENT, ..Options::protected(Chain::Edge) };
    let (lab, topology) = network::cables(&options, interrupt)?;
    let configuration = options.configuration();
    let mut running = RunningBox::start(&lab, &topology.router, &binary()?, &configuration)?;
    for _ in 0..3 {
        let status = running.wait_for("it is safe", GIVE_UP, interrupt, is_ready)?;
        let before = topology.router.pids()?;
        let guard = status.guard().context("there is a guard")?.pid;
        signal_pid(status.runtimes().next().context("there is a runtime")?.pid, Signal::STOP)?;
        signal_pid(guard, Signal::KILL)?;
        // A supervisor reaps the guard before it starts the next box.
        running.process().wait(GIVE_UP, interrupt)?;
        running = RunningBox::start(&lab, &topology.router, &binary()?, &configuration)?;
        let left: Vec<u32> =
            topology.router.pids()?.into_iter().filter(|pid| before.contains(pid)).collect();
        ensure!(left.is_empty(), "{left:?} of the box before are there");
    }
    let ended = running.stop(GIVE_UP, interrupt)?;
    ensure!(ended.success(), "{ended}");
    Ok(())
}
