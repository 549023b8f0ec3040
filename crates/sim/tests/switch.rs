//! Worlds in which switch and manager are killed, and their next life finds the processes as they are.

use holdfast_sim::{Connection, Failure, How, Plan, Planted, Preset, Scenario, When, Whom, play};

const MILLISECOND: u64 = 1_000_000;

fn scenario(seed: u64, preset: Preset) -> Scenario {
    Scenario { seed, preset, planted: Planted::default(), quiet: true, tight: seed.is_multiple_of(2) }
}

fn connections(count: u64) -> Vec<Connection> {
    let connection = |number: u64| Connection {
        tcp: number % 3 == 2,
        packets: 12,
        start: (300 + number * 90) * MILLISECOND,
        pause: 25 * MILLISECOND,
    };
    (0..count).map(connection).collect()
}

/// Both are killed after every so many events, from the very first on: while the runtimes start, while flows open, while nothing happens. Every connection
/// finishes, whatever the protection: what the flow actors know is enough.
#[test]
fn their_death_between_any_two_events_breaks_nothing() {
    let mut kills = 0;
    for (seed, preset) in [(1, Preset::Replica), (2, Preset::Source), (3, Preset::None)] {
        let plan = Plan { connections: connections(8), calm: true, ..Plan::default() };
        let undisturbed = play(scenario(seed, preset), plan.clone());
        for event in (1..undisturbed.quiet_from).step_by(53) {
            let failures =
                vec![Failure { when: When::Event(event), whom: Whom::Hub, how: How::Pause((1 + event % 7 * 9) * MILLISECOND) }];
            let outcome = play(scenario(seed, preset), Plan { failures, ..plan.clone() });
            let broken = outcome.report.violations.first();
            assert!(broken.is_none(), "{preset:?}, event {event}: {broken:?}");
            assert!(outcome.finished.iter().all(|done| *done), "{preset:?}, event {event}: {:?}", outcome.finished);
            kills += outcome.report.faults.hub_kills;
        }
    }
    assert!(kills > 100, "only {kills} kills");
}

/// The runtime that owns most flows dies with them, or shortly before or after: its flows are claimed from a switch that has never heard of them.
#[test]
fn a_runtime_may_die_with_them() {
    let mut failures_seen = 0;
    for seed in 0..12 {
        for preset in [Preset::Replica, Preset::Source] {
            for (hub, runtime) in [(700, 700), (700, 701), (700, 712), (700, 730), (701, 700), (706, 700), (730, 700)] {
                let away =
                    Failure { when: When::Time(hub * MILLISECOND), whom: Whom::Hub, how: How::Pause((1 + seed) * MILLISECOND) };
                let death = Failure { when: When::Time(runtime * MILLISECOND), whom: Whom::Owner, how: How::Kill };
                let failures = if hub <= runtime { vec![away, death] } else { vec![death, away] };
                let plan = Plan { connections: connections(8), failures, strict: true, ..Plan::default() };
                let outcome = play(scenario(seed, preset), plan);
                let broken = outcome.report.violations.first();
                assert!(broken.is_none(), "seed {seed}, {preset:?}, {hub} and {runtime} ms: {broken:?}");
                assert!(outcome.finished.iter().all(|done| *done), "seed {seed}, {preset:?}: {:?}", outcome.finished);
                failures_seen += outcome.failures;
            }
        }
    }
    assert_eq!(failures_seen, 12 * 2 * 7 * 2);
}
