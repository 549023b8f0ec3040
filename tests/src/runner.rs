//! Runs the tests, some beside each other, in the output format of every other Rust test,
//! and prints how many seconds each has taken.
//!
//! A test declares what it may run beside ([`cluster`], [`light`], [`alone`]) and its
//! approximate duration. Tests of several hosts begin first, then those of one box, and
//! at last those that run alone. The longest of each kind begins first, so that no long
//! test is left over at the end.

use holdfast_lab::Interrupt;
use holdfast_lab::requirements::{self, Program};
use holdfast_lab::running;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Tests of one box that run at a time; half as many of several hosts.
const PLACES: usize = 4;

/// The body of a test.
type Body = fn(&Interrupt) -> anyhow::Result<()>;

/// The tests that a test may run beside. Tests begin in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Cluster,
    Light,
    Alone,
}

impl Kind {
    /// The number of places that a test takes, out of `all`.
    fn places(self, all: usize) -> usize {
        match self {
            Kind::Cluster => 2.min(all),
            Kind::Light => 1,
            Kind::Alone => all,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Cluster => "cluster",
            Kind::Light => "light",
            Kind::Alone => "alone",
        }
    }
}

/// A test: what it may run beside, its approximate duration in seconds, the programs it
/// needs besides `ip` and `ethtool`, and its body.
pub struct Test {
    name: &'static str,
    kind: Kind,
    seconds: u32,
    programs: &'static [Program],
    body: Body,
    deep: Option<&'static str>,
}

impl Test {
    /// Makes a test run only in the full form of the tests ([`crate::soak`]), for this
    /// reason.
    #[must_use]
    pub const fn deep(mut self, why: &'static str) -> Test {
        self.deep = Some(why);
        self
    }

    /// The reason why the test cannot or shall not run.
    fn why_not(&self) -> Option<String> {
        let deep = self
            .deep
            .filter(|_| !crate::soak())
            .map(|why| format!("{why}: HOLDFAST_SOAK=1 runs it"));
        let basics = [requirements::IP, requirements::ETHTOOL];
        let missing = requirements::require(&basics)
            .and_then(|()| requirements::require(self.programs))
            .err();
        deep.or_else(|| missing.map(|missing| missing.to_string()))
    }
}

/// A test of several hosts: half as many run at a time as tests of one box.
pub const fn cluster(
    name: &'static str,
    seconds: u32,
    programs: &'static [Program],
    body: Body,
) -> Test {
    Test { name, kind: Kind::Cluster, seconds, programs, body, deep: None }
}

/// A test of one box, which a busy machine only makes slower.
pub const fn light(
    name: &'static str,
    seconds: u32,
    programs: &'static [Program],
    body: Body,
) -> Test {
    Test { name, kind: Kind::Light, seconds, programs, body, deep: None }
}

/// A test that runs alone, and the reason: its subject is a duration or the effect of a
/// load, or it looks at the whole machine.
pub const fn alone(
    _why: &'static str,
    name: &'static str,
    seconds: u32,
    programs: &'static [Program],
    body: Body,
) -> Test {
    Test { name, kind: Kind::Alone, seconds, programs, body, deep: None }
}

/// Runs the tests of these files. With `HOLDFAST_QUICK` set, runs only the `quick` ones;
/// with `HOLDFAST_E2E` = 0, none. A test that the machine cannot run counts as ignored,
/// with the reason.
pub fn main(files: Vec<(&'static str, Vec<Test>)>, quick: &[&str]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let mut tests: Vec<(String, Test)> = files
        .into_iter()
        .flat_map(|(file, tests)| {
            tests.into_iter().map(move |test| (format!("{file}::{}", test.name), test))
        })
        .collect();
    if let Some(unknown) = quick.iter().find(|name| !tests.iter().any(|(known, _)| known == *name))
    {
        return refuse(&format!("there is no test {unknown}"));
    }
    let is_set =
        |name: &str, to: fn(&str) -> bool| std::env::var(name).is_ok_and(|value| to(&value));
    if is_set("HOLDFAST_QUICK", |value| !value.is_empty()) {
        tests.retain(|(name, _)| quick.contains(&name.as_str()));
    }
    // All other tests of the workspace are another step.
    if is_set("HOLDFAST_E2E", |value| value == "0") {
        tests.clear();
    }
    tests.sort_by_key(|(_, test)| (test.kind, Reverse(test.seconds)));
    let interrupt = match Interrupt::on_signals() {
        Ok(interrupt) => interrupt,
        Err(error) => return refuse(&format!("cannot watch for signals: {error:#}")),
    };
    // Programs that load the machine wait until all tests are over. Without the privilege
    // to run a test this lock is not needed.
    let _machine = match (!arguments.list && requirements::is_privileged())
        .then(holdfast_lab::exclusive)
        .transpose()
    {
        Ok(lock) => lock,
        Err(error) => return refuse(&format!("{error:#}")),
    };
    let run = Arc::new(Run {
        schedule: Schedule::new(arguments.test_threads.unwrap_or(PLACES)),
        ..Run::default()
    });
    // Each test has a thread that waits for its turn; the schedule decides the order.
    arguments.test_threads = Some(tests.len().max(2));
    let trials = tests
        .into_iter()
        .enumerate()
        .map(|(rank, (name, test))| trial(rank, name, test, &interrupt, &run))
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    run.print_seconds();
    conclusion.exit_code()
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}

fn trial(rank: usize, name: String, test: Test, interrupt: &Interrupt, run: &Arc<Run>) -> Trial {
    let (kind, own_name, interrupt, run) =
        (test.kind.name(), name.clone(), interrupt.clone(), run.clone());
    let body = move || {
        if let Some(why) = test.why_not() {
            return Ok(Completion::ignored_with(why));
        }
        let _turn = run.schedule.take(rank, test.kind);
        interrupt.check()?;
        let begun = Instant::now();
        let done = (test.body)(&interrupt);
        run.note(begun.elapsed(), own_name);
        let boxes = running::left_behind().join("\n");
        done.map(|()| Completion::Completed)
            .map_err(|error| Failed::from(format!("{error:#}\n{boxes}")))
    };
    Trial::ignorable_test(name, body).with_kind(kind)
}

/// State that tests share.
#[derive(Default)]
struct Run {
    schedule: Schedule,
    seconds: Mutex<Vec<(Duration, String)>>,
}

impl Run {
    fn note(&self, took: Duration, name: String) {
        self.seconds.lock().unwrap_or_else(PoisonError::into_inner).push((took, name));
    }

    /// Prints a line for each test that has run, the longest first.
    #[expect(clippy::print_stdout, reason = "it belongs to the tests' results")]
    fn print_seconds(&self) {
        let mut seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        seconds.sort_by(|one, other| other.cmp(one));
        for (took, name) in seconds.iter() {
            println!("seconds {:7.2}  {name}", took.as_secs_f64());
        }
    }
}

/// The order of turns: the waiting test of lowest rank is next, as soon as there are
/// places for it. No test is passed by.
#[derive(Default)]
struct Schedule {
    all: usize,
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    free: usize,
    ranks: BTreeSet<usize>,
}

/// Places that are taken until this is dropped.
struct Turn<'a> {
    schedule: &'a Schedule,
    places: usize,
}

impl Schedule {
    fn new(all: usize) -> Schedule {
        Schedule {
            all,
            state: Mutex::new(Waiting { free: all, ranks: BTreeSet::new() }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, rank: usize, kind: Kind) -> Turn<'_> {
        let places = kind.places(self.all);
        let mut state = self.state();
        state.ranks.insert(rank);
        let is_another =
            |state: &mut Waiting| state.ranks.first() != Some(&rank) || state.free < places;
        state = self.changed.wait_while(state, is_another).unwrap_or_else(PoisonError::into_inner);
        state.ranks.remove(&rank);
        state.free -= places;
        self.changed.notify_all();
        Turn { schedule: self, places }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.schedule.state().free += self.places;
        self.schedule.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// The number of free places, once `waiting` tests wait.
    fn wait(schedule: &Schedule, waiting: usize) -> usize {
        let state = schedule.state();
        schedule.changed.wait_while(state, |state| state.ranks.len() != waiting).unwrap().free
    }

    #[test]
    fn turns_are_by_rank_and_no_more_at_a_time_than_there_are_places() {
        let schedule = Schedule::new(4);
        let first = schedule.take(0, Kind::Alone);
        let (sender, begun) = mpsc::channel();
        std::thread::scope(|scope| {
            // The tests arrive in any order.
            for (rank, kind) in
                [(4, Kind::Alone), (3, Kind::Light), (1, Kind::Cluster), (2, Kind::Light)]
            {
                let (sender, schedule) = (sender.clone(), &schedule);
                scope.spawn(move || {
                    let turn = schedule.take(rank, kind);
                    sender.send((rank, turn)).unwrap();
                });
            }
            while schedule.state().ranks.len() < 4 {
                std::thread::yield_now();
            }
            assert!(begun.try_recv().is_err(), "the first has all places");
            drop(first);
            let mut turns: Vec<_> = (0..3).map(|_| begun.recv().unwrap()).collect();
            turns.sort_by_key(|(rank, _)| *rank);
            assert_eq!(turns.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [1, 2, 3]);
            assert_eq!(wait(&schedule, 1), 0, "two places and one and one");
            turns.truncate(1);
            assert!(begun.try_recv().is_err(), "two places are not all");
            turns.clear();
            assert_eq!(begun.recv().unwrap().0, 4);
        });
        assert_eq!(wait(&schedule, 0), 4);
    }

    #[test]
    fn with_one_place_it_is_one_after_the_other() {
        let schedule = Schedule::new(1);
        assert!(
            [Kind::Cluster, Kind::Light, Kind::Alone]
                .into_iter()
                .all(|kind| kind.places(schedule.all) == 1)
        );
    }
}
