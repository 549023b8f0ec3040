//! Exchanges between an owner and its replicas, record by record.

use super::release_mode::ReleaseMode;
use super::*;
use holdfast_wire::{MemoryPool, NodeId, PacketPool};

const STATE_LEN: usize = 120;
const A: Peer = Peer { node: NodeId::new(16), incarnation: 1 };
const B: Peer = Peer { node: NodeId::new(17), incarnation: 2 };
const C: Peer = Peer { node: NodeId::new(18), incarnation: 3 };
const SECOND: u64 = 1_000_000_000;
/// The acknowledgement of a holder that has answered, but has none of the records that a
/// test sends: the number before the first, as when counts have wrapped.
const BEFORE_ALL: Commit = Commit::new(u32::MAX);

fn key(flow: u16) -> FlowKey {
    FlowKey { source_port: flow, destination_port: 80, protocol: 17, ..FlowKey::default() }
}

type Sent = (Peer, u8, Vec<u8>);

struct Node {
    me: Peer,
    protection: NfvActor,
    flows: Flows,
    out: Outbox,
    pool: MemoryPool,
    now: u64,
}

impl Node {
    fn new(me: Peer, capacity: usize, peers: &[Peer]) -> Node {
        Node::with(Plan::NFVACTOR_AT_SOURCE, me, capacity, peers, Detour::None)
    }

    fn with(plan: Plan, me: Peer, capacity: usize, peers: &[Peer], detour: Detour) -> Node {
        let mut node = Node {
            me,
            protection: NfvActor::new(plan),
            flows: Flows::new(capacity, STATE_LEN, 7, 3),
            out: Outbox::default(),
            pool: MemoryPool::new(64),
            now: SECOND,
        };
        node.protection.set_detours(&[A, B, C].map(|peer| (peer, detour)));
        node.set_peers(peers);
        node
    }

    fn set_peers(&mut self, peers: &[Peer]) {
        self.protection.set_peers(&mut self.flows, peers, &[], &mut self.out);
    }

    fn slot(&self, flow: u16) -> Option<Slot> {
        self.flows.find(&key(flow), self.flows.hash(&key(flow))).map(|found| found.slot)
    }

    fn open(&mut self, flow: u16, epoch: u32) -> Slot {
        let slot = self.flows.insert_owned(key(flow), self.flows.hash(&key(flow))).unwrap();
        self.flows.header_mut(slot).epoch = Epoch::new(epoch);
        slot
    }

    fn drained(&mut self, flow: u16) -> bool {
        let slot = self.slot(flow).unwrap();
        self.protection.has_drained(&self.flows, slot, &mut Outbox::default())
    }

    /// A packet of a flow, which changes one more byte of its state.
    fn packet(&mut self, flow: u16) {
        self.packet_of(flow, 60, 1);
    }

    /// A packet of this length that changes so many bytes.
    fn packet_of(&mut self, flow: u16, len: usize, changes: usize) {
        let slot = self.slot(flow).unwrap_or_else(|| self.open(flow, u32::from(flow) + 1));
        assert_eq!(self.protection.admit(&mut self.flows, slot), Admission::Ready);
        let (header, state) = self.flows.parts_mut(slot);
        header.last_stamp += 1000;
        header.count(0, len as u16);
        let at = state.iter().position(|byte| *byte == 0).unwrap_or(0);
        state[at] = at as u8 + 1;
        state[1..changes].iter_mut().for_each(|byte| *byte = byte.wrapping_add(3) | 1);
        let mut packet = self.pool.take().unwrap();
        assert!(packet.copy_from(&vec![0; len]));
        self.protection.commit(&mut self.flows, slot, packet, false, &mut self.out);
    }

    /// Ends a turn, with so much room in every channel.
    fn turn_with(&mut self, room: usize) -> Vec<Sent> {
        self.now += 1;
        let peers: Vec<Peer> = self.protection.peers.clone();
        self.out.begin(0, self.now);
        self.out.set_peers(peers.into_iter().map(|peer| (peer, room)));
        self.protection.flush(&mut self.flows, &mut self.out);
        let sent = self
            .out
            .records()
            .map(|(record, body)| (record.to, record.kind, body[2..].to_vec()))
            .collect();
        self.out.clear_records();
        sent
    }

    fn turn(&mut self) -> Vec<Sent> {
        self.turn_with(1 << 20)
    }

    fn take(&mut self, from: Peer, (_, kind, body): &Sent) -> Result<(), DropReason> {
        self.protection.handle_record(&mut self.flows, from, *kind, body, &mut self.out)
    }

    fn released(&mut self) -> usize {
        let released = core::mem::take(&mut self.out.released);
        let count = released.len();
        released.into_iter().for_each(|packet| self.pool.put(packet.into_inner()));
        count
    }

    fn safe(&self) -> bool {
        let safety = self.protection.safety(&self.flows);
        safety.unprotected == 0 && !safety.resynchronising
    }
}

/// Runtime A, whose packets leave at once while no more than three of a flow would be
/// undone.
fn at_once() -> Node {
    let plan = Plan { unsaved_packets: 3, ..Plan::NFVACTOR_AT_ONCE };
    let mut a = Node::with(plan, A, 8, &[B], Detour::None);
    a.protection.ask_not_before = 10 * SECOND;
    a
}

/// Delivers records to the nodes that are there until all are quiet. Returns all records
/// that were sent.
fn talk(nodes: &mut [&mut Node]) -> Vec<(u16, u8)> {
    let mut said = Vec::new();
    for _ in 0..100 {
        let mut was_quiet = true;
        for at in 0..nodes.len() {
            let from = nodes[at].me;
            for sent in nodes[at].turn() {
                was_quiet = false;
                said.push((sent.0.node.get(), sent.1));
                if let Some(to) = nodes.iter_mut().find(|node| node.me == sent.0) {
                    let _ = to.take(from, &sent);
                }
            }
        }
        if was_quiet && !nodes.iter().any(|node| node.protection.is_busy()) {
            return said;
        }
    }
    panic!("they never came to rest: {said:?}");
}

/// A state that no packet waits for is under way for long. Its flow does not count as
/// safe until the replica has acknowledged it.
#[test]
fn a_state_that_is_late_and_not_waited_for_is_no_copy() {
    let (mut a, mut b) = (at_once(), Node::new(B, 8, &[A]));
    a.packet(1);
    talk(&mut [&mut a, &mut b]);
    a.packet(1);
    let sent = a.turn();
    assert!(a.released() == 2 && a.safe());
    a.now += SECOND;
    a.turn();
    assert!(!a.safe());
    b.take(A, &sent[0]).unwrap();
    talk(&mut [&mut a, &mut b]);
    assert!(a.safe());
}

fn kinds(sent: &[Sent]) -> Vec<(u16, u8)> {
    sent.iter().map(|(to, kind, _)| (to.node.get(), *kind)).collect()
}

/// True if the copy equals its owner's state.
fn agree(owner: &Node, holder: &Node, flow: u16) -> bool {
    let (Some(one), Some(other)) = (owner.slot(flow), holder.slot(flow)) else { return false };
    let is_version = owner.flows.header(one).version == holder.flows.header(other).version;
    is_version && !delta::differ(owner.flows.block(one), holder.flows.block(other))
}

/// Runtimes A and B, and a flow of A of which B has a copy.
fn pair() -> (Node, Node) {
    let (mut a, mut b) = (Node::new(A, 8, &[B]), Node::new(B, 8, &[A]));
    a.packet(1);
    talk(&mut [&mut a, &mut b]);
    assert!(agree(&a, &b, 1) && a.released() == 1 && a.safe());
    (a, b)
}

/// Three packets of a flow come in one batch, then one in each of two batches before any
/// answer. Every batch sends one delta, far shorter than the block, and the copy follows.
#[test]
fn a_batch_sends_one_record_of_what_has_changed() {
    let (mut a, mut b) = pair();
    let mut all = Vec::new();
    for packets in [3, 1, 1] {
        (0..packets).for_each(|_| a.packet(1));
        let sent = a.turn();
        assert_eq!(kinds(&sent), [(17, kind::DELTA)]);
        assert!(sent[0].2.len() < 70, "{} bytes", sent[0].2.len());
        all.extend(sent);
    }
    for sent in &all {
        b.take(A, sent).unwrap();
    }
    assert!(agree(&a, &b, 1));
    talk(&mut [&mut a, &mut b]);
    assert_eq!(a.released(), 5);
}

/// Packets leave at once until a failure would undo more of their flow than the limit.
/// Later packets wait, and leave in order as the replica acknowledges states.
#[test]
fn packets_leave_at_once_until_too_many_would_be_undone() {
    let (mut a, mut b) = (at_once(), Node::new(B, 8, &[A]));
    let mut sent = Vec::new();
    for left in [1, 1, 1, 0, 0] {
        a.packet(1);
        sent.extend(a.turn());
        assert_eq!(a.released(), left, "after {} records", sent.len());
    }
    assert_eq!((sent.len(), a.protection.held()), (5, 2));
    for (record, left) in sent.iter().zip([1, 1, 0, 0, 0]) {
        b.take(A, record).unwrap();
        for answer in b.turn() {
            a.take(B, &answer).unwrap();
        }
        assert_eq!(a.released(), left);
    }
    // A batch of more packets than the limit waits as a whole.
    (0..4).for_each(|_| a.packet(1));
    sent = a.turn();
    assert_eq!((a.released(), a.protection.held()), (0, 4));
    assert!(!a.drained(1));
    b.take(A, &sent[0]).unwrap();
    talk(&mut [&mut a, &mut b]);
    assert_eq!(a.released(), 4);
    assert!(a.drained(1) && a.safe() && agree(&a, &b, 1));
}

/// Runtime B has no room for a flow whose packets leave at once. Waiting packets leave
/// nevertheless and are counted, and the flow does not count as safe.
#[test]
fn packets_that_leave_at_once_do_so_without_a_replica() {
    let (mut a, mut b) = (at_once(), Node::new(B, 0, &[A]));
    let sent: Vec<Sent> = (0..5)
        .flat_map(|_| {
            a.packet(1);
            a.turn()
        })
        .collect();
    assert_eq!((a.released(), a.protection.held()), (3, 2));
    for record in &sent {
        let _ = b.take(A, record);
    }
    for answer in b.turn() {
        let _ = a.take(B, &answer);
    }
    assert_eq!((a.released(), a.out.released_unprotected, a.out.dropped.len()), (2, 2, 0));
    assert!(!a.safe());
}

/// The replica dies and comes back as another incarnation, and later another runtime
/// takes its place. A holder without the flow gets its whole state first, and deltas
/// afterwards.
#[test]
fn who_has_nothing_gets_everything() {
    let (mut a, _) = pair();
    let reborn = Peer { incarnation: 9, ..B };
    for holder in [reborn, C] {
        let mut fresh = Node::new(holder, 8, &[A]);
        a.set_peers(&[holder]);
        a.packet(1);
        assert_eq!(talk(&mut [&mut a, &mut fresh])[0], (holder.node.get(), kind::STATE));
        a.packet(1);
        assert_eq!(talk(&mut [&mut a, &mut fresh])[0], (holder.node.get(), kind::DELTA));
        assert!(agree(&a, &fresh, 1));
    }
}

/// The channel is full when a delta is to be sent. Its packet is dropped, the next record
/// carries the flow whole, and deltas follow only then.
#[test]
fn after_a_full_channel_the_flow_goes_whole() {
    let (mut a, mut b) = pair();
    a.packet(1);
    assert_eq!(kinds(&a.turn_with(10)), []);
    assert_eq!(a.out.dropped.len(), 1);
    assert!(!a.safe());
    a.packet(1);
    let sent = a.turn();
    assert_eq!(kinds(&sent), [(17, kind::STATE)]);
    b.take(A, &sent[0]).unwrap();
    talk(&mut [&mut a, &mut b]);
    a.packet(1);
    assert_eq!(talk(&mut [&mut a, &mut b])[0], (17, kind::DELTA));
    assert!(agree(&a, &b, 1) && a.safe());
}

/// A flow changes outside of a packet's way through the chain: a packet waits in the
/// middle, a function panics, or the route is given anew. The next record carries the
/// flow whole, and the copy equals the owner's state.
#[test]
fn what_changes_otherwise_goes_whole() {
    let (mut a, mut b) = pair();
    let slot = a.slot(1).unwrap();
    a.protection.admit(&mut a.flows, slot);
    a.flows.parts_mut(slot).1[100] = 77;
    assert_eq!(kinds(&a.turn()), []);
    a.packet(1);
    assert_eq!(talk(&mut [&mut a, &mut b])[0], (17, kind::STATE));
    assert!(agree(&a, &b, 1));

    let header = a.flows.header_mut(slot);
    header.epoch = header.epoch.ahead(5);
    header.flags |= flag::WHOLE;
    a.packet(1);
    assert_eq!(talk(&mut [&mut a, &mut b])[0], (17, kind::STATE));
    assert!(agree(&a, &b, 1));
}

/// Runtime B refuses a flow for want of room while a delta of it is under way. The delta
/// is refused as well, no packet leaves, and C gets the flow whole.
#[test]
fn what_follows_a_refused_record_is_refused() {
    let (mut a, mut b, mut c) =
        (Node::new(A, 8, &[B, C]), Node::new(B, 0, &[A]), Node::new(C, 8, &[A]));
    a.protection.ask_not_before = a.now + SECOND;
    a.packet(1);
    let mut sent = a.turn();
    a.packet(1);
    sent.extend(a.turn());
    assert_eq!(kinds(&sent), [(17, kind::STATE), (17, kind::DELTA)]);
    assert_eq!(b.take(A, &sent[0]), Err(DropReason::FlowTableFull));
    assert_eq!(b.take(A, &sent[1]), Err(DropReason::StaleEpoch));
    for answer in b.turn() {
        let _ = a.take(B, &answer);
    }
    assert_eq!((a.released(), a.out.dropped.len()), (0, 2));
    a.now += SECOND;
    talk(&mut [&mut a, &mut b, &mut c]);
    assert!(agree(&a, &c, 1) && a.safe());
}

/// After a refused record, packets follow without a pause, so that the refusal never
/// finds the latest commit. The flow goes whole all the same, and B, which has room by
/// then, takes it.
#[test]
fn a_refused_flow_that_never_rests_is_taken_again() {
    let (mut a, mut b) = (Node::new(A, 8, &[B]), Node::new(B, 1, &[A]));
    let other = b.open(9, 99);
    let mut late = Vec::new();
    for round in 0..6 {
        a.packet(1);
        let sent = a.turn();
        for record in sent {
            let _ = b.take(A, &record);
        }
        if round == 2 {
            b.flows.remove(other);
        }
        // The answers come a turn late.
        for answer in core::mem::replace(&mut late, b.turn()) {
            let _ = a.take(B, &answer);
        }
    }
    assert!(agree(&a, &b, 1));
    assert!(a.released() > 0);
}

/// A copy does not have the version that its owner believes. The delta is refused, the
/// copy is removed so that nobody finds it later, and the flow comes whole.
#[test]
fn a_copy_that_missed_something_is_replaced() {
    let (mut a, mut b) = pair();
    a.packet(1);
    let missed = a.turn();
    assert_eq!(kinds(&missed), [(17, kind::DELTA)]);
    a.packet(1);
    let sent = a.turn();
    assert_eq!(b.take(A, &sent[0]), Err(DropReason::ReplicaDiffers));
    assert_eq!(b.slot(1), None);
    a.now += SECOND;
    talk(&mut [&mut a, &mut b]);
    a.now += SECOND;
    talk(&mut [&mut a, &mut b]);
    assert!(agree(&a, &b, 1) && a.safe());
}

/// A flow ends, and another flow gets its slot in the same batch. The kept block of the
/// old flow is not taken for the new one's.
#[test]
fn a_slot_used_again_goes_whole() {
    let (mut a, mut b) = pair();
    a.packet(1);
    let slot = a.slot(1).unwrap();
    a.protection.ended(&mut a.flows, slot, &mut a.out);
    a.flows.remove(slot);
    a.packet(2);
    assert_eq!(a.slot(2), Some(slot));
    let said = talk(&mut [&mut a, &mut b]);
    assert!(said.contains(&(17, kind::STATE)) && !said.contains(&(17, kind::DELTA)), "{said:?}");
    assert!(agree(&a, &b, 2) && b.slot(1).is_none());
}

/// A copy is damaged, in a byte that no packet changes. Soon its owner asks, and the copy
/// is removed and counted. The flow does not count as safe until it has come whole again,
/// and then the copy is right.
#[test]
fn a_damaged_copy_is_found_and_mended() {
    let (mut a, mut b) = pair();
    let copy = b.slot(1).unwrap();
    b.flows.parts_mut(copy).1[100] ^= 4;
    a.now += states::ASK_PAUSE;
    let asked = a.turn();
    assert_eq!(kinds(&asked), [(17, kind::CHECK)]);
    assert_eq!(b.take(A, &asked[0]), Err(DropReason::ReplicaDiffers));
    assert_eq!(b.slot(1), None);
    let answers = b.turn();
    assert_eq!(kinds(&answers), [(16, kind::REFUSED), (16, kind::SAVED)]);
    for answer in &answers {
        a.take(B, answer).unwrap();
    }
    assert_eq!(a.protection.safety(&a.flows).differed, 1);
    assert!(!a.safe());
    let mut whole = a.turn();
    whole.extend(a.turn());
    assert_eq!(kinds(&whole), [(17, kind::STATE)]);
    assert!(!a.safe());
    b.take(A, &whole[0]).unwrap();
    for answer in b.turn() {
        a.take(B, &answer).unwrap();
    }
    assert!(a.safe() && agree(&a, &b, 1));
}

/// Flows change in every batch while their copies are asked about, and answers come late.
/// The holder always compares the same version, so no copy counts as different. Flows
/// with unsent changes are not asked about.
#[test]
fn questions_keep_to_the_order_of_the_states() {
    let (mut a, mut b) = pair();
    let mut asked = 0;
    for round in 0..100 {
        a.packet(1);
        a.packet(2 + round % 3);
        a.now += states::ASK_PAUSE / 3;
        let room = if round % 10 == 5 { 30 } else { 1 << 20 };
        for sent in a.turn_with(room) {
            asked += usize::from(sent.1 == kind::CHECK);
            b.take(A, &sent).unwrap();
        }
        if round % 7 == 0 {
            b.turn().iter().for_each(|answer| a.take(B, answer).unwrap());
        }
        a.out.dropped.drain(..).for_each(|(packet, _)| a.pool.put(packet));
        a.released();
    }
    assert!(asked > 50, "only {asked} questions");
    talk(&mut [&mut a, &mut b]);
    assert_eq!(a.protection.safety(&a.flows).differed, 0);
    assert!((1..5).all(|flow| agree(&a, &b, flow)));
}

/// There are many flows and many copies. Each round asks about a few of them, in turn,
/// and after enough rounds every copy has been asked about once.
#[test]
fn questions_are_few_and_go_around() {
    let (mut a, mut b) = (Node::new(A, 50, &[B]), Node::new(B, 50, &[A]));
    for flow in 0..50 {
        a.packet(flow);
        talk(&mut [&mut a, &mut b]);
        a.released();
    }
    a.protection.ask_at = 0;
    let mut slots = Vec::new();
    for _ in 0..4 {
        a.now += states::ASK_PAUSE;
        let asked = a.turn();
        assert!(asked.len() <= 16 && a.turn().is_empty());
        slots.extend(asked.iter().map(|sent| delta::split_check(&sent.2).unwrap().hash));
    }
    slots.truncate(50);
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 50);
}

/// There are as many holders as flows. Each round asks four of them, and after enough
/// rounds every holder has been asked once.
#[test]
fn few_holders_are_asked_at_a_time() {
    let peers: Vec<Peer> =
        (17..49).map(|node| Peer { node: NodeId::new(node), incarnation: 1 }).collect();
    let mut a = Node::new(A, 32, &peers);
    (0..32).for_each(|flow| a.packet(flow));
    let states = a.turn();
    assert_eq!(states.iter().filter(|sent| sent.1 == kind::STATE).count(), 32);
    a.protection.ask_at = 0;
    let mut holders = Vec::new();
    for _ in 0..8 {
        a.now += states::ASK_PAUSE;
        let asked: Vec<Sent> = a.turn().into_iter().filter(|sent| sent.1 == kind::CHECK).collect();
        assert_eq!(asked.len(), 4);
        holders.extend(asked.iter().map(|sent| sent.0));
    }
    holders.sort_unstable();
    holders.dedup();
    assert_eq!(holders.len(), 32);
}

/// Runtime A chooses a release mode, with B at this detour, for a flow whose packets have
/// this length and change so many bytes of state. Returns how many packets were handed
/// over and how many were latched, in batches for so long that the mode is decided more
/// than once.
fn choose(detour: Detour, len: usize, changes: usize) -> (usize, usize) {
    let mut a = Node::with(Plan::NFVACTOR_AUTO, A, 8, &[B], detour);
    let mut b = Node::with(Plan::NFVACTOR_AUTO, B, 8, &[A], detour);
    let (mut handed, mut latched) = (0, 0);
    for round in 0..40 {
        a.now += release_mode::WATCHED / 10;
        a.packet_of(1, len, changes);
        for sent in a.turn() {
            b.take(A, &sent).unwrap();
        }
        if round >= 20 {
            handed += a.out.handed.len();
            latched += a.protection.held();
        }
        for (_, packet) in a.out.handed.drain(..) {
            a.pool.put(packet);
        }
        for (_, commit) in core::mem::take(&mut a.out.marks) {
            b.protection.handle_mark(A, commit);
        }
        for _ in 0..2 {
            b.turn().iter().for_each(|answer| a.take(B, answer).unwrap());
        }
        a.released();
    }
    (handed, latched)
}

/// The cheaper mode is chosen. Without a detour every packet is handed over, and if the
/// way leads back here none is. In between, packets are handed over if their states take
/// more bytes than the packets.
#[test]
fn the_cheaper_way_is_chosen() {
    assert_eq!(choose(Detour::None, 1400, 1), (20, 0));
    assert_eq!(choose(Detour::ThereAndBack, 20, 110), (0, 20));
    assert_eq!(choose(Detour::Longer, 1400, 110), (0, 20));
    assert_eq!(choose(Detour::Longer, 60, 1), (0, 20));
    assert_eq!(choose(Detour::Longer, 20, 110), (20, 0));
}

/// A link changes from hand-over to the latch while handed packets have not left, and
/// back while latched ones have not. No later packet leaves before them, and in the end
/// every packet has left.
#[test]
fn a_change_of_the_way_keeps_the_order() {
    let mut a = Node::with(Plan::NFVACTOR_AUTO, A, 8, &[B], Detour::Longer);
    let mut b = Node::with(Plan::NFVACTOR_AUTO, B, 8, &[A], Detour::Longer);
    a.protection.plan.fickle_every = Some(u64::MAX / 2);
    a.protection.links[0].choice.mode = ReleaseMode::HandOver;
    a.protection.links[0].numbers.saved = BEFORE_ALL;
    a.protection.links[0].reconsider(a.now, None, &mut Outbox::default());
    let states = |a: &mut Node| {
        a.turn().into_iter().filter(|sent| sent.1 != kind::CHECK).collect::<Vec<Sent>>()
    };

    // A packet is handed over, and B has not received it yet.
    a.packet(1);
    let mut to_b = states(&mut a);
    assert_eq!((a.out.handed.len(), a.protection.held()), (1, 0));
    let (_, first) = a.out.handed.pop().unwrap();
    // From now on packets go into the latch, behind that one.
    a.protection.links[0].change(ReleaseMode::Latch, a.now, &mut a.out);
    a.packet(1);
    to_b.extend(states(&mut a));
    assert_eq!((a.out.handed.len(), a.protection.held(), a.out.marks.len()), (0, 1, 1));
    for sent in to_b.drain(..) {
        b.take(A, &sent).unwrap();
    }
    b.turn().iter().for_each(|answer| a.take(B, answer).unwrap());
    assert_eq!(a.released(), 0, "its state is saved, but what was handed over has not left");
    assert!(!a.drained(1));
    b.protection.handle_handed(&mut b.flows, A, first, &mut b.out);
    let (_, mark) = a.out.marks.pop().unwrap();
    b.protection.handle_mark(A, mark);
    let answers = b.turn();
    assert_eq!(b.released(), 1);
    answers.iter().for_each(|answer| a.take(B, answer).unwrap());
    assert_eq!(a.released(), 0, "it leaves B in the same turn as the answer would");
    b.turn().iter().for_each(|answer| a.take(B, answer).unwrap());
    assert_eq!(a.released(), 1);

    // A packet is in the latch; from now on packets are handed over, behind it.
    a.packet(1);
    to_b.extend(states(&mut a));
    a.protection.links[0].change(ReleaseMode::HandOver, a.now, &mut a.out);
    a.packet(1);
    to_b.extend(states(&mut a));
    assert_eq!((a.out.handed.len(), a.protection.held()), (0, 2));
    for sent in to_b.drain(..) {
        b.take(A, &sent).unwrap();
    }
    b.turn().iter().for_each(|answer| a.take(B, answer).unwrap());
    assert_eq!((a.released(), a.out.handed.len(), a.protection.held()), (1, 1, 0));
    a.packet(1);
    states(&mut a);
    assert_eq!((a.out.handed.len(), a.protection.held()), (2, 0));
}

/// Runtime B has been handed a packet of a flow and leaves. C gets the flow's next state,
/// whose packet waits at A until B says that its packet has left. C may have no room.
fn behind_a_leaving_holder(is_full: bool) -> Node {
    let mut a = Node::with(Plan::NFVACTOR, A, 8, &[B], Detour::None);
    a.protection.links[0].numbers.saved = BEFORE_ALL;
    let mut c = Node::new(C, 1, &[A]);
    if is_full {
        c.open(2, 1);
    }
    a.packet(1);
    a.turn();
    let (_, first) = a.out.handed.pop().unwrap();
    a.pool.put(first);
    a.protection.plan.release = Release::Source;
    a.protection.set_peers(&mut a.flows, &[C], &[B], &mut a.out);
    a.packet(1);
    for sent in a.turn().iter().filter(|sent| sent.0 == C) {
        let _ = c.take(A, sent);
    }
    assert_eq!((a.released(), a.protection.held()), (0, 1), "it waits");
    c.turn().iter().for_each(|answer| a.take(C, answer).unwrap());
    a
}

/// The waiting packet's state is saved before the earlier packet has left. When that one
/// has left, the packet leaves without a further acknowledgement.
#[test]
fn what_waited_behind_a_leaving_holder_leaves() {
    let mut a = behind_a_leaving_holder(false);
    let (_, mark) = a.out.marks.pop().unwrap();
    a.take(B, &(A, kind::PASSED, mark.to_be_bytes().to_vec())).unwrap();
    a.turn();
    assert_eq!((a.released(), a.protection.held()), (1, 0));
}

/// The waiting packet's state was refused, so no runtime has it. The packet never leaves,
/// even when a later state is saved.
#[test]
fn what_was_refused_behind_a_leaving_holder_never_leaves() {
    let mut a = behind_a_leaving_holder(true);
    assert_eq!((a.out.dropped.len(), a.protection.held()), (1, 0));
    let (_, mark) = a.out.marks.pop().unwrap();
    a.take(B, &(A, kind::PASSED, mark.to_be_bytes().to_vec())).unwrap();
    a.turn();
    assert_eq!(a.released(), 0);
}

/// Runtime B has been handed a packet and leaves, and there is no other runtime; then C
/// comes. A packet that waited without a holder leaves before one that waited for C.
#[test]
fn what_had_no_holder_is_not_overtaken_by_what_has_one() {
    let mut a = Node::with(Plan::NFVACTOR, A, 8, &[B], Detour::None);
    a.protection.links[0].numbers.saved = BEFORE_ALL;
    let mut c = Node::new(C, 8, &[A]);
    a.packet(1);
    a.turn();
    let (_, first) = a.out.handed.pop().unwrap();
    a.pool.put(first);
    a.protection.plan.release = Release::Source;
    a.protection.set_peers(&mut a.flows, &[], &[B], &mut a.out);
    a.packet_of(1, 70, 1);
    a.turn();
    a.protection.set_peers(&mut a.flows, &[C], &[B], &mut a.out);
    a.packet_of(1, 80, 1);
    let save = |a: &mut Node, c: &mut Node| {
        for sent in a.turn().iter().filter(|sent| sent.0 == C) {
            c.take(A, sent).unwrap();
        }
        c.turn().iter().for_each(|answer| a.take(C, answer).unwrap());
    };
    save(&mut a, &mut c);
    assert_eq!((a.out.released.len(), a.protection.held()), (0, 2), "both wait");
    let (_, mark) = a.out.marks.pop().unwrap();
    a.take(B, &(A, kind::PASSED, mark.to_be_bytes().to_vec())).unwrap();
    save(&mut a, &mut c);
    a.turn();
    let left: Vec<usize> =
        a.out.released.drain(..).map(|released| released.into_inner().len()).collect();
    assert_eq!((left, a.protection.held()), (vec![70, 80], 0));
}

/// The other runtime has just begun and may not know the sender yet, so a packet handed
/// over could be lost. In either release mode, packets wait here until it has answered,
/// and later packets go behind them.
#[test]
fn nothing_is_handed_to_who_has_not_answered() {
    let mut a = Node::with(Plan::NFVACTOR, A, 8, &[B], Detour::None);
    let mut b = Node::with(Plan::NFVACTOR, B, 8, &[A], Detour::None);
    a.packet(1);
    let first = a.turn();
    a.packet(1);
    let second = a.turn();
    assert_eq!((a.out.handed.len(), a.protection.held()), (0, 2));
    first.iter().for_each(|sent| b.take(A, sent).unwrap());
    b.turn().iter().for_each(|answer| a.take(B, answer).unwrap());
    assert_eq!((a.released(), a.protection.held()), (1, 1));
    a.packet(1);
    let third = a.turn();
    assert_eq!((a.out.handed.len(), a.protection.held()), (0, 2), "it waits behind what waits");
    second.iter().chain(&third).for_each(|sent| b.take(A, sent).unwrap());
    b.turn().iter().for_each(|answer| a.take(B, answer).unwrap());
    assert_eq!((a.released(), a.out.handed.len(), a.protection.held()), (1, 1, 0));
}

/// A flow moves from A to B on the same host, and C holds the copies of both. The copy of
/// A's state at C is needed until C has saved B's, and no longer.
#[test]
fn a_flow_that_moves_within_a_host_needs_its_earlier_copy() {
    let (mut a, mut b, mut c) =
        (Node::new(A, 8, &[]), Node::new(B, 8, &[]), Node::new(C, 8, &[A, B]));
    for (node, other) in [(&mut a, B), (&mut b, A)] {
        node.protection.set_peers(&mut node.flows, &[C], &[other], &mut node.out);
    }
    a.packet(1);
    talk(&mut [&mut a, &mut c]);
    let slot = a.slot(1).unwrap();
    assert!(!a.protection.needs_earlier(slot));
    a.flows.header_mut(slot).epoch = Epoch::new(9);
    let arrived = b.open(1, 9);
    b.flows.overwrite(arrived, a.flows.block(slot)).unwrap();
    a.flows.step(slot, Event::Choose);
    a.flows.step(slot, Event::Send);
    assert!(a.protection.departed(&mut a.flows, slot, B, Epoch::new(2), &mut a.out));
    b.protection.arrived(&mut b.flows, arrived, A);
    let sent = b.turn();
    assert!(b.protection.needs_earlier(arrived), "what B has is on its way");
    sent.iter().filter(|sent| sent.0 == C).for_each(|sent| c.take(B, sent).unwrap());
    talk(&mut [&mut a, &mut b, &mut c]);
    assert!(!b.protection.needs_earlier(arrived) && agree(&b, &c, 1));
    assert_eq!(a.released(), 1);
}
