//! A stranger without a key on the network between the hosts of a world. The stranger
//! plays back packets that a host has taken in, cuts them, changes them, or sends them as
//! if they had never been sealed.

use super::hosts::{Site, TIMEOUT};
use super::streams::Of;
use super::{Event, MILLISECOND, World};
use crate::random::Random;
use core::num::NonZeroU64;
use holdfast_node::channel::{Key, KeyRing};
use holdfast_node::seal::{SealConfig, is_sealed};
use holdfast_protection::Peer;
use holdfast_wire::NodeId;
use holdfast_wire::header::ETHERTYPE_NSH;

/// Packets that the stranger makes use of, of a thousand that a host takes in.
const INTEREST: u64 = 30;
const MACS_LEN: usize = 12;
/// End of the bytes by which a sealed packet is known. A change before it makes the
/// packet a message to a hub, which its receiver refuses.
const KNOWN_BY: u64 = 16;

/// The keys of a world's hosts.
pub(super) fn ring() -> KeyRing {
    KeyRing::new(vec![Key { number: 1, secret: [0x5a; 32] }])
        .unwrap_or_else(|error| unreachable!("{error}"))
}

/// Seal configuration of one incarnation of a host.
pub(super) fn config(seed: u64, host: u16, hosts: u16, incarnation: u32) -> SealConfig {
    let drawn =
        Random::new(Random::new(seed).draw() ^ (u64::from(host) << 32 | u64::from(incarnation)))
            .draw();
    let life = NonZeroU64::new(drawn).unwrap_or(NonZeroU64::MIN);
    SealConfig { cluster: 7, host, hosts, incarnation, life, timeout: TIMEOUT }
}

impl World {
    /// A host has taken in another host's packet. The stranger may have seen it, until
    /// the world heals.
    pub(super) fn note_taken(&mut self, at: Site, frame: &[u8]) {
        if self.healed || !is_sealed(frame) {
            return;
        }
        let random =
            self.streams.of(Of::Stranger, Peer { node: NodeId::new(at as u16), incarnation: 0 });
        if !random.chance(INTEREST) {
            return;
        }
        let mut forged = frame.to_vec();
        match random.range(0, 4) {
            0 => {}
            1 => forged.truncate(random.range(KNOWN_BY, frame.len() as u64) as usize),
            2 => {
                let byte = random.range(KNOWN_BY, frame.len() as u64) as usize;
                forged[byte] ^= 1 << random.range(0, 8);
            }
            _ => forged[MACS_LEN..MACS_LEN + 2].copy_from_slice(&ETHERTYPE_NSH.to_be_bytes()),
        }
        // The forged frame comes at once, or when the host may be in its next
        // incarnation.
        let time = self.now + random.range(0, 1_500) * MILLISECOND;
        self.faults.forged += 1;
        self.at(time, Event::FromStranger(at, forged));
    }
}
