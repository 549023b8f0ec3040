//! Packets on which runtimes end or functions panic.

use super::*;

/// A runtime ends with the second of a flow's three packets in flight. The heir of the
/// flow gets that packet with a mark, and ends with it, too. The packet is set aside, and
/// its flow is closed: its route is gone, and none of its packets is let in for a minute.
/// Other flows are not concerned.
#[test]
fn a_packet_that_ends_two_runtimes_is_set_aside() {
    let mut bench = Bench::with_log();
    (0..3).for_each(|_| bench.send(5));
    bench.release(5);
    let stamps = bench.stamps();
    let (owner, epoch) =
        bench.route(5).map(|route| (route.owner, route.epoch.get())).expect("a route");
    let heir = if owner == X { Y } else { X };
    bench.switch.handle_suspect(stamps[1], true, bench.now);
    bench.view(&[heir], 2);
    let Grant::Given { epoch: given, logged: 3 } = bench.claim(heir, 5, epoch) else {
        panic!("with three packets")
    };
    let len = datagram(5, false).len();
    assert_eq!(bench.replay(heir, given.get(), 3), [(false, len), (true, len), (false, len)]);
    assert_eq!(bench.switch.take_set_aside(), []);
    // From another host the news comes as a message.
    bench.suspect(Peer { node: NodeId::MANAGER, incarnation: 1 }, &stamps[1..2]);
    assert_eq!(bench.switch.drops().get(DropReason::Quarantined), 1);
    let aside = bench.switch.take_set_aside();
    assert_eq!(aside.len(), 1);
    assert_eq!(
        (aside[0].key, aside[0].meta.stamp, &*aside[0].bytes),
        (bench.key(5, false), stamps[1], &*datagram(5, false))
    );
    assert!(bench.route(5).is_none());
    assert_eq!(bench.claim(heir, 5, given.get()), Grant::Refused, "its flow is no more");
    for (from, is_there) in [(5, false), (6, true)] {
        bench.send(from);
        assert_eq!(bench.route(from).is_some(), is_there);
    }
    assert_eq!(bench.switch.drops().get(DropReason::FlowClosed), 1);
    bench.wait(61 * SECOND);
    bench.send(5);
    assert!(bench.route(5).is_some(), "it may begin anew");
}

/// Functions that panic on a packet end no process. The second time the packet is not
/// sent again, and its flow goes on. Malformed reports are counted, and a runtime's
/// report closes no flow.
#[test]
fn a_packet_on_which_functions_panic_twice_is_not_sent_again() {
    let mut bench = Bench::with_log();
    (0..2).for_each(|_| bench.send(5));
    bench.release(5);
    let stamps = bench.stamps();
    let (owner, epoch) =
        bench.route(5).map(|route| (route.owner, route.epoch.get())).expect("a route");
    let heir = if owner == X { Y } else { X };
    bench.suspect(owner, &stamps[..1]);
    bench.view(&[heir], 2);
    let Grant::Given { epoch: given, logged: 2 } = bench.claim(heir, 5, epoch) else {
        panic!("with two packets")
    };
    let len = datagram(5, false).len();
    assert_eq!(bench.replay(heir, given.get(), 2), [(true, len), (false, len)]);
    bench.suspect(heir, &stamps[..1]);
    assert_eq!(
        bench.replay(heir, given.get(), 2),
        [(true, 0), (false, len)],
        "it is named, and not there"
    );
    assert_eq!(
        (bench.switch.take_set_aside().len(), bench.switch.drops().get(DropReason::Quarantined)),
        (1, 1)
    );
    assert!(bench.route(5).is_some_and(|route| route.owner == heir));
    let malformed = bench.switch.drops().get(DropReason::Malformed);
    bench.runtime(heir).send(NodeId::SWITCH, kind::SUSPECT, &[1, 2, 3]).expect("room");
    bench.exchange();
    assert_eq!(bench.switch.drops().get(DropReason::Malformed), malformed + 1);
}
