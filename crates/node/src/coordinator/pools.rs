//! Grants of pool blocks, and requests for which there is none.
//!
//! A request without a free block is remembered, and gets the first block that becomes
//! free: a dead runtime's, or one that another runtime can spare. The others are asked
//! for spare blocks at once, and again as long as a request waits. Only when all have
//! answered, and no block is quarantined, is the runtime told that there is none; until
//! then its new flows wait.

use super::memory::Decision;
use super::{Coordinator, SECOND};
use crate::message::{Control, PoolId};
use holdfast_protection::Peer;

/// Interval between questions for spare blocks, ns.
const ASK_INTERVAL: u64 = SECOND / 2;

/// The demand for one pool's blocks. Need not be remembered, because runtimes ask again.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// Requesters that were told that there is no block.
    told: Vec<Peer>,
    /// Runtimes that were asked for spare blocks and have not answered.
    asked: Vec<Peer>,
    next_ask: u64,
}

impl Coordinator {
    pub(super) fn grant_first_blocks(&mut self, to: Peer, now: u64) {
        for at in 0..self.memory.ledgers.len() {
            let chain = self.memory.ledgers[at].id.chain;
            if !self.memory.serves(to, chain) {
                continue;
            }
            let cluster = self
                .memory
                .cluster_of(chain)
                .and_then(|cluster| self.config.clusters.get(usize::from(cluster)));
            let shares =
                cluster.map_or(1, |cluster| usize::from(cluster.runtimes + cluster.spare) * 4);
            let account = self.memory.ledgers[at].account();
            let all = account.free + account.granted + account.quarantined;
            self.want(to, self.memory.ledgers[at].id, (all / shares).clamp(1, 16), now);
        }
    }

    /// Grants a runtime up to `count` blocks, or remembers its request.
    pub(super) fn want(&mut self, from: Peer, pool: PoolId, count: usize, now: u64) {
        let Some(at) = self.memory.pool_at(pool) else { return };
        // A pool is divided among the runtimes that serve its chain.
        if !self.memory.serves(from, pool.chain) {
            self.pending.push((from.node, Control::Deny { pool }));
            return;
        }
        let blocks = self.memory.ledgers[at].pick(count);
        if !blocks.is_empty() {
            self.record(Decision::Granted { to: from, pool, blocks });
            return;
        }
        if !self.memory.wanting[at].contains(&from) {
            self.record(Decision::Wants { peer: from, pool });
        }
        self.demands[at].told.retain(|peer| *peer != from);
        self.ask(at, now);
        self.serve(at);
    }

    /// Asks runtimes that may have spare blocks, if a question is due.
    fn ask(&mut self, at: usize, now: u64) {
        let (demand, wanting) = (&self.demands[at], &self.memory.wanting[at]);
        if wanting.is_empty() || !demand.asked.is_empty() || now < demand.next_ask {
            return;
        }
        let is_alone = |peer: Peer| wanting.iter().all(|other| *other == peer);
        let Some(cluster) = self.memory.cluster_of(self.memory.ledgers[at].id.chain) else {
            return;
        };
        let others: Vec<Peer> =
            self.memory.running_in(cluster).filter(|peer| !is_alone(*peer)).collect();
        let request = Control::SpareBlocks { pool: self.memory.ledgers[at].id };
        self.pending.extend(others.iter().map(|peer| (peer.node, request.clone())));
        self.demands[at].asked = others;
        self.demands[at].next_ask = now + ASK_INTERVAL;
    }

    /// Asks again while requests wait: flows end, and blocks become empty.
    pub(super) fn ask_again(&mut self, now: u64) {
        for at in 0..self.demands.len() {
            self.ask(at, now);
        }
    }

    /// Grants free blocks to waiting requests; denies them if no block can come.
    fn serve(&mut self, at: usize) {
        let pool = self.memory.ledgers[at].id;
        while let Some(&to) = self.memory.wanting[at].first() {
            let blocks = self.memory.ledgers[at].pick(1);
            if blocks.is_empty() {
                break;
            }
            self.record(Decision::Granted { to, pool, blocks });
        }
        let (demand, wanting) = (&mut self.demands[at], &self.memory.wanting[at]);
        demand.told.retain(|peer| wanting.contains(peer));
        if demand.asked.is_empty() && self.memory.ledgers[at].account().quarantined == 0 {
            for peer in wanting {
                if !demand.told.contains(peer) {
                    demand.told.push(*peer);
                    self.pending.push((peer.node, Control::Deny { pool }));
                }
            }
        }
    }

    /// A runtime has answered the question for spare blocks.
    pub(super) fn spared(&mut self, from: Peer, pool: PoolId) {
        if let Some(at) = self.memory.pool_at(pool) {
            self.demands[at].asked.retain(|peer| *peer != from);
            self.serve(at);
        }
    }

    /// A runtime names its blocks. A block that is no other runtime's, as far as is
    /// remembered, is its own.
    pub(super) fn held(&mut self, by: Peer, pool: PoolId, blocks: &[u32]) {
        let Some(at) = self.memory.pool_at(pool) else { return };
        let ledger = &self.memory.ledgers[at];
        let unknown: Vec<u32> =
            blocks.iter().copied().filter(|block| ledger.is_unowned(*block)).collect();
        if !unknown.is_empty() {
            self.record(Decision::Held { by, pool, blocks: unknown });
        }
    }

    /// Forgets a dead runtime: its answers will not come.
    pub(super) fn forget_demand(&mut self, dead: Peer) {
        for demand in &mut self.demands {
            demand.told.retain(|peer| *peer != dead);
            demand.asked.retain(|peer| *peer != dead);
        }
    }

    /// Serves every pool.
    pub(super) fn serve_all(&mut self) {
        (0..self.memory.ledgers.len()).for_each(|at| self.serve(at));
    }
}
