//! Names of nodes on the fabric.
//!
//! A role keeps its id wherever it lives: the coordinator and the switch may move from host to host, as a later incarnation. A manager belongs to its host.

use holdfast_protection::Peer;
use holdfast_wire::header::Mac;

/// Id of a node: runtimes, switches, the coordinator.
pub type NodeId = u16;

/// The coordinator.
pub const COORDINATOR: NodeId = 1;
/// The switch.
pub const SWITCH: NodeId = 2;
/// The manager of the first host; those of the others follow.
pub const MANAGER: NodeId = 3;
/// The first runtime; the others follow.
pub const FIRST_RUNTIME: NodeId = 16;
/// As many hosts may make a cluster.
pub const MAX_HOSTS: u16 = FIRST_RUNTIME - MANAGER;

/// The manager of a host, counted from 0.
#[inline]
pub fn manager_of(host: u16) -> NodeId {
    MANAGER + host
}

/// The host whose manager this is.
#[inline]
pub fn host_of(node: NodeId) -> Option<u16> {
    (MANAGER..FIRST_RUNTIME).contains(&node).then(|| node - MANAGER)
}

/// The node's MAC address: locally administered, `H` `F`, then the id.
#[inline]
pub fn mac_of(node: NodeId) -> Mac {
    let [high, low] = node.to_be_bytes();
    [0x02, 0x48, 0x46, 0, high, low]
}

/// The MAC address by which one life of a node sends packets: the lowest byte of its incarnation stands where the node's own address has 0. Who receives
/// a packet from another host knows by it that it does not come from an earlier life.
#[inline]
pub fn mac_of_life(peer: Peer) -> Mac {
    let [high, low] = peer.node.to_be_bytes();
    [0x02, 0x48, 0x46, peer.incarnation as u8, high, low]
}

/// The node with this MAC address, or one of whose lives has it.
#[inline]
pub fn node_of(mac: &Mac) -> Option<NodeId> {
    (mac[..3] == [0x02, 0x48, 0x46]).then(|| NodeId::from_be_bytes([mac[4], mac[5]]))
}
