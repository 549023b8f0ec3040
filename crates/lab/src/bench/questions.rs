//! `holdfast bench questions`: the effect of control requests on packets.
//!
//! A whole box runs in the laboratory's namespaces, as in `bench memory`, with a given
//! number of flows and a load of datagrams whose round trips are timed. Windows with a
//! question, asked again and again, and windows without one take turns: both see the same
//! machine. The box tells the processor time of the longest step for a question: of its
//! packet loop, and of a runtime's turn. Every answer is checked.

use super::memory::{self, VIRTUAL, client};
use super::traffic::percentile;
use crate::process::signal_pid;
use crate::running::RunningBox;
use crate::udp::{make_room, stay_here};
use crate::{Interrupt, Lab, requirements};
use anyhow::{Context, Result, ensure};
use holdfast_control::Client;
use holdfast_control::api::{MigrateRequest, apply_reply};
use holdfast_control::status::{Protected, ROLE_RUNTIME, STATE_RUNNING, Status};
use holdfast_io::process::Clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde::Serialize;
use serde_json::{Value, json};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Flows of the box.
    pub flows: usize,
    /// Rules of the configurations that are applied.
    pub rules: usize,
    /// Datagrams per second.
    pub packets_per_second: u64,
    /// Windows with each question, and as many without one.
    pub rounds: usize,
    /// Length of a window; a window with a question lasts at least until its answer.
    pub window: Duration,
}

/// A row of the result. Times of packets are round trips, µs.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// The question.
    pub question: &'static str,
    /// Flows of the box.
    pub flows: usize,
    /// Number of answers.
    pub answers: usize,
    /// Mean time until an answer, ms.
    pub answer_ms: f64,
    /// Processor time of the longest step of the packet loop for it, µs.
    pub longest_us: u64,
    /// Processor time of the longest turn of a runtime for it, µs; 0 if no runtime is
    /// asked.
    pub runtimes_longest_us: u64,
    /// Median of packets' times in windows with the question.
    pub p50_us: f64,
    /// Median in the windows without.
    pub idle_p50_us: f64,
    /// 99th percentile in windows with the question.
    pub p99_us: f64,
    /// 99th percentile in the windows without.
    pub idle_p99_us: f64,
    /// 99.9th percentile in windows with the question.
    pub p999_us: f64,
    /// 99.9th percentile in the windows without.
    pub idle_p999_us: f64,
    /// Datagrams that did not come back, in windows of both kinds.
    pub lost: u64,
}

/// Flows of the load.
const LOAD_FLOWS: usize = 32;
/// Flows that one order moves.
const MOVED: u64 = 1_000;
/// Packets that one trace follows.
const TRACED: u32 = 1_000;
const LIMIT: Duration = Duration::from_secs(300);
const END: Duration = Duration::from_secs(20);
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
/// Time after which a datagram that has not come back is lost.
const LATE: Duration = Duration::from_secs(1);

/// Runs the plan with `binary` as the box. Needs root.
///
/// # Errors
/// A program or privilege is missing, or an answer was wrong.
pub fn run(plan: &Plan, binary: &Path, interrupt: &Interrupt) -> Result<Vec<Row>> {
    ensure!(
        plan.flows > 0 && plan.rounds > 0 && plan.rules > 0 && plan.packets_per_second > 0,
        "there is nothing to measure"
    );
    requirements::require(&[requirements::IP, requirements::ETHTOOL, requirements::NFT])?;
    let mut lab = Lab::new(interrupt.clone())?;
    let topology = memory::topology(&mut lab)?;
    let flows = plan.flows + LOAD_FLOWS;
    let configuration = memory::configuration(&memory::Plan { flows, limit: None, runtimes: 3 });
    let mut running =
        RunningBox::start(&lab, &topology.router, binary, &configuration.to_string())?;
    let echoes = memory::echoes(&topology)?;
    topology.client.enter(|| memory::begin(plan.flows, interrupt))??;
    let server: SocketAddr = VIRTUAL.parse().context("an address")?;
    let sockets = topology.client.enter(|| {
        let open = |flow: usize| {
            let socket = UdpSocket::bind(client(flow))?;
            make_room(&socket)?;
            socket.connect(server)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        (plan.flows..flows).map(open).collect::<std::io::Result<Vec<UdpSocket>>>()
    })?;
    let load = Load::start(sockets.context("opening the load's flows")?, plan.packets_per_second)?;
    let is_whole = |status: &Status| {
        status.runtimes().map(|runtime| runtime.flows).sum::<u64>() == flows as u64
    };
    running.wait_for("every flow is there", LIMIT, interrupt, is_whole)?;

    let client = Client::new(Some(running.control()))?;
    let asker = Asker { client, interrupt, configuration, plan, flows };
    let rows = Question::ALL.into_iter().map(|question| {
        interrupt.check()?;
        asker.measure(question, &load, &running).with_context(|| question.name())
    });
    let rows = rows.collect::<Result<Vec<Row>>>()?;
    drop(load);
    drop(echoes);
    let status = running.stop(END, interrupt).context("stopping the box")?;
    ensure!(status.success(), "SIGTERM ended the box with {status}");
    Ok(rows)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    Status,
    Flows,
    NoFlows,
    Check,
    Trace,
    Move,
    Apply,
    Reload,
    Drain,
}

impl Question {
    const ALL: [Question; 9] = [
        Question::Status,
        Question::Flows,
        Question::NoFlows,
        Question::Check,
        Question::Trace,
        Question::Move,
        Question::Apply,
        Question::Reload,
        Question::Drain,
    ];

    fn name(self) -> &'static str {
        match self {
            Question::Status => "status",
            Question::Flows => "flows",
            Question::NoFlows => "flows, none is meant",
            Question::Check => "check --live",
            Question::Trace => "trace",
            Question::Move => "migrate",
            Question::Apply => "apply",
            Question::Reload => "SIGHUP",
            Question::Drain => "drain and restore",
        }
    }
}

struct Asker<'a> {
    client: Client,
    interrupt: &'a Interrupt,
    configuration: Value,
    plan: &'a Plan,
    flows: usize,
}

impl Asker<'_> {
    fn measure(&self, question: Question, load: &Load, running: &RunningBox) -> Result<Row> {
        let (mut asked, mut idle) = (Window::default(), Window::default());
        let (mut answers, mut answering) = (0, Duration::ZERO);
        self.longest()?;
        for round in 0..self.plan.rounds {
            idle.add(load.window(|| {
                std::thread::sleep(self.plan.window);
                Ok(())
            })?);
            asked.add(load.window(|| {
                let began = Instant::now();
                while began.elapsed() < self.plan.window {
                    let asked_at = Instant::now();
                    self.ask(question, running).with_context(|| format!("in round {round}"))?;
                    answering += asked_at.elapsed();
                    answers += 1;
                }
                Ok(())
            })?);
        }
        let (longest_us, runtimes_longest_us) = self.longest()?;
        asked.times.sort_unstable();
        idle.times.sort_unstable();
        let (asked_at, idle_at) = (&asked.times, &idle.times);
        let at = |times: &[u64], percent: f64| percentile(times, percent) / 1e3;
        Ok(Row {
            version: 1,
            question: question.name(),
            flows: self.flows,
            answers,
            answer_ms: answering.as_secs_f64() * 1e3 / answers.max(1) as f64,
            longest_us,
            runtimes_longest_us,
            p50_us: at(asked_at, 50.0),
            idle_p50_us: at(idle_at, 50.0),
            p99_us: at(asked_at, 99.0),
            idle_p99_us: at(idle_at, 99.0),
            p999_us: at(asked_at, 99.9),
            idle_p999_us: at(idle_at, 99.9),
            lost: asked.lost() + idle.lost(),
        })
    }

    /// Processor times of the longest steps for questions since the last call, µs.
    fn longest(&self) -> Result<(u64, u64)> {
        // A runtime tells its time with its next report.
        std::thread::sleep(Duration::from_millis(300));
        let pong = self.client.ping()?;
        Ok((pong.longest_us, pong.runtimes_longest_us))
    }

    fn ask(&self, question: Question, running: &RunningBox) -> Result<()> {
        match question {
            Question::Status => {
                let status = running.status()?;
                ensure!(status.runtimes().count() == 3, "{status:?}");
            }
            Question::Flows => {
                let mut found = 0;
                self.client.flows("", u32::MAX, |flows| {
                    found += flows.len();
                    Ok(())
                })?;
                ensure!(found == self.flows, "{found} of {} flows were listed", self.flows);
            }
            Question::NoFlows => {
                let list = self.client.list("tcp", u32::MAX)?;
                ensure!(list.flows.is_empty() && !list.truncated, "there is no TCP: {list:?}");
            }
            Question::Check => drop(running.ask("check --live --for 1")?),
            Question::Trace => {
                let (mut steps, wait) = (0, Duration::from_secs(10));
                let packets = self.client.trace(String::new(), TRACED, wait, |_| {
                    steps += 1;
                    Ok(())
                })?;
                ensure!(
                    packets >= u64::from(TRACED) && steps >= packets,
                    "{packets} packets in {steps} steps"
                );
            }
            Question::Move => {
                let status = running.status()?;
                let mut runtimes: Vec<_> = status
                    .processes
                    .iter()
                    .filter(|one| one.role == ROLE_RUNTIME && one.state == STATE_RUNNING)
                    .collect();
                runtimes.sort_by_key(|one| one.flows);
                let [least, .., most] = runtimes[..] else { anyhow::bail!("{status:?}") };
                let (from, to, limit) = (most.id, Some(least.id), Some(MOVED));
                let order = MigrateRequest { from, to, limit, filter: String::new() };
                let progress = self.client.migrate(order)?.watch(|_| {})?;
                ensure!(progress.moved > 0 && !progress.failed, "{progress:?}");
            }
            Question::Apply => {
                // Rules must differ from the previous ones: each set has another port.
                let version = running.status()?.rules.map_or(0, |rules| rules.version);
                let port = 1000 + version % 2;
                let rule = |at: usize| {
                    let network = format!("172.{}.{}.0/24", 16 + at / 256, at % 256);
                    json!({ "from": network, "proto": "udp", "ports": port, "chain": "web" })
                };
                let mut configuration = self.configuration.clone();
                let rules = (0..self.plan.rules).map(rule).chain([json!({ "chain": "web" })]);
                configuration["rules"] = rules.collect();
                let answer =
                    self.client.apply("questions".to_owned(), configuration.to_string(), false)?;
                let has_changed =
                    matches!(&answer, apply_reply::Result::Applied(applied) if applied.changed);
                ensure!(has_changed, "nothing changed: {answer:?}");
            }
            Question::Reload => {
                let guard = running.status()?.guard().map(|guard| guard.pid);
                signal_pid(guard.context("the box has a guard")?, Signal::HUP)?;
                // The box looks for signals once a second.
                std::thread::sleep(Duration::from_millis(1_100));
            }
            Question::Drain => {
                let runtime = running.busiest(None)?.id;
                let progress = self.client.drain(runtime, false)?.watch(|_| {})?;
                ensure!(progress.moved > 0 && !progress.failed, "{progress:?}");
                self.client.restore(runtime)?;
                running.wait_for(
                    "the runtime is back, and every flow is safe",
                    LIMIT,
                    self.interrupt,
                    |status| {
                        let is_back =
                            status.runtime(runtime).is_some_and(|one| one.state == STATE_RUNNING);
                        is_back && status.protected() == Protected::Yes
                    },
                )?;
            }
        }
        Ok(())
    }
}

/// Datagrams that were sent in one window, or several.
#[derive(Debug, Default)]
struct Window {
    sent: u64,
    /// Round-trip times of the datagrams that returned, ns.
    times: Vec<u64>,
}

impl Window {
    fn add(&mut self, other: Window) {
        self.sent += other.sent;
        self.times.extend(other.times);
    }

    fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.times.len() as u64)
    }
}

/// State that the load's thread and the asking thread share.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Number of the window that was opened last.
    window: AtomicU64,
    windows: Mutex<Vec<Window>>,
}

impl Shared {
    fn windows(&self) -> MutexGuard<'_, Vec<Window>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running load.
struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn start(sockets: Vec<UdpSocket>, per_second: u64) -> Result<Load> {
        let shared =
            Arc::new(Shared { windows: Mutex::new(vec![Window::default()]), ..Shared::default() });
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("load".into()).spawn(move || {
            stay_here();
            send(&sockets, per_second, &theirs);
        })?;
        Ok(Load { shared, thread: Some(thread) })
    }

    fn open_window(&self) -> usize {
        let mut windows = self.shared.windows();
        windows.push(Window::default());
        self.shared.window.store(windows.len() as u64 - 1, Ordering::SeqCst);
        windows.len() - 1
    }

    /// Returns the datagrams that were sent during `act`.
    fn window(&self, act: impl FnOnce() -> Result<()>) -> Result<Window> {
        let at = self.open_window();
        act()?;
        self.open_window();
        // A datagram on its way is not lost.
        let began = Instant::now();
        while self.shared.windows()[at].lost() > 0 && began.elapsed() < LATE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let window = core::mem::take(&mut self.shared.windows()[at]);
        ensure!(!window.times.is_empty(), "no datagram came back");
        Ok(window)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn send(sockets: &[UdpSocket], per_second: u64, shared: &Shared) {
    let clock = Clock::new();
    let (began, mut due_before) = (clock.now(), 0);
    while !shared.stop.load(Ordering::Relaxed) {
        let due = ((clock.now() - began) as u128 * u128::from(per_second) / 1_000_000_000) as u64;
        // After a stall of this thread the backlog is not sent in one burst.
        let now_due = (due - due_before).min(64);
        let window = shared.window.load(Ordering::SeqCst);
        shared.windows()[window as usize].sent += now_due;
        for at in 0..now_due {
            let socket = &sockets[((due_before + at) % sockets.len() as u64) as usize];
            // A datagram that the socket refuses is sent and lost.
            let _ = socket.send(&[clock.now().to_be_bytes(), window.to_be_bytes()].concat());
        }
        due_before = due;
        let mut ready: Vec<PollFd<'_>> =
            sockets.iter().map(|at| PollFd::from_borrowed_fd(at.as_fd(), PollFlags::IN)).collect();
        let _ = poll(&mut ready, Some(&TICK));
        let ready: Vec<bool> = ready.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut block = [0; 64];
        for (socket, _) in sockets.iter().zip(ready).filter(|(_, is_ready)| *is_ready) {
            while let Ok(len) = socket.recv(&mut block) {
                let Some((sent_at, window)) = block[..len].split_first_chunk::<8>() else {
                    continue;
                };
                let Ok(window) = window.try_into().map(u64::from_be_bytes) else { continue };
                let time = clock.now().saturating_sub(u64::from_be_bytes(*sent_at));
                if let Some(window) = shared.windows().get_mut(window as usize) {
                    window.times.push(time);
                }
            }
        }
    }
}
