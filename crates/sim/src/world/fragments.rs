//! Fragments at the edges of a host's switches, where a fragment waits for the first one
//! of its datagram, which has the ports.

use super::hosts::Host;
use holdfast_node::edge::fragment::{FragmentLimits, Fragmented, Fragments};
use holdfast_wire::{DropCounters, Packet, PacketPool};

/// Limits of the fragments that wait at one switch's edge.
const LIMITS: FragmentLimits =
    FragmentLimits { datagrams: 64, held: 64, held_per_source: 32, held_bytes: 1 << 16 };

/// Empty fragment tables for so many edges.
pub(super) fn edges(count: usize) -> Vec<Fragments> {
    (0..count).map(|_| Fragments::new(LIMITS, 0)).collect()
}

impl Host {
    /// Packets that wait in the hub, and fragments that wait at its edges.
    pub(super) fn held(&self) -> usize {
        let waiting = self.fragments.iter().map(Fragments::held).sum::<usize>();
        waiting + self.hub.switches().map(|switch| switch.held()).sum::<usize>()
    }

    /// Ends the hub and its edges. Returns the drops of fragments that waited.
    pub(super) fn abandon(&mut self) -> DropCounters {
        self.hub.abandon(&mut self.pool);
        self.fragments.iter_mut().for_each(Fragments::abandon);
        let mut drops = DropCounters::default();
        self.drop_fragments(&mut drops);
        let count = self.fragments.len();
        self.fragments = edges(count);
        drops
    }

    /// Drops the fragments that have waited too long.
    pub(super) fn drop_fragments(&mut self, drops: &mut DropCounters) {
        for fragments in &mut self.fragments {
            while let Some((packet, reason)) = fragments.poll_dropped() {
                drops.count(reason);
                self.pool.put(packet);
            }
        }
    }

    /// Finds a fragment's flow, as an edge does, and hands the switch also the fragments
    /// that waited for this one.
    pub(super) fn handle_fragment(
        &mut self,
        switch: u16,
        packet: Packet,
        now: u64,
    ) -> DropCounters {
        let Some(fragments) = self.fragments.get_mut(usize::from(switch)) else {
            self.pool.put(packet);
            return DropCounters::default();
        };
        let mut dropped = None;
        match fragments.handle(packet, now) {
            Fragmented::Ready(key, packet) => self.hub.handle_packet(switch, key, packet),
            Fragmented::Held => {}
            Fragmented::Dropped(packet, reason) => {
                dropped = Some(reason);
                self.pool.put(packet);
            }
        }
        while let Some((key, packet)) = fragments.poll_ready() {
            self.hub.handle_packet(switch, key, packet);
        }
        let mut drops = DropCounters::default();
        self.drop_fragments(&mut drops);
        dropped.into_iter().for_each(|reason| drops.count(reason));
        drops
    }
}
