//! Authentication: passwords, digests and their numbers, across incarnations.

use super::super::*;
use super::pair::*;
use holdfast_wire::bfd::{Control, Diagnostic, MAX_LEN, State};

#[test]
fn with_one_key_they_come_up_and_stay() {
    for kind in [KeyKind::Password, KeyKind::KeyedSha1, KeyKind::MeticulousKeyedSha1] {
        // Numbers go round meanwhile: one side begins close to the end.
        let mut pair = Pair::up(
            with_key(kind, 7, b"sixteen bytes it"),
            with_key(kind, 7, b"sixteen bytes it"),
        );
        pair.run(30 * SECOND);
        assert_eq!(
            (pair.states(), pair.changes.len(), pair.discards.len()),
            ([State::Up; 2], 0, 0),
            "{kind:?}"
        );
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
        assert!(
            pair.discards.iter().all(|(_, discard)| *discard == Discard::Unauthenticated),
            "{what}"
        );
    }
}

/// A signed packet in which any bit is flipped belongs to no session.
#[test]
fn a_changed_packet_is_not_believed() {
    let mut pair =
        Pair::up(with_key(KeyKind::KeyedSha1, 1, b"k"), with_key(KeyKind::KeyedSha1, 1, b"k"));
    pair.run(SECOND);
    let last = pair
        .sent
        .iter()
        .rev()
        .find(|sent| sent.from == 0)
        .map(|sent| sent.bytes.clone())
        .expect("it sends");
    for bit in 0..last.len() * 8 {
        let mut changed = last.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let Ok(packet) = Control::parse(&changed) else { continue };
        assert_eq!(
            pair.sides[1].handle(&packet, &changed, pair.now),
            Err(Discard::Unauthenticated),
            "bit {bit}"
        );
    }
    // Bytes beyond the length field are covered by no digest: they are ignored.
    let mut longer = last.clone();
    longer.push(0);
    pair.deliver(1, &longer);
    assert_eq!((pair.discards.len(), pair.changes.len()), (0, 0));
}

/// An attacker plays back a packet from before the session came up, which would take it
/// down: it is refused. The latest number counts again with keyed SHA1, and does not with
/// the meticulous one (section 6.7.4).
#[test]
fn what_was_heard_before_is_refused() {
    for (kind, is_meticulous) in [(KeyKind::KeyedSha1, false), (KeyKind::MeticulousKeyedSha1, true)]
    {
        let mut pair = Pair::new(with_key(kind, 1, b"k"), with_key(kind, 1, b"k"));
        pair.run(10 * SECOND);
        let recorded: Vec<Vec<u8>> =
            pair.sent.iter().filter(|sent| sent.from == 0).map(|sent| sent.bytes.clone()).collect();
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
        // A number from too far ahead is as bad; a few may be lost.
        pair.forget();
        pair.run(SECOND);
        let now = pair.now;
        let Some(Sent { bytes, .. }) = pair.sent.iter().rev().find(|sent| sent.from == 0) else {
            panic!("it sends")
        };
        let Some(holdfast_wire::bfd::Authentication::Sha1 { sequence, .. }) =
            Control::parse(bytes).ok().and_then(|packet| packet.authentication)
        else {
            panic!("it is signed")
        };
        let key = Key::new(kind, 1, b"k").expect("a key");
        for (ahead, is_taken) in [(10, false), (9, true)] {
            let packet = Control {
                authentication: Some(key.section(sequence.wrapping_add(ahead))),
                ..pair.sent[0].packet()
            };
            let mut forged = [0; MAX_LEN];
            let len = packet.write(&mut forged).expect("there is room");
            key.sign(&mut forged[..len]);
            let packet = Control::parse(&forged[..len]).expect("it was written");
            assert_eq!(
                pair.sides[1].handle(&packet, &forged[..len], now).is_ok(),
                is_taken,
                "{ahead}"
            );
        }
    }
}

/// A side that was started again counts from elsewhere: it is refused until its old
/// numbers are out of date, and then heard (section 6.8.1).
#[test]
fn numbers_are_forgotten_with_who_gave_them() {
    let keyed = || with_key(KeyKind::MeticulousKeyedSha1, 1, b"k");
    let mut pair = Pair::up(keyed(), keyed());
    pair.sides[0] = Session::new(keyed(), 33, 0x8000_0000, pair.now);
    pair.run(100 * MS);
    assert_eq!(pair.sides[1].state(), State::Up, "{:?}", pair.changes);
    assert!(pair.discards.contains(&(1, Discard::Replayed)));
    pair.run(5 * SECOND);
    assert_eq!(
        (pair.to_states(1)[0], pair.states()),
        ((State::Down, Diagnostic::TIME_EXPIRED), [State::Up; 2])
    );
}

/// A session's next incarnation knows its memory. After a pause shorter than the
/// detection time the other side notices nothing, and numbers continue.
#[test]
fn the_next_incarnation_goes_on_with_it() {
    for key in [None, Key::new(KeyKind::MeticulousKeyedSha1, 1, b"k")] {
        let keyed = || Settings { key: key.clone(), ..settings(50, 3) };
        let mut pair = Pair::up(keyed(), keyed());
        for _ in 0..20 {
            let before =
                (pair.sides[0].timers(), pair.sides[0].since(), pair.sides[0].discriminator());
            let memory = pair.sides[0].memory();
            // Packets that it sends now are lost.
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
            assert_eq!(
                (&pair.changes[..], &pair.discards[..], pair.states()),
                (&[][..], &[][..], [State::Up; 2])
            );
            assert_eq!((pair.sides[0].downs().0, pair.sides[1].downs().0), (0, 0));
        }
    }
}

/// After a longer pause the session begins anew, with numbers that the other side takes.
/// The session goes down only once.
#[test]
fn after_a_long_pause_it_begins_anew() {
    let keyed = || with_key(KeyKind::MeticulousKeyedSha1, 1, b"k");
    let mut pair = Pair::up(keyed(), keyed());
    let memory = pair.sides[0].memory();
    pair.cut = [true; 2];
    pair.run(160 * MS);
    pair.cut = [false; 2];
    pair.sides[0] = Session::resume(keyed(), &memory, pair.now).expect("it is a session's");
    assert_eq!(
        (pair.sides[0].state(), pair.sides[0].downs()),
        (State::Down, (1, Diagnostic::TIME_EXPIRED))
    );
    pair.forget();
    pair.run_until("both are up again", |pair| pair.states() == [State::Up; 2]);
    assert_eq!((pair.sides[1].downs(), pair.discards.len()), ((1, Diagnostic::TIME_EXPIRED), 0));
    pair.forget();
    pair.run(10 * SECOND);
    assert_eq!((pair.changes.len(), pair.discards.len()), (0, 0));
}

/// The other side had missed packets before the pause, and went down during it. Its first
/// answer says so, and the session knows that the link is not at fault.
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
    // A later failure has nothing to do with that pause.
    pair.cut[0] = true;
    pair.run_until("it is down", |pair| pair.states()[0] == State::Down);
    assert!(!pair.sides[0].was_away());
}

/// Both sides change their key, one after the other, within a minute: the session stays
/// up. The old key counts no more when both have the new one.
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
            assert_eq!(
                (pair.states(), pair.changes.len()),
                ([State::Up; 2], 0),
                "{kind:?} {:?}",
                pair.discards
            );
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

/// A side changes its key and the other one never does: after a minute the old key counts
/// no more, and the session is down.
#[test]
fn an_old_key_ends() {
    let mut pair =
        Pair::up(with_key(KeyKind::KeyedSha1, 1, b"old"), with_key(KeyKind::KeyedSha1, 1, b"old"));
    pair.sides[0].set_key(Key::new(KeyKind::KeyedSha1, 1, b"new").expect("a key"), pair.now);
    pair.run(59 * SECOND);
    assert_eq!((pair.states(), pair.discards.len()), ([State::Up; 2], 0));
    pair.run(2 * SECOND);
    assert_eq!(pair.states(), [State::Down; 2]);
    pair.sides[1].set_key(Key::new(KeyKind::KeyedSha1, 1, b"new").expect("a key"), pair.now);
    pair.run_until("both are up again", |pair| pair.states() == [State::Up; 2]);
}

/// The other side changed its key first, and the session is down: it comes up as soon as
/// this side knows the key too.
#[test]
fn the_other_side_has_the_new_key_already() {
    let mut pair = Pair::new(
        with_key(KeyKind::MeticulousKeyedSha1, 1, b"old"),
        with_key(KeyKind::MeticulousKeyedSha1, 1, b"new"),
    );
    pair.run(10 * SECOND);
    assert_eq!(pair.states(), [State::Down; 2]);
    pair.sides[0]
        .set_key(Key::new(KeyKind::MeticulousKeyedSha1, 1, b"new").expect("a key"), pair.now);
    pair.run(5 * SECOND);
    assert_eq!(pair.states(), [State::Up; 2]);
}

#[test]
fn keys_have_lengths_and_keep_quiet() {
    assert!(
        Key::new(KeyKind::Password, 1, &[b'x'; 17]).is_none()
            && Key::new(KeyKind::Password, 1, &[b'x'; 16]).is_some()
    );
    assert!(
        Key::new(KeyKind::KeyedSha1, 1, &[b'x'; 21]).is_none()
            && Key::new(KeyKind::KeyedSha1, 1, &[b'x'; 20]).is_some()
    );
    assert!(Key::new(KeyKind::KeyedSha1, 1, b"").is_none());
    let said = format!("{:?}", settings_of(b"hunter2"));
    assert!(
        said.contains("KeyedSha1") && !said.contains("hunter2") && !said.contains("104"),
        "{said}"
    );
}

fn settings_of(secret: &[u8]) -> Settings {
    with_key(KeyKind::KeyedSha1, 1, secret)
}
