//! The reader compared with `httparse`, which parses whole blocks: the crate parses every
//! message that the reader accepts, with the same result. Valid messages are accepted.

use super::head::Head;
use super::message::{Reader, Stop, mark, step};
use proptest::prelude::*;

fn ours(data: &[u8], is_response: bool) -> (Reader, Head, usize, Stop) {
    let (mut reader, mut head) = (Reader::from(0, is_response), Head::default());
    let (read, stop) = reader.read(&mut head, data, u32::MAX);
    (reader, head, read, stop)
}

/// The result of [`ours`], read one byte at a time.
fn ours_in_bytes(data: &[u8], is_response: bool) -> (Reader, Head, usize, Stop) {
    let (mut reader, mut head) = (Reader::from(0, is_response), Head::default());
    for (at, byte) in data.iter().enumerate() {
        let (read, stop) = reader.read(&mut head, &[*byte], u32::MAX);
        if stop != Stop::Empty {
            return (reader, head, at + read, stop);
        }
    }
    (reader, head, data.len(), Stop::Empty)
}

fn value<'a>(headers: &[httparse::Header<'a>], name: &str) -> Option<&'a [u8]> {
    let header = headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
    Some(header.value)
}

fn without_port(host: &[u8]) -> Vec<u8> {
    let end = match host.iter().position(|byte| *byte == b']') {
        Some(bracket) => bracket + 1,
        None => host.iter().position(|byte| *byte == b':').unwrap_or(host.len()),
    };
    host[..end].to_ascii_lowercase()
}

/// True if `httparse` parses the block as a request; panics if its result differs from
/// the reader's. The reader must have accepted the block.
fn agrees_on_request(data: &[u8], reader: &Reader, head: &Head, read: usize) -> bool {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut theirs = httparse::Request::new(&mut headers);
    let Ok(httparse::Status::Complete(length)) = theirs.parse(data) else { return false };
    assert_eq!(length, read);
    assert_eq!(theirs.version, Some(if reader.has(mark::OLD) { 0 } else { 1 }));
    let method = theirs.method.unwrap_or_default().as_bytes();
    assert!(method == head.method() || reader.has(mark::LONG_METHOD));
    let target = theirs.path.unwrap_or_default().as_bytes();
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    if target.starts_with(b"/") && !reader.has(mark::LONG_PATH) {
        assert_eq!(path, head.path());
    }
    let host = value(theirs.headers, "host");
    assert_eq!(host.is_some(), reader.has(mark::HOST));
    if let Some(host) = host.filter(|_| !reader.has(mark::LONG_HOST)) {
        assert_eq!(without_port(host), head.host());
    }
    let length = value(theirs.headers, "content-length");
    assert_eq!(length.is_some(), reader.has(mark::LENGTH));
    if let Some(length) = length {
        assert_eq!(String::from_utf8_lossy(length).parse(), Ok(reader.left));
    }
    let coding = value(theirs.headers, "transfer-encoding");
    assert_eq!(coding.is_some(), reader.has(mark::CODING));
    assert_eq!(value(theirs.headers, "upgrade").is_some(), reader.has(mark::UPGRADE));
    true
}

fn agrees_on_response(data: &[u8], reader: &Reader, read: usize) -> bool {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut theirs = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(length)) = theirs.parse(data) else { return false };
    assert_eq!((length, theirs.code), (read, Some(reader.status)));
    assert_eq!(theirs.version, Some(if reader.has(mark::OLD) { 0 } else { 1 }));
    if let Some(length) = value(theirs.headers, "content-length") {
        assert_eq!(String::from_utf8_lossy(length).parse(), Ok(reader.left));
    }
    true
}

/// A block of valid lines, some of which are replaced by nearly valid ones.
fn block(is_response: bool) -> impl Strategy<Value = Vec<u8>> {
    let starts = if is_response {
        vec![
            "HTTP/1.1 200 OK",
            "HTTP/1.0 404",
            "HTTP/1.1 101 ",
            "HTTP/1.1  200 OK",
            "HTTP/1.1 20 OK",
        ]
    } else {
        vec![
            "GET / HTTP/1.1",
            "POST /a/b?c=d HTTP/1.0",
            "GET /a#b HTTP/1.1",
            "GET /a%2fb HTTP/1.1",
            "OPTIONS * HTTP/1.1",
            "GET http://A.example:80/x HTTP/1.1",
            "CONNECT a.example:443 HTTP/1.1",
            "GET  / HTTP/1.1",
            "GET / HTTP/1.2",
            "GET /",
            "GET x HTTP/1.1",
            "M-X /%7e HTTP/1.1",
        ]
    };
    let fields = vec![
        "Host: a.example",
        "host:A.example:80",
        "HOST: [2001:db8::1]:8080 ",
        "Host: a b",
        "Host:",
        "Content-Length: 12",
        "content-length:0",
        "Content-Length: 1x",
        "Content-Length: 1 2",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: x",
        "Upgrade: h2c",
        "X-Long: \u{e4}\tb  c",
        "Cookie:",
        " folded",
        "Space : 1",
        ": 1",
        "no colon",
    ];
    let ends =
        prop_oneof![9 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r"), 1 => Just("\r\r\n")];
    let line = |text: Vec<&'static str>| {
        let any = proptest::string::bytes_regex("[ -~\t\r\n\u{0}\u{7f}]{0,20}").expect("a pattern");
        let known = proptest::sample::select(text).prop_map(|text| text.as_bytes().to_vec());
        (prop_oneof![9 => known, 1 => any], ends.clone())
            .prop_map(|(text, end)| [text, end.as_bytes().to_vec()].concat())
    };
    let fields = proptest::collection::vec(line(fields), 0..5);
    let noise = proptest::option::weighted(0.2, (any::<proptest::sample::Index>(), any::<u8>()));
    (line(starts), fields, noise).prop_map(|(start, fields, noise)| {
        let mut data = [start, fields.concat(), b"\r\nbody".to_vec()].concat();
        if let Some((at, byte)) = noise {
            let at = at.index(data.len());
            data[at] = byte;
        }
        data
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// Accepted requests are the same for another parser, and the number of bytes that
    /// are read at a time changes nothing.
    #[test]
    fn accepted_requests_are_the_same_for_others(data in block(false)) {
        let (reader, head, read, stop) = ours(&data, false);
        if stop == Stop::Head {
            prop_assert!(agrees_on_request(&data, &reader, &head, read));
        }
        let (other, other_head, other_read, other_stop) = ours_in_bytes(&data, false);
        prop_assert_eq!((read, stop, reader.step, reader.marks), (other_read, other_stop, other.step, other.marks));
        prop_assert_eq!((head.method(), head.path(), head.host()), (other_head.method(), other_head.path(), other_head.host()));
    }

    /// Accepted responses are the same for another parser, as above.
    #[test]
    fn accepted_responses_are_the_same_for_others(data in block(true)) {
        let (reader, _, read, stop) = ours(&data, true);
        if stop == Stop::Head {
            prop_assert!(agrees_on_response(&data, &reader, read));
        }
        let (other, _, other_read, other_stop) = ours_in_bytes(&data, true);
        prop_assert_eq!((read, stop, reader.step, reader.marks), (other_read, other_stop, other.step, other.marks));
    }

    /// Arbitrary bytes cause no panic, and are accepted as a request only if `httparse`
    /// agrees.
    #[test]
    fn any_bytes_are_read_or_refused(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        for is_response in [false, true] {
            let (reader, head, read, stop) = ours(&data, is_response);
            if stop == Stop::Head && !is_response {
                prop_assert!(agrees_on_request(&data, &reader, &head, read));
            }
        }
    }

    /// A valid request is accepted, and its parts are those that were sent.
    #[test]
    fn right_requests_are_accepted(
        method in "[A-Z!#$%&'*+.^_`|~-]{1,24}",
        path in "/[!$&-;=@-Z_a-z~]{0,200}(%[346][0-9a-fA-F]|%2[0-9a-eA-E])?[!$&-;=@-Z_a-z~]{0,90}",
        query in "(\\?[!\"$-~]{0,300})?",
        host in "[a-z0-9.-]{1,100}(:[0-9]{1,5})?",
        cookies in proptest::collection::vec("[ -~\t]{0,400}", 0..4),
        length in any::<u64>(),
    ) {
        prop_assume!(method != "CONNECT");
        let cookies: String = cookies.iter().map(|cookie| format!("Cookie: {cookie}\r\n")).collect();
        let data = format!("{method} {path}{query} HTTP/1.1\r\nHost: {host}\r\n{cookies}Content-Length: {length}\r\n\r\n");
        let (reader, head, read, stop) = ours(data.as_bytes(), false);
        prop_assert_eq!((read, stop), (data.len(), Stop::Head));
        prop_assert!(agrees_on_request(data.as_bytes(), &reader, &head, read));
        prop_assert_eq!(reader.left, length);
    }

    /// An accepted chunk line has the size that another parser reads.
    #[test]
    fn sizes_of_chunks_are_the_same_for_others(line in "[0-9a-fA-F]{0,17}[ \t]{0,2}(;[ -~]{0,9})?[\r\n]{0,2}[\r\n]", noise in any::<(proptest::sample::Index, u8)>(), is_noisy in any::<bool>()) {
        let mut data = line.into_bytes();
        if is_noisy {
            let at = noise.0.index(data.len());
            data[at] = noise.1;
        }
        let (mut reader, mut head) = (Reader::from(0, false), Head::default());
        reader.expect_size();
        let line = data.iter().position(|byte| *byte == b'\n').map_or(data.len(), |at| at + 1);
        let (read, stop) = reader.read(&mut head, &data[..line], u32::MAX);
        let is_whole = stop == Stop::Empty && (reader.step == step::CHUNK || reader.has(mark::TRAILER));
        if is_whole {
            prop_assert_eq!(httparse::parse_chunk_size(&data), Ok(httparse::Status::Complete((read, reader.left))));
        }
    }
}

/// A chunked body with extensions and trailers ends at its last byte, wherever it is cut.
#[test]
fn a_chunked_body_ends_where_it_ends() {
    let body = b"5;a=\"b;c\"\r\nhello\r\n0A \t;x\r\n0123456789\r\n000\r\nContent-Length: 7\r\nX: y\r\n\r\n";
    for cut in 0..=body.len() {
        let (mut reader, mut head) = (Reader::from(0, false), Head::default());
        reader.marks = mark::CODING | mark::CHUNKED;
        reader.expect_body();
        for part in [&body[..cut], &body[cut..]] {
            assert_eq!(reader.read(&mut head, part, u32::MAX), (part.len(), Stop::Empty));
        }
        assert_eq!((reader.step, reader.left, reader.marks), (step::START, 0, 0), "cut at {cut}");
    }
}
