//! The QoS marker: a flow's class, the marks of its packets, and that no other byte of
//! them changes.

use crate::bench::Bench;
use crate::words;
use holdfast_functions::catalog;
use holdfast_nf::ConfigError;
use holdfast_wire::DropReason::{PolicyDenied, QuotaExceeded};
use holdfast_wire::checksum::checksum;
use holdfast_wire::zone::Zones;
use holdfast_wire::{Layers, Network};
use proptest::prelude::*;
use serde_json::{Value, json};

/// DSCP 46 and 1, 26 and 10, in the byte that they share with ECN.
const EF: u8 = 46 << 2;
const LE: u8 = 1 << 2;
const AF31: u8 = 26 << 2;
const AF11: u8 = 10 << 2;

fn marker(config: Value) -> Bench {
    Bench::new(&[("qos_marker", config)])
}

/// Every flow in one class.
fn one(class: Value) -> Bench {
    marker(json!({ "classes": { "one": class }, "default": "one" }))
}

/// The first rule that matches decides, then the default. Every packet of the flow is
/// marked, in both directions, IPv4 and IPv6.
#[test]
fn a_flows_class_is_that_of_the_first_rule_that_matches() {
    let mut bench = marker(json!({
        "classes": { "voice": { "dscp": "ef" }, "bulk": { "dscp": 1 }, "rest": { "dscp": "AF31" } },
        "rules": [
            "bulk udp from 10.0.0.66 to any",
            "voice udp from any to any port 5060,16384-32767",
            "  bulk   tcp from any to any port 873",
            "bulk icmp",
        ],
        "default": "rest",
    }));
    for (packet, reply, tos) in [
        (
            "udp 10.0.0.2:5 > 203.0.113.10:5060 len 9",
            "udp 203.0.113.10:5060 > 10.0.0.2:5 len 1",
            EF,
        ),
        ("udp 10.0.0.66:5 > 203.0.113.10:5060", "udp 203.0.113.10:5060 > 10.0.0.66:5 nosum", LE),
        (
            "udp [2001:db8::1]:9 > [2001:db8::2]:20000",
            "udp [2001:db8::2]:20000 > [2001:db8::1]:9 len 700",
            EF,
        ),
        ("tcp 10.0.0.2:5 > 203.0.113.10:873 SYN", "tcp 203.0.113.10:873 > 10.0.0.2:5 SYN ACK", LE),
        ("icmp 10.0.0.2 > 203.0.113.10 echo id 4", "icmp 203.0.113.10 > 10.0.0.2 reply id 4", LE),
        (
            "icmp 2001:db8::1 > 2001:db8::2 echo id 4",
            "icmp 2001:db8::2 > 2001:db8::1 reply id 4",
            LE,
        ),
        ("gre 10.0.0.2 > 203.0.113.10", "gre 203.0.113.10 > 10.0.0.2", AF31),
    ] {
        bench.becomes(packet, &format!("{packet} tos {tos}"));
        bench.becomes(reply, &format!("{reply} tos {tos}"));
    }
}

/// Without a default, flows that no rule matches pass unchanged; so do flows in a class
/// without marks.
#[test]
fn what_is_in_no_class_keeps_its_mark() {
    let mut bench = marker(json!({
        "classes": { "voice": { "dscp": "ef", "pcp": 5 }, "as-it-is": {} },
        "rules": ["as-it-is udp from 10.0.0.9", "voice udp to any port 5060"],
    }));
    bench.unchanged("udp 10.0.0.2:5 > 203.0.113.10:53 tos 171");
    bench.unchanged("udp 203.0.113.10:53 > 10.0.0.2:5 tos 3");
    bench.unchanged("udp 10.0.0.9:5 > 203.0.113.10:5060 tos 171");
    bench.unchanged("tcp [2001:db8::1]:9 > [2001:db8::2]:5060 SYN tos 255");
}

/// Any incoming DSCP is replaced, and the two ECN bits beside it stay. IPv6's flow label
/// stays too.
#[test]
fn ecn_is_not_part_of_the_mark() {
    let mut bench = one(json!({ "dscp": "ef" }));
    for tos in 0..=255u8 {
        for packet in
            ["tcp 10.0.0.2:1 > 203.0.113.10:80 SYN", "tcp [2001:db8::1]:1 > [2001:db8::2]:80 SYN"]
        {
            bench
                .becomes(&format!("{packet} tos {tos}"), &format!("{packet} tos {}", EF | tos & 3));
        }
    }
    let mut labelled = words::frame("udp [2001:db8::1]:1 > [2001:db8::2]:80");
    labelled[14..18].copy_from_slice(&[0x6f, 0xcf, 0xff, 0xff]);
    let out = bench.send_frame(&labelled).expect("passes");
    assert_eq!((&out[14..18], &out[18..]), (&[0x6b, 0x8f, 0xff, 0xff][..], &labelled[18..]));
}

/// A direction's marks count instead of the class's; missing ones are the class's.
#[test]
fn each_direction_may_have_marks_of_its_own() {
    let mut bench = marker(json!({
        "classes": {
            "up": { "forward": { "dscp": "ef", "pcp": 5 } },
            "mixed": { "dscp": "af31", "pcp": 3, "forward": { "pcp": 6 }, "reverse": { "dscp": 0 } },
        },
        "rules": ["up udp", "mixed tcp"],
    }));
    let (there, back) = ("udp 10.0.0.2:5 > 203.0.113.10:53", "udp 203.0.113.10:53 > 10.0.0.2:5");
    bench.becomes(there, &format!("{there} tos {EF} tag 40960"));
    bench.unchanged(&format!("{back} tos 72"));
    let (there, back) =
        ("tcp 10.0.0.2:5 > 203.0.113.10:53 SYN", "tcp 203.0.113.10:53 > 10.0.0.2:5 SYN ACK");
    bench.becomes(there, &format!("{there} tos {AF31} tag 49152"));
    bench.becomes(&format!("{back} tos 73"), &format!("{back} tos 1 tag 24576"));
}

/// A frame without a tag gets one with VLAN 0. In an existing tag, the outermost, only
/// the priority changes: VLAN, drop eligibility and EtherType stay.
#[test]
fn a_tag_has_the_priority_and_no_vlan() {
    for pcp in 0..8u16 {
        let mut bench = one(json!({ "pcp": pcp }));
        for packet in [
            "udp 10.0.0.2:1 > 203.0.113.10:80 len 1472 tos 42",
            "tcp [2001:db8::1]:1 > [2001:db8::2]:80 SYN",
        ] {
            bench.becomes(packet, &format!("{packet} tag {}", pcp << 13));
            for tag in [0u16, 5, 0xfff, 0x1005, 0xffff, 0xe000] {
                bench.becomes(
                    &format!("{packet} tag {tag}"),
                    &format!("{packet} tag {}", pcp << 13 | tag & 0x1fff),
                );
            }
        }
        let plain = words::frame("udp 10.0.0.2:1 > 203.0.113.10:80");
        let double = |outer: [u8; 2]| {
            [&plain[..12], &[0x88, 0xa8], &outer, &[0x81, 0, 0x20, 7], &plain[12..]].concat()
        };
        let out = bench.send_frame(&double([0xf0, 9])).expect("passes");
        assert_eq!(out, double([(pcp << 5) as u8 | 0x10, 9]));
    }
}

/// Two markers in one chain: the second decides the marks, and there is one tag.
#[test]
fn a_second_marker_rewrites_the_tag() {
    let class = |pcp: u8, dscp: &str| json!({ "classes": { "c": { "pcp": pcp, "dscp": dscp } }, "default": "c" });
    let mut bench = Bench::new(&[("qos_marker", class(1, "le")), ("qos_marker", class(6, "ef"))]);
    let (there, back) = ("udp 10.0.0.2:5 > 203.0.113.10:53", "udp 203.0.113.10:53 > 10.0.0.2:5");
    bench.becomes(there, &format!("{there} tos {EF} tag 49152"));
    bench.becomes(back, &format!("{back} tos {LE} tag 8192"));
}

/// Fragments take the mark of their flow: the first one, and later ones, which have no
/// ports.
#[test]
fn fragments_are_marked_as_their_flow() {
    let mut bench = marker(
        json!({ "classes": { "voice": { "dscp": "ef", "pcp": 5 } }, "rules": ["voice udp to any port 5060"] }),
    );
    for (packet, later) in [
        (
            "udp 10.0.0.2:1 > 203.0.113.10:5060 len 16 more",
            "fragment 10.0.0.2 > 203.0.113.10 udp offset 24 len 8 more",
        ),
        (
            "udp [2001:db8::1]:1 > [2001:db8::2]:5060 len 16 more",
            "fragment 2001:db8::1 > 2001:db8::2 udp offset 24 len 3",
        ),
    ] {
        for packet in [packet, later] {
            bench.becomes(packet, &format!("{packet} tos {EF} tag 40960"));
        }
    }
}

/// An ICMP error travels with its flow's replies and is marked like them; its quoted
/// packet stays as it was sent.
#[test]
fn errors_are_marked_as_their_flow() {
    let mut bench = one(json!({ "dscp": "ef", "reverse": { "dscp": "af11" } }));
    bench.passes("udp 10.0.0.2:1000 > 203.0.113.10:53");
    for cut in ["cut 28", "cut 31", ""] {
        let error = format!(
            "icmp 192.0.2.9 > 10.0.0.2 unreachable quoting {cut} udp 10.0.0.2:1000 > 203.0.113.10:53 len 4"
        );
        bench.becomes(&format!("tos 192 {error}"), &format!("tos {AF11} {error}"));
    }
}

/// IPv4 options and IPv6 extension headers, an authentication header and an unknown
/// protocol among them, do not matter.
#[test]
fn what_stands_between_the_headers_does_not_matter() {
    let mut bench = one(json!({ "dscp": "ef", "pcp": 7 }));
    let inner = words::frame("udp [2001:db8::1]:1 > [2001:db8::2]:80 len 30");
    for extensions in [
        &[(0u8, vec![17u8, 0, 1, 4, 0, 0, 0, 0])][..],
        &[
            (0, vec![60, 0, 1, 4, 0, 0, 0, 0]),
            (60, vec![17, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ],
        &[(43, vec![17, 2, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])],
        &[(51, vec![17, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])],
        &[(44, vec![17, 0, 0, 0, 0, 0, 0, 9])],
        &[(253, Vec::new())],
    ] {
        let mut frame = inner.clone();
        frame[20] = extensions[0].0;
        let headers: Vec<u8> = extensions.iter().flat_map(|(_, header)| header.clone()).collect();
        let payload = u16::from_be_bytes([frame[18], frame[19]]) + headers.len() as u16;
        frame[18..20].copy_from_slice(&payload.to_be_bytes());
        frame.splice(54..54, headers);
        let out = bench.send_unchecked(&frame).expect("passes");
        assert_eq!(out[..20], [&frame[..12], &[0x81, 0, 0xe0, 0, 0x86, 0xdd, 0x6b, 0x80]].concat());
        assert_eq!(out[20..], frame[16..]);
    }
    let mut options = words::frame("udp 10.0.0.2:1 > 203.0.113.10:80 len 30");
    options[14] = 0x47;
    let total = u16::from_be_bytes([options[16], options[17]]) + 8;
    options[16..18].copy_from_slice(&total.to_be_bytes());
    options.splice(34..34, [7, 7, 4, 0, 0, 0, 0, 0]);
    options[24..26].fill(0);
    let sum = checksum(&options[14..42]);
    options[24..26].copy_from_slice(&sum.to_be_bytes());
    let out = bench.send_frame(&options).expect("passes");
    assert_eq!((out[19], checksum(&out[18..46]), &out[46..]), (EF, 0, &options[42..]));
}

/// Both directions are counted together. The first packets leave with the class's mark,
/// and all later ones with the lower class's, in either direction.
#[test]
fn a_flow_that_had_its_packets_is_demoted_in_both_directions() {
    let config = json!({
        "classes": {
            "short": { "dscp": "ef", "pcp": 5, "demote": { "to": "long", "after_packets": 4 } },
            "long": { "dscp": "le", "reverse": { "pcp": 1 } },
        },
        "default": "short",
    });
    let (there, back) = ("udp 10.0.0.2:5 > 203.0.113.10:53", "udp 203.0.113.10:53 > 10.0.0.2:5");
    for ways in [">>>>", "<<<<", "><><", "><<<", ">>><"] {
        let mut bench = marker(config.clone());
        // The first packet is forward, and defines that direction.
        bench.becomes(there, &format!("{there} tos {EF} tag 40960"));
        for way in ways[1..].chars() {
            let packet = if way == '>' { there } else { back };
            bench.becomes(packet, &format!("{packet} tos {EF} tag 40960"));
        }
        assert_eq!(bench.state(), "");
        for _ in 0..3 {
            bench.becomes(back, &format!("{back} tos {LE} tag 8192"));
            assert_eq!(bench.state(), "demoted");
            bench.becomes(there, &format!("{there} tos {LE}"));
        }
        // Another flow has packets of its own.
        let other = "udp 10.0.0.2:6 > 203.0.113.10:53";
        bench.becomes(other, &format!("{other} tos {EF} tag 40960"));
    }
}

/// Bytes are those of IP packets: Ethernet's header, its padding and a tag do not count.
/// The packet that exceeds the limit is in the lower class.
#[test]
fn a_flow_that_had_its_bytes_is_demoted() {
    // 28 bytes of headers each; padded to 60 bytes without its checksum.
    let packets: [(&str, usize); 4] = [
        ("udp 10.0.0.2:5 > 203.0.113.10:53 len 100", 0),
        ("udp 203.0.113.10:53 > 10.0.0.2:5 len 72", 0),
        ("udp 203.0.113.10:53 > 10.0.0.2:5 len 2", 16),
        ("udp 10.0.0.2:5 > 203.0.113.10:53 tag 5", 14),
    ];
    let total = 128 + 100 + 30 + 28;
    for (limit, demoted) in
        [(127, 0), (128, 1), (227, 1), (228, 2), (257, 2), (258, 3), (total - 1, 3), (total, 4)]
    {
        let mut bench = marker(json!({
            "classes": { "mouse": { "dscp": "af31", "demote": { "to": "elephant", "after_bytes": limit } }, "elephant": { "dscp": "le" } },
            "default": "mouse",
        }));
        for (at, (packet, padding)) in packets.iter().enumerate() {
            let padded = |words: &str| [words::frame(words), vec![0; *padding]].concat();
            let tos = if at < demoted { AF31 } else { LE };
            let out = bench.send_frame(&padded(packet)).expect("passes");
            assert_eq!(out, padded(&format!("{packet} tos {tos}")), "limit {limit}, packet {at}");
        }
        bench.becomes(
            "udp 10.0.0.2:5 > 203.0.113.10:53",
            &format!("udp 10.0.0.2:5 > 203.0.113.10:53 tos {LE}"),
        );
    }
}

/// Steps down from class to class, each limit counted from the flow's beginning. A packet
/// that exceeds several limits takes all steps; the lowest class keeps its flows.
#[test]
fn classes_lead_to_lower_ones_step_by_step() {
    let classes = json!({
        "a": { "dscp": "ef", "demote": { "to": "b", "after_packets": 2, "after_bytes": 10_000 } },
        "b": { "dscp": "af31", "demote": { "to": "c", "after_packets": 3, "after_bytes": 500 } },
        "c": { "dscp": "le" },
    });
    let packet = "udp 10.0.0.2:5 > 203.0.113.10:53";
    let mut bench = marker(json!({ "classes": classes, "default": "a" }));
    for tos in [EF, EF, AF31, LE, LE, LE] {
        bench.becomes(packet, &format!("{packet} tos {tos}"));
    }
    // More than 500 bytes do not matter for `a`, and exceed the limit of `b` at once.
    let mut bench = marker(json!({ "classes": classes, "default": "a" }));
    let long = format!("{packet} len 1000");
    for tos in [EF, EF, LE] {
        bench.becomes(&long, &format!("{long} tos {tos}"));
    }
    let mut bench = marker(json!({ "classes": classes, "rules": ["b udp"] }));
    bench.becomes(&long, &format!("{long} tos {LE}"));
}

/// A weak protection may bring a flow back without its latest packets: it is demoted that
/// many packets later, without another effect.
#[test]
fn a_flow_that_was_set_back_is_demoted_later() {
    let mut bench = marker(json!({
        "classes": { "short": { "dscp": "ef", "demote": { "to": "long", "after_packets": 3 } }, "long": { "dscp": "le" } },
        "default": "short",
    }));
    let packet = "udp 10.0.0.2:5 > 203.0.113.10:53";
    bench.becomes(packet, &format!("{packet} tos {EF}"));
    let then = bench.remember();
    for tos in [EF, EF, LE] {
        bench.becomes(packet, &format!("{packet} tos {tos}"));
    }
    bench.set_back(then, 3);
    for tos in [EF, EF, LE, LE] {
        bench.becomes(packet, &format!("{packet} tos {tos}"));
    }
}

/// Marking depends only on state that a replay sees too.
#[test]
fn marking_is_deterministic() {
    let mut bench = one(json!({ "dscp": "ef", "pcp": 5 }));
    bench.passes("udp 10.0.0.2:5 > 203.0.113.10:53");
    assert!(!bench.nondeterministic);
}

/// Functions behind the marker find every field at its new offset behind the tag. Their
/// results are those without the marker, in both directions, with errors and fragments.
#[test]
fn functions_behind_the_marker_do_what_they_do_without_it() {
    let others = [
        (
            "firewall",
            json!({ "rules": ["allow tcp to any port 80", "allow udp to any", "allow icmp"] }),
        ),
        ("nat", json!({ "pool": ["198.51.100.4/32"], "ports": "5000-5255" })),
        ("load_balancer", json!({ "virtual": "203.0.113.10:80", "backends": ["192.0.2.1:8080"] })),
        ("packet_limit", json!({ "packets": 6 })),
    ];
    // Reverse packets meet the last function first, so the marker stands in between, too.
    for at in 0..=others.len() {
        let mut with = others.to_vec();
        with.insert(
            at,
            (
                "qos_marker",
                json!({ "classes": { "c": { "dscp": "ef", "pcp": 5 } }, "default": "c" }),
            ),
        );
        let (mut with, mut without) = (Bench::new(&with), Bench::new(&others));
        let outside = without.passes("tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN seq 100").0;
        assert_eq!(with.passes("tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN seq 100").0, outside);
        let asked = without.passes("udp 10.0.0.2:7 > 192.0.2.53:53 len 16 more").0;
        assert_eq!(with.passes("udp 10.0.0.2:7 > 192.0.2.53:53 len 16 more").0, asked);
        let ip = outside.ip();
        for packet in [
            format!("tcp 192.0.2.1:8080 > {outside} SYN ACK seq 500 ack 101"),
            "tcp 10.0.0.2:1000 > 203.0.113.10:80 ACK seq 101 ack 501 len 1400".to_owned(),
            format!(
                "icmp 192.0.2.99 > {ip} too-big quoting cut 28 tcp {outside} > 192.0.2.1:8080 ACK seq 101 ack 501 len 1400"
            ),
            "tcp 10.0.0.2:1000 > 203.0.113.10:80 RST seq 99999999".to_owned(),
            "fragment 10.0.0.2 > 192.0.2.53 udp offset 24 len 8".to_owned(),
            format!("udp 192.0.2.53:53 > {asked} len 80"),
            "tcp 10.0.0.3:1000 > 203.0.113.10:81 SYN".to_owned(),
            "udp 10.0.0.2:7 > 192.0.2.53:53".to_owned(),
            "udp 10.0.0.2:7 > 192.0.2.53:53 nosum".to_owned(),
            "udp 10.0.0.2:7 > 192.0.2.53:53 len 3".to_owned(),
            "udp 10.0.0.2:7 > 192.0.2.53:53 len 4".to_owned(),
        ] {
            let expected = without.send(&packet);
            match with.send(&packet) {
                Ok(mut out) => {
                    assert_eq!(
                        (&out[12..18], out[19] & 0xfc),
                        (&[0x81, 0, 0xa0, 0, 8, 0][..], EF),
                        "{packet}"
                    );
                    out.drain(12..16);
                    out[15] &= 3;
                    out[24..26].fill(0);
                    let sum = checksum(&out[14..34]);
                    out[24..26].copy_from_slice(&sum.to_be_bytes());
                    assert_eq!(Ok(out), expected, "{packet}, marker at {at}");
                }
                Err(reason) => assert_eq!(Err(reason), expected, "{packet}, marker at {at}"),
            }
        }
        assert_eq!(with.send("udp 10.0.0.2:7 > 192.0.2.53:53"), Err(QuotaExceeded));
        assert_eq!(with.send("gre 10.0.0.2 > 192.0.2.53"), Err(PolicyDenied));
    }
}

/// A configuration that is meaningless or ambiguous is refused with its place.
#[test]
fn what_cannot_be_meant_is_refused() {
    let a = json!({ "dscp": "ef" });
    let demoting = |to: &str, more: Value| {
        let mut demote = json!({ "to": to });
        demote.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "dscp": 1, "demote": demote })
    };
    let limit = json!({ "after_packets": 5 });
    let many: serde_json::Map<String, Value> =
        (0..256).map(|at| (format!("c{at}"), json!({}))).collect();
    let cases = [
        (
            json!({ "classes": {} }),
            "classes",
            None,
            "there must be at least one class, like { voice: { dscp: ef } }",
        ),
        (
            json!({ "classes": many, "default": "c1" }),
            "classes",
            None,
            "256 classes are more than the 255 that there may be",
        ),
        (
            json!({ "classes": { "a": a } }),
            "",
            None,
            "neither `rules` nor a `default` puts a flow into a class",
        ),
        (
            json!({ "classes": { "a b": a }, "default": "a b" }),
            "",
            None,
            "`a b` cannot be the name of a class: letters, digits, `-` and `_` can",
        ),
        (
            json!({ "classes": { "a": a }, "default": "b" }),
            "default",
            None,
            "unknown class `b`, expected one of `a`",
        ),
        (
            json!({ "classes": { "a": a, "z": a }, "rules": ["a tcp", " q udp"] }),
            "rules[1]",
            Some(1),
            "unknown class `q`, expected one of `a`, `z`",
        ),
        (
            json!({ "classes": { "a": a }, "rules": [""] }),
            "rules[0]",
            Some(0),
            "unknown class ``, expected one of `a`",
        ),
        (
            json!({ "classes": { "a": a }, "rules": ["a tcp to any port 70000"] }),
            "rules[0]",
            Some(18),
            "`70000` is not a port from 0 to 65535",
        ),
        (
            json!({ "classes": { "a": { "dscp": 64 } }, "default": "a" }),
            "classes.a.dscp",
            None,
            "64 is not a DSCP: a number from 0 to 63, six bits without those of ECN",
        ),
        (
            json!({ "classes": { "a": { "forward": { "dscp": -1 } } }, "default": "a" }),
            "classes.a.forward.dscp",
            None,
            "-1 is not a DSCP: a number from 0 to 63, six bits without those of ECN",
        ),
        (
            json!({ "classes": { "a": { "dscp": 1, "reverse": { "dscp": "af44" } } }, "default": "a" }),
            "classes.a.reverse.dscp",
            None,
            "`af44` is not the name of a DSCP: `df`, `cs0` to `cs7`, `af11` to `af43`, `ef`, `va`, `le`, or a number from 0 to 63",
        ),
        (
            json!({ "classes": { "a": { "pcp": 8, "forward": { "pcp": 1 }, "reverse": { "pcp": 1 } } }, "default": "a" }),
            "classes.a.pcp",
            None,
            "8 is not a priority of 802.1Q: a number from 0 to 7",
        ),
        (
            json!({ "classes": { "a": { "forward": { "pcp": 255 } } }, "default": "a" }),
            "classes.a.forward.pcp",
            None,
            "255 is not a priority of 802.1Q: a number from 0 to 7",
        ),
        (
            json!({ "classes": { "a": demoting("b", limit.clone()) }, "default": "a" }),
            "classes.a.demote.to",
            None,
            "unknown class `b`, expected one of `a`",
        ),
        (
            json!({ "classes": { "a": demoting("b", json!({})), "b": a }, "default": "a" }),
            "classes.a.demote",
            None,
            "a limit is missing: `after_packets`, `after_bytes`, or both",
        ),
        (
            json!({ "classes": { "a": demoting("b", json!({ "after_packets": 4, "after_bytes": 0 })), "b": a }, "default": "a" }),
            "classes.a.demote.after_bytes",
            None,
            "0 would keep every flow out of `a`; let rules name `b` instead",
        ),
        (
            json!({ "classes": { "a": demoting("a", limit.clone()) }, "default": "a" }),
            "classes.a.demote.to",
            None,
            "from there a flow would come back to `a`",
        ),
        (
            json!({ "classes": { "a": demoting("b", limit.clone()), "b": demoting("c", limit.clone()), "c": demoting("b", limit) }, "default": "a" }),
            "classes.b.demote.to",
            None,
            "from there a flow would come back to `b`",
        ),
        (
            json!({ "classes": { "a": { "dscp": [1] } }, "default": "a" }),
            "",
            None,
            "a DSCP is a number from 0 to 63, or a name such as ef, af21, cs1 or le",
        ),
        (
            json!({ "classes": { "a": { "vlan": 5 } }, "default": "a" }),
            "",
            None,
            "unknown field `vlan`, expected one of `dscp`, `pcp`, `forward`, `reverse`, `demote`",
        ),
    ];
    for (config, path, offset, message) in cases {
        let error = catalog::build("qos_marker", &config)
            .err()
            .unwrap_or_else(|| panic!("{config} is refused"));
        assert_eq!(
            error,
            ConfigError { path: path.to_owned(), message: message.to_owned(), offset },
            "{config}"
        );
    }
    assert!(
        catalog::build("qos_marker", &Value::Null)
            .err()
            .is_some_and(|error| error.message.contains("classes"))
    );
}

/// Only a marker that adds tags requires more room on the network between hosts.
#[test]
fn a_tag_needs_room_and_a_dscp_does_not() {
    let added = |class: Value| {
        let config = json!({ "classes": { "a": class, "b": { "dscp": 1 } }, "default": "b" });
        let marker = catalog::configured("qos_marker", &config, &Zones::default());
        marker.map(|marker| marker.added_bytes()).unwrap_or_else(|error| panic!("{error}"))
    };
    assert_eq!(added(json!({ "dscp": "ef" })), 0);
    assert_eq!(added(json!({ "pcp": 0 })), 4);
    assert_eq!(added(json!({ "reverse": { "pcp": 7 } })), 4);
}

/// Packets to damage.
const GOOD: [&str; 12] = [
    "tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN scale 7",
    "udp 10.0.0.2:5 > 203.0.113.10:53 len 40 tag 5",
    "udp 10.0.0.2:5 > 203.0.113.10:53 len 16 more",
    "fragment 10.0.0.2 > 203.0.113.10 udp offset 24 len 8",
    "icmp 10.0.0.2 > 203.0.113.10 echo id 3 len 5",
    "icmp 203.0.113.10 > 10.0.0.2 unreachable quoting tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN",
    "gre 10.0.0.2 > 203.0.113.10",
    "tcp [2001:db8::1]:9 > [2001:db8::2]:80 SYN",
    "udp [2001:db8::1]:9 > [2001:db8::2]:53 len 16 more",
    "fragment 2001:db8::1 > 2001:db8::2 udp offset 24 len 3",
    "icmp 2001:db8::2 > 2001:db8::1 too-big quoting tcp [2001:db8::1]:9 > [2001:db8::2]:80 SYN",
    "icmp 2001:db8::1 > 2001:db8::2 echo id 3",
];

/// The outgoing packet equals the incoming one except for the marks, and the IPv4
/// header's checksum is as right or wrong as before.
fn check_marked(came: &[u8], left: &[u8], mark: (Option<u8>, Option<u8>)) {
    let (before, after) =
        (Layers::parse(came).expect("it came through"), Layers::parse(left).expect("it left"));
    let (l3, moved) = (usize::from(before.l3), usize::from(after.l3));
    let (mut expected, mut seen) = (came.to_vec(), left.to_vec());
    match (mark.1, before.vlan_tags) {
        (Some(pcp), 0) => drop(expected.splice(12..12, [0x81, 0, pcp << 5, 0])),
        (Some(pcp), _) => expected[14] = expected[14] & 0x1f | pcp << 5,
        (None, _) => {}
    }
    assert_eq!(moved - l3, expected.len() - came.len());
    match (before.network, mark.0) {
        (Network::V4, Some(dscp)) => {
            let len = usize::from(came[l3] & 15) * 4;
            assert_eq!(checksum(&came[l3..l3 + len]), checksum(&left[moved..moved + len]));
            expected[moved + 1] = dscp << 2 | expected[moved + 1] & 3;
            expected[moved + 10..moved + 12].fill(0);
            seen[moved + 10..moved + 12].fill(0);
        }
        (Network::V6, Some(dscp)) => {
            let class = dscp << 2 | (came[l3 + 1] >> 4) & 3;
            expected[moved] = 0x60 | class >> 4;
            expected[moved + 1] = class << 4 | came[l3 + 1] & 15;
        }
        _ => {}
    }
    assert_eq!(seen, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Packets of all kinds, cut anywhere and with bytes changed anywhere: no panic, and
    /// a packet that passes has changed in its marks only.
    #[test]
    fn nothing_but_the_marks_changes(
        good in 0..GOOD.len(),
        cut in any::<prop::sample::Index>(),
        is_cut in prop::bool::weighted(0.3),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        tos in any::<u8>(),
        dscp in proptest::option::of(0u8..64),
        pcp in proptest::option::of(0u8..8),
        limit in 1u64..200,
    ) {
        let class = json!({ "dscp": dscp, "pcp": pcp });
        let other = json!({ "dscp": dscp, "pcp": pcp, "demote": { "to": "c", "after_bytes": limit } });
        let mut bench = marker(json!({ "classes": { "c": class, "d": other }, "rules": ["c tcp"], "default": "d" }));
        for words in ["udp 10.0.0.2:5 > 203.0.113.10:53 len 16 more", "udp [2001:db8::1]:9 > [2001:db8::2]:53 len 16 more", GOOD[0], GOOD[7]] {
            bench.passes(words);
        }
        let mut frame = words::frame(&format!("{} tos {tos}", GOOD[good]));
        for (at, byte) in damage {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        if is_cut {
            frame.truncate(cut.index(frame.len()));
        }
        if let Ok(out) = bench.send_unchecked(&frame) {
            check_marked(&frame, &out, (dscp, pcp));
        }
    }
}
