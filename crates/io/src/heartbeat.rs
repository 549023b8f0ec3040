//! A counter of a process's turns that another process watches.

use crate::shared_memory::SharedMemory;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// A heartbeat; see the module.
pub struct Heartbeat {
    memory: SharedMemory,
    word: &'static AtomicU64,
}

impl Heartbeat {
    /// A counter at 0, which it leaves for good with the first beat.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create() -> io::Result<Heartbeat> {
        SharedMemory::create("holdfast-heartbeat", 8).map(Heartbeat::of)
    }

    /// Opens the counter that another process made.
    ///
    /// # Errors
    /// `InvalidData` if it is not a heartbeat; else the kernel's error.
    pub fn open(fd: OwnedFd) -> io::Result<Heartbeat> {
        let memory = SharedMemory::open(fd)?;
        if memory.len() != 8 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no heartbeat"));
        }
        Ok(Heartbeat::of(memory))
    }

    fn of(memory: SharedMemory) -> Heartbeat {
        Heartbeat { word: memory.word64(0), memory }
    }

    /// The descriptor for the other process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// Notes that the loop has turned.
    #[inline]
    pub fn beat(&self) {
        // Only this process writes the word.
        self.word.store(self.word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The turns so far.
    pub fn count(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }
}
