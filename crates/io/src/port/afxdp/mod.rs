//! AF_XDP: any Linux interface whose driver runs XDP programs. Faster than AF_PACKET; the
//! driver stays the kernel's.
//!
//! Frames of every receive queue come through a socket of that queue; all frames leave by
//! the first one. The program that directs them is attached in the driver's own mode or
//! not at all: without it, AF_PACKET is as fast and sees offloads.
//!
//! XDP does not report the work that an offload left. On a virtual Ethernet pair the
//! other end's packets come whole (the kernel stops cutting late while a program is
//! attached) but with the pseudo-header's sum in place of a checksum. A packet with
//! exactly this sum is completed; one damaged packet in 65,536 would look the same.

mod program;
mod rings;
mod socket;

use super::{Losses, Port, PortError, device, segments};
use holdfast_protection::Released;
use holdfast_wire::header::Mac;
use holdfast_wire::{DropCounters, DropReason, Packet, PacketPool};
use program::Program;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use socket::Socket;
use std::io;

/// Maximum number of queues of a port; the operator of a device with more is told to use
/// fewer.
const MAX_QUEUES: u32 = 64;

/// An AF_XDP port; see the module.
pub struct AfXdp {
    name: String,
    index: u32,
    mac: Mac,
    mtu: u16,
    up: bool,
    // Dropped before the sockets in the program's map.
    _program: Program,
    sockets: Vec<Socket>,
    next: usize,
    readable: OwnedFd,
    _promiscuous: OwnedFd,
    drops: DropCounters,
}

impl AfXdp {
    /// Opens a Linux interface.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn open(name: &str) -> Result<AfXdp, PortError> {
        let device = device::find(name)?;
        let what = format!("AF_XDP on `{name}`");
        let refused = |error: io::Error| device::refused(&what, &error);
        let queues = receive_queues(name);
        if queues > MAX_QUEUES {
            let remedy =
                format!("`ethtool -L {name} combined {MAX_QUEUES}` leaves as many as are served");
            return Err(PortError::Unavailable(format!(
                "{what}: {queues} receive queues; {remedy}"
            )));
        }
        let program = Program::attach(device.index, queues).map_err(refused)?;
        let readable =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| refused(error.into()))?;
        let mut sockets = Vec::with_capacity(queues as usize);
        for queue in 0..queues {
            let socket =
                Socket::bind(device.index, queue, usize::from(device.mtu) + 22).map_err(refused)?;
            program.set_socket(queue, socket.fd()).map_err(refused)?;
            epoll::add(
                &readable,
                socket.fd(),
                epoll::EventData::new_u64(queue.into()),
                epoll::EventFlags::IN,
            )
            .map_err(|error| refused(error.into()))?;
            sockets.push(socket);
        }
        Ok(AfXdp {
            name: name.to_owned(),
            index: device.index,
            mac: device.mac,
            mtu: device.mtu,
            up: true,
            _program: program,
            sockets,
            next: 0,
            readable,
            _promiscuous: device::promiscuous(&device).map_err(refused)?,
            drops: DropCounters::default(),
        })
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Received frames among these losses for which a socket had no room.
    pub(super) fn lost_at_sockets(losses: &Losses) -> u64 {
        socket::RECEIVE_COUNTERS.iter().filter_map(|loss| losses.get(loss)).sum()
    }

    /// Continues earlier counts.
    pub(super) fn adopt(&mut self, drops: &DropCounters) {
        self.drops.add(drops);
    }
}

fn receive_queues(name: &str) -> u32 {
    let queues = std::fs::read_dir(format!("/sys/class/net/{name}/queues"));
    let count = queues.map_or(0, |queues| {
        queues
            .flatten()
            .filter(|queue| queue.file_name().to_string_lossy().starts_with("rx-"))
            .count()
    });
    (count as u32).max(1)
}

impl Port for AfXdp {
    fn name(&self) -> &str {
        &self.name
    }

    fn driver(&self) -> &'static str {
        "afxdp"
    }

    fn mac(&self) -> Mac {
        self.mac
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn is_up(&self) -> bool {
        self.up
    }

    fn receive(&mut self, max: usize, pool: &mut dyn PacketPool, into: &mut Vec<Packet>) {
        let before = into.len();
        for _ in 0..self.sockets.len() {
            let taken = into.len() - before;
            if taken >= max {
                break;
            }
            self.sockets[self.next].receive(max - taken, pool, into, &mut self.drops);
            self.next = (self.next + 1) % self.sockets.len();
        }
        for packet in &mut into[before..] {
            segments::complete_partial_checksum(packet);
        }
    }

    fn transmit(&mut self, frames: &mut Vec<Released<Packet>>, pool: &mut dyn PacketPool) {
        let socket = &mut self.sockets[0];
        for frame in frames.drain(..) {
            if let Err(reason) = socket.send(frame.get().bytes()) {
                self.drops.count(reason);
            }
            pool.put(frame.into_inner());
        }
        self.up = match socket.flush() {
            Ok(()) => true,
            Err(_) => {
                self.drops.count(DropReason::PortDown);
                false
            }
        };
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.readable.as_fd())
    }

    fn drops(&self) -> &DropCounters {
        &self.drops
    }

    fn take_losses(&mut self, into: &mut Losses) {
        self.sockets.iter_mut().for_each(|socket| socket.take_losses(into));
    }
}
