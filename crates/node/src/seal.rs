//! Packets between hosts, sealed: what comes from the hosts' network is taken in only if a host of the cluster has sent it, in its present life, and once.
//!
//! Theory of operation. Messages of the [channel](crate::channel) are encrypted and authenticated end to end, and travel as they are: their headers name both ends and both
//! lives, and nothing that the network may change about the rest is believed. Packets in their NSH encapsulation are sealed here, by the hub through which they leave a host,
//! and opened by the hub through which they come in. Each life of a host, that is of its manager, has a random number, and seals under a key derived from the
//! cluster's, the host, its incarnation and that number; the nonce is the count of packets that it has sealed. So no nonce comes twice under a key, unless a running machine is put back to
//! an earlier snapshot of its memory, or runs twice; and a change of the cluster's keys does not set the count back.
//!
//! Who may be heard is told by the managers, through the channel, which knows what is fresh: each says to each other one which life its host is in, and how many packets it
//! had sealed when it said so ([`Sealing`](crate::message::Sealing)). A receiver opens packets of the life that it was told of, and no others. It begins behind that count, and finds by a window what
//! comes again; so a packet is taken at most once, and only if it was sealed after its sender had heard of the receiver's present life. That holds across restarts
//! of both, without a clock and without anything kept on a disk. What was sealed before an announcement that is a patience old is refused too: who holds a
//! packet back cannot hand it over much later. From a host's restart until the new life is announced, packets of the old one that
//! nobody has seen yet still count: they say what was true when that host sent them, and the fence judges them as it does late ones.
//!
//! In: packets, announcements, the receiver's time. Out: packets sealed and opened where they lie, reasons to drop. Never: allocation per packet, a clock, I/O.

use crate::channel::KeyRing;
use crate::channel::format::{MAGIC as MESSAGE_MAGIC, TAG_LEN, after};
use crate::channel::keys::{Opener, Roots};
use crate::channel::replay::Replays;
use core::num::NonZeroU64;
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::header::{ETHERTYPE_FABRIC, ETHERTYPE_NSH};
use holdfast_wire::{DropReason, Packet};
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What stands between the addresses of a sealed packet and its tag. With the addresses it is the associated data.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    ethertype: U16,
    magic: U16,
    version: u8,
    /// Number of the cluster's key from which the host's is derived.
    key: u8,
    /// Who has sealed it, counted from 0.
    host: U16,
    cluster: U32,
    /// Of the host's manager.
    incarnation: U32,
    /// That life's random number.
    life: U64,
    /// How many packets that life has sealed, this one included: the nonce.
    counter: U64,
}

/// Behind the EtherType that messages have too. They begin with another one.
const MAGIC: u16 = 0x4853;
const _: () = assert!(MAGIC != MESSAGE_MAGIC);
const VERSION: u8 = 1;
const MACS_LEN: usize = 12;
const HEADER_LEN: usize = size_of::<Header>();
const ASSOCIATED_LEN: usize = MACS_LEN + HEADER_LEN;

/// Bytes by which a sealed packet is longer.
pub const SEAL_LEN: usize = HEADER_LEN + TAG_LEN;

const BODY: usize = MACS_LEN + SEAL_LEN;

/// Whose packets are sealed, and what the other hosts are.
#[derive(Debug, Clone, Copy)]
pub struct SealConfig {
    /// Packets of another cluster are refused.
    pub cluster: u32,
    /// This host, counted from 0.
    pub host: u16,
    /// How many there are.
    pub hosts: u16,
    /// Of this host's manager.
    pub incarnation: u32,
    /// A random number that no other life of any host has.
    pub life: NonZeroU64,
    /// What was sealed before an announcement that is so old is refused, ns.
    pub patience: u64,
}

/// A life of another host, as it was announced.
struct Sender {
    incarnation: u32,
    life: u64,
    openers: Vec<Opener>,
    replays: Replays,
    /// What has no higher count was sealed before this host had been told, or long ago.
    floor: u64,
    /// The next floor, and when it was announced.
    next: (u64, u64),
}

/// See the module.
pub struct HostSeal {
    config: SealConfig,
    roots: Roots,
    own: Opener,
    /// Packets sealed in this life. Never set back: it is the nonce.
    counter: u64,
    senders: Vec<Option<Sender>>,
}

/// The keys under which a host seals in one life, one from each of the cluster's.
fn openers(roots: &Roots, cluster: u32, host: u16, incarnation: u32, life: u64) -> Vec<Opener> {
    let (cluster, host) = (cluster.to_be_bytes(), host.to_be_bytes());
    roots.derive(&[b"holdfast seal 1", &cluster, &host, &incarnation.to_be_bytes(), &life.to_be_bytes()])
}

/// True for a packet that claims to be sealed. Nothing has been looked at but what it begins with.
#[inline]
pub fn is_sealed(frame: &[u8]) -> bool {
    let [e0, e1] = ETHERTYPE_FABRIC.to_be_bytes();
    let [m0, m1] = MAGIC.to_be_bytes();
    frame.get(MACS_LEN..MACS_LEN + 4) == Some(&[e0, e1, m0, m1])
}

impl HostSeal {
    /// Seals for a host's new life. Nobody is heard before they are announced.
    pub fn new(config: SealConfig, ring: &KeyRing) -> HostSeal {
        let roots = Roots::new(ring);
        let own = HostSeal::own(&config, &roots);
        HostSeal { config, roots, own, counter: 0, senders: (0..config.hosts).map(|_| None).collect() }
    }

    fn own(config: &SealConfig, roots: &Roots) -> Opener {
        let mut own = openers(roots, config.cluster, config.host, config.incarnation, config.life.get());
        // The current one is the first, and a ring has at least one.
        own.swap_remove(0)
    }

    /// Changes the keys. What is known of other hosts stays, and so does the count.
    pub fn set_keys(&mut self, ring: &KeyRing) {
        let HostSeal { config, roots, own, senders, .. } = self;
        *roots = Roots::new(ring);
        *own = HostSeal::own(config, roots);
        for (host, sender) in (0..).zip(senders).filter_map(|(host, sender)| Some((host, sender.as_mut()?))) {
            sender.openers = openers(roots, config.cluster, host, sender.incarnation, sender.life);
        }
    }

    /// This life's number, and how many packets it has sealed: what others are to be told.
    pub fn announcement(&self) -> (u64, u64) {
        (self.config.life.get(), self.counter)
    }

    /// Another host has said, in answer to this life of this one, in which life it is and how many packets it had sealed by then.
    pub fn handle_announced(&mut self, host: u16, incarnation: u32, (life, counter): (u64, u64), now: u64) {
        let HostSeal { config, roots, senders, .. } = self;
        if host == config.host {
            return;
        }
        let Some(known) = senders.get_mut(usize::from(host)) else { return };
        match known {
            // The channel lets nobody of an earlier life speak; who says so all the same says nothing.
            Some(known) if after(known.incarnation, incarnation) => {}
            Some(known) if known.incarnation == incarnation && known.life == life => {
                let (next, since) = known.next;
                if now.saturating_sub(since) >= config.patience {
                    known.floor = known.floor.max(next);
                    known.next = (counter, now);
                }
            }
            known => {
                let openers = openers(roots, config.cluster, host, incarnation, life);
                let (replays, next) = (Replays::default(), (counter, now));
                *known = Some(Sender { incarnation, life, openers, replays, floor: counter, next });
            }
        }
    }

    /// Seals an encapsulated packet where it lies. False, and nothing changed, if there is no room in front of it.
    #[must_use]
    pub fn seal(&mut self, packet: &mut Packet) -> bool {
        if packet.len() < MACS_LEN || packet.push_front(SEAL_LEN).is_none() {
            return false;
        }
        self.counter += 1;
        let header = Header {
            ethertype: ETHERTYPE_FABRIC.into(),
            magic: MAGIC.into(),
            version: VERSION,
            key: self.own.number(),
            host: self.config.host.into(),
            cluster: self.config.cluster.into(),
            incarnation: self.config.incarnation.into(),
            life: self.config.life.get().into(),
            counter: self.counter.into(),
        };
        let frame = packet.bytes_mut();
        frame.copy_within(SEAL_LEN..BODY, 0);
        let (head, body) = frame.split_at_mut(BODY);
        let (associated, tag) = head.split_at_mut(ASSOCIATED_LEN);
        associated[MACS_LEN..].copy_from_slice(header.as_bytes());
        match self.own.encrypt(self.counter, associated, body) {
            Some(sealed) => tag.copy_from_slice(&sealed),
            // Longer than the cipher allows is longer than any buffer.
            None => unreachable!("a packet fits into a buffer"),
        }
        true
    }

    /// Opens a packet where it lies: what is left is as it was before it was sealed.
    ///
    /// # Errors
    /// The reason to drop it; what is left of it then is worth nothing.
    pub fn open(&mut self, packet: &mut Packet) -> Result<(), DropReason> {
        let frame = packet.bytes_mut();
        // The EtherType of what was sealed is in front of its body.
        if frame.len() < BODY + 2 {
            return Err(DropReason::Truncated);
        }
        let (head, body) = frame.split_at_mut(BODY);
        let (associated, tag) = head.split_at(ASSOCIATED_LEN);
        let header = Header::read_from_bytes(&associated[MACS_LEN..]).map_err(|_| DropReason::Truncated)?;
        if header.ethertype.get() != ETHERTYPE_FABRIC || header.magic.get() != MAGIC || header.version != VERSION {
            return Err(DropReason::Malformed);
        }
        if header.cluster.get() != self.config.cluster {
            return Err(DropReason::WrongCluster);
        }
        let host = header.host.get();
        if host == self.config.host {
            return Err(DropReason::UnknownHost);
        }
        let known = self.senders.get_mut(usize::from(host)).ok_or(DropReason::UnknownHost)?;
        let Some(sender) = known else { return Err(DropReason::Unannounced) };
        if (header.incarnation.get(), header.life.get()) != (sender.incarnation, sender.life) {
            let is_later = after(header.incarnation.get(), sender.incarnation);
            return Err(if is_later { DropReason::Unannounced } else { DropReason::OldLife });
        }
        let opener = sender.openers.iter().find(|opener| opener.number() == header.key).ok_or(DropReason::UnknownKey)?;
        let counter = header.counter.get();
        let is_fresh = sender.replays.is_fresh(counter) || is_planted(Fault::OpensTwice);
        if counter <= sender.floor || !is_fresh {
            return Err(DropReason::Replayed);
        }
        let tag = tag.try_into().map_err(|_| DropReason::Truncated)?;
        if !opener.decrypt(counter, associated, body, tag) {
            return Err(DropReason::Unauthenticated);
        }
        // From here on the packet is what its host has sealed.
        sender.replays.note(counter);
        if body[..2] != ETHERTYPE_NSH.to_be_bytes() {
            return Err(DropReason::Malformed);
        }
        frame.copy_within(..MACS_LEN, SEAL_LEN);
        // It was longer than this.
        let _ = packet.pull_front(SEAL_LEN);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
