//! The control socket against clients that behave and clients that do not. The packet
//! loop is a thread that answers from a script.

use holdfast::config;
use holdfast::control::{
    self, MAX_CLIENTS, MAX_CONNECTIONS, Page, Request, Running, Server, Traced, Work,
};
use holdfast_control::api::apply_reply::Result as Reply;
use holdfast_control::api::control_client::ControlClient;
use holdfast_control::api::{
    Applied, Flow, ListFlowsRequest, MigrateRequest, PingReply, Progress, Rule, RuleChanges,
    TraceRequest, TraceStep,
};
use holdfast_control::exit;
use holdfast_control::status::{Protected, Status};
use holdfast_control::{Client, channel_over};
use holdfast_node::message::{Control, ListCursor, Order};
use holdfast_protection::Peer;
use holdfast_wire::selector::Selector;
use holdfast_wire::{FlowKey, NodeId, ip_bytes};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

const LIMIT: Duration = Duration::from_secs(10);

/// The configuration that the box runs.
const CONFIGURATION: &str = "cluster: a\nports: { x: { device: d, address: 10.0.0.1/24 } }\nchains: { c: { functions: [forward] }, d: { functions: [forward] } }\nrules: [{ chain: c }]\n";

/// A directory of the test's own, removed with this value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hf-control-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).expect("a fresh directory");
        Scratch(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("run").join("box.sock")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A box: the socket, and a loop behind it.
struct Box {
    server: Option<Server>,
    wakes: Arc<AtomicU32>,
    stops: Arc<AtomicU32>,
    /// Counts of the traces that the loop was asked for.
    traces: Receiver<u32>,
    /// The changes that the loop was asked for.
    changes: Receiver<Order>,
    /// The rules that the loop was told to go by, in words, with the text that they are
    /// from.
    applied: Receiver<(Vec<String>, String)>,
    path: PathBuf,
    // Dropped last.
    _scratch: Scratch,
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
    fn start(steps: usize) -> Box {
        Box::start_with(steps, 5)
    }

    /// Starts a box with so many flows.
    fn start_with(steps: usize, flows: u32) -> Box {
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

    fn client(&self) -> Client {
        Client::new(Some(&self.path)).unwrap_or_else(|failure| panic!("{failure}"))
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).expect("the box listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout can be set");
        stream
    }

    /// A client by hand, which reads when the test wants it to.
    fn by_hand(&self) -> ByHand {
        ByHand::new(&self.path, Endpoint::from_static("http://box"))
    }
}

/// The client of [`Box::by_hand`]. Its connection and calls end with it.
struct ByHand {
    runtime: Runtime,
    api: ControlClient<Channel>,
    channel: Channel,
}

impl ByHand {
    fn new(path: &Path, endpoint: Endpoint) -> ByHand {
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

fn progress(moved: u64, done: bool) -> Progress {
    Progress { runtime: 16, moved, had: Some(600_000), done, took_us: 1, ..Progress::default() }
}

/// Asks again until the condition holds.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < LIMIT, "{what}");
        std::thread::yield_now();
    }
}

fn refusal<T>(result: Result<T, exit::Failure>) -> exit::Failure {
    match result {
        Ok(_) => panic!("this should have been refused"),
        Err(failure) => failure,
    }
}

#[test]
fn what_is_asked_is_answered_and_the_loop_is_woken_for_it() {
    let running = Box::start(0);
    assert_eq!(running.client().status().unwrap().protected(), Protected::Yes);
    assert_eq!(running.wakes.load(Ordering::SeqCst), 1);
    let pong = running.client().ping().unwrap();
    assert_eq!(pong.pid, std::process::id());

    let flows = |filter: &str, limit| running.client().list(filter, limit);
    let all = flows("", 100).unwrap();
    assert_eq!((all.flows.len(), all.truncated), (5, false));
    assert_eq!(all.flows[0], flow(1), "what the loop says is passed on as it is");
    assert_eq!(flows("tcp from 10.0.0.2 port 2-3", 100).unwrap().flows.len(), 2);
    let cut = flows("", 3).unwrap();
    assert_eq!((cut.flows.len(), cut.truncated), (3, true));
    let wrong = refusal(flows("tcp form any", 1));
    assert_eq!(wrong.code, exit::NEGATIVE);
    assert!(wrong.message.contains("`form`") && wrong.message.contains("character 5"), "{wrong}");
}

/// An answer has a thousand flows and says where the rest begins; the client puts them
/// together, and each is there once.
#[test]
fn a_long_list_comes_in_pieces() {
    let running = Box::start_with(0, 2500);
    let client = running.client();
    let mut pieces = Vec::new();
    let take = |flows: Vec<_>| {
        pieces.push(flows.len());
        Ok(())
    };
    assert!(!client.flows("", 10_000, take).unwrap());
    assert_eq!(pieces, [1000, 1000, 500]);
    for (limit, truncated) in
        [(2499, true), (2500, false), (u32::MAX, false), (1000, true), (1700, true)]
    {
        let list = client.list("", limit).unwrap();
        let ports: Vec<u32> = list.flows.iter().map(|flow| flow.source_port().into()).collect();
        assert_eq!(ports, (1..=limit.min(2500)).collect::<Vec<_>>());
        assert_eq!(list.truncated, truncated, "{limit}");
    }
    let some = client.list("from 10.0.0.2 port 900-2100", u32::MAX).unwrap();
    assert_eq!(some.flows.len(), 1201);
    let ByHand { runtime, mut api, .. } = running.by_hand();
    for after in [vec![1 << 16, 0, 0, 0], vec![16, 1, 0]] {
        let wrong = runtime.block_on(async {
            let mut stream = api
                .list_flows(ListFlowsRequest { after, ..Default::default() })
                .await?
                .into_inner();
            stream.message().await
        });
        let wrong = wrong.unwrap_err();
        assert!(
            wrong.code() == tonic::Code::InvalidArgument && wrong.message().contains("`after`"),
            "{wrong}"
        );
    }
}

/// Clients that ask for a long list and do not read it take every seat, for some seconds;
/// the loop is asked for a piece or two of each list, and then others are answered again.
#[test]
fn clients_that_do_not_read_are_given_up() {
    let running = Box::start_with(0, 60_000);
    let mut stuck: Vec<ByHand> = (0..MAX_CLIENTS).map(|_| running.by_hand()).collect();
    let streams: Vec<_> = stuck
        .iter_mut()
        .map(|ByHand { runtime, api, .. }| {
            let request = ListFlowsRequest { limit: 1_000_000, ..Default::default() };
            runtime.block_on(api.list_flows(request)).expect("there is a seat")
        })
        .collect();
    let refused = refusal(running.client().ping());
    assert!(
        refused.code == exit::NEGATIVE && refused.message == "too many calls at a time: try again",
        "{refused}"
    );
    until("others are answered again", || running.client().ping().is_ok());
    let asked = running.wakes.load(Ordering::SeqCst);
    assert!(asked < 60_000 / 300 * MAX_CLIENTS as u32 / 4, "the loop was asked {asked} times");
    drop((streams, stuck));
}

#[test]
fn the_socket_is_its_owners_only_and_goes_with_the_box() {
    let mut running = Box::start(0);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let directory = running.path.parent().unwrap().to_owned();
    assert_eq!((mode(&running.path), mode(&directory)), (0o600, 0o700));
    let mut there: Vec<_> =
        std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    there.sort();
    assert_eq!(there, ["box.sock", "box.sock.lock"], "nothing else is there");
    assert_eq!(mode(&directory.join("box.sock.lock")), 0o600);
    let client = running.client();
    drop(running.server.take());
    assert!(!directory.exists(), "what it made is gone");
    let gone = refusal(client.ping());
    assert_eq!(gone.code, exit::UNAVAILABLE);
}

/// The socket's whole directory is removed under a box. At the next look the socket is
/// made again, and this is reported once. A second box is refused before and after. A
/// file in the socket's place is left alone, and reported once.
#[test]
fn a_removed_socket_is_made_again_and_its_name_stays_taken() {
    let mut running = Box::start(0);
    let directory = running.path.parent().unwrap().to_owned();
    let path = running.path.clone();
    let second =
        || refusal(control::listen_and_stop(&path, channel().0, Arc::new(|| {}), Arc::new(|| {})));
    let look = |running: &mut Box| running.server.as_mut().unwrap().look();
    assert_eq!(look(&mut running), None);
    std::fs::remove_file(&path).unwrap();
    assert!(second().message.contains("running already"), "without its socket");
    assert!(look(&mut running).unwrap().contains("it is there again"));
    assert_eq!(look(&mut running), None);
    assert_eq!(running.client().status().unwrap().protected(), Protected::Yes);

    std::fs::remove_dir_all(&directory).unwrap();
    assert!(look(&mut running).unwrap().contains("it is there again"));
    assert_eq!(running.client().status().unwrap().protected(), Protected::Yes);
    assert!(second().message.contains("running already"), "with a new lock");

    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "somebody's file").unwrap();
    assert!(look(&mut running).unwrap().contains("another file"));
    assert_eq!(look(&mut running), None);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "somebody's file");
    std::fs::remove_file(&path).unwrap();
    assert!(look(&mut running).unwrap().contains("it is there again"));
    drop(running.server.take());
    assert!(!directory.exists(), "what it made is gone");
}

/// Another box gets the lock between two looks. The first box reports that box's process,
/// and does not take the socket back.
#[test]
fn a_name_that_another_box_has_got_is_left_to_it() {
    let mut running = Box::start(0);
    let path = running.path.clone();
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(path.with_extension("sock.lock")).unwrap();
    let other = control::listen_and_stop(&path, channel().0, Arc::new(|| {}), Arc::new(|| {}));
    let other = other.unwrap_or_else(|failure| panic!("{failure}"));
    let news = running.server.as_mut().unwrap().look().unwrap();
    assert!(
        news.contains(&format!("taken by another box, process {}", std::process::id())),
        "{news}"
    );
    drop(running.server.take());
    assert!(path.exists() && path.with_extension("sock.lock").exists(), "they are the other one's");
    drop(other);
}

#[test]
fn a_box_does_not_remove_another_ones_socket() {
    let mut running = Box::start(0);
    std::fs::remove_file(&running.path).unwrap();
    let other = UnixListener::bind(&running.path).unwrap();
    drop(running.server.take());
    assert!(running.path.exists());
    drop(other);
}

#[test]
fn a_socket_that_a_killed_box_left_is_replaced_and_one_in_use_is_not() {
    let scratch = Scratch::new();
    let path = scratch.0.join("box.sock");
    let listen = || control::listen_and_stop(&path, channel().0, Arc::new(|| {}), Arc::new(|| {}));
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "nobody listens there");
    let first = listen().unwrap_or_else(|failure| panic!("{failure}"));
    let second = refusal(listen());
    assert_eq!(second.code, exit::UNAVAILABLE);
    let holder =
        format!("running already with this control socket: process {}", std::process::id());
    assert!(second.message.contains(&holder), "{second}");
    drop(first);

    std::fs::write(&path, "somebody's file").unwrap();
    let refused = refusal(listen());
    assert!(refused.message.contains("not a socket"), "{refused}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "somebody's file");

    let long = scratch.0.join("x".repeat(120));
    let refused =
        refusal(control::listen_and_stop(&long, channel().0, Arc::new(|| {}), Arc::new(|| {})));
    assert!(refused.message.contains("at most 107 bytes"), "{refused}");
}

/// A client that does not speak the protocol is shut out, however much it sends; nothing
/// of it reaches the loop.
#[test]
fn garbage_is_shut_out() {
    let running = Box::start(0);
    let endless = vec![b'x'; 1 << 20];
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let frames = [&preface[..], &[0xff; 4096]].concat();
    // A stream's headers, which cannot be read.
    let headers = [
        &preface[..],
        &[0, 0, 0, 4, 0, 0, 0, 0, 0],
        &[0, 0, 4, 1, 4, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff],
    ]
    .concat();
    let no_http: &[u8] = b"{\"version\":1,\"request\":\"status\"}\n";
    for bytes in
        [&b""[..], b"\n", no_http, b"GET / HTTP/1.1\r\n\r\n", &endless, preface, &frames, &headers]
    {
        let mut stream = running.connect();
        // A box that has read enough may close while more is written.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let end = stream.read_to_end(&mut Vec::new());
        let came_in_time =
            end.err().is_none_or(|error| error.kind() != std::io::ErrorKind::WouldBlock);
        assert!(came_in_time, "{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(20)]));
    }
    assert_eq!(running.wakes.load(Ordering::SeqCst), 0, "nothing of it reached the loop");
    assert_eq!(running.client().status().unwrap().protected(), Protected::Yes);
}

/// Calls that the box does not have, and messages that cannot be decoded, are refused;
/// the connection goes on.
#[test]
fn what_is_no_call_is_refused() {
    let running = Box::start(0);
    let ByHand { runtime, api: _, channel } = running.by_hand();
    let mut grpc = tonic::client::Grpc::new(channel);
    // The first field of a list's request is text.
    let number = PingReply { pid: 5, ..PingReply::default() };
    for (call, code) in [
        ("/holdfast.control.v1.Control/ListFlows", tonic::Code::Internal),
        ("/holdfast.control.v1.Control/Dance", tonic::Code::Unimplemented),
        ("/other.Service/Ping", tonic::Code::Unimplemented),
    ] {
        let codec = tonic_prost::ProstCodec::<PingReply, Progress>::default();
        let refused = runtime.block_on(async {
            grpc.ready().await.expect("the connection goes on");
            grpc.unary(tonic::Request::new(number), call.parse().unwrap(), codec).await
        });
        assert_eq!(refused.unwrap_err().code(), code, "{call}");
    }
    assert_eq!(running.wakes.load(Ordering::SeqCst), 0, "nothing of it reached the loop");
}

/// Selectors of flows and packets name ports of the box as rules do; its processes are
/// told their numbers.
#[test]
fn ports_are_named_in_selectors() {
    let running = Box::start(0);
    running.client().list("tcp on x", 9).unwrap();
    let refused = refusal(running.client().list("tcp on y", 9));
    let expected = "`tcp on y`, at character 8: unknown port or zone `y`, expected one of `x`; did you mean `x`?";
    assert_eq!((refused.code, refused.message.as_str()), (exit::NEGATIVE, expected));
    let request =
        MigrateRequest { from: 16, to: Some(17), limit: Some(1), filter: "udp on x".to_owned() };
    let done = running.client().migrate(request).and_then(|work| work.watch(|_| {})).unwrap();
    assert_eq!(done.moved, 1);
    let selector = "udp on #0 from any to any".to_owned();
    assert_eq!(
        running.changes.try_recv(),
        Ok(Order::Move { from: NodeId::new(16), to: Some(NodeId::new(17)), limit: 1, selector })
    );
}

#[test]
fn clients_that_say_nothing_take_their_places_and_no_more() {
    let running = Box::start(0);
    let idle: Vec<UnixStream> = (0..MAX_CONNECTIONS).map(|_| running.connect()).collect();
    let refused = refusal(running.client().status());
    assert!(
        refused.code == exit::UNAVAILABLE && refused.message.contains("too many clients"),
        "{refused}"
    );
    drop(idle);
    until("the places are free again", || running.client().status().is_ok());
}

#[test]
fn many_clients_at_a_time_get_each_its_own_answer() {
    let running = Box::start(0);
    std::thread::scope(|scope| {
        for number in 0..8u32 {
            let client = running.client();
            scope.spawn(move || {
                for turn in 0..25 {
                    let limit = 1 + (number + turn) % 5;
                    let list = client.list("", limit).unwrap_or_else(|failure| panic!("{failure}"));
                    assert_eq!(list.flows.len(), limit as usize);
                }
            });
        }
    });
}

#[test]
fn a_trace_comes_step_by_step_and_says_when_it_is_over() {
    let running = Box::start(3);
    let mut steps = Vec::new();
    let take = |step: &TraceStep| {
        steps.push(step.packet);
        Ok(())
    };
    let seen = running.client().trace("tcp".to_owned(), 3, LIMIT, take).unwrap();
    assert_eq!((seen, steps), (3, vec![0, 1, 2]));
    assert_eq!(
        running.traces.try_iter().collect::<Vec<_>>(),
        [3, 0],
        "the loop is told when nobody looks any more"
    );
    let none =
        Box::start(0).client().trace(String::new(), 1, Duration::from_millis(10), |_| Ok(()));
    assert_eq!(none.unwrap(), 0, "without packets the time ends it");
}

/// The effect of new rules on flows, as the table has it.
const NEW: &str = "for flows that begin from now on";

/// Another set of rules is tried first, then applied, then applied again. The loop is
/// told once, and every answer says what it means.
#[test]
fn rules_are_applied_once_and_a_trial_applies_nothing() {
    let running = Box::start(0);
    let text =
        CONFIGURATION.replace("[{ chain: c }]", "[{ chain: c }, { from: 10.0.0.0/8, chain: d }]");
    let apply = |dry_run| match running
        .client()
        .apply("new.yaml".to_owned(), text.clone(), dry_run)
        .unwrap()
    {
        Reply::Applied(applied) => applied,
        Reply::Refused(refused) => panic!("{refused:?}"),
    };
    let added =
        vec![Rule { selector: "any from 10.0.0.0/8 to any".to_owned(), chain: "d".to_owned() }];
    let applied = |dry_run, now| {
        let rules = Some(RuleChanges {
            before: 1,
            now,
            added: added.clone(),
            removed: Vec::new(),
            flows: NEW.to_owned(),
        });
        Applied { dry_run, changed: true, rules }
    };
    assert_eq!(apply(true), applied(true, 1));
    assert!(running.applied.try_recv().is_err(), "nothing was applied");
    assert_eq!(apply(false), applied(false, 2));
    let (rules, from) = running.applied.try_recv().expect("it was applied");
    // The most specific first.
    assert_eq!(
        (rules, from),
        (
            vec!["any from 10.0.0.0/8 to any".to_owned(), "any from any to any".to_owned()],
            text.clone()
        )
    );
    let again = apply(false);
    assert_eq!((again.changed, again.rules.map(|rules| rules.now)), (false, Some(2)));
    assert!(running.applied.try_recv().is_err(), "there was nothing to apply");
}

/// Rules that are right come together with a port that is not the box's. All differences
/// are named, and the rules stay as they are. A file that is wrong in itself changes
/// nothing either.
#[test]
fn what_cannot_be_applied_is_refused_as_a_whole() {
    let running = Box::start(0);
    let apply = |text: String, dry_run| match running
        .client()
        .apply("new.yaml".to_owned(), text, dry_run)
        .unwrap()
    {
        Reply::Refused(refused) => refused,
        Reply::Applied(applied) => panic!("{applied:?}"),
    };
    let text = CONFIGURATION
        .replace("chain: c }]", "chain: d }]")
        .replace("device: d", "device: e")
        .replace("cluster: a", "cluster: b");
    let refused = apply(text.clone(), false);
    assert!(
        refused
            .error
            .starts_with("new.yaml: a running box cannot be changed like this, and nothing was changed\nnew.yaml:1:10: "),
        "{refused:?}"
    );
    let expected = "new.yaml:2:23: `ports.x.device` is `d` in the running box and `e` here";
    assert!(refused.error.contains(expected), "{refused:?}");
    let places = apply(text, true).refused;
    assert_eq!(
        places.iter().map(|place| (place.line, place.column)).collect::<Vec<_>>(),
        [(1, 10), (2, 23)]
    );
    let holdfast_control::api::Mistake { path, kind, flows, .. } = &places[1];
    assert_eq!(
        [path, kind, flows],
        ["ports.x.device", "restart", "packets come and go another way"]
    );
    let wrong = apply(CONFIGURATION.replace("forward", "foward"), false);
    assert!(wrong.error.contains("did you mean `forward`?"), "{wrong:?}");
    assert!(running.applied.try_recv().is_err());
}

/// A configuration of some megabytes is one long message. A message longer than any
/// configuration is refused.
#[test]
fn a_long_configuration_is_read() {
    let running = Box::start(0);
    let text = |remarks: usize| {
        format!(
            "{}{}",
            "# a remark\n".repeat(remarks),
            CONFIGURATION.replace("chain: c }]", "chain: d }]")
        )
    };
    let apply = |text: String| running.client().apply("new.yaml".to_owned(), text, false);
    assert!(matches!(apply(text(300_000)), Ok(Reply::Applied(_))));
    assert!(running.applied.try_recv().is_ok());
    let refused = refusal(apply(text(400_000)));
    assert!(refused.code == exit::NEGATIVE && refused.message.contains("too large"), "{refused}");
}

#[test]
fn one_trace_at_a_time_and_it_ends_with_its_client() {
    let running = Box::start(0);
    let mut first = running.by_hand();
    let request = TraceRequest { count: 5, wait_ms: 60_000, ..Default::default() };
    let followed = first.runtime.block_on(first.api.trace(request)).unwrap();
    assert_eq!(running.traces.recv_timeout(LIMIT), Ok(5));
    let second = || running.client().trace(String::new(), 1, Duration::from_millis(1), |_| Ok(()));
    assert!(refusal(second()).message.contains("another trace"));
    drop((followed, first));
    assert_eq!(running.traces.recv_timeout(LIMIT), Ok(0));
    until("the next trace may begin", || second().is_ok());
}

/// A box that drains many flows is too busy to confirm the start in time, and later to
/// report its progress. The client sends the drain once, and is told when the box
/// answers.
#[test]
fn who_watches_a_busy_box_waits() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let (requests, asked) = channel::<Request>();
    let server = control::listen_and_stop(&path, requests, Arc::new(|| {}), Arc::new(|| {}))
        .unwrap_or_else(|f| panic!("{f}"));
    let unknown = || Some(Err("nobody has drained that runtime"));
    let answers =
        [None, unknown(), Some(Ok(progress(1, false))), None, Some(Ok(progress(600_000, true)))];
    let answering = std::thread::spawn(move || {
        let mut answers = answers.into_iter();
        let mut orders = Vec::new();
        for asked in asked {
            match asked {
                // A dropped question is answered as one that took too long.
                Request::Order(order, _) => orders.push(order),
                Request::Progress(work, answer) => {
                    assert_eq!(work, Work::Draining(NodeId::new(16)));
                    match answers.next() {
                        Some(Some(Ok(progress))) => answer.give(progress),
                        Some(Some(Err(why))) => answer.refuse(why),
                        Some(None) => {}
                        None => panic!("it was done"),
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        orders
    });
    let client = Client::new(Some(&path)).unwrap_or_else(|f| panic!("{f}"));
    let mut seen = Vec::new();
    let done = client.drain(16, false).and_then(|work| work.watch(|now| seen.push(now.moved)));
    assert_eq!((done.map(|done| done.moved).ok(), seen), (Some(600_000), vec![1, 600_000]));
    drop(server);
    assert_eq!(
        answering.join().unwrap(),
        [Order::Drain { node: NodeId::new(16), force: false }],
        "it is asked for once"
    );
}

/// Clients that follow an order and take none of its news lose their seats after some
/// seconds.
#[test]
fn who_takes_no_news_of_an_order_loses_the_seat() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let (requests, asked) = channel::<Request>();
    let _server = control::listen_and_stop(&path, requests, Arc::new(|| {}), Arc::new(|| {}))
        .unwrap_or_else(|f| panic!("{f}"));
    std::thread::spawn(move || {
        for (moved, asked) in (1..).zip(asked) {
            match asked {
                Request::Ping(answer) => answer.give(PingReply::default()),
                Request::Order(_, answer) => answer.give(7),
                Request::Progress(_, answer) => answer.give(progress(moved, false)),
                other => panic!("{other:?}"),
            }
        }
    });
    // Room for a few messages only.
    let endpoint = || Endpoint::from_static("http://box").initial_stream_window_size(100);
    let mut stuck: Vec<ByHand> = (0..MAX_CLIENTS).map(|_| ByHand::new(&path, endpoint())).collect();
    let request = MigrateRequest { from: 16, ..MigrateRequest::default() };
    let follow = |ByHand { runtime, api, .. }: &mut ByHand| {
        runtime.block_on(api.migrate(request.clone())).expect("there is a seat")
    };
    let streams: Vec<_> = stuck.iter_mut().map(follow).collect();
    let client = Client::new(Some(&path)).unwrap_or_else(|f| panic!("{f}"));
    let refused = refusal(client.ping());
    assert_eq!(refused.message, "too many calls at a time: try again");
    until("others are answered again", || client.ping().is_ok());
    drop((streams, stuck));
}

#[test]
fn stop_is_answered_then_done() {
    let running = Box::start(0);
    assert_eq!(running.client().stop().unwrap(), std::process::id());
    until("the box is told", || {
        running.stops.load(Ordering::SeqCst) == 1 && running.wakes.load(Ordering::SeqCst) == 1
    });
}

#[test]
fn a_box_whose_loop_has_ended_says_so() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let (requests, asked) = channel();
    let _server = control::listen_and_stop(&path, requests, Arc::new(|| {}), Arc::new(|| {}))
        .unwrap_or_else(|f| panic!("{f}"));
    drop(asked);
    let refused = refusal(Client::new(Some(&path)).unwrap_or_else(|f| panic!("{f}")).status());
    assert!(refused.message.contains("stopping"), "{refused}");
}

#[test]
fn a_box_that_does_not_speak_the_protocol_is_unavailable() {
    let scratch = Scratch::new();
    let path = scratch.0.join("odd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let odd = std::thread::spawn(move || {
        for said in ["no HTTP/2\n", ""] {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(said.as_bytes()).unwrap();
        }
    });
    for _ in 0..2 {
        let failure = refusal(Client::new(Some(&path)).unwrap_or_else(|f| panic!("{f}")).status());
        assert_eq!(failure.code, exit::UNAVAILABLE, "{failure}");
    }
    odd.join().unwrap();
}
