//! The ends of flows: a wheel of lists through the flow actors themselves, with one list
//! per step and kind of flows.
//!
//! A packet only writes its flow's deadline. The wheel looks at a flow when the deadline
//! under which it was filed has come, and files it again if a packet has moved the
//! deadline away meanwhile. A packet that brings it closer, which only the end of a
//! connection does, has the flow filed anew at once. Time is the stamped time of packets
//! and ticks, never a clock.
//!
//! A flow is filed under the standing that it has at that time. Unreplied flows are filed
//! by their lifetime, too. Among those of one [`Kind`] the flow with the first deadline
//! has been idle for longest, unless the deadline is beyond the wheel's reach. Packets
//! may change the standing and the deadline later. A search for flows of one kind,
//! earliest deadline first, files those anew whose standing or deadline has changed
//! ([`Wheel::is_right`]).

use holdfast_nf::Standing;
use holdfast_protection::flows::{ActorHeader, Flows, Life, NO_SLOT, Slot};

/// Stamped time per step of the wheel: 2^27 ns, about 134 ms.
const STEP_SHIFT: u32 = 27;
const STEPS: usize = 4096;
const SECOND: u64 = 1_000_000_000;
const WORDS: usize = STEPS / 64;
/// Lifetimes of unreplied flows that are told apart: of UDP, of ICMP and of other
/// protocols (RFC 4787, REQ-5; RFC 5508, REQ-2). Beyond these a flow is filed with the
/// nearest.
const LIFETIMES: usize = 3;
/// Lists of one step, which lie together because they are looked at together.
const STRIDE: usize = Kind::COUNT.next_power_of_two();
/// In place of a list: the flow ends as soon as its state, which is paged out, has come.
const WAITING: u32 = NO_SLOT - 1;

/// A class of flows: of one standing and, if that is unreplied, of one lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind(usize);

impl Kind {
    /// Number of kinds.
    pub(crate) const COUNT: usize = Standing::ALL.len() + LIFETIMES - 1;

    fn new(standing: Standing, lifetime: usize) -> Kind {
        Kind(if lifetime == 0 { standing as usize } else { Standing::ALL.len() + lifetime - 1 })
    }

    /// Kinds of one standing.
    pub(crate) fn of(standing: Standing) -> impl Iterator<Item = Kind> {
        let lifetimes = if standing == Standing::Unreplied { LIFETIMES } else { 1 };
        (0..lifetimes).map(move |lifetime| Kind::new(standing, lifetime))
    }

    /// The kind's number, below [`Kind::COUNT`].
    pub(crate) fn index(self) -> usize {
        self.0
    }

    fn is(self, standing: Standing) -> bool {
        self.0 == standing as usize
            || self.0 >= Standing::ALL.len() && standing == Standing::Unreplied
    }

    fn of_list(list: usize) -> Kind {
        Kind(list % STRIDE)
    }

    fn list(self, step: u64) -> usize {
        step as usize % STEPS * STRIDE + self.0
    }
}

/// See the module.
pub(crate) struct Wheel {
    /// First flows of the lists, by step and kind. The first flow of a list was filed
    /// last; its `timer_before` names the list's last flow.
    lists: Vec<Slot>,
    /// Steps that have a flow, a bit each, by kind.
    occupied: [[u64; WORDS]; Kind::COUNT],
    /// Lifetimes of the kinds of unreplied flows, seconds. A kind without flows takes
    /// any.
    lifetimes: [u64; LIFETIMES],
    at: u64,
}

/// The place from which a search among the flows of one kind goes on ([`Wheel::visit`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SearchCursor {
    step: u64,
    slot: Slot,
}

impl SearchCursor {
    /// The place before all flows.
    pub(crate) const START: SearchCursor = SearchCursor { step: 0, slot: NO_SLOT };
    /// The place behind all flows.
    pub(crate) const END: SearchCursor = SearchCursor { step: u64::MAX, slot: NO_SLOT };
}

impl Wheel {
    pub(crate) fn new() -> Wheel {
        let lists = vec![NO_SLOT; STEPS * STRIDE];
        Wheel { lists, occupied: [[0; WORDS]; Kind::COUNT], lifetimes: [0; LIFETIMES], at: 0 }
    }

    fn mark(&mut self, list: usize, is_occupied: bool) {
        let (kind, step) = (Kind::of_list(list), list / STRIDE);
        let word = &mut self.occupied[kind.0][step / 64];
        *word = *word & !(1 << (step % 64)) | u64::from(is_occupied) << (step % 64);
    }

    /// The kind under which a flow is filed now.
    fn kind(&mut self, header: &ActorHeader) -> Kind {
        let standing = header.standing();
        if standing != Standing::Unreplied {
            return Kind::new(standing, 0);
        }
        // Deadlines are rounded (`ActorHeader::set_deadline`), lifetimes are whole
        // seconds.
        let lifetime = (header.expires_at.saturating_sub(header.last_stamp) + SECOND / 2) / SECOND;
        let known = self.lifetimes.iter().position(|known| *known == lifetime);
        let at = known.unwrap_or_else(|| {
            match (0..LIFETIMES).find(|at| self.is_empty(Kind::new(standing, *at))) {
                Some(at) => {
                    self.lifetimes[at] = lifetime;
                    at
                }
                None => (0..LIFETIMES)
                    .min_by_key(|at| self.lifetimes[*at].abs_diff(lifetime))
                    .unwrap_or(0),
            }
        });
        Kind::new(standing, at)
    }

    /// The kind under which a flow is filed.
    pub(crate) fn kind_of(&self, header: &ActorHeader) -> Option<Kind> {
        self.is_filed(header).then(|| Kind::of_list(header.timer_list as usize))
    }

    /// True if no flow of this kind is filed.
    pub(crate) fn is_empty(&self, kind: Kind) -> bool {
        self.occupied[kind.0].iter().all(|word| *word == 0)
    }

    /// The step in which a deadline is looked at.
    fn step(&self, deadline: u64) -> u64 {
        (deadline >> STEP_SHIFT).max(self.at + 1).min(self.at + STEPS as u64 - 1)
    }

    /// The step in which this list is looked at.
    fn step_of(&self, list: u32) -> u64 {
        let steps = STEPS as u64;
        self.at + (u64::from(list) / STRIDE as u64 % steps + steps - self.at % steps) % steps
    }

    /// Files a flow under its deadline. A flow is filed once, from when it is owned until
    /// it ends or leaves.
    pub(crate) fn file(&mut self, flows: &mut Flows, slot: Slot) {
        let header = flows.header(slot);
        let list = self.kind(header).list(self.step(header.expires_at));
        let next = core::mem::replace(&mut self.lists[list], slot);
        let last = if next == NO_SLOT {
            slot
        } else {
            core::mem::replace(&mut flows.header_mut(next).timer_before, slot)
        };
        let header = flows.header_mut(slot);
        (header.timer_next, header.timer_before, header.timer_list) = (next, last, list as u32);
        self.mark(list, true);
    }

    /// Files a flow anew if its deadline is now closer than the one under which it is
    /// filed. A flow that is not filed stays so.
    #[cold]
    pub(crate) fn bring_forward(&mut self, flows: &mut Flows, slot: Slot) {
        let header = flows.header(slot);
        if self.is_filed(header) && self.step(header.expires_at) < self.step_of(header.timer_list) {
            self.file_anew(flows, slot);
        }
    }

    /// Files a flow under its present kind and deadline.
    pub(crate) fn file_anew(&mut self, flows: &mut Flows, slot: Slot) {
        self.remove(flows, slot);
        self.file(flows, slot);
    }

    /// Takes out a flow before its time, because it is not owned any more and its slot
    /// may be used again. A flow that is not filed stays so.
    pub(crate) fn remove(&mut self, flows: &mut Flows, slot: Slot) {
        let header = flows.header_mut(slot);
        let (next, before, list) = (header.timer_next, header.timer_before, header.timer_list);
        (header.timer_next, header.timer_before, header.timer_list) = (NO_SLOT, NO_SLOT, NO_SLOT);
        let list = list as usize;
        if list >= self.lists.len() {
            return;
        }
        let is_first = self.lists[list] == slot;
        if is_first {
            self.lists[list] = next;
            self.mark(list, next != NO_SLOT);
        } else {
            flows.header_mut(before).timer_next = next;
        }
        // The `timer_before` of a list's first flow names the list's last flow.
        let after = if next == NO_SLOT { self.lists[list] } else { next };
        if after != NO_SLOT {
            flows.header_mut(after).timer_before = before;
        }
    }

    fn is_filed(&self, header: &ActorHeader) -> bool {
        (header.timer_list as usize) < self.lists.len()
    }

    /// Has a flow that is not filed end as soon as its state, which is paged out, has
    /// come, unless a packet comes first.
    pub(crate) fn await_state(&self, flows: &mut Flows, slot: Slot) {
        flows.header_mut(slot).timer_list = WAITING;
    }

    /// True after [`Wheel::await_state`].
    pub(crate) fn awaits_state(&self, header: &ActorHeader) -> bool {
        header.timer_list == WAITING
    }

    /// True if the flow is in one of the lists.
    pub(crate) fn holds(&self, header: &ActorHeader) -> bool {
        !matches!(header.timer_list, NO_SLOT | WAITING)
    }

    /// True if the flow is filed right: under its standing, and under a deadline that no
    /// packet has moved away since. A deadline beyond the wheel's reach counts as right,
    /// because its list does not show whether it has moved.
    pub(crate) fn is_right(&self, header: &ActorHeader) -> bool {
        let (deadline, filed) = (self.step(header.expires_at), self.step_of(header.timer_list));
        let is_far = deadline == self.at + STEPS as u64 - 1;
        self.is_filed(header)
            && Kind::of_list(header.timer_list as usize).is(header.standing())
            && (deadline <= filed || is_far)
    }

    /// Visits flows that are filed under a kind, from a place on, until `visit` says no.
    /// Flows whose step comes first are visited first, and among these the one that was
    /// filed first. Returns the place of the flow at which `visit` said no, which is
    /// visited again from there.
    pub(crate) fn visit(
        &self,
        flows: &Flows,
        kind: Kind,
        from: SearchCursor,
        mut visit: impl FnMut(Slot) -> bool,
    ) -> SearchCursor {
        let mut next = from.step.max(self.at + 1);
        while let Some(step) = self.occupied_from(kind, next) {
            let list = kind.list(step);
            let first = self.lists[list];
            // A flow that is filed elsewhere by now gives no place in the list, so all
            // flows of the list are visited.
            let is_there = step == from.step
                && from.slot < flows.reach()
                && flows.header(from.slot).timer_list == list as u32;
            let mut slot = if is_there { from.slot } else { flows.header(first).timer_before };
            loop {
                if !visit(slot) {
                    return SearchCursor { step, slot };
                }
                if slot == first {
                    break;
                }
                slot = flows.header(slot).timer_before;
            }
            next = step + 1;
        }
        SearchCursor::END
    }

    /// The first step to come, from this one on, in which a flow of this kind is looked
    /// at.
    fn occupied_from(&self, kind: Kind, mut step: u64) -> Option<u64> {
        while step < self.at + STEPS as u64 {
            let at = step as usize % STEPS;
            let word = self.occupied[kind.0][at / 64] >> (at % 64);
            if word != 0 {
                let step = step + u64::from(word.trailing_zeros());
                // The word's end may belong to steps that are over.
                return (step < self.at + STEPS as u64).then_some(step);
            }
            step += 64 - at as u64 % 64;
        }
        None
    }

    /// Moves to `now` and calls `expired` for flows whose deadline has come, at most
    /// about `limit` of them. The rest comes with the next call.
    pub(crate) fn advance(
        &mut self,
        flows: &mut Flows,
        now: u64,
        limit: usize,
        mut expired: impl FnMut(Slot),
    ) {
        let target = now >> STEP_SHIFT;
        if self.at == 0 || target > self.at + STEPS as u64 {
            // This is the first stamp ever, or a pause longer than the wheel: every list
            // is due at most once.
            self.at = self.at.max(target.saturating_sub(STEPS as u64));
        }
        let mut budget = limit;
        while self.at < target && budget > 0 {
            self.at += 1;
            for kind in 0..Kind::COUNT {
                let list = Kind(kind).list(self.at);
                let mut slot = core::mem::replace(&mut self.lists[list], NO_SLOT);
                if slot == NO_SLOT {
                    continue;
                }
                self.mark(list, false);
                while slot != NO_SLOT {
                    let header = flows.header_mut(slot);
                    let next = header.timer_next;
                    (header.timer_next, header.timer_before, header.timer_list) =
                        (NO_SLOT, NO_SLOT, NO_SLOT);
                    if header.life() == Life::Owned && header.expires_at <= now {
                        budget = budget.saturating_sub(1);
                        expired(slot);
                    } else if header.life().is_owned() {
                        self.file(flows, slot);
                    }
                    slot = next;
                }
            }
        }
    }
}
