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

impl Peer {
    /// True if this is the other incarnation, or a later one of the same node.
    /// Incarnations begin anew behind the highest.
    #[inline]
    pub fn has_reached(self, other: Peer) -> bool {
        self.node == other.node && self.incarnation.wrapping_sub(other.incarnation) as i32 >= 0
    }
}

impl core::fmt::Display for Peer {
    /// `NODE.INCARNATION`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{}", self.node, self.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Incarnations continue behind the highest; another node's mean nothing.
    #[test]
    fn incarnations_begin_anew() {
        let of = |node, incarnation| Peer { node: NodeId::new(node), incarnation };
        let (last, next) = (of(7, u32::MAX), of(7, 1));
        assert!(next.has_reached(last) && last.has_reached(last) && !last.has_reached(next));
        assert!(!of(8, 1).has_reached(last) && !last.has_reached(of(8, u32::MAX)));
    }
}
