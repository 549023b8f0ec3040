//! Everything that a function may know besides the packet and its state.

use core::ops::{Deref, DerefMut};
use holdfast_wire::FlowKey;

/// The direction of a packet in its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The direction of the flow's first packet: from the side that opened the
    /// connection.
    Forward,
    /// The opposite direction: replies, and ICMP errors about forward packets.
    Reverse,
}

/// The sequence numbers that one end of a TCP connection may expect next, as far as the
/// middle knows: `least` to `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// The end's highest acknowledgement number.
    pub least: u32,
    /// The number behind the last byte that has passed towards the end.
    pub most: u32,
}

/// How far a flow has got, as far as the functions that follow its connection know. A
/// nearly full flow table evicts the lowest standing first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Standing {
    /// No reply yet, in a protocol without a handshake.
    #[default]
    Unreplied = 0,
    /// A handshake is under way.
    HalfOpen = 1,
    /// Both sides have finished, or one has reset it.
    Closing = 2,
    /// Both sides have spoken, in a protocol without a handshake.
    Answered = 3,
    /// A handshake is complete.
    Established = 4,
}

impl Standing {
    /// All standings, by number.
    pub const ALL: [Standing; 5] = [
        Standing::Unreplied,
        Standing::HalfOpen,
        Standing::Closing,
        Standing::Answered,
        Standing::Established,
    ];
}

/// A function's view of the packet's circumstances, and its requests.
///
/// The context notes actions whose outcome would differ if the packet were processed
/// again: random numbers, fresh leases, reads of shared state that other flows change.
/// Protections that replay packets rely on it.
#[derive(Debug)]
pub struct Context {
    now: u64,
    key: FlowKey,
    direction: Direction,
    random: u64,
    nondeterministic: bool,
    lifetime: u64,
    ending: bool,
    standing: Option<Standing>,
}

impl Context {
    /// A context before its first packet. `seed` feeds [`Context::random`]; two contexts
    /// with one seed give one sequence.
    pub fn new(seed: u64) -> Context {
        Context {
            now: 0,
            key: FlowKey::default(),
            direction: Direction::Forward,
            random: seed,
            nondeterministic: false,
            lifetime: 0,
            ending: false,
            standing: None,
        }
    }

    /// Starts a packet: its stamp (ns), the key it came in with, and its direction. For
    /// the runtime.
    #[inline]
    pub fn begin(&mut self, now: u64, key: FlowKey, direction: Direction) {
        self.now = now;
        self.key = key;
        self.direction = direction;
        self.nondeterministic = false;
        self.lifetime = 0;
        self.ending = false;
        self.standing = None;
    }

    /// The packet's stamp: the time at which it came into the box, ns. The stamp is the
    /// same in a replay, and increases per flow.
    #[inline]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The packet's key as it came in, before any function changed the packet.
    #[inline]
    pub fn key(&self) -> &FlowKey {
        &self.key
    }

    /// The packet's direction.
    #[inline]
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// A random number. Marks the packet non-deterministic.
    pub fn random(&mut self) -> u64 {
        self.nondeterministic = true;
        // SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
        // Generators).
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Asks that the flow live `nanoseconds` from now without a further packet. The
    /// longest request of the chain's functions counts; without any, the flow keeps its
    /// deadline.
    #[inline]
    pub fn keep(&mut self, nanoseconds: u64) {
        self.lifetime = self.lifetime.max(nanoseconds);
    }

    /// Says how the flow stands. The highest standing that any function gives counts. If
    /// none gives one, the flow stands as before; if none ever has, its packets decide
    /// whether it is answered.
    #[inline]
    pub fn stand(&mut self, standing: Standing) {
        self.standing = self.standing.max(Some(standing));
    }

    /// Says that the flow is over: its deadline may come closer than an earlier request.
    /// A function that still needs the flow calls [`Context::keep`] for this packet, as
    /// always.
    #[inline]
    pub fn ending(&mut self) {
        self.ending = true;
    }

    /// Notes that the packet's outcome depends on values that a replay would not see
    /// again. Shared-state types call it.
    #[inline]
    pub fn mark_nondeterministic(&mut self) {
        self.nondeterministic = true;
    }

    /// True if processing the packet again could come out differently.
    #[inline]
    pub fn is_nondeterministic(&self) -> bool {
        self.nondeterministic
    }

    /// The longest lifetime requested for this packet's flow, ns; 0 without a request.
    /// For the runtime.
    #[inline]
    pub fn lifetime(&self) -> u64 {
        self.lifetime
    }

    /// The standing that functions have given the flow with this packet. For the runtime.
    #[inline]
    pub fn standing(&self) -> Option<Standing> {
        self.standing
    }

    /// True if a function said that the flow is over. For the runtime.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.ending
    }
}

/// The context of the packet that opens a flow. Leases and counts need it: a flow has the
/// same holdings from its beginning to its end.
#[derive(Debug)]
pub struct Opening<'a>(&'a mut Context);

impl<'a> Opening<'a> {
    pub(crate) fn new(cx: &'a mut Context) -> Opening<'a> {
        Opening(cx)
    }
}

impl Deref for Opening<'_> {
    type Target = Context;

    #[inline]
    fn deref(&self) -> &Context {
        self.0
    }
}

impl DerefMut for Opening<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Context {
        self.0
    }
}
