//! A switch alone: routes that never come to anything, and claims of what it does not know.

use holdfast_node::address::{COORDINATOR, SWITCH, mac_of};
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::{Claim, Control, Ended, Member, MemberState, kind};
use holdfast_node::rules::{Rule, RuleSet};
use holdfast_node::switch::{Route, Switch, SwitchConfig};
use holdfast_protection::Peer;
use holdfast_wire::nsh::Flags;
use holdfast_wire::selector::Selector;
use holdfast_wire::{FlowKey, MemoryPool, Packet, PacketPool};
use zerocopy::IntoBytes;

const SECOND: u64 = 1_000_000_000;
const PATIENCE: u64 = 3 * SECOND;
const X: Peer = Peer { node: 16, incarnation: 1 };
const Y: Peer = Peer { node: 17, incarnation: 1 };

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
        let me = Peer { node: SWITCH, incarnation: 1 };
        let fabric = FabricConfig::default();
        let mut switch = Switch::new(SwitchConfig {
            me,
            number: 0,
            flows: 64,
            seed: 1,
            tick_interval: SECOND / 20,
            patience: PATIENCE,
            fabric,
            succeeds: false,
        });
        let peers = [Peer { node: COORDINATOR, incarnation: 1 }, X, Y];
        let peers: Vec<Fabric> = peers
            .into_iter()
            .map(|peer| {
                let mut fabric = Fabric::new(peer, fabric);
                fabric.set_peer(me);
                switch.fabric().set_peer(peer);
                fabric
            })
            .collect();
        let mut bench = Bench { switch, pool: MemoryPool::new(64), now: 1000 * SECOND, peers, out: Vec::new() };
        bench.view(&[X, Y], 1);
        bench.rules(1, vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }]);
        bench
    }

    /// Only these run.
    fn view(&mut self, running: &[Peer], version: u64) {
        let members = [X, Y].map(|peer| Member {
            node: peer.node,
            incarnation: peer.incarnation,
            state: if running.contains(&peer) { MemberState::Running } else { MemberState::Failed },
            cluster: 0,
        });
        self.peers[0].send_control(SWITCH, &Control::View { version, members: members.to_vec() });
        self.exchange();
    }

    /// The coordinator has new rules.
    fn rules(&mut self, version: u64, rules: Vec<Rule>) {
        let limit = self.peers[0].max_record();
        for message in RuleSet::new(version, rules).messages(limit) {
            self.peers[0].send_control(SWITCH, &message);
        }
        self.exchange();
    }

    /// Carries messages to and fro until nobody has any.
    fn exchange(&mut self) {
        for _ in 0..4 {
            for peer in &mut self.peers {
                peer.poll_transmit(self.now, |frame| {
                    self.switch.fabric().handle_frame(frame, self.now).expect("a frame for the switch");
                    true
                });
            }
            self.switch.handle_records(self.now, &mut self.out, &mut self.pool);
            let peers = &mut self.peers;
            self.switch.fabric().poll_transmit(self.now, |frame| {
                let peer = peers.iter_mut().find(|peer| frame[..6] == mac_of(peer.me().node)).expect("a peer");
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

    /// A client sends; what goes to the runtimes stays in `out`.
    fn send(&mut self, from: u16) {
        let (key, packet) = self.packet(&datagram(from, false));
        self.now += 1;
        self.switch.handle_packet(key, packet);
        self.switch.forward(self.now, &mut self.out, &mut self.pool);
    }

    /// The runtimes take what is for them.
    fn deliver(&mut self) {
        for (_, packet) in self.out.drain(..) {
            self.pool.put(packet);
        }
    }

    /// The runtimes' rings are full for the first `refused` packets, and have room for the others.
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
        let epoch = self.route(from).expect("a route").epoch;
        let (_, mut packet) = self.packet(&datagram(from, false));
        (packet.meta.commit, packet.meta.flags) = (epoch, Flags::LEARN);
        self.switch.handle_released(&packet);
        self.pool.put(packet);
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
        self.runtime(by).send(SWITCH, kind::ENDED, ended.as_bytes()).expect("room");
        self.exchange();
    }

    /// A replica claims; returns the epoch that it gets.
    fn claim(&mut self, by: Peer, from: u16, epoch: u32) -> u32 {
        let claim =
            Claim { key: self.key(from, false).into(), reply: self.key(from, true).into(), epoch: epoch.into(), chain: 0.into() };
        let body = [7u32.to_be_bytes().as_slice(), claim.as_bytes()].concat();
        self.runtime(by).inbox.clear();
        self.runtime(by).send(SWITCH, kind::CLAIM, &body).expect("room");
        self.exchange();
        let inbox = &self.runtime(by).inbox;
        let (_, answer) = inbox.records().find(|(record, _)| record.kind == kind::CLAIMED).expect("every claim is answered");
        assert_eq!(answer[..4], 7u32.to_be_bytes());
        u32::from_be_bytes(answer[4..].try_into().expect("one claim, one answer"))
    }

    fn runtime(&mut self, peer: Peer) -> &mut Fabric {
        self.peers.iter_mut().find(|fabric| fabric.me() == peer).expect("it is there")
    }
}

/// Packets that nothing ever comes of fill the table; seconds later there is room again, and flows from which something was released are still there.
#[test]
fn a_route_over_which_nothing_was_released_does_not_last() {
    let mut bench = Bench::new();
    for from in 1..=64 {
        bench.send(from);
    }
    bench.deliver();
    bench.release(5);
    assert_eq!(bench.switch.len(), 64);
    // Their packets may wait for a recovery, and go on.
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

/// Many flows' first packets meet a full ring: none of them leaves a route behind, and none counts as a runtime's load.
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

/// A ring is full for some of a flow's packets: the flow began with another one, and keeps its route.
#[test]
fn a_full_ring_does_not_take_the_route_of_a_flow_that_began() {
    let mut bench = Bench::new();
    // Another was delivered before the refused one, or after it, or something of the flow has been released.
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
    assert_eq!(bench.route(1).map(|route| route.epoch), route.map(|route| route.epoch));
    // All of them.
    bench.send(3);
    bench.send(3);
    bench.deliver_after(2);
    assert!(bench.route(3).is_none());
}

/// A runtime's flow ends and then the runtime dies, before its replica heard of the end: the replica does not get the flow back to life.
#[test]
fn a_claim_of_a_flow_that_ended_is_refused() {
    let mut bench = Bench::new();
    bench.send(1);
    bench.deliver();
    bench.release(1);
    let route = bench.route(1).expect("a route");
    let (owner, other) = if route.owner == X { (X, Y) } else { (Y, X) };
    bench.end(owner, 1, route.epoch);
    assert!(bench.route(1).is_none());
    bench.view(&[other], 2);
    assert_eq!(bench.claim(other, 1, route.epoch), 0);
    assert!(bench.route(1).is_none() && bench.switch.routes_to(other) == 0);
    // The key's next life is another flow.
    bench.send(1);
    bench.deliver();
    bench.release(1);
    let next = bench.route(1).expect("a route");
    assert_eq!(bench.claim(other, 1, route.epoch), 0);
    assert_ne!(bench.claim(other, 1, next.epoch), 0);
}

/// The switch has forgotten a flow that lives: its replica gets it, even if the key had an earlier life that ended.
#[test]
fn a_claim_of_a_flow_that_may_live_is_granted() {
    let mut bench = Bench::new();
    // Never heard of.
    assert_ne!(bench.claim(X, 1, 40), 0);
    assert_eq!(bench.route(1).map(|route| route.owner), Some(X));
    // One life ended; what the next one released was lost on its way to the switch, which takes it for nothing after a while.
    bench.send(2);
    bench.deliver();
    let first = bench.route(2).expect("a route");
    bench.end(first.owner, 2, first.epoch);
    bench.send(2);
    bench.deliver();
    let second = bench.route(2).expect("a route");
    bench.wait(10 * SECOND);
    assert!(bench.route(2).is_none());
    assert_eq!(bench.claim(Y, 2, first.epoch), 0);
    assert_ne!(bench.claim(Y, 2, second.epoch), 0);
    // What was claimed is a flow: it stays.
    bench.wait(10 * SECOND);
    assert!(bench.route(1).is_some() && bench.route(2).is_some());
}
