//! `holdfast bench memory`: memory of a whole box, idle, with many flows, and after a
//! runtime was killed.
//!
//! The box runs in the laboratory's namespaces: firewall, NAT and load balancer under
//! `nfvactor`, with an echo server behind it. Each flow is opened by a datagram that has
//! to come back. Memory is the sum of the proportional set sizes of all processes of the
//! box, so shared pages count once. A row counts only if the box has every flow.

use super::bench_box::room_for;
use crate::demo::scenario::addresses;
use crate::running::RunningBox;
use crate::topology::Topology;
use crate::udp::Echo;
use crate::{Interrupt, Lab, requirements};
use anyhow::{Context, Result, bail, ensure};
use holdfast_control::status::{Protected, Status};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

/// Parameters of the benchmark.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Flows.
    pub flows: usize,
    /// The box's limit of flows; by default half as many again as `flows`.
    pub limit: Option<usize>,
    /// Runtimes.
    pub runtimes: u16,
}

/// A row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// `idle`, `full`, or `after a death`.
    pub case: &'static str,
    /// Flows of the box.
    pub flows: usize,
    /// From the start of its first process until the box was ready, ms.
    pub start_milliseconds: u64,
    /// Bytes of all processes.
    pub bytes: u64,
    /// Bytes of the switch's process and of the guard.
    pub manager_bytes: u64,
    /// Bytes of the coordinator.
    pub coordinator_bytes: u64,
    /// Bytes of all runtimes together.
    pub runtimes_bytes: u64,
    /// Bytes of all processes per flow, the idle box's included; 0 without flows.
    pub bytes_per_flow: f64,
    /// Bytes per flow above those of the idle box.
    pub added_bytes_per_flow: f64,
}

/// The balancer's virtual address, and its backends.
pub(super) const VIRTUAL: &str = "203.0.113.10:80";
const BACKENDS: [&str; 2] = ["198.51.100.11:80", "198.51.100.12:80"];
/// The clients, all of them at one host behind the box's neighbour.
const CLIENTS: &str = "10.64.0.0/10";
const FIRST_CLIENT: u32 = 0x0a40_0001;
/// Flows of one client, and its lowest port.
const PORTS: usize = 50_000;
const FIRST_PORT: usize = 10_000;
/// Ports that a NAT has of one address.
const LEASES: usize = 64_512;
/// Flows that are opened together, before any answer is awaited.
const WINDOW: usize = 256;
/// Retransmission timeout, and the most attempts per flow.
const TIMEOUT: Duration = Duration::from_millis(250);
const ATTEMPTS: usize = 40;
/// Time limit for the box to have every flow, and to have every flow safe: this, and as
/// much again for every million flows.
const LIMIT: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(20);

/// Runs the plan with `binary` as the box. Needs root.
///
/// # Errors
/// A program or privilege is missing, or a check of the result failed.
pub fn run(plan: &Plan, binary: &Path, interrupt: &Interrupt) -> Result<Vec<Row>> {
    ensure!(
        plan.flows > 0 && plan.runtimes > 1,
        "there is nothing to measure: a flow at least, and two runtimes"
    );
    requirements::require(&[requirements::IP, requirements::ETHTOOL, requirements::NFT])?;
    let mut lab = Lab::new(interrupt.clone())?;
    let topology = topology(&mut lab)?;

    let began = Instant::now();
    let mut running =
        RunningBox::start(&lab, &topology.router, binary, &configuration(plan).to_string())?;
    let start_milliseconds = began.elapsed().as_millis() as u64;
    // The router's namespace has only the box's processes.
    let taken = || topology.router.pids().map(|pids| Taken::by(&pids));
    let row = |case, flows: usize, taken: &Taken, idle: u64| {
        let by_flow = |bytes: u64| if flows == 0 { 0.0 } else { bytes as f64 / flows as f64 };
        Row {
            version: 1,
            case,
            flows,
            start_milliseconds,
            bytes: taken.all(),
            manager_bytes: taken.of("manager") + taken.of("run"),
            coordinator_bytes: taken.of("coordinator"),
            runtimes_bytes: taken.of("runtime"),
            bytes_per_flow: by_flow(taken.all()),
            added_bytes_per_flow: by_flow(taken.all().saturating_sub(idle)),
        }
    };
    let is_whole = |flows: usize| {
        move |status: &Status| {
            let owned: u64 = status.runtimes().map(|runtime| runtime.flows).sum();
            status.protected() == Protected::Yes && owned == flows as u64
        }
    };
    let limit = LIMIT * (1 + plan.flows.div_ceil(1_000_000) as u32);
    running.wait_for("the box is safe", limit, interrupt, is_whole(0))?;
    let idle = taken()?;
    let mut rows = vec![row("idle", 0, &idle, idle.all())];

    let echoes = echoes(&topology)?;
    let flows = plan.flows;
    let begun = topology.client.enter(|| begin(flows, interrupt))?;
    begun.with_context(|| format!("opening flows; the box says {:?}", running.status()))?;
    running.wait_for("every flow is there, and safe", limit, interrupt, is_whole(flows))?;
    rows.push(row("full", flows, &taken()?, idle.all()));

    let victim = running.busiest(None)?;
    let recovery = running.kill(&victim, true, limit, interrupt)?;
    let has_lost = recovery.failover.as_ref().is_none_or(|failover| failover.lost > 0);
    ensure!(
        !has_lost,
        "flows were lost with runtime {}: {:?}",
        victim.id,
        running.status()?.failovers
    );
    running.wait_for("every flow is there again, and safe", limit, interrupt, is_whole(flows))?;
    rows.push(row("after a death", flows, &taken()?, idle.all()));

    drop(echoes);
    let status = running.stop(END, interrupt).context("stopping the box")?;
    ensure!(status.success(), "SIGTERM ended the box with {status}");
    Ok(rows)
}

/// A topology in which one host owns the address of every client.
pub(super) fn topology(lab: &mut Lab) -> Result<Topology> {
    let mut wanted = addresses();
    wanted.behind_box.push(("100.64.0.0/10".to_owned(), "198.51.100.1".to_owned()));
    let topology = Topology::build(lab, &wanted)?;
    topology.client.ip(&format!("route add local {CLIENTS} dev lo"))?;
    Ok(topology)
}

/// The echo servers behind the balancer.
pub(super) fn echoes(topology: &Topology) -> Result<Vec<Echo>> {
    BACKENDS.iter().map(|at| Echo::start(&topology.server, at.parse()?)).collect()
}

pub(super) fn configuration(plan: &Plan) -> Value {
    let limit = plan.limit.unwrap_or(room_for(plan.flows));
    let outside = room_for(plan.flows).div_ceil(LEASES).next_power_of_two();
    let timeouts = json!({ "udp": 86_400, "udp_unanswered": 86_400 });
    let pool = format!("100.64.0.0/{}", 32 - outside.trailing_zeros());
    let functions = json!([
        { "firewall": { "rules": [format!("allow udp from {CLIENTS} to any port 80")], "default": "deny", "timeouts": timeouts } },
        { "nat": { "pool": [pool], "inside": [CLIENTS], "timeouts": timeouts } },
        { "load_balancer": { "virtual": VIRTUAL, "protocol": "udp", "backends": BACKENDS, "timeouts": timeouts } },
    ]);
    json!({
        "cluster": "memory",
        "ports": {
            "inside": { "device": "veth-in", "address": "10.0.0.1/24" },
            "outside": { "device": "veth-out", "address": "198.51.100.1/24", "gateway": "198.51.100.254" },
        },
        "routes": [{ "to": CLIENTS, "via": "10.0.0.2" }],
        "chains": { "web": { "functions": functions, "protection": "nfvactor" } },
        "rules": [{ "chain": "web" }],
        "runtimes": plan.runtimes,
        "limits": { "flows": limit },
        // Detection is not measured here, and a runtime that takes over hundreds of
        // thousands of flows on a busy machine is slow: a long timeout keeps it from
        // being given up.
        "detection": { "hang_ms": 10_000 },
    })
}

/// The client's end of this flow.
pub(super) fn client(flow: usize) -> SocketAddr {
    (Ipv4Addr::from(FIRST_CLIENT + (flow / PORTS) as u32), (FIRST_PORT + flow % PORTS) as u16)
        .into()
}

/// Opens `flows` flows of the plan's clients from the current namespace; returns when
/// each has had an answer.
pub(super) fn begin(flows: usize, interrupt: &Interrupt) -> Result<()> {
    open(flows, client, VIRTUAL.parse().context("an address")?, interrupt)
}

/// Opens `flows` flows to an echo server from the current namespace, each from the
/// address that `client` names; returns when each has had an answer.
pub(super) fn open(
    flows: usize,
    client: impl Fn(usize) -> SocketAddr,
    server: SocketAddr,
    interrupt: &Interrupt,
) -> Result<()> {
    for first in (0..flows).step_by(WINDOW) {
        interrupt.check()?;
        let open = |flow: usize| -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind(client(flow))?;
            socket.connect(server)?;
            socket.set_read_timeout(Some(TIMEOUT))?;
            socket.send(&flow.to_be_bytes())?;
            Ok(socket)
        };
        let window = first..(first + WINDOW).min(flows);
        let sockets = window
            .clone()
            .map(open)
            .collect::<std::io::Result<Vec<UdpSocket>>>()
            .context("opening the flows")?;
        for (flow, socket) in window.zip(&sockets) {
            wait(flow, socket).with_context(|| format!("flow {flow} of {flows}"))?;
        }
    }
    Ok(())
}

/// Waits for the flow's datagram to come back; sends it again every [`TIMEOUT`].
fn wait(flow: usize, socket: &UdpSocket) -> Result<()> {
    let mut block = [0; 64];
    for _ in 0..ATTEMPTS {
        let sent = Instant::now();
        while sent.elapsed() < TIMEOUT {
            match socket.recv(&mut block) {
                Ok(len) if block[..len] == flow.to_be_bytes() => return Ok(()),
                Ok(len) => bail!("something else came back: {:?}", &block[..len]),
                // A time-out, or an ICMP error from before the server's neighbour entry
                // was resolved. Reading has cleared the error. Errors come at once: they
                // must not use up the attempts.
                Err(_) => {}
            }
        }
        let _ = socket.send(&flow.to_be_bytes());
    }
    bail!("it got no answer")
}

/// Bytes of memory by process role, the first argument of the command line.
struct Taken(BTreeMap<String, u64>);

impl Taken {
    /// Memory of these processes. A process that has ended meanwhile counts as none.
    fn by(pids: &[u32]) -> Taken {
        let mut taken = BTreeMap::new();
        for pid in pids {
            let Ok(rollup) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else {
                continue;
            };
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let role = command
                .split(|byte| *byte == 0)
                .nth(1)
                .map(|word| String::from_utf8_lossy(word).into_owned());
            *taken.entry(role.unwrap_or_default()).or_default() +=
                field(&rollup, "Pss:").unwrap_or(0) * 1024;
        }
        Taken(taken)
    }

    fn of(&self, role: &str) -> u64 {
        self.0.get(role).copied().unwrap_or(0)
    }

    fn all(&self) -> u64 {
        self.0.values().sum()
    }
}

/// The number on the line that begins with `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn memory_is_counted_by_role() {
        // The child echoes a byte: its command line is there only some time after `spawn`
        // returns.
        let mut command = Command::new("cat");
        let mut child =
            command.arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(b"!").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let taken = Taken::by(&[child.id()]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(taken.0.keys().collect::<Vec<_>>(), ["-"]);
        assert!(taken.of("-") > 0 && taken.all() == taken.of("-"));
    }

    #[test]
    fn flows_have_ends_of_their_own() {
        let ends: std::collections::BTreeSet<_> = (0..120_000).map(client).collect();
        assert_eq!(ends.len(), 120_000);
        assert_eq!(client(50_000), "10.64.0.2:10000".parse().unwrap());
    }
    /// Ten million flows: each has an address inside the clients' network and a port at
    /// the NAT, and a configuration may have so many.
    #[test]
    fn ten_million_flows_have_room() {
        let flows = 10_000_000;
        let SocketAddr::V4(last) = client(flows - 1) else { panic!("IPv4") };
        assert_eq!((*last.ip(), last.port()), (Ipv4Addr::new(10, 64, 0, 200), 59_999));
        let configuration = configuration(&Plan { flows, limit: None, runtimes: 3 });
        let limit = configuration["limits"]["flows"].as_u64().unwrap() as usize;
        assert!(limit > flows && limit <= 16_000_000, "{limit}");
        let pool =
            configuration["chains"]["web"]["functions"][1]["nat"]["pool"][0].as_str().unwrap();
        let addresses = pool
            .strip_prefix("100.64.0.0/")
            .map(|len| 1 << (32 - len.parse::<u32>().unwrap()))
            .unwrap();
        assert!(addresses * LEASES >= limit, "{pool}");
    }
}
