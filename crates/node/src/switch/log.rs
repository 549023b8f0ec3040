//! The switch's log: what it has sent for chains whose packets can be processed again.
//!
//! Theory of operation (REINFORCE, section III-B: the predecessor). For each runtime and chain there is one log of fixed size, a ring of bytes. A runtime says up to which stamp nobody
//! needs it any more; what finds no room before that does not go out, because what it would lead to could be lost. When a runtime has failed, and a flow of it has got
//! another owner, that one is told how many of the flow's packets there are, and asks for them, a few at a time. What comes meanwhile waits
//! here, and follows them.
//!
//! In: packets as they go out, stamps up to which they may be forgotten, requests. Out: copies of packets. Never: a reference into a runtime's buffers.

use super::routes::RouteId;
use holdfast_protection::Peer;
use holdfast_wire::{Meta, Packet};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Logs of dead runtimes that are kept, if nobody says before that they are of no use.
const DEAD: usize = 64;
/// Bytes in front of a packet's: stamp (8), epoch (4), length (2), ingress (1), which switch (1).
const HEAD: usize = 16;

/// A ring of packets.
#[derive(Debug)]
pub(super) struct Log {
    life: u32,
    bytes: Box<[u8]>,
    /// Counted on and on: where the oldest packet begins, and where the next one will.
    first: u64,
    next: u64,
    /// Once its runtime is dead: by epoch, where packets lie.
    by_epoch: Option<HashMap<u32, Vec<u64>>>,
}

/// One of them as it was sent.
struct Entry {
    meta: Meta,
    len: usize,
}

impl Log {
    fn new(life: u32, size: usize) -> Log {
        Log { life, bytes: vec![0; size].into_boxed_slice(), first: 0, next: 0, by_epoch: None }
    }

    /// A place, and how many bytes there are to the end of the ring.
    fn place(&self, at: u64) -> (usize, usize) {
        let place = (at % self.bytes.len() as u64) as usize;
        (place, self.bytes.len() - place)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let (place, to_end) = self.place(at);
        let (head, tail) = bytes.split_at(bytes.len().min(to_end));
        self.bytes[place..place + head.len()].copy_from_slice(head);
        self.bytes[..tail.len()].copy_from_slice(tail);
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        let (place, to_end) = self.place(at);
        let split = into.len().min(to_end);
        let (head, tail) = into.split_at_mut(split);
        head.copy_from_slice(&self.bytes[place..place + split]);
        tail.copy_from_slice(&self.bytes[..tail.len()]);
    }

    /// False if there is no room.
    fn append(&mut self, packet: &Packet, epoch: u32) -> bool {
        let len = HEAD + packet.len();
        if self.next - self.first + len as u64 > self.bytes.len() as u64 {
            return false;
        }
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&packet.meta.stamp.to_be_bytes());
        head[8..12].copy_from_slice(&epoch.to_be_bytes());
        head[12..14].copy_from_slice(&(packet.len() as u16).to_be_bytes());
        head[14..].copy_from_slice(&[packet.meta.ingress, packet.meta.switch]);
        self.write(self.next, &head);
        self.write(self.next + HEAD as u64, packet.bytes());
        self.next += len as u64;
        true
    }

    fn entry(&self, at: u64) -> Entry {
        let mut head = [0; HEAD];
        self.read(at, &mut head);
        let [s0, s1, s2, s3, s4, s5, s6, s7, e0, e1, e2, e3, l0, l1, ingress, switch] = head;
        let meta = Meta {
            stamp: u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            commit: u32::from_be_bytes([e0, e1, e2, e3]),
            ingress,
            switch,
            ..Meta::default()
        };
        Entry { meta, len: u16::from_be_bytes([l0, l1]).into() }
    }

    /// Nobody needs what is at the beginning and has no later stamp.
    fn clear(&mut self, stamp: u64) {
        while self.first < self.next {
            let entry = self.entry(self.first);
            if entry.meta.stamp > stamp {
                return;
            }
            self.first += (HEAD + entry.len) as u64;
        }
    }

    fn index(&mut self) -> &HashMap<u32, Vec<u64>> {
        if self.by_epoch.is_none() {
            let mut by_epoch: HashMap<u32, Vec<u64>> = HashMap::new();
            let mut at = self.first;
            while at < self.next {
                let entry = self.entry(at);
                by_epoch.entry(entry.meta.commit).or_default().push(at);
                at += (HEAD + entry.len) as u64;
            }
            self.by_epoch = Some(by_epoch);
        }
        self.by_epoch.get_or_insert_default()
    }

    /// Copies the packet that lies there.
    fn copy(&self, at: u64, packet: &mut Packet) -> bool {
        let Entry { meta, len } = self.entry(at);
        packet.clear();
        let is_copied = packet.extend_back(len).is_some_and(|bytes| {
            self.read(at + HEAD as u64, bytes);
            true
        });
        packet.meta = meta;
        is_copied
    }
}

/// A flow whose new owner has not seen all that the log has of it.
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
    /// Bytes of a log, by chain; 0 where there is none.
    sizes: Vec<usize>,
    /// By node and chain.
    live: Vec<Vec<Option<Log>>>,
    dead: VecDeque<(Peer, u16, Log)>,
    /// By the epoch of the new owner.
    replays: BTreeMap<u32, Replay>,
    routes: BTreeMap<RouteId, u32>,
}

impl Logs {
    pub(super) fn new(sizes: Vec<usize>) -> Logs {
        Logs { sizes, ..Logs::default() }
    }

    /// The packet is about to be sent to that runtime under this epoch. False if it cannot be kept.
    #[inline]
    pub(super) fn note(&mut self, to: Peer, chain: u16, epoch: u32, packet: &Packet) -> bool {
        let size = self.sizes.get(usize::from(chain)).copied().unwrap_or(0);
        size == 0 || self.append(to, chain, size, epoch, packet)
    }

    fn append(&mut self, to: Peer, chain: u16, size: usize, epoch: u32, packet: &Packet) -> bool {
        let (node, at) = (usize::from(to.node), usize::from(chain));
        if self.live.len() <= node {
            self.live.resize_with(node + 1, Vec::new);
        }
        let chains = &mut self.live[node];
        if chains.len() <= at {
            chains.resize_with(at + 1, || None);
        }
        if let Some(old) = chains[at].take_if(|log| log.life != to.incarnation) {
            self.bury(Peer { node: to.node, incarnation: old.life }, chain, old);
        }
        self.live[node][at].get_or_insert_with(|| Log::new(to.incarnation, size)).append(packet, epoch)
    }

    /// This runtime has failed: nothing more is sent to it.
    pub(super) fn close(&mut self, dead: Peer) {
        let chains = self.live.get_mut(usize::from(dead.node)).map(|chains| (0u16..).zip(chains.iter_mut()));
        let mut closed = Vec::new();
        for (chain, log) in chains.into_iter().flatten() {
            closed.extend(log.take_if(|log| log.life == dead.incarnation).map(|log| (chain, log)));
        }
        closed.into_iter().for_each(|(chain, log)| self.bury(dead, chain, log));
    }

    fn bury(&mut self, dead: Peer, chain: u16, log: Log) {
        if self.dead.len() == DEAD {
            self.dead.pop_front();
        }
        self.dead.push_back((dead, chain, log));
    }

    /// Nobody needs what was sent to this runtime for this chain with a stamp up to this one.
    pub(super) fn clear(&mut self, from: Peer, chain: u16, stamp: u64) {
        let chains = self.live.get_mut(usize::from(from.node));
        let log = chains.and_then(|chains| chains.get_mut(usize::from(chain))).and_then(Option::as_mut);
        if let Some(log) = log.filter(|log| log.life == from.incarnation) {
            log.clear(stamp);
        }
    }

    /// Whoever had the flow under the old epoch is dead. How many of its packets there are; with one or more, what comes for the flow waits.
    pub(super) fn begin(&mut self, route: RouteId, chain: u16, old_epoch: u32, owner: Peer, epoch: u32) -> u32 {
        if self.sizes.get(usize::from(chain)).is_none_or(|size| *size == 0) {
            return 0;
        }
        let mut of_chain = self.dead.iter_mut().filter(|(_, of, _)| *of == chain);
        let found = of_chain.find_map(|(dead, _, log)| log.index().get(&old_epoch).map(|places| (*dead, places.clone())));
        let Some((dead, places)) = found else { return 0 };
        let count = places.len() as u32;
        self.routes.insert(route, epoch);
        self.replays.insert(epoch, Replay { route, owner, dead, chain, places });
        count
    }

    /// Packets for this route wait.
    #[inline]
    pub(super) fn holds(&self, route: RouteId) -> bool {
        !self.routes.is_empty() && self.routes.contains_key(&route)
    }

    /// The route leads to somebody else from now on, or is no more: nobody asks.
    pub(super) fn give_up(&mut self, route: RouteId) {
        if let Some(epoch) = self.routes.remove(&route) {
            self.replays.remove(&epoch);
        }
    }

    /// The owner of this epoch has all that it needs. True if something may go on.
    pub(super) fn end(&mut self, from: Peer, epoch: u32) -> bool {
        if self.replays.get(&epoch).is_none_or(|replay| replay.owner != from) {
            return false;
        }
        self.replays.remove(&epoch).is_some_and(|replay| self.routes.remove(&replay.route).is_some())
    }

    /// Copies one of the flow's packets. False if there is none, or it does not fit.
    pub(super) fn copy(&self, from: Peer, epoch: u32, number: u32, packet: &mut Packet) -> bool {
        let Some(replay) = self.replays.get(&epoch).filter(|replay| replay.owner == from) else { return false };
        let log = self.dead.iter().find(|(dead, chain, _)| (*dead, *chain) == (replay.dead, replay.chain));
        let place = replay.places.get(number as usize);
        log.zip(place).is_some_and(|((_, _, log), place)| {
            let is_copied = log.copy(*place, packet);
            packet.meta.chain = replay.chain;
            is_copied
        })
    }

    /// Everybody has claimed what was this one's, and has it.
    pub(super) fn forget(&mut self, over: Peer) {
        self.close(over);
        self.dead.retain(|(dead, ..)| *dead != over);
    }
}
