//! Packets that end the process that processes them. A second runtime may try such a
//! packet, when it is safe to lose that runtime too. The packet is then quarantined, and
//! everything else goes on.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Protected, Status};
use holdfast_lab::{Interrupt, udp, until};
use holdfast_tests::network::{
    Chain, GIVE_UP, Network, Options, PATIENT, RECOVERY_LIMIT, SERVER, socket,
};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::traffic::{Plan, Traffic};
use std::net::UdpSocket;
use std::time::Duration;

/// Time limit for two failures by a hang.
const LIMIT: Duration = Duration::from_secs(60);
/// Checkpoints are so rare that logs are not cleared during the test.
const RARELY: &str = "{ preset: reinforce, checkpoint_ms: 10000 }";

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light("it_ends_two_runtimes_and_no_third", 3, &[], it_ends_two_runtimes_and_no_third),
        light("it_stops_two_runtimes_and_no_third", 10, &[], it_stops_two_runtimes_and_no_third),
        light("it_ends_two_workers_and_no_third", 2, &[], it_ends_two_workers_and_no_third),
        light("it_stops_two_workers_and_no_third", 10, &[], it_stops_two_workers_and_no_third),
        light("a_contained_panic_counts", 3, &[], a_contained_panic_counts),
        light(
            "where_nothing_is_processed_again_it_ends_one",
            3,
            &[],
            where_nothing_is_processed_again_it_ends_one,
        ),
    ]
}

fn drops(status: &Status, reason: &str) -> u64 {
    status.drops.get(reason).copied().unwrap_or(0)
}

/// A box with the function, traffic through it, and a further flow to an echo server.
struct Scene {
    socket: UdpSocket,
    _echo: udp::Echo,
    traffic: Traffic,
    network: Network,
}

impl Scene {
    fn build(protection: &'static str, more: &'static str, interrupt: &Interrupt) -> Result<Scene> {
        let program = env!("CARGO_BIN_EXE_mortal");
        let options = Options {
            protection,
            program,
            more,
            ports: "random",
            ..Options::protected(Chain::Mortal)
        };
        let network = Network::start(&options, interrupt)?;
        let (client, server) = (&network.topology.client, &network.topology.server);
        let plan = Plan { flows: 60, per_second: 400, connections: 4, ..Plan::default() };
        let echo = udp::Echo::start(server, socket(&format!("{SERVER}:7008")))?;
        let traffic = Traffic::start(client, server, plan)?;
        until("flows are there", GIVE_UP, interrupt, || {
            Ok((traffic.sum().flows >= 70).then_some(()))
        })?;
        let socket = client.enter(begin)??;
        let scene = Scene { socket, _echo: echo, traffic, network };
        scene.answers(interrupt)?;
        scene.network.wait_protected()?;
        Ok(scene)
    }

    /// Waits until datagrams of the flow come back.
    fn answers(&self, interrupt: &Interrupt) -> Result<()> {
        until("the flow answers", GIVE_UP, interrupt, || Ok(asks(&self.socket)?.then_some(())))
    }

    /// Waits until the traffic goes on and new flows begin.
    fn goes_on(&self, interrupt: &Interrupt) -> Result<()> {
        let before = self.traffic.sum();
        until("traffic goes on", GIVE_UP, interrupt, || {
            let sum = self.traffic.sum();
            Ok((sum.came > before.came + 300
                && sum.flows > before.flows + 5
                && sum.streams > before.streams)
                .then_some(()))
        })
    }

    /// Waits until the packet has been quarantined after `failures` failures, everything
    /// is protected, and the packet is in the capture.
    fn wait_set_aside(
        &self,
        payload: &[u8],
        failures: usize,
        interrupt: &Interrupt,
    ) -> Result<Status> {
        let status =
            self.network.running.wait_for("it is set aside", LIMIT, interrupt, |status| {
                let is_over = status.failovers.len() == failures
                    && status.failovers.iter().all(|failover| failover.recovered_us.is_some());
                drops(status, "quarantined") == 1 && is_over && status.protected() == Protected::Yes
            })?;
        let path = format!("{}.quarantine.pcapng", self.network.running.control().display());
        let kept =
            until("it is in the capture", GIVE_UP, interrupt, || Ok(std::fs::read(&path).ok()))?;
        ensure!(
            kept.windows(payload.len()).filter(|bytes| *bytes == payload).count() == 1,
            "{path} has it not, or twice"
        );
        Ok(status)
    }

    fn finish(self) -> Result<()> {
        self.traffic.finish()?;
        self.network.stop()
    }
}

fn begin() -> Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(format!("{SERVER}:7008"))?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    Ok(socket)
}

fn asks(socket: &UdpSocket) -> Result<bool> {
    socket.send(b"are you there?")?;
    Ok(socket.recv(&mut [0; 64]).is_ok())
}

fn ends_two(payload: &[u8], more: &'static str, interrupt: &Interrupt) -> Result<()> {
    let scene = Scene::build("reinforce", more, interrupt)?;
    scene.socket.send(payload)?;
    scene.wait_set_aside(payload, 2, interrupt)?;
    // The packet's flow is closed; another flow of the same client is let in.
    ensure!(!asks(&scene.socket)? && !asks(&scene.socket)?);
    let status = scene.network.running.status()?;
    ensure!(drops(&status, "flow_closed") >= 2, "{:?}", status.drops);
    let other = scene.network.topology.client.enter(begin)??;
    until("another flow answers", GIVE_UP, interrupt, || Ok(asks(&other)?.then_some(())))?;
    scene.goes_on(interrupt)?;
    let status = scene.network.running.status()?;
    ensure!(status.failovers.len() == 2 && drops(&status, "quarantined") == 1, "{status:?}");
    ensure!(drops(&status, "input_missing") == 0, "{:?}", status.drops);
    scene.finish()
}

fn it_ends_two_runtimes_and_no_third(interrupt: &Interrupt) -> Result<()> {
    ends_two(b"<abort!>", PATIENT, interrupt)
}

/// Hung runtimes are given up, and live on as idle processes.
fn it_stops_two_runtimes_and_no_third(interrupt: &Interrupt) -> Result<()> {
    ends_two(b"<hang!!>", "detection: { hang_ms: 3000 }\n", interrupt)
}

/// With a local standby only the keeper handles the death: no runtime fails, and the flow
/// lives.
fn ends_two_workers(payload: &[u8], interrupt: &Interrupt) -> Result<()> {
    let scene = Scene::build(
        "{ preset: reinforce, level: local }",
        "detection: { hang_ms: 6000 }\n",
        interrupt,
    )?;
    scene.socket.send(payload)?;
    let status = scene.wait_set_aside(payload, 0, interrupt)?;
    let takeovers = |status: &Status| {
        status.runtimes().filter_map(|one| one.local_standby).map(|one| one.takeovers).sum::<u64>()
    };
    ensure!(takeovers(&status) == 2, "{status:?}");
    scene.answers(interrupt)?;
    scene.goes_on(interrupt)?;
    let status = scene.network.running.status()?;
    ensure!(
        takeovers(&status) == 2
            && status.failovers.is_empty()
            && drops(&status, "quarantined") == 1,
        "{status:?}"
    );
    scene.finish()
}

fn it_ends_two_workers_and_no_third(interrupt: &Interrupt) -> Result<()> {
    ends_two_workers(b"<abort!>", interrupt)
}

/// The keeper kills a worker that hangs.
fn it_stops_two_workers_and_no_third(interrupt: &Interrupt) -> Result<()> {
    ends_two_workers(b"<hang!!>", interrupt)
}

/// A panic costs its packet. If the runtime ends for another reason, the flow's heir
/// tries the packet once more, and after that no runtime does; the flow lives.
fn a_contained_panic_counts(interrupt: &Interrupt) -> Result<()> {
    let payload = b"<panic!>";
    let scene = Scene::build(RARELY, PATIENT, interrupt)?;
    scene.socket.send(payload)?;
    scene.network.running.wait_for("it panics", GIVE_UP, interrupt, |status| {
        drops(status, "function_panicked") == 1
    })?;
    let flows: holdfast_control::flows::Flows =
        serde_json::from_str(&scene.network.running.ask("flows udp from any to any port 7008")?)?;
    let owner = flows.flows.first().context("the flow is there")?.owner;
    let status = scene.network.running.status()?;
    let process = status.runtime(owner).context("its owner is there")?;
    let victim = holdfast_lab::running::Victim::of(process);
    scene.network.running.kill(&victim, true, RECOVERY_LIMIT, interrupt)?;
    let status = scene.wait_set_aside(payload, 1, interrupt)?;
    ensure!(drops(&status, "flow_closed") == 0);
    scene.answers(interrupt)?;
    scene.goes_on(interrupt)?;
    scene.finish()
}

/// Under `nfvactor` a packet dies with its runtime.
fn where_nothing_is_processed_again_it_ends_one(interrupt: &Interrupt) -> Result<()> {
    let scene = Scene::build("nfvactor", PATIENT, interrupt)?;
    scene.socket.send(b"<abort!>")?;
    scene.network.running.wait_for("one has failed", LIMIT, interrupt, |status| {
        status.failovers.len() == 1
            && status.failovers[0].recovered_us.is_some()
            && status.protected() == Protected::Yes
    })?;
    scene.answers(interrupt)?;
    scene.goes_on(interrupt)?;
    let status = scene.network.running.status()?;
    ensure!(status.failovers.len() == 1 && drops(&status, "quarantined") == 0, "{status:?}");
    scene.finish()
}
