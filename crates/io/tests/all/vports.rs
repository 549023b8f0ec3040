//! A virtual port between two sides: frames and buffers change hands, and nothing is lost
//! when one side dies.

use holdfast_io::{Arena, VportGuest, VportHost};
use holdfast_wire::{Packet, PacketPool};
use rustix::fd::OwnedFd;

fn attach(arena: &Arena, host: &VportHost) -> VportGuest {
    let own = |fd: rustix::fd::BorrowedFd<'_>| -> OwnedFd {
        fd.try_clone_to_owned().expect("descriptors are left")
    };
    let [rings, wake_host, wake_guest] = host.fds();
    VportGuest::attach(own(arena.fd()), own(rings), own(wake_host), own(wake_guest))
        .expect("this is the arena's port")
}

fn send(host: &mut VportHost, arena: &mut Arena, byte: u8) -> bool {
    let Some(mut packet) = arena.take() else { return false };
    packet.clear();
    assert!(packet.copy_from(&[byte; 60]));
    match host.send(packet, arena) {
        Ok(()) => true,
        Err(packet) => {
            arena.put(packet);
            false
        }
    }
}

/// A hundred thousand frames go there and come back changed; then every buffer is where
/// the record says.
#[test]
fn frames_come_back_and_every_buffer_is_accounted_for() {
    let mut arena = Arena::create(8192).unwrap();
    let mut host = VportHost::create(1, &mut arena).unwrap();
    let mut guest = attach(&arena, &host);
    let (mut rx, mut tx, mut back): (Vec<Packet>, Vec<Packet>, Vec<Packet>) = Default::default();
    let mut returned = 0;
    for round in 0..2000u32 {
        for at in 0..50 {
            assert!(send(&mut host, &mut arena, at));
        }
        host.flush();
        guest.receive(64, &mut rx);
        assert_eq!(rx.len(), 50);
        for (at, mut packet) in rx.drain(..).enumerate() {
            assert_eq!(packet.bytes(), [at as u8; 60]);
            packet.bytes_mut()[0] = 0xff;
            if (at as u32 + round).is_multiple_of(3) {
                guest.put(packet);
            } else {
                tx.push(packet);
            }
        }
        if let Some(mut own) = guest.take() {
            own.clear();
            assert!(own.copy_from(b"its own"));
            tx.push(own);
        }
        guest.transmit(&mut tx);
        guest.publish();
        host.receive(100, &mut back, &mut arena);
        returned += back.len();
        for packet in back.drain(..) {
            assert!(packet.bytes()[0] == 0xff || packet.bytes() == b"its own");
            arena.put(packet);
        }
        assert_eq!(arena.free() + arena.held_by(1), arena.total());
    }
    assert!(returned > 60_000);
    assert_eq!(host.counters().refused, 0);
    // The guest dies with whatever it has.
    drop(guest);
    host.reclaim(&mut arena);
    assert_eq!(arena.free(), arena.total());
}

/// A runtime that stops reading: its ring fills, the manager gets its packets back, and
/// nothing else happens.
#[test]
fn a_full_ring_refuses() {
    let mut arena = Arena::create(16_384).unwrap();
    let mut host = VportHost::create(1, &mut arena).unwrap();
    let mut sent = 0;
    while send(&mut host, &mut arena, 1) {
        sent += 1;
    }
    assert!(sent > 4000, "{sent}");
    assert_eq!(host.counters().full, 1);
    assert_eq!(host.unread(), sent);
    host.reclaim(&mut arena);
    assert_eq!(arena.free(), arena.total());
}

/// The same buffer sent twice: the second time it is not the guest's any more.
#[test]
fn a_buffer_that_was_given_up_cannot_be_sent_again() {
    let mut arena = Arena::create(8192).unwrap();
    let mut host = VportHost::create(1, &mut arena).unwrap();
    let mut first = attach(&arena, &host);
    // A second guest on the same port is what a broken process could be; it reads the
    // same rings from the start.
    assert!(send(&mut host, &mut arena, 9));
    host.flush();
    let mut second = attach(&arena, &host);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    first.receive(1, &mut a);
    second.receive(1, &mut b);
    assert_eq!((a.len(), b.len()), (1, 1));
    let mut back = Vec::new();
    first.transmit(&mut a);
    first.publish();
    host.receive(10, &mut back, &mut arena);
    assert_eq!(back.len(), 1);
    let held = arena.held_by(1);
    second.transmit(&mut b);
    second.publish();
    host.receive(10, &mut back, &mut arena);
    assert_eq!(back.len(), 1, "the second one is refused");
    assert_eq!(arena.held_by(1), held);
    for packet in back {
        arena.put(packet);
    }
}

/// A runtime that sends more than it receives (messages, say) is supplied with free
/// buffers for as long as the arena has some.
#[test]
fn a_runtime_that_only_sends_does_not_run_dry() {
    let mut arena = Arena::create(4096).unwrap();
    let mut host = VportHost::create(1, &mut arena).unwrap();
    let mut guest = attach(&arena, &host);
    let (mut out, mut back) = (Vec::new(), Vec::new());
    for turn in 0..1000 {
        for _ in 0..32 {
            out.push(guest.take().unwrap_or_else(|| panic!("dry in turn {turn}")));
        }
        guest.transmit(&mut out);
        guest.publish();
        host.receive(64, &mut back, &mut arena);
        assert_eq!(back.len(), 32);
        for packet in back.drain(..) {
            arena.put(packet);
        }
    }
    host.reclaim(&mut arena);
    assert_eq!(arena.free(), arena.total());
}

/// Packets come faster than the runtime takes them: its ring is full for packets, and has
/// room for messages. When it has taken some, packets go on.
#[test]
fn a_flood_of_packets_leaves_room_for_messages() {
    let mut arena = Arena::create(20_000).unwrap();
    let mut host = VportHost::create(1, &mut arena).unwrap();
    let mut guest = attach(&arena, &host);
    let flood = |host: &mut VportHost, arena: &mut Arena| {
        let mut count = 0;
        while let Some(mut packet) = arena.take() {
            assert!(packet.copy_from(&[1; 60]));
            match host.send_data(packet, arena) {
                Ok(()) => count += 1,
                Err(packet) => {
                    arena.put(packet);
                    break;
                }
            }
        }
        host.flush();
        count
    };
    let packets = flood(&mut host, &mut arena);
    assert!(packets > 1_000, "{packets}");
    assert_eq!(host.counters().full, 1);
    for number in 0..500 {
        assert!(send(&mut host, &mut arena, 2), "message {number}");
    }
    host.flush();
    let mut rx = Vec::new();
    guest.receive(100_000, &mut rx);
    assert_eq!(rx.len(), packets + 500);
    rx.drain(..).for_each(|packet| guest.put(packet));
    guest.transmit(&mut Vec::new());
    guest.publish();
    host.receive(1, &mut Vec::new(), &mut arena);
    assert!(flood(&mut host, &mut arena) > 1_000);
}
