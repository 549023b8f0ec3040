//! A service chain: functions in order, and one block of state for all of them.
//!
//! Forward packets meet the functions in order, reverse packets in reverse order. If a
//! function waits, the packet stops there and goes on from there; earlier functions do
//! not run again.

use crate::function::{Function, Open, StateLayout, Verdict};
use crate::shared::{RequestPool, SharedField};
use crate::{Context, Direction, Expected};
use core::ops::Range;
use holdfast_wire::{DropReason, Packet};

/// A packet's position in the chain, from which it goes on after a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Functions passed so far, in the packet's own order.
    pub passed: u8,
    /// The next function has the flow open already; only `process` is due.
    pub opened: bool,
    /// The packet opens the flow.
    pub opening: bool,
}

impl Position {
    /// At the chain's entry, with a flow that exists.
    pub const START: Position = Position { passed: 0, opened: false, opening: false };
    /// At the chain's entry, with a packet that opens its flow.
    pub const OPENING: Position = Position { passed: 0, opened: false, opening: true };
}

/// The chain's verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Passed all functions.
    Forward,
    /// Dropped by the function with this index. If the packet was opening its flow, the
    /// flow does not exist.
    Drop(DropReason, u8),
    /// As `Drop`, and the sender is told.
    Reject(DropReason, u8),
    /// Waits at this position.
    Wait(Position),
}

/// The place of each function's state in the chain's block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainLayout {
    /// Bytes of the block, a multiple of 8.
    pub size: usize,
    /// Start and length of each function's state.
    pub states: Vec<(usize, usize)>,
    /// Hash over all functions' layouts, in order. Runtimes exchange flows only if theirs
    /// agree.
    pub hash: u64,
}

impl ChainLayout {
    /// The layout of these functions' states, in order, each with its function's name.
    ///
    /// # Panics
    /// If a state needs an alignment above 16.
    pub fn of(functions: impl Iterator<Item = (&'static str, StateLayout)>) -> ChainLayout {
        let mut size = 0usize;
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut states = Vec::new();
        for (name, layout) in functions {
            assert!(layout.align <= BLOCK_ALIGN, "{name}: flow state wants an alignment above 16");
            size = size.next_multiple_of(layout.align);
            states.push((size, layout.size));
            size += layout.size;
            hash = (hash ^ layout.hash ^ layout.size as u64)
                .wrapping_mul(0x0000_0100_0000_01b3)
                .rotate_left(23);
        }
        ChainLayout { size: size.next_multiple_of(8), states, hash }
    }
}

/// Functions in order.
pub struct Chain {
    functions: Vec<Box<dyn Function>>,
    layout: ChainLayout,
    /// Functions that have open the flow that is being opened or ended: those to close if
    /// one panics.
    open: Range<usize>,
}

/// Alignment of the block that a chain's state lives in, bytes.
pub(crate) const BLOCK_ALIGN: usize = 16;

impl Chain {
    /// A chain of these functions.
    ///
    /// # Panics
    /// If there are more than 64 functions, or a state needs an alignment above 16.
    pub fn new(functions: Vec<Box<dyn Function>>) -> Chain {
        assert!(functions.len() <= 64, "a chain has at most 64 functions");
        let layout =
            ChainLayout::of(functions.iter().map(|function| (function.name(), function.layout())));
        Chain { functions, layout, open: 0..0 }
    }

    /// The layout of the functions' states.
    pub fn layout(&self) -> &ChainLayout {
        &self.layout
    }

    /// The functions, in order.
    pub fn functions(&self) -> &[Box<dyn Function>] {
        &self.functions
    }

    /// The functions, to reach their shared state.
    pub fn functions_mut(&mut self) -> &mut [Box<dyn Function>] {
        &mut self.functions
    }

    /// Makes a state server assign the numbers of every pool. Each pool keeps `credit` of
    /// them at hand (of a small pool a sixteenth, at least one), and a returned number
    /// rests for `rest` ns. Call it before the first lease. False if there is no pool.
    pub fn ask_server(&mut self, credit: usize, rest: u64) -> bool {
        let mut has_pool = false;
        for function in &mut self.functions {
            function.shared().visit(&mut |_, field| {
                if let SharedField::Pool(pool) = field {
                    let credit = credit.min(pool.size() as usize / 16);
                    pool.attach(Box::new(RequestPool::new(pool.size(), credit).resting(rest)));
                    has_pool = true;
                }
            });
        }
        has_pool
    }

    /// Makes a state server add up the runtimes' counts ([`Part`](crate::shared::Part)).
    /// Call it before the first packet. False if nothing is counted.
    pub fn share_statistics(&mut self) -> bool {
        let mut has_any = false;
        for function in &mut self.functions {
            function.shared().visit(&mut |_, mut field| {
                if let Some(part) = field.part() {
                    part.share();
                    has_any = true;
                }
            });
        }
        has_any
    }

    /// Passes a packet of an existing flow, or one that opens it, through the chain from
    /// `position` on. `block` is the chain's state: `layout().size` bytes, aligned to 16
    /// bytes.
    ///
    /// A function's panic passes through. The caller contains it and restores the block,
    /// or, if the packet was opening the flow, calls [`Chain::close_rest`].
    #[inline]
    pub fn run(
        &mut self,
        packet: &mut Packet,
        block: &mut [u8],
        position: Position,
        cx: &mut Context,
    ) -> Outcome {
        self.run_observed(packet, block, position, cx, |_, _, _| {})
    }

    /// As [`Chain::run`], and calls `observe` for each function that let the packet pass,
    /// with the packet as it left the function and the function's state.
    ///
    /// A function's panic passes through, as with [`Chain::run`].
    #[inline]
    pub fn run_observed(
        &mut self,
        packet: &mut Packet,
        block: &mut [u8],
        position: Position,
        cx: &mut Context,
        mut observe: impl FnMut(&dyn Function, &Packet, &[u8]),
    ) -> Outcome {
        let count = self.functions.len();
        let mut opened = position.opened;
        if position.opening {
            self.open = 0..position.passed as usize + usize::from(opened);
        }
        for passed in position.passed as usize..count {
            let index = match cx.direction() {
                Direction::Forward => passed,
                Direction::Reverse => count - 1 - passed,
            };
            let (start, len) = self.layout.states[index];
            let function = &mut self.functions[index];
            let state = &mut block[start..start + len];
            if position.opening && !opened {
                match function.open(packet, state, cx) {
                    Open::Accept(()) => self.open.end = index + 1,
                    Open::Drop(reason) => {
                        self.close(block, index);
                        return Outcome::Drop(reason, index as u8);
                    }
                    Open::Reject(reason) => {
                        self.close(block, index);
                        return Outcome::Reject(reason, index as u8);
                    }
                    Open::Wait => {
                        return Outcome::Wait(Position {
                            passed: passed as u8,
                            opened: false,
                            opening: true,
                        });
                    }
                }
            }
            opened = false;
            match function.process(packet, state, cx) {
                Verdict::Forward => observe(&**function, packet, state),
                Verdict::Drop(reason) => {
                    if position.opening {
                        self.close(block, index + 1);
                    }
                    return Outcome::Drop(reason, index as u8);
                }
                Verdict::Reject(reason) => {
                    if position.opening {
                        self.close(block, index + 1);
                    }
                    return Outcome::Reject(reason, index as u8);
                }
                Verdict::Wait => {
                    return Outcome::Wait(Position {
                        passed: passed as u8,
                        opened: position.opening,
                        opening: position.opening,
                    });
                }
            }
        }
        Outcome::Forward
    }

    /// Ends the flow in the first `count` functions.
    fn close(&mut self, block: &mut [u8], count: usize) {
        self.open = 0..count;
        self.close_rest(block);
    }

    /// Ends the flow in the functions that still have it open, after a panic while it was
    /// opened or ended. A function that panics here is not called again: call this until
    /// it returns.
    pub fn close_rest(&mut self, block: &mut [u8]) {
        for index in self.open.by_ref() {
            let (start, len) = self.layout.states[index];
            self.functions[index].expire(&mut block[start..start + len]);
        }
    }

    /// Ends an opening that waited at `position` and will not go on.
    pub fn abandon(&mut self, block: &mut [u8], position: Position) {
        if position.opening {
            self.close(block, position.passed as usize + usize::from(position.opened));
        }
    }

    /// Ends the flow.
    pub fn expire(&mut self, block: &mut [u8]) {
        self.close(block, self.functions.len());
    }

    /// Takes in a flow from another runtime, failed or alive, with its holdings of shared
    /// state.
    pub fn adopt(&mut self, block: &mut [u8]) {
        self.adopt_opened(block, self.functions.len());
    }

    /// As `adopt`, for a flow that the first `count` functions have open.
    fn adopt_opened(&mut self, block: &mut [u8], count: usize) {
        for (function, &(start, len)) in
            self.functions.iter_mut().zip(&self.layout.states).take(count)
        {
            function.adopt(&mut block[start..start + len]);
        }
    }

    /// Recounts leases after flows were lost with their state, so that no one can give
    /// their leases back. `visit` must call its argument for the state of each living
    /// flow; for a flow that is being opened, with the number of functions that have it
    /// open. Numbers that no flow has named are given back in the end.
    pub fn recount(&mut self, visit: impl FnOnce(&mut dyn FnMut(&mut [u8], Option<usize>))) {
        self.functions.iter_mut().for_each(|function| function.shared().begin_recount());
        visit(&mut |block, opened| {
            self.adopt_opened(block, opened.unwrap_or(self.functions.len()))
        });
        self.functions.iter_mut().for_each(|function| function.shared().end_recount());
    }

    /// Tells the functions that the flow's state may lack up to `packets` of its latest
    /// packets.
    pub fn outdated(&mut self, block: &mut [u8], packets: u32) {
        for (function, &(start, len)) in self.functions.iter_mut().zip(&self.layout.states) {
            function.outdated(&mut block[start..start + len], packets);
        }
    }

    /// Lets the flow go to another runtime, with its holdings.
    pub fn forget(&mut self, block: &mut [u8]) {
        for (function, &(start, len)) in self.functions.iter_mut().zip(&self.layout.states) {
            function.forget(&mut block[start..start + len]);
        }
    }

    /// The sequence numbers that the receiver of this direction may expect next, of a TCP
    /// connection that a function follows
    /// ([`NetworkFunction::expected`](crate::NetworkFunction::expected)).
    pub fn expected(&self, block: &[u8], direction: Direction) -> Option<Expected> {
        let mut states = self.functions.iter().zip(&self.layout.states);
        states.find_map(|(function, &(start, len))| {
            function.expected(&block[start..start + len], direction)
        })
    }

    /// The flow's state in a word: that of the first function that has one.
    pub fn describe(&self, block: &[u8]) -> &'static str {
        let mut words = self
            .functions
            .iter()
            .zip(&self.layout.states)
            .map(|(function, &(start, len))| function.describe(&block[start..start + len]));
        words.find(|word| !word.is_empty()).unwrap_or("")
    }

    /// The flow's values: those of all functions, in order.
    pub fn values(&self, block: &[u8]) -> Vec<Option<u64>> {
        let mut values = Vec::new();
        for (function, &(start, len)) in self.functions.iter().zip(&self.layout.states) {
            function.values(&block[start..start + len], &mut values);
        }
        values
    }

    /// True if a function has flows ranked by their bytes.
    pub fn ranks(&self) -> bool {
        self.functions.iter().any(|function| function.ranks())
    }
}

impl core::fmt::Debug for Chain {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.functions.iter().map(|function| function.name())).finish()
    }
}
