//! A box with a local socket and a control API, whose packet loop answers from a script.

use super::*;

/// Longer than anything here takes.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

pub(super) const CONFIGURATION: &str = "cluster: a
ports: { x: { device: d, address: 10.0.0.1/24 } }
chains: { c: { functions: [forward] }, d: { functions: [forward] } }
rules: [{ chain: c }]
state: /s
fabric: { key: keys/cluster.key }
hosts: { left: { fabric: f }, right: { fabric: f } }
control: { listen: 127.0.0.1:7443, tls: tls }
";

/// A box with a local socket and a control API, and a loop behind them.
pub(super) struct Box {
    pub(super) server: Option<Server>,
    pub(super) address: SocketAddr,
    /// The changes that the loop was asked for, and the counts of traces.
    pub(super) asked: Receiver<String>,
    pub(super) socket: PathBuf,
    // Dropped last.
    pub(super) scratch: TempDir,
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
        values: Vec::new(),
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

pub(super) fn progress(moved: u64, had: Option<u64>) -> Progress {
    Progress { runtime: 16, moved, had, done: moved == 3, took_us: 1500, ..Progress::default() }
}

/// The runtime whose flows keep the loop so busy that questions about its drain are late,
/// or come before the drain has begun.
pub(super) const BUSY: NodeId = NodeId::new(20);

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
    pub(super) fn start() -> Box {
        Box::start_within(Limits::default())
    }

    pub(super) fn start_within(limits: Limits) -> Box {
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

    pub(super) fn tls(&self, name: &str) -> TlsPaths {
        TlsPaths::in_directory(&self.scratch.path().join("tls").join(name))
    }

    /// A client that shows this certificate.
    pub(super) fn client(&self, name: &str) -> Client {
        Client::to(&Target {
            control: Some(format!("https://{}", self.address)),
            tls: Some(self.tls(name)),
        })
        .unwrap()
    }

    pub(super) fn local(&self) -> Client {
        Client::new(Some(&self.socket)).unwrap()
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        self.address.to_string().parse().unwrap()
    }

    pub(super) fn told(&self) -> String {
        self.asked.recv_timeout(LIMIT).expect("the loop is asked")
    }

    /// How often the control API has refused a client for this reason.
    pub(super) fn refused(&self, reason: &str) -> u64 {
        self.local()
            .status()
            .unwrap()
            .control
            .and_then(|control| control.refused.get(reason).copied())
            .unwrap_or(0)
    }

    /// A client whose configuration is made by hand, so that it may be wrong.
    pub(super) fn raw(&self, config: ClientConfig) -> StreamOwned<ClientConnection, TcpStream> {
        let connection =
            ClientConnection::new(Arc::new(config), ServerName::from(self.address.ip())).unwrap();
        StreamOwned::new(connection, self.connect())
    }

    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// A client takes a seat and keeps it by following a trace.
    pub(super) fn hold_a_seat(&self, name: &str) -> HeldSeat {
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
    pub(super) fn still_answers(&self) {
        assert_eq!(self.client("wall").status().unwrap().protected(), Protected::ReSynchronising);
    }
}

/// The seat of [`Box::hold_a_seat`].
pub(super) struct HeldSeat {
    stay: Sender<()>,
    trace: JoinHandle<Result<u64, Failure>>,
}

impl HeldSeat {
    /// Gives the seat back.
    pub(super) fn end(self) {
        drop(self.stay);
        assert_eq!(refusal(self.trace.join().unwrap()).message, "enough");
    }
}

/// Waits until the condition holds.
pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    holdfast_lab::until(what, LIMIT, &Interrupt::default(), || Ok(is_so().then_some(()))).unwrap();
}

pub(super) fn refusal<T>(result: Result<T, Failure>) -> Failure {
    match result {
        Ok(_) => panic!("this should have been refused"),
        Err(failure) => failure,
    }
}

/// Trusts the authority of `trusted`, and shows the certificate in `shown`, if any.
pub(super) fn by_hand(trusted: &Path, shown: Option<&Path>) -> ClientConfig {
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
pub(super) fn is_closed(mut stream: impl Read) {
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
