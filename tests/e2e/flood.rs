//! Floods of openings: connections that are there go on, and those that come meanwhile are served.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::Status;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, link, programs};
use holdfast_tests::network::{Chain, INSIDE, Network, Options, VIRTUAL, ip, socket};
use holdfast_tests::runner::{Test, alone};
use holdfast_tests::verdict::ensure_unbroken;
use holdfast_tests::{frames, soak};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Test> {
    let why = "a flood takes what the machine has, and how soon others are served is looked at";
    vec![
        alone(why, "syns_from_one_source", 10, &[NGINX], syns_from_one_source),
        alone(why, "syns_from_many_sources", 10, &[NGINX], syns_from_many_sources),
    ]
}

/// Flows that there is room for.
const ROOM: u64 = 4096;
/// Openings per second: five seconds of them are five times as many as there is room for.
const RATE: u64 = 4000;
/// An address behind the server at which nobody answers.
const NOWHERE: [u8; 4] = [198, 51, 100, 77];
/// A new connection is served in this time.
const SOON: Duration = Duration::from_secs(1);

fn start(interrupt: &Interrupt) -> Result<Network> {
    let options = Options { more: "limits: { flows: 4096 }\n", ..Options::protected(Chain::Balanced) };
    let mut network = Network::start(&options, interrupt)?;
    network.serve_web()?;
    network.topology.server.ip("route add blackhole 198.51.100.0/24")?;
    Ok(network)
}

/// The sender of a flood, at the client's device.
struct Flood {
    sender: frames::Sender,
    from_mac: [u8; 6],
    to_mac: [u8; 6],
    sources: u64,
    sent: u64,
}

impl Flood {
    fn prepare(network: &Network, sources: u64) -> Result<Flood> {
        let client = &network.topology.client;
        programs::ping(client, ip(INSIDE), 1, 56, Duration::from_millis(10))?;
        let (from_mac, to_mac) = (link::mac(client, "eth0")?, link::neighbour(client, INSIDE)?);
        Ok(Flood { sender: frames::Sender::open(client, "eth0")?, from_mac, to_mac, sources, sent: 0 })
    }

    /// Sends the openings that are due so long after the flood's beginning. Each is another flow.
    fn go_on(&mut self, elapsed: Duration) {
        let Flood { from_mac, to_mac, sources, .. } = *self;
        let due = elapsed.as_millis() as u64 * RATE / 1000;
        while self.sent < due {
            let (host, of_host) = (20 + self.sent % sources, self.sent / sources);
            let from = (Ipv4Addr::new(172, 20, 5, host as u8), 1024 + (of_host % 60_000) as u16);
            // Each pass over all ports asks another host.
            let [a, b, c, d] = NOWHERE;
            let to = (Ipv4Addr::new(a, b, c, d + (of_host / 60_000) as u8), 80);
            // A full device queue (ENOBUFS) only slows this down.
            let _ = self.sender.send(&frames::Ends { from_mac, to_mac, from, to }.syn());
            self.sent += 1;
        }
    }
}

/// Opens a connection, asks for something and waits for the answer's first bytes. How long all that took.
fn ask(network: &Network) -> Result<Duration> {
    let began = Instant::now();
    let asked = network.topology.client.enter(|| -> std::io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&socket(VIRTUAL), 5 * SOON)?;
        stream.set_read_timeout(Some(5 * SOON))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        stream.read_exact(&mut [0; 8])
    })?;
    asked.with_context(|| format!("a new connection, {:?} later", began.elapsed()))?;
    Ok(began.elapsed())
}

/// Floods the box, and opens one new connection after the other meanwhile. Returns the box's status at the end.
fn play(network: &Network, sources: u64, interrupt: &Interrupt) -> Result<Status> {
    let held = network.hold(VIRTUAL, 50)?;
    let lasts = Duration::from_secs(if soak() { 30 } else { 5 });
    let mut flood = Flood::prepare(network, sources)?;
    let (began, mut slowest) = (Instant::now(), Duration::ZERO);
    while began.elapsed() < lasts {
        flood.go_on(began.elapsed());
        slowest = slowest.max(ask(network)?);
    }
    ensure!(flood.sent > 3 * ROOM, "only {} openings were sent", flood.sent);
    ensure!(slowest < SOON, "a new connection took {slowest:?}");
    ensure_unbroken(&held, interrupt)?;
    let status = network.running.status()?;
    for full in ["route_table_full", "flow_table_full"] {
        ensure!(status.dropped(full) == 0, "{full}: {:?}", status.drops);
    }
    Ok(status)
}

/// A single source opens flow after flow to a silent address: it gets a tenth of the table and no more.
fn syns_from_one_source(interrupt: &Interrupt) -> Result<()> {
    let network = start(interrupt)?;
    let status = play(&network, 1, interrupt)?;
    let table = status.flow_tables.iter().find(|table| table.half_open.is_some()).context("a switch has a table")?;
    ensure!(
        table.size == ROOM && table.half_open.is_some_and(|flows| (ROOM / 20..=ROOM / 10 + 10).contains(&flows)),
        "{table:?}"
    );
    ensure!(status.dropped("half_open_limit") > ROOM, "{:?}", status.drops);
    network.stop()
}

/// The same from two hundred sources: half-open flows make room for one another, and for everybody else.
fn syns_from_many_sources(interrupt: &Interrupt) -> Result<()> {
    let network = start(interrupt)?;
    let status = play(&network, 200, interrupt)?;
    let forgotten: u64 = status.flow_tables.iter().filter_map(|table| table.forgotten).sum();
    ensure!(forgotten > ROOM, "{:?}", status.flow_tables);
    network.stop()
}
