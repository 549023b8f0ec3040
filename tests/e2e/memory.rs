//! A box's memory follows the flows that it has, not its limit of flows.

use anyhow::{Result, ensure};
use holdfast_lab::Interrupt;
use holdfast_lab::bench::memory::{Plan, run};
use holdfast_tests::binary;
use holdfast_tests::runner::{Test, light};

pub(crate) fn tests() -> Vec<Test> {
    vec![light(
        "a_limit_costs_nothing_until_it_is_reached",
        6,
        &[],
        a_limit_costs_nothing_until_it_is_reached,
    )]
}

/// A box has a limit of four million flows, which would take more than four gigabytes.
/// Its memory stays small when idle, with two thousand flows, and after a runtime was
/// killed.
fn a_limit_costs_nothing_until_it_is_reached(interrupt: &Interrupt) -> Result<()> {
    let plan = Plan { flows: 2_000, limit: Some(4_000_000), runtimes: 3 };
    let rows = run(&plan, &binary()?, interrupt)?;
    let taken: Vec<u64> = rows.iter().map(|row| row.bytes >> 20).collect();
    let [idle, full, after] = taken[..] else { anyhow::bail!("three rows: {rows:?}") };
    ensure!(idle < 256, "an idle box takes {idle} MiB: {rows:?}");
    // The kernel may back tables with huge pages, so even few flows take some MiB.
    ensure!(
        full < idle + 96 && after < idle + 96,
        "two thousand flows take from {idle} to {full} and {after} MiB: {rows:?}"
    );
    Ok(())
}
