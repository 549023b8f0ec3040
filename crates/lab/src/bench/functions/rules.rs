//! The cost of a new flow by the number of a firewall's rules.
//!
//! The firewall is alone, with more and more rules, of which each flow's first packet
//! meets any. Rules are networks of clients with a list of ports, as in a company's edge,
//! between them some that fix less. Every case first looks at each packet's decision, at
//! the rule that it names, and at a packet that no rule lets in.

use crate::bench::median;
use crate::bench::traffic::{FRAME_LEN, udp};
use holdfast_nf::{Chain, Context, Direction, Outcome, Position};
use holdfast_wire::{FlowKey, MemoryPool, Packet, PacketPool};
use serde::Serialize;
use serde_json::json;
use std::time::Instant;

/// Rules, by case.
const RULES: [usize; 3] = [10, 1_000, 10_000];
/// Different packets of a case.
const PACKETS: usize = 4096;
const SERVER: ([u8; 4], u16) = ([203, 0, 113, 10], 443);

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// New flows per case and round.
    pub flows: usize,
    /// Rounds; the median counts.
    pub rounds: usize,
}

/// A row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// The function.
    pub function: &'static str,
    /// Rules of the function.
    pub rules: usize,
    /// Median over the rounds.
    pub ns_per_new_flow: f64,
    /// Ratio to the case with the fewest rules.
    pub ratio: f64,
    /// Allocations during the timed part, per new flow.
    pub allocations_per_new_flow: f64,
}

/// Every tenth rule has a range of ports and no network, and matches nothing here.
fn rule(at: usize) -> String {
    match at % 10 {
        9 => format!("deny tcp from any to any port {}-{}", 10_000 + at, 11_000 + at),
        _ => format!("allow udp from 10.{}.{}.0/24 to any port 80,443", at / 256, at % 256),
    }
}

struct Case {
    rules: usize,
    chain: Chain,
    cx: Context,
    /// A flow's state, aligned.
    block: Vec<u128>,
    packets: Vec<(FlowKey, Packet)>,
    now: u64,
    times: Vec<f64>,
    allocations: u64,
}

impl Case {
    fn new(rules: usize, pool: &mut dyn PacketPool) -> Result<Case, String> {
        let texts: Vec<String> = (0..rules).map(rule).collect();
        let config = [("firewall".to_owned(), json!({ "rules": texts, "default": "deny" }))];
        let chain =
            holdfast_functions::catalog::chain(&config).map_err(|(_, error)| error.to_string())?;
        let block = vec![0; chain.layout().size.div_ceil(size_of::<u128>())];
        let (cx, packets, times) = (Context::new(7), Vec::new(), Vec::new());
        let mut case = Case { rules, chain, cx, block, packets, now: 1, times, allocations: 0 };
        let mut random = holdfast_sim::Random::new(rules as u64);
        while case.packets.len() < PACKETS {
            let at = random.range(0, rules as u64) as usize;
            if at % 10 == 9 {
                continue;
            }
            let client = ([10, (at / 256) as u8, (at % 256) as u8, 5], random.range(1024, 65_536));
            let (key, mut packet) = packet((client.0, client.1 as u16), pool)?;
            let said = case.chain.functions()[0].explain(&packet, None);
            if said != format!("by its rule `{}`", texts[at]) || !case.open(&key, &mut packet) {
                return Err(format!("rule {at} of {rules} does not decide: {said}"));
            }
            case.packets.push((key, packet));
        }
        let (key, mut stranger) = packet(([192, 0, 2, 1], 5), pool)?;
        let is_in = case.open(&key, &mut stranger);
        pool.put(stranger);
        if is_in {
            return Err(format!("no rule of {rules} lets a stranger in, and it is in"));
        }
        Ok(case)
    }

    /// A flow's first packet. True if it is let in.
    #[inline]
    fn open(&mut self, key: &FlowKey, packet: &mut Packet) -> bool {
        self.now += 1;
        self.block.fill(0);
        self.cx.begin(self.now, *key, Direction::Forward);
        let len = self.chain.layout().size;
        let block = &mut zerocopy::IntoBytes::as_mut_bytes(self.block.as_mut_slice())[..len];
        self.chain.run(packet, block, Position::OPENING, &mut self.cx) == Outcome::Forward
    }

    fn round(&mut self, flows: usize, allocations: &dyn Fn() -> u64) -> Result<(), String> {
        let mut packets = core::mem::take(&mut self.packets);
        let (mut let_in, before, start) = (0, allocations(), Instant::now());
        for at in 0..flows {
            let (key, packet) = &mut packets[at % PACKETS];
            let_in += usize::from(self.open(key, packet));
        }
        self.times.push(start.elapsed().as_nanos() as f64 / flows as f64);
        self.allocations += allocations() - before;
        self.packets = packets;
        if let_in != flows {
            return Err(format!("{let_in} of {flows} flows were let in by {} rules", self.rules));
        }
        Ok(())
    }
}

/// A datagram of this client to the server, and its key.
fn packet(client: ([u8; 4], u16), pool: &mut dyn PacketPool) -> Result<(FlowKey, Packet), String> {
    let mut packet = pool.take().ok_or("no buffer left")?;
    let is_sound = packet.copy_from(&udp::<FRAME_LEN>(client, SERVER)) && packet.parse().is_ok();
    match FlowKey::of(&packet).filter(|_| is_sound) {
        Some(key) => Ok((key, packet)),
        None => Err("a packet is not sound".to_owned()),
    }
}

/// Runs the plan. `allocations` reads the process's count of allocations.
///
/// # Errors
/// The result is wrong; the error says how.
pub fn run(plan: &Plan, allocations: &dyn Fn() -> u64) -> Result<Vec<Row>, String> {
    if plan.flows == 0 || plan.rounds == 0 {
        return Err("there is nothing to measure".to_owned());
    }
    let mut pool = MemoryPool::new(RULES.len() * PACKETS + 1);
    let mut cases =
        RULES.iter().map(|rules| Case::new(*rules, &mut pool)).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..plan.rounds {
        for case in &mut cases {
            case.round(plan.flows, allocations)?;
        }
    }
    let least = median(&cases[0].times);
    let flows = (plan.flows * plan.rounds) as f64;
    let rows = cases.iter().map(|case| Row {
        version: 1,
        function: "firewall",
        rules: case.rules,
        ns_per_new_flow: median(&case.times),
        ratio: median(&case.times) / least,
        allocations_per_new_flow: case.allocations as f64 / flows,
    });
    Ok(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_flows_meet_their_rules() {
        let rows = run(&Plan { flows: 100, rounds: 1 }, &|| 0).expect("it is measured");
        assert_eq!(rows.iter().map(|row| row.rules).collect::<Vec<_>>(), RULES);
        assert!(run(&Plan { flows: 0, rounds: 1 }, &|| 0).is_err());
    }
}
