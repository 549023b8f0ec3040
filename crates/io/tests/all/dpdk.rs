//! DPDK ports over DPDK's virtual devices: frames arrive as they were sent, every buffer
//! returns, and a port that cannot be opened says why.
#![cfg_attr(not(holdfast_dpdk), allow(dead_code, unused_imports))]

use holdfast_io::port::{self, Port, PortError};
use holdfast_protection::Released;
use holdfast_wire::{BUFFER_LEN, DropReason, HEADROOM, MemoryPool, Packet, PacketPool};
use std::path::Path;

/// The largest frame that a buffer holds behind its headroom.
const LARGEST: usize = BUFFER_LEN - HEADROOM;

/// A frame of `len` bytes that is like no other.
fn frame(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ (number * 7) ^ (number >> 5)) as u8).collect()
}

fn send(port: &mut dyn Port, pool: &mut MemoryPool, frames: &[Vec<u8>]) {
    let mut packets: Vec<Released<Packet>> = Vec::new();
    for bytes in frames {
        let mut packet = pool.take().expect("the pool is large enough");
        packet.clear();
        assert!(packet.copy_from(bytes));
        packets.push(Released::stateless(packet));
    }
    port.transmit(&mut packets, pool);
    assert!(packets.is_empty());
}

/// Takes all frames that are there. Virtual devices have all the frames that they will
/// ever have; a few empty looks show the end.
fn receive_all(port: &mut dyn Port, pool: &mut MemoryPool) -> Vec<Vec<u8>> {
    let (mut all, mut packets, mut empty) = (Vec::new(), Vec::new(), 0);
    while empty < 3 {
        port.receive(48, pool, &mut packets);
        assert!(packets.len() <= 48);
        empty = if packets.is_empty() { empty + 1 } else { 0 };
        for packet in packets.drain(..) {
            all.push(packet.bytes().to_vec());
            pool.put(packet);
        }
    }
    all
}

/// A pcap file (the classic format, little endian, Ethernet).
fn write_pcap(path: &Path, frames: &[Vec<u8>]) {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    for bytes in frames {
        for word in [0, 0, bytes.len() as u32, bytes.len() as u32] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(bytes);
    }
    std::fs::write(path, file).unwrap();
}

fn read_pcap(path: &Path) -> Vec<Vec<u8>> {
    let file = std::fs::read(path).unwrap();
    let (mut rest, mut frames) = (&file[24..], Vec::new());
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}

fn error(device: &str) -> String {
    match port::open(device) {
        Err(PortError::Unavailable(text)) => text,
        Err(other) => panic!("{device}: {other:?}"),
        Ok(port) => panic!("{device} was opened as {}", port.name()),
    }
}

/// Frames of every length go into a ring that leads back, burst after burst: they come
/// back unchanged and in order, and no buffer is lost.
#[test]
#[cfg_attr(not(holdfast_dpdk), ignore = "libdpdk was not there at build time")]
fn what_is_sent_into_a_ring_comes_back() {
    let mut pool = MemoryPool::new(1024);
    let mut port = port::open("dpdk:net_ring0").unwrap();
    assert_eq!((port.name(), port.driver()), ("dpdk:net_ring0", "dpdk"));
    assert_eq!(port.mtu(), 1500);
    assert!(port.is_up());
    assert!(port.wait_fd().is_none() && port.poll_interval().is_some());
    let lengths: Vec<usize> = (1..=LARGEST).chain([LARGEST; 100]).collect();
    for (round, lengths) in lengths.chunks(200).enumerate() {
        let frames: Vec<Vec<u8>> =
            lengths.iter().enumerate().map(|(at, len)| frame(round * 200 + at, *len)).collect();
        send(&mut *port, &mut pool, &frames);
        assert_eq!(receive_all(&mut *port, &mut pool), frames, "round {round}");
    }
    assert_eq!(port.drops().total(), 0);
    // The missing buffers lie ready for the next burst.
    assert_eq!(pool.total() - pool.free(), 48);
}

/// A box whose ring has no address of its own: it gets one that a station may have, the
/// same each time, and another than other rings.
#[test]
#[cfg_attr(not(holdfast_dpdk), ignore = "libdpdk was not there at build time")]
fn a_device_without_an_address_gets_one() {
    let mac = |device: &str| port::open(device).unwrap().mac();
    let (first, again, other) =
        (mac("dpdk:net_ring1"), mac("dpdk:net_ring1"), mac("dpdk:net_ring2"));
    assert_eq!(first[0] & 3, 2, "locally administered, and not a group: {first:02x?}");
    assert_eq!(first, again);
    assert_ne!(first, other);
}

/// More is sent into a ring of 1023 places than it holds: the first frames are there,
/// each of the others is counted, every buffer returns.
#[test]
#[cfg_attr(not(holdfast_dpdk), ignore = "libdpdk was not there at build time")]
fn what_a_full_device_does_not_take_is_counted() {
    let mut pool = MemoryPool::new(3000);
    let mut port = port::open("dpdk:net_ring3").unwrap();
    let frames: Vec<Vec<u8>> = (0..3000).map(|number| frame(number, 60)).collect();
    send(&mut *port, &mut pool, &frames);
    assert_eq!(pool.free(), 3000);
    assert_eq!(port.drops().get(DropReason::QueueFull), 3000 - 1023);
    assert_eq!(receive_all(&mut *port, &mut pool), frames[..1023]);
    assert_eq!(port.drops().total(), 3000 - 1023);
}

/// The pool runs dry while frames wait: none is lost, they come when there are buffers
/// again.
#[test]
#[cfg_attr(not(holdfast_dpdk), ignore = "libdpdk was not there at build time")]
fn frames_wait_in_the_device_while_there_are_no_buffers() {
    let (mut pool, mut dry) = (MemoryPool::new(200), MemoryPool::new(0));
    let mut port = port::open("dpdk:net_ring4").unwrap();
    let frames: Vec<Vec<u8>> = (0..100).map(|number| frame(number, 60)).collect();
    send(&mut *port, &mut pool, &frames);
    let mut none = Vec::new();
    port.receive(64, &mut dry, &mut none);
    assert!(none.is_empty());
    assert_eq!(receive_all(&mut *port, &mut pool), frames);
    assert_eq!(port.drops().total(), 0);
}

/// A port reads one file and writes another. The frames of the first file come, and each
/// frame that no buffer holds is counted. Once the port is closed the second file has
/// what was sent.
#[test]
#[cfg_attr(not(holdfast_dpdk), ignore = "libdpdk was not there at build time")]
fn a_capture_is_read_and_another_written() {
    let scratch = tempfile::tempdir().unwrap();
    let (input, output) = (scratch.path().join("in.pcap"), scratch.path().join("out.pcap"));
    // The 5000 bytes are more than one of DPDK's buffers holds, too: DPDK hands such a
    // frame over in pieces.
    let lengths = [60, 1514, LARGEST, LARGEST + 1, 5000, 61, 9];
    let came: Vec<Vec<u8>> =
        lengths.iter().enumerate().map(|(number, len)| frame(number, *len)).collect();
    write_pcap(&input, &came);
    let mut pool = MemoryPool::new(64);
    let device = format!("dpdk:net_pcap0,rx_pcap={},tx_pcap={}", input.display(), output.display());
    let mut port = port::open(&device).unwrap();
    assert_eq!(port.mac()[..3], [0x02, 0x70, 0x63], "the driver's own address");
    let fit: Vec<Vec<u8>> = came.iter().filter(|bytes| bytes.len() <= LARGEST).cloned().collect();
    assert_eq!(receive_all(&mut *port, &mut pool), fit);
    assert_eq!(port.drops().get(DropReason::FrameTooLarge), 2);
    let left: Vec<Vec<u8>> = (0..150).map(|number| frame(number, 60 + number)).collect();
    for some in left.chunks(10) {
        send(&mut *port, &mut pool, some);
    }
    assert_eq!(port.drops().total(), 2);
    drop(port);
    assert_eq!(read_pcap(&output), left);
}

/// Two ports at once, each with its own ring: frames stay where they belong. A third for
/// a device that is taken is refused, which the first does not notice.
#[test]
#[cfg_attr(not(holdfast_dpdk), ignore = "libdpdk was not there at build time")]
fn a_device_has_one_port() {
    let mut pool = MemoryPool::new(512);
    let (mut left, mut right) =
        (port::open("dpdk:net_ring5").unwrap(), port::open("dpdk:net_ring6").unwrap());
    let frames: Vec<Vec<u8>> = (0..20).map(|number| frame(number, 100)).collect();
    send(&mut *left, &mut pool, &frames[..10]);
    send(&mut *right, &mut pool, &frames[10..]);
    let text = error("dpdk:net_ring5");
    assert!(text.contains("another port has this device"), "{text}");
    assert_eq!(receive_all(&mut *left, &mut pool), frames[..10]);
    assert_eq!(receive_all(&mut *right, &mut pool), frames[10..]);
}

/// Ports are opened and closed a hundred times, with frames under way: without huge pages
/// there is memory for twenty at once, so each must give back what it had. Each begins
/// empty.
#[test]
#[cfg_attr(not(holdfast_dpdk), ignore = "libdpdk was not there at build time")]
fn a_closed_port_leaves_nothing() {
    let mut pool = MemoryPool::new(10_000);
    for round in 0..100 {
        let mut port =
            port::open("dpdk:net_ring7").unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(receive_all(&mut *port, &mut pool), Vec::<Vec<u8>>::new());
        send(&mut *port, &mut pool, &[frame(round, 60)]);
    }
}

/// A device that is not there, a file that is not there, a card that is not there: each
/// answer says what is wrong and what to do.
#[test]
#[cfg_attr(not(holdfast_dpdk), ignore = "libdpdk was not there at build time")]
fn what_cannot_be_opened_says_why() {
    for (device, expected) in [
        ("dpdk:eth0", "DPDK has no such device"),
        ("dpdk:net_nonsense0", "DPDK has no such device"),
        (
            "dpdk:net_pcap1,rx_pcap=/nowhere/at/all.pcap",
            "/nowhere/at/all.pcap: No such file or directory",
        ),
        ("dpdk:net_pcap1,nonsense=1", "DPDK's guide"),
        ("dpdk:ffff:ff:1f.6", "there is no such network card"),
    ] {
        let text = error(device);
        assert!(text.contains(expected) && text.contains(device), "{device}: {text}");
        assert!(!text.contains("Failed to attach"), "{device}: {text}");
    }
    assert!(error("dpdk:").contains("names a network card"));
}

/// A program that was built without DPDK is asked for a DPDK port: it says how to get
/// one.
#[test]
#[cfg(not(holdfast_dpdk))]
fn without_dpdk_the_answer_says_how_to_get_it() {
    let text = error("dpdk:net_ring0");
    assert!(text.contains("libdpdk-dev"), "{text}");
}
