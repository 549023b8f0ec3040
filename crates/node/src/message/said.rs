//! Reports of parts: on flows, on shared state, on packets.

use crate::rules::Rule;
use holdfast_protection::Peer;
use holdfast_wire::{DropReason, FlowKey, NodeId};
use serde::{Deserialize, Serialize};

/// A pool or a statistic of the configuration: chain, function in the chain, field in the
/// function's shared state, each counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PoolId {
    /// Chain.
    pub chain: u16,
    /// Function.
    pub function: u8,
    /// Field.
    pub field: u8,
}

/// A runtime's report, sent with every heartbeat. Counts are since its start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Report {
    /// Flows owned.
    pub flows: u64,
    /// Fill of the fullest chain's table, in 1/1000.
    pub fill: u16,
    /// Flows that ended before their time because a table was nearly full.
    pub forgotten: u64,
    /// Flows that have been sent to another runtime, which has not said that they
    /// arrived: no third runtime may have them in their present state.
    pub departed: u64,
    /// Replicas of others' flows.
    pub replicas: u64,
    /// Packets that came from the switch.
    pub packets: u64,
    /// Packets waiting for state, leases or commits.
    pub held: u64,
    /// Share of the time since the last report that went to turns with something to do,
    /// in 1/1000.
    pub busy_permille: u16,
    /// Flows without a replica of their latest state, where the protection promises one.
    pub unprotected: u64,
    /// Replicas are being filled.
    pub resynchronising: bool,
    /// The newest view that the runtime has acted upon.
    pub view: u64,
    /// Packets that left without a replica's knowing, because there was none.
    pub released_unprotected: u64,
    /// Copies at other runtimes that were found to differ from this runtime's state.
    pub differed: u64,
    /// Owned flows whose state only the state server has, and how many such states have
    /// come back since the start.
    pub absent: u64,
    /// See `absent`.
    pub fetched: u64,
    /// Logs that flows here need if this runtime fails: each such switch, with the
    /// incarnation that the runtime has heard last, by its number in packets' metadata.
    /// If flows have their home at the state server, that too, with its incarnation.
    pub logs: Vec<(NodeId, u32)>,
    /// Drops by number of their reason.
    pub drops: Vec<(u8, u64)>,
    /// The runtime's share of each pool.
    pub pools: Vec<(PoolId, Share)>,
    /// The longest processor time of a turn in which it listed or moved flows, since the
    /// report before, µs.
    pub longest_us: u32,
}

/// A runtime's share of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Share {
    /// Numbers that the runtime's flows hold.
    pub held: u32,
    /// Numbers that its next flows may have at once.
    pub at_hand: u32,
}

/// A list of indexes, as counted by the state server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Listing {
    /// Indexes that are free.
    pub free: u32,
    /// Indexes that instances have at hand.
    pub at_hand: u32,
    /// Indexes that flows have, or had when they were last heard of.
    pub held: u32,
    /// Indexes that rest: free, and not to be assigned for a while.
    pub resting: u32,
}

/// A flow as `holdfast flows` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowInfo {
    /// Forward tuple as it came in.
    pub key: FlowKey,
    /// Tuple of replies as they come in.
    pub reply: FlowKey,
    /// Chain.
    pub chain: u16,
    /// The functions' name for its state.
    pub state: String,
    /// Owner.
    pub owner: NodeId,
    /// Replica, 0 if none.
    pub replica: NodeId,
    /// Epoch.
    pub epoch: u32,
    /// Age by stamped time, ns.
    pub age: u64,
    /// Packets forward and reverse.
    pub packets: [u64; 2],
    /// Bytes forward and reverse.
    pub bytes: [u64; 2],
    /// The functions' values of its state: see
    /// [`Chain::values`](holdfast_nf::Chain::values).
    pub values: Vec<Option<u64>>,
}

impl FlowInfo {
    /// Appends the flow's encoding.
    pub fn encode(&self, into: &mut Vec<u8>) {
        // Encoding into a vector fails only for types that postcard does not support, and
        // these are none.
        into.extend_from_slice(&postcard::to_stdvec(self).expect("flows are plain data"));
    }
}

/// The place where a list of flows continues: the list has all flows of runtimes with
/// lower nodes, and those of this runtime before the lane and slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListCursor {
    /// The runtime.
    pub peer: Peer,
    /// The lane of the runtime.
    pub lane: u16,
    /// The slot in the lane.
    pub slot: u32,
}

/// A piece of a list of flows, still encoded as runtimes sent it. Decoding is left to the
/// reader, so that no packet waits for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowPage {
    /// [`FlowInfo`]s, one behind the other.
    pub bytes: Vec<u8>,
    /// The place of the next piece, if there may be more flows.
    pub next: Option<ListCursor>,
}

impl FlowPage {
    /// The piece's flows.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] if the bytes are not an encoding.
    pub fn flows(&self) -> Result<Vec<FlowInfo>, DropReason> {
        let mut flows = Vec::new();
        let mut rest = &self.bytes[..];
        while !rest.is_empty() {
            let (flow, behind) =
                postcard::take_from_bytes(rest).map_err(|_| DropReason::Malformed)?;
            flows.push(flow);
            rest = behind;
        }
        Ok(flows)
    }
}

/// A step of a traced packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStep {
    /// The packet: its stamp.
    pub stamp: u64,
    /// The node of the step.
    pub node: NodeId,
    /// 0 on the way in, 1 at a runtime, 2 on the way out.
    pub stage: u8,
    /// The port of the switch by which the packet has come in, for its first step.
    pub ingress: Option<u8>,
    /// The service-chain rule of the flow that begins with this packet.
    pub rule: Option<Rule>,
    /// The event, as text.
    pub text: String,
}

/// A packet that a function logs for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logged {
    /// The chain.
    pub chain: u16,
    /// The function in it, from 0.
    pub function: u8,
    /// The function's own number for its reason: a firewall's rule, from 0.
    pub about: u32,
    /// The function's text; empty if the number says all.
    pub text: Vec<u8>,
    /// The port of the box by which the packet came in.
    pub ingress: u8,
    /// The packet as the function saw it.
    pub key: FlowKey,
    /// The packet's stamp, of the chain's switch, or the function's number for the text:
    /// the same when the packet is processed again.
    pub id: u64,
    /// Packets before it that were not logged because there were too many.
    pub missed: u64,
}
