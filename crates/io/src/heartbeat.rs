//! A word that a process counts up while its loop turns, and that another one watches.

use crate::shared_memory::SharedMemory;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
pub struct Heartbeat {
    memory: SharedMemory,
    word: &'static AtomicU64,
}

impl Heartbeat {
    /// A word that stands at 0, and never does again once it was counted up.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create() -> io::Result<Heartbeat> {
        SharedMemory::create("holdfast-heartbeat", 8).map(Heartbeat::of)
    }

    /// The word that another process made.
    ///
    /// # Errors
    /// `InvalidData` if it is none; else what the kernel says.
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

    /// To pass to the other process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// The loop has turned.
    #[inline]
    pub fn beat(&self) {
        // Nobody else writes it.
        self.word.store(self.word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// How often it has.
    pub fn count(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }
}
