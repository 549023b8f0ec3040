//! HTTP in both directions: message boundaries, and counters.

use crate::bench::Bench;
use crate::http_conversation::Conversation;
use crate::http_conversation::End::{Client, Server};
use crate::http_conversation::{get, ok};
use holdfast_wire::DropReason::{FunctionDenied, PolicyDenied};
use serde_json::json;

fn conversation() -> Conversation {
    Conversation::new(&json!({}))
}

/// Messages of an allowed conversation are counted by class, and bodies that look like
/// messages are not read.
#[test]
fn messages_are_counted_and_bodies_are_not_read() {
    let mut talk = conversation();
    assert_eq!(talk.bench.state(), "idle");
    talk.asks("POST /a?b HTTP/1.1\r\nHost: a.example\r\nContent-Length: 22\r\n\r\nGET /evil");
    assert_eq!(talk.bench.state(), "body");
    talk.asks(" HTTP/1.1\r\n\r\nGET /next");
    assert_eq!(talk.bench.state(), "request");
    talk.asks(" HTTP/1.0\r\n\r\n");
    assert_eq!(talk.bench.state(), "waiting");
    talk.answers("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 No\r\nConte");
    assert_eq!(talk.bench.state(), "response");
    talk.answers("nt-Length: 15\r\n\r\nHTTP/1.1 500 No");
    talk.answers("HTTP/1.1 301 Moved\r\nTransfer-Encoding: chunked\r\n\r\n");
    talk.answers("f;a=\"b\"\r\nHTTP/1.1 500 No\r\n0\r\nContent-Length: 9\r\n\r\n");
    assert_eq!(talk.bench.state(), "idle");
    assert_eq!(
        talk.tally(),
        "default 2, requests 2, responses_1xx 1, responses_3xx 1, responses_4xx 1"
    );
}

/// Requests may be pipelined, in one segment or many.
#[test]
fn requests_may_be_pipelined() {
    let mut talk = conversation();
    let many: String = (0..20).map(|number| get(&format!("/{number}"), "a.example")).collect();
    talk.asks(&many[..500]);
    talk.asks(&many[500..]);
    talk.answers(ok("one").repeat(20));
    assert_eq!(talk.tally(), "default 20, requests 20, responses_2xx 20");
    assert_eq!(talk.bench.state(), "idle");
}

/// Responses to HEAD, and those with status 204 or 304, have no body, whatever their
/// fields say; the next response follows at once.
#[test]
pub(crate) fn responses_without_bodies() {
    let mut talk = conversation();
    talk.asks("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    talk.asks(get("/1", "a") + &get("/2", "a") + &get("/3", "a"));
    talk.answers("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
    talk.answers("HTTP/1.1 204 No\r\nContent-Length: 1000\r\n\r\n");
    talk.answers("HTTP/1.1 304 No\r\nTransfer-Encoding: chunked\r\n\r\n");
    talk.answers(ok("body"));
    assert_eq!(talk.tally(), "default 4, requests 4, responses_2xx 3, responses_3xx 1");
}

/// A response without a length ends with the connection, and its body is not read.
#[test]
fn a_response_may_last_until_the_end() {
    for head in ["HTTP/1.0 200\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"] {
        let mut talk = conversation();
        talk.asks(get("/", "a"));
        talk.answers(head);
        talk.answers("\0\0 HTTP/1.1 500 No\r\n\r\n");
        talk.sends(Server, "FIN ACK", talk.next[1], b"\r\n").expect("passes");
        assert_eq!(talk.bench.state(), "body");
        assert_eq!(talk.tally(), "default 1, requests 1, responses_2xx 1");
    }
}

/// Bytes of any kind pass unread after a 101, and after a successful CONNECT.
#[test]
pub(crate) fn what_follows_an_upgrade_is_not_read() {
    let upgrade = "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n";
    let connect = "CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\n\r\n";
    for (request, response) in [
        (upgrade, "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n"),
        (connect, "HTTP/1.1 100 Wait\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
    ] {
        let mut talk = conversation();
        talk.asks(request);
        talk.answers(format!("{response}\x01\x02"));
        assert_eq!(talk.bench.state(), "tunnel");
        talk.asks("\x03\x04\x05");
        talk.asks(get("/", ""));
        talk.answers("\x06\r\n\r\n");
        assert_eq!((talk.count("upgraded"), talk.count("requests")), (1, 1));
    }
}

/// A connection is still read after the server declined an upgrade or a CONNECT.
#[test]
fn a_declined_upgrade_is_a_response() {
    let mut talk = conversation();
    talk.asks("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n\r\n");
    talk.answers(ok("no"));
    talk.asks("CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\n\r\n");
    talk.answers("HTTP/1.1 405 No\r\nContent-Length: 2\r\n\r\nno");
    talk.asks(get("/", "a"));
    talk.answers(ok(""));
    assert_eq!((talk.count("requests"), talk.count("upgraded")), (3, 0));
    assert_eq!((talk.count("responses_2xx"), talk.count("responses_4xx")), (2, 1));
}

/// Bytes between a CONNECT and its response could be tunnel data or a request, and are
/// refused.
#[test]
fn nothing_may_hide_behind_a_connect() {
    let connect = "CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\n\r\n";
    let mut talk = conversation();
    talk.asks(connect);
    talk.is_refused(Client, get("/evil", "a"));
    let mut talk = conversation();
    talk.is_refused(Client, connect.to_owned() + "x");
    assert_eq!((talk.count("malformed"), talk.count("refused")), (1, 1));
}

/// Requests that other parsers may read differently (RFC 9112, sections 2.2, 3, 3.2, 5.1,
/// 5.2, 6.1 and 6.3), and bytes that are not HTTP, are refused.
#[test]
pub(crate) fn ambiguous_requests_are_refused() {
    let host = "Host: a.example\r\n";
    let one = |line: &str, fields: &str| format!("{line}\r\n{fields}\r\n");
    let wrong = [
        one(
            "POST / HTTP/1.1",
            &format!("{host}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"),
        ),
        one(
            "POST / HTTP/1.1",
            &format!("{host}Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"),
        ),
        one("POST / HTTP/1.1", &format!("{host}Content-Length: 3\r\nContent-Length: 4\r\n")),
        one("POST / HTTP/1.1", &format!("{host}Content-Length: 3, 4\r\n")),
        one("POST / HTTP/1.1", &format!("{host}Content-Length: +3\r\n")),
        one("POST / HTTP/1.1", &format!("{host}Content-Length: 3 3\r\n")),
        one("POST / HTTP/1.1", &format!("{host}Content-Length:\r\n")),
        one("POST / HTTP/1.1", &format!("{host}Content-Length: 18446744073709551616\r\n")),
        one("POST / HTTP/1.1", &format!("{host}Content-Length : 3\r\n")),
        one("POST / HTTP/1.1", &format!("{host}X: a\r\n Transfer-Encoding: chunked\r\n")),
        one("POST / HTTP/1.1", &format!(" {host}")),
        one("POST / HTTP/1.1", &format!("{host}Transfer-Encoding: xchunked\r\n")),
        one("POST / HTTP/1.1", &format!("{host}Transfer-Encoding: chunked, gzip\r\n")),
        one("POST / HTTP/1.1", &format!("{host}Transfer-Encoding: chunked, chunked\r\n")),
        one("POST / HTTP/1.1", &format!("{host}Transfer-Encoding: chun ked\r\n")),
        one("POST / HTTP/1.1", &format!("{host}Transfer-Encoding: chunked;x\r\n")),
        one("POST / HTTP/1.1", &format!("{host}Transfer-Encoding: \x0bchunked\r\n")),
        one("POST / HTTP/1.1", &format!("{host}Transfer-Encoding:\r\n")),
        one("POST / HTTP/1.0", &format!("{host}Transfer-Encoding: chunked\r\n")),
        one("CONNECT a.example:1 HTTP/1.1", &format!("{host}Content-Length: 3\r\n")),
        one("GET / HTTP/1.1", "Host: a\r\nHost: b\r\n"),
        one("GET / HTTP/1.1", "Host: a b\r\n"),
        one("GET / HTTP/1.1", "Host: me@a\r\n"),
        one("GET / HTTP/1.1", "Host: [::1\r\n"),
        one("GET http://b/ HTTP/1.1", host),
        one("GET http:///x HTTP/1.1", "Host: \r\n"),
        one("GET ftp/x HTTP/1.1", host),
        one("GET * HTTP/1.1", host),
        one("GET /\x7f HTTP/1.1", host),
        one("GET /a%2Fb HTTP/1.1", host),
        one("GET http://a.example%2e/ HTTP/1.1", "Host: a.example%2e\r\n"),
        one("GET  / HTTP/1.1", host),
        one("GET / HTTP/1.1 ", host),
        one("GET / HTTP/2.0", host),
        one("GET / HTTP/1.11", host),
        one("GET / http/1.1", host),
        one("G@T / HTTP/1.1", host),
        "GET /\r\n".to_owned(),
        "GET / HTTP/1.1\nHost: a\n\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "\x16\x03\x01\x02\0\x01\0\x01".to_owned(),
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\ng\r\n".to_owned(),
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n;x\r\n".to_owned(),
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n".to_owned(),
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;\n".to_owned(),
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1111222233334444\r\n"
            .to_owned(),
    ];
    for request in &wrong {
        let mut talk = conversation();
        talk.is_refused(Client, request);
        assert_eq!((talk.count("malformed"), talk.count("refused")), (1, 1), "{request}");
        assert_eq!(talk.bench.state(), "refused");
    }
}

/// An HTTP/1.1 request without a Host is refused, even if its target names a host (RFC
/// 9112, section 3.2). An HTTP/1.0 request without one passes.
#[test]
pub(crate) fn a_request_needs_a_host() {
    for line in ["GET / HTTP/1.1", "GET http://a/ HTTP/1.1", "CONNECT a:1 HTTP/1.1"] {
        conversation().is_refused(Client, format!("{line}\r\nAccept: *\r\n\r\n"));
    }
    let mut talk = conversation();
    talk.asks("GET / HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\nHost:\r\n\r\n");
    talk.asks("\r\n\r\nGET / HTTP/1.1\r\nhOST: \t[2001:db8::1]:80\t \r\n\r\n");
    assert_eq!(talk.tally(), "default 3, requests 3");
}

/// Request bodies with a length or a transfer coding, in several valid spellings, end at
/// their last byte.
#[test]
fn bodies_of_requests_end_where_they_end() {
    let mut talk = conversation();
    for fields in [
        "Content-Length: 0\r\n\r\n",
        "content-length:00004 \t\r\n\r\nbody",
        "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: ,CHUNKED ,\r\n\r\n0\r\nHost: b\r\n\r\n",
        "\r\n",
    ] {
        talk.asks(format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}"));
    }
    assert_eq!(talk.tally(), "default 5, requests 5");
    assert_eq!(talk.bench.state(), "waiting");
}

/// Responses that are ambiguous or not HTTP are refused; the client's bytes still pass.
#[test]
fn ambiguous_responses_are_refused() {
    for response in [
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "ICY 200 OK\r\n\r\n",
        "\r\nHTTP/1.1 200 OK\r\n\r\n",
        "<html>",
    ] {
        let mut talk = conversation();
        talk.asks(get("/", "a"));
        talk.is_refused(Server, response);
        talk.is_refused(Server, "more");
        talk.asks(get("/", "a"));
        assert_eq!(talk.tally(), "default 2, malformed 1, refused 1, requests 2", "{response}");
    }
}

/// Malformed requests may be allowed, which ends the reading of their connection, or be
/// rejected with a reset.
#[test]
fn malformed_messages_may_be_allowed() {
    let config = json!({ "malformed": "allow", "rules": ["deny path /admin"] });
    let mut talk = Conversation::new(&config);
    talk.asks("\x16\x03\x01");
    talk.asks(get("/admin", "a"));
    talk.answers("\x16\x03\x01");
    assert_eq!((talk.tally().as_str(), talk.bench.state()), ("malformed 1", "unread"));
    let mut talk = Conversation::new(&json!({ "malformed": "reject" }));
    assert_eq!(talk.says(Client, b"\x16\x03\x01"), Err(PolicyDenied));
    assert!(talk.bench.has_told());
}

/// A field that decides nothing may be of any length; a header section has a limit.
#[test]
fn a_header_of_64_kib_is_too_long() {
    let long = |bytes: usize| {
        format!("GET / HTTP/1.1\r\nCookie: {}\r\nHost: a\r\n\r\n", "x".repeat(bytes - 37))
    };
    let say = |talk: &mut Conversation, text: &str| {
        text.as_bytes().chunks(1400).try_for_each(|data| talk.says(Client, data))
    };
    for (config, bytes, passes) in [
        (json!({}), 32_768, true),
        (json!({}), 32_769, false),
        (json!({}), 65_536, false),
        (json!({ "header_bytes": 65_536 }), 65_536, true),
        (json!({ "header_bytes": 65_536, "oversized": "deny" }), 65_537, false),
        (json!({ "header_bytes": 64, "oversized": "allow", "rules": ["deny"] }), 65_536, true),
    ] {
        let mut talk = Conversation::new(&config);
        let said = say(&mut talk, &long(bytes));
        assert_eq!(said, if passes { Ok(()) } else { Err(PolicyDenied) }, "{config}, {bytes}");
        let is_allowed = config["oversized"] == "allow";
        assert_eq!(talk.count("oversized"), u64::from(!passes || is_allowed));
        assert_eq!(talk.count("requests"), u64::from(passes));
        if is_allowed {
            // The next request is judged.
            talk.is_refused(Client, "GET / HTTP/1.0\r\n\r\n");
        }
    }
    // Chunk lines and trailer sections have the same limit.
    for rest in ["1;", "0\r\nX: "] {
        let mut talk = conversation();
        talk.asks("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        talk.asks(rest);
        assert_eq!(say(&mut talk, &"x".repeat(40_000)), Err(PolicyDenied));
        assert_eq!(talk.count("oversized"), 1);
    }
}

/// Responses are not read beyond 32 outstanding requests; requests are.
#[test]
fn a_pipeline_is_bounded() {
    let mut talk = Conversation::new(&json!({ "rules": ["deny path /x"] }));
    for _ in 0..40 {
        talk.asks(get("/", "a"));
    }
    talk.answers("HTTP/1.1 200 OK\r\n");
    talk.answers("\0");
    talk.is_refused(Client, get("/x", "a"));
    assert_eq!(talk.tally(), "default 40, deny path /x 1, pipeline_full 1, refused 1, requests 41");
    // The response to a later CONNECT is not read, so bytes after the CONNECT are
    // refused.
    let mut talk = conversation();
    (0..40).for_each(|_| talk.asks(get("/", "a")));
    talk.asks("CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\n\r\n");
    talk.answers("HTTP/1.1 200 OK\r\n\r\n");
    talk.is_refused(Client, "\x16\x03");
    assert_eq!((talk.count("malformed"), talk.count("upgraded")), (1, 0));
    // All responses are read if no more than 32 requests are outstanding at a time.
    let mut talk = conversation();
    for _ in 0..5 {
        (0..32).for_each(|_| talk.asks(get("/", "a")));
        talk.answers(ok("").repeat(32));
    }
    assert_eq!(talk.tally(), "default 160, requests 160, responses_2xx 160");
}

/// Configured hosts have counters of their own, and all others share one set.
#[test]
fn hosts_are_counted() {
    let mut talk =
        Conversation::new(&json!({ "hosts": ["a.example", "B.example.", "[2001:db8::1]"] }));
    for host in ["A.EXAMPLE:80", "b.example", "b.example.", "[2001:DB8::1]:8080", "c.example"] {
        talk.asks(get("/", host));
    }
    talk.asks("GET http://a.example HTTP/1.1\r\nHost: a.example\r\n\r\n");
    for status in [200, 404, 503, 200, 302, 799] {
        talk.answers(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n"));
    }
    let counts = talk.tally();
    for expected in [
        "a.example requests 2",
        "a.example 2xx 1",
        "a.example 5xx 1",
        "b.example requests 2",
        "b.example 4xx 1",
        "b.example 5xx 1",
        "[2001:db8::1] requests 1",
        "[2001:db8::1] 2xx 1",
        "other requests 1",
        "other 3xx 1",
        "responses_5xx 2",
    ] {
        assert!(counts.contains(expected), "{expected}: {counts}");
    }
}

/// A connection that began before may first be seen by a segment of its server. The
/// connection is counted and not read, and neither is one that follows it with the same
/// addresses and ports.
#[test]
fn a_server_may_speak_first() {
    let mut bench = Bench::new(&[("http", json!({ "rules": ["deny"] }))]);
    bench.unchanged("tcp 203.0.113.10:80 > 10.0.0.2:2 FIN ACK seq 9");
    assert_eq!((bench.counter("midstream"), bench.state()), (1, "unread"));
    bench.unchanged("tcp 10.0.0.2:2 > 203.0.113.10:80 SYN seq 9");
    bench.unchanged("tcp 203.0.113.10:80 > 10.0.0.2:2 SYN ACK seq 99 ack 10");
    bench.unchanged("tcp 10.0.0.2:2 > 203.0.113.10:80 ACK seq 10 ack 100 len 9");
    // A SYN-ACK of the client does not reverse the flow either.
    bench.unchanged("tcp 203.0.113.10:80 > 10.0.0.2:2 SYN seq 99");
    bench.unchanged("tcp 10.0.0.2:2 > 203.0.113.10:80 SYN ACK seq 9 ack 100");
    bench.unchanged("tcp 203.0.113.10:80 > 10.0.0.2:2 ACK seq 100 ack 10 len 9");
    assert_eq!((bench.counter("midstream"), bench.state()), (1, "unread"));
    // A port that sends a SYN is a client's.
    bench.unchanged("tcp 10.0.0.2:80 > 203.0.113.10:22 SYN seq 9");
    assert_eq!((bench.counter("midstream"), bench.state()), (1, ""));
}

/// Flows to other ports, and of other protocols, are not read. A connection that began
/// before is counted and passes.
#[test]
fn other_flows_pass_unread() {
    let mut bench = Bench::new(&[("http", json!({ "ports": [80, 8080], "rules": ["deny"] }))]);
    bench.unchanged("tcp 10.0.0.2:1 > 203.0.113.10:22 SYN len 9");
    bench.unchanged("tcp 10.0.0.2:1 > 203.0.113.10:22 ACK URG len 9");
    bench.unchanged("udp 10.0.0.2:1 > 203.0.113.10:80 len 9");
    bench.unchanged("icmp 10.0.0.2 > 203.0.113.10 echo id 4");
    bench.unchanged("udp 10.0.0.2:1 > 203.0.113.10:80 len 16 more");
    assert_eq!((bench.counters(), bench.state()), (vec![], ""));
    bench.unchanged("tcp 10.0.0.2:2 > 203.0.113.10:8080 ACK seq 9 len 9");
    bench.unchanged("tcp 203.0.113.10:8080 > 10.0.0.2:2 ACK seq 9 len 9");
    bench.unchanged("tcp 10.0.0.2:2 > 203.0.113.10:8080 ACK seq 1000 len 9");
    assert_eq!((bench.counter("midstream"), bench.state()), (1, "unread"));
    // An ICMP error about a segment passes.
    bench.unchanged("tcp 10.0.0.2:3 > 203.0.113.10:80 SYN");
    bench.unchanged(
        "icmp 192.0.2.9 > 10.0.0.2 unreachable quoting cut 28 tcp 10.0.0.2:3 > 203.0.113.10:80",
    );
    assert_eq!(bench.state(), "opening");
    bench.drops("tcp 10.0.0.2:4 > 203.0.113.10:80 SYN len 9", FunctionDenied);
    assert_eq!(bench.counter("unreadable"), 1);
}
