//! The in-flight packet, in words that outlive the process: a manager that finds the
//! process dead can tell which packet the functions had.
//!
//! The words are true at each moment between two stores. The stamp, 0 for none, is valid
//! as long as it is there, and the switch's node is stored before it.

use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use holdfast_wire::NodeId;

/// See the module.
#[derive(Default)]
pub(crate) struct InFlight {
    /// The stamp, and the node of the switch that gave it.
    words: Option<[&'static AtomicU64; 2]>,
    stamp: u64,
}

impl InFlight {
    pub(crate) fn show(&mut self, words: [&'static AtomicU64; 2]) {
        self.words = Some(words);
    }

    /// Notes that the functions have this packet.
    #[inline]
    pub(crate) fn take(&mut self, switch: NodeId, stamp: u64) {
        self.stamp = stamp;
        if let Some([shown, of]) = self.words {
            of.store(switch.get().into(), Ordering::Relaxed);
            shown.store(stamp, Ordering::Release);
            // The functions' work stays behind this fence. The reader is no other thread,
            // but another process after this one's end.
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// Notes that the functions are through with the packet. Returns its stamp, 0 if they
    /// had none.
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
        let mut in_flight = InFlight::default();
        in_flight.take(NodeId::new(2), 5);
        assert_eq!((in_flight.put(), shown()), (5, [0, 0]), "nobody wants to know");
        in_flight.show([&WORDS[0], &WORDS[1]]);
        in_flight.take(NodeId::new(2), 7);
        assert_eq!(shown(), [7, 2]);
        assert_eq!((in_flight.put(), in_flight.put(), shown()), (7, 0, [0, 2]));
    }
}
