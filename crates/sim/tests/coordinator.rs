//! Worlds in which the coordinator is killed and begins again from its log.

use holdfast_sim::{Connection, Failure, How, Plan, Planted, Preset, Scenario, When, Whom, play};
use holdfast_wire::DropReason;

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

/// The coordinator is killed after every so many events, from the very first on: while the runtimes start, while flows open, while nothing happens.
/// Nobody notices: every connection finishes, those that begin while it is away too, and no packet is lost for it.
#[test]
fn its_death_between_any_two_events_is_not_noticed() {
    let mut kills = 0;
    for (seed, preset) in [(1, Preset::Replica), (2, Preset::Source), (3, Preset::None)] {
        let plan = Plan { connections: connections(8), calm: true, ..Plan::default() };
        let undisturbed = play(scenario(seed, preset), plan.clone());
        for event in (1..undisturbed.quiet_from).step_by(41) {
            let how = How::Pause((50 + event % 7 * 100) * MILLISECOND);
            let failures = vec![Failure { when: When::Event(event), whom: Whom::Coordinator, how }];
            let outcome = play(scenario(seed, preset), Plan { failures, ..plan.clone() });
            let broken = outcome.report.violations.first();
            assert!(broken.is_none(), "{preset:?}, event {event}: {broken:?}");
            assert!(outcome.finished.iter().all(|done| *done), "{preset:?}, event {event}: {:?}", outcome.finished);
            kills += outcome.report.faults.coordinator_kills;
        }
    }
    assert!(kills > 100, "only {kills} kills");
}

/// The coordinator is away, and the runtime that owns most flows dies; or it dies first, and the coordinator in the middle of having it recovered. The
/// flows are served again when the coordinator is back, and nothing that left is forgotten.
#[test]
fn a_failure_while_it_is_away_is_mended_when_it_is_back() {
    let mut failures_seen = 0;
    for seed in 0..30 {
        for preset in [Preset::Replica, Preset::Source] {
            for (coordinator, runtime) in [(700, 760), (700, 1200), (705, 700), (702, 700), (720, 700)] {
                let away = Failure {
                    when: When::Time(coordinator * MILLISECOND),
                    whom: Whom::Coordinator,
                    how: How::Pause((200 + seed * 20) * MILLISECOND),
                };
                let death = Failure { when: When::Time(runtime * MILLISECOND), whom: Whom::Owner, how: How::Kill };
                let failures = if coordinator < runtime { vec![away, death] } else { vec![death, away] };
                let plan = Plan { connections: connections(8), failures, strict: true, ..Plan::default() };
                let outcome = play(scenario(seed, preset), plan);
                let broken = outcome.report.violations.first();
                assert!(broken.is_none(), "seed {seed}, {preset:?}, {coordinator} and {runtime} ms: {broken:?}");
                assert!(outcome.finished.iter().all(|done| *done), "seed {seed}, {preset:?}: {:?}", outcome.finished);
                failures_seen += outcome.failures;
            }
        }
    }
    assert_eq!(failures_seen, 30 * 2 * 5 * 2);
}

/// More flows come than there are numbers in the blocks that the runtimes have, and nobody is there to grant the last one. Flows that are established go
/// on; new ones wait, and then their packets are dropped with a reason; when the coordinator is back they are served.
#[test]
fn without_blocks_new_flows_wait_and_others_go_on() {
    let early = (0..300).map(|number| Connection {
        tcp: false,
        packets: 120,
        start: (300 + number) * MILLISECOND,
        pause: 40 * MILLISECOND,
    });
    let late = (0..560).map(|number| Connection {
        tcp: false,
        packets: 3,
        start: (1_000 + number * 2) * MILLISECOND,
        pause: 90 * MILLISECOND,
    });
    let connections: Vec<Connection> = early.chain(late).collect();
    let (killed, back) = (900 * MILLISECOND, 4_900 * MILLISECOND);
    let failures = vec![Failure { when: When::Time(killed), whom: Whom::Coordinator, how: How::Pause(back - killed) }];
    let plan = Plan { connections, failures, calm: true, flows: 512, lasts: 60_000 * MILLISECOND, ..Plan::default() };
    let outcome = play(Scenario { tight: true, ..scenario(5, Preset::None) }, plan);
    assert_eq!(outcome.report.violations, []);
    let drops: Vec<_> = outcome.drops.iter().collect();
    assert!(outcome.finished.iter().all(|done| *done), "{} finished: {drops:?}", outcome.report.finished);
    let waited = outcome.drops.get(DropReason::ParkedTooLong);
    assert!(waited > 0, "nobody had to wait: {:?}", outcome.drops.iter().collect::<Vec<_>>());
    // Every packet of the early ones was answered at once: none was sent a second time.
    let early_exits = outcome.released.iter().filter(|exit| exit.connection().is_some_and(|number| number < 300)).count();
    assert_eq!(early_exits, 300 * 120 * 2, "there and back");
}
