//! The way out: route, hop, neighbour, port; and what is told about packets that cannot take it.

use super::addresses::is_multicast;
use super::icmp::Problem;
use super::neighbors::{Due, Lookup};
use super::{Edge, EdgeOut, addresses};
use holdfast_protection::Released;
use holdfast_wire::header::Mac;
use holdfast_wire::{DropReason, FlowKey, Packet, PacketPool, ip_bytes};

impl Edge {
    /// A packet that a chain has released, parsed: routes it and sends it.
    pub fn handle_egress(&mut self, released: Released<Packet>, now: u64, out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        let Some((_, destination)) = addresses(released.get()) else {
            return self.drop(released.into_inner(), DropReason::UnknownEthertype, pool);
        };
        if released.get().ttl().is_some_and(|ttl| ttl <= 1) {
            return self.drop(released.into_inner(), DropReason::TtlExceeded, pool);
        }
        if is_multicast(&destination) || self.is_broadcast(&destination) {
            return self.drop(released.into_inner(), DropReason::Multicast, pool);
        }
        // Its chain was to lead it elsewhere, and did not. Sent in again it could go round until its hops are spent.
        if self.is_owned(&destination) {
            return self.drop(released.into_inner(), DropReason::NoMapping, pool);
        }
        if self.is_own(&destination) {
            return self.drop(released.into_inner(), DropReason::Local, pool);
        }
        let mut packet = released;
        let Some(&route) = self.routes.find(&destination) else {
            self.drops.count(DropReason::NoRouteToHost);
            let ingress = packet.get().meta.ingress;
            return self.report_back(ingress, packet.into_inner(), Problem::NoRoute, now, out, pool);
        };
        let mtu = self.config.ports[route.port as usize].mtu;
        let layers = &packet.get().layers;
        if layers.end.saturating_sub(layers.l3) > mtu {
            self.drops.count(DropReason::FrameTooLarge);
            return self.report_back(route.port, packet.into_inner(), Problem::TooBig(mtu), now, out, pool);
        }
        packet.decrement_ttl();
        let next_hop = route.gateway.map_or(destination, ip_bytes);
        match self.neighbors.lookup(route.port, &next_hop, now) {
            Lookup::Known(mac) => {
                self.address_frame(route.port, mac, &mut packet);
                out.transmit.push((route.port, packet));
            }
            Lookup::Stale(mac) => {
                self.address_frame(route.port, mac, &mut packet);
                out.transmit.push((route.port, packet));
                self.ask_for(route.port, &next_hop, Some(mac), out, pool);
            }
            Lookup::Unknown { ask } => {
                if let Some(packet) = self.neighbors.hold(route.port, &next_hop, packet) {
                    self.drop(packet.into_inner(), DropReason::NeighborUnresolved, pool);
                }
                if ask {
                    self.ask_for(route.port, &next_hop, None, out, pool);
                }
            }
            Lookup::Refused => self.drop(packet.into_inner(), DropReason::NeighborUnresolved, pool),
        }
    }

    pub(super) fn address_frame(&self, port: u8, to: Mac, packet: &mut Released<Packet>) {
        let from = self.config.ports[port as usize].mac;
        packet.set_macs(to, from);
    }

    /// An error about a packet that a chain may have changed: it comes in again by the port that it concerns, and the chain translates it back.
    fn report_back(
        &mut self,
        port: u8,
        packet: Packet,
        problem: Problem,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        if let Some(packet) = self.make_error(port, packet, problem, now, pool) {
            out.reinject.push((port, packet));
        }
    }

    /// A packet of [`EdgeOut::reinject`]: goes to its chain without the checks that a stranger's packet gets.
    pub fn handle_reinjected(&mut self, port: u8, mut packet: Packet, pool: &mut dyn PacketPool) -> Option<(FlowKey, Packet)> {
        packet.meta = Default::default();
        packet.meta.ingress = port;
        let is_parsed = packet.parse().is_ok();
        let (key, reason) = if is_parsed && packet.layers.fragment {
            (self.fragments.key_of(&packet), DropReason::FragmentUnknown)
        } else {
            (FlowKey::of(&packet), DropReason::StateInvalid)
        };
        match key {
            Some(key) => Some((key, packet)),
            None => {
                self.drop(packet, reason, pool);
                None
            }
        }
    }

    /// Timeouts of neighbours and of fragments.
    pub fn handle_timeout(&mut self, now: u64, out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        self.fragments.handle_timeout(now);
        self.drop_fragments(pool);
        if self.neighbors.poll_timeout() > now {
            return;
        }
        let mut due = Vec::new();
        self.neighbors.due(now, &mut due);
        for due in due {
            match due {
                Due::Ask(port, address, known) => self.ask_for(port, &address, known, out, pool),
                Due::Unreachable(port, packet) => {
                    self.drops.count(DropReason::NeighborUnresolved);
                    self.report_back(port, packet.into_inner(), Problem::HostUnreachable, now, out, pool);
                }
            }
        }
    }

    /// When [`Edge::handle_timeout`] is due next.
    pub fn poll_timeout(&self) -> u64 {
        self.neighbors.poll_timeout().min(self.fragments.poll_timeout())
    }

    /// Gives back every packet that waits, as at the end of the process.
    pub fn abandon(&mut self, pool: &mut dyn PacketPool) {
        for packet in self.neighbors.abandon() {
            self.drop(packet.into_inner(), DropReason::ShuttingDown, pool);
        }
        self.fragments.abandon();
        self.drop_fragments(pool);
    }
}
