//! The papers' chains, each under its paper's protection while the processes that serve
//! it are killed: the ledger balances, and no connection breaks.

use anyhow::{Context, Result, ensure};
use holdfast_lab::requirements::NGINX;
use holdfast_lab::{Interrupt, Namespace, until};
use holdfast_tests::cluster::{Cluster, SERVING, WITNESS};
use holdfast_tests::network::{Chain, GIVE_UP, Network, Options, PATIENT, SERVER, VIRTUAL};
use holdfast_tests::runner::{Test, cluster, light};
use holdfast_tests::traffic::{Plan, Traffic};
use holdfast_tests::verdict::ensure_unbroken;

/// The web server's own address.
fn direct() -> String {
    format!("{SERVER}:80")
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light("chain_1", 6, &[NGINX], |interrupt| {
            on_one_host(
                include_str!("../../docs/papers/reinforce/chain-1.yaml"),
                Chain::Plain,
                &direct(),
                interrupt,
            )
        }),
        light("chain_2a", 7, &[NGINX], |interrupt| {
            on_one_host(
                include_str!("../../docs/papers/reinforce/chain-2a.yaml"),
                Chain::Plain,
                VIRTUAL,
                interrupt,
            )
        }),
        cluster("chain_2b", 11, &[NGINX], chain_2b),
        light("chain_3", 6, &[NGINX], |interrupt| {
            on_one_host(
                include_str!("../../docs/papers/reinforce/chain-3.yaml"),
                Chain::Plain,
                &direct(),
                interrupt,
            )
        }),
        light("chain_deciding", 9, &[NGINX], |interrupt| {
            on_one_host(
                include_str!("../../docs/papers/reinforce/deciding.yaml"),
                Chain::Plain,
                &direct(),
                interrupt,
            )
        }),
        light("chain_drawing", 7, &[NGINX], |interrupt| {
            on_one_host(
                include_str!("../../docs/papers/reinforce/drawing.yaml"),
                Chain::Balanced,
                VIRTUAL,
                interrupt,
            )
        }),
        light("second_chain_of_nfvactor", 7, &[NGINX], |interrupt| {
            on_one_host(
                include_str!("../../docs/papers/nfvactor/second-chain.yaml"),
                Chain::Edge,
                &direct(),
                interrupt,
            )
        }),
        light("test_chain_of_nfactor", 7, &[NGINX], |interrupt| {
            on_one_host(
                include_str!("../../docs/papers/nfactor/test-chain.yaml"),
                Chain::Plain,
                &direct(),
                interrupt,
            )
        }),
    ]
}

fn start(client: &Namespace, server: &Namespace, interrupt: &Interrupt) -> Result<Traffic> {
    let plan = Plan { flows: 60, per_second: 400, connections: 4, ..Plan::default() };
    let traffic = Traffic::start(client, server, plan)?;
    goes_on(&traffic, interrupt)?;
    Ok(traffic)
}

fn goes_on(traffic: &Traffic, interrupt: &Interrupt) -> Result<()> {
    let before = traffic.sum();
    until("traffic goes on", GIVE_UP, interrupt, || {
        let sum = traffic.sum();
        Ok((sum.came > before.came + 200
            && sum.flows > before.flows
            && sum.streams > before.streams)
            .then_some(()))
    })
}

/// Each of the runtimes dies. Connections to the web server at `server` are held.
fn on_one_host(configuration: &str, of: Chain, server: &str, interrupt: &Interrupt) -> Result<()> {
    let mut network = Network::start_with(
        &Options::protected(of),
        &format!("{configuration}{PATIENT}"),
        interrupt,
    )?;
    network.serve_web()?;
    let held = network.hold(server, 50)?;
    let traffic = start(&network.topology.client, &network.topology.server, interrupt)?;
    network.move_and_kill(|| {
        ensure_unbroken(&held, interrupt)?;
        goes_on(&traffic, interrupt)
    })?;
    traffic.finish()?;
    drop(held);
    network.stop()
}

/// The host that does not serve the ports dies with its runtimes; when everything is safe
/// again, the serving host dies.
fn chain_2b(interrupt: &Interrupt) -> Result<()> {
    let text = include_str!("../../docs/papers/reinforce/chain-2b.yaml");
    let (chains, _) = text.split_once("state:").context("what hosts have comes last")?;
    let mut cluster = Cluster::start_with(chains, interrupt)?;
    cluster.wait_serving(SERVING[1], SERVING[0])?;
    let held = cluster.hold(&direct(), 50)?;
    let traffic = start(&cluster.hosts.client, &cluster.hosts.server, interrupt)?;
    for dead in [SERVING[1], SERVING[0]] {
        cluster.wait_safe()?;
        cluster.kill(dead)?;
        let serving = if dead == SERVING[0] { SERVING[1] } else { SERVING[0] };
        cluster.wait_serving(WITNESS, serving)?;
        ensure_unbroken(&held, interrupt)?;
        goes_on(&traffic, interrupt)?;
        cluster.begin(dead)?;
    }
    let wrong = traffic.wrong();
    ensure!(wrong.is_empty(), "{wrong:?}");
    traffic.finish()?;
    drop(held);
    cluster.stop()
}
