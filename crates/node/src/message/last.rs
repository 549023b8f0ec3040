//! A runtime's last word: the number of its flows, in a word that outlives the process.
//!
//! The runtime writes it once a turn. A host that finds the runtime dead, or gives it up,
//! reads the last value, even if no process that watched the runtime is left. The runtime
//! writes it before the turn's frames become visible, so that others never know more of
//! the runtime than the word does.

use core::sync::atomic::{AtomicU64, Ordering};
use holdfast_wire::fault::{Fault, is_planted};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct LastWord(&'static AtomicU64);

impl LastWord {
    /// A last word at this address: 0 as long as nothing was written, otherwise the
    /// number of flows plus one.
    pub fn new(word: &'static AtomicU64) -> LastWord {
        LastWord(word)
    }

    /// Writes the runtime's present number of flows.
    #[inline]
    pub(crate) fn say(self, flows: u64) {
        let said = flows.saturating_add(1);
        // The comparison is with the word itself: the memory of a runtime whose turn is
        // undone may have another value. An unchanged word is not written.
        if self.0.load(Ordering::Relaxed) != said {
            self.0.store(said, Ordering::Relaxed);
        }
    }

    /// The number of flows in the last word; `None` if nothing was written.
    pub fn heard(self) -> Option<u64> {
        self.0
            .load(Ordering::Relaxed)
            .checked_sub(1)
            .filter(|_| !is_planted(Fault::IgnoresLastWords))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_is_what_was_said_last() {
        static WORD: AtomicU64 = AtomicU64::new(0);
        let (speaker, finder) = (LastWord::new(&WORD), LastWord::new(&WORD));
        assert_eq!(finder.heard(), None, "a runtime that has not turned yet");
        for flows in [0, 7, 7, 3, 0, u64::MAX - 1] {
            speaker.say(flows);
            assert_eq!(finder.heard(), Some(flows));
        }
    }
}
