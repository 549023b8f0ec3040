//! A ring between two processes: one puts descriptors in, one takes them out.
//!
//! Theory of operation. Two counters that only grow, each written by one side, and a
//! power of two of 64-bit entries. The producer writes entries, then moves `tail`
//! (release). The consumer reads `tail` (acquire), takes the entries, then moves `head`
//! (release). Either side may die between any two instructions: a descriptor is in the
//! ring or not. Impossible counters of a broken peer are noticed, because they can never
//! be further apart than the ring is long.
//!
//! The next incarnation of a dead side can *adopt* it, if a record of each buffer's owner
//! outlives both ([`crate::Arena`]). Every step that the other side or the next
//! incarnation can see is one release store, so the compiler keeps the order below. The
//! machine keeps it too: a kill falls between two instructions of the killed thread, and
//! the kernel, which reports the death, orders what came before it.
//!
//! - To put in: entry, `written`, record (the buffer is the peer's), and later `tail` for
//!   all of them. The next incarnation finds entries from `tail` to `written`. Entries
//!   recorded as the peer's were put in and are shown now; only the last one can be
//!   recorded otherwise, and that was not put in. Therefore nothing is shown that is not
//!   recorded, and nothing is recorded that is never shown.
//! - To take out: record (the buffer is ours), and later `head` for all of them, before
//!   any of them is used again. The next incarnation finds first in the ring those that
//!   were recorded and not released: they are not the peer's any more, and are passed
//!   over before any buffer is given away again. A buffer given to the same peer once
//!   more could not be told from them.

use crate::death;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A buffer in transit, with its frame's place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Index of the buffer in the arena.
    pub buffer: u32,
    /// The start of the frame, bytes.
    pub offset: u16,
    /// The frame's length, bytes.
    pub len: u16,
}

impl Descriptor {
    fn pack(self) -> u64 {
        u64::from(self.buffer) << 32 | u64::from(self.offset) << 16 | u64::from(self.len)
    }

    fn unpack(word: u64) -> Descriptor {
        Descriptor { buffer: (word >> 32) as u32, offset: (word >> 16) as u16, len: word as u16 }
    }
}

/// The peer's counter is impossible: the peer is broken or hostile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;

/// The memory of a ring.
#[derive(Clone, Copy)]
pub struct Memory<'a> {
    /// Entries ever put in, shown or not, for the producer's next incarnation. On a cache
    /// line that the consumer never reads.
    pub written: &'a AtomicU32,
    /// Entries ever put in and shown.
    pub tail: &'a AtomicU32,
    /// Entries ever taken out.
    pub head: &'a AtomicU32,
    /// The entries; a power of two.
    pub entries: &'a [AtomicU64],
}

/// The side that puts descriptors in.
pub struct Producer<'a> {
    memory: Memory<'a>,
    tail: u32,
    head: u32,
}

impl<'a> Producer<'a> {
    /// The producer; only one per ring.
    ///
    /// # Panics
    /// If the number of entries is not a power of two.
    pub fn new(memory: Memory<'a>) -> Producer<'a> {
        assert!(memory.entries.len().is_power_of_two());
        let tail = memory.tail.load(Ordering::Relaxed);
        let head = memory.head.load(Ordering::Acquire);
        Producer { memory, tail, head }
    }

    /// The next incarnation of a dead producer. Entries that it had put in are shown, as
    /// far as `is_recorded` says that the buffer is the consumer's.
    ///
    /// # Errors
    /// [`Corrupt`].
    ///
    /// # Panics
    /// If the number of entries is not a power of two.
    pub fn adopt(
        memory: Memory<'a>,
        mut is_recorded: impl FnMut(Descriptor) -> bool,
    ) -> Result<Producer<'a>, Corrupt> {
        let mut producer = Producer::new(memory);
        let written = memory.written.load(Ordering::Relaxed);
        let hidden = written.wrapping_sub(producer.tail);
        // The consumer can write here too, and may be broken.
        if hidden as usize > memory.entries.len()
            || producer.unread()? + hidden as usize > memory.entries.len()
        {
            return Err(Corrupt);
        }
        while producer.tail != written && is_recorded(producer.entry(producer.tail)) {
            producer.tail = producer.tail.wrapping_add(1);
        }
        death::step();
        memory.written.store(producer.tail, Ordering::Release);
        producer.publish();
        Ok(producer)
    }

    fn entry(&self, at: u32) -> Descriptor {
        let at = at as usize & (self.memory.entries.len() - 1);
        Descriptor::unpack(self.memory.entries[at].load(Ordering::Relaxed))
    }

    /// The number of descriptors that fit now.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn room(&mut self) -> Result<usize, Corrupt> {
        let len = self.memory.entries.len() as u32;
        if self.tail.wrapping_sub(self.head) >= len {
            self.head = self.memory.head.load(Ordering::Acquire);
        }
        let used = self.tail.wrapping_sub(self.head);
        if used > len { Err(Corrupt) } else { Ok((len - used) as usize) }
    }

    /// True if more than `count` descriptors fit.
    #[inline]
    pub fn has_more_room_than(&mut self, count: usize) -> bool {
        let len = self.memory.entries.len();
        if len.saturating_sub(self.tail.wrapping_sub(self.head) as usize) <= count {
            self.head = self.memory.head.load(Ordering::Acquire);
        }
        len.saturating_sub(self.tail.wrapping_sub(self.head) as usize) > count
    }

    /// Puts one in; the consumer sees it after [`Producer::publish`]. False if the ring
    /// is full or corrupt. For adoption, record in between that the buffer is the
    /// consumer's.
    #[inline]
    #[must_use]
    pub fn push(&mut self, descriptor: Descriptor) -> bool {
        if !matches!(self.room(), Ok(1..)) {
            return false;
        }
        let at = self.tail as usize & (self.memory.entries.len() - 1);
        death::step();
        self.memory.entries[at].store(descriptor.pack(), Ordering::Relaxed);
        self.tail = self.tail.wrapping_add(1);
        death::step();
        self.memory.written.store(self.tail, Ordering::Release);
        true
    }

    /// Descriptors that the consumer has not taken yet, read from memory:
    /// [`Producer::room`] remembers only a lower bound of the room, refreshed when it is
    /// used up.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn unread(&mut self) -> Result<usize, Corrupt> {
        self.head = self.memory.head.load(Ordering::Acquire);
        let used = self.tail.wrapping_sub(self.head) as usize;
        if used > self.memory.entries.len() { Err(Corrupt) } else { Ok(used) }
    }

    /// True if entries were put in that the consumer does not see yet.
    #[inline]
    pub fn has_hidden(&self) -> bool {
        self.memory.tail.load(Ordering::Relaxed) != self.tail
    }

    /// Shows the consumer all entries that were put in.
    #[inline]
    pub fn publish(&mut self) {
        death::step();
        self.memory.tail.store(self.tail, Ordering::Release);
    }
}

/// The side that takes descriptors out.
pub struct Consumer<'a> {
    memory: Memory<'a>,
    head: u32,
    tail: u32,
}

impl<'a> Consumer<'a> {
    /// The consumer; only one per ring.
    ///
    /// # Panics
    /// If the number of entries is not a power of two.
    pub fn new(memory: Memory<'a>) -> Consumer<'a> {
        assert!(memory.entries.len().is_power_of_two());
        let head = memory.head.load(Ordering::Relaxed);
        let tail = memory.tail.load(Ordering::Acquire);
        Consumer { memory, head, tail }
    }

    /// The next incarnation of a dead consumer. Entries that it had taken out and not
    /// released are passed over, as far as `is_recorded` says that the buffer is not the
    /// producer's any more.
    ///
    /// # Errors
    /// [`Corrupt`].
    ///
    /// # Panics
    /// If the number of entries is not a power of two.
    pub fn adopt(
        memory: Memory<'a>,
        mut is_recorded: impl FnMut(Descriptor) -> bool,
    ) -> Result<Consumer<'a>, Corrupt> {
        let mut consumer = Consumer::new(memory);
        loop {
            let before = consumer.head;
            match consumer.pop()? {
                Some(descriptor) if is_recorded(descriptor) => {}
                Some(_) => {
                    consumer.head = before;
                    break;
                }
                None => break,
            }
        }
        consumer.release();
        Ok(consumer)
    }

    /// The next descriptor, or `None`.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn pop(&mut self) -> Result<Option<Descriptor>, Corrupt> {
        if self.head == self.tail {
            self.tail = self.memory.tail.load(Ordering::Acquire);
            if self.head == self.tail {
                return Ok(None);
            }
        }
        if self.tail.wrapping_sub(self.head) > self.memory.entries.len() as u32 {
            return Err(Corrupt);
        }
        let at = self.head as usize & (self.memory.entries.len() - 1);
        let word = self.memory.entries[at].load(Ordering::Relaxed);
        self.head = self.head.wrapping_add(1);
        Ok(Some(Descriptor::unpack(word)))
    }

    /// Gives the producer the room of all entries taken out.
    #[inline]
    pub fn release(&mut self) {
        death::step();
        self.memory.head.store(self.head, Ordering::Release);
    }

    /// True if entries were taken out whose room the producer does not have yet.
    #[inline]
    pub fn has_taken(&self) -> bool {
        self.memory.head.load(Ordering::Relaxed) != self.head
    }

    /// Descriptors to take, read from memory. Changes nothing.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.memory.tail.load(Ordering::Acquire).wrapping_sub(self.head) as usize
    }

    /// True if a descriptor is known to be there, or memory has one. Changes nothing.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.head != self.tail || self.head != self.memory.tail.load(Ordering::Acquire)
    }

    /// True if memory has no descriptor.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        self.tail = self.memory.tail.load(Ordering::Acquire);
        self.head == self.tail
    }
}
