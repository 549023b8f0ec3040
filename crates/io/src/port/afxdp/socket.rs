//! An AF_XDP socket: a receive queue of a device, with frames of its own.

use super::rings::{Mapping, Ring};
use crate::port::losses::lose;
use crate::port::{Loss, Losses};
use holdfast_wire::{DropCounters, DropReason, HEADROOM, Packet, PacketPool};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io;

/// Entries of each ring.
const RING: u32 = 2048;
/// Frames to receive, and frames to send.
const FRAMES: u64 = 2 * RING as u64;
/// Maximum number of calls until the device has taken one burst.
const KICKS: u32 = 64;

/// A socket; see the module.
pub(super) struct Socket {
    // Dropped in this order: the rings are unmapped before the socket is closed, and the
    // frames go last.
    fill: Ring<u64>,
    completion: Ring<u64>,
    receive: Ring<libc::xdp_desc>,
    transmit: Ring<libc::xdp_desc>,
    fd: OwnedFd,
    frames: Mapping,
    frame_len: u64,
    free: Vec<u64>,
    counted: [u64; COUNTERS.len()],
}

/// The kernel's counters for frames that are lost at a socket. Frames lost to an empty
/// fill ring are among the dropped ones if frames are copied, and among the device's if
/// they are not.
const COUNTERS: [Loss; 3] = [Loss::XdpDropped, Loss::XdpRingFull, Loss::XdpInvalid];
/// Counters for lost frames that came in.
pub(super) const RECEIVE_COUNTERS: [Loss; 2] = [COUNTERS[0], COUNTERS[1]];

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set<T>(fd: BorrowedFd<'_>, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the pointer is to a value of the length given; the kernel copies it.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            name,
            (&raw const *value).cast(),
            size_of::<T>() as u32,
        )
    })
}

impl Socket {
    /// Binds to a queue of a device whose frames are at most `longest` bytes.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn bind(device: u32, queue: u32, longest: usize) -> io::Result<Socket> {
        // SAFETY: no pointers.
        let raw = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        check(raw)?;
        // SAFETY: the kernel has just given this descriptor to us.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        // The kernel keeps XDP_PACKET_HEADROOM (256 bytes) in front of each frame.
        let frame_len: u64 = if longest + 256 <= 2048 { 2048 } else { 4096 };
        let frames = Mapping::anonymous((FRAMES * frame_len) as usize)?;
        let registration = libc::xdp_umem_reg {
            addr: frames.address(),
            len: frames.len() as u64,
            chunk_size: frame_len as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        let socket = fd.as_fd();
        set(socket, libc::XDP_UMEM_REG, &registration)?;
        let rings = [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ];
        for name in rings {
            set(socket, name, &RING)?;
        }
        // SAFETY: all zero is a valid value of this plain structure.
        let mut offsets: libc::xdp_mmap_offsets = unsafe { core::mem::zeroed() };
        let mut len = size_of::<libc::xdp_mmap_offsets>() as libc::socklen_t;
        // SAFETY: the pointers are to a structure and its length, which the kernel fills.
        check(unsafe {
            libc::getsockopt(
                raw,
                libc::SOL_XDP,
                libc::XDP_MMAP_OFFSETS,
                (&raw mut offsets).cast(),
                &raw mut len,
            )
        })?;
        let mut fill = Ring::map(socket, libc::XDP_UMEM_PGOFF_FILL_RING as i64, &offsets.fr, RING)?;
        let completion =
            Ring::map(socket, libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64, &offsets.cr, RING)?;
        let receive = Ring::map(socket, libc::XDP_PGOFF_RX_RING, &offsets.rx, RING)?;
        let transmit = Ring::map(socket, libc::XDP_PGOFF_TX_RING, &offsets.tx, RING)?;
        for number in 0..u64::from(RING) {
            fill.push(number * frame_len);
        }
        fill.publish_pushed();
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: device,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        // SAFETY: the pointer is to a sockaddr_xdp of the length given.
        check(unsafe {
            libc::bind(raw, (&raw const address).cast(), size_of::<libc::sockaddr_xdp>() as u32)
        })?;
        let free = (u64::from(RING)..FRAMES).map(|number| number * frame_len).collect();
        Ok(Socket {
            fill,
            completion,
            receive,
            transmit,
            fd,
            frames,
            frame_len,
            free,
            counted: [0; COUNTERS.len()],
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes up to `max` received frames.
    pub(super) fn receive(
        &mut self,
        max: usize,
        pool: &mut dyn PacketPool,
        into: &mut Vec<Packet>,
        drops: &mut DropCounters,
    ) {
        let mut count = 0;
        while count < max {
            let Some(mut packet) = pool.take() else { break };
            let Some(descriptor) = self.receive.pop() else {
                pool.put(packet);
                break;
            };
            count += 1;
            packet.clear();
            let len = descriptor.len as usize;
            let fits = match self.frames.frame(descriptor.addr, len) {
                Some(bytes) if len <= packet.buffer_mut().len() - HEADROOM => {
                    packet.copy_from(bytes)
                }
                _ => false,
            };
            if fits {
                into.push(packet);
            } else {
                drops.count(DropReason::FrameTooLarge);
                pool.put(packet);
            }
            // The ring has as many entries as there are receive frames: it cannot be
            // full.
            self.fill.push(descriptor.addr / self.frame_len * self.frame_len);
        }
        if count > 0 {
            self.receive.publish_popped();
            self.fill.publish_pushed();
        }
        if self.fill.wants_wakeup() {
            // SAFETY: no buffer is given.
            unsafe {
                libc::recvfrom(
                    self.fd.as_raw_fd(),
                    core::ptr::null_mut(),
                    0,
                    libc::MSG_DONTWAIT,
                    core::ptr::null_mut(),
                    core::ptr::null_mut(),
                )
            };
        }
    }

    /// Puts a frame into the device's ring; [`Socket::flush`] sends it.
    ///
    /// # Errors
    /// The reason why it cannot be sent.
    pub(super) fn send(&mut self, frame: &[u8]) -> Result<(), DropReason> {
        if frame.len() as u64 > self.frame_len {
            return Err(DropReason::FrameTooLarge);
        }
        self.reclaim();
        let address = self.free.pop().ok_or(DropReason::QueueFull)?;
        let descriptor = libc::xdp_desc { addr: address, len: frame.len() as u32, options: 0 };
        match self.frames.frame(address, frame.len()) {
            Some(bytes) => bytes.copy_from_slice(frame),
            None => return Err(DropReason::FrameTooLarge),
        }
        if !self.transmit.push(descriptor) {
            self.free.push(address);
            return Err(DropReason::QueueFull);
        }
        Ok(())
    }

    /// Adds the kernel's losses since the last call.
    pub(super) fn take_losses(&mut self, into: &mut Losses) {
        let Ok(all) = rustix::net::sockopt::xdp_statistics(self.fd()) else { return };
        let now = [
            all.rx_dropped,
            all.rx_ring_full.unwrap_or(0),
            all.rx_invalid_descs + all.tx_invalid_descs,
        ];
        for ((loss, now), before) in
            COUNTERS.into_iter().zip(now).zip(core::mem::replace(&mut self.counted, now))
        {
            lose(into, loss, now.saturating_sub(before));
        }
    }

    fn reclaim(&mut self) {
        let mut any = false;
        while let Some(address) = self.completion.pop() {
            self.free.push(address);
            any = true;
        }
        if any {
            self.completion.publish_popped();
        }
    }

    /// Makes the device send the frames in its ring.
    ///
    /// # Errors
    /// The device is down or gone.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.transmit.publish_pushed();
        for _ in 0..KICKS {
            if self.transmit.waiting() == 0 || !self.transmit.wants_wakeup() {
                break;
            }
            // SAFETY: no buffer is given.
            let done = unsafe {
                libc::sendto(
                    self.fd.as_raw_fd(),
                    core::ptr::null(),
                    0,
                    libc::MSG_DONTWAIT,
                    core::ptr::null(),
                    0,
                )
            };
            if done < 0 {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    // The kernel sends a few frames per call; a full device queue gets a
                    // moment.
                    Some(libc::EAGAIN) => {}
                    Some(libc::EBUSY | libc::ENOBUFS) => std::thread::yield_now(),
                    _ => return Err(error),
                }
            }
            self.reclaim();
        }
        self.reclaim();
        Ok(())
    }
}
