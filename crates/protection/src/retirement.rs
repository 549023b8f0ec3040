//! Copy retirement: copies that are of no use any more, and holders that are leaving.
//!
//! Theory of operation. An owner tells a holder when a copy's flow has ended or has
//! moved. If the channel has no room, the message waits. A holder that is leaving gets no
//! more copies, but its copies stay until they are replaced. When another holder has
//! saved the flow, or the flow ends or moves before, the leaving holder is told too, so
//! that its copy does not outlive the flow. While the switch lives it refuses the claim
//! of such a copy. The switch's next incarnation has never heard of flows that had ended,
//! and would give an ended flow a number that another flow has leased. A flow may also
//! come from a runtime of which this one does not know yet whether it is leaving: the
//! copy there is replaced in the same way.
//!
//! A flow that moves to a runtime of the same host leaves a copy here that would die with
//! its new owner. The copies on other hosts are therefore *kept* as long as the copy
//! here, which goes when the new owner has a copy elsewhere. Meanwhile the flow *needs*
//! them, and does not move on to a runtime that would give one of them up for it.

use crate::flows::ActorHeader;
use crate::links::{Holder, Links};
use crate::numbers::Sent;
use crate::{Commit, Epoch, FlowRef, Flows, Outbox, Peer, Slot, kind};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, FlowKey, NodeId};
use std::collections::{BTreeMap, VecDeque};
use zerocopy::IntoBytes;

/// Ends that wait for room in a channel. Beyond this limit a holder keeps the copy until
/// its owner fails; the switch then refuses its claim.
const ENDS_LIMIT: usize = 65_536;
/// Replaced copies looked at per flush.
const LOOK: usize = 256;

/// A copy to be removed at its holder.
struct End {
    holder: Peer,
    epoch: Epoch,
    key: FlowKey,
}

impl End {
    /// Returns false if the channel has no room.
    fn send(&self, numbers: &mut Sent, out: &mut Outbox) -> bool {
        let number = numbers.next();
        let is_sent = out.send(
            self.holder,
            kind::END,
            &[&number.to_be_bytes(), &self.epoch.to_be_bytes(), self.key.as_bytes()],
        );
        if is_sent {
            numbers.last = number;
        }
        is_sent
    }
}

/// A flow of this runtime of which a former holder has an old copy.
struct Replaced {
    flow: FlowRef,
    epoch: Epoch,
    key: FlowKey,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Retirement {
    leaving: Vec<(Peer, Sent)>,
    replaced: BTreeMap<(Slot, Peer), Replaced>,
    /// By slot of a flow that has moved on: the copies to be removed together with the
    /// copy that is left here.
    kept: BTreeMap<Slot, Vec<End>>,
    ends: VecDeque<End>,
    /// The position of the scan through the replaced copies.
    next: (Slot, Peer),
}

impl Retirement {
    /// Sets the holders that are leaving, and takes over the counts of the links that are
    /// not used any more. Copies at holders that are gone are forgotten.
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

    /// Removes the holder from those that are leaving, because it stays after all.
    /// Returns its count, which goes on.
    pub(crate) fn stays(&mut self, peer: Peer) -> Sent {
        let at = self.leaving.iter().position(|(known, _)| *known == peer);
        at.map_or_else(Sent::default, |at| self.leaving.swap_remove(at).1)
    }

    /// The count of a leaving holder.
    pub(crate) fn numbers(&mut self, peer: Peer) -> Option<&mut Sent> {
        self.leaving.iter_mut().find(|(known, _)| *known == peer).map(|(_, numbers)| numbers)
    }

    /// The flow's state goes to another holder from now on, or will. If this holder is
    /// leaving, its copy is the only one until then.
    pub(crate) fn replace(&mut self, slot: Slot, header: &ActorHeader, holder: Peer) {
        if self.numbers(holder).is_some() {
            self.came_from(slot, header, holder);
        }
    }

    /// The flow has come from this runtime, which keeps a copy of it. Like
    /// [`replace`](Self::replace), whether the runtime is known to be leaving or not.
    pub(crate) fn came_from(&mut self, slot: Slot, header: &ActorHeader, holder: Peer) {
        if holder.node != NodeId::NONE {
            let (flow, epoch, key) = (header.reference(slot), header.epoch, header.key);
            self.replaced.insert((slot, holder), Replaced { flow, epoch, key });
        }
    }

    /// True if the former copies of the flow must stay, because the new holder has not
    /// saved it yet.
    pub(crate) fn needs_earlier(&self, slot: Slot) -> bool {
        self.replaced.range((slot, Peer::default())..=(slot, LAST)).next().is_some()
    }

    /// Queues the message that this copy is of no use.
    pub(crate) fn end(&mut self, holder: Peer, epoch: Epoch, key: FlowKey) {
        if self.ends.len() < ENDS_LIMIT {
            self.ends.push_back(End { holder, epoch, key });
        }
    }

    /// The flow is not owned here any more: removes the copies at former holders.
    pub(crate) fn gone(&mut self, slot: Slot) {
        while let Some((&(slot, holder), _)) =
            self.replaced.range((slot, Peer::default())..=(slot, LAST)).next()
        {
            if let Some(Replaced { epoch, key, .. }) = self.replaced.remove(&(slot, holder)) {
                self.end(holder, epoch, key);
            }
        }
    }

    /// The flow has moved to `to`, a runtime of this host. Keeps the copy at `holder`,
    /// unless the flow has moved there, and the copies at former holders. All of these
    /// stay as long as the copy here.
    pub(crate) fn keep(&mut self, slot: Slot, to: Peer, holder: Peer, epoch: Epoch, key: FlowKey) {
        // An entry of an earlier flow in this slot.
        self.end_kept(slot);
        let of_slot = (slot, Peer::default())..=(slot, LAST);
        let replaced = self.replaced.extract_if(of_slot, |_, _| true);
        let replaced =
            replaced.map(|((_, holder), Replaced { epoch, key, .. })| End { holder, epoch, key });
        let held =
            (holder.node != NodeId::NONE && holder != to).then_some(End { holder, epoch, key });
        let kept: Vec<End> = held.into_iter().chain(replaced).collect();
        if !kept.is_empty() {
            self.kept.insert(slot, kept);
        }
    }

    /// The copy here of a flow that has moved on is of no use any more: removes the
    /// copies that were kept elsewhere with it.
    pub(crate) fn end_kept(&mut self, slot: Slot) {
        for End { holder, epoch, key } in self.kept.remove(&slot).into_iter().flatten() {
            self.end(holder, epoch, key);
        }
    }

    /// The flow is owned here again: the kept copies go when another holder has saved it.
    pub(crate) fn came_back(&mut self, slot: Slot, header: &ActorHeader) {
        for End { holder, epoch, key } in self.kept.remove(&slot).into_iter().flatten() {
            match key == header.key {
                true => self.came_from(slot, header, holder),
                false => self.end(holder, epoch, key),
            }
        }
    }

    /// Scans some of the replaced copies. If another holder has saved the flow, the
    /// former one is told.
    pub(crate) fn look(&mut self, flows: &Flows, mut is_saved: impl FnMut(&ActorHeader) -> bool) {
        for _ in 0..LOOK.min(self.replaced.len()) {
            let next =
                self.replaced.range(self.next..).next().or_else(|| self.replaced.iter().next());
            let Some((&(slot, holder), replaced)) = next else { return };
            self.next = (
                slot,
                Peer { node: holder.node, incarnation: holder.incarnation.saturating_add(1) },
            );
            let ours = flows.get_owned(replaced.flow).filter(|header| header.key == replaced.key);
            if let Some(header) = ours {
                // A former holder that stayed or came back, and is the flow's holder now,
                // keeps its copy.
                self.replaced.remove(&(slot, header.holder()));
            }
            if ours.is_none_or(&mut is_saved) {
                self.gone(slot);
            }
        }
    }

    /// Sends the queued messages as far as there is room. False if a channel is full.
    pub(crate) fn tell<H: Holder>(&mut self, links: &mut Links<H>, out: &mut Outbox) -> bool {
        while let Some(end) = self.ends.front() {
            let link = links.find(end.holder).map(H::numbers);
            let mut leaving = self.leaving.iter_mut().filter(|_| !is_planted(Fault::TellsNoLeaver));
            let numbers = link.or_else(|| {
                leaving.find(|(peer, _)| *peer == end.holder).map(|(_, numbers)| numbers)
            });
            if numbers.is_some_and(|numbers| !end.send(numbers, out)) {
                return false;
            }
            self.ends.pop_front();
        }
        true
    }

    /// True if a message waits for room.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.ends.is_empty()
    }

    /// A leaving holder has processed everything up to this number. `None` if `from` is
    /// not leaving.
    pub(crate) fn handle_saved(
        &mut self,
        from: Peer,
        number: Commit,
    ) -> Option<Result<(), DropReason>> {
        self.numbers(from).map(|numbers| numbers.handle_saved(number))
    }
}

const LAST: Peer = Peer { node: NodeId::new(u16::MAX), incarnation: u32::MAX };

/// True if the holder has saved the last commit that the header names.
pub(crate) fn is_saved<H: Holder>(links: &mut Links<H>, header: &ActorHeader) -> bool {
    let link = links.find(header.holder());
    header.commit != Commit::NONE
        && link.is_some_and(|link| link.numbers().has_saved(header.commit))
}
