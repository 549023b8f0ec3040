//! Translation of packets, replies and errors; no packet leaves untranslated.

use crate::bench::Bench;
use crate::{reading, words};
use holdfast_wire::DropReason::{self, NoMapping, NotTranslatable, StateInvalid};
use serde_json::json;

fn nat() -> Bench {
    Bench::new(&[("nat", json!({ "pool": ["198.51.100.4/32"], "inside": ["10.0.0.0/8"] }))])
}

/// Opens a flow from 10.0.0.2:1000 and returns its outside port.
fn open(bench: &mut Bench, protocol: &str) -> u16 {
    let flags = if protocol == "tcp" { "SYN seq 1" } else { "len 3" };
    let (source, destination) =
        bench.passes(&format!("{protocol} 10.0.0.2:1000 > 203.0.113.10:80 {flags}"));
    assert_eq!(
        (source.ip().to_string(), destination.to_string()),
        ("198.51.100.4".to_owned(), "203.0.113.10:80".to_owned())
    );
    source.port()
}

/// A connection through the translator: in both directions every segment changes in the
/// inside end only.
#[test]
fn tcp_is_translated_both_ways() {
    let mut bench = nat();
    let port = open(&mut bench, "tcp");
    bench.becomes(
        &format!("tcp 203.0.113.10:80 > 198.51.100.4:{port} SYN ACK seq 7 ack 2 scale 3"),
        "tcp 203.0.113.10:80 > 10.0.0.2:1000 SYN ACK seq 7 ack 2 scale 3",
    );
    for len in [0, 1, 2, 1000, 1459] {
        bench.becomes(
            &format!("tcp 10.0.0.2:1000 > 203.0.113.10:80 ACK PSH seq 2 ack 8 len {len}"),
            &format!("tcp 198.51.100.4:{port} > 203.0.113.10:80 ACK PSH seq 2 ack 8 len {len}"),
        );
        bench.becomes(
            &format!("tcp 203.0.113.10:80 > 198.51.100.4:{port} ACK URG seq 8 ack 2 len {len}"),
            &format!("tcp 203.0.113.10:80 > 10.0.0.2:1000 ACK URG seq 8 ack 2 len {len}"),
        );
    }
}

/// UDP without a checksum stays without one, both ways; an empty datagram is translated
/// like any other.
#[test]
fn udp_without_a_checksum_stays_without() {
    let mut bench = nat();
    let port = open(&mut bench, "udp");
    for rest in ["len 8 nosum", "len 0 nosum", "len 0", "len 7"] {
        bench.becomes(
            &format!("udp 10.0.0.2:1000 > 203.0.113.10:80 {rest}"),
            &format!("udp 198.51.100.4:{port} > 203.0.113.10:80 {rest}"),
        );
        bench.becomes(
            &format!("udp 203.0.113.10:80 > 198.51.100.4:{port} {rest}"),
            &format!("udp 203.0.113.10:80 > 10.0.0.2:1000 {rest}"),
        );
    }
}

/// Over all values of two bytes of data, no datagram with a checksum leaves without one:
/// a sum of 0 is sent as ffff.
#[test]
pub(crate) fn a_udp_checksum_never_turns_into_none() {
    let mut bench = nat();
    let mut frame = words::frame("udp 10.0.0.2:1000 > 203.0.113.10:80 len 2");
    let mut all_ones = 0;
    for data in 0..=u16::MAX {
        frame[42..44].copy_from_slice(&data.to_be_bytes());
        // The checksum without the data is a constant; etherparse computes the right one
        // for each value.
        let header = etherparse::UdpHeader::with_ipv4_checksum(
            1000,
            80,
            &etherparse::Ipv4Header::new(
                10,
                64,
                etherparse::IpNumber::UDP,
                [10, 0, 0, 2],
                [203, 0, 113, 10],
            )
            .expect("fits"),
            &data.to_be_bytes(),
        );
        frame[40..42].copy_from_slice(&header.expect("fits").checksum.to_be_bytes());
        let out = bench.send_frame(&frame).expect("translated");
        assert_ne!(reading::udp_checksum(&out), 0, "data {data:04x}");
        all_ones += u32::from(reading::udp_checksum(&out) == 0xffff);
    }
    assert!(all_ones > 0, "the case that this test is about has occurred");
}

/// A packet that comes with a wrong checksum leaves with a wrong one: the translator
/// hides no damage.
#[test]
fn damage_stays_visible() {
    let mut bench = nat();
    open(&mut bench, "tcp");
    let mut frame = words::frame("tcp 10.0.0.2:1000 > 203.0.113.10:80 ACK seq 2 ack 8 len 40");
    let last = frame.len() - 1;
    frame[last] ^= 0x10;
    let out = bench.send_unchecked(&frame).expect("translated");
    assert!(reading::check(&out).is_err_and(|wrong| wrong.starts_with("TCP")));
}

/// Ping from inside: the identifier is translated and comes back; the same identifier
/// from two hosts does not collide.
#[test]
fn echo_is_translated_with_its_identifier() {
    let mut bench = nat();
    let first = bench.passes("icmp 10.0.0.2 > 203.0.113.10 echo id 7 seq 1 len 56").0;
    let second = bench.passes("icmp 10.0.0.3 > 203.0.113.10 echo id 7 seq 1 len 56").0;
    assert_eq!(first.ip(), second.ip());
    assert_ne!(first.port(), second.port());
    for (host, id) in [("10.0.0.2", first.port()), ("10.0.0.3", second.port())] {
        bench.becomes(
            &format!("icmp 203.0.113.10 > 198.51.100.4 reply id {id} seq 1 len 56"),
            &format!("icmp 203.0.113.10 > {host} reply id 7 seq 1 len 56"),
        );
        bench.becomes(
            &format!("icmp {host} > 203.0.113.10 echo id 7 seq 2 len 1"),
            &format!("icmp 198.51.100.4 > 203.0.113.10 echo id {id} seq 2 len 1"),
        );
    }
}

/// After a ping from inside, only its reply comes in with its outside identifier (RFC
/// 5508, REQ-1).
#[test]
pub(crate) fn no_other_message_is_translated_as_the_reply() {
    let mut bench = nat();
    let id = bench.passes("icmp 10.0.0.2 > 203.0.113.10 echo id 7 seq 1 len 56").0.port();
    for kind in 1..=255 {
        let reason = if [3, 4, 5, 11, 12].contains(&kind) { StateInvalid } else { NoMapping };
        bench.drops(
            &format!("icmp 203.0.113.10 > 198.51.100.4 type {kind} id {id} seq 1 len 56"),
            reason,
        );
    }
    assert_eq!(bench.flows(), 1);
    bench.becomes(
        &format!("icmp 203.0.113.10 > 198.51.100.4 reply id {id} seq 1 len 56"),
        "icmp 203.0.113.10 > 10.0.0.2 reply id 7 seq 1 len 56",
    );
}

/// A router outside sends an error about a packet of the flow: the error reaches the
/// inside host, which finds its own packet quoted, whole or cut.
#[test]
pub(crate) fn errors_from_outside_are_translated_with_what_they_quote() {
    for protocol in ["tcp", "udp"] {
        for (kind, cut) in [
            ("exceeded", "cut 28"),
            ("too-big", "cut 40"),
            ("unreachable", "cut 31"),
            ("too-big", ""),
        ] {
            let mut bench = nat();
            let port = open(&mut bench, protocol);
            let quoted = |source: String| {
                format!("quoting {cut} {protocol} {source} > 203.0.113.10:80 len 100")
            };
            bench.becomes(
                &format!(
                    "icmp 192.0.2.9 > 198.51.100.4 {kind} {}",
                    quoted(format!("198.51.100.4:{port}"))
                ),
                &format!("icmp 192.0.2.9 > 10.0.0.2 {kind} {}", quoted("10.0.0.2:1000".to_owned())),
            );
        }
    }
}

/// An inside host sends an error about a reply: outside, the error comes from the
/// translator, and quotes the reply as it was sent.
#[test]
pub(crate) fn errors_from_inside_are_translated_with_what_they_quote() {
    let mut bench = nat();
    let port = open(&mut bench, "udp");
    for cut in ["cut 28", ""] {
        bench.becomes(
            &format!("icmp 10.0.0.2 > 203.0.113.10 unreachable quoting {cut} udp 203.0.113.10:80 > 10.0.0.2:1000 len 9"),
            &format!(
                "icmp 198.51.100.4 > 203.0.113.10 unreachable quoting {cut} udp 203.0.113.10:80 > 198.51.100.4:{port} len 9"
            ),
        );
        // A router on the inside path must not be visible outside either.
        bench.becomes(
            &format!("icmp 10.9.9.9 > 203.0.113.10 unreachable quoting {cut} udp 203.0.113.10:80 > 10.0.0.2:1000 len 9"),
            &format!(
                "icmp 198.51.100.4 > 203.0.113.10 unreachable quoting {cut} udp 203.0.113.10:80 > 198.51.100.4:{port} len 9"
            ),
        );
    }
}

/// A quoted datagram without a checksum, and a quoted ping, are translated back.
#[test]
fn quoted_pings_and_datagrams_without_a_checksum_are_translated() {
    let mut bench = nat();
    let port = open(&mut bench, "udp");
    bench.becomes(
        &format!("icmp 192.0.2.9 > 198.51.100.4 exceeded quoting udp 198.51.100.4:{port} > 203.0.113.10:80 len 9 nosum"),
        "icmp 192.0.2.9 > 10.0.0.2 exceeded quoting udp 10.0.0.2:1000 > 203.0.113.10:80 len 9 nosum",
    );
    let id = bench.passes("icmp 10.0.0.2 > 203.0.113.10 echo id 7").0.port();
    for cut in ["cut 28", ""] {
        bench.becomes(
            &format!("icmp 192.0.2.9 > 198.51.100.4 exceeded quoting {cut} icmp 198.51.100.4 > 203.0.113.10 echo id {id} len 20"),
            &format!("icmp 192.0.2.9 > 10.0.0.2 exceeded quoting {cut} icmp 10.0.0.2 > 203.0.113.10 echo id 7 len 20"),
        );
    }
}

/// The transport header of a quoted packet lies behind its IP options (RFC 5508, REQ-3b).
/// Data behind the quoted packet, such as the extensions of RFC 4884, are no part of it
/// (REQ-3d).
#[test]
pub(crate) fn options_and_extensions_in_errors_are_no_ports() {
    let mut bench = nat();
    let port = open(&mut bench, "udp");
    for around in
        ["options 4", "options 40", "behind 12", "options 8 behind 90", "options 8 cut 36"]
    {
        let quoted =
            |source: String| format!("quoting {around} udp {source} > 203.0.113.10:80 len 60");
        bench.becomes(
            &format!(
                "icmp 192.0.2.9 > 198.51.100.4 exceeded {}",
                quoted(format!("198.51.100.4:{port}"))
            ),
            &format!("icmp 192.0.2.9 > 10.0.0.2 exceeded {}", quoted("10.0.0.2:1000".to_owned())),
        );
    }
}

/// An error that quotes a packet with a source route is translated in neither direction:
/// it would reveal the other side's addresses (RFC 5508, section 7.3).
#[test]
pub(crate) fn errors_about_source_routes_are_dropped() {
    let mut bench = nat();
    let port = open(&mut bench, "udp");
    for quoted in ["routed", "routed cut 36"] {
        bench.drops(
            &format!("icmp 10.0.0.2 > 203.0.113.10 unreachable quoting {quoted} udp 203.0.113.10:80 > 10.0.0.2:1000 len 9"),
            NotTranslatable,
        );
        bench.drops(
            &format!("icmp 192.0.2.9 > 198.51.100.4 exceeded quoting {quoted} udp 198.51.100.4:{port} > 203.0.113.10:80 len 9"),
            NotTranslatable,
        );
    }
}

/// A damaged error is dropped, and so is one that quotes a damaged IP header (RFC 5508,
/// REQ-3 and REQ-3a), from either side. The checksum of the quoted transport is not
/// checked (REQ-3c).
#[test]
pub(crate) fn damaged_errors_are_dropped() {
    let mut bench = nat();
    let port = open(&mut bench, "udp");
    let (icmp, quoted) = (34, 42);
    let errors = [
        format!("icmp 192.0.2.9 > 198.51.100.4 unreachable quoting udp 198.51.100.4:{port} > 203.0.113.10:80 len 9"),
        "icmp 10.0.0.2 > 203.0.113.10 unreachable quoting udp 203.0.113.10:80 > 10.0.0.2:1000 len 9".to_owned(),
    ];
    for error in errors {
        let frame = words::frame(&error);
        bench.send_frame(&frame).expect("it is whole");
        for at in icmp..frame.len() {
            let mut damaged = frame.clone();
            damaged[at] ^= 0x10;
            assert!(bench.send_unchecked(&damaged).is_err(), "byte {at} of `{error}`");
        }
        // The quoted packet may have been damaged before: the ICMP message itself is
        // intact.
        let with_quote_damaged_at = |at: usize| {
            let mut frame = frame.clone();
            frame[at] ^= 0x10;
            frame[icmp + 2..icmp + 4].fill(0);
            let sum = holdfast_wire::checksum::checksum(&frame[icmp..]);
            frame[icmp + 2..icmp + 4].copy_from_slice(&sum.to_be_bytes());
            frame
        };
        for at in quoted..quoted + 20 {
            assert!(
                bench.send_unchecked(&with_quote_damaged_at(at)).is_err(),
                "quoted byte {} of `{error}`",
                at - quoted
            );
        }
        for at in quoted + 26..frame.len() {
            assert!(
                bench.send_unchecked(&with_quote_damaged_at(at)).is_ok(),
                "quoted byte {} of `{error}`",
                at - quoted
            );
        }
    }
    assert_eq!(bench.flows(), 1);
}

/// No error, of any kind and from either side, ends a mapping (RFC 4787, REQ-12; RFC
/// 5382, REQ-10) or prolongs it (RFC 5508, REQ-6): UDP, TCP, ping.
#[test]
pub(crate) fn errors_neither_end_nor_keep_a_mapping() {
    let errors = ["unreachable", "exceeded", "too-big mtu 1280"];
    let routers = ["192.0.2.9", "203.0.113.10"];
    let mut bench = nat();
    let complain = |bench: &mut Bench, outside: &str, quoted: &str, answered: &str| {
        for kind in errors {
            for router in routers {
                bench.passes(&format!("icmp {router} > {outside} {kind} quoting {quoted}"));
            }
            bench.passes(&format!("icmp 10.0.0.2 > 203.0.113.10 {kind} quoting {answered}"));
        }
    };
    let port = open(&mut bench, "udp");
    let (sent, answer) = (
        format!("udp 198.51.100.4:{port} > 203.0.113.10:80 len 9"),
        "udp 203.0.113.10:80 > 10.0.0.2:1000 len 9",
    );
    bench.passes(&format!("udp 203.0.113.10:80 > 198.51.100.4:{port} len 9"));
    complain(&mut bench, "198.51.100.4", &sent, answer);
    bench.wait(299);
    assert_eq!(bench.flows(), 1, "errors end nothing");
    complain(&mut bench, "198.51.100.4", &sent, answer);
    bench.becomes(&format!("udp 203.0.113.10:80 > 198.51.100.4:{port} len 9"), answer);
    bench.wait(299);
    complain(&mut bench, "198.51.100.4", &sent, answer);
    bench.wait(2);
    assert_eq!(bench.flows(), 0, "errors keep nothing");

    let port = open(&mut bench, "tcp");
    bench.passes(&format!("tcp 203.0.113.10:80 > 198.51.100.4:{port} SYN ACK seq 7 ack 2"));
    bench.passes("tcp 10.0.0.2:1000 > 203.0.113.10:80 ACK seq 2 ack 8");
    let sent = format!("cut 28 tcp 198.51.100.4:{port} > 203.0.113.10:80 seq 2");
    complain(&mut bench, "198.51.100.4", &sent, "cut 28 tcp 203.0.113.10:80 > 10.0.0.2:1000 seq 8");
    assert_eq!(bench.state(), "established");
    bench.wait(7439);
    assert_eq!(bench.flows(), 1);
    complain(&mut bench, "198.51.100.4", &sent, "cut 28 tcp 203.0.113.10:80 > 10.0.0.2:1000 seq 8");
    bench.wait(2);
    assert_eq!(bench.flows(), 0);

    let id = bench.passes("icmp 10.0.0.2 > 203.0.113.10 echo id 7").0.port();
    let sent = format!("icmp 198.51.100.4 > 203.0.113.10 echo id {id}");
    complain(&mut bench, "198.51.100.4", &sent, "icmp 203.0.113.10 > 10.0.0.2 reply id 7");
    bench.wait(59);
    bench.becomes(
        &format!("icmp 203.0.113.10 > 198.51.100.4 reply id {id}"),
        "icmp 203.0.113.10 > 10.0.0.2 reply id 7",
    );
    bench.wait(59);
    complain(&mut bench, "198.51.100.4", &sent, "icmp 203.0.113.10 > 10.0.0.2 reply id 7");
    bench.wait(2);
    assert_eq!(bench.flows(), 0);
}

/// Packets from inside keep a mapping (RFC 4787, REQ-6), and so do its peer's (REQ-6a);
/// other hosts' packets do not.
#[test]
pub(crate) fn either_side_keeps_a_mapping() {
    let mut bench = nat();
    let port = open(&mut bench, "udp");
    let (there, back) = (
        "udp 10.0.0.2:1000 > 203.0.113.10:80".to_owned(),
        format!("udp 203.0.113.10:80 > 198.51.100.4:{port}"),
    );
    for packet in [&back, &there, &there, &back, &back, &there] {
        bench.wait(299);
        bench.passes(packet);
    }
    bench.wait(299);
    bench.drops(&format!("udp 203.0.113.11:80 > 198.51.100.4:{port}"), NoMapping);
    bench.wait(2);
    assert_eq!(bench.flows(), 0);
}

/// An unsolicited SYN is not answered, at any later time either (RFC 5382, REQ-4). If the
/// inside host connects to the same peer, the two crossing SYNs make a connection
/// (REQ-2a).
#[test]
fn syns_that_cross_make_a_connection() {
    let mut bench = nat();
    bench.drops("tcp 203.0.113.10:80 > 198.51.100.4:1024 SYN seq 700", NoMapping);
    let port = open(&mut bench, "tcp");
    let outside = format!("198.51.100.4:{port}");
    for segment in ["SYN seq 700", "SYN ACK seq 700 ack 2"] {
        bench.becomes(
            &format!("tcp 203.0.113.10:80 > {outside} {segment}"),
            &format!("tcp 203.0.113.10:80 > 10.0.0.2:1000 {segment}"),
        );
    }
    for segment in ["SYN ACK seq 1 ack 701", "ACK seq 2 ack 701 len 100"] {
        bench.becomes(
            &format!("tcp 10.0.0.2:1000 > 203.0.113.10:80 {segment}"),
            &format!("tcp {outside} > 203.0.113.10:80 {segment}"),
        );
    }
    bench.passes(&format!("tcp 203.0.113.10:80 > {outside} ACK seq 701 ack 102"));
    assert_eq!(bench.state(), "established");
}

/// Errors that quote no flow of the translator are dropped, in either direction.
#[test]
fn errors_about_nothing_known_are_dropped() {
    let mut bench = nat();
    let port = open(&mut bench, "udp");
    let other = port.wrapping_add(1);
    for quoted in [
        format!("udp 198.51.100.4:{other} > 203.0.113.10:80"),
        format!("tcp 198.51.100.4:{port} > 203.0.113.10:80"),
        format!("udp 203.0.113.10:80 > 198.51.100.4:{port}"),
        "garbage len 64".to_owned(),
        "garbage len 3".to_owned(),
        format!("cut 22 udp 198.51.100.4:{port} > 203.0.113.10:80"),
    ] {
        bench.drops(
            &format!("icmp 192.0.2.9 > 198.51.100.4 unreachable quoting {quoted}"),
            StateInvalid,
        );
    }
    for quoted in [
        "udp 203.0.113.10:80 > 10.0.0.2:1001",
        "udp 10.0.0.2:1000 > 203.0.113.10:80",
        "garbage len 40",
    ] {
        bench.drops(
            &format!("icmp 10.0.0.2 > 203.0.113.10 unreachable quoting {quoted}"),
            StateInvalid,
        );
    }
}

/// An error that quotes a flow's packet, but is not addressed to the flow's outside
/// address, is not delivered. A redirect or a source quench is not delivered either, nor
/// an MTU that is too small, whose receiver could not tell that it was not meant. Inside,
/// an error about a reply goes to the reply's sender.
#[test]
pub(crate) fn errors_that_are_not_the_flows_are_not_delivered() {
    let mut bench =
        Bench::new(&[("nat", json!({ "pool": ["198.51.100.4/31"], "inside": ["10.0.0.0/8"] }))]);
    let outside = bench.passes("tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN seq 1").0;
    let other =
        if outside.ip().to_string() == "198.51.100.4" { "198.51.100.5" } else { "198.51.100.4" };
    let quoted = format!("quoting cut 28 tcp {outside} > 203.0.113.10:80 seq 1");
    for to in [other, "10.0.0.2", "10.0.0.9", "203.0.113.99", "192.0.2.1"] {
        bench.drops(&format!("icmp 192.0.2.9 > {to} unreachable {quoted}"), StateInvalid);
    }
    for kind in ["redirect", "quench", "too-big mtu 67", "too-big mtu 1"] {
        bench.drops(&format!("icmp 192.0.2.9 > {} {kind} {quoted}", outside.ip()), StateInvalid);
    }
    bench.drops(
        "icmp 10.0.0.2 > 203.0.113.11 unreachable quoting tcp 203.0.113.10:80 > 10.0.0.2:1000",
        StateInvalid,
    );
    for mtu in [0, 68] {
        bench.becomes(
            &format!("icmp 192.0.2.9 > {} too-big mtu {mtu} {quoted}", outside.ip()),
            &format!("icmp 192.0.2.9 > 10.0.0.2 too-big mtu {mtu} quoting cut 28 tcp 10.0.0.2:1000 > 203.0.113.10:80 seq 1"),
        );
    }
    assert_eq!(bench.flows(), 1);
}

/// A packet that the translator does not know stays inside: other protocols, IPv6,
/// foreign sources, replies without a request, strange ICMP.
#[test]
pub(crate) fn nothing_leaves_untranslated() {
    let mut bench = nat();
    let drops: &[(&str, DropReason)] = &[
        ("gre 10.0.0.2 > 203.0.113.10", NotTranslatable),
        ("icmp 10.0.0.2 > 203.0.113.10 reply id 3", NotTranslatable),
        ("icmp 10.0.0.2 > 203.0.113.10 timestamp id 3", NotTranslatable),
        ("tcp [2001:db8::2]:1000 > [2001:db8:1::1]:80 SYN", NotTranslatable),
        ("icmp 2001:db8::2 > 2001:db8:1::1 echo id 3", NotTranslatable),
        ("tcp 11.0.0.2:1000 > 203.0.113.10:80 SYN", NoMapping),
        ("tcp 203.0.113.10:80 > 198.51.100.4:1024 SYN", NoMapping),
        ("udp 198.51.100.4:1024 > 203.0.113.10:80", NoMapping),
        ("udp 198.51.100.4:1024 > 198.51.100.4:1024", NoMapping),
        ("udp 10.0.0.2:1000 > 198.51.100.4:1024", NoMapping),
        ("icmp 203.0.113.10 > 198.51.100.4 echo id 3", NoMapping),
    ];
    for (packet, reason) in drops {
        bench.drops(packet, *reason);
    }
    assert_eq!(bench.flows(), 0);
}

/// Only the peer address and port that a flow was opened to may answer it (address and
/// port dependent filtering).
#[test]
fn strangers_cannot_use_a_mapping() {
    let mut bench = nat();
    let port = open(&mut bench, "udp");
    bench.drops(&format!("udp 203.0.113.11:80 > 198.51.100.4:{port}"), NoMapping);
    bench.drops(&format!("udp 203.0.113.10:81 > 198.51.100.4:{port}"), NoMapping);
    bench.drops(&format!("tcp 203.0.113.10:80 > 198.51.100.4:{port} SYN"), NoMapping);
}

/// Without `inside`, private and shared addresses are inside (RFC 1918, RFC 6598): no
/// other source opens a mapping, at any port.
#[test]
pub(crate) fn without_inside_private_and_shared_sources_are_translated() {
    let mut bench = Bench::new(&[("nat", json!({ "pool": ["198.51.100.4/31"] }))]);
    let ends = [
        "10.0.0.0",
        "10.255.255.255",
        "172.16.0.0",
        "172.31.255.255",
        "192.168.0.0",
        "192.168.255.255",
        "100.64.0.0",
        "100.127.255.255",
    ];
    for host in ends {
        let source = bench.passes(&format!("udp {host}:5 > 203.0.113.10:53")).0;
        assert!(["198.51.100.4", "198.51.100.5"].contains(&source.ip().to_string().as_str()));
    }
    let flows = bench.flows();
    let others = [
        "9.255.255.255",
        "11.0.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.167.255.255",
        "192.169.0.0",
        "100.63.255.255",
        "100.128.0.0",
    ];
    for host in others.into_iter().chain(["203.0.113.11", "198.51.100.5"]) {
        bench.drops(&format!("udp {host}:5 > 203.0.113.10:53"), NoMapping);
        bench.drops(&format!("tcp {host}:5 > 10.0.0.2:22 SYN"), NoMapping);
        bench.drops(&format!("icmp {host} > 203.0.113.10 echo id 5"), NoMapping);
    }
    assert_eq!(bench.flows(), flows);
}

/// A pool of private addresses, inside or not as the operator says: its own addresses are
/// never translated again.
#[test]
fn an_outside_address_is_never_inside() {
    for config in [
        json!({ "pool": ["10.9.0.4/32"] }),
        json!({ "pool": ["10.9.0.4/32"], "inside": ["10.0.0.0/8"] }),
    ] {
        let mut bench = Bench::new(&[("nat", config)]);
        assert_eq!(bench.passes("udp 10.0.0.2:5 > 203.0.113.10:53").0.ip().to_string(), "10.9.0.4");
        bench.drops("udp 10.9.0.4:5 > 203.0.113.10:53", NoMapping);
    }
}

/// Fragments after the first have no ports: only their address is translated, both ways.
#[test]
fn later_fragments_get_the_address_alone() {
    let mut bench = nat();
    let port = open(&mut bench, "udp");
    bench.becomes(
        "udp 10.0.0.2:1000 > 203.0.113.10:80 len 24 more",
        &format!("udp 198.51.100.4:{port} > 203.0.113.10:80 len 24 more"),
    );
    bench.becomes(
        "fragment 10.0.0.2 > 203.0.113.10 udp offset 32 len 11",
        "fragment 198.51.100.4 > 203.0.113.10 udp offset 32 len 11",
    );
    bench.becomes(
        &format!("udp 203.0.113.10:80 > 198.51.100.4:{port} len 24 more"),
        "udp 203.0.113.10:80 > 10.0.0.2:1000 len 24 more",
    );
    bench.becomes(
        "fragment 203.0.113.10 > 198.51.100.4 udp offset 32 len 1",
        "fragment 203.0.113.10 > 10.0.0.2 udp offset 32 len 1",
    );
}

/// The first fragment got no port. A later one, which has no header, must not open a flow
/// from the bytes at the header's place.
#[test]
pub(crate) fn a_later_fragment_opens_no_mapping() {
    let mut bench =
        Bench::new(&[("nat", json!({ "pool": ["198.51.100.4/32"], "ports": "1024-1279" }))]);
    for port in 0..256 {
        bench.passes(&format!("udp 10.0.0.2:{} > 203.0.113.10:80", 2000 + port));
    }
    bench.drops("udp 10.0.0.2:1000 > 203.0.113.10:80 len 24 more", DropReason::PoolEmpty);
    bench.wait(301);
    assert_eq!(bench.flows(), 0);
    bench.drops("fragment 10.0.0.2 > 203.0.113.10 udp offset 32 len 1", NotTranslatable);
    bench.drops("fragment 10.0.0.2 > 203.0.113.10 udp offset 40 len 16", NotTranslatable);
}
