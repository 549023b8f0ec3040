//! Reply keys: each belongs to one flow.

use super::*;

/// Two services on one backend, and one client port: replies could not be told apart. The first flow has them; the packets of the second do not leave until the first has ended, and
/// whatever fails meanwhile, nobody takes them from it.
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
    assert_eq!((first.reply, second.reply, second.is_real), (Some(bench.key(1, true)), None, false));
    // A runtime that has copies of both flows claims both when their owners are dead.
    let (owner, other) = if second.owner == X { (X, Y) } else { (Y, X) };
    bench.view(&[other], 2);
    assert_eq!(bench.claim_replied(other, 2, 1, second.epoch, 0), (0, 0));
    assert_eq!(bench.route(1).expect("a route"), first);
    bench.sweep(owner, true);
    if first.owner == owner {
        return;
    }
    bench.end(other, 1, first.epoch);
    bench.send(2);
    bench.deliver();
    assert!(bench.release_as(2, 1));
}

/// The first flow's owner died with the switch, and copies of both flows are claimed: whoever had a reply has them, whoever asks first.
#[test]
fn of_two_that_want_a_reply_key_the_answered_one_gets_it() {
    for is_first_first in [true, false] {
        let mut bench = Bench::life(2);
        bench.introduce(&[X], &[Y]);
        bench.tell(X, &[], 50, true);
        let mut claim = |from, bits| bench.claim_replied(X, from, 1, 40 + u32::from(from), bits).0;
        let epochs = if is_first_first {
            let first = claim(1, ANSWERED);
            (first, claim(2, 0))
        } else {
            let second = claim(2, 0);
            assert_ne!(second, 0, "nobody has said yet that it is not his");
            (claim(1, ANSWERED), 0)
        };
        assert!(epochs.0 != 0 && epochs.1 == 0, "{epochs:?}");
        assert!(bench.route(2).is_none_or(|route| route.reply.is_none()));
        assert_eq!(bench.route(1).and_then(|route| route.reply), Some(bench.key(1, true)));
    }
}

/// The switch remembers epochs of late; that of a flow that is refused again and again is among them, however many flows have begun since.
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
        bench.end(route.owner, from, route.epoch);
    }
    bench.send(2);
    bench.deliver();
    assert!(!bench.release_as(2, 1));
}

/// Old copies may ask for what has ended: that takes nobody's replies away, whatever the old flow had, nor does it from a flow that has had one since.
#[test]
fn a_claim_that_is_refused_takes_nothing_away() {
    let mut bench = Bench::life(2);
    bench.introduce(&[X], &[Y]);
    bench.tell(X, &[], 50, true);
    let first = bench.claim_replied(X, 1, 1, 41, ANSWERED).0;
    bench.end(X, 1, first);
    assert_ne!(bench.claim_replied(X, 2, 1, 42, 0).0, 0, "it is free");
    let second = bench.route(2).expect("a route");
    assert_eq!(bench.claim_replied(X, 1, 1, 41, ANSWERED), (0, 0), "it has ended");
    assert_eq!(bench.route(2).expect("a route"), second);
    bench.sweep(Y, true);
    let (key, packet) = bench.packet(&datagram(1, true));
    bench.switch.handle_packet(key, packet);
    bench.switch.forward(bench.now, &mut bench.out, &mut bench.pool);
    assert_eq!(bench.sent_to(), [X], "a reply");
    assert_eq!(bench.claim_replied(X, 3, 1, 43, ANSWERED), (0, 0), "whoever had one before has asked by now");
    assert!(bench.route(2).is_some_and(|route| !route.is_doubtful));
}

/// A new life hears of two flows that want one reply key. The one that never had a reply has none, and stays where it is served, so that nobody opens it a second time; nothing of it leaves.
#[test]
fn a_flow_without_replies_stays_where_it_is() {
    for is_first_first in [true, false] {
        let mut bench = Bench::life(2);
        bench.introduce(&[X, Y], &[]);
        let mut told = [(X, 1, 41, ANSWERED), (Y, 2, 42, 0)];
        if !is_first_first {
            told.reverse();
        }
        for (by, from, epoch, bits) in told {
            let claim = Claim {
                key: bench.key(from, false).into(),
                reply: bench.key(1, true).into(),
                epoch: epoch.into(),
                chain: bits.into(),
            };
            let (node, incarnation) = (by.node.into(), by.incarnation.into());
            let info = RouteInfo { claim, node, incarnation, before: 0.into(), is_real: 1 };
            let body = [&[1][..], &50u32.to_be_bytes(), &0u64.to_be_bytes(), info.as_bytes()].concat();
            bench.runtime(by).send(SWITCH, kind::ROUTES, &body).expect("room");
            bench.exchange();
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
        assert_eq!((second.owner, second.epoch, second.reply), (Y, 42, None));
        bench.send(2);
        assert_eq!(bench.sent_to(), [Y]);
        assert!(!bench.release_as(2, 1));
    }
}

/// A flow that wanted another's replies moves, and what it has sent before says an epoch that is over: it does not leave either. What the flow that has them sent before it moved does.
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
        let (key, reply) = (bench.key(from, false).into(), bench.key(1, true).into());
        let claim = Claim { key, reply, epoch: route.epoch.into(), chain: 0.into() };
        let body = [&7u32.to_be_bytes()[..], &to.node.to_be_bytes(), &to.incarnation.to_be_bytes(), claim.as_bytes()].concat();
        bench.runtime(route.owner).send(SWITCH, kind::MOVE, &body).expect("room");
        bench.exchange();
        assert_eq!(bench.route(from).map(|route| route.owner), Some(to));
    }
    assert!(bench.release_under(1, before[0].epoch));
    assert!(!bench.release_under(1, before[1].epoch));
}
