//! The fence: decides who may release packets, at the place where they leave, because the
//! releasing process may be out of date.
//!
//! Theory of operation. Every role (a runtime, say) belongs to one incarnation at a time.
//! The manager opens the fence for an incarnation when it starts. The manager closes the
//! fence the moment the role is declared failed, before any other runtime recovers its
//! flows. Packets that the old incarnation had handed over before were released before.
//! An old incarnation that was only asleep may hand packets over afterwards: they end
//! here with a reason and a counter.

use crate::{Peer, Released};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{NodeId, Packet};

/// See the module.
#[derive(Debug, Default)]
pub struct Fence {
    /// By node: the incarnation that may release.
    open: Vec<Option<u32>>,
    refused: u64,
}

impl Fence {
    /// A closed fence.
    pub fn new() -> Fence {
        Fence::default()
    }

    /// Lets this incarnation release, and no other one of the same node.
    pub fn open(&mut self, peer: Peer) {
        let node = usize::from(peer.node);
        if node >= self.open.len() {
            self.open.resize(node + 1, None);
        }
        self.open[node] = Some(peer.incarnation);
    }

    /// Refuses this incarnation from now on.
    pub fn close(&mut self, peer: Peer) {
        if self.is_open_for_check(peer) {
            self.open[usize::from(peer.node)] = None;
        }
    }

    /// True if the incarnation may release.
    #[inline]
    pub fn is_open(&self, peer: Peer) -> bool {
        is_planted(Fault::IgnoresEpochs) || self.peer(peer.node) == Some(peer)
    }

    /// Like [`Fence::is_open`], whatever fault is planted.
    #[doc(hidden)]
    pub fn is_open_for_check(&self, peer: Peer) -> bool {
        self.peer(peer.node) == Some(peer)
    }

    /// All incarnations that may release.
    pub fn peers(&self) -> impl Iterator<Item = Peer> + '_ {
        let nodes = self.open.iter().zip((0..).map(NodeId::new));
        nodes.filter_map(|(incarnation, node)| {
            incarnation.map(|incarnation| Peer { node, incarnation })
        })
    }

    /// The incarnation of this node that may release, if any.
    #[inline]
    pub fn peer(&self, node: NodeId) -> Option<Peer> {
        let incarnation = self.open.get(usize::from(node)).copied().flatten()?;
        Some(Peer { node, incarnation })
    }

    /// Admits a packet that `from` released.
    ///
    /// # Errors
    /// The packet, if that incarnation may not release: drop it as `fenced`.
    #[inline]
    pub fn admit(&mut self, from: Peer, packet: Packet) -> Result<Released<Packet>, Packet> {
        if self.is_open(from) {
            Ok(Released::by_commit(packet))
        } else {
            self.refused += 1;
            Err(packet)
        }
    }

    /// Packets refused so far.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}
