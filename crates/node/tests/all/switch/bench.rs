//! A switch, and the coordinator, the manager and two runtimes to which it speaks.

use super::*;

pub(super) const SECOND: u64 = 1_000_000_000;
pub(super) const TIMEOUT: u64 = 3 * SECOND;
pub(super) const X: Peer = Peer { node: NodeId::new(16), incarnation: 1 };
pub(super) const Y: Peer = Peer { node: NodeId::new(17), incarnation: 1 };
/// A runtime without an endpoint in the test.
pub(super) const Z: Peer = Peer { node: NodeId::new(18), incarnation: 1 };

/// A UDP datagram from port `from` of the inside, or the reply to it.
pub(super) fn datagram(from: u16, is_reply: bool) -> Vec<u8> {
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
pub(super) struct Bench {
    pub(super) switch: Switch,
    pub(super) pool: MemoryPool,
    pub(super) now: u64,
    pub(super) peers: Vec<Fabric>,
    pub(super) out: Vec<(Peer, Packet)>,
}

impl Bench {
    pub(super) fn new() -> Bench {
        let mut bench = Bench::incarnation(1);
        bench.view(&[X, Y], 1);
        bench.rules(1, vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }]);
        bench
    }

    /// A switch with a packet log.
    pub(super) fn with_log() -> Bench {
        let mut bench = Bench::with_logs(1, vec![10_000]);
        bench.view(&[X, Y], 1);
        bench.rules(1, vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }]);
        bench
    }

    /// An incarnation of the switch that has heard of nothing yet.
    pub(super) fn incarnation(incarnation: u32) -> Bench {
        Bench::with_logs(incarnation, Vec::new())
    }

    fn with_logs(incarnation: u32, logs: Vec<usize>) -> Bench {
        Bench::with_limits(incarnation, logs, SwitchLimits::default())
    }

    pub(super) fn with_limits(incarnation: u32, logs: Vec<usize>, limits: SwitchLimits) -> Bench {
        let me = Peer { node: NodeId::SWITCH, incarnation };
        let fabric = FabricConfig::default();
        let mut switch = Switch::new(SwitchConfig {
            me,
            number: incarnation as u8,
            flows: 64,
            limits,
            seed: 1,
            tick_interval: SECOND / 20,
            timeout: TIMEOUT,
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
    pub(super) fn view(&mut self, running: &[Peer], version: u64) {
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
    pub(super) fn members(&mut self, running: &[(Peer, u16)], version: u64) {
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

    pub(super) fn sweep(&mut self, dead: Peer, is_over: bool) {
        let Peer { node, incarnation } = dead;
        self.peers[0].send_control(NodeId::SWITCH, &Control::Sweep { node, incarnation, is_over });
        self.exchange();
    }

    /// Unclaimed flows by dead runtime, of which the coordinator has just heard.
    pub(super) fn unclaimed(&mut self) -> Vec<(Peer, u64)> {
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
    pub(super) fn rules(&mut self, version: u64, rules: Vec<Rule>) {
        let limit = self.peers[0].max_record();
        for message in RuleSet::new(version, rules).messages(limit) {
            self.peers[0].send_control(NodeId::SWITCH, &message);
        }
        self.exchange();
    }

    /// Carries messages to and fro until there are no more.
    pub(super) fn exchange(&mut self) {
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

    pub(super) fn packet(&mut self, frame: &[u8]) -> (FlowKey, Packet) {
        let mut packet = self.pool.take().expect("the pool is large enough");
        assert!(packet.copy_from(frame));
        packet.parse().expect("a datagram");
        (FlowKey::of(&packet).expect("a datagram has a key"), packet)
    }

    /// A client sends a packet; frames for the runtimes stay in `out`.
    pub(super) fn send(&mut self, from: u16) {
        self.send_by(0, from);
    }

    /// As `Bench::send`, by another port of the box.
    pub(super) fn send_by(&mut self, ingress: u8, from: u16) {
        let (key, mut packet) = self.packet(&datagram(from, false));
        packet.meta.ingress = ingress;
        self.now += 1;
        self.switch.handle_packet(key, packet);
        self.switch.forward(self.now, &mut self.out, &mut self.pool);
    }

    /// A frame comes in. True if it goes on to a runtime.
    pub(super) fn passes(&mut self, frame: &[u8]) -> bool {
        let (key, packet) = self.packet(frame);
        self.now += 1;
        self.switch.handle_packet(key, packet);
        self.switch.forward(self.now, &mut self.out, &mut self.pool);
        !self.sent_to().is_empty()
    }

    /// The runtimes take their frames.
    pub(super) fn deliver(&mut self) {
        for (_, packet) in self.out.drain(..) {
            self.pool.put(packet);
        }
    }

    /// The runtimes' rings are full for the first `refused` packets, and have room for
    /// the others.
    pub(super) fn deliver_after(&mut self, refused: usize) {
        for (at, (_, mut packet)) in self.out.drain(..).enumerate() {
            if at < refused {
                self.switch.handle_undelivered(&mut packet);
            }
            self.pool.put(packet);
        }
    }

    pub(super) fn key(&mut self, from: u16, is_reply: bool) -> FlowKey {
        let (key, packet) = self.packet(&datagram(from, is_reply));
        self.pool.put(packet);
        key
    }

    pub(super) fn route(&mut self, from: u16) -> Option<Route> {
        let key = self.key(from, false);
        self.switch.routes().find(|route| route.key == key).copied()
    }

    /// The first packet of the flow leaves.
    pub(super) fn release(&mut self, from: u16) {
        assert!(self.release_as(from, from));
    }

    /// The chain has made a flow's first packet look like one of the flow with port `to`.
    /// True if it may leave.
    pub(super) fn release_as(&mut self, from: u16, to: u16) -> bool {
        let epoch = self.route(from).expect("a route").epoch.get();
        self.release_under(to, epoch)
    }

    /// As `Bench::release_as`, for a flow under an epoch that it has, or had. False
    /// also if the packet must wait.
    pub(super) fn release_under(&mut self, to: u16, epoch: u32) -> bool {
        let (_, mut packet) = self.packet(&datagram(to, false));
        (packet.meta.commit, packet.meta.flags) = (epoch, Flags::LEARN);
        let may_leave = !self.switch.must_wait(&packet) && self.switch.handle_released(&packet);
        self.pool.put(packet);
        may_leave
    }

    pub(super) fn sent_to(&mut self) -> Vec<Peer> {
        let sent = self.out.iter().map(|(peer, _)| *peer).collect();
        self.deliver();
        sent
    }

    pub(super) fn wait(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.now += SECOND / 20;
            self.switch.handle_timeout(self.now, &mut self.out, &mut self.pool);
            self.deliver();
        }
    }

    pub(super) fn end(&mut self, by: Peer, from: u16, epoch: u32) {
        let ended = Ended { key: self.key(from, false).into(), epoch: epoch.into() };
        self.runtime(by).send(NodeId::SWITCH, kind::ENDED, ended.as_bytes()).expect("room");
        self.exchange();
    }

    /// A replica claims its flow's route.
    pub(super) fn claim(&mut self, by: Peer, from: u16, epoch: u32) -> Grant {
        self.claim_replied(by, from, from, epoch, None)
    }

    /// A replica claims and is given the route. Returns the new epoch.
    pub(super) fn take(&mut self, by: Peer, from: u16, epoch: u32) -> u32 {
        given(self.claim(by, from, epoch))
    }

    /// The claim of a flow whose replies are those of the flow with port `to`. A flow
    /// under an older epoch was opened earlier.
    pub(super) fn of_replied(
        &mut self,
        from: u16,
        to: u16,
        epoch: u32,
        flag: Option<ClaimFlag>,
    ) -> Claim {
        let claim = Claim::new(self.key(from, false), self.key(to, true), Epoch::new(epoch), 0);
        flagged(claim.with_opened_at(epoch.into()), flag)
    }

    /// A replica claims such a flow.
    pub(super) fn claim_replied(
        &mut self,
        by: Peer,
        from: u16,
        to: u16,
        epoch: u32,
        flag: Option<ClaimFlag>,
    ) -> Grant {
        let claim = self.of_replied(from, to, epoch, flag);
        self.ask_for(by, claim)
    }

    /// A replica claims a flow.
    pub(super) fn ask_for(&mut self, by: Peer, claim: Claim) -> Grant {
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
    pub(super) fn replay(&mut self, by: Peer, epoch: u32, count: u32) -> Vec<(bool, usize)> {
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
    pub(super) fn stamps(&mut self) -> Vec<u64> {
        let frames = self.out.drain(..).map(|(_, mut packet)| {
            nsh::decapsulate(&mut packet).expect("a packet for a runtime");
            let stamp = packet.meta.stamp;
            self.pool.put(packet);
            stamp
        });
        frames.collect()
    }

    pub(super) fn suspect(&mut self, by: Peer, stamps: &[u64]) {
        let body: Vec<u8> = stamps.iter().flat_map(|stamp| stamp.to_be_bytes()).collect();
        self.runtime(by).send(NodeId::SWITCH, kind::SUSPECT, &body).expect("room");
        self.exchange();
    }

    pub(super) fn runtime(&mut self, peer: Peer) -> &mut Fabric {
        self.peers.iter_mut().find(|fabric| fabric.me() == peer).expect("it is there")
    }
}

pub(super) fn flagged(claim: Claim, flag: Option<ClaimFlag>) -> Claim {
    flag.into_iter().fold(claim, |claim, flag| claim.with(flag, true))
}

/// The epoch of a route that is given, of a flow without logged packets.
pub(super) fn given(grant: Grant) -> u32 {
    match grant {
        Grant::Given { epoch, logged: 0 } => epoch.get(),
        _ => panic!("{grant:?}"),
    }
}
