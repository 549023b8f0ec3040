//! Segments in every order and of every size: nothing passes unread that a server would
//! read, and borders decide nothing.

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

/// One byte a segment, each sent twice, while sequence numbers wrap.
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

/// What was read is not read again, also if other bytes come with it.
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
    // Behind repeated bytes the next ones are read.
    let overlap = "\r\n".to_owned() + EVIL;
    let said = talk.sends(Client, "ACK", talk.next[0].wrapping_sub(2), overlap.as_bytes());
    assert_eq!((said, talk.count("requests")), (Err(PolicyDenied), 3));
}

/// A segment with a gap before it waits until the gap is filled.
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

/// Inside a response's body any order does; behind it, bytes are read in order.
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

/// A request's body has an order: of two segments ahead of a gap servers may take the
/// later one, which would be a repeated one here.
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

/// Of a body of gigabytes sequence numbers do not tell the end, so its bytes come in
/// order.
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

/// A SYN of the client's inside a connection, which the server ignores, changes nothing.
#[test]
pub(crate) fn a_syn_hides_nothing() {
    let mut talk = conversation();
    talk.sends(Client, "SYN", 70_000, b"").expect("the server decides about it");
    talk.asks(&EVIL[..9]);
    talk.sends(Client, "SYN", talk.next[0].wrapping_add(1000), b"").expect("as before");
    talk.is_refused(Client, &EVIL[9..]);
    // Repeated answers change nothing either.
    let mut talk = conversation();
    talk.asks(get("/", "a.example"));
    let next = talk.next;
    talk.next = [CLIENT, SERVER];
    talk.sends(Server, "SYN ACK", SERVER - 1, b"").expect("passes");
    talk.next = next;
    talk.is_refused(Client, EVIL);
}

/// An answer of the server's to another SYN begins a connection.
#[test]
fn an_answered_syn_begins_anew() {
    let mut talk = conversation();
    talk.asks(&EVIL[..9]);
    talk.next = [1_000_000, 2_000_000];
    talk.shake();
    talk.asks(get("/", "a.example"));
    talk.answers(ok(""));
    talk.is_refused(Client, EVIL);
    // With the number of before, too.
    talk.next = [1_000_000, 3_000_000];
    talk.shake();
    talk.is_refused(Client, EVIL);
}

/// A server that keeps no state may answer a SYN twice, with two numbers. Only the client
/// knows which counts: responses are not read, requests are.
#[test]
fn a_second_answer_leaves_requests_read() {
    let mut talk = conversation();
    talk.sends(Server, "SYN ACK", 900_000, b"").expect("passes");
    talk.answers("whatever");
    talk.is_refused(Client, EVIL);
}

/// Bytes that may not be what the server reads are not read: those of damaged segments,
/// fragments, urgent ones and those in a SYN.
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
    // A damaged SYN-ACK begins nothing, and before the handshake there is nothing to
    // read.
    let mut talk = Conversation::silent(&config());
    talk.sends(Client, "SYN", CLIENT - 1, b"").expect("passes");
    let mut damaged = talk.frame(Server, "SYN ACK", SERVER - 1, b"");
    *damaged.last_mut().expect("bytes") ^= 1;
    assert_eq!(talk.bench.send_unchecked(&damaged), Err(BadChecksum));
    assert_eq!(talk.bench.state(), "opening");
    assert_eq!(talk.sends(Client, "ACK", CLIENT, EVIL.as_bytes()), Err(StateInvalid));
    // In a tunnel all of this passes.
    let mut talk = conversation();
    talk.asks("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    talk.answers("HTTP/1.1 101 Go\r\n\r\n");
    talk.sends(Client, "ACK URG", 5, b"x").expect("passes");
    talk.sends(Client, "ACK more", 5, b"twelve bytes").expect("passes");
}

/// A segment that servers discard is not read in the place of the one that they take (RFC
/// 9293, section 3.10.7.4): one that acknowledges nothing, or what they have not sent.
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
    // Both ends acknowledge what they have got: bytes of a body in any order, and a FIN.
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

/// An urgent pointer takes a byte out of what some servers read, also if it comes before
/// the byte, or with bytes that come again.
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

/// A server that keeps no state answers several SYNs, and the client chooses: nothing of
/// the connection that is not read passes, wherever its numbers are.
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
        // Bytes that the server has, as it believes, and the evil ones behind them.
        let start = "GET /fine HTTP/1.1\r\nHost: a.ex";
        assert!(talk.sends(Client, "ACK", other[0], start.as_bytes()).is_err());
        assert!(talk.sends(Client, "ACK", CLIENT, EVIL.as_bytes()).is_err());
        assert_eq!(talk.count("requests"), 0);
        // With the numbers of the answer that is read, the bytes before are another's.
        talk.next = other;
        let before = other[0].wrapping_sub(2);
        assert_eq!(talk.sends(Client, "ACK", before, EVIL.as_bytes()), Err(StateInvalid));
        talk.sends(Client, "ACK", before.wrapping_add(1), b"x").expect("a keep-alive passes");
        assert_eq!(talk.count("out_of_order"), 1);
        talk.is_refused(Client, EVIL);
    }
}

/// A weak protection may bring a flow back without its latest packets: it cannot be read
/// on, passes, and is counted. A refused one stays refused.
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

/// Flags of segments, of which servers take the data of the first three.
const FLAGS: &[&str] =
    &["ACK", "ACK PSH", "FIN ACK", "RST", "SYN", "ACK URG", "RST ACK", "ACK more", "PSH", "FIN"];

/// A byte that is no state's. Small numbers are more often those of something.
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

    /// Wherever segments end, and wherever the flow is, the same requests are refused and
    /// the same is counted.
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

    /// Any bytes as a flow's state: nothing panics, and nothing changes in a packet.
    #[test]
    fn rubbish_in_a_flows_state_does_no_harm(
        rubbish in proptest::collection::vec(rubbish(), 1..16),
        at in 0usize..640,
        len in 0usize..=640,
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

    /// A client sends segments of any flags and data, in any order, repeated with other
    /// data too. Whatever a server puts together of those that pass has no evil request,
    /// whether it keeps the first of two bytes with one number or the second.
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
        // The server's bytes: those that it has taken, and those ahead of a gap.
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
