//! The control socket against clients that behave and clients that do not. The packet loop is a thread that answers from a script.

use holdfast::control::{self, Asked, MAX_CLIENTS, Request, Server};
use holdfast_control::exit;
use holdfast_control::{Call, Client, MAX_REQUEST};
use holdfast_node::message::Control;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(10);

/// What the box runs.
const CONFIGURATION: &str = "cluster: a\nports: { x: { device: d, address: 10.0.0.1/24 } }\nchains: { c: { functions: [forward] }, d: { functions: [forward] } }\nrules: [{ chain: c }]\n";

/// A directory of the test's own, gone with it.
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
    /// The rules that the loop was told to go by, in words, with the text that they are from.
    applied: Receiver<(Vec<String>, String)>,
    path: PathBuf,
    // Dropped last.
    _scratch: Scratch,
}

fn flow(port: u16) -> Value {
    json!({ "protocol": 6, "source": format!("10.0.0.2:{port}"), "destination": "203.0.113.10:80",
        "translated_source": format!("198.51.100.4:{port}"), "translated_destination": "198.51.100.11:80", "chain": "web",
        "state": "established", "owner": 16, "replica": 17, "epoch": 1, "age_ms": 5, "packets": [1, 2], "bytes": [3, 4] })
}

impl Box {
    /// `steps` is what each trace yields, once.
    fn start(steps: usize) -> Box {
        Box::start_with(steps, 5)
    }

    /// With so many flows.
    fn start_with(steps: usize, flows: u32) -> Box {
        let scratch = Scratch::new();
        let path = scratch.socket();
        let (requests, asked) = channel::<Asked>();
        let (wakes, stops) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (traced, traces) = channel();
        let (applying, applied) = channel();
        let count = |counter: &Arc<AtomicU32>| {
            let counter = counter.clone();
            Arc::new(move || {
                counter.fetch_add(1, Ordering::SeqCst);
            })
        };
        let server = control::listen_and_stop(&path, requests, count(&wakes), count(&stops));
        let server = server.unwrap_or_else(|failure| panic!("{failure}"));
        // Ends when the server and its clients' threads have.
        std::thread::spawn(move || {
            let mut pending = Vec::new();
            let (mut version, mut running) = (1, CONFIGURATION.to_owned());
            for asked in asked {
                let answer = match asked.request {
                    Request::Change(call) => serde_json::json!({ "version": 1, "asked": call }),
                    Request::Ping => json!({ "version": 1 }),
                    Request::Status => json!({ "version": 1, "protected": "yes", "processes": [] }),
                    Request::Flows { limit, at, .. } => {
                        // As from a table of which some is walked at a time.
                        let first = at.map_or(0, |place| place.slot);
                        let end = flows.min(first + limit.min(300));
                        let next = (end < flows).then_some([16, 1, 0, end]);
                        json!({ "version": 1, "flows": (first..end).map(|number| flow(number as u16 + 1)).collect::<Vec<_>>(), "next": next })
                    }
                    Request::Trace { count, .. } => {
                        let _ = traced.send(count);
                        let packets = steps.min(count as usize);
                        // The last one is told of first.
                        let step = |packet| json!({ "packet": packet, "node": 1, "stage": 0, "place": "switch", "text": "seen" });
                        pending = (0..packets).rev().map(step).collect();
                        json!({ "version": 1 })
                    }
                    Request::Traces => {
                        let steps = std::mem::take(&mut pending);
                        let whole = if steps.is_empty() { u64::MAX } else { 0 };
                        json!({ "version": 1, "whole": whole, "steps": steps })
                    }
                    Request::Configuration => {
                        json!({ "version": 1, "file": "old.yaml", "text": running, "rules": version, "record": 2000 })
                    }
                    Request::Apply { based_on, text, rules, .. } => {
                        assert_eq!(based_on, version, "the loop is told what the rules were compared with");
                        version += 1;
                        running = text.to_string();
                        assert_eq!(rules.version(), version, "the set after the one that it is compared with");
                        let rules = rules.records().iter().flat_map(|record| match Control::decode(record) {
                            Ok(Control::Rules { rules, .. }) => rules,
                            other => panic!("{other:?}"),
                        });
                        let _ = applying.send((rules.map(|rule| rule.selector.to_string()).collect(), running.clone()));
                        json!({ "version": 1, "rules": version })
                    }
                };
                let _ = asked.answer.send(std::boxed::Box::new(|| answer));
            }
        });
        Box { server: Some(server), wakes, stops, traces, applied, path, _scratch: scratch }
    }

    fn client(&self) -> Client {
        Client::new(Some(&self.path)).unwrap_or_else(|failure| panic!("{failure}"))
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).expect("the box listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout can be set");
        stream
    }

    /// What the box answers to these bytes.
    fn raw(&self, bytes: &[u8]) -> Value {
        let mut stream = self.connect();
        // A box that has read enough may close while more is written.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        line(&mut BufReader::new(stream))
    }
}

fn line(reader: &mut BufReader<UnixStream>) -> Value {
    let mut line = String::new();
    reader.read_line(&mut line).expect("the box answers");
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

fn error(value: &Value) -> &str {
    assert_eq!(value["version"], 1);
    value["error"].as_str().unwrap_or_else(|| panic!("no error: {value}"))
}

/// Asks again until it is so.
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
    assert_eq!(running.client().ask(Call::Status).unwrap()["protected"], "yes");
    assert_eq!(running.wakes.load(Ordering::SeqCst), 1);
    let pong = running.client().ask(Call::Ping).unwrap();
    assert_eq!(pong["pid"], std::process::id());
    assert!(pong["answered_us"].is_u64());

    let flows = |filter: &str, limit| running.client().ask(Call::Flows { filter: filter.to_owned(), limit, after: None });
    let all = flows("", 100).unwrap();
    assert_eq!((all["flows"].as_array().unwrap().len(), &all["truncated"]), (5, &json!(false)));
    assert_eq!(all["flows"][0], flow(1), "what the loop says is passed on as it is");
    let some = flows("tcp from 10.0.0.2 port 2-3", 100).unwrap();
    assert_eq!(some["flows"].as_array().unwrap().len(), 2);
    let cut = flows("", 3).unwrap();
    assert_eq!((cut["flows"].as_array().unwrap().len(), &cut["truncated"]), (3, &json!(true)));
    let wrong = refusal(flows("tcp form any", 1));
    assert_eq!(wrong.code, exit::NEGATIVE);
    assert!(wrong.message.contains("`form`") && wrong.message.contains("character 5"), "{wrong}");
}

/// An answer has a thousand flows and says where the rest begins; the client puts them together, and each is there once.
#[test]
fn a_long_list_comes_in_pieces() {
    let running = Box::start_with(0, 2500);
    let client = running.client();
    let first = client.ask(Call::Flows { filter: String::new(), limit: 10_000, after: None }).unwrap();
    assert_eq!((first["flows"].as_array().unwrap().len(), &first["truncated"]), (1000, &json!(true)));
    let after = serde_json::from_value(first["next"].clone()).unwrap();
    let second = client.ask(Call::Flows { filter: String::new(), limit: 10_000, after }).unwrap();
    assert_eq!(second["flows"][0], flow(1001));
    for (limit, truncated) in [(2499, true), (2500, false), (u32::MAX, false), (1000, true), (1700, true)] {
        let list = client.list("", limit).unwrap();
        let ports: Vec<u32> = list.flows.iter().map(|flow| flow.source.port().into()).collect();
        assert_eq!(ports, (1..=limit.min(2500)).collect::<Vec<_>>());
        assert_eq!(list.truncated, truncated, "{limit}");
    }
    let some = client.list("from 10.0.0.2 port 900-2100", u32::MAX).unwrap();
    assert_eq!(some.flows.len(), 1201);
    let wrong = refusal(client.ask(Call::Flows { filter: String::new(), limit: 1, after: Some([1 << 16, 0, 0, 0]) }));
    assert!(wrong.message.contains("`after`"), "{wrong}");
}

/// A client that asks for a long list and hardly reads has a piece of it, and that for some seconds; others are answered.
#[test]
fn a_client_that_hardly_reads_is_given_up() {
    let running = Box::start_with(0, 60_000);
    let mut slow = running.connect();
    writeln!(slow, r#"{{"version":1,"request":{{"flows":{{"limit":1000000}}}}}}"#).unwrap();
    // Ten kilobytes a second: enough that no single write takes long, and not enough for the answer.
    let mut last = Instant::now();
    until("the box has closed the connection", || {
        if last.elapsed() < Duration::from_millis(50) {
            return false;
        }
        last = Instant::now();
        assert!(running.client().ask(Call::Ping).is_ok());
        let _ = slow.read(&mut [0; 500]);
        slow.write(b" ").is_err()
    });
}

#[test]
fn the_socket_is_its_owners_only_and_goes_with_the_box() {
    let mut running = Box::start(0);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let directory = running.path.parent().unwrap().to_owned();
    assert_eq!((mode(&running.path), mode(&directory)), (0o600, 0o700));
    let mut there: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    there.sort();
    assert_eq!(there, ["box.sock", "box.sock.lock"], "nothing else is there");
    assert_eq!(mode(&directory.join("box.sock.lock")), 0o600);
    let client = running.client();
    drop(running.server.take());
    assert!(!directory.exists(), "what it made is gone");
    let gone = refusal(client.ask(Call::Ping));
    assert_eq!(gone.code, exit::UNAVAILABLE);
}

/// The socket's whole directory is removed under a box: at the next look it is there again, said once; a second box is refused before and after. A
/// file in its place is left alone, said once.
#[test]
fn a_removed_socket_is_made_again_and_its_name_stays_taken() {
    let mut running = Box::start(0);
    let directory = running.path.parent().unwrap().to_owned();
    let path = running.path.clone();
    let second = || refusal(control::listen_and_stop(&path, channel().0, Arc::new(|| {}), Arc::new(|| {})));
    let look = |running: &mut Box| running.server.as_mut().unwrap().look();
    assert_eq!(look(&mut running), None);
    std::fs::remove_file(&path).unwrap();
    assert!(second().message.contains("running already"), "without its socket");
    assert!(look(&mut running).unwrap().contains("it is there again"));
    assert_eq!(look(&mut running), None);
    assert_eq!(running.client().ask(Call::Status).unwrap()["protected"], "yes");

    std::fs::remove_dir_all(&directory).unwrap();
    assert!(look(&mut running).unwrap().contains("it is there again"));
    assert_eq!(running.client().ask(Call::Status).unwrap()["protected"], "yes");
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

/// Another box gets the lock while nobody looks: the first one says who it is, and does not take the socket back.
#[test]
fn a_name_that_another_box_has_got_is_left_to_it() {
    let mut running = Box::start(0);
    let path = running.path.clone();
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(path.with_extension("sock.lock")).unwrap();
    let other = control::listen_and_stop(&path, channel().0, Arc::new(|| {}), Arc::new(|| {}));
    let other = other.unwrap_or_else(|failure| panic!("{failure}"));
    let news = running.server.as_mut().unwrap().look().unwrap();
    assert!(news.contains(&format!("taken by another box, process {}", std::process::id())), "{news}");
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
    let holder = format!("running already with this control socket: process {}", std::process::id());
    assert!(second.message.contains(&holder), "{second}");
    drop(first);

    std::fs::write(&path, "somebody's file").unwrap();
    let refused = refusal(listen());
    assert!(refused.message.contains("not a socket"), "{refused}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "somebody's file");

    let long = scratch.0.join("x".repeat(120));
    let refused = refusal(control::listen_and_stop(&long, channel().0, Arc::new(|| {}), Arc::new(|| {})));
    assert!(refused.message.contains("at most 107 bytes"), "{refused}");
}

#[test]
fn garbage_is_refused_with_what_is_wrong() {
    let running = Box::start(0);
    for (bytes, expected) in [
        (&b""[..], "not a request"),
        (b"\n", "not a request"),
        (b"hello\n", "not a request"),
        (b"\xff\xfe\x00\n", "not a request"),
        (b"[1,2]\n", "no `version`"),
        (b"{\"request\":\"status\"}\n", "no `version`"),
        (b"{\"version\":99,\"request\":{\"dance\":{}}}\n", "version 99 is not understood"),
        (b"{\"version\":1,\"request\":\"dance\"}\n", "dance"),
        (b"{\"version\":1,\"request\":\"status\",\"more\":1}\n", "more"),
        (b"{\"version\":1,\"request\":{\"flows\":{\"limit\":-1}}}\n", "-1"),
        (b"{\"version\":1,\"request\":{\"trace\":{\"selector\":\"tpc\",\"count\":1,\"wait_ms\":1}}}\n", "tpc"),
    ] {
        let answer = running.raw(bytes);
        assert!(error(&answer).contains(expected), "{:?}: {answer}", String::from_utf8_lossy(bytes));
    }
    assert_eq!(running.wakes.load(Ordering::SeqCst), 0, "nothing of it reached the loop");
    let deep = format!("{}\n", "[".repeat(MAX_REQUEST - 1));
    assert!(error(&running.raw(deep.as_bytes())).contains("not a request"));
    // The end of what is sent ends a line too.
    assert_eq!(running.raw(br#"{"version":1,"request":"status"}"#)["protected"], "yes");
}

/// Selectors of flows and packets name ports of the box as rules do; its processes are told their numbers.
#[test]
fn ports_are_named_in_selectors() {
    let running = Box::start(0);
    let flows = |filter: &str| json!({ "version": 1, "request": { "flows": { "limit": 9, "filter": filter } } });
    let ask = |request: Value| running.raw(format!("{request}\n").as_bytes());
    assert_eq!(ask(flows("tcp on x")).get("error"), None);
    let refused = ask(flows("tcp on y"));
    assert_eq!(error(&refused), "`tcp on y`, at character 8: unknown port or zone `y`, expected one of `x`; did you mean `x`?");
    let moved = json!({ "from": 16, "to": 17, "limit": 1, "filter": "udp on x" });
    assert_eq!(
        ask(json!({ "version": 1, "request": { "move": moved } }))["asked"]["move"]["filter"],
        "udp on #0 from any to any"
    );
}

#[test]
fn a_request_without_end_is_cut_off() {
    let running = Box::start(0);
    let mut stream = running.connect();
    let piece = [b'x'; 4096];
    // It stops reading at its limit, so that writing fails sooner or later.
    let written = (0..1 << 14).take_while(|_| stream.write_all(&piece).is_ok()).count();
    assert!(written < 1 << 14, "{} MiB were taken", written >> 8);
    let mut left = Vec::new();
    let _ = stream.read_to_end(&mut left);
    assert_eq!(running.client().ask(Call::Status).unwrap()["protected"], "yes");
}

#[test]
fn clients_that_say_nothing_take_their_seats_and_no_more() {
    let running = Box::start(0);
    let idle: Vec<UnixStream> = (0..MAX_CLIENTS).map(|_| running.connect()).collect();
    let refused = line(&mut BufReader::new(running.connect()));
    assert!(error(&refused).contains("too many clients"));
    let refused = refusal(running.client().ask(Call::Status));
    assert!(refused.message.contains("too many clients"), "{refused}");
    drop(idle);
    until("the seats are free again", || running.client().ask(Call::Status).is_ok());
}

#[test]
fn a_client_that_stops_in_the_middle_of_a_line_keeps_nobody_waiting() {
    let running = Box::start(0);
    let mut half = running.connect();
    half.write_all(b"{\"version\":1,").unwrap();
    assert_eq!(running.client().ask(Call::Status).unwrap()["protected"], "yes");
    half.write_all(b"\"request\":\"status\"}\n").unwrap();
    assert_eq!(line(&mut BufReader::new(half))["protected"], "yes");
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
                    let answer = client.ask(Call::Flows { filter: String::new(), limit, after: None });
                    let flows = answer.unwrap_or_else(|failure| panic!("{failure}"));
                    assert_eq!(flows["flows"].as_array().unwrap().len(), limit as usize);
                }
            });
        }
    });
}

#[test]
fn a_trace_comes_step_by_step_and_says_when_it_is_over() {
    let running = Box::start(3);
    let mut steps = Vec::new();
    let take = |step: &Value| {
        steps.push(step["packet"].as_u64());
        Ok(())
    };
    let seen = running.client().trace("tcp".to_owned(), 3, LIMIT, take).unwrap();
    assert_eq!((seen, steps), (3, vec![Some(0), Some(1), Some(2)]));
    assert_eq!(running.traces.try_iter().collect::<Vec<_>>(), [3, 0], "the loop is told when nobody looks any more");
    let none = Box::start(0).client().trace(String::new(), 1, Duration::from_millis(10), |_| Ok(()));
    assert_eq!(none.unwrap(), 0, "without packets the time ends it");
}

/// Which flows the table says that rules count for.
const NEW: &str = "for flows that begin from now on";

/// Another set of rules, tried first and then applied, then applied again: the loop is told once, and every answer says what it means.
#[test]
fn rules_are_applied_once_and_a_trial_applies_nothing() {
    let running = Box::start(0);
    let text = CONFIGURATION.replace("[{ chain: c }]", "[{ chain: c }, { from: 10.0.0.0/8, chain: d }]");
    let apply = |dry_run| running.client().ask(Call::Apply { file: "new.yaml".to_owned(), text: text.clone(), dry_run }).unwrap();
    let added = json!([{ "selector": "any from 10.0.0.0/8 to any", "chain": "d" }]);
    let trial = apply(true);
    assert_eq!((&trial["changed"], &trial["dry_run"]), (&json!(true), &json!(true)));
    assert_eq!(trial["rules"], json!({ "before": 1, "now": 1, "added": added, "removed": [], "flows": NEW }));
    assert!(running.applied.try_recv().is_err(), "nothing was applied");
    assert_eq!(apply(false)["rules"], json!({ "before": 1, "now": 2, "added": added, "removed": [], "flows": NEW }));
    let (rules, from) = running.applied.try_recv().expect("it was applied");
    // The most specific first.
    assert_eq!((rules, from), (vec!["any from 10.0.0.0/8 to any".to_owned(), "any from any to any".to_owned()], text.clone()));
    let again = apply(false);
    assert_eq!((&again["changed"], &again["rules"]["now"]), (&json!(false), &json!(2)));
    assert!(running.applied.try_recv().is_err(), "there was nothing to apply");
}

/// Rules that are right together with a port that is not the box's: all differences are named, the code is 78, and the rules stay as they are. So with a
/// file that is wrong in itself.
#[test]
fn what_cannot_be_applied_is_refused_as_a_whole() {
    let running = Box::start(0);
    let apply = |text: String| running.client().ask(Call::Apply { file: "new.yaml".to_owned(), text, dry_run: false });
    let text =
        CONFIGURATION.replace("chain: c }]", "chain: d }]").replace("device: d", "device: e").replace("cluster: a", "cluster: b");
    let refused = refusal(apply(text.clone()));
    assert_eq!(refused.code, exit::CONFIGURATION);
    assert!(
        refused
            .message
            .starts_with("new.yaml: a running box cannot be changed like this, and nothing was changed\nnew.yaml:1:10: "),
        "{refused}"
    );
    assert!(refused.message.contains("new.yaml:2:23: `ports.x.device` is `d` in the running box and `e` here"), "{refused}");
    let answer = running.client().ask_for_either(Call::Apply { file: "new.yaml".to_owned(), text, dry_run: true }).unwrap();
    let places: Vec<_> = answer["refused"].as_array().unwrap().iter().map(|place| (&place["line"], &place["column"])).collect();
    assert_eq!(places, [(&json!(1), &json!(10)), (&json!(2), &json!(23))]);
    let row = ["path", "kind", "flows"].map(|key| &answer["refused"][1][key]);
    assert_eq!(row, ["ports.x.device", "restart", "packets come and go another way"]);
    let wrong = refusal(apply(CONFIGURATION.replace("forward", "foward")));
    assert!(wrong.code == exit::CONFIGURATION && wrong.message.contains("did you mean `forward`?"), "{wrong}");
    assert!(running.applied.try_recv().is_err());
}

/// A configuration of some megabytes is one long request; what is longer than a configuration can be is refused.
#[test]
fn a_long_configuration_is_read() {
    let running = Box::start(0);
    let text =
        |remarks: usize| format!("{}{}", "# a remark\n".repeat(remarks), CONFIGURATION.replace("chain: c }]", "chain: d }]"));
    let apply = |text: String| running.client().ask(Call::Apply { file: "new.yaml".to_owned(), text, dry_run: false });
    assert_eq!(apply(text(300_000)).unwrap()["rules"]["now"], 2);
    assert!(running.applied.try_recv().is_ok());
    let refused = refusal(apply(text(400_000)));
    assert!(refused.code == exit::CONFIGURATION && refused.message.contains("longer than 4 MiB"), "{refused}");
}

#[test]
fn one_trace_at_a_time_and_it_ends_with_its_client() {
    let running = Box::start(0);
    let mut first = running.connect();
    first.write_all(b"{\"version\":1,\"request\":{\"trace\":{\"count\":5,\"wait_ms\":60000}}}\n").unwrap();
    assert_eq!(running.traces.recv_timeout(LIMIT), Ok(5));
    let second = || running.client().trace(String::new(), 1, Duration::from_millis(1), |_| Ok(()));
    assert!(refusal(second()).message.contains("another trace"));
    drop(first);
    assert_eq!(running.traces.recv_timeout(LIMIT), Ok(0));
    until("the next trace may begin", || second().is_ok());
}

#[test]
fn stop_is_answered_then_done() {
    let running = Box::start(0);
    let answer = running.client().ask(Call::Stop).unwrap();
    assert_eq!((&answer["stopping"], &answer["pid"]), (&json!(true), &json!(std::process::id())));
    until("the box is told", || running.stops.load(Ordering::SeqCst) == 1 && running.wakes.load(Ordering::SeqCst) == 1);
}

#[test]
fn a_box_whose_loop_has_ended_says_so() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let (requests, asked) = channel();
    let _server = control::listen_and_stop(&path, requests, Arc::new(|| {}), Arc::new(|| {})).unwrap_or_else(|f| panic!("{f}"));
    drop(asked);
    let refused = refusal(Client::new(Some(&path)).unwrap_or_else(|f| panic!("{f}")).ask(Call::Status));
    assert!(refused.message.contains("stopping"), "{refused}");
}

#[test]
fn a_box_that_does_not_speak_the_protocol_is_unavailable() {
    let scratch = Scratch::new();
    let path = scratch.0.join("odd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let odd = std::thread::spawn(move || {
        for said in ["no JSON\n", ""] {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(said.as_bytes()).unwrap();
        }
    });
    for _ in 0..2 {
        let failure = refusal(Client::new(Some(&path)).unwrap_or_else(|f| panic!("{f}")).ask(Call::Status));
        assert_eq!(failure.code, exit::UNAVAILABLE, "{failure}");
    }
    odd.join().unwrap();
}
