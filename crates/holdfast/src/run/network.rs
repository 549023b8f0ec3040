//! The networks to the other hosts: one, or two.

use super::devices::say;
use super::{BURST, ManagerProcess};
use holdfast_io::Arena;
use holdfast_io::port::{Look, Port};
use holdfast_node::hub::paths::PATHS;
use holdfast_node::hub::{Hub, HubOut};
use holdfast_protection::Released;
use holdfast_wire::{DropCounters, DropReason, Packet, PacketPool};

/// The networks of a host; see the module.
#[derive(Default)]
pub(super) struct HostsNetwork {
    /// The networks' ports; empty without other hosts.
    pub(super) ports: Vec<Box<dyn Port>>,
    outgoing: [Vec<Released<Packet>>; PATHS as usize],
    drops: DropCounters,
}

impl HostsNetwork {
    pub(super) fn new(ports: Vec<Box<dyn Port>>) -> HostsNetwork {
        let outgoing = [(); PATHS as usize].map(|()| Vec::with_capacity(BURST));
        HostsNetwork { ports, outgoing, drops: DropCounters::default() }
    }

    /// Drops at the ports and before them.
    pub(super) fn drops(&self) -> DropCounters {
        let mut drops = DropCounters::default();
        drops.add(&self.drops);
        self.ports.iter().for_each(|port| drops.add(port.drops()));
        drops
    }

    /// Sends the hub's frames for other hosts.
    pub(super) fn transmit(&mut self, hub: &mut Hub, out: &mut HubOut, arena: &mut Arena) {
        for (node, host) in hub.take_moved() {
            self.ports.iter_mut().for_each(|port| port.place(node, host));
        }
        if self.ports.len() <= 1 {
            self.outgoing[0].extend(out.to_fabric.drain(..).map(Released::inside));
        }
        for packet in out.to_fabric.drain(..) {
            let path = hub.path_of(&packet);
            if path.is_none() {
                match copy(&packet, arena) {
                    Some(copy) => self.outgoing[1].push(Released::inside(copy)),
                    None => self.drops.count(DropReason::ArenaEmpty),
                }
            }
            self.outgoing[usize::from(path.unwrap_or(0))].push(Released::inside(packet));
        }
        for (path, packet) in out.to_path.drain(..) {
            self.outgoing[usize::from(path)].push(Released::inside(packet));
        }
        for (port, frames) in
            self.ports.iter_mut().zip(&mut self.outgoing).filter(|(_, frames)| !frames.is_empty())
        {
            port.transmit(frames, arena);
        }
    }

    /// Checks a device: one that went and came back is used again. False if there is none
    /// at this place.
    pub(super) fn look(&mut self, at: usize) -> bool {
        let Some(port) = self.ports.get_mut(at) else { return false };
        let found = port.look();
        let device = port.name();
        match found {
            Look::Same => {}
            Look::Gone => say(&format!(
                "{device}, which joins the hosts, is gone; it is used again when it is back"
            )),
            Look::Back => say(&format!("{device}, which joins the hosts, is back")),
            Look::Refused(error) => say(&format!(
                "{device}, which joins the hosts, is back and cannot be used: {error}"
            )),
        }
        true
    }
}

fn copy(packet: &Packet, arena: &mut Arena) -> Option<Packet> {
    let mut copy = arena.take()?;
    if !copy.copy_from(packet.bytes()) {
        arena.put(copy);
        return None;
    }
    copy.meta = packet.meta;
    Some(copy)
}

impl ManagerProcess {
    /// Reports by which network frames for other hosts travel, if that has changed. A
    /// host that neither network reaches is reported as away by others.
    pub(super) fn say_paths(&mut self) {
        if !self.host.hub.take_paths_changed() {
            return;
        }
        self.paths_said.resize(self.plan.hosts.len(), 0);
        for (at, host) in self.plan.hosts.iter().enumerate() {
            let Some((_, Some(path))) = self.host.hub.paths_to(at as u16) else { continue };
            if std::mem::replace(&mut self.paths_said[at], path) != path {
                let device =
                    self.hosts_network.ports.get(usize::from(path)).map_or("", |port| port.name());
                say(&format!("what goes to host {} goes by {device} now", host.name));
            }
        }
    }
}
