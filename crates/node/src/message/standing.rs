//! The state of the box, as the coordinator sees it: members, operators' orders,
//! failures.

use super::Member;
use holdfast_protection::Peer;
use holdfast_wire::NodeId;
use serde::{Deserialize, Serialize};

/// The state of the box, as the coordinator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Standing {
    /// The view of these members.
    pub view: u64,
    /// True if every runtime has started and knows the others.
    pub ready: bool,
    /// Whether flows would survive a failure.
    pub protected: Protected,
    /// The runtimes.
    pub members: Vec<Member>,
    /// Members that are out of service, or about to be.
    pub drained: Vec<NodeId>,
    /// Drained members that are started when their cluster grows.
    pub spare: Vec<NodeId>,
    /// Runtimes that keep ending and are started again.
    pub retried: Vec<Retried>,
    /// The coordinator's own drops, by number of their reason.
    pub drops: Vec<(u8, u64)>,
    /// The hosts that are connected, a bit each.
    pub hosts: u16,
    /// Per switch, the host that serves its ports.
    pub serving: Vec<u16>,
    /// The version of the rules in force at every switch; 0 while one is missing.
    pub rules: u64,
    /// The host where the coordinator is.
    pub coordinator: u16,
    /// True if the death of any one of the hosts would cost no flow, provided `protected`
    /// says so; otherwise no more than a process may die.
    pub survives_host: bool,
}

/// A runtime whose last incarnations were short, and that does not serve again yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retried {
    /// The runtime.
    pub node: NodeId,
    /// Short incarnations in succession.
    pub failures: u32,
    /// The start time of the next incarnation, by the coordinator's clock; `None` if it
    /// has begun.
    pub start_at: Option<u64>,
}

/// Whether flows would survive a failure at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Protected {
    /// Yes, every flow whose chain promises it.
    Yes,
    /// Not yet, or not again yet.
    #[default]
    Resynchronising,
    /// No: there is no place for replicas, or no chain promises it.
    No,
}

/// Why a runtime was declared failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// The process ended.
    Exited,
    /// The runtime was not heard.
    Hung,
    /// The runtime has never sent anything.
    NeverStarted,
    /// The runtime was drained, and had nothing left.
    Drained,
}

/// How a manager noticed a runtime's end. A manager knows this only of runtimes that it
/// has started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Notice {
    /// The cause as text; empty if unknown.
    pub cause: String,
    /// Time since its last turn, ns.
    pub silent: u64,
}

impl Notice {
    /// Longest cause, characters.
    const MAX_CAUSE: usize = 64;

    /// A notice; a cause that is too long is cut.
    pub fn new(cause: &str, silent: u64) -> Notice {
        Notice { cause: cause.chars().take(Notice::MAX_CAUSE).collect(), silent }
    }
}

/// An operator's order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Move at most `limit` flows that match the selector to `to`, or to all others by
    /// turns.
    Move {
        /// The runtime whose flows move.
        from: NodeId,
        /// The target, if it is a single one.
        to: Option<NodeId>,
        /// Limit of flows.
        limit: u64,
        /// The selector, as text.
        selector: String,
    },
    /// Take a runtime out of service: it gets no new flow, its flows move, and its
    /// process ends.
    Drain {
        /// The runtime.
        node: NodeId,
        /// Drain even if flows would not survive a failure without it.
        force: bool,
    },
    /// Bring a drained runtime back into service.
    Restore(NodeId),
}

/// Why an order is not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The runtime does not exist, or serves no flows.
    NotServing(NodeId),
    /// The flows are there already.
    Same,
    /// No other runtime could take the flows.
    NobodyElse,
    /// Without the runtime flows would not survive a failure, and the order does not say
    /// to force it.
    Unsafe(NodeId),
    /// The runtime is leaving already.
    Leaving,
    /// The runtime is of another virtual cluster.
    OtherCluster(NodeId),
    /// The runtime is not out of service.
    NotDrained(NodeId),
    /// The coordinator is away at the moment.
    Away,
}

/// A runtime that is being drained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// The runtime.
    pub peer: Peer,
    /// The time of the order, ns.
    pub began_at: u64,
    /// Flows that it had then.
    pub had: u64,
    /// Flows that other runtimes serve now.
    pub moved: u64,
    /// The time at which its process was told to end, ns.
    pub ended_at: Option<u64>,
    /// The runtime failed before the drain was over: its flows were recovered, as far as
    /// their protection promises.
    pub failed: bool,
}

/// A failure and its recovery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failover {
    /// The runtime that failed.
    pub dead: Peer,
    /// The cause.
    pub cause: Cause,
    /// The time of its detection, ns.
    pub detected_at: u64,
    /// The time at which every runtime had reported.
    pub recovered_at: Option<u64>,
    /// Flows of the runtime: by the switch's routes, those with a released packet;
    /// otherwise by its last word, or its last report.
    pub had: u64,
    /// Flows recovered.
    pub flows: u64,
    /// Flows that were given to others, and that no runtime can restore.
    pub broken: u64,
    /// Flows that no replica claimed, by the switches that have seen all of the recovery.
    pub unclaimed: Vec<(NodeId, u64)>,
    /// How the failure was noticed.
    pub notice: Notice,
}

impl Failover {
    /// Flows lost, in a box with so many switches. The switches know exactly, if none has
    /// died meanwhile. If one has, the two counts differ a little by flows that ended or
    /// began meanwhile; the result is never negative.
    pub fn lost(&self, switches: usize) -> u64 {
        let unclaimed = (self.unclaimed.len() == switches)
            .then(|| self.unclaimed.iter().map(|(_, flows)| flows).sum());
        self.lost_with(unclaimed)
    }

    /// Flows lost, if `unclaimed` flows were claimed by no replica.
    pub fn lost_with(&self, unclaimed: Option<u64>) -> u64 {
        match unclaimed {
            Some(unclaimed) => unclaimed + self.broken,
            None => self.had.saturating_sub(self.flows).max(self.broken),
        }
    }
}
