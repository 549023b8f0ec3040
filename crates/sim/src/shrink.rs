//! Makes a failing world small: leaves out everything that it does not need to fail.
//!
//! In: a world that breaks an invariant. Out: one that breaks the same invariant with as
//! little as could be found (delta debugging: halves first, then smaller parts, then one
//! by one; Zeller and Hildebrandt: Simplifying and Isolating Failure-Inducing Input).

use crate::plan::{Habits, How, Plan, Step};
use crate::script::{Expect, Script};
use crate::world::World;
use crate::{Planted, Scenario};

/// Most worlds that are run to shrink one failure.
const BUDGET: usize = 3_000;

struct Shrinking {
    invariant: &'static str,
    scenario: Scenario,
    plan: Plan,
    left: usize,
}

impl Shrinking {
    fn breaks(&mut self, scenario: Scenario, plan: &Plan) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let outcome = World::planned(scenario, plan.clone(), false).play();
        outcome.report.violations.iter().any(|found| found.invariant == self.invariant)
    }

    /// Keeps the plan if it breaks the same invariant.
    fn try_plan(&mut self, plan: Plan) -> bool {
        let breaks = plan != self.plan && self.breaks(self.scenario, &plan);
        if breaks {
            self.plan = plan;
        }
        breaks
    }

    /// Leaves out the items of a list that the failure does not need. True if there were
    /// any.
    fn thin<T: Clone>(
        &mut self,
        list: impl Fn(&mut Plan) -> &mut Vec<T>,
        may_go: impl Fn(&T) -> bool,
    ) -> bool {
        let mut has_changed = false;
        let mut size = list(&mut self.plan).len().next_power_of_two();
        while size > 0 {
            let mut at = 0;
            while at < list(&mut self.plan).len() {
                let mut plan = self.plan.clone();
                let mut number = 0;
                list(&mut plan).retain(|item| {
                    number += 1;
                    !(at + 1..=at + size).contains(&number) || !may_go(item)
                });
                match self.try_plan(plan) {
                    true => has_changed = true,
                    false => at += size,
                }
            }
            size /= 2;
        }
        has_changed
    }

    fn simplify(&mut self, change: impl Fn(&mut Plan)) -> bool {
        let mut plan = self.plan.clone();
        change(&mut plan);
        self.try_plan(plan)
    }

    fn habits(&mut self) -> bool {
        let mut has_changed = self.simplify(|plan| (plan.calm, plan.habits) = (true, None));
        for link in 0..2 {
            let changes: [fn(&mut Habits); 6] = [
                |habits| *habits = Habits::CALM,
                |habits| habits.delay = Habits::CALM.delay,
                |habits| habits.lose = 0,
                |habits| habits.double = 0,
                |habits| habits.stray = 0,
                |habits| habits.stale = 0,
            ];
            for change in changes {
                has_changed |= self.simplify(|plan| {
                    if let Some(habits) = &mut plan.habits {
                        change(&mut habits[link]);
                    }
                });
            }
        }
        has_changed
    }

    fn round(&mut self) -> bool {
        let mut has_changed = self.thin(|plan| &mut plan.clocks, |_| true);
        has_changed |= self.simplify(|plan| plan.ring = 0);
        has_changed |= self.simplify(|plan| plan.hosts = 1);
        has_changed |= self.simplify(|plan| plan.switches = 1);
        has_changed |= self.simplify(|plan| plan.networks = 1);
        has_changed |= self.simplify(|plan| plan.damaged = 0);
        has_changed |= self.simplify(|plan| (plan.sealed, plan.networks) = (false, 1));
        for runtimes in [2, 3] {
            has_changed |= self.simplify(|plan| plan.runtimes = plan.runtimes.min(runtimes));
        }
        for at in 0..self.plan.connections.len() {
            for packets in [1, 2, 5, 10, 20] {
                has_changed |= self.simplify(|plan| {
                    plan.connections[at].packets = plan.connections[at].packets.min(packets)
                });
            }
            has_changed |= self.simplify(|plan| plan.connections[at].large = false);
            has_changed |= self.simplify(|plan| {
                let one = &mut plan.connections[at];
                (one.start, one.pause) = (rounded(one.start), rounded(one.pause));
            });
        }
        for at in 0..self.plan.steps.len() {
            has_changed |= self.simplify(|plan| {
                let when = &mut plan.steps[at].when;
                if let crate::When::Time(time) | crate::When::Safe(time) = when {
                    *time = rounded(*time);
                }
            });
        }
        has_changed
    }
}

/// Rounds a time down to a whole millisecond.
fn rounded(time: u64) -> u64 {
    time / 1_000_000 * 1_000_000
}

/// The smallest world found that breaks the first invariant that this seed's world
/// breaks. `None` if it breaks none, or if it breaks none when its plan is run.
pub fn shrink(scenario: Scenario) -> Option<Script> {
    let outcome = World::new(scenario, false).play();
    let invariant = outcome.report.violations.first()?.invariant;
    let mut shrinking = Shrinking { invariant, scenario, plan: outcome.plan.clone(), left: BUDGET };
    if !shrinking.breaks(scenario, &outcome.plan) {
        return None;
    }
    loop {
        let mut has_changed =
            shrinking.thin(|plan| &mut plan.steps, |step: &Step| step.how != How::Heal);
        has_changed |= shrinking.thin(|plan| &mut plan.connections, |_| true);
        has_changed |= shrinking.thin(|plan| &mut plan.rules, |_| true);
        has_changed |= shrinking.habits();
        if shrinking.scenario.tight
            && shrinking.breaks(Scenario { tight: false, ..scenario }, &shrinking.plan.clone())
        {
            shrinking.scenario.tight = false;
            has_changed = true;
        }
        if shrinking.scenario.served
            && shrinking.breaks(Scenario { served: false, ..scenario }, &shrinking.plan.clone())
        {
            shrinking.scenario.served = false;
            has_changed = true;
        }
        has_changed |= shrinking.round();
        if !has_changed || shrinking.left == 0 {
            break;
        }
    }
    let Shrinking { scenario, plan, .. } = shrinking;
    let is_planted = scenario.planted != Planted::default();
    // A script of a product bug expects the bug to be mended. A planted fault must be
    // found.
    let expects =
        if is_planted { vec![Expect::Violation(invariant.to_owned())] } else { Vec::new() };
    Some(Script {
        name: String::new(),
        scenario: Scenario { quiet: true, ..scenario },
        plan,
        expects,
    })
}
