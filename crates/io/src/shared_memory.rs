//! A memfd mapped into this process, for as long as the process lives or its one user
//! needs it.

use crate::ring::Memory;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bytes of a ring's header.
const RING_HEADER_LEN: usize = 192;

/// The kind and version of a memory: two words that the creator writes last and every
/// other process checks first.
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) magic: u64,
    /// The version changes with anything that processes must agree about.
    pub(crate) version: u32,
}

impl Layout {
    /// Bytes of both words.
    pub(crate) const LEN: usize = 16;

    /// Writes the two words at a byte offset.
    pub(crate) fn mark(&self, memory: &SharedMemory, at: usize) {
        memory.word32(at + 8).store(self.version, Ordering::Relaxed);
        memory.word64(at).store(self.magic, Ordering::Release);
    }

    /// # Errors
    /// `InvalidData` if the memory has another kind or version.
    pub(crate) fn check(&self, memory: &SharedMemory, at: usize) -> io::Result<()> {
        let invalid = |text: String| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        if memory.len() < at + Layout::LEN
            || memory.word64(at).load(Ordering::Acquire) != self.magic
        {
            return invalid(format!("this is not {}", self.name));
        }
        let found = memory.word32(at + 8).load(Ordering::Relaxed);
        if found != self.version {
            return invalid(format!(
                "{} has layout {found}, and this program ({}) knows layout {}: all processes of a box are of one build, so stop the box and start it again",
                self.name,
                env!("CARGO_PKG_VERSION"),
                self.version
            ));
        }
        Ok(())
    }
}

/// Shared memory; see the module. The mapping is never undone by itself: its buffers are
/// `'static`.
pub(crate) struct SharedMemory {
    fd: OwnedFd,
    base: *mut u8,
    len: usize,
}

// SAFETY: the pointer is to a mapping that stays for the life of the process, not to
// anything of one thread; each access is argued where it is made.
unsafe impl Send for SharedMemory {}
// SAFETY: as above; shared references give only atomics out.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New memory of `len` bytes, all zero, with a sealed size.
    pub(crate) fn create(name: &str, len: usize) -> io::Result<SharedMemory> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        SharedMemory::map(fd, len)
    }

    /// Memory that another process created and passed on.
    ///
    /// # Errors
    /// `InvalidData` if the memory's size is not sealed: it could be cut short under us.
    pub(crate) fn open(fd: OwnedFd) -> io::Result<SharedMemory> {
        let seals = rustix::fs::fcntl_get_seals(&fd)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the shared memory's size is not sealed",
            ));
        }
        let len = rustix::fs::fstat(&fd)?.st_size as usize;
        SharedMemory::map(fd, len)
    }

    fn map(fd: OwnedFd, len: usize) -> io::Result<SharedMemory> {
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing;
        // the file's size is sealed, so every page of it stays readable and writable.
        let base = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )?
        };
        Ok(SharedMemory { fd, base: base.cast(), len })
    }

    /// Unmaps the memory, and closes the descriptor.
    ///
    /// # Safety
    /// No reference into the memory is used any more.
    pub(crate) unsafe fn unmap(self) {
        // SAFETY: it is a mapping of this length, and by the caller's promise nobody
        // looks into it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address in this process, and in processes forked from it.
    pub(crate) fn address(&self) -> usize {
        self.base as usize
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A 64-bit word at a byte offset.
    ///
    /// # Panics
    /// If it is not aligned or not inside.
    pub(crate) fn word64(&self, at: usize) -> &'static AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len);
        // SAFETY: inside the mapping and aligned (the mapping is aligned to a page), for
        // the life of the process. Other processes access the word as an atomic too.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    /// A 32-bit word at a byte offset.
    ///
    /// # Panics
    /// If it is not aligned or not inside.
    pub(crate) fn word32(&self, at: usize) -> &'static AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.len);
        // SAFETY: as in `word64`.
        unsafe { AtomicU32::from_ptr(self.base.add(at).cast()) }
    }

    /// Consecutive 64-bit words from a byte offset.
    ///
    /// # Panics
    /// If they are not aligned or not all inside.
    pub(crate) fn words64(&self, at: usize, count: usize) -> &'static [AtomicU64] {
        assert!(
            at.is_multiple_of(8)
                && count
                    .checked_mul(8)
                    .and_then(|len| len.checked_add(at))
                    .is_some_and(|end| end <= self.len)
        );
        // SAFETY: as in `word64`, for `count` words one after the other.
        unsafe { core::slice::from_raw_parts(self.base.add(at).cast::<AtomicU64>(), count) }
    }

    /// Bytes of a ring with `entries`: each side's count has a cache line of its own, and
    /// the producer's `written` a third.
    pub(crate) const fn ring_len(entries: usize) -> usize {
        RING_HEADER_LEN + entries * 8
    }

    /// A ring with `entries` at a byte offset.
    ///
    /// # Panics
    /// If it is not aligned or not all inside.
    pub(crate) fn ring(&self, at: usize, entries: usize) -> Memory<'static> {
        Memory {
            tail: self.word32(at),
            head: self.word32(at + 64),
            written: self.word32(at + 128),
            entries: self.words64(at + RING_HEADER_LEN, entries),
        }
    }

    /// Consecutive 16-bit words from a byte offset.
    ///
    /// # Panics
    /// If they are not aligned or not all inside.
    pub(crate) fn words16(&self, at: usize, count: usize) -> &'static [AtomicU16] {
        assert!(
            at.is_multiple_of(2)
                && count
                    .checked_mul(2)
                    .and_then(|len| len.checked_add(at))
                    .is_some_and(|end| end <= self.len)
        );
        // SAFETY: as in `words64`.
        unsafe { core::slice::from_raw_parts(self.base.add(at).cast::<AtomicU16>(), count) }
    }

    /// Plain bytes.
    ///
    /// # Safety
    /// As long as the returned reference is used, no other code, in this process or
    /// another, may read or write these bytes. Only the code of the other processes
    /// ensures this: each is this very program, and keeps to the rule by which bytes pass
    /// from one process to another.
    ///
    /// # Panics
    /// If they are not all inside.
    pub(crate) unsafe fn bytes<const LEN: usize>(&self, at: usize) -> &'static mut [u8; LEN] {
        assert!(at.checked_add(LEN).is_some_and(|end| end <= self.len));
        // SAFETY: inside the mapping, which stays for the life of the process; the caller
        // promises exclusive use. An array of bytes may lie anywhere.
        unsafe { &mut *self.base.add(at).cast::<[u8; LEN]>() }
    }
}
