//! A box whose packet loop answers from a script, and a client that reads when it is
//! told.

use super::*;

pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// The configuration that the box runs.
pub(super) const CONFIGURATION: &str = "cluster: a\nports: { x: { device: d, address: 10.0.0.1/24 } }\nchains: { c: { functions: [forward] }, d: { functions: [forward] } }\nrules: [{ chain: c }]\n";

/// A directory of the test's own, removed with this value.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new() -> Scratch {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hf-control-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).expect("a fresh directory");
        Scratch(path)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.0.join("run").join("box.sock")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A box: the socket, and a loop behind it.
pub(super) struct Box {
    pub(super) server: Option<Server>,
    pub(super) wakes: Arc<AtomicU32>,
    pub(super) stops: Arc<AtomicU32>,
    /// Counts of the traces that the loop was asked for.
    pub(super) traces: Receiver<u32>,
    /// The changes that the loop was asked for.
    pub(super) changes: Receiver<Order>,
    /// The rules that the loop was told to go by, in words, with the text that they are
    /// from.
    pub(super) applied: Receiver<(Vec<String>, String)>,
    pub(super) path: PathBuf,
    // Dropped last.
    _scratch: Scratch,
}

pub(crate) fn flow(port: u16) -> Flow {
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

/// True if the filter selects the flow. A runtime decides it in the same way.
fn is_meant(flow: &Flow, filter: &str) -> bool {
    let end = |text: &str| text.parse::<std::net::SocketAddr>().unwrap();
    let (source, destination) = (end(&flow.source), end(&flow.destination));
    let key = FlowKey {
        source: ip_bytes(source.ip()),
        destination: ip_bytes(destination.ip()),
        source_port: source.port(),
        destination_port: destination.port(),
        protocol: 6,
        scope: 0,
    };
    filter.parse::<Selector>().unwrap().matches_key(&key)
}

impl Box {
    /// Starts a box in which each trace yields `steps` steps, once.
    pub(super) fn start(steps: usize) -> Box {
        Box::start_with(steps, 5)
    }

    /// Starts a box with so many flows.
    pub(super) fn start_with(steps: usize, flows: u32) -> Box {
        let scratch = Scratch::new();
        let path = scratch.socket();
        let (requests, asked) = channel::<Request>();
        let (wakes, stops) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (traced, traces) = channel();
        let (applying, applied) = channel();
        let (changing, changes) = channel();
        let count = |counter: &Arc<AtomicU32>| {
            let counter = counter.clone();
            Arc::new(move || {
                counter.fetch_add(1, Ordering::SeqCst);
            })
        };
        let server = control::listen_and_stop(&path, requests, count(&wakes), count(&stops));
        let server = server.unwrap_or_else(|failure| panic!("{failure}"));
        // Ends when the threads of the server and its clients have ended.
        std::thread::spawn(move || {
            let mut pending: Vec<(u32, TraceStep)> = Vec::new();
            let (mut version, mut running) = (1, CONFIGURATION.to_owned());
            for asked in asked {
                match asked {
                    Request::Ping(answer) => answer.give(PingReply::default()),
                    Request::Status(answer) => {
                        answer.give(Status {
                            protected: Protected::Yes.into(),
                            version: 1,
                            ..Status::default()
                        });
                    }
                    Request::Flows { limit, at, filter, answer } => {
                        // Answers in pieces, as from a table that is walked some flows at
                        // a time.
                        let first = at.map_or(0, |place: ListCursor| place.slot);
                        let end = flows.min(first + limit.min(300));
                        let peer = Peer { node: NodeId::new(16), incarnation: 1 };
                        let next = (end < flows).then_some(ListCursor { peer, lane: 0, slot: end });
                        let found = (first..end)
                            .map(|number| flow(number as u16 + 1))
                            .filter(|flow| is_meant(flow, &filter));
                        answer.give(Page { flows: found.collect(), next });
                    }
                    Request::Trace { count, answer, .. } => {
                        let _ = traced.send(count);
                        let packets = steps.min(count as usize) as u64;
                        // The last packet is reported first.
                        let step = |packet| TraceStep {
                            packet,
                            node: 1,
                            place: "switch".to_owned(),
                            text: "seen".to_owned(),
                        };
                        pending = (0..packets).rev().map(|packet| (0, step(packet))).collect();
                        answer.give(());
                    }
                    Request::Traces(answer) => {
                        let steps = std::mem::take(&mut pending);
                        answer.give(Traced {
                            whole: if steps.is_empty() { u64::MAX } else { 0 },
                            steps,
                        });
                    }
                    Request::Order(order, answer) => {
                        let _ = changing.send(order);
                        answer.give(7);
                    }
                    Request::Progress(work, answer) => {
                        assert_eq!(work, Work::Moving(7));
                        answer.give(progress(1, true));
                    }
                    Request::Configuration(answer) => {
                        let plan = config::read("old.yaml", &running).expect("it is right").into();
                        let (file, text) = ("old.yaml".to_owned(), running.as_str().into());
                        answer.give(Running { file, text, plan, rules: version, record: 2000 });
                    }
                    Request::Apply { based_on, text, plan, rules, answer, .. } => {
                        assert_eq!(
                            plan.rules,
                            config::read("old.yaml", &text).expect("it is right").rules
                        );
                        assert_eq!(
                            based_on, version,
                            "the loop is told what the rules were compared with"
                        );
                        version += 1;
                        running = text.to_string();
                        assert_eq!(
                            rules.version(),
                            version,
                            "the set after the one that it is compared with"
                        );
                        let rules =
                            rules.records().iter().flat_map(|record| {
                                match Control::decode(record) {
                                    Ok(Control::Rules { rules, .. }) => rules,
                                    other => panic!("{other:?}"),
                                }
                            });
                        let _ = applying.send((
                            rules.map(|rule| rule.selector.to_string()).collect(),
                            running.clone(),
                        ));
                        answer.give(version);
                    }
                }
            }
        });
        Box {
            server: Some(server),
            wakes,
            stops,
            traces,
            changes,
            applied,
            path,
            _scratch: scratch,
        }
    }

    pub(super) fn client(&self) -> Client {
        Client::new(Some(&self.path)).unwrap_or_else(|failure| panic!("{failure}"))
    }

    pub(super) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).expect("the box listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout can be set");
        stream
    }

    /// A client by hand, which reads when the test wants it to.
    pub(super) fn by_hand(&self) -> ByHand {
        ByHand::new(&self.path, Endpoint::from_static("http://box"))
    }
}

/// The client of [`Box::by_hand`]. Its connection and calls end with it.
pub(super) struct ByHand {
    pub(super) runtime: Runtime,
    pub(super) api: ControlClient<Channel>,
    pub(super) channel: Channel,
}

impl ByHand {
    pub(super) fn new(path: &Path, endpoint: Endpoint) -> ByHand {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .unwrap();
        let channel = runtime.block_on(async {
            let stream = tokio::net::UnixStream::connect(path).await.expect("the box listens");
            channel_over(stream, endpoint).await.expect("the box speaks HTTP/2")
        });
        ByHand { runtime, api: ControlClient::new(channel.clone()), channel }
    }
}

pub(super) fn progress(moved: u64, done: bool) -> Progress {
    Progress { runtime: 16, moved, had: Some(600_000), done, took_us: 1, ..Progress::default() }
}

/// Asks again until the condition holds.
pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < LIMIT, "{what}");
        std::thread::yield_now();
    }
}

pub(crate) fn refusal<T>(result: Result<T, exit::Failure>) -> exit::Failure {
    match result {
        Ok(_) => panic!("this should have been refused"),
        Err(failure) => failure,
    }
}
