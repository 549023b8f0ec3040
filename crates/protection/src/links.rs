//! Links to all holders of this runtime's copies, found by peer.

use crate::numbers::Sent;
use crate::{NodeIndex, Peer};
use core::ops::{Deref, DerefMut};
use holdfast_wire::NodeId;

/// A link to a holder.
pub(crate) trait Holder {
    /// The holder.
    fn peer(&self) -> Peer;
    /// The count of the records sent to the holder.
    fn numbers(&mut self) -> &mut Sent;
}

/// See the module. No two links go to the same node.
pub(crate) struct Links<L> {
    list: Vec<L>,
    at: NodeIndex,
}

impl<L> Default for Links<L> {
    fn default() -> Links<L> {
        Links { list: Vec::new(), at: NodeIndex::default() }
    }
}

impl<L: Holder> Links<L> {
    /// Keeps links to exactly these peers, in this order. Existing links stay, and `make`
    /// creates the missing ones. Returns the links that are not used any more.
    pub(crate) fn renew(&mut self, peers: &[Peer], mut make: impl FnMut(Peer) -> L) -> Vec<L> {
        let mut old: Vec<Option<L>> =
            core::mem::take(&mut self.list).into_iter().map(Some).collect();
        for peer in peers {
            let known =
                self.at.get(peer.node).and_then(|at| old[at].take_if(|link| link.peer() == *peer));
            self.list.push(known.unwrap_or_else(|| make(*peer)));
        }
        self.at.renew(peers.iter().map(|peer| peer.node));
        old.into_iter().flatten().collect()
    }

    /// The incarnation of this node to which there is a link.
    pub(crate) fn present(&self, node: NodeId) -> Option<Peer> {
        self.at.get(node).map(|at| self.list[at].peer())
    }

    /// The index of the link to this peer.
    #[inline]
    pub(crate) fn position(&self, peer: Peer) -> Option<usize> {
        self.at.get(peer.node).filter(|at| self.list[*at].peer() == peer)
    }

    /// True if there is a link to this peer.
    #[inline]
    pub(crate) fn has(&self, peer: Peer) -> bool {
        self.position(peer).is_some()
    }

    /// The link to this peer.
    #[inline]
    pub(crate) fn find(&mut self, peer: Peer) -> Option<&mut L> {
        self.position(peer).map(|at| &mut self.list[at])
    }
}

impl<L> Deref for Links<L> {
    type Target = [L];

    fn deref(&self) -> &[L] {
        &self.list
    }
}

impl<L> DerefMut for Links<L> {
    fn deref_mut(&mut self) -> &mut [L] {
        &mut self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Commit;

    struct Line(Peer, Sent);

    impl Holder for Line {
        fn peer(&self) -> Peer {
            self.0
        }

        fn numbers(&mut self) -> &mut Sent {
            &mut self.1
        }
    }

    const A: Peer = Peer { node: NodeId::new(16), incarnation: 1 };
    const B: Peer = Peer { node: NodeId::new(17), incarnation: 2 };
    const C: Peer = Peer { node: NodeId::new(40), incarnation: 3 };

    /// A peer stays, another comes, and a third has a new incarnation. The link to the
    /// old incarnation is given back, and the link that stays goes on counting.
    #[test]
    fn who_stays_keeps_its_link() {
        let mut links = Links::default();
        let line = |peer| Line(peer, Sent::default());
        assert!(links.renew(&[A, B], line).is_empty());
        links.find(B).unwrap().numbers().last = Commit::new(7);
        let later = Peer { node: A.node, incarnation: 9 };
        let lost = links.renew(&[C, B, later], line);
        assert_eq!(lost.iter().map(Holder::peer).collect::<Vec<_>>(), [A]);
        assert_eq!(links.iter().map(Holder::peer).collect::<Vec<_>>(), [C, B, later]);
        assert_eq!(
            [A, B, C, later].map(|peer| links.position(peer)),
            [None, Some(1), Some(0), Some(2)]
        );
        assert_eq!((links.present(A.node), links.present(NodeId::new(99))), (Some(later), None));
        assert_eq!(links.find(B).unwrap().numbers().last, Commit::new(7));
        assert!(!links.has(A) && links.renew(&[], line).len() == 3 && !links.has(B));
    }
}
