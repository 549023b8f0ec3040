//! Real programs through the box without a failure: the chain forwards their traffic in
//! both directions.

use anyhow::{Result, anyhow, ensure};
use holdfast_lab::download::{Download, Plan};
use holdfast_lab::programs::{self, Iperf3};
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, link, until};
use holdfast_tests::network::{
    Chain, GIVE_UP, INSIDE, Network, Options, PATIENT, SERVER, SERVER_2, SIX, VIRTUAL, ip, socket,
};
use holdfast_tests::runner::{Test, alone, light};
use holdfast_tests::verdict::ensure_unbroken;
use holdfast_tests::{TIMEOUT, frames};
use std::time::Duration;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light("curl_fetches_100_mb", 2, &[NGINX, CURL], curl_fetches_100_mb),
        light(
            "curl_fetches_under_protection_none",
            1,
            &[NGINX, CURL],
            curl_fetches_under_protection_none,
        ),
        light("iperf3_tcp_both_directions", 8, &[IPERF3], iperf3_tcp_both_directions),
        alone(
            "what is lost is what the machine has no time for",
            "iperf3_udp_both_directions",
            6,
            &[IPERF3],
            iperf3_udp_both_directions,
        ),
        light(
            "ping_is_answered_by_servers_and_by_the_box",
            4,
            &[PING],
            ping_is_answered_by_servers_and_by_the_box,
        ),
        light(
            "traceroute_sees_the_box_and_the_server",
            1,
            &[TRACEROUTE, NGINX],
            traceroute_sees_the_box_and_the_server,
        ),
        light("dig_over_udp", 1, &[DIG, DNSMASQ], dig_over_udp),
        light("wrk_with_100_connections", 6, &[NGINX, WRK], wrk_with_100_connections),
        light(
            "the_load_balancer_uses_both_servers",
            1,
            &[NGINX, CURL],
            the_load_balancer_uses_both_servers,
        ),
        light(
            "datagrams_arrive_once_in_order_and_unchanged",
            3,
            &[],
            datagrams_arrive_once_in_order_and_unchanged,
        ),
        light(
            "the_server_sees_the_pool_and_not_the_client",
            1,
            &[],
            the_server_sees_the_pool_and_not_the_client,
        ),
        light(
            "plain_forwarding_of_both_families",
            2,
            &[NGINX, CURL, PING],
            plain_forwarding_of_both_families,
        ),
        light(
            "a_bad_checksum_is_not_mended_on_the_way",
            1,
            &[],
            a_bad_checksum_is_not_mended_on_the_way,
        ),
        light(
            "every_driver_carries_the_same",
            10,
            &[NGINX, CURL, IPERF3],
            every_driver_carries_the_same,
        ),
        alone(
            "the time until an answer is measured",
            "dpdk_carries_the_same",
            3,
            &[NGINX, CURL, PING],
            dpdk_carries_the_same,
        ),
        light(
            "what_the_firewall_denies_does_not_pass",
            3,
            &[CURL, NGINX],
            what_the_firewall_denies_does_not_pass,
        ),
    ]
}

fn fetch(
    network: &Network,
    url: String,
    interrupt: &Interrupt,
) -> Result<holdfast_lab::download::Outcome> {
    let plan = Plan { url, bytes_per_second: None, stalled_after: GIVE_UP };
    Download::start(&network.topology.client, &plan)?.finish(Duration::from_secs(120), interrupt)
}

fn curl_fetches_100_mb(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let sum = network.site.add_random("big", 100_000_000)?;
    let outcome = fetch(&network, format!("http://{VIRTUAL}/big"), interrupt)?;
    ensure!(
        outcome.error.is_none() && outcome.bytes == 100_000_000 && outcome.sum == sum,
        "{outcome:?}"
    );
    network.stop()
}

fn curl_fetches_under_protection_none(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(
        &Options { protection: "none", ..Options::protected(Chain::Balanced) },
        interrupt,
    )?;
    network.serve_web()?;
    let sum = network.site.add_random("some", 20_000_000)?;
    let outcome = fetch(&network, format!("http://{VIRTUAL}/some"), interrupt)?;
    ensure!(outcome.error.is_none() && outcome.sum == sum, "{outcome:?}");
    network.stop()
}

/// A device name alone means AF_XDP if the driver supports it; an explicit driver is
/// used, with offloads as a user leaves them.
fn every_driver_carries_the_same(interrupt: &Interrupt) -> Result<()> {
    for (driver, used) in [("", "afxdp"), ("afxdp:", "afxdp"), ("afpacket:", "afpacket")] {
        for offloads in [link::Offloads::Off, link::Offloads::LeftOn] {
            let options = Options { driver, offloads, ..Options::protected(Chain::Balanced) };
            let mut network = Network::start(&options, interrupt)?;
            network.serve_web()?;
            let sum = network.site.add_random("some", 10_000_000)?;
            let outcome = fetch(&network, format!("http://{VIRTUAL}/some"), interrupt)?;
            ensure!(
                outcome.error.is_none() && outcome.sum == sum,
                "{driver:?} {offloads:?}: {outcome:?}"
            );
            let status = network.running.status()?;
            ensure!(status.ports.len() == 2, "{status:?}");
            for port in &status.ports {
                ensure!(
                    port.driver == used && port.up && port.received > 100 && port.transmitted > 100,
                    "{driver:?}: {port:?}"
                );
            }
            network.stop()?;
        }
    }
    Ok(())
}

/// The average round-trip time of twenty pings to the box itself.
fn average_ping(network: &Network) -> Result<Duration> {
    let mut command = network.topology.client.command("ping");
    let output = command.args(["-n", "-q", "-c", "20", "-i", "0.01", INSIDE]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // "rtt min/avg/max/mdev = 0.051/0.062/0.091/0.012 ms"
    let numbers = text.lines().find_map(|line| line.split_once(" = ")).map(|(_, numbers)| numbers);
    let average = numbers.and_then(|numbers| numbers.split('/').nth(1)?.parse::<f64>().ok());
    average
        .map(|milliseconds| Duration::from_secs_f64(milliseconds / 1000.0))
        .ok_or_else(|| anyhow!("ping said: {text}"))
}

/// Both ports are DPDK's, over its own packet-socket driver: no event wakes the box up
/// when a frame comes, and traffic must still pass unharmed. Runtimes start as with any
/// port.
fn dpdk_carries_the_same(interrupt: &Interrupt) -> Result<()> {
    if let Some(why) = holdfast_io::port::Dpdk::absent() {
        eprintln!("dpdk_carries_the_same: skipped: {why}");
        return Ok(());
    }
    let options =
        Options { driver: "dpdk:net_af_packet-@,iface=@", ..Options::protected(Chain::Balanced) };
    let mut network = Network::start(&options, interrupt)?;
    network.serve_web()?;
    let sum = network.site.add_random("some", 10_000_000)?;
    let outcome = fetch(&network, format!("http://{VIRTUAL}/some"), interrupt)?;
    ensure!(outcome.error.is_none() && outcome.sum == sum, "{outcome:?}");
    // The box polls every 0.1 ms or so. If it slept until one of its own timers went off,
    // an answer would take 3 to 6 ms on average. The best of five counts, so that another
    // program's time on the processor does not matter.
    let mut best = Duration::MAX;
    for _ in 0..5 {
        best = best.min(average_ping(&network)?);
    }
    ensure!(
        best < Duration::from_micros(1000),
        "{best:?} until the box answers: a frame waits until it wakes up by itself"
    );
    for port in &network.running.status()?.ports {
        ensure!(
            port.driver == "dpdk" && port.up && port.received > 100 && port.transmitted > 100,
            "{port:?}"
        );
    }
    network.stop()
}

fn iperf3_tcp_both_directions(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&Options::protected(Chain::Edge), interrupt)?;
    let _server = programs::iperf3_server(&network.lab, &network.topology.server, 5201, &[])?;
    for reverse in [false, true] {
        let plan = Iperf3 {
            server: socket(&format!("{SERVER}:5201")),
            udp_bits_per_second: None,
            reverse,
            seconds: 3,
        };
        let transfer = plan.run(&network.lab, &network.topology.client, "iperf3")?;
        ensure!(transfer.bits_per_second > 5e6, "reverse {reverse}: {transfer:?}");
    }
    network.stop()
}

fn iperf3_udp_both_directions(interrupt: &Interrupt) -> Result<()> {
    let network =
        Network::start(&Options { more: PATIENT, ..Options::protected(Chain::Edge) }, interrupt)?;
    let _server = programs::iperf3_server(&network.lab, &network.topology.server, 5201, &[])?;
    for reverse in [false, true] {
        let plan = Iperf3 {
            server: socket(&format!("{SERVER}:5201")),
            udp_bits_per_second: Some(10_000_000),
            reverse,
            seconds: 3,
        };
        let transfer = plan.run(&network.lab, &network.topology.client, "iperf3")?;
        // Ten Mbit/s are 1,000 packets a second. A queue may overflow when this machine
        // gives the box no core for a while.
        ensure!(transfer.datagrams > 2_000, "reverse {reverse}: {transfer:?}");
        ensure!(
            transfer.lost * 100 <= transfer.datagrams,
            "more than one in a hundred lost, reverse {reverse}: {transfer:?}"
        );
    }
    network.stop()
}

fn ping_is_answered_by_servers_and_by_the_box(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&Options::protected(Chain::Edge), interrupt)?;
    for target in [SERVER, SERVER_2, INSIDE] {
        for bytes in [0, 56, 1400] {
            let pings = programs::ping(
                &network.topology.client,
                ip(target),
                20,
                bytes,
                Duration::from_millis(10),
            )?;
            // The first ping may wait for address resolution and be dropped.
            ensure!(
                pings.sent == 20 && pings.received >= 19,
                "{target} with {bytes} bytes: {pings:?}"
            );
        }
    }
    let pings = programs::ping(
        &network.topology.server,
        ip("192.0.2.2"),
        5,
        56,
        Duration::from_millis(10),
    )?;
    ensure!(pings.received >= 4, "the box's outer address: {pings:?}");
    network.stop()
}

fn traceroute_sees_the_box_and_the_server(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Edge), interrupt)?;
    network.serve_web()?;
    // UDP (answered by an ICMP error that quotes the translated packet), ICMP echo, TCP
    // to an open port.
    for options in [&[][..], &["-I"], &["-T", "-p", "80"]] {
        let hops = programs::traceroute(&network.topology.client, ip(SERVER), options)?;
        ensure!(hops == [Some(ip(INSIDE)), Some(ip(SERVER))], "traceroute {options:?}: {hops:?}");
    }
    network.stop()
}

fn dig_over_udp(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&Options::protected(Chain::Edge), interrupt)?;
    let (server, answer) = (socket(&format!("{SERVER}:53")), ip("198.18.0.7"));
    let _dns = programs::dns_server(
        &network.lab,
        &network.topology.server,
        server,
        "holdfast.test",
        answer,
    )?;
    for _ in 0..10 {
        let found = programs::dig(&network.topology.client, server, "holdfast.test", 3)?;
        ensure!(found == [answer], "{found:?}");
    }
    network.stop()
}

fn wrk_with_100_connections(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let mut process = programs::wrk(
        &network.lab,
        &network.topology.client,
        &format!("http://{VIRTUAL}/held"),
        100,
        5,
    )?;
    let load = programs::read_wrk(&process.finish(TIMEOUT, interrupt)?)?;
    ensure!(
        load.requests > 500 && load.socket_errors + load.timeouts + load.bad_answers == 0,
        "{load:?}"
    );
    network.stop()
}

/// Least load: each server gets about half of many connections that are opened one after
/// the other and kept.
fn the_load_balancer_uses_both_servers(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Balanced), interrupt)?;
    network.serve_web()?;
    let held = network.hold(VIRTUAL, 60)?;
    let table = network.topology.server.run("ss -Htn state established")?;
    let connections_to = |address: &str| {
        table.lines().filter(|line| line.contains(&format!(" {address}:80 "))).count()
    };
    let (first, second) = (connections_to(SERVER), connections_to(SERVER_2));
    ensure!(
        first + second == 60 && first.abs_diff(second) <= 20,
        "{first} and {second} of 60 connections:\n{table}"
    );
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}

fn datagrams_arrive_once_in_order_and_unchanged(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&Options::protected(Chain::Edge), interrupt)?;
    let (_echo, stream) = network.stream(20, 1000)?;
    until("2,000 datagrams return", TIMEOUT, interrupt, || {
        Ok((stream.datagrams().returned > 2_000).then_some(()))
    })?;
    let datagrams = stream.finish();
    ensure!(
        (datagrams.doubled, datagrams.reordered, datagrams.changed) == (0, 0, 0),
        "{datagrams:?}"
    );
    ensure!(datagrams.flows_alive == 20 && datagrams.lost * 100 <= datagrams.sent, "{datagrams:?}");
    network.stop()
}

fn the_server_sees_the_pool_and_not_the_client(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&Options::protected(Chain::Edge), interrupt)?;
    let server =
        network.topology.server.enter(|| std::net::UdpSocket::bind(format!("{SERVER}:9009")))??;
    server.set_read_timeout(Some(TIMEOUT))?;
    let client = network.topology.client.enter(|| std::net::UdpSocket::bind("0.0.0.0:0"))??;
    client.send_to(b"who am I", format!("{SERVER}:9009"))?;
    let (_, seen) = server.recv_from(&mut [0; 100])?;
    let pool: Vec<std::net::IpAddr> = (32..40).map(|last| ip(&format!("192.0.2.{last}"))).collect();
    ensure!(pool.contains(&seen.ip()), "the server sees {seen}");
    network.stop()
}

fn plain_forwarding_of_both_families(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Plain), interrupt)?;
    let sum = network.site.add_random("some", 5_000_000)?;
    for address in [SERVER.to_owned(), format!("[{}]", SIX[3])] {
        network.serve_web_on(socket(&format!("{address}:80")))?;
        let outcome = fetch(&network, format!("http://{address}/some"), interrupt)?;
        ensure!(outcome.error.is_none() && outcome.sum == sum, "from {address}: {outcome:?}");
    }
    for target in [SERVER, SIX[3], SIX[1]] {
        let pings = programs::ping(
            &network.topology.client,
            ip(target),
            10,
            56,
            Duration::from_millis(10),
        )?;
        ensure!(pings.received >= 9, "{target}: {pings:?}");
    }
    network.stop()
}

/// NAT updates checksums incrementally: a wrong checksum must stay wrong, or the packet
/// be dropped; it must never arrive with a right one.
fn a_bad_checksum_is_not_mended_on_the_way(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&Options::protected(Chain::Edge), interrupt)?;
    let server =
        network.topology.server.enter(|| std::net::UdpSocket::bind(format!("{SERVER}:9009")))??;
    server.set_read_timeout(Some(TIMEOUT))?;
    let sender = frames::Sender::open(&network.topology.client, "eth0")?;
    let ends = frames::Ends {
        from_mac: link::mac(&network.topology.client, "eth0")?,
        to_mac: gateway_mac(&network)?,
        from: ("172.20.5.10".parse()?, 40_000),
        to: (SERVER.parse()?, 9009),
    };
    sender.send(&ends.udp(b"first"))?;
    let mut bad = ends.udp(b"bad");
    bad[40] ^= 0x55;
    sender.send(&bad)?;
    sender.send(&ends.udp(b"last"))?;
    let mut heard = Vec::new();
    while heard.last().is_none_or(|last| last != "last") {
        let mut block = [0_u8; 100];
        let (length, _) = server.recv_from(&mut block)?;
        heard.push(String::from_utf8_lossy(&block[..length]).into_owned());
    }
    ensure!(heard == ["first", "last"], "{heard:?}");
    network.stop()
}

/// The box's MAC address as learnt by its neighbour; the box may choose which it uses.
fn gateway_mac(network: &Network) -> Result<[u8; 6]> {
    programs::ping(&network.topology.client, ip(INSIDE), 1, 56, Duration::from_millis(10))?;
    link::neighbour(&network.topology.client, INSIDE)
}

fn what_the_firewall_denies_does_not_pass(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&Options::protected(Chain::Edge), interrupt)?;
    network.serve_web_on(socket(&format!("{SERVER}:8080")))?;
    network.site.add("held", "no")?;
    let plan = Plan {
        url: format!("http://{SERVER}:8080/held"),
        bytes_per_second: None,
        stalled_after: Duration::from_secs(2),
    };
    let outcome = Download::start(&network.topology.client, &plan)?.finish(TIMEOUT, interrupt)?;
    ensure!(outcome.error.is_some() && outcome.bytes == 0, "{outcome:?}");
    let status = network.running.status()?;
    ensure!(status.dropped("policy_denied") > 0, "the drops are {:?}", status.drops);
    network.stop()
}
