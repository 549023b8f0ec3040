//! Tests of the laboratory itself, with the kernel of the middle namespace as the box: if
//! these fail, no other result means anything.

use anyhow::{Result, ensure};
use holdfast_lab::download::{Download, Plan};
use holdfast_lab::keepalive::{self, KeepAlive};
use holdfast_lab::nginx::{Nginx, Site};
use holdfast_lab::programs::{self, Iperf3};
use holdfast_lab::requirements::*;
use holdfast_lab::topology::Topology;
use holdfast_lab::{Interrupt, Lab, link, running, sweep, udp, until};
use holdfast_tests::network::{self, Chain, INSIDE, Network, Options, SERVER, ip, socket};
use holdfast_tests::runner::{Test, alone, light};
use holdfast_tests::{TIMEOUT, frames};
use std::time::Duration;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light(
            "programs_reach_each_other_through_the_kernel",
            9,
            ALL,
            programs_reach_each_other_through_the_kernel,
        ),
        light(
            "a_cut_link_breaks_what_it_should",
            9,
            &[NGINX, CURL],
            a_cut_link_breaks_what_it_should,
        ),
        light("nothing_is_left_after_a_panic", 1, &[NGINX], nothing_is_left_after_a_panic),
        alone(
            "any laboratory that begins sweeps the whole machine",
            "leftovers_of_the_dead_are_swept",
            1,
            &[],
            leftovers_of_the_dead_are_swept,
        ),
        light("a_bad_checksum_is_not_delivered", 1, &[], a_bad_checksum_is_not_delivered),
        light("boxes_that_a_test_leaves_are_heard", 1, &[], boxes_that_a_test_leaves_are_heard),
    ]
}

const ALL: &[Program] = &[NGINX, CURL, IPERF3, WRK, PING, TRACEROUTE, DIG, DNSMASQ];

/// The plain network with the kernel forwarding between its devices.
fn kernel_network(interrupt: &Interrupt) -> Result<(Lab, Topology)> {
    let (lab, topology) = network::cables(&Options::protected(Chain::Plain), interrupt)?;
    link::address(&topology.router, "lan0", &format!("{INSIDE}/24"))?;
    link::address(&topology.router, "wan0", "192.0.2.2/24")?;
    topology.router.sysctl("net/ipv4/ip_forward", "1")?;
    Ok((lab, topology))
}

fn programs_reach_each_other_through_the_kernel(interrupt: &Interrupt) -> Result<()> {
    let (lab, topology) = kernel_network(interrupt)?;
    let (client, server) = (&topology.client, &topology.server);

    let site = Site::new(&lab, "site")?;
    let sum = site.add_random("file", 3_000_001)?;
    site.add("held", network::HELD_BODY)?;
    let _nginx = Nginx::start(&lab, server, "nginx", socket(&format!("{SERVER}:80")), &site)?;

    let url = format!("http://{SERVER}/file");
    let fast = Plan { url: url.clone(), bytes_per_second: None, stalled_after: TIMEOUT };
    let outcome = Download::start(client, &fast)?.finish(TIMEOUT, interrupt)?;
    ensure!(
        outcome.error.is_none() && outcome.sum == sum && outcome.bytes == 3_000_001,
        "{outcome:?}"
    );
    let missing = Plan { url: format!("http://{SERVER}/nothing"), ..fast.clone() };
    ensure!(
        Download::start(client, &missing)?.finish(TIMEOUT, interrupt)?.error.is_some(),
        "a 404 is an error"
    );

    let held = KeepAlive::open(client, &held_plan(20), interrupt)?;
    let connections = held.verify(interrupt)?;
    ensure!(
        connections.alive == 20 && connections.broken == 0 && connections.answers >= 20,
        "{connections:?}"
    );

    let echo = udp::Echo::start(server, socket(&format!("{SERVER}:7007")))?;
    let stream = udp::Stream::start(
        client,
        udp::Plan { server: socket(&format!("{SERVER}:7007")), flows: 4, per_second: 1000 },
    )?;
    until("500 datagrams return", TIMEOUT, interrupt, || {
        Ok((stream.datagrams().returned > 500).then_some(()))
    })?;
    let datagrams = stream.finish();
    ensure!(
        datagrams.lost == 0 && datagrams.changed == 0 && datagrams.flows_alive == 4,
        "{datagrams:?}"
    );
    drop(echo);

    let load = programs::read_wrk(
        &programs::wrk(&lab, client, &format!("http://{SERVER}:80/held"), 20, 1)?
            .finish(TIMEOUT, interrupt)?,
    )?;
    ensure!(
        load.requests > 20 && load.socket_errors + load.timeouts + load.bad_answers == 0,
        "{load:?}"
    );

    let _iperf3 = programs::iperf3_server(&lab, server, 5201, &[])?;
    for (reverse, udp_bits_per_second) in
        [(false, None), (true, None), (false, Some(2_000_000)), (true, Some(2_000_000))]
    {
        let plan = Iperf3 {
            server: socket(&format!("{SERVER}:5201")),
            udp_bits_per_second,
            reverse,
            seconds: 1,
        };
        let transfer = plan.run(&lab, client, "iperf3")?;
        ensure!(transfer.bytes > 100_000, "{plan:?} gave {transfer:?}");
        ensure!(
            udp_bits_per_second.is_none() || (transfer.datagrams > 100 && transfer.lost == 0),
            "{plan:?} gave {transfer:?}"
        );
    }

    let pings = programs::ping(client, ip(SERVER), 5, 56, Duration::from_millis(10))?;
    ensure!((pings.sent, pings.received) == (5, 5), "{pings:?}");
    let pings = programs::ping(client, ip("192.0.2.99"), 1, 56, Duration::from_millis(10))?;
    ensure!((pings.sent, pings.received) == (1, 0), "nobody has that address: {pings:?}");
    let hops = programs::traceroute(client, ip(SERVER), &[])?;
    ensure!(hops == [Some(ip(INSIDE)), Some(ip(SERVER))], "{hops:?}");

    let _dns = programs::dns_server(
        &lab,
        server,
        socket(&format!("{SERVER}:53")),
        "holdfast.test",
        ip("198.18.0.7"),
    )?;
    let answer = programs::dig(client, socket(&format!("{SERVER}:53")), "holdfast.test", 1)?;
    ensure!(answer == [ip("198.18.0.7")], "{answer:?}");
    Ok(())
}

fn held_plan(count: usize) -> keepalive::Plan {
    keepalive::Plan {
        server: socket(&format!("{SERVER}:80")),
        path: "/held".into(),
        body: network::HELD_BODY.into(),
        count,
        interval: Duration::from_millis(100),
        answer_within: Duration::from_secs(2),
    }
}

/// The instruments must show a failure when there is one.
fn a_cut_link_breaks_what_it_should(interrupt: &Interrupt) -> Result<()> {
    let (lab, topology) = kernel_network(interrupt)?;
    let site = Site::new(&lab, "site")?;
    site.add_random("file", 5_000_000)?;
    site.add("held", network::HELD_BODY)?;
    let _nginx =
        Nginx::start(&lab, &topology.server, "nginx", socket(&format!("{SERVER}:80")), &site)?;
    let held = KeepAlive::open(&topology.client, &held_plan(5), interrupt)?;
    let plan = Plan {
        url: format!("http://{SERVER}/file"),
        bytes_per_second: Some(500_000),
        stalled_after: Duration::from_secs(2),
    };
    let download = Download::start(&topology.client, &plan)?;
    let echo = udp::Echo::start(&topology.server, socket(&format!("{SERVER}:7007")))?;
    let stream = udp::Stream::start(
        &topology.client,
        udp::Plan { server: socket(&format!("{SERVER}:7007")), flows: 3, per_second: 300 },
    )?;
    until("everything is under way", TIMEOUT, interrupt, || {
        Ok((download.received() > 0 && stream.datagrams().returned > 30).then_some(()))
    })?;

    topology.router.sysctl("net/ipv4/ip_forward", "0")?;
    let connections = held.verify(interrupt)?;
    ensure!((connections.alive, connections.broken) == (0, 5), "{connections:?}");
    ensure!(connections.broken_by.get("no answer") == Some(&5), "{connections:?}");
    let outcome = download.finish(TIMEOUT, interrupt)?;
    ensure!(outcome.error.is_some() && outcome.bytes < 5_000_000, "{outcome:?}");
    let datagrams = stream.finish();
    ensure!(
        datagrams.flows_alive == 0
            && datagrams.lost > 0
            && datagrams.longest_silence_us > 1_000_000,
        "{datagrams:?}"
    );
    drop(echo);
    Ok(())
}

fn nothing_is_left_after_a_panic(interrupt: &Interrupt) -> Result<()> {
    let seen = std::sync::Mutex::new((Vec::new(), std::path::PathBuf::new(), Vec::new()));
    let result = std::panic::catch_unwind(|| {
        let (lab, topology) = kernel_network(interrupt).expect("the network");
        let site = Site::new(&lab, "site").expect("the site");
        let nginx =
            Nginx::start(&lab, &topology.server, "nginx", socket(&format!("{SERVER}:80")), &site)
                .expect("nginx");
        let names: Vec<String> =
            lab.namespaces().iter().map(|namespace| namespace.name().to_owned()).collect();
        let has_worker = || Ok(Some(topology.server.pids()?).filter(|pids| pids.len() >= 2));
        let pids = until("nginx has a worker", TIMEOUT, interrupt, has_worker).expect("pids");
        *seen.lock().expect("not poisoned") = (names, lab.scratch().to_owned(), pids);
        // Leaked on purpose: the namespace's end must be nginx's end too.
        std::mem::forget(nginx);
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    ensure!(result.is_err_and(|panic| panic.is::<&str>()), "the scenario did not get to its panic");
    let (names, scratch, pids) = seen.into_inner().expect("not poisoned");
    ensure!(names.len() == 3 && pids.len() >= 2, "{names:?} {pids:?}");
    for name in names {
        ensure!(!std::path::Path::new("/run/netns").join(&name).exists(), "{name} is left");
    }
    ensure!(!scratch.exists(), "{} is left", scratch.display());
    for pid in pids {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        ensure!(stat.is_empty() || stat.contains(") Z "), "process {pid} is left: {stat}");
    }
    Ok(())
}

/// A namespace and a directory named after a process that has ended are removed, those of
/// a living one are not.
fn leftovers_of_the_dead_are_swept(interrupt: &Interrupt) -> Result<()> {
    let mut child = std::process::Command::new("true").spawn()?;
    let dead = child.id();
    child.wait()?;
    let name = format!("hf-{dead}-leftover");
    ensure!(std::process::Command::new("ip").args(["netns", "add", &name]).status()?.success());
    let directory = std::env::temp_dir().join(format!("hf-{dead}-scratch"));
    std::fs::create_dir_all(directory.join("inside"))?;
    let mut lab = Lab::new(interrupt.clone())?;
    let living = lab.namespace("living")?;
    ensure!(
        !directory.exists() && !std::path::Path::new("/run/netns").join(&name).exists(),
        "leftovers are left"
    );
    let swept = sweep()?;
    ensure!(!swept.iter().any(|swept| swept == living.name()), "{swept:?}");
    ensure!(living.devices()? == ["lo"]);
    Ok(())
}

/// On links without offloads the receiving kernel checks the checksums, so it would
/// detect a box that forwards garbage.
fn a_bad_checksum_is_not_delivered(interrupt: &Interrupt) -> Result<()> {
    let (_lab, topology) = kernel_network(interrupt)?;
    let server =
        topology.server.enter(|| std::net::UdpSocket::bind(format!("{SERVER}:9009")))??;
    server.set_read_timeout(Some(TIMEOUT))?;
    let sender = frames::Sender::open(&topology.client, "eth0")?;
    let ends = frames::Ends {
        from_mac: link::mac(&topology.client, "eth0")?,
        to_mac: link::mac(&topology.router, "lan0")?,
        from: ("172.20.5.10".parse()?, 40_000),
        to: (SERVER.parse()?, 9009),
    };
    let mut bad = ends.udp(b"bad");
    bad[40] ^= 0x55;
    sender.send(&bad)?;
    sender.send(&ends.udp(b"good"))?;
    let mut block = [0_u8; 100];
    let (length, _) = server.recv_from(&mut block)?;
    ensure!(&block[..length] == b"good", "the datagram with a bad checksum came through");
    Ok(())
}

/// A failed test drops its boxes without stopping them; their state and logs are printed
/// with its result.
fn boxes_that_a_test_leaves_are_heard(interrupt: &Interrupt) -> Result<()> {
    Network::start(&Options::protected(Chain::Plain), interrupt)?.stop()?;
    ensure!(running::left_behind().is_empty(), "a box that was stopped has nothing to say");
    drop(Network::start(&Options::protected(Chain::Plain), interrupt)?);
    let words = running::left_behind().concat();
    ensure!(
        words.contains("holdfast was running: {") && words.contains("\"protected\""),
        "{words}"
    );
    Ok(())
}
