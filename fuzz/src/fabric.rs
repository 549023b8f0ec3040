//! Whatever happens to frames on their way, with keys and without: lost, cut, bits
//! flipped, played back, made up. Nothing panics; what is delivered is what was sent, in
//! order; and once the network behaves all of it is delivered. Without keys frames are
//! only lost, doubled and reordered: who forges one is believed there.

use arbitrary::Arbitrary;
use holdfast_node::channel::{Fabric, FabricConfig, Key, KeyRing};
use holdfast_protection::Peer;
use holdfast_wire::NodeId;
use std::num::NonZeroU64;

const ENDS: [Peer; 2] = [
    Peer { node: NodeId::new(16), incarnation: 1 },
    Peer { node: NodeId::new(17), incarnation: 1 },
];
const ETHERNET_LEN: usize = 14;

#[derive(Debug, Arbitrary)]
enum Step {
    /// An end has something to say.
    Send { from: bool, len: u16 },
    /// What an end has to send goes onto the wire.
    Transmit { from: bool },
    /// A frame of those on the wire, or that have ever been there, arrives.
    Deliver { at: u16 },
    /// The same, cut.
    Cut { at: u16, len: u16 },
    /// The same, with bits flipped.
    Flip { at: u16, byte: u16, bits: u8 },
    /// The same, at the other end.
    Reflect { at: u16 },
    /// Any bytes arrive.
    Forge { to: bool, bytes: Vec<u8> },
    /// A header with anything behind it, so that the fuzzer need not invent one.
    Head { to: bool, at: u16, bytes: Vec<u8> },
    /// An end gets other keys.
    Keys { at: bool, first: u8 },
    /// An end looks into its inbox.
    Look { at: bool },
    /// Milliseconds.
    Wait(u8),
}

fn ring(first: u8) -> KeyRing {
    // All ends always have all keys: only which one is current changes.
    let keys = (0..3u8)
        .map(|number| (number + first) % 3)
        .map(|number| Key { number, secret: [number + 1; 32] });
    KeyRing::new(keys.collect()).unwrap_or_else(|error| panic!("{error}"))
}

struct Wire {
    ends: [Fabric; 2],
    is_sealed: bool,
    /// Everything that was ever sent, and to whom.
    frames: Vec<(usize, Vec<u8>)>,
    sent: [u32; 2],
    got: [u32; 2],
    now: u64,
}

impl Wire {
    fn new(is_sealed: bool) -> Wire {
        let end = |at: usize| {
            let config = FabricConfig { buffer: 40_000, ..FabricConfig::default() };
            let mut fabric = Fabric::new(ENDS[at], config);
            if is_sealed {
                fabric.authenticate(&ring(0), NonZeroU64::MIN.saturating_add(at as u64));
            }
            fabric
        };
        Wire {
            ends: [end(0), end(1)],
            is_sealed,
            frames: Vec::new(),
            sent: [0; 2],
            got: [0; 2],
            now: 1,
        }
    }

    fn send(&mut self, from: usize, len: u16) {
        let mut body = vec![0xa5; usize::from(len % 1500)];
        body.splice(..0, self.sent[from].to_be_bytes());
        if self.ends[from].send(ENDS[1 - from].node, 40, &body).is_ok() {
            self.sent[from] += 1;
        }
    }

    fn transmit(&mut self, from: usize) {
        let Wire { ends, frames, now, .. } = self;
        ends[from].poll_transmit(*now, |frame| {
            frames.push((1 - from, frame.to_vec()));
            true
        });
    }

    fn frame(&self, at: u16) -> Option<(usize, Vec<u8>)> {
        // The newest are the most interesting ones.
        let count = self.frames.len();
        (count > 0).then(|| self.frames[count - 1 - usize::from(at) % count].clone())
    }

    fn arrive(&mut self, to: usize, frame: &[u8]) {
        let _ = self.ends[to].handle_frame(frame, self.now);
    }

    fn look(&mut self, at: usize) {
        for (record, body) in self.ends[at].inbox.records() {
            assert_eq!(record.from, ENDS[1 - at]);
            assert_eq!(
                body[..4],
                self.got[at].to_be_bytes(),
                "records are delivered once and in order"
            );
            assert!(body[4..].iter().all(|byte| *byte == 0xa5), "a record is what was sent");
            self.got[at] += 1;
        }
        self.ends[at].inbox.clear();
        assert!(self.got[at] <= self.sent[1 - at], "nothing is delivered that was not sent");
    }

    fn step(&mut self, step: &Step) {
        let may_forge = self.is_sealed;
        match step {
            Step::Send { from, len } => self.send((*from).into(), *len),
            Step::Transmit { from } => self.transmit((*from).into()),
            Step::Deliver { at } => {
                if let Some((to, frame)) = self.frame(*at) {
                    self.arrive(to, &frame);
                }
            }
            Step::Cut { at, len } => {
                if let Some((to, frame)) = self.frame(*at) {
                    self.arrive(to, &frame[..usize::from(*len) % frame.len()]);
                }
            }
            Step::Flip { at, byte, bits } if may_forge => {
                if let Some((to, mut frame)) = self.frame(*at) {
                    let byte = ETHERNET_LEN + usize::from(*byte) % (frame.len() - ETHERNET_LEN);
                    frame[byte] ^= bits;
                    self.arrive(to, &frame);
                }
            }
            Step::Reflect { at } => {
                if let Some((to, frame)) = self.frame(*at) {
                    self.arrive(1 - to, &frame);
                }
            }
            Step::Forge { to, bytes } if may_forge => self.arrive((*to).into(), bytes),
            Step::Head { to, at, bytes } if may_forge => {
                if let Some((_, mut frame)) = self.frame(*at) {
                    frame.truncate(ETHERNET_LEN + 84);
                    frame.extend_from_slice(bytes);
                    self.arrive((*to).into(), &frame);
                }
            }
            Step::Keys { at, first } => self.ends[usize::from(*at)].set_keys(&ring(first % 3)),
            Step::Look { at } => self.look((*at).into()),
            Step::Wait(milliseconds) => self.now += u64::from(*milliseconds) * 1_000_000,
            Step::Flip { .. } | Step::Forge { .. } | Step::Head { .. } => {}
        }
    }

    /// The network behaves: everything arrives.
    fn finish(mut self) {
        for _ in 0..10_000 {
            if self.got == [self.sent[1], self.sent[0]] {
                return;
            }
            self.now += 10_000_000;
            self.frames.clear();
            (0..2).for_each(|from| self.transmit(from));
            for (to, frame) in std::mem::take(&mut self.frames) {
                self.arrive(to, &frame);
            }
            (0..2).for_each(|at| self.look(at));
        }
        panic!("{:?} were sent and {:?} arrived", self.sent, self.got);
    }
}

pub(crate) fn run(data: &[u8]) {
    let Some((is_sealed, steps)) = crate::structured::<(bool, Vec<Step>)>(data) else { return };
    let mut wire = Wire::new(is_sealed);
    steps.iter().take(256).for_each(|step| wire.step(step));
    (0..2).for_each(|at| wire.look(at));
    wire.finish();
}
