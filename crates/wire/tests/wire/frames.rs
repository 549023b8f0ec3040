//! Frames of every kind, whole, with the offsets of their layers as their author knows
//! them.

use holdfast_wire::build::{self, Ends};
use holdfast_wire::header::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, icmp, icmpv6, proto,
};
use holdfast_wire::{MemoryPool, Packet, PacketPool};

pub(crate) const A4: [u8; 4] = [192, 0, 2, 1];
pub(crate) const B4: [u8; 4] = [198, 51, 100, 7];
pub(crate) const A6: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
pub(crate) const B6: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

pub(crate) const ENDS4: Ends = Ends::V4(A4, B4);
pub(crate) const ENDS6: Ends = Ends::V6(A6, B6);

/// `header` bytes for a header, and a payload behind them.
pub(crate) fn room(header: usize, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; header];
    bytes.extend_from_slice(payload);
    bytes
}

pub(crate) fn udp(ends: &Ends, payload: &[u8]) -> Vec<u8> {
    let mut bytes = room(build::Udp::LEN, payload);
    build::Udp { source: 5000, destination: 53 }.write(&mut bytes, ends).expect("it fits");
    bytes
}

pub(crate) fn tcp(ends: &Ends, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = room(build::Tcp::LEN + options.len(), payload);
    let header = build::Tcp { options, sequence: 7, ..build::Tcp::new(40000, 443, 0x18) };
    header.write(&mut bytes, ends).expect("it fits");
    bytes
}

pub(crate) fn echo4(id: u16) -> Vec<u8> {
    let mut bytes = room(8, b"ping of four");
    build::IcmpEcho { is_reply: false, id, sequence: 1 }.write(&mut bytes).expect("it fits");
    bytes
}

pub(crate) fn echo6(id: u16) -> Vec<u8> {
    let mut bytes = room(8, b"ping of six");
    build::Icmpv6Echo { is_reply: false, id, sequence: 1 }
        .write(&mut bytes, &A6, &B6)
        .expect("it fits");
    bytes
}

/// From `A4` to `B4`.
pub(crate) fn ipv4(header: build::Ipv4<'_>, payload: &[u8]) -> Vec<u8> {
    let mut bytes = room(20 + header.options.len(), payload);
    header.write(&mut bytes).expect("it fits");
    bytes
}

pub(crate) fn v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    ipv4(build::Ipv4::new(A4, B4, protocol), payload)
}

/// From `A6` to `B6`.
pub(crate) fn v6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = room(40, payload);
    build::Ipv6::new(A6, B6, next_header).write(&mut bytes).expect("it fits");
    bytes
}

/// An extension header: its protocol, and its bytes from the third one on.
pub(crate) type Extension<'a> = (u8, &'a [u8]);

/// Extension headers in a row before a payload; gives the first one's protocol too.
pub(crate) fn chain(extensions: &[Extension<'_>], last: u8, payload: &[u8]) -> (u8, Vec<u8>) {
    let mut bytes = Vec::new();
    for (at, (_, body)) in extensions.iter().enumerate() {
        let next = extensions.get(at + 1).map_or(last, |(protocol, _)| *protocol);
        let is_fragment = extensions[at].0 == proto::FRAGMENT;
        bytes.extend_from_slice(&[next, if is_fragment { 0 } else { (body.len() / 8) as u8 }]);
        bytes.extend_from_slice(body);
    }
    bytes.extend_from_slice(payload);
    (extensions.first().map_or(last, |(protocol, _)| *protocol), bytes)
}

pub(crate) fn ethernet(ethertype: u16, tags: &[u16], packet: &[u8]) -> Vec<u8> {
    let mut frame = room(14 + 4 * tags.len(), packet);
    let announced = tags.first().copied().unwrap_or(ethertype);
    build::Ethernet { destination: [2; 6], source: [4; 6], ethertype: announced }
        .write(&mut frame)
        .expect("it fits");
    for at in 0..tags.len() {
        let next = tags.get(at + 1).copied().unwrap_or(ethertype);
        let tag = build::Vlan {
            priority: 3,
            is_drop_eligible: false,
            id: 100 + at as u16,
            ethertype: next,
        };
        tag.write(&mut frame[14 + 4 * at..]).expect("it fits");
    }
    frame
}

pub(crate) fn error4(kind: u8, quote: &[u8]) -> Vec<u8> {
    let mut bytes = room(8, quote);
    build::IcmpError { kind, code: 0, rest: 0 }.write(&mut bytes).expect("it fits");
    bytes
}

pub(crate) fn error6(kind: u8, quote: &[u8]) -> Vec<u8> {
    let mut bytes = room(8, quote);
    build::Icmpv6Error { kind, code: 0, rest: 0 }.write(&mut bytes, &A6, &B6).expect("it fits");
    bytes
}

/// A frame of one kind, with the offsets of its layers.
pub(crate) struct Kind {
    pub(crate) name: String,
    pub(crate) frame: Vec<u8>,
    pub(crate) l3: usize,
    /// `None`: not IP.
    pub(crate) l4: Option<usize>,
    pub(crate) protocol: u8,
}

const PADDED_OPTIONS: &[u8] = &[7, 7, 4, 0, 0, 0, 0, 0]; // record route, one empty slot
const TCP_OPTIONS: &[u8] = &[2, 4, 5, 0xb4, 1, 3, 3, 7];
const SHORT: &[u8] = &[0; 6];
const LONG: &[u8] = &[1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const FIRST: &[u8] = &[0, 1, 0, 0, 0, 9];
const LATER: &[u8] = &[0, 24, 0, 0, 0, 9];
const ATOMIC: &[u8] = &[0, 0, 0, 0, 0, 9];
const SEGMENTS: &[u8] = &[4, 0, 0, 0, 0, 0];

/// IP packets of every kind: name, EtherType, bytes, length of the network header with
/// extensions, protocol.
pub(crate) fn packets() -> Vec<(String, u16, Vec<u8>, usize, u8)> {
    let payload = b"some bytes of payload...";
    let mut all: Vec<(String, u16, Vec<u8>, usize, u8)> = Vec::new();
    let new4 = |protocol| build::Ipv4::new(A4, B4, protocol);
    for (name, options) in [("", &[][..]), ("+options", PADDED_OPTIONS)] {
        let mut add = |what: &str, protocol: u8, segment: &[u8]| {
            let packet = ipv4(build::Ipv4 { options, ..new4(protocol) }, segment);
            all.push((
                format!("ipv4{name}/{what}"),
                ETHERTYPE_IPV4,
                packet,
                20 + options.len(),
                protocol,
            ));
        };
        add("udp", proto::UDP, &udp(&ENDS4, payload));
        add("tcp", proto::TCP, &tcp(&ENDS4, TCP_OPTIONS, payload));
        add("echo", proto::ICMP, &echo4(77));
        add("gre", 47, payload);
    }
    let first = build::Ipv4 { more_fragments: true, id: 9, ..new4(proto::UDP) };
    all.push((
        "ipv4/first".into(),
        ETHERTYPE_IPV4,
        ipv4(first, &udp(&ENDS4, payload)),
        20,
        proto::UDP,
    ));
    let later = build::Ipv4 { fragment_offset: 24, id: 9, ..new4(proto::UDP) };
    all.push(("ipv4/later".into(), ETHERTYPE_IPV4, ipv4(later, payload), 20, proto::UDP));
    let chains: [(&str, &[Extension<'_>]); 7] = [
        ("", &[]),
        ("hop-by-hop", &[(proto::HOP_BY_HOP, SHORT)]),
        ("destination", &[(proto::DESTINATION_OPTIONS, LONG)]),
        ("routing", &[(proto::ROUTING, SEGMENTS)]),
        ("atomic", &[(proto::FRAGMENT, ATOMIC)]),
        (
            "first",
            &[
                (proto::HOP_BY_HOP, LONG),
                (proto::FRAGMENT, FIRST),
                (proto::DESTINATION_OPTIONS, SHORT),
            ],
        ),
        (
            "long",
            &[
                (proto::HOP_BY_HOP, LONG),
                (proto::DESTINATION_OPTIONS, SHORT),
                (proto::ROUTING, SEGMENTS),
                (proto::FRAGMENT, ATOMIC),
                (proto::DESTINATION_OPTIONS, LONG),
            ],
        ),
    ];
    for (name, extensions) in chains {
        let len = 40 + extensions.iter().map(|(_, body)| 2 + body.len()).sum::<usize>();
        let mut add = |what: &str, protocol: u8, segment: &[u8]| {
            let (next, body) = chain(extensions, protocol, segment);
            all.push((
                format!("ipv6 {name}/{what}"),
                ETHERTYPE_IPV6,
                v6(next, &body),
                len,
                protocol,
            ));
        };
        add("udp", proto::UDP, &udp(&ENDS6, b"payload!"));
        add("tcp", proto::TCP, &tcp(&ENDS6, TCP_OPTIONS, b"some payload"));
        add("echo", proto::ICMPV6, &echo6(78)[..16]);
        add("gre", 47, b"payload!");
    }
    let (next, body) = chain(&[(proto::FRAGMENT, LATER)], proto::UDP, payload);
    all.push(("ipv6/later".into(), ETHERTYPE_IPV6, v6(next, &body), 48, proto::UDP));
    all
}

/// Every kind of frame: plain, tagged once and twice, and quoted in an error.
pub(crate) fn kinds() -> Vec<Kind> {
    let mut all = Vec::new();
    for (name, ethertype, packet, header, protocol) in packets() {
        for tags in [&[][..], &[ETHERTYPE_VLAN], &[ETHERTYPE_QINQ, ETHERTYPE_VLAN]] {
            let l3 = 14 + 4 * tags.len();
            let frame = ethernet(ethertype, tags, &packet);
            all.push(Kind {
                name: format!("{name} in {} tags", tags.len()),
                frame,
                l3,
                l4: Some(l3 + header),
                protocol,
            });
        }
        let (error, protocol, header) = if ethertype == ETHERTYPE_IPV4 {
            (v4(proto::ICMP, &error4(icmp::UNREACHABLE, &packet)), proto::ICMP, 20)
        } else {
            (v6(proto::ICMPV6, &error6(icmpv6::PACKET_TOO_BIG, &packet)), proto::ICMPV6, 40)
        };
        let frame = ethernet(ethertype, &[], &error);
        all.push(Kind {
            name: format!("an error that quotes {name}"),
            frame,
            l3: 14,
            l4: Some(14 + header),
            protocol,
        });
    }
    let mut arp = vec![0; build::Arp::LEN];
    build::Arp::request(([4; 6], A4), B4).write(&mut arp).expect("it fits");
    all.push(Kind {
        name: "arp".into(),
        frame: ethernet(0x0806, &[], &arp),
        l3: 14,
        l4: None,
        protocol: 0,
    });
    let mut solicitation = vec![0; 32];
    let question =
        build::Neighbor { kind: build::NeighborKind::Solicitation, target: B6, link: Some([4; 6]) };
    question.write(&mut solicitation, &A6, &B6).expect("it fits");
    let frame = ethernet(ETHERTYPE_IPV6, &[], &v6(proto::ICMPV6, &solicitation));
    all.push(Kind {
        name: "solicitation".into(),
        frame,
        l3: 14,
        l4: Some(54),
        protocol: proto::ICMPV6,
    });
    all
}

/// A packet that holds `frame`, in a buffer whose other bytes are all `filler`.
pub(crate) fn packet(pool: &mut MemoryPool, frame: &[u8], filler: u8) -> Packet {
    let mut packet = pool.take().expect("the pool has a buffer");
    packet.clear();
    packet.buffer_mut().fill(filler);
    assert!(packet.copy_from(frame), "the frame fits");
    packet
}
