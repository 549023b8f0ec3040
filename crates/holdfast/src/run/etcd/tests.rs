//! Tests with a real etcd, one for each test.

use super::api::{KeyValue, RangeResponse};
use super::client::{Client, cause, delete, put};
use super::log::EtcdStore;
use super::*;
use crate::config::Etcd;
use crate::run::store::LogStore;
use holdfast_lab::etcd::{Certificates, Etcd as Server};
use holdfast_lab::{Interrupt, until};
use holdfast_node::channel::FabricConfig;
use holdfast_node::coordinator::{
    ClusterConfig, Coordinator, CoordinatorConfig, HostsConfig, LogRecord,
};
use holdfast_protection::Peer;
use holdfast_wire::NodeId;
use proptest::prelude::*;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use tempfile::TempDir;
use tonic::Status;

const TIMEOUT: Duration = Duration::from_secs(30);
/// The shortest lease that etcd gives.
const LEASE: Duration = Duration::from_secs(2);

struct World {
    server: Server,
    config: Etcd,
    _home: TempDir,
}

fn wait<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    until(what, limit, &Interrupt::default(), || Ok(look())).unwrap()
}

fn config(endpoint: &str, lease: Duration) -> Etcd {
    let port = endpoint.rsplit(':').next().unwrap().parse().unwrap();
    let endpoint =
        crate::config::Endpoint { text: endpoint.to_owned(), host: "127.0.0.1".to_owned(), port };
    let lease_ms = lease.as_millis() as u64;
    Etcd {
        endpoints: vec![endpoint],
        prefix: "/holdfast/test".to_owned(),
        ca: None,
        certificate: None,
        lease_ms,
    }
}

/// A candidate that is always wanted.
fn wanted(config: Etcd, box_number: u64) -> Candidacy {
    let candidate = Candidacy::begin(config, "here", box_number).unwrap();
    candidate.want(Duration::MAX, false);
    candidate
}

fn client(config: Etcd) -> Client {
    Client::new(CAMPAIGN, Arc::new(config), None, Arc::new(Contact::new().unwrap())).unwrap()
}

impl World {
    fn new(lease: Duration) -> World {
        let home = tempfile::tempdir().unwrap();
        let server = Server::start(home.path(), None, None, &Interrupt::default()).unwrap();
        let config = config(&server.endpoint(), lease);
        let world = World { server, config, _home: home };
        // A member listens before it has elected itself.
        let mut client = world.client();
        wait("etcd answers", TIMEOUT, || client.range("/", None, 1, 0).ok());
        world
    }

    fn candidate(&self, box_number: u64) -> Candidacy {
        wanted(self.config.clone(), box_number)
    }

    /// A client beside all others, and more patient.
    fn client(&self) -> Client {
        client(Etcd { lease_ms: 60_000, ..self.config.clone() })
    }

    fn put(&self, name: &str, value: &[u8]) {
        let mut client = self.client();
        let key = client.key(name);
        client.transaction(Vec::new(), vec![put(&key, value, 0)], Vec::new()).unwrap();
    }

    fn log(&self) -> Vec<Vec<u8>> {
        log::read(&mut self.client()).unwrap().unwrap()
    }
}

fn elected(candidate: &Candidacy) -> election::Leadership {
    wait("it is elected", TIMEOUT, || candidate.poll())
}

fn record(number: u64, len: usize, replaces: bool) -> LogRecord {
    LogRecord {
        number,
        bytes: (0..len).map(|at| (at as u64 * 31 + number) as u8).collect(),
        replaces,
    }
}

fn keep(store: &mut EtcdStore, records: Vec<LogRecord>) {
    store.keep(records).unwrap();
    wait("it is kept", TIMEOUT, || store.is_kept().unwrap().then_some(()));
}

/// A leader keeps records short and long, more than a transaction takes and longer than
/// one may be. A snapshot replaces all records before it. Its successors find the kept
/// records, in order, and continue.
#[test]
fn what_is_kept_is_there_for_the_next_leader() {
    let world = World::new(LEASE);
    let first = world.candidate(1);
    let mut leadership = elected(&first);
    assert_eq!((leadership.incarnation, leadership.records.as_deref()), (1, Ok(&[][..])));
    let mut all: Vec<LogRecord> = vec![record(0, 500, true)];
    all.extend((1..200).map(|number| record(number, 40, false)));
    all.extend([record(200, 0, false), record(201, 2 << 20, false), record(202, 1, false)]);
    keep(&mut leadership.store, all[..3].to_vec());
    keep(&mut leadership.store, all[3..].to_vec());
    let bytes = |records: &[LogRecord]| {
        records.iter().map(|record| record.bytes.clone()).collect::<Vec<_>>()
    };
    assert!(world.log() == bytes(&all));
    drop((leadership, first));

    let second = world.candidate(2);
    let mut leadership = elected(&second);
    assert_eq!(leadership.incarnation, 2);
    assert!(leadership.records == Ok(bytes(&all)));
    // Numbers begin again with a box that begins anew.
    let anew = [record(0, 3 << 20, true), record(1, 7, false)];
    keep(&mut leadership.store, anew[..1].to_vec());
    assert!(world.log() == bytes(&anew[..1]));
    keep(&mut leadership.store, anew[1..].to_vec());
    drop((leadership, second));
    let third = world.candidate(1);
    assert!(elected(&third).records == Ok(bytes(&anew)));
}

/// A leader's lease ends while it believes to lead. Its next write is refused and leaves
/// nothing behind, it learns so, and by then another leads.
#[test]
fn a_leader_that_is_none_any_more_cannot_write() {
    let world = World::new(LEASE);
    let old = world.candidate(1);
    let mut leadership = elected(&old);
    keep(&mut leadership.store, vec![record(0, 10, true)]);
    let mut client = world.client();
    let key = client.key("leader");
    let found = client.range(&key, None, 1, 0).unwrap().kvs.remove(0);
    client.revoke(found.lease).unwrap();
    // The write comes before its keeper has noticed, or after.
    let _ = leadership.store.keep(vec![record(1, 10, false)]);
    wait("it hears that it is over", LEASE, || leadership.store.is_kept().err());
    assert!(old.contact().is_over() && !old.contact().leads());
    let new = world.candidate(2);
    assert_eq!(elected(&new).records, Ok(vec![record(0, 10, true).bytes]));
    // The old leader's request comes late.
    let mut position = 1;
    let step = &log::steps(&[record(1, 10, false)], 1, &mut position)[0];
    assert_eq!(
        log::write(&mut client, found.create_revision, step, &log::place(1, 1), &log::place(1, 2)),
        Ok(false)
    );
    assert_eq!(world.log().len(), 1);
}

/// A write's answer is lost, and it is sent again; an earlier write comes once more,
/// late. Each has its effect once.
#[test]
fn a_write_that_comes_twice_has_its_effect_once() {
    let world = World::new(LEASE);
    let candidate = world.candidate(1);
    let _leadership = elected(&candidate);
    let mut client = world.client();
    let key = client.key("leader");
    let revision = client.range(&key, None, 1, 0).unwrap().kvs[0].create_revision;
    let mut position = 0;
    let first = log::steps(&[record(0, 5, true)], 1, &mut position);
    let second = log::steps(&[record(1, 6, true)], 1, &mut position);
    let places: Vec<String> = (0..3).map(|at| log::place(1, at)).collect();
    for _ in 0..2 {
        assert_eq!(log::write(&mut client, revision, &first[0], &places[0], &places[1]), Ok(true));
    }
    assert_eq!(log::write(&mut client, revision, &second[0], &places[1], &places[2]), Ok(true));
    assert_eq!(log::write(&mut client, revision, &first[0], &places[0], &places[1]), Ok(false));
    assert_eq!(world.log(), [record(1, 6, true).bytes]);
}

fn coordinator_config(incarnation: u32) -> CoordinatorConfig {
    CoordinatorConfig {
        me: Peer { node: NodeId::COORDINATOR, incarnation },
        hosts: HostsConfig::one(),
        names: Vec::new(),
        clusters: ClusterConfig::only(3, 1, true),
        rules: Vec::new(),
        hang_timeout: 500_000_000,
        start_timeout: 500_000_000,
        first_incarnation: 1,
        pools: Vec::new(),
        state_servers: 0,
        layouts: Vec::new(),
        fabric: FabricConfig::default(),
    }
}

const WORLD_OF_CHILD: &str = "HOLDFAST_TEST_ETCD";

/// The process that the next test kills: it leads, starts runtimes, and reports the
/// records that it has kept.
fn lead_until_killed(endpoint: &str) {
    let candidate = wanted(config(endpoint, LEASE), 1);
    let mut leadership = elected(&candidate);
    let mut coordinator = Coordinator::new(coordinator_config(leadership.incarnation), 1);
    for turn in 1..4u64 {
        coordinator.handle_timeout(turn);
        keep(&mut leadership.store, coordinator.poll_log());
        coordinator.logged();
    }
    writeln!(
        std::io::stderr(),
        "kept {} {:?}",
        coordinator.view(),
        coordinator.status().collect::<Vec<_>>()
    )
    .unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Two candidates, each a process; the leader is killed with SIGKILL. The other leads as
/// soon as the lease is over, under a higher number, and remembers the first one's
/// decisions.
#[test]
fn after_kill_9_the_other_candidate_remembers_the_same() {
    if let Ok(endpoint) = std::env::var(WORLD_OF_CHILD) {
        return lead_until_killed(&endpoint);
    }
    let world = World::new(LEASE);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "run::etcd::tests::after_kill_9_the_other_candidate_remembers_the_same",
            "--nocapture",
        ])
        .env(WORLD_OF_CHILD, world.server.endpoint())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let kept = lines.find(|line| line.starts_with("kept ")).expect("it says what it has kept");
    let other = world.candidate(2);
    wait("the candidate sees the leader", TIMEOUT, || {
        other.contact().leader().filter(|leader| leader.pid == child.id())
    });
    let killed = Instant::now();
    child.kill().unwrap();
    child.wait().unwrap();
    let leadership = elected(&other);
    // etcd looks for leases that have ended twice a second.
    let limit = LEASE + Duration::from_secs(2);
    assert!(killed.elapsed() < limit, "it took {:?}", killed.elapsed());
    assert_eq!(leadership.incarnation, 2);
    let records = leadership.records.unwrap();
    let restored =
        Coordinator::restore(coordinator_config(2), 9, records.iter().map(Vec::as_slice)).unwrap();
    // An incarnation begins with a view of its own.
    let remembered =
        format!("kept {} {:?}", restored.view() - 1, restored.status().collect::<Vec<_>>());
    assert_eq!(remembered, kept);
}

/// A box's coordinator is followed by the next one of the same box, which need not wait
/// for the end of a lease of a minute. If the first one lives all the same, it learns
/// that its lead is over.
#[test]
fn the_next_incarnation_in_the_same_box_does_not_wait() {
    let world = World::new(Duration::from_secs(60));
    let first = world.candidate(7);
    let _leadership = elected(&first);
    let next = world.candidate(7);
    let began = Instant::now();
    assert_eq!(elected(&next).incarnation, 2);
    assert!(began.elapsed() < Duration::from_secs(10), "it took {:?}", began.elapsed());
    wait("the first learns it", TIMEOUT, || first.contact().is_over().then_some(()));
}

/// A candidate whose host does not reach the others is not wanted. The candidate knows
/// who leads and what is wrong with etcd, and is not elected while there is no leader;
/// but soon when it is wanted. A candidate that was wanted for a while is not afterwards.
#[test]
fn who_is_not_wanted_is_not_elected() {
    let world = World::new(LEASE);
    let leader = world.candidate(1);
    let leadership = elected(&leader);
    let unwanted = Candidacy::begin(world.config.clone(), "there", 2).unwrap();
    let seen = wait("it knows who leads", TIMEOUT, || unwanted.contact().leader());
    assert_eq!((seen.host.as_str(), seen.incarnation), ("here", 1));
    drop((leadership, leader));
    wait("it knows that nobody leads", TIMEOUT, || {
        unwanted.contact().leader().is_none().then_some(())
    });
    // The wanted candidate is not asked to stand back.
    let next = world.candidate(3);
    let leadership = elected(&next);
    assert_eq!((leadership.incarnation, unwanted.poll().is_some()), (2, false));
    unwanted.want(Duration::from_nanos(1), false);
    drop((leadership, next));
    wait("it knows that nobody leads", TIMEOUT, || {
        unwanted.contact().leader().is_none().then_some(())
    });
    assert!(unwanted.poll().is_none() && !unwanted.contact().leads());
    unwanted.want(Duration::MAX, false);
    assert_eq!(elected(&unwanted).incarnation, 3);
}

/// Two candidates wait for the end of a leader, one of them modest. The other leads next,
/// and the modest one when that one is gone too and no other candidate is left.
#[test]
fn who_is_modest_lets_others_try_first() {
    let world = World::new(LEASE);
    let leader = world.candidate(1);
    let leadership = elected(&leader);
    let modest = Candidacy::begin(world.config.clone(), "there", 2).unwrap();
    modest.want(Duration::MAX, true);
    let other = world.candidate(3);
    for candidate in [&modest, &other] {
        wait("it knows who leads", TIMEOUT, || candidate.contact().leader());
    }
    drop((leadership, leader));
    let leadership = elected(&other);
    assert!(modest.poll().is_none());
    wait("it knows who leads", TIMEOUT, || {
        modest.contact().leader().filter(|leader| leader.incarnation == leadership.incarnation)
    });
    drop((leadership, other));
    assert_eq!(elected(&modest).incarnation, 3);
}

/// etcd stands still: the leader leads no longer than its lease, and says why. A
/// candidate is elected once etcd continues. After a kill and a restart etcd remembers
/// the earlier leaders.
#[test]
fn without_etcd_nobody_leads() {
    let mut world = World::new(LEASE);
    let first = world.candidate(1);
    let mut leadership = elected(&first);
    keep(&mut leadership.store, vec![record(0, 9, true)]);
    world.server.signal(Signal::STOP).unwrap();
    // The renewal was requested before now, and lasts until then at the server.
    let until = first.contact().leads_until.load(Ordering::Relaxed);
    assert!(
        until <= boot_time() + nanoseconds(LEASE * 9 / 10),
        "it leads longer than its lease lasts"
    );
    wait("it leads no more", TIMEOUT, || (!first.contact().leads()).then_some(()));
    assert!(leadership.store.is_kept().is_err());
    let why = first.contact().why();
    assert!(why.contains("etcd") && why.contains("127.0.0.1"), "{why}");
    let second = world.candidate(2);
    wait("the candidate knows what is wrong", TIMEOUT, || second.contact().current_trouble());
    world.server.signal(Signal::CONT).unwrap();
    assert_eq!(elected(&second).incarnation, 2);
    world.server.kill(&Interrupt::default()).unwrap();
    wait("it leads no more", TIMEOUT, || second.contact().is_over().then_some(()));
    world.server.start_again(&Interrupt::default()).unwrap();
    let third = world.candidate(3);
    let leadership = elected(&third);
    assert_eq!(
        (leadership.incarnation, leadership.records),
        (3, Ok(vec![record(0, 9, true).bytes]))
    );
}

/// Another program writes below the prefix: a leader without a lease, an invalid number,
/// values that belong to no log. The candidate says what is wrong and waits; when the
/// operator has removed it, the candidate leads.
#[test]
fn what_others_have_written_is_named_and_waited_out() {
    let world = World::new(LEASE);
    world.put("leader", b"{\"leader\": 3");
    let candidate = world.candidate(1);
    let trouble = |part: &str| {
        let has = |trouble: String| trouble.contains(part).then_some(trouble);
        wait(&format!("it complains: {part}"), TIMEOUT, || {
            candidate.contact().current_trouble().and_then(has)
        })
    };
    let said = trouble("delete it");
    assert!(said.contains("/holdfast/test/leader"), "{said}");
    world.put("incarnation", b"\xff\xfe many");
    let mut client = world.client();
    let key = client.key("leader");
    client.transaction(Vec::new(), vec![delete(&key, &(key.clone() + "\0"))], Vec::new()).unwrap();
    trouble("/holdfast/test/incarnation is no number");
    world.put("log/hello", b"");
    world.put("incarnation", b"41");
    let leadership = elected(&candidate);
    assert_eq!(leadership.incarnation, 42);
    let wrong = leadership.records.unwrap_err();
    assert!(wrong.contains("/holdfast/test/log/hello"), "{wrong}");
}

/// Makes an authority, and certificates for a server and a client, with Debian's openssl.
fn certificates(home: &Path) -> (Certificates, Certificates) {
    let openssl = |line: &str| {
        let output = Command::new("openssl")
            .args(line.split(' '))
            .current_dir(home)
            .output()
            .expect("openssl is there");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"));
    std::fs::write(home.join("san"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    let make = |name: &str| {
        openssl(&format!("req -new {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days 2 -extfile san"
        ));
        let file = |end: &str| home.join(format!("{name}.{end}"));
        Certificates { ca: home.join("ca.pem"), certificate: file("pem"), key: file("key") }
    };
    (make("server"), make("client"))
}

/// etcd speaks TLS and demands a certificate. A candidate with one is elected and keeps
/// its log. A candidate without, or with another authority, is told what is wrong.
#[test]
fn with_tls_both_sides_show_who_they_are() {
    let home = tempfile::tempdir().unwrap();
    let (server, client) = certificates(home.path());
    let other = home.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let (stranger, _) = certificates(&other);
    let server = Server::start(home.path(), None, Some(server), &Interrupt::default()).unwrap();
    let mut config = config(&server.endpoint(), LEASE);
    config.ca = Some(client.ca.clone());
    config.certificate = Some((client.certificate.clone(), client.key.clone()));
    let candidate = wanted(config.clone(), 1);
    let mut leadership = elected(&candidate);
    keep(&mut leadership.store, vec![record(0, 600 << 10, true), record(1, 4, false)]);
    let trouble = |config: &Etcd| {
        let candidate = wanted(config.clone(), 2);
        wait("it complains", TIMEOUT, || candidate.contact().current_trouble())
    };
    let nameless = trouble(&Etcd { certificate: None, ..config.clone() });
    let misled = trouble(&Etcd { ca: Some(stranger.ca), ..config.clone() });
    assert!(misled.contains("certificate"), "{misled}");
    assert!(
        nameless.contains(&server.endpoint()) && nameless.to_lowercase().contains("certificate"),
        "{nameless}"
    );
    // Files that hold no certificate or key.
    let begin = |config: Etcd| Candidacy::begin(config, "here", 3).map(drop).unwrap_err().0;
    let missing = begin(Etcd { ca: Some(home.path().join("none.pem")), ..config.clone() });
    assert!(missing.contains("none.pem"), "{missing}");
    let no_key = begin(Etcd {
        certificate: Some((client.certificate.clone(), client.certificate)),
        ..config
    });
    assert!(no_key.contains("client.pem"), "{no_key}");
    drop(leadership);
}

/// A long record's first values were written, and the leader died: an unfinished record
/// was never kept, whoever wrote next.
#[test]
fn a_record_that_is_not_whole_was_never_kept() {
    let value = |place: &str, bytes: &[u8]| KeyValue {
        key: format!("/p/log/{place}").into_bytes(),
        value: bytes.to_vec(),
        ..KeyValue::default()
    };
    let values = [
        value(&log::place(1, 1), b"\x01a"),
        value(&log::place(1, 2), b"\x00b"),
        value(&log::place(1, 3), b"\x01c"),
        value(&log::place(1, 4), b"\x00lost"),
        value(&log::place(2, 1), b"\x01d"),
        value(&log::place(2, 2), b"\x00lost too"),
    ];
    assert_eq!(
        log::decode("/p/log/", &values),
        Ok(vec![b"a".to_vec(), b"bc".to_vec(), b"d".to_vec()])
    );
}

/// Passes two connections on, one after the other; between them the first is to be cut.
struct Cut {
    endpoint: String,
    begun: std::sync::mpsc::Receiver<[TcpStream; 2]>,
}

impl Cut {
    fn before(server: &Server) -> Cut {
        let address = server.endpoint().trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (sender, begun) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for near in listener.incoming().take(2) {
                let pair = [near.unwrap(), TcpStream::connect(&address).unwrap()];
                for (from, to) in [(0, 1), (1, 0)] {
                    let (mut from, mut to) =
                        (pair[from].try_clone().unwrap(), pair[to].try_clone().unwrap());
                    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                }
                sender.send(pair).unwrap();
            }
        });
        Cut { endpoint, begun }
    }
}

/// A member closes a connection between two requests, as in a restart: the second request
/// is answered all the same, over a new connection.
#[test]
fn a_connection_that_was_closed_is_opened_again() {
    let world = World::new(LEASE);
    let cut = Cut::before(&world.server);
    let mut client = client(Etcd { lease_ms: 60_000, ..config(&cut.endpoint, LEASE) });
    client.range("/", None, 1, 0).unwrap();
    client.range("/", None, 1, 0).unwrap();
    for side in cut.begun.try_iter().next().expect("there is a connection") {
        let _ = side.shutdown(Shutdown::Both);
    }
    assert!(cut.begun.try_recv().is_err(), "the second request came over another connection");
    client.range("/", None, 1, 0).unwrap();
    cut.begun.recv().expect("there is another connection");
}

/// A member does not listen. The error names it, and the next one is asked, and stays the
/// one in use. Its refusals are reported in its own words.
#[test]
fn after_an_error_the_next_member_is_asked() {
    let world = World::new(LEASE);
    let away = config("http://127.0.0.1:1", LEASE).endpoints.remove(0);
    let endpoints = vec![away, world.config.endpoints[0].clone()];
    let mut client = client(Etcd { endpoints, lease_ms: 60_000, ..world.config.clone() });
    let trouble = client.range("/", None, 1, 0).unwrap_err();
    assert!(
        trouble.0.starts_with("http://127.0.0.1:1: ") && trouble.0.contains("refused"),
        "{trouble}"
    );
    client.range("/", None, 1, 0).unwrap();
    client.range("/", None, 1, 0).unwrap();
    assert_eq!(client.contact.current_trouble(), None);
    let refused = client.range("/", None, 1, 1_000_000).unwrap_err();
    let said = "etcdserver: mvcc: required revision is a future revision";
    assert_eq!(refused.0, format!("{}: {said}", world.server.endpoint()));
    assert_eq!(client.contact.current_trouble(), Some(refused.0));
}

/// Sends a request that takes a connection; the member answers with these bytes and
/// closes it.
fn ask_one_that_sends(bytes: &[u8]) -> Result<RangeResponse, Trouble> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = client(config(&format!("http://{}", listener.local_addr().unwrap()), LEASE));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            // The client may have closed the connection already.
            let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let result = client.range("/", None, 1, 0);
        drop(client);
        result
    })
}

/// A listener that is no etcd, or is silent, is named in the error, and the client waits
/// for it no longer than the time-out of one member.
#[test]
fn what_is_no_etcd_is_named() {
    for bytes in [
        &b""[..],
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        &[0; 100],
    ] {
        let trouble = ask_one_that_sends(bytes).unwrap_err();
        assert!(trouble.0.starts_with("http://127.0.0.1:"), "{trouble}");
        assert!(trouble.0.contains("it does not answer as etcd does: "), "{trouble}");
    }
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let trouble = client(config(&endpoint, LEASE)).range("/", None, 1, 0).unwrap_err();
    assert_eq!(trouble.0, format!("{endpoint}: no answer within 1000 ms"));
}

/// Error texts of members are one short line, and move no cursor.
#[test]
fn what_a_member_says_is_a_line() {
    let said = cause(&Status::unknown(format!("\x1b[2J\r\n{}", "x".repeat(1000))).into());
    assert_eq!(said, format!("[2J{}", "x".repeat(197)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any data in etcd is a log or a mistake, and so is any answer of etcd.
    #[test]
    fn any_values_are_a_log_or_a_mistake(
        values in proptest::collection::vec((any::<Vec<u8>>(), any::<Vec<u8>>(), 0u32..3, 0u64..4, any::<bool>()), 0..8),
        text in any::<String>(),
        answer in any::<Vec<u8>>(),
        has_head in any::<bool>(),
    ) {
        let values = values.into_iter().map(|(key, value, incarnation, position, is_placed)| KeyValue {
            key: if is_placed { format!("/p/log/{}", log::place(incarnation, position)).into_bytes() } else { [b"/p/log/", &key[..]].concat() },
            value,
            ..KeyValue::default()
        });
        let values: Vec<KeyValue> = values.collect();
        if let Ok(records) = log::decode("/p/log/", &values) {
            let _ = Coordinator::restore(coordinator_config(1), 1, records.iter().map(Vec::as_slice));
        }
        // An empty frame of settings, with which a server begins.
        let head: &[u8] = if has_head { &[0, 0, 0, 4, 0, 0, 0, 0, 0] } else { &[] };
        prop_assert!(ask_one_that_sends(&[head, &answer].concat()).is_err());
        let _ = serde_json::from_str::<Leader>(&text);
    }

    /// Records divided into values and transactions are joined again, and each
    /// transaction is one that etcd takes.
    #[test]
    fn what_is_divided_is_put_together(lens in proptest::collection::vec((0usize..900_000, any::<bool>()), 1..6), position in 0u64..9) {
        let records: Vec<LogRecord> = lens.iter().zip(0..).map(|((len, replaces), number)| record(number, *len, *replaces)).collect();
        let mut last = position;
        let steps = log::steps(&records, 3, &mut last);
        let mut values: std::collections::BTreeMap<String, Vec<u8>> = [(log::place(2, 7), vec![1, 9])].into();
        for step in steps {
            prop_assert!(step.values.len() <= 64 && step.values.iter().map(|(_, value)| value.len()).sum::<usize>() <= 1 << 20);
            if let Some(first) = &step.replaces {
                values = values.split_off(first);
            }
            values.extend(step.values);
        }
        prop_assert!(values.keys().next_back() == Some(&log::place(3, last)));
        let from = records.iter().rposition(|record| record.replaces);
        let older: Vec<Vec<u8>> = if from.is_none() { vec![vec![9]] } else { Vec::new() };
        let expected: Vec<Vec<u8>> = older.into_iter().chain(records[from.unwrap_or(0)..].iter().map(|record| record.bytes.clone())).collect();
        let values: Vec<KeyValue> = values.into_iter().map(|(key, value)| KeyValue { key: format!("/p/{key}").into_bytes(), value, ..KeyValue::default() }).collect();
        prop_assert!(log::decode("/p/", &values) == Ok(expected));
    }
}
