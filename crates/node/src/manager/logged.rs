//! Packets that functions log, each once.
//!
//! A flow that another runtime recovers from its packets is processed again, and so is a
//! segment that its sender repeats because the runtime died with it. The function then
//! logs what the dead runtime had logged too. The entry's number is the same, so the
//! second one is recognized.

use crate::message::Logged;
use holdfast_wire::FlowKey;
use std::collections::{HashSet, VecDeque};

/// Maximum number of entries that wait for the operator.
const WAITING: usize = 1024;
/// Maximum number of remembered entries: those of some seconds, of which a runtime logs
/// at most ten per second and function, or two thousand texts.
const REMEMBERED: usize = 1 << 14;

/// An entry's identity: number, chain, function, reason, packet.
type Identity = (u64, u16, u8, u32, FlowKey);

/// Log entries of packets; see the module.
#[derive(Debug, Default)]
pub(super) struct LoggedPackets {
    waiting: Vec<Logged>,
    recent: VecDeque<Identity>,
    known: HashSet<Identity>,
    /// Packets that were not logged since the latest entry.
    missed: u64,
}

impl LoggedPackets {
    /// Handles entries of a runtime. Entries without room are counted as missed.
    pub(super) fn handle(&mut self, packets: Vec<Logged>) {
        for mut packet in packets {
            self.missed = self.missed.saturating_add(core::mem::take(&mut packet.missed));
            let identity = (packet.id, packet.chain, packet.function, packet.about, packet.key);
            if self.known.contains(&identity) {
                continue;
            }
            if self.waiting.len() == WAITING {
                self.missed = self.missed.saturating_add(1);
                continue;
            }
            if self.recent.len() == REMEMBERED
                && let Some(oldest) = self.recent.pop_front()
            {
                self.known.remove(&oldest);
            }
            self.recent.push_back(identity);
            self.known.insert(identity);
            self.waiting.push(Logged { missed: core::mem::take(&mut self.missed), ..packet });
        }
    }

    /// Takes the entries, in order.
    pub(super) fn take(&mut self) -> Vec<Logged> {
        core::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(id: u64, chain: u16, about: u32) -> Logged {
        let (key, text) = (FlowKey::default(), Vec::new());
        Logged { chain, function: 0, about, text, ingress: 0, key, id, missed: 0 }
    }

    /// Entries that another runtime logs again are dropped, and new ones are kept. A
    /// packet with another reason, or of another chain, is an entry of its own, even at
    /// the same timestamp.
    #[test]
    fn a_packet_is_logged_once() {
        let mut packets = LoggedPackets::default();
        packets.handle(vec![logged(5, 0, 1), logged(6, 0, 1)]);
        assert_eq!(packets.take().len(), 2);
        let again = vec![logged(5, 0, 1), logged(6, 0, 1), logged(7, 0, 1)];
        packets.handle([again, vec![logged(6, 0, 2), logged(6, 1, 1)]].concat());
        let more = vec![logged(7, 0, 1), logged(6, 0, 2), logged(6, 1, 1)];
        assert_eq!(packets.take(), more);
    }

    /// The numbers of waiting and of remembered entries are bounded.
    #[test]
    fn there_is_room_for_so_many() {
        let mut packets = LoggedPackets::default();
        (0..5000).for_each(|stamp| packets.handle(vec![logged(stamp, 0, 0)]));
        assert_eq!(packets.take().len(), WAITING);
        packets.handle(vec![Logged { missed: 7, ..logged(9000, 0, 0) }]);
        let missed: Vec<u64> = packets.take().iter().map(|entry| entry.missed).collect();
        assert_eq!(missed, [5000 - WAITING as u64 + 7], "the next one says how many");
        (0..3 * REMEMBERED as u64).for_each(|id| {
            packets.handle(vec![logged(10_000 + id, 0, 0)]);
            packets.take();
        });
        assert_eq!((packets.recent.len(), packets.known.len()), (REMEMBERED, REMEMBERED));
    }
}
