//! `holdfast bench local`: the cost of a runtime's local standby.
//!
//! The same functions run over the same frames, each case in processes of its own, as in
//! a box. `none` is a runtime without protection; `local` one whose worker could be
//! replaced after any turn. This process fills the runtime's ring, and then takes the
//! output as fast as it comes. Every case first plays each flow in both directions, and
//! the outputs are compared, as they are again at the end; times count only if both
//! agree. The cases take turns, so that a noisy machine disturbs both alike. Frames come
//! in an order without locality.

use super::bench_box::MakeChain;
use super::served::{Functions, Served};
use super::traffic::{self, FRAME_LEN};
use super::{PlaysOnce, median};
use holdfast_sim::Random;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Flows, each played in both directions.
    pub flows: usize,
    /// Duration of each case per round and length.
    pub time: Duration,
    /// Rounds; the median counts.
    pub rounds: usize,
}

/// A chain to measure: its name, its functions, and how it is made.
pub type NamedChain<'a> = (&'static str, Functions, MakeChain<'a>);

/// A row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// Name of the chain.
    pub chain: &'static str,
    /// `none` or `local`.
    pub case: &'static str,
    /// Bytes of a packet on the wire, frame check sequence included.
    pub bytes: usize,
    /// Flows.
    pub flows: usize,
    /// Median over the rounds.
    pub ns_per_packet: f64,
    /// Packets per second, millions.
    pub mpps: f64,
    /// Median of the ratios of throughput to that of `none`, taken round by round.
    pub ratio_to_none: f64,
}

/// Packets that are put into the ring before the runtime sees any.
const VOLLEY: usize = 5_000;
/// The first packets of a volley, which are not timed: the runtime wakes up.
const WAKING: usize = 500;
/// Longest time between two looks at the output, ns.
const LOOK: u64 = 50_000;
const CASES: [&str; 2] = ["none", "local"];

/// Runs the plan.
///
/// # Errors
/// The output was wrong; no time counts then.
pub fn run(plan: &Plan, chains: &[NamedChain<'_>]) -> Result<Vec<Row>, String> {
    if plan.flows == 0 || plan.rounds == 0 {
        return Err("there is nothing to measure".to_owned());
    }
    let mut rows = Vec::new();
    for (name, functions, make) in chains {
        let start = |protection: Value| Served::start(functions, &protection, plan.flows, *make);
        let mut cases =
            [start(json!("none"))?, start(json!({ "preset": "reinforce", "level": "local" }))?];
        cases.iter_mut().try_for_each(Served::wait_until_it_turns)?;
        cases[1].wait_for_standby()?;
        let mut of_length = |row: Result<[Row; 2], String>| row.map(|row| rows.extend(row));
        of_length(measure::<FRAME_LEN>(plan, name, &mut cases))?;
        of_length(measure::<124>(plan, name, &mut cases))?;
        of_length(measure::<252>(plan, name, &mut cases))?;
        of_length(measure::<508>(plan, name, &mut cases))?;
        of_length(measure::<1020>(plan, name, &mut cases))?;
        of_length(measure::<1496>(plan, name, &mut cases))?;
    }
    Ok(rows)
}

fn measure<const L: usize>(
    plan: &Plan,
    chain: &'static str,
    cases: &mut [Served; 2],
) -> Result<[Row; 2], String> {
    let forward: Vec<[u8; L]> =
        (0..plan.flows).map(|flow| traffic::udp(traffic::client(flow), traffic::VIRTUAL)).collect();
    let expected = cases[0].open(&forward)?;
    let reverse: Vec<[u8; L]> = expected.iter().map(traffic::reply_to).collect();
    for case in &mut *cases {
        if case.open(&forward)? != expected {
            return Err(
                "the runtime with a standby translates other than the one without".to_owned()
            );
        }
        case.check(&forward, &reverse, &expected)?;
    }
    let mut both: Vec<[u8; L]> =
        forward.iter().zip(&reverse).flat_map(|(forward, reverse)| [*forward, *reverse]).collect();
    let mut random = Random::new(both.len() as u64);
    for at in (1..both.len()).rev() {
        both.swap(at, random.range(0, at as u64 + 1) as usize);
    }

    let mut times: [Vec<f64>; 2] = Default::default();
    let mut at = 0;
    for round in 0..plan.rounds + 1 {
        for (case, times) in cases.iter_mut().zip(&mut times) {
            let until = Instant::now() + plan.time;
            let mut volleys = Vec::new();
            while Instant::now() < until {
                volleys.push(volley(case, &both, &mut at)?);
            }
            // A volley during which this process slept is not measured reliably; it
            // counts only if no volley is better.
            let is_any_seen = volleys.iter().any(|volley| volley.is_seen);
            let volleys: Vec<f64> = volleys
                .into_iter()
                .filter(|volley| volley.is_seen || !is_any_seen)
                .map(|volley| volley.ns_per_packet)
                .collect();
            // The first round warms caches and queues up and is not counted.
            if round > 0 {
                times.push(median(&volleys));
            }
        }
    }
    for case in &mut *cases {
        case.check(&forward, &reverse, &expected)?;
    }
    let pair = cases[1].pair();
    if pair.takeovers.load(std::sync::atomic::Ordering::Relaxed) > 0 {
        return Err("a worker has died".to_owned());
    }
    Ok([0, 1].map(|case| {
        let ns_per_packet = median(&times[case]);
        let ratios: Vec<f64> =
            times[0].iter().zip(&times[case]).map(|(none, own)| none / own).collect();
        Row {
            version: 1,
            chain,
            case: CASES[case],
            bytes: L + 4,
            flows: plan.flows,
            ns_per_packet,
            mpps: 1e3 / ns_per_packet,
            ratio_to_none: median(&ratios),
        }
    }))
}

struct Volley {
    ns_per_packet: f64,
    /// True if this process did not sleep meanwhile.
    is_seen: bool,
}

/// Sends the next packets, all at once.
fn volley<const L: usize>(
    case: &mut Served,
    frames: &[[u8; L]],
    at: &mut usize,
) -> Result<Volley, String> {
    for _ in 0..VOLLEY {
        if !case.send(&frames[*at], 0) {
            return Err("there is no room for a packet".to_owned());
        }
        *at = (*at + 1) % frames.len();
    }
    let (before, now) = (case.released, case.now());
    case.speak(now);
    case.flush();
    let deadline = now + 10_000_000_000;
    let (mut began, mut looked, mut is_seen) = (None, now, true);
    // Only counts the output, so that the runtime is not disturbed: the ring has room for
    // all packets.
    let ns_per_packet = loop {
        let (count, now) = (case.waiting(), case.now());
        is_seen &= now - looked < LOOK;
        looked = now;
        match began {
            None if count >= WAKING => began = Some((count, now)),
            Some((first, began)) if count >= VOLLEY => {
                // If this process slept until nearly all packets were there, it has
                // measured too little.
                is_seen &= first < VOLLEY / 2;
                break (now - began) as f64 / VOLLEY.saturating_sub(first).max(1) as f64;
            }
            _ if now > deadline => return Err(format!("{count} of {VOLLEY} packets came out")),
            _ => {}
        }
    };
    let mut wrong = 0;
    while case.released - before < VOLLEY as u64 && case.now() < deadline {
        case.receive(|frame| wrong += usize::from(frame.len() != L));
    }
    let released = case.released - before;
    if released != VOLLEY as u64 || wrong > 0 {
        return Err(format!("{released} of {VOLLEY} packets came out, {wrong} of another length"));
    }
    Ok(Volley { ns_per_packet, is_seen })
}
