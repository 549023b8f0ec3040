//! A box of three hosts, and somebody else on the network that joins them: who makes packets up, plays recorded ones back, or changes some, is refused and counted.

use anyhow::{Context, Result, ensure};
use holdfast::lab::requirements::*;
use holdfast::lab::{Interrupt, until};
use holdfast::status::Status;
use holdfast_tests::PATIENCE;
use holdfast_tests::cluster::{Cluster, SERVING};
use holdfast_tests::frames::{Ends, Listener, Sender};
use holdfast_tests::network::{CLIENT, SERVER, VIRTUAL};
use holdfast_tests::runner::{main as run, test};
use holdfast_tests::verdict::{ensure_perfect, ensure_unbroken};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::ExitCode;

/// The bridge between the hosts.
const BRIDGE: &str = "fabric";
/// What a sealed packet has behind its addresses: the fabric's EtherType, and the magic number.
const SEALED: [u8; 4] = [0x88, 0xb6, 0x48, 0x53];
const NSH: [u8; 2] = [0x89, 0x4f];
/// Where in a sealed packet its fields are, and what was sealed.
const KEY: usize = 17;
const HOST: usize = 18;
const CLUSTER: usize = 20;
const INCARNATION: usize = 24;
const COUNTER: usize = 36;
const BODY: usize = 60;
/// Packets of a record.
const RECORDED: usize = 40;
/// Where the server would get what nobody has sent.
const FORGED_PORT: u16 = 4999;

fn main() -> ExitCode {
    run(vec![
        test("a_stranger_on_the_network_is_refused", &[NGINX, NFT], a_stranger_on_the_network_is_refused),
        test("what_was_recorded_is_worth_nothing_after_a_restart", &[NGINX, NFT], what_was_recorded_is_worth_nothing_after_a_restart),
    ])
}

/// True for a packet that this host has sealed. The witness is the first, because it has the coordinator.
fn is_of(frame: &[u8], host: &str) -> bool {
    let number = SERVING.iter().position(|name| *name == host).map(|at| at as u8 + 1);
    frame.get(12..16) == Some(&SEALED) && frame.get(HOST..HOST + 2) == number.map(|number| [0, number]).as_ref().map(<[u8; 2]>::as_slice)
}

/// Packets that a host sends to others, sealed; every frame that goes by is looked at.
fn record(cluster: &Cluster, host: &str) -> Result<Vec<Vec<u8>>> {
    let listener = Listener::open(&cluster.hosts.network, &format!("fab-{host}"))?;
    let mut recorded = Vec::new();
    until(&format!("{host} sends packets to others"), PATIENCE, cluster.lab.interrupt(), || {
        while let Some(frame) = listener.receive()? {
            ensure!(frame.get(12..14) != Some(&NSH), "a packet went out as it is");
            recorded.extend(Some(frame).filter(|frame| is_of(frame, host)));
        }
        Ok((recorded.len() >= RECORDED).then_some(()))
    })?;
    Ok(recorded)
}

/// Sends frames until a host has counted every one of these reasons, and so often as frames were sent for it.
fn provoke(cluster: &Cluster, at: &str, frames: &BTreeMap<&str, Vec<Vec<u8>>>) -> Result<()> {
    let sender = Sender::open(&cluster.hosts.network, BRIDGE)?;
    let count = |status: &Status, reason: &str| status.drops.get(reason).copied().unwrap_or(0);
    let before = cluster.on(at)?.status()?;
    until("everything forged is counted", PATIENCE, cluster.lab.interrupt(), || {
        for frame in frames.values().flatten() {
            sender.send(frame)?;
        }
        let now = cluster.on(at)?.status()?;
        let is_counted =
            |(reason, frames): (&&str, &Vec<Vec<u8>>)| count(&now, reason) >= count(&before, reason) + frames.len() as u64;
        Ok(frames.iter().all(is_counted).then_some(()))
    })
    .with_context(|| format!("{:?}", cluster.on(at).and_then(|running| running.status()).map(|status| status.drops)))
}

/// While connections and datagrams go on, somebody on the hosts' network sends everything that goes by again, changes it in every part, cuts it, and makes up a
/// packet as if a runtime had released it. Nothing of that comes out, all of it is counted, and nobody else notices.
fn a_stranger_on_the_network_is_refused(interrupt: &Interrupt) -> Result<()> {
    let cluster = Cluster::start(interrupt)?;
    let held = cluster.hold(VIRTUAL, 60)?;
    let (_echo, stream) = cluster.stream(60, 600)?;
    cluster.wait_safe()?;
    cluster.wait_serving(SERVING[0], SERVING[0])?;
    let recorded = record(&cluster, SERVING[1])?;
    let good = &recorded[0];
    let changed = |at: usize, bits: u8| {
        let mut frame = good.clone();
        frame[at] ^= bits;
        vec![frame]
    };
    let listening = cluster.hosts.server.enter(|| UdpSocket::bind((SERVER, FORGED_PORT)))??;
    listening.set_nonblocking(true)?;
    let ends = Ends {
        from_mac: [2, 0, 0, 0, 0, 9],
        to_mac: [2, 0, 0, 0, 0, 8],
        from: (CLIENT.parse()?, FORGED_PORT),
        to: (SERVER.parse()?, FORGED_PORT),
    };
    // As a runtime's: its address, and that it is released.
    let mut released = [&good[..12], &NSH, &[0x0f, 0xc6, 1, 3, 0, 0, 0, 253]].concat();
    released.extend([0; 16]);
    released.extend(ends.udp(b"nobody has sent this"));
    // One that was not there before, or else it would be known by its count.
    let mut fresh = good.clone();
    fresh[COUNTER] = 0x7f;
    let forged = |at: usize| {
        let mut frame = fresh.clone();
        frame[at] ^= 1;
        frame
    };
    let frames = BTreeMap::from([
        ("replayed", recorded.clone()),
        ("unauthenticated", vec![fresh.clone(), forged(11), forged(BODY - 1), forged(BODY), forged(good.len() - 1)]),
        ("truncated", vec![good[..BODY].to_vec(), good[..30].to_vec()]),
        ("unknown_key", changed(KEY, 0x40)),
        ("wrong_cluster", changed(CLUSTER, 1)),
        ("unknown_host", changed(HOST, 1)),
        ("unsealed", vec![released]),
    ]);
    for _ in 0..5 {
        provoke(&cluster, SERVING[0], &frames)?;
        ensure_unbroken(&held, interrupt)?;
    }
    let got = listening.recv(&mut [0; 64]);
    ensure!(got.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "a forged packet came out: {got:?}");
    ensure_perfect(&stream.finish(), 60)?;
    drop(held);
    cluster.stop()
}

/// A host is started again, then the one that heard it: what was recorded of the life before, and what the other had taken in its life before, is refused.
fn what_was_recorded_is_worth_nothing_after_a_restart(interrupt: &Interrupt) -> Result<()> {
    let mut cluster = Cluster::start(interrupt)?;
    let held = cluster.hold(VIRTUAL, 60)?;
    let (_echo, stream) = cluster.stream(60, 600)?;
    cluster.wait_safe()?;
    cluster.wait_serving(SERVING[0], SERVING[0])?;
    let recorded = record(&cluster, SERVING[1])?;
    cluster.kill(SERVING[1])?;
    cluster.begin(SERVING[1])?;
    cluster.wait_safe()?;
    provoke(&cluster, SERVING[0], &BTreeMap::from([("old_life", recorded.clone())]))?;
    ensure_unbroken(&held, interrupt)?;
    // The other serves then, and sends packets to the runtimes of the one that is to begin anew.
    cluster.kill(SERVING[0])?;
    cluster.wait_serving(SERVING[1], SERVING[1])?;
    cluster.begin(SERVING[0])?;
    cluster.wait_safe()?;
    let taken = record(&cluster, SERVING[1])?;
    ensure!(taken[0][INCARNATION..BODY] != recorded[0][INCARNATION..BODY], "another life");
    cluster.kill(SERVING[0])?;
    cluster.begin(SERVING[0])?;
    cluster.wait_safe()?;
    provoke(&cluster, SERVING[0], &BTreeMap::from([("replayed", taken)]))?;
    ensure_unbroken(&held, interrupt)?;
    let datagrams = stream.finish();
    ensure!((datagrams.doubled, datagrams.changed, datagrams.flows_alive) == (0, 0, 60), "{datagrams:?}");
    drop(held);
    cluster.stop()
}
