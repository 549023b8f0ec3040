//! Messages of a function to the operator about single packets.
//!
//! Theory of operation. A function notes a packet, and a number of its own that says why.
//! The log has room for a few notes, allocated once. The runtime's report takes them
//! along, and the daemon puts them into words. The notes per second of stamped time are
//! limited; the next note tells how many were missed.

use super::{Shareable, SharedField};
use crate::Context;
use holdfast_wire::FlowKey;

const SECOND: u64 = 1_000_000_000;

/// A note on one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    /// The function's own number for the reason.
    pub about: u32,
    /// The port of the box by which the packet came in.
    pub ingress: u8,
    /// The packet, as the function saw it.
    pub key: FlowKey,
    /// The packet's stamp: a replay gives the same.
    pub stamp: u64,
    /// Packets before this one that were not noted, because there were too many.
    pub missed: u64,
}

/// Notes of a function; see the module.
#[derive(Debug, Clone)]
pub struct Log {
    notes: Vec<Note>,
    second: u64,
    noted: usize,
    missed: u64,
}

impl Log {
    /// Maximum number of notes per second, and of notes that wait to be taken.
    pub const MOST: usize = 10;

    /// A log without a note.
    #[expect(
        clippy::new_without_default,
        reason = "it allocates: nobody shall get one by accident"
    )]
    pub fn new() -> Log {
        Log { notes: Vec::with_capacity(Log::MOST), second: 0, noted: 0, missed: 0 }
    }

    /// Notes a packet, or counts it as missed if there are too many.
    pub fn note(&mut self, about: u32, key: &FlowKey, ingress: u8, cx: &Context) {
        let second = cx.now() / SECOND;
        if second != self.second {
            (self.second, self.noted) = (second, 0);
        }
        if self.noted == Log::MOST || self.notes.len() == Log::MOST {
            self.missed += 1;
            return;
        }
        self.noted += 1;
        self.notes.push(Note {
            about,
            ingress,
            key: *key,
            stamp: cx.now(),
            missed: core::mem::take(&mut self.missed),
        });
    }

    /// Takes all notes, in order.
    pub fn take(&mut self) -> impl Iterator<Item = Note> + '_ {
        self.notes.drain(..)
    }
}

impl Shareable for Log {
    fn field(&mut self) -> SharedField<'_> {
        SharedField::Log(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Direction;

    fn at(second: u64) -> Context {
        let mut cx = Context::new(1);
        cx.begin(second * SECOND + 5, FlowKey::default(), Direction::Forward);
        cx
    }

    /// The first few packets of a flood are noted in each second, however often notes are
    /// taken, and the next note says how many were missed.
    #[test]
    fn a_flood_is_a_few_lines() {
        let mut log = Log::new();
        let room = log.notes.capacity();
        let mut taken = Vec::new();
        for number in 0..1000 {
            log.note(number, &FlowKey::default(), 3, &at(7));
            taken.extend(log.take());
        }
        assert_eq!(
            taken.iter().map(|note| note.about).collect::<Vec<_>>(),
            (0..10).collect::<Vec<_>>()
        );
        assert!(taken.iter().all(|note| (note.ingress, note.missed) == (3, 0)));
        (0..20).for_each(|number| log.note(number, &FlowKey::default(), 3, &at(8)));
        // The notes of second 8 have not been taken: the log is full.
        (0..5).for_each(|number| log.note(number, &FlowKey::default(), 3, &at(9)));
        let next: Vec<(u32, u64)> = log.take().map(|note| (note.about, note.missed)).collect();
        assert_eq!((next.len(), next[0], next[9]), (10, (0, 990), (9, 0)));
        log.note(1, &FlowKey::default(), 3, &at(9));
        assert_eq!(log.take().map(|note| note.missed).collect::<Vec<_>>(), [15]);
        assert_eq!(log.notes.capacity(), room, "there was room for all");
    }
}
