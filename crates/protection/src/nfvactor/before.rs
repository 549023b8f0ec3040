//! Blocks as they were before this batch: the state that their replicas have.

use crate::flows::flag;
use crate::{Commit, FlowRef, Flows, Slot};

/// A copy of each flow's block, as it was when the batch's first packet of the flow was
/// admitted. Every batch uses the same memory again, so it stays in the nearest caches.
/// There is no second block for every flow.
#[derive(Default)]
pub(super) struct Before {
    kept: Vec<FlowRef>,
    blocks: Vec<u8>,
    len: usize,
}

impl Before {
    /// Keeps the block of a flow before a packet of it is processed, unless the flow's
    /// next record carries it whole.
    #[inline]
    pub(super) fn note(&mut self, flows: &mut Flows, slot: Slot) {
        let header = flows.header_mut(slot);
        let is_passed_over = header.commit == Commit::NONE
            || header.flags & (flag::TOUCHED | flag::WHOLE | flag::UNPROTECTED) != 0;
        if is_passed_over {
            return;
        }
        header.flags |= flag::TOUCHED;
        self.kept.push(header.reference(slot));
        self.len = flows.block_len();
        self.blocks.extend_from_slice(flows.block(slot));
    }

    /// Flows whose block is kept.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// A kept flow and its old block, unless the flow has ended in this batch.
    #[inline]
    pub(super) fn take(&self, at: usize, flows: &mut Flows) -> Option<(Slot, &[u8])> {
        let flow = *self.kept.get(at)?;
        let header = flows.header_mut(flow.slot);
        // A later flow in this slot has not been touched, or has a block of its own.
        if header.reference(flow.slot) != flow || header.flags & flag::TOUCHED == 0 {
            return None;
        }
        header.flags &= !flag::TOUCHED;
        Some((flow.slot, self.blocks.get(at * self.len..(at + 1) * self.len)?))
    }

    /// The batch is over.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.blocks.clear();
    }
}
