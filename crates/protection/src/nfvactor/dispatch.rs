//! Packets of a batch on their way out: each waits behind its flow's state, at the link
//! to the flow's holder.

use super::{Latched, NfvActor, unsaved};
use crate::{Commit, Flows, Outbox, Peer, Slot};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, Packet};
use std::collections::BTreeSet;

impl NfvActor {
    pub(super) fn dispatch(&mut self, flows: &Flows, slot: Slot, packet: Packet, out: &mut Outbox) {
        let header = flows.header(slot);
        if self.has_snapshots() || is_planted(Fault::ReleasesBeforeCommit) {
            out.release(packet);
            return;
        }
        let latched = Latched {
            commit: header.commit,
            flow: header.reference(slot),
            packets: unsaved::packets(header),
            packet,
            is_for_holder: false,
        };
        if header.holder() == Peer::default() {
            let latched = Latched { commit: Commit::NONE, ..latched };
            if let Some(latched) = self.replaced.hold(Peer::default(), latched, out) {
                out.released_unprotected += 1;
                out.release(latched.packet);
            }
            return;
        }
        if header.commit == Commit::NONE {
            // The state could not be sent, so the packet must not leave. The sender will
            // try again.
            out.dropped.push((latched.packet, DropReason::HeldOverflow));
            return;
        }
        let holder = header.holder();
        match self.links.find(holder) {
            Some(link) => {
                link.choice.note_packet(latched.packet.len());
                if let Some(latched) = self.replaced.hold(holder, latched, out) {
                    link.hold(latched, &self.unsaved, out);
                }
            }
            None => out.dropped.push((latched.packet, DropReason::LostInFailure)),
        }
    }

    /// Forwards the packets that waited for leaving holders, before any that came since.
    pub(super) fn follow_replaced(&mut self, flows: &mut Flows, out: &mut Outbox) {
        self.replaced.ask(self.now, out);
        let mut before = Vec::new();
        let mut slots = BTreeSet::new();
        while let Some((holder, latched)) = self.replaced.poll() {
            let link = self.links.find(holder);
            let slot = latched.flow.slot;
            // Later packets of a flow stay behind earlier ones, whichever holder each was
            // for.
            match link.filter(|_| !slots.contains(&slot)) {
                Some(link) => {
                    link.hold(latched, &self.unsaved, out);
                    // The commit may have been saved while the packet waited; no second
                    // acknowledgement comes.
                    link.open_latch(&self.unsaved, out);
                }
                None => {
                    // The packet's next holder is gone too: the packet goes with its
                    // flow, if the flow is still here.
                    if flows.get_owned(latched.flow).is_some() {
                        self.mark_dirty(flows, slot);
                        slots.insert(slot);
                        before.push((slot, latched.packet));
                    } else {
                        out.dropped.push((latched.packet, DropReason::LostInFailure));
                    }
                }
            }
        }
        if !before.is_empty() {
            self.pending.splice(0..0, before);
        }
    }
}
