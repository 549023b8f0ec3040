//! The positions of the slots' blocks, if there is room for the state of some flows only.
//!
//! In: slots that need room, or give it up. Out: ranges of lines. The slab has as many
//! *frames*, each a whole block, as there is room for. A header for every slot follows
//! behind the frames. A slot without a frame is free, or its state is absent; it has this
//! header only. Never: a frame of two slots.

use super::{FreeSlots, HEAD, NO_SLOT, Slot};
use core::ops::Range;

/// No frame.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Frame {
    /// The slot that has the frame; `NO_SLOT` for none.
    slot: Slot,
    /// See [`Places::set_used`].
    is_used: bool,
    /// See [`Places::set_going`].
    is_going: bool,
}

/// See the module.
pub(super) struct Places {
    /// By slot: its frame.
    frames: Vec<u32>,
    /// By frame: its slot and marks.
    held: Vec<Frame>,
    free: FreeSlots,
    /// The line at which headers begin.
    heads: usize,
}

impl Places {
    /// Makes `frames` frames for `slots` slots, with headers from the line `heads` on.
    pub(super) fn new(frames: usize, slots: usize, heads: usize) -> Places {
        Places {
            frames: vec![NONE; slots],
            held: vec![Frame { slot: NO_SLOT, is_used: false, is_going: false }; frames],
            free: FreeSlots::new(frames),
            heads,
        }
    }

    /// The lines of a slot, where a frame has `stride` of them. Not inlined, to stay out
    /// of the way where all states have room.
    #[cold]
    #[inline(never)]
    pub(super) fn range(&self, slot: Slot, stride: usize) -> Range<usize> {
        match self.frames[slot as usize] {
            NONE => {
                let start = self.heads + slot as usize * HEAD;
                start..start + HEAD
            }
            frame => {
                let start = frame as usize * stride;
                start..start + stride
            }
        }
    }

    /// True if the slot has a frame.
    #[inline]
    pub(super) fn has(&self, slot: Slot) -> bool {
        self.frames[slot as usize] != NONE
    }

    #[inline]
    fn frame(&mut self, slot: Slot) -> Option<&mut Frame> {
        self.held.get_mut(self.frames[slot as usize] as usize)
    }

    /// Marks the state of this slot as used lately, or not. True if the mark changed;
    /// never if the slot has no frame.
    #[inline]
    pub(super) fn set_used(&mut self, slot: Slot, is_used: bool) -> bool {
        self.frame(slot)
            .is_some_and(|frame| core::mem::replace(&mut frame.is_used, is_used) != is_used)
    }

    /// See [`Places::set_used`].
    pub(super) fn is_used(&self, slot: Slot) -> bool {
        self.held.get(self.frames[slot as usize] as usize).is_some_and(|frame| frame.is_used)
    }

    /// Marks the state of this slot as about to be evicted, or not.
    pub(super) fn set_going(&mut self, slot: Slot, is_going: bool) {
        self.frame(slot).into_iter().for_each(|frame| frame.is_going = is_going);
    }

    /// See [`Places::set_going`].
    pub(super) fn is_going(&self, slot: Slot) -> bool {
        self.held.get(self.frames[slot as usize] as usize).is_some_and(|frame| frame.is_going)
    }

    /// Free frames.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    /// The slot that has this frame, if the frame exists and is taken.
    pub(super) fn slot_at(&self, frame: usize) -> Option<Slot> {
        self.held.get(frame).map(|frame| frame.slot).filter(|slot| *slot != NO_SLOT)
    }

    /// Frames from here on were never in use.
    pub(super) fn reach(&self) -> usize {
        self.free.reach() as usize
    }

    /// All frames, free or taken.
    pub(super) fn count(&self) -> usize {
        self.held.len()
    }

    /// Frames that slots have.
    pub(super) fn taken(&self) -> usize {
        self.held.len() - self.free.len()
    }

    /// Gives the slot a frame. False if no frame is free, or the slot has one.
    pub(super) fn take(&mut self, slot: Slot) -> bool {
        if self.has(slot) {
            return false;
        }
        let Some(frame) = self.free.take() else { return false };
        self.frames[slot as usize] = frame;
        self.held[frame as usize] = Frame { slot, is_used: false, is_going: false };
        true
    }

    /// Takes the slot's frame back.
    pub(super) fn give_up(&mut self, slot: Slot) {
        let frame = core::mem::replace(&mut self.frames[slot as usize], NONE);
        if frame != NONE {
            self.held[frame as usize].slot = NO_SLOT;
            self.free.put(frame);
        }
    }
}
