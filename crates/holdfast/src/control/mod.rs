//! What a box can be asked: gRPC, through the Unix socket and from elsewhere over TLS.
//!
//! Theory of operation: the manager has one thread for it, of low priority ([`serving`]). Connections come through the socket
//! ([`server`]), from the user who started the box and from root, who may do everything, and through the control API
//! ([`api`]), where a certificate says what its holder may do. A call has a seat before its message is read ([`calls`]), and
//! becomes a question to the [`service`] on a thread that may wait.
//!
//! In: connections. Out: answers; counts of what was refused, by reason. The packet loop sees only [`Request`]s, at most one
//! per turn, and answers with what it has at hand; the caller's thread makes the message. A slow client never delays the
//! packet loop: an answer that is long comes in pieces, and no more is asked for than the client takes. Never: a place without
//! a limit, an answer to somebody who may not ask.

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
use holdfast_control::PATIENCE;
use holdfast_control::api::{Flow, PingReply, Progress, Status, TraceStep};
use holdfast_node::message::{Order, Place};
use holdfast_node::rules::RuleRecords;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Calls at a time, streams included: through the socket, and as many from elsewhere.
pub const MAX_CLIENTS: usize = 32;
/// Connections at a time: through the socket, and as many from elsewhere.
pub const MAX_CONNECTIONS: usize = 2 * MAX_CLIENTS;
/// Added to the priority of threads that serve clients: frames go first.
const NICENESS: i32 = 10;
/// Packets and time of one trace at most.
const MAX_TRACE: u32 = 10_000;
const MAX_TRACE_WAIT: Duration = Duration::from_secs(3600);

/// How much is served at a time, and how long somebody may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections whose handshake is over.
    pub connections: usize,
    /// Connections before that.
    pub handshakes: usize,
    /// Of these, from one address.
    pub handshakes_per_address: usize,
    /// Calls, streams included.
    pub calls: usize,
    /// For a handshake.
    pub handshake: Duration,
    /// Without a byte from a client. One that is alive answers a ping before.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: MAX_CONNECTIONS,
            handshakes: 64,
            handshakes_per_address: 8,
            calls: MAX_CLIENTS,
            handshake: PATIENCE,
            idle: Duration::from_secs(60),
        }
    }
}

/// What the packet loop is asked, each with the place for its answer.
#[derive(Debug)]
pub enum Request {
    /// Liveness probe of the packet loop. The answer has the processor times of the longest steps for a question since the
    /// last probe.
    Ping(Answer<PingReply>),
    /// What the box says about itself.
    Status(Answer<Status>),
    /// The next page of the list of flows.
    Flows {
        /// At most so many.
        limit: u32,
        /// Only these: a selector that has been read once already.
        filter: String,
        /// Cursor to continue from; without it, the list begins anew.
        at: Option<Place>,
        /// Where the page goes.
        answer: Answer<Page>,
    },
    /// Trace the next packets that match; a count of 0 ends it.
    Trace {
        /// Which.
        selector: String,
        /// How many.
        count: u32,
        /// Told when it has begun.
        answer: Answer<()>,
    },
    /// The steps traced since the last such request.
    Traces(Answer<Traced>),
    /// An order to move, drain or restore; answered with its number. Its selector has been read once already.
    Order(Order, Answer<u32>),
    /// How far an order is.
    Progress(Work, Answer<Progress>),
    /// By which configuration the box runs.
    Configuration(Answer<Running>),
    /// Go by these rules. Answered when they are in force, with their version.
    Apply {
        /// The version of the rules that they were compared with.
        based_on: u64,
        /// The configuration that they are from, all of it.
        text: Arc<str>,
        /// What that means, read under the name of the box's own file.
        plan: Arc<Plan>,
        /// The same in a memory that the guard is given.
        memory: OwnedFd,
        /// The new rules, encoded: the packet loop only passes them on.
        rules: RuleRecords,
        /// Where the version goes.
        answer: Answer<u64>,
    },
}

/// Which order is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A migration, by its number.
    Moving(u32),
    /// The latest drain of a runtime.
    Draining(u16),
}

/// A page of the list of flows.
#[derive(Debug, Default)]
pub struct Page {
    /// The flows.
    pub flows: Vec<Flow>,
    /// Where the next page begins, unless this one is the last.
    pub next: Option<Place>,
}

/// Steps of traced packets.
#[derive(Debug, Default)]
pub struct Traced {
    /// Of packets with a number up to this one there are no more to come.
    pub whole: u64,
    /// The steps in no order, each with its place in its packet's way.
    pub steps: Vec<(u32, TraceStep)>,
}

/// By which configuration a box runs.
#[derive(Debug, Clone)]
pub struct Running {
    /// Its file, as the box was given it.
    pub file: String,
    /// What is in it.
    pub text: Arc<str>,
    /// What that means.
    pub plan: Arc<Plan>,
    /// The version of the rules.
    pub rules: u64,
    /// The most bytes that a record of new rules may have.
    pub record: usize,
}

/// What the caller's thread makes the answer with, so that the packet loop need not.
type Make<T> = Box<dyn FnOnce() -> Result<T, String> + Send>;

/// The place for an answer. Without one, when it is dropped, the caller is told that none came in time.
pub struct Answer<T>(Sender<Make<T>>);

impl<T: Send + 'static> Answer<T> {
    /// A place, and where its answer comes.
    fn new() -> (Answer<T>, Receiver<Make<T>>) {
        let (answer, answered) = channel();
        (Answer(answer), answered)
    }

    /// The answer, which exists already; only for small ones. The caller may have gone.
    pub fn give(self, answer: T) {
        self.make(|| Ok(answer));
    }

    /// Why there is none.
    pub fn refuse(self, why: impl Into<String>) {
        let why = why.into();
        self.make(|| Err(why));
    }

    /// The answer, made on the caller's thread.
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
