//! `holdfast bench failover`: how long a flow is not served when the runtime that owns it
//! is killed, in a whole box.
//!
//! The box runs in the laboratory's namespaces with three runtimes; numbered datagrams go
//! through it and back at a steady rate. A runtime is killed with SIGKILL, and no other
//! process is told. The datagrams of its flows are watched, and when everything is
//! protected again the next runtime is killed. After some kills a new box is started,
//! because runtimes that keep dying are restarted with longer and longer pauses. No time
//! counts unless a ledger shows that no datagram came back twice or changed. Datagrams
//! that only the dead runtime had are lost, as on any network, and counted.

use super::traffic::percentile;
use crate::demo::PROTECTED;
use crate::demo::scenario::{RECOVERY_LIMIT, addresses};
use crate::process::signal_pid;
use crate::running::RunningBox;
use crate::topology::Topology;
use crate::udp::{Echo, make_room, stay_here};
use crate::{Interrupt, Lab, requirements, until};
use anyhow::{Context, Result, ensure};
use holdfast_control::flows::Flows;
use holdfast_control::status::{Protected, Status};
use holdfast_io::process::Clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde::Serialize;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Kills under each protection.
    pub kills: usize,
    /// Flows.
    pub flows: usize,
    /// Datagrams per second, all flows together.
    pub packets_per_second: u64,
}

/// A row of the result. Times in µs.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// `nfvactor` or `reinforce`, with a standby on another runtime.
    pub protection: &'static str,
    /// The time of this row. From the kill until the first later datagram comes back: of
    /// any of the dead runtime's flows, or of the last of them. From the kill until the
    /// coordinator detects the failure; from then until it has the account of all.
    pub case: &'static str,
    /// Kills.
    pub kills: usize,
    /// Flows of the killed runtimes, per kill.
    pub flows_each: f64,
    /// Datagrams per second.
    pub packets_per_second: u64,
    /// Median, µs.
    pub p50_us: f64,
    /// 90th percentile over the kills, µs.
    pub p90_us: f64,
    /// 99th percentile, µs.
    pub p99_us: f64,
    /// Maximum, µs.
    pub max_us: f64,
    /// Datagrams sent.
    pub packets: u64,
    /// Datagrams that did not come back, per kill.
    pub lost_each: f64,
    /// Datagrams that came back behind a later one of their flow. The kernel queues sent
    /// packets by processor, so packets of a process that moves between processors may
    /// overtake one another.
    pub late: u64,
}

/// Kills of one box: each of its runtimes is started again twice without a pause.
const KILLS_OF_A_BOX: usize = 6;
const PROTECTIONS: [&str; 2] = ["nfvactor", "reinforce"];
/// Address of the echo server.
const ECHO: &str = "198.51.100.11:7007";
/// The processes of the box end within this time.
const END: Duration = Duration::from_secs(10);
/// Time between two looks at the sockets.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

/// Runs the plan with `binary` as the box. Needs root.
///
/// # Errors
/// A program or privilege is missing, or the result is wrong; no time counts then.
pub fn run(plan: &Plan, binary: &Path) -> Result<Vec<Row>> {
    ensure!(
        plan.kills > 0 && plan.flows > 0 && plan.packets_per_second > 0,
        "there is nothing to measure"
    );
    requirements::require(&[requirements::IP, requirements::ETHTOOL, requirements::NFT])?;
    let interrupt = Interrupt::on_signals()?;
    let mut rows = Vec::new();
    for protection in PROTECTIONS {
        rows.extend(
            measure(plan, protection, binary, &interrupt)
                .with_context(|| format!("under {protection}"))?,
        );
    }
    Ok(rows)
}

/// The times of one kill, ns.
struct Times {
    first: u64,
    last: u64,
    detected: u64,
    recovered: u64,
}

/// Measurements of one box.
struct Seen {
    kills: Vec<Times>,
    /// Flows of the killed runtimes.
    owned: usize,
    counts: Counts,
}

/// Starts a box and kills `kills` of its runtimes.
fn look_at(
    kills: usize,
    plan: &Plan,
    protection: &str,
    binary: &Path,
    interrupt: &Interrupt,
) -> Result<Seen> {
    let mut lab = Lab::new(interrupt.clone())?;
    let topology = Topology::build(&mut lab, &addresses())?;
    let configuration =
        PROTECTED.replace("protection: nfvactor", &format!("protection: {protection}"));
    let mut running = RunningBox::start(&lab, &topology.router, binary, &configuration)?;
    let server = ECHO.parse().context("an address")?;
    let echo = Echo::start(&topology.server, server)?;
    let sockets = topology.client.enter(|| {
        let open = || {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            make_room(&socket)?;
            socket.connect(server)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        (0..plan.flows).map(|_| open()).collect::<std::io::Result<Vec<UdpSocket>>>()
    })?;
    let probe = Probe::start(sockets.context("opening the flows")?, plan.packets_per_second)?;
    probe.shared.watch();
    until("every flow is under way", RECOVERY_LIMIT, interrupt, || {
        Ok(probe.shared.are_served(&probe.all()).then_some(()))
    })?;

    let mut seen = Seen { kills: Vec::with_capacity(kills), owned: 0, counts: Counts::default() };
    for _ in 0..kills {
        let is_safe = |status: &Status| status.protected() == Protected::Yes;
        running.wait_for("everything is protected", RECOVERY_LIMIT, interrupt, is_safe)?;
        let victim = running.busiest(None)?;
        let said: Flows = serde_json::from_str(
            &running.ask("flows --limit 10000 udp from any to any port 7007")?,
        )?;
        let its =
            said.flows.iter().filter(|flow| flow.owner == victim.id).map(|flow| flow.source_port());
        let its: Vec<usize> =
            its.filter_map(|port| probe.ports.iter().position(|own| *own == port)).collect();
        ensure!(
            !its.is_empty(),
            "runtime {} has none of the flows: {:?}",
            victim.id,
            running.status()?
        );
        let shared = &probe.shared;
        let killed = shared.clock.now();
        signal_pid(victim.pid, Signal::KILL)?;
        // The dead runtime cannot have had a datagram that is sent after this.
        shared.watch();
        until("its flows are served", RECOVERY_LIMIT, interrupt, || {
            Ok(shared.are_served(&its).then_some(()))
        })?;
        let times = its
            .iter()
            .map(|at| shared.served_at[*at].load(Ordering::Relaxed).saturating_sub(killed));
        let (first, last) =
            times.fold((u64::MAX, 0), |(first, last), time| (first.min(time), last.max(time)));
        let status = running.wait_for("it is recovered", RECOVERY_LIMIT, interrupt, |status| {
            status
                .failover(victim.id, victim.incarnation)
                .is_some_and(|failover| failover.recovered_us.is_some())
        })?;
        let failover = status.failover(victim.id, victim.incarnation).context("it is listed")?;
        ensure!(failover.lost == 0, "flows were lost: {failover:?}");
        seen.kills.push(Times {
            first,
            last,
            detected: failover.detected_at_ns.saturating_sub(killed),
            recovered: failover.recovered_us.unwrap_or_default() * 1000,
        });
        seen.owned += its.len();
    }
    seen.counts = probe.finish();
    let Counts { sent, wrong, .. } = seen.counts;
    ensure!(wrong == 0, "{wrong} of {sent} datagrams came back twice, or changed");
    let status = running.stop(END, interrupt).context("stopping the box")?;
    ensure!(status.success(), "SIGTERM ended the box with {status}");
    drop(echo);
    Ok(seen)
}

fn measure(
    plan: &Plan,
    protection: &'static str,
    binary: &Path,
    interrupt: &Interrupt,
) -> Result<Vec<Row>> {
    let (mut kills, mut owned) = (Vec::with_capacity(plan.kills), 0);
    let (mut sent, mut returned, mut late) = (0, 0, 0);
    while kills.len() < plan.kills {
        let seen = look_at(
            KILLS_OF_A_BOX.min(plan.kills - kills.len()),
            plan,
            protection,
            binary,
            interrupt,
        )?;
        kills.extend(seen.kills);
        owned += seen.owned;
        sent += seen.counts.sent;
        returned += seen.counts.returned;
        late += seen.counts.late;
    }
    let row = |case, time: fn(&Times) -> u64| {
        let mut values: Vec<u64> = kills.iter().map(time).collect();
        values.sort_unstable();
        let at = |percent| percentile(&values, percent) / 1e3;
        Row {
            version: 1,
            protection,
            case,
            kills: plan.kills,
            flows_each: owned as f64 / plan.kills as f64,
            packets_per_second: plan.packets_per_second,
            p50_us: at(50.0),
            p90_us: at(90.0),
            p99_us: at(99.0),
            max_us: at(100.0),
            packets: sent,
            lost_each: (sent - returned) as f64 / plan.kills as f64,
            late,
        }
    };
    Ok(vec![
        row("kill-to-packet", |times| times.first),
        row("kill-to-last-flow", |times| times.last),
        row("kill-to-detection", |times| times.detected),
        row("detection-to-account", |times| times.recovered),
    ])
}

/// State that the sender and the killing thread share.
struct Shared {
    clock: Clock,
    /// Only datagrams sent from this time on count, ns.
    since: AtomicU64,
    /// Time of the first such datagram that came back, by flow; 0 for none.
    served_at: Vec<AtomicU64>,
    stop: AtomicBool,
}

impl Shared {
    /// Starts to watch from now on.
    fn watch(&self) {
        // Datagrams that come back meanwhile are older than this time, so they do not
        // count.
        self.since.store(u64::MAX, Ordering::SeqCst);
        self.served_at.iter().for_each(|at| at.store(0, Ordering::SeqCst));
        self.since.store(self.clock.now(), Ordering::SeqCst);
    }

    fn are_served(&self, flows: &[usize]) -> bool {
        flows.iter().all(|at| self.served_at[*at].load(Ordering::Relaxed) != 0)
    }
}

/// A running sender.
struct Probe {
    shared: Arc<Shared>,
    /// The client's port, by flow.
    ports: Vec<u16>,
    thread: JoinHandle<Counts>,
}

impl Probe {
    fn start(sockets: Vec<UdpSocket>, per_second: u64) -> Result<Probe> {
        let ports = sockets
            .iter()
            .map(|socket| Ok(socket.local_addr()?.port()))
            .collect::<std::io::Result<_>>()?;
        let shared = Arc::new(Shared {
            clock: Clock::new(),
            since: AtomicU64::new(u64::MAX),
            served_at: sockets.iter().map(|_| AtomicU64::new(0)).collect(),
            stop: AtomicBool::new(false),
        });
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("probe".into()).spawn(move || {
            stay_here();
            Sender::new(sockets).run(per_second, &theirs)
        })?;
        Ok(Probe { shared, ports, thread })
    }

    fn all(&self) -> Vec<usize> {
        (0..self.ports.len()).collect()
    }

    fn finish(self) -> Counts {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// Counts of the datagrams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    sent: u64,
    returned: u64,
    /// Datagrams that came back behind a later one of their flow.
    late: u64,
    /// Datagrams that came back twice or changed.
    wrong: u64,
}

/// Bytes of a datagram: its flow, its number and its send time, and the same again.
const LEN: usize = 40;

struct Sender {
    sockets: Vec<UdpSocket>,
    /// Whether each datagram has come back, by flow.
    returned: Vec<Vec<bool>>,
    /// The highest number that came back, plus 1, by flow.
    latest: Vec<u64>,
    counts: Counts,
}

impl Sender {
    fn new(sockets: Vec<UdpSocket>) -> Sender {
        let (returned, latest) = (vec![Vec::new(); sockets.len()], vec![0; sockets.len()]);
        Sender { sockets, returned, latest, counts: Counts::default() }
    }

    fn run(mut self, per_second: u64, shared: &Shared) -> Counts {
        let began = shared.clock.now();
        let mut skipped = 0;
        while !shared.stop.load(Ordering::Relaxed) {
            let now = shared.clock.now();
            let due = ((now - began) as u128 * u128::from(per_second) / 1_000_000_000) as u64;
            // After a stall of this thread the backlog is not sent in one burst.
            let late = due.saturating_sub(self.counts.sent + skipped);
            skipped += late.saturating_sub(64);
            for _ in 0..late.min(64) {
                self.send(shared);
            }
            self.receive(shared);
        }
        let deadline = shared.clock.now() + 1_000_000_000;
        while self.counts.returned < self.counts.sent && shared.clock.now() < deadline {
            self.receive(shared);
        }
        self.counts
    }

    fn send(&mut self, shared: &Shared) {
        let flow = (self.counts.sent % self.sockets.len() as u64) as usize;
        let number = self.returned[flow].len() as u64;
        // A datagram that the socket refuses counts as sent and lost.
        let _ = self.sockets[flow].send(&datagram(flow, number, shared.clock.now()));
        self.returned[flow].push(false);
        self.counts.sent += 1;
    }

    fn receive(&mut self, shared: &Shared) {
        let mut descriptors: Vec<PollFd<'_>> = self
            .sockets
            .iter()
            .map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN))
            .collect();
        let _ = poll(&mut descriptors, Some(&TICK));
        let ready = descriptors.iter().map(|fd| !fd.revents().is_empty());
        let ready: Vec<usize> =
            ready.enumerate().filter(|(_, is_ready)| *is_ready).map(|(flow, _)| flow).collect();
        let mut block = [0; 2048];
        for flow in ready {
            // Ends with an error: no more datagrams, or an ICMP error, which reading has
            // cleared.
            while let Ok(len) = self.sockets[flow].recv(&mut block) {
                if let Some(sent_at) = self.take(flow, &block[..len])
                    && sent_at >= shared.since.load(Ordering::SeqCst)
                {
                    let at = &shared.served_at[flow];
                    let _ = at.compare_exchange(
                        0,
                        shared.clock.now(),
                        Ordering::SeqCst,
                        Ordering::Relaxed,
                    );
                }
            }
        }
    }

    /// The send time of a right datagram.
    fn take(&mut self, flow: usize, bytes: &[u8]) -> Option<u64> {
        let word = |at: usize| {
            bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_be_bytes)
        };
        let found = word(8)
            .zip(word(16))
            .filter(|(number, sent_at)| bytes == datagram(flow, *number, *sent_at));
        let is_new = |number: u64| {
            self.returned[flow].get(number as usize).is_some_and(|has_returned| !has_returned)
        };
        let Some((number, sent_at)) = found.filter(|(number, _)| is_new(*number)) else {
            self.counts.wrong += 1;
            return None;
        };
        self.returned[flow][number as usize] = true;
        self.counts.returned += 1;
        self.counts.late += u64::from(number < self.latest[flow]);
        self.latest[flow] = self.latest[flow].max(number + 1);
        Some(sent_at)
    }
}

fn datagram(flow: usize, number: u64, sent_at: u64) -> [u8; LEN] {
    let words = [flow as u64, number, sent_at, number ^ sent_at, !number];
    let mut bytes = [0; LEN];
    bytes
        .chunks_exact_mut(8)
        .zip(words)
        .for_each(|(chunk, word)| chunk.copy_from_slice(&word.to_be_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Datagrams of a flow: all; one missing; one twice, one late, one changed, one of
    /// another flow, one that was never sent.
    #[test]
    fn the_ledger_finds_what_is_wrong() {
        let sockets =
            || (0..2).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a socket")).collect();
        let book = |came: &[[u8; LEN]]| {
            let mut sender = Sender::new(sockets());
            sender.returned[1] = vec![false; 5];
            came.iter().for_each(|bytes| _ = sender.take(1, bytes));
            (sender.counts.returned, sender.counts.late, sender.counts.wrong)
        };
        let right = |number| datagram(1, number, 77);
        assert_eq!(book(&[0, 1, 2, 3, 4].map(right)), (5, 0, 0));
        assert_eq!(book(&[0, 1, 3, 4].map(right)), (4, 0, 0));
        assert_eq!(book(&[0, 1, 1, 2].map(right)), (3, 0, 1));
        assert_eq!(book(&[0, 2, 1].map(right)), (3, 1, 0));
        let mut changed = right(0);
        changed[30] ^= 1;
        assert_eq!(book(&[changed]), (0, 0, 1));
        assert_eq!(book(&[datagram(0, 0, 77)]), (0, 0, 1));
        assert_eq!(book(&[right(5)]), (0, 0, 1));
    }
}
