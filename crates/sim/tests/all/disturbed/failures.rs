//! Failure after failure in a world with few numbers.

use super::worlds::{MILLISECOND, check, scenario};
use holdfast_sim::{Connection, How, Plan, Preset, Scenario, Step, When, Whom, play};

/// The runtime that owns most flows dies, again and again, each time as soon as the
/// system calls itself safe. Its numbers are granted to runtimes that were started since,
/// and flows come to runtimes that have the blocks of their numbers. No number of a live
/// flow is ever free.
#[test]
fn numbers_stay_with_their_flows_through_failure_after_failure() {
    let mut failures = 0;
    for seed in 0..24 {
        for preset in [Preset::NFVACTOR, Preset::NFVACTOR_AT_SOURCE, Preset::NFACTOR] {
            // New connections make the partitions ask for blocks between the failures.
            let connection = |number: u64| Connection {
                tcp: number % 4 == 3,
                packets: 110 - 6 * number as u32,
                start: (600 + number * 300) * MILLISECOND,
                pause: 50 * MILLISECOND,
                ..Connection::default()
            };
            let failure = |number: u64| Step {
                when: When::Settled(1 + (seed * 7 + number * 13) % 40),
                whom: if number == 0 { Whom::Number(seed as usize) } else { Whom::Owner },
                how: How::Kill,
            };
            let first = Step { when: When::Time(900 * MILLISECOND), ..failure(0) };
            let plan = Plan {
                connections: (0..12).map(connection).collect(),
                steps: std::iter::once(first).chain((1..9).map(failure)).collect(),
                ..Plan::default()
            };
            let outcome = play(Scenario { tight: true, ..scenario(seed, preset) }, plan);
            let broken = outcome.report.violations.first();
            assert!(broken.is_none(), "seed {seed}, {preset:?}: {broken:?}");
            failures += outcome.steps;
        }
    }
    assert!(failures > 200, "the worlds were too peaceful: {failures} failures");
}

/// Rules change again and again while connections begin and the runtime that owns most
/// flows dies. Every packet of a connection takes the chain that its first one took,
/// nothing that left is forgotten, and both chains get connections.
#[test]
fn connections_keep_their_chain_while_rules_change_and_runtimes_die() {
    let (mut failures, mut seen) = (0, [0usize; 2]);
    for seed in 0..24 {
        for preset in [Preset::NFVACTOR, Preset::NFVACTOR_AT_SOURCE] {
            let connection = |number: u64| Connection {
                tcp: number % 2 == 1,
                packets: 60,
                start: (600 + number * 150) * MILLISECOND,
                pause: 40 * MILLISECOND,
                ..Connection::default()
            };
            let failure = |number: u64| Step {
                when: When::Settled(1 + (seed * 5 + number * 11) % 40),
                whom: Whom::Owner,
                how: if number % 3 == 2 { How::Pause(900 * MILLISECOND) } else { How::Kill },
            };
            let first = Step { when: When::Time((700 + seed * 20) * MILLISECOND), ..failure(0) };
            let plan = Plan {
                connections: (0..10).map(connection).collect(),
                steps: std::iter::once(first).chain((1..5).map(failure)).collect(),
                rules: (0..8)
                    .map(|number| {
                        ((660 + number * 290 + seed * 13) * MILLISECOND, (number as u16 + 1) % 2)
                    })
                    .collect(),
                ..Plan::default()
            };
            let outcome = play(Scenario { tight: seed % 2 == 1, ..scenario(seed, preset) }, plan);
            check(&outcome, format_args!("seed {seed}, {preset:?}"));
            failures += outcome.steps;
            // The two NATs have addresses of their own.
            for exit in &outcome.released {
                match exit.ends[0].0 {
                    [198, 51, 100, 4 | 5] => seen[0] += 1,
                    [198, 51, 100, 6 | 7] => seen[1] += 1,
                    _ => {}
                }
            }
        }
    }
    assert!(
        failures > 150 && seen.iter().all(|count| *count > 1000),
        "{failures} failures, {seen:?} packets by chain"
    );
}
