//! Worlds that several tests use: a few connections, one death after every so many
//! events, or two deaths close to each other.

use holdfast_sim::{
    Connection, How, Outcome, Plan, Planted, Preset, Scenario, Step, When, Whom, play,
};

pub(crate) const MILLISECOND: u64 = 1_000_000;

/// A scenario in which happens only what a plan says. Every other seed has few numbers.
pub(crate) fn scenario(seed: u64, preset: Preset) -> Scenario {
    Scenario {
        seed,
        preset,
        planted: Planted::default(),
        quiet: true,
        tight: seed.is_multiple_of(2),
        served: false,
        by_key: false,
        servers: 1,
        published: false,
        inspected: false,
        inserted: &[],
    }
}

/// `count` connections, one after the other, overlapping; every third is TCP.
pub(crate) fn connections(count: u64) -> Vec<Connection> {
    let connection = |number: u64| Connection {
        tcp: number % 3 == 2,
        packets: 12,
        start: (300 + number * 90) * MILLISECOND,
        pause: 25 * MILLISECOND,
        ..Connection::default()
    };
    (0..count).map(connection).collect()
}

/// A failure at a time, ms after the world's beginning.
pub(crate) fn at(time: u64, whom: Whom, how: How) -> Step {
    Step { when: When::Time(time * MILLISECOND), whom, how }
}

/// Checks that nothing was broken, and that every connection has finished.
pub(crate) fn check(outcome: &Outcome, what: core::fmt::Arguments<'_>) {
    let broken = outcome.report.violations.first();
    assert!(broken.is_none(), "{what}: {broken:?}");
    assert!(outcome.finished.iter().all(|done| *done), "{what}: {:?}", outcome.finished);
}

/// Kills the target after every `step`-th event of a calm world, from the very first on,
/// for as many ms as `away` says of the event. Returns the outcomes' sum by `count`.
pub(crate) fn sweep(
    whom: Whom,
    step: usize,
    away: impl Fn(u64) -> u64,
    count: impl Fn(&Outcome) -> u64,
) -> u64 {
    let mut sum = 0;
    for (seed, preset) in
        [(1, Preset::NFVACTOR), (2, Preset::NFVACTOR_AT_SOURCE), (3, Preset::NONE)]
    {
        let plan = Plan { connections: connections(8), calm: true, ..Plan::default() };
        let undisturbed = play(scenario(seed, preset), plan.clone());
        for event in (1..undisturbed.quiet_from).step_by(step) {
            let failures = vec![Step {
                when: When::Event(event),
                whom,
                how: How::Pause(away(event) * MILLISECOND),
            }];
            let outcome = play(scenario(seed, preset), Plan { steps: failures, ..plan.clone() });
            check(&outcome, format_args!("{preset:?}, event {event}"));
            sum += count(&outcome);
        }
    }
    sum
}

/// Kills the target, and the runtime that owns most flows, at these two times (ms); both
/// have to have happened. `away`: how long the target is away, ms.
pub(crate) fn dies_with_a_runtime(
    seeds: u64,
    whom: Whom,
    times: &[(u64, u64)],
    away: impl Fn(u64) -> u64,
) {
    for seed in 0..seeds {
        for preset in [Preset::NFVACTOR, Preset::NFVACTOR_AT_SOURCE] {
            for &(its, the_runtimes) in times {
                let mut failures = vec![
                    at(its, whom, How::Pause(away(seed) * MILLISECOND)),
                    at(the_runtimes, Whom::Owner, How::Kill),
                ];
                // The runtime's failure comes first only if it is earlier.
                failures.sort_by_key(|failure| match failure.when {
                    When::Time(time) => time,
                    _ => 0,
                });
                let plan = Plan {
                    connections: connections(8),
                    steps: failures,
                    strict: true,
                    ..Plan::default()
                };
                let outcome = play(scenario(seed, preset), plan);
                check(
                    &outcome,
                    format_args!("seed {seed}, {preset:?}, {its} and {the_runtimes} ms"),
                );
                assert_eq!(outcome.steps, 2);
            }
        }
    }
}
