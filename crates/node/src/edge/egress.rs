//! The way out: route, hop, neighbour, port; and the errors about packets that cannot
//! take it.

use super::addresses::{is_link_local, is_multicast};
use super::icmp::Problem;
use super::neighbors::{Due, Lookup};
use super::{Edge, EdgeOut, addresses};
use holdfast_protection::Released;
use holdfast_wire::fragmentation::{Cut, may_cut};
use holdfast_wire::header::{ETHERTYPE_VLAN, Mac};
use holdfast_wire::nsh::Flags;
use holdfast_wire::{DropReason, FlowKey, Meta, Packet, PacketPool, ip_bytes, vlan};

impl Edge {
    /// Routes and sends a parsed packet that a chain has released.
    pub fn handle_egress(
        &mut self,
        released: Released<Packet>,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        if released.get().meta.flags & Flags::TURNED != 0 {
            return self.answer_refused(released, now, out, pool);
        }
        let Some((source, destination)) = addresses(released.get()) else {
            return self.drop(released.into_inner(), DropReason::UnknownEthertype, pool);
        };
        if released.get().ttl().is_some_and(|ttl| ttl <= 1) {
            return self.drop(released.into_inner(), DropReason::TtlExceeded, pool);
        }
        if is_multicast(&destination) || self.is_broadcast(&destination) {
            return self.drop(released.into_inner(), DropReason::Multicast, pool);
        }
        // The chain should have translated this destination, and did not. If the packet
        // came in again, it could loop until its hops are spent.
        if self.is_owned(&destination) {
            return self.drop(released.into_inner(), DropReason::NoMapping, pool);
        }
        if is_link_local(&destination) {
            return self.drop(released.into_inner(), DropReason::LinkLocal, pool);
        }
        if self.own.iter().any(|own| own.address == destination) {
            return self.drop(released.into_inner(), DropReason::Local, pool);
        }
        let mut packet = released;
        let found = match self.watch.is_calm() {
            true => self.routes.find(&destination),
            false => self.routes.find_where(&destination, |route| self.watch.may_use(route)),
        };
        let Some(&route) = found else {
            let is_dead = self.routes.find(&destination).is_some();
            self.drops.count(if is_dead {
                DropReason::NextHopDown
            } else {
                DropReason::NoRouteToHost
            });
            let ingress = packet.get().meta.ingress;
            return self.report_back(
                ingress,
                packet.into_inner(),
                Problem::NoRoute,
                now,
                out,
                pool,
            );
        };
        if packet.get().layers.vlan_tags > 0 && !self.may_leave_tagged(route.port, packet.get()) {
            return self.drop(packet.into_inner(), DropReason::UnknownVlan, pool);
        }
        let mtu = self.config.ports[route.port as usize].mtu;
        if is_longer(packet.get(), mtu) && Cut::new(packet.get(), mtu).is_none() {
            return self.refuse_too_long(route.port, packet.into_inner(), now, out, pool);
        }
        // An error of the box names the port that it leaves by, not the one where its
        // cause could not leave (RFC 1812, section 4.3.2.4). A source that the chain has
        // translated to a flow's address stays.
        if packet.get().meta.flags & Flags::OWN != 0
            && self.own.iter().any(|own| own.address == source)
            && let Some(own) = self.leaving_address(route.port, &destination)
        {
            packet.set_error_source(&own);
        }
        packet.decrement_ttl();
        let next_hop = route.gateway.map_or(destination, ip_bytes);
        self.send_by(route.port, &next_hop, packet, now, out, pool);
    }

    /// True if a tag that a function has put on says a priority alone, or one of the
    /// port's VLANs for flows.
    fn may_leave_tagged(&self, port: u8, packet: &Packet) -> bool {
        let Some(&[_, _, high, low]) = packet.bytes().get(12..16) else { return false };
        let id = u16::from_be_bytes([high, low]) & vlan::ID;
        packet.layers.vlan_tags == 1
            && packet.bytes()[12..14] == ETHERTYPE_VLAN.to_be_bytes()
            && (id == 0 || self.config.ports[usize::from(port)].flow_vlans.contains(&id))
    }

    /// Sends a packet by a port to a neighbour, or holds it until the neighbour's MAC
    /// address is known.
    pub(super) fn send_by(
        &mut self,
        port: u8,
        next_hop: &[u8; 16],
        packet: Released<Packet>,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        match self.neighbors.lookup(port, next_hop, now) {
            Lookup::Known(mac) => {
                self.transmit(port, mac, packet, now, out, pool);
            }
            Lookup::Stale(mac) => {
                self.transmit(port, mac, packet, now, out, pool);
                self.ask_for(port, next_hop, Some(mac), out, pool);
            }
            Lookup::Unknown { ask } => {
                if let Some(packet) = self.neighbors.hold(port, next_hop, packet) {
                    self.drop(packet.into_inner(), DropReason::NeighborUnresolved, pool);
                }
                if ask {
                    self.ask_for(port, next_hop, None, out, pool);
                }
            }
            Lookup::Refused => self.drop(packet.into_inner(), DropReason::NeighborUnresolved, pool),
        }
    }

    /// Sends a routed packet to a station, in fragments if it is longer than the port
    /// allows.
    pub(super) fn transmit(
        &mut self,
        port: u8,
        to: Mac,
        mut packet: Released<Packet>,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        packet.set_macs(to, self.config.ports[port as usize].mac);
        let before = out.transmit.len();
        // The MTU may have shrunk while the packet waited.
        if let Err(packet) = self.push_cut(port, packet, out, pool) {
            self.refuse_too_long(port, packet.into_inner(), now, out, pool);
        } else if out.transmit.len() > before {
            self.counts[port as usize].forwarded += 1;
        }
    }

    /// Queues an addressed packet for its port, all of its fragments or none. Gives it
    /// back if it is too long and cannot be cut.
    pub(super) fn push_cut(
        &mut self,
        port: u8,
        mut packet: Released<Packet>,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) -> Result<(), Released<Packet>> {
        let mtu = self.config.ports[port as usize].mtu;
        if !is_longer(packet.get(), mtu) {
            out.transmit.push((port, packet));
            return Ok(());
        }
        let Some(cut) = Cut::new(packet.get(), mtu) else { return Err(packet) };
        let at = out.transmit.len();
        for number in 0..cut.later() {
            let fragment = match pool.take().map(|empty| packet.later_fragment(&cut, number, empty))
            {
                Some(Ok(fragment)) => fragment,
                failed => {
                    // A datagram without all of its fragments is useless to its receiver.
                    out.transmit
                        .drain(at..)
                        .for_each(|(_, fragment)| pool.put(fragment.into_inner()));
                    let reason = match failed {
                        Some(Err(empty)) => {
                            pool.put(empty);
                            DropReason::FrameTooLarge
                        }
                        _ => DropReason::ArenaEmpty,
                    };
                    self.drop(packet.into_inner(), reason, pool);
                    return Ok(());
                }
            };
            out.transmit.push((port, fragment));
        }
        packet.first_fragment(&cut);
        out.transmit.insert(at, (port, packet));
        Ok(())
    }

    /// Refuses a packet that is longer than the port's MTU and was not cut. A sender that
    /// forbade fragments is told the size (RFC 1191, section 4; RFC 4443, section 3.2). A
    /// sender that allows them would not listen.
    fn refuse_too_long(
        &mut self,
        port: u8,
        packet: Packet,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        if may_cut(&packet) {
            return self.drop(packet, DropReason::FrameTooLarge, pool);
        }
        self.drops.count(DropReason::FrameTooLarge);
        let mtu = self.config.ports[port as usize].mtu;
        self.report_back(port, packet, Problem::TooBig(mtu), now, out, pool);
    }

    /// Sends an error about a packet that a chain may have changed. The error comes in
    /// again by the port that it concerns, and the chain translates it back.
    fn report_back(
        &mut self,
        port: u8,
        packet: Packet,
        problem: Problem,
        now: u64,
        out: &mut EdgeOut,
        pool: &mut dyn PacketPool,
    ) {
        if let Some(mut packet) = self.make_error(port, packet, problem, now, pool) {
            (packet.meta.flags, packet.meta.priority) = (Flags::OWN, 0);
            self.originate(port);
            out.reinject.push((port, packet));
        }
    }

    /// Handles a packet of [`EdgeOut::reinject`]. The packet goes to its chain without
    /// the checks that a stranger's packet gets.
    pub fn handle_reinjected(
        &mut self,
        port: u8,
        mut packet: Packet,
        pool: &mut dyn PacketPool,
    ) -> Option<(FlowKey, Packet)> {
        let Meta { flags, priority, .. } = packet.meta;
        packet.meta =
            Meta { flags: flags & Flags::OWN, ingress: port, priority, ..Meta::default() };
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

    /// Handles time-outs of sessions, neighbours and fragments.
    pub fn handle_timeout(&mut self, now: u64, out: &mut EdgeOut, pool: &mut dyn PacketPool) {
        if self.watch.poll_timeout() <= now {
            self.turn_bfd(now, out, pool);
        }
        self.fragments.handle_timeout(now);
        self.drop_fragments(pool);
        self.expire_fragments(now, out, pool);
        if self.neighbors.poll_timeout() > now {
            return;
        }
        let mut due = Vec::new();
        self.neighbors.due(now, &mut due);
        for due in due {
            match due {
                Due::Ask(port, address, known) => self.ask_for(port, &address, known, out, pool),
                // A full TTL shows a packet of the box's own, about which no error is
                // sent: a packet from elsewhere has lost a hop.
                Due::Unreachable(_, packet) if packet.get().ttl() == Some(u8::MAX) => {
                    self.drop(packet.into_inner(), DropReason::NeighborUnresolved, pool);
                }
                Due::Unreachable(port, packet) => {
                    self.drops.count(DropReason::NeighborUnresolved);
                    self.report_back(
                        port,
                        packet.into_inner(),
                        Problem::HostUnreachable,
                        now,
                        out,
                        pool,
                    );
                }
            }
        }
    }

    /// When [`Edge::handle_timeout`] is due next.
    pub fn poll_timeout(&self) -> u64 {
        let fragments = self.fragments.poll_timeout().min(self.reassembly.poll_timeout());
        self.neighbors.poll_timeout().min(fragments).min(self.watch.poll_timeout())
    }

    /// Gives back every packet that waits, as at the end of the process.
    pub fn abandon(&mut self, pool: &mut dyn PacketPool) {
        for packet in self.neighbors.abandon() {
            self.drop(packet.into_inner(), DropReason::ShuttingDown, pool);
        }
        self.fragments.abandon();
        self.reassembly.abandon();
        self.drop_fragments(pool);
    }
}

fn is_longer(packet: &Packet, mtu: u16) -> bool {
    packet.ip_len() > u64::from(mtu)
}
