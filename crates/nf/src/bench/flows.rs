//! Flows that come to a bench from another one, leave it, or are set back: as by a
//! migration, after a failure, or under a weak protection.

use super::{Bench, Remembered};
use crate::chain::BLOCK_ALIGN;
use holdfast_wire::FlowKey;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Sixteen bytes of a block, with its alignment.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(16))]
struct Line([u8; BLOCK_ALIGN]);

/// The block of a chain's state, aligned as chains ask for.
#[derive(Clone)]
pub(super) struct Block {
    lines: Vec<Line>,
    len: usize,
}

impl Block {
    pub(super) fn new(len: usize) -> Block {
        Block { lines: vec![Line::new_zeroed(); len.div_ceil(BLOCK_ALIGN)], len }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.lines.as_slice().as_bytes()[..self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.lines.as_mut_slice().as_mut_bytes()[..self.len]
    }
}

#[derive(Clone)]
pub(super) struct Flow {
    pub(super) key: FlowKey,
    pub(super) reply: FlowKey,
    pub(super) block: Block,
    pub(super) expires_at: u64,
}

impl Bench {
    /// Records the flows as they are now, for a later set-back.
    pub fn remember(&self) -> Remembered {
        Remembered(self.flows.clone())
    }

    /// Sets the flows back to a record from at most `packets` packets ago, like a weak
    /// protection.
    pub fn set_back(&mut self, Remembered(flows): Remembered, packets: u32) {
        self.flows = flows;
        for flow in &mut self.flows {
            self.chain.outdated(flow.block.bytes_mut(), packets);
        }
    }

    /// Overwrites bytes of the latest flow's state, from byte `at` on.
    pub fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        let state = self.flows.last_mut().map_or(&mut [][..], |flow| flow.block.bytes_mut());
        let state = state.get_mut(at..).unwrap_or_default();
        let len = state.len().min(bytes.len());
        state[..len].copy_from_slice(&bytes[..len]);
    }

    /// Takes over all flows of `other`, which no longer has them: it has failed, or the
    /// flows move.
    pub fn takes_over(&mut self, other: &mut Bench, is_alive: bool) {
        for mut flow in core::mem::take(&mut other.flows) {
            self.chain.adopt(flow.block.bytes_mut());
            if is_alive {
                other.chain.forget(flow.block.bytes_mut());
            }
            self.flows.push(flow);
        }
        self.now = self.now.max(other.now);
    }

    /// Copies the flow with this key from `other`, with `block` for its state: as if it
    /// had come here with that state. `other` keeps its own.
    pub fn copies(&mut self, other: &Bench, key: &FlowKey, block: &[u8]) {
        let Some(theirs) = other.flows.iter().find(|flow| flow.key == *key) else { return };
        let is_there = self.flows.iter().position(|flow| flow.key == *key);
        let at = is_there.unwrap_or_else(|| {
            self.flows.push(theirs.clone());
            self.flows.len() - 1
        });
        let mine = &mut self.flows[at];
        mine.expires_at = theirs.expires_at;
        mine.block.bytes_mut().copy_from_slice(block);
        if is_there.is_none() {
            self.chain.adopt(mine.block.bytes_mut());
        }
        self.now = other.now;
        self.fragments.clone_from(&other.fragments);
    }

    /// Loses the latest flow, with the state that only it had: all other flows name their
    /// holdings.
    pub fn loses_one(&mut self) {
        self.flows.pop();
        let flows = &mut self.flows;
        self.chain
            .recount(|adopt| flows.iter_mut().for_each(|flow| adopt(flow.block.bytes_mut(), None)));
    }
}
