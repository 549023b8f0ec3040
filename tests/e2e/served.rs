//! A state server assigns the NAT's ports: it is killed and stopped, runtimes are killed, and no connection breaks and no port is given to two.

use anyhow::{Context, Result, ensure};
use holdfast::flows::Flows;
use holdfast::lab::Interrupt;
use holdfast::lab::requirements::*;
use holdfast::lab::wait::until;
use holdfast::status::Status;
use holdfast_tests::crowd::{self, Apart, Crowd, Mirror};
use holdfast_tests::network::{Chain, GIVE_UP, Network, Options, RECOVERY_LIMIT, SERVER, SERVER_2, VIRTUAL, socket};
use holdfast_tests::runner::{main as run, test};
use holdfast_tests::verdict::{ensure_served, ensure_unbroken};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    if let Some(code) = crowd::role() {
        return code;
    }
    run(vec![
        test("connections_outlive_server_and_runtimes", &[NGINX], connections_outlive_server_and_runtimes),
        test("datagrams_do_not_notice_the_servers_end", &[], datagrams_do_not_notice_the_servers_end),
        test("a_server_that_stands_still_is_replaced", &[], a_server_that_stands_still_is_replaced),
        test("twenty_thousand_connections_of_six_instances_have_ports_of_their_own", &[], twenty_thousand_connections),
        test("twenty_thousand_connections_whose_home_is_the_server", &[], twenty_thousand_at_home),
        test("a_pool_that_is_used_up_refuses_new_flows_only", &[], a_pool_that_is_used_up),
        test("flows_come_back_from_snapshots_and_logs_with_their_ports", &[NGINX], flows_come_back_with_their_ports),
    ])
}

fn served(chain: Chain, protection: &'static str) -> Options {
    Options { protection, ..Options::protected(chain) }
}

const REPLICATED: &str = "{ preset: nfvactor, shared: state-server }";

/// A hundred connections before the first server's end, as many after it, and as many after every runtime's: all live.
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

/// In the box as it runs every pool is whole, runtimes and server agree, and no two flows have one mapping.
fn ensure_whole(network: &Network) -> Result<()> {
    // What is wrong is an error; a server that has just begun is warned of.
    until("nothing is to be warned of", RECOVERY_LIMIT, network.lab.interrupt(), || {
        let found = network.running.ask("--json check --live --for 2")?;
        let found: serde_json::Value = serde_json::from_str(&found)?;
        let checks = found["checks"].as_array().context("there are checks")?;
        ensure!(checks.len() == 2, "{found}");
        Ok(checks.iter().all(|check| check["outcome"] == "ok").then_some(()))
    })
}

/// That many flows have a place of their own among the outside addresses and ports; no two have the same.
fn ensure_translated(network: &Network, count: usize) -> Result<()> {
    let flows: Flows = serde_json::from_str(&network.running.ask("flows --limit 10000")?)?;
    let outside: BTreeSet<String> = flows.flows.iter().map(|flow| flow.translated_source.to_string()).collect();
    ensure!(
        outside.len() == flows.flows.len() && outside.len() >= count,
        "{} flows have {} ports",
        flows.flows.len(),
        outside.len()
    );
    Ok(())
}

/// Who begins when nobody has a number at hand yet waits for the server: what is shown here is what its end means to flows that are there.
fn wait_flows(network: &Network, count: u64, interrupt: &Interrupt) -> Result<()> {
    let flows = |status: &Status| status.runtimes().map(|one| one.flows).sum::<u64>();
    network.running.wait_for("the flows are there", GIVE_UP, interrupt, |status| flows(status) >= count)?;
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

fn twenty_thousand_connections(interrupt: &Interrupt) -> Result<()> {
    twenty_thousand(REPLICATED, interrupt)
}

fn twenty_thousand_at_home(interrupt: &Interrupt) -> Result<()> {
    twenty_thousand("rescue", interrupt)
}

/// As many as twenty thousand sockets of one client, as quickly as the box takes them, each at a port of its own: every answer comes to who asked. An instance and the server are killed.
fn twenty_thousand(protection: &'static str, interrupt: &Interrupt) -> Result<()> {
    const COUNT: usize = 20_000;
    const AT_ONCE: usize = 100;
    let options = Options { more: "limits: { flows: 65536, buffers: 32768 }\n", ..served(Chain::Edge, protection) };
    let configuration = options.configuration().replace("{ min: 3, max: 3 }", "{ min: 6, max: 6 }");
    let network = Network::start_with(&options, &configuration, interrupt)?;
    let addresses = [SERVER, SERVER_2].map(|address| socket(&format!("{address}:80")));
    let _mirrors =
        addresses.iter().map(|address| Apart::mirror(&network.topology.server, *address)).collect::<Result<Vec<_>>>()?;
    let crowds = addresses.iter().map(|address| Apart::crowd(&network.topology.client, *address));
    let mut crowds = crowds.collect::<Result<Vec<_>>>()?;
    crowds.iter_mut().try_for_each(|crowd| crowd.begin_open(COUNT / 2, AT_ONCE))?;
    crowds.iter_mut().try_for_each(Apart::end)?;
    let status = network.running.status()?;
    let owners = status.runtimes().filter(|runtime| runtime.flows > 1000).count();
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

/// Two hundred and fifty-six ports, and as many connections, whoever of the instances has them: one more finds none, and disturbs nobody, also after failures.
fn a_pool_that_is_used_up(interrupt: &Interrupt) -> Result<()> {
    const PORTS: usize = 256;
    const WITHIN: Duration = Duration::from_secs(30);
    let options = Options { pool: "192.0.2.32/32", ports: "2000-2255", ..served(Chain::Edge, REPLICATED) };
    let network = Network::start(&options, interrupt)?;
    let address = socket(&format!("{SERVER}:80"));
    let _mirror = Mirror::start(&network.topology.server, address)?;
    let mut crowd = Crowd::new(Some(&network.topology.client))?;
    crowd.open(address, PORTS, 4, WITHIN, interrupt)?;
    network.wait_protected()?;
    let ensure_used_up = |crowd: &mut Crowd| -> Result<()> {
        let refused = network.running.status()?.dropped("pool_empty");
        // A server that has just begun does not know at once that there is none.
        until("one that finds no port is counted", WITHIN, interrupt, || {
            let more = network.topology.client.enter(|| TcpStream::connect_timeout(&address, Duration::from_millis(1500)))?;
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

/// Where a state server assigns ports, and where flows survive, are two questions.
fn flows_come_back_with_their_ports(interrupt: &Interrupt) -> Result<()> {
    for protection in ["{ preset: nfactor, shared: state-server }", "{ preset: reinforce, shared: state-server, hold_s: 1 }"] {
        let mut network = Network::start(&served(Chain::Balanced, protection), interrupt)?;
        network.serve_web()?;
        let held = network.hold(VIRTUAL, 100)?;
        network.kill_each_runtime(|| ensure_unbroken(&held, interrupt))?;
        drop(held);
        network.stop()?;
    }
    Ok(())
}
