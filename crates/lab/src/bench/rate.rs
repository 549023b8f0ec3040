//! `holdfast bench rate`: the rate of TCP transfers while the balancer in front of their
//! servers is killed again and again.
//!
//! The plan is that of RESCue's figure on failures (section VI). A whole box runs in the
//! laboratory's namespaces, with three instances of firewall, NAT and load balancer.
//! Servers send through TCP connections at full speed. Every ten seconds the instance
//! that has most connections is killed with SIGKILL, and no other process is told.
//! Received bytes are counted every ten milliseconds. Each connection's bytes are
//! numbered; no time counts if a byte is missing or a connection breaks.

use crate::demo::PROTECTED;
use crate::demo::scenario::{RECOVERY_LIMIT, addresses};
use crate::process::signal_pid;
use crate::running::{RunningBox, Victim};
use crate::topology::Topology;
use crate::{Interrupt, Lab, Namespace, requirements, until};
use anyhow::{Context, Result, ensure};
use holdfast_control::flows::Flows;
use holdfast_control::status::{Protected, Status};
use holdfast_io::process::Clock;
use rustix::process::Signal;
use serde::Serialize;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Duration under each protection, s.
    pub seconds: u64,
    /// Time between two kills of an instance, s.
    pub every: u64,
    /// Connections.
    pub connections: usize,
}

/// A second of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// `rescue`, `rescue-at-once` or `nfvactor`.
    pub protection: &'static str,
    /// Number of the second, from 1.
    pub second: u64,
    /// Data that arrived in this second, megabits.
    pub mbps: f64,
    /// The longest time in this second in which no data arrived, ms; 0 if data arrived
    /// all the time.
    pub gap_ms: u64,
    /// Connections of the instance that was killed at the start of this second.
    pub killed: Option<usize>,
    /// Time from the kill until its detection, ms.
    pub detected_ms: Option<f64>,
    /// Time from the detection until all flows were served again, ms.
    pub recovered_ms: Option<f64>,
    /// The longest time until the next kill in which no data arrived on any of the killed
    /// instance's connections, ms.
    pub gap_of_its_ms: Option<u64>,
}

const PROTECTIONS: [(&str, &str); 3] = [
    ("rescue", "rescue"),
    ("rescue-at-once", "{ preset: rescue, release: at-once }"),
    ("nfvactor", "nfvactor"),
];
const SERVERS: [&str; 2] = ["198.51.100.11:80", "198.51.100.12:80"];
const VIRTUAL: &str = "203.0.113.10:80";
/// Length of a counting interval, ms.
const BIN: u64 = 10;
const BINS_OF_SECOND: usize = (1000 / BIN) as usize;
/// The processes of the box end within this time.
const END: Duration = Duration::from_secs(10);
/// Bytes of a number in the transferred data.
const WORD: usize = 8;
const CHUNK: usize = 64 * 1024;

/// Runs the plan with `binary` as the box. Needs root.
///
/// # Errors
/// A program or privilege is missing, or the result is wrong; no time counts then.
pub fn run(plan: &Plan, binary: &Path) -> Result<Vec<Row>> {
    ensure!(
        plan.every >= 2 && plan.seconds > plan.every && plan.connections > 0,
        "there is nothing to measure, or too often"
    );
    requirements::require(&[requirements::IP, requirements::ETHTOOL, requirements::NFT])?;
    let interrupt = Interrupt::on_signals()?;
    let mut rows = Vec::new();
    for (name, protection) in PROTECTIONS {
        rows.extend(
            measure(plan, name, protection, binary, &interrupt)
                .with_context(|| format!("under {name}"))?,
        );
    }
    Ok(rows)
}

/// A kill and its recovery.
struct Kill {
    bin: usize,
    its: Vec<usize>,
    detected_ms: f64,
    recovered_ms: f64,
}

fn measure(
    plan: &Plan,
    name: &'static str,
    protection: &str,
    binary: &Path,
    interrupt: &Interrupt,
) -> Result<Vec<Row>> {
    let mut lab = Lab::new(interrupt.clone())?;
    let topology = Topology::build(&mut lab, &addresses())?;
    let configuration =
        PROTECTED.replace("protection: nfvactor", &format!("protection: {protection}"));
    let mut running = RunningBox::start(&lab, &topology.router, binary, &configuration)?;
    let sources = SERVERS
        .iter()
        .map(|address| Source::start(&topology.server, address.parse()?))
        .collect::<Result<Vec<_>>>()?;
    let transfers = Transfers::start(&topology.client, VIRTUAL.parse()?, plan)?;
    let is_under_way =
        || Ok((0..plan.connections).all(|at| transfers.shared.has_begun(at)).then_some(()));
    until("every connection carries something", RECOVERY_LIMIT, interrupt, is_under_way)?;
    let is_safe = |status: &Status| status.protected() == Protected::Yes;
    running.wait_for("everything is protected", RECOVERY_LIMIT, interrupt, is_safe)?;

    let (began, first) = (transfers.shared.elapsed(), transfers.shared.bin());
    let mut kills = Vec::new();
    for at in (plan.every..plan.seconds).step_by(plan.every as usize) {
        let due = began + Duration::from_secs(at);
        until("it is time", Duration::from_secs(2 * plan.every + 1), interrupt, || {
            Ok((transfers.shared.elapsed() >= due).then_some(()))
        })?;
        kills.push(kill(&running, &transfers, interrupt)?);
    }
    let end = began + Duration::from_secs(plan.seconds);
    until("it is over", Duration::from_secs(plan.every + 1), interrupt, || {
        Ok((transfers.shared.elapsed() >= end).then_some(()))
    })?;
    let seen = transfers.finish()?;
    drop(sources);
    let status = running.stop(END, interrupt).context("stopping the box")?;
    ensure!(status.success(), "SIGTERM ended the box with {status}");
    Ok(rows(plan, name, &seen, first, &kills))
}

/// Kills the instance that has the most connections.
fn kill(running: &RunningBox, transfers: &Transfers, interrupt: &Interrupt) -> Result<Kill> {
    let said: Flows =
        serde_json::from_str(&running.ask("flows --limit 10000 tcp from any to any port 80")?)?;
    let of = |owner: u32| {
        let ports = said
            .flows
            .iter()
            .filter(move |flow| flow.owner == owner)
            .map(|flow| flow.source_port());
        ports
            .filter_map(|port| transfers.ports.iter().position(|own| *own == port))
            .collect::<Vec<usize>>()
    };
    let status = running.status()?;
    let victim = status
        .runtimes()
        .max_by_key(|runtime| of(runtime.id).len())
        .map(Victim::of)
        .context("somebody serves")?;
    let its = of(victim.id);
    ensure!(!its.is_empty(), "nobody has a connection: {status:?}");
    let bin = transfers.shared.bin();
    // The box's clock is the host's, so times can be compared.
    let killed = Clock::new().now();
    signal_pid(victim.pid, Signal::KILL)?;
    let status = running.wait_for("it is recovered", RECOVERY_LIMIT, interrupt, |status| {
        status
            .failover(victim.id, victim.incarnation)
            .is_some_and(|failover| failover.recovered_us.is_some())
    })?;
    let failover = status.failover(victim.id, victim.incarnation).context("it is listed")?;
    ensure!(failover.lost == 0, "flows were lost: {failover:?}");
    let detected_ms = failover.detected_at_ns.saturating_sub(killed) as f64 / 1e6;
    Ok(Kill {
        bin,
        its,
        detected_ms,
        recovered_ms: failover.recovered_us.unwrap_or_default() as f64 / 1e3,
    })
}

/// Bytes that arrived in each interval, by connection.
type Seen = Vec<Vec<u64>>;

fn rows(
    plan: &Plan,
    protection: &'static str,
    seen: &Seen,
    began: usize,
    kills: &[Kill],
) -> Vec<Row> {
    let longest_gap = |connections: &[usize], bins: std::ops::Range<usize>| {
        let (mut gap, mut longest) = (0, 0);
        for bin in bins {
            let is_empty =
                connections.iter().all(|at| seen[*at].get(bin).is_none_or(|bytes| *bytes == 0));
            gap = if is_empty { gap + BIN } else { 0 };
            longest = longest.max(gap);
        }
        longest
    };
    let all: Vec<usize> = (0..seen.len()).collect();
    let row = |second: u64| {
        let bins = began + second as usize * BINS_OF_SECOND
            ..began + (second as usize + 1) * BINS_OF_SECOND;
        let bytes: u64 = seen.iter().flat_map(|bins_of| bins_of.get(bins.clone())).flatten().sum();
        let kill = kills.iter().find(|kill| bins.contains(&kill.bin));
        let end = began + plan.seconds as usize * BINS_OF_SECOND;
        let until_next =
            |kill: &Kill| kill.bin..end.min(kill.bin + plan.every as usize * BINS_OF_SECOND);
        Row {
            version: 1,
            protection,
            second: second + 1,
            mbps: bytes as f64 * 8.0 / 1e6,
            gap_ms: longest_gap(&all, bins.clone()),
            killed: kill.map(|kill| kill.its.len()),
            detected_ms: kill.map(|kill| kill.detected_ms),
            recovered_ms: kill.map(|kill| kill.recovered_ms),
            gap_of_its_ms: kill.map(|kill| longest_gap(&kill.its, until_next(kill))),
        }
    };
    (0..plan.seconds).map(row).collect()
}

/// A server that sends numbers at full speed to every client.
struct Source {
    address: SocketAddr,
    namespace: Namespace,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Source {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Connects once, because the thread waits for a connection.
        let _ = self
            .namespace
            .enter(|| TcpStream::connect_timeout(&self.address, Duration::from_secs(1)));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Source {
    fn start(namespace: &Namespace, address: SocketAddr) -> Result<Source> {
        let listener = namespace.enter(|| TcpListener::bind(address))??;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let serve = move || {
            for connection in listener.incoming().map_while(|connection| connection.ok()) {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                // The thread ends with its connection.
                std::thread::spawn(move || send(connection));
            }
        };
        let thread = std::thread::Builder::new().name("source".into()).spawn(serve)?;
        Ok(Source { address, namespace: namespace.clone(), stop, thread: Some(thread) })
    }
}

fn send(mut connection: TcpStream) {
    let mut chunk = vec![0; CHUNK];
    let mut next = 0u64;
    loop {
        for word in chunk.chunks_exact_mut(WORD) {
            word.copy_from_slice(&next.to_be_bytes());
            next += 1;
        }
        if connection.write_all(&chunk).is_err() {
            return;
        }
    }
}

struct Shared {
    began: Instant,
    stop: AtomicBool,
    /// Bytes per interval, by connection.
    bins: Vec<Vec<AtomicU64>>,
}

impl Shared {
    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// The present interval.
    fn bin(&self) -> usize {
        (self.elapsed().as_millis() as u64 / BIN) as usize
    }

    fn has_begun(&self, at: usize) -> bool {
        self.bins[at].iter().any(|bytes| bytes.load(Ordering::Relaxed) > 0)
    }
}

/// Running transfers.
struct Transfers {
    shared: Arc<Shared>,
    /// The client's port, by connection.
    ports: Vec<u16>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Transfers {
    fn start(client: &Namespace, to: SocketAddr, plan: &Plan) -> Result<Transfers> {
        // Room for the start, and for recoveries from kills.
        let bins = (plan.seconds as usize + 120) * BINS_OF_SECOND;
        let shared = Arc::new(Shared {
            began: Instant::now(),
            stop: AtomicBool::new(false),
            bins: (0..plan.connections)
                .map(|_| (0..bins).map(|_| AtomicU64::new(0)).collect())
                .collect(),
        });
        let (mut ports, mut threads) = (Vec::new(), Vec::new());
        for at in 0..plan.connections {
            let connection =
                client.enter(|| TcpStream::connect_timeout(&to, END))?.context("connecting")?;
            connection.set_read_timeout(Some(RECOVERY_LIMIT))?;
            ports.push(connection.local_addr()?.port());
            let theirs = shared.clone();
            threads.push(
                std::thread::Builder::new()
                    .name("sink".into())
                    .spawn(move || receive(connection, at, &theirs))?,
            );
        }
        Ok(Transfers { shared, ports, threads })
    }

    fn finish(self) -> Result<Seen> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        let bins = self.shared.bins.iter();
        Ok(bins
            .map(|bins| bins.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect())
            .collect())
    }
}

/// Reads until it is told to stop.
///
/// # Errors
/// The connection broke or stood still, or the bytes were not those that were sent.
fn receive(mut connection: TcpStream, at: usize, shared: &Shared) -> Result<()> {
    let mut buffer = vec![0; CHUNK + WORD];
    let (mut have, mut next) = (0, 0u64);
    while !shared.stop.load(Ordering::Relaxed) {
        let got =
            connection.read(&mut buffer[have..]).with_context(|| format!("connection {at}"))?;
        ensure!(got > 0, "connection {at} has ended");
        if let Some(bytes) = shared.bins[at].get(shared.bin()) {
            bytes.fetch_add(got as u64, Ordering::Relaxed);
        }
        let end = have + got;
        let whole = end / WORD * WORD;
        for word in buffer[..whole].chunks_exact(WORD) {
            ensure!(
                word == next.to_be_bytes(),
                "connection {at} has got {word:?} in the place of number {next}"
            );
            next += 1;
        }
        buffer.copy_within(whole..end, 0);
        have = end - whole;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transfer without a box: numbers arrive in order; a broken connection is an
    /// error.
    #[test]
    fn what_arrives_is_what_was_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let shared = || Shared {
            began: Instant::now(),
            stop: AtomicBool::new(false),
            bins: vec![(0..6000).map(|_| AtomicU64::new(0)).collect()],
        };
        let play = |serve: fn(TcpStream)| {
            let connection = TcpStream::connect(to).unwrap();
            let theirs = listener.accept().unwrap().0;
            let shared = shared();
            std::thread::scope(|scope| {
                scope.spawn(move || serve(theirs));
                let outcome = scope.spawn(|| receive(connection, 0, &shared));
                while !outcome.is_finished()
                    && shared.bins[0].iter().map(|bin| bin.load(Ordering::Relaxed)).sum::<u64>()
                        < 1_000_000
                {
                    std::thread::yield_now();
                }
                shared.stop.store(true, Ordering::Relaxed);
                outcome.join().unwrap()
            })
        };
        play(send).unwrap();
        let early = play(|mut connection| connection.write_all(&[0; 8]).unwrap()).unwrap_err();
        assert_eq!(early.to_string(), "connection 0 has ended");
        let wrong = play(|mut connection| connection.write_all(&[0; 16]).unwrap()).unwrap_err();
        assert!(wrong.to_string().contains("in the place of number 1"), "{wrong}");
    }

    /// The second of two connections stands still for 50 ms after the kill.
    #[test]
    fn gaps_are_counted() {
        let plan = Plan { seconds: 2, every: 1, connections: 2 };
        let mut seen = vec![vec![1_000; 300]; 2];
        seen[1][203..208].fill(0);
        let kills = [Kill { bin: 201, its: vec![1], detected_ms: 1.0, recovered_ms: 2.0 }];
        let rows = rows(&plan, "rescue", &seen, 100, &kills);
        let found: Vec<_> = rows
            .iter()
            .map(|row| (row.second, row.gap_ms, row.killed, row.gap_of_its_ms))
            .collect();
        assert_eq!(found, [(1, 0, None, None), (2, 0, Some(1), Some(50))]);
        assert!((rows[0].mbps - 1.6).abs() < 1e-9 && (rows[1].mbps - 1.56).abs() < 1e-9);
    }
}
