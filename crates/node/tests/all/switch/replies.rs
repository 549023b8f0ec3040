//! Reply keys: each belongs to one flow.

use super::*;
use zerocopy::FromBytes;

impl Bench {
    /// A runtime tells a flow whose replies are those of the flow with port `to`.
    fn tell_replied(
        &mut self,
        by: Peer,
        from: u16,
        to: u16,
        epoch: u32,
        flag: Option<ClaimFlag>,
        is_last: bool,
    ) {
        let claim = self.of_replied(from, to, epoch, flag);
        let (node, incarnation) = (by.node.get().into(), by.incarnation.into());
        let info = RouteInfo { claim, node, incarnation, before: 0.into(), is_real: 1 };
        let body = [
            &[2, u8::from(is_last)][..],
            &50u32.to_be_bytes(),
            &0u64.to_be_bytes(),
            info.as_bytes(),
        ]
        .concat();
        self.runtime(by).send(NodeId::SWITCH, kind::ROUTES, &body).expect("room");
        self.exchange();
    }

    /// A packet with the key of replies to the flow with port `to` opens a flow of its
    /// own.
    fn open_from_outside(&mut self, to: u16) -> Route {
        let _ = self.reply(to);
        let key = self.key(to, true);
        self.switch.routes().find(|route| route.key == key).copied().expect("a route")
    }

    /// A reply to the flow with port `to` comes. Returns the runtimes to which it is
    /// sent.
    fn reply(&mut self, to: u16) -> Vec<Peer> {
        let (key, packet) = self.packet(&datagram(to, true));
        self.switch.handle_packet(key, packet);
        self.switch.forward(self.now, &mut self.out, &mut self.pool);
        self.sent_to()
    }

    /// Replies under a key that two flows want go to neither while they may be the
    /// other's, and after that to this owner.
    fn expect_late_replies(&mut self, to: u16, owner: Peer) {
        let lost = self.switch.drops().get(DropReason::LostInFailure);
        assert_eq!(self.reply(to), []);
        self.wait(4 * SECOND);
        assert_eq!(self.reply(to), []);
        assert_eq!(self.switch.drops().get(DropReason::LostInFailure), lost + 2);
        self.wait(SECOND);
        assert_eq!(self.reply(to), [owner]);
    }
}

/// Two services have one backend, and clients use one port, so replies could not be told
/// apart. The first flow has the replies. Packets of the second do not leave until the
/// first has ended, and no failure meanwhile takes the replies from the first.
#[test]
fn a_reply_key_belongs_to_one_flow() {
    let mut bench = Bench::new();
    for from in [1, 2] {
        bench.send(from);
        bench.deliver();
    }
    bench.release(1);
    assert!(!bench.release_as(2, 1) && !bench.release_as(2, 1));
    assert_eq!(bench.switch.drops().get(DropReason::ReplyKeyTaken), 2);
    let (first, second) = (bench.route(1).expect("a route"), bench.route(2).expect("a route"));
    assert_eq!(
        (first.reply, second.reply, second.is_real),
        (Some(bench.key(1, true)), None, false)
    );
    // A runtime that has copies of both flows claims both when their owners are dead.
    let (owner, other) = if second.owner == X { (X, Y) } else { (Y, X) };
    bench.view(&[other], 2);
    assert_eq!(bench.claim_replied(other, 2, 1, second.epoch.get(), None), Grant::Refused);
    assert_eq!(bench.route(1).expect("a route"), first);
    bench.sweep(owner, true);
    if first.owner == owner {
        return;
    }
    bench.end(other, 1, first.epoch.get());
    bench.send(2);
    bench.deliver();
    assert!(bench.release_as(2, 1));
}

/// The first flow's owner died with the switch, and copies of both flows are claimed. The
/// flow that had a reply gets the key, whichever is claimed first.
#[test]
fn of_two_that_want_a_reply_key_the_answered_one_gets_it() {
    for is_first_first in [true, false] {
        let mut bench = Bench::incarnation(2);
        bench.introduce(&[X], &[Y]);
        bench.tell(X, &[], 50, true);
        let mut claim = |from, flag| bench.claim_replied(X, from, 1, 40 + u32::from(from), flag);
        if is_first_first {
            given(claim(1, Some(Keyed)));
            assert_eq!(claim(2, None), Grant::Refused);
        } else {
            // The switch has not heard yet that the key is the first flow's.
            given(claim(2, None));
            given(claim(1, Some(Keyed)));
        }
        assert!(bench.route(2).is_none_or(|route| route.reply.is_none()));
        assert_eq!(bench.route(1).and_then(|route| route.reply), Some(bench.key(1, true)));
    }
}

/// The owner of two flows without replies died with the switch, and copies of both are
/// claimed. The older flow gets the key, whichever asks first: its first packet more
/// likely left before. Epochs say nothing about that, because a flow that moves gets
/// another one. Replies that may be on their way to the other flow go to neither.
#[test]
fn of_two_claims_without_replies_the_older_flow_gets_the_key() {
    for (epochs, is_older_first) in
        [[41, 42], [42, 41]].into_iter().flat_map(|epochs| [(epochs, true), (epochs, false)])
    {
        let mut bench = Bench::incarnation(2);
        bench.introduce(&[X], &[Y]);
        bench.tell(X, &[], 50, true);
        let [older, younger] = [(1, epochs[0], 10), (2, epochs[1], 20)]
            .map(|(from, epoch, at)| bench.of_replied(from, 1, epoch, None).with_opened_at(at));
        if is_older_first {
            given(bench.ask_for(X, older));
            assert_eq!(bench.ask_for(X, younger), Grant::Refused);
        } else {
            given(bench.ask_for(X, younger));
            given(bench.ask_for(X, older));
            let younger = bench.route(2).expect("it stays where it is served");
            assert_eq!((younger.owner, younger.reply), (X, None));
        }
        bench.sweep(Y, true);
        bench.expect_late_replies(1, X);
    }
}

/// A host died with the switch, and the copies of its flows are being collected. A copy
/// that is to get its route after the sweep has its reply key until then, so no younger
/// flow gets the key meanwhile.
#[test]
fn a_copy_that_waits_for_the_sweep_has_its_key() {
    let mut bench = Bench::incarnation(2);
    bench.peers[0].send_control(NodeId::SWITCH, &Control::Recovering { dead: vec![Z], epoch: 0 });
    bench.members(&[(X, 0), (Y, 1)], 1);
    bench.rules(1, vec![Rule { selector: Selector::any(), chain: 0, cluster: 0 }]);
    for peer in [X, Y] {
        bench.tell(peer, &[], 50, true);
    }
    assert_eq!(bench.claim_replied(X, 1, 1, 41, None), Grant::AfterSweep);
    assert_eq!(bench.claim_replied(Y, 2, 1, 42, None), Grant::Refused);
    bench.sweep(Z, false);
    given(bench.claim_replied(X, 1, 1, 41, None));
    bench.sweep(Z, true);
    bench.expect_late_replies(1, X);
}

/// The switch remembers recent epochs. The epoch of a flow that is refused again and
/// again is among them, however many flows have begun since.
#[test]
fn a_refused_flow_is_refused_for_as_long_as_it_tries() {
    let mut bench = Bench::new();
    for from in [1, 2] {
        bench.send(from);
        bench.deliver();
    }
    bench.release(1);
    assert!(!bench.release_as(2, 1));
    for from in 1000..1300 {
        bench.send(from);
        bench.deliver();
        let route = bench.route(from).expect("a route");
        bench.end(route.owner, from, route.epoch.get());
    }
    bench.send(2);
    bench.deliver();
    assert!(!bench.release_as(2, 1));
}

/// Old copies may claim flows that have ended. The claim takes away neither the reply key
/// of a flow that has taken it over, nor that of a flow that has had a reply since.
#[test]
fn a_claim_that_is_refused_takes_nothing_away() {
    let mut bench = Bench::incarnation(2);
    bench.introduce(&[X], &[Y]);
    bench.tell(X, &[], 50, true);
    let first = given(bench.claim_replied(X, 1, 1, 41, Some(Keyed)));
    bench.end(X, 1, first);
    // The key is free.
    given(bench.claim_replied(X, 2, 1, 42, None));
    let second = bench.route(2).expect("a route");
    assert_eq!(bench.claim_replied(X, 1, 1, 41, Some(Keyed)), Grant::Refused, "it has ended");
    assert_eq!(bench.route(2).expect("a route"), second);
    bench.sweep(Y, true);
    let (key, packet) = bench.packet(&datagram(1, true));
    bench.switch.handle_packet(key, packet);
    bench.switch.forward(bench.now, &mut bench.out, &mut bench.pool);
    assert_eq!(bench.sent_to(), [X], "a reply");
    assert_eq!(
        bench.claim_replied(X, 3, 1, 43, Some(Keyed)),
        Grant::Refused,
        "whoever had one before has asked by now"
    );
    assert!(bench.route(2).is_some_and(|route| route.doubt == Doubt::None));
}

/// A new incarnation hears of two flows that want one reply key. The flow that never had
/// a reply gets none. The flow stays where it is served, so it is not opened a second
/// time, and none of its packets leaves.
#[test]
fn a_flow_without_replies_stays_where_it_is() {
    for is_first_first in [true, false] {
        let mut bench = Bench::incarnation(2);
        bench.introduce(&[X, Y], &[]);
        let mut told = [(X, 1, 41, Some(Keyed)), (Y, 2, 42, None)];
        if !is_first_first {
            told.reverse();
        }
        for (by, from, epoch, flag) in told {
            bench.tell_replied(by, from, 1, epoch, flag, true);
            if by == Y && !is_first_first {
                let (key, packet) = bench.packet(&datagram(1, true));
                bench.switch.handle_packet(key, packet);
                bench.switch.forward(bench.now, &mut bench.out, &mut bench.pool);
                assert_eq!(bench.sent_to(), [], "it is not known yet whose the reply is");
            }
        }
        if !is_first_first {
            assert_eq!(bench.sent_to(), [X]);
        }
        let (first, second) = (bench.route(1).expect("a route"), bench.route(2).expect("a route"));
        assert_eq!((first.owner, first.reply), (X, Some(bench.key(1, true))));
        assert_eq!((second.owner, second.epoch.get(), second.reply), (Y, 42, None));
        bench.send(2);
        assert_eq!(bench.sent_to(), [Y]);
        assert!(!bench.release_as(2, 1));
    }
}

/// Without a protection, a late reply of a lost flow may go to another flow, so both have
/// had replies under one key. A new incarnation hears of both. The newer one gets the
/// replies. The other stays where it is served, so it is not opened a second time, and
/// none of its packets leaves.
#[test]
fn of_two_that_have_had_replies_both_stay_where_they_are() {
    for is_first_first in [true, false] {
        let mut bench = Bench::incarnation(2);
        bench.introduce(&[X, Y], &[]);
        let mut told = [(X, 1, 41), (Y, 2, 42)];
        if !is_first_first {
            told.reverse();
        }
        for (by, from, epoch) in told {
            bench.tell_replied(by, from, 1, epoch, Some(Keyed), true);
        }
        let (older, newer) = (bench.route(1).expect("a route"), bench.route(2).expect("a route"));
        assert_eq!((newer.owner, newer.reply), (Y, Some(bench.key(1, true))));
        assert_eq!((older.owner, older.epoch.get(), older.reply), (X, 41, None));
        bench.send(1);
        assert_eq!(bench.sent_to(), [X]);
        assert!(!bench.release_as(1, 1) && bench.release_as(2, 1));
        bench.end(Y, 2, 42);
        assert!(bench.release_as(1, 1), "nobody else has that key any more");
    }
}

/// A late reply of a lost flow has opened a flow of its own at Y: its key is the reply
/// key of a flow at X. Each stays where it is, whichever runtime tells first. The flow at
/// Y gives way only if it has had no replies and the one at X has: then all packets that
/// could come for it are the other's.
#[test]
fn a_flow_whose_replies_are_another_flow_stays_where_it_is() {
    let of_replies =
        [(None, None), (None, Some(Keyed)), (Some(Keyed), None), (Some(Keyed), Some(Keyed))];
    for ((at_x, at_y), is_x_first) in
        of_replies.into_iter().flat_map(|flags| [(flags, true), (flags, false)])
    {
        for (epoch_at_x, epoch_at_y) in [(41, 42), (42, 41)] {
            let mut bench = Bench::incarnation(2);
            bench.introduce(&[X, Y], &[]);
            let key = bench.key(1, true);
            let claim =
                flagged(Claim::new(key, bench.key(3, true), Epoch::new(epoch_at_y), 0), at_y);
            let info = RouteInfo {
                claim,
                node: Y.node.get().into(),
                incarnation: Y.incarnation.into(),
                before: 0.into(),
                is_real: 1,
            };
            let told =
                [&[2, 1][..], &50u32.to_be_bytes(), &0u64.to_be_bytes(), info.as_bytes()].concat();
            for is_x in [is_x_first, !is_x_first] {
                if is_x {
                    bench.tell_replied(X, 1, 1, epoch_at_x, at_x, true);
                } else {
                    bench.runtime(Y).send(NodeId::SWITCH, kind::ROUTES, &told).expect("room");
                    bench.exchange();
                }
            }
            let gives_way = (at_x, at_y) == (Some(Keyed), None);
            let of_y =
                bench.switch.routes().find(|route| route.key == key).map(|route| route.owner);
            let of_x = bench.route(1).expect("a route");
            assert_eq!(of_y, (!gives_way).then_some(Y), "{at_x:?} {at_y:?} {is_x_first}");
            assert_eq!((of_x.owner, of_x.epoch.get()), (X, epoch_at_x));
            assert_eq!(of_x.reply, gives_way.then_some(key));
        }
    }
}

/// A switch's next incarnation hears of two flows that want one reply key and had no
/// reply yet. The older flow keeps the key, whichever runtime tells first. The first
/// packet that left may be the other's, so replies that may be on their way go to
/// neither.
#[test]
fn of_two_without_replies_the_older_one_was_first() {
    for mut told in [[(X, 1, 41), (Y, 2, 42)], [(X, 1, 42), (Y, 2, 41)]] {
        for _ in 0..2 {
            told.reverse();
            let mut bench = Bench::incarnation(2);
            bench.introduce(&[X, Y], &[]);
            for (by, from, epoch) in told {
                bench.tell_replied(by, from, 1, epoch, None, true);
            }
            let of = |bench: &mut Bench, from| {
                bench.route(from).map(|route| (route.epoch.get(), route.reply.is_some()))
            };
            for from in [1, 2] {
                let (epoch, has_replies) = of(&mut bench, from).expect("a route");
                assert_eq!(has_replies, epoch == 41, "{told:?}");
            }
            let owner =
                if told.contains(&(X, 1, 41)) || told.contains(&(X, 2, 41)) { X } else { Y };
            bench.expect_late_replies(1, owner);
        }
    }
}

/// Two flows want one key. The key is not shown to its flow's owner as the flow's own
/// until late replies have come. After that it is, even if no reply ever comes.
#[test]
fn a_contested_key_is_its_flows_own_after_a_while() {
    let mut bench = Bench::incarnation(2);
    bench.introduce(&[X, Y], &[]);
    bench.tell_replied(X, 1, 1, 41, None, true);
    bench.tell_replied(Y, 2, 1, 42, None, true);
    let mut is_new = |from: u16| {
        bench.send(from);
        let (_, mut packet) = bench.out.pop().expect("it is sent");
        nsh::decapsulate(&mut packet).expect("a packet for a runtime");
        let is_new = packet.meta.flags & Flags::NEW != 0;
        bench.pool.put(packet);
        bench.wait(4 * SECOND);
        is_new
    };
    assert_eq!([1, 1, 2].map(&mut is_new), [true; 3]);
    assert_eq!([1, 2].map(&mut is_new), [false, true], "the other one has no key");
}

/// An outside client has opened a flow to a published host. Another flow would leave
/// looking like the replies of that one. The other flow does not leave, because its own
/// replies would be packets of that flow.
#[test]
fn a_reply_key_may_be_the_key_of_a_flow_from_the_other_side() {
    let mut bench = Bench::new();
    let outside = bench.open_from_outside(1);
    bench.send(2);
    bench.deliver();
    let (_, mut packet) = bench.packet(&datagram(1, true));
    (packet.meta.commit, packet.meta.flags) = (outside.epoch.get(), Flags::LEARN);
    assert!(bench.switch.handle_released(&packet));
    bench.pool.put(packet);
    assert!(!bench.release_as(2, 1));
    assert_eq!(bench.switch.drops().get(DropReason::ReplyKeyTaken), 1);
    assert!(bench.switch.routes().any(|route| route.key == outside.key));
}

/// A late reply of a lost flow has opened a flow from the other side when the lost flow
/// begins anew, and the new flow's first packet leaves first. The late reply's flow gives
/// its key away, and its owner is told, because no packet can reach it any more.
#[test]
fn the_owner_of_a_flow_that_gives_way_is_told() {
    let mut bench = Bench::new();
    let stray = bench.open_from_outside(1);
    bench.send(1);
    bench.deliver();
    bench.release(1);
    bench.exchange();
    assert_eq!(bench.route(1).expect("a route").reply, Some(stray.key));
    let told: Vec<Ended> = bench
        .runtime(stray.owner)
        .inbox
        .records()
        .filter(|(record, _)| record.kind == kind::ENDED)
        .map(|(_, body)| Ended::read_from_bytes(body).expect("a flow"))
        .collect();
    assert_eq!(
        told.iter().map(|told| (FlowKey::from(told.key), told.epoch.get())).collect::<Vec<_>>(),
        [(stray.key, stray.epoch.get())]
    );
}

/// A flow that wanted another's reply key moves. Its earlier packets carry an epoch that
/// is over, and do not leave either. Packets that the key's own flow sent before it moved
/// do leave.
#[test]
fn packets_from_before_a_move_are_known_by_their_epochs() {
    let mut bench = Bench::new();
    for from in [1, 2] {
        bench.send(from);
        bench.deliver();
    }
    bench.release(1);
    let before = [1, 2].map(|from| bench.route(from).expect("a route"));
    for (from, route) in [1, 2].into_iter().zip(before) {
        let to = if route.owner == X { Y } else { X };
        let claim = bench.of_replied(from, 1, route.epoch.get(), None);
        let body = [
            &7u32.to_be_bytes()[..],
            &to.node.to_be_bytes(),
            &to.incarnation.to_be_bytes(),
            claim.as_bytes(),
        ]
        .concat();
        bench.runtime(route.owner).send(NodeId::SWITCH, kind::MOVE, &body).expect("room");
        bench.exchange();
        assert_eq!(bench.route(from).map(|route| route.owner), Some(to));
    }
    assert!(bench.release_under(1, before[0].epoch.get()));
    assert!(!bench.release_under(1, before[1].epoch.get()));
}

/// A new incarnation of the switch has not been told every flow, and a runtime lets out
/// packets of two flows that want one reply key. The switch does not know yet whose
/// replies would come: only the flow that had some already goes on. Once all runtimes
/// have told, the other flow is refused as before. A flow whose reply key no other flow
/// has goes on, too.
#[test]
fn nothing_leaves_whose_replies_might_be_anothers() {
    let mut bench = Bench::incarnation(2);
    bench.introduce(&[X, Y], &[]);
    assert!(!bench.release_under(1, 41) && !bench.release_under(1, 42), "nobody has told");
    bench.tell_replied(X, 2, 1, 42, None, false);
    bench.tell_replied(X, 3, 3, 43, None, true);
    assert!(
        !bench.release_under(1, 42) && !bench.release_under(3, 43),
        "another may have had replies"
    );
    bench.tell_replied(Y, 1, 1, 41, Some(Keyed), false);
    assert!(bench.release_under(1, 41));
    assert!(!bench.release_under(1, 42) && !bench.release_under(3, 43));
    assert_eq!(bench.switch.drops().total(), 0, "they wait");
    bench.tell(Y, &[], 50, true);
    assert!(
        bench.release_under(1, 41) && !bench.release_under(1, 42) && bench.release_under(3, 43)
    );
    assert_eq!(bench.switch.drops().get(DropReason::ReplyKeyTaken), 1);
}

/// Packets that must wait leave when all runtimes have told, in their order. If the
/// switch ends before, they are given back.
#[test]
fn what_waits_leaves_when_all_have_told() {
    let mut bench = Bench::incarnation(2);
    bench.introduce(&[X, Y], &[]);
    bench.tell_replied(X, 1, 1, 41, None, false);
    bench.tell_replied(X, 2, 2, 42, None, true);
    let wait = |bench: &mut Bench, to, epoch| {
        let (_, mut packet) = bench.packet(&datagram(to, false));
        (packet.meta.commit, packet.meta.flags) = (epoch, Flags::LEARN);
        assert!(bench.switch.must_wait(&packet));
        bench.switch.wait_until_told(X, packet, &mut bench.pool);
    };
    wait(&mut bench, 2, 42);
    wait(&mut bench, 1, 41);
    wait(&mut bench, 3, 43);
    assert_eq!(bench.switch.take_told().len(), 0);
    // The third flow is told before all runtimes have finished: its packet leaves before
    // packets that come behind it.
    bench.tell_replied(Y, 3, 3, 43, Some(Keyed), false);
    let told = bench.switch.take_told();
    assert_eq!(told.iter().map(|(_, packet)| packet.meta.commit).collect::<Vec<_>>(), [43]);
    told.into_iter().for_each(|(_, packet)| bench.pool.put(packet));
    bench.tell(Y, &[], 50, true);
    let told = bench.switch.take_told();
    assert_eq!(
        told.iter().map(|(from, packet)| (*from, packet.meta.commit)).collect::<Vec<_>>(),
        [(X, 42), (X, 41)]
    );
    for (_, packet) in told {
        assert!(!bench.switch.must_wait(&packet) && bench.switch.handle_released(&packet));
        bench.pool.put(packet);
    }
    let mut bench = Bench::incarnation(2);
    bench.introduce(&[X, Y], &[]);
    wait(&mut bench, 1, 41);
    bench.switch.abandon(&mut bench.pool);
    assert_eq!(bench.switch.drops().get(DropReason::ShuttingDown), 1);
}

/// A runtime does not tell its flows in time. Released packets that wait for it give
/// their buffers back after the time-out, those that came later wait on.
#[test]
fn what_waits_for_too_long_gives_its_buffer_back() {
    let mut bench = Bench::incarnation(2);
    bench.introduce(&[X, Y], &[]);
    let wait = |bench: &mut Bench, to| {
        let (_, mut packet) = bench.packet(&datagram(to, false));
        (packet.meta.commit, packet.meta.flags) = (40, Flags::LEARN);
        assert!(bench.switch.must_wait(&packet));
        bench.switch.wait_until_told(X, packet, &mut bench.pool);
    };
    let free = bench.pool.free();
    bench.wait(SECOND);
    (1..40).for_each(|to| wait(&mut bench, to));
    bench.wait(SECOND);
    wait(&mut bench, 40);
    bench.wait(TIMEOUT - SECOND);
    assert_eq!(bench.pool.free(), free - 40);
    assert!(bench.switch.poll_timeout() <= bench.now + SECOND / 10);
    bench.wait(SECOND / 10);
    let late = bench.switch.drops().get(DropReason::RecoveryTimeout);
    assert_eq!((late, bench.pool.free()), (39, free - 1));
    bench.wait(SECOND);
    assert_eq!(bench.pool.free(), free);
}
