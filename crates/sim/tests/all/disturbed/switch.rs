//! Worlds in which switch and manager are killed; their next incarnation finds the
//! processes as they are.

use super::worlds::{dies_with_a_runtime, sweep};
use holdfast_sim::Whom;

/// Both are killed after every so many events, from the very first on: while the runtimes
/// start, while flows open, while nothing happens. Every connection finishes under any
/// protection, because the flow actors know enough.
#[test]
fn their_death_between_any_two_events_breaks_nothing() {
    let kills =
        sweep(Whom::Hub, 53, |event| 1 + event % 7 * 9, |outcome| outcome.report.faults.hub_kills);
    assert!(kills > 100, "only {kills} kills");
}

/// The runtime that owns most flows dies with them, or shortly before or after. Its flows
/// are claimed from a switch that has never heard of them.
#[test]
fn a_runtime_may_die_with_them() {
    let times =
        [(700, 700), (700, 701), (700, 712), (700, 730), (701, 700), (706, 700), (730, 700)];
    dies_with_a_runtime(12, Whom::Hub, &times, |seed| 1 + seed);
}
