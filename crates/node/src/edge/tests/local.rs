//! Packets for the box's own addresses, and their answers.

use super::frames::frame;
use super::{Bench, SECOND};
use holdfast_wire::header::proto;
use holdfast_wire::{DropReason, PacketPool, checksum};

/// The effects of one frame in a fresh edge.
fn on(port: u8, words: &str) -> Vec<String> {
    Bench::new().port(port, words)
}

const REFUSED: [&str; 1] = ["drop local"];

/// Sequence numbers as in RFC 9293, section 3.10.7.1.
#[test]
fn a_segment_for_a_closed_port_is_reset_in_sequence() {
    assert_eq!(
        on(0, "tcp 10.0.0.9:5 > 10.0.0.1:22 seq=7 len=0"),
        ["0< box0>host9 reset 10.0.0.1:22 > 10.0.0.9:5 ttl=64 flags=20 seq=0 ack=8", "drop local"]
    );
    assert_eq!(
        on(0, "tcp 10.0.0.9:5 > 203.0.113.1:22 flags=24 seq=7 ack=99 len=5"),
        [
            "0< box0>host9 reset 203.0.113.1:22 > 10.0.0.9:5 ttl=64 flags=4 seq=99 ack=0",
            "drop local"
        ]
    );
    assert_eq!(
        on(0, "tcp [2001:db8:a::9]:5 > [2001:db8:a::1]:22 seq=7 len=3"),
        [
            "0< box0>host9 reset [2001:db8:a::1]:22 > [2001:db8:a::9]:5 ttl=64 flags=20 seq=0 ack=11",
            "drop local"
        ]
    );
    // Resets, damaged segments, broadcast frames and spoofed sources get no answer.
    assert_eq!(on(0, "tcp 10.0.0.9:5 > 10.0.0.1:22 flags=4"), REFUSED);
    assert_eq!(on(0, "tcp 10.0.0.9:5 > 10.0.0.1:22 badl4"), ["drop bad_checksum"]);
    assert_eq!(on(0, "tcp [2001:db8:a::9]:5 > [2001:db8:a::1]:22 badl4"), ["drop bad_checksum"]);
    assert_eq!(on(0, "tcp 10.0.0.9:5 > 10.0.0.1:22 to=all"), ["drop multicast"]);
    assert_eq!(on(1, "tcp 10.0.0.9:5 > 203.0.113.1:22"), ["drop spoofed_source"]);
    // An own address that a chain uses is the chain's.
    assert_eq!(
        on(1, "tcp 192.0.2.7:5 > 203.0.113.2:22"),
        ["forward tcp 192.0.2.7:5 > 203.0.113.2:22"]
    );
}

/// RFC 1918, section 3: a private address is not shown at a port that has none.
#[test]
fn a_private_address_is_nobodys_at_a_public_port() {
    for words in [
        "ping 192.0.2.7 > 10.0.0.1",
        "tcp 192.0.2.7:5 > 10.0.0.1:22",
        "udp 192.0.2.7:5 > 10.0.0.1:9",
    ] {
        assert_eq!(on(1, words), REFUSED, "{words}");
    }
    assert_eq!(on(1, "ping 192.0.2.7 > 203.0.113.1").len(), 1);
    assert_eq!(on(0, "ping 10.0.0.9 > 203.0.113.1").len(), 1, "a public one is everybody's");
}

#[test]
fn resets_have_a_rate_limit_of_their_own() {
    let mut bench = Bench::new();
    let told = |bench: &mut Bench| {
        (0..2500).filter(|_| bench.port(0, "tcp 10.0.0.9:5 > 10.0.0.1:22").len() == 2).count()
    };
    assert_eq!(told(&mut bench), 1000);
    // Resets do not use up this rate.
    bench.wait(SECOND / 10);
    (0..500)
        .for_each(|_| assert_eq!(bench.port(0, "tcp 10.0.0.9:5 > 10.0.0.1:22 flags=4"), REFUSED));
    assert_eq!(told(&mut bench), 100);
    assert_eq!(
        bench.port(0, "udp 10.0.0.9:1 > 192.0.2.7:2 ttl=1").len(),
        2,
        "a flood of segments leaves traceroute its errors"
    );
}

/// RFC 1122, section 4.1.3.4; RFC 8200, section 8.1.
#[test]
fn a_datagram_that_is_damaged_gets_no_answer() {
    assert_eq!(on(0, "udp 10.0.0.9:5 > 10.0.0.1:9 badl4"), ["drop bad_checksum"]);
    assert_eq!(
        on(0, "udp 10.0.0.9:5 > 10.0.0.1:9 nosum").len(),
        2,
        "without a checksum it is whole"
    );
    assert_eq!(
        on(0, "udp [2001:db8:a::9]:5 > [2001:db8:a::1]:9 nosum"),
        ["drop bad_checksum"],
        "not over IPv6"
    );
}

/// RFC 4443, section 2.2 (a); over IPv4 RFC 1812, section 4.3.2.4.
#[test]
fn an_error_about_what_was_for_the_box_comes_from_the_address_that_was_asked() {
    let six = on(0, "udp [2001:db8:a::9]:5 > [2001:db8:b::1]:9");
    assert!(six[0].starts_with("0< box0>host9 port 2001:db8:b::1 > 2001:db8:a::9"), "{six:?}");
    let four = on(0, "udp 10.0.0.9:5 > 203.0.113.1:9");
    assert!(four[0].starts_with("0< box0>host9 port 10.0.0.1 > 10.0.0.9"), "{four:?}");
}

/// RFC 1122, section 3.2.2.1; RFC 8200, section 4.
#[test]
fn a_protocol_that_nobody_speaks() {
    assert_eq!(
        on(0, "proto 10.0.0.9 > 10.0.0.1"),
        [
            "0< box0>host9 proto 10.0.0.1 > 10.0.0.9 ttl=64 about [proto-253 10.0.0.9 > 10.0.0.1 ttl=64]",
            "drop local"
        ]
    );
    let problem = |words: &str| {
        let effects = on(0, &format!("proto 2001:db8:a::9 > 2001:db8:a::1 {words}"));
        assert_eq!(effects.last().map(String::as_str), Some("drop local"), "{effects:?}");
        effects[0].split(" 2001").next().unwrap_or_default().to_owned()
    };
    assert_eq!(problem(""), "0< box0>host9 problem code=1 at=6");
    assert_eq!(problem("ext=60.1.4,43.9.0"), "0< box0>host9 problem code=1 at=48");
    assert_eq!(problem("proto=50"), "0< box0>host9 problem code=1 at=6");
    assert_eq!(problem("proto=1"), "0< box0>host9 problem code=1 at=6", "ICMP of IPv4");
    // Options for every hop in another place than the first are an unknown header.
    assert_eq!(problem("ext=60.1.4,0.1.4"), "0< box0>host9 problem code=1 at=40");
    // "No next header": the packet is complete.
    assert_eq!(on(0, "proto 2001:db8:a::9 > 2001:db8:a::1 proto=59"), REFUSED);
    // Messages that ask nothing, or of an unknown type, get no answer (RFC 1122, section
    // 3.2.2; RFC 4443, section 2.4 (b)).
    for (words, at) in
        [("ping 10.0.0.9 > 10.0.0.1", 34), ("ping 2001:db8:a::9 > 2001:db8:a::1", 54)]
    {
        let mut bytes = frame(0, words);
        bytes[at] = bytes[at].wrapping_add(90);
        // The checksum's upper byte makes up for the type's.
        bytes[at + 2] = bytes[at + 2].wrapping_sub(90);
        let effects = Bench::new().port_bytes(0, &bytes);
        assert_eq!(effects, REFUSED, "{words}");
    }
}

/// RFC 8200, section 4.2: the type of an option decides what becomes of a packet whose
/// receiver does not know it.
#[test]
fn options_that_nobody_knows() {
    let ping = |words: &str| {
        let effects = on(0, &format!("ping 2001:db8:a::9 > 2001:db8:a::1 {words}"));
        effects
            .iter()
            .map(|effect| effect.split(" 2001").next().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    let pong = ["0< box0>host9 pong"];
    let problem = ["0< box0>host9 problem code=2 at=42", "drop local"];
    for header in [0, 60] {
        assert_eq!(ping(&format!("ext={header}.1.4")), pong, "padding");
        assert_eq!(ping(&format!("ext={header}.0.0")), pong, "padding byte by byte");
        assert_eq!(ping(&format!("ext={header}.5.4")), pong, "skip it");
        assert_eq!(ping(&format!("ext={header}.69.4")), REFUSED, "drop it");
        assert_eq!(ping(&format!("ext={header}.133.4")), problem, "and tell");
        assert_eq!(ping(&format!("ext={header}.194.4")), problem, "and tell, if it was for one");
        assert_eq!(ping(&format!("ext={header}.5.5")), REFUSED, "longer than its header");
    }
    assert_eq!(ping("ext=0.1.4,60.133.4")[0], "0< box0>host9 problem code=2 at=50");
    // Routing headers (section 4.4): the box forwards along none, of whatever type.
    assert_eq!(ping("ext=43.253.1"), ["0< box0>host9 problem code=0 at=42", "drop local"]);
    assert_eq!(ping("ext=43.253.0"), pong);
    assert_eq!(ping("ext=43.0.0"), pong);
    // The answer has no extension headers.
    let mut bench = Bench::new();
    let packet = bench
        .packet(&frame(0, "ping 2001:db8:a::9 > 2001:db8:a::1 len=30 ext=0.5.4,43.253.0,60.1.4"));
    assert!(
        bench.edge.handle_ingress(0, packet, bench.now, &mut bench.out, &mut bench.pool).is_none()
    );
    let answer = bench.out.transmit.pop().expect("an answer").1.into_inner();
    assert_eq!((answer.layers.l4, answer.layers.end, answer.len()), (54, 92, 92));
    bench.pool.put(answer);
    // Forwarded packets' extension headers are not read.
    let words = "udp [2001:db8:a::9]:1 > [2001:db8:f::7]:2";
    assert_eq!(on(0, &format!("{words} ext=0.133.4,60.133.4")), [format!("forward {words}")]);
}

#[test]
fn eight_extension_headers_are_enough() {
    let ping = |count: usize| {
        on(
            0,
            &format!("ping 2001:db8:a::9 > 2001:db8:a::1 ext={}", vec!["60.1.4"; count].join(",")),
        )
    };
    assert_eq!(ping(8), ["0< box0>host9 pong 2001:db8:a::1 > 2001:db8:a::9 ttl=64"]);
    assert_eq!(ping(9), ["drop headers_too_deep"]);
}

/// The frame of a packet without options or extension headers, cut at these places of its
/// data.
fn pieces(words: &str, cuts: &[usize]) -> Vec<Vec<u8>> {
    let whole = frame(0, words);
    let header = if whole[12..14] == [8, 0] { 34 } else { 54 };
    let data = &whole[header..];
    let ends = cuts.iter().copied().chain([data.len()]);
    let piece = |(from, to): (usize, usize)| {
        let (is_last, len) = (to == data.len(), to - from);
        let mut front = whole[..header].to_vec();
        if header == 34 {
            front[16..18].copy_from_slice(&(20 + len as u16).to_be_bytes());
            front[18..20].copy_from_slice(&[0, 7]);
            front[20..22]
                .copy_from_slice(&((from / 8) as u16 | u16::from(!is_last) << 13).to_be_bytes());
            front[24..26].fill(0);
            let sum = checksum::checksum(&front[14..34]);
            front[24..26].copy_from_slice(&sum.to_be_bytes());
        } else {
            front[18..20].copy_from_slice(&(8 + len as u16).to_be_bytes());
            let next = core::mem::replace(&mut front[20], proto::FRAGMENT);
            let [high, low] = (from as u16 | u16::from(!is_last)).to_be_bytes();
            front.extend_from_slice(&[next, 0, high, low, 0, 0, 0, 7]);
        }
        [&front, &data[from..to]].concat()
    };
    [0].into_iter().chain(cuts.iter().copied()).zip(ends).map(piece).collect()
}

/// RFC 1122, section 3.3.2; RFC 8200, section 4.5.
#[test]
fn a_datagram_in_fragments_is_put_together() {
    for (from, to) in [
        ("10.0.0.9", "10.0.0.1"),
        ("2001:db8:a::9", "2001:db8:a::1"),
        ("fe80::9", "fe80::ff:fe00:b0"),
    ] {
        let pong = [format!("0< box0>host9 pong {to} > {from} ttl=64")];
        let fragments = pieces(&format!("ping {from} > {to} len=1400"), &[400, 808]);
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
            let mut bench = Bench::new();
            assert!(bench.port_bytes(0, &fragments[order[0]]).is_empty());
            assert!(bench.port_bytes(0, &fragments[order[1]]).is_empty());
            assert_eq!(bench.port_bytes(0, &fragments[order[1]]), ["drop stale_duplicate"]);
            assert_eq!(bench.edge.held(), 2);
            // The answer is whole, and its checksum is right.
            assert_eq!(bench.port_bytes(0, &fragments[order[2]]), pong, "{order:?}");
            assert_eq!((bench.edge.held(), bench.edge.poll_timeout()), (0, u64::MAX));
        }
    }
    // Question and answer are longer than the port's MTU.
    let mut bench = Bench::new();
    let fragments = pieces("ping 10.0.0.9 > 10.0.0.1 len=2000", &[1480]);
    assert!(bench.port_bytes(0, &fragments[1]).is_empty());
    assert_eq!(
        bench.port_bytes(0, &fragments[0]),
        [
            "0< box0>host9 pong 10.0.0.1 > 10.0.0.9 ttl=64",
            "0< box0>host9 fragment 10.0.0.1 > 10.0.0.9 ttl=64 at=1480 len=528"
        ]
    );
    // Port unreachable is sent once the datagram is whole.
    let fragments = pieces("udp 10.0.0.9:5 > 10.0.0.1:9 len=600", &[400]);
    assert!(bench.port_bytes(0, &fragments[0]).is_empty());
    assert_eq!(bench.port_bytes(0, &fragments[1]).len(), 2);
    // Headers before the fragment header stay, and are read.
    assert_eq!(
        on(0, "ping 2001:db8:a::9 > 2001:db8:a::1 ext=60.5.4,44.0.0,60.133.4"),
        [
            "0< box0>host9 problem code=2 at=58 2001:db8:a::1 > 2001:db8:a::9 ttl=64 about [ping 2001:db8:a::9 > 2001:db8:a::1 ttl=64]",
            "drop local"
        ],
        "an atomic one is whole (RFC 6946)"
    );
    // Fragments for a chain's address are the chain's, also where the box answers ping.
    for to in ["203.0.113.2", "10.0.0.100"] {
        let forwarded = bench.port(0, &format!("ping 10.0.0.9 > {to} more id=9"));
        assert_eq!(forwarded, [format!("forward icmp 10.0.0.9:7 > {to}")]);
    }
}

#[test]
fn datagrams_that_never_become_whole() {
    let mut bench = Bench::new();
    let fragments = pieces("ping 10.0.0.9 > 10.0.0.1 len=1400", &[400, 808]);
    bench.port_bytes(0, &fragments[2]);
    bench.port_bytes(0, &fragments[0]);
    assert_eq!(
        bench.wait(61 * SECOND),
        [
            "60s 0< box0>host9 time-exceeded 10.0.0.1 > 10.0.0.9 ttl=64 about [ping 10.0.0.9 > 10.0.0.1 ttl=64]",
            "60s drop local_fragment",
            "60s drop local_fragment"
        ]
    );
    // Without the first fragment no time exceeded is sent.
    bench.port_bytes(0, &fragments[1]);
    assert_eq!(bench.wait(61 * SECOND), ["60s drop local_fragment"]);
    // Overlapping fragments, and two different ends, discard the datagram (RFC 5722,
    // section 4).
    let other = pieces("ping 10.0.0.9 > 10.0.0.1 len=1400", &[392, 800]);
    bench.port_bytes(0, &fragments[0]);
    assert_eq!(bench.port_bytes(0, &other[1]), ["drop bad_fragment", "drop bad_fragment"]);
    let shorter = pieces("ping 10.0.0.9 > 10.0.0.1 len=1000", &[400, 808]);
    bench.port_bytes(0, &fragments[2]);
    assert_eq!(bench.port_bytes(0, &shorter[2]), ["drop bad_fragment", "drop bad_fragment"]);
    // The datagram is longer than a buffer.
    let longer = pieces("ping 10.0.0.9 > 10.0.0.1 len=4000", &[1480, 2960]);
    bench.port_bytes(0, &longer[1]);
    bench.port_bytes(0, &longer[2]);
    assert_eq!(bench.port_bytes(0, &longer[0]), ["drop local_fragment"; 3]);
    // A part of it fits, and is counted all the same.
    let longer = pieces("ping 10.0.0.9 > 10.0.0.1 len=4000", &[1480, 2200, 2960, 3896]);
    longer[1..].iter().for_each(|piece| assert!(bench.port_bytes(0, piece).is_empty()));
    assert_eq!(bench.port_bytes(0, &longer[0]), ["drop local_fragment"; 5]);
    // A datagram in too many fragments.
    let many: Vec<usize> = (1..17).map(|at| at * 80).collect();
    let many = pieces("ping 10.0.0.9 > 10.0.0.1 len=1400", &many);
    many[1..].iter().for_each(|piece| assert!(bench.port_bytes(0, piece).is_empty()));
    assert_eq!(bench.port_bytes(0, &many[0]), ["drop local_fragment"; 17]);
    assert_eq!((bench.edge.held(), bench.edge.poll_timeout()), (0, u64::MAX));
}

/// A host keeps four incomplete datagrams, all hosts together thirty-two; the oldest
/// makes room.
#[test]
fn incomplete_datagrams_are_bounded() {
    let mut bench = Bench::new();
    let lone = |bench: &mut Bench, host: usize, id: usize| {
        bench.port(0, &format!("ping 10.0.0.{host} > 10.0.0.1 at=1480 id={id}"))
    };
    (0..4).for_each(|id| assert!(lone(&mut bench, 9, id).is_empty()));
    assert_eq!(lone(&mut bench, 9, 4), ["drop local_fragment"]);
    assert_eq!(lone(&mut bench, 9, 1), ["drop stale_duplicate"], "the oldest went");
    (0..28).for_each(|id| assert!(lone(&mut bench, 20 + id / 4, id).is_empty()));
    assert_eq!(bench.edge.held(), 32);
    bench.wait(SECOND);
    assert_eq!(lone(&mut bench, 99, 1), ["drop local_fragment"]);
    assert_eq!(bench.edge.held(), 32);
    bench.edge.abandon(&mut bench.pool);
    assert_eq!(bench.edge.drops().get(DropReason::ShuttingDown), 32);
}

#[test]
fn ping_is_answered_in_a_chains_place_where_somebody_asks_for_it() {
    assert_eq!(
        on(0, "ping 10.0.0.9 > 10.0.0.100"),
        ["0< box0>host9 pong 10.0.0.100 > 10.0.0.9 ttl=64"]
    );
    assert_eq!(
        on(1, "ping 192.0.2.7 > 10.0.0.100 ttl=1"),
        ["1< box1>host7 pong 10.0.0.100 > 192.0.2.7 ttl=64"]
    );
    // All other packets go to the chain, and so does ping of other addresses.
    assert_eq!(on(0, "pong 10.0.0.9 > 10.0.0.100"), ["forward icmp 10.0.0.9 > 10.0.0.100:7"]);
    assert_eq!(on(0, "tcp 10.0.0.9:5 > 10.0.0.100:80"), ["forward tcp 10.0.0.9:5 > 10.0.0.100:80"]);
    assert_eq!(
        on(0, "ping 2001:db8:a::9 > 2001:db8:a::100"),
        ["forward icmp6 [2001:db8:a::9]:7 > 2001:db8:a::100"]
    );
    // A spoofed source gets no answer from a pool's address, either.
    assert_eq!(on(1, "ping 10.0.0.9 > 10.0.0.100"), ["drop spoofed_source"]);
    assert_eq!(on(0, "ping 10.0.0.9 > 10.0.0.100 badl4"), ["drop bad_checksum"]);
}
