//! An index from node ids to positions in a list, found at once however many nodes there
//! are.
//!
//! Node ids are small and dense, so a table does. The owner of the list keeps its index:
//! code that moves an entry of the list calls `NodeIndex::set`.

use holdfast_wire::NodeId;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct NodeIndex {
    at: Vec<u32>,
}

const NOWHERE: u32 = u32::MAX;

impl NodeIndex {
    /// The index of a list with one entry for each node. If a node comes twice, the last
    /// entry counts.
    pub fn of(nodes: impl Iterator<Item = NodeId>) -> NodeIndex {
        let mut index = NodeIndex::default();
        nodes.enumerate().for_each(|(at, node)| index.set(node, at));
        index
    }

    /// The position of the node's entry.
    #[inline]
    pub fn get(&self, node: NodeId) -> Option<usize> {
        self.at.get(usize::from(node)).filter(|at| **at != NOWHERE).map(|at| *at as usize)
    }

    /// Sets the position of the node's entry.
    pub fn set(&mut self, node: NodeId, at: usize) {
        let node = usize::from(node);
        if node >= self.at.len() {
            self.at.resize(node + 1, NOWHERE);
        }
        self.at[node] = at as u32;
    }

    /// Like [`NodeIndex::of`], in the same memory.
    pub fn renew(&mut self, nodes: impl Iterator<Item = NodeId>) {
        self.at.fill(NOWHERE);
        nodes.enumerate().for_each(|(at, node)| self.set(node, at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: NodeId = NodeId::new(u16::MAX);

    #[test]
    fn a_node_is_where_it_was_put_last() {
        let mut index = NodeIndex::of([16, 19, 17].into_iter().map(NodeId::new));
        assert_eq!(
            [15, 16, 17, 18, 19, u16::MAX].map(|node| index.get(NodeId::new(node))),
            [None, Some(0), Some(2), None, Some(1), None]
        );
        index.set(LAST, 3);
        assert_eq!(index.get(LAST), Some(3));
        index.renew([NodeId::new(17)].into_iter());
        assert_eq!(
            [16, 17, u16::MAX].map(|node| index.get(NodeId::new(node))),
            [None, Some(0), None]
        );
    }
}
