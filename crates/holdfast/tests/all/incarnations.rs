//! A box whose manager is killed: the guard begins its next incarnation, and all other
//! processes live on. The box has no devices; traffic is in the end-to-end tests.

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// A running box in a folder of its own. The box ends with the test.
struct Running {
    child: Child,
    said: BufReader<ChildStdout>,
    words: BufReader<ChildStderr>,
    folder: TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes the configuration of a box, and a capture with a datagram for each of so many
/// flows. The box reads the capture whenever its ports are opened.
fn configuration(folder: &Path, flows: u16) -> PathBuf {
    let text = format!(
        "cluster: incarnations\nports:\n  inside:  {{ device: \"pcap:{0}/in.pcap\", address: 10.0.0.1/24 }}\n  \
         outside: {{ device: \"pcap:,{0}/out.pcap\", address: 198.51.100.1/24, gateway: 198.51.100.254 }}\n\
         chains: {{ c: {{ functions: [nat: {{ pool: [198.51.100.4] }}], protection: nfvactor }} }}\n\
         rules: [{{ chain: c }}]\nruntimes: 2\nlimits: {{ flows: 1024, buffers: 8192 }}\n",
        folder.display()
    );
    let mut writer =
        PcapWriter::new(File::create(folder.join("in.pcap")).expect("a file")).expect("a header");
    for flow in 0..flows {
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8]).ipv4(
            [10, 0, 0, 2],
            [203, 0, 113, 9],
            64,
        );
        builder
            .udp(4000 + flow, 53)
            .write(&mut frame, &flow.to_be_bytes())
            .expect("a vector takes it");
        writer
            .write_packet(&PcapPacket::new(Duration::from_secs(1), frame.len() as u32, &frame))
            .expect("a packet");
    }
    fs::write(folder.join("box.yaml"), text).expect("a file");
    folder.join("box.yaml")
}

/// The port that each flow's datagram has left with.
fn translated(folder: &Path) -> BTreeMap<u16, u16> {
    let mut ports = BTreeMap::new();
    let reader =
        File::open(folder.join("out.pcap")).ok().and_then(|file| PcapReader::new(file).ok());
    let Some(mut reader) = reader else { return ports };
    while let Some(Ok(packet)) = reader.next_packet() {
        let packet = SlicedPacket::from_ethernet(&packet.data).expect("what leaves is well formed");
        let Some(TransportSlice::Udp(udp)) = packet.transport else { continue };
        let flow = u16::from_be_bytes(udp.payload().try_into().expect("the flow's number"));
        assert_eq!(ports.insert(flow, udp.source_port()), None, "a datagram has left twice");
    }
    ports
}

fn launch(file: &Path, control: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command
        .arg("run")
        .arg(file)
        .arg("--control")
        .arg(control)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).expect("a process"), signal).expect("it is there");
}

/// The time when a process began, in the kernel's count: it tells the process from
/// another one with the same number. `None` once the process has ended.
fn born(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    (fields[0] != "Z").then(|| fields[19].to_owned())
}

/// The processes whose parent is this one, by what they do.
fn children(parent: u32) -> Vec<(String, u32)> {
    let list =
        fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.filter_map(|pid: u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let role = String::from_utf8_lossy(line.split(|byte| *byte == 0).nth(1)?).into_owned();
        born(pid).map(|_| (role, pid))
    })
    .collect()
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < LIMIT, "{what}");
        std::thread::yield_now();
    }
}

impl Running {
    fn start() -> Running {
        Running::with_flows(0)
    }

    fn with_flows(flows: u16) -> Running {
        let folder = tempfile::tempdir().expect("a folder");
        let file = configuration(folder.path(), flows);
        let mut child =
            launch(&file, &folder.path().join("run/box.sock")).spawn().expect("the program starts");
        let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
        let words = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it says something");
        assert!(line.starts_with("ready: 2 ports, 2 runtimes"), "{line}");
        Running { child, said, words, folder }
    }

    fn control(&self) -> PathBuf {
        self.folder.path().join("run/box.sock")
    }

    /// The box's status. `None` while no box answers.
    fn status(&self) -> Option<Value> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        let output = command
            .args(["status", "--json", "--control"])
            .arg(self.control())
            .output()
            .expect("the program starts");
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Incarnation and process of a role, as the box says.
    fn role(&self, role: &str) -> Option<(u64, u32)> {
        let status = self.status()?;
        let process =
            status["processes"].as_array()?.iter().find(|process| process["role"] == role)?;
        Some((process["incarnation"].as_u64()?, process["pid"].as_u64()? as u32))
    }

    fn manager(&self, incarnation: u64) -> u32 {
        until("the manager's next incarnation answers", || {
            self.role("manager").filter(|(number, _)| *number == incarnation)
        })
        .1
    }

    /// Waits until the box calls itself protected and has two runtimes, and checks that
    /// no failover is reported. Returns node, incarnation and process of each runtime.
    fn whole(&self) -> Vec<(u64, u64, u64)> {
        let whole = || {
            let status = self.status().filter(|status| status["protected"] == "yes")?;
            let all = status["processes"].as_array()?.iter();
            let number = |process: &Value, what: &str| process[what].as_u64().unwrap_or_default();
            let runtimes =
                all.filter(|process| process["role"] == "runtime" && process["state"] == "running");
            let runtimes: Vec<_> = runtimes
                .map(|process| {
                    ["id", "incarnation", "pid"].map(|what| number(process, what)).into()
                })
                .collect();
            assert_eq!(status["failovers"].as_array().map(Vec::len), Some(0), "{status}");
            (runtimes.len() == 2).then_some(runtimes)
        };
        until("the box is whole", whole)
    }

    /// All processes but the manager, with the times when they began.
    fn others(&self) -> Vec<(String, u32, Option<String>)> {
        let all = children(self.child.id()).into_iter().filter(|(role, _)| role != "manager");
        all.map(|(role, pid)| (role, pid, born(pid))).collect()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.words.read_line(&mut line).expect("it says something");
        line
    }

    fn line_about(&mut self, what: &str) -> String {
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "the box ended without a word about `{what}`");
            if line.contains(what) {
                return line;
            }
        }
    }

    /// Waits for the end, and checks that the box has printed nothing after `ready`.
    fn end(&mut self) -> ExitStatus {
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).expect("it is closed");
        assert_eq!(rest, "");
        until("the box ends", || self.child.try_wait().expect("it is our child"))
    }

    fn ensure_nothing_is_left(&self, pids: &[u32]) {
        assert!(
            !self.folder.path().join("run").exists(),
            "the directory of the control socket is left"
        );
        for pid in pids {
            until("every process ends", || born(*pid).is_none().then_some(()));
        }
    }
}

/// The manager is killed, twice. The guard says so and begins its next incarnation, which
/// answers at the same socket. The coordinator and the runtimes are the same processes as
/// before. The box is stopped as ever afterwards, and nothing is left.
#[test]
fn everybody_else_outlives_the_manager() {
    let mut running = Running::start();
    let guard = running.child.id();
    let first = running.manager(1);
    assert_eq!(running.role("guard"), Some((1, guard)));
    assert_eq!(running.role("switch"), Some((1, first)));
    let runtimes = running.whole();
    let before = running.others();
    let mut roles: Vec<&str> = before.iter().map(|(role, ..)| role.as_str()).collect();
    roles.sort_unstable();
    assert_eq!(roles, ["coordinator", "runtime", "runtime"]);
    signal(first, Signal::KILL);
    assert!(
        running
            .line_about("the manager")
            .contains("has ended (killed by signal 9): it is started again")
    );
    let second = running.manager(2);
    assert_ne!(first, second);
    assert_eq!(running.whole(), runtimes);
    assert_eq!(running.others(), before);
    signal(second, Signal::KILL);
    let third = running.manager(3);
    assert_eq!(running.role("switch"), Some((3, third)));
    assert_eq!(running.whole(), runtimes);
    assert_eq!(running.others(), before);
    signal(guard, Signal::TERM);
    assert!(running.end().success());
    running.ensure_nothing_is_left(
        &before.iter().map(|(_, pid, _)| *pid).chain([third]).collect::<Vec<_>>(),
    );
}

/// A hundred flows go through a NAT. The manager's next incarnation opens the capture
/// anew, so each flow's datagram comes again. The datagram leaves once, with the port
/// that the flow had, because switch and runtimes still know the flow.
#[test]
fn flows_keep_their_ports() {
    const FLOWS: usize = 100;
    let running = Running::with_flows(FLOWS as u16);
    let folder = running.folder.path();
    let all = || Some(translated(folder)).filter(|ports| ports.len() == FLOWS);
    let before = until("every datagram has left", all);
    for incarnation in [1, 2, 3] {
        running.whole();
        let manager = running.manager(incarnation);
        // Every datagram that leaves after this has come to a later incarnation.
        fs::remove_file(folder.join("out.pcap")).expect("it is there");
        signal(manager, Signal::KILL);
        assert_eq!(until("every datagram has left again", all), before);
    }
}

/// Rules are applied, and the manager dies: the next incarnation goes by them, and knows
/// the file that they are from.
#[test]
fn applied_rules_outlive_the_manager() {
    let running = Running::start();
    let file = running.folder.path().join("new.yaml");
    let text = fs::read_to_string(running.folder.path().join("box.yaml")).expect("it is there");
    fs::write(
        &file,
        text.replace(
            "rules: [{ chain: c }]",
            "rules: [{ from: 10.0.0.0/8, chain: c }, { chain: c }]",
        ),
    )
    .expect("a file");
    let apply = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        let output = command
            .arg("apply")
            .arg(&file)
            .arg("--control")
            .arg(running.control())
            .output()
            .expect("the program starts");
        assert!(output.status.success(), "{output:?}");
    };
    let rules = || {
        let rules = running.status()?["rules"].clone();
        (rules["in_force"] == true).then(|| (rules["version"].as_u64(), rules["count"].as_u64()))
    };
    running.whole();
    apply();
    let applied = (Some(2), Some(2));
    assert_eq!(rules(), Some(applied));
    signal(running.manager(1), Signal::KILL);
    running.manager(2);
    running.whole();
    until("the rules are in force", || rules().filter(|rules| *rules == applied));
    apply();
    assert_eq!(rules(), Some(applied), "the file says what is in force already");
}

/// A process ends while there is no manager: the next incarnation of the manager learns
/// of it, and buries it.
#[test]
fn a_death_without_a_manager_is_noticed() {
    let running = Running::start();
    let manager = running.manager(1);
    let coordinator = running.role("coordinator").expect("it answers").1;
    signal(manager, Signal::STOP);
    signal(coordinator, Signal::KILL);
    signal(manager, Signal::KILL);
    let next = until("the coordinator has a next incarnation", || {
        running.role("coordinator").filter(|(number, pid)| *number == 2 && *pid != 0)
    });
    assert_ne!(next.1, coordinator);
    assert_eq!(running.role("manager").map(|(number, _)| number), Some(2));
}

/// A manager that stands still is ended by the guard, and its next incarnation begins.
#[test]
fn a_manager_that_hangs_is_ended() {
    let mut running = Running::start();
    let before = running.others();
    let first = running.manager(1);
    signal(first, Signal::STOP);
    assert!(running.line_about("the manager").contains("killed by signal 9"));
    running.manager(2);
    assert_eq!(running.others(), before);
}

/// A manager is killed again and again, each time as soon as it is there. The next one
/// comes after a pause, and the others wait for it.
#[test]
fn a_manager_that_keeps_dying_is_started_again() {
    let mut running = Running::start();
    let before = running.others();
    let mut last = 0;
    for _ in 0..6 {
        last = until("the next manager begins", || {
            let managers =
                children(running.child.id()).into_iter().filter(|(role, _)| role == "manager");
            managers.map(|(_, pid)| pid).find(|pid| *pid != last)
        });
        signal(last, Signal::KILL);
    }
    assert!(running.line_about(" ms").contains("the manager has ended (killed by signal 9)"));
    assert_ne!(until("the next incarnation answers", || running.role("manager")).1, last);
    assert_eq!(running.others(), before);
    assert_eq!(running.child.try_wait().expect("it is our child"), None);
}

/// The guard is killed: the kernel ends all its processes.
#[test]
fn nobody_outlives_the_guard() {
    let mut running = Running::start();
    let all: Vec<u32> = children(running.child.id()).into_iter().map(|(_, pid)| pid).collect();
    assert_eq!(all.len(), 4);
    running.child.kill().expect("it is our child");
    running.child.wait().expect("it is our child");
    for pid in all {
        until("every process ends", || born(pid).is_none().then_some(()));
    }
}

/// A second box with the same socket is told of the first box, by the process that would
/// have to be stopped. The first box goes on.
#[test]
fn a_second_box_is_told_of_the_first() {
    let running = Running::start();
    let file = running.folder.path().join("box.yaml");
    let output = launch(&file, &running.control()).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(69));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains(&format!(
            "a box is running already with this control socket: process {}",
            running.child.id()
        )),
        "{text}"
    );
    assert_eq!(running.role("guard"), Some((1, running.child.id())));
}
