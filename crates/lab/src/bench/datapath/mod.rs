//! `holdfast bench datapath`: the cost of the machinery per packet.
//!
//! The same functions run over the same frames on one core in three ways. `bare` is a
//! loop with a plain hash table, `none` the runtime without protection, and `nfvactor`
//! the runtime with its replica in a second thread. Every case first plays each flow once
//! in each direction, and the output is compared; only then are times taken. The cases
//! take turns, so that a noisy machine disturbs all alike.

mod bare;
mod pair;
mod runtime;
mod stateless;

pub(super) use pair::{Beside, LEASE, Pair, SERVER, introduce, server};
pub(super) use runtime::{Alone, Runs, Sink, ToRuntime, missing, runtime};
pub(super) use stateless::Stateless;

use super::bench_box::MakeChain;
use super::median;
use super::traffic::{self, FRAME_LEN, Player};
use bare::Bare;
use holdfast_protection::Plan as Preset;
use holdfast_wire::nsh::Flags;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Packets in one burst: as many as a runtime's process takes.
pub(super) const BURST: usize = 64;

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Flows, each played in both directions.
    pub flows: usize,
    /// Duration of each case per round.
    pub time: Duration,
    /// Rounds; the median counts.
    pub rounds: usize,
}

/// A row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// `bare`, `none` or `nfvactor`.
    pub case: &'static str,
    /// Flows.
    pub flows: usize,
    /// Median over the rounds.
    pub ns_per_packet: f64,
    /// Median of the ratios taken round by round.
    pub ratio_to_bare: f64,
    /// Allocations during the timed part, per packet.
    pub allocations_per_packet: f64,
    /// Memory per flow, its share of the table included.
    pub bytes_per_flow: usize,
    /// Packets per second, millions.
    pub mpps: f64,
}

/// Runs the plan. `allocations` reads the process's count of allocations.
///
/// # Errors
/// The output was wrong; no time was taken then.
pub fn run(
    plan: &Plan,
    make: MakeChain<'_>,
    allocations: &dyn Fn() -> u64,
) -> Result<Vec<Row>, String> {
    let forward: Vec<[u8; FRAME_LEN]> =
        (0..plan.flows).map(|flow| traffic::udp(traffic::client(flow), traffic::VIRTUAL)).collect();
    let mut bare = Bare::new(plan.flows, make()?);
    let out_bare = bare.open(&forward)?;
    let reverse: Vec<[u8; FRAME_LEN]> = out_bare.iter().map(traffic::reply_to).collect();
    bare.check(&forward, &reverse, &out_bare)?;

    let mut none = Alone::new(plan.flows, make()?);
    let out_none = none.open(&forward)?;
    if out_none != out_bare {
        return Err("the runtime translates other than the bare loop".to_owned());
    }
    none.check(&forward, &reverse, &out_bare)?;

    let mut pair = Pair::new(plan.flows, make()?, make()?, || Preset::NFVACTOR.build())?;
    let out_pair = pair.open(&forward)?;
    if out_pair != out_bare {
        return Err("the replicated runtime translates other than the bare loop".to_owned());
    }
    pair.check(&forward, &reverse, &out_bare)?;

    let both: Vec<[u8; FRAME_LEN]> =
        forward.iter().zip(&reverse).flat_map(|(forward, reverse)| [*forward, *reverse]).collect();
    bare.player = Player::new(both.clone());
    none.play(&both);
    pair.play(&both);

    let mut times: [Vec<f64>; 3] = [Vec::new(), Vec::new(), Vec::new()];
    let mut allocated = [0u64; 3];
    let mut packets = [0u64; 3];
    for round in 0..plan.rounds + 1 {
        for (case, times) in times.iter_mut().enumerate() {
            let before = allocations();
            let started = Instant::now();
            let mut count = 0u64;
            while started.elapsed() < plan.time {
                for _ in 0..64 {
                    count += match case {
                        0 => bare.burst(),
                        1 => none.burst(BURST) as u64,
                        _ => pair.burst(BURST) as u64,
                    };
                }
            }
            let took = started.elapsed();
            // The first round warms caches and queues up and is not counted.
            if round > 0 {
                times.push(took.as_nanos() as f64 / count.max(1) as f64);
                allocated[case] += allocations() - before;
                packets[case] += count;
            }
        }
    }
    pair.drain()?;
    pair.stop();
    let sizes = [bare.bytes_per_flow(), none.bytes_per_flow(), none.bytes_per_flow()];
    let rows = ["bare", "none", "nfvactor"].into_iter().enumerate().map(|(at, case)| {
        let ratios: Vec<f64> =
            times[at].iter().zip(&times[0]).map(|(time, bare)| time / bare).collect();
        let ns_per_packet = median(&times[at]);
        Row {
            version: 1,
            case,
            flows: plan.flows,
            ns_per_packet,
            ratio_to_bare: median(&ratios),
            allocations_per_packet: allocated[at] as f64 / packets[at].max(1) as f64,
            bytes_per_flow: sizes[at],
            mpps: 1000.0 / ns_per_packet,
        }
    });
    Ok(rows.collect())
}

/// A case whose output can be checked before it is timed.
pub(super) trait PlaysOnce<const L: usize> {
    /// Plays frames once, in order, and returns the output. The packets' metadata carries
    /// `flags`, if the case has metadata.
    fn play_once(&mut self, frames: &[[u8; L]], flags: u8) -> Result<Vec<[u8; L]>, String>;

    /// Plays every flow's first packet.
    fn open(&mut self, forward: &[[u8; L]]) -> Result<Vec<[u8; L]>, String> {
        let out = self.play_once(forward, Flags::NEW)?;
        check_forward(forward, &out)?;
        Ok(out)
    }

    /// Plays every flow's second packet, and a reply.
    fn check(
        &mut self,
        forward: &[[u8; L]],
        reverse: &[[u8; L]],
        expected: &[[u8; L]],
    ) -> Result<(), String> {
        let again = self.play_once(forward, 0)?;
        let back = self.play_once(reverse, 0)?;
        check_both(forward, &again, &back, expected)
    }
}

/// Checks that every flow's first packet came out, sound and unlike every other.
fn check_forward<const L: usize>(forward: &[[u8; L]], out: &[[u8; L]]) -> Result<(), String> {
    if out.len() != forward.len() {
        return Err(format!("{} of {} first packets came out", out.len(), forward.len()));
    }
    if let Some(at) = out.iter().position(|frame| !traffic::is_sound(frame)) {
        return Err(format!("frame {at} came out with a wrong checksum"));
    }
    let mut sources: Vec<&[u8]> = out.iter().map(|frame| &frame[26..36]).collect();
    sources.sort_unstable();
    sources.dedup();
    if sources.len() != out.len() {
        return Err("two flows came out alike".to_owned());
    }
    Ok(())
}

/// Checks that a flow's second packet came out like its first, and the reply from the
/// address that the first was sent to.
fn check_both<const L: usize>(
    forward: &[[u8; L]],
    again: &[[u8; L]],
    back: &[[u8; L]],
    expected: &[[u8; L]],
) -> Result<(), String> {
    if again != expected {
        return Err("a flow's second packet came out other than its first".to_owned());
    }
    let wanted: Vec<[u8; L]> = forward.iter().map(traffic::reply_to).collect();
    if back.len() != wanted.len() {
        return Err(format!("{} of {} replies came out", back.len(), wanted.len()));
    }
    match back
        .iter()
        .zip(&wanted)
        .position(|(back, wanted)| back[26..] != wanted[26..] || !traffic::is_sound(back))
    {
        Some(at) => Err(format!("the reply of flow {at} came out wrong")),
        None => Ok(()),
    }
}
