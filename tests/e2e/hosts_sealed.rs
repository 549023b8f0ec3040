//! A box of three hosts, and an attacker on the network that joins them. Forged, replayed
//! and changed packets are refused and counted: on an Ethernet, and on a network where
//! the hosts have only addresses.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::Status;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, link, until};
use holdfast_tests::TIMEOUT;
use holdfast_tests::cluster::{Cluster, SERVING, UDP_PORT, WITNESS};
use holdfast_tests::frames::{Ends, Listener, Sender};
use holdfast_tests::network::{CLIENT, GIVE_UP, SERVER, VIRTUAL};
use holdfast_tests::runner::{Test, cluster};
use holdfast_tests::transfer::LongDownload;
use holdfast_tests::verdict::{ensure_perfect, ensure_unbroken};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};

/// The bridge between the hosts.
const BRIDGE: &str = "fabric";
/// The bytes of a sealed packet behind its addresses: the fabric's EtherType, and the
/// magic number.
const SEALED: [u8; 4] = [0x88, 0xb6, 0x48, 0x53];
const NSH: [u8; 2] = [0x89, 0x4f];
/// Offsets of a sealed packet's fields, and of its sealed body.
const KEY: usize = 17;
const HOST: usize = 18;
const CLUSTER: usize = 20;
const INCARNATION: usize = 24;
const COUNTER: usize = 36;
const BODY: usize = 60;
/// Lengths of the headers in front of a packet in a datagram.
const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const UDP_LEN: usize = 8;
/// Number of packets in a record.
const RECORDED: usize = 40;
/// Port at which the server would get a forged datagram.
const FORGED_PORT: u16 = 4999;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        cluster(
            "a_stranger_on_the_network_is_refused",
            3,
            &[NGINX, NFT],
            a_stranger_on_the_network_is_refused,
        ),
        cluster(
            "what_was_recorded_is_worth_nothing_after_a_restart",
            9,
            &[NGINX, NFT],
            what_was_recorded_is_worth_nothing_after_a_restart,
        ),
        cluster(
            "keys_change_and_nothing_is_lost",
            9,
            &[NGINX, NFT],
            keys_change_and_nothing_is_lost,
        ),
        cluster(
            "hosts_that_udp_joins_survive_a_host_and_strangers",
            7,
            &[NGINX, NFT, CURL],
            hosts_that_udp_joins_survive_a_host_and_strangers,
        ),
    ]
}

/// True for a packet that this host has sealed. The witness is the first host, because it
/// has the coordinator.
fn is_of(frame: &[u8], host: &str) -> bool {
    let number = SERVING.iter().position(|name| *name == host).map_or(0, |at| at as u8 + 1);
    frame.get(12..16) == Some(&SEALED) && frame.get(HOST..HOST + 2) == Some(&[0, number])
}

/// Records sealed packets that a host sends to others, behind `front` bytes of headers.
/// Every frame that goes by is looked at.
fn record_behind(cluster: &Cluster, host: &str, front: usize) -> Result<Vec<Vec<u8>>> {
    let listener = Listener::open(&cluster.hosts.network, &format!("fab-{host}"))?;
    let mut recorded = Vec::new();
    until(&format!("{host} sends packets to others"), TIMEOUT, cluster.lab.interrupt(), || {
        while let Some(frame) = listener.receive()? {
            let packet = frame.get(front..).unwrap_or_default();
            ensure!(packet.get(12..14) != Some(&NSH), "a packet went out as it is");
            recorded.extend(is_of(packet, host).then_some(frame));
        }
        Ok((recorded.len() >= RECORDED).then_some(()))
    })?;
    Ok(recorded)
}

fn record(cluster: &Cluster, host: &str) -> Result<Vec<Vec<u8>>> {
    record_behind(cluster, host, 0)
}

/// Sends frames until a host has counted each of these reasons as often as frames were
/// sent for it.
fn provoke(cluster: &Cluster, at: &str, frames: &BTreeMap<&str, Vec<Vec<u8>>>) -> Result<()> {
    let sender = Sender::open(&cluster.hosts.network, BRIDGE)?;
    let count = |status: &Status, reason: &str| status.drops.get(reason).copied().unwrap_or(0);
    let before = cluster.on(at)?.status()?;
    until("everything forged is counted", TIMEOUT, cluster.lab.interrupt(), || {
        for frame in frames.values().flatten() {
            sender.send(frame)?;
        }
        let now = cluster.on(at)?.status()?;
        let is_counted = |(reason, frames): (&&str, &Vec<Vec<u8>>)| {
            count(&now, reason) >= count(&before, reason) + frames.len() as u64
        };
        Ok(frames.iter().all(is_counted).then_some(()))
    })
    .with_context(|| {
        format!(
            "{:?}",
            cluster.on(at).and_then(|running| running.status()).map(|status| status.drops)
        )
    })
}

/// While connections and datagrams go on, an attacker on the hosts' network replays every
/// frame, changes it in every part, cuts it, and forges a packet that looks like a
/// runtime's released one. No such packet comes out, all are counted, and no client or
/// host notices.
fn a_stranger_on_the_network_is_refused(interrupt: &Interrupt) -> Result<()> {
    let cluster = Cluster::start(interrupt)?;
    let held = cluster.hold(VIRTUAL, 60)?;
    let (_echo, stream) = cluster.stream(60, 600)?;
    cluster.wait_safe()?;
    let [first, second] = cluster.serving()?;
    let recorded = record(&cluster, second)?;
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
    // A runtime's packet: its address, and marked as released.
    let mut released = [&good[..12], &NSH, &[0x0f, 0xc6, 1, 3, 0, 0, 0, 253]].concat();
    released.extend([0; 16]);
    released.extend(ends.udp(b"nobody has sent this"));
    // A packet with a new counter; a known one would be refused by its counter.
    let mut fresh = good.clone();
    fresh[COUNTER] = 0x7f;
    let forged = |at: usize| {
        let mut frame = fresh.clone();
        frame[at] ^= 1;
        frame
    };
    let frames = BTreeMap::from([
        ("replayed", recorded.clone()),
        (
            "unauthenticated",
            vec![fresh.clone(), forged(11), forged(BODY - 1), forged(BODY), forged(good.len() - 1)],
        ),
        ("truncated", vec![good[..BODY].to_vec(), good[..30].to_vec()]),
        ("unknown_key", changed(KEY, 0x40)),
        ("wrong_cluster", changed(CLUSTER, 1)),
        ("unknown_host", changed(HOST, 1)),
        ("unsealed", vec![released]),
    ]);
    for _ in 0..5 {
        provoke(&cluster, first, &frames)?;
        ensure_unbroken(&held, interrupt)?;
    }
    let got = listening.recv(&mut [0; 64]);
    ensure!(
        got.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
        "a forged packet came out: {got:?}"
    );
    ensure_perfect(&stream.finish(), 60, cluster.living())?;
    drop(held);
    cluster.stop()
}

/// A host is restarted, then the one that heard it: packets recorded from the previous
/// incarnation are refused, and so are packets that the receiver's previous incarnation
/// had accepted.
fn what_was_recorded_is_worth_nothing_after_a_restart(interrupt: &Interrupt) -> Result<()> {
    let mut cluster = Cluster::start(interrupt)?;
    let held = cluster.hold(VIRTUAL, 60)?;
    let (_echo, stream) = cluster.stream(60, 600)?;
    cluster.wait_safe()?;
    let [first, second] = cluster.serving()?;
    let recorded = record(&cluster, second)?;
    cluster.kill(second)?;
    cluster.begin(second)?;
    cluster.wait_safe()?;
    provoke(&cluster, first, &BTreeMap::from([("old_life", recorded.clone())]))?;
    ensure_unbroken(&held, interrupt)?;
    // The other host serves then, and sends packets to the runtimes of the host that
    // restarts.
    cluster.kill(first)?;
    cluster.wait_serving(second, second)?;
    cluster.begin(first)?;
    cluster.wait_safe()?;
    let taken = record(&cluster, second)?;
    ensure!(taken[0][INCARNATION..BODY] != recorded[0][INCARNATION..BODY], "another incarnation");
    cluster.kill(first)?;
    cluster.begin(first)?;
    cluster.wait_safe()?;
    provoke(&cluster, first, &BTreeMap::from([("replayed", taken)]))?;
    ensure_unbroken(&held, interrupt)?;
    let datagrams = stream.finish();
    ensure!(
        (datagrams.doubled, datagrams.changed, datagrams.flows_alive) == (0, 0, 60),
        "{datagrams:?}"
    );
    drop(held);
    cluster.stop()
}

/// The operator changes the key under load, one host at a time: the new key behind the
/// old one, then in front, then alone. No datagram is lost.
fn keys_change_and_nothing_is_lost(interrupt: &Interrupt) -> Result<()> {
    const NUMBER: u8 = 9;
    let mut cluster = Cluster::start(interrupt)?;
    let held = cluster.hold(VIRTUAL, 60)?;
    let (_echo, stream) = cluster.stream(60, 600)?;
    cluster.wait_safe()?;
    ensure!(record(&cluster, SERVING[1])?[0][KEY] != NUMBER, "the new key is not there yet");
    let old = std::fs::read_to_string(cluster.key_file())?;
    let (old, new) = (old.trim(), format!("{NUMBER}:{}", "5a".repeat(32)));
    for lines in [format!("{old}\n{new}\n"), format!("{new}\n{old}\n"), format!("{new}\n")] {
        std::fs::write(cluster.key_file(), lines)?;
        for host in [SERVING[0], WITNESS, SERVING[1]] {
            cluster.reload_keys(host)?;
        }
    }
    ensure!(
        record(&cluster, SERVING[1])?.last().is_some_and(|packet| packet[KEY] == NUMBER),
        "packets are sealed under the new key"
    );
    ensure_unbroken(&held, interrupt)?;
    ensure_perfect(&stream.finish(), 60, cluster.living())?;
    cluster.wait_safe()?;
    drop(held);
    cluster.stop()
}

/// The hosts have addresses, and no Ethernet of their own. A download and connections go
/// on while the serving host dies and comes back. Both also go on while an attacker
/// replays datagrams of a host with that host's address, and sends others with an address
/// of its own.
fn hosts_that_udp_joins_survive_a_host_and_strangers(interrupt: &Interrupt) -> Result<()> {
    let mut cluster = Cluster::start_over_udp(interrupt)?;
    let held = cluster.hold(VIRTUAL, 100)?;
    let (client, site) = (&cluster.hosts.client, &cluster.site);
    let mut download = LongDownload::start(client, site, VIRTUAL, 1_500_000, GIVE_UP, interrupt)?;
    let (_echo, stream) = cluster.stream(60, 600)?;
    cluster.wait_safe()?;
    let [first, second] = cluster.serving()?;
    cluster.kill(first)?;
    cluster.wait_serving(second, second)?;
    ensure_unbroken(&held, interrupt)?;
    download.goes_on(interrupt)?;
    cluster.begin(first)?;
    cluster.wait_safe()?;
    ensure_unbroken(&held, interrupt)?;
    download.finish(interrupt)?;
    let recorded = record_behind(&cluster, second, ETHERNET_LEN + IPV4_LEN + UDP_LEN)?;
    provoke(&cluster, first, &BTreeMap::from([("replayed", recorded)]))?;
    let stranger = &cluster.hosts.network;
    link::address(stranger, BRIDGE, "10.9.0.200/24")?;
    let socket = stranger.enter(|| UdpSocket::bind("10.9.0.200:7000"))??;
    let before = cluster.on(first)?.status()?.drops.get("unknown_host").copied().unwrap_or(0);
    until("a stranger's datagrams are counted", TIMEOUT, interrupt, || {
        socket.send_to(b"whoever I am", (Ipv4Addr::new(10, 9, 0, 1), UDP_PORT))?;
        let now = cluster.on(first)?.status()?.drops.get("unknown_host").copied().unwrap_or(0);
        Ok((now > before).then_some(()))
    })?;
    ensure_unbroken(&held, interrupt)?;
    let datagrams = stream.finish();
    ensure!(
        (datagrams.doubled, datagrams.changed, datagrams.flows_alive) == (0, 0, 60),
        "{datagrams:?}"
    );
    drop(held);
    cluster.stop()
}
