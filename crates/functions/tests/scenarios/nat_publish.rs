//! Static mappings: reaching published ends from outside and from inside, and the
//! configuration's text.

use crate::bench::Bench;
use holdfast_wire::DropReason::{NoMapping, NotTranslatable, PolicyDenied, StateInvalid};
use holdfast_wire::zone::Zones;
use serde_json::{Value, json};

/// A single port, a range, and a whole address outside the pool.
fn config() -> Value {
    json!({
        "pool": ["198.51.100.4/32"],
        "ports": "5000-5511",
        "publish": [
            "tcp 198.51.100.4:2222 -> 10.0.0.9:22",
            "udp 198.51.100.4:5000-5010 -> 10.0.0.9:6000-6010",
            "198.51.100.7 -> 10.0.0.7",
        ],
    })
}

fn nat() -> Bench {
    Bench::new(&[("nat", config())])
}

/// A client outside connects to a published port: the server sees the client, and the
/// client sees the outside address; no port is leased.
#[test]
fn a_published_port_is_reached_from_outside() {
    let mut bench = nat();
    for (way, segment) in [
        (">", "SYN seq 100 scale 7"),
        ("<", "SYN ACK seq 500 ack 101 scale 7"),
        (">", "ACK seq 101 ack 501"),
        ("<", "ACK PSH seq 501 ack 101 len 1300"),
        (">", "FIN ACK seq 101 ack 1801"),
        ("<", "FIN ACK seq 1801 ack 102"),
    ] {
        match way {
            ">" => bench.becomes(
                &format!("tcp 203.0.113.10:4000 > 198.51.100.4:2222 {segment}"),
                &format!("tcp 203.0.113.10:4000 > 10.0.0.9:22 {segment}"),
            ),
            _ => bench.becomes(
                &format!("tcp 10.0.0.9:22 > 203.0.113.10:4000 {segment}"),
                &format!("tcp 198.51.100.4:2222 > 203.0.113.10:4000 {segment}"),
            ),
        }
        assert!(!bench.nondeterministic, "nothing is leased");
    }
    assert_eq!(bench.flows(), 1);
    // Any client may connect; each connection is a flow.
    bench.becomes(
        "tcp 192.0.2.1:4000 > 198.51.100.4:2222 SYN",
        "tcp 192.0.2.1:4000 > 10.0.0.9:22 SYN",
    );
    assert_eq!(bench.flows(), 2);
}

/// Ports of a range lead to as many ports of the host, the ends included; a port beside
/// the range leads nowhere.
#[test]
fn a_range_of_ports_is_published_port_by_port() {
    let mut bench = nat();
    for at in 0..=10 {
        let (outside, inside) = (5000 + at, 6000 + at);
        bench.becomes(
            &format!("udp 203.0.113.10:4000 > 198.51.100.4:{outside} len 7"),
            &format!("udp 203.0.113.10:4000 > 10.0.0.9:{inside} len 7"),
        );
        bench.becomes(
            &format!("udp 10.0.0.9:{inside} > 203.0.113.10:4000 len 9"),
            &format!("udp 198.51.100.4:{outside} > 203.0.113.10:4000 len 9"),
        );
    }
    let flows = bench.flows();
    for packet in [
        "udp 203.0.113.10:4000 > 198.51.100.4:4999",
        "udp 203.0.113.10:4000 > 198.51.100.4:5011",
        "tcp 203.0.113.10:4000 > 198.51.100.4:5005 SYN",
        "tcp 203.0.113.10:4000 > 198.51.100.4:2221 SYN",
        "tcp 203.0.113.10:4000 > 198.51.100.4:2223 SYN",
        "udp 203.0.113.10:4000 > 198.51.100.4:2222",
        "icmp 203.0.113.10 > 198.51.100.4 echo id 5005",
        "udp 203.0.113.10:4000 > 198.51.100.5:5005",
        "gre 203.0.113.10 > 198.51.100.4",
    ] {
        bench.drops(packet, NoMapping);
    }
    assert_eq!(bench.flows(), flows);
}

/// Every packet to a whole address leads to its host, with the same ports and
/// identifiers, in both directions and from either initiator.
#[test]
fn a_whole_address_is_the_hosts() {
    let mut bench = nat();
    let (host, outside) = ("10.0.0.7", "198.51.100.7");
    for port in [1, 1024, 65_535] {
        bench.becomes(
            &format!("tcp 203.0.113.10:9 > {outside}:{port} SYN"),
            &format!("tcp 203.0.113.10:9 > {host}:{port} SYN"),
        );
        bench.becomes(
            &format!("udp {host}:{port} > 203.0.113.11:9"),
            &format!("udp {outside}:{port} > 203.0.113.11:9"),
        );
        bench.becomes(
            &format!("udp 203.0.113.11:9 > {outside}:{port}"),
            &format!("udp 203.0.113.11:9 > {host}:{port}"),
        );
    }
    for id in [0, 8, 7, 65_535] {
        // A host that is pinged with an identifier may ping with the same.
        for (from, to) in [("203.0.113.10", outside), (host, "203.0.113.10")] {
            let translated = |address: &str| {
                if address == outside { host.to_owned() } else { address.replace(host, outside) }
            };
            bench.becomes(
                &format!("icmp {from} > {to} echo id {id} seq 1 len 56"),
                &format!(
                    "icmp {} > {} echo id {id} seq 1 len 56",
                    translated(from),
                    translated(to)
                ),
            );
        }
        bench.becomes(
            &format!("icmp {host} > 203.0.113.10 reply id {id} seq 1 len 56"),
            &format!("icmp {outside} > 203.0.113.10 reply id {id} seq 1 len 56"),
        );
        bench.becomes(
            &format!("icmp 203.0.113.10 > {outside} reply id {id} seq 1 len 56"),
            &format!("icmp 203.0.113.10 > {host} reply id {id} seq 1 len 56"),
        );
    }
    assert_eq!(bench.free_numbers(), 0, "no block was asked for");
    bench.drops("gre 10.0.0.7 > 203.0.113.10", NotTranslatable);
    bench.drops("gre 203.0.113.10 > 198.51.100.7", NoMapping);
    bench.drops("icmp 203.0.113.10 > 198.51.100.7 timestamp id 1", NoMapping);
    bench.drops("icmp 203.0.113.10 > 198.51.100.7 reply id 1", NoMapping);
}

/// A packet that a published end sends first leaves from its outside end, and the answer
/// comes back; other ports of its host lease theirs.
#[test]
fn a_published_end_sends_from_its_outside_end() {
    let mut bench = nat();
    bench.becomes(
        "udp 10.0.0.9:6003 > 203.0.113.10:53 len 1",
        "udp 198.51.100.4:5003 > 203.0.113.10:53 len 1",
    );
    bench.becomes(
        "udp 203.0.113.10:53 > 198.51.100.4:5003 len 2",
        "udp 203.0.113.10:53 > 10.0.0.9:6003 len 2",
    );
    assert_eq!(bench.flows(), 1);
    let other = bench.passes("udp 10.0.0.9:6011 > 203.0.113.10:53 len 1").0;
    assert_eq!(other.ip().to_string(), "198.51.100.4");
    assert!((5011..=5511).contains(&other.port()), "{other}");
}

/// Inside hosts reach published ends by their outside ends (RFC 4787, REQ-9). The server
/// sees an outside end of the host, so its answers come back this way, and the host sees
/// the published end (REQ-9a).
#[test]
pub(crate) fn inside_hosts_reach_what_is_published() {
    let mut bench = nat();
    let (seen, server) = bench.passes("tcp 10.0.0.2:1000 > 198.51.100.4:2222 SYN seq 1");
    assert_eq!(
        (seen.ip().to_string(), server.to_string()),
        ("198.51.100.4".to_owned(), "10.0.0.9:22".to_owned())
    );
    bench.becomes(
        &format!("tcp 10.0.0.9:22 > {seen} SYN ACK seq 7 ack 2"),
        "tcp 198.51.100.4:2222 > 10.0.0.2:1000 SYN ACK seq 7 ack 2",
    );
    bench.becomes(
        "tcp 10.0.0.2:1000 > 198.51.100.4:2222 ACK seq 2 ack 8 len 99",
        &format!("tcp {seen} > 10.0.0.9:22 ACK seq 2 ack 8 len 99"),
    );
    // An error from the server about the host's packet, and one from the host about the
    // server's (RFC 5508, REQ-7).
    bench.becomes(
        &format!("icmp 10.0.0.9 > {} unreachable quoting cut 28 tcp {seen} > 10.0.0.9:22 seq 2", seen.ip()),
        "icmp 198.51.100.4 > 10.0.0.2 unreachable quoting cut 28 tcp 10.0.0.2:1000 > 198.51.100.4:2222 seq 2",
    );
    bench.becomes(
        "icmp 10.0.0.2 > 198.51.100.4 unreachable quoting cut 28 tcp 198.51.100.4:2222 > 10.0.0.2:1000 seq 7",
        &format!("icmp {} > 10.0.0.9 unreachable quoting cut 28 tcp 10.0.0.9:22 > {seen} seq 7", seen.ip()),
    );
    let held = bench.free_numbers();
    bench.wait(2 * 3600 + 241);
    assert_eq!(
        (bench.flows(), bench.free_numbers()),
        (0, held + 1),
        "the host's lease is given back"
    );
}

/// The same with ping, whose single identifier is the host's inside, and leased outside;
/// also from a host that has an outside address of its own, itself included.
#[test]
pub(crate) fn pings_and_published_hosts_hairpin_too() {
    let mut bench = nat();
    let id = bench.passes("icmp 10.0.0.2 > 198.51.100.7 echo id 7 seq 1 len 5").0.port();
    bench.becomes(
        "icmp 10.0.0.2 > 198.51.100.7 echo id 7 seq 2 len 5",
        &format!("icmp 198.51.100.4 > 10.0.0.7 echo id {id} seq 2 len 5"),
    );
    bench.becomes(
        &format!("icmp 10.0.0.7 > 198.51.100.4 reply id {id} seq 2 len 5"),
        "icmp 198.51.100.7 > 10.0.0.2 reply id 7 seq 2 len 5",
    );
    bench.becomes(
        &format!("icmp 10.0.0.7 > 198.51.100.4 exceeded quoting icmp 198.51.100.4 > 10.0.0.7 echo id {id} seq 2 len 5"),
        "icmp 198.51.100.7 > 10.0.0.2 exceeded quoting icmp 10.0.0.2 > 198.51.100.7 echo id 7 seq 2 len 5",
    );
    bench.becomes(
        "tcp 10.0.0.7:1000 > 198.51.100.4:2222 SYN",
        "tcp 198.51.100.7:1000 > 10.0.0.9:22 SYN",
    );
    bench.becomes(
        "tcp 10.0.0.9:22 > 198.51.100.7:1000 SYN ACK ack 1",
        "tcp 198.51.100.4:2222 > 10.0.0.7:1000 SYN ACK ack 1",
    );
    bench.becomes(
        "icmp 10.0.0.7 > 198.51.100.7 echo id 8",
        "icmp 198.51.100.7 > 10.0.0.7 echo id 8",
    );
    bench.becomes(
        "icmp 10.0.0.7 > 198.51.100.7 reply id 8",
        "icmp 198.51.100.7 > 10.0.0.7 reply id 8",
    );
    bench.becomes(
        "tcp 10.0.0.7:1000 > 198.51.100.7:80 SYN",
        "tcp 198.51.100.7:1000 > 10.0.0.7:80 SYN",
    );
    bench.becomes(
        "tcp 10.0.0.7:80 > 198.51.100.7:1000 SYN ACK ack 1",
        "tcp 198.51.100.7:80 > 10.0.0.7:1000 SYN ACK ack 1",
    );
}

/// Errors about packets to or from a published end are translated with their quoted
/// packet, and hide the inside.
#[test]
pub(crate) fn errors_about_published_ends_are_translated() {
    let mut bench = nat();
    bench.passes("udp 203.0.113.10:4000 > 198.51.100.4:5001 len 9");
    for cut in ["cut 28", ""] {
        for router in ["10.0.0.9", "10.0.0.254"] {
            bench.becomes(
                &format!("icmp {router} > 203.0.113.10 unreachable quoting {cut} udp 203.0.113.10:4000 > 10.0.0.9:6001 len 9"),
                &format!(
                    "icmp 198.51.100.4 > 203.0.113.10 unreachable quoting {cut} udp 203.0.113.10:4000 > 198.51.100.4:5001 len 9"
                ),
            );
        }
        bench.becomes(
            &format!("icmp 192.0.2.9 > 198.51.100.4 exceeded quoting {cut} udp 198.51.100.4:5001 > 203.0.113.10:4000 len 9"),
            &format!("icmp 192.0.2.9 > 10.0.0.9 exceeded quoting {cut} udp 10.0.0.9:6001 > 203.0.113.10:4000 len 9"),
        );
    }
    bench.drops(
        "icmp 192.0.2.9 > 198.51.100.4 exceeded quoting udp 198.51.100.4:5002 > 203.0.113.10:4000",
        StateInvalid,
    );
}

/// Fragments to a published port follow their first one.
#[test]
fn fragments_reach_what_is_published() {
    let mut bench = nat();
    bench.becomes(
        "udp 203.0.113.10:40 > 198.51.100.4:5000 len 24 more",
        "udp 203.0.113.10:40 > 10.0.0.9:6000 len 24 more",
    );
    bench.becomes(
        "fragment 203.0.113.10 > 198.51.100.4 udp offset 32 len 7",
        "fragment 203.0.113.10 > 10.0.0.9 udp offset 32 len 7",
    );
}

/// All leases of an address that has published ports: no leased port or identifier is a
/// published one.
#[test]
pub(crate) fn no_flow_leases_what_is_published() {
    let mut bench = nat();
    // 11 of 512 ports are published; the rest is shared in blocks of 256.
    let mut ports: Vec<u16> = (0..128)
        .map(|at| bench.passes(&format!("udp 10.0.0.2:{} > 203.0.113.10:53", 2000 + at)).0.port())
        .collect();
    ports
        .extend((0..128).map(|id| {
            bench.passes(&format!("icmp 10.0.0.2 > 203.0.113.10 echo id {id}")).0.port()
        }));
    bench.drops("udp 10.0.0.2:1 > 203.0.113.10:53", holdfast_wire::DropReason::PoolEmpty);
    ports.sort_unstable();
    assert_eq!(ports, (5011..5267).collect::<Vec<u16>>());
}

/// A pool address that is published whole is not leased to other hosts; the pool's other
/// address goes on.
#[test]
fn a_whole_address_is_not_leased() {
    let mut bench = Bench::new(&[(
        "nat",
        json!({ "pool": ["198.51.100.4/31"], "ports": "5000-5255", "publish": ["198.51.100.4 -> 10.0.0.4"] }),
    )]);
    for port in 0..256 {
        let source = bench
            .passes(&format!("udp 10.0.0.{}:{} > 203.0.113.10:53", port % 3 + 1, 2000 + port))
            .0;
        assert_eq!(source.ip().to_string(), "198.51.100.5");
    }
    bench.drops("udp 10.0.0.1:1 > 203.0.113.10:53", holdfast_wire::DropReason::PoolEmpty);
    bench.becomes("udp 10.0.0.4:1 > 203.0.113.10:53", "udp 198.51.100.4:1 > 203.0.113.10:53");
}

/// Flows to published ends end without giving back other flows' numbers: the flow that
/// leased first keeps its port alone.
#[test]
pub(crate) fn the_end_of_a_published_flow_gives_nothing_back() {
    let mut config = config();
    // The first flow has the first number.
    config["ports"] = json!("sequential 5000-5511");
    let mut bench = Bench::new(&[("nat", config)]);
    let first = bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 SYN seq 1").0;
    bench.passes(&format!("tcp 203.0.113.10:80 > {first} SYN ACK seq 7 ack 2"));
    bench.passes("tcp 10.0.0.2:1 > 203.0.113.10:80 ACK seq 2 ack 8");
    let free = bench.free_numbers();
    bench.passes("udp 203.0.113.10:4000 > 198.51.100.4:5000");
    bench.passes("udp 10.0.0.7:5 > 203.0.113.10:53");
    bench.wait(301);
    assert_eq!((bench.flows(), bench.free_numbers()), (1, free));
    for port in 0..255 {
        assert_ne!(
            bench.passes(&format!("udp 10.0.0.2:{} > 203.0.113.10:53", 2000 + port)).0,
            first
        );
    }
}

/// The firewall in front of the translator sees the original destination: a rule admits a
/// published port, and `default: deny` drops everything else.
#[test]
fn the_firewall_decides_who_reaches_what_is_published() {
    let mut bench = Bench::new(&[
        (
            "firewall",
            json!({ "rules": ["allow tcp from any to 198.51.100.4 port 2222", "allow icmp from any to 198.51.100.7"] }),
        ),
        ("nat", config()),
    ]);
    bench.becomes(
        "tcp 203.0.113.10:4000 > 198.51.100.4:2222 SYN seq 1",
        "tcp 203.0.113.10:4000 > 10.0.0.9:22 SYN seq 1",
    );
    bench.becomes(
        "tcp 10.0.0.9:22 > 203.0.113.10:4000 SYN ACK seq 7 ack 2",
        "tcp 198.51.100.4:2222 > 203.0.113.10:4000 SYN ACK seq 7 ack 2",
    );
    bench.drops("udp 203.0.113.10:4000 > 198.51.100.4:5000", PolicyDenied);
    bench.becomes(
        "icmp 203.0.113.10 > 198.51.100.7 echo id 7",
        "icmp 203.0.113.10 > 10.0.0.7 echo id 7",
    );
    for kind in [8, 9, 10, 13, 17, 200] {
        bench.drops(&format!("icmp 10.0.0.7 > 203.0.113.10 type {kind} id 7"), PolicyDenied);
        assert!(
            kind == 8
                || bench
                    .send(&format!("icmp 203.0.113.10 > 198.51.100.7 type {kind} id 7"))
                    .is_err()
        );
    }
    bench.becomes(
        "icmp 10.0.0.7 > 203.0.113.10 reply id 7",
        "icmp 198.51.100.7 > 203.0.113.10 reply id 7",
    );
    assert_eq!(bench.flows(), 2);
}

/// An impossible mapping is refused, with its place in the text.
#[test]
fn a_wrong_mapping_is_named_with_its_place() {
    let build = |publish: &[&str]| {
        let config = json!({ "pool": ["198.51.100.4/31"], "publish": publish });
        holdfast_functions::catalog::build("nat", &config)
    };
    for right in [
        "tcp 198.51.100.4:1 -> 10.0.0.9:1",
        "udp 192.0.2.1:65535 -> 10.0.0.9:1",
        "  192.0.2.1   ->  10.0.0.9 ",
    ] {
        assert!(build(&[right]).is_ok(), "{right}");
    }
    assert!(
        build(&[
            "tcp 192.0.2.1:1 -> 10.0.0.9:1",
            "udp 192.0.2.1:1 -> 10.0.0.9:1",
            "tcp 192.0.2.1:2 -> 10.0.0.9:1"
        ])
        .is_ok()
    );
    let first = "tcp 198.51.100.4:100-200 -> 10.0.0.9:100-200";
    for (wrong, offset, text) in [
        ("", 0, "is no static mapping like `tcp 198.51.100.4:2222 -> 10.0.0.9:22`"),
        ("tcp 198.51.100.4:22 10.0.0.9:22", 0, "is no static mapping"),
        ("icmp 198.51.100.4:22 -> 10.0.0.9:22", 0, "`icmp` is neither `tcp` nor `udp`"),
        ("tcp 198.51.100.4 -> 10.0.0.9:22", 4, "is not an address with a port"),
        ("tcp 198.51.100.400:22 -> 10.0.0.9:22", 4, "`198.51.100.400` is not an IPv4 address"),
        ("tcp 2001:db8::1:22 -> 10.0.0.9:22", 4, "is not an IPv4 address"),
        ("tcp 198.51.100.4:0 -> 10.0.0.9:22", 17, "`0` is not a port from 1 to 65535"),
        ("tcp 198.51.100.4:30-20 -> 10.0.0.9:30-20", 17, "did you mean `20-30`?"),
        (
            "udp 198.51.100.4:20-30 -> 10.0.0.9:20-29",
            26,
            "the outside ports are 11 and the inside ports 10",
        ),
        ("tcp 198.51.100.4:20 -> 224.0.0.9:22", 23, "is not the address of a host"),
        ("127.0.0.1 -> 10.0.0.9", 0, "is not the address of a host"),
        ("tcp 198.51.100.4:20 -> 198.51.100.5:22", 23, "198.51.100.5 is an outside address"),
        ("192.0.2.1 -> 192.0.2.1", 13, "192.0.2.1 is an outside address"),
        (
            "tcp 198.51.100.4:200 -> 10.0.0.9:22",
            4,
            "overlaps `tcp 198.51.100.4:100-200 -> 10.0.0.9:100-200`",
        ),
        ("198.51.100.4 -> 10.0.0.9", 0, "overlaps `tcp 198.51.100.4:100-200"),
    ] {
        let Some(error) = build(&[first, wrong]).err() else { panic!("`{wrong}` is taken") };
        assert!(error.message.contains(text), "`{wrong}`: {}", error.message);
        assert_eq!(
            (error.path.as_str(), error.offset),
            ("publish[1]", Some(offset)),
            "`{wrong}`: {}",
            error.message
        );
    }
    let whole = build(&["198.51.100.4 -> 10.0.0.4", "198.51.100.5 -> 10.0.0.5"])
        .err()
        .expect("nothing is left of the pool");
    assert!(
        whole.path == "publish" && whole.message.contains("leaves no address of the pool"),
        "{whole:?}"
    );
}

/// The box owns the outside addresses of static mappings, each listed once.
#[test]
fn outside_addresses_are_owned() {
    let owned = holdfast_functions::catalog::configured("nat", &config(), &Zones::default())
        .expect("right")
        .owned_addresses();
    assert_eq!(
        owned.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["198.51.100.4/32", "198.51.100.7/32"]
    );
}
