//! How things stand for the coordinator: who is there, what operators want of it, what has failed.

use super::Member;
use crate::address::NodeId;
use holdfast_protection::Peer;
use serde::{Deserialize, Serialize};

/// How things stand, as the coordinator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Standing {
    /// The view that these are the members of.
    pub view: u64,
    /// Every runtime has started and knows the others.
    pub ready: bool,
    /// Whether flows would survive a failure.
    pub protected: Protected,
    /// The runtimes.
    pub members: Vec<Member>,
    /// Those of them that are out of service, or about to be.
    pub drained: Vec<NodeId>,
    /// Those of these that are started when their cluster grows.
    pub spare: Vec<NodeId>,
    /// Runtimes that keep ending and are started again.
    pub retried: Vec<Retried>,
    /// The coordinator's own drops, by number of their reason.
    pub drops: Vec<(u8, u64)>,
    /// The hosts that are there, a bit each.
    pub hosts: u16,
    /// Per switch, the host that serves its ports.
    pub serving: Vec<u16>,
    /// The version of the rules that every switch goes by; 0 while one is missing.
    pub rules: u64,
    /// The host where the coordinator is.
    pub coordinator: u16,
    /// The death of any one of the hosts would cost no flow, if `protected` says so; else no more than a process may die.
    pub survives_host: bool,
}

/// A runtime whose last lives were short, and that does not serve yet again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retried {
    /// Which.
    pub node: NodeId,
    /// Short lives in succession.
    pub failures: u32,
    /// When the next one is due, by the coordinator's clock; `None` if it has begun.
    pub start_at: Option<u64>,
}

/// Whether flows would survive a failure at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Protected {
    /// Every flow whose chain promises it.
    Yes,
    /// Not yet, or not yet again.
    #[default]
    Resynchronising,
    /// No: there is nowhere to put replicas, or no chain promises it.
    No,
}

/// Why a runtime was declared failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// Its process ended.
    Exited,
    /// It was not heard.
    Hung,
    /// It never spoke.
    NeverStarted,
    /// It was drained: it had nothing left.
    Drained,
}

/// How a manager saw that a runtime is no more. A manager knows this only of runtimes that it has started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Notice {
    /// In words; empty if it does not know.
    pub cause: String,
    /// How long ago it had turned last, ns.
    pub silent: u64,
}

impl Notice {
    /// Longest cause, characters.
    const MAX_CAUSE: usize = 64;

    /// A cause that is longer is cut.
    pub fn new(cause: &str, silent: u64) -> Notice {
        Notice { cause: cause.chars().take(Notice::MAX_CAUSE).collect(), silent }
    }
}

/// What an operator wants done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Move at most `limit` flows that the selector means to `to`, or to all others by turns.
    Move {
        /// Whose flows.
        from: NodeId,
        /// To whom.
        to: Option<NodeId>,
        /// How many at most.
        limit: u64,
        /// Which, in words.
        selector: String,
    },
    /// Take a runtime out of service: it gets no new flow, those that it has move, and its process ends.
    Drain {
        /// Which.
        node: NodeId,
        /// Also if flows would not survive a failure without it.
        force: bool,
    },
    /// Bring a drained runtime back into service.
    Restore(NodeId),
}

/// Why an order is not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// There is no such runtime, or it serves no flows.
    NotServing(NodeId),
    /// The flows are there already.
    Same,
    /// Nobody else could have them.
    NobodyElse,
    /// Without it flows would not survive a failure, and that was not asked for.
    Unsafe(NodeId),
    /// It is leaving already.
    Leaving,
    /// It is of another virtual cluster.
    OtherCluster(NodeId),
    /// It is not out of service.
    NotDrained(NodeId),
    /// There is no coordinator at the moment.
    Away,
}

/// A runtime that is to go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Who.
    pub peer: Peer,
    /// When it was said, ns.
    pub began_at: u64,
    /// Flows that it had then.
    pub had: u64,
    /// Flows that other runtimes serve now.
    pub moved: u64,
    /// When its process was told to end, ns.
    pub ended_at: Option<u64>,
    /// It failed before: its flows were recovered, as far as their protection promises.
    pub failed: bool,
}

/// One failure and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failover {
    /// Who failed.
    pub dead: Peer,
    /// Why.
    pub cause: Cause,
    /// When it was known, ns.
    pub detected_at: u64,
    /// When every runtime had reported.
    pub recovered_at: Option<u64>,
    /// Flows that it had, by the switch's routes those of which something had been released; else by its last
    /// word, or its last report.
    pub had: u64,
    /// Flows recovered.
    pub flows: u64,
    /// Flows that were given to others, and that nobody can make what they were.
    pub broken: u64,
    /// Flows that nobody asked for, by the switches that have seen all of the recovery.
    pub unclaimed: Vec<(NodeId, u64)>,
    /// How it was seen.
    pub notice: Notice,
}

impl Failover {
    /// Flows lost, of a box with so many switches. The switches know exactly, if none has died meanwhile.
    /// Otherwise the two counts differ a little by flows that ended or began meanwhile: never below nothing.
    pub fn lost(&self, switches: usize) -> u64 {
        let unclaimed = (self.unclaimed.len() == switches).then(|| self.unclaimed.iter().map(|(_, flows)| flows).sum());
        self.lost_with(unclaimed)
    }

    /// Flows lost, if so many were asked for by nobody.
    pub fn lost_with(&self, unclaimed: Option<u64>) -> u64 {
        match unclaimed {
            Some(unclaimed) => unclaimed + self.broken,
            None => self.had.saturating_sub(self.flows).max(self.broken),
        }
    }
}
