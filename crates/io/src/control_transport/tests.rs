//! Two sides of each driver in one process.

use super::libfabric::{self, LibfabricTransport};
use super::shared_memory::{SharedMemoryTransport, Side};
use super::{Address, Driver, Lost};
use crate::wait::sleep;
use holdfast_wire::NodeId;
use std::time::{Duration, Instant};

/// Each side's name for the other one.
const SERVER: NodeId = NodeId::new(7);
const RUNTIME: NodeId = NodeId::new(16);
const TIMEOUT: Duration = Duration::from_secs(20);

type Pair = (Box<dyn Driver>, Box<dyn Driver>);

fn shared_memory() -> Pair {
    let driver = |side| Box::new(SharedMemoryTransport::new(side).expect("there is memory"));
    (driver(Side::Server), driver(Side::Runtime))
}

fn by_libfabric(provider: &str) -> Pair {
    let driver = || {
        Box::new(LibfabricTransport::new(provider, |text| panic!("{text}")).expect("it was there"))
    };
    (driver(), driver())
}

/// The transports of this build. Two tests below report it if libfabric is missing.
fn pairs() -> Vec<(&'static str, Pair)> {
    let mut pairs = vec![("shared memory", shared_memory())];
    if cfg!(holdfast_libfabric) {
        for provider in ["tcp;ofi_rxm", "net"] {
            libfabric::prepare(provider).expect("every machine has it");
            pairs.push((provider, by_libfabric(provider)));
        }
    }
    pairs
}

/// A session begins: hello has the runtime's address, the welcome the server's.
fn tie(server: &mut dyn Driver, runtime: &mut dyn Driver) {
    let hello = runtime.open(SERVER).expect("it opens");
    let welcome = server.open(RUNTIME).expect("it opens");
    server.connect(RUNTIME, &hello).expect("the runtime is there");
    runtime.connect(SERVER, &welcome).expect("the server is there");
}

/// Sends numbers from the first side to the second, in bursts; each arrives once and in
/// order.
fn carry(
    from: (&mut dyn Driver, NodeId),
    to: (&mut dyn Driver, NodeId),
    numbers: std::ops::Range<u32>,
) {
    let (mut next, mut expected, start) = (numbers.start, numbers.start, Instant::now());
    let mut some = [0; 100];
    while expected < numbers.end {
        let count = from.0.room(from.1).min(77).min((numbers.end - next) as usize) as u32;
        let burst: Vec<u32> =
            (next..next + count).map(|number| number.wrapping_mul(0x9e37_79b9)).collect();
        from.0.send(from.1, &burst);
        next += count;
        from.0.publish();
        // Providers make progress when they are looked at.
        from.0.has_input();
        let got = to.0.receive(to.1, &mut some).expect("nothing is lost");
        for word in &some[..got] {
            assert_eq!(*word, expected.wrapping_mul(0x9e37_79b9));
            expected += 1;
        }
        to.0.publish();
        assert!(start.elapsed() < TIMEOUT, "{expected} of {numbers:?} have arrived");
    }
}

#[test]
fn words_arrive_once_and_in_order_both_ways_session_after_session() {
    for (_, (mut server, mut runtime)) in pairs() {
        for session in 0..3 {
            tie(&mut *server, &mut *runtime);
            for round in 0..3 {
                let first = session * 100_000 + round * 10_000;
                carry((&mut *runtime, SERVER), (&mut *server, RUNTIME), first..first + 9000);
                carry((&mut *server, RUNTIME), (&mut *runtime, SERVER), first..first + 3000);
            }
        }
    }
}

/// A turn's words are shown once the turn is committed.
#[test]
fn nothing_is_shown_before_the_turn_holds() {
    for (name, (mut server, mut runtime)) in pairs() {
        tie(&mut *server, &mut *runtime);
        carry((&mut *runtime, SERVER), (&mut *server, RUNTIME), 0..10);
        runtime.send(SERVER, &[1, 2, 3]);
        for _ in 0..1000 {
            runtime.has_input();
            assert_eq!(server.receive(RUNTIME, &mut [0; 4]), Ok(0), "{name}");
        }
        runtime.publish();
        let (mut some, mut got, start) = ([0; 4], 0, Instant::now());
        while got < 3 && start.elapsed() < TIMEOUT {
            runtime.has_input();
            got += server.receive(RUNTIME, &mut some[got..]).expect("nothing is lost");
        }
        assert_eq!((got, some), (3, [1, 2, 3, 0]), "{name}");
    }
}

/// A side that sleeps is woken by a word, if its driver has a descriptor to wait for.
#[test]
fn who_sleeps_is_woken() {
    for (name, (mut server, mut runtime)) in pairs() {
        tie(&mut *server, &mut *runtime);
        carry((&mut *runtime, SERVER), (&mut *server, RUNTIME), 0..10);
        carry((&mut *server, RUNTIME), (&mut *runtime, SERVER), 0..10);
        let start = Instant::now();
        while !server.prepare_sleep() {
            server.awake();
            assert!(start.elapsed() < TIMEOUT, "{name}: there is always something");
        }
        let waker = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
            });
            waiting.join().expect("it sleeps");
            runtime.send(SERVER, &[5]);
            runtime.publish();
            let start = Instant::now();
            let fds: Vec<_> = server.wait_fd().into_iter().collect();
            sleep(&fds, server.longest_sleep().min(5_000_000_000));
            start.elapsed()
        });
        assert!(waker < Duration::from_secs(4), "{name}: nobody woke it");
        server.awake();
        let (mut word, mut got, start) = ([0], 0, Instant::now());
        while got == 0 && start.elapsed() < TIMEOUT {
            runtime.has_input();
            got = server.receive(RUNTIME, &mut word).expect("nothing is lost");
        }
        assert_eq!((got, word), (1, [5]), "{name}");
    }
}

/// Invalid addresses, ends that do not exist, and a side that is gone.
#[test]
fn nobody_there_is_an_error() {
    for (name, (mut server, mut runtime)) in pairs() {
        assert_eq!(server.receive(RUNTIME, &mut [0; 4]), Err(Lost), "{name}");
        assert_eq!(server.room(RUNTIME), 0);
        server.send(RUNTIME, &[1]);
        server.close(RUNTIME);
        for len in [0, 1, 4, 8, 9, 12, 20, 21] {
            let bytes: Vec<u8> = (0..len).map(|at| 0xa5 ^ at).collect();
            let address = Address::new(&bytes).expect("it is short");
            assert_eq!(server.connect(RUNTIME, &address), Err(Lost), "{name}: there is no end");
            server.open(RUNTIME).expect("it opens");
            assert_eq!(server.connect(RUNTIME, &address), Err(Lost), "{name}: {len} bytes");
            server.close(RUNTIME);
        }
        tie(&mut *server, &mut *runtime);
        carry((&mut *runtime, SERVER), (&mut *server, RUNTIME), 0..10);
    }
}

/// In shared memory, words that were sent before the end are received, then nothing; an
/// impossible counter ends the session.
#[test]
fn a_side_that_ends_is_noticed_behind_what_it_has_said() {
    let (mut server, mut runtime) = shared_memory();
    tie(&mut *server, &mut *runtime);
    runtime.send(SERVER, &[1, 2]);
    runtime.publish();
    drop(runtime);
    assert!(server.has_input());
    let mut some = [0; 4];
    assert_eq!((server.receive(RUNTIME, &mut some), some), (Ok(2), [1, 2, 0, 0]));
    assert_eq!(server.receive(RUNTIME, &mut some), Err(Lost));
    assert!(!server.prepare_sleep(), "it is to be looked at");
    // The welcome of an earlier session finds no memory.
    let (mut server, mut runtime) = shared_memory();
    let hello = runtime.open(SERVER).expect("it opens");
    let welcome = server.open(RUNTIME).expect("it opens");
    server.connect(RUNTIME, &hello).expect("the runtime is there");
    runtime.open(SERVER).expect("it opens");
    assert_eq!(runtime.connect(SERVER, &welcome), Err(Lost));
    tie(&mut *server, &mut *runtime);
    carry((&mut *runtime, SERVER), (&mut *server, RUNTIME), 0..10);
}

#[test]
#[cfg_attr(not(holdfast_libfabric), ignore = "libfabric was not there when this was built")]
fn a_provider_that_there_is_not_is_named() {
    let why = libfabric::prepare("no-such;thing").expect_err("there is none");
    assert!(why.contains("no-such;thing"), "{why}");
}

/// A process that forks has one thread, and its signals are its own: signal handlers that
/// providers replace are restored.
#[test]
#[cfg_attr(not(holdfast_libfabric), ignore = "libfabric was not there when this was built")]
fn to_prepare_leaves_threads_and_signals_as_they_are() {
    let signals = || {
        let of = |line: &&str| line.starts_with("SigCgt:") || line.starts_with("SigIgn:");
        let status = std::fs::read_to_string("/proc/self/status").expect("it is there");
        status.lines().filter(of).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = signals();
    libfabric::prepare("tcp;ofi_rxm").expect("it is there");
    assert_eq!(signals(), before);
    let names = std::fs::read_dir("/proc/self/task").expect("it is there").flatten();
    let names = names.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    let names: Vec<String> = names.collect();
    // The harness's own threads have the tests' names, cut to 15 bytes.
    let of_harness = |name: &String| {
        let is_of_here = "control_transport::tests".starts_with(name.trim_end());
        is_of_here || name.contains("::") || name.contains("holdfast_io")
    };
    assert!(names.iter().all(of_harness), "{names:?}");
}
