//! What nodes tell each other besides what protections exchange.
//!
//! Rare messages are [`Control`] values in postcard encoding; those that come by the thousand (claims of routes, ends of flows) have a fixed
//! layout of their own.

mod claims;
mod last;
mod ordered;
mod said;
mod standing;

pub use claims::{Claim, ClaimFlag, Grant};
pub use last::LastWord;
pub use ordered::{Ordered, numbered};
pub use said::{FlowInfo, FlowPage, Listing, Logged, Place, PoolId, Report, Share, TraceStep};
pub use standing::{Cause, Drain, Failover, Notice, Order, Protected, Refusal, Retried, Standing};

use crate::address::NodeId;
use crate::rules::Rule;
use holdfast_protection::{Epoch, Peer};
use holdfast_wire::{DropReason, FlowKey};
use serde::{Deserialize, Serialize};
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Kinds of records; those up to [`holdfast_protection::kind::LAST`] are the protections'.
pub mod kind {
    /// A [`Control`](super::Control).
    pub const CONTROL: u8 = 32;
    /// Runtime to switch: [`Claim`](super::Claim)s, after a number (4) that the answer repeats.
    pub const CLAIM: u8 = 33;
    /// Switch to runtime: the number (4), then a [`Grant`](super::Grant) (8) per claim.
    pub const CLAIMED: u8 = 34;
    /// Runtime to switch: [`Ended`](super::Ended) flows. Switch to runtime: of these the key is another flow's.
    pub const ENDED: u8 = 35;
    /// Runtime to switch: these routes ([`Claim`](super::Claim)s) are to lead to another runtime, after the batch's number (4), that runtime's node (2)
    /// and incarnation (4).
    pub const MOVE: u8 = 36;
    /// Switch to runtime: the batch's number (4), then a new epoch (4) per route, 0 for a refusal. In band follows a mark with the number.
    pub const MOVED: u8 = 37;
    /// Runtime to switch: the mark of this batch (4) has not come.
    pub const MARK: u8 = 38;
    /// Runtime to switch: [`Ended`](super::Ended) used for flows that have arrived under these epochs.
    pub const SETTLED: u8 = 39;
    /// Runtime to runtime: flows ([`Claim`](super::Claim)s) that are about to come, after the batch's number (4) and the chain's layout hash (8).
    pub const PREPARE: u8 = 40;
    /// The answer: the batch's number (4), and which of the flows are welcome (4, a bit each).
    pub const PREPARED: u8 = 41;
    /// Runtime to runtime: the batch's number (4), which flow of it (1), and the flow actor.
    pub const FLOW: u8 = 42;
    /// The answer: the batch's number (4), and which flows are served now (4).
    pub const ARRIVED: u8 = 43;
    /// Runtime to runtime: of this batch (4) these (4) will not come.
    pub const CANCEL: u8 = 44;
    /// Between runtime and coordinator: a number (8), then a [`Control`](super::Control) that takes effect once, whatever happens to the coordinator.
    /// See [`Ordered`](super::Ordered).
    pub const NUMBERED: u8 = 45;
    /// A new life of a switch to runtime: its number in packets' metadata (1). It knows no route: which are yours?
    pub const TELL: u8 = 46;
    /// The answer, in parts: 1 if nothing follows (1), the newest epoch known (4), the latest stamp (8), [`RouteInfo`]s.
    pub const ROUTES: u8 = 47;
    /// Runtime to switch: it had to turn a new flow away for want of room. Nothing follows.
    pub const FULL: u8 = 48;
    /// Runtime to switch: what it was sent for this chain (2) up to this stamp (8) need not be kept.
    pub const CLEAR: u8 = 49;
    /// Runtime to switch: a [`Replay`](super::Replay).
    pub const REPLAY: u8 = 50;
    /// The answer if there is nothing any more to be sent again to the owner of this epoch (4).
    pub const UNLOGGED: u8 = 51;
    /// To a switch, stamps (8 each) of its packets: from a runtime, its functions panicked on them; from a manager, a process has ended while it had them in hand.
    pub const SUSPECT: u8 = 52;
    /// Instance to state server, and back: see [`state`](crate::state). Who wants to talk, what it knows of the other side, and of whom so many messages have arrived.
    pub const STATE_HELLO: u8 = 53;
    /// The answer, of the same layout: from now on there is a session.
    pub const STATE_WELCOME: u8 = 54;
    /// Messages of a session, one behind the other.
    pub const STATE: u8 = 55;
    /// State server to instance: the session is over. Nothing follows.
    pub const STATE_OVER: u8 = 56;
    /// Runtime to manager: the number of a [`ListFlows`](super::Control::ListFlows) (4), 1 if nothing follows (1), in which lane (2) and at which slot (4) the list goes on, and
    /// [`FlowInfo`](super::FlowInfo)s one behind the other. See [`FlowsHead`](super::FlowsHead).
    pub const FLOWS: u8 = 57;
}

/// In [`FlowsHead`]: all flows have been looked at.
const NO_LANE: u16 = u16::MAX;

/// A route as the runtime knows it whose flow it leads to.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RouteInfo {
    /// Keys, epoch and chain of the flow.
    pub claim: Claim,
    /// Where it leads: here, or where the flow is on its way to.
    pub node: U16,
    /// Incarnation of that runtime.
    pub incarnation: U32,
    /// If the flow is on its way: its epoch before. Else 0.
    pub before: U32,
    /// 1 if something of the flow has been released, or is known to a replica; 0 if it is being opened.
    pub is_real: u8,
}

/// The new owner of a flow asks for packets that the old one was sent. They come in band, marked as what they are.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Replay {
    /// The new owner's epoch.
    pub epoch: U32,
    /// The first of them, counted from 0 in the order in which they were sent.
    pub first: U32,
    /// How many; 0: no more are needed, and what came since may follow.
    pub count: U32,
}

impl Replay {
    /// So many may be asked for at a time.
    pub const MOST: u32 = 64;
}

/// A flow is no more, or never was.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ended {
    /// Forward key, or the key of the packet that found no flow.
    pub key: KeyBytes,
    /// Its epoch: a newer route under the same key stays.
    pub epoch: U32,
}

/// The beginning of a [`kind::FLOWS`] record. Behind it are the flows.
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
    /// the list goes on; none if it is over.
    pub(crate) fn new(request: u32, is_last: bool, next: Option<(u16, u32)>) -> FlowsHead {
        let (lane, slot) = next.unwrap_or((NO_LANE, 0));
        FlowsHead { request: request.into(), is_last: is_last.into(), lane: lane.into(), slot: slot.into() }
    }

    /// The chain and the slot at which the list goes on; none if it is over.
    pub fn next(&self) -> Option<(u16, u32)> {
        (self.lane.get() != NO_LANE).then_some((self.lane.get(), self.slot.get()))
    }
}

/// A flow key as it lies in a message.
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

/// What a runtime is doing, as the coordinator sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    /// Its process was started; it has not spoken yet.
    Starting,
    /// It serves flows.
    Running,
    /// It serves what it has and gets nothing new.
    Leaving,
    /// It is gone, or no longer heard.
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
    /// Its virtual cluster, counted from 0.
    pub cluster: u16,
    /// Its host, counted from 0.
    pub host: u16,
}

impl MemberState {
    /// It has flows, and is heard.
    pub fn serves(self) -> bool {
        matches!(self, MemberState::Running | MemberState::Leaving)
    }
}

impl Member {
    /// Who it is.
    pub fn peer(&self) -> Peer {
        Peer { node: self.node, incarnation: self.incarnation }
    }
}

/// A rare message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// Runtime to coordinator: it lives, with chains of these layouts.
    Hello {
        /// Layout hash of each chain, in order.
        layouts: Vec<u64>,
    },
    /// Runtime to coordinator and manager: heartbeat and load.
    Report(Report),
    /// State server to manager: what there is of its lists, in order; now and then, when that has changed.
    Lists(Vec<Listing>),
    /// Coordinator to all: who is there; to a runtime, of its own virtual cluster.
    View {
        /// Counts views.
        version: u64,
        /// The runtimes.
        members: Vec<Member>,
    },
    /// Coordinator to runtimes: this one has failed, recover what you have of it.
    Recover {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
    },
    /// Runtime to coordinator: done with that.
    Recovered {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
        /// Flows taken over.
        flows: u64,
        /// Flows that were given to it, and that nobody can make what they were: they have ended.
        broken: u64,
    },
    /// Runtime to coordinator: all that is open of that waits, as these lives of switches have answered, until others who failed have been swept. The dead one's own routes may be swept; it is not
    /// over, and [`Control::Recovered`] follows.
    Waits {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
        /// The switches where something waits.
        switches: Vec<Peer>,
    },
    /// Runtime to coordinator: flows that came here hold these numbers of a pool. Comes before [`Control::Recovered`].
    Adopted {
        /// The pool.
        pool: PoolId,
        /// Numbers, each with the epoch under which its flow came, or 0 if that is not remembered.
        numbers: Vec<(u32, u32)>,
    },
    /// Coordinator to switch: routes that still lead to the failed runtime, and that nobody has asked for, lead nowhere. Every replica has reported, or waits for
    /// this.
    Sweep {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
        /// Nobody waits: the recovery is over.
        is_over: bool,
    },
    /// Runtime to coordinator: its part of a pool runs low.
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
    /// A number is free again: runtime to coordinator, or coordinator to the runtime that has its block.
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
    /// Coordinator to runtime: others need blocks. Answered by [`Control::Spared`].
    SpareBlocks {
        /// The pool.
        pool: PoolId,
    },
    /// Runtime to coordinator: blocks that it gives back, of which no number is held; they may be none.
    Spared {
        /// The pool.
        pool: PoolId,
        /// Block numbers.
        blocks: Vec<u32>,
        /// The answer is complete.
        last: bool,
    },
    /// Manager to runtime: which flows have you? Answered by some of them, as [`kind::FLOWS`]: whoever wants more asks again from where these end.
    ListFlows {
        /// Repeated in the answer.
        request: u32,
        /// How many at most.
        limit: u32,
        /// Only these: a selector of the tuple before or after the chain, in words.
        selector: String,
        /// The lane to begin with: flows of earlier lanes are not wanted.
        lane: u16,
        /// The slot to begin with in that lane.
        slot: u32,
    },
    /// Coordinator to runtime: move flows away. Answered by [`Control::Migrated`], now and then while it goes on and when it is done.
    Migrate {
        /// Repeated in the answers.
        request: u32,
        /// Runtimes that may have them, by turns.
        targets: Vec<(NodeId, u32)>,
        /// How many at most.
        limit: u64,
        /// Only these: a selector of the tuple before or after the chain, in words.
        selector: String,
    },
    /// Runtime to coordinator and manager: how far a request is.
    Migrated {
        /// Of the request.
        request: u32,
        /// Flows that another runtime serves now.
        moved: u64,
        /// Flows that nobody would have.
        refused: u64,
        /// Nothing follows.
        last: bool,
    },
    /// Coordinator to runtime: the managers that want to hear how things are, and the hosts that serve the ports.
    Managers {
        /// Per switch, its host.
        serving: Vec<u16>,
        /// Who.
        peers: Vec<Peer>,
    },
    /// Coordinator to manager: on this host a switch lives, in its `term`; every change of hosts begins another. Nobody else serves its ports.
    Serve {
        /// The switch, counted from 0.
        switch: u16,
        /// The host.
        host: u16,
        /// Counts them.
        term: u32,
        /// The incarnation of the host's manager: a term is served by one life of it, and not by the next.
        life: u32,
    },
    /// Coordinator to a manager that serves ports: these runtimes of other hosts may speak, and no others of those hosts.
    Admit {
        /// Who.
        peers: Vec<Peer>,
    },
    /// Manager to manager and coordinator: it lives. See [`quorum`](crate::quorum).
    Beat(Beat),
    /// Runtime to manager: steps of packets that are traced.
    Trace(Vec<TraceStep>),
    /// Coordinator to switch: service-chain rules. They are in force once all parts have come. Answered by [`Control::RulesInForce`].
    Rules {
        /// Counts sets of rules, from 1.
        version: u64,
        /// Which part of the set, from 0.
        part: u16,
        /// How many there are.
        parts: u16,
        /// Its rules.
        rules: Vec<Rule>,
    },
    /// Coordinator to a switch that has just started: these have failed, and not everyone who may have replicas of their flows has reported.
    Recovering {
        /// Who.
        dead: Vec<Peer>,
        /// The newest epoch that is remembered, 0 for none: the one who told of it may be dead.
        epoch: u32,
    },
    /// Switch to coordinator: new flows are decided by these. Sent at its start too: it has none then, and is sent some.
    RulesInForce {
        /// Of the set; 0 for none.
        version: u64,
    },
    /// Coordinator to runtime and manager, first of all in each of its lives: tell everything. A runtime answers with [`Control::Hello`], [`Control::Holds`],
    /// [`Control::Accounted`] and a report, the manager with [`Control::Ended`] and [`Control::Present`].
    Account {
        /// The last of the receiver's numbered messages that is remembered.
        handled: u64,
    },
    /// Runtime to coordinator: these blocks of a pool are here.
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
    /// Between runtime and coordinator: numbered messages up to this one will never be needed again.
    Settled {
        /// The last.
        handled: u64,
    },
    /// Coordinator to manager: start this process.
    Start {
        /// Node.
        node: NodeId,
        /// Incarnation: higher than any that there ever was.
        incarnation: u32,
    },
    /// Manager to coordinator: it was started.
    Started {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
    },
    /// Coordinator to manager: it is given up, nothing more is to be let out of it. Answered by [`Control::Ended`].
    Fence {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
    },
    /// Manager to coordinator: nothing more is let out of it; its process has ended, was fenced, or could not be started.
    Ended {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
        /// Flows that the switch sent there; none if it has not been told of all of them.
        flows: Option<u64>,
        /// Flows that it had by its [`LastWord`], or where another host has that, its last report; none if
        /// neither is known here.
        last: Option<u64>,
        /// How that was seen.
        notice: Notice,
    },
    /// Manager to coordinator: these have been started and may speak, and no others.
    Present {
        /// Who.
        peers: Vec<Peer>,
    },
    /// Manager to coordinator: frames for these runtimes found their rings full, since each began.
    Crowded {
        /// Who, and how many.
        refused: Vec<(Peer, u64)>,
    },
    /// Coordinator to manager: it has nothing left to do, end its process.
    Stop {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
    },
    /// Manager to coordinator: an operator wants something.
    Order {
        /// Repeated in the answer.
        ticket: u32,
        /// What.
        order: Order,
    },
    /// Coordinator to manager: the number of what has begun, or why it has not.
    Answer {
        /// Of the order.
        ticket: u32,
        /// The request's number, where there is one.
        result: Result<u32, Refusal>,
    },
    /// Coordinator to manager: a drain, whenever it has come further.
    Draining(Drain),
    /// Coordinator to manager: how things stand, for people.
    Standing(Standing),
    /// Coordinator to manager: a failure, when it is known and when it is over.
    Failover(Failover),
    /// Manager to manager: how its host seals packets. With every beat, and as soon as there is news.
    Sealing(Sealing),
    /// Some numbers of a statistic; now and then, when they have changed. State server to manager: what all instances have together. Runtime to managers: what its flows have, where no
    /// state server adds that up.
    Totals {
        /// Which, among the sender's statistics, counted from 0.
        statistic: u32,
        /// The first of its numbers that are meant, counted from 0.
        first: u32,
        /// What they are.
        values: Vec<i64>,
    },
    /// Runtime to the manager of its host: packets that functions tell the operator of.
    Logged(Vec<Logged>),
    /// Coordinator to the manager of its host: nothing is heard of this runtime. If it stands still it is fenced, as by [`Control::Fence`]; else the answer is
    /// [`Control::Alive`].
    Silent {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
    },
    /// The answer: its loop turns, or would if it had a processor.
    Alive {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
    },
    /// Switch to coordinator: the failed runtime's routes have been swept for the last time, and this life of the switch has seen all of its recovery.
    Unclaimed {
        /// Node.
        node: NodeId,
        /// Incarnation.
        incarnation: u32,
        /// Flows that nobody had asked for, of which something had been released.
        flows: u64,
    },
}

/// How a host seals what leaves it: see [`seal`](crate::seal).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealing {
    /// The incarnation of the manager for which this is: what waited for an earlier one says nothing of what that one's successor may take.
    pub to: u32,
    /// The number of the host's life.
    pub life: u64,
    /// How many packets it has sealed before this.
    pub counter: u64,
    /// Who lives on the host.
    pub nodes: Vec<NodeId>,
}

/// A manager's sign of life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// When it was sent, by the sender's clock, ns.
    pub sent: u64,
    /// Of every host, when the last beat was sent that the sender has from it, by that host's clock, ns; 0 if there is none.
    pub echoes: Vec<u64>,
    /// Of every host, how long ago the sender had that beat, or began if it has had none, ns.
    pub ages: Vec<u64>,
    /// The hosts that are connected to the sender, itself included, a bit each.
    pub connected: u16,
    /// Per switch, how its service stands.
    pub services: Vec<Service>,
    /// The sender is about to end, as planned.
    pub is_leaving: bool,
}

/// How a host stands to the service of one switch's ports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// The latest term that it has been told.
    pub term: u32,
    /// It serves the ports in that term.
    pub serves: bool,
    /// How many of the ports have links that are up.
    pub links: u8,
}

/// No coordinator has made so many views while a node heard nothing of it.
const MOST_VIEWS: u64 = 1 << 32;

/// True if this is the number of a later view than the known one, and not one that nobody can have made.
pub(crate) fn is_later_view(known: u64, said: u64) -> bool {
    said > known && said - known <= MOST_VIEWS
}

impl Control {
    /// Appends the encoding.
    pub fn encode(&self, into: &mut Vec<u8>) {
        // Encoding into a vector fails only for types that postcard does not support, and these are none.
        let bytes = postcard::to_stdvec(self).expect("control messages are plain data");
        into.extend_from_slice(&bytes);
    }

    /// Reads it back.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] if the bytes are not an encoding.
    pub fn decode(bytes: &[u8]) -> Result<Control, DropReason> {
        postcard::from_bytes(bytes).map_err(|_| DropReason::Malformed)
    }

    /// The number of the part that an encoded [`Control::Rules`] is. Reads no rule.
    pub fn rules_part(bytes: &[u8]) -> Option<u16> {
        let ((number, _, part), _) = postcard::take_from_bytes::<(u32, u64, u16)>(bytes).ok()?;
        (number == RULES_NUMBER).then_some(part)
    }
}

/// The number by which an encoding of [`Control::Rules`] begins: its place among the messages.
const RULES_NUMBER: u32 = 24;

impl crate::channel::Fabric {
    /// Queues a control message. False if the queue is full.
    pub fn send_control(&mut self, node: NodeId, message: &Control) -> bool {
        let mut bytes = Vec::with_capacity(64);
        message.encode(&mut bytes);
        self.send(node, kind::CONTROL, &bytes).is_ok()
    }

    /// Sends a record of this kind with keys and epochs of flows, as many records as it takes. Returns how many flows the channel took.
    pub(crate) fn send_ended(&mut self, node: NodeId, kind: u8, flows: &[(FlowKey, Epoch)]) -> usize {
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
        assert_eq!(part_of(Control::Rules { version: u64::MAX, part: 300, parts: 301, rules: Vec::new() }), Some(300));
        assert_eq!(part_of(Control::Recovering { dead: Vec::new(), epoch: 1 }), None);
        assert_eq!(part_of(Control::Trace(Vec::new())), None);
        assert_eq!(Control::rules_part(&[]), None);
    }
}
