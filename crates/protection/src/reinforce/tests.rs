use super::*;
use crate::ChannelRecord;

use holdfast_wire::{FlowKey, MemoryPool, NodeId, PacketPool};

const OWNER: Peer = Peer { node: NodeId::new(16), incarnation: 1 };
const STANDBY: Peer = Peer { node: NodeId::new(17), incarnation: 2 };
const EVERY: u64 = 1_000_000;

/// A runtime's side of a chain: a flow's state is the number of packets.
struct Side {
    flows: Flows,
    protection: Reinforce,
    out: Outbox,
    pool: MemoryPool,
    now: u64,
}

impl Side {
    fn new(me: Peer, other: Peer) -> Side {
        let plan = Plan { checkpoint_every: EVERY, log_bytes: 1 << 20, ..Plan::REINFORCE };
        let mut side = Side {
            flows: Flows::new(64, 8, 7, 99),
            protection: Reinforce::new(plan),
            out: Outbox::default(),
            pool: MemoryPool::new(64),
            now: 1_000,
        };
        side.out.set_peers([(other, 1 << 20)].into_iter());
        side.protection.set_place(&mut side.flows, me, true);
        side.protection.set_peers(&mut side.flows, &[other], &[], &mut side.out);
        side
    }

    fn slot(&mut self, flow: u16) -> Slot {
        let key = key(flow);
        if let Some(found) = self.flows.find(&key, self.flows.hash(&key)) {
            return found.slot;
        }
        let slot = self.flows.insert_owned(key, self.flows.hash(&key)).expect("there is room");
        self.flows.header_mut(slot).epoch = Epoch::new(u32::from(flow) + 1);
        slot
    }

    /// Processes a packet of this flow. Returns its stamp.
    fn process(&mut self, flow: u16, nondeterministic: bool) -> u64 {
        self.now += 10;
        let slot = self.slot(flow);
        let mut packet = self.pool.take().expect("there are buffers");
        packet.meta.stamp = self.now;
        self.out.begin(0, self.now);
        let (header, state) = self.flows.parts_mut(slot);
        header.last_stamp = self.now;
        state[0] += 1;
        self.protection.begin_batch(1, packet.len());
        self.protection.commit(&mut self.flows, slot, packet, nondeterministic, &mut self.out);
        self.now
    }

    /// Ends a batch. Returns the records that are sent, and how many packets leave.
    fn flush(&mut self) -> (Vec<(ChannelRecord, Vec<u8>)>, usize) {
        self.out.begin(0, self.now);
        self.protection.flush(&mut self.flows, &mut self.out);
        let records =
            self.out.records().map(|(record, body)| (record, body[2..].to_vec())).collect();
        self.out.clear_records();
        let released =
            self.out.released.drain(..).map(|packet| self.pool.put(packet.into_inner())).count();
        assert!(self.out.dropped.is_empty());
        (records, released)
    }

    fn take(&mut self, from: Peer, records: &[(ChannelRecord, Vec<u8>)]) {
        for (record, body) in records {
            self.protection
                .handle_record(&mut self.flows, from, record.kind, body, &mut self.out)
                .expect("it is a good record");
        }
    }
}

fn key(flow: u16) -> FlowKey {
    FlowKey { source_port: flow, protocol: 17, ..FlowKey::default() }
}

fn kinds(records: &[(ChannelRecord, Vec<u8>)]) -> Vec<u8> {
    // Questions about copies do not matter here.
    records.iter().map(|(record, _)| record.kind).filter(|kind| *kind != kind::CHECK).collect()
}

/// Delivers records until both sides are quiet. Returns how many packets left at the
/// owner.
fn talk(owner: &mut Side, standby: &mut Side) -> usize {
    let mut left = 0;
    for _ in 0..8 {
        let (records, released) = owner.flush();
        left += released;
        standby.take(OWNER, &records);
        let (answers, _) = standby.flush();
        owner.take(STANDBY, &answers);
    }
    left + owner.flush().1
}

/// The stamps that the standby would replay of a flow, if the owner died now.
fn inputs(standby: &mut Side, flow: u16) -> Vec<u64> {
    standby.protection.recover(&mut standby.flows, OWNER, &mut standby.out);
    let found =
        standby.flows.find(&key(flow), standby.flows.hash(&key(flow))).expect("there is a copy");
    standby.protection.take_inputs(&standby.flows, found.slot)
}

/// The first packet's state is sent, then the stamps of later packets. A
/// non-deterministic packet takes the state along again. No packet leaves before the
/// standby has acknowledged it.
#[test]
fn what_goes_is_the_least_that_makes_it_again() {
    let (mut owner, mut standby) = (Side::new(OWNER, STANDBY), Side::new(STANDBY, OWNER));
    owner.process(1, false);
    let (records, released) = owner.flush();
    assert_eq!((kinds(&records), released), (vec![kind::STATE], 0));
    standby.take(OWNER, &records);
    let answers = standby.flush().0;
    owner.take(STANDBY, &answers);
    assert_eq!(owner.flush().1, 1);

    let stamps = [owner.process(1, false), owner.process(1, false)];
    let (records, released) = owner.flush();
    assert_eq!((kinds(&records), released), (vec![kind::INPUTS], 0));
    assert_eq!(
        records[0].1.len(),
        4 + 8 + 2 * 8,
        "sixteen bytes for two packets, and twelve for the record"
    );
    standby.take(OWNER, &records);
    assert_eq!(talk(&mut owner, &mut standby), 2);
    let slot = standby.slot(1);
    assert!(stamps.iter().all(|stamp| standby.protection.has_input(&standby.flows, slot, *stamp)));

    owner.process(1, false);
    owner.process(1, true);
    let (records, _) = owner.flush();
    assert_eq!(kinds(&records), [kind::STATE], "with it everything before");
    standby.take(OWNER, &records);
    assert_eq!(inputs(&mut standby, 1), [0u64; 0]);
}

/// Inputs of two flows are kept apart, in order, and only those behind the copy count.
#[test]
fn inputs_are_those_behind_the_copy() {
    let (mut owner, mut standby) = (Side::new(OWNER, STANDBY), Side::new(STANDBY, OWNER));
    owner.process(1, false);
    owner.process(2, false);
    assert_eq!(talk(&mut owner, &mut standby), 2);
    let first: Vec<u64> = (0..3).map(|_| owner.process(1, false)).collect();
    owner.process(2, false);
    assert_eq!(talk(&mut owner, &mut standby), 4);
    owner.process(2, true);
    let last = owner.process(1, false);
    assert_eq!(talk(&mut owner, &mut standby), 2);
    let second = owner.process(2, false);
    assert_eq!(talk(&mut owner, &mut standby), 1);
    assert_eq!(inputs(&mut standby, 1), [&first[..], &[last]].concat());
    assert_eq!(inputs(&mut standby, 2), [second]);
    assert_eq!(inputs(&mut standby, 2), [0u64; 0], "each is given out once");
}

/// When a round is due, the states of all flows that are behind are sent. When they have
/// been saved, and not before, the switch may forget, and the standby forgets the inputs
/// up to there. A packet from before the round that comes late takes its state along.
#[test]
fn a_round_ends_when_its_states_are_saved() {
    let (mut owner, mut standby) = (Side::new(OWNER, STANDBY), Side::new(STANDBY, OWNER));
    for flow in 1..=9 {
        owner.process(flow, false);
    }
    talk(&mut owner, &mut standby);
    owner.out.cleared = None;
    for flow in 1..=9 {
        owner.process(flow, false);
    }
    owner.now += EVERY;
    let began = owner.now;
    let mut states = Vec::new();
    for _ in 0..3 {
        states.extend(owner.flush().0);
        assert_eq!(owner.out.cleared, None, "nothing has been saved");
    }
    assert_eq!(kinds(&states), [&[kind::INPUTS][..], &[kind::STATE; 9]].concat());
    // Processed during the round: the input belongs to the next one.
    let late = owner.process(1, false);
    standby.take(OWNER, &states);
    let answers = standby.flush().0;
    owner.take(STANDBY, &answers);
    let (records, _) = owner.flush();
    assert_eq!(kinds(&records), [kind::INPUTS, kind::COVERED]);
    assert_eq!(owner.out.cleared.take(), Some(began));
    standby.take(OWNER, &records);

    owner.now = began - 20;
    let slot = owner.slot(2);
    owner.process(2, false);
    let (records, _) = owner.flush();
    assert_eq!(kinds(&records), [kind::STATE], "nobody has that packet any more");
    assert_eq!(owner.flows.header(slot).flags & flag::BEHIND, 0);
    assert_eq!(inputs(&mut standby, 1), [late]);
}

/// The switch died, or is on this one of several hosts. The state goes with every packet
/// until there is a log again.
#[test]
fn without_a_log_states_go() {
    let (mut owner, mut standby) = (Side::new(OWNER, STANDBY), Side::new(STANDBY, OWNER));
    owner.process(1, false);
    talk(&mut owner, &mut standby);
    owner.process(1, false);
    talk(&mut owner, &mut standby);
    owner.protection.log_lost(&mut owner.flows);
    assert!(owner.protection.safety(&owner.flows).resynchronising);
    talk(&mut owner, &mut standby);
    assert!(!owner.protection.safety(&owner.flows).resynchronising);
    owner.protection.set_place(&mut owner.flows, OWNER, false);
    owner.process(1, false);
    assert_eq!(kinds(&owner.flush().0), [kind::STATE]);
    owner.protection.set_place(&mut owner.flows, OWNER, true);
    owner.process(1, false);
    assert_eq!(kinds(&owner.flush().0), [kind::INPUTS]);
}

/// A state is under way when the log is lost. The standby's copy needs that log until the
/// state has been saved.
#[test]
fn a_state_that_is_on_its_way_is_not_there() {
    let (mut owner, mut standby) = (Side::new(OWNER, STANDBY), Side::new(STANDBY, OWNER));
    for _ in 0..2 {
        owner.process(1, false);
        talk(&mut owner, &mut standby);
    }
    owner.process(1, true);
    let (state, _) = owner.flush();
    assert_eq!(kinds(&state), [kind::STATE]);
    let slot = owner.slot(1);
    assert_eq!(owner.flows.header(slot).flags & flag::BEHIND, 0);
    owner.protection.log_lost(&mut owner.flows);
    assert!(owner.protection.safety(&owner.flows).resynchronising);
    owner.flush();
    assert!(owner.protection.safety(&owner.flows).resynchronising);
    standby.take(OWNER, &state);
    let answers = standby.flush().0;
    owner.take(STANDBY, &answers);
    assert!(!owner.protection.safety(&owner.flows).resynchronising);
}

/// A record that is cut at any length, or has half an input, is refused.
#[test]
fn what_is_malformed_is_refused() {
    let (mut owner, mut standby) = (Side::new(OWNER, STANDBY), Side::new(STANDBY, OWNER));
    owner.process(1, false);
    talk(&mut owner, &mut standby);
    owner.process(1, false);
    let (records, _) = owner.flush();
    let body = &records[0].1;
    for len in 0..body.len() {
        let (Side { flows, protection, out, .. }, cut) = (&mut standby, &body[..len]);
        assert_eq!(
            protection.handle_record(flows, OWNER, kind::INPUTS, cut, out),
            Err(DropReason::Malformed),
            "{len} bytes"
        );
    }
    standby.take(OWNER, &records);
}
