//! The arena: the one place where packet bytes live, shared by the processes of a host.
//!
//! Theory of operation. The manager creates it and is the only one to know who has which buffer: itself (free, or in its own hands) or
//! one virtual port. A buffer's bytes are touched only by whoever has it; it changes hands through the rings, whose release and acquire order
//! the accesses. A process may die at any instruction: what the manager has recorded for its port comes back when it is dead.
//!
//! The manager may die too. Its record lies in a memory of its own, which is passed to no runtime and outlives it; its next life adopts both. What
//! the record says is the manager's is free then: whatever the manager had in hand is lost, and nothing else. What it says is a port's stays with
//! the port. In which order record and rings change, so that this holds at every instruction, is told in [`crate::ring`].
//!
//! What is trusted. Every process that maps the arena is this program, of the same build
//! ([`crate::process::role`]). A process does not touch a buffer that it has given up: it
//! consumes the packet before it puts the descriptor into a ring, and outside this crate
//! no unsafe code could keep a pointer. The kernel does not enforce this: a wild pointer
//! in one process can corrupt what another one reads, as it could within one process. The
//! manager still checks descriptors from rings against the record, which bounds the
//! damage by a process that died, stood still, or was undone.

use crate::death;
use crate::shared_memory::{Layout, SharedMemory};
use holdfast_wire::{BUFFER_LEN, HEADROOM, Handle, Handles, Packet, PacketPool};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// The mapping, with as many buffers as fit.
pub(crate) struct ArenaMemory {
    memory: SharedMemory,
    count: u32,
}

/// Behind the last buffer.
const LAYOUT: Layout = Layout { name: "the arena", magic: 0x686f_6c64_6172_656e, version: 1 };
const _: () = assert!(BUFFER_LEN > Layout::LEN && BUFFER_LEN.is_multiple_of(8));

impl ArenaMemory {
    fn create(count: u32) -> io::Result<ArenaMemory> {
        let end = count as usize * BUFFER_LEN;
        let memory = SharedMemory::create("holdfast-arena", end + Layout::LEN)?;
        LAYOUT.mark(&memory, end);
        Ok(ArenaMemory { memory, count })
    }

    pub(crate) fn open(fd: OwnedFd) -> io::Result<ArenaMemory> {
        let memory = SharedMemory::open(fd)?;
        // The length first: it determines where the layout words lie. A length that is no
        // multiple of the buffer size is of another program or version.
        let end = memory.len().saturating_sub(Layout::LEN);
        if !end.is_multiple_of(BUFFER_LEN) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "this is not the arena, or its buffers are of another length",
            ));
        }
        LAYOUT.check(&memory, end)?;
        Ok(ArenaMemory { memory, count: (end / BUFFER_LEN) as u32 })
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// A packet in this buffer.
    ///
    /// # Safety
    /// The caller has the buffer: no other packet in any process is in it until this one's buffer is given up.
    #[inline]
    pub(crate) unsafe fn packet(&self, id: u32, handle: Handle) -> Packet {
        // SAFETY: the buffer's bytes belong to whoever has the buffer, and that is the caller.
        let buffer = unsafe { self.memory.bytes(id as usize * BUFFER_LEN) };
        handle.with_buffer(buffer, id)
    }
}

/// Who has a buffer, as the manager knows it.
pub(crate) const MANAGER: u16 = 0;

const OWNERS: Layout = Layout { name: "the record of buffers", magic: 0x686f_6c64_6f77_6e73, version: 2 };
const AT_COUNT: usize = Layout::LEN;
const HEADER_LEN: usize = 64;

/// The record: who has which buffer. It outlives the manager.
struct Owners {
    memory: SharedMemory,
    words: &'static [AtomicU16],
}

impl Owners {
    fn create(count: u32) -> io::Result<Owners> {
        let memory = SharedMemory::create("holdfast-owners", HEADER_LEN + count as usize * 2)?;
        memory.word32(AT_COUNT).store(count, Ordering::Relaxed);
        OWNERS.mark(&memory, 0);
        Ok(Owners { words: memory.words16(HEADER_LEN, count as usize), memory })
    }

    fn open(fd: OwnedFd, count: u32) -> io::Result<Owners> {
        let memory = SharedMemory::open(fd)?;
        OWNERS.check(&memory, 0)?;
        if memory.len() != HEADER_LEN + count as usize * 2 || memory.word32(AT_COUNT).load(Ordering::Relaxed) != count {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not the record of that arena"));
        }
        Ok(Owners { words: memory.words16(HEADER_LEN, count as usize), memory })
    }

    #[inline]
    fn get(&self, id: u32) -> Option<u16> {
        self.words.get(id as usize).map(|owner| owner.load(Ordering::Relaxed))
    }

    /// A release store: the next life sees it after everything before and before everything after it.
    #[inline]
    fn set(&self, id: u32, owner: u16) {
        death::step();
        self.words[id as usize].store(owner, Ordering::Release);
    }

    fn of(&self, owner: u16) -> impl Iterator<Item = u32> {
        (0..self.words.len() as u32).filter(move |id| self.get(*id) == Some(owner))
    }
}

/// The manager's side: all buffers, and who has them.
pub struct Arena {
    memory: Arc<ArenaMemory>,
    free: Vec<u32>,
    handles: Handles,
    owners: Owners,
}

impl Arena {
    /// A new arena of `count` buffers of [`BUFFER_LEN`] bytes.
    ///
    /// # Errors
    /// What the kernel says: usually that there is not enough memory.
    pub fn create(count: u32) -> io::Result<Arena> {
        Ok(Arena {
            memory: Arc::new(ArenaMemory::create(count)?),
            free: (0..count).rev().collect(),
            handles: Handles::new(count as usize),
            owners: Owners::create(count)?,
        })
    }

    /// The arena of a manager that is dead, by its memory and its record ([`Arena::fds`]). What was that manager's is free. Before
    /// anything is given away, every living process's port has to be adopted, and then [`Arena::reclaim_unknown`] called.
    ///
    /// # Errors
    /// `InvalidData` if they are not an arena and its record; else what the kernel says.
    pub fn adopt(memory: OwnedFd, record: OwnedFd) -> io::Result<Arena> {
        let memory = ArenaMemory::open(memory)?;
        let count = memory.count;
        let owners = Owners::open(record, count)?;
        let mut free = Vec::with_capacity(count as usize);
        free.extend(owners.of(MANAGER));
        Ok(Arena { memory: Arc::new(memory), free, handles: Handles::new(count as usize), owners })
    }

    /// The memory, to pass to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.memory.fd()
    }

    /// Memory and record, to pass to the manager's next life and to nobody else.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.memory.memory.fd(), self.owners.memory.fd()]
    }

    /// Buffers altogether.
    pub fn total(&self) -> usize {
        self.owners.words.len()
    }

    /// Gives a buffer of the manager's to a port, in whose ring it lies and cannot be seen yet. The packet is consumed: its bytes are the
    /// port's from now on.
    #[inline]
    pub(crate) fn give(&mut self, packet: Packet, to: u16) {
        let (id, handle) = packet.into_id();
        self.handles.put(handle);
        self.owners.set(id, to);
    }

    /// Gives a free buffer to a port. `into_ring` puts it into the port's ring, where it cannot be seen yet; false if it did not fit, or
    /// there is no free buffer.
    #[inline]
    pub(crate) fn give_free(&mut self, to: u16, into_ring: impl FnOnce(u32) -> bool) -> bool {
        let Some(id) = self.free.last().copied() else { return false };
        if !into_ring(id) {
            return false;
        }
        self.free.pop();
        self.owners.set(id, to);
        true
    }

    /// Takes a buffer back from a port that says it gave it. `None` if it never had it.
    pub(crate) fn take_back(&mut self, id: u32, from: u16, offset: usize, len: usize) -> Option<Packet> {
        if self.owners.get(id)? != from {
            return None;
        }
        self.owners.set(id, MANAGER);
        // SAFETY: the record says that the port had the buffer, and it has just given it up through its ring, after which its process does not touch it (see the
        // module: what is trusted); it is on no free list.
        let mut packet = unsafe { self.memory.packet(id, self.handles.take()) };
        if packet.set_range(offset, len) {
            Some(packet)
        } else {
            self.put(packet);
            None
        }
    }

    /// Frees a buffer that a port gave back. False if it never had it.
    pub(crate) fn free_from(&mut self, id: u32, from: u16) -> bool {
        if self.owners.get(id) != Some(from) {
            return false;
        }
        self.owners.set(id, MANAGER);
        self.free.push(id);
        true
    }

    /// Whether a buffer is recorded as the port's.
    pub(crate) fn is_of(&self, id: u32, port: u16) -> bool {
        self.owners.get(id) == Some(port)
    }

    /// Frees everything that a dead port had. Returns how many.
    pub(crate) fn reclaim(&mut self, from: u16) -> usize {
        self.reclaim_from(|owner| owner == from)
    }

    /// Frees everything that is recorded for ports that are not among the `known`: a dead manager had not yet told of them, or had not finished
    /// burying them. Their processes are dead. Returns how many.
    pub fn reclaim_unknown(&mut self, known: &[u16]) -> usize {
        self.reclaim_from(|owner| !known.contains(&owner))
    }

    fn reclaim_from(&mut self, is_dead: impl Fn(u16) -> bool) -> usize {
        let mut count = 0;
        for id in 0..self.owners.words.len() as u32 {
            if self.owners.get(id).is_some_and(|owner| owner != MANAGER && is_dead(owner)) {
                self.owners.set(id, MANAGER);
                self.free.push(id);
                count += 1;
            }
        }
        count
    }

    /// Buffers that a port has.
    pub fn held_by(&self, port: u16) -> usize {
        self.owners.of(port).count()
    }
}

impl PacketPool for Arena {
    #[inline]
    fn take(&mut self) -> Option<Packet> {
        let id = self.free.pop()?;
        debug_assert_eq!(self.owners.get(id), Some(MANAGER));
        // SAFETY: a buffer on the free list is in nobody's hands, and it has just left the list.
        Some(unsafe { self.memory.packet(id, self.handles.take()) })
    }

    #[inline]
    fn put(&mut self, packet: Packet) {
        let (id, handle) = packet.into_id();
        self.handles.put(handle);
        self.free.push(id);
    }

    fn free(&self) -> usize {
        self.free.len()
    }
}

const _: () = assert!(HEADROOM < BUFFER_LEN);
