//! Who gets the blocks of a pool, and what becomes of those who get none.
//!
//! A runtime that asks when no block is free is remembered, and gets the first that becomes free: one that a dead runtime had, or
//! one that another runtime can spare. The others are asked for such blocks at once, and again as long as somebody wants. Only
//! when all have answered and nothing rests with the dead is it told that there is none; until then its new flows wait.

use super::memory::Entry;
use super::{Coordinator, SECOND};
use crate::message::{Control, PoolId};
use holdfast_protection::Peer;

/// Between two times of asking for spare blocks.
const ASK_INTERVAL: u64 = SECOND / 2;

/// What is known of the demand for one pool's blocks and need not be remembered: who asks again is answered again.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// Of those who want a block, who was told that there is none.
    told: Vec<Peer>,
    /// Asked for spare blocks, not yet answered.
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
            let cluster = self.memory.cluster_of(chain).and_then(|cluster| self.config.clusters.get(usize::from(cluster)));
            let shares = cluster.map_or(1, |cluster| usize::from(cluster.runtimes + cluster.spare) * 4);
            let account = self.memory.ledgers[at].account();
            let all = account.free + account.granted + account.quarantined;
            self.want(to, self.memory.ledgers[at].id, (all / shares).clamp(1, 16), now);
        }
    }

    /// A runtime may have `count` blocks, or is remembered as wanting one.
    pub(super) fn want(&mut self, from: Peer, pool: PoolId, count: usize, now: u64) {
        let Some(at) = self.memory.pool_at(pool) else { return };
        // A pool is divided among the runtimes that serve its chain.
        if !self.memory.serves(from, pool.chain) {
            self.pending.push((from.node, Control::Deny { pool }));
            return;
        }
        let blocks = self.memory.ledgers[at].pick(count);
        if !blocks.is_empty() {
            self.record(Entry::Granted { to: from, pool, blocks });
            return;
        }
        if !self.memory.wanting[at].contains(&from) {
            self.record(Entry::Wants { peer: from, pool });
        }
        self.demands[at].told.retain(|peer| *peer != from);
        self.ask(at, now);
        self.serve(at);
    }

    /// Asks for spare blocks those who may have some, if it is time.
    fn ask(&mut self, at: usize, now: u64) {
        let (demand, wanting) = (&self.demands[at], &self.memory.wanting[at]);
        if wanting.is_empty() || !demand.asked.is_empty() || now < demand.next_ask {
            return;
        }
        let is_alone = |peer: Peer| wanting.iter().all(|other| *other == peer);
        let Some(cluster) = self.memory.cluster_of(self.memory.ledgers[at].id.chain) else { return };
        let others: Vec<Peer> = self.memory.running_in(cluster).filter(|peer| !is_alone(*peer)).collect();
        let request = Control::SpareBlocks { pool: self.memory.ledgers[at].id };
        self.pending.extend(others.iter().map(|peer| (peer.node, request.clone())));
        self.demands[at].asked = others;
        self.demands[at].next_ask = now + ASK_INTERVAL;
    }

    /// Whoever still wants blocks makes the coordinator ask again: flows end, and blocks become empty.
    pub(super) fn ask_again(&mut self, now: u64) {
        for at in 0..self.demands.len() {
            self.ask(at, now);
        }
    }

    /// Grants what has become free to those who wait; tells them if nothing can come.
    fn serve(&mut self, at: usize) {
        let pool = self.memory.ledgers[at].id;
        while let Some(&to) = self.memory.wanting[at].first() {
            let blocks = self.memory.ledgers[at].pick(1);
            if blocks.is_empty() {
                break;
            }
            self.record(Entry::Granted { to, pool, blocks });
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

    /// A runtime says what it has. A block that nobody else has, as far as is remembered, is its own.
    pub(super) fn held(&mut self, by: Peer, pool: PoolId, blocks: &[u32]) {
        let Some(at) = self.memory.pool_at(pool) else { return };
        let ledger = &self.memory.ledgers[at];
        let unknown: Vec<u32> = blocks.iter().copied().filter(|block| ledger.is_unowned(*block)).collect();
        if !unknown.is_empty() {
            self.record(Entry::Held { by, pool, blocks: unknown });
        }
    }

    /// Nobody waits for a dead runtime's answers.
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
