//! Claims of routes, by runtimes that have a flow's state.

use super::*;

/// A runtime's flow ends, and the runtime dies before its replica has heard of the end.
/// The replica does not revive the flow.
#[test]
fn a_claim_of_a_flow_that_ended_is_refused() {
    let mut bench = Bench::new();
    bench.send(1);
    bench.deliver();
    bench.release(1);
    let route = bench.route(1).expect("a route");
    let (owner, other) = if route.owner == X { (X, Y) } else { (Y, X) };
    bench.end(owner, 1, route.epoch.get());
    assert!(bench.route(1).is_none());
    bench.view(&[other], 2);
    assert_eq!(bench.claim(other, 1, route.epoch.get()), Grant::Refused);
    assert!(bench.route(1).is_none() && bench.switch.routes_to(other) == 0);
    // The key is opened again, by another flow.
    bench.send(1);
    bench.deliver();
    bench.release(1);
    let next = bench.route(1).expect("a route");
    assert_eq!(bench.claim(other, 1, route.epoch.get()), Grant::Refused);
    bench.take(other, 1, next.epoch.get());
}

/// The switch has forgotten a flow that lives. Its replica gets the route, even if an
/// earlier flow of the key has ended.
#[test]
fn a_claim_of_a_flow_that_may_live_is_granted() {
    let mut bench = Bench::new();
    // The switch has never heard of the flow.
    bench.take(X, 1, 40);
    assert_eq!(bench.route(1).map(|route| route.owner), Some(X));
    // An earlier flow has ended. The released packet of the next one was lost on its way
    // to the switch, which removes the idle route after a while.
    bench.send(2);
    bench.deliver();
    let first = bench.route(2).expect("a route");
    bench.end(first.owner, 2, first.epoch.get());
    bench.send(2);
    bench.deliver();
    let second = bench.route(2).expect("a route");
    bench.wait(10 * SECOND);
    assert!(bench.route(2).is_none());
    assert_eq!(bench.claim(Y, 2, first.epoch.get()), Grant::Refused);
    bench.take(Y, 2, second.epoch.get());
    // A claimed flow is real: it stays.
    bench.wait(10 * SECOND);
    assert!(bench.route(1).is_some() && bench.route(2).is_some());
}

/// A flow's owner is dead, and the claimant has an older state of the flow. A holder of
/// the latest state may claim it before the dead owner's routes are swept. If none does,
/// the route goes to the claimant that had to wait, with the packet that came meanwhile.
#[test]
fn an_older_claim_waits_for_the_sweep_of_a_dead_owner() {
    let dead_owner = |bench: &mut Bench, is_noticed_first: bool| {
        for port in 1..=3 {
            bench.send(port);
            bench.release(port);
        }
        bench.deliver();
        let Route { owner, epoch, .. } = bench.route(3).expect("a route");
        let epoch = epoch.get();
        let other = if owner == X { Y } else { X };
        if is_noticed_first {
            bench.switch.handle_gone(owner);
        }
        bench.view(&[other], 2);
        assert_eq!(bench.claim(other, 3, epoch - 1), Grant::AfterSweep);
        (owner, other, epoch)
    };
    let mut bench = Bench::new();
    let (owner, other, epoch) = dead_owner(&mut bench, false);
    bench.send(3);
    assert_eq!((bench.out.len(), bench.switch.held()), (0, 1));
    bench.peers[0].send_control(
        NodeId::SWITCH,
        &Control::Sweep { node: owner.node, incarnation: owner.incarnation, is_over: true },
    );
    bench.exchange();
    assert_eq!(
        bench.route(3).map(|route| (route.owner, route.epoch.get())),
        Some((other, epoch - 1))
    );
    assert_eq!(bench.sent_to(), [other], "it waits there");
    assert!(bench.take(other, 3, epoch - 1) > epoch);

    // The coordinator that would have the owner swept may be gone.
    for is_noticed_first in [false, true] {
        let mut bench = Bench::new();
        let (_, other, epoch) = dead_owner(&mut bench, is_noticed_first);
        bench.wait(30 * SECOND);
        assert_eq!(bench.claim(other, 3, epoch - 1), Grant::AfterSweep);
        bench.wait(SECOND);
        assert_eq!(bench.claim(other, 3, epoch - 1), Grant::Refused);
    }
    let mut bench = Bench::new();
    let (_, other, epoch) = dead_owner(&mut bench, true);
    // The replica with the latest state gets the route at any time.
    bench.take(other, 3, epoch);
}

/// The owner is dead, and a replica claims before the view says so. The view then comes
/// with the order to sweep the owner's routes. The claimant gets the route.
#[test]
fn a_claim_before_the_view_is_remembered() {
    let mut bench = Bench::new();
    bench.send(1);
    bench.release(1);
    bench.deliver();
    let Route { owner, epoch, .. } = bench.route(1).expect("a route");
    let epoch = epoch.get();
    let other = if owner == X { Y } else { X };
    assert_eq!(bench.claim(other, 1, epoch), Grant::AfterSweep);
    bench.view(&[other], 2);
    bench.sweep(owner, false);
    bench.send(1);
    assert_eq!(bench.sent_to(), [other]);
    assert!(bench.take(other, 1, epoch) > epoch);
}
