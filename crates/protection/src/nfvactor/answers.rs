//! Answers of holders to records: saved, or refused.

use super::{Latched, NfvActor, REFUSED_PAUSE};
use crate::flows::flag;
use crate::{Commit, Flows, Outbox, Peer};
use holdfast_wire::DropReason;
use std::collections::VecDeque;

impl NfvActor {
    pub(super) fn handle_saved(
        &mut self,
        from: Peer,
        commit: Commit,
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        if let Some(result) = self.retirement.handle_saved(from, commit) {
            return result;
        }
        let link = self.links.find(from).ok_or(DropReason::Fenced)?;
        link.numbers.handle_saved(commit)?;
        while let Some(sent) = link.under_way.pop_front_if(|sent| commit.has_reached(sent.number)) {
            self.unsaved.note_saved(&sent);
        }
        if link.resync_mark.take_if(|mark| commit.has_reached(*mark)).is_some() {
            self.filling -= 1;
        }
        link.open_latch(&self.unsaved, out);
        self.finish_serving(from, commit);
        Ok(())
    }

    pub(super) fn handle_refused(
        &mut self,
        flows: &mut Flows,
        from: Peer,
        commit: Commit,
        reason: DropReason,
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        let is_pinned = self.is_pinned;
        let link = self.links.find(from).ok_or(DropReason::Fenced)?;
        link.numbers.handle_refused(commit)?;
        let sent = link.under_way.iter().find(|sent| sent.number == commit).copied();
        // Under `reinforce`, later packets of this flow were covered by inputs only, and
        // now there is no copy that these could be applied to. If packets leave at once,
        // a flow that found no room goes on as without a protection.
        let is_let_go = self.unsaved.is_counted() && reason == DropReason::FlowTableFull;
        let is_its = |latched: &Latched| {
            (is_pinned || is_let_go) && sent.is_some_and(|sent| sent.flow == latched.flow)
        };
        let mut kept = VecDeque::with_capacity(link.latch.len());
        for latched in link.latch.drain(..) {
            if is_its(&latched) && is_let_go {
                out.released_unprotected += 1;
                out.release(latched.packet);
            } else if latched.commit == commit || is_its(&latched) {
                out.dropped.push((latched.packet, reason));
            } else {
                kept.push_back(latched);
            }
        }
        link.latch = kept;
        self.replaced.refuse(from, commit, reason, out);
        if self.has_snapshots() {
            self.handle_refused_snapshot(flows, from, sent, reason, out);
            return Ok(());
        }
        self.resync_again = true;
        let header = sent
            .and_then(|sent| flows.get_mut(sent.flow))
            .filter(|header| header.life().is_owned() && header.holder() == from);
        if let Some(header) = header {
            // If the flow has changed since, that delta was refused too, and its refusal
            // comes later. A further delta would not be taken either.
            header.flags |= flag::WHOLE;
            if reason == DropReason::ReplicaDiffers || sent.is_some_and(|sent| sent.is_question) {
                // The copy has been removed, so its holder has room for a new one.
                header.flags |= flag::UNPROTECTED;
                self.differed += u64::from(reason == DropReason::ReplicaDiffers);
                return Ok(());
            }
            if header.commit == commit || is_pinned {
                // The next holder to be asked may have room.
                header.set_holder(Peer::default());
                header.commit = Commit::NONE;
                header.flags |= flag::UNPROTECTED;
                if self.is_pinned && self.peers.get(self.next_peer) == Some(&from) {
                    self.next_peer = (self.next_peer + 1) % self.peers.len();
                }
            }
        }
        self.resync_not_before = self.now + REFUSED_PAUSE;
        Ok(())
    }
}
