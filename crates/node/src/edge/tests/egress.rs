//! Packets that chains have released: routes, hops, sizes, and errors about packets that
//! cannot leave.

use super::frames::frame;
use super::{Bench, Released};
use holdfast_wire::nsh::Flags;
use holdfast_wire::{DropReason, PacketPool};

/// A bench whose neighbours have all asked for the box, and have answered its question.
fn known() -> Bench {
    Bench::knowing(&[
        (1, "arp who-has 203.0.113.1 tell 203.0.113.254"),
        (1, "arp who-has 203.0.113.1 tell 203.0.113.9"),
        (0, "arp who-has 10.0.0.1 tell 10.0.0.9"),
        (1, "ns 2001:db8:b::1 from 2001:db8:b::fe"),
        (0, "ns 2001:db8:a::1 from 2001:db8:a::9"),
    ])
}

fn first(bench: &mut Bench, ingress: u8, words: &str) -> String {
    bench.released(ingress, words).into_iter().next().unwrap_or_default()
}

#[test]
fn routes_and_hops() {
    let mut bench = known();
    assert_eq!(
        first(&mut bench, 0, "udp 198.51.100.4:1 > 203.0.113.9:2"),
        "1< box1>host9 udp 198.51.100.4:1 > 203.0.113.9:2 ttl=63"
    );
    assert_eq!(
        first(&mut bench, 0, "udp 198.51.100.4:1 > 192.0.2.7:2"),
        "1< box1>host254 udp 198.51.100.4:1 > 192.0.2.7:2 ttl=63"
    );
    assert_eq!(
        first(&mut bench, 1, "udp 192.0.2.7:2 > 10.0.0.9:1 ttl=2"),
        "0< box0>host9 udp 192.0.2.7:2 > 10.0.0.9:1 ttl=1"
    );
    assert_eq!(
        first(&mut bench, 0, "tcp [2001:db8:a::9]:1 > [2001:db8:f::7]:2"),
        "1< box1>host254 tcp [2001:db8:a::9]:1 > [2001:db8:f::7]:2 ttl=63"
    );
    assert_eq!(first(&mut bench, 1, "udp 192.0.2.7:2 > 10.0.0.9:1 ttl=1"), "drop ttl_exceeded");
}

#[test]
fn no_route_is_told_through_the_chain() {
    assert_eq!(
        known().released(0, "udp 198.51.100.4:1 > 172.16.0.1:2"),
        [
            "again 0> host4>box0 net 10.0.0.1 > 198.51.100.4 ttl=64 about [udp 198.51.100.4:1 > 172.16.0.1:2 ttl=64] \
             as udp 172.16.0.1:2 > 198.51.100.4:1",
            "drop no_route"
        ]
    );
    // An IPv6 route does not match IPv4, and the other way round.
    let effects = known().released(0, "udp [2001:db8:a::9]:1 > [2001:db8:dead::1]:2");
    assert!(
        effects[0].starts_with("again 0> host9>box0 net 2001:db8:a::1 > 2001:db8:a::9"),
        "{effects:?}"
    );
}

#[test]
fn a_packet_that_does_not_fit_is_told_the_size_through_the_chain() {
    let mut bench = known();
    assert_eq!(
        first(&mut bench, 0, "udp 198.51.100.4:1 > 192.0.2.7:2 df len=1372"),
        "1< box1>host254 udp 198.51.100.4:1 > 192.0.2.7:2 ttl=63"
    );
    assert_eq!(
        bench.released(0, "udp 198.51.100.4:1 > 192.0.2.7:2 df len=1373"),
        [
            "again 1> host4>box0 too-big mtu=1400 203.0.113.1 > 198.51.100.4 ttl=64 about [udp 198.51.100.4:1 > 192.0.2.7:2 ttl=64] \
             as udp 192.0.2.7:2 > 198.51.100.4:1",
            "drop frame_too_large"
        ]
    );
    let effects = bench.released(0, "tcp [2001:db8:a::9]:1 > [2001:db8:f::7]:2 len=1400");
    assert!(
        effects[0]
            .starts_with("again 1> host9>box0 too-big mtu=1400 2001:db8:b::1 > 2001:db8:a::9"),
        "{effects:?}"
    );
}

#[test]
fn the_quote_is_as_long_as_the_rfcs_allow() {
    let mut bench = known();
    let mut reported = |words: &str| {
        let mut packet = bench.packet(&frame(0, words));
        packet.parse().expect("well formed");
        bench.edge.handle_egress(
            Released::stateless(packet),
            bench.now,
            &mut bench.out,
            &mut bench.pool,
        );
        let (_, packet) = bench.out.reinject.pop().expect("told");
        let len = packet.len() - 14;
        bench.pool.put(packet);
        len
    };
    assert_eq!(reported("udp 198.51.100.4:1 > 172.16.0.1:2 len=1400"), 576);
    assert_eq!(reported("udp [2001:db8:a::9]:1 > [2001:db8:dead::1]:2 len=1400"), 1280);
    assert_eq!(reported("udp 198.51.100.4:1 > 172.16.0.1:2 len=16"), 20 + 8 + 20 + 8 + 16);
}

/// Scenario: a link with an MTU below 576. The box's own errors are short enough not to
/// be cut, because they have no identification of their own.
#[test]
fn the_quote_is_short_where_the_mtu_is_small() {
    let mut bench = Bench::new();
    for (mtu, told) in [(1000, 576), (300, 300), (68, 68), (10, 0)] {
        bench.edge.set_mtu(0, mtu);
        let packet = bench.packet(&frame(0, "udp 10.0.0.9:1 > 192.0.2.7:2 ttl=1 len=1000"));
        assert!(
            bench
                .edge
                .handle_ingress(0, packet, bench.now, &mut bench.out, &mut bench.pool)
                .is_none()
        );
        let lens: Vec<usize> =
            bench.out.transmit.iter().map(|(_, error)| error.get().len() - 14).collect();
        bench.out.transmit.drain(..).for_each(|(_, error)| bench.pool.put(error.into_inner()));
        // If not even a header and 8 bytes fit, nothing leaves.
        assert_eq!(lens, if mtu < 56 { vec![] } else { vec![told] });
        assert_eq!(bench.pool.free(), bench.pool.total());
    }
}

/// A chain has put an 802.1Q tag on a packet. The packet leaves with it, whole or in
/// fragments, at once or after its neighbour has answered. The tag does not count for the
/// MTU, and errors about the packet, which come in again, have none.
#[test]
fn a_tag_that_a_chain_has_put_on_leaves_with_the_packet() {
    let mut bench = known();
    for words in ["udp 198.51.100.4:1 > 192.0.2.7:2", "tcp [2001:db8:a::9]:1 > [2001:db8:f::7]:2"] {
        assert_eq!(
            first(&mut bench, 0, &format!("{words} vlan=40960")),
            format!("1< box1>host254 {words} ttl=63 vlan=40960")
        );
    }
    let fits = "udp 198.51.100.4:1 > 192.0.2.7:2 df len=1372";
    assert_eq!(
        first(&mut bench, 0, &format!("{fits} vlan=8192")),
        format!("{} vlan=8192", first(&mut bench, 0, fits))
    );
    for (port, words) in [
        (0, "udp 198.51.100.4:1 > 192.0.2.7:2 df len=1373"),
        (0, "udp 198.51.100.4:1 > 172.16.0.1:2"),
        (0, "tcp [2001:db8:a::9]:1 > [2001:db8:f::7]:2 len=1400"),
    ] {
        let untagged = bench.released(port, words);
        assert!(untagged[0].starts_with("again ") && untagged[0].contains("] as "), "{untagged:?}");
        assert_eq!(bench.released(port, &format!("{words} vlan=8192")), untagged);
    }
    let pieces = |bench: &mut Bench, words: &str| {
        bench.released(0, &format!("udp 198.51.100.4:1 > 192.0.2.7:2 len=2000 {words}"))
    };
    let untagged = pieces(&mut bench, "");
    assert!(untagged.len() == 2 && untagged[1].contains("fragment"), "{untagged:?}");
    let expected: Vec<String> =
        untagged.iter().map(|piece| format!("{piece} vlan=24576")).collect();
    assert_eq!(pieces(&mut bench, "vlan=24576"), expected);

    let mut bench = Bench::new();
    let asks = bench.released(0, "udp 198.51.100.4:1 > 203.0.113.9:2 vlan=40960");
    assert_eq!(asks, ["1< box1>all arp who-has 203.0.113.9 tell 203.0.113.1"]);
    let answered =
        bench.port(1, "arp 203.0.113.9 is-at 02:00:00:00:01:09 target=203.0.113.1 to=box1");
    assert_eq!(answered, ["1< box1>host9 udp 198.51.100.4:1 > 203.0.113.9:2 ttl=63 vlan=40960"]);
}

/// A chain has put packets into VLANs. They leave by a port that has these VLANs for
/// flows, the port's own ones by none, and nothing with two tags or a service tag.
#[test]
fn a_packet_leaves_in_a_vlan_that_its_port_has_for_flows() {
    let mut bench = Bench::with(|config| config.ports[1].flow_vlans = vec![300, 4094]);
    bench.port(1, "arp who-has 203.0.113.1 tell 203.0.113.254");
    bench.port(0, "arp who-has 10.0.0.1 tell 10.0.0.9");
    let (out, back) =
        ("udp 198.51.100.4:1 > 192.0.2.7:2 len=4", "udp 192.0.2.7:2 > 10.0.0.9:1 len=4");
    for (words, vlan, leaves) in [
        (out, 300, true),
        (out, 0xf000 | 4094, true),
        (out, 301, false),
        (back, 300, false),
        (back, 0xf000, true),
    ] {
        let words = format!("{words} vlan={vlan}");
        let came = first(&mut bench, 0, &words);
        match leaves {
            true => assert!(came.ends_with(&format!(" vlan={vlan}")), "{words}: {came}"),
            false => assert_eq!(came, "drop unknown_vlan", "{words}"),
        }
    }
    let plain = frame(0, out);
    for tags in [&[0x88, 0xa8, 1, 44][..], &[0x81, 0, 1, 44, 0x81, 0, 1, 44]] {
        let tagged = [&plain[..12], tags, &plain[12..]].concat();
        assert_eq!(bench.released_bytes(0, &tagged), ["drop unknown_vlan"]);
    }
}

#[test]
fn what_goes_to_all_does_not_leave() {
    let mut bench = known();
    assert_eq!(bench.released(0, "udp 198.51.100.4:1 > 203.0.113.255:2"), ["drop multicast"]);
    assert_eq!(bench.released(0, "udp 198.51.100.4:1 > 224.0.0.1:2"), ["drop multicast"]);
}

#[test]
fn what_a_chain_did_not_lead_away_from_the_box_goes_nowhere() {
    assert_eq!(known().released(0, "udp 198.51.100.4:1 > 10.0.0.1:2"), ["drop local"]);
    // A packet must not loop, either.
    assert_eq!(known().released(1, "udp 192.0.2.7:1 > 198.51.100.5:2"), ["drop no_mapping"]);
    assert_eq!(known().released(1, "udp 192.0.2.7:1 > 203.0.113.2:2"), ["drop no_mapping"]);
}

#[test]
fn at_the_end_nothing_stays_inside() {
    let mut bench = Bench::new();
    bench.released(0, "udp 198.51.100.4:1 > 203.0.113.9:2");
    bench.port(0, "udp 10.0.0.9:1 > 192.0.2.7:2 at=1480 id=5");
    assert_eq!(bench.edge.held(), 2);
    bench.edge.abandon(&mut bench.pool);
    assert_eq!(bench.edge.held(), 0);
    assert_eq!(bench.edge.drops().get(DropReason::ShuttingDown), 2);
    assert_eq!(bench.pool.free(), bench.pool.total());
}

/// An ICMP error to somebody about a packet of theirs.
fn error(from: &str, to: &str, about: &str) -> Vec<u8> {
    use holdfast_wire::build::{Ethernet, IcmpError, Icmpv6Error, Ipv4, Ipv6};
    use holdfast_wire::header::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, proto};
    use std::net::IpAddr;
    let quote = frame(0, about)[14..].to_vec();
    let ip = |text: &str| text.parse::<IpAddr>().expect("a test's address");
    let (ethertype, packet) = match (ip(from), ip(to)) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut packet = [vec![0; Ipv4::LEN + IcmpError::LEN], quote].concat();
            IcmpError { kind: 3, code: 1, rest: 0 }
                .write(&mut packet[Ipv4::LEN..])
                .expect("it fits");
            Ipv4::new(from.octets(), to.octets(), proto::ICMP).write(&mut packet).expect("it fits");
            (ETHERTYPE_IPV4, packet)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let (from, to) = (from.octets(), to.octets());
            let mut packet = [vec![0; Ipv6::LEN + Icmpv6Error::LEN], quote].concat();
            Icmpv6Error { kind: 1, code: 3, rest: 0 }
                .write(&mut packet[Ipv6::LEN..], &from, &to)
                .expect("it fits");
            Ipv6::new(from, to, proto::ICMPV6).write(&mut packet).expect("it fits");
            (ETHERTYPE_IPV6, packet)
        }
        _ => panic!("one family"),
    };
    let mut bytes = [vec![0; Ethernet::LEN], packet].concat();
    Ethernet { destination: [2; 6], source: [4; 6], ethertype }.write(&mut bytes).expect("it fits");
    bytes
}

/// The box's own errors come from the address of the port by which they leave (RFC 1812,
/// section 4.3.2.4), by whatever port the rejected packet should have left.
#[test]
fn errors_come_from_the_address_of_the_port_by_which_they_leave() {
    let mut bench = known();
    let sent_with =
        |bench: &mut Bench, flags: u8, ingress: u8, (from, to): (&str, &str), about: &str| {
            let effects = bench.released_with(ingress, flags, &error(from, to, about));
            effects.into_iter().next().unwrap_or_default()
        };
    let sent = |bench: &mut Bench, ingress: u8, ends: (&str, &str), about: &str| {
        sent_with(bench, Flags::OWN, ingress, ends, about)
    };
    // This is the error that `a_neighbour_that_does_not_answer` shows, once the chain has
    // translated it back.
    let four = "udp 10.0.0.9:1 > 203.0.113.8:2";
    assert_eq!(
        sent(&mut bench, 1, ("203.0.113.1", "10.0.0.9"), four),
        "0< box0>host9 host 10.0.0.1 > 10.0.0.9 ttl=63 about [udp 10.0.0.9:1 > 203.0.113.8:2 ttl=64]"
    );
    let six = "udp [2001:db8:a::9]:1 > [2001:db8:b::8]:2";
    assert_eq!(
        sent(&mut bench, 1, ("2001:db8:b::1", "2001:db8:a::9"), six),
        "0< box0>host9 host 2001:db8:a::1 > 2001:db8:a::9 ttl=63 about [udp [2001:db8:a::9]:1 > [2001:db8:b::8]:2 ttl=64]"
    );
    // The port by which the cause could not leave had no address that the receiver could
    // know, and lent another port's.
    assert!(
        sent(&mut bench, 1, ("10.0.0.1", "203.0.113.9"), "udp 203.0.113.9:1 > 10.0.0.8:2")
            .contains(" host 203.0.113.1 > 203.0.113.9 ")
    );
    // A source that a chain has translated stays.
    assert!(
        sent(&mut bench, 0, ("198.51.100.4", "203.0.113.9"), "udp 203.0.113.9:1 > 198.51.100.4:2")
            .contains(" host 198.51.100.4 > ")
    );
    // Errors of other stations keep their source: a router outside, and a host inside
    // that is translated to a port's own address.
    assert!(
        sent_with(&mut bench, 0, 1, ("192.0.2.7", "10.0.0.9"), four)
            .contains(" host 192.0.2.7 > 10.0.0.9 ")
    );
    let about = "udp 203.0.113.9:1 > 203.0.113.2:2";
    for ingress in [0, 1] {
        let left = sent_with(&mut bench, 0, ingress, ("203.0.113.2", "203.0.113.9"), about);
        assert!(left.contains(" host 203.0.113.2 > 203.0.113.9 "), "{left}");
    }
    // A packet that is no error keeps its source, too.
    assert!(first(&mut bench, 1, "udp 203.0.113.2:1 > 10.0.0.9:2").contains(" 203.0.113.2:1 > "));
}

/// A port without an address that the receiver could know lends another one of the box
/// (RFC 1812, section 4.3.2.4; RFC 4443, section 2.2).
#[test]
fn an_error_by_a_port_without_an_address() {
    let mut bench = Bench::with(|config| {
        config.ports[1].addresses.retain(|(address, _)| address.is_ipv4());
        config.routes[2].gateway = Some("fe80::fe".parse().expect("an address"));
    });
    assert_eq!(
        bench.port(1, "udp [2001:db8:f::7]:5 > [2001:db8:a::9]:9 ttl=1")[0],
        "1< box1>host7 time-exceeded 2001:db8:a::1 > 2001:db8:f::7 ttl=64 about [udp [2001:db8:f::7]:5 > [2001:db8:a::9]:9 ttl=1]"
    );
}
