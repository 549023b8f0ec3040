//! New routes: which of them are flows, and which of them do not last.

use super::*;

/// Packets that no flow comes of fill the table. Seconds later there is room again, and
/// flows with a released packet are still there.
#[test]
fn a_route_over_which_nothing_was_released_does_not_last() {
    let mut bench = Bench::new();
    for from in 1..=64 {
        bench.send(from);
    }
    bench.deliver();
    bench.release(5);
    assert_eq!(bench.switch.len(), 64);
    // The routes' packets may wait for a recovery, and go on.
    bench.wait(TIMEOUT);
    assert_eq!(bench.switch.len(), 64);
    bench.send(6);
    bench.wait(6 * SECOND);
    let left: Vec<u16> = (1..=64).filter(|&from| bench.route(from).is_some()).collect();
    assert_eq!(left, [5, 6], "what was released stays, and what was sent lately");
    assert_eq!(bench.switch.routes_to(X) + bench.switch.routes_to(Y), 2);
    bench.wait(6 * SECOND);
    assert!(bench.route(5).is_some() && bench.route(6).is_none());
}

/// A runtime dies to which packets of new flows were sent while it stood still. Its
/// routes count as flows only if a packet was released, or if another runtime has the
/// flow.
#[test]
fn a_route_over_which_nothing_was_released_is_no_flow_that_could_be_lost() {
    let mut bench = Bench::new();
    let flows = |bench: &Bench| {
        bench.switch.flows_of(X).unwrap_or(0) + bench.switch.flows_of(Y).unwrap_or(0)
    };
    let routes = |bench: &Bench| bench.switch.routes_to(X) + bench.switch.routes_to(Y);
    for from in 1..=20 {
        bench.send(from);
    }
    bench.deliver();
    assert_eq!((routes(&bench), flows(&bench)), (20, 0));
    for from in (1..=5).chain(1..=3) {
        bench.release(from);
    }
    assert_eq!((routes(&bench), flows(&bench)), (20, 5));
    let first = bench.route(1).expect("a route");
    bench.end(first.owner, 1, first.epoch.get());
    assert_eq!(flows(&bench), 4);
    bench.wait(TIMEOUT);
    bench.wait(6 * SECOND);
    assert_eq!((routes(&bench), flows(&bench)), (4, 4));
    bench.send(30);
    bench.deliver();
    let route = bench.route(30).expect("a route");
    let other = if route.owner == X { Y } else { X };
    let before = bench.switch.flows_of(other).expect("it is whole");
    bench.view(&[other], 2);
    bench.take(other, 30, route.epoch.get());
    assert_eq!(bench.switch.flows_of(other), Some(before + 1));
}

/// A runtime dies that had flows without a copy. The first packet of one of them leaves
/// when the runtime is known to be dead. All of these are lost; a flow of which no packet
/// ever left is not.
#[test]
fn what_nobody_claims_is_lost_if_something_of_it_was_released() {
    let mut bench = Bench::new();
    for from in 1..=40 {
        bench.send(from);
    }
    bench.deliver();
    let owner = bench.route(1).expect("a route").owner;
    let other = if owner == X { Y } else { X };
    let of_it: Vec<u16> = (1..=40)
        .filter(|from| bench.route(*from).is_some_and(|route| route.owner == owner))
        .collect();
    of_it[..4].iter().for_each(|from| bench.release(*from));
    let epoch = bench.route(of_it[0]).expect("a route").epoch.get();
    bench.switch.handle_gone(owner);
    bench.view(&[other], 2);
    // Another runtime has released the packet.
    bench.release(of_it[4]);
    bench.take(other, of_it[0], epoch);
    assert_eq!(bench.switch.lost_of(owner), None);
    bench.sweep(owner, false);
    assert_eq!(bench.switch.lost_of(owner), Some(4));
    assert_eq!(bench.unclaimed(), [], "it may be swept again");
    bench.sweep(owner, true);
    assert_eq!((bench.switch.lost_of(owner), bench.switch.lost_of(other)), (Some(4), None));
    assert_eq!(bench.unclaimed(), [(owner, 4)]);
    // The coordinator's next incarnation may know nothing of it.
    let mut next =
        Fabric::new(Peer { node: NodeId::COORDINATOR, incarnation: 2 }, FabricConfig::default());
    next.set_peer(bench.switch.me());
    next.send_control(NodeId::SWITCH, &Control::Account { handled: 0 });
    bench.switch.fabric().set_peer(next.me());
    bench.peers[0] = next;
    bench.exchange();
    assert_eq!(bench.unclaimed(), [(owner, 4)]);
}

/// Many flows' first packets meet a full ring. These packets leave no routes behind, and
/// do not count as a runtime's load.
#[test]
fn a_first_packet_that_a_full_ring_refuses_leaves_no_route() {
    let mut bench = Bench::new();
    for from in 1..=60 {
        bench.send(from);
    }
    bench.deliver_after(60);
    assert!(bench.switch.is_empty());
    assert_eq!(bench.switch.routes_to(X) + bench.switch.routes_to(Y), 0);
    // The next attempt is a first packet again.
    bench.send(1);
    bench.deliver();
    assert!(bench.route(1).is_some());
}

/// A ring is full for some of a flow's packets. The flow began with another packet, and
/// keeps its route.
#[test]
fn a_full_ring_does_not_take_the_route_of_a_flow_that_began() {
    let mut bench = Bench::new();
    // Another packet was delivered before or after the refused one, or a packet of the
    // flow has been released.
    bench.send(1);
    bench.deliver();
    bench.send(1);
    bench.deliver_after(1);
    let route = bench.route(1);
    assert!(route.is_some());
    bench.send(2);
    bench.send(2);
    bench.deliver_after(1);
    assert!(bench.route(2).is_some());
    bench.send(4);
    bench.release(4);
    bench.deliver_after(1);
    assert!(bench.route(4).is_some());
    assert_eq!(bench.route(1).map(|route| route.epoch.get()), route.map(|route| route.epoch.get()));
    // The ring refuses all packets of this flow.
    bench.send(3);
    bench.send(3);
    bench.deliver_after(2);
    assert!(bench.route(3).is_none());
}

/// A runtime without room for a new flow gets the next ones only if the others have none
/// either, however few flows it has. After a moment it is tried again.
#[test]
fn a_full_runtime_gets_no_new_flows_for_a_moment() {
    let mut bench = Bench::new();
    for from in 1..=2 {
        bench.send(from);
    }
    bench.deliver();
    bench.runtime(X).send(NodeId::SWITCH, kind::FULL, &[]).expect("room");
    bench.exchange();
    for from in 3..=10 {
        bench.send(from);
    }
    assert_eq!(bench.sent_to(), [Y; 8]);
    bench.runtime(Y).send(NodeId::SWITCH, kind::FULL, &[]).expect("room");
    bench.exchange();
    bench.send(11);
    assert_eq!(bench.sent_to(), [X], "both are full: the one with fewer flows");
    bench.now += SECOND;
    bench.send(12);
    assert_eq!(bench.sent_to(), [X]);
}
