//! Blocks as they were before this batch: what their replicas have.

use crate::flows::flag;
use crate::{Flows, Slot};

/// A copy of every flow's block, as it was when the batch's first packet of it was admitted. It lies in memory that every batch uses again, and so
/// in the nearest caches; there is no second memory of every flow.
#[derive(Default)]
pub(super) struct Before {
    slots: Vec<(Slot, u32)>,
    blocks: Vec<u8>,
    len: usize,
}

impl Before {
    /// A packet of this flow is about to be processed. Of a flow that goes whole to its replica next nothing is kept.
    #[inline]
    pub(super) fn note(&mut self, flows: &mut Flows, slot: Slot) {
        let header = flows.header_mut(slot);
        let is_passed_over = header.commit == 0 || header.flags & (flag::TOUCHED | flag::WHOLE | flag::UNPROTECTED) != 0;
        if is_passed_over {
            return;
        }
        header.flags |= flag::TOUCHED;
        self.slots.push((slot, header.generation));
        self.len = flows.block_len();
        self.blocks.extend_from_slice(flows.block(slot));
    }

    /// Flows of which something is kept.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// One of them, and its block as it was, unless it has ended in this batch.
    #[inline]
    pub(super) fn take(&self, at: usize, flows: &mut Flows) -> Option<(Slot, &[u8])> {
        let (slot, generation) = *self.slots.get(at)?;
        let header = flows.header_mut(slot);
        if header.generation != generation || header.flags & flag::TOUCHED == 0 {
            return None;
        }
        header.flags &= !flag::TOUCHED;
        Some((slot, self.blocks.get(at * self.len..(at + 1) * self.len)?))
    }

    /// The batch is over.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.blocks.clear();
    }
}
