//! The hub's seal: packets to other hosts, and the announcements between hosts.

use super::paths::{Paths, Probe};
use super::{Hub, HubOut};
use crate::channel::KeyRing;
use crate::message::Sealing;
use crate::seal::{HostSeal, SealConfig};
use holdfast_protection::Peer;
use holdfast_wire::header::Mac;
use holdfast_wire::nsh::{self, Flags, Outer, index};
use holdfast_wire::{DropReason, NodeId, Packet, PacketPool};
use std::collections::BTreeMap;

/// See the module.
pub(super) struct Sealed {
    seal: HostSeal,
    config: SealConfig,
    /// By host, the manager that was told last.
    told: Vec<Option<Peer>>,
    /// The processes here have changed since.
    is_news: bool,
    /// The hosts of other hosts' nodes, as these say.
    places: BTreeMap<NodeId, u16>,
    /// Nodes that have come or gone since the driver's last look.
    moved: Vec<(NodeId, Option<u16>)>,
    /// The paths, if two networks join the hosts.
    paths: Option<Paths>,
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
        let gone: Vec<NodeId> = self
            .places
            .iter()
            .filter(|(node, place)| is_gone(node, place))
            .map(|(node, _)| *node)
            .collect();
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

    /// Notes a node's move, in place of an earlier one.
    fn note_moved(&mut self, node: NodeId, host: Option<u16>) {
        if let Some(paths) = &mut self.paths {
            paths.place(node, host);
        }
        self.moved.retain(|(other, _)| *other != node);
        self.moved.push((node, host));
    }
}

impl Hub {
    /// Gives the hub of one of several hosts the cluster's keys: packets between hosts
    /// are sealed from now on, and unsealed ones refused.
    pub fn authenticate(&mut self, config: SealConfig, ring: &KeyRing) {
        let told = vec![None; usize::from(config.hosts)];
        let seal = HostSeal::new(config, ring);
        let (places, moved) = (BTreeMap::new(), Vec::new());
        self.sealed = Some(Box::new(Sealed {
            seal,
            config,
            told,
            is_news: true,
            places,
            moved,
            paths: None,
        }));
    }

    /// Two networks join the hosts. To be called after [`Hub::authenticate`]: without
    /// keys an attacker could claim that a network works.
    pub fn use_two_paths(&mut self) {
        if let Some(sealed) = &mut self.sealed {
            sealed.paths =
                Some(Paths::new(sealed.config.host, sealed.config.hosts, sealed.config.timeout));
        }
    }

    fn paths(&self) -> Option<&Paths> {
        self.sealed.as_ref().and_then(|sealed| sealed.paths.as_ref())
    }

    fn paths_mut(&mut self) -> Option<&mut Paths> {
        self.sealed.as_mut().and_then(|sealed| sealed.paths.as_mut())
    }

    /// The network, counted from 0, by which a frame goes to other hosts; `None`: both.
    #[inline]
    pub fn path_of(&self, frame: &Packet) -> Option<u8> {
        let destination: Option<&Mac> = frame.bytes().first_chunk();
        destination
            .and_then(NodeId::of_mac)
            .zip(self.paths())
            .and_then(|(node, paths)| paths.to(node))
    }

    /// The networks that lead to this host, a bit each, and the one in use, if there is
    /// one.
    pub fn paths_to(&self, host: u16) -> Option<(u8, Option<u8>)> {
        self.paths().map(|paths| (paths.leading(host), paths.used(host)))
    }

    /// True if another network is used to some host than at the last call.
    pub fn take_paths_changed(&mut self) -> bool {
        self.paths_mut().is_some_and(Paths::take_changed)
    }

    /// The time at which probes are due.
    pub(super) fn next_probe(&self) -> u64 {
        self.paths().map_or(u64::MAX, Paths::poll_timeout)
    }

    /// Sends probes to the other hosts by each network: they tell by which networks these
    /// are heard.
    pub(super) fn probe(&mut self, now: u64, out: &mut HubOut, pool: &mut dyn PacketPool) {
        let me = self.manager.node();
        let Some(Sealed { seal, told, paths: Some(paths), .. }) = self.sealed.as_deref_mut() else {
            return;
        };
        // A host that does not know this host's seal could not open a probe.
        for Probe { host, path, heard } in
            paths.poll(now).into_iter().filter(|probe| told[usize::from(probe.host)].is_some())
        {
            // The next probe comes soon.
            let Some(mut probe) = pool.take() else { return };
            (probe.meta.flags, probe.meta.ingress) = (Flags::OAM, path);
            (probe.meta.stamp, probe.meta.commit) = (now, heard.into());
            let outer = Outer {
                destination: NodeId::manager(host).mac(),
                source: me.mac(),
                index: index::PROBE,
            };
            match nsh::encapsulate(&mut probe, outer) && seal.seal(&mut probe) {
                true => out.to_path.push((path, probe)),
                false => pool.put(probe),
            }
        }
    }

    /// Takes a packet for this manager, which has been opened.
    pub(super) fn hear_probe(
        &mut self,
        from: NodeId,
        mut packet: Packet,
        now: u64,
        pool: &mut dyn PacketPool,
    ) {
        let is_probe =
            nsh::decapsulate(&mut packet).is_some_and(|outer| outer.index == index::PROBE);
        let meta = packet.meta;
        match (self.paths_mut(), from.host()) {
            (Some(paths), Some(host)) if is_probe => {
                paths.hear(host, meta.ingress, meta.stamp, meta.commit as u8, now);
                pool.put(packet);
            }
            _ => self.drop(packet, DropReason::Malformed, pool),
        }
    }

    /// Changes the keys of packets between hosts, switches and manager. A hub without
    /// keys stays without.
    pub fn set_keys(&mut self, ring: &KeyRing) {
        if let Some(sealed) = &mut self.sealed {
            sealed.seal.set_keys(ring);
        }
        self.slots.iter_mut().for_each(|slot| slot.switch.fabric().set_keys(ring));
        self.manager.fabric().set_keys(ring);
    }

    /// Nodes of other hosts that have come to this host, counted from 0, or have gone
    /// from it, since the last call: for a network that does not find receivers by
    /// itself.
    pub fn take_moved(&mut self) -> Vec<(NodeId, Option<u16>)> {
        self.sealed.as_mut().map_or_else(Vec::new, |sealed| core::mem::take(&mut sealed.moved))
    }

    /// Notes that the processes here have changed.
    pub(super) fn note_news(&mut self) {
        if let Some(sealed) = &mut self.sealed {
            sealed.is_news = true;
        }
    }

    /// Takes other hosts' announcements, and announces this host's seal to them.
    pub(super) fn keep_sealing(&mut self, now: u64) {
        let Hub { manager, sealed, local, slots, .. } = self;
        let heard = manager.take_sealings();
        let Some(sealed) = sealed else { return };
        let me = manager.fabric().me();
        for (from, sealing) in heard {
            // An announcement for an earlier incarnation would admit packets that it has
            // taken already.
            if let Some(host) = from
                .node
                .host()
                .filter(|host| sealing.to == me.incarnation && *host < sealed.config.hosts)
            {
                sealed.hear(host, from.incarnation, &sealing, now);
            }
        }
        let (has_beaten, is_news) = (manager.take_beaten(), core::mem::take(&mut sealed.is_news));
        let is_due = has_beaten || is_news;
        for host in (0..sealed.config.hosts).filter(|host| *host != sealed.config.host) {
            let peer = manager.fabric().peer(NodeId::manager(host));
            let at = usize::from(host);
            if peer.is_none() || !is_due && sealed.told[at] == peer {
                continue;
            }
            let (life, counter) = sealed.seal.announcement();
            let own = local.iter().flatten().map(|peer| peer.node).chain([me.node]);
            let served = slots.iter().filter(|slot| slot.is_serving).map(|slot| slot.switch.node());
            let nodes = own.chain(served).collect();
            let to = peer.map_or(0, |peer| peer.incarnation);
            if manager.tell_sealing(host, Sealing { to, life, counter, nodes }) {
                sealed.told[at] = peer;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{FabricConfig, Key};
    use crate::fcs;
    use crate::hub::HubOut;
    use crate::manager::Manager;
    use crate::seal::is_sealed;
    use crate::switch::{Switch, SwitchConfig, SwitchLimits};
    use core::num::NonZeroU64;
    use holdfast_wire::nsh::{Outer, encapsulate, index};
    use holdfast_wire::{MemoryPool, NodeId, PacketPool};

    const MILLISECOND: u64 = 1_000_000;
    const HOSTS: u16 = 2;
    const TIMEOUT: u64 = 100 * MILLISECOND;

    fn switch() -> Switch {
        Switch::new(SwitchConfig {
            me: Peer { node: NodeId::SWITCH, incarnation: 1 },
            number: 1,
            flows: 16,
            limits: SwitchLimits::default(),
            seed: 1,
            tick_interval: 20 * MILLISECOND,
            timeout: 3000 * MILLISECOND,
            fabric: FabricConfig::default(),
            logs: Vec::new(),
            succeeds: false,
        })
    }

    fn hub(host: u16, incarnation: u32) -> Hub {
        let me = Peer { node: NodeId::manager(host), incarnation };
        let mut hub = Hub::new(vec![switch()], Manager::new(me, FabricConfig::default()));
        hub.join(HOSTS, TIMEOUT, 0);
        let ring = KeyRing::new(vec![Key { number: 1, secret: [7; 32] }]).unwrap();
        let life = NonZeroU64::new(u64::from(incarnation) * 256 + u64::from(host) + 1).unwrap();
        hub.authenticate(
            SealConfig { cluster: 0, host, hosts: HOSTS, incarnation, life, timeout: TIMEOUT },
            &ring,
        );
        hub
    }

    /// Hosts that hear each other.
    struct World {
        hubs: Vec<Hub>,
        pool: MemoryPool,
        now: u64,
        /// Losses: by network and sender.
        cuts: Vec<(u8, usize)>,
    }

    impl World {
        fn run(&mut self, time: u64) {
            for _ in 0..time / MILLISECOND {
                self.now += MILLISECOND;
                for from in 0..self.hubs.len() {
                    let mut out = HubOut::default();
                    self.hubs[from].turn(self.now, &mut out, &mut self.pool);
                    let mut sent = out.to_path;
                    for frame in out.to_fabric {
                        // With one network, that is the first.
                        let path = self.hubs[from]
                            .paths()
                            .map_or(Some(0), |_| self.hubs[from].path_of(&frame));
                        if path.is_none() {
                            sent.push((1, self.copy(&frame)));
                        }
                        sent.push((path.unwrap_or(0), frame));
                    }
                    for (path, frame) in sent {
                        self.deliver(path, from, frame);
                    }
                }
            }
        }

        fn copy(&mut self, packet: &Packet) -> Packet {
            let mut copy = self.pool.take().unwrap();
            assert!(copy.copy_from(packet.bytes()));
            copy.meta = packet.meta;
            copy
        }

        /// Delivers a frame from this host to the other.
        fn deliver(&mut self, path: u8, from: usize, frame: Packet) {
            let World { hubs, pool, now, cuts } = self;
            match cuts.contains(&(path, from)) {
                true => pool.put(frame),
                false => hubs[1 - from].handle_fabric(
                    &mut vec![frame],
                    *now,
                    &mut HubOut::default(),
                    pool,
                ),
            }
        }

        fn drops(&self, host: usize, reason: DropReason) -> u64 {
            self.hubs[host].drops().get(reason)
        }

        fn packet(&mut self) -> Packet {
            let mut packet = self.pool.take().unwrap();
            assert!(packet.copy_from(&[0; 64]));
            let source = Peer { node: NodeId::FIRST_RUNTIME, incarnation: 1 }.mac();
            let outer = Outer { destination: NodeId::manager(1).mac(), source, index: index::MARK };
            assert!(encapsulate(&mut packet, outer));
            packet
        }

        /// Delivers a packet to the second host, as it is or sealed by the first.
        fn arrives(&mut self, packet: Packet) {
            let (now, pool) = (self.now, &mut self.pool);
            self.hubs[1].handle_fabric(&mut vec![packet], now, &mut HubOut::default(), pool);
        }

        fn arrives_sealed(&mut self) {
            let mut packet = self.packet();
            assert!(self.hubs[0].sealed.as_mut().unwrap().seal(&mut packet));
            assert!(is_sealed(packet.bytes()));
            self.arrives(packet);
        }
    }

    fn world() -> World {
        World {
            hubs: vec![hub(0, 5), hub(1, 5)],
            pool: MemoryPool::new(64),
            now: 0,
            cuts: Vec::new(),
        }
    }

    /// The networks by which the hosts send to a runtime and a manager of the other, and
    /// whether each is connected.
    fn ways(world: &mut World) -> [(Option<u8>, bool); 2] {
        [0, 1].map(|from| {
            let other = 1 - from as u16;
            let to = |world: &mut World, node: NodeId| {
                let mut frame = world.pool.take().unwrap();
                assert!(frame.copy_from(&[0; 64]));
                frame.bytes_mut()[..6].copy_from_slice(&node.mac());
                let path = world.hubs[from].path_of(&frame);
                world.pool.put(frame);
                path
            };
            let path = to(world, NodeId::manager(other));
            assert_eq!(path, to(world, NodeId::runtime(other)));
            let now = world.now;
            (path, world.hubs[from].manager.may_serve_at(now))
        })
    }

    /// Two networks: a cut of the first, in either direction, is gone around, and the
    /// hosts stay connected; without both they are not. A restarted host finds its way.
    #[test]
    fn hosts_stay_connected_by_either_network() {
        let mut world = world();
        for (host, hub) in world.hubs.iter_mut().enumerate() {
            hub.use_two_paths();
            hub.note_local(Peer { node: NodeId::runtime(host as u16), incarnation: 1 });
        }
        world.run(3 * TIMEOUT);
        assert_eq!(ways(&mut world), [(Some(0), true); 2]);
        for (cuts, expected) in [
            (vec![(0, 0)], [Some(1), Some(0)]),
            (vec![(0, 1)], [Some(0), Some(1)]),
            (vec![(0, 0), (0, 1)], [Some(1); 2]),
            (vec![(0, 0), (1, 1)], [Some(1), Some(0)]),
        ] {
            world.cuts = cuts;
            for _ in 0..3 * TIMEOUT / MILLISECOND {
                world.run(MILLISECOND);
                assert!(
                    ways(&mut world).iter().all(|(_, is_connected)| *is_connected),
                    "{:?}",
                    world.cuts
                );
            }
            assert_eq!(ways(&mut world).map(|(path, _)| path), expected, "{:?}", world.cuts);
            world.cuts.clear();
            world.run(6 * TIMEOUT);
            assert_eq!(ways(&mut world).map(|(path, _)| path), [Some(0); 2]);
        }
        world.cuts = vec![(0, 0)];
        world.hubs[1] = hub(1, 6);
        world.hubs[1].use_two_paths();
        world.hubs[1].note_local(Peer { node: NodeId::runtime(1), incarnation: 1 });
        world.run(3 * TIMEOUT);
        assert_eq!(ways(&mut world), [(Some(1), true), (Some(0), true)]);
        world.cuts = vec![(0, 0), (1, 0)];
        world.run(2 * TIMEOUT);
        // Two votes of three are the first one's.
        assert_eq!(ways(&mut world).map(|(_, is_connected)| is_connected), [true, false]);
        assert_eq!(world.pool.free(), world.pool.total());
    }

    /// Without the key no probe counts, and with a single network none is sent.
    #[test]
    fn probes_are_sealed() {
        let mut world = world();
        world.hubs[1].use_two_paths();
        world.run(3 * TIMEOUT);
        assert_eq!(world.hubs[0].path_of(&world.pool.take().unwrap()), None);
        assert!(world.drops(0, DropReason::Malformed) > 0, "it has one network");
        let mut probe = world.pool.take().unwrap();
        (probe.meta.flags, probe.meta.stamp, probe.meta.commit) = (Flags::OAM, u64::MAX, 3);
        assert!(encapsulate(
            &mut probe,
            Outer {
                destination: NodeId::manager(1).mac(),
                source: NodeId::MANAGER.mac(),
                index: index::PROBE
            }
        ));
        let before = world.hubs[1].paths_to(0);
        world.arrives(probe);
        assert_eq!((world.hubs[1].paths_to(0), world.drops(1, DropReason::Unsealed)), (before, 1));
    }

    /// Hosts announce their processes, and announce them again when they change, before
    /// the next beat.
    #[test]
    fn hosts_say_who_lives_there() {
        let mut world = world();
        let runtime = Peer { node: NodeId::FIRST_RUNTIME, incarnation: 1 };
        world.hubs[0].note_local(runtime);
        world.run(3 * TIMEOUT);
        assert_eq!(
            world.hubs[1].take_moved(),
            [(NodeId::FIRST_RUNTIME, Some(0)), (NodeId::MANAGER, Some(0))]
        );
        assert_eq!(world.hubs[1].take_moved(), []);
        world.hubs[0].begin(switch());
        world.hubs[0].handle_buried(runtime);
        world.run(3 * MILLISECOND);
        let mut moved = world.hubs[1].take_moved();
        moved.sort();
        assert_eq!(moved, [(NodeId::SWITCH, Some(0)), (NodeId::FIRST_RUNTIME, None)]);
        world.hubs[0].retire(0, &mut world.pool);
        world.run(3 * MILLISECOND);
        assert_eq!(world.hubs[1].take_moved(), [(NodeId::SWITCH, None)]);
    }

    /// A packet that is not sealed is dropped where there is a key, and a sealed one
    /// where there is none.
    #[test]
    fn hubs_agree_on_what_is_sealed() {
        let mut world = world();
        world.run(3 * TIMEOUT);
        let packet = world.packet();
        world.arrives(packet);
        assert_eq!(world.drops(1, DropReason::Unsealed), 1);
        // The packet was opened: a manager has no use for it.
        world.arrives_sealed();
        assert_eq!(world.drops(1, DropReason::Malformed), 1);
        world.hubs[1].sealed = None;
        world.arrives_sealed();
        assert_eq!(world.drops(1, DropReason::Unauthenticated), 1);
        assert_eq!(world.hubs[1].drops().total(), 3);
        assert_eq!(world.pool.free(), world.pool.total());
    }

    /// Without a key damaged frames and strangers' frames are dropped and counted, and no
    /// buffer stays behind.
    #[test]
    fn without_a_key_damage_is_noticed() {
        let mut world = world();
        world.hubs.iter_mut().for_each(|hub| hub.sealed = None);
        world.run(3 * TIMEOUT);
        assert_eq!(world.hubs[1].drops().total(), 0, "what hosts say arrives");
        let mut arrives = |prepare: &dyn Fn(&mut Packet)| {
            let before = world.hubs[1].drops().clone();
            let mut packet = world.packet();
            prepare(&mut packet);
            world.arrives(packet);
            let reasons: Vec<DropReason> = DropReason::ALL
                .iter()
                .copied()
                .filter(|reason| world.drops(1, *reason) > before.get(*reason))
                .collect();
            reasons
        };
        // An intact frame is opened; the manager has no use for a packet in it.
        assert_eq!(arrives(&|packet| assert!(fcs::append(packet))), [DropReason::Malformed]);
        assert_eq!(arrives(&|_| ()), [DropReason::Damaged], "without a check sequence");
        assert_eq!(
            arrives(&|packet| packet.truncate(16)),
            [DropReason::Damaged],
            "too short for one"
        );
        let flipped = |byte: usize| {
            move |packet: &mut Packet| {
                assert!(fcs::append(packet));
                packet.bytes_mut()[byte] ^= 1;
            }
        };
        assert_eq!(arrives(&flipped(40)), [DropReason::Damaged]);
        assert_eq!(arrives(&flipped(13)), [DropReason::Damaged], "what it is");
        assert_eq!(arrives(&flipped(0)), [DropReason::ForeignFrame], "to whom it is");
        assert_eq!(world.pool.free(), world.pool.total());
    }

    /// The receiver is started again, then the sender: neither waits for a beat to be
    /// heard.
    #[test]
    fn a_new_incarnation_is_told_at_once() {
        let mut world = world();
        world.run(3 * TIMEOUT);
        for (restarted, incarnation) in [(1, 6), (0, 6)] {
            world.hubs[restarted] = hub(restarted as u16, incarnation);
            let before = world.drops(1, DropReason::Unannounced);
            world.arrives_sealed();
            assert_eq!(world.drops(1, DropReason::Unannounced), before + 1, "{restarted}");
            world.run(40 * MILLISECOND);
            let before = world.drops(1, DropReason::Malformed);
            world.arrives_sealed();
            assert_eq!(world.drops(1, DropReason::Malformed), before + 1, "{restarted}");
        }
    }

    /// An announcement for the earlier incarnation is ignored.
    #[test]
    fn what_was_meant_for_an_earlier_incarnation_is_not_heard() {
        let mut world = world();
        world.run(3 * TIMEOUT);
        world.hubs[1] = hub(1, 6);
        let said = |to| Sealing { to, life: 1, counter: 0, nodes: vec![NodeId::FIRST_RUNTIME] };
        world.hubs[0].manager.fabric().set_peer(Peer { node: NodeId::manager(1), incarnation: 6 });
        world.hubs[0].sealed = None;
        for (to, expected) in [(5, vec![]), (6, vec![(NodeId::FIRST_RUNTIME, Some(0))])] {
            assert!(world.hubs[0].manager.tell_sealing(1, said(to)));
            world.run(3 * TIMEOUT);
            assert_eq!(world.hubs[1].take_moved(), expected, "to {to}");
        }
    }
}
