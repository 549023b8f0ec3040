//! AF_PACKET: any Linux interface, no driver taken away from the kernel.
//!
//! Frames are received and sent in batches (recvmmsg, sendmmsg). The kernel reports with
//! each frame the work that an offload left (packet(7), PACKET_VNET_HDR and
//! PACKET_AUXDATA), and this port does it: it completes a transport checksum, cuts an
//! uncut packet of up to 64 KiB into segments, and puts a removed VLAN tag back.

use super::losses::lose;
use super::segments::{self, VirtioHeader};
use super::{Loss, Losses, Port, PortError, device};
use holdfast_protection::Released;
use holdfast_wire::header::Mac;
use holdfast_wire::{DropCounters, DropReason, HEADROOM, Packet, PacketPool};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::io;
use std::mem::{size_of, zeroed};

/// Frames per system call.
const BATCH: usize = 32;
/// Bytes of control messages per frame: one tpacket_auxdata with its header.
const CONTROL_LEN: usize = 64;
const ETH_P_ALL: u16 = 0x0003;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const PACKET_VNET_HDR: libc::c_int = 15;
/// Room for the part of an uncut packet that a buffer does not hold.
const OVERFLOW_LEN: usize = 1 << 16;
const PACKET_STATISTICS: libc::c_int = 6;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;

/// `struct tpacket_stats`: counts since the last read.
#[derive(zerocopy::FromBytes)]
#[repr(C)]
struct Statistics {
    packets: u32,
    drops: u32,
}

/// An AF_PACKET port; see the module.
pub struct AfPacket {
    name: String,
    index: u32,
    fd: OwnedFd,
    mac: Mac,
    mtu: u16,
    up: bool,
    drops: DropCounters,
    spare: Vec<Packet>,
    received: Vec<Packet>,
    overflow: Vec<u8>,
    headers: Vec<VirtioHeader>,
}

impl AfPacket {
    /// Opens a Linux interface.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn open(name: &str) -> Result<AfPacket, PortError> {
        let device = device::find(name)?;
        let fd = device::packet_socket()
            .map_err(|error| device::refused(&format!("opening `{name}`"), &error))?;
        let port = AfPacket {
            name: name.to_owned(),
            index: device.index,
            fd,
            mac: device.mac,
            mtu: device.mtu,
            up: true,
            drops: DropCounters::default(),
            spare: Vec::with_capacity(BATCH),
            received: Vec::with_capacity(BATCH),
            overflow: vec![0; BATCH * OVERFLOW_LEN],
            headers: vec![VirtioHeader::default(); BATCH],
        };
        let what = format!("setting up `{name}`");
        port.option(libc::SOL_PACKET, libc::PACKET_AUXDATA, &1i32)
            .map_err(|error| device::refused(&what, &error))?;
        port.option(libc::SOL_PACKET, PACKET_VNET_HDR, &1i32)
            .map_err(|error| device::refused(&what, &error))?;
        port.option(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1i32)
            .map_err(|error| device::refused(&what, &error))?;
        // Larger buffers if allowed; the default works too, with more loss in bursts.
        let _ = port.option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &(8 << 20));
        let _ = port.option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &(8 << 20));
        device::join_promiscuous(port.fd.as_fd(), &device)
            .map_err(|error| device::refused(&what, &error))?;
        // SAFETY: all zero is a valid value of this plain structure.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ETH_P_ALL.to_be();
        address.sll_ifindex = device.index as i32;
        // SAFETY: the pointer is to a sockaddr_ll of the length given.
        let bound = unsafe {
            libc::bind(
                port.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        if bound < 0 {
            return Err(device::refused(&what, &io::Error::last_os_error()));
        }
        Ok(port)
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Continues earlier counts.
    pub(super) fn adopt(&mut self, drops: &DropCounters) {
        self.drops.add(drops);
    }

    /// Closes the device. Returns the counts, and the buffers prepared for the next
    /// frames.
    pub(super) fn close(self) -> (DropCounters, Vec<Packet>) {
        (self.drops, self.spare)
    }

    fn option<T>(&self, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
        device::option(self.fd.as_fd(), level, name, value)
    }

    /// Makes packets of a received frame. `len` is the frame's whole length; the part
    /// that does not fit into the buffer is in `overflow`.
    fn finish(
        &mut self,
        at: usize,
        mut packet: Packet,
        len: usize,
        tag: Option<(u16, u16)>,
        pool: &mut dyn PacketPool,
        into: &mut Vec<Packet>,
    ) {
        let header = self.headers[at];
        let room = packet.buffer_mut().len() - HEADROOM;
        if len > room + OVERFLOW_LEN || !packet.set_range(HEADROOM, len.min(room)) {
            self.drops.count(DropReason::FrameTooLarge);
            pool.put(packet);
            return;
        }
        let before = into.len();
        if header.is_uncut() {
            let mut whole = Vec::with_capacity(len);
            whole.extend_from_slice(packet.bytes());
            whole.extend_from_slice(
                &self.overflow[at * OVERFLOW_LEN..at * OVERFLOW_LEN + (len - len.min(room))],
            );
            pool.put(packet);
            if let Err(reason) = segments::cut(&whole, header, pool, into) {
                self.drops.count(reason);
            }
        } else if len > room {
            self.drops.count(DropReason::FrameTooLarge);
            pool.put(packet);
        } else {
            if header.is_checksum_missing() {
                segments::complete_checksum(&mut packet);
            }
            into.push(packet);
        }
        if let Some((tpid, tci)) = tag {
            for packet in &mut into[before..] {
                // A frame without headroom stays without its tag.
                let _ = packet.push_tag(tpid, tci);
            }
        }
    }
}

fn is_down(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV))
}

impl Port for AfPacket {
    fn name(&self) -> &str {
        &self.name
    }

    fn driver(&self) -> &'static str {
        "afpacket"
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
        let want = max.min(BATCH);
        while self.spare.len() < want {
            let Some(mut packet) = pool.take() else { break };
            packet.clear();
            self.spare.push(packet);
        }
        let want = want.min(self.spare.len());
        if want == 0 {
            return;
        }
        let mut control = [[0u64; CONTROL_LEN / 8]; BATCH];
        // SAFETY: all zero is a valid value of these plain structures.
        let (mut vectors, mut messages): ([[libc::iovec; 3]; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (zeroed(), zeroed()) };
        let parts = self
            .headers
            .iter_mut()
            .zip(self.overflow.chunks_exact_mut(OVERFLOW_LEN))
            .zip(&mut self.spare);
        for (at, ((header, overflow), packet)) in parts.take(want).enumerate() {
            let room = &mut packet.buffer_mut()[HEADROOM..];
            let vector =
                |bytes: *mut u8, len: usize| libc::iovec { iov_base: bytes.cast(), iov_len: len };
            vectors[at] = [
                vector((&raw mut *header).cast(), size_of::<VirtioHeader>()),
                vector(room.as_mut_ptr(), room.len()),
                vector(overflow.as_mut_ptr(), overflow.len()),
            ];
            messages[at].msg_hdr.msg_iov = vectors[at].as_mut_ptr();
            messages[at].msg_hdr.msg_iovlen = 3;
            messages[at].msg_hdr.msg_control = control[at].as_mut_ptr().cast();
            messages[at].msg_hdr.msg_controllen = CONTROL_LEN;
        }
        // SAFETY: every vector points into a header, a buffer or an overflow of its own,
        // every control pointer into `control`; all of them outlive the call, and any
        // bytes are a valid header.
        let got = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                messages.as_mut_ptr(),
                want as u32,
                libc::MSG_DONTWAIT,
                core::ptr::null_mut(),
            )
        };
        if got < 0 {
            let error = io::Error::last_os_error();
            self.up &= !is_down(&error);
            return;
        }
        self.up = true;
        let mut received = core::mem::take(&mut self.received);
        received.extend(self.spare.drain(..got as usize));
        for (at, packet) in received.drain(..).enumerate() {
            let message = &messages[at];
            let truncated = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            let len = (message.msg_len as usize)
                .checked_sub(size_of::<VirtioHeader>())
                .filter(|_| !truncated);
            let tag = auxdata(&message.msg_hdr)
                .filter(|aux| aux.tp_status & TP_STATUS_VLAN_VALID != 0)
                .map(|aux| {
                    let tpid = if aux.tp_status & TP_STATUS_VLAN_TPID_VALID != 0 {
                        aux.tp_vlan_tpid
                    } else {
                        0x8100
                    };
                    (tpid, aux.tp_vlan_tci)
                });
            match len {
                Some(len) => self.finish(at, packet, len, tag, pool, into),
                None => {
                    self.drops.count(DropReason::FrameTooLarge);
                    pool.put(packet);
                }
            }
        }
        self.received = received;
    }

    fn transmit(&mut self, frames: &mut Vec<Released<Packet>>, pool: &mut dyn PacketPool) {
        for batch in frames.chunks_mut(BATCH) {
            // SAFETY: all zero is a valid value of these plain structures.
            let (mut vectors, mut messages): ([[libc::iovec; 2]; BATCH], [libc::mmsghdr; BATCH]) =
                unsafe { (zeroed(), zeroed()) };
            let header = VirtioHeader::default();
            for (at, frame) in batch.iter().enumerate() {
                let bytes = frame.get().bytes();
                vectors[at] = [
                    libc::iovec {
                        iov_base: (&raw const header).cast_mut().cast(),
                        iov_len: size_of::<VirtioHeader>(),
                    },
                    libc::iovec {
                        iov_base: bytes.as_ptr().cast_mut().cast(),
                        iov_len: bytes.len(),
                    },
                ];
                messages[at].msg_hdr.msg_iov = vectors[at].as_mut_ptr();
                messages[at].msg_hdr.msg_iovlen = 2;
            }
            let AfPacket { fd, up, drops, .. } = self;
            // SAFETY: every vector points to `header` or the bytes of a frame in `batch`,
            // both of which outlive the call.
            unsafe {
                device::send_batch(fd.as_fd(), &mut messages[..batch.len()], up, is_down, drops)
            };
        }
        for frame in frames.drain(..) {
            pool.put(frame.into_inner());
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn drops(&self) -> &DropCounters {
        &self.drops
    }

    fn take_losses(&mut self, into: &mut Losses) {
        if let Ok(Statistics { drops, .. }) =
            device::read_option(self.fd.as_fd(), libc::SOL_PACKET, PACKET_STATISTICS)
        {
            lose(into, Loss::PacketSocketFull, drops.into());
        }
    }
}

fn auxdata(message: &libc::msghdr) -> Option<libc::tpacket_auxdata> {
    // SAFETY: the kernel has filled the control buffer and its length; the macros stay
    // inside them, and the data is copied out of a message that is long enough, without
    // assuming an alignment.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let is_aux = (*header).cmsg_level == libc::SOL_PACKET
                && (*header).cmsg_type == libc::PACKET_AUXDATA;
            if is_aux
                && (*header).cmsg_len
                    >= libc::CMSG_LEN(size_of::<libc::tpacket_auxdata>() as u32) as usize
            {
                return Some(core::ptr::read_unaligned(libc::CMSG_DATA(header).cast()));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}
