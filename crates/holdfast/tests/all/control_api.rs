//! The control API over the loopback, with real certificates: clients that are allowed
//! in, clients that are not, and peers that speak another protocol. The packet loop is a
//! thread that answers from a script.

use holdfast::config::{self, ControlEntry};
use holdfast::control::Limits;
use holdfast::control::{self, Answer, Page, Request, Running, Server, Traced, Work};
use holdfast_control::api::apply_reply::Result as Reply;
use holdfast_control::api::{
    Flow, FlowTable, Host, MigrateRequest, PingReply, Pool, Process, Progress, Protected, Rules,
    ServerPool, Statistic, StatisticValue, Status, TraceStep,
};
use holdfast_control::certify::{Subject, certify};
use holdfast_control::exit::{self, Failure};
use holdfast_control::tls::{CA_FILE, CERTIFICATE_FILE, KEY_FILE, TlsPaths};
use holdfast_control::{Client, MAX_FILE, Target};
use holdfast_control::{Endpoint, fetch};
use holdfast_lab::Interrupt;
use holdfast_node::message::Order;
use holdfast_wire::NodeId;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;
use time::OffsetDateTime;

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

const CONFIGURATION: &str = "cluster: a
ports: { x: { device: d, address: 10.0.0.1/24 } }
chains: { c: { functions: [forward] }, d: { functions: [forward] } }
rules: [{ chain: c }]
state: /s
fabric: { key: keys/cluster.key }
hosts: { left: { fabric: f }, right: { fabric: f } }
control: { listen: 127.0.0.1:7443, tls: tls }
";

/// A box with a local socket and a control API, and a loop behind them.
struct Box {
    server: Option<Server>,
    address: SocketAddr,
    /// The changes that the loop was asked for, and the counts of traces.
    asked: Receiver<String>,
    socket: PathBuf,
    // Dropped last.
    scratch: TempDir,
}

fn flow(port: u16) -> Flow {
    Flow {
        protocol: 6,
        source: format!("10.0.0.2:{port}"),
        destination: "203.0.113.10:80".to_owned(),
        translated_source: format!("198.51.100.4:{port}"),
        translated_destination: "198.51.100.11:80".to_owned(),
        chain: Some("web".to_owned()),
        state: "established".to_owned(),
        owner: 16,
        replica: Some(17),
        epoch: 1,
        age_ms: 5,
        packets: vec![1, 2],
        bytes: vec![3, 4],
    }
}

/// Something of everything that a box says about itself.
fn status(state: &str) -> Status {
    let drops = BTreeMap::from([("no_flow".to_owned(), 1)]);
    let runtime = Process {
        role: "runtime".to_owned(),
        id: 16,
        incarnation: 1,
        pid: 7,
        host: "left".to_owned(),
        state: state.to_owned(),
        flows: 3,
        packets: 9,
        drops: drops.clone(),
        ..Process::default()
    };
    let pool = Pool {
        chain: "web".to_owned(),
        function: "nat".to_owned(),
        size: 9,
        held: 3,
        at_hand: 2,
        ..Pool::default()
    };
    let server = Some(ServerPool { free: 4, at_hand: 2, held: 3, resting: 0 });
    let value = |name: &str, value| StatisticValue { name: name.to_owned(), value };
    Status {
        version: 1,
        protected: Protected::ReSynchronising.into(),
        survives: "host".to_owned(),
        hosts: vec![Host {
            name: "left".to_owned(),
            state: "serving".to_owned(),
            is_this: true,
            ..Host::default()
        }],
        rules: Some(Rules { version: 1, count: 1, in_force: true }),
        processes: vec![runtime],
        drops,
        pools: vec![pool.clone(), Pool { chain: "far".to_owned(), server, ..pool }],
        statistics: vec![Statistic {
            size: 2,
            values: vec![value("0", 3), value("1", -4)],
            ..Statistic::default()
        }],
        flow_tables: vec![FlowTable {
            id: 1,
            used: 3,
            size: 9,
            fill_permille: 333,
            half_open: Some(2),
            forgotten: None,
        }],
        ..Status::default()
    }
}

fn progress(moved: u64, had: Option<u64>) -> Progress {
    Progress { runtime: 16, moved, had, done: moved == 3, took_us: 1500, ..Progress::default() }
}

/// The runtime whose flows keep the loop so busy that questions about its drain are late,
/// or come before the drain has begun.
const BUSY: NodeId = NodeId::new(20);

/// A runtime that serves no flows.
const NOWHERE: NodeId = NodeId::new(99);

/// Answers a question about the progress of draining [`BUSY`], look by look, as the
/// packet loop does.
fn answer_of_busy(look: u64, answer: Answer<Progress>) {
    match look {
        1 => answer.refuse("nobody has drained that runtime"),
        // Dropped: no answer in time.
        2 | 4 => {}
        3 => answer.give(progress(1, Some(3))),
        _ => answer.give(progress(3, Some(3))),
    }
}

/// The loop: every look at an order finds one more flow moved; a runtime that is restored
/// starts, and serves at the third look.
fn answer_from_a_script(requests: Receiver<Request>, file: &str, tell: impl Fn(String)) {
    let (mut moved, mut version, mut running, mut starting) = (0, 1, CONFIGURATION.to_owned(), 0);
    let mut pending = Vec::new();
    for asked in requests {
        match asked {
            Request::Ping(answer) => answer.give(PingReply::default()),
            Request::Status(answer) => {
                starting = if starting > 0 { starting - 1 } else { 0 };
                answer.give(status(if starting > 0 { "starting" } else { "running" }));
            }
            Request::Flows { limit, answer, .. } => {
                answer.give(Page {
                    flows: (1..=5u16.min(limit as u16)).map(flow).collect(),
                    next: None,
                });
            }
            Request::Trace { count, answer, .. } => {
                tell(format!("trace {count}"));
                let step = |packet| TraceStep {
                    packet,
                    node: 1,
                    place: "switch".to_owned(),
                    text: "seen".to_owned(),
                };
                pending = (0..u64::from(count.min(2))).map(|packet| (0, step(packet))).collect();
                answer.give(());
            }
            Request::Traces(answer) => {
                answer.give(Traced { whole: u64::MAX, steps: std::mem::take(&mut pending) })
            }
            Request::Configuration(answer) => {
                let plan = config::read(file, &running).expect("it is right").into();
                let (file, text) = (file.to_owned(), running.as_str().into());
                answer.give(Running { file, text, plan, rules: version, record: 1_000 });
            }
            Request::Apply { text, answer, .. } => {
                version += 1;
                running = text.to_string();
                tell("apply".to_owned());
                answer.give(version);
            }
            Request::Progress(Work::Draining(BUSY), answer) => {
                moved += 1;
                answer_of_busy(moved, answer);
            }
            Request::Progress(work, answer) => {
                moved += 1;
                let had = match work {
                    Work::Moving(order) => {
                        assert_eq!(order, 7);
                        None
                    }
                    Work::Draining(_) => Some(3),
                };
                answer.give(progress(moved, had));
            }
            Request::Order(Order::Move { to: Some(NOWHERE), .. }, answer) => {
                answer.refuse("runtime 99 serves no flows")
            }
            Request::Order(Order::Drain { node: BUSY, .. }, _late) => {
                moved = 0;
                tell("drain".to_owned());
            }
            Request::Order(order, answer) => {
                (moved, starting) = (0, 3);
                tell(format!("{order:?}"));
                answer.give(7);
            }
        }
    }
}

impl Box {
    fn start() -> Box {
        Box::start_within(Limits::default())
    }

    fn start_within(limits: Limits) -> Box {
        let scratch = tempfile::tempdir().unwrap();
        let tls = scratch.path().join("tls");
        let subjects = ["left=127.0.0.1", "right", "stranger", "operator:alice", "viewer:wall"];
        let subjects = subjects.map(|text| text.parse::<Subject>().unwrap());
        certify(&tls, &subjects, 30, OffsetDateTime::now_utc()).unwrap();
        let keys = scratch.path().join("keys");
        std::fs::create_dir(&keys).unwrap();
        std::fs::write(keys.join("cluster.key"), "the cluster's key").unwrap();
        let (requests, asked) = channel();
        let (telling, told) = channel();
        let socket = scratch.path().join("box.sock");
        let stop = telling.clone();
        let stop = Arc::new(move || drop(stop.send("stop".to_owned())));
        let mut server =
            control::listen_and_stop(&socket, requests, Arc::new(|| {}), stop).unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        server
            .serve_remote(
                &ControlEntry { listen, tls: TlsPaths::in_directory(&tls.join("left")) },
                limits,
            )
            .unwrap();
        let address = server.remote_address().unwrap();
        let file = scratch.path().join("edge.yaml").display().to_string();
        // Ends when the threads of the server and its clients have ended.
        std::thread::spawn(move || {
            answer_from_a_script(asked, &file, |text| drop(telling.send(text)))
        });
        Box { server: Some(server), address, asked: told, socket, scratch }
    }

    fn tls(&self, name: &str) -> TlsPaths {
        TlsPaths::in_directory(&self.scratch.path().join("tls").join(name))
    }

    /// A client that shows this certificate.
    fn client(&self, name: &str) -> Client {
        Client::to(&Target {
            control: Some(format!("https://{}", self.address)),
            tls: Some(self.tls(name)),
        })
        .unwrap()
    }

    fn local(&self) -> Client {
        Client::new(Some(&self.socket)).unwrap()
    }

    fn endpoint(&self) -> Endpoint {
        self.address.to_string().parse().unwrap()
    }

    fn told(&self) -> String {
        self.asked.recv_timeout(LIMIT).expect("the loop is asked")
    }

    /// How often the control API has refused a client for this reason.
    fn refused(&self, reason: &str) -> u64 {
        self.local()
            .status()
            .unwrap()
            .control
            .and_then(|control| control.refused.get(reason).copied())
            .unwrap_or(0)
    }

    /// A client whose configuration is made by hand, so that it may be wrong.
    fn raw(&self, config: ClientConfig) -> StreamOwned<ClientConnection, TcpStream> {
        let connection =
            ClientConnection::new(Arc::new(config), ServerName::from(self.address.ip())).unwrap();
        StreamOwned::new(connection, self.connect())
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// A client takes a seat and keeps it by following a trace.
    fn hold_a_seat(&self, name: &str) -> HeldSeat {
        let (stay, leave) = channel::<()>();
        let client = self.client(name);
        let trace = std::thread::spawn(move || {
            client.trace("udp".to_owned(), 10_000, LIMIT * 10, |_| {
                // The client goes at its first step, when it may.
                let _ = leave.recv();
                Err(Failure::new(exit::NEGATIVE, "enough"))
            })
        });
        assert_eq!(self.told(), "trace 10000");
        HeldSeat { stay, trace }
    }

    /// Checks that the box, whatever was done to it, still answers a client that may ask.
    fn still_answers(&self) {
        assert_eq!(self.client("wall").status().unwrap().protected(), Protected::ReSynchronising);
    }
}

/// The seat of [`Box::hold_a_seat`].
struct HeldSeat {
    stay: Sender<()>,
    trace: JoinHandle<Result<u64, Failure>>,
}

impl HeldSeat {
    /// Gives the seat back.
    fn end(self) {
        drop(self.stay);
        assert_eq!(refusal(self.trace.join().unwrap()).message, "enough");
    }
}

/// Waits until the condition holds.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    holdfast_lab::until(what, LIMIT, &Interrupt::default(), || Ok(is_so().then_some(()))).unwrap();
}

fn refusal<T>(result: Result<T, Failure>) -> Failure {
    match result {
        Ok(_) => panic!("this should have been refused"),
        Err(failure) => failure,
    }
}

/// Trusts the authority of `trusted`, and shows the certificate in `shown`, if any.
fn by_hand(trusted: &Path, shown: Option<&Path>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted.join(CA_FILE)).unwrap()).unwrap();
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
    let mut config = match shown {
        Some(shown) => {
            let certificate = CertificateDer::from_pem_file(shown.join(CERTIFICATE_FILE)).unwrap();
            let key = PrivateKeyDer::from_pem_file(shown.join(KEY_FILE)).unwrap();
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// Reads until the box has closed the connection.
fn is_closed(mut stream: impl Read) {
    let mut bytes = [0; 4096];
    // An error is an end too, but a time-out of the read is not.
    let end = loop {
        match stream.read(&mut bytes) {
            Ok(0) => break Ok(()),
            Ok(_) => {}
            Err(error) => break Err(error),
        }
    };
    assert!(
        !matches!(&end, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
        "{end:?}"
    );
}

/// The control API and the local socket give the same answers.
#[test]
fn an_operator_is_told_what_the_local_socket_tells() {
    let running = Box::start();
    let (here, there) = (running.local(), running.client("alice"));
    let status = there.status().unwrap();
    let control = status.control.clone().unwrap();
    assert_eq!((control.listen, control.connections), (running.address.to_string(), 1));
    let without_control = |status| Status { control: None, ..status };
    assert_eq!(without_control(status), without_control(here.status().unwrap()));
    assert_eq!(there.ping().unwrap().pid, std::process::id());
    for (filter, limit) in
        [("", 100), ("tcp from 10.0.0.2 port 2-3", 100), ("", 3), ("", 0), ("udp", 5)]
    {
        assert_eq!(
            there.list(filter, limit).unwrap(),
            here.list(filter, limit).unwrap(),
            "{filter:?} {limit}"
        );
    }
    let move_to = |to| MigrateRequest { from: 16, to, limit: Some(1), filter: String::new() };
    for (one, other) in [
        (refusal(there.list("tcp form any", 1)), refusal(here.list("tcp form any", 1))),
        (refusal(there.migrate(move_to(Some(99)))), refusal(here.migrate(move_to(Some(99))))),
    ] {
        assert_eq!((one.code, one.message), (other.code, other.message));
    }
    let trace = |client: &Client, selector: &str| {
        let mut steps = Vec::new();
        let seen = client.trace(selector.to_owned(), 2, LIMIT, |step| {
            steps.push(step.clone());
            Ok(())
        });
        (seen.map_err(|failure| (failure.code, failure.message)), steps)
    };
    let traced = trace(&there, "tcp");
    assert_eq!((&traced.0, traced.1.len()), (&Ok(2), 2));
    assert_eq!(traced, trace(&here, "tcp"));
    assert_eq!(trace(&there, "tpc"), trace(&here, "tpc"));
}

/// The progress of orders is reported until they are done, and orders reach the loop as
/// the local socket's do.
#[test]
fn an_operator_moves_drains_restores_applies_and_stops() {
    let running = Box::start();
    let client = running.client("alice");
    let migrate = |client: &Client| {
        client.migrate(MigrateRequest {
            from: 16,
            to: Some(17),
            limit: None,
            filter: "tcp".to_owned(),
        })
    };
    let moved = "Move { from: 16, to: Some(17), limit: 18446744073709551615, selector: \"tcp\" }";
    let drain = |client: &Client| client.drain(16, true);
    type Begin<'a> = &'a dyn Fn(&Client) -> Result<holdfast_control::Work, Failure>;
    let orders: [(Begin<'_>, &str, Option<u64>); 2] =
        [(&migrate, moved, None), (&drain, "Drain { node: 16, force: true }", Some(3))];
    for (begin, expected, had) in orders {
        for client in [&client, &running.local()] {
            let mut seen = Vec::new();
            let done = begin(client).unwrap().watch(|progress| seen.push(progress.moved)).unwrap();
            assert_eq!(running.told(), expected);
            assert_eq!(seen, [1, 2, 3]);
            assert_eq!(done, progress(3, had));
        }
    }
    client.restore(16).unwrap();
    assert_eq!(running.told(), "Restore(16)");

    let new = CONFIGURATION.replace("chain: c }]", "chain: d }]");
    let apply = |client: &Client, text: &str, dry_run| {
        client.apply("new.yaml".into(), text.into(), dry_run).unwrap()
    };
    let dry = apply(&client, &new, true);
    assert!(
        matches!(&dry, Reply::Applied(applied) if applied.dry_run && applied.changed),
        "{dry:?}"
    );
    assert!(running.asked.try_recv().is_err(), "nothing was applied");
    assert_eq!(dry, apply(&running.local(), &new, true));
    let done = apply(&client, &new, false);
    assert!(
        matches!(&done, Reply::Applied(applied) if applied.rules.as_ref().is_some_and(|rules| rules.now == 2)),
        "{done:?}"
    );
    assert_eq!(running.told(), "apply");
    for wrong in ["cluster: [", &CONFIGURATION.replace("cluster: a", "cluster: b")] {
        let answer = apply(&client, wrong, false);
        assert!(matches!(answer, Reply::Refused(_)), "{answer:?}");
        assert_eq!(answer, apply(&running.local(), wrong, false));
    }
    assert_eq!(client.stop().unwrap(), std::process::id());
    assert_eq!(running.told(), "stop");
}

/// A box that drains very many flows neither says in time that it has begun nor always
/// how far it is. A client that watches sees the progress all the same, through the API
/// and the local socket, and asks for the drain once.
#[test]
fn a_busy_box_is_drained_as_any() {
    let running = Box::start();
    for client in [running.client("alice"), running.local()] {
        let mut seen = Vec::new();
        let work = client.drain(BUSY.into(), false).unwrap();
        let done = work.watch(|progress| seen.push(progress.moved)).unwrap();
        assert_eq!((done.moved, seen), (3, vec![1, 3]));
        assert_eq!(running.told(), "drain");
        assert!(running.asked.try_recv().is_err(), "it is asked for once");
    }
}

/// A viewer only looks. A call that changes something is refused, counted, and never
/// reaches the loop. A host is no operator.
#[test]
fn who_may_only_look_changes_nothing() {
    let running = Box::start();
    let change = |client: &Client| -> Vec<Failure> {
        vec![
            refusal(client.migrate(MigrateRequest { from: 16, ..MigrateRequest::default() })),
            refusal(client.drain(16, false)),
            refusal(client.restore(16)),
            refusal(client.apply("f".into(), CONFIGURATION.into(), true)),
            refusal(client.stop()),
        ]
    };
    for (name, what) in [("wall", "a viewer's"), ("right", "a host's")] {
        let client = running.client(name);
        assert_eq!(client.status().unwrap().version, 1);
        client.list("", 1).unwrap();
        for failure in change(&client) {
            assert_eq!(failure.code, exit::PERMISSION, "{failure}");
            assert!(
                failure.message.contains(what) && failure.message.contains("an operator's"),
                "{failure}"
            );
        }
    }
    assert_eq!(running.refused("denied"), 10);
    assert!(running.asked.try_recv().is_err(), "nothing of it reached the loop");
}

/// A certificate of the right authority that names no role of its holder opens nothing.
#[test]
fn a_certificate_without_a_role_is_told_so() {
    let running = Box::start();
    let directory = running.scratch.path().join("tls");
    let key = rcgen::KeyPair::from_pem(&std::fs::read_to_string(directory.join("ca.key")).unwrap())
        .unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(
        &std::fs::read_to_string(directory.join("ca.pem")).unwrap(),
        key,
    )
    .unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "nobody");
    params.distinguished_name.push(rcgen::DnType::OrganizationalUnitName, "root");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let own = rcgen::KeyPair::generate().unwrap();
    let certificate = params.signed_by(&own, &issuer).unwrap();
    let wall = directory.join("wall");
    std::fs::write(wall.join(CERTIFICATE_FILE), certificate.pem()).unwrap();
    std::fs::write(wall.join(KEY_FILE), own.serialize_pem()).unwrap();
    let failure = refusal(running.client("wall").status());
    assert_eq!(failure.code, exit::PERMISSION);
    assert!(failure.message.contains("viewer, operator, host"), "{failure}");
}

/// A client without a certificate, or with one that is not good, is refused in the
/// handshake and counted under the reason.
#[test]
fn certificates_that_are_not_good_are_refused() {
    let running = Box::start();
    let directory = running.scratch.path();
    let (mine, other, old) =
        (directory.join("tls/alice"), directory.join("other"), directory.join("tls/old"));
    let operator = ["operator:mallory".parse::<Subject>().unwrap()];
    certify(&other, &operator, 30, OffsetDateTime::now_utc()).unwrap();
    let long_ago = OffsetDateTime::now_utc() - time::Duration::days(60);
    certify(&directory.join("tls"), &["operator:old".parse().unwrap()], 30, long_ago).unwrap();
    for (shown, counted) in [
        (None, "no_certificate"),
        (Some(other.join("mallory")), "certificate_refused"),
        (Some(old.clone()), "certificate_not_now"),
    ] {
        let mut stream = running.raw(by_hand(&mine, shown.as_deref()));
        let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").and_then(|()| stream.flush());
        is_closed(stream);
        until(counted, || running.refused(counted) == 1);
    }
    // A host's certificate is for servers and clients, an operator's for clients alone:
    // nobody can play the box with it.
    let entry = ControlEntry { listen: "127.0.0.1:0".parse().unwrap(), tls: running.tls("alice") };
    let path = directory.join("second.sock");
    let mut second =
        control::listen_and_stop(&path, channel().0, Arc::new(|| {}), Arc::new(|| {})).unwrap();
    let failure = refusal(second.serve_remote(&entry, Limits::default()));
    assert!(
        failure.code == exit::CONFIGURATION && failure.message.contains("no host's certificate"),
        "{failure}"
    );
    running.still_answers();
}

/// The command says what is wrong and on which side, with the exit code that scripts look
/// at.
#[test]
fn a_client_says_why_it_is_not_heard() {
    let running = Box::start();
    let directory = running.scratch.path();
    let other = directory.join("other");
    certify(&other, &["operator:mallory".parse().unwrap()], 30, OffsetDateTime::now_utc()).unwrap();
    let ask = |place: &str, tls: TlsPaths| {
        let target = Target { control: Some(format!("https://{place}")), tls: Some(tls) };
        refusal(Client::to(&target).and_then(|client| client.status()))
    };
    let place = running.address.to_string();
    let strange = ask(&place, TlsPaths::in_directory(&other.join("mallory")));
    assert!(
        strange.code == exit::PERMISSION
            && strange.message.contains("not signed by the authority in"),
        "{strange}"
    );
    let elsewhere = ask(&format!("localhost:{}", running.address.port()), running.tls("alice"));
    assert!(
        elsewhere.code == exit::PERMISSION && elsewhere.message.contains("is not for `localhost`"),
        "{elsewhere}"
    );
    let missing = ask(&place, running.tls("nobody"));
    assert!(
        missing.code == exit::CONFIGURATION && missing.message.contains("there is no file"),
        "{missing}"
    );
    let mixed = TlsPaths { ca: other.join("ca.pem"), ..running.tls("alice") };
    assert_eq!(ask(&place, mixed).code, exit::CONFIGURATION);
    // A port that was free a moment ago: nobody listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = ask(&free.to_string(), running.tls("alice"));
    assert!(
        nobody.code == exit::UNAVAILABLE && nobody.message.contains("nobody listens"),
        "{nobody}"
    );
    // Something else listens there.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap().to_string();
    let greeting = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; 16];
        let _ = stream.read(&mut hello);
        let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
        is_closed(stream);
    });
    let mail = ask(&place, running.tls("alice"));
    assert!(
        mail.code == exit::UNAVAILABLE && mail.message.contains("does not speak TLS"),
        "{mail}"
    );
    greeting.join().unwrap();
    for (control, tls) in [
        ("http://127.0.0.1:1", true),
        ("https://127.0.0.1:1", false),
        ("https://", true),
        ("/a/path", true),
    ] {
        let target =
            Target { control: Some(control.to_owned()), tls: tls.then(|| running.tls("alice")) };
        assert_eq!(refusal(Client::to(&target)).code, exit::USAGE, "{control}");
    }
}

/// Bytes that are no TLS, and bytes inside TLS that are no HTTP/2, are refused and
/// counted.
#[test]
fn garbage_is_refused_and_counted() {
    let running = Box::start();
    for (at, bytes) in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &[0xff; 4096],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        let mut stream = running.connect();
        let _ = stream.write_all(bytes);
        is_closed(stream);
        until("not_tls", || running.refused("not_tls") == at as u64 + 1);
    }
    let stream = running.connect();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    is_closed(stream);
    until("handshake_ended", || running.refused("handshake_ended") == 1);
    let wall = running.scratch.path().join("tls/wall");
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &[0; 65536],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let mut stream = running.raw(by_hand(&wall, Some(&wall)));
        let _ = stream.write_all(bytes).and_then(|()| stream.flush());
        is_closed(stream);
    }
    running.still_answers();
    assert!(running.asked.try_recv().is_err(), "nothing of it reached the loop");
}

/// A message that is larger than any configuration is not read.
#[test]
fn a_message_has_a_limit() {
    let running = Box::start();
    let client = running.client("alice");
    let text = "#".repeat(MAX_FILE + (1 << 20));
    let failure = refusal(client.apply("f".into(), text, true));
    assert!(failure.code == exit::NEGATIVE && failure.message.contains("too large"), "{failure}");
    running.still_answers();
    // The longest text that a configuration may have comes through.
    let text = "#".repeat(MAX_FILE);
    assert!(matches!(client.apply("f".into(), text, true), Ok(Reply::Refused(_))));
}

/// Clients that begin a handshake and do not go on keep out other clients of their own
/// address only, until the box cuts the slow clients off.
#[test]
fn slow_clients_take_their_places_and_no_more() {
    let limits = Limits { handshakes_per_address: 3, handshake: LIMIT, ..Limits::default() };
    let running = Box::start_within(limits);
    let slow: Vec<TcpStream> = (0..3)
        .map(|_| {
            let mut stream = running.connect();
            // The beginning of a record, as long as a ClientHello.
            stream.write_all(&[0x16, 3, 1]).unwrap();
            stream
        })
        .collect();
    // Connections are accepted in their order: these three have their places.
    for at in 1..=20 {
        is_closed(running.connect());
        until("refused", || running.refused("too_many_connections") == at);
    }
    drop(slow);
    until("the slow ones are gone", || running.refused("handshake_ended") == 3);
    running.still_answers();

    let limits = Limits { handshake: Duration::from_millis(1), ..Limits::default() };
    let impatient = Box::start_within(limits);
    is_closed(impatient.connect());
    until("it was too slow", || impatient.refused("handshake_too_slow") == 1);
}

/// A client with a certificate takes a place too, and gives it back. A client that then
/// says nothing loses its place.
#[test]
fn connections_have_a_limit_and_an_end() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let running = Box::start_within(limits);
    let (first, second) = (running.client("alice"), running.client("wall"));
    first.ping().unwrap();
    second.ping().unwrap();
    let third = refusal(running.client("alice").ping());
    assert!(
        third.code == exit::UNAVAILABLE && third.message.contains("too many clients"),
        "{third}"
    );
    until("it is counted", || running.refused("too_many_connections") == 1);
    drop(first);
    until("its place is free", || running.client("alice").ping().is_ok());

    let limits = Limits { idle: Duration::from_millis(1), ..Limits::default() };
    let impatient = Box::start_within(limits);
    let wall = impatient.scratch.path().join("tls/wall");
    let mut silent = impatient.raw(by_hand(&wall, Some(&wall)));
    let _ = silent.flush();
    is_closed(silent);
    until("it was idle", || impatient.refused("idle") >= 1);
}

/// Calls have seats. A call that waits for packets keeps its seat until its client goes.
#[test]
fn calls_have_a_limit() {
    let limits = Limits { calls: 1, ..Limits::default() };
    let running = Box::start_within(limits);
    let held = running.hold_a_seat("alice");
    let busy = refusal(running.client("wall").status());
    assert!(busy.code == exit::TIMEOUT && busy.message.contains("too many calls"), "{busy}");
    assert_eq!(running.refused("busy"), 1);
    held.end();
    assert_eq!(running.told(), "trace 0", "the loop is told that nobody follows any more");
    until("the seat is free", || running.client("wall").status().is_ok());
}

/// Viewers that have taken all seats that viewers can get keep no operator out.
#[test]
fn an_operator_finds_a_seat() {
    let limits = Limits { calls: 2, ..Limits::default() };
    let running = Box::start_within(limits);
    let held = running.hold_a_seat("wall");
    assert_eq!(refusal(running.client("wall").status()).code, exit::TIMEOUT);
    running.client("alice").status().unwrap();
    running.client("right").status().unwrap();
    held.end();
}

/// A host gets the configuration and the files that it names by paths from its own
/// directory, under the host's own name only.
#[test]
fn a_host_joins_under_its_own_name() {
    let running = Box::start();
    let fetched = fetch(running.endpoint(), running.tls("right"), "right").unwrap();
    assert_eq!((fetched.cluster.as_str(), fetched.text.as_str()), ("a", CONFIGURATION));
    let files: Vec<(&str, &[u8])> =
        fetched.files.iter().map(|(path, bytes)| (path.as_str(), bytes.as_slice())).collect();
    assert_eq!(files, [("keys/cluster.key", &b"the cluster's key"[..])]);
    let join = |certificate: &str, name: &str| {
        fetch(running.endpoint(), running.tls(certificate), name).err().unwrap()
    };
    let other = join("right", "left");
    assert!(
        other.code == exit::PERMISSION && other.message.contains("is of the host `right`"),
        "{other}"
    );
    for name in ["alice", "wall"] {
        let failure = join(name, name);
        assert!(
            failure.code == exit::PERMISSION && failure.message.contains("takes a host's"),
            "{failure}"
        );
    }
    let stranger = join("stranger", "stranger");
    assert!(
        stranger.code == exit::NEGATIVE
            && stranger.message.contains("there is no host `stranger`: `left`, `right`"),
        "{stranger}"
    );
    std::fs::remove_file(running.scratch.path().join("keys/cluster.key")).unwrap();
    let failure = join("right", "right");
    assert!(failure.message.contains("fabric.key: keys/cluster.key"), "{failure}");
}

/// New certificates are taken without a restart, and bad ones are not.
#[test]
fn certificates_are_read_again() {
    let running = Box::start();
    let server = running.server.as_ref().unwrap();
    let held = running.client("wall");
    held.ping().unwrap();
    let left = running.scratch.path().join("tls/left");
    let good = std::fs::read(left.join(CERTIFICATE_FILE)).unwrap();
    std::fs::write(left.join(CERTIFICATE_FILE), "nothing").unwrap();
    let said = server.reload().unwrap()();
    assert!(said.contains("stays as it is") && said.contains(CERTIFICATE_FILE), "{said}");
    running.still_answers();
    std::fs::write(left.join(CERTIFICATE_FILE), good).unwrap();
    assert!(server.reload().unwrap()().contains("has been read again"));
    held.ping().expect("a connection whose authority is trusted goes on");
    // From now on another authority is trusted.
    let other = running.scratch.path().join("other");
    certify(
        &other,
        &["left=127.0.0.1".parse().unwrap(), "viewer:new".parse().unwrap()],
        30,
        OffsetDateTime::now_utc(),
    )
    .unwrap();
    for file in [CA_FILE, CERTIFICATE_FILE, KEY_FILE] {
        std::fs::copy(other.join("left").join(file), left.join(file)).unwrap();
    }
    assert!(server.reload().unwrap()().contains("has been read again"));
    assert_eq!(refusal(running.client("wall").ping()).code, exit::PERMISSION);
    let new = Target {
        control: Some(format!("https://{}", running.address)),
        tls: Some(TlsPaths::in_directory(&other.join("new"))),
    };
    Client::to(&new).unwrap().ping().unwrap();
    let shut_out = refusal(held.ping());
    assert!(
        shut_out.code == exit::PERMISSION
            && shut_out.message.contains("`wall` is not trusted here any more"),
        "{shut_out}"
    );
    assert_eq!(running.refused("certificate_refused"), 1);
}

/// Clients see an end when the box ends.
#[test]
fn nobody_listens_when_the_box_has_ended() {
    let mut running = Box::start();
    let client = running.client("alice");
    client.ping().unwrap();
    drop(running.server.take());
    assert_eq!(refusal(client.ping()).code, exit::UNAVAILABLE);
    assert_eq!(refusal(running.client("alice").ping()).code, exit::UNAVAILABLE);
}
