//! Requests that rules refuse, by host, method and path, in all spellings.

use crate::bench::Bench;
use crate::http_conversation::Conversation;
use crate::http_conversation::End::{Client, Server};
use crate::http_conversation::{get, ok};
use holdfast_functions::catalog;
use holdfast_nf::ConfigError;
use holdfast_wire::DropReason::PolicyDenied;
use serde_json::{Value, json};

fn rules(rules: &[&str]) -> Value {
    json!({ "rules": rules })
}

/// The first rule that matches a request decides, else the default.
#[test]
fn the_first_rule_that_matches_decides() {
    let config = json!({
        "rules": [
            "allow host a.example path /x* method GET|HEAD",
            "deny host *.example",
            "drop method TRACE",
            "deny path *.php",
            "deny path *secret*",
            "allow path /public*",
            "deny upgrade host up.test",
            "deny host *",
        ],
    });
    let one = |line: &str, host: &str| format!("{line} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    for (request, passes, rule) in [
        (one("GET /x1", "a.example"), true, "allow host a.example path /x* method GET|HEAD"),
        (one("HEAD /x", "A.example:80"), true, "allow host a.example path /x* method GET|HEAD"),
        (one("get /x", "a.example"), false, "deny host *.example"),
        (one("POST /x", "a.example."), false, "deny host *.example"),
        (one("GET /y", "b.c.example"), false, "deny host *.example"),
        (one("TRACE /", "b.test"), false, "drop method TRACE"),
        (one("GET /index.php?a=b", "b.test"), false, "deny path *.php"),
        (one("GET /a/secret/b", "b.test"), false, "deny path *secret*"),
        (one("GET /public?secret", "b.test"), true, "allow path /public*"),
        (
            "GET / HTTP/1.1\r\nUPGRADE: h2c\r\nHost: up.test\r\n\r\n".to_owned(),
            false,
            "deny upgrade host up.test",
        ),
        (one("GET /", "up.test"), false, "deny host *"),
    ] {
        let mut talk = Conversation::new(&config);
        let expected = if passes { Ok(()) } else { Err(PolicyDenied) };
        assert_eq!(talk.says(Client, request.as_bytes()), expected, "{request}");
        assert_eq!(talk.count(rule), 1, "{request}: {}", talk.tally());
    }
    let mut talk = Conversation::new(&json!({ "rules": ["allow path /a"], "default": "deny" }));
    talk.asks(get("/a", "a"));
    talk.is_refused(Client, get("/b", "a"));
    assert_eq!(talk.tally(), "allow path /a 1, default 1, refused 1, requests 2");
}

/// Equivalent spellings of a path or a host match the same rules. Spellings about which
/// servers disagree are refused as malformed.
#[test]
pub(crate) fn other_spellings_evade_no_rule() {
    for path in [
        "/admin",
        "/admin/",
        "/administrator",
        "//admin",
        "/./admin",
        "/x/../admin",
        "/%61dmin",
        "/x/%2e%2e//adm%69n",
        "/../admin?x",
    ] {
        Conversation::new(&rules(&["deny path /admin*"])).is_refused(Client, get(path, "a"));
    }
    let only_public = json!({ "rules": ["allow path /public*"], "default": "deny" });
    for path in [
        "/public#/../admin",
        "/public?#",
        "/public%2f..%2Fadmin",
        "/admin/..%2fpublic",
        "/public%%2f",
        "/public%2%5Cx",
        "/public%5c",
        "/public%00",
        "/public\\..\\admin",
        "/public/{a}",
        "/public/\"",
        "/public/a|b",
        "/public/<",
        "/public/>",
        "/public/^",
        "/public/`",
    ] {
        for target in [path.to_owned(), format!("http://a{path}")] {
            let mut talk = Conversation::new(&only_public);
            talk.is_refused(Client, get(&target, "a"));
            assert_eq!((talk.count("malformed"), talk.count("requests")), (1, 0), "{target}");
        }
    }
    for path in ["/public%20%2e%5f%01", "/public%252f", "/public%2%46?{a|b}\"%2F%00", "/public%%3f"]
    {
        Conversation::new(&only_public).asks(get(path, "a"));
    }
    for request in [get("/", "%62.example"), "GET http://a#b/ HTTP/1.0\r\n\r\n".to_owned()] {
        let mut talk = Conversation::new(&rules(&["deny host b.example"]));
        talk.is_refused(Client, request);
        assert_eq!(talk.count("malformed"), 1);
    }
    for path in ["/x/admin", "/Admin", "/?/admin", "/admi/n", "/%2561dmin"] {
        Conversation::new(&rules(&["deny path /admin*"])).asks(get(path, "a"));
    }
    for request in [
        get("/", "B.EXAMPLE"),
        get("/", "b.example:8080"),
        get("/", "b.example."),
        "GET http://b.example HTTP/1.1\r\nHost: b.example\r\n\r\n".to_owned(),
        "GET HTTP://B.example:80?x HTTP/1.0\r\n\r\n".to_owned(),
        "CONNECT b.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n".to_owned(),
    ] {
        Conversation::new(&rules(&["deny host b.example"])).is_refused(Client, request);
    }
}

/// A refused connection stays refused: retransmissions and later data are dropped.
/// Outstanding responses still pass, and both ends may close the connection.
#[test]
pub(crate) fn a_refused_connection_stays_refused() {
    let mut talk = Conversation::new(&rules(&["deny path /x"]));
    talk.asks(get("/1", "a"));
    let at = talk.next[0];
    talk.is_refused(Client, get("/x", "a"));
    assert_eq!(talk.sends(Client, "ACK", at, get("/x", "a").as_bytes()), Err(PolicyDenied));
    talk.is_refused(Client, get("/2", "a"));
    talk.answers(ok("one"));
    talk.sends(Client, "ACK", at, b"").expect("an acknowledgement passes");
    talk.sends(Server, "FIN ACK", talk.next[1], b"").expect("the end passes");
    talk.sends(Client, "RST", at, b"").expect("a reset passes");
    assert_eq!(talk.tally(), "default 1, deny path /x 1, refused 1, requests 2, responses_2xx 1");
    // A new connection of the same addresses and ports is read from its beginning.
    talk.next = [5, 6];
    talk.shake();
    talk.asks(get("/3", "a"));
    assert_eq!(talk.count("requests"), 3);
}

/// A rejected request resets both ends, and so do later data.
#[test]
fn ends_may_be_told() {
    let mut talk = Conversation::new(&rules(&["reject method DELETE"]));
    let delete = b"DELETE / HTTP/1.1\r\nHost: a\r\n\r\n";
    for _ in 0..2 {
        assert_eq!(talk.says(Client, delete), Err(PolicyDenied));
        assert!(talk.bench.has_told());
    }
    assert_eq!(talk.count("refused"), 1);
}

/// The beginning of a header section may pass, but its end is refused: the server never
/// sees the end.
#[test]
fn a_request_in_pieces_is_refused_at_its_end() {
    let request = get("/admin", "a");
    for cut in 1..request.len() {
        let mut talk = Conversation::new(&rules(&["deny path /admin*"]));
        talk.asks(&request[..cut]);
        talk.is_refused(Client, &request[cut..]);
        assert_eq!(talk.tally(), "deny path /admin* 1, refused 1, requests 1", "{cut}");
    }
}

/// Rules cannot judge a request if they compare a method, host or path that is too long.
#[test]
fn parts_that_do_not_fit_are_not_judged() {
    let path = |bytes: usize| get(&format!("/{}?{}", "a".repeat(bytes - 1), "b".repeat(900)), "a");
    let host = |bytes: usize| get("/", &format!("{}:80", "a".repeat(bytes)));
    let method = |bytes: usize| format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", "A".repeat(bytes));
    for (rule, fits, longer) in [
        ("deny path /x", path(384), path(385)),
        ("deny host x", host(128), host(129)),
        ("deny method X", method(24), method(25)),
    ] {
        for is_denied in [true, false] {
            let action = if is_denied { "deny" } else { "allow" };
            let config = json!({ "rules": [rule], "oversized": action });
            let mut talk = Conversation::new(&config);
            talk.asks(&fits);
            assert_eq!(talk.count("oversized"), 0);
            if is_denied {
                talk.is_refused(Client, &longer);
            } else {
                talk.asks(&longer);
            }
            assert_eq!(talk.count("oversized"), 1, "{rule}");
            // Rules that do not compare that part still judge the request.
            Conversation::new(&rules(&["deny upgrade"])).asks(&longer);
        }
    }
}

/// Requests are read after translation by earlier functions, which changes the addresses
/// and ports of their connection.
#[test]
fn requests_are_read_behind_a_nat_and_a_balancer() {
    let balancer = json!({ "virtual": "203.0.113.10:8000", "backends": ["198.51.100.11:80"] });
    let nat = json!({ "pool": ["198.51.100.4"] });
    let http = json!({ "rules": ["deny path /x"] });
    let mut bench = Bench::new(&[("nat", nat), ("load_balancer", balancer), ("http", http)]);
    let (client, server) = bench.passes("tcp 10.0.0.2:1000 > 203.0.113.10:8000 SYN seq 9");
    let there = "tcp 10.0.0.2:1000 > 203.0.113.10:8000 ACK";
    let back = format!("tcp {server} > {client}");
    bench.passes(&format!("{back} SYN ACK seq 99 ack 10"));
    let request = get("/", "a");
    let carry = |text: &str, data: &str| crate::words::carrying(text, data.as_bytes());
    bench.send_frame(&carry(&format!("{there} seq 10 ack 100"), &request)).expect("passes");
    bench.send_frame(&carry(&format!("{back} ACK seq 100 ack 37"), &ok("x"))).expect("passes");
    let (at, evil) = (10 + request.len(), get("/x", "a"));
    let refused = bench.send_frame(&carry(&format!("{there} seq {at} ack 100"), &evil));
    assert_eq!(refused, Err(PolicyDenied));
    assert_eq!((bench.counter("requests"), bench.counter("responses_2xx")), (2, 1));
}

/// A trace names the latest request and the rule that decided about it.
#[test]
fn a_trace_names_the_rule() {
    let mut talk = Conversation::new(&rules(&["allow path /a*"]));
    assert_eq!(talk.bench.explained, [""; 0]);
    talk.asks(get("/abc?d", "b.example"));
    assert_eq!(
        talk.bench.explained,
        ["latest request GET /abc at b.example, by its rule `allow path /a*`"]
    );
    talk.asks("CONNECT c:1 HTTP/1.1\r\nHost: c:1\r\n\r\n");
    assert_eq!(
        talk.bench.explained,
        ["latest request CONNECT c, by default, because no rule means it"]
    );
    assert!(!talk.bench.nondeterministic);
}

fn refused(config: Value) -> ConfigError {
    catalog::build("http", &config).err().unwrap_or_else(|| panic!("{config} is accepted"))
}

/// An invalid configuration is refused, with the place and the remedy.
#[test]
fn wrong_configurations_are_refused() {
    for (config, path, offset, words) in [
        (json!({ "ports": [] }), "ports", None, "at least one port"),
        (json!({ "header_bytes": 63 }), "header_bytes", None, "at least 64"),
        (json!({ "rules": [""] }), "rules[0]", Some(0), "`allow`, `deny` or `reject`"),
        (json!({ "rules": ["allow", " forbid x"] }), "rules[1]", Some(1), "`forbid`"),
        (json!({ "rules": ["deny hots a"] }), "rules[0]", Some(5), "expected one of `host`"),
        (json!({ "rules": ["deny host a host b"] }), "rules[0]", Some(12), "a second `host`"),
        (json!({ "rules": ["deny upgrade upgrade"] }), "rules[0]", Some(13), "a second"),
        (json!({ "rules": ["deny path"] }), "rules[0]", Some(5), "needs a value"),
        (json!({ "rules": ["deny path admin"] }), "rules[0]", Some(10), "begins with `/`"),
        (json!({ "rules": ["deny path /a?b"] }), "rules[0]", Some(10), "no query"),
        (json!({ "rules": ["deny path /a*b"] }), "rules[0]", Some(10), "in its middle"),
        (json!({ "rules": ["deny host a:80"] }), "rules[0]", Some(10), "without a port"),
        (json!({ "rules": ["deny host [::1"] }), "rules[0]", Some(10), "cannot be a host"),
        (json!({ "rules": ["deny method GET|"] }), "rules[0]", Some(12), "is no method"),
        (json!({ "hosts": ["*.example"] }), "hosts[0]", None, "not one host"),
        (json!({ "hosts": ["a", "A."] }), "hosts[1]", None, "already"),
        (json!({ "hosts": ["a/b"] }), "hosts[0]", None, "cannot be a host"),
        (json!({ "hosts": vec!["a"; 64] }), "hosts", None, "63"),
        (json!({ "rules": vec!["deny"; 255] }), "rules", None, "254"),
    ] {
        let error = refused(config.clone());
        assert_eq!((error.path.as_str(), error.offset), (path, offset), "{config}: {error}");
        assert!(error.message.contains(words), "{config}: {error}");
    }
}
