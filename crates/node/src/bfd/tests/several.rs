//! All sessions of a box, and how a packet finds its session.

use super::super::*;
use super::pair::*;
use holdfast_wire::bfd::{Control, MAX_LEN, MIN_SOURCE_PORT, State};

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

/// A packet's session is found by the discriminator that it gives; by address and port
/// while it gives none.
#[test]
fn packets_find_their_session() {
    let mut sessions = Sessions::new(peers(), &mut random(1), 0);
    let names: Vec<u32> = sessions.iter().map(|(.., session)| session.discriminator()).collect();
    assert!(names.iter().all(|name| *name != 0) && names[0] != names[1] && names[1] != names[2]);
    let other: Vec<u32> = Sessions::new(peers(), &mut random(2), 0)
        .iter()
        .map(|(.., session)| session.discriminator())
        .collect();
    assert_ne!(names, other, "another start, other names");

    let nameless = written(9, 0, State::Down);
    let change = sessions.handle(1, &address(1), &nameless, 0);
    assert_eq!(
        change.map(|change| change.map(|(at, change)| (at, change.to))),
        Ok(Some((2, State::Init)))
    );
    assert_eq!(sessions.handle(1, &address(2), &nameless, 0), Err(Discard::NoSession));
    assert_eq!(sessions.handle(0, &address(3), &nameless, 0), Err(Discard::NoSession));
    let named = |name: u32| written(9, name, State::Init);
    let change = sessions.handle(0, &address(2), &named(names[1]), 0);
    assert_eq!(
        change.map(|change| change.map(|(at, change)| (at, change.to))),
        Ok(Some((1, State::Up)))
    );
    // A name is not enough: a listener on another link may know it.
    assert_eq!(sessions.handle(1, &address(2), &named(names[1]), 0), Err(Discard::NoSession));
    assert_eq!(sessions.handle(0, &address(1), &named(names[1]), 0), Err(Discard::NoSession));
    for wrong in [names[1] ^ 1 << 20, names[1] ^ 0x80, 1, u32::MAX] {
        assert_eq!(
            sessions.handle(0, &address(2), &named(wrong), 0),
            Err(Discard::NoSession),
            "{wrong:x}"
        );
    }
    let truncated = sessions.handle(0, &address(1), &nameless[..23], 0);
    assert_eq!(truncated, Err(Discard::Malformed(holdfast_wire::bfd::Malformed::Truncated)));
}

/// The sessions of a box in its next incarnation: under the same names, from the same UDP
/// ports. A session that was not noted, or of another place, is a new one.
#[test]
fn the_next_incarnation_has_the_same_sessions() {
    let (mut draw, mut into) = (random(3), [0; MAX_LEN]);
    let mut sessions = Sessions::new(peers(), &mut draw, 0);
    let seen =
        |sessions: &mut Sessions, draw: &mut dyn FnMut() -> u64, into: &mut [u8; MAX_LEN]| {
            let mut seen = Vec::new();
            while let Some(outgoing) = sessions.poll_transmit(0, draw, into) {
                seen.push((
                    outgoing.at,
                    outgoing.source_port,
                    Control::parse(into).map(|packet| packet.my_discriminator),
                ));
            }
            seen
        };
    let first = seen(&mut sessions, &mut draw, &mut into);
    let mut memories: Vec<_> = (0..3).map(|at| sessions.memory(at)).collect();
    assert!(sessions.memory(3).is_none());
    assert_eq!(
        seen(&mut Sessions::resume(peers(), &memories, &mut draw, 0), &mut draw, &mut into),
        first
    );
    memories.swap(0, 1);
    memories[2] = None;
    let other = seen(&mut Sessions::resume(peers(), &memories, &mut draw, 0), &mut draw, &mut into);
    assert!(
        other.iter().zip(&first).all(|(other, first)| other.0 == first.0 && other.2 != first.2),
        "{other:?} {first:?}"
    );
}

/// Every session sends, each from its own port of the range, and the table says when the
/// next is due.
#[test]
fn all_that_is_due_is_sent() {
    let mut draw = random(5);
    for _ in 0..50 {
        let mut sessions = Sessions::new(peers(), &mut draw, 0);
        assert!(sessions.poll_timeout() == 0 && sessions.len() == 3 && !sessions.is_empty());
        let mut into = [0; MAX_LEN];
        let mut sent = Vec::new();
        while let Some(outgoing) = sessions.poll_transmit(0, &mut draw, &mut into) {
            assert!(
                Control::parse(&into[..outgoing.len])
                    .is_ok_and(|packet| packet.your_discriminator == 0)
            );
            sent.push((outgoing.port, outgoing.peer, outgoing.source_port));
        }
        let ports: Vec<u16> = sent.iter().map(|(.., port)| *port).collect();
        assert_eq!(
            sent.iter().map(|(port, peer, _)| (*port, *peer)).collect::<Vec<_>>(),
            [(0, address(1)), (0, address(2)), (1, address(1))]
        );
        assert!(
            ports.iter().all(|port| *port >= MIN_SOURCE_PORT)
                && ports[0] != ports[1]
                && ports[1] != ports[2]
        );
        assert!((750 * MS..=SECOND).contains(&sessions.poll_timeout()));
    }
    let mut sessions = Sessions::new(peers(), &mut draw, 0);
    assert!(sessions.handle(0, &address(2), &written(9, 0, State::Down), 7).is_ok());
    let mut changed = Vec::new();
    sessions.handle_timeout(3 * SECOND + 6, |at, change| changed.push((at, change.to)));
    assert_eq!(changed, []);
    sessions.handle_timeout(3 * SECOND + 7, |at, change| changed.push((at, change.to)));
    assert_eq!(changed, [(1, State::Down)]);
    assert!(
        sessions
            .get_mut(1)
            .is_some_and(|session| session.set_admin_down(true, 4 * SECOND).is_some())
    );
    assert_eq!(sessions.poll_timeout(), 0);
}
