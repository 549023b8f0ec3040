//! A virtual port: the four rings between the manager and one runtime.
//!
//! Theory of operation. `rx` carries frames to the runtime, `tx` frames from it, `fill`
//! free buffers to it, `done` returned buffers. The manager hands out no more buffers
//! than a ring has entries, so the runtime's rings never overflow. A side that is about
//! to sleep says so in a word of its own and looks once more. A side that has put
//! something in looks at that word and, if it is set, writes to an eventfd. Everything
//! from the runtime's rings is checked against the manager's own record.
//!
//! The manager may die at any instruction; its next incarnation adopts the port while the
//! runtime goes on. The rings show which descriptors had been put in and not shown, and
//! which had been taken out and not released ([`crate::ring`]). The record has the number
//! of the runtime's buffers. The bell is rung once more, because it may not have been
//! rung. A frame that the manager was processing is lost; none comes twice.

mod guest;
mod host;
#[cfg(test)]
mod tests;

pub use guest::VportGuest;
pub use host::{VportCounters, VportHost};

use crate::ring::Memory;
use crate::shared_memory::{Layout, SharedMemory};
use crate::standby::Pair;
use rustix::fd::OwnedFd;
use std::io;
use std::sync::atomic::Ordering;

/// The version changes with the offsets below.
const LAYOUT: Layout =
    Layout { name: "the virtual port", magic: 0x686f_6c64_6661_7374, version: 6 };
/// Entries of every ring, and most buffers of a runtime.
const ENTRIES: usize = 8192;
/// Entries of the runtime's ring reserved for messages.
const RESERVE: usize = 1024;
/// Free buffers to keep in `fill`.
const FILL_TARGET: u32 = 1024;
/// Buffers that a runtime keeps instead of returning them at once.
const CACHE: usize = 256;

const HEADER_LEN: usize = 4096;
const RING_LEN: usize = SharedMemory::ring_len(ENTRIES);
const LEN: usize = HEADER_LEN + 4 * RING_LEN;

const RX: usize = 0;
const TX: usize = 1;
const FILL: usize = 2;
const DONE: usize = 3;

const AT_BUFFERS: usize = Layout::LEN;
const AT_HOST_SLEEPS: usize = 64;
const AT_GUEST_SLEEPS: usize = 128;
const AT_HEARTBEAT: usize = 192;
/// The stamp of the in-flight packet, 0 for none, and the node of the switch that gave
/// it.
const AT_IN_FLIGHT: usize = 256;
/// The runtime's last word.
const AT_LAST_WORD: usize = 272;
const AT_WORKER: usize = 320;
const AT_STANDBY: usize = 324;
const AT_TAKEOVERS: usize = 328;
const AT_KEEPER: usize = 332;
const AT_DEPUTY: usize = 336;

fn pair(memory: &SharedMemory) -> Pair {
    let word = |at: usize| memory.word32(at);
    Pair {
        worker: word(AT_WORKER),
        standby: word(AT_STANDBY),
        takeovers: word(AT_TAKEOVERS),
        keeper: word(AT_KEEPER),
        deputy: word(AT_DEPUTY),
    }
}

fn ring(memory: &SharedMemory, which: usize) -> Memory<'static> {
    memory.ring(HEADER_LEN + which * RING_LEN, ENTRIES)
}

/// Opens the memory of a port that another process made.
fn open(fd: OwnedFd, buffers: u32) -> io::Result<SharedMemory> {
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    let memory = SharedMemory::open(fd)?;
    LAYOUT.check(&memory, 0)?;
    if memory.len() != LEN {
        return Err(invalid("the virtual port is of another length"));
    }
    if memory.word32(AT_BUFFERS).load(Ordering::Relaxed) != buffers {
        return Err(invalid("the port belongs to another arena"));
    }
    Ok(memory)
}
