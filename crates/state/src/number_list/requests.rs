//! Requests of instances for indexes: assigned in turn, spared by others, or denied.

use super::{Instance, List, Output, Slot, State};
use crate::control::{Message, Opcode, QUESTIONS_AT_MOST};

impl List {
    pub(super) fn request(&mut self, slot: Slot, count: u32, out: &mut Vec<Output>) {
        let limit = self.limits.credit;
        let Some(instance) = self.instance(slot) else { return };
        instance.requests = (instance.requests + 1) & QUESTIONS_AT_MOST;
        let (before, credit, requests) = (instance.wanted, instance.credit, instance.requests);
        instance.wanted = before.saturating_add(count).min(limit.saturating_sub(instance.credit));
        if before == 0 && instance.wanted > 0 {
            self.wanting.push_back(slot);
        }
        self.serve(out);
        // An instance whose credit is full is also told that it gets no more.
        let now = self.now;
        if !self.may_be_none()
            && let Some(instance) = self.instance(slot)
            && instance.credit.saturating_sub(credit) < count
        {
            if instance.wanted == 0 {
                return self.say(slot, Opcode::NoMoreIndex, requests, out);
            }
            instance.unanswered.get_or_insert(now);
            self.unanswered += 1;
            self.answer(out);
        }
    }

    /// True while the list does not know yet which indexes are free.
    fn may_be_none(&self) -> bool {
        self.past.is_some_and(|past| self.slots.contains_key(&past)) || self.settles_at.is_some()
    }

    /// The unclaimed indexes of the past have rested: a request that is still open is
    /// answered.
    pub(super) fn settle_past(&mut self) {
        if self.settles_at.is_some_and(|at| at <= self.now) {
            self.settles_at = None;
            let now = self.now;
            for instance in
                self.instances.iter_mut().flatten().filter(|instance| instance.wanted > 0)
            {
                instance.unanswered = Some(now);
                self.unanswered += 1;
            }
        }
    }

    /// Assigns free indexes to the instances that want some, in turn; those come first
    /// for which others were asked to spare.
    pub(super) fn serve(&mut self, out: &mut Vec<Output>) {
        while !self.wanting.is_empty() {
            let Some(index) = self.free.pop_front() else { return };
            if self.entries[index as usize].state != State::Free {
                continue;
            }
            let is_first = |slot: &Slot| {
                matches!(
                    &self.instances[usize::from(*slot)],
                    Some(Instance { unanswered: Some(_), .. })
                )
            };
            let at = if self.unanswered == 0 {
                0
            } else {
                self.wanting.iter().position(is_first).unwrap_or(0)
            };
            let Some(slot) = self.wanting.remove(at) else { return };
            self.turn(index, State::Credit, slot);
            self.say(slot, Opcode::IndexAssignment, index, out);
            let is_served = self.instance(slot).is_none_or(|instance| {
                instance.wanted -= 1;
                instance.asked_at = None;
                instance.wanted == 0
            });
            if !is_served {
                self.wanting.push_back(slot);
            }
        }
    }

    /// Denies open requests once no instance can be expected to spare an index. Instances
    /// with unused indexes and no open request of their own are asked to spare some.
    pub(super) fn answer(&mut self, out: &mut Vec<Output>) {
        if self.unanswered == 0 {
            return;
        }
        let (now, timeout, number) = (self.now, self.limits.timeout, self.number);
        let is_over = |at: u64| now >= at.saturating_add(timeout);
        self.refuse(is_over, out);
        let mut may_come = false;
        let others = self
            .instances
            .iter_mut()
            .flatten()
            .filter(|instance| !instance.is_dead && instance.unanswered.is_none());
        for instance in others.filter(|_| self.unanswered > 0) {
            let may_spare = match instance.asked_at {
                None => instance.credit > 0 || instance.may_have_more,
                Some(at) => is_over(at) && instance.credit > 0,
            };
            if may_spare {
                instance.asked_at = Some(now);
                out.push(Output {
                    to: instance.peer,
                    message: Message::new(Opcode::Spare, number, 0),
                });
            }
            may_come |= (instance.credit > 0 || instance.may_have_more)
                && instance.asked_at.is_some_and(|at| !is_over(at));
        }
        if !may_come {
            self.refuse(|_| true, out);
        }
    }

    /// Denies requests that are not served in full and have waited long enough.
    fn refuse(&mut self, is_enough: impl Fn(u64) -> bool, out: &mut Vec<Output>) {
        self.unanswered = 0;
        for instance in self.instances.iter_mut().flatten() {
            let Some(since) = instance.unanswered else { continue };
            if instance.wanted > 0 && !is_enough(since) {
                self.unanswered += 1;
                continue;
            }
            instance.unanswered = None;
            if instance.wanted > 0 {
                out.push(Output {
                    to: instance.peer,
                    message: Message::new(Opcode::NoMoreIndex, self.number, instance.requests),
                });
            }
        }
    }
}
