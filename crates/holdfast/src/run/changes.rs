//! Changes that clients order: the manager passes them to the coordinator, and reports
//! their progress.

use super::ManagerProcess;
use crate::control::{Answer, Work};
use holdfast_control::api::Progress;
use holdfast_node::message::{Order, Refusal};

/// The coordinator's reason for refusing an order.
pub(super) fn why(refusal: Refusal) -> String {
    match refusal {
        Refusal::NotServing(node) => {
            format!("runtime {node} serves no flows: `holdfast status` lists those that do")
        }
        Refusal::NotDrained(node) => {
            format!("runtime {node} is not drained: `holdfast status` says what it is")
        }
        Refusal::Same => "the flows are there already: name two runtimes".to_owned(),
        Refusal::NobodyElse => "there is no other runtime that could have the flows".to_owned(),
        Refusal::Unsafe(node) => format!(
            "without runtime {node} flows would not survive a failure, because one would be left: restore another first, or drain it all the same with --force"
        ),
        Refusal::OtherCluster(node) => {
            format!("runtime {node} is of another cluster: flows move inside their own")
        }
        Refusal::Leaving => "it is being drained already".to_owned(),
        Refusal::Away => {
            "the coordinator is away and will be back in a moment: try again".to_owned()
        }
    }
}

impl ManagerProcess {
    /// Passes an order to the coordinator, which answers it.
    pub(super) fn order(&mut self, order: Order, answer: Answer<u32>) {
        if self.host.hub.has_coordinator() {
            let ticket = self.host.hub.manager.order(order);
            self.waiting.orders.push((ticket, answer));
        } else {
            answer.refuse(why(Refusal::Away));
        }
    }

    /// The progress of an order.
    pub(super) fn progress(&self, work: Work, now: u64) -> Result<Progress, &'static str> {
        let manager = &self.host.hub.manager;
        let took =
            |began: u64, ended: Option<u64>| ended.unwrap_or(now).saturating_sub(began) / 1000;
        match work {
            Work::Moving(number) => {
                let order = manager.moves().iter().find(|known| known.request == number);
                let order = order.ok_or("the box does not remember that order")?;
                Ok(Progress {
                    runtime: order.from.node.into(),
                    moved: order.moved,
                    refused: order.refused,
                    had: None,
                    done: order.ended_at.is_some(),
                    failed: order.failed,
                    took_us: took(order.began_at, order.ended_at),
                    order: Some(number),
                })
            }
            Work::Draining(runtime) => {
                let drain = manager.drains().iter().rev().find(|drain| drain.peer.node == runtime);
                let drain = drain.ok_or("nobody has drained that runtime")?;
                // The list of members comes separately: a client that is told of the end
                // must find it there too.
                let is_there = manager
                    .status()
                    .any(|one| one.member.peer() == drain.peer && one.member.state.serves());
                Ok(Progress {
                    runtime: runtime.into(),
                    moved: drain.moved,
                    refused: 0,
                    had: Some(drain.had),
                    done: drain.ended_at.is_some() && !is_there,
                    failed: drain.failed,
                    took_us: took(drain.began_at, drain.ended_at),
                    order: None,
                })
            }
        }
    }

    /// The version of the rules that every switch applies. With several hosts, the
    /// coordinator knows it.
    pub(super) fn rules_in_force(&self) -> u64 {
        match self.plan.switches.len() {
            1 => self.host.hub.switch().rules().version(),
            _ => self.host.hub.manager.standing().map_or(0, |standing| standing.rules),
        }
    }

    /// The version of the newest rules, in force or on their way to the switches.
    pub(super) fn rules_wanted(&self) -> u64 {
        // A new coordinator does not know yet which rules are in force; a switch here
        // does.
        let known =
            self.host.hub.serving().map(|switch| switch.rules().version()).max().unwrap_or(0);
        self.host.hub.manager.rules_wanted(self.rules_in_force().max(known))
    }

    /// Answers requests for new rules once every switch applies them.
    pub(super) fn answer_rules(&mut self) {
        let in_force = self.rules_in_force();
        let had = self.waiting.rules.len();
        for (version, answer) in
            self.waiting.rules.extract_if(.., |(version, _)| in_force >= *version)
        {
            answer.give(version);
        }
        // The text is not kept earlier: a next incarnation that began with rules that no
        // switch has would take them for applied.
        if had > 0 && self.waiting.rules.is_empty() {
            self.keep_text();
        }
        if self.waiting.rules.len() > 64 {
            self.waiting.rules.remove(0);
        }
    }
}
