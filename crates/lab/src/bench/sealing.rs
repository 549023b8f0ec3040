//! `holdfast bench sealing`: the cost of sealing packets between hosts.
//!
//! A single core stands for both hosts. A packet is copied into a buffer, encapsulated,
//! copied into another host's buffer as a network would, and decapsulated. In the other
//! case one host also seals it and the other opens it. Every case first sends a numbered
//! round and checks that each packet comes out unchanged; only then are times taken. The
//! cases take turns, so that a noisy machine disturbs all alike.

use super::median;
use holdfast_node::channel::{Key, KeyRing};
use holdfast_node::seal::{HostSeal, SealConfig};
use holdfast_protection::Peer;
use holdfast_wire::nsh::{Outer, decapsulate, encapsulate, index};
use holdfast_wire::{MemoryPool, NodeId, Packet, PacketPool};
use serde::Serialize;
use std::num::NonZeroU64;
use std::time::Instant;

const SIZES: [usize; 2] = [64, 1400];
/// Packets that are under way together.
const BURST: usize = 64;
const RUNTIME: Peer = Peer { node: NodeId::new(16), incarnation: 1 };

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Packets per case and round.
    pub packets: usize,
    /// Rounds; the median counts.
    pub rounds: usize,
}

/// A row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// `plain` or `sealed`.
    pub case: &'static str,
    /// Bytes of a packet, without its encapsulation.
    pub bytes: usize,
    /// Median over the rounds, both hosts together.
    pub ns_per_packet: f64,
    /// Ratio to the plain case of the same size.
    pub ratio_to_plain: f64,
    /// Allocations during the timed part, per packet.
    pub allocations_per_packet: f64,
}

struct Case {
    bytes: usize,
    /// The sender's seal and the receiver's.
    seals: Option<(HostSeal, HostSeal)>,
    pool: MemoryPool,
    sent: Vec<Packet>,
    frame: Vec<u8>,
    times: Vec<f64>,
    allocations: u64,
}

impl Case {
    fn new(bytes: usize, is_sealed: bool) -> Result<Case, String> {
        let ring = KeyRing::new(vec![Key { number: 1, secret: [0x5a; 32] }])
            .map_err(|error| error.to_string())?;
        let seal = |host: u16| {
            let life = NonZeroU64::MIN.saturating_add(host.into());
            HostSeal::new(
                SealConfig { cluster: 7, host, hosts: 2, incarnation: 1, life, timeout: 1 },
                &ring,
            )
        };
        let seals = is_sealed.then(|| {
            let (sender, mut receiver) = (seal(0), seal(1));
            receiver.handle_announced(0, 1, sender.announcement(), 0);
            (sender, receiver)
        });
        let pool = MemoryPool::new(2 * BURST);
        let (sent, times) = (Vec::with_capacity(BURST), Vec::new());
        Ok(Case { bytes, seals, pool, sent, frame: vec![0x5a; bytes], times, allocations: 0 })
    }

    /// Sends `packets` packets; `look` sees the output.
    fn play(
        &mut self,
        packets: usize,
        mut look: impl FnMut(usize, &[u8]) -> bool,
    ) -> Result<(), String> {
        let outer = Outer {
            destination: NodeId::SWITCH.mac(),
            source: RUNTIME.mac(),
            index: index::RELEASED,
        };
        let Case { seals, pool, sent, frame, .. } = self;
        let room = || "there is no room".to_owned();
        let mut number = 0;
        while number < packets {
            let burst = BURST.min(packets - number);
            for at in number..number + burst {
                frame[..8].copy_from_slice(&(at as u64).to_be_bytes());
                let mut packet = pool.take().ok_or_else(room)?;
                let mut is_ready = packet.copy_from(frame) && encapsulate(&mut packet, outer);
                if let Some((sender, _)) = seals {
                    is_ready = is_ready && sender.seal(&mut packet);
                }
                sent.push(packet);
                if !is_ready {
                    return Err(room());
                }
            }
            for (at, from) in (number..).zip(sent.drain(..)) {
                let mut packet = pool.take().ok_or_else(room)?;
                let is_whole = packet.copy_from(from.bytes());
                pool.put(from);
                let opened =
                    seals.as_mut().map_or(Ok(()), |(_, receiver)| receiver.open(&mut packet));
                let is_right = is_whole
                    && opened.is_ok()
                    && decapsulate(&mut packet) == Some(outer)
                    && look(at, packet.bytes());
                pool.put(packet);
                if !is_right {
                    return Err(format!("packet {at} did not come out as it went in: {opened:?}"));
                }
            }
            number += burst;
        }
        Ok(())
    }
}

/// Runs the plan. `allocations` reads the process's count of allocations.
///
/// # Errors
/// The result is wrong; the error says how.
pub fn run(plan: &Plan, allocations: &dyn Fn() -> u64) -> Result<Vec<Row>, String> {
    if plan.packets == 0 || plan.rounds == 0 {
        return Err("there is nothing to measure".to_owned());
    }
    let mut cases = Vec::new();
    for bytes in SIZES {
        for is_sealed in [false, true] {
            let mut case = Case::new(bytes, is_sealed)?;
            case.play(plan.packets, |number, frame| {
                frame.len() == bytes
                    && frame[..8] == (number as u64).to_be_bytes()
                    && frame[8..].iter().all(|byte| *byte == 0x5a)
            })?;
            cases.push(case);
        }
    }
    for _ in 0..plan.rounds {
        for case in &mut cases {
            let (before, start) = (allocations(), Instant::now());
            case.play(plan.packets, |_, _| true)?;
            let time = start.elapsed().as_nanos() as f64 / plan.packets as f64;
            case.allocations += allocations() - before;
            case.times.push(time);
        }
    }
    let packets = (plan.packets * plan.rounds) as f64;
    let mut plain = f64::NAN;
    let row = |case: Case| {
        let ns_per_packet = median(&case.times);
        if case.seals.is_none() {
            plain = ns_per_packet;
        }
        Row {
            version: 1,
            case: if case.seals.is_some() { "sealed" } else { "plain" },
            bytes: case.bytes,
            ns_per_packet,
            ratio_to_plain: ns_per_packet / plain,
            allocations_per_packet: case.allocations as f64 / packets,
        }
    };
    Ok(cases.into_iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short run: both sizes, plain and sealed, without an allocation.
    #[test]
    fn both_sizes_are_measured_plain_and_sealed() {
        let rows = run(&Plan { packets: 1000, rounds: 3 }, &|| 0).unwrap();
        let cases: Vec<_> = rows.iter().map(|row| (row.bytes, row.case)).collect();
        assert_eq!(cases, [(64, "plain"), (64, "sealed"), (1400, "plain"), (1400, "sealed")]);
        assert!(rows.iter().all(|row| row.ns_per_packet > 0.0 && row.ratio_to_plain > 0.0));
        assert!(run(&Plan { packets: 0, rounds: 1 }, &|| 0).is_err());
    }

    /// A packet that comes out changed is found before any time is taken.
    #[test]
    fn a_wrong_packet_is_found() {
        let mut case = Case::new(64, true).unwrap();
        assert!(case.play(100, |number, _| number != 50).unwrap_err().contains("packet 50"));
    }
}
