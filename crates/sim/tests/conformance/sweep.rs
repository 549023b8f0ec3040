//! Worlds for the requirements: a failure after every few events, and checks of what came
//! of it.

use crate::mix::{Mix, SHARE};
use holdfast_sim::sweep::{Course, disturbed};
use holdfast_sim::{Exit, How, Outcome, Plan, Planted, Scenario, Whom};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

pub(crate) use holdfast_sim::sweep::{READY, few_connections, lines};

pub(crate) const MICROSECOND: u64 = 1_000;
pub(crate) const MILLISECOND: u64 = 1_000_000;

macro_rules! require {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}
pub(crate) use require;

pub(crate) fn scenario(seed: u64, mix: Mix) -> Scenario {
    let Mix { preset, served, servers } = mix;
    Scenario {
        seed,
        preset,
        planted: Planted::default(),
        quiet: true,
        tight: false,
        served,
        by_key: served,
        servers,
        published: false,
        inspected: false,
        inserted: &[],
    }
}

/// The same cases in every run with the same share, so that a failure is there again when
/// it is looked for.
pub(crate) fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(
        config,
        TestRng::from_seed(RngAlgorithm::ChaCha, &[SHARE.first as u8; 32]),
    )
}

/// Checks that need no promise.
pub(crate) fn check_basics(mix: Mix, plan: &Plan, outcome: &Outcome) -> Result<(), String> {
    require!(
        outcome.report.violations.is_empty(),
        "seed {}, {:?}, {:?}: {}",
        outcome.report.seed,
        mix,
        plan.steps,
        lines(&outcome.report.violations)
    );
    Ok(())
}

pub(crate) fn check_finished(mix: Mix, plan: &Plan, outcome: &Outcome) -> Result<(), String> {
    let stuck = outcome.unfinished();
    require!(
        stuck.is_empty(),
        "seed {}, {mix:?}, {:?}: connections {stuck:?} did not finish",
        outcome.report.seed,
        plan.steps
    );
    Ok(())
}

pub(crate) type Flow = ([([u8; 4], u16); 2], u8);

pub(crate) fn by_flow(released: &[Exit]) -> BTreeMap<Flow, Vec<&[u8]>> {
    let mut flows: BTreeMap<Flow, Vec<&[u8]>> = BTreeMap::new();
    for exit in released {
        flows.entry((exit.ends, exit.protocol)).or_default().push(&exit.frame);
    }
    flows
}

/// Like [`sweep_over`], with runtimes that take turns in failing; every one owns flows.
pub(crate) fn sweep(
    scenario: Scenario,
    plan: &Plan,
    how: How,
    step: u64,
    look: impl FnMut(&Plan, Outcome) -> Result<(), String>,
) -> Result<(), String> {
    sweep_over(scenario, plan, (Whom::Number, how), step, look)
}

/// Plays a plan with a failure after every `step`-th event of the undisturbed run, from
/// the first connection on until all have finished.
pub(crate) fn sweep_over(
    scenario: Scenario,
    plan: &Plan,
    victim: (impl Fn(usize) -> Whom, How),
    step: u64,
    mut look: impl FnMut(&Plan, Outcome) -> Result<(), String>,
) -> Result<(), String> {
    sweep_while(scenario, plan, victim, step, |plan, outcome| {
        look(plan, outcome).map(|()| ControlFlow::Continue(()))
    })
}

/// Runtimes take turns in failing until more than `enough` of these failures were seen to
/// do harm. Returns how many were.
pub(crate) fn harms(
    scenario: Scenario,
    plan: &Plan,
    how: How,
    step: u64,
    enough: usize,
    mut does_harm: impl FnMut(&Plan, Outcome) -> Result<bool, String>,
) -> Result<usize, String> {
    let mut harms = 0;
    sweep_while(scenario, plan, (Whom::Number, how), step, |plan, outcome| {
        harms += usize::from(does_harm(plan, outcome)?);
        Ok(if harms > enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(harms)
}

fn sweep_while(
    scenario: Scenario,
    plan: &Plan,
    (whom, how): (impl Fn(usize) -> Whom, How),
    step: u64,
    mut look: impl FnMut(&Plan, Outcome) -> Result<ControlFlow<()>, String>,
) -> Result<(), String> {
    let mix = Mix { preset: scenario.preset, served: scenario.served, servers: scenario.servers };
    let Course { undisturbed, events: Range { start: first, end: last } } =
        Course::of(scenario, plan);
    // A protection is not held to a promise that it does not give.
    let is_held = !plan.strict || scenario.preset.may_forget() == 0;
    if scenario.planted == Planted::default() && is_held {
        check_basics(mix, plan, &undisturbed)?;
    }
    check_finished(mix, plan, &undisturbed)?;
    let mut runs = 0;
    let is_planted = scenario.planted != Planted::default();
    let always = (first..last).step_by(step as usize * mix.always_every());
    let events: Vec<u64> =
        if is_planted { always.collect() } else { mix.some_of(first..last, step).collect() };
    for event in events {
        let (plan, outcome) = disturbed(scenario, plan, event, (whom(runs), how))?;
        if look(&plan, outcome)?.is_break() {
            return Ok(());
        }
        runs += 1;
    }
    require!(
        runs > 20 / mix.every().max(mix.always_every()),
        "only {runs} boundaries between events {first} and {last}"
    );
    Ok(())
}
