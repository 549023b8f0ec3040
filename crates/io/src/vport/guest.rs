//! The runtime's half of a virtual port.
//!
//! A turn moves the rings only by [`VportGuest::publish`]. If a turn is undone because
//! its process has died, the same frames come again, and no other process has seen its
//! output.

use super::{
    AT_GUEST_SLEEPS, AT_HEARTBEAT, AT_HOST_SLEEPS, AT_IN_FLIGHT, AT_LAST_WORD, CACHE, DONE, FILL,
    RX, TX, pair, ring,
};
use crate::arena::ArenaMemory;
use crate::bell;
use crate::doorbell;
use crate::ring::{Consumer, Descriptor, Producer};
use crate::standby::Pair;
use holdfast_wire::{Handles, Packet, PacketPool};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The runtime's half. This is also the runtime's packet pool.
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
    in_flight: [&'static AtomicU64; 2],
    last_word: &'static AtomicU64,
    wake_host: OwnedFd,
    wake_guest: OwnedFd,
    pair: Pair,
}

impl VportGuest {
    /// Attaches to a port by the manager's descriptors: the arena, then
    /// [`VportHost::fds`].
    ///
    /// # Errors
    /// `InvalidData` if they are not a port of this version and its arena; else the
    /// kernel's error.
    pub fn attach(
        arena: OwnedFd,
        port: OwnedFd,
        wake_host: OwnedFd,
        wake_guest: OwnedFd,
    ) -> io::Result<VportGuest> {
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
            in_flight: [memory.word64(AT_IN_FLIGHT), memory.word64(AT_IN_FLIGHT + 8)],
            last_word: memory.word64(AT_LAST_WORD),
            wake_host,
            wake_guest,
            pair: pair(&memory),
        })
    }

    /// Readable when the manager has woken a sleeping runtime.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.wake_guest.as_fd()
    }

    /// The counter of [`VportGuest::beat`].
    pub fn beats(&self) -> &'static AtomicU64 {
        self.heartbeat
    }

    /// Notes that the runtime's loop has turned.
    pub fn beat(&self) {
        self.heartbeat.fetch_add(1, Ordering::Relaxed);
    }

    /// Two words that outlive this process: the stamp of the in-flight packet, 0 for
    /// none, and the node of the switch that gave it.
    pub fn in_flight(&self) -> [&'static AtomicU64; 2] {
        self.in_flight
    }

    /// A word that outlives this process, for its last message; 0 at first.
    pub fn last_word(&self) -> &'static AtomicU64 {
        self.last_word
    }

    /// True if a frame has come.
    #[inline]
    pub fn has_input(&self) -> bool {
        self.rx.has_more()
    }

    /// Takes up to `max` frames.
    pub fn receive(&mut self, max: usize, into: &mut Vec<Packet>) {
        let before = into.len();
        while into.len() - before < max {
            // A runtime cannot mend a manager that corrupts rings: it sees an empty ring,
            // and is found to hang.
            let Ok(Some(descriptor)) = self.rx.pop() else { break };
            if descriptor.buffer >= self.arena.count() {
                continue;
            }
            // SAFETY: the manager recorded this buffer as the port's before it put the
            // descriptor into the ring, so no other process has it.
            let mut packet = unsafe { self.arena.packet(descriptor.buffer, self.handles.take()) };
            if packet.set_range(descriptor.offset as usize, descriptor.len as usize) {
                into.push(packet);
            } else {
                self.put(packet);
            }
        }
    }

    /// Puts frames into the ring; [`VportGuest::publish`] shows them.
    pub fn transmit(&mut self, frames: &mut Vec<Packet>) {
        for packet in frames.drain(..) {
            let descriptor = Descriptor {
                offset: packet.offset() as u16,
                len: packet.len() as u16,
                buffer: packet.id(),
            };
            let (id, handle) = packet.into_id();
            self.handles.put(handle);
            // The ring has room for every buffer that the manager ever handed out; if it
            // is full, the manager is broken.
            if !self.tx.push(descriptor) {
                self.cache.push(id);
            }
        }
    }

    /// Shows sent frames and returned buffers, releases the room of taken ones, and wakes
    /// a sleeping manager if there is something for it.
    pub fn publish(&mut self) {
        if self.rx.has_taken() {
            self.rx.release();
        }
        if self.fill.has_taken() {
            self.fill.release();
        }
        if self.done.has_hidden() {
            self.done.publish();
        }
        if self.tx.has_hidden() {
            self.tx.publish();
            bell::wake(self.host_sleeps, &self.wake_host);
        }
    }

    /// Takes over from a dead worker: its committed output is shown, and the manager
    /// woken in case it was not.
    pub fn take_over(&mut self) {
        // The in-flight packet died with the worker.
        self.in_flight[0].store(0, Ordering::Relaxed);
        self.publish();
        bell::wake(self.host_sleeps, &self.wake_host);
    }

    /// Removes the next frame unprocessed, and returns a copy of it.
    pub fn discard(&mut self) -> Option<Vec<u8>> {
        let mut frames = Vec::new();
        self.receive(1, &mut frames);
        let packet = frames.pop()?;
        let bytes = packet.bytes().to_vec();
        self.put(packet);
        Some(bytes)
    }

    /// The processes behind this half.
    pub fn pair(&self) -> Pair {
        self.pair
    }

    #[cfg(test)]
    pub(super) fn cached(&self) -> &[u32] {
        &self.cache
    }

    /// Prepares for the runtime's sleep. False if something has come meanwhile: it must
    /// not sleep then.
    pub fn prepare_sleep(&mut self) -> bool {
        doorbell::may_sleep(self.guest_sleeps, || self.rx.is_empty())
    }

    /// Ends the runtime's sleep.
    pub fn awake(&mut self) {
        self.guest_sleeps.store(0, Ordering::Relaxed);
        bell::drain(&self.wake_guest);
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
                self.cache.pop()?
            }
        };
        // SAFETY: a buffer of the cache came from the manager through `fill` or `rx`, is
        // recorded as this port's, and has just left the cache.
        Some(unsafe { self.arena.packet(id, self.handles.take()) })
    }

    #[inline]
    fn put(&mut self, packet: Packet) {
        let (id, handle) = packet.into_id();
        self.handles.put(handle);
        if self.cache.len() < CACHE || !self.done.push(Descriptor { buffer: id, offset: 0, len: 0 })
        {
            self.cache.push(id);
        }
    }

    fn free(&self) -> usize {
        self.cache.len()
    }
}
