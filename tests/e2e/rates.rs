//! Rates: packets beyond them do not arrive, whichever runtimes serve the flows, and
//! whichever process dies.

use crate::manager::kill_manager;
use anyhow::{Context, Result, ensure};
use holdfast_control::status::Status;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::TIMEOUT;
use holdfast_tests::network::{CLIENT, Chain, Network, Options, SERVER, ip};
use holdfast_tests::runner::{Test, light};
use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

pub(crate) fn tests() -> Vec<Test> {
    vec![light(
        "a_rate_is_kept_by_all_runtimes_together_and_across_deaths",
        2,
        &[],
        a_rate_is_kept_by_all_runtimes_together_and_across_deaths,
    )]
}

/// Bursts in datagrams: of a source to port 53, and of a flow to port 83. Both rates are
/// one datagram per second.
const OF_SOURCE: u64 = 200;
const OF_FLOW: u64 = 50;

const LIMITED: &str = "functions:
      - rate_limiter:
          limits:
            - { per: source, rate: 1 packet/s, burst: 200 packets, flows: udp to any port 53 }
            - { per: flow, rate: 1 packet/s, burst: 50 packets, flows: udp to any port 83 }";

/// A port of the server, the client's sockets that send to it, and the number of
/// datagrams that have arrived.
struct Meter {
    at: UdpSocket,
    from: Vec<UdpSocket>,
    burst: u64,
    since: Instant,
    arrived: u64,
}

impl Meter {
    fn new(network: &Network, port: u16, flows: u16, burst: u64) -> Result<Meter> {
        let server = SocketAddr::new(ip(SERVER), port);
        let at = network.topology.server.enter(|| UdpSocket::bind(server))??;
        at.set_nonblocking(true)?;
        let socket = |flow: u16| {
            let own = SocketAddr::new(ip(CLIENT), 100 * port + flow);
            let socket = network.topology.client.enter(|| UdpSocket::bind(own))??;
            socket.connect(server)?;
            anyhow::Ok(socket)
        };
        let from = (0..flows).map(socket).collect::<Result<_>>()?;
        Ok(Meter { at, from, burst, since: Instant::now(), arrived: 0 })
    }

    /// Sends `of_each` datagrams of each flow, and receives those that have arrived.
    fn send(&mut self, of_each: usize) -> Result<()> {
        for _ in 0..of_each {
            for socket in &self.from {
                socket.send(b"one more").context("the client sends")?;
            }
        }
        while self.at.recv(&mut [0; 16]).is_ok() {
            self.arrived += 1;
        }
        let seconds = self.since.elapsed().as_secs() + 1;
        let (arrived, most) = (self.arrived, self.burst + seconds);
        ensure!(arrived <= most, "{arrived} datagrams arrived in {seconds} s, {most} may");
        Ok(())
    }

    /// Sends until the burst has arrived.
    fn use_up(&mut self, interrupt: &Interrupt) -> Result<()> {
        until("a burst arrives", TIMEOUT, interrupt, || {
            self.send(5)?;
            Ok((self.arrived >= self.burst).then_some(()))
        })
    }
}

/// A client sends twenty flows with one budget, spread over all runtimes, and one flow
/// with its own budget, until both budgets are used up. The switch dies: the source's
/// budget is full again, the flow's is not. All flows move, then each runtime is killed:
/// no datagram beyond the rates arrives, and the status counts the drops.
fn a_rate_is_kept_by_all_runtimes_together_and_across_deaths(interrupt: &Interrupt) -> Result<()> {
    let options = Options::protected(Chain::Plain);
    let text = options.configuration().replace("functions: [forward]", LIMITED);
    ensure!(text.contains("rate_limiter"), "the function is in the chain: {text}");
    let network = Network::start_with(&options, &text, interrupt)?;
    let mut source = Meter::new(&network, 53, 20, OF_SOURCE)?;
    let mut flow = Meter::new(&network, 83, 1, OF_FLOW)?;
    source.use_up(interrupt)?;
    flow.use_up(interrupt)?;
    let status = network.running.status()?;
    let owners = status.runtimes().filter(|runtime| runtime.flows > 0).count();
    ensure!(owners > 1, "several runtimes have the source's flows: {status:?}");
    kill_manager(&network, interrupt)?;
    source.burst *= 2;
    source.use_up(interrupt)?;
    flow.send(100)?;
    let exceeding = |status: &Status| status.dropped("rate_exceeded");
    let dropped = exceeding(&network.running.status()?);
    network.move_and_kill(|| {
        source.send(10)?;
        flow.send(100)
    })?;
    source.send(1)?;
    flow.send(1)?;
    network.running.wait_for("what exceeds is counted", TIMEOUT, interrupt, |status| {
        exceeding(status) > dropped + 500
    })?;
    network.stop()
}
