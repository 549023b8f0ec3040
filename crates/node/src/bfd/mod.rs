//! Bidirectional forwarding detection: finds out within milliseconds whether a
//! neighbouring router is alive (RFC 5880), over one hop (RFC 5881), in asynchronous
//! mode.
//!
//! Theory of operation. Both sides send small packets to each other, as often as the
//! slower of sender and receiver allows. A side that has heard nothing for a *detection
//! time*, which is the sender's multiplier times that interval, takes the other for dead.
//! A one-way cut is noticed as soon, because a side also says that it hears nothing. A
//! session comes up in three steps (Down, Init, Up: RFC 5880, section 6.2), and Up means
//! that both sides hear each other. Before that, packets go once a second. A change of an
//! interval is confirmed by a poll and its answer before a side relies on it (section
//! 6.8.3). A shorter interval of the sender, or a longer one of the receiver, needs no
//! confirmation.
//!
//! Packets from beyond the link are refused: their TTL shows that a router has forwarded
//! them (RFC 5881, section 5), which the caller checks. Keys ([`Key`]) protect against
//! attackers on the link: each packet is signed and numbered, and numbers do not come
//! again.
//!
//! A session outlives its process if its [`Memory`] does: the next incarnation continues
//! under the same discriminator and with the next number. If the pause was shorter than
//! the other side's detection time, neither side goes down. A poll asks at once whether
//! the other side agrees.
//!
//! Left out: echo and demand mode of this side's own (the other side's is honoured, RFC
//! 5880, section 6.6), keyed MD5 (section 4.3 advises against it), several keys at a
//! time, several hops (RFC 5883).
//!
//! In: UDP payloads, the time, random numbers. Out: UDP payloads, the time of the next
//! one, changes of state. Never: the consequences of a change.

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
    /// No control packet that a session could use.
    Malformed(Malformed),
    /// The named session does not exist, or the packet names none and its source has
    /// none.
    NoSession,
    /// The packet is unsigned, signed although no key is configured, or signed with
    /// another key.
    Unauthenticated,
    /// The sequence number has come before, or is too far ahead.
    Replayed,
}
