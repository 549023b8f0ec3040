//! Names of nodes on the fabric.
//!
//! A role keeps its id on every host: the coordinator and the switch may move from host
//! to host, as a later incarnation. A manager belongs to its host.

use crate::Peer;
use crate::header::Mac;
use core::fmt;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Id of a node: runtimes, switches, the coordinator. No node has id 0.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Default,
    Serialize,
    Deserialize,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
)]
#[serde(transparent)]
#[repr(transparent)]
pub struct NodeId(u16);

/// The second switch; the others follow.
const SECOND_SWITCH: u16 = 11;

/// The first bytes of every node's MAC address: locally administered, `H` `F`.
const MAC_PREFIX: [u8; 3] = [0x02, 0x48, 0x46];

impl NodeId {
    /// Stands for no node in messages.
    pub const NONE: NodeId = NodeId(0);
    /// The coordinator.
    pub const COORDINATOR: NodeId = NodeId(1);
    /// The first switch, and the only one of most boxes.
    pub const SWITCH: NodeId = NodeId(2);
    /// The manager of the first host; those of the others follow.
    pub const MANAGER: NodeId = NodeId(3);
    /// The first runtime; the others follow.
    pub const FIRST_RUNTIME: NodeId = NodeId(16);
    /// The first state server, and the only one of most boxes: it has the lists. The
    /// others follow, downwards.
    pub const STATE_SERVER: NodeId = NodeId(u16::MAX - 1);

    /// Limit of hosts in a cluster.
    pub const MAX_HOSTS: u16 = SECOND_SWITCH - NodeId::MANAGER.0;
    /// Limit of switches that divide the ports among them.
    pub const MAX_SWITCHES: u16 = 1 + NodeId::FIRST_RUNTIME.0 - SECOND_SWITCH;
    /// Limit of state servers that divide the flows among them.
    pub const MAX_STATE_SERVERS: u16 = 8;

    /// The node with this number.
    #[inline]
    pub const fn new(number: u16) -> NodeId {
        NodeId(number)
    }

    /// The node's number.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The node's number as it stands in messages.
    #[inline]
    pub const fn to_be_bytes(self) -> [u8; 2] {
        self.0.to_be_bytes()
    }

    /// The node whose number stands in a message.
    #[inline]
    pub const fn from_be_bytes(bytes: [u8; 2]) -> NodeId {
        NodeId(u16::from_be_bytes(bytes))
    }

    /// A runtime, counted from 0.
    #[inline]
    pub const fn runtime(number: u16) -> NodeId {
        NodeId(NodeId::FIRST_RUNTIME.0 + number)
    }

    /// The number of the runtime that this node is, if it is one.
    #[inline]
    pub fn runtime_number(self) -> Option<u16> {
        self.is_runtime().then(|| self.0 - NodeId::FIRST_RUNTIME.0)
    }

    /// True for a runtime.
    #[inline]
    pub fn is_runtime(self) -> bool {
        let end = NodeId::STATE_SERVER.0 - NodeId::MAX_STATE_SERVERS;
        (NodeId::FIRST_RUNTIME.0..=end).contains(&self.0)
    }

    /// A state server, counted from 0.
    #[inline]
    pub const fn state_server(number: u16) -> NodeId {
        NodeId(NodeId::STATE_SERVER.0 - number)
    }

    /// The number of the state server that this node is, if it is one.
    #[inline]
    pub fn state_server_number(self) -> Option<u16> {
        let number = NodeId::STATE_SERVER.0.checked_sub(self.0);
        number.filter(|number| *number < NodeId::MAX_STATE_SERVERS)
    }

    /// A switch, counted from 0.
    #[inline]
    pub const fn switch(number: u16) -> NodeId {
        if number == 0 { NodeId::SWITCH } else { NodeId(SECOND_SWITCH + number - 1) }
    }

    /// The number of the switch that this node is, if it is one.
    #[inline]
    pub fn switch_number(self) -> Option<u16> {
        match self.0 {
            _ if self == NodeId::SWITCH => Some(0),
            node if (SECOND_SWITCH..NodeId::FIRST_RUNTIME.0).contains(&node) => {
                Some(1 + node - SECOND_SWITCH)
            }
            _ => None,
        }
    }

    /// The manager of a host, counted from 0.
    #[inline]
    pub const fn manager(host: u16) -> NodeId {
        NodeId(NodeId::MANAGER.0 + host)
    }

    /// The host whose manager this is.
    #[inline]
    pub fn host(self) -> Option<u16> {
        (NodeId::MANAGER.0..SECOND_SWITCH).contains(&self.0).then(|| self.0 - NodeId::MANAGER.0)
    }

    /// The node's MAC address: locally administered, `H` `F`, then the id.
    #[inline]
    pub fn mac(self) -> Mac {
        Peer { node: self, incarnation: 0 }.mac()
    }

    /// The node with this MAC address, be it the node's own or an incarnation's.
    #[inline]
    pub fn of_mac(mac: &Mac) -> Option<NodeId> {
        (mac[..3] == MAC_PREFIX).then(|| NodeId::from_be_bytes([mac[4], mac[5]]))
    }
}

impl Peer {
    /// The MAC address by which one incarnation of a node sends and gets packets: the
    /// lowest byte of the incarnation stands where the node's own address has 0. A
    /// receiver sees by it that a packet does not come from an earlier incarnation, and
    /// was not sent to one.
    #[inline]
    pub fn mac(self) -> Mac {
        let ([m0, m1, m2], [high, low]) = (MAC_PREFIX, self.node.to_be_bytes());
        [m0, m1, m2, self.incarnation as u8, high, low]
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl From<NodeId> for u32 {
    #[inline]
    fn from(node: NodeId) -> u32 {
        node.0.into()
    }
}

impl From<NodeId> for usize {
    /// The node's place in a table of nodes.
    #[inline]
    fn from(node: NodeId) -> usize {
        node.0.into()
    }
}
