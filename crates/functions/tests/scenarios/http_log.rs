//! The log of `http`: a line per request and per response, of whatever bytes they are
//! made and in whatever segments they come.

use crate::http_conversation::Conversation;
use crate::http_conversation::End::{Client, Server};
use crate::http_conversation::{get, ok};
use serde_json::{Value, json};

fn logging() -> Value {
    json!({ "log": "requests", "rules": ["deny path /secret*"] })
}

/// The lines, without the connection's addresses.
fn lines(talk: &mut Conversation) -> Vec<String> {
    let logged = talk.bench.logged();
    let prefix = "tcp 10.0.0.2:1000 > 203.0.113.10:80 ";
    let line =
        |line: &String| line.strip_prefix(prefix).unwrap_or_else(|| panic!("`{line}`")).to_owned();
    logged.iter().map(line).collect()
}

/// Requests are logged as they were sent, query included, and responses with the number
/// of their request. Interim responses are not logged.
#[test]
fn requests_and_responses_are_lines() {
    let mut talk = Conversation::new(&logging());
    talk.asks(get("/a?b=\"c\\d'%41&e", "A.example:8080") + &get("/%7e//./x??", "b"));
    talk.asks(
        "HEAD /c HTTP/1.0\r\n\r\nPOST /d? HTTP/1.1\r\nHost: d\r\nContent-Length: 3\r\n\r\nabc",
    );
    assert_eq!(
        lines(&mut talk),
        [
            "request 1: GET /a?b=\"c\\d'%41&e HTTP/1.1, host a.example",
            "request 2: GET /%7e//./x?? HTTP/1.1, host b",
            "request 3: HEAD /c HTTP/1.0",
            "request 4: POST /d? HTTP/1.1, host d",
        ]
    );
    talk.answers(
        ok("one") + "HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
    );
    talk.answers("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nHTTP/1.1 500 No\r\n\r\n");
    assert_eq!(
        lines(&mut talk),
        ["response 1: 200", "response 2: 404", "response 3: 200", "response 4: 500"]
    );
}

/// A target of any form is logged as it was sent, the host in lower case.
#[test]
fn targets_of_any_form_are_as_they_were_sent() {
    for (target, host) in [
        ("http://E.example:80/f?g", "e.example"),
        ("HTTP://E.example/", "e.example"),
        ("http://e", "e"),
        ("http://E:8080?", "e"),
        ("http://[2001:DB8::1]:80?a=/b?c", "[2001:db8::1]"),
        ("/http://e/", "a"),
    ] {
        let mut talk = Conversation::new(&logging());
        for number in 1..3 {
            talk.asks(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            let said = format!("request {number}: GET {target} HTTP/1.1, host {host}");
            assert_eq!(lines(&mut talk), [said]);
        }
        talk.asks("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(lines(&mut talk), ["request 3: OPTIONS * HTTP/1.1, host a"]);
    }
}

/// An upgrade and a CONNECT are logged with their response, and what follows is not.
#[test]
fn tunnels_are_logged_as_they_begin() {
    for (request, response, said) in [
        (
            "GET /chat?x HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
            "HTTP/1.1 101 Go\r\n\r\n",
            ["request 1: GET /chat?x HTTP/1.1, host a", "response 1: 101"],
        ),
        (
            "CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            ["request 1: CONNECT b:443 HTTP/1.1, host b", "response 1: 200"],
        ),
    ] {
        let mut talk = Conversation::new(&logging());
        talk.asks(request);
        talk.answers(response);
        talk.asks("GET /a HTTP/1.1\r\n\r\n");
        talk.answers(ok("a"));
        assert_eq!(lines(&mut talk), said);
    }
}

/// A request that a rule refuses is logged as refused. Responses to earlier ones have the
/// numbers of those.
#[test]
fn refused_requests_are_logged() {
    let mut talk = Conversation::new(&logging());
    talk.asks(get("/a", "a"));
    talk.asks(get("/b", "a"));
    talk.is_refused(Client, get("/secret", "a"));
    talk.answers(ok("one").repeat(2));
    assert_eq!(
        lines(&mut talk),
        [
            "request 1: GET /a HTTP/1.1, host a",
            "request 2: GET /b HTTP/1.1, host a",
            "request 3: GET /secret HTTP/1.1, host a, refused",
            "response 1: 200",
            "response 2: 200",
        ]
    );
    // Malformed requests are counted, and not logged.
    let mut wrong = Conversation::new(&logging());
    wrong.is_refused(Client, "GET /a HTTP/1.1\r\n\r\n");
    assert_eq!(lines(&mut wrong), [""; 0]);
    // A server may give up before it has a request.
    let mut late = Conversation::new(&logging());
    late.answers("HTTP/1.1 408 Late\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(lines(&mut late), ["response 0: 408"]);
}

/// A request of a segment that is dropped for another one is not said to have passed:
/// for a refused, a malformed and an oversized one. So is a response.
#[test]
fn what_is_dropped_with_others_is_logged_as_dropped() {
    let long = format!("GET /c HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(1100));
    for (last, said) in [
        (get("/secret", "a"), Some("request 4: GET /secret HTTP/1.1, host a, refused")),
        ("GET /c HTTP/1.1\r\n\r\n".to_owned(), None),
        ("GET /c#d HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), None),
        (long, None),
    ] {
        let mut config = logging();
        config["header_bytes"] = json!(1024);
        let mut talk = Conversation::new(&config);
        talk.asks(get("/a", "a"));
        let dropped = get("/b", "a") + &get("/c", "a");
        talk.is_refused(Client, dropped + &last);
        let mut expected = vec![
            "request 1: GET /a HTTP/1.1, host a",
            "request 2: GET /b HTTP/1.1, host a, dropped",
            "request 3: GET /c HTTP/1.1, host a, dropped",
        ];
        expected.extend(said);
        assert_eq!(lines(&mut talk), expected);
    }
    let mut talk = Conversation::new(&logging());
    talk.asks(get("/a", "a").repeat(3));
    talk.answers(ok("one"));
    talk.is_refused(Server, ok("two") + "HTTP/2 200 OK\r\n\r\n");
    let said = lines(&mut talk).split_off(3);
    assert_eq!(said, ["response 1: 200", "response 2: 200, dropped"]);
}

/// Segments of one byte each give the same lines, and so does a segment that comes again.
#[test]
fn lines_do_not_depend_on_segments() {
    let mut talk = Conversation::new(&logging());
    let text = get("/a?b", "c.example") + &get("/d", "e");
    for byte in text.as_bytes() {
        let sequence = talk.next[0];
        talk.asks([*byte]);
        talk.sends(Client, "ACK PSH", sequence, &[*byte]).expect("it passes unread");
    }
    let said =
        ["request 1: GET /a?b HTTP/1.1, host c.example", "request 2: GET /d HTTP/1.1, host e"];
    assert_eq!(lines(&mut talk), said);
}

/// The numbers of lines are those of the connection and the request: what is processed
/// again elsewhere gives the same, and another connection does not.
#[test]
fn lines_have_numbers_that_stay() {
    let ids = |first: u32, later: u64| {
        let mut talk = Conversation::silent(&logging());
        talk.next[0] = first;
        talk.bench.now += later;
        talk.shake();
        talk.asks(get("/a", "a") + &get("/b", "a"));
        talk.answers(ok("one").repeat(2));
        let notes = talk.bench.notes();
        notes.iter().map(|note| (note.about, note.id, note.key)).collect::<Vec<_>>()
    };
    let once = ids(700, 0);
    assert_eq!(ids(700, 1_000_000), once);
    let other = ids(701, 0);
    assert!(once.iter().all(|line| !other.contains(line)));
    assert_eq!(once.iter().collect::<std::collections::HashSet<_>>().len(), 4);
}

/// Responses that answer no request have numbers of their own, which stay wherever
/// segments end.
#[test]
fn responses_without_requests_have_their_own_numbers() {
    let late = "HTTP/1.1 408 Late\r\nContent-Length: 4\r\n\r\nlate";
    let ids = |texts: &[String]| {
        let mut talk = Conversation::new(&logging());
        texts.iter().for_each(|text| talk.answers(text));
        let notes = talk.bench.notes();
        assert!(notes.iter().all(|note| note.text == b"response 0: 408"));
        notes.iter().map(|note| (note.about, note.id)).collect::<Vec<_>>()
    };
    let once = ids(&[late.repeat(3)]);
    assert_eq!(once.iter().collect::<std::collections::HashSet<_>>().len(), 3);
    assert_eq!(ids(&[late.to_owned(), late[..20].to_owned(), late[20..].to_owned() + late]), once);
}

/// A target that is too long is cut, which the line says; without `log` there is none.
#[test]
fn long_targets_are_cut() {
    let mut talk = Conversation::new(&logging());
    talk.asks(get(&format!("/a?{}", "b".repeat(1000)), "c"));
    talk.asks(get(&format!("/{}?c", "b".repeat(380)), "c"));
    talk.asks(get("/d", "c"));
    let said = lines(&mut talk);
    assert_eq!(said[0], format!("request 1: GET /a?{} HTTP/1.1, host c, cut", "b".repeat(381)));
    assert_eq!(said[1], format!("request 2: GET /{}?c HTTP/1.1, host c", "b".repeat(380)));
    assert_eq!(said[2], "request 3: GET /d HTTP/1.1, host c");
    // An authority beyond its room is cut, or left out if the path needs the room.
    let (long, host) = ("b".repeat(380), "c".repeat(126));
    for (target, said) in [
        (format!("http://{host}/a"), format!("http://{}/a", "c".repeat(121))),
        (format!("http://c/{long}?d"), format!("/{long}?d")),
        (format!("http://c/?{long}"), format!("http://c/?{}", "b".repeat(254))),
    ] {
        let mut talk = Conversation::new(&logging());
        let host = if target.contains(&host) { &host } else { "c" };
        talk.asks(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(lines(&mut talk), [format!("request 1: GET {said} HTTP/1.1, host {host}, cut")]);
    }
    let mut silent = Conversation::new(&json!({}));
    silent.asks(get("/a", "c"));
    silent.answers(ok("a"));
    assert_eq!(lines(&mut silent), [""; 0]);
}

/// A flood is cut to so many lines a second, and the next line says how many are missing.
#[test]
fn a_flood_of_requests_is_cut() {
    let mut talk = Conversation::new(&logging());
    let mut said = 0;
    for _ in 0..300 {
        talk.asks(get("/a", "c").repeat(10));
        talk.answers(ok("a").repeat(10));
        said += talk.bench.notes().len();
    }
    assert_eq!(said, 2000);
    talk.bench.wait(1);
    talk.asks(get("/a", "c"));
    let missed: Vec<u64> = talk.bench.notes().iter().map(|note| note.missed).collect();
    assert_eq!(missed, [4000]);
}
