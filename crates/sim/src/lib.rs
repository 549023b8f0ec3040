//! The deterministic simulator: the production state machines in a seeded world.
//!
//! In: a seed. Out: a report of what was done to the world and which invariants broke.
//! Never: a real clock, a thread that could change the order of events, randomness from
//! anywhere but the seed.
#![forbid(unsafe_code)]

mod checkers;
mod conversation;
mod frames;
mod loss;
pub mod nf_test;
mod peers;
mod plan;
mod published;
mod random;
mod refuser;
mod scenario;
mod script;
mod shrink;
mod stamper;
pub mod sweep;
mod world;

pub use checkers::Violation;
pub use conversation::Heard;
/// A protection's plan. This crate's [`Plan`] says what happens in a world.
pub use holdfast_protection::Plan as Preset;
pub use holdfast_wire::fault::{Fault, Planted, plant};
pub use peers::SILENT;
pub use plan::{
    ANYBODY, Clock, Connection, End, Exit, Fact, Habits, How, Outcome, Plan, Reset, Step, Way,
    When, Whom,
};
pub use random::Random;
pub use refuser::{GUARDED, SHUT, limited, passes};
pub use scenario::{
    COMBINED_FROM, INSPECTED_FROM, Inserted, LIMITED_FROM, PUBLISHED_FROM, Scenario, in_worlds,
    presets,
};
pub use script::{Expect, Script, ScriptError};
pub use shrink::shrink;
pub use world::{Faults, Report, World};

/// Runs one seed.
pub fn run(scenario: Scenario) -> Report {
    World::new(scenario, false).run()
}

/// Runs a plan.
pub fn play(scenario: Scenario, plan: Plan) -> Outcome {
    World::planned(scenario, plan, false).play()
}

/// Runs one seed and prints every event to standard output.
pub fn run_traced(scenario: Scenario) -> Report {
    World::new(scenario, true).run()
}

#[allow(clippy::print_stdout)]
fn print_trace(line: core::fmt::Arguments<'_>) {
    println!("{line}");
}
