//! Flows move, and something happens at every boundary between two events of the move.

use super::worlds::{MILLISECOND, at, check, scenario};
use holdfast_sim::{Connection, How, Outcome, Plan, Preset, Step, Way, When, Whom, play};
use holdfast_wire::NodeId;
use std::collections::BTreeMap;

const SOURCE: Whom = Whom::Node(NodeId::new(16));
const TARGET: Whom = Whom::Node(NodeId::new(17));
const OTHER: Whom = Whom::Node(NodeId::new(18));
/// Time of the order, ms: every process runs, and every connection is under way.
const ORDERED: u64 = 500;

fn plan(calm: bool) -> Plan {
    let connection = |number: u64| Connection {
        tcp: number % 2 == 1,
        packets: 40,
        start: (300 + number * 7) * MILLISECOND,
        pause: (9 + number) * MILLISECOND,
        ..Connection::default()
    };
    let steps = vec![at(ORDERED, SOURCE, How::Move(Some(NodeId::new(17)), 64))];
    Plan {
        connections: (0..6).map(connection).collect(),
        steps,
        calm,
        lasts: 30_000 * MILLISECOND,
        ..Plan::default()
    }
}

/// Plays the move without disturbance, and then with one after every `stride`-th event
/// from the order on until the move is over. Every connection finishes, and nothing that
/// left is forgotten. Returns the number of disturbed worlds, and the sum of what `count`
/// finds in them.
fn disturb(
    preset: Preset,
    calm: bool,
    whom: Whom,
    how: How,
    stride: usize,
    count: impl Fn(&Outcome) -> u64,
) -> (usize, u64) {
    let plan = plan(calm);
    let seed = 3;
    let moved = |plan: &Plan| play(scenario(seed, preset), plan.clone()).report;
    let begins = moved(&Plan { lasts: ORDERED * MILLISECOND, ..plan.clone() }).events;
    let ends = moved(&Plan { lasts: (ORDERED + 60) * MILLISECOND, ..plan.clone() });
    assert!(ends.faults.moved > 0, "no flow has moved");
    let (mut worlds, mut sum) = (0, 0);
    for event in (begins..ends.events).step_by(stride) {
        let mut plan = plan.clone();
        plan.steps.push(Step { when: When::Event(event), whom, how });
        let outcome = play(scenario(seed, preset), plan);
        check(&outcome, format_args!("{preset:?}, calm: {calm}, event {event}"));
        assert_eq!(outcome.steps, 2);
        sum += count(&outcome);
        worlds += 1;
    }
    assert!(worlds > 5, "only {worlds} boundaries");
    (worlds, sum)
}

/// Source, target, the third runtime, switch or coordinator dies.
#[test]
fn a_death_at_every_boundary_of_a_migration_loses_no_flow() {
    for preset in [Preset::NFVACTOR, Preset::NFVACTOR_AT_SOURCE, Preset::NFACTOR] {
        for whom in [SOURCE, TARGET, OTHER] {
            let (worlds, kills) =
                disturb(preset, true, whom, How::Kill, 61, |outcome| outcome.report.faults.kills);
            assert_eq!(kills, worlds as u64);
        }
        disturb(preset, true, Whom::Hub, How::Pause(20 * MILLISECOND), 61, |_| 0);
        disturb(preset, true, Whom::Coordinator, How::Pause(300 * MILLISECOND), 97, |_| 0);
    }
}

/// A runtime stands still until it has been given up, and comes back.
#[test]
fn a_stop_at_every_boundary_of_a_migration_loses_no_flow() {
    for preset in [Preset::NFVACTOR, Preset::NFVACTOR_AT_SOURCE] {
        for whom in [SOURCE, TARGET, OTHER] {
            let how = How::Pause(450 * MILLISECOND);
            let (worlds, given_up) =
                disturb(preset, true, whom, how, 113, |outcome| outcome.failovers as u64);
            assert_eq!(given_up, worlds as u64);
        }
    }
}

/// A link is cut, one way or both, for less time than it takes to be given up, and for
/// more.
#[test]
fn a_cut_at_every_boundary_of_a_migration_loses_no_flow() {
    for preset in [Preset::NFVACTOR, Preset::NFVACTOR_AT_SOURCE] {
        for whom in [SOURCE, TARGET] {
            for way in [Way::Out, Way::In, Way::Both] {
                let how = |time: u64| How::Cut(way, time * MILLISECOND);
                let (_, given_up) =
                    disturb(preset, true, whom, how(100), 173, |outcome| outcome.failovers as u64);
                assert_eq!(given_up, 0, "{way:?}");
                disturb(preset, true, whom, how(700), 173, |_| 0);
            }
        }
    }
}

/// The same in a network that loses, doubles and reorders.
#[test]
fn a_death_at_every_boundary_loses_no_flow_where_frames_get_lost() {
    for preset in [Preset::NFVACTOR, Preset::NFVACTOR_AT_SOURCE, Preset::NFACTOR] {
        for whom in [SOURCE, TARGET] {
            disturb(preset, false, whom, How::Kill, 89, |_| 0);
        }
    }
}

/// The numbers of the datagrams that left, per connection and direction, in order.
fn datagrams(outcome: &Outcome) -> BTreeMap<(usize, bool), Vec<u32>> {
    let mut left: BTreeMap<(usize, bool), Vec<u32>> = BTreeMap::new();
    for exit in &outcome.released {
        let (Some(connection), Some(payload)) = (exit.connection(), exit.frame.get(42..50)) else {
            continue;
        };
        let number = payload[4..8].iter().fold(0u32, |number, &byte| number << 8 | u32::from(byte));
        left.entry((connection, exit.ends[1].0[0] == 10)).or_default().push(number);
    }
    left
}

/// A slow runtime is taken out of service while other runtimes' packets wait there for
/// the states that they reveal. The next holder of the copies lets no later packet of a
/// flow out before these, and none is lost.
#[test]
fn a_drain_of_a_slow_holder_keeps_the_order() {
    for preset in [Preset::NFVACTOR, Preset::NFVACTOR_AT_SOURCE] {
        // With two runtimes nobody is left to hold the copies. Packets leave unprotected
        // then, but not before those that are still at the slow one.
        for (runtimes, node) in [(3, 16), (3, 17), (3, 18), (2, 16), (2, 17)] {
            let connection = |number: u64| Connection {
                tcp: false,
                packets: 500,
                start: 300 * MILLISECOND + number * 100_000,
                pause: MILLISECOND,
                ..Connection::default()
            };
            let whom = Whom::Node(NodeId::new(node));
            let steps =
                vec![at(500, whom, How::Slow(400, 900 * MILLISECOND)), at(522, whom, How::Drain)];
            let connections = (0..8).map(connection).collect();
            let plan = Plan {
                connections,
                steps,
                runtimes,
                calm: true,
                lasts: 30_000 * MILLISECOND,
                ..Plan::default()
            };
            let outcome = play(scenario(3, preset), plan);
            check(&outcome, format_args!("{preset:?}, {node} of {runtimes}"));
            let left = datagrams(&outcome);
            assert_eq!(left.len(), 16);
            for (way, numbers) in left {
                let late: Vec<&[u32]> =
                    numbers.windows(2).filter(|pair| pair[0] >= pair[1]).collect();
                assert!(late.is_empty(), "{preset:?}, {node} of {runtimes}: {way:?}: {late:?}");
                // A datagram that is answered late is sent again.
                assert!(numbers.len() >= 500, "{preset:?}, {node} of {runtimes}: {way:?}");
            }
        }
    }
}
