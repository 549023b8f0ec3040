//! Holdings last as long as their flows: numbers, counts in gauges, and entries of
//! tables.

use super::traffic::Traffic;
use super::{Effort, build};
use crate::scenario::Inserted;
use holdfast_nf::Chain;
use holdfast_nf::bench::{Bench, check_holdings};

/// First packets of flows.
const OPENINGS: usize = 64;
/// Every flow has ended by then, ns.
const LONG: u64 = 1_000_000_000_000_000;

pub(super) fn check(function: &Inserted, effort: Effort) -> Result<(), String> {
    let configured = build(function)?;
    check_holdings(&|| configured.bind(), &Traffic::openings(effort.seed, OPENINGS))?;
    let mut bench = Bench::new(Chain::new(vec![configured.bind()]));
    let mut empty: Vec<_> = bench.books();
    empty.extend(bench.tables());
    let mut traffic = Traffic::new(effort.seed);
    for _ in 0..effort.packets {
        let (pause, frame) = traffic.poll();
        bench.wait(pause);
        let sent = bench.send(&frame);
        traffic.handle_sent(sent.as_deref().ok());
    }
    bench.wait(LONG);
    let mut left = bench.books();
    left.extend(bench.tables());
    match left.into_iter().zip(empty).find(|(left, empty)| left != empty) {
        None => Ok(()),
        Some((left, empty)) => Err(format!(
            "after {} packets of seed {} all flows have ended, and `{}` has {:?} instead of {:?}",
            effort.packets, effort.seed, left.field, left.values, empty.values
        )),
    }
}
