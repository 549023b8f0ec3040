//! `holdfast bench box`: a whole box beside the kernel's firewall and NAT.
//!
//! The same namespaces, links, clients and servers are built once per case and round. In
//! between stands either the kernel, which forwards through nftables with conntrack, or a
//! box with the same rules under one of the protections. Cases take turns within a round,
//! and a ratio is taken within its round: all see the same machine. No time counts if an
//! answer is missing or wrong.

use super::median;
use super::memory::open;
use crate::demo::scenario::addresses;
use crate::nginx::{Nginx, Site};
use crate::programs::{Iperf3, iperf3_server, ping_times, read_wrk, wrk};
use crate::running::RunningBox;
use crate::topology::Topology;
use crate::udp::Echo;
use crate::{Interrupt, Lab, Namespace, link, requirements};
use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Protected, ROLE_COORDINATOR, Status};
use serde::Serialize;
use serde_json::{Value, json};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Protections, by the names of their presets.
    pub protections: Vec<String>,
    /// Flows that are there meanwhile, beside those of the load; each case once for every
    /// number.
    pub flows: Vec<usize>,
    /// Rounds; medians count.
    pub rounds: usize,
    /// Duration of each load, s.
    pub seconds: u32,
}

/// A row of the result. Ratios are to the kernel's, with as many flows, in the same
/// round.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// `kernel`, or the protection of the box.
    pub case: String,
    /// Flows that were there meanwhile.
    pub flows: usize,
    /// HTTP requests per second, of 1 KiB over 50 connections.
    pub requests_per_second: f64,
    /// Ratio to the kernel's.
    pub requests_ratio: f64,
    /// Throughput of a TCP stream, Mbit/s.
    pub stream_mbps: f64,
    /// Ratio to the kernel's.
    pub stream_ratio: f64,
    /// Mean time there and back of an echo request, µs.
    pub ping_us: f64,
    /// Ratio to the kernel's.
    pub ping_ratio: f64,
    /// How often the coordinator, which is on no packet's way, was woken per second of
    /// the HTTP load; 0 for the kernel.
    pub coordinator_wakes_per_second: f64,
}

const CONNECTIONS: u32 = 50;
const BODY: u64 = 1024;
const PINGS: u32 = 300;
const PING_INTERVAL: Duration = Duration::from_millis(10);
const WEB: &str = "198.51.100.11:80";
const STREAM: &str = "198.51.100.12:5201";
const ECHO: &str = "198.51.100.254:7007";
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// The address that clients have outside, and the server's way to it.
const OUTSIDE: &str = "100.64.0.1";
const BOX_OUTSIDE: &str = "198.51.100.1";
const BOX_INSIDE: &str = "10.0.0.1";
/// The lowest port of the flows that are there meanwhile; the load's are above the
/// kernel's lowest ephemeral port, and TCP.
const FIRST_PORT: usize = 10_000;
/// The most flows of that kind: ports of one client.
const MOST_FLOWS: usize = 50_000;
const SAFE: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(20);

/// Runs the plan with `binary` as the box. Needs root.
///
/// # Errors
/// A program or privilege is missing, or a result was wrong.
pub fn run(plan: &Plan, binary: &Path, interrupt: &Interrupt) -> Result<Vec<Row>> {
    ensure!(
        plan.rounds > 0 && plan.seconds > 0 && !plan.flows.is_empty(),
        "there is nothing to measure"
    );
    let most = plan.flows.iter().max().copied().unwrap_or(0);
    ensure!(most <= MOST_FLOWS, "{most} flows: one client has ports for {MOST_FLOWS}");
    let programs =
        [requirements::NGINX, requirements::WRK, requirements::IPERF3, requirements::PING];
    requirements::require(
        &[&[requirements::IP, requirements::ETHTOOL, requirements::NFT][..], &programs].concat(),
    )?;

    let cases: Vec<Option<&str>> =
        [None].into_iter().chain(plan.protections.iter().map(|name| Some(name.as_str()))).collect();
    let mut rows = Vec::new();
    for &flows in &plan.flows {
        let mut measured = vec![Vec::with_capacity(plan.rounds); cases.len()];
        for round in 0..plan.rounds {
            for (case, measured) in cases.iter().zip(&mut measured) {
                interrupt.check()?;
                let name = case.unwrap_or("kernel");
                let what = || format!("{name} with {flows} flows, round {round}");
                measured.push(
                    measure(*case, flows, plan.seconds, binary, interrupt).with_context(what)?,
                );
            }
        }
        let kernel = measured[0].clone();
        let named = cases.iter().map(|case| case.unwrap_or("kernel").to_owned());
        rows.extend(
            named.zip(measured).map(|(case, measured)| row(case, flows, &measured, &kernel)),
        );
    }
    Ok(rows)
}

/// The results of a case in a round.
#[derive(Debug, Clone, Copy)]
struct Measured {
    requests_per_second: f64,
    stream_mbps: f64,
    ping_us: f64,
    coordinator_wakes_per_second: f64,
}

fn row(case: String, flows: usize, measured: &[Measured], kernel: &[Measured]) -> Row {
    let middle = |of: fn(&Measured) -> f64| median(&measured.iter().map(of).collect::<Vec<_>>());
    let ratio = |of: fn(&Measured) -> f64| {
        median(
            &measured
                .iter()
                .zip(kernel)
                .map(|(measured, kernel)| of(measured) / of(kernel))
                .collect::<Vec<_>>(),
        )
    };
    Row {
        version: 1,
        case,
        flows,
        requests_per_second: middle(|one| one.requests_per_second),
        requests_ratio: ratio(|one| one.requests_per_second),
        stream_mbps: middle(|one| one.stream_mbps),
        stream_ratio: ratio(|one| one.stream_mbps),
        ping_us: middle(|one| one.ping_us),
        ping_ratio: ratio(|one| one.ping_us),
        coordinator_wakes_per_second: middle(|one| one.coordinator_wakes_per_second),
    }
}

fn measure(
    protection: Option<&str>,
    flows: usize,
    seconds: u32,
    binary: &Path,
    interrupt: &Interrupt,
) -> Result<Measured> {
    let mut lab = Lab::new(interrupt.clone())?;
    let mut wanted = addresses();
    wanted.behind_box.push((format!("{OUTSIDE}/32"), BOX_OUTSIDE.to_owned()));
    let topology = Topology::build(&mut lab, &wanted)?;
    let mut running = match protection {
        None => {
            forward(&lab, &topology.router)?;
            None
        }
        Some(protection) => {
            let configuration = configuration(protection).to_string();
            let running = RunningBox::start(&lab, &topology.router, binary, &configuration)?;
            let is_safe =
                |status: &Status| status.protected() == Protected::Yes || protection == "none";
            running.wait_for("the box is safe", SAFE, interrupt, is_safe)?;
            Some(running)
        }
    };

    let site = Site::new(&lab, "site")?;
    site.add_random("file", BODY)?;
    let web: SocketAddr = WEB.parse()?;
    let nginx = Nginx::start(&lab, &topology.server, "nginx", web, &site)?;
    let stream: SocketAddr = STREAM.parse()?;
    let iperf3 = iperf3_server(&lab, &topology.server, stream.port(), &[])?;
    let echo: SocketAddr = ECHO.parse()?;
    let echoes = Echo::start(&topology.server, echo)?;
    let client = |flow: usize| SocketAddr::new(CLIENT, (FIRST_PORT + flow) as u16);
    topology.client.enter(|| open(flows, client, echo, interrupt))??;

    let coordinator = running.as_ref().map(coordinator).transpose()?;
    let (before, began) = (coordinator.map(wakes).transpose()?, Instant::now());
    let mut load =
        wrk(&lab, &topology.client, &format!("http://{WEB}/file"), CONNECTIONS, seconds)?;
    let requests = read_wrk(&load.finish(limit(seconds), interrupt)?)?;
    let took = began.elapsed().as_secs_f64();
    let woken =
        coordinator.map(wakes).transpose()?.zip(before).map_or(0, |(after, before)| after - before);
    let is_clean = requests.socket_errors + requests.timeouts + requests.bad_answers == 0;
    ensure!(is_clean && requests.requests > 0, "requests failed: {requests:?}");
    let transfer = Iperf3 { server: stream, udp_bits_per_second: None, reverse: false, seconds };
    let transfer = transfer.run(&lab, &topology.client, "iperf3")?;
    ensure!(transfer.bytes > 0, "nothing arrived: {transfer:?}");
    let (pings, ping_us) = ping_times(&topology.client, web.ip(), PINGS, PING_INTERVAL)?;
    ensure!(pings.received == pings.sent, "echo requests were not answered: {pings:?}");
    let left = match &running {
        Some(running) => {
            running.status()?.runtimes().map(|runtime| runtime.flows).sum::<u64>() as usize
        }
        None => conntrack_entries(&topology.router)?,
    };
    ensure!(left >= flows, "of {flows} flows {left} were there at the end");

    drop((iperf3, nginx, echoes));
    if let Some(running) = &mut running {
        let status = running.stop(END, interrupt).context("stopping the box")?;
        ensure!(status.success(), "SIGTERM ended the box with {status}");
    }
    Ok(Measured {
        requests_per_second: requests.requests_per_second,
        stream_mbps: transfer.bits_per_second / 1e6,
        ping_us,
        coordinator_wakes_per_second: woken as f64 / took,
    })
}

/// How long a load may take that lasts so many seconds.
fn limit(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(seconds) + 30)
}

/// Makes the kernel of this namespace what the box would be.
fn forward(lab: &Lab, router: &Namespace) -> Result<()> {
    link::address(router, "veth-in", &format!("{BOX_INSIDE}/24"))?;
    link::address(router, "veth-out", &format!("{BOX_OUTSIDE}/24"))?;
    let rules = lab.scratch().join("rules.nft");
    fs::write(&rules, nftables()).with_context(|| format!("writing {}", rules.display()))?;
    router.run(&format!("nft -f {}", rules.display()))?;
    for key in ["udp_timeout", "udp_timeout_stream"] {
        router.sysctl(&format!("net/netfilter/nf_conntrack_{key}"), "86400")?;
    }
    router.sysctl("net/ipv4/ip_forward", "1")
}

fn nftables() -> String {
    format!(
        "table ip bench {{\n\
           chain forward {{\n\
             type filter hook forward priority filter; policy drop;\n\
             ct state established,related accept\n\
             iifname veth-in ip saddr 10.0.0.0/24 tcp dport {{ 80, 5201 }} accept\n\
             iifname veth-in ip saddr 10.0.0.0/24 udp dport 7007 accept\n\
             iifname veth-in ip saddr 10.0.0.0/24 icmp type echo-request accept\n\
           }}\n\
           chain postrouting {{\n\
             type nat hook postrouting priority srcnat;\n\
             oifname veth-out ip saddr 10.0.0.0/24 snat to {OUTSIDE}\n\
           }}\n\
         }}\n"
    )
}

/// Connections that the kernel of this namespace tracks.
fn conntrack_entries(router: &Namespace) -> Result<usize> {
    let path = "/proc/sys/net/netfilter/nf_conntrack_count";
    let text =
        router.enter(|| fs::read_to_string(path))?.with_context(|| format!("reading {path}"))?;
    text.trim().parse().with_context(|| format!("{path} says {text:?}"))
}

/// A box with the same rules.
fn configuration(protection: &str) -> Value {
    let timeouts = json!({ "udp": 86_400, "udp_unanswered": 86_400 });
    let rules = [
        "allow tcp from 10.0.0.0/24 to any port 80,5201",
        "allow udp from 10.0.0.0/24 to any port 7007",
        "allow icmp type echo-request from 10.0.0.0/24",
    ];
    let functions = json!([
        { "firewall": { "rules": rules, "default": "deny", "timeouts": timeouts } },
        { "nat": { "pool": [format!("{OUTSIDE}/32")], "inside": ["10.0.0.0/24"], "timeouts": timeouts } },
    ]);
    json!({
        "cluster": "beside",
        "ports": {
            "inside": { "device": "veth-in", "address": format!("{BOX_INSIDE}/24") },
            "outside": { "device": "veth-out", "address": format!("{BOX_OUTSIDE}/24"), "gateway": "198.51.100.254" },
        },
        "chains": { "edge": { "functions": functions, "protection": protection } },
        "rules": [{ "chain": "edge" }],
        "runtimes": 3,
    })
}

/// The coordinator's process.
fn coordinator(running: &RunningBox) -> Result<u32> {
    let status = running.status()?;
    let coordinator = status.processes.iter().find(|process| process.role == ROLE_COORDINATOR);
    Ok(coordinator.context("the box has a coordinator")?.pid)
}

/// How often a process has been woken: each time it had gone to sleep of itself.
fn wakes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let number = text
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok());
    number.with_context(|| format!("{path} does not say how often it slept"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        let of = |requests_per_second, ping_us| Measured {
            requests_per_second,
            stream_mbps: 1.0,
            ping_us,
            coordinator_wakes_per_second: 2.0,
        };
        let kernel = [of(100.0, 10.0), of(1000.0, 20.0), of(10.0, 10.0)];
        let measured = [of(80.0, 20.0), of(700.0, 60.0), of(9.0, 10.0)];
        let row = row("none".to_owned(), 5, &measured, &kernel);
        assert_eq!((row.requests_per_second, row.requests_ratio), (80.0, 0.8));
        assert_eq!((row.ping_us, row.ping_ratio, row.stream_ratio), (20.0, 2.0, 1.0));
        assert_eq!((row.coordinator_wakes_per_second, row.flows), (2.0, 5));
    }

    #[test]
    fn this_process_has_slept() {
        assert!(wakes(std::process::id()).is_ok());
        assert!(wakes(u32::MAX).is_err());
    }
}
