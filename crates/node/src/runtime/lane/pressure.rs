//! Eviction: flows that end before their time when tables are nearly full, so that new
//! ones find room.
//!
//! Theory of operation. Two tables may be short: this chain's, and the switch's, whose
//! fill the switch tells by its ticks. From three quarters on, flows of low standing live
//! shorter: half-open, unreplied, closing ones. At nine tenths they live a sixteenth of
//! their time. Flows above nine tenths are too many, and as many end now. Closing flows
//! go first, because both ends are done with them. Next are half-open flows whose
//! handshake has not gone on for a second. The longest idle ones among the other
//! half-open and the unreplied flows follow. At last go flows of protocols without a
//! handshake that have been idle for a sixteenth of their time. Neither a table full of
//! closed connections nor one full of unreplied datagrams may cost a connection that is
//! being opened. A flow that has only just begun belongs to no flood, whatever its
//! protocol. An established flow never makes room for another. If that is not enough, the
//! table is full, and new flows are refused.
//!
//! A search looks at a bounded number of flows. Flows that may not end must not hide
//! others behind them. For a time, later searches therefore begin behind flows that were
//! looked at in vain.
//!
//! An evicted flow ends as any flow does: its copies, its route and its leases go with
//! it. If its state is paged out, it ends when the state has come, unless a packet of it
//! comes first. Meanwhile it counts as ended, so no other flow ends in its place. The
//! decision depends on no packet and is the owner's alone, so a replay never depends on
//! it.
//!
//! In: the fill of both tables, the stamped time. Out: flows that end. Never: a look at
//! more than [`LOOKS`] flows in a turn.

use super::{EXPIRE_BUDGET, Lane, Shared, Slot, flag};
use crate::prefetch::AHEAD;
use crate::runtime::timers::{Kind, SearchCursor};
use holdfast_nf::Standing;
use holdfast_protection::FlowRef;
use holdfast_protection::flows::{ActorHeader, Life};
use holdfast_wire::fault::{Fault, is_planted};

/// Time-outs become shorter from here on, in 1/1000 of the table.
const SHORTER_FROM: usize = 750;
/// Flows above this are too many, in 1/1000 of the table.
const NEARLY_FULL: usize = 900;
/// The least share of its time-out that a flow keeps, in 1/1000.
const SHORTEST: u64 = 1000 / 16;
/// A handshake that goes on does so in less time, because after a second its segments are
/// repeated (RFC 6298, section 2). Stamped time, ns.
const HANDSHAKE: u64 = 1_000_000_000;
/// Flows of a lane that one turn looks at.
pub(super) const LOOKS: usize = 4 * EXPIRE_BUDGET;
/// Interval between two searches for flows that live shorter, also after a search that
/// has not found enough: stamped time, ns, as a power of two.
const LOOK_SHIFT: u32 = 23;
/// Searches begin with the first flow again after so long: stamped time, ns, as a power
/// of two.
const SWEEP_SHIFT: u32 = 30;
/// Flows that may wait for their state to come so that they can end.
const MAX_AWAITED: usize = LOOKS;

/// A class of flows in which a turn searches for some that may end.
#[derive(Clone, Copy)]
enum Step {
    /// Flows of this standing that have been idle for so long, ns.
    Of(Standing, u64),
    /// Half-open and unreplied flows, the longest idle first.
    Idlest,
}

/// A lane's work on tables that are nearly full.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// The switch's tick that was handled last.
    tick: u32,
    /// Flows that should end because the switch's table is short.
    asked: usize,
    /// The time of the last search, and whether it found fewer flows than are too many.
    looked_at: u64,
    is_stuck: bool,
    /// Places where the next search begins, by kind: behind flows that were looked at in
    /// vain since `swept_at`.
    next: [SearchCursor; Kind::COUNT],
    swept_at: u64,
    /// Flows that end when their states have come.
    awaited: Vec<FlowRef>,
}

impl Default for Pressure {
    fn default() -> Pressure {
        let next = [SearchCursor::START; Kind::COUNT];
        Pressure {
            tick: 0,
            asked: 0,
            looked_at: 0,
            is_stuck: false,
            next,
            swept_at: 0,
            awaited: Vec::with_capacity(MAX_AWAITED),
        }
    }
}

impl Lane {
    /// Fill of the table, in 1/1000.
    pub(crate) fn fill(&self) -> usize {
        self.flows.owned() * 1000 / self.owned_limit.max(1)
    }

    /// Ends flows before their time if a table is nearly full. Call it before the turn's
    /// packets, because later their changes are not committed yet.
    #[inline]
    pub(crate) fn relieve(&mut self, shared: &mut Shared) {
        let side = &shared.sides[self.side];
        let of_switch = side.fill;
        let has_room = self.flows.owned() * 1000 < SHORTER_FROM * self.owned_limit.max(1);
        if has_room && of_switch < SHORTER_FROM || is_planted(Fault::ForgetsNothing) {
            self.pressure.asked = 0;
            return;
        }
        if self.pressure.tick != side.ticks {
            // The runtime's part of the flows that are too many at the switch.
            self.pressure.tick = side.ticks;
            let asked =
                self.flows.owned() * of_switch.saturating_sub(NEARLY_FULL) / of_switch.max(1);
            self.pressure.asked = asked.saturating_sub(self.still_awaited());
        }
        self.relieve_of(self.fill().max(of_switch), shared);
    }

    #[inline(never)]
    fn relieve_of(&mut self, fill: usize, shared: &mut Shared) {
        let now = shared.sides[self.side].now;
        if self.pressure.is_stuck && now >> LOOK_SHIFT == self.pressure.looked_at {
            return;
        }
        let limit = self.owned_limit;
        let most = limit - limit / 10 + self.still_awaited();
        let excess = self.flows.owned().saturating_sub(most).max(self.pressure.asked);
        if excess == 0 && now >> LOOK_SHIFT == self.pressure.looked_at {
            return;
        }
        self.pressure.looked_at = now >> LOOK_SHIFT;
        if core::mem::replace(&mut self.pressure.swept_at, now >> SWEEP_SHIFT) != now >> SWEEP_SHIFT
        {
            self.pressure.next.fill(SearchCursor::START);
        }
        let above = (fill.min(NEARLY_FULL) - SHORTER_FROM) as u64;
        let share = 1000 - above * (1000 - SHORTEST) / (NEARLY_FULL - SHORTER_FROM) as u64;
        let (mut excess, mut looks) = (excess.min(EXPIRE_BUDGET), LOOKS);
        let first = match is_planted(Fault::ForgetsEstablished) {
            true => Step::Of(Standing::Established, 0),
            false => Step::Of(Standing::Closing, 0),
        };
        let order = [
            first,
            Step::Of(Standing::HalfOpen, HANDSHAKE),
            Step::Of(Standing::Unreplied, u64::MAX),
            Step::Idlest,
            Step::Of(Standing::Answered, 0),
        ];
        let mut found = core::mem::take(&mut self.due);
        for step in order {
            match step {
                Step::Idlest | Step::Of(Standing::Answered, _) if excess == 0 => break,
                Step::Idlest => self.find_idlest(&mut excess, &mut looks, &mut found),
                Step::Of(standing, idle) => {
                    for kind in Kind::of(standing) {
                        self.pressure.next[kind.index()] = self.find_forgettable(
                            (kind, standing),
                            (now, share, idle),
                            (&mut excess, &mut looks),
                            &mut found,
                        );
                    }
                }
            }
            for slots in found.chunks(AHEAD) {
                // No packet has touched these states and keys for long.
                core::hint::black_box(self.flows.touch_blocks(slots.iter().copied()));
                self.expect_removals(slots.iter().copied());
                slots.iter().for_each(|slot| self.forget(*slot, shared));
            }
            found.clear();
        }
        self.due = found;
        self.pressure.is_stuck = excess > 0;
    }

    /// The number of flows that end as soon as their states have come. Drops entries of
    /// which this is not true any more.
    fn still_awaited(&mut self) -> usize {
        let Lane { flows, wheel, pressure, .. } = self;
        pressure
            .awaited
            .retain(|flow| flows.get_owned(*flow).is_some_and(|header| wheel.awaits_state(header)));
        pressure.awaited.len()
    }

    /// Finds flows of one kind that are too many and have been `idle` for that time, or
    /// whose shortened time is over. Also finds flows that are filed wrongly by now.
    /// Returns the place where the next search begins.
    fn find_forgettable(
        &self,
        (kind, standing): (Kind, Standing),
        (now, share, idle): (u64, u64, u64),
        (excess, looks): (&mut usize, &mut usize),
        found: &mut Vec<Slot>,
    ) -> SearchCursor {
        let from = self.pressure.next[kind.index()];
        let mut is_in_vain = from != SearchCursor::START;
        let stopped = self.wheel.visit(&self.flows, kind, from, |slot| {
            if *looks == 0 || found.len() == EXPIRE_BUDGET {
                return false;
            }
            *looks -= 1;
            let header = self.flows.header(slot);
            if !self.wheel.is_right(header) {
                found.push(slot);
                return true;
            }
            if self.is_busy(slot) || self.is_one_too_many(slot, found.len()) {
                is_in_vain = true;
                return true;
            }
            let is_over = has_idled(
                header,
                now,
                if standing == Standing::Answered { SHORTEST } else { share },
            );
            if standing == Standing::Answered && !is_over {
                is_in_vain = true;
                return *excess > 0;
            }
            if !is_over && (*excess == 0 || now.saturating_sub(header.last_stamp) < idle) {
                return false;
            }
            *excess = excess.saturating_sub(1);
            found.push(slot);
            standing != Standing::Answered || *excess > 0
        });
        if is_in_vain { stopped } else { SearchCursor::START }
    }

    /// Finds the longest idle half-open and unreplied flows, as many as are too many, and
    /// flows that are filed wrongly by now. Each kind that has flows gets a part of the
    /// looks. If a kind's looks did not suffice, the flows behind are unknown. A flow of
    /// another kind then ends only if it has had no packet since the last flow that was
    /// seen there.
    fn find_idlest(&self, excess: &mut usize, looks: &mut usize, found: &mut Vec<Slot>) {
        let kinds = || {
            Kind::of(Standing::HalfOpen)
                .chain(Kind::of(Standing::Unreplied))
                .filter(|kind| !self.wheel.is_empty(*kind))
        };
        let (mut wrong, mut left) = (0, kinds().count());
        let mut cut = [u64::MAX; Kind::COUNT];
        for kind in kinds() {
            let (mut right, mut seen, mut is_cut) = (0, 0, false);
            let least = *looks - *looks / left;
            left -= 1;
            self.wheel.visit(&self.flows, kind, SearchCursor::START, |slot| {
                is_cut = *looks <= least;
                if is_cut || right == *excess {
                    return false;
                }
                *looks -= 1;
                let header = self.flows.header(slot);
                let is_right = self.wheel.is_right(header);
                seen = if is_right { header.last_stamp.max(seen) } else { seen };
                if !is_right || !self.is_busy(slot) && !self.is_one_too_many(slot, found.len()) {
                    found.push(slot);
                    (right, wrong) =
                        (right + usize::from(is_right), wrong + usize::from(!is_right));
                }
                true
            });
            if is_cut {
                cut[kind.index()] = seen;
            }
        }
        found.retain(|slot| {
            let header = self.flows.header(*slot);
            let own = self.wheel.kind_of(header).map(Kind::index);
            let mut others = cut.iter().enumerate().filter(|(kind, _)| Some(*kind) != own);
            !self.wheel.is_right(header) || others.all(|(_, cut)| header.last_stamp <= *cut)
        });
        // Flows that are filed wrongly do not end.
        found.sort_unstable_by_key(|slot| {
            let header = self.flows.header(*slot);
            if self.wheel.is_right(header) { header.last_stamp } else { 0 }
        });
        found.truncate(wrong + *excess);
        *excess -= found.len() - wrong;
    }

    /// True if the flow would end only once its state has come, and the most flows that
    /// may wait for that already do.
    fn is_one_too_many(&self, slot: Slot, found: usize) -> bool {
        !self.flows.is_present(slot) && self.pressure.awaited.len() + found >= MAX_AWAITED
    }

    /// True if work on the flow is under way, so it must not end yet.
    fn is_busy(&self, slot: Slot) -> bool {
        let header = self.flows.header(slot);
        header.flags & IN_HAND != 0 || header.life() != Life::Owned || header.parked > 0
    }

    /// Ends a flow before its time, or files it anew if it was filed wrongly.
    fn forget(&mut self, slot: Slot, shared: &mut Shared) {
        if !self.wheel.is_right(self.flows.header(slot)) {
            return self.wheel.file_anew(&mut self.flows, slot);
        }
        self.wheel.remove(&mut self.flows, slot);
        self.pressure.asked = self.pressure.asked.saturating_sub(1);
        if self.fetch(slot) {
            shared.forgotten += 1;
            self.expire_flow(slot, shared);
        } else {
            // Only the flow's state says what the flow has leased: it ends when the state
            // has come.
            self.pressure.awaited.push(self.flows.reference(slot));
            self.wheel.await_state(&mut self.flows, slot);
        }
    }
}

/// Flags of a flow that must not end yet: work on it is under way, or it has no state
/// yet.
const IN_HAND: u8 = flag::TOUCHED | flag::DIRTY | flag::EMPTY;

/// True if the flow has been idle for such a share (1/1000) of the time that it was
/// given.
fn has_idled(header: &ActorHeader, now: u64, share: u64) -> bool {
    let given = header.expires_at.saturating_sub(header.last_stamp) / 1000;
    now.saturating_sub(header.last_stamp) >= given * share
}
