//! Answers to clients' requests.
//!
//! In: one request per turn of the packet loop, and what runtimes and the coordinator
//! answer to the requests forwarded to them. Out: answers that the client's thread
//! formats; the CPU time that questions took. Never: a walk through a table, a wait.

use super::changes::{self, Change};
use super::reports;
use super::{MILLISECOND, Manager};
use crate::control::{Answer, Asked, Request, place_words};
use holdfast_control::VERSION;
use holdfast_io::process::thread_time;
use holdfast_node::message::Refusal;
use holdfast_wire::selector::Selector;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::mpsc::Sender;

/// Requests for flows that wait for a runtime; beyond this the oldest is dropped, because
/// its client has given up.
const MOST_WAITING: usize = 128;
/// Between two looks at devices for a status, ns.
const DEVICE_LOOK_INTERVAL: u64 = 50 * MILLISECOND;

/// Requests that are not answered at once, each with the channel for its answer.
#[derive(Default)]
pub(super) struct Waiting {
    /// For the status: until every device has been looked at.
    statuses: VecDeque<Sender<Answer>>,
    /// Requests that another process answers, by number.
    flows: Vec<(u32, Sender<Answer>)>,
    orders: Vec<(u32, Sender<Answer>)>,
    /// New rules, by version: until they are in force.
    pub(super) rules: Vec<(u64, Sender<Answer>)>,
    /// The longest CPU time of one step for a question, ns, since it was last asked for.
    longest: u64,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.statuses.is_empty() && self.flows.is_empty() && self.orders.is_empty() && self.rules.is_empty()
    }

    /// Something is left to do for a question that needs no input.
    pub(super) fn is_due(&self) -> bool {
        !self.statuses.is_empty()
    }
}

/// An answer whose JSON object exists already; only for small ones.
pub(super) fn known(object: Value) -> Answer {
    Box::new(move || object)
}

fn error(text: impl Into<String>) -> Answer {
    known(json!({ "version": VERSION, "error": text.into() }))
}

impl Manager {
    /// Does something, and while questions are open notes the CPU time that it takes.
    pub(super) fn measured<T>(&mut self, act: impl FnOnce(&mut Manager) -> T) -> T {
        if self.waiting.is_empty() {
            return act(self);
        }
        self.measure(act)
    }

    fn measure<T>(&mut self, act: impl FnOnce(&mut Manager) -> T) -> T {
        let began = thread_time();
        let done = act(self);
        self.waiting.longest = self.waiting.longest.max(thread_time() - began);
        done
    }

    /// Answers a request, or begins to.
    pub(super) fn handle_asked(&mut self, asked: Asked) {
        self.measure(|manager| manager.answer(asked));
    }

    fn answer(&mut self, asked: Asked) {
        let answer: Answer = match asked.request {
            Request::Ping => {
                let longest = core::mem::take(&mut self.waiting.longest) / 1000;
                let of_runtimes = self.host.hub.manager.take_longest();
                known(json!({ "version": VERSION, "longest_us": longest, "runtimes_longest_us": of_runtimes }))
            }
            Request::Status => {
                // A device that went a moment ago is not up.
                let now = self.clock.now();
                if self.device_look.is_older(now, DEVICE_LOOK_INTERVAL) {
                    self.device_look.begin(now);
                }
                self.waiting.statuses.push_back(asked.answer);
                return;
            }
            Request::Flows { limit, filter, at } => {
                let request = self.host.hub.manager.request_flows(limit, &filter, at);
                self.waiting.flows.push((request, asked.answer));
                return;
            }
            Request::Configuration => {
                let (file, text, rules) = (self.file.clone(), self.text.clone(), self.rules_wanted());
                let record = self.host.hub.manager.fabric().max_record();
                Box::new(move || json!({ "version": VERSION, "file": file, "text": &*text, "rules": rules, "record": record }))
            }
            Request::Apply { based_on, text, memory, rules } => {
                if !self.host.hub.has_coordinator() {
                    known(changes::answer(Err(Refusal::Away)))
                } else if self.rules_wanted() == based_on {
                    // The name stays: what the file names lies beside the one that the box began with.
                    (self.text, self.applied) = (text, Some(memory));
                    self.waiting.rules.push((rules.version(), asked.answer));
                    self.host.hub.manager.set_rules(rules);
                    return;
                } else {
                    error("other rules were applied meanwhile: try again")
                }
            }
            Request::Trace { selector, count } => match selector.parse::<Selector>() {
                Ok(selector) => {
                    let count = count.min(10_000);
                    self.host.hub.serving_mut().for_each(|switch| switch.set_trace(selector.clone(), count));
                    known(json!({ "version": VERSION }))
                }
                Err(wrong) => error(wrong.to_string()),
            },
            Request::Change(call) => {
                let now = self.clock.now();
                match self.change(&call, now) {
                    Change::Known(answer) => known(answer),
                    Change::Asked(ticket) => {
                        self.waiting.orders.push((ticket, asked.answer));
                        return;
                    }
                }
            }
            Request::Traces => {
                let mut steps = vec![core::mem::take(&mut self.host.hub.manager.traces)];
                steps.extend(self.host.hub.serving_mut().map(|switch| core::mem::take(&mut switch.traces)));
                // A runtime's trace steps arrive with its next report.
                let whole = self.clock.now().saturating_sub(self.trace_delay);
                let plan = self.plan.clone();
                Box::new(move || {
                    let steps: Vec<_> = steps.iter().flatten().map(|step| reports::step(step, &plan)).collect();
                    json!({ "version": VERSION, "whole": whole, "steps": steps })
                })
            }
        };
        // The client may have gone.
        let _ = asked.answer.send(answer);
    }

    /// Passes on what others have answered, and says one status.
    pub(super) fn pass_answers_on(&mut self) {
        if self.device_look.is_over()
            && let Some(asked) = self.waiting.statuses.pop_front()
        {
            let (status, statistics) = (self.status(), self.statistics_now());
            // The client may have gone.
            let _ = asked.send(Box::new(move || reports::whole(status, statistics)));
        }
        let (manager, plan) = (&mut self.host.hub.manager, &self.plan);
        self.waiting.flows.retain(|(request, answer)| match manager.take_flows(*request) {
            Some(page) => {
                let plan = plan.clone();
                let _ = answer.send(Box::new(move || match page.flows() {
                    Ok(flows) => {
                        json!({ "version": VERSION, "flows": reports::flows(&flows, &plan), "next": page.next.map(place_words) })
                    }
                    Err(_) => json!({ "version": VERSION, "error": "a runtime has sent a list that is none" }),
                }));
                false
            }
            None => true,
        });
        self.waiting.orders.retain(|(ticket, answer)| match manager.take_answer(*ticket) {
            Some(result) => {
                let _ = answer.send(known(changes::answer(result)));
                false
            }
            None => true,
        });
        if self.waiting.flows.len() > MOST_WAITING {
            self.waiting.flows.remove(0);
        }
    }
}
