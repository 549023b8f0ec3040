//! The language of the IPS's rules: the meaning of each option, and the text and place of
//! each refusal.

use crate::bench::Bench;
use crate::ips::{CLIENT, SERVER, connected, hex, ips, rule, says};
use holdfast_functions::catalog;
use holdfast_wire::DropReason::PolicyDenied;
use holdfast_wire::zone::Zones;
use serde_json::{Value, json};

/// A datagram with these bytes.
fn datagram(bytes: &[u8]) -> String {
    format!("udp {CLIENT} > {SERVER} {}", hex(bytes))
}

/// True if a rule with these options matches a datagram with these bytes. A stream of
/// one-byte segments must give the same result.
#[track_caller]
fn matches(options: &str, bytes: &str) -> bool {
    let text = rule("alert", &format!("{options} sid:1;"));
    let mut bench = ips(&[&text], json!({}));
    bench.unchanged(&datagram(bytes.as_bytes()));
    let is_in_datagram = bench.counter("1") > 0;
    let mut bench = ips(&[&text], json!({}));
    for (at, byte) in bytes.bytes().enumerate() {
        bench.unchanged(&format!("tcp {CLIENT} > {SERVER} ACK seq {} hex {byte:02x}", 77 + at));
    }
    assert_eq!(bench.counter("1") > 0, is_in_datagram, "{options} in {bytes}");
    is_in_datagram
}

/// Options of a rule, bytes that it must match, and bytes that it must not match.
type Row<'t> = (&'t str, &'t [&'t str], &'t [&'t str]);

#[track_caller]
fn check(rows: &[Row<'_>]) {
    for &(options, matching, others) in rows {
        for bytes in matching {
            assert!(matches(options, bytes), "{options} not in {bytes:?}");
        }
        for bytes in others {
            assert!(!matches(options, bytes), "{options} in {bytes:?}");
        }
    }
}

/// Absolute places count from the start; a depth counts from the offset (Suricata,
/// "Payload Keywords").
#[test]
fn offset_and_depth() {
    check(&[
        (r#"content:"ab";"#, &["xab"], &[]),
        (r#"content:"ab"; offset:1;"#, &["xab"], &[]),
        (r#"content:"ab"; offset:2;"#, &["abxab"], &["xab"]),
        (r#"content:"ab"; depth:2;"#, &["ab"], &["xab"]),
        (r#"content:"ab"; depth:3;"#, &["xab"], &[]),
        (r#"content:"ab"; offset:1; depth:2;"#, &["xab"], &["xxab"]),
        (r#"content:"ab"; startswith;"#, &["abx"], &["xab"]),
    ]);
}

/// Relative places count from the end of the match before; `within` counts from the
/// distance. Another match before may fit where the first does not.
#[test]
fn distance_and_within() {
    check(&[
        (r#"content:"ab"; content:"cd"; distance:0;"#, &["abcd"], &["cdab"]),
        (r#"content:"ab"; content:"cd"; distance:1;"#, &["abxcd"], &["abcd"]),
        (r#"content:"ab"; content:"cd"; within:2;"#, &["abcd"], &["abxcd"]),
        (r#"content:"ab"; content:"cd"; distance:2; within:3;"#, &["abxxxcd"], &["abxxxxcd"]),
        (r#"content:"ab"; content:"cd"; within:3;"#, &["abxxxxabxcd"], &[]),
        (r#"content:"abc"; content:"cd"; distance:-1;"#, &["abcd"], &[]),
        (r#"content:"abc"; content:"cd"; distance:-1; within:2;"#, &[], &["abccd"]),
        (r#"content:"ab"; distance:1;"#, &[], &["ab"]),
        (r#"content:"ab"; within:3;"#, &["xab"], &[]),
        (r#"content:"ab"; content:"cd"; within:4; content:"ef"; within:2;"#, &[], &["abcdxcdef"]),
        (r#"content:"ab"; content:"cd"; within:6; content:"ef"; within:2;"#, &["abcdxcdef"], &[]),
    ]);
}

/// Contents without a relative place may come in any order.
#[test]
fn several_contents() {
    check(&[
        (r#"content:"ab"; content:"cd";"#, &["cdab"], &["cd"]),
        (r#"content:"ab"; content:"ab";"#, &["ab"], &[]),
        (r#"content:"a"; content:"b"; distance:0; content:"c"; depth:1;"#, &["cab"], &["acb"]),
    ]);
}

/// Contents are case-sensitive without `nocase`; bytes may be written in hex or with
/// escapes.
#[test]
fn bytes_of_contents() {
    check(&[
        (r#"content:"Ab";"#, &[], &["ab"]),
        (r#"content:"Ab"; nocase;"#, &["aB"], &[]),
        (r#"content:"Ab"; fast_pattern; content:"x"; nocase;"#, &["XAb"], &[]),
        (r#"content:"a|42 43|d";"#, &["aBCd"], &[]),
        (r#"content:"|4243|";"#, &["BC"], &[]),
        (r#"content:"\"\;\:\\\|";"#, &["\";:\\|"], &[]),
        (r#"content:"a;b)";"#, &["a;b)"], &[]),
        (r#"content:"é";"#, &["é"], &[]),
    ]);
    let text = rule("alert", "content:\"|00 ff 0A|\"; sid:1;");
    let mut bench = ips(&[&text], json!({}));
    bench.unchanged(&datagram(&[1, 0, 255, 10]));
    assert_eq!(bench.counter("1"), 1);
}

/// An expression follows the match of the content before it, over any number of segments.
#[test]
fn expressions() {
    check(&[
        (r#"content:"id="; pcre:"/[0-9]{3}/R";"#, &["id=xx123"], &["123id=12"]),
        (r#"content:"id="; pcre:"/^[0-9]{3}/R";"#, &["id=123", "id=x123id=456"], &["id=x123"]),
        (r#"content:"id="; pcre:"/[0-9]{3}/RA";"#, &[], &["id=x123"]),
        (r#"content:"id="; pcre:"/^ab/Ri";"#, &["id=AB"], &[]),
        (r#"content:"id="; pcre:"/a.b/R";"#, &[], &["id=a\nb"]),
        (r#"content:"id="; pcre:"/a.b/Rs";"#, &["id=a\nb"], &[]),
        (r#"content:"id="; pcre:"/^b/R";"#, &[], &["id=a\nb"]),
        (r#"content:"id="; pcre:"/^b/Rm";"#, &["id=a\nb"], &[]),
        (r#"content:"id="; pcre:"/a b # c/Rx";"#, &["id=ab"], &[]),
        (r#"content:"id="; pcre:"/a\/b|c\;d/R";"#, &["id=a/b"], &[]),
        (r#"content:"a"; pcre:"/b+/R"; content:"c"; distance:1;"#, &["abbc"], &["abc"]),
        (r#"content:"a"; pcre:"/b+/R"; content:"d"; depth:1;"#, &["dab"], &[]),
    ]);
}

/// Sids of the rules that match this packet with the byte `x` in it.
fn who(bench: &mut Bench, sids: u32, packet: &str) -> Vec<u32> {
    let before: Vec<u64> = (1..=sids).map(|sid| bench.counter(&sid.to_string())).collect();
    bench.unchanged(&format!("{packet} hex 78"));
    let is_new = |sid: &u32| bench.counter(&sid.to_string()) > before[*sid as usize - 1];
    let sids: Vec<u32> = (1..=sids).collect();
    sids.into_iter().filter(is_new).collect()
}

/// A rule's header selects packets by protocol, addresses, ports and direction, also by
/// variables.
#[test]
fn headers() {
    let headers = [
        "tcp any any -> any any",
        "udp any any -> any any",
        "icmp any any -> any any",
        "ip any any -> any any",
        "udp 10.0.0.0/8 any -> !10.0.0.0/8 53",
        "udp any 53 -> any any",
        "udp any any <> any 53",
        "udp [10.0.0.2, 10.0.0.3] any -> any [53,60:70,!65]",
        "udp any any -> any 60:",
        "udp any any -> any :59",
        "udp any any -> any !53",
        "udp $INSIDE any -> $OUTSIDE $NAMES",
        "ip 2001:db8::/32 any -> any any",
        "ip any any -> any 53",
    ];
    let count = headers.len() as u32;
    let rules: Vec<String> = (1..)
        .zip(headers)
        .map(|(sid, header)| format!("alert {header} (content:\"x\"; sid:{sid};)"))
        .collect();
    let variables = json!({ "variables": {
        "INSIDE": "[10.0.0.0/24,!10.0.0.9]", "OUTSIDE": "!10.0.0.0/8", "NAMES": "[$DNS]", "DNS": "53",
    } });
    let mut bench = ips(&rules, variables);
    for (packet, sids) in [
        ("tcp 10.0.0.2:5 > 203.0.113.1:80 ACK seq 1", &[1, 4][..]),
        ("udp 10.0.0.2:5 > 203.0.113.1:53", &[2, 4, 5, 7, 8, 10, 12, 14]),
        ("udp 203.0.113.1:53 > 10.0.0.2:5", &[2, 4, 6, 7, 10, 11]),
        ("udp 10.0.0.3:5 > 10.0.0.1:65", &[2, 4, 9, 11]),
        ("udp 10.0.0.9:5 > 203.0.113.1:53", &[2, 4, 5, 7, 10, 14]),
        ("icmp 10.0.0.2 > 203.0.113.1 echo id 53", &[3, 4]),
        ("udp [2001:db8::1]:5 > [2001:db8::2]:99", &[2, 4, 9, 11, 13]),
    ] {
        assert_eq!(who(&mut bench, count, packet), sids, "{packet}");
    }
}

/// The option `flow` selects packets by direction, and by whether both sides have spoken.
#[test]
fn flow_options() {
    let options =
        ["to_server", "from_server", "established", "not_established", "to_client,established"];
    let rules: Vec<String> = (1..)
        .zip(options)
        .map(|(sid, option)| rule("alert", &format!("flow:{option}; content:\"x\"; sid:{sid};")))
        .collect();
    let mut bench = ips(&rules, json!({}));
    assert_eq!(who(&mut bench, 5, "udp 10.0.0.2:5 > 203.0.113.1:53"), [1, 4]);
    assert_eq!(who(&mut bench, 5, "udp 203.0.113.1:53 > 10.0.0.2:5"), [2, 3, 5]);
    assert_eq!(who(&mut bench, 5, "udp 10.0.0.2:5 > 203.0.113.1:53"), [1, 3]);
    // A connection whose handshake was not seen counts as established.
    assert_eq!(who(&mut bench, 5, "tcp 10.0.0.2:5 > 203.0.113.1:53 ACK seq 1"), [1, 3]);
}

/// A text may hold many rules, with comments, continued lines and spaces; a rule's
/// counter has its sid, rev, msg and classtype in its name.
#[test]
fn a_text_of_rules() {
    let text = "# the first\n\n  alert udp any any -> any any \\\n   (msg:\"an \\\"x\\\"\"; content:\"x\"; \\\r\n reference:url,a.example; metadata:a b, c d; priority:2; gid:1; \\\n classtype:bad-unknown; rev:3; sid:7;)\r\n#alert\nalert udp any any -> any any ( content : \"y\" ; sid : 8 ; )";
    let mut bench = ips(&[text, &rule("alert", "content:\"z\"; sid:9;")], json!({}));
    bench.unchanged(&datagram(b"xyz"));
    for name in ["7 rev 3 \"an \"x\"\" (bad-unknown)", "8", "9"] {
        assert_eq!(bench.counter(name), 1, "{name}");
    }
}

/// Expressions without `R` may match anywhere, whatever contents match where.
#[test]
fn expressions_of_the_whole_stream() {
    check(&[
        ("pcre:\"/ab+c/\";", &["xabbcx", "abc"], &["ac", "abb", "ABC"]),
        ("content:\"z\"; pcre:\"/ab+c/\";", &["abcz", "zabc"], &["abc", "z"]),
        ("pcre:\"/ab/\"; pcre:\"/c/\";", &["cab", "abc"], &["ab", "cb"]),
        ("pcre:\"/^ab/\";", &["abx"], &["xab", "\nab"]),
        ("pcre:\"/^ab/m\";", &["abx", "x\nab"], &["xab"]),
        ("pcre:\"/ab/A\";", &["abx"], &["xab"]),
        ("pcre:\"/a|b #c/Ax\";", &["ax", "bx"], &["xa", "xb"]),
        ("pcre:\"/(?x)a b #c/A\";", &["abx"], &["xab"]),
        ("pcre:\"/AB/i\";", &["xaBx"], &["a"]),
        ("pcre:\"/a.c/\";", &["abc"], &["a\nc"]),
        ("pcre:\"/a.c/s\";", &["a\nc"], &["ac"]),
        ("pcre:\"/a\\d/\"; content:\"b\"; distance:1;", &["a1xb", "a1a2xb"], &["a1b", "ba1x"]),
        ("content:\"x\"; pcre:\"/y/R\"; pcre:\"/z/\";", &["zxy", "xyz"], &["xzz", "yxz"]),
    ]);
}

/// Expressions without `R` share an automaton. The rule with which it is too large is
/// named.
#[test]
fn expressions_of_the_whole_stream_have_so_much_room() {
    let some = |count: u32, text: &dyn Fn(u32) -> String| {
        (1..=count)
            .map(|sid| rule("alert", &format!("pcre:\"/{}/\"; sid:{sid};", text(sid))))
            .collect::<Vec<_>>()
    };
    let words = some(300, &|sid| format!("word-{sid}=[0-9]{{4}}"));
    let mut bench = ips(&words, json!({}));
    bench.unchanged(&datagram(b"word-299=123 word-300=1234"));
    assert_eq!((bench.counter("299"), bench.counter("300")), (0, 1));
    let open = some(40, &|sid| format!("a{sid}[^z]*b{sid}[^z]*c"));
    let error = catalog::build("ips", &json!({ "rules": open })).err().expect("it is too large");
    assert!(error.message.contains("2 MiB together"), "{error}");
    let first = error.path.strip_prefix("rules[").and_then(|rest| rest.strip_suffix(']'));
    let first: usize = first.and_then(|at| at.parse().ok()).expect("a rule");
    assert_eq!(error.offset, open[first].find(&format!("a{}[", first + 1)));
    assert!(first > 2 && catalog::build("ips", &json!({ "rules": open[..first] })).is_ok());
    // Without it and those behind it the others work, if so configured.
    let mut rules = open[..first + 2].to_vec();
    rules.insert(first, rule("alert", "content:\"z\"; sid:99;"));
    let config = json!({ "rules": rules, "unsupported": "skip" });
    let function =
        catalog::configured("ips", &config, &Zones::default()).expect("two are left out");
    let left_out = function.warnings();
    let paths: Vec<&str> = left_out.iter().map(|warning| warning.path.as_str()).collect();
    assert_eq!(paths, [format!("rules[{}]", first + 1), format!("rules[{}]", first + 2)]);
    assert!(left_out[0].message.ends_with("the rule is left out"), "{}", left_out[0]);
    let mut bench = ips(&rules, json!({ "unsupported": "skip" }));
    bench.unchanged(&datagram(format!("a{first}b{first}cz").as_bytes()));
    assert_eq!((bench.counter(&first.to_string()), bench.counter("99")), (1, 1));
}

/// A rule goes on behind a `\\` with spaces behind it; a comment goes on nowhere, and a
/// line inside of a rule is none.
#[test]
fn lines_go_on_as_in_suricata() {
    let text = "# a comment \\\nalert ip any any -> any any \\ \t\n  (content:\"x\"; \\\n#y\";)\n";
    let error =
        catalog::build("ips", &json!({ "rules": [text] })).err().expect("`#y` is no option");
    assert_eq!(
        (error.offset, error.message.contains("`#y\"`")),
        (text.find("#y"), true),
        "{error}"
    );
    let text = "# a comment \\\nalert ip any any -> any any \\ \t\n  (content:\"x\"; \\\n\\\n sid:1;)\\\n\n  # \\\nalert ip any any -> any any (content:\"y\"; sid:2;) \\";
    let mut bench = ips(&[text], json!({}));
    bench.unchanged(&datagram(b"xy"));
    assert_eq!((bench.counter("1"), bench.counter("2")), (1, 1));
}

/// Rules of files count as those of the configuration, behind them; a sid is unique in
/// all, and a flow's state belongs to the rules, wherever they stand.
#[test]
fn rules_of_files() {
    let file = |text: &str| json!({ "path": "a.rules", "text": text });
    let (x, y) = (rule("drop", "content:\"x\"; sid:1;"), rule("alert", "content:\"y\"; sid:2;"));
    let mut bench =
        Bench::new(&[("ips", json!({ "rules": [y], "rule_files": [file(&x), file("# none")] }))]);
    bench.unchanged(&datagram(b"y"));
    bench.drops(&datagram(b"x"), PolicyDenied);
    assert_eq!((bench.counter("1"), bench.counter("2")), (1, 1));
    let twice =
        json!({ "rule_files": [file(&x), { "path": "b.rules", "text": format!("\n{x}") }] });
    let error = catalog::build("ips", &twice).err().expect("two rules of one sid are refused");
    assert_eq!(error.message, "sid 1 is that of a.rules, line 1, too");
    assert_eq!(
        (error.path.as_str(), error.offset),
        ("rule_files[1]", x.find("1;").map(|at| at + 1))
    );
    // Rules that move to a file are the same rules.
    let mut first = connected(&[&x], json!({}));
    says(&mut first, 0, b"harmless");
    let mut second = Bench::new(&[("ips", json!({ "rule_files": [file(&x)] }))]);
    second.takes_over(&mut first, false);
    says(&mut second, 8, b"harmless");
    assert_eq!(second.counter("rules_changed"), 0);
}

/// Rules that are refused: options or the whole rule, the words at the caret, and a part
/// of the message.
const REFUSED: &[(&str, &str, &str)] = &[
    ("log tcp any any -> any any (sid:1;)", "log", "action `log` is not supported"),
    ("alert", "", "a protocol is missing"),
    ("alert http any any -> any any (sid:1;)", "http", "protocol `http` is not supported"),
    ("alert tcp any -> any any (sid:1;)", "-> any", "`->` is no port"),
    ("alert tcp any any => any any (sid:1;)", "=>", "`=>` is no direction"),
    ("alert tcp 10.0.0.300 any -> any any (sid:1;)", "10.0.0.300", "is no address"),
    ("alert tcp [10.0.0.1,x] any -> any any (sid:1;)", "x]", "`x` is no address"),
    ("alert tcp [10.0.0.1 any -> any any (sid:1;)", "[10", "is missing"),
    ("alert tcp !any any -> any any (sid:1;)", "!any", "would never match"),
    ("alert tcp ![!10.0.0.1] any -> any any (sid:1;)", "!10", "negation inside of a negation"),
    ("alert tcp $NOBODY any -> any any (sid:1;)", "$NOBODY", "`NOBODY` is not among"),
    ("alert tcp $LOOP any -> any any (sid:1;)", "$LOOP", "nested deeper"),
    ("alert tcp $WRONG any -> any any (sid:1;)", "$WRONG", "variable `WRONG`: `y` is no address"),
    ("alert tcp any 70000 -> any any (sid:1;)", "70000", "is no port"),
    ("alert tcp any 9:8 -> any any (sid:1;)", "9:8", "is no port"),
    ("alert tcp any : -> any any (sid:1;)", ": ->", "is no port"),
    ("alert tcp any any -> any any", "", "`(` with the rule's options is missing"),
    ("alert tcp any any -> any any (sid:1;) x", "x", "ends with its bracket"),
    ("alert tcp any any -> any any (sid:1", "sid", "`;` is missing behind `sid`"),
    ("alert tcp any any -> any any (sid)", ")", "`;` is missing behind `sid`"),
    ("alert tcp any any -> any any (sid:1;", "", "`;)` is missing"),
    ("alert tcp any any -> any any (content:\"a; sid:1;)", "\"a;", "does not end"),
    ("(;", "; sid", "an option's name is missing"),
    ("(dsize:>5;", "dsize", "option `dsize` is not supported"),
    ("(flow:only_stream;", "only_stream", "`flow:only_stream` is not supported"),
    ("(content:!\"a\";", "!\"a\"", "a negated `content` is not supported"),
    ("(content:a;", "a;", "stands in quotes"),
    ("(content:\"\";", "\"; sid", "at least one byte"),
    ("(content:\"a|4|\";", "|\"; sid", "two digits"),
    ("(content:\"a|4g|\";", "g|", "no hex digit"),
    ("(content:\"a|41\";", "|41", "does not end"),
    ("(content:\"a\\n\";", "n\"", "is no escape"),
    ("(nocase;", "nocase", "belongs behind a `content`"),
    ("(content:\"a\"; depth:x;", "x;", "`depth` is a number here"),
    ("(content:\"a\"; depth:0;", "0;", "between 1 and 65535"),
    ("(content:\"a\"; content:\"b\"; distance:1048577;", "1048577", "between -1048576 and"),
    ("(content:\"a\"; depth:2; depth:3;", "depth:3", "said twice"),
    ("(content:\"abc\"; depth:2;", "depth", "no room for the content's 3"),
    ("(content:\"a\"; content:\"b\"; distance:1; offset:2;", "distance", "absolute"),
    ("(content:\"a\"; content:\"b\"; distance:-1;", "distance", "`distance:-1` is not supported"),
    ("(content:\"ab\"; distance:-3; within:4;", "within", "before the start"),
    ("(pcre:\"/a/R\";", "\"/a/R\"", "right behind a `content`"),
    ("(content:\"a\"; pcre:\"a\";", "a\"; sid", "written as `/…/`"),
    ("(content:\"a\"; pcre:\"/a/RU\";", "U\"", "flag `U`"),
    ("(content:\"a\"; pcre:!\"/a/R\";", "!", "a negated `pcre`"),
    ("(content:\"a\"; pcre:\"/(a/R\";", "(a/R", "unclosed group"),
    ("(content:\"a\"; pcre:\"/(?=a)/R\";", "(?=a)", "look-around"),
    ("(content:\"a\"; pcre:\"/a$/R\";", "a$", "looks ahead"),
    ("(content:\"a\"; pcre:\"/a*/R\";", "a*", "always matches"),
    ("(content:\"a\"; pcre:\"/(.{99}a){99}/Rs\";", "(.{99}a)", "too large"),
    ("(pcre:\"/(.{99}a){99}/s\";", "(.{99}a)", "too large"),
    ("(pcre:\"/(((.{999}){999}){999}){999}/s\";", "(((", "too large"),
    ("(pcre:\"/a|b*/\";", "a|b*", "always matches"),
    ("(pcre:\"/\\bab/\";", "\\bab", "looks ahead"),
    ("(pcre:\"/(a)\\1/\";", "(a)", "backreferences"),
    ("(pcre:\"/a/\"; content:\"b\"; distance:0; within:9;", "within", "first end"),
    ("(pcre:\"/a/\"; pcre:\"/b/R\";", "\"/b/R\"", "right behind a `content`"),
    ("(content:\"a\"; pcre:\"/b/R\"; pcre:\"/c/R\";", "\"/c/R\"", "right behind a `content`"),
    ("(content:\"a\"; pcre:\"/b/R\"; content:\"c\"; within:9;", "within", "first end"),
    ("(msg:\"a\";", "alert", "without a `content`"),
    ("alert tcp any any -> any any (content:\"a\";)", "alert", "`sid` is missing"),
    ("alert tcp any any -> any any (content:\"a\"; sid:0;)", "0;", "between 1 and 4294967295"),
];

/// The whole rule of a case, which may be only the options before its sid.
fn whole(case: &str) -> String {
    match case.strip_prefix('(') {
        Some(options) => rule("alert", &format!("{options} sid:1;")),
        None => case.to_owned(),
    }
}

fn config(rules: &[&str], unsupported: &str) -> Value {
    json!({
        "rules": rules,
        "variables": { "LOOP": "[$LOOP]", "WRONG": "[10.0.0.1,y]" },
        "unsupported": unsupported,
    })
}

/// A rule that is wrong or not supported is refused, with the place in its text.
#[test]
fn what_is_refused_is_named_with_its_place() {
    for (case, caret, message) in REFUSED {
        let text = format!("# a comment\n  {}", whole(case));
        let fine = rule("alert", "content:\"a\"; sid:99;");
        let error = catalog::build("ips", &config(&[&fine, &text], "refuse"))
            .err()
            .unwrap_or_else(|| panic!("`{text}` is refused"));
        assert_eq!(error.path, "rules[1]", "{text}");
        assert!(error.message.contains(message), "{text}: {error}");
        let at = error.offset.unwrap_or_else(|| panic!("{text}: no place"));
        assert!(text[at..].starts_with(caret), "{text}: at `{}`", &text[at..]);
        assert!(!caret.is_empty() || at == text.len(), "{text}: at `{}`", &text[at..]);
    }
    let twice = [
        rule("alert", "content:\"a\"; sid:5;"),
        format!("\n{}", rule("drop", "content:\"b\"; sid:5;")),
    ];
    let error = catalog::build("ips", &config(&[&twice[0], &twice[1]], "skip")).err();
    let error = error.expect("two rules of one sid are refused");
    assert_eq!(error.message, "sid 5 is that of rules[0], line 1, too");
    assert_eq!(error.offset, twice[1].find("5;"));
    for (config, message) in [
        (json!({ "rules": [] }), "there is no rule"),
        (json!({ "rules": ["# nothing"] }), "there is no rule"),
        (json!({}), "there is no rule"),
        (json!({ "rule_files": ["local.rules"] }), "expected struct TextFile"),
        (
            json!({ "rules": [rule("alert", "content:\"a\"; sid:5;")], "eve": "eve.json" }),
            "a path from the root",
        ),
        (json!({ "rules": [rule("alert", "content:\"a\"; sid:5;")], "uninspected": "x" }), "`x`"),
    ] {
        let error = catalog::build("ips", &config).err().expect("refused");
        assert!(error.message.contains(message), "{config}: {error}");
    }
}

/// Rules that other engines may understand are left out with a warning, if so configured;
/// wrong ones are refused in any case.
#[test]
fn unsupported_rules_are_left_out_if_asked_to() {
    let fine = rule("alert", "content:\"a\"; sid:99;");
    for (case, _, message) in REFUSED {
        let text = whole(case);
        let built = catalog::configured("ips", &config(&[&text, &fine], "skip"), &Zones::default());
        match built {
            Ok(function) => {
                let warnings = function.warnings();
                assert_eq!(warnings.len(), 1, "{text}");
                assert!(warnings[0].message.ends_with("the rule is left out"), "{text}");
                assert_eq!(warnings[0].path, "rules[0]");
                assert!(warnings[0].message.contains(message), "{text}: {}", warnings[0]);
            }
            Err(error) => assert!(!error.message.contains("not supported"), "{text}: {error}"),
        }
    }
}
