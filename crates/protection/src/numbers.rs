//! Numbered records between the owners of flows and the holders of their copies: the part
//! that is the same for every protection with copies.
//!
//! Theory of operation. An owner counts the records that it sends to a holder. The holder
//! takes each number once, in order, and acknowledges the last number up to which it has
//! processed everything. Records that it does not take it refuses before it acknowledges
//! them. Both counts belong to one incarnation: records of a dead one are not taken. The
//! number 0 stands for "none", so the counts leave it out when they wrap.

use crate::{Commit, Epoch, Flows, NodeIndex, Outbox, Peer, kind};
use holdfast_wire::{DropReason, FlowKey, NodeId};
use std::collections::VecDeque;
use zerocopy::FromBytes;

/// Parses a number; returns the rest too.
pub(crate) fn split_u32(body: &[u8]) -> Result<(u32, &[u8]), DropReason> {
    let (number, rest) = body.split_first_chunk::<4>().ok_or(DropReason::Malformed)?;
    Ok((u32::from_be_bytes(*number), rest))
}

/// Parses an epoch; returns the rest too.
pub(crate) fn split_epoch(body: &[u8]) -> Result<(Epoch, &[u8]), DropReason> {
    split_u32(body).map(|(number, rest)| (Epoch::new(number), rest))
}

/// Parses a commit; returns the rest too.
pub(crate) fn split_commit(body: &[u8]) -> Result<(Commit, &[u8]), DropReason> {
    split_u32(body).map(|(number, rest)| (Commit::new(number), rest))
}

/// Parses a commit with nothing behind it.
pub(crate) fn only_commit(body: &[u8]) -> Result<Commit, DropReason> {
    match split_commit(body)? {
        (commit, []) => Ok(commit),
        _ => Err(DropReason::Malformed),
    }
}

/// Parses a record that carries a flow of this layout: number and block.
pub(crate) fn split_block<'a>(
    flows: &Flows,
    body: &'a [u8],
) -> Result<(Commit, &'a [u8]), DropReason> {
    let (number, rest) = split_commit(body)?;
    let (layout, block) = rest.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
    if u64::from_be_bytes(*layout) != flows.layout() || block.len() != flows.block_len() {
        return Err(DropReason::Malformed);
    }
    Ok((number, block))
}

/// The forward key of the flow in a record with a block, which begins with the key. For
/// prefetching only: the rest of the record is not checked.
pub(crate) fn key_of(body: &[u8]) -> Option<FlowKey> {
    FlowKey::read_from_prefix(body.get(4 + 8..)?).ok().map(|(key, _)| key)
}

/// Parses a refusal: number and reason.
pub(crate) fn split_refusal(body: &[u8]) -> Result<(Commit, DropReason), DropReason> {
    let (number, rest) = split_commit(body)?;
    let &[reason] = rest else { return Err(DropReason::Malformed) };
    Ok((number, DropReason::from_index(reason as usize).ok_or(DropReason::Malformed)?))
}

/// The owner's count.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// The last record sent.
    pub(crate) last: Commit,
    /// The holder has processed everything up to this record.
    pub(crate) saved: Commit,
    /// The last record that was refused, until a later one has been saved.
    refused: Option<Commit>,
}

impl Sent {
    /// The number of the next record.
    pub(crate) fn next(&self) -> Commit {
        self.last.next()
    }

    /// True if the holder has acknowledged a record, so it knows this sender. A holder
    /// that has just started may not: its first view may arrive after this runtime's view
    /// that names it. Messages wait for the view, but packets handed over would not.
    pub(crate) fn has_answered(&self) -> bool {
        self.saved != Commit::NONE
    }

    /// True if the holder has processed everything up to this record.
    #[inline]
    pub(crate) fn has_saved(&self, number: Commit) -> bool {
        self.saved.has_reached(number)
    }

    fn is_late(&self, number: Commit) -> bool {
        !number.is_later(self.saved)
    }

    /// The holder has processed everything up to this record.
    pub(crate) fn handle_saved(&mut self, number: Commit) -> Result<(), DropReason> {
        if self.is_late(number) {
            return Err(DropReason::StaleDuplicate);
        }
        if !self.last.has_reached(number) {
            return Err(DropReason::Malformed);
        }
        self.saved = number;
        self.refused = self.refused.filter(|refused| !number.has_reached(*refused));
        Ok(())
    }

    /// The holder has refused this record. Refusals precede the acknowledgement that
    /// covers them.
    pub(crate) fn handle_refused(&mut self, number: Commit) -> Result<(), DropReason> {
        if self.is_late(number) || self.refused.is_some_and(|refused| refused.has_reached(number)) {
            return Err(DropReason::StaleDuplicate);
        }
        if !self.last.has_reached(number) {
            return Err(DropReason::Malformed);
        }
        self.refused = Some(number);
        Ok(())
    }
}

/// An owner whose copies are here, with the protection's own data beside the count.
#[derive(Debug)]
pub(crate) struct Inbound<T> {
    pub(crate) peer: Peer,
    pub(crate) saved: Commit,
    acknowledge: bool,
    pub(crate) closed: bool,
    /// Refusals that the owner does not know of yet. Bounded by what the owner's channel
    /// has under way, since the owner hears of nothing else meanwhile.
    untold: VecDeque<(Commit, DropReason)>,
    /// Set if the entry is in the list of those that may have something to tell.
    is_busy: bool,
    pub(crate) more: T,
}

impl<T> Inbound<T> {
    /// Notes that this record is not taken, to tell the owner.
    pub(crate) fn refuse(&mut self, number: Commit, reason: DropReason) {
        self.untold.push_back((number, reason));
    }

    /// True if there is something to tell the owner.
    pub(crate) fn has_untold(&self) -> bool {
        self.acknowledge || !self.untold.is_empty()
    }

    /// Tells the owner which records were refused. False if the channel had no room for
    /// all refusals.
    pub(crate) fn tell_refusals(&mut self, out: &mut Outbox) -> bool {
        while let Some(&(number, reason)) = self.untold.front() {
            if !out.send(self.peer, kind::REFUSED, &[&number.to_be_bytes(), &[reason as u8]]) {
                return false;
            }
            self.untold.pop_front();
        }
        true
    }

    /// Acknowledges what was processed. An acknowledgement covers everything before it,
    /// so refusals are told first.
    pub(crate) fn tell_saved(&mut self, out: &mut Outbox) {
        if self.acknowledge {
            self.acknowledge = !out.send(self.peer, kind::SAVED, &[&self.saved.to_be_bytes()]);
        }
    }
}

/// All owners that send records here. A flush visits only those that have sent something
/// since the last one, or have not been told everything.
#[derive(Debug)]
pub(crate) struct Inbounds<T> {
    list: Vec<Inbound<T>>,
    /// By node, the entry that was added last.
    at: NodeIndex,
    /// Indices of the entries that may have something to tell, in order.
    busy: Vec<u32>,
}

impl<T> Default for Inbounds<T> {
    fn default() -> Inbounds<T> {
        Inbounds { list: Vec::new(), at: NodeIndex::default(), busy: Vec::new() }
    }
}

impl<T: Default> Inbounds<T> {
    fn position(&self, peer: Peer) -> Option<usize> {
        let at = self.at.get(peer.node)?;
        if self.list[at].peer == peer {
            Some(at)
        } else {
            self.list.iter().position(|inbound| inbound.peer == peer)
        }
    }

    /// Forgets the closed entries of a node.
    fn forget_closed(&mut self, node: NodeId) {
        self.list.retain(|inbound| !(inbound.closed && inbound.peer.node == node));
        self.at.renew(self.list.iter().map(|inbound| inbound.peer.node));
        let busy = self.list.iter().zip(0u32..).filter(|(inbound, _)| inbound.is_busy);
        self.busy.clear();
        self.busy.extend(busy.map(|(_, at)| at));
    }

    /// The entry of this owner, new or existing.
    pub(crate) fn from(&mut self, peer: Peer) -> &mut Inbound<T> {
        let at = match self.position(peer) {
            Some(at) => at,
            None => {
                if self.at.get(peer.node).is_some() {
                    // Two incarnations of a node are remembered, the present one and the
                    // last: any older one is known to be older.
                    self.forget_closed(peer.node);
                }
                let untold = VecDeque::new();
                let (closed, is_busy, more) = (false, false, T::default());
                self.list.push(Inbound {
                    peer,
                    saved: Commit::NONE,
                    acknowledge: false,
                    closed,
                    untold,
                    is_busy,
                    more,
                });
                // The latest incarnation of a node is the one that sends.
                let known = self.at.get(peer.node).map(|at| self.list[at].peer);
                if known.is_none_or(|known| peer.has_reached(known)) {
                    self.at.set(peer.node, self.list.len() - 1);
                }
                self.list.len() - 1
            }
        };
        let inbound = &mut self.list[at];
        if !core::mem::replace(&mut inbound.is_busy, true) {
            let place = self.busy.partition_point(|busy| *busy < at as u32);
            self.busy.insert(place, at as u32);
        }
        inbound
    }

    /// Takes the number of a record. A living owner counts upwards, and records of a dead
    /// one are fenced. `living`: the incarnation of that node that is known to live.
    pub(crate) fn take(
        &mut self,
        from: Peer,
        number: Commit,
        living: Option<Peer>,
    ) -> Result<&mut Inbound<T>, DropReason> {
        let is_later = |peer: Peer| peer != from && peer.has_reached(from);
        if self.position(from).is_none() {
            let known =
                self.at.get(from.node).map(|_| self.list.iter().map(|inbound| inbound.peer));
            if known.into_iter().flatten().chain(living).any(is_later) {
                return Err(DropReason::Fenced);
            }
        }
        let inbound = self.from(from);
        if inbound.closed {
            return Err(DropReason::Fenced);
        }
        if !number.is_later(inbound.saved) {
            return Err(DropReason::StaleDuplicate);
        }
        inbound.saved = number;
        inbound.acknowledge = true;
        Ok(inbound)
    }

    /// Closes the owner and all its earlier incarnations: no record of theirs is taken
    /// any more. `give_up` gets the protection's data of each.
    pub(crate) fn close(&mut self, dead: Peer, mut give_up: impl FnMut(&mut T)) {
        // An owner that has sent nothing yet is closed too, because records may be on
        // their way.
        self.from(dead);
        for inbound in self.list.iter_mut().filter(|inbound| dead.has_reached(inbound.peer)) {
            inbound.closed = true;
            inbound.untold.clear();
            give_up(&mut inbound.more);
        }
    }

    /// Visits the living owners that have sent something or have something to be told.
    /// `tell` returns true if the owner has still something to be told.
    pub(crate) fn flush(&mut self, mut tell: impl FnMut(&mut Inbound<T>) -> bool) {
        let list = &mut self.list;
        self.busy.retain(|at| {
            let inbound = &mut list[*at as usize];
            inbound.is_busy = !inbound.closed && tell(inbound);
            inbound.is_busy
        });
    }

    /// All owners.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Inbound<T>> {
        self.list.iter_mut()
    }

    /// All owners.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Inbound<T>> {
        self.list.iter()
    }
}
