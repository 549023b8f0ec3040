//! Two BFD sessions, whose packets are lost, delayed, repeated, altered or forged, while
//! intervals change and a side is switched off. No step panics. If packets are signed, a
//! session believes only what the other side has sent, and both come up when the link is
//! whole again.

use arbitrary::Arbitrary;
use holdfast_node::bfd::{Key, KeyKind, Session, Settings};
use holdfast_wire::bfd::{Control, MAX_LEN, State};

const SECOND: u64 = 1_000_000_000;

#[derive(Debug, Arbitrary)]
enum Step {
    /// A packet that is on its way to this side arrives, in any order.
    Deliver { to: bool, at: u8 },
    /// The same, but the packet stays on its way: it may arrive again.
    Again { to: bool, at: u8 },
    /// The same, with bits flipped.
    Flip { to: bool, at: u8, byte: u8, bits: u8 },
    /// The packet is lost.
    Lose { to: bool, at: u8 },
    /// Any bytes arrive.
    Forge { to: bool, bytes: Vec<u8> },
    /// A side is switched off, or on.
    Admin { side: bool, is_down: bool },
    /// Other intervals, µs.
    Intervals { side: bool, transmit: u16, receive: u16, multiplier: u8 },
    /// Time passes, ms.
    Wait(u8),
}

struct Link {
    sessions: [Session; 2],
    /// The packets on their way to each side.
    sent: [Vec<Vec<u8>>; 2],
    is_signed: bool,
    now: u64,
    random: u64,
}

impl Link {
    fn hear(&mut self, to: usize, payload: &[u8], is_genuine: bool) {
        let before = (self.sessions[to].state(), self.sessions[to].remote_discriminator());
        let is_taken = Control::parse(payload)
            .is_ok_and(|packet| self.sessions[to].handle(&packet, payload, self.now).is_ok());
        if !is_taken {
            assert_eq!(
                (self.sessions[to].state(), self.sessions[to].remote_discriminator()),
                before,
                "what is refused changes nothing"
            );
        }
        assert!(!is_taken || is_genuine || !self.is_signed, "nobody has sent that");
    }

    /// Both sides send the packets that are due.
    fn turn(&mut self) {
        for side in 0..2 {
            self.sessions[side].handle_timeout(self.now);
            let mut payload = [0; MAX_LEN];
            let random = &mut self.random;
            let mut draw = || {
                *random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                *random
            };
            while let Some(len) =
                self.sessions[side].poll_transmit(self.now, &mut draw, &mut payload)
            {
                assert!(Control::parse(&payload[..len]).is_ok(), "what is sent is well-formed");
                self.sent[1 - side].push(payload[..len].to_vec());
            }
        }
    }

    fn step(&mut self, step: Step) {
        let place = |link: &Link, to: bool, at: u8| {
            let len = link.sent[usize::from(to)].len();
            (len > 0).then(|| usize::from(at) % len)
        };
        match step {
            Step::Deliver { to, at } => {
                if let Some(at) = place(self, to, at) {
                    let payload = self.sent[usize::from(to)].remove(at);
                    self.hear(usize::from(to), &payload, true);
                }
            }
            Step::Again { to, at } => {
                if let Some(at) = place(self, to, at) {
                    let payload = self.sent[usize::from(to)][at].clone();
                    self.hear(usize::from(to), &payload, true);
                }
            }
            Step::Flip { to, at, byte, bits } => {
                if let Some(at) = place(self, to, at) {
                    let mut payload = self.sent[usize::from(to)].remove(at);
                    let byte = usize::from(byte) % payload.len();
                    payload[byte] ^= bits;
                    self.hear(usize::from(to), &payload, bits == 0);
                }
            }
            Step::Lose { to, at } => {
                if let Some(at) = place(self, to, at) {
                    self.sent[usize::from(to)].remove(at);
                }
            }
            Step::Forge { to, bytes } => self.hear(usize::from(to), &bytes, false),
            Step::Admin { side, is_down } => {
                self.sessions[usize::from(side)].set_admin_down(is_down, self.now);
            }
            Step::Intervals { side, transmit, receive, multiplier } => {
                let transmit = u32::from(transmit) + 1;
                self.sessions[usize::from(side)].set_intervals(
                    transmit,
                    receive.into(),
                    multiplier % 8 + 1,
                );
            }
            Step::Wait(milliseconds) => self.now += u64::from(milliseconds) * 1_000_000,
        }
        self.turn();
    }
}

pub(crate) fn run(data: &[u8]) {
    let Some((signed, steps)) = crate::structured::<(Option<bool>, Vec<Step>)>(data) else {
        return;
    };
    let kind = |is_meticulous| {
        if is_meticulous { KeyKind::MeticulousKeyedSha1 } else { KeyKind::KeyedSha1 }
    };
    let session = |side: u32| {
        let key = signed.map(|is_meticulous| {
            Key::new(kind(is_meticulous), 7, b"a secret of both").expect("a good key")
        });
        Session::new(
            Settings { min_transmit: 50_000, min_receive: 50_000, multiplier: 3, key },
            side,
            side << 20,
            SECOND,
        )
    };
    let mut link = Link {
        sessions: [session(1), session(2)],
        sent: Default::default(),
        is_signed: signed.is_some(),
        now: SECOND,
        random: 1,
    };
    link.turn();
    for step in steps {
        link.step(step);
    }
    if !link.is_signed {
        // A forged packet may have made a side wait for as long as the packet said.
        return;
    }
    for side in 0..2 {
        link.sessions[side].set_intervals(50_000, 50_000, 3);
        link.sessions[side].set_admin_down(false, link.now);
        link.sent[side].clear();
    }
    let end = link.now + 60 * SECOND;
    while link.sessions.iter().any(|session| session.state() != State::Up) {
        assert!(link.now < end, "a whole link does not come up: {:?}", link.sessions);
        link.turn();
        for to in 0..2 {
            for payload in core::mem::take(&mut link.sent[to]) {
                link.hear(to, &payload, true);
            }
        }
        let next = link.sessions.iter().map(Session::poll_timeout).min().expect("there are two");
        link.now = next.clamp(link.now + 1, link.now + SECOND);
    }
}
