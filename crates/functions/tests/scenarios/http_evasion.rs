//! Segments in every order and of every size: no byte passes unread that a server would
//! read, and segment boundaries do not matter.

use crate::http_conversation::End::{Client, Server};
use crate::http_conversation::{CLIENT, Conversation, End, SERVER, get, ok};
use holdfast_wire::DropReason::{BadChecksum, FunctionDenied, PolicyDenied, StateInvalid};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn config() -> Value {
    json!({ "rules": ["deny path /evil*"], "hosts": ["a.example"] })
}

fn conversation() -> Conversation {
    Conversation::new(&config())
}

const EVIL: &str = "GET /evil HTTP/1.1\r\nHost: a.example\r\n\r\n";

/// Segments of one byte, each sent twice, are read once while sequence numbers wrap.
#[test]
pub(crate) fn segments_of_one_byte() {
    let mut talk = conversation();
    for byte in (get("/1", "a.example") + &get("/2", "a.example")).bytes() {
        let at = talk.next[0];
        talk.asks([byte]);
        talk.sends(Client, "ACK", at, &[byte]).expect("sent again, it passes");
    }
    for byte in ok("body").repeat(2).bytes() {
        talk.answers([byte]);
    }
    assert_eq!((talk.count("requests"), talk.count("a.example 2xx")), (2, 2));
    assert!(talk.next[0] < CLIENT, "the numbers have wrapped");
    let (end, all) = EVIL.as_bytes().split_last().expect("bytes");
    all.iter().for_each(|byte| talk.asks([*byte]));
    talk.is_refused(Client, [*end]);
}

/// Retransmitted bytes are not read again, even if other bytes come with them.
#[test]
pub(crate) fn repeated_bytes_are_read_once() {
    let mut talk = conversation();
    let start = talk.next[0];
    let two = get("/1", "a.example") + &get("/2", "a.example");
    talk.asks(&two[..60]);
    for from in [0, 10, 59] {
        talk.sends(Client, "ACK", start.wrapping_add(from), &two.as_bytes()[from as usize..60])
            .expect("repeated bytes pass");
    }
    talk.sends(Client, "ACK", start.wrapping_add(20), &two.as_bytes()[20..]).expect("new bytes");
    talk.next[0] = start.wrapping_add(two.len() as u32);
    talk.sends(Client, "ACK", talk.next[0].wrapping_sub(1), b"\0").expect("a keep-alive passes");
    assert_eq!(talk.count("requests"), 2);
    // New bytes after retransmitted ones are read.
    let overlap = "\r\n".to_owned() + EVIL;
    let said = talk.sends(Client, "ACK", talk.next[0].wrapping_sub(2), overlap.as_bytes());
    assert_eq!((said, talk.count("requests")), (Err(PolicyDenied), 3));
}

/// A segment after a gap is dropped until the gap is filled.
#[test]
pub(crate) fn a_gap_is_filled_first() {
    let mut talk = conversation();
    let at = talk.next[0];
    let (first, second) = EVIL.as_bytes().split_at(12);
    let behind = at.wrapping_add(12);
    assert_eq!(talk.sends(Client, "ACK", behind, second), Err(StateInvalid));
    assert_eq!(talk.count("out_of_order"), 1);
    talk.sends(Client, "ACK", at, first).expect("passes");
    assert_eq!(talk.sends(Client, "ACK", behind, second), Err(PolicyDenied));
    let mut talk = conversation();
    let at = talk.next[1];
    assert_eq!(talk.sends(Server, "ACK", at + 1, b"TTP/1.1"), Err(StateInvalid));
}

/// Segments inside a response body may arrive in any order; bytes after the body are read
/// in order.
#[test]
fn a_responses_body_has_no_order() {
    let mut talk = conversation();
    talk.asks(get("/", "a.example").repeat(2));
    talk.answers("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nbb8\r\n");
    let (at, part) = (talk.next[1], [b'x'; 1000]);
    for from in [1000, 2000, 1000] {
        talk.sends(Server, "ACK", at + from, &part[..999]).expect("inside the body");
    }
    assert_eq!(talk.sends(Server, "ACK", at + 3001, b"x"), Err(StateInvalid));
    let end = [&part[..500], b"\r\n0\r\n\r\nHTTP/1.1 4"].concat();
    talk.sends(Server, "ACK", at + 2500, &end).expect("the end of the body");
    talk.sends(Server, "ACK", at, &part).expect("its beginning, late");
    talk.next[1] = at + 2500 + end.len() as u32;
    talk.answers("04 No\r\nContent-Length: 0\r\n\r\n");
    assert_eq!((talk.count("responses_2xx"), talk.count("responses_4xx")), (1, 1));
}

/// A request body must arrive in order: servers may take the later of two segments ahead
/// of a gap, which the function would take for a retransmission.
#[test]
pub(crate) fn a_requests_body_has_an_order() {
    let mut talk = conversation();
    talk.asks("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 100\r\n\r\n");
    let at = talk.next[0];
    let end = [&[b'x'; 50][..], get("/", "a.example").as_bytes()].concat();
    assert_eq!(talk.sends(Client, "ACK", at.wrapping_add(50), &end), Err(StateInvalid));
    talk.asks([b'x'; 100]);
    talk.is_refused(Client, EVIL);
}

/// Sequence numbers do not tell the end of a body of gigabytes, so its segments must
/// arrive in order.
#[test]
fn a_huge_body_has_an_order() {
    let mut talk = conversation();
    talk.asks(get("/", "a.example"));
    talk.answers("HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n");
    let at = talk.next[1];
    talk.answers("x");
    assert_eq!(talk.sends(Server, "ACK", at + 9, b"x"), Err(StateInvalid));
    assert_eq!(talk.sends(Server, "ACK", at + (1 << 30), b"x"), Err(StateInvalid));
}

/// A client's SYN inside a connection changes nothing, because the server ignores it.
#[test]
pub(crate) fn a_syn_hides_nothing() {
    let mut talk = conversation();
    talk.sends(Client, "SYN", 70_000, b"").expect("the server decides about it");
    talk.asks(&EVIL[..9]);
    talk.sends(Client, "SYN", talk.next[0].wrapping_add(1000), b"").expect("as before");
    talk.is_refused(Client, &EVIL[9..]);
    // A repeated SYN-ACK changes nothing either.
    let mut talk = conversation();
    talk.asks(get("/", "a.example"));
    let next = talk.next;
    talk.next = [CLIENT, SERVER];
    talk.sends(Server, "SYN ACK", SERVER - 1, b"").expect("passes");
    talk.next = next;
    talk.is_refused(Client, EVIL);
}

/// A SYN-ACK of the server to another SYN begins a connection.
#[test]
fn an_answered_syn_begins_anew() {
    let mut talk = conversation();
    talk.asks(&EVIL[..9]);
    talk.next = [1_000_000, 2_000_000];
    talk.shake();
    talk.asks(get("/", "a.example"));
    talk.answers(ok(""));
    talk.is_refused(Client, EVIL);
    // A new number of the server begins one even if the client's number is the same.
    talk.next = [1_000_000, 3_000_000];
    talk.shake();
    talk.is_refused(Client, EVIL);
}

/// A SYN-ACK that answers neither the client's latest SYN nor the connection's own begins
/// nothing: the client keeps its connection, and its bytes are read as before.
#[test]
fn a_strange_answer_begins_nothing() {
    let mut talk = conversation();
    talk.asks(get("/", "a.example"));
    talk.answers(ok(""));
    // The SYN came twice, and its second answer acknowledges all that has come since.
    talk.sends(Server, "SYN ACK", SERVER - 1, b"").expect("the client decides about it");
    let acknowledged = talk.next[0];
    talk.next[0] = 70_000;
    talk.sends(Server, "SYN ACK", 900_000, b"").expect("as before");
    talk.next[0] = acknowledged;
    talk.asks(get("/", "a.example"));
    talk.answers(ok(""));
    assert_eq!((talk.count("requests"), talk.count("responses_2xx")), (2, 2));
    talk.is_refused(Client, EVIL);
}

/// A server with SYN cookies may answer a SYN twice, with two numbers. Only the client
/// knows which one counts, so responses are not read; requests are.
#[test]
fn a_second_answer_leaves_requests_read() {
    let mut talk = conversation();
    talk.sends(Server, "SYN ACK", 900_000, b"").expect("passes");
    talk.answers("whatever");
    talk.is_refused(Client, EVIL);
}

/// A second answer after data were read changes nothing: the client has chosen the other
/// one. It counts again after another SYN.
#[test]
fn a_second_answer_after_data_begins_nothing() {
    let mut talk = Conversation::silent(&config());
    talk.sends(Client, "SYN", CLIENT.wrapping_sub(1), b"").expect("passes");
    talk.shake();
    talk.asks(&EVIL[..9]);
    let next = talk.next;
    talk.next = [CLIENT, SERVER];
    talk.sends(Server, "SYN ACK", 900_000, b"").expect("the client decides about it");
    talk.next = next;
    talk.asks(&EVIL[9..20]);
    talk.is_refused(Client, &EVIL[20..]);
    assert_eq!((talk.bench.state(), talk.count("out_of_order")), ("refused", 0));
    talk.next = [CLIENT, SERVER + 50_000];
    talk.shake();
    talk.asks(get("/", "a.example"));
    talk.answers(ok(""));
    assert_eq!(talk.count("responses_2xx"), 1);
    // However many answers a SYN has, responses are read if the client's choice is known.
    let mut talk = conversation();
    for other in [900_000, 800_000] {
        talk.sends(Server, "SYN ACK", other, b"").expect("passes");
    }
    talk.asks(get("/", "a.example"));
    talk.is_refused(Client, EVIL);
}

/// Segments that the server may read differently or not at all are dropped: damaged and
/// urgent segments, fragments, SYNs with data.
#[test]
fn unreadable_segments_are_dropped() {
    let mut talk = conversation();
    let at = talk.next[0];
    let mut damaged = talk.frame(Client, "ACK", at, get("/", "a.example").as_bytes());
    *damaged.last_mut().expect("bytes") ^= 1;
    assert_eq!(talk.bench.send_unchecked(&damaged), Err(BadChecksum));
    assert_eq!(talk.sends(Client, "ACK URG", at, b"GET "), Err(FunctionDenied));
    assert_eq!(talk.sends(Client, "SYN", at, b"GET "), Err(FunctionDenied));
    assert_eq!(talk.sends(Client, "ACK more", at, b"GET "), Err(FunctionDenied));
    let later = "fragment 10.0.0.2 > 203.0.113.10 tcp offset 24 len 8";
    assert_eq!(talk.bench.send(later), Err(FunctionDenied));
    assert_eq!((talk.count("unreadable"), talk.count("requests")), (4, 0));
    talk.is_refused(Client, EVIL);
    assert_eq!(talk.sends(Server, "ACK URG", SERVER, b""), Err(FunctionDenied));
    // A damaged SYN-ACK begins no connection, and data before the handshake are dropped.
    let mut talk = Conversation::silent(&config());
    talk.sends(Client, "SYN", CLIENT - 1, b"").expect("passes");
    let mut damaged = talk.frame(Server, "SYN ACK", SERVER - 1, b"");
    *damaged.last_mut().expect("bytes") ^= 1;
    assert_eq!(talk.bench.send_unchecked(&damaged), Err(BadChecksum));
    assert_eq!(talk.bench.state(), "opening");
    assert_eq!(talk.sends(Client, "ACK", CLIENT, EVIL.as_bytes()), Err(StateInvalid));
    // All of these segments pass in a tunnel.
    let mut talk = conversation();
    talk.asks("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    talk.answers("HTTP/1.1 101 Go\r\n\r\n");
    talk.sends(Client, "ACK URG", 5, b"x").expect("passes");
    talk.sends(Client, "ACK more", 5, b"twelve bytes").expect("passes");
}

/// A segment that servers discard is not read in place of the one that they take (RFC
/// 9293, section 3.10.7.4): it has no acknowledgement, or one for bytes that were not
/// sent.
#[test]
fn what_servers_discard_is_not_read() {
    let fine = get("/fine", "a.example");
    for (flags, offset) in [("PSH", 0), ("FIN", 0), ("ACK", 1), ("ACK", -1), ("ACK", 1 << 31)] {
        let mut talk = conversation();
        let at = talk.next[0];
        talk.next[1] = SERVER.wrapping_add_signed(offset);
        assert_eq!(talk.sends(Client, flags, at, fine.as_bytes()), Err(FunctionDenied));
        talk.next[1] = SERVER;
        assert_eq!((talk.count("unreadable"), talk.count("requests")), (1, 0));
        talk.is_refused(Client, EVIL);
    }
    // Both ends may acknowledge all that they received: body bytes in any order, and a
    // FIN.
    let mut talk = conversation();
    talk.asks(&fine);
    talk.answers(&ok(&"x".repeat(900))[..40]);
    talk.sends(Server, "ACK", talk.next[1] + 300, &[b'x'; 500]).expect("inside the body");
    talk.next[1] += 800;
    talk.asks(&fine);
    talk.sends(Client, "ACK", talk.next[0].wrapping_sub(10), b"x").expect("sent again");
    let mut talk = conversation();
    talk.sends(Server, "FIN ACK", talk.next[1], b"").expect("passes");
    talk.next[1] += 1;
    talk.asks(&fine);
    talk.sends(Client, "FIN ACK", talk.next[0], b"").expect("passes");
    talk.next = [talk.next[0].wrapping_add(1), SERVER];
    talk.answers(ok(""));
    assert_eq!((talk.count("unreadable"), talk.count("responses_2xx")), (0, 1));
}

/// An urgent pointer removes a byte from what some servers read, even if it arrives
/// before the byte or with a retransmission. Segments with one are dropped.
#[test]
fn an_urgent_pointer_takes_nothing_out() {
    let mut talk = conversation();
    talk.asks(get("/fine", "a.example"));
    let at = talk.next[0];
    assert_eq!(talk.sends(Client, "ACK URG", at, b""), Err(FunctionDenied));
    let repeated = talk.sends(Client, "ACK URG", at.wrapping_sub(1), b"\n");
    assert_eq!((repeated, talk.count("unreadable")), (Err(FunctionDenied), 2));
    talk.sends(Client, "RST URG", at, b"").expect("a reset passes");
}

/// A server with SYN cookies answers several SYNs, and the client chooses one. Data are
/// dropped unless they belong to the last answer, wherever their numbers are.
#[test]
fn another_answer_hides_nothing() {
    for apart in [100_000u32, 30, 30u32.wrapping_neg(), 100_000u32.wrapping_neg()] {
        let mut talk = Conversation::silent(&config());
        let other = [CLIENT.wrapping_add(apart), 900_000_000];
        for [client, server] in [[CLIENT, SERVER], other] {
            talk.next = [client, server];
            talk.sends(Client, "SYN", client.wrapping_sub(1), b"").expect("passes");
            talk.sends(Server, "SYN ACK", server - 1, b"").expect("passes");
        }
        talk.next = [CLIENT, SERVER];
        assert!(talk.sends(Client, "ACK", CLIENT, EVIL.as_bytes()).is_err());
        // Harmless bytes at the numbers of the last answer are dropped too if they
        // acknowledge the first one, and so are evil bytes after them.
        let start = "GET /fine HTTP/1.1\r\nHost: a.ex";
        assert!(talk.sends(Client, "ACK", other[0], start.as_bytes()).is_err());
        assert!(talk.sends(Client, "ACK", CLIENT, EVIL.as_bytes()).is_err());
        assert_eq!(talk.count("requests"), 0);
        // Bytes before the first number of the last answer belong to another connection.
        talk.next = other;
        let before = other[0].wrapping_sub(2);
        assert_eq!(talk.sends(Client, "ACK", before, EVIL.as_bytes()), Err(StateInvalid));
        talk.sends(Client, "ACK", before.wrapping_add(1), b"x").expect("a keep-alive passes");
        assert_eq!(talk.count("out_of_order"), 1);
        talk.is_refused(Client, EVIL);
    }
}

/// A weak protection may restore a flow without its latest packets. The rest of the flow
/// passes unread, and is counted; a refused flow stays refused.
#[test]
fn a_flow_that_was_set_back_passes() {
    let mut talk = conversation();
    let then = talk.bench.remember();
    talk.asks(get("/", "a.example"));
    talk.bench.set_back(then, 1);
    assert_eq!(talk.bench.state(), "unread");
    talk.asks(EVIL);
    talk.answers("anything");
    assert_eq!(talk.count("midstream"), 1);
    let mut talk = conversation();
    talk.is_refused(Client, EVIL);
    let then = talk.bench.remember();
    talk.bench.set_back(then, 1);
    talk.is_refused(Client, EVIL);
}

/// Flags of segments. Servers accept data with the first three alone.
const FLAGS: &[&str] =
    &["ACK", "ACK PSH", "FIN ACK", "RST", "SYN", "ACK URG", "RST ACK", "ACK more", "PSH", "FIN"];

/// A byte of a corrupt state. Small numbers are frequent, because more of them are valid.
fn rubbish() -> impl Strategy<Value = u8> {
    prop_oneof![Just(u8::MAX), 0u8..40, any::<u8>()]
}

/// A turn of a conversation: bytes of one end.
type Turn = (End, Vec<u8>);

fn requests() -> Vec<String> {
    vec![
        get("/1", "a.example"),
        get("/2?x", "b.example:80"),
        "\r\nHEAD / HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned(),
        "POST /p HTTP/1.1\r\nHost: a.example\r\nContent-Length: 11\r\n\r\nGET / HTTP/".to_owned(),
        "PUT /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: b\r\n\r\nb;x=\"\"\r\nGET / HTTP/\r\n0\r\nT: x\r\n\r\n".to_owned(),
        "GET http://a.example:8/%65vi HTTP/1.0\r\nCookie: \t a=b; \r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a.example\r\nUpgrade: x\r\n\r\n".to_owned(),
        "CONNECT a.example:1 HTTP/1.1\r\nHost: a.example:1\r\n\r\n".to_owned(),
        EVIL.to_owned(),
    ]
}

fn responses() -> Vec<String> {
    vec![
        ok("HTTP/1.1 500 No\r\n\r\n"),
        "HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\r\n\r\n0\r\n\r\n".to_owned(),
        "HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\n".to_owned(),
        "HTTP/1.1 103 Early\r\n\r\n".to_owned(),
        "HTTP/1.1 200\r\n\r\n".to_owned(),
        "HTTP/1.1 101 Go\r\n\r\n".to_owned(),
    ]
}

fn turn() -> impl Strategy<Value = Turn> {
    let of = |end: End, texts: Vec<String>| {
        let noise =
            proptest::option::weighted(0.1, (any::<proptest::sample::Index>(), any::<u8>()));
        let texts = proptest::collection::vec(proptest::sample::select(texts), 1..4);
        (texts, noise).prop_map(move |(texts, noise)| {
            let mut data = texts.concat().into_bytes();
            if let Some((at, byte)) = noise {
                let at = at.index(data.len());
                data[at] = byte;
            }
            (end, data)
        })
    };
    prop_oneof![of(Client, requests()), of(Server, responses())]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Requests are refused and counted alike wherever segments end, and whichever
    /// instance has the flow.
    #[test]
    fn borders_decide_nothing(
        turns in proptest::collection::vec(turn(), 1..8),
        cuts in proptest::collection::vec(1usize..60, 1..40),
        malformed in prop_oneof![Just("deny"), Just("allow")],
    ) {
        let mut config = config();
        config["malformed"] = json!(malformed);
        let (mut whole, mut cut) = (Conversation::new(&config), Conversation::moving(&config));
        let mut cuts = cuts.iter().cycle();
        for (end, data) in &turns {
            let passed = whole.says(*end, data);
            let mut rest = data.as_slice();
            let mut last = Ok(());
            while !rest.is_empty() {
                let (part, behind) = rest.split_at((*cuts.next().expect("a cycle")).min(rest.len()));
                last = cut.says(*end, part);
                rest = behind;
            }
            prop_assert_eq!(passed, last);
            prop_assert_eq!(whole.bench.state(), cut.bench.state());
            prop_assert_eq!(whole.counts(), cut.counts());
        }
    }

    /// Arbitrary bytes as a flow's state cause no panic, and change no packet.
    #[test]
    fn rubbish_in_a_flows_state_does_no_harm(
        rubbish in proptest::collection::vec(rubbish(), 1..16),
        at in 0usize..656,
        len in 0usize..=656,
        step in proptest::option::of((0usize..2, 0u8..40, rubbish())),
        turns in proptest::collection::vec(turn(), 1..6),
    ) {
        let mut talk = Conversation::new(&config());
        talk.asks(get("/1", "a.example"));
        let rubbish: Vec<u8> = rubbish.iter().copied().cycle().take(len).collect();
        talk.bench.overwrite(at, &rubbish);
        // A reader has 32 bytes: `next` at 12, `step` and `at` at 24.
        if let Some((way, step, at)) = step {
            talk.bench.overwrite(32 * way + 24, &[step, at]);
            talk.bench.overwrite(32 * way + 12, &talk.next[way].to_ne_bytes());
        }
        for (end, data) in &turns {
            let at = talk.next[*end as usize];
            let _ = talk.says(*end, data);
            let _ = talk.sends(*end, "ACK", at.wrapping_add(9), data);
        }
    }

    /// A client sends segments of any flags and data, in any order, also retransmissions
    /// with other data. The stream that a server reassembles from the passed segments has
    /// no evil request, whether the server keeps the first or the second of two bytes
    /// with one number.
    #[test]
    fn nothing_hides_an_evil_request(
        segments in proptest::collection::vec(
            (
                proptest::sample::select(FLAGS),
                prop_oneof![3 => Just(0), 2 => -60i32..60],
                proptest::sample::select(requests()),
                prop_oneof![Just(usize::MAX), 1usize..60],
                prop_oneof![9 => Just(0), 1 => -2i32..3],
            ),
            1..16,
        ),
    ) {
        let mut talk = conversation();
        // Bytes of the two kinds of server: those reassembled, and those ahead of a gap.
        let mut servers = [(Vec::new(), BTreeMap::new()), (Vec::new(), BTreeMap::new())];
        for (flags, offset, text, len, acknowledged) in &segments {
            let data = &text.as_bytes()[..text.len().min(*len)];
            let at = i64::from(*offset) + servers[0].0.len() as i64;
            let sequence = CLIENT.wrapping_add(at as u32);
            talk.next[1] = SERVER.wrapping_add_signed(*acknowledged);
            let frame = talk.frame(Client, flags, sequence, data);
            let is_taken = FLAGS[..3].contains(flags) && *acknowledged == 0;
            if talk.bench.send_unchecked(&frame).is_err() || !is_taken {
                continue;
            }
            for (number, (taken, ahead)) in servers.iter_mut().enumerate() {
                for (at, byte) in (at..).zip(data).filter(|(at, _)| *at >= taken.len() as i64) {
                    let place = ahead.entry(at).or_insert(*byte);
                    if number == 1 {
                        *place = *byte;
                    }
                }
                while let Some(byte) = ahead.remove(&(taken.len() as i64)) {
                    taken.push(byte);
                }
            }
        }
        for (taken, _) in servers {
            let mut plain = conversation();
            for part in taken.chunks(1000) {
                plain.asks(part);
            }
        }
    }
}
