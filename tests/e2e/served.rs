//! A state server assigns the NAT's ports. The server is killed and stopped, runtimes are
//! killed, no connection breaks, and no port is given to two flows.

use anyhow::{Context, Result, ensure};
use holdfast_control::flows::Flows;
use holdfast_control::status::Status;
use holdfast_lab::Interrupt;
use holdfast_lab::requirements::*;
use holdfast_lab::wait::until;
use holdfast_tests::crowd::{Apart, Crowd, Mirror};
use holdfast_tests::network::{
    Chain, GIVE_UP, Network, Options, RECOVERY_LIMIT, SERVER, SERVER_2, VIRTUAL, socket,
};
use holdfast_tests::ping::Ping;
use holdfast_tests::runner::{Test, light};
use holdfast_tests::soak;
use holdfast_tests::standby::{Half, kill_half_of_server};
use holdfast_tests::verdict::{ensure_served, ensure_unbroken};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::TcpStream;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light(
            "connections_outlive_server_and_runtimes",
            7,
            &[NGINX],
            connections_outlive_server_and_runtimes,
        ),
        light(
            "datagrams_do_not_notice_the_servers_end",
            2,
            &[],
            datagrams_do_not_notice_the_servers_end,
        ),
        light(
            "a_server_that_stands_still_is_replaced",
            3,
            &[],
            a_server_that_stands_still_is_replaced,
        ),
        light("statistics_are_what_clients_do", 3, &[NGINX], statistics_are_what_clients_do),
        light("connections_of_six_instances_have_ports_of_their_own", 8, &[], ports_of_their_own),
        light("connections_whose_home_is_the_server_have_too", 14, &[], ports_at_home),
        light("a_pool_that_is_used_up_refuses_new_flows_only", 9, &[], a_pool_that_is_used_up),
        light("numbers_of_flows_that_have_ended_rest_whatever_fails", 106, &[], numbers_rest),
        light(
            "flows_come_back_from_snapshots_and_logs_with_their_ports",
            4,
            &[NGINX],
            flows_come_back_with_their_ports,
        ),
    ]
}

fn served(chain: Chain, protection: &'static str) -> Options {
    Options { protection, ..Options::protected(chain) }
}

const REPLICATED: &str = "{ preset: nfvactor, shared: state-server }";

/// A hundred connections before the first server's end, as many after it, and as many
/// after every runtime's: all live.
fn connections_outlive_server_and_runtimes(interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start(&served(Chain::Balanced, REPLICATED), interrupt)?;
    network.serve_web()?;
    let first = network.hold(VIRTUAL, 100)?;
    network.wait_protected()?;
    network.strike_server(Signal::KILL)?;
    let second = network.hold(VIRTUAL, 100)?;
    network.kill_each_runtime(|| {
        network.strike_server(Signal::KILL)?;
        ensure_unbroken(&first, interrupt)?;
        ensure_unbroken(&second, interrupt)
    })?;
    let third = network.hold(VIRTUAL, 100)?;
    for held in [&first, &second, &third] {
        ensure_unbroken(held, interrupt)?;
    }
    ensure_translated(&network, 300)?;
    ensure_whole(&network)?;
    drop((first, second, third));
    network.stop()
}

/// In the running box every pool is whole, runtimes and server agree, and no two flows
/// have one mapping.
fn ensure_whole(network: &Network) -> Result<()> {
    // An inconsistency is an error; a server that has just started causes a warning.
    until("nothing is to be warned of", RECOVERY_LIMIT, network.lab.interrupt(), || {
        let found = network.running.ask("--json check --live --for 2")?;
        let found: serde_json::Value = serde_json::from_str(&found)?;
        let checks = found["checks"].as_array().context("there are checks")?;
        ensure!(checks.len() == 2, "{found}");
        Ok(checks.iter().all(|check| check["outcome"] == "ok").then_some(()))
    })
}

/// At least `count` flows have an outside address and port; no two have the same.
fn ensure_translated(network: &Network, count: usize) -> Result<()> {
    let flows: Flows = serde_json::from_str(&network.running.ask("flows --limit 10000")?)?;
    let outside: BTreeSet<String> =
        flows.flows.iter().map(|flow| flow.translated_source.clone()).collect();
    ensure!(
        outside.len() == flows.flows.len() && outside.len() >= count,
        "{} flows have {} ports",
        flows.flows.len(),
        outside.len()
    );
    Ok(())
}

/// A flow that begins while no number is at hand waits for the server. This test is about
/// existing flows, so it waits for them first.
fn wait_flows(network: &Network, count: u64, interrupt: &Interrupt) -> Result<()> {
    let flows = |status: &Status| status.runtimes().map(|one| one.flows).sum::<u64>();
    network
        .running
        .wait_for("the flows are there", GIVE_UP, interrupt, |status| flows(status) >= count)?;
    network.wait_protected()
}

fn datagrams_do_not_notice_the_servers_end(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&served(Chain::Edge, REPLICATED), interrupt)?;
    let (_echo, stream) = network.stream(30, 1000)?;
    wait_flows(&network, 30, interrupt)?;
    for _ in 0..5 {
        network.strike_server(Signal::KILL)?;
    }
    let datagrams = stream.finish();
    ensure_served(&datagrams, 30, 1)?;
    network.stop()
}

fn a_server_that_stands_still_is_replaced(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start(&served(Chain::Edge, REPLICATED), interrupt)?;
    let (echo, stream) = network.stream(10, 200)?;
    wait_flows(&network, 10, interrupt)?;
    network.strike_server(Signal::STOP)?;
    ensure_served(&stream.finish(), 10, 1)?;
    drop(echo);
    let (_echo, stream) = network.stream(10, 200)?;
    wait_flows(&network, 20, interrupt)?;
    ensure_served(&stream.finish(), 10, 1)?;
    network.stop()
}

/// The monitor has counted the datagrams that clients sent and got back, and the
/// balancer's gauge shows the number of connections, through every death. Both hold where
/// a state server adds them up, and where the runtimes' own are added up.
fn statistics_are_what_clients_do(interrupt: &Interrupt) -> Result<()> {
    const DATAGRAM_FLOWS: usize = 10;
    const HELD: usize = 60;
    for protection in [REPLICATED, "rescue", "nfvactor"] {
        let is_served = protection != "nfvactor";
        let options = served(Chain::Balanced, protection);
        let configuration = options
            .configuration()
            .replace("    functions:\n", "    functions:\n      - monitor\n");
        let mut network = Network::start_with(&options, &configuration, interrupt)?;
        network.serve_web()?;
        let (echo, stream) = network.stream(DATAGRAM_FLOWS, 500)?;
        wait_flows(&network, DATAGRAM_FLOWS as u64, interrupt)?;
        let wait_counted = |what: &str, is_so: &dyn Fn(&BTreeMap<String, i64>) -> bool| {
            let counters = |status: &Status| numbers(status, "monitor", "counters");
            network
                .running
                .wait_for(what, GIVE_UP, interrupt, |status| is_so(&counters(status)))
                .map(|status| counters(&status))
        };
        wait_counted("datagrams are counted while they come", &|counted| {
            counted.get("packets") >= Some(&500)
        })?;
        let datagrams = stream.finish();
        ensure_served(&datagrams, DATAGRAM_FLOWS, 1)?;
        drop(echo);
        let packets = (datagrams.sent + datagrams.returned) as i64;
        let is_exact = |counted: &BTreeMap<String, i64>| {
            counted.get("flows") == Some(&(DATAGRAM_FLOWS as i64))
                && counted.get("packets") == Some(&packets)
        };
        wait_counted("every datagram is counted once", &is_exact)?;
        let mut held = vec![network.hold(VIRTUAL, HELD)?];
        wait_balanced(&network, HELD, interrupt)?;
        if is_served {
            network.wait_protected()?;
            let before = numbers(&network.running.status()?, "monitor", "counters")
                .get("packets")
                .copied()
                .unwrap_or(0);
            network.strike_server(Signal::KILL)?;
            wait_balanced(&network, HELD, interrupt)?;
            // Many more packets, so that the number cannot come from the server's
            // previous incarnation.
            wait_counted("what those that live have counted is counted again", &|counted| {
                let packets = counted.get("packets").copied().unwrap_or(0);
                counted.get("flows") == Some(&((DATAGRAM_FLOWS + HELD) as i64))
                    && packets > before + 1_000
            })?;
        }
        let counted = wait_counted("connections are counted", &|counted| {
            counted.get("packets") > Some(&packets)
        })?;
        network.wait_protected()?;
        let victim = network.running.busiest(None)?;
        network.running.kill(&victim, network.promised, RECOVERY_LIMIT, interrupt)?;
        wait_balanced(&network, HELD, interrupt)?;
        held.push(network.hold(VIRTUAL, HELD)?);
        wait_balanced(&network, 2 * HELD, interrupt)?;
        if is_served {
            // The dead one's counts stay.
            let flows = (DATAGRAM_FLOWS + 2 * HELD) as i64;
            wait_counted("more is counted, and nothing less", &|now| {
                now.get("flows") == Some(&flows) && now.get("packets") > counted.get("packets")
            })?;
        }
        held.iter().try_for_each(|held| ensure_unbroken(held, interrupt))?;
        drop(held);
        network.stop()?;
    }
    Ok(())
}

/// The values that a function counts or measures under this name.
fn numbers(status: &Status, function: &str, name: &str) -> BTreeMap<String, i64> {
    let values =
        status.statistic(function, name).into_iter().flat_map(|statistic| &statistic.values);
    values.map(|value| (value.name.clone(), value.value)).collect()
}

/// Waits until the balancer's gauge shows `count` connections, and checks that no backend
/// has many more than the other.
fn wait_balanced(network: &Network, count: usize, interrupt: &Interrupt) -> Result<()> {
    let loads = |status: &Status| numbers(status, "load_balancer", "flows");
    let is_so = |status: &Status| loads(status).values().sum::<i64>() == count as i64;
    let status = network.running.wait_for(
        "the gauge says how many connections there are",
        GIVE_UP,
        interrupt,
        is_so,
    )?;
    let loads = loads(&status);
    let (least, most) =
        (loads.values().min().copied().unwrap_or(0), loads.values().max().copied().unwrap_or(0));
    ensure!(loads.len() == 2 && most - least <= count as i64 / 4, "{loads:?}");
    Ok(())
}

fn ports_of_their_own(interrupt: &Interrupt) -> Result<()> {
    thousands(REPLICATED, interrupt)
}

fn ports_at_home(interrupt: &Interrupt) -> Result<()> {
    thousands("rescue", interrupt)
}

/// Thousands of sockets of one client, twenty thousand in the full form, as quickly as
/// the box takes them, each at a port of its own: every answer comes to its client. The
/// server's worker and its standby are killed meanwhile, then an instance, and the server
/// with both.
fn thousands(protection: &'static str, interrupt: &Interrupt) -> Result<()> {
    const AT_ONCE: usize = 100;
    let count = if soak() { 20_000 } else { 4_000 };
    let options = Options {
        more: "limits: { flows: 65536, buffers: 32768 }\n",
        ..served(Chain::Edge, protection)
    };
    let configuration = options.configuration().replace("{ min: 3, max: 3 }", "{ min: 6, max: 6 }");
    let network = Network::start_with(&options, &configuration, interrupt)?;
    let addresses = [SERVER, SERVER_2].map(|address| socket(&format!("{address}:80")));
    let _mirrors = addresses
        .iter()
        .map(|address| Apart::mirror(&network.topology.server, *address))
        .collect::<Result<Vec<_>>>()?;
    let crowds = addresses.iter().map(|address| Apart::crowd(&network.topology.client, *address));
    let mut crowds = crowds.collect::<Result<Vec<_>>>()?;
    crowds.iter_mut().try_for_each(|crowd| crowd.begin_open(count / 2, AT_ONCE))?;
    // Kills while the connections are opened.
    for half in [Half::Worker, Half::Standby, Half::Worker] {
        kill_half_of_server(&network, half, interrupt)?;
    }
    crowds.iter_mut().try_for_each(Apart::end)?;
    let status = network.running.status()?;
    let owners = status.runtimes().filter(|runtime| runtime.flows > count as u64 / 20).count();
    ensure!(owners == 6, "all six serve: {status:?}");
    ensure_whole(&network)?;
    network.wait_protected()?;
    let victim = network.running.busiest(None)?;
    network.running.kill(&victim, network.promised, RECOVERY_LIMIT, interrupt)?;
    let mut verify = || -> Result<()> {
        crowds.iter_mut().try_for_each(Apart::begin_verify)?;
        crowds.iter_mut().try_for_each(Apart::end)
    };
    verify()?;
    network.wait_protected()?;
    network.strike_server(Signal::KILL)?;
    verify()?;
    ensure_whole(&network)?;
    network.stop()
}

/// Two hundred and fifty-six ports, and as many connections, spread over any instances:
/// one more connection finds no port, and disturbs no other, also after failures.
fn a_pool_that_is_used_up(interrupt: &Interrupt) -> Result<()> {
    const PORTS: usize = 256;
    const WITHIN: Duration = Duration::from_secs(30);
    let options =
        Options { pool: "192.0.2.32/32", ports: "2000-2255", ..served(Chain::Edge, REPLICATED) };
    let network = Network::start(&options, interrupt)?;
    let address = socket(&format!("{SERVER}:80"));
    let _mirror = Mirror::start(&network.topology.server, address)?;
    let mut crowd = Crowd::new(Some(&network.topology.client))?;
    let opened = crowd.open(address, PORTS, 4, WITHIN, interrupt);
    opened.with_context(|| format!("the box says {:?}", network.running.status()))?;
    network.wait_protected()?;
    let ensure_used_up = |crowd: &mut Crowd| -> Result<()> {
        let refused = network.running.status()?.dropped("pool_empty");
        // A server that has just started does not know at once that no port is free.
        until("one that finds no port is counted", WITHIN, interrupt, || {
            let more = network
                .topology
                .client
                .enter(|| TcpStream::connect_timeout(&address, Duration::from_millis(1500)))?;
            ensure!(more.is_err(), "there was one port more than there are");
            Ok((network.running.status()?.dropped("pool_empty") > refused).then_some(()))
        })?;
        crowd.verify(WITHIN, interrupt)
    };
    ensure_used_up(&mut crowd)?;
    let victim = network.running.busiest(None)?;
    network.running.kill(&victim, network.promised, RECOVERY_LIMIT, interrupt)?;
    network.wait_protected()?;
    ensure_used_up(&mut crowd)?;
    network.strike_server(Signal::KILL)?;
    ensure_used_up(&mut crowd)?;
    ensure_translated(&network, PORTS)?;
    network.stop()
}

/// As many flows as there are echo identifiers. Half of the flows fall silent: a minute
/// later they have ended, and while their numbers rest no other flow gets them (RFC 6888,
/// requirement 8). Meanwhile an instance dies before they end and another one after that;
/// the server dies, and its worker alone. The other flows always have packets in time,
/// and stay.
fn numbers_rest(interrupt: &Interrupt) -> Result<()> {
    std::thread::scope(|scope| {
        // Two minutes are a box's default.
        let (protections, rests) = match soak() {
            true => ([REPLICATED, "rescue"], 120),
            false => (
                [
                    "{ preset: nfvactor, shared: state-server, hold_s: 32 }",
                    "{ preset: rescue, hold_s: 32 }",
                ],
                32,
            ),
        };
        let boxes = protections.map(|protection| {
            scope.spawn(move || numbers_rest_under(protection, rests, interrupt))
        });
        boxes
            .into_iter()
            .try_for_each(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn numbers_rest_under(protection: &'static str, rests: u64, interrupt: &Interrupt) -> Result<()> {
    const USED: u16 = 256;
    const EXPIRES: Duration = Duration::from_secs(60);
    let rest = Duration::from_secs(rests);
    const ANSWER: Duration = Duration::from_secs(1);
    // The first identifiers, whose flows stay; those that fall silent; and those that
    // come when no number is left.
    let (stay, silent, late) = (1..=USED / 2, USED / 2 + 1..=USED, 1001..=1000 + USED / 2);
    let options =
        Options { pool: "192.0.2.32/32", ports: "2000-2255", ..served(Chain::Edge, protection) };
    let network = Network::start(&options, interrupt)?;
    let mut ping = Ping::new(&network.topology.client, SERVER.parse()?)?;
    let everybody = || stay.clone().chain(silent.clone());
    // An instance gives free numbers to another one that needs them.
    until("all have an identifier outside", GIVE_UP, interrupt, || {
        Ok((ping.ask(everybody(), ANSWER)?.len() == usize::from(USED)).then_some(()))
    })?;
    let mappings = |network: &Network| -> Result<BTreeMap<u16, String>> {
        let flows: Flows = serde_json::from_str(&network.running.ask("flows --limit 10000")?)?;
        Ok(flows
            .flows
            .iter()
            .map(|flow| (flow.source_port(), flow.translated_source.clone()))
            .collect())
    };
    let before = mappings(&network)?;
    network.wait_protected()?;
    let refused =
        |network: &Network| -> Result<u64> { Ok(network.running.status()?.dropped("pool_empty")) };
    until("who finds none is counted", GIVE_UP, interrupt, || {
        let gone = refused(&network)?;
        let answered = ping.ask(late.clone(), ANSWER)?;
        ensure!(
            answered.is_empty(),
            "{answered:?} were answered, and there was nothing left for them"
        );
        Ok((refused(&network)? > gone).then_some(()))
    })?;
    // A later packet cannot prolong a silent flow beyond this time.
    let since = Instant::now();
    until("once more", GIVE_UP, interrupt, || {
        Ok((ping.ask(silent.clone(), ANSWER)?.len() == silent.len()).then_some(()))
    })?;
    let kill_an_instance = || -> Result<()> {
        network.wait_protected()?;
        let victim = network.running.busiest(None)?;
        network.running.kill(&victim, network.promised, RECOVERY_LIMIT, interrupt).map(|_| ())
    };
    let kill_the_server = || -> Result<()> {
        network.wait_protected()?;
        network.strike_server(Signal::KILL)
    };
    let kill_its_worker = || kill_half_of_server(&network, Half::Worker, interrupt);
    // An instance last: only the server knows which numbers of the dead rest.
    let mut failures: VecDeque<(u64, &dyn Fn() -> Result<()>)> = VecDeque::from([
        (15, &kill_an_instance as _),
        (30, &kill_the_server as _),
        (60 + rests / 8, &kill_the_server as _),
        (60 + rests * 7 / 24, &kill_its_worker as _),
        (60 + rests / 2, &kill_an_instance as _),
    ]);
    let mut served = BTreeSet::new();
    // A number that rests at the start of the server's next incarnation may begin its
    // rest anew there.
    until("who came later has an identifier", EXPIRES + 2 * rest + GIVE_UP, interrupt, || {
        let after = since.elapsed();
        if let Some((_, fail)) = failures.pop_front_if(|(due, _)| after.as_secs() >= *due) {
            fail()?;
        }
        ping.ask(stay.clone(), ANSWER)?;
        let answered = ping.ask(late.clone(), ANSWER)?;
        ensure!(
            answered.is_empty() || since.elapsed() >= EXPIRES + rest,
            "{answered:?} were answered after {:?}",
            since.elapsed()
        );
        served.extend(answered);
        Ok((served.len() == late.len()).then_some(()))
    })?;
    ensure!(failures.is_empty(), "{} things have not failed yet", failures.len());
    let answered = ping.ask(stay.clone(), GIVE_UP)?;
    ensure!(answered.len() == stay.len(), "only {answered:?} are still there");
    let after = mappings(&network)?;
    ensure!(
        stay.clone().all(|id| before.contains_key(&id) && before.get(&id) == after.get(&id)),
        "{before:?} became {after:?}"
    );
    ensure_translated(&network, usize::from(USED))?;
    ensure_whole(&network)?;
    network.stop()
}

/// The server that assigns ports and the place where flows survive are independent
/// settings.
fn flows_come_back_with_their_ports(interrupt: &Interrupt) -> Result<()> {
    for protection in [
        "{ preset: nfactor, shared: state-server }",
        "{ preset: reinforce, shared: state-server, hold_s: 1 }",
    ] {
        let mut network = Network::start(&served(Chain::Balanced, protection), interrupt)?;
        network.serve_web()?;
        let held = network.hold(VIRTUAL, 100)?;
        network.kill_each_runtime(|| ensure_unbroken(&held, interrupt))?;
        drop(held);
        network.stop()?;
    }
    Ok(())
}
