//! The arena: the one place where packet bytes live, shared by the processes of a host.
//!
//! Theory of operation. The manager creates it and is the only one to know who has which buffer: itself (free, or in its own hands) or
//! one virtual port. A buffer's bytes are touched only by whoever has it; it changes hands through the rings, whose release and acquire order
//! the accesses. A process may die at any instruction: what the manager has recorded for its port comes back when it is dead.

use crate::shared_memory::SharedMemory;
use holdfast_wire::{BUFFER_LEN, HEADROOM, Handle, Handles, Packet, PacketPool};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;

/// The mapping, with as many buffers as fit.
pub(crate) struct ArenaMemory {
    memory: SharedMemory,
    count: u32,
}

impl ArenaMemory {
    pub(crate) fn open(fd: OwnedFd) -> io::Result<ArenaMemory> {
        let memory = SharedMemory::open(fd)?;
        let count = (memory.len() / BUFFER_LEN) as u32;
        Ok(ArenaMemory { memory, count })
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

/// The manager's side: all buffers, and who has them.
pub struct Arena {
    memory: Arc<ArenaMemory>,
    free: Vec<u32>,
    handles: Handles,
    owners: Vec<u16>,
}

impl Arena {
    /// A new arena of `count` buffers of [`BUFFER_LEN`] bytes.
    ///
    /// # Errors
    /// What the kernel says: usually that there is not enough memory.
    pub fn create(count: u32) -> io::Result<Arena> {
        let memory = SharedMemory::create("holdfast-arena", count as usize * BUFFER_LEN)?;
        let memory = Arc::new(ArenaMemory { memory, count });
        Ok(Arena {
            memory,
            free: (0..count).rev().collect(),
            handles: Handles::new(count as usize),
            owners: vec![MANAGER; count as usize],
        })
    }

    /// The memory, to pass to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.memory.fd()
    }

    /// Buffers altogether.
    pub fn total(&self) -> usize {
        self.owners.len()
    }

    /// Gives a buffer of the manager's to a port. The packet is consumed: its bytes are the port's from now on.
    pub(crate) fn give(&mut self, packet: Packet, to: u16) -> u32 {
        let (id, handle) = packet.into_id();
        self.handles.put(handle);
        self.owners[id as usize] = to;
        id
    }

    /// Takes a free buffer for a port.
    pub(crate) fn give_free(&mut self, to: u16) -> Option<u32> {
        let id = self.free.pop()?;
        self.owners[id as usize] = to;
        Some(id)
    }

    /// Takes a buffer back from a port that says it gave it. `None` if it never had it.
    pub(crate) fn take_back(&mut self, id: u32, from: u16, offset: usize, len: usize) -> Option<Packet> {
        if *self.owners.get(id as usize)? != from {
            return None;
        }
        self.owners[id as usize] = MANAGER;
        // SAFETY: the record says that the port had the buffer, and it has just given it up through its ring; it is on no free list. A guest that
        // goes on writing into a buffer that it gave up can spoil that packet's bytes, no more: they are checked like any bytes from outside.
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
        if self.owners.get(id as usize) != Some(&from) {
            return false;
        }
        self.owners[id as usize] = MANAGER;
        self.free.push(id);
        true
    }

    /// Frees everything that a dead port had. Returns how many.
    pub(crate) fn reclaim(&mut self, from: u16) -> usize {
        let mut count = 0;
        for id in 0..self.owners.len() {
            if self.owners[id] == from {
                self.owners[id] = MANAGER;
                self.free.push(id as u32);
                count += 1;
            }
        }
        count
    }

    /// Buffers that a port has.
    pub fn held_by(&self, port: u16) -> usize {
        self.owners.iter().filter(|owner| **owner == port).count()
    }
}

impl PacketPool for Arena {
    #[inline]
    fn take(&mut self) -> Option<Packet> {
        let id = self.free.pop()?;
        debug_assert_eq!(self.owners[id as usize], MANAGER);
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
