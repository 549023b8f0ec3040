//! Who may lease what: the account of every pool, kept by the coordinator.
//!
//! Theory of operation (DESIGN, section 12: a partition belongs to an incarnation). A block is free, granted to one incarnation of one
//! runtime, or quarantined because that incarnation died. While it is quarantined the recovering runtimes report which of its
//! numbers their flows hold; when all have reported, the block can be granted again, without those. A number that a flow holds outside the
//! block's owner is *foreign*: the ledger knows who has the flow, so that the number becomes free when the flow ends there, or
//! is lost with that runtime.

use crate::message::PoolId;
use holdfast_nf::shared::{BLOCK_LEN, BlockMask};
use holdfast_protection::Peer;
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Nobody,
    Runtime(Peer),
    Quarantined(Peer),
}

#[derive(Debug)]
struct Block {
    owner: Owner,
    /// Numbers held by flows outside the owner.
    foreign: BlockMask,
}

/// The account of one pool.
#[derive(Debug)]
pub struct Ledger {
    /// Which pool.
    pub id: PoolId,
    blocks: Vec<Block>,
    holders: BTreeMap<u32, Peer>,
    cursor: usize,
    step: usize,
}

/// How a pool's numbers are spread at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Account {
    /// Blocks nobody has.
    pub free: usize,
    /// Blocks granted.
    pub granted: usize,
    /// Blocks of dead runtimes.
    pub quarantined: usize,
    /// Numbers held outside their block's owner.
    pub foreign: usize,
}

impl Ledger {
    /// An account of a pool of `size` numbers, all free.
    pub fn new(id: PoolId, size: u32) -> Ledger {
        let count = size.div_ceil(BLOCK_LEN) as usize;
        let blocks = (0..count).map(|_| Block { owner: Owner::Nobody, foreign: [0; 4] }).collect();
        // Blocks are granted far apart, so that every runtime gets some of every address of a NAT pool.
        let step = (1..=count.max(1)).rev().find(|step| step * 8 <= count * 5 && gcd(*step, count.max(1)) == 1).unwrap_or(1);
        Ledger { id, blocks, holders: BTreeMap::new(), cursor: 0, step }
    }

    /// Takes up to `count` free blocks for a runtime.
    pub fn grant(&mut self, to: Peer, count: usize) -> Vec<(u32, BlockMask)> {
        let mut granted = Vec::new();
        for _ in 0..self.blocks.len() {
            if granted.len() == count {
                break;
            }
            let at = self.cursor;
            self.cursor = (self.cursor + self.step) % self.blocks.len();
            let block = &mut self.blocks[at];
            if block.owner == Owner::Nobody {
                block.owner = Owner::Runtime(to);
                granted.push((at as u32, block.foreign));
            }
        }
        granted
    }

    /// The runtime died: what it had rests until [`Ledger::release`].
    pub fn quarantine(&mut self, dead: Peer) {
        for block in &mut self.blocks {
            if block.owner == Owner::Runtime(dead) {
                block.owner = Owner::Quarantined(dead);
            }
        }
    }

    /// A recovered flow at `holder` holds this number.
    pub fn adopted(&mut self, holder: Peer, number: u32) {
        if let Some(block) = self.blocks.get_mut((number / BLOCK_LEN) as usize) {
            set(&mut block.foreign, number % BLOCK_LEN, true);
            self.holders.insert(number, holder);
        }
    }

    /// Every runtime has reported what it recovered of `dead`: the rest is free. Returns numbers that were lost with it and whose
    /// block is another runtime's, with that runtime.
    pub fn release(&mut self, dead: Peer) -> Vec<(Peer, u32)> {
        for block in &mut self.blocks {
            if block.owner == Owner::Quarantined(dead) {
                block.owner = Owner::Nobody;
            }
        }
        let lost: Vec<u32> = self.holders.iter().filter(|(_, holder)| **holder == dead).map(|(number, _)| *number).collect();
        lost.into_iter().filter_map(|number| self.returned(number).map(|owner| (owner, number))).collect()
    }

    /// A foreign number is free again. Returns the runtime that has its block and must be told.
    pub fn returned(&mut self, number: u32) -> Option<Peer> {
        self.holders.remove(&number)?;
        let block = self.blocks.get_mut((number / BLOCK_LEN) as usize)?;
        set(&mut block.foreign, number % BLOCK_LEN, false);
        match block.owner {
            Owner::Runtime(owner) => Some(owner),
            Owner::Nobody | Owner::Quarantined(_) => None,
        }
    }

    /// How the numbers are spread.
    pub fn account(&self) -> Account {
        let mut account = Account { foreign: self.holders.len(), ..Account::default() };
        for block in &self.blocks {
            match block.owner {
                Owner::Nobody => account.free += 1,
                Owner::Runtime(_) => account.granted += 1,
                Owner::Quarantined(_) => account.quarantined += 1,
            }
        }
        account
    }
}

fn set(mask: &mut BlockMask, bit: u32, value: bool) {
    let word = &mut mask[(bit / 64) as usize];
    if value {
        *word |= 1 << (bit % 64);
    } else {
        *word &= !(1 << (bit % 64));
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: PoolId = PoolId { chain: 0, function: 0, field: 0 };
    const A: Peer = Peer { node: 16, incarnation: 1 };
    const B: Peer = Peer { node: 17, incarnation: 1 };
    const C: Peer = Peer { node: 18, incarnation: 1 };

    #[test]
    fn every_block_is_granted_once() {
        let mut ledger = Ledger::new(ID, 64 * BLOCK_LEN);
        let mut seen = std::collections::BTreeSet::new();
        for peer in [A, B, C, A, B] {
            for (block, used) in ledger.grant(peer, 15) {
                assert!(seen.insert(block), "{block} was granted twice");
                assert_eq!(used, [0; 4]);
            }
        }
        assert_eq!(seen.len(), 64);
        assert_eq!(ledger.grant(C, 1), []);
    }

    /// A dies; B recovers a flow with number 3. Nothing of A's is granted until all have reported, and then not number 3; when B's flow
    /// ends, whoever has the block is told.
    #[test]
    fn a_dead_runtimes_part_rests_until_all_have_reported() {
        let mut ledger = Ledger::new(ID, BLOCK_LEN);
        assert_eq!(ledger.grant(A, 9).len(), 1);
        ledger.quarantine(A);
        assert_eq!(ledger.grant(C, 1), []);
        ledger.adopted(B, 3);
        assert_eq!(ledger.release(A), []);
        assert_eq!(ledger.grant(C, 1), [(0, [8, 0, 0, 0])]);
        assert_eq!(ledger.returned(3), Some(C));
        assert_eq!(ledger.returned(3), None, "once is enough");
    }

    #[test]
    fn numbers_lost_with_their_second_holder_come_back() {
        let mut ledger = Ledger::new(ID, BLOCK_LEN);
        ledger.grant(A, 1);
        ledger.quarantine(A);
        ledger.adopted(B, 7);
        ledger.release(A);
        ledger.grant(C, 1);
        ledger.quarantine(B);
        assert_eq!(ledger.release(B), [(C, 7)]);
    }
}
