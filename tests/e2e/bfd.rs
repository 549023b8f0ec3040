//! Neighbouring routers speak BFD with the box: BIRD and FRR, IPv4 and IPv6, signed and
//! not. The routers are killed and cut off. The box reports it, uses another route if
//! there is one, and returns to the router's route when the router is back.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Bfd, Process, Status};
use holdfast_lab::process::{self, signal_pid};
use holdfast_lab::programs;
use holdfast_lab::requirements::*;
use holdfast_lab::topology::HOST_DEVICE;
use holdfast_lab::{Interrupt, Lab, until, until_every};
use holdfast_tests::TIMEOUT;
use holdfast_tests::network::{Chain, Network, Options, SERVER, SERVER_2, SIX, ip};
use holdfast_tests::routers::{BIRD, FRR, Router, Signed};
use holdfast_tests::runner::{Test, light};
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// A host behind the router.
const BEHIND: &str = "203.0.113.9";
/// The box's addresses on the router's network.
const BOX: [&str; 2] = ["192.0.2.2", SIX[2]];
/// A router may be slow for many reasons: sessions that it sets up anew, addresses that
/// it does not have yet.
const LIMIT: Duration = Duration::from_secs(90);
/// Milliseconds between packets. With a multiplier of 5 detection takes two and a half
/// seconds: a router whose program gets no core for a while must not count as dead.
const INTERVAL: u32 = 500;
/// Time between two queries of a router: each starts a program.
const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// Detection time of both sides.
const DETECTION: Duration = Duration::from_millis(5 * INTERVAL as u64);

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light("bird_is_killed_and_comes_back", 7, &[BIRD, PING], bird_is_killed_and_comes_back),
        light("frr_is_killed_and_comes_back", 6, &[FRR, PING], frr_is_killed_and_comes_back),
        light("a_cut_link_and_another_route", 8, &[FRR, PING], a_cut_link_and_another_route),
        light("the_end_of_the_box_is_no_failure", 2, &[FRR], the_end_of_the_box_is_no_failure),
        light(
            "routers_do_not_notice_the_managers_death",
            9,
            &[BIRD, PING],
            routers_do_not_notice_the_managers_death,
        ),
        light("every_signature_is_the_routers", 10, &[BIRD], every_signature_is_the_routers),
        light(
            "a_key_changes_and_the_session_stays_up",
            9,
            &[BIRD],
            a_key_changes_and_the_session_stays_up,
        ),
        light(
            "who_has_another_key_is_not_heard",
            2,
            &[BIRD, PING],
            who_has_another_key_is_not_heard,
        ),
    ]
}

/// The office, with BFD sessions to both addresses of the provider's router.
fn start(key: &str, more: &'static str, interrupt: &Interrupt) -> Result<Network> {
    start_every(INTERVAL, key, more, interrupt)
}

/// Like `start`, with another interval between packets.
fn start_every(
    interval_ms: u32,
    key: &str,
    more: &'static str,
    interrupt: &Interrupt,
) -> Result<Network> {
    let options = Options { more, ..Options::protected(Chain::Plain) };
    let bfd = |peer: &str| {
        format!("{{ peer: \"{peer}\", interval: {interval_ms}ms, multiplier: 5{key} }}")
    };
    let watched = format!("gateway: {SERVER}, bfd: [{}, {}] }}", bfd(SERVER), bfd(SIX[3]));
    let text = options.configuration().replacen(&format!("gateway: {SERVER} }}"), &watched, 1);
    let network = Network::start_after(&options, interrupt, |lab, topology| {
        write_key(lab, "secret\n")?;
        topology.server.ip(&format!("address add {BEHIND}/32 dev lo"))?;
        topology.server.ip("link set lo up")?;
        Ok(text)
    })?;
    Ok(network)
}

fn write_key(lab: &Lab, secret: &str) -> Result<()> {
    let path = lab.write("bfd.key", secret)?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?)
}

/// The router's own addresses, each with the box's.
fn ends() -> [(&'static str, &'static str); 2] {
    [(SERVER, BOX[0]), (SIX[3], BOX[1])]
}

fn watched(status: &Status) -> Vec<&Bfd> {
    status.ports.iter().flat_map(|port| &port.bfd).collect()
}

/// Waits until the box reports both sessions in this state.
fn wait_for(network: &Network, state: &str, interrupt: &Interrupt) -> Result<Status> {
    network.running.wait_for(&format!("both sessions are {state}"), LIMIT, interrupt, |status| {
        let watched = watched(status);
        watched.len() == 2 && watched.iter().all(|bfd| bfd.state == state)
    })
}

fn is_reached(network: &Network) -> Result<bool> {
    let pings =
        programs::ping(&network.topology.client, ip(BEHIND), 5, 56, Duration::from_millis(50))?;
    Ok(pings.received > 0)
}

fn comes_and_goes(network: &Network, mut router: Router, interrupt: &Interrupt) -> Result<()> {
    let status = wait_for(network, "Up", interrupt)?;
    for bfd in watched(&status) {
        ensure!(bfd.remote_state != "Down" && !bfd.dead && bfd.diagnostic == "none", "{bfd:?}");
    }
    for (_, peer) in ends() {
        until_every(ASK_INTERVAL, "the router says that it is up", TIMEOUT, interrupt, || {
            Ok(router.is_up(peer)?.then_some(()))
        })?;
    }
    // The intervals become short as soon as the poll sequence has ended.
    network.running.wait_for("intervals are agreed on", TIMEOUT, interrupt, |status| {
        let agreed = |bfd: &&Bfd| {
            (bfd.transmit_us, bfd.receive_us, bfd.detection_us)
                == (INTERVAL * 1000, Some(INTERVAL * 1000), Some(u64::from(5 * INTERVAL) * 1000))
        };
        watched(status).iter().all(agreed)
    })?;
    ensure!(is_reached(network)?, "through the router, which is alive");

    let before = network.running.status()?;
    router.kill()?;
    let status = wait_for(network, "Down", interrupt)?;
    for bfd in watched(&status) {
        ensure!(
            bfd.dead
                && bfd.downs >= 1
                && bfd.last_down.as_deref() == Some("control detection time expired"),
            "{bfd:?}"
        );
    }
    // The router's kernel would still forward; the box must not rely on it.
    ensure!(!is_reached(network)?, "through a dead router");
    let after = network.running.status()?;
    ensure!(after.dropped("next_hop_down") > before.dropped("next_hop_down"), "{:?}", after.drops);

    router.start()?;
    wait_for(network, "Up", interrupt)?;
    until_every(ASK_INTERVAL, "what is behind it is reached again", TIMEOUT, interrupt, || {
        Ok(is_reached(network)?.then_some(()))
    })
}

/// BIRD signs and numbers each packet.
fn bird_is_killed_and_comes_back(interrupt: &Interrupt) -> Result<()> {
    let key = ", key: { type: meticulous-keyed-sha1, id: 7, file: bfd.key }";
    let network = start(key, "", interrupt)?;
    let signed = Signed { how: "meticulous keyed sha1", id: 7, secret: "secret" };
    let router = Router::bird(
        &network.lab,
        &network.topology.server,
        HOST_DEVICE,
        &ends(),
        INTERVAL,
        Some(signed),
    )?;
    comes_and_goes(&network, router, interrupt)?;
    network.stop()
}

fn frr_is_killed_and_comes_back(interrupt: &Interrupt) -> Result<()> {
    let network = start("", "", interrupt)?;
    let router =
        Router::frr(&network.lab, &network.topology.server, HOST_DEVICE, &ends(), INTERVAL)?;
    comes_and_goes(&network, router, interrupt)?;
    network.stop()
}

/// The router is cut off from the box in both directions, and a second route leads
/// elsewhere (to the same host's other address, without BFD). The box uses the second
/// route meanwhile, and leaves it when the link is whole.
fn a_cut_link_and_another_route(interrupt: &Interrupt) -> Result<()> {
    let network = start("", "routes: [ { to: 0.0.0.0/0, via: 192.0.2.80 } ]\n", interrupt)?;
    ensure!(SERVER_2 == "192.0.2.80");
    let server = &network.topology.server;
    let router = Router::frr(&network.lab, server, HOST_DEVICE, &ends(), INTERVAL)?;
    wait_for(&network, "Up", interrupt)?;
    ensure!(is_reached(&network)?);
    // Only BFD is cut, so pings show the box's choice of route.
    server.run("nft add table inet cut")?;
    server.run("nft add chain inet cut in { type filter hook input priority 0 ; }")?;
    server.run("nft add rule inet cut in udp dport 3784 drop")?;
    server.run("nft add chain inet cut out { type filter hook output priority 0 ; }")?;
    server.run("nft add rule inet cut out udp dport 3784 drop")?;
    let status = wait_for(&network, "Down", interrupt)?;
    ensure!(watched(&status).iter().all(|bfd| bfd.dead), "{:?}", status.ports);
    ensure!(is_reached(&network)?, "by the other route");
    ensure!(network.running.status()?.dropped("next_hop_down") == 0, "nothing had no way");
    server.run("nft delete table inet cut")?;
    wait_for(&network, "Up", interrupt)?;
    ensure!(is_reached(&network)?);
    // The whole link goes down, and up again.
    server.ip(&format!("link set {HOST_DEVICE} down"))?;
    wait_for(&network, "Down", interrupt)?;
    server.ip(&format!("link set {HOST_DEVICE} up"))?;
    // The kernel has removed its IPv6 addresses with the link.
    server.ip(&format!("-6 address replace {}/64 dev {HOST_DEVICE} nodad", SIX[3]))?;
    wait_for(&network, "Up", interrupt)?;
    drop(router);
    network.stop()
}

/// On SIGTERM the box tells each router that it leaves on purpose.
fn the_end_of_the_box_is_no_failure(interrupt: &Interrupt) -> Result<()> {
    // The box waits a second for the routers' answers.
    const LEAVING_INTERVAL: u32 = 200;
    let mut network = start_every(LEAVING_INTERVAL, "", "", interrupt)?;
    let router = Router::frr(
        &network.lab,
        &network.topology.server,
        HOST_DEVICE,
        &ends(),
        LEAVING_INTERVAL,
    )?;
    wait_for(&network, "Up", interrupt)?;
    let status = network.running.stop(TIMEOUT, interrupt)?;
    ensure!(status.success(), "SIGTERM ended the box with {status}");
    let said = router.details()?;
    ensure!(
        said.matches("Remote diagnostics: administratively down").count() == ends().len(),
        "{said}"
    );
    ensure!(!said.contains("detection time expired"), "{said}");
    Ok(())
}

/// The manager is killed, again and again. Its next incarnation continues the sessions,
/// sequence numbers of signatures included, before the router's detection time is over.
fn routers_do_not_notice_the_managers_death(interrupt: &Interrupt) -> Result<()> {
    // A router waits five intervals: on any machine the manager's next incarnation is
    // there sooner.
    const INTERVAL: u32 = 1_000;
    const DETECTION: Duration = Duration::from_millis(5 * INTERVAL as u64);
    let network = start_every(
        INTERVAL,
        ", key: { type: meticulous-keyed-sha1, id: 7, file: bfd.key }",
        "",
        interrupt,
    )?;
    let signed = Signed { how: "meticulous keyed sha1", id: 7, secret: "secret" };
    let router = Router::bird(
        &network.lab,
        &network.topology.server,
        HOST_DEVICE,
        &ends(),
        INTERVAL,
        Some(signed),
    )?;
    wait_for(&network, "Up", interrupt)?;
    let are_up = || {
        Ok(ends()
            .iter()
            .try_fold(true, |all, (_, peer)| anyhow::Ok(all && router.is_up(peer)?))?
            .then_some(()))
    };
    until_every(ASK_INTERVAL, "the router says that both are up", TIMEOUT, interrupt, are_up)?;
    let said = since(&router)?;
    for _ in 0..3 {
        let last = manager(&network.running.status()?)?;
        signal_pid(last.pid, Signal::KILL)?;
        until("the next incarnation has both sessions", TIMEOUT, interrupt, || {
            // While there is no manager, status queries fail.
            let Ok(status) = network.running.status() else { return Ok(None) };
            Ok((manager(&status)?.pid != last.pid && watched(&status).len() == 2).then_some(()))
        })?;
    }
    // If sequence numbers were refused, the router would notice only now.
    let killed = Instant::now();
    until_every(ASK_INTERVAL, "a detection time has passed", LIMIT, interrupt, || {
        let now = since(&router)?;
        ensure!(are_the_same(&said, &now), "{said:?}, and now {now:?}");
        Ok((killed.elapsed() > DETECTION + Duration::from_secs(1)).then_some(()))
    })?;
    let status = network.running.status()?;
    ensure!(
        watched(&status).iter().all(|bfd| bfd.state == "Up" && bfd.downs == 0 && !bfd.dead),
        "{:?}",
        status.ports
    );
    ensure!(
        status.dropped("bfd_replayed") == 0 && status.dropped("bfd_no_session") == 0,
        "{:?}",
        status.drops
    );
    ensure!(is_reached(&network)?, "through the router");
    network.stop()
}

fn manager(status: &Status) -> Result<Process> {
    let found = status.processes.iter().find(|process| process.role == "manager");
    found.cloned().with_context(|| format!("no manager in {status:?}"))
}

/// Each peer, and the time at which its BIRD session changed last, in ms of the day: the
/// first and the fourth word of a line.
fn since(router: &Router) -> Result<Vec<(String, u64)>> {
    let text = router.sessions()?;
    let time = |word: &str| {
        let mut parts = word.split([':', '.']).map(str::parse::<u64>);
        let mut next = || parts.next()?.ok();
        Some(((next()? * 60 + next()?) * 60 + next()?) * 1000 + next()?)
    };
    let session = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_session = ends().iter().any(|(_, peer)| words.first() == Some(peer));
        Some((words.first().filter(|_| is_session)?.to_string(), time(words.get(3)?)?))
    };
    let since: Vec<_> = text.lines().filter_map(session).collect();
    ensure!(since.len() == ends().len(), "{text}");
    Ok(since)
}

/// BIRD computes these times back from the time of day at each query, so the last digit
/// may differ.
fn are_the_same(before: &[(String, u64)], now: &[(String, u64)]) -> bool {
    before
        .iter()
        .zip(now)
        .all(|((peer, since), (same, again))| peer == same && since.abs_diff(*again) < 50)
}

/// Each kind of signature, as BIRD makes and reads it.
fn every_signature_is_the_routers(interrupt: &Interrupt) -> Result<()> {
    for (own, how) in [
        ("password", "simple"),
        ("keyed-sha1", "keyed sha1"),
        ("meticulous-keyed-sha1", "meticulous keyed sha1"),
    ] {
        let key = format!(", key: {{ type: {own}, id: 9, file: bfd.key }}");
        let network = start(&key, "", interrupt)?;
        let signed = Signed { how, id: 9, secret: "secret" };
        let router = Router::bird(
            &network.lab,
            &network.topology.server,
            HOST_DEVICE,
            &ends(),
            INTERVAL,
            Some(signed),
        )?;
        let status = wait_for(&network, "Up", interrupt)?;
        ensure!(status.dropped("bfd_unauthenticated") == 0, "{how}: {:?}", status.drops);
        for (_, peer) in ends() {
            until_every(ASK_INTERVAL, "the router says that it is up", TIMEOUT, interrupt, || {
                Ok(router.is_up(peer)?.then_some(()))
            })?;
        }
        drop(router);
        network.stop()?;
    }
    Ok(())
}

/// The key file changes, and SIGHUP makes the box read it; the router follows. Neither
/// side sees the session go down, and the next incarnation of a killed manager uses the
/// new key.
fn a_key_changes_and_the_session_stays_up(interrupt: &Interrupt) -> Result<()> {
    let mut network =
        start(", key: { type: meticulous-keyed-sha1, id: 7, file: bfd.key }", "", interrupt)?;
    let signed = Signed { how: "meticulous keyed sha1", id: 7, secret: "secret" };
    let router = Router::bird(
        &network.lab,
        &network.topology.server,
        HOST_DEVICE,
        &ends(),
        INTERVAL,
        Some(signed),
    )?;
    wait_for(&network, "Up", interrupt)?;
    let answer = |network: &mut Network, words: &str| {
        let process = network.running.process();
        let before = process.stderr().matches(words).count();
        process.signal(Signal::HUP)?;
        let has_said = |process: &process::Process| {
            Ok((process.stderr().matches(words).count() > before).then_some(()))
        };
        process.wait_while_running(words, TIMEOUT, interrupt, has_said)
    };
    answer(&mut network, "the routers' keys are the same")?;
    write_key(&network.lab, "")?;
    answer(&mut network, "the routers' keys stay as they are")?;
    write_key(&network.lab, "another")?;
    answer(&mut network, "another key for 192.0.2.1, 2001:db8:2::1")?;
    router.change_key("secret", "another")?;
    let changed = Instant::now();
    until_every(ASK_INTERVAL, "the old key counts no more", LIMIT, interrupt, || {
        let status = network.running.status()?;
        ensure!(
            watched(&status).iter().all(|bfd| bfd.state == "Up" && bfd.downs == 0),
            "{:?} {}",
            status.ports,
            router.sessions()?
        );
        Ok((changed.elapsed() > DETECTION * 2).then_some(()))
    })?;
    let last = manager(&network.running.status()?)?;
    signal_pid(last.pid, Signal::KILL)?;
    until("the next incarnation has both sessions up", LIMIT, interrupt, || {
        let Ok(status) = network.running.status() else { return Ok(None) };
        let are_up =
            watched(&status).len() == 2 && watched(&status).iter().all(|bfd| bfd.state == "Up");
        Ok((manager(&status)?.pid != last.pid && are_up).then_some(()))
    })?;
    network.stop()
}

/// The router has another key, so neither side accepts the other's packets. No session
/// comes up, each packet is counted, and no route changes.
fn who_has_another_key_is_not_heard(interrupt: &Interrupt) -> Result<()> {
    let network = start(", key: { type: keyed-sha1, id: 7, file: bfd.key }", "", interrupt)?;
    let signed = Signed { how: "keyed sha1", id: 7, secret: "another" };
    let _router = Router::bird(
        &network.lab,
        &network.topology.server,
        HOST_DEVICE,
        &ends(),
        INTERVAL,
        Some(signed),
    )?;
    let what = "packets are refused";
    let status = network
        .running
        .wait_for(what, TIMEOUT, interrupt, |status| status.dropped("bfd_unauthenticated") > 3)?;
    ensure!(
        watched(&status).iter().all(|bfd| bfd.state == "Down" && !bfd.dead && bfd.downs == 0),
        "{:?}",
        status.ports
    );
    ensure!(is_reached(&network)?, "a session that was never up takes no route away");
    network.stop()
}
