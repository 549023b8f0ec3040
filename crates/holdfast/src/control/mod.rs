//! What a box can be asked, through two doors: the control socket here, and the control API from elsewhere ([`remote`]). Behind both is one service.
//!
//! The control socket speaks lines of JSON. In: clients' lines, each `{"version":1,"request":…}` with a [`Call`]. Out: one line each, a JSON object with `version`; of a trace one line
//! per step, and a last one with `done`. What goes wrong is an object with `error`. The packet loop sees [`Request`]s only, and answers when
//! it comes to them, one in a turn, with what it has at hand: words and JSON are made of it on the client's thread. Nothing that a client does or fails to do reaches it.

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
use holdfast_node::rules::Rule;
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Nothing but an answer.
    Ping,
    /// [`holdfast_control::status::Status`].
    Status,
    /// The next flows of a list: `flows`, and where it goes on, `next`, unless it is over.
    Flows {
        /// At most so many.
        limit: u32,
        /// Only these: a selector that has been read once already.
        filter: String,
        /// Where the list goes on; without it, where it begins.
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
    /// The configuration: `file` and `text` as the box has read them, and the version of the `rules`.
    Configuration,
    /// Go by these rules. Answered when they are in force.
    Apply {
        /// The version of the rules that they were compared with.
        based_on: u64,
        /// The configuration that they are from, all of it.
        text: Arc<str>,
        /// They.
        rules: Vec<Rule>,
    },
}

/// What the packet loop gives for an answer: whoever asked makes the JSON object of it, on his own time.
pub type Answer = Box<dyn FnOnce() -> Value + Send>;

/// A request with the place for its answer.
pub struct Asked {
    /// What is asked.
    pub request: Request,
    /// Where the answer goes.
    pub answer: Sender<Answer>,
}

/// A list's place as clients know it.
pub(crate) fn place_words(place: Place) -> holdfast_control::flows::Place {
    [place.peer.node.into(), place.peer.incarnation, place.lane.into(), place.slot]
}

/// This thread, and those that it starts, get what the packet loop leaves.
fn stand_back() {
    // That it may not be so is no reason not to serve.
    let _ = rustix::process::setpriority_process(None, NICENESS);
}
