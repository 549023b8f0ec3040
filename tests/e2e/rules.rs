//! Service-chain rules change under a running box: existing connections keep their chain,
//! new ones take the new one. Firewall rules with effects that peers and the operator
//! see: `reject`, `log`, counters.

use anyhow::{Context, Result, bail, ensure};
use holdfast_control::flows::Flows;
use holdfast_control::status::Status;
use holdfast_lab::process::signal_pid;
use holdfast_lab::requirements::*;
use holdfast_lab::running::Victim;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::network::{
    CLIENT, Chain, INSIDE, Network, Options, PATIENT, RECOVERY_LIMIT, SERVER, SIX, ip,
};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::sockets::{accepted, begin, exchange, listen, opened};
use holdfast_tests::verdict::ensure_unbroken;
use holdfast_tests::{TIMEOUT, binary};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Output};
use std::time::Duration;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light(
            "connections_stay_in_their_chain_when_the_rules_change",
            2,
            &[NGINX],
            connections_stay_in_their_chain_when_the_rules_change,
        ),
        light(
            "tenants_have_runtimes_of_their_own",
            3,
            &[NGINX],
            tenants_have_runtimes_of_their_own,
        ),
        light(
            "who_is_rejected_is_told_and_the_operator_sees_it",
            3,
            &[],
            who_is_rejected_is_told_and_the_operator_sees_it,
        ),
    ]
}

/// The office's chain, and a second one with a NAT pool of its own; traffic to port 80
/// takes the chain `web`.
fn configuration(web: &str) -> String {
    let second = "  second:\n    functions:\n      - firewall: { default: allow }\n      - nat: { pool: [192.0.2.48/29], inside: [172.20.5.0/24] }\n    protection: nfvactor\n";
    let text = Options::protected(Chain::Edge).configuration();
    text.replace(
        "rules:\n  - { chain: office }",
        &format!(
            "{second}rules:\n  - {{ proto: tcp, ports: 80, chain: {web} }}\n  - {{ chain: office }}"
        ),
    )
}

fn apply(network: &Network, name: &str, text: &str, options: &[&str]) -> Result<Output> {
    let file = network.lab.write(name, text)?;
    let mut command = Command::new(binary()?);
    command.arg("apply").arg(&file).args(options).arg("--control").arg(network.running.control());
    command.output().context("holdfast apply")
}

/// The chain and the owner of every TCP flow, by its source.
fn tcp_flows(network: &Network) -> Result<BTreeMap<String, (String, u32)>> {
    let flows: Flows = serde_json::from_str(&network.running.ask("flows")?)?;
    let tcp = flows.flows.into_iter().filter(|flow| flow.protocol == 6);
    Ok(tcp.map(|flow| (flow.source, (flow.chain.unwrap_or_default(), flow.owner))).collect())
}

fn version(network: &Network) -> Result<(u64, bool)> {
    let rules = network.running.status()?.rules.context("the status has no rules")?;
    Ok((rules.version, rules.in_force))
}

/// Web connections are open and datagrams flow when port 80 is given to another chain.
/// The connections live on in the old chain, new ones are in the new chain, and no
/// datagram is lost. A trial before changes nothing, a file with another device after
/// changes nothing, and a runtime's death mixes no chains up.
/// nothing up.
fn connections_stay_in_their_chain_when_the_rules_change(interrupt: &Interrupt) -> Result<()> {
    let options = Options::protected(Chain::Edge);
    let mut network = Network::start_with(&options, &configuration("office"), interrupt)?;
    network.serve_web()?;
    let (_echo, stream) = network.stream(20, 500)?;
    let web = format!("{SERVER}:80");
    let old = network.hold(&web, 20)?;
    let before = tcp_flows(&network)?;
    ensure!(
        before.len() == 20 && before.values().all(|(chain, _)| chain == "office"),
        "{before:?}"
    );

    let trial = apply(&network, "trial.yaml", &configuration("second"), &["--dry-run"])?;
    ensure!(
        trial.status.success()
            && String::from_utf8_lossy(&trial.stdout)
                .contains("+ tcp from any to any port 80 -> second"),
        "{trial:?}"
    );
    ensure!(version(&network)? == (1, true), "a trial changes nothing");

    let applied = apply(&network, "new.yaml", &configuration("second"), &["--json"])?;
    let answer: serde_json::Value =
        serde_json::from_slice(&applied.stdout).with_context(|| format!("{applied:?}"))?;
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

    let refused =
        apply(&network, "refused.yaml", &configuration("office").replace("lan0", "lan1"), &[])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        refused.status.code() == Some(78)
            && said.contains("`ports.lan.device`")
            && said.contains("nothing was changed"),
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

/// The second chain has a cluster of its own. Each chain's connections are at its own
/// runtimes, before and after one of them dies.
fn tenants_have_runtimes_of_their_own(interrupt: &Interrupt) -> Result<()> {
    let options = Options::protected(Chain::Edge);
    let text = configuration("second")
        .replace(
            "    protection: nfvactor\nrules:",
            "    protection: nfvactor\n    cluster: gold\nrules:",
        )
        .replace(
            "runtimes: { min: 3, max: 3 }\n",
            "runtimes: 2\nclusters: { gold: { runtimes: 2 } }\n",
        );
    let mut network = Network::start_with(&options, &text, interrupt)?;
    network.serve_web()?;
    let (_echo, stream) = network.stream(20, 200)?;
    let held = network.hold(&format!("{SERVER}:80"), 20)?;
    let clusters = |network: &Network| -> Result<BTreeMap<u32, String>> {
        let status = network.running.status()?;
        Ok(status
            .runtimes()
            .map(|runtime| (runtime.id, runtime.cluster.clone().unwrap_or_default()))
            .collect())
    };
    let expected: Vec<String> = ["default", "default", "gold", "gold"].map(str::to_owned).to_vec();
    ensure!(
        clusters(&network)?.into_values().collect::<Vec<_>>() == expected,
        "{:?}",
        network.running.status()?
    );
    let check = |network: &Network| {
        let clusters = clusters(network)?;
        let flows: Flows = serde_json::from_str(&network.running.ask("flows")?)?;
        ensure!(flows.flows.len() >= 40, "{flows:?}");
        for flow in flows.flows {
            let expected = if flow.chain.as_deref() == Some("second") { "gold" } else { "default" };
            let nodes = [Some(flow.owner), flow.replica].into_iter().flatten();
            ensure!(
                nodes
                    .map(|node| clusters.get(&node))
                    .all(|cluster| cluster.is_some_and(|cluster| cluster == expected)),
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
    ensure!(
        datagrams.flows_alive == 20 && datagrams.lost == 0,
        "the other tenant's runtimes did not die: {datagrams:?}"
    );
    drop(held);
    network.stop()
}

/// Rules before those that reject: more than one message of counters has room for.
const OTHERS: u16 = 300;
const REJECTS_TCP: &str = "reject log tcp on lan to any port 81";
const REJECTS_UDP: &str = "reject log udp on lan to any port 82";

fn rejecting() -> String {
    let others: String = (0..OTHERS)
        .map(|at| format!("            - deny tcp on lan to any port {}\n", 20_000 + at))
        .collect();
    format!(
        "cluster: branch\nports:\n  lan: {{ device: lan0, address: [ {INSIDE}/24, \"{}/64\" ] }}\n  \
         wan: {{ device: wan0, address: [ 192.0.2.2/24, \"{}/64\" ], gateway: {SERVER} }}\n\
         chains:\n  office:\n    functions:\n      - firewall:\n          rules:\n{others}            - {REJECTS_TCP}\n            - {REJECTS_UDP}\n            \
         - allow tcp on lan\n          default: deny\n    protection: nfvactor\nrules:\n  - {{ chain: office }}\nruntimes: {{ min: 3, max: 3 }}\n{PATIENT}",
        SIX[1], SIX[2]
    )
}

/// Rules reject connections and datagrams to open ports of the server, over IPv4 and
/// IPv6. A connection is refused as by a closed port; a datagram's sender gets
/// "administratively prohibited" (RFC 1812, section 5.2.7.1; RFC 4443, section 3.1); the
/// server gets neither. The same holds right after each runtime has been killed, which an
/// allowed connection survives. The log names each rejection's rule, and the status
/// counts it there, behind 300 others.
fn who_is_rejected_is_told_and_the_operator_sees_it(interrupt: &Interrupt) -> Result<()> {
    let network = Network::start_with(&Options::protected(Chain::Plain), &rejecting(), interrupt)?;
    let (client, server) = (&network.topology.client, &network.topology.server);
    let families = [(CLIENT, SERVER), (SIX[0], SIX[3])];
    let at = |address: &str, port: u16| SocketAddr::new(ip(address), port);
    let mut listeners = Vec::new();
    for (_, own) in families {
        let datagrams = server.enter(|| UdpSocket::bind(at(own, 82)))??;
        datagrams.set_nonblocking(true)?;
        listeners.push((listen(server, at(own, 81))?, datagrams));
    }
    let open = listen(server, at(SERVER, 80))?;
    let opener = begin(client, at(CLIENT, 30_000), at(SERVER, 80))?;
    opened(&opener, interrupt)?;
    let acceptor = accepted(&open, interrupt)?;

    let mut port = 31_000;
    let mut are_refused = || -> Result<()> {
        for (own, peer) in families {
            port += 1;
            match opened(&begin(client, at(own, port), at(peer, 81))?, interrupt) {
                Err(error) if is_refusal(&error) => {}
                other => bail!("a connection from {own} to a port that is rejected: {other:?}"),
            }
            let socket = client.enter(|| UdpSocket::bind(at(own, port)))??;
            socket.connect(at(peer, 82))?;
            socket.set_read_timeout(Some(Duration::from_secs(1)))?;
            // Linux reports ICMP type 3, code 13 as EHOSTUNREACH, and ICMPv6 type 1, code
            // 1 as EACCES.
            let wanted = if ip(peer).is_ipv4() {
                ErrorKind::HostUnreachable
            } else {
                ErrorKind::PermissionDenied
            };
            until(
                "the sender of a datagram hears that it is prohibited",
                TIMEOUT,
                interrupt,
                || {
                    let told = socket.send(b"anybody").and_then(|_| socket.recv(&mut [0; 16]));
                    Ok(told.is_err_and(|error| error.kind() == wanted).then_some(()))
                },
            )?;
        }
        Ok(())
    };
    are_refused()?;
    let counted = |status: &Status, rule: &str| {
        let known = status
            .statistics
            .iter()
            .find(|known| known.function == "firewall" && known.name == "rules");
        known
            .filter(|known| known.values.len() == usize::from(OTHERS) + 4)
            .and_then(|known| known.value(rule))
    };
    let status = network.running.wait_for(
        "rejections are counted at their rules",
        TIMEOUT,
        interrupt,
        |status| [REJECTS_TCP, REJECTS_UDP].iter().all(|rule| counted(status, rule) >= Some(2)),
    )?;
    ensure!(
        counted(&status, "allow tcp on lan") == Some(1)
            && counted(&status, "deny tcp on lan to any port 20000") == Some(0)
    );
    for (number, (own, peer)) in (31_001..).zip(families) {
        for (protocol, to, rule) in [("tcp", 81, REJECTS_TCP), ("udp", 82, REJECTS_UDP)] {
            let line = format!(
                "chain office: firewall: {protocol} {} > {} at port lan: {rule}",
                at(own, number),
                at(peer, to)
            );
            until(&line, TIMEOUT, interrupt, || {
                Ok(network.running.stderr().contains(&line).then_some(()))
            })?;
        }
    }

    let runtimes: Vec<u32> =
        network.running.status()?.runtimes().map(|process| process.id).collect();
    for id in runtimes {
        network.wait_protected()?;
        let status = network.running.status()?;
        let victim = Victim::of(
            status.runtime(id).with_context(|| format!("runtime {id} is not in {status:?}"))?,
        );
        signal_pid(victim.pid, Signal::KILL)?;
        are_refused()?;
        network.wait_recovered(&victim)?;
    }
    exchange(&opener, &acceptor)?;
    for (connections, datagrams) in &listeners {
        ensure!(
            connections.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
            "a rejected connection arrived"
        );
        let came = datagrams.recv_from(&mut [0; 16]);
        ensure!(
            came.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
            "a rejected datagram arrived: {came:?}"
        );
    }
    network.stop()
}

fn is_refusal(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == ErrorKind::ConnectionRefused)
}
