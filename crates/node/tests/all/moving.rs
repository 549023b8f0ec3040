//! A flow that moves from one runtime to another, while the source or the switch dies.

use crate::spot::{PerPacket, SECOND, Spot, accepting, datagram, frames_of, view_of};
use holdfast_nf::{Context, Verdict};
use holdfast_node::channel::{Fabric, FabricConfig};
use holdfast_node::message::MemberState::{Failed, Running};
use holdfast_node::message::{
    Claim, ClaimFlag, Control, Grant, Member, MemberState, RouteInfo, kind, numbered,
};
use holdfast_protection::flows::Life;
use holdfast_protection::{Epoch, Peer, Plan};
use holdfast_wire::nsh::{Flags, index};
use holdfast_wire::{Meta, NodeId, Packet};
use zerocopy::{FromBytes, IntoBytes};

/// The runtime that gets a flow, and the one that sends it.
const TARGET: Peer = Peer { node: NodeId::new(16), incarnation: 1 };
const SOURCE: Peer = Peer { node: NodeId::new(17), incarnation: 2 };
/// A runtime on the source's host.
const OTHER: Peer = Peer { node: NodeId::new(18), incarnation: 3 };
/// The epoch under which the flow began.
const EPOCH: u32 = 5;

holdfast_nf::flow_state! {
    struct Count {
        packets: u64,
    }
}

struct Counter;

impl PerPacket for Counter {
    const NAME: &'static str = "counter";
    type Flow = Count;

    fn process(_: &mut Packet, flow: &mut Count, _: &mut Context) -> Verdict {
        flow.packets += 1;
        Verdict::Forward
    }
}

/// Both runtimes, and endpoints that speak for the switch, the coordinator and another
/// runtime. The source has a flow.
struct Host {
    target: Spot,
    source: Option<Spot>,
    switch: Fabric,
    coordinator: Fabric,
    other: Fabric,
    now: u64,
    /// The source's frames for the target are withheld.
    is_cut: bool,
    withheld: Vec<Vec<u8>>,
    /// The flow's batch, by the source's number.
    batch: u32,
}

impl Host {
    /// If `has_replica`, the target has a replica of the flow; otherwise it is leaving
    /// from the beginning.
    fn new(has_replica: bool) -> Host {
        let spot = |me| Spot::new(me, vec![accepting::<Counter>()], Plan::NFVACTOR.build(), 64, 64);
        let fabric = |node| Fabric::new(Peer { node, incarnation: 1 }, FabricConfig::default());
        let mut host = Host {
            target: spot(TARGET),
            source: Some(spot(SOURCE)),
            switch: fabric(NodeId::SWITCH),
            coordinator: fabric(NodeId::COORDINATOR),
            other: Fabric::new(OTHER, FabricConfig::default()),
            now: SECOND,
            is_cut: false,
            withheld: Vec::new(),
            batch: 0,
        };
        let target = if has_replica { MemberState::Running } else { MemberState::Leaving };
        host.show(1, target, MemberState::Running);
        let frame = host.first_packet(9);
        host.carry(vec![(SOURCE, frame)]);
        host
    }

    /// As `Host::new`; the source has been asked to move the flow, and the switch to
    /// lead the route to the target.
    fn moving(has_replica: bool) -> Host {
        let mut host = Host::new(has_replica);
        host.migrate();
        host.take_move();
        assert_eq!(host.life(), Some(Life::Arriving));
        host
    }

    /// The source is asked to move the flow.
    fn migrate(&mut self) {
        let order = Control::Migrate {
            request: 1,
            targets: vec![(TARGET.node, TARGET.incarnation)],
            limit: 1,
            selector: "any".to_owned(),
        };
        self.coordinator.send_control(SOURCE.node, &order);
        self.carry(Vec::new());
    }

    /// The switch has been asked to lead the route to the target.
    fn take_move(&mut self) {
        let moves = self.take(kind::MOVE);
        let number = moves.first().and_then(|body| body.first_chunk::<4>());
        self.batch = u32::from_be_bytes(*number.expect("the switch is asked"));
    }

    fn show(&mut self, version: u64, target: MemberState, source: MemberState) {
        self.show_all(version, &[(TARGET, target, 0), (SOURCE, source, 0)]);
    }

    /// Shows a view with these members, each with its host.
    fn show_all(&mut self, version: u64, members: &[(Peer, MemberState, u16)]) {
        let member = |&(Peer { node, incarnation }, state, host)| Member {
            node,
            incarnation,
            state,
            cluster: 0,
            host,
        };
        let view = Control::View { version, members: members.iter().map(member).collect() };
        for peer in [TARGET, SOURCE] {
            self.coordinator.set_peer(peer);
            self.coordinator.send_control(peer.node, &view);
        }
        self.carry(Vec::new());
    }

    /// The first packet of a flow from this port, as the switch sends it.
    fn first_packet(&mut self, port: u16) -> Vec<u8> {
        let packet = (self.now, EPOCH, Flags::NEW);
        self.source.as_mut().expect("it lives").packet(&datagram(port, 0), packet)
    }

    /// The switch leads the route to the target, and the source sends the flow.
    fn lead(&mut self) {
        self.lead_under(EPOCH + 1);
    }

    /// As `lead`, under this epoch.
    fn lead_under(&mut self, epoch: u32) {
        let body = [self.batch.to_be_bytes(), epoch.to_be_bytes()].concat();
        self.switch.send(SOURCE.node, kind::MOVED, &body).expect("there is room");
        // The mark comes behind the last packet of the old route.
        let meta = Meta { commit: self.batch, flags: Flags::OAM, ..Meta::default() };
        let mark = self.source.as_mut().expect("it lives").encapsulated(&[], index::MARK, meta);
        self.carry(vec![(SOURCE, mark)]);
    }

    /// The switch dies, and its next incarnation begins.
    fn next_switch(&mut self) {
        self.switch =
            Fabric::new(Peer { node: NodeId::SWITCH, incarnation: 2 }, FabricConfig::default());
        for peer in [TARGET, SOURCE] {
            self.switch.set_peer(peer);
        }
    }

    /// The switch's next incarnation asks for routes. Returns how many flows it is told,
    /// and whether that is all.
    fn tell(&mut self, who: Peer) -> (usize, bool) {
        self.switch.send(who.node, kind::TELL, &[2]).expect("there is room");
        self.carry(Vec::new());
        self.told()
    }

    /// The number of flows that the switch has been told since, and whether that is all.
    fn told(&mut self) -> (usize, bool) {
        let told = self.take(kind::ROUTES);
        let of_target = |body: &Vec<u8>| {
            let infos = <[RouteInfo]>::ref_from_bytes(&body[14..]).expect("routes");
            infos
                .iter()
                .filter(|info| {
                    info.node.get() == TARGET.node.get() && info.claim.epoch().get() == EPOCH + 1
                })
                .count()
        };
        (told.iter().map(of_target).sum(), told.iter().any(|body| body[..2] == [2, 1]))
    }

    /// Every process takes a few turns, and its frames arrive.
    fn carry(&mut self, mut frames: Vec<(Peer, Vec<u8>)>) {
        for _ in 0..8 {
            self.now += 1000;
            let now = self.now;
            let fabrics = [&mut self.switch, &mut self.coordinator, &mut self.other];
            let mut sent: Vec<_> =
                fabrics.into_iter().flat_map(|fabric| frames_of(fabric, now)).collect();
            for at in [TARGET, SOURCE] {
                let here: Vec<_> =
                    frames.extract_if(.., |(to, _)| *to == at).map(|(_, frame)| frame).collect();
                let spot = if at == TARGET { Some(&mut self.target) } else { self.source.as_mut() };
                sent.extend(spot.into_iter().flat_map(|spot| spot.turn(&here, now)));
            }
            if !self.is_cut {
                frames.extend(self.withheld.drain(..).map(|frame| (TARGET, frame)));
            }
            for frame in sent {
                if self.is_cut
                    && frame[..6] == TARGET.node.mac()
                    && frame[6..12] == SOURCE.node.mac()
                {
                    self.withheld.push(frame);
                    continue;
                }
                for peer in [TARGET, SOURCE] {
                    if frame.first_chunk().and_then(NodeId::of_mac) == Some(peer.node) {
                        frames.push((peer, frame.clone()));
                    }
                }
                // Frames for other nodes are refused.
                let _ = self.switch.handle_frame(&frame, now);
                let _ = self.coordinator.handle_frame(&frame, now);
                let _ = self.other.handle_frame(&frame, now);
            }
        }
    }

    /// The switch's messages of this kind.
    fn take(&mut self, wanted: u8) -> Vec<Vec<u8>> {
        let records = self.switch.inbox.records().filter(|(record, _)| record.kind == wanted);
        let bodies = records.map(|(_, body)| body.to_vec()).collect();
        self.switch.inbox.clear();
        bodies
    }

    /// The one claim that the switch has got: its number, and whether the route is given
    /// back.
    fn claim(&mut self) -> Option<(u32, bool)> {
        let claims = self.take(kind::CLAIM);
        assert!(claims.len() < 2, "one claim at a time");
        let (number, rest) = claims.first()?.split_first_chunk::<4>()?;
        let claim = Claim::read_from_bytes(rest).expect("one claim");
        assert_eq!(claim.epoch().get(), EPOCH, "as it was before it moved");
        Some((u32::from_be_bytes(*number), claim.has(ClaimFlag::Renounced)))
    }

    fn answer(&mut self, number: u32, grant: Grant) {
        let body = [&number.to_be_bytes()[..], &grant.encode()].concat();
        self.switch.send(TARGET.node, kind::CLAIMED, &body).expect("there is room");
        self.carry(Vec::new());
    }

    fn recover(&mut self) {
        let order = Control::Recover { node: SOURCE.node, incarnation: SOURCE.incarnation };
        self.coordinator.send_control(TARGET.node, &order);
        self.carry(Vec::new());
    }

    /// The target's numbered messages to the coordinator.
    fn requests(&mut self) -> Vec<Control> {
        let records =
            self.coordinator.inbox.records().filter(|(record, _)| record.kind == kind::NUMBERED);
        let requests = records
            .filter_map(|(_, body)| numbered(body).ok())
            .map(|(_, request)| request)
            .collect();
        self.coordinator.inbox.clear();
        requests
    }

    /// Numbers of flows that the target says it has recovered.
    fn recovered(&mut self) -> Vec<u64> {
        let flows = |request| {
            if let Control::Recovered { flows, .. } = request { Some(flows) } else { None }
        };
        self.requests().into_iter().filter_map(flows).collect()
    }

    /// The number of flows that the source owns, and of those that it has sent without
    /// hearing of their arrival, by its report.
    fn source_reports(&mut self) -> (u64, u64) {
        self.coordinator.inbox.clear();
        self.now += 2 * SECOND;
        self.carry(Vec::new());
        let of_source = |peer: &Peer| peer.node == SOURCE.node;
        let reports =
            self.coordinator.inbox.records().filter(|(record, _)| of_source(&record.from));
        let reports = reports.filter_map(|(_, body)| match Control::decode(body).ok()? {
            Control::Report(report) => Some((report.flows, report.departed)),
            _ => None,
        });
        let last = reports.last().expect("it is time for a report");
        self.coordinator.inbox.clear();
        last
    }

    /// The flow's role at the target.
    fn life(&self) -> Option<Life> {
        self.target
            .runtime
            .flows(0)
            .and_then(|flows| flows.iter().next())
            .map(|(_, header)| header.life())
    }
}

/// The source dies while its flow is on its way to a runtime that is leaving. A leaving
/// runtime is asked for the dead one's flows last, and runtimes that are asked first wait
/// until the route is given back. The leaving runtime gives it back as soon as the death
/// is known.
#[test]
fn a_route_to_one_that_leaves_is_given_back_at_once() {
    let mut host = Host::moving(false);
    host.source = None;
    assert_eq!(host.claim(), None);
    host.show(2, MemberState::Leaving, MemberState::Failed);
    let (number, is_given_back) = host.claim().expect("it says that it has nothing");
    assert!(is_given_back);
    assert_eq!(host.life(), Some(Life::Claiming), "what the route still leads here waits");
    host.answer(number, Grant::Refused);
    assert_eq!(host.life(), None);
    host.recover();
    assert_eq!((host.claim(), host.recovered()), (None, vec![0]));
}

/// As above, and the leaving runtime has a replica, which may be older than another's.
/// The route is given back all the same, and claimed when the others have had their turn.
#[test]
fn a_replica_of_one_that_leaves_comes_last() {
    let mut host = Host::moving(true);
    host.show(2, MemberState::Leaving, MemberState::Running);
    host.source = None;
    host.show(3, MemberState::Leaving, MemberState::Failed);
    let (number, is_given_back) = host.claim().expect("it gives the route back");
    assert!(is_given_back);
    host.answer(number, Grant::Refused);
    assert_eq!(host.life(), Some(Life::Copy));
    host.recover();
    let (number, is_given_back) = host.claim().expect("now it is asked");
    assert!(!is_given_back);
    assert_eq!(host.recovered(), [0; 0]);
    host.answer(number, Grant::Given { epoch: Epoch::new(EPOCH + 9), logged: 0 });
    assert_eq!((host.life(), host.recovered()), (Some(Life::Owned), vec![1]));
}

/// The leaving runtime is asked before the switch has answered: the recovery is not over
/// before the replica has been claimed.
#[test]
fn a_replica_is_claimed_although_the_switch_answers_late() {
    let mut host = Host::moving(true);
    host.show(2, MemberState::Leaving, MemberState::Running);
    host.source = None;
    host.show(3, MemberState::Leaving, MemberState::Failed);
    let (late, _) = host.claim().expect("it gives the route back");
    host.recover();
    assert_eq!((host.claim(), host.recovered()), (None, vec![]));
    host.answer(late, Grant::Refused);
    let (number, is_given_back) = host.claim().expect("the replica is still to be claimed");
    assert!(!is_given_back);
    assert_eq!(host.recovered(), [0; 0]);
    host.answer(number, Grant::Given { epoch: Epoch::new(EPOCH + 9), logged: 0 });
    assert_eq!((host.life(), host.recovered()), (Some(Life::Owned), vec![1]));
}

/// A view that is older than the source's first one does not mean that the source is
/// dead.
#[test]
fn one_that_only_starts_is_not_dead() {
    let mut host = Host::moving(false);
    host.show(2, MemberState::Leaving, MemberState::Starting);
    assert_eq!((host.claim(), host.life()), (None, Some(Life::Arriving)));
}

/// The switch dies while a flow is between two runtimes. The target tells the next
/// incarnation its flows before this one has arrived, and the source tells its flows when
/// it has gone. All the same the flow is told, by the runtime that has it.
#[test]
fn a_flow_that_arrives_behind_the_telling_is_told() {
    let mut host = Host::moving(true);
    host.is_cut = true;
    host.lead();
    assert!(
        !host.withheld.is_empty() && host.life() == Some(Life::Arriving),
        "the flow is under way"
    );
    host.next_switch();
    assert_eq!(host.tell(TARGET), (0, false), "a flow that only the dead switch knew of may come");
    host.is_cut = false;
    host.carry(Vec::new());
    assert_eq!((host.life(), host.told()), (Some(Life::Owned), (1, true)));
    assert_eq!(host.tell(SOURCE), (0, true), "it has only a replica");
}

/// As above, and the source dies with the switch: a flow that does not arrive is not
/// waited for, but claimed.
#[test]
fn a_flow_that_does_not_arrive_ends_the_telling() {
    let mut host = Host::moving(true);
    host.is_cut = true;
    host.lead();
    host.next_switch();
    assert_eq!(host.tell(TARGET), (0, false));
    host.source = None;
    host.withheld.clear();
    host.show(2, MemberState::Running, MemberState::Failed);
    host.recover();
    assert_eq!((host.life(), host.told()), (Some(Life::Claiming), (0, true)));
}

/// A flow has moved from the source to another runtime of its host. From there it is to
/// come to the target, which has a copy from before that move. The flow is welcome if the
/// copy has been replaced. If not, the copy stays, and is there when the host dies.
#[test]
fn a_copy_that_is_needed_is_not_given_up_for_a_flow_that_is_to_come() {
    let prepared = |needs_earlier: bool| {
        let mut host = Host::new(true);
        host.show_all(2, &[(TARGET, Running, 0), (SOURCE, Running, 1), (OTHER, Running, 1)]);
        let flows = host.target.runtime.flows(0).expect("a lane");
        let (_, header) = flows.iter().next().expect("a copy");
        let claim = Claim::new(header.key, header.reply, Epoch::new(EPOCH + 1), 0)
            .with(ClaimFlag::NeedsEarlier, needs_earlier);
        let body = [7u32.to_be_bytes().as_slice(), &flows.layout().to_be_bytes(), claim.as_bytes()]
            .concat();
        host.other.set_peer(TARGET);
        host.other.send(TARGET.node, kind::PREPARE, &body).expect("there is room");
        host.carry(Vec::new());
        let answer = host.other.inbox.records().find(|(record, _)| record.kind == kind::PREPARED);
        let welcome = answer.map(|(_, body)| body[7]);
        (host, welcome)
    };
    let (host, welcome) = prepared(false);
    assert_eq!((welcome, host.life()), (Some(1), Some(Life::Arriving)));
    let (mut host, welcome) = prepared(true);
    assert_eq!((welcome, host.life()), (Some(0), Some(Life::Copy)));
    host.source = None;
    host.show_all(3, &[(TARGET, Running, 0), (SOURCE, Failed, 1), (OTHER, Failed, 1)]);
    host.recover();
    let (_, is_given_back) = host.claim().expect("the copy is claimed");
    assert!(!is_given_back);
}

/// The claimed route leads to another dead runtime, whose flows are being claimed too.
/// The coordinator hears once that nothing else is open, and that the recovery is over
/// when the route has been claimed.
#[test]
fn what_waits_for_a_sweep_is_told() {
    let mut host = Host::moving(true);
    host.is_cut = true;
    host.lead();
    host.source = None;
    host.withheld.clear();
    host.is_cut = false;
    host.show(2, MemberState::Running, MemberState::Failed);
    host.recover();
    let (Peer { node, incarnation }, mut told) = (SOURCE, Vec::new());
    for time in 0..3 {
        let (number, is_given_back) = host.claim().expect("the copy is claimed, again and again");
        assert!(!is_given_back);
        told.extend(host.requests());
        host.answer(number, Grant::AfterSweep);
        if time > 0 {
            assert_eq!(host.claim(), None, "not all the time");
            host.now += 1_000_000;
            host.carry(Vec::new());
        }
    }
    let (number, _) = host.claim().expect("the copy is claimed");
    told.extend(host.requests());
    let switch = host.switch.me().incarnation;
    assert_eq!(
        told,
        [Control::Waits {
            node,
            incarnation,
            switches: vec![Peer { node: NodeId::SWITCH, incarnation: switch }]
        }]
    );
    host.answer(number, Grant::Given { epoch: Epoch::new(EPOCH + 9), logged: 0 });
    assert_eq!((host.life(), host.recovered()), (Some(Life::Owned), vec![1]));
}

/// A flow that has been sent and has not arrived is owned neither by its source nor by
/// any other runtime. The source reports it until it hears of the arrival.
#[test]
fn a_flow_that_has_not_arrived_is_reported() {
    let mut host = Host::moving(true);
    assert_eq!(host.source_reports(), (1, 0));
    host.is_cut = true;
    host.lead();
    assert_eq!(host.life(), Some(Life::Arriving));
    assert_eq!(host.source_reports(), (0, 1));
    host.is_cut = false;
    host.carry(Vec::new());
    assert_eq!(host.life(), Some(Life::Owned));
    assert_eq!(host.source_reports(), (0, 0));
}

/// The switch forgets the route of a flow that is about to leave, and gives it anew to
/// the source. The flow stays there, and the target hears that it does not come. The
/// order is still open, so the flow is offered again, and moves under a later epoch.
#[test]
fn a_flow_that_gets_a_new_route_stays() {
    let mut host = Host::moving(true);
    let again = (host.now, EPOCH + 7, Flags::NEW);
    let packet = host.source.as_mut().expect("it lives").packet(&datagram(9, 0), again);
    host.carry(vec![(SOURCE, packet)]);
    host.lead();
    assert_eq!(host.source_reports(), (1, 0), "it has not left");
    let first = host.batch;
    host.take_move();
    assert_ne!(host.batch, first);
    host.lead_under(EPOCH + 8);
    assert_eq!((host.life(), host.source_reports().0), (Some(Life::Owned), 0));
    assert_eq!(host.source_reports(), (0, 0), "it has heard of the arrival");
}

/// As above, and the flow gets its new route right behind the target's word that it is
/// welcome. The switch is asked for the route that the flow had when it was chosen. If it
/// moved the new one, that route would lead to the target, and the flow would stay.
#[test]
fn a_flow_that_got_a_new_route_is_not_asked_for() {
    let mut host = Host::new(true);
    host.is_cut = true;
    host.migrate();
    host.is_cut = false;
    let asked = core::mem::take(&mut host.withheld);
    let answers = host.target.turn(&asked, host.now);
    let again = (host.now, EPOCH + 7, Flags::NEW);
    let packet = host.source.as_mut().expect("it lives").packet(&datagram(9, 0), again);
    let frames = answers.into_iter().chain([packet]).map(|frame| (SOURCE, frame));
    host.carry(frames.collect());
    let moves = host.take(kind::MOVE);
    let asked = |body: &[u8]| Claim::read_from_bytes(&body[10..]).expect("one claim").epoch().get();
    assert_eq!(moves.iter().map(|body| asked(body)).collect::<Vec<_>>(), [EPOCH]);
    host.batch = u32::from_be_bytes(*moves[0].first_chunk().expect("a number"));
    host.lead_under(0);
    assert_eq!((host.life(), host.source_reports().0), (Some(Life::Arriving), 1));
    host.take_move();
    host.lead_under(EPOCH + 8);
    assert_eq!((host.life(), host.source_reports().0), (Some(Life::Owned), 0));
}

/// Two targets are silent, and more flows are to go than one batch holds. A target that
/// is asked about flows again has been told before that they do not come under the first
/// number. Without that it would say that it expects them already.
#[test]
fn who_is_asked_again_has_heard_that_they_do_not_come() {
    let mut host = Host::new(true);
    let others: Vec<_> = (10..50).map(|port| (SOURCE, host.first_packet(port))).collect();
    host.carry(others);
    let both = [(TARGET, Running, 0), (OTHER, Running, 0), (SOURCE, Running, 0)];
    host.show_all(2, &both);
    host.is_cut = true;
    host.other.inbox.clear();
    let targets = [TARGET, OTHER].map(|target| (target.node, target.incarnation)).to_vec();
    let order = Control::Migrate { request: 1, targets, limit: 64, selector: "any".to_owned() };
    host.coordinator.send_control(SOURCE.node, &order);
    host.carry(Vec::new());
    for _ in 0..4 {
        host.now += SECOND / 2;
        host.carry(Vec::new());
    }
    let of_move = |kind: u8| matches!(kind, kind::PREPARE | kind::CANCEL);
    let kinds: Vec<u8> = host
        .other
        .inbox
        .records()
        .map(|(record, _)| record.kind)
        .filter(|kind| of_move(*kind))
        .collect();
    assert!(kinds.len() > 4 && kinds[0] == kind::PREPARE, "{kinds:?}");
    for pair in kinds.windows(2) {
        assert_ne!(pair, [kind::PREPARE; 2], "{kinds:?}");
    }
}

/// A runtime's four hundred flows move to another one as quickly as they can. No turn of
/// the source sends more than 64, and the next turn is due at once while some are left.
#[test]
fn a_turn_sends_few_flows() {
    const FLOWS: usize = 400;
    const MOST: usize = 64;
    let mut source =
        Spot::new(SOURCE, vec![accepting::<Counter>()], Plan::NONE.build(), 1024, 1024);
    let fabric = |peer| Fabric::new(peer, FabricConfig::default());
    let first_incarnation = |node| fabric(Peer { node, incarnation: 1 });
    let (mut target, mut switch, mut coordinator) =
        (fabric(TARGET), first_incarnation(NodeId::SWITCH), first_incarnation(NodeId::COORDINATOR));
    for fabric in [&mut target, &mut switch, &mut coordinator] {
        fabric.set_peer(SOURCE);
    }
    coordinator.send_control(SOURCE.node, &view_of([TARGET, SOURCE]));
    let mut now = SECOND;
    let mut frames: Vec<Vec<u8>> = (1..=FLOWS as u16)
        .map(|port| source.packet(&datagram(port, 0), (now, EPOCH, Flags::NEW)))
        .collect();
    let (mut sent, mut arrived, mut turns, mut most) =
        (std::collections::BTreeMap::<u32, u32>::new(), 0, 0, 0);
    while arrived < FLOWS {
        turns += 1;
        assert!(turns < 1_000, "{arrived} flows have come");
        if turns == 3 {
            let targets = vec![(TARGET.node, TARGET.incarnation)];
            let order = Control::Migrate {
                request: 1,
                targets,
                limit: u64::MAX,
                selector: "any".to_owned(),
            };
            coordinator.send_control(SOURCE.node, &order);
        }
        now += 1_000_000;
        for fabric in [&mut target, &mut switch, &mut coordinator] {
            frames.extend(frames_of(fabric, now));
        }
        let out = source.turn(&core::mem::take(&mut frames), now);
        for frame in out {
            let node = frame[..6].try_into().ok().and_then(|mac| NodeId::of_mac(&mac));
            let to = [&mut target, &mut switch, &mut coordinator]
                .into_iter()
                .find(|fabric| Some(fabric.me().node) == node);
            // Packets of the flows do not have a node's address.
            let _ = to.map(|fabric| fabric.handle_frame(&frame, now));
        }
        let number = |body: &[u8]| u32::from_be_bytes(body[..4].try_into().expect("a batch"));
        let claims = |body: &[u8], before: usize| (body.len() - before) / size_of::<Claim>();
        let mut here = 0;
        let records = |fabric: &mut Fabric| -> Vec<(u8, Vec<u8>)> {
            let records =
                fabric.inbox.records().map(|(record, body)| (record.kind, body.to_vec())).collect();
            fabric.inbox.clear();
            records
        };
        for (record, body) in records(&mut target) {
            match record {
                kind::PREPARE => {
                    let welcome = ((1u64 << claims(&body, 12)) - 1) as u32;
                    let answer = [number(&body).to_be_bytes(), welcome.to_be_bytes()].concat();
                    target.send(SOURCE.node, kind::PREPARED, &answer).expect("there is room");
                }
                kind::FLOW => {
                    here += 1;
                    *sent.entry(number(&body)).or_default() |= 1 << body[4];
                }
                _ => {}
            }
        }
        arrived += here;
        most = most.max(here);
        for (number, bits) in core::mem::take(&mut sent) {
            target
                .send(
                    SOURCE.node,
                    kind::ARRIVED,
                    &[number.to_be_bytes(), bits.to_be_bytes()].concat(),
                )
                .expect("there is room");
        }
        for (_, body) in
            records(&mut switch).into_iter().filter(|(record, _)| *record == kind::MOVE)
        {
            let epochs =
                (0..claims(&body, 10)).flat_map(|at| (EPOCH + 1 + at as u32).to_be_bytes());
            let answer: Vec<u8> = body[..4].iter().copied().chain(epochs).collect();
            switch.send(SOURCE.node, kind::MOVED, &answer).expect("there is room");
            let meta = Meta { commit: number(&body), flags: Flags::OAM, ..Meta::default() };
            frames.push(source.encapsulated(&[], index::MARK, meta));
        }
        records(&mut coordinator);
    }
    assert_eq!(most, MOST, "in {turns} turns");
}
