//! Two sessions against each other, on virtual time, over a link that loses, is cut, and is listened to.

use super::*;
use holdfast_wire::bfd::{Control, Diagnostic, MAX_LEN, MIN_SOURCE_PORT, State};
use proptest::prelude::*;
use std::collections::VecDeque;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// From side to side.
const DELAY: u64 = MS;

fn settings(interval_ms: u32, multiplier: u8) -> Settings {
    Settings { min_transmit: interval_ms * 1000, min_receive: interval_ms * 1000, multiplier, key: None }
}

fn with_key(kind: KeyKind, id: u8, secret: &[u8]) -> Settings {
    Settings { key: Key::new(kind, id, secret), ..settings(50, 3) }
}

/// SplitMix64: chance from a seed.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// What went over the link.
struct Sent {
    at: u64,
    from: usize,
    bytes: Vec<u8>,
}

impl Sent {
    fn packet(&self) -> Control<'_> {
        Control::parse(&self.bytes).expect("a session writes control packets")
    }
}

struct Pair {
    sides: [Session; 2],
    now: u64,
    flying: VecDeque<(u64, usize, Vec<u8>)>,
    /// Nothing that this side sends arrives.
    cut: [bool; 2],
    /// Of a thousand packets.
    lost: u64,
    random: Box<dyn FnMut() -> u64>,
    sent: Vec<Sent>,
    changes: Vec<(u64, usize, Change)>,
    discards: Vec<(usize, Discard)>,
}

impl Pair {
    fn new(first: Settings, second: Settings) -> Pair {
        Pair {
            sides: [Session::new(first, 11, 1000, 0), Session::new(second, 22, u32::MAX - 3, 0)],
            now: 0,
            flying: VecDeque::new(),
            cut: [false; 2],
            lost: 0,
            random: Box::new(random(7)),
            sent: Vec::new(),
            changes: Vec::new(),
            discards: Vec::new(),
        }
    }

    /// Both up, what came before forgotten.
    fn up(first: Settings, second: Settings) -> Pair {
        let mut pair = Pair::new(first, second);
        pair.run(10 * SECOND);
        assert_eq!(pair.states(), [State::Up; 2], "{:?} {:?}", pair.changes, pair.discards);
        pair.forget();
        pair
    }

    fn forget(&mut self) {
        self.sent.clear();
        self.changes.clear();
        self.discards.clear();
    }

    fn states(&self) -> [State; 2] {
        [self.sides[0].state(), self.sides[1].state()]
    }

    fn deliver(&mut self, to: usize, bytes: &[u8]) {
        let packet = Control::parse(bytes).expect("a session writes control packets");
        match self.sides[to].handle(&packet, bytes, self.now) {
            Ok(change) => self.changes.extend(change.map(|change| (self.now, to, change))),
            Err(discard) => self.discards.push((to, discard)),
        }
    }

    /// So many ns.
    fn run(&mut self, time: u64) {
        let end = self.now + time;
        loop {
            let arrival = self.flying.front().map_or(u64::MAX, |(at, ..)| *at);
            let next = self.sides.iter().map(Session::poll_timeout).min().unwrap_or(u64::MAX).min(arrival);
            if next > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            while self.flying.front().is_some_and(|(at, ..)| *at <= self.now) {
                let Some((_, to, bytes)) = self.flying.pop_front() else { break };
                self.deliver(to, &bytes);
            }
            for side in 0..2 {
                let change = self.sides[side].handle_timeout(self.now);
                self.changes.extend(change.map(|change| (self.now, side, change)));
                let mut into = [0; MAX_LEN];
                while let Some(len) = self.sides[side].poll_transmit(self.now, &mut self.random, &mut into) {
                    let bytes = into[..len].to_vec();
                    self.sent.push(Sent { at: self.now, from: side, bytes: bytes.clone() });
                    if !self.cut[side] && (self.random)() % 1000 >= self.lost {
                        self.flying.push_back((self.now + DELAY, 1 - side, bytes));
                    }
                }
            }
        }
    }

    fn run_until(&mut self, what: &str, mut is_so: impl FnMut(&Pair) -> bool) {
        let end = self.now + 60 * SECOND;
        while !is_so(self) {
            assert!(self.now < end, "it never was so that {what}: {:?}", self.changes);
            self.run(MS / 10);
        }
    }

    /// When a side sent what was no answer to a poll.
    fn times(&self, side: usize) -> Vec<u64> {
        let periodic = self.sent.iter().filter(|sent| sent.from == side && !sent.packet().is_final);
        periodic.map(|sent| sent.at).collect()
    }

    fn gaps(&self, side: usize) -> Vec<u64> {
        self.times(side).windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    fn to_states(&self, side: usize) -> Vec<(State, Diagnostic)> {
        let of_side = self.changes.iter().filter(|(_, at, _)| *at == side);
        of_side.map(|(_, _, change)| (change.to, change.diagnostic)).collect()
    }
}

const NONE: Diagnostic = Diagnostic::NONE;

/// Down, Init, Up, within a second and a round trip; then fast, after a poll each that was answered.
#[test]
fn they_come_up_and_then_speed_up() {
    let mut pair = Pair::new(settings(50, 3), settings(100, 5));
    pair.run(50 * MS);
    assert_eq!(pair.states(), [State::Up; 2]);
    for side in 0..2 {
        let states = pair.to_states(side);
        assert_eq!(states.last(), Some(&(State::Up, NONE)));
        assert!(states == [(State::Init, NONE), (State::Up, NONE)] || states == [(State::Up, NONE)], "{states:?}");
    }
    assert!(
        pair.sent.iter().filter(|sent| sent.packet().state != State::Up).all(|sent| sent.packet().desired_min_tx == 1_000_000)
    );
    pair.run(5 * SECOND);
    // The slower of what one sends and the other takes; each side's detection time is the other's multiplier of it.
    let timers = |side: usize| pair.sides[side].timers();
    assert_eq!(timers(0), Timers { transmit: 100_000, receive: Some(100_000), detection: Some(500_000) });
    assert_eq!(timers(1), Timers { transmit: 100_000, receive: Some(100_000), detection: Some(300_000) });
    assert_eq!((pair.sides[0].remote_discriminator(), pair.sides[1].remote_discriminator()), (22, 11));
    for side in 0..2 {
        let has = |from: usize, is_it: fn(&Control<'_>) -> bool| pair.sent.iter().any(|s| s.from == from && is_it(&s.packet()));
        assert!(has(side, |packet| packet.poll && packet.state == State::Up) && has(1 - side, |packet| packet.is_final));
        assert!(!pair.sent.iter().rev().take(20).any(|sent| sent.packet().poll), "the sequence ends");
        assert!(!has(side, |packet| packet.poll && packet.is_final));
    }
    assert_eq!(pair.changes.len(), pair.to_states(0).len() + pair.to_states(1).len());
    assert!(pair.to_states(0).len() <= 2 && pair.to_states(1).len() <= 2, "nothing flaps: {:?}", pair.changes);
}

/// Up to a quarter earlier, never later (section 6.8.7); with a multiplier of 1 a tenth earlier at least, or the other side would not wait for it.
#[test]
fn every_interval_is_another() {
    for (multiplier, least, most) in [(3, 75, 100), (1, 75, 90)] {
        let mut pair = Pair::up(settings(100, multiplier), settings(100, 3));
        pair.run(30 * SECOND);
        let gaps = pair.gaps(0);
        assert!(gaps.len() > 250);
        let percent = |gap: &u64| *gap as f64 / MS as f64;
        let (min, max) = (gaps.iter().map(percent).fold(1e9, f64::min), gaps.iter().map(percent).fold(0.0, f64::max));
        assert!(min >= f64::from(least) && max <= f64::from(most), "{min} to {max}");
        assert!(min < f64::from(least) + 2.0 && max > f64::from(most) - 2.0, "all of the range is used: {min} to {max}");
        assert_eq!(pair.changes, []);
    }
}

/// Whoever stops is taken for dead exactly a detection time after its last packet, and that is within multiplier times interval of its end.
#[test]
fn death_is_detected_in_time() {
    let mut pair = Pair::up(settings(50, 3), settings(50, 3));
    pair.cut = [true; 2];
    let cut_at = pair.now;
    pair.run(SECOND);
    for side in 0..2 {
        let (at, _, change) = *pair.changes.iter().find(|(_, at, _)| *at == side).expect("it was noticed");
        assert_eq!(change, Change { from: State::Up, to: State::Down, diagnostic: Diagnostic::TIME_EXPIRED });
        assert!(at <= cut_at + DELAY + 150 * MS && at >= cut_at + 100 * MS, "{}", at - cut_at);
        assert_eq!(pair.to_states(side).len(), 1);
        let session = &pair.sides[side];
        // Nothing is left of the other side, and packets go slowly.
        assert_eq!((session.remote(), session.remote_discriminator()), ((State::Down, NONE), 0));
        assert_eq!(session.timers(), Timers { transmit: 1_000_000, receive: None, detection: None });
        assert_eq!((session.downs(), session.since()), ((1, Diagnostic::TIME_EXPIRED), at));
    }
    pair.forget();
    pair.run(10 * SECOND);
    assert!(pair.gaps(0).iter().all(|gap| *gap >= 750 * MS), "{:?}", pair.gaps(0));
    pair.cut = [false; 2];
    pair.run_until("both are up again", |pair| pair.states() == [State::Up; 2]);
}

/// One direction is cut: who hears nothing says so, and the other side, which hears it, goes down for that reason.
#[test]
fn a_one_way_cut_is_known_to_both() {
    let mut pair = Pair::up(settings(50, 3), settings(50, 3));
    pair.cut[0] = true;
    let cut_at = pair.now;
    pair.run(500 * MS);
    assert_eq!(pair.to_states(1)[0], (State::Down, Diagnostic::TIME_EXPIRED));
    assert_eq!(pair.to_states(0)[0], (State::Down, Diagnostic::NEIGHBOR_SIGNALED_DOWN));
    let told = pair.changes.iter().find(|(_, side, _)| *side == 0).map_or(0, |(at, ..)| *at);
    assert!(told <= cut_at + 150 * MS + 2 * DELAY, "at once, not when it would have sent: {}", told - cut_at);
    pair.run(20 * SECOND);
    assert!(!pair.states().contains(&State::Up), "one direction is not enough: {:?}", pair.states());
    pair.cut[0] = false;
    pair.run_until("both are up again", |pair| pair.states() == [State::Up; 2]);
}

/// Who ends on purpose says so, and the other side does not take it for dead: not even if the first packets are lost, because they come as often as before until it has
/// answered. Of one that answers no more it is not expected for longer than a detection time.
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
        assert_eq!(pair.to_states(1)[0], (State::Down, Diagnostic::NEIGHBOR_SIGNALED_DOWN), "{lost_for}");
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

/// A third of all packets is lost: it comes up sooner or later, and what had gone down for it is up for good when the link is whole again.
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

/// A longer interval is used when the other side is known to wait for it, a shorter one at once; nobody goes down for it, also under loss.
#[test]
fn intervals_change_while_it_is_up() {
    // What the second side sends is lost for a while: five of its packets are waited for.
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
    assert!(pair.gaps(0).iter().all(|gap| (300 * MS..=400 * MS).contains(gap)), "{:?}", pair.gaps(0));

    // The other side's receiver slows this one down, and lets it go fast again: at once, not after the long interval.
    pair.sides[0].set_intervals(50_000, 50_000, 3);
    pair.run(SECOND);
    pair.sides[1].set_intervals(50_000, 900_000, 5);
    pair.run(3 * SECOND);
    assert_eq!((pair.sides[0].timers().transmit, pair.sides[1].timers().detection), (900_000, Some(2_700_000)));
    pair.sides[1].set_intervals(50_000, 50_000, 5);
    pair.run(200 * MS);
    assert_eq!((pair.sides[0].timers().transmit, pair.sides[1].timers().detection), (50_000, Some(150_000)));
    assert_eq!(pair.changes, []);

    // A shorter receive interval is no reason to expect packets sooner before the other side knows.
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

/// Changed twice within one round trip: the answer to the first poll does not stand for the second change.
#[test]
fn an_answer_is_for_what_was_asked() {
    let mut pair = Pair::up(settings(50, 3), settings(50, 3));
    pair.sides[0].set_intervals(100_000, 50_000, 3);
    pair.run_until("it has asked", |pair| pair.sent.iter().any(|sent| sent.from == 0 && sent.packet().poll));
    pair.sides[0].set_intervals(5_000_000, 50_000, 3);
    pair.run(2 * DELAY);
    assert_eq!(pair.sides[0].timers().transmit, 50_000, "the answer was about 100 ms");
    pair.run(SECOND);
    assert_eq!((pair.sides[0].timers().transmit, &pair.changes[..]), (5_000_000, &[][..]));
}

/// A side that begins anew has forgotten the other, which goes down at its first packet and comes up with it.
#[test]
fn one_begins_anew() {
    let mut pair = Pair::up(settings(50, 3), settings(50, 3));
    pair.sides[0] = Session::new(settings(50, 3), 33, 5, pair.now);
    pair.run(3 * SECOND);
    let states = pair.to_states(1);
    assert_eq!(states[0], (State::Down, Diagnostic::NEIGHBOR_SIGNALED_DOWN));
    assert_eq!((states.last(), pair.states()), (Some(&(State::Up, NONE)), [State::Up; 2]));
    assert_eq!((pair.sides[1].remote_discriminator(), pair.sides[1].downs().0, pair.sides[0].downs().0), (33, 1, 0));
    assert!(pair.changes[0].0 <= 10 * SECOND + 2 * DELAY, "at its first packet: {:?}", pair.changes[0]);
}

#[test]
fn administratively_down_is_said_and_held() {
    let mut pair = Pair::up(settings(50, 3), settings(50, 3));
    let now = pair.now;
    let change = pair.sides[0].set_admin_down(true, now);
    assert_eq!(change.map(|change| (change.to, change.diagnostic)), Some((State::AdminDown, Diagnostic::ADMIN_DOWN)));
    assert_eq!(pair.sides[0].set_admin_down(true, now), None);
    pair.run(10 * SECOND);
    assert_eq!(pair.states(), [State::AdminDown, State::Down]);
    assert_eq!(pair.to_states(1), [(State::Down, Diagnostic::NEIGHBOR_SIGNALED_DOWN)]);
    // It is told apart from a failure, for as long as it lasts.
    assert_eq!(pair.sides[1].remote(), (State::AdminDown, Diagnostic::ADMIN_DOWN));
    let now = pair.now;
    assert!(pair.sides[0].set_admin_down(false, now).is_some_and(|change| change.to == State::Down));
    pair.run(3 * SECOND);
    assert_eq!(pair.states(), [State::Up; 2]);
}

/// Section 6.8.7: who wants nothing gets nothing, but the answer to a poll.
#[test]
fn who_wants_no_packets_gets_none() {
    let mut pair = Pair::new(settings(50, 3), Settings { min_receive: 0, ..settings(50, 3) });
    pair.run(100 * MS);
    pair.forget();
    pair.run(10 * SECOND);
    assert!(!pair.sent.is_empty() && pair.sent.iter().all(|sent| sent.from == 1 || sent.packet().is_final));
    let poll = Control { poll: true, ..pair.sent[0].packet() };
    let mut bytes = [0; MAX_LEN];
    let len = poll.write(&mut bytes).expect("there is room");
    pair.forget();
    pair.deliver(0, &bytes[..len]);
    pair.run(10 * MS);
    assert!(pair.times(0).is_empty());
    assert_eq!(pair.sent.iter().filter(|sent| sent.from == 0 && sent.packet().is_final).count(), 1);
}

/// Section 6.6: a side in demand mode hears nothing while both are up, except polls and their answers.
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
        session.poll_transmit(now, &mut draw, &mut into).map(|len| Control::parse(&into[..len]).map(|p| (p.poll, p.is_final)))
    };
    assert_eq!(session.handle(&heard, &[], MS).map(|change| change.map(|change| change.to)), Ok(Some(State::Up)));
    assert_eq!(sent(&mut session, MS), Some(Ok((true, false))));
    assert_eq!(session.handle(&Control { state: State::Up, is_final: true, ..heard }, &[], 2 * MS), Ok(None));
    assert_eq!(sent(&mut session, 10 * SECOND), None);
    assert_eq!(session.handle(&Control { state: State::Up, poll: true, ..heard }, &[], 10 * SECOND), Ok(None));
    assert_eq!(sent(&mut session, 10 * SECOND), Some(Ok((false, true))));
    assert_eq!(sent(&mut session, 20 * SECOND), None);
    session.set_intervals(60_000, 50_000, 3);
    assert_eq!(sent(&mut session, 20 * SECOND), Some(Ok((true, false))));
    assert_eq!(session.handle(&Control { state: State::Up, demand: false, is_final: true, ..heard }, &[], 21 * SECOND), Ok(None));
    assert_eq!(sent(&mut session, 21 * SECOND), Some(Ok((false, false))));
}

#[test]
fn with_one_key_they_come_up_and_stay() {
    for kind in [KeyKind::Password, KeyKind::KeyedSha1, KeyKind::MeticulousKeyedSha1] {
        // Numbers go round meanwhile: one side begins close to the end.
        let mut pair = Pair::up(with_key(kind, 7, b"sixteen bytes it"), with_key(kind, 7, b"sixteen bytes it"));
        pair.run(30 * SECOND);
        assert_eq!((pair.states(), pair.changes.len(), pair.discards.len()), ([State::Up; 2], 0, 0), "{kind:?}");
    }
}

#[test]
fn with_different_keys_nobody_is_believed() {
    use KeyKind::{KeyedSha1, MeticulousKeyedSha1, Password};
    let right = || with_key(KeyedSha1, 7, b"secret");
    let others = [
        ("another secret", right(), with_key(KeyedSha1, 7, b"Secret")),
        ("another number", right(), with_key(KeyedSha1, 8, b"secret")),
        ("another kind", right(), with_key(MeticulousKeyedSha1, 7, b"secret")),
        ("a password for a key", right(), with_key(Password, 7, b"secret")),
        ("none at one side", right(), settings(50, 3)),
        ("another password", with_key(Password, 7, b"secret"), with_key(Password, 7, b"secrets")),
    ];
    for (what, first, second) in others {
        let mut pair = Pair::new(first, second);
        pair.run(10 * SECOND);
        assert_eq!((pair.states(), pair.changes.len()), ([State::Down; 2], 0), "{what}");
        for side in 0..2 {
            assert!(pair.discards.contains(&(side, Discard::Unauthenticated)), "{what}");
        }
        assert!(pair.discards.iter().all(|(_, discard)| *discard == Discard::Unauthenticated), "{what}");
    }
}

/// A bit of a signed packet that is another, wherever it is, makes it nobody's.
#[test]
fn a_changed_packet_is_not_believed() {
    let mut pair = Pair::up(with_key(KeyKind::KeyedSha1, 1, b"k"), with_key(KeyKind::KeyedSha1, 1, b"k"));
    pair.run(SECOND);
    let last = pair.sent.iter().rev().find(|sent| sent.from == 0).map(|sent| sent.bytes.clone()).expect("it sends");
    for bit in 0..last.len() * 8 {
        let mut changed = last.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let Ok(packet) = Control::parse(&changed) else { continue };
        assert_eq!(pair.sides[1].handle(&packet, &changed, pair.now), Err(Discard::Unauthenticated), "bit {bit}");
    }
    // What no length counts, no digest covers: it is not looked at.
    let mut longer = last.clone();
    longer.push(0);
    pair.deliver(1, &longer);
    assert_eq!((pair.discards.len(), pair.changes.len()), (0, 0));
}

/// Somebody plays back what was said while the session came up: it would take the session down, and is refused. The latest number counts again
/// with keyed SHA1, and does not with the meticulous one (section 6.7.4).
#[test]
fn what_was_heard_before_is_refused() {
    for (kind, is_meticulous) in [(KeyKind::KeyedSha1, false), (KeyKind::MeticulousKeyedSha1, true)] {
        let mut pair = Pair::new(with_key(kind, 1, b"k"), with_key(kind, 1, b"k"));
        pair.run(10 * SECOND);
        let recorded: Vec<Vec<u8>> = pair.sent.iter().filter(|sent| sent.from == 0).map(|sent| sent.bytes.clone()).collect();
        assert!(Control::parse(&recorded[0]).is_ok_and(|packet| packet.state == State::Down));
        pair.run(2 * DELAY);
        pair.forget();
        let (last, older) = recorded.split_last().expect("it has sent");
        for old in older {
            pair.deliver(1, old);
        }
        assert_eq!(pair.discards, vec![(1, Discard::Replayed); older.len()]);
        pair.deliver(1, last);
        assert_eq!(pair.discards.len(), older.len() + usize::from(is_meticulous), "{kind:?}");
        assert_eq!((pair.states(), pair.changes.len()), ([State::Up; 2], 0));
        // One from too far ahead is as bad; a few may be lost.
        pair.forget();
        pair.run(SECOND);
        let now = pair.now;
        let Some(Sent { bytes, .. }) = pair.sent.iter().rev().find(|sent| sent.from == 0) else { panic!("it sends") };
        let Some(holdfast_wire::bfd::Authentication::Sha1 { sequence, .. }) =
            Control::parse(bytes).ok().and_then(|packet| packet.authentication)
        else {
            panic!("it is signed")
        };
        let key = Key::new(kind, 1, b"k").expect("a key");
        for (ahead, is_taken) in [(10, false), (9, true)] {
            let packet = Control { authentication: Some(key.section(sequence.wrapping_add(ahead))), ..pair.sent[0].packet() };
            let mut forged = [0; MAX_LEN];
            let len = packet.write(&mut forged).expect("there is room");
            key.sign(&mut forged[..len]);
            let packet = Control::parse(&forged[..len]).expect("it was written");
            assert_eq!(pair.sides[1].handle(&packet, &forged[..len], now).is_ok(), is_taken, "{ahead}");
        }
    }
}

/// A side that was started again counts from elsewhere: it is refused until its old numbers mean nothing, and then heard (section 6.8.1).
#[test]
fn numbers_are_forgotten_with_who_gave_them() {
    let keyed = || with_key(KeyKind::MeticulousKeyedSha1, 1, b"k");
    let mut pair = Pair::up(keyed(), keyed());
    pair.sides[0] = Session::new(keyed(), 33, 0x8000_0000, pair.now);
    pair.run(100 * MS);
    assert_eq!(pair.sides[1].state(), State::Up, "{:?}", pair.changes);
    assert!(pair.discards.contains(&(1, Discard::Replayed)));
    pair.run(5 * SECOND);
    assert_eq!((pair.to_states(1)[0], pair.states()), ((State::Down, Diagnostic::TIME_EXPIRED), [State::Up; 2]));
}

/// Who has a session is followed by another one that knows what was noted. After a pause shorter than the detection time the other side notices nothing, and numbers go on.
#[test]
fn the_next_life_goes_on_with_it() {
    for key in [None, Key::new(KeyKind::MeticulousKeyedSha1, 1, b"k")] {
        let keyed = || Settings { key: key.clone(), ..settings(50, 3) };
        let mut pair = Pair::up(keyed(), keyed());
        for _ in 0..20 {
            let before = (pair.sides[0].timers(), pair.sides[0].since(), pair.sides[0].discriminator());
            let memory = pair.sides[0].memory();
            // What it sends now is nobody's.
            pair.cut = [true; 2];
            pair.run(90 * MS);
            pair.cut = [false; 2];
            let next = Session::resume(keyed(), &memory, pair.now).expect("it is a session's");
            assert_eq!((next.timers(), next.since(), next.discriminator()), before);
            pair.sides[0] = next;
            pair.forget();
            pair.run(2 * DELAY);
            assert!(
                pair.sent.iter().any(|sent| sent.from == 0 && sent.packet().poll)
                    && pair.sent.iter().any(|sent| sent.packet().is_final)
            );
            pair.run(777 * MS);
            assert_eq!((&pair.changes[..], &pair.discards[..], pair.states()), (&[][..], &[][..], [State::Up; 2]));
            assert_eq!((pair.sides[0].downs().0, pair.sides[1].downs().0), (0, 0));
        }
    }
}

/// After a longer pause the session begins anew, with numbers that the other side takes. It is down only once.
#[test]
fn after_a_long_pause_it_begins_anew() {
    let keyed = || with_key(KeyKind::MeticulousKeyedSha1, 1, b"k");
    let mut pair = Pair::up(keyed(), keyed());
    let memory = pair.sides[0].memory();
    pair.cut = [true; 2];
    pair.run(160 * MS);
    pair.cut = [false; 2];
    pair.sides[0] = Session::resume(keyed(), &memory, pair.now).expect("it is a session's");
    assert_eq!((pair.sides[0].state(), pair.sides[0].downs()), (State::Down, (1, Diagnostic::TIME_EXPIRED)));
    pair.forget();
    pair.run_until("both are up again", |pair| pair.states() == [State::Up; 2]);
    assert_eq!((pair.sides[1].downs(), pair.discards.len()), ((1, Diagnostic::TIME_EXPIRED), 0));
    pair.forget();
    pair.run(10 * SECOND);
    assert_eq!((pair.changes.len(), pair.discards.len()), (0, 0));
}

/// The other side had missed packets before the pause, and went down in it: that is heard with its first answer, and known not to be its fault.
#[test]
fn who_was_missed_knows_that_it_was_away() {
    let mut pair = Pair::up(settings(50, 3), settings(50, 3));
    pair.cut = [true, false];
    pair.run(120 * MS);
    let memory = pair.sides[0].memory();
    pair.cut = [true; 2];
    pair.run(60 * MS);
    pair.cut = [false; 2];
    pair.sides[0] = Session::resume(settings(50, 3), &memory, pair.now).expect("it is a session's");
    assert_eq!(pair.states(), [State::Up, State::Down]);
    pair.forget();
    pair.run(3 * DELAY);
    assert_eq!(
        pair.changes.first().map(|(_, side, change)| (*side, change.diagnostic)),
        Some((0, Diagnostic::NEIGHBOR_SIGNALED_DOWN))
    );
    assert!(pair.sides[0].was_away());
    pair.run_until("both are up again", |pair| pair.states() == [State::Up; 2]);
    assert!(!pair.sides[0].was_away());
    // What happens later is no matter of that pause.
    pair.cut[0] = true;
    pair.run_until("it is down", |pair| pair.states()[0] == State::Down);
    assert!(!pair.sides[0].was_away());
}

/// Both sides change their key, one after the other, within a minute: the session stays up. What was signed with the old one counts no more when both have the new one.
#[test]
fn keys_change_while_it_is_up() {
    for kind in [KeyKind::Password, KeyKind::KeyedSha1, KeyKind::MeticulousKeyedSha1] {
        let key = |secret: &[u8]| Key::new(kind, 1, secret).expect("a key");
        let mut pair = Pair::up(with_key(kind, 1, b"old"), with_key(kind, 1, b"old"));
        assert!(!pair.sides[0].set_key(key(b"old"), pair.now));
        for (first, old, new) in [(0, b"old", b"new"), (1, b"new", b"2nd")] {
            assert!(pair.sides[first].set_key(key(new), pair.now));
            pair.run(50 * SECOND);
            assert!(pair.sides[1 - first].set_key(key(new), pair.now));
            pair.run(50 * SECOND);
            assert_eq!((pair.states(), pair.changes.len()), ([State::Up; 2], 0), "{kind:?} {:?}", pair.discards);
            assert!(pair.discards.len() <= 2, "what was on its way: {:?}", pair.discards);
            pair.discards.clear();
            for side in 0..2 {
                let (key, mut bytes) = (key(old), [0; MAX_LEN]);
                let sent = pair.sent.iter().rev().find(|sent| sent.from == side).expect("it sends");
                let packet = Control { authentication: Some(key.section(7)), ..sent.packet() };
                let len = packet.write(&mut bytes).expect("there is room");
                key.sign(&mut bytes[..len]);
                pair.deliver(1 - side, &bytes[..len]);
                assert_eq!(pair.discards.pop(), Some((1 - side, Discard::Unauthenticated)));
            }
            pair.forget();
        }
    }
}

/// One side changes its key and the other one never does: after a minute the old one counts no more, and the session is down.
#[test]
fn an_old_key_ends() {
    let mut pair = Pair::up(with_key(KeyKind::KeyedSha1, 1, b"old"), with_key(KeyKind::KeyedSha1, 1, b"old"));
    pair.sides[0].set_key(Key::new(KeyKind::KeyedSha1, 1, b"new").expect("a key"), pair.now);
    pair.run(59 * SECOND);
    assert_eq!((pair.states(), pair.discards.len()), ([State::Up; 2], 0));
    pair.run(2 * SECOND);
    assert_eq!(pair.states(), [State::Down; 2]);
    pair.sides[1].set_key(Key::new(KeyKind::KeyedSha1, 1, b"new").expect("a key"), pair.now);
    pair.run_until("both are up again", |pair| pair.states() == [State::Up; 2]);
}

/// The other side was first, and the session is down: it is up again as soon as this side knows the key too.
#[test]
fn the_other_side_has_the_new_key_already() {
    let mut pair =
        Pair::new(with_key(KeyKind::MeticulousKeyedSha1, 1, b"old"), with_key(KeyKind::MeticulousKeyedSha1, 1, b"new"));
    pair.run(10 * SECOND);
    assert_eq!(pair.states(), [State::Down; 2]);
    pair.sides[0].set_key(Key::new(KeyKind::MeticulousKeyedSha1, 1, b"new").expect("a key"), pair.now);
    pair.run(5 * SECOND);
    assert_eq!(pair.states(), [State::Up; 2]);
}

#[test]
fn keys_have_lengths_and_keep_quiet() {
    assert!(Key::new(KeyKind::Password, 1, &[b'x'; 17]).is_none() && Key::new(KeyKind::Password, 1, &[b'x'; 16]).is_some());
    assert!(Key::new(KeyKind::KeyedSha1, 1, &[b'x'; 21]).is_none() && Key::new(KeyKind::KeyedSha1, 1, &[b'x'; 20]).is_some());
    assert!(Key::new(KeyKind::KeyedSha1, 1, b"").is_none());
    let said = format!("{:?}", settings_of(b"hunter2"));
    assert!(said.contains("KeyedSha1") && !said.contains("hunter2") && !said.contains("104"), "{said}");
}

fn settings_of(secret: &[u8]) -> Settings {
    with_key(KeyKind::KeyedSha1, 1, secret)
}

fn address(last: u8) -> [u8; 16] {
    holdfast_wire::map_v4([192, 0, 2, last])
}

fn peers() -> Vec<Peer> {
    let at = |port, last| Peer { port, address: address(last), settings: settings(50, 3) };
    vec![at(0, 1), at(0, 2), at(1, 1)]
}

fn written(my: u32, your: u32, state: State) -> Vec<u8> {
    let packet = Control {
        state,
        diagnostic: NONE,
        poll: false,
        is_final: false,
        control_plane_independent: false,
        demand: false,
        detect_multiplier: 3,
        my_discriminator: my,
        your_discriminator: your,
        desired_min_tx: 1_000_000,
        required_min_rx: 50_000,
        required_min_echo_rx: 0,
        authentication: None,
    };
    let mut bytes = [0; MAX_LEN];
    let len = packet.write(&mut bytes).expect("there is room");
    bytes[..len].to_vec()
}

/// Whose a packet is: by the name that it gives; by address and port while it gives none.
#[test]
fn packets_find_their_session() {
    let mut sessions = Sessions::new(peers(), &mut random(1), 0);
    let names: Vec<u32> = sessions.iter().map(|(.., session)| session.discriminator()).collect();
    assert!(names.iter().all(|name| *name != 0) && names[0] != names[1] && names[1] != names[2]);
    let other: Vec<u32> = Sessions::new(peers(), &mut random(2), 0).iter().map(|(.., session)| session.discriminator()).collect();
    assert_ne!(names, other, "another start, other names");

    let nameless = written(9, 0, State::Down);
    let change = sessions.handle(1, &address(1), &nameless, 0);
    assert_eq!(change.map(|change| change.map(|(at, change)| (at, change.to))), Ok(Some((2, State::Init))));
    assert_eq!(sessions.handle(1, &address(2), &nameless, 0), Err(Discard::NoSession));
    assert_eq!(sessions.handle(0, &address(3), &nameless, 0), Err(Discard::NoSession));
    let named = |name: u32| written(9, name, State::Init);
    let change = sessions.handle(0, &address(2), &named(names[1]), 0);
    assert_eq!(change.map(|change| change.map(|(at, change)| (at, change.to))), Ok(Some((1, State::Up))));
    // A name is not enough: it is known to whoever listens on another link.
    assert_eq!(sessions.handle(1, &address(2), &named(names[1]), 0), Err(Discard::NoSession));
    assert_eq!(sessions.handle(0, &address(1), &named(names[1]), 0), Err(Discard::NoSession));
    for wrong in [names[1] ^ 1 << 20, names[1] ^ 0x80, 1, u32::MAX] {
        assert_eq!(sessions.handle(0, &address(2), &named(wrong), 0), Err(Discard::NoSession), "{wrong:x}");
    }
    let truncated = sessions.handle(0, &address(1), &nameless[..23], 0);
    assert_eq!(truncated, Err(Discard::Malformed(holdfast_wire::bfd::Malformed::Truncated)));
}

/// The sessions of a box in its next life: under the same names, from the same UDP ports. A session that was not noted, or of another place, is a new one.
#[test]
fn the_next_life_has_the_same_sessions() {
    let (mut draw, mut into) = (random(3), [0; MAX_LEN]);
    let mut sessions = Sessions::new(peers(), &mut draw, 0);
    let seen = |sessions: &mut Sessions, draw: &mut dyn FnMut() -> u64, into: &mut [u8; MAX_LEN]| {
        let mut seen = Vec::new();
        while let Some(outgoing) = sessions.poll_transmit(0, draw, into) {
            seen.push((outgoing.at, outgoing.source_port, Control::parse(into).map(|packet| packet.my_discriminator)));
        }
        seen
    };
    let first = seen(&mut sessions, &mut draw, &mut into);
    let mut memories: Vec<_> = (0..3).map(|at| sessions.memory(at)).collect();
    assert!(sessions.memory(3).is_none());
    assert_eq!(seen(&mut Sessions::resume(peers(), &memories, &mut draw, 0), &mut draw, &mut into), first);
    memories.swap(0, 1);
    memories[2] = None;
    let other = seen(&mut Sessions::resume(peers(), &memories, &mut draw, 0), &mut draw, &mut into);
    assert!(other.iter().zip(&first).all(|(other, first)| other.0 == first.0 && other.2 != first.2), "{other:?} {first:?}");
}

/// Every session sends, each from its own port of the range, and the table says when the next is due.
#[test]
fn all_that_is_due_is_sent() {
    let mut draw = random(5);
    for _ in 0..50 {
        let mut sessions = Sessions::new(peers(), &mut draw, 0);
        assert!(sessions.poll_timeout() == 0 && sessions.len() == 3 && !sessions.is_empty());
        let mut into = [0; MAX_LEN];
        let mut sent = Vec::new();
        while let Some(outgoing) = sessions.poll_transmit(0, &mut draw, &mut into) {
            assert!(Control::parse(&into[..outgoing.len]).is_ok_and(|packet| packet.your_discriminator == 0));
            sent.push((outgoing.port, outgoing.peer, outgoing.source_port));
        }
        let ports: Vec<u16> = sent.iter().map(|(.., port)| *port).collect();
        assert_eq!(
            sent.iter().map(|(port, peer, _)| (*port, *peer)).collect::<Vec<_>>(),
            [(0, address(1)), (0, address(2)), (1, address(1))]
        );
        assert!(ports.iter().all(|port| *port >= MIN_SOURCE_PORT) && ports[0] != ports[1] && ports[1] != ports[2]);
        assert!((750 * MS..=SECOND).contains(&sessions.poll_timeout()));
    }
    let mut sessions = Sessions::new(peers(), &mut draw, 0);
    assert!(sessions.handle(0, &address(2), &written(9, 0, State::Down), 7).is_ok());
    let mut changed = Vec::new();
    sessions.handle_timeout(3 * SECOND + 6, |at, change| changed.push((at, change.to)));
    assert_eq!(changed, []);
    sessions.handle_timeout(3 * SECOND + 7, |at, change| changed.push((at, change.to)));
    assert_eq!(changed, [(1, State::Down)]);
    assert!(sessions.get_mut(1).is_some_and(|session| session.set_admin_down(true, 4 * SECOND).is_some()));
    assert_eq!(sessions.poll_timeout(), 0);
}

#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Hear { bits: [bool; 5], state: usize, my: u32, your: u32, times: [u32; 2], multiplier: u8 },
    Set(u32, u32, u8),
    Admin(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let time = prop_oneof![Just(0), Just(1), Just(50_000), any::<u32>()];
    prop_oneof![
        (0..5 * SECOND).prop_map(Step::Wait),
        (any::<[bool; 5]>(), 0usize..4, 1u32.., prop_oneof![Just(0), Just(11)], [time.clone(), time.clone()], 1u8..)
            .prop_map(|(bits, state, my, your, times, multiplier)| Step::Hear { bits, state, my, your, times, multiplier }),
        (1u32.., time, 1u8..).prop_map(|(transmit, receive, multiplier)| Step::Set(transmit, receive, multiplier)),
        any::<bool>().prop_map(Step::Admin),
    ]
}

proptest! {
    /// Whatever stands where a session should have been noted: it is none, or one that behaves.
    #[test]
    fn whatever_was_noted(words in any::<[u64; Memory::WORDS]>(), small in any::<[u8; 7]>(), now in any::<u32>()) {
        let (mut words, mut draw, now) = (words, random(1), u64::from(now));
        words[Memory::SMALL] = u64::from_le_bytes([small[0] & 3, small[1] & 31, small[2] & 31, small[3] & 3, small[4] & 31, small[5], small[6], 0]);
        let Some(mut session) = Session::resume(settings(50, 3), &Memory(words), now) else { return Ok(()) };
        let mut into = [0; MAX_LEN];
        for now in [now, now + SECOND, now + 10 * SECOND] {
            session.handle_timeout(now);
            for _ in 0..2 {
                session.poll_transmit(now, &mut draw, &mut into);
            }
        }
        let memory = session.memory();
        let again = Session::resume(settings(50, 3), &memory, now + 10 * SECOND);
        prop_assert!(again.is_some_and(|again| again.discriminator() == session.discriminator()));
    }

    /// Whatever the other side says, and whenever: each poll is answered once, nothing is due again at once, what is sent can be read, and
    /// AdminDown ends by command alone.
    #[test]
    fn whatever_is_heard(steps in prop::collection::vec(step(), 1..60)) {
        let mut session = Session::new(settings(50, 3), 11, 0, 0);
        let (mut now, mut draw) = (0, random(1));
        for step in steps {
            let was_admin_down = session.state() == State::AdminDown;
            let mut expects_final = false;
            match step {
                Step::Wait(time) => now += time,
                Step::Hear { bits, state, my, your, times, multiplier } => {
                    let packet = Control {
                        state: State::ALL[state],
                        diagnostic: NONE,
                        poll: bits[0],
                        is_final: bits[1],
                        control_plane_independent: bits[2],
                        demand: bits[3],
                        detect_multiplier: multiplier,
                        my_discriminator: my,
                        your_discriminator: your,
                        desired_min_tx: times[0],
                        required_min_rx: times[1],
                        required_min_echo_rx: 0,
                        authentication: None,
                    };
                    prop_assert!(session.handle(&packet, &[], now).is_ok());
                    expects_final = bits[0] && !was_admin_down;
                }
                Step::Set(transmit, receive, multiplier) => session.set_intervals(transmit, receive, multiplier),
                Step::Admin(is_down) => {
                    session.set_admin_down(is_down, now);
                    prop_assert_eq!(session.state() == State::AdminDown, is_down);
                    continue;
                }
            }
            session.handle_timeout(now);
            prop_assert_eq!(session.state() == State::AdminDown, was_admin_down);
            let mut into = [0; MAX_LEN];
            let mut finals = 0;
            let mut packets = 0;
            while let Some(len) = session.poll_transmit(now, &mut draw, &mut into) {
                let packet = Control::parse(&into[..len]);
                prop_assert!(packet.is_ok_and(|packet| !(packet.poll && packet.is_final) && packet.state == session.state()));
                finals += usize::from(packet.is_ok_and(|packet| packet.is_final));
                packets += 1;
                prop_assert!(packets <= 2);
            }
            prop_assert_eq!(finals, usize::from(expects_final));
            prop_assert!(session.poll_timeout() > now);
        }
    }
}
