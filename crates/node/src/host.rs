//! A host: the edges and the hub, from port to port.
//!
//! Each switch has an edge of its own: its ports, their addresses and routes, and the
//! addresses that its chains use. An edge knows only its own ports, counted from 0; the
//! host knows which these are of all.
//!
//! In: frames from ports and runtimes, ends of processes, the time. Out: [`HostOut`].
//! Never: I/O.

use crate::bfd::{Key, Memory, Session};
use crate::edge::{Edge, EdgeOut, Liveness, PortCounts};
use crate::hub::{Hub, HubOut};
use holdfast_protection::{Peer, Released};
use holdfast_wire::{DropCounters, Packet, PacketPool};

/// Output of the host, besides [`HubOut`]'s frames for runtimes and orders.
#[derive(Debug, Default)]
pub struct HostOut {
    /// Frames to send, by port.
    pub transmit: Vec<(u8, Released<Packet>)>,
    /// Output for runtimes and processes.
    pub hub: HubOut,
    /// Changes of sessions with routers, with the ports' numbers among all.
    pub liveness: Vec<Liveness>,
    /// Notes on these sessions for the next incarnation of this host, each with its place
    /// among all of them, to be kept in order before anything is sent.
    pub notes: Vec<(u16, Memory)>,
    edge: EdgeOut,
}

/// The edge in front of a switch.
struct Front {
    edge: Edge,
    /// The edge's ports, by their numbers among all ports.
    ports: Vec<u8>,
    /// Sessions with routers of the fronts before this one.
    before: u16,
}

/// See the module.
pub struct Host {
    fronts: Vec<Front>,
    /// Per port, its switch and its number there.
    places: Vec<Option<(u16, u8)>>,
    watches: bool,
    /// Switches, manager, fence.
    pub hub: Hub,
}

impl Host {
    /// A host of these parts: per switch its edge, and the edge's ports, in order.
    pub fn new(edges: Vec<(Edge, Vec<u8>)>, hub: Hub) -> Host {
        assert_eq!(edges.len(), hub.switches().len(), "each switch has an edge");
        let count = edges
            .iter()
            .flat_map(|(_, ports)| ports)
            .map(|port| usize::from(*port) + 1)
            .max()
            .unwrap_or(0);
        let mut places = vec![None; count];
        for ((_, ports), switch) in edges.iter().zip(0..) {
            for (port, number) in ports.iter().zip(0..) {
                places[usize::from(*port)] = Some((switch, number));
            }
        }
        let mut watched = 0;
        let front = |(edge, ports): (Edge, Vec<u8>)| {
            let before = watched;
            watched += edge.watched() as u16;
            Front { edge, ports, before }
        };
        Host { fronts: edges.into_iter().map(front).collect(), places, watches: false, hub }
    }

    /// Number of sessions with routers, over all switches.
    pub fn watched(&self) -> usize {
        self.fronts.iter().map(|front| front.edge.watched()).sum()
    }

    /// Begins to watch the routers where ports are served: from now on frames that come
    /// by the ports are heard. `memory` gives an earlier incarnation's note of the
    /// session at a place.
    pub fn watch_routers(&mut self, memory: impl Fn(u16) -> Option<Memory>) {
        self.watches = true;
        for Front { edge, before, .. } in &mut self.fronts {
            let places = *before..*before + edge.watched() as u16;
            edge.remember(places.map(&memory).collect());
        }
    }

    /// The switch to which a port belongs.
    pub fn switch_of(&self, port: u8) -> Option<u16> {
        self.place(port).map(|(switch, _)| switch)
    }

    fn place(&self, port: u8) -> Option<(u16, u8)> {
        self.places.get(usize::from(port)).copied().flatten()
    }

    /// True if this port is served here.
    pub fn serves(&self, port: u8) -> bool {
        self.switch_of(port).is_some_and(|switch| self.hub.serves(switch))
    }

    /// Takes frames that came by a port that is served here.
    pub fn handle_port(
        &mut self,
        port: u8,
        frames: &mut Vec<Packet>,
        now: u64,
        out: &mut HostOut,
        pool: &mut dyn PacketPool,
    ) {
        let Some((switch, number)) = self.place(port) else {
            return frames.drain(..).for_each(|packet| pool.put(packet));
        };
        let edge = &mut self.fronts[usize::from(switch)].edge;
        for packet in frames.drain(..) {
            if let Some((key, packet)) =
                edge.handle_ingress(number, packet, now, &mut out.edge, pool)
            {
                self.hub.handle_packet(switch, key, packet);
            }
        }
        self.hub.forward(now, &mut out.hub, pool);
        self.settle_front(usize::from(switch), now, out, pool);
        self.settle(now, out, pool);
    }

    /// Takes frames that a runtime sent.
    pub fn handle_runtime(
        &mut self,
        from: Peer,
        frames: &mut Vec<Packet>,
        now: u64,
        out: &mut HostOut,
        pool: &mut dyn PacketPool,
    ) {
        self.hub.handle_frames(from, frames, now, &mut out.hub, pool);
        self.settle(now, out, pool);
    }

    /// Takes frames that came from other hosts.
    pub fn handle_fabric(
        &mut self,
        frames: &mut Vec<Packet>,
        now: u64,
        out: &mut HostOut,
        pool: &mut dyn PacketPool,
    ) {
        self.hub.handle_fabric(frames, now, &mut out.hub, pool);
        self.settle(now, out, pool);
    }

    /// Takes a frame for a runtime that could not be put into its ring, and is to be
    /// dropped.
    pub fn handle_undelivered(&mut self, frame: &mut Packet) {
        self.hub.handle_undelivered(frame);
    }

    /// Handles messages and timeouts, and their consequences.
    pub fn turn(&mut self, now: u64, out: &mut HostOut, pool: &mut dyn PacketPool) {
        self.hub.turn(now, &mut out.hub, pool);
        for at in 0..self.fronts.len() {
            let serves = self.watches && self.hub.serves(at as u16);
            let edge = &mut self.fronts[at].edge;
            edge.set_serving(serves, now);
            if edge.poll_timeout() <= now {
                edge.handle_timeout(now, &mut out.edge, pool);
                self.settle_front(at, now, out, pool);
            }
        }
        self.settle(now, out, pool);
    }

    /// Tells the neighbours of a switch's ports where its addresses are.
    pub fn announce(
        &mut self,
        switch: u16,
        now: u64,
        out: &mut HostOut,
        pool: &mut dyn PacketPool,
    ) {
        if let Some(front) = self.fronts.get_mut(usize::from(switch)) {
            front.edge.announce(&mut out.edge, pool);
            self.settle_front(usize::from(switch), now, out, pool);
        }
    }

    /// Announces the box's end: routers next door are told by the next [`Host::turn`].
    pub fn take_leave(&mut self, now: u64) {
        self.fronts.iter_mut().for_each(|front| front.edge.take_leave(now));
    }

    /// See [`Edge::is_taking_leave`].
    pub fn is_taking_leave(&self) -> bool {
        self.fronts.iter().any(|front| front.edge.is_taking_leave())
    }

    /// Sets a port's MTU: see [`Edge::set_mtu`].
    pub fn set_mtu(&mut self, port: u8, mtu: u16) {
        if let Some((switch, number)) = self.place(port) {
            self.fronts[usize::from(switch)].edge.set_mtu(number, mtu);
        }
    }

    /// Sets the key for the session with a router at a port: see [`Edge::set_bfd_key`].
    pub fn set_bfd_key(&mut self, port: u8, peer: &[u8; 16], key: &Key, now: u64) -> bool {
        let Some((switch, number)) = self.place(port) else { return false };
        self.fronts[usize::from(switch)].edge.set_bfd_key(number, peer, key, now)
    }

    /// The sessions with routers at a port that is served here: the router, its session,
    /// and whether the router is known to be dead.
    pub fn liveness(&self, port: u8) -> impl Iterator<Item = (&[u8; 16], &Session, bool)> {
        let place = self.place(port).into_iter();
        let all = place.flat_map(|(switch, number)| {
            let sessions = self.fronts[usize::from(switch)].edge.liveness();
            sessions.filter(move |(at, ..)| *at == number)
        });
        all.map(|(_, peer, session, is_dead)| (peer, session, is_dead))
    }

    /// Counters of a port's packets: see [`Edge::counts`].
    pub fn counts(&self, port: u8) -> PortCounts {
        self.place(port).map_or_else(PortCounts::default, |(switch, number)| {
            self.fronts[usize::from(switch)].edge.counts(number)
        })
    }

    /// Packets inside the edges: see [`Edge::held`].
    pub fn held(&self) -> usize {
        self.fronts.iter().map(|front| front.edge.held()).sum()
    }

    /// Gives back every packet that is held, as at the end of the process.
    pub fn abandon(&mut self, pool: &mut dyn PacketPool) {
        self.fronts.iter_mut().for_each(|front| front.edge.abandon(pool));
        self.hub.abandon(pool);
    }

    /// Sends released packets; errors about them come in again.
    fn settle(&mut self, now: u64, out: &mut HostOut, pool: &mut dyn PacketPool) {
        let mut released = core::mem::take(&mut out.hub.released);
        // Packets of one switch come in a row, or there is only one switch.
        let mut last = None;
        for (switch, packet) in released.drain(..) {
            let at = usize::from(switch);
            if let Some(last) = last.replace(at).filter(|last| *last != at) {
                self.settle_front(last, now, out, pool);
            }
            self.fronts[at].edge.handle_egress(packet, now, &mut out.edge, pool);
        }
        out.hub.released = released;
        if let Some(last) = last {
            self.settle_front(last, now, out, pool);
        }
    }

    /// Takes an edge's output: its ports' numbers become those among all.
    fn settle_front(&mut self, at: usize, now: u64, out: &mut HostOut, pool: &mut dyn PacketPool) {
        let Front { edge, ports, before } = &mut self.fronts[at];
        if !out.edge.reinject.is_empty() {
            for (port, packet) in core::mem::take(&mut out.edge.reinject) {
                if let Some((key, packet)) = edge.handle_reinjected(port, packet, pool) {
                    self.hub.handle_packet(at as u16, key, packet);
                }
            }
            self.hub.forward(now, &mut out.hub, pool);
        }
        for liveness in out.edge.liveness.drain(..) {
            out.liveness.push(Liveness { port: ports[usize::from(liveness.port)], ..liveness });
        }
        out.notes.extend(out.edge.notes.drain(..).map(|(at, memory)| (*before + at, memory)));
        out.transmit.extend(
            out.edge.transmit.drain(..).map(|(port, packet)| (ports[usize::from(port)], packet)),
        );
    }

    /// Time at which [`Host::turn`] is due without input.
    pub fn poll_timeout(&mut self) -> u64 {
        let edges =
            self.fronts.iter().map(|front| front.edge.poll_timeout()).min().unwrap_or(u64::MAX);
        self.hub.poll_timeout().min(edges)
    }

    /// Drops of all parts.
    pub fn drops(&self) -> DropCounters {
        let mut drops = self.edge_drops();
        drops.add(self.hub.drops());
        self.hub.switches().for_each(|switch| drops.add(switch.drops()));
        drops.add(self.hub.manager.drops());
        drops
    }

    /// Drops of the edges.
    pub fn edge_drops(&self) -> DropCounters {
        let mut drops = DropCounters::default();
        self.fronts.iter().for_each(|front| drops.add(front.edge.drops()));
        drops
    }
}
