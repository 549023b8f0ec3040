//! Ranking: an operator asks for the flows, hosts and ports with the most bytes.
//!
//! Theory of operation. The flow tables of chains that are
//! [ranked](holdfast_nf::NetworkFunction::RANKS) are walked slot by slot, a few in each
//! turn, as for a [list](super::listing). Each flow of this runtime is added up where it
//! stands, and the end of the last table sends one record. Counts are those of the flows'
//! headers, so an absent state does not matter. A manager has one question under way; a
//! newer one replaces it.
//!
//! In: questions, the time of turns. Out: records. Never: a packet, a change of a flow.

use super::Lane;
use crate::channel::Fabric;
use crate::message::kind;
use crate::ranks::Ranking;
use holdfast_protection::Slot;
use holdfast_wire::NodeId;
use std::collections::VecDeque;

/// Slots added up per turn: some ten microseconds.
const SLOTS_PER_TURN: u32 = 256;

/// A question that is not answered yet.
struct Walk {
    to: NodeId,
    request: u32,
    /// The next lane and slot.
    at: (usize, Slot),
    ranking: Ranking,
}

/// See the module.
#[derive(Default)]
pub(super) struct Rankings {
    open: VecDeque<Walk>,
    /// The channel had no room.
    is_blocked: bool,
}

impl Rankings {
    /// Takes a question in.
    pub(super) fn ask(&mut self, to: NodeId, request: u32) {
        self.forget(to);
        self.open.push_back(Walk { to, request, at: (0, 0), ranking: Ranking::default() });
    }

    /// Drops a node's question, because the node waits for no answer any more.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.open.retain(|walk| walk.to != node);
    }

    /// True if no node waits for an answer.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Time until a turn is due without input, ns; `None` for never.
    pub(super) fn timeout(&self) -> Option<u64> {
        (!self.is_empty()).then_some(if self.is_blocked { 1_000_000 } else { 0 })
    }

    /// Continues one of the answers.
    pub(super) fn go_on(&mut self, lanes: &[Lane], fabric: &mut Fabric) {
        let Some(mut walk) = self.open.pop_front() else { return };
        // Records that wait for the same channel go first.
        self.is_blocked = fabric.backlog(walk.to) > 0;
        if !self.is_blocked && walk.go_on(lanes) {
            let ranks = walk.ranking.ranks();
            // Encoding into a vector fails only for types that postcard does not support,
            // and these are none.
            let ranks = postcard::to_stdvec(&ranks).expect("ranks are plain data");
            let request = walk.request.to_be_bytes();
            // Without room nobody is told, and the manager's round ends by its time-out.
            let _ = fabric.send_parts(walk.to, kind::RANKS, &[&request, &ranks]);
            return;
        }
        self.open.push_back(walk);
    }
}

impl Walk {
    /// Adds up some slots; true if there are no more.
    fn go_on(&mut self, lanes: &[Lane]) -> bool {
        for _ in 0..SLOTS_PER_TURN {
            let Some(lane) = lanes.get(self.at.0) else { return true };
            if !lane.chain.ranks() || self.at.1 >= lane.flows.reach() {
                self.at = (self.at.0 + 1, 0);
                continue;
            }
            let header = lane.flows.header(self.at.1);
            self.at.1 += 1;
            if header.life().is_owned() {
                self.ranking.add(&header.key, header.packets(), header.bytes());
            }
        }
        false
    }
}
