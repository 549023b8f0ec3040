//! The firewall's access list, and its view of protocols other than TCP.

use crate::bench::Bench;
use holdfast_wire::DropReason::{PolicyDenied, StateInvalid};
use holdfast_wire::zone::{Zone, Zones};
use serde_json::json;

fn rules(rules: &[&str]) -> Bench {
    Bench::new(&[("firewall", json!({ "rules": rules }))])
}

/// Without a rule no packet opens a flow, whatever its protocol.
#[test]
fn without_rules_everything_is_denied() {
    let mut bench = Bench::new(&[("firewall", json!({}))]);
    bench.drops("tcp 10.0.0.2:1000 > 203.0.113.10:80 SYN seq 1", PolicyDenied);
    bench.drops("udp 10.0.0.2:1000 > 203.0.113.10:53", PolicyDenied);
    bench.drops("icmp 10.0.0.2 > 203.0.113.10 echo id 1", PolicyDenied);
    bench.drops("gre 10.0.0.2 > 203.0.113.10", PolicyDenied);
    bench.drops("tcp [2001:db8::2]:1000 > [2001:db8:1::1]:80 SYN", PolicyDenied);
    assert_eq!(bench.flows(), 0);
}

/// A rule for a prefix and two ports admits the first and last address of the prefix and
/// both ports, and no neighbour of these.
#[test]
fn prefixes_and_ports_end_where_they_say() {
    let mut bench = rules(&["allow tcp from 10.0.0.128/25 to 203.0.113.0/28 port 80,443"]);
    bench.unchanged("tcp 10.0.0.128:1000 > 203.0.113.0:80 SYN");
    bench.unchanged("tcp 10.0.0.255:1000 > 203.0.113.15:443 SYN");
    bench.drops("tcp 10.0.0.127:1000 > 203.0.113.1:80 SYN", PolicyDenied);
    bench.drops("tcp 10.0.1.0:1000 > 203.0.113.1:80 SYN", PolicyDenied);
    bench.drops("tcp 10.0.0.128:1000 > 203.0.113.16:80 SYN", PolicyDenied);
    for port in [79, 81, 442, 444] {
        bench.drops(&format!("tcp 10.0.0.128:1000 > 203.0.113.1:{port} SYN"), PolicyDenied);
    }
    bench.drops("udp 10.0.0.128:1000 > 203.0.113.1:80", PolicyDenied);
}

/// A range of ports includes both of its ends.
#[test]
fn a_range_of_ports_includes_its_ends() {
    let mut bench = rules(&["allow udp from any to any port 5000-5002"]);
    for port in 5000..=5002 {
        bench.unchanged(&format!("udp 10.0.0.2:1000 > 203.0.113.1:{port} len 1"));
    }
    bench.drops("udp 10.0.0.2:1000 > 203.0.113.1:4999 len 1", PolicyDenied);
    bench.drops("udp 10.0.0.2:1000 > 203.0.113.1:5003 len 1", PolicyDenied);
}

/// An exception before a rule wins; an exception after it does not.
#[test]
fn the_first_rule_that_matches_decides() {
    let mut bench = rules(&[
        "deny tcp from 10.0.0.66 to any",
        "allow tcp from 10.0.0.0/24 to any",
        "deny tcp from 10.0.0.77 to any",
    ]);
    bench.drops("tcp 10.0.0.66:1000 > 203.0.113.1:80 SYN", PolicyDenied);
    bench.unchanged("tcp 10.0.0.77:1000 > 203.0.113.1:80 SYN");
}

/// With `default: allow` rules deny: denied packets are dropped, the rest passes.
#[test]
fn a_default_of_allow_lets_the_rest_pass() {
    let mut bench = Bench::new(&[(
        "firewall",
        json!({ "rules": ["deny udp from any to any port 53"], "default": "allow" }),
    )]);
    bench.drops("udp 10.0.0.2:1000 > 203.0.113.1:53", PolicyDenied);
    bench.unchanged("udp 10.0.0.2:1000 > 203.0.113.1:54");
}

/// An IPv6 rule admits its prefix, both directions of the flow, and no IPv4.
#[test]
fn ipv6_rules_mean_ipv6() {
    let mut bench = rules(&["allow tcp from 2001:db8:1::/48 to 2001:db8:2::/64 port 80"]);
    bench.unchanged("tcp [2001:db8:1:ffff::9]:1000 > [2001:db8:2::1]:80 SYN seq 10");
    bench.unchanged("tcp [2001:db8:2::1]:80 > [2001:db8:1:ffff::9]:1000 SYN ACK seq 500 ack 11");
    bench.drops(
        "tcp [2001:db8:2::1]:81 > [2001:db8:1:ffff::9]:1000 SYN ACK seq 500 ack 11",
        PolicyDenied,
    );
    bench.drops("tcp [2001:db8:3::9]:1000 > [2001:db8:2::1]:80 SYN", PolicyDenied);
    bench.drops("tcp [2001:db8:1::9]:1000 > [2001:db8:2:1::1]:80 SYN", PolicyDenied);
    bench.drops("tcp 10.0.0.2:1000 > 203.0.113.1:80 SYN", PolicyDenied);
}

/// `::/0` matches every IPv6 packet and `0.0.0.0/0` every IPv4 packet; neither matches
/// the other family.
#[test]
fn the_whole_of_one_family_is_not_the_other() {
    let mut bench = rules(&["allow udp from 0.0.0.0/0 to any"]);
    bench.unchanged("udp 10.0.0.2:1000 > 203.0.113.1:53");
    bench.drops("udp [2001:db8::1]:1000 > [2001:db8::2]:53", PolicyDenied);
    let mut bench = rules(&["allow udp from ::/0 to any"]);
    bench.unchanged("udp [2001:db8::1]:1000 > [2001:db8::2]:53");
    bench.drops("udp 10.0.0.2:1000 > 203.0.113.1:53", PolicyDenied);
}

/// The answer to a UDP datagram needs no rule, but must go from the asked port to the
/// asking port while the flow lives.
#[test]
fn udp_answers_pass_as_long_as_the_flow_lives() {
    let mut bench = rules(&["allow udp from 10.0.0.0/8 to any"]);
    bench.unchanged("udp 10.0.0.2:1000 > 203.0.113.1:53 len 20");
    assert_eq!(bench.state(), "unanswered");
    bench.unchanged("udp 203.0.113.1:53 > 10.0.0.2:1000 len 200");
    assert_eq!(bench.state(), "answered");
    bench.drops("udp 203.0.113.1:54 > 10.0.0.2:1000 len 200", PolicyDenied);
    bench.drops("udp 203.0.113.2:53 > 10.0.0.2:1000 len 200", PolicyDenied);
    bench.wait(299);
    bench.unchanged("udp 203.0.113.1:53 > 10.0.0.2:1000 len 200");
    bench.wait(301);
    bench.drops("udp 203.0.113.1:53 > 10.0.0.2:1000 len 200", PolicyDenied);
}

/// A datagram without data opens a flow and is answered by another.
#[test]
fn empty_udp_datagrams_are_datagrams() {
    let mut bench = rules(&["allow udp from 10.0.0.0/8 to any"]);
    bench.unchanged("udp 10.0.0.2:1000 > 203.0.113.1:53 len 0");
    bench.unchanged("udp 203.0.113.1:53 > 10.0.0.2:1000 len 0");
}

/// An unanswered UDP flow expires earlier than an answered one.
#[test]
fn unanswered_udp_lives_shorter() {
    let mut bench = Bench::new(&[(
        "firewall",
        json!({ "default": "allow", "timeouts": { "udp": 100, "udp_unanswered": 10 } }),
    )]);
    bench.unchanged("udp 10.0.0.2:1000 > 203.0.113.1:53");
    bench.unchanged("udp 10.0.0.2:1001 > 203.0.113.1:53");
    bench.unchanged("udp 203.0.113.1:53 > 10.0.0.2:1001");
    bench.wait(11);
    assert_eq!(bench.flows(), 1);
    bench.wait(90);
    assert_eq!(bench.flows(), 0);
}

/// Ping passes and is answered. A reply without a request, or with another identifier, is
/// not let in.
#[test]
fn echo_replies_need_a_request() {
    let mut bench = rules(&["allow icmp from any to any"]);
    bench.drops("icmp 203.0.113.1 > 10.0.0.2 reply id 7", StateInvalid);
    bench.unchanged("icmp 10.0.0.2 > 203.0.113.1 echo id 7 seq 1 len 56");
    bench.unchanged("icmp 203.0.113.1 > 10.0.0.2 reply id 7 seq 1 len 56");
    bench.drops("icmp 203.0.113.1 > 10.0.0.2 reply id 8 seq 1 len 56", StateInvalid);
    bench.drops("icmp 10.0.0.2 > 203.0.113.1 timestamp id 9", StateInvalid);
}

/// The same over IPv6.
#[test]
fn ipv6_echo_replies_need_a_request() {
    let mut bench = Bench::new(&[("firewall", json!({ "default": "allow" }))]);
    bench.drops("icmp 2001:db8::2 > 2001:db8::1 reply id 7", StateInvalid);
    bench.unchanged("icmp 2001:db8::1 > 2001:db8::2 echo id 7 seq 1 len 56");
    bench.unchanged("icmp 2001:db8::2 > 2001:db8::1 reply id 7 seq 1 len 56");
}

/// After a ping from inside, only its reply comes in with its identifier, whatever other
/// ICMP the other side sends; a reply goes out only to the host that asked (RFC 5508,
/// REQ-1: responses to queries from inside).
#[test]
pub(crate) fn no_other_message_passes_as_the_reply() {
    let mut bench =
        rules(&["allow icmp from 10.0.0.0/8 to any", "allow icmp from 2001:db8:1::/48 to any"]);
    for (inside, outside, reply) in
        [("10.0.0.2", "203.0.113.1", 0), ("2001:db8:1::2", "2001:db8:2::1", 129)]
    {
        let errors = if reply == 0 { vec![3, 4, 5, 11, 12] } else { vec![1, 2, 3, 4] };
        for id in [7, 0, 8, 13, 128, 200, 0x8000, 0xffff, 0xfff8, 0xff80] {
            bench.unchanged(&format!("icmp {inside} > {outside} echo id {id} seq 1 len 56"));
            let flows = bench.flows();
            for kind in 0..=255 {
                let packet =
                    |from, to, id| format!("icmp {from} > {to} type {kind} id {id} seq 1 len 56");
                let reason = if errors.contains(&kind) { StateInvalid } else { PolicyDenied };
                if kind == reply {
                    bench.unchanged(&packet(outside, inside, id));
                } else {
                    bench.drops(&packet(outside, inside, id), reason);
                }
                // Nor with any identifier that is derived from the type.
                for distance in [8, 16, 128, 0x8000] {
                    bench.drops(&packet(outside, inside, id ^ distance), reason);
                }
                let is_asking = kind == if reply == 0 { 8 } else { 128 };
                if !is_asking {
                    bench.drops(&packet(inside, outside, id), StateInvalid);
                }
            }
            assert_eq!(bench.flows(), flows);
            bench.wait(61);
        }
    }
}

/// An outside host that may ask gets its answer, and the two pings with one identifier
/// are two flows.
#[test]
fn pings_of_each_other_are_two_flows() {
    let mut bench = rules(&["allow icmp from any to any"]);
    for (a, b) in [("10.0.0.2", "203.0.113.1"), ("2001:db8:1::2", "2001:db8:2::1")] {
        let flows = bench.flows();
        bench.unchanged(&format!("icmp {a} > {b} echo id 8 seq 1 len 5"));
        bench.drops(&format!("icmp {a} > {b} reply id 8 seq 1 len 5"), StateInvalid);
        bench.unchanged(&format!("icmp {b} > {a} echo id 8 seq 1 len 5"));
        bench.unchanged(&format!("icmp {a} > {b} reply id 8 seq 1 len 5"));
        bench.unchanged(&format!("icmp {b} > {a} reply id 8 seq 1 len 5"));
        assert_eq!(bench.flows(), flows + 2);
    }
}

/// An ICMP error passes if it quotes a packet of a flow, from any router. The error
/// neither keeps the flow alive nor changes its state.
#[test]
fn icmp_errors_pass_with_the_flow_that_they_quote() {
    let mut bench = rules(&["allow tcp from 10.0.0.0/8 to any"]);
    bench.unchanged("tcp 10.0.0.2:1000 > 203.0.113.1:80 SYN seq 1");
    bench.unchanged("icmp 192.0.2.9 > 10.0.0.2 unreachable quoting cut 28 tcp 10.0.0.2:1000 > 203.0.113.1:80 SYN seq 1");
    assert_eq!(bench.state(), "opening");
    bench
        .drops("icmp 192.0.2.9 > 10.0.0.2 unreachable quoting cut 28 tcp 10.0.0.2:1001 > 203.0.113.1:80 SYN seq 1", StateInvalid);
    bench.drops(
        "icmp 192.0.2.9 > 10.0.0.2 unreachable quoting udp 10.0.0.2:1000 > 203.0.113.1:80",
        StateInvalid,
    );
    // Quoted the wrong way round, it concerns the other side, once that side has sent a
    // packet.
    bench
        .drops("icmp 10.0.0.2 > 203.0.113.1 unreachable quoting cut 28 tcp 203.0.113.1:80 > 10.0.0.2:1000 SYN ACK", StateInvalid);
    bench.unchanged("tcp 203.0.113.1:80 > 10.0.0.2:1000 SYN ACK ack 2");
    bench.unchanged("icmp 10.0.0.2 > 203.0.113.1 unreachable quoting cut 28 tcp 203.0.113.1:80 > 10.0.0.2:1000 SYN ACK");
    bench.wait(119);
    bench.unchanged("icmp 192.0.2.9 > 10.0.0.2 exceeded quoting cut 28 tcp 10.0.0.2:1000 > 203.0.113.1:80 SYN seq 1");
    bench.wait(2);
    assert_eq!(bench.flows(), 0, "an error keeps nothing alive");
}

/// An error passes to the sender of the quoted packet (RFC 792; RFC 4443, section 3), and
/// to no other host: neither a third one nor that packet's receiver.
#[test]
pub(crate) fn errors_go_to_who_sent_what_they_quote() {
    let mut bench = rules(&["allow udp from any to any"]);
    for (host, server, others) in [
        ("10.0.0.2", "203.0.113.1", ["10.0.0.3", "203.0.113.1", "203.0.113.9"]),
        ("2001:db8:1::2", "2001:db8:2::1", ["2001:db8:1::3", "2001:db8:2::1", "2001:db8:2::9"]),
    ] {
        let end = |address: &str, port: u16| {
            if address.contains(':') {
                format!("[{address}]:{port}")
            } else {
                format!("{address}:{port}")
            }
        };
        let sent = format!("udp {} > {} len 9", end(host, 5), end(server, 53));
        bench.unchanged(&sent);
        for kind in ["unreachable", "exceeded"] {
            bench.unchanged(&format!("icmp {server} > {host} {kind} quoting {sent}"));
            for other in others {
                bench.drops(&format!("icmp {host} > {other} {kind} quoting {sent}"), StateInvalid);
            }
        }
    }
}

/// A blind attacker does not know a connection's sequence numbers. An error therefore
/// passes only if it quotes one that is in flight (RFC 5927, section 4.1), over IPv4 and
/// IPv6, in either direction; the connection goes on.
#[test]
pub(crate) fn icmp_errors_quote_what_is_on_its_way() {
    for (client, server, router) in [
        ("10.0.0.2", "203.0.113.1", "192.0.2.9"),
        ("2001:db8:1::2", "2001:db8:2::1", "2001:db8:9::9"),
    ] {
        let mut bench = rules(&["allow tcp from any to any"]);
        let end = |host: &str, port: u16| {
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
        };
        let ends = [
            format!("{} > {}", end(client, 1000), end(server, 80)),
            format!("{} > {}", end(server, 80), end(client, 1000)),
        ];
        let header = if client.contains(':') { 40 } else { 20 };
        let error = |way: usize, kind: &str, sequence: u32| {
            let to = [client, server][way];
            format!(
                "icmp {router} > {to} {kind} quoting cut {} tcp {} ACK seq {sequence} len 9",
                header + 8,
                ends[way]
            )
        };
        // The initiator's numbers wrap to 0.
        let first = u32::MAX - 499;
        bench.unchanged(&format!("tcp {} SYN seq {first} win 4000", ends[0]));
        bench.unchanged(&error(0, "unreachable", first));
        bench.drops(&error(0, "unreachable", first - 1), StateInvalid);
        bench.drops(&error(0, "unreachable", first + 2), StateInvalid);
        bench.drops(&error(1, "unreachable", 0), StateInvalid);
        bench.unchanged(&format!("tcp {} SYN ACK seq 7000 ack {} win 2000", ends[1], first + 1));
        bench.unchanged(&format!("tcp {} ACK seq {} ack 7001 win 4000", ends[0], first + 1));
        bench.unchanged(&format!(
            "tcp {} ACK seq {} ack 7001 win 4000 len 1000",
            ends[0],
            first + 1
        ));
        // The client has sent up to 501; the server, whose window is 2000, has
        // acknowledged as much as it may.
        let sent = first.wrapping_add(1001);
        for (kind, sequence, passes) in [
            ("too-big", sent, true),
            ("too-big", sent - 501, true),
            ("exceeded", first + 1, true),
            ("too-big", sent + 1, false),
            ("unreachable", sent + 70_000, false),
            ("too-big", sent.wrapping_sub(2001), false),
            ("exceeded", sent ^ 0x8000_0000, false),
        ] {
            match passes {
                true => bench.unchanged(&error(0, kind, sequence)),
                false => bench.drops(&error(0, kind, sequence), StateInvalid),
            }
        }
        bench.unchanged(&error(1, "too-big", 7001));
        bench.drops(&error(1, "too-big", 7002), StateInvalid);
        bench.drops(&error(1, "too-big", 7001 - 4001), StateInvalid);
        // The quote is so short that its sequence number is missing.
        bench.drops(
            &error(0, "exceeded", sent)
                .replace(&format!("cut {}", header + 8), &format!("cut {}", header + 4)),
            StateInvalid,
        );
        bench.unchanged(&format!("tcp {} ACK seq 7001 ack {sent} len 5", ends[1]));
        assert_eq!(bench.state(), "established");
    }
}

/// No error makes a host send packets shorter than every link carries: 68 bytes (RFC
/// 1191, section 3), over IPv6 1280 (RFC 8201, section 4). An IPv4 router that does not
/// know the next link's MTU says 0.
#[test]
pub(crate) fn icmp_errors_ask_for_no_impossible_mtu() {
    let mut bench = rules(&["allow udp from any to any"]);
    for (host, server, least) in
        [("10.0.0.2", "203.0.113.1", 68), ("2001:db8:1::2", "2001:db8:2::1", 1280)]
    {
        let ends = if least == 68 {
            format!("{host}:5 > {server}:53")
        } else {
            format!("[{host}]:5 > [{server}]:53")
        };
        bench.unchanged(&format!("udp {ends} len 1300"));
        for (mtu, passes) in [
            (0, least == 68),
            (1, false),
            (least - 1, false),
            (least, true),
            (1400, true),
            (65_535, true),
        ] {
            let error =
                format!("icmp {server} > {host} too-big mtu {mtu} quoting udp {ends} len 1300");
            match passes {
                true => bench.unchanged(&error),
                false => bench.drops(&error, StateInvalid),
            }
        }
    }
}

/// Errors that quote unreadable data, too little, or another error belong to no flow.
#[test]
fn icmp_errors_that_quote_garbage_are_dropped() {
    let mut bench = Bench::new(&[("firewall", json!({ "default": "allow" }))]);
    bench.unchanged("udp 10.0.0.2:1000 > 203.0.113.1:53");
    let drops = [
        "quoting garbage len 64",
        "quoting garbage len 0",
        "quoting cut 19 udp 10.0.0.2:1000 > 203.0.113.1:53",
        "quoting cut 23 udp 10.0.0.2:1000 > 203.0.113.1:53",
        "quoting fragment 10.0.0.2 > 203.0.113.1 udp offset 8 len 8",
        "quoting icmp 203.0.113.1 > 10.0.0.2 unreachable quoting udp 10.0.0.2:1000 > 203.0.113.1:53",
    ];
    for quoted in drops {
        bench.drops(&format!("icmp 192.0.2.9 > 10.0.0.2 unreachable {quoted}"), StateInvalid);
    }
    bench.unchanged(
        "icmp 192.0.2.9 > 10.0.0.2 unreachable quoting cut 24 udp 10.0.0.2:1000 > 203.0.113.1:53",
    );
}

/// Later fragments pass if their first one passed, and are dropped after a denied one.
#[test]
fn later_fragments_share_the_fate_of_the_first() {
    let mut bench = rules(&["allow udp from 10.0.0.2 to any"]);
    bench.unchanged("udp 10.0.0.2:1000 > 203.0.113.1:53 len 16 more");
    bench.unchanged("fragment 10.0.0.2 > 203.0.113.1 udp offset 24 len 5");
    bench.drops("udp 10.0.0.3:1000 > 203.0.113.1:53 len 16 more", PolicyDenied);
    bench.drops("fragment 10.0.0.3 > 203.0.113.1 udp offset 24 len 5", StateInvalid);
}

/// The edge refuses a packet from a host to itself; here it opens no flow and gives back
/// what it took.
#[test]
fn land_packets_open_no_flow() {
    let mut bench = Bench::new(&[("firewall", json!({ "default": "allow" }))]);
    assert!(bench.send("tcp 10.0.0.2:139 > 10.0.0.2:139 SYN").is_err());
    assert!(bench.send("udp [2001:db8::1]:7 > [2001:db8::1]:7").is_err());
    assert_eq!(bench.flows(), 0);
}

/// A time-out of zero, or of years, is an error that says so.
#[test]
pub(crate) fn absurd_time_outs_are_refused() {
    let build = |name: &str, seconds: u64| {
        holdfast_functions::catalog::build("firewall", &json!({ "timeouts": { name: seconds } }))
            .err()
    };
    for name in
        ["tcp_established", "tcp_opening", "tcp_closing", "udp", "udp_unanswered", "icmp", "other"]
    {
        for (wrong, remedy) in
            [(0, "at least 1 s"), (2_592_001, "at most 2592000 s"), (u64::MAX, "at most 2592000 s")]
        {
            let error = build(name, wrong).unwrap_or_else(|| panic!("`{name}: {wrong}` is taken"));
            assert_eq!(error.path, format!("timeouts.{name}"));
            assert!(
                error.message.contains(remedy) && error.message.contains(&format!("`{name}`")),
                "{error}"
            );
        }
        assert!(build(name, 1).is_none() && build(name, 2_592_000).is_none());
    }
}

fn office() -> Zones {
    let zones = [("lan", vec![0]), ("dmz", vec![1]), ("wan", vec![2]), ("inside", vec![0, 1])];
    Zones::new(zones.map(|(name, ports)| (name.to_owned(), Zone::of(ports))))
}

/// Rules that name ports: the port is the one at which a flow's first packet came in, and
/// its replies may come in at any other.
#[test]
fn a_rule_is_for_flows_that_come_in_by_its_ports() {
    let rules = [
        "deny tcp on inside to any port 25",
        "allow tcp on inside",
        "allow tcp on wan to 203.0.113.10 port 80",
    ];
    let mut bench = Bench::on(&office(), &[("firewall", json!({ "rules": rules }))]);
    for (ingress, passes) in [(0, true), (1, true), (2, false)] {
        bench.ingress = ingress;
        let open = format!("tcp 10.0.0.2:{} > 192.0.2.1:443 SYN seq 1", 1000 + u16::from(ingress));
        match passes {
            true => bench.unchanged(&open),
            false => bench.drops(&open, PolicyDenied),
        }
        bench.drops("tcp 10.0.0.2:1000 > 192.0.2.1:25 SYN seq 1", PolicyDenied);
    }
    bench.unchanged("tcp 192.0.2.1:443 > 10.0.0.2:1000 SYN ACK seq 7 ack 2");
    bench.unchanged("tcp 192.0.2.1:9 > 203.0.113.10:80 SYN seq 1");
    bench.ingress = 0;
    bench.unchanged("tcp 203.0.113.10:80 > 192.0.2.1:9 SYN ACK seq 7 ack 2");
    // Without names a rule with a port name is refused, and never read as one for every
    // port.
    let built =
        holdfast_functions::catalog::build("firewall", &json!({ "rules": ["allow tcp on lan"] }));
    assert!(built.is_err_and(
        |error| error.offset == Some(13) && error.message.contains("is not known here")
    ));
    let built = holdfast_functions::catalog::configured(
        "firewall",
        &json!({ "rules": ["allow tcp on lam"] }),
        &office(),
    );
    assert!(
        built.is_err_and(|error| (error.path.as_str(), error.offset) == ("rules[0]", Some(13)))
    );
}

/// `reject` denies and tells the sender, as a rule or as the default; rules that reject
/// are tried in order like the others.
#[test]
fn a_rejected_sender_is_told() {
    let rules =
        ["deny tcp to any port 22", "reject tcp to any port 20-25", "allow any from 10.0.0.0/8"];
    let mut bench = Bench::new(&[("firewall", json!({ "rules": rules, "default": "reject" }))]);
    bench.drops("tcp 10.0.0.2:1000 > 203.0.113.1:22 SYN", PolicyDenied);
    bench.rejects("tcp 10.0.0.2:1000 > 203.0.113.1:23 SYN", PolicyDenied);
    bench.rejects("tcp [2001:db8::2]:1000 > [2001:db8:1::1]:25 SYN", PolicyDenied);
    // Any segment is rejected, also one of no connection.
    bench.rejects("tcp 10.0.0.2:1000 > 203.0.113.1:23 ACK", PolicyDenied);
    bench.rejects("udp 192.0.2.1:5 > 10.0.0.2:53", PolicyDenied);
    bench.rejects("icmp 192.0.2.1 > 10.0.0.2 echo id 1", PolicyDenied);
    bench.unchanged("udp 10.0.0.2:1000 > 203.0.113.1:23");
    // A segment that does not fit its connection is dropped without a look at the rules.
    bench.unchanged("tcp 10.0.0.2:1000 > 203.0.113.1:80 SYN seq 1");
    bench.drops("tcp 203.0.113.1:80 > 10.0.0.2:1000 RST seq 9", StateInvalid);
    assert_eq!(bench.flows(), 2);
}

/// Rules that name ICMP types: IPv4 and IPv6 have their own numbers, with a certain code
/// or any. A type that a rule names opens a flow even if it is no echo; without a name
/// only echoes do.
#[test]
fn a_rule_names_types_of_icmp() {
    let v6 = ("2001:db8:1::2", "2001:db8:2::1");
    let v4 = ("10.0.0.2", "203.0.113.1");
    let icmp = |(from, to): (&str, &str), rest: &str| format!("icmp {from} > {to} {rest}");
    let mut bench =
        rules(&["deny icmp type 17", "allow icmp type echo-request,17,200 from any", "deny any"]);
    bench.unchanged(&icmp(v4, "echo id 1"));
    bench.unchanged(&icmp(v6, "echo id 1"));
    bench.unchanged(&icmp((v4.1, v4.0), "reply id 1"));
    bench.drops(&icmp(v4, "type 17 id 1"), PolicyDenied);
    bench.drops(&icmp(v4, "type 13 id 1"), PolicyDenied);
    // Echo over IPv6; IPv4 has no such type.
    bench.drops(&icmp(v4, "type 128 id 1"), PolicyDenied);
    bench.drops(&icmp(v6, "type 8 id 1"), PolicyDenied);
    bench.unchanged(&icmp(v4, "type 200 id 1"));
    bench.unchanged(&icmp(v6, "type 200 id 1"));
    bench.drops("udp 10.0.0.2:8 > 203.0.113.1:8", PolicyDenied);
    let mut bench = rules(&[
        "allow icmp type echo-request code 0",
        "allow proto-1 type 13",
        "reject proto-58 type 200 code 7",
    ]);
    bench.unchanged(&icmp(v4, "echo id 1"));
    bench.unchanged(&icmp(v4, "type 13 id 1 len 12"));
    bench.unchanged(&icmp((v4.1, v4.0), "type 14 id 1 len 12"));
    bench.drops(&icmp(v6, "type 200 id 1"), PolicyDenied);
    // A number that means a reply over IPv4 opens no IPv4 flow, even if a rule for IPv6
    // names it.
    let mut bench = rules(&["allow icmp", "allow icmp type 14"]);
    bench.drops(&icmp(v4, "type 14 id 1"), StateInvalid);
    bench.drops(&icmp(v4, "type 13 id 1"), StateInvalid);
    bench.drops(&icmp(v6, "type 13 id 1"), StateInvalid);
    let mut bench = rules(&["allow icmp type 14"]);
    bench.drops(&icmp(v4, "type 14 id 1"), StateInvalid);
    bench.unchanged(&icmp(v6, "type 14 id 1"));
    assert_eq!(bench.flows(), 1);
}

/// Each rule counts the first packets that it decided, under its own text; so does the
/// default. Packets of existing flows are not counted.
#[test]
fn rules_count_what_they_decide() {
    let rules = ["deny tcp to any port 22", "  allow tcp from 10.0.0.0/8", "reject udp"];
    let mut bench = Bench::new(&[("firewall", json!({ "rules": rules }))]);
    for port in 1..=3 {
        bench.drops(&format!("tcp 10.0.0.2:{port} > 203.0.113.1:22 SYN"), PolicyDenied);
    }
    bench.unchanged("tcp 10.0.0.2:1000 > 203.0.113.1:80 SYN seq 1");
    bench.unchanged("tcp 203.0.113.1:80 > 10.0.0.2:1000 SYN ACK seq 7 ack 2");
    bench.rejects("tcp 10.0.0.2:1001 > 203.0.113.1:80 ACK", StateInvalid);
    bench.rejects("udp 10.0.0.2:5 > 203.0.113.1:53", PolicyDenied);
    bench.drops("icmp 10.0.0.2 > 203.0.113.1 echo id 1", PolicyDenied);
    let counted = ["deny tcp to any port 22", "allow tcp from 10.0.0.0/8", "reject udp", "default"]
        .map(|name| bench.counter(name));
    assert_eq!(counted, [3, 2, 1, 1]);
}

/// A rule with `log` reports the first packets that it decides, for any action, and no
/// others.
#[test]
fn a_rule_that_logs_tells_of_its_packets() {
    let rules = ["reject log tcp to any port 22", "allow log udp", "allow tcp", "deny log"];
    let mut bench = Bench::new(&[("firewall", json!({ "rules": rules }))]);
    bench.ingress = 2;
    bench.rejects("tcp 10.0.0.2:5 > 203.0.113.1:22 SYN", PolicyDenied);
    bench.unchanged("udp 10.0.0.2:5 > 203.0.113.1:53");
    bench.unchanged("udp 203.0.113.1:53 > 10.0.0.2:5");
    bench.unchanged("tcp 10.0.0.2:5 > 203.0.113.1:80 SYN");
    bench.drops("icmp 10.0.0.2 > 203.0.113.1 echo id 7", PolicyDenied);
    let told = [
        "0 2 tcp 10.0.0.2:5 > 203.0.113.1:22",
        "1 2 udp 10.0.0.2:5 > 203.0.113.1:53",
        "3 2 icmp 10.0.0.2:7 > 203.0.113.1",
    ];
    assert_eq!(bench.logged(), told);
    (0..500).for_each(|port| {
        bench.rejects(&format!("tcp 10.0.0.2:{port} > 203.0.113.1:22 SYN"), PolicyDenied)
    });
    assert_eq!(bench.logged().len(), 7, "ten a second");
    bench.wait(1);
    bench.rejects("tcp 10.0.0.2:9 > 203.0.113.1:22 SYN", PolicyDenied);
    assert_eq!(bench.logged().len(), 1);
    let build = |rule: &str| {
        holdfast_functions::catalog::build("firewall", &json!({ "rules": [rule] })).err()
    };
    assert_eq!(build("allow log tcq").and_then(|error| error.offset), Some(10));
    assert!(build("allow logs tcp").is_some_and(|error| error.offset == Some(6)));
}

/// An error in a rule is shown with its position.
#[test]
fn a_wrong_rule_is_named_with_its_place() {
    let build = |rule: &str| {
        holdfast_functions::catalog::build(
            "firewall",
            &json!({ "rules": ["allow udp from any to any", rule] }),
        )
        .err()
    };
    let error = build("permit tcp from any to any").expect("no such action");
    assert_eq!((error.path.as_str(), error.offset), ("rules[1]", Some(0)));
    let error = build("allow icmp type echo-request,pong from any").expect("no such type");
    assert_eq!((error.path.as_str(), error.offset), ("rules[1]", Some(29)));
    let error = build("allow tcp from 10.0.0.1/24 to any").expect("bits beyond the prefix");
    assert_eq!((error.path.as_str(), error.offset), ("rules[1]", Some(15)));
}
