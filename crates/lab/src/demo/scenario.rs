//! Half of the demo: builds the network, starts the box, puts load on it, and kills
//! two runtimes. Plays the further steps if the protection promises to survive them, then
//! counts the survivors.

use super::progress::Progress;
use super::report::{Kill, Phase, Transferred};
use super::steps;
use crate::download::{self, Download};
use crate::keepalive::{self, KeepAlive};
use crate::link::Offloads;
use crate::nginx::{self, Nginx, Site, Sum};
use crate::running::RunningBox;
use crate::topology::{Addresses, Topology};
use crate::{Interrupt, Lab, udp, until};
use anyhow::{Context, Result, ensure};
use holdfast_control::status::Protected;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// The web servers' virtual address, which clients use.
const VIRTUAL: &str = "203.0.113.10:80";
/// The web servers' real addresses.
const BACKENDS: [&str; 2] = ["198.51.100.11:80", "198.51.100.12:80"];
/// The echo server that sends the numbered datagrams back.
const ECHO: &str = "198.51.100.254:7007";
/// The body of every answer on a keep-alive connection.
pub(super) const HELD_BODY: &str = "still here\n";
/// Limit within which a runtime must be back and everything protected again.
pub(crate) const RECOVERY_LIMIT: Duration = Duration::from_secs(15);
/// A client that gets no answer for this long has lost its connection. The limit is far
/// beyond every failover, so slowness does not count as loss.
const GIVE_UP: Duration = Duration::from_secs(10);

/// The amount of load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    downloads: usize,
    download_bytes: u64,
    bytes_per_second: u64,
    pub(super) connections: usize,
    datagram_flows: usize,
    datagrams_per_second: u64,
}

impl Scale {
    /// The load for which the demo makes its promise.
    pub(super) const FULL: Scale = Scale {
        downloads: 20,
        download_bytes: 20_000_000,
        bytes_per_second: 1_000_000,
        connections: 200,
        datagram_flows: 30,
        datagrams_per_second: 1000,
    };
    /// A smaller load, which takes less time.
    pub(super) const QUICK: Scale = Scale {
        downloads: 8,
        download_bytes: 6_000_000,
        bytes_per_second: 600_000,
        connections: 50,
        datagram_flows: 15,
        datagrams_per_second: 500,
    };

    /// The datagrams during a single step: half the rate of those that run all the time.
    pub(super) fn step_datagrams(&self) -> udp::Plan {
        let server = ECHO.parse().expect("an address");
        udp::Plan { server, flows: self.datagram_flows, per_second: self.datagrams_per_second / 2 }
    }
}

/// The scenario to play.
#[derive(Debug, Clone, Copy)]
pub(super) struct Script<'a> {
    /// Name of the protection, for people.
    pub(super) protection: &'a str,
    /// True if the protection promises that everything survives.
    pub(super) promised: bool,
    /// Configuration of the box.
    pub(super) configuration: &'a str,
    /// The `holdfast` program.
    pub(super) binary: &'a Path,
    /// The amount of load.
    pub(super) scale: Scale,
    /// Leaves the box running.
    pub(super) keep: bool,
    /// Ends the scenario early.
    pub(super) interrupt: &'a Interrupt,
}

/// The whole load, in the order in which it must end: clients, servers, the box, the
/// network.
pub(super) struct Load {
    downloads: Vec<Download>,
    pub(super) held: KeepAlive,
    datagrams: udp::Stream,
    _echo: udp::Echo,
}

/// Plays the scenario to its end.
pub(super) fn run(script: &Script<'_>, progress: &mut Progress) -> Result<Phase> {
    let started = Instant::now();
    progress.step(&format!(
        "protection {}: client, box and server namespaces, two web servers",
        script.protection
    ));
    let mut lab = Lab::new(script.interrupt.clone())?;
    let topology = Topology::build(&mut lab, &addresses())?;
    let site = Site::new(&lab, "site")?;
    let original = site.add_random("file", script.scale.download_bytes)?;
    site.add("held", HELD_BODY)?;
    let mut servers = nginx::start_all(&lab, &topology.server, &backends(), &site)?;
    let mut running =
        RunningBox::start(&lab, &topology.router, script.binary, script.configuration)?;

    progress.step(&format!(
        "{} keep-alive connections, {} downloads",
        script.scale.connections, script.scale.downloads
    ));
    let mut load = start_load(script, &topology)?;
    wait_under_way(script, &mut load, progress)?;
    if script.promised {
        running.wait_for(
            "everything is protected",
            RECOVERY_LIMIT,
            script.interrupt,
            |status| status.protected() == Protected::Yes,
        )?;
    }

    let mut kills: Vec<Kill> = Vec::new();
    for _ in 0..2 {
        let victim = running.busiest(kills.last().map(|kill| kill.runtime))?;
        let under_way = count_under_way(&mut load)?;
        progress.step(&format!(
            "kill -9 of runtime {} (pid {}), owner of {} flows",
            victim.id, victim.pid, victim.flows
        ));
        let recovery = running.kill(&victim, script.promised, RECOVERY_LIMIT, script.interrupt)?;
        let kill = Kill::new(&victim, under_way, &recovery);
        progress.step(&kill.sentence());
        kills.push(kill);
    }
    // Asked now, because a later incarnation of the manager counts anew, and further
    // steps cause silences of their own.
    let lost_in_failure = running.status()?.dropped("lost_in_failure");
    let kills_silence_us = load.datagrams.datagrams().longest_silence_us;
    let steps = match script.promised {
        true => steps::play(script, &topology, &running, &mut load, progress)?,
        false => Vec::new(),
    };

    let downloads = finish_downloads(script, &mut load, &original, progress)?;
    progress.step("one more request on every keep-alive connection");
    let connections = load.held.verify(script.interrupt)?;
    let Load { held, datagrams, .. } = load;
    drop(held);
    let datagrams = datagrams.finish();
    // Without further steps the kills cause every silence, and the silence of a broken
    // flow may last until now.
    let kills_silence_us =
        if steps.is_empty() { datagrams.longest_silence_us } else { kills_silence_us };
    let status = running.status()?;
    let left_behind = if script.keep {
        servers.iter_mut().for_each(|server| server.process().release());
        running.process().release();
        explain_kept(&lab, &topology, &running, progress);
        lab.keep();
        Vec::new()
    } else {
        stop(&mut running, &topology, script.interrupt)?
    };
    drop::<Vec<Nginx>>(servers);
    Ok(Phase {
        protection: script.protection.to_owned(),
        promised: script.promised,
        seconds: started.elapsed().as_secs_f64(),
        kills,
        steps,
        connections,
        original: nginx::hex(&original),
        downloads,
        datagrams,
        kills_silence_us,
        lost_in_failure,
        drops: status.drops,
        left_behind,
    })
}

/// Real addresses of the web servers.
pub(super) fn backends() -> Vec<SocketAddr> {
    BACKENDS.iter().map(|text| text.parse().expect("an address")).collect()
}

/// A plan of `count` keep-alive connections.
pub(super) fn held_plan(count: usize) -> keepalive::Plan {
    keepalive::Plan {
        server: VIRTUAL.parse().expect("an address"),
        path: "/held".into(),
        body: HELD_BODY.into(),
        count,
        interval: Duration::from_millis(500),
        answer_within: GIVE_UP,
    }
}

pub(crate) fn addresses() -> Addresses {
    Addresses {
        client: "10.0.0.2/24".into(),
        inside_gateway: "10.0.0.1".into(),
        servers: ["198.51.100.254/24", "198.51.100.11/24", "198.51.100.12/24"]
            .map(String::from)
            .to_vec(),
        behind_box: Vec::new(),
        devices: ("veth-in".into(), "veth-out".into()),
        offloads: Offloads::Off,
    }
}

fn start_load(script: &Script<'_>, topology: &Topology) -> Result<Load> {
    let Scale {
        connections,
        downloads,
        bytes_per_second,
        datagram_flows,
        datagrams_per_second,
        ..
    } = script.scale;
    let echo_address: SocketAddr = ECHO.parse().expect("an address");
    let echo = udp::Echo::start(&topology.server, echo_address)?;
    let held = KeepAlive::open(&topology.client, &held_plan(connections), script.interrupt)?;
    let plan = download::Plan {
        url: format!("http://{VIRTUAL}/file"),
        bytes_per_second: Some(bytes_per_second),
        stalled_after: GIVE_UP,
    };
    let downloads = (0..downloads)
        .map(|_| Download::start(&topology.client, &plan))
        .collect::<Result<Vec<Download>>>()?;
    let datagrams = udp::Stream::start(
        &topology.client,
        udp::Plan { server: echo_address, flows: datagram_flows, per_second: datagrams_per_second },
    )?;
    Ok(Load { downloads, held, datagrams, _echo: echo })
}

/// Waits until every download has a quarter of a second's worth of bytes, and datagrams
/// return.
fn wait_under_way(script: &Script<'_>, load: &mut Load, progress: &mut Progress) -> Result<()> {
    let enough = script.scale.bytes_per_second / 4;
    until("every download is under way", Duration::from_secs(30), script.interrupt, || {
        let moving = load.downloads.iter().filter(|download| download.received() >= enough).count();
        progress.advance(|| format!("{moving} of {} downloads under way", load.downloads.len()));
        for download in &mut load.downloads {
            ensure!(
                !download.is_over()? || download.received() >= enough,
                "a download ended before anything was killed"
            );
        }
        Ok((moving == load.downloads.len() && load.datagrams.datagrams().returned > 0)
            .then_some(()))
    })
}

pub(super) fn count_under_way(load: &mut Load) -> Result<usize> {
    let mut count = 0;
    for download in &mut load.downloads {
        count += usize::from(!download.is_over()?);
    }
    Ok(count)
}

fn finish_downloads(
    script: &Script<'_>,
    load: &mut Load,
    original: &Sum,
    progress: &mut Progress,
) -> Result<Vec<Transferred>> {
    let Scale { download_bytes, bytes_per_second, downloads, .. } = script.scale;
    let limit = Duration::from_secs(download_bytes / bytes_per_second) * 2 + GIVE_UP * 2;
    progress.step("waiting for the downloads");
    until("every download ends", limit, script.interrupt, || {
        let mut over = 0;
        for download in &mut load.downloads {
            over += usize::from(download.is_over()?);
        }
        progress.advance(|| {
            let bytes: u64 = load.downloads.iter().map(Download::received).sum();
            let held = load.held.connections();
            format!(
                "downloads: {over} of {downloads} ended, {} of {} MB; keep-alive connections: {} of {} alive",
                bytes / 1_000_000,
                download_bytes * downloads as u64 / 1_000_000,
                held.alive,
                held.opened
            )
        });
        Ok((over == load.downloads.len()).then_some(()))
    })?;
    let ended = load.downloads.drain(..).map(|download| download.finish(GIVE_UP, script.interrupt));
    ended.map(|outcome| Ok(Transferred::new(&outcome?, original))).collect()
}

/// Stops the box as an operator would; returns the names of what it left behind.
fn stop(
    running: &mut RunningBox,
    topology: &Topology,
    interrupt: &Interrupt,
) -> Result<Vec<String>> {
    let status = running
        .stop(Duration::from_secs(10), interrupt)
        .context("stopping the box with SIGTERM")?;
    let mut left = Vec::new();
    if !status.success() {
        left.push(format!("{status} instead of 0"));
    }
    if running.control().exists() {
        left.push(format!("control socket {}", running.control().display()));
    }
    left.extend(topology.router.pids()?.into_iter().map(|pid| format!("process {pid}")));
    let known = ["lo", "veth-in", "veth-out"];
    left.extend(
        topology
            .router
            .devices()?
            .into_iter()
            .filter(|device| !known.contains(&device.as_str()))
            .map(|device| format!("device {device}")),
    );
    Ok(left)
}

fn explain_kept(lab: &Lab, topology: &Topology, running: &RunningBox, progress: &mut Progress) {
    progress.step("kept: the next demo removes it; until then try");
    progress
        .step(&format!("  ip netns exec {} curl http://{VIRTUAL}/held", topology.client.name()));
    progress.step(&format!("  holdfast status --control {}", running.control().display()));
    progress.step(&format!("  logs are in {}", lab.scratch().display()));
}
