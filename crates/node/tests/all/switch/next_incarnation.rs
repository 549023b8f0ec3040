//! A switch has died, and its next incarnation asks for its routes.

use super::*;

/// A flow that a runtime tells: port, epoch, and, if the runtime has sent it to another,
/// that one and the epoch before.
type Told = (u16, u32, Option<(Peer, u32)>);

impl Bench {
    /// The coordinator answers an incarnation that has just begun: runtimes that are
    /// being recovered, view, rules.
    pub(super) fn introduce(&mut self, running: &[Peer], dead: &[Peer]) {
        self.remind(running, dead, 0);
    }

    /// As [`Bench::introduce`], by a coordinator that remembers this epoch.
    fn remind(&mut self, running: &[Peer], dead: &[Peer], epoch: u32) {
        self.peers[0]
            .send_control(NodeId::SWITCH, &Control::Recovering { dead: dead.to_vec(), epoch });
        self.view(running, 1);
        self.rules(1, vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }]);
    }

    /// A runtime tells flows.
    pub(super) fn tell(&mut self, by: Peer, flows: &[Told], newest: u32, is_last: bool) {
        self.tell_as(by, flows, None, newest, is_last);
    }

    /// As `Bench::tell`, with this flag in the claims.
    pub(super) fn tell_as(
        &mut self,
        by: Peer,
        flows: &[Told],
        flag: Option<ClaimFlag>,
        newest: u32,
        is_last: bool,
    ) {
        self.tell_of(by, flows, (true, flag), newest, is_last);
    }

    /// As `Bench::tell_as`; if the flows are not real, nothing of them has been
    /// released yet.
    fn tell_of(
        &mut self,
        by: Peer,
        flows: &[Told],
        (are_real, flag): (bool, Option<ClaimFlag>),
        newest: u32,
        is_last: bool,
    ) {
        let mut body = vec![2, u8::from(is_last)];
        body.extend_from_slice(&newest.to_be_bytes());
        body.extend_from_slice(&0u64.to_be_bytes());
        for &(from, epoch, sent) in flows {
            let (owner, before) = sent.unwrap_or((by, 0));
            let reply = if are_real { self.key(from, true) } else { FlowKey::default() };
            let claim =
                flagged(Claim::new(self.key(from, false), reply, Epoch::new(epoch), 0), flag);
            let info = RouteInfo {
                claim,
                node: owner.node.get().into(),
                incarnation: owner.incarnation.into(),
                before: before.into(),
                is_real: are_real.into(),
            };
            body.extend_from_slice(info.as_bytes());
        }
        self.runtime(by).send(NodeId::SWITCH, kind::ROUTES, &body).expect("room");
        self.exchange();
    }
}

/// A new incarnation of the switch: packets of a flow go on when its owner has told it;
/// others wait until all runtimes have. After that they are new flows', under epochs that
/// no flow has had.
#[test]
fn a_new_incarnation_asks_for_its_routes() {
    let mut bench = Bench::incarnation(2);
    bench.introduce(&[X, Y], &[]);
    let asked = |fabric: &Fabric| {
        fabric.inbox.records().any(|(record, body)| record.kind == kind::TELL && body == [2])
    };
    assert!(asked(bench.runtime(X)) && asked(bench.runtime(Y)));
    bench.tell(X, &[(1, 40, None)], 41, true);
    bench.send(1);
    assert_eq!(bench.sent_to(), [X]);
    for from in [2, 3] {
        bench.send(from);
    }
    assert_eq!((bench.sent_to(), bench.switch.held()), (vec![], 2));
    bench.tell(Y, &[(2, 70, None)], 70, false);
    assert_eq!((bench.sent_to(), bench.switch.held()), (vec![Y], 1));
    bench.tell(Y, &[], 90, true);
    assert_eq!(bench.sent_to().len(), 1);
    let new = bench.route(3).expect("it is a new flow");
    assert!(new.epoch.get() > 1_000_000, "an epoch that may have been given: {}", new.epoch.get());
    assert!(bench.switch.is_whole());
    assert_eq!(
        [1, 2].map(|from| bench.route(from).map(|route| (route.owner, route.epoch.get()))),
        [Some((X, 40)), Some((Y, 70))]
    );
    assert_eq!(bench.switch.routes_to(X) + bench.switch.routes_to(Y), 3);
}

/// A flow waited for its number while the switch died. Its first packet leaves when the
/// next incarnation gives epochs already. Its reply key is learned all the same, as soon
/// as no flow that has had replies under that key can be claimed any more.
#[test]
fn a_new_incarnation_learns_replies_of_flows_that_were_being_opened() {
    let mut bench = Bench::incarnation(2);
    bench.introduce(&[X], &[Y]);
    bench.tell_of(X, &[(1, 3, None)], (false, None), 3, true);
    bench.take(X, 2, 2);
    assert_eq!(bench.route(1).and_then(|route| route.reply), None);
    assert!(!bench.release_as(1, 1));
    bench.sweep(Y, true);
    bench.release(1);
    assert_eq!(bench.route(1).and_then(|route| route.reply), Some(bench.key(1, true)));
}

/// The coordinator's messages to the previous incarnation waited for the next one, among
/// them an old view without all runtimes. No runtime is forgotten because of them.
#[test]
fn what_waited_for_the_incarnation_before_is_not_believed() {
    let mut bench = Bench::incarnation(2);
    bench.view(&[X], 1);
    bench.rules(1, vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }]);
    bench.view(&[X, Y], 2);
    bench.peers[0]
        .send_control(NodeId::SWITCH, &Control::Recovering { dead: Vec::new(), epoch: 0 });
    bench.view(&[X, Y], 2);
    bench.rules(1, vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }]);
    bench.tell(X, &[(1, 40, None)], 41, true);
    bench.send(2);
    assert_eq!((bench.sent_to(), bench.switch.held()), (vec![], 1), "Y may have it");
    bench.tell(Y, &[(2, 70, None)], 70, true);
    assert_eq!((bench.sent_to(), bench.switch.is_whole()), (vec![Y], true));
}

/// The owner of the newest flows died with the switch, and the living runtimes know of
/// none. The coordinator remembers the newest epoch.
#[test]
fn a_new_incarnation_goes_on_from_what_the_coordinator_remembers() {
    let mut bench = Bench::incarnation(2);
    bench.remind(&[X], &[Y], 5000);
    bench.tell(X, &[(1, 40, None)], 41, true);
    assert!(bench.take(X, 2, 3000) > 5000 + 1_000_000);
}

/// Epochs reach their highest number, and begin again: that number is an epoch like any
/// other.
#[test]
fn the_highest_epoch_is_given() {
    let newest = u32::MAX - (1 << 20) - 1;
    let mut bench = Bench::incarnation(2);
    bench.remind(&[X], &[Y], newest);
    bench.tell(X, &[], newest, true);
    assert_eq!([1, 2].map(|from| bench.take(X, from, newest)), [u32::MAX, 1]);
}

/// The owner of a flow died with the switch. The flow's packets wait until the replica
/// has claimed it, and do not open another flow.
#[test]
fn a_new_incarnation_waits_for_recoveries() {
    let mut bench = Bench::incarnation(2);
    bench.introduce(&[X], &[Y]);
    assert_eq!(
        bench.claim(X, 1, 40),
        Grant::Retry,
        "before X has told, nobody knows which epochs there were"
    );
    bench.tell(X, &[], 50, true);
    bench.send(1);
    assert_eq!((bench.sent_to(), bench.switch.held()), (vec![], 1));
    assert!(bench.take(X, 1, 40) > 1_000_000);
    assert_eq!(bench.sent_to(), [X]);
    bench.send(2);
    assert!(!bench.switch.is_whole());
    let Peer { node, incarnation } = Y;
    bench.peers[0]
        .send_control(NodeId::SWITCH, &Control::Sweep { node, incarnation, is_over: true });
    bench.exchange();
    assert!(bench.switch.is_whole());
    assert_eq!(bench.sent_to(), [X], "now it is a new flow");
}

/// A runtime dies before it has told all its flows: they are claimed, and the switch does
/// not wait for it.
#[test]
fn who_dies_while_telling_is_recovered_from() {
    let mut bench = Bench::incarnation(2);
    bench.introduce(&[X, Y], &[]);
    bench.tell(X, &[], 9, true);
    bench.tell(Y, &[(1, 5, None)], 9, false);
    bench.view(&[X], 2);
    assert!(!bench.switch.is_whole());
    bench.take(X, 1, 5);
    bench.take(X, 2, 6);
    bench.peers[0].send_control(
        NodeId::SWITCH,
        &Control::Sweep { node: Y.node, incarnation: Y.incarnation, is_over: true },
    );
    bench.exchange();
    assert!(bench.switch.is_whole());
    assert_eq!([1, 2].map(|from| bench.route(from).map(|route| route.owner)), [Some(X), Some(X)]);
}

/// A flow was on its way from X to Y when the switch died. Whichever tells first, the
/// route leads to Y, under the newer epoch. X may have it back only until Y has said that
/// the flow is there.
#[test]
fn a_flow_on_its_way_leads_to_where_it_goes() {
    for is_target_first in [false, true] {
        for has_arrived in [false, true] {
            let mut bench = Bench::incarnation(2);
            bench.introduce(&[X, Y], &[]);
            let of_target: &[_] = if has_arrived { &[(1, 30, None)] } else { &[] };
            if is_target_first {
                bench.tell(Y, of_target, 30, true);
            }
            bench.tell(X, &[(1, 30, Some((Y, 20)))], 30, true);
            if !is_target_first {
                bench.tell(Y, of_target, 30, true);
            }
            let route = bench.route(1).expect("it is known");
            assert_eq!((route.owner, route.epoch.get()), (Y, 30));
            assert_eq!(
                route.moved_from,
                (!has_arrived).then_some((X, Epoch::new(20))),
                "{is_target_first} {has_arrived}"
            );
            assert_eq!(bench.switch.routes_to(X) + bench.switch.routes_to(Y), 1);
        }
    }
}

/// Malformed records, records of runtimes that were not asked, and repeated ones are
/// counted and ignored.
#[test]
fn routes_that_nobody_asked_for_are_refused() {
    let mut bench = Bench::new();
    bench.tell(X, &[(1, 40, None)], 41, true);
    assert!(bench.switch.is_empty(), "this incarnation has lost nothing");
    let mut bench = Bench::incarnation(2);
    bench.introduce(&[X, Y], &[]);
    for body in [&[][..], &[2], &[2, 1, 0, 0, 0], &[2, 1, 0, 0, 0, 5, 6]] {
        bench.runtime(X).send(NodeId::SWITCH, kind::ROUTES, body).expect("room");
        bench.exchange();
    }
    assert!(bench.switch.is_empty() && !bench.switch.is_whole());
    assert_eq!(bench.switch.drops().total(), 4);
}

/// A runtime answers the switch's previous incarnation when it has the next one's address
/// already. Flows that it leaves out are not lost.
#[test]
fn half_an_answer_to_a_previous_incarnation_is_refused() {
    let mut bench = Bench::incarnation(2);
    bench.introduce(&[X, Y], &[]);
    let rest = [&[1, 1][..], &41u32.to_be_bytes(), &0u64.to_be_bytes()].concat();
    bench.runtime(X).send(NodeId::SWITCH, kind::ROUTES, &rest).expect("room");
    bench.exchange();
    bench.tell(Y, &[], 41, true);
    assert!(!bench.switch.is_whole(), "it waits for the other");
    bench.tell(X, &[(1, 40, None)], 41, true);
    assert!(bench.switch.is_whole() && bench.route(1).is_some());
}

/// A host died with the switch. Two other hosts have a copy of one of its flows, one of
/// them from before the flow moved within the host. Whichever asks first, the newer copy
/// gets the route, when all have asked. The flow's packets wait that long, even while the
/// dead runtime has been swept and the holders have not reported.
#[test]
fn of_two_copies_the_newer_one_gets_the_route_of_a_lost_switch() {
    for newer_asks_first in [false, true] {
        let mut bench = Bench::incarnation(2);
        bench.peers[0]
            .send_control(NodeId::SWITCH, &Control::Recovering { dead: vec![Z], epoch: 0 });
        bench.members(&[(X, 0), (Y, 1)], 1);
        bench.rules(1, vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }]);
        for peer in [X, Y] {
            bench.tell(peer, &[], 50, true);
        }
        let asks = if newer_asks_first { [(Y, 9), (X, 5)] } else { [(X, 5), (Y, 9)] };
        for (peer, epoch) in asks {
            let refused = newer_asks_first && peer == X;
            assert_eq!(
                bench.claim(peer, 1, epoch),
                if refused { Grant::Refused } else { Grant::AfterSweep }
            );
        }
        assert_eq!(bench.claim(X, 2, 7), Grant::AfterSweep);
        bench.send(1);
        assert_eq!((bench.sent_to(), bench.switch.held()), (vec![], 1));
        bench.sweep(Z, false);
        assert_eq!(bench.sent_to(), [Y], "it waits there");
        bench.send(3);
        assert_eq!(
            (bench.sent_to(), bench.switch.is_whole()),
            (vec![], false),
            "it may be a flow of which only a claim on its way knows"
        );
        assert_eq!(bench.claim(X, 1, 5), Grant::Refused);
        assert!(bench.take(Y, 1, 9) > 1_000_000 && bench.take(X, 2, 7) > 1_000_000);
        bench.sweep(Z, true);
        assert!(bench.switch.is_whole());
        assert_eq!(bench.sent_to().len(), 1, "a new flow's");
    }
}

/// Two holders have a copy under the same epoch. The first one to ask gets the route,
/// even if the other asks first after the sweep.
#[test]
fn who_asked_first_gets_the_route_after_the_sweep() {
    let mut bench = Bench::new();
    bench.members(&[(X, 0), (Y, 0), (Z, 0)], 2);
    bench.send(1);
    bench.send(2);
    bench.send(3);
    for port in 1..=3 {
        bench.release(port);
    }
    bench.deliver();
    let port = (1..=3)
        .find(|port| bench.route(*port).is_some_and(|route| route.owner == Z))
        .expect("the third has a flow");
    let epoch = bench.route(port).expect("a route").epoch.get();
    bench.members(&[(X, 0), (Y, 0)], 3);
    assert_eq!([X, Y].map(|peer| bench.claim(peer, port, epoch - 1)), [Grant::AfterSweep; 2]);
    bench.sweep(Z, false);
    assert_eq!(bench.claim(Y, port, epoch - 1), Grant::AfterSweep, "X is about to ask");
    assert!(bench.take(X, port, epoch - 1) > epoch);
    assert_eq!(bench.claim(Y, port, epoch - 1), Grant::Refused);
}

/// A runtime dies before it has told its flows to a new incarnation of the switch, and
/// another one after that. The new incarnation does not know how many flows were lost
/// with the first, and reports only the second.
#[test]
fn a_new_incarnation_counts_lost_flows_of_those_who_have_told() {
    let mut bench = Bench::incarnation(2);
    bench.introduce(&[X, Y], &[]);
    bench.tell(X, &[(1, 5, None), (2, 6, None)], 7, true);
    bench.tell(Y, &[(3, 7, None)], 7, false);
    assert_eq!((bench.switch.flows_of(X), bench.switch.flows_of(Y)), (Some(2), None));
    bench.view(&[X], 2);
    assert_eq!(bench.switch.flows_of(Y), None);
    bench.sweep(Y, true);
    assert_eq!((bench.unclaimed(), bench.switch.is_whole()), (vec![], true));
    bench.view(&[], 3);
    bench.sweep(X, true);
    assert_eq!(bench.unclaimed(), [(X, 2)]);
}

/// All runtimes died before a new incarnation of the switch began, while there was no
/// coordinator to tell of them. Recoveries are over as soon as it is there, and the new
/// incarnation is told to sweep runtimes of which it has never heard.
#[test]
fn a_new_incarnation_counts_no_flows_of_those_it_has_not_heard_of() {
    let mut bench = Bench::incarnation(2);
    bench.peers[0]
        .send_control(NodeId::SWITCH, &Control::Recovering { dead: Vec::new(), epoch: 0 });
    bench.members(&[], 1);
    bench.sweep(X, true);
    assert_eq!(
        (bench.unclaimed(), bench.switch.lost_of(X), bench.switch.flows_of(X)),
        (vec![], None, None)
    );
    // A runtime that begins during this incarnation of the switch has only flows with
    // routes here.
    bench.members(&[(Y, 0)], 2);
    assert_eq!(bench.switch.flows_of(Y), Some(0));
}
