//! The builders' output, read back by another implementation.

use crate::frames::{ethernet, packet, room};
use etherparse::icmpv6::Icmpv6PayloadSlice;
use etherparse::{
    Icmpv6Type, IpFragOffset, LinkExtSlice, NetSlice, SingleVlanHeader, SlicedPacket,
    TransportSlice, ether_type,
};
use holdfast_wire::build::{self, Arp, ArpOperation, DoesNotFit, Ends, Neighbor, NeighborKind};
use holdfast_wire::header::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, icmp, icmpv6,
    proto,
};
use holdfast_wire::{HEADROOM, MemoryPool, PacketPool};
use proptest::prelude::*;

/// `packet` in an Ethernet frame.
fn framed(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = room(14, packet);
    build::Ethernet { destination: [6; 6], source: [8; 6], ethertype }
        .write(&mut frame)
        .expect("it fits");
    frame
}

fn in_v4(source: [u8; 4], destination: [u8; 4], protocol: u8, segment: &[u8]) -> Vec<u8> {
    let mut packet = room(20, segment);
    build::Ipv4::new(source, destination, protocol).write(&mut packet).expect("it fits");
    framed(ETHERTYPE_IPV4, &packet)
}

fn in_v6(source: [u8; 16], destination: [u8; 16], protocol: u8, segment: &[u8]) -> Vec<u8> {
    let mut packet = room(40, segment);
    build::Ipv6::new(source, destination, protocol).write(&mut packet).expect("it fits");
    framed(ETHERTYPE_IPV6, &packet)
}

fn sliced(frame: &[u8]) -> SlicedPacket<'_> {
    SlicedPacket::from_ethernet(frame).expect("the other implementation understands it")
}

fn vlan_of(tag: &LinkExtSlice<'_>) -> Option<SingleVlanHeader> {
    match tag {
        LinkExtSlice::Vlan(tag) => Some(tag.to_header()),
        _ => None,
    }
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

/// A multiple of 4 bytes, at most 40, of no particular options: end of list, then
/// anything.
fn options() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<[u8; 4]>(), 0..=10).prop_map(|words| {
        let mut bytes = words.concat();
        bytes.iter_mut().take(1).for_each(|first| *first = 0);
        bytes
    })
}

/// Scenario: frames of all lengths get tags until there is no headroom left. Each is what
/// it would be had it been built so; what has no room, or no Ethernet header, stays as it
/// is.
#[test]
fn a_tag_that_is_put_on_is_the_tag_that_is_built() {
    let mut pool = MemoryPool::new(1);
    for len in 0..60 {
        let payload = vec![0xee; len];
        let whole = ethernet(ETHERTYPE_IPV4, &[], &payload);
        let mut packet = packet(&mut pool, &whole, 0xa5);
        assert!(packet.push_tag(ETHERTYPE_VLAN, 0x6065) && packet.push_tag(ETHERTYPE_QINQ, 0x6064));
        assert_eq!(
            packet.bytes(),
            ethernet(ETHERTYPE_IPV4, &[ETHERTYPE_QINQ, ETHERTYPE_VLAN], &payload)
        );
        for _ in 2..HEADROOM / 4 {
            assert!(packet.push_tag(ETHERTYPE_VLAN, 0));
        }
        let before = packet.bytes().to_vec();
        assert!(!packet.push_tag(ETHERTYPE_VLAN, 0));
        assert_eq!(packet.bytes(), before);
        packet.clear();
        for cut in 0..14 {
            assert!(packet.copy_from(&whole[..cut]) && !packet.push_tag(ETHERTYPE_VLAN, 0));
            assert_eq!(packet.bytes(), &whole[..cut]);
        }
        pool.put(packet);
    }
}

proptest! {
    /// Scenario: any Ethernet header with none, one or two tags is read back as written.
    #[test]
    fn ethernet_and_tags(
        destination: [u8; 6], source: [u8; 6], tags in prop::collection::vec((0u8..8, any::<bool>(), 0u16..4096), 0..=2), rest in payload(),
    ) {
        // IEEE 802 local experimental: neither IP nor a tag.
        let last = 0x88b5;
        let ids = [ETHERTYPE_QINQ, ETHERTYPE_VLAN];
        let announced: Vec<u16> = ids[2 - tags.len()..].iter().copied().chain([last]).collect();
        let mut frame = room(14 + 4 * tags.len(), &rest);
        for (at, &(priority, is_drop_eligible, id)) in tags.iter().enumerate() {
            let tag = build::Vlan { priority, is_drop_eligible, id, ethertype: announced[at + 1] };
            tag.write(&mut frame[14 + 4 * at..]).expect("it fits");
        }
        build::Ethernet { destination, source, ethertype: announced[0] }.write(&mut frame).expect("it fits");
        let theirs = sliced(&frame);
        let Some(link) = theirs.link.as_ref().and_then(|link| link.to_header()).and_then(|link| link.ethernet2()) else {
            return Err(TestCaseError::fail("no Ethernet header"));
        };
        prop_assert_eq!((link.destination, link.source, link.ether_type.0), (destination, source, announced[0]));
        let read: Vec<(u8, bool, u16)> = theirs.link_exts.iter().filter_map(vlan_of).map(|tag| {
            (tag.pcp.value(), tag.drop_eligible_indicator, tag.vlan_id.value())
        }).collect();
        prop_assert_eq!(read, tags);
        prop_assert_eq!(theirs.payload_ether_type().map(|ethertype| ethertype.0), Some(last));
        prop_assert_eq!(theirs.ether_payload().map(|inner| inner.payload.to_vec()), Some(rest));
    }

    /// Scenario: any ARP question or answer is read back as written.
    #[test]
    fn arp(is_reply: bool, sender: ([u8; 6], [u8; 4]), target: ([u8; 6], [u8; 4])) {
        let arp = if is_reply { Arp::reply(sender, target) } else { Arp::request(sender, target.1) };
        let mut bytes = vec![0xff; Arp::LEN];
        arp.write(&mut bytes).expect("it fits");
        let frame = framed(ETHERTYPE_ARP, &bytes);
        let theirs = sliced(&frame);
        let Some(NetSlice::Arp(read)) = theirs.net else { return Err(TestCaseError::fail("no ARP")) };
        prop_assert_eq!((read.operation().0, read.hw_addr_type().0), (if is_reply { 2 } else { 1 }, 1));
        prop_assert_eq!(read.proto_addr_type(), ether_type::IPV4);
        prop_assert_eq!((read.sender_hw_addr(), read.sender_protocol_addr()), (&sender.0[..], &sender.1[..]));
        let asked = if is_reply { target.0 } else { [0; 6] };
        prop_assert_eq!((read.target_hw_addr(), read.target_protocol_addr()), (&asked[..], &target.1[..]));
        prop_assert_eq!(arp.operation, if is_reply { ArpOperation::Reply } else { ArpOperation::Request });
    }

    /// Scenario: any IPv4 header, with options, as a fragment or not, is read back as
    /// written, and its checksum is right.
    #[test]
    fn ipv4(
        (source, destination, ttl, tos, id) in any::<([u8; 4], [u8; 4], u8, u8, u16)>(), (dont_fragment, more_fragments) in any::<(bool, bool)>(),
        offset in 0u16..8192, options in options(), rest in payload(),
    ) {
        let header = build::Ipv4 {
            source, destination, protocol: 253, ttl, tos, id, dont_fragment, more_fragments, fragment_offset: offset << 3, options: &options,
        };
        let mut packet = room(20 + options.len(), &rest);
        header.write(&mut packet).expect("it fits");
        let frame = framed(ETHERTYPE_IPV4, &packet);
        let theirs = sliced(&frame);
        let Some(NetSlice::Ipv4(read)) = theirs.net else { return Err(TestCaseError::fail("no IPv4")) };
        let their_header = read.header().to_header();
        prop_assert_eq!((their_header.source, their_header.destination, their_header.protocol.0), (source, destination, 253));
        prop_assert_eq!((their_header.time_to_live, their_header.identification), (ttl, id));
        prop_assert_eq!(their_header.dscp.value() << 2 | their_header.ecn.value(), tos);
        prop_assert_eq!((their_header.dont_fragment, their_header.more_fragments), (dont_fragment, more_fragments));
        prop_assert_eq!(their_header.fragment_offset, IpFragOffset::try_new(offset).expect("13 bits"));
        prop_assert_eq!(usize::from(their_header.total_len), packet.len());
        prop_assert_eq!(&their_header.options[..], &options[..]);
        prop_assert_eq!(their_header.header_checksum, their_header.calc_header_checksum());
        prop_assert_eq!(read.payload().payload, &rest[..]);
    }

    /// Scenario: any IPv6 header is read back as written.
    #[test]
    fn ipv6(source: [u8; 16], destination: [u8; 16], hop_limit: u8, traffic_class: u8, flow_label in 0u32..1 << 20, rest in payload()) {
        let header = build::Ipv6 { hop_limit, traffic_class, flow_label, ..build::Ipv6::new(source, destination, 253) };
        let mut packet = room(40, &rest);
        header.write(&mut packet).expect("it fits");
        let frame = framed(ETHERTYPE_IPV6, &packet);
        let theirs = sliced(&frame);
        let Some(NetSlice::Ipv6(read)) = theirs.net else { return Err(TestCaseError::fail("no IPv6")) };
        let read = (read.header().to_header(), read.payload().payload);
        prop_assert_eq!((read.0.source, read.0.destination, read.0.next_header.0), (source, destination, 253));
        prop_assert_eq!((read.0.traffic_class, read.0.flow_label.value(), read.0.hop_limit), (traffic_class, flow_label, hop_limit));
        prop_assert_eq!((usize::from(read.0.payload_length), read.1), (rest.len(), &rest[..]));
    }

    /// Scenario: any UDP datagram, over IPv4 and IPv6, is read back as written, and its
    /// checksum is right.
    #[test]
    fn udp(source: u16, destination: u16, (a4, b4) in any::<([u8; 4], [u8; 4])>(), (a6, b6) in any::<([u8; 16], [u8; 16])>(), rest in payload()) {
        for is_v6 in [false, true] {
            let mut segment = room(8, &rest);
            let ends = if is_v6 { Ends::V6(a6, b6) } else { Ends::V4(a4, b4) };
            build::Udp { source, destination }.write(&mut segment, &ends).expect("it fits");
            let frame = if is_v6 { in_v6(a6, b6, proto::UDP, &segment) } else { in_v4(a4, b4, proto::UDP, &segment) };
            let theirs = sliced(&frame);
            let Some(TransportSlice::Udp(read)) = theirs.transport else { return Err(TestCaseError::fail("no UDP")) };
            prop_assert_eq!((read.source_port(), read.destination_port(), read.payload()), (source, destination, &rest[..]));
            let header = read.to_header();
            let sum = if is_v6 { header.calc_checksum_ipv6_raw(a6, b6, &rest) } else { header.calc_checksum_ipv4_raw(a4, b4, &rest) };
            prop_assert_eq!(Some(read.checksum()), sum.ok());
            prop_assert_ne!(read.checksum(), 0);
        }
    }

    /// Scenario: any TCP segment, with options, over IPv4 and IPv6, is read back as
    /// written, and its checksum is right.
    #[test]
    fn tcp(
        (source, destination, sequence, acknowledgement) in any::<(u16, u16, u32, u32)>(), flags in 0u8..64, (window, urgent) in any::<(u16, u16)>(),
        (a4, b4) in any::<([u8; 4], [u8; 4])>(), (a6, b6) in any::<([u8; 16], [u8; 16])>(), options in options(), rest in payload(),
    ) {
        for is_v6 in [false, true] {
            let mut segment = room(20 + options.len(), &rest);
            let header = build::Tcp { source, destination, sequence, acknowledgement, flags, window, urgent, options: &options };
            header.write(&mut segment, &if is_v6 { Ends::V6(a6, b6) } else { Ends::V4(a4, b4) }).expect("it fits");
            let frame = if is_v6 { in_v6(a6, b6, proto::TCP, &segment) } else { in_v4(a4, b4, proto::TCP, &segment) };
            let theirs = sliced(&frame);
            let Some(TransportSlice::Tcp(read)) = theirs.transport else { return Err(TestCaseError::fail("no TCP")) };
            prop_assert_eq!((read.source_port(), read.destination_port(), read.payload()), (source, destination, &rest[..]));
            prop_assert_eq!((read.sequence_number(), read.acknowledgment_number()), (sequence, acknowledgement));
            prop_assert_eq!((read.window_size(), read.urgent_pointer(), read.options()), (window, urgent, &options[..]));
            let bits = [read.fin(), read.syn(), read.rst(), read.psh(), read.ack(), read.urg()];
            prop_assert_eq!(bits.iter().rev().fold(0, |all, &bit| all << 1 | u8::from(bit)), flags);
            let sum = if is_v6 { read.calc_checksum_ipv6(a6, b6) } else { read.calc_checksum_ipv4(a4, b4) };
            prop_assert_eq!(Some(read.checksum()), sum.ok());
        }
    }

    /// Scenario: any echo, question or answer, is read back as written, and its checksum
    /// is right.
    #[test]
    fn echo(is_reply: bool, id: u16, sequence: u16, (a6, b6) in any::<([u8; 16], [u8; 16])>(), rest in payload()) {
        let mut message = room(8, &rest);
        build::IcmpEcho { is_reply, id, sequence }.write(&mut message).expect("it fits");
        let frame = in_v4([10, 0, 0, 1], [10, 0, 0, 2], proto::ICMP, &message);
        let theirs = sliced(&frame);
        let Some(TransportSlice::Icmpv4(read)) = theirs.transport else { return Err(TestCaseError::fail("no ICMP")) };
        let echo = etherparse::IcmpEchoHeader { id, seq: sequence };
        let kind = if is_reply { etherparse::Icmpv4Type::EchoReply(echo) } else { etherparse::Icmpv4Type::EchoRequest(echo) };
        prop_assert_eq!((read.icmp_type(), read.payload()), (kind, &rest[..]));
        prop_assert_eq!(read.checksum(), read.icmp_type().calc_checksum(&rest));

        build::Icmpv6Echo { is_reply, id, sequence }.write(&mut message, &a6, &b6).expect("it fits");
        let frame = in_v6(a6, b6, proto::ICMPV6, &message);
        let theirs = sliced(&frame);
        let Some(TransportSlice::Icmpv6(read)) = theirs.transport else { return Err(TestCaseError::fail("no ICMPv6")) };
        let kind = if is_reply { Icmpv6Type::EchoReply(echo) } else { Icmpv6Type::EchoRequest(echo) };
        prop_assert_eq!((read.icmp_type(), read.payload()), (kind, &rest[..]));
        prop_assert!(read.is_checksum_valid(a6, b6));
    }

    /// Scenario: an error of any type quotes a packet of any length up to its limit. The
    /// error is read back as written, and its checksum is right.
    #[test]
    fn errors(
        kind in prop::sample::select(vec![icmp::UNREACHABLE, icmp::SOURCE_QUENCH, icmp::REDIRECT, icmp::TIME_EXCEEDED, icmp::PARAMETER_PROBLEM]),
        kind6 in icmpv6::UNREACHABLE..=icmpv6::PARAMETER_PROBLEM, code: u8, rest: u32, len in 0usize..=1232, byte: u8,
        (a6, b6) in any::<([u8; 16], [u8; 16])>(),
    ) {
        let quote = vec![byte; len.min(build::IcmpError::MAX_QUOTE)];
        let mut message = room(8, &quote);
        build::IcmpError { kind, code, rest }.write(&mut message).expect("it fits");
        let frame = in_v4([10, 0, 0, 1], [10, 0, 0, 2], proto::ICMP, &message);
        prop_assert!(frame.len() <= 14 + 576);
        let theirs = sliced(&frame);
        let Some(TransportSlice::Icmpv4(read)) = theirs.transport else { return Err(TestCaseError::fail("no ICMP")) };
        prop_assert_eq!((read.type_u8(), read.code_u8(), read.bytes5to8()), (kind, code, rest.to_be_bytes()));
        prop_assert_eq!(read.payload(), &quote[..]);
        let unknown = etherparse::Icmpv4Type::Unknown { type_u8: kind, code_u8: code, bytes5to8: rest.to_be_bytes() };
        prop_assert_eq!(read.checksum(), unknown.calc_checksum(&quote));

        let quote = vec![byte; len];
        let mut message = room(8, &quote);
        build::Icmpv6Error { kind: kind6, code, rest }.write(&mut message, &a6, &b6).expect("it fits");
        let frame = in_v6(a6, b6, proto::ICMPV6, &message);
        prop_assert!(frame.len() <= 14 + 1280);
        let theirs = sliced(&frame);
        let Some(TransportSlice::Icmpv6(read)) = theirs.transport else { return Err(TestCaseError::fail("no ICMPv6")) };
        prop_assert_eq!((read.type_u8(), read.code_u8(), read.bytes5to8()), (kind6, code, rest.to_be_bytes()));
        prop_assert_eq!(read.payload(), &quote[..]);
        prop_assert!(read.is_checksum_valid(a6, b6));
    }

    /// Scenario: any neighbour solicitation or advertisement is read back as written, and
    /// its checksum is right.
    #[test]
    fn neighbors(
        flags: Option<(bool, bool, bool)>, target: [u8; 16], link: Option<[u8; 6]>, (source, destination) in any::<([u8; 16], [u8; 16])>(),
    ) {
        let kind = match flags {
            None => NeighborKind::Solicitation,
            Some((is_router, is_solicited, is_override)) => NeighborKind::Advertisement { is_router, is_solicited, is_override },
        };
        let mut message = vec![0xff; if link.is_some() { Neighbor::LEN_WITH_LINK } else { Neighbor::LEN }];
        Neighbor { kind, target, link }.write(&mut message, &source, &destination).expect("it fits");
        let frame = in_v6(source, destination, proto::ICMPV6, &message);
        let theirs = sliced(&frame);
        let Some(TransportSlice::Icmpv6(read)) = theirs.transport else { return Err(TestCaseError::fail("no ICMPv6")) };
        prop_assert!(read.is_checksum_valid(source, destination));
        let (their_flags, their_target, options) = match (read.icmp_type(), read.payload_slice()) {
            (Icmpv6Type::NeighborSolicitation, Ok(Icmpv6PayloadSlice::NeighborSolicitation(read))) => {
                (None, read.target_address(), read.options())
            }
            (Icmpv6Type::NeighborAdvertisement(header), Ok(Icmpv6PayloadSlice::NeighborAdvertisement(read))) => {
                (Some((header.router, header.solicited, header.r#override)), read.target_address(), read.options())
            }
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        };
        prop_assert_eq!((their_flags, their_target.octets()), (flags, target));
        let option = if flags.is_none() { 1 } else { 2 };
        let expected = link.map_or(Vec::new(), |mac| [&[option, 1], &mac[..]].concat());
        prop_assert_eq!(options, &expected[..]);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    // Scenario: every builder is given a place one byte too short, or values and payloads
    // beyond what its fields and limits can say.
    type Write = Box<dyn Fn(&mut [u8]) -> Result<(), DoesNotFit>>;
    let ends = Ends::V4([1; 4], [2; 4]);
    let too_short: Vec<(usize, Write)> = vec![
        (
            14,
            Box::new(|into| {
                build::Ethernet { destination: [1; 6], source: [2; 6], ethertype: 3 }.write(into)
            }),
        ),
        (
            4,
            Box::new(|into| {
                build::Vlan { priority: 1, is_drop_eligible: true, id: 1, ethertype: 3 }.write(into)
            }),
        ),
        (28, Box::new(|into| Arp::request(([1; 6], [1; 4]), [2; 4]).write(into))),
        (20, Box::new(|into| build::Ipv4::new([1; 4], [2; 4], 6).write(into))),
        (
            24,
            Box::new(|into| {
                build::Ipv4 { options: &[1; 4], ..build::Ipv4::new([1; 4], [2; 4], 6) }.write(into)
            }),
        ),
        (40, Box::new(|into| build::Ipv6::new([1; 16], [2; 16], 6).write(into))),
        (20, Box::new(move |into| build::Tcp::new(1, 2, 3).write(into, &ends))),
        (
            24,
            Box::new(move |into| {
                build::Tcp { options: &[1; 4], ..build::Tcp::new(1, 2, 3) }.write(into, &ends)
            }),
        ),
        (8, Box::new(move |into| build::Udp { source: 1, destination: 2 }.write(into, &ends))),
        (8, Box::new(|into| build::IcmpEcho { is_reply: false, id: 1, sequence: 1 }.write(into))),
        (
            8,
            Box::new(|into| {
                build::Icmpv6Echo { is_reply: false, id: 1, sequence: 1 }
                    .write(into, &[1; 16], &[2; 16])
            }),
        ),
        (8, Box::new(|into| build::IcmpError { kind: 3, code: 1, rest: 1 }.write(into))),
        (
            8,
            Box::new(|into| {
                build::Icmpv6Error { kind: 1, code: 1, rest: 1 }.write(into, &[1; 16], &[2; 16])
            }),
        ),
        (
            24,
            Box::new(|into| {
                Neighbor { kind: NeighborKind::Solicitation, target: [3; 16], link: None }
                    .write(into, &[1; 16], &[2; 16])
            }),
        ),
        (
            32,
            Box::new(|into| {
                Neighbor { kind: NeighborKind::Solicitation, target: [3; 16], link: Some([1; 6]) }
                    .write(into, &[1; 16], &[2; 16])
            }),
        ),
    ];
    let check = |name: &str, len: usize, write: &dyn Fn(&mut [u8]) -> Result<(), DoesNotFit>| {
        let mut place = vec![0xa5; len];
        assert_eq!(write(&mut place), Err(DoesNotFit), "{name}");
        assert!(place.iter().all(|&byte| byte == 0xa5), "{name} wrote something");
    };
    for (at, (len, write)) in too_short.iter().enumerate() {
        assert_eq!(write(&mut vec![0; *len]), Ok(()), "builder {at}");
        check(&format!("builder {at}"), len - 1, write);
    }
    let v4 = build::Ipv4::new([1; 4], [2; 4], 6);
    let tag = build::Vlan { priority: 0, is_drop_eligible: false, id: 0, ethertype: 0 };
    let (one, two) = ([1; 16], [2; 16]);
    check("a total length beyond 16 bits", 65_536, &|into| v4.write(into));
    check("options of 3 bytes", 100, &|into| build::Ipv4 { options: &[0; 3], ..v4 }.write(into));
    check("options of 44 bytes", 100, &|into| build::Ipv4 { options: &[0; 44], ..v4 }.write(into));
    check("an offset of 4", 100, &|into| build::Ipv4 { fragment_offset: 4, ..v4 }.write(into));
    check("a payload beyond 16 bits", 65_536 + 40, &|into| {
        build::Ipv6::new(one, two, 6).write(into)
    });
    check("a flow label of 21 bits", 100, &|into| {
        build::Ipv6 { flow_label: 1 << 20, ..build::Ipv6::new(one, two, 6) }.write(into)
    });
    check("a priority of 4 bits", 100, &|into| build::Vlan { priority: 8, ..tag }.write(into));
    check("an identifier of 13 bits", 100, &|into| build::Vlan { id: 4096, ..tag }.write(into));
    check("TCP options of 2 bytes", 100, &|into| {
        build::Tcp { options: &[0; 2], ..build::Tcp::new(1, 2, 3) }.write(into, &ends)
    });
    check("TCP options of 44 bytes", 100, &|into| {
        build::Tcp { options: &[0; 44], ..build::Tcp::new(1, 2, 3) }.write(into, &ends)
    });
    check("a segment beyond 16 bits", 65_536, &|into| build::Tcp::new(1, 2, 3).write(into, &ends));
    check("a datagram beyond 16 bits", 65_536, &|into| {
        build::Udp { source: 1, destination: 2 }.write(into, &ends)
    });
    check("an ICMP error of 577 bytes", 557, &|into| {
        build::IcmpError { kind: 3, code: 0, rest: 0 }.write(into)
    });
    check("an error that is an echo", 100, &|into| {
        build::IcmpError { kind: 8, code: 0, rest: 0 }.write(into)
    });
    check("an ICMPv6 error of 1281 bytes", 1241, &|into| {
        build::Icmpv6Error { kind: 1, code: 0, rest: 0 }.write(into, &one, &two)
    });
    check("an ICMPv6 error that is an echo", 100, &|into| {
        build::Icmpv6Error { kind: 128, code: 0, rest: 0 }.write(into, &one, &two)
    });
}

#[test]
fn the_groups_of_neighbour_discovery_are_the_rfcs() {
    // Scenario: the example of RFC 4291, section 2.7.1, and the mapping of RFC 2464,
    // section 7.
    let address: std::net::Ipv6Addr = "4037::01:800:200e:8c6c".parse().expect("an address");
    let group: std::net::Ipv6Addr = "ff02::1:ff0e:8c6c".parse().expect("an address");
    assert_eq!(build::solicited_node(&address.octets()), group.octets());
    assert_eq!(build::multicast_mac(&group.octets()), [0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]);
    assert_eq!(build::multicast_mac(&build::ALL_NODES), [0x33, 0x33, 0, 0, 0, 1]);
}

#[test]
fn a_link_local_address_has_its_mac_in_it() {
    // Scenario: the MAC address of RFC 2464, section 4.
    let address: std::net::Ipv6Addr = "fe80::3656:78ff:fe9a:bcde".parse().expect("an address");
    assert_eq!(build::link_local(&[0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]), address.octets());
}
