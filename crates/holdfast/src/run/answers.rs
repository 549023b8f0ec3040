//! Answers to clients' requests.
//!
//! In: one request per turn of the packet loop, and what runtimes and the coordinator
//! answer to the requests forwarded to them. Out: answers that the client's thread
//! formats. Never: a walk through a table, a wait.

use super::changes::{self, Change};
use super::reports;
use super::{MILLISECOND, Manager};
use crate::control::{Answer, Asked, Request, place_words};
use holdfast_control::VERSION;
use holdfast_node::message::Refusal;
use holdfast_wire::selector::Selector;
use serde_json::{Value, json};
use std::sync::mpsc::Sender;

/// Requests for flows that wait for a runtime; beyond this the oldest is dropped, because
/// its client has given up.
const MOST_WAITING: usize = 128;
/// Between two looks at devices for a status, ns. A look reads several files per port, and no
/// packet moves meanwhile: clients that ask without a pause must not hold up packets.
const DEVICE_LOOK_INTERVAL: u64 = 50 * MILLISECOND;

/// Requests that another process answers: the number of each, and the channel for its
/// answer.
#[derive(Default)]
pub(super) struct Waiting {
    flows: Vec<(u32, Sender<Answer>)>,
    orders: Vec<(u32, Sender<Answer>)>,
}

/// An answer whose JSON object exists already; only for small ones.
pub(super) fn known(object: Value) -> Answer {
    Box::new(move || object)
}

fn error(text: impl Into<String>) -> Answer {
    known(json!({ "version": VERSION, "error": text.into() }))
}

impl Manager {
    pub(super) fn answer(&mut self, asked: Asked) {
        let answer: Answer = match asked.request {
            Request::Ping => known(json!({ "version": VERSION })),
            Request::Status => {
                // A device that went a moment ago is not up.
                let now = self.clock.now();
                if now.saturating_sub(self.last_device_look) > DEVICE_LOOK_INTERVAL {
                    self.look_at_devices(now);
                }
                let (status, statistics) = (self.status(), self.statistics_now());
                Box::new(move || reports::whole(status, statistics))
            }
            Request::Flows { limit, filter, at } => {
                let request = self.host.hub.manager.request_flows(limit, &filter, at);
                self.waiting.flows.push((request, asked.answer));
                return;
            }
            Request::Configuration => {
                let (file, text, rules) = (self.file.clone(), self.text.clone(), self.rules_wanted());
                Box::new(move || json!({ "version": VERSION, "file": file, "text": &*text, "rules": rules }))
            }
            Request::Apply { based_on, text, rules } => {
                if !self.host.hub.has_coordinator() {
                    known(changes::answer(Err(Refusal::Away)))
                } else if self.rules_wanted() == based_on {
                    // The name stays: what the file names lies beside the one that the box began with.
                    self.text = text;
                    self.waiting_rules.push((self.host.hub.manager.set_rules(based_on, rules), asked.answer));
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
                let mut steps = core::mem::take(&mut self.host.hub.manager.traces);
                self.host.hub.serving_mut().for_each(|switch| steps.append(&mut switch.traces));
                // A runtime's trace steps arrive with its next report.
                let whole = self.clock.now().saturating_sub(self.trace_delay);
                let names = self.trace_names();
                Box::new(move || {
                    let steps: Vec<_> = steps.iter().map(|step| names.step(step)).collect();
                    json!({ "version": VERSION, "whole": whole, "steps": steps })
                })
            }
        };
        // The client may have gone.
        let _ = asked.answer.send(answer);
    }

    /// Passes on what others have answered.
    pub(super) fn pass_answers_on(&mut self) {
        let (manager, chains) = (&mut self.host.hub.manager, &self.chain_names);
        self.waiting.flows.retain(|(request, answer)| match manager.take_flows(*request) {
            Some(page) => {
                let chains = chains.clone();
                let _ = answer.send(Box::new(move || match page.flows() {
                    Ok(flows) => {
                        json!({ "version": VERSION, "flows": reports::flows(&flows, &chains), "next": page.next.map(place_words) })
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
