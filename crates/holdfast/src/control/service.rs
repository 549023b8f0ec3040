//! What a box answers, through whichever door the question came: the local socket or the control API.
//!
//! In: [`Call`]s, on a thread of the client's. Out: JSON objects, or a [`Problem`]. Never: the packet loop's time beyond what a [`Request`] takes, nor a look at
//! who asks; each door decides whom it lets in.

use super::{Asked, MAX_TRACE, MAX_TRACE_WAIT, Request};
use crate::config::{self, Plan};
use holdfast_control::exit;
use holdfast_control::flows::{self, Flow, Flows};
use holdfast_control::status::{ControlApi, Status};
use holdfast_control::{Call, FLOWS_PER_ANSWER, PATIENCE, VERSION};
use holdfast_node::message::Place;
use holdfast_protection::Peer;
use holdfast_wire::selector::Selector;
use holdfast_wire::zone::Zones;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Between two looks for steps of a trace.
const TRACE_INTERVAL: Duration = Duration::from_millis(50);
/// Time after which a list's answer is what has been found so far.
const LIST_TIME: Duration = Duration::from_secs(2);
/// Looks without a step after which the last packet is out of the box.
const TRACE_QUIET: u32 = 4;

pub(super) type Act = Arc<dyn Fn() + Send + Sync>;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// What to say.
    pub(super) text: String,
    pub(super) kind: ProblemKind,
}

/// Whose fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProblemKind {
    /// The request's.
    Wrong,
    /// The box is not in a state to do it.
    NotNow,
    /// Others are asking too much.
    Busy,
    /// The packet loop has not answered.
    Late,
}

impl Problem {
    pub(super) fn new(kind: ProblemKind, text: impl Into<String>) -> Problem {
        Problem { text: text.into(), kind }
    }

    /// As the local socket says it.
    pub(super) fn object(&self) -> Value {
        let mut object = json!({ "version": VERSION, "error": self.text });
        let code = match self.kind {
            ProblemKind::Late => Some(exit::TIMEOUT),
            ProblemKind::Wrong | ProblemKind::NotNow | ProblemKind::Busy => None,
        };
        if let Some(code) = code {
            object["code"] = code.into();
        }
        object
    }
}

/// The answer, if it is none of those in which the packet loop says why it does not do it.
fn unless_refused(answer: Value) -> Result<Value, Problem> {
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => Err(Problem::new(ProblemKind::NotNow, error)),
        None => Ok(answer),
    }
}

/// Who follows a trace.
pub(super) trait Follower {
    /// Takes a step. False if nobody is there any more.
    fn step(&mut self, step: &Value) -> bool;
    /// True if it goes away within this time; otherwise takes that long.
    fn has_gone(&mut self, wait: Duration) -> bool;
}

/// The box, as its clients see it.
pub(super) struct Service {
    /// The box's process.
    pub(super) pid: u32,
    requests: Sender<Asked>,
    wake: Act,
    stop: Act,
    tracing: Mutex<()>,
    pub(super) applying: Mutex<()>,
    /// How the control API is used, if there is one.
    pub(super) remote: OnceLock<Box<dyn Fn() -> ControlApi + Send + Sync>>,
}

impl Service {
    pub(super) fn new(pid: u32, requests: Sender<Asked>, wake: Act, stop: Act) -> Service {
        Service { pid, requests, wake, stop, tracing: Mutex::new(()), applying: Mutex::new(()), remote: OnceLock::new() }
    }

    /// Asks the packet loop.
    pub(super) fn ask(&self, request: Request) -> Result<Value, Problem> {
        let (answer, answered) = channel();
        let asked = Asked { request, answer };
        self.requests.send(asked).map_err(|_| Problem::new(ProblemKind::NotNow, "the box is stopping"))?;
        (self.wake)();
        let late = |_| Problem::new(ProblemKind::Late, "the box did not answer in time");
        let make = answered.recv_timeout(PATIENCE).map_err(late)?;
        unless_refused(make())
    }

    /// The plan that the box goes by, and the answer to [`Request::Configuration`].
    pub(super) fn running(&self) -> Result<(Plan, Value), Problem> {
        let running = self.ask(Request::Configuration)?;
        let word = |key: &str| running[key].as_str().unwrap_or_default();
        // It has been read before, by this program.
        let plan = config::read(word("file"), word("text"))
            .map_err(|mistake| Problem::new(ProblemKind::NotNow, format!("the running configuration: {mistake}")))?;
        Ok((plan, running))
    }

    /// Ends the box.
    pub(super) fn stop(&self) {
        (self.stop)();
        (self.wake)();
    }

    /// Answers what has one answer.
    pub(super) fn answer(&self, call: &Call) -> Result<Value, Problem> {
        match call {
            Call::Ping => {
                let asked = Instant::now();
                let mut answer = self.ask(Request::Ping)?;
                answer["pid"] = self.pid.into();
                answer["answered_us"] = (asked.elapsed().as_micros() as u64).into();
                Ok(answer)
            }
            Call::Status => {
                let mut status = self.ask(Request::Status)?;
                // The packet loop knows nothing of who asks it.
                if let Some(remote) = self.remote.get() {
                    status["control"] = serde_json::to_value(remote()).unwrap_or_default();
                }
                Ok(status)
            }
            Call::Flows { filter, limit, after } => {
                Ok(serde_json::to_value(self.list(filter, *limit, *after)?).unwrap_or_default())
            }
            Call::Move { from, to, limit, filter } => {
                let (filter, _) = self.selector(filter)?;
                self.ask(Request::Change(Call::Move { from: *from, to: *to, limit: *limit, filter }))
            }
            Call::Moving { .. } | Call::Drain { .. } | Call::Draining { .. } | Call::Restore { .. } => {
                self.ask(Request::Change(call.clone()))
            }
            Call::Trace { .. } | Call::Apply { .. } | Call::Stop => {
                Err(Problem::new(ProblemKind::Wrong, "not a request with one answer"))
            }
        }
    }

    /// The next flows of a list, until there are enough for an answer, or it has taken long enough.
    pub(super) fn list(&self, filter: &str, limit: u32, after: Option<flows::Place>) -> Result<Flows, Problem> {
        let (words, filter) = self.selector(filter)?;
        let mut at = after.map(place).transpose()?;
        // One flow beyond the limit tells whether the list is truncated.
        let wanted = limit.saturating_add(1).min(FLOWS_PER_ANSWER);
        let mut flows: Vec<Flow> = Vec::new();
        let began = Instant::now();
        let next = loop {
            let left = wanted.saturating_sub(flows.len() as u32);
            let mut piece = self.ask(Request::Flows { limit: left, filter: words.clone(), at })?;
            let broken = |error: serde_json::Error| Problem::new(ProblemKind::NotNow, format!("the list of flows: {error}"));
            let found: Vec<Flow> = serde_json::from_value(piece["flows"].take()).map_err(broken)?;
            flows.extend(found.into_iter().filter(|flow| flow.matches(&filter)));
            let next: Option<flows::Place> = serde_json::from_value(piece["next"].take()).map_err(broken)?;
            at = next.map(place).transpose()?;
            if next.is_none() || flows.len() >= wanted as usize || began.elapsed() > LIST_TIME {
                break next;
            }
        };
        let is_enough = flows.len() > limit as usize;
        flows.truncate(limit as usize);
        let next = next.filter(|_| !is_enough);
        Ok(Flows { version: flows::VERSION, flows, truncated: is_enough || next.is_some(), next })
    }

    /// A selector, and how the processes of the box read it: ports have numbers there.
    fn selector(&self, text: &str) -> Result<(String, Selector), Problem> {
        if !text.split_whitespace().any(|word| word == "on") {
            return Ok((text.to_owned(), read(text, &Zones::default())?));
        }
        let (plan, _) = self.running()?;
        if plan.switches.len() > 1 {
            let text = "`on` is for rules where there are several switches: each counts its own ports";
            return Err(Problem::new(ProblemKind::Wrong, text));
        }
        let selector = read(text, &plan.switches[0].zones)?;
        Ok((selector.to_string(), selector))
    }

    /// The state of a runtime; none if there is no such runtime.
    pub(super) fn state_of(&self, runtime: u16) -> Result<Option<String>, Problem> {
        let broken = |error: serde_json::Error| Problem::new(ProblemKind::NotNow, format!("the status: {error}"));
        let status: Status = serde_json::from_value(self.ask(Request::Status)?).map_err(broken)?;
        Ok(status.runtime(runtime).map(|process| process.state.clone()))
    }

    /// Gives the follower every step until `count` packets have left, the time is over, or the follower has gone. How many packets were seen.
    pub(super) fn trace(&self, text: &str, count: u32, wait: Duration, follower: &mut dyn Follower) -> Result<usize, Problem> {
        let count = count.min(MAX_TRACE);
        // The loop has one trace at a time; a second one would take the first one's steps.
        let Ok(_alone) = self.tracing.try_lock() else {
            return Err(Problem::new(ProblemKind::Busy, "another trace is under way: try again when it has ended"));
        };
        let (selector, _) = self.selector(text)?;
        self.ask(Request::Traces)?;
        self.ask(Request::Trace { selector, count })?;
        let result = self.follow(count, wait.min(MAX_TRACE_WAIT), follower);
        // Nobody takes the steps any more, whatever happened.
        let _ = self.ask(Request::Trace { selector: String::new(), count: 0 });
        result
    }

    fn follow(&self, count: u32, wait: Duration, follower: &mut dyn Follower) -> Result<usize, Problem> {
        let started = Instant::now();
        let mut packets = BTreeSet::new();
        let mut pending: Vec<Value> = Vec::new();
        let mut quiet = 0;
        while started.elapsed() < wait && (packets.len() < count as usize || quiet < TRACE_QUIET) {
            if follower.has_gone(TRACE_INTERVAL.min(wait)) {
                break;
            }
            let mut answer = self.ask(Request::Traces)?;
            if let Value::Array(steps) = answer["steps"].take() {
                pending.extend(steps);
            }
            // A packet's way is shown when it is whole.
            let whole = answer["whole"].as_u64().unwrap_or(u64::MAX);
            pending.sort_by_key(|step| (step["packet"].as_u64(), step["stage"].as_u64()));
            let behind = pending.partition_point(|step| step["packet"].as_u64().is_none_or(|packet| packet <= whole));
            let later = pending.split_off(behind);
            let steps = core::mem::replace(&mut pending, later);
            quiet = if steps.is_empty() { quiet + 1 } else { 0 };
            for mut step in steps {
                packets.insert(step["packet"].as_u64());
                if let Some(step) = step.as_object_mut() {
                    step.remove("stage");
                }
                if !follower.step(&step) {
                    return Ok(packets.len());
                }
            }
        }
        Ok(packets.len())
    }
}

/// A list's place, as the packet loop knows it.
fn place([node, incarnation, lane, slot]: flows::Place) -> Result<Place, Problem> {
    let wrong = |_| Problem::new(ProblemKind::Wrong, "`after` is no place at which a list of this box has ended");
    let (node, lane) = (u16::try_from(node).map_err(wrong)?, u16::try_from(lane).map_err(wrong)?);
    Ok(Place { peer: Peer { node, incarnation }, lane, slot })
}

/// A selector as an operator writes it.
fn read(text: &str, zones: &Zones) -> Result<Selector, Problem> {
    Selector::read(text, zones).map_err(|error| {
        let place = format!("`{text}`, at character {}", error.offset + 1);
        Problem::new(ProblemKind::Wrong, format!("{place}: {}", config::with_suggestion(&error.message)))
    })
}
