//! Sealed packets between hosts: a packet from the hosts' network is taken only if a host
//! of the cluster has sent it, in its present incarnation, and once.
//!
//! Theory of operation. Messages of the [channel](crate::channel) are encrypted and
//! authenticated end to end, and travel as they are: their headers name both ends and
//! both incarnations, and a change of the rest is noticed. Packets in their NSH
//! encapsulation are sealed here, by the hub through which they leave a host, and opened
//! by the hub through which they enter another. Each incarnation of a host, that is of
//! its manager, has a random *life number*, and seals under a key derived from the
//! cluster's, the host, its incarnation and that number. The nonce is the count of
//! packets that it has sealed. No nonce comes twice under a key, unless a running machine
//! is put back to an earlier snapshot of its memory, or runs twice. A change of the
//! cluster's keys does not set the count back.
//!
//! The managers announce their seals through the channel, which knows what is fresh. Each
//! tells each other one its host's life number, and how many packets it had sealed by
//! then ([`Sealing`](crate::message::Sealing)). A receiver opens only packets of the
//! announced life number, behind the announced count, and finds repetitions by a window.
//! A packet is therefore taken at most once, and only if it was sealed after its sender
//! had heard of the receiver's present incarnation. This holds across restarts of both,
//! without a clock and without storage. Packets sealed before an announcement that is a
//! time-out old are refused too: an attacker cannot hold a packet back and deliver it
//! much later. From a host's restart until its new incarnation is announced, unseen
//! packets of the old one still count: they were true when that host sent them, and the
//! fence judges them as it does late ones.
//!
//! In: packets, announcements, the receiver's time. Out: packets sealed and opened in
//! place, reasons to drop. Never: allocation per packet, a clock, I/O.

use crate::channel::KeyRing;
use crate::channel::anti_replay::Replays;
use crate::channel::format::{MAGIC as MESSAGE_MAGIC, TAG_LEN, after};
use crate::channel::keys::{Opener, Roots};
use core::num::NonZeroU64;
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::header::{ETHERTYPE_FABRIC, ETHERTYPE_NSH};
use holdfast_wire::{DropReason, Packet};
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The header between the addresses of a sealed packet and its tag. Together with the
/// addresses it is the associated data.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    ethertype: U16,
    magic: U16,
    version: u8,
    /// Number of the cluster key from which the host's is derived.
    key: u8,
    /// The host that has sealed the packet, counted from 0.
    host: U16,
    cluster: U32,
    /// The incarnation of the host's manager.
    incarnation: U32,
    /// The life number.
    life: U64,
    /// Packets that this incarnation has sealed, this one included: the nonce.
    counter: U64,
}

/// The number behind the EtherType, which messages have too. Theirs is another one.
const MAGIC: u16 = 0x4853;
const _: () = assert!(MAGIC != MESSAGE_MAGIC);
const VERSION: u8 = 1;
const MACS_LEN: usize = 12;
const HEADER_LEN: usize = size_of::<Header>();
const ASSOCIATED_LEN: usize = MACS_LEN + HEADER_LEN;

/// Bytes that the seal adds to a packet.
pub const SEAL_LEN: usize = HEADER_LEN + TAG_LEN;

const BODY: usize = MACS_LEN + SEAL_LEN;

/// A host's seal configuration.
#[derive(Debug, Clone, Copy)]
pub struct SealConfig {
    /// Packets of another cluster are refused.
    pub cluster: u32,
    /// This host, counted from 0.
    pub host: u16,
    /// The number of hosts.
    pub hosts: u16,
    /// The incarnation of this host's manager.
    pub incarnation: u32,
    /// The life number: a random number that no other incarnation of any host has.
    pub life: NonZeroU64,
    /// Packets sealed before an announcement of this age are refused, ns.
    pub timeout: u64,
}

/// Another host's incarnation and life number, as announced.
struct Sender {
    incarnation: u32,
    life: u64,
    openers: Vec<Opener>,
    replays: Replays,
    /// A packet with a count up to this was sealed before its host knew this one, or long
    /// ago.
    floor: u64,
    /// The next floor, and the time of its announcement.
    next: (u64, u64),
}

/// See the module.
pub struct HostSeal {
    config: SealConfig,
    roots: Roots,
    own: Opener,
    /// Packets sealed in this incarnation. Never set back: the count is the nonce.
    counter: u64,
    senders: Vec<Option<Sender>>,
}

/// The keys under which a host seals with one life number, one from each of the
/// cluster's.
fn openers(roots: &Roots, cluster: u32, host: u16, incarnation: u32, life: u64) -> Vec<Opener> {
    let (cluster, host) = (cluster.to_be_bytes(), host.to_be_bytes());
    roots.derive(&[
        b"holdfast seal 1",
        &cluster,
        &host,
        &incarnation.to_be_bytes(),
        &life.to_be_bytes(),
    ])
}

/// True for a packet that claims to be sealed. Only its first bytes are looked at.
#[inline]
pub fn is_sealed(frame: &[u8]) -> bool {
    let [e0, e1] = ETHERTYPE_FABRIC.to_be_bytes();
    let [m0, m1] = MAGIC.to_be_bytes();
    frame.get(MACS_LEN..MACS_LEN + 4) == Some(&[e0, e1, m0, m1])
}

impl HostSeal {
    /// The seal of a host's new incarnation. Packets of other hosts are refused before
    /// these are announced.
    pub fn new(config: SealConfig, ring: &KeyRing) -> HostSeal {
        let roots = Roots::new(ring);
        let own = HostSeal::own(&config, &roots);
        HostSeal {
            config,
            roots,
            own,
            counter: 0,
            senders: (0..config.hosts).map(|_| None).collect(),
        }
    }

    fn own(config: &SealConfig, roots: &Roots) -> Opener {
        let mut own =
            openers(roots, config.cluster, config.host, config.incarnation, config.life.get());
        // The current key is the first, and a ring has at least one.
        own.swap_remove(0)
    }

    /// Changes the keys. Announcements of other hosts stay valid, and so does the count.
    pub fn set_keys(&mut self, ring: &KeyRing) {
        let HostSeal { config, roots, own, senders, .. } = self;
        *roots = Roots::new(ring);
        *own = HostSeal::own(config, roots);
        for (host, sender) in
            (0..).zip(senders).filter_map(|(host, sender)| Some((host, sender.as_mut()?)))
        {
            sender.openers = openers(roots, config.cluster, host, sender.incarnation, sender.life);
        }
    }

    /// The life number, and the count of sealed packets: to be announced to others.
    pub fn announcement(&self) -> (u64, u64) {
        (self.config.life.get(), self.counter)
    }

    /// Takes another host's announcement, addressed to this incarnation: its life number,
    /// and how many packets it had sealed by then.
    pub fn handle_announced(
        &mut self,
        host: u16,
        incarnation: u32,
        (life, counter): (u64, u64),
        now: u64,
    ) {
        let HostSeal { config, roots, senders, .. } = self;
        if host == config.host {
            return;
        }
        let Some(known) = senders.get_mut(usize::from(host)) else { return };
        match known {
            // Cannot happen through the channel, which refuses earlier incarnations;
            // ignored.
            Some(known) if after(known.incarnation, incarnation) => {}
            Some(known) if known.incarnation == incarnation && known.life == life => {
                let (next, since) = known.next;
                if now.saturating_sub(since) >= config.timeout {
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

    /// Seals an encapsulated packet in place. False, without a change, if there is no
    /// room in front of it.
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
            // A packet that is too long for the cipher is longer than any buffer.
            None => unreachable!("a packet fits into a buffer"),
        }
        true
    }

    /// Opens a packet in place: the result is the packet before it was sealed.
    ///
    /// # Errors
    /// The reason to drop it; its content is garbage then.
    pub fn open(&mut self, packet: &mut Packet) -> Result<(), DropReason> {
        let frame = packet.bytes_mut();
        // The sealed packet's EtherType is in front of its body.
        if frame.len() < BODY + 2 {
            return Err(DropReason::Truncated);
        }
        let (head, body) = frame.split_at_mut(BODY);
        let (associated, tag) = head.split_at(ASSOCIATED_LEN);
        let header =
            Header::read_from_bytes(&associated[MACS_LEN..]).map_err(|_| DropReason::Truncated)?;
        if header.ethertype.get() != ETHERTYPE_FABRIC
            || header.magic.get() != MAGIC
            || header.version != VERSION
        {
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
        let opener = sender
            .openers
            .iter()
            .find(|opener| opener.number() == header.key)
            .ok_or(DropReason::UnknownKey)?;
        let counter = header.counter.get();
        let is_fresh = sender.replays.is_fresh(counter) || is_planted(Fault::OpensTwice);
        if counter <= sender.floor || !is_fresh {
            return Err(DropReason::Replayed);
        }
        let tag = tag.try_into().map_err(|_| DropReason::Truncated)?;
        if !opener.decrypt(counter, associated, body, tag) {
            return Err(DropReason::Unauthenticated);
        }
        // The packet is authentic from here on.
        sender.replays.note(counter);
        if body[..2] != ETHERTYPE_NSH.to_be_bytes() {
            return Err(DropReason::Malformed);
        }
        frame.copy_within(..MACS_LEN, SEAL_LEN);
        // Cannot fail: the packet was longer.
        let _ = packet.pull_front(SEAL_LEN);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
