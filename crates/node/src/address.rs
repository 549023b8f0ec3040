//! Names of nodes on the fabric.

use holdfast_wire::header::Mac;

/// Id of a node: runtimes, switches, the coordinator.
pub type NodeId = u16;

/// The coordinator.
pub const COORDINATOR: NodeId = 1;
/// The first switch.
pub const SWITCH: NodeId = 2;
/// The manager of the host.
pub const MANAGER: NodeId = 3;
/// The first runtime; the others follow.
pub const FIRST_RUNTIME: NodeId = 16;

/// The node's MAC address: locally administered, `H` `F`, then the id.
#[inline]
pub fn mac_of(node: NodeId) -> Mac {
    let [high, low] = node.to_be_bytes();
    [0x02, 0x48, 0x46, 0, high, low]
}

/// The node with this MAC address.
#[inline]
pub fn node_of(mac: &Mac) -> Option<NodeId> {
    (mac[..4] == [0x02, 0x48, 0x46, 0]).then(|| NodeId::from_be_bytes([mac[4], mac[5]]))
}
