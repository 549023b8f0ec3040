//! The four rings of an AF_XDP socket, and the frames in them (Linux,
//! Documentation/networking/af_xdp.rst).

use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

/// Memory mapped until dropped.
pub(super) struct Mapping {
    start: *mut u8,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone; the pointer is as good in another
// thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Zeroed memory of this process alone.
    pub(super) fn anonymous(len: usize) -> io::Result<Mapping> {
        Mapping::new(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, -1, 0)
    }

    fn ring(len: usize, socket: BorrowedFd<'_>, offset: i64) -> io::Result<Mapping> {
        Mapping::new(len, libc::MAP_SHARED | libc::MAP_POPULATE, socket.as_raw_fd(), offset)
    }

    fn new(len: usize, flags: libc::c_int, fd: i32, offset: i64) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                fd,
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Mapping { start: start.cast(), len })
        }
    }

    /// The address, for the kernel.
    pub(super) fn address(&self) -> u64 {
        self.start as u64
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of a frame. `None` outside.
    ///
    /// Never for a ring: either the kernel touches a frame (a ring has it) or this
    /// process, and the rings' indices order the two.
    pub(super) fn frame(&mut self, at: u64, len: usize) -> Option<&mut [u8]> {
        let at = usize::try_from(at).ok()?;
        if at.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: inside the mapping; exclusive, because of the borrow and because the
        // kernel does not have the frame.
        Some(unsafe { core::slice::from_raw_parts_mut(self.start.add(at), len) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no borrow of it outlives it.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

const NEED_WAKEUP: u32 = 1;

/// A ring with entries `T`, between the kernel and this process.
pub(super) struct Ring<T: Copy> {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    mask: u32,
    /// Our index, not yet published.
    own: u32,
    _entries: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `size` entries (a power of two).
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        page: i64,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> io::Result<Ring<T>> {
        let entries = offsets.desc as usize;
        let mapping = Mapping::ring(entries + size as usize * size_of::<T>(), socket, page)?;
        let (producer, consumer, flags) =
            (offsets.producer as usize, offsets.consumer as usize, offsets.flags as usize);
        Ok(Ring {
            mapping,
            producer,
            consumer,
            flags,
            entries,
            mask: size - 1,
            own: 0,
            _entries: PhantomData,
        })
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the kernel's offsets are of aligned words inside the ring it mapped;
        // both sides use them atomically.
        unsafe { AtomicU32::from_ptr(self.mapping.start.add(at).cast()) }
    }

    fn entry(&self, index: u32) -> *mut T {
        // SAFETY: the masked index is inside the entries, which were mapped with the
        // ring.
        unsafe {
            self.mapping.start.add(self.entries).cast::<T>().add((index & self.mask) as usize)
        }
    }

    /// True if the kernel sleeps and wants to be called.
    pub(super) fn wants_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// As consumer: the next entry, if there is one.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.word(self.producer).load(Ordering::Acquire) == self.own {
            return None;
        }
        // SAFETY: the producer's index says that the kernel has written this entry and
        // does not touch it until we publish.
        let entry = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        Some(entry)
    }

    /// As consumer: gives popped entries back to the kernel.
    pub(super) fn publish_popped(&mut self) {
        self.word(self.consumer).store(self.own, Ordering::Release);
    }

    /// As producer: adds an entry. False if the ring is full.
    pub(super) fn push(&mut self, value: T) -> bool {
        if self.own.wrapping_sub(self.word(self.consumer).load(Ordering::Acquire)) > self.mask {
            return false;
        }
        // SAFETY: the consumer's index says that the kernel is done with this entry, and
        // it does not read it until we publish.
        unsafe { self.entry(self.own).write(value) };
        self.own = self.own.wrapping_add(1);
        true
    }

    /// As producer: gives pushed entries to the kernel.
    pub(super) fn publish_pushed(&mut self) {
        self.word(self.producer).store(self.own, Ordering::Release);
    }

    /// As producer: the entries that the kernel has not taken yet.
    pub(super) fn waiting(&self) -> u32 {
        self.own.wrapping_sub(self.word(self.consumer).load(Ordering::Acquire))
    }
}
