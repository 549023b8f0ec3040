//! Answers to clients' requests.
//!
//! In: one request per turn of the packet loop, and the answers of runtimes and the
//! coordinator to the requests forwarded to them. Out: answers that the caller's thread
//! makes; the CPU time that questions took. Never: a walk through a table, a wait.

use super::reports;
use super::{MILLISECOND, ManagerProcess, changes};
use crate::config::ChainPlan;
use crate::control::{Answer, Page, Request, Running, Traced};
use holdfast_control::api::{PingReply, Status};
use holdfast_io::process::thread_time;
use holdfast_node::message::Refusal;
use holdfast_wire::selector::Selector;
use std::collections::VecDeque;

/// Requests for flows that wait for a runtime; beyond this the oldest is dropped, because
/// its client has given up.
const MOST_WAITING: usize = 128;
/// The pause between two looks at devices for a status, ns.
const DEVICE_LOOK_INTERVAL: u64 = 50 * MILLISECOND;

/// Requests that are not answered at once, each with the channel for its answer.
#[derive(Default)]
pub(super) struct Waiting {
    /// Status requests, until every device has been looked at, and until the runtimes
    /// have answered in this round, if flows are ranked.
    statuses: VecDeque<(Option<u32>, Answer<Status>)>,
    /// Requests that another process answers, by number.
    flows: Vec<(u32, Answer<Page>)>,
    pub(super) orders: Vec<(u32, Answer<u32>)>,
    /// New rules, by version: until they are in force.
    pub(super) rules: Vec<(u64, Answer<u64>)>,
    /// The longest CPU time of one step for a question, ns, since it was last asked for.
    longest: u64,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.statuses.is_empty()
            && self.flows.is_empty()
            && self.orders.is_empty()
            && self.rules.is_empty()
    }
}

impl ManagerProcess {
    /// Runs `act`, and notes its CPU time if requests are open.
    pub(super) fn measured<T>(&mut self, act: impl FnOnce(&mut ManagerProcess) -> T) -> T {
        if self.waiting.is_empty() {
            return act(self);
        }
        self.measure(act)
    }

    fn measure<T>(&mut self, act: impl FnOnce(&mut ManagerProcess) -> T) -> T {
        let began = thread_time();
        let done = act(self);
        self.waiting.longest = self.waiting.longest.max(thread_time() - began);
        done
    }

    /// Answers a request, or begins to.
    pub(super) fn handle_asked(&mut self, asked: Request) {
        self.measure(|manager| manager.answer(asked));
    }

    fn answer(&mut self, asked: Request) {
        match asked {
            Request::Ping(answer) => answer.give(PingReply {
                longest_us: core::mem::take(&mut self.waiting.longest) / 1000,
                runtimes_longest_us: self.host.hub.manager.take_longest().into(),
                ..PingReply::default()
            }),
            Request::Status(answer) => {
                // A device that has just gone is not up.
                let now = self.clock.now();
                if self.device_look.is_older(now, DEVICE_LOOK_INTERVAL) {
                    self.device_look.begin(now);
                }
                let is_ranked = self.plan.chains.iter().any(ChainPlan::ranks);
                let round = is_ranked.then(|| self.host.hub.manager.request_ranks());
                self.waiting.statuses.push_back((round, answer));
            }
            Request::Flows { limit, filter, at, answer } => {
                let request = self.host.hub.manager.request_flows(limit, &filter, at);
                self.waiting.flows.push((request, answer));
            }
            Request::Configuration(answer) => {
                let record = self.host.hub.manager.fabric().max_record();
                let (file, text, rules) =
                    (self.file.clone(), self.text.clone(), self.rules_wanted());
                answer.give(Running { file, text, plan: self.plan.clone(), rules, record });
            }
            Request::Apply { based_on, text, plan, memory, rules, answer } => {
                if !self.host.hub.has_coordinator() {
                    answer.refuse(changes::why(Refusal::Away));
                } else if self.rules_wanted() == based_on {
                    // The name stays: relative paths in the file are beside the file that
                    // the box began with.
                    (self.text, self.plan, self.applied) = (text, plan, Some(memory));
                    self.waiting.rules.push((rules.version(), answer));
                    self.host.hub.manager.set_rules(rules);
                } else {
                    answer.refuse("other rules were applied meanwhile: try again");
                }
            }
            Request::Trace { selector, count, answer } => match selector.parse::<Selector>() {
                Ok(selector) => {
                    let count = count.min(10_000);
                    self.host
                        .hub
                        .serving_mut()
                        .for_each(|switch| switch.set_trace(selector.clone(), count));
                    answer.give(());
                }
                Err(wrong) => answer.refuse(wrong.to_string()),
            },
            Request::Order(order, answer) => self.order(order, answer),
            Request::Progress(work, answer) => match self.progress(work, self.clock.now()) {
                Ok(progress) => answer.give(progress),
                Err(why) => answer.refuse(why),
            },
            Request::Traces(answer) => {
                let mut steps = vec![core::mem::take(&mut self.host.hub.manager.traces)];
                steps.extend(
                    self.host.hub.serving_mut().map(|switch| core::mem::take(&mut switch.traces)),
                );
                // A runtime's trace steps arrive with its next report.
                let whole = self.clock.now().saturating_sub(self.trace_delay);
                let plan = self.plan.clone();
                answer.make(move || {
                    let steps =
                        steps.iter().flatten().map(|step| reports::step(step, &plan)).collect();
                    Ok(Traced { whole, steps })
                });
            }
        }
    }

    /// True if a request can be continued without input.
    pub(super) fn is_answer_due(&self) -> bool {
        let manager = &self.host.hub.manager;
        self.waiting.statuses.front().is_some_and(|(round, _)| {
            !self.device_look.is_over() || round.is_none_or(|round| manager.ranks_are_due(round))
        })
    }

    /// Answers one status request, if everything for it is there.
    fn answer_status(&mut self) {
        let Some((round, _)) = self.waiting.statuses.front().filter(|_| self.device_look.is_over())
        else {
            return;
        };
        let ranks = round.map(|round| self.host.hub.manager.take_ranks(round));
        if ranks.as_ref().is_some_and(Option::is_none) {
            return;
        }
        let Some((_, answer)) = self.waiting.statuses.pop_front() else { return };
        let (status, statistics) = (self.status(), self.statistics_now());
        answer.make(move || {
            let ranks = ranks.flatten().and_then(|parts| parts.shown().ok());
            let talkers = ranks.map(reports::talkers);
            Ok(Status { statistics: statistics.named(), talkers, ..status })
        });
    }

    /// Passes other processes' answers on, and answers one status request.
    pub(super) fn pass_answers_on(&mut self) {
        self.answer_status();
        let (manager, plan) = (&mut self.host.hub.manager, &self.plan);
        let pages = &mut self.waiting.flows;
        let mut at = 0;
        while at < pages.len() {
            let Some(page) = manager.take_flows(pages[at].0) else {
                at += 1;
                continue;
            };
            let (_, answer) = pages.remove(at);
            let plan = plan.clone();
            answer.make(move || match page.flows() {
                Ok(flows) => Ok(Page { flows: reports::flows(&flows, &plan), next: page.next }),
                Err(_) => Err("a runtime has sent a list that is none".to_owned()),
            });
        }
        let orders = &mut self.waiting.orders;
        let mut at = 0;
        while at < orders.len() {
            let Some(taken) = manager.take_answer(orders[at].0) else {
                at += 1;
                continue;
            };
            let (_, answer) = orders.remove(at);
            match taken {
                Ok(order) => answer.give(order),
                Err(refusal) => answer.refuse(changes::why(refusal)),
            }
        }
        if self.waiting.flows.len() > MOST_WAITING {
            self.waiting.flows.remove(0);
        }
    }
}
