//! Exchanges between a runtime and its peers, record by record.

use super::restore::{SHORT_TIMEOUT, TIMEOUT};
use super::*;
use crate::flows::{Event, Life};
use crate::plan::Plan;
use crate::{Epoch, Protection, Slot, kind};
use holdfast_wire::{FlowKey, MemoryPool, NodeId, PacketPool};

const MILLISECOND: u64 = 1_000_000;
const STATE_LEN: usize = 16;

fn peer(node: NodeId, incarnation: u32) -> Peer {
    Peer { node, incarnation }
}

fn key(flow: u16) -> FlowKey {
    FlowKey { source_port: flow, destination_port: 80, protocol: 17, ..FlowKey::default() }
}

struct Node {
    me: Peer,
    protection: NfvActor,
    flows: Flows,
    out: Outbox,
    pool: MemoryPool,
}

type Sent = (Peer, u8, Vec<u8>);

impl Node {
    fn new(me: Peer, capacity: usize, peers: &[Peer]) -> Node {
        let mut node = Node {
            me,
            protection: NfvActor::new(Plan::NFACTOR),
            flows: Flows::new(capacity, STATE_LEN, 7, 3),
            out: Outbox::default(),
            pool: MemoryPool::new(64),
        };
        node.set_peers(peers);
        node
    }

    fn set_peers(&mut self, peers: &[Peer]) {
        self.protection.set_peers(&mut self.flows, peers, &[], &mut self.out);
    }

    /// A packet of a flow, whose state is the count of its packets. Not released before
    /// the turn's end.
    fn packet(&mut self, flow: u16) {
        let slot = match self.find(flow) {
            Some(slot) => slot,
            None => {
                let slot = self.flows.insert_owned(key(flow), self.flows.hash(&key(flow))).unwrap();
                self.flows.header_mut(slot).epoch = Epoch::FIRST;
                slot
            }
        };
        self.flows.parts_mut(slot).1[0] += 1;
        let packet = self.pool.take().unwrap();
        self.protection.commit(&mut self.flows, slot, packet, false, &mut self.out);
        assert!(self.out.released.is_empty());
    }

    fn find(&self, flow: u16) -> Option<Slot> {
        self.flows.find(&key(flow), self.flows.hash(&key(flow))).map(|found| found.slot)
    }

    /// The state and the life of a flow here.
    fn known(&self, flow: u16) -> Option<(u8, Life)> {
        self.find(flow).map(|slot| (self.flows.state(slot)[0], self.flows.header(slot).life()))
    }

    /// Ends a turn at this time, with so much room in every channel.
    fn turn(&mut self, now: u64, room: usize) -> Vec<Sent> {
        let links = self.protection.links.iter().map(|link| link.peer);
        let mut peers: Vec<Peer> = links.chain([A, B, C]).collect();
        peers.sort();
        peers.dedup();
        self.out.begin(0, now);
        self.out.set_peers(peers.into_iter().map(|peer| (peer, room)));
        self.protection.flush(&mut self.flows, &mut self.out);
        let sent = self
            .out
            .records()
            .map(|(record, body)| (record.to, record.kind, body[2..].to_vec()))
            .collect();
        self.out.clear_records();
        for released in self.out.released.drain(..) {
            self.pool.put(released.into_inner());
        }
        sent
    }

    fn take(&mut self, from: Peer, (_, kind, body): &Sent) -> Result<(), DropReason> {
        self.protection.handle_record(&mut self.flows, from, *kind, body, &mut self.out)
    }

    /// The switch grants every route that was asked for.
    fn claim(&mut self, epoch: u32) -> usize {
        let claims = core::mem::take(&mut self.out.late_claims);
        for (_, slot) in &claims {
            self.flows.header_mut(*slot).epoch = Epoch::new(epoch);
            self.protection.claimed(&mut self.flows, *slot);
        }
        claims.len()
    }
}

/// Runs turns of all nodes until all are quiet. Records to absent nodes are lost.
fn talk(nodes: &mut [&mut Node], now: u64) {
    loop {
        let mut was_quiet = true;
        for at in 0..nodes.len() {
            let from = nodes[at].me;
            for sent in nodes[at].turn(now, 1 << 20) {
                was_quiet = false;
                if let Some(to) = nodes.iter_mut().find(|node| node.me == sent.0) {
                    let _ = to.take(from, &sent);
                }
            }
        }
        if was_quiet && !nodes.iter().any(|node| node.protection.is_busy()) {
            return;
        }
    }
}

fn kinds(sent: &[Sent]) -> Vec<(u16, u8)> {
    sent.iter().map(|(to, kind, _)| (to.node.get(), *kind)).collect()
}

const A: Peer = Peer { node: NodeId::new(16), incarnation: 1 };
const B: Peer = Peer { node: NodeId::new(17), incarnation: 2 };
const C: Peer = Peer { node: NodeId::new(18), incarnation: 3 };
/// The next incarnation of A.
const REBORN: Peer = Peer { node: NodeId::new(16), incarnation: 9 };

/// Two runtimes that know each other.
fn pair() -> (Node, Node) {
    (Node::new(A, 8, &[B]), Node::new(B, 8, &[A]))
}

/// Runtime A, and two holders of its snapshots.
fn three() -> (Node, Node, Node) {
    (Node::new(A, 8, &[B, C]), Node::new(B, 8, &[A]), Node::new(C, 8, &[A]))
}

/// Tells the holders that `dead` has failed, and which peers there are from now on.
fn mourn(dead: Peer, holders: &mut [&mut Node], peers: &[Peer]) {
    for node in holders {
        node.set_peers(peers);
        node.protection.recover(&mut node.flows, dead, &mut node.out);
    }
}

/// The next incarnation of the dead, which fetches their flows from these holders.
fn reborn(me: Peer, dead: &[Peer], holders: &[Peer]) -> Node {
    let mut again = Node::new(me, 8, holders);
    for dead in dead {
        again.protection.restore(&mut again.flows, *dead, &mut again.out);
    }
    again
}

/// Delivers the records of this node to their addressees.
fn say(from: &mut Node, now: u64, to: &mut [&mut Node]) {
    let me = from.me;
    for sent in from.turn(now, 1 << 20) {
        if let Some(to) = to.iter_mut().find(|node| node.me == sent.0) {
            to.take(me, &sent).unwrap();
        }
    }
}

/// The number of records of this kind.
fn count(sent: &[Sent], kind: u8) -> usize {
    sent.iter().filter(|sent| sent.1 == kind).count()
}

/// A flow's packets come one per turn. Its state is sent after the first, each time they
/// have doubled, then after every tenth.
#[test]
fn young_flows_are_snapshotted_early_and_old_ones_every_n_packets() {
    let mut a = Node::new(A, 8, &[B]);
    a.turn(1, 1 << 20);
    let due: Vec<u32> = (1..=45)
        .filter(|_| {
            a.packet(1);
            kinds(&a.turn(1, 1 << 20)) == [(17, kind::STATE)]
        })
        .collect();
    assert_eq!(due, [1, 2, 4, 8, 10, 20, 30, 40]);
}

/// Flows are spread. A peer that refuses is not asked again at once, and the other takes
/// its share. If no peer has room, the flow is counted, and sent again later.
#[test]
fn a_refused_snapshot_goes_to_another_and_one_that_nobody_takes_is_counted() {
    let (mut a, mut b, mut c) =
        (Node::new(A, 8, &[B, C]), Node::new(B, 1, &[A]), Node::new(C, 2, &[A]));
    for flow in 0..2 {
        a.packet(flow);
    }
    talk(&mut [&mut a, &mut b, &mut c], 1);
    assert_eq!((b.flows.len(), c.flows.len()), (1, 1));
    a.packet(2);
    a.packet(3);
    talk(&mut [&mut a, &mut b, &mut c], 1);
    assert_eq!((b.flows.len(), c.flows.len()), (1, 2), "the one that B refused fits at C");
    let safety = a.protection.safety(&a.flows);
    assert_eq!(safety.unprotected, 1);
    // Packets of this flow leave, and are counted.
    let homeless = (0..4)
        .find(|flow| a.flows.header(a.find(*flow).unwrap()).holder() == Peer::default())
        .unwrap();
    let before = a.out.released_unprotected;
    a.packet(homeless);
    assert_eq!(a.out.released_unprotected, before + 1);
    // A flow ends, and its snapshot goes. There is room then, and after a while the other
    // flow has a snapshot.
    let gone = (0..4).find(|flow| *flow != homeless).unwrap();
    let slot = a.find(gone).unwrap();
    a.protection.ended(&mut a.flows, slot, &mut a.out);
    a.flows.remove(slot);
    talk(&mut [&mut a, &mut b, &mut c], 1 + 2 * REFUSED_PAUSE);
    assert_eq!((b.known(gone), c.known(gone)), (None, None));
    assert!(b.known(homeless).or(c.known(homeless)).is_some());
    talk(&mut [&mut a, &mut b, &mut c], 1 + 4 * REFUSED_PAUSE);
    let safety = a.protection.safety(&a.flows);
    assert_eq!((safety.unprotected, safety.resynchronising), (0, false));
}

/// A holder fails. The other holder gets its flows' snapshots at once, and the flows do
/// not count as safe until it has them.
#[test]
fn when_a_holder_fails_its_snapshots_are_made_anew() {
    let (mut a, mut b, mut c) = three();
    for flow in 0..4 {
        a.packet(flow);
    }
    talk(&mut [&mut a, &mut b, &mut c], 1);
    assert_eq!((b.flows.len(), c.flows.len()), (2, 2));
    a.set_peers(&[C]);
    assert!(a.protection.safety(&a.flows).resynchronising);
    let sent = a.turn(1, 1 << 20);
    assert_eq!(kinds(&sent), [(18, kind::STATE), (18, kind::STATE)]);
    assert!(a.protection.safety(&a.flows).resynchronising, "they are under way");
    for record in &sent {
        c.take(A, record).unwrap();
    }
    talk(&mut [&mut a, &mut c], 1);
    assert_eq!((c.flows.len(), a.protection.safety(&a.flows).resynchronising), (4, false));
}

/// Runtime A dies. Its next incarnation asks both holders, which keep their account open
/// until it has everything. The next incarnation serves the flows as of their snapshots,
/// and the holders get snapshots of the new epoch.
#[test]
fn a_next_incarnation_fetches_from_all_holders() {
    let (mut a, mut b, mut c) = three();
    for _ in 0..9 {
        (0..4).for_each(|flow| a.packet(flow));
        talk(&mut [&mut a, &mut b, &mut c], 1);
    }
    drop(a);
    mourn(A, &mut [&mut b, &mut c], &[]);
    for node in [&mut b, &mut c] {
        node.turn(MILLISECOND, 1 << 20);
        assert!(node.protection.is_recovering(A));
        assert!(node.out.claims.is_empty() && node.out.late_claims.is_empty());
        node.set_peers(&[REBORN]);
    }
    let mut again = reborn(REBORN, &[A], &[B, C]);
    assert!(again.protection.is_recovering(A));
    // The channel has little room: snapshots that do not fit follow later.
    for sent in again.turn(MILLISECOND, 1 << 20) {
        let to = if sent.0 == B { &mut b } else { &mut c };
        to.take(REBORN, &sent).unwrap();
        let some = to.turn(MILLISECOND, 300);
        assert_eq!(count(&some, kind::RESTORED), 1, "{:?}", kinds(&some));
        let me = to.me;
        assert!(to.protection.is_recovering(A));
        for record in &some {
            again.take(me, record).unwrap();
        }
    }
    talk(&mut [&mut again, &mut b, &mut c], MILLISECOND);
    assert!([&again, &b, &c].iter().all(|node| !node.protection.is_recovering(A)));
    assert_eq!(again.claim(5), 4);
    assert!((0..4).all(|flow| again.known(flow) == Some((8, Life::Owned))));
    assert!(
        again.protection.safety(&again.flows).resynchronising,
        "the snapshots are of an older epoch"
    );
    talk(&mut [&mut again, &mut b, &mut c], MILLISECOND);
    assert!(!again.protection.safety(&again.flows).resynchronising);
    assert_eq!((b.flows.len(), c.flows.len()), (2, 2));
    let epochs: Vec<u32> =
        b.flows.iter().chain(c.flows.iter()).map(|(_, header)| header.epoch.get()).collect();
    assert_eq!(epochs, [5; 4]);
}

/// Before its first packet or message, the next incarnation does not know the time. When
/// it does, its request looks long past, and yet it waits for the answers.
#[test]
fn a_next_incarnation_asks_before_it_knows_the_time() {
    let (mut a, mut b) = pair();
    (0..4).for_each(|flow| a.packet(flow));
    talk(&mut [&mut a, &mut b], 3 * TIMEOUT);
    mourn(A, &mut [&mut b], &[REBORN]);
    let mut again = reborn(REBORN, &[A], &[B]);
    say(&mut again, 0, &mut [&mut b]);
    assert_eq!(again.turn(3 * TIMEOUT, 1 << 20), []);
    talk(&mut [&mut b, &mut again], 3 * TIMEOUT);
    assert_eq!((again.claim(5), b.out.late_claims.len()), (4, 0));
}

/// Snapshots of one holder come before the next incarnation knows the time, those of the
/// other after. Both have come in time.
#[test]
fn a_next_incarnation_that_learns_the_time_between_two_holders_takes_what_both_have() {
    let (mut a, mut b, mut c) = three();
    (0..4).for_each(|flow| a.packet(flow));
    talk(&mut [&mut a, &mut b, &mut c], 3 * TIMEOUT);
    assert_eq!((b.flows.len(), c.flows.len()), (2, 2));
    mourn(A, &mut [&mut b, &mut c], &[REBORN]);
    let mut again = reborn(REBORN, &[A], &[B, C]);
    let asked = again.turn(0, 1 << 20);
    let answer = |node: &mut Node, again: &mut Node| {
        let me = node.me;
        for record in asked.iter().filter(|sent| sent.0 == me) {
            node.take(REBORN, record).unwrap();
        }
        for record in &node.turn(3 * TIMEOUT, 1 << 20) {
            again.take(me, record).unwrap();
        }
    };
    answer(&mut b, &mut again);
    again.turn(0, 1 << 20);
    again.turn(3 * TIMEOUT, 1 << 20);
    answer(&mut c, &mut again);
    talk(&mut [&mut b, &mut c, &mut again], 3 * TIMEOUT);
    assert_eq!((again.claim(5), b.out.late_claims.len(), c.out.late_claims.len()), (4, 0, 0));
}

/// No next incarnation fetches the snapshots: the holder claims the routes itself. An
/// incarnation that asks later gets no snapshot.
#[test]
fn what_nobody_fetches_is_claimed_by_who_has_it() {
    let (mut a, mut b) = pair();
    a.packet(1);
    talk(&mut [&mut a, &mut b], 1);
    mourn(A, &mut [&mut b], &[C]);
    b.turn(MILLISECOND, 1 << 20);
    b.turn(MILLISECOND + TIMEOUT - 1, 1 << 20);
    assert!(b.out.late_claims.is_empty() && b.protection.is_recovering(A));
    b.turn(MILLISECOND + TIMEOUT, 1 << 20);
    assert_eq!(b.out.late_claims.first().map(|(node, _)| *node), Some(NodeId::FIRST_RUNTIME));
    assert_eq!((b.claim(2), b.known(1)), (1, Some((1, Life::Owned))));
    assert!(!b.protection.is_recovering(A));
    b.set_peers(&[C, REBORN]);
    say(&mut reborn(REBORN, &[A], &[B]), MILLISECOND, &mut [&mut b]);
    let answer = b.turn(MILLISECOND + TIMEOUT, 1 << 20);
    assert!(
        !kinds(&answer).contains(&(16, kind::RESTORED))
            && kinds(&answer).contains(&(16, kind::FETCHED))
    );
}

/// The next incarnation dies too, with half of the requested snapshots: the third gets
/// all of them.
#[test]
fn a_second_restart_gets_what_the_first_had_fetched() {
    let (mut a, mut b) = pair();
    (0..4).for_each(|flow| a.packet(flow));
    talk(&mut [&mut a, &mut b], 1);
    let second = peer(NodeId::new(16), 8);
    mourn(A, &mut [&mut b], &[second]);
    say(&mut reborn(second, &[A], &[B]), MILLISECOND, &mut [&mut b]);
    assert_eq!(count(&b.turn(MILLISECOND, 600), kind::RESTORED), 2);
    mourn(second, &mut [&mut b], &[REBORN]);
    let mut third = reborn(REBORN, &[A, second], &[B]);
    talk(&mut [&mut third, &mut b], MILLISECOND);
    assert_eq!(third.claim(5), 4);
    assert!(!b.protection.is_recovering(A) && !b.protection.is_recovering(second));
}

/// Snapshots of one flow come to its next incarnation from two holders. The newer one
/// counts, whichever comes first.
#[test]
fn an_older_snapshot_never_overwrites_a_newer_one() {
    for newer_first in [true, false] {
        let (mut a, mut b, mut c) =
            (Node::new(A, 8, &[B]), Node::new(B, 8, &[A]), Node::new(C, 8, &[A]));
        a.packet(1);
        talk(&mut [&mut a, &mut b], 1);
        // Runtime B is absent for a moment, and C gets the next snapshot.
        a.set_peers(&[C]);
        a.packet(1);
        talk(&mut [&mut a, &mut c], 1);
        assert_eq!((b.known(1), c.known(1)), (Some((1, Life::Copy)), Some((2, Life::Copy))));
        let mut again = reborn(REBORN, &[A], &[B, C]);
        mourn(A, &mut [&mut b, &mut c], &[REBORN]);
        let asked = again.turn(MILLISECOND, 1 << 20);
        let mut holders = if newer_first { [&mut c, &mut b] } else { [&mut b, &mut c] };
        for holder in &mut holders {
            let me = holder.me;
            for sent in asked.iter().filter(|sent| sent.0 == me) {
                holder.take(REBORN, sent).unwrap();
            }
            for sent in holder.turn(MILLISECOND, 1 << 20) {
                let _ = again.take(holder.me, &sent);
            }
        }
        assert_eq!(again.claim(4), 1);
        assert_eq!(again.known(1), Some((2, Life::Owned)), "newer first: {newer_first}");
    }
}

/// A snapshot is under way without an acknowledgement. Its flow does not count as safe
/// until that has come.
#[test]
fn a_snapshot_that_is_late_is_none() {
    let (mut a, mut b) = pair();
    talk(&mut [&mut a, &mut b], 1);
    a.packet(1);
    let sent = a.turn(2, 1 << 20);
    assert_eq!(kinds(&sent), [(17, kind::STATE)]);
    a.turn(2 + LATE, 1 << 20);
    assert!(!a.protection.safety(&a.flows).resynchronising);
    a.turn(3 + LATE, 1 << 20);
    assert!(a.protection.safety(&a.flows).resynchronising);
    b.take(A, &sent[0]).unwrap();
    talk(&mut [&mut a, &mut b], 3 + LATE);
    assert!(!a.protection.safety(&a.flows).resynchronising);
}

/// The next incarnation is there and does not ask. The holder claims its flows sooner
/// than if it had still to come.
#[test]
fn a_next_incarnation_that_does_not_ask_is_not_waited_for() {
    let (mut a, mut b) = pair();
    a.packet(1);
    talk(&mut [&mut a, &mut b], 1);
    mourn(A, &mut [&mut b], &[]);
    b.turn(MILLISECOND, 1 << 20);
    b.set_peers(&[REBORN]);
    let came = MILLISECOND + SHORT_TIMEOUT;
    b.turn(came, 1 << 20);
    b.turn(came + SHORT_TIMEOUT - 1, 1 << 20);
    assert!(
        b.out.late_claims.is_empty() && b.protection.is_recovering(A),
        "it has had less time than that"
    );
    b.turn(came + SHORT_TIMEOUT, 1 << 20);
    assert_eq!((b.claim(2), b.known(1)), (1, Some((1, Life::Owned))));
    assert!(!b.protection.is_recovering(A));
}

/// The switch refuses the route of a flow that was fetched: the holder of its snapshot
/// forgets it too.
#[test]
fn the_snapshot_of_a_refused_claim_is_forgotten() {
    let (mut a, mut b) = pair();
    a.packet(1);
    talk(&mut [&mut a, &mut b], 1);
    mourn(A, &mut [&mut b], &[REBORN]);
    let mut again = reborn(REBORN, &[A], &[B]);
    talk(&mut [&mut again, &mut b], MILLISECOND);
    assert_eq!(b.known(1), Some((1, Life::Copy)));
    let (_, slot) = again.out.late_claims.pop().unwrap();
    again.protection.unclaimed(&mut again.flows, slot);
    again.flows.remove(slot);
    talk(&mut [&mut again, &mut b], MILLISECOND);
    assert_eq!((b.flows.len(), again.protection.links[0].copies), (0, 0));
}

/// A flow moves from A to B. The copy that A keeps is its snapshot, and C, which held the
/// last one, forgets it.
#[test]
fn a_flow_that_moves_has_its_snapshot_where_it_was() {
    let (mut a, mut b, mut c) =
        (Node::new(A, 8, &[B, C]), Node::new(B, 8, &[A, C]), Node::new(C, 8, &[A, B]));
    a.set_peers(&[C]);
    a.packet(1);
    talk(&mut [&mut a, &mut b, &mut c], 1);
    a.set_peers(&[B, C]);
    talk(&mut [&mut a, &mut b, &mut c], 1);
    assert_eq!(c.known(1), Some((1, Life::Copy)));
    move_flow(&mut a, &mut b);
    talk(&mut [&mut a, &mut b, &mut c], 1);
    assert_eq!(
        (a.known(1), b.known(1), c.known(1)),
        (Some((1, Life::Copy)), Some((1, Life::Owned)), None)
    );
    assert!(!b.protection.safety(&b.flows).resynchronising);
    // The flow goes on from there: its next snapshot comes to A.
    b.packet(1);
    assert_eq!(kinds(&b.turn(2, 1 << 20)), [(16, kind::STATE)]);
}

/// A flow moves from A to B on the same host, and C holds the snapshots of both. The
/// snapshot at C stays until C has a newer one, because A's copy would die with B.
#[test]
fn a_flow_that_moves_within_a_host_keeps_its_snapshot() {
    let (mut a, mut b, mut c) =
        (Node::new(A, 8, &[]), Node::new(B, 8, &[]), Node::new(C, 8, &[A, B]));
    for (node, other) in [(&mut a, B), (&mut b, A)] {
        node.protection.set_peers(&mut node.flows, &[C], &[other], &mut node.out);
    }
    let copy = |node: &Node| {
        node.find(1).map(|slot| (node.flows.header(slot).epoch.get(), node.flows.state(slot)[0]))
    };
    a.packet(1);
    talk(&mut [&mut a, &mut b, &mut c], 1);
    move_flow(&mut a, &mut b);
    talk(&mut [&mut a, &mut c], 1);
    assert_eq!(copy(&c), Some((1, 1)), "nobody else has one");
    let slot = b.find(1).unwrap();
    assert!(b.protection.needs_earlier(slot));
    b.packet(1);
    talk(&mut [&mut a, &mut b, &mut c], 2);
    assert!(!b.protection.needs_earlier(slot));
    assert_eq!(
        (copy(&a), copy(&b), copy(&c)),
        (None, Some((2, 2)), Some((2, 2))),
        "what A kept goes, and what is newer stays"
    );
}

/// Moves flow 1 as a migration does, under epoch 2.
fn move_flow(from: &mut Node, to: &mut Node) {
    let slot = from.find(1).unwrap();
    from.flows.header_mut(slot).epoch = Epoch::new(2);
    let arrived = to.flows.insert_owned(key(1), to.flows.hash(&key(1))).unwrap();
    to.flows.overwrite(arrived, from.flows.block(slot)).unwrap();
    from.flows.step(slot, Event::Choose);
    from.flows.step(slot, Event::Send);
    assert!(from.protection.departed(&mut from.flows, slot, to.me, Epoch::FIRST, &mut from.out));
    to.protection.arrived(&mut to.flows, arrived, from.me);
}

/// Runtime B had no room for a snapshot, and gets the flow itself before A knows of the
/// refusal. A does not take the refusal for that of a flow that it gave back.
#[test]
fn a_refusal_from_before_a_move_means_nothing_after_it() {
    let (mut a, mut b) = (Node::new(A, 8, &[B]), Node::new(B, 1, &[A]));
    talk(&mut [&mut a, &mut b], 1);
    let other = b.flows.insert(key(9), b.flows.hash(&key(9)), Event::Open).unwrap();
    a.packet(1);
    for sent in a.turn(1, 1 << 20) {
        assert_eq!(b.take(A, &sent), Err(DropReason::FlowTableFull));
    }
    b.flows.remove(other);
    move_flow(&mut a, &mut b);
    say(&mut b, 1, &mut [&mut a]);
    assert!(a.out.late_claims.is_empty(), "B has the flow");
    assert_eq!(a.known(1), Some((1, Life::Copy)));
}

/// Runtime B gives back an older snapshot than C's. Before it arrives, C is gone and B
/// gets the newest one. The refusal of the older snapshot does not remove the newest.
#[test]
fn a_refused_snapshot_does_not_take_a_newer_one_with_it() {
    let (mut a, mut b, mut c) =
        (Node::new(A, 8, &[B]), Node::new(B, 8, &[A]), Node::new(C, 8, &[A]));
    a.packet(1);
    talk(&mut [&mut a, &mut b], 1);
    a.set_peers(&[C]);
    a.packet(1);
    talk(&mut [&mut a, &mut c], 1);
    let mut again = reborn(REBORN, &[A], &[B, C]);
    mourn(A, &mut [&mut b, &mut c], &[REBORN]);
    say(&mut again, MILLISECOND, &mut [&mut b, &mut c]);
    let older = b.turn(MILLISECOND, 1 << 20);
    for sent in c.turn(MILLISECOND, 1 << 20) {
        let _ = again.take(C, &sent);
    }
    assert_eq!(again.claim(4), 1);
    again.set_peers(&[B]);
    let newest = again.turn(2 * MILLISECOND, 1 << 20);
    assert!(kinds(&newest).contains(&(17, kind::STATE)));
    let older = older.iter().map(|sent| again.take(B, sent)).collect::<Vec<_>>();
    assert!(older.contains(&Err(DropReason::StaleEpoch)), "{older:?}");
    for sent in newest.iter().filter(|sent| sent.1 == kind::STATE) {
        b.take(REBORN, sent).unwrap();
    }
    say(&mut again, 3 * MILLISECOND, &mut [&mut b]);
    assert_eq!(b.known(1), Some((2, Life::Copy)));
}
