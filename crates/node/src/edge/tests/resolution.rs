//! ARP and neighbour discovery.

use super::{Bench, SECOND};

#[test]
fn arp_is_answered_for_own_and_owned_addresses() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.port(0, "arp who-has 10.0.0.1 tell 10.0.0.9"),
        ["0< box0>host9 arp 10.0.0.1 is-at box0 for 10.0.0.9"]
    );
    assert_eq!(
        bench.port(0, "arp who-has 10.0.0.100 tell 10.0.0.9"),
        ["0< box0>host9 arp 10.0.0.100 is-at box0 for 10.0.0.9"]
    );
    let asked = bench.port(1, "arp who-has 198.51.100.5 tell 203.0.113.254");
    assert_eq!(asked, ["1< box1>host254 arp 198.51.100.5 is-at box1 for 203.0.113.254"]);
    // No answer for other hosts, nor for addresses at another port.
    assert!(bench.port(0, "arp who-has 10.0.0.7 tell 10.0.0.9").is_empty());
    assert!(bench.port(1, "arp who-has 10.0.0.1 tell 203.0.113.254").is_empty());
    // A probe for duplicates (RFC 5227) finds the box.
    assert_eq!(bench.port(0, "arp who-has 10.0.0.1 tell 0.0.0.0 from=02:00:00:00:01:00").len(), 1);
}

#[test]
fn arp_that_cannot_be_is_refused() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.port(0, "arp 10.0.0.9 is-at 03:00:00:00:01:66 from=03:00:00:00:01:66"),
        ["drop bad_source"],
        "from many"
    );
    assert_eq!(
        bench.port(0, "arp who-has 10.0.0.1 tell 10.0.0.255"),
        ["drop bad_source"],
        "a broadcast address"
    );
    assert_eq!(
        bench.port(0, "arp who-has 10.0.0.1 tell 127.0.0.1"),
        ["drop bad_source"],
        "loopback"
    );
    assert_eq!(
        bench.port(0, "arp who-has 10.0.0.1 tell 10.0.0.9 op=3"),
        ["drop bad_source"],
        "reverse ARP"
    );
}

/// A virtual router answers with its virtual address from its physical one (RFC 5798,
/// section 8.1.2).
#[test]
fn an_answer_in_anothers_frame() {
    let mut bench = Bench::new();
    bench.released(0, "udp 198.51.100.4:1 > 192.0.2.7:2");
    assert_eq!(
        bench.port(1, "arp 203.0.113.254 is-at 02:00:00:00:01:fe to=box1 from=02:00:00:00:01:66"),
        ["1< box1>host254 udp 198.51.100.4:1 > 192.0.2.7:2 ttl=63"]
    );
}

/// A station that claims an address of the box is counted, not believed, and told so, but
/// not in a loop (RFC 5227, section 2.4).
#[test]
fn an_address_of_ours_that_somebody_claims() {
    let mut bench = Bench::new();
    let claim = "arp 10.0.0.1 is-at 02:00:00:00:01:66";
    assert_eq!(
        bench.port(0, claim),
        ["0< box0>all arp who-has 10.0.0.1 tell 10.0.0.1", "drop address_conflict"]
    );
    assert_eq!(bench.port(0, claim), ["drop address_conflict"], "once");
    // Claims on one link do not use up the defence on another.
    let pool = "arp 198.51.100.4 is-at 02:00:00:00:01:66 to=all";
    assert_eq!(
        bench.port(1, pool),
        ["1< box1>all arp who-has 198.51.100.4 tell 198.51.100.4", "drop address_conflict"]
    );
    bench.wait(10 * SECOND);
    // On a link of two ports each hears the other's announcements; a port does not defend
    // another port's address.
    assert_eq!(bench.port(0, "arp 198.51.100.4 is-at box1 from=box1"), ["drop address_conflict"]);
    assert_eq!(bench.port(0, "arp 203.0.113.1 is-at 02:00:00:00:01:66"), ["drop address_conflict"]);
}

#[test]
fn packets_wait_for_their_neighbour() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.released(0, "udp 198.51.100.4:1 > 192.0.2.7:2"),
        ["1< box1>all arp who-has 203.0.113.254 tell 203.0.113.1"]
    );
    assert!(bench.released(0, "udp 198.51.100.4:3 > 192.0.2.7:4").is_empty(), "asked once");
    assert_eq!(bench.edge.held(), 2);
    assert_eq!(
        bench.port(1, "arp 203.0.113.254 is-at 02:00:00:00:01:fe to=box1"),
        [
            "1< box1>host254 udp 198.51.100.4:1 > 192.0.2.7:2 ttl=63",
            "1< box1>host254 udp 198.51.100.4:3 > 192.0.2.7:4 ttl=63"
        ]
    );
    assert_eq!(bench.edge.held(), 0);
    // The neighbour is known now: no packet waits, no question is sent.
    assert_eq!(
        bench.released(0, "udp 198.51.100.4:5 > 192.0.2.7:6"),
        ["1< box1>host254 udp 198.51.100.4:5 > 192.0.2.7:6 ttl=63"]
    );
    assert_eq!(
        bench.edge.poll_timeout().min(bench.now + 60 * SECOND),
        bench.now + SECOND,
        "the old question's time, which asks nobody"
    );
    assert!(bench.wait(20 * SECOND).is_empty());
    assert_eq!(bench.edge.poll_timeout(), u64::MAX);
}

#[test]
fn a_neighbour_that_does_not_answer() {
    let mut bench = Bench::new();
    bench.released(0, "udp 198.51.100.4:1 > 203.0.113.9:2");
    assert_eq!(
        bench.wait(10 * SECOND),
        [
            "1s 1< box1>all arp who-has 203.0.113.9 tell 203.0.113.1",
            "2s 1< box1>all arp who-has 203.0.113.9 tell 203.0.113.1",
            "3s again 1> host4>box0 host 203.0.113.1 > 198.51.100.4 ttl=64 about [udp 198.51.100.4:1 > 203.0.113.9:2 ttl=63] \
             as udp 203.0.113.9:2 > 198.51.100.4:1",
            "3s drop neighbor_unresolved"
        ]
    );
    // The next packet asks anew.
    assert_eq!(bench.released(0, "udp 198.51.100.4:1 > 203.0.113.9:2").len(), 1);
}

#[test]
fn a_neighbour_that_does_not_answer_in_ipv6() {
    let mut bench = Bench::new();
    let ns =
        "1< box1>33:33:ff:00:00:09 ns 2001:db8:b::9 from 2001:db8:b::1 to ff02::1:ff00:9 mac=box1";
    assert_eq!(bench.released(0, "udp [2001:db8:a::9]:1 > [2001:db8:b::9]:2"), [ns]);
    let effects = bench.wait(10 * SECOND);
    assert_eq!(effects[..2], [format!("1s {ns}"), format!("2s {ns}")]);
    assert!(
        effects[2].starts_with("3s again 1> host9>box0 host 2001:db8:b::1 > 2001:db8:a::9"),
        "{effects:?}"
    );
}

#[test]
fn the_queue_for_one_neighbour_is_bounded_and_the_oldest_makes_room() {
    let limit = super::super::neighbors::HELD_PER_NEIGHBOR;
    let mut bench = Bench::with_buffers(2 * limit);
    for port in 1..=limit + 8 {
        let effects = bench.released(0, &format!("udp 198.51.100.4:{port} > 203.0.113.9:2"));
        assert_eq!(
            effects.last().is_some_and(|effect| effect == "drop neighbor_unresolved"),
            port > limit,
            "{effects:?}"
        );
    }
    let sent = bench.port(1, "arp 203.0.113.9 is-at 02:00:00:00:01:09 to=box1");
    assert_eq!(sent.len(), limit);
    assert_eq!(sent[0], "1< box1>host9 udp 198.51.100.4:9 > 203.0.113.9:2 ttl=63");
    assert_eq!(
        sent[limit - 1],
        format!("1< box1>host9 udp 198.51.100.4:{} > 203.0.113.9:2 ttl=63", limit + 8)
    );
}

#[test]
fn who_asks_for_us_is_known_but_asked_at_first_use() {
    let mut bench = Bench::knowing(&[(0, "arp who-has 10.0.0.1 tell 10.0.0.9")]);
    assert_eq!(
        bench.released(1, "udp 192.0.2.7:2 > 10.0.0.9:1"),
        [
            "0< box0>host9 udp 192.0.2.7:2 > 10.0.0.9:1 ttl=63",
            "0< box0>host9 arp who-has 10.0.0.9 tell 10.0.0.1"
        ]
    );
    assert_eq!(
        bench.released(1, "udp 192.0.2.7:2 > 10.0.0.9:1").len(),
        1,
        "one question at a time"
    );
    bench.port(0, "arp 10.0.0.9 is-at 02:00:00:00:01:09");
    bench.wait(29 * SECOND);
    assert_eq!(
        bench.released(1, "udp 192.0.2.7:2 > 10.0.0.9:1").len(),
        1,
        "believed for half a minute"
    );
    bench.wait(2 * SECOND);
    assert_eq!(bench.released(1, "udp 192.0.2.7:2 > 10.0.0.9:1").len(), 2, "then asked again");
}

#[test]
fn a_neighbour_that_moved_without_a_word_is_found_again() {
    let mut bench = Bench::knowing(&[(0, "arp who-has 10.0.0.1 tell 10.0.0.9")]);
    bench.released(1, "udp 192.0.2.7:2 > 10.0.0.9:1");
    assert_eq!(
        bench.wait(3 * SECOND),
        [
            "1s 0< box0>host9 arp who-has 10.0.0.9 tell 10.0.0.1",
            "2s 0< box0>host9 arp who-has 10.0.0.9 tell 10.0.0.1",
            "3s 0< box0>all arp who-has 10.0.0.9 tell 10.0.0.1"
        ]
    );
    assert!(bench.released(1, "udp 192.0.2.7:2 > 10.0.0.9:1").is_empty(), "waits");
    assert_eq!(
        bench.port(0, "arp 10.0.0.9 is-at 02:00:00:00:01:77"),
        ["0< box0>host119 udp 192.0.2.7:2 > 10.0.0.9:1 ttl=63"]
    );
}

#[test]
fn gratuitous_arp_moves_a_neighbour_and_makes_none() {
    let mut bench = Bench::new();
    bench.port(0, "arp 10.0.0.9 is-at 02:00:00:00:01:09 target=10.0.0.9 to=all");
    let asked = bench.released(1, "udp 192.0.2.7:2 > 10.0.0.9:1");
    assert_eq!(
        asked,
        ["0< box0>all arp who-has 10.0.0.9 tell 10.0.0.1"],
        "nobody had asked for it"
    );
    bench.port(0, "arp 10.0.0.9 is-at 02:00:00:00:01:09");
    bench.port(0, "arp 10.0.0.9 is-at 02:00:00:00:01:77 target=10.0.0.9 to=all");
    assert_eq!(
        bench.released(1, "udp 192.0.2.7:2 > 10.0.0.9:1"),
        [
            "0< box0>host119 udp 192.0.2.7:2 > 10.0.0.9:1 ttl=63",
            "0< box0>host119 arp who-has 10.0.0.9 tell 10.0.0.1"
        ]
    );
}

#[test]
fn who_is_not_on_the_link_is_answered_but_not_remembered() {
    let mut bench = Bench::new();
    assert_eq!(bench.port(0, "arp who-has 10.0.0.1 tell 172.16.0.9").len(), 1);
    assert!(bench.edge.neighbors.known(&(0, holdfast_wire::map_v4([172, 16, 0, 9]))).is_none());
    bench.port(0, "arp who-has 10.0.0.1 tell 10.0.0.9");
    assert!(bench.edge.neighbors.known(&(0, holdfast_wire::map_v4([10, 0, 0, 9]))).is_some());
}

#[test]
fn the_box_announces_its_addresses() {
    let effects = Bench::new().announce();
    assert_eq!(
        effects[..8],
        [
            "0< box0>all arp who-has 10.0.0.1 tell 10.0.0.1",
            "0< box0>33:33:00:00:00:01 na 2001:db8:a::1 to ff02::1 mac=box0 flags=0xa0",
            "0< box0>33:33:00:00:00:01 na fe80::ff:fe00:b0 to ff02::1 mac=box0 flags=0xa0",
            "0< box0>all arp who-has 198.51.100.4 tell 198.51.100.4",
            "0< box0>all arp who-has 198.51.100.5 tell 198.51.100.5",
            "0< box0>all arp who-has 10.0.0.100 tell 10.0.0.100",
            "0< box0>33:33:00:00:00:01 na 2001:db8:a::100 to ff02::1 mac=box0 flags=0xa0",
            "0< box0>all arp who-has 203.0.113.2 tell 203.0.113.2"
        ]
    );
    assert!(effects[8..].iter().all(|effect| effect.starts_with("1< box1>")));
}

#[test]
fn solicitations_are_answered() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.port(0, "ns 2001:db8:a::1 from 2001:db8:a::9"),
        ["0< box0>host9 na 2001:db8:a::1 to 2001:db8:a::9 mac=box0 flags=0xe0"]
    );
    assert_eq!(
        bench.port(0, "ns 2001:db8:a::100 from fe80::9"),
        ["0< box0>host9 na 2001:db8:a::100 to fe80::9 mac=box0 flags=0xe0"],
        "for what chains own, to a link-local address"
    );
    assert_eq!(
        bench.port(0, "ns 2001:db8:a::1 from :: bare from=02:00:00:00:01:09"),
        ["0< box0>33:33:00:00:00:01 na 2001:db8:a::1 to ff02::1 mac=box0 flags=0xa0"],
        "a probe for duplicates"
    );
    assert_eq!(
        bench.port(0, "ns 2001:db8:a::1 from 2001:db8:a::9 dst=2001:db8:a::1 to=box0 bare"),
        ["0< box0>host9 na 2001:db8:a::1 to 2001:db8:a::9 mac=box0 flags=0xe0"],
        "by unicast, without its address"
    );
    assert!(bench.port(0, "ns 2001:db8:a::7 from 2001:db8:a::9").is_empty());
    assert!(bench.port(1, "ns 2001:db8:a::1 from 2001:db8:b::fe").is_empty());
}

#[test]
fn advertisements_are_learned() {
    let mut bench = Bench::new();
    assert_eq!(bench.released(0, "udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2").len(), 1);
    assert_eq!(
        bench.port(1, "na 2001:db8:b::fe"),
        ["1< box1>host254 udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2 ttl=63"]
    );
    assert_eq!(bench.released(0, "udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2").len(), 1);
    // Without override another address is only a reason to ask (RFC 4861, section 7.2.5).
    bench.port(1, "na 2001:db8:b::fe mac=02:00:00:00:01:77 flags=0");
    assert_eq!(
        bench.released(0, "udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2"),
        [
            "1< box1>host254 udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2 ttl=63",
            "1< box1>host254 ns 2001:db8:b::fe from 2001:db8:b::1 to 2001:db8:b::fe mac=box1"
        ]
    );
    // An answer without an address confirms the one that is known.
    bench.port(1, "na 2001:db8:b::fe bare");
    assert!(bench.wait(5 * SECOND).is_empty());
    // With override the address has moved.
    bench.port(1, "na 2001:db8:b::fe mac=02:00:00:00:01:77 flags=32");
    assert!(
        bench.released(0, "udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2")[0]
            .starts_with("1< box1>host119 udp")
    );
}

#[test]
fn neighbour_discovery_that_cannot_be_is_refused() {
    let mut bench = Bench::new();
    let mut only = |words: &str| bench.port(0, words).join(", ");
    assert_eq!(
        only("ns 2001:db8:a::1 from 2001:db8:a::9 hops=254"),
        "drop bad_source",
        "it crossed a router"
    );
    assert_eq!(only("ns 2001:db8:a::1 from 2001:db8:a::9 badl4"), "drop bad_checksum");
    let defence = "0< box0>33:33:00:00:00:01 na 2001:db8:a::1 to ff02::1 mac=box0 flags=0xa0, drop address_conflict";
    assert_eq!(only("ns 2001:db8:a::1 from 2001:db8:a::1"), defence, "our own address");
    assert_eq!(
        only("na 2001:db8:a::1"),
        "drop address_conflict",
        "our own address, not long after"
    );
    assert_eq!(only("na 2001:db8:a::100 flags=32"), "drop address_conflict", "a virtual address");
    assert_eq!(only("na ff02::9"), "drop bad_source", "a group");
    assert_eq!(
        only("ns 2001:db8:a::1 from ::"),
        "drop bad_source",
        "an address for the unspecified one"
    );
    assert_eq!(only("ns 2001:db8:a::1 from ff02::9"), "drop bad_source");
    assert_eq!(
        only("na 2001:db8:a::9 dst=ff02::1 to=33:33:00:00:00:01"),
        "drop bad_source",
        "an answer to all"
    );
    assert_eq!(
        only("na 2001:db8:a::9 mac=03:00:00:00:00:01 from=02:00:00:00:01:09"),
        "drop bad_source",
        "to a group's MAC address"
    );
    assert_eq!(only("rs"), "drop local", "the box advertises itself to nobody");
    assert_eq!(only("ra"), "drop local");
}

/// A frame that the box uses itself is counted at the port where it came in. A packet of
/// a chain is counted where it goes out, once however it is cut.
#[test]
fn what_is_used_and_what_is_forwarded_is_counted() {
    let mut bench = Bench::new();
    let counts = |bench: &Bench| {
        let counts = [0, 1].map(|port| bench.edge.counts(port));
        assert!(counts[0].originated == 0);
        counts.map(|counts| (counts.consumed, counts.forwarded))
    };
    for words in [
        "arp who-has 10.0.0.1 tell 10.0.0.9",
        "arp who-has 10.0.0.7 tell 10.0.0.9",
        "ns 2001:db8:a::1 from 2001:db8:a::9",
    ] {
        bench.port(0, words);
    }
    assert_eq!(counts(&bench), [(3, 0), (0, 0)], "whether it is answered or not");
    bench.port(0, "ping 10.0.0.9 > 10.0.0.1");
    bench.port(0, "arp who-has 10.0.0.1 tell 10.0.0.255");
    assert_eq!(counts(&bench), [(4, 0), (0, 0)], "a frame that is dropped is in no other counter");
    bench.released(0, "udp 198.51.100.4:1 > 192.0.2.7:2 len=2000");
    assert_eq!(counts(&bench), [(4, 0), (0, 0)], "it waits");
    assert_eq!(bench.port(1, "arp 203.0.113.254 is-at 02:00:00:00:01:fe to=box1").len(), 2);
    assert_eq!(counts(&bench), [(4, 0), (1, 1)]);
    bench.port(0, "udp 10.0.0.9:5 > 192.0.2.7:33434 ttl=1");
    assert_eq!(
        counts(&bench),
        [(4, 0), (1, 1)],
        "an error to who has sent what it is about is none"
    );
    // An error that goes through its chain is counted by its later fate, and so it is
    // counted where it begins.
    bench.released(0, "udp 198.51.100.4:1 > 203.0.113.9:2");
    bench.wait(4 * SECOND);
    assert_eq!((counts(&bench), bench.edge.counts(1).originated), ([(4, 0), (1, 1)], 1));
}
