//! Records that arrived.

use super::format::RECORD_HEADER_LEN;
use holdfast_protection::Peer;

/// A record that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// From whom.
    pub from: Peer,
    /// Its kind.
    pub kind: u8,
    start: usize,
    len: usize,
}

/// Records that arrived, in order per peer.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    records: Vec<Arrived>,
    /// Peers that began a new life; everything of the old one is void.
    pub restarted: Vec<Peer>,
}

impl Inbox {
    /// The records.
    pub fn records(&self) -> impl Iterator<Item = (Arrived, &[u8])> + '_ {
        self.records_from(0)
    }

    /// The records, without so many at the beginning.
    pub(crate) fn records_from(&self, at: usize) -> impl Iterator<Item = (Arrived, &[u8])> + '_ {
        self.records
            .get(at..)
            .unwrap_or_default()
            .iter()
            .map(|record| (*record, &self.bytes[record.start..record.start + record.len]))
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.records.clear();
        self.restarted.clear();
    }

    /// Bytes that they take.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() + self.records.len() * RECORD_HEADER_LEN
    }

    /// Takes the records of a frame.
    pub(super) fn take(&mut self, from: Peer, mut records: &[u8]) {
        while let Some((header, rest)) = records.split_first_chunk::<RECORD_HEADER_LEN>() {
            let len = u16::from_be_bytes([header[1], header[2]]) as usize;
            let Some(body) = rest.get(..len) else { return };
            let start = self.bytes.len();
            self.bytes.extend_from_slice(body);
            self.records.push(Arrived { from, kind: header[0], start, len });
            records = &rest[len..];
        }
    }
}
