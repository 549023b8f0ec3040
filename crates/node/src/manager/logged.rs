//! Packets that functions log, each once.
//!
//! A flow that another runtime recovers from its packets is processed again, and the
//! function logs a packet that the dead runtime had logged too. A packet's stamp is the
//! same then, so the second log entry is known.

use crate::message::Logged;
use std::collections::VecDeque;

/// Entries that wait for the operator.
const WAITING: usize = 1024;
/// Entries that are remembered: a runtime logs ten per second and function at the most.
const REMEMBERED: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LoggedPackets {
    waiting: Vec<Logged>,
    recent: VecDeque<(u64, u16, u8, u32)>,
}

impl LoggedPackets {
    /// Handles entries of a runtime. Beyond the room for them, later ones are lost.
    pub(super) fn handle(&mut self, packets: Vec<Logged>) {
        for packet in packets {
            let known = (packet.stamp, packet.chain, packet.function, packet.about);
            if self.waiting.len() == WAITING || self.recent.contains(&known) {
                continue;
            }
            if self.recent.len() == REMEMBERED {
                self.recent.pop_front();
            }
            self.recent.push_back(known);
            self.waiting.push(packet);
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
    use holdfast_wire::FlowKey;

    fn logged(stamp: u64, chain: u16, about: u32) -> Logged {
        let key = FlowKey::default();
        Logged { chain, function: 0, about, ingress: 0, key, stamp, missed: 0 }
    }

    /// Another runtime logs the same packets again, and one more. Another reason, and
    /// another chain's packet with that stamp, are entries of their own.
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

    /// However many come, few wait, and few are remembered.
    #[test]
    fn there_is_room_for_so_many() {
        let mut packets = LoggedPackets::default();
        (0..5000).for_each(|stamp| packets.handle(vec![logged(stamp, 0, 0)]));
        assert_eq!(packets.take().len(), WAITING);
        (0..5000).for_each(|stamp| {
            packets.handle(vec![logged(5000 + stamp, 0, 0)]);
            packets.take();
        });
        assert_eq!(packets.recent.len(), REMEMBERED);
    }
}
