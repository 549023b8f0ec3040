//! BFD control packets: every check by itself, round trips, and any bytes.

use holdfast_wire::bfd::{
    Authentication, Control, DIGEST, Diagnostic, LEN, MAX_LEN, Malformed, State,
};
use proptest::prelude::*;

fn packet() -> Control<'static> {
    Control {
        state: State::Up,
        diagnostic: Diagnostic::NEIGHBOR_SIGNALED_DOWN,
        poll: true,
        is_final: false,
        control_plane_independent: true,
        demand: false,
        detect_multiplier: 3,
        my_discriminator: 0x0102_0304,
        your_discriminator: 0x0506_0708,
        desired_min_tx: 50_000,
        required_min_rx: 60_000,
        required_min_echo_rx: 0,
        authentication: None,
    }
}

fn bytes(packet: &Control<'_>) -> Vec<u8> {
    let mut bytes = [0xee; MAX_LEN];
    let len = packet.write(&mut bytes).expect("a test's packet can be written");
    bytes[..len].to_vec()
}

/// The layout as in the figure of RFC 5880, section 4.1, byte by byte.
#[test]
fn the_layout_is_the_rfcs() {
    let expected: [u8; LEN] = [
        0x23, 0xe8, 3,
        24, // version 1, diagnostic 3; Up, poll, control plane independent; multiplier; length
        1, 2, 3, 4, 5, 6, 7, 8, // discriminators
        0, 0, 0xc3, 0x50, 0, 0, 0xea, 0x60, 0, 0, 0, 0,
    ];
    assert_eq!(bytes(&packet()), expected);
}

#[test]
fn sections_lie_as_the_rfc_says() {
    let password = Control {
        authentication: Some(Authentication::Password { key_id: 9, password: b"word" }),
        ..packet()
    };
    let written = bytes(&password);
    assert_eq!((&written[LEN..], written[3], written[1] & 4), (&b"\x01\x07\x09word"[..], 31, 4));
    let sha1 = Authentication::Sha1 {
        is_meticulous: true,
        key_id: 9,
        sequence: 0x0a0b_0c0d,
        digest: [7; 20],
    };
    let written = bytes(&Control { authentication: Some(sha1), ..packet() });
    assert_eq!(written[LEN..DIGEST.start], [5, 28, 9, 0, 0x0a, 0x0b, 0x0c, 0x0d]);
    assert_eq!((&written[DIGEST], written.len(), written[3]), (&[7; 20][..], MAX_LEN, 52));
}

/// Each check of section 6.8.6 that needs no session refuses a packet that is wrong in
/// this alone.
#[test]
fn every_check_has_its_reason() {
    let good = bytes(&packet());
    let spoil = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Control::parse(&bytes).err()
    };
    assert_eq!(Control::parse(&good).err(), None);
    assert_eq!(Control::parse(&good[..LEN - 1]).err(), Some(Malformed::Truncated));
    assert_eq!(spoil(0, 0x03), Some(Malformed::Version));
    assert_eq!(spoil(0, 0x43), Some(Malformed::Version));
    assert_eq!(spoil(3, 23), Some(Malformed::Length));
    assert_eq!(spoil(3, 25), Some(Malformed::Length));
    assert_eq!(spoil(2, 0), Some(Malformed::Multiplier));
    assert_eq!(spoil(1, good[1] | 1), Some(Malformed::Multipoint));
    // The authentication bit, and no room for a section.
    assert_eq!(spoil(1, good[1] | 4), Some(Malformed::Length));
    let nameless = |packet: Control<'_>| Control::parse(&bytes(&packet)).err();
    assert_eq!(
        nameless(Control { my_discriminator: 0, ..packet() }),
        Some(Malformed::MyDiscriminator)
    );
    for state in State::ALL {
        let expected =
            matches!(state, State::Init | State::Up).then_some(Malformed::YourDiscriminator);
        assert_eq!(
            nameless(Control { state, your_discriminator: 0, ..packet() }),
            expected,
            "{state}"
        );
    }
}

#[test]
fn sections_of_impossible_lengths_are_refused() {
    let with = |section: &[u8]| {
        let mut bytes = bytes(&packet());
        bytes[1] |= 4;
        bytes[3] += section.len() as u8;
        bytes.extend(section);
        match Control::parse(&bytes).map(|packet| packet.authentication) {
            Ok(Some(Authentication::Other(kind))) => Ok(kind),
            Ok(_) => Ok(0),
            Err(why) => Err(why),
        }
    };
    let refused = Err(Malformed::Authentication);
    for section in [&[1, 3, 0][..], &[1, 20, 0], &[1, 0], &[1, 1, 2], &[4, 27], &[5, 29]] {
        let mut section = section.to_vec();
        assert_eq!(with(&section), refused, "{section:?}");
        section.resize(17, 0);
        if section[1] > 17 {
            assert_eq!(with(&section), refused, "{section:?}");
        }
    }
    let mut long = vec![1, 20, 0];
    long.resize(20, b'x');
    assert_eq!(with(&long), refused, "a password of 17");
    // MD5 and unknown types are read, for the session to refuse.
    assert_eq!(with(&[2, 2]), Ok(2));
    assert_eq!(with(&[77, 4, 1, 2]), Ok(77));
}

#[test]
fn what_cannot_be_written_is_not() {
    let mut short = [0xaa; LEN - 1];
    assert!(packet().write(&mut short).is_err() && short == [0xaa; LEN - 1]);
    for authentication in [
        Authentication::Other(2),
        Authentication::Password { key_id: 1, password: b"" },
        Authentication::Password { key_id: 1, password: &[b'x'; 17] },
    ] {
        let mut room = [0xaa; 64];
        assert!(
            Control { authentication: Some(authentication), ..packet() }.write(&mut room).is_err()
        );
        assert_eq!(room, [0xaa; 64]);
    }
}

fn section(
    choice: u8,
    key_id: u8,
    sequence: u32,
    secret: &[u8; 20],
    len: usize,
) -> Option<Authentication<'_>> {
    match choice {
        0 => None,
        1 => Some(Authentication::Password { key_id, password: &secret[..len] }),
        kind => Some(Authentication::Sha1 {
            is_meticulous: kind == 3,
            key_id,
            sequence,
            digest: *secret,
        }),
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        (state, diagnostic, flags) in (0usize..4, 0u8..32, any::<[bool; 4]>()),
        (multiplier, my, your) in (1u8.., 1u32.., 1u32..),
        intervals in any::<[u32; 3]>(),
        (choice, key_id, sequence, secret, len) in (0u8..4, any::<u8>(), any::<u32>(), any::<[u8; 20]>(), 1usize..=16),
        behind in 0usize..8,
    ) {
        let packet = Control {
            state: State::ALL[state],
            diagnostic: Diagnostic::new(diagnostic).expect("below 32"),
            poll: flags[0],
            is_final: flags[1],
            control_plane_independent: flags[2],
            demand: flags[3],
            detect_multiplier: multiplier,
            my_discriminator: my,
            your_discriminator: your,
            desired_min_tx: intervals[0],
            required_min_rx: intervals[1],
            required_min_echo_rx: intervals[2],
            authentication: section(choice, key_id, sequence, &secret, len),
        };
        let mut written = bytes(&packet);
        let len = written.len();
        // Bytes behind the packet in the datagram do not belong to it.
        written.resize(len + behind, 0x55);
        prop_assert_eq!(Control::parse(&written), Ok(packet));
        prop_assert_eq!(Control::signed(&written), Some(&written[..len]));
    }

    /// No bytes make it panic, and an accepted packet is written again unchanged.
    #[test]
    fn any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..80), looks_right in any::<bool>()) {
        if looks_right && bytes.len() >= LEN {
            bytes[0] = bytes[0] & 0x1f | 0x20;
            bytes[1] &= !1;
            bytes[3] = bytes.len() as u8;
        }
        if let Ok(packet) = Control::parse(&bytes) {
            let mut again = [0; MAX_LEN];
            match packet.write(&mut again) {
                Ok(len) => prop_assert_eq!(Control::parse(&again[..len]), Ok(packet)),
                Err(_) => prop_assert!(matches!(packet.authentication, Some(Authentication::Other(_)))),
            }
        }
    }
}
