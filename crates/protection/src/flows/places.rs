//! The positions of the slots' blocks, if there is room for the state of some flows only.
//!
//! In: slots that need room, or give it up. Out: ranges of lines. The slab has as many
//! *frames*, each a whole block, as there is room for. A header for every slot follows
//! behind the frames. A slot without a frame is free, or its state is absent; it has this
//! header only. Never: a frame of two slots.

use super::{Flows, FreeSlots, Full, HEAD, HEADER_LEN, Line, NO_SLOT, Slot};
use core::ops::Range;
use zerocopy::IntoBytes;

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

/// The states that are here, and those that are absent.
impl Flows {
    /// The number of further flows whose state has room here.
    #[inline]
    pub fn room(&self) -> usize {
        self.places.as_ref().map_or(self.free.len(), |places| places.room())
    }

    /// True if there is not room for the state of all flows.
    pub fn is_paged(&self) -> bool {
        self.places.is_some()
    }

    /// True if the state of this flow is here. Always so unless
    /// [room](Flows::with_room_for) is short. An absent flow has only its header: callers
    /// must not ask for its state or block, nor change them.
    #[inline]
    pub fn is_present(&self, slot: Slot) -> bool {
        self.places.as_ref().is_none_or(|places| places.has(slot))
    }

    /// The number of frames for states; 0 if all flows have room.
    pub(crate) fn places(&self) -> usize {
        self.places.as_ref().map_or(0, |places| places.count())
    }

    /// The slot that has this frame, if the frame is taken.
    pub(crate) fn slot_at(&self, place: usize) -> Option<Slot> {
        self.places.as_ref().and_then(|places| places.slot_at(place))
    }

    /// True if the state of this flow is about to be evicted. Its holder must not be
    /// asked about it then.
    pub(crate) fn is_going(&self, slot: Slot) -> bool {
        self.places.as_ref().is_some_and(|places| places.is_going(slot))
    }

    /// See [`Flows::is_going`].
    pub(crate) fn set_going(&mut self, slot: Slot, is_going: bool) {
        if let Some(places) = &mut self.places {
            places.set_going(slot, is_going);
        }
    }

    /// Marks the state of this flow as used lately, or not. True if the mark changed;
    /// never for an absent state.
    #[inline]
    pub(crate) fn set_used(&mut self, slot: Slot, is_used: bool) -> bool {
        self.places.as_mut().is_some_and(|places| places.set_used(slot, is_used))
    }

    /// See [`Flows::set_used`].
    pub(crate) fn is_used(&self, slot: Slot) -> bool {
        self.places.as_ref().is_some_and(|places| places.is_used(slot))
    }

    /// Flows whose state is absent.
    pub fn absent(&self) -> usize {
        self.places.as_ref().map_or(0, |places| self.len() - places.taken())
    }

    /// Gives the slot a frame. The header moves into it, so that header and state lie
    /// together; `give_room_up` moves it back.
    pub(super) fn take_room(&mut self, slot: Slot) {
        let from = self.range(slot).start;
        let Some(places) = &mut self.places else { return };
        assert!(places.take(slot), "whoever takes room has seen that there is some");
        self.move_header(slot, from);
    }

    pub(super) fn give_room_up(&mut self, slot: Slot) {
        if !self.is_present(slot) {
            return;
        }
        let from = self.range(slot).start;
        let Some(places) = &mut self.places else { return };
        places.give_up(slot);
        self.move_header(slot, from);
    }

    fn move_header(&mut self, slot: Slot, from: usize) {
        self.noted = NO_SLOT;
        let mut header = [Line([0; 64]); HEAD];
        header.copy_from_slice(&self.lines[from..from + HEAD]);
        self.bytes_mut(slot)[..HEADER_LEN].copy_from_slice(header.as_bytes());
    }

    /// Evicts the state of this flow, which lives elsewhere from now on.
    pub(crate) fn evict(&mut self, slot: Slot) {
        assert!(
            self.header(slot).life().is_owned(),
            "what is not owned here is no cache of anything"
        );
        self.give_room_up(slot);
    }

    /// Makes room for the state of this flow, if it was absent. The state's contents are
    /// undefined then.
    ///
    /// # Errors
    /// [`Full`] if there is no room left.
    pub fn make_present(&mut self, slot: Slot) -> Result<(), Full> {
        if self.is_present(slot) {
            return Ok(());
        }
        if self.room() == 0 {
            return Err(Full);
        }
        self.take_room(slot);
        Ok(())
    }

    /// Loads the state of this flow, which was absent.
    ///
    /// # Errors
    /// [`Full`] if there is no room for it.
    pub(crate) fn load(&mut self, slot: Slot, state: &[u8]) -> Result<(), Full> {
        assert!(
            !self.is_present(slot) && state.len() == self.state_len,
            "it is absent, and this is a state"
        );
        self.make_present(slot)?;
        self.parts_mut(slot).1.copy_from_slice(state);
        Ok(())
    }
}
