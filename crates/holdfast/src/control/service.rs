//! The box's answers, whatever the connection.
//!
//! In: questions, on a thread that may block. Out: messages, or the reason for refusal.
//! Never: the packet loop's time beyond a [`Request`], nor a check of the caller
//! ([`calls`](super::calls) does that).

use super::{Answer, MAX_TRACE, MAX_TRACE_WAIT, Page, Request, Running, Traced};
use crate::config;
use holdfast_control::api::{ControlApi, Flow, ListFlowsReply, PingReply, Status, TraceStep};
use holdfast_control::{FLOWS_PER_ANSWER, TIMEOUT};
use holdfast_node::message::{ListCursor, Order};
use holdfast_protection::Peer;
use holdfast_wire::NodeId;
use holdfast_wire::selector::Selector;
use holdfast_wire::zone::Zones;
use std::collections::BTreeSet;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tonic::Status as Refusal;

/// The pause between two looks for steps of a trace.
const TRACE_INTERVAL: Duration = Duration::from_millis(50);
/// The time after which a list is answered with the flows found so far.
const LIST_TIME: Duration = Duration::from_secs(2);
/// Looks without a step after which the last packet is out of the box.
const TRACE_QUIET: u32 = 4;

pub(super) type Act = Arc<dyn Fn() + Send + Sync>;

/// The receiver of a trace.
pub(super) trait Follower {
    /// Takes a step. False if the receiver has left.
    fn step(&mut self, step: TraceStep) -> bool;
    /// Waits this long at most; true if the receiver leaves meanwhile.
    fn has_gone(&mut self, wait: Duration) -> bool;
}

/// The box, as seen by its clients.
pub(super) struct Service {
    /// The box's process id.
    pub(super) pid: u32,
    requests: Sender<Request>,
    wake: Act,
    stop: Act,
    tracing: Mutex<()>,
    pub(super) applying: Mutex<()>,
    /// The report on the control API's use, if there is one.
    pub(super) remote: OnceLock<Box<dyn Fn() -> ControlApi + Send + Sync>>,
}

impl Service {
    pub(super) fn new(pid: u32, requests: Sender<Request>, wake: Act, stop: Act) -> Service {
        Service {
            pid,
            requests,
            wake,
            stop,
            tracing: Mutex::new(()),
            applying: Mutex::new(()),
            remote: OnceLock::new(),
        }
    }

    /// Asks the packet loop.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(Answer<T>) -> Request,
    ) -> Result<T, Refusal> {
        let (answer, answered) = Answer::new();
        let stopping = |_| Refusal::failed_precondition("the box is stopping");
        self.requests.send(request(answer)).map_err(stopping)?;
        (self.wake)();
        let late = |_| Refusal::deadline_exceeded("the box did not answer in time");
        let make = answered.recv_timeout(TIMEOUT).map_err(late)?;
        make().map_err(Refusal::failed_precondition)
    }

    /// Ends the box.
    pub(super) fn stop(&self) {
        (self.stop)();
        (self.wake)();
    }

    pub(super) fn ping(&self) -> Result<PingReply, Refusal> {
        let asked = Instant::now();
        let answer = self.ask(Request::Ping)?;
        Ok(PingReply { pid: self.pid, answered_us: asked.elapsed().as_micros() as u64, ..answer })
    }

    pub(super) fn status(&self) -> Result<Status, Refusal> {
        // The packet loop knows nothing of clients.
        Ok(Status {
            control: self.remote.get().map(|remote| remote()),
            ..self.ask(Request::Status)?
        })
    }

    /// Orders flows to move; returns the order's number.
    pub(super) fn migrate(
        &self,
        from: NodeId,
        to: Option<NodeId>,
        limit: u64,
        filter: &str,
    ) -> Result<u32, Refusal> {
        let order = Order::Move { from, to, limit, selector: self.selector(filter)? };
        self.ask(|answer| Request::Order(order, answer))
    }

    /// The next flows of a list, until the answer is full or its time is over.
    pub(super) fn list(
        &self,
        filter: &str,
        limit: u32,
        after: &[u32],
    ) -> Result<ListFlowsReply, Refusal> {
        let filter = self.selector(filter)?;
        let mut at = if after.is_empty() { None } else { Some(place(after)?) };
        // A flow beyond the limit tells whether the list is truncated.
        let wanted = limit.saturating_add(1).min(FLOWS_PER_ANSWER);
        let mut flows: Vec<Flow> = Vec::new();
        let began = Instant::now();
        loop {
            let (limit, filter) = (wanted.saturating_sub(flows.len() as u32), filter.clone());
            let page: Page = self.ask(|answer| Request::Flows { limit, filter, at, answer })?;
            flows.extend(page.flows);
            at = page.next;
            if at.is_none() || flows.len() >= wanted as usize || began.elapsed() > LIST_TIME {
                break;
            }
        }
        let is_enough = flows.len() > limit as usize;
        flows.truncate(limit as usize);
        let next = at.filter(|_| !is_enough).map_or(Vec::new(), numbers);
        Ok(ListFlowsReply { flows, truncated: is_enough || !next.is_empty(), next })
    }

    /// A selector as the processes of the box read it: ports have numbers there.
    fn selector(&self, text: &str) -> Result<String, Refusal> {
        if !text.split_whitespace().any(|word| word == "on") {
            return read(text, &Zones::default()).map(|_| text.to_owned());
        }
        let Running { plan, .. } = self.ask(Request::Configuration)?;
        if plan.switches.len() > 1 {
            let text =
                "`on` is for rules where there are several switches: each counts its own ports";
            return Err(Refusal::invalid_argument(text));
        }
        read(text, &plan.switches[0].zones).map(|selector| selector.to_string())
    }

    /// The state of a runtime; `None` if it does not exist.
    pub(super) fn state_of(&self, runtime: u32) -> Result<Option<String>, Refusal> {
        Ok(self.ask(Request::Status)?.runtime(runtime).map(|process| process.state.clone()))
    }

    /// Gives the follower every step until `count` packets have left, the time is over,
    /// or the follower has left. Returns the number of packets seen.
    pub(super) fn trace(
        &self,
        text: &str,
        count: u32,
        wait: Duration,
        follower: &mut dyn Follower,
    ) -> Result<u64, Refusal> {
        let count = count.min(MAX_TRACE);
        // The packet loop has one trace at a time; a second one would take the first
        // one's steps.
        let Ok(_alone) = self.tracing.try_lock() else {
            return Err(Refusal::resource_exhausted(
                "another trace is under way: try again when it has ended",
            ));
        };
        let selector = self.selector(text)?;
        self.ask(Request::Traces)?;
        self.ask(|answer| Request::Trace { selector, count, answer })?;
        let result = self.follow(count, wait.min(MAX_TRACE_WAIT), follower);
        // The trace ends, whatever happened.
        let _ = self.ask(|answer| Request::Trace { selector: String::new(), count: 0, answer });
        result
    }

    fn follow(
        &self,
        count: u32,
        wait: Duration,
        follower: &mut dyn Follower,
    ) -> Result<u64, Refusal> {
        let started = Instant::now();
        let mut packets = BTreeSet::new();
        let mut pending: Vec<(u32, TraceStep)> = Vec::new();
        let mut quiet = 0;
        while started.elapsed() < wait && (packets.len() < count as usize || quiet < TRACE_QUIET) {
            if follower.has_gone(TRACE_INTERVAL.min(wait)) {
                break;
            }
            let Traced { whole, steps } = self.ask(Request::Traces)?;
            pending.extend(steps);
            // A packet's steps are shown when they are complete.
            pending.sort_by_key(|(stage, step)| (step.packet, *stage));
            let later =
                pending.split_off(pending.partition_point(|(_, step)| step.packet <= whole));
            let steps = core::mem::replace(&mut pending, later);
            quiet = if steps.is_empty() { quiet + 1 } else { 0 };
            for (_, step) in steps {
                packets.insert(step.packet);
                if !follower.step(step) {
                    return Ok(packets.len() as u64);
                }
            }
        }
        Ok(packets.len() as u64)
    }
}

/// A list's cursor in the form that clients get.
fn numbers(place: ListCursor) -> Vec<u32> {
    vec![place.peer.node.into(), place.peer.incarnation, place.lane.into(), place.slot]
}

/// A cursor in the packet loop's form.
fn place(numbers: &[u32]) -> Result<ListCursor, Refusal> {
    let read = |numbers: &[u32]| {
        let [node, incarnation, lane, slot] = <[u32; 4]>::try_from(numbers).ok()?;
        let peer = Peer { node: NodeId::new(u16::try_from(node).ok()?), incarnation };
        Some(ListCursor { peer, lane: u16::try_from(lane).ok()?, slot })
    };
    read(numbers).ok_or_else(|| {
        Refusal::invalid_argument("`after` is no place at which a list of this box has ended")
    })
}

/// Reads a selector as an operator writes it.
fn read(text: &str, zones: &Zones) -> Result<Selector, Refusal> {
    Selector::read(text, zones).map_err(|error| {
        let place = format!("`{text}`, at character {}", error.offset + 1);
        Refusal::invalid_argument(format!("{place}: {}", config::with_suggestion(&error.message)))
    })
}
