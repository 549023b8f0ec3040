//! Questions, lists, traces and orders, and what clients are told.

use super::*;

#[test]
fn what_is_asked_is_answered_and_the_loop_is_woken_for_it() {
    let running = Box::start(0);
    assert_eq!(running.client().status().unwrap().protected(), Protected::Yes);
    assert_eq!(running.wakes.load(Ordering::SeqCst), 1);
    let pong = running.client().ping().unwrap();
    assert_eq!(pong.pid, std::process::id());

    let flows = |filter: &str, limit| running.client().list(filter, limit);
    let all = flows("", 100).unwrap();
    assert_eq!((all.flows.len(), all.truncated), (5, false));
    assert_eq!(all.flows[0], flow(1), "what the loop says is passed on as it is");
    assert_eq!(flows("tcp from 10.0.0.2 port 2-3", 100).unwrap().flows.len(), 2);
    let cut = flows("", 3).unwrap();
    assert_eq!((cut.flows.len(), cut.truncated), (3, true));
    let wrong = refusal(flows("tcp form any", 1));
    assert_eq!(wrong.code, exit::NEGATIVE);
    assert!(wrong.message.contains("`form`") && wrong.message.contains("character 5"), "{wrong}");
}

/// An answer has a thousand flows and says where the rest begins; the client puts them
/// together, and each is there once.
#[test]
fn a_long_list_comes_in_pieces() {
    let running = Box::start_with(0, 2500);
    let client = running.client();
    let mut pieces = Vec::new();
    let take = |flows: Vec<_>| {
        pieces.push(flows.len());
        Ok(())
    };
    assert!(!client.flows("", 10_000, take).unwrap());
    assert_eq!(pieces, [1000, 1000, 500]);
    for (limit, truncated) in
        [(2499, true), (2500, false), (u32::MAX, false), (1000, true), (1700, true)]
    {
        let list = client.list("", limit).unwrap();
        let ports: Vec<u32> = list.flows.iter().map(|flow| flow.source_port().into()).collect();
        assert_eq!(ports, (1..=limit.min(2500)).collect::<Vec<_>>());
        assert_eq!(list.truncated, truncated, "{limit}");
    }
    let some = client.list("from 10.0.0.2 port 900-2100", u32::MAX).unwrap();
    assert_eq!(some.flows.len(), 1201);
    let ByHand { runtime, mut api, .. } = running.by_hand();
    for after in [vec![1 << 16, 0, 0, 0], vec![16, 1, 0]] {
        let wrong = runtime.block_on(async {
            let mut stream = api
                .list_flows(ListFlowsRequest { after, ..Default::default() })
                .await?
                .into_inner();
            stream.message().await
        });
        let wrong = wrong.unwrap_err();
        assert!(
            wrong.code() == tonic::Code::InvalidArgument && wrong.message().contains("`after`"),
            "{wrong}"
        );
    }
}

/// Selectors of flows and packets name ports of the box as rules do; its processes are
/// told their numbers.
#[test]
fn ports_are_named_in_selectors() {
    let running = Box::start(0);
    running.client().list("tcp on x", 9).unwrap();
    let refused = refusal(running.client().list("tcp on y", 9));
    let expected = "`tcp on y`, at character 8: unknown port or zone `y`, expected one of `x`; did you mean `x`?";
    assert_eq!((refused.code, refused.message.as_str()), (exit::NEGATIVE, expected));
    let request =
        MigrateRequest { from: 16, to: Some(17), limit: Some(1), filter: "udp on x".to_owned() };
    let done = running.client().migrate(request).and_then(|work| work.watch(|_| {})).unwrap();
    assert_eq!(done.moved, 1);
    let selector = "udp on #0 from any to any".to_owned();
    assert_eq!(
        running.changes.try_recv(),
        Ok(Order::Move { from: NodeId::new(16), to: Some(NodeId::new(17)), limit: 1, selector })
    );
}

#[test]
fn many_clients_at_a_time_get_each_its_own_answer() {
    let running = Box::start(0);
    std::thread::scope(|scope| {
        for number in 0..8u32 {
            let client = running.client();
            scope.spawn(move || {
                for turn in 0..25 {
                    let limit = 1 + (number + turn) % 5;
                    let list = client.list("", limit).unwrap_or_else(|failure| panic!("{failure}"));
                    assert_eq!(list.flows.len(), limit as usize);
                }
            });
        }
    });
}

#[test]
fn a_trace_comes_step_by_step_and_says_when_it_is_over() {
    let running = Box::start(3);
    let mut steps = Vec::new();
    let take = |step: &TraceStep| {
        steps.push(step.packet);
        Ok(())
    };
    let seen = running.client().trace("tcp".to_owned(), 3, LIMIT, take).unwrap();
    assert_eq!((seen, steps), (3, vec![0, 1, 2]));
    assert_eq!(
        running.traces.try_iter().collect::<Vec<_>>(),
        [3, 0],
        "the loop is told when nobody looks any more"
    );
    let none =
        Box::start(0).client().trace(String::new(), 1, Duration::from_millis(10), |_| Ok(()));
    assert_eq!(none.unwrap(), 0, "without packets the time ends it");
}

#[test]
fn one_trace_at_a_time_and_it_ends_with_its_client() {
    let running = Box::start(0);
    let mut first = running.by_hand();
    let request = TraceRequest { count: 5, wait_ms: 60_000, ..Default::default() };
    let followed = first.runtime.block_on(first.api.trace(request)).unwrap();
    assert_eq!(running.traces.recv_timeout(LIMIT), Ok(5));
    let second = || running.client().trace(String::new(), 1, Duration::from_millis(1), |_| Ok(()));
    assert!(refusal(second()).message.contains("another trace"));
    drop((followed, first));
    assert_eq!(running.traces.recv_timeout(LIMIT), Ok(0));
    until("the next trace may begin", || second().is_ok());
}

/// A box that drains many flows is too busy to confirm the start in time, and later to
/// report its progress. The client sends the drain once, and is told when the box
/// answers.
#[test]
fn who_watches_a_busy_box_waits() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let (requests, asked) = channel::<Request>();
    let server = control::listen_and_stop(&path, requests, Arc::new(|| {}), Arc::new(|| {}))
        .unwrap_or_else(|f| panic!("{f}"));
    let unknown = || Some(Err("nobody has drained that runtime"));
    let answers =
        [None, unknown(), Some(Ok(progress(1, false))), None, Some(Ok(progress(600_000, true)))];
    let answering = std::thread::spawn(move || {
        let mut answers = answers.into_iter();
        let mut orders = Vec::new();
        for asked in asked {
            match asked {
                // A dropped question is answered as one that took too long.
                Request::Order(order, _) => orders.push(order),
                Request::Progress(work, answer) => {
                    assert_eq!(work, Work::Draining(NodeId::new(16)));
                    match answers.next() {
                        Some(Some(Ok(progress))) => answer.give(progress),
                        Some(Some(Err(why))) => answer.refuse(why),
                        Some(None) => {}
                        None => panic!("it was done"),
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        orders
    });
    let client = Client::new(Some(&path)).unwrap_or_else(|f| panic!("{f}"));
    let mut seen = Vec::new();
    let done = client.drain(16, false).and_then(|work| work.watch(|now| seen.push(now.moved)));
    assert_eq!((done.map(|done| done.moved).ok(), seen), (Some(600_000), vec![1, 600_000]));
    drop(server);
    assert_eq!(
        answering.join().unwrap(),
        [Order::Drain { node: NodeId::new(16), force: false }],
        "it is asked for once"
    );
}

#[test]
fn stop_is_answered_then_done() {
    let running = Box::start(0);
    assert_eq!(running.client().stop().unwrap(), std::process::id());
    until("the box is told", || {
        running.stops.load(Ordering::SeqCst) == 1 && running.wakes.load(Ordering::SeqCst) == 1
    });
}

#[test]
fn a_box_whose_loop_has_ended_says_so() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let (requests, asked) = channel();
    let _server = control::listen_and_stop(&path, requests, Arc::new(|| {}), Arc::new(|| {}))
        .unwrap_or_else(|f| panic!("{f}"));
    drop(asked);
    let refused = refusal(Client::new(Some(&path)).unwrap_or_else(|f| panic!("{f}")).status());
    assert!(refused.message.contains("stopping"), "{refused}");
}

#[test]
fn a_box_that_does_not_speak_the_protocol_is_unavailable() {
    let scratch = Scratch::new();
    let path = scratch.0.join("odd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let odd = std::thread::spawn(move || {
        for said in ["no HTTP/2\n", ""] {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(said.as_bytes()).unwrap();
        }
    });
    for _ in 0..2 {
        let failure = refusal(Client::new(Some(&path)).unwrap_or_else(|f| panic!("{f}")).status());
        assert_eq!(failure.code, exit::UNAVAILABLE, "{failure}");
    }
    odd.join().unwrap();
}
