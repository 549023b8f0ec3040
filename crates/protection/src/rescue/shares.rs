//! Shares: the state servers, and which of them has a flow.
//!
//! Each server has a share of the flows, by the hash of their keys. Every runtime finds
//! the same server for a flow, and the servers need not know of each other.
//!
//! In: the servers, the records sent to them, their acknowledgements. Out: the server of
//! a flow, the age of records under way. Never: a record.

use crate::links::{Holder, Links};
use crate::{Commit, Flows, Peer, Slot};
use core::ops::{Deref, DerefMut};
use holdfast_wire::{FlowKey, NodeId};
use std::collections::VecDeque;

/// Number of steps in which the age of records under way is measured, up to the limit for
/// late ones.
const MARKS: usize = 16;

/// The share of a flow among so many servers, by the hash of its key.
pub fn share_of(hash: u64, servers: usize) -> usize {
    // The hash is mixed, because its own bits already choose the flow's bucket in a
    // table.
    let mixed = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(mixed) * servers as u128) >> 64) as usize
}

/// The room that one of so many servers needs for its share of the flows, with a reserve
/// for an uneven hash.
pub fn room_for_share(flows: usize, servers: usize) -> usize {
    let even = flows.div_ceil(servers.max(1));
    if servers > 1 { flows.min(even + even / 8 + 1024) } else { flows }
}

/// The share of the flow with this key; `None` without a server. With one server nothing
/// is hashed.
pub(crate) fn share_of_key(flows: &Flows, key: &FlowKey, servers: usize) -> Option<usize> {
    match servers {
        0 => None,
        1 => Some(0),
        _ => Some(share_of(flows.hash(key), servers)),
    }
}

/// A server, and its progress with the flows of its share.
#[derive(Default)]
pub(super) struct Share {
    /// The server's incarnation, once that is known.
    pub(super) server: Option<Peer>,
    /// The last record sent to the server, and the last one up to which it has processed
    /// everything, as of the last [look-up](Shares::look_up).
    pub(super) last: Commit,
    pub(super) saved: Commit,
    /// Records that the server has not acknowledged, in order. Each was the last one sent
    /// at some time, and has the time since when it has been under way, or a little
    /// earlier.
    under_way: VecDeque<(Commit, u64)>,
    /// Deals that are not answered: their numbers, and 0 or the reason plus 1.
    pub(super) answers: VecDeque<(u32, u8)>,
    /// Set if the server's channel took no more in this batch.
    pub(super) is_full: bool,
}

impl Share {
    fn note_under_way(&mut self, now: u64, late: u64) {
        let (last, saved) = (self.last, self.saved);
        let has_come = |number: Commit| saved != Commit::NONE && saved.has_reached(number);
        while self.under_way.front().is_some_and(|(number, _)| has_come(*number)) {
            self.under_way.pop_front();
        }
        if last == Commit::NONE || has_come(last) {
            return;
        }
        let is_full = self.under_way.len() == MARKS;
        match self.under_way.back_mut() {
            // The record counts as sent with the one before: it becomes late a little too
            // early, never too late.
            Some((number, since))
                if is_full || now.saturating_sub(*since) < late / MARKS as u64 =>
            {
                *number = last
            }
            _ => self.under_way.push_back((last, now)),
        }
    }
}

/// See the module. Empty before any server has been heard of.
#[derive(Default)]
pub(super) struct Shares {
    list: Vec<Share>,
    /// Set if there is a server for every flow.
    are_all_known: bool,
}

impl Deref for Shares {
    type Target = [Share];

    fn deref(&self) -> &[Share] {
        &self.list
    }
}

impl DerefMut for Shares {
    fn deref_mut(&mut self) -> &mut [Share] {
        &mut self.list
    }
}

impl Shares {
    /// Sets the servers, by share; [`Peer::default`] for one that has not been heard of.
    /// Returns the shares whose server has changed, and whether each had a server before.
    pub(super) fn renew(&mut self, peers: &[Peer]) -> Vec<(usize, bool)> {
        self.list.resize_with(peers.len().max(self.list.len()), Share::default);
        let mut changed = Vec::new();
        for (at, share) in self.list.iter_mut().enumerate() {
            let server = peers.get(at).copied().filter(|peer| *peer != Peer::default());
            if server != share.server {
                changed.push((at, share.server.is_some()));
                *share = Share { server, ..Share::default() };
            }
        }
        self.are_all_known =
            !self.list.is_empty() && self.list.iter().all(|share| share.server.is_some());
        changed
    }

    /// The servers that have been heard of.
    pub(super) fn known(&self) -> impl Iterator<Item = Peer> + '_ {
        self.list.iter().filter_map(|share| share.server)
    }

    /// True if there is a server for every flow.
    #[inline]
    pub(super) fn are_all_known(&self) -> bool {
        self.are_all_known
    }

    /// The server of this flow, if it is known.
    pub(super) fn server_of(&self, flows: &Flows, slot: Slot) -> Option<Peer> {
        self.list[share_of_key(flows, &flows.header(slot).key, self.list.len())?].server
    }

    /// The share that this server has.
    pub(super) fn position(&self, server: Peer) -> Option<usize> {
        self.list.iter().position(|share| share.server == Some(server))
    }

    /// True if this node is a server, in any incarnation.
    pub(super) fn has_node(&self, node: NodeId) -> bool {
        self.known().any(|server| server.node == node)
    }

    /// Looks up each server's progress.
    pub(super) fn look_up<L: Holder>(&mut self, links: &mut Links<L>) {
        for share in &mut self.list {
            if let Some(link) = share.server.and_then(|server| links.find(server)) {
                (share.last, share.saved) = (link.numbers().last, link.numbers().saved);
            }
        }
    }

    /// Notes since when records have been under way. The last record is younger than
    /// those before it, and is not new when those have arrived.
    pub(super) fn note_under_way(&mut self, now: u64, late: u64) {
        self.list.iter_mut().for_each(|share| share.note_under_way(now, late));
    }

    /// True if a record has been under way for longer than `late`, ns.
    pub(super) fn is_late(&self, now: u64, late: u64) -> bool {
        let is_old = |(_, since): &(Commit, u64)| now.saturating_sub(*since) > late;
        self.list.iter().any(|share| share.under_way.front().is_some_and(is_old))
    }
}
