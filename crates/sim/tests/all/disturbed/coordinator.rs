//! Worlds in which the coordinator is killed and begins again from its log.

use super::worlds::{MILLISECOND, at, dies_with_a_runtime, scenario, sweep};
use holdfast_sim::{Connection, How, Plan, Preset, Scenario, Whom, play};
use holdfast_wire::DropReason;

/// The coordinator is killed after every so many events, from the very first on: while
/// the runtimes start, while flows open, while nothing happens. Its death is not noticed:
/// every connection finishes, also those that begin while it is away, and no packet is
/// lost for it.
#[test]
fn its_death_between_any_two_events_is_not_noticed() {
    let kills = sweep(
        Whom::Coordinator,
        41,
        |event| 50 + event % 7 * 100,
        |outcome| outcome.report.faults.coordinator_kills,
    );
    assert!(kills > 100, "only {kills} kills");
}

/// The runtime that owns most flows dies while the coordinator is away; or the runtime
/// dies first, and the coordinator in the middle of the recovery. The flows are served
/// again when the coordinator is back, and nothing that left is forgotten.
#[test]
fn a_failure_while_it_is_away_is_mended_when_it_is_back() {
    let times = [(700, 760), (700, 1200), (705, 700), (702, 700), (720, 700)];
    dies_with_a_runtime(30, Whom::Coordinator, &times, |seed| 200 + seed * 20);
}

/// More flows come than there are numbers in the runtimes' blocks, and no coordinator is
/// there to grant the last one. Established flows go on. New ones wait, and then their
/// packets are dropped with a reason; when the coordinator is back these flows are
/// served.
#[test]
fn without_blocks_new_flows_wait_and_others_go_on() {
    let early = (0..300).map(|number| Connection {
        tcp: false,
        packets: 120,
        start: (300 + number) * MILLISECOND,
        pause: 40 * MILLISECOND,
        ..Connection::default()
    });
    let late = (0..560).map(|number| Connection {
        tcp: false,
        packets: 3,
        start: (1_000 + number * 2) * MILLISECOND,
        pause: 90 * MILLISECOND,
        ..Connection::default()
    });
    let connections: Vec<Connection> = early.chain(late).collect();
    let failures = vec![at(900, Whom::Coordinator, How::Pause(4_000 * MILLISECOND))];
    let plan = Plan {
        connections,
        steps: failures,
        calm: true,
        flows: 512,
        lasts: 60_000 * MILLISECOND,
        ..Plan::default()
    };
    let outcome = play(Scenario { tight: true, ..scenario(5, Preset::NONE) }, plan);
    assert_eq!(outcome.report.violations, []);
    let drops: Vec<_> = outcome.drops.iter().collect();
    assert!(
        outcome.finished.iter().all(|done| *done),
        "{} finished: {drops:?}",
        outcome.report.finished
    );
    let waited = outcome.drops.get(DropReason::ParkedTooLong);
    assert!(waited > 0, "nobody had to wait: {:?}", outcome.drops.iter().collect::<Vec<_>>());
    // Every packet of the early connections was answered at once: none was sent a second
    // time.
    let early_exits = outcome
        .released
        .iter()
        .filter(|exit| exit.connection().is_some_and(|number| number < 300))
        .count();
    assert_eq!(early_exits, 300 * 120 * 2, "there and back");
}
