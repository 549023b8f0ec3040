//! Numbered records between who owns flows and who holds copies of them, as far as it is the same for every protection that keeps copies.
//!
//! Theory of operation. An owner counts the records that it sends to a holder. The holder takes each number once, in order, and says up to which one it has
//! seen to everything; what it would not take it refuses first. Both counts belong to a life: the dead have nothing to say.
//! 0 stands for "none", so the counts leave it out when they wrap.

use crate::{Flows, Outbox, Peer, kind};
use holdfast_wire::{DropReason, FlowKey};
use std::collections::VecDeque;
use zerocopy::FromBytes;

/// `a` is at or after `b` in a sequence that wraps.
#[inline]
pub(crate) fn reached(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 >= 0
}

/// A number, and what follows it.
pub(crate) fn split_u32(body: &[u8]) -> Result<(u32, &[u8]), DropReason> {
    let (number, rest) = body.split_first_chunk::<4>().ok_or(DropReason::Malformed)?;
    Ok((u32::from_be_bytes(*number), rest))
}

/// A number, and nothing else.
pub(crate) fn only_u32(body: &[u8]) -> Result<u32, DropReason> {
    <[u8; 4]>::try_from(body).map(u32::from_be_bytes).map_err(|_| DropReason::Malformed)
}

/// The number and the block of a record that carries a flow of this layout.
pub(crate) fn split_block<'a>(flows: &Flows, body: &'a [u8]) -> Result<(u32, &'a [u8]), DropReason> {
    let (number, rest) = split_u32(body)?;
    let (layout, block) = rest.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
    if u64::from_be_bytes(*layout) != flows.layout() || block.len() != flows.block_len() {
        return Err(DropReason::Malformed);
    }
    Ok((number, block))
}

/// The forward key of the flow that such a record carries: the block begins with it. For a look ahead; nothing else of the record has been looked at.
pub(crate) fn key_of(body: &[u8]) -> Option<FlowKey> {
    FlowKey::read_from_prefix(body.get(4 + 8..)?).ok().map(|(key, _)| key)
}

/// The number and the reason of a refusal.
pub(crate) fn split_refusal(body: &[u8]) -> Result<(u32, DropReason), DropReason> {
    let (number, rest) = split_u32(body)?;
    let &[reason] = rest else { return Err(DropReason::Malformed) };
    Ok((number, DropReason::from_index(reason as usize).ok_or(DropReason::Malformed)?))
}

/// The owner's count.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// The last record sent.
    pub(crate) last: u32,
    /// The holder has seen to everything up to here.
    pub(crate) saved: u32,
    /// The last record that was refused, until a later one has been saved.
    refused: Option<u32>,
}

impl Sent {
    /// The number of the next record.
    pub(crate) fn next(&self) -> u32 {
        self.last.checked_add(1).unwrap_or(1)
    }

    fn is_late(&self, number: u32) -> bool {
        number == self.saved || !reached(number, self.saved)
    }

    /// Everything up to this one has been seen to, says the holder.
    pub(crate) fn handle_saved(&mut self, number: u32) -> Result<(), DropReason> {
        if self.is_late(number) {
            return Err(DropReason::StaleDuplicate);
        }
        if !reached(self.last, number) {
            return Err(DropReason::Malformed);
        }
        self.saved = number;
        self.refused = self.refused.filter(|refused| !reached(number, *refused));
        Ok(())
    }

    /// This one was refused, says the holder. It comes before the word that everything up to it has been seen to.
    pub(crate) fn handle_refused(&mut self, number: u32) -> Result<(), DropReason> {
        if self.is_late(number) || self.refused.is_some_and(|refused| reached(refused, number)) {
            return Err(DropReason::StaleDuplicate);
        }
        if !reached(self.last, number) {
            return Err(DropReason::Malformed);
        }
        self.refused = Some(number);
        Ok(())
    }
}

/// From a runtime of whose flows copies are here, with what the protection keeps beside the count.
#[derive(Debug)]
pub(crate) struct Inbound<T> {
    pub(crate) peer: Peer,
    pub(crate) saved: u32,
    acknowledge: bool,
    pub(crate) closed: bool,
    /// Refusals that the owner does not know of yet. No longer than what its channel has under way: it hears of nothing else meanwhile.
    untold: VecDeque<(u32, DropReason)>,
    pub(crate) more: T,
}

impl<T> Inbound<T> {
    /// This record is not taken; the owner will hear it.
    pub(crate) fn refuse(&mut self, number: u32, reason: DropReason) {
        self.untold.push_back((number, reason));
    }

    /// Tells the owner what was refused. False if there was no room for all of it.
    pub(crate) fn tell_refusals(&mut self, out: &mut Outbox) -> bool {
        while let Some(&(number, reason)) = self.untold.front() {
            if !out.send(self.peer, kind::REFUSED, &[&number.to_be_bytes(), &[reason as u8]]) {
                return false;
            }
            self.untold.pop_front();
        }
        true
    }

    /// Tells the owner what was seen to. Because that covers everything before it, refusals are told first.
    pub(crate) fn tell_saved(&mut self, out: &mut Outbox) {
        if self.acknowledge {
            self.acknowledge = !out.send(self.peer, kind::SAVED, &[&self.saved.to_be_bytes()]);
        }
    }
}

/// All that come in.
#[derive(Debug)]
pub(crate) struct Inbounds<T> {
    list: Vec<Inbound<T>>,
}

impl<T> Default for Inbounds<T> {
    fn default() -> Inbounds<T> {
        Inbounds { list: Vec::new() }
    }
}

impl<T: Default> Inbounds<T> {
    /// From this one, known or not.
    pub(crate) fn from(&mut self, peer: Peer) -> &mut Inbound<T> {
        let at = match self.list.iter().position(|inbound| inbound.peer == peer) {
            Some(at) => at,
            None => {
                // Of a node's lives the present one and the last are remembered: whatever is older is known to be.
                self.list.retain(|inbound| !(inbound.closed && inbound.peer.node == peer.node));
                let untold = VecDeque::new();
                self.list.push(Inbound { peer, saved: 0, acknowledge: false, closed: false, untold, more: T::default() });
                self.list.len() - 1
            }
        };
        &mut self.list[at]
    }

    /// Takes the number of a record: the living count upwards, and the dead have nothing to say. `peers`: others of whom it is known that they live.
    pub(crate) fn take(
        &mut self,
        from: Peer,
        number: u32,
        peers: impl Iterator<Item = Peer>,
    ) -> Result<&mut Inbound<T>, DropReason> {
        let is_later = |peer: Peer| {
            peer.node == from.node && peer.incarnation != from.incarnation && reached(peer.incarnation, from.incarnation)
        };
        let is_known = self.list.iter().any(|inbound| inbound.peer == from);
        if !is_known && self.list.iter().map(|inbound| inbound.peer).chain(peers).any(is_later) {
            return Err(DropReason::Fenced);
        }
        let inbound = self.from(from);
        if inbound.closed {
            return Err(DropReason::Fenced);
        }
        if number == inbound.saved || !reached(number, inbound.saved) {
            return Err(DropReason::StaleDuplicate);
        }
        inbound.saved = number;
        inbound.acknowledge = true;
        Ok(inbound)
    }

    /// It has failed, with all its earlier lives: nothing of theirs is taken any more, and `give_up` gets what the protection kept of each.
    pub(crate) fn close(&mut self, dead: Peer, mut give_up: impl FnMut(&mut T)) {
        // Also if nothing has come from it yet: it may be on its way.
        self.from(dead);
        let is_dead = |peer: Peer| peer.node == dead.node && reached(dead.incarnation, peer.incarnation);
        for inbound in self.list.iter_mut().filter(|inbound| is_dead(inbound.peer)) {
            inbound.closed = true;
            inbound.untold.clear();
            give_up(&mut inbound.more);
        }
    }

    /// Those that live.
    pub(crate) fn open(&mut self) -> impl Iterator<Item = &mut Inbound<T>> {
        self.list.iter_mut().filter(|inbound| !inbound.closed)
    }

    /// All.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Inbound<T>> {
        self.list.iter_mut()
    }

    /// All.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Inbound<T>> {
        self.list.iter()
    }
}
