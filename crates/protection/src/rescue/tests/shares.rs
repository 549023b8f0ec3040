//! Several servers, each with its share of the flows.

use super::*;
use holdfast_wire::NodeId;

const SERVERS: [Peer; 3] = [
    Peer { node: NodeId::new(65534), incarnation: 1 },
    Peer { node: NodeId::new(65533), incarnation: 4 },
    Peer { node: NodeId::new(65532), incarnation: 2 },
];
const NOBODY: Peer = Peer { node: NodeId::NONE, incarnation: 0 };

/// Runtimes, and servers that hear their records; the deaf server hears none.
struct Divided {
    now: u64,
    sides: Vec<Side>,
    servers: Vec<(Peer, Pages)>,
    deaf: Option<usize>,
    dead: Vec<Peer>,
    /// Kinds of the records sent to each server.
    said: Vec<Vec<u8>>,
    epoch: u32,
    left: usize,
    unprotected: u64,
}

impl Divided {
    fn new(sides: u16, room: usize) -> Divided {
        let mut world = Divided {
            now: 1_000,
            sides: (0..sides).map(|at| Side::with_room_for(peer(at), Plan::RESCUE, room)).collect(),
            servers: SERVERS.iter().map(|server| (*server, pages())).collect(),
            deaf: None,
            dead: Vec::new(),
            said: vec![Vec::new(); SERVERS.len()],
            epoch: 10,
            left: 0,
            unprotected: 0,
        };
        for side in &mut world.sides {
            // A fresh protection, which has not met a server before.
            side.protection = Rescue::new(paged(Plan::RESCUE, room));
        }
        world.meet(&SERVERS);
        world
    }

    /// Sets the servers.
    fn meet(&mut self, servers: &[Peer]) {
        for side in &mut self.sides {
            side.out.set_peers(
                servers.iter().filter(|server| **server != NOBODY).map(|server| (*server, ROOM)),
            );
            side.protection.set_peers(&mut side.flows, servers, &[], &mut side.out);
        }
    }

    fn process(&mut self, at: usize, flow: u16) {
        self.epoch += 1;
        self.sides[at].process(flow, self.epoch, self.now);
    }

    /// Runs turns until all are quiet. Routes that are asked for are granted.
    fn talk(&mut self) {
        for _ in 0..12 {
            let living: Vec<Peer> = self.sides.iter().map(|side| side.me).collect();
            self.servers.iter_mut().for_each(|(_, pages)| {
                pages.begin(self.now, living.iter().map(|peer| (*peer, ROOM)), &living)
            });
            for side in &mut self.sides {
                let Side { me, flows, protection, out, pool } = side;
                out.begin(0, self.now);
                protection.flush(flows, out);
                for (record, body) in out.records() {
                    let at = self
                        .servers
                        .iter()
                        .position(|(server, _)| *server == record.to)
                        .expect("it is said to a server");
                    self.said[at].push(record.kind);
                    if self.deaf != Some(at) {
                        self.servers[at]
                            .1
                            .handle_record(*me, record.kind, &body[2..])
                            .expect("it is a good record");
                    }
                }
                out.clear_records();
                self.left +=
                    out.released.drain(..).map(|packet| pool.put(packet.into_inner())).count();
                self.unprotected += core::mem::take(&mut out.released_unprotected);
                assert!(out.dropped.is_empty());
            }
            for (server, pages) in &mut self.servers {
                pages.flush();
                for (record, body) in pages.records() {
                    if let Some(Side { flows, protection, out, .. }) =
                        self.sides.iter_mut().find(|side| side.me == record.to)
                    {
                        protection
                            .handle_record(flows, *server, record.kind, &body[2..], out)
                            .expect("it is a good record");
                    }
                }
                pages.clear_records();
            }
            self.sides.iter_mut().for_each(|side| side.grant_routes(&mut self.epoch));
            self.now += 2 * MILLISECOND;
        }
    }

    fn die(&mut self, at: usize) -> Peer {
        let dead = self.sides.remove(at).me;
        let living: Vec<Peer> = self.sides.iter().map(|side| side.me).collect();
        for (_, pages) in &mut self.servers {
            pages.begin(self.now, living.iter().map(|peer| (*peer, ROOM)), &living);
            pages.bury(dead);
        }
        self.sides
            .iter_mut()
            .for_each(|side| side.protection.recover(&mut side.flows, dead, &mut side.out));
        self.dead.push(dead);
        dead
    }

    /// A server begins anew without a page, and is told which runtimes have died.
    fn begin_anew(&mut self, at: usize) {
        let mut pages = pages();
        self.dead.iter().for_each(|dead| pages.bury(*dead));
        self.servers[at] =
            (Peer { incarnation: self.servers[at].0.incarnation + 1, ..self.servers[at].0 }, pages);
        let servers: Vec<Peer> = self.servers.iter().map(|(server, _)| *server).collect();
        self.said.iter_mut().for_each(Vec::clear);
        self.meet(&servers);
    }

    fn share(&self, flow: u16) -> usize {
        let flows = self.servers[0].1.flows();
        share_of(flows.hash(&key(flow)), SERVERS.len())
    }

    /// The state of a flow at each server.
    fn there(&self, flow: u16) -> Vec<Option<u8>> {
        let of = |flows: &Flows| {
            flows.find(&key(flow), flows.hash(&key(flow))).map(|found| flows.state(found.slot)[0])
        };
        self.servers.iter().map(|(_, pages)| of(pages.flows())).collect()
    }

    fn safety(&self, at: usize) -> Safety {
        self.sides[at].protection.safety(&self.sides[at].flows)
    }
}

/// Shares are of about equal size, independent of the table's buckets, and a single
/// server has all flows.
#[test]
fn shares_are_alike() {
    let flows = Flows::new(0, 0, LAYOUT, SEED);
    for servers in 1..=8 {
        let mut counts = vec![0usize; servers];
        (0..8000u16).for_each(|flow| counts[share_of(flows.hash(&key(flow)), servers)] += 1);
        let even = 8000 / servers;
        assert!(counts.iter().all(|count| count.abs_diff(even) < even / 4), "{counts:?}");
    }
}

/// A server has room for a little more than an even share, and a single server for all
/// flows.
#[test]
fn there_is_room_for_an_uneven_share() {
    let room = [(100, 1), (0, 3), (100, 3), (3_000_000, 3)]
        .map(|(flows, servers)| room_for_share(flows, servers));
    assert_eq!(room, [100, 0, 100, 1_126_024]);
}

/// A flow is written back to the server of its share, and to no other. Its packets leave
/// when that server has it, whatever the others do.
#[test]
fn each_flow_has_one_server() {
    let mut world = Divided::new(1, FLOWS);
    world.deaf = Some(1);
    for flow in 0..24 {
        (0..=flow % 3).for_each(|_| world.process(0, flow));
    }
    world.talk();
    let of_deaf = (0..24)
        .filter(|flow| world.share(*flow) == 1)
        .map(|flow| usize::from(flow % 3) + 1)
        .sum::<usize>();
    assert!(of_deaf > 0);
    assert_eq!(world.left, 48 - of_deaf);
    for flow in 0..24 {
        let mut expected = [None; 3];
        expected[world.share(flow)] = Some((flow % 3) as u8 + 1).filter(|_| world.share(flow) != 1);
        assert_eq!(world.there(flow), expected, "flow {flow}");
    }
    assert_eq!(world.unprotected, 0);
}

/// Flows of the dead are dealt by all servers, and the account is open until the last one
/// has no more.
#[test]
fn a_recovery_is_over_when_every_server_has_dealt() {
    let mut world = Divided::new(3, FLOWS);
    (0..60).for_each(|flow| world.process(usize::from(flow % 3), flow));
    world.talk();
    let theirs: Vec<u16> = (0..60).filter(|flow| flow % 3 == 1).collect();
    let dead = world.die(1);
    world.deaf = Some(2);
    world.talk();
    let owners = |world: &Divided, flow: u16| {
        world.sides.iter().filter(|side| side.life(flow) == Life::Owned).count()
    };
    for flow in &theirs {
        assert_eq!(owners(&world, *flow), usize::from(world.share(*flow) != 2), "flow {flow}");
    }
    assert!(world.sides.iter().all(|side| side.protection.is_recovering(dead)));
    // The third server begins anew instead, and is asked again: it has no flow of the
    // dead.
    let is_lost = |world: &Divided, flow: u16| world.share(flow) == 2;
    world.deaf = None;
    world.begin_anew(2);
    world.talk();
    assert!(world.sides.iter().all(|side| !side.protection.is_recovering(dead)));
    assert!(world.said[2].contains(&kind::RECALL), "the next incarnation is asked");
    assert!(
        !world.said[0].contains(&kind::RECALL) && !world.said[1].contains(&kind::RECALL),
        "who has no more is not"
    );
    assert!(theirs.iter().any(|flow| is_lost(&world, *flow)));
    for flow in theirs {
        assert_eq!(owners(&world, flow), usize::from(!is_lost(&world, flow)), "flow {flow}");
    }
}

/// A server begins anew: its share is written to it again, and nothing to the others.
#[test]
fn a_server_that_begins_anew_gets_its_share() {
    let mut world = Divided::new(2, FLOWS);
    (0..30).for_each(|flow| world.process(usize::from(flow % 2), flow));
    world.talk();
    assert!(!world.safety(0).resynchronising && world.safety(0).unprotected == 0);
    world.begin_anew(1);
    assert!(world.safety(0).resynchronising);
    world.talk();
    assert!(!world.safety(0).resynchronising);
    let written = |at: usize| world.said[at].iter().filter(|said| **said == kind::STATE).count();
    let its = (0..30).filter(|flow| world.share(*flow) == 1).count();
    assert_eq!((written(0), written(1), written(2)), (0, its, 0));
    for flow in 0..30 {
        assert_eq!(world.there(flow)[world.share(flow)], Some(1), "flow {flow}");
    }
}

/// The flows of a server that has not been heard of are reported as unprotected, and
/// their packets leave as without any server. The others' flows are safe.
#[test]
fn who_has_not_been_heard_of_has_nothing() {
    let mut world = Divided::new(1, FLOWS);
    world.sides[0].protection = Rescue::new(paged(Plan::RESCUE, FLOWS));
    world.meet(&[SERVERS[0], NOBODY, SERVERS[2]]);
    (0..24).for_each(|flow| world.process(0, flow));
    world.talk();
    let its = (0..24).filter(|flow| world.share(*flow) == 1).count();
    assert_eq!((world.left, world.unprotected), (24, its as u64));
    assert!(world.safety(0).unprotected > 0);
    world.meet(&SERVERS);
    world.talk();
    assert_eq!((world.safety(0).unprotected, world.safety(0).resynchronising), (0, false));
    (0..24)
        .for_each(|flow| assert_eq!(world.there(flow)[world.share(flow)], Some(1), "flow {flow}"));
}

/// There is room for the state of two flows only. Each state is fetched from the server
/// that has it. With a server, only the states that it alone had are lost.
#[test]
fn what_a_server_alone_had_is_lost_with_it() {
    let mut world = Divided::new(1, 2);
    for flow in 0..12 {
        world.process(0, flow);
        world.talk();
    }
    assert!(world.safety(0).absent >= 10);
    for flow in 0..12 {
        let side = &mut world.sides[0];
        let slot = side.find(flow).expect("it is there");
        if side.protection.admit(&mut side.flows, slot) == Admission::Park {
            world.talk();
        }
        world.process(0, flow);
        world.talk();
        assert_eq!(world.there(flow)[world.share(flow)], Some(2), "flow {flow}");
    }
    // A packet waits for a flow of each share.
    for share in 0..3 {
        let side = &world.sides[0];
        let is_meant =
            |flow: &u16| side.find(*flow).is_some_and(|slot| !side.flows.is_present(slot));
        let flow = (0..12)
            .find(|flow| is_meant(flow) && world.share(*flow) == share)
            .expect("one is away");
        let side = &mut world.sides[0];
        let slot = side.find(flow).expect("it is there");
        assert_eq!(side.protection.admit(&mut side.flows, slot), Admission::Park);
    }
    let away: BTreeSet<Slot> = (0..12)
        .filter_map(|flow| world.sides[0].find(flow))
        .filter(|slot| !world.sides[0].flows.is_present(*slot))
        .collect();
    world.begin_anew(1);
    let lost: BTreeSet<Slot> = world.sides[0].out.lost.drain(..).map(|flow| flow.slot).collect();
    let is_its = |slot: &Slot| {
        let flows = &world.sides[0].flows;
        share_of(flows.hash(&flows.header(*slot).key), SERVERS.len()) == 1
    };
    assert_eq!(lost, away.iter().copied().filter(is_its).collect());
    assert!(!lost.is_empty() && lost.len() < away.len());
    for slot in lost {
        world.sides[0].flows.remove(slot);
    }
    world.sides[0].out.loaded.clear();
    world.talk();
    assert!(!world.sides[0].out.loaded.is_empty(), "what the others have comes");
}
