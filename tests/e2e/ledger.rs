//! Runtimes are killed again and again, and the ledger of what clients and servers have
//! seen must balance: a box forgets no released packet. Ports are random, so the mapping
//! of a new flow cannot be reproduced by repeating the same steps.

use anyhow::{Context, Result, bail, ensure};
use holdfast_control::flows::Flows;
use holdfast_control::status::Status;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::ledger::{
    CONNECTING, End, Ledger, Sum, Transport, Wrong, content, digest_of, stream_byte,
};
use holdfast_tests::network::{Chain, Network, Options, socket};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::standby::{BOTH, LOCAL, kill_worker};
use holdfast_tests::traffic::{Plan, Traffic};
use holdfast_tests::{TIMEOUT, soak};
use rustix::process::Signal;

/// A state server assigns the ports, and is killed with every runtime; flows have
/// replicas.
const SERVED: &str = "{ preset: nfvactor, shared: state-server }";
/// Number of kills of each of the three runtimes.
fn rounds() -> usize {
    if soak() { 10 } else { 1 }
}

/// Number of kills of each runtime's worker, if it has a standby beside it.
fn takeovers() -> usize {
    if soak() { 300 } else { 3 }
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light("the_ledger_finds_what_is_wrong", 1, &[], the_ledger_finds_what_is_wrong),
        light("the_ledger_balances_under_reinforce", 5, &[], |interrupt| {
            balances("reinforce", interrupt)
        }),
        light("the_ledger_balances_with_rare_checkpoints", 5, &[], |interrupt| {
            balances("{ preset: reinforce, checkpoint_ms: 10000 }", interrupt)
        }),
        light("the_ledger_balances_beside_a_local_standby", 8, &[], |interrupt| {
            has_no_gap(LOCAL, interrupt)
        }),
        light("the_ledger_balances_beside_both_standbys", 9, &[], |interrupt| {
            has_no_gap(BOTH, interrupt)
        }),
        light("the_ledger_balances_under_nfvactor", 5, &[], |interrupt| {
            balances("nfvactor", interrupt)
        }),
        light("the_ledger_balances_with_a_state_server", 9, &[], |interrupt| {
            balances(SERVED, interrupt)
        }),
        light(
            "the_ledger_does_not_balance_under_none",
            1,
            &[],
            the_ledger_does_not_balance_under_none,
        ),
    ]
}

/// Every error that the ledger detects, made once; and the same steps done right.
fn the_ledger_finds_what_is_wrong(_interrupt: &Interrupt) -> Result<()> {
    let (a, b) = (socket("192.0.2.33:4000"), socket("192.0.2.33:4001"));
    let digest = |flow, at, number| digest_of(&content(flow, at, number));
    let right = || {
        let mut book = Ledger::default();
        for (flow, mapping) in [(1, a), (2, b)] {
            book.see_mapping(flow, Transport::Udp, mapping);
            for (at, number) in [(End::Server, 0), (End::Client, 0), (End::Server, 1)] {
                book.send(at, flow, number);
                book.receive(at, flow, number, digest(flow, at, number));
            }
        }
        book.open_stream(3);
        // A stream may have the number of a datagram flow.
        book.see_mapping(3, Transport::Tcp, a);
        for at in [End::Server, End::Client] {
            let bytes: Vec<u8> = (0..1000).map(|offset| stream_byte(3, at, offset)).collect();
            ensure!(
                book.receive_stream(at, 3, &bytes[..300])
                    && book.receive_stream(at, 3, &bytes[300..])
            );
            book.end_stream(at, 3, 1000);
            book.finish_stream(at, 3);
        }
        Ok(book)
    };
    let sum = right()?.close()?;
    ensure!(
        (sum.flows, sum.sent, sum.came, sum.missing, sum.streams, sum.bytes)
            == (3, 6, 6, 0, 2, 2000),
        "{sum:?}"
    );
    let found = |expected: Wrong, act: &dyn Fn(&mut Ledger)| {
        let mut book = right()?;
        act(&mut book);
        let error = book.close().err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(
            error.contains(&expected.to_string())
                && error.ends_with("and 0 more")
                && error.lines().count() == 3,
            "{expected}: {error}"
        );
        Ok(())
    };
    let c = socket("192.0.2.34:4000");
    found(Wrong::MappingChanged { flow: 1, was: a, is: c }, &|book| {
        book.see_mapping(1, Transport::Udp, c)
    })?;
    found(Wrong::MappingShared { mapping: a, flows: [1, 9] }, &|book| {
        book.see_mapping(9, Transport::Udp, a)
    })?;
    // A connection that is over has no address any more; an open one has.
    let mut book = right()?;
    book.see_mapping(4, Transport::Tcp, a);
    ensure!(book.wrong().is_empty(), "{:?}", book.wrong());
    book.see_mapping(5, Transport::Tcp, a);
    ensure!(
        book.wrong() == [Wrong::MappingShared { mapping: a, flows: [4, 5] }],
        "{:?}",
        book.wrong()
    );
    found(Wrong::Doubled { at: End::Server, flow: 2, number: 1 }, &|book| {
        book.receive(End::Server, 2, 1, digest(2, End::Server, 1))
    })?;
    found(Wrong::NeverSent { at: End::Client, flow: 2, number: 1 }, &|book| {
        book.receive(End::Client, 2, 1, digest(2, End::Client, 1))
    })?;
    // Another flow's content; and a datagram that is sent twice, and comes once intact
    // and once altered.
    found(Wrong::Altered { at: End::Client, flow: 1, number: 1 }, &|book| {
        book.send(End::Client, 1, 1);
        book.receive(End::Client, 1, 1, digest(2, End::Client, 1));
    })?;
    found(Wrong::Altered { at: End::Server, flow: 1, number: 1 }, &|book| {
        book.send(End::Server, 1, 1);
        book.receive(End::Server, 1, 1, 7);
    })?;
    found(Wrong::StreamAltered { at: End::Server, flow: 4, offset: 2 }, &|book| {
        book.receive_stream(
            End::Server,
            4,
            &[
                stream_byte(4, End::Server, 0),
                stream_byte(4, End::Server, 1),
                !stream_byte(4, End::Server, 2),
            ],
        );
    })?;
    found(Wrong::StreamCut { at: End::Client, flow: 3, sent: 1001, came: 1000 }, &|book| {
        book.end_stream(End::Client, 3, 1001)
    })?;
    found(Wrong::StreamBroken { at: End::Client, flow: 3, cause: "reset".into() }, &|book| {
        book.break_stream(End::Client, 3, "reset")
    })?;
    found(Wrong::CountForgotten { flow: 1, at: End::Server, seen: 2, counted: 1 }, &|book| {
        book.compare(1, [1, 2], [1, 1], a)
    })?;
    found(Wrong::CountInvented { flow: 1, at: End::Client, sent: 1, counted: 2 }, &|book| {
        book.compare(1, [1, 2], [2, 2], a)
    })?;
    found(Wrong::MappingMisreported { flow: 1, seen: a, said: b }, &|book| {
        book.compare(1, [1, 2], [1, 2], b)
    })?;
    // A datagram that is sent twice may come twice, and is missing if it does not come at
    // all.
    let mut book = right()?;
    book.send(End::Client, 2, 9);
    book.send(End::Client, 2, 9);
    ensure!(book.sum().missing == 1);
    book.send(End::Server, 1, 1);
    book.receive(End::Server, 1, 1, digest(1, End::Server, 1));
    book.compare(1, [1, 2], [1, 3], a);
    book.close().map(drop)?;
    // Through a box that may lose flows: errors that a loss explains, and others.
    let mut book = right()?;
    book.see_mapping(1, Transport::Udp, c);
    book.see_mapping(9, Transport::Udp, a);
    book.compare(1, [1, 2], [0, 1], c);
    book.break_stream(End::Client, 3, "reset");
    let lost = book.close_with_losses()?;
    ensure!(lost.keys().eq(&[1, 3]), "{lost:?}");
    let refused = |act: &dyn Fn(&mut Ledger)| {
        let mut book = right()?;
        act(&mut book);
        let lost = book.close_with_losses();
        ensure!(lost.is_err(), "{lost:?}");
        Ok(())
    };
    refused(&|book| book.see_mapping(3, Transport::Tcp, c))?;
    refused(&|book| book.compare_mapping(3, c))?;
    refused(&|book| book.see_mapping(9, Transport::Udp, a))?;
    refused(&|book| book.compare(1, [1, 2], [0, 2], a))?;
    refused(&|book| book.receive(End::Server, 2, 1, digest(2, End::Server, 1)))?;
    refused(&|book| book.break_stream(End::Client, 3, &format!("{CONNECTING}timed out")))
}

/// A firewall and a NAT that draws its ports, and traffic that has begun.
fn start(protection: &'static str, interrupt: &Interrupt) -> Result<(Network, Traffic)> {
    let options = Options { protection, ports: "random", ..Options::protected(Chain::Edge) };
    let network = Network::start(&options, interrupt)?;
    let traffic =
        Traffic::start(&network.topology.client, &network.topology.server, Plan::default())?;
    until(
        "flows are there",
        TIMEOUT,
        interrupt,
        || Ok((traffic.sum().flows >= 110).then_some(())),
    )?;
    Ok((network, traffic))
}

/// Checks that the box counts no less than was seen before it was asked. Returns the
/// number of compared flows.
fn compare(network: &Network, traffic: &Traffic) -> Result<usize> {
    let came = traffic.came();
    let said: Flows = serde_json::from_str(
        &network.running.ask("flows --limit 10000 udp from any to any port 7007")?,
    )?;
    let mut compared = 0;
    for flow in &said.flows {
        let known = came.iter().find(|(port, ..)| *port == flow.source_port());
        if let Some((_, number, seen)) = known {
            // Forward is towards the server.
            let [to_server, to_client] = flow.packets[..] else { bail!("{flow:?}") };
            traffic.compare(
                *number,
                *seen,
                [to_client, to_server],
                flow.translated_source.parse()?,
            );
            compared += 1;
        }
    }
    Ok(compared)
}

fn balances(protection: &'static str, interrupt: &Interrupt) -> Result<()> {
    let (network, traffic) = start(protection, interrupt)?;
    for _ in 0..rounds() {
        network.kill_each_runtime(|| {
            if protection == SERVED {
                network.strike_server(Signal::KILL)?;
            }
            let before = traffic.sum();
            let has_gone_on = |sum: Sum| {
                sum.came > before.came + 300
                    && sum.flows >= before.flows + 5
                    && sum.streams > before.streams + 2
            };
            until("flows go on, and new ones begin", TIMEOUT, interrupt, || {
                Ok(has_gone_on(traffic.sum()).then_some(()))
            })?;
            let compared = compare(&network, &traffic)?;
            ensure!(compared >= 100, "the box speaks of {compared} flows only");
            let wrong = traffic.wrong();
            ensure!(wrong.is_empty(), "{wrong:?}");
            Ok(())
        })?;
    }
    let sum = traffic.finish()?;
    ensure!(sum.came * 10 > sum.sent * 8, "most of it has come: {sum:?}");
    let status = network.running.status()?;
    ensure!(status.failovers.len() == 3 * rounds(), "{:?}", status.failovers);
    network.stop()
}

/// Workers are killed, and their standbys continue: the ledger balances, and the
/// coordinator has no failure to handle.
fn has_no_gap(protection: &'static str, interrupt: &Interrupt) -> Result<()> {
    let (network, traffic) = start(protection, interrupt)?;
    let runtimes: Vec<u32> =
        network.running.status()?.runtimes().map(|process| process.id).collect();
    for id in runtimes.repeat(takeovers()) {
        let which = |status: &Status| {
            let runtime = status.runtime(id).context("it is there")?;
            Ok((runtime.clone(), runtime.local_standby.context("it has a standby")?))
        };
        kill_worker(&network, which, interrupt)?;
        let before = traffic.sum();
        let has_gone_on = |sum: Sum| {
            sum.came > before.came + 50 && sum.flows > before.flows && sum.streams > before.streams
        };
        until("flows go on, and new ones begin", TIMEOUT, interrupt, || {
            Ok(has_gone_on(traffic.sum()).then_some(()))
        })?;
        let compared = compare(&network, &traffic)?;
        ensure!(compared >= 100, "the box speaks of {compared} flows only");
        let wrong = traffic.wrong();
        ensure!(wrong.is_empty(), "{wrong:?}");
    }
    let sum = traffic.finish()?;
    let status = network.running.status()?;
    ensure!(sum.missing == 0 && sum.came > 1000, "{sum:?}, dropped by the box: {:?}", status.drops);
    ensure!(status.failovers.is_empty(), "the coordinator has noticed: {:?}", status.failovers);
    network.stop()
}

/// The contrast: the same traffic, without any protection.
fn the_ledger_does_not_balance_under_none(interrupt: &Interrupt) -> Result<()> {
    let (network, traffic) = start("none", interrupt)?;
    network.kill_each_runtime(|| Ok(()))?;
    let changed = || traffic.wrong().iter().any(|wrong| wrong.starts_with("MappingChanged"));
    until("a mapping has changed", TIMEOUT, interrupt, || Ok(changed().then_some(())))?;
    drop(traffic);
    network.stop()
}
