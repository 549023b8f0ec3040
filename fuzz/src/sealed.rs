//! Sealed packets between hosts. Packets are cut, altered, played back, sent back or
//! forged, while hosts begin new incarnations, announce them to each other, and change
//! keys. No host panics. A packet opens only if a host has sealed it, byte for byte, in
//! the incarnation that the receiver was told of last. Each receiver opens it at most
//! once.

use arbitrary::Arbitrary;
use holdfast_node::channel::{Key, KeyRing};
use holdfast_node::seal::{HostSeal, SEAL_LEN, SealConfig};
use holdfast_wire::nsh::{Outer, encapsulate, index};
use holdfast_wire::{MemoryPool, Packet, PacketPool};
use std::collections::BTreeSet;
use std::num::NonZeroU64;

const HOSTS: u8 = 3;
const MACS_LEN: usize = 12;

#[derive(Debug, Arbitrary)]
enum Step {
    /// A host seals a packet.
    Seal { from: u8, len: u16 },
    /// A packet that was ever sealed arrives.
    Deliver { at: u16, to: u8 },
    /// The same, cut.
    Cut { at: u16, to: u8, len: u16 },
    /// The same, with bits flipped.
    Flip { at: u16, to: u8, byte: u16, bits: u8 },
    /// The beginning of the same, with any bytes behind it.
    Head { at: u16, to: u8, len: u8, bytes: Vec<u8> },
    /// Any bytes arrive.
    Forge { to: u8, bytes: Vec<u8> },
    /// A host announces its incarnation to another one.
    Announce { from: u8, to: u8 },
    /// A host begins its next incarnation, and has heard no announcement.
    Restart { host: u8 },
    /// A host gets other keys.
    Keys { host: u8, first: u8 },
    /// Time passes.
    Wait(u16),
}

fn ring(first: u8) -> KeyRing {
    let keys = (0..3u8)
        .map(|number| (number + first) % 3)
        .map(|number| Key { number, secret: [number + 1; 32] });
    KeyRing::new(keys.collect()).unwrap_or_else(|error| panic!("{error}"))
}

fn host_seal(host: u8, incarnation: u32) -> HostSeal {
    let life = NonZeroU64::MIN.saturating_add(u64::from(incarnation) << 8 | u64::from(host));
    let config = SealConfig {
        cluster: 7,
        host: host.into(),
        hosts: HOSTS.into(),
        incarnation,
        life,
        timeout: 1000,
    };
    HostSeal::new(config, &ring(0))
}

struct Host {
    seal: HostSeal,
    incarnation: u32,
    /// For each other host: the incarnation that it announced last, and the number of
    /// packets that all hosts had sealed when this incarnation was first announced.
    told: [(u32, usize); HOSTS as usize],
    /// The packets that it has opened in this incarnation, by their place in
    /// `Wire::frames`.
    taken: BTreeSet<usize>,
}

impl Host {
    fn new(host: u8, incarnation: u32) -> Host {
        Host {
            seal: host_seal(host, incarnation),
            incarnation,
            told: Default::default(),
            taken: BTreeSet::new(),
        }
    }
}

struct Sealed {
    from: u8,
    incarnation: u32,
    plain: Vec<u8>,
    bytes: Vec<u8>,
}

struct Wire {
    hosts: Vec<Host>,
    frames: Vec<Sealed>,
    pool: MemoryPool,
    now: u64,
}

impl Wire {
    fn packet(&mut self, bytes: &[u8]) -> Option<Packet> {
        let mut packet = self.pool.take()?;
        if packet.copy_from(bytes) {
            return Some(packet);
        }
        self.pool.put(packet);
        None
    }

    fn seal(&mut self, from: u8, len: u16) {
        let number = self.frames.len() as u32;
        let Some(mut packet) = self.packet(&vec![number as u8; usize::from(len % 1500)]) else {
            return;
        };
        packet.meta.commit = number;
        let outer = Outer {
            destination: [2, 0x48, 0x46, 0, 0, 2],
            source: [2, 0x48, 0x46, 1, 0, 16],
            index: index::RELEASED,
        };
        assert!(encapsulate(&mut packet, outer));
        let plain = packet.bytes().to_vec();
        let host = &mut self.hosts[usize::from(from)];
        assert!(host.seal.seal(&mut packet));
        let bytes = packet.bytes().to_vec();
        assert_eq!((bytes.len(), &bytes[..MACS_LEN]), (plain.len() + SEAL_LEN, &plain[..MACS_LEN]));
        self.frames.push(Sealed { from, incarnation: host.incarnation, plain, bytes });
        self.pool.put(packet);
    }

    fn at(&self, at: u16) -> Option<usize> {
        // The newest are the most interesting ones.
        let count = self.frames.len();
        (count > 0).then(|| count - 1 - usize::from(at) % count)
    }

    fn arrives(&mut self, to: u8, bytes: &[u8]) {
        let Some(mut packet) = self.packet(bytes) else { return };
        let host = &mut self.hosts[usize::from(to)];
        if host.seal.open(&mut packet).is_ok() {
            let known = self
                .frames
                .iter()
                .position(|frame| frame.plain == packet.bytes() && frame.bytes == bytes);
            let at = known.unwrap_or_else(|| panic!("something opens that nobody has sealed"));
            let Sealed { from, incarnation, .. } = self.frames[at];
            let (told, counted) = host.told[usize::from(from)];
            assert_ne!(from, to, "a host's own packet");
            assert_eq!(told, incarnation, "another incarnation than the one that was announced");
            assert!(at >= counted, "it was sealed before that was announced");
            assert!(host.taken.insert(at), "a packet counts twice");
        }
        self.pool.put(packet);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Seal { from, len } => self.seal(from % HOSTS, *len),
            Step::Deliver { at, to } => {
                if let Some(at) = self.at(*at) {
                    self.arrives(to % HOSTS, &self.frames[at].bytes.clone());
                }
            }
            Step::Cut { at, to, len } => {
                if let Some(at) = self.at(*at) {
                    let bytes = self.frames[at].bytes.clone();
                    self.arrives(to % HOSTS, &bytes[..usize::from(*len) % bytes.len()]);
                }
            }
            Step::Flip { at, to, byte, bits } => {
                if let Some(at) = self.at(*at) {
                    let mut bytes = self.frames[at].bytes.clone();
                    let byte = usize::from(*byte) % bytes.len();
                    bytes[byte] ^= bits;
                    self.arrives(to % HOSTS, &bytes);
                }
            }
            Step::Head { at, to, len, bytes } => {
                if let Some(at) = self.at(*at) {
                    let mut forged = self.frames[at].bytes.clone();
                    forged.truncate((*len).into());
                    forged.extend_from_slice(bytes);
                    self.arrives(to % HOSTS, &forged);
                }
            }
            Step::Forge { to, bytes } => self.arrives(to % HOSTS, bytes),
            Step::Announce { from, to } => {
                let (from, to) = (from % HOSTS, to % HOSTS);
                let sender = &self.hosts[usize::from(from)];
                let (said, incarnation) = (sender.seal.announcement(), sender.incarnation);
                let now = self.now;
                let count = self.frames.len();
                let receiver = &mut self.hosts[usize::from(to)];
                receiver.seal.handle_announced(from.into(), incarnation, said, now);
                let told = &mut receiver.told[usize::from(from)];
                if told.0 != incarnation {
                    *told = (incarnation, count);
                }
            }
            Step::Restart { host } => {
                let host = host % HOSTS;
                let incarnation = self.hosts[usize::from(host)].incarnation + 1;
                self.hosts[usize::from(host)] = Host::new(host, incarnation);
            }
            Step::Keys { host, first } => {
                self.hosts[usize::from(host % HOSTS)].seal.set_keys(&ring(first % 3))
            }
            Step::Wait(time) => self.now += u64::from(*time),
        }
    }
}

pub(crate) fn run(data: &[u8]) {
    let Some(steps) = crate::structured::<Vec<Step>>(data) else { return };
    let hosts = (0..HOSTS).map(|host| Host::new(host, 1)).collect();
    let mut wire = Wire { hosts, frames: Vec::new(), pool: MemoryPool::new(4), now: 1 };
    steps.iter().take(256).for_each(|step| wire.step(step));
    assert_eq!(wire.pool.free(), 4, "a buffer was lost");
}
