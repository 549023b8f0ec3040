//! A packet: a move-only handle to one buffer of an arena.
//!
//! A `Packet` owns its buffer until it is given back to its pool. The type has no
//! destructor on purpose: the code that ends a packet says why (released, or dropped with
//! a [`DropReason`](crate::DropReason)), and tests check that every pool ends as full as
//! it began.

use crate::layers::{Layers, Malformed};
use crate::nsh::ENCAPSULATION_LEN;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes kept free in front of a received frame, for the fabric's encapsulation.
pub const HEADROOM: usize = 128;

/// Bytes in one buffer: a 1522-byte frame, [`HEADROOM`], and room for a message's
/// framing. An odd number of cache lines, so that consecutive buffers do not compete for
/// the same cache sets.
pub const BUFFER_LEN: usize = 43 * 64;

/// The largest IP packet that fits into a buffer, behind an Ethernet header with two VLAN
/// tags.
pub const MAX_MTU: usize = BUFFER_LEN - HEADROOM - 22;

/// Metadata that travels with a packet inside a process, and in the NSH context between
/// processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Meta {
    /// Logical timestamp from the flow's switch, nanoseconds; unique per switch and
    /// increasing.
    pub stamp: u64,
    /// Port of the box by which the packet came in (an index into the configured ports).
    pub ingress: u8,
    /// The switch that stamped the packet.
    pub switch: u8,
    /// The chain (service path) that the packet takes.
    pub chain: u16,
    /// Flags, see [`crate::nsh::Flags`].
    pub flags: u8,
    /// Priority (PCP) and drop eligibility (DEI) of the tag with which the packet came
    /// in, `PCP << 1 | DEI` (IEEE 802.1Q, clause 9.6); 0 without a tag.
    pub priority: u8,
    /// Low 16 bits of the epoch under which the flow's route was given.
    pub epoch: u16,
    /// With a hand-over to a replica: the commit that must be saved before the packet
    /// leaves.
    pub commit: u32,
}

/// Bytes of an arena.
pub type Buffer = [u8; BUFFER_LEN];

/// A packet's data besides its bytes.
///
/// This is one cache line, which stays in place while the packet is passed on, and is
/// reused for the next packet.
#[derive(Debug)]
#[repr(align(64))]
pub struct Parts {
    /// Offsets found by [`Packet::parse`].
    pub layers: Layers,
    /// See [`Meta`].
    pub meta: Meta,
    /// `None` only in a [`Handle`].
    buffer: Option<&'static mut Buffer>,
    start: u16,
    end: u16,
    id: u32,
    /// The turn in which bytes of the buffer were announced, so that they are announced
    /// once: the first, and their number, in units of [`GRAIN`].
    announced_in: u32,
    announced_first: u8,
    announced_count: u8,
}

const _: () = assert!(size_of::<Parts>() == 64);

/// The unit of announcements, bytes.
const GRAIN: usize = 16;
const _: () = assert!(BUFFER_LEN.is_multiple_of(GRAIN) && BUFFER_LEN / GRAIN <= u8::MAX as usize);

/// The receiver of announcements of writes to packets' buffers, and the turn's number.
struct Announce {
    before: fn(&[u8]),
    turn: &'static AtomicU32,
}

static ANNOUNCE: OnceLock<Announce> = OnceLock::new();

/// Calls `before` with bytes of packets' buffers before they change, each byte once per
/// turn. For a process whose turns can be undone; call it once. No two turns during a
/// packet's life may have the same number, in whichever process.
pub fn announce_writes(before: fn(&[u8]), turn: &'static AtomicU32) {
    let _ = ANNOUNCE.set(Announce { before, turn });
}

/// The bytes of a frame that a function may write without noting all of it: the headers
/// of all but the oddest packets.
pub const HEADERS: usize = 192;
/// Most headers are no longer than this: a cache line, bytes.
const USUAL: usize = 64;
/// The fixed part of the longest transport header, TCP's, bytes.
const TRANSPORT: usize = 20;

/// A frame in an arena buffer. The handle is one pointer, so that passing a packet on
/// costs nothing.
#[derive(Debug)]
#[must_use = "a packet that is forgotten leaks its buffer; give it to a pool or a port"]
pub struct Packet(&'static mut Parts);

/// A handle without a buffer, left over from a packet whose buffer went elsewhere. Pools
/// keep handles for their next packets.
#[derive(Debug)]
pub struct Handle(&'static mut Parts);

impl Parts {
    fn new() -> Parts {
        Parts {
            layers: Layers::default(),
            meta: Meta::default(),
            buffer: None,
            start: HEADROOM as u16,
            end: HEADROOM as u16,
            id: 0,
            announced_in: 0,
            announced_first: 0,
            announced_count: 0,
        }
    }
}

impl Handle {
    /// A new handle, which lives as long as the process.
    #[expect(
        clippy::new_without_default,
        reason = "it allocates for ever; nobody shall get one by accident"
    )]
    pub fn new() -> Handle {
        Handle(Box::leak(Box::new(Parts::new())))
    }

    /// A packet in this buffer of an arena. `id` is the buffer's index there; the frame
    /// is empty and starts after [`HEADROOM`].
    #[inline]
    pub fn with_buffer(self, buffer: &'static mut Buffer, id: u32) -> Packet {
        let parts = self.0;
        parts.buffer = Some(buffer);
        parts.id = id;
        // The announcements were for another buffer.
        parts.announced_count = 0;
        let mut packet = Packet(parts);
        packet.clear();
        packet
    }
}

/// Handles for the packets of one worker: as many as it ever had packets at once.
#[derive(Debug)]
pub struct Handles(Vec<Handle>);

/// Handles that are made together, side by side: a worker reuses the same few.
const HANDLES: usize = 64;

impl Handles {
    /// Room for the handles of `count` packets; a tenth of them exist already.
    pub fn new(count: usize) -> Handles {
        let mut handles = Handles(Vec::with_capacity(count.next_multiple_of(HANDLES)));
        while handles.0.len() < count / 10 {
            handles.make();
        }
        handles
    }

    #[cold]
    fn make(&mut self) {
        let parts: Vec<Parts> = (0..HANDLES).map(|_| Parts::new()).collect();
        self.0.extend(parts.leak().iter_mut().map(Handle));
    }

    /// Takes a handle.
    #[inline]
    pub fn take(&mut self) -> Handle {
        loop {
            match self.0.pop() {
                Some(handle) => return handle,
                None => self.make(),
            }
        }
    }

    /// Takes a handle back.
    #[inline]
    pub fn put(&mut self, handle: Handle) {
        self.0.push(handle);
    }
}

impl core::ops::Deref for Packet {
    type Target = Parts;

    #[inline]
    fn deref(&self) -> &Parts {
        self.0
    }
}

impl core::ops::DerefMut for Packet {
    #[inline]
    fn deref_mut(&mut self) -> &mut Parts {
        self.0
    }
}

impl Parts {
    /// Announces that bytes `start` to `end` of the buffer are about to change.
    fn announce(&mut self, announce: &Announce, start: usize, end: usize) {
        let Some(buffer) = &self.buffer else { return };
        let turn = announce.turn.load(Ordering::Relaxed);
        if self.announced_in != turn {
            // A function has written into the frame. The encapsulation in front of it
            // will be written too, and is announced with it.
            let front = if end - start > ENCAPSULATION_LEN { ENCAPSULATION_LEN } else { 0 };
            let first = start.saturating_sub(front) / GRAIN;
            let last = end.div_ceil(GRAIN);
            (announce.before)(&buffer[first * GRAIN..last * GRAIN]);
            (self.announced_in, self.announced_first, self.announced_count) =
                (turn, first as u8, (last - first) as u8);
            return;
        }
        let first = usize::from(self.announced_first) * GRAIN;
        if start < first || end > first + usize::from(self.announced_count) * GRAIN {
            (announce.before)(&buffer[start..end]);
        }
    }
}

impl Packet {
    /// Takes the packet apart: the buffer's id, and the handle for another packet.
    #[inline]
    pub fn into_id(self) -> (u32, Handle) {
        self.0.buffer = None;
        (self.0.id, Handle(self.0))
    }

    /// The buffer's index in its arena.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The start of the frame in its buffer, bytes.
    pub fn offset(&self) -> usize {
        self.start as usize
    }

    /// Length of the frame, bytes.
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Length of the parsed IP packet, without the link's headers and padding, bytes.
    #[inline]
    pub fn ip_len(&self) -> u64 {
        self.layers.end.saturating_sub(self.layers.l3).into()
    }

    /// True if the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }

    /// The frame.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer()[self.start as usize..self.end as usize]
    }

    #[inline]
    fn buffer(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[..])
    }

    /// The frame, mutable.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (start, end) = (self.start as usize, self.end as usize);
        self.range_mut(start, end)
    }

    /// The frame's parsed headers, mutable: 64 bytes, or more if the transport header's
    /// fixed part ends later, but at most [`HEADERS`]; less if the frame is shorter.
    #[inline]
    pub fn headers_mut(&mut self) -> &mut [u8] {
        let (start, end) = (self.start as usize, self.end as usize);
        let headers = (usize::from(self.layers.l4) + TRANSPORT).clamp(USUAL, HEADERS);
        self.range_mut(start, end.min(start + headers))
    }

    #[inline]
    fn range_mut(&mut self, start: usize, end: usize) -> &mut [u8] {
        if let Some(announce) = ANNOUNCE.get() {
            self.0.announce(announce, start, end);
        }
        self.0.buffer.as_mut().map_or(&mut [][..], |buffer| &mut buffer[start..end])
    }

    /// The whole buffer, for a port that receives into it. Call [`Packet::set_range`]
    /// afterwards.
    #[inline]
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        self.0.buffer.as_mut().map_or(&mut [], |buffer| &mut buffer[..])
    }

    /// Sets the frame's place in the buffer. Returns false, and changes nothing, if it is
    /// outside.
    #[must_use]
    pub fn set_range(&mut self, start: usize, len: usize) -> bool {
        let Some(end) = start.checked_add(len) else { return false };
        if end > BUFFER_LEN {
            return false;
        }
        self.start = start as u16;
        self.end = end as u16;
        true
    }

    /// Makes the packet empty again, with full headroom and no metadata.
    pub fn clear(&mut self) {
        self.start = HEADROOM as u16;
        self.end = HEADROOM as u16;
        self.layers = Layers::default();
        self.meta = Meta::default();
    }

    /// Replaces the frame by a copy of `frame`. Returns false, and changes nothing, if it
    /// does not fit behind [`HEADROOM`].
    #[inline]
    #[must_use]
    pub fn copy_from(&mut self, frame: &[u8]) -> bool {
        let end = HEADROOM + frame.len();
        if end > BUFFER_LEN {
            return false;
        }
        self.range_mut(HEADROOM, end).copy_from_slice(frame);
        self.start = HEADROOM as u16;
        self.end = end as u16;
        true
    }

    /// Makes room for `n` bytes in front of the frame. `None` if the headroom is used up.
    #[inline]
    pub fn push_front(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.start as usize {
            return None;
        }
        self.start -= n as u16;
        let start = self.start as usize;
        Some(self.range_mut(start, start + n))
    }

    /// Removes `n` bytes in front. Returns false, and changes nothing, if the frame is
    /// shorter.
    #[inline]
    #[must_use]
    pub fn pull_front(&mut self, n: usize) -> bool {
        if n > self.len() {
            return false;
        }
        self.start += n as u16;
        true
    }

    /// Puts a VLAN tag behind the frame's addresses: its EtherType and control
    /// information (IEEE 802.1Q, clause 9.6). The layers keep their old offsets: parse
    /// the packet again. Returns false, and changes nothing, if there is no Ethernet
    /// header or no headroom.
    #[must_use]
    pub fn push_tag(&mut self, ethertype: u16, control: u16) -> bool {
        if self.len() < 14 || self.push_front(4).is_none() {
            return false;
        }
        let bytes = self.headers_mut();
        bytes.copy_within(4..16, 0);
        bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
        bytes[14..16].copy_from_slice(&control.to_be_bytes());
        true
    }

    /// Takes off the outermost VLAN tag. The layers keep their old offsets. Returns
    /// false, and changes nothing, if the frame ends before the EtherType behind a tag.
    #[inline]
    #[must_use]
    pub fn pull_tag(&mut self) -> bool {
        if self.len() < 18 {
            return false;
        }
        self.headers_mut().copy_within(..12, 4);
        self.pull_front(4)
    }

    /// Cuts the frame to `len` bytes, if it is longer.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.end = self.start + len as u16;
        }
    }

    /// Appends `n` bytes, with the buffer's old content. `None` if there is no room.
    pub fn extend_back(&mut self, n: usize) -> Option<&mut [u8]> {
        let end = self.end as usize + n;
        if end > BUFFER_LEN {
            return None;
        }
        let old = self.end as usize;
        self.end = end as u16;
        Some(self.range_mut(old, end))
    }

    /// Finds the layers of the frame and keeps their offsets in [`Packet::layers`].
    ///
    /// # Errors
    /// The defect of the frame. The offsets are then those of an unparsed packet.
    #[inline(always)]
    pub fn parse(&mut self) -> Result<(), Malformed> {
        let Parts { layers, buffer, start, end, .. } = &mut *self.0;
        let frame =
            buffer.as_ref().map_or(&[][..], |buffer| &buffer[*start as usize..*end as usize]);
        let result = layers.fill(frame);
        if result.is_err() {
            *layers = Layers::default();
        }
        result
    }
}

/// Free buffers, from which packets are made and to which they return.
///
/// A pool belongs to one worker: no lock, no atomic operation.
pub trait PacketPool {
    /// An empty packet, or `None` if the pool is empty.
    fn take(&mut self) -> Option<Packet>;
    /// Takes a packet's buffer back.
    fn put(&mut self, packet: Packet);
    /// Buffers free now.
    fn free(&self) -> usize;
}

/// A pool in the process's own memory: for simulation, benchmarks and tests.
///
/// Its buffers live as long as the process; [`MemoryPool::new`] draws on buffers that
/// earlier pools gave back, so that making worlds by the thousand does not grow memory.
#[derive(Debug)]
pub struct MemoryPool {
    free: Vec<Packet>,
    total: usize,
}

static RETIRED: std::sync::Mutex<Vec<Packet>> = std::sync::Mutex::new(Vec::new());

impl MemoryPool {
    /// A pool of `count` buffers.
    pub fn new(count: usize) -> MemoryPool {
        let mut free = Vec::with_capacity(count);
        {
            let mut retired = RETIRED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            while free.len() < count {
                let Some(mut packet) = retired.pop() else { break };
                packet.id = free.len() as u32;
                free.push(packet);
            }
        }
        let missing = count - free.len();
        let slab: &'static mut [Buffer] = Vec::leak(vec![[0u8; BUFFER_LEN]; missing]);
        for buffer in slab {
            let id = free.len() as u32;
            free.push(Handle::new().with_buffer(buffer, id));
        }
        MemoryPool { free, total: count }
    }

    /// The number of buffers that the pool was made with.
    pub fn total(&self) -> usize {
        self.total
    }
}

impl PacketPool for MemoryPool {
    #[inline]
    fn take(&mut self) -> Option<Packet> {
        let mut packet = self.free.pop()?;
        packet.clear();
        Some(packet)
    }

    #[inline]
    fn put(&mut self, packet: Packet) {
        self.free.push(packet);
    }

    fn free(&self) -> usize {
        self.free.len()
    }
}

impl Drop for MemoryPool {
    fn drop(&mut self) {
        let mut retired = RETIRED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        retired.append(&mut self.free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// An address, and the bytes that were there.
    type Told = (usize, Vec<u8>);

    thread_local! {
        static TOLD: RefCell<Vec<Told>> = const { RefCell::new(Vec::new()) };
    }

    static TURN: AtomicU32 = AtomicU32::new(1);

    fn tell(bytes: &[u8]) {
        TOLD.with_borrow_mut(|told| told.push((bytes.as_ptr() as usize, bytes.to_vec())));
    }

    /// Two handles and two buffers. Every turn writes in all possible ways, and the
    /// buffers change hands in between. For each byte that has changed at the turn's end,
    /// the first announcement had its value at the turn's beginning.
    #[test]
    fn what_changes_in_a_turn_can_be_undone() {
        announce_writes(tell, &TURN);
        let slab: &'static mut [Buffer] = Vec::leak(vec![[0u8; BUFFER_LEN]; 2]);
        let mut packets: Vec<Packet> = slab
            .iter_mut()
            .zip(0..)
            .map(|(buffer, id)| Handle::new().with_buffer(buffer, id))
            .collect();
        let mut state = 1u64;
        let mut draw = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let buffers = |packets: &[Packet]| -> Vec<Told> {
            packets
                .iter()
                .map(|packet| (packet.buffer().as_ptr() as usize, packet.buffer().to_vec()))
                .collect()
        };
        let (mut changed, mut told_of) = (0, 0);
        for _ in 0..3000 {
            let before = buffers(&packets);
            for _ in 0..draw(12) {
                let packet = &mut packets[draw(2) as usize];
                let value = draw(256) as u8;
                match draw(8) {
                    0 => packet.bytes_mut().fill(value),
                    1 | 2 => packet.headers_mut().fill(value),
                    3 => _ = packet.push_front(draw(60) as usize).map(|bytes| bytes.fill(value)),
                    4 => _ = packet.pull_front(draw(60) as usize),
                    5 => _ = packet.extend_back(draw(300) as usize).map(|bytes| bytes.fill(value)),
                    6 => _ = packet.set_range(draw(200) as usize, draw(1600) as usize),
                    _ => {
                        let [first, second] =
                            [packets.remove(0), packets.remove(0)].map(|packet| {
                                let buffer = packet.0.buffer.take();
                                let (id, handle) = packet.into_id();
                                (id, handle, buffer)
                            });
                        // Each handle gets the other's buffer.
                        let (first_id, first_handle, first_buffer) = first;
                        let (second_id, second_handle, second_buffer) = second;
                        packets.push(first_handle.with_buffer(second_buffer.unwrap(), second_id));
                        packets.push(second_handle.with_buffer(first_buffer.unwrap(), first_id));
                    }
                }
            }
            let told = TOLD.take();
            told_of += told.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
            for (address, now) in buffers(&packets) {
                let was = &before.iter().find(|(other, _)| *other == address).unwrap().1;
                for at in (0..BUFFER_LEN).filter(|at| now[*at] != was[*at]) {
                    let place = address + at;
                    let first = told
                        .iter()
                        .find(|(start, bytes)| (*start..start + bytes.len()).contains(&place));
                    let (start, bytes) =
                        first.expect("nothing was told of a byte that has changed");
                    assert_eq!(
                        bytes[place - start],
                        was[at],
                        "what was told first is what there was"
                    );
                    changed += 1;
                }
            }
            TURN.fetch_add(1, Ordering::Relaxed);
        }
        assert!(
            changed > 500_000 && told_of < 2 * changed,
            "{changed} bytes changed, {told_of} were told of"
        );
    }
}
