//! Two switches that divide the ports, each served by its own host; their flows have the
//! same keys.

use super::world::World;
use holdfast_node::message::{Cause, Protected};
use holdfast_protection::Plan;

const RELEASES: [Plan; 3] = [Plan::NFVACTOR, Plan::NFVACTOR_AT_SOURCE, Plan::NFVACTOR_AUTO];

/// Checks that every flow of both switches has one owner on these hosts, and has seen so
/// many packets.
fn check_flows(world: &World, hosts: &[usize], packets: u64, when: &str) {
    for switch in [0, 1] {
        let flows = world.flows_of(switch, hosts);
        assert_eq!(flows.len(), 40, "switch {switch}, {when}");
        assert!(flows.values().all(|seen| *seen == packets), "switch {switch}, {when}: {flows:?}");
    }
}

/// Both switches carry flows at the same time, on the same runtimes, on two hosts. A host
/// that serves a switch dies, and the other host serves both. The dead host comes back,
/// and the other one dies.
#[test]
fn hosts_of_switches_die_one_after_the_other() {
    for plan in RELEASES {
        for dead in [0usize, 1] {
            let mut world = World::of_two_switches(plan);
            let other = 1 - dead;
            assert_eq!((world.send_to(0, 0, 40), world.send_to(1, 1, 40)), (40, 40));
            check_flows(&world, &[0, 1, 2], 1, "at the beginning");
            world.kill(dead);
            world.pass(600);
            let serving = |world: &World| [0, 1].map(|switch| world.serving_switch(switch)[0]);
            assert_eq!(serving(&world)[other], other, "what need not move stays");
            let places = serving(&world);
            assert_eq!(
                (world.send_to(0, places[0], 40), world.send_to(1, places[1], 40)),
                (40, 40),
                "{dead} is dead"
            );
            check_flows(&world, &[other, 2], 2, "one is dead");
            assert!(!world.coordinator().survives_host());
            world.revive(dead);
            world.pass(1500);
            world.check_safe("it is back");
            assert_eq!(serving(&world), places, "what has moved stays");
            assert_eq!(
                (world.send_to(0, places[0], 40), world.send_to(1, places[1], 40)),
                (40, 40)
            );
            world.kill(other);
            world.pass(600);
            let places = serving(&world);
            assert_eq!(
                (world.send_to(0, places[0], 40), world.send_to(1, places[1], 40)),
                (40, 40),
                "{other} is dead"
            );
            check_flows(&world, &[dead, 2], 4, "the other one is dead");
            world.revive(other);
            world.pass(1500);
            world.check_safe("both are back");
        }
    }
}

/// A runtime dies whose flows come from both switches. The runtime is fenced at both
/// before its flows are taken over.
#[test]
fn a_runtime_of_both_dies() {
    for plan in RELEASES {
        for host in 0..3 {
            let mut world = World::of_two_switches(plan);
            assert_eq!((world.send_to(0, 0, 40), world.send_to(1, 1, 40)), (40, 40));
            let host = &mut world.hosts[host];
            let (dead, _) = host.runtimes.pop_first().expect("runtimes are on every host");
            host.hub.handle_ended(dead);
            host.hub.handle_buried(dead);
            while world.coordinator().failovers().next().is_none() {
                world.pass(2);
            }
            for at in [0, 1] {
                assert!(!world.hosts[at].hub.fence().is_open(dead), "host {at} still hears it");
            }
            world.pass(600);
            assert_eq!((world.send_to(0, 0, 40), world.send_to(1, 1, 40)), (40, 40));
            check_flows(&world, &[0, 1, 2], 2, "a runtime has died");
            world.check_safe("it is recovered from");
        }
    }
}

/// The host of a switch is cut off while clients still reach it. The host stops before
/// another begins, and the other switch goes on meanwhile.
#[test]
fn the_host_of_a_switch_is_cut_off() {
    let (out, back) = ([(1, 0), (1, 2)], [(0, 1), (2, 1)]);
    for cut in [out.to_vec(), back.to_vec(), [out, back].concat()] {
        let mut world = World::of_two_switches(Plan::NFVACTOR);
        assert_eq!((world.send_to(0, 0, 40), world.send_to(1, 1, 40)), (40, 40));
        world.cut = cut.clone();
        for _ in 0..60 {
            world.send_to(1, 1, 40);
        }
        assert_eq!(
            (world.serving_switch(0), world.serving_switch(1).len()),
            (vec![0], 1),
            "{cut:?}"
        );
        let at = world.serving_switch(1)[0];
        assert_ne!(at, 1, "{cut:?}");
        assert_eq!((world.send_to(0, 0, 40), world.send_to(1, at, 40)), (40, 40), "{cut:?}");
        assert_eq!(world.send_to(1, 1, 40), 0, "{cut:?}");
        world.cut.clear();
        world.pass(1500);
        assert_eq!(world.coordinator().protected(), Protected::Yes, "{cut:?}");
        assert_eq!((world.send_to(0, 0, 40), world.send_to(1, at, 40)), (40, 40), "{cut:?}");
    }
}

/// The managers of both serving hosts begin anew, one after the other, with a runtime's
/// death between: a runtime that was given up stays so.
#[test]
fn managers_begin_anew_while_a_runtime_is_given_up() {
    for (first, second) in [(0usize, 1usize), (1, 0)] {
        let mut world = World::of_two_switches(Plan::NFVACTOR);
        assert_eq!((world.send_to(0, 0, 40), world.send_to(1, 1, 40)), (40, 40));
        world.kill(first);
        world.pass(20);
        world.revive(first);
        world.pass(1500);
        world.check_safe("the first is back");
        let host = &mut world.hosts[2];
        let (dead, _) = host.runtimes.pop_first().expect("runtimes are on every host");
        host.hub.handle_ended(dead);
        host.hub.handle_buried(dead);
        world.pass(2);
        world.kill(second);
        world.pass(20);
        world.revive(second);
        world.pass(2500);
        world.check_safe("both are back");
        let places = [0, 1].map(|switch| world.serving_switch(switch)[0]);
        assert_eq!((world.send_to(0, places[0], 60), world.send_to(1, places[1], 60)), (60, 60));
    }
}

/// The first message of a manager's new incarnation is lost, and its frames are heard
/// before the message can be. Its host counts neither as gone nor as unfit to serve.
#[test]
fn the_first_word_of_a_managers_new_incarnation_is_late() {
    let mut world = World::of_two_switches(Plan::NFVACTOR);
    assert_eq!((world.send_to(0, 0, 40), world.send_to(1, 1, 40)), (40, 40));
    // This is long after the coordinator's own beginning, which would be a reason to
    // wait.
    world.pass(400);
    world.kill(0);
    world.revive(0);
    // The coordinator is on the last host.
    world.first_lost = vec![(0, 2)];
    world.pass(80);
    assert!(
        world.coordinator().failovers().next().is_none(),
        "nobody has said that anybody has ended"
    );
    world.first_lost.clear();
    world.pass(1500);
    assert_eq!((world.serving_switch(0), world.serving_switch(1)), (vec![0], vec![1]));
    let causes: Vec<Cause> =
        world.coordinator().failovers().map(|failover| failover.cause).collect();
    assert_eq!(
        causes,
        [Cause::Exited; 2],
        "they ended with their host, as its new incarnation says"
    );
    world.check_safe("it is back");
}

/// A runtime dies, and one of the serving hosts does not hear of it for a moment: packets
/// of its switch's flows could still leave there. No runtime is asked to recover the dead
/// one's flows before that host has said that they cannot.
#[test]
fn nobody_takes_over_before_every_switch_is_fenced() {
    for host in [0, 2] {
        let mut world = World::of_two_switches(Plan::NFVACTOR);
        assert_eq!((world.send_to(0, 0, 40), world.send_to(1, 1, 40)), (40, 40));
        // The coordinator is on the last host.
        world.cut = vec![(2, 1)];
        let host = &mut world.hosts[host];
        let (dead, _) = host.runtimes.pop_first().expect("runtimes are on every host");
        host.hub.handle_ended(dead);
        host.hub.handle_buried(dead);
        world.pass(50);
        assert!(world.hosts[1].hub.fence().is_open(dead), "it has not heard of it");
        assert!(world.coordinator().failovers().next().is_none());
        world.cut.clear();
        world.pass(600);
        assert!(!world.hosts[1].hub.fence().is_open(dead));
        assert_eq!((world.send_to(0, 0, 40), world.send_to(1, 1, 40)), (40, 40));
        check_flows(&world, &[0, 1, 2], 2, "a runtime has died");
        world.check_safe("it is recovered from");
    }
}

/// A host is cut off for less time than it takes to be given up, in one direction or in
/// both. Once all is called safe again, another host dies, and is back at once. No host
/// that lives all the time stops serving, however little it had heard before.
#[test]
fn a_host_dies_after_a_cut_that_was_over_soon() {
    for (cut, time) in (0..3).flat_map(|cut| (40..118).step_by(6).map(move |time| (cut, time))) {
        for way in [[true, true], [true, false], [false, true]] {
            let mut world = World::of_two_switches(Plan::NFVACTOR);
            let links = (0..3)
                .filter(|other| *other != cut)
                .flat_map(|other| [(cut, other), (other, cut)].into_iter().zip(way));
            world.cut = links.filter(|(_, is_cut)| *is_cut).map(|(link, _)| link).collect();
            world.pass(time);
            world.cut.clear();
            while world.coordinator().protected() != Protected::Yes
                || !world.coordinator().survives_host()
            {
                world.pass(2);
            }
            let dead = usize::from(cut == 0);
            let serving = [0, 1].map(|switch| world.serving_switch(switch));
            world.kill(dead);
            world.pass(4);
            world.revive(dead);
            for _ in 0..60 {
                world.pass(2);
                for switch in (0..2).filter(|switch| serving[*switch] != [dead]) {
                    let now = world.serving_switch(switch as u16);
                    assert_eq!(
                        now, serving[switch],
                        "switch {switch}: {cut} cut off for {time} ms, {way:?}, and {dead} dead"
                    );
                }
            }
        }
    }
}
