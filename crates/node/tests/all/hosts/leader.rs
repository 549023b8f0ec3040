//! The coordinator is elected among three equal hosts. The leading one dies with its
//! host, is cut off, or sleeps, and another goes on.

use super::world::{HOSTS, World};
use holdfast_node::message::{MemberState, Order, Refusal};
use holdfast_wire::NodeId;

/// Checks that at least `lost` failures have been recovered from, each within ten
/// seconds.
fn check_recovered(world: &mut World, lost: usize) {
    let failovers: Vec<_> = world.coordinator().failovers().cloned().collect();
    assert!(failovers.len() >= lost, "{failovers:?}");
    for failover in failovers {
        let recovered_at = failover.recovered_at.expect("it is over");
        let took = recovered_at
            .checked_sub(failover.detected_at)
            .expect("it was not over before it began");
        assert!(took < 10_000_000_000, "{failover:?}");
    }
}

/// A world whose first host leads and serves: the previous leader has gone, and the first
/// host was the only candidate.
fn one_that_does_both() -> World {
    let mut world = World::of_equals(1);
    world.end_coordinator(1);
    world.elect(0);
    world.pass(600);
    world.check_safe("the first host leads");
    assert_eq!(world.serving(), [0]);
    assert_eq!(world.send(0, 40), 40);
    world
}

/// A coordinator begins while none of its frames arrives. When its link is mended, the
/// serving host hears it a moment later than the other one. The coordinator's long
/// silence from that host says nothing about the host.
#[test]
fn who_leads_begins_cut_off() {
    let mut world = World::of_equals(2);
    let serving = world.serving();
    assert_eq!(world.send(serving[0], 40), 40);
    world.end_coordinator(2);
    world.cut = vec![(2, 0), (2, 1)];
    world.elect(2);
    world.pass(1500);
    world.cut = vec![(2, serving[0]), (serving[0], 2)];
    let connected = |world: &World| world.hosts[2].hub.manager.is_connected();
    for _ in 0..200 {
        if connected(&world) {
            break;
        }
        world.pass(10);
    }
    assert!(connected(&world), "to the other one");
    world.pass(60);
    world.cut.clear();
    world.pass(1500);
    assert_eq!(world.serving(), serving);
    assert!(world.coordinator().failovers().next().is_none());
    assert_eq!(world.send(serving[0], 40), 40);
    world.check_safe("the link is mended");
}

/// The host that serves and leads dies and comes back, and the next leading one dies too.
/// Each time another goes on from the log and gives the dead host up, and every flow goes
/// on. New flows are let in, and both hosts' survivors are safe from the next death.
#[test]
fn two_hosts_that_lead_die_one_after_the_other() {
    let mut world = one_that_does_both();
    let mut serving = 0;
    for (round, (dead, next)) in [(0, 1), (1, 2), (2, 0)].into_iter().enumerate() {
        world.kill(dead);
        // A lease ends in this time.
        world.pass(2000);
        world.elect(next);
        world.pass(1500);
        let [now] = world.serving()[..] else { panic!("{:?} serve", world.serving()) };
        assert_ne!(now, dead);
        serving = now;
        assert_eq!(world.send(serving, 40), 40, "round {round}");
        let living: Vec<usize> = (0..HOSTS).filter(|at| *at != dead).collect();
        let flows = world.flows(&living);
        assert_eq!(flows.len(), 40, "round {round}");
        assert!(
            flows.values().all(|packets| *packets == round as u64 + 2),
            "round {round}: {flows:?}"
        );
        assert!(!world.coordinator().survives_host());
        check_recovered(&mut world, 2);
        world.revive(dead);
        world.pass(2000);
        world.check_safe(&format!("round {round}"));
    }
    assert_eq!(world.send(serving, 60), 60);
}

/// A host that leads and does not serve dies. The ports are served on as if nothing had
/// happened, and its flows are with the others.
#[test]
fn a_host_dies_that_leads_and_does_not_serve() {
    let mut world = World::of_equals(2);
    assert_eq!(world.send(0, 40), 40);
    assert!(world.flows(&[2]).len() > 3, "flows are on every host");
    world.kill(2);
    world.pass(2000);
    assert_eq!(world.serving(), [0]);
    world.elect(1);
    world.pass(1500);
    assert_eq!((world.serving(), world.send(0, 60)), (vec![0], 60));
    assert_eq!(world.flows(&[0, 1]).len(), 60);
    assert_eq!(world.flows(&[0, 1]).values().filter(|packets| **packets == 2).count(), 40);
    check_recovered(&mut world, 2);
}

/// No host leads for a while, because the election is away. Traffic goes on, and the next
/// leader finds all processes where they were. An order that no leader had taken is
/// refused when another leads, and new orders are carried out.
#[test]
fn nobody_leads_for_a_while() {
    let mut world = World::of_equals(1);
    assert_eq!(world.send(0, 40), 40);
    world.end_coordinator(1);
    let unheard =
        world.hosts[0].hub.manager.order(Order::Drain { node: NodeId::new(17), force: false });
    world.pass(5000);
    assert_eq!(world.hosts[0].hub.manager.take_answer(unheard), None);
    assert_eq!((world.serving(), world.send(0, 60)), (vec![0], 60));
    world.elect(2);
    world.pass(1000);
    assert_eq!((world.serving(), world.send(0, 60)), (vec![0], 60));
    assert!(world.coordinator().failovers().next().is_none());
    world.check_safe("the next one leads");
    let manager = &mut world.hosts[0].hub.manager;
    assert_eq!(manager.take_answer(unheard), Some(Err(Refusal::Away)));
    let heard = manager.order(Order::Drain { node: NodeId::new(18), force: false });
    world.pass(100);
    assert!(matches!(world.hosts[0].hub.manager.take_answer(heard), Some(Ok(_))));
    let drained: Vec<u16> = world
        .coordinator()
        .status()
        .filter(|runtime| runtime.is_drained)
        .map(|runtime| runtime.member.node.get())
        .collect();
    assert_eq!(drained, [18]);
}

/// A leader sleeps with its whole host, and wakes up when another one leads and has given
/// that host up. Before it sees that its lease is over, it sends its pending messages,
/// and more. Processes that have heard of the other leader ignore them, and its own host
/// does no harm by believing them.
#[test]
fn who_slept_while_another_was_elected_is_not_listened_to() {
    let mut world = one_that_does_both();
    world.hosts[0].is_stopped = true;
    world.pass(2000);
    world.elect(1);
    world.pass(1500);
    let before = world.flows(&[1, 2]);
    assert_eq!(before.len(), 40);
    world.hosts[0].is_stopped = false;
    world.pass(600);
    world.end_coordinator(0);
    world.pass(2000);
    world.check_safe("it has woken up");
    let members: Vec<_> = world.coordinator().status().map(|runtime| runtime.member).collect();
    assert!(members.iter().all(|member| member.state == MemberState::Running), "{members:?}");
    let [serving] = world.serving()[..] else { panic!("{:?} serve", world.serving()) };
    assert_eq!(world.send(serving, 40), 40);
    assert!(world.flows(&[0, 1, 2]).values().all(|packets| *packets == 2));
    // The present leader alone knows the runtimes of that host.
    let there: Vec<_> = world.hosts[0].runtimes.keys().copied().collect();
    assert!(
        there.iter().all(|peer| members.iter().any(|member| member.peer() == *peer)),
        "{there:?}"
    );
}

/// A runtime fails, and the leading host dies during the recovery. The next leader, whose
/// clock shows another day, completes the recovery, and gives its duration by its own
/// clock.
#[test]
fn a_recovery_outlives_the_one_that_began_it() {
    for (leader, next) in [(0, 1), (1, 2)] {
        let mut world = World::of_equals(leader);
        let serving = world.serving()[0];
        assert_eq!(world.send(serving, 40), 40);
        let host = &mut world.hosts[2];
        let (dead, _) = host.runtimes.pop_first().expect("runtimes are on every host");
        host.hub.handle_ended(dead);
        host.hub.handle_buried(dead);
        let is_open = |world: &mut World| {
            world.coordinator().failovers().any(|failover| failover.recovered_at.is_none())
        };
        for _ in 0..50 {
            if !is_open(&mut world) {
                world.pass(2);
            }
        }
        assert!(is_open(&mut world), "it is being recovered from");
        world.kill(leader);
        world.pass(2000);
        world.elect(next);
        world.pass(1500);
        check_recovered(&mut world, 3);
    }
}

/// A host is cut off from the others, in one direction or in both. The host soon says
/// that it is not connected, while the others still are. With whole links all are.
#[test]
fn a_host_knows_whether_it_is_connected() {
    let (out, back) = ([(0, 1), (0, 2)], [(1, 0), (2, 0)]);
    let connected = |world: &World| {
        world.hosts.iter().map(|host| host.hub.manager.is_connected()).collect::<Vec<_>>()
    };
    for cut in [out.to_vec(), back.to_vec(), [out, back].concat()] {
        let mut world = World::of_equals(1);
        assert_eq!(connected(&world), [true; HOSTS]);
        world.cut = cut.clone();
        world.pass(160);
        assert_eq!(connected(&world), [false, true, true], "{cut:?}");
        world.cut.clear();
        world.pass(100);
        assert_eq!(connected(&world), [true; HOSTS], "{cut:?}");
    }
}

/// The others do not hear the leading host, whether it hears them or not. Its decisions
/// about itself and all others do not reach them. The decisions lie in the log, and the
/// host that is elected after it has given up its place goes on with them.
#[test]
fn who_leads_is_not_heard() {
    for cut in [vec![(0, 1), (0, 2)], vec![(0, 1), (0, 2), (1, 0), (2, 0)]] {
        let mut world = one_that_does_both();
        world.cut = cut;
        world.pass(600);
        world.end_coordinator(0);
        world.elect(2);
        world.pass(2000);
        let [serving] = world.serving()[..] else { panic!("{:?} serve", world.serving()) };
        assert_ne!(serving, 0);
        assert_eq!(world.send(serving, 40), 40);
        assert!(world.flows(&[1, 2]).values().all(|packets| *packets == 2));
        check_recovered(&mut world, 2);
        world.cut.clear();
        world.pass(2000);
        world.check_safe("the links are whole again");
        assert_eq!(world.send(serving, 40), 40);
        assert!(world.flows(&[0, 1, 2]).values().all(|packets| *packets == 3));
    }
}
