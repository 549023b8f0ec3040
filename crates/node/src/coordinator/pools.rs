//! Who gets the blocks of a pool, and what becomes of those who get none.
//!
//! A runtime that asks when no block is free is remembered, and gets the first that becomes free: one that a dead runtime had, or
//! one that another runtime can spare. The others are asked for such blocks at once, and again as long as somebody wants. Only
//! when all have answered and nothing rests with the dead is it told that there is none; until then its new flows wait.

use super::{Coordinator, Ledger, SECOND};
use crate::message::{Control, PoolId};
use holdfast_protection::Peer;

/// Between two times of asking for spare blocks.
const ASK_INTERVAL: u64 = SECOND / 2;

/// Who waits for blocks of one pool.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// First come, first served; with each, whether it was told that there is none.
    wanting: Vec<(Peer, bool)>,
    /// Asked for spare blocks, not yet answered.
    asked: Vec<Peer>,
    next_ask: u64,
}

impl Coordinator {
    fn pool_at(&self, pool: PoolId) -> Option<usize> {
        self.ledgers.iter().position(|ledger| ledger.id == pool)
    }

    pub(super) fn grant_first_blocks(&mut self, to: Peer, now: u64) {
        for at in 0..self.ledgers.len() {
            let shares = match self.cluster_of(self.ledgers[at].id.chain) {
                Some((cluster, config)) if self.is_in(to, cluster) => usize::from(config.runtimes) * 4,
                // It never has a flow of that chain.
                _ => continue,
            };
            let account = self.ledgers[at].account();
            let all = account.free + account.granted + account.quarantined;
            self.want(to, self.ledgers[at].id, (all / shares).clamp(1, 16), now);
        }
    }

    /// A runtime asks for `count` blocks.
    pub(super) fn want(&mut self, from: Peer, pool: PoolId, count: usize, now: u64) {
        let Some(at) = self.pool_at(pool) else { return };
        // A pool is divided among the runtimes that serve its chain.
        if !self.cluster_of(pool.chain).is_some_and(|(cluster, _)| self.is_in(from, cluster)) {
            self.fabric.send_control(from.node, &Control::Deny { pool });
            return;
        }
        let blocks = self.ledgers[at].grant(from, count);
        if !blocks.is_empty() {
            self.fabric.send_control(from.node, &Control::Grant { pool, blocks });
            return;
        }
        let wanting = &mut self.demands[at].wanting;
        match wanting.iter_mut().find(|(peer, _)| *peer == from) {
            Some((_, is_told)) => *is_told = false,
            None => wanting.push((from, false)),
        }
        self.ask(at, now);
        self.serve(at);
    }

    /// Asks for spare blocks those who may have some, if it is time.
    fn ask(&mut self, at: usize, now: u64) {
        let demand = &self.demands[at];
        if demand.wanting.is_empty() || !demand.asked.is_empty() || now < demand.next_ask {
            return;
        }
        let is_alone = |peer: Peer| demand.wanting.iter().all(|(wanting, _)| *wanting == peer);
        let Some((cluster, _)) = self.cluster_of(self.ledgers[at].id.chain) else { return };
        let others: Vec<Peer> = self.running_in(cluster).filter(|peer| !is_alone(*peer)).collect();
        let request = Control::SpareBlocks { pool: self.ledgers[at].id };
        for peer in others {
            if self.fabric.send_control(peer.node, &request) {
                self.demands[at].asked.push(peer);
            }
        }
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
        let pool = self.ledgers[at].id;
        while let Some(&(peer, _)) = self.demands[at].wanting.first() {
            let blocks = self.ledgers[at].grant(peer, 1);
            if blocks.is_empty() {
                break;
            }
            self.demands[at].wanting.remove(0);
            self.fabric.send_control(peer.node, &Control::Grant { pool, blocks });
        }
        if self.demands[at].asked.is_empty() && self.ledgers[at].account().quarantined == 0 {
            for (peer, is_told) in &mut self.demands[at].wanting {
                if !core::mem::replace(is_told, true) {
                    self.fabric.send_control(peer.node, &Control::Deny { pool });
                }
            }
        }
    }

    /// A runtime's answer to the question for spare blocks.
    pub(super) fn spared(&mut self, from: Peer, pool: PoolId, blocks: &[u32], last: bool) {
        let Some(at) = self.pool_at(pool) else { return };
        for block in blocks {
            self.ledgers[at].give_back(from, *block);
        }
        if last {
            self.demands[at].asked.retain(|peer| *peer != from);
        }
        self.serve(at);
    }

    /// Flows recovered at `from` hold these numbers.
    pub(super) fn adopted(&mut self, from: Peer, pool: PoolId, numbers: &[u32]) {
        let Some(at) = self.pool_at(pool) else { return };
        let ledger = &mut self.ledgers[at];
        let taken: Vec<(Peer, u32)> =
            numbers.iter().filter_map(|number| ledger.adopted(from, *number).map(|owner| (owner, *number))).collect();
        self.tell_owners(&taken, |numbers| Control::Taken { pool, numbers });
    }

    /// Flows that held these numbers have ended at `from`.
    pub(super) fn returned(&mut self, from: Peer, pool: PoolId, numbers: &[u32]) {
        let Some(at) = self.pool_at(pool) else { return };
        let ledger = &mut self.ledgers[at];
        let free: Vec<(Peer, u32)> =
            numbers.iter().filter_map(|number| ledger.returned(from, *number).map(|owner| (owner, *number))).collect();
        self.tell_owners(&free, |numbers| Control::Returned { pool, numbers });
    }

    fn tell_owners(&mut self, numbers: &[(Peer, u32)], message: impl Fn(Vec<u32>) -> Control) {
        for owned in numbers.chunk_by(|a, b| a.0 == b.0) {
            for part in owned.chunks(200) {
                self.fabric.send_control(owned[0].0.node, &message(part.iter().map(|(_, number)| *number).collect()));
            }
        }
    }

    /// The runtime died: its blocks rest.
    pub(super) fn quarantine(&mut self, dead: Peer) {
        for (ledger, demand) in self.ledgers.iter_mut().zip(&mut self.demands) {
            ledger.quarantine(dead);
            demand.wanting.retain(|(peer, _)| *peer != dead);
            demand.asked.retain(|peer| *peer != dead);
        }
    }

    /// What a dead runtime had is free, except what recovered flows hold.
    pub(super) fn release(&mut self, dead: Peer) {
        for at in 0..self.ledgers.len() {
            let lost = self.ledgers[at].release(dead);
            let pool = self.ledgers[at].id;
            self.tell_owners(&lost, |numbers| Control::Returned { pool, numbers });
        }
    }

    /// After failures: serves every pool.
    pub(super) fn serve_all(&mut self) {
        (0..self.ledgers.len()).for_each(|at| self.serve(at));
    }

    pub(super) fn demands(ledgers: &[Ledger]) -> Vec<Demand> {
        ledgers.iter().map(|_| Demand::default()).collect()
    }
}
