//! Boxes whose coordinators are elected through a real etcd. Without devices; traffic is
//! in the end-to-end tests.

use holdfast_control::status::{Process as Role, STATE_CANDIDATE, STATE_RUNNING, Status};
use holdfast_lab::etcd::Etcd;
use holdfast_lab::process::{Process, signal_pid};
use holdfast_lab::{Interrupt, until};
use rustix::process::Signal;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Enough for a coordinator that is only started again.
const BACK: Duration = Duration::from_secs(3);

fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    until(what, TIMEOUT, &Interrupt::default(), || Ok(look())).unwrap()
}

/// A box in a folder of its own.
struct Running {
    process: Process,
    folder: TempDir,
}

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_holdfast"))
}

fn configuration(folder: &Path, etcd: &str, runtimes: u16) -> PathBuf {
    let text = format!(
        "cluster: elected\nports:\n  inside:  {{ device: \"pcap:,{0}/in.pcap\", address: 10.0.0.1/24 }}\n  \
         outside: {{ device: \"pcap:,{0}/out.pcap\", address: 198.51.100.1/24, gateway: 198.51.100.254 }}\n\
         chains: {{ c: {{ functions: [nat: {{ pool: [198.51.100.4] }}], protection: nfvactor }} }}\n\
         rules: [{{ chain: c }}]\nruntimes: {runtimes}\nlimits: {{ flows: 1024, buffers: 8192 }}\netcd: {etcd}\n",
        folder.display()
    );
    fs::write(folder.join("box.yaml"), text).unwrap();
    folder.join("box.yaml")
}

impl Running {
    fn launch(etcd: &str) -> Running {
        let folder = tempfile::tempdir().unwrap();
        let file = configuration(folder.path(), etcd, 2);
        let mut run = command();
        run.arg("run")
            .arg(file)
            .arg("--control")
            .arg(folder.path().join("box.sock"))
            .process_group(0);
        let process = Process::start(run, "box", folder.path()).unwrap();
        Running { process, folder }
    }

    fn start(etcd: &str) -> Running {
        let mut running = Running::launch(etcd);
        running.wait_ready();
        running
    }

    fn is_ready(&self) -> bool {
        self.process.stdout().starts_with("ready")
    }

    fn wait_ready(&mut self) {
        let ready = |process: &Process| Ok(process.stdout().starts_with("ready").then_some(()));
        self.process
            .wait_while_running("it is ready", TIMEOUT, &Interrupt::default(), ready)
            .unwrap();
    }

    fn ask(&self, words: &str) -> Output {
        command()
            .args(words.split(' '))
            .arg("--control")
            .arg(self.folder.path().join("box.sock"))
            .output()
            .unwrap()
    }

    fn status(&self) -> Option<Status> {
        serde_json::from_slice(&self.ask("status --json").stdout).ok()
    }

    fn coordinator(&self) -> Option<Role> {
        self.status()?.processes.into_iter().find(|process| process.role == "coordinator")
    }

    /// The coordinator that leads after this incarnation.
    fn next_coordinator(&self, last: u64) -> Role {
        let leads = |role: &Role| role.incarnation > last && role.state == STATE_RUNNING;
        wait("another coordinator leads", || self.coordinator().filter(leads))
    }

    fn runtimes(&self) -> Vec<(u32, u64, u32)> {
        self.status()
            .unwrap()
            .runtimes()
            .map(|runtime| (runtime.id, runtime.incarnation, runtime.pid))
            .collect()
    }

    fn stop(mut self) -> String {
        self.process.signal(Signal::TERM).unwrap();
        let status = self.process.wait(TIMEOUT, &Interrupt::default()).unwrap();
        assert!(status.success(), "{status}: {}", self.process.stderr());
        self.process.stderr()
    }
}

struct World {
    etcd: Etcd,
    _home: TempDir,
}

impl World {
    fn new() -> World {
        let home = tempfile::tempdir().unwrap();
        World {
            etcd: Etcd::start(home.path(), None, None, &Interrupt::default()).unwrap(),
            _home: home,
        }
    }

    fn section(&self, lease_ms: u64) -> String {
        format!("{{ endpoints: [\"{}\"], lease_ms: {lease_ms} }}", self.etcd.endpoint())
    }
}

/// The coordinator is killed: the next one is elected at once although the lease is a
/// minute long, with a higher incarnation, and the runtimes are those of its log. A box
/// that ends gives its place up: the next one need not wait for the lease either, and
/// uses no incarnation again.
#[test]
fn a_killed_coordinator_is_followed_by_one_that_knows_everybody() {
    let world = World::new();
    let running = Running::start(&world.section(60_000));
    let first = running.coordinator().unwrap();
    let election = running.status().unwrap().election.unwrap();
    let leader = election.leader.unwrap();
    assert_eq!((leader.pid, leader.incarnation, first.incarnation), (first.pid, 1, 1));
    assert_eq!((election.silent_ms, election.trouble), (None, None));
    let before = running.runtimes();
    for last in 1..3 {
        let killed = Instant::now();
        signal_pid(running.coordinator().unwrap().pid, Signal::KILL).unwrap();
        running.next_coordinator(last);
        assert!(killed.elapsed() < BACK, "it took {:?}", killed.elapsed());
        wait("it is protected again", || {
            running
                .status()
                .filter(|status| status.protected() == holdfast_control::status::Protected::Yes)
        });
        assert_eq!(running.runtimes(), before);
    }
    assert!(running.status().unwrap().failovers.is_empty());
    let text = String::from_utf8(running.ask("status").stdout).unwrap();
    assert!(text.contains("coordinator: ") && text.contains("(incarnation 3)"), "{text}");
    running.stop();

    let began = Instant::now();
    let next = Running::start(&world.section(60_000));
    assert!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
    let highest = before.iter().map(|(_, incarnation, _)| *incarnation).max().unwrap();
    assert!(
        next.runtimes().iter().all(|(_, incarnation, _)| *incarnation > highest),
        "{:?} after {before:?}",
        next.runtimes()
    );
    assert_eq!(next.coordinator().unwrap().incarnation, 4);
    next.stop();
}

/// etcd stands still, and is then killed and started again: each time the coordinator
/// stops leading, the status says why, orders are refused, the runtimes live on. Each
/// time etcd is back a coordinator is elected that knows them, and orders work.
#[test]
fn while_etcd_is_away_the_box_lives_on() {
    let mut world = World::new();
    let running = Running::start(&world.section(2000));
    let before = running.runtimes();
    for round in 0..2 {
        let last = running.coordinator().unwrap().incarnation;
        match round {
            0 => world.etcd.signal(Signal::STOP).unwrap(),
            _ => world.etcd.kill(&Interrupt::default()).unwrap(),
        }
        let candidate = |status: &Status| {
            let is_candidate = status
                .processes
                .iter()
                .any(|role| role.role == "coordinator" && role.state == STATE_CANDIDATE);
            is_candidate
                && status.election.as_ref().is_some_and(|election| {
                    election.silent_ms > Some(1000) && election.trouble.is_some()
                })
        };
        wait("the box says that etcd is away", || running.status().filter(candidate));
        let text = String::from_utf8(running.ask("status").stdout).unwrap();
        assert!(text.contains("etcd has not answered for"), "{text}");
        let refused = running.ask("drain 16");
        assert!(!refused.status.success());
        assert_eq!(running.runtimes(), before);
        match round {
            0 => world.etcd.signal(Signal::CONT).unwrap(),
            _ => world.etcd.start_again(&Interrupt::default()).unwrap(),
        }
        running.next_coordinator(last);
        wait("it is protected again", || {
            running
                .status()
                .filter(|status| status.protected() == holdfast_control::status::Protected::Yes)
        });
        assert_eq!(running.runtimes(), before);
    }
    assert!(running.status().unwrap().failovers.is_empty());
    // Draining one of two runtimes needs `--force`: flows on the last one have no
    // replica.
    let refused = running.ask("drain 16");
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("--force"),
        "{}",
        String::from_utf8_lossy(&refused.stderr)
    );
    let drained = running.ask("drain 16 --force");
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    let said = running.stop();
    assert!(said.contains("etcd does not answer") && said.contains("etcd answers again"), "{said}");
}

/// Two boxes share a prefix, as on two hosts: one leads, and the other waits and says for
/// which box. The first is killed whole. The other leads when the lease is over, and none
/// of its runtimes is called as one of the first.
#[test]
fn a_second_box_waits_for_its_turn() {
    let world = World::new();
    let first = Running::start(&world.section(2000));
    let leader = first.coordinator().unwrap();
    let mut second = Running::launch(&world.section(2000));
    let knows = |status: &Status| {
        status
            .election
            .as_ref()
            .and_then(|election| election.leader.clone())
            .is_some_and(|known| known.pid == leader.pid)
    };
    let status = wait("the second box knows who leads", || second.status().filter(knows));
    let state = status
        .processes
        .iter()
        .find(|role| role.role == "coordinator")
        .map(|role| role.state.clone());
    assert_eq!(state.as_deref(), Some(STATE_CANDIDATE));
    let highest = first.runtimes().iter().map(|(_, incarnation, _)| *incarnation).max().unwrap();
    assert!(!second.is_ready());
    first.process.signal(Signal::KILL).unwrap();
    second.wait_ready();
    assert_eq!(second.coordinator().unwrap().incarnation, 2);
    assert!(
        second.runtimes().iter().all(|(_, incarnation, _)| *incarnation > highest),
        "{:?}",
        second.runtimes()
    );
    second.stop();
}

/// The log in etcd has foreign data: the box says what lies where, and does not begin.
#[test]
fn a_log_that_is_none_is_named() {
    let world = World::new();
    let base64 = |text: &str| {
        let output = Command::new("sh")
            .args(["-c", "printf %s \"$1\" | base64 -w0", "-", text])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for (key, value, expected) in [
        ("/holdfast/elected/log/note", "hello", "`/holdfast/elected/log/note` is no part of it"),
        (
            "/holdfast/elected/log/0000000001-000000000001",
            "\u{1}a record of somebody else",
            "record 0 is damaged",
        ),
    ] {
        let body = format!("{{\"key\": \"{}\", \"value\": \"{}\"}}", base64(key), base64(value));
        let put = Command::new("curl")
            .args(["-sSf", "-d", &body, &format!("{}/v3/kv/put", world.etcd.endpoint())])
            .output()
            .unwrap();
        assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
        let mut running = Running::launch(&world.section(2000));
        let status = running.process.wait(TIMEOUT, &Interrupt::default()).unwrap();
        let said = running.process.stderr();
        assert_eq!(status.code(), Some(69), "{said}");
        assert!(
            said.contains("the coordinator's log at /holdfast/elected in etcd")
                && said.contains(expected),
            "{said}"
        );
        let body = format!("{{\"key\": \"{}\"}}", base64(key));
        let delete = format!("{}/v3/kv/deleterange", world.etcd.endpoint());
        assert!(
            Command::new("curl")
                .args(["-sSf", "-d", &body, &delete])
                .output()
                .unwrap()
                .status
                .success()
        );
    }
    Running::start(&world.section(2000)).stop();
}
