//! The time per packet of each function alone, and of the papers' chains as they ship.
//!
//! Packets go to a runtime as a switch sends them, without protection and under
//! `nfvactor`, whose replica is in a second thread. Frames are the shortest, or an IMIX
//! (RFC 6985, section 4: of twelve packets seven have 64 bytes, four 594, one 1518). All
//! are UDP, whose flows functions track without a handshake; bytes of TCP are
//! [`payload`](super::payload)'s subject. A shipped chain is read from its file under
//! `docs/papers`; only its balancer's protocol is another one, and its NAT's pool has
//! room for all flows. First each flow is played in both directions, and what comes out
//! is compared; afterwards no packet may be missing.

use crate::bench::datapath::{Alone, Pair, PlaysOnce, Runs};
use crate::bench::median;
use crate::bench::replication::flat_out;
use crate::bench::traffic::{self, FRAME_LEN};
use holdfast_functions::catalog;
use holdfast_nf::Chain;
use holdfast_protection::Plan as Preset;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Numbers of flows, each played in both directions.
    pub flows: Vec<usize>,
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
    /// The function, or the file of the chain.
    pub chain: &'static str,
    /// Flows.
    pub flows: usize,
    /// `64` or `imix`.
    pub frames: &'static str,
    /// Without protection: median over the rounds.
    pub none_ns: f64,
    /// Under `nfvactor`.
    pub nfvactor_ns: f64,
    /// Median of the ratios of `nfvactor_ns` to `none_ns`, taken round by round.
    pub ratio: f64,
    /// Without protection, per packet, during the timed part.
    pub allocations_per_packet: f64,
    /// Memory per flow without protection, its share of the table included.
    pub bytes_per_flow: usize,
}

/// Lengths of a cycle of the IMIX, without the frame check sequence.
const IMIX: [usize; 12] = [60, 590, 60, 60, 590, 60, 1514, 60, 590, 60, 60, 590];
const FRAMES: [(&str, &[usize]); 2] = [("64", &[FRAME_LEN]), ("imix", &IMIX)];

/// The server of all flows: the virtual address of the shipped chains.
const SERVER: ([u8; 4], u16) = ([100, 64, 0, 80], 80);

/// A client of the network that the shipped chains know.
fn client(flow: usize) -> ([u8; 4], u16) {
    ([172, 20, 5, 2 + (flow / 60_000) as u8], 5_000 + (flow % 60_000) as u16)
}
/// The clients' network has no more.
const MOST_FLOWS: usize = 250 * 60_000;

/// Functions alone, each with a configuration that has it do its work for every packet.
fn alone() -> Vec<(&'static str, Value)> {
    let class = json!({ "new": { "dscp": "ef", "demote": { "to": "heavy", "after_packets": 1000 } }, "heavy": { "dscp": "le" } });
    vec![
        ("forward", Value::Null),
        ("monitor", Value::Null),
        (
            "firewall",
            json!({ "rules": ["allow udp from 172.20.5.0/24 to any port 80"], "default": "deny" }),
        ),
        ("nat", json!({ "pool": [], "inside": ["172.20.5.0/24"] })),
        (
            "load_balancer",
            json!({ "virtual": "100.64.0.80:80", "protocol": "udp", "backends": ["192.0.2.1:80", "192.0.2.80:80"] }),
        ),
        ("qos_marker", json!({ "classes": class, "default": "new" })),
        (
            "vlan",
            json!({ "classes": { "video": { "forward": { "pcp": 4 } } }, "default": "video" }),
        ),
        (
            "rate_limiter",
            json!({ "limits": [{ "per": "flow", "rate": "1 packets/s", "mark": "le" }] }),
        ),
        ("packet_limit", json!({ "packets": u32::MAX })),
        ("http", json!({ "rules": ["deny path /admin*"] })),
        ("dpi", json!({ "rules": ["mark le category Cloud"] })),
        (
            "ips",
            json!({ "rules": ["drop udp any any -> any any (msg:\"a worm\"; content:\"|04 01 01 01 01|\"; sid:1;)"] }),
        ),
    ]
}

/// The papers' chains, by their files.
const SHIPPED: [(&str, &str); 5] = [
    ("reinforce/chain-1", include_str!("../../../../../docs/papers/reinforce/chain-1.yaml")),
    ("reinforce/chain-2a", include_str!("../../../../../docs/papers/reinforce/chain-2a.yaml")),
    ("reinforce/chain-3", include_str!("../../../../../docs/papers/reinforce/chain-3.yaml")),
    (
        "nfvactor/second-chain",
        include_str!("../../../../../docs/papers/nfvactor/second-chain.yaml"),
    ),
    ("nfactor/test-chain", include_str!("../../../../../docs/papers/nfactor/test-chain.yaml")),
];

/// The functions of a shipped chain, which is called `paper`.
fn shipped(text: &str) -> Result<Vec<(String, Value)>, String> {
    let config: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let functions = config["chains"]["paper"]["functions"].as_array().ok_or("it has no chain")?;
    let function = |function: &Value| match function {
        Value::String(name) => Ok((name.clone(), Value::Null)),
        Value::Object(only) => only
            .iter()
            .next()
            .map(|(name, config)| (name.clone(), config.clone()))
            .ok_or("a function has no name"),
        _ => Err("a function has no name"),
    };
    Ok(functions.iter().map(function).collect::<Result<_, _>>()?)
}

/// The chain, for this traffic and so many flows.
fn chain(functions: &[(String, Value)], flows: usize) -> Result<Chain, String> {
    let addresses = flows.div_ceil(64_512).next_power_of_two();
    let mut functions = functions.to_vec();
    for (name, config) in &mut functions {
        match (name.as_str(), config.as_object_mut()) {
            ("nat", Some(nat)) => {
                let pool = format!("198.51.0.0/{}", 32 - addresses.trailing_zeros());
                nat.insert("pool".to_owned(), json!([pool]));
            }
            ("load_balancer", Some(balancer)) => {
                balancer.insert("protocol".to_owned(), json!("udp"));
            }
            _ => {}
        }
    }
    catalog::chain(&functions)
        .map_err(|(at, error)| format!("{}: {}: {}", functions[at].0, error.path, error.message))
}

/// Runs the plan. `allocations` reads the process's count of allocations.
///
/// # Errors
/// The result is wrong; the error says how.
pub fn run(plan: &Plan, allocations: &dyn Fn() -> u64) -> Result<Vec<Row>, String> {
    if plan.rounds == 0 || !plan.flows.iter().all(|flows| (1..=MOST_FLOWS).contains(flows)) {
        return Err(format!("there is nothing to measure, or more than {MOST_FLOWS} flows"));
    }
    let mut subjects: Vec<(&'static str, Vec<(String, Value)>)> =
        alone().into_iter().map(|(name, config)| (name, vec![(name.to_owned(), config)])).collect();
    for (name, text) in SHIPPED {
        subjects.push((name, shipped(text).map_err(|error| format!("{name}: {error}"))?));
    }
    let mut rows = Vec::new();
    for (name, functions) in &subjects {
        for &flows in &plan.flows {
            let make = || chain(functions, flows);
            rows.extend(
                measure(plan, name, flows, &make, allocations)
                    .map_err(|error| format!("{name}, {flows} flows: {error}"))?,
            );
        }
    }
    Ok(rows)
}

#[derive(Default)]
struct Found {
    none: Vec<f64>,
    nfvactor: Vec<f64>,
    allocations: u64,
    packets: u64,
}

fn measure(
    plan: &Plan,
    chain: &'static str,
    flows: usize,
    make: &dyn Fn() -> Result<Chain, String>,
    allocations: &dyn Fn() -> u64,
) -> Result<Vec<Row>, String> {
    let forward: Vec<[u8; FRAME_LEN]> =
        (0..flows).map(|flow| traffic::udp(client(flow), SERVER)).collect();
    let mut none = Alone::new(flows, make()?);
    let out = none.open(&forward)?;
    let reverse: Vec<_> = out.iter().map(traffic::reply_to).collect();
    none.check(&forward, &reverse, &out)?;
    let mut pair = Pair::new(flows, make()?, make()?, || Preset::NFVACTOR.build())?;
    // Each NAT draws ports of its own.
    let out = pair.open(&forward)?;
    let reverse_of_pair: Vec<_> = out.iter().map(traffic::reply_to).collect();
    pair.check(&forward, &reverse_of_pair, &out)?;

    let mut found: [Found; FRAMES.len()] = Default::default();
    for round in 0..=plan.rounds {
        for ((_, lengths), found) in FRAMES.iter().zip(&mut found) {
            none.play(&mixed(&forward, &reverse, lengths));
            pair.play(&mixed(&forward, &reverse_of_pair, lengths));
            let before = allocations();
            let (packets, none_mpps) = flat_out(&mut none, plan.time);
            let allocated = allocations() - before;
            let (_, pair_mpps) = flat_out(&mut pair, plan.time);
            pair.drain()?;
            // The first round warms caches and queues up and is not counted.
            if round > 0 {
                found.none.push(1000.0 / none_mpps);
                found.nfvactor.push(1000.0 / pair_mpps);
                found.allocations += allocated;
                found.packets += packets;
            }
        }
    }
    none.drain()?;
    pair.stop();
    let rows = FRAMES.iter().zip(&found).map(|((frames, _), found)| {
        let ratios: Vec<f64> =
            found.nfvactor.iter().zip(&found.none).map(|(own, none)| own / none).collect();
        Row {
            version: 1,
            chain,
            flows,
            frames,
            none_ns: median(&found.none),
            nfvactor_ns: median(&found.nfvactor),
            ratio: median(&ratios),
            allocations_per_packet: found.allocations as f64 / found.packets.max(1) as f64,
            bytes_per_flow: none.bytes_per_flow(),
        }
    });
    Ok(rows.collect())
}

/// Both directions of all flows, with these lengths by turns.
fn mixed(
    forward: &[[u8; FRAME_LEN]],
    reverse: &[[u8; FRAME_LEN]],
    lengths: &[usize],
) -> Vec<[u8; FRAME_LEN]> {
    let both = forward.iter().zip(reverse).flat_map(|(forward, reverse)| [*forward, *reverse]);
    both.zip(lengths.iter().cycle()).map(|(frame, &len)| traffic::with_length(frame, len)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chain_is_measured_with_both_lengths() {
        let plan = Plan { flows: vec![24], time: Duration::from_millis(2), rounds: 1 };
        let rows = run(&plan, &|| 0).expect("it is measured");
        assert_eq!(rows.len(), (alone().len() + SHIPPED.len()) * FRAMES.len());
        assert!(rows.iter().all(|row| row.none_ns > 0.0 && row.nfvactor_ns > 0.0));
        let names: Vec<&str> = alone().iter().map(|(name, _)| *name).collect();
        assert!(catalog::names().iter().all(|name| names.contains(name)), "{names:?}");
        let none = Plan { flows: vec![0], ..plan };
        assert!(run(&none, &|| 0).is_err());
    }
}
