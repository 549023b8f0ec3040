//! Two sessions: they come up, notice a death, change intervals, and are taken down.

use super::super::*;
use super::pair::*;
use holdfast_wire::bfd::{Control, Diagnostic, MAX_LEN, State};

/// Down, Init, Up, within a second and a round trip; then fast, after an answered poll on
/// each side.
#[test]
fn they_come_up_and_then_speed_up() {
    let mut pair = Pair::new(settings(50, 3), settings(100, 5));
    pair.run(50 * MS);
    assert_eq!(pair.states(), [State::Up; 2]);
    for side in 0..2 {
        let states = pair.to_states(side);
        assert_eq!(states.last(), Some(&(State::Up, NONE)));
        assert!(
            states == [(State::Init, NONE), (State::Up, NONE)] || states == [(State::Up, NONE)],
            "{states:?}"
        );
    }
    assert!(
        pair.sent
            .iter()
            .filter(|sent| sent.packet().state != State::Up)
            .all(|sent| sent.packet().desired_min_tx == 1_000_000)
    );
    pair.run(5 * SECOND);
    // The interval is the slower of one side's sending and the other's receiving; each
    // side's detection time is the other's multiplier of it.
    let timers = |side: usize| pair.sides[side].timers();
    assert_eq!(
        timers(0),
        Timers { transmit: 100_000, receive: Some(100_000), detection: Some(500_000) }
    );
    assert_eq!(
        timers(1),
        Timers { transmit: 100_000, receive: Some(100_000), detection: Some(300_000) }
    );
    assert_eq!(
        (pair.sides[0].remote_discriminator(), pair.sides[1].remote_discriminator()),
        (22, 11)
    );
    for side in 0..2 {
        let has = |from: usize, is_it: fn(&Control<'_>) -> bool| {
            pair.sent.iter().any(|s| s.from == from && is_it(&s.packet()))
        };
        assert!(
            has(side, |packet| packet.poll && packet.state == State::Up)
                && has(1 - side, |packet| packet.is_final)
        );
        assert!(
            !pair.sent.iter().rev().take(20).any(|sent| sent.packet().poll),
            "the sequence ends"
        );
        assert!(!has(side, |packet| packet.poll && packet.is_final));
    }
    assert_eq!(pair.changes.len(), pair.to_states(0).len() + pair.to_states(1).len());
    assert!(
        pair.to_states(0).len() <= 2 && pair.to_states(1).len() <= 2,
        "nothing flaps: {:?}",
        pair.changes
    );
}

/// Intervals are up to a quarter shorter, never longer (section 6.8.7). With a multiplier
/// of 1 they are at least a tenth shorter, or the other side would not wait for the
/// packet.
#[test]
fn every_interval_is_another() {
    for (multiplier, least, most) in [(3, 75, 100), (1, 75, 90)] {
        let mut pair = Pair::up(settings(100, multiplier), settings(100, 3));
        pair.run(30 * SECOND);
        let gaps = pair.gaps(0);
        assert!(gaps.len() > 250);
        let percent = |gap: &u64| *gap as f64 / MS as f64;
        let (min, max) = (
            gaps.iter().map(percent).fold(1e9, f64::min),
            gaps.iter().map(percent).fold(0.0, f64::max),
        );
        assert!(min >= f64::from(least) && max <= f64::from(most), "{min} to {max}");
        assert!(
            min < f64::from(least) + 2.0 && max > f64::from(most) - 2.0,
            "all of the range is used: {min} to {max}"
        );
        assert_eq!(pair.changes, []);
    }
}

/// A side that stops is taken for dead exactly a detection time after its last packet,
/// and that is within multiplier times interval of its end.
#[test]
fn death_is_detected_in_time() {
    let mut pair = Pair::up(settings(50, 3), settings(50, 3));
    pair.cut = [true; 2];
    let cut_at = pair.now;
    pair.run(SECOND);
    for side in 0..2 {
        let (at, _, change) =
            *pair.changes.iter().find(|(_, at, _)| *at == side).expect("it was noticed");
        assert_eq!(
            change,
            Change { from: State::Up, to: State::Down, diagnostic: Diagnostic::TIME_EXPIRED }
        );
        assert!(at <= cut_at + DELAY + 150 * MS && at >= cut_at + 100 * MS, "{}", at - cut_at);
        assert_eq!(pair.to_states(side).len(), 1);
        let session = &pair.sides[side];
        // The other side's variables are initial again, and packets go slowly.
        assert_eq!((session.remote(), session.remote_discriminator()), ((State::Down, NONE), 0));
        assert_eq!(
            session.timers(),
            Timers { transmit: 1_000_000, receive: None, detection: None }
        );
        assert_eq!((session.downs(), session.since()), ((1, Diagnostic::TIME_EXPIRED), at));
    }
    pair.forget();
    pair.run(10 * SECOND);
    assert!(pair.gaps(0).iter().all(|gap| *gap >= 750 * MS), "{:?}", pair.gaps(0));
    pair.cut = [false; 2];
    pair.run_until("both are up again", |pair| pair.states() == [State::Up; 2]);
}

/// A single direction is cut: the side that hears nothing says so, and the other side,
/// which hears it, goes down for that reason.
#[test]
fn a_one_way_cut_is_known_to_both() {
    let mut pair = Pair::up(settings(50, 3), settings(50, 3));
    pair.cut[0] = true;
    let cut_at = pair.now;
    pair.run(500 * MS);
    assert_eq!(pair.to_states(1)[0], (State::Down, Diagnostic::TIME_EXPIRED));
    assert_eq!(pair.to_states(0)[0], (State::Down, Diagnostic::NEIGHBOR_SIGNALED_DOWN));
    let told = pair.changes.iter().find(|(_, side, _)| *side == 0).map_or(0, |(at, ..)| *at);
    assert!(
        told <= cut_at + 150 * MS + 2 * DELAY,
        "at once, not when it would have sent: {}",
        told - cut_at
    );
    pair.run(20 * SECOND);
    assert!(
        !pair.states().contains(&State::Up),
        "one direction is not enough: {:?}",
        pair.states()
    );
    pair.cut[0] = false;
    pair.run_until("both are up again", |pair| pair.states() == [State::Up; 2]);
}

/// A side that ends on purpose says so, and the other side does not take it for dead. The
/// first packets may be lost, because they come as often as before until the other side
/// has answered. An answer is not expected for longer than a detection time.
#[test]
fn an_end_on_purpose_is_no_failure() {
    for lost_for in [0, 60 * MS] {
        let mut pair = Pair::up(settings(50, 3), settings(50, 3));
        pair.run(5 * SECOND);
        pair.forget();
        assert!(!pair.sides[0].is_taking_leave());
        pair.sides[0].set_admin_down(true, pair.now);
        assert!(pair.sides[0].is_taking_leave());
        if lost_for > 0 {
            pair.cut[0] = true;
            pair.run(lost_for);
            pair.cut[0] = false;
            assert!(pair.sides[0].is_taking_leave());
        }
        pair.run(60 * MS);
        assert_eq!(
            pair.to_states(1)[0],
            (State::Down, Diagnostic::NEIGHBOR_SIGNALED_DOWN),
            "{lost_for}"
        );
        assert_eq!(
            (pair.sides[1].remote(), pair.sides[0].is_taking_leave()),
            ((State::AdminDown, Diagnostic::ADMIN_DOWN), false)
        );
        pair.forget();
        pair.run(10 * SECOND);
        assert!(
            pair.gaps(0).iter().all(|gap| *gap >= 750 * MS),
            "who has answered is told no more often than others: {:?}",
            pair.gaps(0)
        );
    }
    let mut pair = Pair::up(settings(50, 3), settings(50, 3));
    pair.cut = [true; 2];
    pair.sides[0].set_admin_down(true, pair.now);
    pair.run(150 * MS);
    assert!(!pair.sides[0].is_taking_leave());
}

/// A third of all packets is lost: the session comes up sooner or later. A session that
/// went down for it stays up once the link is whole again.
#[test]
fn loss_delays_and_heals() {
    for seed in 0..20 {
        let mut pair = Pair::new(settings(20, 3), settings(20, 3));
        pair.random = Box::new(random(seed));
        pair.lost = 333;
        pair.run_until("both are up", |pair| pair.states() == [State::Up; 2]);
        pair.run(30 * SECOND);
        pair.lost = 0;
        pair.run_until("both are up", |pair| pair.states() == [State::Up; 2]);
        pair.run(SECOND);
        pair.forget();
        pair.run(30 * SECOND);
        assert_eq!((pair.states(), &pair.changes[..]), ([State::Up; 2], &[][..]), "seed {seed}");
        assert_eq!(pair.sides[0].timers().transmit, 20_000);
    }
}

/// A longer interval is used when the other side is known to wait for it, a shorter one
/// at once. Neither side goes down for it, also under loss.
#[test]
fn intervals_change_while_it_is_up() {
    // The second side's packets are lost for a while: five of them are waited for.
    let mut pair = Pair::up(settings(50, 3), settings(50, 5));
    pair.cut[1] = true;
    pair.sides[0].set_intervals(400_000, 50_000, 3);
    pair.run(100 * MS);
    // The poll's answer has not come.
    assert_eq!(pair.sides[0].timers().transmit, 50_000);
    assert_eq!(pair.sides[1].timers().receive, Some(400_000));
    pair.cut[1] = false;
    pair.run(200 * MS);
    assert_eq!(pair.sides[0].timers().transmit, 400_000);
    pair.forget();
    pair.run(4 * SECOND);
    assert!(
        pair.gaps(0).iter().all(|gap| (300 * MS..=400 * MS).contains(gap)),
        "{:?}",
        pair.gaps(0)
    );

    // The other side's receiver slows this one down, and lets it speed up again: at once,
    // not after the long interval.
    pair.sides[0].set_intervals(50_000, 50_000, 3);
    pair.run(SECOND);
    pair.sides[1].set_intervals(50_000, 900_000, 5);
    pair.run(3 * SECOND);
    assert_eq!(
        (pair.sides[0].timers().transmit, pair.sides[1].timers().detection),
        (900_000, Some(2_700_000))
    );
    pair.sides[1].set_intervals(50_000, 50_000, 5);
    pair.run(200 * MS);
    assert_eq!(
        (pair.sides[0].timers().transmit, pair.sides[1].timers().detection),
        (50_000, Some(150_000))
    );
    assert_eq!(pair.changes, []);

    // A shorter receive interval is no reason to expect packets sooner before the other
    // side knows.
    pair.sides[1].set_intervals(50_000, 300_000, 5);
    pair.run(2 * SECOND);
    pair.cut[1] = true;
    pair.sides[1].set_intervals(50_000, 50_000, 5);
    assert_eq!(pair.sides[1].timers().detection, Some(900_000));
    pair.run(100 * MS);
    pair.cut[1] = false;
    pair.run(2 * SECOND);
    assert_eq!((&pair.changes[..], pair.sides[1].timers().detection), (&[][..], Some(150_000)));
}

/// Intervals change twice within one round trip: the answer to the first poll does not
/// stand for the second change.
#[test]
fn an_answer_is_for_what_was_asked() {
    let mut pair = Pair::up(settings(50, 3), settings(50, 3));
    pair.sides[0].set_intervals(100_000, 50_000, 3);
    pair.run_until("it has asked", |pair| {
        pair.sent.iter().any(|sent| sent.from == 0 && sent.packet().poll)
    });
    pair.sides[0].set_intervals(5_000_000, 50_000, 3);
    pair.run(2 * DELAY);
    assert_eq!(pair.sides[0].timers().transmit, 50_000, "the answer was about 100 ms");
    pair.run(SECOND);
    assert_eq!((pair.sides[0].timers().transmit, &pair.changes[..]), (5_000_000, &[][..]));
}

/// A side that begins anew has forgotten the other, which goes down at its first packet
/// and comes up with it.
#[test]
fn one_begins_anew() {
    let mut pair = Pair::up(settings(50, 3), settings(50, 3));
    pair.sides[0] = Session::new(settings(50, 3), 33, 5, pair.now);
    pair.run(3 * SECOND);
    let states = pair.to_states(1);
    assert_eq!(states[0], (State::Down, Diagnostic::NEIGHBOR_SIGNALED_DOWN));
    assert_eq!((states.last(), pair.states()), (Some(&(State::Up, NONE)), [State::Up; 2]));
    assert_eq!(
        (pair.sides[1].remote_discriminator(), pair.sides[1].downs().0, pair.sides[0].downs().0),
        (33, 1, 0)
    );
    assert!(
        pair.changes[0].0 <= 10 * SECOND + 2 * DELAY,
        "at its first packet: {:?}",
        pair.changes[0]
    );
}

#[test]
fn administratively_down_is_said_and_held() {
    let mut pair = Pair::up(settings(50, 3), settings(50, 3));
    let now = pair.now;
    let change = pair.sides[0].set_admin_down(true, now);
    assert_eq!(
        change.map(|change| (change.to, change.diagnostic)),
        Some((State::AdminDown, Diagnostic::ADMIN_DOWN))
    );
    assert_eq!(pair.sides[0].set_admin_down(true, now), None);
    pair.run(10 * SECOND);
    assert_eq!(pair.states(), [State::AdminDown, State::Down]);
    assert_eq!(pair.to_states(1), [(State::Down, Diagnostic::NEIGHBOR_SIGNALED_DOWN)]);
    // The held session is told apart from a failure, for as long as it lasts.
    assert_eq!(pair.sides[1].remote(), (State::AdminDown, Diagnostic::ADMIN_DOWN));
    let now = pair.now;
    assert!(
        pair.sides[0].set_admin_down(false, now).is_some_and(|change| change.to == State::Down)
    );
    pair.run(3 * SECOND);
    assert_eq!(pair.states(), [State::Up; 2]);
}

/// Section 6.8.7: a side that wants no packets gets none, except the answer to a poll.
#[test]
fn who_wants_no_packets_gets_none() {
    let mut pair = Pair::new(settings(50, 3), Settings { min_receive: 0, ..settings(50, 3) });
    pair.run(100 * MS);
    pair.forget();
    pair.run(10 * SECOND);
    assert!(
        !pair.sent.is_empty()
            && pair.sent.iter().all(|sent| sent.from == 1 || sent.packet().is_final)
    );
    let poll = Control { poll: true, ..pair.sent[0].packet() };
    let mut bytes = [0; MAX_LEN];
    let len = poll.write(&mut bytes).expect("there is room");
    pair.forget();
    pair.deliver(0, &bytes[..len]);
    pair.run(10 * MS);
    assert!(pair.times(0).is_empty());
    assert_eq!(pair.sent.iter().filter(|sent| sent.from == 0 && sent.packet().is_final).count(), 1);
}

/// Section 6.6: a side in demand mode hears nothing while both are up, except polls and
/// their answers.
#[test]
fn a_demand_is_honoured() {
    let mut session = Session::new(settings(50, 3), 11, 0, 0);
    let mut draw = random(3);
    let heard = Control {
        state: State::Init,
        diagnostic: NONE,
        poll: false,
        is_final: false,
        control_plane_independent: false,
        demand: true,
        detect_multiplier: 255,
        my_discriminator: 5,
        your_discriminator: 11,
        desired_min_tx: 1_000_000,
        required_min_rx: 50_000,
        required_min_echo_rx: 0,
        authentication: None,
    };
    let mut sent = |session: &mut Session, now: u64| {
        let mut into = [0; MAX_LEN];
        session
            .poll_transmit(now, &mut draw, &mut into)
            .map(|len| Control::parse(&into[..len]).map(|p| (p.poll, p.is_final)))
    };
    assert_eq!(
        session.handle(&heard, &[], MS).map(|change| change.map(|change| change.to)),
        Ok(Some(State::Up))
    );
    assert_eq!(sent(&mut session, MS), Some(Ok((true, false))));
    assert_eq!(
        session.handle(&Control { state: State::Up, is_final: true, ..heard }, &[], 2 * MS),
        Ok(None)
    );
    assert_eq!(sent(&mut session, 10 * SECOND), None);
    assert_eq!(
        session.handle(&Control { state: State::Up, poll: true, ..heard }, &[], 10 * SECOND),
        Ok(None)
    );
    assert_eq!(sent(&mut session, 10 * SECOND), Some(Ok((false, true))));
    assert_eq!(sent(&mut session, 20 * SECOND), None);
    session.set_intervals(60_000, 50_000, 3);
    assert_eq!(sent(&mut session, 20 * SECOND), Some(Ok((true, false))));
    assert_eq!(
        session.handle(
            &Control { state: State::Up, demand: false, is_final: true, ..heard },
            &[],
            21 * SECOND
        ),
        Ok(None)
    );
    assert_eq!(sent(&mut session, 21 * SECOND), Some(Ok((false, false))));
}
