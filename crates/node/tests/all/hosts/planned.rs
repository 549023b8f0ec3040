//! Service that moves although no host has died: the host that serves has lost a link to
//! the outside, or is about to end.

use super::world::World;
use holdfast_node::message::{Member, MemberState, Protected};
use holdfast_protection::{Peer, Plan};
use std::cell::Cell;

impl World {
    /// Sets how many of a host's ports have links that are up.
    fn set_links(&mut self, at: usize, links: u8) {
        self.hosts[at].hub.manager.set_links(0, links);
    }

    /// Milliseconds until this host serves.
    fn until_serving(&mut self, at: usize) -> u64 {
        (0..1000)
            .step_by(2)
            .find(|_| {
                let is_there = self.serving() == [at];
                if !is_there {
                    self.pass(2);
                }
                is_there
            })
            .expect("it serves within a second")
    }
}

/// A port of the host that serves loses its link. Flows are not safe, and the host whose
/// links are up takes over. Service stays there when the link is back, and when both
/// hosts have lost as many.
#[test]
fn service_goes_where_the_links_are() {
    let mut world = World::new();
    [0, 1].iter().for_each(|at| world.set_links(*at, 2));
    world.pass(200);
    assert_eq!(world.send(0, 40), 40);
    world.check_safe("all links are up");
    world.set_links(0, 1);
    world.pass(20);
    assert_eq!(
        (world.serving(), world.coordinator().protected()),
        (vec![0], Protected::Resynchronising),
        "links come and go"
    );
    assert!(!world.coordinator().survives_host());
    assert!(world.until_serving(1) > 60);
    assert_eq!(world.send(1, 40), 40);
    world.pass(300);
    assert_eq!(world.coordinator().protected(), Protected::Yes);
    assert!(!world.coordinator().survives_host(), "the other one could not serve as well");
    world.set_links(0, 2);
    world.pass(1000);
    world.check_safe("the link is back");
    assert_eq!(world.serving(), [1], "and nothing moves back");
    [0, 1].iter().for_each(|at| world.set_links(*at, 1));
    world.pass(1000);
    assert_eq!((world.serving(), world.send(1, 40)), (vec![1], 40), "nobody has more of them");
    let flows = world.flows(&[0, 1]);
    assert!(flows.len() == 40 && flows.values().all(|packets| *packets == 3), "{flows:?}");
    assert!(world.coordinator().failovers().next().is_none());
}

/// A link that is back before another host serves moves nothing.
#[test]
fn a_link_that_comes_and_goes_moves_nothing() {
    let mut world = World::new();
    for _ in 0..10 {
        world.set_links(0, 1);
        world.set_links(1, 2);
        world.pass(60);
        world.set_links(0, 2);
        world.pass(60);
        assert_eq!(world.serving(), [0]);
    }
    world.check_safe("it is up");
}

/// The host that serves ends as planned: another one serves before it is gone, and no
/// host waits for its silence. Its runtimes end after that, and their flows go on.
#[test]
fn a_host_that_ends_hands_over() {
    let mut world = World::new();
    assert_eq!(world.send(0, 40), 40);
    assert!(world.hosts[0].hub.manager.leave(), "others are there");
    let took = world.until_serving(1);
    assert!(took <= 20, "{took} ms");
    assert_eq!(world.send(1, 40), 40, "its runtimes still serve");
    for (peer, _) in std::mem::take(&mut world.hosts[0].runtimes) {
        world.hosts[0].hub.handle_ended(peer);
        world.hosts[0].hub.handle_buried(peer);
    }
    world.pass(20);
    assert_eq!(world.send(1, 40), 40, "they are known to be gone at once");
    assert!(world.hosts[0].runtimes.is_empty(), "nobody is started on a host that ends");
    world.kill(0);
    world.pass(1000);
    assert_eq!((world.serving(), world.send(1, 40)), (vec![1], 40));
    assert!(world.flows(&[1]).values().all(|packets| *packets == 4));
    world.revive(0);
    world.pass(1500);
    world.check_safe("it is back");
}

/// Counts the time for which any flow is not served.
struct Served {
    flows: u8,
    since: u64,
    longest: u64,
}

impl Served {
    /// Each flow has a packet every two milliseconds, at the host that serves, until
    /// `is_over`.
    fn until(&mut self, world: &mut World, is_over: impl Fn(&mut World) -> bool) {
        for _ in 0..500 {
            let of_all =
                |world: &World| [0, 1].map(|at| world.released(0, at)).iter().sum::<usize>();
            let before = of_all(world);
            if let [at] = world.serving()[..] {
                world.offer(0, at, self.flows);
            }
            world.pass(2);
            let is_served = of_all(world) - before >= usize::from(self.flows);
            self.since = if is_served { 0 } else { self.since + 2 };
            self.longest = self.longest.max(self.since);
            if is_over(world) {
                return;
            }
        }
        panic!("it takes longer than a second");
    }
}

/// The host that serves ends as the daemon ends it: another one serves, then its runtimes
/// end, then the host does. From the announcement to the end, and long after, no flow on
/// any host is without service for 50 ms. A silent host is missed only after more than
/// twice that time.
#[test]
fn a_planned_end_is_hardly_felt() {
    for plan in [Plan::NFVACTOR, Plan::NFVACTOR_AT_SOURCE, Plan::NFVACTOR_AUTO] {
        let mut world = World::with(plan);
        assert_eq!(world.send(0, 40), 40);
        world.pass(100);
        world.check_safe("flows have copies");
        let mut served = Served { flows: 40, since: 0, longest: 0 };
        served.until(&mut world, |_| true);
        assert_eq!(served.longest, 0, "{}: nothing has happened", plan.name());
        assert!(world.hosts[0].hub.manager.leave());
        served.until(&mut world, |world| !world.hosts[0].hub.is_serving());
        let runtimes: Vec<Peer> = world.hosts[0].runtimes.keys().copied().collect();
        assert!(!world.flows(&[0]).is_empty() && runtimes.len() == 2, "flows are there, too");
        runtimes.into_iter().for_each(|peer| world.end(0, peer));
        served.until(&mut world, |world| {
            let is_alive =
                |member: &Member| member.host == 0 && member.state != MemberState::Failed;
            world.hosts[0]
                .hub
                .manager
                .standing()
                .is_some_and(|standing| !standing.members.iter().any(is_alive))
        });
        world.kill(0);
        let left = Cell::new(300);
        served.until(&mut world, |_| {
            left.set(left.get() - 2);
            left.get() == 0
        });
        assert_eq!((world.serving(), served.since), (vec![1], 0), "{}", plan.name());
        assert!(served.longest < 50, "{}: {} ms", plan.name(), served.longest);
        assert_eq!(world.flows(&[1]).len(), 40);
    }
}

/// A host that is about to end while no other could serve goes on until its end.
#[test]
fn nobody_is_handed_over_to() {
    let mut world = World::new();
    world.kill(1);
    world.pass(1000);
    assert!(world.hosts[0].hub.manager.leave(), "the witness is there");
    world.pass(500);
    assert_eq!((world.serving(), world.send(0, 40)), (vec![0], 40));
}
