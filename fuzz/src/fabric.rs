//! Frames between the two ends of a channel, with keys and without. Frames are lost, cut,
//! altered, played back, reflected or forged. No end panics. Records are delivered as
//! they were sent and in order, and all of them once the network behaves. Without keys no
//! frame is altered or forged, because the ends believe such frames then.

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
    /// An end queues a record.
    Send { from: bool, len: u16 },
    /// An end transmits the frames that it has to send.
    Transmit { from: bool },
    /// A frame that was ever on the wire arrives.
    Deliver { at: u16 },
    /// The same, cut.
    Cut { at: u16, len: u16 },
    /// The same, with bits flipped.
    Flip { at: u16, byte: u16, bits: u8 },
    /// The same, back at the end that sent it.
    Reflect { at: u16 },
    /// Any bytes arrive.
    Forge { to: bool, bytes: Vec<u8> },
    /// A frame's header with any bytes behind it, so that the fuzzer need not invent a
    /// header.
    Head { to: bool, at: u16, bytes: Vec<u8> },
    /// An end gets other keys.
    Keys { at: bool, first: u8 },
    /// An end reads its inbox.
    Look { at: bool },
    /// Time passes, ms.
    Wait(u8),
}

fn ring(first: u8) -> KeyRing {
    // Both ends always have all keys; only the current key changes.
    let keys = (0..3u8)
        .map(|number| (number + first) % 3)
        .map(|number| Key { number, secret: [number + 1; 32] });
    KeyRing::new(keys.collect()).unwrap_or_else(|error| panic!("{error}"))
}

struct Wire {
    ends: [Fabric; 2],
    is_sealed: bool,
    /// Every frame that was ever sent, and the end that it is for.
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
        // The newest frames are the most interesting ones: small numbers pick them.
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

    /// The network behaves: every frame arrives, until all records are delivered.
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
