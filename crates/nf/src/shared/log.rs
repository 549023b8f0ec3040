//! Messages of a function to the operator about single packets.
//!
//! Theory of operation. A function notes a packet, and a number of its own that says why,
//! which the daemon puts into words, or a text. The log has room for some notes,
//! allocated once. The notes per second of stamped time are limited; the next note tells
//! how many were missed.
//!
//! The runtime's report takes notes along, a few times in a second. A log of texts is
//! [prompt](Log::is_prompt): its notes leave in the turn in which they were made, and
//! ahead of the states and packets of that turn. A runtime that dies therefore loses
//! none whose packet it has sent. A packet that is processed again is noted again, with
//! the same [`Note::id`].

use super::{Shareable, SharedField};
use crate::Context;
use holdfast_wire::FlowKey;

const SECOND: u64 = 1_000_000_000;

/// A note on one packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The function's own number for the reason.
    pub about: u32,
    /// The function's text; empty if the number says all.
    pub text: Vec<u8>,
    /// The port of the box by which the packet came in.
    pub ingress: u8,
    /// The packet, as the function saw it.
    pub key: FlowKey,
    /// The packet's stamp, or the function's own number for the text: a replay gives the
    /// same.
    pub id: u64,
    /// Packets before this one that were not noted, because there were too many.
    pub missed: u64,
}

/// A note without its text, which is a range of the log's bytes.
#[derive(Debug, Clone, Copy)]
struct Entry {
    about: u32,
    ingress: u8,
    key: FlowKey,
    id: u64,
    missed: u64,
    text: (u32, u32),
    /// What was [appended](Log::append) to the text.
    more: &'static str,
}

/// Notes of a function; see the module.
#[derive(Debug, Clone)]
pub struct Log {
    entries: Vec<Entry>,
    texts: Vec<u8>,
    /// Maximum number of notes per second, and of notes that wait to be taken.
    most: usize,
    second: u64,
    noted: usize,
    missed: u64,
}

impl Log {
    /// Maximum number of notes per second, and of notes that wait to be taken, of a log
    /// without texts.
    pub const MOST: usize = 10;
    /// The same of a log of texts.
    pub const MOST_TEXTS: usize = 2000;
    /// Maximum length of a text, bytes.
    pub const MAX_TEXT: usize = 1024;
    /// Bytes of texts that wait to be taken.
    const TEXT_BYTES: usize = 1 << 18;

    /// A log without a note.
    #[expect(
        clippy::new_without_default,
        reason = "it allocates: nobody shall get one by accident"
    )]
    pub fn new() -> Log {
        Log::of(Log::MOST, 0)
    }

    /// A log of texts, without a note.
    pub fn of_texts() -> Log {
        Log::of(Log::MOST_TEXTS, Log::TEXT_BYTES)
    }

    fn of(most: usize, bytes: usize) -> Log {
        let (entries, texts) = (Vec::with_capacity(most), Vec::with_capacity(bytes));
        Log { entries, texts, most, second: 0, noted: 0, missed: 0 }
    }

    /// True if the notes leave in the turn in which they were made.
    pub fn is_prompt(&self) -> bool {
        self.texts.capacity() > 0
    }

    /// Notes a packet, or counts it as missed if there are too many.
    pub fn note(&mut self, about: u32, key: &FlowKey, ingress: u8, cx: &Context) {
        if self.may_note(cx) {
            self.push(about, cx.now(), key, ingress, (0, 0));
        }
    }

    /// Notes a packet with a text, of at most [`Log::MAX_TEXT`] bytes, or counts it as
    /// missed if there are too many. A note with the same `about`, `id` and key is the
    /// same note, whoever makes it.
    pub fn say(
        &mut self,
        (about, id): (u32, u64),
        key: &FlowKey,
        ingress: u8,
        cx: &Context,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        if !self.may_note(cx) {
            return;
        }
        let start = self.texts.len();
        write(&mut self.texts);
        self.texts.truncate(start + Log::MAX_TEXT);
        self.push(about, id, key, ingress, (start as u32, self.texts.len() as u32));
    }

    /// True if there is room for a note, and it is not one too many.
    fn may_note(&mut self, cx: &Context) -> bool {
        let second = cx.now() / SECOND;
        // Stamps of packets that are processed again, or were parked, are older.
        if second > self.second {
            (self.second, self.noted) = (second, 0);
        }
        let has_room = self.entries.len() < self.most
            && (!self.is_prompt() || self.texts.len() + Log::MAX_TEXT <= Log::TEXT_BYTES);
        let may = has_room && self.noted < self.most;
        if may {
            self.noted += 1;
        } else {
            self.missed += 1;
        }
        may
    }

    fn push(&mut self, about: u32, id: u64, key: &FlowKey, ingress: u8, text: (u32, u32)) {
        let missed = core::mem::take(&mut self.missed);
        self.entries.push(Entry { about, ingress, key: *key, id, missed, text, more: "" });
    }

    /// The number of notes that wait to be taken.
    pub fn waiting(&self) -> usize {
        self.entries.len()
    }

    /// Appends to the texts of the notes from the one with this index on, of those that
    /// wait to be taken. A text has one such end: the latest.
    pub fn append(&mut self, from: usize, more: &'static str) {
        self.entries.iter_mut().skip(from).for_each(|entry| entry.more = more);
    }

    /// Takes all notes, in order.
    pub fn take(&mut self) -> Vec<Note> {
        let text = |(start, end): (u32, u32), more: &str| {
            let text = self.texts.get(start as usize..end as usize).unwrap_or(&[]);
            [&text[..text.len().min(Log::MAX_TEXT - more.len())], more.as_bytes()].concat()
        };
        let note = |Entry { about, ingress, key, id, missed, text: range, more }| Note {
            about,
            text: text(range, more),
            ingress,
            key,
            id,
            missed,
        };
        let notes = self.entries.drain(..).map(note).collect();
        self.texts.clear();
        notes
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
        let room = log.entries.capacity();
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
        let next: Vec<(u32, u64)> =
            log.take().iter().map(|note| (note.about, note.missed)).collect();
        assert_eq!((next.len(), next[0], next[9]), (10, (0, 990), (9, 0)));
        log.note(1, &FlowKey::default(), 3, &at(9));
        assert_eq!(log.take().iter().map(|note| note.missed).collect::<Vec<_>>(), [15]);
        assert_eq!(log.entries.capacity(), room, "there was room for all");
        assert!(!log.is_prompt());
    }

    /// Older stamps, as those of a replay, take part in the present second's notes.
    #[test]
    fn an_older_second_renews_nothing() {
        let mut log = Log::new();
        let mut noted = 0;
        for number in 0..1000 {
            log.note(number, &FlowKey::default(), 3, &at(8 - u64::from(number) % 2));
            noted += log.take().len();
        }
        assert_eq!(noted, 10);
        log.note(1, &FlowKey::default(), 3, &at(9));
        assert_eq!(log.take().iter().map(|note| note.missed).collect::<Vec<_>>(), [990]);
    }

    /// What is appended to texts makes none longer than the limit.
    #[test]
    fn texts_are_appended_to() {
        let mut log = Log::of_texts();
        for len in [1, 2, Log::MAX_TEXT] {
            let text = vec![b'x'; len];
            let write = |texts: &mut Vec<u8>| texts.extend_from_slice(&text);
            log.say((1, len as u64), &FlowKey::default(), 3, &at(7), write);
        }
        assert_eq!(log.waiting(), 3);
        log.append(1, ", y");
        let texts: Vec<_> = log.take().into_iter().map(|note| note.text).collect();
        assert_eq!(texts[..2], [&b"x"[..], b"xx, y"]);
        assert!(texts[2].len() == Log::MAX_TEXT && texts[2].ends_with(b"x, y"));
        log.append(0, ", z");
        assert_eq!((log.waiting(), log.take().len()), (0, 0));
    }

    /// Texts are kept with their numbers, up to a length and a number, in memory that was
    /// there from the beginning.
    #[test]
    fn texts_have_their_room() {
        let mut log = Log::of_texts();
        assert!(log.is_prompt());
        let room = log.texts.capacity();
        let say = |log: &mut Log, number: u64, len: usize| {
            let text = format!("{number} {}", "x".repeat(len));
            log.say((1, number), &FlowKey::default(), 3, &at(7), |texts| {
                texts.extend_from_slice(text.as_bytes());
            });
        };
        say(&mut log, 5, 3);
        say(&mut log, 6, 0);
        say(&mut log, 7, 2000);
        let notes = log.take();
        let texts: Vec<_> =
            notes.iter().map(|note| (note.about, note.id, &note.text[..])).collect();
        assert_eq!(texts[..2], [(1, 5, &b"5 xxx"[..]), (1, 6, b"6 ")]);
        assert_eq!((texts[2].1, texts[2].2.len()), (7, Log::MAX_TEXT));
        (0..300).for_each(|number| say(&mut log, number, 1000));
        let notes = log.take();
        assert_eq!(notes.len(), 1 + (Log::TEXT_BYTES - Log::MAX_TEXT) / notes[0].text.len());
        (0..5000).for_each(|number| {
            say(&mut log, number, 0);
            if number % 100 == 0 {
                log.take();
            }
        });
        say(&mut log, 1, 0);
        assert_eq!(log.texts.capacity(), room, "there was room for all");
        log.say((1, 9), &FlowKey::default(), 3, &at(8), |_| {});
        let last = log.take().pop().map(|note| (note.id, note.missed > 3000));
        assert_eq!(last, Some((9, true)));
    }
}
