//! A node's incarnation.

use crate::NodeId;
use serde::{Deserialize, Serialize};

/// A node of the fabric, in one incarnation.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct Peer {
    /// Node id.
    pub node: NodeId,
    /// Incarnation; higher is later.
    pub incarnation: u32,
}

impl core::fmt::Display for Peer {
    /// `NODE.INCARNATION`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{}", self.node, self.incarnation)
    }
}
