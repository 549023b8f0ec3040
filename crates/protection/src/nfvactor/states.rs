//! States on their way to replicas: whole, as deltas, and again where a replica is
//! missing.

use super::NfvActor;
use crate::copies::Demoted;
use crate::flows::{ActorHeader, flag};
use crate::numbers::split_block;
use crate::rescue::share_of_key;
use crate::{Commit, Flows, Outbox, Peer, Slot, copies, delta, kind};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, NodeId};

/// Slots looked at, and states sent, per flush of a resynchronisation: few enough to fit
/// between two bursts unnoticed.
const RESYNC_SCAN: u32 = 2048;
const RESYNC_SEND: usize = 64;
/// Time between two rounds of questions about copies, ns; slots looked at, and questions
/// asked, in each round. With 100,000 flows, each copy is asked about once a minute; with
/// more than [`ASK_HOLDERS`] holders, once in four minutes.
pub(super) const ASK_PAUSE: u64 = 10_000_000;
const ASK_SCAN: u32 = 128;
const ASK_SEND: usize = 16;
/// Holders asked in each round: a question to another holder is a frame of its own, and a
/// cluster may have a thousand runtimes.
const ASK_HOLDERS: usize = 4;
/// Bytes in front of the block, in a record that carries a whole block.
const WHOLE_HEAD_LEN: usize = 4 + 8;

/// True if the flow's dead owner had revealed more than the state here includes. A copy
/// would pass for the complete state.
fn is_unfinished(header: &ActorHeader) -> bool {
    header.flags & flag::EMPTY != 0 && !is_planted(Fault::CopiesUnfinished)
}

/// Why a state was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsent {
    /// There is no holder to take the state.
    Nobody,
    /// The channel is full.
    Full,
}

impl NfvActor {
    /// Sends the flow's state to its replica, choosing one if there is none. Sends a
    /// delta if the block `before` the change is given and the replica has it.
    ///
    /// # Errors
    /// There is no replica, or its channel is full.
    pub(crate) fn send_state(
        &mut self,
        flows: &mut Flows,
        slot: Slot,
        before: Option<&[u8]>,
        out: &mut Outbox,
    ) -> Result<(), Unsent> {
        let header = *flows.header(slot);
        let old = header.holder();
        let mut peer = old;
        let has_holder = self.links.has(old);
        if !has_holder {
            self.retirement.replace(slot, &header, old);
            self.replaced.replace(slot, &header, old);
            let next = self.next_holder(flows, slot);
            peer = next.unwrap_or_default();
            let header = flows.header_mut(slot);
            header.set_holder(peer);
            if next.is_none() {
                header.flags |= flag::UNPROTECTED;
                self.resync_again |= self.has_snapshots();
                return Err(Unsent::Nobody);
            }
        }
        let has_snapshots = self.has_snapshots();
        let Some(link) = self.links.find(peer) else { return Err(Unsent::Nobody) };
        let commit = link.numbers.next();
        let is_followed = has_holder
            && header.commit != Commit::NONE
            && header.flags & (flag::UNPROTECTED | flag::WHOLE) == 0
            && link.numbers.last.has_reached(header.commit);
        let block = flows.block(slot);
        let limit = (WHOLE_HEAD_LEN + block.len()).saturating_sub(delta::HEAD_LEN);
        let change = before
            .filter(|_| is_followed)
            .and_then(|before| delta::encode(before, block, limit, &mut self.encoded));
        let sent = match change {
            Some(change) => {
                let head =
                    delta::head(commit, flows.hash(&header.key), header.epoch, header.version);
                link.choice.note_state(head.len() + change.len());
                out.send(peer, kind::DELTA, &[&head, change])
            }
            None => {
                let version =
                    if has_snapshots { header.version } else { header.version.wrapping_add(1) };
                link.choice.note_state(WHOLE_HEAD_LEN + block.len());
                flows.header_mut(slot).version = version;
                let sent = out.send(
                    peer,
                    kind::STATE,
                    &[&commit.to_be_bytes(), &flows.layout().to_be_bytes(), flows.block(slot)],
                );
                flows.header_mut(slot).version = header.version;
                sent
            }
        };
        if sent {
            link.note_sent(commit, flows, slot, self.now, false);
            link.copies += u64::from(!has_holder);
            let is_another =
                header.flags & flag::UNPROTECTED != 0 || !has_holder && old.node != NodeId::NONE;
            if has_snapshots && is_another && link.resync_mark.replace(commit).is_none() {
                self.filling += 1;
            }
        }
        let header = flows.header_mut(slot);
        if sent {
            header.version = header.version.wrapping_add(u32::from(!has_snapshots));
            header.commit = commit;
            header.flags &= !(flag::UNPROTECTED | flag::WHOLE | flag::BEHIND);
            // The block kept from before the batch is now older than the holder's copy.
            header.flags |= if header.flags & flag::TOUCHED != 0 { flag::WHOLE } else { 0 };
            return Ok(());
        }
        match has_snapshots {
            true => header.set_holder(old),
            false => header.commit = Commit::NONE,
        }
        header.flags |= flag::UNPROTECTED;
        self.resync_again = true;
        self.blocked = true;
        Err(Unsent::Full)
    }

    /// Chooses the holder for a flow that has none.
    fn next_holder(&mut self, flows: &Flows, slot: Slot) -> Option<Peer> {
        if let Some(share) = share_of_key(flows, &flows.header(slot).key, self.shares.len()) {
            return self.shares[share];
        }
        if self.has_snapshots() {
            return self.choose();
        }
        let next = self.peers.get(self.next_peer).copied()?;
        self.next_peer =
            if self.is_pinned { self.next_peer } else { (self.next_peer + 1) % self.peers.len() };
        Some(next)
    }

    /// Sends the states that this batch has changed.
    pub(super) fn send_changed(&mut self, flows: &mut Flows, out: &mut Outbox) {
        let mut before = core::mem::take(&mut self.before);
        for at in 0..before.len() {
            let Some((slot, block)) = before.take(at, flows) else { continue };
            let header = flows.header_mut(slot);
            if !header.life().is_owned() {
                continue;
            }
            if header.flags & flag::DIRTY != 0 {
                header.flags &= !flag::DIRTY;
                let _ = self.send_state(flows, slot, Some(block), out);
            } else if delta::differ(block, flows.block(slot)) {
                // The flow has changed without a finished packet: one waits in the middle
                // of the chain, or a function panicked.
                flows.header_mut(slot).flags |= flag::WHOLE;
            }
        }
        before.clear();
        self.before = before;
        let mut dirty = core::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            let header = flows.header_mut(slot);
            if header.flags & flag::DIRTY == 0 {
                continue;
            }
            header.flags &= !flag::DIRTY;
            if header.life().is_owned() && !is_unfinished(header) {
                let _ = self.send_state(flows, slot, None, out);
            }
        }
        self.dirty = dirty;
    }

    /// Sends states of flows without a replica, a few at a time.
    pub(super) fn resynchronise(&mut self, flows: &mut Flows, out: &mut Outbox) {
        let Some(from) = self.resync else {
            if self.resync_again && !self.peers.is_empty() && self.now >= self.resync_not_before {
                self.begin_look();
            }
            return;
        };
        let end = (from + RESYNC_SCAN).min(flows.reach());
        let mut sent = 0;
        let mut at = from;
        while at < end && sent < RESYNC_SEND {
            let header = flows.header(at);
            if header.life().is_owned() && flows.is_present(at) && !is_unfinished(header) {
                let has_replica = self.links.has(header.holder());
                if !has_replica || header.flags & flag::UNPROTECTED != 0 {
                    match self.send_state(flows, at, None, out) {
                        Ok(()) => sent += 1,
                        Err(Unsent::Full) => break,
                        Err(Unsent::Nobody) if self.has_snapshots() => {
                            sent += 1;
                            self.note_homeless();
                        }
                        Err(Unsent::Nobody) if self.peers.is_empty() => break,
                        // The server of the flow's share is not known yet. Once it is,
                        // all flows are scanned again.
                        Err(Unsent::Nobody) => {}
                    }
                }
            }
            at += 1;
        }
        self.resync = if at >= flows.reach() { None } else { Some(at) };
        if self.resync.is_none() && self.has_snapshots() {
            self.end_look();
        } else if self.resync.is_none() {
            for link in self.links.iter_mut() {
                link.resync_mark =
                    (link.numbers.last != link.numbers.saved).then_some(link.numbers.last);
            }
            self.count_filling();
        }
    }

    pub(super) fn handle_state(
        &mut self,
        flows: &mut Flows,
        from: Peer,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        let (commit, block) = split_block(flows, body)?;
        // The number is checked first. A late or repeated record must not replace newer
        // state, or bring back a flow that has ended since.
        self.take_commit(from, commit)?;
        let mut demoted = None;
        let saved = copies::save(flows, from, block, &mut demoted, out);
        if let Some(Demoted { slot, key, holder, epoch }) = demoted {
            self.end_copies(slot, holder, from, epoch, key);
        }
        saved.inspect_err(|reason| {
            let inbound = self.inbound.from(from);
            inbound.refuse(commit, *reason);
            inbound.more.refuse(commit, *reason);
        })
    }

    pub(super) fn handle_delta(
        &mut self,
        flows: &mut Flows,
        from: Peer,
        body: &[u8],
    ) -> Result<(), DropReason> {
        let record = delta::split(body, flows.block_len())?;
        self.take_commit(from, record.commit)?;
        let patched = copies::patch(flows, from, &record).inspect_err(|reason| {
            let inbound = self.inbound.from(from);
            inbound.refuse(record.commit, *reason);
            inbound.more.refuse(record.commit, *reason);
        })?;
        if is_planted(Fault::DamagesCopies) && record.commit.get() % 16 == 0 {
            flows.block_mut(patched).last_mut().into_iter().for_each(|byte| *byte ^= 0x40);
        }
        Ok(())
    }

    /// Asks a few holders whether their copies are up to date, slowly, flow after flow,
    /// so that the cost goes unnoticed. Questions are in order with the states, so the
    /// holder compares the same version.
    pub(super) fn ask(&mut self, flows: &Flows, out: &mut Outbox) {
        if self.now < self.ask_not_before
            || self.blocked
            || flows.reach() == 0
            || self.has_snapshots()
        {
            return;
        }
        self.ask_not_before = self.now + self.ask_pause;
        let (mut asked, mut holders, mut known) = (0, [Peer::default(); ASK_HOLDERS], 0);
        for _ in 0..ASK_SCAN.min(flows.reach()) {
            let slot = if self.ask_at < flows.reach() { self.ask_at } else { 0 };
            self.ask_at = slot + 1;
            let header = flows.header(slot);
            // Flows that have changed, or may have, since their last record are not asked
            // about.
            let unknown =
                flag::UNPROTECTED | flag::WHOLE | flag::BEHIND | flag::DIRTY | flag::TOUCHED;
            let is_known = header.commit != Commit::NONE && header.flags & unknown == 0;
            // A flow whose state is about to be evicted is skipped, so that its only copy
            // is not removed.
            if !header.life().is_owned()
                || !is_known
                || !flows.is_present(slot)
                || flows.is_going(slot)
            {
                continue;
            }
            let holder = header.holder();
            let Some(link) = self.links.find(holder) else { continue };
            if !holders[..known].contains(&holder) {
                if known == ASK_HOLDERS {
                    // The next round begins with this slot.
                    self.ask_at = slot;
                    return;
                }
                holders[known] = holder;
                known += 1;
            }
            let number = link.numbers.next();
            let head = delta::head(number, flows.hash(&header.key), header.epoch, header.version);
            if !out.send(holder, kind::CHECK, &[&head, &flows.digest(slot).to_be_bytes()]) {
                self.ask_at = slot;
                return;
            }
            link.note_sent(number, flows, slot, self.now, true);
            asked += 1;
            if asked == ASK_SEND {
                return;
            }
        }
    }

    /// An owner asks about a copy. A copy that differs is refused like a state, and so
    /// before the acknowledgement that covers the question.
    pub(super) fn handle_check(
        &mut self,
        flows: &mut Flows,
        from: Peer,
        body: &[u8],
    ) -> Result<(), DropReason> {
        let check = delta::split_check(body)?;
        self.take_commit(from, check.number)?;
        copies::check(flows, from, &check)
            .inspect_err(|reason| self.inbound.from(from).refuse(check.number, *reason))
    }
}
