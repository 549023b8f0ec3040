//! A packet: a move-only handle to one buffer of an arena.
//!
//! A `Packet` owns its buffer until it is given back to the pool that it came from. It has no
//! destructor on purpose: whoever ends a packet says why (released, or dropped with a
//! [`DropReason`](crate::DropReason)), and tests check that every pool ends as full as it began.

use crate::layers::{Layers, Malformed};

/// Bytes kept free in front of a received frame, for the fabric's encapsulation.
pub const HEADROOM: usize = 128;

/// Bytes in one buffer: a 1522-byte frame, [`HEADROOM`], and what a message needs around it. An odd
/// number of cache lines, so that consecutive buffers do not compete for the same cache sets.
pub const BUFFER_LEN: usize = 43 * 64;

/// The largest IP packet that fits into a buffer, behind an Ethernet header with two VLAN tags.
pub const MAX_MTU: usize = BUFFER_LEN - HEADROOM - 22;

/// What travels with a packet inside a process, and in the NSH context between processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Meta {
    /// Logical timestamp from the flow's switch, nanoseconds; unique per switch and increasing.
    pub stamp: u64,
    /// Port of the box by which the packet came in (an index into the configured ports).
    pub ingress: u8,
    /// The switch that stamped the packet.
    pub switch: u8,
    /// The chain (service path) that the packet takes.
    pub chain: u16,
    /// Flags, see [`crate::nsh::Flags`].
    pub flags: u8,
    /// Low 16 bits of the epoch under which the flow's route was given.
    pub epoch: u16,
    /// With a hand-over to a replica: the commit that must be saved before the packet may leave.
    pub commit: u32,
}

/// Bytes of an arena.
pub type Buffer = [u8; BUFFER_LEN];

/// What is known of a packet besides its bytes.
///
/// It is one cache line, stays where it is while the packet goes from hand to hand, and is used again for the next packet.
#[derive(Debug)]
#[repr(align(64))]
pub struct Parts {
    /// Offsets found by [`Packet::parse`].
    pub layers: Layers,
    /// See [`Meta`].
    pub meta: Meta,
    /// None only in a [`Handle`].
    buffer: Option<&'static mut Buffer>,
    start: u16,
    end: u16,
    id: u32,
}

const _: () = assert!(size_of::<Parts>() == 64);

/// Is told of bytes of a packet's buffer before they change, if anybody wants to know: see [`announce_writes`].
static BEFORE_WRITE: std::sync::OnceLock<fn(&[u8])> = std::sync::OnceLock::new();

/// From now on `before` is told of bytes of packets' buffers before they change. For a process whose turns can be undone; once.
pub fn announce_writes(before: fn(&[u8])) {
    let _ = BEFORE_WRITE.set(before);
}

/// What a function may write of a frame without all of it being noted: the headers that there are in all but the oddest packets, bytes.
pub const HEADERS: usize = 192;

/// A frame in an arena buffer. The handle is one pointer, so that passing a packet on costs nothing.
#[derive(Debug)]
#[must_use = "a packet that is forgotten leaks its buffer; give it to a pool or a port"]
pub struct Packet(&'static mut Parts);

/// A handle without a buffer: what is left of a packet whose buffer went elsewhere. Pools keep them for their next packets.
#[derive(Debug)]
pub struct Handle(&'static mut Parts);

impl Handle {
    /// A new handle. It lives as long as the process.
    #[expect(clippy::new_without_default, reason = "it allocates for ever; nobody shall get one by accident")]
    pub fn new() -> Handle {
        let parts = Parts {
            layers: Layers::default(),
            meta: Meta::default(),
            buffer: None,
            start: HEADROOM as u16,
            end: HEADROOM as u16,
            id: 0,
        };
        Handle(Box::leak(Box::new(parts)))
    }

    /// A packet in this buffer of an arena. `id` is the buffer's index there; the frame is empty and starts after [`HEADROOM`].
    #[inline]
    pub fn with_buffer(self, buffer: &'static mut Buffer, id: u32) -> Packet {
        let parts = self.0;
        parts.buffer = Some(buffer);
        parts.id = id;
        let mut packet = Packet(parts);
        packet.clear();
        packet
    }
}

/// Handles for the packets of one worker. There are as many as it ever had packets at once.
#[derive(Debug)]
pub struct Handles(Vec<Handle>);

impl Handles {
    /// Room for the handles of `count` packets; a tenth of them exist already.
    pub fn new(count: usize) -> Handles {
        let mut free = Vec::with_capacity(count);
        free.resize_with(count / 10, Handle::new);
        Handles(free)
    }

    /// A handle.
    #[inline]
    pub fn take(&mut self) -> Handle {
        self.0.pop().unwrap_or_else(Handle::new)
    }

    /// Takes it back.
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

    /// Where the frame starts in its buffer, bytes.
    pub fn offset(&self) -> usize {
        self.start as usize
    }

    /// Length of the frame, bytes.
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// True for a frame without a byte.
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

    /// The frame, to write.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (start, end) = (self.start as usize, self.end as usize);
        self.range_mut(start, end)
    }

    /// The frame's first [`HEADERS`] bytes, to write; less if it is shorter.
    #[inline]
    pub fn headers_mut(&mut self) -> &mut [u8] {
        let (start, end) = (self.start as usize, self.end as usize);
        self.range_mut(start, end.min(start + HEADERS))
    }

    #[inline]
    fn range_mut(&mut self, start: usize, end: usize) -> &mut [u8] {
        let bytes = self.0.buffer.as_mut().map_or(&mut [][..], |buffer| &mut buffer[start..end]);
        if let Some(before) = BEFORE_WRITE.get() {
            before(bytes);
        }
        bytes
    }

    /// The whole buffer: for a port that receives into it. Follow with [`Packet::set_range`].
    #[inline]
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        self.0.buffer.as_mut().map_or(&mut [], |buffer| &mut buffer[..])
    }

    /// Says where in the buffer the frame lies. False, and nothing changed, if that is outside.
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

    /// Replaces the frame by a copy of `frame`. False, and nothing changed, if it does not fit
    /// behind [`HEADROOM`].
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

    /// Removes `n` bytes in front. False, and nothing changed, if the frame is shorter.
    #[inline]
    #[must_use]
    pub fn pull_front(&mut self, n: usize) -> bool {
        if n > self.len() {
            return false;
        }
        self.start += n as u16;
        true
    }

    /// Puts a VLAN tag behind the frame's addresses: its EtherType, and its control information (IEEE 802.1Q, clause 9.6). The layers are as
    /// they were: parse the packet again. False, and nothing changed, if there is no Ethernet header or no headroom.
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

    /// Cuts the frame to `len` bytes; longer than it is changes nothing.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.end = self.start + len as u16;
        }
    }

    /// Appends `n` bytes (their content is whatever the buffer held). `None` if there is no room.
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
    /// What is wrong with the frame. The offsets are then those of an unparsed packet.
    #[inline(always)]
    pub fn parse(&mut self) -> Result<(), Malformed> {
        let Parts { layers, buffer, start, end, .. } = &mut *self.0;
        let frame = buffer.as_ref().map_or(&[][..], |buffer| &buffer[*start as usize..*end as usize]);
        let result = layers.fill(frame);
        if result.is_err() {
            *layers = Layers::default();
        }
        result
    }
}

/// Buffers that are free, from which packets are made and to which they return.
///
/// One pool belongs to one worker: no lock, no atomic operation.
pub trait PacketPool {
    /// An empty packet, or `None` when the pool has run dry.
    fn take(&mut self) -> Option<Packet>;
    /// Takes a packet's buffer back.
    fn put(&mut self, packet: Packet);
    /// Buffers free now.
    fn free(&self) -> usize;
}

/// A pool in the process's own memory: for simulation, benchmarks and tests.
///
/// Its buffers live as long as the process; [`MemoryPool::new`] draws on buffers that earlier pools
/// gave back, so that making worlds by the thousand does not grow memory.
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

    /// Buffers that the pool was made with.
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
