//! What a box can be asked, through two doors: the control socket here, and the control API from elsewhere ([`remote`]). Behind both is one service.
//!
//! The control socket speaks lines of JSON. In: clients' lines, each
//! `{"version":1,"request":…}` with a [`Call`]. Out: one line each, a JSON object with
//! `version`; a trace gives one line per step, and a last one with `done`. An error is an
//! object with `error`. The packet loop sees only [`Request`]s, at most one per turn, and
//! answers with what it has at hand; the client's thread formats the JSON. A slow client
//! never delays the packet loop.

mod apply;
mod join;
mod lock;
pub mod remote;
mod server;
mod service;

pub(crate) use lock::Lock;
pub(crate) use server::make_directory;
pub use server::{Server, listen, listen_and_stop, tidy, tidy_after};

use holdfast_control::{Call, MAX_FILE, MAX_REQUEST};
use holdfast_node::message::Place;
use holdfast_node::rules::RuleRecords;
use rustix::fd::OwnedFd;
use serde_json::Value;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// Longest request with a configuration. Line ends and quotation marks take two bytes in JSON.
const MAX_LONG_REQUEST: usize = 2 * MAX_FILE + MAX_REQUEST;
/// Clients at a time.
pub const MAX_CLIENTS: usize = 32;
/// Added to the priority of threads that serve clients: frames go first.
const NICENESS: i32 = 10;
/// Packets and time of one trace at most.
const MAX_TRACE: u32 = 10_000;
const MAX_TRACE_WAIT: Duration = Duration::from_secs(3600);

/// What the packet loop is asked.
#[derive(Debug)]
pub enum Request {
    /// Liveness probe of the packet loop. The answer has the processor time of the longest step
    /// for a question since the last probe: `longest_us` of the manager, `runtimes_longest_us`
    /// of any runtime.
    Ping,
    /// [`holdfast_control::status::Status`].
    Status,
    /// The next page of the list: `flows`, and its cursor `next` unless the list is
    /// complete.
    Flows {
        /// At most so many.
        limit: u32,
        /// Only these: a selector that has been read once already.
        filter: String,
        /// Cursor to continue from; without it, the list begins anew.
        at: Option<Place>,
    },
    /// Trace the next packets that match; a count of 0 ends it.
    Trace {
        /// Which.
        selector: String,
        /// How many.
        count: u32,
    },
    /// The `steps` traced since the last such request, in no order; of packets with a number up to `whole` there are no more to come.
    Traces,
    /// A [`Call`] that is answered at once: to move, drain, restore, or how far that is. Its selector has been read once already.
    Change(Call),
    /// The configuration: `file` and `text` as the box has read them, the version of the
    /// `rules`, and the most bytes that a `record` of new ones may have.
    Configuration,
    /// Go by these rules. Answered when they are in force.
    Apply {
        /// The version of the rules that they were compared with.
        based_on: u64,
        /// The configuration that they are from, all of it.
        text: Arc<str>,
        /// The same in a memory that the guard is given.
        memory: OwnedFd,
        /// The new rules, encoded: the packet loop only passes them on.
        rules: RuleRecords,
    },
}

/// The packet loop's answer. The client's thread calls it to build the JSON object, so
/// that the packet loop need not.
pub type Answer = Box<dyn FnOnce() -> Value + Send>;

/// A request with the place for its answer.
pub struct Asked {
    /// What is asked.
    pub request: Request,
    /// Channel to the thread that waits for the answer.
    pub answer: Sender<Answer>,
}

/// A list's cursor in the form that clients get.
pub(crate) fn place_words(place: Place) -> holdfast_control::flows::Place {
    [place.peer.node.into(), place.peer.incarnation, place.lane.into(), place.slot]
}

/// Gives this thread, and those that it starts, a lower priority than the packet loop.
pub(crate) fn stand_back() {
    // Clients are served even if the kernel refuses the lower priority.
    let _ = rustix::process::setpriority_process(None, NICENESS);
}
