//! Records that arrived.

use super::MAX_LONG_RECORD;
use super::format::{FIRST_PART, LAST_PART, PART, PART_HEADER_LEN, RECORD_HEADER_LEN};
use holdfast_protection::Peer;

/// A record that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// The sender.
    pub from: Peer,
    /// The kind.
    pub kind: u8,
    start: usize,
    len: usize,
}

/// Records that arrived, in order per peer.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    records: Vec<Arrived>,
    /// Long records of which parts are missing, with their kinds.
    parts: Vec<(Peer, u8, Vec<u8>)>,
    /// Peers that began a new incarnation; everything of the earlier one is void.
    pub restarted: Vec<Peer>,
}

impl Inbox {
    /// The records.
    pub fn records(&self) -> impl Iterator<Item = (Arrived, &[u8])> + '_ {
        self.records_from(0)
    }

    /// The records, without the first `at`.
    pub(crate) fn records_from(&self, at: usize) -> impl Iterator<Item = (Arrived, &[u8])> + '_ {
        self.records
            .get(at..)
            .unwrap_or_default()
            .iter()
            .map(|record| (*record, &self.bytes[record.start..record.start + record.len]))
    }

    /// Forgets the records.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.records.clear();
        self.restarted.clear();
    }

    /// Notes that a peer has begun a new incarnation.
    pub(super) fn restart(&mut self, peer: Peer) {
        self.parts.retain(|(known, ..)| known.node != peer.node);
        self.restarted.push(peer);
    }

    /// Bytes that the records take.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() + self.records.len() * RECORD_HEADER_LEN
    }

    /// Takes the records of a frame.
    pub(super) fn take(&mut self, from: Peer, mut records: &[u8]) {
        while let Some((header, rest)) = records.split_first_chunk::<RECORD_HEADER_LEN>() {
            let len = u16::from_be_bytes([header[1], header[2]]) as usize;
            let Some(body) = rest.get(..len) else { return };
            records = &rest[len..];
            if header[0] == PART {
                self.take_part(from, body);
                continue;
            }
            let start = self.bytes.len();
            self.bytes.extend_from_slice(body);
            self.records.push(Arrived { from, kind: header[0], start, len });
        }
    }

    /// Takes a part of a long record, and with the last part delivers the record. A
    /// record is given up if its sender began a new incarnation, or its parts do not fit
    /// together.
    fn take_part(&mut self, from: Peer, body: &[u8]) {
        let Some((&[kind, place], body)) = body.split_first_chunk::<PART_HEADER_LEN>() else {
            return;
        };
        let (is_first, is_last) = (place & FIRST_PART != 0, place & LAST_PART != 0);
        if is_first {
            self.parts.retain(|(peer, ..)| peer.node != from.node);
            self.parts.push((from, kind, Vec::new()));
        }
        let Some(at) = self.parts.iter().position(|(peer, of, _)| *peer == from && *of == kind)
        else {
            return;
        };
        let (.., record) = &mut self.parts[at];
        if record.len() + body.len() > MAX_LONG_RECORD {
            self.parts.swap_remove(at);
            return;
        }
        record.extend_from_slice(body);
        if is_last {
            let (.., record) = self.parts.swap_remove(at);
            let (start, len) = (self.bytes.len(), record.len());
            self.bytes.extend_from_slice(&record);
            self.records.push(Arrived { from, kind, start, len });
        }
    }
}
