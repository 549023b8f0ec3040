//! Records from the state servers, and records to them other than states.
//!
//! In: records of servers. Out: answers, requests, recalls; flows that come here, flows
//! that another runtime has, flows whose state has come or does not come any more. Never:
//! a state for a server.

use super::Rescue;
use super::shares::Share;
use crate::flows::{ActorHeader, Event, Life};
use crate::numbers::split_u32;
use crate::{Commit, FlowRef, Flows, Outbox, Paged, Peer, Slot, copies, kind};
use holdfast_wire::{DropReason, FlowKey, NodeId};
use zerocopy::FromBytes;

impl Rescue {
    /// Handles a record of this share's server that is not an answer to a state.
    pub(super) fn hear(
        &mut self,
        flows: &mut Flows,
        (share, from): (usize, Peer),
        record: u8,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        match record {
            kind::PAGE_IN => self.handle_page(flows, body, out),
            kind::NO_PAGE => self.handle_no_page(flows, body, out),
            kind::DEAL => self.handle_deal(flows, share, body, out),
            kind::DISPLACED => self.handle_displaced(flows, from, body, out),
            kind::RECALLED => {
                self.recalls.dealt(only_peer(body)?, share, self.shares.len());
                Ok(())
            }
            _ => Err(DropReason::Malformed),
        }
    }

    /// Makes a slot for a flow that was dealt. Returns the slot if the route is still to
    /// be claimed.
    fn place(
        &mut self,
        flows: &mut Flows,
        server: Peer,
        layout: u64,
        block: &[u8],
    ) -> Result<Option<Slot>, DropReason> {
        if layout != flows.layout() || block.len() != flows.block_len() {
            return Err(DropReason::Malformed);
        }
        let (theirs, _) =
            ActorHeader::read_from_prefix(block).map_err(|_| DropReason::Malformed)?;
        let hash = flows.hash(&theirs.key);
        let found = flows.find(&theirs.key, hash);
        if flows.room() == 0 {
            self.make_room(flows);
        }
        if flows.is_paged() && flows.room() <= self.reserved(flows.room()) {
            // There will be room soon.
            return Err(DropReason::QueueFull);
        }
        let slot = match found {
            None => flows
                .insert(theirs.key, hash, Event::Claim)
                .map_err(|_| DropReason::FlowTableFull)?,
            // A remainder of the flow here is being claimed, and the dealt state is
            // newer.
            Some(found)
                if !found.is_reply && is_claimed_older(flows.header(found.slot), &theirs) =>
            {
                flows.make_present(found.slot).map_err(|_| DropReason::QueueFull)?;
                found.slot
            }
            // The flow is about to come here by another way, or to leave.
            Some(_) => return Err(DropReason::StaleEpoch),
        };
        if flows.overwrite(slot, block).is_err() {
            if found.is_none() {
                flows.remove(slot);
            }
            return Err(DropReason::FlowTableFull);
        }
        let header = flows.header_mut(slot);
        header.set_holder(server);
        header.commit = Commit::NONE;
        Ok(found.is_none().then_some(slot))
    }

    fn handle_deal(
        &mut self,
        flows: &mut Flows,
        share: usize,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        let (number, rest) = split_u32(body)?;
        let (dead, rest) = split_peer(rest)?;
        let (layout, block) = rest.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
        let server = self.shares[share].server.unwrap_or_default();
        let placed = self.place(flows, server, u64::from_be_bytes(*layout), block);
        self.shares[share]
            .answers
            .push_back((number, placed.map_or_else(|reason| reason as u8 + 1, |_| 0)));
        match placed {
            Ok(None) => {}
            Ok(Some(slot)) => out.late_claims.push((dead.node, slot)),
            Err(DropReason::Malformed) => return Err(DropReason::Malformed),
            // The server deals the flow to the next runtime, or again later.
            Err(_) => {}
        }
        Ok(())
    }

    /// Another runtime has a flow that is served here under an older epoch.
    fn handle_displaced(
        &mut self,
        flows: &mut Flows,
        from: Peer,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        let (layout, block) = body.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
        if u64::from_be_bytes(*layout) != flows.layout() || block.len() != flows.block_len() {
            return Err(DropReason::Malformed);
        }
        let (theirs, _) =
            ActorHeader::read_from_prefix(block).map_err(|_| DropReason::Malformed)?;
        let Some(found) = flows.find(&theirs.key, flows.hash(&theirs.key)) else { return Ok(()) };
        let ours = flows.header(found.slot);
        let is_ours = !found.is_reply && ours.life().is_own();
        if !is_ours || theirs.epoch == ours.epoch || !copies::is_newer(&theirs, ours) {
            return Ok(());
        }
        let flow = ours.reference(found.slot);
        let is_same = ours.opened_at == theirs.opened_at;
        // The server's page belongs to the other runtime, so no copy is ended from here.
        let outcome = copies::save(flows, from, block, &mut None, out);
        if is_same && !flows.is_present(flow.slot) {
            // The same flow: its state there names the same leases.
            flows.know_demoted(flow.slot, &block[size_of::<ActorHeader>()..]);
        }
        self.displaced.push(flow);
        outcome
    }

    /// The requested state of a flow has come.
    fn handle_page(
        &mut self,
        flows: &mut Flows,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        let (layout, block) = body.split_first_chunk::<8>().ok_or(DropReason::Malformed)?;
        if u64::from_be_bytes(*layout) != flows.layout() || block.len() != flows.block_len() {
            return Err(DropReason::Malformed);
        }
        let (theirs, state) =
            ActorHeader::read_from_prefix(block).map_err(|_| DropReason::Malformed)?;
        let Some(flow) = self.take_answer(flows, &theirs.key)? else { return Ok(()) };
        let slot = flow.slot;
        let ours = flows.header(slot);
        if (theirs.version, theirs.opened_at) != (ours.version, ours.opened_at) {
            // The page is not the state that was evicted here, and there is no other
            // copy.
            out.lost.push(flow);
            return Err(DropReason::ReplicaDiffers);
        }
        match flows.load(slot, state) {
            Ok(()) => {
                out.loaded.push(slot);
                self.paging.iter_mut().for_each(|paging| paging.fetched += 1);
                // A packet waits for the state: mark it as used, so that it is not
                // evicted before.
                flows.set_used(slot, true);
            }
            // Other states have taken the room meanwhile: the state is requested again.
            Err(_) => self.paging.iter_mut().for_each(|paging| paging.want(flows, slot)),
        }
        Ok(())
    }

    fn handle_no_page(
        &mut self,
        flows: &Flows,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        let key = FlowKey::read_from_bytes(body).map_err(|_| DropReason::Malformed)?;
        out.lost.extend(self.take_answer(flows, &key)?);
        Ok(())
    }

    /// The flow that this answer is about, if its state is still wanted.
    fn take_answer(&mut self, flows: &Flows, key: &FlowKey) -> Result<Option<FlowRef>, DropReason> {
        let paging = self.paging.as_mut().ok_or(DropReason::Malformed)?;
        let flow = paging.answered(key).ok_or(DropReason::StaleDuplicate)?;
        let is_wanted = flows.get_owned(flow).is_some() && !flows.is_present(flow.slot);
        Ok(is_wanted.then_some(flow))
    }

    /// Sends requests for absent states, answers to deals, and recalls, as far as each
    /// server's channel allows.
    pub(super) fn speak(&mut self, flows: &Flows, out: &mut Outbox) {
        let Rescue { paging, shares, recalls, copies, .. } = self;
        shares.iter_mut().for_each(|share| share.is_full = false);
        if let Some(paging) = paging {
            paging.ask(flows, shares, out);
        }
        for (at, share) in shares.iter_mut().enumerate() {
            let Some(server) = share.server else { continue };
            while !share.is_full
                && let Some((number, outcome)) = share.answers.front()
            {
                share.is_full =
                    !out.send(server, kind::DEALT, &[&number.to_be_bytes(), &[*outcome]]);
                if !share.is_full {
                    share.answers.pop_front();
                }
            }
            if !share.is_full {
                share.is_full = !recalls
                    .ask(at, server, |dead| out.send(server, kind::RECALL, &[&peer_bytes(dead)]));
            }
            copies.blocked |= share.is_full;
        }
    }

    /// True if there is something to send that waits for no answer.
    pub(super) fn has_to_say(&self) -> bool {
        let has_to_say = |(at, share): (usize, &Share)| {
            share.server.is_some_and(|server| {
                !share.answers.is_empty() || self.recalls.is_any_due(at, server)
            })
        };
        self.shares.iter().enumerate().any(has_to_say)
    }
}

/// True if this runtime claims an older state of the same flow.
fn is_claimed_older(ours: &ActorHeader, theirs: &ActorHeader) -> bool {
    ours.life() == Life::Claiming && ours.epoch != theirs.epoch && copies::is_newer(theirs, ours)
}

/// Bytes of a node and its incarnation.
const PEER: usize = 6;

/// Encodes node and incarnation.
pub(super) fn peer_bytes(peer: Peer) -> [u8; PEER] {
    let ([a, b], [c, d, e, f]) = (peer.node.to_be_bytes(), peer.incarnation.to_be_bytes());
    [a, b, c, d, e, f]
}

/// Parses node and incarnation; returns the rest too.
pub(super) fn split_peer(body: &[u8]) -> Result<(Peer, &[u8]), DropReason> {
    let (node, rest) = body.split_first_chunk::<2>().ok_or(DropReason::Malformed)?;
    let (incarnation, rest) = split_u32(rest)?;
    Ok((Peer { node: NodeId::from_be_bytes(*node), incarnation }, rest))
}

/// Parses node and incarnation with nothing behind them.
pub(super) fn only_peer(body: &[u8]) -> Result<Peer, DropReason> {
    split_peer(body).and_then(
        |(peer, rest)| if rest.is_empty() { Ok(peer) } else { Err(DropReason::Malformed) },
    )
}
