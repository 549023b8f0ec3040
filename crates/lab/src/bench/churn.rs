//! Flows that begin and end: so many are there at a time, each has its share of packets, and the next one takes its place.
//!
//! Stamps advance by as much per packet that flows expire as quickly as they begin, and fill half of a large table. So they go up to some hundred times as quickly as time, by how long flows are: what is to be done
//! every so often has to be told ([`Lengths::haste`]), or it is done by every other packet.

use super::traffic;
use holdfast_sim::Random;
use holdfast_wire::Packet;

/// Flows that are there at a time.
const ACTIVE: usize = 1000;
/// So long after its last packet a flow ends, ns: of a UDP flow, in every function.
const LIFETIME: u64 = 300_000_000_000;
/// Time passes no quicker than this, ns by packet: what waits for a moment is not to seem to wait for seconds.
const LONGEST_STEP: u64 = 200_000;
/// From one packet to the next where they come as quickly as they are taken, about, ns.
const APART: u64 = 500;
/// Packets of a flow that is long, and of one that is short (RESCue, section VI).
const LONG: u32 = 1000;
const SHORT: u32 = 10;

/// How many packets flows have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lengths {
    /// A thousand.
    Long,
    /// Ten.
    Short,
    /// Of five flows one has a thousand, the others ten.
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

    /// From one stamp to the next, ns: see [`Churn::new`].
    fn step(self, flows: usize) -> u64 {
        let silent = (flows / 2).saturating_sub(ACTIVE).max(1) as u64;
        (LIFETIME / silent / self.mean()).min(LONGEST_STEP)
    }

    /// How many times as quickly as time stamps go, where packets come as quickly as they are taken; 1 if they go more slowly.
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

/// See the module.
pub(crate) struct Churn<const L: usize> {
    lengths: Lengths,
    random: Random,
    active: Vec<Active<L>>,
    /// The next flow's number.
    next: usize,
    /// Ns between two packets.
    pub(crate) step: u64,
}

impl<const L: usize> Churn<L> {
    /// The first flow has this number; those that are there, and those that have not expired, are half of `flows`, if that is 151,000 at least.
    pub(crate) fn new(lengths: Lengths, first: usize, flows: usize) -> Churn<L> {
        let mut random = Random::new(7);
        let mut churn =
            Churn { lengths, active: Vec::with_capacity(ACTIVE), next: first, step: lengths.step(flows), random: Random::new(8) };
        for _ in 0..ACTIVE {
            // As if they had been there for a while.
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

    /// Flows that have begun, from the first number on.
    pub(crate) fn begun(&self) -> usize {
        self.next
    }

    /// The next packet, of any of the flows. True if it is its first.
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
