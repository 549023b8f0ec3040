//! Offsets of the layers, by our parser and by another one.

use crate::frames::{kinds, packet};
use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6FlowLabel,
    Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader, Ipv6RoutingExtensions, NetSlice,
    PacketBuilder, PacketBuilderStep, SingleVlanHeader, SlicedPacket, TcpHeader, TransportSlice,
    VlanHeader, VlanId, ip_number,
};
use holdfast_wire::header::proto;
use holdfast_wire::{FlowKey, Layers, MemoryPool, Network, PacketPool, map_v4};
use proptest::prelude::*;

/// Fields of an IP packet in a frame that both parsers give.
#[derive(Debug, PartialEq)]
struct Seen {
    tags: usize,
    source: [u8; 16],
    destination: [u8; 16],
    l3: usize,
    l4: usize,
    end: usize,
    protocol: u8,
    is_fragment: bool,
    ports: Option<(u16, u16)>,
}

fn ours(frame: &[u8]) -> Option<Seen> {
    let mut pool = MemoryPool::new(1);
    let mut packet = packet(&mut pool, frame, 0xa5);
    let is_parsed = packet.parse().is_ok();
    let layers = packet.layers;
    let ends = packet.ipv4().map(|ip| (map_v4(ip.source), map_v4(ip.destination)));
    let ends = ends.or_else(|| packet.ipv6().map(|ip| (ip.source, ip.destination)));
    let udp = packet.udp().map(|header| (header.source.get(), header.destination.get()));
    let tcp = packet.tcp().map(|header| (header.source.get(), header.destination.get()));
    pool.put(packet);
    let (source, destination) = ends.filter(|_| is_parsed)?;
    Some(Seen {
        tags: layers.vlan_tags.into(),
        source,
        destination,
        l3: layers.l3.into(),
        l4: layers.l4.into(),
        end: layers.end.into(),
        protocol: layers.protocol,
        is_fragment: layers.fragment,
        // Their parser reads no ports in fragments.
        ports: udp.or(tcp).filter(|_| !layers.fragment),
    })
}

fn theirs(frame: &[u8]) -> Option<Seen> {
    let sliced = SlicedPacket::from_ethernet(frame).ok()?;
    let at = |slice: &[u8]| slice.as_ptr() as usize - frame.as_ptr() as usize;
    let (source, destination, l3) = match sliced.net.as_ref()? {
        NetSlice::Ipv4(ip) => (
            map_v4(ip.header().source()),
            map_v4(ip.header().destination()),
            at(ip.header().slice()),
        ),
        NetSlice::Ipv6(ip) => {
            (ip.header().source(), ip.header().destination(), at(ip.header().slice()))
        }
        NetSlice::Arp(_) => return None,
    };
    let payload = sliced.ip_payload()?;
    let ports = match &sliced.transport {
        Some(TransportSlice::Udp(udp)) => Some((udp.source_port(), udp.destination_port())),
        Some(TransportSlice::Tcp(tcp)) => Some((tcp.source_port(), tcp.destination_port())),
        _ => None,
    };
    Some(Seen {
        tags: sliced.link_exts.len(),
        source,
        destination,
        l3,
        l4: at(payload.payload),
        end: at(payload.payload) + payload.payload.len(),
        protocol: payload.ip_number.0,
        is_fragment: payload.fragmented,
        ports,
    })
}

/// True for frames about which the two parsers differ by design: extension headers that
/// only theirs walks through, or only at their place; a payload length of zero that
/// theirs takes for a jumbogram; tags that only theirs knows.
fn is_disputed(frame: &[u8], seen: &Seen) -> bool {
    let fields = &frame[seen.l3..];
    let is_v6 = fields[0] >> 4 == 6;
    let is_jumbo = is_v6 && fields[4..6] == [0, 0];
    let walks_on =
        |protocol: u8| protocol == ip_number::AUTH.0 || (is_v6 && protocol == proto::HOP_BY_HOP);
    // The bytes behind a later fragment's header are from the datagram's middle, whatever
    // they look like.
    let is_later = Layers::parse(frame).is_ok_and(|layers| layers.fragment_offset != 0);
    let looks_like_extension =
        matches!(seen.protocol, proto::DESTINATION_OPTIONS | proto::ROUTING | proto::FRAGMENT);
    is_jumbo || walks_on(seen.protocol) || (is_v6 && is_later && looks_like_extension)
}

#[test]
fn both_see_the_same_in_frames_of_every_kind() {
    // Scenario: the frames of every kind, whole. Both parsers understand all that are IP,
    // and say the same.
    let mut compared = 0;
    for kind in kinds() {
        let ours = ours(&kind.frame);
        assert_eq!(ours, theirs(&kind.frame), "{}", kind.name);
        assert_eq!(ours.is_some(), kind.l4.is_some(), "{}", kind.name);
        compared += usize::from(ours.is_some());
    }
    assert!(compared > 100, "{compared}");
}

/// Extension headers as their builder orders them.
fn extensions() -> impl Strategy<Value = Ipv6Extensions> {
    let raw = || prop::option::of(prop::sample::select(vec![6usize, 14, 62]));
    (raw(), raw(), raw(), raw(), any::<Option<(bool, u32)>>()).prop_map(
        |(hop_by_hop, destination, routing, last, fragment)| {
            // A header of a type without meaning here, with options of the padding kind.
            let header = |len: usize, first: u8| {
                let mut payload = vec![0; len];
                payload[0] = first;
                Ipv6RawExtHeader::new_raw(ip_number::UDP, &payload).expect("a length that can be")
            };
            Ipv6Extensions {
                hop_by_hop_options: hop_by_hop.map(|len| header(len, 0)),
                destination_options: destination.map(|len| header(len, 0)),
                routing: routing.map(|len| Ipv6RoutingExtensions {
                    routing: header(len, 4),
                    final_destination_options: last.map(|len| header(len, 0)),
                }),
                fragment: fragment.map(|(more, id)| {
                    Ipv6FragmentHeader::new(ip_number::UDP, IpFragOffset::ZERO, more, id)
                }),
                auth: None,
            }
        },
    )
}

#[derive(Debug, Clone)]
enum Transport {
    Udp(u16, u16),
    Tcp(u16, u16, Vec<u8>),
    Echo(u16, u16),
    Other(u8),
}

fn transport() -> impl Strategy<Value = Transport> {
    prop_oneof![
        any::<(u16, u16)>().prop_map(|(source, destination)| Transport::Udp(source, destination)),
        (any::<u16>(), any::<u16>(), prop::collection::vec(Just([1u8; 4]), 0..=10)).prop_map(
            |(source, destination, options)| Transport::Tcp(source, destination, options.concat())
        ),
        any::<(u16, u16)>().prop_map(|(id, sequence)| Transport::Echo(id, sequence)),
        (140u8..).prop_map(Transport::Other),
    ]
}

fn tag(id: u16) -> SingleVlanHeader {
    SingleVlanHeader {
        vlan_id: VlanId::try_new(id).expect("12 bits"),
        ..SingleVlanHeader::default()
    }
}

/// A frame of their builder, and what it was made from: the length of the network header,
/// the protocol.
fn their_frame(
    tags: usize,
    ip: IpHeaders,
    transport: &Transport,
    payload: &[u8],
) -> (Vec<u8>, usize, u8) {
    let header_len = ip.header_len();
    let is_v6 = ip.ipv6().is_some();
    let link = PacketBuilder::ethernet2([4; 6], [2; 6]);
    let step: PacketBuilderStep<IpHeaders> = match tags {
        0 => link.ip(ip),
        1 => link.vlan(VlanHeader::Single(tag(7))).ip(ip),
        _ => link
            .vlan(VlanHeader::Double(etherparse::DoubleVlanHeader { outer: tag(8), inner: tag(9) }))
            .ip(ip),
    };
    let mut frame = Vec::new();
    let protocol = match transport {
        Transport::Udp(source, destination) => {
            step.udp(*source, *destination).write(&mut frame, payload).expect("it can be built");
            proto::UDP
        }
        Transport::Tcp(source, destination, options) => {
            let mut header = TcpHeader::new(*source, *destination, 1, 1024);
            header.set_options_raw(options).expect("40 bytes at most");
            step.tcp_header(header).write(&mut frame, payload).expect("it can be built");
            proto::TCP
        }
        Transport::Echo(id, sequence) if is_v6 => {
            step.icmpv6_echo_request(*id, *sequence)
                .write(&mut frame, payload)
                .expect("it can be built");
            proto::ICMPV6
        }
        Transport::Echo(id, sequence) => {
            step.icmpv4_echo_reply(*id, *sequence)
                .write(&mut frame, payload)
                .expect("it can be built");
            proto::ICMP
        }
        Transport::Other(protocol) => {
            step.write(&mut frame, IpNumber(*protocol), payload).expect("it can be built");
            *protocol
        }
    };
    (frame, header_len, protocol)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Scenario: another implementation builds a frame of any kind. Ours finds in it the
    /// addresses, ports, protocol and offsets that went in.
    #[test]
    fn what_theirs_builds_ours_understands(
        tags in 0usize..=2, is_v6: bool, (a4, b4) in any::<([u8; 4], [u8; 4])>(), (a6, b6) in any::<([u8; 16], [u8; 16])>(), words in 0usize..=10,
        extensions in extensions(), transport in transport(), mut payload in prop::collection::vec(any::<u8>(), 8..120),
    ) {
        // The data of a fragment with more to come are a multiple of 8 bytes.
        let is_fragment = is_v6 && extensions.fragment.as_ref().is_some_and(|fragment| fragment.more_fragments);
        payload.truncate(payload.len() / 8 * 8);
        if let Transport::Tcp(_, _, options) = &transport {
            payload.drain(..(20 + options.len()) % 8);
        }
        let (source, destination) = if is_v6 { (a6, b6) } else { (map_v4(a4), map_v4(b4)) };
        let ip = if is_v6 {
            let header = Ipv6Header { source: a6, destination: b6, flow_label: Ipv6FlowLabel::ZERO, hop_limit: 5, ..Ipv6Header::default() };
            IpHeaders::Ipv6(header, extensions)
        } else {
            let mut header = Ipv4Header::new(0, 9, ip_number::UDP, a4, b4).expect("a length that can be");
            // Options that do nothing (RFC 791, "No Operation").
            header.options = vec![1; words * 4].as_slice().try_into().expect("40 bytes at most");
            IpHeaders::Ipv4(header, Ipv4Extensions::default())
        };
        let (frame, header_len, protocol) = their_frame(tags, ip, &transport, &payload);
        let l3 = 14 + 4 * tags;
        let ports = match &transport {
            Transport::Udp(source, destination) | Transport::Tcp(source, destination, _) => Some((*source, *destination)),
            _ => None,
        };
        let expected = Seen {
            tags, source, destination, l3, l4: l3 + header_len, end: frame.len(), protocol, is_fragment, ports: ports.filter(|_| !is_fragment),
        };
        prop_assert_eq!(ours(&frame), Some(expected));

        let mut pool = MemoryPool::new(1);
        let mut packet = packet(&mut pool, &frame, 0);
        prop_assert_eq!(packet.parse(), Ok(()));
        let (source_port, destination_port) = match transport {
            // A request over IPv6, a reply over IPv4.
            Transport::Echo(id, _) if is_v6 => (id, id.wrapping_add(128)),
            Transport::Echo(id, _) => (id.wrapping_add(8), id),
            _ => ports.unwrap_or((0, 0)),
        };
        let key = FlowKey { source, destination, source_port, destination_port, protocol: protocol.into(), scope: 0 };
        prop_assert_eq!(FlowKey::of(&packet), Some(key));
        pool.put(packet);
    }

    /// Scenario: a frame of any kind with a few bytes changed and padding behind it. If
    /// both parsers understand it, they say the same; if only ours refuses it, ours has a
    /// reason.
    #[test]
    fn in_damaged_frames_both_see_the_same(
        kind in any::<prop::sample::Index>(), padding in 0usize..20,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        thread_local! { static FRAMES: Vec<Vec<u8>> = kinds().into_iter().filter(|kind| kind.l4.is_some()).map(|kind| kind.frame).collect(); }
        let mut frame = FRAMES.with(|frames| frames[kind.index(frames.len())].clone());
        for (at, value) in damage {
            // Most damage in headers, where it matters.
            let at = at.index(frame.len().min(90) - 12) + 12;
            frame[at] = value;
        }
        frame.resize(frame.len() + padding, 0x45);
        if let (Some(ours), Some(theirs)) = (ours(&frame), theirs(&frame))
            && !is_disputed(&frame, &ours)
        {
            prop_assert_eq!(ours, theirs);
        }
        // The frame is not IP to our parser: theirs must not see IP behind as many tags
        // as ours looks through.
        let is_other = Layers::parse(&frame).is_ok_and(|layers| layers.network == Network::Other);
        if is_other && let Some(theirs) = theirs(&frame) {
            let announced = u16::from_be_bytes([frame[theirs.l3 - 2], frame[theirs.l3 - 1]]);
            let has_other_tag = frame[12..theirs.l3].chunks(4).any(|tag| tag[..2] == [0x91, 0x00]);
            prop_assert!(has_other_tag, "IP behind EtherType {announced:#06x}, unseen");
        }
    }
}
