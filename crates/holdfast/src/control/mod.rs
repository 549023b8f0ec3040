//! The control API of a box: gRPC, through the Unix socket and remotely over TLS.
//!
//! Theory of operation. The manager has one thread for the API, of low priority
//! ([`serving`]). Connections come through the socket ([`server`]), from the box's user
//! and root, who may make every call, and through the control API ([`api`]), where a
//! certificate gives its holder's rights. A call gets a seat before its message is read
//! ([`calls`]), and becomes a question to the [`service`] on a thread that may block.
//!
//! In: connections. Out: answers; counts of refusals, by reason. The packet loop sees
//! only [`Request`]s, at most one per turn, and answers from memory; the caller's thread
//! makes the message. A slow client never delays the packet loop: a long answer comes in
//! pieces, fetched as the client takes them. Never: an unlimited queue, an answer to a
//! caller without the right.

mod api;
mod apply;
mod calls;
mod connection;
mod join;
mod lock;
mod server;
mod service;
mod serving;

pub use connection::Refused;
pub(crate) use lock::Lock;
pub(crate) use server::make_directory;
pub use server::{Server, listen, listen_and_stop, tidy, tidy_after};

use crate::config::Plan;
use holdfast_control::TIMEOUT;
use holdfast_control::api::{Flow, PingReply, Progress, Status, TraceStep};
use holdfast_node::message::{ListCursor, Order};
use holdfast_node::rules::RuleRecords;
use holdfast_wire::NodeId;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Maximum number of calls at a time, streams included: through the socket, and as many
/// remotely.
pub const MAX_CLIENTS: usize = 32;
/// Maximum number of connections at a time: through the socket, and as many remotely.
pub const MAX_CONNECTIONS: usize = 2 * MAX_CLIENTS;
/// Added to the priority of threads that serve clients: frames go first.
const NICENESS: i32 = 10;
/// Maximum number of packets of a trace, and of seconds.
const MAX_TRACE: u32 = 10_000;
const MAX_TRACE_WAIT: Duration = Duration::from_secs(3600);

/// Limits of the control API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections after their handshake.
    pub connections: usize,
    /// Maximum number of connections in their handshake.
    pub handshakes: usize,
    /// Maximum number of handshakes from one address.
    pub handshakes_per_address: usize,
    /// Maximum number of calls, streams included.
    pub calls: usize,
    /// Time-out of a handshake.
    pub handshake: Duration,
    /// Time-out of a silent client. A living one answers a ping before.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: MAX_CONNECTIONS,
            handshakes: 64,
            handshakes_per_address: 8,
            calls: MAX_CLIENTS,
            handshake: TIMEOUT,
            idle: Duration::from_secs(60),
        }
    }
}

/// Questions to the packet loop, each with the place for its answer.
#[derive(Debug)]
pub enum Request {
    /// Liveness probe of the packet loop. The answer has the processor times of the
    /// longest steps for a question since the last probe.
    Ping(Answer<PingReply>),
    /// The box's status.
    Status(Answer<Status>),
    /// The next page of the list of flows.
    Flows {
        /// Maximum number of flows.
        limit: u32,
        /// The selector of flows, checked already.
        filter: String,
        /// Cursor to continue from; if `None`, the list begins anew.
        at: Option<ListCursor>,
        /// The place for the page.
        answer: Answer<Page>,
    },
    /// Trace the next packets that match; a count of 0 ends it.
    Trace {
        /// The selector.
        selector: String,
        /// The number of packets.
        count: u32,
        /// Answered when the trace has begun.
        answer: Answer<()>,
    },
    /// The steps traced since the last such question.
    Traces(Answer<Traced>),
    /// An order to move, drain or restore; answered with its number. Its selector is
    /// checked already.
    Order(Order, Answer<u32>),
    /// The progress of an order.
    Progress(Work, Answer<Progress>),
    /// The running configuration.
    Configuration(Answer<Running>),
    /// Put these rules into force. Answered with their version when they are in force.
    Apply {
        /// The version of the rules that these were compared with.
        based_on: u64,
        /// The whole configuration of these rules.
        text: Arc<str>,
        /// The plan of this text, read under the name of the box's own file.
        plan: Arc<Plan>,
        /// The text in a memory file, for the guard.
        memory: OwnedFd,
        /// The new rules, encoded: the packet loop only passes them on.
        rules: RuleRecords,
        /// The place for the version.
        answer: Answer<u64>,
    },
}

/// The order in question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A migration, by its number.
    Moving(u32),
    /// The latest drain of a runtime.
    Draining(NodeId),
}

/// A page of the list of flows.
#[derive(Debug, Default)]
pub struct Page {
    /// The flows.
    pub flows: Vec<Flow>,
    /// The start of the next page, unless this one is the last.
    pub next: Option<ListCursor>,
}

/// Steps of traced packets.
#[derive(Debug, Default)]
pub struct Traced {
    /// Packets with a number up to this one are complete.
    pub whole: u64,
    /// The steps in no order, each with its position in its packet's path.
    pub steps: Vec<(u32, TraceStep)>,
}

/// The running configuration.
#[derive(Debug, Clone)]
pub struct Running {
    /// The file's name, as given to the box.
    pub file: String,
    /// The file's text.
    pub text: Arc<str>,
    /// The plan of this text.
    pub plan: Arc<Plan>,
    /// The version of the rules.
    pub rules: u64,
    /// The most bytes of a record of new rules.
    pub record: usize,
}

/// A closure that makes the answer on the caller's thread instead of the packet loop's.
type Make<T> = Box<dyn FnOnce() -> Result<T, String> + Send>;

/// The place for an answer. If it is dropped, the caller is told that none came in time.
pub struct Answer<T>(Sender<Make<T>>);

impl<T: Send + 'static> Answer<T> {
    /// A place, and the channel of its answer.
    fn new() -> (Answer<T>, Receiver<Make<T>>) {
        let (answer, answered) = channel();
        (Answer(answer), answered)
    }

    /// Gives an answer that exists already; only for small ones. The caller may have
    /// gone.
    pub fn give(self, answer: T) {
        self.make(|| Ok(answer));
    }

    /// Refuses, with the reason.
    pub fn refuse(self, why: impl Into<String>) {
        let why = why.into();
        self.make(|| Err(why));
    }

    /// Gives an answer that is made on the caller's thread.
    pub fn make(self, make: impl FnOnce() -> Result<T, String> + Send + 'static) {
        let _ = self.0.send(Box::new(make));
    }
}

impl<T> std::fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answer")
    }
}

/// Gives this thread, and those that it starts, a lower priority than the packet loop.
pub(crate) fn stand_back() {
    // Clients are served even if the kernel refuses the lower priority.
    let _ = rustix::process::setpriority_process(None, NICENESS);
}
