//! The flow actors of one chain in one runtime: a slab made once, and the table that
//! finds them.
//!
//! In: keys, state that arrives. Out: slots. Every slot is one contiguous block:
//! [`ActorHeader`], then the chain's state. Never: growth, a pointer in a block, or two
//! slots with one key.
//!
//! If there is not room for the state of all flows ([`Flows::with_room_for`]), some flows
//! have only their header here. Their state is [absent](Flows::is_present): it is
//! elsewhere.

mod demoted;
mod free;
mod header;
mod life;
mod look_up;
mod places;
mod table;
#[cfg(test)]
mod tests;

pub use demoted::Demoted;
pub use free::FreeSlots;
pub use header::{ActorHeader, NO_SLOT, flag};
pub(crate) use header::{FIXED, VARIABLE};
pub use life::{Event, Life};
pub use table::{Found, KeyTable};

use crate::delta;
use core::ops::Range;
use holdfast_wire::FlowKey;
use places::Places;
use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, transmute_mut, transmute_ref,
};

/// Index of a flow actor in its slab.
pub type Slot = u32;

/// A flow here: its slot, in this use of it. The next use of the slot is another flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowRef {
    /// The flow's slot.
    pub slot: Slot,
    pub(crate) generation: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A table of `count` zeros, whose pages come with the first write.
///
/// # Panics
/// If there is no memory for it.
pub fn untouched<T: FromZeros>(count: usize) -> Vec<T> {
    match T::new_vec_zeroed(count) {
        Ok(table) => table,
        Err(_) => panic!("no memory for a table of {count} entries of {} bytes", size_of::<T>()),
    }
}

const HEADER_LEN: usize = size_of::<ActorHeader>();
const LINE: usize = 64;
/// Lines of a header.
const HEAD: usize = HEADER_LEN / LINE;
/// The line of the header that a packet does not touch.
const COLD_LINE: usize = core::mem::offset_of!(ActorHeader, opened_at) / LINE;

/// Lines of a slot.
fn stride(state_len: usize) -> usize {
    (HEADER_LEN + state_len).div_ceil(LINE)
}

/// The error that a flow got no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// Why a flow got no reply key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoReply {
    /// The table has no place for the key.
    Full,
    /// Another flow has the key.
    Taken,
}

/// Callbacks of an observer that can undo changes: it is told of bytes before they
/// change.
#[derive(Debug, Clone, Copy)]
pub struct Journal {
    /// Called once: every later change of these bytes will be announced.
    pub exempt: fn(&[u8]),
    /// These bytes are about to change.
    pub before: fn(&[u8]),
    /// Called once: the bytes at this address and length mean nothing between two turns.
    pub scratch: fn(usize, usize),
}

impl Journal {
    /// Declares the memory of this vector scratch. The vector is empty between two turns,
    /// so its memory need not be restored when a turn is undone. From now on the vector
    /// must not move, unless it is given up for good.
    pub fn scratch<T>(&self, vector: &Vec<T>) {
        (self.scratch)(vector.as_ptr() as usize, vector.capacity() * size_of::<T>());
    }
}

/// See the module.
pub struct Flows {
    lines: Vec<Line>,
    stride: usize,
    state_len: usize,
    free: FreeSlots,
    table: KeyTable,
    seed: u64,
    owned: usize,
    layout: u64,
    demoted: Vec<Demoted>,
    journal: Option<Journal>,
    /// The slot that the journal was told of last, in this turn.
    noted: Slot,
    /// The positions of blocks, if not all have room.
    places: Option<Box<Places>>,
}

impl Flows {
    /// Makes room for `capacity` flow actors with `state_len` bytes of chain state each.
    /// `layout` is the chain's layout hash; `seed` the cluster's hash seed.
    pub fn new(capacity: usize, state_len: usize, layout: u64, seed: u64) -> Flows {
        let stride = stride(state_len);
        Flows {
            lines: untouched(capacity * stride),
            stride,
            state_len,
            free: FreeSlots::new(capacity),
            table: KeyTable::new(capacity * 2),
            seed,
            owned: 0,
            layout,
            demoted: Vec::new(),
            journal: None,
            noted: NO_SLOT,
            places: None,
        }
    }

    /// Like `Flows::new`, with room for the chain's state of only `present` flows, at
    /// least one. A slot costs its header in any case.
    pub fn with_room_for(
        present: usize,
        capacity: usize,
        state_len: usize,
        layout: u64,
        seed: u64,
    ) -> Flows {
        let present = present.max(1);
        if present >= capacity {
            return Flows::new(capacity, state_len, layout, seed);
        }
        let mut flows = Flows::new(0, state_len, layout, seed);
        let heads = present * flows.stride;
        flows.lines = untouched(heads + capacity * HEAD);
        flows.free = FreeSlots::new(capacity);
        flows.table = KeyTable::new(capacity * 2);
        flows.places = Some(Box::new(Places::new(present, capacity, heads)));
        flows
    }

    /// Sets the journal, which is told before a flow actor or the table changes.
    pub fn set_journal(&mut self, journal: Journal) {
        (journal.exempt)(self.lines.as_bytes());
        self.table.set_journal(journal);
        self.journal = Some(journal);
    }

    /// Begins a turn: changes announced to the journal before belong to the last one.
    pub fn begin_turn(&mut self) {
        self.noted = NO_SLOT;
    }

    /// Bytes of a flow actor as it travels: header and chain state.
    pub fn block_len(&self) -> usize {
        HEADER_LEN + self.state_len
    }

    /// Bytes of memory of so many flows with `state_len` bytes of chain state each, all
    /// of them present: slots, the places of both keys, and the list of free slots.
    pub fn memory_of(flows: usize, state_len: usize) -> usize {
        flows * stride(state_len) * LINE
            + KeyTable::memory_of(flows * 2)
            + FreeSlots::memory_of(flows)
    }

    /// Bytes of memory in use: for the highest number of flows that were here at once.
    pub fn memory(&self) -> usize {
        let reach = self.reach() as usize;
        let lines = match &self.places {
            None => reach * self.stride,
            Some(places) => places.reach() * self.stride + reach * HEAD,
        };
        lines * LINE + self.table.memory() + FreeSlots::memory_of(reach)
    }

    /// The chain's layout hash.
    pub fn layout(&self) -> u64 {
        self.layout
    }

    /// All slots, free or in use.
    pub fn capacity(&self) -> usize {
        self.free.capacity()
    }

    /// The end of a search through all slots: slots from here on were never used. Free
    /// slots are used again before.
    pub fn reach(&self) -> Slot {
        self.free.reach()
    }

    /// Slots in use, in any life.
    pub fn len(&self) -> usize {
        self.capacity() - self.free.len()
    }

    /// True if there is no flow.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Hash of a key under the cluster's seed.
    #[inline]
    pub fn hash(&self, key: &FlowKey) -> u64 {
        key.hash(self.seed)
    }

    /// The first line of a slot: the header's.
    #[inline]
    fn start(&self, slot: Slot) -> usize {
        match &self.places {
            None => slot as usize * self.stride,
            Some(places) => places.range(slot, self.stride).start,
        }
    }

    /// The lines of a slot: all of it, or its header if the state is absent.
    #[inline]
    fn range(&self, slot: Slot) -> Range<usize> {
        if let Some(places) = &self.places {
            return places.range(slot, self.stride);
        }
        let start = self.start(slot);
        start..start + self.stride
    }

    /// Tells the journal that this slot is about to change.
    #[inline]
    fn note(&mut self, slot: Slot) {
        if self.noted != slot
            && let Some(journal) = &self.journal
        {
            self.noted = slot;
            (journal.before)(self.lines[self.range(slot)].as_bytes());
        }
    }

    #[inline]
    fn bytes(&self, slot: Slot) -> &[u8] {
        self.lines[self.range(slot)].as_bytes()
    }

    #[inline]
    fn bytes_mut(&mut self, slot: Slot) -> &mut [u8] {
        self.note(slot);
        let range = self.range(slot);
        self.lines[range].as_mut_bytes()
    }

    /// The flow actor as it travels.
    #[inline]
    pub fn block(&self, slot: Slot) -> &[u8] {
        &self.bytes(slot)[..HEADER_LEN + self.state_len]
    }

    /// The flow actor, to write the chain's state and the bits in [`VARIABLE`].
    #[inline]
    pub(crate) fn block_mut(&mut self, slot: Slot) -> &mut [u8] {
        let len = self.block_len();
        &mut self.bytes_mut(slot)[..len]
    }

    /// A digest of the part of the flow actor that travels: equal at owner and copy of
    /// one version.
    pub fn digest(&self, slot: Slot) -> u64 {
        delta::digest(self.block(slot))
    }

    /// The header.
    #[inline]
    pub fn header(&self, slot: Slot) -> &ActorHeader {
        match self.lines.get(self.start(slot)..).and_then(<[Line]>::first_chunk::<HEAD>) {
            Some(head) => transmute_ref!(head),
            None => unreachable!("every slot has a header"),
        }
    }

    /// The header, to write. Keys and life change only through the methods here.
    #[inline]
    pub fn header_mut(&mut self, slot: Slot) -> &mut ActorHeader {
        self.note(slot);
        let start = self.start(slot);
        match self.lines[start..].first_chunk_mut::<HEAD>() {
            Some(head) => transmute_mut!(head),
            None => unreachable!("every slot has a header"),
        }
    }

    /// The flow in this slot, to find it again. A slot that has become free still has the
    /// reference of its last flow.
    #[inline]
    pub fn reference(&self, slot: Slot) -> FlowRef {
        self.header(slot).reference(slot)
    }

    /// The header of this flow; `None` if the flow is not here any more.
    #[inline]
    pub fn get(&self, flow: FlowRef) -> Option<&ActorHeader> {
        let header = self.header(flow.slot);
        (header.reference(flow.slot) == flow && header.life() != Life::Free).then_some(header)
    }

    /// The header of this flow, to write; `None` if the flow is not here any more.
    #[inline]
    pub fn get_mut(&mut self, flow: FlowRef) -> Option<&mut ActorHeader> {
        self.get(flow)?;
        Some(self.header_mut(flow.slot))
    }

    /// The header of this flow; `None` if the flow is not owned here, or not any more.
    #[inline]
    pub fn get_owned(&self, flow: FlowRef) -> Option<&ActorHeader> {
        self.get(flow).filter(|header| header.life().is_owned())
    }

    /// Header and chain state together, to process a packet.
    #[inline(always)]
    pub fn parts_mut(&mut self, slot: Slot) -> (&mut ActorHeader, &mut [u8]) {
        self.note(slot);
        let (range, state_len) = (self.range(slot), self.state_len);
        match self.lines[range].split_first_chunk_mut::<HEAD>() {
            Some((head, rest)) => (transmute_mut!(head), &mut rest.as_mut_bytes()[..state_len]),
            None => unreachable!("every slot has a header"),
        }
    }

    /// The chain's state.
    pub fn state(&self, slot: Slot) -> &[u8] {
        &self.bytes(slot)[HEADER_LEN..HEADER_LEN + self.state_len]
    }

    /// Takes a slot for a flow with this forward key, which the caller makes sure is new.
    /// Header and state are zero except for key, life and generation.
    ///
    /// # Errors
    /// [`Full`] if there is no slot or no place in the table.
    pub fn insert(&mut self, key: FlowKey, hash: u64, event: Event) -> Result<Slot, Full> {
        if self.room() == 0 {
            return Err(Full);
        }
        let slot = self.insert_header(key, hash, event)?;
        if !self.is_present(slot) {
            self.take_room(slot);
            self.parts_mut(slot).1.fill(0);
        }
        Ok(slot)
    }

    /// As [`Flows::insert`] of a flow that is owned at once, without a chain: for benches
    /// and tests.
    ///
    /// # Errors
    /// As there.
    pub fn insert_owned(&mut self, key: FlowKey, hash: u64) -> Result<Slot, Full> {
        let slot = self.insert(key, hash, Event::Open)?;
        self.step(slot, Event::Serve);
        Ok(slot)
    }

    /// Like [`Flows::insert`], for a flow whose state is to come. The state is absent
    /// where room is short.
    ///
    /// # Errors
    /// As [`Flows::insert`], but needs no room for state.
    pub fn insert_header(&mut self, key: FlowKey, hash: u64, event: Event) -> Result<Slot, Full> {
        let slot = self.free.next().ok_or(Full)?;
        if !self.table.insert(hash, Found { slot, is_reply: false }) {
            return Err(Full);
        }
        self.free.take();
        let generation = self.header(slot).generation.wrapping_add(1);
        self.bytes_mut(slot).fill(0);
        let header = self.header_mut(slot);
        header.key = key;
        header.generation = generation;
        (header.timer_next, header.timer_before, header.timer_list) = (NO_SLOT, NO_SLOT, NO_SLOT);
        self.step(slot, event);
        Ok(slot)
    }

    /// Sets the flow's reply key. A flow has one; setting it again replaces it.
    ///
    /// # Errors
    /// The table has no place, or another flow has that key; the flow then has none.
    pub fn set_reply(&mut self, slot: Slot, reply: FlowKey) -> Result<(), NoReply> {
        if self.header(slot).reply == reply {
            return Ok(());
        }
        self.clear_reply(slot);
        // A flow that is only a replica here does not count: the switch decides which of
        // the two was first.
        let is_taken = |found: Found| {
            self.is_key(found, &reply) && self.header(found.slot).life() != Life::Copy
        };
        if self.table.find(self.hash(&reply), is_taken).is_some() {
            return Err(NoReply::Taken);
        }
        self.place_reply(slot, reply).map_err(|Full| NoReply::Full)
    }

    /// Sets the flow's reply key even if another flow has it: for copies, and for flows
    /// that had the key where they come from.
    ///
    /// # Errors
    /// The table has no place.
    pub fn place_reply(&mut self, slot: Slot, reply: FlowKey) -> Result<(), Full> {
        if self.header(slot).reply == reply {
            return Ok(());
        }
        self.clear_reply(slot);
        let hash = self.hash(&reply);
        if !self.table.insert(hash, Found { slot, is_reply: true }) {
            return Err(Full);
        }
        self.header_mut(slot).reply = reply;
        Ok(())
    }

    fn clear_reply(&mut self, slot: Slot) {
        let old = self.header(slot).reply;
        if old != FlowKey::default() {
            let hash = self.hash(&old);
            self.table.remove(hash, Found { slot, is_reply: true });
            self.header_mut(slot).reply = FlowKey::default();
        }
    }

    /// An event in the flow's life. Flows that were this runtime's own and become copies
    /// are noted as demoted.
    #[inline]
    pub fn step(&mut self, slot: Slot, event: Event) {
        let (old, new) = (self.header(slot).life(), event.target());
        debug_assert!(event.is_allowed(old), "{event:?} of a flow that is {old:?}");
        if event == Event::Copy && old.is_own() {
            self.note_demoted(slot);
        }
        self.owned = self.owned + usize::from(new.is_own()) - usize::from(old.is_own());
        self.header_mut(slot).life = new as u8;
    }

    /// Flows owned here.
    pub fn owned(&self) -> usize {
        self.owned
    }

    /// Frees the slot.
    pub fn remove(&mut self, slot: Slot) {
        let header = *self.header(slot);
        if header.life() == Life::Free {
            return;
        }
        self.clear_reply(slot);
        let hash = self.hash(&header.key);
        self.table.remove(hash, Found { slot, is_reply: false });
        self.step(slot, Event::End);
        self.give_room_up(slot);
        self.free.put(slot);
    }

    /// Writes a flow actor that arrived from another runtime into `slot`, and keeps the
    /// fields that are local to this runtime. `block` is [`Flows::block_len`] bytes with
    /// this slot's forward key. An absent state stays absent.
    ///
    /// # Errors
    /// The table has no place for the reply key; the state is written all the same.
    /// Another flow may have that key: the switch decides which of the two it belongs to.
    pub fn overwrite(&mut self, slot: Slot, block: &[u8]) -> Result<(), Full> {
        let local = *self.header(slot);
        let len = if self.is_present(slot) { self.block_len() } else { HEADER_LEN };
        self.bytes_mut(slot)[..len].copy_from_slice(&block[..len]);
        let header = self.header_mut(slot);
        let reply = header.reply;
        header.key = local.key;
        header.reply = local.reply;
        header.life = local.life;
        (header.timer_next, header.timer_before, header.timer_list) =
            (local.timer_next, local.timer_before, local.timer_list);
        header.generation = local.generation;
        header.parked = local.parked;
        // `UNCONFIRMED` comes from the block, and the slot is no longer `EMPTY`. All
        // other flags are this runtime's own.
        header.flags =
            header.flags & flag::UNCONFIRMED | local.flags & !(flag::UNCONFIRMED | flag::EMPTY);
        if reply == FlowKey::default() { Ok(()) } else { self.place_reply(slot, reply) }
    }

    /// All slots in use.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &ActorHeader)> + '_ {
        (0..self.reach())
            .map(|slot| (slot, self.header(slot)))
            .filter(|(_, header)| header.life() != Life::Free)
    }
}
