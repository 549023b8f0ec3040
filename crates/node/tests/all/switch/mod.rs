//! A switch alone: routes that no flow comes of, and claims of unknown flows.

mod next_life;
mod rates;
mod replies;
mod sources;

use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::ClaimFlag::{self, Keyed};
use holdfast_node::message::{
    Claim, Control, Ended, Grant, Member, MemberState, Replay, RouteInfo, kind,
};
use holdfast_node::rules::{Rule, RuleSet};
use holdfast_node::switch::{Doubt, Route, Switch, SwitchConfig, SwitchLimits};
use holdfast_protection::{Epoch, Peer};
use holdfast_wire::nsh::{self, Flags};
use holdfast_wire::selector::Selector;
use holdfast_wire::{DropReason, FlowKey, MemoryPool, NodeId, Packet, PacketPool};
use zerocopy::IntoBytes;

const SECOND: u64 = 1_000_000_000;
const PATIENCE: u64 = 3 * SECOND;
const X: Peer = Peer { node: NodeId::new(16), incarnation: 1 };
const Y: Peer = Peer { node: NodeId::new(17), incarnation: 1 };
/// A runtime without an endpoint in the test.
const Z: Peer = Peer { node: NodeId::new(18), incarnation: 1 };

/// A UDP datagram from port `from` of the inside, or the reply to it.
fn datagram(from: u16, is_reply: bool) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend_from_slice(&[0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    let (inside, outside) = ([10, 0, 0, 2], [192, 0, 2, 1]);
    let (source, destination) = if is_reply { (outside, inside) } else { (inside, outside) };
    frame.extend_from_slice(&source);
    frame.extend_from_slice(&destination);
    let (source, destination) = if is_reply { (53, from) } else { (from, 53) };
    frame.extend_from_slice(&u16::to_be_bytes(source));
    frame.extend_from_slice(&u16::to_be_bytes(destination));
    frame.extend_from_slice(&[0, 8, 0, 0]);
    frame
}

/// A switch, the coordinator that tells it of two runtimes, and these.
struct Bench {
    switch: Switch,
    pool: MemoryPool,
    now: u64,
    peers: Vec<Fabric>,
    out: Vec<(Peer, Packet)>,
}

impl Bench {
    fn new() -> Bench {
        let mut bench = Bench::life(1);
        bench.view(&[X, Y], 1);
        bench.rules(1, vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }]);
        bench
    }

    /// A switch with a packet log.
    fn with_log() -> Bench {
        let mut bench = Bench::life_with(1, vec![10_000]);
        bench.view(&[X, Y], 1);
        bench.rules(1, vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }]);
        bench
    }

    /// An incarnation of the switch that has heard of nothing yet.
    fn life(incarnation: u32) -> Bench {
        Bench::life_with(incarnation, Vec::new())
    }

    fn life_with(incarnation: u32, logs: Vec<usize>) -> Bench {
        Bench::life_limited(incarnation, logs, SwitchLimits::default())
    }

    fn life_limited(incarnation: u32, logs: Vec<usize>, limits: SwitchLimits) -> Bench {
        let me = Peer { node: NodeId::SWITCH, incarnation };
        let fabric = FabricConfig::default();
        let mut switch = Switch::new(SwitchConfig {
            me,
            number: incarnation as u8,
            flows: 64,
            limits,
            seed: 1,
            tick_interval: SECOND / 20,
            patience: PATIENCE,
            fabric,
            logs,
            succeeds: incarnation > 1,
        });
        let peers = [
            Peer { node: NodeId::COORDINATOR, incarnation: 1 },
            Peer { node: NodeId::MANAGER, incarnation: 1 },
            X,
            Y,
        ];
        let peers: Vec<Fabric> = peers
            .into_iter()
            .map(|peer| {
                let mut fabric = Fabric::new(peer, fabric);
                fabric.set_peer(me);
                switch.fabric().set_peer(peer);
                fabric
            })
            .collect();
        Bench { switch, pool: MemoryPool::new(64), now: 1000 * SECOND, peers, out: Vec::new() }
    }

    /// Shows a view in which only these run.
    fn view(&mut self, running: &[Peer], version: u64) {
        let members = [X, Y].map(|peer| Member {
            node: peer.node,
            incarnation: peer.incarnation,
            state: if running.contains(&peer) { MemberState::Running } else { MemberState::Failed },
            cluster: 0,
            host: 0,
        });
        self.peers[0]
            .send_control(NodeId::SWITCH, &Control::View { version, members: members.to_vec() });
        self.exchange();
    }

    /// Shows a view in which these run, each on its host.
    fn members(&mut self, running: &[(Peer, u16)], version: u64) {
        let member = |&(Peer { node, incarnation }, host): &(Peer, u16)| Member {
            node,
            incarnation,
            state: MemberState::Running,
            cluster: 0,
            host,
        };
        let members = running.iter().map(member).collect();
        self.peers[0].send_control(NodeId::SWITCH, &Control::View { version, members });
        self.exchange();
    }

    fn sweep(&mut self, dead: Peer, is_over: bool) {
        let Peer { node, incarnation } = dead;
        self.peers[0].send_control(NodeId::SWITCH, &Control::Sweep { node, incarnation, is_over });
        self.exchange();
    }

    /// Unclaimed flows by dead runtime, of which the coordinator has just heard.
    fn unclaimed(&mut self) -> Vec<(Peer, u64)> {
        let said = self.peers[0].inbox.records().filter_map(|(_, body)| Control::decode(body).ok());
        let unclaimed = said.filter_map(|message| match message {
            Control::Unclaimed { node, incarnation, flows } => {
                Some((Peer { node, incarnation }, flows))
            }
            _ => None,
        });
        let unclaimed = unclaimed.collect();
        self.peers[0].inbox.clear();
        unclaimed
    }

    /// The coordinator sends new rules.
    fn rules(&mut self, version: u64, rules: Vec<Rule>) {
        let limit = self.peers[0].max_record();
        for message in RuleSet::new(version, rules).messages(limit) {
            self.peers[0].send_control(NodeId::SWITCH, &message);
        }
        self.exchange();
    }

    /// Carries messages to and fro until there are no more.
    fn exchange(&mut self) {
        for _ in 0..4 {
            for peer in &mut self.peers {
                peer.poll_transmit(self.now, |frame| {
                    self.switch
                        .fabric()
                        .handle_frame(frame, self.now)
                        .expect("a frame for the switch");
                    true
                });
            }
            self.switch.handle_records(self.now, &mut self.out, &mut self.pool);
            let peers = &mut self.peers;
            self.switch.fabric().poll_transmit(self.now, |frame| {
                let peer = peers
                    .iter_mut()
                    .find(|peer| frame[..6] == peer.me().node.mac())
                    .expect("a peer");
                peer.handle_frame(frame, self.now).expect("a frame for the peer");
                true
            });
        }
    }

    fn packet(&mut self, frame: &[u8]) -> (FlowKey, Packet) {
        let mut packet = self.pool.take().expect("the pool is large enough");
        assert!(packet.copy_from(frame));
        packet.parse().expect("a datagram");
        (FlowKey::of(&packet).expect("a datagram has a key"), packet)
    }

    /// A client sends a packet; frames for the runtimes stay in `out`.
    fn send(&mut self, from: u16) {
        self.send_by(0, from);
    }

    /// As `Bench::send`, by another port of the box.
    fn send_by(&mut self, ingress: u8, from: u16) {
        let (key, mut packet) = self.packet(&datagram(from, false));
        packet.meta.ingress = ingress;
        self.now += 1;
        self.switch.handle_packet(key, packet);
        self.switch.forward(self.now, &mut self.out, &mut self.pool);
    }

    /// A frame comes in. True if it goes on to a runtime.
    fn passes(&mut self, frame: &[u8]) -> bool {
        let (key, packet) = self.packet(frame);
        self.now += 1;
        self.switch.handle_packet(key, packet);
        self.switch.forward(self.now, &mut self.out, &mut self.pool);
        !self.sent_to().is_empty()
    }

    /// The runtimes take their frames.
    fn deliver(&mut self) {
        for (_, packet) in self.out.drain(..) {
            self.pool.put(packet);
        }
    }

    /// The runtimes' rings are full for the first `refused` packets, and have room for
    /// the others.
    fn deliver_after(&mut self, refused: usize) {
        for (at, (_, mut packet)) in self.out.drain(..).enumerate() {
            if at < refused {
                self.switch.handle_undelivered(&mut packet);
            }
            self.pool.put(packet);
        }
    }

    fn key(&mut self, from: u16, is_reply: bool) -> FlowKey {
        let (key, packet) = self.packet(&datagram(from, is_reply));
        self.pool.put(packet);
        key
    }

    fn route(&mut self, from: u16) -> Option<Route> {
        let key = self.key(from, false);
        self.switch.routes().find(|route| route.key == key).copied()
    }

    /// The first packet of the flow leaves.
    fn release(&mut self, from: u16) {
        assert!(self.release_as(from, from));
    }

    /// The chain has made a flow's first packet look like one of the flow with port `to`.
    /// True if it may leave.
    fn release_as(&mut self, from: u16, to: u16) -> bool {
        let epoch = self.route(from).expect("a route").epoch.get();
        self.release_under(to, epoch)
    }

    /// As `Bench::release_as`, for a flow under an epoch that it has, or had. False
    /// also if the packet must wait.
    fn release_under(&mut self, to: u16, epoch: u32) -> bool {
        let (_, mut packet) = self.packet(&datagram(to, false));
        (packet.meta.commit, packet.meta.flags) = (epoch, Flags::LEARN);
        let may_leave = !self.switch.must_wait(&packet) && self.switch.handle_released(&packet);
        self.pool.put(packet);
        may_leave
    }

    fn sent_to(&mut self) -> Vec<Peer> {
        let sent = self.out.iter().map(|(peer, _)| *peer).collect();
        self.deliver();
        sent
    }

    fn wait(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.now += SECOND / 20;
            self.switch.handle_timeout(self.now, &mut self.out, &mut self.pool);
            self.deliver();
        }
    }

    fn end(&mut self, by: Peer, from: u16, epoch: u32) {
        let ended = Ended { key: self.key(from, false).into(), epoch: epoch.into() };
        self.runtime(by).send(NodeId::SWITCH, kind::ENDED, ended.as_bytes()).expect("room");
        self.exchange();
    }

    /// A replica claims its flow's route.
    fn claim(&mut self, by: Peer, from: u16, epoch: u32) -> Grant {
        self.claim_replied(by, from, from, epoch, None)
    }

    /// A replica claims and is given the route. Returns the new epoch.
    fn take(&mut self, by: Peer, from: u16, epoch: u32) -> u32 {
        given(self.claim(by, from, epoch))
    }

    /// The claim of a flow whose replies are those of the flow with port `to`.
    fn of_replied(&mut self, from: u16, to: u16, epoch: u32, flag: Option<ClaimFlag>) -> Claim {
        flagged(Claim::new(self.key(from, false), self.key(to, true), Epoch::new(epoch), 0), flag)
    }

    /// A replica claims such a flow.
    fn claim_replied(
        &mut self,
        by: Peer,
        from: u16,
        to: u16,
        epoch: u32,
        flag: Option<ClaimFlag>,
    ) -> Grant {
        let claim = self.of_replied(from, to, epoch, flag);
        let body = [7u32.to_be_bytes().as_slice(), claim.as_bytes()].concat();
        self.runtime(by).inbox.clear();
        self.runtime(by).send(NodeId::SWITCH, kind::CLAIM, &body).expect("room");
        self.exchange();
        let inbox = &self.runtime(by).inbox;
        let (_, answer) = inbox
            .records()
            .find(|(record, _)| record.kind == kind::CLAIMED)
            .expect("every claim is answered");
        assert_eq!(answer[..4], 7u32.to_be_bytes());
        let grant = answer[4..].try_into().expect("one claim, one answer");
        Grant::decode(grant).expect("an answer")
    }

    /// Replays packets to the owner of this epoch. Returns for each whether it is marked,
    /// and its length.
    fn replay(&mut self, by: Peer, epoch: u32, count: u32) -> Vec<(bool, usize)> {
        let ask = Replay { epoch: epoch.into(), first: 0.into(), count: count.into() };
        self.runtime(by).send(NodeId::SWITCH, kind::REPLAY, ask.as_bytes()).expect("room");
        self.exchange();
        let mut came = Vec::new();
        for (to, mut packet) in self.out.drain(..) {
            nsh::decapsulate(&mut packet).expect("a packet for a runtime");
            if packet.meta.flags & Flags::REPLAY != 0 {
                assert_eq!(to, by);
                came.push((packet.meta.flags & Flags::SUSPECT != 0, packet.len()));
            }
            self.pool.put(packet);
        }
        came
    }

    /// The stamps of packets sent since the last call.
    fn stamps(&mut self) -> Vec<u64> {
        let frames = self.out.drain(..).map(|(_, mut packet)| {
            nsh::decapsulate(&mut packet).expect("a packet for a runtime");
            let stamp = packet.meta.stamp;
            self.pool.put(packet);
            stamp
        });
        frames.collect()
    }

    fn suspect(&mut self, by: Peer, stamps: &[u64]) {
        let body: Vec<u8> = stamps.iter().flat_map(|stamp| stamp.to_be_bytes()).collect();
        self.runtime(by).send(NodeId::SWITCH, kind::SUSPECT, &body).expect("room");
        self.exchange();
    }

    fn runtime(&mut self, peer: Peer) -> &mut Fabric {
        self.peers.iter_mut().find(|fabric| fabric.me() == peer).expect("it is there")
    }
}

fn flagged(claim: Claim, flag: Option<ClaimFlag>) -> Claim {
    flag.into_iter().fold(claim, |claim, flag| claim.with(flag, true))
}

/// The epoch of a route that is given, of a flow without logged packets.
fn given(grant: Grant) -> u32 {
    match grant {
        Grant::Given { epoch, logged: 0 } => epoch.get(),
        _ => panic!("{grant:?}"),
    }
}

/// An operator traces two packets of a flow. A rule decides about the first one, and each
/// has the port by which it came in.
#[test]
fn a_trace_says_which_rule_decided() {
    let mut bench = Bench::new();
    let rule = Rule {
        selector: "udp from any to any port 53".parse().expect("a selector"),
        chain: 0,
        cluster: 0,
    };
    bench.rules(2, vec![rule.clone(), Rule { selector: Selector::any(), chain: 1, cluster: 0 }]);
    bench.switch.set_trace(Selector::any(), 2);
    for _ in 0..3 {
        bench.send_by(1, 7);
    }
    bench.deliver();
    let steps: Vec<_> =
        bench.switch.traces.iter().map(|step| (step.ingress, step.rule.clone())).collect();
    assert_eq!(steps, [(Some(1), None), (None, Some(rule)), (Some(1), None)]);
}

/// An operator traces twenty packets, and a burst has thirty: the packets behind wait for
/// the text of sixteen, and no more.
#[test]
fn a_burst_waits_for_few_traces() {
    let mut bench = Bench::new();
    bench.switch.set_trace(Selector::any(), 20);
    let mut traced = Vec::new();
    for _ in 0..3 {
        for from in 1..=30 {
            let (key, packet) = bench.packet(&datagram(from, false));
            bench.switch.handle_packet(key, packet);
        }
        bench.switch.forward(bench.now, &mut bench.out, &mut bench.pool);
        traced.push(
            bench.out.iter().filter(|(_, packet)| packet.meta.flags & Flags::TRACE != 0).count(),
        );
        bench.deliver();
    }
    assert_eq!(traced, [16, 4, 0]);
}

/// A rule is for one port of the box: a packet by another port finds no rule.
#[test]
fn a_rule_for_a_port_means_who_comes_in_by_it() {
    let mut bench = Bench::life(1);
    bench.view(&[X, Y], 1);
    bench.rules(
        1,
        vec![Rule { selector: "udp on #1".parse().expect("a selector"), chain: 0, cluster: 0 }],
    );
    bench.send_by(0, 1);
    bench.send_by(1, 2);
    assert_eq!((bench.route(1), bench.out.len()), (None, 1));
    assert_eq!(bench.switch.drops().get(DropReason::NoRule), 1);
    bench.deliver();
}

/// Packets that no flow comes of fill the table. Seconds later there is room again, and
/// flows with a released packet are still there.
#[test]
fn a_route_over_which_nothing_was_released_does_not_last() {
    let mut bench = Bench::new();
    for from in 1..=64 {
        bench.send(from);
    }
    bench.deliver();
    bench.release(5);
    assert_eq!(bench.switch.len(), 64);
    // The routes' packets may wait for a recovery, and go on.
    bench.wait(PATIENCE);
    assert_eq!(bench.switch.len(), 64);
    bench.send(6);
    bench.wait(6 * SECOND);
    let left: Vec<u16> = (1..=64).filter(|&from| bench.route(from).is_some()).collect();
    assert_eq!(left, [5, 6], "what was released stays, and what was sent lately");
    assert_eq!(bench.switch.routes_to(X) + bench.switch.routes_to(Y), 2);
    bench.wait(6 * SECOND);
    assert!(bench.route(5).is_some() && bench.route(6).is_none());
}

/// A runtime dies to which packets of new flows were sent while it stood still. Its
/// routes count as flows only if a packet was released, or if another runtime has the
/// flow.
#[test]
fn a_route_over_which_nothing_was_released_is_no_flow_that_could_be_lost() {
    let mut bench = Bench::new();
    let flows = |bench: &Bench| {
        bench.switch.flows_of(X).unwrap_or(0) + bench.switch.flows_of(Y).unwrap_or(0)
    };
    let routes = |bench: &Bench| bench.switch.routes_to(X) + bench.switch.routes_to(Y);
    for from in 1..=20 {
        bench.send(from);
    }
    bench.deliver();
    assert_eq!((routes(&bench), flows(&bench)), (20, 0));
    for from in (1..=5).chain(1..=3) {
        bench.release(from);
    }
    assert_eq!((routes(&bench), flows(&bench)), (20, 5));
    let first = bench.route(1).expect("a route");
    bench.end(first.owner, 1, first.epoch.get());
    assert_eq!(flows(&bench), 4);
    bench.wait(PATIENCE);
    bench.wait(6 * SECOND);
    assert_eq!((routes(&bench), flows(&bench)), (4, 4));
    bench.send(30);
    bench.deliver();
    let route = bench.route(30).expect("a route");
    let other = if route.owner == X { Y } else { X };
    let before = bench.switch.flows_of(other).expect("it is whole");
    bench.view(&[other], 2);
    bench.take(other, 30, route.epoch.get());
    assert_eq!(bench.switch.flows_of(other), Some(before + 1));
}

/// A runtime dies that had flows without a copy. The first packet of one of them leaves
/// when the runtime is known to be dead. All of these are lost; a flow of which no packet
/// ever left is not.
#[test]
fn what_nobody_claims_is_lost_if_something_of_it_was_released() {
    let mut bench = Bench::new();
    for from in 1..=40 {
        bench.send(from);
    }
    bench.deliver();
    let owner = bench.route(1).expect("a route").owner;
    let other = if owner == X { Y } else { X };
    let of_it: Vec<u16> = (1..=40)
        .filter(|from| bench.route(*from).is_some_and(|route| route.owner == owner))
        .collect();
    of_it[..4].iter().for_each(|from| bench.release(*from));
    let epoch = bench.route(of_it[0]).expect("a route").epoch.get();
    bench.switch.handle_gone(owner);
    bench.view(&[other], 2);
    // Another runtime has released the packet.
    bench.release(of_it[4]);
    bench.take(other, of_it[0], epoch);
    assert_eq!(bench.switch.lost_of(owner), None);
    bench.sweep(owner, false);
    assert_eq!(bench.switch.lost_of(owner), Some(4));
    assert_eq!(bench.unclaimed(), [], "it may be swept again");
    bench.sweep(owner, true);
    assert_eq!((bench.switch.lost_of(owner), bench.switch.lost_of(other)), (Some(4), None));
    assert_eq!(bench.unclaimed(), [(owner, 4)]);
    // The coordinator's next incarnation may know nothing of it.
    let mut next =
        Fabric::new(Peer { node: NodeId::COORDINATOR, incarnation: 2 }, FabricConfig::default());
    next.set_peer(bench.switch.me());
    next.send_control(NodeId::SWITCH, &Control::Account { handled: 0 });
    bench.switch.fabric().set_peer(next.me());
    bench.peers[0] = next;
    bench.exchange();
    assert_eq!(bench.unclaimed(), [(owner, 4)]);
}

/// Many flows' first packets meet a full ring. These packets leave no routes behind, and
/// do not count as a runtime's load.
#[test]
fn a_first_packet_that_a_full_ring_refuses_leaves_no_route() {
    let mut bench = Bench::new();
    for from in 1..=60 {
        bench.send(from);
    }
    bench.deliver_after(60);
    assert!(bench.switch.is_empty());
    assert_eq!(bench.switch.routes_to(X) + bench.switch.routes_to(Y), 0);
    // The next attempt is a first packet again.
    bench.send(1);
    bench.deliver();
    assert!(bench.route(1).is_some());
}

/// A ring is full for some of a flow's packets. The flow began with another packet, and
/// keeps its route.
#[test]
fn a_full_ring_does_not_take_the_route_of_a_flow_that_began() {
    let mut bench = Bench::new();
    // Another packet was delivered before or after the refused one, or a packet of the
    // flow has been released.
    bench.send(1);
    bench.deliver();
    bench.send(1);
    bench.deliver_after(1);
    let route = bench.route(1);
    assert!(route.is_some());
    bench.send(2);
    bench.send(2);
    bench.deliver_after(1);
    assert!(bench.route(2).is_some());
    bench.send(4);
    bench.release(4);
    bench.deliver_after(1);
    assert!(bench.route(4).is_some());
    assert_eq!(bench.route(1).map(|route| route.epoch.get()), route.map(|route| route.epoch.get()));
    // The ring refuses all packets of this flow.
    bench.send(3);
    bench.send(3);
    bench.deliver_after(2);
    assert!(bench.route(3).is_none());
}

/// A runtime's flow ends, and the runtime dies before its replica has heard of the end.
/// The replica does not revive the flow.
#[test]
fn a_claim_of_a_flow_that_ended_is_refused() {
    let mut bench = Bench::new();
    bench.send(1);
    bench.deliver();
    bench.release(1);
    let route = bench.route(1).expect("a route");
    let (owner, other) = if route.owner == X { (X, Y) } else { (Y, X) };
    bench.end(owner, 1, route.epoch.get());
    assert!(bench.route(1).is_none());
    bench.view(&[other], 2);
    assert_eq!(bench.claim(other, 1, route.epoch.get()), Grant::Refused);
    assert!(bench.route(1).is_none() && bench.switch.routes_to(other) == 0);
    // The key is opened again, by another flow.
    bench.send(1);
    bench.deliver();
    bench.release(1);
    let next = bench.route(1).expect("a route");
    assert_eq!(bench.claim(other, 1, route.epoch.get()), Grant::Refused);
    bench.take(other, 1, next.epoch.get());
}

/// The switch has forgotten a flow that lives. Its replica gets the route, even if an
/// earlier flow of the key has ended.
#[test]
fn a_claim_of_a_flow_that_may_live_is_granted() {
    let mut bench = Bench::new();
    // The switch has never heard of the flow.
    bench.take(X, 1, 40);
    assert_eq!(bench.route(1).map(|route| route.owner), Some(X));
    // An earlier flow has ended. The released packet of the next one was lost on its way
    // to the switch, which removes the idle route after a while.
    bench.send(2);
    bench.deliver();
    let first = bench.route(2).expect("a route");
    bench.end(first.owner, 2, first.epoch.get());
    bench.send(2);
    bench.deliver();
    let second = bench.route(2).expect("a route");
    bench.wait(10 * SECOND);
    assert!(bench.route(2).is_none());
    assert_eq!(bench.claim(Y, 2, first.epoch.get()), Grant::Refused);
    bench.take(Y, 2, second.epoch.get());
    // A claimed flow is real: it stays.
    bench.wait(10 * SECOND);
    assert!(bench.route(1).is_some() && bench.route(2).is_some());
}

/// A flow's owner is dead, and the claimant has an older state of the flow. A holder of
/// the latest state may claim it before the dead owner's routes are swept. If none does,
/// the route goes to the claimant that had to wait, with the packet that came meanwhile.
#[test]
fn an_older_claim_waits_for_the_sweep_of_a_dead_owner() {
    let dead_owner = |bench: &mut Bench, is_noticed_first: bool| {
        for port in 1..=3 {
            bench.send(port);
            bench.release(port);
        }
        bench.deliver();
        let Route { owner, epoch, .. } = bench.route(3).expect("a route");
        let epoch = epoch.get();
        let other = if owner == X { Y } else { X };
        if is_noticed_first {
            bench.switch.handle_gone(owner);
        }
        bench.view(&[other], 2);
        assert_eq!(bench.claim(other, 3, epoch - 1), Grant::AfterSweep);
        (owner, other, epoch)
    };
    let mut bench = Bench::new();
    let (owner, other, epoch) = dead_owner(&mut bench, false);
    bench.send(3);
    assert_eq!((bench.out.len(), bench.switch.held()), (0, 1));
    bench.peers[0].send_control(
        NodeId::SWITCH,
        &Control::Sweep { node: owner.node, incarnation: owner.incarnation, is_over: true },
    );
    bench.exchange();
    assert_eq!(
        bench.route(3).map(|route| (route.owner, route.epoch.get())),
        Some((other, epoch - 1))
    );
    assert_eq!(bench.sent_to(), [other], "it waits there");
    assert!(bench.take(other, 3, epoch - 1) > epoch);

    // The coordinator that would have the owner swept may be gone.
    for is_noticed_first in [false, true] {
        let mut bench = Bench::new();
        let (_, other, epoch) = dead_owner(&mut bench, is_noticed_first);
        bench.wait(30 * SECOND);
        assert_eq!(bench.claim(other, 3, epoch - 1), Grant::AfterSweep);
        bench.wait(SECOND);
        assert_eq!(bench.claim(other, 3, epoch - 1), Grant::Refused);
    }
    let mut bench = Bench::new();
    let (_, other, epoch) = dead_owner(&mut bench, true);
    // The replica with the latest state gets the route at any time.
    bench.take(other, 3, epoch);
}

/// A runtime without room for a new flow gets the next ones only if the others have none
/// either, however few flows it has. After a moment it is tried again.
#[test]
fn a_full_runtime_gets_no_new_flows_for_a_moment() {
    let mut bench = Bench::new();
    for from in 1..=2 {
        bench.send(from);
    }
    bench.deliver();
    bench.runtime(X).send(NodeId::SWITCH, kind::FULL, &[]).expect("room");
    bench.exchange();
    for from in 3..=10 {
        bench.send(from);
    }
    assert_eq!(bench.sent_to(), [Y; 8]);
    bench.runtime(Y).send(NodeId::SWITCH, kind::FULL, &[]).expect("room");
    bench.exchange();
    bench.send(11);
    assert_eq!(bench.sent_to(), [X], "both are full: the one with fewer flows");
    bench.now += SECOND;
    bench.send(12);
    assert_eq!(bench.sent_to(), [X]);
}

/// The owner is dead, and a replica claims before the view says so. The view then comes
/// with the order to sweep the owner's routes. The claimant gets the route.
#[test]
fn a_claim_before_the_view_is_remembered() {
    let mut bench = Bench::new();
    bench.send(1);
    bench.release(1);
    bench.deliver();
    let Route { owner, epoch, .. } = bench.route(1).expect("a route");
    let epoch = epoch.get();
    let other = if owner == X { Y } else { X };
    assert_eq!(bench.claim(other, 1, epoch), Grant::AfterSweep);
    bench.view(&[other], 2);
    bench.sweep(owner, false);
    bench.send(1);
    assert_eq!(bench.sent_to(), [other]);
    assert!(bench.take(other, 1, epoch) > epoch);
}

/// A runtime ends with the second of a flow's three packets in flight. The heir of the
/// flow gets that packet with a mark, and ends with it, too. The packet is set aside, and
/// its flow is closed: its route is gone, and none of its packets is let in for a minute.
/// Other flows are not concerned.
#[test]
fn a_packet_that_ends_two_runtimes_is_set_aside() {
    let mut bench = Bench::with_log();
    (0..3).for_each(|_| bench.send(5));
    bench.release(5);
    let stamps = bench.stamps();
    let (owner, epoch) =
        bench.route(5).map(|route| (route.owner, route.epoch.get())).expect("a route");
    let heir = if owner == X { Y } else { X };
    bench.switch.handle_suspect(stamps[1], true, bench.now);
    bench.view(&[heir], 2);
    let Grant::Given { epoch: given, logged: 3 } = bench.claim(heir, 5, epoch) else {
        panic!("with three packets")
    };
    let len = datagram(5, false).len();
    assert_eq!(bench.replay(heir, given.get(), 3), [(false, len), (true, len), (false, len)]);
    assert_eq!(bench.switch.take_set_aside(), []);
    // From another host the news comes as a message.
    bench.suspect(Peer { node: NodeId::MANAGER, incarnation: 1 }, &stamps[1..2]);
    assert_eq!(bench.switch.drops().get(DropReason::Quarantined), 1);
    let aside = bench.switch.take_set_aside();
    assert_eq!(aside.len(), 1);
    assert_eq!(
        (aside[0].key, aside[0].meta.stamp, &*aside[0].bytes),
        (bench.key(5, false), stamps[1], &*datagram(5, false))
    );
    assert!(bench.route(5).is_none());
    assert_eq!(bench.claim(heir, 5, given.get()), Grant::Refused, "its flow is no more");
    for (from, is_there) in [(5, false), (6, true)] {
        bench.send(from);
        assert_eq!(bench.route(from).is_some(), is_there);
    }
    assert_eq!(bench.switch.drops().get(DropReason::FlowClosed), 1);
    bench.wait(61 * SECOND);
    bench.send(5);
    assert!(bench.route(5).is_some(), "it may begin anew");
}

/// Functions that panic on a packet end no process. The second time the packet is not
/// sent again, and its flow goes on. Malformed reports are counted, and a runtime's
/// report closes no flow.
#[test]
fn a_packet_on_which_functions_panic_twice_is_not_sent_again() {
    let mut bench = Bench::with_log();
    (0..2).for_each(|_| bench.send(5));
    bench.release(5);
    let stamps = bench.stamps();
    let (owner, epoch) =
        bench.route(5).map(|route| (route.owner, route.epoch.get())).expect("a route");
    let heir = if owner == X { Y } else { X };
    bench.suspect(owner, &stamps[..1]);
    bench.view(&[heir], 2);
    let Grant::Given { epoch: given, logged: 2 } = bench.claim(heir, 5, epoch) else {
        panic!("with two packets")
    };
    let len = datagram(5, false).len();
    assert_eq!(bench.replay(heir, given.get(), 2), [(true, len), (false, len)]);
    bench.suspect(heir, &stamps[..1]);
    assert_eq!(
        bench.replay(heir, given.get(), 2),
        [(true, 0), (false, len)],
        "it is named, and not there"
    );
    assert_eq!(
        (bench.switch.take_set_aside().len(), bench.switch.drops().get(DropReason::Quarantined)),
        (1, 1)
    );
    assert!(bench.route(5).is_some_and(|route| route.owner == heir));
    let malformed = bench.switch.drops().get(DropReason::Malformed);
    bench.runtime(heir).send(NodeId::SWITCH, kind::SUSPECT, &[1, 2, 3]).expect("room");
    bench.exchange();
    assert_eq!(bench.switch.drops().get(DropReason::Malformed), malformed + 1);
}
