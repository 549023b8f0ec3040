mod paging;
mod shares;

use super::pages::{Pages, PagesConfig};
use super::shares::Share;
use super::*;
use holdfast_wire::{MemoryPool, NodeId, PacketPool};
use zerocopy::FromBytes;

const SERVER: Peer = Peer { node: NodeId::new(65534), incarnation: 1 };
const LAYOUT: u64 = 7;
const SEED: u64 = 99;
const FLOWS: usize = 64;
const ROOM: usize = 1 << 20;
const MILLISECOND: u64 = 1_000_000;
const AT_ONCE: Plan =
    Plan { write_back_packets: 5, write_back_every: 10 * MILLISECOND, ..Plan::RESCUE_AT_ONCE };

const fn peer(at: u16) -> Peer {
    Peer { node: NodeId::runtime(at), incarnation: 1 + at as u32 }
}

fn key(flow: u16) -> FlowKey {
    FlowKey { source_port: flow, protocol: 17, ..FlowKey::default() }
}

/// A runtime's side of a chain: a flow's state is the number of packets.
struct Side {
    me: Peer,
    flows: Flows,
    protection: Rescue,
    out: Outbox,
    pool: MemoryPool,
}

/// The same plan with room for the state of so many flows.
fn paged(plan: Plan, room: usize) -> Plan {
    Plan { resident_flows: Some(room as u32), ..plan }
}

impl Side {
    fn new(me: Peer, plan: Plan) -> Side {
        let protection = Rescue::new(plan);
        let mut side = Side {
            me,
            flows: Flows::new(FLOWS, 8, LAYOUT, SEED),
            protection,
            out: Outbox::default(),
            pool: MemoryPool::new(256),
        };
        side.meet(SERVER);
        side
    }

    /// A side with room for the state of so many flows.
    fn with_room_for(me: Peer, plan: Plan, room: usize) -> Side {
        let mut side = Side::new(me, plan);
        side.flows = Flows::with_room_for(room, FLOWS, 8, LAYOUT, SEED);
        side.protection = Rescue::new(paged(plan, room));
        side.meet(SERVER);
        side
    }

    fn meet(&mut self, server: Peer) {
        self.out.set_peers([(server, ROOM)].into_iter());
        self.protection.set_peers(&mut self.flows, &[server], &[], &mut self.out);
    }

    /// Processes a packet of this flow, which is opened here if it is not there.
    fn process(&mut self, flow: u16, epoch: u32, now: u64) {
        let found = self.find(flow);
        let Side { flows, protection, out, pool, .. } = self;
        let slot = found.unwrap_or_else(|| {
            let slot =
                flows.insert_owned(key(flow), flows.hash(&key(flow))).expect("there is room");
            flows.header_mut(slot).epoch = Epoch::new(epoch);
            slot
        });
        assert_eq!(flows.header(slot).life(), Life::Owned);
        out.begin(0, now);
        assert_eq!(protection.admit(flows, slot), Admission::Ready);
        flows.parts_mut(slot).1[0] += 1;
        let mut packet = pool.take().expect("there are buffers");
        packet.meta.stamp = epoch.into();
        protection.commit(flows, slot, packet, false, out);
    }

    /// The switch grants every route that was asked for.
    fn grant_routes(&mut self, epoch: &mut u32) {
        for (_, slot) in core::mem::take(&mut self.out.late_claims) {
            *epoch += 1;
            self.flows.header_mut(slot).epoch = Epoch::new(*epoch);
            self.protection.claimed(&mut self.flows, slot);
        }
    }

    fn find(&self, flow: u16) -> Option<Slot> {
        self.flows.find(&key(flow), self.flows.hash(&key(flow))).map(|found| found.slot)
    }

    fn life(&self, flow: u16) -> Life {
        self.find(flow).map_or(Life::Free, |slot| self.flows.header(slot).life())
    }

    fn count(&self, flow: u16) -> u8 {
        self.find(flow)
            .filter(|slot| self.flows.is_present(*slot))
            .map_or(0, |slot| self.flows.state(slot)[0])
    }
}

/// Runtimes and a server, which hear each other's records in order.
struct World {
    now: u64,
    sides: Vec<Side>,
    pages: Pages,
    /// Records that the runtimes have sent.
    said: Vec<(Peer, u8, Vec<u8>)>,
    /// Records that the server has sent.
    answered: Vec<(Peer, u8, Vec<u8>)>,
    epoch: u32,
    left: usize,
    dropped: usize,
}

fn pages() -> Pages {
    Pages::new(PagesConfig { chain: 0, flows: 4 * FLOWS, state_len: 8, layout: LAYOUT, seed: SEED })
}

impl World {
    fn new(sides: u16, plan: Plan) -> World {
        let sides = (0..sides).map(|at| Side::new(peer(at), plan)).collect();
        World {
            now: 1_000,
            sides,
            pages: pages(),
            said: Vec::new(),
            answered: Vec::new(),
            epoch: 10,
            left: 0,
            dropped: 0,
        }
    }

    fn at(&mut self, at: usize) -> &mut Side {
        &mut self.sides[at]
    }

    /// Processes a packet of this flow, which is opened here if it is not there.
    fn process(&mut self, at: usize, flow: u16) {
        self.epoch += 1;
        self.sides[at].process(flow, self.epoch, self.now);
    }

    /// Ends the batch of one runtime. The server hears its records if `is_heard`.
    fn flush(&mut self, at: usize, is_heard: bool) {
        let now = self.now;
        let Side { me, flows, protection, out, pool } = &mut self.sides[at];
        out.begin(0, now);
        protection.flush(flows, out);
        let records: Vec<_> =
            out.records().map(|(record, body)| (record.kind, body[2..].to_vec())).collect();
        out.clear_records();
        self.left += out.released.drain(..).map(|packet| pool.put(packet.into_inner())).count();
        self.dropped += out.dropped.drain(..).map(|(packet, _)| pool.put(packet)).count();
        let me = *me;
        self.begin();
        for (kind, body) in records {
            if is_heard {
                // A runtime that does not know yet that its flow is another's goes on
                // sending its state.
                let taken = self.pages.handle_record(me, kind, &body);
                assert!(
                    matches!(taken, Ok(()) | Err(DropReason::StaleEpoch)),
                    "kind {kind}: {taken:?}"
                );
            }
            self.said.push((me, kind, body));
        }
    }

    fn begin(&mut self) {
        let living: Vec<Peer> = self.sides.iter().map(|side| side.me).collect();
        self.pages.begin(self.now, living.iter().map(|peer| (*peer, ROOM)), &living);
    }

    /// Ends the server's batch, and delivers its records. Routes that are asked for are
    /// granted.
    fn answer(&mut self) {
        self.pages.flush();
        let records: Vec<_> = self
            .pages
            .records()
            .map(|(record, body)| (record.to, record.kind, body[2..].to_vec()))
            .collect();
        self.pages.clear_records();
        for (to, kind, body) in records {
            if let Some(side) = self.sides.iter_mut().find(|side| side.me == to) {
                let Side { flows, protection, out, .. } = side;
                protection
                    .handle_record(flows, SERVER, kind, &body, out)
                    .expect("it is a good record");
            }
            self.answered.push((to, kind, body));
        }
        for side in &mut self.sides {
            side.out.demoted.clear();
            side.flows.take_demoted();
            side.grant_routes(&mut self.epoch);
        }
    }

    /// Runs turns until all are quiet.
    fn talk(&mut self) {
        for _ in 0..12 {
            (0..self.sides.len()).for_each(|at| self.flush(at, true));
            self.answer();
            self.now += 2 * MILLISECOND;
        }
    }

    /// A runtime dies, and all others recall its flows.
    fn die(&mut self, at: usize) -> Peer {
        let Side { me: dead, .. } = self.sides.remove(at);
        self.begin();
        self.pages.bury(dead);
        for side in &mut self.sides {
            side.protection.recover(&mut side.flows, dead, &mut side.out);
            assert!(side.protection.is_recovering(dead));
        }
        dead
    }

    fn owners(&self, flow: u16) -> usize {
        self.sides.iter().filter(|side| side.life(flow) == Life::Owned).count()
    }

    fn count(&self, flow: u16) -> u8 {
        self.sides.iter().map(|side| side.count(flow)).max().unwrap_or(0)
    }
}

/// A packet leaves when the server has the state that it reveals, and not before. If
/// packets leave at once, it leaves before.
#[test]
fn packets_wait_for_the_write_back_or_leave_at_once() {
    for (plan, before) in [(Plan::RESCUE, 0), (AT_ONCE, 1)] {
        let mut world = World::new(1, plan);
        world.process(0, 1);
        world.flush(0, true);
        assert_eq!(world.left, before, "{plan:?}");
        world.answer();
        world.flush(0, true);
        assert_eq!((world.left, world.dropped), (1, 0), "{plan:?}");
        assert_eq!(world.pages.flows().len(), 1);
    }
}

/// Records sent while the server hears nothing have been under way since they were sent.
/// When the first of them has arrived, the rest is no younger.
#[test]
fn what_waits_for_the_server_is_as_old_as_it_is() {
    let mut world = World::new(1, AT_ONCE);
    world.process(0, 1);
    world.flush(0, true);
    world.answer();
    let heard = world.said.len();
    let is_late =
        |world: &World| world.sides[0].protection.safety(&world.sides[0].flows).resynchronising;
    for flow in 2..40 {
        world.now += 10 * MILLISECOND;
        world.process(0, flow);
        world.flush(0, false);
        assert_eq!(is_late(&world), flow > 12, "flow {flow}");
    }
    // The server hears these records, the first half of them first.
    let waiting = world.said.split_off(heard);
    for (at, part) in waiting.chunks(waiting.len().div_ceil(2)).enumerate() {
        for (from, kind, body) in part {
            world.pages.handle_record(*from, *kind, body).expect("it is a good record");
        }
        world.answer();
        world.flush(0, false);
        assert_eq!(is_late(&world), at == 0);
    }
}

/// Packets that leave at once do so as they are processed, in order. Without a server
/// each of them is counted as unprotected.
#[test]
fn packets_that_leave_at_once_keep_their_order() {
    let mut world = World::new(1, AT_ONCE);
    [3, 1, 2, 1].into_iter().for_each(|flow| world.process(0, flow));
    let side = world.at(0);
    let stamps: Vec<u64> =
        side.out.released.drain(..).map(|packet| packet.into_inner().meta.stamp).collect();
    assert_eq!(stamps, [11, 12, 13, 14], "before anything is written back");
    assert_eq!(side.out.released_unprotected, 0);
    side.protection.set_peers(&mut side.flows, &[], &[], &mut side.out);
    world.process(0, 1);
    world.process(0, 2);
    assert_eq!(world.at(0).out.released_unprotected, 2);
}

/// The server prefetches the flow that a record is about, whether the record begins,
/// changes or ends it.
#[test]
fn records_say_which_flow_they_are_about() {
    let mut world = World::new(1, Plan::RESCUE);
    for _ in 0..2 {
        world.process(0, 1);
        world.flush(0, true);
        world.answer();
    }
    let Side { flows, protection, out, .. } = world.at(0);
    let slot = flows.find(&key(1), flows.hash(&key(1))).unwrap().slot;
    protection.ended(flows, slot, out);
    flows.remove(slot);
    world.flush(0, true);
    let hash = world.pages.flows().hash(&key(1));
    for kind in [kind::STATE, kind::DELTA, kind::END] {
        let (_, _, body) =
            world.said.iter().find(|(_, said, _)| *said == kind).expect("it was said");
        assert_eq!(world.pages.flow_of(kind, body), Some(hash), "{kind}");
        assert_eq!(world.pages.flow_of(kind, &body[..3]), None, "{kind}");
    }
}

/// If packets leave at once, a failure undoes fewer packets of a flow than the limit, and
/// none older than the interval. The server knows at once that the flow exists.
#[test]
fn what_is_not_written_back_is_bounded() {
    let known = |world: &World| {
        let flows = world.pages.flows();
        flows.find(&key(1), flows.hash(&key(1))).map_or(0, |found| flows.state(found.slot)[0])
    };
    let mut world = World::new(1, AT_ONCE);
    world.process(0, 1);
    world.flush(0, true);
    assert_eq!(known(&world), 1, "it is there");
    for processed in 2..20u8 {
        world.now += 100;
        world.process(0, 1);
        world.flush(0, true);
        let behind = processed - known(&world);
        assert!(behind < 5, "{behind} of {processed}");
    }
    let behind = 19 - known(&world);
    assert!(behind > 0, "something is put off");
    world.now += 11 * MILLISECOND;
    world.flush(0, true);
    assert_eq!(known(&world), 19);
}

/// An owner dies. Each of its flows has one owner again, which knows all packets that had
/// left, and the living share the flows. The account is open until then.
#[test]
fn the_flows_of_the_dead_are_dealt_out() {
    let mut world = World::new(3, Plan::RESCUE);
    for flow in 0..30 {
        (0..=flow % 4).for_each(|_| world.process(usize::from(flow % 3), flow));
    }
    world.talk();
    let dead = world.die(1);
    world.talk();
    for flow in 0..30 {
        assert_eq!(
            (world.owners(flow), world.count(flow)),
            (1, (flow % 4) as u8 + 1),
            "flow {flow}"
        );
    }
    assert_eq!(world.dropped, 0);
    assert!(
        world
            .sides
            .iter()
            .all(|side| side.flows.owned() == 15 && !side.protection.is_recovering(dead))
    );
    // The new owners have written the flows back, so their death has the same effect.
    world.die(0);
    world.talk();
    assert_eq!((0..30).map(|flow| world.owners(flow)).sum::<usize>(), 30);
}

/// Two runtimes die at the same time: the server's pages are enough.
#[test]
fn two_deaths_at_once_lose_nothing() {
    let mut world = World::new(3, Plan::RESCUE);
    (0..20).for_each(|flow| world.process(usize::from(flow % 2), flow));
    world.talk();
    world.die(0);
    world.die(0);
    world.talk();
    assert_eq!(world.at(0).flows.owned(), 20);
}

/// The server is asked before it has heard of the death: the answer waits, and is
/// complete.
#[test]
fn who_asks_before_the_server_knows_waits() {
    let mut world = World::new(2, Plan::RESCUE);
    (0..5).for_each(|flow| world.process(0, flow));
    world.talk();
    let Side { me: dead, .. } = world.sides.remove(0);
    let Side { flows, protection, out, .. } = world.at(0);
    protection.recover(flows, dead, out);
    world.talk();
    assert!(world.sides[0].protection.is_recovering(dead) && world.sides[0].flows.owned() == 0);
    assert_eq!(world.pages.unknown().collect::<Vec<_>>(), [dead]);
    world.pages.bury(dead);
    world.talk();
    assert!(!world.sides[0].protection.is_recovering(dead) && world.sides[0].flows.owned() == 5);
}

/// Late records of a dead owner are not taken, whether anybody asks for its flows or not.
#[test]
fn nothing_of_the_dead_is_written() {
    let mut world = World::new(2, Plan::RESCUE);
    world.process(0, 1);
    world.flush(0, false);
    let late = world.said.clone();
    world.die(0);
    for (from, kind, body) in late {
        assert_eq!(world.pages.handle_record(from, kind, &body), Err(DropReason::Fenced));
    }
    world.talk();
    assert_eq!((world.pages.flows().len(), world.sides[0].flows.owned()), (0, 0));
}

/// The next incarnation of a node dies before it serves. The end of its recovery does not
/// affect the flows of the incarnation before.
#[test]
fn one_incarnation_is_over_and_another_is_not() {
    let mut world = World::new(2, Plan::RESCUE);
    (0..5).for_each(|flow| world.process(0, flow));
    world.talk();
    let Side { me: dead, .. } = world.sides.remove(0);
    let next = Peer { incarnation: dead.incarnation + 1, ..dead };
    world.begin();
    world.pages.bury(dead);
    world.pages.bury(next);
    world.pages.recovered(next);
    let Side { flows, protection, out, .. } = world.at(0);
    protection.recover(flows, dead, out);
    world.talk();
    assert_eq!(world.at(0).flows.owned(), 5);
    world.pages.recovered(dead);
    assert_eq!(world.pages.flows().len(), 5, "they are the other one's by now");
}

/// Pages that no runtime got before the recovery was over are not kept.
#[test]
fn what_is_over_leaves_nothing() {
    let mut world = World::new(2, Plan::RESCUE);
    (0..5).for_each(|flow| world.process(0, flow));
    world.process(1, 7);
    world.talk();
    let Side { me: dead, .. } = world.sides.remove(0);
    world.begin();
    world.pages.bury(dead);
    world.pages.recovered(dead);
    assert_eq!(world.pages.flows().len(), 1);
}

/// A runtime has no room, or has something of the flow already. Others get the flow, and
/// the askers hear of the end only then.
#[test]
fn a_flow_that_is_not_taken_goes_to_the_next() {
    let mut world = World::new(3, Plan::RESCUE);
    (0..6).for_each(|flow| world.process(0, flow));
    world.talk();
    // Reserved slots, as for flows that are about to arrive.
    let Side { flows, .. } = world.at(1);
    let places: Vec<Slot> = (0..6)
        .map(|flow| {
            flows.insert(key(flow), flows.hash(&key(flow)), Event::Announce).expect("there is room")
        })
        .collect();
    world.die(0);
    world.talk();
    assert_eq!((world.sides[0].flows.owned(), world.sides[1].flows.owned()), (0, 6));
    let Side { flows, .. } = world.at(0);
    places.into_iter().for_each(|slot| flows.remove(slot));
    // If neither runtime can take the flow, it waits until one can.
    let mut world = World::new(2, Plan::RESCUE);
    world.process(0, 1);
    world.talk();
    let Side { flows, .. } = world.at(1);
    let place = flows.insert(key(1), flows.hash(&key(1)), Event::Announce).expect("there is room");
    let dead = world.die(0);
    world.talk();
    assert!(world.sides[0].protection.is_recovering(dead));
    world.at(0).flows.remove(place);
    world.talk();
    assert!(!world.sides[0].protection.is_recovering(dead) && world.owners(1) == 1);
}

/// A flow moves, up to the last record of its first owner. Whichever of the two dies
/// then, the flow is dealt as that one's.
#[test]
fn a_flow_on_its_way_is_of_whoever_dies() {
    for dies in [0, 1] {
        let mut world = World::new(3, Plan::RESCUE);
        world.process(0, 1);
        world.talk();
        let (to, new) = (peer(1), Epoch::new(500));
        let Side { flows, protection, out, .. } = world.at(0);
        let slot = flows.find(&key(1), flows.hash(&key(1))).expect("it is there").slot;
        assert!(
            protection.has_drained(flows, slot, out)
                && protection.departs(flows, slot, to, new, out)
        );
        let old = flows.header(slot).epoch;
        flows.header_mut(slot).epoch = new;
        flows.step(slot, Event::Choose);
        flows.step(slot, Event::Send);
        assert!(!protection.keeps_sent(flows, slot), "the server has it");
        world.flush(0, true);
        world.die(dies);
        world.flush(0, true);
        world.flush(1, true);
        world.pages.flush();
        let dealt: Vec<Epoch> = world
            .pages
            .records()
            .filter(|(record, _)| record.kind == kind::DEAL)
            .filter_map(|(_, body)| ActorHeader::read_from_prefix(&body[2 + 4 + 6 + 8..]).ok())
            .map(|(header, _)| header.epoch)
            .collect();
        assert_eq!(dealt, [if dies == 0 { old } else { new }], "whose it would be");
    }
}

/// The first owner has passed the flow on, and the server hears of the second's death
/// before that. The first owner asks for the flow behind its record, and gets it.
#[test]
fn a_flow_that_is_passed_on_to_the_dead_is_dealt() {
    let mut world = World::new(2, Plan::RESCUE);
    world.process(0, 1);
    world.talk();
    world.epoch = 500;
    let Side { flows, protection, out, .. } = world.at(0);
    let slot = flows.find(&key(1), flows.hash(&key(1))).expect("it is there").slot;
    assert!(protection.departs(flows, slot, peer(1), Epoch::new(500), out));
    flows.remove(slot);
    let dead = world.die(1);
    world.talk();
    assert!(!world.sides[0].protection.is_recovering(dead));
    assert_eq!((world.owners(1), world.count(1)), (1, 1));
}

/// The switch has forgotten a flow and given it to another runtime: the earlier owner is
/// told, and gives it up.
#[test]
fn an_earlier_owner_lets_go() {
    let mut world = World::new(2, Plan::RESCUE);
    world.process(0, 1);
    world.talk();
    world.process(1, 1);
    world.talk();
    assert_eq!((world.sides[0].life(1), world.sides[1].life(1)), (Life::Free, Life::Owned));
    assert_eq!(world.pages.flows().len(), 1);
}

/// The server begins anew without a page. Every runtime writes back all its flows, and
/// waiting packets leave.
#[test]
fn the_next_incarnation_of_the_server_is_told_everything() {
    for plan in [Plan::RESCUE, AT_ONCE] {
        let mut world = World::new(2, plan);
        (0..12).for_each(|flow| world.process(usize::from(flow % 2), flow));
        world.talk();
        world.process(0, 0);
        world.flush(0, false);
        let left = world.left;
        world.pages = pages();
        let next = Peer { incarnation: 2, ..SERVER };
        let is_safe = |side: &Side| !side.protection.safety(&side.flows).resynchronising;
        assert!(world.sides.iter().all(is_safe));
        for side in &mut world.sides {
            side.meet(next);
            assert!(!is_safe(side), "{plan:?}");
            let late = side.protection.handle_record(
                &mut side.flows,
                SERVER,
                kind::SAVED,
                &[0; 4],
                &mut side.out,
            );
            assert_eq!(late, Err(DropReason::Fenced));
        }
        for _ in 0..8 {
            (0..2).for_each(|at| world.flush(at, true));
            world.pages.flush();
            let records: Vec<_> = world
                .pages
                .records()
                .map(|(record, body)| (record.to, record.kind, body[2..].to_vec()))
                .collect();
            world.pages.clear_records();
            for (to, kind, body) in records {
                let side = world.sides.iter_mut().find(|side| side.me == to).expect("it is there");
                side.protection
                    .handle_record(&mut side.flows, next, kind, &body, &mut side.out)
                    .expect("it is good");
            }
            world.now += MILLISECOND;
        }
        assert!(world.sides.iter().all(is_safe), "{plan:?}");
        assert_eq!(world.pages.flows().len(), 12);
        assert_eq!(world.dropped, 0);
        assert_eq!(world.left, if plan == Plan::RESCUE { left + 1 } else { left });
    }
}

/// A flow that ends leaves nothing at the server, even if it ends before its new owner
/// has written it back.
#[test]
fn an_end_reaches_the_server() {
    let mut world = World::new(2, Plan::RESCUE);
    world.process(0, 1);
    world.process(0, 2);
    world.talk();
    let Side { flows, protection, out, .. } = world.at(0);
    let slot = flows.find(&key(1), flows.hash(&key(1))).expect("it is there").slot;
    protection.ended(flows, slot, out);
    flows.remove(slot);
    world.talk();
    assert_eq!(world.pages.flows().len(), 1);
    // The flow moves here from the first runtime, and ends at once.
    let block = {
        let Side { flows, protection, out, .. } = world.at(0);
        let slot = flows.find(&key(2), flows.hash(&key(2))).expect("it is there").slot;
        assert!(protection.departs(flows, slot, peer(1), Epoch::new(500), out));
        flows.header_mut(slot).epoch = Epoch::new(500);
        let block = flows.block(slot).to_vec();
        flows.remove(slot);
        block
    };
    let Side { flows, protection, out, .. } = world.at(1);
    let slot = flows.insert_owned(key(2), flows.hash(&key(2))).expect("there is room");
    flows.overwrite(slot, &block).expect("there is room");
    protection.arrived(flows, slot, peer(0));
    protection.ended(flows, slot, out);
    flows.remove(slot);
    world.talk();
    assert_eq!(world.pages.flows().len(), 0);
}

/// A record that is cut short, too long, or of an unknown kind is refused on either side,
/// and changes nothing.
#[test]
fn records_are_checked() {
    let mut world = World::new(3, Plan::RESCUE);
    for flow in 0..9 {
        world.process(usize::from(flow % 3), flow);
        world.process(usize::from(flow % 3), flow);
    }
    world.talk();
    (0..9).for_each(|flow| world.process(usize::from(flow % 3), flow));
    world.epoch = 500;
    let Side { flows, protection, out, .. } = world.at(0);
    let slot = flows.find(&key(0), flows.hash(&key(0))).expect("it is there").slot;
    assert!(protection.departs(flows, slot, peer(1), Epoch::new(500), out));
    flows.remove(slot);
    world.talk();
    world.die(2);
    world.talk();
    world.process(1, 4);
    world.process(0, 4);
    world.talk();
    let blocks = |flows: &Flows| {
        flows.iter().map(|(slot, _)| flows.block(slot).to_vec()).collect::<Vec<_>>()
    };
    let kinds = |list: &[(Peer, u8, Vec<u8>)]| {
        list.iter().map(|(_, kind, _)| *kind).collect::<std::collections::BTreeSet<u8>>()
    };
    let at_server = [kind::STATE, kind::DELTA, kind::CHECK, kind::PASS, kind::RECALL, kind::DEALT];
    let at_runtime = [kind::SAVED, kind::DEAL, kind::RECALLED, kind::DISPLACED];
    assert!(
        at_server.iter().all(|kind| kinds(&world.said).contains(kind)),
        "{:?}",
        kinds(&world.said)
    );
    assert!(
        at_runtime.iter().all(|kind| kinds(&world.answered).contains(kind)),
        "{:?}",
        kinds(&world.answered)
    );
    world.begin();
    let before = blocks(world.pages.flows());
    for (from, kind, body) in world.said.clone() {
        let long = [&body[..], &[0]].concat();
        for wrong in (0..body.len()).map(|len| &body[..len]).chain([&long[..]]) {
            let refused = world.pages.handle_record(from, kind, wrong);
            assert!(refused.is_err(), "kind {kind} with {} of {} bytes", wrong.len(), body.len());
        }
        for kind in [0, 5, 9, 21, 22, 31, 255] {
            assert_eq!(world.pages.handle_record(from, kind, &body), Err(DropReason::Malformed));
        }
    }
    assert_eq!(blocks(world.pages.flows()), before);
    for (to, kind, body) in world.answered.clone() {
        let Some(Side { flows, protection, out, .. }) =
            world.sides.iter_mut().find(|side| side.me == to)
        else {
            continue;
        };
        let before = blocks(flows);
        let long = [&body[..], &[0]].concat();
        for wrong in (0..body.len()).map(|len| &body[..len]).chain([&long[..]]) {
            let refused = protection.handle_record(flows, SERVER, kind, wrong, out);
            assert_eq!(
                refused,
                Err(DropReason::Malformed),
                "kind {kind} with {} of {} bytes",
                wrong.len(),
                body.len()
            );
        }
        for kind in [0, 1, 3, 5, 9, 14, 15, 17, 31, 255] {
            assert_eq!(
                protection.handle_record(flows, SERVER, kind, &body, out),
                Err(DropReason::Malformed)
            );
        }
        for stranger in [peer(0), Peer { incarnation: 9, ..SERVER }] {
            assert_eq!(
                protection.handle_record(flows, stranger, kind, &body, out),
                Err(DropReason::Fenced)
            );
        }
        assert_eq!(blocks(flows), before);
    }
    // A record with a changed byte may mean something else, but causes no panic.
    for (from, kind, body) in world.said.clone() {
        for at in 0..body.len() {
            let mut other = body.clone();
            other[at] ^= 0xff;
            let _ = world.pages.handle_record(from, kind, &other);
        }
        world.pages.flush();
        world.pages.clear_records();
    }
    for (to, kind, body) in world.answered.clone() {
        let Some(Side { flows, protection, out, .. }) =
            world.sides.iter_mut().find(|side| side.me == to)
        else {
            continue;
        };
        for at in 0..body.len() {
            let mut other = body.clone();
            other[at] ^= 0xff;
            let _ = protection.handle_record(flows, SERVER, kind, &other, out);
        }
        protection.flush(flows, out);
        out.clear_records();
    }
}
