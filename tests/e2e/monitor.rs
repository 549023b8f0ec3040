//! What the monitor shows of connections of real programs, before and after the runtimes
//! that measured them are killed.

use crate::inspection::{Service, network};
use anyhow::{Context, Result, ensure};
use holdfast_control::flows::{Flow, Flows};
use holdfast_control::status::{Status, Talkers};
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::TIMEOUT;
use holdfast_tests::network::{CLIENT, Network, SERVER};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::sockets::{Held, exchange};
use holdfast_tests::transfer::LongDownload;
use std::io::{Read, Write};

/// The port of the connection that loses a segment.
const PORT: u16 = 81;
/// Pace of the download, bytes per second.
const PACE: u64 = 1_000_000;

pub(crate) fn tests() -> Vec<Test> {
    vec![light(
        "measurements_survive_those_who_made_them",
        5,
        &[NGINX, CURL, NFT],
        measurements_survive_those_who_made_them,
    )]
}

/// The one flow to this port.
fn flow_to(network: &Network, port: u16) -> Result<Flow> {
    let list: Flows =
        serde_json::from_str(&network.running.ask(&format!("flows tcp to any port {port}"))?)?;
    ensure!(list.flows.len() == 1, "{} flows to port {port}", list.flows.len());
    list.flows.into_iter().next().context("a flow")
}

fn value(flow: &Flow, name: &str) -> Result<u64> {
    flow.value("monitor", name).with_context(|| format!("no `{name}` in {:?}", flow.values))
}

fn talkers(status: &Status) -> Result<&Talkers> {
    status.talkers.as_ref().context("nothing is ranked")
}

/// A download by curl has the most bytes, as a flow, by host and by port. Another
/// connection has a segment that the server's kernel does not see at first, so that the
/// client's sends it again. Every runtime is moved, then killed: what was measured is the
/// same, and the download is still the first.
fn measurements_survive_those_who_made_them(interrupt: &Interrupt) -> Result<()> {
    let mut network = network("monitor", interrupt)?;
    network.serve_web()?;
    let mut download = LongDownload::start_in(&network, &format!("{SERVER}:80"), PACE)?;
    let (mut client, mut server) = {
        let mut service = Service::new(&network, PORT)?;
        service.connect(&network)?
    };
    exchange(&client, &server)?;
    let held = Held::new(&network.topology.server, &format!("tcp dport {PORT}"))?;
    client.write_all(b"not at once")?;
    until("the segment was sent again", TIMEOUT, interrupt, || {
        Ok((value(&flow_to(&network, PORT)?, "retransmitted")? > 0).then_some(()))
    })?;
    held.release()?;
    let mut came = [0; 11];
    server.read_exact(&mut came)?;
    ensure!(&came == b"not at once", "{came:?} came");

    let times = ["handshake_us", "handshake_back_us", "rtt_us", "rtt_back_us"];
    // Data are timed if their timestamp is new. An acknowledgement in the same
    // millisecond has the same one.
    let before = until("both directions are measured", TIMEOUT, interrupt, || {
        exchange(&client, &server)?;
        let flow = flow_to(&network, PORT)?;
        Ok(times.iter().all(|name| flow.value("monitor", name).is_some()).then_some(flow))
    })?;
    for name in times {
        let took = value(&before, name)?;
        ensure!(took < 5_000_000, "`{name}` took {took} us");
    }
    ensure!(value(&before, "retransmitted_back")? == 0, "{:?}", before.values);
    let first = network.running.status()?;
    let most = talkers(&first)?.flows.first().context("a flow")?.clone();
    ensure!(
        most.name.starts_with(&format!("tcp {CLIENT}:"))
            && most.name.ends_with(&format!("> {SERVER}:80")),
        "{most:?}"
    );

    network.move_and_kill(|| download.goes_on(interrupt))?;

    let after = flow_to(&network, PORT)?;
    for name in [
        "retransmitted",
        "retransmitted_back",
        "out_of_order",
        "out_of_order_back",
        "handshake_us",
        "handshake_back_us",
    ] {
        let (before, after) = (value(&before, name)?, value(&after, name)?);
        ensure!(before == after, "`{name}` was {before} and is {after}");
    }
    for name in ["packets", "packets_back", "bytes", "bytes_back"] {
        let (before, after) = (value(&before, name)?, value(&after, name)?);
        // The last acknowledgements may have come behind the first look.
        ensure!((before..=before + 1000).contains(&after), "`{name}` was {before} and is {after}");
    }
    let last = network.running.status()?;
    let ranked = talkers(&last)?;
    let now = ranked.flows.first().context("a flow")?;
    ensure!(now.name == most.name && now.bytes > most.bytes, "{most:?}, then {now:?}");
    let hosts: Vec<&str> = ranked.hosts.iter().map(|host| host.name.as_str()).collect();
    ensure!(hosts.len() == 2 && hosts.contains(&CLIENT) && hosts.contains(&SERVER), "{hosts:?}");
    let port = ranked.ports.first().context("a port")?;
    ensure!(port.name == "tcp 80" && port.bytes >= now.bytes, "{port:?}");
    ensure!(ranked.hosts_slack == 0 && ranked.ports_slack == 0, "{ranked:?}");

    exchange(&client, &server)?;
    until("the connection is measured by its new owner", TIMEOUT, interrupt, || {
        Ok((value(&flow_to(&network, PORT)?, "packets")? > value(&after, "packets")?).then_some(()))
    })?;
    download.finish(interrupt)?;
    drop((client, server));
    network.stop()
}
