//! Messages between nodes, besides those of protections.
//!
//! Rare messages are [`Control`] values in postcard encoding. Messages that come by the
//! thousand (claims of routes, ends of flows) have a fixed layout of their own.

mod claims;
mod last;
mod ordered;
mod said;
mod standing;

pub use claims::{Claim, ClaimFlag, Grant};
pub use last::LastWord;
pub use ordered::{Ordered, numbered};
pub use said::{FlowInfo, FlowPage, ListCursor, Listing, Logged, PoolId, Report, Share, TraceStep};
pub use standing::{Cause, Drain, Failover, Notice, Order, Protected, Refusal, Retried, Standing};

use crate::rules::Rule;
use holdfast_protection::{Epoch, Peer};
use holdfast_wire::{DropReason, FlowKey, NodeId};
use serde::{Deserialize, Serialize};
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Kinds of records; those up to [`holdfast_protection::kind::LAST`] are the
/// protections'.
pub mod kind {
    /// A [`Control`](super::Control).
    pub const CONTROL: u8 = 32;
    /// Runtime to switch: [`Claim`](super::Claim)s, after a number (4) that the answer
    /// repeats.
    pub const CLAIM: u8 = 33;
    /// Switch to runtime: the number (4), then a [`Grant`](super::Grant) (8) per claim.
    pub const CLAIMED: u8 = 34;
    /// Runtime to switch: [`Ended`](super::Ended) flows. Switch to runtime: flows whose
    /// key is another flow's.
    pub const ENDED: u8 = 35;
    /// Runtime to switch: these routes ([`Claim`](super::Claim)s) are to lead to another
    /// runtime, after the batch's number (4), that runtime's node (2) and incarnation
    /// (4).
    pub const MOVE: u8 = 36;
    /// Switch to runtime: the batch's number (4), then a new epoch (4) per route, 0 for a
    /// refusal. In band follows a mark with the number.
    pub const MOVED: u8 = 37;
    /// Runtime to switch: the mark of this batch (4) is missing.
    pub const MARK: u8 = 38;
    /// Runtime to switch: [`Ended`](super::Ended) used for flows that have arrived under
    /// these epochs.
    pub const SETTLED: u8 = 39;
    /// Runtime to runtime: flows ([`Claim`](super::Claim)s) that are about to come, after
    /// the batch's number (4) and the chain's layout hash (8).
    pub const PREPARE: u8 = 40;
    /// Answer to `PREPARE`: the batch's number (4), and which of the flows are welcome
    /// (4, a bit each).
    pub const PREPARED: u8 = 41;
    /// Runtime to runtime: the batch's number (4), which flow of it (1), and the flow
    /// actor.
    pub const FLOW: u8 = 42;
    /// Answer to `FLOW`: the batch's number (4), and which flows are served now (4).
    pub const ARRIVED: u8 = 43;
    /// Runtime to runtime: these flows (4, a bit each) of this batch (4) will not come.
    pub const CANCEL: u8 = 44;
    /// Between runtime and coordinator: a number (8), then a [`Control`](super::Control)
    /// that takes effect once, whatever happens to the coordinator. See
    /// [`Ordered`](super::Ordered).
    pub const NUMBERED: u8 = 45;
    /// New incarnation of a switch to runtime: its number in packets' metadata (1). The
    /// switch knows no route, and asks for the runtime's.
    pub const TELL: u8 = 46;
    /// Answer to `TELL`, in parts: the number that it named (1), 1 if nothing follows
    /// (1), the newest epoch known (4), the latest stamp (8), [`RouteInfo`]s.
    pub const ROUTES: u8 = 47;
    /// Runtime to switch: the runtime had to refuse a new flow for want of room. The
    /// record is empty.
    pub const FULL: u8 = 48;
    /// Runtime to switch: packets of this chain (2) up to this stamp (8) need not be
    /// kept.
    pub const CLEAR: u8 = 49;
    /// Runtime to switch: a [`Replay`](super::Replay).
    pub const REPLAY: u8 = 50;
    /// Answer to `REPLAY`: no packets are left to be sent again to the owner of this
    /// epoch (4).
    pub const UNLOGGED: u8 = 51;
    /// To a switch, stamps (8 each) of its packets. From a runtime: its functions
    /// panicked on them. From a manager: a process has ended with them in hand.
    pub const SUSPECT: u8 = 52;
    /// Instance to state server, and back: see [`state`](crate::state). Begins a session:
    /// the caller, its memory of the other side, and the number of messages that have
    /// arrived from it.
    pub const STATE_HELLO: u8 = 53;
    /// Answer to `STATE_HELLO`, of the same layout: the session begins.
    pub const STATE_WELCOME: u8 = 54;
    /// Messages of a session, one behind the other.
    pub const STATE: u8 = 55;
    /// State server to instance: the session is over. The record is empty.
    pub const STATE_OVER: u8 = 56;
    /// Runtime to manager, the answer to [`ListFlows`](super::Control::ListFlows): its
    /// number (4), 1 if nothing follows (1), the lane (2) and the slot (4) at which the
    /// list continues, and [`FlowInfo`](super::FlowInfo)s one behind the other. See
    /// [`FlowsHead`](super::FlowsHead).
    pub const FLOWS: u8 = 57;
    /// Runtime to manager, the answer to [`RankFlows`](super::Control::RankFlows): its
    /// number (4), and a runtime's [`Ranks`](crate::ranks::Ranks).
    pub const RANKS: u8 = 58;
}

/// In [`FlowsHead`]: the list is complete.
const NO_LANE: u16 = u16::MAX;

/// A route, as its flow's runtime knows it.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RouteInfo {
    /// Keys, epoch and chain of the flow.
    pub claim: Claim,
    /// The runtime to which the route leads: this one, or the one to which the flow is
    /// moving.
    pub node: U16,
    /// Incarnation of that runtime.
    pub incarnation: U32,
    /// The flow's epoch before the move, if it is moving; otherwise 0.
    pub before: U32,
    /// 1 if a packet of the flow has been released, or a replica knows the flow; 0 if it
    /// is being opened.
    pub is_real: u8,
}

/// The new owner of a flow asks for packets that the old owner was sent. The packets come
/// in band, with a mark.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Replay {
    /// The new owner's epoch.
    pub epoch: U32,
    /// The first packet, counted from 0 in the order in which they were sent.
    pub first: U32,
    /// The number of packets. 0: no more are needed, and packets that came since may
    /// follow.
    pub count: U32,
}

impl Replay {
    /// Packets that may be asked for at a time.
    pub const MOST: u32 = 64;
}

/// A flow that has ended, or never existed.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ended {
    /// The flow's forward key, or the key of the packet that found no flow.
    pub key: KeyBytes,
    /// The flow's epoch: a newer route under the same key stays.
    pub epoch: U32,
}

/// The beginning of a [`kind::FLOWS`] record. The flows are behind it.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FlowsHead {
    /// The list's request.
    pub request: U32,
    /// Not 0 if the piece ends here.
    pub is_last: u8,
    lane: U16,
    slot: U32,
}

impl FlowsHead {
    /// The beginning of a record for this list. `next`: the chain and the slot at which
    /// the list continues; `None` if it is over.
    pub(crate) fn new(request: u32, is_last: bool, next: Option<(u16, u32)>) -> FlowsHead {
        let (lane, slot) = next.unwrap_or((NO_LANE, 0));
        FlowsHead {
            request: request.into(),
            is_last: is_last.into(),
            lane: lane.into(),
            slot: slot.into(),
        }
    }

    /// The chain and the slot at which the list continues; `None` if it is over.
    pub fn next(&self) -> Option<(u16, u32)> {
        (self.lane.get() != NO_LANE).then_some((self.lane.get(), self.slot.get()))
    }
}

/// A flow key, in the layout of messages.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct KeyBytes([u8; 40]);

impl From<FlowKey> for KeyBytes {
    fn from(key: FlowKey) -> KeyBytes {
        let mut bytes = [0; 40];
        bytes.copy_from_slice(key.as_bytes());
        KeyBytes(bytes)
    }
}

impl From<KeyBytes> for FlowKey {
    fn from(bytes: KeyBytes) -> FlowKey {
        zerocopy::transmute!(bytes.0)
    }
}

/// A runtime's state, as the coordinator sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    /// The process was started, but has sent nothing yet.
    Starting,
    /// The runtime serves flows.
    Running,
    /// The runtime serves its flows and gets no new ones.
    Leaving,
    /// The runtime has ended, or is no longer heard.
    Failed,
}

/// A runtime in the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Node id.
    pub node: NodeId,
    /// Incarnation.
    pub incarnation: u32,
    /// State.
    pub state: MemberState,
    /// The runtime's virtual cluster, counted from 0.
    pub cluster: u16,
    /// The runtime's host, counted from 0.
    pub host: u16,
}

impl MemberState {
    /// True if the runtime has flows, and is heard.
    pub fn serves(self) -> bool {
        matches!(self, MemberState::Running | MemberState::Leaving)
    }
}

impl Member {
    /// The runtime's node and incarnation.
    pub fn peer(&self) -> Peer {
        Peer { node: self.node, incarnation: self.incarnation }
    }
}

/// A rare message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// Runtime to coordinator: the runtime lives, with chains of these layouts.
    Hello {
        /// Layout hash of each chain, in order.
        layouts: Vec<u64>,
    },
    /// Runtime to coordinator and manager: heartbeat and load.
    Report(Report),
    /// State server to manager: the state of its lists, in order; now and then, when that
    /// has changed.
    Lists(Vec<Listing>),
    /// Coordinator to all: the members; to a runtime, those of its own virtual cluster.
    View {
        /// Number of the view; each view has the next one.
        version: u64,
        /// The runtimes.
        members: Vec<Member>,
    },
    /// Coordinator to runtimes: this runtime has failed, recover your copies of its
    /// flows.
    Recover {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
    },
    /// Runtime to coordinator: the recovery of that runtime is done.
    Recovered {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
        /// Flows taken over.
        flows: u64,
        /// Flows that were given to this runtime and that no runtime can restore: they
        /// have ended.
        broken: u64,
    },
    /// Runtime to coordinator: all that is open of a recovery waits for sweeps of other
    /// failed runtimes, by the answers of these incarnations of switches. The dead
    /// runtime's own routes may be swept. The recovery is not over:
    /// [`Control::Recovered`] follows.
    Waits {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
        /// The switches that let something wait.
        switches: Vec<Peer>,
    },
    /// Runtime to coordinator: flows that came here hold these numbers of a pool. The
    /// message comes before [`Control::Recovered`].
    Adopted {
        /// The pool.
        pool: PoolId,
        /// Numbers, each with the epoch under which its flow came, or 0 if that is not
        /// remembered.
        numbers: Vec<(u32, u32)>,
    },
    /// Coordinator to switch: end the routes that still lead to the failed runtime and
    /// that no replica has claimed. Every replica has reported, or waits for this.
    Sweep {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
        /// No runtime waits: the recovery is over.
        is_over: bool,
    },
    /// Runtime to coordinator: the runtime's part of a pool runs low.
    WantBlock {
        /// The pool.
        pool: PoolId,
    },
    /// Coordinator to runtime: blocks of a pool.
    Grant {
        /// The pool.
        pool: PoolId,
        /// Block numbers, each with the numbers in it that flows elsewhere still hold.
        blocks: Vec<(u32, [u64; 4])>,
    },
    /// Coordinator to runtime: the pool has no block left.
    Deny {
        /// The pool.
        pool: PoolId,
    },
    /// A number is free again: runtime to coordinator, or coordinator to the runtime that
    /// has its block.
    Returned {
        /// The pool.
        pool: PoolId,
        /// Numbers.
        numbers: Vec<u32>,
    },
    /// Coordinator to runtime: flows elsewhere hold these numbers of its blocks.
    Taken {
        /// The pool.
        pool: PoolId,
        /// Numbers.
        numbers: Vec<u32>,
    },
    /// Coordinator to runtime: others need blocks. The answer is [`Control::Spared`].
    SpareBlocks {
        /// The pool.
        pool: PoolId,
    },
    /// Runtime to coordinator: the blocks that it gives back. Flows hold no number of
    /// them. The list may be empty.
    Spared {
        /// The pool.
        pool: PoolId,
        /// Block numbers.
        blocks: Vec<u32>,
        /// The answer is complete.
        last: bool,
    },
    /// Manager to runtime: list your flows. The answer, [`kind::FLOWS`], has some of
    /// them; the asker asks again from where these end.
    ListFlows {
        /// Repeated in the answer.
        request: u32,
        /// Limit of flows.
        limit: u32,
        /// Selects flows: a selector of the tuple before or after the chain, as text.
        selector: String,
        /// The lane to begin with: flows of earlier lanes are not wanted.
        lane: u16,
        /// The slot to begin with in that lane.
        slot: u32,
    },
    /// Coordinator to runtime: move flows away. The answer is [`Control::Migrated`], now
    /// and then while it goes on and when it is done.
    Migrate {
        /// Repeated in the answers.
        request: u32,
        /// Runtimes that may get the flows, by turns.
        targets: Vec<(NodeId, u32)>,
        /// Limit of flows.
        limit: u64,
        /// Selects flows: a selector of the tuple before or after the chain, as text.
        selector: String,
    },
    /// Runtime to coordinator and manager: the progress of a request.
    Migrated {
        /// The request's number.
        request: u32,
        /// Flows that another runtime serves now.
        moved: u64,
        /// Flows that no runtime would take.
        refused: u64,
        /// True in the last message about the request.
        last: bool,
    },
    /// Coordinator to runtime: the managers that want the runtime's reports, and the
    /// hosts that serve the ports.
    Managers {
        /// Per switch, its host.
        serving: Vec<u16>,
        /// The managers.
        peers: Vec<Peer>,
    },
    /// Coordinator to manager: the host that runs a switch, in this `term`; every change
    /// of hosts begins another term. No other host serves the switch's ports.
    Serve {
        /// The switch, counted from 0.
        switch: u16,
        /// The host.
        host: u16,
        /// The number of the term.
        term: u32,
        /// The incarnation of the host's manager: a term is served by one incarnation,
        /// and not by the next.
        manager_incarnation: u32,
    },
    /// Coordinator to a manager that serves ports: these runtimes of other hosts may
    /// speak, and no others of those hosts.
    Admit {
        /// The runtimes.
        peers: Vec<Peer>,
    },
    /// Manager to manager and coordinator: a sign of life. See [`quorum`](crate::quorum).
    Beat(Beat),
    /// Runtime to manager: steps of packets that are traced.
    Trace(Vec<TraceStep>),
    /// Coordinator to switch: service-chain rules, which are in force once all parts have
    /// come. The answer is [`Control::RulesInForce`].
    Rules {
        /// Number of the set of rules, from 1.
        version: u64,
        /// Number of this part of the set, from 0.
        part: u16,
        /// The number of parts.
        parts: u16,
        /// The part's rules.
        rules: Vec<Rule>,
    },
    /// Coordinator to a switch that has just started: these runtimes have failed, and not
    /// every runtime that may have replicas of their flows has reported.
    Recovering {
        /// The failed runtimes.
        dead: Vec<Peer>,
        /// The newest epoch that is remembered, 0 for none: the runtime that told it may
        /// be dead.
        epoch: u32,
    },
    /// Switch to coordinator: the set of rules that decides about new flows. A switch
    /// sends it at its start too, without rules, and is sent some.
    RulesInForce {
        /// The set's version; 0 for none.
        version: u64,
    },
    /// Coordinator to runtime and manager, first of all in each of its incarnations:
    /// report everything. A runtime answers with [`Control::Hello`], [`Control::Holds`],
    /// [`Control::Accounted`] and a report, the manager with [`Control::Ended`] and
    /// [`Control::Present`].
    Account {
        /// The last of the receiver's numbered messages that is remembered.
        handled: u64,
    },
    /// Runtime to coordinator: the runtime has these blocks of a pool.
    Holds {
        /// The pool.
        pool: PoolId,
        /// Block numbers.
        blocks: Vec<u32>,
    },
    /// Runtime to coordinator: the account is complete.
    Accounted {
        /// The last numbered message of the coordinator that has taken effect.
        handled: u64,
    },
    /// Between runtime and coordinator: numbered messages up to this one will never be
    /// needed again.
    Settled {
        /// The number of the last one.
        handled: u64,
    },
    /// Coordinator to manager: start this process.
    Start {
        /// Node.
        node: NodeId,
        /// Incarnation: higher than any that there ever was.
        incarnation: u32,
    },
    /// Manager to coordinator: the process was started.
    Started {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
    },
    /// Coordinator to manager: the runtime is given up, let nothing more out of it. The
    /// answer is [`Control::Ended`].
    Fence {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
    },
    /// Manager to coordinator: nothing more is let out of the runtime. Its process has
    /// ended, was fenced, or could not be started.
    Ended {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
        /// Flows that the switch sent there; `None` if the switch has not been told of
        /// all of them.
        flows: Option<u64>,
        /// Flows of the runtime by its [`LastWord`], or if another host has that, by its
        /// last report; `None` if neither is known here.
        last: Option<u64>,
        /// How the manager noticed the end.
        notice: Notice,
    },
    /// Manager to coordinator: these runtimes have been started and may speak, and no
    /// others.
    Present {
        /// The runtimes.
        peers: Vec<Peer>,
    },
    /// Manager to coordinator: frames that found these runtimes' rings full, since each
    /// began.
    Crowded {
        /// The runtimes, with the number of frames.
        refused: Vec<(Peer, u64)>,
    },
    /// Coordinator to manager: the runtime has nothing left to do, end its process.
    Stop {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
    },
    /// Manager to coordinator: an operator's order.
    Order {
        /// Repeated in the answer.
        ticket: u32,
        /// The order.
        order: Order,
    },
    /// Coordinator to manager: the number of the request that has begun, or the reason
    /// why none has.
    Answer {
        /// The order's ticket.
        ticket: u32,
        /// The request's number, if the order began one.
        result: Result<u32, Refusal>,
    },
    /// Coordinator to manager: a drain, whenever it has progressed.
    Draining(Drain),
    /// Coordinator to manager: the state of the box, for operators.
    Standing(Standing),
    /// Coordinator to manager: a failure, when it is known and when its recovery is over.
    Failover(Failover),
    /// Manager to manager: how its host seals packets. The message goes with every beat,
    /// and as soon as there is news.
    Sealing(Sealing),
    /// Some numbers of a statistic; now and then, when they have changed. State server to
    /// manager: the sums over all instances. Runtime to managers: the numbers of its own
    /// flows, if no state server adds them up.
    Totals {
        /// The statistic, among the sender's, counted from 0.
        statistic: u32,
        /// The index of the first number, counted from 0.
        first: u32,
        /// The numbers.
        values: Vec<i64>,
    },
    /// Runtime to the manager of its host: packets that functions log for the operator.
    Logged(Vec<Logged>),
    /// Coordinator to the manager of its host: this runtime is silent. If it stands still
    /// it is fenced, as by [`Control::Fence`]; otherwise the answer is
    /// [`Control::Alive`].
    Silent {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
    },
    /// Manager to coordinator, the answer to `Silent`: the runtime's loop turns, or would
    /// if it had a processor.
    Alive {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
    },
    /// Switch to coordinator: the failed runtime's routes have been swept for the last
    /// time, and this incarnation of the switch has seen all of its recovery.
    Unclaimed {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
        /// Flows of which packets had been released and that no replica claimed.
        flows: u64,
    },
    /// Manager to runtime: add up which flows, hosts and ports have most bytes. The
    /// answer is [`kind::RANKS`].
    RankFlows {
        /// Repeated in the answer.
        request: u32,
    },
}

/// How a host seals packets to other hosts: see [`seal`](crate::seal).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealing {
    /// The incarnation of the manager that this is for. An announcement that waited for
    /// an earlier incarnation does not tell what its successor may take.
    pub to: u32,
    /// The host's life number.
    pub life: u64,
    /// The number of packets that the host has sealed before this.
    pub counter: u64,
    /// The nodes on the host.
    pub nodes: Vec<NodeId>,
}

/// A manager's sign of life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// The send time, by the sender's clock, ns.
    pub sent: u64,
    /// For every host, the send time of the latest beat that the sender has from it, by
    /// that host's clock, ns; 0 if there is none.
    pub echoes: Vec<u64>,
    /// For every host, the time since the sender had that beat, or since the sender began
    /// if it has had none, ns.
    pub ages: Vec<u64>,
    /// The hosts that are connected to the sender, itself included, a bit each.
    pub connected: u16,
    /// Per switch, the state of its service.
    pub services: Vec<Service>,
    /// The sender is about to end, as planned.
    pub is_leaving: bool,
}

/// A host's service of one switch's ports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// The latest term that the host has been told.
    pub term: u32,
    /// The host serves the ports in that term.
    pub serves: bool,
    /// Ports whose links are up.
    pub links: u8,
}

/// Limit of views that a coordinator can have made while a node heard nothing of it.
const MOST_VIEWS: u64 = 1 << 32;

/// True if this is the number of a later view than the known one, and small enough to
/// exist.
pub(crate) fn is_later_view(known: u64, said: u64) -> bool {
    said > known && said - known <= MOST_VIEWS
}

impl Control {
    /// Appends the message's encoding.
    pub fn encode(&self, into: &mut Vec<u8>) {
        // Encoding into a vector fails only for types that postcard does not support, and
        // these are none.
        let bytes = postcard::to_stdvec(self).expect("control messages are plain data");
        into.extend_from_slice(&bytes);
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] if the bytes are not an encoding.
    pub fn decode(bytes: &[u8]) -> Result<Control, DropReason> {
        postcard::from_bytes(bytes).map_err(|_| DropReason::Malformed)
    }

    /// The number of the part, if this is an encoded [`Control::Rules`]. Reads no rule.
    pub fn rules_part(bytes: &[u8]) -> Option<u16> {
        let ((number, _, part), _) = postcard::take_from_bytes::<(u32, u64, u16)>(bytes).ok()?;
        (number == RULES_NUMBER).then_some(part)
    }
}

/// The number by which an encoding of [`Control::Rules`] begins: its place among the
/// messages.
const RULES_NUMBER: u32 = 24;

impl crate::channel::Fabric {
    /// Queues a control message. False if the queue is full.
    pub fn send_control(&mut self, node: NodeId, message: &Control) -> bool {
        let mut bytes = Vec::with_capacity(64);
        message.encode(&mut bytes);
        self.send(node, kind::CONTROL, &bytes).is_ok()
    }

    /// Sends keys and epochs of flows in records of this kind, as many as it takes.
    /// Returns how many flows the channel took.
    pub(crate) fn send_ended(
        &mut self,
        node: NodeId,
        kind: u8,
        flows: &[(FlowKey, Epoch)],
    ) -> usize {
        let mut told = 0;
        for chunk in flows.chunks(32) {
            let mut body = [0u8; 32 * size_of::<Ended>()];
            let mut len = 0;
            for (key, epoch) in chunk {
                let ended = Ended { key: (*key).into(), epoch: epoch.get().into() };
                body[len..len + size_of::<Ended>()].copy_from_slice(ended.as_bytes());
                len += size_of::<Ended>();
            }
            if self.send(node, kind, &body[..len]).is_err() {
                break;
            }
            told += chunk.len();
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of a set of rules is known by the beginning of its encoding.
    #[test]
    fn a_part_of_the_rules_is_known_unread() {
        let part_of = |message: Control| {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            Control::rules_part(&bytes)
        };
        assert_eq!(
            part_of(Control::Rules { version: u64::MAX, part: 300, parts: 301, rules: Vec::new() }),
            Some(300)
        );
        assert_eq!(part_of(Control::Recovering { dead: Vec::new(), epoch: 1 }), None);
        assert_eq!(part_of(Control::Trace(Vec::new())), None);
        assert_eq!(Control::rules_part(&[]), None);
    }
}
