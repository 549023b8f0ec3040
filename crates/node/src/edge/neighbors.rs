//! MAC addresses of the stations on a link (RFC 826, RFC 4861 section 7.3), and packets
//! that wait for one.
//!
//! Theory of operation. A neighbour is unknown until the first packet for it asks: three
//! questions to all, a second apart, while packets wait. An answer to a question is
//! believed for half a minute. An entry that is older, or came unasked, serves too, but
//! its first use asks the neighbour itself. If three such questions stay without an
//! answer, all are asked again, because the address may have moved. Everything is
//! bounded: addresses that are asked for (a scan of a large network makes thousands),
//! neighbours, packets that wait. This is the table; `resolution` asks and answers.

use holdfast_protection::Released;
use holdfast_wire::Packet;
use holdfast_wire::header::Mac;
use std::collections::{BTreeMap, VecDeque};

const SECOND: u64 = 1_000_000_000;
/// Time for which an answer is believed without being asked again, ns (RFC 4861, section
/// 10).
const REACHABLE: u64 = 30 * SECOND;
/// Time between two questions, ns, and number of questions.
const RETRANSMIT: u64 = SECOND;
const TRIES: u32 = 3;
/// Neighbours that are remembered; the longest unused make room.
const LIMIT: usize = 16_384;
/// Addresses that all are asked for at one time (RFC 6583, section 6).
const ASKING: usize = 1024;
/// Limit of neighbours that were there and are asked for again, a scan's addresses
/// counted: a scan does not keep known neighbours from being asked for (RFC 6583, section
/// 7.1).
const ASKING_AGAIN: usize = LIMIT / 2;
/// Packets that wait for one neighbour.
pub(super) const HELD_PER_NEIGHBOR: usize = 256;
/// Packets that wait for all neighbours before the limit per neighbour falls to one, the
/// latest (RFC 1122, section 2.3.2.2).
const HELD_FREELY: usize = ASKING;
/// Packets that wait for all neighbours. The addresses of a scan, each with its one
/// packet, leave room for those of others.
const HELD: usize = HELD_FREELY + 2 * ASKING;

type Name = (u8, [u8; 16]);

enum State {
    /// No station has answered yet.
    Asking { tries: u32, next: u64, held: VecDeque<Released<Packet>> },
    /// The neighbour answered.
    Reachable { mac: Mac, until: u64 },
    /// The address was right once, or came unasked.
    Stale { mac: Mac },
    /// The address is in use, and the neighbour is asked whether it is still right.
    Probing { mac: Mac, tries: u32, next: u64 },
}

struct Neighbor {
    state: State,
    used: u64,
}

/// Why a MAC address is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The neighbour answered a question.
    Answer,
    /// The neighbour announced it unasked.
    Claim,
    /// The neighbour asked for us and will be answered: worth remembering.
    Question,
}

/// The answer to a look-up.
pub(super) enum Lookup {
    /// Send.
    Known(Mac),
    /// Send, and ask the neighbour whether the address is still right.
    Stale(Mac),
    /// Hold the packet; ask all if this is the first.
    Unknown {
        /// No question has been sent yet.
        ask: bool,
    },
    /// Too many are asked for already.
    Refused,
}

/// Work that a timeout calls for.
#[derive(Debug)]
pub(super) enum Due {
    /// Ask for this address at this port: all stations, or the one that had it.
    Ask(u8, [u8; 16], Option<Mac>),
    /// No station answered; this packet waited for it.
    Unreachable(u8, Released<Packet>),
}

/// See the module.
pub(super) struct Neighbors {
    entries: BTreeMap<Name, Neighbor>,
    asking: usize,
    held: usize,
    /// No entry is due earlier.
    next: u64,
}

impl Neighbors {
    pub(super) fn new() -> Neighbors {
        Neighbors { entries: BTreeMap::new(), asking: 0, held: 0, next: u64::MAX }
    }

    pub(super) fn held(&self) -> usize {
        self.held
    }

    pub(super) fn lookup(&mut self, port: u8, address: &[u8; 16], now: u64) -> Lookup {
        let next = now + RETRANSMIT;
        if let Some(entry) = self.entries.get_mut(&(port, *address)) {
            entry.used = now;
            let mac = match entry.state {
                State::Asking { .. } => return Lookup::Unknown { ask: false },
                State::Reachable { mac, until } if now <= until => return Lookup::Known(mac),
                State::Probing { mac, .. } => return Lookup::Known(mac),
                State::Reachable { mac, .. } | State::Stale { mac } => mac,
            };
            entry.state = State::Probing { mac, tries: 1, next };
            self.next = self.next.min(next);
            return Lookup::Stale(mac);
        }
        if self.asking >= ASKING {
            return Lookup::Refused;
        }
        self.make_room();
        let state = State::Asking { tries: 1, next, held: VecDeque::new() };
        self.entries.insert((port, *address), Neighbor { state, used: now });
        self.asking += 1;
        self.next = self.next.min(next);
        Lookup::Unknown { ask: true }
    }

    /// In a full table the eighth that is unused for longest makes room. The search is
    /// paid for once in many insertions.
    fn make_room(&mut self) {
        if self.entries.len() < LIMIT {
            return;
        }
        let is_idle = |entry: &Neighbor| !matches!(entry.state, State::Asking { .. });
        let mut ages: Vec<u64> =
            self.entries.values().filter(|entry| is_idle(entry)).map(|entry| entry.used).collect();
        let mut to_go = LIMIT / 8;
        let (_, &mut oldest, _) = ages.select_nth_unstable(to_go - 1);
        self.entries.retain(|_, entry| {
            let goes = to_go > 0 && is_idle(entry) && entry.used <= oldest;
            to_go -= usize::from(goes);
            !goes
        });
    }

    /// Holds a packet until the neighbour is known. Gives back a packet that is not held:
    /// this one, or the one that waited longest for the same neighbour.
    pub(super) fn hold(
        &mut self,
        port: u8,
        address: &[u8; 16],
        packet: Released<Packet>,
    ) -> Option<Released<Packet>> {
        let Some(Neighbor { state: State::Asking { held, .. }, .. }) =
            self.entries.get_mut(&(port, *address))
        else {
            return Some(packet);
        };
        if held.len() >= HELD_PER_NEIGHBOR || (self.held >= HELD_FREELY && !held.is_empty()) {
            held.push_back(packet);
            return held.pop_front();
        }
        if self.held >= HELD {
            return Some(packet);
        }
        held.push_back(packet);
        self.held += 1;
        None
    }

    /// Notes a neighbour's MAC address, as a station says it. Returns the packets that
    /// waited for it.
    pub(super) fn learn(
        &mut self,
        name: Name,
        mac: Mac,
        evidence: Evidence,
        now: u64,
    ) -> VecDeque<Released<Packet>> {
        if !self.entries.contains_key(&name) {
            if evidence == Evidence::Question {
                self.make_room();
                self.entries.insert(name, Neighbor { state: State::Stale { mac }, used: now });
            }
            return VecDeque::new();
        }
        let Some(entry) = self.entries.get_mut(&name) else { return VecDeque::new() };
        let reachable = State::Reachable { mac, until: now + REACHABLE };
        match (&mut entry.state, evidence) {
            (State::Asking { held, .. }, _) => {
                let held = core::mem::take(held);
                self.asking -= 1;
                self.held -= held.len();
                entry.state =
                    if evidence == Evidence::Answer { reachable } else { State::Stale { mac } };
                return held;
            }
            (_, Evidence::Answer) => entry.state = reachable,
            (
                State::Reachable { mac: old, .. }
                | State::Stale { mac: old }
                | State::Probing { mac: old, .. },
                _,
            ) => {
                if *old != mac {
                    entry.state = State::Stale { mac };
                }
            }
        }
        VecDeque::new()
    }

    /// The MAC address of a neighbour now, if known.
    pub(super) fn known(&self, name: &Name) -> Option<Mac> {
        match self.entries.get(name)?.state {
            State::Asking { .. } => None,
            State::Reachable { mac, .. } | State::Stale { mac } | State::Probing { mac, .. } => {
                Some(mac)
            }
        }
    }

    /// Doubts a known address: the neighbour is asked again at the next use (RFC 4861,
    /// section 7.2.5).
    pub(super) fn doubt(&mut self, name: &Name) {
        if let Some(entry) = self.entries.get_mut(name)
            && let State::Reachable { mac, .. } = entry.state
        {
            entry.state = State::Stale { mac };
        }
    }

    /// Lists neighbours to ask again, and packets for those that have not answered.
    pub(super) fn due(&mut self, now: u64, due: &mut Vec<Due>) {
        if now < self.next {
            return;
        }
        self.next = u64::MAX;
        let Neighbors { entries, asking, held: all_held, next: earliest } = self;
        entries.retain(|&(port, address), entry| {
            match &mut entry.state {
                State::Asking { tries, next, held } if *next <= now => {
                    if *tries >= TRIES {
                        *asking -= 1;
                        *all_held -= held.len();
                        due.extend(held.drain(..).map(|packet| Due::Unreachable(port, packet)));
                        return false;
                    }
                    *tries += 1;
                    *next = now + RETRANSMIT;
                    due.push(Due::Ask(port, address, None));
                }
                State::Probing { mac, tries, next } if *next <= now => {
                    if *tries >= TRIES {
                        if *asking >= ASKING_AGAIN {
                            return false;
                        }
                        *asking += 1;
                        due.push(Due::Ask(port, address, None));
                        entry.state = State::Asking {
                            tries: 1,
                            next: now + RETRANSMIT,
                            held: VecDeque::new(),
                        };
                    } else {
                        *tries += 1;
                        *next = now + RETRANSMIT;
                        due.push(Due::Ask(port, address, Some(*mac)));
                    }
                }
                _ => {}
            }
            if let State::Asking { next, .. } | State::Probing { next, .. } = &entry.state {
                *earliest = (*earliest).min(*next);
            }
            true
        });
    }

    /// Earliest time at which [`Neighbors::due`] may have work.
    pub(super) fn poll_timeout(&self) -> u64 {
        self.next
    }

    /// Gives back every packet that waits, as at the end of the process.
    pub(super) fn abandon(&mut self) -> Vec<Released<Packet>> {
        let mut packets = Vec::new();
        for entry in self.entries.values_mut() {
            if let State::Asking { held, .. } = &mut entry.state {
                packets.extend(held.drain(..));
            }
        }
        self.held = 0;
        packets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_wire::{MemoryPool, PacketPool};

    fn address(at: u32) -> [u8; 16] {
        let mut address = [0x20; 16];
        address[12..].copy_from_slice(&at.to_be_bytes());
        address
    }

    #[test]
    fn a_scan_of_a_large_network_is_bounded_and_known_neighbours_stay() {
        let mut neighbors = Neighbors::new();
        neighbors.learn((0, address(0)), [2; 6], Evidence::Question, 0);
        let asked = (1..5000)
            .filter(|&at| {
                matches!(neighbors.lookup(0, &address(at), 1), Lookup::Unknown { ask: true })
            })
            .count();
        assert_eq!(asked, ASKING);
        assert!(matches!(neighbors.lookup(0, &address(4000), 1), Lookup::Refused));
        assert!(matches!(neighbors.lookup(0, &address(0), 1), Lookup::Stale(_)));
    }

    #[test]
    fn in_a_full_table_the_longest_unused_make_room() {
        let mut neighbors = Neighbors::new();
        for at in 0..LIMIT as u32 {
            neighbors.learn((0, address(at)), [2; 6], Evidence::Question, 1000 + u64::from(at));
        }
        // The first neighbour is in use.
        assert!(matches!(neighbors.lookup(0, &address(0), 1_000_000), Lookup::Stale(_)));
        neighbors.learn((0, address(1 << 20)), [2; 6], Evidence::Question, 1_000_001);
        assert_eq!(neighbors.entries.len(), LIMIT - LIMIT / 8 + 1);
        assert_eq!(neighbors.known(&(0, address(0))), Some([2; 6]));
        assert_eq!(neighbors.known(&(0, address(1))), None);
        assert_eq!(neighbors.known(&(0, address(LIMIT as u32 - 1))), Some([2; 6]));
    }

    /// Holds packets for each of these neighbours, one neighbour after the other. Returns
    /// how many were given back.
    fn hold(
        neighbors: &mut Neighbors,
        to: core::ops::Range<u32>,
        packets: usize,
        now: u64,
        pool: &mut MemoryPool,
    ) -> usize {
        let mut refused = Vec::new();
        for at in to {
            for _ in 0..packets {
                neighbors.lookup(0, &address(at), now);
                let packet = pool.take().expect("there are enough");
                refused.extend(neighbors.hold(0, &address(at), Released::stateless(packet)));
            }
        }
        let count = refused.len();
        refused.into_iter().for_each(|packet| pool.put(packet.into_inner()));
        count
    }

    /// While a scan asks for all addresses that it may, known neighbours that do not
    /// answer are asked for again. The latest packet for each of them waits.
    #[test]
    fn a_scan_takes_nobodys_place() {
        const ASKED: u32 = ASKING as u32;
        let mut neighbors = Neighbors::new();
        let mut pool = MemoryPool::new(2 * HELD);
        let known = 10_000..10_000 + ASKED;
        for at in known.clone() {
            neighbors.learn((0, address(at)), [2; 6], Evidence::Question, 0);
            neighbors.lookup(0, &address(at), 0);
        }
        let few = HELD_FREELY / HELD_PER_NEIGHBOR;
        assert_eq!(hold(&mut neighbors, 0..few as u32, HELD_PER_NEIGHBOR, SECOND, &mut pool), 0);
        assert_eq!(neighbors.held(), HELD_FREELY);
        let (of_others, too_many) = (2 * (ASKING - few), 3 * 100);
        assert_eq!(
            hold(&mut neighbors, few as u32..ASKED + 100, 3, SECOND, &mut pool),
            of_others + too_many
        );
        let mut due = Vec::new();
        for second in 1..=3 {
            neighbors.due(second * SECOND, &mut due);
        }
        let is_known =
            |due: &&Due| matches!(due, Due::Ask(_, at, None) if *at >= address(known.start));
        assert_eq!(
            (due.iter().filter(is_known).count(), neighbors.asking),
            (ASKING, 2 * ASKING),
            "all are asked"
        );
        let held = neighbors.held();
        assert_eq!(
            hold(&mut neighbors, known, 2, 3 * SECOND, &mut pool),
            ASKING,
            "the earlier ones"
        );
        assert_eq!(neighbors.held(), held + ASKING);
        for packet in neighbors.abandon() {
            pool.put(packet.into_inner());
        }
        assert_eq!(pool.free(), pool.total());
    }

    /// The bound holds however many of them stop answering.
    #[test]
    fn packets_for_all_neighbours_together_are_bounded() {
        let mut neighbors = Neighbors::new();
        let mut pool = MemoryPool::new(2 * HELD);
        let known = 0..LIMIT as u32;
        for at in known.clone() {
            neighbors.learn((0, address(at)), [2; 6], Evidence::Question, 0);
            neighbors.lookup(0, &address(at), 0);
        }
        for second in 1..=3 {
            neighbors.due(second * SECOND, &mut Vec::new());
        }
        assert_eq!(neighbors.asking, ASKING_AGAIN);
        let asked: Vec<u32> =
            known.filter(|at| neighbors.entries.contains_key(&(0, address(*at)))).collect();
        let refused: usize = asked
            .iter()
            .map(|&at| hold(&mut neighbors, at..at + 1, 1, 3 * SECOND, &mut pool))
            .sum();
        assert_eq!((neighbors.held(), refused), (HELD, ASKING_AGAIN - HELD));
        // A full table has room for newcomers.
        for at in 0..LIMIT as u32 {
            neighbors.learn((1, address(at)), [2; 6], Evidence::Question, 0);
        }
        assert!(neighbors.entries.len() <= LIMIT);
        for packet in neighbors.abandon() {
            pool.put(packet.into_inner());
        }
        assert_eq!(pool.free(), pool.total());
    }
}
