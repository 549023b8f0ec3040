//! One host: the edge and the hub, from port to port.
//!
//! In: frames from ports and runtimes, ends of processes, the time. Out: [`HostOut`]. Never: I/O.

use crate::edge::{Edge, EdgeOut};
use crate::hub::{Hub, HubOut};
use holdfast_protection::{Peer, Released};
use holdfast_wire::{DropCounters, Packet, PacketPool};

/// What the host wants done, besides [`HubOut`]'s frames for runtimes and wishes.
#[derive(Debug, Default)]
pub struct HostOut {
    /// Frames to send, by port.
    pub transmit: Vec<(u8, Released<Packet>)>,
    /// For runtimes and processes.
    pub hub: HubOut,
    edge: EdgeOut,
}

/// See the module.
pub struct Host {
    /// The router.
    pub edge: Edge,
    /// Switch, manager, fence.
    pub hub: Hub,
}

impl Host {
    /// A host of these parts.
    pub fn new(edge: Edge, hub: Hub) -> Host {
        Host { edge, hub }
    }

    /// Frames that came by a port.
    pub fn handle_port(&mut self, port: u8, frames: &mut Vec<Packet>, now: u64, out: &mut HostOut, pool: &mut dyn PacketPool) {
        for packet in frames.drain(..) {
            if let Some((key, packet)) = self.edge.handle_ingress(port, packet, now, &mut out.edge, pool) {
                self.hub.handle_packet(key, packet);
            }
        }
        self.hub.forward(now, &mut out.hub, pool);
        self.settle(now, out, pool);
    }

    /// Frames that a runtime sent.
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

    /// Frames that came from other hosts.
    pub fn handle_fabric(&mut self, frames: &mut Vec<Packet>, now: u64, out: &mut HostOut, pool: &mut dyn PacketPool) {
        self.hub.handle_fabric(frames, now, &mut out.hub, pool);
        self.settle(now, out, pool);
    }

    /// A frame for a runtime that could not be put into its ring, and is to be dropped.
    pub fn handle_undelivered(&mut self, frame: &mut Packet) {
        self.hub.handle_undelivered(frame);
    }

    /// Messages, timeouts, and what follows from them.
    pub fn turn(&mut self, now: u64, out: &mut HostOut, pool: &mut dyn PacketPool) {
        self.hub.turn(now, &mut out.hub, pool);
        if self.edge.poll_timeout() <= now {
            self.edge.handle_timeout(now, &mut out.edge, pool);
        }
        self.settle(now, out, pool);
    }

    /// Tells the neighbours where the box's addresses are.
    pub fn announce(&mut self, now: u64, out: &mut HostOut, pool: &mut dyn PacketPool) {
        self.edge.announce(&mut out.edge, pool);
        self.settle(now, out, pool);
    }

    /// Released packets leave; errors about them come in again.
    fn settle(&mut self, now: u64, out: &mut HostOut, pool: &mut dyn PacketPool) {
        for released in out.hub.released.drain(..) {
            self.edge.handle_egress(released, now, &mut out.edge, pool);
        }
        if !out.edge.reinject.is_empty() {
            for (port, packet) in core::mem::take(&mut out.edge.reinject) {
                if let Some((key, packet)) = self.edge.handle_reinjected(port, packet, pool) {
                    self.hub.handle_packet(key, packet);
                }
            }
            self.hub.forward(now, &mut out.hub, pool);
        }
        out.transmit.append(&mut out.edge.transmit);
    }

    /// When [`Host::turn`] is due without input.
    pub fn poll_timeout(&mut self) -> u64 {
        self.hub.poll_timeout().min(self.edge.poll_timeout())
    }

    /// Drops of all parts.
    pub fn drops(&self) -> DropCounters {
        let mut drops = self.edge.drops().clone();
        drops.add(self.hub.drops());
        drops.add(self.hub.switch.drops());
        drops.add(self.hub.manager.drops());
        drops
    }
}
