//! Copies that are of no use any more, and holders that are leaving.
//!
//! Theory of operation. An owner tells a holder when a copy's flow has ended or has gone elsewhere; what finds no room in the channel waits. A holder that is leaving
//! gets no more copies, but those that it has stay until they are replaced: when another holder has saved the flow, or the flow ends or moves before, the
//! leaving one is told too. Otherwise its copy would outlive the flow. While the switch lives it refuses such a copy's claim; its next life has
//! never heard of flows that had ended, and would let an ended flow have a number that another one has been leased. A flow may also come from one of which
//! this runtime has not heard yet whether it is leaving: the copy there is replaced in the same way.
//!
//! A flow that goes to a runtime of the same host leaves a copy that would die with its new owner: the copies elsewhere are *kept* as long as that one,
//! which goes when the new owner has a copy elsewhere. Until then the flow *needs* them, and goes on to nobody who would give one of them up for it.

use crate::flows::{ActorHeader, role};
use crate::links::{Holder, Links};
use crate::numbers::{Sent, reached};
use crate::{Epoch, Flows, Outbox, Peer, Slot, kind};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, FlowKey};
use std::collections::{BTreeMap, VecDeque};
use zerocopy::IntoBytes;

/// Ends that wait for room in a channel. Beyond that a holder keeps the copy until its owner fails; the switch then refuses it.
const ENDS_LIMIT: usize = 65_536;
/// Replaced copies looked at per flush.
const LOOK: usize = 256;

/// A copy that is to go.
struct End {
    holder: Peer,
    epoch: Epoch,
    key: FlowKey,
}

impl End {
    /// False if there is no room.
    fn send(&self, numbers: &mut Sent, out: &mut Outbox) -> bool {
        let number = numbers.next();
        let is_sent = out.send(self.holder, kind::END, &[&number.to_be_bytes(), &self.epoch.to_be_bytes(), self.key.as_bytes()]);
        if is_sent {
            numbers.last = number;
        }
        is_sent
    }
}

/// A flow of ours of which one that was its holder has a copy, as it was then.
struct Replaced {
    generation: u32,
    epoch: Epoch,
    key: FlowKey,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Parting {
    leaving: Vec<(Peer, Sent)>,
    replaced: BTreeMap<(Slot, Peer), Replaced>,
    /// By flow that was here, copies that are to go with the one that is left here.
    kept: BTreeMap<Slot, Vec<End>>,
    ends: VecDeque<End>,
    /// Where the look at what was replaced goes on.
    next: (Slot, Peer),
}

impl Parting {
    /// These are leaving now, and these links are not used any more. What those had that are not there any more is not ours to care for.
    pub(crate) fn set<H: Holder>(&mut self, leaving: &[Peer], lost: &mut [H]) {
        let is_gone = |peer: &Peer| !leaving.contains(peer);
        let left = self.leaving.extract_if(.., |(peer, _)| is_gone(peer)).map(|(peer, _)| peer);
        let gone: Vec<Peer> = left.chain(lost.iter().map(H::peer).filter(is_gone)).collect();
        for &peer in leaving {
            let link = lost.iter_mut().find(|link| link.peer() == peer);
            let numbers = link.map(|link| core::mem::take(link.numbers()));
            match (self.leaving.iter_mut().find(|(known, _)| *known == peer), numbers) {
                (None, numbers) => self.leaving.push((peer, numbers.unwrap_or_default())),
                (Some((_, known)), Some(numbers)) => *known = numbers,
                (Some(_), None) => {}
            }
        }
        self.replaced.retain(|(_, peer), _| !gone.contains(peer));
    }

    /// It stays after all: the count goes on.
    pub(crate) fn stays(&mut self, peer: Peer) -> Sent {
        let at = self.leaving.iter().position(|(known, _)| *known == peer);
        at.map_or_else(Sent::default, |at| self.leaving.swap_remove(at).1)
    }

    /// It is leaving, and this says how far it has come.
    pub(crate) fn numbers(&mut self, peer: Peer) -> Option<&mut Sent> {
        self.leaving.iter_mut().find(|(known, _)| *known == peer).map(|(_, numbers)| numbers)
    }

    /// The flow's state goes to another one from now on, or will, and what this holder has, if it is leaving, is what there is until then.
    pub(crate) fn replace(&mut self, slot: Slot, header: &ActorHeader, holder: Peer) {
        if self.numbers(holder).is_some() {
            self.came_from(slot, header, holder);
        }
    }

    /// The flow has come from this one, which keeps a copy of it: as [`replace`](Self::replace), whether it is leaving or not heard of yet.
    pub(crate) fn came_from(&mut self, slot: Slot, header: &ActorHeader, holder: Peer) {
        if holder.node != 0 {
            let replaced = Replaced { generation: header.generation, epoch: header.epoch, key: header.key };
            self.replaced.insert((slot, holder), replaced);
        }
    }

    /// What others have of the flow as it was is to stay: another holder has not saved it yet.
    pub(crate) fn needs_earlier(&self, slot: Slot) -> bool {
        self.replaced.range((slot, Peer::default())..=(slot, LAST)).next().is_some()
    }

    /// The holder is to be told that a copy is of no use.
    pub(crate) fn end(&mut self, holder: Peer, epoch: Epoch, key: FlowKey) {
        if self.ends.len() < ENDS_LIMIT {
            self.ends.push_back(End { holder, epoch, key });
        }
    }

    /// The flow is not owned here any more: what leaving holders have of it goes.
    pub(crate) fn gone(&mut self, slot: Slot) {
        while let Some((&(slot, holder), _)) = self.replaced.range((slot, Peer::default())..=(slot, LAST)).next() {
            if let Some(Replaced { epoch, key, .. }) = self.replaced.remove(&(slot, holder)) {
                self.end(holder, epoch, key);
            }
        }
    }

    /// The flow has gone to `to`, a runtime of this host. What `holder` has, unless that is where it has gone, and what was to go when another holder has saved the
    /// flow, stays as long as what is here.
    pub(crate) fn keep(&mut self, slot: Slot, to: Peer, holder: Peer, epoch: Epoch, key: FlowKey) {
        // Of another flow, which was here before.
        self.end_kept(slot);
        let of_slot = (slot, Peer::default())..=(slot, LAST);
        let replaced = self.replaced.extract_if(of_slot, |_, _| true);
        let replaced = replaced.map(|((_, holder), Replaced { epoch, key, .. })| End { holder, epoch, key });
        let held = (holder.node != 0 && holder != to).then_some(End { holder, epoch, key });
        let kept: Vec<End> = held.into_iter().chain(replaced).collect();
        if !kept.is_empty() {
            self.kept.insert(slot, kept);
        }
    }

    /// What is here of a flow that has gone is of no use any more, and neither is what was kept elsewhere with it.
    pub(crate) fn end_kept(&mut self, slot: Slot) {
        for End { holder, epoch, key } in self.kept.remove(&slot).into_iter().flatten() {
            self.end(holder, epoch, key);
        }
    }

    /// The flow is owned here again: what was kept of it goes when another holder has saved it.
    pub(crate) fn came_back(&mut self, slot: Slot, header: &ActorHeader) {
        for End { holder, epoch, key } in self.kept.remove(&slot).into_iter().flatten() {
            match key == header.key {
                true => self.came_from(slot, header, holder),
                false => self.end(holder, epoch, key),
            }
        }
    }

    /// Looks at some of what was replaced: where another holder has saved the flow, the leaving one is told.
    pub(crate) fn look(&mut self, flows: &Flows, mut is_saved: impl FnMut(&ActorHeader) -> bool) {
        for _ in 0..LOOK.min(self.replaced.len()) {
            let next = self.replaced.range(self.next..).next().or_else(|| self.replaced.iter().next());
            let Some((&(slot, holder), replaced)) = next else { return };
            self.next = (slot, Peer { node: holder.node, incarnation: holder.incarnation.saturating_add(1) });
            let header = flows.header(slot);
            let is_ours = header.generation == replaced.generation && header.key == replaced.key && header.role == role::OWNER;
            if is_ours {
                // Who has stayed, or come back, and is its holder now keeps the copy.
                self.replaced.remove(&(slot, Peer { node: header.peer, incarnation: header.peer_incarnation }));
            }
            if !is_ours || is_saved(header) {
                self.gone(slot);
            }
        }
    }

    /// Tells what there is room for. False if a channel is full.
    pub(crate) fn tell<H: Holder>(&mut self, links: &mut Links<H>, out: &mut Outbox) -> bool {
        while let Some(end) = self.ends.front() {
            let link = links.find(end.holder).map(H::numbers);
            let mut leaving = self.leaving.iter_mut().filter(|_| !is_planted(Fault::TellsNoLeaver));
            let numbers = link.or_else(|| leaving.find(|(peer, _)| *peer == end.holder).map(|(_, numbers)| numbers));
            if numbers.is_some_and(|numbers| !end.send(numbers, out)) {
                return false;
            }
            self.ends.pop_front();
        }
        true
    }

    /// There is something to be told.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.ends.is_empty()
    }

    /// One that is leaving has seen to everything up to this number. `None` if it is not leaving.
    pub(crate) fn handle_saved(&mut self, from: Peer, number: u32) -> Option<Result<(), DropReason>> {
        self.numbers(from).map(|numbers| numbers.handle_saved(number))
    }
}

const LAST: Peer = Peer { node: u16::MAX, incarnation: u32::MAX };

/// The holder has what the header says was sent last.
pub(crate) fn is_saved<H: Holder>(links: &mut Links<H>, header: &ActorHeader) -> bool {
    let link = links.find(Peer { node: header.peer, incarnation: header.peer_incarnation });
    header.commit != 0 && link.is_some_and(|link| reached(link.numbers().saved, header.commit))
}
