//! Any packets, at any times, and any memory.

use super::super::*;
use super::pair::*;
use holdfast_wire::bfd::{Control, MAX_LEN, State};
use proptest::prelude::*;

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
        (
            any::<[bool; 5]>(),
            0usize..4,
            1u32..,
            prop_oneof![Just(0), Just(11)],
            [time.clone(), time.clone()],
            1u8..
        )
            .prop_map(|(bits, state, my, your, times, multiplier)| Step::Hear {
                bits,
                state,
                my,
                your,
                times,
                multiplier
            }),
        (1u32.., time, 1u8..)
            .prop_map(|(transmit, receive, multiplier)| Step::Set(transmit, receive, multiplier)),
        any::<bool>().prop_map(Step::Admin),
    ]
}

proptest! {
    /// Any words in a session's memory are refused, or give a session that behaves.
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

    /// Any packets of the other side, at any times: each poll is answered once, nothing
    /// is due again at once, every sent packet can be parsed, and AdminDown ends by
    /// command alone.
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
