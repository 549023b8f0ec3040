//! What a box takes of memory follows what it has, and not what it may have.

use anyhow::{Result, ensure};
use holdfast_lab::Interrupt;
use holdfast_lab::bench::memory::{Plan, run};
use holdfast_tests::binary;
use holdfast_tests::runner::{Test, light};

pub(crate) fn tests() -> Vec<Test> {
    vec![light("a_limit_costs_nothing_until_it_is_reached", 6, &[], a_limit_costs_nothing_until_it_is_reached)]
}

/// A box that may have four million flows, for which it would take more than four gigabytes, has none, then two thousand, then one runtime less for a moment.
fn a_limit_costs_nothing_until_it_is_reached(interrupt: &Interrupt) -> Result<()> {
    let plan = Plan { flows: 2_000, limit: Some(4_000_000), runtimes: 3 };
    let rows = run(&plan, &binary()?, interrupt)?;
    let taken: Vec<u64> = rows.iter().map(|row| row.bytes >> 20).collect();
    let [idle, full, after] = taken[..] else { anyhow::bail!("three rows: {rows:?}") };
    ensure!(idle < 256, "an idle box takes {idle} MiB: {rows:?}");
    // The first of a table's pages are large ones.
    ensure!(full < idle + 96 && after < idle + 96, "two thousand flows take from {idle} to {full} and {after} MiB: {rows:?}");
    Ok(())
}
