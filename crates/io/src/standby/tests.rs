//! Processes that are killed at random instructions, and the state that their heirs find.
//!
//! The heap, the log and the lock are a process's own, so each test runs in a process
//! that the harness starts for it: this binary, with the test's name.

use super::*;
use crate::process;
use crate::shared_memory::SharedMemory;
use rustix::process::{Pid, WaitOptions};
use std::collections::{BTreeMap, VecDeque};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: crate::CountingAllocator = crate::CountingAllocator;

const TURN: &str = "HOLDFAST_STANDBY_TEST";

/// Runs `child` in a process of its own, which must end well.
fn apart(name: &str, child: impl FnOnce()) {
    if std::env::var(TURN).is_ok_and(|wanted| wanted == name) {
        child();
        std::process::exit(0);
    }
    let binary = std::env::current_exe().unwrap();
    let arguments = [
        format!("standby::tests::{name}"),
        "--exact".into(),
        "--nocapture".into(),
        "--test-threads=1".into(),
    ];
    let output =
        Command::new(binary).args(arguments).env(TURN, name).stdin(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Memory that the test and all processes see, besides the state.
struct Board {
    memory: SharedMemory,
}

impl Board {
    fn new() -> Board {
        Board { memory: SharedMemory::create("board", 4096).unwrap() }
    }

    fn word(&self, at: usize) -> &'static AtomicU64 {
        self.memory.word64(at * 8)
    }

    /// A time-out under which no worker hangs.
    fn watch(&self) -> Watch {
        Watch { beats: self.word(9), timeout: Duration::MAX }
    }

    fn pair(&self) -> Pair {
        let word = |at: usize| self.memory.word32(2048 + at * 4);
        Pair {
            worker: word(0),
            standby: word(1),
            takeovers: word(2),
            keeper: word(3),
            deputy: word(4),
        }
    }
}

/// A state with everything in it that allocates, moves and links. The number of turns
/// determines the state.
struct World {
    turn: u64,
    map: BTreeMap<u64, Vec<u8>>,
    queue: VecDeque<Box<u64>>,
    text: String,
    /// Written in scattered places, with announcements.
    table: Vec<u64>,
    hot: [u64; 64],
}

/// Kills, each at another point of a turn.
const KILLS: u32 = 100;
/// The longest wait for the kills.
const LIMIT: Duration = Duration::from_secs(300);

/// Turns after which the state begins anew, so that computing it again does not take
/// long.
const ROUND: u64 = 500;

impl World {
    /// The state after so many turns.
    fn after(turns: u64) -> World {
        let mut world = World { turn: (turns / ROUND * ROUND).saturating_sub(1), ..World::new() };
        (world.turn..turns).for_each(|_| world.advance());
        world
    }

    fn new() -> World {
        let table = vec![0; 1 << 16];
        World {
            turn: 0,
            map: BTreeMap::new(),
            queue: VecDeque::new(),
            text: String::new(),
            table,
            hot: [0; 64],
        }
    }

    fn advance(&mut self) {
        self.turn += 1;
        if self.turn.is_multiple_of(ROUND) {
            announce(self.table.as_ref_bytes());
            self.table.fill(0);
            self.map.clear();
            self.queue = VecDeque::new();
            self.text = String::new();
            self.hot = [0; 64];
        }
        let mut random = self.turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for _ in 0..next() % 20 {
            let key = next() % 500;
            let len = next() as usize % 3000;
            match next() % 3 {
                0 => drop(self.map.remove(&key)),
                1 => self.map.entry(key).or_default().resize(len, self.turn as u8),
                _ => drop(self.map.insert(key, vec![key as u8; len])),
            }
            self.queue.push_back(Box::new(next()));
            if self.queue.len() > 100 {
                self.queue.pop_front();
            }
            let at = next() as usize % self.table.len();
            announce(core::slice::from_ref(&self.table[at]).as_ref_bytes());
            self.table[at] = self.table[at].wrapping_add(next());
            self.hot[at % 64] += 1;
        }
        if self.text.len() > 5000 {
            self.text.clear();
            self.text.shrink_to_fit();
        }
        self.text.push_str("turn ");
    }

    /// A digest of the whole state.
    fn digest(&self) -> u64 {
        let mut sum = 0xcbf2_9ce4_8422_2325u64;
        let mut add = |value: u64| sum = (sum ^ value).wrapping_mul(0x100_0000_01b3);
        add(self.turn);
        for (key, value) in &self.map {
            add(*key);
            value.iter().for_each(|byte| add(u64::from(*byte)));
        }
        self.queue.iter().for_each(|value| add(**value));
        self.table.iter().for_each(|value| add(*value));
        self.hot.iter().for_each(|value| add(*value));
        add(self.text.len() as u64);
        sum
    }
}

/// Announces a change of shared state. A world that a test computes for comparison is not
/// shared.
fn announce(bytes: &[u8]) {
    if heap::contains(bytes.as_ptr() as usize) {
        before(bytes);
    }
}

trait Bytes {
    fn as_ref_bytes(&self) -> &[u8];
}

impl Bytes for [u64] {
    fn as_ref_bytes(&self) -> &[u8] {
        zerocopy::IntoBytes::as_bytes(self)
    }
}

/// Kills the worker `kills` times, each after a random while, from a process without
/// threads that the keeper does not know; then ends the work.
fn killer(board: &Board, kills: u32) {
    // SAFETY: the keeper has one thread still.
    if unsafe { libc::fork() } != 0 {
        return;
    }
    let pair = board.pair();
    let mut random = 88_172_645_463_325_252u64;
    let start = Instant::now();
    while pair.takeovers.load(Ordering::SeqCst) < kills && start.elapsed() < LIMIT {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let (worker, standby) =
            (pair.worker.load(Ordering::SeqCst), pair.standby.load(Ordering::SeqCst));
        // A kill needs a standby that can take over, and a worker that has begun to note
        // its changes.
        if standby == 0
            || worker == standby
            || board.word(1).load(Ordering::SeqCst) != u64::from(worker)
        {
            rustix::thread::sched_yield();
            continue;
        }
        let wait = Duration::from_nanos(random % 2_000_000);
        let at = Instant::now();
        while at.elapsed() < wait {
            core::hint::spin_loop();
        }
        // SAFETY: a signal to a process of this test's.
        unsafe { libc::kill(worker as i32, libc::SIGKILL) };
        while pair.worker.load(Ordering::SeqCst) == worker && start.elapsed() < LIMIT {
            rustix::thread::sched_yield();
        }
    }
    board.word(0).store(1, Ordering::SeqCst);
    // SAFETY: ends this process, and nothing of the test's harness with it.
    unsafe { libc::_exit(0) };
}

/// Turns change a state, and their worker is killed again and again. The number of turns
/// shown after each turn never goes back, and the state is always the one after that many
/// turns.
#[test]
fn every_heir_finds_the_last_turn_s_end() {
    apart("every_heir_finds_the_last_turn_s_end", || {
        let board = Board::new();
        create().unwrap();
        let world = enter(|| Box::leak(Box::new(World::new())));
        exempt(world.table.as_ref_bytes());
        killer(&board, KILLS);
        let shown = board.word(2);
        let code = supervise(board.pair(), board.watch(), |mut turns| {
            let me = std::process::id();
            if turns.takes_over() {
                let seen = shown.load(Ordering::SeqCst);
                assert!(
                    world.turn == seen || world.turn == seen + 1,
                    "{} turns, {seen} were shown",
                    world.turn
                );
                assert_eq!(
                    World::after(world.turn).digest(),
                    world.digest(),
                    "after {} turns",
                    world.turn
                );
                shown.store(world.turn, Ordering::SeqCst);
            }
            while board.word(0).load(Ordering::SeqCst) == 0 {
                turns.begin(1);
                if log::is_tracking() {
                    board.word(1).store(me.into(), Ordering::SeqCst);
                }
                enter(|| world.advance());
                turns.commit();
                shown.store(world.turn, Ordering::SeqCst);
            }
            0
        });
        assert_eq!(code.unwrap(), 0);
        assert!(
            board.pair().takeovers.load(Ordering::SeqCst) >= KILLS,
            "{} takeovers",
            board.pair().takeovers.load(Ordering::SeqCst)
        );
    });
}

/// A turn that changes more than the log holds cannot be undone: a worker killed in it
/// has no heir. After the turn's end all is as before.
#[test]
fn a_turn_too_large_for_the_log_has_no_way_back_until_it_ends() {
    apart("a_turn_too_large_for_the_log_has_no_way_back_until_it_ends", || {
        let board = Board::new();
        create().unwrap();
        let world = enter(|| vec![1u64; 16 << 20].leak());
        let code = supervise(board.pair(), board.watch(), |mut turns| {
            let me = std::process::id();
            if turns.takes_over() {
                // The third worker finds what the first had committed, whatever the
                // second did.
                return if world.iter().all(|value| *value == 2) { 0 } else { 9 };
            }
            while !log::is_tracking() {
                turns.begin(1);
                turns.commit();
            }
            turns.begin(1);
            world.iter_mut().for_each(|value| *value = 2);
            assert!(log::undo().is_none(), "this is more than the log holds");
            turns.commit();
            turns.begin(1);
            world[5] = 3;
            world[7_000_000] = 3;
            // SAFETY: a signal to this very process.
            unsafe { libc::kill(me as i32, libc::SIGKILL) };
            unreachable!("it was killed");
        });
        assert_eq!(code.unwrap(), 0);
        assert_eq!(board.pair().takeovers.load(Ordering::SeqCst), 1);
    });
}

/// A worker that has taken over may have long work before its first turn. If it is killed
/// during that, its heir finds what the first one had committed.
#[test]
fn a_worker_is_replaced_before_its_first_turn() {
    apart("a_worker_is_replaced_before_its_first_turn", || {
        let board = Board::new();
        create().unwrap();
        let world = enter(|| Box::leak(Box::new(World::new())));
        let pair = board.pair();
        let code = supervise(pair, board.watch(), |mut turns| {
            let me = std::process::id();
            match pair.takeovers.load(Ordering::SeqCst) {
                0 => {
                    for _ in 0..3 {
                        turns.begin(1);
                        enter(|| world.advance());
                        turns.commit();
                    }
                }
                1 => enter(|| world.advance()),
                _ => {
                    return i32::from(
                        !turns.takes_over() || world.digest() != World::after(3).digest(),
                    );
                }
            }
            while [0, me].contains(&pair.standby.load(Ordering::SeqCst)) {
                rustix::thread::sched_yield();
            }
            // SAFETY: a signal to this very process.
            unsafe { libc::kill(me as i32, libc::SIGKILL) };
            unreachable!("it was killed");
        });
        assert_eq!(code.unwrap(), 0);
        assert_eq!(pair.takeovers.load(Ordering::SeqCst), 2);
    });
}

/// A packet that ends its worker again and again is known after the second time: that
/// worker had only this packet in hand.
#[test]
fn a_poisoned_packet_is_known_at_the_third_worker() {
    apart("a_poisoned_packet_is_known_at_the_third_worker", || {
        let board = Board::new();
        create().unwrap();
        let done = enter(|| Box::leak(Box::new(0u64)));
        let bursts = board.word(3);
        let code = supervise(board.pair(), board.watch(), |mut turns| {
            let is_poisoned = turns.is_poisoned();
            if is_poisoned {
                board.word(4).fetch_add(1, Ordering::SeqCst);
            }
            while !log::is_tracking() {
                turns.begin(64);
                turns.commit();
            }
            let mut skips = is_poisoned;
            while *done < 10_000 {
                let burst = turns.begin(64);
                for _ in 0..burst {
                    *done += 1;
                    if *done == 777 && !core::mem::take(&mut skips) {
                        bursts.fetch_add(burst as u64, Ordering::SeqCst);
                        std::process::abort();
                    }
                }
                turns.commit();
            }
            0
        });
        assert_eq!(code.unwrap(), 0);
        assert_eq!(board.pair().takeovers.load(Ordering::SeqCst), 2);
        assert_eq!((bursts.load(Ordering::SeqCst), board.word(4).load(Ordering::SeqCst)), (65, 1));
    });
}

/// A worker that lives but takes no turns any more is ended, and its heir continues.
#[test]
fn a_worker_that_hangs_is_replaced() {
    apart("a_worker_that_hangs_is_replaced", || {
        let board = Board::new();
        create().unwrap();
        let watch = Watch { beats: board.word(9), timeout: Duration::from_millis(50) };
        let code = supervise(board.pair(), watch, |mut turns| {
            if turns.takes_over() {
                return 0;
            }
            for _ in 0.. {
                watch.beats.fetch_add(1, Ordering::Relaxed);
                turns.begin(1);
                turns.commit();
                if log::is_tracking() {
                    // SAFETY: a signal to this process, which then stands still like one
                    // stopped by a debugger or an operator.
                    unsafe { libc::raise(libc::SIGSTOP) };
                }
            }
            1
        });
        assert_eq!(code.unwrap(), 0);
        assert_eq!(board.pair().takeovers.load(Ordering::SeqCst), 1);
    });
}

/// Starts a keeper of a world whose turns continue until the board's first word is set;
/// then it ends with 7. This process stands for the guard. Each heir checks the world
/// that it finds. Returns the word in which the number of turns is shown.
fn keep_a_world(board: &Board) -> &'static AtomicU64 {
    let (ends, shown) = (board.word(0), board.word(2));
    process::adopt_orphans().unwrap();
    create().unwrap();
    let world = enter(|| Box::leak(Box::new(World::new())));
    exempt(world.table.as_ref_bytes());
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } == 0 {
        let code = supervise(board.pair(), board.watch(), |mut turns| {
            if turns.takes_over() {
                let seen = shown.load(Ordering::SeqCst);
                assert!(
                    world.turn == seen || world.turn == seen + 1,
                    "{} turns, {seen} were shown",
                    world.turn
                );
                assert_eq!(
                    World::after(world.turn).digest(),
                    world.digest(),
                    "after {} turns",
                    world.turn
                );
            }
            while ends.load(Ordering::SeqCst) == 0 {
                turns.begin(1);
                enter(|| world.advance());
                turns.commit();
                shown.store(world.turn, Ordering::SeqCst);
            }
            7
        });
        // SAFETY: ends this process only.
        unsafe { libc::_exit(code.unwrap_or(1)) };
    }
    shown
}

/// The processes of a pair: worker, standby, keeper, deputy.
fn pids(pair: &Pair) -> [u32; 4] {
    [pair.worker, pair.standby, pair.keeper, pair.deputy].map(|word| word.load(Ordering::SeqCst))
}

/// True if all four processes live.
fn is_whole(pair: &Pair) -> bool {
    let all = pids(pair);
    all[0] != all[1] && all.into_iter().all(process::lives)
}

/// Keepers are killed, and now and then a worker. The other processes live on under
/// another keeper, and the next worker finds the state of the last one.
#[test]
fn a_keeper_s_end_takes_nobody_along() {
    apart("a_keeper_s_end_takes_nobody_along", || {
        let board = Board::new();
        let pair = board.pair();
        let shown = keep_a_world(&board);
        let start = Instant::now();
        let get = |word: &AtomicU32| word.load(Ordering::SeqCst);
        let wait = |what: &str, is_so: &dyn Fn() -> bool| {
            while !is_so() {
                assert!(start.elapsed() < LIMIT, "{what}: {:?}", pids(&pair));
                process::bury_orphans(|_| false);
                rustix::thread::sched_yield();
            }
        };
        // SAFETY: a signal to a process of this test's.
        let kill = |pid: u32| assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0);
        for round in 0..30u32 {
            wait("all four are there", &|| is_whole(&pair));
            let [worker, standby, keeper, deputy] = pids(&pair);
            let turns = shown.load(Ordering::SeqCst);
            let mut struck = vec![keeper];
            kill(keeper);
            // The second kill comes at once, after a while, or not at all, and hits the
            // worker or the standby.
            match round % 6 {
                0 => struck.push(worker),
                1 => struck.push(standby),
                2 => {
                    wait("the deputy is the keeper", &|| get(pair.keeper) == deputy);
                    struck.push(worker);
                }
                3 => struck.extend([worker, standby]),
                _ => {}
            }
            struck[1..].iter().for_each(|pid| kill(*pid));
            // A killed process that waits for a processor lives until it gets one.
            wait("who was killed has ended", &|| !struck.iter().any(|pid| process::lives(*pid)));
            wait("the deputy is the keeper", &|| get(pair.keeper) == deputy);
            wait("turns go on", &|| shown.load(Ordering::SeqCst) > turns + 3);
            if round % 6 > 3 {
                assert_eq!(get(pair.worker), worker, "the worker has not noticed");
            }
        }
        wait("all four are there", &|| is_whole(&pair));
        let all = pids(&pair);
        board.word(0).store(1, Ordering::SeqCst);
        // The last keeper ends as the work did, and no process is left.
        let keeper = Pid::from_raw(all[2] as i32);
        let (_, status) = rustix::process::waitpid(keeper, WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(7));
        wait("nobody is left", &|| !all.iter().any(|pid| process::lives(*pid)));
    });
}

/// Keeper and deputy are killed together. The worker continues, and when it is killed the
/// standby finds its state. No other standby follows: the starter learns of the keeper's
/// end, and gives all of them up.
#[test]
fn without_keeper_and_deputy_the_standby_is_the_last() {
    apart("without_keeper_and_deputy_the_standby_is_the_last", || {
        let board = Board::new();
        let pair = board.pair();
        let shown = keep_a_world(&board);
        let start = Instant::now();
        let all = || pids(&pair);
        let wait = |what: &str, is_so: &dyn Fn([u32; 4]) -> bool| {
            while !is_so(all()) {
                assert!(start.elapsed() < LIMIT, "{what}: {:?}", all());
                rustix::thread::sched_yield();
            }
        };
        wait("all four are there", &|_| is_whole(&pair));
        let [worker, standby, keeper, deputy] = all();
        let send = |pid: u32, signal| {
            // SAFETY: a signal to a process of this test's.
            assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
        };
        // A stopped keeper makes no other deputy before it is killed.
        send(keeper, libc::SIGSTOP);
        let (_, status) =
            rustix::process::waitpid(Pid::from_raw(keeper as i32), WaitOptions::UNTRACED)
                .unwrap()
                .unwrap();
        assert!(status.stopped());
        [deputy, keeper].into_iter().for_each(|pid| send(pid, libc::SIGKILL));
        wait("keeper and deputy have ended", &|_| {
            process::bury_orphans(|pid| pid == worker || pid == standby);
            ![deputy, keeper].into_iter().any(process::lives)
        });
        let goes_on = || {
            let turns = shown.load(Ordering::SeqCst);
            wait("turns go on", &|_| shown.load(Ordering::SeqCst) > turns + 3);
        };
        goes_on();
        assert_eq!(all(), [worker, standby, keeper, deputy], "nobody has another place");
        send(worker, libc::SIGKILL);
        wait("the standby works", &|all| all[..2] == [standby, 0]);
        goes_on();
        assert_eq!(pair.takeovers.load(Ordering::SeqCst), 1);
        board.word(0).store(1, Ordering::SeqCst);
        let (_, status) =
            rustix::process::waitpid(Pid::from_raw(standby as i32), WaitOptions::empty())
                .unwrap()
                .unwrap();
        assert_eq!(status.exit_status(), Some(7));
    });
}

/// The process that started the keeper is killed: all the keeper's processes end, also
/// one that is stopped.
#[test]
fn all_end_with_who_has_started_them() {
    apart("all_end_with_who_has_started_them", || {
        let board = Board::new();
        let pair = board.pair();
        process::adopt_orphans().unwrap();
        for is_kept_by_a_deputy in [false, true] {
            // SAFETY: this process has one thread.
            let starter = unsafe { libc::fork() };
            if starter == 0 {
                process::adopt_orphans().unwrap();
                let me = std::process::id();
                // SAFETY: as above.
                if unsafe { libc::fork() } == 0 {
                    process::die_with_parent(me).unwrap();
                    create().unwrap();
                    let _ = supervise(pair, board.watch(), |mut turns| {
                        loop {
                            turns.begin(1);
                            turns.commit();
                        }
                    });
                }
                loop {
                    rustix::thread::sched_yield();
                }
            }
            let start = Instant::now();
            let all = || pids(&pair);
            let wait = |what: &str, is_so: &dyn Fn([u32; 4]) -> bool| {
                while !is_so(all()) {
                    assert!(start.elapsed() < LIMIT, "{what}: {:?}", all());
                    process::bury_orphans(|_| false);
                    rustix::thread::sched_yield();
                }
            };
            wait("all four are there", &|_| is_whole(&pair));
            // SAFETY: signals to processes of this test's.
            let send = |pid: u32, signal| assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
            if is_kept_by_a_deputy {
                let [.., keeper, deputy] = all();
                send(keeper, libc::SIGKILL);
                wait("the deputy has a deputy", &|all| {
                    all[2] == deputy && ![0, deputy].contains(&all[3]) && is_whole(&pair)
                });
            }
            let were = all();
            send(were[0], libc::SIGSTOP);
            send(starter as u32, libc::SIGKILL);
            wait("nobody is left", &|_| !were.into_iter().any(process::lives));
            [pair.worker, pair.standby, pair.keeper, pair.deputy]
                .iter()
                .for_each(|word| word.store(0, Ordering::SeqCst));
        }
    });
}

/// Workers end one after the other before any has finished a turn: the keeper ends too,
/// in the same way as they did.
#[test]
fn without_a_turn_the_keeper_ends_as_its_workers_did() {
    apart("without_a_turn_the_keeper_ends_as_its_workers_did", || {
        // SAFETY: this process has one thread.
        let keeper = unsafe { libc::fork() };
        if keeper == 0 {
            let board = Board::new();
            create().unwrap();
            let _ = supervise(board.pair(), board.watch(), |_| {
                // SAFETY: a signal to this very process.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                0
            });
            // SAFETY: ends this process only.
            unsafe { libc::_exit(5) };
        }
        let status = rustix::process::waitpid(Pid::from_raw(keeper), WaitOptions::empty())
            .unwrap()
            .unwrap()
            .1;
        assert_eq!(status.terminating_signal(), Some(libc::SIGKILL));
    });
}
