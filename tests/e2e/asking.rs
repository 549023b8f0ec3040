//! A box is asked for all its state while packets go on.

use anyhow::{Result, ensure};
use holdfast_control::Client;
use holdfast_control::flows::Flows;
use holdfast_lab::udp::Datagrams;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::network::{Chain, Network, Options, PATIENT, SERVER};
use holdfast_tests::ping::Ping;
use holdfast_tests::runner::{Test, alone};
use holdfast_tests::verdict::{ensure_perfect, ensure_same};
use std::collections::BTreeSet;
use std::time::Duration;

/// Pings, each a flow of its own.
const PINGS: u16 = 20_000;
/// Pings under way at a time: each is answered before the next batch, so that no flow is
/// half-open.
const BATCH: usize = 200;
/// Datagrams that show whether the box stalls: flows, and datagrams per second.
const STREAM: (usize, u64) = (20, 500);
const TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of the additional silence of a flow while the box is asked, µs: a small part of
/// the time that the answers take.
const STILL: u64 = 300_000;

pub(crate) fn tests() -> Vec<Test> {
    let why = "how long a flow gets nothing is compared";
    vec![alone(
        why,
        "questions_about_many_flows_stop_nothing",
        18,
        &[],
        questions_about_many_flows_stop_nothing,
    )]
}

/// Sends datagrams while `act` runs, and for at least a second. Returns their counts.
fn during(
    network: &Network,
    interrupt: &Interrupt,
    act: impl FnOnce() -> Result<()>,
) -> Result<Datagrams> {
    let (_echo, stream) = network.stream(STREAM.0, STREAM.1)?;
    until("the datagrams of a second return", 4 * TIMEOUT, interrupt, || {
        Ok((stream.datagrams().returned >= STREAM.1).then_some(()))
    })?;
    act()?;
    Ok(stream.finish())
}

/// Twenty thousand flows: all are listed, each once, and checked, while a crowd of
/// clients asks over and over again. No datagram is lost or held up, and the manager is
/// the same at the end.
fn questions_about_many_flows_stop_nothing(interrupt: &Interrupt) -> Result<()> {
    let network =
        Network::start(&Options { more: PATIENT, ..Options::protected(Chain::Plain) }, interrupt)?;
    let mut ping = Ping::new(&network.topology.client, SERVER.parse()?)?;
    let identifiers: Vec<u16> = (1..=PINGS).collect();
    let opened = std::time::Instant::now();
    for batch in identifiers.chunks(BATCH) {
        let answered = ping.ask(batch.iter().copied(), TIMEOUT)?;
        ensure!(
            answered.len() == batch.len(),
            "{} of {} pings were answered",
            answered.len(),
            batch.len()
        );
    }
    // A ping's flow expires after a minute without another ping.
    ensure!(
        opened.elapsed() < Duration::from_secs(30),
        "it took {:?} to open the flows",
        opened.elapsed()
    );
    let before = network.running.status()?;
    let undisturbed = during(&network, interrupt, || Ok(()))?;
    let asked = during(&network, interrupt, || {
        let list: Flows =
            serde_json::from_str(&network.running.ask("flows --limit 1000000 icmp")?)?;
        let listed: BTreeSet<u16> = list.flows.iter().map(|flow| flow.source_port()).collect();
        ensure!(
            list.flows.len() == listed.len(),
            "{} flows are listed as {}",
            listed.len(),
            list.flows.len()
        );
        ensure!(
            identifiers.iter().all(|id| listed.contains(id)) && !list.truncated,
            "{} flows are listed",
            listed.len()
        );
        network.running.ask("check --live --for 1")?;
        let crowd = |_| {
            let client = Client::new(Some(network.running.control()))?;
            for _ in 0..5 {
                client.status()?;
                client.list("tcp", 1_000)?;
                client.list("", 1_000)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|number| scope.spawn(move || crowd(number))).collect();
            let asked = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a client panicked")))
            });
            asked.collect::<Result<()>>()
        })
    })?;
    for datagrams in [&undisturbed, &asked] {
        ensure_perfect(datagrams, STREAM.0, [&network.running].into_iter())?;
    }
    ensure!(
        asked.longest_silence_us < undisturbed.longest_silence_us + STILL,
        "without questions {undisturbed:?}, with {asked:?}"
    );
    ensure_same(before.processes.iter(), &network.running.status()?)?;
    network.stop()
}
