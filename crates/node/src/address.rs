//! Names of nodes on the fabric.
//!
//! A role keeps its id on every host: the coordinator and the switch may move from host
//! to host, as a later incarnation. A manager belongs to its host.

use holdfast_protection::Peer;
use holdfast_wire::header::Mac;

/// Id of a node: runtimes, switches, the coordinator.
pub type NodeId = u16;

/// The first state server, and the only one of most boxes: it has the lists. The others
/// follow, downwards.
pub const STATE_SERVER: NodeId = NodeId::MAX - 1;
/// Limit of state servers that divide the flows among them.
pub const MAX_STATE_SERVERS: u16 = 8;
/// The coordinator.
pub const COORDINATOR: NodeId = 1;
/// The first switch, and the only one of most boxes.
pub const SWITCH: NodeId = 2;
/// The manager of the first host; those of the others follow.
pub const MANAGER: NodeId = 3;
/// The second switch; the others follow.
const SECOND_SWITCH: NodeId = 11;
/// The first runtime; the others follow.
pub const FIRST_RUNTIME: NodeId = 16;
/// Limit of hosts in a cluster.
pub const MAX_HOSTS: u16 = SECOND_SWITCH - MANAGER;
/// Limit of switches that divide the ports among them.
pub const MAX_SWITCHES: u16 = 1 + FIRST_RUNTIME - SECOND_SWITCH;

/// True for a runtime.
#[inline]
pub fn is_runtime(node: NodeId) -> bool {
    (FIRST_RUNTIME..=STATE_SERVER - MAX_STATE_SERVERS).contains(&node)
}

/// A state server, counted from 0.
#[inline]
pub fn state_server_node(number: u16) -> NodeId {
    STATE_SERVER - number
}

/// The number of the state server that this node is, if it is one.
#[inline]
pub fn state_server_number(node: NodeId) -> Option<u16> {
    STATE_SERVER.checked_sub(node).filter(|number| *number < MAX_STATE_SERVERS)
}

/// A switch, counted from 0.
#[inline]
pub fn switch_node(number: u16) -> NodeId {
    if number == 0 { SWITCH } else { SECOND_SWITCH + number - 1 }
}

/// The number of the switch that this node is, if it is one.
#[inline]
pub fn switch_number(node: NodeId) -> Option<u16> {
    match node {
        SWITCH => Some(0),
        SECOND_SWITCH..FIRST_RUNTIME => Some(1 + node - SECOND_SWITCH),
        _ => None,
    }
}

/// The manager of a host, counted from 0.
#[inline]
pub fn manager_of(host: u16) -> NodeId {
    MANAGER + host
}

/// The host whose manager this is.
#[inline]
pub fn host_of(node: NodeId) -> Option<u16> {
    (MANAGER..SECOND_SWITCH).contains(&node).then(|| node - MANAGER)
}

/// The node's MAC address: locally administered, `H` `F`, then the id.
#[inline]
pub fn mac_of(node: NodeId) -> Mac {
    let [high, low] = node.to_be_bytes();
    [0x02, 0x48, 0x46, 0, high, low]
}

/// The MAC address by which one incarnation of a node sends and gets packets: the lowest
/// byte of the incarnation stands where the node's own address has 0. A receiver sees by
/// it that a packet does not come from an earlier incarnation, and was not sent to one.
#[inline]
pub fn mac_of_life(peer: Peer) -> Mac {
    let [high, low] = peer.node.to_be_bytes();
    [0x02, 0x48, 0x46, peer.incarnation as u8, high, low]
}

/// The node with this MAC address, be it the node's own or an incarnation's.
#[inline]
pub fn node_of(mac: &Mac) -> Option<NodeId> {
    (mac[..3] == [0x02, 0x48, 0x46]).then(|| NodeId::from_be_bytes([mac[4], mac[5]]))
}
