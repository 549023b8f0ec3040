//! When flows end: a wheel of lists through the flow actors themselves.
//!
//! A packet only writes its flow's deadline. The wheel looks at a flow when the deadline that it was filed under has come, and files
//! it again if a packet has moved it away meanwhile. If one has brought it closer, which only the end of a connection does, it is filed anew at once. Time is the stamped time of packets and ticks, never a clock.

use holdfast_protection::flows::{Flows, NO_SLOT, Slot, flag, role};

/// Stamped time per step of the wheel: 2^27 ns, about 134 ms.
const STEP_SHIFT: u32 = 27;
const STEPS: usize = 4096;

/// See the module.
pub(crate) struct Wheel {
    lists: Vec<Slot>,
    at: u64,
}

impl Wheel {
    pub(crate) fn new() -> Wheel {
        Wheel { lists: vec![NO_SLOT; STEPS], at: 0 }
    }

    /// Files a flow under its deadline. A flow is filed once, from when it is owned until it ends or leaves.
    pub(crate) fn file(&mut self, flows: &mut Flows, slot: Slot) {
        let due = (flows.header(slot).expires_at >> STEP_SHIFT).max(self.at + 1).min(self.at + STEPS as u64 - 1);
        let list = due as usize % STEPS;
        let next = core::mem::replace(&mut self.lists[list], slot);
        let header = flows.header_mut(slot);
        (header.timer_next, header.timer_before, header.timer_list) = (next, NO_SLOT, list as u32);
        if next != NO_SLOT {
            flows.header_mut(next).timer_before = slot;
        }
    }

    /// Files a flow anew whose deadline has come closer than the one that it is filed under. One that is not filed stays so.
    #[cold]
    pub(crate) fn bring_forward(&mut self, flows: &mut Flows, slot: Slot) {
        let header = flows.header(slot);
        if header.timer_list == NO_SLOT {
            return;
        }
        let steps = STEPS as u64;
        let filed = self.at + (u64::from(header.timer_list) + steps - self.at % steps) % steps;
        if (header.expires_at >> STEP_SHIFT).max(self.at + 1) < filed {
            self.remove(flows, slot);
            self.file(flows, slot);
        }
    }

    /// Takes a flow out that is owned no more before its time: its slot may be used again. One that is not filed stays so.
    pub(crate) fn remove(&mut self, flows: &mut Flows, slot: Slot) {
        let header = flows.header_mut(slot);
        let (next, before, list) = (header.timer_next, header.timer_before, header.timer_list);
        if list == NO_SLOT {
            return;
        }
        (header.timer_next, header.timer_before, header.timer_list) = (NO_SLOT, NO_SLOT, NO_SLOT);
        match before {
            NO_SLOT => self.lists[list as usize] = next,
            before => flows.header_mut(before).timer_next = next,
        }
        if next != NO_SLOT {
            flows.header_mut(next).timer_before = before;
        }
    }

    /// Moves to `now` and calls `expired` for flows whose deadline has come, at most about `limit` of them.
    /// What is left over comes with the next call.
    pub(crate) fn advance(&mut self, flows: &mut Flows, now: u64, limit: usize, mut expired: impl FnMut(Slot)) {
        let target = now >> STEP_SHIFT;
        if self.at == 0 || target > self.at + STEPS as u64 {
            // The first stamp ever, or a pause longer than the wheel: every list is due at most once.
            self.at = self.at.max(target.saturating_sub(STEPS as u64));
        }
        let mut budget = limit;
        while self.at < target && budget > 0 {
            self.at += 1;
            let mut slot = core::mem::replace(&mut self.lists[self.at as usize % STEPS], NO_SLOT);
            while slot != NO_SLOT {
                let header = flows.header_mut(slot);
                let next = header.timer_next;
                (header.timer_next, header.timer_before, header.timer_list) = (NO_SLOT, NO_SLOT, NO_SLOT);
                if header.role == role::OWNER && header.expires_at <= now && header.flags & flag::MOVING == 0 {
                    budget = budget.saturating_sub(1);
                    expired(slot);
                } else if header.role == role::OWNER {
                    self.file(flows, slot);
                }
                slot = next;
            }
        }
    }
}
