//! The monitor: what it makes of packets, at exactly known times.

use crate::bench::Bench;
use crate::words;
use serde_json::json;

const MICROSECOND: u64 = 1_000;
const CLIENT: &str = "tcp 10.0.0.2:1000 > 203.0.113.10:80";
const SERVER: &str = "tcp 203.0.113.10:80 > 10.0.0.2:1000";

/// A monitor, and packets at times in µs.
struct Watched {
    bench: Bench,
    began: u64,
}

impl Watched {
    fn new() -> Watched {
        let bench = Bench::new(&[("monitor", json!({}))]);
        Watched { began: bench.now, bench }
    }

    /// Sends a packet, which passes as it is. `us`: microseconds after the beginning.
    #[track_caller]
    fn at(&mut self, us: u64, way: &str, rest: &str) {
        // The bench lets a nanosecond pass with each packet.
        self.bench.now = self.began + us * MICROSECOND - 1;
        self.bench.unchanged(&format!("{way} {rest}"));
    }

    /// A handshake from `us` on: the answers come after 300 and after 200 µs.
    fn shake_hands(&mut self, us: u64) {
        self.at(us, CLIENT, "SYN seq 100");
        self.at(us + 300, SERVER, "SYN ACK seq 500 ack 101");
        self.at(us + 500, CLIENT, "ACK seq 101 ack 501");
    }

    fn value(&self, name: &str) -> Option<u64> {
        self.bench.value("monitor", name)
    }

    fn values(&self, names: [&str; 2]) -> [Option<u64>; 2] {
        names.map(|name| self.value(name))
    }

    /// Retransmitted segments and those out of order, forward.
    fn again(&self) -> [Option<u64>; 2] {
        self.values(["retransmitted", "out_of_order"])
    }

    fn handshake(&self) -> [Option<u64>; 2] {
        self.values(["handshake_us", "handshake_back_us"])
    }

    /// Smoothed round-trip time and its variation, to the server.
    fn rtt(&self) -> [Option<u64>; 2] {
        self.values(["rtt_us", "rttvar_us"])
    }
}

/// Packets and bytes are counted by direction, of any protocol and both families. A flow
/// that is not TCP has nothing else.
#[test]
fn packets_and_bytes_are_counted_by_direction() {
    for [there, back] in [
        ["udp 10.0.0.2:5 > 203.0.113.10:53 len 30", "udp 203.0.113.10:53 > 10.0.0.2:5 len 400"],
        ["udp [2001:db8::1]:5 > [2001:db8::2]:53", "udp [2001:db8::2]:53 > [2001:db8::1]:5 len 9"],
    ] {
        let mut bench = Bench::new(&[("monitor", json!({}))]);
        [there, there, back].iter().for_each(|packet| bench.unchanged(packet));
        let bytes = |packet: &str| Some(words::frame(packet).len() as u64);
        let value = |name| bench.value("monitor", name);
        assert_eq!([value("packets"), value("packets_back")], [Some(2), Some(1)]);
        assert_eq!(value("bytes"), bytes(there).map(|bytes| 2 * bytes));
        assert_eq!(value("bytes_back"), bytes(back));
        for name in ["retransmitted", "out_of_order_back", "handshake_us", "rtt_us"] {
            assert_eq!(value(name), None, "{name}");
        }
    }
}

/// Each half of the handshake takes as long as the stamps say. A connection to a port
/// that is closed has none.
#[test]
fn the_halves_of_a_handshake_are_timed() {
    let mut watched = Watched::new();
    watched.at(10, CLIENT, "SYN seq 100");
    assert_eq!(watched.handshake(), [None, None]);
    watched.at(317, SERVER, "SYN ACK seq 500 ack 101");
    assert_eq!(watched.handshake(), [Some(307), None]);
    watched.at(10_018, CLIENT, "ACK seq 101 ack 501");
    // Later acknowledgements are no handshake.
    watched.at(20_000, CLIENT, "ACK seq 101 ack 501 len 5");
    watched.at(20_400, SERVER, "ACK seq 501 ack 106");
    assert_eq!(watched.handshake(), [Some(307), Some(9_701)]);
    let mut closed = Watched::new();
    closed.at(10, CLIENT, "SYN seq 100");
    closed.at(30, SERVER, "RST ACK seq 0 ack 101");
    assert_eq!(closed.handshake(), [None, None]);
}

/// The answer to a SYN that was sent twice may be for either: it is not timed. The other
/// half is, unless its SYN came twice, too.
#[test]
fn a_handshake_that_repeats_is_not_timed() {
    let mut watched = Watched::new();
    watched.at(10, CLIENT, "SYN seq 100");
    watched.at(1_000_010, CLIENT, "SYN seq 100");
    watched.at(1_000_310, SERVER, "SYN ACK seq 500 ack 101");
    watched.at(1_000_510, CLIENT, "ACK seq 101 ack 501");
    assert_eq!(watched.handshake(), [None, Some(200)]);
    assert_eq!(watched.again(), [Some(1), Some(0)]);
    let mut answered = Watched::new();
    answered.at(10, CLIENT, "SYN seq 100");
    answered.at(310, SERVER, "SYN ACK seq 500 ack 101");
    answered.at(1_310, SERVER, "SYN ACK seq 500 ack 101");
    answered.at(1_510, CLIENT, "ACK seq 101 ack 501");
    assert_eq!(answered.handshake(), [Some(300), None]);
    assert_eq!(answered.value("retransmitted_back"), Some(1));
}

/// An acknowledgement of data in the SYN is an answer, too.
#[test]
fn a_fast_open_is_timed() {
    let mut watched = Watched::new();
    watched.at(10, CLIENT, "SYN seq 100 len 20");
    watched.at(60, SERVER, "SYN ACK seq 500 ack 121");
    assert_eq!(watched.handshake(), [Some(50), None]);
}

/// Bytes that pass again are retransmitted: a whole segment, a part of it, one with new
/// bytes behind it, a SYN, a FIN. Acknowledgements without data never are.
#[test]
fn bytes_that_pass_again_are_retransmitted() {
    let mut watched = Watched::new();
    watched.shake_hands(10);
    watched.at(1_000, CLIENT, "ACK seq 101 ack 501 len 100");
    watched.at(1_100, CLIENT, "ACK seq 201 ack 501 len 100");
    assert_eq!(watched.again(), [Some(0), Some(0)]);
    for (number, again) in [
        "ACK seq 201 ack 501 len 100",
        "ACK seq 151 ack 501 len 20",
        "ACK seq 251 ack 501 len 100",
        "SYN seq 100",
    ]
    .iter()
    .enumerate()
    {
        watched.at(2_000 + number as u64, CLIENT, again);
        assert_eq!(watched.again(), [Some(number as u64 + 1), Some(0)], "{again}");
    }
    // Duplicate acknowledgements, and those that change the window.
    for us in 3_000..3_005 {
        watched.at(us, CLIENT, "ACK seq 351 ack 501");
        watched.at(us, CLIENT, &format!("ACK seq 351 ack 501 win {us}"));
        watched.at(us, SERVER, "ACK seq 501 ack 201");
    }
    watched.at(4_000, CLIENT, "FIN ACK seq 351 ack 501");
    assert_eq!(watched.again(), [Some(4), Some(0)]);
    watched.at(5_000, CLIENT, "FIN ACK seq 351 ack 501");
    assert_eq!(watched.again(), [Some(5), Some(0)]);
    assert_eq!(watched.value("retransmitted_back"), Some(0));
    assert_eq!(watched.bench.counter("retransmitted"), 5);
}

/// A segment that others overtook is out of order, if it comes before its sender can have
/// learnt that it is missing: within the round trip of the handshake. Later it was sent
/// again, although its first copy never came here.
#[test]
fn a_segment_is_out_of_order_or_was_sent_again() {
    let late_by = |us: u64| {
        let mut watched = Watched::new();
        watched.shake_hands(10);
        watched.at(1_000, CLIENT, "ACK seq 201 ack 501 len 100");
        watched.at(1_100, CLIENT, "ACK seq 301 ack 501 len 100");
        watched.at(1_000 + us, CLIENT, "ACK seq 101 ack 501 len 100");
        let once = watched.again();
        // The hole is filled: the same bytes again are a retransmission in any case.
        watched.at(1_001 + us, CLIENT, "ACK seq 151 ack 501 len 10");
        assert_eq!(watched.value("retransmitted"), once[0].map(|count| count + 1));
        once
    };
    assert_eq!(late_by(499), [Some(0), Some(1)]);
    assert_eq!(late_by(500), [Some(1), Some(0)]);
    // Without a handshake the limit is 3 ms.
    let midstream = |us: u64| {
        let mut watched = Watched::new();
        watched.at(10, CLIENT, "ACK seq 1 ack 501 len 100");
        watched.at(1_000, CLIENT, "ACK seq 201 ack 501 len 100");
        watched.at(1_000 + us, CLIENT, "ACK seq 101 ack 501 len 100");
        watched.again()
    };
    assert_eq!(midstream(2_999), [Some(0), Some(1)]);
    assert_eq!(midstream(3_000), [Some(1), Some(0)]);
}

/// Segments come in reverse order, and each is out of order but the last: holes are
/// filled from their end, from their beginning, in their middle, and beyond them.
#[test]
fn holes_are_filled_from_any_side() {
    let orders: [(&[u64], u64, u64); 5] = [
        (&[5, 4, 3, 2, 1, 0], 0, 5),
        (&[5, 0, 1, 2, 3, 4], 0, 5),
        (&[5, 2, 1, 0, 3, 4], 0, 5),
        (&[1, 3, 5, 0, 2, 4], 0, 3),
        (&[1, 3, 5, 4, 4, 2, 2, 0, 0], 3, 3),
    ];
    for (order, retransmitted, out_of_order) in orders {
        let mut watched = Watched::new();
        watched.shake_hands(10);
        for number in order {
            watched.at(1_000, CLIENT, &format!("ACK seq {} ack 501 len 10", 101 + number * 10));
        }
        assert_eq!(watched.again(), [Some(retransmitted), Some(out_of_order)], "{order:?}");
    }
    // A segment that fills a hole, and repeats bytes beside it, was sent again.
    let mut watched = Watched::new();
    watched.shake_hands(10);
    watched.at(1_000, CLIENT, "ACK seq 111 ack 501 len 10");
    watched.at(1_000, CLIENT, "ACK seq 101 ack 501 len 15");
    assert_eq!(watched.again(), [Some(1), Some(0)]);
}

/// More holes than there is room for: the oldest is forgotten, and its bytes count as
/// passed.
#[test]
fn of_many_holes_the_latest_are_known() {
    let mut watched = Watched::new();
    watched.shake_hands(10);
    for number in 0..6 {
        watched.at(1_000, CLIENT, &format!("ACK seq {} ack 501 len 10", 111 + number * 20));
    }
    for number in 0..6 {
        watched.at(1_000, CLIENT, &format!("ACK seq {} ack 501 len 10", 101 + number * 20));
    }
    assert_eq!(watched.again(), [Some(2), Some(4)]);
}

/// A keep-alive has no data, or the last byte again, and is no retransmission. Neither is
/// the first byte beyond a window that is closed, or the same byte again.
#[test]
fn keep_alives_are_not_retransmissions() {
    let mut watched = Watched::new();
    watched.shake_hands(10);
    watched.at(1_000, CLIENT, "ACK seq 101 ack 501 len 100");
    for us in 2..5 {
        watched.at(us * 1_000_000, CLIENT, "ACK seq 200 ack 501");
        watched.at(us * 1_000_000 + 5, CLIENT, "ACK seq 200 ack 501 len 1");
    }
    assert_eq!((watched.again(), watched.bench.counter("keep_alives")), ([Some(0), Some(0)], 6));
    watched.at(6_000_000, CLIENT, "ACK seq 201 ack 501 len 1");
    watched.at(7_000_000, CLIENT, "ACK seq 201 ack 501 len 1");
    assert_eq!((watched.again(), watched.bench.counter("keep_alives")), ([Some(0), Some(0)], 7));
    // Two bytes are more than a keep-alive has.
    watched.at(8_000_000, CLIENT, "ACK seq 200 ack 501 len 2");
    assert_eq!(watched.again(), [Some(1), Some(0)]);
}

/// Sequence numbers wrap, and nothing else happens. A stranger's segment, far away, is
/// none of the connection.
#[test]
fn sequence_numbers_wrap() {
    let mut watched = Watched::new();
    let first = u32::MAX - 149;
    watched.at(10, CLIENT, &format!("SYN seq {}", first.wrapping_sub(1)));
    watched.at(310, SERVER, &format!("SYN ACK seq 500 ack {first}"));
    watched.at(510, CLIENT, &format!("ACK seq {first} ack 501"));
    let segment =
        |number: u32| format!("ACK seq {} ack 501 len 100", first.wrapping_add(number * 100));
    for number in 0..4 {
        watched.at(1_000, CLIENT, &segment(number));
    }
    assert_eq!(watched.again(), [Some(0), Some(0)]);
    watched.at(1_000, CLIENT, &segment(5));
    watched.at(1_000, CLIENT, &segment(4));
    watched.at(1_000, CLIENT, &segment(0));
    assert_eq!(watched.again(), [Some(1), Some(1)]);
    watched.at(1_000, CLIENT, "ACK seq 2000000000 ack 501 len 5");
    watched.at(1_000, CLIENT, &segment(6));
    assert_eq!(watched.again(), [Some(1), Some(1)]);
}

/// Round-trip times come from timestamps: the first segment with a new one is timed until
/// its echo, and the measurements are smoothed as a sender does it.
#[test]
fn round_trips_are_measured_by_timestamps() {
    let mut watched = Watched::new();
    watched.at(10, CLIENT, "SYN seq 100 tsval 1000 tsecr 0");
    watched.at(310, SERVER, "SYN ACK seq 500 ack 101 tsval 70 tsecr 1000");
    watched.at(510, CLIENT, "ACK seq 101 ack 501 tsval 1000 tsecr 70");
    assert_eq!(watched.rtt(), [None, None]);
    watched.at(2_000, CLIENT, "ACK seq 101 ack 501 len 10 tsval 1002 tsecr 70");
    // A later segment of the same timestamp is not timed, nor an older echo taken.
    watched.at(2_100, CLIENT, "ACK seq 111 ack 501 len 10 tsval 1002 tsecr 70");
    watched.at(2_200, SERVER, "ACK seq 501 ack 101 tsval 71 tsecr 1000");
    assert_eq!(watched.rtt(), [None, None]);
    watched.at(2_800, SERVER, "ACK seq 501 ack 121 tsval 72 tsecr 1002");
    assert_eq!(watched.rtt(), [Some(800), Some(400)]);
    // RTTVAR = 3/4 * 400 + 1/4 * 400; SRTT = 7/8 * 800 + 1/8 * 1200.
    watched.at(3_000, CLIENT, "ACK seq 121 ack 501 len 10 tsval 1003 tsecr 72");
    watched.at(4_200, SERVER, "ACK seq 501 ack 131 tsval 73 tsecr 1003");
    assert_eq!(watched.rtt(), [Some(850), Some(400)]);
    // A segment is lost behind the monitor, and only its successor is answered.
    watched.at(5_000, CLIENT, "ACK seq 131 ack 501 len 10 tsval 1005 tsecr 73");
    watched.at(9_000, CLIENT, "ACK seq 131 ack 501 len 10 tsval 1009 tsecr 73");
    watched.at(9_900, SERVER, "ACK seq 501 ack 141 tsval 78 tsecr 1009");
    assert_eq!(watched.rtt(), [Some(850), Some(400)]);
    // From there on measurements go on, and the other direction has its own.
    watched.at(10_000, CLIENT, "ACK seq 141 ack 501 len 10 tsval 1010 tsecr 78");
    watched.at(10_850, SERVER, "ACK seq 501 ack 151 len 20 tsval 79 tsecr 1010");
    watched.at(10_900, CLIENT, "ACK seq 151 ack 521 tsval 1011 tsecr 79");
    assert_eq!(watched.rtt(), [Some(850), Some(300)]);
    assert_eq!(watched.values(["rtt_back_us", "rttvar_back_us"]), [Some(50), Some(25)]);
}

/// Timestamps wrap. Without any there are no round-trip times, and acknowledgements
/// without data are not timed.
#[test]
fn what_has_no_echo_is_not_measured() {
    let mut watched = Watched::new();
    watched.at(10, CLIENT, "ACK seq 101 ack 501 len 10 tsval 4294967290 tsecr 1");
    watched.at(90, SERVER, "ACK seq 501 ack 111 tsval 2 tsecr 4294967290");
    watched.at(100, CLIENT, "ACK seq 111 ack 501 len 10 tsval 3 tsecr 2");
    watched.at(180, SERVER, "ACK seq 501 ack 121 tsval 4 tsecr 3");
    assert_eq!(watched.rtt(), [Some(80), Some(30)]);
    let mut silent = Watched::new();
    silent.shake_hands(10);
    silent.at(1_000, CLIENT, "ACK seq 101 ack 501 len 10");
    silent.at(1_500, SERVER, "ACK seq 501 ack 111 len 10");
    assert_eq!((silent.rtt(), silent.handshake()), ([None, None], [Some(300), Some(200)]));
    let mut idle = Watched::new();
    idle.at(10, CLIENT, "ACK seq 101 ack 501 tsval 5 tsecr 1");
    idle.at(90, SERVER, "ACK seq 501 ack 101 tsval 2 tsecr 5");
    assert_eq!(idle.rtt(), [None, None]);
}

/// An answered SYN with another number begins a new connection of the same flow: sequence
/// numbers and times are those of the new one, and counts go on.
#[test]
fn a_new_connection_of_the_same_flow_is_measured_anew() {
    let mut watched = Watched::new();
    watched.shake_hands(10);
    watched.at(1_000, CLIENT, "ACK seq 101 ack 501 len 10 tsval 5 tsecr 1");
    watched.at(1_000, CLIENT, "ACK seq 101 ack 501 len 10 tsval 5 tsecr 1");
    watched.at(1_080, SERVER, "ACK seq 501 ack 111 tsval 2 tsecr 5");
    assert_eq!((watched.again(), watched.rtt()[0]), ([Some(1), Some(0)], Some(80)));
    watched.at(2_000, CLIENT, "SYN seq 90");
    watched.at(2_007, SERVER, "SYN ACK seq 40 ack 91");
    assert_eq!(watched.rtt(), [None, None]);
    watched.at(2_009, CLIENT, "ACK seq 91 ack 41 len 30");
    assert_eq!((watched.again(), watched.handshake()), ([Some(1), Some(0)], [Some(7), Some(2)]));
    assert_eq!(watched.value("packets"), Some(6));
}

/// A SYN that the server does not answer, late or a stranger's, changes no measurement,
/// and neither does a SYN-ACK that answers none.
#[test]
fn a_syn_without_an_answer_changes_nothing() {
    let strangers: [&[(&str, &str)]; 5] = [
        &[],
        &[(CLIENT, "SYN seq 3000000000 tsval 900 tsecr 0")],
        &[(SERVER, "SYN ACK seq 3000000000 ack 7 tsval 900 tsecr 900")],
        &[(SERVER, "SYN seq 3000000000 tsval 900 tsecr 0")],
        &[(CLIENT, "SYN seq 90"), (SERVER, "SYN ACK seq 500 ack 101"), (CLIENT, "SYN seq 80")],
    ];
    for strange in strangers {
        let mut watched = Watched::new();
        watched.at(10, CLIENT, "SYN seq 100 tsval 1 tsecr 0");
        watched.at(310, SERVER, "SYN ACK seq 500 ack 101 tsval 7 tsecr 1");
        watched.at(510, CLIENT, "ACK seq 101 ack 501 tsval 2 tsecr 7");
        watched.at(600, CLIENT, "ACK seq 101 ack 501 len 10 tsval 3 tsecr 7");
        strange.iter().for_each(|(way, rest)| watched.at(640, way, rest));
        watched.at(680, SERVER, "ACK seq 501 ack 111 len 10 tsval 8 tsecr 3");
        watched.at(700, CLIENT, "ACK seq 101 ack 501 len 10 tsval 4 tsecr 8");
        watched.at(800, CLIENT, "ACK seq 121 ack 501 len 10 tsval 5 tsecr 8");
        watched.at(810, CLIENT, "ACK seq 111 ack 501 len 10 tsval 5 tsecr 8");
        assert_eq!(watched.again(), [Some(1), Some(1)], "{strange:?}");
        assert_eq!(watched.handshake(), [Some(300), Some(200)], "{strange:?}");
        assert_eq!(watched.rtt(), [Some(80), Some(40)], "{strange:?}");
    }
}

/// A stranger's SYN before the answer does not keep a connection from being measured.
#[test]
fn of_two_syns_the_answered_one_counts() {
    for syns in [["SYN seq 7000", "SYN seq 100"], ["SYN seq 100", "SYN seq 7000"]] {
        let mut watched = Watched::new();
        watched.at(10, CLIENT, syns[0]);
        watched.at(20, CLIENT, syns[1]);
        watched.at(320, SERVER, "SYN ACK seq 500 ack 101");
        watched.at(520, CLIENT, "ACK seq 101 ack 501 len 10");
        watched.at(530, CLIENT, "ACK seq 101 ack 501 len 10");
        let there = if syns[0] == "SYN seq 100" { 310 } else { 300 };
        assert_eq!(watched.handshake(), [Some(there), Some(200)], "{syns:?}");
        assert_eq!(watched.again(), [Some(1), Some(0)], "{syns:?}");
    }
    // A server's number that answers nothing comes before the true one.
    let mut watched = Watched::new();
    watched.at(10, CLIENT, "SYN seq 100");
    watched.at(20, SERVER, "SYN ACK seq 9000 ack 7");
    watched.at(30, SERVER, "ACK seq 9000 ack 7 len 5");
    watched.at(310, SERVER, "SYN ACK seq 500 ack 101");
    watched.at(510, CLIENT, "ACK seq 101 ack 501 len 10");
    assert_eq!(watched.handshake(), [Some(300), Some(200)]);
}

/// The answer to an offered SYN is timed as that of a first one: unless the SYN came
/// twice, and with data in it. The same number of the client may begin another
/// connection, too.
#[test]
fn an_offered_syn_is_timed_as_a_first_one() {
    let mut watched = Watched::new();
    watched.shake_hands(10);
    watched.at(2_000, CLIENT, "SYN seq 9000 len 20");
    watched.at(2_050, SERVER, "SYN ACK seq 40 ack 9021");
    watched.at(2_060, CLIENT, "ACK seq 9021 ack 41 len 10");
    watched.at(2_070, CLIENT, "ACK seq 9001 ack 41 len 20");
    assert_eq!((watched.handshake(), watched.again()), ([Some(50), Some(10)], [Some(1), Some(0)]));
    watched.at(3_000, CLIENT, "SYN seq 100");
    watched.at(4_000, CLIENT, "SYN seq 100");
    watched.at(4_050, SERVER, "SYN ACK seq 500 ack 101");
    watched.at(4_060, CLIENT, "ACK seq 101 ack 501 len 10");
    assert_eq!((watched.handshake(), watched.again()), ([None, Some(10)], [Some(2), Some(0)]));
    watched.at(5_000, CLIENT, "SYN seq 100");
    watched.at(5_050, SERVER, "SYN ACK seq 70000 ack 101");
    watched.at(5_060, CLIENT, "ACK seq 101 ack 70001 len 10");
    assert_eq!((watched.handshake(), watched.again()), ([None, Some(10)], [Some(3), Some(0)]));
    assert_eq!(watched.value("retransmitted_back"), Some(0));
}

/// IPv6, and a router's error, which has no sequence numbers. Fragments are counted, and
/// not looked into.
#[test]
fn other_packets_of_a_connection_are_counted() {
    let mut bench = Bench::new(&[("monitor", json!({}))]);
    let (there, back) =
        ("tcp [2001:db8::1]:5 > [2001:db8::2]:80", "tcp [2001:db8::2]:80 > [2001:db8::1]:5");
    let began = bench.now;
    for (us, packet) in [
        (1, format!("{there} SYN seq 100")),
        (41, format!("{back} SYN ACK seq 500 ack 101")),
        (51, format!("{there} ACK seq 101 ack 501 len 10")),
        (61, format!("{there} ACK seq 101 ack 501 len 10")),
        (71, format!("{there} ACK seq 101 ack 501 len 20 more")),
        (81, format!("icmp 2001:db8::9 > 2001:db8::1 unreachable quoting cut 60 {there} seq 101")),
    ] {
        bench.now = began + us * MICROSECOND - 1;
        bench.unchanged(&packet);
    }
    let value = |name| bench.value("monitor", name);
    assert_eq!([value("packets"), value("packets_back")], [Some(4), Some(2)]);
    assert_eq!([value("handshake_us"), value("handshake_back_us")], [Some(40), Some(10)]);
    assert_eq!([value("retransmitted"), value("out_of_order")], [Some(1), Some(0)]);
}

/// A runtime dies, and another one goes on with its flows, or flows move: values are the
/// same as without it.
#[test]
fn values_go_where_the_flow_goes() {
    let segments = [
        (CLIENT, "SYN seq 100 tsval 1 tsecr 0"),
        (SERVER, "SYN ACK seq 500 ack 101 tsval 7 tsecr 1"),
        (CLIENT, "ACK seq 101 ack 501 tsval 2 tsecr 7"),
        (CLIENT, "ACK seq 111 ack 501 len 10 tsval 3 tsecr 7"),
        (CLIENT, "ACK seq 101 ack 501 len 10 tsval 4 tsecr 7"),
        (SERVER, "ACK seq 501 ack 121 len 9 tsval 8 tsecr 3"),
        (CLIENT, "ACK seq 121 ack 501 len 10 tsval 5 tsecr 8"),
        (CLIENT, "ACK seq 121 ack 501 len 10 tsval 6 tsecr 8"),
        (SERVER, "ACK seq 510 ack 131 tsval 9 tsecr 5"),
    ];
    let all = |moves: &[usize], is_alive: bool| {
        let mut watched = Watched::new();
        for (number, (way, rest)) in segments.iter().enumerate() {
            if moves.contains(&number) {
                let mut next = Watched::new();
                next.bench.takes_over(&mut watched.bench, is_alive);
                watched.bench = next.bench;
            }
            watched.at(10 + 100 * number as u64, way, rest);
        }
        watched.bench.values()
    };
    let undisturbed = all(&[], true);
    assert_eq!(undisturbed.iter().flatten().count(), 14);
    for at in 1..segments.len() {
        for is_alive in [false, true] {
            assert_eq!(all(&[at], is_alive), undisturbed, "{at}");
            assert_eq!(all(&[at, segments.len() - 1], is_alive), undisturbed, "{at}");
        }
    }
}
