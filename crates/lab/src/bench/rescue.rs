//! `holdfast bench rescue`: the cost of a state server as the flows' home, by the flows'
//! length.
//!
//! The plan is that of RESCue's figures on throughput and latency (section VI). A
//! firewall, a NAT and a load balancer run by themselves, with flows of a thousand
//! packets, of ten, and of both. The cases are `none`, `rescue` in its two ways, with the
//! NAT's ports assigned by the state server, and `stateless`, which has every state in a
//! Redis. A thousand flows are active at a time; after a flow's last packet another one
//! begins, and as many expire. Every case first plays flows in both directions, and the
//! output is compared. The cases then take turns, and in the end every packet has come
//! out.

use super::churn::{Churn, Lengths};
use super::datapath::{Alone, LEASE, Pair, PlaysOnce, Runs, Stateless};
use super::median;
use super::redis::Redis;
use super::replication::{Plan, flat_out, paced};
use super::traffic::{self, FRAME_LEN, percentile};
use holdfast_nf::Chain;
use holdfast_protection::{Plan as Preset, Protection, Rescue};
use holdfast_state::SERVER_CREDIT;
use serde::Serialize;

/// A row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// `firewall`, `nat` or `load_balancer`.
    pub function: &'static str,
    /// Packets of a flow: 1000 (`long`), 10 (`short`), or 1000 of every fifth and 10 of
    /// the others (`empirical`).
    pub lengths: &'static str,
    /// `none`, `rescue` (written back before the packet leaves), `rescue-at-once`, or
    /// `stateless`.
    pub case: &'static str,
    /// Packets per second, millions: median over the rounds.
    pub mpps: f64,
    /// Median of the ratios of throughput to that of `none`, taken round by round.
    pub ratio_to_none: f64,
    /// Time from when a packet was due until the switch has it again, µs, at
    /// `packets_per_second`.
    pub latency_p50_us: f64,
    /// See `latency_p50_us`.
    pub latency_p99_us: f64,
    /// The rate at which latency was measured.
    pub packets_per_second: u64,
    /// Flows that began.
    pub flows: u64,
}

/// A function by itself: its name, and how it is made with room for a number of flows.
pub type NamedFunction<'a> = (&'static str, &'a dyn Fn(usize) -> Result<Chain, String>);

const CASES: [&str; 4] = ["none", "rescue", "rescue-at-once", "stateless"];
/// Flows that are played in both directions first.
const CHECKED: usize = 1000;
/// Numbers for flows that never return theirs.
const STATELESS_FLOWS: usize = 1 << 20;

/// Runs the plan.
///
/// # Errors
/// The output was wrong; no time counts then.
pub fn run(plan: &Plan, functions: &[NamedFunction<'_>]) -> Result<Vec<Row>, String> {
    if plan.flows < 8 * CHECKED || plan.rounds == 0 || plan.packets_per_second == 0 {
        return Err(format!(
            "{} flows, one round and one packet per second at least can be measured",
            8 * CHECKED
        ));
    }
    let store = Redis::start()?;
    let mut rows = Vec::new();
    for (function, make) in functions {
        for lengths in Lengths::ALL {
            let of_case = |error: String| format!("{function}, {} flows: {error}", lengths.name());
            rows.extend(measure(plan, function, *make, lengths, &store).map_err(of_case)?);
        }
    }
    Ok(rows)
}

/// A row of the cost of leases.
#[derive(Debug, Clone, Serialize)]
pub struct LeaseRow {
    /// Version of this object.
    pub version: u32,
    /// The server asks for a port of which it hears nothing for this time, ms; 0: never.
    pub lease_ms: u64,
    /// Packets per second, millions: median over the rounds.
    pub mpps: f64,
    /// Median of the ratios of throughput to that without leases, taken round by round.
    pub ratio_to_none: f64,
    /// Time from when a packet was due until the switch has it again, µs, at
    /// `packets_per_second`.
    pub latency_p50_us: f64,
    /// See `latency_p50_us`.
    pub latency_p99_us: f64,
    /// The rate at which latency was measured.
    pub packets_per_second: u64,
}

const LEASES: [u64; 5] = [0, 60_000, 1_000, 100, 10];

/// Measures the cost of asking for ports: a NAT under `rescue`, flows of ten packets.
/// Leases go from a minute, as in a box, down to leases so short that some port is asked
/// for all the time.
///
/// # Errors
/// The output was wrong; no time counts then.
pub fn leases(
    plan: &Plan,
    make: &dyn Fn(usize) -> Result<Chain, String>,
) -> Result<Vec<LeaseRow>, String> {
    let mut pairs = Vec::new();
    for lease in LEASES {
        let mut pair = paged(plan, make, Preset::RESCUE, Lengths::Short, lease * 1_000_000)?;
        examine(&mut pair)?;
        pair.input().churn(Churn::new(Lengths::Short, CHECKED, plan.flows));
        pairs.push(pair);
    }
    let mut cases: Vec<&mut dyn Case> =
        pairs.iter_mut().map(|pair| pair as &mut dyn Case).collect();
    let (mpps, latencies) = in_turns(plan, &mut cases)
        .map_err(|(at, error)| format!("a lease of {} ms: {error}", LEASES[at]))?;
    pairs.iter_mut().for_each(Pair::stop);
    let row = |(at, lease_ms): (usize, u64)| LeaseRow {
        version: 1,
        lease_ms,
        mpps: median(&mpps[at]),
        ratio_to_none: ratio(&mpps, at),
        latency_p50_us: latency(&latencies[at], 50.0),
        latency_p99_us: latency(&latencies[at], 99.0),
        packets_per_second: plan.packets_per_second,
    };
    Ok(LEASES.into_iter().enumerate().map(row).collect())
}

/// A way of running the function whose output can be checked, too.
trait Case: Runs<FRAME_LEN> + PlaysOnce<FRAME_LEN> {}

impl<T: Runs<FRAME_LEN> + PlaysOnce<FRAME_LEN>> Case for T {}

fn paged(
    plan: &Plan,
    make: &dyn Fn(usize) -> Result<Chain, String>,
    preset: Preset,
    lengths: Lengths,
    lease: u64,
) -> Result<Pair<FRAME_LEN>, String> {
    let served = || -> Result<Chain, String> {
        let mut chain = make(plan.flows)?;
        chain.ask_server(SERVER_CREDIT, 0);
        Ok(chain)
    };
    let haste = lengths.haste(plan.flows);
    let protection = move || -> Box<dyn Protection> {
        Box::new(Rescue::new(preset).with_stamps_hurrying(haste))
    };
    Pair::with_lease(plan.flows, served()?, served()?, protection, lease)
}

/// Plays flows in both directions, and compares the output.
fn examine(case: &mut dyn Case) -> Result<(), String> {
    let forward: Vec<[u8; FRAME_LEN]> =
        (0..CHECKED).map(|flow| traffic::udp(traffic::client(flow), traffic::VIRTUAL)).collect();
    // Packets that wait for a number come out later.
    let mut opened = case.open(&forward)?;
    let expected = case.play_once(&forward, 0)?;
    opened.sort_unstable();
    let mut again = expected.clone();
    again.sort_unstable();
    if opened != again {
        return Err("second packets came out other than first ones".to_owned());
    }
    let reverse: Vec<[u8; FRAME_LEN]> = expected.iter().map(traffic::reply_to).collect();
    case.check(&forward, &reverse, &expected)
}

/// Per case and round: the rate, millions per second, and each packet's latency, ns, in
/// order.
type Found = (Vec<Vec<f64>>, Vec<Vec<Vec<u64>>>);

/// Runs the cases in turns. An error names the index of its case.
fn in_turns(plan: &Plan, cases: &mut [&mut dyn Case]) -> Result<Found, (usize, String)> {
    let (mut mpps, mut latencies) = (vec![Vec::new(); cases.len()], vec![Vec::new(); cases.len()]);
    for round in 0..plan.rounds + 1 {
        for (at, case) in cases.iter_mut().enumerate() {
            let (_, rate) = flat_out(&mut **case, plan.time);
            case.drain().map_err(|error| (at, error))?;
            let latency = paced(&mut **case, plan);
            case.drain().map_err(|error| (at, error))?;
            // The first round warms caches and queues up and is not counted.
            if round > 0 {
                mpps[at].push(rate);
                latencies[at].push(latency);
            }
        }
    }
    Ok((mpps, latencies))
}

/// Ratio of a case's throughput to the first case's: median over the rounds.
fn ratio(mpps: &[Vec<f64>], at: usize) -> f64 {
    median(&mpps[at].iter().zip(&mpps[0]).map(|(own, first)| own / first).collect::<Vec<f64>>())
}

/// Median over the rounds, µs.
fn latency(rounds: &[Vec<u64>], percent: f64) -> f64 {
    median(&rounds.iter().map(|round| percentile(round, percent)).collect::<Vec<f64>>()) / 1e3
}

fn measure(
    plan: &Plan,
    function: &'static str,
    make: &dyn Fn(usize) -> Result<Chain, String>,
    lengths: Lengths,
    store: &Redis,
) -> Result<Vec<Row>, String> {
    let mut none = Alone::new(plan.flows, make(plan.flows)?);
    let mut pairs = [
        paged(plan, make, Preset::RESCUE, lengths, LEASE)?,
        paged(plan, make, Preset::RESCUE_AT_ONCE, lengths, LEASE)?,
    ];
    let mut stateless = Stateless::new(make(STATELESS_FLOWS)?, store)?;
    let [latched, at_once] = &mut pairs;
    let mut cases: [&mut dyn Case; CASES.len()] = [&mut none, latched, at_once, &mut stateless];

    for (case, name) in cases.iter_mut().zip(CASES) {
        examine(*case).map_err(|error| format!("{name}: {error}"))?;
        case.input().churn(Churn::new(lengths, CHECKED, plan.flows));
    }
    let (mpps, latencies) =
        in_turns(plan, &mut cases).map_err(|(at, error)| format!("{}: {error}", CASES[at]))?;
    let mut rows = Vec::new();
    for (at, case) in cases.iter_mut().enumerate() {
        rows.push(Row {
            version: 1,
            function,
            lengths: lengths.name(),
            case: CASES[at],
            mpps: median(&mpps[at]),
            ratio_to_none: ratio(&mpps, at),
            latency_p50_us: latency(&latencies[at], 50.0),
            latency_p99_us: latency(&latencies[at], 99.0),
            packets_per_second: plan.packets_per_second,
            flows: (case.input().begun() - CHECKED) as u64,
        });
    }
    pairs.iter_mut().for_each(Pair::stop);
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A short run of one function, if there is a Redis: every case with flows of every
    /// length.
    #[test]
    fn every_case_is_measured() {
        if Redis::start().is_err() {
            eprintln!("SKIPPED: there is no redis-server (`make setup` installs it)");
            return;
        }
        let nat = |flows| crate::bench::chains::function("nat", flows);
        let plan = Plan {
            flows: 65_536,
            time: Duration::from_millis(30),
            rounds: 1,
            packets_per_second: 2_000,
        };
        let rows = run(&plan, &[("nat", &nat)]).unwrap();
        let cases: Vec<_> = rows.iter().map(|row| (row.lengths, row.case)).collect();
        let expected: Vec<_> = Lengths::ALL
            .iter()
            .flat_map(|lengths| CASES.map(|case| (lengths.name(), case)))
            .collect();
        assert_eq!(cases, expected);
        assert!(rows.iter().all(|row| row.mpps > 0.0
            && row.latency_p50_us > 0.0
            && row.latency_p99_us >= row.latency_p50_us));
        assert!(rows.iter().all(|row| row.flows >= 1000), "{rows:?}");
    }

    /// A short run, in which the server asks for ports.
    #[test]
    fn every_lease_is_measured() {
        let nat = |flows| crate::bench::chains::function("nat", flows);
        let plan = Plan {
            flows: 65_536,
            time: Duration::from_millis(30),
            rounds: 1,
            packets_per_second: 2_000,
        };
        let rows = leases(&plan, &nat).unwrap();
        assert_eq!(rows.iter().map(|row| row.lease_ms).collect::<Vec<_>>(), LEASES);
        assert!(
            rows.iter()
                .all(|row| row.mpps > 0.0 && row.latency_p50_us > 0.0 && row.ratio_to_none > 0.0)
        );
    }
}
