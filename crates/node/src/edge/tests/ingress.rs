//! Frames that come in: every item of bad input has a test by its name, beside its right
//! counterpart.

use super::frames::frame;
use super::{Bench, SECOND};
use holdfast_wire::{DropReason, PacketPool};

/// Gives one frame to a fresh edge; returns the only effect.
fn only(port: u8, words: &str) -> String {
    let effects = Bench::new().port(port, words);
    assert_eq!(effects.len(), 1, "{words}: {effects:?}");
    effects.into_iter().next().unwrap_or_default()
}

#[test]
fn what_is_right_goes_to_a_chain() {
    assert_eq!(
        only(0, "udp 10.0.0.9:1000 > 192.0.2.7:53"),
        "forward udp 10.0.0.9:1000 > 192.0.2.7:53"
    );
    assert_eq!(
        only(0, "tcp 10.0.0.9:1000 > 192.0.2.7:80"),
        "forward tcp 10.0.0.9:1000 > 192.0.2.7:80"
    );
    assert_eq!(only(0, "ping 10.0.0.9 > 192.0.2.7"), "forward icmp 10.0.0.9:7 > 192.0.2.7");
    assert_eq!(only(0, "proto 10.0.0.9 > 192.0.2.7"), "forward proto-253 10.0.0.9:0 > 192.0.2.7:0");
    assert_eq!(
        only(0, "udp [2001:db8:a::9]:1000 > [2001:db8:f::7]:53"),
        "forward udp [2001:db8:a::9]:1000 > [2001:db8:f::7]:53"
    );
}

#[test]
fn zero_length_udp_and_tcp_with_all_flags_or_none_are_a_chains_business() {
    assert_eq!(
        only(0, "udp 10.0.0.9:1 > 192.0.2.7:2 len=0"),
        "forward udp 10.0.0.9:1 > 192.0.2.7:2"
    );
    assert_eq!(
        only(0, "tcp 10.0.0.9:1 > 192.0.2.7:2 flags=0"),
        "forward tcp 10.0.0.9:1 > 192.0.2.7:2"
    );
    assert_eq!(
        only(0, "tcp 10.0.0.9:1 > 192.0.2.7:2 flags=255"),
        "forward tcp 10.0.0.9:1 > 192.0.2.7:2"
    );
}

#[test]
fn what_chains_own_is_not_local() {
    assert_eq!(
        only(1, "udp 192.0.2.7:53 > 198.51.100.4:1000"),
        "forward udp 192.0.2.7:53 > 198.51.100.4:1000"
    );
    assert_eq!(only(1, "ping 192.0.2.7 > 198.51.100.5"), "forward icmp 192.0.2.7:7 > 198.51.100.5");
    assert_eq!(only(0, "tcp 10.0.0.9:5 > 10.0.0.100:80"), "forward tcp 10.0.0.9:5 > 10.0.0.100:80");
    assert_eq!(
        only(0, "tcp [2001:db8:a::9]:5 > [2001:db8:a::100]:80"),
        "forward tcp [2001:db8:a::9]:5 > [2001:db8:a::100]:80"
    );
}

#[test]
fn of_an_own_address_that_chains_use_only_ping_is_local() {
    assert_eq!(
        only(1, "tcp 192.0.2.7:53 > 203.0.113.2:1000"),
        "forward tcp 192.0.2.7:53 > 203.0.113.2:1000"
    );
    assert_eq!(only(1, "pong 192.0.2.7 > 203.0.113.2"), "forward icmp 192.0.2.7 > 203.0.113.2:7");
    assert_eq!(
        only(1, "ping 192.0.2.7 > 203.0.113.2"),
        "1< box1>host7 pong 203.0.113.2 > 192.0.2.7 ttl=64"
    );
}

#[test]
fn ping_is_answered() {
    assert_eq!(
        only(0, "ping 10.0.0.9 > 10.0.0.1"),
        "0< box0>host9 pong 10.0.0.1 > 10.0.0.9 ttl=64"
    );
    assert_eq!(
        only(0, "ping 2001:db8:a::9 > 2001:db8:a::1"),
        "0< box0>host9 pong 2001:db8:a::1 > 2001:db8:a::9 ttl=64"
    );
    // The box answers at any of its addresses, with any TTL, from far away.
    assert_eq!(
        only(0, "ping 10.9.9.9 > 203.0.113.1 ttl=1"),
        "0< box0>host9 pong 203.0.113.1 > 10.9.9.9 ttl=64"
    );
    assert_eq!(only(0, "ping 10.0.0.9 > 10.0.0.1 badl4"), "drop bad_checksum");
    assert_eq!(only(0, "ping 2001:db8:a::9 > 2001:db8:a::1 badl4"), "drop bad_checksum");
    assert_eq!(only(0, "pong 10.0.0.9 > 10.0.0.1"), "drop local");
}

#[test]
fn ping_has_a_rate_limit_of_its_own() {
    let mut bench = Bench::new();
    let mut answered = 0;
    for _ in 0..3000 {
        answered += usize::from(bench.port(0, "ping 10.0.0.9 > 10.0.0.1")[0].starts_with("0<"));
    }
    assert_eq!(answered, 1000);
    assert_eq!(bench.edge.drops().get(DropReason::Local), 2000);
    // A flood of ping leaves traceroute its errors.
    assert_eq!(bench.port(0, "udp 10.0.0.9:1 > 192.0.2.7:2 ttl=1").len(), 2);
    bench.wait(SECOND / 100);
    let answered =
        (0..100).filter(|_| bench.port(0, "ping 10.0.0.9 > 10.0.0.1")[0].starts_with("0<")).count();
    assert_eq!(answered, 10);
}

#[test]
fn udp_is_told_that_nobody_listens() {
    assert_eq!(
        Bench::new().port(0, "udp 10.0.0.9:5 > 10.0.0.1:33434 ttl=1"),
        [
            "0< box0>host9 port 10.0.0.1 > 10.0.0.9 ttl=64 about [udp 10.0.0.9:5 > 10.0.0.1:33434 ttl=1]",
            "drop local"
        ]
    );
    assert_eq!(
        Bench::new().port(0, "udp [2001:db8:a::9]:5 > [2001:db8:a::1]:33434"),
        [
            "0< box0>host9 port 2001:db8:a::1 > 2001:db8:a::9 ttl=64 about [udp [2001:db8:a::9]:5 > [2001:db8:a::1]:33434 ttl=64]",
            "drop local"
        ]
    );
}

#[test]
fn traceroute_sees_the_box() {
    for ttl in [0, 1] {
        assert_eq!(
            Bench::new().port(0, &format!("udp 10.0.0.9:5 > 192.0.2.7:33434 ttl={ttl} len=1000")),
            [
                format!(
                    "0< box0>host9 time-exceeded 10.0.0.1 > 10.0.0.9 ttl=64 about [udp 10.0.0.9:5 > 192.0.2.7:33434 ttl={ttl}]"
                ),
                "drop ttl_exceeded".to_owned()
            ]
        );
    }
    // The answer comes from the address of the port, in the sender's family.
    assert_eq!(
        Bench::new().port(1, "ping 2001:db8:b::fe > 2001:db8:a::9 ttl=1"),
        [
            "1< box1>host254 time-exceeded 2001:db8:b::1 > 2001:db8:b::fe ttl=64 about [ping 2001:db8:b::fe > 2001:db8:a::9 ttl=1]",
            "drop ttl_exceeded"
        ]
    );
    assert_eq!(
        only(0, "udp 10.0.0.9:5 > 192.0.2.7:33434 ttl=2"),
        "forward udp 10.0.0.9:5 > 192.0.2.7:33434"
    );
}

#[test]
fn errors_have_a_rate_limit() {
    let mut bench = Bench::new();
    let told = (0..2500)
        .filter(|_| bench.port(0, "udp 10.0.0.9:5 > 192.0.2.7:9 ttl=1").len() == 2)
        .count();
    assert_eq!(told, 1000);
    bench.wait(SECOND / 10);
    let told = (0..2500)
        .filter(|_| bench.port(0, "udp 10.0.0.9:5 > 192.0.2.7:9 ttl=1").len() == 2)
        .count();
    assert_eq!(told, 100);
}

#[test]
fn no_error_about_an_error_or_a_later_fragment() {
    let mut bench = Bench::new();
    let mut error = frame(0, "ping 10.0.0.9 > 192.0.2.7 ttl=1");
    // Destination unreachable.
    error[34] = 3;
    assert_eq!(bench.port_bytes(0, &error), ["drop ttl_exceeded"]);
    assert_eq!(bench.port(0, "udp 10.0.0.9:5 > 192.0.2.7:9 ttl=1 at=1480"), ["drop ttl_exceeded"]);
}

#[test]
fn a_dry_pool_makes_no_answer_and_says_so() {
    let mut bench = Bench::with_buffers(1);
    // The question's own buffer is free by the time of the answer. A packet that waits
    // keeps its buffer, so no question can be sent.
    assert_eq!(bench.port(0, "arp who-has 10.0.0.1 tell 10.0.0.9").len(), 1);
    assert_eq!(bench.released(0, "udp 10.0.0.9:5 > 192.0.2.7:9"), ["drop arena_empty"]);
    assert_eq!(bench.edge.held(), 1);
}

#[test]
fn other_stations_frames() {
    assert_eq!(only(0, "udp 10.0.0.9:1 > 192.0.2.7:2 to=02:00:00:00:01:07"), "drop not_for_us");
    assert_eq!(only(0, "udp 10.0.0.9:1 > 192.0.2.7:2 to=box1"), "drop not_for_us");
    assert_eq!(
        only(0, "arp who-has 10.0.0.1 tell 10.0.0.9 to=02:00:00:00:01:07"),
        "drop not_for_us"
    );
    assert_eq!(only(0, "udp 10.0.0.9:1 > 192.0.2.7:2 from=03:00:00:00:00:01"), "drop bad_source");
    assert_eq!(only(0, "udp 10.0.0.9:1 > 192.0.2.7:2 from=box0"), "drop bad_source");
}

#[test]
fn truncated_at_every_byte() {
    for words in [
        "udp 10.0.0.9:1 > 192.0.2.7:2",
        "tcp 10.0.0.9:1 > 192.0.2.7:2",
        "ping 10.0.0.9 > 192.0.2.7",
        "udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2",
        "udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2 more id=5",
        "arp who-has 10.0.0.1 tell 10.0.0.9",
        "ns 2001:db8:a::1 from 2001:db8:a::9",
    ] {
        let whole = frame(0, words);
        for len in 0..whole.len() {
            let effects = Bench::new().port_bytes(0, &whole[..len]);
            assert_eq!(effects.len(), 1, "{words} cut to {len}: {effects:?}");
            assert!(effects[0].starts_with("drop "), "{words} cut to {len}: {effects:?}");
        }
    }
}

#[test]
fn bad_lengths_and_versions() {
    let with = |at: usize, value: u8| {
        let mut bytes = frame(0, "udp 10.0.0.9:1 > 192.0.2.7:2");
        bytes[at] = value;
        Bench::new().port_bytes(0, &bytes)
    };
    assert_eq!(with(14, 0x44), ["drop bad_length"]);
    assert_eq!(with(17, 10), ["drop bad_length"]);
    assert_eq!(with(16, 9), ["drop truncated"]);
    assert_eq!(with(14, 0x65), ["drop bad_version"]);
    assert_eq!(with(39, 3), ["drop bad_transport"]);
}

#[test]
fn bad_checksums() {
    assert_eq!(only(0, "udp 10.0.0.9:1 > 192.0.2.7:2 badsum"), "drop bad_checksum");
    // A transport checksum is the receiver's business, and stays wrong.
    assert_eq!(
        only(0, "udp 10.0.0.9:1 > 192.0.2.7:2 badl4"),
        "forward udp 10.0.0.9:1 > 192.0.2.7:2"
    );
}

#[test]
fn land() {
    assert_eq!(only(0, "tcp 192.0.2.7:1 > 192.0.2.7:1"), "drop bad_source");
    assert_eq!(only(0, "tcp 10.0.0.1:1 > 10.0.0.1:1"), "drop bad_source");
    assert_eq!(only(0, "tcp [2001:db8:a::9]:1 > [2001:db8:a::9]:1"), "drop bad_source");
}

#[test]
fn sources_that_cannot_be() {
    for source in [
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "127.0.0.1",
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.255",
        "10.0.0.0",
        "203.0.113.255",
    ] {
        assert_eq!(
            only(0, &format!("udp {source}:1 > 192.0.2.7:2")),
            "drop bad_source",
            "{source}"
        );
    }
    for source in ["ff02::1", "::", "::1"] {
        assert_eq!(
            only(0, &format!("udp [{source}]:1 > [2001:db8:f::7]:2")),
            "drop bad_source",
            "{source}"
        );
    }
}

#[test]
fn our_own_address_as_source() {
    assert_eq!(only(0, "udp 10.0.0.1:1 > 192.0.2.7:2"), "drop bad_source");
    assert_eq!(only(1, "udp 10.0.0.1:1 > 192.0.2.7:2"), "drop bad_source");
    assert_eq!(only(0, "udp [2001:db8:b::1]:1 > [2001:db8:f::7]:2"), "drop bad_source");
}

/// RFC 3704, section 2.3. Without the check a station outside passes for one inside, and
/// gets all that the rules allow those.
#[test]
fn a_source_that_is_not_behind_the_port() {
    // A station outside uses an inside address, and the other way round.
    assert_eq!(only(1, "tcp 10.0.0.9:1 > 10.0.0.8:80"), "drop spoofed_source");
    assert_eq!(only(1, "udp 10.9.1.1:1 > 198.51.100.4:2"), "drop spoofed_source");
    assert_eq!(only(1, "udp [2001:db8:a::9]:1 > [2001:db8:a::8]:2"), "drop spoofed_source");
    assert_eq!(only(0, "udp 192.0.2.7:1 > 192.0.2.8:2"), "drop spoofed_source");
    assert_eq!(only(0, "udp [2001:db8:f::7]:1 > [2001:db8:f::8]:2"), "drop spoofed_source");
    // No route at all leads to the source.
    assert_eq!(only(0, "udp 172.16.0.9:1 > 192.0.2.7:2"), "drop spoofed_source");
    // The box itself answers neither of them, not even with an error.
    assert_eq!(only(1, "ping 10.0.0.9 > 203.0.113.1"), "drop spoofed_source");
    assert_eq!(only(1, "udp 10.0.0.9:1 > 203.0.113.1:33434"), "drop spoofed_source");
    assert_eq!(only(1, "udp 10.0.0.9:1 > 192.0.2.7:2 ttl=1"), "drop spoofed_source");
    // A fragment does not wait, either.
    assert_eq!(only(1, "udp 10.0.0.9:1 > 198.51.100.4:2 at=1480 id=5"), "drop spoofed_source");
    // Networks of the port itself, and behind its routers.
    assert_eq!(only(0, "udp 10.9.1.1:1 > 192.0.2.7:2"), "forward udp 10.9.1.1:1 > 192.0.2.7:2");
    assert_eq!(
        only(1, "udp 203.0.113.9:1 > 198.51.100.4:2"),
        "forward udp 203.0.113.9:1 > 198.51.100.4:2"
    );
}

#[test]
fn what_a_pool_or_a_service_has_is_nobody_elses() {
    for (port, words) in [
        (1, "udp 198.51.100.4:1 > 192.0.2.7:2"),
        (0, "tcp 10.0.0.100:80 > 192.0.2.7:2"),
        (1, "udp [2001:db8:a::100]:1 > [2001:db8:f::7]:2"),
    ] {
        assert_eq!(only(port, words), "drop spoofed_source");
        assert_eq!(Bench::unchecked().port(port, words), ["drop spoofed_source"]);
    }
    assert_eq!(Bench::unchecked().port(1, "udp 10.0.0.1:1 > 192.0.2.7:2"), ["drop bad_source"]);
    // With the check off, all other sources pass.
    assert_eq!(
        Bench::unchecked().port(1, "tcp 10.0.0.9:1 > 10.0.0.8:80"),
        ["forward tcp 10.0.0.9:1 > 10.0.0.8:80"]
    );
}

#[test]
fn ipv4_mapped_addresses_in_ipv6() {
    assert_eq!(only(0, "udp [::ffff:10.0.0.9]:1 > [2001:db8:f::7]:2"), "drop bad_source");
    assert_eq!(only(0, "udp [2001:db8:a::9]:1 > [::ffff:192.0.2.7]:2"), "drop bad_source");
    // An IPv4-mapped address does not get into the neighbours, either.
    assert_eq!(only(0, "ns 2001:db8:a::1 from ::ffff:10.0.0.9"), "drop bad_source");
    assert_eq!(only(0, "na ::ffff:10.0.0.9"), "drop bad_source");
}

#[test]
fn source_routes() {
    assert_eq!(only(0, "udp 10.0.0.9:1 > 192.0.2.7:2 lsrr"), "drop source_route");
    // Types 1, 5 and 6 have had a meaning, and so may any other.
    for kind in [0, 1, 2, 3, 4, 5, 6, 77, 252] {
        assert_eq!(
            only(0, &format!("udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2 rh={kind}")),
            "drop source_route"
        );
        // The box itself says that it does not know it (RFC 5095, section 3; RFC 8200,
        // section 4.4).
        assert_eq!(
            Bench::new().port(0, &format!("ping 2001:db8:a::9 > 2001:db8:a::1 rh={kind}")),
            [
                "0< box0>host9 problem code=0 at=42 2001:db8:a::1 > 2001:db8:a::9 ttl=64 about [ping 2001:db8:a::9 > 2001:db8:a::1 ttl=64]",
                "drop local"
            ]
        );
    }
    // A routing header for experiments (RFC 4727) means nothing to nodes on the way, nor
    // does an unknown one without segments left.
    for words in ["rh=253", "rh=254", "ext=43.1.0", "ext=43.77.0"] {
        let unknown = only(0, &format!("udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2 {words}"));
        assert_eq!(unknown, "forward udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2", "{words}");
    }
    for words in ["ext=43.4.0", "ext=43.5.1"] {
        assert_eq!(
            only(0, &format!("udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2 {words}")),
            "drop source_route",
            "{words}"
        );
    }
    // The rule holds for ping to the box, too.
    assert_eq!(only(0, "ping 10.0.0.9 > 10.0.0.1 lsrr"), "drop source_route");
}

#[test]
fn multicast_and_broadcast() {
    for destination in
        ["224.0.0.251", "239.1.2.3", "255.255.255.255", "10.0.0.255", "10.0.0.0", "203.0.113.255"]
    {
        assert_eq!(
            only(0, &format!("udp 10.0.0.9:1 > {destination}:2")),
            "drop multicast",
            "{destination}"
        );
    }
    assert_eq!(
        only(0, "udp [2001:db8:a::9]:1 > [ff02::fb]:2 to=33:33:00:00:00:fb"),
        "drop multicast"
    );
    // The address is one station's but the frame goes to all: dropped, even for ping.
    assert_eq!(only(0, "udp 10.0.0.9:1 > 192.0.2.7:2 to=all"), "drop multicast");
    assert_eq!(only(0, "ping 10.0.0.9 > 10.0.0.1 to=all"), "drop multicast");
    assert_eq!(only(0, "ping 10.0.0.9 > 10.0.0.255 to=all"), "drop multicast");
}

#[test]
fn link_local() {
    assert_eq!(only(0, "udp 169.254.1.1:1 > 192.0.2.7:2"), "drop link_local");
    assert_eq!(only(0, "udp 10.0.0.9:1 > 169.254.1.1:2"), "drop link_local");
    assert_eq!(only(0, "udp [fe80::9]:1 > [2001:db8:f::7]:2"), "drop link_local");
    // A packet to a pool, or to an address of the box that a chain uses, is forwarded,
    // too.
    assert_eq!(only(0, "tcp [fe80::9]:1 > [2001:db8:a::100]:80"), "drop link_local");
    assert_eq!(only(1, "tcp 169.254.1.1:1 > 203.0.113.2:80"), "drop link_local");
    // The box itself answers on the link.
    assert_eq!(
        only(0, "ping fe80::9 > 2001:db8:a::1"),
        "0< box0>host9 pong 2001:db8:a::1 > fe80::9 ttl=64"
    );
}

#[test]
fn destinations_that_are_nowhere() {
    assert_eq!(only(0, "udp 10.0.0.9:1 > 127.0.0.1:2"), "drop no_route");
    assert_eq!(only(0, "udp 10.0.0.9:1 > 0.0.0.0:2"), "drop no_route");
    assert_eq!(only(0, "udp [2001:db8:a::9]:1 > [::1]:2"), "drop no_route");
}

/// A switch port that is not set up as one of a VLAN sends priority tags (802.1Q, VLAN
/// 0): a station takes the frame as if it had none.
#[test]
fn a_priority_tag_is_taken_off() {
    let words = "udp 10.0.0.9:1 > 192.0.2.7:2";
    for vlan in [0, 0xe000, 0x1000] {
        assert_eq!(only(0, &format!("{words} vlan={vlan}")), only(0, words));
        assert_eq!(
            only(0, &format!("arp who-has 10.0.0.1 tell 10.0.0.9 vlan={vlan}")),
            "0< box0>host9 arp 10.0.0.1 is-at box0 for 10.0.0.9"
        );
    }
    let mut bench = Bench::new();
    let packet = bench.packet(&frame(0, &format!("{words} vlan=24576")));
    let forwarded =
        bench.edge.handle_ingress(0, packet, bench.now, &mut bench.out, &mut bench.pool);
    let (_, packet) = forwarded.expect("for a chain");
    assert_eq!(packet.bytes(), frame(0, words));
    assert_eq!((packet.layers.l3, packet.layers.vlan_tags, packet.meta.ingress), (14, 0, 0));
    assert_eq!(packet.meta.priority, 3 << 1, "functions can read it");
    bench.pool.put(packet);
}

/// Frames of a VLAN, and priority tags around another tag, are dropped: there is no
/// interface for them.
#[test]
fn frames_of_a_vlan_have_a_reason_of_their_own() {
    assert_eq!(only(0, "udp 10.0.0.9:1 > 192.0.2.7:2 vlan=5"), "drop unknown_vlan");
    assert_eq!(only(0, "arp who-has 10.0.0.1 tell 10.0.0.9 vlan=5"), "drop unknown_vlan");
    let plain = frame(0, "udp 10.0.0.9:1 > 192.0.2.7:2");
    let tagged =
        |tags: &[u8]| Bench::new().port_bytes(0, &[&plain[..12], tags, &plain[12..]].concat());
    assert_eq!(tagged(&[0x88, 0xa8, 0, 5]), ["drop unknown_vlan"]);
    // A service tag is no priority tag, whatever its number.
    assert_eq!(tagged(&[0x88, 0xa8, 0, 0]), ["drop unknown_vlan"]);
    assert_eq!(tagged(&[0x81, 0, 0, 0, 0x81, 0, 0, 5]), ["drop unknown_vlan"]);
    assert_eq!(tagged(&[0x81, 0, 0, 0, 0x81, 0, 0, 0]), ["drop unknown_vlan"]);
    assert_eq!(tagged(&[0x88, 0xa8, 0, 5].repeat(3)), ["drop headers_too_deep"]);
    // The frame ends inside its tag.
    assert_eq!(
        Bench::new().port_bytes(0, &[&plain[..12], &[0x81, 0, 0]].concat()),
        ["drop truncated"]
    );
    assert_eq!(
        Bench::new().port_bytes(0, &[&plain[..12], &[0x81, 0, 0, 0, 8]].concat()),
        ["drop truncated"]
    );
}

#[test]
fn unknown_ethertypes() {
    for ethertype in [[0x88, 0xcc], [0, 46], [0x89, 0x4f], [0x88, 0xb6]] {
        let mut bytes = frame(0, "udp 10.0.0.9:1 > 192.0.2.7:2");
        bytes[12..14].copy_from_slice(&ethertype);
        assert_eq!(Bench::new().port_bytes(0, &bytes), ["drop unknown_ethertype"]);
    }
}

#[test]
fn icmp_errors_that_quote_anything() {
    let mut bench = Bench::new();
    let quote = |inner: &[u8]| {
        let mut bytes = frame(1, &format!("ping 192.0.2.7 > 198.51.100.4 len={}", inner.len()));
        bytes[34] = 3;
        bytes[42..].copy_from_slice(inner);
        bytes
    };
    let inner = &frame(1, "udp 198.51.100.4:1000 > 192.0.2.7:53")[14..];
    assert_eq!(
        bench.port_bytes(1, &quote(inner)),
        ["forward udp 192.0.2.7:53 > 198.51.100.4:1000"]
    );
    // A redirect, a source quench, an error about a packet of another host than it is
    // sent to.
    for kind in [4, 5] {
        let mut bytes = quote(inner);
        bytes[34] = kind;
        assert_eq!(bench.port_bytes(1, &bytes), ["drop state_invalid"]);
    }
    assert_eq!(
        bench.port_bytes(1, &quote(&frame(1, "udp 198.51.100.5:1000 > 192.0.2.7:53")[14..])),
        ["drop state_invalid"]
    );
    assert_eq!(bench.port_bytes(1, &quote(&[])), ["drop state_invalid"]);
    assert_eq!(bench.port_bytes(1, &quote(&[0xff; 60])), ["drop state_invalid"]);
    assert_eq!(bench.port_bytes(1, &quote(&inner[..20])), ["drop state_invalid"]);
}

#[test]
fn a_port_that_is_not_there() {
    assert_eq!(
        Bench::new().port_bytes(7, &frame(0, "udp 10.0.0.9:1 > 192.0.2.7:2")),
        ["drop port_down"]
    );
}
