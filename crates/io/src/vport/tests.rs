//! A manager is killed before any store that outlives it, and adopted: every buffer is in
//! one place, and no frame comes twice.

use super::{DONE, FILL, RX, TX, VportGuest, VportHost, ring};
use crate::arena::{Arena, MANAGER};
use crate::death;
use crate::ring::Memory;
use crate::shared_memory::SharedMemory;
use holdfast_wire::{Packet, PacketPool};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

const BUFFERS: u32 = 4096;
const PORTS: usize = 2;

fn own(fd: &impl rustix::fd::AsFd) -> OwnedFd {
    fd.as_fd().try_clone_to_owned().expect("descriptors are left")
}

/// The parts of a port that outlive the manager.
struct Port {
    id: u16,
    fds: [OwnedFd; 3],
    memory: SharedMemory,
    guest: VportGuest,
    /// Frames that the guest has.
    hand: Vec<Packet>,
    /// The last number that the guest saw, and the last that it sent.
    seen: u64,
    sent: u64,
    /// The last of its numbers that the manager saw.
    host_seen: u64,
}

/// A manager, its ports, and the descriptors that a guard would keep.
struct World {
    fds: [OwnedFd; 2],
    ports: Vec<Port>,
    arena: Arena,
    hosts: Vec<VportHost>,
    /// Frames that the manager has.
    hand: Vec<Packet>,
    number: u64,
}

fn number(packet: &Packet) -> u64 {
    u64::from_le_bytes(packet.bytes().try_into().expect("every frame is a number"))
}

fn waiting(memory: Memory<'_>) -> Vec<u32> {
    let (head, written) =
        (memory.head.load(Ordering::Relaxed), memory.written.load(Ordering::Relaxed));
    let len = memory.entries.len();
    assert!(written.wrapping_sub(head) as usize <= len);
    (0..written.wrapping_sub(head))
        .map(|at| {
            (memory.entries[head.wrapping_add(at) as usize % len].load(Ordering::Relaxed) >> 32)
                as u32
        })
        .collect()
}

impl World {
    fn new() -> World {
        let mut arena = Arena::create(BUFFERS).unwrap();
        let mut hosts = Vec::new();
        let mut ports = Vec::new();
        for id in 1..=PORTS as u16 {
            let host = VportHost::create(id, &mut arena).unwrap();
            let fds = host.fds().map(|fd: BorrowedFd<'_>| own(&fd));
            let guest =
                VportGuest::attach(own(&arena.fd()), own(&fds[0]), own(&fds[1]), own(&fds[2]))
                    .unwrap();
            let memory = SharedMemory::open(own(&fds[0])).unwrap();
            ports.push(Port {
                id,
                fds,
                memory,
                guest,
                hand: Vec::new(),
                seen: 0,
                sent: 0,
                host_seen: 0,
            });
            hosts.push(host);
        }
        let fds = arena.fds().map(|fd| own(&fd));
        World { fds, ports, arena, hosts, hand: Vec::new(), number: 0 }
    }

    /// Begins the next incarnation. The present one is forgotten with everything that
    /// only it knew.
    fn adopt(&mut self) {
        self.hand.clear();
        self.arena = Arena::adopt(own(&self.fds[0]), own(&self.fds[1])).unwrap();
        self.hosts.clear();
        for port in &self.ports {
            let [rings, wake_host, wake_guest] = &port.fds;
            let host =
                VportHost::adopt(port.id, own(rings), own(wake_host), own(wake_guest), &self.arena)
                    .unwrap();
            self.hosts.push(host);
        }
        self.arena.reclaim_unknown(&self.ports.iter().map(|port| port.id).collect::<Vec<_>>());
    }

    /// Checks that every buffer is in exactly one place, and that the record names its
    /// owner.
    fn account(&mut self) {
        let mut places = vec![Vec::new(); BUFFERS as usize];
        let mut free = Vec::new();
        while let Some(packet) = self.arena.take() {
            places[packet.id() as usize].push((MANAGER, "free"));
            free.push(packet);
        }
        for packet in free.into_iter().rev() {
            self.arena.put(packet);
        }
        for packet in &self.hand {
            places[packet.id() as usize].push((MANAGER, "the manager's hand"));
        }
        for port in &self.ports {
            for (which, name) in [(RX, "rx"), (TX, "tx"), (FILL, "fill"), (DONE, "done")] {
                for id in waiting(ring(&port.memory, which)) {
                    places[id as usize].push((port.id, name));
                }
            }
            for id in port.guest.cached() {
                places[*id as usize].push((port.id, "the cache"));
            }
            for packet in &port.hand {
                places[packet.id() as usize].push((port.id, "the guest's hand"));
            }
        }
        for (id, places) in places.iter().enumerate() {
            assert_eq!(places.len(), 1, "buffer {id}: {places:?}");
            let (owner, place) = places[0];
            assert!(
                self.arena.is_of(id as u32, owner),
                "buffer {id} in {place} is not recorded for {owner}"
            );
        }
        for (port, host) in self.ports.iter().zip(&self.hosts) {
            assert_eq!(self.arena.held_by(port.id), host.outstanding());
            assert_eq!(host.counters().refused, 0);
        }
    }

    fn send(&mut self, at: usize) {
        self.number += 1;
        let Some(mut packet) = self.arena.take() else { return };
        packet.clear();
        assert!(packet.copy_from(&self.number.to_le_bytes()));
        if let Err(packet) = self.hosts[at].send(packet, &mut self.arena) {
            self.arena.put(packet);
        }
    }

    /// Takes frames that the guest sent; a part of them stays with the manager.
    fn receive(&mut self, at: usize, max: usize) {
        let before = self.hand.len();
        self.hosts[at].receive(max, &mut self.hand, &mut self.arena);
        for packet in &self.hand[before..] {
            assert!(number(packet) > self.ports[at].host_seen, "a frame came twice, or late");
            self.ports[at].host_seen = number(packet);
        }
        while self.hand.len() > 40 {
            let packet = self.hand.swap_remove(0);
            self.arena.put(packet);
        }
    }

    fn guest_receive(&mut self, at: usize, max: usize) {
        let port = &mut self.ports[at];
        let before = port.hand.len();
        port.guest.receive(max, &mut port.hand);
        port.guest.publish();
        for packet in &port.hand[before..] {
            assert!(number(packet) > port.seen, "a frame came twice, or late");
            port.seen = number(packet);
        }
    }

    /// Lets the guest send some of its frames and give up some.
    fn guest_transmit(&mut self, at: usize, send: usize, give_up: usize) {
        let port = &mut self.ports[at];
        let mut frames: Vec<Packet> = port.hand.drain(..send.min(port.hand.len())).collect();
        for packet in &mut frames {
            port.sent += 1;
            packet.clear();
            assert!(packet.copy_from(&port.sent.to_le_bytes()));
        }
        for packet in port.hand.drain(..give_up.min(port.hand.len())) {
            port.guest.put(packet);
        }
        port.guest.transmit(&mut frames);
        port.guest.publish();
    }

    fn guest_take(&mut self, at: usize, count: usize) {
        let port = &mut self.ports[at];
        port.hand.extend(std::iter::from_fn(|| port.guest.take()).take(count));
        port.guest.publish();
    }

    /// Puts frames in transit, in all rings and both directions, and then takes a turn of
    /// the manager with all of its actions.
    fn fill_up(&mut self) {
        for at in 0..PORTS {
            (0..20).for_each(|_| self.send(at));
            self.hosts[at].flush();
            self.guest_receive(at, 10);
            // The guest takes more than the cache holds, so that some come back.
            self.guest_take(at, 600);
            self.guest_transmit(at, 7, 590);
            (0..2).for_each(|_| self.send(at));
        }
    }

    fn turn(&mut self) {
        for at in 0..PORTS {
            self.receive(at, 4);
            (0..3).for_each(|_| self.send(at));
            self.hosts[at].flush();
        }
        // Frames go from one guest to the other.
        for at in 0..PORTS {
            if let Some(packet) = self.hand.pop() {
                self.arena.put(packet);
                self.send(1 - at);
            }
        }
    }
}

/// A busy manager is killed before a store: each of the first ones, later one of 13,
/// because its stores repeat every one to three. Now and then its next incarnation is
/// killed before each store of the adoption too, and the one after that adopts. Every
/// buffer is in one place, no frame comes twice, and the guests continue.
#[test]
fn death_before_any_store() {
    let mut deaths = 0;
    for stores in (0..40).chain((40..).step_by(13)) {
        let mut world = World::new();
        world.fill_up();
        let survived = death::after(stores, || world.turn()).is_some();
        if deaths % 16 == 0 {
            // Each incarnation makes one store more than the last.
            let deaths = (0..).find(|deaths| death::after(*deaths, || world.adopt()).is_some());
            assert!(deaths > Some(4));
        } else {
            world.adopt();
        }
        world.account();
        for _ in 0..3 {
            for at in 0..PORTS {
                world.guest_receive(at, 100);
                world.guest_transmit(at, 5, 100);
            }
            world.turn();
            world.account();
        }
        for at in 0..PORTS {
            assert!(world.ports[at].seen > 0 && world.ports[at].host_seen > 0);
        }
        if survived {
            break;
        }
        deaths += 1;
    }

    assert!(deaths > 100, "only {deaths} stores: the turn does not do what it should");
}

/// `flush` wakes a sleeping guest once if there are frames for it, and no other guest.
#[test]
fn only_who_has_something_is_woken() {
    let mut world = World::new();
    let rings =
        |world: &World, at: usize| rustix::io::read(&world.ports[at].fds[2], &mut [0; 8]).is_ok();
    (0..PORTS).for_each(|at| assert!(world.ports[at].guest.prepare_sleep()));
    world.send(0);
    (0..PORTS).for_each(|at| world.hosts[at].flush());
    assert!(rings(&world, 0) && !rings(&world, 1));
    (0..PORTS).for_each(|at| world.hosts[at].flush());
    assert!(!rings(&world, 0) && !rings(&world, 1), "nothing new");
    world.send(1);
    (0..PORTS).for_each(|at| world.hosts[at].flush());
    assert!(!rings(&world, 0) && rings(&world, 1));
}

/// Frames that the manager had sent and not shown are shown by its next incarnation,
/// which wakes the guest for them. Frames that the guest had sent meanwhile are received.
#[test]
fn nothing_in_the_rings_is_lost() {
    let mut world = World::new();
    assert!(world.ports[0].guest.prepare_sleep());
    (0..5).for_each(|_| world.send(0));
    world.guest_take(0, 3);
    world.guest_transmit(0, 3, 0);
    world.adopt();
    let mut bell = [0; 8];
    assert_eq!(rustix::io::read(&world.ports[0].fds[2], &mut bell), Ok(8), "the guest was woken");
    world.guest_receive(0, 100);
    assert_eq!(world.ports[0].hand.len(), 5);
    world.receive(0, 100);
    assert_eq!(world.hand.len(), 3);
    world.account();
}

/// Buffers are free if the next incarnation never heard of their port's process; so are
/// buffers that were being reclaimed.
#[test]
fn a_port_that_nobody_knows_is_reclaimed() {
    let mut world = World::new();
    let stranger = VportHost::create(9, &mut world.arena).unwrap();
    assert!(death::after(3, || stranger.reclaim(&mut world.arena)).is_none());
    assert!(world.arena.held_by(9) > 0);
    world.adopt();
    world.account();
}

/// A million steps of a manager and its guests in random order, with deaths at random
/// stores.
#[test]
fn a_million_steps_with_deaths() {
    let mut world = World::new();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    };
    let mut deaths = 0;
    for _ in 0..1_000_000 {
        let at = draw(PORTS as u64) as usize;
        let (kind, count, other) = (draw(8), draw(70) as usize, draw(30) as usize);
        let (deadly, long) = (draw(1000) == 0, draw(11));
        let stores = if deadly { draw(1 << long) as u32 } else { u32::MAX };
        let survived = death::after(stores, || match kind {
            0 | 1 => (0..count).for_each(|_| world.send(at)),
            2 => world.hosts[at].flush(),
            3 | 4 => world.receive(at, count),
            _ => {}
        });
        match kind {
            5 => world.guest_receive(at, count),
            6 => world.guest_take(at, other),
            7 => world.guest_transmit(at, count, other),
            _ => {}
        }
        if survived.is_none() {
            deaths += 1;
            world.adopt();
            world.account();
        }
    }
    assert!(deaths > 100, "{deaths}");
    world.account();
    assert!(world.ports.iter().all(|port| port.seen > 100_000 && port.host_seen > 100_000));
}

/// Last words can be read when the runtimes and their manager are dead. Last words do not
/// disturb the words beside them, which name the in-flight packet.
#[test]
fn last_words_outlive_runtime_and_manager() {
    let world = World::new();
    for (port, said) in world.ports.iter().zip([8, 3]) {
        assert_eq!(port.guest.last_word().load(Ordering::Relaxed), 0, "nothing was said yet");
        port.guest.last_word().store(said, Ordering::Relaxed);
        port.guest.in_flight().iter().for_each(|word| word.store(77, Ordering::Relaxed));
    }
    let World { fds, ports, arena, hosts, .. } = world;
    let kept: Vec<(u16, [OwnedFd; 3])> =
        ports.into_iter().map(|port| (port.id, port.fds)).collect();
    drop((arena, hosts));
    let arena = Arena::adopt(own(&fds[0]), own(&fds[1])).unwrap();
    let heard = kept.into_iter().map(|(id, [rings, wake_host, wake_guest])| {
        let host = VportHost::adopt(id, rings, wake_host, wake_guest, &arena).unwrap();
        (host.last_word().load(Ordering::Relaxed), host.take_in_flight())
    });
    assert_eq!(heard.collect::<Vec<_>>(), [(8, Some((77, 77))), (3, Some((77, 77)))]);
}

/// A guest overwrote the manager's count: its port is refused, and the arena and the
/// other port are as before.
#[test]
fn spoilt_rings_are_refused() {
    for (which, written) in [(RX, 9000), (FILL, 5), (FILL, u32::MAX)] {
        let world = World::new();
        ring(&world.ports[0].memory, which).written.store(written, Ordering::Relaxed);
        let arena = Arena::adopt(own(&world.fds[0]), own(&world.fds[1])).unwrap();
        let adopt = |port: &Port| {
            VportHost::adopt(
                port.id,
                own(&port.fds[0]),
                own(&port.fds[1]),
                own(&port.fds[2]),
                &arena,
            )
        };
        assert!(
            adopt(&world.ports[0])
                .is_err_and(|error| error.kind() == std::io::ErrorKind::InvalidData),
            "{which} {written}"
        );
        assert!(adopt(&world.ports[1]).is_ok());
    }
    let (world, other) = (World::new(), Arena::create(7).unwrap());
    assert!(
        Arena::adopt(own(&world.fds[0]), own(&other.fds()[1])).is_err(),
        "the record of another arena"
    );
    assert!(Arena::adopt(own(&world.fds[0]), own(&world.fds[0])).is_err(), "no record at all");
}

/// Memory of another build: a process that is given it touches nothing in it, and names
/// both versions.
#[test]
fn another_version_is_refused_by_name() {
    let world = World::new();
    let [port, ..] = world.ports.as_slice() else { unreachable!("there are two") };
    let arena = || Arena::adopt(own(&world.fds[0]), own(&world.fds[1]));
    let attach = || {
        VportGuest::attach(
            own(&world.fds[0]),
            own(&port.fds[0]),
            own(&port.fds[1]),
            own(&port.fds[2]),
        )
        .map(drop)
    };
    let adopt = |arena: &Arena| {
        VportHost::adopt(port.id, own(&port.fds[0]), own(&port.fds[1]), own(&port.fds[2]), arena)
            .map(drop)
    };
    let behind = BUFFERS as usize * holdfast_wire::BUFFER_LEN + 8;
    let [memory, record] =
        [&world.fds[0], &world.fds[1]].map(|fd| SharedMemory::open(own(fd)).unwrap());
    let refused = |what: std::io::Result<()>, name: &str| {
        let text = what.unwrap_err().to_string();
        assert!(
            text.contains(name) && text.contains("has layout 77") && text.contains("knows layout"),
            "{text}"
        );
    };
    for (memory, at, name) in [
        (&port.memory, 8, "the virtual port"),
        (&memory, behind, "the arena"),
        (&record, 8, "the record of buffers"),
    ] {
        let adopted = arena().unwrap();
        let version = memory.word32(at).swap(77, Ordering::Relaxed);
        match name {
            "the virtual port" => {
                refused(attach(), name);
                refused(adopt(&adopted), name);
            }
            "the arena" => {
                refused(attach(), name);
                refused(arena().map(drop), name);
            }
            _ => refused(arena().map(drop), name),
        }
        memory.word32(at).store(version, Ordering::Relaxed);
        assert!(attach().is_ok() && arena().is_ok());
    }
}
