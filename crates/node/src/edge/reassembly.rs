//! Datagrams for the box itself that come in fragments, put together (RFC 1122, section
//! 3.3.2; RFC 8200, section 4.5).
//!
//! Fragments are held until the last missing one has come, in whatever order. Their data
//! then go behind the first one's, in its buffer. A fragment that overlaps another, or
//! contradicts the datagram's end, ends the datagram (RFC 5722, section 4).
//!
//! Bounded: a datagram by its buffer, which has room for more than the 1,500 bytes that
//! RFC 8200 asks for; datagrams of one source, and of all (the oldest makes room); their
//! fragments; time. All memory is taken at the start.
//!
//! In: parsed fragments for an address of the box, the time. Out: [`Assembled`], and the
//! packets that [`Reassembly::poll_expired`] and [`Reassembly::poll_dropped`] give.

use super::fragment::{Datagram, stretch};
use holdfast_wire::header::proto;
use holdfast_wire::{DropReason, Packet, PacketPool, checksum};

/// Lifetime of an incomplete datagram, from the fragment that came first, ns: a minute,
/// as in both RFCs.
const LIFETIME: u64 = 60_000_000_000;
/// Incomplete datagrams, and those of one source (an IPv4 address, or an IPv6 /64) among
/// them.
const DATAGRAMS: usize = 32;
const PER_SOURCE: usize = 4;
/// Largest number of fragments of a datagram.
const PARTS: usize = 16;

/// The outcome for a fragment.
#[derive(Debug)]
pub(super) enum Assembled {
    /// The datagram, parsed, and how many other fragments have become part of it.
    Whole(Packet, u64),
    /// Other fragments are missing.
    Held,
    /// The fragment is dropped.
    Dropped(Packet, DropReason),
}

struct Part {
    from: u16,
    to: u16,
    packet: Packet,
}

struct Slot {
    datagram: Option<Datagram>,
    until: u64,
    /// The datagram's length, known when the last fragment has come.
    total: Option<u16>,
    parts: Vec<Part>,
}

/// See the module.
pub(super) struct Reassembly {
    slots: Vec<Slot>,
    dropped: Vec<(Packet, DropReason)>,
}

impl Reassembly {
    pub(super) fn new() -> Reassembly {
        let slot = || Slot {
            datagram: None,
            until: u64::MAX,
            total: None,
            parts: Vec::with_capacity(PARTS),
        };
        Reassembly {
            slots: (0..DATAGRAMS).map(|_| slot()).collect(),
            dropped: Vec::with_capacity(DATAGRAMS * PARTS),
        }
    }

    /// Number of fragments inside.
    pub(super) fn held(&self) -> usize {
        self.slots.iter().map(|slot| slot.parts.len()).sum::<usize>() + self.dropped.len()
    }

    /// Handles a parsed packet with [`Layers::fragment`](holdfast_wire::Layers) set. The
    /// buffers of others that have become part of a whole go to the pool.
    pub(super) fn handle(
        &mut self,
        packet: Packet,
        now: u64,
        pool: &mut dyn PacketPool,
    ) -> Assembled {
        let Some(datagram) = Datagram::of(&packet) else {
            return Assembled::Dropped(packet, DropReason::BadFragment);
        };
        let (from, to) = stretch(&packet);
        let at = self.slot_of(datagram, now);
        let slot = &mut self.slots[at];
        if slot.parts.iter().any(|part| (part.from, part.to) == (from, to)) {
            return Assembled::Dropped(packet, DropReason::StaleDuplicate);
        }
        let end = if packet.layers.more_fragments { slot.total } else { Some(to) };
        let is_beyond = |end: u16| to > end || slot.parts.iter().any(|part| part.to > end);
        let is_contradicted =
            end.is_some_and(is_beyond) || slot.total.is_some_and(|total| Some(total) != end);
        let overlaps = slot.parts.iter().any(|part| part.from < to && from < part.to);
        let reason = if is_contradicted || overlaps {
            Some(DropReason::BadFragment)
        } else {
            (slot.parts.len() == PARTS).then_some(DropReason::LocalFragment)
        };
        if let Some(reason) = reason {
            self.give_up(at, reason);
            return Assembled::Dropped(packet, reason);
        }
        slot.total = end;
        slot.parts.push(Part { from, to, packet });
        let have: u32 = slot.parts.iter().map(|part| u32::from(part.to - part.from)).sum();
        // The parts do not overlap, and together are as long as the datagram: none is
        // missing.
        if end.map(u32::from) == Some(have) { self.assemble(at, pool) } else { Assembled::Held }
    }

    /// Gives a fragment that has waited for too long.
    pub(super) fn poll_expired(&mut self, now: u64) -> Option<Packet> {
        let slot = self.slots.iter_mut().find(|slot| slot.until < now)?;
        let part = slot.parts.pop();
        if slot.parts.is_empty() {
            (slot.datagram, slot.until, slot.total) = (None, u64::MAX, None);
        }
        part.map(|part| part.packet)
    }

    /// Gives a fragment that was held and goes no further.
    pub(super) fn poll_dropped(&mut self) -> Option<(Packet, DropReason)> {
        self.dropped.pop()
    }

    /// Earliest time at which [`Reassembly::poll_expired`] may have work; `u64::MAX` if
    /// nothing waits.
    pub(super) fn poll_timeout(&self) -> u64 {
        self.slots.iter().map(|slot| slot.until.saturating_add(1)).min().unwrap_or(u64::MAX)
    }

    /// Gives up all held fragments, to [`Reassembly::poll_dropped`], as at the end of the
    /// process.
    pub(super) fn abandon(&mut self) {
        (0..self.slots.len()).for_each(|at| self.give_up(at, DropReason::ShuttingDown));
    }

    fn slot_of(&mut self, datagram: Datagram, now: u64) -> usize {
        let place = |slots: &[Slot], wanted: Option<Datagram>| {
            slots.iter().position(|slot| slot.datagram == wanted)
        };
        if let Some(at) = place(&self.slots, Some(datagram)) {
            return at;
        }
        let is_same =
            |slot: &Slot| slot.datagram.is_some_and(|other| other.sender() == datagram.sender());
        let oldest = |slots: &[Slot], among: &dyn Fn(&Slot) -> bool| {
            slots
                .iter()
                .enumerate()
                .filter(|(_, slot)| among(slot))
                .min_by_key(|(_, slot)| slot.until)
                .map_or(0, |(at, _)| at)
        };
        let at = if self.slots.iter().filter(|slot| is_same(slot)).count() >= PER_SOURCE {
            oldest(&self.slots, &is_same)
        } else {
            place(&self.slots, None).unwrap_or_else(|| oldest(&self.slots, &|_| true))
        };
        self.give_up(at, DropReason::LocalFragment);
        let slot = &mut self.slots[at];
        (slot.datagram, slot.until) = (Some(datagram), now.saturating_add(LIFETIME));
        at
    }

    fn give_up(&mut self, at: usize, reason: DropReason) {
        let slot = &mut self.slots[at];
        (slot.datagram, slot.until, slot.total) = (None, u64::MAX, None);
        self.dropped.extend(slot.parts.drain(..).map(|part| (part.packet, reason)));
    }

    fn assemble(&mut self, at: usize, pool: &mut dyn PacketPool) -> Assembled {
        let Reassembly { slots, dropped } = self;
        let slot = &mut slots[at];
        (slot.datagram, slot.until, slot.total) = (None, u64::MAX, None);
        slot.parts.sort_unstable_by_key(|part| part.from);
        let mut parts = slot.parts.drain(..);
        let Some(Part { packet: mut whole, .. }) = parts.next() else { return Assembled::Held };
        whole.truncate(usize::from(whole.layers.end));
        let fits = parts.as_slice().iter().all(|part| append(&mut whole, &part.packet));
        let is_whole = fits && unmark(&mut whole).is_some() && whole.parse().is_ok();
        let others = parts.len() as u64;
        for Part { packet, .. } in parts {
            match is_whole {
                true => pool.put(packet),
                // All parts have one reason: none has become part of a datagram.
                false => dropped.push((packet, DropReason::LocalFragment)),
            }
        }
        match is_whole {
            true => Assembled::Whole(whole, others),
            false => Assembled::Dropped(whole, DropReason::LocalFragment),
        }
    }
}

/// Puts a fragment's data behind the first one's. False if there is no room.
fn append(whole: &mut Packet, part: &Packet) -> bool {
    let data = part.bytes().get(data_of(part)..usize::from(part.layers.end)).unwrap_or(&[]);
    match whole.extend_back(data.len()) {
        Some(place) => {
            place.copy_from_slice(data);
            true
        }
        None => false,
    }
}

/// Offset at which a fragment's data begin, bytes from the frame's beginning.
fn data_of(fragment: &Packet) -> usize {
    match fragment.layers.v6_fragment {
        0 => fragment.layers.l4.into(),
        header => usize::from(header) + 8,
    }
}

/// Turns a first fragment, with the data of all others behind its own, into a packet
/// without fragment fields.
fn unmark(whole: &mut Packet) -> Option<()> {
    let (l3, l4) = (usize::from(whole.layers.l3), usize::from(whole.layers.l4));
    let len = whole.len() - l3;
    if let Some(ip) = whole.ipv4_mut() {
        (ip.total_len, ip.flags_fragment, ip.checksum) =
            (u16::try_from(len).ok()?.into(), 0.into(), 0.into());
        let header = whole.bytes_mut().get_mut(l3..l4)?;
        let sum = checksum::checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        return Some(());
    }
    let fragment = usize::from(whole.layers.v6_fragment);
    let ip = whole.ipv6_mut()?;
    ip.payload_len = u16::try_from(len.checked_sub(40 + 8)?).ok()?.into();
    let bytes = whole.bytes_mut();
    // The header that announced the fragment header now announces the header behind it.
    let (mut says, mut next) = (l3 + 6, l3 + 40);
    while next < fragment {
        (says, next) = (next, next + (usize::from(*bytes.get(next + 1)?) + 1) * 8);
    }
    (*bytes.get(says)? == proto::FRAGMENT).then_some(())?;
    bytes[says] = *bytes.get(fragment)?;
    bytes.copy_within(..fragment, 8);
    whole.pull_front(8).then_some(())
}
