//! A runtime's last word: how many flows it has, in a word that outlives the process.
//!
//! The runtime says it once a turn. Whoever finds the runtime dead, or gives it up, hears what it said last,
//! also where nobody lives any more who had watched it. It is said before the turn's frames are shown, so
//! that what others know of the runtime is never ahead of it.

use core::sync::atomic::{AtomicU64, Ordering};
use holdfast_wire::fault::{Fault, is_planted};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct LastWord(&'static AtomicU64);

impl LastWord {
    /// A last word that lies here: 0 as long as nothing was said, else one more than the flows.
    pub fn new(word: &'static AtomicU64) -> LastWord {
        LastWord(word)
    }

    /// Flows that the runtime has now.
    #[inline]
    pub(crate) fn say(self, flows: u64) {
        let said = flows.saturating_add(1);
        // Compared with the word itself: the memory of a runtime whose turn is undone may know of another
        // one. A word that stays is not written.
        if self.0.load(Ordering::Relaxed) != said {
            self.0.store(said, Ordering::Relaxed);
        }
    }

    /// Flows that it said last; `None` if it has said nothing.
    pub fn heard(self) -> Option<u64> {
        self.0.load(Ordering::Relaxed).checked_sub(1).filter(|_| !is_planted(Fault::IgnoresLastWords))
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
