//! `holdfast bench reinforce`: the cost of the remote standby, and its dependence on the
//! settings.
//!
//! The machinery is that of `bench replication`, with one setting varied at a time: the
//! time between two rounds of checkpoints; how often a packet is non-deterministic
//! (REINFORCE, Table II); how many packets begin a flow, for which the NAT takes a port;
//! and the length of the chain. Stamps follow the clock here, because checkpoint rounds
//! depend on them. Every case first plays each flow in both directions, and the output is
//! compared with that of an unprotected chain. Only then are times taken, in turns, and
//! at the end every packet must have come out.

use super::datapath::{Alone, Pair, PlaysOnce, Runs};
use super::median;
use super::replication::{self, flat_out, paced};
use super::traffic::{self, FRAME_LEN, percentile};
use holdfast_nf::{
    Bound, Chain, ConfigError, Context, Function, NetworkFunction, Open, Opening, Packet, Verdict,
};
use holdfast_protection::Plan as Preset;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

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
    /// Flows that may begin during the timed part.
    pub fresh: usize,
}

/// A row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// The varied setting: `checkpoint-ms`; `nondeterministic-every` and `new-flow-every`
    /// so many packets, 0 for never; `functions`.
    pub varied: &'static str,
    /// The setting's value.
    pub value: u64,
    /// Flows that exist from the beginning.
    pub flows: usize,
    /// Packets per second, millions: median over the rounds.
    pub mpps: f64,
    /// The same without protection.
    pub none_mpps: f64,
    /// Median of the ratios taken round by round.
    pub ratio_to_none: f64,
    /// Time from when a packet was due until the switch has it again, µs, at
    /// `packets_per_second`.
    pub latency_p50_us: f64,
    /// See `latency_p50_us`.
    pub latency_p99_us: f64,
    /// See `latency_p50_us`. Median of the rounds' maxima.
    pub latency_max_us: f64,
    /// The difference to the latency without protection.
    pub added_p50_us: f64,
    /// See `added_p50_us`.
    pub added_p99_us: f64,
    /// See `added_p50_us`.
    pub added_max_us: f64,
    /// The rate at which latency was measured.
    pub packets_per_second: u64,
    /// Bytes of frames between the two runtimes, per packet, while throughput was
    /// measured.
    pub replication_bytes_per_packet: f64,
}

/// Duration of rounds in which flows begin: short enough that there is room for all of
/// them.
const FRESH_TIME: Duration = Duration::from_millis(50);

/// A setting to measure.
struct Setting<'a> {
    varied: &'static str,
    value: u64,
    checkpoint_every: u64,
    new_flow_every: usize,
    make: &'a dyn Fn() -> Result<Chain, String>,
}

/// Makes the functions under test, for a number of flows.
pub type MakeFunctions<'a> = &'a dyn Fn(usize) -> Result<Vec<Box<dyn Function>>, String>;

/// Runs the plan.
///
/// # Errors
/// The output was wrong; no time counts then.
pub fn run(plan: &Plan, heavy: MakeFunctions<'_>) -> Result<Vec<Row>, String> {
    if plan.flows == 0 || plan.rounds == 0 || plan.packets_per_second == 0 {
        return Err("there is nothing to measure".to_owned());
    }
    let mut rows = Vec::new();
    let mut measure = |varied,
                       value,
                       checkpoint_every,
                       new_flow_every,
                       make: &dyn Fn() -> Result<Chain, String>| {
        rows.push(measure(
            plan,
            &Setting { varied, value, checkpoint_every, new_flow_every, make },
        )?);
        Ok::<(), String>(())
    };
    for milliseconds in [1, 5, 10, 50, 100, 1000] {
        measure("checkpoint-ms", milliseconds, milliseconds * 1_000_000, 0, &|| {
            Ok(Chain::new(heavy(plan.flows)?))
        })?;
    }
    // The last rate is one packet per second when latency is measured.
    for every in [1, 10, 100, 1_000, 10_000, plan.packets_per_second, 0] {
        measure("nondeterministic-every", every, Preset::REINFORCE.checkpoint_every, 0, &|| {
            with_dice(heavy(plan.flows)?, every)
        })?;
    }
    for every in [10, 100, 1_000, 0] {
        measure(
            "new-flow-every",
            every as u64,
            Preset::REINFORCE.checkpoint_every,
            every,
            &|| Ok(Chain::new(heavy(plan.flows + plan.fresh)?)),
        )?;
    }
    for length in 1..=5 {
        measure("functions", length, Preset::REINFORCE.checkpoint_every, 0, &|| {
            monitors(length as usize)
        })?;
    }
    Ok(rows)
}

fn measure(plan: &Plan, setting: &Setting<'_>) -> Result<Row, String> {
    let Setting { new_flow_every, make, .. } = *setting;
    let fresh = if new_flow_every > 0 { plan.fresh } else { 0 };
    let plan = &replication::Plan {
        flows: plan.flows,
        time: if fresh > 0 { plan.time.min(FRESH_TIME) } else { plan.time },
        rounds: plan.rounds,
        packets_per_second: plan.packets_per_second,
    };
    let forward: Vec<[u8; FRAME_LEN]> =
        (0..plan.flows).map(|flow| traffic::udp(traffic::client(flow), traffic::VIRTUAL)).collect();
    let mut none = Alone::<FRAME_LEN>::new(plan.flows + fresh, make()?);
    let preset = Preset { checkpoint_every: setting.checkpoint_every, ..Preset::REINFORCE };
    let mut pair =
        Pair::<FRAME_LEN>::new(plan.flows + fresh, make()?, make()?, move || preset.build())?;
    none.input().go_by_clock();
    pair.input().go_by_clock();
    let expected = none.open(&forward)?;
    if pair.open(&forward)? != expected {
        return Err("the replicated runtime translates other than the one that is not".to_owned());
    }
    let reverse: Vec<[u8; FRAME_LEN]> = expected.iter().map(traffic::reply_to).collect();
    none.check(&forward, &reverse, &expected)?;
    pair.check(&forward, &reverse, &expected)?;
    let both: Vec<[u8; FRAME_LEN]> =
        forward.iter().zip(&reverse).flat_map(|(forward, reverse)| [*forward, *reverse]).collect();
    none.play(&both);
    pair.play(&both);
    none.input().begin_flows(new_flow_every, plan.flows..plan.flows + fresh);
    pair.input().begin_flows(new_flow_every, plan.flows..plan.flows + fresh);

    let mut found: [Found; 2] = Default::default();
    let (mut packets, mut exchanged) = (0, 0);
    for round in 0..plan.rounds + 1 {
        let counts = [flat_out(&mut none, plan.time), {
            let before = pair.exchanged;
            let rate = flat_out(&mut pair, plan.time);
            exchanged += if round > 0 { pair.exchanged - before } else { 0 };
            pair.drain()?;
            rate
        }];
        let latencies = [paced(&mut none, plan), paced(&mut pair, plan)];
        pair.drain()?;
        // The first round warms caches and queues up and is not counted.
        if round > 0 {
            packets += counts[1].0;
            for ((found, (_, mpps)), latencies) in found.iter_mut().zip(counts).zip(latencies) {
                found.mpps.push(mpps);
                for (all, percent) in found.latencies.iter_mut().zip(PERCENTS) {
                    all.push(percentile(&latencies, percent) / 1e3);
                }
            }
        }
    }
    pair.stop();
    let [none, own] = found;
    let ratios: Vec<f64> = own.mpps.iter().zip(&none.mpps).map(|(own, none)| own / none).collect();
    let latency = |found: &Found, which: usize| median(&found.latencies[which]);
    let added = |which| latency(&own, which) - latency(&none, which);
    Ok(Row {
        version: 1,
        varied: setting.varied,
        value: setting.value,
        flows: plan.flows,
        mpps: median(&own.mpps),
        none_mpps: median(&none.mpps),
        ratio_to_none: median(&ratios),
        latency_p50_us: latency(&own, 0),
        latency_p99_us: latency(&own, 1),
        latency_max_us: latency(&own, 2),
        added_p50_us: added(0),
        added_p99_us: added(1),
        added_max_us: added(2),
        packets_per_second: plan.packets_per_second,
        replication_bytes_per_packet: exchanged as f64 / packets.max(1) as f64,
    })
}

const PERCENTS: [f64; 3] = [50.0, 99.0, 100.0];

/// The measurements of one case: throughput by round, and latency at each of
/// [`PERCENTS`], µs.
#[derive(Default)]
struct Found {
    mpps: Vec<f64>,
    latencies: [Vec<f64>; 3],
}

/// A chain of counting functions, `length` long.
fn monitors(length: usize) -> Result<Chain, String> {
    let functions = vec![("monitor".to_owned(), serde_json::Value::Null); length];
    holdfast_functions::catalog::chain(&functions).map_err(|(_, error)| error.to_string())
}

/// These functions, followed by one that asks for a random number with one of `every`
/// packets.
fn with_dice(mut functions: Vec<Box<dyn Function>>, every: u64) -> Result<Chain, String> {
    functions.push(Box::new(
        Bound::<Dice>::new(DiceConfig { every }).map_err(|error| error.to_string())?,
    ));
    Ok(Chain::new(functions))
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
struct DiceConfig {
    every: u64,
}

/// Makes one of `every` packets non-deterministic, and remembers the number that it drew.
struct Dice {
    every: u64,
}

holdfast_nf::flow_state! {
    struct Drawn {
        packets: u64,
        number: u64,
    }
}

impl NetworkFunction for Dice {
    const NAME: &'static str = "dice";
    type Config = DiceConfig;
    type Flow = Drawn;
    type Shared = ();

    fn new(config: DiceConfig) -> Result<Dice, ConfigError> {
        Ok(Dice { every: config.every })
    }

    fn shared(&self) {}

    fn open(&self, _packet: &Packet, _shared: &mut (), _cx: &mut Opening<'_>) -> Open<Drawn> {
        Open::Accept(Drawn::default())
    }

    fn process(
        &self,
        _packet: &mut Packet,
        flow: &mut Drawn,
        _shared: &mut (),
        cx: &mut Context,
    ) -> Verdict {
        flow.packets += 1;
        // A hash of the stamp is as good as random, and the same for every process that
        // handles the packet.
        if self.every > 0
            && cx.now().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 < (1 << 32) / self.every
        {
            flow.number = cx.random();
        }
        Verdict::Forward
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short run of every setting. States travel with every non-deterministic packet,
    /// and with few deterministic ones.
    #[test]
    fn every_setting_is_measured() {
        let build = |(name, config): &(String, serde_json::Value)| {
            holdfast_functions::catalog::build(name, config)
        };
        let functions = |flows| {
            crate::bench::chains::functions(flows)
                .iter()
                .map(build)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| error.to_string())
        };
        let plan = Plan {
            flows: 200,
            time: Duration::from_millis(20),
            rounds: 1,
            packets_per_second: 20_000,
            fresh: 20_000,
        };
        let rows = run(&plan, &functions).unwrap();
        assert_eq!(rows.len(), 6 + 7 + 4 + 5);
        assert!(rows.iter().all(|row| row.mpps > 0.0
            && row.none_mpps > 0.0
            && row.latency_max_us >= row.latency_p50_us));
        let bytes = |varied, value| {
            let found = rows.iter().find(|row| row.varied == varied && row.value == value);
            found.map(|row| row.replication_bytes_per_packet).unwrap()
        };
        // A state is some hundred bytes; on a slow machine checkpoints take a larger
        // share per packet.
        let (every, none) =
            (bytes("nondeterministic-every", 1), bytes("nondeterministic-every", 0));
        assert!(every > none + 50.0, "{every} {none}");
        assert!(bytes("new-flow-every", 10) > bytes("new-flow-every", 0));
    }
}
