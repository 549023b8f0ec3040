//! The switch's packet log: packets sent for chains that can process them again.
//!
//! Theory of operation (REINFORCE: the predecessor). For each runtime and chain there is
//! one log of fixed size, a ring of bytes. A runtime says up to which stamp no packet is
//! needed any more. A packet that finds no room in the log is not sent, because state
//! that it leads to could be lost. When a runtime has failed and a flow gets a new owner,
//! the owner is told how many of its packets are logged. The new owner asks for them, a
//! few at a time. New packets of the flow wait here meanwhile, and follow the logged
//! ones.
//!
//! In: packets as they go out, stamps up to which they may be forgotten, requests. Out:
//! copies of packets. Never: a reference into a runtime's buffers.

use super::routes::RouteId;
use holdfast_protection::{Epoch, Peer};
use holdfast_wire::{BUFFER_LEN, Meta, Packet};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Logs of dead runtimes that are kept until a message says that they are of no use: as
/// many as a host with all its runtimes and chains leaves behind.
const DEAD: usize = 4096;
/// Bytes in front of each packet: stamp (8), epoch (4), priority (4 bits) and length (12
/// bits), ingress (1), switch (1).
const HEAD: usize = 16;
const LEN_BITS: u32 = 12;
const _: () = assert!(BUFFER_LEN < 1 << LEN_BITS);

/// A ring gets its memory in segments of so many bytes, when it reaches them. Most logs
/// stay small, and a runtime that begins while other flows wait has its log at once.
const SEGMENT: usize = if cfg!(test) { 96 } else { 256 << 10 };
/// Segments that are kept for the next log that needs one.
const SPARE: usize = 64;

type Segments = Vec<Box<[u8]>>;

/// A ring of packets.
#[derive(Debug)]
pub(super) struct Log {
    incarnation: u32,
    size: usize,
    segments: Segments,
    /// Counts of bytes that are never reset while the ring holds packets: the oldest
    /// packet begins at `first`, the next one at `next`.
    first: u64,
    next: u64,
    /// Packets' places by epoch, once the runtime is dead.
    by_epoch: Option<HashMap<Epoch, Vec<u64>>>,
}

/// The head of a logged packet.
struct LoggedPacket {
    meta: Meta,
    len: usize,
}

impl Log {
    fn new(incarnation: u32, size: usize) -> Log {
        Log { incarnation, size, segments: Vec::new(), first: 0, next: 0, by_epoch: None }
    }

    /// A count's place in the ring: the segment, the offset in it, and the bytes that
    /// follow in that segment.
    #[inline]
    fn place(&self, at: u64) -> (usize, usize, usize) {
        let place = (at % self.size as u64) as usize;
        let (segment, offset) = (place / SEGMENT, place % SEGMENT);
        (segment, offset, (SEGMENT - offset).min(self.size - place))
    }

    fn write(&mut self, mut at: u64, mut bytes: &[u8], spare: &mut Segments) {
        while !bytes.is_empty() {
            let (segment, offset, room) = self.place(at);
            while self.segments.len() <= segment {
                let fresh = || vec![0; SEGMENT.min(self.size)].into_boxed_slice();
                let reused = spare.pop_if(|segment| segment.len() >= SEGMENT.min(self.size));
                self.segments.push(reused.unwrap_or_else(fresh));
            }
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.segments[segment][offset..offset + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            bytes = later;
        }
    }

    fn read(&self, mut at: u64, mut into: &mut [u8]) {
        while !into.is_empty() {
            let (segment, offset, room) = self.place(at);
            let (now, later) = into.split_at_mut(into.len().min(room));
            now.copy_from_slice(&self.segments[segment][offset..offset + now.len()]);
            at += now.len() as u64;
            into = later;
        }
    }

    /// Appends a packet. False if there is no room.
    fn append(&mut self, packet: &Packet, epoch: Epoch, spare: &mut Segments) -> bool {
        let len = HEAD + packet.len();
        if self.next - self.first + len as u64 > self.size as u64 {
            return false;
        }
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&packet.meta.stamp.to_be_bytes());
        head[8..12].copy_from_slice(&epoch.to_be_bytes());
        let len_and_priority = packet.len() as u16 | u16::from(packet.meta.priority) << LEN_BITS;
        head[12..14].copy_from_slice(&len_and_priority.to_be_bytes());
        head[14..].copy_from_slice(&[packet.meta.ingress, packet.meta.switch]);
        self.write(self.next, &head, spare);
        self.write(self.next + HEAD as u64, packet.bytes(), spare);
        self.next += len as u64;
        true
    }

    fn entry(&self, at: u64) -> LoggedPacket {
        let mut head = [0; HEAD];
        self.read(at, &mut head);
        let [s0, s1, s2, s3, s4, s5, s6, s7, e0, e1, e2, e3, l0, l1, ingress, switch] = head;
        let len_and_priority = u16::from_be_bytes([l0, l1]);
        let meta = Meta {
            priority: (len_and_priority >> LEN_BITS) as u8,
            stamp: u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            commit: u32::from_be_bytes([e0, e1, e2, e3]),
            ingress,
            switch,
            ..Meta::default()
        };
        LoggedPacket { meta, len: (len_and_priority & ((1 << LEN_BITS) - 1)).into() }
    }

    /// Forgets packets from the oldest on, up to this stamp.
    fn clear(&mut self, stamp: u64) {
        while self.first < self.next {
            let entry = self.entry(self.first);
            if entry.meta.stamp > stamp {
                return;
            }
            self.first += (HEAD + entry.len) as u64;
        }
        // An empty ring starts again at its beginning, whose memory is in the caches.
        (self.first, self.next) = (0, 0);
    }

    fn index(&mut self) -> &HashMap<Epoch, Vec<u64>> {
        if self.by_epoch.is_none() {
            let mut by_epoch: HashMap<Epoch, Vec<u64>> = HashMap::new();
            let mut at = self.first;
            while at < self.next {
                let entry = self.entry(at);
                by_epoch.entry(Epoch::new(entry.meta.commit)).or_default().push(at);
                at += (HEAD + entry.len) as u64;
            }
            self.by_epoch = Some(by_epoch);
        }
        self.by_epoch.get_or_insert_default()
    }

    /// Copies the packet at this place.
    fn copy(&self, at: u64, packet: &mut Packet) -> bool {
        let LoggedPacket { meta, len } = self.entry(at);
        packet.clear();
        let is_copied = packet.extend_back(len).is_some_and(|bytes| {
            self.read(at + HEAD as u64, bytes);
            true
        });
        packet.meta = meta;
        is_copied
    }
}

/// A flow whose new owner has not yet seen all of its logged packets.
#[derive(Debug)]
struct Replay {
    route: RouteId,
    owner: Peer,
    dead: Peer,
    chain: u16,
    places: Vec<u64>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Logs {
    /// Bytes of each log, by chain; 0 if the chain has none.
    sizes: Vec<usize>,
    /// Logs of living runtimes, by node and chain.
    live: Vec<Vec<Option<Log>>>,
    dead: VecDeque<(Peer, u16, Log)>,
    /// Segments of logs that are gone.
    spare: Segments,
    /// Replays by the epoch of the new owner.
    replays: HashMap<Epoch, Replay>,
    routes: BTreeMap<RouteId, Epoch>,
}

impl Logs {
    pub(super) fn new(sizes: Vec<usize>) -> Logs {
        Logs { sizes, ..Logs::default() }
    }

    /// Takes the logged packets, for the switch's next incarnation. Replays are dropped:
    /// new owners do not go on asking the old incarnation.
    pub(super) fn take(&mut self) -> Logs {
        let sizes = self.sizes.clone();
        let kept = core::mem::replace(self, Logs::new(sizes));
        Logs { replays: HashMap::new(), routes: BTreeMap::new(), ..kept }
    }

    /// Logs a packet that is about to be sent to that runtime under this epoch. False if
    /// it cannot be kept.
    #[inline]
    pub(super) fn note(&mut self, to: Peer, chain: u16, epoch: Epoch, packet: &Packet) -> bool {
        let size = self.sizes.get(usize::from(chain)).copied().unwrap_or(0);
        size == 0 || self.append(to, chain, size, epoch, packet)
    }

    fn append(&mut self, to: Peer, chain: u16, size: usize, epoch: Epoch, packet: &Packet) -> bool {
        let (node, at) = (usize::from(to.node), usize::from(chain));
        if self.live.len() <= node {
            self.live.resize_with(node + 1, Vec::new);
        }
        let chains = &mut self.live[node];
        if chains.len() <= at {
            chains.resize_with(at + 1, || None);
        }
        if let Some(old) = chains[at].take_if(|log| log.incarnation != to.incarnation) {
            self.bury(Peer { node: to.node, incarnation: old.incarnation }, chain, old);
        }
        self.live[node][at].get_or_insert_with(|| Log::new(to.incarnation, size)).append(
            packet,
            epoch,
            &mut self.spare,
        )
    }

    /// Closes the logs of a runtime that has failed: no more packets are sent to it.
    pub(super) fn close(&mut self, dead: Peer) {
        let chains =
            self.live.get_mut(usize::from(dead.node)).map(|chains| (0u16..).zip(chains.iter_mut()));
        let mut closed = Vec::new();
        for (chain, log) in chains.into_iter().flatten() {
            closed.extend(
                log.take_if(|log| log.incarnation == dead.incarnation).map(|log| (chain, log)),
            );
        }
        closed.into_iter().for_each(|(chain, log)| self.bury(dead, chain, log));
    }

    fn bury(&mut self, dead: Peer, chain: u16, log: Log) {
        if self.dead.len() == DEAD
            && let Some((.., log)) = self.dead.pop_front()
        {
            self.reuse(log);
        }
        self.dead.push_back((dead, chain, log));
    }

    /// Forgets packets that were sent to this runtime for this chain, up to this stamp.
    pub(super) fn clear(&mut self, from: Peer, chain: u16, stamp: u64) {
        let chains = self.live.get_mut(usize::from(from.node));
        let log =
            chains.and_then(|chains| chains.get_mut(usize::from(chain))).and_then(Option::as_mut);
        if let Some(log) = log.filter(|log| log.incarnation == from.incarnation) {
            log.clear(stamp);
        }
    }

    /// Begins the replay of a flow whose owner under the old epoch is dead. Returns the
    /// number of its logged packets. If there are any, new packets of the flow wait.
    pub(super) fn begin(
        &mut self,
        route: RouteId,
        chain: u16,
        old_epoch: Epoch,
        owner: Peer,
        epoch: Epoch,
    ) -> u32 {
        if self.sizes.get(usize::from(chain)).is_none_or(|size| *size == 0) {
            return 0;
        }
        let mut of_chain = self.dead.iter_mut().filter(|(_, of, _)| *of == chain);
        let found = of_chain.find_map(|(dead, _, log)| {
            log.index().get(&old_epoch).map(|places| (*dead, places.clone()))
        });
        let Some((dead, places)) = found else { return 0 };
        let count = places.len() as u32;
        self.routes.insert(route, epoch);
        self.replays.insert(epoch, Replay { route, owner, dead, chain, places });
        count
    }

    /// True if packets for this route wait for a replay.
    #[inline]
    pub(super) fn holds(&self, route: RouteId) -> bool {
        !self.routes.is_empty() && self.routes.contains_key(&route)
    }

    /// Ends a replay whose route has got another owner, or is gone: its packets are not
    /// asked for any more.
    pub(super) fn give_up(&mut self, route: RouteId) {
        if let Some(epoch) = self.routes.remove(&route) {
            self.replays.remove(&epoch);
        }
    }

    /// Ends the replay of this epoch: its owner needs no more packets. True if packets
    /// that wait may go on.
    pub(super) fn end(&mut self, from: Peer, epoch: Epoch) -> bool {
        if self.replays.get(&epoch).is_none_or(|replay| replay.owner != from) {
            return false;
        }
        self.replays
            .remove(&epoch)
            .is_some_and(|replay| self.routes.remove(&replay.route).is_some())
    }

    /// True if this owner, under this epoch, has packets to ask for.
    pub(super) fn knows(&self, from: Peer, epoch: Epoch) -> bool {
        let replay = self.replays.get(&epoch).filter(|replay| replay.owner == from);
        replay.is_some_and(|replay| {
            self.dead.iter().any(|(dead, chain, _)| (*dead, *chain) == (replay.dead, replay.chain))
        })
    }

    /// The route whose flow is being replayed under this epoch.
    pub(super) fn route(&self, epoch: Epoch) -> Option<RouteId> {
        self.replays.get(&epoch).map(|replay| replay.route)
    }

    /// Copies one of the flow's packets. False if it does not exist, or does not fit.
    pub(super) fn copy(&self, from: Peer, epoch: Epoch, number: u32, packet: &mut Packet) -> bool {
        let Some(replay) = self.replays.get(&epoch).filter(|replay| replay.owner == from) else {
            return false;
        };
        let log = self
            .dead
            .iter()
            .find(|(dead, chain, _)| (*dead, *chain) == (replay.dead, replay.chain));
        let place = replay.places.get(number as usize);
        log.zip(place).is_some_and(|((_, _, log), place)| {
            let is_copied = log.copy(*place, packet);
            packet.meta.chain = replay.chain;
            is_copied
        })
    }

    /// Drops the logs of a dead runtime whose recovery is over: claimed flows have been
    /// replayed.
    pub(super) fn forget(&mut self, over: Peer) {
        self.close(over);
        let (over, others): (VecDeque<_>, VecDeque<_>) =
            core::mem::take(&mut self.dead).into_iter().partition(|(dead, ..)| *dead == over);
        self.dead = others;
        over.into_iter().for_each(|(.., log)| self.reuse(log));
    }

    fn reuse(&mut self, log: Log) {
        let room = SPARE.saturating_sub(self.spare.len());
        self.spare.extend(log.segments.into_iter().take(room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_wire::{MemoryPool, NodeId, PacketPool};

    const OLD: Peer = Peer { node: NodeId::new(16), incarnation: 3 };
    const NEW: Peer = Peer { node: NodeId::new(17), incarnation: 4 };

    fn packet(pool: &mut MemoryPool, stamp: u64, len: usize) -> Packet {
        let mut packet = pool.take().expect("there are buffers");
        assert!(packet.copy_from(&vec![stamp as u8; len]));
        packet.meta.stamp = stamp;
        packet.meta.priority = (stamp % 16) as u8;
        packet
    }

    /// A ring is filled round and round, and passes its end at every offset. Packets that
    /// were not cleared come back as they were sent, and cleared packets make room for
    /// exactly as many bytes.
    #[test]
    fn a_ring_keeps_what_is_not_cleared() {
        let mut pool = MemoryPool::new(4);
        let mut logs = Logs::new(vec![0, 1000]);
        let len = |stamp: u64| 60 + (stamp * 37 % 200) as usize;
        let (mut kept, mut oldest) = (0, 1);
        for stamp in 1..5000u64 {
            let packet = packet(&mut pool, stamp, len(stamp));
            while kept + HEAD + len(stamp) > 1000 {
                assert!(
                    !logs.note(OLD, 1, Epoch::new(stamp as u32 % 7), &packet),
                    "there is no room before {oldest} is forgotten"
                );
                logs.clear(OLD, 1, oldest);
                kept -= HEAD + len(oldest);
                oldest += 1;
            }
            assert!(logs.note(OLD, 1, Epoch::new(stamp as u32 % 7), &packet));
            kept += HEAD + len(stamp);
            assert!(
                logs.note(OLD, 0, Epoch::FIRST, &packet),
                "the other chain has no log, and needs none"
            );
            pool.put(packet);
        }
        logs.close(OLD);
        let mut found = Vec::new();
        for old_epoch in 0..7 {
            let count =
                logs.begin(old_epoch, 1, Epoch::new(old_epoch), NEW, Epoch::new(100 + old_epoch));
            for number in 0..count {
                let mut copy = pool.take().expect("there are buffers");
                assert!(logs.copy(NEW, Epoch::new(100 + old_epoch), number, &mut copy));
                let stamp = copy.meta.stamp;
                assert_eq!((copy.meta.chain, copy.meta.commit), (1, old_epoch));
                assert_eq!(u64::from(copy.meta.priority), stamp % 16);
                assert_eq!(copy.bytes(), vec![stamp as u8; len(stamp)]);
                found.push(stamp);
                pool.put(copy);
            }
            assert_eq!(logs.holds(old_epoch), count > 0);
        }
        found.sort_unstable();
        assert_eq!(found, (oldest..5000).collect::<Vec<_>>());
    }

    /// Only the route's present owner gets the flow's packets, and says itself when it
    /// has all.
    #[test]
    fn packets_are_the_new_owners() {
        let mut pool = MemoryPool::new(4);
        let mut logs = Logs::new(vec![1000]);
        let sent = packet(&mut pool, 1, 60);
        assert!(logs.note(OLD, 0, Epoch::new(5), &sent));
        assert_eq!(
            logs.begin(0, 0, Epoch::new(5), NEW, Epoch::new(9)),
            0,
            "who has it is not known to be dead"
        );
        logs.close(OLD);
        assert_eq!(logs.begin(0, 0, Epoch::new(6), NEW, Epoch::new(9)), 0, "of another flow");
        assert_eq!(logs.begin(0, 0, Epoch::new(5), NEW, Epoch::new(9)), 1);
        let mut copy = pool.take().expect("there are buffers");
        assert!(
            !logs.copy(OLD, Epoch::new(9), 0, &mut copy)
                && !logs.copy(NEW, Epoch::new(8), 0, &mut copy)
                && !logs.copy(NEW, Epoch::new(9), 1, &mut copy)
        );
        assert!(logs.copy(NEW, Epoch::new(9), 0, &mut copy));
        assert!(
            !logs.end(OLD, Epoch::new(9))
                && logs.holds(0)
                && logs.end(NEW, Epoch::new(9))
                && !logs.holds(0)
        );
        assert_eq!(logs.begin(0, 0, Epoch::new(5), NEW, Epoch::new(10)), 1);
        logs.give_up(0);
        assert!(!logs.holds(0) && !logs.copy(NEW, Epoch::new(10), 0, &mut copy));
        // A later incarnation of the node has a log of its own; the earlier one's is kept
        // until it is forgotten.
        let later = Peer { incarnation: 4, ..OLD };
        assert!(logs.note(later, 0, Epoch::new(5), &sent));
        logs.forget(OLD);
        logs.close(later);
        assert_eq!(logs.begin(0, 0, Epoch::new(5), NEW, Epoch::new(11)), 1);
        logs.forget(later);
        assert_eq!(logs.begin(0, 0, Epoch::new(5), NEW, Epoch::new(12)), 0);
    }

    /// An incarnation begins before anyone has said that the earlier one failed: packets
    /// that the earlier one was sent are not lost.
    #[test]
    fn a_next_incarnation_writes_over_nothing() {
        let mut pool = MemoryPool::new(4);
        let mut logs = Logs::new(vec![1000]);
        let sent = packet(&mut pool, 1, 60);
        assert!(logs.note(OLD, 0, Epoch::new(5), &sent));
        assert!(logs.note(Peer { incarnation: 9, ..OLD }, 0, Epoch::new(6), &sent));
        assert_eq!(logs.begin(0, 0, Epoch::new(5), NEW, Epoch::new(9)), 1);
        assert_eq!(logs.begin(1, 0, Epoch::new(6), NEW, Epoch::new(10)), 0);
    }
}
