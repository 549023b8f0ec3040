//! `holdfast bench messages`: the cost of messages between processes.
//!
//! Two endpoints of the fabric run on one core, joined directly. Records of 64, 256 and
//! 1024 bytes go one way in full windows, and acknowledgements come back, with keys and
//! without. Every case first sends a numbered round and checks that it arrives
//! completely, in order and unharmed; only then are times taken. The cases take turns, so
//! that a noisy machine disturbs all alike.

use holdfast_node::channel::{Fabric, FabricConfig, Key, KeyRing};
use holdfast_protection::Peer;
use holdfast_wire::NodeId;
use serde::Serialize;
use std::num::NonZeroU64;
use std::time::Instant;

const SIZES: [usize; 3] = [64, 256, 1024];
const LEFT: Peer = Peer { node: NodeId::new(16), incarnation: 1 };
const RIGHT: Peer = Peer { node: NodeId::new(17), incarnation: 1 };
/// Bytes of records that are queued before they are sent.
const BURST_BYTES: usize = 64 << 10;
const KIND: u8 = 40;

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Messages per case and round.
    pub messages: usize,
    /// Rounds; the median counts.
    pub rounds: usize,
}

/// A row of the result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Version of this object.
    pub version: u32,
    /// `sealed` or `plain`.
    pub case: &'static str,
    /// Bytes of a message.
    pub bytes: usize,
    /// True with keys.
    pub authenticated: bool,
    /// Messages per second, from the median time.
    pub messages_per_second: f64,
    /// Median over the rounds.
    pub ns_per_message: f64,
    /// Messages that share a frame.
    pub messages_per_frame: f64,
    /// Allocations during the timed part, per message.
    pub allocations_per_message: f64,
}

struct Case {
    bytes: usize,
    authenticated: bool,
    left: Fabric,
    right: Fabric,
    body: Vec<u8>,
    now: u64,
    times: Vec<f64>,
    frames: u64,
    allocations: u64,
}

impl Case {
    fn new(bytes: usize, authenticated: bool) -> Result<Case, String> {
        let endpoint = |me: Peer, other: Peer| {
            let mut fabric = Fabric::new(me, FabricConfig::default());
            if authenticated {
                let ring = KeyRing::new(vec![Key { number: 1, secret: [0x5a; 32] }])
                    .map_err(|error| error.to_string())?;
                fabric.authenticate(&ring, NonZeroU64::MIN.saturating_add(me.node.get().into()));
            }
            fabric.set_peer(other);
            Ok::<Fabric, String>(fabric)
        };
        let (left, right) = (endpoint(LEFT, RIGHT)?, endpoint(RIGHT, LEFT)?);
        Ok(Case {
            bytes,
            authenticated,
            left,
            right,
            body: vec![0; bytes],
            now: 1,
            times: Vec::new(),
            frames: 0,
            allocations: 0,
        })
    }

    /// Sends `messages` messages and waits for them; `look` sees each.
    fn play(
        &mut self,
        messages: usize,
        mut look: impl FnMut(usize, &[u8]) -> bool,
    ) -> Result<(), String> {
        let (mut sent, mut got, mut idle) = (0, 0, 0);
        let burst = (BURST_BYTES / self.bytes).max(1);
        while got < messages {
            for _ in 0..burst.min(messages - sent) {
                self.body[..8].copy_from_slice(&(sent as u64).to_be_bytes());
                if self.left.send(RIGHT.node, KIND, &self.body).is_err() {
                    break;
                }
                sent += 1;
            }
            self.now += 1000;
            let before = got;
            let Case { left, right, now, frames, .. } = self;
            let mut refused = None;
            left.poll_transmit(*now, |frame| {
                *frames += 1;
                refused = refused.or(right.handle_frame(frame, *now).err());
                true
            });
            for (_, body) in right.inbox.records() {
                if !look(got, body) {
                    return Err(format!(
                        "message {got} of {} bytes is not what was sent",
                        self.bytes
                    ));
                }
                got += 1;
            }
            right.inbox.clear();
            right.poll_transmit(*now, |frame| {
                refused = refused.or(left.handle_frame(frame, *now).err());
                true
            });
            if let Some(reason) = refused {
                return Err(format!("a frame was refused: {reason}"));
            }
            // The peer's incarnation is asked and answered first; after that every round
            // brings something.
            idle = if got > before { 0 } else { idle + 1 };
            if idle > 4 {
                return Err(format!(
                    "{got} of {messages} messages of {} bytes arrived",
                    self.bytes
                ));
            }
        }
        Ok(())
    }

    /// Checks that everything arrives once and in order.
    fn check(&mut self, messages: usize) -> Result<(), String> {
        let bytes = self.bytes;
        self.play(messages, |number, body| {
            body.len() == bytes && body[..8] == (number as u64).to_be_bytes()
        })?;
        if self.left.is_authenticated() != self.authenticated {
            return Err("a case is not what it is called".to_owned());
        }
        Ok(())
    }
}

/// Runs the plan. `allocations` reads the process's count of allocations.
///
/// # Errors
/// The result is wrong; the error says how.
pub fn run(plan: &Plan, allocations: &dyn Fn() -> u64) -> Result<Vec<Row>, String> {
    if plan.messages == 0 || plan.rounds == 0 {
        return Err("there is nothing to measure".to_owned());
    }
    let mut cases = Vec::new();
    for bytes in SIZES {
        for authenticated in [false, true] {
            let mut case = Case::new(bytes, authenticated)?;
            case.check(plan.messages)?;
            case.frames = 0;
            cases.push(case);
        }
    }
    for _ in 0..plan.rounds {
        for case in &mut cases {
            let (before, start) = (allocations(), Instant::now());
            case.play(plan.messages, |_, _| true)?;
            case.times.push(start.elapsed().as_nanos() as f64 / plan.messages as f64);
            case.allocations += allocations() - before;
        }
    }
    Ok(cases.into_iter().map(|case| row(case, plan)).collect())
}

fn row(mut case: Case, plan: &Plan) -> Row {
    case.times.sort_by(f64::total_cmp);
    let ns_per_message = case.times[case.times.len() / 2];
    let messages = (plan.messages * plan.rounds) as f64;
    Row {
        version: 1,
        case: if case.authenticated { "sealed" } else { "plain" },
        bytes: case.bytes,
        authenticated: case.authenticated,
        messages_per_second: 1e9 / ns_per_message,
        ns_per_message,
        messages_per_frame: messages / case.frames as f64,
        // The list of times allocates too.
        allocations_per_message: case.allocations as f64 / messages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short run: every size with and without keys, several messages in a frame.
    #[test]
    fn every_size_is_measured_with_and_without_keys() {
        let rows = run(&Plan { messages: 2000, rounds: 1 }, &|| 0).unwrap();
        let cases: Vec<_> = rows.iter().map(|row| (row.bytes, row.authenticated)).collect();
        assert_eq!(
            cases,
            [(64, false), (64, true), (256, false), (256, true), (1024, false), (1024, true)]
        );
        assert!(rows.iter().all(|row| row.ns_per_message > 0.0 && row.messages_per_frame > 1.5));
        assert!(run(&Plan { messages: 0, rounds: 1 }, &|| 0).is_err());
    }

    /// A wrong message is found before any time is taken.
    #[test]
    fn a_wrong_message_is_found() {
        let mut case = Case::new(64, true).unwrap();
        assert!(case.play(100, |number, _| number != 50).unwrap_err().contains("message 50"));
    }
}
