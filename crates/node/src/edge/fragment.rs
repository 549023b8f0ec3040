//! Virtual reassembly: finds the flow of each fragment without putting datagrams
//! together.
//!
//! Theory of operation. The first fragment has the ports. Its key is remembered under the
//! header fields that all fragments of the datagram share; later fragments take it.
//! Fragments that come before the first one are held, and follow it in the order in which
//! they came. The table knows which bytes have come. A fragment that overlaps others, or
//! contradicts the datagram's end, condemns the datagram (RFC 5722 for IPv6; here IPv4
//! also): an end host would see other bytes than the firewall saw. A fragment whose bytes
//! have all come before is a duplicate and is dropped, until the datagram is complete:
//! after that its identification may be used again.
//!
//! Bounded: datagrams (the oldest makes room), fragments held and their bytes (the one
//! that waited longest makes room), fragments of one source (a new one is refused, so
//! that no source takes others' room), time. All memory is taken at the start.
//!
//! In: parsed fragments, the time. Out: [`Fragmented`], and the packets that
//! [`Fragments::poll_ready`] and [`Fragments::poll_dropped`] give. Never: a look at a
//! flow; a copy of a packet.

use holdfast_wire::header::proto;
use holdfast_wire::{DropReason, FlowKey, Network, Packet, map_v4};
use std::collections::{HashMap, VecDeque};

/// Longest time between the first and the last arrival of a datagram's fragments, ns. RFC
/// 8200 allows a minute to an end host that keeps fragments. Fragments of one datagram
/// leave their sender together, and here they only pass.
const LIFETIME: u64 = 2_000_000_000;
/// Separate stretches of bytes of one datagram at one time. Fragments in order make one;
/// 65,535 bytes in packets of 1,280 make at most half as many as packets.
const STRETCHES: usize = 32;
const NONE: u32 = u32::MAX;

/// How much a table may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentLimits {
    /// Datagrams that are followed at one time.
    pub datagrams: usize,
    /// Fragments that wait for first ones.
    pub held: usize,
    /// Fragments of one source (an IPv4 address, or an IPv6 /64) among them. The longest
    /// datagram in packets of 576 bytes has 119 behind the first.
    pub held_per_source: usize,
    /// Bytes of the frames that wait.
    pub held_bytes: usize,
}

impl Default for FragmentLimits {
    fn default() -> FragmentLimits {
        FragmentLimits { datagrams: 4096, held: 512, held_per_source: 128, held_bytes: 512 * 1024 }
    }
}

/// The outcome for a fragment.
#[derive(Debug)]
pub enum Fragmented {
    /// The fragment belongs to this flow and goes on, with the packets of
    /// [`Fragments::poll_ready`] behind it.
    Ready(FlowKey, Packet),
    /// The fragment waits for the first one.
    Held,
    /// The fragment is dropped.
    Dropped(Packet, DropReason),
}

/// The fields that a datagram's fragments share. For IPv6 the protocol does not count
/// (RFC 8200, section 4.5). The port does not count for either: with several ways of
/// equal cost, fragments come by several ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Datagram {
    source: [u8; 16],
    destination: [u8; 16],
    id: u32,
    protocol: u8,
}

impl Datagram {
    pub(super) fn of(packet: &Packet) -> Option<Datagram> {
        match packet.layers.network {
            Network::V4 => {
                let ip = packet.ipv4()?;
                let (source, destination) = (map_v4(ip.source), map_v4(ip.destination));
                Some(Datagram {
                    source,
                    destination,
                    id: ip.id.get().into(),
                    protocol: packet.layers.protocol,
                })
            }
            Network::V6 => {
                let ip = packet.ipv6()?;
                let at = packet.layers.v6_fragment as usize;
                let id = packet.bytes().get(at + 4..at + 8)?.try_into().ok()?;
                let id = u32::from_be_bytes(id);
                Some(Datagram { source: ip.source, destination: ip.destination, id, protocol: 0 })
            }
            Network::Other => None,
        }
    }

    /// The part of the datagram's source that one host cannot change at will: an IPv4
    /// address, or an IPv6 /64.
    pub(super) fn sender(&self) -> [u8; 16] {
        holdfast_wire::source_of(&self.source)
    }
}

/// The bytes of its datagram that a fragment holds, `[from, to)`.
pub(super) fn stretch(packet: &Packet) -> (u16, u16) {
    let layers = &packet.layers;
    // In a first fragment over IPv6, extension headers behind the fragment header are
    // part of the datagram's data.
    let data = if layers.network == Network::V6 { layers.v6_fragment + 8 } else { layers.l4 };
    let from = layers.fragment_offset;
    (from, from.saturating_add(layers.end.saturating_sub(data)))
}

enum Arrival {
    New,
    Duplicate,
    Overlap,
    TooScattered,
}

struct Reassembly {
    datagram: Datagram,
    key: Option<FlowKey>,
    until: u64,
    /// Sorted, with gaps between them.
    stretches: [(u16, u16); STRETCHES],
    count: u8,
    /// The datagram's length, known when the last fragment has come.
    total: Option<u16>,
    is_condemned: bool,
    /// Slots of held fragments, first and last.
    held: (u32, u32),
}

impl Reassembly {
    fn new(datagram: Datagram, until: u64) -> Reassembly {
        Reassembly {
            datagram,
            key: None,
            until,
            stretches: [(0, 0); STRETCHES],
            count: 0,
            total: None,
            is_condemned: false,
            held: (NONE, NONE),
        }
    }

    fn is_complete(&self) -> bool {
        self.count == 1 && self.stretches[0].0 == 0 && Some(self.stretches[0].1) == self.total
    }

    /// Notes that bytes have come.
    fn arrive(&mut self, from: u16, to: u16, is_last: bool) -> Arrival {
        let count = self.count as usize;
        let stretches = &self.stretches[..count];
        if stretches.iter().any(|&(start, end)| start <= from && to <= end) {
            return Arrival::Duplicate;
        }
        let beyond_end = self.total.is_some_and(|total| to > total || is_last);
        let before_end = is_last && stretches.last().is_some_and(|&(_, end)| end > to);
        if beyond_end
            || before_end
            || stretches.iter().any(|&(start, end)| from < end && start < to)
        {
            return Arrival::Overlap;
        }
        let at = stretches.partition_point(|&(start, _)| start < from);
        let joins_left = at > 0 && stretches[at - 1].1 == from;
        let joins_right = at < count && stretches[at].0 == to;
        match (joins_left, joins_right) {
            (true, true) => {
                self.stretches[at - 1].1 = self.stretches[at].1;
                self.stretches.copy_within(at + 1..count, at);
                self.count -= 1;
            }
            (true, false) => self.stretches[at - 1].1 = to,
            (false, true) => self.stretches[at].0 = from,
            (false, false) if count == STRETCHES => return Arrival::TooScattered,
            (false, false) => {
                self.stretches.copy_within(at..count, at + 1);
                self.stretches[at] = (from, to);
                self.count += 1;
            }
        }
        if is_last {
            self.total = Some(to);
        }
        Arrival::New
    }
}

struct Slot {
    packet: Option<Packet>,
    /// The next slot of the same datagram, or the next free slot.
    next: u32,
    /// Index of the datagram's entry.
    entry: u32,
    /// Neighbours in the list of all held fragments, by time of arrival: the one before
    /// and the one after.
    waiting: (u32, u32),
}

/// See the module.
pub struct Fragments {
    limits: FragmentLimits,
    /// A ring, in order of creation: number `n` is at `n % datagrams`.
    entries: Vec<Reassembly>,
    oldest: u64,
    newest: u64,
    numbers: HashMap<Datagram, u64, foldhash::fast::FixedState>,
    slots: Vec<Slot>,
    free: u32,
    /// Slots of the held fragments that have waited longest and shortest.
    waiting: (u32, u32),
    senders: HashMap<[u8; 16], usize, foldhash::fast::FixedState>,
    held: usize,
    held_bytes: usize,
    ready: VecDeque<(FlowKey, Packet)>,
    dropped: VecDeque<(Packet, DropReason)>,
}

impl Fragments {
    /// An empty table. `seed` makes its hash hard to foresee.
    ///
    /// # Panics
    /// If there is no room for a datagram.
    pub fn new(limits: FragmentLimits, seed: u64) -> Fragments {
        assert!(limits.datagrams > 0);
        let slot = |next| Slot { packet: None, next, entry: 0, waiting: (NONE, NONE) };
        let slots: Vec<Slot> = (1..=limits.held as u32).map(slot).collect();
        let hasher = || foldhash::fast::FixedState::with_seed(seed);
        let mut fragments = Fragments {
            limits,
            entries: (0..limits.datagrams)
                .map(|_| Reassembly::new(Datagram::default(), 0))
                .collect(),
            oldest: 0,
            newest: 0,
            numbers: HashMap::with_capacity_and_hasher(limits.datagrams * 2, hasher()),
            slots,
            free: if limits.held == 0 { NONE } else { 0 },
            waiting: (NONE, NONE),
            senders: HashMap::with_capacity_and_hasher(limits.held * 2, hasher()),
            held: 0,
            held_bytes: 0,
            ready: VecDeque::with_capacity(limits.held),
            dropped: VecDeque::with_capacity(limits.held),
        };
        if let Some(last) = fragments.slots.last_mut() {
            last.next = NONE;
        }
        fragments
    }

    /// Fragments inside: waiting for first ones, or for [`Fragments::poll_ready`] and
    /// [`Fragments::poll_dropped`].
    pub fn held(&self) -> usize {
        self.held + self.ready.len() + self.dropped.len()
    }

    /// Datagrams that are followed.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// True if none is followed.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Handles a parsed packet with [`Layers::fragment`](holdfast_wire::Layers) set.
    pub fn handle(&mut self, packet: Packet, now: u64) -> Fragmented {
        self.handle_timeout(now);
        let Some(datagram) = Datagram::of(&packet) else {
            return Fragmented::Dropped(packet, DropReason::BadFragment);
        };
        let number = self.entry_of(datagram, now);
        let at = self.at(number);
        let entry = &mut self.entries[at];
        if entry.is_condemned {
            return Fragmented::Dropped(packet, DropReason::BadFragment);
        }
        let (from, to) = stretch(&packet);
        // A fragment at byte 8 would lie over the flags of the TCP header that a filter
        // saw (RFC 3128).
        let is_header_split = packet.layers.protocol == proto::TCP && (1..20).contains(&from);
        let arrival = entry.arrive(from, to, !packet.layers.more_fragments);
        match arrival {
            Arrival::New if !is_header_split => {}
            Arrival::New | Arrival::Overlap => {
                self.condemn(at, DropReason::BadFragment);
                return Fragmented::Dropped(packet, DropReason::BadFragment);
            }
            Arrival::Duplicate => return Fragmented::Dropped(packet, DropReason::StaleDuplicate),
            Arrival::TooScattered => {
                return Fragmented::Dropped(packet, DropReason::FragmentTableFull);
            }
        }
        if from > 0 {
            return match entry.key {
                Some(key) => Fragmented::Ready(key, packet),
                None => self.hold(at, packet),
            };
        }
        // A first fragment without a key of this datagram: an ICMP error about another
        // packet. Errors are short enough for every network (RFC 1812, section 4.3.2.3;
        // RFC 4443, section 2.4), so the fragments behind it belong to no flow.
        match FlowKey::of(&packet)
            .filter(|key| (key.source, key.destination) == (datagram.source, datagram.destination))
        {
            Some(key) => {
                entry.key = Some(key);
                self.release(at, key);
                Fragmented::Ready(key, packet)
            }
            None => {
                self.condemn(at, DropReason::StateInvalid);
                Fragmented::Dropped(packet, DropReason::StateInvalid)
            }
        }
    }

    /// The key of a fragment that was [`Fragmented::Ready`] before, or came from
    /// [`Fragments::poll_ready`].
    pub fn key_of(&self, packet: &Packet) -> Option<FlowKey> {
        let number = *self.numbers.get(&Datagram::of(packet)?)?;
        self.entries[self.at(number)].key
    }

    /// Fragments that may go behind the first one of their datagram.
    pub fn poll_ready(&mut self) -> Option<(FlowKey, Packet)> {
        self.ready.pop_front()
    }

    /// Fragments that were held and go no further.
    pub fn poll_dropped(&mut self) -> Option<(Packet, DropReason)> {
        self.dropped.pop_front()
    }

    /// Forgets datagrams whose time is over.
    pub fn handle_timeout(&mut self, now: u64) {
        while self.oldest < self.newest && self.entries[self.at(self.oldest)].until < now {
            self.forget_oldest(DropReason::FragmentUnknown);
        }
    }

    /// Time at which a held fragment may have waited long enough; `u64::MAX` if none is
    /// held.
    pub fn poll_timeout(&self) -> u64 {
        if self.held == 0 { u64::MAX } else { self.entries[self.at(self.oldest)].until + 1 }
    }

    /// Gives up all held fragments, to [`Fragments::poll_dropped`], as at the end of the
    /// process.
    pub fn abandon(&mut self) {
        while self.oldest < self.newest {
            self.forget_oldest(DropReason::ShuttingDown);
        }
    }

    fn at(&self, number: u64) -> usize {
        (number % self.limits.datagrams as u64) as usize
    }

    /// The number of the datagram's entry. An entry is made if no open one exists.
    fn entry_of(&mut self, datagram: Datagram, now: u64) -> u64 {
        if let Some(&number) = self.numbers.get(&datagram)
            && !self.entries[self.at(number)].is_complete()
        {
            return number;
        }
        if self.newest - self.oldest == self.limits.datagrams as u64 {
            self.forget_oldest(DropReason::FragmentTableFull);
        }
        let number = self.newest;
        self.newest += 1;
        let at = self.at(number);
        self.entries[at] = Reassembly::new(datagram, now.saturating_add(LIFETIME));
        self.numbers.insert(datagram, number);
        number
    }

    fn forget_oldest(&mut self, reason: DropReason) {
        let at = self.at(self.oldest);
        self.drop_held(at, reason);
        let datagram = self.entries[at].datagram;
        // A newer datagram may use the same identification.
        if self.numbers.get(&datagram) == Some(&self.oldest) {
            self.numbers.remove(&datagram);
        }
        self.oldest += 1;
    }

    fn condemn(&mut self, at: usize, reason: DropReason) {
        self.entries[at].is_condemned = true;
        self.drop_held(at, reason);
    }

    fn hold(&mut self, at: usize, packet: Packet) -> Fragmented {
        let sender = self.entries[at].datagram.sender();
        if self.senders.get(&sender).is_some_and(|held| *held >= self.limits.held_per_source) {
            return Fragmented::Dropped(packet, DropReason::FragmentTableFull);
        }
        while self.free == NONE || self.held_bytes + packet.len() > self.limits.held_bytes {
            match self.waiting.0 {
                NONE => return Fragmented::Dropped(packet, DropReason::FragmentTableFull),
                longest => self.drop_held(
                    self.slots[longest as usize].entry as usize,
                    DropReason::FragmentTableFull,
                ),
            }
        }
        let place = self.free;
        self.held += 1;
        self.held_bytes += packet.len();
        *self.senders.entry(sender).or_default() += 1;
        let last = core::mem::replace(&mut self.waiting.1, place);
        match last {
            NONE => self.waiting.0 = place,
            last => self.slots[last as usize].waiting.1 = place,
        }
        let slot = &mut self.slots[place as usize];
        self.free = core::mem::replace(&mut slot.next, NONE);
        (slot.packet, slot.entry, slot.waiting) = (Some(packet), at as u32, (last, NONE));
        let entry = &mut self.entries[at];
        match entry.held.1 {
            NONE => entry.held.0 = place,
            last => self.slots[last as usize].next = place,
        }
        entry.held.1 = place;
        Fragmented::Held
    }

    /// Takes the held fragment that came first.
    fn take_held(&mut self, at: usize) -> Option<Packet> {
        let entry = &mut self.entries[at];
        let place = entry.held.0;
        if place == NONE {
            return None;
        }
        let slot = &mut self.slots[place as usize];
        let packet = slot.packet.take();
        entry.held.0 = core::mem::replace(&mut slot.next, self.free);
        if entry.held.0 == NONE {
            entry.held.1 = NONE;
        }
        let (before, behind) = core::mem::replace(&mut slot.waiting, (NONE, NONE));
        match before {
            NONE => self.waiting.0 = behind,
            before => self.slots[before as usize].waiting.1 = behind,
        }
        match behind {
            NONE => self.waiting.1 = before,
            behind => self.slots[behind as usize].waiting.0 = before,
        }
        let sender = entry.datagram.sender();
        if let Some(count) = self.senders.get_mut(&sender) {
            *count -= 1;
            if *count == 0 {
                self.senders.remove(&sender);
            }
        }
        self.free = place;
        self.held -= 1;
        self.held_bytes -= packet.as_ref().map_or(0, Packet::len);
        packet
    }

    fn release(&mut self, at: usize, key: FlowKey) {
        while let Some(packet) = self.take_held(at) {
            self.ready.push_back((key, packet));
        }
    }

    fn drop_held(&mut self, at: usize, reason: DropReason) {
        while let Some(packet) = self.take_held(at) {
            self.dropped.push_back((packet, reason));
        }
    }
}
