//! The servers, and which of them has a flow.
//!
//! Each has a share of the flows, by the hash of their keys: every runtime finds the same one, and the servers need not know of each other.
//!
//! In: who the servers are, what was sent to them and what they have seen to. Out: whose a flow is, how old what is under way is. Never: a record.

use crate::links::{Holder, Links};
use crate::numbers::reached;
use crate::{Flows, Peer, Slot};
use core::ops::{Deref, DerefMut};
use holdfast_wire::FlowKey;
use std::collections::VecDeque;

/// So finely is known since when something has been under way.
const MARKS: usize = 16;

/// Which of so many servers a flow's share is, by the hash of its key.
pub fn share_of(hash: u64, servers: usize) -> usize {
    // Not by the bits that say where in a table it is.
    let mixed = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(mixed) * servers as u128) >> 64) as usize
}

/// Of so many flows the room that one of so many servers needs: its share, and what an uneven hash adds to that.
pub fn room_for_share(flows: usize, servers: usize) -> usize {
    let even = flows.div_ceil(servers.max(1));
    if servers > 1 { flows.min(even + even / 8 + 1024) } else { flows }
}

/// The same of the flow with this key. `None` without a server. Of one server nothing is hashed.
pub(crate) fn share_of_key(flows: &Flows, key: &FlowKey, servers: usize) -> Option<usize> {
    match servers {
        0 => None,
        1 => Some(0),
        _ => Some(share_of(flows.hash(key), servers)),
    }
}

/// One of the servers, and what it has of the flows that are its share.
#[derive(Default)]
pub(super) struct Share {
    /// Its life, as soon as that is known.
    pub(super) server: Option<Peer>,
    /// The last record that was sent to it, and the one up to which it has seen to everything, as they were [looked up](Shares::look_up) last.
    pub(super) last: u32,
    pub(super) saved: u32,
    /// Records that were the last ones sent, of those that the server has not got, and since when they have been under way, or a little before; in order.
    under_way: VecDeque<(u32, u64)>,
    /// Deals that are not answered: their numbers, and 0 or why not.
    pub(super) answers: VecDeque<(u32, u8)>,
    /// Its channel took no more, in this batch.
    pub(super) is_full: bool,
}

impl Share {
    fn note_under_way(&mut self, now: u64, late: u64) {
        let (last, saved) = (self.last, self.saved);
        let has_come = |number: u32| saved != 0 && reached(saved, number);
        while self.under_way.front().is_some_and(|(number, _)| has_come(*number)) {
            self.under_way.pop_front();
        }
        if last == 0 || has_come(last) {
            return;
        }
        let is_full = self.under_way.len() == MARKS;
        match self.under_way.back_mut() {
            // As if it had been sent with the one before: what is late is so a little sooner, and not too late.
            Some((number, since)) if is_full || now.saturating_sub(*since) < late / MARKS as u64 => *number = last,
            _ => self.under_way.push_back((last, now)),
        }
    }
}

/// See the module. None before anybody has been heard of.
#[derive(Default)]
pub(super) struct Shares {
    list: Vec<Share>,
    /// There is a server for every flow.
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
    /// These are the servers, by share; [`Peer::default`] is one that has not been heard of. Which shares' servers are others than before, and whether there was one before.
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
        self.are_all_known = !self.list.is_empty() && self.list.iter().all(|share| share.server.is_some());
        changed
    }

    /// The servers that have been heard of.
    pub(super) fn known(&self) -> impl Iterator<Item = Peer> + '_ {
        self.list.iter().filter_map(|share| share.server)
    }

    /// There is a server for every flow.
    #[inline]
    pub(super) fn are_all_known(&self) -> bool {
        self.are_all_known
    }

    /// The server of this flow, if there is one.
    pub(super) fn server_of(&self, flows: &Flows, slot: Slot) -> Option<Peer> {
        self.list[share_of_key(flows, &flows.header(slot).key, self.list.len())?].server
    }

    /// Which share's server this is.
    pub(super) fn position(&self, server: Peer) -> Option<usize> {
        self.list.iter().position(|share| share.server == Some(server))
    }

    /// This node is a server, in whichever life.
    pub(super) fn has_node(&self, node: u16) -> bool {
        self.known().any(|server| server.node == node)
    }

    /// How far each server is.
    pub(super) fn look_up<L: Holder>(&mut self, links: &mut Links<L>) {
        for share in &mut self.list {
            if let Some(link) = share.server.and_then(|server| links.find(server)) {
                (share.last, share.saved) = (link.numbers().last, link.numbers().saved);
            }
        }
    }

    /// Notes since when something has been under way. What was sent last has not been so for as long as what was sent before; nor is it new when that has come.
    pub(super) fn note_under_way(&mut self, now: u64, late: u64) {
        self.list.iter_mut().for_each(|share| share.note_under_way(now, late));
    }

    /// Something has been under way for longer than that, ns.
    pub(super) fn is_late(&self, now: u64, late: u64) -> bool {
        let is_old = |(_, since): &(u32, u64)| now.saturating_sub(*since) > late;
        self.list.iter().any(|share| share.under_way.front().is_some_and(is_old))
    }
}
