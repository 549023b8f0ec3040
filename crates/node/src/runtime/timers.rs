//! When flows end: a wheel of lists through the flow actors themselves.
//!
//! A packet only writes its flow's deadline. The wheel looks at a flow when the deadline that it was filed under has come, and files
//! it again if a packet has moved it meanwhile. Time is the stamped time of packets and ticks, never a clock.

use holdfast_protection::flows::{Flows, NO_SLOT, Slot, role};

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

    /// Files a flow under its deadline. A flow is filed once, from when it is owned until it ends.
    pub(crate) fn file(&mut self, flows: &mut Flows, slot: Slot) {
        let header = flows.header_mut(slot);
        let due = (header.expires_at >> STEP_SHIFT).max(self.at + 1).min(self.at + STEPS as u64 - 1);
        let list = &mut self.lists[due as usize % STEPS];
        header.timer_next = *list;
        *list = slot;
    }

    /// Takes flows out that are owned no more before their time: their slots may be used again, and those filed behind them must stay
    /// in their lists. Rare, so the lists are searched.
    pub(crate) fn unlink(&mut self, flows: &mut Flows, gone: &[Slot]) {
        let mut open = gone.len();
        for list in &mut self.lists {
            if open == 0 {
                return;
            }
            let (mut before, mut slot) = (NO_SLOT, *list);
            while slot != NO_SLOT {
                let next = flows.header(slot).timer_next;
                if gone.contains(&slot) {
                    flows.header_mut(slot).timer_next = NO_SLOT;
                    match before {
                        NO_SLOT => *list = next,
                        before => flows.header_mut(before).timer_next = next,
                    }
                    open -= 1;
                } else {
                    before = slot;
                }
                slot = next;
            }
        }
    }

    /// Moves to `now` and calls `expired` for flows whose deadline has come, at most about `limit` of them.
    /// What is left over comes with the next call.
    pub(crate) fn advance(&mut self, flows: &mut Flows, now: u64, limit: usize, mut expired: impl FnMut(&mut Flows, Slot)) {
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
                let next = core::mem::replace(&mut header.timer_next, NO_SLOT);
                if header.role == role::OWNER && header.expires_at <= now {
                    budget = budget.saturating_sub(1);
                    expired(flows, slot);
                } else if header.role == role::OWNER {
                    self.file(flows, slot);
                }
                slot = next;
            }
        }
    }
}
