//! Ports without a device: memory, and capture files.

use etherparse::{PacketBuilder, SlicedPacket};
use holdfast_io::port::{MemoryPort, Pcap, Port, PortError, open};
use holdfast_protection::Released;
use holdfast_wire::{DropReason, MemoryPool, Packet, PacketPool};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn datagram(to: [u8; 6], number: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder =
        PacketBuilder::ethernet2(OTHER, to).ipv4([10, 0, 0, 2], [192, 0, 2, 1], 64).udp(number, 53);
    builder.write(&mut frame, b"question").expect("a vector takes it");
    frame
}

fn receive(port: &mut dyn Port, pool: &mut MemoryPool) -> Vec<Vec<u8>> {
    let mut packets: Vec<Packet> = Vec::new();
    port.receive(64, pool, &mut packets);
    packets
        .into_iter()
        .map(|packet| {
            let bytes = packet.bytes().to_vec();
            pool.put(packet);
            bytes
        })
        .collect()
}

fn transmit(port: &mut dyn Port, pool: &mut MemoryPool, frames: &[Vec<u8>]) {
    let mut released = Vec::new();
    for frame in frames {
        let mut packet = pool.take().expect("the pool is large enough");
        packet.clear();
        assert!(packet.copy_from(frame));
        released.push(Released::stateless(packet));
    }
    port.transmit(&mut released, pool);
    assert!(released.is_empty());
}

fn is_readable(port: &dyn Port) -> bool {
    let fd = port.wait_fd().expect("these ports have a descriptor");
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).expect("poll works") == 1
}

/// Frames cross in both directions, in order; the descriptor says when there are some; a
/// full queue drops and says so.
#[test]
fn memory_carries_both_ways() {
    let mut pool = MemoryPool::new(64);
    let (mut port, link) = MemoryPort::new("m0", MAC, 1500).expect("descriptors are left");
    assert!(!is_readable(&port));
    let frames: Vec<Vec<u8>> = (0..40).map(|number| datagram(MAC, number)).collect();
    for frame in &frames {
        assert!(link.send(frame));
    }
    assert!(is_readable(&port));
    assert_eq!(receive(&mut port, &mut pool), frames);
    assert_eq!(receive(&mut port, &mut pool), Vec::<Vec<u8>>::new());
    assert!(!is_readable(&port));

    transmit(&mut port, &mut pool, &frames);
    assert_eq!(std::iter::from_fn(|| link.receive()).collect::<Vec<_>>(), frames);

    for _ in 0..4096 / 64 {
        transmit(&mut port, &mut pool, &vec![frames[0].clone(); 64]);
    }
    transmit(&mut port, &mut pool, &frames[..3]);
    assert_eq!(port.drops().get(DropReason::QueueFull), 3);
    assert_eq!(pool.free(), 64);
}

fn capture(path: &Path, datalink: DataLink, frames: &[Vec<u8>]) {
    let header = PcapHeader { datalink, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(File::create(path).unwrap(), header).unwrap();
    for frame in frames {
        writer
            .write_packet(&PcapPacket::new(Duration::from_secs(1), frame.len() as u32, frame))
            .unwrap();
    }
}

fn captured(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    std::iter::from_fn(|| reader.next_packet().map(|packet| packet.unwrap().data.to_vec()))
        .collect()
}

/// A capture of foreign traffic comes in as if it had been sent here. The other file has
/// what is transmitted, and only that: questions for neighbours are answered, not
/// written.
#[test]
fn captures_come_in_and_go_out() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.pcap"), folder.path().join("out.pcap"));
    let frames: Vec<Vec<u8>> =
        (0..100).map(|number| datagram([2, 9, 9, 9, 9, 9], number)).collect();
    capture(&input, DataLink::ETHERNET, &frames);
    let mut pool = MemoryPool::new(256);
    let mut port = open(&format!("pcap:{},{}", input.display(), output.display()))
        .unwrap_or_else(|error| panic!("{error}"));
    let mac = port.mac();
    assert!(is_readable(port.as_ref()));
    let mut got = receive(port.as_mut(), &mut pool);
    got.extend(receive(port.as_mut(), &mut pool));
    let expected: Vec<Vec<u8>> = (0..100).map(|number| datagram(mac, number)).collect();
    assert_eq!(got, expected);
    assert_eq!(receive(port.as_mut(), &mut pool).len(), 0);
    assert!(!is_readable(port.as_ref()), "a file that was read to its end wakes nobody");

    let mut question = vec![0xff; 6];
    question.extend_from_slice(&mac);
    question.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    question.extend_from_slice(&mac);
    question.extend_from_slice(&[10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 9]);
    let mut solicitation = Vec::new();
    let (own, other): ([u8; 16], [u8; 16]) =
        ([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [0x20; 16]);
    let mut body = vec![0, 0, 0, 0];
    body.extend_from_slice(&other);
    let builder = PacketBuilder::ethernet2(mac, [0x33, 0x33, 0xff, 0x20, 0x20, 0x20])
        .ipv6(own, own, 255)
        .icmpv6_raw(135, 0, [0; 4]);
    builder.write(&mut solicitation, &body[4..]).unwrap();
    transmit(port.as_mut(), &mut pool, &[question, datagram(OTHER, 7), solicitation]);
    assert!(is_readable(port.as_ref()));
    let answers = receive(port.as_mut(), &mut pool);
    assert_eq!(answers.len(), 2);
    assert_eq!(
        (&answers[0][..6], &answers[0][20..22], &answers[0][28..32]),
        (&mac[..], &[0, 2][..], &[10, 0, 0, 9][..])
    );
    let advertisement =
        SlicedPacket::from_ethernet(&answers[1]).expect("the answer is well formed");
    let Some(etherparse::TransportSlice::Icmpv6(icmp)) = advertisement.transport else {
        panic!("an answer of another kind")
    };
    assert!(icmp.is_checksum_valid(other, own), "the checksum is right");
    assert_eq!((icmp.type_u8(), &icmp.slice()[8..24]), (136, &other[..]));
    drop(port);
    assert_eq!(captured(&output), vec![datagram(OTHER, 7)]);
    assert_eq!(pool.free(), 256);
}

/// Files that are no captures, captures of something else, and captures that end in the
/// middle: each gives a message, or a counted drop.
#[test]
fn captures_that_are_none_are_refused_or_counted() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |device: String| match open(&device) {
        Err(PortError::Unavailable(text)) => text,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{device} was opened"),
    };
    let path = |name: &str| folder.path().join(name).display().to_string();
    assert!(refused(format!("pcap:{}", path("missing"))).contains("missing`: No such file"));
    assert!(refused("pcap:".to_owned()).contains("names a file to read"));
    std::fs::write(path("text"), "this is no capture, but a text of some length").unwrap();
    assert!(refused(format!("pcap:{}", path("text"))).contains("no pcap file"));
    capture(Path::new(&path("raw")), DataLink::RAW, &[]);
    assert!(refused(format!("pcap:{}", path("raw"))).contains("not of Ethernet frames"));
    capture(Path::new(&path("same")), DataLink::ETHERNET, &[]);
    assert!(refused(format!("pcap:{0},{0}", path("same"))).contains("at the same time"));
    assert!(refused("ipx:eth0".to_owned()).contains("no port driver `ipx`"));
    assert!(refused("no-such-device".to_owned()).contains("no device `no-such-device`"));

    capture(Path::new(&path("cut")), DataLink::ETHERNET, &[datagram(MAC, 1), datagram(MAC, 2)]);
    let whole = std::fs::read(path("cut")).unwrap();
    std::fs::write(path("cut"), &whole[..whole.len() - 5]).unwrap();
    let mut pool = MemoryPool::new(8);
    let mut port = Pcap::open(&path("cut")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(receive(&mut port, &mut pool).len(), 1);
    assert_eq!(port.drops().get(DropReason::Malformed), 1);
    assert_eq!(pool.free(), 8);
}
