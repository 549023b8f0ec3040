//! Holdings last as long as their flows: numbers, counts in gauges, and entries of
//! tables.

use super::traffic::Traffic;
use super::{Effort, build, difference};
use crate::scenario::Inserted;
use holdfast_nf::Chain;
use holdfast_nf::bench::{Bench, LONG, check_holdings};

/// First packets of flows.
const OPENINGS: usize = 64;

pub(super) fn check(function: &Inserted, effort: Effort) -> Result<(), String> {
    let configured = build(function)?;
    check_holdings(&|| configured.bind(), &Traffic::openings(effort.seed, OPENINGS))?;
    let [mut bench, mut unused] = [0, 1].map(|_| Bench::new(Chain::new(vec![configured.bind()])));
    let mut traffic = Traffic::new(effort.seed);
    for _ in 0..effort.packets {
        let (pause, frame) = traffic.poll();
        bench.wait(pause);
        let sent = bench.send(&frame);
        traffic.handle_sent(sent.as_deref().ok());
    }
    bench.wait(LONG);
    match difference::books(&mut bench, &mut unused) {
        None => Ok(()),
        Some(differing) => Err(format!(
            "after {} packets of seed {} all flows have ended. Then, and at a function without \
             flows: {differing}",
            effort.packets, effort.seed
        )),
    }
}
