//! Restoration: the snapshots of a failed runtime return to its next incarnation, from
//! all their holders in parallel.
//!
//! Theory of operation. A holder [keeps](Keeping) the snapshots of the dead. The next
//! incarnation [asks](Fetching) every peer. Each peer [serves](Serving) it as fast as
//! their channel allows, and reports the end. From then on a returned snapshot is a
//! snapshot of the next incarnation's flow, held where it was. If that incarnation dies
//! too, the same begins again. The account of the recovery stays open until everything
//! sent has been saved or refused, so that meanwhile neither routes nor leases go to
//! others. A holder that is not asked, or not any longer, claims the routes of the
//! snapshots that it still keeps, and serves these flows itself.

use super::NfvActor;
use crate::copies::is_newer;
use crate::flows::{ActorHeader, Event, Life};
use crate::numbers::{split_block, split_commit, split_u32};
use crate::{Commit, Flows, Outbox, Peer, Slot, kind};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, NodeId};
use zerocopy::FromBytes;

/// How long a holder waits for the next incarnation to ask, or to take more, ns. A
/// process starts in a small part of this time, and the switch holds packets for longer.
pub(super) const TIMEOUT: u64 = 2_000_000_000;
/// Time that a running next incarnation has to ask, ns. An incarnation that does not know
/// of a holder, because the holder is leaving, never asks it.
pub(super) const SHORT_TIMEOUT: u64 = 250_000_000;
/// Slots looked at, and snapshots sent, per flush. Many, because failover lasts as long
/// as flows wait for their snapshots.
const SERVE_SCAN: u32 = 8192;
const SERVE_SEND: usize = 256;

/// A dead runtime whose snapshots are kept here.
struct Keeping {
    dead: Peer,
    /// When the snapshots are claimed, ns; `None` while the time is unknown.
    deadline: Option<u64>,
    /// Since when the next incarnation has been there without asking, ns.
    unasked_since: Option<u64>,
}

/// A next incarnation that asked for snapshots.
struct Serving {
    to: Peer,
    /// The last incarnation that is meant.
    dead: Peer,
    at: Slot,
    /// Number of the record that reported the end.
    said_all: Option<Commit>,
    /// Since when nothing can be sent to the asker, ns: it is not known yet, or is
    /// leaving.
    unknown_since: Option<u64>,
}

/// This runtime's request for its predecessor's flows.
struct Fetching {
    dead: Peer,
    /// When the last answer came, ns; `None` while the time is unknown.
    heard_at: Option<u64>,
    unasked: Vec<Peer>,
    asked: Vec<Peer>,
}

/// Snapshots that are kept, served, and fetched.
#[derive(Default)]
pub(in crate::nfvactor) struct Restoring {
    keeping: Vec<Keeping>,
    serving: Vec<Serving>,
    fetching: Vec<Fetching>,
}

/// The time, once it is known. The clock of an incarnation that no packet or tick has
/// reached shows zero. A time noted then would look long past as soon as the clock is
/// right.
fn known(now: u64) -> Option<u64> {
    (now > 0 || is_planted(Fault::TakesZeroForTime)).then_some(now)
}

fn is_of(header: &ActorHeader, dead: Peer) -> bool {
    let owner = header.holder();
    header.life() == Life::Copy && dead.has_reached(owner)
}

/// The holder of the flow's snapshot claims the flow.
fn claim(flows: &mut Flows, slot: Slot, node: NodeId, out: &mut Outbox) {
    flows.step(slot, Event::Claim);
    // The flow has no snapshot elsewhere now.
    let header = flows.header_mut(slot);
    header.set_holder(Peer::default());
    out.late_claims.push((node, slot));
}

/// The next incarnation refused a snapshot that it had asked for.
pub(super) fn take_back(
    flows: &mut Flows,
    slot: Slot,
    node: NodeId,
    reason: DropReason,
    out: &mut Outbox,
) {
    match reason {
        // The next incarnation has newer state.
        DropReason::StaleEpoch => flows.remove(slot),
        _ => claim(flows, slot, node, out),
    }
}

impl NfvActor {
    /// `dead` has failed: its snapshots here are kept, and no record of it is taken any
    /// more.
    pub(in crate::nfvactor) fn keep(&mut self, flows: &Flows, dead: Peer, out: &mut Outbox) {
        self.close(dead, out);
        self.snapshots.restoring.serving.retain(|serving| !dead.has_reached(serving.to));
        if !self.snapshots.restoring.keeping.iter().any(|keeping| keeping.dead == dead)
            && flows.iter().any(|(_, header)| is_of(header, dead))
        {
            self.snapshots.restoring.keeping.push(Keeping {
                dead,
                deadline: None,
                unasked_since: None,
            });
        }
    }

    /// A turn of restoration: requests, snapshots, claims.
    pub(in crate::nfvactor) fn restore_some(&mut self, flows: &mut Flows, out: &mut Outbox) {
        self.fetch(out);
        self.serve(flows, out);
        self.give_up_waiting(flows, out);
        self.give_up_fetching();
    }

    pub(in crate::nfvactor) fn begin_fetching(&mut self, dead: Peer) {
        let unasked = self.links.iter().map(|link| link.peer).collect();
        self.snapshots.restoring.fetching.push(Fetching {
            dead,
            heard_at: None,
            unasked,
            asked: Vec::new(),
        });
    }

    /// Asks the peers that have not been asked yet.
    fn fetch(&mut self, out: &mut Outbox) {
        for fetching in &mut self.snapshots.restoring.fetching {
            while let Some(&peer) = fetching.unasked.last() {
                if let Some(link) = self.links.find(peer) {
                    let number = link.numbers.next();
                    let incarnation = fetching.dead.incarnation.to_be_bytes();
                    if !out.send(peer, kind::FETCH, &[&number.to_be_bytes(), &incarnation]) {
                        self.blocked = true;
                        break;
                    }
                    link.numbers.last = number;
                    fetching.asked.push(peer);
                }
                fetching.unasked.pop();
            }
        }
        self.snapshots
            .restoring
            .fetching
            .retain(|fetching| !fetching.unasked.is_empty() || !fetching.asked.is_empty());
    }

    /// A runtime asks for the flows of its earlier incarnations, up to the given one.
    pub(in crate::nfvactor) fn handle_fetch(
        &mut self,
        flows: &Flows,
        from: Peer,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        let (number, rest) = split_commit(body)?;
        let (incarnation, rest) = split_u32(rest)?;
        let dead = Peer { node: from.node, incarnation };
        if !rest.is_empty() || dead == from || !from.has_reached(dead) {
            return Err(DropReason::Malformed);
        }
        self.take_commit(from, number)?;
        // The request may arrive before the news of the predecessor's failure.
        self.keep(flows, dead, out);
        self.snapshots.restoring.serving.push(Serving {
            to: from,
            dead,
            at: 0,
            said_all: None,
            unknown_since: None,
        });
        Ok(())
    }

    /// Sends the requested snapshots as far as there is room.
    fn serve(&mut self, flows: &mut Flows, out: &mut Outbox) {
        for serving in &mut self.snapshots.restoring.serving {
            let to = serving.to;
            let Some(link) = self.links.find(to) else { continue };
            let limit = if serving.said_all.is_some() { serving.at } else { flows.reach() };
            let end = serving.at.saturating_add(SERVE_SCAN).min(limit);
            let mut sent = 0;
            while serving.at < end && sent < SERVE_SEND {
                let slot = serving.at;
                let header = flows.header(slot);
                if is_of(header, serving.dead) {
                    let number = link.numbers.next();
                    let parts: [&[u8]; 3] =
                        [&number.to_be_bytes(), &flows.layout().to_be_bytes(), flows.block(slot)];
                    if !out.send(to, kind::RESTORED, &parts) {
                        self.blocked = true;
                        break;
                    }
                    link.note_sent(number, flows, slot, self.now, false);
                    let header = flows.header_mut(slot);
                    header.set_holder(to);
                    header.commit = number;
                    sent += 1;
                }
                serving.at += 1;
            }
            if sent > 0 {
                let deadline = known(self.now).map(|now| now + TIMEOUT);
                let kept = self
                    .snapshots
                    .restoring
                    .keeping
                    .iter_mut()
                    .filter(|keeping| keeping.dead.node == to.node);
                kept.for_each(|keeping| keeping.deadline = deadline);
            }
            if serving.at >= flows.reach() && serving.said_all.is_none() {
                let number = link.numbers.next();
                if out.send(
                    to,
                    kind::FETCHED,
                    &[&number.to_be_bytes(), &serving.dead.incarnation.to_be_bytes()],
                ) {
                    link.numbers.last = number;
                    serving.said_all = Some(number);
                } else {
                    self.blocked = true;
                }
            }
        }
    }

    /// The asker has saved or refused everything up to this record.
    pub(in crate::nfvactor) fn finish_serving(&mut self, to: Peer, saved: Commit) {
        let keeping = &mut self.snapshots.restoring.keeping;
        self.snapshots.restoring.serving.retain(|serving| {
            let is_done = serving.to == to
                && serving.said_all.is_some_and(|number| saved.has_reached(number));
            if is_done {
                keeping.retain(|kept| !serving.dead.has_reached(kept.dead));
            }
            !is_done
        });
    }

    /// Claims the snapshots that were kept for too long.
    fn give_up_waiting(&mut self, flows: &mut Flows, out: &mut Outbox) {
        let Some(now) = known(self.now) else { return };
        let links = &self.links;
        // An asker that begins to leave before it is answered would be waited for as long
        // as it lives, and might itself wait for the end of the recovery.
        self.snapshots.restoring.serving.retain_mut(|serving| {
            let since = *serving.unknown_since.get_or_insert(now);
            if links.has(serving.to) {
                serving.unknown_since = None;
            }
            serving.unknown_since.is_none() || now < since + TIMEOUT
        });
        let (links, serving) = (&self.links, &self.snapshots.restoring.serving);
        self.snapshots.restoring.keeping.retain_mut(|keeping| {
            let node = keeping.dead.node;
            let has_successor = links.present(node).is_some();
            let is_asked = serving.iter().any(|serving| serving.to.node == node);
            let unasked_since = *keeping.unasked_since.get_or_insert(now);
            if !has_successor || is_asked {
                keeping.unasked_since = None;
            }
            let is_over = has_successor && !is_asked && now >= unasked_since + SHORT_TIMEOUT;
            if !is_over && now < *keeping.deadline.get_or_insert(now + TIMEOUT) {
                return true;
            }
            for slot in 0..flows.reach() {
                if is_of(flows.header(slot), keeping.dead) {
                    claim(flows, slot, keeping.dead.node, out);
                }
            }
            false
        });
    }

    /// A snapshot of one of this runtime's own flows comes back.
    pub(in crate::nfvactor) fn handle_restored(
        &mut self,
        flows: &mut Flows,
        from: Peer,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        let (number, block) = split_block(flows, body)?;
        let heard_at = known(self.now);
        let fetching = self
            .snapshots
            .restoring
            .fetching
            .iter_mut()
            .find(|fetching| fetching.asked.contains(&from));
        let me = fetching.map(|fetching| {
            fetching.heard_at = heard_at;
            fetching.dead.node
        });
        self.take_commit(from, number)?;
        let Some(me) = me else {
            // A holder that is not waited for any more is answered too: it has the flow,
            // and goes on with it.
            self.refuse(from, number, DropReason::Fenced);
            return Ok(());
        };
        if let Err(reason) = self.adopt(flows, from, me, block, out) {
            self.refuse(from, number, reason);
            return Err(reason);
        }
        Ok(())
    }

    fn adopt(
        &mut self,
        flows: &mut Flows,
        from: Peer,
        me: NodeId,
        block: &[u8],
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        let (theirs, _) =
            ActorHeader::read_from_prefix(block).map_err(|_| DropReason::Malformed)?;
        let hash = flows.hash(&theirs.key);
        let (slot, was) = match flows.find(&theirs.key, hash) {
            None => (
                flows
                    .insert(theirs.key, hash, Event::Claim)
                    .map_err(|_| DropReason::FlowTableFull)?,
                Life::Free,
            ),
            Some(found) if found.is_reply => return Err(DropReason::FlowTableFull),
            Some(found) => {
                let ours = *flows.header(found.slot);
                if ours.life().is_own() || !is_newer(&theirs, &ours) {
                    return Err(DropReason::StaleEpoch);
                }
                flows.step(found.slot, Event::Claim);
                (found.slot, ours.life())
            }
        };
        if flows.overwrite(slot, block).is_err() {
            // A flow without its reply key could not be served; its holder goes on with
            // it.
            flows.remove(slot);
            return Err(DropReason::FlowTableFull);
        }
        let header = flows.header_mut(slot);
        header.set_holder(from);
        if let Some(link) = self.links.find(from) {
            link.copies += 1;
        }
        if was != Life::Claiming {
            out.late_claims.push((me, slot));
        }
        Ok(())
    }

    /// A holder has sent all its snapshots.
    pub(in crate::nfvactor) fn handle_fetched(
        &mut self,
        from: Peer,
        body: &[u8],
    ) -> Result<(), DropReason> {
        let (number, rest) = split_commit(body)?;
        let (incarnation, rest) = split_u32(rest)?;
        if !rest.is_empty() {
            return Err(DropReason::Malformed);
        }
        // A holder that is not waited for any more still gets its answer.
        self.take_commit(from, number)?;
        for fetching in self
            .snapshots
            .restoring
            .fetching
            .iter_mut()
            .filter(|fetching| fetching.dead.incarnation == incarnation)
        {
            fetching.asked.retain(|peer| *peer != from);
        }
        self.snapshots
            .restoring
            .fetching
            .retain(|fetching| !fetching.unasked.is_empty() || !fetching.asked.is_empty());
        Ok(())
    }

    /// These peers have failed or are leaving: nothing is sent to them. Snapshots that
    /// were asked for still come from a leaving peer.
    pub(in crate::nfvactor) fn forget_absent(&mut self, gone: &[Peer]) {
        self.snapshots.restoring.serving.retain(|serving| !gone.contains(&serving.to));
        for fetching in &mut self.snapshots.restoring.fetching {
            fetching.unasked.retain(|peer| !gone.contains(peer));
        }
        self.snapshots
            .restoring
            .fetching
            .retain(|fetching| !fetching.unasked.is_empty() || !fetching.asked.is_empty());
    }

    /// The peer has failed: no snapshot comes from it.
    pub(in crate::nfvactor) fn forget_dead(&mut self, dead: Peer) {
        for fetching in &mut self.snapshots.restoring.fetching {
            fetching.asked.retain(|peer| !dead.has_reached(*peer));
        }
        self.snapshots
            .restoring
            .fetching
            .retain(|fetching| !fetching.unasked.is_empty() || !fetching.asked.is_empty());
    }

    /// Stops waiting for holders that have sent nothing for so long that they claim their
    /// snapshots themselves.
    fn give_up_fetching(&mut self) {
        let Some(now) = known(self.now) else { return };
        self.snapshots
            .restoring
            .fetching
            .retain_mut(|fetching| now < *fetching.heard_at.get_or_insert(now) + TIMEOUT);
    }

    /// True if a flow of `dead` is neither where it is to be served nor given up.
    pub(in crate::nfvactor) fn is_waiting_for(&self, dead: Peer) -> bool {
        self.snapshots.restoring.keeping.iter().any(|keeping| keeping.dead.has_reached(dead))
            || self.snapshots.restoring.serving.iter().any(|serving| serving.dead.has_reached(dead))
            || self.snapshots.restoring.fetching.iter().any(|fetching| fetching.dead == dead)
    }

    pub(in crate::nfvactor) fn is_restoring(&self) -> bool {
        !(self.snapshots.restoring.keeping.is_empty()
            && self.snapshots.restoring.serving.is_empty()
            && self.snapshots.restoring.fetching.is_empty())
    }

    /// True if there is something to ask or to send, and a peer to receive it.
    pub(in crate::nfvactor) fn has_restoring_to_do(&self) -> bool {
        let is_there = |peer: &Peer| self.links.has(*peer);
        self.snapshots
            .restoring
            .serving
            .iter()
            .any(|serving| serving.said_all.is_none() && is_there(&serving.to))
            || self
                .snapshots
                .restoring
                .fetching
                .iter()
                .any(|fetching| fetching.unasked.iter().any(is_there))
    }
}
