//! Service-chain rules are changed under a running box: connections that are there stay where they are, new ones go the new way.

use anyhow::{Context, Result, ensure};
use holdfast_control::flows::Flows;
use holdfast_lab::Interrupt;
use holdfast_lab::requirements::*;
use holdfast_tests::binary;
use holdfast_tests::network::{Chain, Network, Options, RECOVERY_LIMIT, SERVER};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::verdict::ensure_unbroken;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Command, Output};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light(
            "connections_stay_in_their_chain_when_the_rules_change",
            2,
            &[NGINX],
            connections_stay_in_their_chain_when_the_rules_change,
        ),
        light("tenants_have_runtimes_of_their_own", 3, &[NGINX], tenants_have_runtimes_of_their_own),
    ]
}

/// The office's chain, and a second one with a NAT pool of its own; what goes to port 80 takes the chain `web`.
fn configuration(web: &str) -> String {
    let second = "  second:\n    functions:\n      - firewall: { default: allow }\n      - nat: { pool: [192.0.2.48/29], inside: [172.20.5.0/24] }\n    protection: nfvactor\n";
    let text = Options::protected(Chain::Edge).configuration();
    text.replace(
        "rules:\n  - { chain: office }",
        &format!("{second}rules:\n  - {{ proto: tcp, ports: 80, chain: {web} }}\n  - {{ chain: office }}"),
    )
}

fn apply(network: &Network, name: &str, text: &str, options: &[&str]) -> Result<Output> {
    let file = network.lab.write(name, text)?;
    let mut command = Command::new(binary()?);
    command.arg("apply").arg(&file).args(options).arg("--control").arg(network.running.control());
    command.output().context("holdfast apply")
}

/// The chain and the owner of every TCP flow, by its source.
fn tcp_flows(network: &Network) -> Result<BTreeMap<SocketAddr, (String, u16)>> {
    let flows: Flows = serde_json::from_str(&network.running.ask("flows")?)?;
    let tcp = flows.flows.into_iter().filter(|flow| flow.protocol == 6);
    Ok(tcp.map(|flow| (flow.source, (flow.chain.unwrap_or_default(), flow.owner))).collect())
}

fn version(network: &Network) -> Result<(u64, bool)> {
    let rules = network.running.status()?.rules.context("the status has no rules")?;
    Ok((rules.version, rules.in_force))
}

/// Web connections are held open and datagrams flow when port 80 is given to another chain: the connections live on in the old one, new ones are in
/// the new one, no datagram is lost. A trial changed nothing before, a file with another device changes nothing after, and a runtime's death mixes
/// nothing up.
fn connections_stay_in_their_chain_when_the_rules_change(interrupt: &Interrupt) -> Result<()> {
    let options = Options::protected(Chain::Edge);
    let mut network = Network::start_with(&options, &configuration("office"), interrupt)?;
    network.serve_web()?;
    let (_echo, stream) = network.stream(20, 500)?;
    let web = format!("{SERVER}:80");
    let old = network.hold(&web, 20)?;
    let before = tcp_flows(&network)?;
    ensure!(before.len() == 20 && before.values().all(|(chain, _)| chain == "office"), "{before:?}");

    let trial = apply(&network, "trial.yaml", &configuration("second"), &["--dry-run"])?;
    ensure!(
        trial.status.success() && String::from_utf8_lossy(&trial.stdout).contains("+ tcp from any to any port 80 -> second"),
        "{trial:?}"
    );
    ensure!(version(&network)? == (1, true), "a trial changes nothing");

    let applied = apply(&network, "new.yaml", &configuration("second"), &["--json"])?;
    let answer: serde_json::Value = serde_json::from_slice(&applied.stdout).with_context(|| format!("{applied:?}"))?;
    ensure!(applied.status.success() && answer["rules"]["now"] == 2, "{answer}");
    ensure!(version(&network)? == (2, true), "what is applied is in force");
    let new = network.hold(&web, 20)?;
    let check = |network: &Network| {
        let flows = tcp_flows(network)?;
        ensure!(flows.len() == 40, "{flows:?}");
        for (source, (chain, _)) in flows {
            let expected = if before.contains_key(&source) { "office" } else { "second" };
            ensure!(chain == expected, "{source} is in chain {chain}");
        }
        Ok(())
    };
    check(&network)?;
    let datagrams = stream.finish();
    ensure!((datagrams.lost, datagrams.doubled, datagrams.changed) == (0, 0, 0), "{datagrams:?}");

    let refused = apply(&network, "refused.yaml", &configuration("office").replace("lan0", "lan1"), &[])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        refused.status.code() == Some(78) && said.contains("`device` of port `lan`") && said.contains("nothing was changed"),
        "{said}"
    );
    ensure!(version(&network)? == (2, true), "a file that is refused changes nothing");

    network.wait_protected()?;
    let victim = network.running.busiest(None)?;
    network.running.kill(&victim, true, RECOVERY_LIMIT, interrupt)?;
    for held in [&old, &new] {
        ensure_unbroken(held, interrupt)?;
    }
    check(&network)?;
    drop((old, new));
    network.stop()
}

/// The second chain has a cluster of its own. Each chain's connections are at its own runtimes, before and after one of them dies.
fn tenants_have_runtimes_of_their_own(interrupt: &Interrupt) -> Result<()> {
    let options = Options::protected(Chain::Edge);
    let text = configuration("second")
        .replace("    protection: nfvactor\nrules:", "    protection: nfvactor\n    cluster: gold\nrules:")
        .replace("runtimes: { min: 3, max: 3 }\n", "runtimes: 2\nclusters: { gold: { runtimes: 2 } }\n");
    let mut network = Network::start_with(&options, &text, interrupt)?;
    network.serve_web()?;
    let (_echo, stream) = network.stream(20, 200)?;
    let held = network.hold(&format!("{SERVER}:80"), 20)?;
    let clusters = |network: &Network| -> Result<BTreeMap<u16, String>> {
        let status = network.running.status()?;
        Ok(status.runtimes().map(|runtime| (runtime.id, runtime.cluster.clone().unwrap_or_default())).collect())
    };
    let expected: Vec<String> = ["default", "default", "gold", "gold"].map(str::to_owned).to_vec();
    ensure!(clusters(&network)?.into_values().collect::<Vec<_>>() == expected, "{:?}", network.running.status()?);
    let check = |network: &Network| {
        let clusters = clusters(network)?;
        let flows: Flows = serde_json::from_str(&network.running.ask("flows")?)?;
        ensure!(flows.flows.len() >= 40, "{flows:?}");
        for flow in flows.flows {
            let expected = if flow.chain.as_deref() == Some("second") { "gold" } else { "default" };
            let nodes = [Some(flow.owner), flow.replica].into_iter().flatten();
            ensure!(
                nodes.map(|node| clusters.get(&node)).all(|cluster| cluster.is_some_and(|cluster| cluster == expected)),
                "{flow:?}"
            );
            ensure!((flow.protocol == 6) == (expected == "gold"), "{flow:?}");
        }
        Ok(())
    };
    network.running.wait_for("all flows are there", RECOVERY_LIMIT, interrupt, |status| {
        status.runtimes().map(|process| process.flows).sum::<u64>() >= 40
    })?;
    network.wait_protected()?;
    check(&network)?;
    for (id, cluster) in clusters(&network)? {
        if cluster == "gold" {
            let status = network.running.status()?;
            let process = status.runtime(id).context("it is there")?;
            let victim = holdfast_lab::running::Victim::of(process);
            network.running.kill(&victim, true, RECOVERY_LIMIT, interrupt)?;
            ensure_unbroken(&held, interrupt)?;
            check(&network)?;
        }
    }
    let datagrams = stream.finish();
    ensure!(datagrams.flows_alive == 20 && datagrams.lost == 0, "the other tenant's runtimes did not die: {datagrams:?}");
    drop(held);
    network.stop()
}
