//! Limits on what clients send, and on connections, calls and time.

use super::*;

/// Bytes that are no TLS, and bytes inside TLS that are no HTTP/2, are refused and
/// counted.
#[test]
fn garbage_is_refused_and_counted() {
    let running = Box::start();
    for (at, bytes) in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &[0xff; 4096],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        let mut stream = running.connect();
        let _ = stream.write_all(bytes);
        is_closed(stream);
        until("not_tls", || running.refused("not_tls") == at as u64 + 1);
    }
    let stream = running.connect();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    is_closed(stream);
    until("handshake_ended", || running.refused("handshake_ended") == 1);
    let wall = running.scratch.path().join("tls/wall");
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &[0; 65536],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let mut stream = running.raw(by_hand(&wall, Some(&wall)));
        let _ = stream.write_all(bytes).and_then(|()| stream.flush());
        is_closed(stream);
    }
    running.still_answers();
    assert!(running.asked.try_recv().is_err(), "nothing of it reached the loop");
}

/// A message that is larger than any configuration is not read.
#[test]
fn a_message_has_a_limit() {
    let running = Box::start();
    let client = running.client("alice");
    let text = "#".repeat(MAX_FILE + (1 << 20));
    let failure = refusal(client.apply("f".into(), text, true));
    assert!(failure.code == exit::NEGATIVE && failure.message.contains("too large"), "{failure}");
    running.still_answers();
    // The longest text that a configuration may have comes through.
    let text = "#".repeat(MAX_FILE);
    assert!(matches!(client.apply("f".into(), text, true), Ok(Reply::Refused(_))));
}

/// Clients that begin a handshake and do not go on keep out other clients of their own
/// address only, until the box cuts the slow clients off.
#[test]
fn slow_clients_take_their_places_and_no_more() {
    let limits = Limits { handshakes_per_address: 3, handshake: LIMIT, ..Limits::default() };
    let running = Box::start_within(limits);
    let slow: Vec<TcpStream> = (0..3)
        .map(|_| {
            let mut stream = running.connect();
            // The beginning of a record, as long as a ClientHello.
            stream.write_all(&[0x16, 3, 1]).unwrap();
            stream
        })
        .collect();
    // Connections are accepted in their order: these three have their places.
    for at in 1..=20 {
        is_closed(running.connect());
        until("refused", || running.refused("too_many_connections") == at);
    }
    drop(slow);
    until("the slow ones are gone", || running.refused("handshake_ended") == 3);
    running.still_answers();

    let limits = Limits { handshake: Duration::from_millis(1), ..Limits::default() };
    let impatient = Box::start_within(limits);
    is_closed(impatient.connect());
    until("it was too slow", || impatient.refused("handshake_too_slow") == 1);
}

/// A client with a certificate takes a place too, and gives it back. A client that then
/// says nothing loses its place.
#[test]
fn connections_have_a_limit_and_an_end() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let running = Box::start_within(limits);
    let (first, second) = (running.client("alice"), running.client("wall"));
    first.ping().unwrap();
    second.ping().unwrap();
    let third = refusal(running.client("alice").ping());
    assert!(
        third.code == exit::UNAVAILABLE && third.message.contains("too many clients"),
        "{third}"
    );
    until("it is counted", || running.refused("too_many_connections") == 1);
    drop(first);
    until("its place is free", || running.client("alice").ping().is_ok());

    let limits = Limits { idle: Duration::from_millis(1), ..Limits::default() };
    let impatient = Box::start_within(limits);
    let wall = impatient.scratch.path().join("tls/wall");
    let mut silent = impatient.raw(by_hand(&wall, Some(&wall)));
    let _ = silent.flush();
    is_closed(silent);
    until("it was idle", || impatient.refused("idle") >= 1);
}

/// Calls have seats. A call that waits for packets keeps its seat until its client goes.
#[test]
fn calls_have_a_limit() {
    let limits = Limits { calls: 1, ..Limits::default() };
    let running = Box::start_within(limits);
    let held = running.hold_a_seat("alice");
    let busy = refusal(running.client("wall").status());
    assert!(busy.code == exit::TIMEOUT && busy.message.contains("too many calls"), "{busy}");
    assert_eq!(running.refused("busy"), 1);
    held.end();
    assert_eq!(running.told(), "trace 0", "the loop is told that nobody follows any more");
    until("the seat is free", || running.client("wall").status().is_ok());
}

/// Viewers that have taken all seats that viewers can get keep no operator out.
#[test]
fn an_operator_finds_a_seat() {
    let limits = Limits { calls: 2, ..Limits::default() };
    let running = Box::start_within(limits);
    let held = running.hold_a_seat("wall");
    assert_eq!(refusal(running.client("wall").status()).code, exit::TIMEOUT);
    running.client("alice").status().unwrap();
    running.client("right").status().unwrap();
    held.end();
}

/// Clients see an end when the box ends.
#[test]
fn nobody_listens_when_the_box_has_ended() {
    let mut running = Box::start();
    let client = running.client("alice");
    client.ping().unwrap();
    drop(running.server.take());
    assert_eq!(refusal(client.ping()).code, exit::UNAVAILABLE);
    assert_eq!(refusal(running.client("alice").ping()).code, exit::UNAVAILABLE);
}
