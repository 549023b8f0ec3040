//! Any bytes as a frame. No parser panics, every view stays inside the frame, and another
//! parser understands the frame in the same way if both understand it.

use holdfast_wire::header::{ETHERTYPE_NSH, ETHERTYPE_VLAN};
use holdfast_wire::vlan::Tags;
use holdfast_wire::{FlowKey, Layers, MemoryPool, Packet, PacketPool, checksum, nsh};

pub(crate) fn run(data: &[u8]) {
    let mut pool = MemoryPool::new(1);
    let mut packet = pool.take().expect("there is one");
    if packet.copy_from(data) {
        tags(&mut packet, data);
    }
    if packet.copy_from(data) {
        if packet.parse().is_ok() {
            let layers = packet.layers;
            let key = FlowKey::of(&packet);
            let _ = (packet.ipv4(), packet.ipv6(), packet.tcp(), packet.udp());
            let _ = (packet.icmp(), packet.ttl());
            assert!(packet.l4().len() <= data.len());
            checksum::checksum(packet.l4());
            if let Some(key) = key {
                assert_eq!(key.reverse().reverse(), key);
                same_as_etherparse(data, &key, layers.fragment);
            }
        }
        FlowKey::quoted(data);
        let is_nsh = data.get(12..14) == Some(&ETHERTYPE_NSH.to_be_bytes());
        if is_nsh && nsh::decapsulate(&mut packet).is_some() {
            assert!(packet.len() < data.len());
            let _ = packet.parse();
        }
    }
    pool.put(packet);
}

/// A port's tags are as many as the parser sees, come off and go on again. Only a
/// customer tag's own priority is lost inside a service tag, which has the packet's.
fn tags(packet: &mut Packet, data: &[u8]) {
    let Ok(tags) = Tags::read(data) else { return };
    let count = tags.ids().count();
    let is_priority_tag = count == 0 && data[12..14] == ETHERTYPE_VLAN.to_be_bytes();
    if let Ok(layers) = Layers::parse(data) {
        assert!(is_priority_tag || usize::from(layers.vlan_tags) == count);
    }
    tags.take_off(packet);
    assert_eq!(packet.len(), data.len() - if count == 2 { 4 } else { 0 });
    assert_eq!(Tags::read(packet.bytes()), Ok(Tags::NONE));
    assert!(tags.put_on(packet));
    let mut expected = data.to_vec();
    if count == 2 {
        expected[18] = data[14] & 0xf0 | data[18] & 0x0f;
    }
    assert_eq!(packet.bytes(), expected);
    if packet.pull_tag() {
        assert_eq!(packet.len(), data.len() - 4);
    }
}

fn same_as_etherparse(bytes: &[u8], key: &FlowKey, is_later_fragment: bool) {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use holdfast_wire::header::proto;
    // etherparse is stricter in places: it checks lengths that a router passes on. If it
    // understands the frame, both must agree. ICMP errors are not compared, because their
    // key is that of the packet that they quote; nor is an ICMP error's first fragment,
    // in which etherparse sees no transport. Headers behind an authentication header are
    // not compared either: for Holdfast the flow key ends there.
    let Ok(theirs) = SlicedPacket::from_ethernet(bytes) else { return };
    let (source, destination): (std::net::IpAddr, std::net::IpAddr) = match &theirs.net {
        Some(NetSlice::Ipv4(ip)) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        Some(NetSlice::Ipv6(ip)) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        _ => return,
    };
    let ports = match &theirs.transport {
        Some(TransportSlice::Tcp(tcp)) if key.protocol == u16::from(proto::TCP) => {
            (tcp.source_port(), tcp.destination_port())
        }
        Some(TransportSlice::Udp(udp)) if key.protocol == u16::from(proto::UDP) => {
            (udp.source_port(), udp.destination_port())
        }
        _ => return,
    };
    assert_eq!(
        (key.source_ip(), key.destination_ip()),
        (canonical(source), canonical(destination))
    );
    if !is_later_fragment {
        assert_eq!((key.source_port, key.destination_port), ports);
    }
}

/// Keys hold IPv4 addresses as IPv4-mapped ones, so both forms are made one and the same.
fn canonical(address: std::net::IpAddr) -> std::net::IpAddr {
    address.to_canonical()
}
