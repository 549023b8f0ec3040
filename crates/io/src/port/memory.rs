//! A port in memory: each end receives what the other transmits. For tests, and for
//! benchmarks without a device.

use super::Port;
use holdfast_protection::Released;
use holdfast_wire::header::Mac;
use holdfast_wire::{DropCounters, DropReason, Packet, PacketPool};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of frames that wait in one direction.
const QUEUE: usize = 4096;

/// A direction: frames, and a descriptor that is readable while frames wait.
struct Queue {
    frames: Mutex<VecDeque<Vec<u8>>>,
    readable: OwnedFd,
}

impl Queue {
    fn new() -> io::Result<Arc<Queue>> {
        let readable = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Queue { frames: Mutex::new(VecDeque::with_capacity(QUEUE)), readable }))
    }

    /// False if the queue is full.
    fn push(&self, frame: Vec<u8>) -> bool {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        if frames.len() == QUEUE {
            return false;
        }
        frames.push_back(frame);
        let _ = rustix::io::write(&self.readable, &1u64.to_ne_bytes());
        true
    }

    fn pop(&self) -> Option<Vec<u8>> {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let frame = frames.pop_front();
        if frames.is_empty() {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.readable, &mut count);
        }
        frame
    }
}

/// The box's end.
pub struct MemoryPort {
    name: String,
    mac: Mac,
    mtu: u16,
    incoming: Arc<Queue>,
    outgoing: Arc<Queue>,
    drops: DropCounters,
}

/// The network's end.
pub struct MemoryLink {
    to_port: Arc<Queue>,
    from_port: Arc<Queue>,
}

impl MemoryPort {
    /// A port and its network end.
    ///
    /// # Errors
    /// If no descriptor is free.
    pub fn new(name: &str, mac: Mac, mtu: u16) -> io::Result<(MemoryPort, MemoryLink)> {
        let (incoming, outgoing) = (Queue::new()?, Queue::new()?);
        let link = MemoryLink { to_port: incoming.clone(), from_port: outgoing.clone() };
        Ok((
            MemoryPort {
                name: name.to_owned(),
                mac,
                mtu,
                incoming,
                outgoing,
                drops: DropCounters::default(),
            },
            link,
        ))
    }
}

impl MemoryLink {
    /// Sends a frame to the port. False if its queue is full.
    pub fn send(&self, frame: &[u8]) -> bool {
        self.to_port.push(frame.to_vec())
    }

    /// The next transmitted frame.
    pub fn receive(&self) -> Option<Vec<u8>> {
        self.from_port.pop()
    }
}

impl Port for MemoryPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn driver(&self) -> &'static str {
        "memory"
    }

    fn mac(&self) -> Mac {
        self.mac
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn is_up(&self) -> bool {
        true
    }

    fn receive(&mut self, max: usize, pool: &mut dyn PacketPool, into: &mut Vec<Packet>) {
        for _ in 0..max {
            let Some(mut packet) = pool.take() else { return };
            let Some(frame) = self.incoming.pop() else {
                pool.put(packet);
                return;
            };
            packet.clear();
            if packet.copy_from(&frame) {
                into.push(packet);
            } else {
                self.drops.count(DropReason::FrameTooLarge);
                pool.put(packet);
            }
        }
    }

    fn transmit(&mut self, frames: &mut Vec<Released<Packet>>, pool: &mut dyn PacketPool) {
        for frame in frames.drain(..) {
            if !self.outgoing.push(frame.get().bytes().to_vec()) {
                self.drops.count(DropReason::QueueFull);
            }
            pool.put(frame.into_inner());
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.incoming.readable.as_fd())
    }

    fn drops(&self) -> &DropCounters {
        &self.drops
    }
}
