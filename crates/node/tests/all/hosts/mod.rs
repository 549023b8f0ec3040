//! Three hosts that make one box: its flows, and the service of its ports, when a host
//! dies or is cut off.

mod leader;
mod planned;
mod switches;
mod world;

use holdfast_node::message::{MemberState, Protected};
use holdfast_protection::{Peer, Plan};
use holdfast_wire::NodeId;
use world::{HOSTS, MILLISECOND, WITNESS, World};

/// The host that serves dies with all its processes. The other begins to serve, and every
/// flow goes on there where it was.
#[test]
fn the_host_that_serves_dies() {
    let mut world = World::new();
    assert_eq!(world.send(0, 40), 40);
    assert_eq!(world.send(0, 40), 40);
    world.kill(0);
    world.pass(1000);
    assert_eq!(world.serving(), [1]);
    assert_eq!(world.send(1, 40), 40);
    let flows = world.flows(&[1]);
    assert_eq!(flows.len(), 40, "no flow ends because the other host's clock shows another day");
    assert!(flows.values().all(|packets| *packets == 3), "{flows:?}");
    assert!(!world.coordinator().survives_host());
    // The host comes back, and all flows are safe again.
    world.revive(0);
    world.pass(1500);
    assert_eq!((world.serving(), world.coordinator().protected()), (vec![1], Protected::Yes));
    assert!(world.coordinator().survives_host());
    assert_eq!(world.send(1, 40), 40);
    assert!(world.flows(&[0, 1]).values().all(|packets| *packets == 4));
}

/// A host that does not serve dies: its flows go on at the other.
#[test]
fn a_host_of_runtimes_dies() {
    let mut world = World::new();
    assert_eq!(world.send(0, 40), 40);
    assert!(world.flows(&[1]).len() > 5, "flows are on both hosts");
    world.kill(1);
    world.pass(600);
    assert_eq!((world.serving(), world.send(0, 40)), (vec![0], 40));
    assert!(world.flows(&[0]).values().all(|packets| *packets == 2));
    assert_eq!(world.flows(&[0]).len(), 40);
}

/// A runtime of another host ends, or a whole host dies, while there is no coordinator.
/// The host that serves knows it, and new flows go to runtimes that live.
#[test]
fn new_flows_are_not_for_the_dead_while_there_is_no_coordinator() {
    let routes_to = |world: &World, peer: Peer| world.hosts[0].hub.switch().routes_to(peer);
    let runtimes =
        |world: &World, at: usize| world.hosts[at].runtimes.keys().copied().collect::<Vec<_>>();
    let mut world = World::new();
    world.kill(WITNESS);
    world.pass(20);
    let (dead, alive) = (runtimes(&world, 1)[0], runtimes(&world, 1)[1]);
    world.end(1, dead);
    world.pass(20);
    world.send(0, 60);
    assert_eq!((world.serving(), routes_to(&world, dead)), (vec![0], 0));
    assert_eq!(routes_to(&world, alive), 20, "the three others get a third each");

    let mut world = World::of_equals(2);
    let dead = runtimes(&world, 2);
    world.kill(2);
    world.pass(200);
    world.send(0, 60);
    assert_eq!((world.serving(), dead.len()), (vec![0], 2));
    assert!(dead.iter().all(|peer| routes_to(&world, *peer) == 0));
}

/// A coordinator waits for a processor before each of its turns, longer than a host may
/// be silent, and a host's manager begins anew twice. Beats that the coordinator misses
/// between its turns are no silence: the host's runtimes are not given up.
#[test]
fn a_manager_begins_anew_while_the_coordinator_waits() {
    for at in [0, 1] {
        let mut world = World::new();
        assert_eq!(world.send(0, 40), 40);
        // The coordinator knows the managers' next incarnations only once they have
        // answered it.
        world.coordinator_waits = 130 * MILLISECOND;
        for pause in [400, 130, 1300] {
            world.pass(pause);
            if pause < 1000 {
                world.succeed(at);
            }
        }
        assert_eq!(world.coordinator().failovers().count(), 0, "host {at}");
        world.coordinator_waits = 0;
        world.pass(800);
        world.check_safe("nobody has failed");
        assert_eq!(world.flows(&[0, 1]).len(), 40);
    }
}

/// The coordinator's host dies: traffic goes on, and when the host is back all is the
/// same as before.
#[test]
fn the_witness_dies() {
    let mut world = World::new();
    assert_eq!(world.send(0, 40), 40);
    world.kill(WITNESS);
    world.pass(2000);
    assert_eq!((world.serving(), world.send(0, 60)), (vec![0], 60));
    world.revive(WITNESS);
    world.elect(WITNESS);
    world.pass(1000);
    assert_eq!((world.serving(), world.send(0, 60)), (vec![0], 60));
    assert!(world.coordinator().failovers().next().is_none());
}

/// The host that serves is cut off from the others, in one direction or in both, while
/// clients still reach it. The host stops before another begins. When the links are whole
/// again, its runtimes are strangers, and new ones take their places.
#[test]
fn the_host_that_serves_is_cut_off() {
    let (out, back) = ([(0, 1), (0, 2)], [(1, 0), (2, 0)]);
    for cut in [out.to_vec(), back.to_vec(), [out, back].concat()] {
        let mut world = World::new();
        assert_eq!(world.send(0, 40), 40);
        world.cut = cut.clone();
        for _ in 0..60 {
            // The host's packets are released by the host that is to serve, or not at
            // all.
            world.send(0, 40);
        }
        assert_eq!(world.serving(), [1], "{cut:?}");
        assert_eq!(world.send(1, 40), 40, "{cut:?}");
        assert_eq!(world.send(0, 40), 0, "{cut:?}");
        world.cut.clear();
        world.pass(1500);
        assert_eq!(
            (world.serving(), world.coordinator().protected()),
            (vec![1], Protected::Yes),
            "{cut:?}"
        );
        assert!(world.coordinator().survives_host(), "{cut:?}");
        assert_eq!(world.send(1, 40), 40, "{cut:?}");
        assert!(
            world
                .coordinator()
                .status()
                .all(|runtime| runtime.member.state == MemberState::Running)
        );
    }
}

/// A host that hears no other is about to be given up, although it is heard. No flow
/// counts as safe as long as it says so, and all is well when it hears again.
#[test]
fn nothing_is_safe_while_a_host_is_alone() {
    let mut world = World::new();
    assert_eq!(world.send(0, 40), 40);
    world.cut = vec![(0, 1), (2, 1)];
    world.pass(180);
    assert!(!world.hosts[1].hub.manager.is_connected());
    assert_eq!(world.coordinator().protected(), Protected::Resynchronising);
    assert!(!world.coordinator().survives_host());
    world.cut.clear();
    world.pass(200);
    assert!(world.coordinator().failovers().next().is_none());
    world.check_safe("it hears again");
}

/// Replicas are on the other host. If there is none, they are on their flows' host, and
/// move as soon as there is another again.
#[test]
fn replicas_lie_on_the_other_host() {
    let mut world = World::new();
    assert_eq!(world.send(0, 40), 40);
    let hosts_of = |world: &mut World| -> Vec<(u16, u16)> {
        let status: Vec<_> = world.coordinator().status().map(|runtime| runtime.member).collect();
        let host = |node: NodeId| {
            status.iter().find(|member| member.node == node).map_or(99, |member| member.host)
        };
        let mut pairs = Vec::new();
        for at in [0, 1] {
            for (peer, (runtime, _)) in &world.hosts[at].runtimes {
                let flows = runtime.flows(0).expect("a chain");
                let owned = flows
                    .iter()
                    .filter(|(_, header)| header.life() == holdfast_protection::flows::Life::Owned);
                pairs
                    .extend(owned.map(|(_, header)| (host(peer.node), host(header.holder().node))));
            }
        }
        pairs
    };
    assert!(hosts_of(&mut world).iter().all(|(owner, replica)| owner != replica && *replica < 2));
    world.kill(1);
    world.pass(1000);
    assert_eq!(hosts_of(&mut world).len(), 40);
    assert!(hosts_of(&mut world).iter().all(|pair| *pair == (0, 0)));
    world.revive(1);
    world.pass(1500);
    assert!(hosts_of(&mut world).iter().all(|(owner, replica)| owner != replica && *replica < 2));
}

/// The living managers' answers to whether the box is ready.
fn is_ready(world: &World) -> Vec<bool> {
    let there = world.hosts.iter().filter(|host| !host.is_stopped);
    there.map(|host| host.hub.manager.is_ready()).collect()
}

/// A box that has been ready loses the host that serves. The runtimes there stay missing,
/// and the box is as ready as before all the same. The host that serves next, and a
/// manager that begins only then, open their ports.
#[test]
fn a_box_that_was_ready_is_ready_whoever_is_missing() {
    let mut world = World::new();
    assert_eq!(is_ready(&world), [true; HOSTS]);
    world.kill(0);
    // Before the start's time-out is over, it is not known that the host does not come.
    for _ in 0..20 {
        world.pass(10);
        assert_eq!(is_ready(&world), [true; HOSTS - 1]);
    }
    world.pass(200);
    assert_eq!(world.serving(), [1]);
    assert!(!world.coordinator().is_ready(), "two places are empty, and not long enough");
    world.revive(WITNESS);
    world.pass(100);
    assert_eq!(is_ready(&world), [true; HOSTS - 1], "also a manager that has just begun");
}

/// The protection may choose where packets wait for their states. Runtimes on the serving
/// host keep their packets, because a packet handed over would come back. Runtimes on the
/// other host hand packets over to the serving one, where they have to go anyway. When
/// the other host begins to serve, it is the other way round.
#[test]
fn packets_wait_where_that_costs_less() {
    let mut world = World::with(Plan::NFVACTOR_AUTO);
    let owned = |world: &World, at: usize| world.flows(&[at]).len();
    for (serving, flows) in [(0, 60u8), (1, 120)] {
        // Each choice is watched for a while before it changes.
        for _ in 0..20 {
            assert_eq!(world.send(serving, flows), usize::from(flows));
        }
        world.handed = [0; HOSTS];
        assert_eq!(world.send(serving, flows), usize::from(flows));
        let other = 1 - serving;
        assert!(owned(&world, 0) > 5 && owned(&world, 1) > 5);
        assert_eq!(
            (world.handed[serving], world.handed[other]),
            (0, owned(&world, other)),
            "host {serving} serves"
        );
        if serving == 0 {
            world.kill(0);
            world.pass(1000);
            assert_eq!((world.serving(), world.send(1, 60)), (vec![1], 60));
            world.revive(0);
            world.pass(1500);
        }
    }
}
