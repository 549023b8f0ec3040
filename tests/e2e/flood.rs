//! Floods: existing connections go on, new ones are served, and each frame is in a
//! counter.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{self, Process, Status};
use holdfast_lab::keepalive::{KeepAlive, Plan};
use holdfast_lab::requirements::*;
use holdfast_lab::topology::Topology;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::network::{Chain, Network, Options, VIRTUAL, held, socket};
use holdfast_tests::runner::{Test, alone};
use holdfast_tests::soak;
use holdfast_tests::torrent::{BOTH, Books, KINDS, Kind, Side, Torrent};
use holdfast_tests::transfer::LongDownload;
use holdfast_tests::verdict::{ensure_same, ensure_unbroken};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Test> {
    let why = "a flood takes what the machine has, and how soon others are served is looked at";
    vec![
        alone(why, "syns_from_one_source", 10, &[NGINX], syns_from_one_source),
        alone(why, "syns_from_many_sources", 10, &[NGINX], syns_from_many_sources),
        alone(why, "floods_of_every_kind", 45, &[NGINX, CURL], floods_of_every_kind),
    ]
}

/// Flows that the table has room for.
const ROOM: u64 = 4096;
/// Openings per second: five seconds of them are five times the table's room.
const RATE: u64 = 4000;
/// Time limit for serving a new connection.
const SOON: Duration = Duration::from_secs(1);

fn start(interrupt: &Interrupt) -> Result<Network> {
    let options =
        Options { more: "limits: { flows: 4096 }\n", ..Options::protected(Chain::Balanced) };
    let mut network = Network::start(&options, interrupt)?;
    network.serve_web()?;
    swallow(&network)?;
    Ok(network)
}

/// Makes the hosts beside the box drop the packets that a flood leads to there.
fn swallow(network: &Network) -> Result<()> {
    let Topology { client, server, .. } = &network.topology;
    for network in ["198.51.100.0/24", "203.0.0.0/16"] {
        server.ip(&format!("route add blackhole {network}"))?;
    }
    [client, server].iter().try_for_each(|host| host.sysctl("net/ipv4/ip_forward", "0"))
}

/// A client of new connections through a box.
struct Asking<'a> {
    network: &'a Network,
    /// The processes that a packet passes in the box.
    processes: Vec<u32>,
}

impl Asking<'_> {
    fn through(network: &Network) -> Result<Asking<'_>> {
        let status = network.running.status()?;
        let is_on_the_way =
            |process: &&Process| ["manager", status::ROLE_RUNTIME].contains(&process.role.as_str());
        let processes =
            status.processes.iter().filter(is_on_the_way).map(|process| process.pid).collect();
        Ok(Asking { network, processes })
    }

    /// Time for which each process has waited for a processor, ns.
    fn waits(&self) -> Vec<u64> {
        let read = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok();
        let waited = |text: String| text.split_whitespace().nth(1)?.parse().ok();
        self.processes.iter().map(|pid| read(pid).and_then(waited).unwrap_or(0)).collect()
    }

    /// Opens a connection, sends a request and waits for the answer's first bytes.
    /// Returns the time, minus the longest time for which a process of the box had no
    /// processor: floods and hosts share the machine with the box.
    fn ask(&self) -> Result<Duration> {
        let (began, waits) = (Instant::now(), self.waits());
        let asked = self.network.topology.client.enter(|| -> std::io::Result<()> {
            let mut stream = TcpStream::connect_timeout(&socket(VIRTUAL), 5 * SOON)?;
            stream.set_read_timeout(Some(5 * SOON))?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
            stream.read_exact(&mut [0; 8])
        })?;
        let took = began.elapsed();
        asked.with_context(|| format!("a new connection, {took:?} later"))?;
        let waited = self
            .waits()
            .iter()
            .zip(waits)
            .map(|(now, before)| now.saturating_sub(before))
            .max()
            .unwrap_or(0);
        Ok(took.saturating_sub(Duration::from_nanos(waited)))
    }

    /// Asks again and again for this time. Returns the slowest answer's time.
    fn go_on(&self, lasts: Duration) -> Result<Duration> {
        let (began, mut slowest) = (Instant::now(), Duration::ZERO);
        while began.elapsed() < lasts {
            slowest = slowest.max(self.ask()?);
        }
        Ok(slowest)
    }
}

/// Floods the box with openings from inside, and meanwhile opens new connections one
/// after the other. Returns the box's status at the end.
fn play(network: &Network, kind: Kind, interrupt: &Interrupt) -> Result<Status> {
    let held = network.hold(VIRTUAL, 50)?;
    let flood = Torrent::start(network, kind, &[Side::Inside], Some(RATE), 0)?;
    let slowest =
        Asking::through(network)?.go_on(Duration::from_secs(if soak() { 30 } else { 5 }))?;
    let [(sent, _), _] = flood.stop()?;
    ensure!(sent > 3 * ROOM, "only {sent} openings were sent");
    ensure!(slowest < SOON, "a new connection took {slowest:?}");
    ensure_unbroken(&held, interrupt)?;
    let status = network.running.status()?;
    for full in ["route_table_full", "flow_table_full"] {
        ensure!(status.dropped(full) == 0, "{full}: {:?}", status.drops);
    }
    Ok(status)
}

/// A single source opens flow after flow to a silent address: it gets a tenth of the
/// table and no more.
fn syns_from_one_source(interrupt: &Interrupt) -> Result<()> {
    let network = start(interrupt)?;
    let status = play(&network, Kind::SynsOfOne, interrupt)?;
    let table = status
        .flow_tables
        .iter()
        .find(|table| table.half_open.is_some())
        .context("a switch has a table")?;
    ensure!(
        table.size == ROOM
            && table.half_open.is_some_and(|flows| (ROOM / 20..=ROOM / 10 + 10).contains(&flows)),
        "{table:?}"
    );
    ensure!(status.dropped("half_open_limit") > ROOM, "{:?}", status.drops);
    network.stop()
}

/// The same from two hundred sources: half-open flows give way to each other and to all
/// other flows.
fn syns_from_many_sources(interrupt: &Interrupt) -> Result<()> {
    let network = start(interrupt)?;
    let status = play(&network, Kind::SynsOfMany, interrupt)?;
    let forgotten: u64 = status.flow_tables.iter().filter_map(|table| table.forgotten).sum();
    ensure!(forgotten > ROOM, "{:?}", status.flow_tables);
    network.stop()
}

/// Duration of a flood at full speed, in which the frames that the box handles are
/// measured, and of a flood at half that rate.
fn lengths() -> (Duration, Duration) {
    if soak() {
        (Duration::from_secs(30), Duration::from_secs(30))
    } else {
        (Duration::from_millis(600), Duration::from_millis(1200))
    }
}

/// Time limit for an answer: a connection that is cut off for half a minute may
/// retransmit half a minute later, because TCP's pause doubles every time.
const STALLED: Duration = Duration::from_secs(90);
/// Time limit for serving a new connection after the larger flood.
const SOON_AFTER: Duration = Duration::from_secs(2);
/// Time after which packets that waited inside have gone on or were dropped, and all
/// counters are up to date.
const SETTLED: Duration = Duration::from_secs(15);

/// Frames of every kind come from both sides, first at full speed, then at half the rate
/// that the box was seen to handle. No connection breaks, new ones are served, and every
/// frame is counted once.
fn floods_of_every_kind(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    swallow(&network)?;
    let held = KeepAlive::open(
        &network.topology.client,
        &Plan { answer_within: STALLED, ..held(VIRTUAL, 50) },
        interrupt,
    )?;
    let before = network.running.status()?;
    for kind in KINDS {
        inundate(&network, kind, interrupt).with_context(|| format!("{kind:?}"))?;
        ensure_unbroken(&held, interrupt).with_context(|| format!("{kind:?}"))?;
    }
    let after = network.running.status()?;
    ensure_same(before.processes.iter(), &after)?;
    ensure!(after.failovers.is_empty(), "{:?}", after.failovers);
    network.stop()
}

fn inundate(network: &Network, kind: Kind, interrupt: &Interrupt) -> Result<()> {
    let (full, half) = lengths();
    let (client, site) = (&network.topology.client, &network.site);
    let mut download = LongDownload::start(client, site, VIRTUAL, 200_000, STALLED, interrupt)?;
    let (books, asking) = (Books::open(network)?, Asking::through(network)?);

    let flood = Torrent::start(network, kind, &BOTH, None, 0)?;
    last(full / 3, interrupt)?;
    let (began, first) = (Instant::now(), Books::open(network)?);
    last(full * 2 / 3, interrupt)?;
    let second = Books::open(network)?;
    let rate = (second.handled(&first) as f64 / began.elapsed().as_secs_f64()) as u64;
    let at_once = flood.stop()?;
    let after = asking.ask().context("after all that a sender could send")?;
    ensure!(
        after < SOON_AFTER,
        "a new connection took {after:?} after all that a sender could send"
    );
    download.goes_on(interrupt)?;

    let sent_before: u64 = at_once.iter().map(|(taken, refused)| taken + refused).sum();
    let (rate, began) = (rate / 2, Instant::now());
    let flood = Torrent::start(network, kind, &BOTH, Some(rate), sent_before as u32)?;
    let slowest = asking.go_on(half)?;
    let due = began.elapsed().as_secs_f64() * rate as f64;
    let paced = flood.stop()?;
    let sent: u64 = paced.iter().map(|(taken, _)| taken).sum();
    say(format_args!(
        "{kind:?}: {at_once:?}, then {sent} of {due:.0} at {rate}/s, new connections took {slowest:?}, before that {after:?}"
    ));
    ensure!(sent as f64 > due / 4.0, "only {sent} of {due} frames were sent");
    ensure!(slowest < SOON, "a new connection took {slowest:?} beside {rate} frames per second");
    download.finish(interrupt)?;

    let add = |side: usize| (at_once[side].0 + paced[side].0, at_once[side].1 + paced[side].1);
    let flood = [add(0), add(1)];
    let mut why = None;
    let balances = || {
        let balance = Books::open(network)?.balance(&books, flood);
        Ok(balance.map_err(|error| why = Some(error)).ok())
    };
    let done = until("each frame is in a counter", SETTLED, interrupt, balances);
    done.map_err(|error| why.unwrap_or(error))
}

/// Lets the flood go on for this time.
fn last(time: Duration, interrupt: &Interrupt) -> Result<()> {
    let began = Instant::now();
    until("the flood has lasted", 2 * time, interrupt, || {
        Ok((began.elapsed() >= time).then_some(()))
    })
}

#[expect(clippy::print_stdout, reason = "it belongs to the test's results")]
fn say(line: std::fmt::Arguments<'_>) {
    println!("flood  {line}");
}
