//! Any bytes as a frame: nothing panics, every view stays inside, and where a frame is
//! understood it is understood as another parser understands it.

use holdfast_wire::header::ETHERTYPE_NSH;
use holdfast_wire::{FlowKey, MemoryPool, PacketPool, checksum, nsh};

pub(crate) fn run(data: &[u8]) {
    let mut pool = MemoryPool::new(1);
    let mut packet = pool.take().expect("there is one");
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

fn same_as_etherparse(bytes: &[u8], key: &FlowKey, is_later_fragment: bool) {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use holdfast_wire::header::proto;
    // It is stricter in places (it checks lengths that a router passes on); where it
    // understands, both must agree. What is not compared: ICMP errors (in a first
    // fragment too, where it sees no transport), whose key is that of the packet they
    // quote, and what hides behind an authentication header, which is the flow's end to
    // us.
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

/// Keys hold IPv4 addresses as mapped ones: one and the same in both forms.
fn canonical(address: std::net::IpAddr) -> std::net::IpAddr {
    address.to_canonical()
}
