//! The same packets, and so the same packets, states and counts: for a function made
//! once, a second time, and once more from its configuration.
//!
//! A clock, a random number of the function's own, an address of memory, the order of a
//! hash map, or a value that the function keeps beside its state differs between the
//! three.

use super::difference::{self, After};
use super::traffic::Traffic;
use super::{Effort, build};
use crate::scenario::Inserted;
use holdfast_nf::Chain;
use holdfast_nf::bench::Bench;

/// Packets between two looks at whole pools and tables.
const RARELY: u32 = 256;

pub(super) fn check(function: &Inserted, effort: Effort) -> Result<(), String> {
    let (one, other) = (build(function)?, build(function)?);
    let mut benches = [&one, &one, &other].map(|of| Bench::new(Chain::new(vec![of.bind()])));
    let mut traffic = Traffic::new(effort.seed);
    for number in 1..=effort.packets {
        let (pause, frame) = traffic.poll();
        let after = benches.each_mut().map(|bench| {
            bench.wait(pause);
            let sent = bench.send(&frame);
            After::of(bench, sent)
        });
        let [first, others @ ..] = &after;
        let differing = others.iter().find_map(|other| first.differs_from(other, &*one));
        let differing = differing.or_else(|| difference::shared(&mut benches)).or_else(|| {
            let is_due = number % RARELY == 0 || number == effort.packets;
            let [bench, others @ ..] = &mut benches;
            let mut others = others.iter_mut().filter(|_| is_due);
            others.find_map(|other| difference::books(bench, other))
        });
        if let Some(differing) = differing {
            return Err(format!(
                "packet {number} of seed {} ({}): {differing}. The function must know \
                 nothing but the packet, the flow's state, shared state and its context; \
                 `cx.now()` and `cx.random()` are its time and its randomness",
                effort.seed,
                traffic.described(&frame)
            ));
        }
        traffic.handle_sent(first.frame());
    }
    Ok(())
}
