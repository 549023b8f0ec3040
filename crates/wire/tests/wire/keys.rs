//! Flow keys: directions, and errors that travel with replies.

use crate::frames::{
    A4, A6, B4, B6, ENDS6, echo4, echo6, error4, error6, ethernet, kinds, packets, room, udp, v4,
    v6,
};
use holdfast_wire::build;
use holdfast_wire::header::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, icmp, icmpv6, proto};
use holdfast_wire::rewrite::{End, Side, set_end};
use holdfast_wire::{
    FlowKey, Layers, MemoryPool, Network, PacketPool, ip_addr, ip_bytes, map_v4, unmap_v4,
};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn key() -> impl Strategy<Value = FlowKey> {
    // Few values, so that keys that differ in one field only are frequent.
    let address = || prop_oneof![Just(A6), Just(B6), Just(map_v4(A4)), any::<[u8; 16]>()];
    let number = || prop_oneof![Just(0u16), Just(443), any::<u16>()];
    (address(), address(), number(), number(), number(), number()).prop_map(
        |(source, destination, source_port, destination_port, protocol, scope)| FlowKey {
            source,
            destination,
            source_port,
            destination_port,
            protocol,
            scope,
        },
    )
}

fn key_of(frame: &[u8]) -> Option<FlowKey> {
    let mut pool = MemoryPool::new(1);
    let mut packet = crate::frames::packet(&mut pool, frame, 0xa5);
    let key = packet.parse().ok().and_then(|()| FlowKey::of(&packet));
    pool.put(packet);
    key
}

/// An ICMP message from B to A.
fn back(ethertype: u16, message: &[u8]) -> Vec<u8> {
    let len = if ethertype == ETHERTYPE_IPV4 { 20 } else { 40 };
    let mut packet = room(len, message);
    match ethertype {
        ETHERTYPE_IPV4 => build::Ipv4::new(B4, A4, proto::ICMP).write(&mut packet),
        _ => build::Ipv6::new(B6, A6, proto::ICMPV6).write(&mut packet),
    }
    .expect("it fits");
    ethernet(ethertype, &[], &packet)
}

/// An error of this type about this packet, from B to A, with so much of it as a quote.
fn error(ethertype: u16, kind: u8, packet: &[u8], len: usize) -> Vec<u8> {
    let quote = &packet[..len.min(packet.len())];
    back(
        ethertype,
        &if ethertype == ETHERTYPE_IPV4 { error4(kind, quote) } else { error6(kind, quote) },
    )
}

/// The error about this packet to its sender, with so much of it as a quote.
fn error_about(ethertype: u16, packet: &[u8], len: usize) -> Vec<u8> {
    error(
        ethertype,
        if ethertype == ETHERTYPE_IPV4 { icmp::TIME_EXCEEDED } else { icmpv6::TIME_EXCEEDED },
        packet,
        len,
    )
}

/// An ICMP message of any type, as a frame from A to B or back.
fn message(ethertype: u16, is_back: bool, kind: u8, id: u16) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    let message = [kind, 0, 0, 0, high, low, 0, 1, 9, 9, 9, 9];
    match (is_back, ethertype) {
        (true, _) => back(ethertype, &message),
        (false, ETHERTYPE_IPV4) => ethernet(ethertype, &[], &v4(proto::ICMP, &message)),
        (false, _) => ethernet(ethertype, &[], &v6(proto::ICMPV6, &message)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Scenario: any key. The reply to the reply is the packet itself; ends change places
    /// and nothing else.
    #[test]
    fn reverse_twice_is_identity(key in key()) {
        let back = key.reverse();
        prop_assert_eq!(back.reverse(), key);
        prop_assert_eq!((back.source, back.source_port), (key.destination, key.destination_port));
        prop_assert_eq!((back.destination, back.destination_port), (key.source, key.source_port));
        prop_assert_eq!((back.protocol, back.scope), (key.protocol, key.scope));
    }

    /// Scenario: any two keys. Compared by words they are equal when all fields are, and
    /// then they have one hash.
    #[test]
    fn equal_is_equal_by_fields(a in key(), b in key(), seed: u64) {
        let fields = |key: &FlowKey| (key.source, key.destination, key.source_port, key.destination_port, key.protocol, key.scope);
        prop_assert_eq!(a == b, fields(&a) == fields(&b));
        prop_assert_eq!(a.cmp(&b).is_eq(), fields(&a) == fields(&b));
        // With 64 bits, two different keys practically never have one hash.
        prop_assert_eq!(a.hash(seed) == b.hash(seed), a == b);
    }

    /// Scenario: any key, and 255 whose source ports follow, as a client takes them. Any
    /// eight bits of their hashes, of which a table of 256 buckets would make its choice,
    /// look drawn: 162 values are expected, with a deviation of 7.
    #[test]
    fn keys_that_follow_one_another_are_spread(first in key(), step in 1..9u16, seed: u64) {
        let keys = (0..256u16).map(|n| FlowKey { source_port: first.source_port.wrapping_add(n * step), ..first });
        let hashes: Vec<u64> = keys.map(|key| key.hash(seed)).collect();
        for shift in 0..=56 {
            let values: BTreeSet<u64> = hashes.iter().map(|hash| hash >> shift & 0xff).collect();
            prop_assert!((110..215).contains(&values.len()), "{} at {shift}", values.len());
        }
    }

    /// Scenario: any address, as 16 bytes and back.
    #[test]
    fn addresses_survive_16_bytes(v4: [u8; 4], v6: [u8; 16]) {
        prop_assert_eq!(unmap_v4(&map_v4(v4)), Some(v4));
        prop_assert_eq!(ip_addr(&map_v4(v4)), std::net::IpAddr::from(v4));
        prop_assert_eq!(ip_bytes(ip_addr(&v6)), v6);
    }

    /// Scenario: a packet of any kind is quoted in an error, whole or cut anywhere. Once
    /// the ports are in it, the error's key is the reverse of the packet's.
    #[test]
    fn an_errors_key_is_the_reverse_of_what_it_quotes(which in any::<prop::sample::Index>(), len in 0usize..200) {
        thread_local! { static PACKETS: Vec<(String, u16, Vec<u8>, usize, u8)> = packets(); }
        let (name, ethertype, packet, header, protocol) = PACKETS.with(|packets| packets[which.index(packets.len())].clone());
        let own = key_of(&ethernet(ethertype, &[], &packet));
        let needed = header + match protocol {
            proto::TCP | proto::UDP => 4,
            proto::ICMP | proto::ICMPV6 => 8,
            _ => 0,
        };
        let expected = own.filter(|_| len >= needed).map(|key| key.reverse());
        prop_assert_eq!(key_of(&error_about(ethertype, &packet, len)), expected, "{} cut to {}", name, len);
    }
}

#[test]
fn every_kind_of_first_packet_has_a_key_and_no_later_fragment_has() {
    // Scenario: packets of every kind. All but later fragments say whose they are.
    let mut keyless = Vec::new();
    for (name, ethertype, packet, _, protocol) in packets() {
        match key_of(&ethernet(ethertype, &[], &packet)) {
            Some(key) => assert_eq!(
                (key.source, key.destination, key.protocol),
                match ethertype {
                    ETHERTYPE_IPV4 => (map_v4(A4), map_v4(B4), protocol.into()),
                    _ => (A6, B6, protocol.into()),
                },
                "{name}"
            ),
            None => keyless.push(name),
        }
    }
    assert_eq!(keyless, ["ipv4/later", "ipv6/later"]);
}

#[test]
fn an_error_about_an_error_has_no_key() {
    // Scenario: an error quotes an error, which no host may send. The error belongs to no
    // flow.
    for (ethertype, echo) in [
        (ETHERTYPE_IPV4, v4(proto::ICMP, &echo4(1))),
        (ETHERTYPE_IPV6, v6(proto::ICMPV6, &echo6(1))),
    ] {
        let inner = error_about(ethertype, &echo, 500);
        assert!(key_of(&inner).is_some());
        assert_eq!(key_of(&error_about(ethertype, &inner[14..], 500)), None);
    }
}

#[test]
fn only_errors_about_a_packet_of_the_receivers_have_a_key() {
    // Scenario: an error to another host than sent the packet that it quotes, a redirect
    // and a source quench: they belong to no flow.
    let udp4 = |source, destination| {
        let mut packet = room(20, &udp(&build::Ends::V4(source, destination), b"data"));
        build::Ipv4::new(source, destination, proto::UDP).write(&mut packet).expect("it fits");
        packet
    };
    for kind in 0..=u8::MAX {
        if icmp::is_error(kind) {
            let is_known =
                matches!(kind, icmp::UNREACHABLE | icmp::TIME_EXCEEDED | icmp::PARAMETER_PROBLEM);
            assert_eq!(
                key_of(&error(ETHERTYPE_IPV4, kind, &udp4(A4, B4), 500)).is_some(),
                is_known,
                "type {kind}"
            );
            assert_eq!(
                key_of(&error(ETHERTYPE_IPV4, kind, &udp4([192, 0, 2, 99], B4), 500)),
                None,
                "type {kind}"
            );
        }
        if icmpv6::is_error(kind) {
            assert!(
                key_of(&error(ETHERTYPE_IPV6, kind, &v6(proto::UDP, &udp(&ENDS6, b"data")), 500))
                    .is_some(),
                "type {kind}"
            );
            let to_b = ethernet(
                ETHERTYPE_IPV6,
                &[],
                &v6(proto::ICMPV6, &error6(kind, &v6(proto::UDP, &udp(&ENDS6, b"data")))),
            );
            assert_eq!(key_of(&to_b), None, "type {kind}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// Scenario: any two ICMP messages between two hosts, with identifiers that are as
    /// near to types and each other as can be. A key is another's reverse only if its
    /// message is the reply to the other's request.
    #[test]
    fn only_its_reply_is_the_reverse_of_a_request(
        is_v6: bool, kinds in prop::array::uniform2(prop_oneof![Just(0u8), Just(8), Just(13), Just(14), Just(128), Just(129), any::<u8>()]),
        id in prop_oneof![0u16..300, 0x7f00u16..0x8100, 0xff00u16.., any::<u16>()], distance in prop_oneof![Just(0u16), 0u16..260, 0xff00u16.., any::<u16>()],
        is_back: bool,
    ) {
        let ethertype = if is_v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
        let is_error = |kind| if is_v6 { icmpv6::is_error(kind) } else { icmp::is_error(kind) };
        prop_assume!(!kinds.into_iter().any(is_error));
        let ids = [id, id.wrapping_add(distance)];
        let first = key_of(&message(ethertype, false, kinds[0], ids[0])).expect("it has a key");
        let second = key_of(&message(ethertype, is_back, kinds[1], ids[1])).expect("it has a key");
        let pairs: &[[u8; 2]] = if is_v6 { &[[128, 129]] } else { &[[8, 0], [13, 14]] };
        let is_pair = ids[0] == ids[1] && pairs.iter().any(|[ask, answer]| kinds == [*ask, *answer] || kinds == [*answer, *ask]);
        prop_assert_eq!(first.reverse() == second, is_back && is_pair, "{} {}", first, second);
        let is_in_exchange = |kind: &u8| pairs.iter().flatten().any(|other| other == kind);
        let is_same = kinds[0] == kinds[1] && (ids[0] == ids[1] || !is_in_exchange(&kinds[0]));
        prop_assert_eq!(first == second, !is_back && is_same, "{} {}", first, second);
        prop_assert_eq!(first.ports(), if is_in_exchange(&kinds[0]) { (ids[0], ids[0]) } else { (0, 0) });
    }
}

#[test]
fn an_echo_and_its_reply_are_one_flow() {
    // Scenario: ping, over IPv4 and IPv6. The reply's key is the reverse of the
    // question's.
    let mut reply4 = vec![0; 16];
    build::IcmpEcho { is_reply: true, id: 600, sequence: 2 }.write(&mut reply4).expect("it fits");
    let mut back4 = vec![0; 36];
    back4[20..].copy_from_slice(&reply4);
    build::Ipv4::new(B4, A4, proto::ICMP).write(&mut back4).expect("it fits");
    let question = key_of(&ethernet(ETHERTYPE_IPV4, &[], &v4(proto::ICMP, &echo4(600))))
        .expect("it has a key");
    assert_eq!(key_of(&ethernet(ETHERTYPE_IPV4, &[], &back4)), Some(question.reverse()));
    let mut back6 = vec![0; 56];
    build::Icmpv6Echo { is_reply: true, id: 600, sequence: 2 }
        .write(&mut back6[40..], &B6, &A6)
        .expect("it fits");
    build::Ipv6::new(B6, A6, proto::ICMPV6).write(&mut back6).expect("it fits");
    let question = key_of(&ethernet(ETHERTYPE_IPV6, &[], &v6(proto::ICMPV6, &echo6(600))))
        .expect("it has a key");
    assert_eq!(key_of(&ethernet(ETHERTYPE_IPV6, &[], &back6)), Some(question.reverse()));
}

#[test]
fn ports_are_not_read_behind_the_end_of_the_quoted_packet() {
    // Scenario: an error quotes an IP packet that ends with its header or in its ports;
    // extensions of the error (RFC 4884) follow. The extensions are not the packet's:
    // there are no ports, and so no key.
    for (ethertype, packet) in [
        (ETHERTYPE_IPV4, v4(proto::UDP, &[])),
        (ETHERTYPE_IPV4, v4(proto::TCP, &[0x01, 0xbb])),
        (ETHERTYPE_IPV4, v4(proto::ICMP, &[8, 0, 0, 0])),
        (ETHERTYPE_IPV6, v6(proto::UDP, &[])),
        (ETHERTYPE_IPV6, v6(proto::TCP, &[0x01, 0xbb])),
        (ETHERTYPE_IPV6, v6(proto::ICMPV6, &[128, 0, 0, 0])),
    ] {
        let extended = [&packet[..], &[0x20, 0, 0, 0, 0, 8, 1, 1]].concat();
        assert!(
            Layers::parse_quoted(&extended)
                .is_ok_and(|layers| usize::from(layers.end) == packet.len())
        );
        assert_eq!(FlowKey::quoted(&extended), None, "{packet:?}");
        assert_eq!(key_of(&error_about(ethertype, &extended, 500)), None, "{packet:?}");
    }
}

#[test]
fn keys_are_printed_as_an_operator_reads_them() {
    // Scenario: keys in a log.
    let print = |protocol: u16, source: [u8; 16]| {
        FlowKey { source, source_port: 1, destination: B6, destination_port: 2, protocol, scope: 0 }
            .to_string()
    };
    assert_eq!(print(6, map_v4(A4)), "tcp 192.0.2.1:1 > [2001:db8:2::2]:2");
    assert_eq!(print(17, A6), "udp [2001:db8:1::1]:1 > [2001:db8:2::2]:2");
    assert_eq!(print(132, A6), "proto-132 [2001:db8:1::1]:1 > [2001:db8:2::2]:2");
    // A number that is no protocol's is not taken for one.
    assert_eq!(print(256 + 6, A6), "proto-262 [2001:db8:1::1]:1 > [2001:db8:2::2]:2");
    // An identifier is the asker's; a message that asks nothing has its type instead.
    let icmp = |kind, id| key_of(&message(ETHERTYPE_IPV4, false, kind, id)).expect("it has a key");
    assert_eq!(icmp(8, 7).to_string(), "icmp 192.0.2.1:7 > 198.51.100.7");
    assert_eq!(icmp(0, 7).to_string(), "icmp 192.0.2.1 > 198.51.100.7:7");
    assert_eq!(icmp(200, 7).to_string(), "icmp 192.0.2.1 > 198.51.100.7 type 200");
    assert_eq!(
        icmp(200, 7).reverse().to_string(),
        "icmp 198.51.100.7 > 192.0.2.1 against type 200"
    );
    assert_eq!(
        key_of(&message(ETHERTYPE_IPV6, false, 128, 7)).expect("it has a key").to_string(),
        "icmp6 [2001:db8:1::1]:7 > 2001:db8:2::2"
    );
}

/// After functions have changed a packet's ends in any way, the key that it came in with
/// restores it, byte for byte. A packet of another protocol or family is left alone, and
/// so are an error, whose key is another packet's, and a message that is neither a
/// request nor a reply.
#[test]
fn a_key_gives_a_packet_its_ends_back() {
    let mut pool = MemoryPool::new(1);
    let mut restored = 0;
    for kind in kinds() {
        let mut packet = crate::frames::packet(&mut pool, &kind.frame, 0xa5);
        packet.parse().expect("it is whole");
        if packet.layers.fragment_offset != 0 {
            FlowKey { protocol: kind.protocol.into(), ..FlowKey::default() }.note(&mut packet);
        }
        let before = packet.bytes().to_vec();
        let Some(key) = FlowKey::noted(&packet) else {
            pool.put(packet);
            continue;
        };
        let is_v6 = packet.layers.network == Network::V6;
        let other =
            |v6: &str, v4: &str| ip_bytes(if is_v6 { v6 } else { v4 }.parse().expect("an address"));
        let asks_nothing = packet.icmp().is_some_and(|header| match is_v6 {
            true => icmpv6::exchange(header.kind).is_none(),
            false => icmp::exchange(header.kind).is_none(),
        });
        if asks_nothing {
            assert!(!key.restore(&mut packet), "{}", kind.name);
        } else {
            for (protocol, address) in
                [(key.protocol + 1, key.source), (key.protocol, other("192.0.2.1", "2001:db8::1"))]
            {
                assert!(
                    !FlowKey { protocol, source: address, ..key }.restore(&mut packet),
                    "{}",
                    kind.name
                );
            }
            assert_eq!(packet.bytes(), before, "{}", kind.name);
            let ends = [
                (other("2001:db8:7::7", "203.0.113.77"), 7),
                (other("fe80::1", "10.255.0.1"), 65_535),
            ];
            for (side, (address, port)) in [Side::Source, Side::Destination].into_iter().zip(ends) {
                assert!(set_end(&mut packet, side, End { address, port }));
            }
            assert_ne!(packet.bytes(), before, "{}", kind.name);
            assert!(key.restore(&mut packet), "{}", kind.name);
            restored += 1;
        }
        assert_eq!(packet.bytes(), before, "{}", kind.name);
        pool.put(packet);
    }
    assert!(restored > 90, "only {restored} frames");
}
