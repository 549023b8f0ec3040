//! `holdfast run` in a namespace, and how to ask, kill and stop it.

use super::process::{Process, quoting, signal_pid};
use super::wait::{Interrupt, until_every};
use super::{Lab, Namespace};
use anyhow::{Context, Result, bail};
use holdfast_control::status::{self, Protected, Status};
use holdfast_control::{Client, object};
use rustix::process::Signal;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Longest time from the start to `ready`.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// Time between two queries of a box's status. The box's manager answers between packets.
const ASK_INTERVAL: Duration = Duration::from_millis(15);

thread_local! {
    static LEFT_BEHIND: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// State and log of each box that this thread has dropped since the last call and that
/// was not stopped in order. The cause of a failed test often shows only there.
pub fn left_behind() -> Vec<String> {
    LEFT_BEHIND.take()
}

/// A running box. Dropping it kills it; [`RunningBox::stop`] stops it as an operator
/// would.
#[derive(Debug)]
pub struct RunningBox {
    process: Process,
    binary: PathBuf,
    control: PathBuf,
}

/// A runtime as it was when it was chosen to fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim {
    /// Node number.
    pub id: u32,
    /// The runtime's incarnation.
    pub incarnation: u64,
    /// Process id.
    pub pid: u32,
    /// Flows that the runtime owned.
    pub flows: u64,
}

impl Victim {
    /// A runtime as the status shows it.
    pub fn of(process: &status::Process) -> Victim {
        Victim {
            id: process.id,
            incarnation: process.incarnation,
            pid: process.pid,
            flows: process.flows,
        }
    }
}

/// Times of a recovery from a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// From the signal until a new incarnation served, as seen by polling.
    pub back: Duration,
    /// From the signal until the box detected the failure.
    pub detected: Option<Duration>,
    /// From the signal until the box reported protection again, as seen by polling;
    /// `None` under a protection that never reports it.
    pub protected: Option<Duration>,
    /// The box's own record of the failover.
    pub failover: Option<status::Failover>,
}

impl RunningBox {
    /// Starts `BINARY run CONFIGURATION --control …` inside `namespace`, and waits for
    /// its `ready` line.
    pub fn start(
        lab: &Lab,
        namespace: &Namespace,
        binary: &Path,
        configuration: &str,
    ) -> Result<RunningBox> {
        let mut running = RunningBox::launch(lab, namespace, binary, configuration)?;
        running.wait_ready(lab.interrupt())?;
        Ok(running)
    }

    /// Waits until the box has printed that it is ready.
    pub fn wait_ready(&mut self, interrupt: &Interrupt) -> Result<()> {
        let said_ready = |process: &Process| {
            Ok(process.stdout().lines().any(|line| line.starts_with("ready")).then_some(()))
        };
        self.process.wait_while_running(
            "holdfast run says ready",
            READY_LIMIT,
            interrupt,
            said_ready,
        )
    }

    /// Starts a box without waiting: for configurations that must be refused.
    pub fn launch(
        lab: &Lab,
        namespace: &Namespace,
        binary: &Path,
        configuration: &str,
    ) -> Result<RunningBox> {
        RunningBox::launch_as(lab, namespace, binary, Some(configuration), None, &[])
    }

    /// Starts one host of a box that has several, without waiting.
    pub fn launch_host(
        lab: &Lab,
        namespace: &Namespace,
        binary: &Path,
        configuration: &str,
        host: &str,
    ) -> Result<RunningBox> {
        RunningBox::launch_as(lab, namespace, binary, Some(configuration), Some(host), &[])
    }

    /// Like `RunningBox::launch_host`, with more arguments. Without a configuration, the
    /// arguments must say where the host fetches it.
    pub fn launch_host_with(
        lab: &Lab,
        namespace: &Namespace,
        binary: &Path,
        configuration: Option<&str>,
        host: &str,
        arguments: &[&str],
    ) -> Result<RunningBox> {
        RunningBox::launch_as(lab, namespace, binary, configuration, Some(host), arguments)
    }

    fn launch_as(
        lab: &Lab,
        namespace: &Namespace,
        binary: &Path,
        configuration: Option<&str>,
        host: Option<&str>,
        arguments: &[&str],
    ) -> Result<RunningBox> {
        let name = host.unwrap_or("holdfast");
        let control = lab
            .scratch()
            .join(host.map_or("control.sock".to_owned(), |host| format!("{host}.sock")));
        let mut command = namespace.command(binary);
        command.arg("run");
        if let Some(configuration) = configuration {
            command.arg(lab.write(&format!("{name}.yaml"), configuration)?);
        }
        command.arg("--control").arg(&control).args(arguments);
        if let Some(host) = host {
            command.args(["--host", host]);
        }
        let process = Process::start(command, name, lab.scratch())?;
        Ok(RunningBox { process, binary: binary.to_owned(), control })
    }

    /// The manager's process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The box's standard error so far.
    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// Path of the box's control socket.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Asks for the status from this process, like `holdfast status --json`.
    pub fn status(&self) -> Result<Status> {
        let status = Client::new(Some(&self.control)).and_then(|client| client.status());
        let status = status.map_err(|error| quoting(error.into(), &self.process.last_words()))?;
        if status.version != status::VERSION {
            bail!("the status has version {}, understood is {}", status.version, status::VERSION);
        }
        Ok(status)
    }

    /// The command `holdfast COMMAND --control … --json`, not started yet.
    pub fn command(&self, command: &str) -> Command {
        let mut asking = Command::new(&self.binary);
        asking.args(command.split(' ')).args(["--json", "--control"]).arg(&self.control);
        asking
    }

    /// Runs `holdfast COMMAND --control … --json` and returns its output.
    pub fn ask(&self, command: &str) -> Result<String> {
        super::namespace::run(&mut self.command(command))
            .map_err(|error| quoting(error, &self.process.last_words()))
    }

    /// Waits until the status satisfies `wanted`; the error on failure contains the last
    /// status.
    pub fn wait_for(
        &self,
        what: &str,
        limit: Duration,
        interrupt: &Interrupt,
        mut wanted: impl FnMut(&Status) -> bool,
    ) -> Result<Status> {
        let mut last = None;
        let answer = until_every(ASK_INTERVAL, what, limit, interrupt, || {
            let status = self.status()?;
            let so = wanted(&status);
            last = Some(status);
            Ok(so.then(|| last.take()).flatten())
        });
        answer.map_err(|error| match &last {
            Some(status) => quoting(
                error,
                &format!("the last status was {status:?}\n{}", self.process.last_words()),
            ),
            None => error,
        })
    }

    /// The runtime that owns most flows, not counting `except`. Fails if no runtime owns
    /// a flow: killing it would show nothing.
    pub fn busiest(&self, except: Option<u32>) -> Result<Victim> {
        let status = self.status()?;
        let process = status
            .busiest_runtime(except)
            .with_context(|| format!("no runtime serves: {status:?}"))?;
        if process.flows == 0 {
            bail!("no runtime owns a flow: {status:?}");
        }
        Ok(Victim::of(process))
    }

    /// Kills a runtime with SIGKILL and waits until its new incarnation serves. If the
    /// protection promises it, waits until everything is protected again too.
    pub fn kill(
        &self,
        victim: &Victim,
        promised: bool,
        limit: Duration,
        interrupt: &Interrupt,
    ) -> Result<Recovery> {
        let killed = Instant::now();
        // The box's clock is the host's, so its detection and recovery times can be
        // compared with this one.
        let killed_at = holdfast_io::process::Clock::new().now();
        signal_pid(victim.pid, Signal::KILL)?;
        let what = format!("runtime {} is back", victim.id);
        let mut status = self.wait_for(&what, limit, interrupt, |status| {
            let successor = status.runtime(victim.id);
            successor.is_some_and(|process| {
                process.incarnation > victim.incarnation && process.state == status::STATE_RUNNING
            })
        })?;
        let back = killed.elapsed();
        let mut protected = None;
        if promised {
            let what =
                format!("everything is protected again after the failure of runtime {}", victim.id);
            let recovered = |status: &Status| {
                let failover = status.failover(victim.id, victim.incarnation);
                status.protected() == Protected::Yes
                    && failover.is_some_and(|failover| failover.recovered_us.is_some())
            };
            status = self.wait_for(&what, limit, interrupt, recovered)?;
            protected = Some(killed.elapsed());
        }
        let failover = status.failover(victim.id, victim.incarnation).cloned();
        let detected = failover.as_ref().map(|failover| {
            Duration::from_nanos(failover.detected_at_ns.saturating_sub(killed_at))
        });
        Ok(Recovery { back, detected, protected, failover })
    }

    /// Stops the box with SIGTERM and waits for its end.
    pub fn stop(&mut self, limit: Duration, interrupt: &Interrupt) -> Result<ExitStatus> {
        self.process.signal(Signal::TERM)?;
        self.process
            .wait(limit, interrupt)
            .map_err(|error| quoting(error, &self.process.last_words()))
    }
}

impl Drop for RunningBox {
    fn drop(&mut self) {
        let state = match self.process.try_wait() {
            Ok(Some(status)) if status.success() => return,
            Ok(Some(status)) => format!("has ended ({status})"),
            _ => match Client::new(Some(&self.control)).and_then(|client| client.status()) {
                Ok(status) => format!("was running: {}", object(&status)),
                Err(error) => format!("was running: {error}"),
            },
        };
        let said = self.process.stderr();
        let lines: Vec<&str> = said.lines().collect();
        let log = lines[lines.len().saturating_sub(60)..].join("\n");
        let words = format!("--- {} {state}\n--- its log ends so:\n{log}", self.process.name());
        // The thread may be ending; its list is gone then, and no one would read it.
        _ = LEFT_BEHIND.try_with(|left| left.borrow_mut().push(words));
    }
}
