//! All sessions of an edge: finds the session of a packet (RFC 5880, section 6.3; RFC
//! 5881, section 3), and the next that is due.

use super::{Change, Discard, Memory, Session, Settings};
use holdfast_wire::bfd::{Control, MAX_LEN, MIN_SOURCE_PORT};

/// Sessions of an edge at most: a discriminator's lowest byte names the session.
pub const MAX_SESSIONS: usize = 256;

/// A router to have a session with.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The port that leads to it.
    pub port: u8,
    /// The address, IPv4 as IPv4-mapped.
    pub address: [u8; 16],
    /// The session's settings.
    pub settings: Settings,
}

/// A packet to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outgoing {
    /// The session's index.
    pub at: usize,
    /// The port to send by.
    pub port: u8,
    /// The destination address.
    pub peer: [u8; 16],
    /// The source UDP port, the same for all packets of a session (RFC 5881, section 4).
    pub source_port: u16,
    /// Bytes of the packet.
    pub len: usize,
}

#[derive(Debug)]
struct Entry {
    port: u8,
    address: [u8; 16],
    source_port: u16,
    session: Session,
}

/// See the module.
#[derive(Debug)]
pub struct Sessions {
    entries: Vec<Entry>,
    /// A time before which nothing is due.
    next: u64,
}

impl Sessions {
    /// A session with each peer. `random` gives discriminators and first sequence
    /// numbers, which must be hard to guess and differ after every start.
    ///
    /// # Panics
    /// If there are more than [`MAX_SESSIONS`], or settings are invalid
    /// ([`Session::new`]).
    pub fn new(peers: Vec<Peer>, random: &mut dyn FnMut() -> u64, now: u64) -> Sessions {
        Sessions::resume(peers, &[], random, now)
    }

    /// As [`Sessions::new`], but sessions with a memory at the same index continue.
    ///
    /// # Panics
    /// As [`Sessions::new`].
    pub fn resume(
        peers: Vec<Peer>,
        memories: &[Option<Memory>],
        random: &mut dyn FnMut() -> u64,
        now: u64,
    ) -> Sessions {
        assert!(peers.len() <= MAX_SESSIONS);
        let ports = u32::from(u16::MAX - MIN_SOURCE_PORT) + 1;
        let first_port = (random() >> 32) as u32 % ports;
        let entries: Vec<Entry> = (0u32..)
            .zip(peers)
            .map(|(at, peer)| {
                let numbers = random();
                // The discriminator is never 0, and never another session's.
                let discriminator = ((numbers >> 32) as u32 | 1 << 31) & !0xff | at;
                let source_port = MIN_SOURCE_PORT + ((first_port + at) % ports) as u16;
                let resume = |memory: &Memory| {
                    let is_own = |session: &Session| {
                        session.discriminator() & 0xff == at
                            && memory.source_port() >= MIN_SOURCE_PORT
                    };
                    Session::resume(peer.settings.clone(), memory, now)
                        .filter(is_own)
                        .map(|session| (session, memory.source_port()))
                };
                let resumed = memories.get(at as usize).and_then(Option::as_ref).and_then(resume);
                let new = || {
                    (
                        Session::new(peer.settings.clone(), discriminator, numbers as u32, now),
                        source_port,
                    )
                };
                let (session, source_port) = resumed.unwrap_or_else(new);
                Entry { port: peer.port, address: peer.address, source_port, session }
            })
            .collect();
        let mut sessions = Sessions { entries, next: u64::MAX };
        sessions.look_ahead();
        sessions
    }

    fn look_ahead(&mut self) {
        self.next =
            self.entries.iter().map(|entry| entry.session.poll_timeout()).min().unwrap_or(u64::MAX);
    }

    /// The number of sessions.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there is no session.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Each session with its port and its peer's address, in the order in which they were
    /// given.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8; 16], &Session)> {
        self.entries.iter().map(|entry| (entry.port, &entry.address, &entry.session))
    }

    /// The index of the session with this peer at this port.
    pub fn find(&self, port: u8, address: &[u8; 16]) -> Option<usize> {
        self.entries.iter().position(|entry| entry.port == port && entry.address == *address)
    }

    /// The memory from which the next incarnation continues the session at this index.
    pub fn memory(&self, at: usize) -> Option<Memory> {
        let entry = self.entries.get(at)?;
        let mut memory = entry.session.memory();
        memory.set_source_port(entry.source_port);
        Some(memory)
    }

    /// The session at this index.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut Session> {
        // The caller may change it, so something may be due.
        self.next = 0;
        self.entries.get_mut(at).map(|entry| &mut entry.session)
    }

    /// Holds every session down. The other sides are told, and do not take it for a
    /// failure.
    pub fn take_leave(&mut self, now: u64) {
        self.entries.iter_mut().for_each(|entry| _ = entry.session.set_admin_down(true, now));
        self.look_ahead();
    }

    /// True while a peer has not confirmed that: see [`Session::is_taking_leave`].
    pub fn is_taking_leave(&self) -> bool {
        self.entries.iter().any(|entry| entry.session.is_taking_leave())
    }

    /// Takes a UDP payload from this address at this port. Returns the index of the
    /// session whose state it changed, with the change.
    ///
    /// # Errors
    /// The reason why it is discarded; then nothing has changed.
    pub fn handle(
        &mut self,
        port: u8,
        source: &[u8; 16],
        payload: &[u8],
        now: u64,
    ) -> Result<Option<(usize, Change)>, Discard> {
        let packet = Control::parse(payload).map_err(Discard::Malformed)?;
        let at = match packet.your_discriminator {
            0 => self.find(port, source),
            named => {
                let at = (named & 0xff) as usize;
                let is_it = |entry: &&Entry| entry.session.discriminator() == named;
                // A session belongs to one neighbour, and stays with it.
                let is_from_there = |entry: &&Entry| entry.port == port && entry.address == *source;
                self.entries.get(at).filter(is_it).filter(is_from_there).map(|_| at)
            }
        };
        let at = at.ok_or(Discard::NoSession)?;
        let change = self.entries[at].session.handle(&packet, payload, now)?;
        self.look_ahead();
        Ok(change.map(|change| (at, change)))
    }

    /// Advances the time. `changed` gets each change with its session's index.
    pub fn handle_timeout(&mut self, now: u64, mut changed: impl FnMut(usize, Change)) {
        if now < self.next {
            return;
        }
        for (at, entry) in self.entries.iter_mut().enumerate() {
            if let Some(change) = entry.session.handle_timeout(now) {
                changed(at, change);
            }
        }
        self.look_ahead();
    }

    /// Writes the next packet that is due into `into`. Call it until there is none.
    pub fn poll_transmit(
        &mut self,
        now: u64,
        random: &mut dyn FnMut() -> u64,
        into: &mut [u8; MAX_LEN],
    ) -> Option<Outgoing> {
        if now < self.next {
            return None;
        }
        for (at, entry) in self.entries.iter_mut().enumerate() {
            if let Some(len) = entry.session.poll_transmit(now, random, into) {
                return Some(Outgoing {
                    at,
                    port: entry.port,
                    peer: entry.address,
                    source_port: entry.source_port,
                    len,
                });
            }
        }
        self.look_ahead();
        None
    }

    /// The time at which something is due next.
    pub fn poll_timeout(&self) -> u64 {
        self.next
    }
}
