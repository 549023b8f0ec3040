//! A virtual port: the four rings between the manager and one runtime.
//!
//! Theory of operation. `rx` carries frames to the runtime, `tx` frames from it, `fill` free buffers to it, `done` buffers that it is through
//! with. The manager hands out no more buffers than a ring has entries, so the runtime's rings never overflow. A side that is about to
//! sleep says so in a word of its own and looks once more; a side that has put something in looks at that word and, if it is
//! set, writes to an eventfd. Whatever comes out of the runtime's rings is checked against the manager's own record.

use crate::arena::{Arena, ArenaMemory};
use crate::doorbell;
use crate::ring::{Consumer, Descriptor, Memory, Producer};
use crate::shared_memory::SharedMemory;
use holdfast_wire::{Handles, Packet, PacketPool};
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const MAGIC: u64 = 0x686f_6c64_6661_7374;
/// Changes with the layout below.
const VERSION: u32 = 1;
/// Entries of every ring, and buffers that a runtime may have at a time.
const ENTRIES: usize = 8192;
/// Free buffers that a runtime is kept supplied with.
const FILL_TARGET: u32 = 1024;
/// Buffers that a runtime keeps for itself instead of giving them back at once.
const CACHE: usize = 256;

const HEADER_LEN: usize = 4096;
const RING_LEN: usize = 128 + ENTRIES * 8;
const LEN: usize = HEADER_LEN + 4 * RING_LEN;

const RX: usize = 0;
const TX: usize = 1;
const FILL: usize = 2;
const DONE: usize = 3;

const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 8;
const AT_BUFFERS: usize = 12;
const AT_HOST_SLEEPS: usize = 64;
const AT_GUEST_SLEEPS: usize = 128;
const AT_HEARTBEAT: usize = 192;

fn ring(memory: &SharedMemory, which: usize) -> Memory<'static> {
    let at = HEADER_LEN + which * RING_LEN;
    Memory { tail: memory.word32(at), head: memory.word32(at + 64), entries: memory.words64(at + 128, ENTRIES) }
}

/// Wakes the other side if it sleeps.
fn wake(sleeps: &AtomicU32, fd: &OwnedFd) {
    if doorbell::must_ring(sleeps) {
        // A full counter means that it is being woken already.
        let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
    }
}

fn drain(fd: &OwnedFd) {
    let mut count = [0u8; 8];
    let _ = rustix::io::read(fd, &mut count);
}

/// What happened at a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VportCounters {
    /// Frames for the runtime that found its ring full.
    pub full: u64,
    /// Descriptors that the runtime had no right to.
    pub refused: u64,
}

/// The manager's half.
pub struct VportHost {
    /// Who the port is in the arena's record; never the manager's own number.
    id: u16,
    memory: SharedMemory,
    rx: Producer<'static>,
    tx: Consumer<'static>,
    fill: Producer<'static>,
    done: Consumer<'static>,
    outstanding: u32,
    supplied: u32,
    host_sleeps: &'static AtomicU32,
    guest_sleeps: &'static AtomicU32,
    heartbeat: &'static AtomicU64,
    wake_host: OwnedFd,
    wake_guest: OwnedFd,
    counters: VportCounters,
    broken: bool,
}

impl VportHost {
    /// A new port. `id` is unique among the ports that live, and not 0.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create(id: u16, arena: &mut Arena) -> io::Result<VportHost> {
        assert_ne!(id, 0, "0 is the manager");
        let memory = SharedMemory::create("holdfast-vport", LEN)?;
        memory.word32(AT_VERSION).store(VERSION, Ordering::Relaxed);
        memory.word32(AT_BUFFERS).store(arena.total() as u32, Ordering::Relaxed);
        memory.word64(AT_MAGIC).store(MAGIC, Ordering::Release);
        let eventfd = || rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let mut host = VportHost {
            id,
            rx: Producer::new(ring(&memory, RX)),
            tx: Consumer::new(ring(&memory, TX)),
            fill: Producer::new(ring(&memory, FILL)),
            done: Consumer::new(ring(&memory, DONE)),
            outstanding: 0,
            supplied: 0,
            host_sleeps: memory.word32(AT_HOST_SLEEPS),
            guest_sleeps: memory.word32(AT_GUEST_SLEEPS),
            heartbeat: memory.word64(AT_HEARTBEAT),
            wake_host: eventfd()?,
            wake_guest: eventfd()?,
            counters: VportCounters::default(),
            broken: false,
            memory,
        };
        host.supply(arena);
        Ok(host)
    }

    /// What the runtime's process needs: rings, the descriptor that wakes the manager, the one that wakes the runtime.
    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.memory.fd(), self.wake_host.as_fd(), self.wake_guest.as_fd()]
    }

    /// Readable when the runtime has something for a manager that sleeps.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.wake_host.as_fd()
    }

    /// Counters.
    pub fn counters(&self) -> VportCounters {
        self.counters
    }

    /// Turns of the runtime's loop so far: it stands still if the runtime does.
    pub fn heartbeat(&self) -> u64 {
        self.heartbeat.load(Ordering::Relaxed)
    }

    /// Puts a frame into the runtime's ring; [`VportHost::flush`] shows it. Gives it back if there is no room.
    ///
    /// # Errors
    /// The packet.
    #[inline]
    pub fn send(&mut self, packet: Packet, arena: &mut Arena) -> Result<(), Packet> {
        if self.broken || self.outstanding as usize >= ENTRIES || !matches!(self.rx.room(), Ok(1..)) {
            self.counters.full += 1;
            return Err(packet);
        }
        let descriptor = Descriptor { buffer: packet.id(), offset: packet.offset() as u16, len: packet.len() as u16 };
        arena.give(packet, self.id);
        self.outstanding += 1;
        let pushed = self.rx.push(descriptor);
        debug_assert!(pushed);
        Ok(())
    }

    /// Shows the runtime what was sent, and wakes it if it sleeps.
    pub fn flush(&mut self) {
        self.rx.publish();
        wake(self.guest_sleeps, &self.wake_guest);
    }

    /// Takes up to `max` frames that the runtime sent; buffers that it is through with become free.
    pub fn receive(&mut self, max: usize, into: &mut Vec<Packet>, arena: &mut Arena) {
        let mut count = 0;
        while count < max && !self.broken {
            match self.tx.pop() {
                Ok(Some(descriptor)) => {
                    count += 1;
                    match arena.take_back(descriptor.buffer, self.id, descriptor.offset as usize, descriptor.len as usize) {
                        Some(packet) => {
                            self.outstanding -= 1;
                            into.push(packet);
                        }
                        None => self.counters.refused += 1,
                    }
                }
                Ok(None) => break,
                Err(_) => self.broken = true,
            }
        }
        if count > 0 {
            self.tx.release();
        }
        let mut freed = 0;
        while !self.broken && freed < ENTRIES {
            match self.done.pop() {
                Ok(Some(descriptor)) => {
                    freed += 1;
                    if arena.free_from(descriptor.buffer, self.id) {
                        self.outstanding -= 1;
                    } else {
                        self.counters.refused += 1;
                    }
                }
                Ok(None) => break,
                Err(_) => self.broken = true,
            }
        }
        if freed > 0 {
            self.done.release();
        }
        self.supply(arena);
    }

    /// Keeps the runtime supplied with free buffers.
    fn supply(&mut self, arena: &mut Arena) {
        let Ok(waiting) = self.fill.unread() else {
            self.broken = true;
            return;
        };
        let mut missing = FILL_TARGET.saturating_sub(waiting as u32).min(ENTRIES as u32 - self.outstanding.min(ENTRIES as u32));
        if missing < FILL_TARGET / 4 {
            return;
        }
        while missing > 0 {
            let Some(buffer) = arena.give_free(self.id) else { break };
            if !self.fill.push(Descriptor { buffer, offset: 0, len: 0 }) {
                arena.free_from(buffer, self.id);
                break;
            }
            self.outstanding += 1;
            self.supplied += 1;
            missing -= 1;
        }
        self.fill.publish();
    }

    /// Frames that the runtime has not taken yet.
    pub fn unread(&mut self) -> usize {
        self.rx.publish();
        self.rx.unread().unwrap_or(0)
    }

    /// The manager is about to sleep. False if something has come in the meantime: then it must not.
    pub fn prepare_sleep(&mut self) -> bool {
        doorbell::may_sleep(self.host_sleeps, || self.tx.is_empty())
    }

    /// The manager is awake again.
    pub fn awake(&mut self) {
        self.host_sleeps.store(0, Ordering::Relaxed);
        drain(&self.wake_host);
    }

    /// The runtime's process is dead: everything that it had is free again. Frames that it sent before should be received first.
    pub fn reclaim(self, arena: &mut Arena) -> usize {
        arena.reclaim(self.id)
    }
}

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
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
        let arena = ArenaMemory::open(arena)?;
        let memory = SharedMemory::open(port)?;
        if memory.len() != LEN || memory.word64(AT_MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(invalid("this is not a virtual port"));
        }
        if memory.word32(AT_VERSION).load(Ordering::Relaxed) != VERSION {
            return Err(invalid("the manager is of another version"));
        }
        if memory.word32(AT_BUFFERS).load(Ordering::Relaxed) != arena.count() {
            return Err(invalid("the port belongs to another arena"));
        }
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
