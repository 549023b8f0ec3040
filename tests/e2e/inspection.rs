//! Functions that inspect the bytes of connections. A pattern or request is cut in two,
//! and the runtime that has read the first half is killed before the second half is sent.

use crate::manager::kill_manager;
use anyhow::{Result, ensure};
use holdfast_control::status::Status;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::TIMEOUT;
use holdfast_tests::network::{CLIENT, Chain, Network, Options, SERVER, ip};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::sockets::{accepted, begin, exchange, listen, opened};
use holdfast_tests::verdict::ensure_unbroken;
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        light(
            "a_pattern_is_found_across_the_death_of_who_saw_its_beginning",
            3,
            &[],
            a_pattern_is_found_across_the_death_of_who_saw_its_beginning,
        ),
        light(
            "an_alert_is_written_once_and_by_the_rules_that_were_read",
            2,
            &[],
            an_alert_is_written_once_and_by_the_rules_that_were_read,
        ),
        light(
            "a_request_is_judged_across_the_death_of_who_read_its_beginning",
            3,
            &[NGINX],
            a_request_is_judged_across_the_death_of_who_read_its_beginning,
        ),
    ]
}

/// The office with one function in its chain.
pub(crate) fn network(function: &str, interrupt: &Interrupt) -> Result<Network> {
    network_under("nfvactor", function, interrupt)
}

/// The same under another protection.
pub(crate) fn network_under(
    protection: &'static str,
    function: &str,
    interrupt: &Interrupt,
) -> Result<Network> {
    let options = Options { protection, ..Options::protected(Chain::Plain) };
    let functions = format!("functions:\n      - {function}");
    let text = options.configuration().replace("functions: [forward]", &functions);
    Network::start_with(&options, &text, interrupt)
}

/// A listening port of the server.
pub(crate) struct Service {
    at: SocketAddr,
    listener: TcpListener,
    next: u16,
}

impl Service {
    pub(crate) fn new(network: &Network, port: u16) -> Result<Service> {
        let at = SocketAddr::new(ip(SERVER), port);
        let listener = listen(&network.topology.server, at)?;
        Ok(Service { at, listener, next: 100 * port })
    }

    /// Opens a connection from the client, and returns its two ends.
    pub(crate) fn connect(&mut self, network: &Network) -> Result<(TcpStream, TcpStream)> {
        self.next += 1;
        let from = SocketAddr::new(ip(CLIENT), self.next);
        let client = begin(&network.topology.client, from, self.at)?;
        opened(&client, network.lab.interrupt())?;
        Ok((client, accepted(&self.listener, network.lab.interrupt())?))
    }
}

/// Sends bytes that must arrive.
pub(crate) fn send(mut from: &TcpStream, mut to: &TcpStream, bytes: &[u8]) -> Result<()> {
    from.write_all(bytes)?;
    let mut came = vec![0; bytes.len()];
    to.read_exact(&mut came)?;
    ensure!(came == bytes, "{} came", String::from_utf8_lossy(&came));
    Ok(())
}

/// Sends bytes that must not arrive. The counter of `rule` must increase.
pub(crate) fn send_refused(
    network: &Network,
    mut from: &TcpStream,
    mut to: &TcpStream,
    bytes: &[u8],
    rule: &str,
) -> Result<()> {
    let count = |status: &Status| {
        let rules = status.statistics.iter().filter(|known| known.name == "rules");
        rules.filter_map(|known| known.value(rule)).sum::<i64>()
    };
    let before = count(&network.running.status()?);
    from.write_all(bytes)?;
    let what = format!("`{rule}` has matched");
    network
        .running
        .wait_for(&what, TIMEOUT, network.lab.interrupt(), |status| count(status) > before)?;
    to.set_nonblocking(true)?;
    let came = to.read(&mut [0; 64]);
    ensure!(
        came.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
        "refused bytes arrived: {came:?}"
    );
    Ok(())
}

/// Clients send the first half of a pattern and of an expression, each runtime is killed
/// in turn, and the second half is dropped all the same. A connection that continues with
/// other bytes is served, and so is one that carries the pattern to another port.
fn a_pattern_is_found_across_the_death_of_who_saw_its_beginning(
    interrupt: &Interrupt,
) -> Result<()> {
    let rule = "drop tcp any any -> any 81 (msg:\"mark\"; flow:to_server; content:\"forbidden\"; pcre:\"/is f[a-z]+n/\"; sid:7;)";
    let network = network(&format!("ips: {{ rules: ['{rule}'] }}"), interrupt)?;
    let (mut watched, mut other) = (Service::new(&network, 81)?, Service::new(&network, 82)?);
    let bad = [watched.connect(&network)?, watched.connect(&network)?];
    let good = watched.connect(&network)?;
    let elsewhere = other.connect(&network)?;
    for (client, server) in bad.iter().chain([&good, &elsewhere]) {
        send(client, server, b"this is forb")?;
    }
    network.move_and_kill(|| Ok(()))?;
    for (client, server) in &bad {
        send_refused(&network, client, server, b"idden", "7 \"mark\"")?;
    }
    let (client, server) = &good;
    send(client, server, b"earing")?;
    exchange(client, server)?;
    let (client, server) = &elsewhere;
    send(client, server, b"idden")?;
    until("the match is in the log", TIMEOUT, interrupt, || {
        Ok(network.running.stderr().contains("ips: tcp").then_some(()))
    })?;
    network.stop()
}

/// An alert is written to its file, with a manager that is not the first one. Each
/// runtime is killed, so that packets since the last checkpoint are processed again: the
/// alert is not written again. The file of rules has changed since the box was started;
/// processes that begin later know the rules that were read then.
fn an_alert_is_written_once_and_by_the_rules_that_were_read(interrupt: &Interrupt) -> Result<()> {
    const RULES: &str = "alert tcp any any -> any 81 (msg:\"word\"; content:\"marked\"; sid:8;)\n\
         drop tcp any any -> any 81 (msg:\"mark\"; content:\"forbidden\"; sid:7; rev:2;)\n";
    let protection = "{ preset: reinforce, checkpoint_ms: 10000 }";
    let options = Options { protection, ..Options::protected(Chain::Plain) };
    let network = Network::start_after(&options, interrupt, |lab, _| {
        let rules = lab.write("mark.rules", RULES)?;
        let eve = lab.scratch().join("eve.json");
        let functions = format!(
            "functions:\n      - ips: {{ rule_files: [ {} ], eve: {} }}",
            rules.display(),
            eve.display()
        );
        Ok(options.configuration().replace("functions: [forward]", &functions))
    })?;
    network.lab.write("mark.rules", "nonsense")?;
    kill_manager(&network, interrupt)?;
    let written = || -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(network.lab.scratch().join("eve.json"))?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    };
    let wait_for = |what: &str, count: usize| {
        until(what, TIMEOUT, interrupt, || Ok((written()?.len() >= count).then_some(())))
    };
    let mut service = Service::new(&network, 81)?;
    let (client, server) = service.connect(&network)?;
    send(&client, &server, b"a marked word")?;
    wait_for("the first alert", 1)?;
    network.move_and_kill(|| exchange(&client, &server))?;
    let is_replayed =
        |status: &Status| status.drops.get("released_before").is_some_and(|count| *count > 0);
    let what = "packets are processed again";
    network.running.wait_for(what, TIMEOUT, interrupt, is_replayed)?;
    // Notes of a runtime come in order: the next one comes behind those of the replay.
    send(&client, &server, b"another marked word")?;
    wait_for("the second alert", 2)?;
    send_refused(&network, &client, &server, b"forbidden", "7 rev 2 \"mark\"")?;
    wait_for("the third alert", 3)?;
    let events = written()?;
    let alerts: Vec<(&str, u64)> = events
        .iter()
        .filter_map(|event| {
            let alert = &event["alert"];
            Some((alert["action"].as_str()?, alert["signature_id"].as_u64()?))
        })
        .collect();
    ensure!(alerts == [("allowed", 8), ("allowed", 8), ("blocked", 7)], "{events:?}");
    let (port, first) = (client.local_addr()?.port(), &events[0]);
    ensure!(
        (&first["src_ip"], &first["src_port"], &first["dest_ip"], &first["dest_port"])
            == (&json!(CLIENT), &json!(port), &json!(SERVER), &json!(81))
            && (&first["event_type"], &first["proto"]) == (&json!("alert"), &json!("TCP"))
            && first["in_iface"] == "lan"
            && first["alert"]["signature"] == "word",
        "{first}"
    );
    network.stop()
}

/// Clients send the first half of a request, all flows move and each runtime is killed,
/// and the request is refused, or passes, by what its first half said. Connections to a
/// real server, one request after the other, go on meanwhile.
fn a_request_is_judged_across_the_death_of_who_read_its_beginning(
    interrupt: &Interrupt,
) -> Result<()> {
    let rule = "deny path /secret*";
    let function = format!("http: {{ ports: [80, 81], rules: ['{rule}'] }}");
    let mut network = network(&function, interrupt)?;
    network.serve_web()?;
    let held = network.hold(&format!("{SERVER}:80"), 20)?;
    let mut service = Service::new(&network, 81)?;
    let (denied, allowed) = (service.connect(&network)?, service.connect(&network)?);
    send(&denied.0, &denied.1, b"GET /sec")?;
    send(&allowed.0, &allowed.1, b"GET /sequel HTTP/1.1\r\nHo")?;
    network.move_and_kill(|| ensure_unbroken(&held, interrupt))?;
    let (client, server) = &denied;
    send_refused(&network, client, server, b"ret HTTP/1.1\r\nHost: a\r\n\r\n", rule)?;
    let (client, server) = &allowed;
    send(client, server, b"st: a\r\n\r\n")?;
    send(server, client, b"HTTP/1.1 204 No Content\r\n\r\n")?;
    // The next request of the same connection is judged too.
    let next = b"GET /a/../secret/key HTTP/1.1\r\nHost: a\r\n\r\n";
    send_refused(&network, client, server, next, rule)?;
    ensure_unbroken(&held, interrupt)?;
    drop(held);
    network.stop()
}
