//! Who is behind which address on a link (RFC 826, RFC 4861), and packets that wait to know it.

use holdfast_protection::Released;
use holdfast_wire::Packet;
use holdfast_wire::header::Mac;
use std::collections::{BTreeMap, VecDeque};

const SECOND: u64 = 1_000_000_000;
/// How long an answer is believed without being asked again.
const REACHABLE: u64 = 30 * SECOND;
/// Between two questions, and how many (RFC 4861, section 10).
const RETRANSMIT: u64 = SECOND;
const TRIES: u32 = 3;
/// Neighbours that are remembered, packets that wait for one of them, and for all.
const LIMIT: usize = 16_384;
const HELD_PER_NEIGHBOR: usize = 32;
const HELD: usize = 2048;

enum State {
    Asking { tries: u32, next: u64, held: VecDeque<Released<Packet>> },
    Known { mac: Mac, until: u64, asked: u64 },
}

/// The answer to a look-up.
pub(crate) enum Lookup {
    /// Send.
    Known(Mac),
    /// Send, and ask whether it is still so.
    Stale(Mac),
    /// Hold the packet; ask if this is the first.
    Unknown {
        /// Nobody has asked yet.
        ask: bool,
    },
}

/// See the module.
pub(crate) struct Neighbors {
    entries: BTreeMap<(u8, [u8; 16]), State>,
    held: usize,
}

impl Neighbors {
    pub(crate) fn new() -> Neighbors {
        Neighbors { entries: BTreeMap::new(), held: 0 }
    }

    pub(crate) fn held(&self) -> usize {
        self.held
    }

    pub(crate) fn lookup(&mut self, port: u8, address: &[u8; 16], now: u64) -> Lookup {
        match self.entries.get_mut(&(port, *address)) {
            Some(State::Known { mac, until, asked }) => {
                if now > *until && now.saturating_sub(*asked) > RETRANSMIT {
                    *asked = now;
                    return Lookup::Stale(*mac);
                }
                Lookup::Known(*mac)
            }
            Some(State::Asking { .. }) => Lookup::Unknown { ask: false },
            None => {
                if self.entries.len() < LIMIT {
                    self.entries
                        .insert((port, *address), State::Asking { tries: 1, next: now + RETRANSMIT, held: VecDeque::new() });
                }
                Lookup::Unknown { ask: true }
            }
        }
    }

    /// Holds a packet until the neighbour is known; the oldest one makes room. Gives a packet back that is not held.
    pub(crate) fn hold(&mut self, port: u8, address: &[u8; 16], packet: Released<Packet>) -> Result<(), Released<Packet>> {
        match self.entries.get_mut(&(port, *address)) {
            Some(State::Asking { held, .. }) if held.len() < HELD_PER_NEIGHBOR && self.held < HELD => {
                held.push_back(packet);
                self.held += 1;
                Ok(())
            }
            _ => Err(packet),
        }
    }

    /// A neighbour has spoken. `create`: it is worth remembering even if nobody asked. Returns what waited for it.
    pub(crate) fn learn(&mut self, port: u8, address: &[u8; 16], mac: Mac, now: u64, create: bool) -> VecDeque<Released<Packet>> {
        let room = self.entries.len() < LIMIT;
        let known = State::Known { mac, until: now + REACHABLE, asked: now };
        match self.entries.get_mut(&(port, *address)) {
            Some(entry) => match core::mem::replace(entry, known) {
                State::Asking { held, .. } => {
                    self.held -= held.len();
                    held
                }
                State::Known { .. } => VecDeque::new(),
            },
            None => {
                if create && room {
                    self.entries.insert((port, *address), known);
                }
                VecDeque::new()
            }
        }
    }

    /// Whom to ask again.
    pub(crate) fn due(&mut self, now: u64) -> Vec<(u8, [u8; 16])> {
        let mut due = Vec::new();
        for ((port, address), state) in &mut self.entries {
            if let State::Asking { tries, next, .. } = state
                && *next <= now
                && *tries < TRIES
            {
                *tries += 1;
                *next = now + RETRANSMIT;
                due.push((*port, *address));
            }
        }
        due
    }

    /// Packets for neighbours that have not answered.
    pub(crate) fn given_up(&mut self, now: u64) -> Vec<Released<Packet>> {
        let mut packets = Vec::new();
        self.entries.retain(|_, state| match state {
            State::Asking { tries, next, held } if *tries >= TRIES && *next <= now => {
                packets.extend(held.drain(..));
                false
            }
            _ => true,
        });
        self.held -= packets.len();
        packets
    }

    pub(crate) fn poll_timeout(&self) -> u64 {
        let next = |state: &State| match state {
            State::Asking { next, .. } => *next,
            State::Known { .. } => u64::MAX,
        };
        self.entries.values().map(next).min().unwrap_or(u64::MAX)
    }
}
