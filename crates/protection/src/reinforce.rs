//! `reinforce`: a packet leaves when a standby knows that it was processed. The resulting
//! state follows later.
//!
//! Theory of operation (REINFORCE, sections III and IV; docs/protocols/replay.md). The
//! switch keeps a log of the packets that it sends. Functions see only the packet, their
//! flow, and the stamped time. A runtime that has a copy of a flow, and knows which
//! packets have been processed since and in which order, can therefore make the flow's
//! state again by replay. At the end of a batch the owner sends the batch's *inputs* to
//! the standby, and the packets wait in a latch until these are saved. If the owner
//! fails, flows are claimed as replicas are. With each route comes the number of its
//! packets in the switch's log. The runtime requests them and replays them in the order
//! of the inputs ([`Logged::take_inputs`]). Replayed packets are not released again,
//! because they have left. Packets behind the last input count as new.
//!
//! Inputs and states.
//! - An input is the epoch of a packet's flow and the packet's stamp. The paper's TxTs
//!   table has the latest stamp alone, which is not enough if packets are lost or
//!   overtake each other between switch and runtime.
//! - A non-deterministic packet ([`Context`](../../holdfast_nf/struct.Context.html)
//!   knows) takes its flow's state along with the commit, in the same order. The copy is
//!   then as after that batch. The same holds for a flow's first packets, for packets
//!   that are not in the log, and for all packets if the log would die with this runtime.
//! - Copies are [NFVactor's replicas](crate::nfvactor). Copies that are behind their
//!   flows are sent anew in *rounds* ([`round`]). When all copies of a round are saved,
//!   the switch may forget the packets that it sent before the round began, and the
//!   standby the inputs of that time.

mod journal;
mod round;
#[cfg(test)]
mod tests;

use crate::flows::flag;
use crate::numbers::{key_of, only_commit, split_commit, split_refusal};
use crate::{
    Admission, Commit, Detour, Epoch, FlowRef, Flows, Logged, NfvActor, Outbox, Peer, Plan,
    Protection, Safety, Slot, kind,
};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::{DropReason, NodeId, Packet};
use journal::Journals;
use round::Rounds;

/// Inputs in one record: as many as fit into a frame.
const INPUTS_PER_RECORD: usize = 128;

/// A packet that the chain has processed in this batch.
struct Input {
    flow: FlowRef,
    epoch: Epoch,
    stamp: u64,
}

/// Inputs that are being collected for a record.
struct Draft {
    holder: Peer,
    base: u64,
    body: Vec<u8>,
    slots: Vec<Slot>,
}

/// See the module.
pub(crate) struct Reinforce {
    plan: Plan,
    me: NodeId,
    copies: NfvActor,
    batch: Vec<Input>,
    /// Flows that are about to leave: their copies must be up to date.
    leaving: Vec<FlowRef>,
    drafts: Vec<Draft>,
    rounds: Rounds,
    journals: Journals,
    /// Records under way when a log was lost, by holder. The copies there need that log
    /// until these records have been saved.
    after_loss: Vec<(Peer, Commit)>,
    /// Set if the switch's log would outlive this runtime.
    is_log_safe: bool,
}

impl Reinforce {
    /// A protection without a peer yet.
    pub(crate) fn new(plan: Plan) -> Reinforce {
        Reinforce {
            plan,
            me: NodeId::NONE,
            copies: NfvActor::pinned(),
            batch: Vec::with_capacity(256),
            leaving: Vec::new(),
            drafts: Vec::new(),
            rounds: Rounds::default(),
            journals: Journals::default(),
            after_loss: Vec::new(),
            is_log_safe: true,
        }
    }

    /// Notes a processed packet: either its flow's state goes with this batch's commit,
    /// or its input alone.
    #[inline]
    fn note(&mut self, flows: &mut Flows, slot: Slot, stamp: u64, nondeterministic: bool) {
        let header = flows.header(slot);
        let has_copy =
            header.commit != Commit::NONE && header.flags & (flag::UNPROTECTED | flag::WHOLE) == 0;
        let is_alike = !nondeterministic || is_planted(Fault::MissesNondeterminism);
        if has_copy && is_alike && self.is_log_safe && !self.rounds.covers(stamp) {
            let (flow, epoch) = (header.reference(slot), header.epoch);
            self.batch.push(Input { flow, epoch, stamp });
        } else {
            self.copies.mark_dirty(flows, slot);
        }
    }

    /// Sends the batch's inputs, except those of flows whose state is sent.
    fn send_inputs(&mut self, flows: &mut Flows, out: &mut Outbox) {
        let mut batch = core::mem::take(&mut self.batch);
        for Input { flow, epoch, stamp } in batch.drain(..) {
            let slot = flow.slot;
            let header = flows.get_owned(flow).filter(|header| header.flags & flag::DIRTY == 0);
            let Some(header) = header else { continue };
            if header.epoch != epoch {
                self.copies.mark_dirty(flows, slot);
                continue;
            }
            let holder = header.holder();
            let at =
                self.drafts.iter().position(|draft| draft.holder == holder).unwrap_or_else(|| {
                    self.drafts.push(Draft {
                        holder,
                        base: stamp,
                        body: Vec::new(),
                        slots: Vec::new(),
                    });
                    self.drafts.len() - 1
                });
            let draft = &mut self.drafts[at];
            if draft.slots.is_empty() {
                draft.base = stamp;
            }
            match i32::try_from(stamp.wrapping_sub(draft.base) as i64) {
                Ok(offset) => {
                    draft.body.extend_from_slice(&epoch.to_be_bytes());
                    draft.body.extend_from_slice(&offset.to_be_bytes());
                    draft.slots.push(slot);
                }
                Err(_) => self.copies.mark_dirty(flows, slot),
            }
            if draft.slots.len() == INPUTS_PER_RECORD {
                self.send_draft(at, flows, out);
            }
        }
        self.batch = batch;
        for at in 0..self.drafts.len() {
            if !self.drafts[at].slots.is_empty() {
                self.send_draft(at, flows, out);
            }
        }
    }

    fn send_draft(&mut self, at: usize, flows: &mut Flows, out: &mut Outbox) {
        let Reinforce { copies, drafts, rounds, .. } = self;
        let Draft { holder, base, body, slots } = &mut drafts[at];
        let number = copies.links.find(*holder).and_then(|link| {
            let number = link.numbers.next();
            let is_sent = out.send(
                *holder,
                kind::INPUTS,
                &[&number.to_be_bytes(), &base.to_be_bytes(), body],
            );
            is_sent.then(|| {
                link.numbers.last = number;
                number
            })
        });
        for slot in slots.drain(..) {
            match number {
                Some(number) => {
                    flows.header_mut(slot).commit = number;
                    rounds.note_input(flows, slot);
                }
                // The holder is gone, or its channel is full. The state must go there or
                // elsewhere, or the packets do not leave.
                None => copies.mark_dirty(flows, slot),
            }
        }
        body.clear();
    }

    /// An owner reports processed packets.
    fn handle_inputs(&mut self, from: Peer, body: &[u8]) -> Result<(), DropReason> {
        let inputs = journal::InputRecord::read(body)?;
        self.copies.take_commit(from, inputs.number)?;
        self.journals
            .take(from, &inputs)
            .inspect_err(|reason| self.copies.refuse(from, inputs.number, *reason))
    }

    /// A holder has refused a record. If the record was no state, the holder does not
    /// know which packets have been processed.
    fn handle_refused(
        &mut self,
        flows: &mut Flows,
        from: Peer,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        let (number, _) = split_refusal(body)?;
        let link = self.copies.links.find(from);
        let is_state =
            link.is_some_and(|link| link.under_way.iter().any(|sent| sent.number == number));
        self.copies.handle_record(flows, from, kind::REFUSED, body, out)?;
        if !is_state {
            self.log_lost(flows);
        }
        Ok(())
    }
}

impl Logged for Reinforce {
    fn begin_batch(&mut self, packets: usize, bytes: usize) {
        self.rounds.note_logged(packets, bytes);
    }

    fn set_place(&mut self, flows: &mut Flows, me: Peer, is_log_safe: bool) {
        self.me = me.node;
        if self.is_log_safe && !is_log_safe {
            self.log_lost(flows);
        }
        self.is_log_safe = is_log_safe;
    }

    fn log_lost(&mut self, flows: &mut Flows) {
        for Input { flow, .. } in self.batch.drain(..) {
            if flows.reference(flow.slot) == flow {
                self.copies.mark_dirty(flows, flow.slot);
            }
        }
        self.rounds.forget();
        self.after_loss = round::last_sent(&self.copies);
        if (0..flows.reach()).fold(false, |is_any, slot| {
            let header = flows.header_mut(slot);
            let is_behind = header.life().is_owned() && header.flags & flag::BEHIND != 0;
            header.flags |= if is_behind { flag::UNPROTECTED } else { 0 };
            is_any | is_behind
        }) {
            self.copies.resynchronise_all();
        }
    }

    fn take_inputs(&mut self, flows: &Flows, slot: Slot) -> Vec<u64> {
        let mut inputs = self.journals.of_flow(flows.header(slot).epoch, slot);
        if is_planted(Fault::ReplaysBackwards) {
            inputs.reverse();
        }
        inputs
    }

    fn replayed(&mut self, flows: &mut Flows, slot: Slot) {
        // Only this runtime knows which packets left, until a copy of the present state
        // has been saved.
        flows.header_mut(slot).flags |= flag::UNPROTECTED;
        self.copies.resynchronise_again();
    }

    fn has_input(&self, flows: &Flows, slot: Slot, stamp: u64) -> bool {
        let header = flows.header(slot);
        let owner = header.holder();
        header.last_stamp >= stamp || self.journals.has(owner, header.epoch, stamp)
    }
}

impl Protection for Reinforce {
    fn plan(&self) -> Plan {
        self.plan
    }

    fn logged(&self) -> Option<&dyn Logged> {
        Some(self)
    }

    fn logged_mut(&mut self) -> Option<&mut dyn Logged> {
        Some(self)
    }

    #[inline]
    fn admit(&mut self, _flows: &mut Flows, _slot: Slot) -> Admission {
        Admission::Ready
    }

    #[inline]
    fn commit(
        &mut self,
        flows: &mut Flows,
        slot: Slot,
        packet: Packet,
        nondeterministic: bool,
        _out: &mut Outbox,
    ) {
        self.note(flows, slot, packet.meta.stamp, nondeterministic);
        self.copies.pending.push((slot, packet));
    }

    /// The packet goes behind a packet of this batch that was noted. The record of that
    /// packet tells the standby all that it has to know of the flow.
    fn follow(&mut self, _flows: &mut Flows, slot: Slot, packet: Packet, _out: &mut Outbox) {
        self.copies.pending.push((slot, packet));
    }

    #[inline]
    fn changed(&mut self, flows: &mut Flows, slot: Slot, stamp: u64, nondeterministic: bool) {
        self.note(flows, slot, stamp, nondeterministic);
    }

    fn ended(&mut self, flows: &mut Flows, slot: Slot, out: &mut Outbox) {
        self.copies.ended(flows, slot, out);
    }

    fn flush(&mut self, flows: &mut Flows, out: &mut Outbox) {
        for flow in self.leaving.drain(..) {
            if flows.get_owned(flow).is_some_and(|header| header.flags & flag::BEHIND != 0) {
                self.copies.mark_dirty(flows, flow.slot);
            }
        }
        self.send_inputs(flows, out);
        self.copies.flush(flows, out);
        self.rounds.go_on(&self.plan, &mut self.copies, flows, out);
        let copies = &self.copies;
        self.after_loss.retain(|(peer, last)| round::is_open(copies, *peer, *last));
    }

    fn set_detours(&mut self, detours: &[(Peer, Detour)]) {
        self.copies.set_detours(detours);
    }

    fn set_peers(&mut self, flows: &mut Flows, peers: &[Peer], leaving: &[Peer], out: &mut Outbox) {
        // Runtimes of one host have the same peers: the rotation gives them different
        // standbys.
        let mut in_turn = peers.to_vec();
        if !peers.is_empty() {
            in_turn.rotate_left(usize::from(self.me) % peers.len());
        }
        self.copies.set_peers(flows, &in_turn, leaving, out);
    }

    fn handle_record(
        &mut self,
        flows: &mut Flows,
        from: Peer,
        record: u8,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<(), DropReason> {
        match record {
            kind::INPUTS => self.handle_inputs(from, body),
            kind::REFUSED => self.handle_refused(flows, from, body, out),
            kind::COVERED => {
                let (number, rest) = split_commit(body)?;
                let covered = only_commit(rest)?;
                self.copies.take_commit(from, number)?;
                self.journals.trim(from, covered);
                Ok(())
            }
            _ => {
                self.copies.handle_record(flows, from, record, body, out)?;
                if record == kind::STATE
                    && let Some(found) =
                        key_of(body).and_then(|key| flows.find(&key, flows.hash(&key)))
                {
                    self.journals.cover(from, found.slot);
                }
                Ok(())
            }
        }
    }

    fn flow_of(&self, flows: &Flows, record: u8, body: &[u8]) -> Option<u64> {
        self.copies.flow_of(flows, record, body)
    }

    fn handle_handed(&mut self, _flows: &mut Flows, _from: Peer, packet: Packet, out: &mut Outbox) {
        out.dropped.push((packet, DropReason::Malformed));
    }

    fn recover(&mut self, flows: &mut Flows, dead: Peer, out: &mut Outbox) {
        self.copies.recover(flows, dead, out);
        self.journals.close(dead);
    }

    fn claimed(&mut self, flows: &mut Flows, slot: Slot) {
        flows.header_mut(slot).flags &= !flag::BEHIND;
        self.copies.claimed(flows, slot);
    }

    fn unclaimed(&mut self, flows: &mut Flows, slot: Slot) {
        self.copies.unclaimed(flows, slot);
    }

    fn has_drained(&mut self, flows: &Flows, slot: Slot, out: &mut Outbox) -> bool {
        let header = flows.header(slot);
        if header.flags & flag::BEHIND != 0 {
            // The copy may have to outlast the log and inputs that it would need.
            self.leaving.push(header.reference(slot));
            return false;
        }
        self.batch.is_empty() && self.copies.has_drained(flows, slot, out)
    }

    fn handle_mark(&mut self, from: Peer, commit: Commit) {
        self.copies.handle_mark(from, commit);
    }

    fn needs_earlier(&self, slot: Slot) -> bool {
        self.copies.needs_earlier(slot)
    }

    fn departed(
        &mut self,
        flows: &mut Flows,
        slot: Slot,
        to: Peer,
        old_epoch: Epoch,
        out: &mut Outbox,
    ) -> bool {
        // The copy here is the flow as it left. Packets that the next owner processes
        // come behind it.
        flows.header_mut(slot).flags &= !flag::BEHIND;
        self.journals.uncover(slot);
        self.copies.departed(flows, slot, to, old_epoch, out)
    }

    fn arrived(&mut self, flows: &mut Flows, slot: Slot, from: Peer) {
        flows.header_mut(slot).flags &= !flag::BEHIND;
        self.copies.arrived(flows, slot, from);
    }

    fn is_busy(&self) -> bool {
        self.copies.is_busy()
            || !self.leaving.is_empty()
            || self.rounds.is_busy() && !self.copies.blocked
    }

    fn safety(&self, flows: &Flows) -> Safety {
        let is_open = !is_planted(Fault::SafeBehindLostLog)
            && self
                .after_loss
                .iter()
                .any(|(peer, last)| round::is_open(&self.copies, *peer, *last));
        let safety = self.copies.safety(flows);
        Safety { resynchronising: safety.resynchronising || is_open, ..safety }
    }

    fn held(&self) -> usize {
        self.copies.held()
    }

    fn abandon(&mut self, out: &mut Outbox) {
        self.copies.abandon(out);
    }
}

impl NfvActor {
    /// Copies as `reinforce` keeps them: all at one holder while it has room, and packets
    /// wait here.
    fn pinned() -> NfvActor {
        let mut copies = NfvActor::new(Plan::NFVACTOR_AT_SOURCE);
        copies.is_pinned = true;
        copies
    }
}
