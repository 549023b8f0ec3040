//! A pool of numbered resources: each is leased to at most one flow in the whole cluster.
//!
//! Theory of operation. The function asks for a lease when a flow opens and puts it into the flow's state ([`Leased`]). There it is as
//! long as the flow lives, travels with it, and goes back when the flow ends, without a word of the function's. Where the numbers come from is the backend's business:
//! - [`PartitionPool`]: the coordinator grants blocks of [`BLOCK_LEN`] numbers to one runtime and incarnation, which then leases
//!   without asking anyone. When the runtime dies its blocks are quarantined; flows that survive elsewhere keep their numbers
//!   (reported by [`PoolEffect::Adopted`]), and give them back through [`PoolEffect::Return`].
//!   Effects are carried out in order: who learns of a flow's end must have learned of the flow.
//!   A number that is given back rests: of a block's free numbers the half that came back last, rounded up, is leased only when no block has another, and then
//!   the one that has rested longest. So a small pool that is busy does not deal a NAT's port again at once, to a peer that still holds the connection before.
//! - [`RequestPool`]: every number comes from a server; a small credit fetched in advance makes most leases immediate, and a flow
//!   that finds the credit used up waits without stopping the worker.

mod request;

pub use request::RequestPool;

use super::{Shareable, SharedField};
use crate::{FlowEvent, Leased, Opening};
use core::marker::PhantomData;
use core::ops::Range;
use holdfast_wire::fault::{Fault, is_planted};
use std::collections::VecDeque;

/// Numbers in one block.
pub const BLOCK_LEN: u32 = 256;

/// Which numbers of a block are leased, one bit each, lowest first.
pub type BlockMask = [u64; 4];

/// The answer to [`Pool::lease`], and with a bare number a backend's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lease<N = u32> {
    /// This number is the flow's that is accepted with it, until it ends.
    Granted(N),
    /// A number is on its way: return `Wait`, and ask again when called again.
    Wait,
    /// There is none.
    Exhausted,
}

/// What a pool asks of the world; the runtime carries it there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolEffect {
    /// Grant another block: this partition runs low.
    WantBlock,
    /// Assign a number.
    Request,
    /// A flow here holds this number of the credit from now on.
    Used(u32),
    /// A number of the credit is not needed here, and was not used.
    Unused(u32),
    /// The number is free again, and not this partition's.
    Return(u32),
    /// A flow that came here by recovery or migration holds the number.
    Adopted(u32),
    /// A flow that holds the number has left.
    Left(u32),
    /// The block is not needed here.
    Spare(u32),
    /// These were all the blocks that can be spared.
    SparedAll,
}

/// Where a pool's numbers come from.
pub trait PoolBackend: Send {
    /// A number, preferably inside `preferred`: the next in order, or, with a random number, one of those at hand that it decides on; of those that
    /// rest only if there are no others.
    fn lease(&mut self, preferred: &Range<u32>, random: Option<u64>) -> Lease;
    /// A flow here gives a number back, whoever granted it.
    fn give_back(&mut self, number: u32);
    /// A flow that holds this number has come here.
    fn adopt(&mut self, number: u32);
    /// A flow that holds this number has left.
    fn forget(&mut self, number: u32);
    /// A block is this partition's from now on; `used` are the numbers in it that flows still hold. Ignored by backends without blocks.
    fn grant_block(&mut self, block: u32, used: &BlockMask);
    /// The number was assigned. Ignored by backends that do not ask for single numbers.
    fn assign(&mut self, number: u32);
    /// What was asked for is not to be had for now: the pool is empty everywhere. A server still owes single numbers that were asked for, and assigns them as soon as there are some.
    fn deny(&mut self);
    /// A number of one of this partition's blocks, leased by a flow that lived elsewhere, is free again. False if the block is not held here.
    fn returned(&mut self, number: u32) -> bool;
    /// A flow elsewhere holds a number of one of this partition's blocks. Ignored by backends without blocks.
    fn taken(&mut self, number: u32);
    /// Others need numbers: gives back blocks of which no number is held, or, when time has [advanced](PoolBackend::advance), credit that no flow has taken until then; as effects, the last of which is
    /// [`PoolEffect::SparedAll`].
    fn spare(&mut self);
    /// The next wish, `None` when there is none.
    fn poll_effect(&mut self) -> Option<PoolEffect>;
    /// Numbers that could be leased now without asking anyone.
    fn available(&self) -> u32;
    /// Whether the number is one of them.
    fn is_free(&self, number: u32) -> bool;
    /// Whether a flow here holds the number.
    fn is_held(&self, number: u32) -> bool;
    /// Numbers that flows here hold.
    fn held(&self) -> u32;
    /// Numbers granted to this runtime, leased or not.
    fn granted(&self) -> u32;
    /// Blocks granted to this runtime. None for backends without blocks.
    fn blocks(&self) -> Vec<u32> {
        Vec::new()
    }
    /// Nobody is sure to remember which numbers of others' blocks flows here hold: says so again, as effects.
    fn announce(&mut self) {}
    /// True if a server assigns the numbers, and every effect is for it.
    fn asks_server(&self) -> bool {
        false
    }
    /// It is this time, ns.
    fn advance(&mut self, now: u64) {
        let _ = now;
    }
    /// Whether a flow that held it has left, and may not have come where it went: this side answers for it.
    fn is_leaving(&self, number: u32) -> bool {
        let _ = number;
        false
    }
    /// Flows that have left are where they went, or back: nothing is on its way. Until then this side answers for what they hold.
    fn settle(&mut self) {}
}

/// A pool of numbers that flows lease: see the module. `P` is a type of the function's that names
/// the pool; a flow's number is [`Leased`] of the same name.
pub struct Pool<P> {
    numbers: Numbers,
    name: PhantomData<fn() -> P>,
}

impl<P> Pool<P> {
    /// A pool of the numbers `0..size`. It starts as a partition without a block; the runtime attaches what its chain's
    /// protection asks for and grants what is to be leased.
    pub fn new(size: u32) -> Pool<P> {
        Pool { numbers: Numbers::new(size), name: PhantomData }
    }

    /// Leases any number. Marks the packet non-deterministic.
    pub fn lease(&mut self, cx: &mut Opening<'_>) -> Lease<Leased<P>> {
        self.lease_within(0..self.numbers.size, cx)
    }

    /// Leases a number inside `preferred` if one is at hand, any other if not. Marks the packet non-deterministic.
    pub fn lease_within(&mut self, preferred: Range<u32>, cx: &mut Opening<'_>) -> Lease<Leased<P>> {
        cx.mark_nondeterministic();
        self.granted(&preferred, None)
    }

    /// As [`Pool::lease_within`], but which of the numbers at hand it is nobody can guess from those leased before (RFC 6056, section 3.3.1).
    pub fn lease_random(&mut self, preferred: Range<u32>, cx: &mut Opening<'_>) -> Lease<Leased<P>> {
        let random = cx.random();
        self.granted(&preferred, Some(random))
    }

    fn granted(&mut self, preferred: &Range<u32>, random: Option<u64>) -> Lease<Leased<P>> {
        match self.numbers.lease(preferred, random) {
            Lease::Granted(number) => Lease::Granted(Leased::new(number)),
            Lease::Wait => Lease::Wait,
            Lease::Exhausted => Lease::Exhausted,
        }
    }

    /// The numbers, for what finds them by the pool's name.
    pub(crate) fn numbers(&mut self) -> &mut Numbers {
        &mut self.numbers
    }
}

impl<P> Shareable for Pool<P> {
    fn field(&mut self) -> SharedField<'_> {
        SharedField::Pool(&mut self.numbers)
    }

    fn begin_recount(&mut self) {
        self.numbers.begin_recount();
    }

    fn end_recount(&mut self) {
        self.numbers.end_recount();
    }

    #[inline]
    fn settle(&mut self) {
        self.numbers.settle();
    }
}

impl<P> core::fmt::Debug for Pool<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Pool").field(&self.numbers).finish()
    }
}

/// Leases of one `open` for which there is room without asking for more: a function needs one or two.
const AT_ONCE: usize = 4;

/// The numbers of a [`Pool`], as the runtime and the framework see them.
pub struct Numbers {
    size: u32,
    backend: Box<dyn PoolBackend>,
    /// Leased since a function began to open a flow; the flow that is accepted has them, or none.
    loose: Vec<u32>,
    /// While it is recounted what flows hold: numbers that were held, and that no flow has named yet.
    unnamed: Option<Vec<bool>>,
}

impl Numbers {
    fn new(size: u32) -> Numbers {
        let backend = Box::new(PartitionPool::new(size));
        Numbers { size, backend, loose: Vec::with_capacity(AT_ONCE), unnamed: None }
    }

    /// Numbers in the pool, over all partitions.
    pub fn size(&self) -> u32 {
        self.size
    }

    fn lease(&mut self, preferred: &Range<u32>, random: Option<u64>) -> Lease {
        let lease = self.backend.lease(preferred, random);
        if let Lease::Granted(number) = lease {
            self.loose.push(number);
        }
        lease
    }

    /// What is loose is no flow's.
    #[inline]
    fn settle(&mut self) {
        while let Some(number) = self.loose.pop() {
            self.backend.give_back(number);
        }
    }

    /// This has become of the flow that holds the number. Numbers outside the pool are ignored:
    /// they can only come from corrupt state.
    pub(crate) fn follow(&mut self, number: u32, event: FlowEvent) {
        if number >= self.size {
            return;
        }
        match event {
            FlowEvent::Accepted => {
                let at = self.loose.iter().position(|loose| *loose == number);
                self.loose.swap_remove(at.expect("a flow keeps what was leased when it was opened"));
            }
            FlowEvent::Ended => self.backend.give_back(number),
            FlowEvent::Arrived => {
                let unnamed = self.unnamed.as_mut().map(|unnamed| &mut unnamed[number as usize]);
                // One that is recounted is held already.
                if !unnamed.is_some_and(core::mem::take) {
                    self.backend.adopt(number);
                }
            }
            FlowEvent::Departed => self.backend.forget(number),
        }
    }

    fn begin_recount(&mut self) {
        let is_held = |number| self.backend.is_held(number) && !self.backend.is_leaving(number);
        self.unnamed = Some((0..self.size).map(is_held).collect());
    }

    fn end_recount(&mut self) {
        let unnamed = self.unnamed.take().unwrap_or_default();
        (0..).zip(unnamed).filter(|(_, is_unnamed)| *is_unnamed).for_each(|(number, _)| self.backend.give_back(number));
    }

    /// Replaces the backend. For the runtime, before the first lease.
    pub fn attach(&mut self, backend: Box<dyn PoolBackend>) {
        self.backend = backend;
    }

    /// The backend, for the runtime.
    pub fn backend(&mut self) -> &mut dyn PoolBackend {
        &mut *self.backend
    }
}

impl core::fmt::Debug for Numbers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Numbers").field("size", &self.size).field("available", &self.backend.available()).finish()
    }
}

/// Free numbers below which a partition asks for another block, and which it keeps when it is asked for blocks.
const LOW_WATER: u32 = BLOCK_LEN / 2;

const NOT_HELD: u32 = u32::MAX;

/// A number is free if neither a flow here nor one elsewhere has it. The two are kept apart, so that news of a flow elsewhere never
/// frees the number of one that lives here.
struct Block {
    number: u32,
    /// Leased by flows here, and what lies beyond the end of the pool.
    leased: BlockMask,
    /// Held by flows that live elsewhere.
    foreign: BlockMask,
    /// Free, and not leased while there are others: those of `returned`.
    resting: BlockMask,
    /// The latest that came back, the earliest first.
    returned: VecDeque<u8>,
    free: u32,
    /// Where the next search starts.
    next: u32,
    /// A number was given back since the coordinator last asked for blocks: it has not rested.
    is_fresh: bool,
}

impl Block {
    fn new(number: u32, leased: BlockMask, foreign: BlockMask) -> Block {
        let returned = VecDeque::with_capacity(BLOCK_LEN as usize);
        let mut block = Block { number, leased, foreign, resting: [0; 4], returned, free: 0, next: 0, is_fresh: false };
        block.count();
        block
    }

    /// The next that does not rest, or the one that has rested longest.
    fn take(&mut self, rests: bool) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        let bit = if rests { self.longest_rested() } else { self.next_ready() }?;
        set(&mut self.leased, bit, true);
        self.free -= 1;
        self.wake();
        self.next = (bit + 1) % BLOCK_LEN;
        Some(bit)
    }

    fn next_ready(&self) -> Option<u32> {
        for step in 0..=4 {
            let word = (self.next / 64 + step) % 4;
            let at = word as usize;
            let mut candidates = !(self.leased[at] | self.foreign[at] | self.resting[at]);
            if step == 0 {
                candidates &= u64::MAX << (self.next % 64);
            }
            if candidates != 0 {
                return Some(word * 64 + candidates.trailing_zeros());
            }
        }
        None
    }

    fn longest_rested(&mut self) -> Option<u32> {
        while let Some(bit) = self.returned.pop_front() {
            let bit = u32::from(bit);
            set(&mut self.resting, bit, false);
            if self.is_free(bit) {
                return Some(bit);
            }
        }
        None
    }

    /// Marks a number that has just come back: it rests.
    fn rest(&mut self, bit: u32) {
        if is_planted(Fault::RestsNoPorts) {
            self.next = bit;
        } else if self.is_free(bit) && !has(&self.resting, bit) {
            set(&mut self.resting, bit, true);
            self.returned.push_back(bit as u8);
        }
    }

    /// No more rest than half of what is free.
    fn wake(&mut self) {
        while self.returned.len() as u32 > self.free.div_ceil(2)
            && let Some(bit) = self.returned.pop_front()
        {
            set(&mut self.resting, u32::from(bit), false);
        }
    }

    fn is_free(&self, bit: u32) -> bool {
        !has(&self.leased, bit) && !has(&self.foreign, bit)
    }

    fn count(&mut self) {
        let taken: u32 = self.leased.iter().zip(&self.foreign).map(|(leased, foreign)| (leased | foreign).count_ones()).sum();
        self.free = BLOCK_LEN - taken;
        self.wake();
    }
}

fn has(mask: &BlockMask, bit: u32) -> bool {
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

/// Numbers of flows here whose blocks are not: should such a block come, they are leased in it. A recovery brings a million at once.
struct Visitors {
    /// Block number to index in `masks`.
    at: Vec<u32>,
    /// Blocks with a visitor, in any order.
    masks: Vec<(u32, BlockMask)>,
}

impl Visitors {
    fn new(blocks: usize) -> Visitors {
        Visitors { at: vec![NOT_HELD; blocks], masks: Vec::new() }
    }

    fn come(&mut self, number: u32) {
        let block = number / BLOCK_LEN;
        let Some(at) = self.at.get_mut(block as usize) else { return };
        if *at == NOT_HELD {
            *at = self.masks.len() as u32;
            self.masks.push((block, [0; 4]));
        }
        set(&mut self.masks[*at as usize].1, number % BLOCK_LEN, true);
    }

    fn go(&mut self, number: u32) {
        let block = number / BLOCK_LEN;
        let at = self.at.get(block as usize).copied().unwrap_or(NOT_HELD);
        let Some((_, mask)) = self.masks.get_mut(at as usize) else { return };
        set(mask, number % BLOCK_LEN, false);
        if *mask == [0; 4] {
            self.take(block);
        }
    }

    fn has(&self, number: u32) -> bool {
        let at = self.at.get((number / BLOCK_LEN) as usize).copied().unwrap_or(NOT_HELD);
        self.masks.get(at as usize).is_some_and(|(_, mask)| has(mask, number % BLOCK_LEN))
    }

    /// Those of one block go.
    fn take(&mut self, block: u32) -> BlockMask {
        let Some(at) = self.at.get_mut(block as usize).filter(|at| **at != NOT_HELD) else { return [0; 4] };
        let at = core::mem::replace(at, NOT_HELD);
        let (_, mask) = self.masks.swap_remove(at as usize);
        if let Some((moved, _)) = self.masks.get(at as usize) {
            self.at[*moved as usize] = at;
        }
        mask
    }

    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let numbers = |(block, mask): &(u32, BlockMask)| {
            let (block, mask) = (*block, *mask);
            (0..BLOCK_LEN).filter(move |bit| has(&mask, *bit)).map(move |bit| block * BLOCK_LEN + bit)
        };
        self.masks.iter().flat_map(numbers)
    }
}

/// Blocks of the pool that belong to one runtime.
pub struct PartitionPool {
    size: u32,
    blocks: Vec<Block>,
    /// Block number to index in `blocks`.
    held: Vec<u32>,
    visitors: Visitors,
    cursor: usize,
    free: u32,
    wanted: bool,
    denied: bool,
    effects: VecDeque<PoolEffect>,
}

impl PartitionPool {
    /// A partition without a block, of a pool of `size` numbers.
    pub fn new(size: u32) -> PartitionPool {
        let count = size.div_ceil(BLOCK_LEN) as usize;
        PartitionPool {
            size,
            blocks: Vec::with_capacity(count),
            held: vec![NOT_HELD; count],
            visitors: Visitors::new(count),
            cursor: 0,
            free: 0,
            wanted: false,
            denied: false,
            effects: VecDeque::with_capacity(64),
        }
    }

    fn want(&mut self) {
        if !self.wanted && !self.denied {
            self.wanted = true;
            self.effects.push_back(PoolEffect::WantBlock);
        }
    }

    fn held_block(&mut self, number: u32) -> Option<&mut Block> {
        let index = *self.held.get((number / BLOCK_LEN) as usize)?;
        self.blocks.get_mut(index as usize)
    }

    /// A number of this block, `first` in it or the next one that is free and does not rest; or of those that rest.
    fn take_from(&mut self, index: usize, first: Option<u32>, rests: bool) -> Option<u32> {
        let block = &mut self.blocks[index];
        block.next = first.unwrap_or(block.next);
        let bit = block.take(rests)?;
        self.free -= 1;
        Some(block.number * BLOCK_LEN + bit)
    }

    /// Changes the number's block and counts again. False if the block is not held here.
    fn change(&mut self, number: u32, act: impl FnOnce(&mut Block, u32)) -> bool {
        let Some(block) = self.held_block(number) else { return false };
        let before = block.free;
        act(block, number % BLOCK_LEN);
        block.count();
        let after = block.free;
        self.free = self.free - before + after;
        self.denied &= after <= before;
        true
    }

    /// What of a block lies beyond the pool: never free. The last block may be shorter than the others.
    fn beyond(&self, block: u32) -> BlockMask {
        let mut mask = [0; 4];
        (0..BLOCK_LEN).filter(|bit| block * BLOCK_LEN + bit >= self.size).for_each(|bit| set(&mut mask, bit, true));
        mask
    }
}

impl PoolBackend for PartitionPool {
    fn lease(&mut self, preferred: &Range<u32>, random: Option<u64>) -> Lease {
        if self.free < LOW_WATER {
            self.want();
        }
        let count = self.blocks.len();
        if let Some(random) = random {
            self.cursor = (((random & 0xffff_ffff) * count as u64) >> 32) as usize;
        }
        let first = random.map(|random| (random >> 32) as u32 % BLOCK_LEN);
        let inside = |block: &Block| preferred.start <= block.number * BLOCK_LEN && block.number * BLOCK_LEN < preferred.end;
        for (any, rests) in [(false, false), (false, true), (true, false), (true, true)] {
            for step in 0..count {
                let index = (self.cursor + step) % count;
                if (any || inside(&self.blocks[index]))
                    && let Some(number) = self.take_from(index, first, rests)
                {
                    // The next lease looks at the next block: neighbouring flows do not get neighbouring ports.
                    self.cursor = (index + 1) % count;
                    return Lease::Granted(number);
                }
            }
            if self.free == 0 {
                break;
            }
        }
        if self.wanted { Lease::Wait } else { Lease::Exhausted }
    }

    fn give_back(&mut self, number: u32) {
        let is_here = self.change(number, |block, bit| {
            set(&mut block.leased, bit, false);
            block.rest(bit);
            block.is_fresh = true;
        });
        if !is_here {
            self.visitors.go(number);
            self.effects.push_back(PoolEffect::Return(number));
        }
    }

    fn adopt(&mut self, number: u32) {
        let is_here = self.change(number, |block, bit| {
            set(&mut block.leased, bit, !is_planted(Fault::LeasesWhatCameBack));
            set(&mut block.foreign, bit, false);
        });
        if !is_here {
            self.visitors.come(number);
        }
        // Also for a number of a block that is here: whoever had the flow before has it no more.
        self.effects.push_back(PoolEffect::Adopted(number));
    }

    fn forget(&mut self, number: u32) {
        // The number stays taken in its block until whoever has the flow returns it.
        let is_here = self.change(number, |block, bit| {
            set(&mut block.leased, bit, false);
            set(&mut block.foreign, bit, true);
        });
        if !is_here {
            self.visitors.go(number);
        }
    }

    fn grant_block(&mut self, block: u32, used: &BlockMask) {
        self.wanted = false;
        self.denied = false;
        if self.held.get(block as usize) != Some(&NOT_HELD) {
            return;
        }
        let (mut leased, mut foreign) = (self.beyond(block), *used);
        for (word, visitors) in self.visitors.take(block).into_iter().enumerate() {
            leased[word] |= visitors;
            foreign[word] &= !visitors;
        }
        let granted = Block::new(block, leased, foreign);
        self.held[block as usize] = self.blocks.len() as u32;
        self.free += granted.free;
        self.blocks.push(granted);
    }

    fn assign(&mut self, _number: u32) {}

    fn deny(&mut self) {
        self.wanted = false;
        self.denied = true;
    }

    fn returned(&mut self, number: u32) -> bool {
        self.change(number, |block, bit| {
            set(&mut block.foreign, bit, false);
            block.rest(bit);
        })
    }

    fn taken(&mut self, number: u32) {
        self.change(number, |block, bit| set(&mut block.foreign, bit, true));
    }

    fn spare(&mut self) {
        let mut at = 0;
        while at < self.blocks.len() {
            let block = &self.blocks[at];
            let is_empty = block.leased == self.beyond(block.number) && block.foreign == [0; 4];
            // One is kept, and as many numbers as would make this partition ask for more.
            let is_needed = self.blocks.len() == 1 || self.free - block.free < LOW_WATER;
            // The end of its last flow may not be known everywhere yet: it rests until the next time.
            if !is_empty || is_needed || core::mem::take(&mut self.blocks[at].is_fresh) {
                at += 1;
                continue;
            }
            let block = self.blocks.swap_remove(at);
            self.held[block.number as usize] = NOT_HELD;
            if let Some(moved) = self.blocks.get(at) {
                self.held[moved.number as usize] = at as u32;
            }
            self.cursor = 0;
            self.free -= block.free;
            self.effects.push_back(PoolEffect::Spare(block.number));
        }
        self.effects.push_back(PoolEffect::SparedAll);
    }

    fn poll_effect(&mut self) -> Option<PoolEffect> {
        self.effects.pop_front()
    }

    fn available(&self) -> u32 {
        self.free
    }

    fn is_free(&self, number: u32) -> bool {
        let index = self.held.get((number / BLOCK_LEN) as usize).copied().unwrap_or(NOT_HELD);
        self.blocks.get(index as usize).is_some_and(|block| block.is_free(number % BLOCK_LEN))
    }

    fn is_held(&self, number: u32) -> bool {
        match self.held.get((number / BLOCK_LEN) as usize).and_then(|index| self.blocks.get(*index as usize)) {
            Some(block) => number < self.size && has(&block.leased, number % BLOCK_LEN),
            None => self.visitors.has(number),
        }
    }

    fn blocks(&self) -> Vec<u32> {
        self.blocks.iter().map(|block| block.number).collect()
    }

    fn announce(&mut self) {
        self.effects.extend(self.visitors.iter().map(PoolEffect::Adopted));
    }

    fn held(&self) -> u32 {
        let masks = self.blocks.iter().map(|block| &block.leased).chain(self.visitors.masks.iter().map(|(_, mask)| mask));
        let taken: u32 = masks.flatten().map(|word| word.count_ones()).sum();
        // What there is not counts as leased in a block that is not whole.
        taken - (self.blocks.len() as u32 * BLOCK_LEN - self.granted())
    }

    fn granted(&self) -> u32 {
        self.blocks.iter().map(|block| (self.size - block.number * BLOCK_LEN).min(BLOCK_LEN)).sum()
    }
}

#[cfg(test)]
mod tests;
