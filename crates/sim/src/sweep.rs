//! Sweeps: one world, played again and again with a failure after another event each
//! time.
//!
//! In: a scenario and a plan. Out: the plan's course without a failure, and plans with
//! one. The suite of every protection and `nf test` are made of these.

use crate::checkers::Violation;
use crate::plan::{Connection, How, Outcome, Plan, Step, When, Whom};
use crate::play;
use crate::scenario::Scenario;
use std::ops::Range;

const MILLISECOND: u64 = 1_000_000;
/// Time by which every runtime has started and knows the others, whatever the network
/// did.
pub const READY: u64 = 600 * MILLISECOND;

/// A few connections of each kind, overlapping, of some tens of packets altogether.
pub fn few_connections() -> Vec<Connection> {
    (0..7)
        .map(|number| Connection {
            tcp: number % 4 == 3,
            packets: 6 + number as u32,
            start: READY + number * 3 * MILLISECOND,
            pause: (4 + number) * MILLISECOND,
            ..Connection::default()
        })
        .collect()
}

/// A plan's course without a failure.
pub struct Course {
    /// Its outcome.
    pub undisturbed: Outcome,
    /// The events from the first connection's beginning until all have finished.
    pub events: Range<u64>,
}

impl Course {
    /// Plays the plan.
    pub fn of(scenario: Scenario, plan: &Plan) -> Course {
        let undisturbed = play(scenario, plan.clone());
        let lasts = plan.connections.iter().map(|one| one.start).min().unwrap_or(0);
        let first = play(scenario, Plan { lasts, ..plan.clone() }).report.events;
        let events = first..undisturbed.quiet_from;
        Course { undisturbed, events }
    }
}

/// Plays the plan with a failure, and nothing else, after this event. Returns that plan,
/// too.
///
/// # Errors
/// The failure never happened.
pub fn disturbed(
    scenario: Scenario,
    plan: &Plan,
    event: u64,
    (whom, how): (Whom, How),
) -> Result<(Plan, Outcome), String> {
    let steps = vec![Step { when: When::Event(event), whom, how }];
    let plan = Plan { steps, ..plan.clone() };
    let outcome = play(scenario, plan.clone());
    if outcome.steps != 1 {
        let seed = scenario.seed;
        return Err(format!("the failure after event {event} of seed {seed} never happened"));
    }
    Ok((plan, outcome))
}

/// Violations in a line.
pub fn lines(violations: &[Violation]) -> String {
    violations
        .iter()
        .map(|violation| format!("{}: {}", violation.invariant, violation.text))
        .collect::<Vec<_>>()
        .join("; ")
}
