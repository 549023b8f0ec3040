//! Quarantine at the switch: packets that were in flight in runtimes that ended.
//!
//! Theory of operation (docs/protocols/replay.md, "A packet that ends its process"). A
//! packet is known by its stamp, which no other packet of this switch ever has. A dead
//! runtime's manager says which packet was in flight there, and a runtime says on which
//! packets its functions panicked. Each of these reports counts. A packet with one report
//! is marked when it is sent again to the flow's new owner, and a copy is kept here. With
//! the second report the packet is *set aside*: it goes into a capture, and no runtime
//! gets it any more. If it has ended processes, its flow is closed for a while.
//!
//! Bounded: the oldest are forgotten.

use holdfast_wire::{FlowKey, Meta, Packet};
use std::collections::{BTreeMap, VecDeque};

/// Stamps that are remembered.
const KNOWN: usize = 1024;
/// Packets that are set aside and not fetched yet.
const WAITING: usize = 64;
/// Flows that are closed at a time, and the time for which each is closed, ns.
const CLOSED: usize = 256;
const CLOSED_FOR: u64 = 60_000_000_000;

/// A packet that no runtime gets any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// The packet's stamp, chain and port.
    pub meta: Meta,
    /// The flow's forward key.
    pub key: FlowKey,
    /// The bytes as they came in.
    pub bytes: Box<[u8]>,
}

#[derive(Debug, Default)]
struct Suspect {
    /// Number of reports: processes that ended with the packet in flight, and panics.
    times: u32,
    kept: Option<SetAside>,
}

/// The decision on a packet that is about to be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    Innocent,
    Suspect,
    Guilty,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    known: BTreeMap<u64, Suspect>,
    order: VecDeque<u64>,
    set_aside: Vec<SetAside>,
    closed: VecDeque<(FlowKey, u64)>,
}

impl Suspects {
    /// Counts a report: a process ended with this packet in flight, or functions panicked
    /// on it. Returns the packet if this is the second report.
    pub(super) fn note(&mut self, stamp: u64) -> Option<&SetAside> {
        if !self.known.contains_key(&stamp) {
            if self.order.len() == KNOWN
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
            self.order.push_back(stamp);
        }
        let suspect = self.known.entry(stamp).or_default();
        suspect.times += 1;
        if suspect.times != 2 || self.set_aside.len() == WAITING {
            return None;
        }
        self.set_aside.push(suspect.kept.take()?);
        self.set_aside.last()
    }

    #[inline]
    pub(super) fn judge(&self, stamp: u64) -> Judgement {
        match self.known.get(&stamp).map_or(0, |suspect| suspect.times) {
            0 => Judgement::Innocent,
            1 => Judgement::Suspect,
            _ => Judgement::Guilty,
        }
    }

    /// Keeps a copy of a suspect that is about to be sent again.
    pub(super) fn keep(&mut self, packet: &Packet, key: FlowKey) {
        if let Some(suspect) = self.known.get_mut(&packet.meta.stamp) {
            suspect.kept.get_or_insert_with(|| SetAside {
                meta: packet.meta,
                key,
                bytes: packet.bytes().into(),
            });
        }
    }

    /// Closes a flow for a while: none of its packets is let in.
    pub(super) fn close(&mut self, key: FlowKey, now: u64) {
        if self.closed.len() == CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back((key, now.saturating_add(CLOSED_FOR)));
    }

    /// True if a flow that is about to begin is closed.
    pub(super) fn is_closed(&mut self, key: &FlowKey, now: u64) -> bool {
        while self.closed.pop_front_if(|(_, until)| *until <= now).is_some() {}
        self.closed.iter().any(|(closed, _)| closed == key)
    }

    pub(super) fn take_set_aside(&mut self) -> Vec<SetAside> {
        core::mem::take(&mut self.set_aside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_wire::{MemoryPool, PacketPool};

    fn packet(pool: &mut MemoryPool, stamp: u64) -> Packet {
        let mut packet = pool.take().expect("there are buffers");
        assert!(packet.copy_from(&[stamp as u8; 60]));
        packet.meta.stamp = stamp;
        packet
    }

    fn key(port: u16) -> FlowKey {
        FlowKey { source_port: port, ..FlowKey::default() }
    }

    /// After one report the packet is marked and kept. After two it is set aside, once,
    /// as it was kept. A third report changes nothing. Another packet is not concerned.
    #[test]
    fn the_second_time_sets_aside() {
        let mut pool = MemoryPool::new(4);
        let (poison, other) = (packet(&mut pool, 7), packet(&mut pool, 8));
        let mut suspects = Suspects::default();
        assert_eq!(suspects.judge(7), Judgement::Innocent);
        assert_eq!(suspects.note(7), None);
        assert_eq!(suspects.judge(7), Judgement::Suspect);
        suspects.keep(&poison, key(1));
        suspects.keep(&other, key(2));
        assert_eq!(suspects.note(7).map(|aside| aside.key), Some(key(1)));
        assert_eq!(
            (suspects.judge(7), suspects.judge(8)),
            (Judgement::Guilty, Judgement::Innocent)
        );
        assert_eq!(suspects.note(7), None);
        let aside = suspects.take_set_aside();
        assert_eq!(
            aside.iter().map(|aside| (aside.meta.stamp, &*aside.bytes)).collect::<Vec<_>>(),
            [(7, poison.bytes())]
        );
        assert_eq!(suspects.take_set_aside(), []);
    }

    /// The table keeps the latest stamps, however many reports arrive.
    #[test]
    fn the_oldest_are_forgotten() {
        let mut suspects = Suspects::default();
        (1..=3 * KNOWN as u64).for_each(|stamp| assert!(suspects.note(stamp).is_none()));
        let known = |suspects: &Suspects, stamp| suspects.judge(stamp) == Judgement::Suspect;
        assert!(!known(&suspects, 2 * KNOWN as u64) && known(&suspects, 2 * KNOWN as u64 + 1));
        assert_eq!((suspects.known.len(), suspects.order.len()), (KNOWN, KNOWN));
    }

    #[test]
    fn a_closed_flow_may_begin_anew_after_a_while() {
        let mut suspects = Suspects::default();
        (0..=CLOSED as u16).for_each(|port| suspects.close(key(port), 5));
        assert!(!suspects.is_closed(&key(0), 6), "the oldest made room");
        assert!(
            suspects.is_closed(&key(1), 5 + CLOSED_FOR - 1)
                && !suspects.is_closed(&key(1), 5 + CLOSED_FOR)
        );
        assert_eq!(suspects.closed.len(), 0);
    }
}
