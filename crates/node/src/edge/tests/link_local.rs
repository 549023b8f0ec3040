//! The ports' link-local addresses, and routers with link-local addresses.

use super::{Bench, EdgeRoute, SECOND};

fn with_gateway(gateway: &str) -> Bench {
    Bench::with(|config| config.routes[2].gateway = gateway.parse().ok())
}

/// RFC 4862, section 5.3: each port has one, which is heard on its link alone.
#[test]
fn a_ports_link_local_address_answers() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.port(0, "ping fe80::9 > fe80::ff:fe00:b0"),
        ["0< box0>host9 pong fe80::ff:fe00:b0 > fe80::9 ttl=64"]
    );
    assert_eq!(
        bench.port(1, "ping fe80::9 > fe80::ff:fe00:b1 ttl=1"),
        ["1< box1>host9 pong fe80::ff:fe00:b1 > fe80::9 ttl=64"]
    );
    assert_eq!(
        bench.port(0, "ping 2001:db8:a::9 > fe80::ff:fe00:b0"),
        ["0< box0>host9 pong fe80::ff:fe00:b0 > 2001:db8:a::9 ttl=64"]
    );
    assert_eq!(
        bench.port(0, "tcp [fe80::9]:5 > [fe80::ff:fe00:b0]:22 len=0"),
        [
            "0< box0>host9 reset [fe80::ff:fe00:b0]:22 > [fe80::9]:5 ttl=64 flags=20 seq=0 ack=2",
            "drop local"
        ]
    );
    // A link-local address of another link is another station's, which may be there.
    assert_eq!(bench.port(0, "ping fe80::9 > fe80::ff:fe00:b1"), ["drop link_local"]);
    assert_eq!(
        bench.port(0, "ping fe80::ff:fe00:b1 > fe80::ff:fe00:b0"),
        ["0< box0>host177 pong fe80::ff:fe00:b0 > fe80::ff:fe00:b1 ttl=64"]
    );
    assert_eq!(
        bench.port(0, "ping fe80::ff:fe00:b0 > 2001:db8:a::1"),
        ["drop bad_source"],
        "its own"
    );
}

/// RFC 4291, section 2.5.6, and RFC 4861, section 7.2.
#[test]
fn neighbour_discovery_of_a_link_local_address() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.port(0, "ns fe80::ff:fe00:b0 from fe80::9"),
        ["0< box0>host9 na fe80::ff:fe00:b0 to fe80::9 mac=box0 flags=0xe0"]
    );
    assert!(bench.port(0, "ns fe80::ff:fe00:b1 from fe80::9").is_empty());
    // Another station with the same link-local address: its probe for duplicates finds
    // the box, and its claim is defended against.
    assert_eq!(
        bench.port(0, "ns fe80::ff:fe00:b0 from :: bare from=02:00:00:00:01:09"),
        ["0< box0>33:33:00:00:00:01 na fe80::ff:fe00:b0 to ff02::1 mac=box0 flags=0xa0"]
    );
    assert_eq!(
        bench.port(0, "na fe80::ff:fe00:b0 flags=32 mac=02:00:00:00:01:66"),
        [
            "0< box0>33:33:00:00:00:01 na fe80::ff:fe00:b0 to ff02::1 mac=box0 flags=0xa0",
            "drop address_conflict"
        ]
    );
    bench.wait(10 * SECOND);
    assert!(
        bench.port(0, "na fe80::ff:fe00:b1 flags=32 mac=02:00:00:00:01:66").is_empty(),
        "of another link"
    );
}

#[test]
fn nothing_link_local_is_forwarded() {
    let mut bench = Bench::new();
    assert_eq!(bench.port(0, "udp [fe80::9]:1 > [2001:db8:f::7]:2"), ["drop link_local"]);
    assert_eq!(bench.port(0, "udp [2001:db8:a::9]:1 > [fe80::7]:2"), ["drop link_local"]);
    // Packets that a chain has released are not forwarded either.
    assert_eq!(bench.released(0, "udp [2001:db8:a::9]:1 > [fe80::7]:2"), ["drop link_local"]);
    assert_eq!(
        bench.released(0, "udp [2001:db8:a::9]:1 > [fe80::ff:fe00:b1]:2"),
        ["drop link_local"]
    );
    assert_eq!(bench.released(0, "udp 10.0.0.9:1 > 169.254.1.1:2"), ["drop link_local"]);
}

/// A link-local router is resolved from the port's own link-local address;
/// [`super::frames::describe`] checks the hop limits.
#[test]
fn a_router_at_a_link_local_address() {
    let mut bench = with_gateway("fe80::fe");
    let words = "udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2";
    assert_eq!(
        bench.released(0, words),
        ["1< box1>33:33:ff:00:00:fe ns fe80::fe from fe80::ff:fe00:b1 to ff02::1:ff00:fe mac=box1"]
    );
    // The same link-local address at another port is another station's.
    assert!(bench.port(0, "na fe80::fe dst=fe80::ff:fe00:b0").is_empty());
    assert_eq!(
        bench.port(1, "na fe80::fe dst=fe80::ff:fe00:b1"),
        [format!("1< box1>host254 {words} ttl=63")]
    );
    assert_eq!(
        bench.port(1, "udp [2001:db8:f::7]:2 > [2001:db8:a::9]:1"),
        ["forward udp [2001:db8:f::7]:2 > [2001:db8:a::9]:1"]
    );
}

#[test]
fn the_same_link_local_router_at_two_ports() {
    let mut bench = Bench::with(|config| {
        config.routes[2].gateway = "fe80::fe".parse().ok();
        let other = EdgeRoute {
            prefix: "2001:db8:e::/48".parse().expect("a prefix"),
            port: 0,
            ..config.routes[2]
        };
        config.routes.push(other);
    });
    assert!(
        bench.released(0, "udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2")[0]
            .starts_with("1< box1>33:33:ff:00:00:fe ns fe80::fe")
    );
    assert!(
        bench.released(1, "udp [2001:db8:f::7]:1 > [2001:db8:e::7]:2")[0]
            .starts_with("0< box0>33:33:ff:00:00:fe ns fe80::fe")
    );
}

/// A port without IPv6 addresses speaks IPv6 only if a router is reached by it.
#[test]
fn a_port_without_ipv6_has_no_link_local_address() {
    let only_v4 = |gateway: &str| {
        let gateway = gateway.parse().ok();
        Bench::with(|config| {
            config.ports[1].addresses.retain(|(address, _)| address.is_ipv4());
            config.routes[2].gateway = gateway;
            if gateway.is_none() {
                config.routes.truncate(2);
            }
        })
    };
    assert_eq!(only_v4("").port(1, "ping fe80::9 > fe80::ff:fe00:b1"), ["drop link_local"]);
    assert!(only_v4("").port(1, "ns fe80::ff:fe00:b1 from fe80::9").is_empty());
    assert_eq!(only_v4("fe80::fe").port(1, "ping fe80::9 > fe80::ff:fe00:b1").len(), 1);
    assert_eq!(
        only_v4("fe80::fe").released(0, "udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2"),
        ["1< box1>33:33:ff:00:00:fe ns fe80::fe from fe80::ff:fe00:b1 to ff02::1:ff00:fe mac=box1"]
    );
}

/// A configured link-local address may be the same on every port.
#[test]
fn a_link_local_address_that_somebody_has_chosen() {
    let mut bench = Bench::with(|config| {
        let own = ("fe80::1".parse().expect("an address"), 64);
        config.ports.iter_mut().for_each(|port| port.addresses.push(own));
    });
    assert_eq!(
        bench.port(0, "ping fe80::9 > fe80::1"),
        ["0< box0>host9 pong fe80::1 > fe80::9 ttl=64"]
    );
    assert_eq!(
        bench.port(1, "ping fe80::9 > fe80::1"),
        ["1< box1>host9 pong fe80::1 > fe80::9 ttl=64"]
    );
    assert_eq!(bench.port(0, "ping fe80::9 > fe80::ff:fe00:b0"), ["drop link_local"]);
}

/// A router outside of the port's networks is on its link because a route says so.
#[test]
fn a_router_outside_of_the_ports_networks() {
    let mut bench = Bench::with(|config| {
        config.routes.push(EdgeRoute {
            prefix: "172.20.0.0/16".parse().expect("a prefix"),
            port: 1,
            gateway: Some([172, 16, 0, 1].into()),
        });
    });
    assert_eq!(
        bench.released(0, "udp 198.51.100.4:1 > 172.20.1.1:2"),
        ["1< box1>all arp who-has 172.16.0.1 tell 203.0.113.1"]
    );
    assert_eq!(
        bench.port(1, "arp 172.16.0.1 is-at 02:00:00:00:01:16 target=203.0.113.1 to=box1"),
        ["1< box1>host22 udp 198.51.100.4:1 > 172.20.1.1:2 ttl=63"]
    );
    // The router itself is reached, and heard, by this port and no other.
    assert_eq!(
        bench.released(0, "udp 198.51.100.4:1 > 172.16.0.1:2"),
        ["1< box1>host22 udp 198.51.100.4:1 > 172.16.0.1:2 ttl=63"]
    );
    assert_eq!(bench.port(1, "ping 172.16.0.1 > 203.0.113.1").len(), 1);
    assert!(bench.port(1, "ping 172.16.0.1 > 203.0.113.1")[0].contains("pong"));
    assert_eq!(bench.port(0, "ping 172.16.0.1 > 203.0.113.1"), ["drop spoofed_source"]);
    assert_eq!(bench.port(1, "ping 172.16.0.2 > 203.0.113.1"), ["drop spoofed_source"]);
}
