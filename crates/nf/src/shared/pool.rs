//! A pool of numbers: each is leased to at most one flow in the whole cluster.
//!
//! Theory of operation. The function asks for a lease when a flow opens and puts it into
//! the flow's state ([`Leased`]). The lease stays there as long as the flow lives, moves
//! with it, and goes back when the flow ends; the function does nothing for it. The
//! backend decides where the numbers come from:
//! - [`PartitionPool`]: the coordinator grants blocks of [`BLOCK_LEN`] numbers to one
//!   runtime and incarnation, which then leases without asking anyone. A dead runtime's
//!   blocks are quarantined; flows that survive elsewhere keep their numbers (reported by
//!   [`PoolEffect::Adopted`]), and give them back through [`PoolEffect::Return`]. Effects
//!   are carried out in order: the receiver must learn of a flow before it learns of its
//!   end. A returned number rests: of a block's free numbers, the half that came back
//!   last, rounded up, is leased only when no block has another, the longest rested
//!   first. A small busy pool therefore does not lease a NAT's port again at once, while
//!   a peer still holds the earlier connection.
//! - [`RequestPool`]: a server assigns every number. A small credit fetched in advance
//!   makes most leases immediate; a flow that finds the credit used up waits without
//!   stopping the worker.

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

/// The leased numbers of a block, one bit each, lowest first.
pub type BlockMask = [u64; 4];

/// The answer to [`Pool::lease`]; with a bare number, a backend's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lease<N = u32> {
    /// The number is the flow's until the flow ends, if the flow is accepted with it.
    Granted(N),
    /// A number is on its way: return `Wait`; the function is called again.
    Wait,
    /// No number is left.
    Exhausted,
}

/// A pool's message to the outside; the runtime delivers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolEffect {
    /// Grant another block: this partition runs low.
    WantBlock,
    /// Assign a number. Only for a server.
    Request,
    /// A flow here holds this number of the credit from now on.
    Used(u32),
    /// A number of the credit is not needed here; no flow used it.
    Unused(u32),
    /// The number is free again, and is not of this partition.
    Return(u32),
    /// A flow that came by recovery or migration holds the number.
    Adopted(u32),
    /// A flow that holds the number has left.
    Left(u32),
    /// The block is not needed here.
    Spare(u32),
    /// These were all the blocks that can be spared.
    SparedAll,
}

/// The source of a pool's numbers.
pub trait PoolBackend: Send {
    /// Leases a number, preferably inside `preferred`: the next in order, or with a
    /// random number, the one that it selects among those at hand. Resting numbers are
    /// leased only if there are no others.
    fn lease(&mut self, preferred: &Range<u32>, random: Option<u64>) -> Lease;
    /// Takes a number back from a flow here, whoever granted it.
    fn give_back(&mut self, number: u32);
    /// Takes a number back that was leased just now and is no flow's: no packet has shown
    /// it, so that it need not rest.
    fn put_back(&mut self, number: u32) {
        self.give_back(number);
    }
    /// Notes that a flow that holds this number has come here.
    fn adopt(&mut self, number: u32);
    /// Notes that a flow that holds this number has left.
    fn forget(&mut self, number: u32);
    /// Takes a block into this partition; `used` are its numbers that flows still hold.
    /// Ignored by backends without blocks.
    fn grant_block(&mut self, block: u32, used: &BlockMask);
    /// Takes an assigned number. Ignored by backends that do not ask for single numbers.
    fn assign(&mut self, number: u32);
    /// Notes that the request cannot be met for now: the pool is empty everywhere. A
    /// server still owes single numbers that were requested, and assigns them as soon as
    /// it has some.
    fn deny(&mut self);
    /// Frees a number of one of this partition's blocks that a flow elsewhere held. False
    /// if the block is not held here.
    fn returned(&mut self, number: u32) -> bool;
    /// Notes that a flow elsewhere holds a number of one of this partition's blocks.
    /// Ignored by backends without blocks.
    fn taken(&mut self, number: u32);
    /// Gives back spare numbers because others need them: blocks of which no number is
    /// held, or, when time has [advanced](PoolBackend::advance), credit that no flow has
    /// taken until then. The effects end with [`PoolEffect::SparedAll`].
    fn spare(&mut self);
    /// The next effect, or `None`.
    fn poll_effect(&mut self) -> Option<PoolEffect>;
    /// Numbers that could be leased now without asking anyone.
    fn available(&self) -> u32;
    /// True if the number is available here.
    fn is_free(&self, number: u32) -> bool;
    /// True if a flow here holds the number.
    fn is_held(&self, number: u32) -> bool;
    /// Numbers that flows here hold.
    fn held(&self) -> u32;
    /// Numbers granted to this runtime, leased or not.
    fn granted(&self) -> u32;
    /// Blocks granted to this runtime; empty for backends without blocks.
    fn blocks(&self) -> Vec<u32> {
        Vec::new()
    }
    /// Repeats as effects which numbers of others' blocks flows here hold, because no
    /// other process is sure to remember it.
    fn announce(&mut self) {}
    /// True if a server assigns the numbers and receives every effect.
    fn asks_server(&self) -> bool {
        false
    }
    /// Advances time to `now`, ns.
    fn advance(&mut self, now: u64) {
        let _ = now;
    }
    /// True if the flow that held the number has left and may not have arrived yet: this
    /// side answers for it.
    fn is_leaving(&self, number: u32) -> bool {
        let _ = number;
        false
    }
    /// Notes that flows that left have arrived, or are back. Before that this side
    /// answers for their numbers.
    fn settle(&mut self) {}
}

/// A pool of numbers that flows lease; see the module. `P` is a type of the function's
/// that names the pool; a flow's number is [`Leased`] of the same name.
pub struct Pool<P> {
    numbers: Numbers,
    name: PhantomData<fn() -> P>,
}

impl<P> Pool<P> {
    /// A pool of the numbers `0..size`. A new pool is a partition without a block. The
    /// runtime attaches the backend that the chain's protection asks for.
    pub fn new(size: u32) -> Pool<P> {
        Pool { numbers: Numbers::new(size), name: PhantomData }
    }

    /// Leases any number. Marks the packet non-deterministic.
    pub fn lease(&mut self, cx: &mut Opening<'_>) -> Lease<Leased<P>> {
        self.lease_within(0..self.numbers.size, cx)
    }

    /// Leases a number inside `preferred` if one is at hand, else any other. Marks the
    /// packet non-deterministic.
    pub fn lease_within(
        &mut self,
        preferred: Range<u32>,
        cx: &mut Opening<'_>,
    ) -> Lease<Leased<P>> {
        cx.mark_nondeterministic();
        self.granted(&preferred, None)
    }

    /// As [`Pool::lease_within`], but earlier leases do not tell which of the numbers at
    /// hand is next (RFC 6056, section 3.3.1).
    pub fn lease_random(
        &mut self,
        preferred: Range<u32>,
        cx: &mut Opening<'_>,
    ) -> Lease<Leased<P>> {
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

    /// The numbers, for callers that find them by the pool's name.
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

/// Leases of one `open` for which there is room without an allocation: a function needs
/// one or two.
const AT_ONCE: usize = 4;

/// The numbers of a [`Pool`], as the runtime and the framework see them.
pub struct Numbers {
    size: u32,
    backend: Box<dyn PoolBackend>,
    /// Leased since a function began to open a flow; they are the flow's if it is
    /// accepted, else they go back.
    loose: Vec<u32>,
    /// During a recount: numbers that were held and that no flow has named yet.
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

    /// Gives back the loose numbers: no flow has them.
    #[inline]
    fn settle(&mut self) {
        while let Some(number) = self.loose.pop() {
            self.backend.put_back(number);
        }
    }

    /// Applies an event of the flow that holds the number. Numbers outside the pool are
    /// ignored: they can only come from corrupt state.
    pub(crate) fn follow(&mut self, number: u32, event: FlowEvent) {
        if number >= self.size {
            return;
        }
        match event {
            FlowEvent::Accepted => {
                let at = self.loose.iter().position(|loose| *loose == number);
                self.loose
                    .swap_remove(at.expect("a flow keeps what was leased when it was opened"));
            }
            FlowEvent::Ended => self.backend.give_back(number),
            FlowEvent::Arrived => {
                let unnamed = self.unnamed.as_mut().map(|unnamed| &mut unnamed[number as usize]);
                // A recounted number is held already.
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
        (0..)
            .zip(unnamed)
            .filter(|(_, is_unnamed)| *is_unnamed)
            .for_each(|(number, _)| self.backend.give_back(number));
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
        f.debug_struct("Numbers")
            .field("size", &self.size)
            .field("available", &self.backend.available())
            .finish()
    }
}

/// Free numbers below which a partition asks for another block, and which it keeps when
/// others need blocks.
const LOW_WATER: u32 = BLOCK_LEN / 2;

const NOT_HELD: u32 = u32::MAX;

/// A block. A number is free if neither a flow here nor one elsewhere has it. The two are
/// kept apart, so that news of a flow elsewhere never frees the number of a flow here.
struct Block {
    number: u32,
    /// Leased by flows here; also the numbers beyond the end of the pool.
    leased: BlockMask,
    /// Held by flows that live elsewhere.
    foreign: BlockMask,
    /// Free numbers in `returned`: not leased while there are others.
    resting: BlockMask,
    /// Numbers that came back last, the earliest first.
    returned: VecDeque<u8>,
    free: u32,
    /// The start of the next search.
    next: u32,
    /// True if a number came back since the coordinator last asked for blocks: the block
    /// has not rested.
    is_fresh: bool,
}

impl Block {
    fn new(number: u32, leased: BlockMask, foreign: BlockMask) -> Block {
        let returned = VecDeque::with_capacity(BLOCK_LEN as usize);
        let mut block = Block {
            number,
            leased,
            foreign,
            resting: [0; 4],
            returned,
            free: 0,
            next: 0,
            is_fresh: false,
        };
        block.count();
        block
    }

    /// Takes the next number that does not rest, or if `rests`, the one that has rested
    /// longest.
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

    /// Lets a number rest that has just come back.
    fn rest(&mut self, bit: u32) {
        if is_planted(Fault::RestsNoPorts) {
            self.next = bit;
        } else if self.is_free(bit) && !has(&self.resting, bit) {
            set(&mut self.resting, bit, true);
            self.returned.push_back(bit as u8);
        }
    }

    /// Ends rests until at most half of the free numbers rest.
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
        let taken: u32 = self
            .leased
            .iter()
            .zip(&self.foreign)
            .map(|(leased, foreign)| (leased | foreign).count_ones())
            .sum();
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

/// Numbers of flows here whose blocks are elsewhere; if such a block comes, they are
/// leased in it. A recovery brings a million at once.
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

    /// Removes and returns the numbers of one block.
    fn take(&mut self, block: u32) -> BlockMask {
        let Some(at) = self.at.get_mut(block as usize).filter(|at| **at != NOT_HELD) else {
            return [0; 4];
        };
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
            (0..BLOCK_LEN)
                .filter(move |bit| has(&mask, *bit))
                .map(move |bit| block * BLOCK_LEN + bit)
        };
        self.masks.iter().flat_map(numbers)
    }
}

/// A runtime's partition of a pool: its blocks.
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

    /// Takes a number of this block: `first` or the next that is free and does not rest,
    /// or if `rests`, one that rests.
    fn take_from(&mut self, index: usize, first: Option<u32>, rests: bool) -> Option<u32> {
        let block = &mut self.blocks[index];
        block.next = first.unwrap_or(block.next);
        let bit = block.take(rests)?;
        self.free -= 1;
        Some(block.number * BLOCK_LEN + bit)
    }

    /// Changes the number's block and updates the counts. False if the block is not held
    /// here.
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

    /// Numbers of a block beyond the end of the pool, which are never free. The last
    /// block may be shorter than the others.
    fn beyond(&self, block: u32) -> BlockMask {
        let mut mask = [0; 4];
        (0..BLOCK_LEN)
            .filter(|bit| block * BLOCK_LEN + bit >= self.size)
            .for_each(|bit| set(&mut mask, bit, true));
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
        let inside = |block: &Block| {
            preferred.start <= block.number * BLOCK_LEN && block.number * BLOCK_LEN < preferred.end
        };
        for (any, rests) in [(false, false), (false, true), (true, false), (true, true)] {
            for step in 0..count {
                let index = (self.cursor + step) % count;
                if (any || inside(&self.blocks[index]))
                    && let Some(number) = self.take_from(index, first, rests)
                {
                    // The next lease looks at the next block: neighbouring flows do not
                    // get neighbouring ports.
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
        // A number of a block held here is reported too: the flow's former runtime does
        // not have it any more.
        self.effects.push_back(PoolEffect::Adopted(number));
    }

    fn forget(&mut self, number: u32) {
        // The number stays taken in its block until the flow's runtime returns it.
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
            // The last block is kept, and as many free numbers as prevent a new request.
            let is_needed = self.blocks.len() == 1 || self.free - block.free < LOW_WATER;
            // The end of the last flow may not be known everywhere yet: the block rests
            // until the next time.
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
        match self
            .held
            .get((number / BLOCK_LEN) as usize)
            .and_then(|index| self.blocks.get(*index as usize))
        {
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
        let masks = self
            .blocks
            .iter()
            .map(|block| &block.leased)
            .chain(self.visitors.masks.iter().map(|(_, mask)| mask));
        let taken: u32 = masks.flatten().map(|word| word.count_ones()).sum();
        // Numbers beyond the end of the pool count as leased.
        taken - (self.blocks.len() as u32 * BLOCK_LEN - self.granted())
    }

    fn granted(&self) -> u32 {
        self.blocks.iter().map(|block| (self.size - block.number * BLOCK_LEN).min(BLOCK_LEN)).sum()
    }
}

#[cfg(test)]
mod tests;
