//! Flows that begin and end: a fixed number of flows is active, each sends its share of
//! packets, and then a new flow takes its place.
//!
//! Stamps advance per packet so far that flows expire as quickly as they begin, and fill
//! half of a large table. Depending on the flows' length, stamps run up to some hundred
//! times as fast as time. Periodic work must know this factor ([`Lengths::haste`]);
//! without it, every other packet would trigger that work.

use super::traffic;
use holdfast_sim::Random;
use holdfast_wire::Packet;

/// Flows that are active at a time.
const ACTIVE: usize = 1000;
/// A flow ends so long after its last packet, ns: the time-out of a UDP flow in every
/// function.
const LIFETIME: u64 = 300_000_000_000;
/// Upper limit of the stamps' advance, ns per packet: a short wait must not look like
/// seconds.
const LONGEST_STEP: u64 = 200_000;
/// Approximate time between two packets at full speed, ns.
const APART: u64 = 500;
/// Packets of a flow that is long, and of one that is short (RESCue, section VI).
const LONG: u32 = 1000;
const SHORT: u32 = 10;

/// The number of packets of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lengths {
    /// 1000 packets.
    Long,
    /// 10 packets.
    Short,
    /// 1000 packets in every fifth flow, 10 in the others.
    Empirical,
}

impl Lengths {
    pub(crate) const ALL: [Lengths; 3] = [Lengths::Long, Lengths::Short, Lengths::Empirical];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Lengths::Long => "long",
            Lengths::Short => "short",
            Lengths::Empirical => "empirical",
        }
    }

    fn mean(self) -> u64 {
        match self {
            Lengths::Long => LONG.into(),
            Lengths::Short => SHORT.into(),
            Lengths::Empirical => (u64::from(LONG) + 4 * u64::from(SHORT)) / 5,
        }
    }

    /// Advance of the stamps per packet, ns: see [`Churn::new`].
    fn step(self, flows: usize) -> u64 {
        let silent = (flows / 2).saturating_sub(ACTIVE).max(1) as u64;
        (LIFETIME / silent / self.mean()).min(LONGEST_STEP)
    }

    /// Speed of the stamps relative to time, while packets come at full speed; 1 if the
    /// stamps are slower than time.
    pub(crate) fn haste(self, flows: usize) -> u64 {
        (self.step(flows) / APART).max(1)
    }

    fn draw(self, random: &mut Random) -> u32 {
        match self {
            Lengths::Long => LONG,
            Lengths::Short => SHORT,
            Lengths::Empirical if random.range(0, 5) == 0 => LONG,
            Lengths::Empirical => SHORT,
        }
    }
}

struct Active<const L: usize> {
    frame: [u8; L],
    left: u32,
    is_new: bool,
}

/// Generates packets of flows that begin and end, as the module's head says.
pub(crate) struct Churn<const L: usize> {
    lengths: Lengths,
    random: Random,
    active: Vec<Active<L>>,
    /// The next flow's number.
    next: usize,
    /// Advance of the stamps per packet, ns.
    pub(crate) step: u64,
}

impl<const L: usize> Churn<L> {
    /// `first` is the first flow's number. Active flows and flows that have not expired
    /// yet fill half of `flows`, if `flows` is at least 151,000.
    pub(crate) fn new(lengths: Lengths, first: usize, flows: usize) -> Churn<L> {
        let mut random = Random::new(7);
        let mut churn = Churn {
            lengths,
            active: Vec::with_capacity(ACTIVE),
            next: first,
            step: lengths.step(flows),
            random: Random::new(8),
        };
        for _ in 0..ACTIVE {
            // Random remaining lengths, as if the flows had been active for a while.
            let length = lengths.draw(&mut random);
            let left = 1 + random.range(0, length.into()) as u32;
            let begun = churn.begin(left);
            churn.active.push(begun);
        }
        churn
    }

    fn begin(&mut self, left: u32) -> Active<L> {
        let frame = traffic::udp(traffic::client(self.next), traffic::VIRTUAL);
        self.next += 1;
        Active { frame, left, is_new: true }
    }

    /// Flows that have begun, counted from the first number on.
    pub(crate) fn begun(&self) -> usize {
        self.next
    }

    /// Receives the next packet, of any active flow. True if it is the flow's first.
    #[inline]
    pub(crate) fn receive(&mut self, packet: &mut Packet) -> bool {
        let at = self.random.range(0, self.active.len() as u64) as usize;
        if self.active[at].left == 0 {
            let length = self.lengths.draw(&mut self.random);
            self.active[at] = self.begin(length);
        }
        let active = &mut self.active[at];
        active.left -= 1;
        let fits = packet.copy_from(&active.frame);
        debug_assert!(fits);
        core::mem::take(&mut active.is_new)
    }
}
