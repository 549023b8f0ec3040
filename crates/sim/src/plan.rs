//! A world that is told what to do: which connections, which failures and exactly when, instead of what its seed would draw.
//!
//! In: a [`Plan`]. Out: an [`Outcome`]. A plan changes nothing of a world's past: two plans that differ in a failure after the n-th event
//! give the same first n events, so that a test can count a run's events and then fail a runtime between any two of them.

use crate::world::Report;
use holdfast_wire::DropCounters;

/// One connection: `packets` datagrams, or chunks over TCP that the server echoes one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// TCP, or UDP.
    pub tcp: bool,
    /// How many.
    pub packets: u32,
    /// When it begins, after the world's beginning, ns.
    pub start: u64,
    /// Between two packets, ns.
    pub pause: u64,
}

/// When a failure happens. It never happens before the failures ahead of it in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Between this event (counted from 1) and the next.
    Event(u64),
    /// At the first event boundary at or after this time, ns after the world's beginning.
    Time(u64),
    /// At this event boundary (counted from 0) of those at which the system knows of every earlier failure and says that all flows
    /// would survive another.
    Settled(u64),
}

/// Whom it happens to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// The runtime that owns most flows.
    Owner,
    /// One of those there are, by number, round-robin.
    Number(usize),
    /// The coordinator. It is away for as long as a pause says, or as the seed does, and then begins a new life.
    Coordinator,
    /// Switch and manager, in the same way.
    Hub,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// `kill -9`.
    Kill,
    /// Stopped, and continued after so many ns.
    Pause(u64),
}

/// One failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// When.
    pub when: When,
    /// To whom.
    pub whom: Whom,
    /// What.
    pub how: How,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The connections.
    pub connections: Vec<Connection>,
    /// The failures, in order.
    pub failures: Vec<Failure>,
    /// A network that loses, doubles and reorders nothing and takes the same time for every frame; otherwise it does what the seed says.
    pub calm: bool,
    /// Flows that a runtime may own.
    pub flows: usize,
    /// How long a process takes to start again after a failure, ns; 0 leaves it to the seed.
    pub restart: u64,
    /// Changes of the rules, in order: when, ns after the world's beginning, and the chain (0 or 1) that all flows take which begin from then on.
    pub rules: Vec<(u64, u16)>,
    /// Check what a protection promises even if this one promises nothing.
    pub strict: bool,
    /// Simulated time after which the world ends even if a connection has not finished, ns.
    pub lasts: u64,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            connections: Vec::new(),
            failures: Vec::new(),
            calm: false,
            flows: 64,
            restart: 0,
            rules: Vec::new(),
            strict: false,
            lasts: 20_000_000_000,
        }
    }
}

/// A packet that left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// When, ns after the world's beginning.
    pub at: u64,
    /// Source and destination, addresses and ports, as it left.
    pub ends: [([u8; 4], u16); 2],
    /// IP protocol.
    pub protocol: u8,
    /// All of it.
    pub frame: Vec<u8>,
}

impl Exit {
    /// The number of the connection (from 0) that a datagram belongs to: its payload says so.
    pub fn connection(&self) -> Option<usize> {
        let seen = crate::frames::read(&self.frame).filter(|seen| seen.protocol == holdfast_wire::header::proto::UDP)?;
        let id = seen.payload.first_chunk::<4>()?;
        (u32::from_be_bytes(*id) as usize).checked_sub(1)
    }
}

/// What a planned world gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// As of any world. A connection that did not finish is not a violation here: see `finished`.
    pub report: Report,
    /// Per connection, whether it finished.
    pub finished: Vec<bool>,
    /// What left, in order.
    pub released: Vec<Exit>,
    /// Drops of all parts, the dead included.
    pub drops: DropCounters,
    /// Failures that happened.
    pub failures: usize,
    /// Events until every connection had finished; all of them if one never did.
    pub quiet_from: u64,
    /// Events after which the coordinator said that every flow would survive a failure.
    pub settled: u64,
    /// Packets that left while no replica could be had.
    pub unprotected: u64,
}
