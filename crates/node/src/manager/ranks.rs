//! The flows, hosts and ports with the most bytes: rounds of questions to all runtimes.
//!
//! One round is under way at a time, however many clients ask. A question is answered by
//! a round that began after it, so that the answer is no older than the question. A round
//! ends when every runtime has answered or ended, or after [`TIMEOUT`]: a runtime that
//! hangs is missing in the answer, and keeps no client waiting.
//!
//! In: questions, records, ends, the time. Out: questions to runtimes, answers. Never: a
//! look at the flows in them.

use super::Manager;
use crate::message::Control;
use crate::ranks::{Ranking, Ranks};
use holdfast_protection::Peer;
use holdfast_wire::DropReason;
use std::sync::Arc;

/// The longest time of a round, ns.
const TIMEOUT: u64 = 300_000_000;

/// Runtimes' answers, still encoded. Decoding is left to the reader, so that no packet
/// waits for it.
#[derive(Debug, Clone, Default)]
pub struct RankParts(Arc<Vec<Vec<u8>>>);

impl RankParts {
    /// The first flows, hosts and ports of all runtimes together.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] if a part is not an encoding.
    pub fn shown(&self) -> Result<Ranks, DropReason> {
        let mut ranking = Ranking::default();
        for part in self.0.iter() {
            ranking.merge(postcard::from_bytes(part).map_err(|_| DropReason::Malformed)?);
        }
        Ok(ranking.shown())
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Rounds {
    /// The latest round that has begun, from 1.
    number: u32,
    began_at: u64,
    /// Runtimes that have not answered.
    asked: Vec<Peer>,
    parts: Vec<Vec<u8>>,
    /// The latest round that is over, with its answers.
    last: (u32, RankParts),
}

impl Rounds {
    /// Takes a runtime's answer: see [`kind::RANKS`](crate::message::kind::RANKS).
    ///
    /// # Errors
    /// [`DropReason::Malformed`] if it is none.
    pub(super) fn handle_record(&mut self, from: Peer, body: &[u8]) -> Result<(), DropReason> {
        let (request, ranks) = body.split_first_chunk().ok_or(DropReason::Malformed)?;
        if u32::from_be_bytes(*request) == self.number && self.asked.contains(&from) {
            self.asked.retain(|peer| *peer != from);
            self.parts.push(ranks.to_vec());
        }
        Ok(())
    }

    /// The runtime answers no more.
    pub(super) fn handle_ended(&mut self, peer: Peer) {
        self.asked.retain(|asked| *asked != peer);
    }

    /// Ends the round that is under way if nothing more is to come. True if none is.
    fn settle(&mut self, now: u64) -> bool {
        let is_open = self.last.0 != self.number;
        if is_open && (self.asked.is_empty() || now.saturating_sub(self.began_at) > TIMEOUT) {
            self.asked.clear();
            self.last = (self.number, RankParts(Arc::new(core::mem::take(&mut self.parts))));
        }
        self.last.0 == self.number
    }
}

impl Manager {
    /// Asks for the flows, hosts and ports with the most bytes. Returns the round that
    /// answers: give it to [`Manager::take_ranks`].
    pub fn request_ranks(&mut self) -> u32 {
        if !self.rounds.settle(self.now) {
            // The round under way may have looked at flows before this question.
            return self.rounds.number.wrapping_add(1);
        }
        self.begin_round()
    }

    fn begin_round(&mut self) -> u32 {
        let Manager { rounds, present, reports, fabric, .. } = self;
        rounds.number = rounds.number.wrapping_add(1);
        rounds.began_at = self.now;
        rounds.asked = present
            .iter()
            .copied()
            .filter(|peer| reports.iter().any(|(reporter, _)| reporter == peer))
            .collect();
        let question = Control::RankFlows { request: rounds.number };
        for peer in &rounds.asked {
            fabric.send_control(peer.node, &question);
        }
        rounds.number
    }

    /// True if [`Manager::take_ranks`] can go on with this round, or begin it.
    pub fn ranks_are_due(&self, round: u32) -> bool {
        let last = self.rounds.last.0;
        last.wrapping_sub(round) as i32 >= 0 || last == self.rounds.number
    }

    /// The answers of this round, once it is over. Begins the round if the one before it
    /// is over.
    pub fn take_ranks(&mut self, round: u32) -> Option<RankParts> {
        let is_idle = self.rounds.settle(self.now);
        let (last, parts) = &self.rounds.last;
        if last.wrapping_sub(round) as i32 >= 0 {
            return Some(parts.clone());
        }
        if is_idle {
            self.begin_round();
        }
        None
    }
}
