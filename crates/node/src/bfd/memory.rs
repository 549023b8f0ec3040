//! The state of a session that outlives its process, so that the next incarnation
//! continues it and the other side notices nothing.

/// A session as plain words, to be kept where they outlive a process.
/// [`Session`](super::Session) and [`Sessions`](super::Sessions) define their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory(pub [u64; Memory::WORDS]);

/// Bytes of [`Memory`]'s word of small fields, lowest first.
#[derive(Debug, Clone, Copy)]
pub(super) enum Byte {
    State,
    Diagnostic,
    DownFor,
    RemoteState,
    RemoteDiagnostic,
    Multiplier,
    IsDemanding,
    /// A bit of the caller's own: see [`Memory::is_marked`].
    Mark,
}

impl Memory {
    /// The number of words.
    pub const WORDS: usize = 9;

    pub(super) fn halves(low: u32, high: u32) -> u64 {
        u64::from(low) | u64::from(high) << 32
    }

    /// Lower and upper half of a word.
    pub(super) fn half(&self, word: usize) -> (u32, u32) {
        (self.0[word] as u32, (self.0[word] >> 32) as u32)
    }

    pub(super) fn byte(&self, byte: Byte) -> u8 {
        self.0[Memory::SMALL].to_le_bytes()[byte as usize]
    }

    pub(super) const SMALL: usize = 0;
    pub(super) const DISCRIMINATORS: usize = 1;
    pub(super) const SEQUENCES: usize = 2;
    pub(super) const TAKEN_UNTIL: usize = 3;
    pub(super) const REMOTE_INTERVALS: usize = 4;
    pub(super) const INTERVALS: usize = 5;
    pub(super) const SENT_AT: usize = 6;
    pub(super) const SINCE: usize = 7;
    /// The number of downs, and above that the UDP port.
    pub(super) const DOWNS: usize = 8;

    /// A bit that the caller keeps with the session.
    pub fn is_marked(&self) -> bool {
        self.byte(Byte::Mark) != 0
    }

    /// Sets the bit of [`Memory::is_marked`].
    pub fn mark(&mut self, is_marked: bool) {
        let mut bytes = self.0[Memory::SMALL].to_le_bytes();
        bytes[Byte::Mark as usize] = u8::from(is_marked);
        self.0[Memory::SMALL] = u64::from_le_bytes(bytes);
    }

    pub(super) fn source_port(&self) -> u16 {
        (self.0[Memory::DOWNS] >> 48) as u16
    }

    pub(super) fn set_source_port(&mut self, port: u16) {
        self.0[Memory::DOWNS] = self.0[Memory::DOWNS] & Memory::MAX_DOWNS | u64::from(port) << 48;
    }

    pub(super) const MAX_DOWNS: u64 = (1 << 48) - 1;
}
