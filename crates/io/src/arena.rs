//! The arena: the memory of all packet bytes, shared by the processes of a host.
//!
//! Theory of operation. The manager creates the arena, and it alone knows the owner of
//! each buffer: itself (free, or in use) or one virtual port. Only the owner touches a
//! buffer's bytes. Ownership passes through the rings, whose release and acquire order
//! the accesses. A process may die at any instruction: buffers recorded for its port are
//! freed after its death.
//!
//! The manager may die too. Its record is in a memory of its own, which no runtime has
//! and which outlives it; its next incarnation adopts both. Buffers recorded as the
//! manager's are then free: packets that it was processing are lost, and nothing else.
//! Buffers recorded as a port's stay with the port. The order of changes of record and
//! rings, by which this holds at every instruction, is in [`crate::ring`].
//!
//! Trust. Every process that maps the arena is this program, of the same build
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

/// The layout words, behind the last buffer.
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
        // The length first: it determines the place of the layout words. A length that is
        // no multiple of the buffer size is of another program or version.
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
    /// The caller owns the buffer: no other packet in any process is in it until this
    /// one's buffer is given up.
    #[inline]
    pub(crate) unsafe fn packet(&self, id: u32, handle: Handle) -> Packet {
        // SAFETY: the caller owns the buffer, and with it its bytes.
        let buffer = unsafe { self.memory.bytes(id as usize * BUFFER_LEN) };
        handle.with_buffer(buffer, id)
    }
}

/// The manager as an owner of buffers.
pub(crate) const MANAGER: u16 = 0;

const OWNERS: Layout =
    Layout { name: "the record of buffers", magic: 0x686f_6c64_6f77_6e73, version: 2 };
const AT_COUNT: usize = Layout::LEN;
const HEADER_LEN: usize = 64;

/// The record: the owner of each buffer. The record outlives the manager.
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
        if memory.len() != HEADER_LEN + count as usize * 2
            || memory.word32(AT_COUNT).load(Ordering::Relaxed) != count
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "this is not the record of that arena",
            ));
        }
        Ok(Owners { words: memory.words16(HEADER_LEN, count as usize), memory })
    }

    #[inline]
    fn get(&self, id: u32) -> Option<u16> {
        self.words.get(id as usize).map(|owner| owner.load(Ordering::Relaxed))
    }

    /// A release store: the next incarnation sees it after everything before and before
    /// everything after it.
    #[inline]
    fn set(&self, id: u32, owner: u16) {
        death::step();
        self.words[id as usize].store(owner, Ordering::Release);
    }

    fn of(&self, owner: u16) -> impl Iterator<Item = u32> {
        (0..self.words.len() as u32).filter(move |id| self.get(*id) == Some(owner))
    }
}

/// The manager's side: all buffers and their owners.
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
    /// The kernel's error: usually that there is not enough memory.
    pub fn create(count: u32) -> io::Result<Arena> {
        Ok(Arena {
            memory: Arc::new(ArenaMemory::create(count)?),
            free: (0..count).rev().collect(),
            handles: Handles::new(count as usize),
            owners: Owners::create(count)?,
        })
    }

    /// Adopts the arena of a dead manager, by its memory and its record ([`Arena::fds`]).
    /// The manager's own buffers are free. Before any buffer is given away, every living
    /// process's port must be adopted, and then [`Arena::reclaim_unknown`] called.
    ///
    /// # Errors
    /// `InvalidData` if they are not an arena and its record; else the kernel's error.
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

    /// Memory and record, only for the manager's next incarnation.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.memory.memory.fd(), self.owners.memory.fd()]
    }

    /// The number of buffers.
    pub fn total(&self) -> usize {
        self.owners.words.len()
    }

    /// Gives one of the manager's buffers to a port, in whose ring it is, not shown yet.
    /// The packet is consumed: its bytes are the port's from now on.
    #[inline]
    pub(crate) fn give(&mut self, packet: Packet, to: u16) {
        let (id, handle) = packet.into_id();
        self.handles.put(handle);
        self.owners.set(id, to);
    }

    /// Gives a free buffer to a port. `into_ring` puts it into the port's ring, not shown
    /// yet. False if it did not fit, or no buffer is free.
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

    /// Takes a buffer back that a port has sent. `None` if the port did not own it.
    pub(crate) fn take_back(
        &mut self,
        id: u32,
        from: u16,
        offset: usize,
        len: usize,
    ) -> Option<Packet> {
        if self.owners.get(id)? != from {
            return None;
        }
        self.owners.set(id, MANAGER);
        // SAFETY: the record says that the port had the buffer, and it has just given it
        // up through its ring, after which its process does not touch it (see the module:
        // trust); it is on no free list.
        let mut packet = unsafe { self.memory.packet(id, self.handles.take()) };
        if packet.set_range(offset, len) {
            Some(packet)
        } else {
            self.put(packet);
            None
        }
    }

    /// Frees a buffer that a port has returned. False if the port did not own it.
    pub(crate) fn free_from(&mut self, id: u32, from: u16) -> bool {
        if self.owners.get(id) != Some(from) {
            return false;
        }
        self.owners.set(id, MANAGER);
        self.free.push(id);
        true
    }

    /// True if a buffer is recorded as the port's.
    pub(crate) fn is_of(&self, id: u32, port: u16) -> bool {
        self.owners.get(id) == Some(port)
    }

    /// Frees all buffers of a dead port. Returns their number.
    pub(crate) fn reclaim(&mut self, from: u16) -> usize {
        self.reclaim_from(|owner| owner == from)
    }

    /// Frees all buffers of ports that are not among the `known`: a dead manager had not
    /// yet reported these ports, or not finished burying them. Their processes are dead.
    /// Returns the number.
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

    /// The number of a port's buffers.
    pub fn held_by(&self, port: u16) -> usize {
        self.owners.of(port).count()
    }
}

impl PacketPool for Arena {
    #[inline]
    fn take(&mut self) -> Option<Packet> {
        let id = self.free.pop()?;
        debug_assert_eq!(self.owners.get(id), Some(MANAGER));
        // SAFETY: a buffer on the free list has no user, and it has just left the list.
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
