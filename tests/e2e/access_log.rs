//! What `http` logs of requests, and what the server's own access log has of them: the
//! same, byte for byte, while every runtime is killed.

use crate::inspection::network;
use anyhow::{Context, Result, bail, ensure};
use holdfast_lab::nginx::Nginx;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::TIMEOUT;
use holdfast_tests::network::{CLIENT, Network, SERVER, ip};
use holdfast_tests::runner::{Test, light};
use holdfast_tests::sockets::{begin, opened};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Connections, and the port of the first one.
const CONNECTIONS: u16 = 6;
const FIRST_PORT: u16 = 20_000;
/// Bytes of the large file, and the server's pace for it, bytes per second: a batch takes
/// a third of a second, so that some are under way whenever a runtime dies.
const LARGE: u64 = 100_000;
const PACE: u64 = 300_000;
/// Requests of one batch of every connection.
const ONCE: usize = 8 * CONNECTIONS as usize;

pub(crate) fn tests() -> Vec<Test> {
    vec![light(
        "requests_are_logged_as_the_server_logs_them",
        12,
        &[NGINX],
        requests_are_logged_as_the_server_logs_them,
    )]
}

/// Requests of a connection in order: the request line without its end, and the status.
type Exchanges = Vec<(String, u16)>;
/// The same by their numbers, as far as they are known.
type Numbered = BTreeMap<u32, (Option<String>, Option<u16>)>;

/// The requests of a batch: request line, rest of the request, and whether the response
/// has a body. The response to the first one takes a while.
fn batch(number: usize) -> Vec<(String, String, bool)> {
    let host = "Host: www.example\r\n";
    let chunks =
        "Transfer-Encoding: chunked\r\n\r\n5;a=\"b\"\r\nGET /\r\n7\r\nevil HT\r\n0\r\nX: y\r\n\r\n";
    [
        (format!("GET /large?rate={PACE}&batch={number} HTTP/1.1"), format!("{host}\r\n"), true),
        (format!("GET /held?a=\"b\\c'd\"&e=%41%zz;{number} HTTP/1.1"), format!("{host}\r\n"), true),
        (format!("HEAD /held?{number} HTTP/1.1"), "hOST:www.example:80\r\n\r\n".to_owned(), false),
        (format!("POST /held?chunks={number} HTTP/1.1"), format!("{host}{chunks}"), true),
        (
            format!("PUT /there/{number}/is~no(such)file HTTP/1.1"),
            format!("{host}Content-Length: 16\r\n\r\nGET / HTTP/1.1\r\n"),
            true,
        ),
        (format!("GET /%6eowhere//./{number}?? HTTP/1.1"), format!("{host}\r\n"), true),
        (
            format!("GET /held?fresh={number} HTTP/1.1"),
            format!("{host}If-None-Match: *\r\n\r\n"),
            false,
        ),
        (format!("GET http://www.example/held?{number} HTTP/1.1"), format!("{host}\r\n"), true),
    ]
    .into()
}

/// Reads a response; returns its status.
fn response(reader: &mut BufReader<&TcpStream>, has_body: bool) -> Result<u16> {
    let mut line = String::new();
    reader.read_line(&mut line).context("reading a status line")?;
    let status = line.split(' ').nth(1).and_then(|word| word.trim().parse().ok());
    let status = status.with_context(|| format!("`{line}` is no status line"))?;
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).context("reading fields")?;
        match line.trim_end().split_once(": ") {
            None => break,
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().with_context(|| format!("`{line}`"))?;
            }
            Some(_) => {}
        }
    }
    if has_body {
        let read = std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
        ensure!(read == length, "{read} of {length} bytes of a body came");
    }
    Ok(status)
}

/// Sends batches of pipelined requests on one connection until it is enough, each in two
/// pieces with a request line cut between them. Returns what was asked and answered, and
/// counts it in `answered`.
fn converse(
    stream: &TcpStream,
    is_enough: &AtomicBool,
    answered: &AtomicUsize,
) -> Result<Exchanges> {
    let (mut done, mut reader) = (Vec::new(), BufReader::new(stream));
    for number in 0.. {
        if is_enough.load(Ordering::Relaxed) {
            break;
        }
        let requests = batch(number);
        let text: String =
            requests.iter().map(|(line, rest, _)| format!("{line}\r\n{rest}")).collect();
        // The second request's line is cut, at another place each time.
        let cut = requests[0].0.len() + 2 + requests[0].1.len() + 5 + number % 20;
        let (first, second) = text.as_bytes().split_at(cut);
        (&*stream).write_all(first)?;
        for (at, (line, _, has_body)) in requests.into_iter().enumerate() {
            let status = response(&mut reader, has_body)?;
            done.push((line, status));
            answered.fetch_add(1, Ordering::Relaxed);
            if at == 0 {
                (&*stream).write_all(second)?;
            }
        }
    }
    Ok(done)
}

/// nginx's log, by the client's port.
fn of_server(nginx: &Nginx) -> Result<BTreeMap<u16, Exchanges>> {
    let mut all = BTreeMap::<u16, Exchanges>::new();
    for line in std::fs::read_to_string(nginx.access_log())?.lines() {
        let mut words = line.splitn(3, ' ');
        let mut next = || words.next().with_context(|| format!("`{line}` is too short"));
        let (port, status, request) = (next()?.parse()?, next()?.parse()?, next()?.to_owned());
        all.entry(port).or_default().push((request, status));
    }
    Ok(all)
}

/// The box's log, by the client's port: of each connection, the requests and statuses in
/// the order of their numbers.
fn of_box(network: &Network) -> Result<BTreeMap<u16, Exchanges>> {
    let mut all = BTreeMap::<u16, Numbered>::new();
    let log = network.running.stderr();
    ensure!(!log.contains("were not said") && !log.contains("lines are missing"), "{log}");
    for line in log.lines() {
        let Some((_, line)) = line.split_once(&format!("http: tcp {CLIENT}:")) else { continue };
        let wrong = || format!("`{line}` cannot be read");
        let (port, line) = line.split_once(' ').with_context(wrong)?;
        let line = line.strip_prefix(&format!("> {SERVER}:80 at port ")).with_context(wrong)?;
        let (_, line) = line.split_once(": ").with_context(wrong)?;
        let (kind, text) = line.split_once(": ").with_context(wrong)?;
        let (kind, number) = kind.split_once(' ').with_context(wrong)?;
        let exchange = all.entry(port.parse()?).or_default().entry(number.parse()?).or_default();
        let is_first = match kind {
            "request" => {
                let request = text.strip_suffix(", host www.example").with_context(wrong)?;
                exchange.0.replace(request.to_owned()).is_none()
            }
            "response" => exchange.1.replace(text.parse()?).is_none(),
            _ => bail!(wrong()),
        };
        ensure!(is_first, "`{line}` is there twice");
    }
    let whole = |(port, numbered): (u16, Numbered)| -> Result<(u16, Exchanges)> {
        let in_order = (1..).zip(numbered).map(|(expected, (number, (request, status)))| {
            ensure!(number == expected, "request {expected} of {port} is not in the log");
            Ok((request.context("a response alone")?, status.context("a request alone")?))
        });
        Ok((port, in_order.collect::<Result<Exchanges>>()?))
    };
    all.into_iter().map(whole).collect()
}

/// Clients pipeline requests to a server, with bodies of all kinds, while every runtime
/// is moved and killed in turn. The server's log, the clients' and the box's are the
/// same, connection by connection and in order, and no line of the box's log is said
/// twice.
fn requests_are_logged_as_the_server_logs_them(interrupt: &Interrupt) -> Result<()> {
    let network = network("http: { log: requests }", interrupt)?;
    network.site.add_random("large", LARGE)?;
    let at = SocketAddr::new(ip(SERVER), 80);
    let nginx =
        Nginx::start_logging(&network.lab, &network.topology.server, "nginx", at, &network.site)?;
    let connections: Vec<(u16, TcpStream)> = (FIRST_PORT..FIRST_PORT + CONNECTIONS)
        .map(|port| {
            let stream = begin(&network.topology.client, SocketAddr::new(ip(CLIENT), port), at)?;
            opened(&stream, interrupt)?;
            Ok((port, stream))
        })
        .collect::<Result<_>>()?;
    let (is_enough, answered) = (&AtomicBool::new(false), &AtomicUsize::new(0));
    let sent = std::thread::scope(|scope| {
        let threads: Vec<_> = connections
            .iter()
            .map(|(port, stream)| {
                (*port, scope.spawn(move || converse(stream, is_enough, answered)))
            })
            .collect();
        // Every connection goes on between two deaths.
        let killed = network.move_and_kill(|| {
            let goal = answered.load(Ordering::Relaxed) + 2 * ONCE;
            until("requests are answered", TIMEOUT, interrupt, || {
                Ok((answered.load(Ordering::Relaxed) >= goal).then_some(()))
            })
        });
        is_enough.store(true, Ordering::Relaxed);
        let sent = threads.into_iter().map(|(port, thread)| {
            let sent = thread.join().unwrap_or_else(|_| bail!("a client panicked"));
            Ok((port, sent.with_context(|| format!("the connection from port {port}"))?))
        });
        let sent = sent.collect::<Result<BTreeMap<u16, Exchanges>>>()?;
        killed.map(|()| sent)
    })?;
    let count = |all: &BTreeMap<u16, Exchanges>| all.values().map(Vec::len).sum::<usize>();
    let expected = count(&sent);
    let logged = until("the server has logged all", TIMEOUT, interrupt, || {
        let logged = of_server(&nginx)?;
        Ok((count(&logged) >= expected).then_some(logged))
    })?;
    ensure!(logged == sent, "the server has logged something else than was asked");
    let statuses = [200, 405, 404, 304];
    for status in statuses {
        ensure!(logged.values().flatten().any(|(_, other)| *other == status), "no {status}");
    }
    let lines = |text: &str| network.running.stderr().matches(text).count();
    until("the box has logged all", TIMEOUT, interrupt, || {
        let said = [lines(": request "), lines(": response ")];
        Ok((said.into_iter().min() >= Some(expected)).then_some(()))
    })?;
    let said = of_box(&network)?;
    for (port, expected) in &logged {
        let said = said.get(port).with_context(|| format!("nothing is said of port {port}"))?;
        let differing = expected.iter().zip(said).position(|(one, other)| one != other);
        ensure!(
            said == expected,
            "of port {port}: {} requests are said and {} logged, and number {differing:?} differs",
            said.len(),
            expected.len()
        );
    }
    ensure!(said.len() == logged.len(), "{} connections are said", said.len());
    drop(connections);
    network.stop()
}
