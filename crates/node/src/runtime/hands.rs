//! Which packet the functions have in their hands, in words that outlive the process: whoever finds it dead knows what it was doing.
//!
//! The words are written in an order in which each moment between two stores says the truth: the stamp, 0 for none, is valid as long as it is there, and whose it is stands there
//! before it does.

use crate::address::NodeId;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// See the module.
#[derive(Default)]
pub(crate) struct Hands {
    /// The stamp, and the node of the switch that gave it.
    words: Option<[&'static AtomicU64; 2]>,
    stamp: u64,
}

impl Hands {
    pub(crate) fn show(&mut self, words: [&'static AtomicU64; 2]) {
        self.words = Some(words);
    }

    /// A packet is given to the functions.
    #[inline]
    pub(crate) fn take(&mut self, switch: NodeId, stamp: u64) {
        self.stamp = stamp;
        if let Some([shown, of]) = self.words {
            of.store(switch.into(), Ordering::Relaxed);
            shown.store(stamp, Ordering::Release);
            // What the functions do stays behind this: who looks is no other thread, but somebody after this one's end.
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// They are through with it. Its stamp, 0 if they had none.
    #[inline]
    pub(crate) fn put(&mut self) -> u64 {
        if let Some([shown, _]) = self.words {
            shown.store(0, Ordering::Release);
        }
        core::mem::take(&mut self.stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    #[test]
    fn what_is_in_hand_is_shown() {
        static WORDS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
        let shown = || [0, 1].map(|at: usize| WORDS[at].load(Ordering::Relaxed));
        let mut hands = Hands::default();
        hands.take(2, 5);
        assert_eq!((hands.put(), shown()), (5, [0, 0]), "nobody wants to know");
        hands.show([&WORDS[0], &WORDS[1]]);
        hands.take(2, 7);
        assert_eq!(shown(), [7, 2]);
        assert_eq!((hands.put(), hands.put(), shown()), (7, 0, [0, 2]));
    }
}
