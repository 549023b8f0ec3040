//! `holdfast bench replication`: the cost of saving every packet's state elsewhere before
//! the packet leaves.
//!
//! The same functions run over the same frames: `none`, a runtime without protection;
//! `nfvactor` in both of its ways; `reinforce` and `rescue`. The replica, standby or
//! state server is in a second thread. The plan is that of NFVactor's figures on flow
//! replication: throughput with it and without, latency added, bytes added. Every case
//! first plays each flow in both directions, and the output is compared; only then are
//! times taken. The cases take turns, so that a noisy machine disturbs all alike. Frames
//! come in an order without locality: no two of a burst share a flow, and every packet
//! has a state of its own to send.

use super::bench_box::MakeChain;
use super::datapath::{Alone, BURST, Pair, PlaysOnce, Runs};
use super::median;
use super::traffic::{self, FRAME_LEN, percentile};
use holdfast_protection::Plan as Preset;
use holdfast_wire::nsh::ENCAPSULATION_LEN;
use serde::Serialize;
use std::time::{Duration, Instant};

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Flows, each played in both directions.
    pub flows: usize,
    /// Duration of each case per round, once for throughput and once for latency.
    pub time: Duration,
    /// Rounds; the median counts.
    pub rounds: usize,
    /// Packets per second at which latency is measured.
    pub packets_per_second: u64,
}

/// A row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// `none`; `nfvactor-replica` (the replica releases), `nfvactor-source` (the owner
    /// releases); `reinforce` (with the cost of its standby, without the switch's log);
    /// `rescue` (written back before the packet leaves) or `rescue-at-once`.
    pub case: &'static str,
    /// Bytes of a packet on the wire, frame check sequence included.
    pub bytes: usize,
    /// Flows.
    pub flows: usize,
    /// Packets per second, millions: median over the rounds.
    pub mpps: f64,
    /// Median of the ratios of throughput to that of `none`, taken round by round.
    pub ratio_to_none: f64,
    /// Time from when a packet was due until the switch has it again, µs, at
    /// `packets_per_second`.
    pub latency_p50_us: f64,
    /// See `latency_p50_us`.
    pub latency_p99_us: f64,
    /// See `latency_p50_us`.
    pub latency_p999_us: f64,
    /// The difference to the latency with `none`.
    pub added_p50_us: f64,
    /// See `added_p50_us`.
    pub added_p99_us: f64,
    /// See `added_p50_us`.
    pub added_p999_us: f64,
    /// The rate at which latency was measured.
    pub packets_per_second: u64,
    /// Bytes of frames between the two runtimes, per packet, while throughput was
    /// measured.
    pub replication_bytes_per_packet: f64,
    /// The same, plus the way from the switch and back to it.
    pub fabric_bytes_per_packet: f64,
}

/// Frame length that gives 1400 bytes on the wire.
const LONG_LEN: usize = 1396;

const CASES: [&str; 6] =
    ["none", "nfvactor-replica", "nfvactor-source", "reinforce", "rescue", "rescue-at-once"];

/// The presets of all cases but the first.
const PROTECTIONS: [Preset; CASES.len() - 1] = [
    Preset::NFVACTOR,
    Preset::NFVACTOR_AT_SOURCE,
    Preset::REINFORCE,
    Preset::RESCUE,
    Preset::RESCUE_AT_ONCE,
];

/// Runs the plan.
///
/// # Errors
/// The output was wrong; no time counts then.
pub fn run(plan: &Plan, make: MakeChain<'_>) -> Result<Vec<Row>, String> {
    if plan.flows == 0 || plan.rounds == 0 || plan.packets_per_second == 0 {
        return Err("there is nothing to measure".to_owned());
    }
    let mut rows = measure::<FRAME_LEN>(plan, make)?;
    rows.extend(measure::<LONG_LEN>(plan, make)?);
    Ok(rows)
}

/// The measurements of one case.
#[derive(Default)]
struct Found {
    mpps: Vec<f64>,
    /// Latencies of all packets, ns, in order, by round.
    latencies: Vec<Vec<u64>>,
    packets: u64,
    exchanged: u64,
}

impl Found {
    /// Median over the rounds, µs.
    fn latency(&self, percent: f64) -> f64 {
        median(&self.latencies.iter().map(|round| percentile(round, percent)).collect::<Vec<f64>>())
            / 1e3
    }
}

fn measure<const L: usize>(plan: &Plan, make: MakeChain<'_>) -> Result<Vec<Row>, String> {
    let forward: Vec<[u8; L]> =
        (0..plan.flows).map(|flow| traffic::udp(traffic::client(flow), traffic::VIRTUAL)).collect();
    let mut none = Alone::<L>::new(plan.flows, make()?);
    let expected = none.open(&forward)?;
    let reverse: Vec<[u8; L]> = expected.iter().map(traffic::reply_to).collect();
    none.check(&forward, &reverse, &expected)?;
    let both: Vec<[u8; L]> =
        forward.iter().zip(&reverse).flat_map(|(forward, reverse)| [*forward, *reverse]).collect();
    none.play(&both);

    let mut pairs = Vec::new();
    for preset in PROTECTIONS {
        let mut pair = Pair::<L>::new(plan.flows, make()?, make()?, move || preset.build())?;
        let opened = pair.open(&forward)?;
        if opened != expected {
            return Err(
                "the replicated runtime translates other than the one that is not".to_owned()
            );
        }
        pair.check(&forward, &reverse, &expected)?;
        pair.play(&both);
        pairs.push(pair);
    }

    let mut found: [Found; CASES.len()] = Default::default();
    for round in 0..plan.rounds + 1 {
        for (case, found) in found.iter_mut().enumerate() {
            let exchanged =
                |pairs: &[Pair<L>]| if case > 0 { pairs[case - 1].exchanged } else { 0 };
            let before = exchanged(&pairs);
            let (packets, mpps) = match case {
                0 => flat_out(&mut none, plan.time),
                _ => flat_out(&mut pairs[case - 1], plan.time),
            };
            let between = exchanged(&pairs) - before;
            if case > 0 {
                pairs[case - 1].drain()?;
            }
            let latencies = match case {
                0 => paced(&mut none, plan),
                _ => paced(&mut pairs[case - 1], plan),
            };
            if case > 0 {
                pairs[case - 1].drain()?;
            }
            // The first round warms caches and queues up and is not counted.
            if round > 0 {
                found.mpps.push(mpps);
                found.latencies.push(latencies);
                found.packets += packets;
                found.exchanged += between;
            }
        }
    }
    pairs.iter_mut().for_each(Pair::stop);
    Ok((0..CASES.len()).map(|case| row::<L>(plan, case, &found)).collect())
}

/// Runs a case at full speed. Returns the packets that came out, and the rate, millions
/// per second.
pub(super) fn flat_out<const L: usize>(
    case: &mut (impl Runs<L> + ?Sized),
    time: Duration,
) -> (u64, f64) {
    case.set_due(0);
    let before = case.sink().released;
    let started = Instant::now();
    while started.elapsed() < time {
        for _ in 0..64 {
            case.burst(BURST);
        }
    }
    let took = started.elapsed();
    let packets = case.sink().released - before;
    (packets, packets as f64 / took.as_secs_f64() / 1e6)
}

/// Runs a case at the plan's rate. Returns each packet's latency, ns, in order.
pub(super) fn paced<const L: usize>(case: &mut (impl Runs<L> + ?Sized), plan: &Plan) -> Vec<u64> {
    let packets = (plan.packets_per_second as f64 * plan.time.as_secs_f64()) as u64;
    let interval = 1e9 / plan.packets_per_second as f64;
    case.sink().latencies = Some(Vec::with_capacity(packets as usize));
    let (began, done) = (case.sink().now(), case.sink().released);
    let deadline = Instant::now() + plan.time + Duration::from_secs(10);
    let mut sent = 0;
    while case.sink().released - done < packets && Instant::now() < deadline {
        let due = began + (sent as f64 * interval) as u64;
        let is_due = sent < packets && case.sink().now() >= due;
        case.set_due(due);
        sent += case.burst(usize::from(is_due)) as u64;
    }
    let mut latencies = case.sink().latencies.take().unwrap_or_default();
    latencies.sort_unstable();
    latencies
}

fn row<const L: usize>(plan: &Plan, case: usize, found: &[Found; CASES.len()]) -> Row {
    let (own, none) = (&found[case], &found[0]);
    let ratios: Vec<f64> = own.mpps.iter().zip(&none.mpps).map(|(own, none)| own / none).collect();
    let replication = own.exchanged as f64 / own.packets.max(1) as f64;
    let added = |percent| own.latency(percent) - none.latency(percent);
    Row {
        version: 1,
        case: CASES[case],
        bytes: L + 4,
        flows: plan.flows,
        mpps: median(&own.mpps),
        ratio_to_none: median(&ratios),
        latency_p50_us: own.latency(50.0),
        latency_p99_us: own.latency(99.0),
        latency_p999_us: own.latency(99.9),
        added_p50_us: added(50.0),
        added_p99_us: added(99.0),
        added_p999_us: added(99.9),
        packets_per_second: plan.packets_per_second,
        replication_bytes_per_packet: replication,
        fabric_bytes_per_packet: replication + 2.0 * (L + ENCAPSULATION_LEN) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short run of both lengths in all cases, long enough that a busy machine gives
    /// the replica some time too. Replication exchanges bytes of its own, and more if the
    /// packet travels too.
    #[test]
    fn every_case_is_measured() {
        let chain = || crate::bench::chains::chain(200);
        let plan = Plan {
            flows: 200,
            time: Duration::from_millis(50),
            rounds: 1,
            packets_per_second: 20_000,
        };
        let rows = run(&plan, &chain).unwrap();
        let cases: Vec<_> = rows.iter().map(|row| (row.bytes, row.case)).collect();
        assert_eq!(
            cases,
            [64, 1400]
                .iter()
                .flat_map(|&bytes| CASES.map(|case| (bytes, case)))
                .collect::<Vec<_>>()
        );
        assert!(rows.iter().all(|row| row.mpps > 0.0
            && row.latency_p50_us > 0.0
            && row.latency_p999_us >= row.latency_p50_us));
        for of_length in rows.chunks(CASES.len()) {
            let bytes: Vec<f64> =
                of_length.iter().map(|row| row.replication_bytes_per_packet).collect();
            assert!(
                bytes[0] == 0.0
                    && (30.0..200.0).contains(&bytes[2])
                    && bytes[1] > bytes[2] + of_length[0].bytes as f64 - 64.0,
                "{bytes:?}"
            );
        }
    }
}
