//! Whether a router next door is alive, known within milliseconds: bidirectional forwarding detection (RFC 5880) over one hop (RFC 5881), in
//! asynchronous mode.
//!
//! Theory of operation. Both sides send small packets to each other, as often as the slower of sender and receiver allows. A side that has heard nothing for a
//! *detection time*, which is the sender's multiplier times that interval, takes the other for dead; one that hears the other say that it hears nothing
//! knows of a one-way cut just as soon. A session comes up in three steps (Down, Init, Up: RFC 5880, section 6.2), so that Up means that both hear each
//! other. While it is not up, packets go once a second. Every change of an interval is confirmed by a poll and its answer before anybody relies on it
//! (section 6.8.3); that an interval became shorter for who sends, or longer for who waits, needs no confirmation.
//!
//! Nobody beyond the link can speak for a neighbour: packets have a TTL that no router could have left them (RFC 5881, section 5), which the caller checks.
//! Against those on the link there are keys ([`Key`]): each packet is signed and numbered, and numbers do not come again.
//!
//! A session outlives whoever has it, if its [`Memory`] does: the next one goes on under the same discriminator and with the next number, and as long as the pause
//! was shorter than the other side's detection time nobody goes down. That the other side has it so is asked at once, by a poll.
//!
//! Left out: echo and demand mode of this side's own (the other side's is honoured, RFC 5880, section 6.6), keyed MD5 (section 4.3: nobody should rely on it),
//! several keys at a time, several hops (RFC 5883).
//!
//! In: UDP payloads, the time, random numbers. Out: UDP payloads, when something is due, changes of state. Never: what follows from a change.

mod key;
mod memory;
mod session;
mod sessions;
#[cfg(test)]
mod tests;

pub use key::{Key, KeyKind};
pub use memory::Memory;
pub use session::{Change, Session, Settings, Timers};
pub use sessions::{MAX_SESSIONS, Outgoing, Peer, Sessions};

use holdfast_wire::bfd::Malformed;

/// Why a packet changed nothing (RFC 5880, section 6.8.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discard {
    /// It is no control packet that a session could look at.
    Malformed(Malformed),
    /// It names a session that is not there, or is of nobody who has one.
    NoSession,
    /// It is not signed, signed though no key is configured, or not signed with the session's key.
    Unauthenticated,
    /// Its sequence number came before, or is too far ahead.
    Replayed,
}
