//! The coordinator is elected among three equal hosts: the one that leads dies with its host, is cut off, or sleeps, and another one goes on.

use super::world::{HOSTS, World};
use holdfast_node::message::{MemberState, Order, Refusal};

/// The flows of a failed host's runtimes are with the others, and nothing that was recovered took longer than the whole test.
fn check_recovered(world: &mut World, lost: usize) {
    let failovers: Vec<_> = world.coordinator().failovers().cloned().collect();
    assert!(failovers.len() >= lost, "{failovers:?}");
    for failover in failovers {
        let recovered_at = failover.recovered_at.expect("it is over");
        let took = recovered_at.checked_sub(failover.detected_at).expect("it was not over before it began");
        assert!(took < 10_000_000_000, "{failover:?}");
    }
}

/// The first host leads and serves: the one that led before has gone, and it was the only candidate.
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

/// A coordinator begins while nothing that it says arrives; when its link is mended, it is heard by the host that serves a moment later than by the other one. How
/// long it had heard nothing of that host says nothing about it.
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

/// The host that serves and leads dies, comes back, and the next one that leads dies too: each time another goes on from the log, gives the dead host up,
/// and every flow goes on. New flows are let in, and the survivors of both are safe from the next.
#[test]
fn two_hosts_that_lead_die_one_after_the_other() {
    let mut world = one_that_does_both();
    let mut serving = 0;
    for (round, (dead, next)) in [(0, 1), (1, 2), (2, 0)].into_iter().enumerate() {
        world.kill(dead);
        // A lease ends.
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
        assert!(flows.values().all(|packets| *packets == round as u64 + 2), "round {round}: {flows:?}");
        assert!(!world.coordinator().survives_host());
        check_recovered(&mut world, 2);
        world.revive(dead);
        world.pass(2000);
        world.check_safe(&format!("round {round}"));
    }
    assert_eq!(world.send(serving, 60), 60);
}

/// A host that leads and does not serve dies: the ports are served on as if nothing had happened, and its flows are with the others.
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

/// Nobody leads for a while, because what elects is away: traffic goes on, and the next one finds everybody where they were. An order that nobody
/// had taken is refused when another leads, and what is asked of that one is done.
#[test]
fn nobody_leads_for_a_while() {
    let mut world = World::of_equals(1);
    assert_eq!(world.send(0, 40), 40);
    world.end_coordinator(1);
    let unheard = world.hosts[0].hub.manager.order(Order::Drain { node: 17, force: false });
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
    let heard = manager.order(Order::Drain { node: 18, force: false });
    world.pass(100);
    assert!(matches!(world.hosts[0].hub.manager.take_answer(heard), Some(Ok(_))));
    let drained: Vec<u16> =
        world.coordinator().status().filter(|runtime| runtime.is_drained).map(|runtime| runtime.member.node).collect();
    assert_eq!(drained, [18]);
}

/// One that leads sleeps with its whole host, and wakes up when another leads and has given that host up. Before it sees that its lease is over it says what it
/// was about to say, and more: whoever has heard of the other does not listen, and what its own host takes for true does no harm.
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
    // Its own host's runtimes are known to the one that leads, and to nobody else.
    let there: Vec<_> = world.hosts[0].runtimes.keys().copied().collect();
    assert!(there.iter().all(|peer| members.iter().any(|member| member.peer() == *peer)), "{there:?}");
}

/// A runtime fails, and while it is being recovered from the host that leads dies. The next one, whose clock shows another day, brings it to an end, and
/// says how long it took by its own.
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
        let is_open = |world: &mut World| world.coordinator().failovers().any(|failover| failover.recovered_at.is_none());
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

/// A host is cut off from the others, in one direction or in both: it says that it is not connected, and soon; the others still are. With whole links all are.
#[test]
fn a_host_knows_whether_it_is_connected() {
    let (out, back) = ([(0, 1), (0, 2)], [(1, 0), (2, 0)]);
    let connected = |world: &World| world.hosts.iter().map(|host| host.hub.manager.is_connected()).collect::<Vec<_>>();
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

/// The host that leads is not heard by the others, whether it hears them or not. What it decides about itself and everybody else nobody learns; but it lies in the log, and the one that is
/// elected when it has given its place up goes on with it.
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
