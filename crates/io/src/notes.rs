//! Notes of a process for its successor: records of a few words in shared memory. At
//! whatever instruction the writer dies, each record is as after one of its writes, and
//! never a mixture.
//!
//! A single process writes at a time; its successor begins after its death. No call
//! waits, and a write is a few stores.

use crate::shared_memory::SharedMemory;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Notes of records with `WORDS` words each; see the module.
pub struct Notes<const WORDS: usize> {
    memory: SharedMemory,
    words: &'static [AtomicU64],
}

/// A record is the count of its writes, and two copies: the count's remainder selects the
/// one written last, and the other is for the next write.
const COPIES: usize = 2;

impl<const WORDS: usize> Notes<WORDS> {
    const RECORD: usize = 1 + COPIES * WORDS;

    /// Notes with `count` empty records.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(count: usize) -> io::Result<Notes<WORDS>> {
        SharedMemory::create("holdfast-notes", count.max(1) * Self::RECORD * 8).map(Notes::of)
    }

    /// Opens another process's notes.
    ///
    /// # Errors
    /// `InvalidData` if the memory has no notes; else the kernel's error.
    pub fn open(fd: OwnedFd) -> io::Result<Notes<WORDS>> {
        let memory = SharedMemory::open(fd)?;
        if memory.len() == 0 || !memory.len().is_multiple_of(Self::RECORD * 8) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "these are no notes"));
        }
        Ok(Notes::of(memory))
    }

    fn of(memory: SharedMemory) -> Notes<WORDS> {
        Notes { words: memory.words64(0, memory.len() / 8), memory }
    }

    /// The descriptor for another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    fn record(&self, at: usize) -> Option<(&AtomicU64, &[AtomicU64])> {
        self.words.chunks_exact(Self::RECORD).nth(at)?.split_first()
    }

    fn copy(copies: &[AtomicU64], count: u64) -> &[AtomicU64] {
        &copies[(count % COPIES as u64) as usize * WORDS..][..WORDS]
    }

    /// Writes a record. A record without a place is ignored.
    pub fn write(&self, at: usize, record: &[u64; WORDS]) {
        let Some((count, copies)) = self.record(at) else { return };
        let next = count.load(Ordering::Relaxed) + 1;
        for (word, value) in Self::copy(copies, next).iter().zip(record) {
            word.store(*value, Ordering::Relaxed);
        }
        // The count makes the complete copy valid.
        count.store(next, Ordering::Release);
    }

    /// The record last written, if any.
    pub fn read(&self, at: usize) -> Option<[u64; WORDS]> {
        let (count, copies) = self.record(at)?;
        let count = count.load(Ordering::Acquire);
        let copy = Self::copy(copies, count);
        (count > 0).then(|| core::array::from_fn(|at| copy[at].load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records are apart, the last write counts, and the next process reads what this one
    /// wrote.
    #[test]
    fn the_next_process_reads_them() {
        let notes = Notes::<3>::create(2).unwrap();
        assert_eq!((notes.read(0), notes.read(1), notes.read(2)), (None, None, None));
        for round in 1..=5 {
            notes.write(1, &[round, 2, 3]);
            notes.write(2, &[9; 3]);
        }
        let next = Notes::<3>::open(notes.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((next.read(0), next.read(1), next.read(2)), (None, Some([5, 2, 3]), None));
        next.write(0, &[7; 3]);
        assert_eq!(notes.read(0), Some([7; 3]));
        let other = Notes::<4>::open(notes.fd().try_clone_to_owned().unwrap());
        assert_eq!(other.err().map(|error| error.kind()), Some(io::ErrorKind::InvalidData));
    }

    /// A writer that dies in the middle of a write leaves the earlier notes.
    #[test]
    fn half_a_write_is_none() {
        let notes = Notes::<3>::create(1).unwrap();
        notes.write(0, &[1; 3]);
        for written in 0..=3 {
            let (count, copies) = notes.record(0).unwrap();
            let next = Notes::<3>::copy(copies, count.load(Ordering::Relaxed) + 1);
            next[..written].iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
            assert_eq!(notes.read(0), Some([1; 3]), "{written}");
        }
        notes.write(0, &[2; 3]);
        assert_eq!(notes.read(0), Some([2; 3]));
    }
}
