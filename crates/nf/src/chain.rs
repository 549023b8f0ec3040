//! A service chain: functions in order, and one block of state for all of them.
//!
//! Forward packets meet the functions in order, packets in reverse direction in reverse order. A packet whose function must wait
//! stops there and later goes on there: what ran before does not run again.

use crate::function::{Function, Open, Verdict};
use crate::shared::{RequestPool, SharedField};
use crate::{Context, Direction, Expected, SourceLimit};
use core::ops::Range;
use holdfast_wire::selector::Prefix;
use holdfast_wire::{DropReason, Packet};

/// Where in the chain a packet is: to go on after a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Functions passed so far, in the packet's own order.
    pub passed: u8,
    /// The next function has the flow open already, only `process` is due.
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

/// What a chain did with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Through all functions.
    Forward,
    /// Dropped by the function with this index. If the packet was opening its flow, the flow does not exist.
    Drop(DropReason, u8),
    /// The same, and its sender is to be told.
    Reject(DropReason, u8),
    /// Waits at this position.
    Wait(Position),
}

/// Where each function's state lies in the chain's block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainLayout {
    /// Bytes of the block, a multiple of 8.
    pub size: usize,
    /// Start and length of each function's state.
    pub states: Vec<(usize, usize)>,
    /// Hash over all functions' layouts, in order. Runtimes exchange flows only if theirs agree.
    pub hash: u64,
}

/// Functions in order.
pub struct Chain {
    functions: Vec<Box<dyn Function>>,
    layout: ChainLayout,
    /// Functions that have the flow open that is being opened or ended: what there is to close if one of them panics.
    open: Range<usize>,
}

/// Alignment of the block that a chain's state lives in, bytes.
pub(crate) const BLOCK_ALIGN: usize = 16;

impl Chain {
    /// A chain of these functions.
    ///
    /// # Panics
    /// With more than 64 functions, or one whose state wants an alignment above 16.
    pub fn new(functions: Vec<Box<dyn Function>>) -> Chain {
        assert!(functions.len() <= 64, "a chain has at most 64 functions");
        let mut size = 0usize;
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut states = Vec::with_capacity(functions.len());
        for function in &functions {
            let layout = function.layout();
            assert!(layout.align <= BLOCK_ALIGN, "{}: flow state wants an alignment above 16", function.name());
            size = size.next_multiple_of(layout.align);
            states.push((size, layout.size));
            size += layout.size;
            hash = (hash ^ layout.hash ^ layout.size as u64).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
        let layout = ChainLayout { size: size.next_multiple_of(8), states, hash };
        Chain { functions, layout, open: 0..0 }
    }

    /// Where the functions' states lie.
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

    /// From now on a state server assigns the numbers of every pool; each keeps `credit` of them at hand, or a sixteenth of a small pool, at least one, and one that a flow had
    /// rests for `rest` ns. Before the first lease. False if there is no pool.
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

    /// From now on a state server adds up what the runtimes count ([`Part`](crate::shared::Part)). Before the first packet. False if nothing is counted.
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

    /// Addresses that the box answers for because of this chain.
    pub fn owned_addresses(&self) -> Vec<Prefix> {
        self.functions.iter().flat_map(|function| function.owned_addresses()).collect()
    }

    /// How many flows a source may have, as the first of the functions says that limits it.
    pub fn source_limit(&self) -> Option<SourceLimit> {
        self.functions.iter().find_map(|function| function.source_limit())
    }

    /// Bytes by which a frame may be longer behind the chain than before it.
    pub fn added_bytes(&self) -> usize {
        self.functions.iter().map(|function| function.added_bytes()).sum()
    }

    /// Takes a packet of an existing flow, or one that opens it, from `position` on. `block` is the chain's state:
    /// `layout().size` bytes, aligned to 16 bytes.
    ///
    /// A function's panic passes through; the caller contains it and puts the block back as it was, or, if the packet was opening the
    /// flow, calls [`Chain::close_rest`].
    #[inline]
    pub fn run(&mut self, packet: &mut Packet, block: &mut [u8], position: Position, cx: &mut Context) -> Outcome {
        self.run_observed(packet, block, position, cx, |_, _, _| {})
    }

    /// The same, telling `observe` each function that let the packet pass, how the packet is behind it, and the function's state.
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
                    Open::Wait => return Outcome::Wait(Position { passed: passed as u8, opened: false, opening: true }),
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
                    return Outcome::Wait(Position { passed: passed as u8, opened: position.opening, opening: position.opening });
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

    /// After a panic while a flow was opened or ended: ends it in the functions that have it open still. One that panics while it does so
    /// has been told, and is not told again: call this until it returns.
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

    /// The flow has ended.
    pub fn expire(&mut self, block: &mut [u8]) {
        self.close(block, self.functions.len());
    }

    /// The flow came here because its runtime failed.
    pub fn recover(&mut self, block: &mut [u8]) {
        for (function, &(start, len)) in self.functions.iter_mut().zip(&self.layout.states) {
            function.recover(&mut block[start..start + len]);
        }
    }

    /// Flows were lost whose state nobody has: what they had leased they cannot give back. All flows that are there say by [`Chain::recover`] what they have, and what is left over is given back in the end. `recover` visits the state of each, and of one that is being opened says how many functions
    /// have it open.
    pub fn recount(&mut self, recover: impl FnOnce(&mut dyn FnMut(&mut [u8], Option<usize>))) {
        self.functions.iter_mut().for_each(|function| function.shared().begin_recount());
        recover(&mut |block, opened| {
            let count = opened.unwrap_or(self.functions.len());
            for (function, &(start, len)) in self.functions.iter_mut().zip(&self.layout.states).take(count) {
                function.recover(&mut block[start..start + len]);
            }
        });
        self.functions.iter_mut().for_each(|function| function.shared().end_recount());
    }

    /// What is known of the flow may lack its latest packets, at most so many.
    pub fn outdated(&mut self, block: &mut [u8], packets: u32) {
        for (function, &(start, len)) in self.functions.iter_mut().zip(&self.layout.states) {
            function.outdated(&mut block[start..start + len], packets);
        }
    }

    /// The flow leaves for another runtime.
    pub fn migrate_out(&mut self, block: &mut [u8]) {
        // Should one panic, there is nothing to close.
        self.open = 0..0;
        for (function, &(start, len)) in self.functions.iter_mut().zip(&self.layout.states) {
            function.migrate_out(&mut block[start..start + len]);
        }
    }

    /// The flow came from another runtime.
    pub fn migrate_in(&mut self, block: &mut [u8]) {
        for (function, &(start, len)) in self.functions.iter_mut().zip(&self.layout.states) {
            function.migrate_in(&mut block[start..start + len]);
        }
    }

    /// The sequence numbers that the receiver of this direction may expect next, of a TCP
    /// connection that a function follows
    /// ([`NetworkFunction::expected`](crate::NetworkFunction::expected)).
    pub fn expected(&self, block: &[u8], direction: Direction) -> Option<Expected> {
        let mut states = self.functions.iter().zip(&self.layout.states);
        states.find_map(|(function, &(start, len))| function.expected(&block[start..start + len], direction))
    }

    /// What the functions call the flow's state; the first that has a word for it.
    pub fn describe(&self, block: &[u8]) -> &'static str {
        let mut words = self
            .functions
            .iter()
            .zip(&self.layout.states)
            .map(|(function, &(start, len))| function.describe(&block[start..start + len]));
        words.find(|word| !word.is_empty()).unwrap_or("")
    }
}

impl core::fmt::Debug for Chain {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.functions.iter().map(|function| function.name())).finish()
    }
}
