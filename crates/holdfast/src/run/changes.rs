//! What clients want changed: the manager passes it on to the coordinator, and tells how far it is.

use super::Manager;
use super::answers::known;
use holdfast_control::moves::Progress;
use holdfast_control::{Call, VERSION};
use holdfast_node::message::{Order, Refusal};
use serde_json::{Value, json};

/// What becomes of a client's request.
pub(super) enum Change {
    /// The answer.
    Known(Value),
    /// The coordinator was asked; the answer comes under this ticket.
    Asked(u32),
}

fn refused(error: impl Into<String>) -> Value {
    json!({ "version": VERSION, "error": error.into() })
}

/// What the coordinator has answered.
pub(super) fn answer(result: Result<u32, Refusal>) -> Value {
    match result {
        Ok(0) => json!({ "version": VERSION }),
        Ok(order) => json!({ "version": VERSION, "order": order }),
        Err(Refusal::NotServing(node)) => {
            refused(format!("runtime {node} serves no flows: `holdfast status` lists those that do"))
        }
        Err(Refusal::NotDrained(node)) => refused(format!("runtime {node} is not drained: `holdfast status` says what it is")),
        Err(Refusal::Same) => refused("the flows are there already: name two runtimes"),
        Err(Refusal::NobodyElse) => refused("there is no other runtime that could have the flows"),
        Err(Refusal::Unsafe(node)) => refused(format!(
            "without runtime {node} flows would not survive a failure, because one would be left: restore another first, or drain it all the same with --force"
        )),
        Err(Refusal::OtherCluster(node)) => refused(format!("runtime {node} is of another cluster: flows move inside their own")),
        Err(Refusal::Leaving) => refused("it is being drained already"),
        Err(Refusal::Away) => refused("the coordinator is away and will be back in a moment: try again"),
    }
}

impl Manager {
    /// Begins what a client wants changed, or tells how far it is.
    pub(super) fn change(&mut self, call: &Call, now: u64) -> Change {
        let has_coordinator = self.host.hub.has_coordinator();
        let manager = &mut self.host.hub.manager;
        let order = match call {
            Call::Moving { order } => {
                let Some(order) = manager.moves().iter().find(|known| known.request == *order) else {
                    return Change::Known(refused("the box does not remember that order"));
                };
                let progress = Progress {
                    version: VERSION,
                    runtime: order.from.node,
                    moved: order.moved,
                    refused: order.refused,
                    had: None,
                    done: order.ended_at.is_some(),
                    failed: order.failed,
                    took_us: order.ended_at.unwrap_or(now).saturating_sub(order.began_at) / 1000,
                };
                return Change::Known(serde_json::to_value(progress).unwrap_or_default());
            }
            Call::Draining { runtime } => {
                let Some(drain) = manager.drains().iter().rev().find(|drain| drain.peer.node == *runtime) else {
                    return Change::Known(refused("nobody has drained that runtime"));
                };
                // What is said of members comes on its own: who is told that it is over finds it so.
                let is_there = manager.status().any(|one| one.member.peer() == drain.peer && one.member.state.serves());
                let progress = Progress {
                    version: VERSION,
                    runtime: *runtime,
                    moved: drain.moved,
                    refused: 0,
                    had: Some(drain.had),
                    done: drain.ended_at.is_some() && !is_there,
                    failed: drain.failed,
                    took_us: drain.ended_at.unwrap_or(now).saturating_sub(drain.began_at) / 1000,
                };
                return Change::Known(serde_json::to_value(progress).unwrap_or_default());
            }
            Call::Move { from, to, limit, filter } => {
                Order::Move { from: *from, to: *to, limit: *limit, selector: filter.clone() }
            }
            Call::Drain { runtime, force } => Order::Drain { node: *runtime, force: *force },
            Call::Restore { runtime } => Order::Restore(*runtime),
            _ => return Change::Known(refused("not a request that changes something")),
        };
        if has_coordinator { Change::Asked(manager.order(order)) } else { Change::Known(answer(Err(Refusal::Away))) }
    }

    /// The version of the rules that every switch goes by. Of several, the coordinator knows.
    pub(super) fn rules_in_force(&self) -> u64 {
        match self.plan.switches.len() {
            1 => self.host.hub.switch().rules().version(),
            _ => self.host.hub.manager.standing().map_or(0, |standing| standing.rules),
        }
    }

    /// The newest rules, in force or on their way to the switches.
    pub(super) fn rules_wanted(&self) -> u64 {
        // A coordinator that has just begun does not know which are in force, and a switch here does.
        let known = self.host.hub.serving().map(|switch| switch.rules().version()).max().unwrap_or(0);
        self.host.hub.manager.rules_wanted(self.rules_in_force().max(known))
    }

    /// New rules are applied when every switch goes by them.
    pub(super) fn answer_rules(&mut self) {
        let in_force = self.rules_in_force();
        let waiting = &mut self.waiting.rules;
        let had = waiting.len();
        waiting.retain(|(version, answer)| {
            if in_force >= *version {
                let _ = answer.send(known(json!({ "version": VERSION, "rules": version })));
            }
            in_force < *version
        });
        // Not before: a next life that began with the text of rules that nobody has would think them applied.
        if had > 0 && self.waiting.rules.is_empty() {
            self.keep_text();
        }
        if self.waiting.rules.len() > 64 {
            self.waiting.rules.remove(0);
        }
    }
}
