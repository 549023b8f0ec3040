//! Runtimes under `reinforce`, one of which dies: another takes over its flows by replay.
//! The test is the switch, with a log of its own, and the coordinator.

use crate::spot::{SECOND, Spot, bound, frames_of, is_released};
use holdfast_nf::{ConfigError, Context, DropReason, NetworkFunction, Open, Opening, Verdict};
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::{
    Claim, Control, Ended, Grant, Member, MemberState, Replay, kind, numbered,
};
use holdfast_protection::flows::{ActorHeader, Life};
use holdfast_protection::{Epoch, Peer, Plan};
use holdfast_wire::nsh::{self, Flags, index};
use holdfast_wire::{Meta, NodeId, Packet};
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// The epoch under which the switch gave the route, and the first one under which it
/// grants claims.
const EPOCH: u32 = 5;
const GRANTED: u32 = 9;
/// Orders to the function, in a packet's payload.
const PASS: u8 = 0;
const DENY: u8 = 1;
const REFUSE: u8 = 2;
const REJECT: u8 = 3;
const TURN_AWAY: u8 = 4;

holdfast_nf::flow_state! {
    struct Tally {
        packets: u64,
        digest: u64,
    }
}

/// Counts packets, and keeps a digest that depends on their order. Writes the count into
/// the packet.
struct Counter;

impl NetworkFunction for Counter {
    const NAME: &'static str = "counter";
    type Config = ();
    type Flow = Tally;
    type Shared = ();

    fn new((): ()) -> Result<Counter, ConfigError> {
        Ok(Counter)
    }

    fn shared(&self) {}

    fn open(&self, packet: &Packet, _: &mut (), _: &mut Opening<'_>) -> Open<Tally> {
        match packet.bytes()[42] {
            REFUSE => Open::Drop(DropReason::PolicyDenied),
            TURN_AWAY => Open::Reject(DropReason::PolicyDenied),
            _ => Open::Accept(Tally::default()),
        }
    }

    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Tally,
        _: &mut (),
        _: &mut Context,
    ) -> Verdict {
        flow.packets += 1;
        let payload = &mut packet.bytes_mut()[42..];
        flow.digest = flow.digest.wrapping_mul(31).wrapping_add(u64::from(payload[3]));
        let count = (flow.packets as u16).to_be_bytes();
        payload[1..3].copy_from_slice(&count);
        match payload[0] {
            DENY => Verdict::Drop(DropReason::PolicyDenied),
            REJECT => Verdict::Reject(DropReason::PolicyDenied),
            _ => Verdict::Forward,
        }
    }
}

/// A datagram of the flow with this client port. The payload has an order to the
/// function, room for its answer, and a number.
fn datagram(port: u8, order: u8, number: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend_from_slice(&[
        0x45, 0, 0, 32, 0, number, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2, 192, 0, 2, 1,
    ]);
    frame.extend_from_slice(&[0, port, 0, 53, 0, 12, 0, 0, order, 0, 0, number]);
    frame
}

/// As `datagram`, but a reply.
fn reply(port: u8, number: u8) -> Vec<u8> {
    let mut frame = datagram(port, PASS, number);
    let (source, destination) = (frame[26..30].to_vec(), frame[30..34].to_vec());
    frame[26..30].copy_from_slice(&destination);
    frame[30..34].copy_from_slice(&source);
    frame[34..38].copy_from_slice(&[0, 53, 0, port]);
    frame
}

/// A half of a datagram in two fragments, with the number for its identification. Both
/// have the order to the function at the same place.
fn fragment(port: u8, number: u8, is_first: bool) -> Vec<u8> {
    let mut frame = datagram(port, PASS, number);
    // The datagram has eight bytes of UDP header and eight of payload; the second
    // fragment begins behind these sixteen.
    frame.extend_from_slice(&[0; 4]);
    (frame[17], frame[39]) = (36, 24);
    (frame[20], frame[21]) = if is_first { (0x20, 0) } else { (0, 2) };
    if !is_first {
        // The key is where the switch notes it.
        frame[..5].copy_from_slice(&[0, port, 0, 53, 17]);
    }
    frame
}

/// A packet as the switch sent it.
struct Logged {
    stamp: u64,
    epoch: u32,
    frame: Vec<u8>,
}

struct World {
    spots: BTreeMap<u16, Spot>,
    members: Vec<Member>,
    switch: Fabric,
    coordinator: Fabric,
    now: u64,
    /// Packets that the switch has sent, by runtime.
    logs: BTreeMap<u16, Vec<Logged>>,
    /// The most bytes of a log that runtimes have not cleared.
    fullest: usize,
    /// The runtime that hears nothing from other runtimes.
    deaf: Option<u16>,
    /// Released packets: by which runtime, and the count and the number in them.
    released: Vec<(u16, u16, u8)>,
    /// Released packets that were rejected, whose senders are to be told.
    turned: Vec<(u16, u16, u8)>,
    /// The switch answers requests for logged packets that the log is gone.
    is_log_gone: bool,
    /// The switch does not answer requests for logged packets.
    is_log_silent: bool,
    over: Vec<u32>,
    /// Epochs of ended flows, as the switch has heard. For each recovery that is over,
    /// the flows taken over, and the lost ones.
    ended: Vec<u32>,
    recovered: Vec<(u64, u64)>,
}

impl World {
    /// Runtimes from 16 on, each on one of these hosts.
    fn new(hosts: &[u16], plan: Plan) -> World {
        let fabric = |node| Fabric::new(Peer { node, incarnation: 1 }, FabricConfig::default());
        let member = |(at, host): (u16, &u16)| Member {
            node: NodeId::runtime(at),
            incarnation: 1 + u32::from(at),
            state: MemberState::Running,
            cluster: 0,
            host: *host,
        };
        let members: Vec<Member> = (0..).zip(hosts).map(member).collect();
        let spot = |member: &Member| {
            let me = member.peer();
            (me.node.get(), Spot::new(me, vec![bound::<Counter>()], plan.build(), 64, 1024))
        };
        let mut world = World {
            spots: members.iter().map(spot).collect(),
            members,
            switch: fabric(NodeId::SWITCH),
            coordinator: fabric(NodeId::COORDINATOR),
            now: SECOND,
            logs: BTreeMap::new(),
            fullest: 0,
            deaf: None,
            released: Vec::new(),
            turned: Vec::new(),
            is_log_gone: false,
            is_log_silent: false,
            over: Vec::new(),
            ended: Vec::new(),
            recovered: Vec::new(),
        };
        for member in &world.members {
            world.switch.set_peer(member.peer());
            world.coordinator.set_peer(member.peer());
        }
        world.show(1);
        world
    }

    fn show(&mut self, version: u64) {
        let view = Control::View { version, members: self.members.clone() };
        let nodes: Vec<u16> = self.spots.keys().copied().collect();
        nodes
            .iter()
            .for_each(|node| assert!(self.coordinator.send_control(NodeId::new(*node), &view)));
        self.carry(Vec::new());
    }

    fn packet(&mut self, to: u16, frame: &[u8], meta: Meta) -> Vec<u8> {
        self.spots.get_mut(&to).expect("it lives").encapsulated(
            frame,
            index::TO_RUNTIME,
            Meta { switch: 1, ..meta },
        )
    }

    /// The switch sends these frames to this runtime, under that epoch, in one burst.
    fn send(&mut self, to: u16, epoch: u32, is_new: bool, frames: &[Vec<u8>]) {
        let mut burst = Vec::new();
        for frame in frames {
            self.now += 10;
            let stamp = self.now;
            self.logs.entry(to).or_default().push(Logged { stamp, epoch, frame: frame.clone() });
            let flags = if is_new { Flags::NEW } else { 0 };
            burst.push((
                to,
                self.packet(to, frame, Meta { stamp, commit: epoch, flags, ..Meta::default() }),
            ));
        }
        let bytes = self.logs[&to].iter().map(|logged| logged.frame.len() + 16).sum();
        self.fullest = self.fullest.max(bytes);
        self.carry(burst);
    }

    /// Delivers a burst, and all frames that follow from it, until no more are sent.
    fn carry(&mut self, burst: Vec<(u16, Vec<u8>)>) {
        let mut rx: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
        burst.into_iter().for_each(|(to, frame)| rx.entry(to).or_default().push(frame));
        for _ in 0..16 {
            self.now += 1000;
            let now = self.now;
            let to = |frame: &Vec<u8>| {
                frame.first_chunk().and_then(NodeId::of_mac).expect("a node").get()
            };
            for fabric in [&mut self.switch, &mut self.coordinator] {
                frames_of(fabric, now)
                    .into_iter()
                    .for_each(|frame| rx.entry(to(&frame)).or_default().push(frame));
            }
            let mut said = Vec::new();
            for (node, spot) in &mut self.spots {
                let frames = spot.turn(&rx.remove(node).unwrap_or_default(), now);
                said.extend(frames.into_iter().map(|frame| (*node, frame)));
            }
            rx.clear();
            for (from, frame) in said {
                let to = to(&frame);
                if is_released(&frame) {
                    let payload = &frame[nsh::ENCAPSULATION_LEN + 42..];
                    let left = (from, u16::from_be_bytes([payload[1], payload[2]]), payload[3]);
                    self.released.push(left);
                    if frame[18] & Flags::TURNED != 0 {
                        self.turned.push(left);
                    }
                } else if to == NodeId::SWITCH.get() {
                    self.switch.handle_frame(&frame, now).expect("it is for the switch");
                } else if to == NodeId::COORDINATOR.get() {
                    self.coordinator.handle_frame(&frame, now).expect("it is for the coordinator");
                } else if self.spots.contains_key(&to) && self.deaf != Some(to) {
                    rx.entry(to).or_default().push(frame);
                }
            }
            self.answer(&mut rx);
            for (_, body) in
                self.coordinator.inbox.records().filter(|(record, _)| record.kind == kind::NUMBERED)
            {
                if let Ok((_, Control::Recovered { flows, broken, .. })) = numbered(body) {
                    self.recovered.push((flows, broken));
                }
            }
            self.coordinator.inbox.clear();
        }
    }

    /// The switch does as it is told: forgets packets, grants claims, sends packets
    /// again.
    fn answer(&mut self, rx: &mut BTreeMap<u16, Vec<Vec<u8>>>) {
        let records: Vec<(u16, u8, Vec<u8>)> = self
            .switch
            .inbox
            .records()
            .map(|(record, body)| (record.from.node.get(), record.kind, body.to_vec()))
            .collect();
        self.switch.inbox.clear();
        for (from, record, body) in records {
            match record {
                kind::CLEAR => {
                    let stamp = u64::from_be_bytes(body[2..].try_into().expect("a stamp"));
                    self.logs.entry(from).or_default().retain(|logged| logged.stamp > stamp);
                }
                kind::CLAIM => {
                    let (number, claims) = body.split_first_chunk::<4>().expect("a number");
                    let claims = <[Claim]>::ref_from_bytes(claims).expect("claims");
                    let mut answer = number.to_vec();
                    for (granted, claim) in (GRANTED..).zip(claims) {
                        let count = self.of_epoch(claim.epoch().get()).len() as u32;
                        answer.extend(
                            Grant::Given { epoch: Epoch::new(granted), logged: count }.encode(),
                        );
                    }
                    self.switch
                        .send(NodeId::new(from), kind::CLAIMED, &answer)
                        .expect("there is room");
                }
                kind::REPLAY => {
                    let ask = Replay::read_from_bytes(&body).expect("a question");
                    let epoch = ask.epoch.get();
                    let (first, count) = (ask.first.get() as usize, ask.count.get() as usize);
                    if count == 0 {
                        self.over.push(epoch);
                    } else if self.is_log_silent {
                        continue;
                    } else if self.is_log_gone {
                        self.switch
                            .send(NodeId::new(from), kind::UNLOGGED, &epoch.to_be_bytes())
                            .expect("there is room");
                    } else {
                        assert!(count <= Replay::MOST as usize);
                        let of_flow: Vec<(u64, Vec<u8>)> = self
                            .of_epoch(EPOCH)
                            .iter()
                            .map(|logged| (logged.stamp, logged.frame.clone()))
                            .collect();
                        // The packets overtake each other on their way.
                        for number in (first..first + count).rev() {
                            let (stamp, frame) = &of_flow[number];
                            let meta = Meta {
                                stamp: *stamp,
                                flags: Flags::REPLAY,
                                commit: epoch,
                                epoch: number as u16,
                                ..Meta::default()
                            };
                            let packet = self.packet(from, frame, meta);
                            rx.entry(from).or_default().push(packet);
                        }
                    }
                }
                kind::ENDED => {
                    let ended = <[Ended]>::ref_from_bytes(&body).expect("ends");
                    self.ended.extend(ended.iter().map(|ended| ended.epoch.get()));
                }
                _ => {}
            }
        }
    }

    fn of_epoch(&self, epoch: u32) -> Vec<&Logged> {
        self.logs.values().flatten().filter(|logged| logged.epoch == epoch).collect()
    }

    /// The runtime's process ends, and all others know.
    fn kill(&mut self, node: u16) {
        self.deaf = None;
        let Spot { mut runtime, mut pool, .. } = self.spots.remove(&node).expect("it lives");
        runtime.abandon(&mut pool);
        let at =
            self.members.iter().position(|member| member.node.get() == node).expect("it is known");
        let dead = self.members[at].peer();
        self.members[at].state = MemberState::Failed;
        self.switch.remove_peer(dead);
        self.coordinator.remove_peer(dead);
        self.released.clear();
        self.turned.clear();
        self.show(2);
        let order = Control::Recover { node: dead.node, incarnation: dead.incarnation };
        let nodes: Vec<u16> = self.spots.keys().copied().collect();
        nodes
            .iter()
            .for_each(|node| assert!(self.coordinator.send_control(NodeId::new(*node), &order)));
        self.carry(Vec::new());
    }

    /// Lets more time pass than rounds are apart.
    fn rest(&mut self) {
        for _ in 0..4 {
            self.now += SECOND;
            let nodes: Vec<u16> = self.spots.keys().copied().collect();
            let meta = Meta { stamp: self.now, flags: Flags::OAM, ..Meta::default() };
            let ticks =
                nodes.into_iter().map(|node| (node, self.packet(node, &[], meta))).collect();
            self.carry(ticks);
        }
    }

    fn flow(&self, node: u16, port: u8) -> Option<(ActorHeader, u64, u64)> {
        let flows = self.spots[&node].runtime.flows(0).expect("a lane");
        let (slot, header) =
            flows.iter().find(|(_, header)| header.key.source_port == u16::from(port))?;
        let block = flows.block(slot);
        let state = &block[block.len() - 16..];
        let word =
            |at: usize| u64::from_ne_bytes(state[at..at + 8].try_into().expect("eight bytes"));
        Some((*header, word(0), word(8)))
    }

    fn missing(&self, node: u16) -> u64 {
        self.spots[&node].runtime.drops().get(DropReason::InputMissing)
    }
}

fn digest(numbers: impl IntoIterator<Item = u8>) -> u64 {
    numbers
        .into_iter()
        .fold(0, |digest, number| digest.wrapping_mul(31).wrapping_add(u64::from(number)))
}

const REINFORCE: Plan = Plan { checkpoint_every: SECOND, log_bytes: 1 << 20, ..Plan::REINFORCE };

/// Two runtimes, of which the first has a flow. 17 has the flow's copy as after the first
/// packet, and knows that `known` more packets were processed. About the `unknown`
/// packets behind those 17 has heard nothing.
fn behind(known: u16, unknown: u16) -> World {
    let mut world = World::new(&[0, 0], REINFORCE);
    world.send(16, EPOCH, true, &[datagram(8, PASS, 0)]);
    let numbers: Vec<Vec<u8>> =
        (1..=known + unknown).map(|number| datagram(8, PASS, number as u8)).collect();
    let (first, second) = numbers.split_at(known.into());
    first.chunks(32).for_each(|burst| world.send(16, EPOCH, false, burst));
    assert_eq!(world.released.len(), usize::from(known) + 1);
    world.deaf = Some(17);
    second.chunks(32).for_each(|burst| world.send(16, EPOCH, false, burst));
    assert_eq!(
        world.released.len(),
        usize::from(known) + 1,
        "nothing leaves before it is known elsewhere"
    );
    let (header, packets, _) = world.flow(17, 8).expect("there is a copy");
    assert_eq!((header.life(), packets), (Life::Copy, 1));
    world
}

/// More packets, known ones and new ones, are replayed than can be asked for at a time.
/// Each is processed once, in the order in which it was sent, although they arrive in
/// another. Only the new ones leave.
#[test]
fn hundreds_are_processed_again_in_order() {
    let (known, unknown) = (300, 200);
    let mut world = behind(known, unknown);
    world.kill(16);
    let (header, packets, sum) = world.flow(17, 8).expect("it is served");
    assert_eq!((header.life(), header.epoch.get()), (Life::Owned, GRANTED));
    assert_eq!(
        (packets, sum),
        (u64::from(known + unknown) + 1, digest((0..=known + unknown).map(|number| number as u8)))
    );
    let expected: Vec<(u16, u16, u8)> =
        (known + 1..=known + unknown).map(|number| (17, number + 1, number as u8)).collect();
    assert_eq!(world.released, expected);
    assert_eq!((world.over, world.spots[&17].runtime.held()), (vec![GRANTED], 0));
}

/// The log is gone, when it is asked for or already when the route is given. Its packets
/// are counted as missing, once each. The flow's state would lack changes that have been
/// revealed, so the flow is lost. The switch and the coordinator hear so, and its next
/// packet opens another flow. A flow whose copy was up to date is recovered.
#[test]
fn a_flow_whose_log_is_gone_is_lost() {
    for is_known in [false, true] {
        let mut world = World::new(&[0, 0], REINFORCE);
        world.send(16, EPOCH, true, &[datagram(8, PASS, 0)]);
        world.send(16, EPOCH + 1, true, &[datagram(9, PASS, 0)]);
        let numbers: Vec<Vec<u8>> = (1..=100).map(|number| datagram(8, PASS, number)).collect();
        numbers.chunks(25).for_each(|burst| world.send(16, EPOCH, false, burst));
        assert_eq!(world.released.len(), 102);
        assert_eq!(
            world.flow(17, 8).map(|(header, packets, _)| (header.life(), packets)),
            Some((Life::Copy, 1))
        );
        world.is_log_gone = true;
        if is_known {
            world.logs.clear();
        }
        world.kill(16);
        assert!(world.flow(17, 8).is_none());
        assert_eq!(
            world.flow(17, 9).map(|(header, packets, _)| (header.life(), packets)),
            Some((Life::Owned, 1))
        );
        assert_eq!((world.missing(17), world.released.len()), (100, 0));
        assert_eq!((&world.recovered[..], &world.ended[..]), (&[(1, 1)][..], &[GRANTED][..]));
        world.send(17, GRANTED, false, &[datagram(8, PASS, 7)]);
        assert!(
            world.released.is_empty() && world.flow(17, 8).is_none(),
            "what was under way opens no flow"
        );
        world.send(17, GRANTED + 5, true, &[datagram(8, PASS, 8)]);
        assert_eq!(world.released, [(17, 1, 8)]);
        assert_eq!(world.spots[&17].runtime.held(), 0);
    }
}

/// An heir sends no copy of a flow before the replay has restored the flow. If the heir
/// died too, the copy would be taken for the latest state. The log answers late, and
/// after that the copy is like the flow.
#[test]
fn nobody_has_a_copy_of_what_is_not_finished() {
    let mut world = World::new(&[0, 0, 0], REINFORCE);
    world.send(16, EPOCH, true, &[datagram(8, PASS, 0)]);
    let numbers: Vec<Vec<u8>> = (1..=100).map(|number| datagram(8, PASS, number)).collect();
    numbers.chunks(25).for_each(|burst| world.send(16, EPOCH, false, burst));
    world.is_log_silent = true;
    world.kill(16);
    assert_eq!(
        world.flow(17, 8).map(|(header, packets, _)| (header.life(), packets)),
        Some((Life::Replaying, 1))
    );
    assert!(world.flow(18, 8).is_none());
    world.is_log_silent = false;
    world.rest();
    let (header, packets, sum) = world.flow(18, 8).expect("there is a copy");
    assert_eq!(
        (header.life(), header.epoch.get(), packets, sum),
        (Life::Copy, GRANTED, 101, digest(0..=100))
    );
}

/// The switch forgets the route of a flow that is being replayed, and gives it anew to
/// the same runtime. The flow goes on when its replay is over: none of its packets waits
/// for good.
#[test]
fn a_flow_that_gets_a_new_route_while_it_is_replayed_goes_on() {
    let mut world = World::new(&[0, 0, 0], REINFORCE);
    world.send(16, EPOCH, true, &[datagram(8, PASS, 0)]);
    let numbers: Vec<Vec<u8>> = (1..=20).map(|number| datagram(8, PASS, number)).collect();
    world.send(16, EPOCH, false, &numbers);
    world.is_log_silent = true;
    world.kill(16);
    assert_eq!(world.flow(17, 8).map(|(header, ..)| header.life()), Some(Life::Replaying));
    world.send(17, GRANTED + 5, true, &[datagram(8, PASS, 21)]);
    assert!(world.released.is_empty(), "nothing passes before the replay is over");
    world.is_log_silent = false;
    world.rest();
    assert_eq!(world.released.last(), Some(&(17, 22, 21)));
    let (header, packets, sum) = world.flow(17, 8).expect("it is served");
    assert_eq!(
        (header.life(), header.epoch.get(), packets, sum),
        (Life::Owned, GRANTED + 5, 22, digest(0..=21))
    );
}

/// A datagram in two fragments is replayed among others. Only the key that the switch
/// noted on the second one says which flow it belongs to.
#[test]
fn fragments_are_processed_again() {
    let mut world = World::new(&[0, 0], REINFORCE);
    world.send(16, EPOCH, true, &[datagram(8, PASS, 0)]);
    world.send(
        16,
        EPOCH,
        false,
        &[fragment(8, 1, true), fragment(8, 1, false), datagram(8, PASS, 2)],
    );
    world.deaf = Some(17);
    world.send(16, EPOCH, false, &[fragment(8, 3, true), fragment(8, 3, false)]);
    let before = world.flow(16, 8).expect("it is served");
    assert_eq!((before.1, world.released.len()), (6, 4));
    world.kill(16);
    let after = world.flow(17, 8).expect("it is served");
    assert_eq!((after.1, after.2), (before.1, before.2));
    assert_eq!(world.released, [(17, 5, 3), (17, 6, 3)]);
    // The heir has never seen the datagram's first half.
    world.released.clear();
    world.send(17, GRANTED, false, &[fragment(8, 4, false)]);
    assert_eq!(world.released, [(17, 7, 4)]);
}

/// Refused packets go back as others go on: once another process knows that they were
/// processed. The heir that replays them does not send them back again.
#[test]
fn what_is_refused_goes_back_once() {
    let mut world = World::new(&[0, 0], REINFORCE);
    world.send(16, EPOCH, true, &[datagram(8, PASS, 0)]);
    world.send(
        16,
        EPOCH,
        false,
        &[datagram(8, REJECT, 1), datagram(8, PASS, 2), datagram(8, REJECT, 3)],
    );
    assert_eq!(world.turned, [(16, 2, 1), (16, 4, 3)]);
    assert_eq!(world.released.len(), 4);
    world.deaf = Some(17);
    world.send(16, EPOCH, false, &[datagram(8, REJECT, 4), datagram(8, PASS, 5)]);
    assert_eq!(world.turned.len(), 2, "nothing leaves before it is known elsewhere");
    world.kill(16);
    assert_eq!(
        (&world.turned[..], &world.released[..]),
        (&[(17, 5, 4)][..], &[(17, 5, 4), (17, 6, 5)][..])
    );
    assert_eq!(world.spots[&17].runtime.drops().get(DropReason::PolicyDenied), 1);
    // The flow is like any other.
    world.turned.clear();
    world.send(17, GRANTED, false, &[datagram(8, REJECT, 6), datagram(8, PASS, 7)]);
    assert_eq!(world.turned, [(17, 7, 6)]);
}

/// A first packet that is refused goes back at once, opens no flow, and the switch hears
/// so. The function may refuse it when the flow is opened or when the packet is
/// processed.
#[test]
fn a_first_packet_that_is_refused_opens_no_flow() {
    for order in [TURN_AWAY, REJECT] {
        let mut world = World::new(&[0, 0], REINFORCE);
        world.deaf = Some(17);
        world.send(16, EPOCH, true, &[datagram(8, order, 1)]);
        assert_eq!(world.turned.len(), 1);
        assert!(world.flow(16, 8).is_none());
        assert_eq!(
            world.spots[&16].runtime.drops().iter().collect::<Vec<_>>(),
            [(DropReason::PolicyDenied, 1)]
        );
        // The same first packet is rejected again, and a later one that is let in opens
        // the flow.
        world.send(16, EPOCH + 1, true, &[datagram(8, order, 2)]);
        assert_eq!(world.turned.len(), 2);
        world.deaf = None;
        world.send(16, EPOCH + 2, true, &[datagram(8, PASS, 3)]);
        assert_eq!((world.turned.len(), world.released.len()), (2, 3));
        assert!(world.flow(16, 8).is_some());
    }
}

/// A first packet with a wrong checksum opens no flow. In a flow that exists, the
/// receiver has to deal with it.
#[test]
fn a_damaged_first_packet_opens_no_flow() {
    let mut world = World::new(&[0, 0], REINFORCE);
    let damaged = |number| {
        let mut frame = datagram(8, PASS, number);
        // A checksum of 0 would mean none.
        frame[41] = 1;
        frame
    };
    world.send(16, EPOCH, true, &[damaged(1)]);
    assert!(world.flow(16, 8).is_none() && world.released.is_empty());
    assert_eq!(
        world.spots[&16].runtime.drops().iter().collect::<Vec<_>>(),
        [(DropReason::BadChecksum, 1)]
    );
    world.send(16, EPOCH + 1, true, &[datagram(8, PASS, 2)]);
    world.send(16, EPOCH + 1, false, &[damaged(3)]);
    assert_eq!(world.released.len(), 2);
}

/// The switch took a reply for a flow of its own, so it is in no log of this flow: the
/// flow's state is sent, and no input is missing.
#[test]
fn a_reply_under_another_epoch_needs_no_log() {
    let mut world = World::new(&[0, 0], REINFORCE);
    world.send(16, EPOCH, true, &[datagram(8, PASS, 0)]);
    world.send(16, EPOCH, false, &[datagram(8, PASS, 1)]);
    assert_eq!(world.flow(17, 8).expect("there is a copy").1, 1);
    world.send(16, EPOCH + 1, true, &[reply(8, 2)]);
    assert_eq!(world.flow(17, 8).expect("there is a copy").1, 3);
    world.send(16, EPOCH, false, &[datagram(8, PASS, 3)]);
    let before = world.flow(16, 8).expect("it is served");
    assert_eq!(world.released.len(), 4);
    world.kill(16);
    let after = world.flow(17, 8).expect("it is served");
    assert_eq!((after.1, after.2, after.0.epoch.get()), (before.1, before.2, GRANTED));
    assert_eq!((world.missing(17), world.released.len()), (0, 0));
}

/// Packets that the chain drops, of a flow or of none, are in the switch's log, too. The
/// switch is told that it may forget them before the log is full, however rare rounds are
/// otherwise.
#[test]
fn a_chain_that_drops_everything_fills_no_log() {
    let log_bytes = 1 << 14;
    for order in [DENY, REFUSE] {
        let mut world = World::new(&[0, 0], Plan { log_bytes, ..REINFORCE });
        world.send(16, EPOCH, true, &[datagram(8, PASS, 0)]);
        for number in 0..200u8 {
            let (port, is_new) = if order == DENY { (8, false) } else { (9, true) };
            world.send(
                16,
                if is_new { 100 + u32::from(number) } else { EPOCH },
                is_new,
                &vec![datagram(port, order, number); 32],
            );
        }
        assert!(world.now < 2 * SECOND, "no round was due");
        let all = 200 * 32 * (datagram(8, order, 0).len() + 16);
        assert!(
            all > 16 * log_bytes && world.fullest < log_bytes,
            "{} of {log_bytes} bytes",
            world.fullest
        );
        let drops = world.spots[&16].runtime.drops();
        assert!(drops.total() == 200 * 32 && drops.get(DropReason::PolicyDenied) >= 200);
        world.send(16, EPOCH, false, &[datagram(8, PASS, 1)]);
        assert_eq!(world.released.len(), 2);
    }
}

/// There are two runtimes on each of two hosts. The copies are on the other host, and not
/// all at one of its runtimes.
#[test]
fn copies_are_spread_over_the_other_host() {
    let mut world = World::new(&[0, 0, 1, 1], REINFORCE);
    let mut holders = Vec::new();
    for node in 16..20u16 {
        world.send(node, EPOCH, true, &[datagram(node as u8, PASS, 0)]);
        let copies = world.spots.keys().filter(|other| {
            let copy = world.flow(**other, node as u8);
            copy.is_some_and(|(header, ..)| header.life() == Life::Copy)
        });
        holders.push(copies.copied().collect::<Vec<_>>());
    }
    assert_eq!(holders, [[18], [19], [16], [17]]);
    world.rest();
    assert_eq!(world.logs.values().map(Vec::len).sum::<usize>(), 0, "what all have is forgotten");
}
