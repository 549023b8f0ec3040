//! The manager's half of a virtual port.

use super::{
    AT_BUFFERS, AT_GUEST_SLEEPS, AT_HEARTBEAT, AT_HOST_SLEEPS, AT_IN_FLIGHT, AT_LAST_WORD, DONE,
    ENTRIES, FILL, FILL_TARGET, LAYOUT, LEN, RESERVE, RX, TX, pair, ring,
};
use crate::arena::Arena;
use crate::bell;
use crate::doorbell;
use crate::ring::{Consumer, Corrupt, Descriptor, Producer};
use crate::shared_memory::SharedMemory;
use crate::standby::Pair;
use holdfast_wire::Packet;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Losses at a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VportCounters {
    /// Frames for the runtime that were dropped because its ring was full.
    pub full: u64,
    /// Descriptors that did not belong to the runtime.
    pub refused: u64,
}

/// The rings, each from the manager's side.
struct Rings {
    rx: Producer<'static>,
    tx: Consumer<'static>,
    fill: Producer<'static>,
    done: Consumer<'static>,
}

/// The manager's half.
pub struct VportHost {
    /// The port's owner number in the arena's record; never the manager's own.
    id: u16,
    memory: SharedMemory,
    rx: Producer<'static>,
    tx: Consumer<'static>,
    fill: Producer<'static>,
    done: Consumer<'static>,
    outstanding: u32,
    host_sleeps: &'static AtomicU32,
    guest_sleeps: &'static AtomicU32,
    heartbeat: &'static AtomicU64,
    in_flight: [&'static AtomicU64; 2],
    last_word: &'static AtomicU64,
    wake_host: OwnedFd,
    wake_guest: OwnedFd,
    counters: VportCounters,
    broken: bool,
}

impl VportHost {
    /// A new port. `id` is unique among the ports that live, and not 0.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(id: u16, arena: &mut Arena) -> io::Result<VportHost> {
        assert_ne!(id, 0, "0 is the manager");
        let memory = SharedMemory::create("holdfast-vport", LEN)?;
        memory.word32(AT_BUFFERS).store(arena.total() as u32, Ordering::Relaxed);
        LAYOUT.mark(&memory, 0);
        let rings = Rings {
            rx: Producer::new(ring(&memory, RX)),
            tx: Consumer::new(ring(&memory, TX)),
            fill: Producer::new(ring(&memory, FILL)),
            done: Consumer::new(ring(&memory, DONE)),
        };
        let mut host = VportHost::new(id, memory, rings, bell::make()?, bell::make()?);
        host.supply(arena);
        Ok(host)
    }

    /// Adopts the port of a dead manager, by its [`VportHost::fds`]; its runtime may
    /// still run, and goes on. Descriptors that the manager had put into the rings are
    /// shown; those it had taken out are passed over. All ports must be adopted before
    /// the arena gives anything away.
    ///
    /// # Errors
    /// `InvalidData` if they are not a port of this version and arena, or its rings are
    /// corrupt: its runtime can then only be ended. In all other cases the kernel's
    /// error.
    pub fn adopt(
        id: u16,
        rings: OwnedFd,
        wake_host: OwnedFd,
        wake_guest: OwnedFd,
        arena: &Arena,
    ) -> io::Result<VportHost> {
        assert_ne!(id, 0, "0 is the manager");
        let memory = super::open(rings, arena.total() as u32)?;
        let corrupt = |_: Corrupt| {
            io::Error::new(io::ErrorKind::InvalidData, "the rings of the virtual port are spoilt")
        };
        let is_guests = |descriptor: Descriptor| arena.is_of(descriptor.buffer, id);
        let rings = Rings {
            rx: Producer::adopt(ring(&memory, RX), is_guests).map_err(corrupt)?,
            tx: Consumer::adopt(ring(&memory, TX), |descriptor| !is_guests(descriptor))
                .map_err(corrupt)?,
            fill: Producer::adopt(ring(&memory, FILL), is_guests).map_err(corrupt)?,
            done: Consumer::adopt(ring(&memory, DONE), |descriptor| !is_guests(descriptor))
                .map_err(corrupt)?,
        };
        let mut host = VportHost::new(id, memory, rings, wake_host, wake_guest);
        host.outstanding = arena.held_by(id) as u32;
        // The dead manager may have slept, or not have rung after showing something.
        host.awake();
        host.guest_sleeps.store(0, Ordering::Relaxed);
        bell::ring(&host.wake_guest);
        Ok(host)
    }

    fn new(
        id: u16,
        memory: SharedMemory,
        rings: Rings,
        wake_host: OwnedFd,
        wake_guest: OwnedFd,
    ) -> VportHost {
        VportHost {
            id,
            rx: rings.rx,
            tx: rings.tx,
            fill: rings.fill,
            done: rings.done,
            outstanding: 0,
            host_sleeps: memory.word32(AT_HOST_SLEEPS),
            guest_sleeps: memory.word32(AT_GUEST_SLEEPS),
            heartbeat: memory.word64(AT_HEARTBEAT),
            in_flight: [memory.word64(AT_IN_FLIGHT), memory.word64(AT_IN_FLIGHT + 8)],
            last_word: memory.word64(AT_LAST_WORD),
            wake_host,
            wake_guest,
            counters: VportCounters::default(),
            broken: false,
            memory,
        }
    }

    /// Descriptors for the runtime's process: rings, the manager's bell, the runtime's
    /// bell.
    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.memory.fd(), self.wake_host.as_fd(), self.wake_guest.as_fd()]
    }

    /// Readable when the runtime has woken a sleeping manager.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.wake_host.as_fd()
    }

    /// Counters.
    pub fn counters(&self) -> VportCounters {
        self.counters
    }

    /// The runtime's processes, if it has a standby.
    pub fn pair(&self) -> Pair {
        pair(&self.memory)
    }

    /// Turns of the runtime's loop so far; the count stands still if the runtime does.
    pub fn heartbeat(&self) -> u64 {
        self.heartbeat.load(Ordering::Relaxed)
    }

    /// The in-flight packet when the runtime died or stood still: its switch's node and
    /// its stamp. Returned once.
    pub fn take_in_flight(&self) -> Option<(u16, u64)> {
        let [stamp, switch] = self.in_flight;
        let stamp = stamp.swap(0, Ordering::Acquire);
        u16::try_from(switch.load(Ordering::Relaxed))
            .ok()
            .filter(|_| stamp != 0)
            .map(|switch| (switch, stamp))
    }

    /// The runtime's last word. The word outlives the runtime and its manager, and can be
    /// read for as long as this process lives.
    pub fn last_word(&self) -> &'static AtomicU64 {
        self.last_word
    }

    /// Puts a packet into the runtime's ring; [`VportHost::flush`] shows it. Gives it
    /// back if only the room reserved for messages is left: an overloaded runtime must
    /// still be heard and hear, or it would be given up.
    ///
    /// # Errors
    /// The packet.
    #[inline]
    pub fn send_data(&mut self, packet: Packet, arena: &mut Arena) -> Result<(), Packet> {
        if self.outstanding as usize + RESERVE >= ENTRIES || !self.rx.has_more_room_than(RESERVE) {
            self.counters.full += 1;
            return Err(packet);
        }
        self.send(packet, arena)
    }

    /// Puts a frame into the runtime's ring, also into the part reserved for messages:
    /// see [`VportHost::send_data`].
    ///
    /// # Errors
    /// The packet.
    #[inline]
    pub fn send(&mut self, packet: Packet, arena: &mut Arena) -> Result<(), Packet> {
        if self.broken || self.outstanding as usize >= ENTRIES || !matches!(self.rx.room(), Ok(1..))
        {
            self.counters.full += 1;
            return Err(packet);
        }
        let descriptor = Descriptor {
            buffer: packet.id(),
            offset: packet.offset() as u16,
            len: packet.len() as u16,
        };
        // The check above has found room.
        if !self.rx.push(descriptor) {
            return Err(packet);
        }
        arena.give(packet, self.id);
        self.outstanding += 1;
        Ok(())
    }

    /// Shows the runtime all sent frames, and wakes it if it sleeps. Without new frames
    /// it sleeps on.
    pub fn flush(&mut self) {
        if self.rx.has_hidden() {
            self.rx.publish();
            bell::wake(self.guest_sleeps, &self.wake_guest);
        }
    }

    /// Takes up to `max` frames that the runtime sent; frees the buffers that it has
    /// returned.
    pub fn receive(&mut self, max: usize, into: &mut Vec<Packet>, arena: &mut Arena) {
        let mut count = 0;
        while count < max && !self.broken {
            match self.tx.pop() {
                Ok(Some(descriptor)) => {
                    count += 1;
                    match arena.take_back(
                        descriptor.buffer,
                        self.id,
                        descriptor.offset as usize,
                        descriptor.len as usize,
                    ) {
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
        let mut missing = FILL_TARGET
            .saturating_sub(waiting as u32)
            .min(ENTRIES as u32 - self.outstanding.min(ENTRIES as u32));
        if missing < FILL_TARGET / 4 {
            return;
        }
        while missing > 0 {
            if !arena.give_free(self.id, |buffer| {
                self.fill.push(Descriptor { buffer, offset: 0, len: 0 })
            }) {
                break;
            }
            self.outstanding += 1;
            missing -= 1;
        }
        self.fill.publish();
    }

    /// The number of the runtime's frames to take.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.tx.waiting()
    }

    /// The number of frames that the runtime has not taken yet.
    pub fn unread(&mut self) -> usize {
        self.rx.publish();
        self.rx.unread().unwrap_or(0)
    }

    #[cfg(test)]
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding as usize
    }

    /// Prepares for the manager's sleep. False if something has come meanwhile: it must
    /// not sleep then.
    pub fn prepare_sleep(&mut self) -> bool {
        doorbell::may_sleep(self.host_sleeps, || self.tx.is_empty())
    }

    /// Ends the manager's sleep.
    pub fn awake(&mut self) {
        self.host_sleeps.store(0, Ordering::Relaxed);
        bell::drain(&self.wake_host);
    }

    /// Frees all buffers of a dead runtime. Receive the frames that it had sent before.
    pub fn reclaim(self, arena: &mut Arena) -> usize {
        arena.reclaim(self.id)
    }
}
