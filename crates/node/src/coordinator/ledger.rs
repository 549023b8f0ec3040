//! The account of every pool, kept by the coordinator: blocks, their owners, and numbers
//! held elsewhere.
//!
//! Theory of operation. A block is free, granted to one incarnation of one runtime, or
//! quarantined because that incarnation died. While it is quarantined, the recovering
//! runtimes report which of its numbers their flows hold. When all have reported, the
//! block can be granted again, without those. A number that a flow holds outside the
//! block's owner is *foreign*: the ledger knows the flow's runtime, so that the number
//! becomes free when the flow ends there, or is lost with that runtime. A number whose
//! flow and block are at one runtime is that runtime's own affair.
//!
//! A runtime's report may arrive after that of the runtime to which the flow has moved
//! on: the newest epoch counts.

use crate::channel::format::after;
use crate::message::PoolId;
use holdfast_nf::shared::{BLOCK_LEN, BlockMask};
use holdfast_protection::Peer;
use holdfast_wire::fault::{Fault, is_planted};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Numbers that are foreign no more and whose epochs are remembered. A late report about
/// a forgotten one keeps the number taken for as long as its sender lives.
const SETTLED: usize = 1024;

/// Distance in epochs from which on a report counts as newer: epochs have wrapped around.
const LATE: u32 = 1 << 24;

/// Numbers that are foreign no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
struct Settled {
    /// The epochs under which they last were.
    epochs: BTreeMap<u32, u32>,
    /// The order in which they came.
    order: VecDeque<u32>,
}

impl Settled {
    fn insert(&mut self, number: u32, epoch: u32) {
        if epoch == 0 || self.epochs.insert(number, epoch).is_some() {
            return;
        }
        self.order.push_back(number);
        if self.order.len() > SETTLED
            && let Some(oldest) = self.order.pop_front()
        {
            self.epochs.remove(&oldest);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Owner {
    Nobody,
    Runtime(Peer),
    Quarantined(Peer),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Block {
    owner: Owner,
    /// Numbers held by flows outside the owner.
    foreign: BlockMask,
}

/// The account of one pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// The pool.
    pub id: PoolId,
    blocks: Vec<Block>,
    /// The runtimes whose flows hold foreign numbers, and the epochs under which the
    /// flows came there.
    holders: BTreeMap<u32, (Peer, u32)>,
    settled: Settled,
    cursor: usize,
    step: usize,
}

/// A pool's numbers by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Account {
    /// Free blocks.
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
        // Blocks are granted far apart, so that every runtime gets some of every address
        // of a NAT pool.
        let step = (1..=count.max(1))
            .rev()
            .find(|step| step * 8 <= count * 5 && gcd(*step, count.max(1)) == 1)
            .unwrap_or(1);
        Ledger {
            id,
            blocks,
            holders: BTreeMap::new(),
            settled: Settled::default(),
            cursor: 0,
            step,
        }
    }

    /// Up to `count` free blocks, in the order in which they are to be granted. Changes
    /// nothing.
    pub fn pick(&self, count: usize) -> Vec<u32> {
        let numbers =
            (0..self.blocks.len()).map(|turn| (self.cursor + turn * self.step) % self.blocks.len());
        numbers
            .filter(|at| self.blocks[*at].owner == Owner::Nobody)
            .take(count)
            .map(|at| at as u32)
            .collect()
    }

    /// Grants these blocks to a runtime, if they are free. Returns them with their
    /// numbers that flows elsewhere hold.
    pub fn take(&mut self, to: Peer, blocks: &[u32]) -> Vec<(u32, BlockMask)> {
        let mut granted = Vec::with_capacity(blocks.len());
        for &number in blocks {
            let count = self.blocks.len();
            let Some(block) =
                self.blocks.get_mut(number as usize).filter(|block| block.owner == Owner::Nobody)
            else {
                continue;
            };
            self.cursor = (number as usize + self.step) % count;
            block.owner = Owner::Runtime(to);
            granted.push((number, block.foreign));
            // The runtime has reported the numbers that its own flows hold, and accounts
            // for them from now on.
            let numbers = number * BLOCK_LEN..(number + 1) * BLOCK_LEN;
            let own = self
                .holders
                .range(numbers)
                .filter(|(_, (holder, _))| *holder == to)
                .map(|(number, _)| *number);
            for number in own.collect::<Vec<_>>() {
                set(&mut block.foreign, number % BLOCK_LEN, false);
                settle(&mut self.holders, &mut self.settled, number, None);
            }
        }
        granted
    }

    /// True if the block has no owner.
    pub fn is_unowned(&self, block: u32) -> bool {
        self.blocks.get(block as usize).is_some_and(|block| block.owner == Owner::Nobody)
    }

    /// True if this is an account of a pool of `size` numbers.
    pub fn fits(&self, size: u32) -> bool {
        self.blocks.len() == size.div_ceil(BLOCK_LEN) as usize
    }

    /// The runtime returns a block of which it uses no number. Numbers that flows
    /// elsewhere hold stay taken.
    pub fn give_back(&mut self, from: Peer, block: u32) {
        if let Some(block) = self.blocks.get_mut(block as usize)
            && block.owner == Owner::Runtime(from)
        {
            block.owner = Owner::Nobody;
        }
    }

    /// The runtime died: its blocks are quarantined until [`Ledger::release`].
    pub fn quarantine(&mut self, dead: Peer) {
        for block in &mut self.blocks {
            if block.owner == Owner::Runtime(dead) {
                block.owner = if is_planted(Fault::FreesBlocksAtDeath) {
                    Owner::Nobody
                } else {
                    Owner::Quarantined(dead)
                };
            }
        }
    }

    /// A flow that came to `holder` under this epoch (0 if unknown) holds this number.
    /// Returns the owner of its block, which must be told that the number is taken.
    pub fn adopted(&mut self, holder: Peer, number: u32, epoch: u32) -> Option<Peer> {
        if self.is_past(number, epoch) {
            return None;
        }
        let block = self.blocks.get_mut((number / BLOCK_LEN) as usize)?;
        let bit = number % BLOCK_LEN;
        if block.owner == Owner::Runtime(holder) {
            set(&mut block.foreign, bit, false);
            settle(&mut self.holders, &mut self.settled, number, Some(epoch));
            return None;
        }
        let was_known = is_set(&block.foreign, bit);
        set(&mut block.foreign, bit, true);
        self.holders.insert(number, (holder, epoch));
        match block.owner {
            Owner::Runtime(owner) if !was_known => Some(owner),
            _ => None,
        }
    }

    /// Every runtime has reported its recoveries of `dead`: frees the rest. Returns
    /// numbers that were lost with it and lie in another runtime's block, with that
    /// runtime.
    pub fn release(&mut self, dead: Peer) -> Vec<(Peer, u32)> {
        for block in &mut self.blocks {
            if block.owner == Owner::Quarantined(dead) {
                block.owner = Owner::Nobody;
            }
        }
        let lost: Vec<u32> = self
            .holders
            .iter()
            .filter(|(_, (holder, _))| *holder == dead)
            .map(|(number, _)| *number)
            .collect();
        lost.into_iter()
            .filter_map(|number| self.returned(dead, number).map(|owner| (owner, number)))
            .collect()
    }

    /// A flow at `from` returned a foreign number. Returns the owner of its block, which
    /// must be told.
    pub fn returned(&mut self, from: Peer, number: u32) -> Option<Peer> {
        let block = self.blocks.get_mut((number / BLOCK_LEN) as usize)?;
        match self.holders.get(&number) {
            Some((holder, _)) if *holder == from => {}
            // The block was on its way to the flow's runtime, with this number marked as
            // taken.
            None if block.owner == Owner::Runtime(from) => return Some(from),
            // Another runtime has the flow now.
            _ => return None,
        }
        set(&mut block.foreign, number % BLOCK_LEN, false);
        settle(&mut self.holders, &mut self.settled, number, None);
        match block.owner {
            Owner::Runtime(owner) => Some(owner),
            Owner::Nobody | Owner::Quarantined(_) => None,
        }
    }

    /// The newest epoch that is remembered of any number's flow.
    pub fn newest_epoch(&self) -> Option<u32> {
        let held = self.holders.values().map(|(_, epoch)| *epoch);
        let known = held.chain(self.settled.epochs.values().copied()).filter(|epoch| *epoch != 0);
        known.reduce(newer)
    }

    /// Forgets epochs: no runtime is left that could report earlier ones, so they may
    /// begin again.
    pub fn forget_epochs(&mut self) {
        self.settled = Settled::default();
    }

    /// True if the flow that had this number under this epoch is known to have moved on,
    /// or to have ended.
    fn is_past(&self, number: u32, epoch: u32) -> bool {
        let is_older = |known: u32| {
            known != 0 && (epoch == 0 || (1..LATE).contains(&known.wrapping_sub(epoch)))
        };
        match self.holders.get(&number) {
            Some((_, known)) => is_older(*known),
            None => {
                epoch != 0 && self.settled.epochs.get(&number).is_some_and(|known| is_older(*known))
            }
        }
    }

    /// True if the number lies in a free block and would be granted as free.
    pub fn is_free(&self, number: u32) -> bool {
        let bit = number % BLOCK_LEN;
        self.blocks
            .get((number / BLOCK_LEN) as usize)
            .is_some_and(|block| block.owner == Owner::Nobody && !is_set(&block.foreign, bit))
    }

    /// The pool's numbers by state.
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

/// The newer of two epochs.
pub(super) fn newer(a: u32, b: u32) -> u32 {
    if after(a, b) { a } else { b }
}

/// Notes that the number is foreign no more, and its last epoch.
fn settle(
    holders: &mut BTreeMap<u32, (Peer, u32)>,
    settled: &mut Settled,
    number: u32,
    epoch: Option<u32>,
) {
    let known = holders.remove(&number).map(|(_, epoch)| epoch);
    settled.insert(number, epoch.or(known).unwrap_or(0));
}

fn is_set(mask: &BlockMask, bit: u32) -> bool {
    mask[(bit / 64) as usize] >> (bit % 64) & 1 == 1
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
    use holdfast_wire::NodeId;

    impl Ledger {
        fn grant(&mut self, to: Peer, count: usize) -> Vec<(u32, BlockMask)> {
            let blocks = self.pick(count);
            self.take(to, &blocks)
        }
    }

    const EPOCH: u32 = 9;
    const ID: PoolId = PoolId { chain: 0, function: 0, field: 0 };
    const A: Peer = Peer { node: NodeId::new(16), incarnation: 1 };
    const B: Peer = Peer { node: NodeId::new(17), incarnation: 1 };
    const C: Peer = Peer { node: NodeId::new(18), incarnation: 1 };

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

    /// A dies; B recovers a flow with number 3. A's block is granted only when all have
    /// reported, and then without number 3. When B's flow ends, the block's owner is
    /// told.
    #[test]
    fn a_dead_runtimes_part_rests_until_all_have_reported() {
        let mut ledger = Ledger::new(ID, BLOCK_LEN);
        assert_eq!(ledger.grant(A, 9).len(), 1);
        ledger.quarantine(A);
        assert_eq!(ledger.grant(C, 1), []);
        ledger.adopted(B, 3, EPOCH);
        assert_eq!(ledger.release(A), []);
        assert_eq!(ledger.grant(C, 1), [(0, [8, 0, 0, 0])]);
        assert_eq!(ledger.returned(A, 3), None, "it is not A's to return");
        assert_eq!(ledger.returned(B, 3), Some(C));
        assert_eq!(ledger.returned(B, 3), None, "once is enough");
    }

    #[test]
    fn numbers_lost_with_their_second_holder_come_back() {
        let mut ledger = Ledger::new(ID, BLOCK_LEN);
        ledger.grant(A, 1);
        ledger.quarantine(A);
        ledger.adopted(B, 7, EPOCH);
        ledger.release(A);
        ledger.grant(C, 1);
        ledger.quarantine(B);
        assert_eq!(ledger.release(B), [(C, 7)]);
    }

    /// A dies and B recovers a flow with number 7; A's block goes to C. B dies and C
    /// recovers the flow: number and block are at one runtime, and nothing of the number
    /// is lost with B.
    #[test]
    fn a_number_that_comes_to_its_blocks_owner_is_not_lost_with_who_had_it_before() {
        let mut ledger = Ledger::new(ID, BLOCK_LEN);
        ledger.grant(A, 1);
        ledger.quarantine(A);
        ledger.adopted(B, 7, EPOCH);
        ledger.release(A);
        assert_eq!(ledger.grant(C, 1), [(0, [1 << 7, 0, 0, 0])]);
        ledger.quarantine(B);
        assert_eq!(ledger.adopted(C, 7, EPOCH), None);
        assert_eq!(ledger.release(B), []);
        assert_eq!(ledger.account().foreign, 0);
    }

    /// B's flow has a number of A's block when the block comes to B. The flow may have
    /// ended meanwhile: then B, which was granted the block with the number taken, hears
    /// that it is not.
    #[test]
    fn a_number_that_meets_its_block_is_its_owners_affair() {
        let mut ledger = Ledger::new(ID, BLOCK_LEN);
        ledger.grant(A, 1);
        ledger.quarantine(A);
        ledger.adopted(B, 7, EPOCH);
        ledger.release(A);
        assert_eq!(ledger.grant(B, 1), [(0, [1 << 7, 0, 0, 0])]);
        assert_eq!(ledger.account().foreign, 0);
        assert_eq!(ledger.returned(B, 7), Some(B));
    }

    /// A flow is recovered whose number lies in a block that another runtime was granted
    /// as if it were free: that one is told, once.
    #[test]
    fn an_owner_is_told_of_numbers_that_are_taken_after_all() {
        let mut ledger = Ledger::new(ID, BLOCK_LEN);
        ledger.grant(A, 1);
        assert_eq!(ledger.adopted(B, 7, EPOCH), Some(A));
        assert_eq!(ledger.adopted(C, 7, EPOCH), None);
        assert_eq!(ledger.returned(B, 7), None, "C has the flow now");
        assert_eq!(ledger.returned(C, 7), Some(A));
    }

    /// A flow of A's goes to B, and on to C. B's report arrives after C's: C has the
    /// flow, and when it ends there the number is free, however late B is heard.
    #[test]
    fn word_that_comes_late_changes_nothing() {
        let mut ledger = Ledger::new(ID, BLOCK_LEN);
        ledger.grant(A, 1);
        assert_eq!(ledger.adopted(C, 7, EPOCH + 1), Some(A));
        assert_eq!(ledger.adopted(B, 7, EPOCH), None);
        assert_eq!(ledger.release(B), [], "B has no flow with it");
        assert_eq!(ledger.returned(C, 7), Some(A));
        assert_eq!(ledger.adopted(B, 7, EPOCH), None);
        assert_eq!(ledger.account().foreign, 0, "the flow has ended");
        assert_eq!(ledger.adopted(B, 7, EPOCH + 2), Some(A), "another flow with the same number");
        assert_eq!(ledger.returned(B, 7), Some(A));
        assert_eq!(ledger.newest_epoch(), Some(EPOCH + 2));
        ledger.forget_epochs();
        assert_eq!(ledger.newest_epoch(), None);
        assert_eq!(ledger.adopted(C, 7, 1), Some(A), "epochs have begun again");
    }

    /// The flow comes back to A, whose number it is, before B is heard.
    #[test]
    fn word_that_comes_late_takes_nothing_from_the_blocks_owner() {
        let mut ledger = Ledger::new(ID, BLOCK_LEN);
        ledger.grant(A, 1);
        assert_eq!(ledger.adopted(A, 7, EPOCH + 1), None);
        assert_eq!(ledger.adopted(B, 7, EPOCH), None);
        assert_eq!(ledger.account().foreign, 0);
    }

    /// The log was lost, and a runtime announces its flows' numbers, without epochs: a
    /// known holder keeps its number.
    #[test]
    fn an_announcement_is_believed_where_nothing_is_known() {
        let mut ledger = Ledger::new(ID, BLOCK_LEN);
        assert_eq!(ledger.adopted(B, 7, 0), None);
        assert_eq!(ledger.adopted(C, 7, EPOCH), None);
        assert_eq!(ledger.adopted(B, 7, 0), None);
        ledger.release(B);
        assert_eq!(ledger.account().foreign, 1, "C holds it");
    }
}
