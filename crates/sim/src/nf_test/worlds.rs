//! Worlds whose chain has the function: a runtime dies, or its flows move, after one
//! event after the other.

use super::Effort;
use crate::plan::{How, Outcome, Plan, Whom};
use crate::scenario::{Inserted, Scenario, in_worlds};
use crate::sweep::{Course, disturbed, few_connections, lines};
use holdfast_protection::Plan as Preset;
use holdfast_protection::plan::Shared;
use holdfast_wire::DropReason;
use holdfast_wire::fault::Planted;

/// A disturbance of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// `kill -9`.
    Kill,
    /// All its flows are to move.
    Migrate,
}

impl Disturbance {
    /// Its name among the checks.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Disturbance::Kill => "kill",
            Disturbance::Migrate => "migrate",
        }
    }

    fn how(self) -> How {
        match self {
            Disturbance::Kill => How::Kill,
            Disturbance::Migrate => How::Move(None, 64),
        }
    }
}

pub(super) fn check(
    function: &'static Inserted,
    preset: Preset,
    disturbance: Disturbance,
    effort: Effort,
) -> Result<(), String> {
    let served = preset.shared == Shared::StateServer;
    let preset = in_worlds(preset);
    let scenario = Scenario {
        seed: effort.seed,
        preset,
        planted: Planted::default(),
        quiet: true,
        tight: false,
        served,
        by_key: served,
        servers: 1,
        published: false,
        inspected: false,
        inserted: std::slice::from_ref(function),
    };
    let plan = Plan {
        connections: few_connections(),
        calm: true,
        strict: preset.is_strict(),
        ..Plan::default()
    };
    let Course { undisturbed, events } = Course::of(scenario, &plan);
    judge(&undisturbed, true).map_err(|found| {
        format!(
            "nothing has failed yet, and {found}. Give the function a configuration in which it \
             lets the simulator's clients through: UDP and TCP from 10.0.0.0/8, behind `nat`"
        )
    })?;
    // A flow may be lost with its runtime where the protection promises nothing; a move
    // loses none.
    let must_finish = preset.promises() || disturbance == Disturbance::Migrate;
    let seed = effort.seed;
    if events.is_empty() {
        return Err(format!("the world of seed {seed} has no event to fail at"));
    }
    for (number, event) in events.step_by(effort.every as usize).enumerate() {
        let what = (Whom::Number(number), disturbance.how());
        let (_, outcome) = disturbed(scenario, &plan, event, what)?;
        judge(&outcome, must_finish).map_err(|found| {
            let name = disturbance.name();
            format!("{name} after event {event} of seed {seed}: {found}")
        })?;
    }
    Ok(())
}

/// Says everything that is wrong with a world: one thing often explains another.
fn judge(outcome: &Outcome, must_finish: bool) -> Result<(), String> {
    let mut wrong = Vec::new();
    let panics = outcome.drops.get(DropReason::FunctionPanicked);
    if panics > 0 {
        wrong.push(format!("a function panicked on {panics} packets"));
    }
    let unfinished = outcome.unfinished();
    if must_finish && !unfinished.is_empty() {
        let drop = |(reason, count): (DropReason, u64)| format!("{count} {}", reason.name());
        let drops: Vec<String> = outcome.drops.iter().map(drop).collect();
        let drops = drops.join(", ");
        wrong.push(format!("connections {unfinished:?} do not finish (drops: {drops})"));
    }
    if !outcome.report.violations.is_empty() {
        wrong.push(lines(&outcome.report.violations));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}
