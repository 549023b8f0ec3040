//! The runtime's half of a virtual port.

use super::{AT_GUEST_SLEEPS, AT_HANDS, AT_HEARTBEAT, AT_HOST_SLEEPS, CACHE, DONE, FILL, RX, TX, drain, ring, wake};
use crate::arena::ArenaMemory;
use crate::doorbell;
use crate::ring::{Consumer, Descriptor, Producer};
use holdfast_wire::{Handles, Packet, PacketPool};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The runtime's half. It is also the runtime's packet pool.
pub struct VportGuest {
    arena: ArenaMemory,
    rx: Consumer<'static>,
    tx: Producer<'static>,
    fill: Consumer<'static>,
    done: Producer<'static>,
    cache: Vec<u32>,
    handles: Handles,
    host_sleeps: &'static AtomicU32,
    guest_sleeps: &'static AtomicU32,
    heartbeat: &'static AtomicU64,
    hands: [&'static AtomicU64; 2],
    wake_host: OwnedFd,
    wake_guest: OwnedFd,
    gave_back: bool,
}

impl VportGuest {
    /// Attaches to a port by the descriptors that the manager passed: the arena, then those of [`VportHost::fds`].
    ///
    /// # Errors
    /// `InvalidData` if they are not a port of this version and its arena; else what the kernel says.
    pub fn attach(arena: OwnedFd, port: OwnedFd, wake_host: OwnedFd, wake_guest: OwnedFd) -> io::Result<VportGuest> {
        let arena = ArenaMemory::open(arena)?;
        let memory = super::open(port, arena.count())?;
        Ok(VportGuest {
            arena,
            rx: Consumer::new(ring(&memory, RX)),
            tx: Producer::new(ring(&memory, TX)),
            fill: Consumer::new(ring(&memory, FILL)),
            done: Producer::new(ring(&memory, DONE)),
            cache: Vec::with_capacity(CACHE * 2),
            handles: Handles::new(CACHE * 2),
            host_sleeps: memory.word32(AT_HOST_SLEEPS),
            guest_sleeps: memory.word32(AT_GUEST_SLEEPS),
            heartbeat: memory.word64(AT_HEARTBEAT),
            hands: [memory.word64(AT_HANDS), memory.word64(AT_HANDS + 8)],
            wake_host,
            wake_guest,
            gave_back: false,
        })
    }

    /// Readable when the manager has something for a runtime that sleeps.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.wake_guest.as_fd()
    }

    /// Says that the runtime's loop turns.
    pub fn beat(&self) {
        self.heartbeat.fetch_add(1, Ordering::Relaxed);
    }

    /// Two words that outlive this process: the stamp of the packet that functions have in their hands, 0 for none, and the node of the switch that gave it.
    pub fn hands(&self) -> [&'static AtomicU64; 2] {
        self.hands
    }

    /// Takes up to `max` frames.
    pub fn receive(&mut self, max: usize, into: &mut Vec<Packet>) {
        let before = into.len();
        while into.len() - before < max {
            // A manager gone mad is nothing that a runtime can mend: it sees an empty ring, and is declared hung.
            let Ok(Some(descriptor)) = self.rx.pop() else { break };
            if descriptor.buffer >= self.arena.count() {
                continue;
            }
            // SAFETY: the manager recorded this buffer as the port's before it put the descriptor into the ring, so nobody else has it.
            let mut packet = unsafe { self.arena.packet(descriptor.buffer, self.handles.take()) };
            if packet.set_range(descriptor.offset as usize, descriptor.len as usize) {
                into.push(packet);
            } else {
                self.put(packet);
            }
        }
        if into.len() > before {
            self.rx.release();
        }
    }

    /// Sends frames, shows the buffers given back, and wakes the manager if it sleeps.
    pub fn transmit(&mut self, frames: &mut Vec<Packet>) {
        let has_frames = !frames.is_empty();
        for packet in frames.drain(..) {
            let descriptor = Descriptor { offset: packet.offset() as u16, len: packet.len() as u16, buffer: packet.id() };
            let (id, handle) = packet.into_id();
            self.handles.put(handle);
            // The ring has room for every buffer that the manager ever hands out; if it does not, the manager is gone.
            if !self.tx.push(descriptor) {
                self.cache.push(id);
            }
        }
        if has_frames {
            self.tx.publish();
        }
        if self.gave_back {
            self.gave_back = false;
            self.done.publish();
        }
        if has_frames {
            wake(self.host_sleeps, &self.wake_host);
        }
    }

    #[cfg(test)]
    pub(super) fn cached(&self) -> &[u32] {
        &self.cache
    }

    /// The runtime is about to sleep. False if something has come in the meantime: then it must not.
    pub fn prepare_sleep(&mut self) -> bool {
        doorbell::may_sleep(self.guest_sleeps, || self.rx.is_empty())
    }

    /// The runtime is awake again.
    pub fn awake(&mut self) {
        self.guest_sleeps.store(0, Ordering::Relaxed);
        drain(&self.wake_guest);
    }
}

impl PacketPool for VportGuest {
    #[inline]
    fn take(&mut self) -> Option<Packet> {
        let id = match self.cache.pop() {
            Some(id) => id,
            None => {
                while self.cache.len() < CACHE / 2 {
                    let Ok(Some(descriptor)) = self.fill.pop() else { break };
                    if descriptor.buffer < self.arena.count() {
                        self.cache.push(descriptor.buffer);
                    }
                }
                self.fill.release();
                self.cache.pop()?
            }
        };
        // SAFETY: a buffer of the cache came from the manager through `fill` or `rx`, is recorded as this port's, and has just left the cache.
        Some(unsafe { self.arena.packet(id, self.handles.take()) })
    }

    #[inline]
    fn put(&mut self, packet: Packet) {
        let (id, handle) = packet.into_id();
        self.handles.put(handle);
        if self.cache.len() < CACHE || !self.done.push(Descriptor { buffer: id, offset: 0, len: 0 }) {
            self.cache.push(id);
        } else {
            self.gave_back = true;
        }
    }

    fn free(&self) -> usize {
        self.cache.len()
    }
}
