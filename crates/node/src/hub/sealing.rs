//! How a hub seals what goes to other hosts, and what hosts tell each other of it.

use super::Hub;
use crate::address::{NodeId, SWITCH, host_of, manager_of};
use crate::channel::KeyRing;
use crate::message::Sealing;
use crate::seal::{HostSeal, SealConfig};
use holdfast_protection::Peer;
use holdfast_wire::{DropReason, Packet};
use std::collections::BTreeMap;

/// See the module.
pub(super) struct Sealed {
    seal: HostSeal,
    config: SealConfig,
    /// Whom each host's manager was when it was told last.
    told: Vec<Option<Peer>>,
    /// Who lives here has changed since.
    is_news: bool,
    /// Where nodes of other hosts live, as these say.
    places: BTreeMap<NodeId, u16>,
    /// Those that have come, and those that have gone, since the driver asked.
    moved: Vec<(NodeId, Option<u16>)>,
}

impl Sealed {
    #[inline]
    pub(super) fn seal(&mut self, packet: &mut Packet) -> bool {
        self.seal.seal(packet)
    }

    #[inline]
    pub(super) fn open(&mut self, packet: &mut Packet) -> Result<(), DropReason> {
        self.seal.open(packet)
    }

    fn hear(&mut self, host: u16, incarnation: u32, sealing: &Sealing, now: u64) {
        self.seal.handle_announced(host, incarnation, (sealing.life, sealing.counter), now);
        let is_gone = |node: &NodeId, place: &u16| *place == host && !sealing.nodes.contains(node);
        let gone: Vec<NodeId> = self.places.iter().filter(|(node, place)| is_gone(node, place)).map(|(node, _)| *node).collect();
        for node in gone {
            self.places.remove(&node);
            self.note_moved(node, None);
        }
        for node in &sealing.nodes {
            if self.places.insert(*node, host) != Some(host) {
                self.note_moved(*node, Some(host));
            }
        }
    }

    /// What was said of a node before is not asked for any more.
    fn note_moved(&mut self, node: NodeId, host: Option<u16>) {
        self.moved.retain(|(other, _)| *other != node);
        self.moved.push((node, host));
    }
}

impl Hub {
    /// Gives the hub of one of several hosts the cluster's keys: packets between them are sealed from now on, and nothing else is taken in.
    pub fn authenticate(&mut self, config: SealConfig, ring: &KeyRing) {
        let told = vec![None; usize::from(config.hosts)];
        let seal = HostSeal::new(config, ring);
        let (places, moved) = (BTreeMap::new(), Vec::new());
        self.sealed = Some(Box::new(Sealed { seal, config, told, is_news: true, places, moved }));
    }

    /// Changes the keys of packets between hosts, switch and manager. A hub that was made without stays so.
    pub fn set_keys(&mut self, ring: &KeyRing) {
        if let Some(sealed) = &mut self.sealed {
            sealed.seal.set_keys(ring);
        }
        self.switch.fabric().set_keys(ring);
        self.manager.fabric().set_keys(ring);
    }

    /// Nodes of other hosts that have come to this host, counted from 0, or have gone from it, since this was asked: for a network on which frames do not find their way
    /// by themselves.
    pub fn take_moved(&mut self) -> Vec<(NodeId, Option<u16>)> {
        self.sealed.as_mut().map_or_else(Vec::new, |sealed| core::mem::take(&mut sealed.moved))
    }

    /// Who lives here has changed.
    pub(super) fn note_news(&mut self) {
        if let Some(sealed) = &mut self.sealed {
            sealed.is_news = true;
        }
    }

    /// Hears how other hosts seal, and tells them how this one does.
    pub(super) fn keep_sealing(&mut self, now: u64) {
        let Hub { manager, sealed, local, is_serving, .. } = self;
        let heard = manager.take_sealings();
        let Some(sealed) = sealed else { return };
        let me = manager.fabric().me();
        for (from, sealing) in heard {
            // What was meant for an earlier life of this one would let in what that one has taken already.
            if let Some(host) = host_of(from.node).filter(|host| sealing.to == me.incarnation && *host < sealed.config.hosts) {
                sealed.hear(host, from.incarnation, &sealing, now);
            }
        }
        let (has_beaten, is_news) = (manager.take_beaten(), core::mem::take(&mut sealed.is_news));
        let is_due = has_beaten || is_news;
        for host in (0..sealed.config.hosts).filter(|host| *host != sealed.config.host) {
            let peer = manager.fabric().peer(manager_of(host));
            let at = usize::from(host);
            if peer.is_none() || !is_due && sealed.told[at] == peer {
                continue;
            }
            let (life, counter) = sealed.seal.announcement();
            let own = local.iter().flatten().map(|peer| peer.node).chain([me.node]);
            let nodes = own.chain(is_serving.then_some(SWITCH)).collect();
            let to = peer.map_or(0, |peer| peer.incarnation);
            if manager.tell_sealing(host, Sealing { to, life, counter, nodes }) {
                sealed.told[at] = peer;
            }
        }
    }
}
