//! Clients that do not speak the protocol, do not read, or say nothing.

use super::*;

/// Clients that ask for a long list and do not read it take every seat, for some seconds;
/// the loop is asked for a piece or two of each list, and then others are answered again.
#[test]
fn clients_that_do_not_read_are_given_up() {
    let running = Box::start_with(0, 60_000);
    let mut stuck: Vec<ByHand> = (0..MAX_CLIENTS).map(|_| running.by_hand()).collect();
    let streams: Vec<_> = stuck
        .iter_mut()
        .map(|ByHand { runtime, api, .. }| {
            let request = ListFlowsRequest { limit: 1_000_000, ..Default::default() };
            runtime.block_on(api.list_flows(request)).expect("there is a seat")
        })
        .collect();
    let refused = refusal(running.client().ping());
    assert!(
        refused.code == exit::NEGATIVE && refused.message == "too many calls at a time: try again",
        "{refused}"
    );
    until("others are answered again", || running.client().ping().is_ok());
    let asked = running.wakes.load(Ordering::SeqCst);
    assert!(asked < 60_000 / 300 * MAX_CLIENTS as u32 / 4, "the loop was asked {asked} times");
    drop((streams, stuck));
}

/// A client that does not speak the protocol is shut out, however much it sends; nothing
/// of it reaches the loop.
#[test]
fn garbage_is_shut_out() {
    let running = Box::start(0);
    let endless = vec![b'x'; 1 << 20];
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let frames = [&preface[..], &[0xff; 4096]].concat();
    // A stream's headers, which cannot be read.
    let headers = [
        &preface[..],
        &[0, 0, 0, 4, 0, 0, 0, 0, 0],
        &[0, 0, 4, 1, 4, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff],
    ]
    .concat();
    let no_http: &[u8] = b"{\"version\":1,\"request\":\"status\"}\n";
    for bytes in
        [&b""[..], b"\n", no_http, b"GET / HTTP/1.1\r\n\r\n", &endless, preface, &frames, &headers]
    {
        let mut stream = running.connect();
        // A box that has read enough may close while more is written.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let end = stream.read_to_end(&mut Vec::new());
        let came_in_time =
            end.err().is_none_or(|error| error.kind() != std::io::ErrorKind::WouldBlock);
        assert!(came_in_time, "{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(20)]));
    }
    assert_eq!(running.wakes.load(Ordering::SeqCst), 0, "nothing of it reached the loop");
    assert_eq!(running.client().status().unwrap().protected(), Protected::Yes);
}

/// Calls that the box does not have, and messages that cannot be decoded, are refused;
/// the connection goes on.
#[test]
fn what_is_no_call_is_refused() {
    let running = Box::start(0);
    let ByHand { runtime, api: _, channel } = running.by_hand();
    let mut grpc = tonic::client::Grpc::new(channel);
    // The first field of a list's request is text.
    let number = PingReply { pid: 5, ..PingReply::default() };
    for (call, code) in [
        ("/holdfast.control.v1.Control/ListFlows", tonic::Code::Internal),
        ("/holdfast.control.v1.Control/Dance", tonic::Code::Unimplemented),
        ("/other.Service/Ping", tonic::Code::Unimplemented),
    ] {
        let codec = tonic_prost::ProstCodec::<PingReply, Progress>::default();
        let refused = runtime.block_on(async {
            grpc.ready().await.expect("the connection goes on");
            grpc.unary(tonic::Request::new(number), call.parse().unwrap(), codec).await
        });
        assert_eq!(refused.unwrap_err().code(), code, "{call}");
    }
    assert_eq!(running.wakes.load(Ordering::SeqCst), 0, "nothing of it reached the loop");
}

#[test]
fn clients_that_say_nothing_take_their_places_and_no_more() {
    let running = Box::start(0);
    let idle: Vec<UnixStream> = (0..MAX_CONNECTIONS).map(|_| running.connect()).collect();
    let refused = refusal(running.client().status());
    assert!(
        refused.code == exit::UNAVAILABLE && refused.message.contains("too many clients"),
        "{refused}"
    );
    drop(idle);
    until("the places are free again", || running.client().status().is_ok());
}

/// Clients that follow an order and take none of its news lose their seats after some
/// seconds.
#[test]
fn who_takes_no_news_of_an_order_loses_the_seat() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let (requests, asked) = channel::<Request>();
    let _server = control::listen_and_stop(&path, requests, Arc::new(|| {}), Arc::new(|| {}))
        .unwrap_or_else(|f| panic!("{f}"));
    std::thread::spawn(move || {
        for (moved, asked) in (1..).zip(asked) {
            match asked {
                Request::Ping(answer) => answer.give(PingReply::default()),
                Request::Order(_, answer) => answer.give(7),
                Request::Progress(_, answer) => answer.give(progress(moved, false)),
                other => panic!("{other:?}"),
            }
        }
    });
    // Room for a few messages only.
    let endpoint = || Endpoint::from_static("http://box").initial_stream_window_size(100);
    let mut stuck: Vec<ByHand> = (0..MAX_CLIENTS).map(|_| ByHand::new(&path, endpoint())).collect();
    let request = MigrateRequest { from: 16, ..MigrateRequest::default() };
    let follow = |ByHand { runtime, api, .. }: &mut ByHand| {
        runtime.block_on(api.migrate(request.clone())).expect("there is a seat")
    };
    let streams: Vec<_> = stuck.iter_mut().map(follow).collect();
    let client = Client::new(Some(&path)).unwrap_or_else(|f| panic!("{f}"));
    let refused = refusal(client.ping());
    assert_eq!(refused.message, "too many calls at a time: try again");
    until("others are answered again", || client.ping().is_ok());
    drop((streams, stuck));
}
