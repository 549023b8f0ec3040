//! Fragments: every order, and everything that is wrong with them.

use super::super::fragment::{FragmentLimits, Fragmented, Fragments};
use super::frames::frame;
use super::{Bench, SECOND};
use holdfast_wire::{DropReason, MemoryPool, PacketPool};
use proptest::prelude::*;

const FIRST: &str = "udp 10.0.0.9:1000 > 192.0.2.7:53 more id=7 len=1472";
const MIDDLE: &str = "udp 10.0.0.9:0 > 192.0.2.7:0 at=1480 more id=7 len=1480";
const LAST: &str = "udp 10.0.0.9:0 > 192.0.2.7:0 at=2960 id=7 len=100";
const KEY: &str = "udp 10.0.0.9:1000 > 192.0.2.7:53";

fn forward() -> Vec<String> {
    vec![format!("forward {KEY}")]
}

fn again(at: usize, len: usize) -> String {
    format!("again 0> host9>box0 fragment 10.0.0.9 > 192.0.2.7 ttl=64 at={at} len={len} as {KEY}")
}

#[test]
fn in_order_they_follow_the_first() {
    let mut bench = Bench::new();
    for words in [FIRST, MIDDLE, LAST] {
        assert_eq!(bench.port(0, words), forward());
    }
}

#[test]
fn those_before_the_first_wait_and_follow_in_their_order() {
    let mut bench = Bench::new();
    assert!(bench.port(0, LAST).is_empty());
    assert!(bench.port(0, MIDDLE).is_empty());
    assert_eq!(bench.edge.held(), 2);
    assert_eq!(
        bench.port(0, FIRST),
        [format!("forward {KEY}"), again(2960, 100), again(1480, 1480)]
    );
    assert_eq!(bench.edge.held(), 0);
}

#[test]
fn over_ipv6_too() {
    let mut bench = Bench::new();
    let later = "udp [2001:db8:a::9]:0 > [2001:db8:f::7]:0 at=1232 id=70000 len=100";
    let first = "udp [2001:db8:a::9]:1000 > [2001:db8:f::7]:53 more id=70000 len=1224";
    let key = "udp [2001:db8:a::9]:1000 > [2001:db8:f::7]:53";
    assert!(bench.port(0, later).is_empty());
    assert_eq!(
        bench.port(0, first),
        [
            format!("forward {key}"),
            format!(
                "again 0> host9>box0 fragment 2001:db8:a::9 > 2001:db8:f::7 ttl=64 at=1232 len=100 as {key}"
            )
        ]
    );
}

#[test]
fn other_ids_protocols_and_senders_are_other_datagrams() {
    let mut bench = Bench::new();
    bench.port(0, FIRST);
    assert!(bench.port(0, "udp 10.0.0.9:0 > 192.0.2.7:0 at=1480 more id=8 len=1480").is_empty());
    assert!(bench.port(0, "tcp 10.0.0.9:0 > 192.0.2.7:0 at=1480 more id=7 len=1480").is_empty());
    assert!(bench.port(0, "udp 10.0.0.8:0 > 192.0.2.7:0 at=1480 more id=7 len=1480").is_empty());
    assert_eq!(bench.port(0, MIDDLE), forward());
}

/// Ways of equal cost: the port does not tell datagrams apart.
#[test]
fn a_datagram_comes_by_two_ports() {
    let mut pool = MemoryPool::new(2);
    let mut fragments = fragments(2, 8);
    let first = parsed(&mut pool, FIRST);
    let mut later = parsed(&mut pool, LAST);
    later.meta.ingress = 1;
    assert!(matches!(fragments.handle(first, 0), Fragmented::Ready(..)));
    assert!(matches!(fragments.handle(later, 0), Fragmented::Ready(..)));
}

/// Fragments of one datagram by two ports of the box, the later one first.
#[test]
fn a_datagram_comes_by_two_ports_of_the_box() {
    let mut bench = Bench::with(|config| {
        let other = config.routes.iter().find(|route| route.port == 1).copied();
        config.routes.extend(other.map(|route| super::EdgeRoute {
            port: 0,
            gateway: Some([10, 0, 0, 254].into()),
            ..route
        }));
    });
    let (first, last) = (
        "udp 192.0.2.7:53 > 198.51.100.4:9 more id=7 len=1472",
        "udp 192.0.2.7:0 > 198.51.100.4:0 at=1480 id=7 len=100",
    );
    assert!(bench.port(1, last).is_empty());
    assert_eq!(
        bench.port(0, first),
        [
            "forward udp 192.0.2.7:53 > 198.51.100.4:9",
            "again 0> host7>box1 fragment 192.0.2.7 > 198.51.100.4 ttl=64 at=1480 len=100 as udp 192.0.2.7:53 > 198.51.100.4:9"
        ]
    );
}

/// Fragments of three hundred datagrams, each behind those of all others: no datagram is
/// forgotten for another one.
#[test]
fn three_hundred_datagrams_at_a_time() {
    let mut bench = Bench::with_buffers(512);
    let mut each = |words: &str, expected: usize| {
        for id in 0..300 {
            let words = words
                .replace("10.0.0.9", &format!("10.0.0.{}", 10 + id % 3))
                .replace("id=7", &format!("id={id}"));
            let effects = bench.port(0, &words);
            assert_eq!(effects.len(), expected, "{words}: {effects:?}");
            assert!(
                effects.iter().all(|effect| !effect.starts_with("drop")),
                "{words}: {effects:?}"
            );
        }
    };
    each(FIRST, 1);
    each(MIDDLE, 1);
    each(LAST, 1);
    // Now the first fragments come last.
    each(LAST, 0);
    each(FIRST, 2);
    each(MIDDLE, 1);
}

/// The longest datagram, in packets of 1,068, the last one first.
#[test]
fn sixty_three_fragments_in_reverse_order() {
    let mut bench = Bench::new();
    for at in (1..63).rev() {
        let more = if at == 62 { "" } else { "more" };
        assert!(
            bench
                .port(
                    0,
                    &format!("udp 10.0.0.9:0 > 192.0.2.7:0 at={} {more} id=7 len=1040", at * 1040)
                )
                .is_empty()
        );
    }
    assert_eq!(bench.port(0, "udp 10.0.0.9:1000 > 192.0.2.7:53 more id=7 len=1032").len(), 63);
}

#[test]
fn overlapping_fragments_condemn_the_datagram() {
    let mut bench = Bench::new();
    assert!(bench.port(0, LAST).is_empty());
    bench.port(0, FIRST);
    assert_eq!(
        bench.port(0, "udp 10.0.0.9:0 > 192.0.2.7:0 at=1472 more id=7 len=1480"),
        ["drop bad_fragment"]
    );
    assert_eq!(bench.port(0, MIDDLE), ["drop bad_fragment"], "nothing of it goes on");
    // The fragments that waited go with it.
    let mut bench = Bench::new();
    bench.port(0, MIDDLE);
    assert_eq!(
        bench.port(0, "udp 10.0.0.9:0 > 192.0.2.7:0 at=2952 id=7 len=100"),
        ["drop bad_fragment", "drop bad_fragment"]
    );
    assert_eq!(bench.port(0, FIRST), ["drop bad_fragment"]);
    // Another datagram is not concerned.
    assert_eq!(bench.port(0, &FIRST.replace("id=7", "id=8")), forward());
}

#[test]
fn fragments_that_contradict_the_end_condemn_the_datagram() {
    for (one, other) in [
        (LAST, "udp 10.0.0.9:0 > 192.0.2.7:0 at=4000 more id=7 len=800"),
        (LAST, "udp 10.0.0.9:0 > 192.0.2.7:0 at=4000 id=7 len=800"),
        ("udp 10.0.0.9:0 > 192.0.2.7:0 at=4000 more id=7 len=800", LAST),
    ] {
        let mut bench = Bench::new();
        assert_eq!(bench.port(0, FIRST), forward());
        assert_eq!(bench.port(0, one), forward());
        assert_eq!(bench.port(0, other), ["drop bad_fragment"], "{one} then {other}");
    }
}

#[test]
fn a_duplicate_goes_no_further_and_harms_nothing() {
    let mut bench = Bench::new();
    assert_eq!(bench.port(0, FIRST), forward());
    assert_eq!(bench.port(0, FIRST), ["drop stale_duplicate"]);
    assert_eq!(bench.port(0, MIDDLE), forward());
    assert_eq!(bench.port(0, MIDDLE), ["drop stale_duplicate"]);
    assert_eq!(bench.port(0, LAST), forward());
}

#[test]
fn an_identification_is_used_again_after_its_datagram_is_whole() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        for words in [FIRST, MIDDLE, LAST] {
            assert_eq!(bench.port(0, words), forward());
        }
        assert_eq!(
            bench.port(0, &FIRST.replace(":1000", ":1001")),
            ["forward udp 10.0.0.9:1001 > 192.0.2.7:53"]
        );
        assert_eq!(bench.port(0, MIDDLE), ["forward udp 10.0.0.9:1001 > 192.0.2.7:53"]);
        assert_eq!(bench.port(0, LAST), ["forward udp 10.0.0.9:1001 > 192.0.2.7:53"]);
    }
}

#[test]
fn tiny_fragments() {
    let mut bench = Bench::new();
    // A first fragment without its whole transport header (RFC 1858, section 3).
    let mut tiny = frame(0, "tcp 10.0.0.9:1 > 192.0.2.7:2 more id=1 len=4");
    let len = tiny.len();
    tiny.truncate(len - 8);
    tiny[17] = 20 + 16;
    tiny[24..26].fill(0);
    let sum = holdfast_wire::checksum::checksum(&tiny[14..34]);
    tiny[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(bench.port_bytes(0, &tiny), ["drop truncated"]);
    // A fragment that would overlap the flags.
    assert_eq!(
        bench.port(0, "tcp 10.0.0.9:0 > 192.0.2.7:0 at=8 more id=2 len=16"),
        ["drop bad_fragment"]
    );
    assert_eq!(
        bench.port(0, "tcp 10.0.0.9:1 > 192.0.2.7:2 more id=2 len=20"),
        ["drop bad_fragment"],
        "its datagram is condemned"
    );
    assert_eq!(
        bench.port(0, "tcp [2001:db8:a::9]:0 > [2001:db8:f::7]:0 at=16 id=3 len=16"),
        ["drop bad_fragment"]
    );
}

#[test]
fn empty_and_endless_fragments() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.port(0, "udp 10.0.0.9:0 > 192.0.2.7:0 at=1480 id=1 len=0"),
        ["drop bad_fragment"]
    );
    assert_eq!(
        bench.port(0, "udp 10.0.0.9:0 > 192.0.2.7:0 at=1480 more id=1 len=9"),
        ["drop bad_fragment"]
    );
    assert_eq!(
        bench.port(0, "udp 10.0.0.9:0 > 192.0.2.7:0 at=65528 id=1 len=100"),
        ["drop bad_fragment"]
    );
}

#[test]
fn a_datagram_that_is_never_finished() {
    let mut bench = Bench::new();
    bench.port(0, MIDDLE);
    bench.port(0, LAST);
    assert_eq!(bench.edge.poll_timeout(), bench.now + 2 * SECOND + 1);
    assert_eq!(bench.wait(3 * SECOND), ["2s drop fragment_unknown", "2s drop fragment_unknown"]);
    assert_eq!(bench.edge.poll_timeout(), u64::MAX);
    // The first fragment is late: it goes on alone, as a new datagram's.
    assert_eq!(bench.port(0, FIRST), forward());
}

#[test]
fn a_first_fragment_without_a_flow_condemns_its_datagram() {
    let mut bench = Bench::new();
    bench.port(0, "ping 10.0.0.9 > 192.0.2.7 at=1480 id=7 len=100");
    let mut error = frame(0, "ping 10.0.0.9 > 192.0.2.7 more id=7 len=1472");
    error[34] = 3;
    assert_eq!(bench.port_bytes(0, &error), ["drop state_invalid", "drop state_invalid"]);
}

#[test]
fn scattered_fragments_are_bounded() {
    let mut bench = Bench::new();
    let effects: Vec<Vec<String>> = (1..=36)
        .map(|at| {
            bench.port(0, &format!("udp 10.0.0.9:0 > 192.0.2.7:0 at={} more id=7 len=8", at * 16))
        })
        .collect();
    assert!(effects[..32].iter().all(Vec::is_empty));
    assert!(effects[32..].iter().all(|effects| effects == &["drop fragment_table_full"]));
}

fn fragments(datagrams: usize, held: usize) -> Fragments {
    Fragments::new(
        FragmentLimits { datagrams, held, held_per_source: held, held_bytes: 64 * 1024 },
        1,
    )
}

fn parsed(pool: &mut MemoryPool, words: &str) -> holdfast_wire::Packet {
    let mut packet = pool.take().expect("a buffer");
    packet.clear();
    assert!(packet.copy_from(&frame(0, words)));
    packet.parse().expect("well formed");
    packet
}

#[test]
fn the_oldest_datagram_makes_room() {
    let mut pool = MemoryPool::new(16);
    let mut fragments = fragments(2, 8);
    for id in 1..=3 {
        let packet = parsed(&mut pool, &format!("udp 10.0.0.9:0 > 192.0.2.7:0 at=8 id={id}"));
        assert!(matches!(fragments.handle(packet, 0), Fragmented::Held));
    }
    assert_eq!(fragments.len(), 2);
    let (packet, reason) = fragments.poll_dropped().expect("the first one's");
    assert_eq!(
        (packet.ipv4().map(|ip| ip.id.get()), reason),
        (Some(1), DropReason::FragmentTableFull)
    );
    pool.put(packet);
    fragments.abandon();
    while let Some((packet, _)) = fragments.poll_dropped() {
        pool.put(packet);
    }
    assert_eq!((pool.free(), fragments.held(), fragments.is_empty()), (16, 0, true));
}

/// Sends lone fragments of these hosts, one host after the other. Returns how many of
/// them wait in the end, how many were refused, and how many gave way to others.
fn flood(limits: FragmentLimits, hosts: u8, len: usize) -> (usize, usize, usize) {
    let mut pool = MemoryPool::new(128);
    let mut fragments = Fragments::new(limits, 1);
    let (mut refused, mut gave_way) = (0, 0);
    for at in 1..=60 {
        let host = at % hosts + 1;
        let packet = parsed(
            &mut pool,
            &format!("udp 10.0.0.{host}:0 > 192.0.2.7:0 at=1480 more id={at} len={len}"),
        );
        if let Fragmented::Dropped(packet, reason) = fragments.handle(packet, 0) {
            assert_eq!(reason, DropReason::FragmentTableFull);
            refused += 1;
            pool.put(packet);
        }
        while let Some((packet, reason)) = fragments.poll_dropped() {
            assert_eq!(reason, DropReason::FragmentTableFull);
            gave_way += 1;
            pool.put(packet);
        }
    }
    let held = fragments.held();
    fragments.abandon();
    while let Some((packet, _)) = fragments.poll_dropped() {
        pool.put(packet);
    }
    assert_eq!((pool.free(), fragments.held()), (128, 0));
    (held, refused, gave_way)
}

#[test]
fn no_more_are_held_than_there_is_room_for() {
    let limits = FragmentLimits { datagrams: 64, held: 8, held_per_source: 8, held_bytes: 1 << 20 };
    assert_eq!(flood(limits, 60, 16), (8, 0, 52), "who has waited longest makes room");
    let limits = FragmentLimits { held: 64, held_bytes: 10_000, held_per_source: 64, ..limits };
    assert_eq!(flood(limits, 60, 1480), (6, 0, 54), "so it does for bytes");
}

/// Five hundred lone fragments of one host do not push out those of others.
#[test]
fn nobody_takes_the_room_of_others() {
    let limits = FragmentLimits { datagrams: 64, held: 8, held_per_source: 4, held_bytes: 1 << 20 };
    assert_eq!(flood(limits, 1, 16), (4, 56, 0));
    let mut bench = Bench::new();
    for id in 100..620 {
        bench.port(0, &LAST.replace("10.0.0.9", "10.0.0.8").replace("id=7", &format!("id={id}")));
    }
    assert!(bench.port(0, LAST).is_empty());
    assert_eq!(bench.port(0, FIRST).len(), 2);
}

#[test]
fn room_is_used_again() {
    let mut bench = Bench::new();
    // More datagrams than may be held at one time come one after the other; half of them
    // are released and half time out.
    for id in 0..1200 {
        assert!(bench.port(0, &LAST.replace("id=7", &format!("id={id}"))).is_empty());
        if id % 2 == 0 {
            assert_eq!(bench.port(0, &FIRST.replace("id=7", &format!("id={id}"))).len(), 2);
        } else {
            assert_eq!(bench.wait(3 * SECOND), ["2s drop fragment_unknown"]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Datagrams that are cut anywhere and come in any order, mixed, with duplicates.
    /// Every fragment goes on once, under its own key, no later one before the first one,
    /// and nothing else happens.
    #[test]
    fn any_order_of_whole_datagrams(
        cuts in prop::collection::vec(prop::collection::btree_set(3u16..100, 0..8), 1..6),
        seed in prop::collection::vec(any::<u32>(), 64),
        doubled in prop::collection::vec(any::<bool>(), 64),
    ) {
        let mut words: Vec<(usize, u16, String)> = Vec::new();
        for (id, cuts) in cuts.iter().enumerate() {
            let mut from = 0;
            for &cut in cuts.iter().chain([&100]) {
                let more = if cut < 100 { "more" } else { "" };
                let len = if from == 0 { cut * 8 - 8 } else { (cut - from) * 8 };
                words.push((id, from, format!("udp 10.0.0.9:{} > 192.0.2.7:53 at={} {more} id={id} len={len}", id + 1, from * 8)));
                from = cut;
            }
        }
        // A datagram of one fragment is not fragmented.
        words.retain(|(id, _, _)| !cuts[*id].is_empty());
        let mut at = 0;
        words.sort_by_cached_key(|_| { at += 1; seed[at % 64].wrapping_mul(at as u32) });
        let mut bench = Bench::new();
        let mut seen: Vec<Vec<u16>> = vec![Vec::new(); cuts.len()];
        let mut arrived = vec![0; cuts.len()];
        let (mut duplicates, mut doubles) = (0, 0);
        for (at, (id, from, words)) in words.iter().enumerate() {
            // The fragment that makes its datagram whole comes once: a second one would
            // begin a new datagram.
            arrived[*id] += 1;
            let times = if doubled[at % 64] && arrived[*id] <= cuts[*id].len() { 2 } else { 1 };
            doubles += times - 1;
            for time in 0..times {
                for effect in bench.port(0, words) {
                    if effect.starts_with("drop") {
                        prop_assert!(time == 1 && effect == "drop stale_duplicate", "{}", effect);
                        duplicates += 1;
                        continue;
                    }
                    prop_assert!(effect.ends_with(&format!("udp 10.0.0.9:{} > 192.0.2.7:53", id + 1)), "{}", effect);
                    let from = match effect.split("at=").nth(1) {
                        Some(text) => text.split(' ').next().and_then(|number| number.parse::<u16>().ok()).unwrap_or(0) / 8,
                        None => *from,
                    };
                    prop_assert!(from == 0 || seen[*id].contains(&0));
                    seen[*id].push(from);
                }
            }
        }
        for (seen, cuts) in seen.iter_mut().zip(&cuts) {
            seen.sort_unstable();
            let expected: Vec<u16> = if cuts.is_empty() { Vec::new() } else { [0].into_iter().chain(cuts.iter().copied()).collect() };
            prop_assert_eq!(&*seen, &expected);
        }
        prop_assert_eq!(duplicates, doubles);
        prop_assert_eq!(bench.edge.held(), 0);
    }
}
