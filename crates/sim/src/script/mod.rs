//! A world as a text: its ingredients, its steps, and what is expected of it, each on a
//! line.
//!
//! ```text
//! # The runtime with most flows dies; the others serve them.
//! seed 7
//! protection nfvactor_at_replica
//! network calm
//! at 300ms open tcp 10.0.0.2:4000 -> 203.0.113.10:80, 12 packets, one every 25ms
//! at 400ms kill owner
//! once safe expect owner owns flows
//! expect failovers 1
//! ```
//!
//! In: a text in this form, or a plan. Out: worlds, or the text. A shrunk failure is
//! printed in this form, and can be played again.

mod read;
mod write;

pub use read::ScriptError;
pub(crate) use write::record_name;

use crate::plan::{Outcome, Plan};
use crate::scenario::Scenario;
use crate::world::World;
use holdfast_wire::DropReason;

/// An expectation of a world when it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// This invariant is broken.
    Violation(String),
    /// Packets were dropped for this reason.
    Drops(DropReason),
    /// This many runtimes were given up.
    Failovers(usize),
    /// Flows moved.
    Moved,
    /// This connection, counted from 1, does not finish.
    Unfinished(usize),
}

/// A script, see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// Name of the world, if one text describes several.
    pub name: String,
    /// The world's ingredients.
    pub scenario: Scenario,
    /// The plan.
    pub plan: Plan,
    /// Expectations. Without any, no invariant is broken, every connection finishes and
    /// every step is taken.
    pub expects: Vec<Expect>,
}

impl Script {
    /// The worlds that a text describes.
    ///
    /// # Errors
    /// The line that is wrong, and what was expected there.
    pub fn read(text: &str) -> Result<Vec<Script>, ScriptError> {
        read::read(text)
    }

    /// Plays the world. Disappointed expectations come with the outcome.
    pub fn play(&self, trace: bool) -> (Outcome, Vec<String>) {
        self.judge(self.world(trace).play())
    }

    /// Plays the world, and records the messages between nodes.
    pub fn converse(&self) -> (Outcome, Vec<String>) {
        self.judge(self.world(false).listening().play())
    }

    fn world(&self, trace: bool) -> World {
        World::planned(self.scenario, Plan { live: true, ..self.plan.clone() }, trace)
    }

    fn judge(&self, outcome: Outcome) -> (Outcome, Vec<String>) {
        let expects_violation =
            self.expects.iter().any(|expect| matches!(expect, Expect::Violation(_)));
        let mut wrong = Vec::new();
        for expect in &self.expects {
            let is_so = match expect {
                Expect::Violation(name) => {
                    outcome.report.violations.iter().any(|violation| violation.invariant == name)
                }
                Expect::Drops(reason) => outcome.drops.get(*reason) > 0,
                Expect::Failovers(count) => outcome.failovers == *count,
                Expect::Moved => outcome.report.faults.moved > 0,
                Expect::Unfinished(number) => {
                    outcome.finished.get(number - 1).is_some_and(|done| !done)
                }
            };
            if !is_so {
                wrong.push(format!("expected, and not so: {}", write::expect(expect)));
            }
        }
        let is_expected = |at: usize| self.expects.contains(&Expect::Unfinished(at + 1));
        let mut stuck =
            (0..outcome.finished.len()).filter(|at| !outcome.finished[*at] && !is_expected(*at));
        if let Some(at) = stuck.next().filter(|_| !expects_violation) {
            wrong.push(format!("connection {} did not finish", at + 1));
        }
        if outcome.steps < self.plan.steps.len() && !expects_violation {
            wrong.push(format!(
                "only {} of {} steps were taken; the next is: {}",
                outcome.steps,
                self.plan.steps.len(),
                write::step(&self.plan.steps[outcome.steps])
            ));
        }
        let has_liveness =
            self.expects.iter().any(|expect| matches!(expect, Expect::Unfinished(_)));
        let surprises = outcome.report.violations.iter().filter(|found| {
            let is_named = |expect: &Expect| matches!(expect, Expect::Violation(name) if *name == found.invariant);
            !(self.expects.iter().any(is_named) || has_liveness && found.invariant == "liveness")
        });
        // A single bug may break more than one invariant.
        if !expects_violation {
            wrong.extend(surprises.map(|found| format!("{}: {}", found.invariant, found.text)));
        }
        (outcome, wrong)
    }
}
